// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"unsafe"
)

// Capability queries a capability of the device. The first query may run a trial, which takes a few milliseconds.
func (d *Device) Capability(capability Capability) (CapabilityInfo, error) {
	return d.PeerCapability(capability, nil)
}

// PeerCapability queries a capability of a pair of devices: CapabilityPeerAccess or CapabilityPeerAtomics.
func (d *Device) PeerCapability(capability Capability, peer *Device) (CapabilityInfo, error) {
	info := nativeCapabilityInfo{structSize: unsafe.Sizeof(nativeCapabilityInfo{})}
	err := checked(C.gpumem_go_device_get_capability(d.id(), C.gpumem_capability(capability), peer.id(),
		inC(&info)), d, peer)
	return info.public(), err
}

// Capabilities lists the capabilities of the library in use.
func Capabilities() (list []Capability, err error) {
	if err := useLibrary(); err != nil {
		return nil, err
	}
	for index := C.uint32_t(0); ; index++ {
		result := C.gpumem_go_capability_enumerate(index)
		if Status(result.status) == ErrNotFound {
			C.free(unsafe.Pointer(result.detail))
			return list, nil
		}
		if err := failure(result); err != nil {
			return nil, err
		}
		list = append(list, Capability(int64(result.value)))
	}
}
