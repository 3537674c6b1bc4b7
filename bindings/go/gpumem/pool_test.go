// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"errors"
	"math"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func newPool(t testing.TB, d *Device, options PoolOptions) *Pool {
	t.Helper()
	p, err := d.NewPool(options)
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

func newBlock(t testing.TB, p *Pool, size uint64, stream *Stream) *PoolBlock {
	t.Helper()
	b, err := p.Alloc(size, stream)
	must(t, err)
	return b
}

func poolInfo(t testing.TB, p *Pool) PoolInfo {
	t.Helper()
	info, err := p.Info()
	must(t, err)
	return info
}

// heldStream is a stream whose work waits until the function is called.
func heldStream(t testing.TB, d *Device) (*Stream, func()) {
	t.Helper()
	word := newPinned[uint32](t, d, 1)
	s := newStream(t, d)
	word.Slice()[0] = 0
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	release := func() {
		word.Slice()[0] = 1
		must(t, s.Synchronize())
	}
	t.Cleanup(func() {
		if values := word.Slice(); values != nil {
			values[0] = 1
		}
		_ = s.Synchronize()
	})
	return s, release
}

// filled reports whether all bytes have a value.
func filled(content []byte, value byte) bool {
	return len(content) > 0 && bytes.Count(content, []byte{value}) == len(content)
}

func TestPool(t *testing.T) {
	d := device(t)
	i := d.Instance()
	for _, kind := range []Kind{0, KindDevice, KindPinned, KindManaged, KindPageable} {
		p := newPool(t, d, PoolOptions{Kind: kind, Limit: 64 << 20, Name: "of tests"})
		if kind == 0 {
			kind = KindDevice
		}
		if info := poolInfo(t, p); info.Kind != kind || info.Name != "of tests" || info.Limit != 64<<20 || info.LiveCount != 0 ||
			info.DeviceOrdinal != 0 || p.Kind() != kind || p.Device() != d {
			t.Errorf("%v: the pool is %+v", kind, info)
		}
		content := []byte("through a block")
		b := newBlock(t, p, uint64(len(content)), nil)
		least := uint64(256)
		if kind == KindPinned || kind == KindPageable {
			least = 16
		}
		if b.At(0).value%least != 0 || b.Size() != uint64(len(content)) || b.Pool() != p {
			t.Errorf("%v: %d bytes at %#x", kind, b.Size(), b.At(0).value)
		}
		must(t, CopyFromSlice(i, b.At(0), content))
		back := make([]byte, len(content))
		must(t, CopyToSlice(i, back, b.At(0)))
		if string(back) != string(content) {
			t.Errorf("%v: the block has %q", kind, back)
		}
		info, err := b.Info()
		must(t, err)
		if info.Base != b.At(0).value || info.UsableSize < b.Size() || info.PoolClosed {
			t.Errorf("%v: the block is %+v", kind, info)
		}
		if at, err := i.BlockInfo(RawAddress(info.Base + 3)); err != nil || at != info {
			t.Errorf("%v: inside it is %+v (%v)", kind, at, err)
		}
		if pointer, err := i.Pointer(b.At(0)); kind != KindPageable && (err != nil || pointer.Kind != KindPool || !pointer.Owned) {
			t.Errorf("%v: its pointer is %+v (%v)", kind, pointer, err)
		}
		if live := poolInfo(t, p); live.LiveCount != 1 || live.LiveBytes != info.UsableSize || live.ReservedBytes < live.LiveBytes ||
			live.TotalCount != 1 {
			t.Errorf("%v: with a block it is %+v", kind, live)
		}
		must(t, b.Free())
		must(t, b.Free()) // The second does nothing.
		expect(t, i.Copy(b.At(0), b.At(0), 1), ErrStaleHandle)
		if _, err := i.BlockInfo(RawAddress(info.Base)); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v: freed it is %v", kind, err)
		}
		if live := poolInfo(t, p); live.LiveCount != 0 || live.TotalCount != 1 {
			t.Errorf("%v: without a block it is %+v", kind, live)
		}
	}
}

func TestOptionsOfPools(t *testing.T) {
	d := device(t)
	for number, options := range []PoolOptions{{Kind: KindRegistered}, {Kind: 77}, {Flags: 1 << 40}, {MemoryFlags: 1 << 40},
		{HandleTypes: 1 << 40}, {HandleTypes: HandleTypeFabric}, {NUMANode: 1}, {InitialSize: 2, Limit: 1}, {ReleaseThreshold: 1, LowWater: 2}, {Limit: 1 << 63}, {SegmentSize: 1 << 63}, {Name: "a\x00b"},
		{Name: strings.Repeat("a", 64)}, {Accesses: []ProcessorAccess{{Location: 77}}},
		{Kind: KindPinned, Accesses: []ProcessorAccess{{Location: LocationDevice, LocationID: 1, Access: AccessReadWrite}}}} {
		if p, err := d.NewPool(options); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
			_ = p.Close()
		}
	}
	if _, err := d.NewPool(PoolOptions{LowWater: 10}); err == nil || !strings.Contains(err.Error(), "LowWater") {
		t.Error(err)
	}
	p := newPool(t, d, PoolOptions{Flags: PoolAllowInternalDependencies | PoolDebug, ReleaseThreshold: 1 << 20, InitialSize: 1 << 20,
		SegmentSize: 2 << 20, LowWater: 1 << 19})
	if info := poolInfo(t, p); info.Flags != PoolAllowInternalDependencies|PoolDebug || info.ReleaseThreshold != 1<<20 ||
		info.LowWater != 1<<19 || info.ReservedBytes < 1<<20 {
		t.Errorf("the pool is %+v", info)
	}
	b := newBlock(t, p, 1000, nil)
	if info, err := b.Info(); err != nil || info.RequestedSize != 1000 {
		t.Errorf("the block is %+v (%v)", info, err)
	}
	must(t, b.Free())
	for _, one := range []struct {
		sizes []uint64
		bytes uint64
	}{{nil, 0}, {[]uint64{4 << 20, 0}, 4 << 20}} {
		if bytes, err := newPool(t, d, PoolOptions{}).CapacityFor(one.sizes); err != nil || bytes != one.bytes {
			t.Errorf("the capacity for %v is %d (%v)", one.sizes, bytes, err)
		}
	}
	_, err := p.CapacityFor([]uint64{1, 1 << 63})
	expect(t, err, ErrInvalidArgument)
	must(t, p.SetLimit(1<<30))
	must(t, p.SetReleaseThreshold(0))
	if info := poolInfo(t, p); info.Limit != 1<<30 || info.ReleaseThreshold != 0 {
		t.Errorf("the pool is %+v", info)
	}
	expect(t, p.SetLimit(1<<63), ErrInvalidArgument)
	expect(t, p.SetReleaseThreshold(1<<63), ErrInvalidArgument)
}

func TestTryAllocTakesOnlyWhatIsFree(t *testing.T) {
	p := newPool(t, device(t), PoolOptions{})
	_, attempt, err := p.TryAlloc(1000, 0, nil)
	expect(t, err, NotReady)
	if attempt.Answer != PoolAnswerNeedsMemory {
		t.Errorf("a new pool: %v", attempt)
	}
	must(t, newBlock(t, p, 1000, nil).Free())
	for _, alignment := range []uint64{0, 4096} {
		b, attempt, err := p.TryAlloc(1000, alignment, nil)
		must(t, err)
		if attempt.Answer != PoolAnswerAllocated || b.Size() != 1000 || alignment != 0 && b.At(0).value%alignment != 0 {
			t.Errorf("%d bytes at %#x", b.Size(), b.At(0).value)
		}
		must(t, b.Free())
	}
	empty, _, err := p.TryAlloc(0, 0, nil)
	must(t, err)
	must(t, empty.Free())
	before, err := p.Info()
	must(t, err)
	must(t, p.SetLimit(before.ReservedBytes))
	_, attempt, err = p.TryAlloc(before.ReservedBytes+1, 0, nil)
	expect(t, err, NotReady)
	if attempt.Answer != PoolAnswerOverLimit || attempt.StreamID != 0 {
		t.Errorf("beyond the limit: %v", attempt)
	}
	after, err := p.Info()
	must(t, err)
	if after.ReservedBytes != before.ReservedBytes {
		t.Errorf("it took memory: %v", after)
	}
	_, _, err = p.TryAlloc(100, 3, nil)
	expect(t, err, ErrInvalidArgument)
}

func TestAlignedAndEmptyBlocks(t *testing.T) {
	d := device(t)
	p := newPool(t, d, PoolOptions{})
	for _, alignment := range []uint64{0, 1, 4096, 1 << 20} {
		b, err := p.AllocAligned(100, alignment, nil)
		must(t, err)
		if alignment != 0 && b.At(0).value%alignment != 0 {
			t.Errorf("%#x is not aligned to %d", b.At(0).value, alignment)
		}
		must(t, b.Free())
	}
	for _, alignment := range []uint64{3, 1 << 41} {
		_, err := p.AllocAligned(100, alignment, nil)
		expect(t, err, ErrInvalidArgument)
	}
	_, err := p.Alloc(1<<63, nil)
	expect(t, err, ErrInvalidArgument)

	b := newBlock(t, p, 0, nil)
	info, err := b.Info()
	must(t, err)
	if b.Size() != 0 || b.DevicePtr() != 0 || info.Base != 0 || len(b.Bytes()) != 0 {
		t.Errorf("an empty block is %+v", info)
	}
	must(t, b.View(func(bytes []byte) error {
		if len(bytes) != 0 {
			t.Errorf("it has %d bytes", len(bytes))
		}
		return nil
	}))
	must(t, b.Free())
	if info := poolInfo(t, p); info.LiveCount != 0 {
		t.Errorf("the pool is %+v", info)
	}
}

// What one stream has freed is not overwritten by another before the work of the first is complete.
func TestBlocksInTheOrderOfTwoStreams(t *testing.T) {
	const size = 100_000
	d := device(t)
	i := d.Instance()
	p := newPool(t, d, PoolOptions{})
	result := newPinned[byte](t, d, size)
	for _, how := range []string{"freed in its stream", "freed in another stream", "recorded", "recorded by itself"} {
		t.Run(how, func(t *testing.T) {
			s, release := heldStream(t, d)
			other := newStream(t, d)
			first := s
			if strings.HasPrefix(how, "recorded") {
				first = other // The held work is that of a stream that the free does not name.
			}
			b := newBlock(t, p, size, first)
			must(t, i.Fill(b.At(0), size, 'a', 1))
			must(t, other.Synchronize())
			if how == "recorded" {
				must(t, s.Copy(result.At(0), RawAddress(b.At(0).Number()), size)) // By an address, of which nobody knows.
				must(t, b.RecordUse(s))
			} else {
				must(t, s.Copy(result.At(0), b.At(0), size))
			}
			if how == "freed in another stream" {
				e := newEvent(t, d)
				must(t, e.Record(s))
				must(t, other.WaitEvent(e))
				must(t, b.FreeOn(other))
				other = newStream(t, d)
			} else {
				must(t, b.Free())
			}
			again := newBlock(t, p, size, other)
			if again.At(0).value == b.At(0).value {
				t.Error("a block whose work is not complete is given out in another stream")
			}
			must(t, other.Fill(again.At(0), size, 'z', 1))
			must(t, other.Synchronize())
			release()
			if !filled(result.Slice(), 'a') {
				t.Errorf("the first block has %q", result.Slice()[:10])
			}
			must(t, again.Free())
		})
	}
	// In the same stream the block comes back at once.
	s, release := heldStream(t, d)
	b := newBlock(t, p, size, s)
	must(t, s.Fill(b.At(0), size, 'a', 1))
	must(t, b.Free())
	again := newBlock(t, p, size, s)
	if again.At(0).value != b.At(0).value {
		t.Error("the stream that has freed a block does not get it back")
	}
	must(t, again.Free())
	release()
}

// Of a block that was allocated without a stream, Free knows the work that this package has enqueued.
func TestABlockWithoutAStreamIsFreedAfterItsWork(t *testing.T) {
	const size = 100_000
	d := device(t)
	for _, kind := range []Kind{KindPinned, KindDevice} {
		p := newPool(t, d, PoolOptions{Kind: kind})
		again := func(b *PoolBlock, used bool) {
			t.Helper()
			next := newBlock(t, p, size, nil)
			if same := next.address == b.address; same != !used {
				t.Errorf("%v: the block comes back: %v, while work uses it: %v", kind, same, used)
			}
			must(t, d.Instance().Fill(next.At(0), size, 'z', 1))
			must(t, next.FreeOn(nil))
		}

		results := []*Memory{newMemory(t, d, KindDevice, size), newMemory(t, d, KindDevice, size)}
		content := make([]byte, size)
		for count := 0; count <= 2; count++ {
			for last := 0; last < count; last++ { // The stream that is released last.
				b := newBlock(t, p, size, nil)
				must(t, d.Instance().Fill(b.At(0), size, 'a', 1))
				releases := make([]func(), count)
				for n := range releases {
					var s *Stream
					s, releases[n] = heldStream(t, d)
					must(t, s.Copy(results[n].At(0), b.At(0), size))
				}
				must(t, b.Free())
				again(b, true)
				for n, release := range releases {
					if n != last {
						release()
						again(b, true)
					}
				}
				releases[last]()
				for _, result := range results[:count] {
					must(t, CopyToSlice(d.Instance(), content, result.At(0)))
					if !filled(content, 'a') {
						t.Errorf("%v: with %d streams the block has %q", kind, count, content[:10])
					}
				}
			}
		}

		// Once its work was observed, and if the caller says that there is none, it comes back at once.
		s := newStream(t, d)
		b := newBlock(t, p, size, nil)
		must(t, s.Fill(b.At(0), size, 'a', 1))
		must(t, s.Synchronize())
		must(t, b.Free())
		again(b, false)
		s, release := heldStream(t, d)
		b = newBlock(t, p, size, nil)
		must(t, s.Fill(b.At(0), size, 'a', 1))
		must(t, b.FreeOn(nil))
		again(b, false)
		release()

		// Streams that are closed.
		for _, observed := range []bool{true, false} {
			s, err := d.NewStream(StreamOptions{})
			must(t, err)
			e := newEvent(t, d)
			b := newBlock(t, p, size, nil)
			must(t, s.Fill(b.At(0), size, 'a', 1))
			must(t, e.Record(s))
			if observed {
				must(t, s.Synchronize())
			}
			must(t, s.Close())
			if observed {
				must(t, b.Free())
				continue
			}
			if text := expect(t, b.Free(), ErrStaleHandle).Error(); !strings.Contains(text, "PoolBlock.FreeOn(nil)") {
				t.Error(text)
			}
			must(t, e.Synchronize())
			must(t, b.Free())
		}
	}
}

// The stream that has used a block is closed just then.
func TestABlockIsFreedWhileItsStreamIsClosed(t *testing.T) {
	d := device(t)
	p := newPool(t, d, PoolOptions{})
	for n := 0; n < 10_000; n++ {
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		b := newBlock(t, p, 64, nil)
		must(t, s.Fill(b.At(0), 64, 1, 1))
		closed := make(chan error)
		go func() { closed <- firstError(s.Synchronize(), s.Close()) }()
		for spins := n % 100; spins > 0; spins-- {
			runtime.Gosched()
		}
		freed := b.Free()
		must(t, <-closed)
		must(t, freed)
	}
}

func TestABlockWhoseStreamIsClosed(t *testing.T) {
	const size = 100_000
	d := device(t)
	p := newPool(t, d, PoolOptions{Kind: KindPinned})
	closed := func(use func(*Stream, *PoolBlock)) *PoolBlock {
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		b := newBlock(t, p, size, s)
		use(s, b)
		must(t, s.Close())
		return b
	}
	must(t, closed(func(*Stream, *PoolBlock) {}).Free())
	must(t, closed(func(s *Stream, b *PoolBlock) {
		must(t, s.Fill(b.At(0), size, 1, 1))
		must(t, s.Synchronize())
	}).Free())

	// Work that was not observed complete.
	for name, enqueue := range map[string]func(*Stream, *PoolBlock) error{
		"fill":     func(s *Stream, b *PoolBlock) error { return s.Fill(b.At(0), size, 1, 1) },
		"function": func(s *Stream, b *PoolBlock) error { return s.Launch(func() {}) },
	} {
		e := newEvent(t, d)
		b := closed(func(s *Stream, b *PoolBlock) {
			must(t, enqueue(s, b))
			must(t, e.Record(s))
		})
		text := expect(t, b.Free(), ErrStaleHandle).Error()
		if !strings.HasPrefix(text, "PoolBlock.Free: ") || !strings.Contains(text, "PoolBlock.FreeOn(nil)") {
			t.Errorf("%s: %s", name, text)
		}
		must(t, e.Synchronize())
		must(t, b.FreeOn(nil))
	}

	// Work of another stream still holds the memory back, and one that was closed is named.
	s, release := heldStream(t, d)
	b := closed(func(*Stream, *PoolBlock) {})
	must(t, s.Fill(b.At(0), size, 1, 1))
	must(t, b.Free())
	again := newBlock(t, p, size, nil)
	if again.At(0).value == b.At(0).value {
		t.Error("a block whose work is not complete is given out")
	}
	release()
	e := newEvent(t, d)
	other, err := d.NewStream(StreamOptions{})
	must(t, err)
	must(t, other.Fill(again.At(0), size, 1, 1))
	must(t, e.Record(other))
	must(t, other.Close())
	text := expect(t, again.FreeOn(s), ErrStaleHandle).Error()
	if !strings.HasPrefix(text, "PoolBlock.FreeOn: ") || !strings.Contains(text, "PoolBlock.FreeOn(nil)") {
		t.Error(text)
	}
	must(t, e.Synchronize())
	must(t, again.FreeOn(nil))
}

func TestBlocksOfNativeStreams(t *testing.T) {
	const size = 50_000
	d := device(t)
	s, release := heldStream(t, d)
	info, err := s.Info()
	must(t, err)
	native := info.NativeStream
	if testBackend(t) == BackendHost {
		native, err = d.HostNativeStream()
		must(t, err)
		defer func() { must(t, d.DestroyHostNativeStream(native)) }()
		release()
		s, err = d.WrapStream(native)
		must(t, err)
		defer func() { must(t, s.Close()) }()
		release = func() {}
	}
	p := newPool(t, d, PoolOptions{})
	b, err := p.AllocNative(size, native)
	must(t, err)
	must(t, s.Fill(b.At(0), size, 1, 1))
	must(t, b.Free())
	again := newBlock(t, p, size, s)
	if again.At(0).value != b.At(0).value {
		t.Error("the stream does not get back what its native handle has freed")
	}
	must(t, again.FreeNative(native))
	left, err := p.AllocNative(size, 0) // The default stream.
	must(t, err)
	must(t, left.FreeNative(0))

	kept, err := p.AllocNative(size, native)
	must(t, err)
	release()
	must(t, s.Synchronize())
	must(t, p.Close())
	must(t, kept.Free()) // Without a pool.
	expect(t, p.SetLimit(1), ErrStaleHandle)
}

func TestAStreamThatIsCapturedHasBlocksOfItsOwn(t *testing.T) {
	onHost(t)
	d := device(t)
	p, s, other := newPool(t, d, PoolOptions{}), newStream(t, d), newStream(t, d)
	if number, err := s.CaptureID(); number != 0 || err != nil {
		t.Error(number, err)
	}
	outside := newBlock(t, p, 64, nil)
	must(t, s.HostSetCapturing(true))
	capture, err := s.CaptureID()
	must(t, err)
	b := newBlock(t, p, 64, s)
	address := b.At(0).Number()
	must(t, b.Free())
	if b = newBlock(t, p, 64, s); b.At(0).Number() != address {
		t.Error("not in the order of the capture")
	}
	must(t, b.Free())
	must(t, outside.RecordUse(s))
	must(t, outside.Free())
	must(t, s.HostSetCapturing(false))
	info, err := p.Info()
	must(t, err)
	if capture == 0 || info.CaptureCount != 1 || info.CapturedBytes != 512 || info.LiveCount != 0 {
		t.Error(capture, info)
	}
	var blocks []*PoolBlock
	for range [200]int{} {
		blocks = append(blocks, newBlock(t, p, 64, s))
		if blocks[len(blocks)-1].At(0).Number() == address {
			t.Error("the block is of the graph")
		}
	}
	must(t, p.ReleaseCapture(capture, other))
	must(t, other.Synchronize())
	_, err = p.Trim(0)
	must(t, err)
	expect(t, p.ReleaseCapture(capture, nil), ErrNotFound)
	info, err = p.Info()
	must(t, err)
	if info.CaptureCount != 0 || info.CapturedBytes != 0 {
		t.Error(info)
	}
	must(t, p.FreeBatch(blocks, s))
	must(t, s.Synchronize())
}

func TestBatchesOfBlocks(t *testing.T) {
	d := device(t)
	p, other, s := newPool(t, d, PoolOptions{}), newPool(t, d, PoolOptions{}), newStream(t, d)
	sizes := []uint64{1, 0, 5000, 1 << 20, 3 << 20, 64}
	blocks, err := p.AllocBatch(sizes, s)
	must(t, err)
	for index, b := range blocks {
		if b.Size() != sizes[index] {
			t.Errorf("number %d has %d bytes", index, b.Size())
		}
		if b.Size() > 0 {
			must(t, s.Fill(b.At(0), b.Size(), 1, 1))
		}
	}
	if live := poolInfo(t, p).LiveCount; live != 5 {
		t.Errorf("%d blocks live", live)
	}
	must(t, blocks[2].Free())

	theirs := newBlock(t, other, 64, nil)
	expect(t, p.FreeBatch(append([]*PoolBlock{blocks[0], theirs}, blocks...), s), ErrInvalidArgument)
	must(t, theirs.Free())
	if err := p.FreeBatch([]*PoolBlock{blocks[0], nil, blocks[1], blocks[0]}, s); !errors.Is(err, ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "blocks[0] and blocks[3]") {
		t.Error(err)
	}
	if live := poolInfo(t, p).LiveCount; live != 4 {
		t.Errorf("after refusals %d blocks live", live)
	}
	must(t, p.FreeBatch(append(blocks, nil, &PoolBlock{}), s))
	must(t, p.FreeBatch(blocks, s))
	must(t, p.FreeBatch(nil, nil))
	if live := poolInfo(t, p).LiveCount; live != 0 {
		t.Errorf("after the batch %d blocks live", live)
	}
	if none, err := p.AllocBatch(nil, nil); err != nil || len(none) != 0 {
		t.Errorf("no sizes give %v (%v)", none, err)
	}
	_, err = p.AllocBatch([]uint64{64, 1 << 63}, s)
	expect(t, err, ErrInvalidArgument)
	must(t, p.SetLimit(poolInfo(t, p).ReservedBytes))
	_, err = p.AllocBatch([]uint64{64, 1 << 40}, nil)
	if err == nil || poolInfo(t, p).LiveCount != 0 {
		t.Errorf("half of a batch lives (%v)", err)
	}
	must(t, s.Synchronize())

	last, err := p.AllocBatch([]uint64{64, 64}, nil)
	must(t, err)
	must(t, p.Close())
	must(t, p.FreeBatch(last, nil))
}

// The first block that cannot be freed ends the batch; those before it are freed, and only those.
func TestABatchThatEndsEarly(t *testing.T) {
	d := device(t)
	p := newPool(t, d, PoolOptions{Kind: KindPageable, Flags: PoolDebug})
	blocks, err := p.AllocBatch([]uint64{100, 100, 100}, nil)
	must(t, err)
	past := (*byte)(pointerTo(blocks[1].At(100).value))
	kept := *past
	*past ^= 0xff // Behind the end of the second.
	err = p.FreeBatch(blocks, nil)
	detail := expect(t, err, ErrInvalidArgument)
	if !strings.HasPrefix(detail.Error(), "Pool.FreeBatch: ") {
		t.Error(detail)
	}
	for index, freed := range []bool{true, false, false} {
		if blocks[index].closed() != freed {
			t.Errorf("block %d: freed is %v", index, !freed)
		}
	}
	*past = kept
	must(t, p.FreeBatch(blocks, nil))
	if live := poolInfo(t, p).LiveCount; live != 0 {
		t.Errorf("%d blocks live", live)
	}
}

func TestAddressesOfBlocks(t *testing.T) {
	d := device(t)
	i := d.Instance()
	p, other := newPool(t, d, PoolOptions{}), newPool(t, d, PoolOptions{})
	s := newStream(t, d)
	at, err := p.Malloc(1000, s)
	must(t, err)
	must(t, s.Fill(at, 1000, 1, 1))
	expect(t, p.Free(at.Add(1), s), ErrInvalidArgument)
	if err := other.Free(at, s); !errors.Is(err, ErrInvalidArgument) && !errors.Is(err, ErrNotFound) {
		t.Errorf("by another pool it is %v", err)
	}
	must(t, p.Free(at, s))
	expect(t, p.Free(at, s), ErrNotFound)
	at, err = p.Malloc(1000, nil)
	must(t, err)
	must(t, i.FreeBlock(at, nil))
	expect(t, i.FreeBlock(at, nil), ErrNotFound)
	must(t, p.Free(Address{}, nil))
	must(t, i.FreeBlock(Address{}, nil))

	b := newBlock(t, p, 64, nil)
	expect(t, p.Free(b.At(0), nil), ErrInvalidArgument)
	expect(t, i.FreeBlock(b.At(0), nil), ErrInvalidArgument)
	expect(t, i.Free(b.At(0)), ErrInvalidArgument)
	must(t, b.Free())
	must(t, s.Synchronize())
}

func TestWrongPoolsAndStreams(t *testing.T) {
	d := device(t)
	foreign, err := open(t).Device(0)
	must(t, err)
	theirs := newStream(t, foreign)
	p := newPool(t, d, PoolOptions{})
	_, err = p.Alloc(64, theirs)
	expect(t, err, ErrInvalidArgument)
	b := newBlock(t, p, 64, nil)
	expect(t, b.FreeOn(theirs), ErrInvalidArgument)
	expect(t, b.RecordUse(theirs), ErrInvalidArgument)
	expect(t, b.RecordUse(nil), ErrInvalidArgument)
	closed, err := d.NewStream(StreamOptions{})
	must(t, err)
	must(t, closed.Close())
	_, err = p.Alloc(64, closed)
	expect(t, err, ErrStaleHandle)
	expect(t, b.FreeOn(closed), ErrStaleHandle)
	must(t, b.Free())

	must(t, p.Close())
	must(t, p.Close())
	for number, call := range []func() error{
		func() error { _, err := p.Alloc(64, nil); return err },
		func() error { _, err := p.AllocAligned(64, 64, nil); return err },
		func() error { _, _, err := p.TryAlloc(64, 0, nil); return err },
		func() error { _, err := p.AllocNative(64, 0); return err },
		func() error { _, err := p.AllocBatch([]uint64{64}, nil); return err },
		func() error { _, err := p.Malloc(64, nil); return err },
		func() error { _, err := p.Info(); return err },
		func() error { _, err := p.Classes(); return err },
		func() error { _, err := p.Trim(0); return err },
		p.ResetPeaks,
		func() error { return p.SetCallback(func(uint64) bool { return false }) },
	} {
		if err := call(); !errors.Is(err, ErrStaleHandle) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	var none *Pool
	_, err = none.Alloc(64, nil)
	expect(t, err, ErrInvalidArgument)
	expect(t, none.SetCallback(nil), ErrInvalidArgument)
	must(t, none.Close())
	var nobody *PoolBlock
	must(t, nobody.Free())
	must(t, nobody.FreeOn(nil))
	must(t, nobody.FreeNative(0))
	expect(t, nobody.RecordUse(nil), ErrInvalidArgument)
	if nobody.Bytes() != nil || nobody.DevicePtr() != 0 || nobody.Size() != 0 || nobody.Pool() != nil || none.Device() != nil {
		t.Error("nil has something")
	}
}

func TestAPoolIsClosedBeforeItsBlocks(t *testing.T) {
	d := device(t)
	i := d.Instance()
	p, err := d.NewPool(PoolOptions{})
	must(t, err)
	s := newStream(t, d)
	b, plain := newBlock(t, p, 1000, s), newBlock(t, p, 1000, nil)
	raw, err := p.Malloc(1000, nil)
	must(t, err)
	must(t, p.Close())
	must(t, s.Fill(b.At(0), 1000, 7, 1))
	must(t, s.Synchronize())
	content := make([]byte, 1000)
	must(t, CopyToSlice(i, content, b.At(0)))
	if !filled(content, 7) {
		t.Error("a block of a closed pool cannot be used")
	}
	if info, err := b.Info(); err != nil || !info.PoolClosed {
		t.Errorf("the block is %+v (%v)", info, err)
	}
	must(t, b.Free())
	must(t, b.Free())
	p.done.Store(false) // While another goroutine closes it, only the library knows.
	must(t, plain.Free())
	p.done.Store(true)
	must(t, i.FreeBlock(raw, nil))
}

func TestPoolsEndWithTheirInstance(t *testing.T) {
	i, err := Open(Options{Backend: testBackend(t)})
	must(t, err)
	d, err := i.Device(0)
	must(t, err)
	p, err := d.NewPool(PoolOptions{})
	must(t, err)
	b := newBlock(t, p, 64, nil)
	must(t, p.SetCallback(func(uint64) bool { return false }))
	expect(t, i.Close(), ErrBusy)
	_, err = i.CloseForce()
	must(t, err)
	must(t, b.Free())
	must(t, p.Close())
	if len(poolCallbacks.all) != 0 {
		t.Errorf("%d callbacks are left", len(poolCallbacks.all))
	}
}

func TestViewsOfBlocks(t *testing.T) {
	d := device(t)
	for _, kind := range []Kind{KindPinned, KindPageable, KindManaged} {
		p := newPool(t, d, PoolOptions{Kind: kind})
		b := newBlock(t, p, 100, nil)
		must(t, b.View(func(bytes []byte) error {
			for index := range bytes {
				bytes[index] = 'v'
			}
			if len(bytes) != 100 {
				t.Errorf("%v: the view has %d bytes", kind, len(bytes))
			}
			if text := expect(t, b.Free(), ErrBusy).Message; strings.Contains(text, "Close") {
				t.Error(text)
			}
			expect(t, p.FreeBatch([]*PoolBlock{b}, nil), ErrBusy)
			return nil
		}))
		content := make([]byte, 100)
		must(t, CopyToSlice(d.Instance(), content, b.At(0)))
		if !filled(content, 'v') {
			t.Errorf("%v: the block has %q", kind, content)
		}
		if slice := b.Bytes(); (kind == KindManaged) != (slice == nil) || slice != nil && !filled(slice, 'v') {
			t.Errorf("%v: the slice is %q", kind, slice)
		}
		if kind != KindPageable && b.DevicePtr() == 0 {
			t.Errorf("%v: there is no address for devices", kind)
		}
		must(t, b.Free())
		expect(t, b.View(func([]byte) error { return nil }), ErrStaleHandle)
		if b.Bytes() != nil || b.DevicePtr() != 0 {
			t.Errorf("%v: freed it has something", kind)
		}
	}
	b := newBlock(t, newPool(t, d, PoolOptions{}), 100, nil)
	expect(t, b.View(func([]byte) error { return nil }), ErrWrongKind)
	if b.Bytes() != nil || b.DevicePtr() != DevicePtr(b.At(0).Number()) {
		t.Error("device memory has a slice, or another address")
	}
	must(t, b.Free())
}

func TestWhatAPoolKeeps(t *testing.T) {
	d := device(t)
	p := newPool(t, d, PoolOptions{})
	var blocks []*PoolBlock
	for n := 0; n < 100; n++ {
		blocks = append(blocks, newBlock(t, p, 10_000, nil))
	}
	classes, err := p.Classes()
	must(t, err)
	live, cut := uint64(0), uint64(0)
	for index, class := range classes {
		live += class.LiveCount
		cut += class.CutCount
		if class.BlockSize == 0 || index > 0 && class.BlockSize <= classes[index-1].BlockSize || class.BlockCount < class.LiveCount ||
			class.CutCount < class.BlockCount {
			t.Errorf("class %d is %+v", index, class)
		}
	}
	if live != 100 || cut < 100 || poolInfo(t, p).CutCount != cut {
		t.Errorf("in the classes %d blocks live, and %d were cut", live, cut)
	}
	for _, b := range blocks {
		must(t, b.Free())
	}
	full := poolInfo(t, p)
	if full.ReservedBytes < 1_000_000 || full.PeakReservedBytes < full.ReservedBytes || full.PeakLiveCount == 0 {
		t.Errorf("full it is %+v", full)
	}
	released, err := p.Trim(0)
	must(t, err)
	empty := poolInfo(t, p)
	if released != full.ReservedBytes-empty.ReservedBytes || empty.ReservedBytes != 0 || empty.ReleaseCount == 0 {
		t.Errorf("%d bytes were released, and it is %+v", released, empty)
	}
	must(t, p.ResetPeaks())
	if info := poolInfo(t, p); info.PeakReservedBytes != 0 || info.PeakLiveBytes != 0 {
		t.Errorf("after the reset it is %+v", info)
	}
}

func TestCallbacksOfPools(t *testing.T) {
	const size = 8 << 20
	d := device(t)
	p := newPool(t, d, PoolOptions{Limit: 3 * size / 2})
	kept := newBlock(t, p, size, nil)
	_, err := p.Alloc(size, nil)
	expect(t, err, ErrLimitExceeded)

	// It frees what is in the way.
	asked := uint64(0)
	must(t, p.SetCallback(func(lacking uint64) bool {
		asked = lacking
		return kept.Free() == nil
	}))
	b := newBlock(t, p, size, nil)
	if asked == 0 || !kept.closed() {
		t.Errorf("it was asked for %d bytes", asked)
	}

	// It has nothing to free. What it allocates itself does not call it again.
	calls := 0
	must(t, p.SetCallback(func(uint64) bool {
		calls++
		_, err := p.Alloc(size, nil)
		expect(t, err, ErrLimitExceeded)
		_, err = p.AllocBatch([]uint64{size}, nil)
		expect(t, err, ErrLimitExceeded)
		expect(t, p.Close(), ErrInvalidState)
		_, err = p.Trim(0)
		expect(t, err, ErrInvalidState)
		expect(t, p.SetCallback(nil), ErrInvalidState)
		return false
	}))
	for _, call := range []func() error{
		func() error { _, err := p.Alloc(size, nil); return err },
		func() error { _, err := p.AllocAligned(size, 4096, nil); return err },
		func() error { _, err := p.AllocNative(size, 0); return err },
		func() error { _, err := p.AllocBatch([]uint64{size}, nil); return err },
		func() error { _, err := p.Malloc(size, nil); return err },
	} {
		expect(t, call(), ErrLimitExceeded)
	}
	if calls != 5 {
		t.Errorf("it was called %d times", calls)
	}

	// A panic and Goexit go on in the goroutine that allocates, and the pool works on.
	for _, call := range []func(){
		func() { _, _ = p.Alloc(size, nil) }, func() { _, _ = p.AllocBatch([]uint64{size}, nil) }, func() { _, _ = p.Malloc(size, nil) },
	} {
		must(t, p.SetCallback(func(uint64) bool { panic("nothing is left") }))
		if value := panicOf(call); value != "nothing is left" {
			t.Errorf("the panic is %v", value)
		}
		must(t, p.SetCallback(func(uint64) bool { runtime.Goexit(); return true }))
		ended := make(chan bool)
		go func() {
			defer func() { ended <- recover() == nil }()
			call()
			t.Error("the goroutine goes on")
		}()
		if !<-ended {
			t.Error("Goexit became a panic")
		}
	}
	must(t, b.Free())
	must(t, newBlock(t, p, size, nil).Free())
	if asides.Load() != 0 || len(unwounds.all) != 0 {
		t.Errorf("%d functions still run, and %d ends are left", asides.Load(), len(unwounds.all))
	}

	must(t, p.SetCallback(nil))
	_, err = p.Alloc(2*size, nil)
	expect(t, err, ErrLimitExceeded)
	if len(poolCallbacks.all) != 0 {
		t.Errorf("%d callbacks are left", len(poolCallbacks.all))
	}
}

func TestManyGoroutinesShareAPool(t *testing.T) {
	const workers, rounds = 8, 300
	d := device(t)
	p := newPool(t, d, PoolOptions{Kind: KindPageable})
	passed := make(chan *PoolBlock, 64)
	var freeing, working sync.WaitGroup
	for n := 0; n < 2; n++ {
		freeing.Add(1)
		go func() {
			defer freeing.Done()
			for b := range passed {
				if err := b.Free(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for n := 0; n < workers; n++ {
		working.Add(1)
		go func(mark byte) {
			defer working.Done()
			for round := 0; round < rounds; round++ {
				b, err := p.Alloc(uint64(1+round*37%5000), nil)
				if err != nil {
					t.Error(err)
					return
				}
				for index := range b.Bytes() {
					b.Bytes()[index] = mark
				}
				runtime.Gosched()
				if !filled(b.Bytes(), mark) {
					t.Error("two have the same block")
				}
				if round%3 == 0 {
					passed <- b
				} else if err := b.Free(); err != nil {
					t.Error(err)
				}
			}
		}(byte(n + 1))
	}
	working.Wait()
	close(passed)
	freeing.Wait()
	if info := poolInfo(t, p); info.LiveCount != 0 || info.TotalCount != workers*rounds {
		t.Errorf("afterwards it is %+v", info)
	}
	// Only one of many frees a block.
	b := newBlock(t, p, 64, nil)
	var all sync.WaitGroup
	for n := 0; n < workers; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := b.Free(); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	if info := poolInfo(t, p); info.LiveCount != 0 {
		t.Errorf("afterwards it is %+v", info)
	}
}

func TestBlocksAndPoolsThatAreDropped(t *testing.T) {
	d := device(t)
	i := d.Instance()
	kept := newPool(t, d, PoolOptions{})
	since := settle(t)
	func() {
		p, err := d.NewPool(PoolOptions{})
		must(t, err)
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		b := newBlock(t, p, 1000, s)
		must(t, s.Fill(b.At(0), 1000, 1, 1))
		newBlock(t, kept, 1000, nil)
	}()
	collectUntil(t, "freed", since.is(4, 0))
	since.exactly(t, 4, 0)
	if live := poolInfo(t, kept).LiveCount; live != 0 {
		t.Errorf("%d blocks live", live)
	}

	since = settle(t)
	number := func() uint64 { return newBlock(t, kept, 1000, nil).At(0).Number() }()
	collectUntil(t, "kept", since.is(0, 1))
	since.exactly(t, 0, 1)
	must(t, i.FreeBlock(RawAddress(number), nil))
}

// A View keeps its bytes, also from who frees them by a number.
func TestWhatAnObjectOwnsIsNotFreedByNumber(t *testing.T) {
	d := device(t)
	i := d.Instance()
	owners := func() int {
		count := 0
		for _, set := range []*owned{&ownedMemory, &ownedBlocks} {
			for index := range set.shards {
				set.shards[index].mutex.Lock()
				for key := range set.shards[index].all {
					if key.instance == i.handle {
						count++
					}
				}
				set.shards[index].mutex.Unlock()
			}
		}
		return count
	}
	pinned, there := newPinned[byte](t, d, 4096), newMemory(t, d, KindDevice, 4096)
	must(t, pinned.View(func(bytes []byte) error {
		expect(t, i.Free(RawAddress(pinned.At(0).Number())), ErrInvalidArgument)
		expect(t, i.Free(pinned.DevicePtr().At(0)), ErrInvalidArgument)
		bytes[4095] = 1
		return nil
	}))
	expect(t, i.Free(there.DevicePtr().At(0)), ErrInvalidArgument)
	below := newPageable[byte](t, 4096)
	registered, err := below.Register(d, RegisterOptions{})
	must(t, err)
	expect(t, i.Unregister(RawAddress(below.At(0).Number())), ErrInvalidArgument)
	must(t, registered.Close())

	p := newPool(t, d, PoolOptions{Kind: KindPinned})
	b := newBlock(t, p, 64, nil)
	must(t, b.View(func(bytes []byte) error {
		number := RawAddress(b.At(0).Number())
		expect(t, p.Free(number, nil), ErrInvalidArgument)
		expect(t, i.FreeBlock(number, nil), ErrInvalidArgument)
		if other := newBlock(t, p, 64, nil); other.At(0).Number() == b.At(0).Number() {
			t.Error("another block has the bytes")
		} else {
			must(t, other.Free())
		}
		return nil
	}))

	// The same address is free for others afterwards, whoever frees it, and failed frees change nothing.
	for round := 0; round < 100; round++ {
		number, err := p.Malloc(64, nil)
		must(t, err)
		must(t, i.FreeBlock(number, nil))
		blocks, err := p.AllocBatch([]uint64{64, 64, 0}, nil)
		must(t, err)
		must(t, p.FreeBatch(blocks, nil))
		number, err = d.Malloc(KindPinned, 4096)
		must(t, err)
		must(t, i.Free(number))
		must(t, newMemory(t, d, KindPinned, 4096).Close())
	}
	must(t, p.Free(RawAddress(0), nil))
	must(t, i.Free(RawAddress(0)))
	must(t, b.Free())
	must(t, pinned.Close())
	must(t, there.Close())
	if left := owners(); left != 0 {
		t.Errorf("%d addresses are left", left)
	}
	newMemory(t, d, KindPinned, 4096)
	_, err = i.CloseForce()
	must(t, err)
	if left := owners(); left != 0 {
		t.Errorf("%d addresses are left after CloseForce", left)
	}
}

func TestMessagesOfPools(t *testing.T) {
	d := device(t)
	p := newPool(t, d, PoolOptions{})
	_, err := p.Alloc(math.MaxUint64, nil)
	if text := expect(t, err, ErrInvalidArgument).Error(); !strings.HasPrefix(text, "Pool.Alloc: ") {
		t.Error(text)
	}
	_, err = d.NewPool(PoolOptions{Flags: 1 << 40})
	if detail := expect(t, err, ErrInvalidArgument); strings.Contains(detail.Message, "GPUMEM_") || !strings.HasPrefix(detail.Error(), "Device.NewPool: ") {
		t.Error(detail)
	}
	b := newBlock(t, newPool(t, d, PoolOptions{Kind: KindPinned, Name: "ours"}), 100, nil)
	var none *Pool
	var nobody *PoolBlock
	for text, pattern := range map[string]string{
		b.Pool().String(): `^Pool{"ours" KindPinned, 1 blocks in \d+ bytes, device 0}$`,
		b.String():        `^PoolBlock{KindPinned, 100 bytes at 0x[0-9a-f]+}$`,
		none.String():     `^Pool\(nil\)$`,
		nobody.String():   `^PoolBlock\(nil\)$`,
		PoolOptions{Kind: KindPinned, Limit: 5}.String():    `^PoolOptions{Kind: KindPinned, Limit: 5}$`,
		BlockInfo{UsableSize: 5, PoolClosed: true}.String(): `^BlockInfo{UsableSize: 5, PoolClosed: true}$`,
		PoolInfo{LiveCount: 2, Flags: PoolDebug}.String():   `^PoolInfo{Flags: PoolDebug, LiveCount: 2}$`,
	} {
		if !regexp.MustCompile(pattern).MatchString(text) {
			t.Errorf("%s is not %s", text, pattern)
		}
	}
	must(t, b.Free())
	if b.String() != "PoolBlock{freed}" {
		t.Error(b)
	}
	if text := (PoolAllowInternalDependencies | PoolDebug).String(); text != "PoolAllowInternalDependencies|PoolDebug" {
		t.Error(text)
	}
}

func TestABlockThatWasWrittenPastItsEnd(t *testing.T) {
	d := device(t)
	i := d.Instance()
	p, err := d.NewPool(PoolOptions{Kind: KindPageable, Flags: PoolDebug})
	must(t, err)
	b := newBlock(t, p, 100, nil)
	must(t, i.Fill(RawAddress(b.At(0).Number()), 101, 1, 1))
	text := expect(t, b.Free(), ErrInvalidArgument).Message
	if !strings.Contains(text, "overwritten") || !strings.HasSuffix(text, "closed with Instance.CloseForce") {
		t.Error(text)
	}
	_, err = i.CloseForce()
	must(t, err)
}

func TestTheReportNamesTheFunctionsOfThisPackage(t *testing.T) {
	d := device(t)
	p, err := d.NewPool(PoolOptions{})
	must(t, err)
	b, err := p.Alloc(100, nil)
	must(t, err)
	must(t, p.Close())
	report, err := d.Instance().Report()
	must(t, err)
	if !strings.Contains(report, "Instance.FreeBlock frees them") || strings.Contains(report, "gpumem_") || strings.Contains(report, "destroyed") {
		t.Error(report)
	}
	must(t, b.Free())
}
