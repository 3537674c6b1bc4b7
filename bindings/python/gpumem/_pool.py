# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pools: blocks of memory at the price of a few loads and stores."""

from __future__ import annotations

import atexit
import collections
import itertools
import re
import sys
import threading
import weakref
from ctypes import c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Set, Tuple, Union

from . import _infos
from . import _library as c
from ._calls import (GONE, ask, call, calling_back, create, destroy_quietly, encoded, finalizer, i32, lasting, leftovers, number,
                     report_unraisable, status_error, sweep, text, u64, untrack, with_room)
from ._codes import HandleTypes, Kind, MemoryFlags, PoolFlags
from ._dlpack import CPU, CUDA, CUDA_HOST, CUDA_MANAGED
from ._enums import code, known
from ._enums import flags as flags_of
from ._handles import Owner, Scoped, expect_device
from ._infos import MemoryInfo, PoolAttempt, PoolClass, pool_attempt
from ._known import PoolKnown
from ._managed import Managed
from ._memory import Region, queue_of
from ._ranges import access_entries, access_structs
from ._stream import Stream, native_stream_of
from ._waits import aside, on_main_thread
from .errors import Busy, Error, InvalidArgument, StaleHandle

if TYPE_CHECKING:
    from ._instance import Device, Instance
    from ._memory import Hold
    from ._ranges import Accesses
    from ._stream import Queue

    Callback = Callable[["Pool", int], object]

_CHOICE = "device, pinned, managed, pageable"
_ident = threading.get_ident
# Where a batch has ended, in the message of its failure.
_ENDED = re.compile(r"pointers\[(\d+)\]: ")


class _Order:
    """The stream in whose order a block is allocated or freed: none, one of this package, or one of other code."""

    __slots__ = ("stream", "handle", "native")

    def __init__(self, stream: Any) -> None:
        self.stream, self.native = stream, False  # which is kept alive
        self.handle: Optional[int] = None
        if isinstance(stream, Stream):
            self.handle = stream.handle
            untrack(self)  # so that the stream ends after the block, also in a cycle
        elif stream is not None:
            self.handle, self.native = native_stream_of(stream, "stream"), True

    def same(self, other: _Order) -> bool:
        return self.handle == other.handle and self.native == other.native


_NONE = _Order(None)
_MANY = 1 << 63


class Pool(PoolKnown, Owner):
    """Large pieces of memory, cut into blocks that are allocated and freed fast. ``device.pool()`` makes it.

    ``kind`` is "device", "pinned", "managed", or "pageable" for ordinary memory. ``memory_flags`` are properties that the
    memory must have. ``handle_types`` are "posix_fd" if blocks are to be shared by file descriptors; of a pool of "device"
    memory without ``memory_flags`` only. The pool takes at most ``limit`` bytes, and keeps what is freed, or with
    ``release_threshold`` that many bytes; with more, it gives back what is free down to ``low_water``. It takes
    ``initial_size`` bytes at once, and then at least ``segment_size`` bytes at a time. ``accesses`` are those of other
    devices, as in :meth:`Range.set_access`. ``flags`` are :class:`PoolFlags`.

    Blocks are allocated and freed in the order of a stream: a :class:`Stream`, or one of other code as :meth:`Stream.wrap`
    takes it. A block may be used at once by work of that stream, and what was enqueued before the free still has it. Work of
    other streams gets the memory only when that is complete. Without a stream, nothing may use a block any more when it is
    freed, and everyone may get it at once.

    A stream that is being captured into a graph gets blocks that belong to the capture until :meth:`release_capture`.

    The pool is closed by :meth:`close`, at the end of a ``with`` block, or when nothing refers to it and its blocks any more.
    """

    __slots__ = ("device", "kind", "memory_flags", "_callback", "_number", "_name")
    _destroyed_by = "gpumem_pool_destroy"
    _instead = "use the object itself: pools work from any thread"

    def __init__(self, device: Device, kind: Union[Kind, str, int] = "device", *, flags: Union[PoolFlags, str, int] = 0,
                 memory_flags: Union[MemoryFlags, str, int] = 0, handle_types: Union[HandleTypes, str, int] = 0,
                 numa_node: int = 0, limit: int = 0, release_threshold: int = 0, low_water: int = 0,
                 initial_size: int = 0, segment_size: int = 0, accesses: Optional[Accesses] = None,
                 name: Optional[str] = None) -> None:
        self._closed = True
        expect_device(device)
        desc = c.gpumem_pool_desc(
            kind=code(Kind, kind, "kind", _CHOICE), numa_node=i32(numa_node, "numa_node"),
            flags=flags_of(PoolFlags, flags, "flags"), memory_flags=flags_of(MemoryFlags, memory_flags, "memory_flags"),
            handle_types=flags_of(HandleTypes, handle_types, "handle_types"), limit=u64(limit, "limit"),
            release_threshold=u64(release_threshold, "release_threshold"), low_water=u64(low_water, "low_water"),
            initial_size=u64(initial_size, "initial_size"), segment_size=u64(segment_size, "segment_size"),
            name=encoded(name))
        if accesses is not None:
            entries = access_entries(accesses, device.instance)
            desc.accesses, desc.access_count = access_structs(entries), len(entries)
        self._callback: Optional[Callback] = None
        self.device, self._number, self._name = device, 0, name or ""
        self.kind: Kind = known(Kind, desc.kind or int(Kind.DEVICE))
        self.memory_flags = MemoryFlags(desc.memory_flags)
        self._own(create(c.gpumem_pool_create, c.gpumem_pool_destroy, device.handle, desc))
        device.instance._pools[self._handle] = self

    # ---- blocks ----

    def alloc(self, size: int, stream: Any = None, *, alignment: int = 0) -> PoolBlock:
        """Allocates a block in the order of a stream, or without one. Its contents are indeterminate. It is aligned to 16
        bytes in memory of the host, and to 256 in other kinds, or to ``alignment``. A block of 0 bytes has no address."""
        order = _NONE if stream is None else _Order(stream)
        # The usual case, kept short. What fails is called again, for the detail of the error.
        if alignment.__class__ is size.__class__ is int and not (self._callback or alignment or order.native or leftovers) and (
                0 <= size < _MANY):
            out, block = c_void_p(), PoolBlock._of(self, 0, size, order)
            try:
                if c.gpumem_pool_alloc(self._handle, size, order.handle, out, None) == 0:
                    block._start = out.value or 0
                    return block
            except BaseException:  # a signal handler raised as the call returned
                block._start = out.value or 0  # with which it is dropped
                raise
        size, out = u64(size, "size"), c_void_p()
        block = PoolBlock._of(self, 0, size, order)
        try:
            self._allocate(out, size, order, u64(alignment, "alignment"))
        finally:
            block._start = out.value or 0
        return block

    def try_alloc(self, size: int, stream: Any = None, *, alignment: int = 0) -> Tuple[Optional[PoolBlock], PoolAttempt]:
        """Allocates a block as :meth:`alloc` does if the pool has one free: it waits for nothing and takes no memory. If there is none,
        or another thread is changing the pool, the block is None, and the attempt says what would help. A stream of other code is
        wrapped for the call, which asks the driver."""
        order = _Order(stream)
        size, wanted, out = u64(size, "size"), u64(alignment, "alignment"), c_void_p()
        attempt = c.gpumem_pool_attempt()
        block = PoolBlock._of(self, 0, size, order)
        try:
            with order_handle(self, order) as handle:
                status = call(c.gpumem_pool_try_alloc, self._handle, size, wanted, handle, out, attempt)
        finally:
            block._start = out.value or 0
        return None if status == c.GPUMEM_NOT_READY else block, pool_attempt(attempt)

    def _allocate(self, out: c_void_p, size: int, order: _Order, alignment: int) -> None:
        if leftovers:
            sweep()
        if alignment:
            with order_handle(self, order) as handle:
                self._call(c.gpumem_pool_alloc_aligned, self._handle, size, alignment, handle, out)
        elif order.native:
            self._call(c.gpumem_pool_alloc_native, self._handle, size, order.handle, out)
        else:
            self._call(c.gpumem_pool_alloc, self._handle, size, order.handle, out)

    def alloc_batch(self, sizes: Iterable[int], stream: Any = None) -> List[PoolBlock]:
        """Allocates a block of each size in the order of a stream, all or none."""
        wanted = _sizes(sizes)
        if leftovers:
            sweep()
        order, count = _Order(stream), len(wanted)
        if not count:
            return []
        out, blocks = (c_void_p * count)(), [PoolBlock._of(self, 0, size, order) for size in wanted]
        addresses = (c_size_t * count).from_buffer(out)
        try:
            with order_handle(self, order) as handle:
                self._call(c.gpumem_pool_alloc_batch, self._handle, (c_uint64 * count)(*wanted), count, handle, out)
            _set_starts(blocks, addresses)
        except BaseException:  # a signal handler raised as a call returned
            _set_starts(blocks, addresses)  # with which they are dropped
            raise
        return blocks

    def free_batch(self, blocks: Iterable[Optional[PoolBlock]], stream: Any = "own") -> None:
        """Frees blocks as :meth:`PoolBlock.free` does, those of a stream in one call. Those that were freed before, and None,
        are skipped. If one cannot be freed, those before it are freed, and it and all behind it are not."""
        found: List[Tuple[PoolBlock, _Order]] = []
        taken: List[PoolBlock] = []
        try:
            for block in blocks:
                if block is None:
                    continue
                if not isinstance(block, PoolBlock):
                    raise TypeError(f"blocks must be gpumem.PoolBlock, not a {type(block).__name__}")
                if block.pool is not self:
                    raise InvalidArgument("a block is of another pool")
                if not block._take():  # freed, or there twice
                    continue
                taken.append(block)
                found.append((block, block._release_order(stream)))
            while found:
                order = found[0][1]
                count = next((at for at, (_, other) in enumerate(found) if not other.same(order)), len(found))
                self._free_batch([block for block, _ in found[:count]], order)
                del found[:count]
        finally:
            for block in taken:
                if not block._freed:
                    block._open = True

    def _free_batch(self, blocks: List[PoolBlock], order: _Order) -> None:
        if self._closed or order.native:
            for block in blocks:
                block._free(order)
            return
        count, detail = len(blocks), c.gpumem_error()
        starts = (c_void_p * count)(*(block._start for block in blocks))
        # Noted first, as in `_free`, and in one step with the call.
        done: List[Any] = []
        done.extend(itertools.chain(map(_set_freed, blocks, itertools.repeat(True)), map(
            c.gpumem_pool_free_batch, (self._handle,), (starts,), (count,), (order.handle,), (detail,))))
        if done[-1] < 0 and not self.device.instance._closed:
            problem = status_error(done[-1], detail)
            ended = _ENDED.match(text(detail.message))
            for block in blocks[int(ended[1]) if ended else 0:]:
                block._freed = False
            raise problem

    # ---- plain addresses ----

    def malloc(self, size: int, stream: Any = None, *, alignment: int = 0) -> int:
        """Allocates a block and returns only its address. Free it with :meth:`free` or :meth:`Instance.free_block`."""
        # The usual case of allocators of other packages, kept short, as in `alloc`.
        out = c_void_p()
        if stream.__class__ is size.__class__ is alignment.__class__ is int and 0 <= size < _MANY and 0 <= stream < 1 << 64 and not (
                self._callback or alignment or leftovers):
            try:
                if c.gpumem_pool_alloc_native(self._handle, size, stream, out, None) == 0:
                    return out.value or 0
            except BaseException:  # a signal handler raised as the call returned
                if out.value:
                    self._drop(out.value, stream)
                raise
        size, order = u64(size, "size"), _Order(stream)
        try:
            self._allocate(out, size, order, u64(alignment, "alignment"))
            return out.value or 0
        except BaseException:
            if out.value:
                _free(_Address(), self, out.value, size, order)
            raise

    def free(self, pointer: int, stream: Any = None) -> None:
        """Frees a block of :meth:`malloc` in the order of a stream. Without one, no work uses it any more.

        Leave a :class:`PoolBlock` to itself. This raises BufferError while a view of it is alive, but otherwise it would later free the
        block that is at its address then.
        """
        order, address = _Order(stream), u64(pointer, "pointer")
        _check_views(self.device.instance, address)
        function = c.gpumem_pool_free_native if order.native else c.gpumem_pool_free
        call(function, self._handle, address, order.handle)

    def _drop(self, pointer: int, stream: int, keep: Any = None, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Frees a block of :meth:`malloc` in the order of a native stream for a finalizer of another package, as the one of
        :class:`PoolBlock` does: now or later, and without an exception. ``keep``, such as the stream, is kept alive until then."""
        if finalizing() or not (calling_back or self._closed) and c.gpumem_pool_free_native(
                self._handle, pointer, stream, None) == 0 or self.device.instance._closed:
            return
        order = _Order(stream)
        block = _Address()
        destroy_quietly(lambda address, _: _free(block, self, address, 0, order), pointer, keep)

    # ---- the pool itself ----

    def trim(self, keep: int = 0) -> int:
        """Releases what is free, until the pool has no more than ``keep`` bytes, and returns the bytes that it has released.
        Blocks that live stay, and so do freed ones whose work is not complete."""
        return number(c.gpumem_pool_trim, self._handle, u64(keep, "keep"))

    def release_capture(self, capture_id: int, stream: Any = None) -> None:
        """Releases what belongs to a capture into a graph, by the number of :meth:`Stream.capture_id`, when the graph is not
        launched any more: behind the work that ``stream`` has now, or at once. Blocks that live are ordinary ones then."""
        with order_handle(self, _Order(stream)) as handle:
            call(c.gpumem_pool_release_capture, self._handle, u64(capture_id, "capture_id"), handle)

    def capacity_for(self, sizes: Iterable[int]) -> int:
        """How many bytes a pool takes to hold blocks of these sizes at the same time, what rounding adds included. It does not
        depend on what the pool has. A pool with that as its ``initial_size`` serves them, to one thread in one stream, without
        taking more the first time."""
        wanted = _sizes(sizes)
        return number(c.gpumem_pool_capacity_for, self._handle, (c_uint64 * len(wanted))(*wanted), len(wanted))

    def set_limit(self, bytes: int) -> None:
        """Sets how many bytes the pool takes at most; 0 means no limit. It releases nothing: see :meth:`trim`."""
        call(c.gpumem_pool_set_limit, self._handle, u64(bytes, "bytes"))

    def set_release_threshold(self, bytes: int) -> None:
        """Sets how many bytes the pool keeps when blocks are freed; 0 means that it keeps all."""
        call(c.gpumem_pool_set_release_threshold, self._handle, u64(bytes, "bytes"))

    def reset_peaks(self) -> None:
        """Resets the peaks of the pool to what it has now."""
        call(c.gpumem_pool_reset_peaks, self._handle)

    def classes(self) -> List[PoolClass]:
        """The size classes, from small to large. Larger blocks than the last one has are cut to measure."""
        return [_infos.pool_class(ask(c.gpumem_pool_get_class_info, c.gpumem_pool_class_info(), self._handle, at))
                for at in range(self.info().class_count)]

    def set_callback(self, function: Optional[Callback]) -> None:
        """Sets the function that is called when the pool cannot get memory; None for none.

        ``function(pool, size)`` is the time to free blocks of the pool or other memory: ``size`` bytes are missing. If what it
        returns is true, the allocation is tried again. It runs on the thread that allocates, and an exception in it is raised
        there. It may allocate from the pool, but is not called again then; it must not call :meth:`close`, :meth:`trim` and
        :meth:`set_callback` of the pool. The pool keeps it until another one is set.
        """
        if function is not None and not callable(function):
            raise TypeError(f"the callback must be callable or None, not a {type(function).__name__}")
        if function is None:
            call(c.gpumem_pool_set_callback, self._handle, c.gpumem_pool_callback(), None)
            self._callback = None
            return
        self._number = self._number or next(_numbers)
        _called[self._number] = self
        call(c.gpumem_pool_set_callback, self._handle, _callback_function, self._number)
        self._callback = function

    def _call(self, function: Callable[..., int], *arguments: Any) -> int:
        """Calls a function that allocates."""
        return with_room(self._call_once, function, *arguments)

    def _call_once(self, function: Callable[..., int], *arguments: Any) -> int:
        """Calls a function that may call the callback. Its exception is raised here."""
        if self._callback is None:
            return call(function, *arguments)
        thread = _ident()
        former = _allocating.get(thread)
        problems = _allocating[thread] = []
        try:
            return call(function, *arguments)
        except Error:
            if not problems:
                raise
            raise problems.pop()
        finally:
            del problems
            if former is None:
                del _allocating[thread]
            else:
                _allocating[thread] = former

    # ---- the end ----

    def close(self) -> None:
        """Closes the pool. It waits until the work before the frees is complete; the host backend in strict mode raises Busy
        until that was observed. Blocks that live stay usable, and the memory goes back with the last one. A second call does
        nothing."""
        if self._closed:
            return
        if on_main_thread() and _ident() not in _allocating:
            aside(self._destroy)  # which answers Ctrl-C
        else:
            self._destroy()

    def _destroy(self) -> None:
        try:
            call(c.gpumem_pool_destroy, self._handle)
        except Error as problem:
            if problem.code not in GONE:
                raise
        self._closed = True

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        try:
            info = self.info()
        except Exception as problem:
            return f"<gpumem.Pool{name}, closed>" if self._closed else f"<gpumem.Pool{name}: {problem}>"
        return (f"<gpumem.Pool{name}: {self.kind}, {info.live_count} block{'s' * (info.live_count != 1)} in "
                f"{info.reserved_bytes} bytes, device {self.device.ordinal}>")


class order_handle:
    """The handle of the stream of an order, for a function that takes no stream of other code."""

    __slots__ = ("_pool", "_order", "_wrapped")

    def __init__(self, pool: Pool, order: _Order) -> None:
        self._pool, self._order = pool, order

    def __enter__(self) -> Optional[int]:
        self._wrapped = Stream.wrap(self._pool.device, self._order.handle or 0) if self._order.native else None
        return self._order.handle if self._wrapped is None else self._wrapped.handle

    def __exit__(self, *_: Any) -> None:
        if self._wrapped is not None:
            self._wrapped.close()


class _Address:
    """A block of which there is only the address."""

    __slots__ = ("_freed",)

    def __init__(self) -> None:
        self._freed = False


def _free(block: Union[PoolBlock, _Address], pool: Pool, address: int, size: int, order: _Order, detail: Any = None) -> int:
    """Frees a block of a pool, which may be closed, unless it is freed. Returns the status."""
    # Noted first, because a signal handler may raise as the call returns, and nobody may free the block once more. Between the
    # note and the call no handler runs.
    status: int = 0
    if not (block._freed or pool._closed):
        function, sizes = (c.gpumem_pool_free_native, ()) if order.native else (c.gpumem_pool_free_sized, (size,))
        arguments = (pool._handle, address, *sizes, order.handle, detail)
        block._freed = True
        status = function(*arguments)
        block._freed = status >= 0
        if status not in GONE:
            return status
    if not block._freed:  # The pool is closed, unless it is the stream.
        with order_handle(pool, order) as handle:
            instance = pool.device.instance._handle
            block._freed = True
            status = c.gpumem_pool_free_pointer(instance, address, handle, detail)
            block._freed = status >= 0
    return status


def _free_behind(queues: Iterable[Queue], block: PoolBlock, pool: Pool, address: int, size: int, order: _Order) -> int:
    """Frees a block that work in streams uses, for its finalizer, which does not wait. Returns the status."""
    own = getattr(order.stream, "_queue", None)
    for queue in queues:
        behind = order.handle is not None and not pool._closed and (
            queue is own or c.gpumem_pool_record_use(pool._handle, address, queue.handle, None) == 0)
        if not (behind or queue.idle()):
            return c.GPUMEM_ERROR_BUSY  # type: ignore[no-any-return]
    return _free(block, pool, address, size, order)


def _sizes(sizes: Iterable[int]) -> List[int]:
    return [u64(size, f"sizes[{at}]") for at, size in enumerate(sizes)]


def _check_views(instance: Instance, address: int) -> None:
    if instance._views:
        instance._check_views(address, (Kind.POOL,), "gpumem_pool_free")


def free_pointer(instance: Instance, pointer: int, stream: Any) -> None:
    """Frees a block by its address alone."""
    address, order = u64(pointer, "pointer"), _Order(stream)
    _check_views(instance, address)
    if not order.native:
        call(c.gpumem_pool_free_pointer, instance._handle, address, order.handle)
        return
    # The stream is one of the device of the block.
    info = ask(c.gpumem_pointer_get_info, c.gpumem_pointer_info(), instance._handle, address)
    with Stream.wrap(instance.device(info.device_ordinal), order.handle) as wrapped:
        call(c.gpumem_pool_free_pointer, instance._handle, address, wrapped.handle)


class PoolBlock(Region, Managed, Scoped):
    """A block of a :class:`Pool`: :meth:`Pool.alloc` returns it. It is copied, filled, viewed and given to other libraries as
    memory is.

    It may be used by work of the stream that it was allocated in; order other work, and the CPU, behind that stream. It is
    freed by :meth:`free`, at the end of a ``with`` block, or when nothing refers to it any more.
    """

    __slots__ = ("device", "pool", "_start", "_size", "_order", "_holds", "_info", "_open", "_freed", "_wrapped",
                 "__weakref__")

    if TYPE_CHECKING:
        pool: Pool
        _start: int
        _size: int
        _order: _Order
        _open: bool
        _freed: bool
        _wrapped: Optional[Dict[Optional[int], Stream]]

    def __init__(self) -> None:
        raise TypeError("get blocks from Pool.alloc()")

    @classmethod
    def _of(cls, pool: Pool, address: int, size: int, order: _Order) -> PoolBlock:
        self = _new(cls)
        self.device, self.pool, self._start, self._size, self._order = pool.device, pool, address, size, order
        self._holds, self._info, self._freed, self._wrapped = set(), None, False, None
        self._open = True  # see Memory
        return self  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return (f"<gpumem.PoolBlock: {self.pool.kind}, {self._size} bytes, device {self.device.ordinal}"
                f"{', freed' if self._freed else ''}>")

    # ---- its end ----

    def free(self, stream: Any = "own") -> None:
        """Frees the block in the order of a stream, by default the one that it was allocated in. None, and no stream at the
        allocation, means that no work uses it any more. A second call does nothing.

        Work of other streams that was enqueued through this package is waited for too, without holding up the caller; for
        work of other code there, see :meth:`record_use`. Raises BufferError while a view of the block is alive, and Busy if
        there is no stream and work that uses the block was not observed complete. The block may be freed after its pool was
        closed.
        """
        try:
            del self._open  # before what holds it is counted, as in Memory
        except AttributeError:
            return
        order = self._order
        # The usual case, kept short, as in `alloc`. Noted first, because a signal handler may raise as the call returns, and
        # nobody may free the block once more.
        if stream.__class__ is str and stream == "own" and not (self._holds or order.native):
            self._freed = True
            if c.gpumem_pool_free_sized(self.pool._handle, self._start, self._size, order.handle, None) == 0:
                return
            self._freed = False
        try:
            order = self._release_order(stream)
        except BaseException:
            self._open = True
            raise
        try:
            self._free(order)
        finally:
            if not self._freed:
                self._open = True
        self._wrapped = None

    def _free(self, order: _Order) -> None:
        detail = c.gpumem_error()
        status = _free(self, self.pool, self._start, self._size, order, detail)
        if status < 0:
            if not (status in GONE and self.device.instance._closed):
                raise status_error(status, detail)
            self._freed = True

    def close(self) -> None:
        """Frees the block; see :meth:`free`."""
        self.free()

    def _take(self) -> bool:
        """Whether this call frees the block, and not another one."""
        try:
            del self._open
            return True
        except AttributeError:
            return False

    def _release_order(self, stream: Any) -> _Order:
        """The order in which the block is freed. Checks what holds it, and records the use by other streams."""
        if isinstance(stream, str):
            if stream != "own":
                raise InvalidArgument(f'stream is {stream!r}; it must be "own", None, a Stream or a stream of other code')
            order = self._order
            if isinstance(order.stream, Stream) and order.stream.closed:
                order = _NONE  # it has waited for its work
        else:
            order = _Order(stream)
        if not self._holds:
            return order
        if self._viewed():
            raise BufferError("the block cannot be freed while views of it are alive, or a call copies or fills it; drop "
                              "arrays, memoryviews and tensors of other libraries first, for example with del")
        others: Set[Any] = {queue for queue in super()._queues() if queue is not getattr(order.stream, "_queue", None)}
        if others and order.handle is None and not order.native:
            raise Busy("work in a stream uses the block and was not observed complete; synchronize the stream first, or free the "
                       "block in its order", function="gpumem_pool_free")
        if not self.pool._closed:
            for queue in others:
                if order.native and queue.native_handle() == order.handle:
                    continue  # it is the same stream
                call(c.gpumem_pool_record_use, self.pool._handle, self._start, queue.handle)
        return order

    def record_use(self, stream: Any) -> None:
        """Records that work of a stream uses the block, besides the stream in whose order it will be freed. The memory is not
        reused before the work is complete that the stream has at the time of the free."""
        self.info()
        if stream is None:
            raise TypeError("stream must be a stream, not None")
        order = _Order(stream)
        if order.native:
            order = _Order(self._wrap(order))
        call(c.gpumem_pool_record_use, self.pool._handle, self._start, order.handle)

    @property
    def closed(self) -> bool:
        """Whether the block was freed."""
        return not hasattr(self, "_open")

    # ---- its memory ----

    @property
    def size(self) -> int:
        """Bytes that were asked for."""
        return self._size

    @property
    def nbytes(self) -> int:
        """The same as :attr:`size`."""
        return self._size

    @property
    def stream(self) -> Any:
        """The stream that it was allocated in, or None."""
        return self._order.stream

    def info(self) -> MemoryInfo:
        """Information about the memory of the block. ``granted_size`` are the bytes that may be used."""
        if self._freed:
            raise StaleHandle("the block was freed")
        instance, usable = self.device.instance, 0
        host: Optional[int] = self._start
        device: Optional[int] = self._start
        if self._start:
            usable = ask(c.gpumem_pool_get_block_info, c.gpumem_pool_block_info(), instance._handle, self._start).usable_size
            if self.pool.kind not in (Kind.DEVICE, Kind.MANAGED):
                device = ask(c.gpumem_pointer_get_info, c.gpumem_pointer_info(), instance._handle, self._start).device_pointer
        if self.pool.kind == Kind.DEVICE:
            host = None
        flags = self.pool.memory_flags
        self._info = MemoryInfo(Kind.POOL, -1, self.device.ordinal, host, device, self._size, usable, 0, flags, flags, 0,
                                self.pool._name)
        return self._info

    def _of_device(self) -> Device:
        return self.device

    def _lasting(self, operand: Any) -> Any:
        """Without the stream of the allocation, which would never end. The finalizer frees the block behind the work."""
        return self.pool if isinstance(self._order.stream, Stream) else operand

    def _dlpack_device(self, host: bool) -> Optional[Tuple[int, int]]:
        kind = self.pool.kind
        if kind == Kind.DEVICE:
            return None if host else (CUDA, self.device.ordinal)
        if host or kind == Kind.PAGEABLE:
            return CPU, 0
        return (CUDA_MANAGED, self.device.ordinal) if kind == Kind.MANAGED else (CUDA_HOST, 0)

    def _wrap(self, order: _Order) -> Stream:
        """A stream of other code as one of this package, which lives as long as the block."""
        wrapped = self._wrapped = self._wrapped or {}
        if order.handle not in wrapped:
            wrapped[order.handle] = Stream.wrap(self.device, order.handle)
        return wrapped[order.handle]

    def _queues(self) -> Set[Queue]:
        """Other libraries come behind the stream of the allocation, too: the memory may have been freed in it."""
        queues = super()._queues()
        stream = self._order.stream
        if self._order.native:
            stream = self._wrap(self._order)
        if stream is not None and not stream.closed:
            queues.add(stream._queue)
        return queues


_new: Any = object.__new__

# ---- the callback ----

# Threads that allocate from a pool with a callback, each with the exceptions of the callback.
_allocating: Dict[int, List[BaseException]] = {}
# Pools with a callback, by the number that is passed as user data.
_called: weakref.WeakValueDictionary[int, Pool] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def _lacking(number: int, _: Any, size: int) -> int:
    function: Optional[Callback] = None
    try:
        pool = _called.get(number)
        function = None if pool is None else pool._callback
        return 0 if function is None or pool is None else int(bool(function(pool, size)))
    except BaseException as problem:
        problems = _allocating.get(_ident())
        if problems is None:  # other code allocates from the pool
            report_unraisable(function)
        else:
            problems.append(problem)
        return 0


_callback_function = lasting("gpumem_pool_callback", _lacking)


@atexit.register
def _at_exit() -> None:
    """The library must not call into an interpreter that has ended."""
    for pool in list(_called.values()):
        if not pool.closed and pool._callback is not None:
            c.gpumem_pool_set_callback(pool.handle, c.gpumem_pool_callback(), None, None)


def _set_starts(blocks: List[PoolBlock], addresses: Iterable[int]) -> None:
    # In one call of C, in the middle of which no signal handler runs.
    collections.deque(map(_set_start, blocks, addresses), maxlen=0)


_set_freed: Callable[[PoolBlock, bool], None] = PoolBlock.__dict__["_freed"].__set__
_set_start: Callable[[PoolBlock, int], None] = PoolBlock.__dict__["_start"].__set__


# The names of the module are gone at the end of the interpreter, but not what a function encloses.
def _block_finisher(finalizing: Callable[[], bool], destroy: Callable[..., None], free: Callable[..., int],
                    queue_of: Callable[[Hold], Optional[Queue]], none: _Order, threads: Set[Any],
                    last: Any) -> Callable[[PoolBlock], None]:
    def finish(self: PoolBlock) -> None:
        """Frees the block in the order of its stream unless it was freed."""
        try:
            if self._freed or finalizing() or not self._start:
                return
        except AttributeError:
            return
        pool, size, order = self.pool, self._size, self._order
        if not (threads or order.native or pool._closed or self._holds):
            handle, start, stream, self._freed = pool._handle, self._start, order.handle, True  # noted first, as in PoolBlock.free()
            if last.gpumem_pool_free_sized(handle, start, size, stream, None) == 0:
                return
            self._freed = False
        if getattr(order.stream, "closed", False):
            order = none
        queues = [queue for queue in map(queue_of, self._holds.copy()) if queue]
        destroy(lambda address, _: free(queues, self, pool, address, size, order), self._start)
    return finish


finalizer(PoolBlock, _block_finisher(sys.is_finalizing, destroy_quietly, _free_behind, queue_of, _NONE, calling_back, c))
