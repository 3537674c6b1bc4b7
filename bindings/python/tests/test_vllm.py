# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The adapter of vLLM, under a host that calls what vLLM's worker calls, over the fake driver. torch and vllm are stand-ins: the
part of each that the adapter and the worker use, with the names and arguments of the real ones."""

import unittest

from .support import on_cuda, python

TORCH = '''
import contextlib, ctypes, importlib, os, sys, types
from ctypes import byref, c_int, c_size_t, c_ssize_t, c_uint64, c_void_p

MIB = 1 << 20

# ---- the driver: content as a kernel would write it, and what is free ----

cuda = ctypes.CDLL("libcuda.so.1")

def driver(function, *arguments):
    status = getattr(cuda, function)(*arguments)
    assert status == 0, (function, status)

context = c_void_p()
driver("cuInit", 0)
driver("cuDevicePrimaryCtxRetain", byref(context), 0)
driver("cuCtxSetCurrent", context)

def write(address, content):
    driver("cuMemcpyHtoD_v2", c_uint64(address), content, c_size_t(len(content)))

def read(address, size):
    content = ctypes.create_string_buffer(size)
    driver("cuMemcpyDtoH_v2", content, c_uint64(address), c_size_t(size))
    return content.raw

def free_bytes():
    free, total = c_size_t(), c_size_t()
    driver("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value

# ---- torch ----

class CUDAPluggableAllocator:
    def __init__(self, path, malloc, free):
        library = ctypes.CDLL(path)
        self.malloc = ctypes.CFUNCTYPE(c_void_p, c_ssize_t, c_int, c_void_p)((malloc, library))
        self.free = ctypes.CFUNCTYPE(None, c_void_p, c_ssize_t, c_int, c_void_p)((free, library))

    def allocator(self):
        return self

class MemPool:
    current = None

    def __init__(self, allocator):
        self.allocator, self.segments = allocator, []

    def snapshot(self):
        return self.segments

    def __del__(self):
        for segment in self.segments:
            if segment["allocated_size"] == 0:
                self.allocator.free(segment["address"], segment["total_size"], 0, None)

@contextlib.contextmanager
def use_mem_pool(pool):
    before, MemPool.current = MemPool.current, pool
    try:
        yield
    finally:
        MemPool.current = before

def empty(size):
    """The address of a new tensor."""
    address = MemPool.current.allocator.malloc(size, 0, None)
    assert address, "OutOfMemoryError"
    MemPool.current.segments.append({"address": address, "total_size": size, "allocated_size": size, "device": 0})
    return address

settings = []
torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(
    MemPool=MemPool, use_mem_pool=use_mem_pool, empty_cache=lambda: None,
    memory=types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator, _set_allocator_settings=settings.append))

sys.modules["torch"] = torch
'''

HOST = TORCH + '''
# ---- vllm/device_allocator ----

class SleepModeBackend:
    def __init__(self):
        self._state = "RUNNING"

class SleepModeBackendFactory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        assert name not in cls._registry
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_backend(cls, model_config):
        return cls._registry[model_config.sleep_mode_backend]()()

class CuMemAllocator:
    @staticmethod
    def get_instance():
        raise LookupError("vLLM's own allocator")

def get_mem_allocator_instance():
    from vllm.device_allocator.cumem import CuMemAllocator
    return CuMemAllocator.get_instance()

def module(name, **content):
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(content)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, made)

module("vllm")
module("vllm.device_allocator", get_mem_allocator_instance=get_mem_allocator_instance)
module("vllm.device_allocator.cumem", CuMemAllocator=CuMemAllocator)
module("vllm.device_allocator.sleep_mode_backend", SleepModeBackend=SleepModeBackend,
       SleepModeBackendFactory=SleepModeBackendFactory)

# ---- vllm/v1/worker/gpu_worker.py ----

class Worker:
    model_config = types.SimpleNamespace(sleep_mode_backend="gpumem")

    def __init__(self):
        self.weights, self.cache, self._sleep_mode_backend = {}, None, None

    def _maybe_get_memory_pool_context(self, tag):
        allocator = get_mem_allocator_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0, "CuMem allocator can only be used for one instance per process."
        return allocator.use_memory_pool(tag=tag)

    def load_model(self):
        with self._maybe_get_memory_pool_context(tag="weights"):
            for i in range(3):
                address = empty(2 * MIB)
                self.weights[address] = bytes([i + 1]) * MIB
                write(address, self.weights[address])
            empty(4 * MIB)
            # A tensor that was freed by the end, as in quantization.
            MemPool.current.segments[-1]["allocated_size"] = 0

    def initialize_from_config(self):
        with self._maybe_get_memory_pool_context(tag="kv_cache"):
            self.cache = empty(8 * MIB)

    def backend(self):
        if self._sleep_mode_backend is None:
            self._sleep_mode_backend = SleepModeBackendFactory.create_backend(self.model_config)
        return self._sleep_mode_backend

    def sleep(self, level=1):
        free_before = free_bytes()
        self.backend().suspend(level)
        assert free_bytes() >= free_before, "Memory usage increased after sleeping."

    def wake_up(self, tags=None):
        self.backend().resume(tags)

    # of the test

    def intact(self):
        return all(read(address, MIB) == content for address, content in self.weights.items())

def state():
    return worker.backend().state()

import gpumem
from gpumem.adapters.vllm import Allocator, register
register()
register()
worker = Worker()
'''

LOADED = HOST + '''
worker.load_model()
worker.initialize_from_config()
free = free_bytes()
'''

WITH = {"GPUMEM_VLLM": "1"}


@on_cuda
class VllmTest(unittest.TestCase):
    def test_level_1_keeps_the_weights(self):
        python(LOADED + '''
assert get_mem_allocator_instance().get_current_usage() == 14 * MIB, "what is unused is not freed"
assert state() == "RUNNING"
for _ in range(2):
    worker.sleep(1)
    assert state() == "SUSPENDED" and free_bytes() == free + 14 * MIB
    worker.wake_up(["weights"])
    assert state() == "SUSPENDED" and free_bytes() == free + 8 * MIB
    assert worker.intact()
    worker.wake_up(["kv_cache"])
    assert state() == "RUNNING" and free_bytes() == free
    write(worker.cache, bytes(MIB))
assert settings == []
''', **WITH)

    def test_what_level_1_keeps_is_prepared(self):
        python(HOST + '''
import time
from gpumem import _library as c

calls, real = [], c.gpumem_group_prepare
def prepare(group, desc, detail):
    weights = get_mem_allocator_instance().info("weights")
    calls.append((group, desc.content, desc.tag, desc.bytes_per_second != 0, weights.size))
    return real(group, desc, detail)
c.gpumem_group_prepare = prepare

worker.load_model()
worker.initialize_from_config()
allocator = get_mem_allocator_instance()
# Once, in the background, and without what was freed.
assert calls == [(allocator._group, gpumem.Content.PINNED, b"weights", True, 6 * MIB)], calls
while allocator.info().store_capacity < 6 * MIB:
    time.sleep(0.001)
assert allocator.info().store_capacity == allocator.info("weights").store_capacity == 6 * MIB
worker.sleep(1)
worker.wake_up()
assert worker.intact() and len(calls) == 1
''', **WITH)

    def test_nothing_is_prepared_that_is_not_kept(self):
        python(HOST + '''
from gpumem import _library as c

c.load()
def prepare(*_):
    raise AssertionError("prepared")
c.gpumem_group_prepare = prepare
worker.load_model()
''', VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY="1", **WITH)

    def test_a_model_is_loaded_that_cannot_be_prepared(self):
        python(HOST + '''
from gpumem import _library as c

c.load()
c.gpumem_group_prepare = lambda *_: c.GPUMEM_ERROR_OUT_OF_HOST_MEMORY
worker.load_model()
worker.sleep(1)
worker.wake_up()
assert worker.intact()
''', **WITH)

    def test_garbage_is_collected_while_memory_is_copied(self):
        python(LOADED + '''
import gc, threading
from gpumem import _library as c

copying, collecting, real = threading.Event(), threading.Event(), c.gpumem_group_sleep
def sleep(*arguments):
    copying.set()
    assert collecting.wait(60), "collects when all is copied"
    return real(*arguments)
c.gpumem_group_sleep = sleep
def collect():
    collecting.set()
    assert copying.wait(60), "collects before it copies"
gc.collect = collect
worker.sleep()
assert state() == "SUSPENDED"
worker.wake_up()
assert worker.intact()

from gpumem.adapters import vllm
vllm.started = lambda function: False  # no thread is to be had
gc.collect, collected = lambda: collected.append(state()), []
c.gpumem_group_sleep = real
worker.sleep()
assert collected == ["SUSPENDED"], collected
worker.wake_up()

c.gpumem_group_sleep = lambda *_: c.GPUMEM_ERROR_OUT_OF_HOST_MEMORY
try:
    worker.sleep()
    raise AssertionError("it sleeps")
except gpumem.OutOfHostMemory:
    pass
assert state() == "RUNNING" and worker.intact()
''', **WITH)

    def test_level_2_keeps_nothing(self):
        python(LOADED + '''
worker.sleep(2)
assert get_mem_allocator_instance().info().store_capacity == 0
worker.wake_up()
assert not worker.intact()
for address, content in worker.weights.items():
    write(address, content)
worker.sleep(1)
worker.wake_up()
assert worker.intact()
''', **WITH)

    def test_tags_are_discarded_by_themselves(self):
        python(LOADED + '''
worker.backend().discard(("kv_cache",))
assert state() == "SUSPENDED" and free_bytes() == free + 8 * MIB and worker.intact()
worker.sleep(1)
assert free_bytes() == free + 14 * MIB
worker.wake_up()
assert worker.intact() and free_bytes() == free
''', **WITH)

    def test_host_memory_is_kept_unless_released(self):
        for release, kept in (None, True), ("0", True), ("1", False):
            python(LOADED + f'''
worker.sleep()
worker.wake_up()
assert (get_mem_allocator_instance().info().store_capacity != 0) is {kept}
''', VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY=release, **WITH)

    def test_a_resume_without_room_can_be_repeated(self):
        python(LOADED + '''
worker.sleep()
other = c_uint64()
driver("cuMemAlloc_v2", byref(other), c_size_t(free_bytes() - 4 * MIB))
try:
    worker.wake_up()
    raise AssertionError("it fits")
except gpumem.OutOfDeviceMemory:
    pass
assert state() == "SUSPENDED"
driver("cuMemFree_v2", other)
worker.wake_up()
assert worker.intact() and state() == "RUNNING"
''', **WITH)

    def test_tensors_are_freed_also_asleep(self):
        python(LOADED + '''
allocator = get_mem_allocator_instance()
worker.sleep()
for address in [*worker.weights, worker.cache]:
    allocator._allocator.free(address, 1, 0, None)
assert allocator.get_current_usage() == 0
worker.load_model()
''', **WITH)

    def test_the_other_settings_of_pytorch_stay(self):
        python(LOADED + '''
assert settings == 2 * ["max_split_size_mb:64,expandable_segments:False", "max_split_size_mb:64,expandable_segments:True"]
''', PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64,expandable_segments:True", **WITH)

    def test_nothing_changes_unless_it_is_wished(self):
        python(HOST + '''
try:
    worker.load_model()
    raise AssertionError("the allocator is ours")
except LookupError:
    pass
try:
    worker.sleep()
    raise AssertionError("the mode works")
except RuntimeError as problem:
    assert "GPUMEM_VLLM=1" in str(problem), problem
''', GPUMEM_VLLM=None)
