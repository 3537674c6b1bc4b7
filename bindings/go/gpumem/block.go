// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// block is common to Memory, Pageable and others: bytes that calls use by their address, and that Close releases.
type block struct {
	gate
	handle  uintptr     // Of the memory in the library; 0 for a Pageable.
	address uint64      // Address for copies and fills.
	host    uint64      // Address for the CPU; 0 if it must not touch the bytes.
	size    uint64      // Bytes.
	shown   atomic.Bool // A slice or number of it was handed out, so it may be used unseen.
	streams streamSet   // Streams in which work on it may be pending.
	growing *growing    // Of a GrowableBuffer, in place of address and size; otherwise nil.
	within  *block      // Of a slot, the one of its ring that notes what is shown and the streams of all slots; otherwise nil.
	endless bool        // The library does not know where it ends.
	sparse  bool        // Some of its addresses may have no memory.
	turns   *turns      // Of managed memory where a device is not concurrent; otherwise nil.
	pooled  *Instance   // Of an endless block of a pool, which may be used up to the size of its class; otherwise nil.
}

// extent returns the address and the size now.
func (b *block) extent() (address, size uint64) {
	if b.growing != nil {
		at := b.growing.now()
		return at.address, at.size
	}
	return b.address, b.size
}

// noting returns the block that notes how this one is used.
func (b *block) noting() *block {
	if b.within != nil {
		return b.within
	}
	return b
}

// dropped closes a block that is dropped, if nothing can use its bytes any more.
func (b *block) dropped(instance *Instance, close func() error) outcome {
	switch {
	case instance.closed():
		return outcomeGone
	case b.shown.Load() || !b.noting().streams.observe():
		return outcomeKept
	}
	return outcomeOf(close())
}

// owned has the addresses of objects that free them, and so are not freed by their number: a View may be using them. The objects
// are only numbers here, so that they can be collected.
type owned struct {
	shards [64]ownedShard // Of a pool, blocks are made and freed by many goroutines at once.
}

type ownedShard struct {
	mutex sync.Mutex
	all   map[ownedAddress]uintptr
}

type ownedAddress struct {
	instance uintptr // Its handle.
	address  uint64
}

var ownedMemory, ownedBlocks owned

func (o *owned) shard(address uint64) *ownedShard {
	return &o.shards[(address>>8^address>>14)%uint64(len(o.shards))]
}

func (o *owned) add(instance *Instance, address uint64, owner *block) {
	if address == 0 {
		return
	}
	shard := o.shard(address)
	shard.mutex.Lock()
	defer shard.mutex.Unlock()
	if shard.all == nil {
		shard.all = map[ownedAddress]uintptr{}
	}
	shard.all[ownedAddress{instance.handle, address}] = uintptr(unsafe.Pointer(owner))
}

// remove takes an address from its object, which has freed it. Another one may have it already.
func (o *owned) remove(instance *Instance, address uint64, owner *block) {
	key, shard := ownedAddress{instance.handle, address}, o.shard(address)
	shard.mutex.Lock()
	defer shard.mutex.Unlock()
	if shard.all[key] == uintptr(unsafe.Pointer(owner)) {
		delete(shard.all, key)
	}
}

// check refuses the address of an object.
func (o *owned) check(function string, instance *Instance, address Address) error {
	has := address.owner != nil
	if !has && instance != nil {
		shard := o.shard(address.value)
		shard.mutex.Lock()
		_, has = shard.all[ownedAddress{instance.handle, address.value}]
		shard.mutex.Unlock()
	}
	if has {
		return refusal(ErrInvalidArgument, function, "the address belongs to an object; close or free the object")
	}
	return nil
}

// drop forgets the objects of an instance.
func (o *owned) drop(instance uintptr) {
	for index := range o.shards {
		shard := &o.shards[index]
		shard.mutex.Lock()
		for key := range shard.all {
			if key.instance == instance {
				delete(shard.all, key)
			}
		}
		shard.mutex.Unlock()
	}
}

// streamSet remembers the streams in which work was enqueued.
type streamSet struct {
	last  atomic.Pointer[streamUse] // The common case: always the same one.
	mutex sync.Mutex
	all   []*streamUse
}

// streamUse is a stream and how much of its work came up to the last use of the memory.
type streamUse struct {
	*streamWork
	upTo atomic.Uint64
}

// noUse is that of no stream.
var noUse = streamUse{streamWork: &noWork}

// over reports whether the work that uses the memory was observed complete.
func (use *streamUse) over() bool { return use.observed.Load() >= use.upTo.Load() }

func (set *streamSet) add(stream *streamWork, count uint64) {
	if last := set.last.Load(); last != nil && last.streamWork == stream {
		raise(&last.upTo, count)
		return
	}
	set.mutex.Lock()
	defer set.mutex.Unlock()
	// From here on, who adds the last stream waits for this call. Otherwise that could drop it although it has just got work.
	set.last.Store(&noUse)
	use := &streamUse{streamWork: stream}
	kept := set.all[:0]
	for _, other := range set.all {
		// Streams whose work is complete are dropped, so that the set does not grow forever.
		if other.streamWork == stream {
			use = other
		} else if !other.complete() {
			kept = append(kept, other)
		}
	}
	for i := len(kept); i < len(set.all); i++ {
		set.all[i] = nil
	}
	raise(&use.upTo, count)
	set.all = append(kept, use)
	set.last.Store(use)
}

// pending returns the streams whose work on the memory was not observed complete, without one of them.
func (set *streamSet) pending(but *streamWork) (found []*streamUse) {
	if last := set.last.Load(); last == nil {
		return nil // The common case: none was used.
	}
	set.mutex.Lock()
	defer set.mutex.Unlock()
	for _, use := range set.all {
		if use.streamWork != but && !use.over() {
			found = append(found, use)
		}
	}
	return found
}

// observe waits for the work in all streams, and reports whether all of it was observed complete.
func (set *streamSet) observe() bool {
	for _, use := range set.pending(nil) {
		if !use.observe() && !use.over() {
			return false
		}
	}
	return true
}

// Address is an address in memory, for calls that read or write there. One of an object ([Memory.At], [Pageable.At])
// keeps the object from being collected, and calls refuse it once the object is closed. One of [RawAddress] is only a
// number.
type Address struct {
	owner *block
	value uint64
}

// DevicePtr is an address for devices. It is a number, never a pointer of Go.
type DevicePtr uint64

// RawAddress makes an Address of a number, such as the address of memory of other code. The memory must not be Go's,
// and must stay valid until all calls and work with the address are complete.
func RawAddress(number uint64) Address { return Address{nil, number} }

// At returns the address of the byte at an offset.
func (p DevicePtr) At(offset uint64) Address { return Address{nil, uint64(p) + offset} }

// Add returns the address that many bytes further.
func (a Address) Add(offset uint64) Address { return Address{a.owner, a.value + offset} }

// Number returns the address as a number, for other code. It does not keep the memory alive.
func (a Address) Number() uint64 {
	if a.owner != nil {
		a.owner.noting().shown.Store(true)
	}
	return a.value
}

// has reports whether it is known without the library that there is memory for that many bytes.
func (a Address) has(bytes uint64) bool {
	if a.owner == nil || a.owner.sparse {
		return false
	}
	address, size := a.owner.extent()
	offset := a.value - address
	return offset <= size && bytes <= size-offset
}

// enter keeps the object of an address open during a call that uses that many bytes there. The library checks a range
// against the object in which it begins, so a range that begins outside of its own object is refused here, and so is one
// that ends outside if the library does not know the end.
func (a Address) enter(function string, bytes uint64) error {
	if a.owner == nil {
		return nil
	}
	if a.owner.growing != nil {
		at := a.owner.growing.now()
		if at.asleep && at.ordinary {
			return refusal(ErrInvalidState, function, "the buffer is asleep, and has no memory at %#x; wake it first", a.value)
		}
		// The library refuses what has no memory there.
		if offset := a.value - at.address; offset > at.reserved || offset == at.reserved && bytes > 0 {
			return refusal(ErrInvalidArgument, function,
				"%#x is not inside the buffer, which has %d bytes of addresses at %#x now; get the address again", a.value,
				at.reserved, at.address)
		}
		return a.owner.enter(function)
	}
	if offset := a.value - a.owner.address; offset > a.owner.size || offset == a.owner.size && bytes > 0 {
		return refusal(ErrInvalidArgument, function, "the address is %d bytes from the start of the memory, which has %d bytes",
			offset, a.owner.size)
	} else if a.owner.endless && bytes > a.owner.size-offset {
		return a.enterPast(function, offset, bytes)
	}
	return a.owner.enter(function)
}

// enterPast is enter for bytes behind the size of an endless object.
func (a Address) enterPast(function string, offset, bytes uint64) error {
	b := a.owner
	if err := b.enter(function); err != nil {
		return err
	}
	size := b.size
	if b.pooled != nil {
		if info, err := b.pooled.blockInfo(b.address); err == nil {
			size = info.UsableSize
		}
	}
	if bytes > size-offset {
		b.leave()
		return refusal(ErrInvalidArgument, function, "%d bytes at offset %d exceed the %s, which has %d bytes", bytes, offset, b.what,
			size)
	}
	return nil
}

func (a Address) leave() {
	if a.owner != nil {
		a.owner.leave()
	}
}
