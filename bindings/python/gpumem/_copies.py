# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Copies and fills: the methods that instances and streams share, and the description of a region."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Optional, Tuple, Union

from . import _library as c
from . import _types
from ._calls import u32, u64
from ._codes import Direction, SourceOrder
from ._enums import code
from ._memory import Memory, Region, Use, View, memory_of
from ._operands import check_room, operand
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    from ._instance import Instance


@dataclasses.dataclass
class CopyRegion:
    """A box of bytes to copy: ``depth`` slices of ``height`` rows of ``width`` bytes.

    ``destination`` and ``source`` are operands as in :meth:`Instance.copy`. Each side begins at its offset in bytes. A
    row pitch is the distance in bytes from one row to the next, a slice pitch from one slice to the next; 0 means that
    no bytes lie between them. Without ``width`` the region is a single row: the rest of the source. A width, height or
    depth of 0 copies nothing.
    """

    destination: Any
    source: Any
    width: Optional[int] = None
    height: int = 1
    depth: int = 1
    destination_offset: int = 0
    source_offset: int = 0
    destination_row_pitch: int = 0
    source_row_pitch: int = 0
    destination_slice_pitch: int = 0
    source_slice_pitch: int = 0
    direction: Union[Direction, str, int] = "infer"
    source_order: Union[SourceOrder, str, int] = "stream"

    def _write(self, out: Any) -> Tuple[int, Tuple[Any, ...]]:
        """Fills in a gpumem_copy_region. Returns its bytes and the objects to keep alive."""
        target = _Side(_DESTINATION, self.destination, self.destination_offset, self.destination_row_pitch,
                       self.destination_slice_pitch)
        source = _Side(_SOURCE, self.source, self.source_offset, self.source_row_pitch, self.source_slice_pitch)
        if self.width is not None:
            width = u64(self.width, "width")
        elif self.height != 1 or self.depth != 1:
            raise TypeError("the width is missing")
        else:
            width = source.rest(target)
        height, depth = u64(self.height, "height"), u64(self.depth, "depth")
        out.struct_size = _REGION_BYTES
        out.direction, out.source_order = _direction(self.direction), _source_order(self.source_order)
        if not (width and height and depth):
            return 0, ()
        target.write(out.destination, width, height, depth)
        source.write(out.source, width, height, depth)
        out.width, out.height, out.depth = width, height, depth
        return width * height * depth, (target.kept, source.kept)


_REGION_BYTES = ctypes.sizeof(c.gpumem_copy_region)
# What messages call the numbers of a side.
_DESTINATION = "destination", "destination_offset", "destination_row_pitch", "destination_slice_pitch"
_SOURCE = "source", "source_offset", "source_row_pitch", "source_slice_pitch"


class _Side:
    """One side of a region."""

    __slots__ = ("what", "address", "room", "kept", "offset", "row_pitch", "slice_pitch")

    def __init__(self, names: Tuple[str, ...], value: Any, offset: int, row_pitch: int, slice_pitch: int) -> None:
        self.what = names[0]
        self.address, self.room, self.kept = operand(value, names is _DESTINATION, names[0])
        self.offset, self.row_pitch = u64(offset, names[1]), u64(row_pitch, names[2])
        self.slice_pitch = u64(slice_pitch, names[3])

    def rest(self, other: _Side) -> int:
        """Bytes from the offset to the end, of the other side if the length of this one is unknown."""
        for side in (self, other):
            if side.room is not None:
                return max(side.room - side.offset, 0)
        raise TypeError("the width is missing")

    def write(self, out: Any, width: int, height: int, depth: int) -> None:
        row = self.row_pitch or width
        last_slice = (self.slice_pitch or row * height) * (depth - 1)
        check_room(self.what, self.room, self.offset + last_slice + row * (height - 1) + width)
        memory = memory_of(self.kept)
        if memory is not None:
            if memory.closed:
                memory.info()  # fails and says why, unless another thread is only trying to close it
        if isinstance(memory, Memory):
            out.memory, out.offset = memory.handle, self.address - memory._address() + self.offset
        elif self.address:
            out.pointer = u64(self.address + self.offset, f"the address of the {self.what}")
        out.row_pitch, out.slice_pitch = self.row_pitch, self.slice_pitch


class Copies:
    """Copies and fills. A subclass adds ``_instance()``, and ``_work()``, which calls one of the two functions. ``size``
    are its bytes. ``in_part``: a call that fails may have enqueued some of the work."""

    __slots__ = ()

    if TYPE_CHECKING:
        def _instance(self) -> Instance: ...

        def _work(self, kept: Iterable[Any], size: int, now: Callable[..., int], enqueue: Callable[..., int],
                  *arguments: Any, in_part: bool = False) -> None: ...

    def copy(self, destination: Any, source: Any, size: Optional[int] = None, *,
             direction: Union[Direction, str, int] = 0, source_order: Union[SourceOrder, str, int] = 0) -> None:
        """Copies bytes between any two operands.

        An instance returns when the bytes are copied. A stream enqueues the copy, and keeps both operands alive until the
        copy was observed complete.

        An operand is a :class:`Memory`, a :class:`View`, an array or other object with a buffer, an array of another
        library on a device (by its ``__cuda_array_interface__`` or ``__dlpack__``), or an address as a number. Without
        ``size`` the whole source is copied, and must fit into the destination. Neither side may be shorter than ``size``.
        """
        target, room, kept_target = operand(destination, True, "destination")
        origin, length, kept_source = operand(source, False, "source")
        if size is None:
            if length is None:
                length = room
            if length is None:
                raise TypeError("the size is missing: neither operand has one")
            size = length
            check_room("destination", room, size, f"; pass size={room} to copy only so many" if room else "")
        else:
            size = u64(size, "size")
            check_room("destination", room, size)
        check_room("source", length, size)
        self._await_producers(destination, source)
        self._work((kept_target, kept_source), size, c.gpumem_copy, c.gpumem_copy_async, target, origin, size,
                   _options(direction, source_order))

    def copy_2d(self, destination: Any, destination_pitch: int, source: Any, source_pitch: int, width: int,
                height: int, *, direction: Union[Direction, str, int] = 0,
                source_order: Union[SourceOrder, str, int] = 0) -> None:
        """Copies ``height`` rows of ``width`` bytes. A pitch is the distance in bytes from one row to the next."""
        target, room, kept_target = operand(destination, True, "destination")
        origin, length, kept_source = operand(source, False, "source")
        to_next, from_next = u64(destination_pitch, "destination_pitch"), u64(source_pitch, "source_pitch")
        width, height = u64(width, "width"), u64(height, "height")
        check_room("destination", room, _rectangle(to_next, width, height))
        check_room("source", length, _rectangle(from_next, width, height))
        self._await_producers(destination, source)
        self._work((kept_target, kept_source), width * height, c.gpumem_copy_2d, c.gpumem_copy_2d_async, target, to_next, origin,
                   from_next, width, height, _options(direction, source_order))

    def copy_regions(self, regions: Iterable[CopyRegion]) -> None:
        """Copies a batch of :class:`CopyRegion`, in any order: no region may write bytes that another reads or writes.

        Every region is checked before the first is copied. If the call fails because of one region, :attr:`Error.region`
        of the exception is its index. If the driver fails midway, the regions before that one are copied (or enqueued),
        that one may be copied in part, and later ones are not. A stream keeps all operands alive even then.
        """
        regions = list(regions)
        batch, size = (c.gpumem_copy_region * len(regions))(), 0
        kept: Dict[int, Any] = {}
        for index, region in enumerate(regions):
            if not isinstance(region, CopyRegion):
                raise TypeError(f"a region must be a CopyRegion, not a {type(region).__name__}")
            try:
                count, values = region._write(batch[index])
                size += count
                kept.update((id(value), value) for value in values)
            except Error as problem:
                problem.region = index
                raise
        for region in regions:
            self._await_producers(region.destination, region.source)
        failed = ctypes.c_uint64(len(regions))
        try:
            self._work(kept.values(), size, c.gpumem_copy_regions, c.gpumem_copy_regions_async, batch, len(regions), failed,
                       in_part=True)
        except Error as problem:
            if failed.value < len(regions):
                problem.region = failed.value
            raise

    def fill(self, destination: Any, value: int = 0, size: Optional[int] = None, *, value_size: int = 1) -> None:
        """Fills memory with a number of 1, 2 or 4 bytes, repeated. Without ``size`` the whole destination is filled.

        An instance returns when the memory is filled. A stream enqueues the fill, and keeps the destination alive until
        the fill was observed complete.
        """
        target, room, kept = operand(destination, True, "destination")
        if size is None:
            if room is None:
                raise TypeError("the size is missing: the destination has none")
            size = room
        size = u64(size, "size")
        check_room("destination", room, size)
        self._await_producers(destination)
        self._work((kept,), size, c.gpumem_fill, c.gpumem_fill_async, target, size,
                   *_pattern(value, value_size))

    def fill_2d(self, destination: Any, pitch: int, width: int, height: int, value: int = 0, value_size: int = 1) -> None:
        """Fills ``height`` rows of ``width`` bytes with a number of 1, 2 or 4 bytes, repeated."""
        target, room, kept = operand(destination, True, "destination")
        pitch, width, height = u64(pitch, "pitch"), u64(width, "width"), u64(height, "height")
        check_room("destination", room, _rectangle(pitch, width, height))
        self._await_producers(destination)
        self._work((kept,), width * height, c.gpumem_fill_2d, c.gpumem_fill_2d_async, target, pitch, width, height,
                   *_pattern(value, value_size))

    def _copy_exactly(self, destination: View, source: Any) -> None:
        """Copies a source that must be as long as the destination, and have elements of its type unless they are bytes."""
        _, length, kept = operand(source, False, "source")
        # Memory itself has no type; a tensor of another library has that of the view of it.
        theirs = None if isinstance(kept, (Region, Use)) else _types.type_of(kept if isinstance(kept, View) else source)
        if theirs not in (None, destination.typestr) and destination.typestr[1] not in "SV":
            raise TypeError(f"the view has elements of type {destination.typestr}, and the source of type {theirs}; convert the source "
                            "first, for example with astype(), or copy its bytes as they are with copy() of an instance or a stream")
        if length is not None and length != destination.nbytes:
            raise InvalidArgument(f"the slice has {destination.nbytes} bytes, but the source has {length}")
        self.copy(destination, source, destination.nbytes)

    def _await_producers(self, *operands: Any) -> None:
        """Waits for the work in the stream that an array of another library names in its __cuda_array_interface__."""
        for value in operands:
            if isinstance(value, _OURS):
                continue
            interface = getattr(value, "__cuda_array_interface__", None)
            if interface is None:
                continue
            number = interface.get("stream")
            if number is not None and interface["data"][0]:
                _await_stream(self._instance(), interface["data"][0], number)


_OURS = (int, Region, View, bytes, bytearray, memoryview)


def _await_stream(instance: Instance, address: int, number: int) -> None:
    from ._stream import Stream
    ordinal = instance.pointer_info(address).device_ordinal
    # The legacy default stream is 1 there and NULL in the driver.
    with Stream.wrap(instance.device(max(ordinal, 0)), 0 if number == 1 else number) as producer:
        producer.synchronize()


def _rectangle(pitch: int, width: int, height: int) -> int:
    """Bytes from the first to the last of a rectangle."""
    return pitch * (height - 1) + width if width and height else 0


def _pattern(value: int, value_size: int) -> Tuple[int, int]:
    """The number of a fill and its bytes. The library would cut a larger one."""
    number, size = u32(value, "value"), u32(value_size, "value_size")
    if size in (1, 2) and number >= 1 << 8 * size:
        raise InvalidArgument(f"value is {number}, which has more than {size} byte{'s' * (size > 1)}; set value_size")
    return number, size


def _direction(value: Union[Direction, str, int]) -> int:
    return code(Direction, value, "direction")


def _source_order(value: Union[SourceOrder, str, int]) -> int:
    return code(SourceOrder, value, "source_order")


def _options(direction: Union[Direction, str, int], source_order: Union[SourceOrder, str, int]) -> Any:
    if direction.__class__ is source_order.__class__ is int and not (direction or source_order):
        return None
    where, when = _direction(direction), _source_order(source_order)
    return c.gpumem_copy_options(direction=where, source_order=when) if where or when else None
