# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Streams and events, and the record of what the work in a stream still uses."""

from __future__ import annotations

import sys
import threading
from ctypes import c_float, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _library as c
from ._calls import (GONE, ask, call, destroy_quietly, encoded, host_function, i32, leftovers, nanoseconds, pending,
                     sweep, text, u32, u64)
from ._codes import EventFlags, WaitCondition
from ._operands import operand
from ._results import EventInfo, StreamInfo, known
from .errors import DeviceLost, Error, NotReady

if TYPE_CHECKING:
    from ._instance import Device

# Queues with work whose operands are kept. They live until the work was observed complete, whoever forgot them.
_active: set = set()
# How many uses a queue collects before it looks by itself whether its work is complete.
_MANY = 256


class _Use:
    """One piece of work: what it uses, and what is known to be complete when it is."""

    __slots__ = ("sequence", "kept", "after")

    def __init__(self, kept, after):
        self.sequence, self.kept, self.after = None, kept, after


class Queue:
    """The work of one stream. It outlives the Stream object while work is in flight."""

    __slots__ = ("device", "handle", "lock", "sequence", "uses", "closed")

    def __init__(self, device, handle):
        self.device, self.handle, self.closed = device, handle, False
        self.lock, self.sequence, self.uses = threading.Lock(), 0, []

    def enqueue(self, kept, function, *arguments, after=None):
        """Makes a call that enqueues work, and keeps its operands until the work was observed complete."""
        kept = [value for value in kept if value is not None]
        if not kept and after is None:
            call(function, *arguments)
            return
        use = _Use(kept, after)
        hold(kept, self)
        with self.lock:
            self.uses.append(use)
            _active.add(self)
        try:
            call(function, *arguments)
        except Exception:
            use.sequence = 0
            self.observed(0)
            raise
        with self.lock:
            self.sequence += 1
            use.sequence = self.sequence
        if len(self.uses) > _MANY:
            self.poll()

    def observed(self, mark):
        """All work up to the mark is known to be complete. None stands for all work at all."""
        done, pending_uses = [], []
        with self.lock:
            for use in self.uses:
                complete = mark is None or use.sequence is not None and use.sequence <= mark
                (done if complete else pending_uses).append(use)
            self.uses = pending_uses
            if not pending_uses:
                _active.discard(self)
        for use in done:
            for value in use.kept:
                memory = _memory_of(value)
                if memory is not None:
                    memory._holds.remove(self)
            if use.after is not None:
                queue, after = use.after
                queue.observed(after)

    def mark(self):
        """Names the work that is in the stream now."""
        with self.lock:
            return self.sequence

    def poll(self):
        """Whether the work is complete; a stream that cannot say is not."""
        mark = self.mark()
        status = c.gpumem_stream_query(self.handle, None)
        if status == 0 or status == c.GPUMEM_ERROR_DEVICE_LOST or status in GONE:
            self.observed(mark)
        return not self.uses

    def synchronize(self, timeout=None):
        limit, mark = nanoseconds(timeout), self.mark()
        try:
            if call(c.gpumem_stream_synchronize, self.handle, limit) == c.GPUMEM_NOT_READY:
                return False
        except DeviceLost:
            self.observed(mark)  # nothing will be run any more
            raise
        self.observed(mark)
        return True

    def native(self):
        """The native stream, by the numbers of DLPack and the CUDA array interface."""
        return ask(c.gpumem_stream_get_info, c.gpumem_stream_info(), self.handle).native_stream or 1

    def order_before(self, stream):
        """Lets another stream, given by its handle, wait for the work that is in this one now."""
        with Event(self.device, flags=EventFlags.DISABLE_TIMING) as event:
            call(c.gpumem_event_record, event.handle, self.handle)
            call(c.gpumem_stream_wait_event, stream, event.handle)

    def finish(self):
        """For a stream that nobody has any more: destroys it once its work is complete. Returns whether that is so."""
        if self.poll():
            destroy_quietly(c.gpumem_stream_destroy, self.handle)
            return True
        return False


def _memory_of(value):
    """The memory that is to be counted as used, of a Memory or View."""
    return value if hasattr(value, "_holds") else getattr(value, "memory", None)


def hold(kept, by):
    """Keeps the memory of operands from being closed, whose addresses a call is going to use: by the queue of a stream,
    or by None until ``let_go``. Fails if it is closed."""
    held = []
    for memory in map(_memory_of, kept):
        if memory is None:
            continue
        # Counted first, then checked: close() does it the other way round.
        memory._holds.append(by)
        held.append(memory)
        while memory.closed:
            try:
                memory.info()  # says why not, unless another thread is just trying to close it
            except Exception:
                let_go(held, by)
                raise
    return held


def let_go(held, by=None):
    for memory in held:
        memory._holds.remove(by)


def instance_closed(instance):
    """Nothing of the instance is in flight any more."""
    for queue in list(_active):
        if queue.device.instance is instance:
            queue.closed = True
            queue.observed(None)


class Stream:
    """An ordered queue of work of one device.

    What a copy or fill in the stream uses is kept alive, and cannot be closed, until the work was observed complete: by
    :meth:`synchronize`, by :meth:`query`, or by an event that was recorded after it. Plain addresses are the caller's own
    business.
    """

    __slots__ = ("device", "_queue", "_closed", "__weakref__")

    def __init__(self, device: Device, *, priority: int = 0, name: Optional[str] = None):
        self._closed = True
        if leftovers:
            sweep()
        desc = c.gpumem_stream_desc(priority=i32(priority, "priority"), name=encoded(name))
        handle = c_void_p()
        call(c.gpumem_stream_create, device._handle, desc, handle)
        self._open(device, handle.value)

    def _open(self, device, handle):
        self.device, self._queue, self._closed = device, Queue(device, handle), False

    @classmethod
    def wrap(cls, device: Device, native_stream: int) -> Stream:
        """Adopts a stream that other code made, such as a CUstream; 0 is the device's legacy default stream. It stays
        its maker's, who must keep it until this object is closed."""
        handle = c_void_p()
        call(c.gpumem_stream_wrap, device._handle, u64(native_stream, "native_stream"), handle)
        self = cls.__new__(cls)
        self._open(device, handle.value)
        return self

    def close(self) -> None:
        """Destroys the stream, or lets go of an adopted one. A second call does nothing.

        Waits first if work in the stream uses objects that it keeps; other pending work still completes.
        """
        if self._closed:
            return
        if self._queue.uses and not self._queue.closed:
            try:
                self._queue.synchronize()
            except Error as problem:
                if problem.code not in (*GONE, c.GPUMEM_ERROR_DEVICE_LOST):
                    raise
        self._closed = True
        try:
            call(c.gpumem_stream_destroy, self._queue.handle)
        except Error as problem:
            if problem.code not in GONE:
                self._closed = False
                raise

    def __del__(self, finalizing=sys.is_finalizing, destroy=destroy_quietly):
        try:
            if self._closed or finalizing():
                return
        except AttributeError:
            return
        if self._queue.uses:
            leftovers.append(self._queue.finish)
        else:
            destroy(c.gpumem_stream_destroy, self._queue.handle)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return "<gpumem.Stream, closed>" if self._closed else f"<gpumem.Stream of device {self.device.ordinal}>"

    @property
    def handle(self) -> int:
        """The ``gpumem_stream`` of the C interface."""
        return self._queue.handle

    @property
    def closed(self) -> bool:
        """Whether the stream was closed."""
        return self._closed

    def info(self) -> StreamInfo:
        """What is known about the stream."""
        found = ask(c.gpumem_stream_get_info, c.gpumem_stream_info(), self.handle)
        return StreamInfo(found.device_ordinal, bool(found.wrapped), found.priority, found.native_stream or 0,
                          text(found.name))

    @property
    def native_stream(self) -> int:
        """The CUstream, for use by other code."""
        return self.info().native_stream

    def __cuda_stream__(self):
        """The protocol of cuda.core: (version, CUstream)."""
        return 0, self.native_stream

    def query(self) -> bool:
        """Whether all work is complete. True is an observation, as if by :meth:`synchronize`."""
        mark = self._queue.mark()
        if call(c.gpumem_stream_query, self.handle) == c.GPUMEM_NOT_READY:
            return False
        self._queue.observed(mark)
        return True

    def synchronize(self, timeout: Optional[float] = None) -> bool:
        """Waits until the work that was in the stream at the call is complete, for ``timeout`` seconds at most. Returns
        False if the time ran out."""
        return self._queue.synchronize(timeout)

    def wait_event(self, event: Event) -> None:
        """Lets later work wait for what an event has captured. An event that was never recorded is complete."""
        captured = event._captured
        after = captured if captured is not None and captured[0].uses else None
        self._queue.enqueue((), c.gpumem_stream_wait_event, self.handle, event.handle, after=after)

    def launch_host_function(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Runs a function on the CPU after all earlier and before all later work of the stream.

        It runs on a thread of the backend. It must not wait for device work; of gpumem it may only ask for information.
        What it raises goes to ``sys.unraisablehook``. It is not run if the device is lost. The end of the interpreter
        waits a few seconds for functions that were not run.
        """
        if not callable(function):
            raise TypeError("the function must be callable")
        enqueue_function(self, c.gpumem_stream_launch_host_function, host_function,
                         (lambda: function(*arguments)) if arguments else function)

    def write_value(self, address: Any, value: int, size: int = 4) -> None:
        """Writes a number of 4 or 8 bytes to a word of pinned or device memory, in stream order."""
        address, _, kept = operand(address, True)
        self._queue.enqueue((kept,), c.gpumem_stream_write_value, self.handle, address, u64(value, "value"),
                            u32(size, "size"))

    def wait_value(self, address: Any, value: int, size: int = 4, condition: int = WaitCondition.GEQ) -> None:
        """Holds the stream until a word of pinned or device memory meets a condition."""
        address, _, kept = operand(address, True)
        self._queue.enqueue((kept,), c.gpumem_stream_wait_value, self.handle, address, u64(value, "value"),
                            u32(size, "size"), i32(condition, "condition"))


def enqueue_function(stream, enqueue, callback, function):
    """Enqueues a Python function behind one of the callbacks of the C interface."""
    number = pending.add(stream.device, function)
    try:
        call(enqueue, stream.handle, callback, number)
    except Exception:
        pending.entries.pop(number, None)
        raise


class Event:
    """A point in a stream that others can wait for. Until it is recorded it counts as complete."""

    __slots__ = ("device", "_handle", "_closed", "_captured", "__weakref__")

    def __init__(self, device: Device, *, flags: int = 0, name: Optional[str] = None):
        self._closed = True
        if leftovers:
            sweep()
        desc = c.gpumem_event_desc(flags=u32(flags, "flags"), name=encoded(name))
        handle = c_void_p()
        call(c.gpumem_event_create, device._handle, desc, handle)
        self._open(device, handle.value)

    def _open(self, device, handle):
        self.device, self._handle, self._closed = device, handle, False
        self._captured = None  # (queue, mark) of the latest record

    @classmethod
    def wrap(cls, device: Device, native_event: int, *, flags: int = 0) -> Event:
        """Adopts an event that other code made, such as a CUevent, with the flags it was made with. It stays its
        maker's, who must keep it until this object is closed."""
        handle = c_void_p()
        call(c.gpumem_event_wrap, device._handle, u64(native_event, "native_event"), u32(flags, "flags"), handle)
        self = cls.__new__(cls)
        self._open(device, handle.value)
        return self

    def close(self) -> None:
        """Destroys the event, or lets go of an adopted one. Work that waits for it goes on. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            call(c.gpumem_event_destroy, self._handle)
        except Error as problem:
            if problem.code not in GONE:
                self._closed = False
                raise

    def __del__(self, finalizing=sys.is_finalizing, destroy=destroy_quietly):
        try:
            if self._closed or finalizing():
                return
        except AttributeError:
            return
        destroy(c.gpumem_event_destroy, self._handle)

    def __enter__(self) -> Event:
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return "<gpumem.Event, closed>" if self._closed else f"<gpumem.Event of device {self.device.ordinal}>"

    @property
    def handle(self) -> int:
        """The ``gpumem_event`` of the C interface."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the event was closed."""
        return self._closed

    def info(self) -> EventInfo:
        """What is known about the event."""
        found = ask(c.gpumem_event_get_info, c.gpumem_event_info(), self._handle)
        return EventInfo(found.device_ordinal, bool(found.wrapped), known(EventFlags, found.flags),
                         found.native_event or 0, text(found.name))

    def record(self, stream: Stream) -> None:
        """Captures the work that is in a stream of the same device now; a later record replaces the capture."""
        captured = stream._queue, stream._queue.mark()
        call(c.gpumem_event_record, self._handle, stream.handle)
        self._captured = captured

    def _observed(self, captured):
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
        """Waits until the work of the latest record is complete, for ``timeout`` seconds at most. Returns False if the
        time ran out."""
        limit, captured = nanoseconds(timeout), self._captured
        if call(c.gpumem_event_synchronize, self._handle, limit) == c.GPUMEM_NOT_READY:
            return False
        self._observed(captured)
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to a later one; both recorded, complete and made with timing."""
        milliseconds = c_float()
        if call(c.gpumem_event_get_elapsed_time, self._handle, end.handle, milliseconds) == c.GPUMEM_NOT_READY:
            raise NotReady("one of the events is not complete", function="gpumem_event_get_elapsed_time")
        return milliseconds.value
