# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Managed memory: who may touch it, where it should lie, and when it moves."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Optional, Tuple, Union

from . import _library as c
from ._calls import GONE, Unique, call, i32, size64, status_error
from ._codes import Advice, Attach, Location
from ._enums import code, expect
from ._handles import Scoped
from ._infos import ManagedInfo
from ._operands import check_room, operand
from ._waits import LARGE, aside, on_main_thread
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    from ._instance import Device, Instance
    from ._stream import Stream

# A location or a processor.
Place = Union["Device", Location, str, int, Tuple[Union[Location, str, int], int]]

_DEVICE = int(Location.DEVICE)
_CURRENT = int(Location.HOST_NUMA_CURRENT)
_NO_EFFECT: int = c.GPUMEM_NO_EFFECT


def place(location: Any, instance: Instance) -> Tuple[int, int]:
    """(number, id) of a location: a Device, a Location or its name, or a pair of a Location and its id."""
    if isinstance(location, tuple):
        if len(location) != 2:
            raise TypeError(f'a location is a Device, a Location or a pair such as ("host_numa", 0), not {location!r}')
        return code(Location, location[0], "location"), i32(location[1], "the number of the location")
    owner = getattr(location, "instance", None)
    if owner is None:
        return code(Location, location, "location"), 0
    if owner is not instance:
        raise InvalidArgument("the device belongs to another instance")
    return _DEVICE, location.ordinal


def span(pointer: Any, size: Optional[int]) -> Tuple[int, int, Any]:
    """(address, bytes, object to keep alive) of a range that is given as an operand of a copy is."""
    address, room, kept = operand(pointer, False, "pointer")
    if size is not None:
        size = size64(size)
        check_room("memory", room, size)
        return address, size, kept
    if room is None:
        raise TypeError("the size is missing: an address needs one")
    return address, room, kept


def hint(function: Callable[[], int], size: int, location: int) -> bool:
    """Calls a function that gives a hint. Returns whether it has an effect."""
    # On another thread, the current node would be another.
    long = size >= LARGE and location != _CURRENT and on_main_thread()
    status: int = aside(function) if long else function()
    return status != _NO_EFFECT


@dataclasses.dataclass
class ManagedRange:
    """A range of a batch: ``memory`` is an operand as in :meth:`Instance.copy`, with its ``size`` in bytes if it is an
    address. ``location`` is where to move it, by default the device of the stream; a discard takes none."""

    memory: Any
    location: Optional[Union[Device, Location, str, int, Tuple[Union[Location, str, int], int]]] = None
    size: Optional[int] = None


_RANGE_BYTES = ctypes.sizeof(c.gpumem_managed_range)


def batch(ranges: Iterable[Any], device: Device, moves: bool) -> Tuple[Any, int, int, List[Any]]:
    """(array of gpumem_managed_range, bytes, a location of theirs, objects to keep alive) of ManagedRanges or operands."""
    found = [value if isinstance(value, ManagedRange) else ManagedRange(value) for value in ranges]
    array, total, location, kept = (c.gpumem_managed_range * len(found))(), 0, 0, []
    for out, value in zip(array, found):
        address, size, keep = span(value.memory, value.size)
        where = (0, 0)
        if value.location is not None or moves:
            where = place(device if value.location is None else value.location, device.instance)
        out.struct_size, out.pointer, out.size = _RANGE_BYTES, address, size
        out.location, out.location_id = where
        total += size
        location = location if location == _CURRENT else where[0]
        kept.append(keep)
    return array, total, location, kept


class HostAccess(Unique, Scoped):
    """An access of the CPU to managed memory, for a ``with`` block. :meth:`Memory.host_access` makes it.

    At its beginning it waits until the CPU may touch the memory. On concurrent devices that is at once. On others it waits
    for the work that may use the memory, and until its end such work, attaching the memory and closing it raise Busy.
    Accesses are counted, and this object can be used again.
    """

    __slots__ = ("_instance", "_memory", "_address", "_kept")
    _leaves_by = "end"
    _instead = "use the object itself, or make another one with host_access()"

    def __init__(self, instance: Optional[Instance] = None, memory: Any = None) -> None:
        if instance is None:
            raise TypeError("get it from Memory.host_access() or Instance.host_access()")
        self._instance, self._memory = instance, memory
        self._address, _, self._kept = operand(memory, False, "memory")

    def begin(self) -> None:
        """Waits until the CPU may touch the memory, and begins an access."""
        from ._stream import hold
        handle, waits = self._instance._handle, self._instance._may_wait()
        begun: List[int] = []
        waiting = [True]

        def undo() -> None:
            try:
                status = begun.pop()
            except IndexError:  # it did not begin, or was undone
                return
            if status >= 0:
                c.gpumem_managed_end_host_access(handle, self._address, None)

        def run() -> None:
            detail = c.gpumem_error()
            # In one step, so that no signal handler comes between the call and its status.
            begun.extend(map(c.gpumem_managed_begin_host_access, (handle,), (self._address,), (detail,)))
            if not waiting:
                undo()
            elif begun[0] < 0:
                raise status_error(begun[0], detail)
        with hold((self._kept,)):
            try:
                if waits and on_main_thread():
                    aside(run)
                else:
                    run()
                if waits:  # what it waited for was observed complete
                    for queue in list(self._instance._queues):
                        if queue.uses:
                            queue.poll()
            except BaseException:
                waiting.clear()
                undo()
                raise

    def end(self) -> None:
        """Ends an access."""
        try:
            call(c.gpumem_managed_end_host_access, self._instance._handle, self._address)
        except Error as problem:
            if problem.code not in GONE:
                raise

    def __enter__(self) -> Any:
        """Begins an access, and returns the memory."""
        self.begin()
        return self._memory


class Managed:
    """What memory of the kind MANAGED, and views of it, can do. A subclass is an operand of copies and adds
    ``_of_device()``."""

    __slots__ = ()

    if TYPE_CHECKING:
        def _of_device(self) -> Device: ...

    def attach(self, mem_flags: Union[Attach, str, int], stream: Optional[Stream] = None) -> None:
        """Attaches managed memory: "global", "host", or "single" to a stream. See :meth:`Stream.attach`. Without a stream
        it is done in the default stream of the device, and waited for."""
        from ._stream import Stream
        if stream is None:
            with Stream.wrap(self._of_device(), 0) as default:
                default.attach(self, mem_flags)
            return
        expect(Stream, stream, "stream")
        stream.attach(self, mem_flags)

    def advise(self, advice: Union[Advice, str, int], location: Place = "none") -> bool:
        """Advises how managed memory will be used. See :meth:`Instance.advise`."""
        return self._of_device().instance.advise(self, advice, location)

    def prefetch(self, stream: Stream, location: Optional[Place] = None) -> bool:
        """Moves managed memory to a location, by default the device of the stream. See :meth:`Stream.prefetch`."""
        return _stream(stream).prefetch(self, location)

    def discard(self, stream: Stream) -> bool:
        """Declares the contents of managed memory useless. See :meth:`Stream.discard_batch`."""
        return _stream(stream).discard_batch([self])

    def discard_and_prefetch(self, stream: Stream, location: Optional[Place] = None) -> bool:
        """Discards the contents of managed memory, and moves it without them. See
        :meth:`Stream.discard_and_prefetch_batch`."""
        return _stream(stream).discard_and_prefetch_batch([ManagedRange(self, location)])

    def managed_info(self) -> ManagedInfo:
        """The advice and the last prefetch of managed memory."""
        return self._of_device().instance.managed_info(self)

    def host_access(self) -> HostAccess:
        """``with memory.host_access():`` waits until the CPU may touch managed memory. See :class:`HostAccess`."""
        return HostAccess(self._of_device().instance, self)


def _stream(stream: Stream) -> Stream:
    from ._stream import Stream
    expect(Stream, stream, "stream")
    return stream
