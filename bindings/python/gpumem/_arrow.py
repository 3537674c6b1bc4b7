# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The Arrow C device data interface in both directions."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, addressof, c_char_p, c_int32, c_int64, c_void_p, cast, pointer, py_object
from typing import TYPE_CHECKING, Any, Optional, Tuple

from . import _types
from ._codes import EventFlags
from ._dlpack import (_WITH_STREAMS, CPU, CUDA, CUDA_HOST, CUDA_MANAGED, DLPackView, _get_pointer, _is_valid, functions)
from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._instance import Device
    from ._memory import View
    from ._stream import Event, Stream


class _Schema(Structure):
    _fields_ = [("format", c_char_p), ("name", c_char_p), ("metadata", c_void_p), ("flags", c_int64), ("n_children", c_int64),
                ("children", c_void_p), ("dictionary", c_void_p), ("release", c_void_p), ("private_data", c_void_p)]


class _Array(Structure):
    _fields_ = [("length", c_int64), ("null_count", c_int64), ("offset", c_int64), ("n_buffers", c_int64),
                ("n_children", c_int64), ("buffers", POINTER(c_void_p)), ("children", c_void_p), ("dictionary", c_void_p),
                ("release", c_void_p), ("private_data", c_void_p)]


class _DeviceArray(Structure):
    _fields_ = [("array", _Array), ("device_id", c_int64), ("device_type", c_int32), ("sync_event", POINTER(c_void_p)),
                ("reserved", c_int64 * 3)]


# The names and formats are never freed, because capsules and structs point to them.
_NAMES = _SCHEMA, _DEVICE_ARRAY, _ARRAY = b"arrow_schema", b"arrow_device_array", b"arrow_array"
_Release = CFUNCTYPE(None, c_void_p)

for _lasting in (_NAMES, _types.ARROW):
    ctypes.pythonapi.Py_IncRef(py_object(_lasting))


class ArrowView(DLPackView):
    """The producer's side, beside DLPack's."""

    __slots__ = ()

    def __arrow_c_device_array__(self, requested_schema: Any = None, *, stream: Any = None, **more: Any) -> Tuple[Any, Any]:
        """Two capsules for another library, a schema and an array without nulls, as the Arrow PyCapsule interface specifies.

        The view must have one dimension without gaps, and a type of Arrow, which ``requested_schema`` does not change. The
        event of the array comes after the work in streams of gpumem that uses the memory, and after the work that is in
        ``stream`` now: a Stream, or what :meth:`Stream.wrap` takes. Host memory has no event: the call waits instead.
        """
        for name, value in more.items():
            if value is not None:
                raise NotImplementedError(f"the keyword {name} is not supported; leave it out")
        self._check_counted()
        kind = _types.to_arrow(self.typestr)
        if len(self.shape) != 1 or not self.c_contiguous:
            raise BufferError("an array of Arrow has one dimension without gaps; make such a view, or export it by DLPack")
        place = self.dlpack_device
        if place is None:
            raise BufferError("Arrow has no device type for this memory, such as device memory of the host backend; copy it to "
                              "host memory")
        event = self._recorded(place, stream)
        buffers = (c_void_p * 2)(None, self.device_pointer if place[0] == CUDA else self.address)
        found: Any = _DeviceArray(device_type=place[0], device_id=-1 if place[0] == CPU else place[1])
        array = found.array
        array.length, array.n_buffers, array.buffers = self.shape[0], 2, cast(buffers, POINTER(c_void_p))
        native = c_void_p(event.info().native_event if event else None)
        if event:
            found.sync_event = pointer(native)
        kept = buffers, native, event, self, self._loan  # type: ignore[attr-defined]
        self._check_counted()  # now that it is lent, as in View._bytes()
        schema, c = _Schema(format=kind, name=b""), functions()
        return c.schema(addressof(schema), _SCHEMA, schema), c.array(addressof(found), _DEVICE_ARRAY, found, kept)

    def _recorded(self, place: Tuple[int, int], stream: Any) -> Optional[Event]:
        """An event behind the work that the consumer must wait for, or None if there is none in flight."""
        from ._stream import Event
        queues: Any = self.memory._queues() if self.memory else set()
        if stream is not None:
            stream = _stream(stream, place, self.memory.device if self.memory else None)
            queues.add(stream._queue)
        if place[0] not in _WITH_STREAMS:
            for queue in queues:
                queue.synchronize()
        if place[0] not in _WITH_STREAMS or not queues:
            return None
        last = stream._queue if stream else next(iter(queues))
        for queue in queues - {last}:
            queue.order_before(last.handle)
        event = Event(last.device, flags=EventFlags.DISABLE_TIMING)
        event._record(last)
        return event


def _stream(stream: Any, place: Tuple[int, int], device: Optional[Device] = None) -> Stream:
    """A stream of the caller, wrapped unless it is one of gpumem."""
    from ._stream import Stream
    return stream if isinstance(stream, Stream) else Stream.wrap(device or _device(place), stream)


def _device(place: Tuple[int, int]) -> Device:
    from ._instance import default_instance
    return default_instance().device(place[1] if place[0] in _WITH_STREAMS else 0)


def _taken(array: Any) -> Any:
    """A capsule with the array, moved out of that of the other library. It releases it, in C, where no signal handler comes in
    between."""
    own, c = _Array(), functions()
    capsule = c.array(addressof(own), _ARRAY, own, None)
    _Release(own.release)(addressof(own))  # of what it kept, None
    if not c.move_array(addressof(array), addressof(own)):
        raise InvalidArgument("the array was released or imported before; export it again")
    return capsule


def from_arrow(source: Any, *, stream: Any = None) -> View:
    """A read-only view of an array of Arrow of another library, without a copy.

    ``source`` is an object with ``__arrow_c_device_array__``, or with ``__arrow_c_array__`` for memory of the CPU. Its type
    must be a number, and it must have no nulls.

    ``stream`` is the stream that will use the view: a Stream, or what :meth:`Stream.wrap` takes. It waits for the event of the
    array. Without one, this call waits.
    """
    from ._memory import View, extent
    from ._stream import Event
    on_device = hasattr(source, "__arrow_c_device_array__")
    if not on_device and not hasattr(source, "__arrow_c_array__"):
        raise TypeError(f"a {type(source).__name__} has no __arrow_c_device_array__ and no __arrow_c_array__")
    pair = source.__arrow_c_device_array__() if on_device else source.__arrow_c_array__()
    name = _DEVICE_ARRAY if on_device else _ARRAY
    if not isinstance(pair, tuple) or len(pair) != 2 or not _is_valid(pair[0], _SCHEMA) or not _is_valid(pair[1], name):
        raise InvalidArgument(f"a {type(source).__name__} returned no pair of capsules {_SCHEMA.decode()} and {name.decode()}")
    schema: Any = _Schema.from_address(_get_pointer(pair[0], _SCHEMA))
    found: Any = (_DeviceArray if on_device else _Array).from_address(_get_pointer(pair[1], name))
    array = found.array if on_device else found
    if not schema.release or not array.release:  # looked at again when it is taken
        raise InvalidArgument("the array was released or imported before; export it again")
    typestr, itemsize = _types.from_arrow(schema.format or b"")
    if schema.n_children or array.n_children or schema.dictionary or array.dictionary:
        raise BufferError("nested arrays and those with a dictionary cannot be imported; pass one column of numbers")
    length, offset, count, buffers = array.length, array.offset, array.n_buffers, array.buffers
    if count != 2 or not buffers or length < 0 or offset < 0 or (length and not buffers[1]):
        raise InvalidArgument(f"the array is not valid: {count} buffers, some perhaps missing, length {length}, offset {offset}")
    if array.null_count > 0 or (array.null_count < 0 and buffers[0]):
        raise BufferError("the array has nulls, or does not say that it has none; fill or drop them first")
    extent((offset + length,), itemsize)
    place = (found.device_type, found.device_id) if on_device and found.device_type != CPU else (CPU, 0)
    event = found.sync_event if on_device else None
    if place[0] not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED) or (event and place[0] == CPU):
        raise BufferError(f"memory on the device {place} of Arrow{' with an event' if event else ''} cannot be imported; copy it to "
                          "the CPU or a device of CUDA")
    address = (buffers[1] or 0) + offset * itemsize
    owner = _taken(array)
    if event:
        waiting = None if stream is None else _stream(stream, place)
        with Event.wrap(waiting.device if waiting else _device(place), event[0] or 0, flags=EventFlags.DISABLE_TIMING) as wrapped:
            if waiting:
                waiting.wait_event(wrapped)
            else:
                wrapped.synchronize()
    return View._foreign(owner, address, (length,), (itemsize,), typestr, itemsize, True, place)
