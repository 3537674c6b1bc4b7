# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buffers that grow and shrink in place, and that can sleep."""

import copy
import gc
import pickle
import threading

import gpumem
from gpumem import Access, BufferFlags, BufferState, Content, Kind, Location, _calls, _waits, host

from .support import BACKEND, Case, needs_numpy, numpy, on_cuda, on_host


class BufferCase(Case):
    def setUp(self):
        super().setUp()
        self.unit = self.device.physical_granularity().minimum

    def buffer(self, units=1, *, reserve=8, **options):
        return self.device.buffer(units * self.unit, reserve=reserve * self.unit, **options)

    def shared(self, units=1, **options):
        return self.buffer(units, location="host", **options)

    def bytes_of(self, buffer, size, offset=0):
        back = bytearray(size)
        buffer.copy_to(back, size, offset=offset)
        return bytes(back)


class BufferTest(BufferCase):
    def test_info_and_close(self):
        buffer = self.buffer(1, name="mine", handle_types="posix_fd")
        info = buffer.info()
        self.assertEqual(info._replace(range_handle=0, buffer_id=0, reserved_size=0),
                         (buffer.base, self.unit, self.unit, 0, self.unit, 1, 0, 0, 0, 0, 0, Location.DEVICE, 0, 0,
                          BufferState.AWAKE, 0, 0, None, "mine", ""))
        self.assertIsInstance(info.state, BufferState)
        self.assertTrue(info.range_handle)
        self.assertGreaterEqual(info.reserved_size, 8 * self.unit)
        self.assertEqual((int(buffer), buffer.size, buffer.nbytes, buffer.capacity, buffer.reserved_size, buffer.generation,
                          buffer.asleep, buffer.state, buffer.name, buffer.kind, buffer.device_pointer, buffer.group, buffer.tag),
                         (info.base, info.size, info.size, info.capacity, info.reserved_size, 0, False, BufferState.AWAKE,
                          "mine", Kind.VIRTUAL, info.base, None, ""))
        self.assertEqual(self.instance.pointer_info(buffer).buffer_id, info.buffer_id)
        self.assertEqual(self.instance.stats()[:3], (1, self.unit, info.reserved_size))
        for address in (info.base, info.base + info.reserved_size - 1):  # also where nothing is mapped
            self.assertIs(self.instance.pointer_info(address).buffer, buffer)
        self.assertEqual(repr(buffer), f"<gpumem.Buffer 'mine': {self.unit} bytes, device 0>")
        self.assertRegex(self.instance.report(), r"^Buffer 'mine': device 0\nRange 'mine': \d+ bytes")
        with self.assertRaisesRegex(gpumem.Busy, "Buffer 'mine'"):
            self.instance.close()
        buffer.close()
        buffer.close()
        self.assertTrue(buffer.closed)
        self.assertTrue(repr(buffer).endswith(", closed>"))
        for call in (buffer.info, buffer.view, buffer.buffer, buffer.sleep, buffer.wake, lambda: buffer.resize(1),
                     lambda: buffer.set_capacity(1), lambda: buffer.set_access({self.device: "read"}), lambda: buffer.fill(0),
                     lambda: buffer.set_ahead(1), buffer.prepare, buffer.set_callbacks,
                     lambda: buffer.note_registration("nic"),
                     lambda: self.instance.copy(buffer, bytes(8)),
                     lambda: self.instance.copy_regions([gpumem.CopyRegion(buffer, bytes(8))])):
            with self.assertRaises(gpumem.StaleHandle):
                call()

    def test_defaults(self):
        with self.device.buffer() as buffer, gpumem.Buffer(self.device, 10, name="again") as again:
            self.assertEqual((buffer.size, buffer.capacity, buffer.name), (0, 0, ""))
            self.assertGreater(buffer.reserved_size, self.unit)
            self.assertEqual((again.size, again.capacity), (10, self.unit))
            self.assertEqual(len(buffer.view()), 0)
            buffer.fill(1)
            self.assertEqual(again.view("u2").shape, (5,))

    def test_wrong(self):
        for wrong in (lambda: self.device.buffer(-1), lambda: self.device.buffer(1 << 63), lambda: self.buffer(9),
                      lambda: self.device.buffer(1, reserve=-1), lambda: self.buffer(flags=1 << 40),
                      lambda: self.buffer(flags="fixed"), lambda: self.buffer(require=1 << 40),
                      lambda: self.buffer(handle_types="banana"), lambda: self.buffer(location="banana"),
                      lambda: self.buffer(location="host_numa_current"), lambda: self.buffer(location=self.instance.device(1)),
                      lambda: self.buffer(accesses={self.device: "banana"}), lambda: self.buffer(accesses={self.device: 77}),
                      lambda: self.buffer(name="a\nb")):
            with self.assertRaises(gpumem.InvalidArgument):
                wrong()
        for wrong in (lambda: gpumem.Buffer(self.instance), lambda: self.device.buffer("1"),
                      lambda: self.buffer(accesses={self.device: None}), lambda: self.buffer(name=3)):
            with self.assertRaises((TypeError, AttributeError)):
                wrong()
        with self.assertRaises(gpumem.OutOfDeviceMemory):
            self.device.buffer(1 << 46)
        self.assertEqual(self.instance.report(), "nothing lives")

    def test_grows_and_shrinks_in_place(self):
        with self.buffer(1) as buffer:
            base = buffer.base
            buffer.fill(1)
            buffer.resize(2 * self.unit + 5)
            self.assertEqual((buffer.base, buffer.size, buffer.capacity, buffer.info().block_count, buffer.generation),
                             (base, 2 * self.unit + 5, 3 * self.unit, 2, 0))
            self.assertEqual(buffer.view().nbytes, buffer.size)
            buffer.copy_from(b"behind", offset=self.unit - 3)  # across the seam
            self.assertEqual(self.bytes_of(buffer, 7, self.unit - 4), b"\1behind")
            buffer.resize(self.unit)
            self.assertEqual((buffer.size, buffer.capacity), (self.unit, self.unit))
            self.assertEqual(self.bytes_of(buffer, 4, self.unit - 4), b"\1beh")
            for size, error in ((buffer.reserved_size + 1, gpumem.OutOfAddressSpace), (1 << 63, gpumem.InvalidArgument),
                                (-1, gpumem.InvalidArgument), (None, TypeError)):
                with self.assertRaises(error):
                    buffer.resize(size)
                self.assertEqual(buffer.info(), (base, self.unit, self.unit, *buffer.info()[3:]))
            with self.assertRaisesRegex(gpumem.OutOfAddressSpace, '"movable"'):
                buffer.resize(buffer.reserved_size + 1)
            with self.assertRaises(gpumem.InvalidArgument):
                buffer.copy_from(bytes(2), offset=self.unit - 1)
            buffer.resize(0)
            self.assertEqual((buffer.size, buffer.capacity, buffer.base), (0, 0, base))

    def test_capacity(self):
        with self.buffer(1) as buffer:
            buffer.set_capacity(3 * self.unit)
            self.assertEqual((buffer.size, buffer.capacity), (self.unit, 3 * self.unit))
            buffer.resize(2 * self.unit)
            self.assertEqual((buffer.capacity, buffer.info().block_count), (3 * self.unit, 2))
            buffer.resize(self.unit - 1)
            self.assertEqual(buffer.capacity, self.unit)
            buffer.set_capacity(2 * self.unit)
            view = buffer.view()
            buffer.set_capacity()  # nothing behind the size is used
            self.assertEqual((buffer.capacity, view.nbytes), (self.unit, self.unit - 1))
            del view
            for wrong in (1, -1, 1 << 63):
                with self.assertRaises(gpumem.InvalidArgument):
                    buffer.set_capacity(wrong)

    def test_grows_while_work_uses_it(self):
        with self.buffer(1) as buffer:
            stream, release = self.held_stream()
            buffer.fill(2, stream=stream)
            buffer.resize(3 * self.unit)
            stream.fill(buffer.view(offset=self.unit), value=3)
            for call in (lambda: buffer.resize(self.unit), lambda: buffer.sleep(idle=True), buffer.close,
                         lambda: buffer.set_access({self.device: "none"})):
                with self.assertRaisesRegex(gpumem.Busy, "synchronize the stream"):
                    call()
            self.assertEqual((buffer.size, buffer.asleep, buffer.closed), (3 * self.unit, False, False))
            release()
            self.assertEqual(buffer._holds, set())
            self.assertEqual(self.bytes_of(buffer, 2, self.unit - 1), b"\2\3")
            self.assertEqual(self.bytes_of(buffer, 1, 3 * self.unit - 1), b"\3")
            buffer.resize(self.unit)
            stream.close()

    def test_moves(self):
        with self.buffer(1, reserve=1, flags="movable") as buffer, self.buffer(1, reserve=1, flags=BufferFlags.MOVABLE) as fixed:
            base, reserved = buffer.base, buffer.reserved_size
            buffer.fill(7)
            view = buffer.view()
            with self.assertRaisesRegex(BufferError, "cannot be moved while views"):
                buffer.resize(reserved + 1)
            with self.assertRaisesRegex(BufferError, "cannot be moved while views"):
                buffer.set_capacity(reserved + 1)
            buffer.resize(reserved)  # in place
            self.assertEqual((buffer.base, buffer.generation, view.address), (base, 0, base))
            del view
            buffer.resize(reserved + 1)
            self.assertNotEqual(buffer.base, base)
            self.assertEqual((buffer.generation, buffer.size, fixed.generation), (1, reserved + 1, 0))
            self.assertEqual((buffer.device_pointer, buffer.view().address), (buffer.base, buffer.base))
            self.assertEqual(self.bytes_of(buffer, 2, self.unit - 2), b"\7\7")
            fixed.set_capacity(reserved + 1)
            self.assertEqual((fixed.size, fixed.generation), (self.unit, 1))

    def test_sleeps(self):
        with self.buffer(2, accesses={self.device: "readwrite"}) as buffer:
            base = buffer.base
            for content in ("pinned", "pageable", Content.ZERO, "drop"):
                with self.subTest(content):
                    generation = buffer.generation
                    buffer.fill(0)
                    buffer.copy_from(b"a dream", offset=self.unit - 3)
                    buffer.sleep(content)
                    kept = content in ("pinned", "pageable")
                    self.assertEqual((buffer.state, buffer.info().asleep, buffer.info().stored_size, buffer.size,
                                      buffer.capacity, int(buffer)),
                                     (BufferState.ASLEEP, True, 2 * self.unit * kept, 2 * self.unit, 2 * self.unit, base))
                    self.assertTrue(repr(buffer).endswith(", asleep>"))
                    self.assertEqual(self.instance.kind_stats("virtual").live_count, 1)
                    for call in (buffer.sleep, buffer.view, buffer.buffer, lambda: buffer.fill(0),
                                 lambda: buffer.copy_from(b"1"), lambda: self.instance.copy(bytearray(8), buffer, 8),
                                 lambda: buffer.resize(self.unit), lambda: buffer.resize(3 * self.unit),
                                 lambda: buffer.set_capacity(3 * self.unit),
                                 lambda: buffer.set_access({self.device: "read"}), buffer.prepare,
                                 lambda: buffer.note_registration("nic")):
                        with self.assertRaisesRegex(gpumem.InvalidState, r"asleep; call (Buffer\.)?wake\(?\)?"):
                            call()
                    buffer.wake()
                    self.assertEqual((buffer.asleep, buffer.base, buffer.generation, buffer.info().stored_size),
                                     (False, base, generation + 1, 0))
                    if content != "drop":
                        self.assertEqual(self.bytes_of(buffer, 7, self.unit - 3), b"a dream" if kept else bytes(7))
                    with self.assertRaises(gpumem.InvalidState):
                        buffer.wake()
            for wrong in ("banana", 77, -1):
                with self.assertRaises(gpumem.InvalidArgument):
                    buffer.sleep(wrong)
            self.assertFalse(buffer.asleep)
            buffer.sleep("zero")  # and is closed so

    def test_what_ended_meanwhile_is_no_view(self):
        """What held the memory may be gone when the refusal is worded: then it was a call of another thread."""
        with self.shared() as buffer, self.assertRaisesRegex(BufferError, "while a call copies or fills it"):
            buffer._held("closed", "gpumem_buffer_destroy")

    def test_a_view_keeps_its_bytes(self):
        with self.shared(2) as buffer:
            view = buffer.buffer()
            for call in (lambda: buffer.resize(self.unit), buffer.sleep, buffer.close,
                         lambda: buffer.set_access({"host": "read"}), lambda: buffer.set_access([("host", "none")])):
                with self.assertRaisesRegex(BufferError, "views of it are alive"):
                    call()
            buffer.set_access({self.instance.device(1): "read"})  # more access, and none taken away
            buffer.resize(4 * self.unit)
            view[2 * self.unit - 1] = 5
            self.assertEqual((len(view), buffer.buffer()[2 * self.unit - 1], len(buffer.buffer())),
                             (2 * self.unit, 5, 4 * self.unit))
            part = buffer.view("u4", 4, offset=16)[1:]
            del view
            with self.assertRaises(BufferError):
                buffer.resize(0)
            del part
            buffer.resize(self.unit)
            self.assertEqual(buffer._holds, set())

    def test_the_cpu(self):
        with self.shared(name="shared") as buffer, self.buffer() as on_device, self.shared(0) as empty:
            self.assertEqual((buffer.host_pointer, on_device.host_pointer), (buffer.base, None))
            self.assertEqual((len(empty.buffer()), buffer.info().location), (0, Location.HOST))
            self.assertEqual(repr(buffer), f"<gpumem.Buffer 'shared': {self.unit} bytes, host>")
            self.assertIn("in virtual memory 'shared'", repr(buffer.view()))
            empty.resize(2)
            empty.buffer()[1] = 3
            self.assertEqual(self.bytes_of(empty, 1, 1), b"\3")
            for problem, call in ((BufferError, on_device.buffer), (BufferError, lambda: on_device.view().buffer()),
                                  (AttributeError, lambda: on_device.view().__array_interface__)):
                with self.assertRaisesRegex(problem, "no access to the buffer"):
                    call()
            buffer.set_access({"host": "read", self.device: "read"})
            self.assertTrue(buffer.view().readonly)
            with self.assertRaises(TypeError):
                buffer.buffer()[0] = 1
            self.assertEqual(self.instance.pointer_access(buffer, self.device), Access.READ)
            buffer.resize(2 * self.unit)
            self.assertEqual(self.instance.pointer_access(buffer.base + self.unit, self.device), Access.READ)
            buffer.set_access({"host": "readwrite"})
            view = buffer.view("u4", 8)
            view[3] = 77
            self.assertEqual((view[3], buffer.buffer()[12]), (77, 77))
            with self.assertRaises(gpumem.WrongKind):
                view.free()
            del view

    def test_access(self):
        other = self.instance.device(1)
        with self.buffer(accesses=[(self.device, "read"), (other, "readwrite")]) as buffer:
            def rights():
                return [str(self.instance.pointer_access(buffer, device)) for device in (self.device, other)]
            self.assertEqual(rights(), ["read", "readwrite"])
            for error, accesses in ((gpumem.InvalidArgument, {}), (gpumem.InvalidArgument, {self.device: 77}),
                                    (gpumem.InvalidArgument, {("device", 99): "read"}), (gpumem.Unsupported, {"host": "read"}),
                                    (gpumem.InvalidArgument, [(other, "none"), (other, "read")]),
                                    (TypeError, {self.device: None})):
                with self.assertRaises(error):
                    buffer.set_access(accesses)
            self.assertEqual(rights(), ["read", "readwrite"])
            buffer.set_access({other: "none"})
            buffer.sleep("drop")
            buffer.wake()
            self.assertEqual(rights(), ["read", "none"])

    def test_operands(self):
        with self.buffer() as buffer, self.shared() as at_host, self.device.stream() as stream:
            self.instance.copy_regions([gpumem.CopyRegion(buffer, b"0123456789abcdef", 4, 2, source_row_pitch=8,
                                                          destination_offset=4)])
            stream.copy(at_host, buffer)
            stream.copy_2d(at_host, 2, buffer.view(offset=4), 4, 2, 2)
            stream.synchronize()
            self.assertEqual(bytes(at_host.buffer()[:12]), b"0189012389ab")
            self.instance.fill_2d(buffer, 4, 2, 2, 9)
            self.assertEqual(self.bytes_of(buffer, 6)[:2] + self.bytes_of(buffer, 2, 4), b"\x09\x09\x09\x09")
            for call in (lambda: self.instance.copy(buffer, bytes(self.unit + 1)), lambda: buffer.copy_from(b"1", 2),
                         lambda: self.instance.fill(buffer, size=self.unit + 1)):
                with self.assertRaises(gpumem.InvalidArgument):
                    call()
            self.assertEqual((buffer._holds, at_host._holds), (set(), set()))

    def test_a_failed_copy_keeps_nothing(self):
        size = _waits.LARGE
        gc.disable()
        self.addCleanup(gc.enable)
        with self.device.buffer(size) as buffer, self.device.stream() as stream:
            data = bytes(size)
            for copy_now in (lambda: self.instance.copy(buffer, data, 8, direction="device_to_host"),
                             lambda: self.instance.copy(buffer, data, direction="device_to_host"),
                             lambda: stream.copy(buffer, data, 8, direction="device_to_host")):
                try:  # assertRaises() would clear the frames
                    copy_now()
                except gpumem.InvalidArgument:
                    pass
                else:
                    self.fail("it was copied")
                self.assertEqual(buffer._holds, set())

    @on_host
    def test_a_kernel(self):
        def kernel(kernel, buffer):
            kernel.view(buffer)[-1] = 9
        with self.shared(1) as buffer, self.device.stream() as stream:
            buffer.resize(self.unit + 1)
            host.launch(stream, kernel, buffer)
            stream.synchronize()
            self.assertEqual(buffer.buffer()[self.unit], 9)

    def test_nothing_can_be_copied_or_pickled(self):
        with self.buffer() as buffer:
            for act in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, r"a gpumem\.Buffer cannot be .*; use the object"):
                    act(buffer)

    def test_forgotten(self):
        view = self.shared().view()
        self.buffer().sleep()
        gc.collect()
        self.assertEqual(view.memory.size, self.unit)  # which the view keeps
        del view
        gc.collect()
        self.assertEqual(self.instance.report(), "nothing lives")

    def test_forgotten_inside_a_host_function(self):
        kept = [self.buffer()]
        with self.device.stream() as stream:
            stream.launch_host_function(kept.clear)
            stream.synchronize()
        gc.collect()
        self.device.event().close()
        self.assertEqual((self.instance.report(), len(_calls.leftovers)), ("nothing lives", 0))

    def test_forgotten_with_work_in_flight(self):
        stream, release = self.held_stream()
        self.buffer().fill(1, stream=stream)
        gc.collect()
        self.assertIn("Buffer: device 0", self.instance.report())
        release()
        self.assertNotIn("Buffer", self.instance.report())
        stream.close()

    def test_an_exception_of_the_block_stays(self):
        with self.assertRaises(ZeroDivisionError):
            with self.shared() as buffer:
                view = buffer.buffer()
                raise ZeroDivisionError
        self.assertFalse(buffer.closed)
        del view
        buffer.close()

    def test_an_instance_that_is_closed_by_force(self):
        instance = gpumem.Instance(BACKEND)
        buffer = instance.device(0).buffer(1)
        view = buffer.view()
        with self.assertRaises(BufferError):
            instance.close(force=True)
        del view
        instance.close(force=True)
        with self.assertRaises(gpumem.Error):
            buffer.view()
        buffer.close()
        self.assertTrue(buffer.closed)

    def test_threads(self):
        """Copies that race with growth, shrinking and sleep work or are refused, and touch no byte that is gone."""
        problems, over = [], threading.Event()
        with self.shared(1) as buffer:
            def use():
                while not over.is_set():
                    try:
                        view = buffer.buffer()
                        view[-1] = 1
                        del view
                        buffer.fill(2)
                    except gpumem.InvalidState:
                        pass
                    except BaseException as problem:
                        problems.append(problem)
                        return
            threads = [threading.Thread(target=use) for _ in range(2)]
            for thread in threads:
                thread.start()
            done = 0
            try:
                for turn in range(200):
                    for change in (lambda: buffer.resize(3 * self.unit), lambda: buffer.resize(self.unit),
                                   lambda: buffer.sleep("zero"), buffer.wake):
                        try:
                            change()
                            done += 1
                        except (gpumem.Busy, BufferError, gpumem.InvalidState):
                            pass
            finally:
                over.set()
                for thread in threads:
                    thread.join()
            self.assertEqual(problems, [])
            self.assertGreaterEqual(done, 200)

    @on_host
    def test_failing_steps(self):
        failures = set()
        for step in range(1, 80):  # the library tries some steps again, so success is not the end
            buffer, filled = None, False
            host.fail_step(self.instance, step)
            try:
                with self.buffer(1, reserve=1, flags="movable") as buffer:
                    buffer.fill(7)
                    filled = True
                    buffer.resize(buffer.reserved_size + 1)
                    buffer.set_access({self.instance.device(1): "read"})
                    buffer.sleep()
                    buffer.wake()
                    self.assertEqual(self.bytes_of(buffer, 1, self.unit - 1), b"\7")
                    buffer.resize(0)
            except gpumem.Error as problem:
                failures.add(problem.function)
            host.fail_step(self.instance, 0)
            if buffer is not None:
                if filled and not buffer.closed and buffer.size:  # what failed has changed nothing
                    if buffer.asleep:
                        buffer.wake()
                    self.assertEqual(self.bytes_of(buffer, 1, self.unit - 1), b"\7")
                buffer.close()
            gc.collect()
            self.assertEqual(self.instance.report(), "nothing lives")
        self.assertLessEqual({f"gpumem_buffer_{name}" for name in ("create", "resize", "set_access", "sleep", "wake")}, failures)

    @needs_numpy
    def test_numpy(self):
        with self.shared() as buffer:
            array = buffer.numpy("f4", (4, 4))
            array[:] = 2.5
            buffer.resize(2 * self.unit)
            self.assertEqual(numpy.from_dlpack(buffer.view("f4", 16)).sum(), 40)
            self.assertEqual(numpy.asarray(buffer).shape, (2 * self.unit,))
            with self.assertRaises(BufferError):
                buffer.resize(self.unit)
            del array
            buffer.resize(self.unit)

    @on_cuda
    def test_other_libraries(self):
        with self.buffer() as buffer, self.shared() as at_host:
            self.assertEqual((buffer.__dlpack_device__(), at_host.__dlpack_device__()), ((2, 0), (3, 0)))
            view = buffer.view("f4", 4)
            self.assertEqual(view.__cuda_array_interface__["data"], (buffer.base, False))
            with self.assertRaises(AttributeError):
                buffer.__cuda_array_interface__
            with self.assertRaises(BufferError):
                buffer.resize(0)
            del view

    @on_host
    def test_other_libraries_on_the_host(self):
        with self.buffer() as buffer, self.shared() as at_host:
            self.assertEqual(at_host.__dlpack_device__(), (1, 0))
            with self.assertRaises(BufferError):
                buffer.__dlpack_device__()
