# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Streams and events, and the record of the objects that work in a stream still uses."""

from __future__ import annotations

import sys
import threading
from ctypes import c_int64, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _library as c
from ._calls import (GONE, ask, call, destroy_quietly, encoded, host_function, i32, leftovers, nanoseconds, pending,
                     sweep, text, u32, u64)
from ._codes import EventFlags, WaitCondition
from ._copies import Copies
from ._memory import memory_of
from ._operands import operand
from ._results import EventInfo, StreamInfo, known
from .errors import DeviceLost, Error, NotReady

if TYPE_CHECKING:
    from ._instance import Device

# Queues with work whose operands are kept. They live until the work was observed complete, even if nothing else refers
# to them.
_active: set = set()
# Number of uses after which a queue checks by itself whether its work is complete.
_MANY = 256


class _Use:
    """One piece of work: the objects that it uses, and the work that is known to be complete once it is."""

    __slots__ = ("sequence", "kept", "after")

    def __init__(self, kept, after):
        self.sequence, self.kept, self.after = None, kept, after


class Queue:
    """The work of one stream. It outlives the Stream object while work is in flight."""

    __slots__ = ("device", "handle", "lock", "sequence", "uses", "closed")

    def __init__(self, device, handle):
        self.device, self.handle, self.closed = device, handle, False
        self.lock, self.sequence, self.uses = threading.Lock(), 0, []

    def enqueue(self, kept, function, *arguments, after=None, in_part=False):
        """Makes a call that enqueues work, and keeps its operands until the work was observed complete. ``in_part``: a
        call that fails may have enqueued some of it."""
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
            if in_part:
                self._enqueued(use)
                self.poll()  # releases them at once if the stream is idle
            else:
                use.sequence = 0
                self.observed(0)
            raise
        self._enqueued(use)
        if len(self.uses) > _MANY:
            self.poll()

    def _enqueued(self, use):
        with self.lock:
            self.sequence += 1
            use.sequence = self.sequence

    def observed(self, mark):
        """Releases the operands of work that was observed complete: up to the mark, or all of it if that is None."""
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
                memory = memory_of(value)
                if memory is not None:
                    memory._holds.remove(self)
            if use.after is not None:
                queue, after = use.after
                queue.observed(after)

    def mark(self):
        """A mark of the work that is in the stream now, for ``observed``."""
        with self.lock:
            return self.sequence

    def poll(self):
        """Whether the work is known to be complete."""
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
            self.observed(mark)  # nothing will run any more
            raise
        self.observed(mark)
        return True

    def native(self):
        """The native stream, as DLPack and the CUDA array interface number it."""
        return ask(c.gpumem_stream_get_info, c.gpumem_stream_info(), self.handle).native_stream or 1

    def order_before(self, stream):
        """Makes another stream, given by its handle, wait for the work that is in this one now."""
        with Event(self.device, flags=EventFlags.DISABLE_TIMING) as event:
            call(c.gpumem_event_record, event.handle, self.handle)
            call(c.gpumem_stream_wait_event, stream, event.handle)

    def finish(self):
        """Destroys a stream that nothing refers to any more once its work is complete. Returns whether it did."""
        if self.poll():
            destroy_quietly(c.gpumem_stream_destroy, self.handle)
            return True
        return False


def hold(kept, by):
    """Keeps the memory of operands open while a call uses its addresses: on behalf of the queue of a stream, or of None
    until ``release``. Fails if it is closed."""
    held = []
    for memory in map(memory_of, kept):
        if memory is None:
            continue
        # Counted first, then checked: close() does it in the reverse order.
        memory._holds.append(by)
        held.append(memory)
        while memory.closed:
            try:
                memory.info()  # fails and says why, unless another thread is only trying to close it
            except Exception:
                release(held, by)
                raise
    return held


def release(held, by=None):
    for memory in held:
        memory._holds.remove(by)


def instance_closed(instance):
    """Nothing of the instance is in flight any more."""
    for queue in list(_active):
        if queue.device.instance is instance:
            queue.closed = True
            queue.observed(None)


class Stream(Copies):
    """An ordered queue of work on one device.

    A stream keeps the operands of its copies and fills alive, and they cannot be closed, until the work was observed
    complete: by :meth:`synchronize`, by :meth:`query`, or by an event that was recorded after it. Memory that is given by
    its address is the caller's to keep.
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
        """Wraps a stream that other code created, such as a CUstream; 0 is the legacy default stream of the device. The
        native stream must live until this object is closed, which does not destroy it."""
        handle = c_void_p()
        call(c.gpumem_stream_wrap, device._handle, u64(native_stream, "native_stream"), handle)
        self = cls.__new__(cls)
        self._open(device, handle.value)
        return self

    def close(self) -> None:
        """Destroys the stream, or releases a wrapped one. A second call does nothing.

        It waits first if work in the stream uses objects that the stream keeps. Other pending work still completes.
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
        """Information about the stream."""
        found = ask(c.gpumem_stream_get_info, c.gpumem_stream_info(), self.handle)
        return StreamInfo(found.device_ordinal, bool(found.wrapped), found.priority, found.native_stream or 0,
                          text(found.name))

    @property
    def native_stream(self) -> int:
        """The CUstream, for other code."""
        return self.info().native_stream

    def __cuda_stream__(self):
        """The protocol of cuda.core: (version, CUstream)."""
        return 0, self.native_stream

    def _instance(self):
        return self.device.instance

    def _work(self, kept, _, function, *arguments, in_part=False):
        self._queue.enqueue(kept, function, self._queue.handle, *arguments, in_part=in_part)

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
        captured = event._captured
        after = captured if captured is not None and captured[0].uses else None
        self._queue.enqueue((), c.gpumem_stream_wait_event, self.handle, event.handle, after=after)

    def launch_host_function(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Enqueues a function that runs on the CPU, after all earlier and before all later work of the stream.

        It runs on a thread of the backend. It must not wait for device work, and of gpumem it may only query information.
        An exception goes to ``sys.unraisablehook``. It does not run if the device is lost. At exit the interpreter waits
        a few seconds for functions that are still pending.
        """
        if not callable(function):
            raise TypeError("the function must be callable")
        enqueue_function(self, c.gpumem_stream_launch_host_function, host_function,
                         (lambda: function(*arguments)) if arguments else function)

    def write_value(self, address: Any, value: int, size: int = 4) -> None:
        """Enqueues a write of a value to a word of pinned or device memory. ``size`` is 4 or 8 bytes."""
        address, _, kept = operand(address, True)
        self._queue.enqueue((kept,), c.gpumem_stream_write_value, self.handle, address, u64(value, "value"),
                            u32(size, "size"))

    def wait_value(self, address: Any, value: int, size: int = 4, condition: int = WaitCondition.GEQ) -> None:
        """Makes later work wait until a word of pinned or device memory meets a :class:`WaitCondition`."""
        address, _, kept = operand(address, True)
        self._queue.enqueue((kept,), c.gpumem_stream_wait_value, self.handle, address, u64(value, "value"),
                            u32(size, "size"), i32(condition, "condition"))


def enqueue_function(stream, enqueue, callback, function):
    """Enqueues a Python function through one of the callbacks of the C interface."""
    number = pending.add(stream.device, function)
    try:
        call(enqueue, stream.handle, callback, number)
    except Exception:
        pending.entries.pop(number, None)
        raise


class Event:
    """A point in a stream that can be waited for. An event that was never recorded is complete."""

    __slots__ = ("device", "_handle", "_closed", "_captured", "__weakref__")

    def __init__(self, device: Device, *, flags: int = 0, name: Optional[str] = None):
        self._closed = True
        if leftovers:
            sweep()
        desc = c.gpumem_event_desc(flags=u64(flags, "flags"), name=encoded(name))
        handle = c_void_p()
        call(c.gpumem_event_create, device._handle, desc, handle)
        self._open(device, handle.value)

    def _open(self, device, handle):
        self.device, self._handle, self._closed = device, handle, False
        self._captured = None  # (queue, mark) of the latest record

    @classmethod
    def wrap(cls, device: Device, native_event: int, *, flags: int = 0) -> Event:
        """Wraps an event that other code created, such as a CUevent, with the flags that it was created with. The native
        event must live until this object is closed, which does not destroy it."""
        handle = c_void_p()
        call(c.gpumem_event_wrap, device._handle, u64(native_event, "native_event"), u64(flags, "flags"), handle)
        self = cls.__new__(cls)
        self._open(device, handle.value)
        return self

    def close(self) -> None:
        """Destroys the event, or releases a wrapped one. Work that waits for it goes on. A second call does nothing."""
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
        """Information about the event."""
        found = ask(c.gpumem_event_get_info, c.gpumem_event_info(), self._handle)
        return EventInfo(found.device_ordinal, bool(found.wrapped), known(EventFlags, found.flags),
                         found.native_event or 0, text(found.name))

    def record(self, stream: Stream) -> None:
        """Captures the work that is in a stream of the same device now. A later record replaces it."""
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
        """Waits until the work of the latest record is complete, for at most ``timeout`` seconds. Returns False if the
        timeout expired."""
        limit, captured = nanoseconds(timeout), self._captured
        if call(c.gpumem_event_synchronize, self._handle, limit) == c.GPUMEM_NOT_READY:
            return False
        self._observed(captured)
        return True

    def elapsed_time_ns(self, end: Event) -> int:
        """Nanoseconds from this event to another, negative if that one was recorded first. Raises NotReady while one of
        the records is not complete."""
        nanoseconds = c_int64()
        if call(c.gpumem_event_get_elapsed_time, self._handle, end.handle, nanoseconds) == c.GPUMEM_NOT_READY:
            raise NotReady("one of the events is not complete", function="gpumem_event_get_elapsed_time")
        return nanoseconds.value
