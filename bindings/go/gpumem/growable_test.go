// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func newGrowable(t testing.TB, d *Device, options BufferOptions) *GrowableBuffer {
	t.Helper()
	b, err := d.NewGrowableBuffer(options)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

func infoOf(t testing.TB, b *GrowableBuffer) BufferInfo {
	t.Helper()
	info, err := b.Info()
	must(t, err)
	return info
}

// contentOf copies a part of a buffer to Go.
func contentOf(t testing.TB, b *GrowableBuffer, offset uint64, size int) string {
	t.Helper()
	content := make([]byte, size)
	must(t, CopyToSlice(b.Device().Instance(), content, b.At(offset)))
	return string(content)
}

func TestABufferThatGrows(t *testing.T) {
	d, unit := rangeDevice(t)
	i, s := d.Instance(), newStream(t, d)
	b, err := d.NewGrowableBuffer(BufferOptions{Size: 100, Reserve: 8 * unit, Name: "weights"})
	must(t, err)
	info := infoOf(t, b)
	if info.BufferID == 0 {
		t.Error("the reservation has no number")
	}
	want := BufferInfo{Size: 100, Capacity: unit, ReservedSize: 8 * unit, Granularity: unit, BlockCount: 1, Location: LocationDevice,
		BufferID: info.BufferID, Name: "weights"}
	if info != want || b.Size() != 100 || b.Device() != d {
		t.Errorf("the buffer is %+v", info)
	}
	start := b.At(0)
	other := newGrowable(t, d, BufferOptions{})
	// In the size, and where nothing is mapped.
	for _, at := range []Address{start, b.At(100), b.At(8*unit - 1), b.DevicePtr().At(8*unit - 1)} {
		pointer, err := i.Pointer(at)
		must(t, err)
		if !pointer.Owned || !pointer.IsIn(b) || pointer.IsIn(other) || pointer.IsIn(nil) {
			t.Errorf("the buffer at %v is %v", at, pointer)
		}
	}
	must(t, other.Close())
	must(t, CopyFromSlice(i, start, []byte("begin")))
	must(t, i.Fill(start, 100, 7, 1))
	// What has memory can be used, also behind the size, by any of its addresses.
	for _, at := range []func(uint64) Address{b.At, start.Add, b.DevicePtr().At} {
		must(t, i.Fill(at(unit-1), 1, 9, 1))
		must(t, s.Fill(at(100), unit-100, 9, 1))
		must(t, s.Synchronize())
		expect(t, i.Fill(at(unit), 1, 7, 1), ErrInvalidState)
		expect(t, i.Fill(at(100), unit, 7, 1), ErrInvalidState)
		must(t, i.Fill(at(8*unit), 0, 7, 1))
	}
	expect(t, i.Fill(b.At(8*unit), 1, 7, 1), ErrInvalidArgument)
	expect(t, i.Fill(b.At(math.MaxUint64), 1, 7, 1), ErrInvalidArgument)

	must(t, CopyFromSliceAsync(s, b.At(90), []byte("1234567890")))
	must(t, b.Resize(2*unit+1)) // While the stream works on it.
	want.Size, want.Capacity, want.BlockCount = 2*unit+1, 3*unit, 2
	if info := infoOf(t, b); info != want || b.Size() != want.Size || b.At(0) != start {
		t.Errorf("the larger buffer is %+v at %v", info, b.At(0))
	}
	must(t, s.Copy(b.At(unit-5), b.At(90), 10))
	must(t, s.Synchronize())
	if got := contentOf(t, b, unit-5, 10); got != "1234567890" {
		t.Errorf("at the seam there is %q", got)
	}
	if got := contentOf(t, b, 0, 2); got != "\a\a" {
		t.Errorf("the first bytes are %q", got)
	}
	must(t, i.Copy2D(b.At(200), b.At(90), Rectangle{2, 3, 4, 2}, CopyOptions{}))
	must(t, i.Fill2D(b.At(202), Rectangle{Width: 2, Height: 3, DestinationPitch: 4}, '-', 1))
	must(t, i.CopyRegions([]Region{{Destination: Operand{Address: b.At(300)}, Source: Operand{Address: b.At(200), RowPitch: 4}, Width: 3, Height: 3}}))
	if got := contentOf(t, b, 300, 9); got != "12-34-56-" {
		t.Errorf("the regions made %q", got)
	}

	must(t, b.SetCapacity(6*unit))
	want.Capacity, want.BlockCount = 6*unit, 3
	if info := infoOf(t, b); info != want {
		t.Errorf("with more capacity the buffer is %+v", info)
	}
	expect(t, b.SetCapacity(unit), ErrInvalidArgument)
	must(t, i.Fill(b.At(4*unit), 1, 7, 1))
	must(t, b.SetCapacity(0))
	must(t, b.Resize(95))
	want.Size, want.Capacity, want.BlockCount = 95, unit, 1
	if info := infoOf(t, b); info != want || b.Size() != 95 {
		t.Errorf("the smaller buffer is %+v", info)
	}
	if got := contentOf(t, b, 88, 7); got != "\a\a12345" {
		t.Errorf("after shrinking there is %q", got)
	}
	must(t, CopyToSlice(i, make([]byte, 6), b.At(90)))
	expect(t, i.Fill(start.Add(unit), 1, 1, 1), ErrInvalidState)
	message := expect(t, b.Resize(9*unit), ErrOutOfAddressSpace).Error()
	if b.Size() != 95 {
		t.Errorf("after %q the size is %d", message, b.Size())
	}
	expect(t, b.Resize(1<<63), ErrInvalidArgument)
	must(t, b.Resize(0))
	must(t, b.SetCapacity(0))
	if info := infoOf(t, b); info.Capacity != 0 || info.BlockCount != 0 || info.ReservedSize != 8*unit {
		t.Errorf("the empty buffer is %+v", info)
	}
	if stats, err := i.Stats(); err != nil || stats.LiveBytes != 0 || stats.ReservedBytes != 8*unit {
		t.Errorf("with an empty buffer the counters are %+v (%v)", stats, err)
	}
	must(t, b.Resize(10))
	must(t, b.Close())
	must(t, b.Close())
	if b.DevicePtr() != 0 {
		t.Error("a closed buffer hands out its address")
	}
	_, err = b.Info()
	expect(t, err, ErrStaleHandle)
	_, err = b.Bytes()
	expect(t, err, ErrStaleHandle)
	for number, err := range []error{b.Resize(1), b.SetCapacity(0), b.SetAccess(onDevice(0)), b.Sleep(SleepOptions{Content: ContentDrop}), b.Wake(WakeOptions{}),
		i.Fill(start, 1, 1, 1), b.View(nil)} {
		if !errors.Is(err, ErrStaleHandle) {
			t.Errorf("number %d after Close: %v", number, err)
		}
	}
}

func TestOptionsOfGrowableBuffers(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	for number, bad := range []BufferOptions{{Size: 1 << 63}, {Size: 2 * unit, Reserve: unit}, {Location: 9},
		{Location: LocationHostNUMACurrent}, {Location: LocationHostNUMA, LocationID: 4711}, {HandleTypes: 1 << 40},
		{Size: 1, Require: 1 << 40}, {Flags: 1 << 40}, {Name: "\x00"}, {Accesses: []ProcessorAccess{onDevice(2)}},
		{Accesses: []ProcessorAccess{onDevice(1 << 40)}}, {Accesses: []ProcessorAccess{onDevice(0), onDevice(0)}}} {
		if _, err := d.NewGrowableBuffer(bad); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	all := BufferOptions{Size: unit, Prefer: PhysicalCompressible}
	posix, err := d.Capability(CapabilityVMMHandlePOSIXFD)
	must(t, err)
	if posix.Value != AnswerNo {
		all.HandleTypes = HandleTypePOSIXFD
	}
	compressible, err := d.Capability(CapabilityVMMCompressible)
	must(t, err)
	p, err := i.RetainPhysical(newGrowable(t, d, all).At(unit - 1))
	must(t, err)
	info, err := p.Info()
	must(t, err)
	must(t, p.Close())
	if info.HandleTypes != all.HandleTypes || (info.GrantedFlags == PhysicalCompressible) != (compressible.Value != AnswerNo) {
		t.Errorf("the memory is %+v", info)
	}
	_, err = d.NewGrowableBuffer(BufferOptions{Size: unit, Require: PhysicalCompressible, Accesses: []ProcessorAccess{onCPU}})
	expect(t, err, ErrUnsupported)

	// What processors may do holds for what is mapped later, too.
	b := newGrowable(t, d, BufferOptions{Size: 1, Reserve: 4 * unit, Accesses: []ProcessorAccess{{LocationDevice, 0, AccessRead}}})
	accessAt := func(offset uint64, ordinal int) Access {
		t.Helper()
		access, err := i.PointerAccess(b.At(offset), LocationDevice, ordinal)
		must(t, err)
		return access
	}
	if accessAt(0, 0) != AccessRead || accessAt(0, 1) != AccessNone {
		t.Errorf("access is %v and %v", accessAt(0, 0), accessAt(0, 1))
	}
	expect(t, i.Fill(b.At(0), 1, 1, 1), ErrNoAccess)
	must(t, b.SetAccess(onDevice(0), ProcessorAccess{LocationDevice, 1, AccessRead}))
	must(t, b.Resize(2*unit))
	if accessAt(2*unit-1, 0) != AccessReadWrite || accessAt(2*unit-1, 1) != AccessRead {
		t.Errorf("access is %v and %v", accessAt(2*unit-1, 0), accessAt(2*unit-1, 1))
	}
	must(t, i.Fill(b.At(0), 2*unit, 1, 1))
	expect(t, b.SetAccess(), ErrInvalidArgument)
	expect(t, b.SetAccess(onDevice(2)), ErrInvalidArgument)
	expect(t, b.SetAccess(onDevice(1<<40)), ErrInvalidArgument)
	expect(t, b.SetAccess(onCPU), ErrUnsupported)
}

func TestABufferThatSleeps(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	b := newGrowable(t, d, BufferOptions{Size: 3 * unit, Reserve: 8 * unit})
	start := b.At(0)
	expect(t, b.Wake(WakeOptions{}), ErrInvalidState)
	expect(t, b.Sleep(SleepOptions{Content: 5}), ErrInvalidArgument)
	for generation, content := range []Content{ContentPinned, ContentPageable, ContentZero, ContentDrop} {
		must(t, i.Fill(start, 3*unit, uint32('a'+generation), 1))
		before, _, err := d.Memory()
		must(t, err)
		must(t, b.Sleep(SleepOptions{Content: content}))
		free, _, err := d.Memory()
		must(t, err)
		if free < before+3*unit {
			t.Errorf("%v: %d bytes were free, and now are %d", content, before, free)
		}
		want := BufferInfo{Size: 3 * unit, Capacity: 3 * unit, ReservedSize: 8 * unit, Granularity: unit, BlockCount: 1,
			Generation: uint64(generation), Location: LocationDevice, State: BufferStateAsleep}
		if content == ContentPinned || content == ContentPageable {
			want.StoredSize, want.StoreCapacity = 3*unit, 3*unit
		}
		info := infoOf(t, b)
		want.BufferID = info.BufferID
		if info != want || b.At(0) != start || b.Size() != 3*unit || b.Generation() != uint64(generation) {
			t.Errorf("%v: asleep it is %+v", content, info)
		}
		for number, err := range []error{b.Resize(unit), b.Resize(4 * unit), b.SetCapacity(4 * unit), b.SetAccess(onDevice(1)),
			b.Sleep(SleepOptions{Content: content})} {
			if detail := expect(t, err, ErrInvalidState); detail.Message != "the buffer is asleep; call GrowableBuffer.Wake first" {
				t.Errorf("number %d asleep: %v", number, err)
			}
		}
		if err := i.Fill(start, 1, 1, 1); err == nil {
			t.Errorf("%v: bytes were written while it slept", content)
		}
		must(t, b.Wake(WakeOptions{}))
		want.Generation, want.State, want.StoredSize, want.StoreCapacity = uint64(generation)+1, BufferStateAwake, 0, 0
		if info := infoOf(t, b); info != want || b.At(0) != start || b.Generation() != want.Generation {
			t.Errorf("%v: awake it is %+v", content, info)
		}
		expected := string(rune('a'+generation)) + string(rune('a'+generation))
		switch content {
		case ContentZero:
			expected = "\x00\x00"
		case ContentDrop:
			must(t, i.Fill(start, 3*unit, 1, 1))
			continue
		}
		if got := contentOf(t, b, 0, 2) + contentOf(t, b, 3*unit-2, 2); got != expected+expected {
			t.Errorf("%v: awake it has %q", content, got)
		}
	}
	must(t, b.Sleep(SleepOptions{Content: ContentPageable})) // Closed while it sleeps.
}

// Work that was not observed complete keeps the buffer as it is.
func TestGrowableBuffersUnderWork(t *testing.T) {
	onHost(t)
	d, unit := rangeDevice(t)
	s := newStream(t, d)
	b := newGrowable(t, d, BufferOptions{Size: 2 * unit, Reserve: 2 * unit, Flags: BufferMovable})
	word := newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	must(t, s.Fill(b.At(0), 2*unit, 5, 1))
	for number, err := range []error{b.Sleep(SleepOptions{Content: ContentDrop, Flags: SleepIdle}), b.Resize(0), b.Resize(3 * unit), b.Close()} {
		if !errors.Is(err, ErrBusy) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	if b.Size() != 2*unit || b.Generation() != 0 {
		t.Errorf("the buffer is %+v", infoOf(t, b))
	}
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	if contentOf(t, b, 2*unit-1, 1) != "\x05" {
		t.Error("the fill did not arrive")
	}
	must(t, b.Resize(0))
}

func TestABufferThatMoves(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	b := newGrowable(t, d, BufferOptions{Size: unit, Reserve: unit, Flags: BufferMovable})
	must(t, CopyFromSlice(i, b.At(unit-4), []byte("last")))
	before, number := b.At(0), b.DevicePtr()
	must(t, b.Resize(3*unit))
	info := infoOf(t, b)
	if b.At(0) == before || b.DevicePtr() == number || info.Generation != 1 || b.Generation() != 1 || info.ReservedSize < 3*unit ||
		info.Size != 3*unit {
		t.Errorf("from %v it moved to %v and is %+v", before, b.At(0), info)
	}
	if got := contentOf(t, b, unit-4, 4); got != "last" {
		t.Errorf("after moving it has %q", got)
	}
	must(t, i.Fill(b.At(0), 3*unit, 1, 1))
	expect(t, i.Fill(before, 1, 1, 1), ErrInvalidArgument)
	expect(t, i.CopyRegions([]Region{{Destination: Operand{Address: b.At(0)}, Source: Operand{Address: before}, Width: 1}}), ErrInvalidArgument)
	capacity := info.ReservedSize + unit
	must(t, b.SetCapacity(capacity))
	if info := infoOf(t, b); info.Generation != 2 || info.Capacity < capacity || info.Size != 3*unit {
		t.Errorf("with more capacity it is %+v", info)
	}
	must(t, i.Fill(b.At(0), 3*unit, 2, 1))
}

func TestViewsOfAGrowableBuffer(t *testing.T) {
	d, unit := rangeDevice(t)
	needs(t, d, CapabilityVMMHost)
	i := d.Instance()
	nothing := func([]byte) error { return errors.New("this must not run") }
	onCPUNone := ProcessorAccess{LocationHost, 0, AccessNone}
	b := newGrowable(t, d, BufferOptions{Size: 1003, Reserve: 4 * unit, Location: LocationHost, Flags: BufferMovable})
	must(t, i.Fill(b.At(0), 1003, 3, 1))
	must(t, b.View(func(content []byte) error {
		if len(content) != 1003 || content[0] != 3 || content[1002] != 3 {
			return fmt.Errorf("the view has %d bytes", len(content))
		}
		for number, err := range []error{b.Resize(1002), b.Resize(0), b.Resize(4*unit + 1), b.SetCapacity(4*unit + 1),
			b.SetAccess(onCPUNone), b.Sleep(SleepOptions{Content: ContentDrop}), b.Close(), i.Close()} {
			if !errors.Is(err, ErrBusy) {
				t.Errorf("number %d during a view: %v", number, err)
			}
		}
		// It may grow in place, and other processors may change.
		must(t, b.Resize(2*unit))
		must(t, b.SetCapacity(3*unit))
		must(t, b.SetCapacity(0))
		must(t, b.SetAccess(onDevice(1)))
		must(t, b.Resize(1003))
		content[1002] = 4
		return b.View(func(second []byte) error {
			if second[1002] != 4 {
				return errors.New("the second view is of other bytes")
			}
			return nil
		})
	}))
	if b.shown.Load() {
		t.Error("a view counts as handing out a slice")
	}
	failed := errors.New("of the function")
	must(t, ViewAs(b, func(values []uint16) error {
		if len(values) != 501 || values[0] != 0x0303 {
			t.Errorf("there are %d values, the first %#x", len(values), values[0])
		}
		values[500] = 0x0605
		return nil
	}))
	if err := ViewAs(b, func([]uint16) error { return failed }); err != failed {
		t.Errorf("the error is %v", err)
	}
	if got := contentOf(t, b, 999, 4); got != "\x03\x05\x06\x04" {
		t.Errorf("written was %q", got)
	}
	values, err := SliceAs[[2]int32](b)
	must(t, err)
	content, err := b.Bytes()
	must(t, err)
	if len(values) != 125 || len(content) != 1003 || !b.shown.Load() {
		t.Errorf("the slices have %d values and %d bytes", len(values), len(content))
	}
	values[124][1] = 0x09080706
	if content[999] != 9 {
		t.Errorf("the slices differ: %v", content[996:1000])
	}
	_, err = SliceAs[*int](b)
	expect(t, err, ErrInvalidArgument)
	expect(t, ViewAs(b, func([]string) error { return failed }), ErrInvalidArgument)

	must(t, b.SetAccess(onCPUNone))
	expect(t, b.View(nothing), ErrNoAccess)
	_, err = SliceAs[int32](b)
	expect(t, err, ErrNoAccess)
	must(t, b.SetAccess(ProcessorAccess{LocationHost, 0, AccessRead}))
	must(t, b.View(func(content []byte) error {
		if content[999] != 9 {
			return errors.New("the content is lost")
		}
		return nil
	}))
	must(t, b.SetAccess(onCPU))
	must(t, b.Sleep(SleepOptions{Content: ContentPageable}))
	expect(t, b.View(nothing), ErrInvalidState)
	_, err = b.Bytes()
	expect(t, err, ErrInvalidState)
	must(t, b.Wake(WakeOptions{}))
	must(t, b.Resize(5*unit)) // It moves.
	must(t, b.View(func(content []byte) error {
		if uint64(len(content)) != 5*unit || content[999] != 9 {
			return errors.New("the content did not move")
		}
		content[5*unit-1] = 1
		return nil
	}))
	must(t, b.Resize(0))
	must(t, b.View(func(content []byte) error {
		if len(content) != 0 {
			return errors.New("an empty buffer has bytes")
		}
		return nil
	}))

	ofDevice := newGrowable(t, d, BufferOptions{Size: 1})
	expect(t, ofDevice.View(nothing), ErrNoAccess)
	_, err = ofDevice.Bytes()
	expect(t, err, ErrNoAccess)
}

func TestGrowableBuffersThatAreDropped(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	newOne := func() *GrowableBuffer {
		b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: 4 * unit})
		must(t, err)
		return b
	}
	since := settle(t)
	func() {
		must(t, i.Fill(newOne().At(0), unit, 1, 1))
		must(t, newOne().Sleep(SleepOptions{}))
	}()
	collectUntil(t, "freed", since.is(2, 0))
	since.exactly(t, 2, 0)
	if stats, err := i.Stats(); err != nil || stats.Live() != 0 {
		t.Errorf("there live %+v (%v)", stats, err)
	}

	word := newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	s := newStream(t, d)
	func() {
		b := newOne()
		must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
		must(t, s.Fill(b.At(0), unit, 1, 1))
	}()
	for n := 0; n < 5; n++ {
		runtime.GC()
		runtime.Gosched()
	}
	since.exactly(t, 2, 0)
	word.Slice()[0] = 1
	collectUntil(t, "freed after the work", since.is(3, 0))

	func() {
		if newOne().DevicePtr() == 0 {
			t.Error("there is no address")
		}
	}()
	collectUntil(t, "kept", since.is(3, 1))
	since.exactly(t, 3, 1)
	must(t, word.Close())
	must(t, s.Close())
	_, err := i.CloseForce()
	must(t, err)
}

func TestAGrowableBufferWhoseInstanceIsClosed(t *testing.T) {
	d, unit := rangeDevice(t)
	since := settle(t)
	b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit})
	must(t, err)
	expect(t, d.Instance().Close(), ErrBusy)
	_, err = d.Instance().CloseForce()
	must(t, err)
	expect(t, b.Resize(1), ErrClosed)
	expect(t, b.View(nil), ErrClosed)
	if b.DevicePtr() != 0 {
		t.Error("the address outlives the instance")
	}
	must(t, b.Close())
	b = nil
	if left := settle(t); left != since {
		t.Errorf("counted were %+v, then %+v", since, left)
	}
}

// A change fails whole, whichever of its steps fails, and the next try succeeds.
func TestGrowableBuffersWhenStepsFail(t *testing.T) {
	onHost(t)
	d, unit := rangeDevice(t)
	i := d.Instance()
	failures := 0
	for step, before := uint64(1), -1; failures != before; step++ {
		before = failures
		must(t, i.HostFailStep(step, false))
		b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit, Flags: BufferMovable})
		if err != nil {
			failures++
			if stats, err := i.Stats(); err != nil || stats.Live() != 0 {
				t.Fatalf("step %d leaves %+v (%v)", step, stats, err)
			}
			continue
		}
		for number, change := range []func() error{
			func() error { return b.Resize(2 * unit) },
			func() error { return CopyFromSlice(i, b.At(0), []byte("content")) },
			func() error { return b.Sleep(SleepOptions{}) },
			func() error { return b.Wake(WakeOptions{}) },
			func() error { return b.Resize(64) },
			func() error { return b.SetCapacity(0) },
		} {
			old, place := infoOf(t, b), b.At(0)
			if err := change(); err != nil {
				failures++
				if now := infoOf(t, b); now != old || b.At(0) != place {
					t.Errorf("step %d, change %d fails and leaves %+v", step, number, now)
				}
				must(t, change())
			}
		}
		must(t, i.HostFailStep(0, false))
		if got := contentOf(t, b, 0, 7); got != "content" {
			t.Errorf("step %d: the content is %q", step, got)
		}
		must(t, b.Close())
	}
	if failures < 10 {
		t.Errorf("only %d steps failed", failures)
	}
}

// Goroutines resize, view, fill and put to sleep one buffer at the same time.
func TestGrowableBuffersUnderUse(t *testing.T) {
	d, unit := rangeDevice(t)
	needs(t, d, CapabilityVMMHost)
	i := d.Instance()
	b := newGrowable(t, d, BufferOptions{Size: unit, Reserve: 2 * unit, Location: LocationHost, Flags: BufferMovable})
	start := time.Now()
	var changing, viewing sync.WaitGroup
	var ended atomic.Bool
	var changes atomic.Int64
	// succeeds reports whether a call succeeded, and allows for refusals because of what others do.
	succeeds := func(err error, expected ...Status) bool {
		for _, status := range append(expected, ErrBusy, ErrInvalidState) {
			if errors.Is(err, status) {
				return false
			}
		}
		if err != nil {
			t.Error(err)
		}
		return err == nil
	}
	for n := 0; n < 4; n++ {
		n := n
		changing.Add(1)
		go func() {
			defer changing.Done()
			for round := 0; !ended.Load(); round++ {
				switch {
				case n < 2 && succeeds(b.Resize(uint64(1+(round*5+n)%6)*unit/2)):
					changes.Add(1)
				case n == 2 && succeeds(b.Sleep(SleepOptions{Content: ContentPageable})):
					if err := b.Wake(WakeOptions{}); err != nil {
						t.Errorf("awake: %v", err)
					}
				case n == 3:
					// The buffer may have moved or shrunk since At.
					succeeds(i.Fill(b.At(0), unit/2, 1, 1), ErrInvalidArgument, ErrNotFound, ErrNoAccess)
				}
				time.Sleep(time.Millisecond)
			}
		}()
	}
	for n := 0; n < 2; n++ {
		viewing.Add(1)
		go func() {
			defer viewing.Done()
			for views := 0; views < 30; runtime.Gosched() {
				if succeeds(b.View(func(content []byte) error {
					content[0], content[len(content)-1] = 1, 1
					return nil
				})) {
					views++
				}
				if time.Since(start) > 60*time.Second {
					t.Errorf("only %d views in 60 seconds", views)
					return
				}
			}
		}()
	}
	viewing.Wait()
	for changes.Load() < 10 && time.Since(start) < 60*time.Second {
		time.Sleep(time.Millisecond)
	}
	ended.Store(true)
	changing.Wait()
	info := infoOf(t, b)
	if info.State != BufferStateAwake || info.Size != b.Size() || info.Generation != b.Generation() || len(b.growing.parts.all) != 0 || changes.Load() < 10 {
		t.Errorf("after %d changes it is %+v, of size %d, generation %d, with %d parts", changes.Load(), info, b.Size(), b.Generation(),
			len(b.growing.parts.all))
	}
	must(t, i.Fill(b.At(0), b.Size(), 1, 1))
}
