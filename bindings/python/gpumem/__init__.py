# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The memory of GPUs from Python: device memory, page-locked and mapped host memory, streams, events and copies.

    import gpumem

    device = gpumem.default_device()                        # a GPU if one works, otherwise the host backend
    with device.memory(1 << 20) as memory:                  # device memory
        memory.copy_from(b"to the device")
        back = bytearray(13)
        memory.copy_to(back, 13)

Importing this package loads nothing. The shared library ``libgpumem.so.0`` is loaded at its first use, and a GPU
driver when a backend is opened. :class:`LibraryNotFound` and :class:`VersionMismatch` say what is wrong with the library.

numpy is optional. Only the functions that return arrays need it, such as :func:`pagelocked_empty`.
"""

# typing.get_type_hints() looks here for the names in the annotations of the classes.
from typing import Any, Optional, Sequence, Tuple, Union  # noqa: F401
from typing import List as _List

from . import _codes, _infos, errors
from ._arrays import (aligned_empty, aligned_empty_like, aligned_zeros, aligned_zeros_like, host_alloc_flags,
                      host_register_flags, managed_empty, managed_empty_like, managed_zeros, managed_zeros_like, mem_alloc,
                      mem_attach_flags, mem_host_register_flags, memcpy_dtoh, memcpy_dtoh_async, memcpy_htod,
                      memcpy_htod_async, pagelocked_empty, pagelocked_empty_like, pagelocked_zeros, pagelocked_zeros_like,
                      register_host_memory, shared_array)
from ._arrow import from_arrow
from ._buffers import Buffer, Registration
from ._calls import set_log_function
from ._codes import *  # noqa: F403
from ._copies import CopyRegion
from ._dlpack import from_dlpack
from ._groups import Group
from ._growable import GrowableArray
from ._hub import Hub, Link
from ._infos import *  # noqa: F403
from ._instance import (CudaOptions, Device, Instance, capabilities, default_device, default_instance, feature_supported,
                        probe, status_info, status_name, statuses, version, version_text)
from ._managed import HostAccess, ManagedRange
from ._memory import Memory, View
from ._options import HostOptions
from ._pool import Pool, PoolBlock
from ._ranges import Granularity, Part, Physical, Range
from ._ring import RingConsumer, RingMessage, RingProducer, RingSlot, open_ring
from ._share import ImportedMemory, ShareHandle, import_event, import_memory, receive_share, send_share
from ._stream import Event, Stream
from .errors import *  # noqa: F403

__version__ = "0.1.0"

__all__ = [
    "Buffer", "CopyRegion", "CudaOptions", "Device", "Event", "Granularity", "Group", "GrowableArray", "HostAccess",
    "HostOptions", "Hub", "ImportedMemory", "Instance", "Link", "ManagedRange", "Memory", "Part", "Physical", "Pool",
    "PoolBlock", "Range", "Registration", "RingConsumer", "RingMessage", "RingProducer", "RingSlot", "ShareHandle",
    "Stream", "View", "aligned_empty", "aligned_empty_like", "aligned_zeros", "aligned_zeros_like", "capabilities",
    "default_device", "default_instance", "errors", "feature_supported", "from_arrow", "from_dlpack",
    "host_alloc_flags", "host_register_flags", "import_event", "import_memory", "managed_empty", "managed_empty_like",
    "managed_zeros", "managed_zeros_like", "mem_alloc", "mem_attach_flags", "mem_host_register_flags", "memcpy_dtoh",
    "memcpy_dtoh_async", "memcpy_htod", "memcpy_htod_async", "open_ring", "pagelocked_empty", "pagelocked_empty_like",
    "pagelocked_zeros", "pagelocked_zeros_like", "probe", "receive_share", "register_host_memory", "send_share",
    "set_log_function", "shared_array", "status_info", "status_name", "statuses", "version", "version_text"]
__all__ += _codes.__all__
__all__ += _infos.__all__
__all__ += errors.__all__
__all__.sort()


def __dir__() -> _List[str]:
    return [*__all__, *{"adapters", "host"} & globals().keys(), "__doc__", "__version__"]


# Their names are those of this package, wherever they are written.
for _name in __all__:
    _thing = globals()[_name]
    for _part in _thing.__mro__ if isinstance(_thing, type) else (_thing,):
        if getattr(_part, "__module__", "").startswith(f"{__name__}."):
            _part.__module__ = __name__
del _name, _thing, _part
