# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""An External Memory Manager plug-in (interface version 1) that makes numba-cuda take its memory from gpumem.

Set ``NUMBA_CUDA_MEMORY_MANAGER=gpumem.adapters.numba`` in the environment, or call
``numba.cuda.set_memory_manager(gpumem.adapters.numba.MemoryManager)`` before the first use of CUDA.
``gpumem.adapters.numba_pool``, or :class:`PoolMemoryManager`, takes device memory from a pool.

Device, pinned, mapped, registered and managed memory come from gpumem, with the flags that numba requests; a flag that
cannot be granted is a failure. numba itself creates IPC handles, of memory that is not of a pool.

docs/cupy-numba.md is the guide.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Dict, Optional

from numba import cuda
from numba.cuda.cudadrv import driver

import gpumem
from gpumem import MemoryFlags

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_LACK = MemoryError, gpumem.LimitExceeded


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
    """The class for ``numba.cuda.set_memory_manager``. Each allocation goes to the driver."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._instance: Optional[gpumem.Instance] = None
        self.pool: Optional[gpumem.Pool] = None

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

    def _make(self, make: Callable[[], Any]) -> Any:
        """Calls a function that allocates. If there is not enough memory, tries again after numba's pending frees."""
        try:
            return make()
        except _LACK:
            self.deallocations.clear()
        try:
            return make()
        except _LACK as problem:
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

    def memallocmanaged(self, size: int, attach_global: bool) -> Any:
        require = MemoryFlags(0) if attach_global else MemoryFlags.ATTACH_HOST
        memory = self._make(lambda: self._device().memory(size, "managed", require=require))
        return self._owned(memory, driver.ManagedMemory(
            weakref.proxy(self.context), _device_pointer(int(memory)), size, finalizer=self._finalizer(memory, size)))

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
        if self.pool is not None:
            self.pool.close()
            self.pool = None
        if self._instance is not None:
            # numba may now destroy the context, which must outlive the instance.
            try:
                self._instance.close()
            except gpumem.Busy:
                pass  # pinned arrays outlive a reset


class PoolMemoryManager(MemoryManager):
    """The class for ``numba.cuda.set_memory_manager`` that takes device memory from a pool, without a call of the driver in
    most cases. All other memory is as with :class:`MemoryManager`.

    Blocks are allocated, and freed when numba drops them, in the order of the legacy default stream. So memory is used again
    at once, while work that is in this stream before the free still has it. Wait for other streams that use an array before
    you drop it.

    To set options, which are those of :meth:`gpumem.Device.pool`, derive a class with ``options``.
    """

    options: Dict[str, Any] = {}

    def memalloc(self, size: int) -> Any:
        pool = self.pool
        if pool is None:
            options: Dict[str, Any] = {"name": "numba", **self.options}
            pool = self.pool = self._device().pool(**options)
        allocations, malloc, drop, key = self.allocations, pool.malloc, pool._drop, object()
        address = self._make(lambda: malloc(size, 0))

        def finalize() -> None:
            # At once, not with the pending frees, which numba has because the driver's wait for the GPU.
            allocations.pop(key, None)
            drop(address, 0)
        allocations[key] = pointer = driver.AutoFreePointer(
            weakref.proxy(self.context), _device_pointer(address), size, finalizer=finalize)
        return pointer.own()


_numba_memory_manager = MemoryManager
