// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"math"
	"unsafe"
)

// IsIn says whether the address was in a buffer: in the addresses that it has reserved, also behind its size and while it slept.
func (i PointerInfo) IsIn(buffer *GrowableBuffer) bool {
	id := uintptr(buffer.id())
	return id != 0 && id == i.buffer
}

// Pointer gets information about any address, whether the library made it or not. That of an object must be inside it: of a
// [GrowableBuffer], anywhere in the addresses that it has reserved, while it sleeps too.
func (i *Instance) Pointer(address Address) (PointerInfo, error) {
	if err := address.enter("Instance.Pointer", 1); err != nil {
		return PointerInfo{}, err
	}
	defer address.leave()
	info := nativePointerInfo{structSize: unsafe.Sizeof(nativePointerInfo{})}
	// The result has numbers by which the memory can be used unseen.
	number := address.Number()
	err := checked(C.gpumem_go_pointer_get_info(i.id(), C.uint64_t(number), inC(&info)), i)
	return info.public(), err
}

// PointerAccess gets what one processor may do, in place, with the memory at an address: the device with the ordinal
// locationID for LocationDevice, or the CPU for LocationHost, where locationID is 0 or -1. Copies and fills need no
// such right. The answer can change: enabling peer access adds to it, and unmapping takes from it.
func (i *Instance) PointerAccess(address Address, location Location, locationID int) (Access, error) {
	const name = "Instance.PointerAccess"
	if err := checkLocationID(name, locationID); err != nil {
		return AccessNone, err
	}
	if err := address.enter(name, 1); err != nil {
		return AccessNone, err
	}
	defer address.leave()
	return valueOf[Access](C.gpumem_go_pointer_get_access(i.id(), C.uint64_t(address.value), C.gpumem_location(location),
		C.int32_t(locationID)), i)
}

// checkLocationID refuses numbers that C cannot express.
func checkLocationID(function string, id int) error {
	if id < math.MinInt32 || id > math.MaxInt32 {
		return refusal(ErrInvalidArgument, function, "no processor or NUMA node has the id %d", id)
	}
	return nil
}

// DevicePointer gets the address of a byte of host memory for this device. The address of device memory is returned
// unchanged.
func (d *Device) DevicePointer(address Address) (DevicePtr, error) {
	if err := address.enter("Device.DevicePointer", 1); err != nil {
		return 0, err
	}
	defer address.leave()
	return valueOf[DevicePtr](C.gpumem_go_pointer_get_device_pointer(d.id(), C.uint64_t(address.Number())), d)
}
