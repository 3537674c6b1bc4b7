# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Memory of every kind, and typed views that other libraries can use in place."""

from __future__ import annotations

import functools
import numbers
import operator
import os
import struct
import sys
import weakref
from ctypes import byref, c_ubyte
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Set, Tuple, Type, Union)

from . import _infos
from . import _library as c
from . import _types
from ._arrow import ArrowView
from ._calls import (BY_EXPORT, GONE, Made, Unique, active, ask, call, create, destroy_quietly, encoded, finalizer, i32,
                     leftovers, made_room, size64, status_error, sweep, u64, untrack, with_kept)
from ._codes import Access, Backend, ExportFlags, Kind, MemoryFlags, ShareWay
from ._dlpack import CPU, CUDA, CUDA_HOST, CUDA_MANAGED
from ._enums import code, flags
from ._handles import Scoped, expect_device
from ._infos import MemoryInfo
from ._known import RegionKnown
from ._managed import Managed
from ._operands import Buffer, Strange, host_buffer
from ._waits import LARGE, aside, create_aside, on_main_thread
from .errors import Busy, Error, InvalidArgument, StaleHandle, WrongKind

if TYPE_CHECKING:
    import numpy
    from typing_extensions import TypeAlias

    from ._instance import Device, Instance
    from ._share import ShareHandle
    from ._stream import Held, Queue, Stream

    # What holds memory: each view, each call of another thread, and each use in a stream that was not observed complete. Such a
    # reference is in the set of the memory, and takes itself out when what it refers to is gone, also if it was taken out before,
    # and another thread still looks at it. That, and to add, discard and copy, are each one step of C: a signal handler that raises
    # leaves nothing half done, and who looks through a copy meets no change.
    Hold: TypeAlias = Union["weakref.ref[View]", "weakref.ref[Use]", "weakref.ref[Held]"]
    Array: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"

    class ViewArray(numpy.ndarray[Any, numpy.dtype[Any]]):
        """What type checkers take an array over a view for. It is a plain array."""

        @property
        def base(self) -> View: ...  # type: ignore[override]

Shape = Union[int, Sequence[int]]

_DEVICE = int(Kind.DEVICE)
_WITH_FORMAT = 0x4  # PyBUF_FORMAT: the consumer wants to know the elements
_NOWHERE = 4096  # the address of no elements in place of 0, which numpy takes for an interface without data
_CHOICE = "device, pinned, managed"
_KINDS = {str(kind): int(kind) for kind in Kind}
# Writes kind, numa_node, size, alignment, require and prefer of gpumem_memory_desc at once.
_pack_desc = struct.Struct("=iiQQQQ").pack_into
_DESC_OFFSET: int = getattr(c, "gpumem_memory_desc").kind.offset


class _Creation:
    """Structs for a call of gpumem_memory_create, kept for the next one."""

    __slots__ = ("desc", "out", "detail", "desc_pointer", "out_pointer", "detail_pointer")

    def __init__(self) -> None:
        self.desc, self.out, self.detail = c.gpumem_memory_desc(), Made(c.gpumem_memory_destroy, None), c.gpumem_error()
        self.desc_pointer, self.out_pointer, self.detail_pointer = byref(self.desc), byref(self.out), byref(self.detail)


_creations: List[_Creation] = []


def _write(creation: _Creation, size: Any, kind: Any, alignment: Any, require: Any, prefer: Any, numa_node: Any) -> None:
    """Fills in the description from arguments that are not all plain numbers in range."""
    _pack_desc(creation.desc, _DESC_OFFSET, code(Kind, kind, "kind", _CHOICE), i32(numa_node, "numa_node"), size64(size),
               u64(alignment, "alignment"), flags(MemoryFlags, require, "require"), flags(MemoryFlags, prefer, "prefer"))


# How many forks lie between the first process and this one. Memory of a process before is not to be touched.
generation = [0]


def _after_fork() -> None:
    generation[0] += 1


os.register_at_fork(after_in_child=_after_fork)


def _check_process(instance: Instance) -> None:
    if instance._generation != generation[0]:
        instance.info()  # raises Forked


def queue_of(hold: Hold) -> Optional[Queue]:
    """The work queue of a use in a stream, or None for anything else that holds memory."""
    return getattr(hold(), "queue", None)


class Region(RegionKnown, Unique):
    """Addresses whose bytes can be copied and viewed: memory, a part of a range, or a buffer."""

    __slots__ = ()
    _instead = ("use the object itself, copy the bytes into other memory with copy_from(), or get them as bytes with "
                "copy_to()")
    _elsewhere = BY_EXPORT
    _no_access = "the CPU cannot access device memory; copy it to host memory with copy_to()"

    if TYPE_CHECKING:
        device: Device
        _info: Optional[MemoryInfo]
        _holds: Set[Hold]

        @property
        def closed(self) -> bool: ...

        def info(self) -> Any: ...

        def _dlpack_device(self, host: bool) -> Optional[Tuple[int, int]]: ...

    def _known(self) -> MemoryInfo:
        """Information that was asked for before, or now."""
        return self._info or self.info()

    def _queues(self) -> Set[Queue]:
        """The streams whose work in flight uses the memory."""
        return {queue for queue in map(queue_of, self._holds.copy()) if queue}

    def _lasting(self, operand: Any) -> Any:
        """What work in a stream keeps of an operand: this memory, or a view of it."""
        return operand

    def _viewed(self) -> bool:
        """Whether a view, or a call of another thread, holds the memory."""
        if all(map(queue_of, self._holds.copy())):
            return False
        self._sweep()
        return not all(map(queue_of, self._holds.copy()))

    @staticmethod
    def _sweep() -> None:
        """Before a refusal: what a finalizer left over may have a view, as the buffer of an operand does."""
        if leftovers:
            sweep()

    def _in_use(self) -> bool:
        """Whether anything holds the memory still."""
        if self._holds:
            self._sweep()
        return bool(self._holds)

    def _held(self, done: str, function: str) -> NoReturn:
        """Raises because of what holds the memory."""
        holds = self._holds.copy()
        if any(map(queue_of, holds)):
            raise Busy("work in a stream uses the memory and was not observed complete; synchronize the stream first",
                       function=function)
        if not any(isinstance(hold(), View) for hold in holds):  # a call that held it may have ended meanwhile
            raise BufferError(f"the memory cannot be {done} while a call copies or fills it")
        raise BufferError(f"the memory cannot be {done} while views of it are alive: arrays, memoryviews or tensors of other "
                          "libraries; drop them first, for example with del")

    def __int__(self) -> int:
        """The address for devices, or of host memory that has none for the CPU."""
        info = self.info() if self.closed else self._known()  # which says that it is closed
        return info.device_pointer or info.host_pointer or 0

    def _address(self) -> int:
        """The address by which copies know it."""
        info = self._known()
        return info.host_pointer or info.device_pointer or 0

    def _operand(self, _: bool) -> Tuple[int, int, Union[Region, View, Use]]:
        info = self._known()
        return info.host_pointer or info.device_pointer or 0, info.size, self

    def view(self, dtype: Any = None, shape: Optional[Shape] = None, *, offset: int = 0, order: str = "C") -> View:
        """A typed view of the memory or of a part of it; of bytes by default.

        ``dtype`` is anything that numpy accepts as one, or without numpy a text such as "float32" or "<f4". ``shape`` is
        a number or a tuple; without it the view has one dimension and reaches to the end. As in numpy, elements that are arrays,
        such as "(2,3)f4", add their dimensions.
        """
        return View._of(self, dtype, shape, offset, order)

    def buffer(self) -> memoryview:
        """A memoryview of the bytes of host memory."""
        return self.view().buffer()

    def numpy(self, dtype: Any = None, shape: Optional[Shape] = None, *, offset: int = 0, order: str = "C") -> ViewArray:
        """Host memory as a numpy array without a copy; its ``base`` is a view that keeps the memory alive. Raises
        BufferError for device memory."""
        return self.view(dtype, shape, offset=offset, order=order).numpy()

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        """``numpy.asarray(memory)`` is its bytes, without a copy."""
        return self.view().__array__(dtype, copy)

    def __buffer__(self, flags: int) -> memoryview:
        return self.buffer()

    def __bytes__(self) -> bytes:
        return bytes(self.buffer())

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule for another library; see :class:`View`."""
        return self.view().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.view().__dlpack_device__()

    def __arrow_c_device_array__(self, requested_schema: Any = None, **more: Any) -> Tuple[Any, Any]:
        """Its bytes as two capsules for another library; see :class:`View`."""
        return self.view().__arrow_c_device_array__(requested_schema, **more)

    def _place(self, stream: Optional[Stream]) -> Any:
        """What copies and fills: a stream, or the instance."""
        if stream is None:
            return self.device.instance
        if not hasattr(stream, "_queue"):
            raise TypeError(f"stream must be a gpumem.Stream or None, not a {type(stream).__name__}; Stream.wrap() wraps "
                            "others")
        return stream

    def copy_from(self, source: Any, size: Optional[int] = None, *, offset: int = 0,
                  stream: Optional[Stream] = None) -> None:
        """Copies bytes of any other operand into the memory, or enqueues the copy. See :meth:`Instance.copy`. An array in
        Fortran order raises InvalidArgument."""
        _check_order(source)
        self._place(stream).copy(At(self, offset), source, size)

    def copy_to(self, destination: Any, size: Optional[int] = None, *, offset: int = 0,
                stream: Optional[Stream] = None) -> None:
        """Copies bytes of the memory into any other operand, or enqueues the copy. See :meth:`Instance.copy`. An array in
        Fortran order raises InvalidArgument."""
        _check_order(destination, True)
        self._place(stream).copy(destination, At(self, offset), size)

    def export(self, *, way: Union[ShareWay, str, int] = "any", access: Union[Access, str, int, None] = None,
               flags: Union[ExportFlags, str, int] = 0, offset: int = 0) -> ShareHandle:
        """Exports the memory, so that other processes can import it. See :meth:`Instance.export`."""
        return self.device.instance.export(At(self, offset), way=way, access=access, flags=flags)

    def fill(self, value: int, *, value_size: int = 1, stream: Optional[Stream] = None) -> None:
        """Fills the whole memory with a number, or enqueues the fill. See :meth:`Instance.fill`."""
        self._place(stream).fill(self, value, value_size=value_size)


def _order_of(value: Any) -> Optional[str]:
    """The order of a view, memoryview or array of several dimensions: "C" or "F", or None if both or neither is right."""
    flags = getattr(value, "flags", value)
    rows, columns = getattr(flags, "c_contiguous", False), getattr(flags, "f_contiguous", False)
    return None if rows == columns else "C" if rows else "F"


def _check_order(operand: Any, writable: bool = False) -> None:
    """Fails for an array in Fortran order, whose elements would change their places."""
    if _order_of(operand) == "F":
        instead = "an array in C order, and assign that to it" if writable else "a copy in C order"
        raise InvalidArgument(f"this {type(operand).__name__} object is in Fortran order, but memory has the bytes of rows; pass "
                              f"its transpose, or {instead}")


class At:
    """The bytes of memory from an offset on. It is no view of them."""

    __slots__ = ("_memory", "_offset")

    def __init__(self, memory: Region, offset: int) -> None:
        self._memory, self._offset = memory, u64(offset, "offset")

    def _operand(self, writable: bool) -> Tuple[int, int, Any]:
        address, size, kept = self._memory._operand(writable)
        if self._offset > size:
            raise InvalidArgument(f"offset is {self._offset}, but the memory has {size} bytes")
        return address + self._offset, size - self._offset, kept


class Use:
    """Keeps the bytes of a buffer where they are while a call uses them, or the work that it enqueues. The buffer may sleep and
    shrink: the library waits for calls that have begun, and refuses those that come later. But nobody waits for a call that
    calls a function of the user, which may wait for the buffer."""

    __slots__ = ("memory", "calls_back", "__weakref__")

    def __init__(self, memory: Region) -> None:
        self.memory, self.calls_back = memory, False
        memory._holds.add(weakref.ref(self, memory._holds.discard))


class Memory(Region, Managed, Scoped):
    """One allocation, or existing memory that is page-locked in place.

    ``device.memory(size)`` allocates device memory, ``device.memory(size, "pinned")`` page-locked host memory, and
    ``device.memory(size, "managed")`` memory that moves to where it is used. ``device.register(array)`` page-locks existing
    memory.

    ``kind`` is a :class:`Kind` or its name. ``require`` are :class:`MemoryFlags`, or their names with "|" between them,
    without which the call fails. Those in ``prefer`` may be missing from :attr:`granted_flags`. The contents of fresh
    memory are indeterminate.

    The memory is freed by :meth:`close`, at the end of a ``with`` block, or when nothing refers to it any more: neither
    this object, nor a view of it, nor a copy in a stream that was not observed complete.
    """

    __slots__ = ("device", "_handle", "_open", "_gone", "_holds", "_info", "_source", "__weakref__")
    _release = None  # type: Optional[Callable[..., int]]  # instead of gpumem_memory_destroy

    if TYPE_CHECKING:
        _handle: int
        _open: bool
        _gone: bool
        _source: Any

    # Nothing is for keywords alone, because that costs time.
    def __init__(self, device: Device, size: int, kind: Union[Kind, str, int] = "device", alignment: int = 0,
                 require: Union[MemoryFlags, str, int] = 0, prefer: Union[MemoryFlags, str, int] = 0, numa_node: int = 0,
                 name: Optional[str] = None) -> None:
        # Nothing is set before the memory exists: that is how the finalizer knows.
        if leftovers:
            sweep()
        try:
            creation = _creations.pop()
        except IndexError:
            creation = _Creation()
        if kind.__class__ is str:
            try:
                kind = _KINDS[kind]  # type: ignore[index]
            except KeyError:
                pass  # written otherwise, or wrong
        try:
            _pack_desc(creation.desc, _DESC_OFFSET, kind, numa_node, size, alignment, require, prefer)
        except struct.error:
            _write(creation, size, kind, alignment, require, prefer, numa_node)
        if name is not None:
            creation.desc.name = encoded(name)
        try:
            if kind != _DEVICE and (operator.index(size) >= LARGE or active and _is_busy(device)) and on_main_thread():
                status = self._create_aside(creation, device)
            else:
                status = c.memory_create_prepared(device._pointer, creation.desc_pointer, creation.out_pointer,
                                                  creation.detail_pointer)
            if status == 0 or made_room(status) and (status := c.memory_create_prepared(
                    device._pointer, creation.desc_pointer, creation.out_pointer, creation.detail_pointer)) == 0:
                self.device, self._info, self._source = device, None, None
                self._holds: Set[Hold] = set()
                self._handle = creation.out.value  # type: ignore[assignment]
                creation.out.value = None
                # Missing once it is closed, and while a thread tries that: the one that deletes it, which is atomic.
                self._open = True
                if name is None:
                    _creations.append(creation)
                    return
        except BaseException:  # a signal handler raised as the call returned
            if creation.out:
                c.gpumem_memory_destroy(creation.out, None)
            creation = None  # type: ignore[assignment]  # its `out` frees the memory if a second one has raised before that
            expect_device(device)  # here, because that costs time
            raise
        error = status_error(status, creation.detail) if status < 0 else None
        creation.desc.name = None
        _creations.append(creation)
        if error is not None:
            raise with_kept(error)

    @staticmethod
    def _create_aside(creation: _Creation, device: Device) -> int:
        """The prepared call on another thread, because locking that many pages takes long. If Ctrl-C comes first, that thread
        is the last to have the creation, and the memory is freed as soon as it is there."""
        return aside(functools.partial(c.memory_create_prepared, device._pointer, creation.desc_pointer,  # type: ignore[no-any-return]
                                       creation.out_pointer, creation.detail_pointer))

    @classmethod
    def register(cls, device: Device, source: Any, size: Optional[int] = None, *,
                 require: Union[MemoryFlags, str, int] = 0, prefer: Union[MemoryFlags, str, int] = 0,
                 name: Optional[str] = None) -> Memory:
        """Page-locks existing memory, so that devices can use it; closing makes it pageable again.

        ``source`` is an array or any other object with a buffer, which is kept alive, or the address of memory that you
        keep mapped, with its ``size``. A read-only source needs ``require="read_only"``.
        """
        required = flags(MemoryFlags, require, "require")
        expect_device(device)
        source, address, size = _registered_source(source, size, required)
        desc = c.gpumem_register_desc(pointer=address, size=size64(size), require=required,
                                      prefer=flags(MemoryFlags, prefer, "prefer"), name=encoded(name))
        self = cls.__new__(cls)
        long = (size >= LARGE or _is_busy(device)) and on_main_thread()
        make = create_aside if long else create
        self._own(device, make(c.gpumem_memory_register, c.gpumem_memory_destroy, device._handle, desc, keep=source))
        return self

    def _own(self, device: Device, made: Made) -> None:
        self.device, self._info, self._source, self._holds, self._handle = device, None, made.keep, set(), made.handle
        made.value = None
        self._open = True

    def close(self) -> None:
        """Frees the memory, or makes registered memory pageable again. A second call does nothing.

        Raises BufferError while a view of it is alive (an array, a memoryview, a tensor of another library), or while
        a call copies or fills it; and Busy while work in a stream that uses it was not observed complete. The
        memory is then unchanged.
        """
        try:
            # Before the views are counted, so that a view in another thread is made before this or not at all.
            del self._open
        except AttributeError:
            return
        if self._holds:
            self._open = True  # at once, because a holder may be waiting for this
            if self._in_use():
                self._refuse()
            else:
                self.close()
            return
        work = [self._destroy]
        try:
            self._end(work)
        except BaseException:  # Ctrl-C may come at its entry
            if work:
                del work[:]  # not by a call, as which returns a second one may come
                self._open = True
            raise
        self._source = None

    def _end(self, work: List[Callable[[], None]]) -> None:
        """Destroys it, for the caller that has taken ``_open``, and puts that back if an exception comes before the call."""
        def run() -> None:
            try:
                destroy = work.pop()
            except IndexError:  # Ctrl-C came first
                return
            destroy()
        if active and self._may_wait():
            aside(run)
        elif (self._release or c.gpumem_memory_destroy)(self._handle, None) < 0:
            run()
        else:
            self._gone = True

    def _of_device(self) -> Device:
        return self.device

    def _may_wait(self) -> bool:
        """Whether a call that frees may have to wait, as for a GPU at work."""
        return on_main_thread() and _is_busy(self.device)

    def free(self) -> None:
        """The same, under its name in PyCUDA."""
        self.close()

    def _unregister(self) -> None:
        """Makes registered memory pageable again under its views, which keep the source."""
        if self.kind != Kind.REGISTERED:
            raise WrongKind(f"the memory is {self.kind}, not registered; free it")
        try:
            del self._open
        except AttributeError:
            return
        if not all(isinstance(hold(), View) for hold in self._holds.copy()):
            self._open = True
            self._refuse()
            return
        work = [self._destroy]
        try:
            self._end(work)
        except BaseException:
            if work:
                del work[:]
                self._open = True
            raise

    def _destroy(self) -> None:
        """Destroys it again, for the detail of the error."""
        try:
            call(self._release or c.gpumem_memory_destroy, self._handle)
        except Error as problem:
            if problem.code not in GONE:
                self._open = True
                raise
        self._gone = True

    def _refuse(self) -> None:
        try:
            self.info()  # a fork or a closed instance is reported first
        except StaleHandle:
            if not self.closed:
                raise
            return  # another thread has closed it since
        self._held("closed", "gpumem_memory_destroy")

    _awaited = Region._queues

    def __repr__(self) -> str:
        try:
            info = self._info or self.info()
        except Exception as problem:
            return "<gpumem.Memory, closed>" if self.closed else f"<gpumem.Memory: {problem}>"
        name = f" {info.name!r}" if info.name else ""
        return (f"<gpumem.Memory{name}: {info.kind}, {info.size} bytes, device {info.device_ordinal}"
                f"{', closed' if self.closed else ''}>")

    @property
    def handle(self) -> int:
        """The ``gpumem_memory`` of the C interface."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the memory was closed."""
        return not hasattr(self, "_open")

    def info(self) -> MemoryInfo:
        """Information about the memory. It queries the library, so it fails once the memory is destroyed."""
        self._info = _infos.memory_info(ask(c.gpumem_memory_get_info, c.gpumem_memory_info(), self._handle))
        return self._info


def _finisher(finalizing: Callable[[], bool], destroy: Callable[..., None], last: Any) -> Callable[[Memory], None]:
    # The names of the module are gone at the end of the interpreter, but not what a function encloses.
    def finish(self: Memory) -> None:
        """Frees the memory unless it was closed, also if Ctrl-C came while it was."""
        try:
            handle = self._handle
        except AttributeError:  # it was never created
            return
        if not (hasattr(self, "_gone") or finalizing()):
            destroy(self._release or last.gpumem_memory_destroy, handle, self._source)
    return finish


finalizer(Memory, _finisher(sys.is_finalizing, destroy_quietly, c))


def _is_busy(device: Device) -> bool:
    """Whether work is in flight on a GPU. Its driver waits for that when it frees, and the library when it tries out what a
    device can do."""
    instance = device.instance
    return not instance._closed and instance.backend == Backend.CUDA and not all(queue.idle() for queue in list(instance._queues))


def memory_of(value: Any) -> Optional[Region]:
    """The memory of a Memory, a Part, a Buffer, a View or a Use; None for any other operand."""
    if isinstance(value, Region):
        return value
    return value.memory if isinstance(value, (View, Use)) else None


def _registered_source(source: Any, size: Optional[int], require: int) -> Tuple[Union[Buffer, Strange, None], int, int]:
    """(object to keep alive, address, size) of memory to register."""
    if isinstance(source, int):
        if size is None:
            raise TypeError("the size is missing: an address needs one")
        return None, u64(source, "the address"), size64(size)
    try:
        buffer = host_buffer(source, writable=not require & c.GPUMEM_MEMORY_READ_ONLY)
    except InvalidArgument as problem:
        if "read-only" in problem.message:
            raise InvalidArgument(f'{problem.message}; register it with READ_ONLY: require="read_only"') from None
        fault, _, advice = problem.message.partition(" is not contiguous; ")
        if not advice:
            raise
        raise InvalidArgument(f"{fault} is not contiguous; register all of the array that it is a part of, or a contiguous copy") from None
    size = buffer.size if size is None else size64(size)
    if size > buffer.size:
        raise InvalidArgument(f"the {type(source).__name__} has {buffer.size} bytes, but {size} are to be registered")
    return buffer, buffer.address, size


# As many as an array of any numpy has. Some write beyond their own memory if there are more.
_DIMENSIONS = 64


def _refuse_dimensions(shape: Tuple[int, ...]) -> NoReturn:
    raise InvalidArgument(f"an array of {len(shape)} dimensions is not possible; {_DIMENSIONS} are the most")


def extent(shape: Shape, itemsize: int) -> Tuple[Tuple[int, ...], int]:
    """(shape as a tuple, bytes). Fails if no array can be that large."""
    if shape.__class__ is int:
        lengths: Tuple[int, ...] = shape,  # type: ignore[assignment]
    else:
        try:
            lengths = tuple(map(operator.index, shape if isinstance(shape, (tuple, list)) else (shape,)))
        except TypeError:
            raise TypeError(f"shape is {shape!r}; it must be an int or a tuple of ints") from None
    if len(lengths) > _DIMENSIONS:
        _refuse_dimensions(lengths)
    size = itemsize
    for length in lengths:
        if length < 0:
            raise InvalidArgument(f"shape is {shape!r}; a length cannot be negative")
        size *= length
    if size >= 1 << 63:
        raise InvalidArgument(f"an array of shape {lengths} with elements of {itemsize} bytes is too large")
    return lengths, size


def check_order(order: Any) -> None:
    if not isinstance(order, str):
        raise TypeError(f"order must be 'C' or 'F', not a {type(order).__name__}")
    if order not in ("C", "F"):
        raise InvalidArgument(f"the order is {order!r}; it must be 'C' or 'F'")


def strides_of(shape: Sequence[int], itemsize: int, order: str) -> Tuple[int, ...]:
    strides = []
    for length in reversed(shape) if order == "C" else shape:
        strides.append(itemsize)
        itemsize *= length
    return tuple(reversed(strides) if order == "C" else strides)


class View(Unique, ArrowView, Managed):
    """A typed view of memory, which other libraries can use in place.

    :meth:`Memory.view`, :func:`from_dlpack` and :func:`from_arrow` make them. The memory cannot be closed while a view is
    alive, or an array, memoryview or tensor made from it. Slices of a view are views, and elements of host memory are
    numbers: ``view[2:5]``, ``view[0, 1]``, ``view[3] = 1.5``. A view also offers:

    - the buffer protocol (:meth:`buffer`, and ``memoryview(view)`` from Python 3.12 on) and numpy's array interface
      (``numpy.asarray(view)``) for memory that the CPU can access;
    - DLPack (``torch.from_dlpack(view)``, ``cupy.from_dlpack(view)``, ...);
    - the Arrow C device data interface (``pyarrow.array(view)``, ...);
    - ``__cuda_array_interface__`` for memory that devices can use, on the cuda backend.
    """

    if TYPE_CHECKING:
        memory: Optional[Region]
        address: int
        shape: Tuple[int, ...]
        strides: Tuple[int, ...]
        typestr: str
        itemsize: int
        nbytes: int
        readonly: bool
        dlpack_device: Optional[Tuple[int, int]]
        _descr: Any
        _owner: Any
        _counted: bool
        _loan: object  # each array that is lent refers to it, so its references tell how many there are
        _lent: bool  # to someone who does not say when it is given back
        _exchange: List[Any]  # what the functions of C of DLPack know of it

    __slots__ = ("memory", "address", "shape", "strides", "typestr", "itemsize", "nbytes", "readonly", "dlpack_device",
                 "_descr", "_owner", "_counted", "_loan", "_lent", "_exchange",
                 "__weakref__")
    _instead = "use the object itself, make another one with Memory.view(), or copy the bytes"

    def __init__(self) -> None:
        raise TypeError("get views from Memory.view() or gpumem.from_dlpack()")

    @classmethod
    def _of(cls, memory: Region, dtype: Any, shape: Optional[Shape], offset: int, order: str) -> View:
        check_order(order)
        typestr, itemsize, descr, inner = _types.element_type(dtype)
        info = memory._known()
        offset = u64(offset, "offset")
        if shape is None:
            if offset > info.size:
                raise InvalidArgument(f"offset is {offset}, but the memory has {info.size} bytes")
            whole = extent(inner, itemsize)[1] if inner else itemsize
            if not whole or (info.size - offset) % whole:
                raise InvalidArgument(f"{info.size - offset} bytes are no whole number of elements of {whole} bytes; give "
                                      "the view a shape")
            shape = (info.size - offset) // whole
        shape, nbytes = extent(shape, itemsize)
        if inner:
            shape, nbytes = extent(shape + inner, itemsize)
        if offset + nbytes > info.size:
            raise InvalidArgument(f"the view needs {nbytes} bytes from {offset} on, but the memory has {info.size}")

        self = cls.__new__(cls)
        self.memory = self._owner = None
        self.address = (info.host_pointer or info.device_pointer or 0) + offset
        self.shape, self.nbytes = shape, nbytes
        self.strides = strides_of(shape, itemsize, order)
        self.typestr, self.itemsize, self._descr = typestr, itemsize, descr
        self.readonly = bool(info.granted_flags & MemoryFlags.READ_ONLY)
        self.dlpack_device = _dlpack_device(memory)
        self._loan, self._lent, self._exchange = object(), False, []
        self._count(memory)
        return self

    def _count(self, memory: Region) -> None:
        """Makes it one of the views of the memory."""
        self._counted = False
        # Counted first, then checked: close() does it in the reverse order.
        holds, instance = memory._holds, memory.device.instance
        self.memory = memory
        holds.add(weakref.ref(self, holds.discard))
        instance._views.add(weakref.ref(self, instance._views.discard))
        self._counted = True
        if memory.closed or instance._closed or instance._generation != generation[0]:
            self._uncount()
            self.memory = None
            _check_process(instance)
            raise StaleHandle("the memory is closed")

    def _uncount(self) -> None:
        memory = self.memory
        if memory is not None:
            self._counted = False
            memory._holds.discard(weakref.ref(self))  # it is equal to the other one
            memory.device.instance._views.discard(weakref.ref(self))

    @classmethod
    def _foreign(cls, owner: Any, address: int, shape: Tuple[int, ...], strides: Tuple[int, ...], typestr: str, itemsize: int,
                 readonly: bool, device: Tuple[int, int]) -> View:
        """A view of memory of another library, which ``owner`` keeps alive."""
        self = cls.__new__(cls)
        self.memory, self._owner, self._loan, self._lent, self._counted, self._exchange = None, owner, None, False, False, []
        self.address, self.shape, self.strides = address, shape, strides
        self.typestr, self.itemsize, self._descr = typestr, itemsize, None
        self.nbytes = itemsize
        for length in shape:
            self.nbytes *= length
        self.readonly, self.dlpack_device = readonly, device
        return self

    def _part(self, cls: Type[View], address: int, shape: Tuple[int, ...], strides: Tuple[int, ...]) -> View:
        """A view of some of the elements."""
        part = cls.__new__(cls)
        part.memory, part._owner, part._loan, part._lent, part._counted, part._exchange = None, self, object(), False, False, []
        part.address, part.shape, part.strides = address, shape, strides
        part.typestr, part.itemsize, part._descr = self.typestr, self.itemsize, self._descr
        part.nbytes = part.itemsize
        for length in shape:
            part.nbytes *= length
        part.readonly, part.dlpack_device = self.readonly, self.dlpack_device
        if self.memory is not None:
            part._count(self.memory)
            part._owner = None
        return part

    def __repr__(self) -> str:
        what = f"<gpumem.View: {self.typestr} {self.shape} at {self.address:#x}"
        if self.memory is None:
            return what + ", of another library>"
        info = self.memory._known()
        name = f" {info.name!r}" if info.name else ""
        return f"{what} in {info.kind} memory{name} of device {info.device_ordinal}{'' if self._counted else ', closed'}>"

    # ---- elements ----

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a view without dimensions has no length")
        return self.shape[0]

    def _select(self, key: Any) -> Tuple[int, Tuple[int, ...], Tuple[int, ...], bool]:
        """(address, shape, strides, whether it is one element) of what a key selects."""
        keys = list(key) if isinstance(key, tuple) else [key]
        rest = [at for at, part in enumerate(keys) if part is Ellipsis]
        if len(rest) > 1 or len(keys) - len(rest) > len(self.shape):
            raise IndexError(f"{len(keys)} indices are too many for a view of {len(self.shape)} dimensions")
        missing = len(self.shape) - len(keys) + len(rest)
        place = rest[0] if rest else len(keys)
        keys[place:place + 1] = [slice(None)] * missing
        address, shape, strides = self.address, [], []
        for part, length, stride in zip(keys, self.shape, self.strides):
            if isinstance(part, slice):
                start, stop, step = part.indices(length)
                count = len(range(start, stop, step))
                address += start * stride if count else 0
                shape.append(count)
                strides.append(stride * step)
                continue
            try:
                number = operator.index(part)
            except TypeError:
                raise TypeError(f"an index of a view is an int, a slice or ..., not a {type(part).__name__}") from None
            if not -length <= number < length:
                raise IndexError(f"index {number} is out of range for a length of {length}")
            address += (number + length if number < 0 else number) * stride
        return address, tuple(shape), tuple(strides), not (shape or rest)

    def __getitem__(self, key: Any) -> Any:
        """``view[2:5]`` and ``view[0]`` of several dimensions are views without a copy; the index of one element gives its
        value, if the memory is host memory."""
        address, shape, strides, single = self._select(key)
        part = self._part(View, address, shape, strides)
        return part._scalar().tolist() if single else part

    def __setitem__(self, key: Any, value: Any) -> None:
        """Writes an element of host memory, or copies as many bytes as a slice has into it: of elements of the view's type, or
        plain ones. Others raise TypeError: convert them first. A number is never an address here: one for a slice raises
        TypeError too, and ``view.numpy()[:] = 7`` or :meth:`Instance.fill` fills it."""
        address, shape, strides, single = self._select(key)
        part = self._part(View, address, shape, strides)
        if part.readonly:
            raise InvalidArgument("the memory is read-only")
        if single:
            part._scalar()[()] = value  # type: ignore[call-overload]
            return
        if value is None or isinstance(value, numbers.Number):
            raise TypeError("a slice is set to the bytes of an array or memory, not to a number or None; to fill it with a number, "
                            "assign to the slice of its numpy(), or call fill() of an instance or a stream")
        if self.memory is None:
            raise InvalidArgument("the memory belongs to another library; only single elements can be set here")
        if {_order_of(part), _order_of(value)} == {"C", "F"}:
            raise InvalidArgument("one side is in C order and the other in Fortran order, and bytes are copied as they lie")
        self.memory.device.instance._copy_exactly(part, value)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def _scalar(self) -> memoryview:
        """The one element."""
        code = _types.buffer_format(self.typestr)
        if code is None:
            raise TypeError(f"elements of type {self.typestr} have no number in Python; use numpy()")
        return self._bytes().cast(code, ())

    @property
    def contiguous(self) -> bool:
        """Whether there are no gaps between the elements."""
        return self.c_contiguous or self.f_contiguous

    @property
    def c_contiguous(self) -> bool:
        """Whether the elements lie in C order, without gaps."""
        return 0 in self.shape or self.strides == strides_of(self.shape, self.itemsize, "C")

    @property
    def f_contiguous(self) -> bool:
        """Whether the elements lie in Fortran order, without gaps."""
        return 0 in self.shape or self.strides == strides_of(self.shape, self.itemsize, "F")

    def _operand(self, writable: bool) -> Tuple[int, int, View]:
        if writable and self.readonly and self.memory is None:
            raise InvalidArgument("the view is read-only")
        if not self.contiguous:
            raise InvalidArgument("the view is not contiguous")
        return self.address, self.nbytes, self

    @property
    def device_pointer(self) -> Optional[int]:
        """Address of the first byte for devices; None if the memory has none."""
        if self.memory is None:
            return self.address if self.dlpack_device is not None and self.dlpack_device[0] != CPU else None
        info = self.memory._known()
        if info.device_pointer is None:
            return None
        return info.device_pointer + self.address - self.memory._address()

    def get_device_pointer(self) -> Optional[int]:
        """The same, under its name in PyCUDA."""
        return self.device_pointer

    # ---- the end of the memory, as PyCUDA has it ----

    def _borrowed(self) -> bool:
        """Whether something else uses the memory through this view."""
        return self._lent or sys.getrefcount(self._loan) != _ALONE

    def free(self) -> None:
        """Frees the memory of the view: ``array.base.free()`` in PyCUDA.

        Raises BufferError, and frees nothing, while the array or anything else over the memory is alive. PyCUDA would
        leave them with freed memory. So: ``base = array.base``, ``del array``, ``base.free()``.
        """
        memory = self._own_memory()
        if memory.kind == Kind.REGISTERED:
            raise WrongKind("the memory is registered, not allocated; call unregister()")
        if memory.closed:
            return
        memory._sweep()
        self._counted = False  # before what it lent is looked at, so that another thread borrows before this or not at all
        try:
            if self._borrowed():
                raise BufferError("the memory cannot be freed while an array or a memoryview over it is alive; keep its base and "
                                  "drop the array first: base = array.base; del array; base.free()")
            self._uncount()
            memory.close()
        finally:
            if not memory.closed:
                self._count(memory)

    def unregister(self) -> None:
        """Makes registered memory pageable again: ``array.base.unregister()`` in PyCUDA.

        The array stays good, as ordinary memory. Raises Busy while work in a stream that uses it was not observed
        complete.
        """
        self._own_memory()._unregister()

    def _own_memory(self) -> Memory:
        if self.memory is None:
            raise InvalidArgument("the memory belongs to another library, which frees it")
        if not isinstance(self.memory, Memory):
            raise WrongKind("a view of a range or a buffer does not free it; unmap that part of the range, or close the buffer")
        return self.memory

    def _of_device(self) -> Device:
        if self.memory is None:
            raise InvalidArgument("the memory belongs to another library; the instance and its streams take it as an argument")
        return self.memory.device

    # ---- the CPU ----

    def _gone(self) -> bool:
        if self.memory is None:
            return False
        _check_process(self.memory.device.instance)
        return not self._counted

    def _check_counted(self) -> None:
        if self._gone():
            raise StaleHandle("the memory is closed")

    def _host_accessible(self) -> bool:
        if self._gone():
            raise StaleHandle("the memory is closed")
        if self.memory is not None:
            return self.memory._known().host_pointer is not None
        return self.dlpack_device is None or self.dlpack_device[0] != CUDA

    def _reason(self) -> str:
        return Region._no_access if self.memory is None else self.memory._no_access

    def _bytes(self) -> memoryview:
        # The memoryview keeps the array, and so the view. The collector must not know that: in a cycle it would clear the weak
        # references and run the finalizers of all of them, in any order, while functions that it calls still use the bytes.
        array: Any = (c_ubyte * self.nbytes).from_address(self.address)
        # Lent first, then checked: free() does it in the reverse order.
        array._view, array._loan = self, self._loan
        untrack(array)
        if not self._host_accessible():
            raise BufferError(self._reason())
        if not self.contiguous:
            raise BufferError("the view is not contiguous; numpy() makes an array of it")
        return memoryview(array).cast("B")

    def buffer(self) -> memoryview:
        """A memoryview of the bytes: typed and shaped if the view is C-contiguous and memoryview has its type."""
        found = self._bytes()
        code = _types.buffer_format(self.typestr)
        same = code == "B" and self.shape == found.shape
        if code and not same and self.nbytes and self.shape and self.strides == strides_of(self.shape, self.itemsize, "C"):
            found = found.cast(code, self.shape)
        return found.toreadonly() if self.readonly else found

    def __buffer__(self, flags: int) -> memoryview:
        found = self.buffer()
        # numpy would take the bytes for the elements. It takes the array interface if there is no buffer.
        if flags & _WITH_FORMAT and (found.format, found.shape) != (_types.buffer_format(self.typestr), self.shape):
            raise BufferError(f"a memoryview cannot describe elements of type {self.typestr} in this shape and order; use numpy(), or "
                              "buffer() for the bytes")
        return found

    def __bytes__(self) -> bytes:
        return bytes(self.buffer())

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if not self._host_accessible():
            raise AttributeError(self._reason())
        if len(self.shape) > _DIMENSIONS:  # of another library
            _refuse_dimensions(self.shape)
        self._lent = True
        self._check_counted()
        return self._interface(self.address or _NOWHERE)

    def _interface(self, address: int) -> Dict[str, Any]:
        found = {"version": 3, "shape": self.shape, "typestr": self.typestr, "data": (address, self.readonly),
                 "strides": self.strides}
        if self._descr:
            found["descr"] = self._descr
        return found

    def numpy(self) -> ViewArray:
        """Host memory as a numpy array without a copy. Its ``base`` is a view that keeps the memory alive. Raises
        BufferError for device memory."""
        import numpy
        if not self._host_accessible():
            raise BufferError(self._reason())
        base: Any = self._part(_ArrayBase, self.address, self.shape, self.strides)
        array: ViewArray = numpy.asarray(base)  # type: ignore[assignment]
        base._array = weakref.ref(array)
        base._lent = False
        return array

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        array = self.numpy()
        if dtype is not None and dtype != array.dtype:
            if copy is False:
                raise ValueError(f"elements of type {array.dtype} cannot become {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    # ---- devices ----

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """Version 3 of the interface. ``stream`` is the stream to wait for, if work is in flight."""
        memory = self.memory
        if memory is None or memory.device.instance.backend != Backend.CUDA:
            raise AttributeError("only memory of the cuda backend has a __cuda_array_interface__")
        address = self.device_pointer
        if address is None:
            raise AttributeError('the memory has no device pointer; register it with require="mapped"')
        self._lent = True
        self._check_counted()
        found = self._interface(address if self.nbytes else 0)  # as version 3 has it
        if self.strides == strides_of(self.shape, self.itemsize, "C"):
            found["strides"] = None
        found["stream"] = _work_stream(memory)
        return found


_probe = View.__new__(View)
_probe._loan = object()
_ALONE = sys.getrefcount(_probe._loan)  # of a view that has lent nothing
del _probe


class _ArrayBase(View):
    """The base of a numpy array. Its array is the only thing that uses the memory through it."""

    __slots__ = ("_array",)

    if TYPE_CHECKING:
        _array: weakref.ref[Array]

    def _borrowed(self) -> bool:
        return self._array() is not None or super()._borrowed()

    def __buffer__(self, flags: int) -> NoReturn:
        raise BufferError("numpy takes the array interface, and so this object as the base")


_ArrayBase.__name__ = _ArrayBase.__qualname__ = "View"


def _dlpack_device(memory: Region) -> Optional[Tuple[int, int]]:
    """Device type and number in DLPack, or None if DLPack has none for the memory."""
    kind, host = memory.kind, memory.device.instance.backend == Backend.HOST
    if kind in (Kind.VIRTUAL, Kind.IMPORTED, Kind.POOL):
        return memory._dlpack_device(host)
    if kind == Kind.MANAGED and not host:
        return CUDA_MANAGED, memory.device.ordinal
    if kind == _DEVICE:
        return None if host else (CUDA, memory.device.ordinal)
    return (CPU, 0) if host else (CUDA_HOST, 0)


def _work_stream(memory: Region) -> Optional[int]:
    """The native stream to wait for before using the memory, or None if no work is in flight."""
    queues: Any = memory._queues()
    if not queues:
        return None
    last = queues.pop()
    for queue in queues:
        queue.order_before(last.handle)
    return last.native()  # type: ignore[no-any-return]
