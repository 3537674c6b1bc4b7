# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks of CuPy's memory and pinned memory that hold whatever allocator is in use. Run by run.py with CuPy's own allocators and
with those of gpumem."""

import gc
import threading
import unittest

import cupy
import cupyx
import numpy


class DeviceMemoryTest(unittest.TestCase):
    def setUp(self):
        self.allocate = cupy.cuda.get_allocator()

    def test_size_and_alignment(self):
        for size in (1, 100, 4096, 1 << 20):
            memory = cupy.cuda.alloc(size)
            self.assertGreaterEqual(memory.mem.size, size)
            self.assertEqual(memory.ptr % 256, 0)
            self.assertEqual(memory.device_id, cupy.cuda.Device().id)

    def test_zero_bytes(self):
        self.assertEqual(cupy.cuda.alloc(0).mem.size, 0)
        self.assertEqual(cupy.empty((0, 3)).shape, (0, 3))

    def test_content(self):
        expected = numpy.arange(100000, dtype="f4").reshape(100, 1000)
        self.assertTrue((cupy.asnumpy(cupy.asarray(expected)) == expected).all())
        self.assertTrue((cupy.asnumpy(cupy.asfortranarray(cupy.asarray(expected))) == expected).all())

    def test_views_keep_their_memory(self):
        array = cupy.asarray(numpy.arange(1000))
        part = array[100:200]
        del array
        gc.collect()
        self.assertEqual(cupy.asnumpy(part).tolist(), list(range(100, 200)))

    def test_set_and_get_on_a_stream(self):
        stream, expected = cupy.cuda.Stream(non_blocking=True), numpy.arange(50000)
        array = cupy.empty_like(cupy.asarray(expected))
        array.set(expected, stream=stream)
        result = array.get(stream=stream)
        stream.synchronize()
        self.assertTrue((result == expected).all())

    def test_kernels(self):
        array = cupy.arange(10000, dtype="i8")
        self.assertEqual(int((array * 2 + 1).sum()), 10000 * 10000)

    def test_memset_and_copies(self):
        memory = cupy.cuda.alloc(1000)
        memory.memset(7, 1000)
        other = cupy.cuda.alloc(1000)
        other.copy_from_device(memory, 1000)
        array = cupy.ndarray((1000,), "u1", other)
        self.assertEqual(cupy.asnumpy(array).tolist(), [7] * 1000)

    def test_too_much(self):
        with self.assertRaises((cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError)):
            cupy.cuda.alloc(1 << 50)
        self.assertEqual(int(cupy.ones(10).sum()), 10)

    def test_a_pool_on_top(self):
        pool = cupy.cuda.MemoryPool(self.allocate)
        first = pool.malloc(1000)
        pointer = first.ptr
        self.assertEqual(pool.used_bytes(), 1024)
        del first
        self.assertEqual((pool.used_bytes(), pool.n_free_blocks()), (0, 1))
        again = pool.malloc(1000)
        self.assertEqual(again.ptr, pointer)
        del again
        pool.free_all_blocks()
        self.assertEqual(pool.total_bytes(), 0)

    def test_a_pool_gives_back_before_it_fails(self):
        pool = cupy.cuda.MemoryPool(self.allocate)
        free, _ = cupy.cuda.runtime.memGetInfo()
        size = free // 3 * 2
        first = pool.malloc(size)
        del first
        second = pool.malloc(size + (1 << 21))
        self.assertGreaterEqual(second.mem.size, size)
        del second
        pool.free_all_blocks()

    def test_a_pool_with_a_limit(self):
        pool = cupy.cuda.MemoryPool(self.allocate)
        pool.set_limit(size=1 << 20)
        with self.assertRaises(cupy.cuda.memory.OutOfMemoryError):
            pool.malloc(1 << 21)

    def test_threads(self):
        failures = []

        def work(number):
            try:
                for _ in range(50):
                    array = cupy.full(1000, number, dtype="i4")
                    if cupy.asnumpy(array).tolist() != [number] * 1000:
                        failures.append(number)
            except Exception as problem:
                failures.append(problem)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_interfaces(self):
        array = cupy.arange(100, dtype="f4")
        self.assertEqual(array.__cuda_array_interface__["data"][0], array.data.ptr)
        again = cupy.from_dlpack(array)
        self.assertEqual(again.data.ptr, array.data.ptr)


class PinnedMemoryTest(unittest.TestCase):
    def test_size_and_content(self):
        for size in (1, 1000, 1 << 20):
            memory = cupy.cuda.alloc_pinned_memory(size)
            self.assertGreaterEqual(memory.size(), size)
            array = numpy.frombuffer(memory, "u1", size)
            array[:] = 5
            self.assertEqual(int(array.sum()), 5 * size)

    def test_the_driver_knows_it(self):
        memory = cupy.cuda.alloc_pinned_memory(1000)
        attributes = cupy.cuda.runtime.pointerGetAttributes(memory.ptr)
        self.assertEqual(attributes.type, cupy.cuda.runtime.memoryTypeHost)

    def test_zero_bytes(self):
        self.assertEqual(cupy.cuda.alloc_pinned_memory(0).size(), 0)

    def test_pointers(self):
        memory = cupy.cuda.alloc_pinned_memory(100)
        self.assertEqual(int(memory + 4), memory.ptr + 4)
        self.assertEqual(int(memory + 4 - 4), memory.ptr)

    def test_arrays(self):
        for array in (cupyx.empty_pinned((10, 20), "f4"), cupyx.zeros_pinned((10, 20), "f4"),
                      cupyx.zeros_like_pinned(numpy.ones((10, 20), "f4"))):
            array[:] = 3
            self.assertEqual(float(cupy.asarray(array).sum()), 600)

    def test_get_into_a_pinned_array(self):
        stream, source = cupy.cuda.Stream(non_blocking=True), cupy.arange(10000)
        cupy.cuda.Device().synchronize()
        out = cupyx.empty_pinned(10000, source.dtype)
        source.get(stream=stream, out=out)
        stream.synchronize()
        self.assertEqual(out.tolist(), list(range(10000)))

    def test_a_pool_on_top(self):
        pool = cupy.cuda.PinnedMemoryPool(cupy.cuda.alloc_pinned_memory)
        first = pool.malloc(1000)
        pointer = first.ptr
        del first
        self.assertEqual(pool.n_free_blocks(), 1)
        self.assertEqual(pool.malloc(1000).ptr, pointer)
        pool.free_all_blocks()
        self.assertEqual(pool.n_free_blocks(), 0)


if __name__ == "__main__":
    unittest.main()
