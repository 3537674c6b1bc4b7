# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sequences of calls with the status that each must get, shared by all languages: the file that GPUMEM_VECTORS names."""

import ctypes
import mmap
import os
import tempfile
import unittest
from pathlib import Path

import gpumem
from gpumem import Access, CopyRegion, Kind, Location, MemoryFlags, _calls, host
from gpumem import _library as c

from .support import BACKEND

KINDS = {"device": Kind.DEVICE, "pinned": Kind.PINNED, "registered": Kind.REGISTERED, "pageable": Kind.PAGEABLE,
         "managed": Kind.MANAGED, "virtual": Kind.VIRTUAL, "imported": Kind.IMPORTED, "pool": Kind.POOL}
ACCESS = {"none": Access.NONE, "read": Access.READ, "readwrite": Access.READWRITE, "unknown": Access.UNKNOWN}
COUNTERS = {"live": "live_count", "bytes": "live_bytes", "reserved": "reserved_bytes", "streams": "streams",
            "events": "events"}
CONDITIONS = {"geq": 0, "eq": 1, "and": 2, "nor": 3}
BUFFERS = {"stored": "stored_size", "buffers": "buffer_count", "awake": "awake_count", "asleep": "asleep_count"}
POOLS = {"threshold": "release_threshold", "live": "live_count", "captures": "capture_count"}
NANOSECONDS = 1e-9


class Buffer:
    """Ordinary memory, page aligned and zeroed."""

    def __init__(self, size):
        self.map = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


class File:
    """A temporary file without a name, and the descriptor that calls get."""

    def __init__(self, content, only_read):
        with tempfile.NamedTemporaryFile(buffering=0) as named:
            named.write(content)
            self.file = open(named.name, "r+b", buffering=0)
            self.given = open(named.name, "rb", buffering=0) if only_read else self.file

    def close(self):
        self.given.close()
        self.file.close()


def number(text, names=()):
    return names[text] if text in names else int(text, 0)


def flags(text, names=MemoryFlags):
    total = 0
    for word in (text or "0").split(","):
        total |= int(word, 0) if word[0].isdigit() else names[word.upper()]
    return total


class Runner:
    def __init__(self):
        self.names = {}
        self.instances = []

    def address(self, text):
        if text == "null":
            return 0
        name, _, offset = text.partition("+")
        value = self.names[name]
        if isinstance(value, Buffer):
            value = value.address
        elif isinstance(value, gpumem.Memory):
            value = value.device_pointer if value.kind == Kind.DEVICE else value.host_pointer
        elif isinstance(value, (gpumem.Range, gpumem.Buffer)):
            value = value.base
        return value + int(offset or "0", 0)

    def run(self, operation, words, options):
        return getattr(self, "do_" + operation)(*words, **options)

    def place(self, instance, stream):
        """What copies and fills: the stream if one is named, otherwise the instance."""
        return self.names[stream or instance]

    def do_open(self, backend=BACKEND, pin_budget="0"):
        if backend[0].isdigit():
            backend = int(backend)
        instance = gpumem.Instance(backend, pin_budget=number(pin_budget))
        self.instances.append(instance)
        return instance

    def do_close(self, instance, mode="check"):
        mode = number(mode, {"check": 0, "force": 1})
        if mode in (0, 1):
            self.names[instance].close(force=bool(mode))
        else:  # the object cannot say it
            _calls.call(c.gpumem_instance_close, self.names[instance].handle, mode, None)

    def do_device(self, instance, ordinal):
        return self.names[instance].device(number(ordinal))

    def do_create(self, device, kind, size, alignment="0", require="", prefer="", name=None, numa_node="0"):
        return self.names[device].memory(number(size), number(kind, KINDS), alignment=number(alignment),
                                         require=flags(require), prefer=flags(prefer), name=name,
                                         numa_node=number(numa_node))

    def do_buffer(self, size):
        return Buffer(number(size))

    def do_register(self, device, address, size, require="", prefer="", name=None):
        return self.names[device].register(self.address(address), number(size), require=flags(require),
                                           prefer=flags(prefer), name=name)

    def do_malloc(self, device, kind, size):
        return self.names[device].malloc(number(kind, KINDS), number(size))

    def do_free(self, instance, address):
        self.names[instance].free(self.address(address))

    def do_register_pointer(self, device, address, size, require=""):
        self.names[device].register_pointer(self.address(address), number(size), flags(require))

    def do_unregister_pointer(self, instance, address):
        self.names[instance].unregister(self.address(address))

    def do_stream(self, device, priority="0"):
        return self.names[device].stream(priority=number(priority))

    def do_event(self, device, flags="0"):
        total = 0
        for word in flags.split(","):
            total |= int(word, 0) if word[0].isdigit() else gpumem.EventFlags[word.upper()]
        return self.names[device].event(flags=total)

    def do_destroy(self, name):
        self.names[name].close()

    def do_growable(self, device, size="0", reserve="0", group=None, **options):
        return self.names[device].buffer(number(size), reserve=number(reserve),
                                         flags=flags(options.pop("flags", ""), gpumem.BufferFlags),
                                         handle_types=flags(options.pop("handle_types", ""), gpumem.HandleTypes),
                                         group=group and self.names[group], **options)

    def do_group(self, instance, name=None):
        return self.names[instance].group(name=name)

    def do_resize(self, buffer, size):
        self.names[buffer].resize(number(size))

    def do_set_capacity(self, buffer, capacity):
        self.names[buffer].set_capacity(number(capacity))

    def do_note(self, buffer, holder):
        return self.names[buffer].note_registration(holder)

    def do_forget(self, buffer, registration):
        registration = self.names[registration]
        if registration.closed:  # closing it again does nothing
            _calls.call(c.gpumem_buffer_forget_registration, self.names[buffer].handle, registration.number)
        registration.close()

    def do_sleep(self, name, content="pinned", **options):
        thing = self.names[name]
        if "tag" in options and isinstance(thing, gpumem.Buffer):  # the object cannot say it
            _calls.call(c.gpumem_buffer_sleep, thing.handle, c.gpumem_sleep_desc(tag=options["tag"].encode()))
        thing.sleep(self.content(content), **options)

    def do_wake(self, name, keep="0", **options):
        self.names[name].wake(keep=number(keep), **options)

    def do_prepare(self, name, content="pinned", **options):
        self.names[name].prepare(self.content(content), **options)

    @staticmethod
    def content(text):
        return number(text) if text[0].isdigit() else text

    def do_buffer_info(self, buffer, /, **expected):
        self.compare(self.names[buffer].info(), expected)

    def do_group_info(self, group, /, tag=None, **expected):
        self.compare(self.names[group].info(tag), expected)

    def compare(self, info, expected):
        for what, text in expected.items():
            found = getattr(info, BUFFERS.get(what, what))
            self.same(str(found), text if what in ("name", "tag", "state") else str(number(text)))

    # ---- pools ----

    def do_pool(self, device, kind="device", limit="0", threshold="0", initial="0", **options):
        words = options.pop("flags", "").replace("internal_dependencies", "allow_internal_dependencies")
        return self.names[device].pool(number(kind, KINDS), limit=number(limit), release_threshold=number(threshold),
                                       initial_size=number(initial), flags=flags(words, gpumem.PoolFlags),
                                       handle_types=flags(options.pop("handle_types", ""), gpumem.HandleTypes), **options)

    def stream(self, name):
        return None if name is None else self.names[name]

    def do_alloc(self, pool, size, alignment="0", stream=None):
        return self.names[pool].malloc(number(size), self.stream(stream), alignment=number(alignment))

    def do_free_block(self, pool, address, stream=None):
        self.names[pool].free(self.address(address), self.stream(stream))

    def do_free_pointer(self, instance, address, stream=None):
        self.names[instance].free_block(self.address(address), self.stream(stream))

    def do_record_use(self, pool, address, stream):  # blocks are objects here
        _calls.call(c.gpumem_pool_record_use, self.names[pool].handle, self.address(address), self.names[stream].handle)

    def do_trim(self, pool, keep="0"):
        self.names[pool].trim(number(keep))

    def do_set_limit(self, pool, size):
        self.names[pool].set_limit(number(size))

    def do_set_threshold(self, pool, size):
        self.names[pool].set_release_threshold(number(size))

    def do_pool_info(self, pool, /, **expected):
        info = self.names[pool].info()
        for what, text in expected.items():
            found = getattr(info, POOLS.get(what, what))
            self.same(found, text if what == "name" else number(text, KINDS))

    def do_block_info(self, instance, address, offset=None, requested=None):
        info = self.names[instance].block_info(self.address(address))
        if offset is not None:
            self.same(self.address(address) - info.base, number(offset))
        if requested is not None:
            self.same(info.requested_size, number(requested))

    def do_capturing(self, stream, capturing):
        host.set_capturing(self.names[stream], bool(number(capturing)))

    def do_capture(self, stream, **expected):
        found = self.names[stream].capture_id()
        if "is" in expected:
            self.same(found != 0, bool(number(expected["is"])))
        return found

    def do_release_capture(self, pool, capture, stream=None):
        self.names[pool].release_capture(self.names[capture], self.stream(stream))

    # ---- files ----

    def do_file(self, text, access="readwrite"):
        return File(bytes.fromhex(text), access == "read")

    def do_expect_file(self, file, text):
        self.same(os.pread(self.names[file].file.fileno(), len(text), 0).hex(), text)

    def do_read_file(self, instance, address, file, size, offset="0", copied=None, cancel=None):
        self.copied(copied, lambda: self.names[instance].read_file(
            self.address(address), self.names[file].given, number(offset), number(size), progress=cancel and self.cancel))

    def do_write_file(self, instance, address, file, size, offset="0", copied=None, cancel=None):
        self.copied(copied, lambda: self.names[instance].write_file(
            self.names[file].given, self.address(address), number(offset), number(size), progress=cancel and self.cancel))

    @staticmethod
    def cancel(done, total):
        raise gpumem.Cancelled("the test wants it")

    def copied(self, expected, copy):
        found = None
        try:
            found = copy().size
        except gpumem.Error as error:
            found = error.copied
            raise
        finally:
            if expected is not None:
                self.same(found, number(expected))

    # ---- streams and events ----

    def do_record(self, event, stream):
        self.names[event].record(self.names[stream])

    def do_wait(self, stream, event):
        self.names[stream].wait_event(self.names[event])

    @staticmethod
    def ready(answer):
        if not answer:
            raise gpumem.NotReady("the work is not complete")

    def do_query(self, name):
        self.ready(self.names[name].query())

    def do_synchronize(self, name, timeout=None):
        self.ready(self.names[name].synchronize(None if timeout is None else number(timeout) * NANOSECONDS))

    def do_elapsed(self, start, end):
        self.ready(self.names[start].elapsed_time_ns(self.names[end]) is not None)

    def do_copy(self, instance, destination, source, size, stream=None, direction="0", source_order="0"):
        self.place(instance, stream).copy(self.address(destination), self.address(source), number(size),
                                          direction=number(direction), source_order=number(source_order))

    def do_copy_2d(self, instance, destination, source, dpitch, spitch, width, height, stream=None):
        self.place(instance, stream).copy_2d(self.address(destination), number(dpitch), self.address(source),
                                             number(spitch), number(width), number(height))

    def operand(self, text):
        """One side of a region and its offset: `@m+N` is a memory and an offset, everything else an address."""
        if not text.startswith("@"):
            return self.address(text), 0
        name, _, offset = text[1:].partition("+")
        return self.names[name], number(offset or "0")

    def do_copy_regions(self, instance, destination, source, width="0", height="0", depth="0", dpitch="0", dslice="0",
                        spitch="0", sslice="0", direction="0", source_order="0", count="1", step="0", failed=None,
                        stream=None):
        (destination, first), (source, source_first) = self.operand(destination), self.operand(source)
        # A height or depth of 0 is 1 in C, and nothing to copy in a CopyRegion.
        regions = [CopyRegion(destination, source, number(width), number(height) or 1, number(depth) or 1,
                              first + distance, source_first + distance, number(dpitch), number(spitch),
                              number(dslice), number(sslice), number(direction), number(source_order))
                   for distance in (index * number(step) for index in range(number(count)))]
        region = None
        try:
            self.place(instance, stream).copy_regions(regions)
        except gpumem.Error as error:
            region = error.region
            raise
        finally:
            self.same(region, None if failed is None else number(failed))

    def do_fill(self, instance, destination, size, value, width="1", stream=None):
        self.place(instance, stream).fill(self.address(destination), number(value), number(size), value_size=number(width))

    def do_fill_2d(self, instance, destination, pitch, size_x, size_y, value, width="1", stream=None):
        self.place(instance, stream).fill_2d(self.address(destination), number(pitch), number(size_x), number(size_y),
                                             number(value), number(width))

    def do_write_value(self, stream, address, value, size):
        self.names[stream].write_value(self.address(address), number(value), number(size))

    def do_wait_value(self, stream, address, value, size, condition):
        self.names[stream].wait_value(self.address(address), number(value), number(size),
                                      number(condition, CONDITIONS))

    def do_set(self, address, text):
        data = bytes.fromhex(text)
        ctypes.memmove(self.address(address), data, len(data))

    def do_expect(self, address, text):
        self.same(ctypes.string_at(self.address(address), len(text) // 2).hex(), text.lower())

    @staticmethod
    def same(found, expected):
        if found != expected:
            raise AssertionError(f"{found!r} is not {expected!r}")

    def do_info(self, memory, /, granted="", **expected):
        info = self.names[memory].info()
        self.same(info.granted_flags & flags(granted), flags(granted))
        for what, text in expected.items():
            self.same(getattr(info, what), text if what == "name" else number(text, KINDS))

    def do_pointer(self, instance, address, offset=None, **expected):
        address = self.address(address)
        info = self.names[instance].pointer_info(address)
        if offset is not None:
            self.same(address - info.base, number(offset))
        for what, text in expected.items():
            self.same(getattr(info, what), number(text, KINDS))

    def do_access(self, instance, address, device=None, **expected):
        instance, address = self.names[instance], self.address(address)
        if device is None:
            found = instance.pointer_access(address)
        elif number(device) in range(instance.info().device_count):
            found = instance.pointer_access(address, instance.device(number(device)))
        else:  # there is no object for it
            found = ctypes.c_int32()
            _calls.call(c.gpumem_pointer_get_access, instance.handle, address, Location.DEVICE, number(device), found)
            found = found.value
        self.same(found, number(expected["is"], ACCESS))

    def do_count(self, instance, **expected):
        instance = self.names[instance]
        for what, text in expected.items():
            if what in KINDS:
                found = instance.kind_stats(KINDS[what]).live_count
            else:
                found = getattr(instance.stats(), COUNTERS[what])
            self.same(found, number(text))

    # ---- sharing ----

    def do_export(self, instance, address, way="any", access=None, **options):
        return self.names[instance].export(
            self.address(address), way=number(way) if way[0].isdigit() else way,
            access=None if access is None else number(access, ACCESS),
            flags=flags(options.pop("flags", ""), gpumem.ExportFlags), **options)

    def do_export_event(self, event):
        return self.names[event].export()

    def do_handle(self):
        return gpumem.ShareHandle(bytes(256))

    def do_damage(self, handle, at):
        damaged = bytearray(self.names[handle])
        damaged[number(at)] ^= 0xff
        self.names[handle] = gpumem.ShareHandle(damaged)

    def do_same(self, one, other):
        self.same(bytes(self.names[one]), bytes(self.names[other]))

    def do_share_info(self, handle, /, **expected):
        info = self.names[handle].info()
        for what, text in expected.items():
            found = getattr(info, {"descriptors": "fd_count"}.get(what, what))
            self.same(str(found), str(number(text)) if text[0].isdigit() else text)

    def do_descriptors(self, instance, handle, count):
        fds = self.names[instance].share_fds(self.names[handle])
        for fd in fds:
            os.close(fd)
        self.same(len(fds), number(count))

    def do_revoke(self, instance, handle):
        self.names[instance].revoke(self.names[handle])

    def do_import(self, instance, handle, access=None):
        return self.names[instance].import_memory(self.names[handle], access=None if access is None else number(access, ACCESS))

    def do_import_event(self, device, handle):
        return gpumem.import_event(self.names[handle], device=self.names[device])

    def do_way(self, instance, address, way, peer, descriptors=None, **expected):
        way, peer = (number(word) if word[0].isdigit() else word for word in (way, peer))
        info = self.names[instance].share_way(self.address(address), way, peer)
        if "is" in expected:
            name = gpumem.status_name(info.status)
            self.same(name.replace("GPUMEM_", "").replace("ERROR_", ""), expected["is"])
        if descriptors is not None:
            self.same(info.fd_count, number(descriptors))

    def do_cache(self, instance, idle="0", bytes="0"):
        self.names[instance].set_import_cache(number(idle) * NANOSECONDS, bytes_max=number(bytes))

    def do_flush_cache(self, instance):
        self.names[instance].flush_import_cache()

    def do_capability(self, device, capability):
        self.names[device].capability(number(capability))

    def do_peer(self, device, peer, what):
        device, peer = self.names[device], self.names[peer]
        {"query": device.can_access_peer, "enable": device.enable_peer_access,
         "disable": device.disable_peer_access}[what](peer)

    def do_status_name(self, code, name):
        self.same(gpumem.status_name(number(code)), name)


def step(runner, line):
    """Runs one line; raises if it does not end as it must."""
    left, arrow, wanted = (part.strip() for part in line.partition("->"))
    result, equals, call = (part.strip() for part in left.partition(" = "))
    if not equals:
        result, call = None, left
    operation, *words = call.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        value = runner.run(operation, [word for word in words if "=" not in word], options)
        found = "SUCCESS"
    except gpumem.Error as error:
        value, found = None, error.name.replace("GPUMEM_", "").replace("ERROR_", "")
    if found != (wanted or "SUCCESS"):
        raise AssertionError(f"{line}: {found}")
    if result is not None and found == "SUCCESS":
        runner.names[result] = value


def cases():
    path = os.environ.get("GPUMEM_VECTORS")
    found = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines() if path else ():
        line = line.strip()
        if line.startswith("case "):
            lines = found.setdefault(line.split()[1], [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


class VectorTest(unittest.TestCase):
    def run_case(self, lines):
        runner = Runner()
        try:
            for line in lines:
                operation, _, backend = line.partition(" ")
                if operation == "only":
                    if backend != BACKEND:
                        break
                    continue
                with self.subTest(line):
                    step(runner, line)
        finally:
            for instance in runner.instances:
                instance.close(force=True)
            for value in runner.names.values():
                if isinstance(value, File):
                    value.close()

    def test_there_are_cases(self):
        if "GPUMEM_VECTORS" not in os.environ:
            self.skipTest("GPUMEM_VECTORS names no file")
        self.assertGreater(len(cases()), 10)


def _add(name, lines):
    def test(self):
        self.run_case(lines)
    setattr(VectorTest, f"test_{name}", test)


for _name, _lines in cases().items():
    _add(_name, _lines)
