# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buffers that grow and shrink in place, and that can sleep."""

from __future__ import annotations

import threading
from ctypes import c_uint64
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Set, SupportsIndex, Tuple, Union

from . import _infos
from . import _library as c
from ._calls import GONE, Made, Unique, ask, call, create, encoded, locked, u64, with_room
from ._codes import Access, BufferFlags, BufferState, Content, HandleTypes, Kind, Location, MemoryFlags, PhysicalFlags
from ._dlpack import CPU, CUDA, CUDA_HOST
from ._enums import expect
from ._enums import flags as flags_of
from ._handles import Owner, Scoped
from ._infos import BufferInfo, MemoryInfo
from ._known import BufferKnown
from ._managed import Place
from ._memory import Region, Shape, Use, View
from ._ranges import access_at, access_entries, access_structs, location_of, place_of
from ._sleeping import Call, after_wake_function, before_sleep_function, called, numbers, prepare_desc, sleep_desc, wake_desc
from ._waits import LARGE, aside, create_aside, on_main_thread
from .errors import Busy, Error, InvalidState, NotFound, StaleHandle

if TYPE_CHECKING:
    from ._groups import Group
    from ._instance import Device
    from ._memory import Hold
    from ._ranges import Accesses
    from ._sleeping import AfterWake, BeforeSleep, Directory, Progress
    from ._stream import Event, Stream


class Buffer(BufferKnown, Owner, Region):
    """Memory that grows and shrinks in place, and that can sleep.

    ``device.buffer(size)`` makes it. It reserves ``reserve`` bytes of addresses, by default as many as the device, or the
    host, has memory, and maps memory as it grows: nothing is copied, and the address stays. With ``flags="movable"`` it moves
    to larger addresses, still without a copy, once these are used up. With ``flags="copyable"`` it is one ordinary
    allocation where the device has no virtual memory management, and moves by a copy whenever it is resized. ``location``,
    ``handle_types``, ``require`` and ``prefer`` are those of :class:`Physical`. ``accesses`` are as in :meth:`set_access`; by
    default the device, and the CPU for memory of the host, may read and write. ``group`` is a :class:`Group` that it belongs
    to while it lives, and ``tag`` what it is there, such as "weights". The contents are indeterminate.

    It can be copied, filled and viewed as memory can. While a view of it is alive, or work in a stream uses it, it can grow
    in place; shrinking, moving and closing raise BufferError or Busy, and so does sleeping while a view is alive. Copies and
    fills of other threads are waited for, but moving and closing raise BufferError. A view keeps its size when the buffer
    grows. Changes happen at the call, not in the order of a stream. Work that uses plain addresses is yours to wait for.
    """

    __slots__ = ("device", "group", "_callbacks", "_changing", "_holds", "_info", "_lock", "_movable", "_number", "_state", "_tag")
    _destroyed_by = "gpumem_buffer_destroy"
    _no_access = "the CPU has no access to the buffer; set_access() gives it to memory of the host"

    def __init__(self, device: Device, size: int = 0, *, reserve: int = 0, location: Place = "device",
                 handle_types: Union[HandleTypes, str, int] = 0, require: Union[PhysicalFlags, str, int] = 0,
                 prefer: Union[PhysicalFlags, str, int] = 0, flags: Union[BufferFlags, str, int] = 0,
                 accesses: Optional[Accesses] = None, group: Optional[Group] = None, tag: Optional[str] = None,
                 name: Optional[str] = None) -> None:
        self._closed = True
        where, number = location_of(device, location)
        desc = c.gpumem_buffer_desc(
            size=u64(size, "size"), reserve=u64(reserve, "reserve"), location=where, location_id=number,
            handle_types=flags_of(HandleTypes, handle_types, "handle_types"),
            require=flags_of(PhysicalFlags, require, "require"), prefer=flags_of(PhysicalFlags, prefer, "prefer"),
            flags=flags_of(BufferFlags, flags, "flags"), tag=encoded(tag, "tag"), name=encoded(name))
        if accesses is not None:
            entries = access_entries(accesses, device.instance)
            desc.accesses, desc.access_count = access_structs(entries), len(entries)
        self.device, self._movable, self._changing = device, bool(desc.flags & BufferFlags.MOVABLE), False
        self.group, self._tag = group, tag or ""
        self._callbacks: Tuple[Optional[BeforeSleep], Optional[AfterWake]] = (None, None)
        self._number = 0  # in `called`
        # Each use in a stream has a Use, and that, like a view, is only made under the lock.
        self._holds: Set[Hold] = set()
        self._lock = threading.RLock()
        locked.add(self)
        self._state: Optional[BufferInfo] = None
        self._info: Optional[MemoryInfo] = None  # for copies and views
        make = create_aside if desc.size >= LARGE and on_main_thread() else create
        if group is None:
            self._open(make(c.gpumem_buffer_create, c.gpumem_buffer_destroy, device.handle, desc))
            return
        from ._groups import Group
        expect(Group, group, "group")
        desc.group = group.handle
        with group._lock:  # none enters while the group sleeps or wakes
            group._idle()
            self._open(make(c.gpumem_buffer_create, c.gpumem_buffer_destroy, device.handle, desc))
            group._members[self._handle] = self

    def _open(self, made: Made) -> None:
        self._own(made)
        self.device.instance._buffers[self._handle] = self

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

    def set_ahead(self, bytes: int) -> None:
        """Keeps so many bytes ready behind the size, made by a thread of the library as the buffer grows. A :meth:`resize` that
        needs no more than what is there makes no driver call. 0 ends it, and leaves what is there."""
        bytes = u64(bytes, "bytes")
        with self._lock:
            self._idle()
            self._change("", 0, "gpumem_buffer_set_ahead", bytes)

    def set_access(self, accesses: Accesses) -> None:
        """Sets what processors may do with the buffer, now and as it grows; see :meth:`Range.set_access`."""
        entries = access_entries(accesses, self.device.instance)
        with self._lock:
            info = self._idle()
            taken = self._holds and any(access_at(self.device.instance, info.base, location, number) & ~access
                                        for location, number, access in entries)
            self._change("changed" if taken else "", info.capacity, "gpumem_buffer_set_access", access_structs(entries),
                         len(entries))

    # ---- sleep ----

    def sleep(self, content: Union[Content, str, int] = "pinned", *, directory: Optional[Directory] = None,
              stream: Optional[Stream] = None, event: Optional[Event] = None, idle: bool = False,
              progress: Optional[Progress] = None) -> None:
        """Gives the memory back and keeps the addresses. ``content`` says what happens to the bytes: they are kept in
        "pinned" or "pageable" memory of the host, or in a "file" without a name in ``directory``, or are "zero" or
        indeterminate ("drop") after :meth:`wake`.

        It waits for the work that is in ``stream``, and for ``event``. With neither it waits for all work of the devices that
        may access the buffer, or with ``idle`` for nothing.

        ``progress(done, total)`` is called with bytes, before the first one and after each piece. To cancel the call, raise an
        exception in it, such as :class:`Cancelled`: this method undoes what it did, and raises the exception. What it returns
        means nothing. Once all bytes are done it is too late to cancel, but the exception is still raised.

        If the call fails, the buffer is awake, with its content. While registrations are noted it raises Busy; see
        :meth:`note_registration`.
        """
        desc = sleep_desc(content, directory, None, stream, event, idle)
        heard = Call(progress)
        with self._lock:
            self._idle()
            put_to_sleep([self], None, heard, "gpumem_buffer_sleep", self._handle, desc, stream, event)

    def wake(self, *, keep: Union[SupportsIndex, str] = 0, progress: Optional[Progress] = None) -> None:
        """Wakes the buffer: at the same address, with its size, the access of each processor, and the content that was kept.
        If the call fails, the buffer sleeps on, and nothing is lost.

        ``keep`` are the bytes of its store that it keeps for the next sleep, or "all". ``progress`` is as in :meth:`sleep`.
        """
        desc = wake_desc(keep, None)
        heard = Call(progress)
        with self._lock:
            self._idle()
            wake_up([self], None, heard, "gpumem_buffer_wake", self._handle, desc)

    def prepare(self, content: Union[Content, str, int] = "pinned", *, directory: Optional[Directory] = None,
                bytes_per_second: int = 0) -> None:
        """Makes the store for the content ahead of :meth:`sleep`, which then only copies.

        With ``bytes_per_second`` it returns at once, and a thread of the library does it at that pace; ``store_capacity`` of
        :meth:`info` says how far it is. "zero" and "drop" free the store.
        """
        desc = prepare_desc(content, directory, None, bytes_per_second)
        with self._lock:
            size = self._idle().size
            self._change("", 0 if desc.bytes_per_second else size, "gpumem_buffer_prepare", desc)

    def set_callbacks(self, before_sleep: Optional[BeforeSleep] = None, after_wake: Optional[AfterWake] = None) -> None:
        """Sets what is called when the buffer sleeps and wakes, in place of what was set before.

        ``before_sleep(buffer)`` is the time to close registrations and to drop views. To refuse the sleep, raise an exception
        in it; :meth:`sleep` raises it again. ``after_wake(buffer, generation)`` is called when the buffer has woken, and after
        a sleep that did not happen; its exceptions go to ``sys.unraisablehook``. They run on the thread that called
        :meth:`sleep` or :meth:`wake`, if it still waits. They may ask for information and note and close registrations.
        """
        for what, function in (("before_sleep", before_sleep), ("after_wake", after_wake)):
            if function is not None and not callable(function):
                raise TypeError(f"{what} must be callable or None, not a {type(function).__name__}")
        with self._lock:
            self._idle()
            self._number = self._number or next(numbers)
            structs = c.gpumem_buffer_callbacks(user_data=self._number)
            if before_sleep is not None:
                structs.before_sleep = before_sleep_function
            if after_wake is not None:
                structs.after_wake = after_wake_function
            called[self._number] = self
            call(c.gpumem_buffer_set_callbacks, self._handle, structs)
            self._callbacks = before_sleep, after_wake

    def _before_sleep(self) -> None:
        function = self._callbacks[0]
        if function is not None:
            function(self)
        self._unused("put to sleep", "gpumem_buffer_sleep")

    def note_registration(self, name: str) -> Registration:
        """Notes that something outside this package holds the memory: a network card, a communicator, another process. The
        buffer does not sleep before the :class:`Registration` is closed. ``name`` says in messages what holds it."""
        return Registration(self, name)

    # ---- how it changes ----

    def _idle(self) -> BufferInfo:
        """Information, unless a change goes on."""
        self._unchanging()
        info = self._state or self.info()
        return self.info() if info.ahead else info  # which grows by itself

    def _unchanging(self) -> None:
        """Raises if a change goes on: Ctrl-C ended the wait for it, or a signal handler or callback came in between."""
        if self._changing:
            raise Busy("the buffer is being changed; try again when that is done")

    def _moved(self, info: BufferInfo, size: int) -> str:
        ordinary = info.range_handle is None
        return "moved" if ordinary or self._movable and size > info.reserved_size else ""

    def _unused(self, done: str, function: str) -> None:
        """Raises if something holds the bytes. A call of another thread does so only if the addresses end: otherwise the library
        waits for it."""
        if not self._in_use():
            return
        held = [hold() for hold in self._holds.copy()]  # which keeps the views until the refusal is worded
        try:
            if done in ("moved", "closed") or any(
                    isinstance(one, View) or getattr(one, "queue", None) or getattr(one, "calls_back", False) for one in held):
                self.info()  # a fork or a closed instance is reported first
                self._held(done, function)
        finally:
            del held

    def _change(self, done: str, size: int, function: str, *arguments: Any) -> None:
        """Calls a function that changes the buffer. ``done``: what nothing must hold it for."""
        if done:
            self._unused(done, function)
        waits = done and self._holds  # for calls of other threads, however long they take
        change([self], None, plainly(LARGE if waits else size), function, self._handle, *arguments)

    # ---- the end ----

    def close(self) -> None:
        """Frees the buffer, awake or asleep. A second call does nothing.

        Raises BufferError while a view of it is alive, and Busy while work in a stream that uses it was not observed
        complete.
        """
        with self._lock:
            if self._closed:
                return
            self._unchanging()
            self._unused("closed", "gpumem_buffer_destroy")
            try:
                self._end()
            except Error:
                self._state = self._info = None
                raise

    _awaited = Region._queues

    # ---- its bytes ----

    def view(self, dtype: Any = None, shape: Optional[Shape] = None, *, offset: int = 0, order: str = "C") -> View:
        """A typed view of the bytes that the buffer has now, or of a part of them. See :meth:`Memory.view`."""
        with self._lock:
            self._awake()
            return View._of(self, dtype, shape, offset, order)

    def _awake(self) -> None:
        if self._closed:
            raise StaleHandle("the buffer is closed")
        if self._idle().asleep:
            raise InvalidState("the buffer is asleep; call wake() first")

    def _operand(self, writable: bool) -> Tuple[int, int, Use]:
        with self._lock:
            self._awake()
            return self._address(), self.size, Use(self)

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

    def _last_info(self) -> BufferInfo:
        return self._state or self.info()

    def _about(self, info: BufferInfo) -> str:
        state = ", closed" if self._closed else f", {info.state}" if info.asleep else ""
        return f"{info.size} bytes, {place_of(info)}{state}"

    def info(self) -> BufferInfo:
        """Information about the buffer."""
        found = ask(c.gpumem_buffer_get_info, c.gpumem_buffer_info(), self._handle)
        self._state = _infos.buffer_info(found, self.group)
        return self._state

    def __int__(self) -> int:
        """The address of the first byte."""
        return self.base

    @property
    def capacity(self) -> int:
        """Bytes that have memory, or had when the buffer went to sleep."""
        info = self._state or self.info()
        return (self.info() if info.ahead else info).capacity

    @property
    def asleep(self) -> bool:
        """Whether its memory was given back: it is ASLEEP, or FAILED."""
        return (self._state or self.info()).asleep

    @property
    def tag(self) -> str:
        """As given at creation."""
        return self._tag


class Registration(Unique, Scoped):
    """A note that something outside this package holds the memory of a buffer, which does not sleep meanwhile.

    :meth:`Buffer.note_registration` makes it. It ends by :meth:`close`, or at the end of a ``with`` block. Dropping it does not
    end it, because what holds the memory does not end either.
    """

    __slots__ = ("buffer", "name", "number", "_closed", "__weakref__")
    _instead = "use the object itself"

    def __init__(self, buffer: Buffer, name: str) -> None:
        self._closed = True
        expect(Buffer, buffer, "buffer")
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not a {type(name).__name__}")
        number = c_uint64()
        try:
            call(c.gpumem_buffer_note_registration, buffer.handle, encoded(name), number)
        except BaseException:
            if number.value:  # a signal handler raised as the call returned
                c.gpumem_buffer_forget_registration(buffer.handle, number, None)
            raise
        self.buffer, self.name, self.number, self._closed = buffer, name, number.value, False

    def close(self) -> None:
        """Ends the registration. A second call does nothing."""
        if self._closed:
            return
        try:
            self._closed = True
            call(c.gpumem_buffer_forget_registration, self.buffer.handle, self.number)
        except BaseException as problem:
            if getattr(problem, "code", None) not in GONE and not isinstance(problem, NotFound):
                self._closed = False
                raise

    def __repr__(self) -> str:
        return f"<gpumem.Registration {self.name!r} of {self.buffer!r}{', closed' if self._closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed


# ---- changes of one or several buffers, whose locks the caller holds ----

def change(buffers: Sequence[Buffer], group: Optional[Group], make: Callable[[Callable[[], None]], None], function: str,
           *arguments: Any) -> None:
    """Calls a function that changes buffers, in the way that ``make`` does it. They are marked until it has returned, also if
    Ctrl-C ends the wait for it."""
    token = [None]
    runner = 0  # the thread that makes the call

    def mark(changing: bool) -> None:
        for buffer in buffers:
            buffer._changing = changing
        if group is not None:
            group._changing = changing

    def run() -> None:
        nonlocal runner
        runner = threading.get_ident()
        try:
            token.pop()
        except IndexError:  # Ctrl-C came first
            return
        try:
            with_room(call, getattr(c, function), *arguments)
        finally:
            for buffer in buffers:
                try:
                    buffer.info()  # before a kernel needs it, which cannot ask
                except Error:
                    buffer._state = None
                buffer._info = None
            mark(False)
    try:
        mark(True)
        make(run)
    except BaseException:
        try:
            token.pop()
            over = True  # the call was never made
        except IndexError:
            over = runner == threading.get_ident()
        if over:
            for buffer in buffers:
                buffer._state = buffer._info = None
            mark(False)
        raise


def plainly(size: int) -> Callable[[Callable[[], None]], None]:
    """Makes a call that changes so many bytes and calls no function of the user."""
    def make(run: Callable[[], None]) -> None:
        if size >= LARGE and on_main_thread():
            aside(run)
        else:
            run()
    return make


def put_to_sleep(buffers: Sequence[Buffer], group: Optional[Group], heard: Call, function: str, handle: int, desc: Any,
                 stream: Optional[Stream], event: Optional[Event]) -> None:
    """Waits for work on the buffers in a way that answers Ctrl-C, checks that nothing else holds them, and calls the library,
    which waits again."""
    wait = not desc.flags
    if wait:
        if stream is not None:
            stream.synchronize()
        if event is not None:
            event.synchronize()
        if stream is None and event is None:
            for queue in {queue for buffer in buffers for queue in buffer._queues()}:
                queue.synchronize()
    for buffer in buffers:
        if buffer._callbacks[0] is None:  # otherwise it checks for itself, once that has dropped its views
            buffer._unused("put to sleep", function)
        elif buffer._holds:
            buffer._sweep()  # which is not possible there
    long = wait or any(buffer._holds for buffer in buffers) or _is_long(buffers)
    try:
        change(buffers, group, lambda run: heard.make(run, desc, long), function, handle, desc)
    except BaseException as problem:
        failed = sum(buffer._state is not None and buffer._state.state == BufferState.FAILED for buffer in buffers)
        if failed and not isinstance(problem, Error) and hasattr(problem, "add_note"):  # from Python 3.11 on
            problem.add_note(f"{failed} of the buffers could not be woken again; their state is FAILED")
        raise


def wake_up(buffers: Sequence[Buffer], group: Optional[Group], heard: Call, function: str, handle: int, desc: Any) -> None:
    long = _is_long(buffers)
    change(buffers, group, lambda run: heard.make(run, desc, long), function, handle, desc)


def _is_long(buffers: Sequence[Buffer]) -> bool:
    """Whether to put buffers to sleep, or to wake them, may take long or calls functions of the user."""
    return sum(buffer._last_info().size for buffer in buffers) >= LARGE or any(
        any(buffer._callbacks) for buffer in buffers)
