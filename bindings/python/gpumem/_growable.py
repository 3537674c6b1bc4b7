# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays that grow in place, over buffers in memory of the host."""

from __future__ import annotations

import array
import ctypes
import numbers
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Optional, Set, Tuple

from . import _types
from ._buffers import Buffer
from ._calls import Unique, u64
from ._codes import Location, MemoryFlags
from ._handles import Scoped
from ._instance import Device, device_or_default
from ._managed import Place
from ._memory import Shape, Use, View, extent
from ._ranges import location_of
from ._waits import LARGE
from .errors import Error, InvalidArgument, OutOfAddressSpace, OutOfDeviceMemory, OutOfHostMemory

if TYPE_CHECKING:
    import numpy

    from ._groups import Group
    from ._memory import Array
    from ._ranges import Accesses
    from ._stream import Queue

_HOST = (int(Location.HOST), int(Location.HOST_NUMA))


class GrowableArray(Unique, Scoped):
    """Rows of numbers in memory of the host that grow in place: their address stays, and no row is copied.

    The rows lie in :attr:`buffer`, a :class:`Buffer`, which devices can use too. ``shape`` is a length, or a tuple of the
    length and the shape of each row. New rows are 0. ``reserve`` is the number of rows that it can grow to; by default as
    many as the host has memory. ``location`` is "host" or a pair such as ("host_numa", 0). ``device`` is by default device 0
    of the default instance. The other options are those of a buffer.

    This is no numpy array, but has one: :attr:`array`. One that was taken before the rows grew stays good, shows the same bytes,
    and keeps its length. While one is alive, shrinking, ``buffer.sleep()`` and closing raise BufferError. Indexing, slices and
    loops are those of that array, so a slice is alive in the same way. Compare and calculate with ``array``.

    Without numpy, :meth:`view` gives the rows as a :class:`View`, which is indexed then.
    """

    __slots__ = ("buffer", "typestr", "_dtype", "_most", "_row", "_row_bytes", "_written", "__weakref__")
    _instead = "use the object itself, or copy its array"

    def __init__(self, shape: Shape, dtype: Any, *, device: Optional[Device] = None, reserve: int = 0,
                 location: Place = "host", accesses: Optional[Accesses] = None, group: Optional[Group] = None,
                 tag: Optional[str] = None, name: Optional[str] = None) -> None:
        device = device_or_default(device)
        self.typestr, itemsize, _, inner = _types.element_type(dtype)
        lengths = extent(shape, itemsize)[0]
        if not lengths:
            raise InvalidArgument("shape is (); an array that grows has at least one dimension")
        lengths, size = extent(lengths + inner, itemsize)
        self._dtype, self._row = "u1" if dtype is None else dtype, lengths[1:]
        if inner:
            self._dtype = _types.unfold(_numpy().dtype(dtype))[0]
        _, self._row_bytes = extent(self._row, itemsize)
        if not self._row_bytes:
            raise InvalidArgument(f"rows of shape {self._row} have no elements")
        if location_of(device, location)[0] not in _HOST:
            raise InvalidArgument('an array that grows lies in memory of the host; its location is "host", or a pair such as '
                                  '("host_numa", 0)')
        self._most = u64(reserve, "reserve")
        self._written: Optional[int] = None  # bytes of the rows while others are added
        if 0 < self._most < lengths[0]:
            raise InvalidArgument(f"reserve is {self._most} rows, which is less than the {lengths[0]} of the shape; give it at least "
                                  "as many")
        self.buffer = Buffer(device, size, reserve=self._most * self._row_bytes, location=location,
                             accesses=accesses, group=group, tag=tag, name=name)
        if size:
            _check_writable(self.buffer)
            _write(self.buffer.base, size, _clear)

    # ---- its rows ----

    @property
    def array(self) -> Array:
        """A numpy array of the rows that there are now, without a copy."""
        return self.view().numpy()

    def view(self) -> View:
        """A typed view of the rows that there are now."""
        with self.buffer._lock:
            return self.buffer.view(self._dtype, self.shape)

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The type of the elements, for numpy."""
        import numpy
        return numpy.dtype(self._dtype)

    def _rows(self) -> Any:
        return self.view() if _numpy() is None else self.array

    def __getitem__(self, key: Any) -> Any:
        return self._rows()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._rows()[key] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows())

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        return self.view().__array__(dtype, copy)

    def _operand(self, writable: bool) -> Tuple[int, int, Use]:
        address, size, kept = self.buffer._operand(writable)
        return address, min(size, self.nbytes), kept

    def __len__(self) -> int:
        size, written = self.buffer.size, self._written
        return (size if written is None else min(size, written)) // self._row_bytes

    @property
    def shape(self) -> Tuple[int, ...]:
        """The number of rows, and the shape of each."""
        return (len(self), *self._row)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return len(self) * self._row_bytes

    # ---- changes ----

    def append(self, row: Any) -> None:
        """Adds a row: what numpy makes an array of its type and shape of. As in numpy's own operations, values may lose
        precision, but not their kind: adding 1.5 or "1" to integers raises TypeError, also in a field. An integer that does not fit into an
        integer type raises OverflowError. Without numpy it is a number, or a buffer with the bytes of the row. If the call fails, nothing has
        changed."""
        numpy = _numpy()
        # As an array of its type, which a refusal names.
        self._add([row] if numpy is None or not hasattr(row, "dtype") else numpy.asarray(row)[None])

    def extend(self, rows: Iterable[Any]) -> None:
        """Adds many rows: an array, or anything that numpy makes one of. Without numpy they are as in :meth:`append`. If the
        call fails, nothing has changed."""
        self._add(rows)

    def _add(self, rows: Iterable[Any]) -> None:
        numpy = _numpy()
        source: Any
        if numpy is None:
            kept: Any = self._packed(rows)
            source, size = ctypes.cast(kept, ctypes.c_void_p).value, len(kept)
        else:
            kept = numpy.ascontiguousarray(self._checked(numpy, rows))
            source, size = kept.__array_interface__["data"][0], kept.nbytes
        if size:
            self._grow(size, lambda address, done, piece: ctypes.memmove(address, source + done, piece))

    def _checked(self, numpy: Any, rows: Any) -> Array:
        """Rows as an array that can be copied as it is."""
        if isinstance(rows, (bytes, bytearray)):
            rows = memoryview(rows)
        elif not (hasattr(rows, "__array__") or hasattr(rows, "__getitem__")):
            rows = list(rows)  # an iterator or a set
        _check_cast(numpy, _given(numpy, rows, self.dtype), self.dtype)
        items: Array = numpy.asarray(rows, self._dtype)
        if items.shape[1:] != self._row and (items.size or len(items.shape) != 1):
            raise InvalidArgument(f"the rows have shape {items.shape[1:]}, but those of the array have {self._row}")
        if not items.ndim:
            raise InvalidArgument("rows are a sequence; append() adds one")
        return items

    def _packed(self, rows: Iterable[Any]) -> bytes:
        """The bytes of rows, without numpy."""
        if self._row:
            try:
                found = [memoryview(row).tobytes() for row in rows]
            except TypeError:
                raise TypeError("without numpy a row is a buffer with its bytes, such as array.array") from None
            for row in found:
                if len(row) != self._row_bytes:
                    raise InvalidArgument(f"the row has {len(row)} bytes, but those of the array have {self._row_bytes}")
            return b"".join(found)
        code = _types.buffer_format(self.typestr)
        if code is None:
            raise TypeError(f"elements of type {self.typestr} need numpy")
        if code == "?":
            values = list(rows)
            if not all(isinstance(value, bool) for value in values):
                raise TypeError(f"rows of type {self.typestr} are True or False")
            return bytes(values)
        try:
            return array.array(code, list(rows)).tobytes()
        except OverflowError as problem:
            raise OverflowError(f"a value does not fit into the type {self.typestr}: {problem}") from None

    def resize(self, length: int) -> None:
        """Changes the number of rows. New rows are 0. Shrinking frees memory, and raises BufferError while an array or a view
        is alive; nothing has changed then."""
        length = u64(length, "length")
        with self.buffer._lock:
            now = len(self)
            if length > now:
                self._grow((length - now) * self._row_bytes, _clear)
            elif length < now:
                self.buffer.resize(length * self._row_bytes)

    def reserve(self, length: int) -> None:
        """Makes memory for so many rows, so that growing to them needs no more."""
        needed = u64(length, "length") * self._row_bytes
        with self.buffer._lock:
            self._check_reserved(needed)
            self.buffer.set_capacity(max(needed, self.buffer.size))

    def _grow(self, more: int, write: Callable[[int, int, int], Any]) -> None:
        """Adds so many bytes of rows, which ``write`` fills. If that fails, or a signal handler raises, they are taken back."""
        buffer = self.buffer
        with buffer._lock:
            size = len(self) * self._row_bytes
            if buffer.size > size and self._written is not None:
                buffer.resize(size)  # which failed before
            self._written = size
            try:
                self._make_room(size, more)
                _write(buffer.base + size, more, write)
                self._written = None
            except BaseException:
                try:
                    if buffer._idle().size > size:
                        buffer.resize(size)
                    self._written = None
                except (BufferError, Error):  # it is still growing in another thread
                    pass
                raise

    def _make_room(self, size: int, more: int) -> None:
        buffer, needed, capacity = self.buffer, size + more, self.buffer.capacity
        # Memory for an eighth more, so that many small steps make few calls of the driver.
        ahead = min(max(needed, capacity + capacity // 8), buffer.reserved_size)
        if buffer.closed or buffer._idle().asleep:
            buffer.view()  # which says so
        _check_writable(buffer)
        self._check_reserved(needed)
        if capacity < needed < ahead:
            try:
                buffer.set_capacity(ahead)
            except (OutOfAddressSpace, OutOfDeviceMemory, OutOfHostMemory):
                pass  # there may be enough for what is needed
        buffer.resize(needed)
        if not size:  # of no bytes it cannot be said what the CPU may do
            _check_writable(buffer)

    def _check_reserved(self, size: int) -> None:
        """Fails in rows, the unit of the caller, and without the advice for other buffers."""
        most = self.buffer.reserved_size // self._row_bytes
        if self._most:  # which the buffer has rounded up
            most = min(most, self._most)
        if size > most * self._row_bytes:
            raise OutOfAddressSpace(f"the array has addresses for {most} rows, but {size // self._row_bytes} are needed; make it with a "
                                    "larger reserve")

    # ---- the end ----

    def close(self) -> None:
        """Closes the buffer. Raises BufferError while an array or a view is alive. A second call does nothing."""
        self.buffer.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.buffer.closed

    def _awaited(self) -> Set[Queue]:
        return self.buffer._queues()

    def __repr__(self) -> str:
        return f"<gpumem.GrowableArray: {self.typestr} rows of shape {self._row} in {self.buffer!r}>"


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _given(numpy: Any, rows: Any, dtype: Any) -> Any:
    """Rows as they are, before numpy casts them."""
    if hasattr(rows, "dtype"):
        return numpy.asarray(rows)
    if dtype.names is not None:
        return numpy.asarray(rows, _loose(numpy, dtype))
    given = numpy.asarray(rows)
    # No type of numpy has both 2**63 and -1, which together become floats.
    return numpy.asarray(rows, object) if given.dtype.kind == "f" and dtype.kind in "iu" else given


def _loose(numpy: Any, dtype: Any) -> Any:
    """A type with the same fields, whose values stay as they are given."""
    if dtype.subdtype:
        return numpy.dtype((_loose(numpy, dtype.base), dtype.shape))
    if dtype.names is None:
        return numpy.dtype(object)
    return numpy.dtype([(name, _loose(numpy, dtype.fields[name][0])) for name in dtype.names])


def _check_cast(numpy: Any, given: Any, target: Any) -> None:
    """Fails for values that cannot be cast by numpy's rule "same_kind". Integers only have to fit."""
    target = target.base
    if target.names is not None and given.dtype.names is not None and len(target.names) == len(given.dtype.names):
        for theirs, ours in zip(given.dtype.names, target.names):
            _check_cast(numpy, given[theirs], target.fields[ours][0])
        return
    values = given
    if given.dtype.kind == "O":
        found = given.ravel().tolist()
        if all(isinstance(value, numbers.Integral) for value in found):
            # As Python's integers, because numpy compares large ones as floats.
            given = numpy.asarray([isinstance(value, bool) or 0 for value in found])
        else:
            given = numpy.asarray([float(value) if isinstance(value, int) else value for value in found])
    if not given.size:
        return
    if given.dtype.kind in "iu" and target.kind in "iu":
        limits = numpy.iinfo(target)
        if not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
            raise OverflowError(f"a value does not fit into the type {target}")
    elif target.names is not None or not numpy.can_cast(given.dtype, target, "same_kind"):
        raise TypeError(f"rows of type {given.dtype} are not cast to {target}, which is of another kind; convert them first")


def _check_writable(buffer: Buffer) -> None:
    info = buffer._known()
    if info.host_pointer is None:
        raise BufferError(buffer._no_access)
    if info.granted_flags & MemoryFlags.READ_ONLY:
        raise InvalidArgument('the CPU may only read the array; give it the access "readwrite"')


def _clear(address: int, _: int, piece: int) -> None:
    ctypes.memset(address, 0, piece)


def _write(address: int, size: int, write: Callable[[int, int, int], Any]) -> None:
    """Writes so many bytes in pieces, between which Ctrl-C is answered: ``write(address, done, piece)``."""
    for done in range(0, size, LARGE):
        write(address + done, done, min(LARGE, size - done))
