#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gpumem.adapters.vllm with tensors of PyTorch, on a machine with a GPU: no part of tests/run.
Usage: GPUMEM_LIBRARY=.../libgpumem.so.0 GPUMEM_TMS_LIBRARY=.../libgpumem-tms.so vllm.py [MIB]

vLLM is a stand-in: the classes that the adapter registers with, and the calls that its worker makes. Prints a line for each
check, then what was measured."""

import gc
import importlib
import os
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bindings" / "python")]
MIB = 1 << 20


class SleepModeBackend:
    pass


class SleepModeBackendFactory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)


class CuMemAllocator:
    @staticmethod
    def get_instance():
        raise LookupError("vLLM's own allocator")


def module(name, **content):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(content)
    return made


def main():
    from tap import Tap
    size = int(sys.argv[1] if len(sys.argv) > 1 else 8192) * MIB
    os.environ["GPUMEM_VLLM"] = "1"
    module("vllm")
    cumem = module("vllm.device_allocator.cumem", CuMemAllocator=CuMemAllocator)
    module("vllm.device_allocator", cumem=cumem)
    module("vllm.device_allocator.sleep_mode_backend", SleepModeBackend=SleepModeBackend,
           SleepModeBackendFactory=SleepModeBackendFactory)
    import torch

    import gpumem.adapters.vllm
    gpumem.adapters.vllm.register()
    allocator = cumem.CuMemAllocator.get_instance()
    backend = SleepModeBackendFactory._registry["gpumem"]()()
    tap, count = Tap(), 64

    def fill(tensors, number):
        for one in tensors:
            one.fill_(number)

    def free():
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    with allocator.use_memory_pool(tag="weights"):
        weights = [torch.randint(0, 1 << 30, (size // count // 8,), device="cuda") for _ in range(count)]
    loaded = time.perf_counter()
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = [torch.zeros(size // 8 // 4, dtype=torch.float32, device="cuda") for _ in range(4)]
    sums = [int(one.sum()) for one in weights]
    places = [one.data_ptr() for one in weights + cache]
    stream = torch.cuda.Stream()
    graph, output = torch.cuda.CUDAGraph(), None
    with torch.cuda.stream(stream):
        weights[0].sum()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        output = weights[0].sum() + weights[-1].sum()
    while allocator.info("weights").store_capacity < size and time.perf_counter() - loaded < 120:
        time.sleep(0.01)
    prepared = allocator.info("weights").store_capacity
    tap.check(f"the memory that the weights sleep in is prepared, {time.perf_counter() - loaded:.1f} s after they are loaded",
              [] if prepared >= size else [f"{prepared // MIB} of {size // MIB} MiB"])
    page_locked = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    link = 0
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        target.copy_(page_locked, non_blocking=True)
        torch.cuda.synchronize()
        link = max(link, 256 * MIB / (time.perf_counter() - begun) / 1e9)
    del target, page_locked
    rows = []
    for number in range(4):
        level = 2 if number == 3 else 1
        awake = free()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        backend.suspend(level)
        slept = time.perf_counter() - begun
        gained = free() - awake
        tap.check(f"round {number}: level {level} gives {gained // MIB} MiB back",
                  [] if gained >= size * 15 // 10 - 64 * MIB else [f"of {size * 3 // 2 // MIB}"])
        tap.check(f"round {number}: it is suspended", [] if backend.state() == "SUSPENDED" else [backend.state()])
        begun = time.perf_counter()
        backend.resume(["weights"])
        woke = time.perf_counter() - begun
        backend.resume(["kv_cache"])
        tap.check(f"round {number}: it runs", [] if backend.state() == "RUNNING" else [backend.state()])
        tap.check(f"round {number}: every address is as before",
                  [] if places == [one.data_ptr() for one in weights + cache] else ["another"])
        if level == 1:
            tap.check(f"round {number}: every weight is as before", [] if sums == [int(one.sum()) for one in weights] else ["another"])
            graph.replay()
            torch.cuda.synchronize()
            tap.check(f"round {number}: the graph that was captured before replays right",
                      [] if int(output) == sums[0] + sums[-1] else [str(int(output))])
        fill(cache, number)
        rows.append((level, size / slept / 1e9, size / woke / 1e9, slept, woke))

    def discard(tags, size):
        """Discards memory, and writes over what the device then has free, so that no old content is there by chance."""
        awake = free()
        begun = time.perf_counter()
        backend.discard(tags)
        took = time.perf_counter() - begun
        gained = free() - awake
        tap.check(f"discarding {' and '.join(tags)} gives {gained // MIB} MiB back", [] if gained >= size - 64 * MIB else [f"of {size // MIB}"])
        tap.check("and it is suspended", [] if backend.state() == "SUSPENDED" else [backend.state()])
        other = torch.full(((free() - 1024 * MIB) // 8,), 5, device="cuda")
        torch.cuda.synchronize()
        del other
        torch.cuda.empty_cache()
        return took

    for one in weights:  # level 2 has left them without content
        one.random_(1 << 30)
    sums = [int(one.sum()) for one in weights]
    fill(cache, 7)
    rows_of_discard = [discard(("kv_cache",), size // 2)]
    tap.check("the weights stay", [] if sums == [int(one.sum()) for one in weights] else ["another sum"])
    graph.replay()
    tap.check("and the graph over them replays", [] if int(output) == sums[0] + sums[-1] else [str(int(output))])
    backend.suspend(1)  # what was discarded stays so
    backend.resume(["weights"])
    tap.check("a suspend and a resume of the weights leave it discarded", [] if backend.state() == "SUSPENDED" else [backend.state()])
    backend.resume(["kv_cache"])
    tap.check("it runs", [] if backend.state() == "RUNNING" else [backend.state()])
    tap.check("the content of the cache is gone", [] if not any(bool((one == 7).any()) for one in cache) else ["some is there"])
    tap.check("the weights are as before", [] if sums == [int(one.sum()) for one in weights] else ["another sum"])
    rows_of_discard.append(discard(("weights", "kv_cache"), size * 3 // 2))
    backend.resume()
    tap.check("all runs", [] if backend.state() == "RUNNING" else [backend.state()])
    tap.check("the content of the weights is gone", [] if not any(int(one.sum()) == was for one, was in zip(weights, sums)) else ["it is there"])
    tap.check("every address is as before", [] if places == [one.data_ptr() for one in weights + cache] else ["another"])
    fill(cache, 3)
    fill(weights, 2)
    graph.replay()
    tap.check("the memory can be used, and the graph reads it",
              [] if int(output) == 4 * len(weights[0]) and all(bool((one == 3).all()) for one in cache) else [str(int(output))])
    tap.check("usage counts what is allocated", [] if allocator.get_current_usage() >= size * 3 // 2 else [str(allocator.get_current_usage())])
    del weights, cache, output, graph, one
    gc.collect()
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {size // MIB} MiB of weights in {count} tensors, "
          f"{size // 2 // MIB} MiB of cache; a page-locked copy: {link:.1f} GB/s")
    for number, (level, asleep, awake, slept, woke) in enumerate(rows):
        print(f"# round {number}, level {level}: suspend {slept * 1e3:.0f} ms ({asleep:.1f} GB/s), resume weights {woke * 1e3:.0f} ms ({awake:.1f} GB/s)")
    for what, took in zip(("the cache", "weights and cache"), rows_of_discard):
        print(f"# discard of {what}: {took * 1e3:.1f} ms")
    tap.finish()


if __name__ == "__main__":
    main()
