# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Allocators for CuPy: ``gpumem.adapters.cupy.install()`` sets both. To set one:

    cupy.cuda.set_allocator(gpumem.adapters.cupy.allocator)
    cupy.cuda.set_pinned_memory_allocator(gpumem.adapters.cupy.pinned_allocator)

Each allocation goes to the driver. With a pool of CuPy on top, freed memory is reused:

    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(gpumem.adapters.cupy.allocator).malloc)

A pool of gpumem takes the place of both, and passes memory from one stream to another without a wait of the CPU:

    cupy.cuda.set_allocator(gpumem.adapters.cupy.Pool().malloc)

docs/cupy-numba.md is the guide.
"""

import functools
import threading
from typing import Any, Dict

import cupy

import gpumem

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation; not every version of CuPy has a name for it


@functools.lru_cache(maxsize=None)
def _instance() -> gpumem.Instance:
    return gpumem.Instance("cuda", name="cupy")


def _make(size: int, kind: str) -> gpumem.Memory:
    device = _instance().device(cupy.cuda.runtime.getDevice())
    try:
        return device.memory(size, kind)
    except (MemoryError, gpumem.LimitExceeded) as problem:
        # CuPy's pools catch this one, free the memory that they keep, and try again.
        raise cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY) from problem


def allocator(size: int) -> Any:
    """Device memory for ``cupy.cuda.set_allocator``, freed when CuPy drops it."""
    number = cupy.cuda.runtime.getDevice()
    memory = _make(size, "device") if size else None
    address = int(memory) if memory else 0
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, memory, number), 0)


class _PinnedMemory(cupy.cuda.PinnedMemory):  # type: ignore[misc]
    def __init__(self, memory: gpumem.Memory, size: int) -> None:
        self.memory, self.ptr, self.size = memory, memory.host_pointer, size

    def __del__(self) -> None:
        self.ptr = 0  # otherwise CuPy would free it, as gpumem does


def pinned_allocator(size: int) -> Any:
    """Pinned memory for ``cupy.cuda.set_pinned_memory_allocator``, freed when CuPy drops it."""
    mem = _PinnedMemory(_make(size, "pinned"), size) if size else cupy.cuda.PinnedMemory(0)
    return cupy.cuda.PinnedMemoryPointer(mem, 0)


class Pool:
    """A pool for each device. ``options`` are those of :meth:`gpumem.Device.pool`.

    Memory is allocated in the order of CuPy's current stream, and freed in the order of the same one when CuPy drops it.
    """

    def __init__(self, **options: Any) -> None:
        self._options, self._lock = options, threading.Lock()
        self._pools: Dict[int, gpumem.Pool] = {}
        self._streams: Dict[int, Any] = {}  # by the address of the block, which keeps its stream alive
        self._malloc = cupy.cuda.PythonFunctionAllocator(self._alloc, self._free).malloc

    def pool(self, device: int) -> gpumem.Pool:
        """The pool of a device."""
        with self._lock:
            found = self._pools.get(device)
            if found is None:
                options: Dict[str, Any] = {"name": "cupy", **self._options}
                found = self._pools[device] = _instance().device(device).pool(**options)
            return found

    @property
    def malloc(self) -> Any:
        """The function for ``cupy.cuda.set_allocator``: CuPy's own, so that only two short calls per block are Python."""
        return self._malloc

    def _alloc(self, size: int, device: int) -> int:
        stream = cupy.cuda.get_current_stream()
        try:
            address = (self._pools.get(device) or self.pool(device)).malloc(size, stream.ptr)
        except (MemoryError, gpumem.LimitExceeded) as problem:
            raise cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY) from problem
        self._streams[address] = stream
        return address

    def _free(self, address: int, device: int) -> None:
        stream = self._streams.pop(address)  # lives until the block is freed
        self._pools[device]._drop(address, stream.ptr)


def install(pool: bool = False) -> None:
    """Makes CuPy take device and pinned memory from gpumem, without its pools; with ``pool``, device memory from a pool of
    gpumem."""
    cupy.cuda.set_allocator(Pool().malloc if pool else allocator)
    cupy.cuda.set_pinned_memory_allocator(pinned_allocator)
