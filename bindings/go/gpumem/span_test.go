// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func newBuffer[T any](t testing.TB, d *Device, length int, options BufferOptions) *Buffer[T] {
	t.Helper()
	b, err := NewBuffer[T](d, length, options)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

// valuesOf copies all values of a span to Go.
func valuesOf[T any](t testing.TB, i *Instance, span Span[T]) []T {
	t.Helper()
	values := make([]T, span.Len())
	must(t, CopyToSlice(i, values, span.Address()))
	return values
}

func expectValues[T any](t testing.TB, i *Instance, span Span[T], expected ...T) {
	t.Helper()
	if values := valuesOf(t, i, span); !reflect.DeepEqual(values, expected) {
		t.Errorf("there is %v instead of %v", values, expected)
	}
}

func TestCopiesOfValues(t *testing.T) {
	d := device(t)
	i, s := d.Instance(), newStream(t, d)
	there, err := NewDeviceMemory[uint32](d, 4, MemoryOptions{})
	must(t, err)
	here, plain := newPinned[uint32](t, d, 4), newPageable[uint32](t, 6)
	if there.Len() != 4 || there.Size() != 16 || there.Span().Len() != 4 {
		t.Errorf("it has %d values, %d bytes", there.Len(), there.Size())
	}
	copy(here.Slice(), []uint32{1, 2, 3, 0x04030201})
	must(t, Copy[uint32](i, there.Span(), here.Span())) // All of it, not as many bytes.
	expectValues(t, i, there.Span(), 1, 2, 3, 0x04030201)
	must(t, Copy[uint32](s, plain.Span().Part(1, 5), there.Span()))
	must(t, Copy[uint32](s, there.Span().Part(0, 1), plain.Span().Part(1, 6).Part(2, 3)))
	must(t, s.Synchronize())
	expectValues(t, i, plain.Span(), 0, 1, 2, 3, 0x04030201, 0)
	expectValues(t, i, there.Span(), 3, 2, 3, 0x04030201)
	must(t, Copy[uint32](i, there.Span().Part(4, 4), plain.Span().Part(0, 0)))
	must(t, Copy(i, SpanOf[uint16](there.At(0), 2), SpanOf[uint16](plain.At(16), 2))) // Memory without a type.
	expectValues(t, i, there.Span().Part(0, 1), 0x04030201)

	whole := there.Span()
	for number, part := range []Span[uint32]{whole.Part(-1, 1), whole.Part(3, 2), whole.Part(0, 5), whole.Part(0, 2).Part(1, 3),
		whole.Part(0, 5).Part(0, 1), SpanOf[uint32](there.At(0), 5), SpanOf[uint32](there.At(0), -1)} {
		expect(t, Copy[uint32](i, part, SpanOf[uint32](plain.At(0), part.length)), ErrInvalidArgument)
		expect(t, Fill[uint32](s, part, 7), ErrInvalidArgument)
		if part.Len() > 5 || part.Len() < 0 {
			t.Errorf("number %d has %d values", number, part.Len())
		}
	}
	expect(t, Copy[uint32](i, whole, plain.Span()), ErrInvalidArgument)
	expect(t, Copy[uint32](i, whole, plain.Span().Part(2, 7)), ErrInvalidArgument)
	expect(t, Copy[uint32](nil, whole, whole), ErrInvalidArgument)
	expect(t, Copy(i, SpanOf[*int](there.At(0), 1), SpanOf[*int](plain.At(0), 1)), ErrInvalidArgument)
	expectValues(t, i, whole, 0x04030201, 2, 3, 0x04030201)
	must(t, there.Close())
	expect(t, Copy[uint32](i, whole, here.Span()), ErrStaleHandle)
	if there.At(0); there.Close() != nil {
		t.Error("closed twice it fails")
	}
}

type three struct{ x, y, z int16 }

func TestFillsOfValues(t *testing.T) {
	d := device(t)
	i, s := d.Instance(), newStream(t, d)
	filled := func(place Place, name string, fill func(at Address) error, expected []byte) {
		t.Helper()
		m := newMemory(t, d, KindDevice, uint64(len(expected))+2)
		must(t, i.Fill(m.At(0), m.Size(), '-', 1))
		must(t, fill(m.At(1)))
		must(t, s.Synchronize())
		want := append(append([]byte{'-'}, expected...), '-')
		if values := valuesOf(t, i, SpanOf[byte](m.At(0), len(want))); !reflect.DeepEqual(values, want) {
			t.Errorf("%s: %v instead of %v", name, values, want)
		}
	}
	for _, place := range []Place{i, s} {
		filled(place, "bytes", func(at Address) error { return Fill(place, SpanOf[byte](at, 3), 9) }, []byte{9, 9, 9})
		filled(place, "zeroes", func(at Address) error { return Fill(place, SpanOf[float64](at, 2), 0) }, make([]byte, 16))
		filled(place, "repeated", func(at Address) error { return Fill(place, SpanOf[[3]byte](at, 2), [3]byte{5, 5, 5}) },
			[]byte{5, 5, 5, 5, 5, 5})
		filled(place, "structs", func(at Address) error { return Fill(place, SpanOf[three](at, 5), three{1, 2, 3}) },
			[]byte{1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0})
		numbers := newPinned[int16](t, d, 5)
		must(t, Fill[int16](place, numbers.Span().Part(1, 4), -2))
		words := newPinned[float32](t, d, 3)
		must(t, Fill[float32](place, words.Span(), 1.5))
		large := newPinned[float64](t, d, 1000)
		must(t, Fill(place, large.Span().Part(0, 999), math.Pi))
		must(t, s.Synchronize())
		expectValues(t, i, numbers.Span(), 0, -2, -2, -2, 0)
		expectValues(t, i, words.Span(), 1.5, 1.5, 1.5)
		for index, value := range large.Slice() {
			if (value == math.Pi) != (index < 999) {
				t.Fatalf("value %d is %v", index, value)
			}
		}
		must(t, Fill(place, large.Span().Part(7, 7), 1))
	}
	expect(t, Fill(nil, SpanOf[byte](RawAddress(1), 1), 1), ErrInvalidArgument)
	expect(t, Fill[float64](i, Span[float64]{}.Part(0, 1), 1), ErrInvalidArgument)
}

// Values of more than 4 bytes are copied again and again, but not before all of them are known to fit.
func TestAFillThatDoesNotFitChangesNothing(t *testing.T) {
	d, unit := rangeDevice(t)
	i, s := d.Instance(), newStream(t, d)
	m := newMemory(t, d, KindDevice, 4000)
	b := newBuffer[uint64](t, d, 1, BufferOptions{Reserve: 1 << 30})
	info, err := b.Info()
	must(t, err)
	r := newRange(t, i, 3*unit)
	for _, offset := range []uint64{0, 2 * unit} { // With a hole between them.
		must(t, r.Map(offset, newPhysical(t, d, PhysicalOptions{Size: unit})))
		must(t, r.SetAccess(offset, unit, onDevice(0)))
	}
	block := newBlock(t, newPool(t, d, PoolOptions{}), 4096, nil)
	for name, one := range map[string]struct {
		at   Address
		size uint64 // Of the memory there.
		more uint64 // Bytes that are filled.
	}{
		"memory":   {m.At(0), 4000, 4008},
		"a part":   {m.At(80), 3920, 3928},
		"a number": {RawAddress(m.address), 4000, 4008},
		"a block":  {block.At(0), 4096, 4104},
		"a buffer": {b.At(0), info.Capacity, info.Capacity + 8},
		"a range":  {r.At(0), unit, 3 * unit},
	} {
		content, zero := make([]byte, one.size), make([]byte, one.size)
		for _, place := range []Place{i, s} {
			must(t, i.Fill(one.at, one.size, 0, 1))
			err := Fill[[8]byte](place, SpanOf[[8]byte](one.at, int(one.more/8)), [8]byte{1, 2, 3})
			if err == nil || !strings.HasPrefix(err.Error(), "gpumem.Fill: ") ||
				errors.Is(err, ErrInvalidArgument) && !strings.Contains(err.Error(), fmt.Sprintf(" %d bytes", one.more)) {
				t.Errorf("%s: %v", name, err)
			}
			must(t, s.Synchronize())
			must(t, CopyToSlice(i, content, one.at))
			if !bytes.Equal(content, zero) {
				t.Errorf("%s: a fill that failed has changed it", name)
			}
			must(t, Fill[[8]byte](place, SpanOf[[8]byte](one.at, int(one.size/8)), [8]byte{1, 2, 3}))
			must(t, s.Synchronize())
			must(t, CopyToSlice(i, content, one.at))
			if !bytes.Equal(content, bytes.Repeat([]byte{1, 2, 3, 0, 0, 0, 0, 0}, int(one.size/8))) {
				t.Errorf("%s: a fill has changed only a part", name)
			}
		}
	}
	must(t, block.Free())
}

func TestABufferOfValuesGrows(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	b := newBuffer[int32](t, d, 0, BufferOptions{Reserve: 4 * unit, Size: 99, Name: "ids"})
	must(t, b.Append())
	must(t, b.Append(1, 2, 3))
	must(t, b.Append([]int32{4, 5}...))
	if b.Len() != 5 || b.Size() != 20 {
		t.Errorf("it has %d values, %d bytes", b.Len(), b.Size())
	}
	expectValues(t, i, b.Span(), 1, 2, 3, 4, 5)
	must(t, b.Resize(int(unit/4)+1))
	if b.Len() != int(unit/4)+1 {
		t.Errorf("it has %d values", b.Len())
	}
	must(t, b.Append(6)) // Behind the seam of two blocks.
	expectValues(t, i, b.Span().Part(b.Len()-1, b.Len()), 6)
	must(t, b.SetCapacity(int(3*unit/4)))
	if info := infoOf(t, b.GrowableBuffer()); info.Capacity != 3*unit {
		t.Errorf("the capacity is %d", info.Capacity)
	}
	must(t, b.SetAhead(int(unit/4)))
	if info := infoOf(t, b.GrowableBuffer()); info.Ahead != unit {
		t.Errorf("ahead are %d", info.Ahead)
	}
	must(t, b.SetAhead(0))

	length := b.Len()
	for number, err := range []error{b.Resize(-1), b.SetCapacity(-1), b.SetAhead(math.MaxInt), b.Append(make([]int32, unit)...)} {
		if err == nil || b.Len() != length {
			t.Errorf("number %d: %v, %d values", number, err, b.Len())
		}
	}
	if _, err := b.Slice(); err == nil {
		t.Error("the CPU has a slice of device memory")
	}
	_, pointers := NewBuffer[*int](d, 1, BufferOptions{})
	expect(t, pointers, ErrInvalidArgument)
	expect(t, (*Buffer[int])(nil).Append(1), ErrInvalidArgument)
	expect(t, (&Buffer[int]{}).View(nil), ErrInvalidArgument)
}

func TestAppendOfTheBufferItself(t *testing.T) {
	d, unit := rangeDevice(t)
	length := int(unit / 4)
	b := newBuffer[int32](t, d, length, BufferOptions{Location: LocationHost, Reserve: unit, Flags: BufferMovable})
	own, err := b.Slice()
	must(t, err)
	for i := range own {
		own[i] = int32(i)
	}
	before := b.DevicePtr()
	must(t, b.Append(own[1:]...))
	if b.DevicePtr() == before {
		t.Error("the buffer has not moved, so nothing was tested")
	}
	own, err = b.Slice()
	must(t, err)
	for i, value := range own {
		if i >= length {
			i -= length - 1
		}
		if value != int32(i) {
			t.Fatalf("value %d is %d", i, value)
		}
	}
}

func TestAppendThatFailsChangesNothing(t *testing.T) {
	d, unit := rangeDevice(t)
	closed, err := open(t).Device(0)
	must(t, err)
	must(t, closed.Instance().Close())
	b := newBuffer[byte](t, d, 3, BufferOptions{Reserve: 4 * unit})
	b.device = closed // Through which it can grow, but nothing can be copied.
	expect(t, b.Append(1), ErrClosed)
	if b.device = d; b.Len() != 3 {
		t.Errorf("it has %d values", b.Len())
	}
}

// The memory behind the length cannot be given back yet, as while the buffer sleeps.
func TestAppendThatCannotShrinkChangesNothing(t *testing.T) {
	onHost(t) // It refuses to take memory away that work may use.
	d, unit := rangeDevice(t)
	closed, err := open(t).Device(0)
	must(t, err)
	must(t, closed.Instance().Close())
	b := newBuffer[int32](t, d, 3, BufferOptions{Reserve: 4 * unit})
	must(t, CopyFromSlice(d.Instance(), b.At(0), []int32{1, 2, 3}))
	s, word := newStream(t, d), newPinned[uint32](t, d, 1)
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	defer func() {
		word.Slice()[0] = 1
		must(t, s.Synchronize())
	}()
	must(t, b.SetCapacity(int(unit/2)))
	must(t, s.Fill(RawAddress(b.At(0).Number()+unit), 4, 0, 4))
	b.device = closed
	expect(t, b.Append(make([]int32, unit/4)...), ErrClosed)
	b.device = d
	check := func(length int) {
		t.Helper()
		size := uint64(4 * length)
		if info := infoOf(t, b.GrowableBuffer()); b.Len() != length || b.Span().Len() != length || b.Size() != size || info.Size != size {
			t.Errorf("it has %d values, %d bytes; %v", b.Len(), b.Size(), info)
		}
	}
	check(3)
	must(t, b.SetCapacity(int(3*unit/4)))
	check(3)
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	must(t, b.Append(4))
	check(4)
	expectValues(t, d.Instance(), b.Span(), 1, 2, 3, 4)
	must(t, b.Resize(5))
	check(5)
}

func TestBuffersOfTheHostHaveSlices(t *testing.T) {
	d, _ := rangeDevice(t)
	needs(t, d, CapabilityVMMHost)
	b := newBuffer[uint64](t, d, 0, BufferOptions{Location: LocationHost})
	var group sync.WaitGroup
	for writer := uint64(0); writer < 4; writer++ {
		writer := writer
		group.Add(1)
		go func() {
			defer group.Done()
			for count := 0; count < 50; count++ {
				if err := b.Append(writer, writer); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	counts := map[uint64]int{}
	must(t, b.View(func(values []uint64) error {
		for index := 0; index < len(values); index += 2 {
			counts[values[index]]++
			if values[index] != values[index+1] {
				t.Errorf("the values at %d are of two calls", index)
			}
		}
		return nil
	}))
	if !reflect.DeepEqual(counts, map[uint64]int{0: 50, 1: 50, 2: 50, 3: 50}) {
		t.Errorf("there is %v", counts)
	}
	values, err := b.Slice()
	if err != nil || len(values) != 400 {
		t.Errorf("%d values: %v", len(values), err)
	}
}
