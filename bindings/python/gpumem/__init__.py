# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every kind of GPU memory from Python: device memory, page-locked and mapped host memory, streams, events and copies.

    import gpumem

    device = gpumem.default_device()                        # a GPU that works, else the host backend
    with device.memory(1 << 20) as memory:                  # device memory
        memory.copy_from(b"to the device")
        back = bytearray(13)
        memory.copy_to(back, 13)

The shared library ``libgpumem.so.0`` is loaded when it is first needed, not when this package is imported, and loads a GPU
driver only when a backend is opened. :class:`LibraryNotFound` and :class:`VersionMismatch` say what is wrong with it.

numpy is optional; :func:`pagelocked_empty` and its kin need it.
"""

from . import errors
from ._arrays import (aligned_empty, aligned_empty_like, aligned_zeros, aligned_zeros_like, host_alloc_flags,
                      host_register_flags, mem_host_register_flags, pagelocked_empty, pagelocked_empty_like,
                      pagelocked_zeros, pagelocked_zeros_like, register_host_memory)
from ._calls import set_log_function
from ._codes import (Access, Backend, Capability, Direction, EventFlags, Feature, Kind, Location, LogLevel, MemoryFlags,
                     SourceOrder, WaitCondition)
from ._dlpack import from_dlpack
from ._instance import (Device, HostOptions, Instance, capabilities, default_device, default_instance, feature_supported,
                        probe, status_info, status_name, statuses, version, version_text)
from ._memory import Memory, View
from ._results import (CapabilityInfo, DeviceInfo, EventInfo, InstanceInfo, KindStats, MemoryInfo, PointerInfo, ProbeInfo,
                       Stats, StatusInfo, StreamInfo)
from ._stream import Event, Stream
from .errors import *  # noqa: F401,F403 - every exception class
from .errors import __all__ as _exceptions

__version__ = "0.1.0"

__all__ = [
    "Access", "Backend", "Capability", "CapabilityInfo", "Device", "DeviceInfo", "Direction", "Event", "EventFlags",
    "EventInfo", "Feature", "HostOptions", "Instance", "InstanceInfo", "Kind", "KindStats", "Location", "LogLevel",
    "Memory", "MemoryFlags", "MemoryInfo", "PointerInfo", "ProbeInfo", "SourceOrder", "Stats", "StatusInfo", "Stream",
    "StreamInfo", "View", "WaitCondition", "aligned_empty", "aligned_empty_like", "aligned_zeros", "aligned_zeros_like",
    "capabilities", "default_device", "default_instance", "errors", "feature_supported", "from_dlpack",
    "host_alloc_flags", "host_register_flags", "mem_host_register_flags", "pagelocked_empty", "pagelocked_empty_like",
    "pagelocked_zeros", "pagelocked_zeros_like", "probe", "register_host_memory", "set_log_function", "status_info",
    "status_name", "statuses", "version", "version_text", *_exceptions]
