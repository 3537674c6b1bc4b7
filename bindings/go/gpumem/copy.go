// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"unsafe"
)

// The methods of Instance return when the work is done. They are not ordered against any stream: work that they
// depend on must have been observed complete. The methods of Stream enqueue the work and return. Both operands must
// then stay open, and the source unmodified, until the work has been observed complete.

// Copy copies bytes between any two kinds of memory, and returns when they are copied. The two ranges must not
// overlap.
func (i *Instance) Copy(destination, source Address, size uint64) error {
	return i.copyBytes(destination, source, size, CopyOptions{})
}

// CopyWith is Copy with options.
func (i *Instance) CopyWith(destination, source Address, size uint64, options CopyOptions) error {
	return calledAs("Instance.CopyWith", i.copyBytes(destination, source, size, options))
}

func (i *Instance) copyBytes(destination, source Address, size uint64, options CopyOptions) error {
	if err := enterBoth("Instance.Copy", destination, source, size, size); err != nil {
		return err
	}
	defer leaveBoth(nil, destination, source)
	return checked(C.gpumem_go_copy(i.id(), C.uint64_t(destination.value), C.uint64_t(source.value), C.uint64_t(size),
		C.gpumem_direction(options.Direction), C.gpumem_source_order(options.SourceOrder)), i)
}

// Copy enqueues a copy of bytes between any two kinds of memory, and returns. The two ranges must not overlap. Both
// operands must stay open, and the source unmodified, until the copy has been observed complete.
func (s *Stream) Copy(destination, source Address, size uint64) error {
	return s.copyBytes(destination, source, size, CopyOptions{})
}

// CopyWith is Copy with options.
func (s *Stream) CopyWith(destination, source Address, size uint64, options CopyOptions) error {
	return calledAs("Stream.CopyWith", s.copyBytes(destination, source, size, options))
}

func (s *Stream) copyBytes(destination, source Address, size uint64, options CopyOptions) error {
	if err := enterBoth("Stream.Copy", destination, source, size, size); err != nil {
		return err
	}
	defer leaveBoth(s, destination, source)
	return checked(C.gpumem_go_copy_async(s.id(), C.uint64_t(destination.value), C.uint64_t(source.value),
		C.uint64_t(size), C.gpumem_direction(options.Direction), C.gpumem_source_order(options.SourceOrder)), s)
}

// Rectangle describes Height rows of Width bytes.
type Rectangle struct {
	Width            uint64 // Bytes of a row.
	Height           uint64 // Number of rows.
	DestinationPitch uint64 // Bytes from one row of the destination to the next, at least Width.
	SourcePitch      uint64 // Bytes from one row of the source to the next, at least Width. Fills ignore it.
}

// extent returns the bytes from the first to behind the last of a rectangle.
func (r *Rectangle) extent(pitch uint64) uint64 {
	if r.Width == 0 || r.Height == 0 {
		return 0
	}
	return sum(r.Width, product(r.Height-1, pitch))
}

func (r *Rectangle) enterBoth(function string, destination, source Address) error {
	return enterBoth(function, destination, source, r.extent(r.DestinationPitch), r.extent(r.SourcePitch))
}

// sum and product are the largest number if they overflow: no memory has so many bytes.
func sum(a, b uint64) uint64 {
	if b > math.MaxUint64-a {
		return math.MaxUint64
	}
	return a + b
}

func product(a, b uint64) uint64 {
	if b != 0 && a > math.MaxUint64/b {
		return math.MaxUint64
	}
	return a * b
}

// Copy2D copies a rectangle of bytes, and returns when it is copied. The two rectangles must share no byte.
func (i *Instance) Copy2D(destination, source Address, rectangle Rectangle, options CopyOptions) error {
	if err := rectangle.enterBoth("Instance.Copy2D", destination, source); err != nil {
		return err
	}
	defer leaveBoth(nil, destination, source)
	return checked(C.gpumem_go_copy_2d(i.id(), C.uint64_t(destination.value), C.uint64_t(rectangle.DestinationPitch),
		C.uint64_t(source.value), C.uint64_t(rectangle.SourcePitch), C.uint64_t(rectangle.Width),
		C.uint64_t(rectangle.Height), C.gpumem_direction(options.Direction), C.gpumem_source_order(options.SourceOrder)), i)
}

// Copy2D enqueues a copy of a rectangle of bytes, with the rules of [Stream.Copy]. The two rectangles must share no
// byte.
func (s *Stream) Copy2D(destination, source Address, rectangle Rectangle, options CopyOptions) error {
	if err := rectangle.enterBoth("Stream.Copy2D", destination, source); err != nil {
		return err
	}
	defer leaveBoth(s, destination, source)
	return checked(C.gpumem_go_copy_2d_async(s.id(), C.uint64_t(destination.value),
		C.uint64_t(rectangle.DestinationPitch), C.uint64_t(source.value), C.uint64_t(rectangle.SourcePitch),
		C.uint64_t(rectangle.Width), C.uint64_t(rectangle.Height), C.gpumem_direction(options.Direction),
		C.gpumem_source_order(options.SourceOrder)), s)
}

// Operand is one side of a Region.
type Operand struct {
	Address    Address // First byte.
	RowPitch   uint64  // Bytes from one row to the next, at least Width; 0 means Width.
	SlicePitch uint64  // Bytes from one slice to the next; 0 means Height times the row pitch.
}

// Region describes a box of bytes to copy: Depth slices of Height rows of Width bytes.
type Region struct {
	Destination Operand // Where to write.
	Source      Operand // Where to read; it must share no byte with the destination.
	Width       uint64  // Bytes of a row; 0 makes the region a no-op whose operands are ignored.
	Height      uint64  // Rows of a slice; 0 means 1.
	Depth       uint64  // Slices; 0 means 1.
	CopyOptions
}

// extent returns the bytes from the first to behind the last of a region in one of its operands.
func (r *Region) extent(in *Operand) uint64 {
	height, depth, row, slice := r.Height, r.Depth, in.RowPitch, in.SlicePitch
	if height == 0 {
		height = 1
	}
	if depth == 0 {
		depth = 1
	}
	if row == 0 {
		row = r.Width
	}
	if slice == 0 {
		slice = product(height, row)
	}
	return sum(r.Width, sum(product(height-1, row), product(depth-1, slice)))
}

// RegionError reports which region of a batch failed.
type RegionError struct {
	Index int   // Index of the region in the slice.
	Err   error // The failure, an *Error.
}

func (e *RegionError) Error() string { return fmt.Sprintf("region %d: %v", e.Index, e.Err) }

// Unwrap returns the failure, for errors.Is and errors.As.
func (e *RegionError) Unwrap() error { return e.Err }

// CopyRegions copies a batch of regions, and returns when they are copied. They are copied in any order, also at the
// same time: no region may write bytes that another one reads or writes.
//
// Every region is checked before any is copied. The error is a [*RegionError] if the failure belongs to one region. If
// a region fails its check, nothing is copied. If the backend fails midway, the regions before the failed one are
// copied, the failed one may be copied in part, and later ones are not.
func (i *Instance) CopyRegions(regions []Region) error {
	err := copyRegions(nil, "Instance.CopyRegions", regions, func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result {
		return C.gpumem_go_copy_regions(i.id(), first, count)
	})
	runtime.KeepAlive(i)
	return err
}

// CopyRegions enqueues the copies of a batch of regions, with the rules of [Stream.Copy]. The batch is ordered against
// other work of the stream; its regions are not ordered among themselves. Errors are as those of
// [Instance.CopyRegions], with "enqueued" in place of "copied".
func (s *Stream) CopyRegions(regions []Region) error {
	err := copyRegions(s, "Stream.CopyRegions", regions, func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result {
		return C.gpumem_go_copy_regions_async(s.id(), first, count)
	})
	runtime.KeepAlive(s)
	return err
}

func copyRegions(stream *Stream, function string, regions []Region,
	call func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result) error {
	native := make([]nativeCopyRegion, len(regions))
	entered := make([]Address, 0, 2*len(regions))
	defer func() {
		for _, address := range entered {
			stream.leave(address)
		}
	}()
	for index, region := range regions {
		native[index].structSize = unsafe.Sizeof(native[index])
		native[index].direction = int32(region.Direction)
		native[index].sourceOrder = int32(region.SourceOrder)
		if region.Width == 0 {
			continue
		}
		if err := enterBoth(function, region.Destination.Address, region.Source.Address,
			region.extent(&region.Destination), region.extent(&region.Source)); err != nil {
			return &RegionError{index, err}
		}
		entered = append(entered, region.Destination.Address, region.Source.Address)
		native[index].destination = region.Destination.native()
		native[index].source = region.Source.native()
		native[index].width = region.Width
		native[index].height = region.Height
		native[index].depth = region.Depth
	}
	result := call(first(native), C.uint64_t(len(native)))
	err := failure(result)
	if err != nil && uint64(result.value) < uint64(len(regions)) {
		return &RegionError{int(result.value), err}
	}
	return err
}

// native describes the operand by handle and offset if its memory has a handle, so that the library need not look the
// address up.
func (o *Operand) native() nativeCopyOperand {
	operand := nativeCopyOperand{rowPitch: o.RowPitch, slicePitch: o.SlicePitch}
	if owner := o.Address.owner; owner != nil && owner.handle != 0 {
		operand.memory, operand.offset = owner.handle, o.Address.value-owner.address
	} else {
		operand.pointer = o.Address.value
	}
	return operand
}

// enterFill is enterBoth for a fill, whose value must fit into its bytes.
func enterFill(function string, destination Address, size uint64, value, valueSize uint32) error {
	if valueSize == 1 && value > math.MaxUint8 || valueSize == 2 && value > math.MaxUint16 {
		return refusal(ErrInvalidArgument, function, "the value %d does not fit into a valueSize of %d; pass a larger one", value,
			valueSize)
	}
	return destination.enterWork(function, size)
}

// Fill fills memory with a repeated value of 1, 2 or 4 bytes, and returns when it is filled. Size is in bytes. The value must
// fit into its bytes.
func (i *Instance) Fill(destination Address, size uint64, value uint32, valueSize uint32) error {
	if err := enterFill("Instance.Fill", destination, size, value, valueSize); err != nil {
		return err
	}
	defer destination.leave()
	return checked(C.gpumem_go_fill(i.id(), C.uint64_t(destination.value), C.uint64_t(size), C.uint32_t(value),
		C.uint32_t(valueSize)), i)
}

// Fill enqueues a fill of memory with a repeated value of 1, 2 or 4 bytes. Size is in bytes. The memory must stay open
// until the fill has been observed complete.
func (s *Stream) Fill(destination Address, size uint64, value uint32, valueSize uint32) error {
	if err := enterFill("Stream.Fill", destination, size, value, valueSize); err != nil {
		return err
	}
	defer s.leave(destination)
	return checked(C.gpumem_go_fill_async(s.id(), C.uint64_t(destination.value), C.uint64_t(size), C.uint32_t(value),
		C.uint32_t(valueSize)), s)
}

// Fill2D fills Height rows of Width bytes, DestinationPitch bytes apart, with a repeated value of 1, 2 or 4 bytes, and
// returns when they are filled.
func (i *Instance) Fill2D(destination Address, rectangle Rectangle, value uint32, valueSize uint32) error {
	if err := enterFill("Instance.Fill2D", destination, rectangle.extent(rectangle.DestinationPitch), value, valueSize); err != nil {
		return err
	}
	defer destination.leave()
	return checked(C.gpumem_go_fill_2d(i.id(), C.uint64_t(destination.value), C.uint64_t(rectangle.DestinationPitch),
		C.uint64_t(rectangle.Width), C.uint64_t(rectangle.Height), C.uint32_t(value), C.uint32_t(valueSize)), i)
}

// Fill2D enqueues a fill of Height rows of Width bytes, DestinationPitch bytes apart, with the rules of [Stream.Fill].
func (s *Stream) Fill2D(destination Address, rectangle Rectangle, value uint32, valueSize uint32) error {
	if err := enterFill("Stream.Fill2D", destination, rectangle.extent(rectangle.DestinationPitch), value, valueSize); err != nil {
		return err
	}
	defer s.leave(destination)
	return checked(C.gpumem_go_fill_2d_async(s.id(), C.uint64_t(destination.value),
		C.uint64_t(rectangle.DestinationPitch), C.uint64_t(rectangle.Width), C.uint64_t(rectangle.Height),
		C.uint32_t(value), C.uint32_t(valueSize)), s)
}

// CopyFromSlice copies a slice of Go to any memory, and returns when it is copied.
func CopyFromSlice[T any](instance *Instance, destination Address, source []T) error {
	return copyFromSlice[T](instance, "gpumem.CopyFromSlice", destination, source)
}

// CopyFromSliceAsync enqueues a copy of a slice of Go to any memory. The slice is read before the call returns, so it
// may change afterwards; no earlier work of the stream may write it. The destination must stay open until the copy has
// been observed complete.
func CopyFromSliceAsync[T any](stream *Stream, destination Address, source []T) error {
	return copyFromSlice[T](stream, "gpumem.CopyFromSliceAsync", destination, source)
}

func copyFromSlice[T any](place Place, function string, destination Address, source []T) error {
	size, err := sizeOf[T](function, len(source))
	if err != nil || size == 0 {
		return err
	}
	return place.copyFromGo(function, destination, unsafe.Pointer(&source[0]), size)
}

func (i *Instance) copyFromGo(function string, destination Address, source unsafe.Pointer, size uint64) error {
	if err := destination.enterWork(function, size); err != nil {
		return err
	}
	defer destination.leave()
	return calledAs(function, checked(C.gpumem_go_copy_from_slice(i.id(), C.uint64_t(destination.value), (*C.uint8_t)(source),
		C.uint64_t(size)), i))
}

func (s *Stream) copyFromGo(function string, destination Address, source unsafe.Pointer, size uint64) error {
	if err := destination.enterWork(function, size); err != nil {
		return err
	}
	defer s.leave(destination)
	return calledAs(function, checked(C.gpumem_go_copy_from_slice_async(s.id(), C.uint64_t(destination.value), (*C.uint8_t)(source),
		C.uint64_t(size)), s))
}

// CopyToSlice copies any memory to a slice of Go, and returns when it is copied. Work that writes the source must have
// been observed complete.
func CopyToSlice[T any](instance *Instance, destination []T, source Address) error {
	size, err := sizeOf[T]("gpumem.CopyToSlice", len(destination))
	if err != nil || size == 0 {
		return err
	}
	if err := source.enterWork("gpumem.CopyToSlice", size); err != nil {
		return err
	}
	defer source.leave()
	return calledAs("gpumem.CopyToSlice", instance.copyToGo(unsafe.Pointer(&destination[0]), source, size))
}

func (i *Instance) copyToGo(destination unsafe.Pointer, source Address, size uint64) error {
	return checked(C.gpumem_go_copy_to_slice(i.id(), (*C.uint8_t)(destination), C.uint64_t(source.value),
		C.uint64_t(size)), i)
}

// enterBoth keeps both sides of a copy open during a call.
func enterBoth(function string, destination, source Address, written, read uint64) error {
	if err := destination.enterWork(function, written); err != nil {
		return err
	}
	if err := source.enterWork(function, read); err != nil {
		destination.leave()
		return err
	}
	return nil
}

func leaveBoth(stream *Stream, destination, source Address) {
	stream.leave(source)
	stream.leave(destination)
}
