# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the code of a page of the guide over the fake driver, with stand-ins for the packages that it needs.
Usage: python3 -m tests.guides .../cupy-numba.md, .../pytorch.md or .../serving.md"""

import contextlib
import ctypes
import importlib
import math
import os
import re
import sys
import tempfile
import types
import weakref
from pathlib import Path

import gpumem
from gpumem.adapters import _plug_in

from . import test_adapters, test_vllm

MIB = 1 << 20


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(page, code, names):
    exec(compile(code, str(page), "exec"), names)


# ---- cupy-numba.md ----

def cupy_numba(page):
    cupy, chosen = test_adapters.cupy_stand_in()
    chosen["stream"], cupy.cuda.runtime.getDevice = test_adapters.CupyStream(), lambda: 0
    numba, _ = test_adapters.numba_stand_in()
    cuda_core, _, Device = test_adapters.cuda_core_stand_in((1, 2))
    sys.modules.update({"cupy": cupy, **numba, **cuda_core})
    for name in ("cupy", "numba", "numba_pool", "cuda_core"):
        importlib.import_module(f"gpumem.adapters.{name}")
    context = test_adapters.Context()  # which must outlive what numba allocates
    managers = []
    numba["numba"].cuda.set_memory_manager = lambda made: managers.append(made(context=context))
    numba["numba"].cuda.current_context = lambda: types.SimpleNamespace(memory_manager=managers[-1])
    names = {"gpumem": gpumem, "cupy": cupy, "numba": numba["numba"], "device": Device()}

    # The table.
    written = dict(re.findall(r"^\| ([\w.-]+) \| `([^`]+)`(?: in the environment)? \|$", page.read_text(encoding="utf-8"), re.MULTILINE))
    run(page, written["CuPy"], names)
    device_memory = chosen["device"](1000)
    assert gpumem.adapters.cupy._instance().block_info(device_memory.mem.ptr).pool.info().name == "cupy"
    variable, _, module = written["numba-cuda"].partition("=")
    assert variable == "NUMBA_CUDA_MEMORY_MANAGER"
    names["numba"].cuda.set_memory_manager(importlib.import_module(module)._numba_memory_manager)
    assert managers[-1].memalloc(1000) and managers[-1].pool.info().live_count == 1
    managers[-1].reset()
    run(page, written["cuda.core"], names)
    assert names["device"].memory_resource.allocate(1000).handle

    # The options, then the statistics of an allocation with each.
    options, statistics = blocks(page, "py")
    run(page, options, names)
    kept = [chosen["device"](1000), names["resource"].allocate(1000), managers[-1].memalloc(1000)]
    shown = []
    run(page, statistics, {**names, "print": shown.append})
    assert [(info.name, info.live_count, info.limit) for info in shown] == [
        ("cupy", 1, 8 << 30), ("numba", 1, 8 << 30), ("cuda.core", 1, 8 << 30)], shown
    del kept, device_memory
    managers[-1].reset()


# ---- pytorch.md ----

class Tensor(test_adapters.Tensor):
    """Over memory of the host, or the size and the address of memory on the GPU."""

    def detach(self):
        return self.storage

    def fill_(self, value):
        for number in range(self.storage.nbytes // 4):
            ctypes.c_float.from_address(self.storage.address + 4 * number).value = value


def torch_stand_in():
    """PyTorch as far as it takes memory: from the pool that is used, or else from the allocator that is plugged in. Its own is nothing."""
    names = {"__name__": "torch"}
    exec(test_vllm.TORCH, names)
    exec(test_adapters.TORCH_STAND_IN, names)
    torch, current, MemPool = names["torch"], names["current"], names["MemPool"]
    names["Inner"].malloc = property(lambda allocator: allocator.alloc)

    class OutOfMemoryError(RuntimeError):
        pass

    def empty(*shape, dtype=4, device="cuda"):
        size, tensor = math.prod(shape) * dtype, Tensor(None, shape=shape)
        if size > 1 << 40:
            raise OutOfMemoryError("of C++, which a stand-in cannot catch")
        tensor.size = min(size, 16 * MIB)  # the fake device is small
        if MemPool.current:
            tensor.address = names["empty"](tensor.size)
            segment = MemPool.current.segments[-1]
            segment["allocated_size"] = tensor.size
            weakref.finalize(tensor, segment.update, allocated_size=0).atexit = False
        elif current:
            tensor.address = current[0].alloc(tensor.size, 0, None)
            weakref.finalize(tensor, current[0].free, tensor.address, tensor.size, 0, None).atexit = False
        return tensor

    def to(tensor, device, non_blocking):
        made = empty(*tensor.shape)
        names["write"](made.address, ctypes.string_at(tensor.storage.address, made.size))
        return made

    class Linear:
        def __init__(self, *shape):
            self.shape = shape

        def cuda(self):
            self.weight, self.gradient = empty(*self.shape), None
            self.content = bytes(range(256)) * (self.weight.size // 256)
            if hasattr(self.weight, "address"):
                names["write"](self.weight.address, self.content)
            return self

        def parameters(self):
            return [self]

        def __call__(self, data):
            return types.SimpleNamespace(sum=lambda: types.SimpleNamespace(backward=self.backward))

        def backward(self):
            self.gradient = empty(*self.shape)

        def intact(self):
            return names["read"](self.weight.address, self.weight.size) == self.content

    class AdamW:
        def __init__(self, parameters):
            self.parameters, self.state = parameters, []

        def step(self):
            self.state = self.state or [empty(*one.shape) for one in self.parameters for _ in range(2)]

        def zero_grad(self, set_to_none):
            for one in self.parameters:
                one.gradient = None

    def stats():
        return torch._C._cuda_memoryStats(0)

    Tensor.to = to
    torch.uint8, torch.empty, torch.randn = 1, empty, empty
    torch.from_dlpack = lambda array: Tensor(test_adapters.from_dlpack(array))
    torch.get_default_dtype = lambda: types.SimpleNamespace(itemsize=4)
    torch.nn, torch.optim = types.SimpleNamespace(Linear=Linear), types.SimpleNamespace(AdamW=AdamW)
    torch.cuda.MemPool, torch.cuda.use_mem_pool, torch.cuda.OutOfMemoryError = MemPool, names["use_mem_pool"], OutOfMemoryError
    torch.cuda.memory._set_allocator_settings = lambda settings: None
    torch.cuda.max_memory_allocated = lambda: stats()["allocated_bytes"]["all"]["peak"]
    torch.cuda.memory_stats = lambda: {"reserved_bytes.all.current": stats()["reserved_bytes"]["all"]["current"]}
    torch.cuda.reset_peak_memory_stats = lambda: torch._C._cuda_resetPeakMemoryStats(0)
    torch.cuda.empty_cache = lambda: current and ctypes.CFUNCTYPE(None)(current[0].reset_fn)()
    torch.cuda.set_per_process_memory_fraction = lambda fraction: ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)(
        current[0].memory_fraction_fn)(fraction, 0)
    return torch, names


def pytorch(page):
    torch, host = torch_stand_in()
    adapter = importlib.import_module("gpumem.adapters.torch")
    shown = []
    names = {"gpumem": gpumem, "torch": torch, "print": lambda *words: shown.append(words)}

    # Without install(), and so before it.
    as_tensor, mem_pool, sleep_pool = blocks(page, "py")
    run(page, as_tensor, names)
    assert names["view"].address == names["memory"].device_pointer and names["view"].shape == (32, 32)
    run(page, mem_pool, names)
    assert [segment["address"] for segment in names["pool"].segments] == [names["weights"].address]
    asleep = sleep_pool.replace("pool.sleep()", "pool.sleep(); awake.append(pool.info().awake_count)")
    names["awake"] = []
    run(page, asleep, names)
    info = names["pool"].info()
    # The weights, and twice as much of AdamW.
    assert (names["awake"], info.size, info.awake_count) == ([0], 3 * names["model"].weight.size, 3), info
    assert names["model"].intact()

    install, train, limits, statistics, pinned = blocks(page, "python")
    run(page, install, names)
    (inner,) = host["current"]
    ctypes.CFUNCTYPE(None, ctypes.c_int)(inner.init_fn)(1)
    run(page, train, names)
    # The weights, their gradient, and what goes in.
    assert len(shown) == 1 and min(shown.pop()) >= 2 * names["model"].weight.size, shown
    run(page, limits, names)
    assert len(shown) == 1 and isinstance(shown.pop()[0], torch.cuda.OutOfMemoryError)
    assert 0.79 < adapter._memory_fraction() <= 0.8
    run(page, statistics, names)
    assert names["statistics"]["allocated_bytes.all.current"] >= names["model"].weight.size
    assert [words[:2] for words in shown] == [(0, (0, 0))] and shown[0][2] >= shown[0][3] > 0, shown
    stream = adapter._instance().device(0).stream()
    torch.cuda.current_stream = lambda: test_adapters.TorchStream(stream)
    run(page, pinned, names)
    assert host["read"](names["batch"].address, 8) == bytes([0, 0, 0x80, 0x3f] * 2) and adapter.pinned_pool().info().live_count == 0


# ---- serving.md ----

class Saver:
    """torch_memory_saver: the calls of its Python on its library."""

    def __init__(self, host, path):
        self.host, self.path, self.hook_mode, self.content = host, path, None, {}
        self.library = library = ctypes.CDLL(path)
        library.tms_set_current_tag.argtypes = library.tms_pause.argtypes = library.tms_resume.argtypes = [ctypes.c_char_p]
        for name in ("interesting_region", "enable_cpu_backup"):
            getattr(library, f"tms_set_{name}").argtypes = [ctypes.c_bool]

    @contextlib.contextmanager
    def region(self, tag, enable_cpu_backup):
        assert self.hook_mode == "torch"
        cuda, library = self.host["torch"].cuda, self.library
        allocator = cuda.memory.CUDAPluggableAllocator(self.path, "tms_torch_malloc", "tms_torch_free")
        self.pool = cuda.MemPool(allocator.allocator())
        library.tms_set_current_tag(tag.encode())
        library.tms_set_interesting_region(True)
        library.tms_set_enable_cpu_backup(enable_cpu_backup)
        with cuda.use_mem_pool(self.pool):
            yield
        library.tms_set_interesting_region(False)
        for number, segment in enumerate(self.pool.snapshot(), 1):
            address = segment["address"]
            self.content[address] = bytes([number]) * MIB
            self.host["write"](address, self.content[address])

    def pause(self, tag):
        before = self.host["free_bytes"]()
        assert self.library.tms_pause(tag.encode()) == 0
        assert self.host["free_bytes"]() >= before + MIB

    def resume(self, tag):
        assert self.library.tms_resume(tag.encode()) == 0
        assert self.content and all(self.host["read"](address, MIB) == content for address, content in self.content.items())


def serving(page):
    path = _plug_in.path("libgpumem-tms.so", "GPUMEM_TMS_LIBRARY")
    host = {"__name__": "host"}
    exec(test_vllm.HOST, host)
    torch = host["torch"]
    torch.uint8 = "uint8"
    torch.empty = lambda size, dtype, device: host["empty"](min(size, 16 * MIB))  # the fake device is small
    names = {"ctypes": ctypes, "torch": torch, "torch_memory_saver": Saver(host, path), "path": path}

    links, command = blocks(page, "sh")
    with tempfile.TemporaryDirectory() as folder:
        found = {f"torch_memory_saver_hook_mode_{mode}": Path(folder, f"{mode}.abi3.so") for mode in ("preload", "torch")}
        for file in found.values():
            file.write_text("the original", encoding="utf-8")
        sys.modules["torch_memory_saver"] = types.ModuleType("torch_memory_saver")
        sys.modules["torch_memory_saver.utils"] = utils = types.ModuleType("torch_memory_saver.utils")
        utils.get_binary_path_from_package = found.__getitem__
        run(page, re.search(r"<< 'END'\n(.*)^END$", links, re.DOTALL | re.MULTILINE)[1], {})
        for file in found.values():
            assert os.readlink(file).endswith("/gpumem/libgpumem-tms.so"), os.readlink(file)
            assert file.with_suffix(".original").read_text(encoding="utf-8") == "the original"
    assert "--sleep-mode-backend gpumem" in command and host["SleepModeBackendFactory"]._registry.keys() == {"gpumem"}

    region, allocator, status = blocks(page, "python")
    run(page, region, names)
    run(page, allocator, names)
    with torch.cuda.use_mem_pool(names["pool"]):
        assert host["empty"](MIB)
    names["torch_memory_saver"].pause("weights")
    run(page, status, names)
    assert names["status"] == 0


if __name__ == "__main__":
    {"cupy-numba": cupy_numba, "pytorch": pytorch, "serving": serving}[Path(sys.argv[1]).stem](Path(sys.argv[1]))
