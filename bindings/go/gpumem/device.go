// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Device is one processor with its memory. It lives as long as its instance and needs no Close.
type Device struct {
	instance *Instance
	handle   uintptr
	ordinal  int
}

func (d *Device) id() C.uintptr_t {
	if d == nil {
		return 0
	}
	return C.uintptr_t(d.handle)
}

// Device gets a device by its ordinal, from 0.
func (i *Instance) Device(ordinal int) (*Device, error) {
	if ordinal < 0 || uint64(ordinal) > 1<<32-1 {
		return nil, refusal(ErrInvalidArgument, "Instance.Device", "no device has the ordinal %d; they are numbered from 0", ordinal)
	}
	result := C.gpumem_go_device_get(i.id(), C.uint32_t(ordinal))
	runtime.KeepAlive(i)
	if err := failure(result); err != nil {
		return nil, err
	}
	return &Device{instance: i, handle: uintptr(result.value), ordinal: ordinal}, nil
}

// Devices returns all devices of the instance.
func (i *Instance) Devices() ([]*Device, error) {
	info, err := i.Info()
	if err != nil {
		return nil, err
	}
	devices := make([]*Device, info.DeviceCount)
	for ordinal := range devices {
		if devices[ordinal], err = i.Device(ordinal); err != nil {
			return nil, err
		}
	}
	return devices, nil
}

// Instance returns the instance of the device.
func (d *Device) Instance() *Instance {
	if d == nil {
		return nil
	}
	return d.instance
}

// Ordinal returns the number of the device in its instance.
func (d *Device) Ordinal() int {
	if d == nil {
		return 0
	}
	return d.ordinal
}

// Info gets information about the device. It works after the device was lost.
func (d *Device) Info() (DeviceInfo, error) {
	var info nativeDeviceInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_device_get_info(d.id(), (*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(d)
	return info.public(), err
}

// Memory gets the free and total bytes of the device. Both are estimates: other processes change them at any time.
func (d *Device) Memory() (free, total uint64, err error) {
	var freeBytes, totalBytes C.uint64_t
	err = failure(C.gpumem_go_device_get_memory(d.id(), &freeBytes, &totalBytes))
	runtime.KeepAlive(d)
	return uint64(freeBytes), uint64(totalBytes), err
}

// TrimGraphs gives back the memory that the device keeps for graphs, such as those that captured cudaMallocAsync, and that no
// graph uses. It returns the bytes; 0 on the host backend.
func (d *Device) TrimGraphs() (uint64, error) {
	result := C.gpumem_go_device_trim_graphs(d.id())
	runtime.KeepAlive(d)
	return uint64(result.value), failure(result)
}

// CanAccessPeer reports whether this device could access the memory of a peer directly.
func (d *Device) CanAccessPeer(peer *Device) (bool, error) {
	result := C.gpumem_go_device_can_access_peer(d.id(), peer.id())
	runtime.KeepAlive(d)
	runtime.KeepAlive(peer)
	return result.value != 0, failure(result)
}

// EnablePeerAccess lets this device access all device memory of a peer, present and future, at the same addresses. The
// access is one-way and counted. Copies between devices do not need it.
func (d *Device) EnablePeerAccess(peer *Device) error {
	err := failure(C.gpumem_go_device_enable_peer_access(d.id(), peer.id()))
	runtime.KeepAlive(d)
	runtime.KeepAlive(peer)
	return err
}

// DisablePeerAccess undoes one EnablePeerAccess.
func (d *Device) DisablePeerAccess(peer *Device) error {
	err := failure(C.gpumem_go_device_disable_peer_access(d.id(), peer.id()))
	runtime.KeepAlive(d)
	runtime.KeepAlive(peer)
	return err
}
