// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"encoding/binary"
	"unsafe"
)

// Place is where a copy or a fill of a [Span] is made: an [Instance], which returns when it is done, or a [Stream], which
// enqueues it with the rules of [Stream.Copy].
type Place interface {
	Copy(destination, source Address, size uint64) error
	Fill(destination Address, size uint64, value uint32, valueSize uint32) error
	copyFromGo(function string, destination Address, source unsafe.Pointer, size uint64) error
}

// Span is a run of values in memory of any kind, such as the whole of a [DeviceMemory]. Its lengths are those of a slice,
// not bytes. It keeps its memory from being collected, and is refused once that is closed.
type Span[T any] struct {
	_       of[T]
	address Address
	length  int
	outside *[3]int // From, to and the length of the span, for a part that is not inside it; otherwise nil.
}

// SpanOf returns the span of that many values at an address, for memory without a type.
func SpanOf[T any](address Address, length int) Span[T] {
	return Span[T]{address: address, length: length}
}

// Len returns the number of values.
func (s Span[T]) Len() int {
	if s.length < 0 {
		return 0
	}
	return s.length
}

// Address returns the address of the first value.
func (s Span[T]) Address() Address { return s.address }

// Part returns the values from one index up to another, as s[from:to] of a slice does. Calls refuse a part that is not
// inside the span.
func (s Span[T]) Part(from, to int) Span[T] {
	if s.outside != nil {
		return s
	}
	if from < 0 || to < from || to > s.length {
		return Span[T]{outside: &[3]int{from, to, s.length}}
	}
	return SpanOf[T](s.address.Add(uint64(from)*valueSize[T]()), to-from)
}

// bytes returns the size of the span.
func (s Span[T]) bytes(function string, place Place) (uint64, error) {
	if place == nil {
		return 0, refusal(ErrInvalidArgument, function, "the place is nil; pass an Instance or a Stream")
	}
	if part := s.outside; part != nil {
		return 0, refusal(ErrInvalidArgument, function, "Part(%d, %d) is not inside its span, which has %d values", part[0],
			part[1], part[2])
	}
	return sizeOf[T](function, s.length)
}

// Copy copies values between any two kinds of memory. Both spans have the same length, and share no value.
func Copy[T any](place Place, destination, source Span[T]) error {
	const name = "gpumem.Copy"
	size, err := destination.bytes(name, place)
	if err == nil {
		_, err = source.bytes(name, place)
	}
	if err != nil {
		return err
	}
	if destination.length != source.length {
		return refusal(ErrInvalidArgument, name, "the destination has %d values, and the source %d; pass parts of one length",
			destination.length, source.length)
	}
	return calledAs(name, place.Copy(destination.address, source.address, size))
}

// Fill sets all values of a span. It is one fill for values of 1, 2 or 4 bytes, and for others that repeat so many, such as
// 0; otherwise the value is copied again and again, twice as many each time.
func Fill[T any](place Place, destination Span[T], value T) error {
	const name = "gpumem.Fill"
	size, err := destination.bytes(name, place)
	if err != nil || size == 0 {
		return err
	}
	unit := valueSize[T]()
	pattern := unsafe.Slice((*byte)(unsafe.Pointer(&value)), int(unit))
	for _, width := range []int{1, 2, 4} {
		if word, repeats := wordOf(pattern, width); repeats {
			return calledAs(name, place.Fill(destination.address, size, word, uint32(width)))
		}
	}
	if !destination.address.has(size) {
		// The library checks the whole of one fill before it writes anything.
		if err := place.Fill(destination.address, size, 0, 1); err != nil {
			return calledAs(name, err)
		}
	}
	if err := place.copyFromGo(name, destination.address, unsafe.Pointer(&value), unit); err != nil {
		return err
	}
	for filled := unit; filled < size; {
		more := filled
		if more > size-filled {
			more = size - filled
		}
		if err := place.Copy(destination.address.Add(filled), destination.address, more); err != nil {
			return calledAs(name, err)
		}
		filled += more
	}
	return nil
}

// wordOf returns the first bytes as a number, and whether the others only repeat them.
func wordOf(pattern []byte, width int) (word uint32, repeats bool) {
	if len(pattern)%width != 0 {
		return 0, false
	}
	for i := width; i < len(pattern); i++ {
		if pattern[i] != pattern[i-width] {
			return 0, false
		}
	}
	var bytes [4]byte
	copy(bytes[:], pattern[:width])
	return binary.LittleEndian.Uint32(bytes[:]), true
}
