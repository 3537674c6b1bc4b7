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

import ctypes
import functools
import threading
import weakref
from ctypes import c_int, c_void_p
from typing import Any, Dict, Tuple

import cupy

import gpumem

from .._calls import leftovers
from . import _plug_in

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation; not every version of CuPy has a name for it
_current_stream = cupy.cuda.get_current_stream


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


_DEVICES = 64


class _Handles(ctypes.Structure):
    """gpumem_cupy_pools of adapters/python/cupy.cpp: the pools by device, and which of them have a callback."""
    _fields_ = [("pools", c_void_p * _DEVICES), ("has_callback", ctypes.c_bool * _DEVICES)]


class _DevicePool(gpumem.Pool):
    __slots__ = ("_handles",)
    _handles: _Handles

    def set_callback(self, function: Any) -> None:
        at, flags = self.device.ordinal, self._handles.has_callback
        if at >= _DEVICES:
            return super().set_callback(function)
        flags[at] = True
        try:
            return super().set_callback(function)
        finally:
            flags[at] = self._callback is not None


_DevicePool.__name__ = "Pool"  # in messages
_FREE = ctypes.CFUNCTYPE(None, c_void_p, c_int, ctypes.py_object)


@functools.lru_cache(maxsize=None)
def _functions() -> Any:
    """The plug-in, and what a CFunctionAllocator calls; None if there is no plug-in."""
    library = _plug_in.python()
    if library is None:
        return None
    library.gpumem_cupy_begin.argtypes = [c_void_p, c_void_p, ctypes.c_size_t, c_void_p, c_void_p, _FREE]
    library.gpumem_cupy_begin.restype = c_void_p
    library.gpumem_cupy_end.argtypes, library.gpumem_cupy_end.restype = [c_void_p], None
    return library, [ctypes.cast(function, c_void_p).value for function in (library.gpumem_cupy_alloc, library.gpumem_cupy_free)]


class _Order:
    """A gpumem_cupy_order: the blocks of one stream, which functions of C allocate and free for CuPy."""

    __slots__ = ("handle", "_end")

    def __init__(self, library: Any, *arguments: Any) -> None:
        self.handle, self._end = None, library.gpumem_cupy_end
        self.handle = library.gpumem_cupy_begin(*arguments)

    def __del__(self) -> None:
        if self.handle:
            self._end(self.handle)


class _Orders(Dict[int, Tuple[Any, Any]]):
    """By the handle of a stream that was seen: a reference to it, and the function that allocates in its order, which it gets the
    second time."""

    __slots__ = ("__weakref__",)


_UNKNOWN = (lambda: None, None)


class Pool:
    """A pool for each device. ``options`` are those of :meth:`gpumem.Device.pool`.

    Memory is allocated in the order of CuPy's current stream, and freed in the order of the same one when CuPy drops it.
    """

    def __init__(self, **options: Any) -> None:
        self._options, self._lock = options, threading.Lock()
        self._pools: Dict[int, gpumem.Pool] = {}
        self._streams: Dict[int, Any] = {}  # by the address of a block of _alloc, which keeps its stream alive
        self._orders = _Orders()
        self._by_python = cupy.cuda.PythonFunctionAllocator(self._alloc, self._free).malloc
        pools = self._pools
        self._drop: Any = lambda address, device, stream: pools[device]._drop(address, stream.ptr, stream)
        self._handles = _Handles()
        self._owner = (pools, self._handles, _FREE(self._drop))  # what a block needs until it is freed
        self._functions = _functions()

    def pool(self, device: int) -> gpumem.Pool:
        """The pool of a device."""
        with self._lock:
            found = self._pools.get(device)
            if found is None:
                options: Dict[str, Any] = {"name": "cupy", **self._options}
                made = _DevicePool(_instance().device(device), **options)
                made._handles = self._handles
                found = self._pools[device] = made
                if device < _DEVICES:
                    self._handles.pools[device] = made.handle
            return found

    def malloc(self, size: int) -> Any:
        """The function for ``cupy.cuda.set_allocator``."""
        stream = _current_stream()
        known, malloc = self._orders.get(stream.ptr, _UNKNOWN)
        if malloc and known() is stream and not leftovers:
            found = malloc(size)
            if found.ptr:
                return found
        return self._by_python(size)

    def _alloc(self, size: int, device: int) -> int:
        """Allocates the first blocks of a stream, and what the functions of C could not."""
        stream = _current_stream()
        if self._functions:
            self._meet(stream)
        try:
            address = (self._pools.get(device) or self.pool(device)).malloc(size, stream.ptr)
        except (MemoryError, gpumem.LimitExceeded) as problem:
            raise cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY) from problem
        self._streams[address] = stream
        return address

    def _free(self, address: int, device: int) -> None:
        self._drop(address, device, self._streams.pop(address))  # the stream lives until the block is freed

    def _meet(self, stream: Any) -> None:
        """Lets functions of C allocate in the order of a stream from now on, if it was met before: one that serves a single
        block would not be worth it."""
        handle = stream.ptr
        known, malloc = self._orders.get(handle, _UNKNOWN)
        if known() is not stream:
            mine = weakref.ref(self._orders)

            def forget(dead: Any) -> None:
                orders = mine()
                if orders is not None and orders.get(handle, _UNKNOWN)[0] is dead:
                    orders.pop(handle, None)

            self._orders[handle] = weakref.ref(stream, forget), None
        elif malloc is None:
            library, functions = self._functions
            order = _Order(library, handle, ctypes.byref(self._handles), ctypes.sizeof(self._handles), id(stream), id(self._owner),
                           self._owner[2])
            if order.handle:
                self._orders[handle] = known, cupy.cuda.CFunctionAllocator(order.handle, *functions, order).malloc
            else:  # of another version
                self._functions = None


def install(pool: bool = False) -> None:
    """Makes CuPy take device and pinned memory from gpumem, without its pools; with ``pool``, device memory from a pool of
    gpumem."""
    cupy.cuda.set_allocator(Pool().malloc if pool else allocator)
    cupy.cuda.set_pinned_memory_allocator(pinned_allocator)
