# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buffers that grow and shrink in place, and that can sleep."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple, Union

from . import _library as c
from ._calls import GONE, ask, call, create, destroy_quietly, encoded, leave, leftovers, sweep, text, u64
from ._codes import Access, BufferFlags, Content, HandleTypes, Kind, Location, MemoryFlags, PhysicalFlags
from ._dlpack import CPU, CUDA, CUDA_HOST
from ._enums import code
from ._enums import flags as flags_of
from ._managed import Place
from ._memory import Region, Shape, View
from ._ranges import access_at, access_entries, access_structs, location_of
from ._results import BufferInfo, MemoryInfo, known
from ._waits import LARGE, aside, create_aside, on_main_thread
from .errors import Busy, Error, InvalidState, StaleHandle

if TYPE_CHECKING:
    from ._instance import Device
    from ._ranges import Accesses
    from ._stream import Queue


class Buffer(Region):
    """Memory that grows and shrinks in place, and that can sleep.

    ``device.buffer(size)`` makes it. It reserves ``reserve`` bytes of addresses, by default as many as the device, or the
    host, has memory, and maps memory as it grows: nothing is copied, and the address stays. With ``flags="movable"`` it moves
    to larger addresses, still without a copy, once these are used up. ``location``, ``handle_types``, ``require`` and
    ``prefer`` are those of :class:`Physical`. ``accesses`` are as in :meth:`set_access`; by default the device, and the CPU
    for memory of the host, may read and write. The contents are indeterminate.

    It can be copied, filled and viewed as memory can. While a view of it is alive, or work in a stream uses it, it can grow
    in place; shrinking, moving, sleeping and closing raise BufferError or Busy. A view keeps its size when the buffer grows.
    Changes happen at the call, not in the order of a stream. Work that uses plain addresses is yours to wait for.
    """

    __slots__ = ("device", "_handle", "_closed", "_changing", "_holds", "_info", "_lock", "_movable", "_state",
                 "__weakref__")
    _no_access = "the CPU has no access to the buffer; set_access() gives it to memory of the host"

    def __init__(self, device: Device, size: int = 0, *, reserve: int = 0, location: Place = "device",
                 handle_types: Union[HandleTypes, str, int] = 0, require: Union[PhysicalFlags, str, int] = 0,
                 prefer: Union[PhysicalFlags, str, int] = 0, flags: Union[BufferFlags, str, int] = 0,
                 accesses: Optional[Accesses] = None, name: Optional[str] = None) -> None:
        self._closed = True
        if leftovers:
            sweep()
        where, number = location_of(device, location)
        desc = c.gpumem_buffer_desc(
            size=u64(size, "size"), reserve=u64(reserve, "reserve"), location=where, location_id=number,
            handle_types=flags_of(HandleTypes, handle_types, "handle_types"),
            require=flags_of(PhysicalFlags, require, "require"), prefer=flags_of(PhysicalFlags, prefer, "prefer"),
            flags=flags_of(BufferFlags, flags, "flags"), name=encoded(name))
        if accesses is not None:
            entries = access_entries(accesses, device.instance)
            desc.accesses, desc.access_count = access_structs(entries), len(entries)
        self.device, self._movable, self._changing = device, bool(desc.flags & BufferFlags.MOVABLE), False
        # One entry for each view (None) and each call (False), and the work queue for each use in a stream. Each use has
        # a view, and a view is only made under the lock.
        self._holds: List[Union[None, bool, Queue]] = []
        self._lock = threading.RLock()
        self._state: Optional[BufferInfo] = None
        self._info: Optional[MemoryInfo] = None  # for copies and views
        make = create_aside if desc.size >= LARGE and on_main_thread() else create
        self._handle = make(c.gpumem_buffer_create, c.gpumem_buffer_destroy, device.handle, desc)
        self._closed = False

    # ---- changes ----

    def resize(self, size: int) -> None:
        """Grows or shrinks the buffer. The bytes that remain are not touched. If the call fails, nothing has changed."""
        size = u64(size, "size")
        with self._lock:
            info = self._idle()
            done = "shrunk" if size < info.size else self._moved(info, size)
            self._change(done, abs(size - info.capacity), "gpumem_buffer_resize", size)

    def set_capacity(self, capacity: int = 0) -> None:
        """Gives memory to so many bytes, ahead of growth, and takes back what is not needed for them. The size stays. 0 means
        no more than the size needs."""
        capacity = u64(capacity, "capacity")
        with self._lock:
            info = self._idle()
            self._change(self._moved(info, capacity), abs(capacity - info.capacity), "gpumem_buffer_set_capacity", capacity)

    def set_access(self, accesses: Accesses) -> None:
        """Sets what processors may do with the buffer, now and as it grows; see :meth:`Range.set_access`."""
        entries = access_entries(accesses, self.device.instance)
        with self._lock:
            info = self._idle()
            taken = self._holds and any(access_at(self.device.instance, info.base, location, number) & ~access
                                        for location, number, access in entries)
            self._change("changed" if taken else "", info.capacity, "gpumem_buffer_set_access", access_structs(entries),
                         len(entries))

    def sleep(self, content: Union[Content, str, int] = "pinned") -> None:
        """Gives the memory back and keeps the addresses. ``content`` says what happens to the bytes: they are kept in
        "pinned" or "pageable" memory of the host, or are "zero" or indeterminate ("drop") after :meth:`wake`.

        All work on the buffer must have been observed complete. If the call fails, the buffer is awake, with its content.
        """
        number = code(Content, content, "content")
        with self._lock:
            self._change("put to sleep", self._idle().capacity, "gpumem_buffer_sleep", number)

    def wake(self) -> None:
        """Wakes the buffer: at the same address, with its size, the access of each processor, and the content that was kept.
        If the call fails, the buffer sleeps on, and nothing is lost."""
        with self._lock:
            self._change("", self._idle().capacity, "gpumem_buffer_wake")

    def _idle(self) -> BufferInfo:
        """Information, unless a change goes on: Ctrl-C ended the wait for it, or a signal handler came in between."""
        if self._changing:
            raise Busy("the buffer is being changed; try again when that is done")
        return self._state or self.info()

    def _moved(self, info: BufferInfo, size: int) -> str:
        return "moved" if self._movable and size > info.reserved_size else ""

    def _change(self, done: str, size: int, function: str, *arguments: Any) -> None:
        """Calls a function that changes the buffer. ``done``: what nothing must hold it for."""
        if done and self._holds:
            self.info()  # a fork or a closed instance is reported first
            self._held(done, function)
        self._changing, token = True, [None]

        def run() -> None:
            try:
                token.pop()
            except IndexError:  # Ctrl-C came first
                return
            try:
                call(getattr(c, function), self._handle, *arguments)
            finally:
                try:
                    self.info()  # before a kernel needs it, which cannot ask
                except Error:
                    self._state = None
                self._info, self._changing = None, False
        try:
            if size >= LARGE and on_main_thread():
                aside(run)
            else:
                run()
        except BaseException:
            try:
                token.pop()
                self._changing = False  # the call was never made
            except IndexError:
                pass
            raise

    # ---- the end ----

    def close(self) -> None:
        """Frees the buffer, awake or asleep. A second call does nothing.

        Raises BufferError while a view of it is alive, and Busy while work in a stream that uses it was not observed
        complete.
        """
        with self._lock:
            if self._closed:
                return
            self._idle()
            if self._holds:
                self.info()
                self._held("closed", "gpumem_buffer_destroy")
            try:
                call(c.gpumem_buffer_destroy, self._handle)
            except Error as problem:
                if problem.code not in GONE:
                    self._state = self._info = None
                    raise
            self._closed = True

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: Any, problem: Optional[BaseException], trace: Any) -> None:
        leave(self, self.close, problem)

    # ---- its bytes ----

    def view(self, dtype: Any = None, shape: Optional[Shape] = None, *, offset: int = 0, order: str = "C") -> View:
        """A typed view of the bytes that the buffer has now, or of a part of them. See :meth:`Memory.view`."""
        with self._lock:
            if self._closed:
                raise StaleHandle("the buffer is closed")
            if self._idle().asleep:
                raise InvalidState("the buffer is asleep; call wake() first")
            return View._of(self, dtype, shape, offset, order)

    def _operand(self, writable: bool) -> Tuple[int, int, View]:
        return self.view()._operand(writable)  # which keeps the bytes where they are

    def _known(self) -> MemoryInfo:
        found = self._info
        if found is None:
            with self._lock:
                info = self._state or self.info()
                rights = access_at(self.device.instance, info.base, int(Location.HOST), -1)
                if not info.size and info.location != Location.DEVICE:
                    rights = int(Access.READWRITE)  # to no bytes at all
                read_only = MemoryFlags.READ_ONLY if rights == Access.READ else MemoryFlags(0)
                found = self._info = MemoryInfo(
                    Kind.VIRTUAL, -1, info.device_ordinal, info.base if rights else None, info.base, info.size, info.capacity,
                    0, MemoryFlags(0), read_only, info.buffer_id, info.name)
        return found

    def _dlpack_device(self, host: bool) -> Optional[Tuple[int, int]]:
        info = self._state or self.info()
        if info.location == Location.DEVICE:
            return None if host else (CUDA, info.location_id)
        return None if self.host_pointer is None else (CPU if host else CUDA_HOST, 0)

    # ---- what it knows ----

    def __repr__(self) -> str:
        try:
            info = self._state or self.info()
        except Exception as problem:
            return "<gpumem.Buffer, closed>" if self._closed else f"<gpumem.Buffer: {problem}>"
        where = f"{info.location} {info.location_id}" if info.location_id >= 0 else f"{info.location}"
        name = f" {info.name!r}" if info.name else ""
        state = ", closed" if self._closed else ", asleep" if info.asleep else ""
        return f"<gpumem.Buffer{name}: {info.size} bytes, {where}{state}>"

    @property
    def handle(self) -> int:
        """The ``gpumem_buffer`` of the C interface."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the buffer was closed."""
        return self._closed

    def info(self) -> BufferInfo:
        """Information about the buffer."""
        found = ask(c.gpumem_buffer_get_info, c.gpumem_buffer_info(), self._handle)
        info = BufferInfo(
            found.base, found.size, found.capacity, found.reserved_size, found.granularity, found.block_count,
            found.generation, found.stored_size, known(Location, found.location), found.location_id, found.device_ordinal,
            bool(found.asleep), found.range, found.buffer_id, text(found.name))
        self._state = info
        return info

    @property
    def base(self) -> int:
        """Address of the first byte. Only growth of a movable buffer changes it."""
        return (self._state or self.info()).base

    def __int__(self) -> int:
        """The address of the first byte."""
        return self.base

    @property
    def size(self) -> int:
        """Bytes, as last asked for: the only ones that may be used."""
        return (self._state or self.info()).size

    @property
    def nbytes(self) -> int:
        """The same as :attr:`size`."""
        return self.size

    @property
    def capacity(self) -> int:
        """Bytes that have memory, or had when the buffer went to sleep."""
        return (self._state or self.info()).capacity

    @property
    def reserved_size(self) -> int:
        """Bytes of addresses: what the buffer can grow to in place."""
        return (self._state or self.info()).reserved_size

    @property
    def generation(self) -> int:
        """How often the buffer has woken or moved: what other code derived from it before is out of date."""
        return (self._state or self.info()).generation

    @property
    def asleep(self) -> bool:
        """Whether it sleeps."""
        return (self._state or self.info()).asleep

    @property
    def name(self) -> str:
        """As given at creation."""
        return (self._state or self.info()).name


def _finalizer(finalizing: Callable[[], bool], destroy: Callable[..., None], last: Any) -> Callable[[Buffer], None]:
    # The names of the module are gone at the end of the interpreter, but not what a function encloses.
    def __del__(self: Buffer) -> None:
        """Frees the buffer unless it was closed."""
        try:
            if self._closed or finalizing():
                return
        except AttributeError:
            return
        destroy(last.gpumem_buffer_destroy, self._handle)
    return __del__


Buffer.__del__ = _finalizer(sys.is_finalizing, destroy_quietly, c)  # type: ignore[attr-defined]
