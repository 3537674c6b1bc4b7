# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""An External Memory Manager plug-in (interface version 1) that makes numba-cuda take its memory from gpumem.

Set ``NUMBA_CUDA_MEMORY_MANAGER=gpumem.adapters.numba`` in the environment, or call
``numba.cuda.set_memory_manager(gpumem.adapters.numba.MemoryManager)`` before the first use of CUDA.

Device, pinned, mapped and registered memory come from gpumem, with the flags that numba requests; a flag that cannot be
granted is a failure. numba itself creates IPC handles, and managed memory, which gpumem does not have yet.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Optional

from numba import cuda
from numba.cuda.cudadrv import driver

import gpumem
from gpumem import MemoryFlags

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def _new_binding() -> bool:
    """Whether this numba has pointers as objects of NVIDIA's bindings, as later versions always do."""
    return bool(getattr(driver, "USE_NV_BINDING", True))


def _device_pointer(address: int) -> Any:
    return driver.binding.CUdeviceptr(address) if _new_binding() else ctypes.c_uint64(address)


def _host_pointer(address: Optional[int]) -> Any:
    return address if _new_binding() else ctypes.c_void_p(address)


def _close(memory: gpumem.Memory) -> None:
    memory.close()


class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """The class for ``numba.cuda.set_memory_manager``. ``memallocmanaged`` is numba's own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._instance: Optional[gpumem.Instance] = None

    @property
    def interface_version(self) -> int:
        return 1

    def _device(self) -> gpumem.Device:
        if self._instance is None or self._instance.closed:
            self._instance = gpumem.Instance("cuda", name="numba")
        device = self.context.device
        # In a context that other code created, numba has the driver's handle of the device, which is the ordinal.
        return self._instance.device(int(getattr(device, "id", device)))

    def initialize(self) -> None:
        if not self.deallocations.memory_capacity:
            self.deallocations.memory_capacity = self.get_memory_info().total

    def get_memory_info(self) -> Any:
        return cuda.MemoryInfo(*self._device().memory_info())

    def _make(self, make: Callable[[], gpumem.Memory]) -> gpumem.Memory:
        """Calls a function that allocates. If there is not enough memory, tries again after numba's pending frees."""
        try:
            return make()
        except MemoryError:
            self.deallocations.clear()
        try:
            return make()
        except MemoryError as problem:
            raise driver.CudaAPIError(_OUT_OF_MEMORY, str(problem)) from problem

    def _finalizer(self, memory: gpumem.Memory, size: int) -> Callable[[], None]:
        allocations, deallocations, key = self.allocations, self.deallocations, memory.handle

        def finalize() -> None:
            allocations.pop(key, None)
            deallocations.add_item(_close, memory, size)
        return finalize

    def _owned(self, memory: gpumem.Memory, pointer: Any) -> Any:
        self.allocations[memory.handle] = pointer
        return pointer.own()

    def memalloc(self, size: int) -> Any:
        memory = self._make(lambda: self._device().memory(size))
        return self._owned(memory, driver.AutoFreePointer(
            weakref.proxy(self.context), _device_pointer(int(memory)), size,
            finalizer=self._finalizer(memory, size)))

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        require = (MemoryFlags.MAPPED if mapped else 0) | (MemoryFlags.PORTABLE if portable else 0) | (
            MemoryFlags.WRITE_COMBINED if wc else 0)
        memory = self._make(lambda: self._device().memory(size, "pinned", require=require))
        arguments = weakref.proxy(self.context), _host_pointer(memory.host_pointer), size
        if mapped:
            return self._owned(memory, driver.MappedMemory(*arguments, finalizer=self._finalizer(memory, size)))
        return driver.PinnedMemory(*arguments, finalizer=self._finalizer(memory, 0))

    def mempin(self, owner: Any, pointer: Any, size: int, mapped: bool = False) -> Any:
        address = getattr(pointer, "value", pointer)
        require = MemoryFlags.MAPPED if mapped else 0
        memory = self._make(lambda: self._device().register(address, size, require=require))
        allocations, key = self.allocations, memory.handle

        def finalize() -> None:
            # At once, not with the pending frees, so that the same array can be pinned again.
            allocations.pop(key, None)
            memory.close()
        arguments = weakref.proxy(self.context), _host_pointer(address), size
        if mapped:
            return self._owned(memory, driver.MappedMemory(*arguments, owner=owner, finalizer=finalize))
        return driver.PinnedMemory(*arguments, owner=owner, finalizer=finalize)

    def reset(self) -> None:
        super().reset()
        if self._instance is not None:
            # numba may now destroy the context, which must outlive the instance.
            try:
                self._instance.close()
            except gpumem.Busy:
                pass  # pinned arrays outlive a reset


_numba_memory_manager = MemoryManager
