# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""vLLM's sleep over libgpumem-tms.so: the mode "gpumem", and the allocator that the worker calls.

:func:`register` is the entry point of ``vllm.general_plugins``. docs/serving.md is the guide.
"""

from __future__ import annotations

import contextlib
import gc
import os
from ctypes import c_bool, c_char_p, c_int, c_ssize_t, c_void_p
from typing import Any, Iterator, List, Optional, Tuple, Union

import torch
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory

from .. import _library as c
from .._calls import call
from .._groups import group_info
from .._infos import GroupInfo
from .._sleeping import prepare_desc, sleep_desc, wake_desc
from ..errors import Error
from . import _plug_in

_SWITCH = "GPUMEM_VLLM"  # the worker allocates before it asks for a mode
_RELEASE = "VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY"
_KEPT = ("weights",)  # what level 1 keeps
_PACE = 1 << 30  # bytes a second that are page-locked ahead, so that what starts meanwhile gets at the driver


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


class Allocator:
    """In the place of ``vllm.device_allocator.cumem.CuMemAllocator``. There is one in a process."""

    instance: Optional[Allocator] = None
    default_tag = "default"

    @staticmethod
    def get_instance() -> Allocator:
        if Allocator.instance is None:
            Allocator.instance = Allocator()
        return Allocator.instance

    def __init__(self) -> None:
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
            raise RuntimeError("gpumem cannot be the allocator of vLLM; the line before on standard error says why")
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "tms_torch_malloc", "tms_torch_free")
        self._pools: List[Any] = []

    @contextlib.contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """What is allocated within sleeps and wakes by this tag. A thread of the library then makes the page-locked memory that a
        sleep at level 1 copies it to."""
        library, before = self._library, (self._library.tms_get_current_tag(), self._library.tms_get_interesting_region())
        # What is unused is freed below behind the pool's back, so it is used once and lives on.
        pool = torch.cuda.MemPool(self._allocator.allocator())
        self._pools.append(pool)
        with _no_expandable_segments():
            library.tms_set_current_tag((tag or self.default_tag).encode())
            library.tms_set_interesting_region(True)
            try:
                with torch.cuda.use_mem_pool(pool):
                    yield
                    for segment in pool.snapshot():
                        if segment["allocated_size"] == 0:
                            library.tms_torch_free(segment["address"], segment["total_size"], segment["device"], None)
            finally:
                library.tms_set_current_tag(before[0])
                library.tms_set_interesting_region(before[1])
        if tag in _KEPT and not _is_set(_RELEASE):
            with contextlib.suppress(Error):  # the sleep makes what is missing, and reports what is wrong
                call(c.gpumem_group_prepare, self._group, prepare_desc("pinned", None, tag, _PACE))

    def sleep(self, offload_tags: Union[Tuple[str, ...], str, None] = None) -> None:
        """Frees all memory, and keeps the content of that with these tags; None means the default tag."""
        for tag in _tuple(self.default_tag if offload_tags is None else offload_tags):
            self._sleep("pinned", tag)
        self._sleep("drop", None)  # what sleeps already stays as it is
        gc.collect()
        torch.cuda.empty_cache()

    def discard(self, tags: Union[Tuple[str, ...], str]) -> None:
        """Frees the memory with these tags, without its content."""
        for tag in _tuple(tags):
            self._sleep("drop", tag)

    def _sleep(self, content: str, tag: Optional[str]) -> None:
        call(c.gpumem_group_sleep, self._group, sleep_desc(content, None, tag, None, None, False))

    def wake_up(self, tags: Optional[List[str]] = None) -> None:
        """Makes the memory with these tags, or all, with the content that was kept."""
        wanted: List[Optional[str]] = [None] if tags is None else [*tags]
        for tag in wanted:
            call(c.gpumem_group_wake, self._group, wake_desc(0 if _is_set(_RELEASE) else "all", tag))

    def get_current_usage(self) -> int:
        """Bytes that are allocated, awake or not."""
        return self.info().size

    def info(self, tag: Optional[str] = None) -> GroupInfo:
        """What there is, or what there is with one tag."""
        return group_info(self._group, tag)


def _tuple(tags: Union[Tuple[str, ...], str]) -> Tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tags


@contextlib.contextmanager
def _no_expandable_segments() -> Iterator[None]:
    """A MemPool does not work with them (pytorch#147851). What one setting leaves out, PyTorch resets, so all are passed."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    without = settings.replace("expandable_segments:True", "expandable_segments:False")
    if without == settings:
        yield
        return
    torch.cuda.memory._set_allocator_settings(without)
    try:
        yield
    finally:
        torch.cuda.memory._set_allocator_settings(settings)


class Backend(SleepModeBackend):  # type: ignore[misc]
    """The mode "gpumem": what vLLM's own "cumem" does, with the allocator above."""

    def __init__(self) -> None:
        super().__init__()
        if not _is_set(_SWITCH):
            raise RuntimeError(f"the sleep mode gpumem needs {_SWITCH}=1 in the environment of vLLM, since its workers allocate "
                               "before they ask for a mode")
        self._allocator = Allocator.get_instance()

    def suspend(self, level: int = 1) -> None:
        self._allocator.sleep(_KEPT if level == 1 else ())

    def resume(self, tags: Optional[List[str]] = None) -> None:
        self._allocator.wake_up(tags)

    def discard(self, tags: Tuple[str, ...]) -> None:
        self._allocator.discard(tags)

    def state(self) -> str:
        """SUSPENDED while anything sleeps, otherwise RUNNING."""
        info = self._allocator.info()
        return "RUNNING" if info.awake_count == info.buffer_count else "SUSPENDED"

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True


def register() -> None:
    """Makes ``--sleep-mode-backend gpumem`` known. With ``GPUMEM_VLLM=1`` also takes the place of vLLM's allocator."""
    if "gpumem" not in SleepModeBackendFactory._registry:
        SleepModeBackendFactory.register_backend("gpumem", __name__, "Backend")
    if _is_set(_SWITCH):
        from vllm.device_allocator import cumem

        cumem.CuMemAllocator.get_instance = staticmethod(Allocator.get_instance)
