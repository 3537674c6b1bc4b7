// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// This file has the functions that only the host backend has: stand-ins for kernels, and ways to bring a program into
// situations that are rare on a GPU. On the cuda backend they fail with ErrUnsupported.

// HostKernel is a running stand-in for a kernel. It is valid only while its function runs.
type HostKernel struct {
	handle uintptr
	ended  atomic.Bool
}

// HostLaunch enqueues a function that stands in for a kernel. It must access memory only through [HostKernel.View].
// Panics are handled as those of [Stream.Launch].
func (s *Stream) HostLaunch(kernel func(*HostKernel)) error {
	if kernel == nil {
		return refusal(ErrInvalidArgument, "Stream.HostLaunch", "the function is nil")
	}
	return s.launch(&hostCall{kernel: kernel}, func(call C.uintptr_t) C.gpumem_go_result {
		return C.gpumem_go_host_launch(s.id(), call)
	})
}

// View opens a view of memory with the rights of the device, by its address for devices. Only the goroutine that runs
// the kernel may use it, until the kernel returns. A view that the device's address translation would refuse loses the
// device, as a faulting kernel does.
func (k *HostKernel) View(address Address, size uint64, access Access) ([]byte, error) {
	if k == nil || k.ended.Load() {
		return nil, refusal(ErrInvalidState, "HostKernel.View", "the kernel has ended")
	}
	if err := address.enter("HostKernel.View", size); err != nil {
		return nil, err
	}
	defer address.leave()
	result := C.gpumem_go_host_kernel_view(C.uintptr_t(k.handle), C.uint64_t(address.value), C.uint64_t(size),
		C.gpumem_access(access))
	if err := failure(result); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(pointerTo(uint64(result.value))), int(size)), nil
}

// HostNativeStream creates a native stream, as other code would, for WrapStream. The caller destroys it with
// DestroyHostNativeStream, after every Stream that wraps it.
func (d *Device) HostNativeStream() (uintptr, error) {
	return valueOf[uintptr](C.gpumem_go_host_native_stream_create(d.id()), d)
}

// DestroyHostNativeStream destroys a stream of HostNativeStream. Pending work still completes.
func (d *Device) DestroyHostNativeStream(native uintptr) error {
	return checked(C.gpumem_go_host_native_stream_destroy(d.id(), C.uintptr_t(native)), d)
}

// HostSetCapturing marks the stream as being captured into a graph by other code, or removes the mark.
func (s *Stream) HostSetCapturing(capturing bool) error {
	return checked(C.gpumem_go_host_stream_set_capturing(s.id(), zeroOrOne(capturing)), s)
}

// HostLose loses the device, as a faulting kernel would: pending work does not run, and every later call that needs the
// device fails.
func (d *Device) HostLose() error {
	return checked(C.gpumem_go_host_device_lose(d.id()), d)
}

// HostFailStep makes a step of the backend fail. Each allocation, mapping, lock, thread and enqueue counts as one step,
// from 1; 0 turns it off. With repeat, every later step fails too.
func (i *Instance) HostFailStep(step uint64, repeat bool) error {
	return checked(C.gpumem_go_host_fail_step(i.id(), C.uint64_t(step), zeroOrOne(repeat)), i)
}

// HostForeignAlloc allocates memory as other code would through the driver: the devices know it, but the instance does
// not.
func (d *Device) HostForeignAlloc(kind Kind, size uint64) (Address, error) {
	address, err := valueOf[uint64](C.gpumem_go_host_foreign_alloc(d.id(), C.gpumem_kind(kind), C.uint64_t(size)), d)
	return RawAddress(address), err
}

// HostForeignFree frees memory of HostForeignAlloc.
func (d *Device) HostForeignFree(address Address) error {
	return checked(C.gpumem_go_host_foreign_free(d.id(), C.uint64_t(address.value)), d)
}

// HostForeignPeerAccess enables or disables peer access as other code of the process would.
func (d *Device) HostForeignPeerAccess(peer *Device, enabled bool) error {
	return checked(C.gpumem_go_host_foreign_peer_access(d.id(), peer.id(), zeroOrOne(enabled)), d, peer)
}

// HostSetCurrentDevice sets the current device of the calling thread, or none with -1, and returns the previous one. It
// is the counterpart of CUDA's current context: no other function changes it. Call it between runtime.LockOSThread and
// UnlockOSThread only.
func HostSetCurrentDevice(ordinal int32) (previous int32, err error) {
	if err := useLibrary(); err != nil {
		return -1, err
	}
	return valueOf[int32](C.gpumem_go_host_set_current_device(C.int32_t(ordinal)))
}

func zeroOrOne(flag bool) C.uint32_t {
	if flag {
		return 1
	}
	return 0
}
