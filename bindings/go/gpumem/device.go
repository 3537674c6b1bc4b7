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
