# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls that put buffers to sleep and wake them: their options, and the functions of the user that they call."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, SupportsIndex, Union

from . import _library as c
from ._calls import _EXIT_SECONDS, Calling, encoded, encoded_path, lasting, report_unraisable, u64
from ._codes import Content
from ._enums import code, expect, truth
from ._waits import on_main_thread, started
from .errors import Busy, Cancelled, Error, InvalidArgument, InvalidState

if TYPE_CHECKING:
    from ._buffers import Buffer
    from ._calls import Path
    from ._stream import Event, Stream

    Directory = Path
    Progress = Callable[[int, int], object]
    BeforeSleep = Callable[[Buffer], object]
    AfterWake = Callable[[Buffer, int], object]

_ident = threading.get_ident
# Ctrl-C is answered within a tenth of a second. So long may undoing take before it goes on alone.
_GRACE = 0.05
_LOOK = 0.02


# ---- options ----

def sleep_desc(content: Union[Content, str, int], directory: Optional[Directory], tag: Optional[str],
               stream: Optional[Stream], event: Optional[Event], idle: bool) -> Any:
    from ._stream import Event, Stream
    desc = c.gpumem_sleep_desc(content=code(Content, content, "content"), directory=encoded_path(directory, "directory"),
                               tag=encoded(tag, "tag"), flags=c.GPUMEM_SLEEP_IDLE if truth(idle, "idle") else 0)
    if stream is not None:
        expect(Stream, stream, "stream")
        desc.stream = stream.handle
    if event is not None:
        expect(Event, event, "event")
        desc.event = event.handle
    return desc


def wake_desc(keep: Union[SupportsIndex, str], tag: Optional[str]) -> Any:
    if isinstance(keep, str) and keep != "all":
        raise InvalidArgument(f'keep is {keep!r}; it must be a number of bytes or "all"')
    size = (1 << 64) - 1 if isinstance(keep, str) else u64(keep, "keep")
    return c.gpumem_wake_desc(keep=size, tag=encoded(tag, "tag"))


def prepare_desc(content: Union[Content, str, int], directory: Optional[Directory], tag: Optional[str],
                 bytes_per_second: int) -> Any:
    return c.gpumem_prepare_desc(content=code(Content, content, "content"), directory=encoded_path(directory, "directory"),
                                 tag=encoded(tag, "tag"), bytes_per_second=u64(bytes_per_second, "bytes_per_second"))


# ---- calls ----

class _Request:
    """A function to run on the thread that made the call, which waits for another one to make it."""

    __slots__ = ("function", "arguments", "answer", "begun", "done")

    def __init__(self, function: Callable[..., int], arguments: Any) -> None:
        self.function, self.arguments, self.begun = function, arguments, False
        self.answer: Optional[int] = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        self.begun = True
        self.answer = self.function(*self.arguments)
        _let_go(self.done)


def _let_go(lock: threading.Lock) -> None:
    try:
        lock.release()
    except RuntimeError:  # it is free
        pass


class Call:
    """One call of the library that puts buffers to sleep or wakes them, or copies a file.

    On the main thread a call that may take long, or that calls functions of the user, is made by another thread. Then Ctrl-C
    cancels it, and the functions of the user still run on the main thread. A signal handler that raises as the library calls a
    function there would be lost: ctypes has no caller to raise it to.
    """

    __slots__ = ("progress", "problem", "cancelled", "_patient", "_aside", "_request", "_turn", "_returned", "_left", "__weakref__")

    def __init__(self, progress: Optional[Progress] = None, patient: bool = False) -> None:
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be callable or None, not a {type(progress).__name__}")
        self.progress = progress
        self.problem: Optional[BaseException] = None  # the first exception of a function of the user
        self.cancelled = False
        self._patient = patient  # Ctrl-C ends the wait only when the call has returned
        self._aside = False
        self._request: Optional[_Request] = None
        self._turn = threading.Lock()  # free when there is a request, or the call has returned
        self._turn.acquire()
        self._returned = False
        self._left = False  # Ctrl-C has ended the wait

    def make(self, run: Callable[[], None], desc: Any, long: bool) -> None:
        """Makes a call with a description. An exception of a function of the user is raised again here."""
        failure: Optional[Error] = None
        main = on_main_thread()
        self._aside = main and (long or self.progress is not None)
        try:
            if main and not self._aside:
                run()  # which calls no function
            else:
                desc.progress = progress_function
                (self._make_aside if self._aside else self._here)(run)
        except Error as error:
            failure = error
        except BaseException:
            self.problem = None  # see `_calls.call`
            raise
        problem, self.problem = self.problem, None
        try:
            if failure is not None:
                if problem is None:
                    raise failure
                if not isinstance(failure, (Busy, Cancelled)):  # undoing failed as well
                    raise failure from problem
            if problem is not None:
                raise problem
        finally:
            del problem, failure  # see `_calls.call`

    def _here(self, run: Callable[[], None]) -> None:
        thread = _ident()
        former = _current.get(thread)
        _current[thread] = self
        _running.add(self)
        try:
            run()
        finally:
            _running.discard(self)
            if former is None:
                del _current[thread]
            else:
                _current[thread] = former

    def _make_aside(self, run: Callable[[], None]) -> None:
        outcome: List[BaseException] = []

        def work() -> None:
            try:
                self._here(run)
            except BaseException as problem:
                outcome.append(problem)
            finally:
                self._returned = True
                _let_go(self._turn)
                if self._left:
                    outcome.clear()  # see `_calls.call`
        try:
            if not started(work):
                self._aside = False
                self._here(run)
                return
            _in_callback(self._serve)
        except BaseException:
            self.cancelled = self._left = True
            outcome.clear()
            raise
        if outcome:
            try:
                raise outcome.pop()
            finally:
                del outcome

    def _serve(self) -> None:
        """Runs the functions of the user until the call has returned."""
        interruption: Optional[BaseException] = None
        end: Optional[float] = None
        while True:
            try:
                self._run_requests(end)
                break
            except BaseException as problem:  # a signal handler raised
                if interruption is not None:
                    del interruption  # see `_calls.call`
                    raise
                interruption, self.cancelled = problem, True
                request = self._request
                if request is not None and request.begun:  # it gets no other answer
                    _let_go(request.done)
                if not self._patient:
                    end = time.monotonic() + _GRACE
        if interruption is not None:
            try:
                raise interruption
            finally:
                del interruption

    def serves(self) -> bool:
        """Whether a function of the user runs on the main thread for this call, which another thread makes."""
        request = self._request
        return self._aside and not self._left and request is not None and request.begun and request.answer is None

    def _run_requests(self, end: Optional[float]) -> None:
        while not self._returned:
            request = self._request
            if request is not None and not request.begun:
                request.run()
            elif not self._turn.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
                return

    # The library calls these, on the thread that makes the call.

    def _ask(self, function: Callable[..., int], *arguments: Any) -> Optional[int]:
        """Runs a function on the thread that made the call. None if Ctrl-C has ended the wait there."""
        if not self._aside:
            return function(*arguments)
        if self._left:
            return None
        request = self._request = _Request(function, arguments)
        _let_go(self._turn)
        while not request.done.acquire(timeout=_LOOK):
            if self._left:
                break
        self._request = None
        return request.answer

    def heard(self, done: int, total: int) -> int:
        if self.cancelled or self.problem is not None:
            return 1
        if self.progress is None:
            return 0
        return 0 if self._ask(self._guarded, self.progress, done, total) == 0 else 1

    def before_sleep(self, buffer: Buffer) -> int:
        if self.cancelled:
            return 1
        return 0 if self._ask(self._guarded, buffer._before_sleep) == 0 else 1

    def after_wake(self, buffer: Buffer, generation: int) -> None:
        if self._ask(_unraised, self, buffer, generation) is None:
            _unraised(self, buffer, generation)

    def _guarded(self, function: Callable[..., object], *arguments: Any) -> int:
        """0 if the function returns; 1 if it raises, which cancels the call."""
        try:
            _in_callback(function, *arguments)
            return 0
        except BaseException as problem:
            if self.problem is None:
                self.problem = problem
            return 1


def _unraised(call: Optional[Call], buffer: Buffer, generation: int) -> int:
    """Runs after_wake, which can cancel nothing any more. Ctrl-C in it is still raised by the call."""
    function = buffer._callbacks[1]
    try:
        buffer.info()  # what it knew is out of date
        if function is not None:
            _in_callback(function, buffer, generation)
    except Exception:
        report_unraisable(function)
    except BaseException as problem:
        if call is None or call._left:
            report_unraisable(function)
        elif call.problem is None:
            call.problem = problem
    return 0


def _in_callback(function: Callable[..., object], *arguments: Any) -> None:
    """Runs a function while nothing may be destroyed on this thread: the library may be waiting for it."""
    calling = Calling()
    try:
        function(*arguments)
    finally:
        calling.end()


# The call that each thread makes.
_current: Dict[int, Call] = {}
_running: Set[Call] = set()


def check_close() -> None:
    """Refuses to close an instance in a function of the user, as the library does on the thread that makes the call."""
    if _running and on_main_thread() and any(call.serves() for call in _running.copy()):
        raise InvalidState("an instance cannot be closed in a callback of the library; close it when that has returned",
                           function="gpumem_instance_close")


# Buffers with callbacks, by the number that is passed as user data.
called: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
numbers = itertools.count(1)


def _failed(problem: BaseException, function: Any) -> int:
    """Takes what a signal handler raised in one of the functions below, or a function of the user that code outside this
    package has called."""
    call = _current.get(_ident())
    if call is None:
        report_unraisable(function)
    elif call.problem is None:
        call.problem = problem
    return 1


def _progress(_: Any, done: int, total: int) -> int:
    try:
        call = _current.get(_ident())
        return 0 if call is None else call.heard(done, total)
    except BaseException as problem:
        return _failed(problem, None)


def _before_sleep(number: int, _: Any) -> int:
    buffer = called.get(number)
    if buffer is None:
        return 0
    try:
        call = _current.get(_ident())
        if call is not None:
            return call.before_sleep(buffer)
        _in_callback(buffer._before_sleep)
        return 0
    except BaseException as problem:
        return _failed(problem, buffer._callbacks[0])


def _after_wake(number: int, _: Any, generation: int) -> None:
    buffer = called.get(number)
    if buffer is None:
        return
    try:
        call = _current.get(_ident())
        if call is None:
            _unraised(None, buffer, generation)
        else:
            call.after_wake(buffer, generation)
    except BaseException as problem:
        _failed(problem, buffer._callbacks[1])


progress_function = lasting("gpumem_progress_function", _progress)
before_sleep_function = lasting("gpumem_before_sleep_function", _before_sleep)
after_wake_function = lasting("gpumem_after_wake_function", _after_wake)

os.register_at_fork(after_in_child=_running.clear)


@atexit.register
def _at_exit() -> None:
    """Cancels what Ctrl-C has left behind, and waits for it: the library must not call into an interpreter that has ended."""
    end = time.monotonic() + _EXIT_SECONDS
    while _running and time.monotonic() < end:
        for call in list(_running):
            call.cancelled = True
        time.sleep(0.001)
    if not _running:
        for buffer in list(called.values()):
            if not (buffer.closed or buffer._changing):
                c.gpumem_buffer_set_callbacks(buffer.handle, None, None)
