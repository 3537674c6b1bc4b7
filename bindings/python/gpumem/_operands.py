# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operands of copies: memory and views of gpumem, arrays of other libraries, anything with a buffer, and addresses."""

from __future__ import annotations

import ctypes
import functools
import numbers
import re
from ctypes import POINTER, c_char_p, c_int, c_ssize_t, c_void_p, py_object
from operator import index
from typing import Any, Callable, List, Optional, Tuple, Union

from ._calls import Unique, finalizer, u64
from ._dlpack import from_dlpack
from .errors import InvalidArgument


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", c_void_p), ("obj", py_object), ("len", c_ssize_t), ("itemsize", c_ssize_t),
                ("readonly", c_int), ("ndim", c_int), ("format", c_char_p), ("shape", POINTER(c_ssize_t)),
                ("strides", POINTER(c_ssize_t)), ("suboffsets", POINTER(c_ssize_t)), ("internal", c_void_p)]


_PYBUF_WRITABLE = 0x1
_PYBUF_ANY_CONTIGUOUS = 0x80 | 0x10 | 0x08
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = (py_object, POINTER(_PyBuffer), c_int), c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = (POINTER(_PyBuffer),), None


class Buffer(Unique):
    """The bytes of an object with the buffer protocol. While this is alive, the object cannot free or move them."""

    __slots__ = ("_buffer", "address", "size", "readonly")

    def __init__(self, owner: Any, writable: bool, what: str = "the operand") -> None:
        buffer = self._buffer = _PyBuffer()  # without an object, for which the release does nothing
        try:
            _get_buffer(owner, buffer, _PYBUF_ANY_CONTIGUOUS | (_PYBUF_WRITABLE if writable else 0))
        except TypeError:
            raise TypeError(f"{what} must be memory, an object with a buffer or an address, not a {type(owner).__name__}"
                            ) from None
        except (BufferError, ValueError) as problem:
            raise InvalidArgument(_fault(owner, writable) or str(problem)) from None
        self.address, self.size, self.readonly = buffer.buf or 0, buffer.len, bool(buffer.readonly)


def _finisher(release: Callable[[Any], None]) -> Callable[[Buffer], None]:
    # The names of the module are gone at the end of the interpreter, but not what a function encloses.
    def finish(self: Buffer) -> None:
        try:
            release(self._buffer)
        except AttributeError:  # there is no buffer
            pass
    return finish


finalizer(Buffer, _finisher(_release_buffer))

def _fault(owner: Any, writable: bool) -> str:
    """Why an object does not give its bytes."""
    try:
        view = memoryview(owner)
    except (TypeError, ValueError, BufferError):
        return ""
    if writable and view.readonly:
        return _read_only(owner)
    return "" if view.contiguous else _scattered(owner, writable)


def _read_only(owner: Any) -> str:
    return f"this {type(owner).__name__} object is read-only{'; use a bytearray' if isinstance(owner, bytes) else ''}"


def _scattered(owner: Any, writable: bool) -> str:
    instead = ("pass one that is, such as numpy.empty(x.shape, x.dtype), and assign that to it" if writable else
               "copy it first, for example with numpy.ascontiguousarray()")
    return f"this {type(owner).__name__} object is not contiguous; {instead}"


class Strange:
    """An array of a type that the buffer protocol does not have, such as numpy's dates."""

    __slots__ = ("owner", "address", "size", "readonly")

    def __init__(self, owner: Any, writable: bool) -> None:
        flags = owner.flags
        if not (flags.c_contiguous or flags.f_contiguous):
            raise InvalidArgument(_scattered(owner, writable))
        if writable and not flags.writeable:
            raise InvalidArgument(_read_only(owner))
        self.owner, self.address, self.size = owner, owner.__array_interface__["data"][0], owner.nbytes
        self.readonly = not flags.writeable


def host_buffer(owner: Any, writable: bool, what: str = "the operand") -> Union[Buffer, Strange]:
    """The bytes of an array or buffer. InvalidArgument if they are not contiguous, or read-only."""
    dtype = getattr(owner, "dtype", None)
    if getattr(dtype, "hasobject", False):
        raise TypeError("a device cannot use an array of Python objects")
    if getattr(dtype, "kind", "") in ("m", "M"):
        return Strange(owner, writable)
    return Buffer(owner, writable, what)


# The bytes of a type string, which numpy's dates continue with their unit.
_ITEM = re.compile(r"[<>|=]?[A-Za-z](\d+)(?:\[\w+\])?")


@functools.lru_cache(maxsize=256)
def _item_bytes(typestr: str) -> int:
    match = _ITEM.fullmatch(typestr)
    return int(match[1]) if match else 0


def _malformed(owner: Any, name: str, value: Any, wanted: str) -> str:
    return f"the __cuda_array_interface__ of this {type(owner).__name__} object has {name} {value!r}; it must be {wanted}"


def _numbers(owner: Any, name: str, value: Any, wanted: str) -> List[int]:
    if isinstance(value, (tuple, list)):
        try:
            return [*map(index, value)]
        except TypeError:
            pass
    raise TypeError(_malformed(owner, name, value, wanted))


def _cuda_array(owner: Any, interface: Any, writable: bool) -> Tuple[int, int, Any]:
    if not isinstance(interface, dict):
        raise TypeError(f"the __cuda_array_interface__ of this {type(owner).__name__} object must be a dict, not a "
                        f"{type(interface).__name__}")
    get = interface.get
    data, typestr, strides = get("data"), get("typestr"), get("strides")
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise TypeError(_malformed(owner, "data", data, _DATA))
    address, readonly = data
    if address.__class__ is not int or readonly.__class__ is not bool:
        # None is the address of no elements.
        if not (address is None or hasattr(address, "__index__")) or not (isinstance(readonly, int) or type(readonly).__name__ in _BOOLS):
            raise TypeError(_malformed(owner, "data", data, _DATA))
        address = index(address or 0)
    if not 0 <= address < 1 << 64:
        raise InvalidArgument(_malformed(owner, "data", data, _DATA))
    if readonly and writable:
        raise InvalidArgument(f"this {type(owner).__name__} object is read-only")
    if get("mask") is not None:
        raise InvalidArgument(f"this {type(owner).__name__} object has a mask; pass its data, and copy the mask by itself")
    if not isinstance(typestr, str):
        raise TypeError(_malformed(owner, "typestr", typestr, _TYPESTR))
    size = _item_bytes(typestr)
    if not size:
        raise InvalidArgument(_malformed(owner, "typestr", typestr, _TYPESTR))
    expected: List[int] = []
    for length in _numbers(owner, "shape", get("shape"), _SHAPE)[::-1]:
        if length < 0:
            raise InvalidArgument(_malformed(owner, "shape", get("shape"), _SHAPE))
        expected.append(size)
        size *= length
    if address + size > 1 << 64:
        raise InvalidArgument(_malformed(owner, "shape", get("shape"), "of an array that fits into the addresses"))
    if strides is not None:
        given = _numbers(owner, "strides", strides, _STRIDES)
        if len(given) != len(expected):
            raise InvalidArgument(_malformed(owner, "strides", strides, _STRIDES))
        if given != expected[::-1]:
            raise InvalidArgument(f"this {type(owner).__name__} object is not contiguous")
    return address, size, owner


_DATA = "an address, which is an int from 0 to 2**64 - 1, and a bool"
_SHAPE = "a tuple of ints that are 0 or more"
_STRIDES = "None, or a tuple with an int for each dimension"
_TYPESTR = "a text such as '<f4'"
_BOOLS = "bool_", "bool"  # of numpy


def check_room(what: str, room: Optional[int], size: int, remedy: str = "") -> None:
    if room is not None and size > room:
        raise InvalidArgument(f"the {what} has {room} bytes, but {size} are needed{remedy}")


def operand(value: Any, writable: bool, what: str = "the operand") -> Tuple[int, Optional[int], Any]:
    """(address, size or None if unknown, object to keep alive or None) of an operand, which messages call `what`."""
    if isinstance(value, int):
        return u64(value, "the address"), None, None
    found = getattr(value, "_operand", None)  # Memory and View
    if found is not None:
        return found(writable)  # type: ignore[no-any-return]
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _cuda_array(value, interface, writable)
    if isinstance(value, numbers.Integral):
        return u64(value, "the address"), None, None
    if value is None:
        return 0, None, None
    try:
        buffer = host_buffer(value, writable, what)
    except TypeError:
        if not hasattr(value, "__dlpack__") or getattr(getattr(value, "dtype", None), "hasobject", False):
            raise
        return from_dlpack(value)._operand(writable)  # a tensor of PyTorch, for example
    return buffer.address, buffer.size, buffer
