// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// What only the host backend has: stand-ins for kernels, and the means to put a program into situations that are hard
// to come by on a GPU. On the cuda backend every call here is ErrUnsupported.

// HostKernel is a running stand-in for a kernel; valid only while its function runs.
type HostKernel struct {
	handle uintptr
	ended  atomic.Bool
}

// HostLaunch runs a function in stream order as a kernel would run on the device. It must reach memory only through
// HostKernel.View. Panics are handled as those of Launch.
func (s *Stream) HostLaunch(kernel func(*HostKernel)) error {
	if kernel == nil {
		return refusal(ErrInvalidArgument, "Stream.HostLaunch", "the function is nil")
	}
	return s.launch(&hostCall{kernel: kernel}, func(call C.uintptr_t) C.gpumem_go_result {
		return C.gpumem_go_host_launch(s.id(), call)
	})
}

// View opens a view of memory with the rights that the device has, by its address for devices. It is only for the
// goroutine that runs the kernel, and ends with the kernel. A view that the device's address translation would refuse
// loses the device.
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

// HostNativeStream makes a stream as other code would make one, for WrapStream. The caller destroys it with
// DestroyHostNativeStream, after every Stream that adopted it.
func (d *Device) HostNativeStream() (uintptr, error) {
	result := C.gpumem_go_host_native_stream_create(d.id())
	runtime.KeepAlive(d)
	return uintptr(result.value), failure(result)
}

// DestroyHostNativeStream destroys what HostNativeStream made. Pending work still completes.
func (d *Device) DestroyHostNativeStream(native uintptr) error {
	err := failure(C.gpumem_go_host_native_stream_destroy(d.id(), C.uintptr_t(native)))
	runtime.KeepAlive(d)
	return err
}

// HostSetCapturing marks the stream as being captured into a graph by other code, or no longer so.
func (s *Stream) HostSetCapturing(capturing bool) error {
	err := failure(C.gpumem_go_host_stream_set_capturing(s.id(), zeroOrOne(capturing)))
	runtime.KeepAlive(s)
	return err
}

// HostLose loses the device, as a faulting kernel would.
func (d *Device) HostLose() error {
	err := failure(C.gpumem_go_host_device_lose(d.id()))
	runtime.KeepAlive(d)
	return err
}

// HostFailStep lets a step of the backend fail: each allocation, mapping, lock, thread and enqueue counts as one, from
// 1; 0 switches it off. With repeat, every later step fails too.
func (i *Instance) HostFailStep(step uint64, repeat bool) error {
	err := failure(C.gpumem_go_host_fail_step(i.id(), C.uint64_t(step), zeroOrOne(repeat)))
	runtime.KeepAlive(i)
	return err
}

// HostForeignAlloc makes memory as other code would make it through the driver: known to the devices but not to the
// instance.
func (d *Device) HostForeignAlloc(kind Kind, size uint64) (Address, error) {
	result := C.gpumem_go_host_foreign_alloc(d.id(), C.gpumem_kind(kind), C.uint64_t(size))
	runtime.KeepAlive(d)
	return RawAddress(uint64(result.value)), failure(result)
}

// HostForeignFree frees what HostForeignAlloc made.
func (d *Device) HostForeignFree(address Address) error {
	err := failure(C.gpumem_go_host_foreign_free(d.id(), C.uint64_t(address.value)))
	runtime.KeepAlive(d)
	return err
}

// HostForeignPeerAccess switches peer access on or off as other code of the process would.
func (d *Device) HostForeignPeerAccess(peer *Device, enabled bool) error {
	err := failure(C.gpumem_go_host_foreign_peer_access(d.id(), peer.id(), zeroOrOne(enabled)))
	runtime.KeepAlive(d)
	runtime.KeepAlive(peer)
	return err
}

// HostSetCurrentDevice sets the current device of the calling thread, or none with -1, and tells the former one. No
// other function reads or changes it; it is there to test code that depends on one. It means something only between
// runtime.LockOSThread and UnlockOSThread.
func HostSetCurrentDevice(ordinal int32) (previous int32, err error) {
	if err := useLibrary(); err != nil {
		return -1, err
	}
	result := C.gpumem_go_host_set_current_device(C.int32_t(ordinal))
	return int32(int64(result.value)), failure(result)
}

func zeroOrOne(flag bool) C.uint32_t {
	if flag {
		return 1
	}
	return 0
}
