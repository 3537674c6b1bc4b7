# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Groups of buffers that sleep and wake as one."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, SupportsIndex, Tuple, Union

from . import _infos
from . import _library as c
from ._buffers import Buffer, change, plainly, put_to_sleep, wake_up
from ._calls import GONE, Unique, ask, call, create, destroy_quietly, encoded, finalizer, leave, leftovers, locked, sweep
from ._codes import Content
from ._infos import GroupInfo
from ._sleeping import Call, prepare_desc, sleep_desc, wake_desc
from .errors import Busy, Error

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._instance import Instance
    from ._sleeping import Directory, Progress
    from ._stream import Event, Stream


class Group(Unique):
    """Buffers that sleep and wake as one.

    ``instance.group()`` makes it, and ``device.buffer(size, group=group, tag="weights")`` a buffer in it, which leaves it when it
    is closed. A call is for all buffers of the group, or for those with one ``tag``; if none has it, the call does nothing.
    """

    __slots__ = ("instance", "_handle", "_closed", "_changing", "_lock", "_members", "__weakref__")
    _instead = "use the object itself"

    if TYPE_CHECKING:
        instance: Instance

    def __init__(self, instance: Instance, *, name: Optional[str] = None) -> None:
        self._closed = True
        if leftovers:
            sweep()
        desc = c.gpumem_group_desc(name=encoded(name))
        self._lock, self._changing = threading.RLock(), False
        locked.add(self)
        # By their handles, in the order in which they were made.
        self._members: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
        made = create(c.gpumem_group_create, c.gpumem_group_destroy, instance.handle, desc)
        self.instance, self._handle, self._closed = instance, made.handle, False
        made.value = None

    # ---- sleep ----

    def sleep(self, content: Union[Content, str, int] = "pinned", *, directory: Optional[Directory] = None,
              tag: Optional[str] = None, stream: Optional[Stream] = None, event: Optional[Event] = None, idle: bool = False,
              progress: Optional[Progress] = None) -> None:
        """Puts the buffers to sleep as one; see :meth:`Buffer.sleep`. Those that sleep already stay as they are.

        If the call fails, each buffer that it put to sleep is woken again. One for which there is no memory any more stays
        asleep with its content; its state is FAILED.
        """
        desc = sleep_desc(content, directory, tag, stream, event, idle)
        heard = Call(progress)
        with self._locked(tag) as buffers:
            put_to_sleep(buffers, self, heard, "gpumem_group_sleep", self._handle, desc, stream, event)

    def wake(self, *, tag: Optional[str] = None, keep: Union[SupportsIndex, str] = 0,
             progress: Optional[Progress] = None) -> None:
        """Wakes the buffers as one; see :meth:`Buffer.wake`. Those that are awake stay as they are. If the call fails, those
        that it woke sleep again, and nothing is lost. ``keep`` is for each buffer."""
        desc = wake_desc(keep, tag)
        heard = Call(progress)
        with self._locked(tag) as buffers:
            wake_up(buffers, self, heard, "gpumem_group_wake", self._handle, desc)

    def prepare(self, content: Union[Content, str, int] = "pinned", *, directory: Optional[Directory] = None,
                tag: Optional[str] = None, bytes_per_second: int = 0) -> None:
        """Makes the stores of the buffers that are awake ahead of their sleep; see :meth:`Buffer.prepare`. The whole group keeps
        to the pace."""
        desc = prepare_desc(content, directory, tag, bytes_per_second)
        with self._locked(tag) as buffers:
            size = 0 if desc.bytes_per_second else sum((buffer._state or buffer.info()).size for buffer in buffers)
            change(buffers, self, plainly(size), "gpumem_group_prepare", self._handle, desc)

    def _idle(self) -> None:
        if self._changing:
            raise Busy("the group is being changed; try again when that is done")

    @contextlib.contextmanager
    def _locked(self, tag: Optional[str]) -> Iterator[List[Buffer]]:
        """Holds the locks of the buffers with a tag, or of all of them, so that nobody uses or changes them. No buffer is
        created in the group meanwhile."""
        with contextlib.ExitStack() as locks:
            locks.enter_context(self._lock)
            self._idle()
            found = []
            for buffer in self.buffers:
                if tag and buffer.tag != tag:
                    continue
                locks.enter_context(buffer._lock)
                if not buffer.closed:
                    buffer._idle()
                    found.append(buffer)
            yield found

    # ---- the end ----

    def close(self) -> None:
        """Destroys the group, whose buffers must have been closed. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._idle()
            try:
                call(c.gpumem_group_destroy, self._handle)
            except Error as problem:
                if problem.code not in GONE:
                    raise
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, problem: Optional[BaseException], trace: Any) -> None:
        leave(self, self.close, problem)

    # ---- what it knows ----

    def __repr__(self) -> str:
        try:
            info = self.info()
        except Exception as problem:
            return "<gpumem.Group, closed>" if self._closed else f"<gpumem.Group: {problem}>"
        name = f" {info.name!r}" if info.name else ""
        return f"<gpumem.Group{name}: {info.buffer_count} buffer{'s' * (info.buffer_count != 1)}>"

    @property
    def handle(self) -> int:
        """The ``gpumem_group`` of the C interface."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the group was closed."""
        return self._closed

    @property
    def buffers(self) -> Tuple[Buffer, ...]:
        """Its buffers, in the order in which they were made."""
        return tuple(buffer for buffer in list(self._members.values()) if not buffer.closed)

    def info(self, tag: Optional[str] = None) -> GroupInfo:
        """Information about the group, or about its buffers with one tag."""
        return group_info(self._handle, tag)

    @property
    def name(self) -> str:
        """As given at creation."""
        return self.info().name


def group_info(handle: int, tag: Optional[str] = None) -> GroupInfo:
    return _infos.group_info(ask(c.gpumem_group_get_info, c.gpumem_group_info(), handle, encoded(tag, "tag")))


def _finisher(finalizing: Callable[[], bool], destroy: Callable[..., None], last: Any) -> Callable[[Group], None]:
    # The names of the module are gone at the end of the interpreter, but not what a function encloses.
    def finish(self: Group) -> None:
        """Destroys the group unless it was closed."""
        try:
            if self._closed or finalizing():
                return
        except AttributeError:
            return
        destroy(last.gpumem_group_destroy, self._handle)
    return finish


finalizer(Group, _finisher(sys.is_finalizing, destroy_quietly, c))
