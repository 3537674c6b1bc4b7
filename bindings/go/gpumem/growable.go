// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// GrowableBuffer is a buffer that grows and shrinks in place, and that can sleep. It reserves addresses once and maps
// physical memory into them as it grows, so no byte is copied and its address stays the same. It changes at the call,
// not in the order of a stream, and may be changed from any goroutine.
type GrowableBuffer struct {
	block
	device    *Device
	group     *Group
	setting   sync.Mutex     // Of callbacks.
	callbacks atomic.Uintptr // Their number; 0 if there are none.
}

// growing is the part of a GrowableBuffer that its group refers to. It does not keep the GrowableBuffer alive.
type growing struct {
	buffer     uintptr // Handle of the buffer in the library.
	tag        string
	movable    bool
	place      atomic.Pointer[place]
	parts      partSet
	refreshing sync.Mutex
	left       leftCalls
	shorter    atomic.Pointer[uint64] // Its size, if the library has a larger one that could not be undone; otherwise nil.
}

// place is where a GrowableBuffer lies between two changes.
type place struct {
	address, size, reserved, generation uint64
	asleep                              bool
	waking                              bool // The call that woke it has not returned.
	ordinary                            bool // It is an ordinary allocation, not mapped memory.
}

// nowhere is the place of no buffer.
var nowhere place

func (g *growing) now() *place {
	if at := g.place.Load(); at != nil {
		return at
	}
	return &nowhere
}

// refresh reads where the buffer lies now.
func (g *growing) refresh(waking bool) error {
	g.refreshing.Lock() // The place that is read last is stored last.
	defer g.refreshing.Unlock()
	info, err := g.info()
	if err == nil {
		g.place.Store(&place{info.base, info.size, info.reservedSize, info.generation, BufferState(info.state) != BufferStateAwake,
			waking, info.range_ == 0})
	}
	return err
}

func (b *GrowableBuffer) id() C.uintptr_t {
	if b == nil || b.growing == nil {
		return 0
	}
	return C.uintptr_t(b.growing.buffer)
}

func (b *GrowableBuffer) now() *place {
	if b == nil || b.growing == nil {
		return &nowhere
	}
	return b.growing.now()
}

// NewGrowableBuffer makes a buffer that can grow. Its contents are indeterminate.
func (d *Device) NewGrowableBuffer(options BufferOptions) (*GrowableBuffer, error) {
	const name = "Device.NewGrowableBuffer"
	if err := options.check(name); err != nil {
		return nil, err
	}
	native, _, err := nativeAccesses(name, options.Accesses)
	if err != nil {
		return nil, err
	}
	desc := options.native()
	handle, err := valueOf[uintptr](C.gpumem_go_buffer_create(d.id(), inC(&desc), first(native), options.Name, options.Tag), d)
	if err != nil {
		return nil, err
	}
	b := &GrowableBuffer{device: d, group: options.Group}
	b.growing = &growing{buffer: handle, tag: options.Tag, movable: options.Flags&BufferMovable != 0}
	b.group.enter(b.growing)
	if err := b.growing.refresh(false); err != nil {
		b.group.leave(b.growing)
		_ = failure(C.gpumem_go_buffer_destroy(b.id()))
		return nil, err
	}
	b.what = "buffer"
	closeWhenCollected(b, (*GrowableBuffer).closeDropped)
	return b, nil
}

func (b *GrowableBuffer) closeDropped() outcome {
	if info, err := b.Info(); err == nil && info.Registrations > 0 {
		return outcomeKept // Something outside the library holds the memory.
	}
	return b.dropped(b.device.instance, b.Close)
}

// Close frees the buffer, awake or asleep. All work on it must have been observed complete; if the backend knows that it
// was not, Close fails with ErrBusy.
func (b *GrowableBuffer) Close() error {
	if b.id() == 0 {
		return nil
	}
	done, err := b.gate.close("GrowableBuffer.Close", func() error {
		return unlessGone(changing(func() C.gpumem_go_result { return C.gpumem_go_buffer_destroy(b.id()) }))
	})
	if done {
		closedByHand(b)
		callbacks.take(b.callbacks.Swap(0))
		b.group.leave(b.growing)
	}
	runtime.KeepAlive(b)
	return err
}

// change runs a call that changes the buffer. No view may use bytes from the offset on.
func (b *GrowableBuffer) change(function string, from uint64, call func() error) error {
	if b.id() == 0 {
		return call()
	}
	claimed := b.growing.parts.claim(from, math.MaxUint64, true)
	if claimed == nil {
		return refusal(ErrBusy, function, "a view uses the buffer; end it, then call again")
	}
	defer b.growing.parts.release(claimed)
	// Also if the call fails, which may have moved an ordinary allocation. It fails itself only if the buffer is gone.
	defer func() { _ = b.growing.refresh(false) }()
	defer runtime.KeepAlive(b)
	return call()
}

// changesFrom returns the first byte that changes when so many bytes get memory, and those from the offset on lose it.
func (b *GrowableBuffer) changesFrom(offset, capacity uint64) uint64 {
	if b.id() != 0 && (b.now().ordinary || b.growing.movable && capacity > b.now().reserved) {
		return 0
	}
	return offset
}

// Resize grows or shrinks the buffer. The bytes that remain are not touched, and if the call fails, nothing changes.
// Work on the buffer may go on while it grows in place. Before it shrinks, all work on the freed bytes must have been
// observed complete; before it moves (BufferMovable, BufferCopyable), all work on the buffer. It fails with ErrBusy
// while a View uses bytes that would be freed or move.
func (b *GrowableBuffer) Resize(size uint64) error {
	return b.change("GrowableBuffer.Resize", b.changesFrom(size, size), func() error {
		err := changing(func() C.gpumem_go_result { return C.gpumem_go_buffer_resize(b.id(), C.uint64_t(size)) })
		if err == nil {
			b.growing.shorter.Store(nil)
		}
		return err
	})
}

// undoGrowth gives the buffer its size of before. While the library cannot shrink it, as when it sleeps, only this package
// knows the size, and the next Resize sets that of the library.
func (b *GrowableBuffer) undoGrowth(size uint64) {
	if b.Resize(size) == nil {
		return
	}
	b.growing.refreshing.Lock()
	defer b.growing.refreshing.Unlock()
	b.growing.shorter.Store(&size)
	at := *b.now()
	at.size = size
	b.growing.place.Store(&at)
}

// SetCapacity gives memory to that many bytes ahead of growth, or frees whole blocks behind them. 0 frees all that the
// size does not need. The size stays. Otherwise it is like Resize.
func (b *GrowableBuffer) SetCapacity(capacity uint64) error {
	return b.change("GrowableBuffer.SetCapacity", b.changesFrom(math.MaxUint64, capacity), func() error {
		return changing(func() C.gpumem_go_result { return C.gpumem_go_buffer_set_capacity(b.id(), C.uint64_t(capacity)) })
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
	return b.change(name, from, func() error {
		return changing(func() C.gpumem_go_result {
			return C.gpumem_go_buffer_set_access(b.id(), first(native), C.uint64_t(len(native)))
		})
	})
}

// SetAhead has memory made ahead of the growth of the buffer, on a thread of the library: as soon as less than half of
// that many bytes lie behind the size, more is mapped. A Resize that needs no more than what is there makes no driver
// call. 0, as at creation, ends it and leaves what is there.
func (b *GrowableBuffer) SetAhead(bytes uint64) error {
	err := changing(func() C.gpumem_go_result { return C.gpumem_go_buffer_set_ahead(b.id(), C.uint64_t(bytes)) })
	runtime.KeepAlive(b)
	return err
}

// Sleep frees the memory of the buffer and keeps its addresses, until Wake. It waits for work on the buffer, as the
// options say. If it fails, the buffer is awake, with its content. It fails with ErrBusy while a View uses the buffer, or
// a [Registration] is noted.
func (b *GrowableBuffer) Sleep(options SleepOptions) error {
	return options.run("GrowableBuffer.Sleep", b.change, func(desc *C.uint8_t, directory *C.char, call C.uintptr_t, progress C.uint32_t) C.gpumem_go_result {
		return C.gpumem_go_buffer_sleep(b.id(), desc, directory, options.Tag, call, progress)
	})
}

// SleepContext is Sleep until the context is done. Then the buffer stays awake, and it returns the error of the context. Once
// all bytes are copied, the call ends by itself.
//
// If it cannot end soon, because it is waiting for work, it returns all the same, and the rest of the call is left behind: it
// is undone when that work is complete. Until then State of Info is BufferStateAwake, but copies and fills are refused with
// ErrInvalidState, and a View with ErrBusy. [GrowableBuffer.Wait] waits for the end. Calls that change the buffer, such as
// another Sleep, wait for it by themselves.
func (b *GrowableBuffer) SleepContext(ctx context.Context, options SleepOptions) error {
	var left *leftCalls
	if b.id() != 0 {
		left = &b.growing.left
	}
	return untilDone(ctx, &options.Progress, left, func() error { return b.Sleep(options) })
}

// Wait waits until no call of SleepContext, of the buffer or its [Group], is left behind, or until the context is done: then it
// returns the error of the context. If it returns nil, the buffer can be used again; it is awake, unless it could not be woken
// (BufferStateFailed). It returns at once if no call is left behind. A callback, Progress and a function of a stream, for
// which the call may be waiting, must not wait for it: it fails with ErrInvalidState.
func (b *GrowableBuffer) Wait(ctx context.Context) error {
	const name = "GrowableBuffer.Wait"
	if b.id() == 0 {
		return refusal(ErrInvalidArgument, name, "the buffer is nil")
	}
	defer runtime.KeepAlive(b)
	if err := b.growing.left.wait(ctx, name); err != nil || b.group == nil {
		return err
	}
	return b.group.left.wait(ctx, name)
}

// Wake wakes the buffer at the same address, with its size, the access of each processor, and the content that was kept;
// an ordinary allocation (BufferCopyable) gets a new address. If it fails, the buffer sleeps on, and nothing is lost
// unless the error is ErrContentLost.
func (b *GrowableBuffer) Wake(options WakeOptions) error {
	return options.run("GrowableBuffer.Wake", b.change, func(call C.uintptr_t, progress C.uint32_t) C.gpumem_go_result {
		return C.gpumem_go_buffer_wake(b.id(), C.uint64_t(options.Keep), options.Tag, call, progress)
	})
}

// WakeContext is Wake until the context is done. Then the buffer sleeps on, and it returns the error of the context. It waits for
// no work, so it leaves nothing behind. If a SleepContext is left behind, it waits for that first; the buffer is awake then,
// and it fails with ErrInvalidState as Wake does.
func (b *GrowableBuffer) WakeContext(ctx context.Context, options WakeOptions) error {
	if b.id() != 0 {
		if err := b.Wait(ctx); err != nil {
			return err
		}
	}
	return untilDone(ctx, &options.Progress, nil, func() error { return b.Wake(options) })
}

// Prepare makes the store for the content ahead of Sleep, as large as the buffer is now, so that Sleep with the same
// Content only copies. A store for another content, or in another directory, is replaced.
func (b *GrowableBuffer) Prepare(options PrepareOptions) error {
	defer runtime.KeepAlive(b)
	return options.run("GrowableBuffer.Prepare", func(directory *C.char) C.gpumem_go_result {
		return C.gpumem_go_buffer_prepare(b.id(), C.gpumem_content(options.Content), directory, options.Tag,
			C.uint64_t(options.BytesPerSecond))
	})
}

// Size returns the number of bytes, as last asked for; of a closed buffer, that of before. There may be memory behind them; see
// [GrowableBuffer.At].
func (b *GrowableBuffer) Size() uint64 { return b.now().size }

// Generation returns how often the buffer has woken or moved. What other code derived from it before is out of date.
func (b *GrowableBuffer) Generation() uint64 { return b.now().generation }

// At returns the address of the byte at an offset, for copies and fills. They may use all that has memory, also behind the
// size, up to Capacity of Info; the rest they refuse with ErrInvalidState. But only the bytes of the size are the content: what
// is behind them is not kept by Sleep, nor by an ordinary allocation (BufferCopyable) that grows, and a smaller Resize may
// free it. After a movable buffer has moved, get its addresses again.
func (b *GrowableBuffer) At(offset uint64) Address {
	if b == nil {
		return Address{}
	}
	return Address{&b.block, b.now().address + offset}
}

// gone reports whether the bytes must not be touched any more.
func (b *GrowableBuffer) gone() bool {
	return b.id() == 0 || b.closed() || b.device.instance.closed()
}

// DevicePtr returns the address of the first byte for devices, for use by kernels and other code; 0 if the buffer is
// closed. It does not keep the buffer alive. Only moving changes it, and the waking of an ordinary allocation.
func (b *GrowableBuffer) DevicePtr() DevicePtr {
	if b.gone() {
		return 0
	}
	b.shown.Store(true)
	return DevicePtr(b.now().address)
}

// checkCPU refuses a buffer that the CPU cannot access.
func (b *GrowableBuffer) checkCPU(name string, at *place) error {
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

// claimAll keeps the whole buffer as it is, and returns where it lies. The claim is nil if the buffer sleeps or changes.
func (b *GrowableBuffer) claimAll() (*part, *place) {
	for {
		at := b.now()
		if at.asleep || at.waking {
			return nil, at // A claim would stand in the way of the next Sleep.
		}
		claimed := b.growing.parts.claim(0, at.size, false)
		if claimed == nil || b.now() == at {
			return claimed, at
		}
		b.growing.parts.release(claimed)
	}
}

func (b *GrowableBuffer) view(name string, use func(at *place) error) error {
	if b.id() == 0 {
		return refusal(ErrInvalidArgument, name, "the buffer is nil")
	}
	return b.held(b.device.instance, name, func() error {
		claimed, at := b.claimAll()
		if at.asleep {
			return refusal(ErrInvalidState, name, "the buffer is asleep; call Wake first")
		}
		if claimed == nil {
			return refusal(ErrBusy, name, "the buffer is being changed; call again when that call has returned")
		}
		defer b.growing.parts.release(claimed)
		if err := b.checkCPU(name, at); err != nil {
			return err
		}
		return use(at)
	})
}

// View calls a function with the buffer as a slice, which is valid until the function returns. The CPU needs access to
// it, so its memory must be the host's; if that is AccessRead, writing faults. Meanwhile the buffer can grow in place,
// but whatever would take bytes of the slice away fails with ErrBusy, as does closing the buffer or its instance.
func (b *GrowableBuffer) View(use func(bytes []byte) error) error {
	const name = "GrowableBuffer.View"
	return b.view(name, func(at *place) error { return viewed(name, use, valuesAt[byte](at)) })
}

// ViewAs is [GrowableBuffer.View] with a slice of numbers, or of arrays or structs of numbers. Bytes at the end that are
// no whole value are left out.
func ViewAs[T any](buffer *GrowableBuffer, use func(values []T) error) error {
	const name = "gpumem.ViewAs"
	if err := checkType[T](name); err != nil {
		return err
	}
	return buffer.view(name, func(at *place) error { return viewed(name, use, valuesAt[T](at)) })
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
	return unsafe.Slice((*T)(pointerTo(at.address)), int(at.size/valueSize[T]()))
}

func (g *growing) info() (nativeBufferInfo, error) {
	if g == nil {
		g = &growing{}
	}
	info := nativeBufferInfo{structSize: unsafe.Sizeof(nativeBufferInfo{})}
	err := failure(C.gpumem_go_buffer_get_info(C.uintptr_t(g.buffer), inC(&info)))
	if size := g.shorter.Load(); size != nil {
		info.size = *size
	}
	return info, err
}

// Info gets information about the buffer. It does not wait for a call that changes the buffer, and works after the
// device was lost. State is that of before while a call puts the buffer to sleep or wakes it; see [GrowableBuffer.SleepContext].
func (b *GrowableBuffer) Info() (BufferInfo, error) {
	var state *growing
	if b != nil {
		state = b.growing
	}
	info, err := state.info()
	runtime.KeepAlive(b)
	return info.public(), err
}
