# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The C exchange functions of DLPack, called as a compiled consumer calls them."""

import contextlib
import ctypes
import gc
import threading
import unittest
from ctypes import POINTER, PYFUNCTYPE, addressof, byref, c_char_p, c_int, c_int32, c_int64, c_uint32, c_void_p, py_object
from unittest import mock

import gpumem
from gpumem import _dlpack, errors
from gpumem.adapters import _plug_in

from .support import Case, on_cuda, on_host, python

_Managed = POINTER(_dlpack._ManagedVersioned)
Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_SetError = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)


class Table(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h 1.3."""
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("previous", c_void_p),
                ("allocate", PYFUNCTYPE(c_int, c_void_p, POINTER(_Managed), c_void_p, _SetError)),
                ("export", PYFUNCTYPE(c_int, py_object, POINTER(_Managed))),
                ("import_", PYFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))),
                ("borrow", PYFUNCTYPE(c_int, py_object, POINTER(_dlpack._Tensor))),
                ("stream", PYFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p)))]


def table_of(cls):
    return Table.from_address(_dlpack._get_pointer(cls.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))


def fields(tensor):
    return (tensor.data, tensor.device_type, tensor.device_id, tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset,
            tensor.shape[:tensor.ndim], tensor.strides[:tensor.ndim])


def release(managed):
    """By a function of C, without the lock of the interpreter."""
    ctypes.CFUNCTYPE(None, c_void_p)(managed.contents.deleter)(ctypes.cast(managed, c_void_p))


def borrowed(table, view):
    tensor = _dlpack._Tensor()
    table.borrow(view, byref(tensor))
    return tensor


def exported(table, view):
    managed = _Managed()
    table.export(view, byref(managed))
    return managed


def wrapped(table, address):
    """The view that the table makes of a tensor."""
    found = c_void_p()
    table.import_(address, byref(found))
    view = ctypes.cast(found, py_object).value
    ctypes.pythonapi.Py_DecRef(py_object(view))  # the one of the table; `view` is another one
    return view


class ExchangeTest(Case):
    def setUp(self):
        super().setUp()
        self.table = table_of(gpumem.View)

    def borrow(self, view):
        return borrowed(self.table, view)

    def export(self, view):
        return exported(self.table, view)

    def wrap(self, address):
        return wrapped(self.table, address)

    def asked(self, view):
        """How often functions of Python are asked while a view is borrowed."""
        calls = []
        check = gpumem.View._check_counted
        with mock.patch.object(gpumem.View, "_check_counted", lambda self: calls.append(check(self))):
            self.borrow(view)
        return len(calls)

    def test_table(self):
        self.assertEqual((self.table.major, self.table.minor, self.table.previous), (1, 3, None))
        with self.pinned() as memory:
            view = memory.view()
            self.assertIs(type(view).__dlpack_c_exchange_api__, gpumem.View.__dlpack_c_exchange_api__)
            self.assertIs(type(view[1:]).__dlpack_c_exchange_api__, gpumem.View.__dlpack_c_exchange_api__)
            stream = c_void_p(1)
            self.assertEqual(self.table.stream(2, 0, byref(stream)), 0)
            self.assertIsNone(stream.value)
            del view

    def test_a_tensor_is_that_of_the_capsule(self):
        kinds = ["pinned"] if self.instance.backend == gpumem.Backend.HOST else ["pinned", "device", "managed"]
        for kind in kinds:
            memory = self.device.memory(4096, kind)
            whole = memory.view("f4", (4, 6, 8))
            foreign = gpumem.from_dlpack(memory.view("i2"))
            for view in (whole, whole[1:3, ::2], whole[0], memory.view("i8", (3, 4), order="F"), memory.view("u1", 0), memory.view("c8", ()),
                         whole[::-1], foreign, foreign[3:], memory.view("f8", 3, offset=64)):
                capsule = view.__dlpack__(max_version=(1, 0))
                expected = _dlpack._ManagedVersioned.from_address(_dlpack._get_pointer(capsule, b"dltensor_versioned"))
                for _ in range(2):
                    managed = self.export(view)
                    self.assertEqual(fields(self.borrow(view)), fields(expected.tensor))
                    self.assertEqual(fields(managed.contents.tensor), fields(expected.tensor))
                    self.assertEqual((managed.contents.major, managed.contents.flags), (1, expected.flags))
                    release(managed)
                del capsule, expected
            del view, whole, foreign
            memory.close()

    def test_functions_of_python_are_asked_once(self):
        with self.pinned() as memory:
            view = memory.view()
            self.assertGreater(self.asked(view), 0)
            self.assertEqual(self.asked(view), 0)
            foreign = gpumem.from_dlpack(view)
            self.assertGreater(self.asked(foreign), 0)
            self.assertEqual(self.asked(foreign), 0)
            del view, foreign

    def test_capsules_are_made_and_taken_without_python(self):
        with self.pinned() as memory:
            view = memory.view("f4", (4, 6))
            view.__dlpack__()
            with mock.patch.object(_dlpack, "_types", None), mock.patch.object(gpumem.View, "_check_counted", None):
                for options in ({}, {"max_version": (1, 0)}, {"max_version": (1, 3), "stream": -1, "dl_device": None, "copy": None}):
                    capsule = view.__dlpack__(**options)
                    self.assertEqual(gpumem.from_dlpack(capsule).shape, (4, 6))
                self.assertEqual(gpumem.from_dlpack(view).strides, (24, 4))
                self.assertEqual(self.wrap(self.export(view)).strides, (24, 4))
            del view, capsule

    def test_threads(self):
        """They hand over one view, and each capsule is taken once."""
        failed, count = [], 4
        start = threading.Barrier(count)
        view = self.pinned().view("i4")
        view.__dlpack__()
        capsules, taken = [view.__dlpack__() for _ in range(500)], []

        def work():
            start.wait()
            try:
                for capsule in capsules:
                    again = gpumem.from_dlpack(gpumem.from_dlpack(view))
                    if (again.address, again.shape) != (view.address, view.shape):
                        failed.append(again.shape)
                    try:
                        taken.append(gpumem.from_dlpack(capsule).shape)
                    except gpumem.InvalidArgument:
                        pass
            except BaseException as problem:
                failed.append(problem)
        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((failed, len(taken)), ([], len(capsules)))

    def test_a_capsule_that_is_taken_by_the_garbage_collector(self):
        """Until Python 3.12, that can run in the middle of an import."""
        def take(*_):
            if not tried:
                tried.append(None)
                with contextlib.suppress(gpumem.InvalidArgument):
                    gpumem.from_dlpack(capsule)  # and frees the tensor at once
                    takers.append("collector")

        def views():
            return sum(isinstance(thing, gpumem.View) for thing in gc.get_objects())
        for options in {}, {"max_version": (1, 0)}:
            memory = self.pinned()
            memory.view().__dlpack__()
            gc.collect()
            before = views()
            capsule = memory.view().__dlpack__(**options)
            tried, takers, view, threshold = [], [], None, gc.get_threshold()
            gc.callbacks.append(take)
            try:
                gc.set_threshold(1)  # what the import makes first sets it off
                view = gpumem.from_dlpack(capsule)
                takers.append("import")
            except gpumem.InvalidArgument:
                pass
            finally:
                gc.set_threshold(*threshold)
                gc.callbacks.remove(take)
            self.assertEqual(len(takers), 1)
            if view is not None:
                with self.assertRaises(BufferError):
                    memory.close()
                view = None
            self.assertEqual(views(), before)
            memory.close()

    def test_types_that_are_rare(self):
        for fields in {"code": 4, "bits": 16}, {"code": 2, "bits": 72}:  # bfloat16, and nobody's
            deleted, managed, shape, data = [], _dlpack._ManagedVersioned(), (c_int64 * 1)(8), (ctypes.c_float * 32)()
            deleter = Deleter(deleted.append)
            managed.major, managed.deleter = 1, ctypes.cast(deleter, c_void_p)
            managed.tensor = _dlpack._Tensor(addressof(data), 1, 0, 1, fields["code"], fields["bits"], 1, shape)
            view = self.wrap(addressof(managed))
            self.assertEqual((view.typestr, deleted), (f"|V{fields['bits'] // 8}", []))
            del view
            self.assertEqual(deleted, [addressof(managed)])

    def test_read_only(self):
        with self.pinned() as memory:
            read_only = gpumem.from_arrow(memory.view("i4"))
            self.assertTrue(read_only.readonly)
            for _ in range(2):
                tensor = _dlpack._Tensor()
                with self.assertRaisesRegex(BufferError, "read-only"):
                    self.table.borrow(read_only, byref(tensor))
                self.assertIsNone(tensor.data)
                managed = self.export(read_only)
                self.assertEqual(managed.contents.flags, _dlpack.READ_ONLY)
                self.assertTrue(self.wrap(managed).readonly)
            del read_only

    @on_host
    def test_what_dlpack_has_no_device_for(self):
        with self.device.memory(64) as memory:
            view = memory.view()
            with self.assertRaisesRegex(BufferError, "no device type"):
                self.export(view)
            with self.assertRaisesRegex(BufferError, "no device type"):
                self.borrow(view)
            del view

    def test_what_is_no_view(self):
        for wrong in (7, None, self.device, "view", mock.Mock()):  # the last one has every attribute
            for act in (self.export, self.borrow):
                with self.assertRaisesRegex(TypeError, "is no gpumem.View"):
                    act(wrong)

    def test_what_was_exported_keeps_the_memory(self):
        memory = self.pinned(8)
        view = memory.view()
        managed, other = self.export(view), self.export(view)
        with self.assertRaises(BufferError):
            view.free()
        del view
        gc.collect()
        with self.assertRaises(BufferError):
            memory.close()
        thread = threading.Thread(target=release, args=(managed,))
        thread.start()
        thread.join()
        with self.assertRaises(BufferError):
            memory.close()
        release(other)
        memory.close()

    def test_a_view_is_freed_when_nothing_is_lent(self):
        view = self.pinned(8).view()
        self.borrow(view)
        release(self.export(view))
        view.free()
        for act in (self.export, self.borrow):
            with self.assertRaises(gpumem.StaleHandle):
                act(view)

    def test_a_view_is_described_while_it_is_freed(self):
        view, checked, freeing, described = self.pinned(8).view(), threading.Event(), threading.Event(), threading.Event()
        device, borrowed_before, found = view.dlpack_device, gpumem.View._borrowed, []

        def ask(lent):
            checked.set()
            freeing.wait(60)
            return device

        def look(lent):  # in the middle of free(), which finds the loan then
            freeing.set()
            described.wait(60)
            return borrowed_before(lent)

        def export():
            found.append(self.export(view))
            described.set()
        with mock.patch.object(gpumem.View, "__dlpack_device__", ask), mock.patch.object(gpumem.View, "_borrowed", look):
            thread = threading.Thread(target=export)
            thread.start()
            checked.wait(60)
            with self.assertRaises(BufferError):
                view.free()
            thread.join()
        release(found.pop())
        view.free()
        with self.assertRaises(gpumem.StaleHandle):
            self.export(view)

    def test_import(self):
        memory = self.pinned(64)
        view = self.wrap(self.export(memory.view("f4", (4, 4), order="F")))
        self.assertEqual((view.shape, view.strides, view.typestr, view.address), ((4, 4), (4, 16), "<f4", memory.host_pointer))
        part = view[1:]
        del view
        with self.assertRaises(BufferError):
            memory.close()
        del part
        memory.close()

    def test_a_tensor_is_released_once(self):
        for wrong in ({}, {"major": 2}, {"lanes": 4}):
            deleted, managed, shape, data = [], _dlpack._ManagedVersioned(), (c_int64 * 1)(8), (ctypes.c_float * 8)(*range(8))
            deleter = Deleter(deleted.append)
            managed.major, managed.deleter = wrong.get("major", 1), ctypes.cast(deleter, c_void_p)
            managed.tensor = _dlpack._Tensor(addressof(data), 1, 0, 1, 2, 32, wrong.get("lanes", 1), shape)
            if wrong:
                with self.assertRaises(BufferError):
                    self.wrap(addressof(managed))
            else:
                view = self.wrap(addressof(managed))
                self.assertEqual(view.buffer().tolist(), list(range(8)))
                self.assertEqual(deleted, [])
                del view
            gc.collect()
            self.assertEqual(deleted, [] if wrong else [addressof(managed)])  # it is still the caller's, or was the view's

    def test_allocations_are_refused(self):
        said, managed = [], _Managed()
        note = _SetError(lambda context, kind, message: said.append((context, kind, message)))
        self.assertEqual(self.table.allocate(addressof(_dlpack._Tensor()), byref(managed), 5, note), -1)
        self.assertEqual(said, [(5, b"NotImplementedError", mock.ANY)])
        self.assertIn(b"pass a view", said[0][2])
        self.assertFalse(managed)

    @on_cuda
    def test_the_default_stream_comes_after_the_work(self):
        """The one that current_work_stream() names."""
        memory, ordered = self.device.memory(64), []
        pool = self.device.pool()
        stream, release_it = self.held_stream()
        block = pool.alloc(64)
        view, in_block = memory.view(), block.view()
        self.borrow(view)
        with mock.patch.object(gpumem._stream.Queue, "order_before", lambda queue, consumer: ordered.append(queue)):
            self.borrow(view)
            self.assertEqual(ordered, [])
            for used in view, in_block:
                stream.fill(used.memory, 0)
                for act in self.borrow, lambda lent: release(self.export(lent)):
                    act(used)
                    self.assertEqual(len(ordered), 1)
                    ordered.clear()
        release_it()
        stream.synchronize()
        del view, in_block, used
        block.free()
        pool.close()
        memory.close()
        stream.close()

    def test_without_the_plug_in_or_with_another_version(self):
        _dlpack.functions.cache_clear()
        try:
            with mock.patch.object(_plug_in, "path", side_effect=errors.LibraryNotFound("there is none")):
                self.assertFalse(hasattr(gpumem.View, "__dlpack_c_exchange_api__"))
            with mock.patch.object(_dlpack, "_DESCRIBED", "=Q"):  # as of another version
                self.assertFalse(hasattr(gpumem.View, "__dlpack_c_exchange_api__"))
        finally:
            self.assertTrue(hasattr(gpumem.View, "__dlpack_c_exchange_api__"))


class ProcessTest(unittest.TestCase):
    HEAD = """
import ctypes, os, sys
import gpumem
from gpumem import _dlpack
from tests.test_exchange import Table, _Managed, release, table_of
instance = gpumem.Instance(os.environ.get("GPUMEM_TEST_BACKEND", "host"))
memory = instance.device(0).memory(64, "pinned")
view, table, managed = memory.view(), table_of(gpumem.View), _Managed()
assert table.export(view, ctypes.byref(managed)) == 0
at_exit = ctypes.CDLL(None).__cxa_atexit
at_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
def release_at_exit(managed):
    assert at_exit(managed.contents.deleter, ctypes.cast(managed, ctypes.c_void_p), None) == 0
"""

    def test_fork(self):
        status, out, err = python(self.HEAD + """
child = os.fork()
if not child:
    for call in (lambda: table.export(view, ctypes.byref(managed)), lambda: table.borrow(view, ctypes.byref(_dlpack._Tensor())),
                 view.__dlpack__, lambda: gpumem.from_dlpack(view)):
        try:
            call()
            os._exit(1)
        except gpumem.Forked:
            pass
    os._exit(0)
print(os.waitpid(child, 0)[1])
release(managed)
""")
        self.assertEqual((status, out, err), (0, "0\n", ""))

    def test_a_tensor_is_of_the_interpreter_that_exported_it(self):
        """The functions end and start again, as for one interpreter after another. What belongs to the first is not touched."""
        status, out, err = python(self.HEAD + """
_dlpack._ends.pop()()
_dlpack.functions.cache_clear()
again = _Managed()
assert table_of(gpumem.View).export(view, ctypes.byref(again)) == 0
count = sys.getrefcount(view)
release(managed)
print(sys.getrefcount(view) - count)
release(again)
print(sys.getrefcount(view) - count)
""")
        self.assertEqual((status, out, err), (0, "0\n-1\n", ""))

    def test_an_interpreter_that_ends_starts_nothing(self):
        # This handler was registered first, and runs last.
        status, out, err = python("""
import atexit
atexit.register(lambda: print(hasattr(gpumem.View, "__dlpack_c_exchange_api__")))
import gpumem
""")
        self.assertEqual((status, out, err), (0, "False\n", ""))

    def test_a_consumer_outlives_the_interpreter(self):
        """It releases the tensor when the process ends."""
        status, out, err = python(self.HEAD + """
release_at_exit(managed)
print("good")
""")
        self.assertEqual((status, out, err), (0, "good\n", ""))

    def test_a_consumer_of_arrow_outlives_the_interpreter(self):
        status, out, err = python(self.HEAD + """
from gpumem import _arrow
release(managed)
schema, array = view.__arrow_c_device_array__()
found = _arrow._DeviceArray.from_address(_dlpack._get_pointer(array, b"arrow_device_array"))
moved = _arrow._DeviceArray.from_buffer_copy(found)
found.array.release = None
ctypes.pythonapi.Py_IncRef(ctypes.py_object(moved))
assert at_exit(moved.array.release, ctypes.addressof(moved), None) == 0
sys.held = view.__arrow_c_device_array__()  # dies later
print("good")
""")
        self.assertEqual((status, out, err), (0, "good\n", ""))

    def test_what_is_exported_while_the_interpreter_ends(self):
        """It is released when the process ends, too."""
        status, out, err = python("""
import atexit
def export():
    assert None in _dlpack._ends
    assert table.export(view, ctypes.byref(managed)) == 0
    release_at_exit(managed)
    capsules.append(view.__dlpack__())
    capsules.append(gpumem.from_dlpack(view.__dlpack__()))
    print("good")
atexit.register(export)  # before gpumem, so it runs behind it
""" + self.HEAD + """
capsules = []
""")
        self.assertEqual((status, out, err), (0, "good\n", ""))

    def test_capsules_that_live_until_the_end(self):
        for held in "view.__dlpack__()", "gpumem.from_dlpack(view)", "(capsule := view.__dlpack__(), gpumem.from_dlpack(capsule))":
            status, out, err = python(self.HEAD + f"""
release(managed)
view.__dlpack__()
held = {held}
sys.held = {held}  # it dies later
print("good")
""")
            self.assertEqual((status, out, err), (0, "good\n", ""))
