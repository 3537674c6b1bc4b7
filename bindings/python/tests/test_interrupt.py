# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ctrl-C in a wait that would not end: it is answered, and what the call uses stays alive until the call is done."""

import asyncio
import ctypes
import faulthandler
import functools
import gc
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
import types
import weakref
import _thread
from unittest import mock

import gpumem
from gpumem import _library as c
from gpumem import _buffers, _calls, _operands, _pool, _sleeping, _stream, _waits

from .support import Case, needs_numpy, on_cuda, on_host

LIMIT = 10  # seconds after which no answer will come; the machine may be busy


def main_thread_sleeps():
    """Whether the main thread waits in the kernel."""
    with open(f"/proc/self/task/{os.getpid()}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


class Raised(BaseException):
    pass


class Expired(Exception):
    """What the handler of an alarm raises."""


def call_traced(module, function, at_line):
    """Calls a function, and `at_line` at each entry and line that runs of the module or package, as a signal handler could come
    there."""
    path = module.__file__.replace("__init__.py", "")

    def handle(frame, event, argument):
        if not frame.f_code.co_filename.startswith(path):
            return None
        if event in ("call", "line"):
            at_line()
        return handle
    former = sys.gettrace()
    sys.settrace(handle)
    try:
        function()
    finally:
        sys.settrace(former)


def raises_at(limit, module, function, problem=Raised):
    """Calls a function, at a line of which in the module or package a signal handler raises; false if it has not so many
    lines."""
    lines, raised = itertools.count(1), []

    def at_line():
        if next(lines) == limit:
            raised.append(limit)
            raise problem
    with mock.patch.object(sys, "unraisablehook", lambda _: None):  # for what is raised in a finalizer
        try:
            call_traced(module, function, at_line)
        except problem:
            pass
    return bool(raised)


class Blocker:
    """A C function that does not return before `release`, and does not care about signals."""

    def __init__(self, then=None):
        self.mutex, self.then = ctypes.create_string_buffer(256), then
        self.library = ctypes.CDLL(None)
        self.library.pthread_mutex_lock(self.mutex)
        self.entered, self.left = threading.Event(), threading.Event()

    def __call__(self, *arguments):
        self.entered.set()
        self.library.pthread_mutex_lock(self.mutex)
        self.library.pthread_mutex_unlock(self.mutex)
        status = self.then(*arguments) if self.then else 0
        self.left.set()
        return status

    def release(self):
        self.library.pthread_mutex_unlock(self.mutex)


class InterruptTest(Case):
    def setUp(self):
        super().setUp()
        self.assertIs(threading.current_thread(), threading.main_thread())
        self.former = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(lambda: signal.signal(signal.SIGINT, self.former))

    def interrupted(self, function, *, entered=None):
        """Presses Ctrl-C once the function waits, and expects KeyboardInterrupt from it."""
        over = threading.Event()

        def press():
            if entered is not None:
                entered.wait(LIMIT)
            asleep = 0  # on a busy machine it may take a while until the main thread comes to the wait
            while asleep < 10:
                asleep = asleep + 1 if main_thread_sleeps() else 0
                if over.wait(0.01):
                    return
            os.kill(os.getpid(), signal.SIGINT)
            if not over.wait(LIMIT):
                os.write(2, f"{self.id()}: Ctrl-C was not answered\n".encode())
                os._exit(3)  # nothing else can end this wait
        thread = threading.Thread(target=press)
        thread.start()
        try:
            with self.assertRaises(KeyboardInterrupt):
                function()
        finally:
            over.set()
            thread.join()

    def test_another_thread_keeps_nothing_of_a_call_that_has_returned(self):
        go = threading.Event()

        class Lock:
            def __init__(self):
                self.lock = threading.Lock()
                self.acquire = self.lock.acquire

            def release(self):
                self.lock.release()
                go.wait(LIMIT)  # the thread does not come to its end meanwhile

        class Used:
            pass
        used = [Used(), Used()]
        alive = [weakref.ref(one) for one in used]
        self.addCleanup(go.set)
        with mock.patch.object(_waits, "threading", types.SimpleNamespace(Lock=Lock)):
            result = _waits.aside(lambda given=used.pop(): (given, used.pop())[1])
        self.assertIsNone(alive[1]())
        del result
        self.assertIsNone(alive[0]())

    def test_a_signal_handler_may_use_the_stream_wherever_it_comes(self):
        stream, memory = self.device.stream(), self.device.memory(64)
        calls = 0

        def query():
            nonlocal calls
            stream.query()
            calls += 1

        def work():
            for _ in range(20):
                for _ in range(5):
                    memory.fill(1, stream=stream)
                stream.synchronize()
        faulthandler.dump_traceback_later(LIMIT, exit=True)  # nothing else can end a thread that waits for itself
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        call_traced(_stream, work, query)
        self.assertGreater(calls, 1000)
        memory.close()  # which nothing holds any more
        stream.close()

    def test_no_block_is_freed_twice_by_an_interrupted_free(self):
        """A signal handler raises at each line in turn, and then the block is dropped."""
        def free_batch(pool, blocks):
            pool.free_batch(blocks)

        def free_each(_, blocks):
            for block in blocks:
                block.free()

        instance = gpumem.Instance("host")
        # Whether a block whose free was interrupted is free is not known, and so it may stay.
        self.addCleanup(instance.close, force=True)
        for free in (free_each, free_batch):
            for limit in range(1, 200):
                with instance.device(0).pool("pageable") as pool:
                    blocks = [pool.alloc(100) for _ in range(3)]
                    raised = raises_at(limit, _pool, functools.partial(free, pool, blocks))
                    others = [pool.alloc(100) for _ in range(3)]
                    del blocks
                    more = [pool.alloc(100) for _ in range(6)]
                    addresses = [int(block) for block in others + more]
                    self.assertEqual(len(set(addresses)), len(addresses), f"{free.__name__}, line {limit}")
                if not raised:
                    break
            self.assertFalse(raised, "there are more lines")

    def raise_at_each_line(self, function, after):
        """A signal handler raises at each line in turn of a function, and then ``after`` is called."""
        for problem in (Raised, Expired):
            for limit in itertools.count(1):
                raised = raises_at(limit, gpumem, function, problem)
                after(limit)
                if not raised:
                    break

    def test_nothing_is_left_of_what_is_made_and_dropped(self):
        data = bytearray(8192)

        def closed():
            for make in (self.device.stream, self.device.event, lambda: self.device.memory(64)):
                make().close()

        def used_in_a_stream():
            with self.device.stream() as stream, self.device.event() as event, self.device.memory(64) as memory:
                memory.fill(1, stream=stream)
                event.record(stream)
                event.synchronize()

        def mapped():
            with self.instance.reserve(2 * unit) as addresses:
                with self.device.physical(unit) as physical:
                    addresses.map(0, physical)
                    addresses.map(unit, physical)
                addresses.set_access(0, 2 * unit, {self.device: "readwrite"})
                addresses.part(0, 8).fill(1)
                addresses.unmap(unit, unit)

        def slept():
            with self.instance.group() as group, self.device.buffer(64, group=group) as buffer:
                buffer.sleep("pageable")
                group.wake()
        handed_over = [lambda: self.pinned(64).__dlpack__(), lambda: self.pinned(64).__dlpack__(dl_device=(1, 0), max_version=(1, 0)),
                       lambda: self.pinned(64).__dlpack__(copy=True), lambda: gpumem.from_dlpack(self.pinned(64).view("f4")),
                       lambda: self.pinned(64).__arrow_c_device_array__(), lambda: gpumem.from_arrow(self.pinned(64))]
        unit = self.device.physical_granularity().recommended
        self.device.register(data).close()  # the first one tries out whether it can be done
        for make in (self.device.stream, self.device.event, lambda: self.device.memory(64), lambda: self.pinned(64, name="name"),
                     lambda: self.device.register(data), self.device.buffer, self.instance.group, self.device.pool,
                     lambda: self.instance.reserve(1 << 21), lambda: self.device.physical(1 << 21),
                     lambda: self.device.memory(64).view()[2:5], closed, used_in_a_stream, mapped, slept, *handed_over):
            def gone(limit, make=make):
                end = time.monotonic() + 60
                while self.instance.stats().live_objects:  # for as long as work is in flight
                    self.device.event().close()  # anything that creates looks for leftovers
                    self.assertLess(time.monotonic(), end, f"{make}, line {limit}")
            self.raise_at_each_line(make, gone)

    def test_the_end_of_what_was_imported_is_not_interrupted(self):
        """No function of Python runs then, at whose entry the handler of a signal would."""
        with self.pinned(64) as memory:
            for take in gpumem.from_arrow, gpumem.from_dlpack:
                view, called = take(memory.view("f4")), []
                sys.setprofile(lambda frame, event, _, called=called: called.append(frame.f_code.co_name) if event == "call" else None)
                try:
                    view = None
                finally:
                    sys.setprofile(None)
                self.assertEqual((view, called), (None, []))

    def test_what_a_finalizer_left_over_holds_nothing(self):
        """A buffer whose finalizer was interrupted has a view, which nobody else can drop."""
        def leave(memory):
            operand = [_operands.host_buffer(memory.buffer(), False)]

            def handle(_, event, __):
                if event == "call":
                    raise Raised
            sys.setprofile(handle)
            try:
                operand.clear()
            finally:
                sys.setprofile(None)
            self.assertEqual([args.exc_type for args in self.unraisable], [Raised])
            self.unraisable.clear()
            self.assertEqual(len(_calls.leftovers), 1)
        pool = self.device.pool("pinned")
        memory, block, buffer = self.pinned(64), pool.alloc(64), self.device.buffer(64, location="host")
        for end in memory.close, block.free, buffer.close:
            leave(end.__self__)
            end()
        memory = self.pinned(64)
        leave(memory)
        memory.view().free()
        memory = self.pinned(64)
        leave(memory)
        self.instance.free(int(memory))
        memory.close()
        buffer, before = self.device.buffer(64, location="host"), []
        for set_callbacks in False, True:
            if set_callbacks:
                buffer.set_callbacks(before.append)
            leave(buffer)
            buffer.sleep("pageable")
            buffer.wake()
        self.assertEqual(before, [buffer])
        before.clear()
        leave(buffer)
        buffer.resize(8)
        buffer.close()
        with self.instance.reserve(1 << 21) as addresses, self.device.physical(1 << 21, "host") as physical:
            addresses.map(0, physical)
            addresses.set_access(0, 1 << 21, {"host": "readwrite"})
            part = addresses.part()
            leave(part)
            addresses.unmap(0, 1 << 21)
            del part
        pool.close()
        self.assertEqual(len(_calls.leftovers), 0)

    @needs_numpy  # without it, this raises in an except clause, whose exception Python then handles for ever
    def test_rows_are_added_whole_or_not_at_all(self):
        with gpumem.GrowableArray(2, "u1", device=self.device, reserve=1 << 22) as rows:
            for add, whole in ((lambda: rows.append(7), b"\0\0\7"), (lambda: rows.extend(bytes(range(1, 200))), b"\0\0" + bytes(range(1, 200))),
                               (lambda: rows.resize(5), bytes(5))):
                def unchanged(limit, whole=whole):
                    self.assertIn(bytes(rows.view().buffer()), (bytes(2), whole), f"line {limit}")
                    rows.resize(2)
                rows.append(9)  # where the new ones come, there are other bytes
                rows.resize(2)
                self.raise_at_each_line(add, unchanged)

    def test_rows_that_cannot_be_taken_back_do_not_count(self):
        """Ctrl-C ends the wait for a large growth, which goes on."""
        count = 2 * _waits.LARGE
        with gpumem.GrowableArray(1, "u1", device=self.device, reserve=4 * count) as rows:
            blocker = Blocker(c.gpumem_buffer_resize)
            with mock.patch.object(c, "gpumem_buffer_resize", blocker), mock.patch.object(c, "gpumem_buffer_set_capacity", lambda *_: 0):
                self.interrupted(lambda: rows.resize(count), entered=blocker.entered)
            self.assertEqual((len(rows), rows.nbytes), (1, 1))
            with self.assertRaises(gpumem.Busy):
                rows.append(1)
            blocker.release()
            self.settled(rows.buffer)
            self.assertEqual((rows.buffer.size, len(rows), bytes(rows.view().buffer())), (count, 1, b"\0"))
            rows.append(3)
            self.assertEqual((rows.buffer.size, bytes(rows.view().buffer())), (2, b"\0\3"))

    def test_memory_can_be_closed_after_an_interrupt_where_it_was_used(self):
        stream = self.device.stream()

        def view():
            memory.view("u1", (8, 8))[2:5]

        def fill():
            memory.fill(1)

        def enqueue():
            memory.fill(1, stream=stream)

        def closable(limit):
            nonlocal memory
            stream.synchronize()
            memory.close()
            self.assertTrue(memory.closed)
            memory = self.device.memory(64)
        memory = self.device.memory(64)
        for use in (view, fill, enqueue):
            self.raise_at_each_line(use, closable)
        memory.close()
        stream.close()

    def test_memory_can_be_closed_after_an_interrupt_where_its_end_began(self):
        """Python runs signal handlers at the entry of a function. One that uses the memory meanwhile waits for its end."""
        for memory, act in ((self.device.memory(4096), "close"), (self.device.register(bytearray(4096)), "_unregister")):
            with mock.patch.object(gpumem.Memory, "_end", mock.Mock(side_effect=KeyboardInterrupt)):
                with self.assertRaises(KeyboardInterrupt):
                    getattr(memory, act)()
            self.assertFalse(memory.closed)
            thread = threading.Thread(target=memory.fill, args=(1,), daemon=True)
            thread.start()
            thread.join(LIMIT)
            self.assertFalse(thread.is_alive())
            memory.close()

    def test_no_block_is_lost_by_an_interrupt(self):
        instance = gpumem.Instance("host")
        self.addCleanup(instance.close, force=True)
        pool = instance.device(0).pool("pageable")
        stream = instance.device(0).stream()

        def in_a_stream():
            with pool.alloc(100, stream) as block:
                block.fill(1, stream=stream)
            stream.synchronize()
        for use in (lambda: pool.alloc(100), lambda: pool.alloc(100, alignment=4096), lambda: pool.alloc_batch([100, 0, 100]),
                    lambda: pool.alloc(100).free(), lambda: pool.free_batch(pool.alloc_batch([100] * 3)), in_a_stream):
            lines = []
            left = pool.info().live_count

            def count(limit):
                nonlocal left
                stream.synchronize()
                instance.device(0).event().close()
                if pool.info().live_count != left:
                    left += 1
                    lines.append(limit)
                self.assertEqual(pool.info().live_count, left, f"line {limit}")
                blocks = [pool.alloc(100) for _ in range(6)]
                self.assertEqual(len({int(block) for block in blocks}), 6)
            self.raise_at_each_line(use, count)
            # Before the call that frees it is noted that a block is freed. Between these two lines no signal handler runs.
            self.assertLessEqual(len(lines), 6, lines)  # of two exceptions

    def test_a_buffer_is_not_being_changed_for_ever_after_an_interrupted_change(self):
        for limit in range(1, 300):
            with self.device.buffer(1000, reserve=1 << 24) as buffer:
                raised = raises_at(limit, _buffers, functools.partial(buffer.resize, 3_000_000))
                buffer.resize(5000)
                self.assertEqual(buffer.size, 5000, f"line {limit}")
            if not raised:
                break
        self.assertFalse(raised, "there are more lines")

    def test_a_thread_that_was_started_does_its_work(self):
        """Whatever a signal handler raises as it starts, also where the module threading takes it for a failure."""
        known = threading.enumerate()
        with self.device.buffer(4096) as buffer:
            for limit in itertools.count(1):
                raised = raises_at(limit, threading, functools.partial(buffer.sleep, "pageable"), Expired)
                self.settled(buffer)
                self.assertEqual(set(threading.enumerate()) - set(known), set())
                if buffer.asleep:
                    buffer.wake()
                if not raised:
                    break

    def test_each_slice_is_short(self):
        self.assertLessEqual(_waits._SLICE, 100_000_000)
        self.assertLessEqual(_waits._SLICE_OF_A_GPU, 100_000_000)

    def test_synchronize(self):
        stream, release = self.held_stream()
        memory = self.device.memory(64)
        memory.fill(1, stream=stream)
        with self.device.event() as event:
            event.record(stream)
            for wait in (stream.synchronize, lambda: stream.synchronize(1e6), event.synchronize,
                         lambda: event.synchronize(1e6), stream.close):
                self.interrupted(wait)
                self.assertFalse(stream.closed)
                with self.assertRaises(gpumem.Busy):
                    memory.close()
        release()
        memory.close()
        stream.close()

    def test_a_coroutine_that_asks_ends(self):
        """The loop of the guide: neither asyncio nor the end of the block waits for work that never ends."""
        async def complete(work):
            while not work.query():
                await asyncio.sleep(0.001)

        async def pressed(work):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            await complete(work)

        stream, release = self.held_stream()
        with self.device.event() as event:
            event.record(stream)
            for work in (stream, event):
                with self.assertRaises(KeyboardInterrupt):
                    asyncio.run(pressed(work))
                with self.assertRaises(asyncio.TimeoutError):
                    asyncio.run(asyncio.wait_for(complete(work), 0.01))
            release()
            asyncio.run(complete(event))
        stream.close()

    def test_time_limits_hold(self):
        stream, release = self.held_stream()
        start = time.monotonic()
        self.assertFalse(stream.synchronize(0.12))
        self.assertGreaterEqual(time.monotonic() - start, 0.12)
        release()
        stream.close()

    def test_other_threads_wait_in_one_call(self):
        stream, release = self.held_stream()
        calls, answers = [], []
        original = c.gpumem_stream_synchronize

        def counted(*arguments):
            calls.append(arguments)
            return original(*arguments)
        with mock.patch.object(c, "gpumem_stream_synchronize", counted):
            thread = threading.Thread(target=lambda: answers.append(stream.synchronize()))
            thread.start()
            time.sleep(0.2)
            stream._queue.uses[0].kept[0].buffer()[0] = 1
            thread.join()
        self.assertEqual((len(calls), answers), (1, [True]))
        release()
        stream.close()

    def test_after_ctrl_c_a_with_block_does_not_wait(self):
        flag = self.pinned(4)
        flag.buffer()[:] = bytes(4)
        memory = self.device.memory(64)

        def block():
            with self.device.stream() as stream, self.device.event() as event, memory:
                memory.fill(1, stream=stream)
                stream.wait_value(flag, 1)
                memory.fill(2, stream=stream)
                event.record(stream)
                stream.synchronize()
        self.interrupted(block)
        self.assertFalse(memory.closed)  # the work still uses it
        flag.buffer()[0] = 1
        while self.instance.stats().streams:
            self.device.event().close()  # anything that creates looks for leftovers
        memory.close()
        flag.close()

    def test_an_instance_does_not_wait_after_ctrl_c(self):
        kept = []

        def block():
            with gpumem.Instance(self.instance.backend) as instance:
                device = instance.device(0)
                flag, stream = device.memory(4, "pinned"), device.stream()
                flag.fill(0)
                kept.extend((instance, flag, stream))
                stream.wait_value(flag.host_pointer, 1)
                stream.synchronize()
        self.interrupted(block)
        instance, flag, stream = kept
        self.assertFalse(instance.closed)
        self.interrupted(lambda: instance.close(force=True))
        self.assertFalse(instance.closed)
        flag.buffer()[0] = 1
        self.assertEqual(instance.close(force=True), 2)

    @on_host
    def test_an_instance_that_shares_events_goes_on_closing_after_ctrl_c(self):
        instance = gpumem.Instance(self.instance.backend)
        device = instance.device(0)
        device.event(flags="interprocess|disable_timing").export()
        flag, stream, array = device.memory(4, "pinned"), device.stream(), bytearray(4096)
        registered, address = device.register(array), flag.host_pointer
        flag.fill(0)
        stream.wait_value(address, 1)
        registered.fill(7, stream=stream)
        self.interrupted(functools.partial(instance.close, force=True))
        self.assertTrue(instance.closed)
        self.assertEqual(instance.close(force=True), 0)
        with self.assertRaises(BufferError):
            array.append(0)  # the work may still use it
        ctypes.c_uint32.from_address(address).value = 1
        alive = weakref.ref(instance)
        del instance, device, flag, stream, registered
        while alive() is not None:
            self.device.event().close()  # anything that creates looks for leftovers
        self.assertEqual(bytes(array), b"\7" * 4096)
        array.append(0)

    def test_a_large_copy(self):
        size = _waits.LARGE
        for name, work in (("gpumem_copy", lambda memory, data: memory.copy_from(data)),
                           ("gpumem_copy_2d", lambda memory, data: self.instance.copy_2d(memory, 1024, data, 1024, 1024,
                                                                                        size // 1024)),
                           ("gpumem_copy_regions",
                            lambda memory, data: self.instance.copy_regions([gpumem.CopyRegion(memory, data)])),
                           ("gpumem_fill", lambda memory, data: memory.fill(1))):
            with self.subTest(name):
                memory, data = self.device.memory(size), bytearray(size)
                blocker = Blocker(getattr(c, name))
                with mock.patch.object(c, name, blocker):
                    self.interrupted(lambda: work(memory, data), entered=blocker.entered)
                with self.assertRaises(BufferError):
                    memory.close()
                if name != "gpumem_fill":
                    with self.assertRaises(BufferError):
                        data.clear()
                blocker.release()
                self.assertTrue(blocker.left.wait(LIMIT))
                end = time.monotonic() + LIMIT
                while memory._holds and time.monotonic() < end:
                    time.sleep(0.001)
                memory.close()
                end = time.monotonic() + LIMIT
                while data and time.monotonic() < end:
                    try:
                        data.clear()
                    except BufferError:
                        time.sleep(0.001)
                self.assertFalse(data)

    def test_a_large_copy_reports_what_fails(self):
        memory, data = self.device.memory(_waits.LARGE), bytearray(_waits.LARGE)
        with self.assertRaises(gpumem.InvalidArgument) as caught:
            self.instance.copy(memory, data, direction="device_to_host")
        self.assertEqual(caught.exception.function, "gpumem_copy")
        data[-1] = 7
        memory.copy_from(data)
        back = bytearray(_waits.LARGE)
        memory.copy_to(back)
        self.assertEqual(back, data)
        memory.close()

    def test_a_copy_that_cannot_have_a_thread(self):
        memory, data = self.device.memory(_waits.LARGE), bytearray(_waits.LARGE)

        former = threading.stack_size(1 << 60)  # more than there are addresses
        try:
            self.assertFalse(_waits.started(print))
            memory.copy_from(data)
            with self.device.buffer(4096) as buffer:
                heard = []
                buffer.sleep(progress=lambda *arguments: heard.append(arguments))
                self.assertEqual(heard[-1], (4096, 4096))
        finally:
            threading.stack_size(former)
        memory.close()

    def test_memory_that_comes_after_ctrl_c_is_freed(self):
        size = 4 * _waits.LARGE
        blocker = Blocker(c.memory_create_prepared)
        with mock.patch.object(c, "memory_create_prepared", blocker):
            self.interrupted(lambda: self.pinned(size, name="late"), entered=blocker.entered)
        blocker.release()
        self.assertTrue(blocker.left.wait(LIMIT))
        end = time.monotonic() + LIMIT
        while self.instance.stats().live_count and time.monotonic() < end:
            time.sleep(0.001)
        self.assertEqual(self.instance.stats().live_count, 0)
        with self.pinned(64) as memory:
            self.assertEqual(memory.name, "")

    def test_a_registration_that_comes_after_ctrl_c_is_undone(self):
        data = bytearray(_waits.LARGE)
        blocker = Blocker(c.gpumem_memory_register)
        with mock.patch.object(c, "gpumem_memory_register", blocker):
            self.interrupted(lambda: self.device.register(data), entered=blocker.entered)
        with self.assertRaises(BufferError):
            data.clear()
        blocker.release()
        self.assertTrue(blocker.left.wait(LIMIT))
        end = time.monotonic() + LIMIT
        while data and time.monotonic() < end:
            try:
                data.clear()
            except BufferError:
                time.sleep(0.001)
        self.assertEqual((len(data), self.instance.stats().live_count), (0, 0))

    def test_a_large_change_of_a_buffer(self):
        buffer = self.device.buffer(1, reserve=2 * _waits.LARGE)
        view = buffer.view()
        blocker = Blocker(c.gpumem_buffer_resize)
        with mock.patch.object(c, "gpumem_buffer_resize", blocker):
            self.interrupted(lambda: buffer.resize(2 * _waits.LARGE), entered=blocker.entered)
        self.assertEqual((view.nbytes, buffer._changing), (1, True))
        for call in (buffer.view, buffer.close, buffer.sleep, lambda: buffer.resize(1), lambda: buffer.fill(0)):
            with self.assertRaisesRegex(gpumem.Busy, "is being changed"):
                call()
        blocker.release()
        self.assertTrue(blocker.left.wait(LIMIT))
        end = time.monotonic() + LIMIT
        while buffer._changing and time.monotonic() < end:
            time.sleep(0.001)
        self.assertEqual((buffer.size, buffer.view().nbytes), (2 * _waits.LARGE, 2 * _waits.LARGE))
        with self.assertRaises(BufferError):
            buffer.close()
        del view
        buffer.close()

    def test_a_change_of_a_buffer_that_never_began(self):
        """Ctrl-C comes before the thread has made the call, which is then not made."""
        def interrupted(function):
            later.append(function)
            raise KeyboardInterrupt
        later = []
        with self.device.buffer(1, reserve=2 * _waits.LARGE) as buffer:
            with mock.patch.object(_buffers, "aside", interrupted), self.assertRaises(KeyboardInterrupt):
                buffer.resize(2 * _waits.LARGE)
            later.pop()()
            self.assertEqual((buffer.info().size, buffer._changing), (1, False))
            buffer.resize(2)

    def press(self, *_):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            time.sleep(0)

    def settled(self, buffer):
        end = time.monotonic() + LIMIT
        while buffer._changing and time.monotonic() < end:
            time.sleep(0.001)
        self.assertFalse(buffer._changing)

    def test_ctrl_c_in_a_function_of_the_user_cancels_a_sleep(self):
        with self.device.buffer(4096) as buffer:
            buffer.fill(7)
            with self.assertRaises(KeyboardInterrupt):
                buffer.sleep(progress=self.press)
            self.assertEqual((buffer.state, buffer._changing), (gpumem.BufferState.AWAKE, False))
            buffer.set_callbacks(self.press)
            with self.assertRaises(KeyboardInterrupt):
                buffer.sleep()
            self.assertEqual((buffer.asleep, buffer._changing), (False, False))
            buffer.set_callbacks()
            buffer.sleep()
            with self.assertRaises(KeyboardInterrupt):
                buffer.wake(progress=self.press)
            self.assertEqual((buffer.asleep, buffer._changing), (True, False))
            buffer.set_callbacks(None, self.press)
            with self.assertRaises(KeyboardInterrupt):
                buffer.wake()
            self.assertFalse(buffer.asleep)
            back = bytearray(2)
            buffer.copy_to(back, 2)
            self.assertEqual(back, b"\7\7")

    def test_the_library_calls_no_function_on_the_main_thread(self):
        """What a signal handler raised at its entry would be lost."""
        calls, heard = [], []

        def watch(function):
            def call(handle, desc, *arguments):
                calls.append((_waits.on_main_thread(), bool(desc.progress)))
                return function(handle, desc, *arguments)
            return call

        def listen(*_):
            heard.append(_waits.on_main_thread())
        with self.device.buffer(4096) as buffer, tempfile.TemporaryFile(buffering=0) as file:
            file.truncate(4096)
            for name, act in (("gpumem_buffer_sleep", lambda **more: buffer.sleep("pageable", idle=True, **more)),
                              ("gpumem_buffer_wake", buffer.wake),
                              ("gpumem_copy_file", lambda **more: self.instance.read_file(bytearray(4096), file, **more))):
                for more in ({}, {"progress": listen}):
                    with self.subTest(name, more=more), mock.patch.object(c, name, watch(getattr(c, name))):
                        if name == "gpumem_buffer_wake" and not buffer.asleep:
                            buffer.sleep("pageable", idle=True)
                        elif name == "gpumem_buffer_sleep" and buffer.asleep:
                            buffer.wake()
                        calls.clear()
                        act(**more)
                        self.assertEqual(calls, [(not more, bool(more))])
            buffer.set_callbacks(listen, listen)
            with mock.patch.object(c, "gpumem_buffer_sleep", watch(c.gpumem_buffer_sleep)), \
                    mock.patch.object(c, "gpumem_buffer_wake", watch(c.gpumem_buffer_wake)):
                buffer.sleep("pageable", idle=True)
                buffer.wake()
            self.assertEqual([main for main, _ in calls], [False, False, False])
        self.assertEqual(set(heard), {True})

    def test_work_that_was_enqueued_is_noted_whatever_a_signal_handler_raises(self):
        for problem in (Raised, Expired):
            def interrupted(*arguments, problem=problem, call=_stream.call):
                call(*arguments)
                if arguments[0] is not c.gpumem_stream_get_capture_id:  # which enqueues nothing
                    raise problem
            with self.subTest(problem.__name__), self.device.stream() as stream, self.pinned(4) as word, self.device.memory(64) as memory:
                word.fill(0)
                stream.wait_value(word, 1)
                ran = []
                with mock.patch.object(_stream, "call", interrupted):
                    with self.assertRaises(problem):
                        memory.fill(1, stream=stream)
                    with self.assertRaises(problem):
                        stream.launch_host_function(lambda ran=ran: ran.append(1))
                self.assertRaises(gpumem.Busy, memory.close)
                word.view("u4")[0] = 1
                stream.synchronize()
                self.assertEqual(ran, [1])

    def test_no_signal_is_lost_in_a_sleep_or_wake(self):
        """One comes at any moment, also while the library is about to call a function."""
        class Alarm(KeyboardInterrupt):
            pass
        raising, fired = [], 0

        def handle(*_):
            nonlocal fired
            if raising:
                fired += 1
                raise raising.pop()
        former = signal.signal(signal.SIGALRM, handle)
        self.addCleanup(signal.signal, signal.SIGALRM, former)
        buffer = self.device.buffer(4096)
        gc.disable()  # nothing is raised out of a finalizer
        self.addCleanup(gc.enable)

        def work(turn):
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + turn % 100))
            while raising:
                if buffer.asleep:
                    buffer.wake(progress=(lambda *_: None) if turn % 3 else None)
                else:
                    buffer.sleep("pageable", idle=bool(turn % 4))
        for turn in range(600):
            before, raised = fired, False
            raising[:] = [Alarm if turn % 2 else Expired]
            try:
                work(turn)
            except (Alarm, Expired):
                raised = True
            self.assertEqual((fired - before, raised), (1, True))
            self.settled(buffer)
            self.assertEqual(_calls.calling_back, set())  # or nothing would be destroyed here any more
        buffer.close()

    def test_ctrl_c_cancels_a_sleep(self):
        """It comes while another thread makes the call."""
        heard = []
        buffer = self.device.buffer(_waits.LARGE, reserve=_waits.LARGE)
        buffer.fill(7)
        buffer.set_callbacks(None, lambda *arguments: heard.append(threading.get_ident()))
        for name, act, asleep in (("gpumem_buffer_sleep", lambda: buffer.sleep("pageable"), False),
                                  ("gpumem_buffer_wake", buffer.wake, True)):
            if asleep:
                buffer.sleep("pageable")
            heard.clear()
            blocker = Blocker(getattr(c, name))
            with mock.patch.object(c, name, blocker):
                self.interrupted(act, entered=blocker.entered)
            for call in (buffer.view, buffer.sleep, buffer.wake, buffer.close):
                with self.assertRaisesRegex(gpumem.Busy, "is being changed"):
                    call()
            blocker.release()
            self.assertTrue(blocker.left.wait(LIMIT))
            self.settled(buffer)
            self.assertEqual((buffer.asleep, buffer.generation), (asleep, 0))
            self.assertNotIn(threading.get_ident(), heard)
        buffer.wake()
        back = bytearray(2)
        buffer.copy_to(back, 2)
        self.assertEqual(back, b"\7\7")
        buffer.close()

    def test_nothing_is_kept_after_two_ctrl_c(self):
        """The second one comes before the wait that the first one has cancelled is over. The collector does not help."""
        def press(_, frame):
            if pressed[0] < 2 and (stopped or progress is None) and frame.f_code is _sleeping.Call._run_requests.__code__:
                pressed[0] += 1
                raise KeyboardInterrupt

        def sleep(progress):
            with self.device.buffer(4096) as buffer:
                kept.append(weakref.ref(buffer))
                try:
                    buffer.sleep(progress=progress)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)

        def stop(*_):
            stopped.append(True)
            raise Raised
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, press))
        self.addCleanup(gc.enable)
        gc.collect()
        gc.disable()
        sleep_buffer = c.gpumem_buffer_sleep
        for progress in (None, stop):
            kept, pressed, stopped, over = [], [0], [], threading.Event()

            def slow(*arguments):
                status = sleep_buffer(*arguments)
                over.wait(LIMIT)
                return status
            with mock.patch.object(_sleeping, "_GRACE", LIMIT), mock.patch.object(c, "gpumem_buffer_sleep", slow), \
                    mock.patch.object(_buffers, "_is_long", lambda buffers: True):
                signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
                try:  # assertRaises would clear the frames
                    sleep(progress)
                except KeyboardInterrupt:
                    pressed.append("raised")
                self.assertEqual(pressed, [2, "raised"])
            over.set()
            end = time.monotonic() + LIMIT
            while kept[0]() is not None and time.monotonic() < end:
                time.sleep(0.001)
            self.assertIsNone(kept[0]())
            self.device.event().close()  # anything that creates looks for leftovers
            self.assertEqual(self.instance.report(), "nothing lives")

    def test_ctrl_c_cancels_the_sleep_of_a_group(self):
        with self.instance.group() as group, self.device.buffer(1, group=group) as buffer:
            blocker = Blocker(c.gpumem_group_sleep)
            with mock.patch.object(c, "gpumem_group_sleep", blocker):
                self.interrupted(group.sleep, entered=blocker.entered)
            for call in (group.sleep, group.wake, group.close, lambda: self.device.buffer(1, group=group), buffer.view):
                with self.assertRaisesRegex(gpumem.Busy, "is being changed"):
                    call()
            blocker.release()
            self.settled(buffer)
            self.assertEqual((group.info().awake_count, group._changing), (1, False))

    def test_ctrl_c_while_a_sleep_waits_for_work(self):
        with self.device.buffer(1) as buffer, self.device.event() as event:
            stream, release = self.held_stream()
            buffer.fill(7, stream=stream)
            event.record(stream)
            for options in ({}, {"stream": stream}, {"event": event}):
                self.interrupted(lambda: buffer.sleep(**options))
                self.assertEqual((buffer.asleep, buffer._changing), (False, False))
            # Work that does not use the buffer: the library waits for it.
            with self.device.buffer(1) as other:
                self.interrupted(other.sleep)
                with self.assertRaises(gpumem.Busy):
                    other.view()
                release()
                self.settled(other)
                self.assertFalse(other.asleep)
            buffer.sleep()
            stream.close()

    def test_a_sleep_that_never_began(self):
        """Ctrl-C comes before the thread has made the call, which is then not made."""
        def refuse(function, _):
            later.append(function)
            raise KeyboardInterrupt
        later = []
        with self.device.buffer(1) as buffer:
            with mock.patch.object(_waits, "start_new_thread", refuse), self.assertRaises(KeyboardInterrupt):
                buffer.sleep()
            later.pop()()
            self.assertEqual((buffer.info().state, buffer._changing), (gpumem.BufferState.AWAKE, False))
            buffer.sleep()

    def test_a_copy_of_a_file_is_waited_for(self):
        """The file must stay open until then."""
        returned = []

        def slow(*arguments):
            time.sleep(0.1)  # the main thread waits by then
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(4 * _sleeping._GRACE)
            status = copy(*arguments)
            returned.append(status)
            return status
        copy = c.gpumem_copy_file
        with tempfile.TemporaryFile(buffering=0) as file:
            file.truncate(_waits.LARGE)
            with mock.patch.object(c, "gpumem_copy_file", slow), self.assertRaises(KeyboardInterrupt):
                self.instance.read_file(bytearray(_waits.LARGE), file)
            self.assertEqual(len(returned), 1)
            self.assertLess(returned[0], 0)  # it was cancelled

    def test_a_second_ctrl_c_ends_the_wait_for_a_copy_of_a_file(self):
        blocker = Blocker()
        with tempfile.TemporaryFile(buffering=0) as file, mock.patch.object(c, "gpumem_copy_file", blocker):
            file.truncate(_waits.LARGE)

            def press():
                blocker.entered.wait(LIMIT)
                for _ in range(2):
                    time.sleep(0.1)
                    os.kill(os.getpid(), signal.SIGINT)
                if not over.wait(LIMIT):
                    blocker.release()
            over = threading.Event()
            thread = threading.Thread(target=press)
            thread.start()
            with self.assertRaises(KeyboardInterrupt):
                self.instance.read_file(bytearray(_waits.LARGE), file)
            self.assertFalse(blocker.left.is_set())
            over.set()
            thread.join()
            blocker.release()
            self.assertTrue(blocker.left.wait(LIMIT))

    def test_nothing_is_lost_if_the_handler_raises_as_a_call_returns(self):
        def then_interrupt(function):
            def call(*arguments):
                function(*arguments)
                raise KeyboardInterrupt
            return call
        with self.device.memory(4096, "pinned") as kept:
            kept.fill(0)
            for name, make in (("memory_create_prepared", lambda: self.device.memory(64)),
                               ("gpumem_memory_register", lambda: self.device.register(bytearray(8192))),
                               ("gpumem_stream_create", self.device.stream),
                               ("gpumem_event_create", self.device.event),
                               ("gpumem_malloc", lambda: self.device.malloc("pinned", 64)),
                               ("gpumem_buffer_create", self.device.buffer),
                               ("gpumem_group_create", self.instance.group)):
                with self.subTest(name):
                    with mock.patch.object(c, name, then_interrupt(getattr(c, name))), \
                            self.assertRaises(KeyboardInterrupt):
                        make()
                    self.assertEqual(self.instance.stats().live_objects, 1)
                    self.assertEqual(len(self.instance.report().splitlines()), 1)
            with self.device.buffer(1) as buffer:
                with mock.patch.object(c, "gpumem_buffer_note_registration",
                                       then_interrupt(c.gpumem_buffer_note_registration)), self.assertRaises(KeyboardInterrupt):
                    buffer.note_registration("nic")
                self.assertEqual(buffer.info().registrations, 0)
            with self.device.stream() as stream:
                with mock.patch.object(c, "gpumem_fill_async", then_interrupt(c.gpumem_fill_async)), \
                        self.assertRaises(KeyboardInterrupt):
                    kept.fill(7, stream=stream)
                stream.synchronize()
                self.assertEqual(bytes(kept.buffer()[:2]), b"\7\7")
                self.assertEqual((stream._queue.uses, kept._holds), ([], set()))

    def test_nothing_is_lost_if_the_handler_raises_again_before_that_is_destroyed(self):
        raised = []

        def interrupted(*arguments, create=c.memory_create_prepared):
            self.assertEqual(create(*arguments), 0)
            raise KeyboardInterrupt

        def again(*arguments, destroy=c.gpumem_memory_destroy):
            if not raised:
                raised.append(True)
                raise KeyboardInterrupt
            return destroy(*arguments)
        with mock.patch.object(c, "memory_create_prepared", interrupted), mock.patch.object(c, "gpumem_memory_destroy", again), \
                self.assertRaises(KeyboardInterrupt):
            self.device.memory(64)
        self.assertEqual((raised, self.instance.stats().live_objects), ([True], 0))

    @on_cuda
    def test_a_pageable_copy_behind_other_work(self):
        """A GPU's driver may wait for the work before a copy of ordinary memory, in the call that enqueues it."""
        stream, release = self.held_stream()
        memory, data = self.device.memory(1 << 16), bytearray(1 << 16)
        memory.fill(7)
        self.interrupted(lambda: memory.copy_to(data, stream=stream))
        with self.assertRaises(gpumem.Busy):
            memory.close()
        with self.assertRaises(BufferError):
            data.clear()
        release()
        end = time.monotonic() + LIMIT
        while memory._holds and time.monotonic() < end:
            stream.synchronize()
        self.assertEqual(data, b"\7" * (1 << 16))
        memory.close()
        data.clear()
        stream.close()

    @on_cuda
    def test_a_gpu_at_work_delays_other_calls(self):
        """The driver frees after the work in flight. The first registration tries out whether it can be done at all."""
        stream, release = self.held_stream()
        memory, data, threads = self.device.memory(64), bytearray(8192), _thread._count()
        self.interrupted(memory.close)
        self.assertTrue(memory.closed)
        self.interrupted(lambda: self.device.register(data))
        with self.assertRaises(BufferError):
            data.clear()
        release()
        stream.close()
        end = time.monotonic() + LIMIT
        # What goes on aside may not even have made its object yet.
        while _thread._count() > threads and time.monotonic() < end:
            time.sleep(0.001)
        self.assertEqual(self.instance.stats().live_objects, 0)
