# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Views of memory: the buffer protocol, DLPack in both directions, and the array interfaces."""

import array as arrays
import ctypes
import gc
import inspect
import re
import struct
import sys
import threading
import tracemalloc
import unittest.mock

import gpumem
from gpumem import MemoryFlags, _dlpack

from . import test_exchange
from .support import BACKEND, Case, at_each_line, needs_numpy, numpy, on_cuda, on_host, python

_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


class BufferTest(Case):
    def test_bytes(self):
        with self.pinned(100) as memory:
            view = memory.buffer()
            self.assertEqual((view.format, view.nbytes, view.readonly, view.contiguous), ("B", 100, False, True))
            view[:3] = b"abc"
            self.assertEqual(bytes(memory.buffer()[:3]), b"abc")
            del view

    def test_typed_and_shaped(self):
        with self.pinned(96) as memory:
            view = memory.view("float32", (4, 6)).buffer()
            self.assertEqual((view.format, view.shape, view.strides), ("f", (4, 6), (24, 4)))
            view[3, 5] = 1.5
            self.assertEqual(memory.view("<f4", offset=92).buffer()[0], 1.5)
            del view

    def test_part(self):
        with self.pinned(100) as memory:
            view = memory.view("u2", 3, offset=10)
            self.assertEqual((view.shape, view.nbytes, view.address), ((3,), 6, memory.host_pointer + 10))
            self.assertEqual(len(view), 3)
            del view
            empty = memory.view("u1", 0, offset=100)
            self.assertEqual(len(empty.buffer()), 0)
            del empty
            for arguments in ({"offset": 101}, {"shape": 101}, {"dtype": "f4", "offset": 1}, {"shape": -1},
                              {"shape": (1 << 40, 1 << 40)}, {"offset": -1}, {"shape": 99, "offset": 2}):
                with self.subTest(arguments), self.assertRaises(ValueError):
                    memory.view(**arguments)
            with self.assertRaises(ValueError):
                memory.view(order="X")
            with self.assertRaises(TypeError):
                memory.view(object)

    def test_close_waits_for_every_view(self):
        memory = self.pinned()
        for view in (memory.buffer(), memory.view(), memory.view("f4"), memory.buffer()[10:20], memory.__dlpack__()):
            with self.subTest(type(view).__name__):
                with self.assertRaises(BufferError):
                    memory.close()
                self.assertFalse(memory.closed)
        del view
        memory.close()

    def test_free_by_address_waits_for_every_view(self):
        for kind in ("pinned", "device", "managed"):
            memory = self.device.memory(4096, kind)
            view = memory.view(offset=8)
            for address in {memory.host_pointer, memory.device_pointer} - {None}:
                with self.subTest(kind), self.assertRaisesRegex(BufferError, "cannot be freed while views of it are alive"):
                    self.instance.free(address)
            memory.info()
            del view
            self.instance.free(int(memory))
            memory.close()
        with self.device.pool("pinned") as pool:
            block = pool.alloc(64)
            view = block.view()[8:]
            for free in (pool.free, self.instance.free_block):
                with self.assertRaisesRegex(BufferError, "cannot be freed while views of it are alive"):
                    free(int(block))
            self.assertEqual(pool.info().live_count, 1)
            other = pool.malloc(64)
            self.instance.free_block(other)  # meanwhile
            pool.free(pool.malloc(64))
            del view
            block.free()
        self.assertFalse(self.instance._views)

    def test_the_view_keeps_the_memory(self):
        view = self.pinned().buffer()
        gc.collect()
        view[4095] = 7
        self.assertEqual(self.instance.stats().live_objects, 1)
        del view
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_a_cycle_keeps_its_memory_to_the_end(self):
        pool = self.device.pool("pinned")
        pool.alloc(4).free()  # what it takes stays there

        def live():
            return self.instance.stats().live_objects + pool.info().live_count
        before, found = live(), []

        class Job:
            def __init__(self, memory):
                self.memory, self.bytes, self.me = memory, memory.buffer(), self

            def __del__(self):
                found.append(live() - before)
                if found[-1]:
                    self.bytes[:] = b"last"

        def write(out):
            try:
                yield
            finally:
                found.append(live() - before)
                if found[-1]:
                    out[:] = b"last"
        for make in (lambda: self.pinned(4), lambda: self.device.memory(4, "managed"),
                     lambda: self.device.buffer(4, location="host"), lambda: pool.alloc(4)):
            memory = make()
            alive = live() - before
            job = Job(memory)
            job.end = write(memory.buffer())
            next(job.end)
            del job, memory
            gc.collect()
            self.assertEqual(found, [alive, alive])
            self.assertEqual(live(), before)
            found.clear()
        pool.close()

    def test_what_a_finalizer_saves_is_counted(self):
        memory, saved = self.pinned(), []

        class Job:
            def __init__(self):
                self.bytes, self.me = memory.buffer(), self

            def __del__(self):
                saved.append(self.bytes)
        Job()
        gc.collect()
        self.assertTrue(saved)
        with self.assertRaises(BufferError):
            memory.close()
        saved.clear()
        gc.collect()  # up to Python 3.8 the whole cycle lives on
        memory.close()

    def test_a_view_is_freed_or_lent(self):
        lent = []

        def lend(view):
            try:
                lent.append(view.buffer())
            except gpumem.StaleHandle:
                pass

        def interface(view):
            try:
                lent.append(view.__array_interface__)
            except gpumem.StaleHandle:
                pass

        def export(view):
            try:
                lent.append(view.__dlpack__())
            except gpumem.StaleHandle:
                pass

        def free(view):
            try:
                view.free()
            except BufferError:
                pass
        def hand_over(view):
            table = test_exchange.table_of(gpumem.View)
            try:
                lent.append(test_exchange.wrapped(table, test_exchange.exported(table, view)))
            except gpumem.StaleHandle:
                pass

        def borrow(view):  # lends nothing, but what it finds must be there
            try:
                lent.append(test_exchange.borrowed(test_exchange.table_of(gpumem.View), view))
            except gpumem.StaleHandle:
                pass

        def view_of_memory():
            return self.pinned(64).view()
        for use in (lend, export, hand_over, borrow, interface):
            for pair in ((free, use), (use, free)) if use in (lend, export, hand_over) else ((use, free),):
                for view in at_each_line(view_of_memory, *pair):
                    self.assertFalse(lent and view.memory.closed)
                    view._lent = False  # nobody says when an interface is given back
                    lent.clear()
                    view.free()

    def test_two_threads_export_a_view(self):
        found = []

        def export(view):
            found.append(test_exchange.exported(test_exchange.table_of(gpumem.View), view))
        for view in at_each_line(lambda: self.pinned(64).view(), export, export):
            kept = [(ctypes.cast(ctypes.c_char_p(entry[0]), ctypes.c_void_p).value, len(entry[0])) for entry in view._exchange]
            for managed in found:
                tensor = managed.contents.tensor
                for numbers in tensor.shape, tensor.strides:
                    self.assertTrue(any(0 <= ctypes.addressof(numbers.contents) - start < size for start, size in kept))
                test_exchange.release(managed)
            del managed, tensor
            found.clear()

    def test_what_was_lent_leaves_nothing(self):
        with self.pinned() as memory:
            view = memory.view()
            uses = [view.buffer]
            if sys.version_info >= (3, 12):
                uses.append(lambda view=view: memoryview(view))
            for use in uses:
                tracemalloc.start()
                for _ in range(100):
                    use()
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(2000):
                    use()
                grown = tracemalloc.get_traced_memory()[0] - before
                tracemalloc.stop()
                self.assertLess(grown, 16 << 10)
            del view, uses, use

    def test_bytes_of_a_view(self):
        with self.pinned(8) as memory:
            memory.copy_from(bytes(range(8)))
            self.assertEqual(bytes(memory), bytes(range(8)))
            self.assertEqual(bytes(memory.view("u2")), bytes(range(8)))
            self.assertEqual(bytes(memory.view("f4")[1:]), bytes(range(4, 8)))
        with self.device.memory(8) as memory, self.assertRaises(BufferError):
            bytes(memory.view())

    def test_elements_that_no_memoryview_describes(self):
        full, simple = 0x11c, 0  # PyBUF_FULL_RO and PyBUF_SIMPLE
        with self.pinned(64) as memory:
            for view in (memory.view("f2"), memory.view("c8", (2, 4)), memory.view("f4", (4, 4), order="F"), memory.view(">f4"),
                         memory.view("i4", ()), memory.view("i4", (0, 3))):
                self.assertEqual(view.__buffer__(simple).nbytes, view.nbytes)
                with self.assertRaisesRegex(BufferError, re.escape(view.typestr)):
                    view.__buffer__(full)
                if numpy:
                    array = numpy.asarray(view)
                    self.assertEqual((array.dtype, array.shape, array.strides), (numpy.dtype(view.typestr), view.shape, view.strides))
                    del array
            for view in memory.view("f4", (4, 4)), memory.view(), memory.view("b1"), memory.view("f8")[2:]:
                self.assertEqual(view.__buffer__(full).shape, view.shape)
            del view

    def test_device_memory_is_not_for_the_cpu(self):
        with self.device.memory(64) as memory:
            with self.assertRaises(BufferError):
                memory.buffer()
            view = memory.view()
            self.assertFalse(hasattr(view, "__array_interface__"))
            del view

    def test_views_are_made_by_memory(self):
        with self.assertRaises(TypeError):
            gpumem.View()

    def test_device_pointer(self):
        with self.pinned(require=MemoryFlags.WRITE_COMBINED) as memory:
            view = memory.view(offset=100)
            self.assertEqual(view.device_pointer, memory.device_pointer + 100)
            self.assertEqual(view.get_device_pointer(), view.device_pointer)
            del view
        with self.device.register(bytearray(8192)) as memory:
            self.assertIsNone(memory.view().device_pointer)

    def test_memoryview_of_memory(self):
        if sys.version_info < (3, 12):
            self.skipTest("classes in Python have a buffer from 3.12 on")
        with self.pinned() as memory:
            view = memoryview(memory)
            self.assertEqual(view.nbytes, 4096)
            with self.assertRaises(BufferError):
                memory.close()
            view.release()

    def test_threads_make_and_drop_views(self):
        memory = self.pinned()
        failures = []

        def work():
            try:
                for _ in range(300):
                    memory.buffer()[0] = 1
                    try:
                        memory.close()
                        failures.append("closed")
                    except BufferError:
                        pass
            except Exception as problem:
                failures.append(problem)
        keep = memory.view()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        del keep
        memory.close()


class IndexTest(Case):
    def view(self, memory):
        return memory.view("i4", (4, 6))

    def test_elements(self):
        with self.pinned(96) as memory:
            memory.view("i4").buffer()[:] = memoryview(struct.pack("=24i", *range(24))).cast("i")
            view = self.view(memory)
            self.assertEqual((view[0, 0], view[1, 2], view[-1, -1], view[3][5], view[3, ...][0]), (0, 8, 23, 23, 18))
            view[1, 2] = -5
            self.assertEqual((view[1, 2], memory.view("i4")[8]), (-5, -5))
            self.assertEqual(list(memory.view("u1", 4)), list(struct.pack("=i", 0)))
            self.assertEqual([row[0] for row in view], [0, 6, 12, 18])
            memory.view("f8", 1)[0] = 1.5
            self.assertEqual(memory.view("f8", 1)[0], 1.5)
            for wrong in ((4, 0), (0, 6), (-5, 0), (0, 0, 0), (..., 0, ...)):
                with self.assertRaises(IndexError):
                    view[wrong]
            for wrong in ("a", 1.5, None, [0]):
                with self.assertRaises(TypeError):
                    view[wrong]
            with self.assertRaises(TypeError):
                view[0, 0] = "text"
            with self.assertRaises(TypeError):
                len(view[0, 0, ...])
            with self.assertRaises(TypeError):
                memory.view("c8")[0]
            del view
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_slices(self):
        with self.pinned(96) as memory:
            memory.fill(0)
            view = self.view(memory)
            for key, shape, offset, contiguous in (
                    (slice(1, 3), (2, 6), 24, True), (2, (6,), 48, True), ((2, slice(1, 4)), (3,), 52, True),
                    ((slice(None), 1), (4,), 4, False), ((..., slice(0, 2)), (4, 2), 0, False),
                    (slice(None, None, -1), (4, 6), 72, False), (slice(3, 1), (0, 6), 0, True), (..., (4, 6), 0, True),
                    ((0, slice(5, None)), (1,), 20, True), (slice(0, 4, 2), (2, 6), 0, False)):
                with self.subTest(str(key)):
                    part = view[key]
                    self.assertEqual((part.shape, part.address - memory.host_pointer, part.contiguous, part.typestr),
                                     (shape, offset, contiguous, "<i4"))
                    self.assertEqual(part.nbytes, 4 * part.shape[0] * (part.shape[1] if len(part.shape) > 1 else 1))
            with self.assertRaises(BufferError):
                memory.close()
            part = view[1:3]
            part.buffer()[0, 0] = 9
            self.assertEqual(view[1, 0], 9)
            self.instance.copy(view[2], bytes(range(24)))
            self.assertEqual(bytes(view[2].buffer()), bytes(range(24)))
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.copy(view[:, 1], bytes(16))
            self.assertEqual(part.device_pointer, memory.device_pointer + 24)
            del view, part

    def test_a_part_keeps_the_memory(self):
        part = self.pinned(96).view("i4", (4, 6))[1:3]
        gc.collect()
        part[0, 0] = 3
        self.assertEqual((part[0, 0], self.instance.stats().live_objects), (3, 1))
        del part
        self.assertEqual(self.instance.stats().live_objects, 0)

    def test_writing_slices(self):
        with self.pinned(16) as pinned, self.device.memory(16) as memory:
            for target in (pinned, memory):
                target.fill(0)
                view = target.view()
                view[4:8] = b"abcd"
                view[8:] = target.view()[:8]
                result = bytearray(16)
                target.copy_to(result)
                self.assertEqual(result, b"\0\0\0\0abcd\0\0\0\0abcd")
                for wrong in (b"abc", b"abcde", bytes(16)):
                    with self.assertRaises(gpumem.InvalidArgument):
                        view[4:8] = wrong
                del view

    def test_slices_convert_nothing(self):
        def refused(view, source, ours, theirs):
            text = f"type {ours}, and the source of type {theirs}; convert the source first"
            with self.subTest(f"{ours} = {theirs}"), self.assertRaisesRegex(TypeError, re.escape(text)):
                view[1] = source
        with self.pinned(64) as memory, self.device.memory(32) as other:
            memory.fill(0)
            view, whole = memory.view("float32", (2, 8)), memory.view("u1", (2, 32))
            good = arrays.array("f", range(8))
            view[1] = good
            for same in (bytes(good), bytearray(good), memoryview(good).cast("B"), memoryview(good).cast("B").cast("b"),
                         memoryview(good).cast("B").cast("c"), (ctypes.c_float * 8)(*good), other, other.view("f4"), other.view(),
                         other.view("V4")):
                other.copy_from(good)
                view[0] = bytes(32)
                view[0] = same
                self.assertEqual([view[0, at] for at in range(8)], list(range(8)))
                whole[0] = bytes(view[1])
            memory.view("V4", (2, 8))[1] = good
            for source, theirs in ((arrays.array("i", range(8)), "<i4"), (arrays.array("d", range(4)), "<f8"),
                                   (arrays.array("H", range(16)), "<u2"), ((ctypes.c_bool * 32)(), "|b1"),
                                   ((ctypes.c_float.__ctype_be__ * 8)(), ">f4"), (other.view("i4"), "<i4"),
                                   (other.view(">f4"), ">f4")):
                refused(view, source, "<f4", theirs)
            refused(whole, good, "|u1", "<f4")
            if numpy:
                view[1] = numpy.arange(8, dtype="f4")
                refused(view, numpy.arange(8, dtype="i4"), "<f4", "<i4")
                refused(view, numpy.arange(8), "<f4", "<i8")  # whatever its size
                refused(view, numpy.zeros(4, "M8[s]"), "<f4", "<M8[s]")
                refused(view, numpy.zeros(16, "f2"), "<f4", "<f2")
            self.assertEqual([view[1, at] for at in range(8)], list(range(8)))
            del view, whole, same, source

    def test_a_number_is_no_address(self):
        with self.pinned(64) as source, self.pinned(64) as target, self.device.memory(64) as memory:
            source.fill(9)
            address = source.host_pointer
            wrong = [address, 7, 0, True, 1.5, None]
            if numpy:
                wrong += [numpy.uint64(address), numpy.float64(7)]
            for written in (target, memory):
                written.fill(1)
                view = written.view("u1", (8, 8))
                for key in (0, slice(None), ..., (slice(None), 0), (0, 0, ...)):
                    for value in wrong:
                        with self.subTest(key=key, value=value), self.assertRaisesRegex(TypeError, r"to fill it with a number"):
                            view[key] = value
                received = bytearray(64)
                written.copy_to(received)
                self.assertEqual(received, bytes([1]) * 64)
                del view

    def test_device_memory(self):
        with self.device.memory(64) as memory:
            view = memory.view("f4")
            with self.assertRaises(BufferError):
                view[0]
            with self.assertRaises(BufferError):
                view[0] = 1.0
            part = view[4:8]
            self.assertEqual((part.device_pointer, part.nbytes), (memory.device_pointer + 16, 16))
            self.instance.copy(part, struct.pack("=4f", 1, 2, 3, 4))
            result = bytearray(16)
            self.instance.copy(result, view[4:8])
            self.assertEqual(struct.unpack("=4f", result), (1, 2, 3, 4))
            del view, part

    def test_read_only(self):
        with self.device.register(bytes(8192), require="read_only") as memory:
            view = memory.view()
            self.assertEqual(view[5], 0)
            for key, value in ((5, 1), (slice(0, 4), bytes(4))):
                with self.assertRaises(gpumem.InvalidArgument):
                    view[key] = value
            del view

    def test_memory_of_others(self):
        with self.pinned(16) as memory:
            memory.fill(0)
            view = gpumem.from_dlpack(memory.view("i4", (2, 2)))
            part = view[1]
            part[0] = 7
            self.assertEqual((view[1, 0], memory.view("i4")[2]), (7, 7))
            del view
            part[1] = 8
            self.assertEqual(memory.view("i4")[3], 8)
            with self.assertRaises(BufferError):
                memory.close()
            del part


@needs_numpy
class NumpyTest(Case):
    def test_host_memory_is_an_array_in_place(self):
        with self.pinned(96) as pinned, self.device.register(bytearray(8192)) as registered:
            for memory in (pinned, registered):
                for make in (numpy.asarray, numpy.array, lambda value: value.numpy(), lambda value: numpy.asarray(value.view())):
                    found = make(memory)
                    self.assertEqual((found.dtype, found.shape), (numpy.uint8, (memory.size,)))
                    found[:] = 7
                    if make is not numpy.array:
                        self.assertEqual(found.__array_interface__["data"][0], memory.host_pointer)
                        with self.assertRaises(BufferError):
                            memory.close()
                    del found
            found = numpy.asarray(pinned)
            self.assertIsInstance(found.base, (gpumem.View, memoryview))  # from Python 3.12 on, numpy takes the buffer
            self.assertEqual(pinned.view()[95], 7)
            self.assertEqual(numpy.asarray(pinned, dtype="f4").dtype, numpy.float32)
            self.assertEqual(numpy.asarray(pinned, dtype="u1").__array_interface__["data"][0], pinned.host_pointer)
            self.assertEqual((numpy.asarray(pinned.view("f4", (4, 6))).shape, numpy.sum(pinned)), ((4, 6), 7 * 96))
            with self.assertRaises(ValueError):
                pinned.__array__("f4", copy=False)
            del found

    def test_parts(self):
        with self.pinned(96) as memory:
            view = memory.view("i4", (4, 6))
            array = view.numpy()
            array[:] = numpy.arange(24).reshape(4, 6)
            for key in (slice(1, 3), 2, (slice(None), 1), (..., slice(0, 6, 2)), slice(None, None, -1),
                        (slice(None, None, -2), slice(4, 0, -1)), ..., slice(3, 1)):
                self.assertTrue(numpy.array_equal(view[key].numpy(), array[key]), key)
            self.assertEqual(view[1, 2], array[1, 2])
            del view, array

    def test_elements_that_are_arrays(self):
        """They add dimensions, as in numpy."""
        with self.pinned(96) as memory:
            for dtype, shape in (("(2,3)f4", 4), ("(2,3)f4", None), (("(2,)i2", (3,)), (2, 2)), (numpy.dtype("(4,)u1"), ())):
                view = memory.view(dtype, shape)
                right = numpy.zeros(96 // numpy.dtype(dtype).itemsize if shape is None else shape, dtype)
                self.assertEqual((view.shape, view.strides, view.typestr), (right.shape, right.strides, right.dtype.str))
                self.assertEqual((view.numpy().shape, view.numpy().dtype), (right.shape, right.dtype))
            with self.assertRaises(gpumem.InvalidArgument):
                memory.view("(5,5)f4")
            del view

    def test_types_without_bytes(self):
        with self.pinned(96) as memory:
            for dtype in (str, "S0", "V0", [], "f0"):
                for shape in (None, 3):
                    with self.assertRaisesRegex((gpumem.InvalidArgument, TypeError), "no bytes|f0"):
                        memory.view(dtype, shape)

    def test_device_memory_is_no_array(self):
        with self.device.memory(64) as memory:
            for make in (numpy.asarray, numpy.array, numpy.sum, lambda value: value.numpy(), lambda value: value.view().numpy(),
                         lambda value: numpy.asarray(value.view()), lambda value: numpy.asarray(value.view("f4"), "f8"),
                         lambda value: numpy.zeros(64, "u1") + value):
                with self.assertRaisesRegex(BufferError, "copy_to"):
                    make(memory)


class DLPackTest(Case):
    def capsule(self, *arguments, **options):
        with_memory = self.pinned(64)
        return with_memory.view("f4", (4, 4)).__dlpack__(*arguments, **options)

    def exported(self):
        return self.instance.stats().live_objects

    def test_names_by_version(self):
        for options, name in (({}, b"dltensor"), ({"max_version": (0, 8)}, b"dltensor"),
                              ({"max_version": (1, 0)}, b"dltensor_versioned"),
                              ({"max_version": (2, 3)}, b"dltensor_versioned")):
            with self.subTest(options):
                self.assertEqual(_capsule_name(self.capsule(**options)), name)

    def test_an_untaken_capsule_gives_back(self):
        before = self.exported()
        capsule = self.capsule()
        self.assertEqual(self.exported(), before + 1)
        del capsule
        self.assertEqual(self.instance.stats().live_objects, 0)
        self.assertEqual(self.exported(), before)

    def test_a_consumer_that_fails_gives_back(self):
        """It drops the capsule while its exception is set."""
        for options in ({}, {"max_version": (1, 0)}, {"copy": True}):
            memory = self.pinned()
            view = memory.view("f4")
            with self.assertRaisesRegex(TypeError, "^int"):
                int(view.__dlpack__(**options))
            view.free()
            self.assertTrue(memory.closed)

    def test_every_owner_reclaims(self):
        """What nobody has keeps nothing from being freed, changed or passed on."""
        unit = self.device.physical_granularity("host").minimum

        def drop(owner):
            with self.assertRaises(TypeError):
                int(owner.view().__dlpack__())
        with self.device.pool("pinned") as pool, self.instance.reserve(unit) as addresses:
            block = pool.alloc(64)
            drop(block)
            block.free()
            with self.device.physical(unit, "host") as physical:
                addresses.map(0, physical)
            for act in (lambda: addresses.set_access(0, unit, {"host": "read"}), lambda: addresses.unmap(0, unit)):
                addresses.set_access(0, unit, {"host": "readwrite"})
                drop(addresses.part())
                act()
        with self.device.buffer(unit, location="host") as buffer:
            drop(buffer)
            buffer.sleep("zero")
            buffer.wake()
            drop(buffer)
            buffer.resize(1)
            drop(buffer)
        memory = self.pinned()
        drop(memory)
        self.assertEqual(self.instance.close(force=True), 1)

    def test_a_capsule_that_others_have_keeps_the_memory(self):
        memory = self.pinned()
        capsule = memory.__dlpack__()
        for _ in range(2):
            with self.assertRaises(BufferError):
                memory.close()
            self.assertEqual(self.instance.stats().live_objects, 1)
        view = gpumem.from_dlpack(capsule)
        del capsule
        with self.assertRaises(BufferError):
            memory.close()
        view[0] = 7
        self.assertEqual(memory.view()[0], 7)
        del view
        memory.close()

    def test_struct(self):
        memory = self.pinned(96)
        capsule = memory.view("i8", (3, 4), order="F").__dlpack__(max_version=(1, 1))
        managed = _dlpack._ManagedVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        tensor = managed.tensor
        self.assertEqual((managed.major, managed.flags), (1, 0))
        self.assertEqual((tensor.data, tensor.ndim, tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset),
                         (memory.host_pointer, 2, 0, 64, 1, 0))
        self.assertEqual((list(tensor.shape[:2]), list(tensor.strides[:2])), ([3, 4], [1, 3]))
        del capsule
        memory.close()

    def test_layout_of_the_structs(self):
        # As dlpack.h has them on 64-bit machines.
        self.assertEqual(ctypes.sizeof(_dlpack._Tensor), 48)
        self.assertEqual(ctypes.sizeof(_dlpack._Managed), 64)
        self.assertEqual(ctypes.sizeof(_dlpack._ManagedVersioned), 80)
        self.assertEqual([_dlpack._Tensor.device_type.offset, _dlpack._Tensor.ndim.offset, _dlpack._Tensor.code.offset,
                          _dlpack._Tensor.shape.offset, _dlpack._Tensor.byte_offset.offset], [8, 16, 20, 24, 40])
        self.assertEqual([_dlpack._ManagedVersioned.deleter.offset, _dlpack._ManagedVersioned.flags.offset,
                          _dlpack._ManagedVersioned.tensor.offset], [16, 24, 32])

    def test_round_trip(self):
        memory = self.pinned(64)
        view = gpumem.from_dlpack(memory.view("f4", (4, 4), order="F"))
        self.assertEqual((view.shape, view.strides, view.typestr, view.address, view.memory),
                         ((4, 4), (4, 16), "<f4", memory.host_pointer, None))
        with self.assertRaises(BufferError):
            memory.close()
        again = gpumem.from_dlpack(view)
        del view
        with self.assertRaises(BufferError):
            memory.close()
        del again
        memory.close()

    def test_a_capsule_is_taken_once(self):
        for options in ({}, {"max_version": (1, 0)}):
            capsule = self.capsule(**options)
            view = gpumem.from_dlpack(capsule)
            self.assertTrue(_capsule_name(capsule).startswith(b"used_dltensor"))
            with self.assertRaises(ValueError):
                gpumem.from_dlpack(capsule)
            del capsule  # gives nothing back
            self.assertEqual(self.exported(), 1)
            view.buffer()[0, 0] = 1
            del view
            self.assertEqual(self.exported(), 0)

    def made_by_others(self, versioned, major=1, **fields):
        """A capsule of a producer written here, and the list of the calls of its deleter."""
        cls = _dlpack._ManagedVersioned if versioned else _dlpack._Managed
        deleted, managed = [], cls()
        shape, data = (ctypes.c_int64 * 1)(8), (ctypes.c_float * 8)(*range(8))
        managed.tensor.data, managed.tensor.ndim = ctypes.addressof(data), 1
        managed.tensor.device_type, managed.tensor.code, managed.tensor.bits, managed.tensor.lanes = 1, 2, 32, 1
        managed.tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        deleter = test_exchange.Deleter(deleted.append)
        managed.deleter = ctypes.cast(deleter, ctypes.c_void_p)
        if versioned:
            managed.major = major
        for name, value in fields.items():
            setattr(managed.tensor, name, value)
        capsule = _dlpack._new_capsule(ctypes.addressof(managed), b"dltensor_versioned" if versioned else b"dltensor",
                                       None)
        self.kept = managed, shape, data, deleter
        return capsule, deleted

    def test_the_deleter_is_called_once(self):
        for versioned in (False, True):
            capsule, deleted = self.made_by_others(versioned)
            view = gpumem.from_dlpack(capsule)
            buffer = view.buffer()
            self.assertEqual(buffer.tolist(), list(range(8)))
            del capsule, view
            self.assertEqual(deleted, [])
            del buffer
            self.assertEqual(deleted, [ctypes.addressof(self.kept[0])])

    def test_no_deleter(self):
        capsule, deleted = self.made_by_others(True)
        self.kept[0].deleter = None
        view = gpumem.from_dlpack(capsule)
        del view
        self.assertEqual(deleted, [])

    def test_what_is_no_tensor(self):
        for wrong in ([1, 2], b"bytes", None):
            with self.assertRaisesRegex(TypeError, f"^a {type(wrong).__name__} has no __dlpack__$"):
                gpumem.from_dlpack(wrong)

    def refused(self, pattern, versioned=True, **fields):
        """The tensor is still in its capsule."""
        capsule, deleted = self.made_by_others(versioned, **fields)
        name = _capsule_name(capsule)
        with self.assertRaisesRegex(BufferError, pattern):
            gpumem.from_dlpack(capsule)
        self.assertEqual((_capsule_name(capsule), deleted), (name, []))

    def test_a_version_that_nobody_knows(self):
        self.refused("^the tensor has version 2.0", major=2)

    def test_elements_that_nobody_knows(self):
        self.refused("4 lanes", lanes=4)
        for code, bits in (4, 16), (2, 72):  # bfloat16, and nobody's
            capsule, deleted = self.made_by_others(True, code=code, bits=bits)
            view = gpumem.from_dlpack(capsule)
            self.assertEqual((view.typestr, deleted), (f"|V{bits // 8}", []))
            del view
            self.assertEqual(len(deleted), 1)

    def test_a_rare_tensor_is_taken_once(self):
        """Another thread imports it while Python looks at it."""
        taken, refused = [], []

        def take(made):
            try:
                taken.append(gpumem.from_dlpack(made[0]))
            except gpumem.InvalidArgument:
                refused.append(made)
        for _, deleted in at_each_line(lambda: self.made_by_others(True, bits=72), take, take):
            self.assertLessEqual(len(refused), 1)
            self.assertEqual(len(taken), 1)
            taken.clear()
            refused.clear()
            self.assertEqual(len(deleted), 1)

    def test_a_tensor_without_its_shape(self):
        for versioned in (False, True):
            self.refused("^the tensor has 1 dimensions and no shape$", versioned, shape=None)

    def test_tensors_that_cannot_be(self):
        below = (ctypes.c_int64 * 2)(3, -4)
        shape = ctypes.cast(below, ctypes.POINTER(ctypes.c_int64))
        for versioned in (False, True):
            for fields, text in (({"ndim": 2, "shape": shape}, "the shape .3, -4."), ({"ndim": -3}, "-3 dimensions"), ({"data": None}, "no data"),
                                 ({"bits": 0}, "0 bits"), ({"byte_offset": (1 << 64) - 1}, "the offset 18446744073709551615")):
                self.refused(text, versioned, **fields)

    def test_an_interruption_is_not_lost(self):
        view = self.pinned().view("f4", (4, 6))
        with unittest.mock.patch.object(gpumem.View, "_check_counted", side_effect=[KeyboardInterrupt, None, None, None]):
            with self.assertRaises(KeyboardInterrupt):
                view.__dlpack__(max_version=(1, 0))

    def test_strange_sources(self):
        for source in (7, None, "text"):
            with self.assertRaises((TypeError, ValueError)):
                gpumem.from_dlpack(source)

    def test_old_producers(self):
        capsule, deleted = self.made_by_others(False)

        class Old:
            def __dlpack__(self, stream=None):
                return capsule
        view = gpumem.from_dlpack(Old())
        self.assertEqual(view.shape, (8,))
        with self.assertRaises(TypeError):
            gpumem.from_dlpack(Old(), copy=True)
        del view
        self.assertEqual(len(deleted), 1)

    def test_a_stream_that_the_producer_comes_before(self):
        asked = []

        class Array:
            def __init__(self, memory, place, old=False):
                self.memory, self.place, self.old = memory, place, old

            def __dlpack_device__(self):
                return self.place

            def __dlpack__(self, **options):
                if self.old and "max_version" in options:
                    raise TypeError("unexpected keyword argument 'max_version'")
                asked.append(options)
                return self.memory.__dlpack__()
        with self.pinned() as memory, self.device.stream() as stream:
            number = stream.native_stream
            for array, expected in ((Array(memory, (2, 0)), {"max_version": (1, 0), "stream": number}),
                                    (Array(memory, (13, 0)), {"max_version": (1, 0), "stream": number}),
                                    (Array(memory, (2, 0), old=True), {"stream": number}),
                                    (Array(memory, (1, 0)), {"max_version": (1, 0)}),  # has no streams
                                    (Array(memory, (3, 0)), {"max_version": (1, 0)})):
                gpumem.from_dlpack(array, stream=stream)
                self.assertEqual(asked.pop(), expected)
            gpumem.from_dlpack(Array(memory, (2, 0)), stream=stream, device=(1, 0))
            self.assertEqual(asked.pop(), {"max_version": (1, 0), "dl_device": (1, 0)})
            gpumem.from_dlpack(Array(memory, (2, 0)), stream=0)  # the legacy default stream
            self.assertEqual(asked.pop()["stream"], 1)
            gpumem.from_dlpack(Array(memory, (2, 0)))
            self.assertEqual(asked.pop(), {"max_version": (1, 0)})
            with self.assertRaises(ValueError):
                gpumem.from_dlpack(memory.__dlpack__(), stream=stream)  # of whom?

    def test_foreign_memory_as_an_operand(self):
        capsule, _ = self.made_by_others(True)
        with self.device.memory(32) as memory:
            memory.copy_from(gpumem.from_dlpack(capsule))
            result = bytearray(32)
            memory.copy_to(result)
            self.assertEqual(memoryview(result).cast("f").tolist(), list(range(8)))

    def test_read_only(self):
        with self.device.register(bytes(8192), require=MemoryFlags.READ_ONLY) as memory:
            with self.assertRaises(BufferError):
                memory.__dlpack__()
            copied = gpumem.from_dlpack(memory.__dlpack__(dl_device=(1, 0), copy=True))
            self.assertFalse(copied.readonly)
            view = gpumem.from_dlpack(memory)
            self.assertTrue(view.readonly)
            self.assertTrue(view.buffer().readonly)
            with self.assertRaises(ValueError):
                self.instance.copy(view, bytes(8), 8)
            del view

    @on_host
    def test_devices_of_the_host_backend(self):
        with self.pinned() as memory:
            self.assertEqual(memory.__dlpack_device__(), (1, 0))
        with self.device.register(bytearray(8192)) as memory:
            self.assertEqual(memory.__dlpack_device__(), (1, 0))
        with self.device.memory(64) as memory:
            with self.assertRaises(BufferError):
                memory.__dlpack_device__()
            with self.assertRaises(BufferError):
                memory.__dlpack__()

    @on_cuda
    def test_devices_of_the_cuda_backend(self):
        with self.pinned() as memory:
            self.assertEqual(memory.__dlpack_device__(), (3, 0))
        with self.device.register(bytearray(8192)) as memory:
            self.assertEqual(memory.__dlpack_device__(), (3, 0))
        with self.instance.device(1).memory(64) as memory:
            self.assertEqual(memory.__dlpack_device__(), (2, 1))
            view = gpumem.from_dlpack(memory)
            self.assertEqual((view.address, view.dlpack_device), (memory.device_pointer, (2, 1)))
            with self.assertRaises(BufferError):
                view.buffer()
            del view

    def test_copy(self):
        memory = self.pinned(64)
        memory.buffer()[:] = bytes(range(64))
        view = gpumem.from_dlpack(memory, device=(1, 0), copy=True)
        memory.close()
        self.assertEqual(bytes(view.buffer()), bytes(range(64)))
        capsule = view.__dlpack__(max_version=(1, 0), copy=True)
        managed = _dlpack._ManagedVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        self.assertEqual(managed.flags, _dlpack.IS_COPIED)

    @on_cuda
    def test_a_copy_is_in_memory_of_the_same_kind(self):
        for kind, place in (("device", (2, 1)), ("managed", (13, 1)), ("pinned", (3, 0))):
            for order in "CF":
                with self.subTest(kind, order=order):
                    memory = self.instance.device(1).memory(64, kind)
                    memory.copy_from(bytes(range(64)))
                    source = memory.view("u4", (2, 8), order=order)
                    capsule = source.__dlpack__(max_version=(1, 0), copy=True)
                    managed = _dlpack._ManagedVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
                    self.assertEqual(managed.flags, _dlpack.IS_COPIED)
                    view = gpumem.from_dlpack(capsule)
                    self.assertEqual((view.dlpack_device, view.strides), (place, source.strides))
                    del source
                    memory.close()
                    self.assertEqual(self.instance.pointer_info(view.address).kind, gpumem.Kind[kind.upper()])
                    result = bytearray(64)
                    self.instance.copy(result, view, 64)
                    self.assertEqual(result, bytes(range(64)))
                    del view, capsule, managed

    @on_cuda
    def test_a_copy_comes_after_work_in_flight(self):
        stream, release = self.held_stream()
        with self.device.memory(64) as memory:
            memory.fill(7, stream=stream)
            releasing = threading.Timer(0.05, release)
            releasing.start()
            view = gpumem.from_dlpack(memory, copy=True)
            releasing.join()
            result = bytearray(64)
            self.instance.copy(result, view, 64)
            self.assertEqual(result, bytes([7]) * 64)
            del view
        stream.close()

    @on_cuda
    def test_device_memory_of_another_library_is_not_copied(self):
        with self.device.memory(64) as memory:
            view = gpumem.from_dlpack(memory)
            for options in ({"dl_device": (1, 0)}, {"copy": True}):
                with self.assertRaises(BufferError):
                    view.__dlpack__(**options)
            self.assertEqual(gpumem.from_dlpack(view).address, view.address)
            del view

    def test_device_memory_to_the_cpu(self):
        with self.device.memory(64) as memory:
            memory.copy_from(bytes(range(64)))
            view = gpumem.from_dlpack(memory, device=(1, 0))
            self.assertEqual((bytes(view.buffer()), view.dlpack_device), (bytes(range(64)), (1, 0)))
            with self.assertRaises(BufferError):
                memory.__dlpack__(dl_device=(1, 0), copy=False)

    def test_devices_that_it_is_not_on(self):
        with self.pinned() as memory:
            for device in ((2, 0), (10, 0), (2, 7)):
                with self.assertRaises(BufferError):
                    memory.__dlpack__(dl_device=device)

    def test_streams(self):
        with self.pinned() as memory:
            memory.__dlpack__(stream=-1)
            with self.assertRaises(ValueError):
                memory.__dlpack__(stream=1)

    @on_cuda
    def test_streams_of_devices(self):
        stream, release = self.held_stream()
        with self.device.memory(64) as memory, self.device.stream() as consumer:
            for number in (0, -2):
                with self.assertRaises(ValueError):
                    memory.__dlpack__(stream=number)
            memory.__dlpack__(stream=None)
            memory.fill(1, stream=stream)
            memory.__dlpack__(stream=-1)
            self.assertTrue(consumer.query())
            memory.__dlpack__(stream=consumer.native_stream)
            self.assertFalse(consumer.query())  # it waits for the fill
            with self.device.stream() as other:
                view = gpumem.from_dlpack(memory, stream=other)
                self.assertFalse(other.query())
                del view
                release()
                other.synchronize()
            consumer.synchronize()
        stream.close()

    def test_zero_elements(self):
        with self.pinned() as memory:
            view = gpumem.from_dlpack(memory.view("f4", (0, 3)))
            self.assertEqual(view.shape, (0, 3))
            del view

    def test_types_that_do_not_exist(self):
        with self.pinned(72) as memory:
            for dtype in ("f9", "<f9", "i3", "u16", "b2", "c9", "f4\n", "f4x", "fantasy"):
                with self.assertRaisesRegex(TypeError, f"^(data type )?{re.escape(repr(dtype))} (not understood|is not a known element type)"):
                    memory.view(dtype)
                with unittest.mock.patch.dict(sys.modules, numpy=None), self.assertRaisesRegex(
                        TypeError, f"^{re.escape(repr(dtype))} is not a known element type without numpy; use a text such as"):
                    memory.view(dtype)
            with unittest.mock.patch.dict(sys.modules, numpy=None):
                for dtype, size in ("f16", 16), ("c4", 4), ("V9", 9), ("bool", 1), (">u8", 8):
                    self.assertEqual(memory.view(dtype, 1).itemsize, size)

    def test_types_that_dlpack_lacks(self):
        with self.pinned() as memory:
            for dtype in ("V8", ">f4", "f16", "c32"):
                for options in ({}, {"copy": True}):
                    with self.assertRaisesRegex(BufferError, "^DLPack has no type for .*; view the memory as another type"):
                        memory.view(dtype).__dlpack__(**options)

    @needs_numpy
    def test_types_that_numpy_may_lack(self):
        for dtype in ("bool", "longdouble", "f4"):
            memory = self.pinned(64)
            try:
                numpy.from_dlpack(memory.view(dtype))
            except (BufferError, RuntimeError) as problem:
                self.assertTrue(str(problem))
            memory.close()

    def test_a_thread_that_stays_in_an_export(self):
        """The interpreter ends without it, and what dies then can still ask what is lent."""
        self.assertEqual(python("""
import gpumem, sys, threading, weakref
device = gpumem.Instance("host").device(0)
other, begun = device.memory(64, "pinned").view(), threading.Event()

def stay(_):
    begun.set()
    threading.Event().wait()

def work():
    view = device.memory(64, "pinned").view()
    seen, capsule = weakref.ref(view, stay), view.__dlpack__(dl_device=(1, 0))
    del view, capsule
    other.__dlpack__(dl_device=(1, 0))

class Held:
    def __del__(self, free=other.free, print=print):
        free()
        print("freed", flush=True)
sys.modules["held"] = Held()  # dies when modules do
threading.Thread(target=work, daemon=True).start()
begun.wait()
""")[1], "freed\n")

    @needs_numpy
    def test_numpy(self):
        memory = self.pinned(64)
        found = numpy.from_dlpack(memory.view("i4", (4, 4)))  # read-only in numpy 1
        self.assertEqual(found.__array_interface__["data"][0], memory.host_pointer)
        memory.view("i4").buffer()[0] = 3
        self.assertEqual(found[0, 0], 3)
        with self.assertRaises(BufferError):
            memory.close()
        del found
        memory.close()
        view = gpumem.from_dlpack(numpy.arange(10, dtype="f8")[::2])
        self.assertEqual((view.shape, view.strides, view.contiguous), ((5,), (16,), False))
        self.assertEqual(numpy.asarray(view).tolist(), [0, 2, 4, 6, 8])
        with self.assertRaises(BufferError):
            view.buffer()

    WRONG = {"max_version": (7, (), ("a",), (1,), (1, "a"), (1.5, 0), (1, 0, 0), "text"), "dl_device": (5, (), (1,), ("a", 0), (1, 0, 0)),
             "stream": ("text", 1.5, (1,))}

    def test_arguments_that_are_wrong(self):
        with self.pinned() as memory, self.device.memory(64, "managed") as managed:
            for view in memory.view(), managed.view():
                for _ in range(2):  # more is known the second time
                    for name, values in self.WRONG.items():
                        for value in values:
                            with self.assertRaisesRegex(TypeError, "^the stream must be an int" if name == "stream" else
                                                        f"^{name} is {re.escape(repr(value))}; it must be two integers$"):
                                view.__dlpack__(**{name: value})
            del view

    RARE = (*({name: value} for name, values in WRONG.items() for value in values), {"max_version": (0, 8)}, {"max_version": (1 << 70, 0)},
            {"max_version": [1, 0]}, {"max_version": (-1, 0)}, {"stream": 0}, {"stream": -2},
            {"stream": 7}, {"stream": 1 << 70}, {"stream": -1}, {"stream": -1, "max_version": (1, 0)}, {"copy": False}, {"copy": True},
            {"dl_device": (1, 0)}, {"dl_device": (99, 0)}, {"stream": None, "copy": None, "dl_device": None},
            {"unknown": None}, {"version": (1, 0)}, {"copy": False, "max_version": (1, 0)})

    def outcome(self, function, view, *arguments, **options):
        """What came out, to compare: an exception, or the tensor of a capsule."""
        try:
            capsule = function(view, *arguments, **options)
        except Exception as problem:
            return type(problem), str(problem)
        name = _capsule_name(capsule)
        cls = _dlpack._ManagedVersioned if name == b"dltensor_versioned" else _dlpack._Managed
        managed = cls.from_address(_capsule_pointer(capsule, name))
        data, *fields = test_exchange.fields(managed.tensor)
        version = [managed.major, managed.minor, managed.flags] if cls is _dlpack._ManagedVersioned else []
        return name, data and data == view.address, fields, version

    def test_export_is_that_of_python(self):
        with self.pinned() as memory, self.device.register(bytes(8192), require=MemoryFlags.READ_ONLY) as read_only, \
                self.device.memory(64) as there, self.device.memory(64, "managed") as managed:
            whole = memory.view("f4", (4, 6, 8))
            views = [whole, whole[::-1, 1:3], memory.view("V3", 5), memory.view(">i4", 5), memory.view("u1", 0), memory.view("c8", ()),
                     read_only.view(), there.view(), managed.view(), gpumem.from_dlpack(whole), whole.numpy().base if numpy else whole]
            for view in views:
                # Twice, as more is known the second time.
                for options in ({}, {"max_version": (1, 0)}, {"max_version": (2, 0)}, *self.RARE) * 2:
                    found, expected = (self.outcome(export, view, **options) for export in (gpumem.View.__dlpack__, _dlpack._EXPORT))
                    self.assertEqual(found, expected, options)
                found, expected = (self.outcome(export, view, None) for export in (gpumem.View.__dlpack__, _dlpack._EXPORT))
                self.assertEqual(found, expected)
            del whole, view, views
        self.assertEqual(inspect.signature(gpumem.View.__dlpack__).parameters.keys(), inspect.signature(_dlpack._EXPORT).parameters.keys())
        self.assertEqual(gpumem.View.__dlpack__.__doc__, _dlpack._EXPORT.__doc__)

    def imported(self, function, versioned, **fields):
        """What came out, to compare: an exception, or the view."""
        capsule, deleted = self.made_by_others(versioned, **fields)
        try:
            view = function(capsule)
        except Exception as problem:
            found, released = (type(problem), str(problem)), 0
        else:
            found = [getattr(view, name) for name in gpumem.View.__slots__ if name not in ("address", "_owner", "__weakref__")]
            found.append(view.address - self.kept[0].tensor.data)
            self.assertEqual(deleted, [])
            released = function is gpumem.from_dlpack
            del view
        self.assertEqual(len(deleted), released)
        return found

    def test_import_is_that_of_python(self):
        numbers = (ctypes.c_int64 * 1000)(2, 3, 4)
        shape = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int64))
        large = ctypes.cast((ctypes.c_int64 * 3)(1 << 62, 1 << 62, 1), ctypes.POINTER(ctypes.c_int64))
        cases = [{"code": code, "bits": bits, "lanes": lanes} for code in (*range(9), 255) for bits in (0, 1, 8, 16, 24, 32, 64, 72, 128, 255)
                 for lanes in (0, 1, 2)]
        cases += [{"ndim": count, "shape": shape, "strides": strides} for count in (0, 1, 2, 3, 64, 65, 1000) for strides in (None, shape)]
        cases += [{"ndim": 3, "shape": shape, "strides": large}, {"ndim": 3, "shape": large}, {"byte_offset": 12},
                  {"device_type": 2, "device_id": 1}, {"device_type": 99, "device_id": -1}, {"major": 2}]
        for fields in cases:
            for versioned in (False, True):
                found = self.imported(gpumem.from_dlpack, versioned, **fields)
                self.assertEqual(found, self.imported(_dlpack._wrap, versioned, **fields), fields)
        for flags in range(4):
            for function in gpumem.from_dlpack, _dlpack._wrap:
                capsule, _ = self.made_by_others(True)
                self.kept[0].flags = flags
                self.assertEqual(function(capsule).readonly, flags % 2 == 1)

    def test_hand_overs_leave_nothing(self):
        def refuse(*arguments, **options):
            with self.assertRaises((ValueError, BufferError)):
                gpumem.from_dlpack(*arguments) if arguments else view.__dlpack__(**options)
        view = self.pinned().view("f4", (4, 6))
        used = view.__dlpack__()
        gpumem.from_dlpack(used)
        strange = self.made_by_others(True, major=2)[0]
        objects = view, view._loan, gpumem.View, None, view.typestr, _dlpack.VERSION
        for act in (lambda: gpumem.from_dlpack(view), view.__dlpack__, lambda: view.__dlpack__(max_version=(1, 0)),
                    lambda: gpumem.from_dlpack(gpumem.from_dlpack(view)), lambda: refuse(used), lambda: refuse(strange),
                    lambda: refuse(stream=-7), lambda: refuse(dl_device=(9, 9))):
            for _ in range(100):
                act()
            gc.collect()
            before, blocks = [sys.getrefcount(thing) for thing in objects], sys.getallocatedblocks()
            for _ in range(10000):
                act()
            gc.collect()
            after, grown = [sys.getrefcount(thing) for thing in objects], sys.getallocatedblocks() - blocks
            self.assertLess(max(abs(one - other) for one, other in zip(before, after)), 100)
            self.assertLess(grown, 1000)

    @on_cuda
    def test_the_stream_of_the_consumer_waits(self):
        ordered = []
        stream, release = self.held_stream()
        with self.device.memory(64) as memory, self.device.stream() as consumer:
            view = memory.view()
            view.__dlpack__()
            with unittest.mock.patch.object(gpumem.View, "_order_before", lambda view, stream: ordered.append(stream)):
                for busy in (False, True):
                    if busy:
                        stream.fill(view, 0)
                    for number in (None, -1, 1, 2, consumer.native_stream):
                        view.__dlpack__(stream=number)
                        if busy:
                            self.assertEqual(ordered, [] if number == -1 else [number])
                        ordered.clear()  # without work, a stream may wait or not
            release()
            stream.synchronize()
            del view
        stream.close()


def refuses_exports(text):
    """A program in which all that needs the plug-in says why it cannot, each time."""
    return f"""
import gpumem
view = gpumem.Instance("host").device(0).memory(64, "pinned").view()
capsule = gpumem._dlpack._new_capsule(1, b"dltensor", None)
for use in 2 * (view.__dlpack__, view.__arrow_c_device_array__, lambda: gpumem.from_dlpack(capsule)):
    try:
        use()
    except gpumem.errors.LibraryNotFound as problem:
        assert {text!r} in str(problem), problem
    else:
        raise AssertionError(use)
assert not hasattr(gpumem.View, "__dlpack_c_exchange_api__")
view.free()
"""


class InterfaceTest(Case):
    def test_dlpack_without_the_plug_in(self):
        """An error says what is missing, each time. All else works."""
        for file, text in ("/nowhere", "/nowhere cannot be loaded"), ("libc.so.6", "libc.so.6 is no plug-in of gpumem for Python"):
            self.assertEqual(python(refuses_exports(text), GPUMEM_PYTHON_LIBRARY=file)[0], 0)

    def test_dlpack_without_the_lock_of_the_interpreter(self):
        self.assertEqual(python("""
import sys
sys._is_gil_enabled = lambda: False
""" + refuses_exports("runs without its lock") + """
sys._is_gil_enabled = lambda: True
assert hasattr(gpumem.View, "__dlpack_c_exchange_api__")
""")[0], 0)

    @unittest.skipUnless(sys.version_info < (3, 12), "the module has another name")
    def test_dlpack_in_a_subinterpreter(self):
        """It is refused: functions of C wait there for a lock that their own thread has, up to Python 3.11."""
        code = """
import gpumem
view = gpumem.Instance("host").device(0).memory(64, "pinned").view()
for use in 2 * (view.__dlpack__, view.__arrow_c_device_array__):
    try:
        use()
    except gpumem.errors.LibraryNotFound as problem:
        assert "this is not the main interpreter" in str(problem), problem
    else:
        raise AssertionError(use)
view.free()
"""
        self.assertEqual(python(f"import _xxsubinterpreters as all\nall.run_string(all.create(), {code!r})")[0], 0)

    @needs_numpy
    def test_nothing_at_address_0(self):
        def check(array, typestr, shape):
            self.assertEqual((array.dtype.str, array.shape), (typestr, shape))
            self.assertEqual(array.tolist(), numpy.empty(shape).tolist())
            self.assertEqual(bytes(array + array), b"")
            memory.copy_from(array)
        with self.pinned(64) as memory:
            for kind in "pinned", "managed", "pageable":
                with self.device.pool(kind) as pool, pool.alloc(0) as block:
                    view = block.view("f4")
                    self.assertEqual(view.address, 0)
                    for array in block.numpy("f4"), view.numpy(), numpy.asarray(view), view[:].numpy():
                        check(array, "<f4", (0,))
                    for array in block.numpy(), numpy.asarray(block), numpy.array(block), block.view().numpy():
                        check(array, "|u1", (0,))
                    check(block.numpy("i2", (2, 0, 3), order="F"), "<i2", (2, 0, 3))
                    check(block.numpy("(2,3)f4"), "<f4", (0, 2, 3))
                    self.assertEqual(block.numpy([("a", "i4"), ("b", "f8")]).dtype.names, ("a", "b"))
                    with self.assertRaises(BufferError):
                        block.free()
                    if view.dlpack_device[0] == _dlpack.CPU:  # the managed memory of cuda is not for numpy
                        check(numpy.from_dlpack(view), "<f4", (0,))
                    check(gpumem.from_dlpack(view).numpy(), "<f4", (0,))
                    check(gpumem.from_dlpack(block.view("f4", (0, 3))).numpy(), "<f4", (0, 3))
                    check(gpumem.from_arrow(view).numpy(), "<f4", (0,))
                    del view, array

    @needs_numpy
    def test_too_many_dimensions(self):
        """In a program of its own, which some versions of numpy would end."""
        python("""
import ctypes, gpumem, numpy
from gpumem import _dlpack
memory = gpumem.default_device().memory(4096, "pinned")
def refused(make, *arguments):
    try:
        make(*arguments)
    except gpumem.InvalidArgument as problem:
        assert "dimensions is not possible; 64 are the most" in str(problem), problem
        return
    raise AssertionError(make)
many = numpy.dtype((numpy.dtype(("f4", (1,) * 30)), (1,) * 30))
for make in (gpumem.pagelocked_empty, gpumem.pagelocked_zeros, gpumem.managed_empty, gpumem.managed_zeros, gpumem.aligned_empty,
             gpumem.aligned_zeros, gpumem.shared_array, gpumem.GrowableArray, lambda shape, dtype: memory.view(dtype, shape),
             lambda shape, dtype: memory.numpy(dtype, shape)):
    for shape in (1,) * 65, (1,) * 100, [1] * 1000, (1,) * 64 + (0,):
        refused(make, shape, "f4")
    refused(make, (1,) * 5, many)
memory.view("f4", (1,) * 64)
for count in 65, 100:
    managed, shape, data = _dlpack._Managed(), (ctypes.c_int64 * count)(*count * [1]), (ctypes.c_float * 1)()
    tensor = managed.tensor
    tensor.data, tensor.shape, tensor.ndim = ctypes.addressof(data), shape, count
    tensor.device_type, tensor.code, tensor.bits, tensor.lanes = 1, 2, 32, 1
    view = gpumem.from_dlpack(_dlpack._new_capsule(ctypes.addressof(managed), b"dltensor", None))
    assert len(view.shape) == count
    for make in view.numpy, lambda: numpy.asarray(view), lambda: view.__array_interface__:
        refused(make)
    del view, make  # before the tensor
""", GPUMEM_BACKEND=BACKEND)

    @on_host
    def test_no_cuda_arrays_on_host(self):
        with self.pinned() as memory, self.device.memory(64) as device:
            self.assertFalse(hasattr(memory.view(), "__cuda_array_interface__"))
            self.assertFalse(hasattr(device.view(), "__cuda_array_interface__"))

    @on_cuda
    def test_cuda_arrays(self):
        with self.device.memory(96) as memory:
            view = memory.view("f4", (4, 6))
            self.assertEqual(view.__cuda_array_interface__, {
                "version": 3, "shape": (4, 6), "typestr": "<f4", "data": (memory.device_pointer, False), "strides": None,
                "stream": None})
            self.assertEqual(memory.view("f4", (4, 6), order="F").__cuda_array_interface__["strides"], (4, 16))
            for empty in view[:, 3:3], view[4:], memory.view("f4", 0, offset=8), memory.view("f4", (2, 0)):
                self.assertNotEqual(empty.address, 0)
                self.assertEqual(empty.__cuda_array_interface__["data"], (0, False))
                memory.copy_from(empty)
            del empty
            with self.assertRaises(BufferError):
                memory.close()
            del view
        with self.device.pool() as pool, pool.alloc(0) as block:
            self.assertEqual(block.view().__cuda_array_interface__["data"], (0, False))
        with self.pinned() as memory:
            self.assertEqual(memory.view().__cuda_array_interface__["data"], (memory.device_pointer, False))
        with self.device.register(bytearray(8192)) as memory:
            self.assertFalse(hasattr(memory.view(), "__cuda_array_interface__"))
        with self.device.register(bytearray(8192), require=MemoryFlags.MAPPED) as memory:
            self.assertTrue(hasattr(memory.view(), "__cuda_array_interface__"))

    @on_cuda
    def test_the_stream_of_a_cuda_array(self):
        first, release = self.held_stream()
        with self.device.memory(64) as memory, self.device.stream() as second:
            memory.fill(1, stream=first)
            self.assertEqual(memory.view().__cuda_array_interface__["stream"], first.native_stream)
            release()
            self.assertIsNone(memory.view().__cuda_array_interface__["stream"])
            memory.fill(1, stream=second)
            memory.fill(2, stream=first)
            self.assertIn(memory.view().__cuda_array_interface__["stream"], (first.native_stream, second.native_stream))
            first.synchronize()
            second.synchronize()
        first.close()

    @on_cuda
    def test_a_cuda_array_as_an_operand(self):
        class Foreign:
            def __init__(self, view, **changes):
                self.view, self.changes = view, changes

            @property
            def __cuda_array_interface__(self):
                return {**self.view.__cuda_array_interface__, **self.changes}
        with self.device.memory(64) as memory:
            self.instance.copy(Foreign(memory.view("f4", (4, 4))), bytes(range(64)))
            result = bytearray(64)
            self.instance.copy(result, Foreign(memory.view("f4", (4, 4)), strides=(16, 4)))
            self.assertEqual(bytes(result), bytes(range(64)))
            with self.assertRaises(ValueError):
                self.instance.copy(result, Foreign(memory.view("f4", (4, 4), order="F")))
            with self.assertRaisesRegex(ValueError, "mask"):
                self.instance.copy(result, Foreign(memory.view(), mask=memory.view("u1")))
            with self.assertRaises(ValueError):
                self.instance.copy(Foreign(memory.view(), data=(memory.device_pointer, True)), bytes(64))

    def test_no_cuda_array_as_an_operand(self):
        class Foreign:
            def __init__(self, interface):
                self.__cuda_array_interface__ = interface
        good = {"data": (4096, False), "shape": (3,), "typestr": "<f4", "version": 3, "strides": None}
        prefix = "the __cuda_array_interface__ of this Foreign object "
        with self.pinned(64) as memory:
            for name, wanted, wrong in (
                    ("data", TypeError, ("x", 1)), ("data", TypeError, (1.5, False)), ("data", TypeError, "ab"), ("data", TypeError, 5),
                    ("data", TypeError, None), ("data", TypeError, (b"x", 1)), ("data", TypeError, (4096, "no")), ("data", TypeError, (4096,)),
                    ("data", TypeError, (4096, None)), ("data", gpumem.InvalidArgument, (-1, False)),
                    ("data", gpumem.InvalidArgument, (1 << 64, False)),
                    ("shape", TypeError, None), ("shape", TypeError, 5), ("shape", TypeError, "ab"), ("shape", TypeError, (1.5,)),
                    ("shape", TypeError, ("x",)), ("shape", gpumem.InvalidArgument, (-3,)), ("shape", gpumem.InvalidArgument, (-3, -1)),
                    ("shape", gpumem.InvalidArgument, (1 << 62, 1 << 62)),
                    ("typestr", TypeError, None), ("typestr", TypeError, 4), ("typestr", TypeError, ["<f4"]),
                    ("typestr", gpumem.InvalidArgument, ""), ("typestr", gpumem.InvalidArgument, "<f"),
                    ("typestr", gpumem.InvalidArgument, "<f-4"), ("typestr", gpumem.InvalidArgument, "float"),
                    ("typestr", gpumem.InvalidArgument, "|V0"),
                    ("strides", TypeError, 4), ("strides", TypeError, ("x",)), ("strides", gpumem.InvalidArgument, ()),
                    ("strides", gpumem.InvalidArgument, (4, 4))):
                with self.subTest(name, wrong=wrong):
                    for use in memory.copy_from, memory.copy_to:
                        with self.assertRaisesRegex(wanted, f"^{prefix}has {name} {re.escape(repr(wrong))}; it must be "):
                            use(Foreign({**good, name: wrong}))
            for wrong in {}, {"data": (4096, False)}, {name: good[name] for name in good if name != "shape"}:
                with self.subTest(wrong), self.assertRaisesRegex(TypeError, prefix):
                    memory.copy_from(Foreign(wrong))
            for wrong in 5, "data", (1, 2), [good]:
                with self.subTest(wrong), self.assertRaisesRegex(TypeError, f"{prefix}must be a dict, not a {type(wrong).__name__}$"):
                    memory.copy_from(Foreign(wrong))
            data = bytearray(12)
            address = ctypes.addressof((ctypes.c_ubyte * 12).from_buffer(data))
            # None is the address of no elements in some libraries.
            for right in {"data": (None, False), "shape": (0,)}, {"data": (0, 0), "shape": (2, 0)}, {"shape": [0], "data": [0, False]}:
                memory.copy_from(Foreign({**good, **right}))
            for right in {}, {"strides": (4,)}, {"typestr": "<M8[us]", "shape": (1,)}, {"shape": ()}, {"strides": [4]}:
                memory.copy_to(Foreign({**good, "data": (address, False), **right}), 4)
            if numpy:
                memory.copy_to(Foreign({**good, "data": (numpy.uint64(address), numpy.False_), "shape": (numpy.int32(3),)}), 12)

    @on_cuda
    def test_the_work_of_a_producer_is_awaited(self):
        class Foreign:
            def __init__(self, view, stream):
                self.view, self.stream = view, stream

            @property
            def __cuda_array_interface__(self):
                return {**self.view.__cuda_array_interface__, "stream": self.stream}
        stream, release = self.held_stream()
        with self.device.memory(64) as memory:
            stream.launch_host_function(lambda: None)
            timer = threading.Timer(0.05, next(iter(stream._queue.uses)).kept[0].buffer().__setitem__, (0, 1))
            timer.start()
            result = bytearray(64)
            self.instance.copy(result, Foreign(memory.view(), stream.native_stream))
            self.assertTrue(stream.query())
            timer.join()
            self.instance.copy(result, Foreign(memory.view(), 1))
        del timer
        release()
        stream.close()

    def test_operands_that_only_have_dlpack(self):
        class Tensor:
            def __init__(self, view):
                self.view = view

            def __dlpack__(self, **options):
                return self.view.__dlpack__(**options)
        with self.pinned(64) as memory, self.pinned(64) as target:
            memory.buffer()[:] = bytes(range(64))
            target.copy_from(Tensor(memory.view("f4")))
            self.assertEqual(bytes(target.buffer()), bytes(range(64)))
            self.instance.copy(Tensor(memory.view("f4")), bytes(64))
            self.assertEqual(bytes(memory.buffer()), bytes(64))

    @needs_numpy
    def test_numpy_arrays(self):
        with self.pinned(96) as memory:
            found = memory.numpy("f4", (4, 6), order="F")
            self.assertIs(type(found), numpy.ndarray)
            self.assertIsInstance(found.base, gpumem.View)
            self.assertIs(found.base.memory, memory)
            self.assertTrue(found.flags.f_contiguous)
            part = found[1:3]
            del found
            with self.assertRaises(BufferError):
                memory.close()
            del part

    @needs_numpy
    def test_structured_types(self):
        with self.pinned(120) as memory:
            found = memory.numpy([("a", "<i4"), ("b", "<f8")], 10)
            found["b"] = 2.5
            self.assertEqual(found.dtype.names, ("a", "b"))
            self.assertEqual(found[9]["b"], 2.5)
            del found
        with self.pinned(64) as memory, self.assertRaises(TypeError):
            memory.view(object)
