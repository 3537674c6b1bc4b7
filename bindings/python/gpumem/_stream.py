# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Streams and events, and the record of the objects that work in a stream still uses."""

from __future__ import annotations

import functools
import threading
import weakref
from ctypes import c_int64, c_uint64
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Optional, Set, Tuple, Union

from . import _library as c
from ._calls import (BY_EXPORT, GONE, Made, active, ask, call, create, destroy_quietly, encoded, host_function, i32, leave,
                     leftovers, locked, pending, sweep, u32, u64)
from ._codes import Attach, Backend, EventFlags, WaitCondition
from ._copies import Copies
from ._enums import code, expect
from ._enums import flags as flags_of
from ._handles import Owner, expect_device
from ._infos import EventInfo, StreamInfo
from ._known import EventKnown, StreamKnown
from ._managed import Place, batch, hint, place, span
from ._memory import Region, Use, View, memory_of
from ._operands import operand
from ._waits import LARGE, aside, on_main_thread, wait
from .errors import DeviceLost, Error, InvalidState

if TYPE_CHECKING:
    from ._instance import Device, Instance
    from ._memory import Hold
    from ._share import ShareHandle

# Number of uses after which a queue checks by itself whether its work is complete.
_MANY = 256
# Number of streams with uses from which on a new stream checks them.
_FEW = 16
_crowd = [_FEW]


class _Use:
    """One piece of work: the objects that it uses, and the work that is known to be complete once it is."""

    __slots__ = ("sequence", "kept", "held", "after")

    def __init__(self, kept: List[Any], held: Held, after: Optional[Tuple[Queue, int]]) -> None:
        self.sequence: Optional[int] = None
        self.kept, self.held, self.after = kept, held, after


class Queue:
    """The work of one stream. It outlives the Stream object while work is in flight."""

    __slots__ = ("device", "handle", "_lock", "sequence", "uses", "closed", "__weakref__")

    def __init__(self, device: Device, handle: int) -> None:
        self.device, self.handle, self.closed = device, handle, False
        self._lock, self.sequence = threading.RLock(), 0  # a signal handler may call while this thread holds it
        self.uses: List[_Use] = []
        device.instance._queues.add(self)
        locked.add(self)

    def enqueue(self, kept: Iterable[Any], function: Callable[..., int], *arguments: Any,
                after: Optional[Tuple[Queue, int]] = None, in_part: bool = False) -> int:
        """Makes a call that enqueues work, and keeps its operands until the work was observed complete. ``in_part``: a
        call that fails may have enqueued some of it. Returns the status."""
        kept = [value for value in kept if value is not None]
        if not kept and after is None:
            return call(function, *arguments)
        use = _Use([lasting(value) for value in kept], hold(kept, self), after)
        try:
            with self._lock:
                self.uses.append(use)
                active.add(self)
            status = call(function, *arguments)
            if status == c.GPUMEM_NO_EFFECT:
                self._forget(use)
                return status
            self._enqueued(use)
        except BaseException as problem:
            # A signal handler, which may raise anything, does so once the call has returned: the work may be in the stream.
            if in_part or not isinstance(problem, Error):
                self._enqueued(use)
                self.poll()  # releases them at once if the stream is idle
            else:
                self._forget(use)
            raise
        if len(self.uses) > _MANY:
            self.poll()
        return status

    def _forget(self, use: _Use) -> None:
        use.sequence = 0
        self.observed(0)

    def _enqueued(self, use: _Use) -> None:
        with self._lock:
            self.sequence += 1
            use.sequence = self.sequence

    def observed(self, mark: Optional[int]) -> None:
        """Releases the operands of work that was observed complete: up to the mark, or all of it if that is None."""
        # One after the other, because a signal handler or a finalizer may interrupt this anywhere, and do the same.
        while True:
            use = self._take(mark)
            if use is None:
                return
            release(use.held)
            if use.after is not None:
                queue, after = use.after
                queue.observed(after)

    def _take(self, mark: Optional[int]) -> Optional[_Use]:
        with self._lock:
            for use in self.uses:
                if mark is not None and (use.sequence is None or use.sequence > mark):
                    continue
                try:
                    self.uses.remove(use)
                except ValueError:
                    continue  # it was taken meanwhile
                if not self.uses:
                    active.discard(self)
                return use
        return None

    def mark(self) -> int:
        """A mark of the work that is in the stream now, for ``observed``."""
        with self._lock:
            return self.sequence

    def poll(self) -> bool:
        """Whether the work is known to be complete."""
        mark = self.mark()
        if self.idle():
            self.observed(mark)
        return not self.uses

    def idle(self) -> bool:
        """Whether nothing runs in the stream, or ever will."""
        status: int = c.gpumem_stream_query(self.handle, None)
        return status == 0 or status == c.GPUMEM_ERROR_DEVICE_LOST or status in GONE

    def synchronize(self, timeout: Optional[float] = None) -> bool:
        mark = self.mark()
        try:
            if not wait(self.device, c.gpumem_stream_synchronize, self.handle, timeout):
                return False
        except DeviceLost:
            self.observed(mark)  # nothing will run any more
            raise
        self.observed(mark)
        return True

    def settle(self) -> None:
        """Waits until the work that uses something is complete. Work of a lost device is."""
        if self.uses and not self.closed:
            try:
                self.synchronize()
            except Error as problem:
                if problem.code not in (*GONE, c.GPUMEM_ERROR_DEVICE_LOST):
                    raise

    def native_handle(self) -> int:
        """The native stream; 0 is the legacy default stream."""
        return ask(c.gpumem_stream_get_info, c.gpumem_stream_info(), self.handle).native_stream or 0

    def native(self) -> int:
        """The native stream, as DLPack and the CUDA array interface number it."""
        return self.native_handle() or 1

    def order_before(self, stream: int) -> None:
        """Makes another stream, given by its handle, wait for the work that is in this one now."""
        with Event(self.device, flags=EventFlags.DISABLE_TIMING) as event:
            call(c.gpumem_event_record, event.handle, self.handle)
            call(c.gpumem_stream_wait_event, stream, event.handle)

    def finish(self) -> bool:
        """Destroys a stream that nothing refers to any more once its work is complete. Returns whether it did."""
        if self.poll():
            destroy_quietly(c.gpumem_stream_destroy, self.handle)
            return True
        return False


class Held:
    """Keeps memory open until ``release``, or until nothing refers to this any more: for a call, or for work in a stream."""

    __slots__ = ("among", "queue", "__weakref__")

    def __init__(self, queue: Optional[Queue]) -> None:
        self.among: List[Set[Hold]] = []  # what holds each memory
        self.queue = queue

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        release(self)


def hold(kept: Iterable[Any], queue: Optional[Queue] = None) -> Held:
    """Keeps the memory of operands, which the caller keeps alive, open while a call, or the work of a queue, uses its addresses.
    Fails if it is closed."""
    held = Held(queue)
    try:
        for memory in map(memory_of, kept):
            if memory is None:
                continue
            # Counted first, then checked: close() does it in the reverse order.
            holds = memory._holds
            holds.add(weakref.ref(held, holds.discard))
            held.among.append(holds)
            while memory.closed:
                memory.info()  # fails and says why, unless another thread is only trying to close it
    except BaseException:
        release(held)
        raise
    return held


def release(held: Held) -> None:
    while held.among:
        held.among.pop().discard(weakref.ref(held))  # it is equal to the other one


def lasting(value: Any) -> Any:
    """What work in a stream keeps of an operand."""
    memory = memory_of(value)
    return value if memory is None else memory._lasting(value)


def native_stream_of(stream: Any, what: str = "native_stream") -> int:
    """The native stream of a number, or of an object of cuda.core, PyTorch or CuPy."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return u64(protocol()[1], what)
    for name in ("cuda_stream", "ptr"):
        found = getattr(stream, name, None)
        if found is not None:
            return u64(found, what)
    if not hasattr(stream, "__index__"):
        raise TypeError(f"{what} must be the number of a stream, or an object of cuda.core, PyTorch or CuPy"
                        f"{', or a gpumem.Stream' if what == 'stream' else ''}, not a {type(stream).__name__}")
    return u64(stream, what)


def observe(instance: Instance) -> None:
    """Releases the operands of work that is complete. Some may keep the stream, and nobody else has it."""
    for queue in active.copy():
        if queue.device.instance is instance:
            queue.poll()


def instance_closed(instance: Instance) -> None:
    """Nothing of the instance is in flight any more."""
    for queue in list(active):
        if queue.device.instance is instance:
            queue.closed = True
            queue.observed(None)


class Stream(StreamKnown, Owner, Copies):
    """An ordered queue of work on one device.

    A stream keeps the operands of its copies and fills alive, and they cannot be closed, until the work was observed
    complete: by :meth:`synchronize`, by :meth:`query`, or by an event that was recorded after it. Memory that is given by
    its address is the caller's to keep.
    """

    __slots__ = ("device", "_queue")
    _destroyed_by = "gpumem_stream_destroy"
    _instead = "use the object itself: streams work from any thread"

    def __init__(self, device: Device, *, priority: int = 0, name: Optional[str] = None) -> None:
        self._closed = True
        expect_device(device)
        desc = c.gpumem_stream_desc(priority=i32(priority, "priority"), name=encoded(name))
        if len(active) > _crowd[0]:
            observe(device.instance)
            _crowd[0] = 2 * len(active) + _FEW
        self._open(device, create(c.gpumem_stream_create, c.gpumem_stream_destroy, device._handle, desc))

    def _open(self, device: Device, made: Made) -> None:
        self.device, self._queue = device, Queue(device, made.handle)
        self._own(made)

    @classmethod
    def wrap(cls, device: Device, native_stream: Any) -> Stream:
        """Wraps a stream that other code created: a number such as a CUstream, where 0 is the legacy default stream of the
        device, or an object of cuda.core, PyTorch or CuPy. It must live until this object is closed, which does not destroy
        it."""
        expect_device(device)
        self = cls.__new__(cls)
        self._open(device, create(c.gpumem_stream_wrap, c.gpumem_stream_destroy, device._handle,
                                  native_stream_of(native_stream)))
        return self

    def close(self) -> None:
        """Destroys the stream, or releases a wrapped one. A second call does nothing.

        It waits first if work in the stream uses objects that the stream keeps. Other pending work still completes.
        """
        if not self._closed:
            self._queue.settle()
            self._end()

    def _abandon(self) -> None:
        """Closes it without waiting: the stream is destroyed once its work is complete."""
        if not self._closed:
            leftovers.append(self._queue.finish)
            self._closed = True
            sweep()

    def _give_up(self, destroy: Callable[..., None], library: Any) -> None:
        if self._queue.uses:
            leftovers.append(self._queue.finish)
        else:
            super()._give_up(destroy, library)

    def __exit__(self, kind: Any, problem: Optional[BaseException], trace: Any) -> None:
        # After Ctrl-C the work may never end.
        leave(self, self.close if problem is None or isinstance(problem, Exception) else self._abandon, problem)

    def _about(self, info: StreamInfo) -> str:
        return f"device {self.device.ordinal}"

    def capture_id(self) -> int:
        """The number of the capture into a graph that the stream is part of, for :meth:`Pool.release_capture`; 0 if it is not
        being captured."""
        found = c_uint64()
        call(c.gpumem_stream_get_capture_id, self._handle, found)
        return found.value

    def __cuda_stream__(self) -> Tuple[int, int]:
        """The protocol of cuda.core: (version, CUstream)."""
        return 0, self.native_stream

    def _instance(self) -> Instance:
        return self.device.instance

    def _work(self, kept: Iterable[Any], size: int, now: Callable[..., int], enqueue: Callable[..., int],
              *arguments: Any, in_part: bool = False) -> None:
        if (size >= LARGE or self._may_wait(kept)) and on_main_thread():
            aside(functools.partial(self._queue.enqueue, kept, enqueue, self._queue.handle, *arguments, in_part=in_part))
        else:
            self._queue.enqueue(kept, enqueue, self._queue.handle, *arguments, in_part=in_part)

    def _may_wait(self, kept: Iterable[Any]) -> bool:
        """Whether a call may wait for the work before it, as a GPU's driver does for ordinary memory."""
        return (not all(isinstance(value, (Region, View, Use)) for value in kept)
                and self.device.instance.backend == Backend.CUDA and not self._queue.idle())

    def query(self) -> bool:
        """Whether all work is complete. True counts as observing it complete, as :meth:`synchronize` does."""
        mark = self._queue.mark()
        if call(c.gpumem_stream_query, self.handle) == c.GPUMEM_NOT_READY:
            return False
        self._queue.observed(mark)
        return True

    def synchronize(self, timeout: Optional[float] = None) -> bool:
        """Waits until the work that is in the stream now is complete, for at most ``timeout`` seconds. Returns False if
        the timeout expired."""
        return self._queue.synchronize(timeout)

    def wait_event(self, event: Event) -> None:
        """Makes later work wait for the latest record of an event. An event that was never recorded is complete."""
        expect(Event, event, "event")
        captured = event._captured
        after = captured if captured is not None and captured[0].uses else None
        self._queue.enqueue((), c.gpumem_stream_wait_event, self.handle, event.handle, after=after)

    def launch_host_function(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Enqueues a function that runs on the CPU, after all earlier and before all later work of the stream.

        It runs on a thread of the backend. It must not wait for device work, and of gpumem it may only query information.
        An exception goes to ``sys.unraisablehook``. It does not run if the device is lost. At exit the interpreter waits
        a few seconds for functions that are still pending. It runs once, so a stream that is being captured into a graph
        refuses it.
        """
        if not callable(function):
            raise TypeError("the function must be callable")
        if self.capture_id():
            raise InvalidState("the stream is being captured into a graph, which would call the function at each launch; "
                               "launch it outside of the capture", function="gpumem_stream_launch_host_function")
        if arguments:
            function = functools.partial(function, *arguments)
        enqueue_function(self, c.gpumem_stream_launch_host_function, host_function, function)

    def write_value(self, address: Any, value: int, size: int = 4) -> None:
        """Enqueues a write of a value to a word of pinned or device memory. ``size`` is 4 or 8 bytes."""
        address, _, kept = operand(address, True, "address")
        self._queue.enqueue((kept,), c.gpumem_stream_write_value, self.handle, address, u64(value, "value"),
                            u32(size, "size"))

    def wait_value(self, address: Any, value: int, size: int = 4,
                   condition: Union[WaitCondition, str, int] = "geq") -> None:
        """Makes later work wait until a word of pinned or device memory meets a :class:`WaitCondition`: it is "geq",
        greater or equal, "eq", or has bits in common ("and"), or "nor" says so of the value and the word."""
        address, _, kept = operand(address, True, "address")
        self._queue.enqueue((kept,), c.gpumem_stream_wait_value, self.handle, address, u64(value, "value"),
                            u32(size, "size"), code(WaitCondition, condition, "condition"))


    # ---- managed memory ----

    def attach(self, pointer: Any, attach: Union[Attach, str, int] = "single", size: Optional[int] = None) -> None:
        """Enqueues a change of who may use managed memory on devices that are not concurrent: "single", this stream alone;
        "host", the CPU at any time and no device; or "global", all streams.

        It replaces what the memory was attached to. ``pointer`` is a whole allocation, as an operand or by its address.
        Closing the stream takes the memory back to how it was created.
        """
        address, room, kept = operand(pointer, False, "pointer")
        length = (room or 0) if size is None else u64(size, "size")
        self._queue.enqueue((kept,), c.gpumem_managed_attach, self.handle, address, length, code(Attach, attach, "attach"))

    def prefetch(self, pointer: Any, location: Optional[Place] = None, size: Optional[int] = None) -> bool:
        """Enqueues moving managed memory to a location. It is never needed, and the memory may be used meanwhile.

        ``pointer`` is an operand as in :meth:`copy`, or an address with its ``size``. ``location`` is a :class:`Device`, by
        default that of the stream, "host", "host_numa_current", or a pair such as ("host_numa", 0). Returns False if the
        device or the driver cannot prefetch, and nothing changed.
        """
        address, size, kept = span(pointer, size)
        where = place(self.device if location is None else location, self.device.instance)
        return self._hint((kept,), size, where[0], c.gpumem_managed_prefetch, address, size, *where)

    def prefetch_batch(self, ranges: Iterable[Any]) -> bool:
        """The same for many ranges at once, in any order: operands, or :class:`ManagedRange` for those with a location of
        their own. Each is checked before any is enqueued."""
        return self._batch(c.gpumem_managed_prefetch_batch, ranges, True)

    def discard_batch(self, ranges: Iterable[Any]) -> bool:
        """Declares the contents of ranges of managed memory useless, so that they need not be moved: until a byte is written
        or prefetched, reading it gives an indeterminate value.

        The ranges are operands, or each a :class:`ManagedRange` without a location. Returns False if the device or the
        driver cannot discard, and nothing changed.
        """
        return self._batch(c.gpumem_managed_discard_batch, ranges, False)

    def discard_and_prefetch_batch(self, ranges: Iterable[Any]) -> bool:
        """As :meth:`discard_batch`, then :meth:`prefetch_batch`, but no byte is moved."""
        return self._batch(c.gpumem_managed_discard_and_prefetch_batch, ranges, True)

    def _batch(self, function: Callable[..., int], ranges: Iterable[Any], moves: bool) -> bool:
        array, size, location, kept = batch(ranges, self.device, moves)
        return self._hint(kept, size, location, function, array, len(array), in_part=True)

    def _hint(self, kept: Iterable[Any], size: int, location: int, function: Callable[..., int], *arguments: Any,
              in_part: bool = False) -> bool:
        return hint(functools.partial(self._queue.enqueue, kept, function, self.handle, *arguments, in_part=in_part), size,
                    location)


def enqueue_function(stream: Stream, enqueue: Callable[..., int], callback: Any, function: Callable[..., Any]) -> None:
    """Enqueues a Python function through one of the callbacks of the C interface."""
    entry = pending.add(stream.device, function)
    try:
        call(enqueue, stream.handle, callback, entry)
    except Error:  # anything else a signal handler may have raised as the call returned
        pending.entries.pop(entry, None)
        raise


class Event(EventKnown, Owner):
    """A point in a stream that can be waited for. An event that was never recorded is complete."""

    __slots__ = ("device", "_captured")
    _destroyed_by = "gpumem_event_destroy"
    _instead = "use the object itself: events work from any thread"
    _elsewhere = BY_EXPORT

    def __init__(self, device: Device, *, flags: Union[EventFlags, str, int] = 0, name: Optional[str] = None) -> None:
        self._closed = True
        expect_device(device)
        desc = c.gpumem_event_desc(flags=flags_of(EventFlags, flags, "flags"), name=encoded(name))
        self._open(device, create(c.gpumem_event_create, c.gpumem_event_destroy, device._handle, desc))

    def _open(self, device: Device, made: Made) -> None:
        self._captured: Optional[Tuple[Queue, int]] = None  # (queue, mark) of the latest record
        self.device = device
        self._own(made)

    @classmethod
    def wrap(cls, device: Device, native_event: int, *, flags: Union[EventFlags, str, int] = 0) -> Event:
        """Wraps an event that other code created, such as a CUevent, with the flags that it was created with. The native
        event must live until this object is closed, which does not destroy it."""
        expect_device(device)
        self = cls.__new__(cls)
        self._open(device, create(c.gpumem_event_wrap, c.gpumem_event_destroy, device._handle,
                                  u64(native_event, "native_event"), flags_of(EventFlags, flags, "flags")))
        return self

    @classmethod
    def _import(cls, device: Device, handle: Any, fds: Any, count: int) -> Event:
        self = cls.__new__(cls)
        self._open(device, create(c.gpumem_event_import, c.gpumem_event_destroy, device._handle, handle, fds, count))
        device.instance._peers = True
        return self

    def export(self) -> ShareHandle:
        """Exports the event, so that other processes can import it with :func:`import_event`. It must have been made with
        ``flags="interprocess|disable_timing"``. The export ends when the event is closed, or with :meth:`Instance.revoke`."""
        from ._share import ShareHandle
        self.device.instance._peers = True
        return ShareHandle._of(ask(c.gpumem_event_export, c.gpumem_share_handle(), self._handle), self.device.instance)

    def close(self) -> None:
        """Destroys the event, or releases a wrapped one. Work that waits for it goes on. A second call does nothing."""
        self._end()

    def _about(self, info: EventInfo) -> str:
        return f"device {self.device.ordinal}"

    def record(self, stream: Stream) -> None:
        """Captures the work that is in a stream of the same device now. A later record replaces it."""
        expect(Stream, stream, "stream")
        self._record(stream._queue)

    def _record(self, queue: Queue) -> None:
        captured = queue, queue.mark()
        call(c.gpumem_event_record, self._handle, queue.handle)
        self._captured = captured

    def _observed(self, captured: Optional[Tuple[Queue, int]]) -> None:
        if captured is not None:
            queue, mark = captured
            queue.observed(mark)

    def query(self) -> bool:
        """Whether the work of the latest record is complete."""
        captured = self._captured
        if call(c.gpumem_event_query, self._handle) == c.GPUMEM_NOT_READY:
            return False
        self._observed(captured)
        return True

    def synchronize(self, timeout: Optional[float] = None) -> bool:
        """Waits until the work of the latest record is complete, for at most ``timeout`` seconds. Returns False if the
        timeout expired."""
        captured = self._captured
        if not wait(self.device, c.gpumem_event_synchronize, self._handle, timeout):
            return False
        self._observed(captured)
        return True

    def elapsed_time_ns(self, end: Event) -> Optional[int]:
        """Nanoseconds from this event to another, negative if that one was recorded first; None while one of the records
        is not complete."""
        expect(Event, end, "end")
        nanoseconds = c_int64()
        if call(c.gpumem_event_get_elapsed_time, self._handle, end.handle, nanoseconds) == c.GPUMEM_NOT_READY:
            return None
        return nanoseconds.value
