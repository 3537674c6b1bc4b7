# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How the objects call the library: the detail of an error, numbers that fit, callbacks, and what finalizers leave over."""

from __future__ import annotations

import atexit
import collections
import ctypes
import itertools
import operator
import sys
import threading
import time
from typing import Any, Callable, Optional

from . import _library as c
from .errors import STATUS_CLASSES, Error, InternalError, InvalidArgument

# Structs to pass as the last parameter. Popping and appending are atomic, so each is used by one call at a time, also
# when a signal handler or finalizer calls in between.
_details = []


def status_error(status, detail):
    """The exception for a failed call, from its gpumem_error."""
    return STATUS_CLASSES.get(status, InternalError)(
        text(detail.message), code=status, function=text(detail.function), native_domain=detail.native_domain,
        native_code=detail.native_code, native_name=text(detail.native_name), entry_point=text(detail.entry_point))


def call(function, *arguments):
    """Calls a function of the library with an error detail. Returns its status, which is 0 or a note."""
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


def _integer(value, low, high, what):
    # ctypes would cut the number without a word.
    value = operator.index(value)
    if not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}, which is not between {low} and {high}")
    return value


def u64(value, what):
    return _integer(value, 0, (1 << 64) - 1, what)


def u32(value, what):
    return _integer(value, 0, (1 << 32) - 1, what)


def i32(value, what):
    return _integer(value, -1 << 31, (1 << 31) - 1, what)


def nanoseconds(timeout):
    """A time limit in seconds as the C interface has it; None is without limit."""
    if timeout is None:
        return c.GPUMEM_TIMEOUT_INFINITE
    if not timeout >= 0:
        raise InvalidArgument(f"timeout is {timeout}, which is no time")
    return min(int(timeout * 1e9), c.GPUMEM_TIMEOUT_INFINITE) if timeout < 1e10 else c.GPUMEM_TIMEOUT_INFINITE


# ---- what finalizers leave over ----

# A finalizer may run anywhere, also while a function of the user is being called by the library, where nothing can be
# destroyed, or before work that uses the memory was observed complete. What could not be destroyed is tried again when
# something is created or an instance is closed. Each entry is a function that returns whether it is done.
leftovers = collections.deque()
# Threads on which the library is calling a function of the user.
calling_back = set()

GONE = (c.GPUMEM_ERROR_STALE_HANDLE, c.GPUMEM_ERROR_CLOSED)
_LATER = (c.GPUMEM_ERROR_BUSY, c.GPUMEM_ERROR_INVALID_STATE)


def destroy_quietly(destroy, handle, keep=None):
    """Destroys for a finalizer, now or later; ``keep`` lives until then. No failure is reported: nobody could act on it."""
    if calling_back and threading.get_ident() in calling_back or destroy(handle, None) in _LATER:
        leftovers.append(lambda keep=keep: destroy(handle, None) not in _LATER)


def sweep():
    """Tries once to get rid of each leftover."""
    if calling_back and threading.get_ident() in calling_back:
        return
    for _ in range(len(leftovers)):
        try:
            done = leftovers.popleft()
        except IndexError:  # another thread was faster
            return
        if not done():
            leftovers.append(done)


# ---- functions of the user that the library calls ----

class Pending:
    """Functions that are enqueued in streams, by the number that stands for each in the C interface."""

    def __init__(self):
        self.entries = {}
        self.numbers = itertools.count(1)

    def add(self, device, function):
        number = next(self.numbers)
        self.entries[number] = device, function
        return number

    def forget(self, instance):
        """Nothing of a closed instance will run any more."""
        for number, (device, _) in list(self.entries.items()):
            if device.instance is instance:
                self.entries.pop(number, None)

    def wait(self, seconds):
        """Waits at the end of the interpreter, which must not be called into afterwards, while functions can still run."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not any(_can_run(device) for device, _ in list(self.entries.values())):
                return
            time.sleep(0.001)


def _can_run(device):
    try:
        return not device.info().lost
    except Error:  # closed, or of the parent of this process
        return False


pending = Pending()
_EXIT_SECONDS = 5


# No module has a name for this type.
(_UnraisableHookArgs,) = (cls for cls in tuple.__subclasses__() if cls.__name__ == "UnraisableHookArgs")


def report_unraisable(function, sys=sys, arguments=_UnraisableHookArgs):
    """Hands the current exception to sys.unraisablehook, with the user's function as the object it came from."""
    sys.unraisablehook(arguments((*sys.exc_info(), "Exception ignored in a function called by gpumem", function)))


# The functions below have all they need as defaults, because the names of a module are gone when the interpreter ends.
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

# A thread of the library may be about to call one of these whatever the interpreter does.
for _callback in (host_function, kernel_function, _log_callback):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def set_log_function(function: Optional[Callable[[int, str], Any]], level: int = c.GPUMEM_LOG_WARNING) -> None:
    """Sets the function that receives the library's messages, for the whole process; None for none.

    ``function(level, message)`` may be called on any thread and must not call gpumem. What it raises goes to
    ``sys.unraisablehook``.
    """
    if function is not None and not callable(function):
        raise TypeError("the log function must be callable or None")
    with _log_lock:
        raw = c.gpumem_log_function() if function is None else _log_callback
        call(c.gpumem_log_set_function, raw, None, i32(level, "level"))
        _log_function[0] = function


@atexit.register
def _at_exit():
    """Makes sure that the library calls nothing of the interpreter after its end. Asks no driver."""
    if pending.entries:
        pending.wait(_EXIT_SECONDS)
    if _log_function[0] is not None:
        set_log_function(None)
