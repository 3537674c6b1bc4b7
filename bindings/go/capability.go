// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Capability is something that can be asked of a device.
type Capability int32

// The capabilities.
const (
	CapabilityUVA                    Capability = 1  // uva: one address space for host and devices.
	CapabilityDeviceCount            Capability = 2  // device.count: devices of the instance.
	CapabilityDeviceBytes            Capability = 3  // device.bytes: memory of the device.
	CapabilityDeviceCPUAccess        Capability = 4  // dev.cpu_access: the CPU may touch device memory.
	CapabilityPinMapHost             Capability = 10 // pin.map_host: the device can use pinned memory in place.
	CapabilityPinPageLocked          Capability = 11 // pin.page_locked: pinned pages are really locked.
	CapabilityPinWriteCombined       Capability = 12 // pin.write_combined: write-combined pinned memory.
	CapabilityPinRegister            Capability = 13 // pin.register: pinning of memory that exists already.
	CapabilityPinRegisterSamePointer Capability = 14 // pin.register_same_pointer: one address for CPU and devices.
	CapabilityPinRegisterReadOnly    Capability = 15 // pin.register_read_only: pinning for reading only.
	CapabilityPinRegisterIOMemory    Capability = 16 // pin.register_iomemory: pinning of memory-mapped I/O.
	CapabilityPinMaxSingle           Capability = 17 // pin.max_single: largest range that is locked in one piece.
	CapabilityPinMaxCount            Capability = 18 // pin.max_count: pieces that may be locked at once.
	CapabilityPinNUMA                Capability = 19 // pin.numa: pinned memory can be placed on a NUMA node.
	CapabilityHostAtomics            Capability = 20 // host.atomics: atomics work across CPU and device.
	CapabilityPageable               Capability = 30 // man.pageable: the device reaches ordinary memory.
	CapabilityPageableHostTables     Capability = 31 // man.pageable_host_tables: by the host's page tables.
	CapabilityStreamValue32          Capability = 40 // stream.value32: value write and wait on 4 bytes.
	CapabilityStreamValue64          Capability = 41 // stream.value64: value write and wait on 8 bytes.
	CapabilityStreamValueNor         Capability = 42 // stream.value_nor: value wait with WaitValueNor.
	CapabilityCopyEngines            Capability = 50 // copy.engines: copies that can run at the same time.
	CapabilityPeerAccess             Capability = 60 // peer.access: asked of a pair of devices.
	CapabilityPeerAtomics            Capability = 61 // peer.atomics: asked of a pair of devices.
)

// CapabilityType is what Value of a CapabilityInfo counts.
type CapabilityType int32

// The types.
const (
	CapabilityTypeTri   CapabilityType = 1 // CapabilityNo, CapabilityYes or CapabilityEmulated.
	CapabilityTypeInt   CapabilityType = 2 // A number.
	CapabilityTypeBytes CapabilityType = 3 // A number of bytes.
)

// The answers of the type CapabilityTypeTri.
const (
	CapabilityNo       uint64 = 0 // It cannot be done; Status and Reason say why.
	CapabilityYes      uint64 = 1 // It works.
	CapabilityEmulated uint64 = 2 // It works as described, without the effect on hardware.
)

// CapabilitySource is how an answer was found.
type CapabilitySource int32

// The sources.
const (
	CapabilityFromAttribute     CapabilitySource = 1 // The driver says so.
	CapabilityFromTrial         CapabilitySource = 2 // It was tried.
	CapabilityFromConfiguration CapabilitySource = 3 // An option of the instance says so.
	CapabilityFromContract      CapabilitySource = 4 // It is so for every device of this backend.
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
		Type:         CapabilityType(info.kind),
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
