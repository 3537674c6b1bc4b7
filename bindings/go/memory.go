// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// MemoryOptions is what is to be allocated or registered.
type MemoryOptions struct {
	Kind      Kind        // KindDevice, KindPinned or KindRegistered. Set by calls whose name says it.
	Size      uint64      // Bytes. Set by calls that take a length.
	Alignment uint64      // Power of two in bytes, met exactly or refused; 0 means at least 256. Not for registered memory.
	Require   MemoryFlags // Properties without which the call shall fail.
	Prefer    MemoryFlags // Properties that may be missing from what is granted.
	NUMANode  int32       // Node for MemoryNUMANode; otherwise 0.
	Name      string      // For messages and reports, up to 63 bytes.
	// Host is the first byte of memory to register: of a Buffer, which cannot be closed as long as it is registered,
	// or a raw address of memory that is not Go's and stays mapped.
	Host Address
}

// Memory is one allocation or registration of any kind.
type Memory struct {
	block
	device        *Device
	handle        uintptr
	devicePointer uint64
	below         *block // The Buffer that this registration lies in.
}

func (m *Memory) id() C.uintptr_t {
	if m == nil {
		return 0
	}
	return C.uintptr_t(m.handle)
}

// NewMemory allocates memory, or page-locks memory that exists. Fresh memory has indeterminate contents.
func (d *Device) NewMemory(options MemoryOptions) (*Memory, error) {
	if err := checkTexts("Device.NewMemory", options.Name); err != nil {
		return nil, err
	}
	// A registration holds the memory that it lies in until it is closed.
	below := options.Host.owner
	if below != nil {
		// What lies behind a buffer may belong to anybody, even to Go.
		if offset := options.Host.value - below.address; offset > below.size || options.Size > below.size-offset {
			return nil, refusal(ErrInvalidArgument, "Device.NewMemory", "%d bytes from offset %d leave memory that has %d bytes",
				options.Size, offset, below.size)
		}
		if err := below.hold("Device.NewMemory"); err != nil {
			return nil, err
		}
	}
	desc := nativeMemoryDesc{
		kind:        int32(options.Kind),
		numaNode:    options.NUMANode,
		size:        options.Size,
		alignment:   options.Alignment,
		require:     uint64(options.Require),
		prefer:      uint64(options.Prefer),
		hostPointer: options.Host.value,
	}
	desc.structSize = unsafe.Sizeof(desc)
	made := C.gpumem_go_memory_create(d.id(), (*C.uint8_t)(unsafe.Pointer(&desc)), options.Name)
	runtime.KeepAlive(d)
	if err := failure(made.result); err != nil {
		if below != nil {
			below.release()
		}
		return nil, err
	}
	m := &Memory{
		device:        d,
		handle:        uintptr(made.result.value),
		devicePointer: uint64(made.device_pointer),
		below:         below,
	}
	m.host = uint64(made.host_pointer)
	m.size = options.Size
	m.address = m.host
	if m.host == 0 {
		m.address = m.devicePointer
	}
	closeWhenCollected(m, (*Memory).giveBack)
	return m, nil
}

func (m *Memory) giveBack() outcome {
	switch {
	case m.device.instance.closed():
		m.releaseBelow()
		return outcomeGone
	case m.shown.Load() || !m.streams.observe():
		return outcomeKept
	}
	return outcomeOf(m.Close())
}

func (m *Memory) releaseBelow() {
	if m.below != nil {
		m.below.release()
	}
}

// Close frees an allocation, or makes registered memory pageable again with its contents. All work of devices on it
// must have been observed complete; where the backend can tell that it was not, Close refuses with ErrBusy.
func (m *Memory) Close() error {
	if m == nil || m.handle == 0 {
		return nil
	}
	done, err := m.gate.close("Memory.Close", func() error {
		err := failure(C.gpumem_go_memory_destroy(m.id()))
		if isGone(err) {
			return nil
		}
		return err
	})
	if done {
		closedByHand(m)
		m.releaseBelow()
	}
	runtime.KeepAlive(m)
	return err
}

// gone tells that the bytes must not be touched any more.
func (m *Memory) gone() bool {
	return m == nil || m.handle == 0 || m.closed() || m.device.instance.closed()
}

// Device is the device that the memory was made for.
func (m *Memory) Device() *Device {
	if m == nil {
		return nil
	}
	return m.device
}

// Size is the number of bytes asked for.
func (m *Memory) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.size
}

// At is the place that lies that many bytes after the start, for copies and fills.
func (m *Memory) At(offset uint64) Address {
	if m == nil {
		return Address{}
	}
	return Address{&m.block, m.address + offset}
}

// DevicePtr is the address of the first byte for devices, for kernels and other code; 0 if there is none or the
// memory is closed. It does not keep the memory alive.
func (m *Memory) DevicePtr() DevicePtr {
	if m.gone() {
		return 0
	}
	m.shown.Store(true)
	return DevicePtr(m.devicePointer)
}

// Bytes is pinned or registered memory as a slice, which ends with Close. It is nil for device memory, and after
// Close.
func (m *Memory) Bytes() []byte {
	if m.gone() {
		return nil
	}
	return sliceOf[byte](&m.block, m.size)
}

// View calls a function with the memory as a slice. Meanwhile the memory and its instance cannot be closed: Close
// refuses with ErrBusy. The slice ends with the function.
func (m *Memory) View(use func(bytes []byte) error) error {
	return view(m, "Memory.View", func() error { return use(unsafe.Slice((*byte)(pointerTo(m.host)), int(m.size))) })
}

func view(m *Memory, name string, use func() error) error {
	if m == nil || m.handle == 0 {
		return refusal(ErrInvalidArgument, name, "there is no memory")
	}
	instance := m.device.instance
	if instance.closed() {
		return refusal(ErrClosed, name, "the instance is closed")
	}
	if err := instance.hold(name); err != nil {
		return err
	}
	defer instance.release()
	if err := m.hold(name); err != nil {
		return err
	}
	defer m.release()
	if m.host == 0 {
		return refusal(ErrWrongKind, name, "the CPU must not touch device memory; copy it")
	}
	return use()
}

// sliceOf hands out the memory of a block, which is nil if the CPU must not touch it.
func sliceOf[T any](b *block, count uint64) []T {
	if b.host == 0 {
		return nil
	}
	b.shown.Store(true)
	return unsafe.Slice((*T)(pointerTo(b.host)), int(count))
}

// MemoryInfo is what is known about an allocation.
type MemoryInfo struct {
	Kind           Kind
	NUMANode       int         // Node that the pages lie on, for MemoryNUMANode; otherwise -1.
	DeviceOrdinal  int         // Number of the device given at creation.
	Size           uint64      // Bytes asked for: the only ones that may be used.
	GrantedSize    uint64      // Bytes charged.
	Alignment      uint64      // Alignment asked for; 0 if none.
	RequestedFlags MemoryFlags // Require and Prefer together.
	GrantedFlags   MemoryFlags // What the memory really has; contains Require.
	BufferID       uint64      // Number of this allocation; unique in the process and never used again.
	Name           string      // As given at creation.
}

// Info tells what is known about the memory; also after its device is lost.
func (m *Memory) Info() (MemoryInfo, error) {
	var info nativeMemoryInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_memory_get_info(m.id(), (*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(m)
	if err != nil {
		return MemoryInfo{}, err
	}
	return MemoryInfo{
		Kind:           Kind(info.kind),
		NUMANode:       int(info.numaNode),
		DeviceOrdinal:  int(info.deviceOrdinal),
		Size:           info.size,
		GrantedSize:    info.grantedSize,
		Alignment:      info.alignment,
		RequestedFlags: MemoryFlags(info.requestedFlags),
		GrantedFlags:   MemoryFlags(info.grantedFlags),
		BufferID:       info.bufferID,
		Name:           text(info.name[:]),
	}, nil
}

// Malloc is the short way to an allocation that only needs an address, which Free takes back. Nothing else frees it.
func (d *Device) Malloc(kind Kind, size uint64) (Address, error) {
	result := C.gpumem_go_malloc(d.id(), C.gpumem_kind(kind), C.uint64_t(size))
	runtime.KeepAlive(d)
	return RawAddress(uint64(result.value)), failure(result)
}

// Free frees an allocation of Malloc. The address of a Memory is refused: close the Memory.
func (i *Instance) Free(address Address) error {
	if address.owner != nil {
		return refusal(ErrInvalidArgument, "Instance.Free", "the address belongs to an object; close that")
	}
	err := failure(C.gpumem_go_free(i.id(), C.uint64_t(address.value)))
	runtime.KeepAlive(i)
	return err
}

// Register is the short way to page-lock memory of other code, by a raw address. The memory must not be Go's and must
// stay mapped until it is unregistered. Buffer.Register is the safe way.
func (d *Device) Register(address Address, size uint64, require MemoryFlags) error {
	if address.owner != nil {
		return refusal(ErrInvalidArgument, "Device.Register", "the address belongs to an object; use Buffer.Register")
	}
	err := failure(C.gpumem_go_register(d.id(), C.uint64_t(address.value), C.uint64_t(size),
		C.gpumem_memory_flags(require)))
	runtime.KeepAlive(d)
	return err
}

// Unregister undoes Register, by the same address.
func (i *Instance) Unregister(address Address) error {
	if address.owner != nil {
		return refusal(ErrInvalidArgument, "Instance.Unregister", "the address belongs to an object; close that")
	}
	err := failure(C.gpumem_go_unregister(i.id(), C.uint64_t(address.value)))
	runtime.KeepAlive(i)
	return err
}
