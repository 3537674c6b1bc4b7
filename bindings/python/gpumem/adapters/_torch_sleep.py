# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Memory of PyTorch that sleeps: that of libgpumem-tms.so, whose regions are the buffers of one group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from ctypes import c_bool, c_char_p, c_int, c_ssize_t, c_void_p
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, SupportsIndex, Union

import torch

from .. import _library as c
from .._calls import call
from .._groups import group_info
from .._sleeping import prepare_desc, sleep_desc, wake_desc
from . import _plug_in

if TYPE_CHECKING:
    from .._codes import Content
    from .._infos import GroupInfo
    from .._sleeping import Directory


class _Pool:
    """A ``torch.cuda.MemPool`` that was filled in one region, and whose unused segments are freed behind its back. PyTorch would
    free them again at its end, so it never ends."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._freed: Set[int] = set()  # addresses of segments that it still has on its list
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))

    def free_unused(self, free: Any) -> None:
        for segment in self._pool.snapshot():
            if segment["allocated_size"] == 0 and segment["address"] not in self._freed:
                self._freed.add(segment["address"])
                free(segment["address"], segment["total_size"], segment["device"], None)


class Saver:
    """The library, and calls of its group for the regions with a tag, or None for all."""

    def __init__(self) -> None:
        # GPUMEM_TMS_LIBRARY | a file | that of the package, or beside the library | `libgpumem-tms.so`:
        # [vLLM](serving.md#vllm), [tensors that sleep](pytorch.md#tensors-that-sleep)
        path = _plug_in.path("libgpumem-tms.so", "GPUMEM_TMS_LIBRARY")
        self._library = library = _plug_in.load(path)
        for name, result, arguments in (
                ("tms_set_current_tag", None, [c_char_p]), ("tms_get_current_tag", c_char_p, []),
                ("tms_set_interesting_region", None, [c_bool]), ("tms_get_interesting_region", c_bool, []),
                ("tms_torch_free", None, [c_void_p, c_ssize_t, c_int, c_void_p]), ("gpumem_tms_group", c_void_p, [])):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._group = library.gpumem_tms_group()
        if not self._group:
            raise RuntimeError("gpumem cannot make memory that sleeps; the line before on standard error says why")
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "tms_torch_malloc", "tms_torch_free")
        self._lock = threading.Lock()
        self._pools: Dict[str, List[_Pool]] = {}  # of regions that have ended, by their tags

    @contextlib.contextmanager
    def region(self, tag: str) -> Iterator[None]:
        """What this thread allocates within is of the tag."""
        library, before = self._library, (self._library.tms_get_current_tag(), self._library.tms_get_interesting_region())
        made = torch.cuda.MemPool(self._allocator.allocator())
        pool = _Pool(made)
        with _no_expandable_segments():
            library.tms_set_current_tag(tag.encode())
            library.tms_set_interesting_region(True)
            try:
                with torch.cuda.use_mem_pool(made):
                    yield
                    pool.free_unused(library.tms_torch_free)
            finally:
                library.tms_set_current_tag(before[0])
                library.tms_set_interesting_region(before[1])
                with self._lock:
                    self._pools.setdefault(tag, []).append(pool)

    def free_unused(self, tag: str) -> None:
        """Gives back the segments in which there is no tensor any more."""
        with self._lock:
            for pool in self._pools.get(tag, ()):
                pool.free_unused(self._library.tms_torch_free)

    def put_to_sleep(self, content: Union[Content, str, int], tag: Optional[str], directory: Optional[Directory] = None) -> None:
        call(c.gpumem_group_sleep, self._group, sleep_desc(content, directory, tag, None, None, False))

    def wake(self, keep: Union[SupportsIndex, str], tag: Optional[str]) -> None:
        call(c.gpumem_group_wake, self._group, wake_desc(keep, tag))

    def prepare(self, content: Union[Content, str, int], tag: Optional[str], bytes_per_second: int,
                directory: Optional[Directory] = None) -> None:
        call(c.gpumem_group_prepare, self._group, prepare_desc(content, directory, tag, bytes_per_second))

    def info(self, tag: Optional[str] = None) -> GroupInfo:
        """What there is, or what there is with one tag."""
        return group_info(self._group, tag)


# PyTorch ignores spaces.
_EXPANDABLE = re.compile(r"(\bexpandable_segments\s*:\s*)true\b", re.IGNORECASE)
_regions_lock = threading.Lock()
_regions = 0  # that need the setting, which is of the process


@contextlib.contextmanager
def _no_expandable_segments() -> Iterator[None]:
    """A MemPool does not work with them (pytorch#147851). What one setting leaves out, PyTorch resets, so all are passed."""
    # PYTORCH_ALLOC_CONF | PyTorch's own | empty | expandable segments are off while [vLLM](serving.md#vllm) or
    # [a pool that sleeps](pytorch.md#tensors-that-sleep) allocates
    # PYTORCH_CUDA_ALLOC_CONF | PyTorch's own | empty | the older name of that
    global _regions
    settings = os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    without = _EXPANDABLE.sub(r"\1False", settings)
    if without == settings:
        yield
        return
    with _regions_lock:
        if not _regions:
            torch.cuda.memory._set_allocator_settings(without)
        _regions += 1
    try:
        yield
    finally:
        with _regions_lock:
            _regions -= 1
            if not _regions:
                torch.cuda.memory._set_allocator_settings(settings)
