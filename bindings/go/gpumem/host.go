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
