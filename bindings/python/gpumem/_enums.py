# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The numbers of the C interface as enumerations, and its results as named tuples."""

from __future__ import annotations

import enum
from typing import NamedTuple, Optional, Tuple

from . import _library as c


class Backend(enum.IntEnum):
    """Who does the work."""

    ANY = c.GPUMEM_BACKEND_ANY
    CUDA = c.GPUMEM_BACKEND_CUDA
    HOST = c.GPUMEM_BACKEND_HOST


class Kind(enum.IntEnum):
    """What a piece of memory is."""

    UNKNOWN = c.GPUMEM_KIND_UNKNOWN
    PAGEABLE = c.GPUMEM_KIND_PAGEABLE
    PINNED = c.GPUMEM_KIND_PINNED
    REGISTERED = c.GPUMEM_KIND_REGISTERED
    DEVICE = c.GPUMEM_KIND_DEVICE
    FOREIGN = c.GPUMEM_KIND_FOREIGN


class MemoryFlags(enum.IntFlag):
    """Properties of an allocation or registration."""

    PORTABLE = c.GPUMEM_MEMORY_PORTABLE
    MAPPED = c.GPUMEM_MEMORY_MAPPED
    WRITE_COMBINED = c.GPUMEM_MEMORY_WRITE_COMBINED
    READ_ONLY = c.GPUMEM_MEMORY_READ_ONLY
    IOMEMORY = c.GPUMEM_MEMORY_IOMEMORY
    PAGE_LOCKED = c.GPUMEM_MEMORY_PAGE_LOCKED
    NUMA_NODE = c.GPUMEM_MEMORY_NUMA_NODE


class EventFlags(enum.IntFlag):
    """Properties of an event."""

    DISABLE_TIMING = c.GPUMEM_EVENT_DISABLE_TIMING
    BLOCKING_SYNC = c.GPUMEM_EVENT_BLOCKING_SYNC


class Direction(enum.IntEnum):
    """Between which sides a copy goes."""

    INFER = c.GPUMEM_DIRECTION_INFER
    HOST_TO_HOST = c.GPUMEM_DIRECTION_HOST_TO_HOST
    HOST_TO_DEVICE = c.GPUMEM_DIRECTION_HOST_TO_DEVICE
    DEVICE_TO_HOST = c.GPUMEM_DIRECTION_DEVICE_TO_HOST
    DEVICE_TO_DEVICE = c.GPUMEM_DIRECTION_DEVICE_TO_DEVICE


class SourceOrder(enum.IntEnum):
    """When the source of a copy is read."""

    STREAM = c.GPUMEM_SOURCE_ORDER_STREAM
    DURING_CALL = c.GPUMEM_SOURCE_ORDER_DURING_CALL
    ANY = c.GPUMEM_SOURCE_ORDER_ANY


class WaitCondition(enum.IntEnum):
    """When a value wait lets go."""

    GEQ = c.GPUMEM_WAIT_VALUE_GEQ
    EQ = c.GPUMEM_WAIT_VALUE_EQ
    AND = c.GPUMEM_WAIT_VALUE_AND
    NOR = c.GPUMEM_WAIT_VALUE_NOR


class Location(enum.IntEnum):
    """Where bytes lie."""

    NONE = c.GPUMEM_LOCATION_NONE
    DEVICE = c.GPUMEM_LOCATION_DEVICE
    HOST = c.GPUMEM_LOCATION_HOST
    HOST_NUMA = c.GPUMEM_LOCATION_HOST_NUMA


class Access(enum.IntEnum):
    """Rights of devices to memory."""

    NONE = c.GPUMEM_ACCESS_NONE
    READ = c.GPUMEM_ACCESS_READ
    READWRITE = c.GPUMEM_ACCESS_READWRITE
    UNKNOWN = c.GPUMEM_ACCESS_UNKNOWN


class LogLevel(enum.IntEnum):
    """How much a message matters."""

    ERROR = c.GPUMEM_LOG_ERROR
    WARNING = c.GPUMEM_LOG_WARNING
    INFO = c.GPUMEM_LOG_INFO
    DEBUG = c.GPUMEM_LOG_DEBUG


class Feature(enum.IntEnum):
    """What a build of the library may or may not contain."""

    BACKEND_HOST = c.GPUMEM_FEATURE_BACKEND_HOST
    BACKEND_CUDA = c.GPUMEM_FEATURE_BACKEND_CUDA
    MEMORY_DEVICE = c.GPUMEM_FEATURE_MEMORY_DEVICE
    MEMORY_PINNED = c.GPUMEM_FEATURE_MEMORY_PINNED
    MEMORY_REGISTERED = c.GPUMEM_FEATURE_MEMORY_REGISTERED
    STREAM_VALUE = c.GPUMEM_FEATURE_STREAM_VALUE
    HOST_SIMULATION = c.GPUMEM_FEATURE_HOST_SIMULATION


class Capability(enum.IntEnum):
    """Something that can be asked of a device."""

    UVA = c.GPUMEM_CAPABILITY_UVA
    DEVICE_COUNT = c.GPUMEM_CAPABILITY_DEVICE_COUNT
    DEVICE_BYTES = c.GPUMEM_CAPABILITY_DEVICE_BYTES
    DEVICE_CPU_ACCESS = c.GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS
    PIN_MAP_HOST = c.GPUMEM_CAPABILITY_PIN_MAP_HOST
    PIN_PAGE_LOCKED = c.GPUMEM_CAPABILITY_PIN_PAGE_LOCKED
    PIN_WRITE_COMBINED = c.GPUMEM_CAPABILITY_PIN_WRITE_COMBINED
    PIN_REGISTER = c.GPUMEM_CAPABILITY_PIN_REGISTER
    PIN_REGISTER_SAME_POINTER = c.GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER
    PIN_REGISTER_READ_ONLY = c.GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY
    PIN_REGISTER_IOMEMORY = c.GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY
    PIN_MAX_SINGLE = c.GPUMEM_CAPABILITY_PIN_MAX_SINGLE
    PIN_MAX_COUNT = c.GPUMEM_CAPABILITY_PIN_MAX_COUNT
    PIN_NUMA = c.GPUMEM_CAPABILITY_PIN_NUMA
    HOST_ATOMICS = c.GPUMEM_CAPABILITY_HOST_ATOMICS
    PAGEABLE = c.GPUMEM_CAPABILITY_PAGEABLE
    PAGEABLE_HOST_TABLES = c.GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES
    STREAM_VALUE32 = c.GPUMEM_CAPABILITY_STREAM_VALUE32
    STREAM_VALUE64 = c.GPUMEM_CAPABILITY_STREAM_VALUE64
    STREAM_VALUE_NOR = c.GPUMEM_CAPABILITY_STREAM_VALUE_NOR
    COPY_ENGINES = c.GPUMEM_CAPABILITY_COPY_ENGINES
    PEER_ACCESS = c.GPUMEM_CAPABILITY_PEER_ACCESS
    PEER_ATOMICS = c.GPUMEM_CAPABILITY_PEER_ATOMICS


def known(cls, number):
    """The member of an enumeration, or the bare number if a newer library knows more of them."""
    try:
        return cls(number)
    except ValueError:
        return number


class StatusInfo(NamedTuple):
    """Everything that is known about a status code."""

    code: int
    name: str
    cause: str
    remedy: str


class ProbeInfo(NamedTuple):
    """What a probe found out about a backend."""

    backend: Backend
    driver_version: int
    device_count: int
    name: str


class InstanceInfo(NamedTuple):
    """What is known about an open instance."""

    backend: Backend
    driver_version: int
    device_count: int
    strict: bool
    pin_budget: int
    name: str


class DeviceInfo(NamedTuple):
    """What is known about a device."""

    ordinal: int
    numa_node: int
    total_bytes: int
    uuid: bytes
    pci_domain: int
    pci_bus: int
    pci_device: int
    compute_major: int
    compute_minor: int
    lost: bool
    pci_id: str
    name: str


class CapabilityInfo(NamedTuple):
    """Answer to a capability question. ``value`` is 0 (no), 1 (yes) or 2 (emulated) for type 1, else a number."""

    capability: Capability
    type: int
    value: int
    source: int
    status: int
    native_domain: int
    native_code: int
    name: str
    reason: str


class MemoryInfo(NamedTuple):
    """What is known about an allocation. Pointers that it does not have are None."""

    kind: Kind
    numa_node: int
    device_ordinal: int
    host_pointer: Optional[int]
    device_pointer: Optional[int]
    size: int
    granted_size: int
    alignment: int
    requested_flags: MemoryFlags
    granted_flags: MemoryFlags
    buffer_id: int
    name: str


class PointerInfo(NamedTuple):
    """What is known about an address."""

    kind: Kind
    location: Location
    location_id: int
    device_ordinal: int
    host_pointer: Optional[int]
    device_pointer: Optional[int]
    base: Optional[int]
    size: int
    buffer_id: int
    granted_flags: MemoryFlags
    access: Access
    access_devices: Tuple[int, ...]


class StreamInfo(NamedTuple):
    """What is known about a stream."""

    device_ordinal: int
    wrapped: bool
    priority: int
    native_stream: int
    name: str


class EventInfo(NamedTuple):
    """What is known about an event."""

    device_ordinal: int
    wrapped: bool
    flags: EventFlags
    native_event: int
    name: str


class KindStats(NamedTuple):
    """Counts of one kind of memory."""

    live_count: int
    live_bytes: int
    peak_count: int
    peak_bytes: int
    total_count: int
    total_bytes: int


class Stats(NamedTuple):
    """Counts of an instance."""

    device: KindStats
    pinned: KindStats
    registered: KindStats
    streams: int
    events: int
    file_descriptors: int

    @property
    def live_objects(self) -> int:
        """All memory, streams and events that live."""
        return (self.device.live_count + self.pinned.live_count + self.registered.live_count + self.streams
                + self.events)
