# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Element types as type strings of the array interface ("<f4"), with numpy or without."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any, Optional, Tuple

from .errors import InvalidArgument

_NATIVE = "<" if sys.byteorder == "little" else ">"
_NAMES = {"bool": "b1", "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8", "uint8": "u1", "uint16": "u2",
          "uint32": "u4", "uint64": "u8", "float16": "f2", "float32": "f4", "float64": "f8", "complex64": "c8",
          "complex128": "c16"}
_TYPESTR = re.compile(r"([<>|=]?)([biufcV])(\d+)")
# For memoryview.cast; other types become bytes.
_FORMATS = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
            "f4": "f", "f8": "d"}
# The kinds of a memoryview's elements, whose bytes it tells.
_FORMAT = re.compile(r"([@=<>!]?)(?:(?P<b>\?)|(?P<i>[hilqn])|(?P<u>[HILQN])|(?P<f>[efdg])|(?P<c>Z[fdg]))")
# DLPack's type codes.
_DL_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_DL_TYPES = "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c4 c8 c16".split()
_TYPES = *_DL_TYPES, "f16", "c32"  # numpy's longdouble has padding, and is no float of 128 bits
_DL_KINDS = {code: kind for kind, code in _DL_CODES.items()}
# Arrow's formats.
ARROW = {"i1": b"c", "u1": b"C", "i2": b"s", "u2": b"S", "i4": b"i", "u4": b"I", "i8": b"l", "u8": b"L", "f2": b"e",
         "f4": b"f", "f8": b"g"}
_FROM_ARROW = {code: kind for kind, code in ARROW.items()}


def unfold(dtype: Any) -> Tuple[Any, Tuple[int, ...]]:
    """(type, shape) of the elements of a type of numpy whose values are arrays, such as "(2,3)f4", which adds dimensions to an
    array; (the type, ()) of others."""
    shape: Tuple[int, ...] = ()
    while dtype.subdtype:
        dtype, inner = dtype.subdtype
        shape += inner
    return dtype, shape


def element_type(dtype: Any) -> Tuple[str, int, Any, Tuple[int, ...]]:
    """(type string, bytes, description of fields or None, dimensions that it adds) of a type as the user names it."""
    if dtype is None:
        return "|u1", 1, None, ()
    if isinstance(dtype, str):
        match = _TYPESTR.fullmatch(_NAMES.get(dtype, dtype))
        order, kind, size = match.groups() if match else ("", "", "0")
        if kind + size in _TYPES or kind == "V" and int(size):
            order = "|" if size == "1" or kind == "V" else order.replace("=", _NATIVE).replace("|", _NATIVE) or _NATIVE
            return f"{order}{kind}{size}", int(size), None, ()
    try:
        import numpy
    except ImportError:
        raise TypeError(f"{dtype!r} is not a known element type without numpy; use a text such as 'float32' or '<f4'"
                        ) from None
    found, shape = unfold(numpy.dtype(dtype))
    if found.hasobject:
        raise TypeError(f"elements of type {found} are Python objects, which a device cannot use")
    if not found.itemsize:
        raise InvalidArgument(f"elements of type {dtype!r} have no bytes; give the type a length, as 'S8' has")
    return found.str, found.itemsize, found.descr if found.fields else None, shape


def type_of(array: Any) -> Optional[str]:
    """Type string of the elements of an array or view; None if they are plain bytes, or have no type that is known."""
    found: Optional[str] = getattr(array, "typestr", None)
    interface = None if found else getattr(array, "__array_interface__", None) or getattr(array, "__cuda_array_interface__", None)
    if interface:
        found = interface["typestr"]
    elif found is None:
        try:
            with memoryview(array) as buffer:
                match, size = _FORMAT.fullmatch(buffer.format), buffer.itemsize
        except TypeError:
            return None
        if match:
            order = "|" if size == 1 else ">" if match[1] in (">", "!") else _NATIVE
            found = f"{order}{match.lastgroup}{size}"
    return None if found is None or found[1:] in ("i1", "u1") or found[1] in "SV" else found


def buffer_format(typestr: str) -> Optional[str]:
    """Format for memoryview.cast, or None if there is none for the type."""
    if typestr[0] not in "|" + _NATIVE:
        return None
    return _FORMATS.get(typestr[1:])


@functools.lru_cache(maxsize=None)  # there are few types
def to_dlpack(typestr: str) -> Tuple[int, int]:
    """(code, bits) of DLPack."""
    match = _TYPESTR.fullmatch(typestr)
    if not match or match[2] + match[3] not in _DL_TYPES or match[1] not in "|" + _NATIVE:
        raise BufferError(f"DLPack has no type for {typestr}; view the memory as another type, such as bytes")
    return _DL_CODES[match[2]], int(match[3]) * 8


@functools.lru_cache(maxsize=256)
def from_dlpack(code: int, bits: int, lanes: int) -> Tuple[str, int]:
    """(type string, bytes). Elements that numpy has no type for, such as bfloat16, become plain bytes."""
    size = bits // 8 * lanes
    if not bits or bits % 8 or lanes != 1:
        raise BufferError(f"elements of {bits} bits in {lanes} lanes cannot be imported")
    found = f"{_DL_KINDS.get(code)}{size}"
    if found not in _TYPES:
        return f"|V{size}", size
    return f"{'|' if size == 1 else _NATIVE}{found}", size


def to_arrow(typestr: str) -> bytes:
    """The format of Arrow."""
    found = ARROW.get(typestr[1:])
    if found is None or typestr[0] not in "|" + _NATIVE:
        raise BufferError(f"Arrow has no primitive type for {typestr}; view the memory as numbers of this machine")
    return found


def from_arrow(form: bytes) -> Tuple[str, int]:
    """(type string, bytes)"""
    found = _FROM_ARROW.get(form)
    if found is None:
        raise BufferError(f"arrays of the format {form.decode(errors='replace')!r} cannot be imported, only integers and floats "
                          "of 8 to 64 bits")
    size = int(found[1:])
    return f"{'|' if size == 1 else _NATIVE}{found}", size
