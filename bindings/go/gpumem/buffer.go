// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"sync"
	"unsafe"
)

// untypedBuffer is embedded as untyped is.
type untypedBuffer = GrowableBuffer

// Buffer is a [GrowableBuffer] of numbers, or of arrays or structs of numbers, and has its methods. Its lengths are those of
// a slice, not bytes.
type Buffer[T any] struct {
	_ of[T]
	*untypedBuffer
	appending sync.Mutex
}

// NewBuffer makes a buffer that can grow, of that many values; it may be 0. Their contents are indeterminate. The call sets
// Size of the options.
func NewBuffer[T any](device *Device, length int, options BufferOptions) (*Buffer[T], error) {
	const name = "gpumem.NewBuffer"
	size, err := sizeOf[T](name, length)
	if err != nil {
		return nil, err
	}
	options.Size = size
	growable, err := device.NewGrowableBuffer(options)
	if err != nil {
		return nil, calledAs(name, err)
	}
	return &Buffer[T]{untypedBuffer: growable}, nil
}

// GrowableBuffer returns the same buffer without its type; nil if b is nil.
func (b *Buffer[T]) GrowableBuffer() *GrowableBuffer {
	if b == nil {
		return nil
	}
	return b.untypedBuffer
}

// Close frees the buffer; see [GrowableBuffer.Close].
func (b *Buffer[T]) Close() error { return calledAs("Buffer.Close", b.GrowableBuffer().Close()) }

// Len returns the number of values; of a closed buffer, that of before. Bytes at the end that are no whole value do not count.
func (b *Buffer[T]) Len() int {
	size := b.GrowableBuffer().now().size
	if size == 0 {
		return 0
	}
	return int(size / valueSize[T]())
}

// Span returns all values that there are now, for copies and fills. Get it again after the buffer has grown.
func (b *Buffer[T]) Span() Span[T] { return SpanOf[T](b.GrowableBuffer().At(0), b.Len()) }

// Append adds values at the end, and returns when they are copied. If it fails, the buffer has its length of before. Calls of
// several goroutines append one after the other; nothing else may change the length meanwhile. The values may be those of
// [Buffer.Slice]. See [GrowableBuffer.Resize].
func (b *Buffer[T]) Append(values ...T) error {
	const name = "Buffer.Append"
	added, err := sizeOf[T](name, len(values))
	if err != nil || added == 0 {
		return err
	}
	if b.GrowableBuffer().id() == 0 {
		return refusal(ErrInvalidArgument, name, "the buffer is nil")
	}
	b.appending.Lock()
	defer b.appending.Unlock()
	before, size := b.now(), uint64(b.Len())*valueSize[T]()
	if err := b.GrowableBuffer().Resize(size + added); err != nil {
		return calledAs(name, err)
	}
	if offset := uint64(uintptr(unsafe.Pointer(&values[0]))) - before.address; offset < before.size {
		values = unsafe.Slice((*T)(pointerTo(b.now().address+offset)), len(values)) // Its own, which may have moved.
	}
	err = copyFromSlice[T](b.device.instance, name, b.At(size), values)
	if err != nil {
		b.GrowableBuffer().undoGrowth(before.size)
	}
	return err
}

// Resize sets the number of values; see [GrowableBuffer.Resize]. New values are indeterminate.
func (b *Buffer[T]) Resize(length int) error {
	return change[T]("Buffer.Resize", length, b.GrowableBuffer().Resize)
}

// SetCapacity gives memory to that many values ahead of growth; see [GrowableBuffer.SetCapacity].
func (b *Buffer[T]) SetCapacity(length int) error {
	return change[T]("Buffer.SetCapacity", length, b.GrowableBuffer().SetCapacity)
}

// SetAhead has memory for that many values made ahead of growth; see [GrowableBuffer.SetAhead].
func (b *Buffer[T]) SetAhead(length int) error {
	return change[T]("Buffer.SetAhead", length, b.GrowableBuffer().SetAhead)
}

// change passes a length on in bytes.
func change[T any](name string, length int, call func(bytes uint64) error) error {
	size, err := sizeOf[T](name, length)
	if err != nil {
		return err
	}
	return calledAs(name, call(size))
}

// View calls a function with the values as a slice; see [GrowableBuffer.View].
func (b *Buffer[T]) View(use func(values []T) error) error {
	const name = "Buffer.View"
	return b.GrowableBuffer().view(name, func(at *place) error { return viewed(name, use, valuesAt[T](at)) })
}

// Slice returns the values as a slice, which is valid until the buffer is changed or closed; see [GrowableBuffer.Bytes].
func (b *Buffer[T]) Slice() ([]T, error) {
	values, err := SliceAs[T](b.GrowableBuffer())
	return values, calledAs("Buffer.Slice", err)
}
