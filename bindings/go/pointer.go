// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// PointerInfo is what is known about an address.
type PointerInfo struct {
	Kind          Kind
	Location      Location    // Where its bytes lie.
	LocationID    int         // Device ordinal or NUMA node of the location; -1 if it has none.
	DeviceOrdinal int         // Device of the allocation or registration; -1 if none.
	HostPointer   uint64      // The same byte for the CPU; 0 if none.
	DevicePointer DevicePtr   // The same byte for devices; 0 if none.
	Base          uint64      // First byte of the object, in the address range that was asked in; 0 if unknown.
	Size          uint64      // Bytes of the object; 0 if unknown.
	BufferID      uint64      // Number of the allocation, never used again; 0 if none.
	GrantedFlags  MemoryFlags // Its properties.
	Access        Access      // What the devices in AccessDevices may do.
	AccessDevices uint64      // Bit n stands for the device with ordinal n.
	Owned         bool        // It was made through this instance.
}

// Pointer tells what is known about any address, ours or not.
func (i *Instance) Pointer(address Address) (PointerInfo, error) {
	if err := address.enter("Instance.Pointer", 1); err != nil {
		return PointerInfo{}, err
	}
	defer address.leave()
	var info nativePointerInfo
	info.structSize = unsafe.Sizeof(info)
	// The answer has numbers by which the memory can be used unseen.
	number := address.Number()
	err := failure(C.gpumem_go_pointer_get_info(i.id(), C.uint64_t(number), (*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(i)
	if err != nil {
		return PointerInfo{}, err
	}
	return PointerInfo{
		Kind:          Kind(info.kind),
		Location:      Location(info.location),
		LocationID:    int(info.locationID),
		DeviceOrdinal: int(info.deviceOrdinal),
		HostPointer:   info.hostPointer,
		DevicePointer: DevicePtr(info.devicePointer),
		Base:          info.base,
		Size:          info.size,
		BufferID:      info.bufferID,
		GrantedFlags:  MemoryFlags(info.grantedFlags),
		Access:        Access(info.access),
		AccessDevices: info.accessDevices,
		Owned:         info.memory != 0,
	}, nil
}

// DevicePointer is the address of a byte of host memory for this device. The address of device memory is returned as
// it is.
func (d *Device) DevicePointer(address Address) (DevicePtr, error) {
	if err := address.enter("Device.DevicePointer", 1); err != nil {
		return 0, err
	}
	defer address.leave()
	result := C.gpumem_go_pointer_get_device_pointer(d.id(), C.uint64_t(address.Number()))
	runtime.KeepAlive(d)
	return DevicePtr(result.value), failure(result)
}
