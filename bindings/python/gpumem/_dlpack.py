# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""DLPack in both directions, by functions of C in a plug-in, which ask Python for what is rare."""

from __future__ import annotations

import atexit
import ctypes
import functools
import struct
from ctypes import (PYFUNCTYPE, POINTER, Structure, addressof, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64,
                    c_void_p, py_object)
from operator import index
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from . import _types
from .errors import InvalidArgument, LibraryNotFound

if TYPE_CHECKING:
    from ._memory import Region, View

# Device types.
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_WITH_STREAMS = CUDA, CUDA_MANAGED
_KINDS = {CUDA: "device", CUDA_HOST: "pinned", CUDA_MANAGED: "managed"}
VERSION = 1, 0
READ_ONLY, IS_COPIED = 0x1, 0x2


class _Tensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class _Managed(Structure):
    _fields_ = [("tensor", _Tensor), ("manager", c_void_p), ("deleter", c_void_p)]


class _ManagedVersioned(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", _Tensor)]


# Names of capsules.
_UNUSED = {_ManagedVersioned: b"dltensor_versioned", _Managed: b"dltensor"}
_EXCHANGE = b"dlpack_exchange_api"
_new_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_is_valid = PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

# Described of adapters/python/dlpack.cpp, which the shape and the strides follow.
_DESCRIBED = "=Q3i2BH4Q"


class _Objects(Structure):
    """Objects of adapters/python/dlpack.cpp."""
    _fields_ = [(name, py_object) for name in ("describe", "wrap", "generation", "view", "export_any", "types")]


@atexit.register
def _at_exit() -> None:
    """Tensors of consumers that outlive the interpreter must not call into it."""
    for end in _ends:
        if end is not None:
            end()
    _ends.append(None)


def _other_places(place: Tuple[int, int]) -> Tuple[Tuple[int, int], ...]:
    """The devices that reach the memory of a device in place. Some consumers know only these."""
    kind, number = place
    return {CUDA_HOST: ((CPU, 0),), CUDA_MANAGED: ((CPU, 0), (CUDA, number))}.get(kind, ())


# The functions of C that end with the interpreter, once they were started; None, once it ends.
_ends: List[Any] = []


class _Functions(NamedTuple):
    exchange: Any  # the capsule with the table
    take: Callable[[Any], View]  # a view of the tensor in a capsule, which is consumed
    tensor: Callable[[bytes, bool, Any], Any]  # a capsule of a Described, which belongs to an object that the capsule keeps
    schema: Callable[[int, bytes, Any], Any]  # a capsule of the struct at an address in an object, whose name must live as long
    array: Callable[[int, bytes, Any, Any], Any]  # the same; the array keeps the last object until it is released
    move_array: Callable[[int, int], int]  # from and to an address; 0 if it was released or moved before


@functools.lru_cache(maxsize=None)
def functions() -> _Functions:
    """Those of C, which are put in place; raises LibraryNotFound without the plug-in."""
    global _import
    from .adapters import _plug_in
    if None in _ends:
        raise LibraryNotFound("the interpreter ends, and nothing is exported any more")
    _plug_in.require_lock()
    file = _plug_in.path(*_plug_in.PYTHON)
    library = _plug_in.load(file)
    try:
        start = PYFUNCTYPE(c_void_p, ctypes.c_size_t, POINTER(_Objects))(("gpumem_dlpack_start", library))
    except AttributeError:
        raise LibraryNotFound(f"{file} is no plug-in of gpumem for Python, or an older one") from None
    types = tuple(_types.from_dlpack(code, bits, 1) for code in range(7) for bits in (8, 16, 32, 64, 128))
    table = start(struct.calcsize(_DESCRIBED) + ctypes.sizeof(_Objects),
                  _Objects(_describe, _wrap, _memory.generation, _memory.View, _EXPORT, types))
    if not table:
        raise LibraryNotFound(f"{file} is of another version, or used by another import of gpumem in this process, or this is not the main interpreter")
    end = library.gpumem_dlpack_end
    end.argtypes, end.restype = [], None
    _ends.append(end)
    method = PYFUNCTYPE(py_object, py_object, c_char_p)(("gpumem_dlpack_method", library))
    setattr(DLPackView, "__dlpack__", method(DLPackView, _DOC))
    _import = PYFUNCTYPE(py_object)(("gpumem_dlpack_import", library))()
    return _Functions(_new_capsule(table, _EXCHANGE, None), _import,
                      PYFUNCTYPE(py_object, c_char_p, c_int, py_object)(("gpumem_dlpack_capsule", library)),
                      PYFUNCTYPE(py_object, c_void_p, c_char_p, py_object)(("gpumem_dlpack_schema", library)),
                      PYFUNCTYPE(py_object, c_void_p, c_char_p, py_object, py_object)(("gpumem_dlpack_array", library)),
                      PYFUNCTYPE(c_int, c_void_p, c_void_p)(("gpumem_dlpack_move_array", library)))


def _pair(value: Any, what: str) -> Tuple[int, int]:
    try:
        first, second = map(index, value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {value!r}; it must be two integers") from None
    return first, second


class _Exchange:
    """An attribute of a class, made when somebody asks for it."""

    def __get__(self, view: Any, cls: Any) -> Any:
        try:
            return functions().exchange
        except LibraryNotFound as problem:
            raise AttributeError(str(problem)) from None


class DLPackView:
    """The producer's side. A subclass has the attributes of a view."""

    __slots__ = ()
    __dlpack_c_exchange_api__ = _Exchange()

    if TYPE_CHECKING:
        memory: Optional[Region]
        address: int
        shape: Tuple[int, ...]
        strides: Tuple[int, ...]
        typestr: str
        itemsize: int
        nbytes: int
        readonly: bool
        dlpack_device: Optional[Tuple[int, int]]

        def _check_counted(self) -> None: ...

        @property
        def contiguous(self) -> bool: ...

        @property
        def c_contiguous(self) -> bool: ...

        @property
        def device_pointer(self) -> Optional[int]: ...

    def __dlpack_device__(self) -> Tuple[int, int]:
        """(type, number) of the device of the memory."""
        if self.dlpack_device is None:
            raise BufferError("DLPack has no device type for this memory, such as device memory of the host backend; copy it "
                              "to host memory")
        return self.dlpack_device

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule for another library, as the array API specifies it.

        ``stream`` is the consumer's CUDA stream: None or 1 (the legacy default stream), 2 (the per-thread one), the
        number of another stream, or -1 for no wait. It waits for the work in streams of gpumem that uses the memory. Host
        memory accepts None or -1. A ``copy`` is complete when the call returns, and in memory of the same kind unless
        ``dl_device`` is the CPU.
        """
        functions()  # also called by the functions of C, for what they do not do
        self._check_counted()
        _types.to_dlpack(self.typestr)  # fails before anything is copied
        place = self.dlpack_device
        wanted = _pair(dl_device, "dl_device") if dl_device is not None else place or self.__dlpack_device__()
        versioned = max_version is not None and _pair(max_version, "max_version")[0] >= 1
        in_place = place is not None and (wanted == place or wanted in _other_places(place))
        self._check_stream(stream, wanted)
        if not in_place and (copy is False or wanted != (CPU, 0)):
            raise BufferError(f"memory on the device {place} cannot be exported on {wanted}"
                              + (" without a copy" if wanted == (CPU, 0) else ""))
        if copy or not in_place:
            return self._copied(wanted)._capsule(wanted, versioned, IS_COPIED)
        if self.readonly and not versioned:
            raise BufferError("the memory is read-only, which needs a consumer of DLPack 1.0 or later, or a copy")
        if wanted[0] in _WITH_STREAMS and stream != -1:
            self._order_before(stream)
        return self._capsule(wanted, versioned, 0)

    @staticmethod
    def _check_stream(stream: Optional[int], wanted: Tuple[int, int]) -> None:
        if stream is None:
            return
        if not hasattr(stream, "__index__"):
            raise TypeError(f"the stream must be an int or None, not a {type(stream).__name__}")
        if wanted[0] not in _WITH_STREAMS:
            if stream != -1:
                raise InvalidArgument(f"the stream is {stream}; for host memory it must be None or -1")
        elif not (stream == -1 or 0 < stream < 1 << 64):
            raise InvalidArgument(f"the stream is {stream}; pass 1 or 2 for a default stream, or -1 for no wait")

    def _order_before(self, stream: Optional[int]) -> None:
        """Makes the consumer's stream wait for the work in flight on the memory."""
        queues: Any = self.memory._queues() if self.memory else ()
        if self.memory and queues:
            from ._stream import Stream
            # The legacy default stream is 1 in DLPack and NULL in the driver; both take 2 for the per-thread one.
            with Stream.wrap(self.memory.device, 0 if stream is None or stream == 1 else stream) as consumer:
                for queue in queues:
                    queue.order_before(consumer.handle)

    def _copied(self, place: Tuple[int, int]) -> View:
        """A view of a copy on a device of DLPack, made after the work in flight."""
        if not self.contiguous:
            raise BufferError("the view is not contiguous and cannot be copied")
        memory = self.memory
        if memory is None and (place[0] != CPU or self.dlpack_device and self.dlpack_device[0] == CUDA):
            raise BufferError("the memory belongs to another library; let that copy it")
        target: Any
        if place[0] == CPU or memory is None:
            target = (c_uint8 * max(self.nbytes, 1))()
            found = _memory.View._foreign(target, addressof(target), self.shape, self.strides, self.typestr, self.itemsize, False, place)
        else:
            device = memory.device.instance.device(place[1]) if place[0] in _WITH_STREAMS else memory.device
            target = device.memory(max(self.nbytes, 1), _KINDS[place[0]], name="copy for DLPack")
            found = target.view(self.typestr, self.shape, order="C" if self.c_contiguous else "F")
        if self.nbytes and memory is not None:
            queues: Any = memory._queues()
            for queue in queues:
                queue.synchronize()
            memory.device.instance.copy(found, self, self.nbytes)
        elif self.nbytes:
            ctypes.memmove(found.address, self.address, self.nbytes)
        return found

    def _described(self, place: Tuple[int, int], flags: int = 0) -> bytes:
        """A Described, with its shape and strides."""
        code, bits = _types.to_dlpack(self.typestr)
        data = (self.device_pointer if place[0] == CUDA else self.address) if self.nbytes else None
        shape, itemsize = self.shape, self.itemsize
        return struct.pack(f"{_DESCRIBED}{2 * len(shape)}q", data or 0, *place, len(shape), code, bits, 1, 0, 0, 0,
                           flags | (READ_ONLY if self.readonly else 0), *shape, *(stride // itemsize for stride in self.strides))

    def _capsule(self, place: Tuple[int, int], versioned: bool, flags: int) -> Any:
        described, view = self._described(place, flags), self
        kept: Any = described, view, view._loan  # type: ignore[attr-defined]
        self._check_counted()  # now that it is lent, as in View._bytes()
        return functions().tensor(described, versioned, kept)


_EXPORT = DLPackView.__dlpack__
_DOC = f"__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n{_EXPORT.__doc__ or ''}".encode()

# The functions of C ask again if this set has more than one entry.
_NEVER: FrozenSet[int] = frozenset()
_ALWAYS = frozenset((1, 2))


def _describe(what: Any, stream: Optional[int]) -> bytes:
    """For the functions of C: the Described of a view, which a stream may use now. It is kept at the view, and with it what tells
    the functions, the next time, whether they must ask again."""
    if not isinstance(what, DLPackView):
        raise TypeError(f"a {type(what).__name__} is no gpumem.View")
    view: Any = what
    view._check_counted()
    place, generation = view.__dlpack_device__(), _memory.generation[0]
    known = view._exchange[-1] if view._exchange else None
    if known is None or known[3] is not generation:
        memory, described = view.memory, view._described(place)
        holds: Any = _NEVER
        if memory is not None and place[0] in _WITH_STREAMS:
            holds = memory._holds if type(memory)._queues is _memory.Region._queues else _ALWAYS
        known = described, holds, memory is not None, generation
        # Never taken out again: tensors of other threads, and of before a fork, may point there.
        view._exchange.append(known)
    view._check_stream(stream, place)
    if place[0] in _WITH_STREAMS and stream != -1:
        view._order_before(stream)
    found: bytes = known[0]
    return found


def _wrap(owner: Any) -> View:
    """A view of the tensor in a capsule, which it keeps."""
    cls: Any
    for cls, name in _UNUSED.items():
        if _is_valid(owner, name):
            return _view_of(owner, cls.from_address(_get_pointer(owner, name)))
    raise InvalidArgument("the capsule has no tensor, or its tensor was consumed before")


def from_dlpack(source: Any, *, device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None,
                stream: Any = None) -> View:
    """A view of an array of another library, without a copy.

    ``source`` is an object with ``__dlpack__``, or a capsule. ``device`` and ``copy`` are passed to ``__dlpack__``.

    ``stream`` is the stream that will use the view: a Stream, or what :meth:`Stream.wrap` takes. It comes after the work that
    the other library has enqueued on the array. Without one, and for copies that take no stream, wait for that work yourself.
    """
    if hasattr(source, "__dlpack__"):
        source = _ask(source, device, copy, stream)
    elif type(source).__name__ != "PyCapsule":
        raise TypeError(f"a {type(source).__name__} has no __dlpack__")
    elif stream is not None:
        raise InvalidArgument("a capsule was ordered when it was made; pass the array itself, or no stream")
    return _import(source)


_import: Callable[[Any], View] = lambda capsule: functions().take(capsule)  # until that takes its place


def _view_of(owner: Any, managed: Any) -> View:
    if isinstance(managed, _ManagedVersioned) and managed.major != VERSION[0]:
        raise BufferError(f"the tensor has version {managed.major}.{managed.minor} of DLPack, not {VERSION[0]}.x")
    tensor = managed.tensor
    typestr, itemsize = _types.from_dlpack(tensor.code, tensor.bits, tensor.lanes)
    count = tensor.ndim
    if count < 0 or (count and not tensor.shape):
        raise BufferError(f"the tensor has {count} dimensions and no shape")
    shape, strides = tuple(tensor.shape[:count]) if count else (), tensor.strides
    if any(extent < 0 for extent in shape):
        raise BufferError(f"the tensor has the shape {shape}")
    if all(shape) and not tensor.data:
        raise BufferError("the tensor has elements, but no data")
    if (tensor.data or 0) + tensor.byte_offset >= 1 << 64:
        raise BufferError(f"the tensor has the offset {tensor.byte_offset}")
    if strides:
        strides = tuple([stride * itemsize for stride in strides[:count]])
    else:
        strides = _memory.strides_of(shape, itemsize, "C")
    readonly = isinstance(managed, _ManagedVersioned) and bool(managed.flags & READ_ONLY)
    return _memory.View._foreign(owner, (tensor.data or 0) + tensor.byte_offset, shape, strides, typestr, itemsize, readonly,
                                 (tensor.device_type, tensor.device_id))


_NOTHING: Dict[str, Any] = {}


def _ask(source: Any, device: Any, copy: Any, stream: Any) -> Any:
    more = order = _NOTHING
    if device is not None or copy is not None:
        more = {name: value for name, value in (("dl_device", device), ("copy", copy)) if value is not None}
    if stream is not None and (device or source.__dlpack_device__())[0] in _WITH_STREAMS:
        from ._stream import native_stream_of
        order = {"stream": native_stream_of(stream) or 1}  # the legacy default stream is NULL in the driver and 1 in DLPack
    try:
        if more is order:
            return source.__dlpack__(max_version=VERSION)  # no dictionaries to merge
        return source.__dlpack__(max_version=VERSION, **order, **more)
    except TypeError:
        # A producer from before DLPack 1.0 knows only the stream, and always exports the array in place.
        if more:
            raise
        return source.__dlpack__(**order)


from . import _memory  # which needs this module
