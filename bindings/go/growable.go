// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"math"
	"runtime"
	"sync"
	"unsafe"
)

// BufferOptions are options for a [GrowableBuffer].
type BufferOptions struct {
	Size        uint64            // Bytes to begin with; may be 0.
	Reserve     uint64            // Bytes of addresses; 0 means as much as the device, or the host, has memory.
	Location    Location          // LocationDevice, or LocationNone for it; LocationHost; or LocationHostNUMA.
	LocationID  int32             // NUMA node for LocationHostNUMA; otherwise 0.
	HandleTypes HandleTypes       // Ways of sharing that must be possible for its physical memory.
	Require     PhysicalFlags     // Properties that the memory must have; otherwise the call fails.
	Prefer      PhysicalFlags     // Properties that the memory should have if possible.
	Flags       BufferFlags       // BufferMovable, or 0.
	Accesses    []ProcessorAccess // None means the device, and for memory of the host the CPU too: AccessReadWrite.
	Name        string            // For messages and reports, up to 63 bytes.
}

// GrowableBuffer is a buffer that grows and shrinks in place, and that can sleep. It reserves addresses once and maps
// physical memory into them as it grows, so no byte is copied and its address stays the same. It changes at the call,
// not in the order of a stream, and may be changed from any goroutine.
type GrowableBuffer struct {
	block
	device     *Device
	buffer     uintptr // Handle of the buffer in the library.
	movable    bool
	parts      partSet
	refreshing sync.Mutex
}

// place is where a GrowableBuffer lies between two changes.
type place struct {
	address, size, reserved, generation uint64
	asleep                              bool
}

// nowhere is the place of no buffer.
var nowhere place

func (b *GrowableBuffer) id() C.uintptr_t {
	if b == nil {
		return 0
	}
	return C.uintptr_t(b.buffer)
}

func (b *GrowableBuffer) now() *place {
	if b == nil {
		return &nowhere
	}
	if at := b.place.Load(); at != nil {
		return at
	}
	return &nowhere
}

// NewGrowableBuffer makes a buffer that can grow. Its contents are indeterminate.
func (d *Device) NewGrowableBuffer(options BufferOptions) (*GrowableBuffer, error) {
	const name = "Device.NewGrowableBuffer"
	if err := checkTexts(name, options.Name); err != nil {
		return nil, err
	}
	native, _, err := nativeAccesses(name, options.Accesses)
	if err != nil {
		return nil, err
	}
	desc := nativeBufferDesc{
		size:        options.Size,
		reserve:     options.Reserve,
		location:    int32(options.Location),
		locationID:  options.LocationID,
		handleTypes: uint64(options.HandleTypes),
		require:     uint64(options.Require),
		prefer:      uint64(options.Prefer),
		flags:       uint64(options.Flags),
		accessCount: uint64(len(native)),
	}
	desc.structSize = unsafe.Sizeof(desc)
	var first *C.uint8_t
	if len(native) > 0 {
		first = (*C.uint8_t)(unsafe.Pointer(&native[0]))
	}
	result := C.gpumem_go_buffer_create(d.id(), (*C.uint8_t)(unsafe.Pointer(&desc)), first, options.Name)
	runtime.KeepAlive(d)
	if err := failure(result); err != nil {
		return nil, err
	}
	b := &GrowableBuffer{device: d, buffer: uintptr(result.value), movable: options.Flags&BufferMovable != 0}
	if err := b.refresh(); err != nil {
		_ = failure(C.gpumem_go_buffer_destroy(b.id()))
		return nil, err
	}
	closeWhenCollected(b, (*GrowableBuffer).closeDropped)
	return b, nil
}

func (b *GrowableBuffer) closeDropped() outcome {
	switch {
	case b.device.instance.closed():
		return outcomeGone
	case b.shown.Load() || !b.streams.observe():
		return outcomeKept
	}
	return outcomeOf(b.Close())
}

// Close frees the buffer, awake or asleep. All work on it must have been observed complete; if the backend knows that it
// was not, Close fails with ErrBusy.
func (b *GrowableBuffer) Close() error {
	if b == nil || b.buffer == 0 {
		return nil
	}
	done, err := b.gate.close("GrowableBuffer.Close", func() error {
		err := failure(C.gpumem_go_buffer_destroy(b.id()))
		if isGone(err) {
			return nil
		}
		return err
	})
	if done {
		closedByHand(b)
	}
	runtime.KeepAlive(b)
	return err
}

// refresh reads where the buffer lies now.
func (b *GrowableBuffer) refresh() error {
	b.refreshing.Lock() // The place that is read last is stored last.
	defer b.refreshing.Unlock()
	info, err := b.info()
	if err == nil {
		b.place.Store(&place{info.base, info.size, info.reservedSize, info.generation, info.asleep != 0})
	}
	return err
}

// change runs a call that changes the buffer. No view may use bytes from the offset on.
func (b *GrowableBuffer) change(function string, from uint64, call func() C.gpumem_go_result) error {
	if b == nil {
		return failure(call())
	}
	claimed := b.parts.claim(from, math.MaxUint64, true)
	if claimed == nil {
		return refusal(ErrBusy, function, "a view uses the buffer; end it, then call again")
	}
	defer b.parts.release(claimed)
	err := failure(call())
	if err == nil {
		_ = b.refresh() // It fails only if the buffer is gone, and then everything else does too.
	}
	runtime.KeepAlive(b)
	return err
}

// changesFrom returns the first byte that changes when so many bytes get memory, and those from the offset on lose it.
func (b *GrowableBuffer) changesFrom(offset, capacity uint64) uint64 {
	if b != nil && b.movable && capacity > b.now().reserved {
		return 0
	}
	return offset
}

// Resize grows or shrinks the buffer. The bytes that remain are not touched, and if the call fails, nothing changes.
// Work on the buffer may go on while it grows in place. Before it shrinks, all work on the freed bytes must have been
// observed complete; before it moves (BufferMovable), all work on the buffer. It fails with ErrBusy while a View uses
// bytes that would be freed or move.
func (b *GrowableBuffer) Resize(size uint64) error {
	return b.change("GrowableBuffer.Resize", b.changesFrom(size, size), func() C.gpumem_go_result {
		return C.gpumem_go_buffer_resize(b.id(), C.uint64_t(size))
	})
}

// SetCapacity gives memory to that many bytes ahead of growth, or frees whole blocks behind them. 0 frees all that the
// size does not need. The size stays. Otherwise it is like Resize.
func (b *GrowableBuffer) SetCapacity(capacity uint64) error {
	return b.change("GrowableBuffer.SetCapacity", b.changesFrom(math.MaxUint64, capacity), func() C.gpumem_go_result {
		return C.gpumem_go_buffer_set_capacity(b.id(), C.uint64_t(capacity))
	})
}

// SetAccess sets what processors may do with the buffer, now and as it grows. Processors that are not named keep what
// they have. Before access is taken away, all work that uses it must have been observed complete. For the CPU it fails
// with ErrBusy while a View uses the buffer.
func (b *GrowableBuffer) SetAccess(accesses ...ProcessorAccess) error {
	const name = "GrowableBuffer.SetAccess"
	native, ofCPU, err := nativeAccesses(name, accesses)
	if err != nil {
		return err
	}
	from := uint64(math.MaxUint64)
	if ofCPU {
		from = 0
	}
	var first *C.uint8_t
	if len(native) > 0 {
		first = (*C.uint8_t)(unsafe.Pointer(&native[0]))
	}
	return b.change(name, from, func() C.gpumem_go_result {
		return C.gpumem_go_buffer_set_access(b.id(), first, C.uint64_t(len(native)))
	})
}

// Sleep frees the memory of the buffer and keeps its addresses, until Wake. All work on it must have been observed
// complete. If the call fails, the buffer is awake, with its content. It fails with ErrBusy while a View uses the buffer.
func (b *GrowableBuffer) Sleep(content Content) error {
	return b.change("GrowableBuffer.Sleep", 0, func() C.gpumem_go_result {
		return C.gpumem_go_buffer_sleep(b.id(), C.gpumem_content(content))
	})
}

// Wake wakes the buffer at the same address, with its size, the access of each processor, and the content that was kept.
// If the call fails, the buffer sleeps on, and nothing is lost.
func (b *GrowableBuffer) Wake() error {
	return b.change("GrowableBuffer.Wake", math.MaxUint64, func() C.gpumem_go_result {
		return C.gpumem_go_buffer_wake(b.id())
	})
}

// Device returns the device that the buffer was made for.
func (b *GrowableBuffer) Device() *Device {
	if b == nil {
		return nil
	}
	return b.device
}

// Size returns the number of bytes that may be used.
func (b *GrowableBuffer) Size() uint64 { return b.now().size }

// Generation returns how often the buffer has woken or moved. What other code derived from it before is out of date.
func (b *GrowableBuffer) Generation() uint64 { return b.now().generation }

// At returns the address of the byte at an offset, for copies and fills. They refuse bytes behind the size. After a
// movable buffer has moved, get its addresses again.
func (b *GrowableBuffer) At(offset uint64) Address {
	if b == nil {
		return Address{}
	}
	return Address{&b.block, b.now().address + offset}
}

// gone reports whether the bytes must not be touched any more.
func (b *GrowableBuffer) gone() bool {
	return b == nil || b.buffer == 0 || b.closed() || b.device.instance.closed()
}

// DevicePtr returns the address of the first byte for devices, for use by kernels and other code; 0 if the buffer is
// closed. It does not keep the buffer alive. Only moving changes it.
func (b *GrowableBuffer) DevicePtr() DevicePtr {
	if b.gone() {
		return 0
	}
	b.shown.Store(true)
	return DevicePtr(b.now().address)
}

// checkCPU refuses a buffer that the CPU cannot access.
func (b *GrowableBuffer) checkCPU(name string, at *place) error {
	if at.asleep {
		return refusal(ErrInvalidState, name, "the buffer is asleep; call Wake first")
	}
	if at.size == 0 {
		return nil
	}
	access, err := b.device.instance.PointerAccess(RawAddress(at.address), LocationHost, 0)
	if err != nil {
		return calledAs(name, err)
	}
	if access&AccessRead == 0 {
		return refusal(ErrNoAccess, name, "the CPU has no access to the buffer; call SetAccess if its memory is the host's, or copy it")
	}
	return nil
}

// claimAll keeps the whole buffer as it is, and returns where it lies.
func (b *GrowableBuffer) claimAll() (*part, *place) {
	for {
		at := b.now()
		claimed := b.parts.claim(0, at.size, false)
		if claimed == nil || b.now() == at {
			return claimed, at
		}
		b.parts.release(claimed)
	}
}

func (b *GrowableBuffer) view(name string, use func(at *place) error) error {
	if b == nil || b.buffer == 0 {
		return refusal(ErrInvalidArgument, name, "the buffer is nil")
	}
	instance := b.device.instance
	if instance.closed() {
		return refusal(ErrClosed, name, "the instance is closed")
	}
	if err := instance.hold(name); err != nil {
		return err
	}
	defer instance.release()
	if err := b.hold(name); err != nil {
		return err
	}
	defer b.release()
	claimed, at := b.claimAll()
	if claimed == nil {
		return refusal(ErrBusy, name, "another goroutine changes the buffer")
	}
	defer b.parts.release(claimed)
	if err := b.checkCPU(name, at); err != nil {
		return err
	}
	return use(at)
}

// View calls a function with the buffer as a slice, which is valid until the function returns. The CPU needs access to
// it, so its memory must be the host's; if that is AccessRead, writing faults. Meanwhile the buffer can grow in place,
// but whatever would take bytes of the slice away fails with ErrBusy, as does closing the buffer or its instance.
func (b *GrowableBuffer) View(use func(bytes []byte) error) error {
	return b.view("GrowableBuffer.View", func(at *place) error { return use(valuesAt[byte](at)) })
}

// ViewAs is [GrowableBuffer.View] with a slice of numbers, or of arrays or structs of numbers. Bytes at the end that are
// no whole value are left out.
func ViewAs[T any](buffer *GrowableBuffer, use func(values []T) error) error {
	const name = "gpumem.ViewAs"
	if err := checkType[T](name); err != nil {
		return err
	}
	return buffer.view(name, func(at *place) error { return use(valuesAt[T](at)) })
}

// Bytes returns the buffer as a slice, if the CPU has access to it. The slice is valid until the next Resize,
// SetCapacity, SetAccess, Sleep or Close, and nothing checks that; View does.
func (b *GrowableBuffer) Bytes() (bytes []byte, err error) {
	err = b.view("GrowableBuffer.Bytes", func(at *place) error {
		b.shown.Store(true)
		bytes = valuesAt[byte](at)
		return nil
	})
	return bytes, err
}

// SliceAs is [GrowableBuffer.Bytes] for numbers, or for arrays or structs of numbers. Bytes at the end that are no whole
// value are left out.
func SliceAs[T any](buffer *GrowableBuffer) (values []T, err error) {
	const name = "gpumem.SliceAs"
	if err := checkType[T](name); err != nil {
		return nil, err
	}
	err = buffer.view(name, func(at *place) error {
		buffer.shown.Store(true)
		values = valuesAt[T](at)
		return nil
	})
	return values, err
}

func valuesAt[T any](at *place) []T {
	var value T
	return unsafe.Slice((*T)(pointerTo(at.address)), int(at.size/uint64(unsafe.Sizeof(value))))
}

// BufferInfo is information about a GrowableBuffer.
type BufferInfo struct {
	Size          uint64   // Bytes, as last asked for: the only ones that may be used.
	Capacity      uint64   // Bytes that have memory, or had when the buffer went to sleep.
	ReservedSize  uint64   // Bytes of addresses: what the buffer can grow to in place.
	Granularity   uint64   // Unit in which it grows, in bytes.
	BlockCount    uint64   // Blocks of physical memory that it is made of.
	Generation    uint64   // How often it has woken or moved.
	StoredSize    uint64   // Bytes of the host that keep its content while it sleeps.
	Location      Location // Where its memory lies.
	LocationID    int      // Ordinal of the device or NUMA node; -1 if it has none.
	DeviceOrdinal int      // Ordinal of the device given at creation.
	Asleep        bool     // It sleeps.
	BufferID      uint64   // Number of the reservation, unique in the process and never reused.
	Name          string   // As given at creation.
}

func (b *GrowableBuffer) info() (nativeBufferInfo, error) {
	var info nativeBufferInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_buffer_get_info(b.id(), (*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(b)
	return info, err
}

// Info gets information about the buffer. It works after the device was lost.
func (b *GrowableBuffer) Info() (BufferInfo, error) {
	info, err := b.info()
	if err != nil {
		return BufferInfo{}, err
	}
	return BufferInfo{
		Size:          info.size,
		Capacity:      info.capacity,
		ReservedSize:  info.reservedSize,
		Granularity:   info.granularity,
		BlockCount:    info.blockCount,
		Generation:    info.generation,
		StoredSize:    info.storedSize,
		Location:      Location(info.location),
		LocationID:    int(info.locationID),
		DeviceOrdinal: int(info.deviceOrdinal),
		Asleep:        info.asleep != 0,
		BufferID:      info.bufferID,
		Name:          text(info.name[:]),
	}, nil
}
