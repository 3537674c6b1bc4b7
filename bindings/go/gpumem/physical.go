// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"os"
	"runtime"
)

// Physical is memory without an address, on a device or on the host, to be mapped into an [AddressRange]. The memory
// lives while anything refers to it: a Physical, a mapping, a file, or another process that imported it.
type Physical struct {
	handled
	instance *Instance
}

// PhysicalGranularity gets the units in which physical memory with these options is made and mapped: the smallest, and
// the one for the best performance. Size is ignored.
func (d *Device) PhysicalGranularity(options PhysicalOptions) (minimum, recommended uint64, err error) {
	desc := options.native()
	var least, best C.uint64_t
	err = checked(C.gpumem_go_physical_get_granularity(d.id(), inC(&desc), "", &least, &best), d)
	return uint64(least), uint64(best), err
}

// NewPhysical makes physical memory. Its contents are indeterminate, and nobody can access it before it is mapped.
func (d *Device) NewPhysical(options PhysicalOptions) (*Physical, error) {
	if err := options.check("Device.NewPhysical"); err != nil {
		return nil, err
	}
	desc := options.native()
	result := C.gpumem_go_physical_create(d.id(), inC(&desc), options.Name)
	return d.Instance().physical(result)
}

// ImportPhysical makes a Physical of a file that [Physical.Export] made, here or in another process. Location, size and
// handle types are those with which the memory was made; Require and Prefer are 0. The file stays the caller's, who may
// close it afterwards.
func (d *Device) ImportPhysical(file *os.File, options PhysicalOptions) (*Physical, error) {
	const name = "Device.ImportPhysical"
	if err := options.check(name); err != nil {
		return nil, err
	}
	desc := options.native()
	var imported *Physical
	var importErr error
	err := withDescriptor(name, file, func(descriptor uintptr) {
		imported, importErr = d.Instance().physical(C.gpumem_go_physical_import_fd(d.id(), inC(&desc), options.Name,
			C.int32_t(descriptor)))
	})
	if err != nil {
		return nil, err
	}
	return imported, importErr
}

// FabricHandle is a handle of physical memory for other nodes of the fabric: bytes that may be sent by any channel. Only
// the driver can read it.
type FabricHandle [64]byte

// ImportFabric makes a Physical of a handle that [Physical.ExportFabric] made, here or elsewhere on the fabric. Location,
// size and handle types are those with which the memory was made; Require and Prefer are 0.
func (d *Device) ImportFabric(handle FabricHandle, options PhysicalOptions) (*Physical, error) {
	if err := options.check("Device.ImportFabric"); err != nil {
		return nil, err
	}
	desc := options.native()
	return d.Instance().physical(C.gpumem_go_physical_import_fabric(d.id(), inC(&desc), options.Name,
		(*C.uint8_t)(&handle[0])))
}

// RetainPhysical gets one more Physical of the memory that is mapped at an address.
func (i *Instance) RetainPhysical(address Address) (*Physical, error) {
	if err := address.enter("Instance.RetainPhysical", 1); err != nil {
		return nil, err
	}
	defer address.leave()
	return i.physical(C.gpumem_go_physical_retain(i.id(), C.uint64_t(address.value)))
}

func (i *Instance) physical(result C.gpumem_go_result) (*Physical, error) {
	runtime.KeepAlive(i)
	if err := failure(result); err != nil {
		return nil, err
	}
	p := &Physical{instance: i, handled: handled{handle: uintptr(result.value)}}
	// That is always safe, because mappings keep the memory.
	closeWhenDropped(p, i)
	return p, nil
}

// Export makes a file for physical memory with HandleTypePOSIXFD. Another process can import it; pass it there with
// exec.Cmd.ExtraFiles or over a Unix socket. The file keeps the memory alive until it is closed. The CUDA driver does not
// export memory that was imported.
func (p *Physical) Export() (*os.File, error) {
	handle, err := valueOf[uintptr](C.gpumem_go_physical_export_fd(p.id()), p)
	if err != nil {
		return nil, err
	}
	return os.NewFile(handle, "gpumem.Physical"), nil
}

// ExportFabric makes a handle for physical memory with HandleTypeFabric, which a process on this or another node of the
// fabric can import. The handle does not keep the memory alive.
func (p *Physical) ExportFabric() (handle FabricHandle, err error) {
	err = checked(C.gpumem_go_physical_export_fabric(p.id(), (*C.uint8_t)(&handle[0])), p)
	return handle, err
}
