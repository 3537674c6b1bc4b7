// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Memory is one allocation or registration of any kind.
type Memory struct {
	block
	device        *Device
	devicePointer uint64
	managed       bool   // The CPU may touch the bytes only between beginAccess and endAccess.
	below         *block // The Pageable that this registration lies in.
	imported      bool   // Other imports may have the same handle, which outlives this one.
	exported      uint64 // Offset of the byte that the exporter named.
}

// NewMemory allocates memory. Its contents are indeterminate, also those of pinned memory; [NewPinned] zeroes it.
func (d *Device) NewMemory(options MemoryOptions) (*Memory, error) {
	if err := options.check("Device.NewMemory"); err != nil {
		return nil, err
	}
	desc := options.native()
	m, err := d.memory(C.gpumem_go_memory_create(d.id(), inC(&desc), options.Name), options.Size)
	if err != nil {
		return nil, err
	}
	m.own()
	if options.Kind == KindManaged {
		m.managed = true
		if err := m.takeTurns(); err != nil {
			_ = m.Close()
			return nil, calledAs("Device.NewMemory", err)
		}
	}
	return m, nil
}

// RegisterMemory page-locks existing memory, so that devices can use it where it lies, until the Memory is closed. The
// address is that of a Pageable or a part of it, which cannot be closed meanwhile; or a raw address of memory that is not
// Go's and stays mapped. [Pageable.Register] registers all of it.
func (d *Device) RegisterMemory(address Address, size uint64, options RegisterOptions) (*Memory, error) {
	const name = "Device.RegisterMemory"
	if err := options.check(name); err != nil {
		return nil, err
	}
	below := address.owner
	if below != nil {
		// The memory behind a buffer may belong to anybody, even to Go.
		base, bytes := below.extent()
		if offset := address.value - base; offset > bytes || size > bytes-offset {
			return nil, refusal(ErrInvalidArgument, name, "%d bytes at offset %d exceed the memory, which has %d bytes", size,
				offset, bytes)
		}
		if err := below.hold(name); err != nil {
			return nil, err
		}
	}
	desc := nativeRegisterDesc{
		pointer: address.value,
		size:    size,
		require: uint64(options.Require),
		prefer:  uint64(options.Prefer),
	}
	desc.structSize = unsafe.Sizeof(desc)
	m, err := d.memory(C.gpumem_go_memory_register(d.id(), inC(&desc), options.Name), size)
	if err != nil {
		if below != nil {
			below.release()
		}
		return nil, err
	}
	m.below = below
	m.own()
	return m, nil
}

func (d *Device) memory(made C.gpumem_go_memory, size uint64) (*Memory, error) {
	runtime.KeepAlive(d)
	if err := failure(made.result); err != nil {
		return nil, err
	}
	m := &Memory{device: d, devicePointer: uint64(made.device_pointer)}
	m.handle = uintptr(made.result.value)
	m.host = uint64(made.host_pointer)
	m.size = size
	m.address = m.host
	if m.host == 0 {
		m.address = m.devicePointer
	}
	m.what = "memory"
	closeWhenCollected(m, (*Memory).closeDropped)
	return m, nil
}

// own has the memory freed by nobody else, by neither of its addresses.
func (m *Memory) own() {
	ownedMemory.add(m.device.instance, m.address, &m.block)
	ownedMemory.add(m.device.instance, m.devicePointer, &m.block)
}

func (m *Memory) disown() {
	ownedMemory.remove(m.device.instance, m.address, &m.block)
	ownedMemory.remove(m.device.instance, m.devicePointer, &m.block)
}

func (m *Memory) closeDropped() outcome {
	defer m.disown() // What is kept has no object any more.
	if m.device.instance.closed() {
		m.releaseBelow()
	} else if m.below != nil && !m.below.noting().streams.observe() {
		return outcomeKept // Work may use the memory by the Pageable's own address.
	}
	return m.dropped(m.device.instance, m.Close)
}

func (m *Memory) releaseBelow() {
	if m.below != nil {
		m.below.release()
	}
}

// Close frees an allocation, makes registered memory pageable again and keeps its contents, or ends an import. All device
// work on the memory must have been observed complete; if the backend knows that it was not, Close fails with ErrBusy. So
// it does while another process has the memory imported by ShareWayLegacy. On the cuda backend the driver may wait for all
// work of the device, also if none of it uses the memory.
func (m *Memory) Close() error {
	if m == nil || m.handle == 0 {
		return nil
	}
	done, err := m.gate.close("Memory.Close", func() error {
		return unlessGone(failure(C.gpumem_go_memory_destroy(m.id())))
	})
	if done {
		closedByHand(m)
		m.disown()
		m.releaseBelow()
	}
	runtime.KeepAlive(m)
	return err
}

// gone reports whether the bytes must not be touched any more.
func (m *Memory) gone() bool {
	return m == nil || m.handle == 0 || m.closed() || m.device.instance.closed()
}

// DevicePtr returns the address of the first byte for devices, for use by kernels and other code; 0 if there is none or
// the memory is closed. It does not keep the memory alive.
func (m *Memory) DevicePtr() DevicePtr {
	if m.gone() {
		return 0
	}
	m.shown.Store(true)
	return DevicePtr(m.devicePointer)
}

// Bytes returns pinned or registered memory as a slice, which is valid until Close. It is nil for device memory, for
// managed memory, which the CPU may not touch at any time, and after Close.
func (m *Memory) Bytes() []byte {
	if m.gone() || m.managed {
		return nil
	}
	return sliceOf[byte](&m.block, m.size)
}

// View calls a function with the memory as a slice, which is valid until the function returns. Meanwhile the memory and
// its instance cannot be closed: Close fails with ErrBusy. For managed memory it first waits until the CPU may touch it;
// see [Memory.BeginHostAccess].
func (m *Memory) View(use func(bytes []byte) error) error {
	return view(m, "Memory.View", func() error { return viewed("Memory.View", use, unsafe.Slice((*byte)(pointerTo(m.host)), int(m.size))) })
}

// viewed calls the function of a View.
func viewed[T any](name string, use func([]T) error, values []T) error {
	if use == nil {
		return refusal(ErrInvalidArgument, name, "the function is nil")
	}
	return use(values)
}

func view(m *Memory, name string, use func() error) error {
	if m == nil || m.handle == 0 {
		return refusal(ErrInvalidArgument, name, "the memory is nil")
	}
	if !m.managed {
		return m.block.view(m.device.instance, name, nil, nil, use)
	}
	return m.block.view(m.device.instance, name, m.beginAccess, func(name string) error {
		_, err := m.endAccess(name)
		return err
	}, use)
}

// held runs a function for a view. Meanwhile the block and its instance cannot be closed.
func (b *block) held(instance *Instance, name string, use func() error) error {
	if err := instance.hold(name); err != nil {
		return err
	}
	defer instance.release()
	if err := b.hold(name); err != nil {
		return err
	}
	defer b.release()
	return use()
}

// view runs a function that uses the memory of a block with the CPU, after begin and before end, which managed memory has.
func (b *block) view(instance *Instance, name string, begin, end func(name string) error, use func() error) error {
	return b.held(instance, name, func() (err error) {
		if b.host == 0 && b.size != 0 {
			return refusal(ErrWrongKind, name, "the CPU cannot access device memory; copy it")
		}
		if begin != nil && b.size != 0 {
			if err := begin(name); err != nil {
				return err
			}
			defer func() {
				if ended := end(name); err == nil {
					err = ended
				}
			}()
		}
		return use()
	})
}

// sliceOf returns the memory of a block; nil if the CPU must not touch it.
func sliceOf[T any](b *block, count uint64) []T {
	if b.host == 0 {
		return nil
	}
	b.shown.Store(true)
	return unsafe.Slice((*T)(pointerTo(b.host)), int(count))
}

// Info gets information about the memory. It works after the device was lost.
func (m *Memory) Info() (MemoryInfo, error) {
	if err := m.checkImport("Memory.Info"); err != nil {
		return MemoryInfo{}, err
	}
	info := nativeMemoryInfo{structSize: unsafe.Sizeof(nativeMemoryInfo{})}
	err := checked(C.gpumem_go_memory_get_info(m.id(), inC(&info)), m)
	return info.public(), err
}

// Register page-locks memory of other code by a raw address. The memory must not be Go's and must stay mapped until it
// is unregistered. [Pageable.Register] and [Device.RegisterMemory] return an object.
func (d *Device) Register(address Address, size uint64, require MemoryFlags) error {
	if address.owner != nil {
		return refusal(ErrInvalidArgument, "Device.Register", "the address belongs to an object; use Device.RegisterMemory")
	}
	return checked(C.gpumem_go_register(d.id(), C.uint64_t(address.value), C.uint64_t(size),
		C.gpumem_memory_flags(require)), d)
}
