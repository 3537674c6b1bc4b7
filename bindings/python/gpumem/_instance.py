# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Instances and devices."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import warnings
import weakref
from ctypes import c_uint32, c_uint64, c_void_p
from typing import Any, Optional, Sequence, Tuple, Union

from . import _library as c
from ._calls import GONE, ask, call, encoded, i32, leftovers, pending, sweep, text, u32, u64
from ._codes import Access, Backend, Capability, Kind, Location, MemoryFlags
from ._memory import Memory, View
from ._operands import operand
from ._results import (CapabilityInfo, DeviceInfo, InstanceInfo, KindStats, PointerInfo, ProbeInfo, Stats, StatusInfo,
                       known)
from ._stream import Event, Stream, hold, instance_closed, let_go
from .errors import Error, InvalidArgument, NotFound


@dataclasses.dataclass
class HostOptions:
    """How an instance of the host backend behaves. 0 and None are the defaults; see the page on the host backend."""

    device_count: int = 0
    strict: Optional[bool] = None
    device_bytes: int = 0
    granularity: int = 0
    pageable: Optional[bool] = None
    same_pointer: Optional[bool] = None
    lock_mode: int = c.GPUMEM_HOST_LOCK_DEFAULT
    numa_nodes: int = 0
    register_count_max: int = 0
    lock_piece: int = 0
    quarantine: int = 0
    fill: Optional[bool] = None
    peers: Optional[str] = None
    masked: Optional[str] = None

    def _struct(self):
        options = c.gpumem_host_options()
        for name, value in dataclasses.asdict(self).items():
            if name in ("strict", "pageable", "same_pointer", "fill"):
                value = {None: c.GPUMEM_TOGGLE_DEFAULT, True: c.GPUMEM_TOGGLE_ON, False: c.GPUMEM_TOGGLE_OFF}[value]
            elif name in ("peers", "masked"):
                value = encoded(value)
            elif name == "lock_mode":
                value = i32(value, name)
            elif name in ("device_count", "numa_nodes", "quarantine"):
                value = u32(value, name)
            else:
                value = u64(value, name)
            setattr(options, name, value)
        return options


def _backend(value):
    if isinstance(value, str):
        try:
            return Backend[value.upper()]
        except KeyError:
            raise InvalidArgument(f"{value!r} is no backend: any, cuda or host") from None
    return i32(value, "backend")


def version() -> Tuple[int, int, int]:
    """Version of the library in use."""
    number = c.gpumem_version()
    return number >> 22, number >> 12 & 0x3ff, number & 0xfff


def version_text() -> str:
    """The same as text."""
    return text(c.gpumem_version_text())


def feature_supported(feature: int) -> bool:
    """Whether this build of the library contains a :class:`Feature`."""
    return bool(c.gpumem_feature_supported(i32(feature, "feature")))


def status_name(code: int) -> str:
    """Name of a status code, such as "GPUMEM_ERROR_BUSY"."""
    return text(c.gpumem_status_name(i32(code, "code")))


def status_info(code: int) -> StatusInfo:
    """Name, cause and remedy of a status code."""
    found = ask(c.gpumem_status_get_info, c.gpumem_status_info(), i32(code, "code"))
    return StatusInfo(found.status, text(found.name), text(found.cause), text(found.remedy))


def _enumerate(function):
    number = ctypes.c_int32()
    found = []
    while True:
        try:
            call(function, len(found), number)
        except NotFound:
            return found
        found.append(number.value)


def statuses() -> list:
    """The status codes of the library in use."""
    return _enumerate(c.gpumem_status_enumerate)


def capabilities() -> list:
    """The capabilities that the library in use knows."""
    return [known(Capability, number) for number in _enumerate(c.gpumem_capability_enumerate)]


def probe(backend: Union[str, int] = Backend.ANY) -> ProbeInfo:
    """Finds out whether a backend can be opened here, without opening it. The exception says why it cannot."""
    found = c.gpumem_probe_info()
    call(c.gpumem_instance_probe, _backend(backend), found)
    return ProbeInfo(known(Backend, found.backend), found.driver_version, found.device_count, text(found.name))


class Instance:
    """An opened backend with its devices and all that was made through it.

    ``backend`` is a :class:`Backend` or "any" (a usable GPU, else the host), "cuda" or "host". ``pin_budget`` limits the
    page-locked bytes that may live at once. ``host`` are :class:`HostOptions`. ``cuda_contexts`` are CUcontext values to
    work in instead of the primary contexts; they must outlive the instance.

    At the end of a ``with`` block it is closed, which fails if something lives; after an exception it is closed by force.
    """

    __slots__ = ("_handle", "_closed", "_owned", "_views", "_devices", "_info", "__weakref__")

    def __init__(self, backend: Union[str, int] = Backend.ANY, *, name: Optional[str] = None, pin_budget: int = 0,
                 host: Optional[HostOptions] = None, cuda_contexts: Sequence[int] = ()):
        self._closed = True
        desc = c.gpumem_instance_desc(backend=_backend(backend), name=encoded(name),
                                      pin_budget=u64(pin_budget, "pin_budget"))
        if host is not None:
            desc.host = ctypes.pointer(host._struct())
        if cuda_contexts:
            desc.cuda_contexts = (c_void_p * len(cuda_contexts))(*cuda_contexts)
            desc.cuda_context_count = len(cuda_contexts)
        handle = c_void_p()
        call(c.gpumem_instance_open, desc, handle)
        self._open(handle.value, True)

    def _open(self, handle, owned):
        self._handle, self._owned, self._views, self._info = handle, owned, [], None
        self._devices = weakref.WeakValueDictionary()  # which refer to their instance
        self._closed = False

    def close(self, *, force: bool = False) -> int:
        """Closes the instance. A second call does nothing. Returns how many objects were destroyed by force.

        Without ``force`` it is Busy while memory, streams or events live. With ``force`` the instance's streams are waited
        for and everything is destroyed; but while views of its memory live (arrays, memoryviews, tensors of other
        libraries) that is refused with BufferError.
        """
        if self._closed:
            return 0
        sweep()
        self._closed = bool(force)  # before the views are counted
        if force and self._views:
            self._closed = False
            raise BufferError("the instance cannot be closed by force while views of its memory live")
        destroyed = c_uint64()
        try:
            call(c.gpumem_instance_close, self._handle, int(force), destroyed)
        except Error as problem:
            self._closed = problem.code in GONE
            if not self._closed:
                raise
        self._closed = True
        pending.forget(self)
        instance_closed(self)
        return destroyed.value

    def __del__(self, finalizing=sys.is_finalizing, warn=warnings.warn):
        try:
            if self._closed or not self._owned or finalizing():
                return
        except AttributeError:
            return
        # Its memory, streams and events refer to it, so only what was made as a plain address can be left, or what a
        # finalizer could not destroy yet.
        handle = self._handle
        if c.gpumem_instance_close(handle, c.GPUMEM_CLOSE_CHECK, None, None) != c.GPUMEM_ERROR_BUSY:
            return
        if leftovers:
            leftovers.append(lambda: c.gpumem_instance_close(handle, c.GPUMEM_CLOSE_CHECK, None, None)
                             != c.GPUMEM_ERROR_BUSY)
        else:
            warn("a gpumem.Instance was forgotten while memory that was made through it lives", ResourceWarning,
                 source=self)

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, kind, *_):
        if not self._owned:
            return
        if kind is None:
            self.close()
            return
        try:
            self.close(force=True)
        except (Error, BufferError):
            pass  # the exception of the block matters more; what lives keeps the instance

    def __repr__(self):
        return "<gpumem.Instance, closed>" if self._closed else f"<gpumem.Instance of backend {self.backend.name.lower()}>"

    @property
    def handle(self) -> int:
        """The ``gpumem_instance`` of the C interface."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the instance was closed."""
        return self._closed

    def info(self) -> InstanceInfo:
        """What is known about the instance."""
        found = ask(c.gpumem_instance_get_info, c.gpumem_instance_info(), self._handle)
        self._info = InstanceInfo(known(Backend, found.backend), found.driver_version, found.device_count,
                                  bool(found.strict), found.pin_budget, text(found.name))
        return self._info

    @property
    def backend(self) -> Backend:
        """CUDA or HOST."""
        return (self._info or self.info()).backend

    def device(self, ordinal: int = 0) -> Device:
        """A device by its number."""
        found = self._devices.get(ordinal)
        if found is None:
            handle = c_void_p()
            call(c.gpumem_device_get, self._handle, u32(ordinal, "ordinal"), handle)
            found = self._devices.setdefault(ordinal, Device._of(self, handle.value, ordinal))
        return found

    @property
    def devices(self) -> Tuple[Device, ...]:
        """All devices."""
        return tuple(self.device(ordinal) for ordinal in range(self.info().device_count))

    # ---- copies and fills ----

    def copy(self, destination: Any, source: Any, size: Optional[int] = None, *, stream: Optional[Stream] = None,
             direction: int = 0, source_order: int = 0) -> None:
        """Copies bytes between any two operands.

        An operand is a :class:`Memory`, a :class:`View`, an array or other object with a buffer, an array of another
        library on a device (by its ``__cuda_array_interface__``), or an address as a number. Without ``size`` all of the
        source is copied. Without ``stream`` the call returns when the copy is done; with one, both operands are kept
        alive until the copy was observed complete.
        """
        target, room, kept_target = operand(destination, True)
        origin, length, kept_source = operand(source, False)
        if size is None:
            if length is None:
                length = room
            if length is None:
                raise TypeError("the size is missing")
            size = length
        else:
            size = u64(size, "size")
        _check_room("destination", room, size, kept_target)
        _check_room("source", length, size, kept_source)
        self._await_producers(destination, source)
        self._work(stream, (kept_target, kept_source), c.gpumem_copy, target, origin, size,
                   _options(direction, source_order))

    def copy_2d(self, destination: Any, destination_pitch: int, source: Any, source_pitch: int, width: int, height: int, *,
                stream: Optional[Stream] = None, direction: int = 0, source_order: int = 0) -> None:
        """Copies ``height`` rows of ``width`` bytes; a pitch is the distance from one row to the next."""
        target, room, kept_target = operand(destination, True)
        origin, length, kept_source = operand(source, False)
        numbers = [u64(value, what) for value, what in (
            (destination_pitch, "destination_pitch"), (source_pitch, "source_pitch"), (width, "width"),
            (height, "height"))]
        _check_room("destination", room, _rectangle(numbers[0], width, height), kept_target)
        _check_room("source", length, _rectangle(numbers[1], width, height), kept_source)
        self._await_producers(destination, source)
        self._work(stream, (kept_target, kept_source), c.gpumem_copy_2d, target, numbers[0], origin, *numbers[1:],
                   _options(direction, source_order))

    def fill(self, destination: Any, size: Optional[int] = None, value: int = 0, value_size: int = 1, *,
             stream: Optional[Stream] = None) -> None:
        """Fills memory with a number of 1, 2 or 4 bytes, repeated. Without ``size`` all of the destination is filled."""
        target, room, kept = operand(destination, True)
        if size is None:
            if room is None:
                raise TypeError("the size is missing")
            size = room
        size = u64(size, "size")
        _check_room("destination", room, size, kept)
        self._await_producers(destination)
        self._work(stream, (kept,), c.gpumem_fill, target, size, u32(value, "value"), u32(value_size, "value_size"))

    def fill_2d(self, destination: Any, pitch: int, width: int, height: int, value: int = 0, value_size: int = 1, *,
                stream: Optional[Stream] = None) -> None:
        """Fills ``height`` rows of ``width`` bytes with a number of 1, 2 or 4 bytes, repeated."""
        target, room, kept = operand(destination, True)
        numbers = u64(pitch, "pitch"), u64(width, "width"), u64(height, "height")
        _check_room("destination", room, _rectangle(*numbers), kept)
        self._await_producers(destination)
        self._work(stream, (kept,), c.gpumem_fill_2d, target, *numbers, u32(value, "value"),
                   u32(value_size, "value_size"))

    def _await_producers(self, *operands):
        """Waits for the work in the stream that an array of another library names in its __cuda_array_interface__."""
        for value in operands:
            if isinstance(value, _OURS):
                continue
            interface = getattr(value, "__cuda_array_interface__", None)
            number = interface.get("stream") if interface is not None else None
            if number is not None and interface["data"][0]:
                ordinal = self.pointer_info(interface["data"][0]).device_ordinal
                # The legacy default stream is 1 there and NULL in the driver.
                with Stream.wrap(self.device(max(ordinal, 0)), 0 if number == 1 else number) as producer:
                    producer.synchronize()

    def _work(self, stream, kept, function, *arguments):
        if stream is None:
            held = hold(kept, None)
            try:
                call(function, self._handle, None, *arguments)
            finally:
                let_go(held)
            return
        stream._queue.enqueue(kept, function, self._handle, stream.handle, *arguments)

    # ---- pointers ----

    def pointer_info(self, pointer: Any) -> PointerInfo:
        """What is this pointer? For any address, ours or not."""
        found = ask(c.gpumem_pointer_get_info, c.gpumem_pointer_info(), self._handle, operand(pointer, False)[0])
        devices = tuple(number for number in range(64) if found.access_devices >> number & 1)
        return PointerInfo(
            known(Kind, found.kind), known(Location, found.location), found.location_id, found.device_ordinal,
            found.host_pointer, found.device_pointer, found.base, found.size, found.buffer_id,
            MemoryFlags(found.granted_flags), known(Access, found.access), devices)

    def free(self, pointer: int) -> None:
        """Frees an allocation by its address, such as one from :meth:`Device.malloc`."""
        call(c.gpumem_free, self._handle, u64(pointer, "pointer"))

    def unregister(self, pointer: int) -> None:
        """Makes memory pageable again, by the address that was given to :meth:`Device.register_pointer`."""
        call(c.gpumem_unregister, self._handle, u64(pointer, "pointer"))

    # ---- statistics ----

    def stats(self) -> Stats:
        """What lives in the instance."""
        found = ask(c.gpumem_stats_get, c.gpumem_stats(), self._handle)
        kinds = [KindStats(*(getattr(kind, name) for name in KindStats._fields))
                 for kind in (found.device, found.pinned, found.registered)]
        return Stats(*kinds, found.streams, found.events, found.file_descriptors)

    def reset_peaks(self) -> None:
        """Sets the peaks to what lives now."""
        call(c.gpumem_stats_reset_peaks, self._handle)

    def report(self) -> str:
        """A list of all that lives, to find leaks: a line for each object, or "nothing lives"."""
        required = c_uint64()
        capacity = 4096
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            call(c.gpumem_stats_report, self._handle, buffer, capacity, required)
            if required.value <= capacity:
                return text(buffer.value)
            capacity = required.value


_OURS = (int, Memory, View, bytes, bytearray, memoryview)


def _rectangle(pitch, width, height):
    """Bytes from the first to the last of a rectangle."""
    return pitch * (height - 1) + width if width and height else 0


def _check_room(what, room, size, kept):
    # Of memory made here the library knows the bounds, and says more about them.
    if room is not None and size > room and not isinstance(kept, Memory):
        raise InvalidArgument(f"{size} bytes are more than the {room} of the {what}")


def _options(direction, source_order):
    if not direction and not source_order:
        return None
    return c.gpumem_copy_options(direction=i32(direction, "direction"),
                                 source_order=i32(source_order, "source_order"))


class Device:
    """One processor with its memory. It belongs to its instance and needs no closing."""

    __slots__ = ("instance", "ordinal", "_handle", "_pointer", "__weakref__")

    def __init__(self):
        raise TypeError("devices are found by Instance.device() and Instance.devices")

    @classmethod
    def _of(cls, instance, handle, ordinal):
        self = cls.__new__(cls)
        self.instance, self.ordinal, self._handle = instance, ordinal, handle
        self._pointer = c_void_p.from_param(handle)  # see PREPARED in _library
        return self

    def __repr__(self):
        return f"<gpumem.Device {self.ordinal}>"

    @property
    def handle(self) -> int:
        """The ``gpumem_device`` of the C interface."""
        return self._handle

    def info(self) -> DeviceInfo:
        """What is known about the device; also after it is lost."""
        found = ask(c.gpumem_device_get_info, c.gpumem_device_info(), self._handle)
        return DeviceInfo(found.ordinal, found.numa_node, found.total_bytes, bytes(found.uuid), found.pci_domain,
                          found.pci_bus, found.pci_device, found.compute_major, found.compute_minor, bool(found.lost),
                          text(found.pci_id), text(found.name))

    def memory_info(self) -> Tuple[int, int]:
        """(free, total) bytes; both are estimates."""
        free, total = c_uint64(), c_uint64()
        call(c.gpumem_device_get_memory, self._handle, free, total)
        return free.value, total.value

    def capability(self, capability: int, peer: Optional[Device] = None) -> CapabilityInfo:
        """What the device can do, how that was found out, and why not."""
        found = ask(c.gpumem_device_get_capability, c.gpumem_capability_info(), self._handle,
                    i32(capability, "capability"), None if peer is None else peer._handle)
        return CapabilityInfo(known(Capability, found.capability), found.type, found.value, found.source, found.status,
                              found.native_domain, found.native_code, text(found.name), text(found.reason))

    def can_access_peer(self, peer: Device) -> bool:
        """Whether work of this device can be given direct access to the memory of another."""
        possible = c_uint32()
        call(c.gpumem_device_can_access_peer, self._handle, peer._handle, possible)
        return bool(possible.value)

    def enable_peer_access(self, peer: Device) -> None:
        """Lets work of this device use all device memory of another. One-way and counted."""
        call(c.gpumem_device_enable_peer_access, self._handle, peer._handle)

    def disable_peer_access(self, peer: Device) -> None:
        """Undoes one :meth:`enable_peer_access`."""
        call(c.gpumem_device_disable_peer_access, self._handle, peer._handle)

    def memory(self, size: int, kind: int = Kind.DEVICE, **options: Any) -> Memory:
        """Allocates memory; see :class:`Memory`."""
        return Memory(self, size, kind, **options) if options else Memory(self, size, kind)

    def register(self, source: Any, size: Optional[int] = None, **options: Any) -> Memory:
        """Page-locks the bytes of an array or other object with a buffer, or at an address; see :class:`Memory`."""
        return Memory(self, size, Kind.REGISTERED, source=source, **options)

    def stream(self, **options: Any) -> Stream:
        """Creates a stream; see :class:`Stream`."""
        return Stream(self, **options)

    def event(self, **options: Any) -> Event:
        """Creates an event; see :class:`Event`."""
        return Event(self, **options)

    # ---- plain addresses ----

    def malloc(self, kind: int, size: int) -> int:
        """Allocates memory and returns only its address, which the caller gives to :meth:`Instance.free`."""
        if leftovers:
            sweep()
        pointer = c_void_p()
        call(c.gpumem_malloc, self._handle, i32(kind, "kind"), u64(size, "size"), pointer)
        return pointer.value

    def register_pointer(self, pointer: int, size: int, require: int = 0) -> None:
        """Page-locks memory at an address, which the caller gives to :meth:`Instance.unregister`."""
        call(c.gpumem_register, self._handle, u64(pointer, "pointer"), u64(size, "size"), u64(require, "require"))

    def device_pointer(self, pointer: Any) -> int:
        """Address of a byte of host memory for this device."""
        found = c_void_p()
        call(c.gpumem_pointer_get_device_pointer, self._handle, operand(pointer, False)[0], found)
        return found.value


_default: list = [None]


def default_instance() -> Instance:
    """The one instance of the process for programs that want one without asking. The first call opens it as the
    environment says (``GPUMEM_BACKEND`` and others). It is never closed. A forked child gets its own."""
    handle = c_void_p()
    call(c.gpumem_instance_default, handle)
    found = _default[0]
    if found is None or found._handle != handle.value:
        found = Instance.__new__(Instance)
        found._open(handle.value, False)
        _default[0] = found
    return found


def default_device() -> Device:
    """Device 0 of the default instance."""
    return default_instance().device(0)
