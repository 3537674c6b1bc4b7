# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The C interface of gpumem: every constant, struct and function under its C name. `_native` declares them.

Importing this module loads nothing. The library is found and checked when a function is first used, as an attribute of
this module (``_library.gpumem_version()``), or by :func:`load`:

1. If the environment variable ``GPUMEM_LIBRARY`` names a file, only that file is tried.
2. Otherwise, if this package brings the library, as the wheel does, that one is taken.
3. Otherwise the system's dynamic loader searches for ``libgpumem.so.0``.

The headers describe the structs and their fields. A new struct is zeroed, with its ``struct_size`` set. This layer checks
nothing: handles and addresses are plain integers, and memory that is passed by its address must live for as long as the
header says. Every call releases the interpreter lock.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import c_uint32
from typing import Any, Optional

from . import _native
from ._native import GPUMEM_VERSION, GPUMEM_VERSION_MAJOR, GPUMEM_VERSION_MINOR, PROTOTYPES, gpumem_table
from .errors import LibraryNotFound, VersionMismatch

# Every declaration is an attribute of this module.
globals().update({name: value for name, value in vars(_native).items() if name.lower().startswith("gpumem_")})


def GPUMEM_MAKE_VERSION(major: int, minor: int, patch: int) -> int:
    """A version as one number; newer versions are larger."""
    return major << 22 | minor << 12 | patch


def GPUMEM_FAILED(status: int) -> bool:
    """Whether a status is a failure. Success and notes are not."""
    return status < 0


# The same functions without argument types, so that ctypes converts nothing. They are for hot calls whose arguments were
# all prepared by byref() or c_void_p.from_param().
PREPARED = {"memory_create_prepared": "gpumem_memory_create"}

SONAME = "libgpumem.so.0"
_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that the child does not have may hold the other one


os.register_at_fork(after_in_child=_after_fork)


def _open(path: str, source: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as problem:
        raise LibraryNotFound(f"the gpumem library cannot be loaded: {problem} ({source})") from None


def _check(library: ctypes.CDLL, path: str) -> None:
    """Checks that the library has this interface, before any other function of it is called."""
    try:
        version = library.gpumem_version
    except AttributeError:
        raise LibraryNotFound(f"{path} is not the gpumem library: it has no function gpumem_version") from None
    version.restype, version.argtypes = c_uint32, ()
    found = version()
    major, minor, patch = found >> 22, found >> 12 & 0x3ff, found & 0xfff
    if major != GPUMEM_VERSION_MAJOR or minor < GPUMEM_VERSION_MINOR:
        raise VersionMismatch(
            f"{path} has version {major}.{minor}.{patch}; this package needs version {GPUMEM_VERSION_MAJOR}.x with x at "
            f"least {GPUMEM_VERSION_MINOR}")


def _declare(library: ctypes.CDLL, path: str) -> None:
    for name, (result, arguments) in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise VersionMismatch(f"{path} lacks the function {name}: it is too old for this package") from None
        function.restype, function.argtypes = result, arguments


def load() -> ctypes.CDLL:
    """Loads the library unless it is loaded, and returns it as a ``ctypes.CDLL`` with every function declared.

    A failure is not remembered: the next call tries again.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            # GPUMEM_LIBRARY | a file | that of the package, or the system's | the library, for
            # [Python](python.md#installation), [C#](csharp.md#loading-the-library), [Go](go.md#loading-the-library) and
            # [Rust](rust.md#loading) where they load it, and for a program that `gpumem trace record` starts
            named, own = os.environ.get("GPUMEM_LIBRARY"), os.path.join(os.path.dirname(os.path.abspath(__file__)), SONAME)
            if named:
                path, source = named, "named by the environment variable GPUMEM_LIBRARY"
            elif os.path.exists(own):
                path, source = own, "part of this package; the environment variable GPUMEM_LIBRARY can name another"
            else:
                path, source = SONAME, ("not found by the system's dynamic loader; install the library, or set the "
                                        "environment variable GPUMEM_LIBRARY to its file")
            library = _open(path, source)
            _check(library, path)
            _declare(library, path)
            globals().update({name: getattr(library, name) for name in PROTOTYPES})
            globals().update({name: library[function] for name, function in PREPARED.items()})
            _loaded = library
    return _loaded


def table() -> gpumem_table:
    """The addresses of all functions as a gpumem_table, for code that calls them through pointers."""
    found = gpumem_table()
    if GPUMEM_FAILED(load().gpumem_table_get(GPUMEM_VERSION, found, None)):
        raise VersionMismatch("the library has no table of functions for this version")
    return found


def __getattr__(name: str) -> Any:
    """Loads the library at the first use of a function, which makes every function an attribute of this module."""
    if name in PROTOTYPES or name in PREPARED:
        load()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
