# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls of the library: error details, checks of numbers, callbacks, and what finalizers leave over."""

from __future__ import annotations

import atexit
import collections
import ctypes
import itertools
import sys
import threading
import time
from operator import index
from typing import Any, Callable, Optional

from . import _library as c
from ._codes import NativeDomain
from ._results import known
from .errors import STATUS_CLASSES, Error, InternalError, InvalidArgument

# Structs to pass as the last parameter. Popping and appending are atomic, so each is used by one call at a time, even if
# a signal handler or finalizer makes a call in between.
_details = []


def status_error(status, detail):
    """The exception for a failed call, from its gpumem_error."""
    return STATUS_CLASSES.get(status, InternalError)(
        text(detail.message), code=status, function=text(detail.function),
        native_domain=known(NativeDomain, detail.native_domain), native_code=detail.native_code,
        native_name=text(detail.native_name), entry_point=text(detail.entry_point))


def call(function, *arguments):
    """Calls a function of the library. Returns its status, which is 0 or a note; a failure raises its exception."""
    try:
        detail = _details.pop()
    except IndexError:
        detail = c.gpumem_error()
    status = function(*arguments, detail)
    error = status_error(status, detail) if status < 0 else None
    _details.append(detail)
    if error is not None:
        raise error
    return status


def ask(function, struct, *arguments):
    """Calls a function that fills a struct, and returns the struct."""
    call(function, *arguments, struct)
    return struct


def text(value):
    return value.decode("utf-8", "replace")


def encoded(name):
    """A name for the C interface; None stays None."""
    return None if name is None else name.encode("utf-8")


# ctypes would truncate a number silently. These are hot, so each is one call.
def u64(value, what):
    value = index(value)
    return value if 0 <= value < 1 << 64 else _refuse(value, what, 0, (1 << 64) - 1)


def u32(value, what):
    value = index(value)
    return value if 0 <= value < 1 << 32 else _refuse(value, what, 0, (1 << 32) - 1)


def i32(value, what):
    value = index(value)
    return value if -1 << 31 <= value < 1 << 31 else _refuse(value, what, -1 << 31, (1 << 31) - 1)


def _refuse(value, what, low, high):
    raise InvalidArgument(f"{what} is {value}; it must be between {low} and {high}")


def nanoseconds(timeout):
    """A timeout in seconds as nanoseconds; None waits without limit."""
    if timeout is None:
        return c.GPUMEM_TIMEOUT_INFINITE
    if not timeout >= 0:
        raise InvalidArgument(f"timeout is {timeout}; it must be 0 or more seconds, or None")
    return min(int(timeout * 1e9), c.GPUMEM_TIMEOUT_INFINITE) if timeout < 1e10 else c.GPUMEM_TIMEOUT_INFINITE


# ---- what finalizers leave over ----

# A finalizer can run anywhere: also inside a function that the library calls, where nothing can be destroyed, or before
# work that uses the memory was observed complete. Whatever could not be destroyed is tried again when something is
# created or an instance is closed. Each entry is a function that returns whether it succeeded.
leftovers = collections.deque()
# Threads on which the library is calling a function.
calling_back = set()

GONE = (c.GPUMEM_ERROR_STALE_HANDLE, c.GPUMEM_ERROR_CLOSED)
_LATER = (c.GPUMEM_ERROR_BUSY, c.GPUMEM_ERROR_INVALID_STATE)


def destroy_quietly(destroy, handle, keep=None):
    """Destroys for a finalizer, now or later; ``keep`` is kept alive until then. Failures are not reported, because
    nobody could act on them."""
    if calling_back and threading.get_ident() in calling_back or destroy(handle, None) in _LATER:
        leftovers.append(lambda keep=keep: destroy(handle, None) not in _LATER)


def sweep():
    """Tries once more to destroy each leftover."""
    if calling_back and threading.get_ident() in calling_back:
        return
    for _ in range(len(leftovers)):
        try:
            done = leftovers.popleft()
        except IndexError:  # another thread was faster
            return
        if not done():
            leftovers.append(done)


# ---- functions that the library calls ----

class Pending:
    """Functions that are enqueued in streams, each by the number that is passed as its user data."""

    def __init__(self):
        self.entries = {}
        self.numbers = itertools.count(1)

    def add(self, device, function):
        number = next(self.numbers)
        self.entries[number] = device, function
        return number

    def forget(self, instance):
        """Drops the functions of a closed instance, which will not run any more."""
        for number, (device, _) in list(self.entries.items()):
            if device.instance is instance:
                self.entries.pop(number, None)

    def wait(self, seconds):
        """Waits while functions can still run: after the end of the interpreter they must not be called."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not any(_can_run(device) for device, _ in list(self.entries.values())):
                return
            time.sleep(0.001)


def _can_run(device):
    try:
        return not device.info().lost
    except Error:  # closed, or inherited by a forked child
        return False


pending = Pending()
_EXIT_SECONDS = 5


# No module has a name for this type.
(_UnraisableHookArgs,) = (cls for cls in tuple.__subclasses__() if cls.__name__ == "UnraisableHookArgs")


def report_unraisable(function, sys=sys, arguments=_UnraisableHookArgs):
    """Passes the current exception to sys.unraisablehook, with the user's function as its object."""
    sys.unraisablehook(arguments((*sys.exc_info(), "Exception ignored in a function called by gpumem", function)))


# The functions below have everything they need as defaults, because a module's names are gone at the end of the
# interpreter.
def _run(number, kernel=None, entries=pending.entries, threads=calling_back, ident=threading.get_ident,
         report=report_unraisable):
    entry = entries.get(number)
    if entry is None:
        return
    thread, function = ident(), entry[1]
    threads.add(thread)
    try:
        if kernel is None:
            function()
        else:
            function(kernel)
    except BaseException:  # there is no caller to raise it to
        report(function)
    finally:
        threads.discard(thread)
        entries.pop(number, None)


def _run_host_function(number, run=_run):
    run(number)


def _run_kernel(kernel, number, run=_run):
    run(number, kernel)


host_function = c.gpumem_host_function(_run_host_function)
kernel_function = c.gpumem_host_kernel_function(_run_kernel)

_log_lock = threading.Lock()
_log_function = [None]


def _log(_, level, message, current=_log_function, threads=calling_back, ident=threading.get_ident,
         report=report_unraisable):
    function, thread = current[0], ident()
    if function is None:
        return
    outermost = thread not in threads
    threads.add(thread)
    try:
        function(level, message.decode("utf-8", "replace"))
    except BaseException:
        report(function)
    finally:
        if outermost:
            threads.discard(thread)


_log_callback = c.gpumem_log_function(_log)

# They are never freed, because a thread of the library may be about to call one.
for _callback in (host_function, kernel_function, _log_callback):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def set_log_function(function: Optional[Callable[[int, str], Any]], level: int = c.GPUMEM_LOG_WARNING) -> None:
    """Sets the function that receives log messages, for the whole process; None for no function.

    ``function(level, message)`` may be called on any thread and must not call gpumem. ``level`` is the least important
    :class:`LogLevel` to deliver. An exception goes to ``sys.unraisablehook``.
    """
    if function is not None and not callable(function):
        raise TypeError("the log function must be callable or None")
    with _log_lock:
        raw = c.gpumem_log_function() if function is None else _log_callback
        call(c.gpumem_log_set_function, raw, None, i32(level, "level"))
        _log_function[0] = function


@atexit.register
def _at_exit():
    """Makes sure that the library does not call into the interpreter after its end. It makes no driver call."""
    if pending.entries:
        pending.wait(_EXIT_SECONDS)
    if _log_function[0] is not None:
        set_log_function(None)
