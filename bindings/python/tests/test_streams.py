# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Streams and events, what they keep alive, host functions, and the stand-ins for kernels."""

import gc
import struct
import sys
import threading
import time

import gpumem
from gpumem import CopyRegion, Kind, _calls, host
from gpumem import _library as c

from .support import Case, on_cuda, on_host


class StreamTest(Case):
    def test_info_and_close(self):
        stream = self.device.stream(priority=0, name="mine")
        info = stream.info()
        self.assertEqual((info.device_ordinal, info.wrapped, info.name), (0, False, "mine"))
        self.assertEqual(stream.__cuda_stream__(), (0, stream.native_stream))
        stream.close()
        stream.close()
        self.assertTrue(stream.closed)
        with self.assertRaises(gpumem.StaleHandle):
            stream.synchronize()
        with self.pinned() as memory, self.assertRaises(gpumem.StaleHandle):
            memory.fill(1, stream=stream)

    def test_forgotten(self):
        self.device.stream()
        self.device.event()
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_time_limit(self):
        stream, release = self.held_stream()
        self.assertFalse(stream.query())
        self.assertFalse(stream.synchronize(0))
        self.assertFalse(stream.synchronize(0.001))
        for wrong in (-1, float("nan")):
            with self.assertRaises(gpumem.InvalidArgument):
                stream.synchronize(wrong)
        release()
        self.assertTrue(stream.query())
        self.assertTrue(stream.synchronize(5))
        self.assertTrue(stream.synchronize(1e30))
        stream.close()

    def test_copies_in_order(self):
        with self.pinned(8) as source, self.device.memory(8) as middle, self.pinned(8) as target, \
                self.device.stream() as stream:
            source.buffer()[:] = b"in order"
            middle.fill(0, stream=stream)
            middle.copy_from(source, stream=stream)
            middle.copy_to(target, stream=stream)
            stream.synchronize()
            self.assertEqual(bytes(target.buffer()), b"in order")

    def test_values(self):
        with self.pinned(16) as memory, self.device.stream() as stream:
            memory.buffer()[:] = bytes(16)
            stream.write_value(memory, 0x11223344)
            stream.write_value(memory.view(offset=8), 1 << 40, 8)
            stream.wait_value(memory.host_pointer + 8, 1 << 40, 8, gpumem.WaitCondition.EQ)
            stream.synchronize()
            self.assertEqual(struct.unpack("=IIQ", bytes(memory.buffer())), (0x11223344, 0, 1 << 40))
            for wrong in (lambda: stream.write_value(memory.host_pointer + 1, 1),
                          lambda: stream.write_value(memory, 1, 2), lambda: stream.write_value(memory, -1),
                          lambda: stream.wait_value(memory, 1, condition=9)):
                with self.assertRaises(gpumem.InvalidArgument):
                    wrong()


class KeepingTest(Case):
    """The order of free is kept by the binding."""

    zeros = bytes(8)

    def test_close_while_a_copy_is_in_flight(self):
        stream, release = self.held_stream()
        source, target = self.pinned(64), self.device.memory(64)
        target.copy_from(source, stream=stream)
        for memory in (source, target):
            with self.assertRaises(gpumem.Busy) as caught:
                memory.close()
            self.assertEqual(caught.exception.name, "GPUMEM_ERROR_BUSY")
        release()
        source.close()
        target.close()
        stream.close()

    def test_forgotten_while_a_copy_is_in_flight(self):
        stream, release = self.held_stream()
        self.device.memory(64).copy_from(bytearray(b"\x5a" * 64), stream=stream)
        gc.collect()
        self.assertEqual(self.instance.kind_stats(Kind.DEVICE).live_count, 1)
        release()
        self.assertEqual(self.instance.kind_stats(Kind.DEVICE).live_count, 0)
        stream.close()

    def test_the_other_operand_is_kept(self):
        stream, release = self.held_stream()
        source = bytearray(range(64))
        with self.device.memory(64) as target:
            target.copy_from(source, stream=stream)
            with self.assertRaises(BufferError):
                source.clear()
            release()
            result = bytearray(64)
            target.copy_to(result)
            self.assertEqual(result, source)
        source.clear()
        stream.close()

    def test_everything_forgotten_while_in_flight(self):
        flag = self.pinned(4)
        flag.buffer()[:] = bytes(4)
        stream = self.device.stream()
        stream.wait_value(flag, 1)
        self.device.memory(64).copy_from(self.pinned(64), stream=stream)
        event = self.device.event()
        event.record(stream)
        del stream
        gc.collect()
        counts = [self.instance.kind_stats(kind).live_count for kind in (Kind.DEVICE, Kind.PINNED)]
        self.assertEqual((*counts, self.instance.stats().streams), (1, 2, 1))
        flag.buffer()[0] = 1
        while self.instance.stats().streams:  # which ends when the work does
            self.device.event().close()  # anything that creates looks for leftovers
        self.assertEqual(self.instance.kind_stats(Kind.DEVICE).live_count, 0)
        event.close()
        flag.close()

    def test_released_by_query_and_event(self):
        for observe in ("query", "event", "event query", "another stream"):
            with self.subTest(observe):
                stream, release = self.held_stream()
                memory = self.device.memory(64)
                memory.fill(1, stream=stream)
                with self.device.event() as event, self.device.stream() as other:
                    event.record(stream)
                    self.assertFalse(event.query())
                    self.assertFalse(event.synchronize(0))
                    other.wait_event(event)
                    with self.assertRaises(gpumem.Busy):
                        memory.close()
                    flag = next(iter(stream._queue.uses)).kept[0]
                    flag.buffer()[0] = 1
                    if observe == "query":
                        while not stream.query():
                            pass
                    elif observe == "event":
                        event.synchronize()
                    elif observe == "event query":
                        while not event.query():
                            pass
                    else:
                        other.synchronize()
                    memory.close()
                release()
                stream.close()

    def test_work_after_the_event_is_not_observed(self):
        stream, release = self.held_stream()
        flag = self.pinned(4)
        flag.buffer()[:] = bytes(4)
        memory = self.device.memory(64)
        with self.device.event() as event:
            event.record(stream)
            stream.wait_value(flag, 1)
            memory.fill(1, stream=stream)
            next(iter(stream._queue.uses)).kept[0].buffer()[0] = 1
            event.synchronize()
            self.assertEqual(memory._queues(), {stream._queue})
            with self.assertRaises(gpumem.Busy):
                memory.close()
            flag.buffer()[0] = 1
            release()
        memory.close()
        flag.close()
        stream.close()

    def test_a_failed_call_keeps_nothing(self):
        with self.device.memory(64) as memory, self.device.stream() as stream:
            with self.assertRaises(gpumem.InvalidArgument):
                stream.copy(memory, bytes(64), direction=3)
            self.assertEqual(stream._queue.uses, [])
            self.assertNotIn(stream._queue, _calls.active)

    def test_a_batch_of_regions_is_kept(self):
        stream, release = self.held_stream()
        source, target = self.pinned(64), self.device.memory(64)
        stream.copy_regions([CopyRegion(target, source, 8), CopyRegion(target, bytes(8), destination_offset=8)])
        self.assertEqual((source._queues(), target._queues()), ({stream._queue}, {stream._queue}))
        for memory in (source, target):
            with self.assertRaises(gpumem.Busy):
                memory.close()
        # A failed batch may be in the stream in part.
        other = self.device.memory(64)
        with self.assertRaises(gpumem.InvalidArgument):
            stream.copy_regions([CopyRegion(other, source, 8), CopyRegion(other, source, 8, direction="device_to_host")])
        with self.assertRaises(gpumem.Busy):
            other.close()
        release()
        for memory in (source, target, other):
            memory.close()
        with self.device.memory(64) as memory:
            with self.assertRaises(gpumem.InvalidArgument):
                stream.copy_regions([CopyRegion(memory, bytes(64), direction="device_to_host")])
            self.assertEqual((stream._queue.uses, memory._holds), ([], set()))
        stream.close()

    @on_host
    def test_a_batch_that_fails_midway(self):
        with self.device.memory(64) as memory, self.device.stream() as stream:
            for where in (self.instance, stream):
                seen, step = [], 0
                regions = [CopyRegion(memory, self.zeros, 8, destination_offset=8 * index) for index in range(4)]
                while not seen or seen[-1] is not False:
                    step += 1
                    host.fail_step(self.instance, step)
                    try:
                        where.copy_regions(regions)
                        seen.append(False)
                    except gpumem.Error as error:
                        seen.append(error.region)
                    finally:
                        host.fail_step(self.instance, 0)
                    stream.synchronize()
                    self.assertEqual((memory._holds, stream._queue.uses), (set(), []))
                self.assertTrue({0, 3} <= set(seen), seen)

    def test_a_stream_closes_after_its_work(self):
        with self.device.memory(64) as memory:
            stream = self.device.stream()
            memory.fill(1, stream=stream)
            stream.close()
            self.assertEqual(memory._holds, set())

    def test_close_by_force_forgets_what_was_in_flight(self):
        stream = self.device.stream()
        memory = self.device.memory(64)
        memory.fill(1, stream=stream)
        self.assertEqual(self.instance.close(force=True), 2)
        memory.close()
        stream.close()
        self.assertFalse(any(queue.device.instance is self.instance for queue in _calls.active))

    def test_many_uses_are_released_on_the_way(self):
        with self.device.memory(64) as memory, self.device.stream() as stream:
            # They are released when the stream has caught up with this thread. It gets the time to.
            fills, limit = 0, time.monotonic() + 120
            while fills < 5000 or len(stream._queue.uses) == fills and time.monotonic() < limit:
                memory.fill(1, stream=stream)
                fills += 1
                if fills > 5000:
                    time.sleep(0.001)
            self.assertLess(len(stream._queue.uses), fills)
            stream.synchronize()
            self.assertEqual((stream._queue.uses, memory._holds), ([], set()))


@on_host  # whose devices can be small
class ShortageTest(Case):
    """Memory that was dropped while work used it, where nobody has observed that the work is complete."""

    options = {"host": gpumem.HostOptions(device_count=1, device_bytes=8 << 20), "pin_budget": 8 << 20}

    def check(self, allocate, kind="device", problem=gpumem.OutOfDeviceMemory):
        with self.pinned(4) as flag, self.device.stream() as stream:
            flag.fill(0)
            stream.wait_value(flag, 1)
            self.device.memory(6 << 20, kind).fill(1, stream=stream)
            try:
                with self.assertRaisesRegex(problem, "; memory that was dropped while .*: synchronize them$"):  # it asks, and does not wait
                    allocate()
            finally:
                flag.view("u4")[0] = 1
            for _ in range(2):
                self.assertEqual(c.gpumem_stream_synchronize(stream.handle, c.GPUMEM_TIMEOUT_INFINITE, None), 0)
                allocate()
                self.assertEqual(stream._queue.uses, [])
                self.device.memory(6 << 20, kind).fill(1, stream=stream)

    def test_memory(self):
        self.check(lambda: self.device.memory(4 << 20).close())
        self.check(lambda: self.device.memory(4 << 20, name="name").close())
        self.check(lambda: self.instance.free(self.device.malloc("device", 4 << 20)))

    def test_nothing_to_free(self):
        with self.device.stream() as stream:
            _calls.active.add(stream._queue)  # as after an interrupt, with nothing that it keeps
            self.assertFalse(_calls.made_room(c.GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY))
            _calls.active.discard(stream._queue)

    def test_pinned_memory(self):
        self.check(lambda: self.pinned(4 << 20).close(), "pinned", gpumem.LimitExceeded)
        self.check(lambda: self.device.register(bytearray(4 << 20)).close(), "pinned", gpumem.LimitExceeded)

    def test_buffers(self):
        self.check(lambda: self.device.buffer(4 << 20).close())
        with self.device.buffer(0, reserve=16 << 20) as buffer:
            def grow():
                buffer.resize(4 << 20)
                buffer.resize(0)
                buffer.set_capacity()
            self.check(grow)

    def test_pools(self):
        self.check(lambda: self.device.pool(initial_size=4 << 20).close())
        with self.device.pool() as pool:
            for use in (lambda: pool.alloc(4 << 20).free(), lambda: pool.alloc(4 << 20, alignment=512).free(),
                        lambda: pool.free_batch(pool.alloc_batch([1 << 20, 3 << 20])), lambda: pool.free(pool.malloc(4 << 20))):
                def allocate(use=use):
                    use()
                    pool.trim()
                self.check(allocate)


class EventTest(Case):
    def test_info_and_close(self):
        event = self.device.event(flags=gpumem.EventFlags.DISABLE_TIMING, name="mine")
        self.assertEqual((event.info().flags, event.info().name, event.info().wrapped),
                         (gpumem.EventFlags.DISABLE_TIMING, "mine", False))
        self.assertTrue(event.query())
        event.close()
        event.close()
        with self.assertRaises(gpumem.StaleHandle):
            event.query()
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.event(flags=0x80)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.event(flags=1 << 32)  # which is one of 64 bits

    def test_time(self):
        stream, release = self.held_stream()
        with self.device.event() as start, self.device.event() as end:
            with self.assertRaises(gpumem.InvalidState):
                start.elapsed_time_ns(end)
            start.record(stream)
            end.record(stream)
            self.assertIsNone(start.elapsed_time_ns(end))
            release()
            end.synchronize()
            elapsed = start.elapsed_time_ns(end)
            self.assertIsInstance(elapsed, int)
            self.assertGreaterEqual(elapsed, 0)
            self.assertEqual(end.elapsed_time_ns(start), -elapsed)
        stream.close()

    def test_waiting_across_devices(self):
        stream, release = self.held_stream()
        with self.device.event() as event, self.instance.device(1).stream() as other:
            event.record(stream)
            other.wait_event(event)
            self.assertFalse(other.query())
            release()
            self.assertTrue(other.synchronize())
        stream.close()

    @on_host
    def test_no_native_events(self):
        with self.assertRaises(gpumem.Unsupported):
            gpumem.Event.wrap(self.device, 4096)

    @on_cuda
    def test_wrap(self):
        with self.device.event() as event, self.device.stream() as stream:
            with gpumem.Event.wrap(self.device, event.info().native_event) as wrapped:
                self.assertTrue(wrapped.info().wrapped)
                wrapped.record(stream)
                self.assertTrue(wrapped.synchronize())
            with gpumem.Stream.wrap(self.device, stream.native_stream) as wrapped:
                self.assertTrue(wrapped.info().wrapped)
                self.assertTrue(wrapped.synchronize())


class HostFunctionTest(Case):
    def test_runs_in_order(self):
        done = []
        stream, release = self.held_stream()
        stream.launch_host_function(done.append, 1)
        stream.launch_host_function(lambda: done.append(threading.get_ident()))
        stream.launch_host_function(done.append, 3)
        gc.collect()  # the functions are kept
        self.assertEqual(done, [])
        release()
        self.assertEqual((done[0], done[2]), (1, 3))
        self.assertNotEqual(done[1], threading.get_ident())
        self.assertEqual(_calls.pending.entries, {})
        stream.close()

    def test_exceptions_go_to_the_hook(self):
        def broken():
            raise ZeroDivisionError("of the test")
        with self.device.stream() as stream:
            stream.launch_host_function(broken)
            stream.launch_host_function(sys.exit, 3)
            stream.synchronize()
        self.assertEqual([seen.exc_type for seen in self.unraisable], [ZeroDivisionError, SystemExit])
        self.assertIs(self.unraisable[0].object, broken)
        self.unraisable.clear()

    def test_what_it_may_call(self):
        seen = []

        def inside(memory):
            seen.append(memory.info().size)
            try:
                self.device.memory(64)
            except gpumem.InvalidState:
                seen.append("refused")
        with self.device.memory(64) as memory, self.device.stream() as stream:
            stream.launch_host_function(inside, memory)
            stream.synchronize()
        self.assertEqual(seen, [64, "refused"])

    def test_objects_forgotten_inside_are_freed_later(self):
        kept = [self.device.memory(64)]
        with self.device.stream() as stream:
            stream.launch_host_function(kept.clear)
            stream.synchronize()
        self.assertEqual(kept, [])
        self.device.event().close()
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_wrong_arguments(self):
        with self.device.stream() as stream:
            with self.assertRaises(TypeError):
                stream.launch_host_function(7)
        with self.assertRaises(gpumem.StaleHandle):
            stream.launch_host_function(print)
        self.assertEqual(_calls.pending.entries, {})


@on_cuda
class SimulationOnCudaTest(Case):
    def test_unsupported(self):
        with self.device.stream() as stream:
            for call in (lambda: host.launch(stream, print), lambda: host.native_stream_create(self.device),
                         lambda: host.native_stream_destroy(self.device, 1), lambda: host.set_capturing(stream, 1),
                         lambda: host.lose(self.device), lambda: host.fail_step(self.instance, 1),
                         lambda: host.foreign_alloc(self.device, Kind.DEVICE, 64),
                         lambda: host.foreign_free(self.device, 4096),
                         lambda: host.foreign_peer_access(self.device, self.instance.device(1), 1)):
                with self.assertRaises(gpumem.Unsupported):
                    call()


@on_host
class SimulationTest(Case):
    def test_kernel(self):
        def square(kernel, memory):
            view = kernel.view(memory).cast("I")
            for index, value in enumerate(view):
                view[index] = value * value
            view.release()
        with self.device.memory(16) as memory, self.device.stream() as stream:
            memory.copy_from(struct.pack("=4I", 1, 2, 3, 4))
            host.launch(stream, square, memory)
            stream.synchronize()
            result = bytearray(16)
            memory.copy_to(result)
            self.assertEqual(struct.unpack("=4I", result), (1, 4, 9, 16))

    def test_a_view_ends_with_its_kernel(self):
        kept = []
        with self.device.memory(16) as memory, self.device.stream() as stream:
            host.launch(stream, lambda kernel: kept.append(kernel.view(memory, access=gpumem.Access.READ)))
            stream.synchronize()
            self.assertTrue(kept)
            with self.assertRaises(ValueError):
                kept[0][0]

    def test_a_slice_ends_with_its_kernel(self):
        kept = []
        with self.device.memory(16) as memory, self.device.stream() as stream:
            host.launch(stream, lambda kernel: kept.extend((kernel.view(memory)[1:], kernel.view(memory).cast("I")[2:][1:])))
            stream.synchronize()
            self.assertEqual(len(kept), 2)
            for view in kept:
                with self.assertRaises(ValueError):
                    view[0]

    def test_a_fault_loses_the_device(self):
        seen = threading.Event()

        def fault(kernel):
            try:
                kernel.view(4096, 8)
            except gpumem.DeviceLost:
                seen.set()
        memory, stream = self.device.memory(64), self.device.stream()
        host.launch(stream, fault)
        with self.assertRaises(gpumem.DeviceLost):
            stream.synchronize()
        self.assertTrue(seen.wait(10), "the wait may end before the kernel does")
        self.assertTrue(self.device.info().lost)
        memory.close()
        stream.close()

    def test_a_lost_device_lets_go(self):
        stream, _ = self.held_stream()
        memory = self.device.memory(64)
        memory.fill(1, stream=stream)
        stream.launch_host_function(self.fail)  # which is not run
        host.lose(self.device)
        with self.assertRaises(gpumem.DeviceLost):
            stream.synchronize()
        memory.close()
        stream.close()
        self.instance.close(force=True)
        self.assertEqual(_calls.pending.entries, {})

    def test_native_streams(self):
        native = host.native_stream_create(self.device)
        with gpumem.Stream.wrap(self.device, native) as stream:
            self.assertEqual((stream.info().wrapped, stream.native_stream), (True, native))
            with self.assertRaises(gpumem.Busy):
                host.native_stream_destroy(self.device, native)
        host.native_stream_destroy(self.device, native)
        with self.assertRaises(gpumem.NotFound):
            host.native_stream_destroy(self.device, native)

    def test_capturing(self):
        with self.device.stream() as stream, self.device.memory(64) as memory:
            host.set_capturing(stream, True)
            memory.fill(1, stream=stream)  # which never runs: nobody launches the graph
            with self.assertRaisesRegex(gpumem.InvalidState, "at each launch"):
                stream.launch_host_function(self.fail)
            with self.assertRaises(gpumem.InvalidState):
                stream.query()
            host.set_capturing(stream, False)
            stream.synchronize()
            self.assertEqual(_calls.pending.entries, {})

    def test_failing_steps(self):
        step, failures = 0, 0
        while True:
            step += 1
            host.fail_step(self.instance, step)
            try:
                with self.device.memory(4096), self.pinned(), self.device.stream() as stream:
                    stream.synchronize()
                break
            except gpumem.Error:
                failures += 1
            finally:
                host.fail_step(self.instance, 0)
            self.assertEqual(self.instance.stats().live_objects, 0)
        self.assertGreater(failures, 2)

    def test_foreign_memory(self):
        pointer = host.foreign_alloc(self.device, Kind.DEVICE, 4096)
        self.assertEqual(self.instance.pointer_info(pointer).kind, Kind.FOREIGN)
        host.foreign_free(self.device, pointer)
        peer = self.instance.device(1)
        host.foreign_peer_access(self.device, peer, True)
        host.foreign_peer_access(self.device, peer, False)

    def test_current_device(self):
        self.assertEqual(host.set_current_device(1), -1)
        self.device.memory(64).close()
        self.assertEqual(host.set_current_device(-1), 1)
        with self.assertRaises(gpumem.InvalidArgument):
            host.set_current_device(64)
