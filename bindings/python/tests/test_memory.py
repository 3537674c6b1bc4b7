# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Instances, devices and memory: what they know, and how long they live."""

import array
import ctypes
import gc
import mmap
import threading
import unittest
import warnings
from unittest import mock

import gpumem
from gpumem import Access, CopyRegion, Kind, MemoryFlags, _calls, _library

from .support import BACKEND, Case, needs_numpy, numpy, on_cuda, on_host, python


def _frozen():
    array = numpy.zeros(64, "u1")
    array.flags.writeable = False
    return array


class InstanceTest(unittest.TestCase):
    def test_probe(self):
        info = gpumem.probe(BACKEND)
        self.assertEqual(info.backend.name.lower(), BACKEND)
        self.assertEqual(info.device_count, 2)
        self.assertEqual((info.fallback_status, info.fallback_reason), (0, ""))

    def test_info_and_close(self):
        instance = gpumem.Instance(BACKEND, name="mine", pin_budget=1 << 30)
        info = instance.info()
        self.assertEqual((info.backend.name.lower(), info.device_count, info.name, info.pin_budget),
                         (BACKEND, 2, "mine", 1 << 30))
        self.assertEqual((info.fallback_status, info.fallback_reason), (0, ""))
        self.assertEqual(len(instance.devices), 2)
        self.assertEqual(instance.close(), 0)
        self.assertTrue(instance.closed)
        self.assertEqual(instance.close(), 0)
        with self.assertRaises(gpumem.Closed):
            instance.info()
        with self.assertRaises(gpumem.Closed):
            instance.device(1)

    def test_close_refuses_what_lives(self):
        instance = gpumem.Instance(BACKEND)
        memory = instance.device(0).memory(4096)
        with self.assertRaises(gpumem.Busy):
            instance.close()
        self.assertFalse(instance.closed)
        memory.close()
        instance.close()

    def test_close_by_force(self):
        instance = gpumem.Instance(BACKEND)
        device = instance.device(0)
        memory, stream, event = device.memory(4096), device.stream(), device.event()
        self.assertEqual(instance.close(force=True), 3)
        with self.assertRaises(gpumem.Closed):
            memory.info()
        with self.assertRaises(gpumem.Closed):
            stream.synchronize()
        for thing in (memory, stream, event):  # gone already
            thing.close()
            self.assertTrue(thing.closed)

    def test_force_refuses_while_a_view_lives(self):
        instance = gpumem.Instance(BACKEND)
        memory = instance.device(0).memory(4096, Kind.PINNED)
        view = memory.buffer()
        with self.assertRaises(BufferError):
            instance.close(force=True)
        self.assertFalse(instance.closed)
        view[0] = 1
        del view
        self.assertEqual(instance.close(force=True), 1)
        with self.assertRaises(gpumem.Error):
            memory.buffer()

    def test_with(self):
        with gpumem.Instance(BACKEND) as instance:
            instance.device(0).memory(4096).close()
        self.assertTrue(instance.closed)
        with self.assertRaises(gpumem.Busy):
            with gpumem.Instance(BACKEND) as instance:
                memory = instance.device(0).memory(4096)
        memory.close()
        instance.close()

    def test_with_and_an_exception(self):
        with self.assertRaises(ZeroDivisionError):
            with gpumem.Instance(BACKEND) as instance:
                memory = instance.device(0).memory(4096)
                raise ZeroDivisionError
        self.assertTrue(instance.closed)
        memory.close()

    def test_forgotten(self):
        instance = gpumem.Instance(BACKEND)
        instance.device(0).memory(4096)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del instance
            gc.collect()

    def test_forgotten_with_a_leak(self):
        instance = gpumem.Instance(BACKEND)
        instance.device(0).malloc(Kind.PINNED, 4096)
        with self.assertWarns(ResourceWarning):
            del instance
            gc.collect()

    def test_forgotten_in_a_cycle_with_its_memory(self):
        class Service:
            def __init__(self):
                self.instance = gpumem.Instance(BACKEND)
                self.memory, self.me = self.instance.device(0).memory(4096), self
        for _ in range(3):  # the collector takes them in this or that order
            service = Service()
            handle = service.instance.handle
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                del service
                gc.collect()
            self.assertIn(_library.gpumem_instance_close(handle, 0, None, None), _calls.GONE)

    def test_forgotten_together_with_its_memory_in_a_callback(self):
        kept = [gpumem.Instance(BACKEND).device(0).memory(4096)]
        with gpumem.Instance(BACKEND) as other, other.device(0).stream() as stream:
            def forget():
                kept.clear()
                gc.collect()
            stream.launch_host_function(forget)
            stream.synchronize()
            other.device(0).event().close()  # which destroys the memory, and then the instance
            other.device(0).event().close()
        self.assertEqual(len(_calls.leftovers), 0)

    def test_a_pin_budget_of_the_default_instance(self):
        _, out, _ = python("import gpumem\n"
                           "try: gpumem.default_device().memory(1 << 20, 'pinned')\n"
                           "except gpumem.LimitExceeded as problem: print(problem)\n",
                           GPUMEM_BACKEND=BACKEND, GPUMEM_PIN_BUDGET="4096")
        self.assertIn("or raise GPUMEM_PIN_BUDGET", out)

    def test_default(self):
        instance = gpumem.default_instance()
        self.assertIs(gpumem.default_instance(), instance)
        self.assertIs(gpumem.default_device().instance, instance)
        with instance:
            pass
        self.assertFalse(instance.closed)
        with self.assertRaises(gpumem.InvalidState):
            instance.close()
        self.assertFalse(instance.closed)
        self.assertEqual(instance.backend.name.lower(), BACKEND)

    def test_a_fallback_is_explained(self):
        # Every driver is without devices here, if there is one at all.
        _, out, _ = python("""
import gpumem
heard = []
gpumem.set_log_function(lambda level, message: heard.append((level, message)))
try:
    gpumem.probe("cuda")
except gpumem.Error as error:
    status = error.code
probed = gpumem.probe()
with gpumem.Instance() as instance:
    for info in (probed, instance.info()):
        assert info.backend == gpumem.Backend.HOST, info
        assert info.fallback_status == status < 0 and info.fallback_reason, info
assert [level for level, _ in heard] == [gpumem.LogLevel.WARNING], heard
assert probed.fallback_reason in heard[0][1], heard
print(gpumem.status_name(status))
""", FAKE_CUDA_DEVICES="0", CUDA_VISIBLE_DEVICES="")
        self.assertTrue(out.startswith("GPUMEM_ERROR_"), out)

    @on_cuda
    def test_cuda_options(self):
        driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        with gpumem.Instance("cuda"):  # which initialises the driver
            self.assertEqual(driver.cuCtxCreate_v2(ctypes.byref(context), 0, 1), 0)
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        with gpumem.Instance("cuda", cuda=gpumem.CudaOptions(contexts=[context.value])) as instance:
            with instance.device(1).memory(64) as memory:
                memory.fill(7)
                self.assertEqual(instance.pointer_info(memory.device_pointer).device_ordinal, 1)
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.Instance("cuda", cuda=gpumem.CudaOptions(contexts=[context.value, context.value]))
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.Instance("cuda", cuda=gpumem.CudaOptions(contexts=[1 << 64]))
        gpumem.Instance("cuda", cuda=gpumem.CudaOptions()).close()
        self.assertEqual(driver.cuCtxDestroy_v2(context), 0)

    @on_host
    def test_host_options(self):
        options = gpumem.HostOptions(device_count=3, device_bytes=8 << 20, strict=False, peers="0>1", masked="write_value")
        with gpumem.Instance("host", host=options) as instance:
            self.assertEqual(instance.info().device_count, 3)
            self.assertFalse(instance.info().strict)
            devices = instance.devices
            self.assertEqual(devices[0].info().total_bytes, 8 << 20)
            self.assertTrue(devices[0].can_access_peer(devices[1]))
            self.assertFalse(devices[1].can_access_peer(devices[0]))
            with self.assertRaises(gpumem.Unsupported):
                devices[1].enable_peer_access(devices[0])
            with devices[0].memory(64) as memory, devices[0].stream() as stream, \
                    self.assertRaises(gpumem.SymbolMissing):
                stream.write_value(memory, 1)
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.Instance("host", host=gpumem.HostOptions(device_count=65))
        with gpumem.Instance("host", host=gpumem.HostOptions(lock_mode=gpumem.HostLock.OFF)) as instance:
            with instance.device(0).memory(64, Kind.PINNED) as memory:
                self.assertFalse(memory.granted_flags & MemoryFlags.PAGE_LOCKED)


class DeviceTest(Case):
    def test_info(self):
        info = self.device.info()
        self.assertEqual((info.ordinal, info.lost, len(info.uuid)), (0, False, 16))
        free, total = self.device.memory_info()
        self.assertTrue(0 < free <= total)
        self.assertEqual(self.device.trim_graphs(), 0)

    def test_one_object(self):
        self.assertIs(self.instance.device(0), self.device)
        self.assertIs(self.instance.devices[0], self.device)
        with self.assertRaises(gpumem.InvalidArgument):
            self.instance.device(2)
        with self.assertRaises(TypeError):
            gpumem.Device()

    def test_capabilities(self):
        known = gpumem.capabilities()
        self.assertEqual(set(gpumem.Capability), set(known))
        for capability in known:
            peer = self.instance.device(1) if str(capability).startswith("peer_") else None
            info = self.device.capability(capability, peer)
            self.assertEqual(info.capability, capability)
            self.assertTrue(info.name)
            self.assertIsInstance(info.source, gpumem.AnswerSource)
            self.assertIsInstance(info.value, gpumem.Answer if info.type == gpumem.AnswerType.TRI else int)
        count = self.device.capability(gpumem.Capability.DEVICE_COUNT)
        self.assertEqual((count.type, count.value, count.status), (gpumem.AnswerType.INT, 2, 0))
        self.assertEqual(self.device.capability(gpumem.Capability.UVA).value, gpumem.Answer.YES)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.capability(12345)

    def test_peers(self):
        peer = self.instance.device(1)
        self.assertTrue(self.device.can_access_peer(peer))
        self.device.enable_peer_access(peer)
        self.device.disable_peer_access(peer)
        with self.assertRaises(gpumem.InvalidState):
            self.device.disable_peer_access(peer)


class MemoryTest(Case):
    def test_a_closed_instance_while_a_stream_of_another_one_works(self):
        other = gpumem.Instance(BACKEND)
        memory = other.device(0).memory(64)
        other.close(force=True)
        stream, release = self.held_stream()
        with self.device.memory(64) as used:
            used.fill(1, stream=stream)
            memory.close()
            self.assertTrue(memory.closed)
            release()
            stream.close()

    def test_the_address_of_closed_memory(self):
        memory = self.device.memory(64)
        self.assertEqual(int(memory), memory.device_pointer)
        memory.close()
        with self.assertRaises(gpumem.StaleHandle):
            int(memory)

    def test_device_memory(self):
        with self.device.memory(1000, name="mine") as memory:
            self.assertEqual((memory.kind, memory.size, memory.nbytes, memory.name, memory.host_pointer),
                             (Kind.DEVICE, 1000, 1000, "mine", None))
            self.assertTrue(memory.device_pointer)
            info = self.instance.pointer_info(memory.device_pointer + 10)
            self.assertEqual((info.kind, info.size, info.base), (Kind.DEVICE, 1000, memory.device_pointer))
            self.assertEqual(self.instance.kind_stats(Kind.DEVICE).live_bytes, 1000)
            self.assertEqual(repr(memory), "<gpumem.Memory 'mine': device, 1000 bytes, device 0>")
        self.assertTrue(memory.closed)
        self.assertIn("closed", repr(memory))

    def test_pinned_flags(self):
        with self.pinned() as memory:
            self.assertTrue(memory.granted_flags & MemoryFlags.PORTABLE)
            self.assertTrue(memory.granted_flags & MemoryFlags.MAPPED)
            self.assertFalse(memory.granted_flags & MemoryFlags.WRITE_COMBINED)
            self.assertEqual(memory.requested_flags, 0)
        with self.pinned(require=MemoryFlags.WRITE_COMBINED) as memory:
            self.assertTrue(memory.granted_flags & MemoryFlags.WRITE_COMBINED)
            self.assertEqual(memory.requested_flags, MemoryFlags.WRITE_COMBINED)
        with self.assertRaises(gpumem.InvalidArgument):
            self.pinned(require=MemoryFlags.READ_ONLY)

    def test_alignment(self):
        with self.device.memory(100, alignment=1 << 16) as memory:
            self.assertEqual(memory.device_pointer % (1 << 16), 0)
            self.assertEqual(memory.info().alignment, 1 << 16)

    def test_options_do_not_stick(self):
        self.device.memory(100, alignment=4096, name="first", prefer=0).close()
        with self.device.memory(100) as memory:
            self.assertEqual((memory.info().alignment, memory.name), (0, ""))
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(0, name="wrong")
        with self.device.memory(100) as memory:
            self.assertEqual(memory.name, "")

    def test_wrong_arguments(self):
        for arguments in ((), (1, 2, 3)):
            with self.assertRaises(TypeError):
                self.device.memory(*arguments)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(4096, Kind.REGISTERED)
        with self.assertRaises(TypeError):
            gpumem.Memory(self.device)
        with self.assertRaises(TypeError):
            gpumem.Memory()

    def test_close_twice(self):
        memory = self.device.memory(4096)
        memory.close()
        memory.close()

    def test_close_from_another_thread(self):
        memory = self.device.memory(4096)
        thread = threading.Thread(target=memory.close)
        thread.start()
        thread.join()
        self.assertTrue(memory.closed)
        with self.assertRaises(gpumem.StaleHandle):
            memory.info()
        memory.close()

    def test_use_after_close(self):
        memory = self.pinned()
        pointer = memory.host_pointer
        memory.close()
        with self.assertRaises(gpumem.StaleHandle):
            memory.info()
        with self.assertRaises(gpumem.StaleHandle):
            memory.buffer()
        with self.assertRaises(gpumem.StaleHandle):
            memory.__dlpack__()
        # By the memory, not by its address, which may be somebody else's by now.
        with self.device.stream() as stream, self.device.memory(16) as other:
            for where in (self.instance, stream):
                for wrong in (lambda: where.copy(memory, bytes(16)),
                              lambda: where.copy(other, memory, 16),
                              lambda: where.copy_2d(memory, 4, bytes(16), 4, 4, 4),
                              lambda: where.copy_regions([CopyRegion(other, memory, 16)]),
                              lambda: where.fill(memory),
                              lambda: where.fill_2d(memory, 4, 4, 4)):
                    with self.assertRaises(gpumem.StaleHandle):
                        wrong()
            for wrong in (stream.write_value, stream.wait_value):
                with self.assertRaises(gpumem.StaleHandle):
                    wrong(memory, 1)
        self.assertNotEqual(self.instance.pointer_info(pointer).kind, Kind.PINNED)

    def test_snapshot(self):
        with self.device.memory(1000, "pinned", name='the "last" one') as memory:
            found = self.instance.snapshot()
            self.assertEqual((found["backend"], found["live_count"], found["live_bytes"]), (self.instance.info().backend.name.lower(), 1, 1000))
            self.assertEqual(found["objects"], [{"type": "memory", "name": 'the "last" one', "kind": "pinned", "size": 1000, "device": 0,
                                                 "host_pointer": hex(int(memory)), "device_pointer": hex(int(memory))}])
            self.assertEqual([(kind["live_count"], kind["live_bytes"]) for kind in found["kinds"] if kind["kind"] == "pinned"],
                             [(1, 1000)])
            self.assertEqual(len(found["devices"]), len(self.instance.devices))
        self.assertEqual(self.instance.snapshot()["objects"], [])

    def test_close_during_a_copy(self):
        memory, asked = self.pinned(), []

        def close_in_between(*_):
            with self.assertRaises(BufferError):
                memory.close()
            asked.append(memory.closed)
            raise KeyError("the copy failed")
        with mock.patch.object(gpumem._instance, "call", close_in_between), self.assertRaises(KeyError):
            self.instance.copy(memory, bytes(16))
        self.assertEqual(asked, [False])
        memory.close()
        self.assertTrue(memory.closed)

    def test_freed_by_its_pointer(self):
        memory = self.device.memory(4096)
        self.instance.free(memory.device_pointer)
        with self.assertRaises(gpumem.StaleHandle):
            memory.info()
        memory.close()
        self.assertTrue(memory.closed)

    def test_forgotten(self):
        self.device.memory(4096)
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_forgotten_in_a_cycle(self):
        cycle = [self.device.memory(4096)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_forgotten_at_any_moment(self):
        old = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(200):
                cycle = [self.pinned(64)]
                cycle += [cycle, cycle[0].view("u2"), cycle[0].buffer()]
        finally:
            gc.set_threshold(*old)
        del cycle
        gc.collect()
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_memory_keeps_its_instance(self):
        memory = gpumem.Instance(BACKEND).device(0).memory(4096)
        gc.collect()
        self.assertEqual(memory.device.instance.stats().live_objects, 1)

    def test_plain_pointers(self):
        pointer = self.device.malloc(Kind.PINNED, 4096)
        self.assertEqual(self.device.device_pointer(pointer + 8), pointer + 8)
        with self.assertRaises(gpumem.InvalidArgument):
            self.instance.free(pointer + 1)
        self.instance.free(pointer)
        with self.assertRaises(gpumem.NotFound):
            self.instance.free(pointer)
        self.instance.free(0)

    def test_statistics(self):
        with self.device.memory(100), self.pinned(200), self.device.stream(), self.device.event():
            stats = self.instance.stats()
            self.assertEqual((*stats, stats.live_objects), (2, 300, 0, 1, 1, 300, 4))
            self.assertEqual(self.instance.kind_stats(Kind.PINNED).live_bytes, 200)
            self.assertIn("100", self.instance.report())
        self.device.memory(10).close()
        self.assertEqual(self.instance.kind_stats(Kind.DEVICE), (0, 0, 1, 100, 2, 110))
        self.instance.reset_peaks()
        self.assertEqual(self.instance.stats().peak_bytes, 0)
        self.assertEqual(self.instance.kind_stats(Kind.DEVICE), (0, 0, 0, 0, 2, 110))
        self.assertEqual(self.instance.kind_stats(Kind.REGISTERED), (0,) * 6)
        for kind in (Kind.PAGEABLE, Kind.UNKNOWN, 77):
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.kind_stats(kind)

    def test_access(self):
        peer = self.instance.device(1)
        with self.device.memory(64) as memory, self.pinned(64) as pinned:
            access = self.instance.pointer_access
            self.assertEqual((access(memory), access(memory, self.device), access(memory, peer)),
                             (Access.NONE, Access.READWRITE, Access.NONE))
            peer.enable_peer_access(self.device)
            self.assertEqual(access(memory.device_pointer + 63, peer), Access.READWRITE)
            peer.disable_peer_access(self.device)
            self.assertEqual(access(memory, peer), Access.NONE)
            for processor in (None, peer):
                self.assertEqual(access(pinned.view(offset=8), processor), Access.READWRITE)
            with self.device.register(bytes(4096), require=MemoryFlags.READ_ONLY | MemoryFlags.MAPPED) as registered:
                self.assertEqual(access(registered.device_pointer, self.device), Access.READ)
            with gpumem.Instance(BACKEND) as other, self.assertRaises(gpumem.InvalidArgument):
                access(memory, other.device(0))
            with self.assertRaises(gpumem.InvalidArgument):
                access(None)

    def test_long_report(self):
        many = [self.pinned(256, name=f"a rather long name of memory number {i}") for i in range(100)]
        self.assertGreaterEqual(self.instance.report().count("a rather long name"), 100)
        del many


class RegistrationTest(Case):
    def test_of_each_sort_of_buffer(self):
        for source in (bytearray(8192), array.array("i", range(2048)), ctypes.create_string_buffer(8192),
                       memoryview(bytearray(8192)), mmap.mmap(-1, 8192)):
            with self.subTest(type(source).__name__), self.device.register(source) as memory:
                self.assertEqual((memory.kind, memory.size), (Kind.REGISTERED, 8192))
                self.assertEqual(self.instance.pointer_info(memory.host_pointer + 5).kind, Kind.REGISTERED)

    def test_the_source_is_held(self):
        source = bytearray(8192)
        with self.device.register(source):
            with self.assertRaises(BufferError):
                source.extend(bytes(10))
        source.extend(bytes(10))

    def test_the_source_is_kept(self):
        memory = self.device.register(bytearray(b"\x77" * 8192))
        gc.collect()
        self.assertEqual(memory.buffer()[8191], 0x77)
        memory.close()

    def test_close_while_a_view_lives(self):
        memory = self.device.register(bytearray(8192))
        view = memory.buffer()
        with self.assertRaises(BufferError):
            memory.close()
        del view
        memory.close()

    def test_read_only(self):
        with self.assertRaises((BufferError, ValueError)):
            self.device.register(bytes(8192))
        with self.device.register(bytes(8192), require=MemoryFlags.READ_ONLY) as memory:
            self.assertTrue(memory.buffer().readonly)
            with self.assertRaises(gpumem.NoAccess):
                memory.fill(1)

    def test_zero_length(self):
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.register(bytearray())

    def test_size(self):
        source = bytearray(8192)
        with self.device.register(source, 100) as memory:
            self.assertEqual(memory.size, 100)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.register(source, 8193)
        with self.assertRaises(TypeError):
            self.device.register(4096)
        with self.assertRaises(TypeError):
            self.device.register(object())
        with self.assertRaises((BufferError, ValueError)):
            self.device.register(memoryview(source)[::2])

    def test_twice(self):
        source = bytearray(8192)
        with self.device.register(source):
            with self.assertRaises(gpumem.AlreadyExists):
                self.device.register(source)

    def test_by_pointer(self):
        buffer = ctypes.create_string_buffer(8192)
        address = ctypes.addressof(buffer)
        self.device.register_pointer(address, 8192, MemoryFlags.MAPPED)
        self.assertTrue(self.device.device_pointer(address))
        with self.assertRaises(gpumem.WrongKind):
            self.instance.free(address)
        self.instance.unregister(address)
        with self.assertRaises(gpumem.NotFound):
            self.instance.unregister(address)

    @needs_numpy
    def test_arrays_that_cannot_be(self):
        with self.assertRaises(TypeError):
            self.device.register(numpy.array([object()]))
        with self.assertRaises((BufferError, ValueError)):
            self.device.register(numpy.zeros((64, 64))[:, ::2])
        frozen = numpy.zeros(100)
        frozen.flags.writeable = False
        with self.assertRaises((BufferError, ValueError)):
            self.device.register(frozen)

    @needs_numpy
    def test_arrays_without_a_buffer(self):
        dates = numpy.zeros(512, "datetime64[s]")
        with self.device.register(dates) as memory:
            self.assertEqual(memory.size, 4096)
            self.assertEqual(memory.host_pointer, dates.__array_interface__["data"][0])


class CopyTest(Case):
    def test_every_pair(self):
        data = bytes(range(256)) * 4
        with self.device.memory(1024) as device, self.pinned(1024) as pinned, \
                self.device.register(bytearray(1024)) as registered, self.instance.device(1).memory(1024) as other:
            previous = data
            for memory in (device, pinned, registered, other, pinned):
                memory.copy_from(previous)
                previous = memory
            result = bytearray(1024)
            other.copy_to(result)
            self.assertEqual(bytes(result), data)
            self.assertEqual(bytes(pinned.buffer()), data)

    def test_sizes(self):
        with self.device.memory(100) as memory:
            memory.copy_from(bytes(40))
            memory.copy_from(bytes(40), offset=60)
            for wrong in (lambda: memory.copy_from(bytes(101)), lambda: memory.copy_from(bytes(41), offset=60),
                          lambda: memory.copy_from(bytes(10), 11), lambda: memory.copy_to(bytearray(10), 11),
                          lambda: memory.copy_from(bytes(10), offset=101)):
                with self.assertRaises(gpumem.InvalidArgument):
                    wrong()
            with self.assertRaisesRegex(gpumem.InvalidArgument, "; pass size=40 to copy only so many$"):
                memory.copy_from(bytes(41), offset=60)
            with self.assertRaisesRegex(gpumem.InvalidArgument, "has 0 bytes, but 1 are needed$"):
                memory.copy_from(bytes(1), offset=100)
            self.instance.copy(memory, 0, 0)
            with self.assertRaises(TypeError):
                self.instance.copy(memory.device_pointer, memory.device_pointer)
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.copy(memory, None, 10)

    def test_read_only_destination(self):
        with self.device.memory(100) as memory:
            with self.assertRaises((BufferError, ValueError)):
                memory.copy_to(bytes(100))

    @needs_numpy
    def test_objects(self):
        objects = numpy.array([object()] * 8)
        with self.pinned(64) as memory:
            for call in (lambda: memory.copy_from(objects), lambda: memory.copy_to(objects), lambda: self.device.register(objects),
                         lambda: memory.view("u8").__setitem__(slice(None), objects)):
                with self.assertRaisesRegex(TypeError, "^a device cannot use an array of Python objects$"):
                    call()

    def test_operands_of_a_wrong_type(self):
        with self.device.memory(64) as memory:
            for what, name, call in (
                    ("source", "object", lambda: memory.copy_from(object())), ("source", "str", lambda: memory.copy_from("text")),
                    ("destination", "float", lambda: memory.copy_to(1.5)), ("destination", "str", lambda: self.instance.fill("text", 0)),
                    ("source", "list", lambda: self.instance.copy_regions([gpumem.CopyRegion(memory, [1])])),
                    ("pointer", "object", lambda: self.instance.pointer_info(object()))):
                with self.assertRaisesRegex(TypeError, f"^{what} must be memory, an object with a buffer or an address, not a {name}$"):
                    call()
            for wrong in ("1", 1.5, None):
                with self.assertRaisesRegex(TypeError, f"^offset must be an int, not a {type(wrong).__name__}$"):
                    memory.copy_from(b"", offset=wrong)

    def test_fill(self):
        with self.device.memory(64) as memory:
            memory.fill(0x11)
            self.instance.fill(memory.device_pointer + 4, 0xdeadbeef, 4, value_size=4)
            result = bytearray(16)
            memory.copy_to(result, 16)
            self.assertEqual(result.hex(), "11111111efbeadde1111111111111111")
            self.instance.fill(memory, 0x22)  # the value comes first, as in memory.fill()
            memory.copy_to(result, 16)
            self.assertEqual(result, b"\x22" * 16)
            for value, size in ((256, 1), (1 << 16, 2), (-1, 1)):  # which the library would cut
                with self.assertRaisesRegex(gpumem.InvalidArgument, f"value is {value}"):
                    memory.fill(value, value_size=size)
            with self.assertRaisesRegex(gpumem.InvalidArgument, "offset is 65, but the memory has 64"):
                memory.copy_from(b"", offset=65)

    def test_short_destinations_and_sources_answer_alike(self):
        with self.device.memory(64) as memory, self.pinned(16) as pinned, self.device.stream() as stream:
            for where in (self.instance, stream):
                for destination in (bytearray(16), pinned, pinned.view("u2")):
                    with self.assertRaises(gpumem.InvalidArgument) as caught:
                        where.copy(destination, memory)
                    self.assertEqual(str(caught.exception), "the destination has 16 bytes, but 64 are needed; pass size=16 to copy only so many")
                    with self.assertRaises(gpumem.InvalidArgument) as caught:
                        where.copy(destination, memory, 17)
                    self.assertEqual(str(caught.exception), "the destination has 16 bytes, but 17 are needed")
                for source in (bytes(16), pinned, pinned.view("u2")):
                    with self.assertRaises(gpumem.InvalidArgument) as caught:
                        where.copy(memory, source, 17)
                    self.assertEqual(str(caught.exception), "the source has 16 bytes, but 17 are needed")
            for destination in (bytes(64), memoryview(bytearray(64)).toreadonly(), *([_frozen()] if numpy else [])):
                with self.assertRaisesRegex(gpumem.InvalidArgument, "^this [a-z]+ object is read-only(; use a bytearray)?$"):
                    memory.copy_to(destination)
            with self.assertRaisesRegex(gpumem.InvalidArgument, "^this memoryview object is not contiguous; copy it first, for example with numpy"):
                memory.copy_from(memoryview(bytes(64))[::2])
            with self.assertRaisesRegex(gpumem.InvalidArgument, "not contiguous; pass one that is, such as numpy.empty.*, and assign that to it$"):
                memory.copy_to(memoryview(bytearray(128))[::2])
            with self.assertRaisesRegex(gpumem.InvalidArgument, "not contiguous; register all of the array that it is a part of, or a contig"):
                self.device.register(memoryview(bytearray(128))[::2])
            if numpy:
                rows = numpy.zeros((4, 16), "u1", order="F")
                with self.assertRaisesRegex(gpumem.InvalidArgument, "; pass its transpose, or a copy in C order$"):
                    memory.copy_from(rows)
                with self.assertRaisesRegex(gpumem.InvalidArgument, "; pass its transpose, or an array in C order, and assign that to it$"):
                    memory.copy_to(rows)
            with self.assertRaisesRegex(gpumem.InvalidArgument, "; use a bytearray$"):
                memory.copy_to(bytes(64))
            count = len(self.instance.devices)
            with self.assertRaisesRegex(gpumem.InvalidArgument, f"^ordinal is -1; it must be between 0 and {count - 1}$"):
                self.instance.device(-1)
            del source, destination

    def test_with_stream_and_memory_in_any_order(self):
        """The memory that is closed first waits for the stream."""
        unit = self.device.physical_granularity().recommended
        stream, release = self.held_stream()
        releasing = threading.Timer(0.05, release)
        with stream, self.device.memory(64) as memory, self.device.buffer(64) as buffer, \
                self.instance.reserve(unit) as addresses, self.device.physical(unit) as block:
            addresses.map(0, block)
            addresses.set_access(0, unit, {self.device: "readwrite"})
            part = addresses.part()
            for target in (memory, buffer, part):
                target.fill(1, stream=stream)
                with self.assertRaises(gpumem.Busy):
                    (addresses if target is part else target).close()
            releasing.start()
        releasing.join()
        self.assertTrue(memory.closed and buffer.closed and addresses.closed and stream.closed)

    def test_rectangles(self):
        with self.device.memory(64) as memory:
            memory.fill(0)
            self.instance.fill_2d(memory, 8, 4, 8, 0x55)
            self.instance.copy_2d(memory, 8, b"abcdef", 2, 2, 3)
            result = bytearray(64)
            memory.copy_to(result)
            self.assertEqual(result[:20], b"abUU\0\0\0\0cdUU\0\0\0\0efUU")
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.copy_2d(memory, 8, b"abcdef", 2, 2, 4)
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.copy_2d(memory, 1, b"abcdef", 2, 2, 3)

    def test_integers_that_wrap(self):
        class Byte:
            """Calculates as numpy's uint8 does."""

            def __init__(self, value):
                self.value = int(value) & 255

            def __index__(self):
                return self.value
            __int__ = __index__

            def __add__(self, other):
                return Byte(self.value + int(other))

            def __sub__(self, other):
                return Byte(self.value - int(other))

            def __mul__(self, other):
                return Byte(self.value * int(other))
            __radd__, __rmul__ = __add__, __mul__

            def __gt__(self, other):
                return self.value > int(other)

            def __ge__(self, other):
                return self.value >= int(other)
        whole = bytearray(4096)
        with self.pinned() as memory, self.device.stream() as stream:
            memory.fill(1)
            for where in (self.instance, stream):
                with self.assertRaisesRegex(gpumem.InvalidArgument, "64 bytes, but 1600"):
                    where.copy_2d(memoryview(whole)[:64], 16, memory, 16, Byte(16), Byte(100))
                with self.assertRaisesRegex(gpumem.InvalidArgument, "64 bytes, but 1600"):
                    where.fill_2d(memoryview(whole)[:64], 16, Byte(16), Byte(100), 1)
            stream.synchronize()
        self.assertEqual(whole, bytes(4096))

    def test_regions(self):
        with self.device.memory(256) as box, self.pinned(64) as pinned, self.device.stream() as stream:
            pinned.buffer()[:] = bytes(range(64))
            for where in (self.instance, stream):
                with self.subTest(type(where).__name__):
                    box.fill(0xee)
                    where.copy_regions([
                        CopyRegion(box, pinned, 2, 2, 2, destination_offset=16, destination_row_pitch=4,
                                   destination_slice_pitch=16, source_row_pitch=8, source_slice_pitch=32),
                        CopyRegion(box.view(offset=64), pinned.view(offset=60)),
                        CopyRegion(box.device_pointer, pinned.host_pointer, 4, destination_offset=8, source_offset=40),
                        CopyRegion(box, b"text", source_offset=1, destination_offset=100),
                        CopyRegion(None, None, 0), CopyRegion(box, pinned, 8, 0), CopyRegion(box, pinned, 8, depth=0),
                    ])
                    stream.synchronize()
                    expected = bytearray(b"\xee" * 256)
                    for place, found in ((16, (0, 1)), (20, (8, 9)), (32, (32, 33)), (36, (40, 41)),
                                         (64, (60, 61, 62, 63)), (8, (40, 41, 42, 43)), (100, b"ext")):
                        expected[place:place + len(found)] = bytes(found)
                    result = bytearray(256)
                    box.copy_to(result)
                    self.assertEqual(result, expected)
            # To a buffer, and between rows without a gap.
            result = bytearray(24)
            region = CopyRegion(result, pinned, 4, 3, source_row_pitch=16, destination_offset=12)
            self.instance.copy_regions(iter([region]))
            self.assertEqual(bytes(result), bytes(12) + bytes((0, 1, 2, 3, 16, 17, 18, 19, 32, 33, 34, 35)))
            self.instance.copy_regions([])

    def test_regions_refused(self):
        good = bytes(16)
        with self.device.memory(64) as memory, self.device.stream() as stream, gpumem.Instance(BACKEND) as other:
            memory.fill(0x33)
            short = memory.view("u1", 8, offset=56)
            foreign = other.device(0).memory(64)
            for where in (self.instance, stream):
                for number, (error, region) in enumerate((
                        (gpumem.InvalidArgument, CopyRegion(memory, bytes(65))),
                        (gpumem.InvalidArgument, CopyRegion(memory, bytes(8), destination_offset=60)),
                        (gpumem.InvalidArgument, CopyRegion(memory, bytes(8), 9)),
                        (gpumem.InvalidArgument, CopyRegion(memory, bytes(8), 2, 3, source_row_pitch=4)),
                        (gpumem.InvalidArgument, CopyRegion(memory, bytes(8), 2, 1, 3, source_slice_pitch=4)),
                        (gpumem.InvalidArgument, CopyRegion(memory, bytes(8), 1, source_offset=8)),
                        (gpumem.InvalidArgument, CopyRegion(short, bytes(16))),
                        (gpumem.InvalidArgument, CopyRegion(memory, bytes(16), 4, 2, destination_row_pitch=3)),
                        (gpumem.InvalidArgument, CopyRegion(memory, None, 8)),
                        (gpumem.InvalidArgument, CopyRegion(None, good, 8, destination_offset=8)),
                        (gpumem.InvalidArgument, CopyRegion(foreign, good)),
                        (gpumem.InvalidArgument, CopyRegion(memory, good, direction=gpumem.Direction.DEVICE_TO_HOST)),
                        (gpumem.InvalidArgument, CopyRegion(memory, good, source_order=99)),
                        (gpumem.InvalidArgument, CopyRegion(memory, good, -1)),
                        (gpumem.InvalidArgument, CopyRegion(memory, good, 1 << 64)),
                        (gpumem.InvalidArgument, CopyRegion((1 << 64) - 1, good, 8, destination_offset=8)),
                        (gpumem.NotFound, CopyRegion(memory, 4096, 8)))):
                    with self.subTest(f"{type(where).__name__} {number}"):
                        with self.assertRaises(error) as caught:
                            where.copy_regions([CopyRegion(memory, good, 8), region, CopyRegion(memory, good, 4)])
                        self.assertEqual(caught.exception.region, 1)
                for wrong in (lambda: CopyRegion(memory, good, height=2), lambda: CopyRegion(4096, 8192),
                              lambda: CopyRegion(memory, object())):
                    with self.assertRaises(TypeError):
                        where.copy_regions([wrong()])
            foreign.close()
            del short, region, wrong
            result = bytearray(64)
            memory.copy_to(result)
            self.assertEqual(result, b"\x33" * 64)  # nothing was copied
            with self.assertRaises(gpumem.InvalidArgument) as caught:
                self.instance.copy(memory, bytes(65))
            self.assertIsNone(caught.exception.region)
        memory = self.device.memory(64)
        memory.close()
        with self.assertRaises(gpumem.StaleHandle) as caught:
            self.instance.copy_regions([CopyRegion(bytearray(8), good, 8), CopyRegion(memory, good)])
        self.assertEqual(caught.exception.region, 1)
        with gpumem.Instance(BACKEND) as other:
            pass
        with self.assertRaises(gpumem.Closed) as caught:
            other.copy_regions([CopyRegion(bytearray(8), good, 8)])
        self.assertIsNone(caught.exception.region)

    def test_options(self):
        with self.device.memory(64) as memory:
            self.instance.copy(memory, bytes(64), direction=gpumem.Direction.HOST_TO_DEVICE,
                               source_order=gpumem.SourceOrder.DURING_CALL)
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.copy(memory, bytes(64), direction=gpumem.Direction.DEVICE_TO_HOST)
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.copy(memory, bytes(64), source_order=99)
