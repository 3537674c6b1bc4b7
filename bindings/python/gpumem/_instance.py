# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Instances and devices."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import sys
import warnings
import weakref
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, SupportsIndex, Tuple, Union

from . import _infos
from . import _library as c
from ._buffers import Buffer
from ._calls import (GONE, Unique, ask, call, create, encoded, finalizer, i32, leave, leftovers, number, pending, size64, sweep,
                     text, u32, u64, untrack, with_room)
from ._codes import (Access, Advice, Backend, BufferFlags, Capability, EventFlags, Feature, FileDirection, FileFlags, HandleTypes,
                     Kind, Location, MemoryFlags, PhysicalFlags, PoolFlags, RangeFlags)
from ._copies import Copies
from ._enums import code, expect, known, truth
from ._enums import flags as flags_of
from ._groups import Group
from ._infos import (BlockInfo, CapabilityInfo, FileCopied, InstanceInfo, KindStats, ManagedInfo, MappingInfo,
                     PointerInfo, ProbeInfo, Stats, StatusInfo)
from ._known import DeviceKnown, InstanceKnown
from ._managed import HostAccess, Place, hint, place, span
from ._memory import Memory, Use, View, generation
from ._operands import check_room, operand
from ._options import HostOptions, host_options
from ._ranges import Granularity, Physical, Range, physical_desc
from ._share import Sharing
from ._sleeping import Call, check_close
from ._stream import Event, Queue, Stream, hold, instance_closed, observe, release
from ._waits import LARGE, aside, on_main_thread
from ._words import report_in_python
from .errors import Error, InvalidArgument, NotFound

if TYPE_CHECKING:
    from typing import IO

    from typing_extensions import Self

    from ._pool import Pool
    from ._ranges import Accesses
    from ._ring import RingProducer
    from ._sleeping import Progress
    File = Union[int, IO[bytes]]


@dataclasses.dataclass
class CudaOptions:
    """Options for an instance of the cuda backend.

    ``contexts`` are CUcontext values to work in instead of the primary contexts of their devices, at most one for each
    device. They must outlive the instance.
    """

    contexts: Sequence[int] = ()

    def _struct(self) -> Any:
        contexts = [u64(context, "a context") for context in self.contexts]
        return c.gpumem_cuda_options(contexts=(c_void_p * len(contexts))(*contexts) if contexts else None,
                                     context_count=len(contexts))


def version() -> Tuple[int, int, int]:
    """The version of the loaded library."""
    number = c.gpumem_version()
    return number >> 22, number >> 12 & 0x3ff, number & 0xfff


def version_text() -> str:
    """The version of the loaded library as text, such as "0.1.0"."""
    return text(c.gpumem_version_text())


def feature_supported(feature: Union[Feature, str, int]) -> bool:
    """Whether this build of the library has a :class:`Feature`."""
    return bool(c.gpumem_feature_supported(code(Feature, feature, "feature")))


def status_name(code: int) -> str:
    """The name of a status code, such as "GPUMEM_ERROR_BUSY"."""
    return text(c.gpumem_status_name(i32(code, "code")))


def status_info(code: int) -> StatusInfo:
    """The name, cause and remedy of a status code."""
    return _infos.status_info(ask(c.gpumem_status_get_info, c.gpumem_status_info(), i32(code, "code")))


def _enumerate(function: Callable[..., int]) -> List[int]:
    number = ctypes.c_int32()
    found: List[int] = []
    while True:
        try:
            call(function, len(found), number)
        except NotFound:
            return found
        found.append(number.value)


def statuses() -> List[int]:
    """The status codes of the loaded library."""
    return _enumerate(c.gpumem_status_enumerate)


def capabilities() -> List[Capability]:
    """The capabilities that the loaded library knows."""
    return [known(Capability, number) for number in _enumerate(c.gpumem_capability_enumerate)]


def probe(backend: Union[Backend, str, int] = "any") -> ProbeInfo:
    """Finds out whether a backend can be opened here, without opening it. If not, the exception says why."""
    return _infos.probe_info(ask(c.gpumem_instance_probe, c.gpumem_probe_info(), code(Backend, backend, "backend")))


def _descriptor(file: File) -> int:
    """The number that a file object has, or that was given instead of one."""
    if isinstance(file, SupportsIndex):
        return i32(file, "file")
    fileno = getattr(file, "fileno", None)
    if fileno is None:
        raise TypeError(f"file must be a file object or a descriptor, not a {type(file).__name__}; open a path first")
    return i32(fileno(), "file")


class Instance(InstanceKnown, Unique, Copies, Sharing):
    """An open backend with its devices and every object made through it.

    ``backend`` is a :class:`Backend`, or "any" (cuda if it can be opened, otherwise host), "cuda" or "host". After "any",
    :meth:`info` says whether and why the instance fell back to the host backend. ``pin_budget`` limits the page-locked
    bytes that are live at once. ``transfer_threads`` is how many threads copy between a device and ordinary memory, 0 for as
    many as help and None for none, and ``transfer_bytes`` how much page-locked memory they use. ``host`` and ``cuda`` are the options of each backend.

    The end of a ``with`` block closes it, which fails if objects are live. After an exception it is closed by force.
    """

    __slots__ = ("_handle", "_closed", "_owned", "_views", "_devices", "_queues", "_ranges", "_buffers", "_pools", "_info",
                 "_waits", "_peers", "_generation", "_closer", "__weakref__")
    _instead = "use the object itself, or open another instance"

    def __init__(self, backend: Union[Backend, str, int] = "any", *, name: Optional[str] = None, pin_budget: int = 0,
                 transfer_threads: Optional[int] = 0, transfer_bytes: int = 0,
                 host: Optional[HostOptions] = None, cuda: Optional[CudaOptions] = None) -> None:
        self._closed = True
        desc = c.gpumem_instance_desc(backend=code(Backend, backend, "backend"), name=encoded(name),
                                      pin_budget=u64(pin_budget, "pin_budget"),
                                      transfer_threads=c.GPUMEM_TRANSFER_OFF if transfer_threads is None
                                      else u32(transfer_threads, "transfer_threads"),
                                      transfer_bytes=u64(transfer_bytes, "transfer_bytes"))
        if host is not None:
            if not isinstance(host, HostOptions):
                raise TypeError(f"host must be HostOptions, not a {type(host).__name__}")
            desc.host = ctypes.pointer(host_options(host))
        if cuda is not None:
            if not isinstance(cuda, CudaOptions):
                raise TypeError(f"cuda must be CudaOptions, not a {type(cuda).__name__}")
            desc.cuda = ctypes.pointer(cuda._struct())
        made = create(c.gpumem_instance_open, _close_new, desc)
        self._open(made.handle, True)
        made.value = None

    def _open(self, handle: int, owned: bool) -> None:
        self._handle, self._owned, self._generation = handle, owned, generation[0]
        self._views: Set[weakref.ref[View]] = set()  # those of memory that are alive
        self._info: Optional[InstanceInfo] = None
        # The devices refer to their instance, and so do the queues of its streams.
        self._devices: weakref.WeakValueDictionary[int, Device] = weakref.WeakValueDictionary()
        self._queues: weakref.WeakSet[Queue] = weakref.WeakSet()
        self._ranges: weakref.WeakValueDictionary[int, Range] = weakref.WeakValueDictionary()
        self._buffers: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
        self._pools: weakref.WeakValueDictionary[int, Pool] = weakref.WeakValueDictionary()
        self._waits: Optional[bool] = None
        self._peers = False  # whether a stream may wait for events of other processes
        self._closer = _Closer(handle) if owned else None
        self._closed = False

    def close(self, *, force: bool = False) -> int:
        """Closes the instance, and returns how many objects were destroyed by force. A second call does nothing.

        Without ``force`` it raises Busy while memory, streams or events are live. With ``force`` it waits for the
        instance's streams and destroys everything; it raises BufferError while views of its memory are alive (arrays,
        memoryviews, tensors of other libraries).
        """
        if self._closed:
            return 0
        check_close()
        observe(self)
        sweep()
        if force and not self._views and on_main_thread():
            if self._peers and self.backend is Backend.HOST:
                return aside(lambda: self._end(True))  # type: ignore[no-any-return]
            self._await_streams()
        return self._end(bool(force))

    def _end(self, force: bool) -> int:
        self._closed = force  # before the views are counted
        if force and self._views:
            self._closed = False
            raise BufferError("the instance cannot be closed by force while views of its memory are alive: arrays, "
                              "memoryviews or tensors of other libraries; drop them first, for example with del")
        destroyed = c_uint64()
        try:
            call(c.gpumem_instance_close, self._handle, int(force), destroyed)
        except BaseException as problem:
            self._closed = getattr(problem, "code", None) in GONE
            if not self._closed:
                if isinstance(problem, Error) and "GPUMEM_ERROR_BUSY" == problem.name:
                    problem.message = report_in_python(problem.message)
                    problem.args = (problem.message,)
                raise
        self._closed = True
        pending.forget(self)
        instance_closed(self)
        return destroyed.value

    def _await_streams(self) -> None:
        """Waits as closing by force does, but answers Ctrl-C. Closing waits for other processes for a second only, which this cannot."""
        for queue in list(self._queues):
            try:
                queue.synchronize()
            except Error:
                pass  # closing deals with it

    def _abandon(self) -> None:
        """Closes by force, unless that would wait."""
        if all(queue.idle() for queue in list(self._queues)):
            self.close(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, problem: Optional[BaseException], trace: Any) -> None:
        if not self._owned:
            return
        if problem is None:
            self.close()
        elif isinstance(problem, Exception):
            leave(self, lambda: self.close(force=True), problem)
        else:
            leave(self, self._abandon, problem)  # after Ctrl-C the work may never end

    def __repr__(self) -> str:
        if self._closed:
            return "<gpumem.Instance, closed>"
        try:
            info = self._info or self.info()
        except Exception as problem:
            return f"<gpumem.Instance: {problem}>"
        name = f" {info.name!r}" if info.name else ""
        return f"<gpumem.Instance{name}: {info.backend}, {info.device_count} device{'s' * (info.device_count != 1)}>"

    @property
    def handle(self) -> int:
        """The ``gpumem_instance`` of the C interface."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the instance was closed."""
        return self._closed

    def device(self, ordinal: int = 0) -> Device:
        """The device with an ordinal."""
        found = self._devices.get(ordinal)
        if found is None:
            if isinstance(ordinal, int) and ordinal < 0:
                raise InvalidArgument(f"ordinal is {ordinal}; it must be between 0 and {self.info().device_count - 1}")
            handle = number(c.gpumem_device_get, self._handle, u32(ordinal, "ordinal"), kind=c_void_p)
            found = self._devices.setdefault(ordinal, Device._of(self, handle, ordinal))
        return found

    @property
    def devices(self) -> Tuple[Device, ...]:
        """All devices."""
        return tuple(self.device(ordinal) for ordinal in range(self.info().device_count))

    # ---- copies and fills ----

    def _instance(self) -> Instance:
        return self

    def _work(self, kept: Iterable[Any], size: int, now: Callable[..., int], enqueue: Callable[..., int],
              *arguments: Any, in_part: bool = False) -> None:
        if size >= LARGE and on_main_thread():
            aside(functools.partial(self._work, kept, 0, now, enqueue, *arguments))
            return
        held = hold(kept)
        try:
            call(now, self._handle, *arguments)
        finally:
            release(held)

    # ---- files ----

    def read_file(self, destination: Any, file: File, offset: int = 0, size: Optional[int] = None, *, direct: bool = False,
                  progress: Optional[Progress] = None) -> FileCopied:
        """Reads bytes of a file, from an offset on, into memory of any kind.

        Threads of the library read on while the device copies what they have read. ``file`` is a file object or a descriptor;
        where it stands does not change, and what Python has in a buffer of its own for it is not looked at. Without ``size`` the
        whole destination is filled. ``direct`` passes by the system's page cache where the file system can do that: for files
        that are read once.

        ``progress(done, total)`` is called with bytes, before the first one, after about each 64 MiB and at the end. To cancel the
        call, raise an exception in it. Then, and if the call fails midway, any byte of the destination may have been written.
        :attr:`Error.copied` says how many bytes from the start on are copied; so it does of a :class:`Cancelled`, or another
        :class:`Error`, that you raise.
        """
        return self._copy_file(FileDirection.TO_MEMORY, destination, file, offset, size, direct, progress)

    def write_file(self, file: File, source: Any, offset: int = 0, size: Optional[int] = None, *, direct: bool = False,
                   progress: Optional[Progress] = None) -> FileCopied:
        """Writes memory of any kind to a file, from an offset on; see :meth:`read_file`. Without ``size`` the whole source is
        written. What is written is with the system then, not yet on the disk."""
        return self._copy_file(FileDirection.FROM_MEMORY, source, file, offset, size, direct, progress)

    def _copy_file(self, direction: FileDirection, memory: Any, file: File, offset: int, size: Optional[int], direct: bool,
                   progress: Optional[Progress]) -> FileCopied:
        reads = direction == FileDirection.TO_MEMORY
        address, room, kept = operand(memory, reads, "destination" if reads else "source")
        if progress is not None and isinstance(kept, Use):
            kept.calls_back = True
        if size is None:
            if room is None:
                raise TypeError("the size is missing: the memory has none")
            size = room
        size = u64(size, "size")
        check_room("destination" if reads else "source", room, size)
        self._await_producers(memory)
        desc = c.gpumem_copy_file_desc(file_descriptor=_descriptor(file), direction=direction, file_offset=u64(offset, "offset"),
                                       pointer=address or None, size=size,
                                       prefer=FileFlags.DIRECT if truth(direct, "direct") else 0)
        info = c.gpumem_copy_file_info()

        def run() -> None:  # on another thread if it is long
            with hold((kept,)):
                call(c.gpumem_copy_file, self._handle, desc, info)
        # The file must stay open until the call has returned, and who gets Ctrl-C may close it.
        try:
            Call(progress, patient=True).make(run, desc, size >= LARGE)
        except Error as problem:
            problem.copied = info.copied
            raise
        return _infos.file_copied(info)

    # ---- pointers ----

    def pointer_info(self, pointer: Any) -> PointerInfo:
        """Information about any address, whether this library made it or not."""
        found = ask(c.gpumem_pointer_get_info, c.gpumem_pointer_info(), self._handle, operand(pointer, False, "pointer")[0])
        return _infos.pointer_info(found, self._buffers.get(found.buffer))

    def pointer_access(self, pointer: Any, device: Optional[Device] = None) -> Access:
        """What a device, or the CPU if ``device`` is None, may do in place with the memory at any address.

        The answer can change: enabling peer access adds to it. Copies and fills need no such right.
        """
        if device is None:
            location, which = Location.HOST, -1
        elif not isinstance(device, Device):
            raise TypeError(f"device must be a gpumem.Device or None, not a {type(device).__name__}")
        elif device.instance is self:
            location, which = Location.DEVICE, device.ordinal
        else:
            raise InvalidArgument("the device belongs to another instance")
        address = operand(pointer, False, "pointer")[0]
        access = number(c.gpumem_pointer_get_access, self._handle, address, location, which, kind=c_int32)
        return known(Access, access)  # type: ignore[no-any-return]

    def free(self, pointer: int) -> None:
        """Frees an allocation by its address, such as one from :meth:`Device.malloc`. Raises BufferError while a view of it is
        alive."""
        address = u64(pointer, "pointer")
        self._check_views(address, (Kind.DEVICE, Kind.PINNED, Kind.MANAGED), "gpumem_free")
        call(c.gpumem_free, self._handle, address)

    def _check_views(self, address: int, kinds: Tuple[Kind, ...], function: str) -> None:
        """Raises if views would be left with freed memory."""
        for view in list(self._views):
            memory = getattr(view(), "memory", None)
            info = memory and memory._info
            if memory and info and info.kind in kinds and address in (info.host_pointer, info.device_pointer) and memory._viewed():
                memory._held("freed", function)

    def unregister(self, pointer: int) -> None:
        """Makes registered memory pageable again, by the address that was given to :meth:`Device.register_pointer`."""
        call(c.gpumem_unregister, self._handle, u64(pointer, "pointer"))

    # ---- pools ----

    def free_block(self, pointer: int, stream: Any = None) -> None:
        """Frees a block of :meth:`Pool.malloc` by its address: of any pool, also of one that was closed. It must not be the address of
        a :class:`PoolBlock`, which frees itself: see :meth:`Pool.free`."""
        from ._pool import free_pointer
        free_pointer(self, pointer, stream)

    def block_info(self, pointer: Any) -> BlockInfo:
        """Information about the block of a pool that has an address, which may lie inside of it."""
        found = ask(c.gpumem_pool_get_block_info, c.gpumem_pool_block_info(), self._handle, operand(pointer, False, "pointer")[0])
        return _infos.block_info(found, self._pools.get(found.pool))

    # ---- managed memory ----

    def advise(self, pointer: Any, advice: Union[Advice, str, int], location: Place = "none",
               size: Optional[int] = None) -> bool:
        """Gives an :class:`Advice` about how managed memory will be used. No byte changes and nothing moves now.

        ``pointer`` is an operand as in :meth:`copy`, or an address with its ``size``. "set_preferred_location" and
        "set_accessed_by" take a ``location``: a :class:`Device`, "host", or for the first also "host_numa_current" or a
        pair such as ("host_numa", 0). Returns False if the device or the driver cannot use the advice, and nothing changed.
        """
        address, size, kept = span(pointer, size)
        where = place(location, self)
        chosen = code(Advice, advice, "advice")

        def run() -> int:
            with hold((kept,)):
                return call(c.gpumem_managed_advise, self._handle, address, size, chosen, *where)
        return hint(run, size, where[0])

    def managed_info(self, pointer: Any, size: Optional[int] = None) -> ManagedInfo:
        """The advice and the last prefetch of managed memory: what is the same for all its pages, at one moment."""
        address, size, kept = span(pointer, size)
        with hold((kept,)):
            return _infos.managed_info(ask(c.gpumem_managed_get_info, c.gpumem_managed_info(), self._handle, address, size))

    def host_access(self, pointer: Any) -> HostAccess:
        """``with instance.host_access(memory):`` waits until the CPU may touch managed memory. See :class:`HostAccess`."""
        return HostAccess(self, pointer)

    def _may_wait(self) -> bool:
        """Whether an access of the CPU to managed memory may have to wait for a device."""
        if self._waits is None:
            self._waits = not all(device.capability("managed_concurrent") for device in self.devices)
        return self._waits

    # ---- ranges ----

    def reserve(self, size: int, *, alignment: int = 0, address: int = 0, flags: Union[RangeFlags, str, int] = 0,
                name: Optional[str] = None) -> Range:
        """Reserves addresses without memory; see :class:`Range`."""
        return Range(self, size, alignment=alignment, address=address, flags=flags, name=name)

    def group(self, *, name: Optional[str] = None) -> Group:
        """Makes a group of buffers that sleep and wake as one; see :class:`Group`."""
        return Group(self, name=name)

    def mapping(self, pointer: Any) -> MappingInfo:
        """What is mapped at an address of a range."""
        found = ask(c.gpumem_range_get_mapping, c.gpumem_mapping_info(), self._handle, operand(pointer, False, "pointer")[0])
        return _infos.mapping_info(found, self._ranges.get(found.range))

    def retain_physical(self, pointer: Any) -> Physical:
        """One more handle of the physical memory that is mapped at an address, with the same block id."""
        return Physical.retain(self, pointer)

    # ---- statistics ----

    def stats(self) -> Stats:
        """Counters of everything that is live in the instance."""
        sweep()
        return _infos.stats(ask(c.gpumem_stats_get, c.gpumem_stats(), self._handle))

    def kind_stats(self, kind: Union[Kind, str, int]) -> KindStats:
        """Counters of one kind of memory: DEVICE, PINNED, REGISTERED, MANAGED, VIRTUAL or IMPORTED."""
        number = code(Kind, kind, "kind", "device, pinned, registered, managed, virtual, imported")
        return _infos.kind_stats(ask(c.gpumem_stats_get_kind, c.gpumem_kind_stats(), self._handle, number))

    def reset_peaks(self) -> None:
        """Resets the peaks, of every kind and of all memory, to what is live now."""
        call(c.gpumem_stats_reset_peaks, self._handle)

    def report(self) -> str:
        """A report of the live objects, to find leaks: a line for each, or "nothing lives"."""
        sweep()
        return report_in_python(self._text(c.gpumem_stats_report))

    def snapshot(self) -> Dict[str, Any]:
        """The counters and the live objects, as ``gpumem_stats_snapshot()`` describes them. ``json.dumps()`` makes a text of it."""
        sweep()
        return json.loads(self._text(c.gpumem_stats_snapshot))  # type: ignore[no-any-return]

    def _text(self, write: Callable[..., int]) -> str:
        required = c_uint64()
        capacity = 4096
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            call(write, self._handle, buffer, capacity, required)
            if required.value <= capacity:
                return text(buffer.value)
            capacity = required.value


def _close_new(handle: c_void_p, _: None) -> int:
    return c.gpumem_instance_close(handle, c.GPUMEM_CLOSE_FORCE, None, None)  # type: ignore[no-any-return]


class _Closer:
    """Closes an instance when nothing refers to this any more. Where the instance is in a cycle with its memory, that is after
    the finalizers there, because the collector does not look into this."""

    __slots__ = ("handle",)

    def __init__(self, handle: int) -> None:
        self.handle: Optional[int] = handle
        untrack(self)


def _finisher(finalizing: Callable[[], bool], warn: Callable[..., None], last: Any,
              leftovers: Any) -> Callable[[_Closer], None]:
    # The names of the module are gone at the end of the interpreter, but not what a function encloses.
    def finish(self: _Closer) -> None:
        """Closes the instance unless it was closed, if nothing lives, and warns otherwise."""
        handle = getattr(self, "handle", None)
        if handle is None or finalizing():
            return
        # Its memory, streams and events refer to it. So only memory that was made as a plain address can be left, or what
        # a finalizer could not destroy yet.
        if last.gpumem_instance_close(handle, last.GPUMEM_CLOSE_CHECK, None, None) != last.GPUMEM_ERROR_BUSY:
            return
        if leftovers:
            leftovers.append(lambda: last.gpumem_instance_close(handle, last.GPUMEM_CLOSE_CHECK, None, None)
                             != last.GPUMEM_ERROR_BUSY)
        else:
            self.handle = None  # warn once, even if that raises
            warn("a gpumem.Instance was dropped while memory allocated through it is live", ResourceWarning, source=self)
    return finish


finalizer(_Closer, _finisher(sys.is_finalizing, warnings.warn, c, leftovers))


_new = object.__new__


class Device(DeviceKnown, Unique):
    """One processor with its memory. It lives as long as its instance."""

    __slots__ = ("instance", "ordinal", "_handle", "_pointer", "__weakref__")
    _instead = "use the object itself; another process opens an instance of its own"

    if TYPE_CHECKING:
        instance: Instance
        ordinal: int
        _handle: int
        _pointer: Any

    def __init__(self) -> None:
        raise TypeError("get devices from Instance.device() or Instance.devices")

    @classmethod
    def _of(cls, instance: Instance, handle: int, ordinal: int) -> Device:
        self = cls.__new__(cls)
        self.instance, self.ordinal, self._handle = instance, ordinal, handle
        self._pointer = c_void_p.from_param(handle)  # see PREPARED in _library
        return self

    def __repr__(self) -> str:
        if self.instance._closed:
            return f"<gpumem.Device {self.ordinal}, closed>"
        try:
            return f"<gpumem.Device {self.ordinal} of {self.instance.backend}: {self.info().name}>"
        except Exception as problem:
            return f"<gpumem.Device {self.ordinal}: {problem}>"

    @property
    def handle(self) -> int:
        """The ``gpumem_device`` of the C interface."""
        return self._handle

    def memory_info(self) -> Tuple[int, int]:
        """Bytes of memory as (free, total); both are estimates."""
        free, total = c_uint64(), c_uint64()
        call(c.gpumem_device_get_memory, self._handle, free, total)
        return free.value, total.value

    def trim_graphs(self) -> int:
        """Gives back the memory that the device keeps for graphs (of ``cudaMallocAsync()`` in captures, say) and that no graph
        uses. Returns the bytes; 0 on the host backend."""
        return number(c.gpumem_device_trim_graphs, self._handle)

    def capability(self, capability: Union[Capability, str, int], peer: Optional[Device] = None) -> CapabilityInfo:
        """Whether the device has a :class:`Capability`, how the library found out, and why not. ``capability`` can be its
        name: ``device.capability("pin_register")``. The answer is false if it is no."""
        if peer is not None:
            expect(Device, peer, "peer")
        return _infos.capability_info(ask(c.gpumem_device_get_capability, c.gpumem_capability_info(), self._handle,
                                          code(Capability, capability, "capability"), None if peer is None else peer._handle))

    def can_access_peer(self, peer: Device) -> bool:
        """Whether this device can be given direct access to the memory of another."""
        expect(Device, peer, "peer")
        return bool(number(c.gpumem_device_can_access_peer, self._handle, peer._handle, kind=c_uint32))

    def enable_peer_access(self, peer: Device) -> None:
        """Lets this device use all device memory of another in place. It goes one way, and calls are counted."""
        expect(Device, peer, "peer")
        call(c.gpumem_device_enable_peer_access, self._handle, peer._handle)

    def disable_peer_access(self, peer: Device) -> None:
        """Undoes one :meth:`enable_peer_access`."""
        expect(Device, peer, "peer")
        call(c.gpumem_device_disable_peer_access, self._handle, peer._handle)

    def memory(self, size: int, kind: Union[Kind, str, int] = "device", *, alignment: int = 0,
               require: Union[MemoryFlags, str, int] = 0, prefer: Union[MemoryFlags, str, int] = 0, numa_node: int = 0,
               name: Optional[str] = None) -> Memory:
        """Allocates memory: "device" memory, "pinned" host memory, or "managed" memory; see :class:`Memory`."""
        memory = _new(Memory)
        # Faster than Memory(...), because both are functions in Python.
        memory.__init__(self, size, kind, alignment, require, prefer, numa_node, name)  # type: ignore[misc]
        return memory

    def register(self, source: Any, size: Optional[int] = None, *, require: Union[MemoryFlags, str, int] = 0,
                 prefer: Union[MemoryFlags, str, int] = 0, name: Optional[str] = None) -> Memory:
        """Page-locks existing memory, such as an array; see :meth:`Memory.register`."""
        return Memory.register(self, source, size, require=require, prefer=prefer, name=name)

    def stream(self, *, priority: int = 0, name: Optional[str] = None) -> Stream:
        """Creates a stream; see :class:`Stream`."""
        return Stream(self, priority=priority, name=name)

    def event(self, *, flags: Union[EventFlags, str, int] = 0, name: Optional[str] = None) -> Event:
        """Creates an event; see :class:`Event`."""
        return Event(self, flags=flags, name=name)

    def ring(self, slot_size: int, *, slot_count: int = 0, consumers_max: int = 0, consumers_first: int = 0,
             name: Optional[str] = None) -> RingProducer:
        """Makes a ring, whose slots go to consumers in other processes; see :class:`RingProducer`."""
        from ._ring import RingProducer
        return RingProducer(self, slot_size, slot_count=slot_count, consumers_max=consumers_max,
                            consumers_first=consumers_first, name=name)

    def pool(self, kind: Union[Kind, str, int] = "device", *, flags: Union[PoolFlags, str, int] = 0,
             memory_flags: Union[MemoryFlags, str, int] = 0, handle_types: Union[HandleTypes, str, int] = 0,
             numa_node: int = 0, limit: int = 0, release_threshold: int = 0, low_water: int = 0, initial_size: int = 0,
             segment_size: int = 0, accesses: Optional[Accesses] = None, name: Optional[str] = None) -> Pool:
        """Makes a pool, which allocates and frees blocks of memory fast; see :class:`Pool`."""
        from ._pool import Pool
        return Pool(self, kind, flags=flags, memory_flags=memory_flags, handle_types=handle_types, numa_node=numa_node,
                    limit=limit, release_threshold=release_threshold, low_water=low_water, initial_size=initial_size,
                    segment_size=segment_size, accesses=accesses, name=name)

    # ---- physical memory ----

    def physical(self, size: int, location: Place = "device", *, handle_types: Union[HandleTypes, str, int] = 0,
                 require: Union[PhysicalFlags, str, int] = 0, prefer: Union[PhysicalFlags, str, int] = 0,
                 name: Optional[str] = None) -> Physical:
        """Makes physical memory without an address; see :class:`Physical`."""
        return Physical(self, size, location, handle_types=handle_types, require=require, prefer=prefer, name=name)

    def import_physical(self, fd: int, size: int, location: Place = "device", *,
                        handle_types: Union[HandleTypes, str, int] = "posix_fd", name: Optional[str] = None) -> Physical:
        """The physical memory behind a file descriptor of :meth:`Physical.export_fd`; see :meth:`Physical.import_fd`."""
        return Physical.import_fd(self, fd, size, location, handle_types=handle_types, name=name)

    def import_fabric(self, handle: Any, size: int, location: Place = "device", *,
                      handle_types: Union[HandleTypes, str, int] = "fabric", name: Optional[str] = None) -> Physical:
        """The physical memory behind a handle of :meth:`Physical.export_fabric`; see :meth:`Physical.import_fabric`."""
        return Physical.import_fabric(self, handle, size, location, handle_types=handle_types, name=name)

    def physical_granularity(self, location: Place = "device", *, handle_types: Union[HandleTypes, str, int] = 0,
                             require: Union[PhysicalFlags, str, int] = 0,
                             prefer: Union[PhysicalFlags, str, int] = 0) -> Granularity:
        """The units in which physical memory with these properties is made and mapped."""
        minimum, recommended = c_uint64(), c_uint64()
        desc = physical_desc(self, 0, location, handle_types, require, prefer, None)
        call(c.gpumem_physical_get_granularity, self._handle, desc, minimum, recommended)
        return Granularity(minimum.value, recommended.value)

    def buffer(self, size: int = 0, *, reserve: int = 0, location: Place = "device",
               handle_types: Union[HandleTypes, str, int] = 0, require: Union[PhysicalFlags, str, int] = 0,
               prefer: Union[PhysicalFlags, str, int] = 0, flags: Union[BufferFlags, str, int] = 0,
               accesses: Optional[Accesses] = None, group: Optional[Group] = None, tag: Optional[str] = None,
               name: Optional[str] = None) -> Buffer:
        """Makes a buffer that grows in place and can sleep; see :class:`Buffer`."""
        return Buffer(self, size, reserve=reserve, location=location, handle_types=handle_types, require=require,
                      prefer=prefer, flags=flags, accesses=accesses, group=group, tag=tag, name=name)

    # ---- plain addresses ----

    def malloc(self, kind: Union[Kind, str, int], size: int) -> int:
        """Allocates memory and returns only its address. Free it with :meth:`Instance.free`."""
        if leftovers:
            sweep()
        pointer = c_void_p()
        try:
            with_room(call, c.gpumem_malloc, self._handle, code(Kind, kind, "kind", "device, pinned, managed"), size64(size), pointer)
            return pointer.value or 0
        except BaseException:  # a signal handler raised as the call returned
            if pointer.value:
                c.gpumem_free(self.instance._handle, pointer, None)
            raise

    def register_pointer(self, pointer: int, size: int, require: Union[MemoryFlags, str, int] = 0) -> None:
        """Page-locks memory at an address. Undo it with :meth:`Instance.unregister`."""
        call(c.gpumem_register, self._handle, u64(pointer, "pointer"), size64(size),
             flags_of(MemoryFlags, require, "require"))

    def device_pointer(self, pointer: Any) -> int:
        """The address of a byte of host memory for this device."""
        found = c_void_p()
        call(c.gpumem_pointer_get_device_pointer, self._handle, operand(pointer, False, "pointer")[0], found)
        return found.value or 0


_default: List[Optional[Instance]] = [None]


def default_instance() -> Instance:
    """The default instance of the process, for programs that do not open their own.

    The first call opens it as the environment says (``GPUMEM_BACKEND`` and others). It is never closed. A forked child
    gets one of its own.
    """
    handle = number(c.gpumem_instance_default, kind=c_void_p)
    found = _default[0]
    if found is None or found._handle != handle:
        found = Instance.__new__(Instance)
        found._open(handle, False)
        _default[0] = found
    return found


def default_device() -> Device:
    """Device 0 of :func:`default_instance`."""
    return default_instance().device(0)


def device_or_default(device: Optional[Device]) -> Device:
    if device is None:
        return default_device()
    expect(Device, device, "device")
    return device
