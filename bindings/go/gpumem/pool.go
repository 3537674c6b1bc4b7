// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Pool takes large pieces of memory from the driver or the system and cuts them into blocks. A block that fits into what it
// has costs no driver call and no lock. It may be used from any goroutine, and each block may be freed by any.
//
// A block is allocated and freed in the order of a stream. It may be used at once by work of that stream, and what was
// enqueued before the free still has it. Work of another stream gets the memory only when that is complete. A block of no
// stream may be used at once by the CPU, too: [PoolBlock.Free] then waits for what this package has enqueued on it. A stream
// that is being captured into a graph gets blocks that belong to the capture until [Pool.ReleaseCapture].
type Pool struct {
	handled
	device   *Device
	kind     Kind
	setting  sync.Mutex     // Of the callback.
	callback atomic.Uintptr // Its number; 0 if there is none.
}

// NewPool makes a pool.
func (d *Device) NewPool(options PoolOptions) (*Pool, error) {
	const name = "Device.NewPool"
	if err := options.check(name); err != nil {
		return nil, err
	}
	accesses, _, err := nativeAccesses(name, options.Accesses)
	if err != nil {
		return nil, err
	}
	desc := options.native()
	handle, err := valueOf[uintptr](C.gpumem_go_pool_create(d.id(), inC(&desc), first(accesses), options.Name), d)
	if err != nil {
		return nil, err
	}
	p := &Pool{device: d, kind: options.Kind, handled: handled{handle: handle}}
	if p.kind == 0 {
		p.kind = KindDevice
	}
	// That is always safe, because blocks outlive the pool.
	closeWhenDropped(p, d.instance)
	return p, nil
}

// Close closes the pool. It waits for all work of the streams in which blocks were allocated, also if this goroutine is what
// that work waits for: let it go on first. The host backend in strict mode fails with [ErrBusy] if blocks that were allocated
// without a stream have work that was not observed complete. Blocks that live stay usable, and the memory goes back with the
// last one. The callback of the pool must not call it.
func (p *Pool) Close() error {
	if p == nil {
		return nil
	}
	err := closeObject(p, &p.handled, func() error {
		return changing(func() C.gpumem_go_result { return C.gpumem_go_pool_destroy(p.id()) })
	})
	if p.done.Load() {
		poolCallbacks.take(p.callback.Swap(0))
	}
	return err
}

// order is the stream in whose order a block is allocated or freed; the zero value is none.
type order struct {
	stream   *Stream
	native   uintptr // Without a Stream.
	isNative bool
}

// request is an allocation to make.
type request struct {
	pool, stream    C.uintptr_t
	size, alignment C.uint64_t
	isNative        bool
}

func (r request) call() C.gpumem_go_block {
	switch {
	case r.isNative:
		return C.gpumem_go_pool_alloc_native(r.pool, r.size, r.stream)
	case r.alignment != 0:
		return C.gpumem_go_pool_alloc_aligned(r.pool, r.size, r.alignment, r.stream)
	}
	return C.gpumem_go_pool_alloc(r.pool, r.size, r.stream)
}

// allocate returns the address of a new block, and how a callback ended that did not return. The callback of a pool
// allocates on the thread that waits for it, by which the library knows that it must not call the callback again.
func (r request) allocate() C.gpumem_go_block {
	waiting := asideHere()
	if waiting == nil {
		return r.call()
	}
	return hand(waiting, r.call)
}

// finish returns the error of an allocation, unless a callback goes on that did not return.
func (p *Pool) finish(made C.gpumem_go_block, stream *Stream) error {
	err := failure(made.result)
	runtime.KeepAlive(p)
	runtime.KeepAlive(stream)
	goesOn(made.unwound)
	return err
}

func (p *Pool) block(r request, in order) (*PoolBlock, error) {
	r.pool = p.id()
	made := r.allocate()
	if err := p.finish(made, in.stream); err != nil {
		return nil, err
	}
	return p.made(uint64(made.result.value), uint64(r.size), in), nil
}

func (p *Pool) made(address, size uint64, in order) *PoolBlock {
	b := &PoolBlock{pool: p, in: in}
	b.address, b.size = address, size
	if p.kind != KindDevice {
		b.host = address
	}
	if p.kind == KindPageable {
		b.endless, b.pooled = true, p.device.instance
	}
	b.what = "block"
	ownedBlocks.add(p.device.instance, address, &b.block)
	closeWhenCollected(b, (*PoolBlock).closeDropped)
	return b
}

// Alloc allocates a block in the order of a stream, or without one if that is nil: then no earlier work uses it, and the
// CPU may write it at once. Its contents are indeterminate. It is aligned to 16 bytes in memory of the host, and to 256 in
// other kinds. A block of 0 bytes has no address.
func (p *Pool) Alloc(size uint64, stream *Stream) (*PoolBlock, error) {
	return p.block(request{size: C.uint64_t(size), stream: stream.id()}, order{stream: stream})
}

// AllocAligned is Alloc with an alignment: a power of two in bytes, or 0 for that of Alloc.
func (p *Pool) AllocAligned(size, alignment uint64, stream *Stream) (*PoolBlock, error) {
	return p.block(request{size: C.uint64_t(size), alignment: C.uint64_t(alignment), stream: stream.id()},
		order{stream: stream})
}

// TryAlloc is AllocAligned if the pool has a block free: it waits for nothing and takes no memory. If there is none, or another
// thread is changing the pool, the error is NotReady, and the attempt says what would help.
func (p *Pool) TryAlloc(size, alignment uint64, stream *Stream) (*PoolBlock, PoolAttempt, error) {
	info := nativePoolAttempt{structSize: unsafe.Sizeof(nativePoolAttempt{})}
	result := C.gpumem_go_pool_try_alloc(p.id(), C.uint64_t(size), C.uint64_t(alignment), stream.id(), inC(&info))
	runtime.KeepAlive(p)
	runtime.KeepAlive(stream)
	if err := failure(result); err != nil {
		return nil, PoolAttempt{}, err
	}
	if Status(result.status) == NotReady {
		return nil, info.public(),
			refusal(NotReady, "Pool.TryAlloc", "the pool has no block free at once; the Answer says what would help")
	}
	return p.made(uint64(result.value), size, order{stream: stream}), info.public(), nil
}

// AllocNative is Alloc in the order of a stream of other code, as [Device.WrapStream] takes it: a CUstream, where 0 is the
// legacy default stream.
func (p *Pool) AllocNative(size uint64, native uintptr) (*PoolBlock, error) {
	return p.block(request{size: C.uint64_t(size), stream: C.uintptr_t(native), isNative: true},
		order{native: native, isNative: true})
}

// AllocBatch allocates a block of each size in the order of a stream, all or none.
func (p *Pool) AllocBatch(sizes []uint64, stream *Stream) ([]*PoolBlock, error) {
	if len(sizes) == 0 {
		return nil, nil
	}
	addresses := make([]uint64, len(sizes))
	call := func() C.gpumem_go_block {
		return C.gpumem_go_pool_alloc_batch(p.id(), (*C.uint8_t)(unsafe.Pointer(&sizes[0])), C.uint64_t(len(sizes)),
			stream.id(), (*C.uint8_t)(unsafe.Pointer(&addresses[0])))
	}
	var made C.gpumem_go_block
	if waiting := asideHere(); waiting != nil {
		made = hand(waiting, call)
	} else {
		made = call()
	}
	if err := p.finish(made, stream); err != nil {
		return nil, err
	}
	blocks := make([]*PoolBlock, len(sizes))
	for index, address := range addresses {
		blocks[index] = p.made(address, sizes[index], order{stream: stream})
	}
	return blocks, nil
}

// FreeBatch frees blocks of the pool in the order of a stream, one after the other. Those that were freed before, and nil,
// are skipped. If a block is of another pool, is there twice or is used by a View, none is freed. If the library cannot free
// one, those before it are freed, and it and all behind it are not. A nil stream means that no work uses the blocks any more.
func (p *Pool) FreeBatch(blocks []*PoolBlock, stream *Stream) (err error) {
	const name = "Pool.FreeBatch"
	var seized []*PoolBlock
	freed := 0
	defer func() {
		for index, b := range seized {
			b.settle(index < freed)
			if index < freed {
				b.disown()
			}
		}
	}()
	var addresses []uint64
	for index, b := range blocks {
		if b == nil || b.pool == nil {
			continue
		}
		if b.pool != p {
			return refusal(ErrInvalidArgument, name, "a block of %d bytes at %#x is of another pool", b.size, b.address)
		}
		mine, err := b.seize(name)
		if err != nil {
			for before, other := range blocks[:index] {
				if other == b {
					return refusal(ErrInvalidArgument, name, "blocks[%d] and blocks[%d] are the same", before, index)
				}
			}
			return err
		}
		if mine {
			seized = append(seized, b)
			addresses = append(addresses, b.address)
		}
	}
	if len(seized) == 0 {
		return nil
	}
	in := order{stream: stream}
	for _, b := range seized {
		if err := b.recordOthers(in); err != nil {
			return calledAs(name, err)
		}
	}
	if p.done.Load() {
		for ; freed < len(seized); freed++ {
			if err := p.free(seized[freed].address, seized[freed].size, in); err != nil {
				return calledAs(name, err)
			}
		}
		return nil
	}
	err = checked(C.gpumem_go_pool_free_batch(p.id(), (*C.uint8_t)(unsafe.Pointer(&addresses[0])),
		C.uint64_t(len(addresses)), C.uintptr_t(stream.id())), p, stream)
	if err == nil || p.device.instance.closed() {
		freed = len(seized)
		return nil
	}
	// Only the message says where the call has ended.
	if _, scanErr := fmt.Sscanf(err.(*Error).Message, "pointers[%d]:", &freed); scanErr != nil {
		freed = 0
	}
	return err
}

// Malloc allocates a block and returns only its address. Free it with [Pool.Free] or [Instance.FreeBlock].
func (p *Pool) Malloc(size uint64, stream *Stream) (Address, error) {
	made := request{pool: p.id(), size: C.uint64_t(size), stream: stream.id()}.allocate()
	err := p.finish(made, stream)
	return RawAddress(uint64(made.result.value)), err
}

// free frees a block of this pool, which may be closed.
func (p *Pool) free(address, size uint64, in order) error {
	defer runtime.KeepAlive(in.stream)
	if !p.done.Load() {
		var err error
		if in.isNative {
			err = failure(C.gpumem_go_pool_free_native(p.id(), C.uint64_t(address), C.uintptr_t(in.native)))
		} else {
			err = failure(C.gpumem_go_pool_free_sized(p.id(), C.uint64_t(address), C.uint64_t(size), in.stream.id()))
		}
		runtime.KeepAlive(p)
		if err == nil || !isGone(err) {
			return err
		}
	}
	// The pool is closed, unless it is the stream.
	instance := p.device.instance
	stream := in.stream
	if in.isNative && !instance.closed() {
		wrapped, err := p.device.WrapStream(in.native)
		if err != nil {
			return err
		}
		defer func() { _ = wrapped.Close() }()
		stream = wrapped
	}
	err := failure(C.gpumem_go_pool_free_pointer(instance.id(), C.uint64_t(address), stream.id()))
	if err != nil && instance.closed() {
		return nil // The block has ended with it.
	}
	return err
}

// Trim releases what is free, until the pool has no more than that many bytes, and returns the bytes that it has released.
// Blocks that live stay, and so do freed ones whose work is not complete. The callback of the pool must not call it.
func (p *Pool) Trim(keep uint64) (released uint64, err error) {
	err = changing(func() C.gpumem_go_result {
		result := C.gpumem_go_pool_trim(p.id(), C.uint64_t(keep))
		released = uint64(result.value)
		return result
	})
	runtime.KeepAlive(p)
	return released, err
}

// Classes gets the size classes of the pool, from small to large. Larger blocks than the last one has are cut to measure.
func (p *Pool) Classes() ([]PoolClass, error) {
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	classes := make([]PoolClass, info.ClassCount)
	for index := range classes {
		class := nativePoolClassInfo{structSize: unsafe.Sizeof(nativePoolClassInfo{})}
		err := failure(C.gpumem_go_pool_get_class_info(p.id(), C.uint32_t(index), inC(&class)))
		runtime.KeepAlive(p)
		if err != nil {
			return nil, err
		}
		classes[index] = class.public()
	}
	return classes, nil
}

// poolCallback is the callback of a pool.
type poolCallback struct {
	function func(size uint64) bool
	instance uintptr // Handle of the instance of the pool.
}

// poolCallbacks has the callbacks of all pools.
var poolCallbacks table[*poolCallback]

// unwound is how a callback ended that did not return.
type unwound struct{ panics panicBox }

// unwounds has those that belong to calls that are about to return.
var unwounds table[*unwound]

// freed calls the callback, and reports whether the allocation should be tried again.
func (c *poolCallback) freed(size uint64) (yes bool) {
	if c == nil {
		return false
	}
	how := &unwound{}
	returned := how.panics.runAside(func() { yes = c.function(size) })
	if !returned || how.panics.first.Load() != nil {
		C.gpumem_go_set_unwound(C.uintptr_t(unwounds.add(how)))
		return false
	}
	return yes
}

// goesOn continues the panic or Goexit of a callback in the goroutine whose call has called it.
func goesOn(number C.uintptr_t) {
	if number == 0 {
		return
	}
	if caught := unwounds.take(uintptr(number)).panics.first.Load(); caught != nil {
		panic(caught.Value)
	}
	runtime.Goexit()
}

// SetCallback sets the function that is called when the pool cannot get memory, with the bytes that it lacks; nil means
// none. It is the time to free blocks of the pool or other memory. If it returns true, the allocation is tried again.
// It may allocate from this pool, but is not called again then; it must not call Close, Trim and SetCallback of the pool.
// The allocation waits while it runs, on a goroutine of its own. If it panics or calls runtime.Goexit, that goes on in
// the goroutine that allocates. When SetCallback returns, the one before is not running. It fails with ErrBusy while another
// goroutine sets one. A function that refers to the pool, or to a block of it, keeps the pool from being collected until it is
// closed, or another function is set.
func (p *Pool) SetCallback(function func(size uint64) bool) error {
	if p == nil {
		return failure(C.gpumem_go_pool_set_callback(0, 0))
	}
	// Not Lock, because a callback that calls this would wait for itself.
	if !p.setting.TryLock() {
		return refusal(ErrBusy, "Pool.SetCallback", "another goroutine is setting the callback")
	}
	defer p.setting.Unlock()
	number := uintptr(0)
	if p.device != nil && function != nil {
		number = poolCallbacks.add(&poolCallback{function, p.device.instance.handle})
	}
	err := changing(func() C.gpumem_go_result { return C.gpumem_go_pool_set_callback(p.id(), C.uintptr_t(number)) })
	runtime.KeepAlive(p)
	if err != nil {
		poolCallbacks.take(number)
		return err
	}
	poolCallbacks.take(p.callback.Swap(number))
	if p.done.Load() || p.device.instance.closed() {
		poolCallbacks.take(number) // It was closed meanwhile.
	}
	return nil
}

// PoolBlock is a block of a [Pool]. Free passes it back. It may be used by work of the stream that it was allocated in; other
// work, and the CPU, must be ordered behind that stream.
type PoolBlock struct {
	block
	pool *Pool
	in   order
}

func (b *PoolBlock) closeDropped() outcome {
	defer b.disown()                                                                // What is kept has no object any more.
	return b.dropped(b.pool.device.instance, func() error { return b.FreeOn(nil) }) // All of its work is complete.
}

// Free frees the block in the order of the stream that it was allocated in; without one, in that of the stream that used
// it last, if its work was not observed complete. A second call does nothing. Work of other streams that was enqueued
// through this package is waited for too, without holding up the caller; for work of other code, see RecordUse. While a
// View uses the block, it fails with [ErrBusy]. The block may be freed after its pool was closed, and after its streams
// were closed that were synchronized before; after others were closed, call FreeOn(nil) when their work is complete.
func (b *PoolBlock) Free() error {
	if b == nil {
		return nil
	}
	return b.free("PoolBlock.Free", b.in, true)
}

// FreeOn is Free in the order of another stream. Nil means that no work uses the block any more.
func (b *PoolBlock) FreeOn(stream *Stream) error {
	return b.free("PoolBlock.FreeOn", order{stream: stream}, false)
}

// FreeNative is Free in the order of a stream of other code; see [Pool.AllocNative].
func (b *PoolBlock) FreeNative(native uintptr) error {
	return b.free("PoolBlock.FreeNative", order{native: native, isNative: true}, false)
}

func (b *PoolBlock) disown() {
	closedByHand(b)
	ownedBlocks.remove(b.pool.device.instance, b.address, &b.block)
}

// free frees the block in an order, which is the block's own one in Free.
func (b *PoolBlock) free(name string, in order, own bool) error {
	if b == nil || b.pool == nil {
		return nil
	}
	done, err := b.gate.close(name, func() error {
		chosen := in.stream == b.in.stream
		if own && in.stream == nil && !in.isNative && b.streams.last.Load() != nil {
			in = b.lastUse()
		}
		if err := b.recordOthers(in); err != nil {
			return err
		}
		work := in.stream.work()
		if chosen && work.done.Load() {
			if !work.complete() && !b.pool.device.instance.closed() {
				return b.closedEarly()
			}
			in = order{}
		}
		err := b.pool.free(b.address, b.size, in)
		if err != nil && chosen && isGone(err) && work.complete() { // The stream was closed meanwhile.
			err = b.pool.free(b.address, b.size, order{})
		}
		return err
	})
	if done {
		b.disown()
	}
	runtime.KeepAlive(b)
	return calledAs(name, err)
}

// lastUse is the order of the stream that used the block last, as far as its work was not observed complete.
func (b *PoolBlock) lastUse() order {
	uses := b.streams.pending(nil)
	if len(uses) == 0 {
		return order{}
	}
	return order{stream: &Stream{streamWork: uses[len(uses)-1].streamWork}}
}

// recordOthers records the use of the block by work of other streams than the one in whose order it is freed. Without such
// a stream, the caller says that there is none.
func (b *PoolBlock) recordOthers(in order) error {
	if in.stream == nil && !in.isNative {
		return nil
	}
	for _, work := range b.streams.pending(in.stream.work()) {
		if in.isNative && work.native() == in.native {
			continue // It is the same stream.
		}
		err := b.record(C.uintptr_t(work.handle))
		if err != nil && !(work.over() || b.pool.done.Load() || b.pool.device.instance.closed()) {
			if work.done.Load() {
				return b.closedEarly()
			}
			return err
		}
	}
	return nil
}

// closedEarly refuses a free that has to wait for a stream that cannot be waited for any more.
func (b *PoolBlock) closedEarly() error {
	return refusal(ErrStaleHandle, "PoolBlock.Free", "a stream that used the block was closed before it was synchronized; "+
		"call PoolBlock.FreeOn(nil) when no work uses the block any more")
}

func (b *PoolBlock) record(stream C.uintptr_t) error {
	return checked(C.gpumem_go_pool_record_use(b.pool.id(), C.uint64_t(b.address), stream), b)
}

// RecordUse records that work of a stream uses the block, besides the stream in whose order it will be freed. The memory
// is then not reused before the work is complete that the stream has at the time of the free.
func (b *PoolBlock) RecordUse(stream *Stream) error {
	const name = "PoolBlock.RecordUse"
	if b == nil || b.pool == nil {
		return refusal(ErrInvalidArgument, name, "the block is nil")
	}
	if err := b.enter(name); err != nil {
		return err
	}
	defer b.leave()
	err := b.record(stream.id())
	runtime.KeepAlive(stream)
	return err
}

// gone reports whether the bytes must not be touched any more.
func (b *PoolBlock) gone() bool {
	return b == nil || b.pool == nil || b.closed() || b.pool.device.instance.closed()
}

// DevicePtr returns the address of the first byte for devices, for use by kernels and other code; 0 if there is none, or the
// block is freed. It does not keep the block alive.
func (b *PoolBlock) DevicePtr() DevicePtr {
	if b.gone() || b.size == 0 {
		return 0
	}
	b.shown.Store(true)
	if b.pool.kind == KindDevice || b.pool.kind == KindManaged {
		return DevicePtr(b.address)
	}
	address, err := b.pool.device.DevicePointer(b.At(0))
	if err != nil {
		return 0
	}
	return address
}

// Bytes returns a block of pinned or ordinary memory as a slice, which is valid until Free. It is nil for device memory, for
// managed memory, which the CPU may not touch at any time, and after Free.
func (b *PoolBlock) Bytes() []byte {
	if b.gone() || b.pool.kind == KindManaged {
		return nil
	}
	return sliceOf[byte](&b.block, b.size)
}

// View calls a function with the block as a slice, which is valid until the function returns. Meanwhile the block cannot be
// freed and its instance cannot be closed: that fails with ErrBusy. For managed memory it first waits until the CPU may
// touch it. A block cannot be attached to the host, so on a device that is not concurrent, any work that is enqueued there
// meanwhile takes the block from the CPU, and the next touch is a fault.
func (b *PoolBlock) View(use func(bytes []byte) error) error {
	const name = "PoolBlock.View"
	if b == nil || b.pool == nil {
		return refusal(ErrInvalidArgument, name, "the block is nil")
	}
	instance := b.pool.device.instance
	var begin, end func(string) error
	if b.pool.kind == KindManaged {
		begin = func(name string) error { return instance.beginHostAccess(b.address, name) }
		end = func(name string) error { return instance.endHostAccess(b.address, name) }
	}
	return b.view(instance, name, begin, end, func() error {
		return viewed(name, use, unsafe.Slice((*byte)(pointerTo(b.host)), int(b.size)))
	})
}

// Info gets information about the block.
func (b *PoolBlock) Info() (BlockInfo, error) {
	const name = "PoolBlock.Info"
	if b == nil || b.pool == nil {
		return BlockInfo{}, refusal(ErrInvalidArgument, name, "the block is nil")
	}
	if err := b.enter(name); err != nil {
		return BlockInfo{}, err
	}
	defer b.leave()
	if b.size == 0 {
		return BlockInfo{PoolClosed: b.pool.done.Load()}, nil
	}
	info, err := b.pool.device.instance.blockInfo(b.address)
	return info, calledAs(name, err)
}

// BlockInfo gets information about the block of a pool that has an address, which may lie inside of it.
func (i *Instance) BlockInfo(address Address) (BlockInfo, error) {
	if err := address.enter("Instance.BlockInfo", 1); err != nil {
		return BlockInfo{}, err
	}
	defer address.leave()
	// The result has a number by which the memory can be used unseen.
	return i.blockInfo(address.Number())
}

func (i *Instance) blockInfo(address uint64) (BlockInfo, error) {
	info := nativePoolBlockInfo{structSize: unsafe.Sizeof(nativePoolBlockInfo{})}
	err := checked(C.gpumem_go_pool_get_block_info(i.id(), C.uint64_t(address), inC(&info)), i)
	if err != nil {
		return BlockInfo{}, err
	}
	return info.public(), nil
}
