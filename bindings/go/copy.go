// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// CopyOptions is what else a copy can be told.
type CopyOptions struct {
	Direction   Direction
	SourceOrder SourceOrder
}

// Copy copies bytes between any two kinds of memory. With a stream it enqueues the work and returns, and both
// operands must stay open, and the source as it is, until the work has been observed complete. With nil it returns
// when the copy is done. The ranges must not overlap.
func (i *Instance) Copy(stream *Stream, destination, source Address, size uint64) error {
	return i.CopyWith(stream, destination, source, size, CopyOptions{})
}

// CopyWith is Copy with options.
func (i *Instance) CopyWith(stream *Stream, destination, source Address, size uint64, options CopyOptions) error {
	if err := stream.enter("Instance.Copy", destination, size); err != nil {
		return err
	}
	defer destination.leave()
	if err := stream.enter("Instance.Copy", source, size); err != nil {
		return err
	}
	defer source.leave()
	err := failure(C.gpumem_go_copy(i.id(), stream.id(), C.uint64_t(destination.value), C.uint64_t(source.value),
		C.uint64_t(size), C.gpumem_direction(options.Direction), C.gpumem_source_order(options.SourceOrder)))
	runtime.KeepAlive(i)
	runtime.KeepAlive(stream)
	return err
}

// Rectangle is what Copy2D copies: Height rows of Width bytes.
type Rectangle struct {
	Width            uint64 // Bytes of a row.
	Height           uint64 // Rows.
	DestinationPitch uint64 // Bytes from one row of the destination to the next, at least Width.
	SourcePitch      uint64 // Bytes from one row of the source to the next, at least Width.
}

// Copy2D copies a rectangle of bytes, with the rules of Copy.
func (i *Instance) Copy2D(stream *Stream, destination, source Address, rectangle Rectangle, options CopyOptions) error {
	if err := stream.enter("Instance.Copy2D", destination, rectangle.Width); err != nil {
		return err
	}
	defer destination.leave()
	if err := stream.enter("Instance.Copy2D", source, rectangle.Width); err != nil {
		return err
	}
	defer source.leave()
	err := failure(C.gpumem_go_copy_2d(i.id(), stream.id(), C.uint64_t(destination.value),
		C.uint64_t(rectangle.DestinationPitch), C.uint64_t(source.value), C.uint64_t(rectangle.SourcePitch),
		C.uint64_t(rectangle.Width), C.uint64_t(rectangle.Height), C.gpumem_direction(options.Direction),
		C.gpumem_source_order(options.SourceOrder)))
	runtime.KeepAlive(i)
	runtime.KeepAlive(stream)
	return err
}

// Fill fills memory with a repeated number of 1, 2 or 4 bytes, with the rules of Copy.
func (i *Instance) Fill(stream *Stream, destination Address, size uint64, value uint32, valueSize uint32) error {
	if err := stream.enter("Instance.Fill", destination, size); err != nil {
		return err
	}
	defer destination.leave()
	err := failure(C.gpumem_go_fill(i.id(), stream.id(), C.uint64_t(destination.value), C.uint64_t(size),
		C.uint32_t(value), C.uint32_t(valueSize)))
	runtime.KeepAlive(i)
	runtime.KeepAlive(stream)
	return err
}

// Fill2D fills Height rows of Width bytes, DestinationPitch bytes apart, with a repeated number of 1, 2 or 4 bytes.
func (i *Instance) Fill2D(stream *Stream, destination Address, rectangle Rectangle, value uint32, valueSize uint32) error {
	if err := stream.enter("Instance.Fill2D", destination, rectangle.Width); err != nil {
		return err
	}
	defer destination.leave()
	err := failure(C.gpumem_go_fill_2d(i.id(), stream.id(), C.uint64_t(destination.value),
		C.uint64_t(rectangle.DestinationPitch), C.uint64_t(rectangle.Width), C.uint64_t(rectangle.Height),
		C.uint32_t(value), C.uint32_t(valueSize)))
	runtime.KeepAlive(i)
	runtime.KeepAlive(stream)
	return err
}

// CopyFromSlice copies values of Go to any memory. The slice has been read when the call returns, also with a stream;
// no earlier work of the stream may write it.
func CopyFromSlice[T any](instance *Instance, stream *Stream, destination Address, source []T) error {
	size, err := sizeOf[T]("gpumem.CopyFromSlice", len(source))
	if err != nil || size == 0 {
		return err
	}
	if err := stream.enter("gpumem.CopyFromSlice", destination, size); err != nil {
		return err
	}
	defer destination.leave()
	return copyFromGo(instance, stream, destination, unsafe.Pointer(&source[0]), size)
}

func copyFromGo(i *Instance, stream *Stream, destination Address, source unsafe.Pointer, size uint64) error {
	err := failure(C.gpumem_go_copy_from_slice(i.id(), stream.id(), C.uint64_t(destination.value),
		(*C.uint8_t)(source), C.uint64_t(size)))
	runtime.KeepAlive(i)
	runtime.KeepAlive(stream)
	return err
}

// CopyToSlice fills a slice of Go from any memory, and returns when that is done. Work that writes the source must
// have been observed complete.
func CopyToSlice[T any](instance *Instance, destination []T, source Address) error {
	size, err := sizeOf[T]("gpumem.CopyToSlice", len(destination))
	if err != nil || size == 0 {
		return err
	}
	if err := source.enter("gpumem.CopyToSlice", size); err != nil {
		return err
	}
	defer source.leave()
	return copyToGo(instance, unsafe.Pointer(&destination[0]), source, size)
}

func copyToGo(i *Instance, destination unsafe.Pointer, source Address, size uint64) error {
	err := failure(C.gpumem_go_copy_to_slice(i.id(), (*C.uint8_t)(destination), C.uint64_t(source.value),
		C.uint64_t(size)))
	runtime.KeepAlive(i)
	return err
}
