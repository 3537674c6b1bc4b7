# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a program writes and reads: names in place of numbers, help, texts of objects, messages and reports."""

import copy
import inspect
import os
import pickle
import pydoc
import re
import typing
import unittest
from pathlib import Path

import gpumem
from gpumem import Access, Backend, Capability, Kind, MemoryFlags, _codes, _words, host

from .support import BACKEND, Case, needs_numpy, on_host

C_NAME = re.compile(r"\bGPUMEM_|\bgpumem_[a-z]|\bNULL\b")


class NameTest(Case):
    def test_kinds(self):
        for kind in ("pinned", "PINNED", Kind.PINNED, 2):
            with self.subTest(kind), self.device.memory(64, kind) as memory:
                self.assertEqual(memory.kind, Kind.PINNED)
        with self.device.memory(64, "device") as memory:
            self.assertEqual(memory.kind, Kind.DEVICE)
        with gpumem.Memory(self.device, 64, kind="pinned", require="mapped|portable", prefer="write_combined",
                           alignment=4096, name="mine") as memory:
            self.assertEqual(memory.requested_flags, MemoryFlags.MAPPED | MemoryFlags.PORTABLE |
                             MemoryFlags.WRITE_COMBINED)
        self.assertEqual(self.instance.kind_stats("pinned").total_count, 5)

    def test_other_names(self):
        self.assertTrue(gpumem.feature_supported("backend_host"))
        self.assertEqual(gpumem.probe(BACKEND.upper()).backend, gpumem.probe(BACKEND).backend)
        pointer = self.device.malloc("pinned", 8192)
        self.instance.free(pointer)
        with self.device.register(bytearray(8192), require="mapped") as registered, self.device.stream() as stream, \
                self.device.event(flags="disable_timing|blocking_sync") as event:
            self.assertTrue(registered.granted_flags & MemoryFlags.MAPPED)
            self.assertEqual(event.info().flags, 3)
            with self.device.memory(64) as memory, self.pinned(64) as pinned:
                self.instance.copy(memory, pinned, direction="host_to_device", source_order="any")
                stream.copy_regions([gpumem.CopyRegion(pinned, memory, direction="device_to_host")])
                pinned.fill(0, stream=stream)
                stream.wait_value(pinned, 0, condition="eq")
                stream.synchronize()

    def test_capabilities(self):
        info = self.device.capability("pin_register")
        self.assertEqual(info.capability, Capability.PIN_REGISTER)
        self.assertTrue(info)
        for capability in Capability:
            peer = self.instance.device(1) if str(capability).startswith("peer_") else None
            by_name = self.device.capability(str(capability), peer)
            self.assertEqual(by_name, self.device.capability(capability, peer))
            self.assertEqual(bool(by_name), by_name.value != 0)

    def test_names_that_nobody_has(self):
        with self.pinned(64) as memory, self.device.stream() as stream:
            for name, call in (("device", lambda: self.device.memory(64, "banana")),
                               ("mapped", lambda: self.device.memory(64, require="portable|banana")),
                               ("read_only", lambda: self.device.register(bytearray(8192), require="banana")),
                               ("cuda", lambda: gpumem.Instance("banana")),
                               ("cuda", lambda: gpumem.probe("banana")),
                               ("uva", lambda: self.device.capability("banana")),
                               ("infer", lambda: self.instance.copy(memory, bytes(8), direction="banana")),
                               ("any", lambda: stream.copy(memory, bytes(8), source_order="banana")),
                               ("geq", lambda: stream.wait_value(memory, 1, condition="banana")),
                               ("disable_timing", lambda: self.device.event(flags="banana")),
                               ("warning", lambda: gpumem.set_log_function(print, "banana")),
                               ("try", lambda: gpumem.Instance("host", host=gpumem.HostOptions(lock_mode="banana"))),
                               ("pinned", lambda: self.instance.kind_stats("banana")),
                               ("pinned", lambda: self.device.malloc("banana", 64)),
                               ("posix_fd", lambda: memory.export(way="banana")),
                               ("read, readwrite$", lambda: memory.export(access="banana")),
                               ("neighbours", lambda: memory.export(flags="banana")),
                               ("container", lambda: self.instance.share_ways(memory, "banana")),
                               ("keeper", lambda: self.instance.hub(flags="banana")),
                               ("device, pinned, managed$", lambda: self.device.memory(64, "banana"))):
                with self.assertRaises(gpumem.InvalidArgument) as caught:
                    call()
                self.assertRegex(str(caught.exception), f"'banana'.*\\b{name}")

    def test_what_is_no_device_and_no_instance(self):
        memory = self.device.memory(64, require="shareable")
        handle = memory.export()
        event = bytes(256)
        for name, call in (("mem_alloc", lambda **more: gpumem.mem_alloc(8, **more)),
                           ("import_memory", lambda **more: gpumem.import_memory(handle, **more)),
                           ("import_event", lambda **more: gpumem.import_event(event, **more)),
                           ("GrowableArray", lambda **more: gpumem.GrowableArray(1, "f4", **more)),
                           ("import_fd", lambda device: gpumem.Physical.import_fd(device, 0, 4096)),
                           ("import_fabric", lambda device: gpumem.Physical.import_fabric(device, bytes(64), 4096))):
            for wrong in (0, -1, "device"):
                with self.subTest(name, device=wrong), self.assertRaisesRegex(TypeError, "^device must be a gpumem.Device, not a "):
                    call(device=wrong)
        for name, call in (("import_memory", lambda **more: gpumem.import_memory(handle, **more)),
                           ("open_ring", lambda **more: gpumem.open_ring(handle, **more)),
                           ("send_share", lambda **more: gpumem.send_share(0, handle, **more)),
                           ("receive_share", lambda **more: gpumem.receive_share(0, **more)),
                           ("retain", lambda instance: gpumem.Physical.retain(instance, 1))):
            for wrong in (0, -1, self.device):
                with self.subTest(name, instance=wrong), self.assertRaisesRegex(TypeError, "^instance must be a gpumem.Instance, not a "):
                    call(instance=wrong)
        memory.close()

    def test_what_does_not_say_one_thing(self):
        """Such as an array, which has no truth."""
        class Several:
            def __bool__(self):
                raise ValueError("which one?")

            __eq__ = __ge__ = lambda self, other: self

        several = Several()
        memory, buffer = self.pinned(64), self.device.buffer(64)
        with self.device.pool("pageable") as pool:
            block = pool.alloc(64)
            for what, call in (("direction", lambda: self.instance.copy(memory, bytes(8), direction=several)),
                               ("source_order", lambda: self.instance.copy(memory, bytes(8), source_order=several)),
                               ("direct", lambda: self.instance.read_file(memory, 0, direct=several)),
                               ("idle", lambda: buffer.sleep(idle=several)),
                               ("prefer_pcie", lambda: self.instance.export_dma_buf(memory, prefer_pcie=several)),
                               ("alignment", lambda: pool.alloc(8, alignment=several)), ("stream", lambda: block.free(several)),
                               ("timeout", lambda: self.device.stream().synchronize(several)), ("order", lambda: memory.view(order=several)),
                               ("index", lambda: memory.view()[several])):
                with self.subTest(what), self.assertRaisesRegex(TypeError, what):
                    call()
            for accesses in ("abc", [1], [(1, 2, 3)], 5):
                with self.subTest(accesses=accesses), self.assertRaisesRegex(TypeError, "^accesses must be as in "):
                    self.device.buffer(64, accesses=accesses)
            block.free()
        buffer.close()
        memory.close()

    def test_texts_that_utf8_does_not_have(self):
        for what, call in (("name", lambda: self.device.stream(name="\ud800")), ("tag", lambda: self.device.buffer(1, tag="\ud800")),
                           ("path", lambda: self.instance.hub("@\ud800")), ("path", lambda: self.instance.connect("@\ud800"))):
            with self.subTest(what), self.assertRaisesRegex(gpumem.InvalidArgument, f"^{what} is '@?.ud800'; it must have no surrogates"):
                call()

    def test_wrong_types(self):
        with self.pinned(64) as memory, self.device.stream() as stream:
            for what, call in (("size", lambda: self.device.memory(1.5)), ("size", lambda: self.device.memory("64")),
                               ("size", lambda: self.device.memory(None)), ("kind", lambda: self.device.memory(64, None)),
                               ("kind", lambda: self.device.memory(64, 2.0)),
                               ("alignment", lambda: self.device.memory(64, alignment="1")),
                               ("require", lambda: self.device.memory(64, require=["mapped"])),
                               ("prefer", lambda: self.device.memory(64, prefer=1.0)),
                               ("numa_node", lambda: self.device.memory(64, numa_node=0.5)),
                               ("name", lambda: self.device.memory(64, name=7)),
                               ("name", lambda: self.device.stream(name=b"x")),
                               ("priority", lambda: self.device.stream(priority="high")),
                               ("flags", lambda: self.device.event(flags=None)),
                               ("ordinal", lambda: self.instance.device("0")),
                               ("backend", lambda: gpumem.Instance(None)),
                               ("pin_budget", lambda: gpumem.Instance("host", pin_budget=1e9)),
                               ("host", lambda: gpumem.Instance("host", host={"device_count": 3})),
                               ("strict", lambda: gpumem.Instance("host", host=gpumem.HostOptions(strict="yes"))),
                               ("timeout", lambda: stream.synchronize("1")),
                               ("CopyRegion", lambda: self.instance.copy_regions([(memory, memory)])),
                               ("shape", lambda: memory.view("u1", 1.5)), ("shape", lambda: memory.view("u1", "8")),
                               ("size", lambda: self.device.register(bytearray(64), "64")),
                               ("value", lambda: memory.fill("0")), ("stream", lambda: memory.fill(0, stream=0)),
                               ("stream", lambda: memory.copy_to(bytearray(64), stream="x")),
                               ("event", lambda: stream.wait_event(None)),
                               ("peer", lambda: self.device.can_access_peer(1)),
                               ("socket", lambda: gpumem.receive_share("x", instance=self.instance)),
                               ("timeout", lambda: gpumem.receive_share(0, instance=self.instance, timeout="1")),
                               ("lease", lambda: gpumem.send_share(0, bytes(256), lease="1")),
                               ("path", lambda: self.instance.hub(7)), ("mode", lambda: self.instance.hub(mode="rw")),
                               ("user", lambda: self.instance.hub(users=["me"])),
                               ("descriptor", lambda: self.instance.import_memory(bytes(256), fds=["1"])),
                               ("name", lambda: self.instance.import_memory(bytes(256), name=7)),
                               ("device", lambda: self.instance.pointer_access(memory, 0)),
                               ("unexpected keyword argument 'pinned'", lambda: self.device.memory(64, pinned=True)),
                               ("unexpected keyword argument 'alignment'",
                                lambda: self.device.register(bytearray(64), alignment=64)),
                               ("unexpected keyword argument 'flags'", lambda: self.device.stream(flags=1)),
                               ("unexpected keyword argument 'name_'", lambda: self.device.event(name_="x"))):
                with self.subTest(what), self.assertRaises(TypeError) as caught:
                    call()
                self.assertIn(what, str(caught.exception))

    def test_a_name_with_a_zero(self):
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(64, name="a\0b")

    def test_texts_of_values(self):
        self.assertEqual((str(Kind.PINNED), repr(Kind.PINNED), f"{Kind.PINNED}", f"{Kind.PINNED:d}", f"{Kind.PINNED:>8}"),
                         ("pinned", "Kind.PINNED", "pinned", "2", "  pinned"))
        both = MemoryFlags.MAPPED | MemoryFlags.PORTABLE
        self.assertEqual((str(both), repr(both), f"{both:#x}", str(MemoryFlags(0)), repr(MemoryFlags(0))),
                         ("portable|mapped", "MemoryFlags.PORTABLE|MAPPED", "0x3", "none", "MemoryFlags(0)"))
        self.assertEqual(str(MemoryFlags(1 << 40 | 1)), "portable|0x10000000000")
        self.assertIs(pickle.loads(pickle.dumps(Kind.PINNED)), Kind.PINNED)
        self.assertIs(copy.deepcopy(both), both)


class CopyTest(Case):
    def test_nothing_can_be_copied_or_pickled(self):
        seen = []
        memory, pinned = self.device.memory(64), self.pinned(64)
        stream, event = self.device.stream(), self.device.event()
        path = f"@gpumem-python-{os.getpid()}-copies"
        hub, link = self.instance.hub(path), self.instance.connect(path)
        things = [self.instance, self.device, memory, pinned, pinned.view("f4"), stream, event,
                  gpumem.from_dlpack(pinned), hub, link]
        if BACKEND == "host":
            host.launch(stream, lambda kernel: seen.append((kernel, self.outcomes(kernel))))
            stream.synchronize()
            self.assertEqual(seen[0][1], [])
        for thing in things:
            with self.subTest(type(thing).__name__):
                self.assertEqual(self.outcomes(thing), [])
        # The originals are whole.
        memory.copy_from(pinned)
        self.assertEqual(self.instance.stats().live_objects, 4)
        del thing, things[3:5], things[5]
        for thing in (link, hub, event, stream, pinned, memory):
            thing.close()

    def outcomes(self, thing):
        """What does not raise a TypeError that says what to do."""
        name, found = type(thing).__name__, []
        for done, act in (("copied", copy.copy), ("copied", copy.deepcopy), ("copied", lambda value: copy.copy([value][0])),
                          ("copied", lambda value: copy.deepcopy([value])),
                          *(("pickled", lambda value, protocol=protocol: pickle.dumps(value, protocol))
                            for protocol in range(pickle.HIGHEST_PROTOCOL + 1))):
            try:
                found.append(act(thing))
            except TypeError as problem:
                if not re.match(f"a gpumem.{name} cannot be {done}; (use|copy|get)", str(problem)):
                    found.append(str(problem))
        return found

    def test_a_region_can_be_copied_but_not_its_memory(self):
        with self.device.memory(64) as memory:
            region = gpumem.CopyRegion(memory, b"text")
            self.assertIs(copy.copy(region).destination, memory)
            with self.assertRaises(TypeError):
                copy.deepcopy(region)

    @needs_numpy
    def test_a_copy_of_an_array_is_an_array_of_its_own(self):
        array = gpumem.pagelocked_zeros(8, "i4", device=self.device)
        for other in (copy.copy(array), copy.deepcopy(array), pickle.loads(pickle.dumps(array))):
            other[:] = 1
            self.assertEqual(array.sum(), 0)
        self.assertEqual(self.instance.stats().live_count, 1)


class TextTest(Case):
    options = {"name": "main"}

    def test_repr(self):
        memory, pinned, plain = self.device.memory(64, name="weights"), self.pinned(32), self.device.memory(8)
        registered = self.device.register(bytearray(8192), name="it's")
        stream, event, unnamed = self.device.stream(name="copies"), self.device.event(name="end"), self.device.event()
        view = pinned.view("f4", (2, 4))
        self.assertEqual([repr(thing) for thing in (memory, pinned, plain, registered, stream, event, unnamed,
                                                    self.instance)],
                         ["<gpumem.Memory 'weights': device, 64 bytes, device 0>",
                          "<gpumem.Memory: pinned, 32 bytes, device 0>", "<gpumem.Memory: device, 8 bytes, device 0>",
                          "<gpumem.Memory \"it's\": registered, 8192 bytes, device 0>",
                          "<gpumem.Stream 'copies': device 0>", "<gpumem.Event 'end': device 0>",
                          "<gpumem.Event: device 0>", f"<gpumem.Instance 'main': {BACKEND}, 2 devices>"])
        self.assertRegex(repr(self.device), f"^<gpumem.Device 0 of {BACKEND}: .+>$")
        self.assertRegex(repr(view), r"^<gpumem.View: <f4 \(2, 4\) at 0x[0-9a-f]+ in pinned memory of device 0>$")
        self.assertRegex(repr(gpumem.from_dlpack(view)), r"of another library>$")
        del view
        self.assertEqual(set(self.instance.report().splitlines()), {
            f"Memory 'weights': device, 64 bytes at {memory.device_pointer:#x}, device 0",
            f"Memory: pinned, 32 bytes at {pinned.host_pointer:#x}, device 0",
            f"Memory: device, 8 bytes at {plain.device_pointer:#x}, device 0",
            f"Memory \"it's\": registered, 8192 bytes at {registered.host_pointer:#x}, device 0",
            "Stream 'copies': device 0", "Event 'end': device 0", "Event: device 0"})
        for thing in (memory, pinned, plain, registered, stream, event, unnamed):
            thing.close()
            self.assertTrue(repr(thing).endswith(", closed>"), repr(thing))
        self.assertEqual(repr(memory), "<gpumem.Memory 'weights': device, 64 bytes, device 0, closed>")
        self.instance.close()
        self.assertEqual((repr(self.instance), repr(self.device)),
                         ("<gpumem.Instance, closed>", "<gpumem.Device 0, closed>"))

    def test_a_refused_close(self):
        memory, stream = self.device.memory(64, name="left"), self.device.stream()
        with self.assertRaises(gpumem.Busy) as caught:
            self.instance.close()
        text = str(caught.exception)
        self.assertEqual(text, caught.exception.message)
        self.assertIn("close(force=True)", text)
        self.assertIn("Memory 'left': device, 64 bytes", text)
        self.assertIn("Stream: device 0", text)
        self.assertNotRegex(text, C_NAME)
        memory.close()
        stream.close()

    def test_messages_speak_python(self):
        with self.device.memory(64) as memory, self.pinned(64) as pinned, self.device.stream() as stream, \
                self.device.event(flags="disable_timing") as event, self.device.register(bytearray(8192)) as registered, \
                self.device.register(bytes(8192), require="read_only") as frozen:
            event.record(stream)
            event.synchronize()
            for call in (lambda: self.device.memory(64, "registered"), lambda: self.device.memory(64, 77),
                         lambda: self.device.memory(64, numa_node=1), lambda: self.device.memory(0),
                         lambda: self.device.capability(9999), lambda: self.instance.kind_stats("pageable"),
                         lambda: self.instance.copy(memory, pinned, direction="device_to_host"),
                         lambda: self.instance.copy(memory, pinned, direction=99),
                         lambda: self.instance.copy(memory, pinned, source_order=99),
                         lambda: self.instance.copy(None, pinned), lambda: self.instance.copy(memory, None, 8),
                         lambda: self.instance.copy(frozen, pinned), lambda: self.instance.fill(0, size=8),
                         lambda: stream.wait_value(pinned, 1, condition=99),
                         lambda: event.elapsed_time_ns(event), lambda: self.device.device_pointer(registered),
                         lambda: self.device.device_pointer(memory.device_pointer + (1 << 40)),
                         lambda: self.instance.pointer_info(0), lambda: gpumem.Instance(99),
                         lambda: self.instance.free(registered.host_pointer), lambda: gpumem.set_log_function(print, 99),
                         lambda: self.instance.unregister(pinned.host_pointer),
                         lambda: self.device.register(0, 64), lambda: self.device.memory(64, require=1 << 40),
                         lambda: self.device.event(flags=1 << 40), lambda: host.fail_step(self.instance, 0, 7)):
                try:
                    call()
                except gpumem.Error as problem:
                    self.assertNotRegex(str(problem), C_NAME)
                    self.assertTrue(str(problem))

    def test_translations(self):
        for text, expected in (
                ("require GPUMEM_MEMORY_READ_ONLY", 'require "read_only"'),
                ("create the memory with GPUMEM_MEMORY_SHAREABLE", 'create the memory with require="shareable"'),
                ("without GPUMEM_HANDLE_TYPE_POSIX_FD; pass it", 'without "posix_fd"; pass it'),
                ("is used; destroy it first", "is used; close it first"),
                ("the kind is 7, which is no GPUMEM_KIND_ value", "the kind is 7, which is no Kind value"),
                ("GPUMEM_ANSWER_TYPE_INT or GPUMEM_ANSWER_NO", "AnswerType.INT or Answer.NO"),
                ("call gpumem_device_enable_peer_access first", "call Device.enable_peer_access() first"),
                ("and 1 more in gpumem_stats_report()", "and 1 more in Instance.report()"),
                ("register it with gpumem_memory_register()", "register it with Device.register()"),
                ("destroy them, or close with GPUMEM_CLOSE_FORCE: x", "close them, or call close(force=True): x"),
                ("the producer of the ring has ended; destroy the ring", "the producer of the ring has ended; close the ring"),
                ("this memory was destroyed; do not use its handle after that", "this memory was closed"),
                ("this link was closed; do not use its handle after that", "this link was closed"),
                ("the flags 0x3 are unknown, or do not apply to device memory",
                 "the flags portable|mapped are unknown, or do not apply to device memory"),
                ("call gpumem_buffer_forget_registration() first", "call Registration.close() first"),
                ("GPUMEM_SLEEP_IDLE waits for nothing", "idle=True waits for nothing"),
                ("it is GPUMEM_BUFFER_STATE_FAILED", "it is BufferState.FAILED"),
                ("GPUMEM_BUFFER_COPYABLE or a GPUMEM_BUFFER_ value", '"copyable" or a BufferFlags value'),
                ("the pointer is NULL", "the pointer is None"), ("it is GPUMEM_ERROR_BUSY", "it is Busy"),
                ("location_id is 1; without GPUMEM_LOCATION_HOST_NUMA it must be 0",
                 "the number of the location is 1; without Location.HOST_NUMA it must be 0"),
                ("physicals[0] belongs to another instance", "block 0 belongs to another instance"),
                ("token_size is 300, and a token has at most 256 bytes", "len(token) is 300, and a token has at most 256 bytes"),
                ("fds is NULL and fd_count is not 0", "fds is None and len(fds) is not 0"),
                ("cannot open /run/destroyers/location_id", "cannot open /run/destroyers/location_id"),
                ("GPUMEM_HOST_DEVICES is 99", "GPUMEM_HOST_DEVICES is 99"), ("GPUMEM_BACKEND is x", "GPUMEM_BACKEND is x"),
                ("ANNULLED and a gpumem_word", "ANNULLED and a gpumem_word")):
            self.assertEqual(_words.in_python(text), expected)
        for text in (*_words._FUNCTIONS.values(),):
            owner, _, name = text.rstrip("()").rpartition(".")
            place = {"": gpumem, "gpumem": gpumem, "gpumem.host": host}.get(owner) or getattr(gpumem, owner)
            self.assertTrue(callable(getattr(place, name)), text)

    # What messages may say although Python has no such name: variables of the environment, words of the system, capabilities as
    # CapabilityInfo has them, and what an option can mask. Then what no program in Python is told, because the binding itself
    # fills in sizes of structs and takes results.
    SAME = re.compile(
        r"\b(?:GPUMEM_(?:BACKEND|PIN_BUDGET|TRANSFER_\w+|HOST_\w+)|(?:launch_host_function|write_value|wait_value|copy_2d|fill_2d|"
        r"peer_access)|(?:copy|dev|man|pin|share|stream|vmm)\.\w+|(?:memfd|pthread|epoll|posix)_\w+|boot_id|max_map_count|"
        r"max_user_watches|limit_in_bytes|usage_in_bytes|(?:total_)?inactive_file|gpumem_copy_pieces|GPUMEM_ERROR_\?|"
        r"(?:\w+->)?struct_size|out_\w+|sizeof\(gpumem_\w+\)|GPUMEM_ERROR_INIT|GPUMEM_CLOSE_ is|reserved (?:is|must))")
    FOREIGN = re.compile(r"\b(?:GPUMEM|gpumem)_\w+|\bNULL\b|\w+->|\bsizeof\b|\b[Dd]estroy\w*|\b[a-z]+(?:_[a-z0-9]+)+\b|"
                         r"(?<!%)\b[a-z]+(?=\[%)")

    @unittest.skipUnless("GPUMEM_TEST_TEXTS" in os.environ, "GPUMEM_TEST_TEXTS names no file")
    def test_every_text_of_the_library(self):
        """What is called, passed, or the name of a value: a message may have these. What a result has is no such name."""
        names = {str(member) for _, cls in _codes.PREFIXES for member in cls}
        for place in (gpumem, host, *(cls for cls in vars(gpumem).values() if inspect.isclass(cls) and not hasattr(cls, "_fields"))):
            for name in dir(place):
                call = inspect.getattr_static(place, name)
                call = getattr(call, "__func__", call)
                if inspect.isfunction(call) or inspect.isclass(call) and not hasattr(call, "_fields"):
                    try:
                        names |= {name, *inspect.signature(call).parameters}
                    except ValueError:  # of a type that is not written in Python
                        pass
        left = []
        lines = Path(os.environ["GPUMEM_TEST_TEXTS"]).read_text(encoding="utf-8").splitlines()
        self.assertGreater(len(lines), 1000)
        for line in lines:
            # The name of a parameter stands alone where it is passed to what makes the message.
            text = _words.in_python((line if " " in line else f"{line} is").replace('\\"', '"'))
            left += [f"{name} in: {text}" for name in self.FOREIGN.findall(self.SAME.sub("", text)) if name not in names]
        self.assertFalse(left, "\n".join(left))

    def test_reports(self):
        for line, expected in (
                ("pool P: 1 live block of 112 bytes, 2097152 bytes taken, device 0",
                 "Pool 'P': 1 live block of 112 bytes, 2097152 bytes taken, device 0"),
                ("ring (no name): device 0", "Ring: device 0"), ("ring R: device 1", "Ring 'R': device 1"),
                ("imported memory (no name): 64 bytes at 0x7000, device 0", "Memory: imported, 64 bytes at 0x7000, device 0"),
                ("hub (no name): /run/a", "Hub: /run/a"), ("hub H: @a", "Hub 'H': @a"), ("link: @a", "Link: @a")):
            self.assertEqual(_words.report_in_python(line), expected)
            self.assertEqual(_words.report_in_python(f"2 live objects: {line}; {line}"), f"2 live objects: {expected}; {expected}")
        with self.device.pool("pinned") as pool, self.device.pool("pinned", name="it's"):
            self.assertRegex("\n".join(sorted(self.instance.report().splitlines())),
                             r"^Pool \"it's\": 0 live blocks .*\nPool: 0 live blocks ")
            del pool

    def test_messages_about_live_objects_and_sizes(self):
        with gpumem.Instance("host") as instance:
            kept = [instance.device(0).memory(64) for _ in range(4)]
            with self.assertRaisesRegex(gpumem.Busy, r"and 1 more in Instance\.report\(\)"):
                instance.close()
            for memory in kept:
                memory.close()
        with self.assertRaisesRegex(gpumem.InvalidArgument, "the kind is Kind.PAGEABLE; it must be one that has statistics: Kind.DEVICE, "):
            self.instance.kind_stats("pageable")
        for call in (self.device.memory, lambda size: self.device.malloc("pinned", size)):
            for size in (-1, 1 << 64):
                with self.assertRaisesRegex(gpumem.InvalidArgument, "between 1 and 9223372036854775807$"):
                    call(size)

    def test_causes_and_remedies(self):
        for code in gpumem.statuses():
            info = gpumem.status_info(code)
            self.assertNotRegex(info.cause + info.remedy, r"gpumem_[a-z]|\bNULL\b")

    def test_the_log(self):
        heard = []
        gpumem.set_log_function(lambda *message: heard.append(message), "debug")
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(64, "registered")
        gpumem.set_log_function(None)
        self.assertIs(heard[-1][0], gpumem.LogLevel.DEBUG)
        self.assertIn("Device.register()", heard[-1][1])


class WithTest(Case):
    """The exception of a with block is never replaced."""

    def check(self, make, hold, expected):
        """`hold` makes closing fail."""
        kept = []
        with self.assertRaises(ZeroDivisionError) as caught:
            with make() as thing:
                kept.append((thing, hold(thing)))
                raise ZeroDivisionError("of the block")
        self.assertEqual(str(caught.exception), "of the block")
        self.assertIsNone(caught.exception.__context__)
        if hasattr(caught.exception, "add_note"):
            self.assertRegex(caught.exception.__notes__[0], f"^<gpumem.*> could not be closed: {expected}")
        return kept.pop()

    def test_memory(self):
        memory, view = self.check(self.pinned, lambda memory: memory.buffer(), "BufferError: the memory cannot be closed")
        self.assertFalse(memory.closed)
        view[0] = 1
        del view
        memory.close()

    def test_memory_in_flight(self):
        stream, release = self.held_stream()
        memory, _ = self.check(lambda: self.device.memory(64), lambda memory: memory.fill(1, stream=stream), "Busy: work")
        release()
        memory.close()
        stream.close()

    def test_instance(self):
        instance, view = self.check(lambda: gpumem.Instance(BACKEND),
                                    lambda instance: instance.device(0).memory(64, "pinned").buffer(),
                                    "BufferError: the instance cannot be closed")
        self.assertFalse(instance.closed)
        del view
        instance.close()

    @on_host
    def test_stream_of_a_lost_device(self):
        def lose(stream):
            host.lose(self.device)
        with self.assertRaises(ZeroDivisionError):
            with self.device.stream() as stream, self.device.memory(64) as memory:
                memory.fill(1, stream=stream)
                lose(stream)
                raise ZeroDivisionError
        self.instance.close(force=True)


class HelpTest(unittest.TestCase):
    def test_with_gives_the_type_of_the_object(self):
        for cls in vars(gpumem).values():
            enter = getattr(cls, "__enter__", None)
            if isinstance(cls, type) and enter is not None:
                self.assertNotEqual(enter.__annotations__["return"], cls.__name__)

    # The methods of named tuples, which Python names so.
    OF_PYTHON = {"_asdict", "_cls", "_field_defaults", "_field_types", "_fields", "_fields_defaults", "_make", "_replace"}

    def help(self, thing):
        return pydoc.plain(pydoc.render_doc(thing))

    def test_all(self):
        self.assertEqual(sorted(gpumem.__all__), gpumem.__all__)
        self.assertEqual(len(set(gpumem.__all__)), len(gpumem.__all__))
        for name in gpumem.__all__:
            self.assertFalse(name.startswith("_"))
            self.assertTrue(hasattr(gpumem, name))
            thing = getattr(gpumem, name)
            if not inspect.ismodule(thing):
                self.assertEqual((name, thing.__module__), (name, "gpumem"))
                self.assertTrue(inspect.getdoc(thing), name)
        self.assertEqual([name for name in dir(gpumem) if name.startswith("_")], ["__doc__", "__version__"])
        self.assertLessEqual(set(gpumem.errors.__all__) | {cls.__name__ for _, cls in _codes.PREFIXES},
                             set(gpumem.__all__))

    def test_no_private_names(self):
        text = self.help(gpumem)
        # The files of a package are listed by the name that they have.
        text = re.sub(r"\nPACKAGE CONTENTS\n.*?\n\n", "\n", text, flags=re.DOTALL)
        text = re.sub(r" from gpumem\._\w+\.", " from ", text)  # Python 3.13 says where a method is written.
        self.assertEqual(set(re.findall(r"(?<![\w])_[a-z]\w*", text)) - self.OF_PYTHON, set())
        for cls in (gpumem.Instance, gpumem.Device, gpumem.Memory, gpumem.View, gpumem.Stream, gpumem.Event,
                    gpumem.HostAccess, gpumem.Physical, gpumem.Range, gpumem.Part, gpumem.Buffer, gpumem.Group,
                    gpumem.Registration, gpumem.GrowableArray, gpumem.ImportedMemory, gpumem.ShareHandle, gpumem.Hub,
                    gpumem.Link, gpumem.Pool, gpumem.PoolBlock):
            self.assertFalse(re.search(r"<(?:function|built-in|method|object)\b|\bat 0x", self.help(cls)), cls)

    def test_no_noise_of_numbers(self):
        for _, cls in _codes.PREFIXES:
            text = self.help(cls)
            for noise in ("bit_length", "__add__", "from_bytes", "__rshift__", "as_integer_ratio"):
                self.assertNotIn(noise, text)
            for member in cls.__members__:
                self.assertIn(f"{member} = {cls.__name__}.{member}", text)
            self.assertLess(len(text.splitlines()), 40 + 2 * len(cls.__members__))

    def test_every_parameter_is_named(self):
        for name in gpumem.__all__:
            thing = getattr(gpumem, name)
            functions = [thing] if inspect.isfunction(thing) else [
                member for member in vars(thing).values() if inspect.isfunction(member) and not member.__name__.startswith("_")
            ] if isinstance(thing, type) and not issubclass(thing, BaseException) else []
            for function in functions:
                for parameter in inspect.signature(function).parameters.values():
                    self.assertNotEqual(parameter.kind, parameter.VAR_KEYWORD, f"{name}: {function.__name__}")

    def test_annotations_of_records(self):
        for cls in (gpumem.CopyRegion, gpumem.HostOptions, gpumem.CudaOptions, gpumem.MemoryInfo, gpumem.PointerInfo,
                    gpumem.ManagedRange, gpumem.ManagedInfo, gpumem.MappingInfo, gpumem.PhysicalInfo, gpumem.RangeInfo,
                    gpumem.BufferInfo, gpumem.GroupInfo, gpumem.ShareInfo, gpumem.ImportInfo, gpumem.WayInfo, gpumem.HubInfo,
                    gpumem.LinkInfo, gpumem.Entry, gpumem.PoolInfo, gpumem.PoolClass, gpumem.BlockInfo):
            self.assertTrue(typing.get_type_hints(cls))

    def test_access_by_name(self):
        self.assertEqual((Access["READ"], Backend["HOST"]), (Access.READ, Backend.HOST))
