# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Instances and devices."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import warnings
import weakref
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Optional, Sequence, Tuple, Union

from . import _library as c
from ._calls import GONE, ask, call, encoded, i32, leftovers, pending, sweep, text, u32, u64
from ._codes import (Access, Answer, AnswerSource, AnswerType, Backend, Capability, HostLock, Kind, Location, MemoryFlags,
                     NativeDomain)
from ._copies import Copies
from ._memory import Memory
from ._operands import operand
from ._results import (CapabilityInfo, DeviceInfo, InstanceInfo, KindStats, PointerInfo, ProbeInfo, Stats, StatusInfo,
                       known)
from ._stream import Event, Stream, hold, instance_closed, release
from .errors import Error, InvalidArgument, NotFound


@dataclasses.dataclass
class HostOptions:
    """Options for an instance of the host backend. 0 and None are the defaults; see the page on the host backend."""

    device_count: int = 0
    strict: Optional[bool] = None
    device_bytes: int = 0
    granularity: int = 0
    pageable: Optional[bool] = None
    same_pointer: Optional[bool] = None
    lock_mode: int = HostLock.DEFAULT
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


@dataclasses.dataclass
class CudaOptions:
    """Options for an instance of the cuda backend.

    ``contexts`` are CUcontext values to work in instead of the primary contexts of their devices, at most one for each
    device. They must outlive the instance.
    """

    contexts: Sequence[int] = ()

    def _struct(self):
        contexts = [u64(context, "a context") for context in self.contexts]
        return c.gpumem_cuda_options(contexts=(c_void_p * len(contexts))(*contexts) if contexts else None,
                                     context_count=len(contexts))


def _backend(value):
    if isinstance(value, str):
        try:
            return Backend[value.upper()]
        except KeyError:
            raise InvalidArgument(f"the backend is {value!r}; it must be any, cuda or host") from None
    return i32(value, "backend")


def version() -> Tuple[int, int, int]:
    """The version of the loaded library."""
    number = c.gpumem_version()
    return number >> 22, number >> 12 & 0x3ff, number & 0xfff


def version_text() -> str:
    """The version of the loaded library as text, such as "0.1.0"."""
    return text(c.gpumem_version_text())


def feature_supported(feature: int) -> bool:
    """Whether this build of the library has a :class:`Feature`."""
    return bool(c.gpumem_feature_supported(i32(feature, "feature")))


def status_name(code: int) -> str:
    """The name of a status code, such as "GPUMEM_ERROR_BUSY"."""
    return text(c.gpumem_status_name(i32(code, "code")))


def status_info(code: int) -> StatusInfo:
    """The name, cause and remedy of a status code."""
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
    """The status codes of the loaded library."""
    return _enumerate(c.gpumem_status_enumerate)


def capabilities() -> list:
    """The capabilities that the loaded library knows."""
    return [known(Capability, number) for number in _enumerate(c.gpumem_capability_enumerate)]


def probe(backend: Union[str, int] = Backend.ANY) -> ProbeInfo:
    """Finds out whether a backend can be opened here, without opening it. If not, the exception says why."""
    found = c.gpumem_probe_info()
    call(c.gpumem_instance_probe, _backend(backend), found)
    return ProbeInfo(known(Backend, found.backend), found.driver_version, found.device_count, found.fallback_status,
                     text(found.name), text(found.fallback_reason))


class Instance(Copies):
    """An open backend with its devices and every object made through it.

    ``backend`` is a :class:`Backend`, or "any" (cuda if it can be opened, otherwise host), "cuda" or "host". After "any",
    :meth:`info` says whether and why the instance fell back to the host backend. ``pin_budget`` limits the page-locked
    bytes that are live at once. ``host`` and ``cuda`` are the options of each backend.

    The end of a ``with`` block closes it, which fails if objects are live. After an exception it is closed by force.
    """

    __slots__ = ("_handle", "_closed", "_owned", "_views", "_devices", "_info", "__weakref__")

    def __init__(self, backend: Union[str, int] = Backend.ANY, *, name: Optional[str] = None, pin_budget: int = 0,
                 host: Optional[HostOptions] = None, cuda: Optional[CudaOptions] = None):
        self._closed = True
        desc = c.gpumem_instance_desc(backend=_backend(backend), name=encoded(name),
                                      pin_budget=u64(pin_budget, "pin_budget"))
        if host is not None:
            desc.host = ctypes.pointer(host._struct())
        if cuda is not None:
            desc.cuda = ctypes.pointer(cuda._struct())
        handle = c_void_p()
        call(c.gpumem_instance_open, desc, handle)
        self._open(handle.value, True)

    def _open(self, handle, owned):
        self._handle, self._owned, self._views, self._info = handle, owned, [], None
        self._devices = weakref.WeakValueDictionary()  # which refer to their instance
        self._closed = False

    def close(self, *, force: bool = False) -> int:
        """Closes the instance, and returns how many objects were destroyed by force. A second call does nothing.

        Without ``force`` it raises Busy while memory, streams or events are live. With ``force`` it waits for the
        instance's streams and destroys everything; it raises BufferError while views of its memory are alive (arrays,
        memoryviews, tensors of other libraries).
        """
        if self._closed:
            return 0
        sweep()
        self._closed = bool(force)  # before the views are counted
        if force and self._views:
            self._closed = False
            raise BufferError("the instance cannot be closed by force while views of its memory are alive")
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
        # Its memory, streams and events refer to it. So only memory that was made as a plain address can be left, or what
        # a finalizer could not destroy yet.
        handle = self._handle
        if c.gpumem_instance_close(handle, c.GPUMEM_CLOSE_CHECK, None, None) != c.GPUMEM_ERROR_BUSY:
            return
        if leftovers:
            leftovers.append(lambda: c.gpumem_instance_close(handle, c.GPUMEM_CLOSE_CHECK, None, None)
                             != c.GPUMEM_ERROR_BUSY)
        else:
            warn("a gpumem.Instance was dropped while memory allocated through it is live", ResourceWarning, source=self)

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
            pass  # the exception of the block matters more; live objects keep the instance

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
        """Information about the instance."""
        found = ask(c.gpumem_instance_get_info, c.gpumem_instance_info(), self._handle)
        self._info = InstanceInfo(known(Backend, found.backend), found.driver_version, found.device_count,
                                  bool(found.strict), found.pin_budget, found.fallback_status, text(found.name),
                                  text(found.fallback_reason))
        return self._info

    @property
    def backend(self) -> Backend:
        """CUDA or HOST."""
        return (self._info or self.info()).backend

    def device(self, ordinal: int = 0) -> Device:
        """The device with an ordinal."""
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

    def _instance(self):
        return self

    def _work(self, kept, function, _, *arguments, in_part=False):
        held = hold(kept, None)
        try:
            call(function, self._handle, *arguments)
        finally:
            release(held)

    # ---- pointers ----

    def pointer_info(self, pointer: Any) -> PointerInfo:
        """Information about any address, whether this library made it or not."""
        found = ask(c.gpumem_pointer_get_info, c.gpumem_pointer_info(), self._handle, operand(pointer, False)[0])
        return PointerInfo(
            known(Kind, found.kind), known(Location, found.location), found.location_id, found.device_ordinal,
            found.host_pointer, found.device_pointer, found.base, found.size, found.buffer_id,
            MemoryFlags(found.granted_flags))

    def pointer_access(self, pointer: Any, device: Optional[Device] = None) -> Access:
        """What a device, or the CPU if ``device`` is None, may do in place with the memory at any address.

        The answer can change: enabling peer access adds to it. Copies and fills need no such right.
        """
        if device is None:
            location, number = Location.HOST, -1
        elif device.instance is self:
            location, number = Location.DEVICE, device.ordinal
        else:
            raise InvalidArgument("the device belongs to another instance")
        access = c_int32()
        call(c.gpumem_pointer_get_access, self._handle, operand(pointer, False)[0], location, number, access)
        return known(Access, access.value)

    def free(self, pointer: int) -> None:
        """Frees an allocation by its address, such as one from :meth:`Device.malloc`."""
        call(c.gpumem_free, self._handle, u64(pointer, "pointer"))

    def unregister(self, pointer: int) -> None:
        """Makes registered memory pageable again, by the address that was given to :meth:`Device.register_pointer`."""
        call(c.gpumem_unregister, self._handle, u64(pointer, "pointer"))

    # ---- statistics ----

    def stats(self) -> Stats:
        """Counters of everything that is live in the instance."""
        found = ask(c.gpumem_stats_get, c.gpumem_stats(), self._handle)
        return Stats(found.live_count, found.live_bytes, found.streams, found.events)

    def kind_stats(self, kind: int) -> KindStats:
        """Counters of one kind of memory: DEVICE, PINNED or REGISTERED."""
        found = ask(c.gpumem_stats_get_kind, c.gpumem_kind_stats(), self._handle, i32(kind, "kind"))
        return KindStats(found.live_count, found.live_bytes, found.peak_count, found.peak_bytes, found.total_count,
                         found.total_bytes)

    def reset_peaks(self) -> None:
        """Resets the peaks of every kind to what is live now."""
        call(c.gpumem_stats_reset_peaks, self._handle)

    def report(self) -> str:
        """A report of the live objects, to find leaks: a line for each, or "nothing lives"."""
        required = c_uint64()
        capacity = 4096
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            call(c.gpumem_stats_report, self._handle, buffer, capacity, required)
            if required.value <= capacity:
                return text(buffer.value)
            capacity = required.value


class Device:
    """One processor with its memory. It lives as long as its instance."""

    __slots__ = ("instance", "ordinal", "_handle", "_pointer", "__weakref__")

    def __init__(self):
        raise TypeError("get devices from Instance.device() or Instance.devices")

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
        """Information about the device; also after it is lost."""
        found = ask(c.gpumem_device_get_info, c.gpumem_device_info(), self._handle)
        return DeviceInfo(found.ordinal, found.numa_node, found.total_bytes, bytes(found.uuid), found.pci_domain,
                          found.pci_bus, found.pci_device, found.compute_major, found.compute_minor, bool(found.lost),
                          text(found.pci_id), text(found.name))

    def memory_info(self) -> Tuple[int, int]:
        """Bytes of memory as (free, total); both are estimates."""
        free, total = c_uint64(), c_uint64()
        call(c.gpumem_device_get_memory, self._handle, free, total)
        return free.value, total.value

    def capability(self, capability: int, peer: Optional[Device] = None) -> CapabilityInfo:
        """Whether the device has a capability, how the library found out, and why not."""
        found = ask(c.gpumem_device_get_capability, c.gpumem_capability_info(), self._handle,
                    i32(capability, "capability"), None if peer is None else peer._handle)
        value = known(Answer, found.value) if found.type == AnswerType.TRI else found.value
        return CapabilityInfo(known(Capability, found.capability), known(AnswerType, found.type), value,
                              known(AnswerSource, found.source), found.status, known(NativeDomain, found.native_domain),
                              found.native_code, text(found.name), text(found.reason))

    def can_access_peer(self, peer: Device) -> bool:
        """Whether this device can be given direct access to the memory of another."""
        possible = c_uint32()
        call(c.gpumem_device_can_access_peer, self._handle, peer._handle, possible)
        return bool(possible.value)

    def enable_peer_access(self, peer: Device) -> None:
        """Lets this device use all device memory of another in place. It goes one way, and calls are counted."""
        call(c.gpumem_device_enable_peer_access, self._handle, peer._handle)

    def disable_peer_access(self, peer: Device) -> None:
        """Undoes one :meth:`enable_peer_access`."""
        call(c.gpumem_device_disable_peer_access, self._handle, peer._handle)

    def memory(self, size: int, kind: int = Kind.DEVICE, **options: Any) -> Memory:
        """Allocates memory; see :class:`Memory`."""
        return Memory(self, size, kind, **options) if options else Memory(self, size, kind)

    def register(self, source: Any, size: Optional[int] = None, **options: Any) -> Memory:
        """Page-locks existing memory; see :meth:`Memory.register`."""
        return Memory.register(self, source, size, **options)

    def stream(self, **options: Any) -> Stream:
        """Creates a stream; see :class:`Stream`."""
        return Stream(self, **options)

    def event(self, **options: Any) -> Event:
        """Creates an event; see :class:`Event`."""
        return Event(self, **options)

    # ---- plain addresses ----

    def malloc(self, kind: int, size: int) -> int:
        """Allocates memory and returns only its address. Free it with :meth:`Instance.free`."""
        if leftovers:
            sweep()
        pointer = c_void_p()
        call(c.gpumem_malloc, self._handle, i32(kind, "kind"), u64(size, "size"), pointer)
        return pointer.value

    def register_pointer(self, pointer: int, size: int, require: int = 0) -> None:
        """Page-locks memory at an address. Undo it with :meth:`Instance.unregister`."""
        call(c.gpumem_register, self._handle, u64(pointer, "pointer"), u64(size, "size"), u64(require, "require"))

    def device_pointer(self, pointer: Any) -> int:
        """The address of a byte of host memory for this device."""
        found = c_void_p()
        call(c.gpumem_pointer_get_device_pointer, self._handle, operand(pointer, False)[0], found)
        return found.value


_default: list = [None]


def default_instance() -> Instance:
    """The default instance of the process, for programs that do not open their own.

    The first call opens it as the environment says (``GPUMEM_BACKEND`` and others). It is never closed. A forked child
    gets one of its own.
    """
    handle = c_void_p()
    call(c.gpumem_instance_default, handle)
    found = _default[0]
    if found is None or found._handle != handle.value:
        found = Instance.__new__(Instance)
        found._open(handle.value, False)
        _default[0] = found
    return found


def default_device() -> Device:
    """Device 0 of :func:`default_instance`."""
    return default_instance().device(0)
