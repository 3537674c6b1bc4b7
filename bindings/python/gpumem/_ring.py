# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rings: slots of device memory that go from a producer to consumers in other processes, again and again."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, List, Optional, Tuple, Type, Union, overload

from . import _library as c
from ._calls import GONE, Made, ask, call, create, encoded, size64, u32, u64, untrack
from ._codes import Backend, EventFlags, Kind, MemoryFlags
from ._dlpack import CUDA
from ._handles import Scoped, expect_device, expect_instance
from ._hub import Opened
from ._infos import MemoryInfo, RingInfo
from ._known import RingKnown
from ._memory import Region, queue_of
from ._share import ShareHandle, handle_struct, instance_of, seconds
from ._stream import Event
from ._waits import pieces
from .errors import Busy, Closed, DeviceLost, Error, StaleHandle

if TYPE_CHECKING:
    from ._instance import Device, Instance
    from ._stream import Queue, Stream


def _order(stream: Optional[Stream]) -> Optional[int]:
    """The handle of a stream. None is the calling thread."""
    if stream is None:
        return None
    if not hasattr(stream, "_queue"):
        raise TypeError(f"stream must be a gpumem.Stream or None, not a {type(stream).__name__}; Stream.wrap() wraps others")
    if stream.closed:
        raise StaleHandle("the stream was closed; pass one that is open")
    return stream.handle


def _recorded(queues: Iterable[Queue]) -> List[Event]:
    """Events of the work that is in streams now, of those that can still have some."""
    events = []
    for queue in queues:
        try:
            events.append(_event(queue.device, queue))
        except (DeviceLost, StaleHandle):
            pass
    return events


def _event(device: Device, queue: Queue) -> Event:
    event = Event(device, flags=EventFlags.DISABLE_TIMING)
    event._record(queue)
    return event


class Slot(Region, Scoped):
    """What the slots of both sides have in common."""

    __slots__ = ("device", "number", "index", "_ring", "_found", "_stream", "_open", "_done", "_holds", "_info", "__weakref__")
    _side = Kind.DEVICE
    _count = "published"

    if TYPE_CHECKING:
        number: int
        index: int
        _ring: Ring
        _found: Any
        _stream: Optional[Stream]
        _open: bool
        _done: Optional[Tuple[Optional[Stream], Optional[Event]]]  # of a message whose release waits for that of older ones

    def __init__(self) -> None:
        raise TypeError("get slots from RingProducer.acquire(), and messages from RingConsumer.wait()")

    @classmethod
    def _of(cls, ring: Ring, found: Any, stream: Optional[Stream]) -> Any:
        self = cls.__new__(cls)
        self.device, self.number, self.index = ring.device, found.number, found.index
        self._ring, self._found, self._stream, self._open = ring, found, stream, True
        self._done, self._holds = None, set()
        self._info = MemoryInfo(cls._side, -1, ring.device.ordinal, None, found.pointer, found.size, found.size, 0,
                                MemoryFlags(0), MemoryFlags(0), 0, ring._name)
        ring._held.append(self)
        return self

    def __repr__(self) -> str:
        return (f"<gpumem.{type(self).__name__}: message {self.number}, {self._found.size} bytes"
                f"{'' if self._open else ', closed'}>")

    @property
    def closed(self) -> bool:
        """Whether this side has done with it."""
        return not self._open

    @property
    def stream(self) -> Optional[Stream]:
        """The stream that it was acquired or waited for with."""
        return self._stream

    def info(self) -> MemoryInfo:
        """Information about the memory of the slot."""
        if self._info is None or not self._open:
            raise StaleHandle("the slot was published or released, or its ring closed")
        return self._info

    def _lasting(self, operand: Any) -> Any:
        """Without the ring, which keeps its slots, as they keep their streams: none of these would ever end."""
        return self._ring._made

    def _dlpack_device(self, host: bool) -> Optional[Tuple[int, int]]:
        if host or self.device.instance.backend is not Backend.CUDA:
            return None
        return CUDA, self.device.ordinal

    def _pass(self, stream: Optional[Stream], what: str, function: str) -> None:
        """Checks that only work of a stream that goes along uses the slot."""
        queue = None if stream is None else stream._queue
        if self._viewed():
            self._held(what, function)
        if any(queue_of(hold) is not queue for hold in self._holds.copy()):
            raise Busy("work in another stream uses the slot and was not observed complete; synchronize that stream first",
                       function=function)

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Makes the call that passes it on."""
        try:
            call(function, self._ring.handle, *arguments)
            self._end()
        except BaseException:  # a signal handler may have raised as the call returned
            if self.number < getattr(self._ring.info(), self._count):
                self._end()
            raise

    def _end(self) -> None:
        self._open = False
        if self in self._ring._held:
            self._ring._held.remove(self)


class RingSlot(Slot):
    """A slot to fill, of :meth:`RingProducer.acquire`. It is copied to, filled and viewed as memory is.

    :meth:`publish` passes it on. A ``with`` block that ends without that drops it: then the next :meth:`RingProducer.acquire`
    returns the slot once more.
    """

    __slots__ = ()
    _leaves_by = "drop"

    def publish(self, size: Optional[int] = None, tag: int = 0, *, stream: Optional[Stream] = None) -> None:
        """Publishes ``size`` bytes, by default the whole slot, with a number for the consumers. They see the bytes when the
        work is complete that is in ``stream`` now: the one of the slot unless another one is given."""
        self.info()
        order = stream or self._stream
        length, number = self._found.size if size is None else u64(size, "size"), u64(tag, "tag")
        handle = _order(order)
        self._pass(order, "published", "gpumem_ring_publish")
        self._call(c.gpumem_ring_publish, handle, length, number)

    def drop(self) -> None:
        """Keeps the slot for the next :meth:`RingProducer.acquire`, unless it was published. A second call does nothing."""
        if not self._open:
            return
        if self._viewed():
            self._held("dropped", "gpumem_ring_acquire")
        queues = self._queues()
        if self._stream is not None:
            queues.add(self._stream._queue)
        self._ring._before += _recorded(queues)
        self._ring._spare = self._found
        self._end()


class RingMessage(Slot):
    """A message, of :meth:`RingConsumer.wait`. It is copied and viewed as memory is.

    It is released by :meth:`release`, or at the end of a ``with`` block. The producer gets the slots in their order, so a
    message that is released before an older one stays held until that is released.
    """

    __slots__ = ()
    _leaves_by = "release"
    _side = Kind.IMPORTED
    _count = "released"

    if TYPE_CHECKING:
        _ring: RingConsumer

    @property
    def tag(self) -> int:
        """The number that the producer passed with it."""
        return self._found.tag  # type: ignore[no-any-return]

    def release(self, *, stream: Optional[Stream] = None) -> None:
        """Releases the message. The producer fills the slot again when the work is complete that is in ``stream`` now: the one of
        the message unless another one is given. A second call does nothing."""
        ring = self._ring
        if not self.closed:
            order = stream or self._stream
            handle = _order(order)
            self._pass(order, "released", "gpumem_ring_release")
            ring._pass_on()
            if ring._held[0] is not self:
                # The stream may be closed when it is passed on.
                self._done = order, None if order is None else _event(self.device, order._queue)
                return
            self._call(c.gpumem_ring_release, handle, self.number)
        ring._pass_on()

    @property
    def closed(self) -> bool:
        """Whether it was released."""
        return not self._open or self._done is not None

    def info(self) -> MemoryInfo:
        """Information about the memory of the message."""
        if self._done is not None:
            raise StaleHandle("the message was released")
        return super().info()


class Ring(RingKnown, Opened):
    """What both sides of a ring have in common."""

    __slots__ = ("device", "_name", "_held", "_spare", "_before", "_made")
    _destroyed_by = "gpumem_ring_destroy"

    if TYPE_CHECKING:
        device: Device
        _name: str
        _held: List[Any]  # the oldest comes first
        _spare: Any  # a slot that was acquired or waited for, and not used
        _before: List[Event]  # what its next user waits for
        _made: Made  # which work keeps that uses a slot

    def _opened(self, made: Made, instance: Instance) -> None:
        self._held, self._spare, self._before = [], None, []
        self.instance, self._made = instance, made
        instance._peers = True
        untrack(made)  # so that it ends after the ring, also in a cycle
        self._own(made)
        info = self.info()
        self.device, self._name = instance.device(info.device_ordinal), info.name

    def _give_up(self, destroy: Callable[..., None], library: Any) -> None:
        library.gpumem_ring_finish(self._handle, 0, None)  # else its consumers wait; what is none is refused
        self._made.value = self._handle

    def _about(self, info: RingInfo) -> str:
        return (f"{info.slot_count} slots of {info.slot_size} bytes, "
                f"{info.consumer_count} consumer{'s' * (info.consumer_count != 1)}")

    def close(self) -> None:
        """Closes this side of the ring. A consumer releases what it holds. It first waits for the work on what was released or
        dropped. It is Busy while the ring has consumers: see :meth:`RingProducer.finish`. A second call does nothing.

        Raises BufferError while a view of a slot is alive, and Busy while work in a stream uses one that was neither
        published, nor released, nor dropped."""
        if not self._closed:
            events = list(self._before)
            for slot in self._held:
                if slot._done is not None:
                    events += filter(None, slot._done[1:])
                elif slot._in_use():
                    slot._held("closed", "gpumem_ring_destroy")
            for event in events:
                try:
                    event.synchronize()
                except Error as problem:
                    if problem.code not in (*GONE, c.GPUMEM_ERROR_DEVICE_LOST):
                        raise
        self._end()
        for slot in self._held:
            slot._open = False
        self._held.clear()
        self._before.clear()

    def _next(self, kind: Type[Slot], function: Callable[..., int], stream: Optional[Stream], timeout: Optional[float]) -> Any:
        """The next slot; None if none came in time."""
        order, start, limits = _order(stream), monotonic_ns(), pieces(timeout)
        if self._spare is not None and not self.info().held_count:
            self._spare = None  # it was passed on all the same, or the ring is finished
        found = self._spare or c.gpumem_ring_slot()
        try:
            if found.pointer:
                while self._before:
                    if stream is not None:
                        stream.wait_event(self._before[-1])
                    elif not self._before[-1].synchronize(None if timeout is None else max(timeout - (monotonic_ns() - start) / 1e9, 0)):
                        return None
                    self._before.pop()
            else:
                for piece in limits:
                    if call(function, self._handle, order, piece, found) != c.GPUMEM_NOT_READY:
                        break
                else:
                    return None
            slot = kind._of(self, found, stream)
            self._spare = None
            return slot
        except BaseException:  # a signal handler may have raised as the call returned
            if found.pointer:
                self._held[:] = [slot for slot in self._held if slot._found is not found]
                self._spare = found
                if stream is not None:
                    self._before += _recorded([stream._queue])
            raise


class RingProducer(Ring):
    """The side of a ring that fills slots. ``device.ring(slot_size)`` makes it.

    A slot has up to ``slot_size`` bytes. There are ``slot_count`` of them, 4 by default, for ``consumers_max`` consumers, 4 by
    default. The first slot is acquired when ``consumers_first`` consumers have opened the ring.

    The ring is closed by :meth:`close`, at the end of a ``with`` block, or when nothing refers to it any more.
    """

    __slots__ = ()

    def __init__(self, device: Device, slot_size: int, *, slot_count: int = 0, consumers_max: int = 0, consumers_first: int = 0,
                 name: Optional[str] = None) -> None:
        self._closed = True
        expect_device(device)
        desc = c.gpumem_ring_desc(slot_size=size64(slot_size, "slot_size"), slot_count=u32(slot_count, "slot_count"),
                                  consumers_max=u32(consumers_max, "consumers_max"),
                                  consumers_first=u32(consumers_first, "consumers_first"), name=encoded(name))
        self._opened(create(c.gpumem_ring_create, c.gpumem_ring_destroy, device.handle, desc), device.instance)

    def export(self) -> ShareHandle:
        """Exports the ring. Another process passes the handle to :func:`open_ring`; it travels like one of memory."""
        return ShareHandle._of(ask(c.gpumem_ring_export, c.gpumem_share_handle(), self._handle), self.instance)

    @overload
    def acquire(self, stream: Optional[Stream] = None, timeout: None = None) -> RingSlot: ...

    @overload
    def acquire(self, stream: Optional[Stream] = None, timeout: Optional[float] = None) -> Optional[RingSlot]: ...

    def acquire(self, stream: Optional[Stream] = None, timeout: Optional[float] = None) -> Optional[RingSlot]:
        """The next slot, once all consumers have released it; None if ``timeout`` seconds have passed.

        ``stream`` will fill it, and waits for the work of the consumers. Without one, this call waits for that."""
        return self._next(RingSlot, c.gpumem_ring_acquire, stream, timeout)  # type: ignore[no-any-return]

    def finish(self, timeout: Optional[float] = None) -> bool:
        """Says that no message will follow, and waits until all consumers have closed the ring. Returns whether they have. A slot
        that was not published is dropped."""
        limits = pieces(timeout)
        for slot in list(self._held):
            slot.drop()
        return any(call(c.gpumem_ring_finish, self._handle, piece) != c.GPUMEM_NOT_READY for piece in limits)


class RingConsumer(Ring):
    """The side of a ring that uses messages. :func:`open_ring` makes it.

    It sees every message that is published after it was opened, and the producer waits for it to release them. Iterating over
    it gives the messages until the producer has finished the ring, and releases each one when the next is asked for.

    The ring is closed by :meth:`close`, at the end of a ``with`` block, or when nothing refers to it any more.
    """

    __slots__ = ()

    def __init__(self, instance: Instance, handle: Union[ShareHandle, bytes], *, timeout: Optional[float] = None,
                 name: Optional[str] = None) -> None:
        self._closed = True
        expect_instance(instance)
        desc = c.gpumem_ring_open_desc(timeout_ns=seconds(timeout), name=encoded(name))
        self._opened(create(c.gpumem_ring_open, c.gpumem_ring_destroy, instance.handle, handle_struct(handle), desc), instance)

    @overload
    def wait(self, stream: Optional[Stream] = None, timeout: None = None) -> RingMessage: ...

    @overload
    def wait(self, stream: Optional[Stream] = None, timeout: Optional[float] = None) -> Optional[RingMessage]: ...

    def wait(self, stream: Optional[Stream] = None, timeout: Optional[float] = None) -> Optional[RingMessage]:
        """The next message; None if ``timeout`` seconds have passed. Several can be held. Raises Closed if the producer has
        finished the ring and this was all, and PeerGone if it has ended.

        ``stream`` will use it, and waits for the work of the producer. Without one, this call waits for that."""
        self._pass_on()
        return self._next(RingMessage, c.gpumem_ring_wait, stream, timeout)  # type: ignore[no-any-return]

    def _pass_on(self) -> None:
        """Releases the messages that are to be released, unless older ones are held."""
        while self._held and self._held[0]._done is not None:
            message = self._held[0]
            stream, event = message._done
            if stream is not None and stream.closed:
                event.synchronize()
                stream = None
            message._call(c.gpumem_ring_release, _order(stream), message.number)

    def messages(self, stream: Optional[Stream] = None) -> Iterator[RingMessage]:
        """The messages that come, each of which ``stream`` will use, until the producer has finished the ring."""
        while True:
            try:
                message = self.wait(stream)
            except Closed:
                return
            assert message is not None
            with message:
                yield message

    def __iter__(self) -> Iterator[RingMessage]:
        return self.messages()


def open_ring(handle: Union[ShareHandle, bytes], *, instance: Optional[Instance] = None, timeout: Optional[float] = None,
              name: Optional[str] = None) -> RingConsumer:
    """Opens a ring of another process; see :class:`RingConsumer`.

    ``instance`` will use the messages; by default the one that received the handle, or :func:`default_instance`. The producer
    may take ``timeout`` seconds for an answer, 5 by default.
    """
    return RingConsumer(instance_of(handle, None, instance), handle, timeout=timeout, name=name)
