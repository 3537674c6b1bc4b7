// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"sync"
	"sync/atomic"
)

// block is what Memory and Buffer have in common: bytes that calls use by their address and that Close gives back.
type block struct {
	gate
	address uint64      // What copies and fills use.
	host    uint64      // Where the CPU finds the bytes; 0 if it must not touch them.
	size    uint64      // Bytes.
	shown   atomic.Bool // A slice or number of it was handed out, so somebody may use it unseen.
	streams streamSet   // Where work on it may be under way.
}

// streamSet remembers the streams in which work was enqueued.
type streamSet struct {
	last  atomic.Pointer[streamWork] // The usual case: always the same one.
	mutex sync.Mutex
	all   []*streamWork
}

func (set *streamSet) add(stream *streamWork) {
	if set.last.Load() == stream {
		return
	}
	set.mutex.Lock()
	defer set.mutex.Unlock()
	kept := set.all[:0]
	for _, other := range set.all {
		// A stream whose work is complete is forgotten, so that the set does not grow for ever.
		if other != stream && !other.complete() {
			kept = append(kept, other)
		}
	}
	for i := len(kept); i < len(set.all); i++ {
		set.all[i] = nil
	}
	set.all = append(kept, stream)
	set.last.Store(stream)
}

// observe waits for the work in all streams and reports whether all of it was seen to be complete.
func (set *streamSet) observe() bool {
	set.mutex.Lock()
	streams := append([]*streamWork(nil), set.all...)
	set.mutex.Unlock()
	for _, stream := range streams {
		if !stream.observe() {
			return false
		}
	}
	return true
}

// Address is a place in memory, for calls that read or write there. One that comes from an object ([Memory.At],
// [Pinned.At], [Buffer.At]) keeps the object alive, and stops working when it is closed. One of [RawAddress] is only
// a number.
type Address struct {
	owner *block
	value uint64
}

// DevicePtr is an address for devices. It is a number and never a pointer of Go.
type DevicePtr uint64

// RawAddress makes an Address from a number, such as the address of memory of other code. The memory must not be
// Go's, and must live until all calls and work with the address are complete.
func RawAddress(number uint64) Address { return Address{nil, number} }

// At is the place that lies that many bytes after the pointer.
func (p DevicePtr) At(offset uint64) Address { return Address{nil, uint64(p) + offset} }

// Add is the place that lies that many bytes after this one.
func (a Address) Add(offset uint64) Address { return Address{a.owner, a.value + offset} }

// Number is the address as a number, for other code. It does not keep the memory alive.
func (a Address) Number() uint64 {
	if a.owner != nil {
		a.owner.shown.Store(true)
	}
	return a.value
}

// enter keeps the object of an address open for the time of a call, which uses so many bytes there. The library judges
// a range by the object in which it begins, so one that begins outside of its own is refused here.
func (a Address) enter(function string, bytes uint64) error {
	if a.owner == nil {
		return nil
	}
	if offset := a.value - a.owner.address; offset > a.owner.size || offset == a.owner.size && bytes > 0 {
		return refusal(ErrInvalidArgument, function, "the address lies %d bytes after the start of memory that has %d bytes",
			offset, a.owner.size)
	}
	return a.owner.enter(function)
}

func (a Address) leave() {
	if a.owner != nil {
		a.owner.leave()
	}
}
