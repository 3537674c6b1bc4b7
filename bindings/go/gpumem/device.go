// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import ()

// Device is one processor with its memory. It lives as long as its instance and needs no Close.
type Device struct {
	instance *Instance
	handle   uintptr
	ordinal  int
}

// Device gets a device by its ordinal, from 0.
func (i *Instance) Device(ordinal int) (*Device, error) {
	if ordinal < 0 || uint64(ordinal) > 1<<32-1 {
		return nil, refusal(ErrInvalidArgument, "Instance.Device", "no device has the ordinal %d; they are numbered from 0", ordinal)
	}
	handle, err := valueOf[uintptr](C.gpumem_go_device_get(i.id(), C.uint32_t(ordinal)), i)
	if err != nil {
		return nil, err
	}
	return &Device{instance: i, handle: handle, ordinal: ordinal}, nil
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

// Memory gets the free and total bytes of the device. Both are estimates: other processes change them at any time.
func (d *Device) Memory() (free, total uint64, err error) {
	var freeBytes, totalBytes C.uint64_t
	err = checked(C.gpumem_go_device_get_memory(d.id(), &freeBytes, &totalBytes), d)
	return uint64(freeBytes), uint64(totalBytes), err
}

// TrimGraphs gives back the memory that the device keeps for graphs, such as those that captured cudaMallocAsync, and that no
// graph uses. It returns the bytes; 0 on the host backend.
func (d *Device) TrimGraphs() (uint64, error) {
	return valueOf[uint64](C.gpumem_go_device_trim_graphs(d.id()), d)
}

// CanAccessPeer reports whether this device could access the memory of a peer directly.
func (d *Device) CanAccessPeer(peer *Device) (bool, error) {
	can, err := valueOf[uint64](C.gpumem_go_device_can_access_peer(d.id(), peer.id()), d, peer)
	return can != 0, err
}

// EnablePeerAccess lets this device access all device memory of a peer, present and future, at the same addresses. The
// access is one-way and counted. Copies between devices do not need it.
func (d *Device) EnablePeerAccess(peer *Device) error {
	return checked(C.gpumem_go_device_enable_peer_access(d.id(), peer.id()), d, peer)
}

// DisablePeerAccess undoes one EnablePeerAccess.
func (d *Device) DisablePeerAccess(peer *Device) error {
	return checked(C.gpumem_go_device_disable_peer_access(d.id(), peer.id()), d, peer)
}
