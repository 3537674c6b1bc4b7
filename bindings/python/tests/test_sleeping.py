# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How buffers sleep: stores, progress, callbacks, registrations, and groups."""

import copy
import gc
import os
import pathlib
import pickle
import tempfile
import threading
import time
from unittest import mock

import gpumem
from gpumem import BufferState, Content, _calls, _memory, _sleeping, host

from .support import BACKEND, on_cuda, on_host, python
from .test_buffers import BufferCase

LIMIT = 120  # seconds after which nothing will come; the machine may be busy


class Stop(Exception):
    pass


class SleepCase(BufferCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def filled(self, units=1, text=b"a dream", **options):
        buffer = self.buffer(units, **options)
        buffer.fill(0)
        buffer.copy_from(text, offset=3)
        return buffer

    def content(self, buffer, text=b"a dream"):
        return self.bytes_of(buffer, len(text), 3)

    def until(self, condition):
        end = time.monotonic() + LIMIT
        while not condition() and time.monotonic() < end:
            time.sleep(0.001)
        self.assertTrue(condition())


class StoreTest(SleepCase):
    def test_a_file(self):
        with self.filled(2) as buffer:
            for directory in (self.folder, str(self.folder), bytes(self.folder)):
                buffer.sleep("file", directory=directory)
                info = buffer.info()
                self.assertEqual((info.state, info.stored_size), (BufferState.ASLEEP, 2 * self.unit))
                self.assertGreaterEqual(info.store_capacity, 2 * self.unit)
                self.assertEqual(list(self.folder.iterdir()), [])  # it has no name
                buffer.wake()
                self.assertEqual((self.content(buffer), buffer.info().store_capacity), (b"a dream", 0))
            for error, options in ((gpumem.NotFound, {"content": "file", "directory": self.folder / "missing"}),
                                   (gpumem.InvalidArgument, {"content": "file", "directory": __file__}),
                                   (gpumem.InvalidArgument, {"content": Content.FILE}),
                                   (gpumem.InvalidArgument, {"directory": self.folder}),
                                   (gpumem.InvalidArgument, {"content": "file", "directory": "a\0b"})):
                for call in (buffer.sleep, buffer.prepare):
                    with self.assertRaises(error):
                        call(**options)
            self.assertEqual((buffer.asleep, buffer._changing, self.content(buffer)), (False, False, b"a dream"))
            with self.assertRaises(TypeError):
                buffer.sleep("file", directory=3)

    def test_a_file_that_is_cut_short(self):
        with self.filled(2) as buffer:
            buffer.sleep("file", directory=self.folder)
            (file,) = (path for path in pathlib.Path("/proc/self/fd").iterdir()
                       if path.exists() and os.readlink(path).startswith(str(self.folder)))
            os.truncate(file, 10)
            with self.assertRaises(gpumem.ContentLost) as caught:
                buffer.wake()
            self.assertEqual(caught.exception.name, "GPUMEM_ERROR_CONTENT_LOST")
            self.assertTrue(buffer.asleep)
            with self.assertRaises(gpumem.InvalidState):
                buffer.view()

    def test_what_is_kept(self):
        with self.filled(2) as buffer:
            for keep, left in (("all", 2), (self.unit, 1), (0, 0)):
                buffer.sleep("pageable")
                buffer.wake(keep=keep)
                self.assertEqual((keep, self.content(buffer)), (keep, b"a dream"))
                if left == 1:  # rounded up to pieces
                    self.assertGreaterEqual(buffer.info().store_capacity, self.unit)
                else:
                    self.assertEqual(buffer.info().store_capacity, left * self.unit)
            buffer.sleep()
            for wrong in (-1, 1 << 64, "some"):
                with self.assertRaises(gpumem.InvalidArgument):
                    buffer.wake(keep=wrong)
            with self.assertRaises(TypeError):
                buffer.wake(keep=1.5)
            self.assertTrue(buffer.asleep)

    def test_prepared(self):
        with self.filled(2) as buffer:
            buffer.prepare()
            self.assertEqual(buffer.info().store_capacity, 2 * self.unit)
            buffer.prepare("drop")
            self.assertEqual(buffer.info().store_capacity, 0)
            buffer.prepare("pageable", bytes_per_second=1 << 34)
            self.until(lambda: buffer.info().store_capacity == 2 * self.unit)
            view = buffer.view()
            buffer.prepare("file", directory=self.folder)  # while something uses it
            del view
            buffer.sleep("file", directory=self.folder)
            buffer.wake()
            self.assertEqual(self.content(buffer), b"a dream")
            for wrong in (-1, 1 << 64):
                with self.assertRaises(gpumem.InvalidArgument):
                    buffer.prepare(bytes_per_second=wrong)

    def test_a_pin_budget(self):
        with gpumem.Instance(BACKEND, pin_budget=self.unit) as instance:
            with instance.device(0).buffer(2 * self.unit, reserve=2 * self.unit) as buffer:
                buffer.fill(7)
                for call in (buffer.sleep, buffer.prepare):
                    with self.assertRaises(gpumem.LimitExceeded):
                        call()
                self.assertEqual((buffer.state, self.bytes_of(buffer, 2)), (BufferState.AWAKE, b"\7\7"))
                buffer.sleep("pageable")

    def test_growth_ahead(self):
        with self.buffer(1, reserve=64) as buffer:
            buffer.set_ahead(8 * self.unit)
            self.assertEqual(buffer.info().ahead, 8 * self.unit)
            self.until(lambda: buffer.capacity == 9 * self.unit)
            view = buffer.view()
            buffer.resize(3 * self.unit)
            self.assertEqual((view.nbytes, buffer.size), (self.unit, 3 * self.unit))
            del view
            buffer.set_ahead(0)
            self.assertEqual(buffer.info().ahead, 0)
            for wrong in (-1, 1 << 63):
                with self.assertRaises(gpumem.InvalidArgument):
                    buffer.set_ahead(wrong)


class WaitTest(SleepCase):
    """What a sleep waits for."""

    def test_work_in_flight(self):
        for options in ({}, {"stream": True}, {"event": True}):
            with self.subTest(options), self.filled() as buffer, self.device.event() as event:
                stream, release = self.held_stream()
                buffer.fill(9, stream=stream)
                event.record(stream)
                options = {name: {"stream": stream, "event": event}[name] for name in options}
                timer = threading.Timer(0.05, lambda: stream._queue.uses[0].kept[0].buffer().__setitem__(0, 1))
                timer.start()
                buffer.sleep(**options)
                timer.join()
                self.assertEqual((buffer.asleep, buffer._holds), (True, set()))
                buffer.wake()
                self.assertEqual(self.bytes_of(buffer, 2), b"\x09\x09")
                release()
                stream.close()

    def test_work_of_another_stream(self):
        with self.filled() as buffer, self.device.stream() as other, self.device.event() as never:
            stream, release = self.held_stream()
            buffer.fill(9, stream=stream)
            for options in ({"stream": other}, {"idle": True}):
                with self.assertRaisesRegex(gpumem.Busy, "synchronize the stream"):
                    buffer.sleep(**options)
            release()
            for error, options in ((gpumem.InvalidState, {"event": never}), (gpumem.InvalidArgument, {"idle": True, "stream": other}),
                                   (TypeError, {"stream": 0}), (TypeError, {"event": stream}), (TypeError, {"progress": 3})):
                with self.assertRaises(error):
                    buffer.sleep(**options)
            self.assertEqual((buffer.asleep, buffer._changing), (False, False))
            buffer.sleep(idle=True)
            stream.close()

    def test_a_stream_of_another_instance(self):
        with self.filled() as buffer, gpumem.Instance(BACKEND) as instance, instance.device(0).stream() as stream:
            with self.assertRaises(gpumem.InvalidArgument):
                buffer.sleep(stream=stream)


class ProgressTest(SleepCase):
    def run_all(self, buffer, progress):
        buffer.sleep("pageable", progress=progress)
        buffer.wake(progress=progress)

    def test_it_hears_of_each_piece(self):
        heard = []
        with self.filled(2) as buffer:
            self.run_all(buffer, lambda done, total: heard.append((done, total, threading.current_thread())))
            total = 2 * self.unit
            self.assertEqual({entry[1:] for entry in heard}, {(total, threading.current_thread())})
            done = [entry[0] for entry in heard]
            half = done.index(0, 1)
            self.assertEqual((done[0], done[half - 1], done[half], done[-1]), (0, total, 0, total))
            self.assertEqual((done[:half], done[half:]), (sorted(done[:half]), sorted(done[half:])))
            self.assertEqual(self.content(buffer), b"a dream")

    def test_an_exception_cancels(self):
        def stop(done, total):
            raise Stop("enough")
        with self.filled(2) as buffer:
            base, generation = buffer.base, buffer.generation
            with self.assertRaisesRegex(Stop, "enough") as caught:
                buffer.sleep(progress=stop)
            self.assertIsNone(caught.exception.__cause__)
            self.assertEqual((buffer.state, buffer.base, buffer.generation, buffer._changing, self.content(buffer)),
                             (BufferState.AWAKE, base, generation, False, b"a dream"))
            buffer.sleep()
            with self.assertRaises(Stop):
                buffer.wake(progress=stop)
            self.assertEqual((buffer.state, buffer.info().stored_size, buffer._changing), (BufferState.ASLEEP, 2 * self.unit, False))
            buffer.wake()
            self.assertEqual((buffer.generation, self.content(buffer)), (generation + 1, b"a dream"))

    def test_what_it_returns_means_nothing(self):
        with self.filled() as buffer:
            for value in (True, 1, False, None, "x"):
                self.run_all(buffer, lambda done, total: value)
            self.assertEqual(self.content(buffer), b"a dream")

    def test_cancelled(self):
        def stop(done, total):
            raise gpumem.Cancelled("by the user")
        with self.filled() as buffer:
            with self.assertRaisesRegex(gpumem.Cancelled, "by the user") as caught:
                buffer.sleep(progress=stop)
            self.assertEqual(caught.exception.name, "GPUMEM_ERROR_CANCELLED")
            self.assertFalse(buffer.asleep)

    def test_too_late(self):
        def stop(done, total):
            if done == total:
                raise Stop
        with self.filled() as buffer:
            with self.assertRaises(Stop):
                buffer.sleep(progress=stop)
            self.assertTrue(buffer.asleep)
            with self.assertRaises(Stop):
                buffer.wake(progress=stop)
            self.assertEqual((buffer.asleep, self.content(buffer)), (False, b"a dream"))

    def test_on_another_thread(self):
        heard, caught = [], []

        def stop(done, total):
            heard.append(threading.get_ident())
            raise Stop

        def run():
            try:
                buffer.sleep(progress=stop)
            except Stop as problem:
                caught.append(problem)
        with self.filled() as buffer:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            self.assertEqual((heard, len(caught), buffer.asleep), ([thread.ident], 1, False))

    def test_others_wait(self):
        threads, outcomes = [], []

        def write():
            try:
                buffer.copy_from(b"b", offset=3)
                outcomes.append(None)
            except gpumem.InvalidState as problem:
                outcomes.append(str(problem))

        def look(done, total):
            self.assertEqual(outcomes, [])
            if not threads:
                threads.append(threading.Thread(target=write))
                threads[0].start()

        def outcome():
            threads.pop().join()
            return outcomes.pop()
        with self.filled() as buffer:
            buffer.sleep(progress=look)
            self.assertIn("asleep", outcome())
            buffer.wake(progress=look)
            self.assertIsNone(outcome())
            self.assertEqual(self.content(buffer), b"b dream")

    def test_calls_of_other_threads_are_waited_for(self):
        """Only a view is in the way of a buffer that keeps its addresses."""
        stop, begun, problems = threading.Event(), threading.Event(), []

        def copy():
            try:
                while not stop.is_set():
                    try:
                        buffer.copy_from(bytes(self.unit))
                        begun.set()
                    except gpumem.InvalidState:  # it sleeps
                        pass
            except BaseException as problem:
                problems.append(problem)
        with self.filled(2) as buffer:
            thread = threading.Thread(target=copy)
            thread.start()
            try:
                self.assertTrue(begun.wait(LIMIT))
                for _ in range(20):
                    buffer.sleep()
                    buffer.wake()
                    buffer.resize(self.unit)
                    buffer.resize(2 * self.unit)
            finally:
                stop.set()
                thread.join()
            self.assertEqual(problems, [])
            use = _memory.Use(buffer)
            with self.assertRaisesRegex(BufferError, "while a call copies or fills it"):
                buffer.close()  # which gives the addresses to others
            # The main thread does not wait for the call itself, so that it answers Ctrl-C.
            callers, info = [], buffer.info
            with mock.patch.object(gpumem.Buffer, "info", lambda buffer: callers.append(threading.get_ident()) or info()):
                for make in (lambda: buffer.resize(self.unit), lambda: buffer.sleep("drop", idle=True)):
                    callers.clear()
                    make()
                    self.assertNotIn(threading.get_ident(), callers[-1:])
            del use

    def test_the_buffer_meanwhile(self):
        problems = []

        def look(done, total):
            for call in (buffer.view, buffer.close, buffer.wake, lambda: buffer.resize(1), buffer.set_callbacks):
                try:
                    call()
                except gpumem.Busy as problem:
                    problems.append(str(problem))
            self.assertEqual(buffer.info().size, self.unit)
        with self.filled() as buffer:
            buffer.sleep(progress=look)
            self.assertEqual(len(problems) % 5, 0)
            self.assertEqual({problem.partition(";")[0] for problem in problems}, {"the buffer is being changed"})

    def test_none_closes_an_instance(self):
        """Also on the main thread, for which another one makes the call."""
        other = gpumem.Instance(BACKEND)
        heard = []

        def close(*_):
            for instance in (self.instance, other):
                for force in (False, True):
                    try:
                        instance.close(force=force)
                    except gpumem.InvalidState as problem:
                        heard.append((str(problem), problem.function, problem.code, instance.closed))

        def calls(buffer):
            buffer.sleep("pageable", progress=close)
            buffer.wake(progress=close)
            for callbacks in ((close, None), (None, close)):
                buffer.set_callbacks(*callbacks)
                buffer.sleep("pageable")
                buffer.wake()
            buffer.set_callbacks()
            file.write(bytes(10))
            self.instance.read_file(buffer, file, size=10, progress=close)
            self.instance.write_file(file, buffer, size=10, progress=close)
        with tempfile.TemporaryFile(buffering=0) as file, self.filled() as buffer:
            for start in (threading.Thread.run, threading.Thread.start):
                heard.clear()
                thread = threading.Thread(target=calls, args=(buffer,))
                start(thread)
                if thread.ident:
                    thread.join()
                self.assertGreaterEqual(len(heard), 6 * 4)
                self.assertEqual(set(heard), {("an instance cannot be closed in a callback of the library; close it when that has "
                                               "returned", "gpumem_instance_close", gpumem.InvalidState.code, False)})
        other.close()

    def test_objects_dropped_in_it_are_freed_later(self):
        kept = [self.buffer(name="dropped")]
        with self.filled() as buffer:
            buffer.sleep(progress=lambda done, total: kept.clear())
        self.device.event().close()
        self.assertEqual((len(_calls.leftovers), "dropped" in self.instance.report()), (0, False))

    def test_a_sleep_in_a_sleep(self):
        order = []

        def outer(done, total):
            if done == 0:
                other.sleep(progress=lambda *_: order.append("inner"))
            order.append("outer")
        with self.filled() as buffer, self.filled() as other:
            buffer.sleep(progress=outer)
            self.assertTrue(buffer.asleep and other.asleep)
            self.assertEqual((order[0], order[-1]), ("inner", "outer"))

    def test_no_thread(self):
        from unittest import mock

        def refused(thread):
            raise RuntimeError("can't start new thread")
        heard = []
        with self.filled() as buffer:
            with mock.patch.object(threading.Thread, "start", refused):
                self.run_all(buffer, lambda *numbers: heard.append(numbers))
            self.assertEqual((heard[-1], self.content(buffer)), ((self.unit, self.unit), b"a dream"))
        self.assertEqual((_sleeping._running, _sleeping._current), (set(), {}))


class CallbackTest(SleepCase):
    def test_order(self):
        heard = []
        with self.filled() as buffer:
            def before(one):
                heard.append(("before", one is buffer, one.asleep, one.generation, threading.current_thread()))

            def after(one, generation):
                heard.append(("after", one is buffer, one.asleep, generation, threading.current_thread()))
                self.assertEqual(one.generation, generation)
            buffer.set_callbacks(before, after)
            gc.collect()  # nothing else refers to what C calls
            buffer.sleep(progress=lambda *_: heard.append("progress"))
            first = threading.current_thread()
            self.assertEqual(heard[:2], [("before", True, False, 0, first), "progress"])
            heard.clear()
            buffer.wake()
            self.assertEqual(heard, [("after", True, False, 1, first)])
            buffer.set_callbacks(after_wake=after)
            heard.clear()
            buffer.sleep()
            self.assertEqual(heard, [])
            buffer.set_callbacks()
            buffer.wake()
            self.assertEqual((heard, buffer.generation), ([], 2))
            for wrong in ({"before_sleep": 3}, {"after_wake": "x"}):
                with self.assertRaises(TypeError):
                    buffer.set_callbacks(**wrong)

    def test_a_refusal(self):
        heard = []

        def refuse(buffer):
            raise Stop("not now")
        with self.filled() as buffer:
            buffer.set_callbacks(refuse, lambda *arguments: heard.append(arguments))
            with self.assertRaisesRegex(Stop, "not now"):
                buffer.sleep()
            self.assertEqual((buffer.state, buffer._changing, self.content(buffer)), (BufferState.AWAKE, False, b"a dream"))
            buffer.set_callbacks(lambda buffer: False)  # what it returns means nothing
            buffer.sleep()
            self.assertTrue(buffer.asleep)

    def test_a_sleep_that_did_not_happen(self):
        heard = []

        def stop(done, total):
            raise Stop
        with self.filled() as buffer:
            buffer.set_callbacks(lambda one: heard.append("before"), lambda one, generation: heard.append(generation))
            with self.assertRaises(Stop):
                buffer.sleep(progress=stop)
            self.assertEqual(heard, ["before", 0])

    def test_it_drops_views(self):
        with self.shared(2, accesses={self.device: "readwrite", "host": "readwrite"}) as buffer:
            views = [buffer.buffer()]
            views[0][1] = 5
            with self.assertRaisesRegex(BufferError, "cannot be put to sleep"):
                buffer.sleep()
            buffer.set_callbacks(lambda one: None)
            with self.assertRaisesRegex(BufferError, "cannot be put to sleep"):
                buffer.sleep()
            self.assertEqual((buffer.asleep, views[0][1]), (False, 5))
            buffer.set_callbacks(lambda one: views.clear())
            buffer.sleep()
            buffer.wake()
            self.assertEqual(buffer.buffer()[1], 5)

    def test_an_exception_after_waking(self):
        def broken(buffer, generation):
            raise Stop
        with self.filled() as buffer:
            buffer.set_callbacks(None, broken)
            buffer.sleep()
            buffer.wake()
            self.assertFalse(buffer.asleep)
        self.assertEqual([(entry.object, entry.exc_type) for entry in self.unraisable], [(broken, Stop)])
        self.unraisable.clear()

    def test_sleep_that_other_code_calls(self):
        """Through the C interface, which knows nothing of this package."""
        from gpumem import _library as c
        heard = []

        def refuse(buffer):
            raise Stop
        with self.filled() as buffer:
            buffer.set_callbacks(lambda one: heard.append("before"), lambda one, generation: heard.append(generation))
            _calls.call(c.gpumem_buffer_sleep, buffer.handle, None)
            _calls.call(c.gpumem_buffer_wake, buffer.handle, None)
            self.assertEqual((heard, buffer.info().generation), (["before", 1], 1))
            buffer.set_callbacks(refuse)
            with self.assertRaises(gpumem.Busy):
                _calls.call(c.gpumem_buffer_sleep, buffer.handle, None)
            self.assertFalse(buffer.info().asleep)
        self.assertEqual([entry.object for entry in self.unraisable], [refuse])
        self.unraisable.clear()

    def test_a_buffer_that_its_callbacks_refer_to_is_freed(self):
        buffer = self.buffer()
        buffer.set_callbacks(lambda one, kept=buffer: kept, lambda one, generation, kept=buffer: kept)
        del buffer
        gc.collect()
        self.assertEqual(self.instance.report(), "nothing lives")


class RegistrationTest(SleepCase):
    def test_it_keeps_the_buffer_awake(self):
        with self.filled(name="weights") as buffer:
            with buffer.note_registration("the card mlx5_0") as registration, buffer.note_registration("nccl") as other:
                self.assertEqual((registration.buffer is buffer, registration.name, registration.closed,
                                  buffer.info().registrations), (True, "the card mlx5_0", False, 2))
                self.assertNotEqual(registration.number, other.number)
                self.assertRegex(repr(registration), "^<gpumem.Registration 'the card mlx5_0' of <gpumem.Buffer 'weights'.*>>$")
                with self.assertRaisesRegex(gpumem.Busy, "the card mlx5_0") as caught:
                    buffer.sleep()
                self.assertNotRegex(str(caught.exception), "gpumem_")
                self.assertFalse(buffer.asleep)
            registration.close()
            self.assertTrue(registration.closed)
            self.assertTrue(repr(registration).endswith(", closed>"))
            buffer.note_registration("dropped")
            gc.collect()
            self.assertEqual(buffer.info().registrations, 1)  # what holds the memory did not end
            with self.assertRaisesRegex(gpumem.Busy, "dropped"):
                buffer.sleep()

    def test_callbacks_renew_it(self):
        with self.filled() as buffer:
            notes = [buffer.note_registration("nic")]
            buffer.set_callbacks(lambda one: notes.pop().close(), lambda one, _: notes.append(one.note_registration("nic")))
            buffer.sleep()
            self.assertEqual((buffer.asleep, notes), (True, []))
            buffer.wake()
            self.assertEqual((buffer.info().registrations, len(notes)), (1, 1))
            notes.pop().close()
            self.assertEqual(buffer.info().registrations, 0)

    def test_wrong(self):
        with self.buffer() as buffer:
            for wrong in ("", "x" * 64, "a\nb", "a\0b"):
                with self.assertRaises(gpumem.InvalidArgument):
                    buffer.note_registration(wrong)
            for wrong in (None, 3, b"nic"):
                with self.assertRaises(TypeError):
                    buffer.note_registration(wrong)
            with self.assertRaises(TypeError):
                gpumem.Registration(self.device, "nic")
            note = buffer.note_registration("nic")
            for act in (copy.copy, pickle.dumps):
                with self.assertRaises(TypeError):
                    act(note)
        note.close()  # it ended with the buffer
        self.assertTrue(note.closed)


class GroupTest(SleepCase):
    def setUp(self):
        super().setUp()
        self.group = self.instance.group(name="model")
        self.addCleanup(self.group.close)

    def tearDown(self):
        gc.collect()
        self.group.close()
        super().tearDown()

    def member(self, tag=None, units=1, **options):
        return self.filled(units, (tag or "none").encode(), group=self.group, tag=tag, **options)

    def test_info_and_close(self):
        self.assertEqual(self.group.info(), (0, 0, 0, 0, 0, 0, 0, "model"))
        self.assertEqual((repr(self.group), self.group.name, self.group.closed), ("<gpumem.Group 'model': 0 buffers>", "model", False))
        with self.member("weights", 2, name="first") as first, self.member("cache") as second:
            self.assertEqual(self.group.info(), (2, 2, 0, 0, 3 * self.unit, 0, 0, "model"))
            self.assertEqual(self.group.info("weights")[:5], (1, 1, 0, 0, 2 * self.unit))
            self.assertEqual(self.group.info(tag="nobody")[0], 0)
            self.assertEqual(self.group.buffers, (first, second))
            self.assertIs(self.instance.pointer_info(second.base).buffer, second)
            info = first.info()
            self.assertEqual((info.group, info.tag, first.group, first.tag), (self.group, "weights", self.group, "weights"))
            with self.assertRaises(gpumem.Busy):
                self.group.close()
            self.assertFalse(self.group.closed)
        with self.group as same:
            self.assertEqual((same.buffers, repr(same)), ((), "<gpumem.Group 'model': 0 buffers>"))
        self.group.close()
        self.assertTrue(self.group.closed)
        self.assertEqual(repr(self.group), "<gpumem.Group, closed>")
        for call in (self.group.info, self.group.sleep, self.group.wake, self.group.prepare, self.member):
            with self.assertRaises(gpumem.StaleHandle):
                call()

    def test_wrong(self):
        with gpumem.Instance(BACKEND) as instance, instance.group() as other:
            with self.assertRaises(gpumem.InvalidArgument):
                self.buffer(group=other)
            self.assertEqual(other.buffers, ())
        for error, call in ((gpumem.InvalidArgument, lambda: self.buffer(tag="weights")),
                            (gpumem.InvalidArgument, lambda: self.buffer(group=self.group, tag="a\nb")),
                            (gpumem.InvalidArgument, lambda: self.group.info("a\nb")),
                            (gpumem.InvalidArgument, lambda: self.group.sleep(tag="a\nb")),
                            (gpumem.InvalidArgument, lambda: self.instance.group(name="x" * 64)),
                            (gpumem.InvalidArgument, lambda: self.group.sleep("banana")),
                            (gpumem.InvalidArgument, lambda: self.group.wake(keep=-1)),
                            (TypeError, lambda: self.buffer(group=3)), (TypeError, lambda: self.group.info(3)),
                            (TypeError, lambda: self.group.sleep(progress=3)), (TypeError, lambda: gpumem.Group(None, 3)),
                            (TypeError, lambda: copy.copy(self.group)), (TypeError, lambda: pickle.dumps(self.group))):
            with self.assertRaises(error):
                call()
        self.assertEqual(self.group.info().buffer_count, 0)

    def test_all_and_by_tag(self):
        with self.member("weights") as first, self.member("cache") as second, self.member("weights") as third, self.member() as other:
            self.group.sleep("pageable", tag="cache")
            self.assertEqual([buffer.asleep for buffer in self.group.buffers], [False, True, False, False])
            self.assertEqual(self.group.info("cache")[1:3], (0, 1))
            total = []
            self.group.sleep(progress=lambda done, all: total.append((done, all)))
            self.assertEqual((total[0], total[-1]), ((0, 3 * self.unit), (3 * self.unit, 3 * self.unit)))
            self.assertEqual(self.group.info()[:7], (4, 0, 4, 0, 4 * self.unit, 4 * self.unit, 4 * self.unit))
            self.group.wake(tag="weights", keep="all")
            self.assertEqual([str(buffer.state) for buffer in (first, second, third, other)], ["awake", "asleep", "awake", "asleep"])
            self.assertEqual(first.info().store_capacity, self.unit)
            self.group.wake()
            self.assertEqual([self.bytes_of(buffer, 4, 3) for buffer in self.group.buffers], [b"weig", b"cach", b"weig", b"none"])
            self.assertEqual({buffer.generation for buffer in self.group.buffers}, {1})
            self.group.wake()  # nothing to do
            self.group.sleep("drop", tag="nobody")
            self.assertEqual(self.group.info().awake_count, 4)

    def test_prepared(self):
        with self.member("weights") as first, self.member("cache") as second:
            self.group.prepare(tag="weights")
            self.assertEqual((first.info().store_capacity, second.info().store_capacity), (self.unit, 0))
            self.group.prepare("pageable", bytes_per_second=1 << 34)
            self.until(lambda: self.group.info().store_capacity == 2 * self.unit)
            self.group.sleep("file", directory=self.folder)
            self.group.wake()
            self.assertEqual(self.bytes_of(first, 7, 3), b"weights")

    def test_one_that_is_used(self):
        with self.member("weights") as first, self.member("cache") as second:
            view = second.view()
            with self.assertRaisesRegex(BufferError, "views of it are alive"):
                self.group.sleep()
            self.group.sleep(tag="weights")
            self.assertEqual((first.asleep, second.asleep), (True, False))
            del view
            with second.note_registration("nic"):
                with self.assertRaisesRegex(gpumem.Busy, "nic"):
                    self.group.sleep()
            self.assertFalse(second.asleep)
            stream, release = self.held_stream()
            second.fill(1, stream=stream)
            with self.assertRaisesRegex(gpumem.Busy, "synchronize the stream"):
                self.group.sleep(idle=True)
            release()
            stream.close()

    def test_cancelled(self):
        def stop(done, total):
            if done:
                raise Stop
        heard = []
        with self.member("weights") as first, self.member("cache") as second:
            for buffer in (first, second):
                buffer.set_callbacks(lambda one: heard.append(one.tag), lambda one, generation: heard.append(generation))
            with self.assertRaises(Stop):
                self.group.sleep(progress=stop)
            self.assertEqual(heard[:2], ["weights", "cache"])
            self.assertEqual(sorted(heard[2:]), sorted(buffer.generation for buffer in (first, second)))
            self.assertEqual(self.group.info()[:4], (2, 2, 0, 0))
            self.group.sleep()
            with self.assertRaises(Stop):
                self.group.wake(progress=stop)
            self.assertEqual(self.group.info()[:4], (2, 0, 2, 0))
            self.group.wake()
            self.assertEqual((self.bytes_of(first, 7, 3), self.bytes_of(second, 5, 3)), (b"weights", b"cache"))

    def test_a_callback_that_refuses(self):
        def refuse(buffer):
            raise Stop(buffer.tag)
        with self.member("weights") as first, self.member("cache") as second:
            second.set_callbacks(refuse)
            with self.assertRaisesRegex(Stop, "cache"):
                self.group.sleep()
            self.assertEqual((first.state, second.state), (BufferState.AWAKE, BufferState.AWAKE))
            second.set_callbacks()

    def test_a_budget(self):
        with gpumem.Instance(BACKEND, pin_budget=self.unit) as instance, instance.group() as group:
            buffers = [instance.device(0).buffer(self.unit, reserve=self.unit, group=group) for _ in range(3)]
            for number, buffer in enumerate(buffers):
                buffer.fill(number)
            with self.assertRaises(gpumem.LimitExceeded):
                group.sleep()
            self.assertEqual([(str(buffer.state), self.bytes_of(buffer, 1)) for buffer in buffers],
                             [("awake", b"\0"), ("awake", b"\1"), ("awake", b"\2")])
            group.sleep("pageable")
            for buffer in buffers:
                buffer.close()

    def test_no_buffer_enters_meanwhile(self):
        problems = []

        def enter(done, total):
            try:
                self.member("weights")
            except gpumem.Busy as problem:
                problems.append(str(problem))
        with self.member("weights"):
            self.group.sleep(progress=enter)
        self.assertEqual(set(problems), {"the group is being changed; try again when that is done"})

    def test_forgotten(self):
        group = self.instance.group()
        buffer = self.buffer(group=group)
        group.sleep()
        del group
        gc.collect()
        self.assertEqual(buffer.group.info().asleep_count, 1)
        del buffer
        gc.collect()
        self.assertEqual(self.group.buffers, ())

    def test_an_instance_that_is_closed_by_force(self):
        instance = gpumem.Instance(BACKEND)
        group = instance.group()
        buffer = instance.device(0).buffer(1, group=group)
        instance.close(force=True)
        with self.assertRaises(gpumem.Error):
            group.sleep()
        buffer.close()
        group.close()
        self.assertTrue(group.closed)

    def test_the_report_names_it(self):
        with self.member(name="one"), self.instance.group():
            self.assertEqual({line.partition(":")[0] for line in self.instance.report().splitlines()},
                             {"Group 'model'", "Group", "Buffer 'one'", "Range 'one'"})
            with self.assertRaisesRegex(gpumem.Busy, "Group 'model'"):
                self.instance.close()

    def test_threads(self):
        """Groups that sleep and wake, while members are used, made and closed."""
        problems, over = [], threading.Event()
        buffers = [self.shared(1, group=self.group, tag=tag) for tag in ("weights", "cache", "weights")]

        def use(buffer):
            while not over.is_set():
                try:
                    view = buffer.buffer()
                    view[-1] = 1
                    del view
                    self.buffer(1, group=self.group).close()
                except (gpumem.InvalidState, gpumem.Busy):
                    pass
                except BaseException as problem:
                    problems.append(problem)
                    return
        threads = [threading.Thread(target=use, args=(buffer,)) for buffer in buffers[:2]]
        for thread in threads:
            thread.start()
        done = 0
        try:
            for _ in range(40):
                for change in (lambda: self.group.sleep("pageable", tag="weights"), lambda: self.group.sleep("zero"), self.group.wake):
                    try:
                        change()
                        done += 1
                    except BufferError:
                        pass
        finally:
            over.set()
            for thread in threads:
                thread.join()
        self.assertEqual(problems, [])
        self.assertGreaterEqual(done, 40)
        self.group.wake()
        for buffer in buffers:
            buffer.close()

    @on_host
    def test_a_buffer_that_cannot_be_woken_again(self):
        def stop(done, total):
            if device.memory_info()[0] > free:
                taken.append(device.memory(device.memory_info()[0]))  # so that undoing has no memory
                raise Stop
        taken = []
        with gpumem.Instance("host", host=gpumem.HostOptions(device_bytes=64 << 20)) as instance, instance.group() as group:
            device = instance.device(0)
            first, second = (device.buffer(8 << 20, reserve=8 << 20, group=group) for _ in range(2))
            first.fill(7)
            free = device.memory_info()[0]
            with self.assertRaises(Stop) as caught:
                group.sleep("pageable", progress=stop)
            info = group.info()
            self.assertEqual((info.failed_count, info.awake_count + info.failed_count), (len(taken), 2))
            self.assertEqual((first.state, first.asleep, first.info().asleep), (BufferState.FAILED, True, True))
            self.assertTrue(repr(first).endswith(", failed>"))
            if hasattr(caught.exception, "add_note"):
                self.assertIn("1 of the buffers could not be woken again", caught.exception.__notes__[0])
            taken.pop().close()
            group.wake()
            self.assertEqual((group.info().awake_count, self.bytes_of(first, 2)), (2, b"\7\7"))
            first.close()
            second.close()

    @on_host
    def test_failing_steps(self):
        """Whatever fails, each buffer is in a state that its content outlives."""
        failures, states = set(), set()
        for step in range(1, 60):
            buffers = [self.filled(1, b"one", group=self.group), self.filled(1, b"two", group=self.group)]
            host.fail_step(self.instance, step)
            try:
                self.group.sleep("pageable")
                self.group.wake()
            except gpumem.Error as problem:
                failures.add(problem.function)
            host.fail_step(self.instance, 0)
            info = self.group.info()
            states |= {buffer.info().state for buffer in buffers}
            self.assertEqual(info.awake_count + info.asleep_count + info.failed_count, 2)
            if info.awake_count < 2:
                self.group.wake()
            self.assertEqual([self.content(buffer, b"...") for buffer in buffers], [b"one", b"two"])
            for buffer in buffers:
                buffer.close()
        self.assertEqual(failures, {"gpumem_group_sleep", "gpumem_group_wake"})
        self.assertLessEqual({BufferState.AWAKE, BufferState.ASLEEP}, states)


class OrdinaryTest(SleepCase):
    """Where there is no virtual memory management."""

    @on_cuda
    def test_copyable(self):
        _, out, _ = python("""
import gpumem
with gpumem.Instance("cuda") as instance:
    device = instance.device(0)
    try:
        device.buffer(100)
    except gpumem.Unsupported as problem:
        print(problem)
    with device.buffer(100, flags="copyable", name="plain") as buffer:
        info = buffer.info()
        assert info.range_handle is None, info
        buffer.copy_from(b"a dream", offset=3)
        view = buffer.view()
        for size in (10000000, 10):
            try:
                buffer.resize(size)
            except BufferError as problem:
                print(problem)
            else:
                raise AssertionError(size)
        del view
        buffer.resize(10000000)
        generation, back = buffer.generation, bytearray(7)
        assert generation > 0
        buffer.sleep("pageable")
        buffer.wake()
        buffer.copy_to(back, offset=3, size=7)
        assert back == b"a dream" and buffer.generation > generation and buffer.base == buffer.info().base
        try:
            buffer.set_ahead(1)
        except gpumem.Unsupported:
            print("good")
""", FAKE_CUDA_ATTRIBUTE_102="0")
        lines = out.splitlines()
        self.assertEqual((lines[-1], sum("cannot be" in line for line in lines)), ("good", 2))
