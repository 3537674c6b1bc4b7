# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A memory resource for NVIDIA's cuda.core, over a pool of gpumem. cuda.core takes device memory from it by

    device.memory_resource = gpumem.adapters.cuda_core.MemoryResource(device)

or call its ``allocate`` yourself, also for pinned and managed memory:

    staging = gpumem.adapters.cuda_core.MemoryResource(device, kind="pinned").allocate(1 << 20, stream=stream)

docs/cupy-numba.md is the guide.
"""

from __future__ import annotations

import functools
import sys
from ctypes import PYFUNCTYPE, py_object
from typing import Any, Callable, Dict, Optional, Tuple

import cuda.core

try:
    from cuda.core import Buffer, Device, Stream
    from cuda.core import MemoryResource as _Base
except ImportError:  # before 0.5
    from cuda.core.experimental import Buffer, Device, Stream
    from cuda.core.experimental import MemoryResource as _Base

import gpumem

from .._calls import leftovers
from .._stream import native_stream_of
from . import _plug_in

# From 1.2 on, a buffer records the stream in whose order it is freed. Before, cuda.core frees in the order of no stream or of
# the default stream, unless close() was given one.
_RECORDS = tuple(int(part) for part in cuda.core.__version__.split(".")[:2]) >= (1, 2)


@functools.lru_cache(maxsize=None)
def _instance() -> gpumem.Instance:
    return gpumem.Instance("cuda", name="cuda.core")


_Functions = Tuple[Callable[[int, int], Optional[int]], Callable[[int, int], bool]]


def _functions(pool: gpumem.Pool) -> _Functions:
    """Those of C that allocate and free, or others, which leave it to Python."""
    library = _plug_in.python()
    if library is None or not hasattr(library, "gpumem_native_free"):  # an older one
        return lambda size, stream: None, lambda address, stream: False
    made: Any = [PYFUNCTYPE(py_object, py_object)((name, library))(pool.handle) for name in ("gpumem_native_alloc", "gpumem_native_free")]
    return made[0], made[1]


class MemoryResource(_Base):  # type: ignore[misc]
    """Blocks of a pool of a device, which is a ``cuda.core.Device`` or its number. ``options`` are those of
    :meth:`gpumem.Device.pool`, such as ``kind``, "device", "pinned" or "managed", and ``limit``.

    A block is allocated in the order of the stream given, by default of the default stream of the device. It is freed in the
    order of the stream that ``close()`` is given, and otherwise of the same one. Lack of memory is a ``MemoryError``.
    """

    def __init__(self, device: Any = 0, **options: Any) -> None:
        self._device_id = int(getattr(device, "device_id", device))
        self._default = Device(self._device_id).default_stream
        chosen: Dict[str, Any] = {"name": "cuda.core", **options}
        self.pool = pool = _instance().device(self._device_id).pool(**chosen)
        if pool.kind == gpumem.Kind.PAGEABLE:
            pool.close()
            raise gpumem.InvalidArgument("the kind is pageable, which devices do not reach; pass device, pinned or managed")
        for_host = pool.info().memory_flags & gpumem.MemoryFlags.ATTACH_HOST
        self._device_accessible = not for_host or bool(pool.device.capability("managed_concurrent"))
        self._alloc, self._free = _functions(pool)
        self._streams: Dict[int, Tuple[Any, int]] = {}  # by the address of the block, which keeps its stream alive

    def allocate(self, size: int, stream: Any = None) -> Any:
        """A ``cuda.core.Buffer`` in the order of a stream, which is also a ``GraphBuilder``."""
        if stream.__class__ is Stream:  # the usual case, kept short
            native = stream.__cuda_stream__()[1]
        else:
            stream = self._default if stream is None else getattr(stream, "stream", stream)
            native = native_stream_of(stream)
        pool = self.pool
        # Only Python calls a callback, and frees what is left.
        address = None if leftovers or pool._callback else self._alloc(size, native)
        if address is None:
            try:
                address = pool.malloc(size, native)
            except gpumem.LimitExceeded as problem:
                raise MemoryError(str(problem)) from problem
        if address:
            self._streams[address] = stream, native
        try:
            return Buffer.from_handle(address, size, self, **{"stream": stream} if _RECORDS else {})
        except BaseException:
            self.deallocate(address, size)
            raise

    def deallocate(self, ptr: Any, size: int, stream: Any = None, *, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Called by the buffer when it is closed, or when nothing refers to it any more."""
        address = int(ptr)
        if not address:
            return
        found = self._streams.get(address)
        if found is None:
            raise gpumem.NotFound(f"{address:#x} is not the address of a block of this resource that is allocated")
        recorded, native = found
        if stream is not None and stream is not recorded:
            given = native_stream_of(getattr(stream, "stream", stream))
            if _RECORDS or given > 2:  # else it is a default stream, which perhaps nobody has chosen
                native = given
        # Behind what may raise, after which the buffer can be closed again. Of two threads that free it, one does.
        if self._streams.pop(address, None) is not found:
            raise gpumem.NotFound(f"{address:#x} was freed by another thread")
        if finalizing() or not self._free(address, native):
            self.pool._drop(address, native)

    @property
    def is_device_accessible(self) -> bool:
        return self._device_accessible

    @property
    def is_host_accessible(self) -> bool:
        return self.pool.kind != gpumem.Kind.DEVICE

    @property
    def is_managed(self) -> bool:
        return self.pool.kind == gpumem.Kind.MANAGED

    @property
    def is_ipc_enabled(self) -> bool:
        """False: memory of gpumem is shared by its own handles."""
        return False

    @property
    def device_id(self) -> int:
        """-1 for pinned memory, as of cuda.core's own resources, because it belongs to no device."""
        return -1 if self.pool.kind == gpumem.Kind.PINNED else self._device_id

    def close(self) -> None:
        """Closes the pool. Buffers that live stay usable; ``allocate`` then fails."""
        self.pool.close()
