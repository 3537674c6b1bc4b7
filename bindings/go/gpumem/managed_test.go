// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// can reports whether a device has a capability.
func can(t testing.TB, d *Device, capability Capability) bool {
	t.Helper()
	answer, err := d.Capability(capability)
	must(t, err)
	return answer.Value != AnswerNo
}

// needs skips a test if the driver lacks a capability. The host backend has all of them.
func needs(t testing.TB, d *Device, capability Capability) {
	t.Helper()
	answer, err := d.Capability(capability)
	must(t, err)
	if answer.Value != AnswerNo {
		return
	}
	if testBackend(t) == BackendHost {
		t.Fatalf("the host backend lacks %s: %s", answer.Name, answer.Reason)
	}
	t.Skipf("the driver lacks %s: %s", answer.Name, answer.Reason)
}

// managedDevice is a device with managed memory.
func managedDevice(t testing.TB, options ...Options) *Device {
	t.Helper()
	d := device(t, options...)
	needs(t, d, CapabilityManaged)
	return d
}

// olderDevice is a device that is not concurrent.
func olderDevice(t testing.TB) *Device {
	t.Helper()
	onHost(t)
	d := managedDevice(t, Options{Host: &HostOptions{Concurrent: ToggleOff}})
	if can(t, d, CapabilityManagedConcurrent) {
		t.Fatal("the device is concurrent in spite of HostOptions.Concurrent")
	}
	return d
}

func newManaged[T any](t testing.TB, d *Device, length int, options ...MemoryOptions) *Managed[T] {
	t.Helper()
	wanted := MemoryOptions{}
	if len(options) > 0 {
		wanted = options[0]
	}
	m, err := NewManaged[T](d, length, wanted)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	return m
}

// whether checks the answer to a hint.
func whether(t testing.TB, wanted bool) func(effective bool, err error) {
	t.Helper()
	return func(effective bool, err error) {
		t.Helper()
		must(t, err)
		if effective != wanted {
			t.Errorf("the hint is effective: %v", effective)
		}
	}
}

func TestManagedMemoryOnBothSides(t *testing.T) {
	d := managedDevice(t)
	i, s := d.Instance(), newStream(t, d)
	m := newManaged[int32](t, d, 4096, MemoryOptions{Name: "shared"})
	info, err := m.Info()
	must(t, err)
	if info.Kind != KindManaged || info.Size != 16384 || info.Name != "shared" || m.Len() != 4096 || m.Bytes() != nil ||
		uint64(m.DevicePtr()) != m.At(0).Number() {
		t.Errorf("the memory is %+v", info)
	}
	pointer, err := i.Pointer(m.At(8))
	must(t, err)
	if pointer.Kind != KindManaged || pointer.HostPointer != uint64(pointer.DevicePointer) || pointer.Location != LocationNone {
		t.Errorf("the pointer is %+v", pointer)
	}
	must(t, m.View(func(values []int32) error {
		for n := range values {
			values[n] = int32(n)
		}
		return nil
	}))
	must(t, s.Fill(m.At(0), 8192, 0x01010101, 4))
	must(t, s.Synchronize())
	must(t, m.View(func(values []int32) error {
		if len(values) != 4096 || values[2047] != 0x01010101 || values[2048] != 2048 || values[4095] != 4095 {
			return fmt.Errorf("%d values: %#x %d %d", len(values), values[2047], values[2048], values[4095])
		}
		return nil
	}))
	must(t, m.Memory().View(func(content []byte) error {
		if len(content) != 16384 || content[0] != 1 {
			return errors.New("the bytes are different")
		}
		return nil
	}))
	back := make([]int32, 2)
	must(t, CopyToSlice(i, back, m.At(8188)))
	if back[0] != 0x01010101 || back[1] != 2048 {
		t.Errorf("copied were %v", back)
	}

	stats, err := i.KindStats(KindManaged)
	must(t, err)
	if want := (KindStats{1, 16384, 1, 16384, 1, 16384}); stats != want {
		t.Errorf("the counters are %+v", stats)
	}
	plain, err := d.Malloc(KindManaged, 4096)
	must(t, err)
	must(t, i.Fill(plain, 4096, 1, 1))
	must(t, i.Free(plain))
}

func TestHostAccessLastsUntilClose(t *testing.T) {
	d := managedDevice(t)
	m, err := NewManaged[float64](d, 100, MemoryOptions{})
	must(t, err)
	access, err := m.BeginHostAccess()
	must(t, err)
	bytes, err := m.Memory().BeginHostAccess() // Accesses are counted.
	must(t, err)
	access.Slice()[99] = 1.5
	if len(access.Slice()) != 100 || len(bytes.Slice()) != 800 || bytes.Slice()[799] != 0x3F {
		t.Error("the slices are not of the memory")
	}
	must(t, access.Close())
	must(t, access.Close())
	if access.Slice() != nil {
		t.Error("an access that has ended hands out a slice")
	}
	expect(t, m.Close(), ErrBusy)
	must(t, bytes.Close())
	must(t, m.Close())
	_, err = m.BeginHostAccess()
	expect(t, err, ErrStaleHandle)
	expect(t, m.View(func([]float64) error { return nil }), ErrStaleHandle)

	_, err = newPinned[byte](t, d, 16).BeginHostAccess()
	expect(t, err, ErrWrongKind)
	_, err = newMemory(t, d, KindDevice, 16).BeginHostAccess()
	expect(t, err, ErrWrongKind)

	// The instance cannot be closed during the access, as during a View.
	other, err := Open(Options{Backend: testBackend(t)})
	must(t, err)
	d, err = other.Device(0)
	must(t, err)
	m, err = NewManaged[float64](d, 100, MemoryOptions{})
	must(t, err)
	access, err = m.BeginHostAccess()
	must(t, err)
	_, err = other.CloseForce()
	if detail := expect(t, err, ErrBusy); !strings.HasPrefix(detail.Message, "a view, a host access or a registration uses the object") {
		t.Errorf("the message is %q", detail.Message)
	}
	expect(t, other.Close(), ErrBusy)
	access.Slice()[99] = 1.5
	must(t, access.Close())
	_, err = other.CloseForce()
	must(t, err)
	if access.Slice() != nil {
		t.Error("memory of a closed instance still hands out slices")
	}
	_, err = m.BeginHostAccess()
	expect(t, err, ErrClosed)
	must(t, access.Close())
	must(t, m.Close())
}

func TestAViewOfManagedMemoryHoldsIt(t *testing.T) {
	m := newManaged[byte](t, managedDevice(t), 4096)
	viewed := errors.New("the view was there")
	err := m.View(func(content []byte) error {
		content[0] = 1
		expect(t, m.Close(), ErrBusy)
		_, err := m.Device().Instance().CloseForce()
		expect(t, err, ErrBusy)
		return viewed
	})
	if err != viewed {
		t.Errorf("the view returned %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of the caller's own function was swallowed")
			}
		}()
		_ = m.View(func([]byte) error { panic("mine") })
	}()
	must(t, m.Close())
}

// On a device that is not concurrent, an access waits for the work on the memory, and keeps other work out.
func TestHostAccessWaitsForTheDevice(t *testing.T) {
	d := olderDevice(t)
	i, s := d.Instance(), newStream(t, d)
	m := newManaged[byte](t, d, 4096)
	word := newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	must(t, s.Fill(m.At(0), 4096, 7, 1))
	begun := make(chan error)
	go func() {
		begun <- m.View(func(content []byte) error {
			if content[4095] != 7 || word.Slice()[0] != 1 {
				return errors.New("the view did not wait for the fill")
			}
			expect(t, s.Fill(m.At(0), 4096, 8, 1), ErrBusy)
			expect(t, s.Attach(m.At(0), 0, AttachHost), ErrBusy)
			return nil
		})
	}()
	select {
	case err := <-begun:
		t.Errorf("the view ended while the stream was held: %v", err)
	default:
	}
	word.Slice()[0] = 1
	must(t, <-begun)
	must(t, s.Fill(m.At(0), 4096, 8, 1)) // The view has ended, so the device has its turn.
	must(t, s.Synchronize())
	must(t, m.View(func(content []byte) error {
		if content[0] != 8 {
			return fmt.Errorf("the content is %d", content[0])
		}
		return nil
	}))
	must(t, m.Close())
	must(t, word.Close())
	must(t, s.Close())
	must(t, i.Close())
}

// What other goroutines enqueue takes nothing from an access of the CPU, and the memory is attached as before when the last access
// has ended.
func TestOtherWorkDuringAHostAccess(t *testing.T) {
	d := olderDevice(t)
	i, first, second := d.Instance(), newStream(t, d), newStream(t, d)
	other := newMemory(t, d, KindDevice, 4096)
	for _, attach := range []Attach{AttachGlobal, AttachSingle, AttachHost} {
		m := newManaged[byte](t, d, 4096)
		must(t, first.Attach(m.At(0), 0, attach))
		for round := 0; round < 2; round++ {
			use := func(content []byte) {
				t.Helper()
				for _, s := range []*Stream{first, second} {
					must(t, s.Fill(other.At(0), 4096, 7, 1))
					content[0]++
					expect(t, s.Attach(m.At(0), 0, AttachGlobal), ErrBusy)
					must(t, s.Synchronize())
				}
			}
			access, err := m.BeginHostAccess()
			must(t, err)
			access.Slice()[0] = 0
			must(t, m.View(func(content []byte) error {
				use(content)
				return nil
			}))
			use(access.Slice())
			must(t, access.Close())
			copied := make([]byte, 1)
			must(t, CopyToSlice(i, copied, m.At(0)))
			if copied[0] != 4 {
				t.Errorf("%v: the content is %d", attach, copied[0])
			}
			for s, may := range map[*Stream]bool{first: attach != AttachHost, second: attach == AttachGlobal} {
				if err := s.Fill(m.At(64), 64, 1, 1); may && err != nil || !may && !errors.Is(err, ErrNoAccess) {
					t.Errorf("%v: the fill in a stream returned %v", attach, err)
				}
			}
		}
		must(t, first.Synchronize())
		must(t, second.Synchronize())
	}
	if stats, err := i.Stats(); err != nil || stats.Streams != 2 {
		t.Errorf("%d streams live: %v", stats.Streams, err)
	}
}

// When the stream ends that memory is attached to, it is attached to what it was created with.
func TestAStreamThatEndsDuringAHostAccess(t *testing.T) {
	d := olderDevice(t)
	s := newStream(t, d)
	for flag, status := range map[MemoryFlags]error{0: nil, MemoryAttachHost: ErrNoAccess} {
		m := newManaged[byte](t, d, 4096, MemoryOptions{Require: flag})
		ending, err := d.NewStream(StreamOptions{})
		must(t, err)
		must(t, ending.Attach(m.At(0), 0, AttachSingle))
		must(t, m.View(func(content []byte) error {
			must(t, ending.Close())
			must(t, s.Fill(newMemory(t, d, KindDevice, 64).At(0), 64, 7, 1))
			content[0] = 1
			return s.Synchronize()
		}))
		for round := 0; round < 2; round++ {
			if err := s.Fill(m.At(0), 64, 1, 1); !errors.Is(err, status) {
				t.Errorf("%v: the fill returned %v", flag, err)
			}
			must(t, m.View(func(content []byte) error {
				content[1] = 1
				return nil
			}))
		}
	}
}

// Each goroutine has its own memory and its own stream.
func TestGoroutinesThatShareADeviceThatIsNotConcurrent(t *testing.T) {
	d := olderDevice(t)
	var group sync.WaitGroup
	for n := 0; n < 4; n++ {
		s, m := newStream(t, d), newManaged[uint32](t, d, 1024)
		value := uint32(n)
		group.Add(1)
		go func() {
			defer group.Done()
			for round := uint32(0); round < 50; round++ {
				err := firstError(Fill(s, m.Span(), round), s.Synchronize(), m.View(func(values []uint32) error {
					for n := range values {
						if values[n] != round {
							return fmt.Errorf("in round %d the value is %d", round, values[n])
						}
						values[n] = value
					}
					return nil
				}))
				if err != nil {
					t.Errorf("goroutine %d: %v", value, err)
					return
				}
			}
		}()
	}
	group.Wait()
}

func TestAttach(t *testing.T) {
	d := olderDevice(t)
	first, second := newStream(t, d), newStream(t, d)
	m := newManaged[byte](t, d, 1<<20, MemoryOptions{Require: MemoryAttachHost})
	expect(t, first.Fill(m.At(0), 64, 1, 1), ErrNoAccess) // Attached to the CPU.
	must(t, first.Attach(m.At(0), 0, AttachSingle))
	must(t, first.Synchronize())
	must(t, first.Fill(m.At(0), 64, 1, 1))
	expect(t, second.Fill(m.At(0), 64, 2, 1), ErrNoAccess)
	must(t, first.Synchronize())
	must(t, second.Attach(m.At(0), m.Size(), AttachGlobal))
	must(t, second.Synchronize())
	must(t, second.Fill(m.At(0), 64, 2, 1))
	must(t, second.Synchronize())

	p := newPinned[byte](t, d, 4096)
	for number, bad := range []struct {
		address Address
		size    uint64
		attach  Attach
		status  Status
	}{
		{m.At(0), 64, AttachGlobal, ErrInvalidArgument},
		{m.At(64), 0, AttachGlobal, ErrInvalidArgument},
		{m.At(0), 0, 3, ErrInvalidArgument},
		{m.At(0), m.Size() + 1, AttachGlobal, ErrInvalidArgument},
		{Address{}, 0, AttachGlobal, ErrInvalidArgument},
		{p.At(0), 0, AttachGlobal, ErrWrongKind},
	} {
		if err := first.Attach(bad.address, bad.size, bad.attach); !errors.Is(err, bad.status) {
			t.Errorf("number %d: %v", number, err)
		}
	}
}

func TestAdvice(t *testing.T) {
	d := managedDevice(t)
	needs(t, d, CapabilityManagedConcurrent)
	i := d.Instance()
	m := newManaged[byte](t, d, 4<<20)
	info := func(offset, size uint64) ManagedInfo {
		t.Helper()
		found, err := i.ManagedInfo(m.At(offset), size)
		must(t, err)
		return found
	}
	none := ManagedInfo{PreferredLocationID: -1, LastPrefetchLocationID: -1}
	if got := info(0, m.Size()); got.String() != none.String() {
		t.Errorf("without advice it is %v", got)
	}
	const half = 2 << 20
	whether(t, true)(i.Advise(m.At(0), half, AdviceSetReadMostly, LocationNone, 0))
	whether(t, true)(i.Advise(m.At(0), m.Size(), AdviceSetPreferredLocation, LocationDevice, 1))
	whether(t, true)(i.Advise(m.At(0), half, AdviceSetAccessedBy, LocationHost, 0))
	whether(t, true)(i.Advise(m.At(0), half, AdviceSetAccessedBy, LocationDevice, 0))
	whether(t, true)(i.Advise(m.At(0), m.Size(), AdviceSetAccessedBy, LocationDevice, 1))
	want := ManagedInfo{ReadMostly: true, PreferredLocation: LocationDevice, PreferredLocationID: 1, LastPrefetchLocationID: -1,
		AccessedByHost: true, AccessedByDevices: []int{0, 1}}
	if got := info(0, half); got.String() != want.String() {
		t.Errorf("the first half is %v", got)
	}
	want = ManagedInfo{PreferredLocation: LocationDevice, PreferredLocationID: 1, LastPrefetchLocationID: -1,
		AccessedByDevices: []int{1}}
	if got := info(0, m.Size()); got.String() != want.String() {
		t.Errorf("as a whole it is %v", got)
	}
	whether(t, true)(i.Advise(m.At(0), half, AdviceUnsetReadMostly, LocationNone, 0))
	whether(t, true)(i.Advise(m.At(0), half, AdviceUnsetPreferredLocation, LocationNone, 0))
	whether(t, true)(i.Advise(m.At(0), half, AdviceUnsetAccessedBy, LocationHost, 0))
	want = ManagedInfo{PreferredLocationID: -1, LastPrefetchLocationID: -1, AccessedByDevices: []int{0, 1}}
	if got := info(0, half); got.String() != want.String() {
		t.Errorf("after the advice was taken back it is %v", got)
	}

	p := newPinned[byte](t, d, 4096)
	for number, bad := range []struct {
		address  Address
		size     uint64
		advice   Advice
		location Location
		id       int
		status   Status
	}{
		{m.At(0), 0, AdviceSetReadMostly, LocationNone, 0, ErrInvalidArgument},
		{m.At(0), m.Size() + 1, AdviceSetReadMostly, LocationNone, 0, ErrInvalidArgument},
		{m.At(m.Size()), 1, AdviceSetReadMostly, LocationNone, 0, ErrInvalidArgument},
		{m.At(0), 1, 7, LocationNone, 0, ErrInvalidArgument},
		{m.At(0), 1, AdviceSetPreferredLocation, LocationNone, 0, ErrInvalidArgument},
		{m.At(0), 1, AdviceSetPreferredLocation, LocationDevice, 2, ErrInvalidArgument},
		{m.At(0), 1, AdviceSetPreferredLocation, LocationDevice, math.MaxInt, ErrInvalidArgument},
		{m.At(0), 1, AdviceSetAccessedBy, LocationHostNUMA, 0, ErrInvalidArgument},
		{p.At(0), 1, AdviceSetReadMostly, LocationNone, 0, ErrWrongKind},
	} {
		if effective, err := i.Advise(bad.address, bad.size, bad.advice, bad.location, bad.id); effective || !errors.Is(err, bad.status) {
			t.Errorf("number %d: %v, %v", number, effective, err)
		}
	}
	_, err := i.ManagedInfo(m.At(0), m.Size()+1)
	expect(t, err, ErrInvalidArgument)
	_, err = i.ManagedInfo(m.At(1), m.Size())
	expect(t, err, ErrInvalidArgument)
	_, err = i.ManagedInfo(p.At(0), 1)
	expect(t, err, ErrWrongKind)
}

func TestPrefetchAndDiscard(t *testing.T) {
	d := managedDevice(t)
	needs(t, d, CapabilityManagedConcurrent)
	i, s := d.Instance(), newStream(t, d)
	discards := can(t, d, CapabilityManagedDiscard)
	m, other := newManaged[byte](t, d, 4<<20), newManaged[byte](t, d, 2<<20)
	must(t, i.Fill(m.At(0), m.Size(), 5, 1))
	last := func(at Address, size uint64, location Location, id int) {
		t.Helper()
		info, err := i.ManagedInfo(at, size)
		must(t, err)
		if info.LastPrefetchLocation != location || info.LastPrefetchLocationID != id {
			t.Errorf("the last prefetch went to %v %d", info.LastPrefetchLocation, info.LastPrefetchLocationID)
		}
	}
	const half = 2 << 20
	whether(t, true)(s.Prefetch(m.At(0), half, LocationDevice, 1))
	last(m.At(0), half, LocationDevice, 1)
	last(m.At(0), m.Size(), LocationNone, -1)
	whether(t, true)(s.PrefetchBatch([]ManagedRange{{m.At(0), half, LocationHost, 0}, {m.At(half), half, LocationDevice, 0},
		{other.At(0), other.Size(), LocationDevice, 1}}))
	last(m.At(half), half, LocationDevice, 0)
	last(other.At(0), other.Size(), LocationDevice, 1)
	whether(t, true)(s.PrefetchBatch(nil))
	must(t, s.Synchronize())
	must(t, m.View(func(content []byte) error {
		if content[0] != 5 || content[m.Size()-1] != 5 {
			return errors.New("a prefetch changed the content")
		}
		return nil
	}))
	whether(t, discards)(s.DiscardBatch([]ManagedRange{{Address: other.At(0), Size: other.Size()}}))
	must(t, s.Fill(other.At(0), other.Size(), 6, 1))
	whether(t, discards)(s.DiscardAndPrefetchBatch([]ManagedRange{{m.At(0), half, LocationDevice, 0}}))
	must(t, s.Synchronize())
	if discards {
		last(m.At(0), half, LocationDevice, 0)
	}
	must(t, m.View(func(content []byte) error {
		if content[half] != 5 {
			return errors.New("too much was discarded")
		}
		// Elsewhere the discarded half is indeterminate.
		if testBackend(t) == BackendHost && content[half-1] != 0xA5 {
			return fmt.Errorf("the content was not discarded: %#x", content[half-1])
		}
		return nil
	}))

	// One bad range refuses the batch, and the message names it.
	good, p := ManagedRange{m.At(0), 4096, LocationHost, 0}, newPinned[byte](t, d, 4096)
	for number, bad := range []struct {
		one    ManagedRange
		status Status
	}{
		{ManagedRange{Address{}, 1, LocationHost, 0}, ErrInvalidArgument},
		{ManagedRange{m.At(0), 0, LocationHost, 0}, ErrInvalidArgument},
		{ManagedRange{m.At(0), m.Size() + 1, LocationHost, 0}, ErrInvalidArgument},
		{ManagedRange{m.At(m.Size() + 1), 1, LocationHost, 0}, ErrInvalidArgument},
		{ManagedRange{m.At(0), 1, LocationNone, 0}, ErrInvalidArgument},
		{ManagedRange{m.At(0), 1, LocationDevice, 2}, ErrInvalidArgument},
		{ManagedRange{m.At(0), 1, LocationDevice, math.MinInt}, ErrInvalidArgument},
		{ManagedRange{p.At(0), 1, LocationHost, 0}, ErrWrongKind},
	} {
		for name, batch := range map[string]func([]ManagedRange) (bool, error){"prefetch": s.PrefetchBatch,
			"both": s.DiscardAndPrefetchBatch} {
			effective, err := batch([]ManagedRange{good, bad.one, good})
			if effective || !errors.Is(err, bad.status) || !strings.Contains(err.Error(), "1") {
				t.Errorf("%s, number %d: %v, %v", name, number, effective, err)
			}
		}
		if effective, err := s.Prefetch(bad.one.Address, bad.one.Size, bad.one.Location, bad.one.LocationID); effective ||
			!errors.Is(err, bad.status) {
			t.Errorf("number %d: %v, %v", number, effective, err)
		}
	}
	_, err := s.DiscardBatch([]ManagedRange{good})
	expect(t, err, ErrInvalidArgument) // It has a location.
	legacy, err := d.WrapStream(0)
	must(t, err)
	defer func() { must(t, legacy.Close()) }()
	_, err = legacy.PrefetchBatch([]ManagedRange{good})
	expect(t, err, ErrInvalidArgument)
	must(t, m.Close()) // Refused batches do not keep it open.
	_, err = s.PrefetchBatch([]ManagedRange{good})
	expect(t, err, ErrStaleHandle)
}

// Hints that a device cannot use are no error, and bad ones still are.
func TestHintsWithoutEffect(t *testing.T) {
	d := olderDevice(t)
	i, s := d.Instance(), newStream(t, d)
	m := newManaged[byte](t, d, 1<<20)
	one := []ManagedRange{{m.At(0), m.Size(), LocationDevice, 0}}
	whether(t, false)(s.Prefetch(m.At(0), m.Size(), LocationDevice, 0))
	whether(t, false)(s.PrefetchBatch(one))
	whether(t, false)(s.DiscardAndPrefetchBatch(one))
	whether(t, false)(s.DiscardBatch([]ManagedRange{{Address: m.At(0), Size: m.Size()}}))
	whether(t, false)(i.Advise(m.At(0), m.Size(), AdviceSetPreferredLocation, LocationDevice, 0))
	_, err := s.Prefetch(m.At(0), 0, LocationDevice, 0)
	expect(t, err, ErrInvalidArgument)
	_, err = i.Advise(m.At(0), 1, 99, LocationDevice, 0)
	expect(t, err, ErrInvalidArgument)
	must(t, s.Synchronize())
}

func TestHintsOnPageableMemory(t *testing.T) {
	onHost(t)
	for _, pageable := range []Toggle{ToggleOn, ToggleOff} {
		d := managedDevice(t, Options{Host: &HostOptions{Pageable: pageable}})
		s := newStream(t, d)
		b := newPageable[byte](t, 1<<20)
		effective, err := s.Prefetch(b.At(0), 1<<20, LocationDevice, 0)
		if pageable == ToggleOn {
			whether(t, true)(effective, err)
			must(t, s.Attach(b.At(0), 1<<20, AttachGlobal))
			expect(t, s.Attach(b.At(0), 0, AttachGlobal), ErrInvalidArgument)
		} else {
			expect(t, err, ErrUnsupported)
		}
		_, err = d.Instance().ManagedInfo(b.At(0), 1<<20)
		expect(t, err, ErrWrongKind)
		must(t, s.Synchronize())
	}
}

func TestManagedTypesThatAreRefused(t *testing.T) {
	d := managedDevice(t)
	_, pointer := NewManaged[*int](d, 1, MemoryOptions{})
	_, negative := NewManaged[int32](d, -1, MemoryOptions{})
	_, zero := NewManaged[int32](d, 0, MemoryOptions{})
	_, overflow := NewManaged[int64](d, math.MaxInt, MemoryOptions{})
	_, alignment := NewManaged[int64](d, 1, MemoryOptions{Alignment: 2})
	_, flag := NewManaged[int64](d, 1, MemoryOptions{Require: MemoryWriteCombined})
	_, nothing := NewManaged[int64](nil, 1, MemoryOptions{})
	for number, err := range []error{pointer, negative, zero, overflow, alignment, flag, nothing} {
		if !errors.Is(err, ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "gpumem.NewManaged: ") {
			t.Errorf("number %d: %v", number, err)
		}
	}
}

// More than the memory of the device is given only to those who ask for it.
func TestOversubscription(t *testing.T) {
	onHost(t)
	d := managedDevice(t, Options{Host: &HostOptions{DeviceBytes: 4 << 20}})
	_, err := NewManaged[byte](d, 8<<20, MemoryOptions{})
	expect(t, err, ErrOutOfDeviceMemory)
	m := newManaged[byte](t, d, 8<<20, MemoryOptions{Require: MemoryOversubscribe})
	info, err := m.Info()
	must(t, err)
	if info.GrantedFlags&MemoryOversubscribe == 0 {
		t.Errorf("granted were %v", info.GrantedFlags)
	}
	must(t, d.Instance().Fill(m.At(0), m.Size(), 3, 1))
}

func TestHostAccessThatIsDropped(t *testing.T) {
	d := managedDevice(t)
	since := settle(t)
	func() {
		m, err := NewManaged[int32](d, 16, MemoryOptions{})
		must(t, err)
		_, err = m.BeginHostAccess()
		must(t, err)
	}()
	collectUntil(t, "freed", since.is(2, 0)) // The access, then the memory.
	since.exactly(t, 2, 0)
	since = settle(t)
	values := func() []int32 {
		m, err := NewManaged[int32](d, 16, MemoryOptions{})
		must(t, err)
		access, err := m.BeginHostAccess()
		must(t, err)
		return access.Slice()
	}()
	collectUntil(t, "kept", since.is(0, 2))
	since.exactly(t, 0, 2)
	values[15] = 1
	destroyed, err := d.Instance().CloseForce()
	must(t, err)
	if destroyed != 1 {
		t.Errorf("%d objects were destroyed", destroyed)
	}
	// A slice whose access was closed keeps nothing.
	d = managedDevice(t)
	since = settle(t)
	func() {
		m, err := NewManaged[int32](d, 16, MemoryOptions{})
		must(t, err)
		access, err := m.BeginHostAccess()
		must(t, err)
		access.Slice()[0] = 1
		must(t, access.Close())
	}()
	collectUntil(t, "freed", since.is(1, 0))
	since.exactly(t, 1, 0)
}

// The CPU and the device take turns, each asked for by several goroutines.
func TestManagedMemoryUnderUse(t *testing.T) {
	devices := map[string]*Device{"concurrent": managedDevice(t)}
	if testBackend(t) == BackendHost {
		devices["older"] = olderDevice(t)
	}
	for name, d := range devices {
		m := newManaged[uint32](t, d, 2048)
		must(t, d.Instance().Fill(m.At(0), m.Size(), 0, 1))
		fill := func(n int, value uint32) error {
			for {
				if err := d.Instance().Fill(m.At(4096+4*uint64(n)), 4, value, 4); !errors.Is(err, ErrBusy) {
					return err
				}
				runtime.Gosched() // A view has its turn.
			}
		}
		var group sync.WaitGroup
		for n := 0; n < 8; n++ {
			n := n
			group.Add(1)
			go func() {
				defer group.Done()
				for round := 1; round <= 50; round++ {
					err := m.View(func(values []uint32) error {
						values[n]++
						return nil
					})
					if err == nil && n < 2 {
						err = fill(n, uint32(round))
					}
					if err != nil {
						t.Errorf("%s, goroutine %d, round %d: %v", name, n, round, err)
						return
					}
				}
			}()
		}
		group.Wait()
		must(t, m.View(func(values []uint32) error {
			for n, value := range values[:8] {
				if value != 50 {
					t.Errorf("%s: goroutine %d counted to %d", name, n, value)
				}
			}
			if values[1024] != 50 || values[1025] != 50 {
				t.Errorf("%s: the device counted to %v", name, values[1024:1026])
			}
			return nil
		}))
	}
}
