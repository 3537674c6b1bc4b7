# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The adapters, against stand-ins with the interfaces that numba-cuda and CuPy document. What the real packages do with
them, tests/bindings/clients shows on a machine that has them."""

import abc
import collections
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import itertools
import math
import os
import sys
import threading
import types
import unittest
import weakref
from ctypes import c_void_p
from unittest import mock

import gpumem
import gpumem.adapters._plug_in
from gpumem import Kind, MemoryFlags
from gpumem import _library as native
from gpumem._calls import call

from .support import PACKAGE, Case, on_cuda, on_host, python


def numba_stand_in():
    """The part of numba.cuda that a plug-in uses."""
    class Pending:
        memory_capacity = 0

        def __init__(self):
            self.items, self.disabled = [], 0

        def add_item(self, dtor, handle, size=0):
            dtor.__name__
            self.items.append((dtor, handle))
            if not self.disabled:
                self.clear()

        def clear(self):
            while self.items and not self.disabled:
                dtor, handle = self.items.pop(0)
                dtor(handle)

        @contextlib.contextmanager
        def disable(self):
            self.disabled += 1
            try:
                yield
            finally:
                self.disabled -= 1

    class HostOnlyCUDAMemoryManager:
        def __init__(self, *, context):
            self.context, self.allocations, self.deallocations = context, {}, Pending()

        def reset(self):
            self.allocations.clear()
            self.deallocations.clear()

        def defer_cleanup(self):
            return self.deallocations.disable()

    class Pointer:
        def __init__(self, context, pointer, size, owner=None, finalizer=None):
            self.pointer, self.size, self.owner = pointer, size, owner
            weakref.finalize(self, finalizer)

        def own(self):
            return weakref.proxy(self)

    class CudaAPIError(Exception):
        def __init__(self, code, message):
            super().__init__(code, message)
            self.code = code

    driver = types.SimpleNamespace(
        USE_NV_BINDING=False, AutoFreePointer=type("AutoFreePointer", (Pointer,), {}),
        ManagedMemory=type("ManagedMemory", (Pointer,), {}), MappedMemory=type("MappedMemory", (Pointer,), {}), PinnedMemory=type("PinnedMemory", (Pointer,), {}),
        CudaAPIError=CudaAPIError)
    cuda = types.SimpleNamespace(
        HostOnlyCUDAMemoryManager=HostOnlyCUDAMemoryManager, GetIpcHandleMixin=type("GetIpcHandleMixin", (), {}),
        MemoryInfo=collections.namedtuple("MemoryInfo", "free,total"))
    modules = {"numba": types.ModuleType("numba"), "numba.cuda": types.ModuleType("numba.cuda"),
               "numba.cuda.cudadrv": types.ModuleType("numba.cuda.cudadrv")}
    modules["numba"].cuda = cuda
    modules["numba.cuda.cudadrv"].driver = driver
    return modules, driver


class Context:
    class device:
        id = 1


class NumbaCase(unittest.TestCase):
    module = "gpumem.adapters.numba"

    def setUp(self):
        modules, self.driver = numba_stand_in()
        with mock.patch.dict(sys.modules, modules):
            for name in ("gpumem.adapters.numba", "gpumem.adapters.numba_pool"):
                sys.modules.pop(name, None)
            self.adapter = importlib.import_module(self.module)
        self.context = Context()
        self.manager = self.adapter._numba_memory_manager(context=self.context)
        self.manager.initialize()
        self.instance = self.manager._instance

    def tearDown(self):
        self.manager.reset()
        self.assertTrue(self.instance.closed)


@on_cuda
class NumbaTest(NumbaCase):
    def test_interface(self):
        self.assertEqual(self.manager.interface_version, 1)
        self.assertEqual(self.adapter.MemoryManager(context=None).interface_version, 1)
        info = self.manager.get_memory_info()
        self.assertTrue(0 < info.free <= info.total == self.manager.deallocations.memory_capacity)

    def test_device_memory(self):
        pointer = self.manager.memalloc(1000)
        info = self.instance.pointer_info(pointer.pointer.value)
        self.assertEqual((info.kind, info.size, info.device_ordinal), (Kind.DEVICE, 1000, 1))
        del pointer
        self.manager.reset()
        self.assertTrue(self.instance.closed)

    def test_a_new_instance_after_a_reset(self):
        self.manager.reset()
        self.assertTrue(self.instance.closed)
        self.manager.memalloc(100)
        self.instance = self.manager._instance
        self.assertFalse(self.instance.closed)

    def test_every_flag_is_honoured(self):
        for number in range(8):
            mapped, portable, wc = bool(number & 1), bool(number & 2), bool(number & 4)
            pointer = self.manager.memhostalloc(4096, mapped, portable, wc)
            self.assertEqual(type(pointer) is self.driver.PinnedMemory, not mapped)
            granted = self.instance.pointer_info(pointer.pointer.value).granted_flags
            self.assertEqual(bool(granted & MemoryFlags.WRITE_COMBINED), wc)
            self.assertTrue(granted & MemoryFlags.PORTABLE and granted & MemoryFlags.MAPPED)
            del pointer

    def test_managed_memory(self):
        for attach_global in (True, False):
            pointer = self.manager.memallocmanaged(4096, attach_global)
            self.assertIs(type(pointer.own.__self__), self.driver.ManagedMemory)
            info = self.instance.pointer_info(pointer.pointer.value)
            self.assertEqual((info.kind, info.size, info.device_ordinal), (Kind.MANAGED, 4096, 1))
            self.assertEqual(bool(info.granted_flags & MemoryFlags.ATTACH_HOST), not attach_global)
            del pointer
            self.manager.allocations.clear()
            self.assertEqual(self.instance.kind_stats(Kind.MANAGED).live_count, 0)

    def test_pinning_the_same_array_again(self):
        owner = bytearray(8192)
        address = gpumem._operands.Buffer(owner, True).address
        for mapped in (False, True, False):
            pointer = self.manager.mempin(owner, address, 8192, mapped)
            self.assertEqual(self.instance.kind_stats(Kind.REGISTERED).live_count, 1)
            self.assertIs(pointer.owner, owner)
            if mapped:
                self.manager.allocations.clear()
            del pointer
            self.assertEqual(self.instance.kind_stats(Kind.REGISTERED).live_count, 0)

    def test_frees_are_deferred_when_asked(self):
        pointer = self.manager.memhostalloc(4096)
        with self.manager.defer_cleanup():
            del pointer
            self.assertEqual(self.instance.kind_stats(Kind.PINNED).live_count, 1)
        self.manager.deallocations.clear()
        self.assertEqual(self.instance.kind_stats(Kind.PINNED).live_count, 0)

    def test_pending_frees_make_room(self):
        with self.manager.defer_cleanup():
            size = self.manager.get_memory_info().total // 2 + (1 << 22)
            self.manager.memalloc(size)
            self.manager.allocations.clear()
        self.assertEqual(self.instance.kind_stats(Kind.DEVICE).live_count, 1)
        self.manager.memalloc(size)
        self.assertEqual(self.instance.kind_stats(Kind.DEVICE).live_count, 1)
        with self.assertRaises(self.driver.CudaAPIError) as caught:
            self.manager.memalloc(1 << 50)
        self.assertEqual(caught.exception.code, 2)


@on_cuda
class NumbaPoolTest(NumbaCase):
    module = "gpumem.adapters.numba_pool"

    def test_blocks(self):
        pointer = self.manager.memalloc(1000)
        address, pool = pointer.pointer.value, self.manager.pool
        self.assertEqual(self.instance.block_info(address).pool, pool)
        self.assertEqual((pool.info().name, pool.info().device_ordinal), ("numba", 1))
        with self.manager.defer_cleanup():
            self.manager.allocations.clear()
            self.assertEqual(pool.info().live_count, 0)  # no free is deferred
        again = self.manager.memalloc(1000)
        self.assertEqual(pool.info().live_count, 1)
        self.manager.memhostalloc(4096)
        self.manager.memallocmanaged(4096, True)
        self.manager.reset()
        self.assertTrue(pool.closed)
        del again
        self.manager.memalloc(100)
        self.instance = self.manager._instance

    def test_in_the_order_of_the_default_stream(self):
        addresses = set()
        for _ in range(100):
            addresses.add(self.manager.memalloc(1000).pointer.value)
            self.manager.allocations.clear()
        self.assertEqual(len(addresses), 1)

    def test_not_enough(self):
        self.manager.options = {"limit": 4 << 20}
        with self.manager.defer_cleanup():
            self.manager.memhostalloc(4096)
            self.manager.allocations.clear()
        for size in (1 << 50, 5 << 20):
            with self.assertRaises(self.driver.CudaAPIError) as caught:
                self.manager.memalloc(size)
            self.assertEqual(caught.exception.code, 2)
        self.assertEqual(self.instance.kind_stats(Kind.PINNED).live_count, 0)  # the pending frees were made
        self.manager.memalloc(3 << 20)


def cupy_stand_in():
    class PinnedMemory:
        def __init__(self, size, flags=0):
            self.size, self.ptr = size, 0
            assert not size, "only empty memory is CuPy's own here"

        def __del__(self):
            assert not self.ptr, "CuPy would free it"

    class PinnedMemoryPointer:
        def __init__(self, mem, offset):
            self.mem, self.ptr = mem, mem.ptr + offset

    class CUDARuntimeError(RuntimeError):
        def __init__(self, status):
            super().__init__(status)
            self.status = status

    class PythonFunctionAllocator:
        class Memory:
            def __init__(self, size, malloc, free, device_id):
                self.size, self.device_id, self.free = size, device_id, free
                self.ptr = 0
                if size:
                    self.ptr = malloc(size, device_id)

            def __del__(self):
                if self.ptr:
                    self.free(self.ptr, self.device_id)

        def __init__(self, malloc, free):
            self.functions = malloc, free

        def malloc(self, size):
            return MemoryPointer(self.Memory(size, *self.functions, cupy.cuda.runtime.getDevice()), 0)

    class CFunctionAllocator:
        class Memory:
            def __init__(self, size, param, malloc, free, device_id):
                self.size, self.device_id, self.param, self.ptr = size, device_id, param, 0
                # With the lock of the interpreter, as CuPy's compiled code has it.
                self.free = ctypes.PYFUNCTYPE(None, c_void_p, c_void_p, ctypes.c_int)(free)
                if size:
                    self.ptr = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_size_t, ctypes.c_int)(malloc)(param, size, device_id) or 0

            def __del__(self):
                if self.ptr:
                    self.free(self.param, self.ptr, self.device_id)

        def __init__(self, param, malloc, free, owner):
            self.functions, self.owner = (param, malloc, free), owner

        def malloc(self, size):
            return MemoryPointer(self.Memory(size, *self.functions, cupy.cuda.runtime.getDevice()), 0)

    class MemoryPointer:
        def __init__(self, mem, offset):
            self.mem, self.ptr = mem, mem.ptr + offset

    chosen = {}
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        PinnedMemory=PinnedMemory, PinnedMemoryPointer=PinnedMemoryPointer, PythonFunctionAllocator=PythonFunctionAllocator,
        CFunctionAllocator=CFunctionAllocator, MemoryPointer=MemoryPointer,
        UnownedMemory=collections.namedtuple("UnownedMemory", "ptr,size,owner,device_id"),
        runtime=types.SimpleNamespace(getDevice=lambda: 1, CUDARuntimeError=CUDARuntimeError, errorMemoryAllocation=2),
        get_current_stream=lambda: chosen["stream"],
        set_allocator=lambda function: chosen.update(device=function),
        set_pinned_memory_allocator=lambda function: chosen.update(pinned=function))
    return cupy, chosen


# How programs begin that use the adapter in an interpreter of their own.
OVER_STAND_IN = f"""
import ctypes, sys, threading, time, weakref
sys.path.insert(0, {str(PACKAGE)!r})
from tests import test_adapters
cupy, chosen = test_adapters.cupy_stand_in()
sys.modules["cupy"] = cupy
import gpumem.adapters.cupy as adapter
"""


class CupyStream:
    def __init__(self, ptr=0):
        self.ptr = ptr


@on_cuda
class CupyTest(unittest.TestCase):
    def setUp(self):
        self.cupy, self.chosen = cupy_stand_in()
        with mock.patch.dict(sys.modules, {"cupy": self.cupy}):
            sys.modules.pop("gpumem.adapters.cupy", None)
            self.adapter = importlib.import_module("gpumem.adapters.cupy")
        self.adapter.install()
        self.instance = self.adapter._instance()

    def tearDown(self):
        self.assertEqual(self.instance.stats().live_objects, 0)
        self.instance.close()

    def test_device_memory(self):
        found = self.chosen["device"](1000)
        info = self.instance.pointer_info(found.mem.ptr)
        self.assertEqual((info.kind, info.size, info.device_ordinal), (Kind.DEVICE, 1000, 1))
        self.assertEqual((found.mem.size, found.mem.device_id), (1000, 1))
        self.assertEqual(self.chosen["device"](0).mem, (0, 0, None, 1))

    def test_pinned_memory(self):
        found = self.chosen["pinned"](1000)
        self.assertEqual(self.instance.pointer_info(found.ptr).kind, Kind.PINNED)
        self.assertEqual(found.mem.size, 1000)
        self.assertIsInstance(found.mem, self.cupy.cuda.PinnedMemory)
        self.assertEqual(self.chosen["pinned"](0).ptr, 0)

    def test_not_enough(self):
        with self.assertRaises(self.cupy.cuda.runtime.CUDARuntimeError) as caught:
            self.chosen["device"](1 << 50)
        self.assertEqual(caught.exception.status, 2)

    def test_a_pool(self):
        with self.instance.device(1).stream() as stream:
            self.chosen["stream"] = CupyStream(stream.native_stream)
            pools = self.adapter.Pool(limit=1 << 30)
            self.cupy.cuda.set_allocator(pools.malloc)
            found = self.chosen["device"](1000)
            pool = pools.pool(1)
            self.assertEqual(pool.info().limit, 1 << 30)
            self.assertEqual((pool.kind, pool.info().name, pool.info().device_ordinal), (Kind.DEVICE, "cupy", 1))
            self.assertEqual(self.instance.block_info(found.mem.ptr).pool, pool)
            self.assertEqual((found.mem.size, found.mem.device_id), (1000, 1))
            address = found.mem.ptr
            del found
            self.assertEqual(pool.info().live_count, 0)
            again = self.chosen["device"](1000)
            self.assertEqual(again.mem.ptr, address)  # in the same stream at once
            self.assertEqual(self.chosen["device"](0).mem.ptr, 0)
            with self.assertRaises(self.cupy.cuda.runtime.CUDARuntimeError) as caught:
                self.chosen["device"](1 << 50)
            self.assertEqual(caught.exception.status, 2)
            pool.set_limit(1 << 20)
            with self.assertRaises(self.cupy.cuda.runtime.CUDARuntimeError):
                self.chosen["device"](1 << 24)
            del again, pools, pool, caught  # which has frames that use the pool
            self.chosen.clear()
            gc.collect()

    def test_installing_pools(self):
        self.chosen["stream"] = CupyStream()
        self.adapter.install(pool=True)
        found = self.chosen["device"](1000)
        self.assertEqual(self.instance.block_info(found.mem.ptr).pool.info().name, "cupy")
        self.assertEqual(self.chosen["pinned"](1).mem.size, 1)
        del found
        self.chosen.clear()
        gc.collect()

    def test_a_block_keeps_its_stream(self):
        with self.instance.device(1).stream() as stream:
            current = CupyStream(stream.native_stream)
            pools, left = self.adapter.Pool(), []
            kept = weakref.ref(current, lambda _, pool=pools.pool(1): left.append(pool.info().live_count))
            self.chosen["stream"] = current
            found = pools.malloc(1000)
            self.chosen["stream"] = CupyStream()
            del current
            self.assertIsNotNone(kept())
            del found
            self.assertIsNone(kept())
            self.assertEqual(left, [0])  # the block was freed first
            del pools, kept
            gc.collect()

    def test_a_block_outlives_its_pool(self):
        self.chosen["stream"] = CupyStream()
        pools = self.adapter.Pool()
        found = pools.malloc(1000)
        pools.pool(1).close()
        self.assertEqual(self.instance.pointer_info(found.mem.ptr).kind, Kind.POOL)
        address = found.mem.ptr
        del found
        with self.assertRaises(gpumem.NotFound):
            self.instance.block_info(address)
        del pools
        gc.collect()

    def by_c(self, found):
        return isinstance(found.mem, self.cupy.cuda.CFunctionAllocator.Memory)

    def warm(self, pools):
        """Uses a new stream until functions of C serve it."""
        self.assertEqual([self.by_c(pools.malloc(1000)) for _ in range(3)], [False, False, True])

    def test_functions_of_c(self):
        with self.instance.device(1).stream() as stream, self.instance.device(1).stream() as other:
            pools = self.adapter.Pool(limit=64 << 20)
            pool = pools.pool(1)
            self.chosen["stream"] = CupyStream(stream.native_stream)
            first, second = pools.malloc(1000), pools.malloc(1000)  # the second lets them serve the stream
            self.assertFalse(self.by_c(first) or self.by_c(second))
            address = first.ptr
            del first, second
            found = [pools.malloc(1000) for _ in range(3)]
            self.assertTrue(all(map(self.by_c, found)))
            self.assertIn(address, [each.ptr for each in found])  # in the same stream at once
            self.assertEqual((found[0].mem.size, found[0].mem.device_id), (1000, 1))
            self.assertEqual(pool.info().live_count, 3)
            self.chosen["stream"] = CupyStream(other.native_stream)
            self.warm(pools)
            self.assertEqual((pools.malloc(0).ptr, pool.info().live_count), (0, 3))
            with self.assertRaises(self.cupy.cuda.runtime.CUDARuntimeError) as caught:
                pools.malloc(65 << 20)
            self.assertEqual(caught.exception.status, 2)
            self.assertIsInstance(caught.exception.__cause__, gpumem.LimitExceeded)
            self.assertTrue(self.by_c(pools.malloc(1000)))
            found.clear()
            self.assertEqual(pool.info().live_count, 0)
            del pools, pool, caught
            self.chosen.clear()
            gc.collect()

    def test_functions_of_c_keep_what_they_need(self):
        with self.instance.device(1).stream() as stream:
            pools, left = self.adapter.Pool(), []
            current = self.chosen["stream"] = CupyStream(stream.native_stream)
            self.warm(pools)
            found = [pools.malloc(1000), pools.malloc(1000)]
            self.assertTrue(all(map(self.by_c, found)))
            kept = weakref.ref(current, lambda _, pool=weakref.ref(pools.pool(1)): left.append(pool().info().live_count))
            self.chosen.clear()
            del current, pools
            gc.collect()
            self.assertIsNotNone(kept())
            pool = weakref.ref(self.instance.block_info(found[0].ptr).pool)
            found.pop()
            self.assertIsNotNone(kept())
            found.pop()
            self.assertIsNone(kept())
            self.assertEqual(left, [0])  # the last block was freed first
            gc.collect()
            self.assertIsNone(pool())

    def test_a_handle_that_is_given_out_again(self):
        with self.instance.device(1).stream() as stream:
            pools = self.adapter.Pool()
            self.chosen["stream"] = CupyStream(stream.native_stream)
            self.warm(pools)
            block = pools.malloc(1)
            former = weakref.ref(self.chosen["stream"])
            self.chosen["stream"] = CupyStream(stream.native_stream)
            self.assertIsNotNone(former())  # the block keeps it
            self.warm(pools)
            del block
            self.assertIsNone(former())
            self.assertTrue(self.by_c(pools.malloc(1)))  # the former one's end does not forget the new one
            self.chosen["stream"] = None
            self.assertEqual(pools._orders, {})
            self.chosen["stream"] = CupyStream(stream.native_stream)
            self.warm(pools)
            self.chosen["stream"] = None
            self.assertEqual(pools._orders, {})
            del pools
            gc.collect()

    def test_a_callback(self):
        self.chosen["stream"] = CupyStream()
        pools = self.adapter.Pool(limit=4 << 20)
        self.warm(pools)
        asked = []

        def more(pool, size):
            asked.append(size)
            with self.assertRaises(gpumem.InvalidState):
                pool.set_callback(None)
            raise KeyError("more")

        pools.pool(1).set_callback(more)
        block = pools.malloc(1)
        self.assertFalse(self.by_c(block))
        for count in (1, 2):
            with self.assertRaises(KeyError):
                pools.malloc(8 << 20)
            self.assertEqual(len(asked), count)
        pools.pool(1).set_callback(None)
        self.assertTrue(self.by_c(pools.malloc(1)))
        del pools, block, more
        gc.collect()

    def test_a_block_of_c_outlives_its_pool(self):
        self.chosen["stream"] = CupyStream()
        pools = self.adapter.Pool()
        self.warm(pools)
        found = pools.malloc(1000)
        pools.pool(1).close()
        with self.assertRaises(gpumem.StaleHandle):
            pools.malloc(1000)
        address = found.ptr
        self.assertEqual(self.instance.pointer_info(address).kind, Kind.POOL)
        del found  # by its address, since the pool is not there
        with self.assertRaises(gpumem.NotFound):
            self.instance.block_info(address)
        del pools
        gc.collect()

    def test_functions_of_c_release_the_interpreter(self):
        self.chosen["stream"] = CupyStream()
        pools = self.adapter.Pool(limit=4 << 20)
        self.warm(pools)
        pool, api = pools.pool(1), ctypes.pythonapi
        api.PyThread_allocate_lock.restype = c_void_p
        api.PyThread_acquire_lock.argtypes = [c_void_p, ctypes.c_int]
        api.PyThread_release_lock.argtypes = api.PyThread_free_lock.argtypes = [c_void_p]
        lock = api.PyThread_allocate_lock()
        api.PyThread_acquire_lock(lock, 1)
        # The pool's callback waits for the lock, which another thread of Python releases. The adapter does not know of it.
        self.assertTrue(pool.handle & 0xffffffff)  # which is the flag that says to wait
        wait = ctypes.cast(api.PyThread_acquire_lock, native.gpumem_pool_callback)
        begin, former = threading.Event(), sys.getswitchinterval()
        other = threading.Thread(target=lambda: begin.wait() and api.PyThread_release_lock(lock), daemon=True)
        other.start()
        call(native.gpumem_pool_set_callback, pool.handle, wait, lock)
        malloc = pools._orders[0][1]
        sys.setswitchinterval(1000)  # so that no thread is preempted
        faulthandler.dump_traceback_later(60, exit=True)  # not to wait for ever
        try:
            begin.set()
            self.assertEqual(malloc(8 << 20).ptr, 0)
        finally:
            faulthandler.cancel_dump_traceback_later()
            sys.setswitchinterval(former)
            call(native.gpumem_pool_set_callback, pool.handle, native.gpumem_pool_callback(), None)
        other.join()
        api.PyThread_free_lock(lock)
        del pools, pool, malloc
        gc.collect()

    def test_a_block_that_is_dropped_in_a_host_function(self):
        # In another process, whose calls in a host function are no misuse that counts.
        python(OVER_STAND_IN + """
cu, function = ctypes.CDLL("libcuda.so.1"), ctypes.CFUNCTYPE(None, ctypes.c_void_p)
device = adapter._instance().device(1)
stream = device.stream()
for warm in False, True:
    pools, left = adapter.Pool(), []
    pool, chosen["stream"] = pools.pool(1), test_adapters.CupyStream(stream.native_stream)
    if warm:
        for _ in range(2):
            pools.malloc(1)
    blocks, kept = [pools.malloc(1000)], weakref.ref(chosen["stream"])
    assert isinstance(blocks[0].mem, cupy.cuda.CFunctionAllocator.Memory) == warm
    chosen.clear()
    drop = function(lambda _: left.append((blocks.clear(), pool.info().live_count, kept() is not None)))
    assert cu.cuLaunchHostFunc(ctypes.c_void_p(stream.native_stream), drop, None) == 0
    stream.synchronize()
    assert left == [(None, 1, True)], left  # it could not be freed there
    assert kept() is not None
    device.stream().close()  # whoever makes something frees what is left
    assert pool.info().live_count == 0 and kept() is None
    del drop
""", FAKE_CUDA_REPORT=None)

    def test_two_devices_and_their_default_stream(self):
        self.chosen["stream"] = CupyStream()
        pools, chosen = self.adapter.Pool(), []
        for device in (0, 1, 0, 1, 0, 1):
            self.cupy.cuda.runtime.getDevice = lambda device=device: device
            chosen.append(pools.malloc(1000))
            self.assertEqual(self.instance.block_info(chosen[-1].ptr).pool.device.ordinal, device)
        self.assertTrue(all(map(self.by_c, chosen[2:])))
        chosen.clear()
        self.assertEqual([pools.pool(device).info().live_count for device in (0, 1)], [0, 0])
        del pools
        gc.collect()

    def test_several_threads(self):
        local, problems = threading.local(), []
        self.cupy.cuda.get_current_stream = None  # the adapter has its own by now
        self.adapter._current_stream = lambda: local.stream

        def work(pools, native_stream):
            try:
                local.stream = CupyStream(native_stream)
                for _ in range(300):
                    blocks = [pools.malloc(size) for size in (1, 1000, 100000)]
                    if len({block.ptr for block in blocks}) != 3 or not all(block.ptr for block in blocks):
                        problems.append(blocks)
                    blocks.clear()
            except BaseException as problem:
                problems.append(problem)

        with self.instance.device(1).stream() as stream, self.instance.device(1).stream() as other:
            pools = self.adapter.Pool()
            threads = [threading.Thread(target=work, args=(pools, each))
                       for each in (0, 0, stream.native_stream, other.native_stream)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(problems, [])
            self.assertEqual(pools.pool(1).info().live_count, 0)
            del pools, threads
            gc.collect()

    def test_a_thread_that_the_end_of_the_interpreter_finds_in_c(self):
        # The other thread is in the pool's callback when the interpreter ends. Then it must not abort the process.
        status, out, _ = python(OVER_STAND_IN + """
from gpumem import _library as native
chosen["stream"] = test_adapters.CupyStream()
pools = adapter.Pool(limit=4 << 20)
for _ in range(3):
    pools.malloc(1)
libc = ctypes.CDLL(None)
native.gpumem_pool_set_callback(pools.pool(1).handle, ctypes.cast(libc.usleep, native.gpumem_pool_callback), 1000, None)
began = threading.Event()
def work():
    malloc = pools._orders[0][1]
    began.set()
    while True:
        malloc(8 << 20)
threading.Thread(target=work, daemon=True).start()
began.wait()
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)  # in which the thread asks for the interpreter
slow = Slow()
print("done")
""")
        self.assertEqual((status, out), (0, "done\n"))

    def test_no_lock_of_the_interpreter(self):
        with mock.patch.object(sys, "_is_gil_enabled", lambda: False, create=True):
            with self.assertRaisesRegex(gpumem.errors.LibraryNotFound, "runs without its lock"):
                self.adapter.Pool()

    def test_no_plug_in(self):
        with mock.patch.dict(os.environ, GPUMEM_PYTHON_LIBRARY="/nowhere"):
            with self.assertRaisesRegex(gpumem.errors.LibraryNotFound, "/nowhere cannot be loaded"):
                self.adapter.Pool()
        self.chosen["stream"] = CupyStream()
        with mock.patch.object(self.adapter._plug_in, "path", side_effect=gpumem.errors.LibraryNotFound("there is none")):
            pools = self.adapter.Pool()
        self.assertFalse(any(self.by_c(pools.malloc(1)) for _ in range(4)))
        del pools
        gc.collect()


def cuda_core_stand_in(version):
    """The part of cuda.core that a memory resource uses, with the signatures of a version."""
    new, name = version >= (1, 2), "cuda.core" if version >= (0, 5) else "cuda.core.experimental"
    modules = {key: types.ModuleType(key) for key in ("cuda", "cuda.core", name)}
    modules["cuda"].core = modules["cuda.core"]
    modules["cuda.core"].__version__ = "{}.{}.0".format(*version)

    class Stream:
        def __init__(self, handle):
            self.handle = handle

        def __cuda_stream__(self):
            return 0, self.handle

    class Device:
        default_stream = Stream(1)

        def __init__(self, device_id=0):
            self.device_id = device_id

    class Buffer:
        @classmethod
        def make(cls, ptr, size, mr=None, stream=None):
            self = cls()
            self.handle, self.size, self.memory_resource, self.stream = ptr, size, mr, stream
            return self

        if new:
            @staticmethod
            def from_handle(ptr, size, mr=None, owner=None, *, stream=None):
                assert stream is None or mr is not None
                return Buffer.make(ptr, size, mr, stream or Device.default_stream)
        else:
            @staticmethod
            def from_handle(ptr, size, mr=None):
                return Buffer.make(ptr, size, mr)

        def close(self, stream=None):
            if self.handle and self.memory_resource:
                if new:
                    self.memory_resource.deallocate(int(self.handle), self.size, stream=stream or self.stream)
                elif version >= (0, 4):
                    self.memory_resource.deallocate(self.handle, self.size, stream or Device.default_stream)
                else:
                    self.memory_resource.deallocate(self.handle, self.size, stream)
            self.handle = 0

        def __del__(self):
            self.close()

    class MemoryResource(abc.ABC):
        @abc.abstractmethod
        def allocate(self, size, stream=None): ...

        @abc.abstractmethod
        def deallocate(self, ptr, size, stream=None): ...

        @property
        @abc.abstractmethod
        def is_device_accessible(self): ...

        @property
        @abc.abstractmethod
        def is_host_accessible(self): ...

        @property
        @abc.abstractmethod
        def device_id(self): ...

    for one in (Stream, Device, Buffer, MemoryResource):
        setattr(modules[name], one.__name__, one)
    return modules, Stream, Device


@on_cuda
class CudaCoreTest(unittest.TestCase):
    def each_version(self, check):
        """With functions of C, without them, and with a plug-in that lacks them."""
        plug_in = gpumem.adapters._plug_in.python
        for version, found in itertools.product(((0, 3), (0, 4), (0, 5), (1, 0), (1, 2), (2, 0)),
                                                 (plug_in, lambda: None, lambda: ctypes.CDLL(None))):
            with self.subTest(version=version), mock.patch.object(gpumem.adapters._plug_in, "python", found):
                self.by_c = found is plug_in
                modules, self.Stream, self.Device = cuda_core_stand_in(version)
                with mock.patch.dict(sys.modules, modules):
                    sys.modules.pop("gpumem.adapters.cuda_core", None)
                    self.adapter = importlib.import_module("gpumem.adapters.cuda_core")
                self.instance = self.adapter._instance()
                check(version)
                gc.collect()
                self.assertEqual(self.instance.stats().live_objects, 0)
                self.instance.close()

    def test_each_kind(self):
        def check(_):
            for kind in ("device", "pinned", "managed"):
                resource = self.adapter.MemoryResource(self.Device(1), kind=kind, limit=64 << 20)
                self.assertEqual((resource.device_id, resource.is_device_accessible, resource.is_host_accessible,
                                  resource.is_managed, resource.is_ipc_enabled),
                                 (-1 if kind == "pinned" else 1, True, kind != "device", kind == "managed", False))
                buffer = resource.allocate(1000)
                self.assertEqual((buffer.size, buffer.memory_resource), (1000, resource))
                self.assertEqual(self.instance.block_info(buffer.handle).pool, resource.pool)
                info = resource.pool.info()
                self.assertEqual((info.name, info.live_count, info.limit), ("cuda.core", 1, 64 << 20))
                del buffer
                self.assertEqual(resource.pool.info().live_count, 0)
                for _ in range(2):
                    self.assertFalse(resource.allocate(0).handle)
                with self.assertRaises(MemoryError):
                    resource.allocate(128 << 20)
                resource.allocate(1000)
                self.assertEqual(resource.pool.info().live_count, 0)
                del resource
            self.assertEqual(self.adapter.MemoryResource(0).device_id, 0)
        self.each_version(check)

    def test_streams(self):
        def check(version):
            with self.instance.device(0).stream() as first, self.instance.device(0).stream() as second:
                one, two = self.Stream(first.native_stream), self.Stream(second.native_stream)
                resource = self.adapter.MemoryResource()
                buffer = resource.allocate(1000, stream=one)
                address = buffer.handle
                del buffer
                self.assertEqual(resource.allocate(1000, stream=one).handle, address)  # in the same stream at once
                with mock.patch.object(resource, "_free", side_effect=resource._free) as free:
                    resource.allocate(1000, stream=types.SimpleNamespace(stream=two)).close()  # of a graph that is being built
                    resource.allocate(1000, stream=one).close(two)
                    resource.allocate(1000).close()
                    resource.allocate(1000, stream=one).close(self.Device.default_stream)
                    self.assertEqual([arguments.args[1] for arguments in free.call_args_list],
                                     [two.handle, two.handle, 1, 1 if version >= (1, 2) else one.handle])
                del resource
        self.each_version(check)

    def test_functions_of_c(self):
        def check(_):
            resource = self.adapter.MemoryResource(limit=4 << 20)
            with mock.patch.object(gpumem.Pool, "malloc", side_effect=KeyError), mock.patch.object(gpumem.Pool, "_drop", side_effect=KeyError):
                if self.by_c:
                    buffer = resource.allocate(1000)
                    self.assertEqual(resource.pool.info().live_count, 1)
                    buffer.close()
                else:
                    self.assertRaises(KeyError, resource.allocate, 1000)
            self.assertEqual(resource.pool.info().live_count, 0)
            for wrong in ((), (8,), (8, 0, 0), ("8", 0), (8, "0"), (-8, 0), (8, -1), (1 << 64, 0), (8.0, 0)) if self.by_c else ():
                self.assertIsNone(resource._alloc(*wrong))
                self.assertFalse(resource._free(*wrong))
            asked = []

            def more(pool, size):
                asked.append(size)
                raise KeyError("more")
            resource.pool.set_callback(more)
            self.assertRaises(KeyError, resource.allocate, 8 << 20)
            self.assertEqual(len(asked), 1)
            resource.pool.set_callback(None)
            del more
        self.each_version(check)

    def test_memory_that_devices_do_not_reach(self):
        def check(_):
            with self.assertRaisesRegex(gpumem.InvalidArgument, "^the kind is pageable"):
                self.adapter.MemoryResource(kind="pageable")
            self.assertEqual(self.instance.stats().live_objects, 0)
            for flags in 0, "attach_host":
                resource = self.adapter.MemoryResource(kind="managed", memory_flags=flags)
                self.assertTrue(resource.is_device_accessible)  # the fake device is concurrent
                with mock.patch.object(gpumem.Device, "capability", return_value=False):
                    resource = self.adapter.MemoryResource(kind="managed", memory_flags=flags)
                self.assertEqual(resource.is_device_accessible, not flags)
            del resource
        self.each_version(check)

    def test_what_is_no_block(self):
        def check(_):
            resource = self.adapter.MemoryResource()
            address = resource.allocate(1000).handle  # it is freed at once
            for wrong in (address, 0xDEADBEEF):
                with self.assertRaisesRegex(gpumem.NotFound, f"^{wrong:#x} is not "):
                    resource.deallocate(wrong, 1000)
        self.each_version(check)

    def test_what_is_no_stream(self):
        def check(_):
            with self.instance.device(0).stream() as stream:
                resource = self.adapter.MemoryResource()
                buffer = resource.allocate(1000)
                for wrong, kind in ("a stream", TypeError), (types.SimpleNamespace(ptr=-1), gpumem.InvalidArgument):
                    with self.assertRaises(kind):
                        buffer.close(wrong)
                    self.assertEqual(resource.pool.info().live_count, 1)
                buffer.close(self.Stream(stream.native_stream))
                self.assertEqual(resource.pool.info().live_count, 0)
                del resource
        self.each_version(check)

    def test_close(self):
        def check(_):
            resource = self.adapter.MemoryResource()
            buffer = resource.allocate(1000)
            for _ in range(2):
                resource.close()
            with self.assertRaises(gpumem.Error):
                resource.allocate(1000)
            buffer.close()
        self.each_version(check)

    def test_no_lock_of_the_interpreter(self):
        def check(_):
            if self.by_c:
                with mock.patch.object(sys, "_is_gil_enabled", lambda: False, create=True):
                    with self.assertRaisesRegex(gpumem.errors.LibraryNotFound, "runs without its lock"):
                        self.adapter.MemoryResource()
        self.each_version(check)

    def test_a_buffer_that_is_not_made(self):
        def check(_):
            resource = self.adapter.MemoryResource()
            with mock.patch.object(self.adapter.Buffer, "from_handle", side_effect=KeyboardInterrupt):
                with self.assertRaises(KeyboardInterrupt):
                    resource.allocate(1000)
            self.assertEqual(resource.pool.info().live_count, 0)
        self.each_version(check)


def from_dlpack(array):
    """What torch.from_dlpack does: it passes its stream for a GPU, and refuses the devices that PyTorch does not know."""
    if hasattr(array, "__dlpack__"):
        kind = array.__dlpack_device__()[0]
        array = array.__dlpack__(max_version=(1, 0), **({"stream": 1} if kind == 2 else {}))
    view = gpumem.from_dlpack(array)
    if view.dlpack_device[0] not in (1, 2):
        raise RuntimeError(f"Unsupported device_type: {view.dlpack_device[0]}")
    return view


class TorchTest(Case):
    def setUp(self):
        super().setUp()
        torch = types.ModuleType("torch")
        torch.from_dlpack = from_dlpack
        with mock.patch.dict(sys.modules, {"torch": torch}):
            sys.modules.pop("gpumem.adapters.torch", None)
            self.adapter = importlib.import_module("gpumem.adapters.torch")

    def test_tensors(self):
        adapter = self.adapter
        with self.pinned(64) as memory:
            tensor = adapter.as_tensor(memory, "f4", (2, 2), offset=16)
            self.assertEqual((tensor.address, tensor.shape), (memory.host_pointer + 16, (2, 2)))
            again = adapter.as_tensor(memory.view("f4"))
            self.assertEqual(again.shape, (16,))
            with self.assertRaisesRegex(TypeError, "already"):
                adapter.as_tensor(memory.view(), "f4")
            with self.assertRaisesRegex(TypeError, "bytearray"):
                adapter.as_tensor(bytearray(8), "f4")
            taken = adapter.from_tensor(types.SimpleNamespace(detach=lambda view=again: view))
            self.assertEqual(taken.address, again.address)
            del tensor, again, taken

    def check(self, memory, device, address):
        tensor = self.adapter.as_tensor(memory, "f4", (4, 4))
        self.assertEqual((tensor.dlpack_device, tensor.address, tensor.shape), (device, address, (4, 4)))
        with self.assertRaises(BufferError):
            memory.close()
        del tensor
        gc.collect()
        memory.close()

    def test_host_memory(self):
        for memory in (self.pinned(64), self.device.register(bytearray(64)), self.device.pool("pinned").alloc(64),
                       self.device.pool("pageable").alloc(64)):
            with self.subTest(repr(memory)):
                self.check(memory, (1, 0), memory.host_pointer)

    def test_buffers(self):
        buffer = self.device.buffer(64, location=("host_numa", 0))
        self.check(buffer, (1, 0), buffer.host_pointer)

    @on_cuda
    def test_memory_on_a_device(self):
        other = self.instance.device(1)
        for memory in (other.memory(64), other.memory(64, "managed"), other.buffer(64), other.pool().alloc(64),
                       other.pool("managed").alloc(64)):
            with self.subTest(repr(memory)):
                self.check(memory, (2, 1), memory.device_pointer)
        unit = other.physical_granularity().minimum
        with other.physical(unit) as block, self.instance.reserve(unit) as addresses:
            addresses.map(0, block)
            addresses.set_access(0, unit, {other: "readwrite"})
            tensor = self.adapter.as_tensor(addresses.part(0, unit), "f4", (4, 4))
            self.assertEqual((tensor.dlpack_device, tensor.address), ((2, 1), addresses.base))
            del tensor
            addresses.unmap(0, unit)

    @on_host
    def test_device_memory_of_the_host_backend(self):
        with self.device.memory(64) as memory, self.assertRaisesRegex(BufferError, "host backend"):
            self.adapter.as_tensor(memory)

    def test_memory_that_is_read_only(self):
        with self.device.register(bytes(64), require="read_only") as memory, self.assertRaisesRegex(BufferError, "read-only"):
            self.adapter.as_tensor(memory)

    @on_cuda
    def test_work_in_flight(self):
        with self.device.memory(64, "managed") as memory, self.device.stream() as stream:
            memory.fill(1, stream=stream)
            with mock.patch.object(gpumem.View, "_order_before") as ordered:
                tensor = self.adapter.as_tensor(memory)
            stream.synchronize()
            ordered.assert_called_once_with(1)
            del tensor


class Tensor:
    """The part of a tensor that the adapter uses, over a view."""

    def __init__(self, view, dtype=None, shape=None):
        self.storage, self.dtype, self.shape = view, dtype, shape

    def view(self, what):
        if not isinstance(what, tuple):
            return type(self)(self.storage, what, (self.storage.nbytes // what.itemsize,))
        assert self.storage.nbytes == self.dtype.itemsize * math.prod(what)
        return type(self)(self.storage, self.dtype, what)

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: self.storage.address if self.storage.nbytes else 0)


class TorchStream:
    def __init__(self, stream):
        self.device, self.cuda_stream = types.SimpleNamespace(index=stream.device.ordinal), stream.native_stream


@on_cuda
class TorchPinnedTest(Case):
    def setUp(self):
        super().setUp()
        torch, self.float32 = types.ModuleType("torch"), types.SimpleNamespace(itemsize=4)
        torch.from_dlpack = lambda array: Tensor(from_dlpack(array))
        torch.get_default_dtype = lambda: self.float32
        torch.cuda = types.SimpleNamespace(current_device=lambda: 0, current_stream=lambda: TorchStream(self.current))
        with mock.patch.dict(sys.modules, {"torch": torch}):
            sys.modules.pop("gpumem.adapters.torch", None)
            self.adapter = importlib.import_module("gpumem.adapters.torch")
        self.adapter._instance = lambda: self.instance
        self.current = self.idle = self.device.stream()

    def tearDown(self):
        self.adapter._pinned_pools.clear()
        self.adapter._streams.clear()
        self.idle.close()
        super().tearDown()

    def free(self, *streams):
        """Where the pool has room for a tensor of 1 MiB, once the work of some streams is complete. The pool marks them at the first
        look."""
        pool = self.adapter.pinned_pool()
        for number in range(2):
            blocks = []
            while (block := pool.try_alloc(1 << 20)[0]) is not None:
                blocks.append(block)
            for stream in streams:
                stream.synchronize()
        return [block.host_pointer for block in blocks]

    def test_tensors(self):
        tensor = self.adapter.empty_pinned(4, 8)
        self.assertEqual((tensor.dtype, tensor.shape), (self.float32, (4, 8)))
        info = self.instance.block_info(tensor.storage.address)
        self.assertEqual((info.pool, info.pool.kind), (self.adapter.pinned_pool(), Kind.PINNED))
        short = types.SimpleNamespace(itemsize=2)
        for size in ((), (3,), ((3, 5),), ([3, 5],), (0, 7)):
            with self.subTest(size):
                other = self.adapter.empty_pinned(*size, dtype=short)
                shape = tuple(size[0]) if size and not isinstance(size[0], int) else size
                self.assertEqual((other.dtype, other.shape), (short, shape))
                self.adapter.record_stream(other, TorchStream(self.current))
        with self.assertRaisesRegex(ValueError, "negative"):
            self.adapter.empty_pinned(-1)
        self.assertEqual(info.pool.info().live_count, 2)
        del tensor, other
        self.assertEqual(info.pool.info().live_count, 0)

    def test_each_gpu_has_a_pool(self):
        self.assertIs(self.adapter.pinned_pool(), self.adapter.pinned_pool(0))
        self.assertEqual(self.adapter.pinned_pool(1).device.ordinal, 1)

    def check_use(self, tensors, stream, release):
        """Ends a tensor that a stream uses."""
        address = tensors.pop().storage.address
        live, while_running = self.adapter.pinned_pool().info().live_count, self.free(self.idle)
        next_ones = [self.adapter.empty_pinned(1 << 18) for _ in range(4)]  # in the same stream, but the CPU may write them at once
        while_running += [one.storage.address for one in next_ones]
        del next_ones
        release()
        self.assertEqual(live, 0)
        self.assertNotIn(address, while_running)
        self.assertIn(address, self.free(self.idle, stream))

    def test_it_is_used_again_after_the_work(self):
        self.current, release = self.held_stream()
        self.check_use([self.adapter.empty_pinned(1 << 18)], self.current, release)
        self.current.close()

    def test_other_streams(self):
        stream, release = self.held_stream()
        tensors = [self.adapter.empty_pinned(1 << 18)]
        self.adapter.record_stream(tensors[0].view(self.float32), TorchStream(stream))
        self.check_use(tensors, stream, release)
        with self.pinned() as memory:
            other = self.adapter.as_tensor(memory)
            with self.assertRaisesRegex(ValueError, "empty_pinned"):
                self.adapter.record_stream(other, TorchStream(self.current))
            del other
        stream.close()


# PyTorch's own Python around a plugged-in allocator, and its C++ as far as that only passes calls on.
TORCH_STAND_IN = '''
import ctypes, sys, types
from ctypes import CFUNCTYPE, c_double, c_int, c_size_t, c_void_p

class Inner:
    def __init__(self, alloc, free):
        self.alloc = CFUNCTYPE(c_void_p, c_size_t, c_int, c_void_p)(alloc)
        self.free = CFUNCTYPE(None, c_void_p, c_size_t, c_int, c_void_p)(free)
        self.set = set()
    def __getattr__(self, name):
        assert name.startswith("set_"), name
        def setter(address):
            assert address
            self.set.add(name)
            setattr(self, name[4:], address)
        return setter

class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        library = ctypes.CDLL(path)
        self.inner = Inner(*(ctypes.cast(getattr(library, name), c_void_p).value for name in (alloc, free)))
    def allocator(self):
        return self.inner

current = []
def change_current_allocator(made):
    if current:
        raise RuntimeError("Can't swap an already initialized allocator")
    current.append(made.allocator())

torch = types.ModuleType("torch")
torch.device = lambda text: types.SimpleNamespace(index=int(text.partition(":")[2]) if ":" in text else None)
torch._C = types.SimpleNamespace(**dict.fromkeys(("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_memorySnapshot", "_cuda_emptyCache")))
torch.cuda = types.SimpleNamespace(
    current_device=lambda: 0, init=lambda: None,
    MemPool=lambda inner, **options: (inner, options),
    memory=types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=change_current_allocator))
sys.modules["torch"] = torch
'''


class TorchAllocatorTest(unittest.TestCase):
    @on_cuda
    def test_install(self):
        python(TORCH_STAND_IN + '''
import gpumem.adapters.torch as adapter

adapter.install()
adapter.install()
assert adapter.installed()
(inner,) = current
assert inner.set == {"set_init_fn", "set_reset_fn", "set_memory_fraction_fn", "set_base_alloc_fn", "set_record_stream_fn",
                     "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool"}, inner.set
assert adapter.memory_snapshot() == []
CFUNCTYPE(None, c_int)(inner.init_fn)(1)
block = inner.alloc(100000, 0, None)
stats = adapter.memory_stats()
assert stats["allocation.all.current"] == 1 and 100000 <= stats["allocated_bytes.all.current"] <= 112500, stats
assert stats["reserved_bytes.all.current"] == 2 << 20 and stats["num_ooms"] == 0, stats
assert torch._C._cuda_memoryStats(0)["active"]["all"]["current"] == 1
assert adapter.memory_stats("cuda:1")["allocation.all.current"] == 0

size = c_size_t()
adapter._load().gpumem_torch_base_alloc(block + 5, size)
assert size.value >= 100000

(pool,) = adapter.memory_snapshot()
assert pool["total_size"] == 2 << 20 and pool["classes"] and pool["segment_pool_id"] == (0, 0), pool

# The id and the filter are C++ objects, which the tests in C++ pass; so a pool of its own is not seen from here.
inner.free(block, 100000, 0, None)
adapter.empty_cache()
adapter.reset_peak_memory_stats()
stats = adapter.memory_stats("cuda")
assert stats["reserved_bytes.all.current"] == stats["reserved_bytes.all.peak"] == 0, stats
assert stats["allocation.all.freed"] == stats["allocation.all.allocated"] == 1, stats
adapter._reset_accumulated(0)
assert adapter.memory_stats()["allocation.all.allocated"] == 0

adapter.set_per_process_memory_fraction(0.5)
assert adapter._memory_fraction() == 0.5
try:
    adapter.set_per_process_memory_fraction(2)
    raise AssertionError("2 is no fraction")
except ValueError:
    pass

segments, options = adapter.mem_pool(use_on_oom=True)
assert options == {"use_on_oom": True}
segment = segments.alloc(20 << 20, 0, None)
assert segment and not segments.alloc(1 << 50, 0, None)
segments.free(segment, 20 << 20, 0, None)
''')

    @on_cuda
    def test_emptying_lets_other_threads_run(self):
        """It waits for the GPU, where a function of Python may be what it waits for."""
        python(TORCH_STAND_IN + '''
import time
import gpumem
import gpumem.adapters.torch as adapter

adapter.install()
(inner,) = current
inner.free(inner.alloc(1 << 20, 0, None), 1 << 20, 0, None)
ran = []
with gpumem.Instance("cuda") as instance, instance.device(0).stream() as stream:
    stream.launch_host_function(lambda: (time.sleep(0.05), ran.append(True)))
    torch._C._cuda_emptyCache()
    assert ran and adapter.memory_stats()["reserved_bytes.all.current"] == 0
''')

    @on_cuda
    def test_a_fraction_that_is_refused(self):
        """Exceptions of C++ must not reach ctypes, which would end the process."""
        python(TORCH_STAND_IN + '''
import os
import gpumem
import gpumem.adapters.torch as adapter

def refused(kind, device, text):
    try:
        adapter.set_per_process_memory_fraction(0.5, device)
    except kind as problem:
        assert text in str(problem), problem
        return True
    return False

assert refused(gpumem.InvalidArgument, 9, "gpumem does not find the GPU: ")
assert refused(gpumem.InvalidArgument, 64, "0 to 63") and refused(ValueError, "cuda:64", "0 to 63")
adapter.set_per_process_memory_fraction(0.5, 0)
assert adapter._memory_fraction() == 0.5
child = os.fork()
if not child:
    adapter.empty_cache()
    os._exit(0 if refused(gpumem.Forked, 0, "forked") else 1)
assert os.waitpid(child, 0)[1] == 0
''')

    @on_cuda
    def test_a_driver_that_fails(self):
        python(TORCH_STAND_IN + '''
import gpumem
import gpumem.adapters.torch as adapter
try:
    adapter.set_per_process_memory_fraction(0.5)
    raise AssertionError("the driver cannot be opened")
except gpumem.Error as problem:
    assert "cannot open the CUDA driver" in str(problem) and problem.native_name == "CUDA_ERROR_UNKNOWN", repr(problem)
''', FAKE_CUDA_INIT="CUDA_ERROR_UNKNOWN")

    def test_a_library_that_is_not_there(self):
        python(TORCH_STAND_IN + '''
import gpumem.adapters.torch as adapter
try:
    adapter.install()
    raise AssertionError("there is no such file")
except gpumem.LibraryNotFound as problem:
    assert "/nowhere" in str(problem), problem
assert not adapter.installed()
'''.replace("import gpumem.adapters.torch as adapter", "import gpumem\nimport gpumem.adapters.torch as adapter"),
               GPUMEM_TORCH_LIBRARY="/nowhere")

    @on_cuda
    def test_too_late(self):
        python(TORCH_STAND_IN + '''
import gpumem.adapters.torch as adapter
current.append(None)
try:
    adapter.install()
    raise AssertionError("PyTorch has an allocator already")
except RuntimeError as problem:
    assert "before" in str(problem), problem
assert not adapter.installed() and torch._C._cuda_memoryStats is None
''')
