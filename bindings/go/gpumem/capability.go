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
func Capabilities() ([]Capability, error) {
	return enumerated[Capability](func(index C.uint32_t) C.gpumem_go_result { return C.gpumem_go_capability_enumerate(index) })
}
