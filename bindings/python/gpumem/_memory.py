# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Memory of every kind, and typed views that other libraries can use in place."""

from __future__ import annotations

import struct
import sys
from ctypes import byref, c_ubyte, c_void_p
from typing import TYPE_CHECKING, Any, Optional, Tuple, Union

from . import _library as c
from . import _types
from ._calls import GONE, ask, call, destroy_quietly, encoded, leftovers, status_error, sweep, text, u64
from ._dlpack import CPU, CUDA, CUDA_HOST, DLPackView
from ._codes import Backend, Kind, MemoryFlags
from ._operands import host_buffer
from ._results import MemoryInfo, known
from .errors import Busy, InvalidArgument, StaleHandle

if TYPE_CHECKING:
    from ._instance import Device
    from ._stream import Stream

Shape = Union[int, Tuple[int, ...]]

_DEVICE = int(Kind.DEVICE)
# Writes kind, numa_node, size, alignment, require and prefer of gpumem_memory_desc at once.
_pack_desc = struct.Struct("=iiQQQQ").pack_into
_DESC_OFFSET = c.gpumem_memory_desc.kind.offset


class _Creation:
    """Structs for a call of gpumem_memory_create, kept for the next one."""

    __slots__ = ("desc", "out", "detail", "desc_pointer", "out_pointer", "detail_pointer")

    def __init__(self):
        self.desc, self.out, self.detail = c.gpumem_memory_desc(), c_void_p(), c.gpumem_error()
        self.desc_pointer, self.out_pointer, self.detail_pointer = byref(self.desc), byref(self.out), byref(self.detail)


_creations: list = []


class Memory:
    """One allocation, or existing memory that is page-locked in place.

    ``Memory(device, size)`` allocates device memory, ``Memory(device, size, Kind.PINNED)`` page-locked host memory.
    :meth:`register` page-locks existing memory.

    ``require`` are properties without which the call fails. Those in ``prefer`` may be missing from
    :attr:`granted_flags`. The contents of fresh memory are indeterminate.

    The memory is freed by :meth:`close`, at the end of a ``with`` block, or when nothing refers to it any more: neither
    this object, nor a view of it, nor a copy in a stream that was not observed complete.
    """

    __slots__ = ("device", "_handle", "_open", "_holds", "_info", "_source", "__weakref__")

    def __init__(self, device: Device, size: int, kind: int = _DEVICE, *, alignment: int = 0, require: int = 0,
                 prefer: int = 0, numa_node: int = 0, name: Optional[str] = None):
        # Nothing is set before the memory exists: that is how __del__ knows.
        if leftovers:
            sweep()
        try:
            creation = _creations.pop()
        except IndexError:
            creation = _Creation()
        try:
            _pack_desc(creation.desc, _DESC_OFFSET, kind, numa_node, size, alignment, require, prefer)
        except struct.error:
            raise InvalidArgument(f"a number is out of its range: size {size}, alignment {alignment}, kind {kind}, "
                                  f"numa_node {numa_node}, require {require}, prefer {prefer}") from None
        if name is not None:
            creation.desc.name = encoded(name)
        status = c.memory_create_prepared(device._pointer, creation.desc_pointer, creation.out_pointer,
                                          creation.detail_pointer)
        self._handle = creation.out.value
        error = status_error(status, creation.detail) if status < 0 else None
        if name is not None:
            creation.desc.name = None
        _creations.append(creation)
        if error is not None:
            raise error
        self.device, self._info, self._source = device, None, None
        # One entry for each view (None), and the work queue for each use in a stream that was not observed complete. A
        # list, because append, pop and remove are atomic.
        self._holds = []
        # Missing once it is closed, and while a thread tries that: the one that deletes it, which is atomic.
        self._open = True

    @classmethod
    def register(cls, device: Device, source: Any, size: Optional[int] = None, *, require: int = 0, prefer: int = 0,
                 name: Optional[str] = None) -> Memory:
        """Page-locks existing memory, so that devices can use it; closing makes it pageable again.

        ``source`` is an array or any other object with a buffer, which is kept alive, or the address of memory that you
        keep mapped, with its ``size``. A read-only source needs ``MemoryFlags.READ_ONLY`` in ``require``.
        """
        source, address, size = _registered_source(source, size, require)
        if leftovers:
            sweep()
        desc = c.gpumem_register_desc(pointer=address, size=u64(size, "size"), require=u64(require, "require"),
                                      prefer=u64(prefer, "prefer"), name=encoded(name))
        handle = c_void_p()
        call(c.gpumem_memory_register, device._handle, desc, handle)
        self = cls.__new__(cls)
        self._handle = handle.value
        self.device, self._info, self._source, self._holds, self._open = device, None, source, [], True
        return self

    def close(self) -> None:
        """Frees the memory, or makes registered memory pageable again. A second call does nothing.

        Raises BufferError while a view of it is alive (an array, a memoryview, a tensor of another library), or while
        another thread copies or fills it; and Busy while work in a stream that uses it was not observed complete. The
        memory is then unchanged.
        """
        try:
            # Before the views are counted, so that a view in another thread is made before this or not at all.
            del self._open
        except AttributeError:
            return
        if self._holds:
            self._open = True  # at once, because a holder may be waiting for this
            self._refuse()
            return
        if c.gpumem_memory_destroy(self._handle, None) < 0:
            self._destroy()
        self._source = None

    def _destroy(self):
        """Destroys it again, for the detail of the error."""
        try:
            call(c.gpumem_memory_destroy, self._handle)
        except Exception as problem:
            if getattr(problem, "code", None) not in GONE:
                self._open = True
                raise

    def _refuse(self):
        try:
            self.info()  # a fork or a closed instance is reported first
        except StaleHandle:
            if not self.closed:
                raise
            return  # another thread has closed it since
        if any(hold is not None for hold in self._holds):
            raise Busy("work in a stream uses the memory and was not observed complete; synchronize the stream first",
                       function="gpumem_memory_destroy")
        raise BufferError("memory cannot be closed while views of it are alive or another thread is in a call with it")

    def __del__(self, finalizing=sys.is_finalizing, destroy=destroy_quietly):
        try:
            if self._open and finalizing():
                return
        except AttributeError:  # it is closed, or was never created
            return
        destroy(c.gpumem_memory_destroy, self._handle, self._source)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        if self.closed:
            return "<gpumem.Memory, closed>"
        try:
            info = self.info()
        except Exception as problem:
            return f"<gpumem.Memory: {problem}>"
        return (f"<gpumem.Memory {getattr(info.kind, 'name', info.kind).lower()} of {info.size} bytes on device "
                f"{info.device_ordinal}>")

    @property
    def handle(self) -> int:
        """The ``gpumem_memory`` of the C interface."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the memory was closed."""
        return not hasattr(self, "_open")

    def info(self) -> MemoryInfo:
        """Information about the memory. It queries the library, so it fails once the memory is destroyed."""
        found = ask(c.gpumem_memory_get_info, c.gpumem_memory_info(), self._handle)
        self._info = MemoryInfo(
            known(Kind, found.kind), found.numa_node, found.device_ordinal, found.host_pointer, found.device_pointer,
            found.size, found.granted_size, found.alignment, MemoryFlags(found.requested_flags),
            MemoryFlags(found.granted_flags), found.buffer_id, text(found.name))
        return self._info

    def _known(self):
        """The same without a call, because it never changes."""
        return self._info or self.info()

    @property
    def kind(self) -> Kind:
        """DEVICE, PINNED or REGISTERED."""
        return self._known().kind

    @property
    def size(self) -> int:
        """Bytes requested: the only ones that may be used."""
        return self._known().size

    @property
    def nbytes(self) -> int:
        """The same as :attr:`size`."""
        return self._known().size

    @property
    def host_pointer(self) -> Optional[int]:
        """Address for the CPU; None for device memory."""
        return self._known().host_pointer

    @property
    def device_pointer(self) -> Optional[int]:
        """Address for devices; None if the memory has none."""
        return self._known().device_pointer

    @property
    def granted_flags(self) -> MemoryFlags:
        """Properties of the memory; contains what was required."""
        return self._known().granted_flags

    @property
    def requested_flags(self) -> MemoryFlags:
        """The required and preferred properties together."""
        return self._known().requested_flags

    @property
    def name(self) -> str:
        """As given at creation."""
        return self._known().name

    def _operand(self, _):
        info = self._known()
        return info.host_pointer or info.device_pointer, info.size, self

    def view(self, dtype: Any = None, shape: Optional[Shape] = None, *, offset: int = 0, order: str = "C") -> View:
        """A typed view of the memory or of a part of it; of bytes by default.

        ``dtype`` is anything that numpy accepts as one, or without numpy a text such as "float32" or "<f4". ``shape`` is
        a number or a tuple; without it the view has one dimension and reaches to the end.
        """
        return View._of(self, dtype, shape, offset, order)

    def buffer(self) -> memoryview:
        """A memoryview of the bytes of host memory."""
        return self.view().buffer()

    def numpy(self, dtype: Any = None, shape: Optional[Shape] = None, *, offset: int = 0, order: str = "C"):
        """The memory as a numpy array, whose ``base`` is the view that keeps the memory alive."""
        return self.view(dtype, shape, offset=offset, order=order).numpy()

    def __buffer__(self, flags: int) -> memoryview:
        return self.buffer()

    def __dlpack__(self, **arguments):
        return self.view().__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.view().__dlpack_device__()

    def copy_from(self, source: Any, size: Optional[int] = None, *, offset: int = 0,
                  stream: Optional[Stream] = None) -> None:
        """Copies bytes of any other operand into the memory, or enqueues the copy. See :meth:`Instance.copy`."""
        (stream or self.device.instance).copy(self.view(offset=offset), source, size)

    def copy_to(self, destination: Any, size: Optional[int] = None, *, offset: int = 0,
                stream: Optional[Stream] = None) -> None:
        """Copies bytes of the memory into any other operand, or enqueues the copy. See :meth:`Instance.copy`."""
        (stream or self.device.instance).copy(destination, self.view(offset=offset), size)

    def fill(self, value: int, *, value_size: int = 1, stream: Optional[Stream] = None) -> None:
        """Fills the whole memory with a number, or enqueues the fill. See :meth:`Instance.fill`."""
        (stream or self.device.instance).fill(self, None, value, value_size)


def memory_of(value):
    """The memory of a Memory or View; None for any other operand."""
    if isinstance(value, Memory):
        return value
    return value.memory if isinstance(value, View) else None


def _registered_source(source, size, require):
    """(object to keep alive, address, size) of memory to register."""
    if isinstance(source, int):
        if size is None:
            raise TypeError("the size is missing")
        return None, u64(source, "the address"), size
    buffer = host_buffer(source, writable=not require & c.GPUMEM_MEMORY_READ_ONLY)
    if size is None:
        size = buffer.size
    elif size > buffer.size:
        raise InvalidArgument(f"size is {size}, but the source has only {buffer.size} bytes")
    return buffer, buffer.address, size


def extent(shape, itemsize):
    """(shape as a tuple, bytes). Fails if no array can be that large."""
    shape = tuple(int(length) for length in shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    size = itemsize
    for length in shape:
        if length < 0:
            raise InvalidArgument(f"a length of {length} is negative")
        size *= length
    if size >= 1 << 63:
        raise InvalidArgument(f"an array of shape {shape} with elements of {itemsize} bytes is too large")
    return shape, size


def strides_of(shape, itemsize, order):
    strides = []
    for length in reversed(shape) if order == "C" else shape:
        strides.append(itemsize)
        itemsize *= length
    return tuple(reversed(strides) if order == "C" else strides)


class View(DLPackView):
    """A typed view of memory, which other libraries can use in place.

    :meth:`Memory.view` and :func:`from_dlpack` make them. The memory cannot be closed while a view is alive, or an array,
    memoryview or tensor made from it. A view offers:

    - the buffer protocol (:meth:`buffer`, and ``memoryview(view)`` from Python 3.12 on) and numpy's array interface
      (``numpy.asarray(view)``) for memory that the CPU can access;
    - DLPack (``torch.from_dlpack(view)``, ``cupy.from_dlpack(view)``, ...);
    - ``__cuda_array_interface__`` for memory that devices can use, on the cuda backend.
    """

    memory: Optional[Memory]
    address: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    typestr: str
    itemsize: int
    nbytes: int
    readonly: bool
    dlpack_device: Optional[Tuple[int, int]]
    __slots__ = ("memory", "address", "shape", "strides", "typestr", "itemsize", "nbytes", "readonly", "dlpack_device",
                 "_descr", "_owner", "__weakref__")

    def __init__(self):
        raise TypeError("get views from Memory.view() or gpumem.from_dlpack()")

    @classmethod
    def _of(cls, memory, dtype, shape, offset, order):
        if order not in ("C", "F"):
            raise ValueError(f"the order is {order!r}; it must be 'C' or 'F'")
        typestr, itemsize, descr = _types.element_type(dtype)
        info = memory._known()
        offset = u64(offset, "offset")
        if shape is None:
            if offset > info.size or (info.size - offset) % itemsize:
                raise InvalidArgument(f"{info.size} bytes from {offset} on are no whole number of elements of "
                                      f"{itemsize} bytes")
            shape = (info.size - offset) // itemsize
        shape, nbytes = extent(shape, itemsize)
        if offset + nbytes > info.size:
            raise InvalidArgument(f"the view needs {nbytes} bytes from {offset} on, but the memory has {info.size}")

        self = cls.__new__(cls)
        self.memory = self._owner = None
        self.address = (info.host_pointer or info.device_pointer) + offset
        self.shape, self.nbytes = shape, nbytes
        self.strides = strides_of(shape, itemsize, order)
        self.typestr, self.itemsize, self._descr = typestr, itemsize, descr
        self.readonly = bool(info.granted_flags & MemoryFlags.READ_ONLY)
        self.dlpack_device = _dlpack_device(memory)
        # Counted first, then checked: close() does it in the reverse order.
        memory._holds.append(None)
        instance = memory.device.instance
        instance._views.append(None)
        if memory.closed or instance._closed:
            memory._holds.remove(None)
            instance._views.pop()
            raise StaleHandle("the memory is closed")
        self.memory = memory
        return self

    @classmethod
    def _foreign(cls, owner, address, shape, strides, typestr, itemsize, readonly, device):
        """A view of memory of another library, which ``owner`` keeps alive."""
        self = cls.__new__(cls)
        self.memory, self._owner = None, owner
        self.address, self.shape, self.strides = address, shape, strides
        self.typestr, self.itemsize, self._descr = typestr, itemsize, None
        self.nbytes = itemsize
        for length in shape:
            self.nbytes *= length
        self.readonly, self.dlpack_device = readonly, device
        return self

    def __del__(self):
        memory = getattr(self, "memory", None)
        if memory is not None:
            memory._holds.remove(None)
            memory.device.instance._views.pop()

    def __repr__(self):
        return f"<gpumem.View of shape {self.shape} and type {self.typestr} at {self.address:#x}>"

    def __len__(self):
        return self.shape[0]

    @property
    def contiguous(self) -> bool:
        """Whether there are no gaps between the elements."""
        return 0 in self.shape or any(self.strides == strides_of(self.shape, self.itemsize, order) for order in "CF")

    def _operand(self, writable):
        if writable and self.readonly and self.memory is None:
            raise ValueError("the array is read-only")
        if not self.contiguous:
            raise ValueError("the array is not contiguous")
        return self.address, self.nbytes, self

    @property
    def device_pointer(self) -> Optional[int]:
        """Address of the first byte for devices; None if the memory has none."""
        if self.memory is None:
            return self.address if self.dlpack_device[0] != CPU else None
        info = self.memory._known()
        if info.device_pointer is None:
            return None
        return info.device_pointer + self.address - (info.host_pointer or info.device_pointer)

    def get_device_pointer(self) -> Optional[int]:
        """The same, under its name in PyCUDA."""
        return self.device_pointer

    # ---- the CPU ----

    def _host_accessible(self):
        return self.memory._known().host_pointer is not None if self.memory else self.dlpack_device[0] != CUDA

    def buffer(self) -> memoryview:
        """A memoryview of the bytes: typed and shaped if the view is C-contiguous and memoryview has its type."""
        if not self._host_accessible():
            raise BufferError("the CPU cannot access device memory; copy it")
        if not self.contiguous:
            raise BufferError("the view is not contiguous")
        array = (c_ubyte * self.nbytes).from_address(self.address)
        array._view = self  # the memoryview keeps the array, and so the view
        found = memoryview(array).cast("B")
        code = _types.buffer_format(self.typestr)
        if code and self.nbytes and self.shape and self.strides == strides_of(self.shape, self.itemsize, "C"):
            found = found.cast(code, self.shape) if self.shape != found.shape or code != "B" else found
        return found.toreadonly() if self.readonly else found

    def __buffer__(self, flags: int) -> memoryview:
        return self.buffer()

    @property
    def __array_interface__(self) -> dict:
        if not self._host_accessible():
            raise AttributeError("the CPU cannot access device memory; copy it")
        found = {"version": 3, "shape": self.shape, "typestr": self.typestr, "data": (self.address, self.readonly),
                 "strides": self.strides}
        if self._descr:
            found["descr"] = self._descr
        return found

    def numpy(self):
        """The memory as a numpy array, whose ``base`` is this view."""
        import numpy
        return numpy.asarray(self)

    # ---- devices ----

    @property
    def __cuda_array_interface__(self) -> dict:
        """Version 3 of the interface. ``stream`` is the stream to wait for, if work is in flight."""
        memory = self.memory
        if memory is None or memory.device.instance.backend != Backend.CUDA:
            raise AttributeError("only memory of the cuda backend has a __cuda_array_interface__")
        address = self.device_pointer
        if address is None:
            raise AttributeError("the memory has no device pointer; register it with MemoryFlags.MAPPED")
        found = {"version": 3, "shape": self.shape, "typestr": self.typestr, "data": (address, self.readonly),
                 "strides": None if self.strides == strides_of(self.shape, self.itemsize, "C") else self.strides,
                 "stream": _work_stream(memory)}
        if self._descr:
            found["descr"] = self._descr
        return found


def _dlpack_device(memory):
    """Device type and number in DLPack, or None if DLPack has none for the memory."""
    kind, host = memory.kind, memory.device.instance.backend == Backend.HOST
    if kind == _DEVICE:
        return None if host else (CUDA, memory.device.ordinal)
    return (CPU, 0) if host else (CUDA_HOST, 0)


def _work_stream(memory):
    """The native stream to wait for before using the memory, or None if no work is in flight."""
    queues = {hold for hold in memory._holds if hold is not None}
    if not queues:
        return None
    last = queues.pop()
    for queue in queues:
        queue.order_before(last.handle)
    return last.native()
