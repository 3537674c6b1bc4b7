# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Physical memory, ranges of addresses, and what is mapped in them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping
from ctypes import c_int32, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

from . import _library as c
from ._calls import GONE, Made, ask, call, create, encoded, i32, locked, new_descriptor, size64, u64
from ._codes import Access, HandleTypes, Kind, Location, MemoryFlags, PhysicalFlags, RangeFlags
from ._dlpack import CPU, CUDA, CUDA_HOST
from ._enums import code, expect
from ._enums import flags as flags_of
from ._handles import Owner, expect_device, expect_instance
from ._infos import MappingInfo, MemoryInfo, PhysicalInfo, RangeInfo
from ._known import PhysicalKnown, RangeKnown
from ._managed import Place, place
from ._memory import Region
from ._operands import operand
from ._waits import LARGE, aside, create_aside, on_main_thread
from .errors import Error, InvalidArgument, InvalidState, StaleHandle

if TYPE_CHECKING:
    from ._instance import Device, Instance
    from ._memory import Hold
    from ._stream import Queue

    # A Mapping of Place would refuse {device: "read"}, since the type of its keys is invariant.
    Accesses = Union[Mapping[Any, Union[Access, str, int]], Iterable[Tuple[Place, Union[Access, str, int]]]]

_DEVICE = int(Location.DEVICE)
_FABRIC_BYTES = ctypes.sizeof(c.gpumem_fabric_handle)


def location_of(device: Device, location: Place) -> Tuple[int, int]:
    """(number, id) of where physical memory of a device lies."""
    expect_device(device)
    where, number = place(location, device.instance)
    if where == _DEVICE and not isinstance(location, tuple):
        if location is not device and hasattr(location, "ordinal"):
            raise InvalidArgument("the location is another device; make the memory with that one")
        number = 0
    return where, number


def access_entries(accesses: Accesses, instance: Instance) -> List[Tuple[int, int, int]]:
    """(location, id, access) of each processor."""
    try:
        pairs = [(processor, access) for processor, access in (accesses.items() if isinstance(accesses, Mapping) else accesses)]
    except (TypeError, ValueError):
        raise TypeError(f'accesses must be as in {{device: "read"}}, or pairs of a processor and an access, not {accesses!r}') from None
    return [(*place(processor, instance), code(Access, access, "access")) for processor, access in pairs]


def access_structs(entries: List[Tuple[int, int, int]]) -> Any:
    return (c.gpumem_access_desc * len(entries))(*(c.gpumem_access_desc(*entry, 0) for entry in entries))


def physical_desc(device: Device, size: int, location: Place, handle_types: Union[HandleTypes, str, int],
                  require: Union[PhysicalFlags, str, int], prefer: Union[PhysicalFlags, str, int],
                  name: Optional[str]) -> Any:
    where, number = location_of(device, location)
    return c.gpumem_physical_desc(
        location=where, location_id=number, size=size, handle_types=flags_of(HandleTypes, handle_types, "handle_types"),
        require=flags_of(PhysicalFlags, require, "require"), prefer=flags_of(PhysicalFlags, prefer, "prefer"),
        name=encoded(name))


def place_of(info: Any) -> str:
    """Where memory lies, for a repr."""
    return f"{info.location} {info.location_id}" if info.location_id >= 0 else f"{info.location}"


class Granularity(NamedTuple):
    """Units of physical memory in bytes: the smallest, and the one for the best performance."""

    minimum: int
    recommended: int


class Physical(PhysicalKnown, Owner):
    """Physical memory without an address: a block on a device or on the host, to be mapped into a :class:`Range`.

    ``device.physical(size)`` makes it. ``size`` is a multiple of :meth:`Device.physical_granularity`. ``location`` is
    "device", "host" or a pair such as ("host_numa", 0). ``handle_types`` are the ways of sharing that must be possible.
    ``require`` and ``prefer`` are :class:`PhysicalFlags`. The contents are indeterminate.

    The block lives while anything refers to it: a handle such as this object, a mapping, or another process. So it can be
    closed as soon as it is mapped.
    """

    __slots__ = ("device", "_info")
    _destroyed_by = "gpumem_physical_release"
    _instead = "use the object itself; another process gets the memory by export_fd() or export_fabric()"

    def __init__(self, device: Device, size: int, location: Place = "device", *,
                 handle_types: Union[HandleTypes, str, int] = 0, require: Union[PhysicalFlags, str, int] = 0,
                 prefer: Union[PhysicalFlags, str, int] = 0, name: Optional[str] = None) -> None:
        self._closed = True
        desc = physical_desc(device, size64(size), location, handle_types, require, prefer, name)
        make = create_aside if desc.size >= LARGE and on_main_thread() else create
        self._open(device, make(c.gpumem_physical_create, c.gpumem_physical_release, device.handle, desc))

    def _open(self, device: Device, made: Made) -> None:
        self._info: Optional[PhysicalInfo] = None
        self.device = device
        self._own(made)

    @classmethod
    def import_fd(cls, device: Device, fd: int, size: int, location: Place = "device", *,
                  handle_types: Union[HandleTypes, str, int] = "posix_fd", name: Optional[str] = None) -> Physical:
        """The physical memory behind a file descriptor that :meth:`export_fd` made, here or in another process.

        ``device``, ``size``, ``location`` and ``handle_types`` are those that the memory was made with. The descriptor stays
        yours, and may be closed afterwards.
        """
        desc = physical_desc(device, size64(size), location, handle_types, 0, 0, name)
        self = cls.__new__(cls)
        self._open(device, create(c.gpumem_physical_import_fd, c.gpumem_physical_release, device.handle, desc,
                                  i32(fd, "fd")))
        return self

    @classmethod
    def retain(cls, instance: Instance, pointer: Any) -> Physical:
        """One more handle of the physical memory that is mapped at an address, with the same block id."""
        expect_instance(instance)
        self = cls.__new__(cls)
        made = create(c.gpumem_physical_retain, c.gpumem_physical_release, instance.handle,
                      operand(pointer, False, "pointer")[0])
        found = ask(c.gpumem_physical_get_info, c.gpumem_physical_info(), made.handle)
        self._open(instance.device(found.device_ordinal), made)
        return self

    def export_fd(self) -> int:
        """A new file descriptor for the memory, which another process can import. It keeps the memory alive until you close
        it with ``os.close()``, and is closed on exec. The memory must have been made with ``handle_types="posix_fd"``."""
        return new_descriptor(c.gpumem_physical_export_fd, self._handle)

    @classmethod
    def import_fabric(cls, device: Device, handle: Any, size: int, location: Place = "device", *,
                      handle_types: Union[HandleTypes, str, int] = "fabric", name: Optional[str] = None) -> Physical:
        """The physical memory behind a handle that :meth:`export_fabric` made, on this or another node of the fabric.

        ``device``, ``size``, ``location`` and ``handle_types`` are those that the memory was made with.
        """
        desc = physical_desc(device, size64(size), location, handle_types, 0, 0, name)
        found = bytes(memoryview(handle))
        if len(found) != _FABRIC_BYTES:
            raise InvalidArgument(f"the handle has {len(found)} bytes; a fabric handle has {_FABRIC_BYTES}")
        self = cls.__new__(cls)
        self._open(device, create(c.gpumem_physical_import_fabric, c.gpumem_physical_release, device.handle, desc,
                                  c.gpumem_fabric_handle.from_buffer_copy(found)))
        return self

    def export_fabric(self) -> bytes:
        """A handle of 64 bytes, which a process on this or another node of the fabric can import. Send it by any channel. It does
        not keep the memory alive. The memory must have been made with ``handle_types="fabric"``."""
        return bytes(ask(c.gpumem_physical_export_fabric, c.gpumem_fabric_handle(), self._handle).bytes)

    def close(self) -> None:
        """Releases the handle; the memory lives on while it is mapped or shared. A second call does nothing."""
        self._end()

    def _about(self, info: PhysicalInfo) -> str:
        return f"{info.size} bytes, {place_of(info)}{', closed' if self._closed else ''}"


class Range(RangeKnown, Owner):
    """Reserved addresses, into which physical memory is mapped. The addresses stay the same when more is mapped behind.

    ``instance.reserve(size)`` makes it. ``size`` is a multiple of the granularity of every device of the instance, and may be
    far more than there is memory. ``alignment`` is a power of two, 0 for the granularity. ``address`` is where the range
    should begin, and with ``flags="fixed"`` must.

    Offsets count from the first byte. Mapping, unmapping and changes of access happen at the call, not in the order of a
    stream. Closing the range unmaps what is mapped. It is closed by :meth:`close`, at the end of a ``with`` block, or when
    nothing refers to it any more: neither this object, nor a part of it, nor work in a stream that uses one.
    """

    __slots__ = ("instance", "_info", "_lock", "_mappings", "_parts")
    _destroyed_by = "gpumem_range_release"
    _instead = "use the object itself: ranges work from any thread"
    _elsewhere = "; give another process what Instance.export() returns"

    def __init__(self, instance: Instance, size: int, *, alignment: int = 0, address: int = 0,
                 flags: Union[RangeFlags, str, int] = 0, name: Optional[str] = None) -> None:
        self._closed = True
        expect_instance(instance)
        desc = c.gpumem_range_desc(size=size64(size), alignment=u64(alignment, "alignment"), address=u64(address, "address"),
                                   flags=flags_of(RangeFlags, flags, "flags"), name=encoded(name))
        self._info: Optional[RangeInfo] = None
        self._lock = threading.RLock()
        locked.add(self)
        # Offset and bytes of each mapping. An entry is there before its mapping, and as long as it may be.
        self._mappings: Dict[int, int] = {}
        self._parts: weakref.WeakSet[Part] = weakref.WeakSet()
        self.instance = instance
        self._own(create(c.gpumem_range_reserve, c.gpumem_range_release, instance.handle, desc))
        instance._ranges[self._handle] = self

    # ---- mappings ----

    def map(self, offset: int, physicals: Union[Physical, Iterable[Physical]]) -> None:
        """Maps blocks of physical memory one behind the other, all or none. Each is mapped whole, may be mapped elsewhere as
        well, and may be closed afterwards. No processor has access to a new mapping; see :meth:`set_access`."""
        blocks = [physicals] if isinstance(physicals, Physical) else list(physicals)
        for block in blocks:
            expect(Physical, block, "a block")
        at = first = u64(offset, "offset")
        with self._lock:
            added: List[int] = []
            for block in blocks:
                size = block.size
                if at not in self._mappings:
                    self._mappings[at] = size
                    added.append(at)
                at += size
            try:
                handles = (c_void_p * len(blocks))(*(block.handle for block in blocks))
                call(c.gpumem_range_map, self._handle, first, handles, len(blocks))
            except Error:  # anything else a signal handler may have raised as the call returned
                for at in added:
                    del self._mappings[at]
                raise

    def unmap(self, offset: int, size: int) -> None:
        """Unmaps whole mappings, one or several in a row. The addresses stay reserved.

        All work that uses them must have been observed complete. Raises Busy if work in a stream uses a part of them that was
        taken with :meth:`part`, and BufferError while a view of one is alive; nothing is changed then.
        """
        offset, size = u64(offset, "offset"), u64(size, "size")
        with self._lock:
            parts = self._take(offset, size, "unmapped", "gpumem_range_unmap")
            try:
                call(c.gpumem_range_unmap, self._handle, offset, size)
            except BaseException as problem:
                if isinstance(problem, Error):
                    _reopen(parts)
                raise
            for at in self._within(offset, size):
                del self._mappings[at]

    def set_access(self, offset: int, size: int, accesses: Accesses) -> None:
        """Sets what processors may do with whole mappings, one or several in a row; all is set or nothing.

        ``accesses`` has an :class:`Access` for each processor, a :class:`Device` or "host":
        ``{device: "readwrite", "host": "read"}``. Processors that are not named keep what they have. Before access is taken
        away, all work that uses it must have been observed complete, and no view may be alive.
        """
        entries = access_entries(accesses, self.instance)
        array = access_structs(entries)
        offset, size = u64(offset, "offset"), u64(size, "size")

        def run() -> None:
            call(c.gpumem_range_set_access, self._handle, offset, size, array, len(entries))
        with self._lock:
            used = any(part._holds for part in self._overlapping(offset, size))
            taken = used and self._takes_away(offset, size, entries)
            parts = self._take(offset, size, "changed", "gpumem_range_set_access") if taken else []
            try:
                if size >= LARGE and on_main_thread():
                    aside(run)
                else:
                    run()
            finally:
                _reopen(parts)
                for part in self._overlapping(offset, size):
                    part._info = None

    def mapping(self, offset: int = 0) -> MappingInfo:
        """What is mapped at an offset."""
        return self.instance.mapping(self._at(offset))

    def part(self, offset: int = 0, size: Optional[int] = None) -> Part:
        """Bytes of the range for copies, fills and views. Without ``size`` it reaches to the end of the mappings that
        lie there one behind the other."""
        offset = self._at(offset) - self.base
        with self._lock:
            return Part(self, offset, None if size is None else u64(size, "size"))

    def _at(self, offset: int) -> int:
        """The address of an offset."""
        number = u64(offset, "offset")
        if number >= self.size:
            raise InvalidArgument(f"offset is {number}, but the range has {self.size} bytes")
        return self.base + number

    def _within(self, offset: int, size: int) -> List[int]:
        """Offsets of the mappings that have a byte there."""
        return sorted(at for at, length in self._mappings.items() if at < offset + size and offset < at + length)

    def _overlapping(self, offset: int, size: int) -> List[Part]:
        return [part for part in self._parts if part._offset < offset + size and offset < part._offset + part._size]

    def _take(self, offset: int, size: int, done: str, function: str) -> List[Part]:
        """Closes the parts that have a byte there; fails if one is in use."""
        taken: List[Part] = []
        try:
            for part in self._overlapping(offset, size):
                if part._open:
                    # First closed, then asked: a view or a stream does it in the reverse order.
                    part._open = False
                    taken.append(part)
                    if part._in_use():
                        part._held(done, function)
        except BaseException:
            _reopen(taken)
            raise
        return taken

    def _takes_away(self, offset: int, size: int, entries: List[Tuple[int, int, int]]) -> bool:
        """Whether a processor would lose access."""
        return any(access_at(self.instance, self.base + at, location, number) & ~access
                   for location, number, access in entries if access != Access.READWRITE for at in self._within(offset, size))

    # ---- the end ----

    def close(self) -> None:
        """Unmaps everything and gives the addresses back. A second call does nothing.

        Raises BufferError while a view of a part is alive, and Busy while work in a stream that uses a part was not observed
        complete. Work that uses plain addresses is yours to wait for.
        """
        with self._lock:
            if self._closed:
                return
            parts = self._take(0, 1 << 64, "unmapped", "gpumem_range_release")
            try:
                # One by one, to know what is left if one fails.
                for at in sorted(self._mappings):
                    try:
                        call(c.gpumem_range_unmap, self._handle, at, self._mappings[at])
                    except InvalidState:
                        continue  # it was not mapped after all, or the next call fails too
                    gone = self._overlapping(at, self._mappings.pop(at))
                    parts = [part for part in parts if part not in gone]
                call(c.gpumem_range_release, self._handle)
            except Error as problem:
                if problem.code not in GONE:
                    _reopen(parts)
                    raise
            self._closed = True

    def _awaited(self) -> Set[Queue]:
        return {queue for part in list(self._parts) for queue in part._queues()}

    def _give_up(self, destroy: Callable[..., None], library: Any) -> None:
        def give_back(handle: int, _: None) -> int:
            library.gpumem_range_unmap(handle, 0, library.GPUMEM_WHOLE_RANGE, None)
            return library.gpumem_range_release(handle, None)  # type: ignore[no-any-return]
        destroy(give_back, self._handle)

    # ---- what it knows ----

    def _about(self, info: RangeInfo) -> str:
        return f"{info.size} bytes at {info.base:#x}{', closed' if self._closed else ''}"

    def __int__(self) -> int:
        """The address of the first byte."""
        return self.base


class Part(Region):
    """Bytes of a :class:`Range` that are mapped. :meth:`Range.part` makes it.

    It can be copied, filled and viewed as memory can. While a view of it is alive, or work in a stream uses it, its
    mappings cannot be unmapped. Once they are, the part is closed.
    """

    __slots__ = ("device", "range", "_offset", "_size", "_open", "_holds", "_info", "_locations", "__weakref__")
    _no_access = "the CPU has no access to this part of the range; set_access() gives it to memory of the host"

    def __init__(self, range: Range, offset: int = 0, size: Optional[int] = None) -> None:
        self._open = False
        expect(Range, range, "range")
        if size == 0:
            raise InvalidArgument("the size is 0; ask for at least one byte")
        mappings, end = sorted(range._mappings.items()), offset
        self._locations: List[Tuple[int, int]] = []
        for at, length in mappings:
            if at <= end < at + length and (size is None or end < offset + size):
                info = range.mapping(at)
                self._locations.append((info.location, info.location_id))
                end = at + length
        if end == offset or size is not None and end < offset + size:
            raise InvalidState(f"there is no mapping at the offset {end}; map physical memory first")
        self.range, self._offset, self._size = range, offset, end - offset if size is None else size
        self._holds: Set[Hold] = set()
        self._info: Optional[MemoryInfo] = None
        location, number = self._locations[0]
        self.device = range.instance.device(number if location == _DEVICE else 0)
        self._open = True
        range._parts.add(self)

    def __repr__(self) -> str:
        where = f"bytes {self._offset} to {self._offset + self._size - 1} of {self.range!r}"
        return f"<gpumem.Part: {where}{', closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether a byte of it was unmapped."""
        return not self._open

    @property
    def offset(self) -> int:
        """Offset of the first byte in the range."""
        return self._offset

    def info(self) -> MemoryInfo:
        """Information about the part. It has a host pointer if the CPU has access to all of it."""
        with self.range._lock:  # which another thread holds while it tries to unmap
            if self.closed:
                raise StaleHandle("the part of the range was unmapped")
            of_range = self.range._info or self.range.info()
            rights = int(Access.READWRITE)
            for at in self.range._within(self._offset, self._size):
                rights &= access_at(self.range.instance, of_range.base + at, int(Location.HOST), -1)
            address = of_range.base + self._offset
            read_only = MemoryFlags.READ_ONLY if rights == Access.READ else MemoryFlags(0)
            self._info = MemoryInfo(Kind.VIRTUAL, -1, self.device.ordinal, address if rights else None, address, self._size,
                                    self._size, 0, MemoryFlags(0), read_only, of_range.buffer_id, of_range.name)
            return self._info

    def _dlpack_device(self, host: bool) -> Optional[Tuple[int, int]]:
        if host:
            return None if self.host_pointer is None else (CPU, 0)
        on_devices = {number for location, number in self._locations if location == _DEVICE}
        if not on_devices:
            return None if self.host_pointer is None else (CUDA_HOST, 0)
        same = len(on_devices) == 1 and all(location == _DEVICE for location, _ in self._locations)
        return (CUDA, on_devices.pop()) if same else None


def _reopen(parts: List[Part]) -> None:
    for part in parts:
        part._open = True


def access_at(instance: Instance, address: int, location: int, number: int) -> int:
    """What a processor may do at an address; nothing if that cannot be known."""
    access = c_int32()
    try:
        call(c.gpumem_pointer_get_access, instance.handle, address, location, number, access)
    except Error:
        return 0
    return access.value if access.value in (Access.READ, Access.READWRITE) else 0
