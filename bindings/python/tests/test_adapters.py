# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The adapters, against stand-ins with the interfaces that numba-cuda and CuPy document. What the real packages do with
them, tests/bindings/clients shows on a machine that has them."""

import collections
import contextlib
import gc
import importlib
import sys
import types
import unittest
import weakref
from unittest import mock

import gpumem
from gpumem import Kind, MemoryFlags

from .support import Case, on_cuda


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
        MappedMemory=type("MappedMemory", (Pointer,), {}), PinnedMemory=type("PinnedMemory", (Pointer,), {}),
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


@on_cuda
class NumbaTest(unittest.TestCase):
    def setUp(self):
        modules, self.driver = numba_stand_in()
        with mock.patch.dict(sys.modules, modules):
            sys.modules.pop("gpumem.adapters.numba", None)
            self.adapter = importlib.import_module("gpumem.adapters.numba")
        self.context = Context()
        self.manager = self.adapter._numba_memory_manager(context=self.context)
        self.manager.initialize()
        self.instance = self.manager._instance

    def tearDown(self):
        self.manager.reset()
        self.assertTrue(self.instance.closed)

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

    chosen = {}
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        PinnedMemory=PinnedMemory, PinnedMemoryPointer=PinnedMemoryPointer,
        UnownedMemory=collections.namedtuple("UnownedMemory", "ptr,size,owner,device_id"),
        MemoryPointer=collections.namedtuple("MemoryPointer", "mem,offset"),
        runtime=types.SimpleNamespace(getDevice=lambda: 1, CUDARuntimeError=CUDARuntimeError, errorMemoryAllocation=2),
        get_current_stream=lambda: chosen["stream"],
        set_allocator=lambda function: chosen.update(device=function),
        set_pinned_memory_allocator=lambda function: chosen.update(pinned=function))
    return cupy, chosen


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
            current = self.chosen["stream"] = types.SimpleNamespace(ptr=stream.native_stream)
            self.adapter.install(pool=True)
            found = self.chosen["device"](1000)
            pool = self.chosen["device"].__self__.pool(1)
            self.assertEqual((pool.kind, pool.info().name, pool.info().device_ordinal), (Kind.DEVICE, "cupy", 1))
            self.assertEqual(self.instance.block_info(found.mem.ptr).pool, pool)
            self.assertEqual((found.mem.size, found.mem.device_id, found.mem.owner.stream), (1000, 1, current))
            address = found.mem.ptr
            del found
            self.assertEqual(pool.info().live_count, 0)
            again = self.chosen["device"](1000)
            self.assertEqual(again.mem.ptr, address)  # in the same stream at once
            self.assertEqual(self.chosen["device"](0).mem.ptr, 0)
            with self.assertRaises(self.cupy.cuda.runtime.CUDARuntimeError) as caught:
                self.chosen["device"](1 << 50)
            self.assertEqual(caught.exception.status, 2)
            del again, pool, caught  # which has frames that use the pool
            self.chosen.clear()
            gc.collect()


class TorchTest(Case):
    def test_tensors(self):
        torch = types.ModuleType("torch")
        torch.from_dlpack = gpumem.from_dlpack
        with mock.patch.dict(sys.modules, {"torch": torch}):
            sys.modules.pop("gpumem.adapters.torch", None)
            adapter = importlib.import_module("gpumem.adapters.torch")
        with self.pinned(64) as memory:
            tensor = adapter.as_tensor(memory, "f4", (2, 2), offset=16)
            self.assertEqual((tensor.address, tensor.shape), (memory.host_pointer + 16, (2, 2)))
            again = adapter.as_tensor(memory.view("f4"))
            self.assertEqual(again.shape, (16,))
            with self.assertRaises(TypeError):
                adapter.as_tensor(memory.view(), "f4")
            taken = adapter.from_tensor(types.SimpleNamespace(detach=lambda view=again: view))
            self.assertEqual(taken.address, again.address)
            del tensor, again, taken
