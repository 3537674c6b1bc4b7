# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The C interface of gpumem: every constant, struct and function of `_native`, which declares them, by its C name.

Nothing is loaded when this module is imported. The library is found and checked when a function is first used, as an
attribute of this module (``_library.gpumem_version()``), or by :func:`load`:

1. the file named by the environment variable ``GPUMEM_LIBRARY``, and then no other;
2. ``libgpumem.so.0`` where the system's dynamic loader finds it.

The structs have the names and fields of the headers, which describe them. A struct is made with its ``struct_size``
filled in. This layer checks nothing: handles and addresses are plain integers, and what is passed as a pointer must live
for as long as the header says. Every call releases the interpreter lock.
"""

import ctypes
import os
import threading
from ctypes import c_uint32

from . import _native
from ._native import GPUMEM_SUCCESS, GPUMEM_VERSION, GPUMEM_VERSION_MAJOR, GPUMEM_VERSION_MINOR, PROTOTYPES, gpumem_table
from .errors import LibraryNotFound, VersionMismatch

# All that is declared, as attributes of this module.
globals().update({name: value for name, value in vars(_native).items() if name.lower().startswith("gpumem_")})


def GPUMEM_MAKE_VERSION(major, minor, patch):
    """A version as one number that grows with it."""
    return major << 22 | minor << 12 | patch


# The same functions without argument types, for hot calls whose arguments were all made beforehand, by byref() or
# c_void_p.from_param(): ctypes then converts nothing.
PREPARED = {"memory_create_prepared": "gpumem_memory_create"}

SONAME = "libgpumem.so.0"
_lock = threading.Lock()
_loaded = None


def _open(path, source):
    try:
        return ctypes.CDLL(path)
    except OSError as problem:
        raise LibraryNotFound(f"the gpumem library cannot be loaded: {problem} ({source})") from None


def _check(library, path):
    """Makes sure that the library speaks this interface, before anything else of it is called."""
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


def _declare(library, path):
    for name, (result, arguments) in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise VersionMismatch(f"{path} lacks the function {name}: it is too old for this package") from None
        function.restype, function.argtypes = result, arguments


def load():
    """Loads the library if that has not been done, and returns it as a ``ctypes.CDLL`` with all functions declared.

    A failure is not remembered: the next call looks again.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            named = os.environ.get("GPUMEM_LIBRARY")
            if named:
                path, source = named, "named by the environment variable GPUMEM_LIBRARY"
            else:
                path, source = SONAME, ("searched by the system's dynamic loader; install the library, or name its file "
                                        "in the environment variable GPUMEM_LIBRARY")
            library = _open(path, source)
            _check(library, path)
            _declare(library, path)
            globals().update({name: getattr(library, name) for name in PROTOTYPES})
            globals().update({name: library[function] for name, function in PREPARED.items()})
            _loaded = library
    return _loaded


def table():
    """The addresses of all functions, as a gpumem_table, for code that calls them by pointer."""
    found = gpumem_table()
    if load().gpumem_table_get(GPUMEM_VERSION, found, None) != GPUMEM_SUCCESS:
        raise VersionMismatch("the library has no table of functions for this version")
    return found


def __getattr__(name):
    """The functions become attributes of this module when the first one is used."""
    if name in PROTOTYPES or name in PREPARED:
        load()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
