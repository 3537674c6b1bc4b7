// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestCloseTwice(t *testing.T) {
	d := device(t)
	m := newMemory(t, d, KindDevice, 4096)
	p := newPinned[int32](t, d, 16)
	b := newPageable[byte](t, 4096)
	s := newStream(t, d)
	e := newEvent(t, d)
	for name, object := range map[string]interface{ Close() error }{"memory": m, "pinned": p, "buffer": b, "stream": s,
		"event": e, "instance": d.Instance()} {
		if name == "instance" {
			continue
		}
		for i := 0; i < 3; i++ {
			if err := object.Close(); err != nil {
				t.Errorf("%s, Close number %d: %v", name, i+1, err)
			}
		}
	}
	for i := 0; i < 3; i++ {
		must(t, d.Instance().Close())
	}
}

// The order of the guide: a deferred Synchronize comes first, so every Close succeeds after an early return.
func TestDeferredCloses(t *testing.T) {
	i, err := Open(Options{Backend: testBackend(t)})
	must(t, err)
	d, err := i.Device(0)
	must(t, err)
	early := errors.New("in the middle")
	err = func() error {
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		defer func() { must(t, s.Close()) }()
		m, err := NewDeviceMemory[uint32](d, 1<<20, MemoryOptions{})
		must(t, err)
		defer func() { must(t, m.Close()) }()
		defer s.Synchronize()
		must(t, Fill(s, m.Span(), 7))
		return early
	}()
	if err != early {
		t.Error(err)
	}
	must(t, i.Close())
}

func TestCloseFromManyGoroutines(t *testing.T) {
	d := device(t)
	for round := 0; round < 20; round++ {
		m := newMemory(t, d, KindDevice, 4096)
		s := newStream(t, d)
		e := newEvent(t, d)
		var group sync.WaitGroup
		for i := 0; i < 8; i++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for _, err := range []error{m.Close(), s.Close(), e.Close()} {
					if err != nil {
						t.Error(err)
					}
				}
			}()
		}
		group.Wait()
	}
}

func TestUseAfterClose(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 4096})
	must(t, err)
	p, err := NewPinned[int32](d, 16, MemoryOptions{})
	must(t, err)
	b, err := NewPageable[int32](16)
	must(t, err)
	s, err := d.NewStream(StreamOptions{})
	must(t, err)
	e, err := d.NewEvent(EventOptions{})
	must(t, err)
	other := newMemory(t, d, KindDevice, 4096)
	place := m.At(8)
	closed := make(chan error)
	go func() { // Another goroutine closes.
		for _, object := range []interface{ Close() error }{m, p, b, s, e} {
			if err := object.Close(); err != nil {
				closed <- err
			}
		}
		close(closed)
	}()
	must(t, <-closed)

	if p.Slice() != nil || p.Bytes() != nil || b.Slice() != nil || m.DevicePtr() != 0 {
		t.Error("closed memory still hands out slices or addresses")
	}
	_, infoErr := m.Info()
	_, queryErr := s.Query()
	_, eventErr := e.Query()
	_, elapsedErr := e.Elapsed(e)
	_, pointerErr := i.Pointer(place)
	_, accessErr := i.PointerAccess(place, LocationHost, 0)
	region := Region{Destination: Operand{Address: other.At(0)}, Source: Operand{Address: place}, Width: 16}
	for name, err := range map[string]error{
		"info":           infoErr,
		"copy to":        i.Copy(place, other.At(0), 16),
		"copy from":      i.Copy(other.At(0), place, 16),
		"copy 2d":        i.Copy2D(place, other.At(0), Rectangle{1, 1, 1, 1}, CopyOptions{}),
		"fill":           i.Fill(place, 16, 0, 1),
		"fill 2d":        i.Fill2D(place, Rectangle{1, 1, 1, 1}, 0, 1),
		"from a slice":   CopyFromSlice(i, place, []byte{1}),
		"to a slice":     CopyToSlice(i, []byte{1}, place),
		"pointer":        pointerErr,
		"view":           p.View(func([]int32) error { return nil }),
		"buffer view":    b.View(func([]int32) error { return nil }),
		"query":          queryErr,
		"synchronize":    s.Synchronize(),
		"wait":           s.WaitEvent(e),
		"record":         e.Record(s),
		"event query":    eventErr,
		"elapsed":        elapsedErr,
		"access":         accessErr,
		"regions":        i.CopyRegions([]Region{region}),
		"stream copy":    s.Copy(other.At(0), other.At(64), 16),
		"stream 2d":      s.Copy2D(other.At(0), other.At(64), Rectangle{1, 1, 1, 1}, CopyOptions{}),
		"stream fill":    s.Fill(other.At(0), 16, 0, 1),
		"stream 2d fill": s.Fill2D(other.At(0), Rectangle{1, 1, 1, 1}, 0, 1),
		"stream slice":   CopyFromSliceAsync(s, other.At(0), []byte{1}),
		"stream regions": s.CopyRegions(nil),
		"launch":         s.Launch(func() { t.Error("this must not run") }),
		"write a value":  s.WriteValue(other.At(0), 1, 4),
	} {
		if !errors.Is(err, ErrStaleHandle) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Register(d, RegisterOptions{}); !errors.Is(err, ErrStaleHandle) {
		t.Errorf("register: %v", err)
	}
}

func TestUseAfterTheInstanceIsClosed(t *testing.T) {
	d := device(t)
	i := d.Instance()
	p, err := NewPinned[int32](d, 16, MemoryOptions{})
	must(t, err)
	s, err := d.NewStream(StreamOptions{})
	must(t, err)
	expect(t, i.Close(), ErrBusy)
	destroyed, err := i.CloseForce()
	must(t, err)
	if destroyed != 2 {
		t.Errorf("%d objects were destroyed", destroyed)
	}
	if p.Slice() != nil || p.DevicePtr() != 0 {
		t.Error("memory of a closed instance still hands out slices or addresses")
	}
	_, deviceErr := i.Device(0)
	_, statsErr := i.Stats()
	_, kindErr := i.KindStats(KindDevice)
	_, memoryErr := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 1})
	for name, err := range map[string]error{"device": deviceErr, "stats": statsErr, "kind": kindErr,
		"memory": memoryErr, "regions": i.CopyRegions(nil),
		"synchronize": s.Synchronize(), "view": p.View(func([]int32) error { return nil })} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, p.Close())
	must(t, s.Close())
	must(t, i.Close())
}

// CloseForce waits until new pinned memory is zeroed.
func TestCloseForceWhileMemoryIsZeroed(t *testing.T) {
	for round := 0; round < 20; round++ {
		d := device(t)
		i := d.Instance()
		made := make(chan error)
		go func() {
			debug.SetPanicOnFault(true)
			var err error
			defer func() {
				if fault := recover(); fault != nil {
					err = fmt.Errorf("the memory went away: %v", fault)
				}
				made <- err
			}()
			_, err = NewPinned[byte](d, 16<<20, MemoryOptions{})
		}()
		for later := 0; later < round; runtime.Gosched() {
			stats, err := i.Stats()
			must(t, err)
			if stats.LiveCount > 0 {
				later++
			}
		}
		_, err := i.CloseForce()
		must(t, err)
		if err := <-made; err != nil && !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
}

// A Close that fails does not disturb who makes pinned memory.
func TestNewPinnedBesideClose(t *testing.T) {
	d := device(t)
	newMemory(t, d, KindDevice, 64)
	made := make(chan error, 1)
	go func() {
		for n := 0; n < 500; n++ {
			p, err := NewPinned[byte](d, 5000, MemoryOptions{})
			if err == nil && !filled(p.Slice(), 0) {
				err = errors.New("new pinned memory is not zero")
			}
			if err == nil {
				err = p.Close()
			}
			if err != nil {
				made <- err
				return
			}
		}
		made <- nil
	}()
	for {
		select {
		case err := <-made:
			must(t, err)
			return
		default:
			expect(t, d.Instance().Close(), ErrBusy)
		}
	}
}

func TestCloseWhileAViewLives(t *testing.T) {
	d := device(t)
	p := newPinned[int32](t, d, 16)
	b := newPageable[int32](t, 16)
	viewed := errors.New("the view was there")
	err := p.View(func(values []int32) error {
		return b.View(func(others []int32) error {
			expect(t, p.Close(), ErrBusy)
			expect(t, b.Close(), ErrBusy)
			_, err := d.Instance().CloseForce()
			expect(t, err, ErrBusy)
			values[15], others[15] = 1, 2
			return viewed
		})
	})
	if err != viewed {
		t.Errorf("the view returned %v", err)
	}
	if p.Slice()[15] != 1 || b.Slice()[15] != 2 {
		t.Error("what was written in the view is not there")
	}
}

func TestAViewThatPanicsEnds(t *testing.T) {
	p := newPinned[int32](t, device(t), 16)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of the caller's own function was swallowed")
			}
		}()
		_ = p.View(func([]int32) error { panic("mine") })
	}()
	must(t, p.Close())
}

// On the host backend, using a slice after Close faults at once and does not reach other memory.
func TestASliceEndsWithClose(t *testing.T) {
	onHost(t)
	p, err := NewPinned[int32](device(t), 1024, MemoryOptions{})
	must(t, err)
	values := p.Slice()
	must(t, p.Close())
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() == nil {
			t.Error("memory could be read after it was freed")
		}
	}()
	runtime.KeepAlive(values[512])
}

func TestCloseWhileACopyLives(t *testing.T) {
	onHost(t) // Over the driver, freeing too early is not refused.
	d := device(t)
	i := d.Instance()
	s := newStream(t, d)
	from, to := newPinned[byte](t, d, 4096), newMemory(t, d, KindDevice, 4096)
	word := newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	must(t, s.Copy(to.At(0), from.At(0), 4096))
	expect(t, from.Close(), ErrBusy)
	expect(t, to.Close(), ErrBusy)
	expect(t, i.Close(), ErrBusy)
	if from.Slice() == nil {
		t.Error("a refused Close closed")
	}
	if done, err := s.Query(); done || err != nil {
		t.Errorf("the stream is held, but its work is complete: %v %v", done, err)
	}
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	must(t, from.Close())
	must(t, to.Close())
}

func TestOrdinaryMemoryCannotBeClosedUnderWork(t *testing.T) {
	onHost(t) // Elsewhere a fill of ordinary memory may return only when it is done.
	d := device(t)
	s, e, word := newStream(t, d), newEvent(t, d), newPinned[uint32](t, d, 1)
	done, pending := newPageable[byte](t, 4096), newPageable[byte](t, 4096)
	must(t, s.Fill(done.At(0), 4096, 1, 1))
	must(t, e.Record(s))
	defer func() {
		word.Slice()[0] = 2
		_ = s.Synchronize() // The device may be lost.
	}()
	must(t, s.WaitValue(word.At(0), 1, 4, WaitGEQ))
	must(t, s.Fill(pending.At(0), 4096, 2, 1))
	must(t, e.Synchronize())
	must(t, done.Close()) // The work behind the event is on other memory.
	if text := expect(t, pending.Close(), ErrBusy).Message; !strings.Contains(text, "Synchronize") {
		t.Error(text)
	}
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	if !filled(pending.Slice(), 2) {
		t.Error("the fill did not reach the memory")
	}
	must(t, pending.Close())

	// Complete is enough, and what cannot be found out any more is left to the caller.
	complete, closed := newPageable[byte](t, 4096), newPageable[byte](t, 4096)
	must(t, s.Fill(complete.At(0), 4096, 1, 1))
	must(t, e.Record(s))
	for {
		if over, err := e.Query(); over || err != nil {
			must(t, err)
			break
		}
	}
	must(t, complete.Close())
	other := newStream(t, d)
	must(t, other.Fill(closed.At(0), 4096, 1, 1))
	must(t, e.Record(other))
	must(t, other.Close())
	must(t, e.Synchronize())
	must(t, closed.Close())
	lost := newPageable[byte](t, 4096)
	must(t, s.WaitValue(word.At(0), 2, 4, WaitGEQ))
	must(t, s.Fill(lost.At(0), 4096, 1, 1))
	must(t, d.HostLose())
	must(t, lost.Close())
}

func TestABufferCannotBeClosedWhileRegistered(t *testing.T) {
	d := device(t)
	b := newPageable[int64](t, 512)
	whole, err := b.Register(d, RegisterOptions{Require: MemoryMapped})
	must(t, err)
	expect(t, b.Close(), ErrBusy)
	_, err = b.Register(d, RegisterOptions{})
	expect(t, err, ErrAlreadyExists)
	if whole.DevicePtr() == 0 || len(whole.Bytes()) != 4096 {
		t.Error("registered memory lacks its addresses")
	}
	must(t, whole.Close())
	part, err := d.RegisterMemory(b.At(100), 1000, RegisterOptions{})
	must(t, err)
	expect(t, b.Close(), ErrBusy)
	must(t, part.Close())
	b.Slice()[511] = 7
	must(t, b.Close())
}

func TestReadOnlyFile(t *testing.T) {
	d := device(t)
	file, err := os.CreateTemp(t.TempDir(), "content")
	must(t, err)
	defer file.Close()
	content := bytes.Repeat([]byte("gpumem"), 2048)
	_, err = file.Write(content)
	must(t, err)

	b, err := MapFile[byte](file, false)
	must(t, err)
	_, err = b.Register(d, RegisterOptions{})
	expect(t, err, ErrPermissionDenied)
	m := newMemory(t, d, KindDevice, uint64(len(content)))
	answer, err := d.Capability(CapabilityPinRegisterReadOnly)
	must(t, err)
	if answer.Value != AnswerNo {
		registered, err := b.Register(d, RegisterOptions{Require: MemoryReadOnly})
		must(t, err)
		defer func() { must(t, registered.Close()) }()
	}
	must(t, d.Instance().Copy(m.At(0), b.At(0), uint64(len(content))))
	back := make([]byte, len(content))
	must(t, CopyToSlice(d.Instance(), back, m.At(0)))
	if !bytes.Equal(back, content) {
		t.Error("the content of the file did not arrive")
	}
	t.Cleanup(func() { must(t, b.Close()) })

	_, err = MapFile[[5]byte](file, false)
	expect(t, err, ErrInvalidArgument)
	empty, err := os.CreateTemp(t.TempDir(), "empty")
	must(t, err)
	defer empty.Close()
	_, err = MapFile[byte](empty, false)
	expect(t, err, ErrInvalidArgument)
	writable, err := MapFile[byte](file, true)
	must(t, err)
	defer func() { must(t, writable.Close()) }()
	writable.Slice()[0] = 'G'
	must(t, writable.View(func(values []byte) error {
		if string(values[:6]) != "Gpumem" {
			return fmt.Errorf("the mapping has %q", values[:6])
		}
		return nil
	}))
}

// Each says what is wrong and what to do, and names the code of the system if there is one.
func TestWhatCannotBeMapped(t *testing.T) {
	directory, err := os.Open(t.TempDir())
	must(t, err)
	defer directory.Close()
	reader, writer, err := os.Pipe()
	must(t, err)
	defer reader.Close()
	defer writer.Close()
	path := filepath.Join(t.TempDir(), "content")
	must(t, os.WriteFile(path, []byte("gpumem"), 0o600))
	readOnly, err := os.Open(path)
	must(t, err)
	defer readOnly.Close()
	closed, err := os.Open(path)
	must(t, err)
	must(t, closed.Close())
	mapped := func(file *os.File) error {
		_, err := MapFile[byte](file, true)
		return err
	}
	_, large := NewPageable[byte](1 << 52)
	for _, one := range []struct {
		err    error
		status Status
		native string
		part   string
	}{
		{mapped(directory), ErrInvalidArgument, "", "; pass a regular file"},
		{mapped(reader), ErrInvalidArgument, "", "; pass a regular file"},
		{mapped(closed), ErrInvalidArgument, "", "the file cannot be used: "},
		{mapped(readOnly), ErrPermissionDenied, "EACCES", "; open the file for reading, and for writing"},
		{large, ErrOutOfHostMemory, "ENOMEM", "; ask for less"},
		{systemRefusal("gpumem.MapFile", "mmap", syscall.ENODEV), ErrUnsupported, "ENODEV", "; the file system"},
		{systemRefusal("gpumem.MapFile", "mmap", syscall.EIO), ErrInternal, "errno 5", "input/output error"},
	} {
		if detail := expect(t, one.err, one.status); detail.NativeName != one.native || !strings.Contains(detail.Message, one.part) {
			t.Error(one.err)
		}
	}
}

func TestNothingAtAll(t *testing.T) {
	var i *Instance
	var d *Device
	var m *Memory
	var s *Stream
	var e *Event
	var p *Pinned[int32]
	var b *Pageable[int32]
	var k *HostKernel
	var shared *Managed[int32]
	var access *HostAccess[int32]
	var physical *Physical
	var r *AddressRange
	var growable *GrowableBuffer
	var there *DeviceMemory[int32]
	var buffer *Buffer[int32]
	var group *Group
	var registration *Registration
	for _, object := range []interface{ Close() error }{i, m, s, e, p, b, &Instance{}, &Memory{}, &Stream{}, &Event{},
		&Pinned[int32]{}, &Pageable[int32]{}, shared, &Managed[int32]{}, access, &HostAccess[int32]{}, physical, &Physical{}, r,
		&AddressRange{}, growable, &GrowableBuffer{}, there, &DeviceMemory[int32]{}, buffer, &Buffer[int32]{}, group, &Group{}, registration, &Registration{}} {
		must(t, object.Close())
	}
	if growable.Size()+growable.Generation() != 0 || growable.DevicePtr() != 0 || growable.Device() != nil || growable.Group() != nil || (&GrowableBuffer{}).DevicePtr() != 0 {
		t.Error("no buffer has something")
	}
	if access.Slice() != nil || shared.Len() != 0 || r.Size() != 0 || r.DevicePtr() != 0 || p.Slice() != nil || b.Slice() != nil || m.Bytes() != nil || m.DevicePtr() != 0 || p.Len()+b.Len() != 0 ||
		m.Size() != 0 || m.Device() != nil || d.Instance() != nil || d.Ordinal() != 0 {
		t.Error("nothing has something")
	}
	var none Address
	for number, span := range []Span[int32]{p.Span(), (&Pinned[int32]{}).Span(), there.Span(), (&DeviceMemory[int32]{}).Span(),
		shared.Span(), b.Span(), (&Pageable[int32]{}).Span(), buffer.Span(), (&Buffer[int32]{}).Span()} {
		if span != (Span[int32]{}) {
			t.Errorf("nothing number %d has the span %v", number, span)
		}
	}
	if m.At(0) != none || b.At(0) != none || r.At(0) != none || growable.At(0) != none {
		t.Error("nothing has an address")
	}
	_, infoErr := i.Info()
	_, deviceErr := i.Device(0)
	_, devicesErr := i.Devices()
	_, minusErr := i.Device(-1)
	if !strings.HasSuffix(fmt.Sprint(minusErr), "; they are numbered from 0 (ErrInvalidArgument)") {
		t.Error(minusErr)
	}
	_, statsErr := i.Stats()
	_, kindErr := i.KindStats(KindDevice)
	_, reportErr := i.Report()
	_, memoryErr := d.NewMemory(MemoryOptions{})
	_, pinnedErr := NewPinned[int32](d, 1, MemoryOptions{})
	_, registerErr := b.Register(d, RegisterOptions{})
	_, registerMemoryErr := d.RegisterMemory(none, 1, RegisterOptions{})
	_, accessErr := i.PointerAccess(none, LocationHost, 0)
	_, mallocErr := d.Malloc(KindDevice, 1)
	_, streamErr := d.NewStream(StreamOptions{})
	_, wrapErr := d.WrapStream(0)
	_, wrapEventErr := d.WrapEvent(0, 0)
	_, eventErr := d.NewEvent(EventOptions{})
	_, queryErr := s.Query()
	_, eventQueryErr := e.Query()
	_, forErr := s.SynchronizeFor(-1)
	_, eventForErr := e.SynchronizeFor(-1)
	_, elapsedErr := e.Elapsed(e)
	_, pointerErr := i.Pointer(none)
	_, devicePointerErr := d.DevicePointer(none)
	_, viewErr := k.View(none, 1, AccessRead)
	_, freeErr, _ := errorsOfMemory(d)
	_, nativeErr := d.HostNativeStream()
	_, foreignErr := d.HostForeignAlloc(KindDevice, 1)
	_, managedErr := NewManaged[int32](d, 1, MemoryOptions{})
	_, beginErr := shared.BeginHostAccess()
	_, beginBytesErr := m.BeginHostAccess()
	_, adviseErr := i.Advise(none, 1, AdviceSetReadMostly, LocationNone, 0)
	_, managedInfoErr := i.ManagedInfo(none, 1)
	_, prefetchErr := s.Prefetch(none, 1, LocationHost, 0)
	_, prefetchBatchErr := s.PrefetchBatch(nil)
	_, discardErr := s.DiscardBatch(nil)
	_, bothErr := s.DiscardAndPrefetchBatch(nil)
	_, _, granularityErr := d.PhysicalGranularity(PhysicalOptions{})
	_, physicalErr := d.NewPhysical(PhysicalOptions{})
	_, importErr := d.ImportPhysical(os.Stdin, PhysicalOptions{})
	_, retainErr := i.RetainPhysical(none)
	_, physicalInfoErr := physical.Info()
	_, exportErr := physical.Export()
	_, reserveErr := i.ReserveRange(RangeOptions{})
	_, rangeInfoErr := r.Info()
	_, mappingErr := i.Mapping(none)
	_, growableErr := d.NewGrowableBuffer(BufferOptions{})
	_, growableInfoErr := growable.Info()
	_, bytesErr := growable.Bytes()
	_, sliceErr := SliceAs[int32](&GrowableBuffer{})
	_, noteErr := growable.NoteRegistration("name")
	_, groupErr := i.NewGroup(GroupOptions{})
	_, groupInfoErr := group.Info("")
	_, exportFabricErr := physical.ExportFabric()
	_, importFabricErr := d.ImportFabric(FabricHandle{}, PhysicalOptions{Size: 1})
	for number, err := range []error{infoErr, deviceErr, devicesErr, minusErr, statsErr, reportErr, memoryErr, pinnedErr,
		registerErr, mallocErr, streamErr, wrapErr, wrapEventErr, eventErr, queryErr, eventQueryErr, forErr, eventForErr,
		elapsedErr, pointerErr, devicePointerErr, freeErr, nativeErr, foreignErr, kindErr, registerMemoryErr, accessErr,
		s.Synchronize(), e.Synchronize(), s.WaitEvent(e), e.Record(s), s.Launch(nil), s.Launch(func() {}),
		s.HostLaunch(nil), s.HostLaunch(func(*HostKernel) {}), s.WriteValue(none, 0, 4), s.WaitValue(none, 0, 4, 0),
		i.Copy(none, none, 1), i.Fill(none, 1, 0, 1), i.CopyRegions(nil), i.CopyRegions([]Region{{Width: 1}}),
		s.Copy(none, none, 0), s.Copy2D(none, none, Rectangle{}, CopyOptions{}), s.Fill(none, 0, 0, 1),
		s.Fill2D(none, Rectangle{}, 0, 1), s.CopyRegions(nil), CopyFromSlice(i, none, []byte{1}),
		CopyFromSliceAsync(s, none, []byte{1}), CopyToSlice(i, []byte{1}, none), i.ResetPeaks(), i.Free(none), i.Unregister(none),
		d.Register(none, 1, 0), d.EnablePeerAccess(d), d.DisablePeerAccess(d), s.HostSetCapturing(true), d.HostLose(),
		i.HostFailStep(0, false), d.HostForeignPeerAccess(d, true), m.View(nil), p.View(nil), b.View(nil), managedErr, beginErr,
		beginBytesErr, adviseErr, managedInfoErr, prefetchErr, prefetchBatchErr, discardErr, bothErr, granularityErr, physicalErr,
		importErr, retainErr, physicalInfoErr, exportErr, reserveErr, rangeInfoErr, mappingErr, shared.View(nil),
		r.View(0, 0, nil), r.Map(0, physical), r.Unmap(0, 1), r.SetAccess(0, 1), s.Attach(none, 0, AttachGlobal),
		growableErr, growableInfoErr, bytesErr, sliceErr, growable.View(nil), ViewAs[int32](growable, nil), growable.Resize(1),
		growable.SetCapacity(1), growable.SetAccess(), growable.Sleep(SleepOptions{}), growable.Wake(WakeOptions{}),
		growable.Prepare(PrepareOptions{}), growable.SetAhead(1), growable.SetCallbacks(BufferCallbacks{}),
		(&GrowableBuffer{}).SetCallbacks(BufferCallbacks{AfterWake: func(uint64) {}}), (&GrowableBuffer{}).Sleep(SleepOptions{}),
		(&GrowableBuffer{}).Resize(1), noteErr, groupErr, groupInfoErr, group.Sleep(SleepOptions{}), group.Wake(WakeOptions{}),
		group.Prepare(PrepareOptions{}), (&Group{}).Sleep(SleepOptions{}), exportFabricErr, importFabricErr} {
		if !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	if !errors.Is(viewErr, ErrInvalidState) {
		t.Errorf("the view of no kernel: %v", viewErr)
	}
}

func errorsOfMemory(d *Device) (uint64, error, uint64) {
	free, total, err := d.Memory()
	return free, err, total
}

func TestExitWithObjectsAlive(t *testing.T) {
	if inChild() {
		i, err := Open(Options{Backend: testBackend(t)})
		must(t, err)
		d, err := i.Device(0)
		must(t, err)
		m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 1 << 20})
		must(t, err)
		p, err := NewPinned[byte](d, 1<<20, MemoryOptions{})
		must(t, err)
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		must(t, s.Copy(m.At(0), p.At(0), 1<<20))
		fmt.Println("exit with work under way")
		os.Exit(7)
	}
	output, err := child(t)
	if output != "exit with work under way" || err == nil || err.Error() != "exit status 7" {
		t.Errorf("%v: %s", err, output)
	}
}

// Messages have the words of Go, and one mistake has one message.
func TestMessagesOfGo(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m, err := NewPinned[int32](d, 4, MemoryOptions{})
	must(t, err)
	says := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, without %q", err, text)
		}
	}
	says(Fill(i, m.Span().Part(1, 4).Part(1, 5), 0), "gpumem.Fill: Part(1, 5) is not inside its span, which has 3 values")
	for _, err := range []error{m.View(nil), m.Memory().View(nil)} {
		says(err, "the function is nil")
	}
	says(m.View(func([]int32) error { return m.Close() }), "Pinned.Close: ")
	file, err := os.Open("/dev/null")
	must(t, err)
	defer file.Close()
	_, err = i.ReadFileWith(m.At(0), file, 0, 16, FileOptions{})
	says(err, "Instance.ReadFileWith: ")
	says(i.ReadFile(m.At(0), file, 0, 16), "Instance.ReadFile: ")
	other, err := Open(Options{Backend: testBackend(t)})
	must(t, err)
	its, err := other.Device(0)
	must(t, err)
	kept, err := its.NewEvent(EventOptions{})
	must(t, err)
	says(other.Close(), "; close it, or close with Instance.CloseForce")
	must(t, kept.Close())
	must(t, other.Close())
	must(t, m.Close())
	b, err := NewBuffer[int32](d, 4, BufferOptions{Reserve: 1 << 20})
	must(t, err)
	must(t, b.Sleep(SleepOptions{Content: ContentDrop}))
	says(b.Resize(8), "Buffer.Wake")
	if err := b.Resize(8); strings.Contains(err.Error(), "Growable") {
		t.Error(err)
	}
	must(t, b.Close())
	const closed = "this memory was closed; do not use it after that"
	says(Fill(i, m.Span(), 0), closed)
	_, err = m.Info()
	says(err, closed)
	ordinary, err := NewPageable[int32](4)
	must(t, err)
	must(t, ordinary.Close())
	for index := 0; index < m.Len()+ordinary.Len(); index++ { // None: there are no slices any more.
		t.Fatal(m.Slice()[index])
	}
}
