# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays in page-locked memory, with the names, flags and meanings of PyCUDA.

The arrays are plain ``numpy.ndarray``. The ``base`` of each is a :class:`View`, which keeps its :class:`Memory` alive: it
cannot be closed before the last array over it is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from . import _library as c
from ._codes import Kind
from ._instance import Device, default_device
from ._memory import Memory, Shape, extent
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy


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

_REGISTER_FLAGS = {host_register_flags.PORTABLE: c.GPUMEM_MEMORY_PORTABLE,
                   host_register_flags.DEVICEMAP: c.GPUMEM_MEMORY_MAPPED,
                   host_register_flags.IOMEMORY: c.GPUMEM_MEMORY_IOMEMORY,
                   host_register_flags.READ_ONLY: c.GPUMEM_MEMORY_READ_ONLY}


def _order_of(array):
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def pagelocked_empty(shape: Shape, dtype: Any, order: str = "C", mem_flags: int = 0, *,
                     device: Optional[Device] = None) -> numpy.ndarray:
    """An array in page-locked memory with indeterminate contents.

    ``mem_flags`` is a sum of :class:`host_alloc_flags`; each is granted or the call fails. The memory is close to
    ``device``, by default device 0 of the default instance. An array without elements is in ordinary memory.
    """
    import numpy
    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"elements of type {dtype} are Python objects, which a device cannot use")
    shape, size = extent(shape, dtype.itemsize)
    if order not in ("C", "F"):
        raise ValueError(f"the order is {order!r}; it must be 'C' or 'F'")
    if size == 0:
        return numpy.empty(shape, dtype, order)
    memory = Memory(device or default_device(), size, Kind.PINNED, require=mem_flags)
    return memory.numpy(dtype, shape, order=order)


def pagelocked_zeros(shape: Shape, dtype: Any, order: str = "C", mem_flags: int = 0, *,
                     device: Optional[Device] = None) -> numpy.ndarray:
    """As :func:`pagelocked_empty`, filled with zeros."""
    array = pagelocked_empty(shape, dtype, order, mem_flags, device=device)
    array.fill(0)
    return array


def pagelocked_empty_like(array: numpy.ndarray, mem_flags: int = 0, *,
                          device: Optional[Device] = None) -> numpy.ndarray:
    """As :func:`pagelocked_empty`, with shape, type and order of another array."""
    return pagelocked_empty(array.shape, array.dtype, _order_of(array), mem_flags, device=device)


def pagelocked_zeros_like(array: numpy.ndarray, mem_flags: int = 0, *,
                          device: Optional[Device] = None) -> numpy.ndarray:
    """As :func:`pagelocked_zeros`, with shape, type and order of another array."""
    return pagelocked_zeros(array.shape, array.dtype, _order_of(array), mem_flags, device=device)


def aligned_empty(shape: Shape, dtype: Any, order: str = "C", alignment: int = 4096) -> numpy.ndarray:
    """An ordinary array whose first byte is aligned, as some systems need it for :func:`register_host_memory`."""
    import numpy
    dtype = numpy.dtype(dtype)
    if alignment < 1 or alignment & (alignment - 1):
        raise InvalidArgument(f"the alignment is {alignment}; it must be a power of two")
    shape, size = extent(shape, dtype.itemsize)
    room = numpy.empty(size + alignment - 1, numpy.uint8)
    start = -room.__array_interface__["data"][0] % alignment
    return room[start:start + size].view(dtype).reshape(shape, order=order)


def aligned_zeros(shape: Shape, dtype: Any, order: str = "C", alignment: int = 4096) -> numpy.ndarray:
    """As :func:`aligned_empty`, filled with zeros."""
    array = aligned_empty(shape, dtype, order, alignment)
    array.fill(0)
    return array


def aligned_empty_like(array: numpy.ndarray, alignment: int = 4096) -> numpy.ndarray:
    """As :func:`aligned_empty`, with shape, type and order of another array."""
    return aligned_empty(array.shape, array.dtype, _order_of(array), alignment)


def aligned_zeros_like(array: numpy.ndarray, alignment: int = 4096) -> numpy.ndarray:
    """As :func:`aligned_zeros`, with shape, type and order of another array."""
    return aligned_zeros(array.shape, array.dtype, _order_of(array), alignment)


def register_host_memory(ary: numpy.ndarray, flags: int = 0, *, device: Optional[Device] = None) -> numpy.ndarray:
    """Page-locks the memory of an array in place, and returns an array over the same bytes.

    The memory becomes pageable again when the returned array and all views of it are gone. ``ary`` must be contiguous. It
    is kept alive and cannot be resized meanwhile. A read-only array needs the flag READ_ONLY.
    """
    require = 0
    for flag, wanted in _REGISTER_FLAGS.items():
        if flags & flag:
            require |= wanted
    if flags & ~sum(_REGISTER_FLAGS):
        raise InvalidArgument(f"flags are {flags:#x}, which has a bit that is not in host_register_flags")
    if not (ary.flags.c_contiguous or ary.flags.f_contiguous):
        raise ValueError("the array is not contiguous")
    memory = Memory.register(device or default_device(), ary, require=require)
    return memory.numpy(ary.dtype, ary.shape, order=_order_of(ary))
