# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The results of the C interface as named tuples. The enumerations of its numbers are in `_codes`."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from ._codes import Access, Backend, Capability, EventFlags, Kind, Location, MemoryFlags


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
