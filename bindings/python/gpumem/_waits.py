# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Waits that answer Ctrl-C. A signal handler of Python runs on the main thread, between two calls. So the main thread
waits in slices, or lets another thread make the call. Other threads simply wait."""

from __future__ import annotations

import functools
import os
import threading
from _thread import start_new_thread
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional

from . import _library as c
from ._calls import Made, call, create, nanoseconds
from ._codes import Backend

if TYPE_CHECKING:
    from ._instance import Device

# Bytes from which on a call that copies, fills or locks pages is worth a thread; it takes milliseconds.
LARGE = 16 << 20
_SLICE = 50_000_000
# The library polls a GPU and pauses the longer the more time has passed since the call. So each call is short, and for the
# first moments there is no pause at all.
_SLICE_OF_A_GPU = 1_000_000
_SPIN = 200_000
_NOT_READY: int = c.GPUMEM_NOT_READY
_CUDA = Backend.CUDA
_ident = threading.get_ident
_main = [threading.main_thread().ident]


def _after_fork() -> None:
    _main[0] = threading.main_thread().ident


os.register_at_fork(after_in_child=_after_fork)


def on_main_thread() -> bool:
    return _ident() == _main[0]


def pieces(timeout: Optional[float]) -> Iterator[int]:
    """Nanoseconds for each call of a wait that other threads or processes end."""
    limit, start = nanoseconds(timeout), monotonic_ns()

    def each() -> Iterator[int]:
        left = limit
        while True:
            yield min(left, _SLICE) if on_main_thread() else left
            if timeout is not None:
                left = limit - (monotonic_ns() - start)
                if left <= 0:
                    return
    return each()


def wait(device: Device, function: Callable[..., int], handle: int, timeout: Optional[float]) -> bool:
    """Calls a synchronize function. Returns whether the work is complete."""
    limit = nanoseconds(timeout)
    if _ident() != _main[0] or limit == 0:
        return call(function, handle, limit) != _NOT_READY
    start, polled = monotonic_ns(), device.instance.backend is _CUDA
    piece = 0 if polled else _SLICE
    while call(function, handle, piece if piece < limit else limit) == _NOT_READY:
        passed = monotonic_ns() - start
        if polled and passed >= _SPIN:
            piece = _SLICE_OF_A_GPU
        if timeout is not None:
            if passed >= limit:
                return False
            piece = min(piece, limit - passed)
    return True


def started(function: Callable[[], Any]) -> bool:
    """Runs a function on a new thread. Returns whether there was one to be had."""
    # Not by threading.Thread: if a signal handler raises in its start(), the thread may be there and never run the function.
    try:
        start_new_thread(function, ())
        return True
    except RuntimeError as problem:
        if problem.__traceback__ is not None and problem.__traceback__.tb_next is not None:
            raise  # of a signal handler
        return False


def aside(function: Callable[[], Any]) -> Any:
    """Calls a function on another thread. If Ctrl-C ends the wait for it, it goes on there, and keeps what it uses."""
    outcome: List[Any] = [None, None]
    work = [function]
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        mine = work.pop()
        try:
            outcome[0] = mine()
        except BaseException as problem:
            outcome[1] = problem
        finally:
            del mine  # the caller may close what it uses as soon as the lock is released
            done.release()
    if not started(run):
        return function()
    del function  # which a traceback would keep
    done.acquire()  # a signal handler may raise here
    problem, outcome[1] = outcome[1], None
    if problem is not None:
        try:
            raise problem
        finally:
            del problem  # see `call`
    return outcome.pop(0)


def create_aside(function: Callable[..., int], destroy: Callable[..., int], *arguments: Any, keep: Any = None) -> Made:
    """As `create`, on another thread. If Ctrl-C comes first, the object is destroyed as soon as it is there. ``keep`` is
    kept alive until then."""
    return aside(functools.partial(create, function, destroy, *arguments, keep=keep))  # type: ignore[no-any-return]
