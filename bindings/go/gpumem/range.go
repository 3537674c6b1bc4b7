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

// AddressRange is reserved addresses, into which physical memory is mapped. Mapping, unmapping and changes of access
// happen at the call, not in the order of a stream. Offsets count from the first byte.
type AddressRange struct {
	block
	instance    *Instance
	reservation uintptr // Handle of the range in the library.
	parts       partSet
}

func (r *AddressRange) id() C.uintptr_t {
	if r == nil {
		return 0
	}
	return C.uintptr_t(r.reservation)
}

// part is a part of a range that is viewed, or that is about to change.
type part struct {
	offset, size uint64
	changes      bool
}

func (p *part) end() uint64 {
	if p.size > math.MaxUint64-p.offset {
		return math.MaxUint64
	}
	return p.offset + p.size
}

// partSet keeps views and changes of the same bytes apart.
type partSet struct {
	mutex sync.Mutex
	all   map[*part]bool
}

// claim returns nil if a view and a change would overlap.
func (set *partSet) claim(offset, size uint64, changes bool) *part {
	claimed := &part{offset, size, changes}
	set.mutex.Lock()
	defer set.mutex.Unlock()
	for other := range set.all {
		if other.changes != changes && other.offset < claimed.end() && claimed.offset < other.end() {
			return nil
		}
	}
	if set.all == nil {
		set.all = map[*part]bool{}
	}
	set.all[claimed] = true
	return claimed
}

func (set *partSet) release(claimed *part) {
	set.mutex.Lock()
	defer set.mutex.Unlock()
	delete(set.all, claimed)
}

// ReserveRange reserves addresses, far more than there is memory if wished. No processor can access them before something
// is mapped.
func (i *Instance) ReserveRange(options RangeOptions) (*AddressRange, error) {
	if err := options.check("Instance.ReserveRange"); err != nil {
		return nil, err
	}
	desc := options.native()
	made := C.gpumem_go_range_reserve(i.id(), inC(&desc), options.Name)
	runtime.KeepAlive(i)
	if err := failure(made.result); err != nil {
		return nil, err
	}
	r := &AddressRange{instance: i, reservation: uintptr(made.result.value)}
	r.address, r.size = uint64(made.base), options.Size
	r.what, r.sparse = "range", true
	closeWhenCollected(r, (*AddressRange).closeDropped)
	return r, nil
}

func (r *AddressRange) closeDropped() outcome {
	return r.dropped(r.instance, func() error {
		if err := failure(C.gpumem_go_range_unmap(r.id(), 0, wholeRange)); err != nil {
			return err
		}
		return r.Close()
	})
}

// Close gives the addresses back. While something is mapped, it fails with ErrBusy: call Unmap first.
func (r *AddressRange) Close() error {
	if r == nil || r.reservation == 0 {
		return nil
	}
	done, err := r.gate.close("AddressRange.Close", func() error {
		return unlessGone(failure(C.gpumem_go_range_release(r.id())))
	})
	if done {
		closedByHand(r)
	}
	runtime.KeepAlive(r)
	return err
}

// DevicePtr returns the address of the first byte for devices, for use by kernels and other code; 0 if the range is
// closed. It does not keep the range alive.
func (r *AddressRange) DevicePtr() DevicePtr {
	if r == nil || r.reservation == 0 || r.closed() || r.instance.closed() {
		return 0
	}
	r.shown.Store(true)
	return DevicePtr(r.address)
}

// Map maps physical memory one behind the other from an offset, all or nothing. Each is mapped whole. No processor has
// access to a new mapping: see SetAccess. The mapping keeps the memory alive, so each Physical may be closed afterwards.
// Work on other parts of the range may go on.
func (r *AddressRange) Map(offset uint64, memory ...*Physical) error {
	handles := make([]uintptr, len(memory))
	for index, one := range memory {
		handles[index] = uintptr(one.id())
	}
	return checked(C.gpumem_go_range_map(r.id(), C.uint64_t(offset), first(handles), C.uint64_t(len(handles))), r, memory)
}

// change runs a call that may take access away from the CPU.
func (r *AddressRange) change(function string, offset, size uint64, call func() C.gpumem_go_result) error {
	if r != nil {
		claimed := r.parts.claim(offset, size, true)
		if claimed == nil {
			return refusal(ErrBusy, function, "a view uses this part of the range; end it, then call again")
		}
		defer r.parts.release(claimed)
	}
	err := failure(call())
	runtime.KeepAlive(r)
	return err
}

// Unmap unmaps whole mappings, one or several in a row. All work that uses them must have been observed complete. It fails
// with ErrBusy while a View uses them.
func (r *AddressRange) Unmap(offset, size uint64) error {
	return r.change("AddressRange.Unmap", offset, size, func() C.gpumem_go_result {
		return C.gpumem_go_range_unmap(r.id(), C.uint64_t(offset), C.uint64_t(size))
	})
}

// ProcessorAccess is what one processor may do.
type ProcessorAccess struct {
	Location   Location // LocationDevice or LocationHost.
	LocationID int      // Ordinal of the device; 0 for the CPU.
	Access     Access   // AccessNone, AccessRead or AccessReadWrite.
}

// nativeAccesses returns accesses for the library, and whether one is of the CPU.
func nativeAccesses(function string, accesses []ProcessorAccess) (native []nativeAccessDesc, ofCPU bool, err error) {
	native = make([]nativeAccessDesc, len(accesses))
	for index, one := range accesses {
		if err := checkLocationID(function, one.LocationID); err != nil {
			return nil, false, err
		}
		ofCPU = ofCPU || one.Location == LocationHost
		native[index] = nativeAccessDesc{unsafe.Sizeof(native[index]), int32(one.Location), int32(one.LocationID),
			int32(one.Access), 0}
	}
	return native, ofCPU, nil
}

// SetAccess sets what processors may do with whole mappings, one or several in a row; all is set or nothing. Processors
// that are not named keep what they have. Before access is taken away, all work that uses it must have been observed
// complete. For the CPU it fails with ErrBusy while a View uses the mappings.
func (r *AddressRange) SetAccess(offset, size uint64, accesses ...ProcessorAccess) error {
	const name = "AddressRange.SetAccess"
	native, ofCPU, err := nativeAccesses(name, accesses)
	if err != nil {
		return err
	}
	set := func() C.gpumem_go_result {
		return C.gpumem_go_range_set_access(r.id(), C.uint64_t(offset), C.uint64_t(size), first(native), C.uint64_t(len(native)))
	}
	if ofCPU {
		return r.change(name, offset, size, set)
	}
	err = failure(set())
	runtime.KeepAlive(r)
	return err
}

// View calls a function with a part of the range as a slice, which is valid until the function returns. The CPU needs
// access to all of it; if that is AccessRead, writing faults. Meanwhile the part cannot be unmapped, and the range and its
// instance cannot be closed: that fails with ErrBusy.
func (r *AddressRange) View(offset, size uint64, use func(bytes []byte) error) error {
	const name = "AddressRange.View"
	if r == nil || r.reservation == 0 {
		return refusal(ErrInvalidArgument, name, "the range is nil")
	}
	if offset > r.size || size > r.size-offset {
		return refusal(ErrInvalidArgument, name, "%d bytes at offset %d exceed the range, which has %d bytes", size, offset,
			r.size)
	}
	return r.held(r.instance, name, func() error {
		claimed := r.parts.claim(offset, size, false)
		if claimed == nil {
			return refusal(ErrBusy, name, "another goroutine changes this part of the range")
		}
		defer r.parts.release(claimed)
		if err := r.checkCPU(name, offset, offset+size); err != nil {
			return err
		}
		return viewed(name, use, unsafe.Slice((*byte)(pointerTo(r.address+offset)), int(size)))
	})
}

// checkCPU refuses a part of the range that the CPU cannot access as a whole.
func (r *AddressRange) checkCPU(name string, offset, end uint64) error {
	for offset < end {
		mapping, err := r.instance.mapping(r.address + offset)
		if err != nil {
			return calledAs(name, err)
		}
		access, err := r.instance.PointerAccess(r.At(offset), LocationHost, 0)
		if err != nil {
			return calledAs(name, err)
		}
		if access&AccessRead == 0 {
			return refusal(ErrNoAccess, name, "the CPU has no access to the memory at offset %d; call SetAccess, or copy it",
				offset)
		}
		offset = mapping.Base + mapping.Size - r.address
	}
	return nil
}

// Mapping gets what is mapped at an address in a range. What a processor may do there, [Instance.PointerAccess] reports.
func (i *Instance) Mapping(address Address) (MappingInfo, error) {
	if err := address.enter("Instance.Mapping", 1); err != nil {
		return MappingInfo{}, err
	}
	defer address.leave()
	// The result has a number by which the memory can be used unseen.
	return i.mapping(address.Number())
}

func (i *Instance) mapping(number uint64) (MappingInfo, error) {
	info := nativeMappingInfo{structSize: unsafe.Sizeof(nativeMappingInfo{})}
	err := checked(C.gpumem_go_range_get_mapping(i.id(), C.uint64_t(number), inC(&info)), i)
	return info.public(), err
}
