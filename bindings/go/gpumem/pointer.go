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
