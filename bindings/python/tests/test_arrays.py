# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Page-locked arrays in the manner of PyCUDA."""

import gc
import warnings

import gpumem
from gpumem import Kind, MemoryFlags, host_alloc_flags, host_register_flags

from .support import Case, needs_numpy, numpy


@needs_numpy
class ArrayTest(Case):
    def test_flag_numbers(self):
        self.assertEqual((host_alloc_flags.PORTABLE, host_alloc_flags.DEVICEMAP, host_alloc_flags.WRITECOMBINED),
                         (1, 2, 4))
        self.assertEqual((host_register_flags.PORTABLE, host_register_flags.DEVICEMAP), (1, 2))
        self.assertIs(gpumem.mem_host_register_flags, host_register_flags)

    def test_empty(self):
        found = gpumem.pagelocked_empty((3, 5), numpy.float32, device=self.device)
        self.assertIs(type(found), numpy.ndarray)
        self.assertEqual((found.shape, found.dtype, found.flags.c_contiguous, found.flags.writeable),
                         ((3, 5), numpy.float32, True, True))
        memory = found.base.memory
        self.assertEqual((memory.kind, memory.size), (Kind.PINNED, 60))
        pointer = found.__array_interface__["data"][0]
        self.assertEqual(self.instance.pointer_info(pointer).kind, Kind.PINNED)
        self.assertEqual(found.base.get_device_pointer(), memory.device_pointer)

    def test_order(self):
        found = gpumem.pagelocked_empty((3, 5), "f8", "F", device=self.device)
        self.assertTrue(found.flags.f_contiguous and not found.flags.c_contiguous)
        with self.assertRaises(ValueError):
            gpumem.pagelocked_empty((3, 5), "f8", "A", device=self.device)

    def test_every_flag_is_granted(self):
        for flags in range(8):
            found = gpumem.pagelocked_empty(16, "u1", mem_flags=flags, device=self.device)
            granted = found.base.memory.granted_flags
            self.assertEqual(granted & flags, flags)
            self.assertEqual(bool(granted & MemoryFlags.WRITE_COMBINED), bool(flags & host_alloc_flags.WRITECOMBINED))
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.pagelocked_empty(16, "u1", mem_flags=1 << 40, device=self.device)

    def test_zeros_and_likes(self):
        zeros = gpumem.pagelocked_zeros((7, 3), "i4", device=self.device)
        self.assertEqual(zeros.sum(), 0)
        model = numpy.ones((4, 6), "f8", order="F")
        for function in (gpumem.pagelocked_empty_like, gpumem.pagelocked_zeros_like):
            found = function(model, device=self.device)
            self.assertEqual((found.shape, found.dtype, found.flags.f_contiguous), (model.shape, model.dtype, True))
        self.assertEqual(found.sum(), 0)

    def test_wrong_types(self):
        self.assertIsInstance(gpumem.aligned_zeros(3, "f4", alignment=numpy.int64(64)), numpy.ndarray)
        for what, call in (("array", lambda: gpumem.pagelocked_zeros_like(5)), ("array", lambda: gpumem.aligned_empty_like([1.0])),
                           ("array", lambda: gpumem.managed_empty_like(None)),
                           ("mem_flags", lambda: gpumem.managed_zeros(3, "f4", mem_flags=numpy.zeros(3))),
                           ("alignment", lambda: gpumem.aligned_empty(3, "f4", alignment=1.5)),
                           ("order", lambda: gpumem.pagelocked_zeros(3, "f4", numpy.zeros(3), device=self.device)),
                           ("order", lambda: gpumem.aligned_empty(3, "f4", None)),
                           ("device", lambda: gpumem.shared_array(3, "f4", device=-1)),
                           ("device", lambda: gpumem.managed_zeros(3, "f4", device=0)),
                           ("device", lambda: gpumem.pagelocked_zeros(3, "f4", device=numpy.zeros(3))),
                           ("device", lambda: gpumem.register_host_memory(numpy.zeros(4096), device="0"))):
            with self.subTest(what), warnings.catch_warnings():
                warnings.simplefilter("error")
                with self.assertRaisesRegex(TypeError, f"^{what} must be "):
                    call()

    def test_zeros_and_shapes_of_every_type(self):
        """As numpy.zeros() has them, also of texts, and of elements that are arrays."""
        for dtype in ("S5", "U2", "V4", "M8[s]", "?", [("name", "S3"), ("count", "i4")], "(2,)f4", "(2,3)S2", ("(2,)i2", (3,)), str):
            for order in "CF":
                right = numpy.zeros((3, 2), dtype, order)
                for make, options in ((gpumem.pagelocked_zeros, {"device": self.device}), (gpumem.managed_zeros, {"device": self.device}),
                                      (gpumem.aligned_zeros, {})):
                    with self.subTest(make.__name__, dtype=dtype, order=order):
                        used = make((3, 2), "u1", **options)
                        used[:] = 255
                        del used  # whose memory the next one may get
                        found = make((3, 2), dtype, order, **options)
                        self.assertEqual((found.shape, found.dtype, found.strides), (right.shape, right.dtype, right.strides))
                        self.assertEqual(found.tobytes(), right.tobytes())
                        del found

    def test_without_elements(self):
        found = gpumem.pagelocked_empty((0, 3), "f4", device=self.device)
        self.assertEqual((found.shape, self.instance.stats().live_objects), ((0, 3), 0))

    def test_too_large(self):
        for shape in ((1 << 40, 1 << 40), 1 << 62):
            with self.assertRaises(ValueError):
                gpumem.pagelocked_empty(shape, "f8", device=self.device)
        with self.assertRaises(ValueError):
            gpumem.pagelocked_empty(-1, "f8", device=self.device)

    def test_objects_are_refused(self):
        with self.assertRaises(TypeError):
            gpumem.pagelocked_empty(3, object, device=self.device)
        with self.assertRaises(TypeError):
            gpumem.register_host_memory(numpy.array([object()]), device=self.device)

    def test_lives_as_long_as_a_view(self):
        found = gpumem.pagelocked_zeros(100, "u1", device=self.device)
        part = found[10:20].reshape(2, 5).T
        memory = found.base.memory
        del found
        gc.collect()
        with self.assertRaises(BufferError):
            memory.close()
        part[:] = 1
        del part
        memory.close()

    def test_freed_when_forgotten(self):
        found = gpumem.pagelocked_zeros(100, "u1", device=self.device)
        self.assertEqual(self.instance.kind_stats(Kind.PINNED).live_count, 1)
        del found
        self.assertEqual(self.instance.kind_stats(Kind.PINNED).live_count, 0)

    def test_default_device(self):
        before = gpumem.default_instance().kind_stats(Kind.PINNED).live_count
        found = gpumem.pagelocked_empty(10, "f4")
        self.assertIs(found.base.memory.device, gpumem.default_device())
        self.assertEqual(gpumem.default_instance().kind_stats(Kind.PINNED).live_count, before + 1)

    def test_aligned(self):
        for alignment in (1, 64, 4096, 1 << 16):
            found = gpumem.aligned_empty((5, 7), "f4", "F", alignment)
            self.assertEqual(found.__array_interface__["data"][0] % alignment, 0)
            self.assertEqual((found.shape, found.flags.f_contiguous, found.flags.writeable), ((5, 7), True, True))
        self.assertEqual(gpumem.aligned_zeros(10, "f8").sum(), 0)
        self.assertEqual(gpumem.aligned_zeros_like(numpy.ones((2, 3))).shape, (2, 3))
        self.assertEqual(gpumem.aligned_empty_like(numpy.ones((2, 3), order="F")).flags.f_contiguous, True)
        with self.assertRaises(ValueError):
            gpumem.aligned_empty(3, "f4", alignment=3)

    def test_register(self):
        array = gpumem.aligned_zeros((64, 64), "f4")
        found = gpumem.register_host_memory(array, host_register_flags.DEVICEMAP | host_register_flags.PORTABLE,
                                            device=self.device)
        self.assertEqual(found.__array_interface__["data"], array.__array_interface__["data"])
        memory = found.base.memory
        self.assertEqual(memory.granted_flags & 3, 3)
        self.assertEqual(memory.kind, Kind.REGISTERED)
        found[:] = 5
        self.assertEqual(array[63, 63], 5)
        with self.assertRaises(BufferError):
            memory.close()
        pointer = array.__array_interface__["data"][0]
        del found, memory
        self.assertEqual(self.instance.pointer_info(pointer).kind, Kind.PAGEABLE)

    def test_register_keeps_the_array(self):
        found = gpumem.register_host_memory(numpy.full(2048, 7, "u2"), device=self.device)
        gc.collect()
        self.assertTrue((found == 7).all())

    def test_register_shapes(self):
        array = numpy.asfortranarray(numpy.arange(600, dtype="i8").reshape(20, 30))
        found = gpumem.register_host_memory(array, device=self.device)
        self.assertTrue((found == array).all() and found.flags.f_contiguous)
        with self.assertRaises(ValueError):
            gpumem.register_host_memory(numpy.zeros((20, 30))[:, ::2], device=self.device)
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.register_host_memory(numpy.zeros(20), 1 << 10, device=self.device)
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.register_host_memory(numpy.zeros(0), device=self.device)

    def test_register_read_only(self):
        frozen = numpy.arange(1000)
        frozen.flags.writeable = False
        with self.assertRaisesRegex(gpumem.InvalidArgument, r"read-only; .*host_register_flags\.READ_ONLY"):
            gpumem.register_host_memory(frozen, device=self.device)
        for source in (frozen, bytes(8192), memoryview(bytes(8192))):
            with self.assertRaisesRegex(gpumem.InvalidArgument, 'read-only; .*require="read_only"'):
                self.device.register(source)
            self.device.register(source, require="read_only").close()
        with self.assertRaisesRegex(TypeError, "numpy array, not a bytearray"):
            gpumem.register_host_memory(bytearray(8192), device=self.device)
        found = gpumem.register_host_memory(frozen, host_register_flags.READ_ONLY, device=self.device)
        self.assertFalse(found.flags.writeable)
        self.assertTrue(found.base.memory.granted_flags & MemoryFlags.READ_ONLY)

    def test_round_trip(self):
        sent = gpumem.pagelocked_empty(1000, "f8", device=self.device)
        sent[:] = numpy.arange(1000)
        received = gpumem.pagelocked_zeros_like(sent, device=self.device)
        with self.device.memory(sent.nbytes) as memory, self.device.stream() as stream:
            memory.copy_from(sent, stream=stream)
            memory.copy_to(received, stream=stream)
            stream.synchronize()
        self.assertTrue((received == sent).all())

    def test_fortran_order(self):
        """The elements keep their places, or the copy is refused."""
        array = numpy.arange(12, dtype="i4").reshape(3, 4)
        columns, read = numpy.asfortranarray(array), numpy.zeros((3, 4), "i4")
        with self.pinned(48) as memory, self.device.pool() as pool, pool.alloc(48) as block:
            def view(order):
                return memory.view("i4", (3, 4), order=order)

            self.assertEqual((view("C").c_contiguous, view("C").f_contiguous), (True, False))
            self.assertEqual((view("F").c_contiguous, view("F").f_contiguous), (False, True))
            for call in (lambda: memory.copy_from(columns), lambda: memory.copy_to(columns),
                         lambda: memory.copy_from(view("F")), lambda: memory.copy_from(memoryview(columns)),
                         lambda: block.copy_from(columns), lambda: block.copy_to(columns),
                         lambda: view("C").__setitem__(..., columns), lambda: view("F").__setitem__(..., array)):
                with self.assertRaisesRegex(gpumem.InvalidArgument, "Fortran order"):
                    call()
            memory.copy_from(columns.T)
            memory.copy_to(read.reshape(4, 3))
            self.assertTrue((read.reshape(4, 3) == array.T).all())
            view("F")[...] = columns
            self.assertTrue((view("F").numpy() == array).all())
            view("C")[...] = array
            memory.copy_to(read)
            self.assertTrue((read == array).all())
            memory.copy_from(numpy.asfortranarray(array[:1]))  # a row has both orders

    def test_free_by_the_base(self):
        found = gpumem.pagelocked_zeros(100, "u1", device=self.device)
        base, part = found.base, found[10:20]
        for _ in range(2):  # refused, and nothing is freed
            with self.assertRaisesRegex(BufferError, "del array"):
                base.free()
        found[:] = 1
        del found
        with self.assertRaises(BufferError):
            base.free()
        part[:] = 2
        del part
        base.free()
        base.free()
        self.assertEqual(self.instance.stats().live_objects, 0)
        self.assertIn("closed", repr(base))
        for use in (base.buffer, base.numpy, lambda: base[0], lambda: numpy.asarray(base), base.__dlpack__,
                    lambda: self.instance.copy(base, bytes(100))):
            with self.assertRaises((gpumem.StaleHandle, BufferError)):
                use()

    def test_free_while_something_else_uses_it(self):
        def others(base):
            yield base.memory.view()
            yield base.memory.buffer()
            yield base.buffer()
            yield base.__dlpack__()
            yield numpy.asarray(base)
            yield base.numpy()
            yield base[1:5]
        count = len(list(others(gpumem.pagelocked_zeros(100, "u1", device=self.device).base)))
        for number in range(count):
            base = gpumem.pagelocked_zeros(100, "u1", device=self.device).base
            other = next(value for index, value in enumerate(others(base)) if index == number)
            with self.subTest(type(other).__name__), self.assertRaises(BufferError):
                base.free()
            del other
            self.assertFalse(base.memory.closed)
        del base
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_free_while_a_copy_is_in_flight(self):
        stream, release = self.held_stream()
        with self.device.memory(100) as target:
            base = gpumem.pagelocked_zeros(100, "u1", device=self.device).base
            target.copy_from(base, stream=stream)
            with self.assertRaises(gpumem.Busy):
                base.free()
            self.assertEqual(bytes(base.buffer()), bytes(100))
            release()
            base.free()
        stream.close()

    def test_unregister_by_the_base(self):
        array = gpumem.aligned_zeros(4096, "u1")
        found = gpumem.register_host_memory(array, device=self.device)
        pointer = array.__array_interface__["data"][0]
        with self.assertRaises(gpumem.WrongKind):
            found.base.free()
        found.base.unregister()
        found.base.unregister()
        self.assertEqual(self.instance.pointer_info(pointer).kind, Kind.PAGEABLE)
        self.assertEqual(self.instance.stats().live_objects, 0)
        del array
        gc.collect()
        found[:] = 7  # still good, as ordinary memory
        self.assertEqual(found.sum(), 7 * 4096)
        again = gpumem.register_host_memory(found, device=self.device)
        again.base.unregister()
        allocated = gpumem.pagelocked_zeros(16, "u1", device=self.device)
        with self.assertRaises(gpumem.WrongKind):
            allocated.base.unregister()

    def test_unregister_while_a_copy_is_in_flight(self):
        found = gpumem.register_host_memory(gpumem.aligned_zeros(4096, "u1"), device=self.device)
        stream, release = self.held_stream()
        with self.device.memory(4096) as target:
            target.copy_from(found.base, stream=stream)
            with self.assertRaises(gpumem.Busy):
                found.base.unregister()
            release()
            found.base.unregister()
        stream.close()

    def test_copies(self):
        sent, received = numpy.arange(100, dtype="f4"), numpy.zeros(100, "f4")
        memory = gpumem.mem_alloc(sent.nbytes, device=self.device)
        self.assertEqual((type(memory), memory.kind, int(memory)), (gpumem.Memory, Kind.DEVICE, memory.device_pointer))
        gpumem.memcpy_htod(memory, sent)
        gpumem.memcpy_dtoh(received, memory)
        self.assertTrue((received == sent).all())
        part = numpy.zeros(10, "f4")
        gpumem.memcpy_dtoh(part, memory)  # as much as the destination has
        self.assertTrue((part == sent[:10]).all())
        with self.device.stream() as stream:
            gpumem.memcpy_htod_async(memory, sent[::-1].copy(), stream)
            gpumem.memcpy_dtoh_async(received, memory, stream=stream)
            stream.synchronize()
            self.assertTrue((received == sent[::-1]).all())
        gpumem.memcpy_htod_async(memory, sent)
        gpumem.memcpy_dtoh_async(received, memory)
        self.assertTrue((received == sent).all())
        for wrong, error in ((lambda: gpumem.memcpy_htod(memory, numpy.zeros(101, "f4")), gpumem.InvalidArgument),
                             (lambda: gpumem.memcpy_dtoh(numpy.zeros(101, "f4"), memory), gpumem.InvalidArgument),
                             (lambda: gpumem.memcpy_dtoh(memory, sent), gpumem.InvalidArgument),
                             (lambda: gpumem.memcpy_htod(memory, memory), gpumem.InvalidArgument),
                             (lambda: gpumem.memcpy_dtoh(4096, memory), TypeError),
                             (lambda: gpumem.memcpy_dtoh(bytes(4), memory), gpumem.InvalidArgument),
                             (lambda: gpumem.memcpy_htod_async(memory, sent, 7), TypeError)):
            with self.assertRaises(error):
                wrong()
        memory.free()
        self.assertTrue(memory.closed)

    def test_copies_by_address(self):
        memory = gpumem.mem_alloc(16)
        received = bytearray(8)
        gpumem.memcpy_htod(int(memory) + 8, b"by place")
        gpumem.memcpy_dtoh(received, int(memory) + 8)
        self.assertEqual(received, b"by place")
        memory.free()

    def test_mapped_memory_takes_part(self):
        pinned = self.pinned(8)
        gpumem.memcpy_htod(pinned, b"from cpu")
        received = bytearray(8)
        gpumem.memcpy_dtoh(received, pinned)
        self.assertEqual(received, b"from cpu")
        pinned.free()
