# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where the libraries of the adapters are."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import c_void_p
from pathlib import Path
from typing import Optional

from .. import _library
from ..errors import LibraryNotFound


# What path() takes for the functions of C that other packages of Python call.
# GPUMEM_PYTHON_LIBRARY | a file | that of the package, or beside the library | `libgpumem-python.so`: [CuPy](cupy-numba.md),
# [DLPack](arrow-dlpack.md#compiled-consumers)
PYTHON = "libgpumem-python.so", "GPUMEM_PYTHON_LIBRARY"


class _Where(ctypes.Structure):
    """Dl_info."""
    _fields_ = [("file", ctypes.c_char_p), ("base", c_void_p), ("symbol", ctypes.c_char_p), ("address", c_void_p)]


def path(name: str, variable: str) -> str:
    """The file that an environment variable names, or the one in this package, or the one that belongs to the library of gpumem,
    installed or in its build folder. It loads that library, which a plug-in then finds by its name."""
    _library.load()
    named = os.environ.get(variable)
    if named:
        return named
    where, self = _Where(), ctypes.CDLL(None)
    self.dladdr.argtypes = [c_void_p, ctypes.POINTER(_Where)]
    self.dladdr(ctypes.cast(_library.gpumem_version, c_void_p), where)
    beside = Path(os.fsdecode(where.file)).resolve().parent
    # The library that `gpumem trace record` names lies in the folder of the plug-ins.
    places = [Path(__file__).resolve().parent / name, beside / "gpumem" / name, beside / name, beside.parent / "adapters" / name]
    for place in places:
        if place.exists():
            return str(place)
    raise LibraryNotFound(f"there is no {name}, which is installed with the library of gpumem: looked for " + ", ".join(map(str, places)) +
                          f"; set the environment variable {variable} to the file")


def load(file: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(file)
    except OSError as problem:
        raise LibraryNotFound(f"{file} cannot be loaded: {problem}") from None


def require_lock() -> None:
    """Functions of C that other packages of Python call count references and rename capsules under the lock of the interpreter."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise LibraryNotFound("this interpreter runs without its lock, which the plug-in for Python needs; set the environment variable "
                              "PYTHON_GIL to 1, or use a Python that is not free-threaded")


def python() -> Optional[ctypes.CDLL]:
    """The plug-in with functions of C that other packages of Python call, or None if there is none."""
    require_lock()
    try:
        file = path(*PYTHON)
    except LibraryNotFound:
        return None
    return load(file)
