# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the code of a page of the guide over the fake driver, with stand-ins for the packages that it needs.
Usage: python3 -m tests.guides .../cupy-numba.md or .../serving.md"""

import contextlib
import ctypes
import importlib
import os
import re
import sys
import tempfile
import types
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
    {"cupy-numba": cupy_numba, "serving": serving}[Path(sys.argv[1]).stem](Path(sys.argv[1]))
