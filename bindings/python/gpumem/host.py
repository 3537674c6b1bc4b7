# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions that only the host backend has: stand-ins for kernels, and ways to bring a program into situations that are
rare on a GPU. On the cuda backend they raise :class:`gpumem.Unsupported`; :func:`set_current_device` needs no backend."""

from __future__ import annotations

import gc
import weakref
from ctypes import c_int32, c_ubyte, c_void_p
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple, Union

from . import _library as c
from ._calls import Unique, call, i32, kernel_function, number, u32, u64
from ._codes import Access, Kind
from ._enums import code
from ._operands import operand
from ._stream import enqueue_function

if TYPE_CHECKING:
    from ._instance import Device, Instance
    from ._stream import Stream

__all__ = ["Kernel", "launch", "native_stream_create", "native_stream_destroy", "set_capturing", "lose", "fail_step",
           "foreign_alloc", "foreign_free", "foreign_peer_access", "set_current_device"]


class Kernel(Unique):
    """A running stand-in for a kernel; valid only while its function runs."""

    __slots__ = ("_handle", "_views")

    def __init__(self, handle: Optional[int] = None) -> None:
        if handle is None:
            raise TypeError("the function that launch() runs gets a Kernel")
        self._handle = handle
        self._views: List[Tuple[memoryview, weakref.ref[Any]]] = []

    def view(self, address: Any, size: Optional[int] = None, access: Union[Access, str, int] = "readwrite") -> memoryview:
        """Opens memory with the rights of the device, as a memoryview. It and its slices are valid until the function returns.

        ``address`` is a device address, or a Memory or View. A view that the device has no right to loses the device, as
        a faulting kernel does, and raises DeviceLost.
        """
        start, (place, length, _) = getattr(address, "device_pointer", None), operand(address, False, "address")
        if start is None:
            start = place
        if size is None:
            size = length
        if size is None:
            raise TypeError("the size is missing: an address needs one")
        rights = code(Access, access, "access")
        found = number(c.gpumem_host_kernel_view, self._handle, start, u64(size, "size"), rights, kind=c_void_p)
        array = (c_ubyte * size).from_address(found)
        view = memoryview(array).cast("B")
        view = view if rights == Access.READWRITE else view.toreadonly()
        self._views.append((view, weakref.ref(array)))
        return view

    def _end(self) -> None:
        problem = None
        for view, array in self._views:
            # Slices use the same buffer, and only the collector knows them.
            buffers, views = gc.get_referents(view), [view]
            while views:
                try:
                    views.pop().release()
                except BufferError as found:  # something else made from it outlives the kernel
                    problem = found
                if not views and buffers and array() is not None:
                    views = [found for found in gc.get_referrers(*buffers) if isinstance(found, memoryview)]
                    buffers = []
        if problem is not None:
            raise problem


def launch(stream: Stream, function: Callable[..., Any], *arguments: Any) -> None:
    """Enqueues ``function(kernel, *arguments)``, which stands in for a kernel. An exception goes to
    ``sys.unraisablehook``."""
    if not callable(function):
        raise TypeError("the function must be callable")

    def run(handle: int) -> None:
        kernel = Kernel(handle)
        try:
            function(kernel, *arguments)
        finally:
            kernel._end()

    enqueue_function(stream, c.gpumem_host_launch, kernel_function, run)


def native_stream_create(device: Device) -> int:
    """Creates a native stream as other code would, to be wrapped with :meth:`gpumem.Stream.wrap`."""
    return number(c.gpumem_host_native_stream_create, device.handle, kind=c_void_p)


def native_stream_destroy(device: Device, native_stream: int) -> None:
    """Destroys a stream of :func:`native_stream_create`."""
    call(c.gpumem_host_native_stream_destroy, device.handle, u64(native_stream, "native_stream"))


def set_capturing(stream: Stream, capturing: bool) -> None:
    """Marks a stream as being captured into a graph by other code, or not."""
    call(c.gpumem_host_stream_set_capturing, stream.handle, u32(capturing, "capturing"))


def lose(device: Device) -> None:
    """Loses a device, as a faulting kernel does."""
    call(c.gpumem_host_device_lose, device.handle)


def fail_step(instance: Instance, step: int, repeat: bool = False) -> None:
    """Makes the ``step``-th step of the backend from now fail, and all later ones with ``repeat``; 0 switches it off."""
    call(c.gpumem_host_fail_step, instance.handle, u64(step, "step"), u32(repeat, "repeat"))


def foreign_alloc(device: Device, kind: Union[Kind, str, int], size: int) -> int:
    """Allocates memory as other code would through the driver."""
    return number(c.gpumem_host_foreign_alloc, device.handle, code(Kind, kind, "kind"), u64(size, "size"), kind=c_void_p)


def foreign_free(device: Device, pointer: int) -> None:
    """Frees memory of :func:`foreign_alloc`."""
    call(c.gpumem_host_foreign_free, device.handle, u64(pointer, "pointer"))


def foreign_peer_access(device: Device, peer: Device, enabled: bool) -> None:
    """Enables or disables peer access as other code of the process would."""
    call(c.gpumem_host_foreign_peer_access, device.handle, peer.handle, u32(enabled, "enabled"))


def set_current_device(ordinal: int) -> int:
    """Sets the current device of the calling thread, -1 for none, and returns the previous one."""
    return number(c.gpumem_host_set_current_device, i32(ordinal, "ordinal"), kind=c_int32)
