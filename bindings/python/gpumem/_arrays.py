# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays in page-locked and managed memory, device memory and copies, with the names, flags and meanings of PyCUDA.

The arrays are plain ``numpy.ndarray``. The ``base`` of each is a :class:`View`, which keeps its :class:`Memory` alive: it
cannot be closed before the last array over it is gone.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple, Union

from . import _library as c
from ._buffers import Buffer
from ._calls import u32, u64
from ._codes import Direction
from ._instance import Device, Instance, default_instance, device_or_default
from ._memory import Memory, Region, Shape, View, check_order, extent, memory_of
from ._operands import operand
from ._stream import Stream
from ._types import unfold
from .errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from ._memory import Array, ViewArray


class host_alloc_flags:
    """Flags of allocated page-locked memory."""

    PORTABLE = c.GPUMEM_MEMORY_PORTABLE
    DEVICEMAP = c.GPUMEM_MEMORY_MAPPED
    WRITECOMBINED = c.GPUMEM_MEMORY_WRITE_COMBINED


class host_register_flags:
    """Flags of memory that is page-locked in place. The numbers are those of CUDA."""

    PORTABLE = 1
    DEVICEMAP = 2
    IOMEMORY = 4
    READ_ONLY = 8


mem_host_register_flags = host_register_flags

class mem_attach_flags:
    """Who may use managed memory on devices that are not concurrent."""

    GLOBAL = c.GPUMEM_ATTACH_GLOBAL
    HOST = c.GPUMEM_ATTACH_HOST
    SINGLE = c.GPUMEM_ATTACH_SINGLE


_REGISTER_FLAGS = {host_register_flags.PORTABLE: c.GPUMEM_MEMORY_PORTABLE,
                   host_register_flags.DEVICEMAP: c.GPUMEM_MEMORY_MAPPED,
                   host_register_flags.IOMEMORY: c.GPUMEM_MEMORY_IOMEMORY,
                   host_register_flags.READ_ONLY: c.GPUMEM_MEMORY_READ_ONLY}


def _order_of(array: Array) -> str:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _like(array: Array) -> Tuple[Tuple[int, ...], Any, str]:
    """(shape, type, order) of an array."""
    if not hasattr(array, "__array_interface__"):
        raise TypeError(f"array must be a numpy array, not a {type(array).__name__}")
    return array.shape, array.dtype, _order_of(array)


def _empty(shape: Shape, dtype: Any, order: str, allocate: Callable[[int], Region]) -> ViewArray:
    import numpy
    dtype, shape, size = _extent(numpy.dtype(dtype), shape)
    if dtype.hasobject:
        raise TypeError(f"elements of type {dtype} are Python objects, which a device cannot use")
    check_order(order)
    if size == 0:
        return numpy.empty(shape, dtype, "F" if order == "F" else "C")  # type: ignore[return-value]
    return allocate(size).numpy(dtype, shape, order=order)


def _extent(dtype: Any, shape: Shape) -> Tuple[Any, Tuple[int, ...], int]:
    """(type of the elements, shape, bytes) of an array."""
    dtype, inner = unfold(dtype)
    return (dtype, *extent(extent(shape, dtype.itemsize)[0] + inner, dtype.itemsize))


def _clear(array: Array) -> None:
    """Zero bytes, as numpy.zeros() has. The number 0 is a text in an array of strings."""
    ctypes.memset(array.__array_interface__["data"][0], 0, array.nbytes)


def pagelocked_empty(shape: Shape, dtype: Any, order: str = "C", mem_flags: int = 0, *,
                     device: Optional[Device] = None) -> ViewArray:
    """An array in page-locked memory with indeterminate contents.

    ``mem_flags`` is a sum of :class:`host_alloc_flags`; each is granted or the call fails. The memory is close to
    ``device``, by default device 0 of the default instance. An array without elements is in ordinary memory.
    """
    return _empty(shape, dtype, order, lambda size: Memory(device_or_default(device), size, "pinned", require=mem_flags))


def pagelocked_zeros(shape: Shape, dtype: Any, order: str = "C", mem_flags: int = 0, *,
                     device: Optional[Device] = None) -> ViewArray:
    """As :func:`pagelocked_empty`, filled with zeros."""
    array = pagelocked_empty(shape, dtype, order, mem_flags, device=device)
    _clear(array)
    return array


def pagelocked_empty_like(array: Array, mem_flags: int = 0, *,
                          device: Optional[Device] = None) -> ViewArray:
    """As :func:`pagelocked_empty`, with shape, type and order of another array."""
    return pagelocked_empty(*_like(array), mem_flags, device=device)


def pagelocked_zeros_like(array: Array, mem_flags: int = 0, *,
                          device: Optional[Device] = None) -> ViewArray:
    """As :func:`pagelocked_zeros`, with shape, type and order of another array."""
    return pagelocked_zeros(*_like(array), mem_flags, device=device)


def managed_empty(shape: Shape, dtype: Any, order: str = "C", mem_flags: int = 0, *,
                  device: Optional[Device] = None) -> ViewArray:
    """An array in managed memory with indeterminate contents.

    ``mem_flags`` is GLOBAL, which 0 means as well, or HOST of :class:`mem_attach_flags`. Where ``device``, by default device
    0 of the default instance, is not concurrent, touch the array only in ``with array.base.host_access():``. An array
    without elements is in ordinary memory.
    """
    if u32(mem_flags, "mem_flags") not in (0, mem_attach_flags.GLOBAL, mem_attach_flags.HOST):
        raise InvalidArgument(f"mem_flags are {mem_flags}; they must be 0, mem_attach_flags.GLOBAL or mem_attach_flags.HOST")
    require = c.GPUMEM_MEMORY_ATTACH_HOST if mem_flags == mem_attach_flags.HOST else 0
    return _empty(shape, dtype, order, lambda size: Memory(device_or_default(device), size, "managed", require=require))


def managed_zeros(shape: Shape, dtype: Any, order: str = "C", mem_flags: int = 0, *,
                  device: Optional[Device] = None) -> ViewArray:
    """As :func:`managed_empty`, filled with zeros."""
    array = managed_empty(shape, dtype, order, mem_flags, device=device)
    if isinstance(array.base, View):
        with array.base.host_access():
            _clear(array)
    else:
        _clear(array)
    return array


def managed_empty_like(array: Array, mem_flags: int = 0, *, device: Optional[Device] = None) -> ViewArray:
    """As :func:`managed_empty`, with shape, type and order of another array."""
    return managed_empty(*_like(array), mem_flags, device=device)


def managed_zeros_like(array: Array, mem_flags: int = 0, *, device: Optional[Device] = None) -> ViewArray:
    """As :func:`managed_zeros`, with shape, type and order of another array."""
    return managed_zeros(*_like(array), mem_flags, device=device)


def shared_array(shape: Shape, dtype: Any = float, order: str = "C", *, device: Optional[Device] = None,
                 name: Optional[str] = None) -> Array:
    """An array of zeros that other processes of this machine get without a copy when it is pickled to them, as
    ``multiprocessing`` does. So are its views; copies and results such as ``array + 1`` are ordinary arrays.

    It lies in memory of the host that ``device`` can use too, by default device 0 of the default instance. Processes that
    unpickle it use their default instance. The memory lives while an array over it does, in any process; but nobody can
    unpickle it any more once the process that made it has dropped it. Keep it there until they have, such as until a task has
    its result. A read-only view is read-only there, too. An array
    without elements is in ordinary memory, and pickled as such.
    """
    try:
        from . import _shared
    except ImportError as problem:
        raise ImportError("shared_array() needs numpy") from problem

    def allocate(size: int) -> Buffer:
        where = device_or_default(device)
        try:
            buffer = Buffer(where, size, reserve=size, location=("host_numa", max(where.info().numa_node, 0)),
                            handle_types="posix_fd", name=name)
            _shared.handles[buffer] = buffer.export()
        except Unsupported as problem:
            raise Unsupported(f"{problem.message}; use multiprocessing.shared_memory, and Device.register() in each process",
                              function=problem.function) from None
        buffer.fill(0)
        return buffer
    return _empty(shape, dtype, order, allocate).view(_shared.SharedArray)


def aligned_empty(shape: Shape, dtype: Any, order: str = "C", alignment: int = 4096) -> Array:
    """An ordinary array whose first byte is aligned, as some systems need it for :func:`register_host_memory`."""
    import numpy
    dtype, shape, size = _extent(numpy.dtype(dtype), shape)
    check_order(order)
    if u64(alignment, "alignment") < 1 or alignment & (alignment - 1):
        raise InvalidArgument(f"the alignment is {alignment}; it must be a power of two")
    if size == 0:
        return numpy.empty(shape, dtype, "F" if order == "F" else "C")
    room = numpy.empty(size + alignment - 1, numpy.uint8)
    start = -room.__array_interface__["data"][0] % alignment
    array: Array = room[start:start + size].view(dtype).reshape(shape, order="F" if order == "F" else "C")
    return array


def aligned_zeros(shape: Shape, dtype: Any, order: str = "C", alignment: int = 4096) -> Array:
    """As :func:`aligned_empty`, filled with zeros."""
    array = aligned_empty(shape, dtype, order, alignment)
    _clear(array)
    return array


def aligned_empty_like(array: Array, alignment: int = 4096) -> Array:
    """As :func:`aligned_empty`, with shape, type and order of another array."""
    return aligned_empty(*_like(array), alignment)


def aligned_zeros_like(array: Array, alignment: int = 4096) -> Array:
    """As :func:`aligned_zeros`, with shape, type and order of another array."""
    return aligned_zeros(*_like(array), alignment)


def register_host_memory(ary: Array, flags: int = 0, *, device: Optional[Device] = None) -> ViewArray:
    """Page-locks the memory of an array in place, and returns an array over the same bytes.

    The memory becomes pageable again by ``base.unregister()`` of the returned array, or when it and all views of it are
    gone. ``ary`` must be contiguous. It is kept alive and cannot be resized meanwhile. A read-only array needs the flag
    READ_ONLY.
    """
    require = 0
    for flag, wanted in _REGISTER_FLAGS.items():
        if flags & flag:
            require |= wanted
    if flags & ~sum(_REGISTER_FLAGS):
        raise InvalidArgument(f"flags are {flags:#x}, which has a bit that is not in host_register_flags")
    if not hasattr(ary, "__array_interface__"):
        raise TypeError(f"ary must be a numpy array, not a {type(ary).__name__}; Device.register() takes anything with a "
                        "buffer")
    if not (ary.flags.c_contiguous or ary.flags.f_contiguous):
        raise InvalidArgument("the array is not contiguous")
    if not (ary.flags.writeable or require & c.GPUMEM_MEMORY_READ_ONLY):
        raise InvalidArgument("the array is read-only; register it with host_register_flags.READ_ONLY")
    memory = Memory.register(device_or_default(device), ary, require=require)
    return memory.numpy(ary.dtype, ary.shape, order=_order_of(ary))


# ---- device memory and copies ----

def mem_alloc(bytes: int, *, device: Optional[Device] = None) -> Memory:
    """Allocates device memory. ``int()`` of it is its address; :meth:`Memory.free`, or dropping it, frees it."""
    return Memory(device_or_default(device), bytes)


def _instance_of(value: Any) -> Instance:
    memory = memory_of(value)
    return default_instance() if memory is None else memory.device.instance


def _place(value: Any, stream: Optional[Stream]) -> Union[Instance, Stream]:
    if stream is None:
        return _instance_of(value)
    if not isinstance(stream, Stream):
        raise TypeError(f"stream must be a gpumem.Stream or None, not a {type(stream).__name__}; Stream.wrap() wraps others")
    return stream


def _on_device(value: Any) -> bool:
    memory = memory_of(value)
    return memory is not None and memory.host_pointer is None


def _to_device(place: Union[Instance, Stream], dest: Any, src: Any) -> None:
    if _on_device(src):
        raise InvalidArgument("src is device memory; memcpy_dtoh() copies from there, and Instance.copy() between devices")
    place.copy(dest, src, direction=_direction(dest, Direction.HOST_TO_DEVICE))


def _to_host(place: Union[Instance, Stream], dest: Any, src: Any) -> None:
    if _on_device(dest):
        raise InvalidArgument("dest is device memory; memcpy_htod() copies there, and Instance.copy() between devices")
    _, room, _ = operand(dest, True, "dest")
    if room is None:
        raise TypeError("dest must have a length, such as an array, not be an address")
    place.copy(dest, src, room, direction=_direction(src, Direction.DEVICE_TO_HOST))


def _direction(device_side: Any, wanted: Direction) -> Direction:
    """The direction that the name of the function says, unless the side of the device is host memory, which PyCUDA allows
    as well."""
    return wanted if _on_device(device_side) else Direction.INFER


def memcpy_htod(dest: Union[Memory, View, int], src: Any) -> None:
    """Copies all bytes of an array or other host buffer to device memory, or its address."""
    _to_device(_instance_of(dest), dest, src)


def memcpy_htod_async(dest: Union[Memory, View, int], src: Any, stream: Optional[Stream] = None) -> None:
    """As :func:`memcpy_htod`, enqueued in a stream, which keeps both alive. Without a stream it returns when the bytes are
    copied."""
    _to_device(_place(dest, stream), dest, src)


def memcpy_dtoh(dest: Any, src: Union[Memory, View, int]) -> None:
    """Fills an array or other host buffer with bytes from device memory, or its address."""
    _to_host(_instance_of(src), dest, src)


def memcpy_dtoh_async(dest: Any, src: Union[Memory, View, int], stream: Optional[Stream] = None) -> None:
    """As :func:`memcpy_dtoh`, enqueued in a stream, which keeps both alive. Without a stream it returns when the bytes are
    copied."""
    _to_host(_place(src, stream), dest, src)
