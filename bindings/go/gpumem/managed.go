// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"fmt"
	"math/bits"
	"unsafe"
)

// Hints, which are advice, prefetches and discards, report whether they have an effect. It is false if the device or the
// driver cannot use the hint: then nothing changed, and that is no error. Portable code gives hints everywhere and
// ignores the answer.

func (i *Instance) beginHostAccess(address uint64, name string) error {
	return calledAs(name, checked(C.gpumem_go_managed_begin_host_access(i.id(), C.uint64_t(address)), i))
}

func (i *Instance) endHostAccess(address uint64, name string) error {
	err := checked(C.gpumem_go_managed_end_host_access(i.id(), C.uint64_t(address)), i)
	if isGone(err) {
		return nil
	}
	return calledAs(name, err)
}

// BeginHostAccess begins an access of the CPU to managed memory: it waits until the CPU may touch the memory. The access
// lasts until it is closed; [Memory.View] does both. Where all devices are concurrent it waits for nothing. On other
// devices, work on the memory fails with ErrBusy until the access is closed. The memory cannot be closed before.
func (m *Memory) BeginHostAccess() (*HostAccess[byte], error) {
	return beginHostAccess[byte](m, "Memory.BeginHostAccess", int(m.Size()))
}

// ManagedRange is a range of a batch.
type ManagedRange struct {
	Address    Address  // First byte.
	Size       uint64   // Bytes.
	Location   Location // Where to move the range; LocationNone for a discard.
	LocationID int      // Ordinal of the device or number of the NUMA node; otherwise 0.
}

// PrefetchBatch moves each range to its location, and reports whether that has an effect. The batch is ordered against
// other work of the stream; its ranges are not ordered among themselves. Every range is checked before any is enqueued.
func (s *Stream) PrefetchBatch(ranges []ManagedRange) (effective bool, err error) {
	return s.managedBatch("Stream.PrefetchBatch", ranges, func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result {
		return C.gpumem_go_managed_prefetch_batch(s.id(), first, count)
	})
}

// DiscardBatch declares the contents of ranges useless, in stream order, and reports whether that has an effect. Until a
// byte is written or prefetched, reading it gives an indeterminate value. Advice stays. Only pages that lie whole in a
// range are discarded, and nothing else may use the ranges meanwhile.
func (s *Stream) DiscardBatch(ranges []ManagedRange) (effective bool, err error) {
	return s.managedBatch("Stream.DiscardBatch", ranges, func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result {
		return C.gpumem_go_managed_discard_batch(s.id(), first, count)
	})
}

// DiscardAndPrefetchBatch is DiscardBatch, then PrefetchBatch, but moves no byte.
func (s *Stream) DiscardAndPrefetchBatch(ranges []ManagedRange) (effective bool, err error) {
	return s.managedBatch("Stream.DiscardAndPrefetchBatch", ranges,
		func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result {
			return C.gpumem_go_managed_discard_and_prefetch_batch(s.id(), first, count)
		})
}

func (s *Stream) managedBatch(name string, ranges []ManagedRange,
	call func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result) (effective bool, err error) {
	native := make([]nativeManagedRange, len(ranges))
	entered := 0
	defer func() {
		for _, one := range ranges[:entered] {
			s.leave(one.Address)
		}
	}()
	for index, one := range ranges {
		err := checkLocationID(name, one.LocationID)
		if err == nil {
			err = one.Address.enter(name, one.Size)
		}
		if detail, ok := err.(*Error); ok {
			detail.Message = fmt.Sprintf("range %d: %s", index, detail.Message)
			return false, detail
		}
		entered++
		native[index] = nativeManagedRange{unsafe.Sizeof(native[index]), one.Address.value, one.Size, int32(one.Location),
			int32(one.LocationID)}
	}
	return succeeded(call(first(native), C.uint64_t(len(native))), s)
}

// ordinals lists the devices whose bits are set.
func ordinals(set uint64) (devices []int) {
	for ; set != 0; set &= set - 1 {
		devices = append(devices, bits.TrailingZeros64(set))
	}
	return devices
}
