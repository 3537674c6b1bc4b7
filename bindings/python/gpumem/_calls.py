# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls of the library: error details, checks of numbers, callbacks, and what finalizers leave over."""

from __future__ import annotations

import atexit
import collections
import ctypes
import functools
import itertools
import operator
import os
import sys
import threading
import time
import weakref
from ctypes import c_int32, c_uint64, c_void_p
from operator import index
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, NoReturn, Optional, Set, SupportsIndex, Tuple, Union

from . import _library as c
from ._codes import LogLevel, NativeDomain
from ._enums import code, known
from ._words import in_python, report_in_python
from .errors import STATUS_CLASSES, Error, InternalError, InvalidArgument

if TYPE_CHECKING:
    from ._instance import Device, Instance
    from ._stream import Queue

    Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]

# Structs to pass as the last parameter. Popping and appending are atomic, so each is used by one call at a time, even if
# a signal handler or finalizer makes a call in between.
_details: List[Any] = []


# A thing of which another process gets a handle.
BY_EXPORT = '; give another process what export() returns, with the start method "spawn" of multiprocessing'


def status_error(status: int, detail: Any) -> Error:
    """The exception for a failed call, from its gpumem_error."""
    more = BY_EXPORT if status == c.GPUMEM_ERROR_FORKED else ""
    return STATUS_CLASSES.get(status, InternalError)(
        in_python(text(detail.message)) + more, code=status, function=text(detail.function),
        native_domain=known(NativeDomain, detail.native_domain), native_code=detail.native_code,
        native_name=text(detail.native_name), entry_point=text(detail.entry_point))


def call(function: Callable[..., int], *arguments: Any) -> int:
    """Calls a function of the library. Returns its status, which is 0 or a note; a failure raises its exception."""
    try:
        detail = _details.pop()
    except IndexError:
        detail = c.gpumem_error()
    status = function(*arguments, detail)
    error = status_error(status, detail) if status < 0 else None
    _details.append(detail)
    if error is not None:
        try:
            raise error
        finally:
            del error  # or the exception would refer to itself, and keep the operands until the next garbage collection
    return status


# After this, the collector does not look into an object, as it does not look into numpy's arrays: what the object refers to is
# not finalized before it.
untrack = ctypes.pythonapi.PyObject_GC_UnTrack
untrack.argtypes, untrack.restype = (ctypes.py_object,), None

# Objects with a lock of their own.
locked: weakref.WeakSet[Any] = weakref.WeakSet()


class Made(c_void_p):
    """The handle of an object of the library, which the library writes here. The object is destroyed when nothing refers to this
    any more, unless the ``value`` was taken out: a signal handler may raise as the call returns, or at any line after it."""

    __slots__ = ("destroy", "keep")

    def __init__(self, destroy: Callable[..., int], keep: Any) -> None:
        self.destroy, self.keep = destroy, keep

    @property
    def handle(self) -> int:
        return self.value or 0


def create(function: Callable[..., int], destroy: Callable[..., int], *arguments: Any, keep: Any = None) -> Made:
    """Calls a function that creates an object. Who has taken the handle over sets the ``value`` to None."""
    if leftovers:
        sweep()
    made = Made(destroy, keep)
    with_room(call, function, *arguments, made)
    return made


def with_room(make: Callable[..., int], *arguments: Any) -> int:
    """Makes a call that allocates; once more if memory was short, and work had kept some that is complete."""
    try:
        return make(*arguments)
    except Error as problem:
        if not made_room(problem.code):
            raise with_kept(problem)
    try:
        return make(*arguments)
    except Error as problem:
        raise with_kept(problem)


def ask(function: Callable[..., int], struct: Any, *arguments: Any) -> Any:
    """Calls a function that fills a struct, and returns the struct."""
    call(function, *arguments, struct)
    return struct


def number(function: Callable[..., int], *arguments: Any, kind: Any = c_uint64) -> int:
    """Calls a function that writes a number, or an address if ``kind`` is c_void_p, and returns that."""
    found = kind()
    call(function, *arguments, found)
    return found.value or 0


def new_descriptor(function: Callable[..., int], *arguments: Any) -> int:
    """Calls a function that makes a file descriptor."""
    fd = c_int32(-1)
    try:
        call(function, *arguments, fd)
        return fd.value
    except BaseException:  # a signal handler raised as the call returned
        if fd.value >= 0:
            os.close(fd.value)
        raise


def text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def encoded_path(path: Optional[Path], what: str) -> Optional[bytes]:
    """A path for the C interface, as Python's own functions take it; None stays None."""
    if path is None:
        return None
    try:
        found = os.fsencode(path)
    except TypeError:
        raise TypeError(f"{what} must be a str, bytes, an os.PathLike or None, not a {type(path).__name__}") from None
    except UnicodeEncodeError:
        raise _not_utf8(path, what) from None
    if b"\0" in found:
        raise InvalidArgument(f"{what} is {path!r}; it must have no zero character")
    return found


def _not_utf8(value: Any, what: str) -> InvalidArgument:
    return InvalidArgument(f"{what} is {value!r}; it must have no surrogates, which UTF-8 does not have")


def encoded(name: Optional[str], what: str = "name") -> Optional[bytes]:
    """A name for the C interface; None stays None."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str or None, not a {type(name).__name__}")
    if "\0" in name:
        raise InvalidArgument(f"{what} is {name!r}; it must have no zero character")
    try:
        return name.encode("utf-8")
    except UnicodeEncodeError:
        raise _not_utf8(name, what) from None


# ctypes would truncate a number silently. These are hot, so each is one call.
def u64(value: SupportsIndex, what: str) -> int:
    try:
        number = index(value)
    except TypeError:
        _refuse_type(value, what)
    return number if 0 <= number < 1 << 64 else _refuse(number, what, 0, (1 << 64) - 1)


def size64(value: SupportsIndex, what: str = "size") -> int:
    """A size of memory. The library refuses the numbers of u64 that are none, with a message of its own."""
    try:
        number = index(value)
    except TypeError:
        _refuse_type(value, what)
    return number if 0 <= number < 1 << 64 else _refuse(number, what, 1, (1 << 63) - 1)


def u32(value: SupportsIndex, what: str) -> int:
    try:
        number = index(value)
    except TypeError:
        _refuse_type(value, what)
    return number if 0 <= number < 1 << 32 else _refuse(number, what, 0, (1 << 32) - 1)


def i32(value: SupportsIndex, what: str) -> int:
    try:
        number = index(value)
    except TypeError:
        _refuse_type(value, what)
    return number if -1 << 31 <= number < 1 << 31 else _refuse(number, what, -1 << 31, (1 << 31) - 1)


def _refuse(value: int, what: str, low: int, high: int) -> NoReturn:
    raise InvalidArgument(f"{what} is {value}; it must be between {low} and {high}")


def _refuse_type(value: object, what: str) -> NoReturn:
    raise TypeError(f"{what} must be an int, not a {type(value).__name__}") from None


def nanoseconds(timeout: Optional[float], what: str = "timeout") -> int:
    """A timeout in seconds as nanoseconds; None waits without limit."""
    if timeout is None:
        return _INFINITE
    try:
        valid = bool(timeout >= 0)
    except (TypeError, ValueError):  # of an array
        raise TypeError(f"{what} must be a number of seconds or None, not a {type(timeout).__name__}") from None
    if not valid:
        raise InvalidArgument(f"{what} is {timeout}; it must be 0 or more seconds, or None")
    return min(int(timeout * 1e9), _INFINITE) if timeout < 1e10 else _INFINITE


_INFINITE: int = c.GPUMEM_TIMEOUT_INFINITE


class Unique:
    """An object that owns something of the library. A copy would free it a second time."""

    __slots__ = ()
    _instead = "use the object itself"
    _elsewhere = ""

    def _refuse_copy(self, done: str, elsewhere: str = "") -> NoReturn:
        raise TypeError(f"a gpumem.{type(self).__name__} cannot be {done}; {self._instead}{elsewhere}")

    def __copy__(self) -> NoReturn:
        self._refuse_copy("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse_copy("copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse_copy("pickled", self._elsewhere)


def leave(thing: Any, close: Callable[[], Any], problem: Optional[BaseException]) -> None:
    """Closes at the end of a with block. The exception of the block stays; if closing fails too, it says so in a note."""
    try:
        close()
    except Exception as second:
        if problem is None:
            raise
        if hasattr(problem, "add_note"):  # from Python 3.11 on
            problem.add_note(f"{thing!r} could not be closed: {type(second).__name__}: {second}")


# ---- what finalizers leave over ----

# A finalizer can run anywhere: also inside a function that the library calls, where nothing can be destroyed, or before
# work that uses the memory was observed complete. Whatever could not be destroyed is tried again when something is
# created or an instance is closed. Each entry is a function that returns whether it succeeded, or an object whose finalizer
# has not ended: see `finalizer`.
leftovers: Deque[Any] = collections.deque()
# Functions that the library is calling: references to a Calling each. One goes at the latest with the frame that has it, whatever
# a signal handler raises.
calling_back: Set[weakref.ref[Calling]] = set()


class Calling:
    """A function that the library is calling on a thread, until ``end``."""

    __slots__ = ("thread", "__weakref__")

    def __init__(self, entries: Any = calling_back, ident: Callable[[], int] = threading.get_ident, ref: Any = weakref.ref) -> None:
        self.thread = ident()
        entries.add(ref(self, entries.discard))

    def end(self) -> None:
        self.thread = 0


def _called_back() -> bool:
    """Whether the library is calling a function on this thread, where nothing can be destroyed."""
    thread = threading.get_ident()
    return any(getattr(entry(), "thread", 0) == thread for entry in calling_back.copy())


# Work queues of streams with work whose operands are kept. They live until the work was observed complete, even if nothing
# else refers to them.
active: Set[Queue] = set()

_SHORT = (c.GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, c.GPUMEM_ERROR_OUT_OF_HOST_MEMORY, c.GPUMEM_ERROR_LIMIT_EXCEEDED)


def made_room(status: Optional[int]) -> bool:
    """Whether a call that failed should be made again: memory was short, and a stream is idle that had kept some."""
    if status not in _SHORT or calling_back and _called_back():
        return False
    if not any([queue.uses and queue.poll() for queue in active.copy()]):
        return False
    sweep()
    return True


def with_kept(problem: Error) -> Error:
    """Says, if memory is short, that streams may keep some."""
    if problem.code in _SHORT and any(queue.uses for queue in active.copy()):
        problem.message += "; memory that was dropped while work in streams uses it waits for that: synchronize them"
        problem.args = (problem.message,)
    return problem


GONE = (c.GPUMEM_ERROR_STALE_HANDLE, c.GPUMEM_ERROR_CLOSED)
_LATER = (c.GPUMEM_ERROR_BUSY, c.GPUMEM_ERROR_INVALID_STATE)


def destroy_quietly(destroy: Callable[..., int], handle: Optional[int], keep: Any = None) -> None:
    """Destroys for a finalizer, now or later; ``keep`` is kept alive until then. Failures are not reported, because
    nobody could act on them."""
    if calling_back and _called_back() or destroy(handle, None) in _LATER:
        leftovers.append(lambda keep=keep: destroy(handle, None) not in _LATER)


def sweep() -> None:
    """Tries once more to destroy each leftover."""
    if calling_back and _called_back():
        return
    for _ in range(len(leftovers)):
        try:
            done = leftovers[0]
        except IndexError:  # another thread was faster
            return
        if not callable(done):
            done._finish
            continue
        try:
            leftovers.remove(done)
            if done():
                continue
        except ValueError:
            continue  # another thread was faster
        except BaseException:  # a signal handler raised, perhaps before it was removed
            if done not in leftovers:
                leftovers.append(done)
            raise
        leftovers.append(done)


def finalizer(cls: Any, finish: Callable[[Any], None]) -> None:
    """Lets ``finish`` run when an object of a class is dropped.

    A signal handler may raise at the entry of any function of Python, and what a finalizer had to do would be lost. So
    ``__del__`` is one of C: it puts the object into the leftovers, by one property, and runs ``finish``, by the other. That
    must do no harm if it runs once more.
    """
    def end(thing: Any, remove: Callable[[Any], None] = leftovers.remove, append: Callable[[Any], None] = leftovers.append) -> None:
        try:
            try:
                remove(thing)
            except ValueError:  # a sweep in another thread was faster
                return
            finish(thing)
        except BaseException:
            append(thing)
            raise
    cls._dropped, cls._finish = property(leftovers.append), property(end)
    # This type of functools is written in C, and binds as a method does.
    cls.__del__ = functools.lru_cache(maxsize=0)(operator.attrgetter("_dropped", "_finish"))
    cls.__del__.__name__, cls.__del__.__qualname__ = "__del__", f"{cls.__name__}.__del__"  # type: ignore[attr-defined]


def _made_finisher(finalizing: Callable[[], bool], destroy: Callable[..., None]) -> Callable[[Made], None]:
    # The names of the module are gone at the end of the interpreter, but not what a function encloses.
    def finish(made: Made) -> None:
        if made.value and not finalizing():
            destroy(made.destroy, made.value, made.keep)
    return finish


finalizer(Made, _made_finisher(sys.is_finalizing, destroy_quietly))


# ---- functions that the library calls ----

class Pending:
    """Functions that are enqueued in streams, each by the number that is passed as its user data."""

    def __init__(self) -> None:
        self.entries: Dict[int, Tuple[Device, Callable[..., Any]]] = {}
        self.numbers = itertools.count(1)

    def add(self, device: Device, function: Callable[..., Any]) -> int:
        number = next(self.numbers)
        self.entries[number] = device, function
        return number

    def forget(self, instance: Instance) -> None:
        """Drops the functions of a closed instance, which will not run any more."""
        for number, (device, _) in list(self.entries.items()):
            if device.instance is instance:
                self.entries.pop(number, None)

    def wait(self, seconds: float) -> None:
        """Waits while functions can still run: after the end of the interpreter they must not be called."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not any(_can_run(device) for device, _ in list(self.entries.values())):
                return
            time.sleep(0.001)


def _can_run(device: Device) -> bool:
    try:
        return not device.info().lost
    except Error:  # closed, or inherited by a forked child
        return False


pending = Pending()
_EXIT_SECONDS: float = 5


# No module has a name for this type.
(_UnraisableHookArgs,) = (cls for cls in tuple.__subclasses__() if cls.__name__ == "UnraisableHookArgs")


def report_unraisable(function: Any, sys: Any = sys, arguments: Any = _UnraisableHookArgs) -> None:
    """Passes the current exception to sys.unraisablehook, with the user's function as its object."""
    sys.unraisablehook(arguments((*sys.exc_info(), "Exception ignored in a function called by gpumem", function)))


# The functions below have everything they need as defaults, because a module's names are gone at the end of the
# interpreter.
def _run(number: int, kernel: Any = None, entries: Any = pending.entries, begin: Callable[[], Calling] = Calling,
         report: Callable[[Any], None] = report_unraisable) -> None:
    entry = entries.get(number)
    if entry is None:
        return
    calling, function = begin(), entry[1]
    try:
        if kernel is None:
            function()
        else:
            function(kernel)
    except BaseException:  # there is no caller to raise it to
        report(function)
    finally:
        calling.end()
        entries.pop(number, None)


def _run_host_function(number: int, run: Any = _run) -> None:
    run(number)


def _run_kernel(kernel: Any, number: int, run: Any = _run) -> None:
    run(number, kernel)


def lasting(kind: str, function: Callable[..., Any]) -> Any:
    """A function as the library calls it. It is never freed, because a thread of the library may be about to call it."""
    callback = getattr(c, kind)(function)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
    return callback


host_function = lasting("gpumem_host_function", _run_host_function)
kernel_function = lasting("gpumem_host_kernel_function", _run_kernel)

_log_lock = threading.Lock()
_log_function: List[Optional[Callable[[int, str], Any]]] = [None]


def _log(_: Any, level: int, message: bytes, current: Any = _log_function, begin: Callable[[], Calling] = Calling,
         report: Callable[[Any], None] = report_unraisable,
         translate: Callable[[str], str] = report_in_python, known: Any = known, levels: Any = LogLevel) -> None:
    function = current[0]
    if function is None:
        return
    calling = begin()
    try:
        function(known(levels, level), translate(message.decode("utf-8", "replace")))
    except BaseException:
        report(function)
    finally:
        calling.end()


def _after_fork() -> None:
    """Makes the locks of a child anew, because a thread that it does not have may hold one."""
    global _log_lock
    _log_lock = threading.Lock()
    for owner in list(locked):
        owner._lock = threading.RLock()
        if hasattr(owner, "_changing"):
            owner._changing = False


os.register_at_fork(after_in_child=_after_fork)

_log_callback = lasting("gpumem_log_function", _log)


def set_log_function(function: Optional[Callable[[LogLevel, str], Any]],
                     level: Union[LogLevel, int, str] = "warning") -> None:
    """Sets the function that receives log messages, for the whole process; None for no function.

    ``function(level, message)`` may be called on any thread and must not call gpumem. ``level`` is the least important
    :class:`LogLevel` to deliver: "error", "warning", "info" or "debug". An exception goes to ``sys.unraisablehook``.
    """
    if function is not None and not callable(function):
        raise TypeError("the log function must be callable or None")
    with _log_lock:
        raw = c.gpumem_log_function() if function is None else _log_callback
        call(c.gpumem_log_set_function, raw, None, code(LogLevel, level, "level"))
        _log_function[0] = function  # type: ignore[assignment]


@atexit.register
def _at_exit() -> None:
    """Makes sure that the library does not call into the interpreter after its end. It makes no driver call."""
    if pending.entries:
        pending.wait(_EXIT_SECONDS)
    if _log_function[0] is not None:
        set_log_function(None)
