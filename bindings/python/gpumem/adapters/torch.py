# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gpumem under PyTorch.

:func:`install` makes PyTorch take its GPU memory from pools of gpumem, :func:`mem_pool` does it for a part of a program, and
:func:`as_tensor` and :func:`from_tensor` hand memory over without a copy, through DLPack. :func:`empty_pinned` makes pinned tensors,
and :class:`SleepPool` tensors that sleep.
docs/pytorch.md is the guide.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from ctypes import c_double, c_int, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, SupportsIndex, Tuple, Union

import torch

import gpumem

from .. import _library
from .._calls import call
from .._dlpack import CPU, CUDA, CUDA_HOST, CUDA_MANAGED
from .._memory import Region, extent
from . import _plug_in
from ._torch_sleep import Saver

if TYPE_CHECKING:
    from .._codes import Content
    from .._infos import GroupInfo
    from .._sleeping import Directory


class _As:
    """A view for PyTorch, on a device that it knows by DLPack: it refuses pinned and managed memory under their own names."""

    def __init__(self, view: gpumem.View) -> None:
        kind, number = view.__dlpack_device__()
        self._view = view
        self._device = {CUDA_HOST: (CPU, 0), CUDA_MANAGED: (CUDA, number)}.get(kind, (kind, number))

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None, **_: Any) -> Any:
        if self._device[0] == CPU:
            # PyTorch does not know read-only tensors, and the CPU may not write there. Without a version, such memory is refused.
            max_version = None
        return self._view.__dlpack__(stream=stream, max_version=max_version, dl_device=self._device, copy=False)


def as_tensor(memory: Union[Region, gpumem.View], dtype: Any = None, shape: Any = None, *, offset: int = 0) -> torch.Tensor:
    """A tensor over a view, or over memory of any kind: a Memory, a Buffer, a part of a range, a block of a pool or an import. It is
    on the GPU for device and managed memory of the cuda backend, otherwise on the CPU.

    The memory is kept alive, and cannot be closed, while the tensor's storage is alive. ``is_pinned()`` of a tensor over
    pinned memory is True. PyTorch's current stream comes after the work in streams of gpumem that uses memory of the GPU.
    """
    if isinstance(memory, Region):
        memory = memory.view(dtype, shape, offset=offset)
    elif not isinstance(memory, gpumem.View):
        raise TypeError(f"memory must be memory of gpumem or a view of it, not a {type(memory).__name__}")
    elif dtype is not None or shape is not None or offset:
        raise TypeError("a view has its type, shape and offset already")
    return torch.from_dlpack(_As(memory))


def from_tensor(tensor: torch.Tensor, *, stream: Any = None) -> gpumem.View:
    """A view of a tensor, for copies by gpumem. It keeps the tensor's storage alive. ``stream`` as for
    :func:`gpumem.from_dlpack`: pass the one that uses the view, or wait for PyTorch's stream before."""
    return gpumem.from_dlpack(tensor.detach(), stream=stream)


# ---- pinned memory ----

_pinned_pools: Dict[int, gpumem.Pool] = {}  # by the number of the GPU
_streams: Dict[Tuple[int, int], gpumem.Stream] = {}  # PyTorch's, by GPU and handle: a use counts while its stream is wrapped


@functools.lru_cache(maxsize=None)
def _instance() -> gpumem.Instance:
    return gpumem.Instance("cuda", name="torch")


def pinned_pool(device: Any = None) -> gpumem.Pool:
    """The pool of a GPU, by default the current one, from which :func:`empty_pinned` takes memory: for its ``info()``, ``trim()``
    and ``set_limit()``."""
    index = _index(device)
    with _lock:
        if index not in _pinned_pools:
            _pinned_pools[index] = _instance().device(index).pool("pinned", name="torch")
        return _pinned_pools[index]


def empty_pinned(*size: Any, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """As ``torch.empty(*size, dtype=dtype, pin_memory=True)``, in memory of a pool of gpumem.

    The memory goes back to the pool with the last tensor over it, and is used again once the work is complete that
    PyTorch's current stream of this call has by then. So a copy with ``non_blocking=True`` in that stream may still run. Name
    other streams by :func:`record_stream`.
    """
    kind = torch.get_default_dtype() if dtype is None else dtype
    shape, count = extent(size[0] if len(size) == 1 else size, kind.itemsize)
    # In no stream, since the CPU may write it at once: earlier work has ended then.
    block = pinned_pool().alloc(max(count, 1))
    _record_use(block.pool, int(block), torch.cuda.current_stream())
    return as_tensor(block, "u1", count).view(kind).view(shape)


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """As ``tensor.record_stream(stream)``, which PyTorch has for tensors on a GPU only, for one of :func:`empty_pinned`: its memory
    is not used again before the work of the stream is complete, too."""
    address = tensor.untyped_storage().data_ptr()
    if not address:  # it has no elements
        return
    try:
        pool = _instance().block_info(address).pool
    except gpumem.NotFound:
        pool = None
    if pool is None:
        raise ValueError("the tensor is not one of empty_pinned()")
    _record_use(pool, address, stream)


def _record_use(pool: gpumem.Pool, address: int, stream: Any) -> None:
    key = int(stream.device.index), int(stream.cuda_stream)
    with _lock:
        wrapped = _streams.get(key)
        if wrapped is None:
            wrapped = _streams[key] = gpumem.Stream.wrap(_instance().device(key[0]), key[1])
    call(_library.gpumem_pool_record_use, pool.handle, address, wrapped.handle)


# ---- the allocator ----

class _Stats(ctypes.Structure):
    """gpumem_torch_stats of adapters/torch/allocator.cpp."""
    _fields_ = [(name, c_uint64) for name in (
        "live_count", "live_bytes", "reserved_bytes", "segment_count", "peak_live_count", "peak_live_bytes", "peak_reserved_bytes",
        "total_count", "total_bytes", "grow_count", "release_count", "retry_count", "failure_count", "limit", "total_memory")]


class _Block(ctypes.Structure):
    """gpumem_torch_block of the same file."""
    _fields_ = [(name, c_uint64) for name in (
        "first", "second", "device", "stream", "address", "size", "begins_segment", "state")]


_STATES = ("inactive", "active_allocated", "active_awaiting_free")  # as PyTorch names them

# Hook -> its setter in PyTorch.
_HOOKS = {
    "gpumem_torch_init": "set_init_fn",
    "gpumem_torch_reset": "set_reset_fn",
    "gpumem_torch_memory_fraction": "set_memory_fraction_fn",
    "gpumem_torch_base_alloc": "set_base_alloc_fn",
    "gpumem_torch_record_stream": "set_record_stream_fn",
    "gpumem_torch_begin_allocate_to_pool": "set_begin_allocate_to_pool",
    "gpumem_torch_end_allocate_to_pool": "set_end_allocate_to_pool_fn",
    "gpumem_torch_release_pool": "set_release_pool",
}

_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None
_installed = False
_allocators: List[Any] = []  # PyTorch keeps a bare pointer
_since: Dict[int, _Stats] = {}  # when accumulated statistics were reset


def library_path() -> str:
    """The file that PyTorch loads: the one that the environment variable GPUMEM_TORCH_LIBRARY names, or the one in this package,
    or the one that belongs to the library of gpumem, installed or in its build folder."""
    # GPUMEM_TORCH_LIBRARY | a file | that of the package, or beside the library | `libgpumem-torch.so`: [PyTorch](pytorch.md)
    return _plug_in.path("libgpumem-torch.so", "GPUMEM_TORCH_LIBRARY")


def _load() -> ctypes.CDLL:
    global _loaded
    with _lock:
        if _loaded is None:
            library = _plug_in.load(library_path())
            for name, result, arguments in (
                    ("get_stats", c_int, [c_int, ctypes.POINTER(_Stats)]), ("reset_peaks", None, [c_int]),
                    ("get_blocks", c_uint64, [ctypes.POINTER(_Block), c_uint64]),
                    ("try_reset", c_int, [ctypes.POINTER(_library.gpumem_error)]), ("pool", c_void_p, [c_int]),
                    ("try_memory_fraction", c_int, [c_double, c_int, ctypes.POINTER(_library.gpumem_error)]),
                    ("base_alloc", c_void_p, [c_void_p, ctypes.POINTER(c_size_t)])):
                function = getattr(library, "gpumem_torch_" + name)
                function.restype, function.argtypes = result, arguments
            _loaded = library
    return _loaded


def allocator() -> Any:
    """A ``torch.cuda.memory.CUDAPluggableAllocator`` with all its hooks set, for
    ``torch.cuda.memory.change_current_allocator``."""
    library = _load()
    made = torch.cuda.memory.CUDAPluggableAllocator(library_path(), "gpumem_torch_alloc", "gpumem_torch_free")
    inner = made.allocator()
    for hook, setter in _HOOKS.items():
        getattr(inner, setter)(ctypes.cast(getattr(library, hook), c_void_p).value)
    _allocators.append(made)
    return made


def install() -> None:
    """Makes PyTorch allocate all GPU memory from pools of gpumem: one for each GPU, and one for each private pool of CUDA graphs.

    Call it before PyTorch uses the GPU, once for the process; a second call does nothing. ``torch.cuda.memory_stats()`` and all
    that is built on it, ``memory_snapshot()``, ``reset_peak_memory_stats()`` and ``get_per_process_memory_fraction()`` then answer
    from gpumem: with an allocator that is plugged in they would fail, so this replaces the functions of ``torch._C`` below them.
    It also replaces the one below ``torch.cuda.empty_cache()``, so that other threads of Python run while that waits.
    ``torch.compile(mode="reduce-overhead")`` needs from the allocator what cannot be plugged in, unless
    ``torch._inductor.config.triton.cudagraph_trees`` is off: so this turns that off.
    """
    global _installed
    if _installed:
        return
    made = allocator()
    try:
        torch.cuda.memory.change_current_allocator(made)
    except RuntimeError as problem:
        raise RuntimeError("PyTorch has used the GPU already; call gpumem.adapters.torch.install() before that, right after "
                           f"importing torch ({problem})") from None
    _installed = True
    inside = torch._C
    for name, function in (("_cuda_memoryStats", _nested_stats), ("_cuda_memorySnapshot", _snapshot),
                           ("_cuda_resetPeakMemoryStats", _reset_peaks), ("_cuda_emptyCache", empty_cache),
                           ("_cuda_resetAccumulatedMemoryStats", _reset_accumulated),
                           ("_cuda_getMemoryFraction", _memory_fraction)):
        if hasattr(inside, name):
            setattr(inside, name, function)
    try:
        from torch._inductor import config
        config.triton.cudagraph_trees = False
    except (ImportError, AttributeError):
        pass  # a PyTorch without torch.compile, or without such a choice


def installed() -> bool:
    """Whether PyTorch allocates from gpumem."""
    return _installed


def mem_pool(**options: Any) -> Any:
    """A ``torch.cuda.MemPool`` over memory of gpumem, for ``torch.cuda.use_mem_pool``. ``options`` are those of MemPool.

    It is for programs that did not call :func:`install`: PyTorch's own allocator cuts what the pool takes from gpumem.
    """
    made = torch.cuda.memory.CUDAPluggableAllocator(library_path(), "gpumem_torch_segment_alloc", "gpumem_torch_free")
    _allocators.append(made)
    return torch.cuda.MemPool(made.allocator(), **options)


# ---- memory that sleeps ----

@functools.lru_cache(maxsize=None)
def _saver() -> Saver:
    return Saver()


class SleepPool:
    """Memory for tensors that sleep: it goes back to the GPU, and comes again at the same addresses, with the content if that was
    kept. So what refers to the tensors stays as it is, captured graphs too.

    ``with pool.use():`` makes what this thread allocates in it part of the pool. The memory belongs to the tag: it outlives the
    object, and pools with the same tag sleep and wake together. It is for programs that did not call :func:`install`.
    """

    def __init__(self, tag: str) -> None:
        if not isinstance(tag, str) or not 0 < len(tag.encode()) <= 63 or not tag.isprintable():
            raise ValueError(f"the tag is {tag!r}; it must be text of 1 to 63 bytes without control characters")
        self.tag = tag

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Makes what this thread allocates within part of the pool. Gradients, which other threads allocate, are not. A part of the
        pool in which there is no tensor by the end goes back to the GPU."""
        if _installed:
            raise RuntimeError("PyTorch has no pools for a part of a program after gpumem.adapters.torch.install(); do not call that "
                               "in a program whose tensors sleep")
        with _saver().region(self.tag):
            yield

    def sleep(self, content: Union[Content, str, int] = "pinned", *, directory: Optional[Directory] = None) -> None:
        """Waits for the work of the GPUs and gives the memory back: for good that in which there is no tensor any more, and the
        rest as :meth:`gpumem.Group.sleep`. Do not use its tensors before :meth:`wake`, nor call this in :meth:`use`."""
        _saver().free_unused(self.tag)
        _saver().put_to_sleep(content, self.tag, directory)

    def wake(self, *, keep: Union[SupportsIndex, str] = 0) -> None:
        """Takes the memory again, as :meth:`gpumem.Group.wake`. If there is none, it sleeps on, and nothing is lost."""
        _saver().wake(keep, self.tag)

    def prepare(self, content: Union[Content, str, int] = "pinned", *, directory: Optional[Directory] = None,
                bytes_per_second: int = 0) -> None:
        """Makes the memory that the next sleep copies to, as :meth:`gpumem.Group.prepare`."""
        _saver().prepare(content, self.tag, bytes_per_second, directory)

    def info(self) -> GroupInfo:
        """What there is with the tag: sizes, how many allocations, and how many of them are awake."""
        return _saver().info(self.tag)


# ---- statistics ----

def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    if device is not None:
        index = torch.device(device).index
        if index is not None:
            return int(index)
    return int(torch.cuda.current_device())


def _stats(device: int) -> _Stats:
    stats = _Stats()
    _load().gpumem_torch_get_stats(device, stats)
    return stats


def _nested_stats(device: int) -> Dict[str, Any]:
    """As ``torch._C._cuda_memoryStats``."""
    stats, since = _stats(device), _since.get(device, _Stats())

    def numbers(current: int = 0, peak: int = 0, allocated: int = 0, freed: int = 0) -> Dict[str, Dict[str, int]]:
        none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        return {"all": {"current": current, "peak": peak, "allocated": allocated, "freed": freed},
                "small_pool": none, "large_pool": dict(none)}

    def accumulated(name: str) -> int:
        return int(getattr(stats, name) - getattr(since, name))

    count = numbers(stats.live_count, stats.peak_live_count, accumulated("total_count"),
                    accumulated("total_count") - stats.live_count + since.live_count)
    size = numbers(stats.live_bytes, stats.peak_live_bytes, accumulated("total_bytes"),
                   accumulated("total_bytes") - stats.live_bytes + since.live_bytes)
    nothing = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    return {
        "num_alloc_retries": accumulated("retry_count"), "num_ooms": accumulated("failure_count"), "num_sync_all_streams": 0,
        "num_device_alloc": accumulated("grow_count"), "num_device_free": accumulated("release_count"), "max_split_size": -1,
        "allocation": count, "active": count, "segment": numbers(stats.segment_count, stats.segment_count),
        "allocated_bytes": size, "active_bytes": size, "requested_bytes": size,
        "reserved_bytes": numbers(stats.reserved_bytes, stats.peak_reserved_bytes),
        "inactive_split": numbers(), "inactive_split_bytes": numbers(),
        "oversize_allocations": nothing, "oversize_segments": dict(nothing),
    }


def memory_stats(device: Any = None) -> Dict[str, int]:
    """Statistics under the keys of ``torch.cuda.memory_stats()``, such as "allocated_bytes.all.peak". Sizes are those of blocks,
    which are up to an eighth larger than asked for. A peak is never too low; it may be above the truth by what threads keep
    for their next allocations, and because those of private pools are added."""
    found: Dict[str, int] = {}

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            found[prefix] = value
    flatten("", _nested_stats(_index(device)))
    return dict(sorted(found.items()))


def _reset_peaks(device: Any) -> None:
    _load().gpumem_torch_reset_peaks(_index(device))


def _reset_accumulated(device: Any) -> None:
    _since[_index(device)] = _stats(_index(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Resets the peaks to what is there now, as ``torch.cuda.reset_peak_memory_stats()``."""
    _reset_peaks(device)


def _memory_fraction(device: Any = None) -> float:
    stats = _stats(_index(device))
    return float(stats.limit / stats.total_memory) if stats.limit and stats.total_memory else 1.0


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits what gpumem takes of a GPU for PyTorch, private pools included, as
    ``torch.cuda.set_per_process_memory_fraction()`` does."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction must lie between 0 and 1, not {fraction}")
    torch.cuda.init()
    call(_load().gpumem_torch_try_memory_fraction, float(fraction), _index(device))


def empty_cache() -> None:
    """Waits for the GPUs and gives back all memory that is free, as ``torch.cuda.empty_cache()`` does. Private pools of graphs that
    still exist keep theirs."""
    call(_load().gpumem_torch_try_reset)


def memory_snapshot(device: Any = None) -> List[Dict[str, Any]]:
    """What there is now, as a list of dictionaries with the keys of ``torch.cuda.memory_snapshot()``.

    The first one of a GPU is its pool as a whole, with the address 0 and no blocks. "classes" lists its blocks of up to 1 MiB by
    their size. Then come the segments of private pools, with all their blocks.
    """
    only = None if device is None else _index(device)
    library = _load()
    found: List[Dict[str, Any]] = []
    for ordinal in range(64):
        handle = library.gpumem_torch_pool(ordinal)
        if handle and (only is None or ordinal == only):
            found.append(_pool_as_segment(ordinal, handle))
    count = library.gpumem_torch_get_blocks(None, 0)
    rows = (_Block * (count + 64))()  # others may allocate meanwhile
    for row in rows[:min(library.gpumem_torch_get_blocks(rows, len(rows)), len(rows))]:
        if only is not None and row.device != only:
            continue
        if row.begins_segment:
            found.append({"device": row.device, "address": row.address, "total_size": 0, "allocated_size": 0, "active_size": 0,
                          "requested_size": 0, "stream": row.stream, "segment_type": "large", "is_expandable": False,
                          "segment_pool_id": (row.first, row.second), "frames": [], "blocks": []})
        segment = found[-1]
        segment["total_size"] += row.size
        segment["allocated_size"] += row.size if row.state == 1 else 0
        segment["requested_size"] += row.size if row.state == 1 else 0
        segment["active_size"] += row.size if row.state else 0
        segment["blocks"].append({"address": row.address, "size": row.size, "requested_size": row.size,
                                  "state": _STATES[row.state], "frames": []})
    return found


def _pool_as_segment(ordinal: int, handle: int) -> Dict[str, Any]:
    info = _library.gpumem_pool_info()
    _library.gpumem_pool_get_info(handle, info, None)
    classes = []
    for index in range(info.class_count):
        one = _library.gpumem_pool_class_info()
        _library.gpumem_pool_get_class_info(handle, index, one, None)
        if one.block_count:
            classes.append({"size": one.block_size, "live": one.live_count, "blocks": one.block_count})
    return {"device": ordinal, "address": 0, "total_size": info.reserved_bytes, "allocated_size": info.live_bytes,
            "active_size": info.live_bytes, "requested_size": info.live_bytes, "stream": 0, "segment_type": "large",
            "is_expandable": True, "segment_pool_id": (0, 0), "frames": [], "blocks": [], "classes": classes}


def _snapshot(pool: Any = None, *others: Any, **options: Any) -> Dict[str, Any]:
    """As ``torch._C._cuda_memorySnapshot``. ``pool`` is the id of a private pool, or None or (0, 0) for all. PyTorch puts behind
    the id whether it wants traces."""
    wanted = (0, 0) if pool is None else tuple(pool)[:2]
    segments = [segment for segment in memory_snapshot() if wanted in ((0, 0), segment["segment_pool_id"])]
    return {"segments": segments, "device_traces": [], "external_annotations": [],
            "allocator_settings": {"backend": "gpumem"}}
