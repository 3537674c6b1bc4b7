# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the library says in the names of C, in those of Python."""

from __future__ import annotations

import re
from enum import Flag
from typing import Dict, Match

from . import _codes, _native
from .errors import STATUS_CLASSES, STATUS_NAMES

_FUNCTIONS = {
    "gpumem_buffer": "Buffer",
    "gpumem_buffer_create": "Device.buffer()",
    "gpumem_buffer_destroy": "Buffer.close()",
    "gpumem_buffer_forget_registration": "Registration.close()",
    "gpumem_buffer_get_info": "Buffer.info()",
    "gpumem_buffer_note_registration": "Buffer.note_registration()",
    "gpumem_buffer_prepare": "Buffer.prepare()",
    "gpumem_buffer_resize": "Buffer.resize()",
    "gpumem_buffer_set_access": "Buffer.set_access()",
    "gpumem_buffer_set_ahead": "Buffer.set_ahead()",
    "gpumem_buffer_set_callbacks": "Buffer.set_callbacks()",
    "gpumem_buffer_set_capacity": "Buffer.set_capacity()",
    "gpumem_buffer_sleep": "Buffer.sleep()",
    "gpumem_buffer_wake": "Buffer.wake()",
    "gpumem_copy": "Instance.copy()",
    "gpumem_copy_file": "Instance.read_file()",
    "gpumem_device_enable_peer_access": "Device.enable_peer_access()",
    "gpumem_device_get_capability": "Device.capability()",
    "gpumem_event_export": "Event.export()",
    "gpumem_event_import": "gpumem.import_event()",
    "gpumem_free": "Instance.free()",
    "gpumem_group_create": "Instance.group()",
    "gpumem_group_destroy": "Group.close()",
    "gpumem_group_get_info": "Group.info()",
    "gpumem_group_prepare": "Group.prepare()",
    "gpumem_group_sleep": "Group.sleep()",
    "gpumem_group_wake": "Group.wake()",
    "gpumem_host_device_lose": "gpumem.host.lose()",
    "gpumem_host_fail_step": "gpumem.host.fail_step()",
    "gpumem_hub_close": "Hub.close()",
    "gpumem_hub_get_info": "Hub.info()",
    "gpumem_hub_open": "Instance.hub()",
    "gpumem_hub_publish": "Hub.publish()",
    "gpumem_hub_withdraw": "Hub.withdraw()",
    "gpumem_instance_open": "gpumem.Instance()",
    "gpumem_link_close": "Link.close()",
    "gpumem_link_connect": "Instance.connect()",
    "gpumem_link_enumerate": "Link.list()",
    "gpumem_link_fetch": "Link.fetch()",
    "gpumem_link_get_info": "Link.info()",
    "gpumem_link_get_way": "Link.share_way()",
    "gpumem_link_publish": "Link.publish()",
    "gpumem_link_wait": "Link.wait()",
    "gpumem_link_withdraw": "Link.withdraw()",
    "gpumem_log_set_function": "gpumem.set_log_function()",
    "gpumem_malloc": "Device.malloc()",
    "gpumem_managed_advise": "Instance.advise()",
    "gpumem_managed_attach": "Stream.attach()",
    "gpumem_managed_begin_host_access": "HostAccess.begin()",
    "gpumem_managed_discard_and_prefetch_batch": "Stream.discard_and_prefetch_batch()",
    "gpumem_managed_discard_batch": "Stream.discard_batch()",
    "gpumem_managed_end_host_access": "HostAccess.end()",
    "gpumem_managed_get_info": "Instance.managed_info()",
    "gpumem_managed_prefetch": "Stream.prefetch()",
    "gpumem_managed_prefetch_batch": "Stream.prefetch_batch()",
    "gpumem_memory_destroy": "Memory.close()",
    "gpumem_memory_get_import_info": "ImportedMemory.import_info()",
    "gpumem_memory_register": "Device.register()",
    "gpumem_physical": "Physical",
    "gpumem_physical_create": "Device.physical()",
    "gpumem_physical_export_fabric": "Physical.export_fabric()",
    "gpumem_physical_export_fd": "Physical.export_fd()",
    "gpumem_physical_get_granularity": "Device.physical_granularity()",
    "gpumem_physical_import_fabric": "Device.import_fabric()",
    "gpumem_physical_import_fd": "Device.import_physical()",
    "gpumem_physical_release": "Physical.close()",
    "gpumem_physical_retain": "Instance.retain_physical()",
    "gpumem_pointer_get_access": "Instance.pointer_access()",
    "gpumem_pointer_get_info": "Instance.pointer_info()",
    "gpumem_pool_alloc": "Pool.alloc()",
    "gpumem_pool_alloc_aligned": "Pool.alloc()",
    "gpumem_pool_alloc_batch": "Pool.alloc_batch()",
    "gpumem_pool_alloc_native": "Pool.alloc()",
    "gpumem_pool_create": "Device.pool()",
    "gpumem_pool_destroy": "Pool.close()",
    "gpumem_pool_free": "PoolBlock.free()",
    "gpumem_pool_free_batch": "Pool.free_batch()",
    "gpumem_pool_free_native": "PoolBlock.free()",
    "gpumem_pool_free_pointer": "Instance.free_block()",
    "gpumem_pool_free_sized": "PoolBlock.free()",
    "gpumem_pool_get_block_info": "Instance.block_info()",
    "gpumem_pool_get_class_info": "Pool.classes()",
    "gpumem_pool_get_info": "Pool.info()",
    "gpumem_pool_record_use": "PoolBlock.record_use()",
    "gpumem_pool_release_capture": "Pool.release_capture()",
    "gpumem_pool_reset_peaks": "Pool.reset_peaks()",
    "gpumem_pool_set_callback": "Pool.set_callback()",
    "gpumem_pool_set_limit": "Pool.set_limit()",
    "gpumem_pool_set_release_threshold": "Pool.set_release_threshold()",
    "gpumem_pool_trim": "Pool.trim()",
    "gpumem_range_get_mapping": "Instance.mapping()",
    "gpumem_range_map": "Range.map()",
    "gpumem_range_release": "Range.close()",
    "gpumem_range_reserve": "Instance.reserve()",
    "gpumem_range_set_access": "Range.set_access()",
    "gpumem_range_unmap": "Range.unmap()",
    "gpumem_register": "Device.register_pointer()",
    "gpumem_ring_acquire": "RingProducer.acquire()",
    "gpumem_ring_create": "Device.ring()",
    "gpumem_ring_destroy": "RingProducer.close()",
    "gpumem_ring_export": "RingProducer.export()",
    "gpumem_ring_finish": "RingProducer.finish()",
    "gpumem_ring_get_info": "RingProducer.info()",
    "gpumem_ring_open": "gpumem.open_ring()",
    "gpumem_ring_publish": "RingSlot.publish()",
    "gpumem_ring_release": "RingMessage.release()",
    "gpumem_ring_wait": "RingConsumer.wait()",
    "gpumem_share_export": "Instance.export()",
    "gpumem_share_export_dma_buf": "Instance.export_dma_buf()",
    "gpumem_share_flush_cache": "Instance.flush_import_cache()",
    "gpumem_share_get_fds": "Instance.share_fds()",
    "gpumem_share_get_info": "ShareHandle.info()",
    "gpumem_share_get_way": "Instance.share_way()",
    "gpumem_share_import": "gpumem.import_memory()",
    "gpumem_share_receive": "gpumem.receive_share()",
    "gpumem_share_revoke": "Instance.revoke()",
    "gpumem_share_send": "gpumem.send_share()",
    "gpumem_share_set_cache": "Instance.set_import_cache()",
    "gpumem_stats_report": "Instance.report()",
    "gpumem_unregister": "Instance.unregister()",
}
_C_NAME = re.compile(r"\bor close with GPUMEM_CLOSE_FORCE|\bwith GPUMEM_MEMORY_[A-Z0-9_]+|\b(?:GPUMEM_[A-Z0-9_]+\??|gpumem_[a-z0-9_]+(?:\(\))?|NULL\b)")
_POOL_BLOCKS = re.compile(r"free (?:it|them) with gpumem_pool_free_pointer\(\)|gpumem_pool_free_pointer\(\) frees them")
_END_OF_BLOCKS = "call free() of each PoolBlock or drop it, and Instance.free_block() for those of Pool.malloc()"
# What Python passes in another way than C. A word alone may be a name or part of a path that a program has chosen.
_PHRASES = tuple((re.compile(pattern), words) for pattern, words in (
    (r"was (?:destroyed|closed); do not use its handle after that", "was closed"),
    (r"\bdesc->", ""),
    (r" than that in desc\b", " than the call says"),
    (r"\bthe functions of gpumem_buffer\b", "the methods of the Buffer"),
    (r", with the node in location_id\b", ' with the node, as in ("host_numa", 0)'),
    (r"\bset location and location_id to 0\b", "leave it out"),
    (r"\blocation_id is\b", "the number of the location is"),
    (r"\btoken_size is\b", "len(token) is"),
    (r"\bfd_count is\b", "len(fds) is"),
    (r"\bcontext_count (?=is|exceeds)", "len(contexts) "),
    (r"\bmax_level is\b", "level is"),
    (r"\bphysicals\[(.+?)\]", r"block \1"),
    (r"\bpointers\[.+?\]: ", "a block: "),
    (r"\bone of the GPUMEM_TOGGLE_ values \(0 to 2\)", "True, False or None"),
))
_DESTROY = re.compile(r"\b([Dd])estroy(ed|ing)?\b")
_MEMORY_FLAGS = re.compile(r"the flags (0x[0-9a-f]+) are(?=.* memory)")
_OBJECT = re.compile(r"(?m)(^|[:;] ?)(?:(device|pinned|registered|managed|imported) memory|"
                     r"(stream|event|physical|virtual|buffer|pool|ring|hub)(?: memory)?) (.*?): (?=\d+ |device \d|[/@])")
_LINK = re.compile(r"(?m)(^|[:;] )link: (?=[/@])")
_GROUP = re.compile(r"(?m)(^|[:;] )group (.*?)(?=$|; )")


def _constants() -> Dict[str, str]:
    """The constants of the enumerations, and what messages call all of one: "GPUMEM_KIND_"."""
    found = {}
    for name in vars(_native):
        for prefix, cls in sorted(_codes.PREFIXES, key=lambda item: -len(item[0])):
            if name.startswith(prefix) and name[len(prefix):] in cls.__members__:
                # The guide passes flags by their names.
                value = name[len(prefix):]
                found[name] = f'"{value.lower()}"' if issubclass(cls, Flag) else f"{cls.__name__}.{value}"
                if cls is _codes.MemoryFlags:
                    found[f"with {name}"] = f'with require="{value.lower()}"'
                break
    # Of two types with the same prefix, the first.
    found.update((prefix, cls.__name__) for prefix, cls in reversed(_codes.PREFIXES))
    found.update((STATUS_NAMES[status], cls.__name__) for status, cls in STATUS_CLASSES.items())
    found["NULL"] = "None"
    found["or close with GPUMEM_CLOSE_FORCE"] = "or call close(force=True)"
    found["GPUMEM_CLOSE_FORCE"] = "force=True"
    found["GPUMEM_SLEEP_IDLE"] = "idle=True"
    return {**found, **_FUNCTIONS}


_names: Dict[str, str] = {}


def _in_python(match: Match[str]) -> str:
    if not _names:
        _names.update(_constants())
    name = match[0]
    return _names.get(name) or _names.get(name.replace("()", "")) or name


def _flags(match: Match[str]) -> str:
    return f"the flags {_codes.MemoryFlags(int(match[1], 16))} are"


def in_python(text: str) -> str:
    """A message of the library. Names that Python does not have, such as those of the environment, stay."""
    for phrase, words in _PHRASES:
        text = phrase.sub(words, text)
    # By its address, a block would be freed a second time when its object is dropped.
    text = _POOL_BLOCKS.sub(_END_OF_BLOCKS, text)
    text = _DESTROY.sub(lambda match: ("C" if match[1] == "D" else "c") + "los" + (match[2] or "e"), text)
    return _C_NAME.sub(_in_python, _MEMORY_FLAGS.sub(_flags, text))


def _object(match: Match[str]) -> str:
    begin, kind, other, name = match.groups()
    name = "" if name == "(no name)" else f" {name!r}"
    other = "range" if other == "virtual" else other
    return f"{begin}Memory{name}: {kind}, " if kind else f"{begin}{other.capitalize()}{name}: "


def _group(match: Match[str]) -> str:
    begin, name = match.groups()
    return f"{begin}Group" if name == "(no name)" else f"{begin}Group {name!r}"


def report_in_python(text: str) -> str:
    """A report of live objects, each named as by its repr."""
    return in_python(_LINK.sub(r"\1Link: ", _GROUP.sub(_group, _OBJECT.sub(_object, text))))
