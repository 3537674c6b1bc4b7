# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Managed memory: who may touch it, hints, and accesses of the CPU."""

import os
import signal
import threading
import time

import gpumem
from gpumem import Kind, Location, ManagedRange, MemoryFlags, mem_attach_flags

from .support import BACKEND, Case, needs_numpy, numpy, on_cuda, on_host

MIB = 1 << 20
NOWHERE = Location.NONE, -1


class ManagedCase(Case):
    def managed(self, size=MIB, **options):
        return self.device.memory(size, "managed", **options)


class MemoryTest(ManagedCase):
    def test_one_address(self):
        with self.managed(1000, name="mine") as memory:
            self.assertEqual((memory.kind, memory.size, memory.name), (Kind.MANAGED, 1000, "mine"))
            self.assertEqual(memory.host_pointer, memory.device_pointer)
            memory.buffer()[:5] = b"hello"
            back = bytearray(5)
            memory.copy_to(back, 5)
            self.assertEqual(back, b"hello")
            memory.fill(7)
            self.assertEqual(bytes(memory.buffer()), bytes([7]) * 1000)
            self.assertEqual(self.instance.pointer_info(memory).kind, Kind.MANAGED)
            self.assertEqual(self.instance.kind_stats("managed").live_count, 1)
            self.assertIn("managed, 1000 bytes", repr(memory))
            self.assertEqual(self.instance.report().partition(" at ")[0], "Memory 'mine': managed, 1000 bytes")
        self.assertEqual(self.instance.kind_stats("managed").live_count, 0)

    def test_flags(self):
        with self.managed() as memory:
            self.assertFalse(memory.granted_flags & MemoryFlags.ATTACH_HOST)
        with self.managed(require="attach_host") as memory:
            self.assertTrue(memory.granted_flags & MemoryFlags.ATTACH_HOST)
        with self.assertRaises(gpumem.InvalidArgument):
            self.managed(require="mapped")
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(64, require="attach_host")

    def test_plain_addresses(self):
        pointer = self.device.malloc("managed", 4096)
        self.assertTrue(self.instance.advise(pointer, "set_read_mostly", size=4096))
        self.assertTrue(self.instance.managed_info(pointer, 4096).read_mostly)
        with self.assertRaisesRegex(TypeError, "size"):
            self.instance.managed_info(pointer)
        self.instance.free(pointer)

    @on_cuda
    def test_other_libraries(self):
        with self.managed(64) as memory, self.instance.device(1).memory(64, "managed") as other:
            view = memory.view("f4")
            self.assertEqual((view.__dlpack_device__(), other.__dlpack_device__()), ((13, 0), (13, 1)))
            self.assertEqual(view.__cuda_array_interface__["data"], (memory.device_pointer, False))
            self.assertEqual(gpumem.from_dlpack(view).address, memory.host_pointer)
            view.__dlpack__(stream=1)
            view.__dlpack__(dl_device=(1, 0), copy=False)
            there = gpumem.from_dlpack(view, device=(2, 0), copy=False)
            self.assertEqual((there.dlpack_device, there.address), ((2, 0), memory.device_pointer))
            copied = gpumem.from_dlpack(view, device=(2, 0), copy=True)
            self.assertNotEqual(copied.address, memory.device_pointer)
            for device in ((2, 1), (3, 0), (13, 1)):
                with self.assertRaises(BufferError):
                    view.__dlpack__(dl_device=device)
            del view, there, copied

    @needs_numpy
    def test_dlpack_and_numpy(self):
        with self.managed(64) as memory:
            array = numpy.from_dlpack(memory.view("i4"))
            memory.view("i4")[3] = 9
            self.assertEqual(array[3], 9)
            del array


class AdviceTest(ManagedCase):
    def test_advice(self):
        with self.managed() as memory:
            self.assertEqual(memory.managed_info(), (False, *NOWHERE, *NOWHERE, False, ()))
            self.assertIs(memory.advise("set_read_mostly"), True)
            self.assertIs(memory.managed_info().read_mostly, True)
            memory.advise("unset_read_mostly")
            self.assertIs(memory.managed_info().read_mostly, False)

            memory.advise("set_preferred_location", self.instance.device(1))
            self.assertEqual(memory.managed_info()[1:3], (Location.DEVICE, 1))
            memory.advise("set_preferred_location", "host")
            self.assertEqual(memory.managed_info().preferred_location, Location.HOST)
            memory.advise("unset_preferred_location")
            self.assertEqual(memory.managed_info()[1:3], NOWHERE)

            memory.advise("set_accessed_by", "host")
            memory.advise("set_accessed_by", self.instance.device(1))
            memory.advise("set_accessed_by", ("device", 0))
            self.assertEqual(memory.managed_info()[5:], (True, (0, 1)))
            memory.advise("unset_accessed_by", "host")
            memory.advise("unset_accessed_by", self.device)
            self.assertEqual(memory.managed_info()[5:], (False, (1,)))

    def test_parts(self):
        with self.managed() as memory:
            half = memory.view("u1", MIB // 2)
            half.advise("set_read_mostly")
            self.assertTrue(half.managed_info().read_mostly)
            self.assertFalse(memory.managed_info().read_mostly)
            self.assertTrue(self.instance.managed_info(memory, MIB // 2).read_mostly)
            self.assertTrue(self.instance.managed_info(memory.host_pointer, 1).read_mostly)
            with self.assertRaises(gpumem.InvalidArgument):
                memory.view("u1", (2, 2))[:, 0].advise("set_read_mostly")
            del half

    def test_wrong(self):
        with self.managed() as memory, self.pinned() as pinned, gpumem.Instance(BACKEND) as other:
            for error, call in (
                    (gpumem.WrongKind, lambda: self.instance.advise(pinned, "set_read_mostly")),
                    (gpumem.WrongKind, lambda: self.instance.managed_info(pinned)),
                    (gpumem.InvalidArgument, lambda: memory.advise("set_accessed_by")),
                    (gpumem.InvalidArgument, lambda: memory.advise("set_accessed_by", ("host_numa", 0))),
                    (gpumem.InvalidArgument, lambda: memory.advise("set_accessed_by", ("device", 99))),
                    (gpumem.InvalidArgument, lambda: memory.advise("set_preferred_location", other.device(0))),
                    (gpumem.InvalidArgument, lambda: memory.advise("banana")),
                    (gpumem.InvalidArgument, lambda: memory.advise(99)),
                    (gpumem.InvalidArgument, lambda: self.instance.advise(memory, 1, size=MIB + 1)),
                    (gpumem.InvalidArgument, lambda: self.instance.advise(memory.host_pointer, 1, size=1 << 62)),
                    (gpumem.InvalidArgument, lambda: self.instance.advise(memory, 1, size=0)),
                    (gpumem.InvalidArgument, lambda: self.instance.managed_info(0, 1)),
                    (TypeError, lambda: memory.advise("set_accessed_by", ("device", 0, 0))),
                    (TypeError, lambda: memory.advise("set_accessed_by", None)),
                    (TypeError, lambda: memory.prefetch(None)), (TypeError, lambda: memory.discard("x")),
                    (TypeError, lambda: memory.attach("host", 7)), (TypeError, gpumem.HostAccess)):
                with self.assertRaises(error):
                    call()
            foreign = gpumem.from_dlpack(pinned)
            with self.assertRaisesRegex(gpumem.InvalidArgument, "another library"):
                foreign.advise("set_read_mostly")
            del foreign
        for call in (lambda: memory.advise("set_read_mostly"), memory.managed_info):
            with self.assertRaises(gpumem.StaleHandle):
                call()


class MoveTest(ManagedCase):
    def test_prefetch(self):
        with self.managed() as memory, self.device.stream() as stream:
            memory.fill(3)
            for location, expected in ((None, (Location.DEVICE, 0)), (self.instance.device(1), (Location.DEVICE, 1)),
                                       (("device", 1), (Location.DEVICE, 1)), ("host", (Location.HOST, -1))):
                self.assertIs(memory.prefetch(stream, location), True)
                self.assertEqual(memory.managed_info()[3:5], expected)
            stream.prefetch(memory.host_pointer, "host", MIB // 2)
            stream.prefetch(memory.view("u1", MIB // 2), self.device)
            self.assertEqual(memory.managed_info()[3:5], NOWHERE)
            stream.synchronize()
            self.assertEqual(bytes(memory.buffer()), bytes([3]) * MIB)

    @on_host
    def test_nodes(self):
        with self.managed() as memory, self.device.stream() as stream:
            memory.prefetch(stream, ("host_numa", 0))
            self.assertEqual(memory.managed_info()[3:5], (Location.HOST_NUMA, 0))
            self.assertTrue(memory.prefetch(stream, "host_numa_current"))
            with self.assertRaises(gpumem.InvalidArgument):
                memory.prefetch(stream, ("host_numa", 1000))
            stream.synchronize()

    def test_batches(self):
        with self.managed() as first, self.managed() as second, self.device.stream() as stream:
            stream.prefetch_batch([first, ManagedRange(second, "host")])
            self.assertEqual((first.managed_info()[3:5], second.managed_info()[3]), ((Location.DEVICE, 0), Location.HOST))
            stream.prefetch_batch([])
            with self.assertRaises(gpumem.InvalidArgument):  # all are checked first
                stream.prefetch_batch([ManagedRange(first, "host"), ManagedRange(second, ("device", 99))])
            self.assertEqual(first.managed_info()[3:5], (Location.DEVICE, 0))
            stream.prefetch_batch(ManagedRange(place, "host", MIB) for place in (first.host_pointer, second.host_pointer))
            self.assertEqual(first.managed_info()[3], Location.HOST)
            stream.synchronize()
            self.assertEqual((first._holds, second._holds, stream._queue.uses), (set(), set(), []))

    def test_discard(self):
        possible = bool(self.device.capability("managed_discard"))
        with self.managed() as memory, self.managed() as other, self.device.stream() as stream:
            memory.fill(3)
            memory.advise("set_read_mostly")
            self.assertIs(memory.discard(stream), possible)
            self.assertIs(stream.discard_batch([memory, other]), possible)
            self.assertTrue(memory.managed_info().read_mostly)
            self.assertIs(memory.discard_and_prefetch(stream, "host"), possible)
            if possible:
                self.assertEqual(memory.managed_info()[3], Location.HOST)
            self.assertIs(stream.discard_and_prefetch_batch([other]), possible)
            if possible:
                self.assertEqual(other.managed_info()[3:5], (Location.DEVICE, 0))
            with self.assertRaises(gpumem.InvalidArgument):
                stream.discard_batch([ManagedRange(memory, "host")])
            stream.synchronize()
            memory.fill(4)
            self.assertEqual(bytes(memory.buffer()), bytes([4]) * MIB)
            with self.pinned() as pinned:
                for call in (stream.discard_batch, stream.prefetch_batch, stream.discard_and_prefetch_batch):
                    with self.assertRaises(gpumem.WrongKind):
                        call([pinned])
                self.assertEqual(pinned._holds, set())

    def test_a_stream_keeps_what_moves(self):
        memory, other = self.managed(), self.managed()
        stream, release = self.held_stream()
        memory.prefetch(stream)
        stream.prefetch_batch([other])
        for thing in (memory, other):
            with self.assertRaises(gpumem.Busy):
                thing.close()
        release()
        for thing in (memory, other):
            thing.close()
        stream.close()

    def test_large_ranges_move_on_another_thread(self):
        with self.managed(32 * MIB) as memory, self.device.stream() as stream:
            self.assertTrue(memory.advise("set_read_mostly"))
            self.assertTrue(memory.prefetch(stream, "host"))
            self.assertEqual(memory.managed_info()[3], Location.HOST)
            with self.assertRaises(gpumem.InvalidArgument):
                memory.prefetch(stream, ("device", 99))
            stream.synchronize()


class AttachTest(ManagedCase):
    def test_attach(self):
        with self.managed() as memory, self.device.stream() as stream:
            for attach in ("single", "host", gpumem.Attach.GLOBAL, mem_attach_flags.SINGLE):
                stream.attach(memory, attach)
                memory.attach(attach, stream)
            stream.attach(memory.host_pointer)
            stream.synchronize()
            memory.view().attach("global", stream)
            stream.synchronize()
            with self.pinned() as pinned:
                for error, call in ((gpumem.InvalidArgument, lambda: stream.attach(memory, 7)),
                                    (gpumem.InvalidArgument, lambda: stream.attach(memory, "banana")),
                                    (gpumem.InvalidArgument, lambda: stream.attach(memory, "host", MIB // 2)),
                                    (gpumem.InvalidArgument, lambda: memory.view()[8:].attach("host", stream)),
                                    (gpumem.WrongKind, lambda: stream.attach(pinned))):
                    with self.assertRaises(error):
                        call()

    def test_the_default_stream(self):
        with self.managed() as memory:
            memory.attach("host")
            memory.attach("global")
            with self.assertRaises(gpumem.InvalidArgument):
                memory.attach("single")
            self.assertEqual(memory._holds, set())


class HostAccessTest(ManagedCase):
    def test_on_concurrent_devices(self):
        with self.managed() as memory, self.pinned() as pinned:
            stream, release = self.held_stream()
            with memory.host_access() as same:
                self.assertIs(same, memory)
                memory.buffer()[0] = 1
            access = self.instance.host_access(memory.host_pointer)
            with access, access:
                pass
            with self.assertRaises(gpumem.WrongKind):
                self.instance.host_access(pinned).begin()
            release()
            stream.close()
        with self.assertRaises(gpumem.StaleHandle):
            memory.host_access().begin()

    def test_an_instance_that_is_closed_meanwhile(self):
        instance = gpumem.Instance(BACKEND)
        memory = instance.device(0).memory(64, "managed")
        with memory.host_access():
            instance.close(force=True)


@on_host
class OldDeviceTest(ManagedCase):
    """Devices that are not concurrent."""

    options = {"host": gpumem.HostOptions(concurrent=False)}

    def test_hints_have_no_effect(self):
        self.assertFalse(self.device.capability("managed_concurrent"))
        with self.managed() as memory, self.device.stream() as stream:
            for call in (lambda: memory.advise("set_preferred_location", self.device), lambda: memory.prefetch(stream),
                         lambda: memory.advise("set_accessed_by", self.device),
                         lambda: memory.prefetch(stream, "host"), lambda: stream.prefetch_batch([memory]),
                         lambda: memory.discard(stream), lambda: memory.discard_and_prefetch(stream)):
                self.assertIs(call(), False)
                self.assertEqual((memory._holds, stream._queue.uses), (set(), []))
            with self.assertRaises(gpumem.InvalidArgument):
                memory.prefetch(stream, ("device", 99))

    def test_attachments_hold(self):
        with self.managed() as memory, self.device.stream() as stream, self.device.stream() as other:
            for attach, refused in (("single", (other,)), ("host", (stream, other)), ("global", ())):
                stream.attach(memory, attach)
                stream.synchronize()
                for where in (stream, other):
                    if where in refused:
                        with self.assertRaises(gpumem.NoAccess):
                            memory.fill(1, stream=where)
                        self.assertEqual(memory._holds, set())
                    else:
                        memory.fill(1, stream=where)
                        where.synchronize()

    def test_an_access_waits_for_the_work(self):
        memory = self.managed(64)
        stream, release = self.held_stream()
        stream.attach(memory)
        memory.fill(5, stream=stream)
        begun, seen = threading.Event(), []

        def touch():
            with memory.host_access():
                begun.set()
                seen.append(memory.buffer()[0])
        thread = threading.Thread(target=touch)
        thread.start()
        self.assertFalse(begun.wait(0.2))
        stream._queue.uses[0].kept[0].buffer()[0] = 1
        thread.join()
        self.assertEqual((seen, memory._holds), ([5], set()))
        release()
        memory.close()
        stream.close()

    def test_during_an_access(self):
        with self.managed(64) as memory, self.device.stream() as stream:
            access = memory.host_access()
            with access, access:
                for call in (lambda: memory.fill(1, stream=stream), lambda: stream.attach(memory), memory.close):
                    with self.assertRaises(gpumem.Busy):
                        call()
            self.assertFalse(memory.closed)
            memory.fill(1, stream=stream)
            with access:
                self.assertEqual(memory.buffer()[0], 1)
            self.assertEqual(memory._holds, set())

    def test_an_exception_of_the_block_stays(self):
        with self.managed() as memory:
            with self.assertRaises(ZeroDivisionError):
                with memory.host_access():
                    raise ZeroDivisionError
            with self.assertRaises(gpumem.InvalidState):
                memory.host_access().end()

    @needs_numpy
    def test_zeros_wait_until_the_cpu_may_write_them(self):
        stream, release = self.held_stream()
        released = []
        timer = threading.Timer(0.2, lambda: (released.append(1), release()))
        timer.start()
        array = gpumem.managed_zeros(16, "f4", device=self.device)
        self.assertEqual(released, [1])
        timer.join()
        with array.base.host_access():
            self.assertEqual(array.sum(), 0)
        stream.close()

    def test_ctrl_c(self):
        self.assertIs(threading.current_thread(), threading.main_thread())
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(lambda: signal.signal(signal.SIGINT, former))
        memory = self.managed(64)
        stream, release = self.held_stream()
        stream.attach(memory)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            with memory.host_access():
                self.fail("it did not wait")
        timer.join()
        release()
        # The wait went on in its thread, and its access ends as soon as it has begun.
        end = time.monotonic() + 20
        while True:
            try:
                memory.close()
                break
            except gpumem.Busy:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
        stream.close()


@needs_numpy
class ArrayTest(ManagedCase):
    def test_empty(self):
        found = gpumem.managed_empty((3, 5), numpy.float32, device=self.device)
        self.assertIs(type(found), numpy.ndarray)
        self.assertEqual((found.shape, found.dtype, found.flags.c_contiguous), ((3, 5), numpy.float32, True))
        self.assertEqual((found.base.memory.kind, found.base.memory.size), (Kind.MANAGED, 60))
        self.assertEqual(found.base.get_device_pointer(), found.__array_interface__["data"][0])
        with self.assertRaises(BufferError):
            found.base.free()
        base = found.base
        del found
        base.free()

    def test_zeros_and_likes(self):
        zeros = gpumem.managed_zeros((7, 3), "i4", "F", device=self.device)
        self.assertEqual((zeros.sum(), zeros.flags.f_contiguous), (0, True))
        model = numpy.ones((4, 6), "f8", order="F")
        for function in (gpumem.managed_empty_like, gpumem.managed_zeros_like):
            found = function(model, device=self.device)
            self.assertEqual((found.shape, found.dtype, found.flags.f_contiguous), (model.shape, model.dtype, True))
            self.assertEqual(found.base.memory.kind, Kind.MANAGED)
        self.assertEqual(found.sum(), 0)
        self.assertEqual(gpumem.managed_zeros((0, 3), "f4", device=self.device).shape, (0, 3))

    def test_flags(self):
        self.assertEqual((mem_attach_flags.GLOBAL, mem_attach_flags.HOST, mem_attach_flags.SINGLE), (1, 2, 4))
        for flags, granted in ((0, 0), (mem_attach_flags.GLOBAL, 0), (mem_attach_flags.HOST, MemoryFlags.ATTACH_HOST)):
            found = gpumem.managed_empty(4, "f4", mem_flags=flags, device=self.device)
            self.assertEqual(found.base.memory.granted_flags & MemoryFlags.ATTACH_HOST, granted)
        for flags in (mem_attach_flags.SINGLE, 3, 8):
            with self.assertRaises(gpumem.InvalidArgument):
                gpumem.managed_empty(4, "f4", mem_flags=flags, device=self.device)

    def test_use(self):
        array = gpumem.managed_zeros(1000, "i4", device=self.device)
        with self.device.stream() as stream:
            array.base.prefetch(stream)
            array.base.attach(mem_attach_flags.SINGLE, stream)
            stream.fill(array.base, value=1, value_size=4)
            stream.synchronize()
            with array.base.host_access():
                self.assertEqual(array.sum(), 1000)
            array.base.advise("set_read_mostly")
            self.assertTrue(self.instance.managed_info(array).read_mostly)

    def test_the_default_device(self):
        found = gpumem.managed_empty(10, "f4")
        self.assertIs(found.base.memory.device, gpumem.default_device())
