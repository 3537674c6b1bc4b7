# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The results of calls as named tuples. `_codes` has the enumerations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple, Type

from . import _library as c
from ._codes import (Access, AnswerSource, AnswerType, Backend, BufferState, Capability, EventFlags, HandleTypes, ImportState,
                     Kind, Location, MemoryFlags, NativeDomain, PhysicalFlags, PoolFlags, ShareType, ShareWay)

if TYPE_CHECKING:
    from ._buffers import Buffer
    from ._groups import Group
    from ._pool import Pool
    from ._ranges import Range


def known(cls: Type[Any], number: int) -> Any:
    """The member of an enumeration, or the number itself if only a newer version has a name for it."""
    try:
        return cls(number)
    except ValueError:
        return number


class StatusInfo(NamedTuple):
    """Name, cause and remedy of a status code."""

    code: int
    name: str
    cause: str
    remedy: str


class ProbeInfo(NamedTuple):
    """Result of a probe.

    If "any" would fall back to the host backend, ``fallback_status`` is the status of the cuda backend, and
    ``fallback_reason`` says why in one line. Otherwise they are 0 and empty.
    """

    backend: Backend
    driver_version: int
    device_count: int
    fallback_status: int
    name: str
    fallback_reason: str


class InstanceInfo(NamedTuple):
    """Information about an open instance.

    If "any" fell back to the host backend, ``fallback_status`` is the status of the cuda backend, and ``fallback_reason``
    says why in one line. Otherwise they are 0 and empty.
    """

    backend: Backend
    driver_version: int
    device_count: int
    strict: bool
    pin_budget: int
    fallback_status: int
    name: str
    fallback_reason: str


class DeviceInfo(NamedTuple):
    """Information about a device."""

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
    """Answer to a capability query; false if it is no.

    ``value`` is an :class:`Answer` if ``type`` is ``AnswerType.TRI``, otherwise a number. ``source`` says how the library
    found it. ``status`` is the status of a call that needs the capability: 0 unless the answer is no.
    """

    capability: Capability
    type: AnswerType
    value: int
    source: AnswerSource
    status: int
    native_domain: NativeDomain
    native_code: int
    name: str
    reason: str

    def __bool__(self) -> bool:
        """Whether the device has it: the answer is not no, or the number not 0."""
        return bool(self.value)


class MemoryInfo(NamedTuple):
    """Information about memory. A pointer that it does not have is None."""

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
    """Information about an address. ``buffer`` is the buffer whose addresses hold it, also behind its size and while it
    sleeps; None if no object of this package has the buffer."""

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
    buffer: Optional[Buffer]


class ManagedInfo(NamedTuple):
    """Advice and last prefetch of a range of managed memory, each if all its pages share it.

    A location is NONE, with the id -1, if the pages differ or have none. ``accessed_by_devices`` are ordinals.
    """

    read_mostly: bool
    preferred_location: Location
    preferred_location_id: int
    last_prefetch_location: Location
    last_prefetch_location_id: int
    accessed_by_host: bool
    accessed_by_devices: Tuple[int, ...]


class Granularity(NamedTuple):
    """Units of physical memory in bytes: the smallest, and the one for the best performance."""

    minimum: int
    recommended: int


class PhysicalInfo(NamedTuple):
    """Information about physical memory.

    ``block_id`` is the same for every handle and mapping of it. ``native_handle`` is the CUmemGenericAllocationHandle, for
    use by other code; 0 on host. The library owns it: do not release it. It is valid until the object is closed.
    """

    location: Location
    location_id: int
    device_ordinal: int
    imported: bool
    size: int
    granularity: int
    block_id: int
    handle_types: HandleTypes
    granted_flags: PhysicalFlags
    native_handle: int
    name: str


class RangeInfo(NamedTuple):
    """Information about a range."""

    base: int
    size: int
    granularity: int
    mapped_size: int
    mapping_count: int
    buffer_id: int
    name: str


class BufferInfo(NamedTuple):
    """Information about a buffer.

    ``stored_size`` are the bytes of content that are kept while it sleeps, and ``store_capacity`` those of host memory or
    file that it has for them: prepared, in use or kept. ``registrations`` is the number of registrations that are noted.
    ``range_handle`` is the ``gpumem_range`` that the buffer is mapped in, which only the buffer may change; None if it is an
    ordinary allocation.
    """

    base: int
    size: int
    capacity: int
    reserved_size: int
    granularity: int
    block_count: int
    generation: int
    stored_size: int
    store_capacity: int
    ahead: int
    registrations: int
    location: Location
    location_id: int
    device_ordinal: int
    state: BufferState
    range_handle: Optional[int]
    buffer_id: int
    group: Optional[Group]
    name: str
    tag: str

    @property
    def asleep(self) -> bool:
        """Whether its memory was given back: it is ASLEEP, or FAILED."""
        return self.state != BufferState.AWAKE


class FileCopied(NamedTuple):
    """What :meth:`Instance.read_file` or :meth:`Instance.write_file` has copied: all bytes, and those of them that passed by the
    system's page cache."""

    size: int
    direct: int


class GroupInfo(NamedTuple):
    """Information about a group, or about its buffers with one tag: how many there are in each :class:`BufferState`, and the
    sums of their sizes and stores."""

    buffer_count: int
    awake_count: int
    asleep_count: int
    failed_count: int
    size: int
    stored_size: int
    store_capacity: int
    name: str


class MappingInfo(NamedTuple):
    """What is mapped at an address. ``range`` is None if no object of this package has the range."""

    range: Optional[Range]
    base: int
    size: int
    block_id: int
    location: Location
    location_id: int


class StreamInfo(NamedTuple):
    """Information about a stream."""

    device_ordinal: int
    wrapped: bool
    priority: int
    native_stream: int
    name: str


class EventInfo(NamedTuple):
    """Information about an event."""

    device_ordinal: int
    wrapped: bool
    flags: EventFlags
    native_event: int
    name: str


class ShareInfo(NamedTuple):
    """What a handle says of itself. It was true when the handle was made. ``size`` is that of the whole memory: of a buffer, its
    capacity."""

    type: ShareType
    way: ShareWay
    backend: Backend
    access: Access
    location: Location
    exporter_pid: int
    size: int
    offset: int
    buffer_id: int
    fd_count: int
    device_uuid: bytes


class ImportInfo(NamedTuple):
    """Information about an import. ``import_count`` is how often this process has it imported now.

    Of what was fetched from a keeper, ``state`` is LIVE as long as the keeper lives, and ``exporter_pid`` is the publisher, which
    may have ended.
    """

    way: ShareWay
    access: Access
    state: ImportState
    exporter_pid: int
    import_count: int
    exporter_buffer_id: int


class WayInfo(NamedTuple):
    """Whether memory can be shared in one way; false if it cannot.

    ``status`` is 0, or that of the export or import; ``status_name`` is its name. ``message`` says why not and what would help, or why it is ``slow``: over a
    bus or a link to another device. If ``needs_socket``, the handle alone is not enough: use :func:`send_share`, or a hub with a
    path. A dma-buf needs a socket of your own.
    """

    way: ShareWay
    status: int
    fd_count: int
    needs_socket: bool
    slow: bool
    message: str

    def __bool__(self) -> bool:
        """Whether the memory can be shared so."""
        return self.status == 0

    @property
    def status_name(self) -> str:
        """The name of the status, such as "GPUMEM_ERROR_UNSUPPORTED"."""
        name: str = c.gpumem_status_name(self.status).decode()
        return name

    def __repr__(self) -> str:
        """The values, with the name of the status."""
        return (f"WayInfo(way={self.way!r}, status={self.status} ({self.status_name}), fd_count={self.fd_count}, "
                f"needs_socket={self.needs_socket}, slow={self.slow}, message={self.message!r})")


class HubInfo(NamedTuple):
    """Information about a hub. ``path`` is where it listens: a whole path, or "@" and an abstract address.

    ``refused_count`` is how often it has refused something: a process that may not connect, a request with a wrong value,
    without the right or beyond a limit, or a link that broke the protocol. Names that were not found do not count.
    """

    link_count: int
    name_count: int
    version_count: int
    fd_count: int
    refused_count: int
    path: str
    name: str


class LinkInfo(NamedTuple):
    """Information about a link. ``pid`` is the process of the hub, or 0 if it is not visible here, or has ended."""

    pid: int
    uid: int
    connected: bool
    keeper: bool
    path: str


class Entry(NamedTuple):
    """One version of a name in a hub. ``fingerprint`` is None if it was published without one. ``publisher_gone``: the process
    that published it is not connected any more, and a keeper holds what it left. ``publisher_uid`` is the user of that process."""

    name: str
    version: int
    size: int
    type: ShareType
    way: ShareWay
    access: Access
    publisher_pid: int
    publisher_gone: bool
    publisher_uid: int
    fingerprint: Optional[bytes]


class RingInfo(NamedTuple):
    """Information about a ring, as one side sees it.

    ``held_count`` are the slots that this side has acquired or waited for, and neither published nor released. ``released``
    are the messages that this consumer has released, or the slowest one.
    """

    device_ordinal: int
    is_producer: bool
    base: int
    slot_size: int
    slot_stride: int
    slot_count: int
    consumers_max: int
    consumer_count: int
    held_count: int
    published: int
    released: int
    finished: bool
    name: str


class PoolInfo(NamedTuple):
    """Information about a pool. A ``limit`` of 0 is none, and with a ``release_threshold`` of 0 the pool keeps all.

    ``live_count`` blocks live, with ``live_bytes`` usable bytes. The pool has taken ``reserved_bytes`` in ``segment_count``
    pieces, of which no live block has ``cached_bytes``. Peaks are since they were reset, as seen when blocks move between a
    thread and the pool; totals since the pool was made. ``cross_stream_count`` blocks were freed in one stream and allocated
    in another. The pool has enqueued ``wait_count`` waits of one stream for another, and ``mark_count`` marks. It has taken
    memory ``grow_count`` times, and released some ``release_count`` times. ``capture_count`` captures into graphs have
    ``captured_bytes`` of it, live or free: see :meth:`Pool.release_capture`. For the size classes see :meth:`Pool.classes`.
    """

    device_ordinal: int
    kind: Kind
    flags: PoolFlags
    memory_flags: MemoryFlags
    handle_types: HandleTypes
    limit: int
    release_threshold: int
    live_count: int
    live_bytes: int
    reserved_bytes: int
    cached_bytes: int
    segment_count: int
    peak_live_count: int
    peak_live_bytes: int
    peak_reserved_bytes: int
    total_count: int
    total_bytes: int
    cross_stream_count: int
    wait_count: int
    mark_count: int
    grow_count: int
    release_count: int
    capture_count: int
    captured_bytes: int
    class_count: int
    name: str


class PoolClass(NamedTuple):
    """A size class of a pool: blocks of ``block_size`` usable bytes. ``block_count`` are those that the pool has cut, live or
    free."""

    block_size: int
    live_count: int
    total_count: int
    block_count: int


class BlockInfo(NamedTuple):
    """Information about a block of a pool. ``pool`` is None if it was closed. ``requested_size`` is 0 unless the pool has
    ``PoolFlags.DEBUG``."""

    pool: Optional[Pool]
    base: int
    usable_size: int
    requested_size: int


class Stats(NamedTuple):
    """Counters of an instance: live memory of all kinds, and live streams and events.

    ``live_bytes`` are bytes of memory: sizes as requested, and each block of physical memory once, with those of buffers and
    pools; ``reserved_bytes`` are the addresses of ranges, buffers and pools, mapped or not. ``peak_bytes`` is the most ``live_bytes`` since
    the instance was opened or the peaks were reset, with what a call took and gave back because it failed."""

    live_count: int
    live_bytes: int
    reserved_bytes: int
    streams: int
    events: int
    peak_bytes: int

    @property
    def live_objects(self) -> int:
        """Live memory, streams and events together."""
        return self.live_count + self.streams + self.events


class KindStats(NamedTuple):
    """Counters of one kind of memory: what is live, the peak since the instance was opened or the peaks were reset, and
    everything created since it was opened. Bytes of ``Kind.VIRTUAL`` are the addresses of ranges, mapped or not."""

    live_count: int
    live_bytes: int
    peak_count: int
    peak_bytes: int
    total_count: int
    total_bytes: int
