# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Allocators for CuPy: ``gpumem.adapters.cupy.install()`` sets both. To set one:

    cupy.cuda.set_allocator(gpumem.adapters.cupy.allocator)
    cupy.cuda.set_pinned_memory_allocator(gpumem.adapters.cupy.pinned_allocator)

Each allocation goes to the driver. With a pool of CuPy on top, freed memory is reused:

    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(gpumem.adapters.cupy.allocator).malloc)
"""

import functools
from typing import Any

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
    except MemoryError as problem:
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


def install() -> None:
    """Makes CuPy take device and pinned memory from gpumem, without its pools."""
    cupy.cuda.set_allocator(allocator)
    cupy.cuda.set_pinned_memory_allocator(pinned_allocator)
