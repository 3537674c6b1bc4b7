// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// expectRegion checks that a batch failed with a status, and at which region.
func expectRegion(t testing.TB, err error, index int, status Status) {
	t.Helper()
	var failed *RegionError
	if !errors.As(err, &failed) || failed.Index != index {
		t.Fatalf("expected region %d to fail, got %v", index, err)
	}
	expect(t, err, status)
}

// expectWhole checks that a batch failed with a status, and not at one region.
func expectWhole(t testing.TB, err error, status Status) {
	t.Helper()
	var failed *RegionError
	if errors.As(err, &failed) {
		t.Fatalf("region %d failed: %v", failed.Index, err)
	}
	expect(t, err, status)
}

func numbered(size int) []byte {
	content := make([]byte, size)
	for n := range content {
		content[n] = byte(n*7 + n>>8)
	}
	return content
}

// A box of 2 slices, 3 rows and 5 bytes goes from a buffer to device memory and back to pinned memory, each with pitches
// of its own.
func TestCopyRegions(t *testing.T) {
	d := device(t)
	i := d.Instance()
	s := newStream(t, d)
	from, to := newPageable[byte](t, 4096), newPinned[byte](t, d, 4096)
	m := newMemory(t, d, KindDevice, 4096)
	copy(from.Slice(), numbered(4096))
	box := func(destination, source Operand) Region {
		return Region{Destination: destination, Source: source, Width: 5, Height: 3, Depth: 2}
	}
	there := Operand{Address: m.At(40), RowPitch: 8, SlicePitch: 100}
	out := box(there, Operand{Address: from.At(17), RowPitch: 16, SlicePitch: 64})
	back := box(Operand{Address: to.At(1)}, there) // Dense.
	want := make([]byte, 4096)
	for n := 0; n < 30; n++ {
		want[1+n] = from.Slice()[17+n/15*64+n/5%3*16+n%5]
	}
	for name, copyRegions := range map[string]func([]Region) error{"instance": i.CopyRegions,
		"stream": func(regions []Region) error {
			if err := s.CopyRegions(regions); err != nil {
				return err
			}
			return s.Synchronize()
		}} {
		must(t, i.Fill(to.At(0), 4096, 0, 1))
		must(t, i.Fill(m.At(0), 4096, 0xEE, 1))
		must(t, copyRegions([]Region{out}))
		must(t, copyRegions([]Region{back}))
		if !bytes.Equal(to.Slice(), want) {
			t.Errorf("%s: the box became %x", name, to.Slice()[:48])
		}
		// Bytes between the rows stay as they were.
		rows := make([]byte, 8)
		must(t, CopyToSlice(i, rows, m.At(45)))
		if !bytes.Equal(rows[:3], []byte{0xEE, 0xEE, 0xEE}) || rows[3] != from.Slice()[33] {
			t.Errorf("%s: between the rows there is %x", name, rows)
		}
	}
}

func TestABatchOfRegions(t *testing.T) {
	d := device(t)
	i := d.Instance()
	s := newStream(t, d)
	p := newPinned[byte](t, d, 4096)
	m := newMemory(t, d, KindDevice, 4096)
	gone, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
	must(t, err)
	must(t, gone.Close())
	content := numbered(4096)
	copy(p.Slice(), content)
	// 64 pieces in reverse order, by objects and by numbers in turn.
	regions := []Region{{Destination: Operand{Address: gone.At(0)}}} // Without bytes, so it is ignored.
	for n := 0; n < 64; n++ {
		destination := m.At(uint64(63-n) * 64)
		if n%2 != 0 {
			destination = RawAddress(destination.Number())
		}
		regions = append(regions, Region{Destination: Operand{Address: destination},
			Source: Operand{Address: p.At(uint64(n) * 64)}, Width: 64, CopyOptions: CopyOptions{DirectionHostToDevice, SourceOrderAny}})
	}
	must(t, s.CopyRegions(regions))
	must(t, s.Synchronize())
	got := make([]byte, 4096)
	must(t, CopyToSlice(i, got, m.At(0)))
	for n := 0; n < 64; n++ {
		if !bytes.Equal(got[(63-n)*64:(64-n)*64], content[n*64:(n+1)*64]) {
			t.Fatalf("piece %d did not arrive", n)
		}
	}
	must(t, i.CopyRegions(nil))
	must(t, s.CopyRegions([]Region{}))
}

// If one region is refused, nothing is copied, and the error has its index.
func TestTheRegionThatFails(t *testing.T) {
	d := device(t)
	i, other := d.Instance(), device(t)
	s := newStream(t, d)
	p := newPinned[byte](t, d, 4096)
	m, foreign := newMemory(t, d, KindDevice, 4096), newMemory(t, other, KindDevice, 64)
	must(t, i.Fill(m.At(0), 4096, 0, 1))
	must(t, i.Fill(p.At(0), 4096, 1, 1))
	gone, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
	must(t, err)
	must(t, gone.Close())
	good := Region{Destination: Operand{Address: m.At(0)}, Source: Operand{Address: p.At(0)}, Width: 64}
	with := func(change func(*Region)) Region {
		region := good
		region.Destination.Address = m.At(128)
		change(&region)
		return region
	}
	for name, bad := range map[string]struct {
		region Region
		status Status
	}{
		"no address":         {with(func(r *Region) { r.Source.Address = Address{} }), ErrInvalidArgument},
		"too long":           {with(func(r *Region) { r.Width = 4096 }), ErrInvalidArgument},
		"too many rows":      {with(func(r *Region) { r.Height = 64 }), ErrInvalidArgument},
		"too many slices":    {with(func(r *Region) { r.Depth = 1 << 63 }), ErrInvalidArgument},
		"a small pitch":      {with(func(r *Region) { r.Height, r.Source.RowPitch = 2, 63 }), ErrInvalidArgument},
		"a small slice":      {with(func(r *Region) { r.Depth, r.Source.SlicePitch = 2, 63 }), ErrInvalidArgument},
		"a wrong direction":  {with(func(r *Region) { r.Direction = DirectionDeviceToHost }), ErrInvalidArgument},
		"an unknown order":   {with(func(r *Region) { r.SourceOrder = 99 }), ErrInvalidArgument},
		"another instance":   {with(func(r *Region) { r.Source.Address = foreign.At(0) }), ErrInvalidArgument},
		"outside its object": {with(func(r *Region) { r.Source.Address = p.At(5000) }), ErrInvalidArgument},
		"closed memory":      {with(func(r *Region) { r.Source.Address = gone.At(0) }), ErrStaleHandle},
		"nothing there":      {with(func(r *Region) { r.Source.Address = RawAddress(4096) }), ErrNotFound},
	} {
		for _, copier := range []copier{i, s} {
			err := copier.CopyRegions([]Region{good, bad.region, good})
			var failed *RegionError
			if !errors.As(err, &failed) || failed.Index != 1 || !errors.Is(err, bad.status) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	must(t, s.Synchronize())
	got := make([]byte, 4096)
	must(t, CopyToSlice(i, got, m.At(0)))
	if !bytes.Equal(got, make([]byte, 4096)) {
		t.Error("a batch with a bad region was copied in part")
	}
	// A refused batch leaves its memory free to be closed.
	must(t, p.Close())
	must(t, m.Close())
	must(t, s.Close())
	expectWhole(t, s.CopyRegions([]Region{{}}), ErrStaleHandle)
}

// A missing entry point is found while the batch is checked or while it runs; either way the error has the index.
func TestARegionThatTheBackendRefuses(t *testing.T) {
	onHost(t)
	i, err := Open(Options{Backend: BackendHost, Host: &HostOptions{Masked: "copy_2d"}})
	must(t, err)
	defer func() { must(t, i.Close()) }()
	d, err := i.Device(0)
	must(t, err)
	p, m := newPinned[byte](t, d, 64), newMemory(t, d, KindDevice, 64)
	row := Region{Destination: Operand{Address: m.At(0)}, Source: Operand{Address: p.At(0)}, Width: 4}
	rows := row
	rows.Destination.Address, rows.Height, rows.Source.RowPitch = m.At(32), 2, 8
	must(t, i.CopyRegions([]Region{row}))
	expectRegion(t, i.CopyRegions([]Region{row, rows}), 1, ErrSymbolMissing)
	must(t, m.Close())
	must(t, p.Close())
}

// Memory of a batch that is under way cannot be closed, and is not collected.
func TestMemoryOfRegionsUnderWork(t *testing.T) {
	onHost(t) // Over the driver, freeing too early is not refused.
	d := device(t)
	s := newStream(t, d)
	word := newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	from, to := newPinned[byte](t, d, 64), newMemory(t, d, KindDevice, 64)
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	must(t, s.CopyRegions([]Region{{Destination: Operand{Address: to.At(0)}, Source: Operand{Address: from.At(0)}, Width: 64}}))
	expect(t, from.Close(), ErrBusy)
	expect(t, to.Close(), ErrBusy)
	if s.complete() || to.streams.last.Load().streamWork != s.streamWork || from.streams.last.Load().streamWork != s.streamWork {
		t.Error("the memory does not refer to the stream that works on it")
	}
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	must(t, from.Close())
	must(t, to.Close())
}

// Each copy and fill in both forms.
func TestCopiesAndFillsOfBothForms(t *testing.T) {
	d := device(t)
	i := d.Instance()
	s := newStream(t, d)
	p, m := newPinned[byte](t, d, 64), newMemory(t, d, KindDevice, 64)
	for name, form := range map[string]interface {
		copier
		Copy(destination, source Address, size uint64) error
	}{"instance": i, "stream": s} {
		must(t, form.Fill(m.At(0), 64, 0x11, 1))
		must(t, form.Fill2D(m.At(4), Rectangle{Width: 2, Height: 3, DestinationPitch: 8}, 0x22, 1))
		must(t, form.Copy2D(m.At(32), m.At(4), Rectangle{Width: 2, Height: 2, DestinationPitch: 2, SourcePitch: 8}, CopyOptions{}))
		must(t, form.Copy(p.At(0), m.At(0), 32))
		must(t, form.CopyWith(p.At(32), m.At(32), 32, CopyOptions{Direction: DirectionDeviceToHost}))
		must(t, s.Synchronize())
		want := bytes.Repeat([]byte{0x11}, 64)
		for _, offset := range []int{4, 12, 20, 32, 34} {
			want[offset], want[offset+1] = 0x22, 0x22
		}
		if !bytes.Equal(p.Slice(), want) {
			t.Errorf("%s: %x", name, p.Slice())
		}
	}
}

// The library does not know where these end: what lies behind may be another object, or a message in use.
func TestFillsOfValuesThatDoNotFit(t *testing.T) {
	d := device(t)
	i, s, p := d.Instance(), newStream(t, d), newPinned[byte](t, d, 4)
	for _, form := range []struct {
		value, size uint32
		fits        bool
	}{{255, 1, true}, {256, 1, false}, {65535, 2, true}, {65536, 2, false}, {1<<32 - 1, 4, true}} {
		rectangle := Rectangle{Width: 4, Height: 1, DestinationPitch: 4}
		must(t, i.Fill(p.At(0), 4, 7, 1))
		for name, fill := range map[string]func() error{
			"Instance.Fill":   func() error { return i.Fill(p.At(0), 4, form.value, form.size) },
			"Stream.Fill":     func() error { return s.Fill(p.At(0), 4, form.value, form.size) },
			"Instance.Fill2D": func() error { return i.Fill2D(p.At(0), rectangle, form.value, form.size) },
			"Stream.Fill2D":   func() error { return s.Fill2D(p.At(0), rectangle, form.value, form.size) },
		} {
			err := fill()
			must(t, s.Synchronize())
			if form.fits {
				must(t, err)
			} else if text := expect(t, err, ErrInvalidArgument).Error(); !strings.HasPrefix(text, name+": the value ") {
				t.Error(text)
			} else if !filled(p.Slice(), 7) {
				t.Errorf("%s has filled the memory", name)
			}
		}
	}
}

func TestCopiesAndFillsEndInsideTheirObject(t *testing.T) {
	const size = 1000
	d := device(t)
	i, s := d.Instance(), newStream(t, d)
	other := newMemory(t, d, KindDevice, 2*size)
	p := newPageable[byte](t, size)
	pool := newPool(t, d, PoolOptions{Kind: KindPageable})
	block, behind := newBlock(t, pool, size, nil), newBlock(t, pool, size, nil)
	defer func() {
		must(t, block.Free())
		must(t, behind.Free())
	}()
	info, err := block.Info()
	must(t, err)
	for name, one := range map[string]struct {
		at  func(uint64) Address
		end uint64
	}{
		"pageable":             {p.At, size},
		"span":                 {p.Span().Address().Add, size},
		"block":                {block.At, info.UsableSize},
		"block behind a block": {behind.At, info.UsableSize},
	} {
		at, end := one.at, one.end
		calls := func(more uint64) []error {
			rows := Rectangle{Width: 10, Height: 2, DestinationPitch: end - 10 + more, SourcePitch: end - 10 + more}
			into := Region{Destination: Operand{Address: at(0), RowPitch: end - 10 + more}, Source: Operand{Address: other.At(0)}, Width: 10, Height: 2}
			from := Region{Destination: Operand{Address: other.At(0)}, Source: Operand{Address: at(0), SlicePitch: end - 10 + more}, Width: 10, Depth: 2}
			bytes := make([]byte, end-8+more)
			return []error{
				i.Fill(at(0), end+more, 1, 1), s.Fill(at(8), end-8+more, 1, 1), Fill[byte](s, SpanOf[byte](at(0), int(end+more)), 1),
				i.Fill2D(at(0), rows, 1, 1), s.Fill2D(at(0), rows, 1, 1),
				i.Copy(at(0), other.At(0), end+more), i.Copy(other.At(0), at(0), end+more),
				s.Copy(at(0), other.At(0), end+more), s.Copy(other.At(0), at(0), end+more),
				i.Copy2D(at(0), other.At(0), rows, CopyOptions{}), s.Copy2D(other.At(0), at(0), rows, CopyOptions{}),
				i.CopyRegions([]Region{into}), s.CopyRegions([]Region{from}),
				CopyFromSlice(i, at(8), bytes), CopyFromSliceAsync(s, at(8), bytes), CopyToSlice(i, bytes, at(8)),
			}
		}
		for number, err := range calls(1) {
			if !errors.Is(err, ErrInvalidArgument) {
				t.Errorf("%s: a call with one byte too many, number %d: %v", name, number, err)
			}
		}
		complete, err := s.Query()
		if err != nil || !complete {
			t.Errorf("%s: work was enqueued (%v)", name, err)
		}
		for number, err := range calls(0) {
			if err != nil {
				t.Errorf("%s: number %d: %v", name, number, err)
			}
		}
		must(t, s.Synchronize())
	}
}
