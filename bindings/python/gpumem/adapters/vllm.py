# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""vLLM's sleep over libgpumem-tms.so: the mode "gpumem", and the allocator that the worker calls.

:func:`register` is the entry point of ``vllm.general_plugins``. docs/serving.md is the guide.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from typing import Iterator, List, Optional, Tuple, Union

import torch
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory

from .._waits import started
from ..errors import Error
from ._torch_sleep import Saver

# GPUMEM_VLLM | 1, 0 | 0 | gpumem allocates for the [workers of vLLM](serving.md#vllm)
_SWITCH = "GPUMEM_VLLM"  # the worker allocates before it asks for a mode
# VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY | 1, 0 | 0 | page-locked memory is not kept for the [next sleep](serving.md#vllm)
_RELEASE = "VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY"
_KEPT = ("weights",)  # what level 1 keeps
_PACE = 1 << 30  # bytes a second that are page-locked ahead, so that what starts meanwhile gets at the driver


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


class Allocator(Saver):
    """In the place of ``vllm.device_allocator.cumem.CuMemAllocator``. There is one in a process."""

    instance: Optional[Allocator] = None
    default_tag = "default"

    @staticmethod
    def get_instance() -> Allocator:
        if Allocator.instance is None:
            Allocator.instance = Allocator()
        return Allocator.instance

    @contextlib.contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """What is allocated within sleeps and wakes by this tag. A thread of the library then makes the page-locked memory that a
        sleep at level 1 copies it to."""
        with self.region(tag or self.default_tag):
            yield
        if tag in _KEPT and not _is_set(_RELEASE):
            with contextlib.suppress(Error):  # the sleep makes what is missing, and reports what is wrong
                self.prepare("pinned", tag, _PACE)

    def sleep(self, offload_tags: Union[Tuple[str, ...], str, None] = None) -> None:
        """Frees all memory, and keeps the content of that with these tags; None means the default tag."""
        collected = threading.Lock()
        collected.acquire()

        def collect() -> None:
            time.sleep(0.001)  # until the other thread copies, which needs no lock of Python
            try:
                gc.collect()
            finally:
                collected.release()

        aside = started(collect)
        for tag in _tuple(self.default_tag if offload_tags is None else offload_tags):
            self.put_to_sleep("pinned", tag)
        self.put_to_sleep("drop", None)  # what sleeps already stays as it is
        if aside:
            collected.acquire()
        else:
            gc.collect()
        torch.cuda.empty_cache()

    def discard(self, tags: Union[Tuple[str, ...], str]) -> None:
        """Frees the memory with these tags, without its content."""
        for tag in _tuple(tags):
            self.put_to_sleep("drop", tag)

    def wake_up(self, tags: Optional[List[str]] = None) -> None:
        """Makes the memory with these tags, or all, with the content that was kept."""
        wanted: List[Optional[str]] = [None] if tags is None else [*tags]
        for tag in wanted:
            self.wake(0 if _is_set(_RELEASE) else "all", tag)

    def get_current_usage(self) -> int:
        """Bytes that are allocated, awake or not."""
        return self.info().size


def _tuple(tags: Union[Tuple[str, ...], str]) -> Tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tags


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
