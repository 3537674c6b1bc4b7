# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Statuses as exceptions, with all that the library says about a failure."""

import os
import pickle
import unittest

import gpumem
from gpumem import errors

from .support import Case, on_cuda


class StatusTest(unittest.TestCase):
    def test_each_status_has_a_class_with_its_name(self):
        codes = gpumem.statuses()
        self.assertIn(-101, codes)
        for code in codes:
            with self.subTest(code):
                self.assertEqual(errors.STATUS_NAMES[code], gpumem.status_name(code))
                if code:
                    self.assertEqual(errors.STATUS_CLASSES[code].code, code)
                    self.assertTrue(issubclass(errors.STATUS_CLASSES[code], gpumem.Error))
        self.assertEqual(set(errors.STATUS_CLASSES), set(codes) - {0})

    def test_info(self):
        info = gpumem.status_info(-203)
        self.assertEqual((info.code, info.name), (-203, "GPUMEM_ERROR_BUSY"))
        self.assertTrue(info.cause and info.remedy)
        with self.assertRaises(gpumem.NotFound):
            gpumem.status_info(-12345)
        self.assertEqual(gpumem.status_name(-12345), "GPUMEM_ERROR_?")

    def test_python_s_own_classes(self):
        for ours, its in ((gpumem.InvalidArgument, ValueError), (gpumem.OutOfDeviceMemory, MemoryError),
                          (gpumem.OutOfHostMemory, MemoryError), (gpumem.NotFound, LookupError)):
            self.assertTrue(issubclass(ours, its))

    def test_features_and_version(self):
        self.assertTrue(gpumem.feature_supported(gpumem.Feature.BACKEND_HOST))
        self.assertFalse(gpumem.feature_supported(999))
        self.assertEqual(".".join(map(str, gpumem.version())), gpumem.version_text())


class ErrorTest(Case):
    def test_detail(self):
        with self.assertRaises(gpumem.InvalidArgument) as caught:
            self.device.memory(0)
        error = caught.exception
        self.assertEqual((error.code, error.name, error.function),
                         (-101, "GPUMEM_ERROR_INVALID_ARGUMENT", "gpumem_memory_create"))
        self.assertEqual((error.native_domain, error.native_code, error.entry_point), (gpumem.NativeDomain.NONE, 0, ""))
        self.assertIsInstance(error.native_domain, gpumem.NativeDomain)
        self.assertTrue(error.message)
        self.assertEqual(str(error), error.message)

    def test_a_message_says_what_to_do(self):
        def remedy(expected, remedy, act):
            with self.assertRaises(expected) as caught:
                act()
            self.assertIn(remedy, caught.exception.message)

        remedy(gpumem.InvalidArgument, "longer than 63 bytes; use a shorter one",
               lambda: self.device.memory(64, name="n" * 64))
        with self.device.buffer(1) as buffer:
            remedy(gpumem.InvalidState, "awake already; use it as it is", buffer.wake)
        path = f"@gpumem-python-{os.getpid()}-remedies"
        hub = self.instance.hub(path)
        with self.instance.connect(path) as link:
            remedy(gpumem.NotFound, "Link.list() lists what it has, and Link.wait() waits for more", lambda: link.fetch("rows"))
            remedy(gpumem.NotFound, "it may be withdrawn already", lambda: hub.withdraw("rows"))
            hub.close()
            remedy(gpumem.PeerGone, "connect again, or get a new share handle", link.list)

    @on_cuda
    def test_native_detail(self):
        with self.assertRaises(gpumem.OutOfDeviceMemory) as caught:
            self.device.memory(1 << 50)
        error = caught.exception
        self.assertEqual((error.native_domain, error.native_code, error.native_name),
                         (gpumem.NativeDomain.CUDA, 2, "CUDA_ERROR_OUT_OF_MEMORY"))
        self.assertTrue(error.entry_point)

    def test_pickle(self):
        with self.assertRaises(gpumem.OutOfDeviceMemory) as caught:
            self.device.memory(1 << 62)
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertIs(type(copy), gpumem.OutOfDeviceMemory)
        self.assertEqual(copy.__dict__, caught.exception.__dict__)
        self.assertEqual((copy.name, str(copy)), (caught.exception.name, str(caught.exception)))

    def test_numbers_that_ctypes_would_cut(self):
        for size in (-1, 1 << 64, (1 << 64) + 4096):
            with self.subTest(size), self.assertRaises(gpumem.InvalidArgument):
                self.device.memory(size)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(4096, (1 << 32) + gpumem.Kind.DEVICE)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.malloc(gpumem.Kind.DEVICE, (1 << 64) + 4096)
        with self.assertRaises(gpumem.InvalidArgument):
            self.instance.device(1 << 32)
        with self.pinned() as memory:
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.copy((1 << 64) + memory.host_pointer, bytes(8), 8)
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.fill(memory, 1 << 32, 8)
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.free(-memory.host_pointer)
        with self.assertRaises((TypeError, gpumem.InvalidArgument)):
            self.device.memory(1.5)

    def test_no_device_instance_or_range(self):
        for wanted, makes in (
                ("device must be a gpumem.Device", (
                    gpumem.Pool, gpumem.Stream, gpumem.Event, gpumem.Buffer, lambda it: gpumem.Memory(it, 64),
                    lambda it: gpumem.Memory(it, 64, "pinned"), lambda it: gpumem.Memory.register(it, bytearray(64)),
                    lambda it: gpumem.Physical(it, 64), lambda it: gpumem.RingProducer(it, 64), lambda it: gpumem.Stream.wrap(it, 0),
                    lambda it: gpumem.Event.wrap(it, 1), lambda it: gpumem.GrowableArray(2, "f4", device=it))),
                ("instance must be a gpumem.Instance", (
                    gpumem.Group, gpumem.Hub, gpumem.Link, lambda it: gpumem.Range(it, 64), lambda it: gpumem.RingConsumer(it, bytes(8)),
                    lambda it: gpumem.Physical.retain(it, 1))),
                ("range must be a gpumem.Range", (gpumem.Part,))):
            for make in makes:
                for wrong in 1, "x", object():
                    with self.subTest(wanted, make=make, wrong=wrong), self.assertRaisesRegex(
                            TypeError, f"^{wanted}, not a {type(wrong).__name__}$"):
                        make(wrong)

    def test_no_backend_of_that_name(self):
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.Instance("banana")


class LogTest(Case):
    def tearDown(self):
        gpumem.set_log_function(None)
        super().tearDown()

    def test_messages(self):
        heard = []
        gpumem.set_log_function(lambda *message: heard.append(message), gpumem.LogLevel.DEBUG)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(0)
        gpumem.set_log_function(None)
        self.assertTrue(heard)
        self.assertEqual(heard[-1][0], gpumem.LogLevel.DEBUG)
        self.assertIsInstance(heard[-1][1], str)
        count = len(heard)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(0)
        self.assertEqual(len(heard), count)

    def test_an_exception_goes_to_the_hook(self):
        def broken(level, message):
            raise ZeroDivisionError("of the test")
        gpumem.set_log_function(broken, gpumem.LogLevel.DEBUG)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(0)
        gpumem.set_log_function(None)
        self.assertTrue(self.unraisable)
        self.assertIs(self.unraisable[0].object, broken)
        self.assertIs(self.unraisable[0].exc_type, ZeroDivisionError)
        self.unraisable.clear()

    def test_wrong_arguments_leave_the_former_function(self):
        heard = []
        gpumem.set_log_function(lambda *message: heard.append(message), gpumem.LogLevel.DEBUG)
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.set_log_function(print, 99)
        with self.assertRaises(TypeError):
            gpumem.set_log_function(7)
        heard.clear()
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(0)
        self.assertTrue(heard)

    def test_objects_forgotten_in_the_function_are_freed_later(self):
        kept = [self.device.memory(4096)]
        gpumem.set_log_function(lambda *message: kept.clear(), gpumem.LogLevel.DEBUG)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.memory(0)
        gpumem.set_log_function(None)
        self.assertEqual(kept, [])
        self.device.memory(4096).close()  # anything that creates
        self.assertEqual(self.instance.stats().live_objects, 0)
