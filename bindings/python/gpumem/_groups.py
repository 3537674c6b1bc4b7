# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Groups of buffers that sleep and wake as one."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Iterator, List, Optional, SupportsIndex, Tuple, Union

from . import _infos
from . import _library as c
from ._buffers import Buffer, change, plainly, put_to_sleep, wake_up
from ._calls import ask, create, encoded, locked
from ._codes import Content
from ._handles import Owner, expect_instance
from ._infos import GroupInfo
from ._sleeping import Call, prepare_desc, sleep_desc, wake_desc
from .errors import Busy

if TYPE_CHECKING:
    from ._instance import Instance
    from ._sleeping import Directory, Progress
    from ._stream import Event, Stream


class Group(Owner):
    """Buffers that sleep and wake as one.

    ``instance.group()`` makes it, and ``device.buffer(size, group=group, tag="weights")`` a buffer in it, which leaves it when it
    is closed. A call is for all buffers of the group, or for those with one ``tag``; if none has it, the call does nothing.
    """

    __slots__ = ("instance", "_changing", "_lock", "_members")
    _destroyed_by = "gpumem_group_destroy"
    _instead = "use the object itself"

    def __init__(self, instance: Instance, *, name: Optional[str] = None) -> None:
        self._closed = True
        expect_instance(instance)
        desc = c.gpumem_group_desc(name=encoded(name))
        self._lock, self._changing = threading.RLock(), False
        locked.add(self)
        # By their handles, in the order in which they were made.
        self._members: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
        self.instance = instance
        self._own(create(c.gpumem_group_create, c.gpumem_group_destroy, instance.handle, desc))

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
            size = 0 if desc.bytes_per_second else sum(buffer._last_info().size for buffer in buffers)
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
            if not self._closed:
                self._idle()
                self._end()

    # ---- what it knows ----

    def _about(self, info: GroupInfo) -> str:
        return f"{info.buffer_count} buffer{'s' * (info.buffer_count != 1)}"

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
