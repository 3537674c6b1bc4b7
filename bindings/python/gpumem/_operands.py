# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operands of copies: memory and views of gpumem, arrays of other libraries, anything with a buffer, and addresses."""

from __future__ import annotations

import ctypes
import numbers
from ctypes import POINTER, c_char_p, c_int, c_ssize_t, c_void_p, py_object
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


def _cuda_array(owner: Any, interface: Any, writable: bool) -> Tuple[int, int, Any]:
    address, readonly = interface["data"]
    if readonly and writable:
        raise InvalidArgument(f"this {type(owner).__name__} object is read-only")
    if interface.get("mask") is not None:
        raise InvalidArgument(f"this {type(owner).__name__} object has a mask; pass its data, and copy the mask by itself")
    size = int(interface["typestr"][2:])
    strides = interface.get("strides")
    expected: List[int] = []
    for length in reversed(interface["shape"]):
        expected.insert(0, size)
        size *= length
    if strides is not None and tuple(strides) != tuple(expected):
        raise InvalidArgument(f"this {type(owner).__name__} object is not contiguous")
    return address or 0, size, owner


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
