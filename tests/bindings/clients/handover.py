# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Hands memory of every kind to PyTorch, CuPy, numba and pyarrow and back: the same address on both sides, the same bytes, and no close
while the other side holds it. Needs a GPU. Run by run.py."""

import contextlib
import gc
import sys
import unittest

import gpumem
from gpumem import Kind, MemoryFlags

try:
    import numpy
except ImportError:
    numpy = None
try:
    import pyarrow
except ImportError:
    pyarrow = None
try:
    import pyarrow.cuda as pyarrow_cuda  # few builds have it
except ImportError:
    pyarrow_cuda = None
try:
    import torch
except ImportError:
    torch = None
try:
    import cupy
except ImportError:
    cupy = None
try:
    from numba import cuda as numba_cuda
except ImportError:
    numba_cuda = None

SHAPE, TYPE, SIZE = (16, 64), "float32", 4096
VALUES = None if numpy is None else numpy.arange(1024, dtype=TYPE).reshape(SHAPE)


def device_memory(device):
    return device.memory(SIZE)


def pinned(device):
    return device.memory(SIZE, Kind.PINNED)


def write_combined(device):
    return device.memory(SIZE, Kind.PINNED, require=MemoryFlags.WRITE_COMBINED)


def registered(device):
    return device.register(bytearray(SIZE))


def mapped(device):
    return device.register(bytearray(SIZE), require=MemoryFlags.MAPPED)


def managed(device):
    return device.memory(SIZE, Kind.MANAGED)


def buffer(device):
    return device.buffer(SIZE)


def host_buffer(device):
    return device.buffer(SIZE, location=("host_numa", max(device.info().numa_node, 0)))


def block(device):
    return device.pool(name="handover").alloc(SIZE)


def pinned_block(device):
    return device.pool("pinned").alloc(SIZE)


def managed_block(device):
    return device.pool("managed").alloc(SIZE)


def pageable_block(device):
    return device.pool("pageable").alloc(SIZE)


HOST_KINDS = [pinned, write_combined, registered, mapped]
IN_PLACE_KINDS = [device_memory, pinned, write_combined, mapped]
ON_DEVICE = [device_memory, managed, buffer, block, managed_block]


@unittest.skipIf(numpy is None, "numpy is not installed")
class HandOver(unittest.TestCase):
    def setUp(self):
        self.instance = gpumem.Instance("cuda")
        self.device = self.instance.device(0)

    def tearDown(self):
        gc.collect()
        self.assertEqual(self.instance.report(), "nothing lives")
        self.instance.close()

    def each(self, kinds, check):
        """Runs a check on a view of each kind of memory that holds the values."""
        for make in kinds:
            with self.subTest(make.__name__):
                memory = make(self.device)
                memory.copy_from(VALUES)
                check(memory, memory.view(TYPE, SHAPE))
                gc.collect()
                memory.close()

    def content(self, memory):
        result = numpy.empty(SHAPE, TYPE)
        memory.copy_to(result)
        return result

    def held(self, memory):
        with self.assertRaises(BufferError):
            memory.close()

    def same(self, found, expected):
        numpy.testing.assert_array_equal(found, expected)

    def back(self, array, pointer, values):
        """An array of another library, as a view and as an operand of copies."""
        view = gpumem.from_dlpack(array)
        self.assertEqual((view.address, view.shape), (pointer, SHAPE))
        for source in (view, array):
            result = numpy.empty(SHAPE, TYPE)
            self.instance.copy(result, source)
            self.same(result, values)
        with self.device.memory(SIZE) as memory, self.device.stream() as stream:
            memory.copy_from(view, stream=stream)
            stream.synchronize()
            self.same(self.content(memory), values)


class NumpyTest(HandOver):
    def test_arrays(self):
        def check(memory, view):
            found = numpy.asarray(view)
            self.assertEqual(found.__array_interface__["data"][0], memory.host_pointer)
            self.same(found, VALUES)
            found += 1
            self.held(memory)
            self.same(self.content(memory), VALUES + 1)
        self.each(HOST_KINDS, check)

    def test_dlpack(self):
        def check(memory, view):
            found = numpy.from_dlpack(view)
            self.assertEqual(found.__array_interface__["data"][0], memory.host_pointer)
            self.same(found, VALUES)
            del view
            self.held(memory)
        self.each(HOST_KINDS, check)


@unittest.skipIf(pyarrow is None, "pyarrow is not installed")
class ArrowTest(HandOver):
    def setUp(self):
        super().setUp()
        # As an array and as a pointer, they are of one dimension.
        self.values = VALUES.reshape(-1)
        self.allocated = pyarrow.total_allocated_bytes()

    def tearDown(self):
        gc.collect()
        self.assertEqual(pyarrow.total_allocated_bytes(), self.allocated)  # nobody has an array of pyarrow
        super().tearDown()

    def is_of(self, memory, array, address):
        """An array of pyarrow that has the values and keeps the memory."""
        self.assertEqual((array.type, len(array), array.null_count), (pyarrow.float32(), 1024, 0))
        self.assertEqual(array.buffers()[1].address, address)
        self.same(array.to_numpy(), self.values)
        array.validate(full=True)
        self.held(memory)

    def test_memory_of_the_cpu(self):
        def check(memory, view):
            del view
            array = pyarrow.array(memory.view(TYPE))
            self.assertTrue(array.is_cpu)
            self.is_of(memory, array, memory.host_pointer)
            self.same(array.cast(pyarrow.float64()).to_numpy(), self.values)
            # pyarrow 25.0.1 fails here by a mistake of its own, and releases the array while its exception is set.
            with contextlib.suppress(AttributeError, SystemError):
                self.same(pyarrow.array(memory.view(TYPE), type=pyarrow.float64()).to_numpy(), self.values)
            part = array[100:]
            del array
            gc.collect()
            self.held(memory)
            self.same(part.to_numpy(), self.values[100:])
        self.each([pageable_block], check)

    def test_memory_that_only_a_build_with_cuda_takes(self):
        def check(memory, view):
            del view
            if pyarrow_cuda is None:
                with self.assertRaisesRegex(pyarrow.ArrowKeyError, "not registered"):
                    pyarrow.array(memory.view(TYPE))
                return
            array = pyarrow.array(memory.view(TYPE))
            self.assertEqual(array.buffers()[1].address, memory.device_pointer if memory.host_pointer is None else memory.host_pointer)
            self.held(memory)
        self.each([*HOST_KINDS, device_memory, managed, buffer, block, pinned_block, managed_block], check)

    def test_all_host_memory_by_numpy(self):
        def check(memory, view):
            del view
            self.is_of(memory, pyarrow.array(memory.numpy(TYPE)), memory.host_pointer)
        self.each([*HOST_KINDS, managed, host_buffer, pinned_block, managed_block, pageable_block], check)

    @unittest.skipIf(sys.version_info < (3, 12), "objects of Python have a buffer since 3.12")
    def test_all_host_memory_as_a_buffer(self):
        def check(memory, view):
            del view
            bytes_ = pyarrow.py_buffer(memory.view())
            self.is_of(memory, pyarrow.Array.from_buffers(pyarrow.float32(), 1024, [None, bytes_]), memory.host_pointer)
        self.each([*HOST_KINDS, managed, pageable_block], check)

    def test_back(self):
        class OnlyOfTheCpu:
            def __init__(self, array):
                self.array = array

            def __arrow_c_array__(self, requested_schema=None):
                return self.array.__arrow_c_array__(requested_schema)
        with self.device.memory(SIZE) as memory, self.device.stream() as stream:
            for source in lambda array: array, OnlyOfTheCpu:
                array = pyarrow.array(self.values)
                address = array.buffers()[1].address
                whole, part = gpumem.from_arrow(source(array)), gpumem.from_arrow(source(array[24:]), stream=stream)
                self.assertEqual((whole.address, whole.shape, whole.typestr, whole.readonly), (address, (1024,), "<f4", True))
                self.assertEqual((part.address, part.shape), (address + 96, (1000,)))
                self.same(numpy.asarray(whole), self.values)
                self.same(numpy.asarray(part), self.values[24:])
                del array
                memory.copy_from(whole, stream=stream)
                stream.synchronize()
                self.same(self.content(memory), VALUES)
                del whole, part

    def test_types(self):
        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"):
            with self.subTest(name):
                values = numpy.arange(100, dtype=name)
                view = gpumem.from_arrow(pyarrow.array(values))
                self.same(numpy.asarray(view), values)
                self.assertEqual(view.typestr, values.dtype.str)
                memory = self.device.pool("pageable").alloc(values.nbytes)
                memory.copy_from(values)
                array = pyarrow.array(memory.view(name))
                self.assertEqual(array.type, pyarrow.from_numpy_dtype(values.dtype))
                self.same(array.to_numpy(), values)
                del view, array
                gc.collect()
                memory.close()

    def test_what_cannot_be_imported(self):
        for array in (pyarrow.array([1.0, None]), pyarrow.array([True]), pyarrow.array(["text"]), pyarrow.array([[1], [2]]),
                      pyarrow.array([1, 1]).dictionary_encode()):
            with self.subTest(str(array.type)), self.assertRaises(BufferError):
                gpumem.from_arrow(array)
        for several in pyarrow.chunked_array([[1.0]]), pyarrow.table({"a": [1.0]}):
            with self.subTest(type(several).__name__), self.assertRaises(TypeError):
                gpumem.from_arrow(several)
        del array, several


@unittest.skipIf(torch is None, "torch is not installed")
class TorchTest(HandOver):
    def test_device_memory_by_dlpack(self):
        def check(memory, view):
            tensor = torch.from_dlpack(view)
            self.assertTrue(tensor.is_cuda)
            self.assertEqual(tensor.data_ptr(), memory.device_pointer)
            self.same(tensor.cpu().numpy(), VALUES)
            tensor += 1
            torch.cuda.synchronize()
            del view
            self.held(memory)
            self.same(self.content(memory), VALUES + 1)
        self.each([device_memory], check)

    def test_host_memory_by_the_adapter(self):
        from gpumem.adapters import torch as adapter

        def check(memory, view):
            tensor = adapter.as_tensor(view)
            self.assertEqual((tensor.device.type, tensor.data_ptr()), ("cpu", memory.host_pointer))
            self.assertTrue(tensor.is_pinned())
            self.same(tensor.numpy(), VALUES)
            # Pinned for torch too: the copy does not block.
            there = tensor.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            self.same(there.cpu().numpy(), VALUES)
            del view
            self.held(memory)
        self.each(HOST_KINDS, check)

    def test_by_cuda_array_interface(self):
        def check(memory, view):
            tensor = torch.as_tensor(view, device="cuda")
            self.assertEqual(tensor.data_ptr(), memory.device_pointer)
            self.same(tensor.cpu().numpy(), VALUES)
            del view
            self.held(memory)
        self.each(IN_PLACE_KINDS, check)

    def test_every_kind_on_the_device_by_the_adapter(self):
        from gpumem.adapters import torch as adapter

        def check(memory, view):
            del view
            for tensor in adapter.as_tensor(memory, TYPE, SHAPE), adapter.as_tensor(memory.view(TYPE, SHAPE)):
                self.assertEqual((tensor.device, tensor.data_ptr()), (torch.device("cuda:0"), memory.device_pointer))
                self.same(tensor.cpu().numpy(), VALUES)
            tensor += 1
            torch.cuda.synchronize()
            self.held(memory)
            self.same(self.content(memory), VALUES + 1)
        self.each(ON_DEVICE, check)

    def test_every_kind_of_the_host_by_the_adapter(self):
        from gpumem.adapters import torch as adapter

        def check(memory, view):
            del view
            tensor = adapter.as_tensor(memory, TYPE, SHAPE)
            self.assertEqual((tensor.device.type, tensor.data_ptr()), ("cpu", memory.host_pointer))
            self.same(tensor.numpy(), VALUES)
            tensor += 1
            self.held(memory)
            self.same(self.content(memory), VALUES + 1)
            self.same(tensor.cuda().cpu().numpy(), VALUES + 1)
        self.each([*HOST_KINDS, host_buffer, pinned_block, pageable_block], check)

    def test_managed_memory_waits_for_copies_in_flight(self):
        from gpumem.adapters import torch as adapter
        with self.device.memory(1 << 26, Kind.MANAGED) as memory, self.device.stream() as ours:
            for number in range(4):
                memory.fill(0, stream=ours)
                memory.fill(number, stream=ours)
                tensor = adapter.as_tensor(memory)
                self.assertEqual(int(tensor.sum(dtype=torch.int64)), number << 26)
                del tensor
            ours.synchronize()

    def test_pinned_tensors(self):
        from gpumem.adapters import torch as adapter
        for type_ in None, torch.bfloat16, torch.bool, torch.complex64:
            tensor = adapter.empty_pinned(16, 64, dtype=type_)
            self.assertEqual((tensor.dtype, tuple(tensor.shape)), (type_ or torch.get_default_dtype(), (16, 64)))
            self.assertTrue(tensor.is_pinned() and tensor.is_contiguous())
        self.assertEqual(tuple(adapter.empty_pinned((3, 0)).shape), (3, 0))
        del tensor
        self.assertEqual(adapter.pinned_pool().info().live_count, 0)

    def test_pinned_tensors_that_die_before_their_copies(self):
        from gpumem.adapters import torch as adapter
        count, side = 1 << 22, torch.cuda.Stream()
        there = [torch.empty(count, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        for stream in torch.cuda.current_stream(), side:
            for number, target in enumerate(there, 1):
                staging = adapter.empty_pinned(count)
                staging.fill_(number)
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(20_000_000)
                    target.copy_(staging, non_blocking=True)
                if stream is side:
                    adapter.record_stream(staging, side)
                del staging
            others = [adapter.empty_pinned(count).fill_(0) for _ in range(8)]
            stream.synchronize()
            for number, target in enumerate(there, 1):
                self.assertTrue(bool((target == number).all()), f"{number} was written over")
            del others, target

    def test_adapter(self):
        from gpumem.adapters import torch as adapter
        with self.device.memory(SIZE) as memory:
            memory.copy_from(VALUES)
            tensor = adapter.as_tensor(memory, TYPE, SHAPE)
            self.assertEqual(tensor.data_ptr(), memory.device_pointer)
            self.assertEqual(adapter.from_tensor(tensor).address, memory.device_pointer)
            del tensor

    def test_back(self):
        tensor = torch.arange(1024, dtype=torch.float32, device="cuda").reshape(SHAPE)
        torch.cuda.synchronize()
        self.back(tensor, tensor.data_ptr(), VALUES)
        tensor = torch.arange(1024, dtype=torch.float32).reshape(SHAPE).pin_memory()
        self.back(tensor, tensor.data_ptr(), VALUES)

    def test_its_streams(self):
        stream = torch.cuda.Stream()
        with self.device.memory(SIZE) as memory, gpumem.Stream.wrap(self.device, stream.cuda_stream) as ours, \
                self.device.memory(SIZE, Kind.PINNED) as source:
            source.copy_from(VALUES)
            memory.copy_from(source, stream=ours)
            with torch.cuda.stream(stream):
                total = torch.from_dlpack(memory.view(TYPE, SHAPE)).sum()
            stream.synchronize()
            self.assertEqual(float(total), float(VALUES.sum()))
            ours.synchronize()
            del total

    def test_it_waits_for_copies_in_flight(self):
        with self.device.memory(1 << 26) as memory, self.device.memory(1 << 26, Kind.PINNED) as source, \
                self.device.stream() as ours:
            source.numpy("u1").fill(1)
            for _ in range(4):
                memory.fill(0, stream=ours)
                memory.copy_from(source, stream=ours)
                self.assertEqual(int(torch.from_dlpack(memory.view("u1")).sum(dtype=torch.int64)), 1 << 26)
            ours.synchronize()


@unittest.skipIf(cupy is None, "cupy is not installed")
class CupyTest(HandOver):
    def test_by_cuda_array_interface(self):
        def check(memory, view):
            array = cupy.asarray(view)
            self.assertEqual(array.data.ptr, memory.device_pointer)
            self.same(cupy.asnumpy(array), VALUES)
            array += 1
            cupy.cuda.Device().synchronize()
            del view
            self.held(memory)
            self.same(self.content(memory), VALUES + 1)
        self.each(IN_PLACE_KINDS, check)

    def test_by_dlpack(self):
        def check(memory, view):
            array = cupy.from_dlpack(view)
            self.assertEqual(array.data.ptr, memory.device_pointer)
            self.same(cupy.asnumpy(array), VALUES)
            del view
            self.held(memory)
        self.each([device_memory], check)

    def test_back(self):
        array = cupy.arange(1024, dtype=TYPE).reshape(SHAPE)
        cupy.cuda.Device().synchronize()
        self.back(array, array.data.ptr, VALUES)

    def test_its_streams(self):
        stream = cupy.cuda.Stream(non_blocking=True)
        with self.device.memory(SIZE) as memory, gpumem.Stream.wrap(self.device, stream.ptr) as ours:
            memory.copy_from(VALUES, stream=ours)
            with stream:
                result = cupy.asnumpy(cupy.asarray(memory.view(TYPE, SHAPE)))
            self.same(result, VALUES)
            ours.synchronize()


@unittest.skipIf(numba_cuda is None, "numba is not installed")
class NumbaTest(HandOver):
    def test_by_cuda_array_interface(self):
        def check(memory, view):
            array = numba_cuda.as_cuda_array(view)
            self.assertEqual(array.__cuda_array_interface__["data"][0], memory.device_pointer)
            self.same(array.copy_to_host(), VALUES)
            array.copy_to_device(VALUES + 1)
            numba_cuda.synchronize()
            del view
            self.held(memory)
            self.same(self.content(memory), VALUES + 1)
        self.each(IN_PLACE_KINDS, check)

    def test_kernel(self):
        @numba_cuda.jit
        def increment(array):
            index = numba_cuda.grid(1)
            if index < array.size:
                array[index] += 1

        def check(memory, _):
            array = numba_cuda.as_cuda_array(memory.view(TYPE))
            increment[8, 128](array)
            numba_cuda.synchronize()
            self.same(self.content(memory), VALUES + 1)
        self.each(IN_PLACE_KINDS, check)

    def test_back(self):
        array = numba_cuda.to_device(VALUES)
        numba_cuda.synchronize()
        result = numpy.empty(SHAPE, TYPE)
        self.instance.copy(result, array)
        self.same(result, VALUES)

    def test_its_pinned_arrays_as_operands(self):
        array = numba_cuda.pinned_array(SHAPE, TYPE)
        array[:] = VALUES
        with self.device.memory(SIZE) as memory, self.device.stream() as stream:
            memory.copy_from(array, stream=stream)
            stream.synchronize()
            self.same(self.content(memory), VALUES)


if __name__ == "__main__":
    unittest.main()
