// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// CapabilityInfo is the answer to a question about a capability.
type CapabilityInfo struct {
	Capability   Capability
	Type         CapabilityType   // What Value counts.
	Value        uint64           // The answer.
	Source       CapabilitySource // How it was found.
	Status       Status           // What a call that needs it would return.
	NativeDomain NativeDomain     // Whose number NativeCode is.
	NativeCode   int32            // Code that the trial got; 0 if there was none.
	Name         string           // Such as "pin.map_host".
	Reason       string           // One line: how the answer was established, or why not.
}

// Capability asks what the device can do. The first question may try it, which takes a few milliseconds.
func (d *Device) Capability(capability Capability) (CapabilityInfo, error) {
	return d.PeerCapability(capability, nil)
}

// PeerCapability asks what the device can do together with another one: CapabilityPeerAccess or
// CapabilityPeerAtomics.
func (d *Device) PeerCapability(capability Capability, peer *Device) (CapabilityInfo, error) {
	var info nativeCapabilityInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_device_get_capability(d.id(), C.gpumem_capability(capability), peer.id(),
		(*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(d)
	runtime.KeepAlive(peer)
	if err != nil {
		return CapabilityInfo{}, err
	}
	return CapabilityInfo{
		Capability:   Capability(info.capability),
		Type:         CapabilityType(info.type_),
		Value:        info.value,
		Source:       CapabilitySource(info.source),
		Status:       Status(info.status),
		NativeDomain: NativeDomain(info.nativeDomain),
		NativeCode:   info.nativeCode,
		Name:         text(info.name[:]),
		Reason:       text(info.reason[:]),
	}, nil
}

// Capabilities are all capabilities that the library in use knows.
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
