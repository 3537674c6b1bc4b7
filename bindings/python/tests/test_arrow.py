# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The Arrow C device data interface in both directions."""

import ctypes
import gc
import threading

import gpumem
from gpumem import _arrow, _dlpack

from .support import Case, at_each_line, on_cuda, on_host

TYPES = dict(zip("i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8".split(), "cCsSiIlLefg"))


class Foreign:
    """An array of another library, which was exported before. It has one of the two methods."""

    def __init__(self, pair, method="__arrow_c_device_array__"):
        setattr(self, method, lambda: pair)


def structs(pair):
    return (_arrow._Schema.from_address(_dlpack._get_pointer(pair[0], b"arrow_schema")),
            _arrow._DeviceArray.from_address(_dlpack._get_pointer(pair[1], b"arrow_device_array")))


def release(struct):
    _arrow._Release(struct.release)(ctypes.addressof(struct))


class ArrowTest(Case):
    def test_layout_of_the_structs(self):
        # As the specification has them on 64-bit machines.
        self.assertEqual([ctypes.sizeof(cls) for cls in (_arrow._Schema, _arrow._Array, _arrow._DeviceArray)], [72, 80, 128])
        self.assertEqual([field.offset for field in (
            _arrow._Schema.dictionary, _arrow._Schema.release, _arrow._Array.buffers, _arrow._Array.release,
            _arrow._DeviceArray.device_id, _arrow._DeviceArray.device_type, _arrow._DeviceArray.sync_event)],
            [48, 56, 40, 64, 80, 88, 96])

    def test_a_consumer_that_fails_gives_back(self):
        """It drops the capsules while its exception is set."""
        with self.pinned(64) as memory:
            with self.assertRaisesRegex(TypeError, "^int"):
                int(memory.view("i4").__arrow_c_device_array__())
        self.assertEqual(self.instance.report(), "nothing lives")

    def test_an_array_is_taken_once(self):
        """Another thread imports it, too."""
        taken, released = [], []
        release_it, data = _arrow._Release(released.append), (ctypes.c_int32 * 8)(*range(8))
        buffers = (ctypes.c_void_p * 2)(None, ctypes.addressof(data))

        def make():
            schema, found = _arrow._Schema(format=b"i", name=b""), _arrow._DeviceArray(device_type=1, device_id=-1)
            found.array.length, found.array.n_buffers = 8, 2
            found.array.buffers = ctypes.cast(buffers, ctypes.POINTER(ctypes.c_void_p))
            schema.release = found.array.release = ctypes.cast(release_it, ctypes.c_void_p)
            return schema, found, Foreign((_dlpack._new_capsule(ctypes.addressof(schema), b"arrow_schema", None),
                                           _dlpack._new_capsule(ctypes.addressof(found), b"arrow_device_array", None)))

        def take(made):
            try:
                taken.append(gpumem.from_arrow(made[2]))
            except gpumem.InvalidArgument:
                pass
        for _ in at_each_line(make, take, take):
            self.assertEqual([bytes(view.buffer()) for view in taken], [bytes(data)])
            taken.clear()
            self.assertEqual(len(released), 1)
            released.clear()

    def test_types(self):
        with self.pinned(64) as memory:
            for dtype, form in TYPES.items():
                view = memory.view(dtype)
                schema, found = structs(pair := view.__arrow_c_device_array__())
                array = found.array
                self.assertEqual((schema.format.decode(), schema.flags, schema.n_children), (form, 0, 0))
                self.assertEqual((array.length, array.null_count, array.offset, array.n_buffers, *array.buffers[:2]),
                                 (len(view), 0, 0, 2, None, memory.host_pointer))
                self.assertEqual((found.device_type, bool(found.sync_event)), (view.dlpack_device[0], False))
                back = gpumem.from_arrow(Foreign(pair))
                for name in ("address", "shape", "strides", "typestr", "nbytes", "dlpack_device"):
                    self.assertEqual(getattr(back, name), getattr(view, name))
                self.assertTrue(back.readonly)
                self.assertEqual(gpumem.from_arrow(back).address, view.address)
                del view, back, pair
            for view in (memory.view("b1"), memory.view("c8"), memory.view("V8"), memory.view(">f4"), memory.view("u1", (8, 8)),
                         memory.view("u1", ()), memory.view("u1")[::2], memory.view("u1")[::-1]):
                with self.assertRaisesRegex(BufferError, "^Arrow has no|one dimension"):
                    view.__arrow_c_device_array__()
            del view
            memory.__arrow_c_device_array__(None, banana=None)
            with self.assertRaisesRegex(NotImplementedError, "banana"):
                memory.__arrow_c_device_array__(None, banana=1)

    def test_parts_and_nothing(self):
        def imported(length=None, **changes):
            schema, found = structs(pair := memory.view("i4", length).__arrow_c_device_array__())
            for name, value in changes.items():
                setattr(found.array, name, value)
            if changes.get("length") == 0:
                found.array.buffers[1] = None
            return gpumem.from_arrow(Foreign(pair))
        with self.pinned(64) as memory:
            memory.buffer()[:] = bytes(range(64))
            self.assertEqual(bytes(gpumem.from_arrow(memory.view("u2")[3:7]).buffer()), bytes(range(6, 14)))
            self.assertEqual(bytes(imported(offset=5, length=3, null_count=-1).buffer()), bytes(range(20, 32)))
            self.assertEqual((imported(0).shape, imported(length=0).nbytes), ((0,), 0))
            pair = memory.__arrow_c_device_array__()
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))(
                pair[1], b"arrow_array")
            back = gpumem.from_arrow(Foreign(pair, "__arrow_c_array__"))
            self.assertEqual((back.address, back.dlpack_device), (memory.host_pointer, (1, 0)))
            del back, pair

    def test_the_memory_is_held_until_it_is_released(self):
        memory, base = self.pinned(64), self.pinned(64).view()

        def held():
            gc.collect()
            with self.assertRaises(BufferError):
                memory.close()
        pair = memory.__arrow_c_device_array__(), base.__arrow_c_device_array__()
        held()
        with self.assertRaises(BufferError):
            base.free()
        schema, found = structs(pair[0])
        moved = _arrow._DeviceArray.from_buffer_copy(found)
        found.array.release = None  # as a consumer does
        found = schema = pair = None
        base.free()
        held()
        release(moved.array)
        self.assertFalse(moved.array.release)
        view = gpumem.from_arrow(memory)
        held()
        del view
        schema, found = structs(pair := memory.__arrow_c_device_array__())
        for struct in (schema, found.array):
            release(struct)  # in place
            self.assertFalse(struct.release)
        memory.close()
        del pair
        with self.assertRaises(gpumem.StaleHandle):
            memory.__arrow_c_device_array__()

    def test_arrays_that_cannot_be_imported(self):
        some = ctypes.c_void_p(4096)
        huge, missing = (1 << 62) - 1, (ctypes.c_void_p * 2)()
        unknown = (ctypes.c_void_p * 2)(4096, 4096)
        pointer = ctypes.POINTER(ctypes.c_void_p)
        with self.pinned(64) as memory:
            for message, place, changes in (
                    ("nulls", "array", {"null_count": 1}), ("too large", "array", {"offset": huge, "length": huge}),
                    ("nulls", "array", {"null_count": -1, "buffers": ctypes.cast(unknown, pointer)}),
                    ("not valid", "array", {"buffers": ctypes.cast(missing, pointer)}), ("2 buf", "array", {"buffers": None}),
                    ("3 buffers", "array", {"n_buffers": 3}), ("length -1", "array", {"length": -1}),
                    ("offset -2", "array", {"offset": -2}), ("nested", "array", {"n_children": 1}),
                    ("dictionary", "array", {"dictionary": 4096}), ("'b'", "schema", {"format": b"b"}),
                    (r"'\+s'", "schema", {"format": b"+s"}), ("'tsn:'", "schema", {"format": b"tsn:"}),
                    ("''", "schema", {"format": None}), ("nested", "schema", {"n_children": 1}),
                    ("dictionary", "schema", {"dictionary": 4096}), ("released", "schema", {"release": None}),
                    (r"device \(10,", "device", {"device_type": 10}),
                    ("with an event", "device", {"device_type": 1, "sync_event": ctypes.pointer(some)})):
                with self.subTest(message):
                    schema, found = structs(pair := memory.view("i4").__arrow_c_device_array__())
                    for name, value in changes.items():
                        setattr({"schema": schema, "array": found.array, "device": found}[place], name, value)
                    with self.assertRaisesRegex((BufferError, gpumem.InvalidArgument), message):
                        gpumem.from_arrow(Foreign(pair))
                    self.assertTrue(found.array.release)  # nothing was taken
            schema, array = pair = memory.__arrow_c_device_array__()
            for wrong in ((array, schema), (schema, schema), (schema,), None, (None, None), (schema, 1)):
                for method, name in (("__arrow_c_device_array__", "arrow_device_array"), ("__arrow_c_array__", "arrow_array")):
                    with self.assertRaisesRegex(gpumem.InvalidArgument, f"arrow_schema and {name}$"):
                        gpumem.from_arrow(Foreign(wrong, method))
            gpumem.from_arrow(Foreign(pair))
            with self.assertRaisesRegex(gpumem.InvalidArgument, "imported before"):
                gpumem.from_arrow(Foreign(pair))
            with self.assertRaisesRegex(TypeError, "a bytes has no __arrow_c_device_array__"):
                gpumem.from_arrow(b"bytes")
            del wrong, pair, schema, array, found

    @on_host
    def test_device_memory_of_the_host_backend(self):
        with self.device.memory(64) as memory, self.assertRaisesRegex(BufferError, "copy it to host memory"):
            memory.__arrow_c_device_array__()

    def test_host_memory_is_exported_after_its_work(self):
        for known in True, False:
            stream, let_go = self.held_stream()
            with self.pinned(64) as memory:
                if known:
                    memory.fill(7, stream=stream)
                releasing = threading.Timer(0.05, let_go)
                releasing.start()
                pair = memory.__arrow_c_device_array__(stream=None if known else stream)
                self.assertTrue(stream.query())
                self.assertFalse(structs(pair)[1].sync_event)
                releasing.join()
                del pair
            stream.close()

    @on_cuda
    def test_events(self):
        stream, let_go = self.held_stream()
        # No with blocks: after a failure, their ends would wait for the held stream.
        streams = other, third, native = [self.device.stream() for _ in range(3)]
        with self.device.memory(64) as memory:
            try:
                self.assertFalse(structs(memory.__arrow_c_device_array__())[1].sync_event)
                for given in (stream, stream.native_stream, None, third):
                    if given is None:
                        stream.fill(memory.view()[:32], 7)
                        third.fill(memory.view()[32:], 8)
                    _, found = structs(pair := memory.__arrow_c_device_array__(stream=given))
                    self.assertEqual((found.device_type, found.device_id, found.array.buffers[1]), (2, 0, memory.device_pointer))
                    with gpumem.Event.wrap(self.device, found.sync_event[0]) as event:
                        self.assertFalse(event.query())
                views = [gpumem.from_arrow(Foreign(pair), stream=other), gpumem.from_arrow(memory, stream=native.native_stream)]
                self.assertFalse(other.query() or native.query())
            finally:
                releasing = threading.Timer(0.05, let_go)
                releasing.start()
            views.append(gpumem.from_arrow(memory))
            result = bytearray(64)
            self.instance.copy(result, views[2])
            releasing.join()
            self.assertEqual(result, bytes([7]) * 32 + bytes([8]) * 32)
            del views, pair, found
        for each in (stream, *streams):
            each.close()
