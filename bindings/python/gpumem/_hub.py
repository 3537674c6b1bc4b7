# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Shared memory and events under names, on a Unix socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple, Union, overload

from . import _infos
from . import _library as c
from ._calls import ask, call, create, encoded, encoded_path, number, u32, u64
from ._codes import Access, HubFlags, ImportFlags, SharePeer, ShareWay
from ._enums import flags as flags_of
from ._handles import Owner, expect_instance
from ._infos import Entry, HubInfo, LinkInfo, WayInfo
from ._known import HubKnown, LinkKnown
from ._share import ImportedMemory, ShareHandle, access_code, handle_struct, import_desc, numbers_of, seconds, token_of, ways_of
from ._waits import pieces
from .errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from ._calls import Path
    from ._instance import Device, Instance

_FINGERPRINT = 32


def _name(name: str) -> bytes:
    if name is None:
        raise TypeError("name must be a str, not None")
    return encoded(name) or b""


def _fingerprint(value: Any) -> Any:
    """The fingerprint as C has it."""
    array = c.gpumem_publish_desc().fingerprint
    if value is not None:
        found = bytes(memoryview(value))
        if len(found) != _FINGERPRINT:
            raise InvalidArgument(f"a fingerprint has {_FINGERPRINT} bytes, not {len(found)}")
        array[:] = found
    return array


def _publish(function: Callable[..., int], owner: int, name: str, handle: Any, version: int,
             access: Union[Access, str, int, None], keep: int, fingerprint: Any) -> int:
    desc = c.gpumem_publish_desc(version=u64(version, "version"), access=access_code(access), keep=u32(keep, "keep"),
                                 fingerprint=_fingerprint(fingerprint))
    return number(function, owner, _name(name), handle_struct(handle), desc)


class Opened(Owner):
    """What hubs, links and rings have in common."""

    __slots__ = ("instance",)
    _instead = "use the object itself; another process connects with an instance of its own"

    if TYPE_CHECKING:
        instance: Instance


class Hub(HubKnown, Opened):
    """Shared memory and events under names, for processes that connect to a Unix socket.

    ``instance.hub(path)`` opens it. A path that begins with "@" is an abstract address, which has no file. A name without "/"
    stands for that file in the folder of the user for sockets, and None for the name "default". ``mode`` are the permissions
    of the file, by default those of the user alone. ``users`` and ``groups`` are ids that may connect too. ``token`` is a
    secret that links must show. The limits, such as ``links_max``, have defaults, which 0 stands for. With ``flags="keeper"``
    others may publish, and the hub holds their memory after they have ended.

    A name has versions. Publishing adds one, and readers of older ones keep them. The hub is closed by :meth:`close`, at the
    end of a ``with`` block, or when nothing refers to it any more.
    """

    __slots__ = ()
    _destroyed_by = "gpumem_hub_close"

    def __init__(self, instance: Instance, path: Optional[Path] = None, *, mode: int = 0, users: Iterable[int] = (),
                 groups: Iterable[int] = (), token: Any = None, flags: Union[HubFlags, str, int] = 0, links_max: int = 0,
                 names_max: int = 0, versions_max: int = 0, fds_max: int = 0, bytes_max: int = 0,
                 timeout: Optional[float] = None, name: Optional[str] = None) -> None:
        self._closed = True
        expect_instance(instance)
        user_array, user_count = numbers_of(users, "a user")
        group_array, group_count = numbers_of(groups, "a group")
        kept, secret, size = token_of(token)
        desc = c.gpumem_hub_desc(
            path=encoded_path(path, "path"), mode=u32(mode, "mode"), user_count=user_count, users=user_array, groups=group_array,
            group_count=group_count, token_size=size, token=secret, flags=flags_of(HubFlags, flags, "flags"),
            links_max=u32(links_max, "links_max"), names_max=u32(names_max, "names_max"),
            versions_max=u32(versions_max, "versions_max"), fds_max=u32(fds_max, "fds_max"),
            bytes_max=u64(bytes_max, "bytes_max"), timeout_ns=seconds(timeout), name=encoded(name))
        made = create(c.gpumem_hub_open, c.gpumem_hub_close, instance.handle, desc)
        del kept
        self.instance = instance
        self._own(made)

    def close(self) -> None:
        """Closes the hub: its links hang up, its file is removed, and its names are gone. Memory that links have imported stays
        with them. A second call does nothing."""
        self._end()

    def _about(self, info: HubInfo) -> str:
        return f"{info.path}, {info.name_count} name{'s' * (info.name_count != 1)}"

    def publish(self, name: str, handle: Union[ShareHandle, bytes], *, version: int = 0,
                access: Union[Access, str, int, None] = None, keep: int = 0, fingerprint: Any = None) -> int:
        """Publishes a handle under a name, as its newest version, and returns the number of that.

        The work that fills the memory must be complete. ``name`` has up to 63 bytes of UTF-8, without "/". ``version`` is above
        all that the name ever had; 0 means one more than the last. ``access`` is the most that links get: by default "read" for
        descriptors, and what the export allows otherwise. ``keep`` is how many older versions to keep, one by default.
        ``fingerprint`` are 32 bytes to fetch it by, such as a hash of the bytes.
        """
        return _publish(c.gpumem_hub_publish, self._handle, name, handle, version, access, keep, fingerprint)

    def withdraw(self, name: str, version: int = 0) -> None:
        """Withdraws one version of a name, or all if it is 0. Importers keep what they have."""
        call(c.gpumem_hub_withdraw, self._handle, _name(name), u64(version, "version"))


class Link(LinkKnown, Opened):
    """A connection to a hub. ``instance.connect(path)`` makes it, with a path as for :class:`Hub`. It does not wait for a hub to
    be opened: on NotFound, pause and try again. ``token`` is the secret of the hub. ``timeout`` is how many seconds the hub may
    take for each answer, 5 by default.

    What is fetched through it is imported by its instance, and stays when the link is closed.
    """

    __slots__ = ()
    _destroyed_by = "gpumem_link_close"

    def __init__(self, instance: Instance, path: Optional[Path] = None, *, token: Any = None,
                 timeout: Optional[float] = None) -> None:
        self._closed = True
        expect_instance(instance)
        kept, secret, size = token_of(token)
        desc = c.gpumem_link_desc(path=encoded_path(path, "path"), token=secret, token_size=size,
                                  timeout_ns=seconds(timeout))
        made = create(c.gpumem_link_connect, c.gpumem_link_close, instance.handle, desc)
        del kept
        self.instance = instance
        self._own(made)

    def close(self) -> None:
        """Closes the link. A wait of another thread raises StaleHandle. A second call does nothing."""
        self._end()

    def _about(self, info: LinkInfo) -> str:
        return f"{info.path}, process {info.pid}{'' if info.connected else ', hung up'}"

    def list(self) -> List[Entry]:
        """The versions in the hub, in the order of names and versions. What is published or withdrawn meanwhile may be missing or
        appear twice."""
        entries: List[Entry] = []
        while True:
            found = c.gpumem_entry_info()
            try:
                call(c.gpumem_link_enumerate, self._handle, len(entries), found)
            except NotFound:
                return entries
            entries.append(_infos.entry(found))

    @overload
    def wait(self, name: str, after: int = 0, timeout: None = None) -> Entry: ...

    @overload
    def wait(self, name: str, after: int = 0, timeout: Optional[float] = None) -> Optional[Entry]: ...

    def wait(self, name: str, after: int = 0, timeout: Optional[float] = None) -> Optional[Entry]:
        """Waits until a name has a version after a given one, and returns the newest; None if ``timeout`` seconds have passed. 0
        waits for any version.

        Fetch the version that it found; if that raises NotFound, newer ones have replaced it, so wait again. The numbers only grow
        while the hub is open, and another hub counts anew: after PeerGone, connect again and begin with 0.
        """
        version, key, found = u64(after, "after"), _name(name), c.gpumem_entry_info()
        for piece in pieces(timeout):
            if call(c.gpumem_link_wait, self._handle, key, version, piece, found) != c.GPUMEM_NOT_READY:
                return _infos.entry(found)
        return None

    def fetch(self, name: str, *, version: int = 0, fingerprint: Any = None) -> ShareHandle:
        """The handle of a name: of its newest version, of one version, or of the newest with a fingerprint. Its descriptors and
        connection are kept until it is imported, or for 30 seconds."""
        desc = c.gpumem_fetch_desc(version=u64(version, "version"), fingerprint=_fingerprint(fingerprint))
        return ShareHandle._of(ask(c.gpumem_link_fetch, c.gpumem_share_handle(), self._handle, _name(name), desc), self.instance)

    @overload
    def import_next(self, name: str, after: int = 0, timeout: None = None, *, device: Optional[Device] = None,
                    access: Union[Access, str, int, None] = None, flags: Union[ImportFlags, str, int] = 0,
                    memory_name: Optional[str] = None) -> Tuple[ImportedMemory, Entry]: ...

    @overload
    def import_next(self, name: str, after: int = 0, timeout: Optional[float] = None, *, device: Optional[Device] = None,
                    access: Union[Access, str, int, None] = None, flags: Union[ImportFlags, str, int] = 0,
                    memory_name: Optional[str] = None) -> Optional[Tuple[ImportedMemory, Entry]]: ...

    def import_next(self, name: str, after: int = 0, timeout: Optional[float] = None, *, device: Optional[Device] = None,
                    access: Union[Access, str, int, None] = None, flags: Union[ImportFlags, str, int] = 0,
                    memory_name: Optional[str] = None) -> Optional[Tuple[ImportedMemory, Entry]]:
        """Waits until a ``name`` has memory ``after`` a given version, and imports the newest, which the entry describes; None if
        ``timeout`` seconds have passed without one. A version that is replaced meanwhile is passed over. Otherwise it is
        :meth:`wait`, :meth:`fetch` and :func:`import_memory`, which describes ``device``, ``access`` and ``flags``; ``memory_name``
        is the name of the memory here.
        """
        version, key, found = u64(after, "after"), _name(name), c.gpumem_entry_info()
        desc = import_desc(device, access, flags, memory_name)
        for piece in pieces(timeout):
            memory = ImportedMemory._import(self.instance, device, c.gpumem_link_import_next, self._handle, key, version, piece, desc, found)
            if memory is not None:
                return memory, _infos.entry(found)
        return None

    def publish(self, name: str, handle: Union[ShareHandle, bytes], *, version: int = 0,
                access: Union[Access, str, int, None] = None, keep: int = 0, fingerprint: Any = None) -> int:
        """Publishes a handle that this link's instance exported by "posix_fd", in a keeper; see :meth:`Hub.publish`. The keeper takes
        its descriptors, so the memory outlives this process."""
        return _publish(c.gpumem_link_publish, self._handle, name, handle, version, access, keep, fingerprint)

    def withdraw(self, name: str, version: int = 0) -> None:
        """Withdraws one version of a name from a keeper, or all if it is 0."""
        call(c.gpumem_link_withdraw, self._handle, _name(name), u64(version, "version"))

    def share_way(self, pointer: Any, way: Union[ShareWay, str, int],
                  peer: Union[SharePeer, str, int] = "other_process") -> WayInfo:
        """Whether memory of this link's instance can be shared in one :class:`ShareWay` with the process of the hub, by a trial at
        both ends: that process opens a small block in the same place. The answer is kept with the link. A keeper opens nothing.
        """
        return self.instance._way(c.gpumem_link_get_way, self._handle, pointer, way, peer)

    def share_ways(self, pointer: Any, peer: Union[SharePeer, str, int] = "other_process") -> Dict[ShareWay, WayInfo]:
        """What :meth:`share_way` says of each way."""
        return ways_of(lambda way: self.share_way(pointer, way, peer))
