# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sharing memory and events with other processes."""

from __future__ import annotations

import ctypes
import math
import os
import select
import time
import weakref
from ctypes import c_int32, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple, Type, Union, overload

from . import _infos
from . import _library as c
from ._calls import ask, call, create, encoded, i32, nanoseconds, new_descriptor, u32, u64
from ._codes import Access, ExportFlags, HubFlags, ImportFlags, Location, SharePeer, ShareType, ShareWay
from ._dlpack import CPU, CUDA, CUDA_HOST
from ._enums import code, expect, known, truth
from ._enums import flags as flags_of
from ._infos import ImportInfo, MemoryInfo, ShareInfo, WayInfo
from ._memory import Memory
from ._operands import host_buffer, operand
from ._stream import Event, hold
from .errors import Busy, InvalidArgument, NotFound, NotReady, StaleHandle

if TYPE_CHECKING:
    from ._calls import Path
    from ._hub import Hub, Link
    from ._instance import Device, Instance
    from ._ring import RingConsumer

    Socket = Union[int, Any]

_BYTES = ctypes.sizeof(c.gpumem_share_handle)
_LOOK_SECONDS = 0.1  # how often a wait looks whether its instance was closed
_MESSAGE_SECONDS = 5.0  # how long the rest of a message may take at most, which is sent whole
_PACKET_FDS = 253  # descriptors of a packet, one of which is the connection
_ACCESS = "read, readwrite"


class ShareHandle(bytes):
    """Memory, an event or a ring that other processes can import: 256 bytes for any channel.

    :meth:`Memory.export`, :meth:`Event.export` and :meth:`RingProducer.export` make it. It can be pickled, so it may be an argument of a
    ``multiprocessing`` process. Whoever has the bytes, and runs as the same user, may import it: they are a secret, which its
    texts leave out. It holds no address, and does not keep the memory alive.
    """

    if TYPE_CHECKING:
        # The instance that exported or received it here, which has its descriptors.
        _instance: Optional[weakref.ref[Instance]]

    def __new__(cls, data: Any) -> ShareHandle:
        """Takes the bytes of a handle that came by another channel. :meth:`info` finds out whether they are whole."""
        try:
            found = bytes(memoryview(data))
        except TypeError:
            made_by = "; its export() makes one" if hasattr(data, "export") else ""
            raise TypeError(f"a handle is {_BYTES} bytes, and not {type(data).__name__}{made_by}") from None
        if len(found) != _BYTES:
            raise InvalidArgument(f"a handle has {_BYTES} bytes, not {len(found)}")
        self = super().__new__(cls, found)
        self._instance = None
        return self

    @classmethod
    def _of(cls, struct: Any, instance: Instance) -> ShareHandle:
        self = cls(bytes(struct.bytes))
        self._instance = weakref.ref(instance)
        return self

    def __reduce_ex__(self, protocol: Any) -> Tuple[Type[ShareHandle], Tuple[bytes]]:
        return type(self), (bytes(self[:]),)

    def __repr__(self) -> str:
        try:
            info = self.info()
        except Exception as problem:
            return f"<gpumem.ShareHandle: {problem}>"
        what = (str(info.type) if info.type in (ShareType.EVENT, ShareType.RING) else
                f"{info.size} bytes, {info.way}")
        return f"<gpumem.ShareHandle: {what}, of process {info.exporter_pid}>"

    __str__ = __repr__

    def _struct(self) -> Any:
        return c.gpumem_share_handle.from_buffer_copy(self)

    def info(self) -> ShareInfo:
        """What the handle says of itself. It needs no instance, and asks nobody."""
        return _infos.share_info(ask(c.gpumem_share_get_info, c.gpumem_share_info(), self._struct()))


def handle_struct(handle: Any) -> Any:
    """The struct of a handle, which may be given as plain bytes."""
    return (handle if isinstance(handle, ShareHandle) else ShareHandle(handle))._struct()


def instance_of(handle: Any, device: Optional[Device], instance: Optional[Instance]) -> Instance:
    """The instance to use: that of the device, the one given, the one that has the descriptors of the handle, or the default
    one."""
    from ._instance import Device, Instance, default_instance
    if device is not None:
        expect(Device, device, "device")
    if instance is not None:
        expect(Instance, instance, "instance")
    if device is not None:
        if instance is not None and device.instance is not instance:
            raise InvalidArgument("the device belongs to another instance")
        return device.instance
    if instance is not None:
        return instance
    reference = getattr(handle, "_instance", None)
    found = reference and reference()
    if found is not None and not found.closed:
        return found  # type: ignore[no-any-return]
    return default_instance()


def _descriptors(fds: Iterable[int]) -> Tuple[Any, int]:
    numbers = [i32(fd, "a descriptor") for fd in fds]
    return (c_int32 * len(numbers))(*numbers) if numbers else None, len(numbers)


def access_code(access: Union[Access, str, int, None]) -> int:
    return 0 if access is None else code(Access, access, "access", _ACCESS)


def seconds(value: Optional[float], what: str = "timeout") -> int:
    """A limit as nanoseconds, of which 0 is the default of the library."""
    return 0 if value is None else max(nanoseconds(value, what), 1)


def _once() -> Callable[..., int]:
    """Destroys an import, and not another one that has the same handle, if a signal handler raised as the call returned."""
    released = [False]

    def release(handle: Any, detail: Any) -> int:
        if released[0]:
            return 0
        released[0] = True  # between this and the call no signal handler runs
        status: int = c.gpumem_memory_destroy(handle, detail)
        released[0] = status >= 0
        return status
    return release


class ImportedMemory(Memory):
    """Memory of another process. :func:`import_memory` makes it.

    It is :class:`Memory` of kind IMPORTED: it can be copied, filled and viewed as the memory of the exporter can, and given to
    other libraries. Closing it ends this import; the memory is unmapped when each import of it in this process is closed.
    """

    __slots__ = ("_offset", "_release", "_where")
    _elsewhere = "; give another process the handle that it was imported with"

    if TYPE_CHECKING:
        _offset: int
        _where: Tuple[int, int]

    def __init__(self) -> None:
        raise TypeError("get imported memory from gpumem.import_memory()")

    @classmethod
    def _import(cls, instance: Instance, device: Optional[Device], function: Callable[..., int],
                *arguments: Any) -> Optional[ImportedMemory]:
        """Calls a function that imports; None if that has waited in vain."""
        pointer = c_void_p()
        self = cls.__new__(cls)
        self._release = _once()
        made = create(function, self._release, *arguments, pointer)
        if made.value is None:
            return None
        info = ask(c.gpumem_memory_get_info, c.gpumem_memory_info(), made.handle)
        base = info.device_pointer or info.host_pointer or 0
        place = instance.pointer_info(base)
        self._offset = (pointer.value or base) - base
        self._where = place.location, place.location_id
        self._own(instance.device(info.device_ordinal) if device is None else device, made)
        return self

    @property
    def offset(self) -> int:
        """Offset of the byte that was exported."""
        return self._offset

    def info(self) -> MemoryInfo:
        """Information about the memory."""
        self._check()  # other imports may have the same handle
        return super().info()

    def _check(self) -> None:
        if self.closed:
            raise StaleHandle("the memory is closed")

    def _dlpack_device(self, host: bool) -> Optional[Tuple[int, int]]:
        accessible = self.host_pointer is not None
        if host:
            return (CPU, 0) if accessible else None
        location, number = self._where
        return (CUDA, number) if location == Location.DEVICE else (CUDA_HOST, 0) if accessible else None

    def import_info(self) -> ImportInfo:
        """Information about the import, such as whether its exporter lives: :class:`ImportState`. It asks nobody."""
        self._check()
        return _infos.import_info(ask(c.gpumem_memory_get_import_info, c.gpumem_import_info(), self._handle))


def import_desc(device: Optional[Device], access: Union[Access, str, int, None], flags: Union[ImportFlags, str, int],
                name: Optional[str], **more: int) -> Any:
    return c.gpumem_import_desc(device=None if device is None else device.handle, access=access_code(access),
                                flags=flags_of(ImportFlags, flags, "flags"), name=encoded(name), **more)


def import_memory(handle: Union[ShareHandle, bytes], *, device: Optional[Device] = None, instance: Optional[Instance] = None,
                  fds: Iterable[int] = (), access: Union[Access, str, int, None] = None,
                  flags: Union[ImportFlags, str, int] = 0, address: int = 0, timeout: Optional[float] = None,
                  name: Optional[str] = None) -> ImportedMemory:
    """Imports memory that another process exported; see :class:`ImportedMemory`.

    ``device`` will use it; by default the one that has it. ``instance`` is by default the one that received the handle, or
    :func:`default_instance`. ``fds`` are the descriptors of the handle if you have them, which stay yours; otherwise they are
    those that came with it, or the exporter is asked for them and may take ``timeout`` seconds, 5 by default. ``access`` is
    "read" or "readwrite"; by default what the exporter allows. With an ``address``, the memory begins there if these
    addresses are free.
    """
    where = instance_of(handle, device, instance)
    desc = import_desc(device, access, flags, name, address=u64(address, "address"), timeout_ns=seconds(timeout))
    memory = ImportedMemory._import(where, device, c.gpumem_share_import, where.handle, handle_struct(handle), *_descriptors(fds), desc)
    assert memory is not None
    return memory


def import_event(handle: Union[ShareHandle, bytes], *, device: Optional[Device] = None,
                 instance: Optional[Instance] = None, fds: Iterable[int] = ()) -> Event:
    """Imports an event that another process exported with :meth:`Event.export`.

    Both processes can record it, wait for it and query it; a wait is for the latest record at the time of the call, in
    whichever process. It has no times. ``device`` is the one that has it, which is found by default.
    """
    found = handle if isinstance(handle, ShareHandle) else ShareHandle(handle)
    where = instance_of(handle, device, instance)
    if device is None:
        uuid = found.info().device_uuid
        device = next((one for one in where.devices if one.info().uuid == uuid), None)
        if device is None:
            raise NotFound("the instance does not see the device that has the event; make it visible to this process, or on "
                           "the host backend, open the instance with the same options as the exporter's")
    return Event._import(device, found._struct(), *_descriptors(fds))


def _fileno(socket: Socket) -> int:
    number = socket if isinstance(socket, int) else getattr(socket, "fileno", None)
    if number is None:
        raise TypeError(f"the socket must be a socket, a connection or a descriptor, not a {type(socket).__name__}")
    found = i32(number if isinstance(number, int) else number(), "the descriptor")
    if found < 0:
        raise InvalidArgument(f"the descriptor is {found}; the socket was closed, or is none")
    return found


def _is_ready(where: Instance, number: int, end: float) -> bool:
    """Waits for what comes over a socket. It answers Ctrl-C, and ends when the instance is closed, which the next call says."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    while not where.closed:
        left = max(end - time.monotonic(), 0)
        if poll.poll(math.ceil(min(left, _LOOK_SECONDS) * 1000)):
            return True
        if left == 0:
            return False
    return True


def send_share(socket: Socket, handle: ShareHandle, *, instance: Optional[Instance] = None, lease: Optional[float] = None,
               timeout: Optional[float] = None) -> None:
    """Sends a handle, with its descriptors and a connection to this process, over a Unix socket. The receiver needs no common
    namespace.

    ``socket`` is a connected ``socket.socket``, a ``multiprocessing`` connection, anything else with a ``fileno()``, or a
    descriptor. The message is sent whole, between two messages of your own. ``instance`` is the one that exported the handle,
    which is known where it was exported. What the receiver has not imported after ``lease`` seconds, 30 by default, or when
    it hangs up, is taken back. ``timeout`` is how long to wait for room in the socket, 5 seconds by default.
    """
    where, struct, number = instance_of(handle, None, instance), handle_struct(handle), _fileno(socket)
    lease_ns, limit = seconds(lease, "lease"), 5.0 if timeout is None else timeout
    nanoseconds(limit)
    end = time.monotonic() + limit
    # A message of several packets cannot be begun again, so no signal ends its wait.
    slices = ask(c.gpumem_share_get_info, c.gpumem_share_info(), struct).fd_count < _PACKET_FDS
    while True:
        left = max(end - time.monotonic(), 0)
        now = min(left, _LOOK_SECONDS) if slices else left
        try:
            call(c.gpumem_share_send, where.handle, struct, number, c.gpumem_send_desc(lease_ns=lease_ns, timeout_ns=seconds(now)))
            return
        except Busy:
            if now == left:
                raise


@overload
def receive_share(socket: Socket, *, instance: Optional[Instance] = None, timeout: None = None) -> ShareHandle: ...


@overload
def receive_share(socket: Socket, *, instance: Optional[Instance] = None,
                  timeout: Optional[float] = None) -> Optional[ShareHandle]: ...


def receive_share(socket: Socket, *, instance: Optional[Instance] = None,
                  timeout: Optional[float] = None) -> Optional[ShareHandle]:
    """Receives a handle that :func:`send_share` sent. Returns None if nothing came within ``timeout`` seconds. If only a part
    came, it raises Busy, and nothing else can be received over the socket.

    Its descriptors and connection are kept until it is imported, or for the sender's lease. ``instance`` will import it; by
    default it is :func:`default_instance`.
    """
    where, number, struct = instance_of(None, None, instance), _fileno(socket), c.gpumem_share_handle()
    nanoseconds(timeout)
    end = math.inf if timeout is None else time.monotonic() + timeout
    if not _is_ready(where, number, end):
        return None
    left = min(max(end - time.monotonic(), 0), _MESSAGE_SECONDS)
    if call(c.gpumem_share_receive, where.handle, number, nanoseconds(left), struct) == c.GPUMEM_NOT_READY:
        raise NotReady("the message did not come whole", function="gpumem_share_receive")
    return ShareHandle._of(struct, where)


class Sharing:
    """The part of an instance that shares memory."""

    __slots__ = ()

    if TYPE_CHECKING:
        @property
        def handle(self) -> int: ...

        def _instance(self) -> Instance: ...

    def export(self, pointer: Any, *, way: Union[ShareWay, str, int] = "any", access: Union[Access, str, int, None] = None,
               flags: Union[ExportFlags, str, int] = 0) -> ShareHandle:
        """Exports memory, so that other processes of this user can import it. Exporting it again gives the same handle.

        ``pointer`` is any byte of it: an operand as in :meth:`copy`, or an address. ``way`` is a :class:`ShareWay`, by default
        the best that the memory has: "legacy" shares an allocation as a whole, "posix_fd" all blocks that are mapped one
        behind the other around the pointer, as they lie. Of a buffer that is its capacity; of a :class:`PoolBlock` the whole
        pieces of the pool that it lies in. ``access`` is the most that importers get, "read" or "readwrite".
        The export ends when the memory is closed or unmapped, or with :meth:`revoke`.

        A :class:`PoolBlock` needs ``flags="neighbours"``, because importers see what else is in these pieces, now or later.
        Exports of blocks that lie in the same pieces, with the same access, share one import. Free a block only after its
        importers have stopped using it: the pool then hands out the same bytes again.
        """
        desc = c.gpumem_export_desc(way=code(ShareWay, way, "way"), access=access_code(access),
                                    flags=flags_of(ExportFlags, flags, "flags"))
        return ShareHandle._of(self._with(pointer, lambda address: ask(
            c.gpumem_share_export, c.gpumem_share_handle(), self.handle, address, desc)), self._instance())

    def _with(self, pointer: Any, function: Callable[[int], Any]) -> Any:
        """Calls a function with the address of an operand, which stays open meanwhile."""
        address, _, kept = operand(pointer, False, "pointer")
        with hold((kept,)):
            return function(address)

    def revoke(self, handle: Union[ShareHandle, bytes]) -> None:
        """Ends an export of memory or an event. Whoever imports the handle from now on gets StaleHandle; what has been imported
        stays."""
        call(c.gpumem_share_revoke, self.handle, handle_struct(handle))

    def share_fds(self, handle: Union[ShareHandle, bytes]) -> List[int]:
        """New descriptors of an export, for a transport of your own. Close each with ``os.close()``. They keep the memory alive,
        also after this process has ended. By "legacy" the cuda backend has none."""
        struct, count = handle_struct(handle), c_uint32()
        call(c.gpumem_share_get_fds, self.handle, struct, None, 0, count)
        if not count.value:
            return []
        fds = (c_int32 * count.value)(*[-1] * count.value)
        try:
            call(c.gpumem_share_get_fds, self.handle, struct, fds, len(fds), count)
        except BaseException:  # a signal handler raised as the call returned
            for fd in fds:
                if fd >= 0:
                    os.close(fd)
            raise
        return list(fds[:count.value])

    def import_memory(self, handle: Union[ShareHandle, bytes], *, device: Optional[Device] = None, fds: Iterable[int] = (),
                      access: Union[Access, str, int, None] = None, flags: Union[ImportFlags, str, int] = 0,
                      address: int = 0, timeout: Optional[float] = None, name: Optional[str] = None) -> ImportedMemory:
        """Imports memory that another process exported; see :func:`import_memory`."""
        return import_memory(handle, device=device, instance=self._instance(), fds=fds, access=access, flags=flags,
                             address=address, timeout=timeout, name=name)

    def share_way(self, pointer: Any, way: Union[ShareWay, str, int],
                  peer: Union[SharePeer, str, int] = "other_process") -> WayInfo:
        """Whether memory can be shared in one :class:`ShareWay` with a :class:`SharePeer`, and why not. It changes nothing.

        It answers from here; :meth:`Link.share_way` asks the other process.
        """
        return self._way(c.gpumem_share_get_way, self.handle, pointer, way, peer)

    def _way(self, function: Callable[..., int], asked: int, pointer: Any, way: Union[ShareWay, str, int],
             peer: Union[SharePeer, str, int]) -> WayInfo:
        number, whom = code(ShareWay, way, "way"), code(SharePeer, peer, "peer")
        found = self._with(pointer, lambda address: ask(function, c.gpumem_way_info(), asked, address, number, whom))
        return _infos.way_info(found, known(ShareWay, number))

    def share_ways(self, pointer: Any, peer: Union[SharePeer, str, int] = "other_process") -> Dict[ShareWay, WayInfo]:
        """Whether memory can be shared with a :class:`SharePeer`, and why not: what :meth:`share_way` says of each way."""
        return ways_of(lambda way: self.share_way(pointer, way, peer))

    def export_dma_buf(self, pointer: Any, size: Optional[int] = None, *, prefer_pcie: bool = False) -> int:
        """A new descriptor of a dma-buf of device memory, which drivers of other devices import: of network cards, say. Close it
        with ``os.close()``.

        Address and size are multiples of the page size. A part of a range must be exported again after it was mapped anew.
        """
        room = operand(pointer, False, "pointer")[1] if size is None else size
        if room is None:
            raise TypeError("the size is missing: an address needs one")
        length, chosen = u64(room, "size"), c.GPUMEM_DMA_BUF_PREFER_PCIE if truth(prefer_pcie, "prefer_pcie") else 0
        return self._with(pointer, lambda address: new_descriptor(  # type: ignore[no-any-return]
            c.gpumem_share_export_dma_buf, self.handle, address, length, chosen))

    def set_import_cache(self, idle: float = 0, *, bytes_max: int = 0) -> None:
        """Keeps imports mapped for ``idle`` seconds after they were closed, because they may be imported again; at most
        ``bytes_max`` bytes, or any number if it is 0. Only "posix_fd" is kept. At the beginning nothing is."""
        call(c.gpumem_share_set_cache, self.handle,
             c.gpumem_import_cache_desc(idle_ns=nanoseconds(idle), bytes_max=u64(bytes_max, "bytes_max")))

    def flush_import_cache(self) -> None:
        """Unmaps all imports that are closed and kept."""
        call(c.gpumem_share_flush_cache, self.handle)

    def hub(self, path: Optional[Path] = None, *, mode: int = 0, users: Iterable[int] = (), groups: Iterable[int] = (),
            token: Any = None, flags: Union[HubFlags, str, int] = 0, links_max: int = 0, names_max: int = 0,
            versions_max: int = 0, fds_max: int = 0, bytes_max: int = 0, timeout: Optional[float] = None,
            name: Optional[str] = None) -> Hub:
        """Opens a hub, in which others find by name what this instance exports; see :class:`Hub`."""
        from ._hub import Hub
        return Hub(self._instance(), path, mode=mode, users=users, groups=groups, token=token, flags=flags,
                   links_max=links_max, names_max=names_max, versions_max=versions_max, fds_max=fds_max, bytes_max=bytes_max,
                   timeout=timeout, name=name)

    def connect(self, path: Optional[Path] = None, *, token: Any = None, timeout: Optional[float] = None) -> Link:
        """Connects to a hub; see :class:`Link`."""
        from ._hub import Link
        return Link(self._instance(), path, token=token, timeout=timeout)

    def open_ring(self, handle: Union[ShareHandle, bytes], *, timeout: Optional[float] = None,
                  name: Optional[str] = None) -> RingConsumer:
        """Opens a ring of another process; see :func:`open_ring`."""
        from ._ring import RingConsumer
        return RingConsumer(self._instance(), handle, timeout=timeout, name=name)


def ways_of(function: Callable[[ShareWay], WayInfo]) -> Dict[ShareWay, WayInfo]:
    return {way: function(way) for way in ShareWay if way != ShareWay.ANY}


def token_of(token: Any) -> Tuple[Any, Any, int]:
    """(what to keep, address, bytes) of a token."""
    if token is None:
        return None, None, 0
    if isinstance(token, str):
        raise TypeError("token must be bytes, not str: encode it")
    buffer = host_buffer(token, False)
    return buffer, buffer.address, u32(buffer.size, "the size of the token")


def numbers_of(values: Iterable[int], what: str) -> Tuple[Any, int]:
    numbers = [u32(value, what) for value in values]
    return (c_uint32 * len(numbers))(*numbers) if numbers else None, len(numbers)
