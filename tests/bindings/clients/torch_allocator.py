#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""PyTorch with gpumem.adapters.torch as its allocator, on a machine with a GPU: no part of tests/run.
Usage: GPUMEM_LIBRARY=.../libgpumem.so.0 torch_allocator.py [PART...]

Each part runs in a process of its own, since the allocator can be changed once only. `native`, `expandable` and `gpumem` train the
same model and are timed, one after the other; the rest are checks. Prints a line for each case, then a table of what was
measured. GPUMEM_TORCH_LIBRARY names libgpumem-torch.so, unless that is found beside the library of gpumem.
"""

import concurrent.futures
import contextlib
import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bindings" / "python")]
MIB = 1 << 20
TIMED = ("native", "expandable", "gpumem")


# ---- in the process of a part ----

def case(name, function):
    """Runs a case; nothing that it does stops those behind it."""
    begun = time.monotonic()
    try:
        note, problem = function() or "", ""
    except BaseException:
        note, problem = "", traceback.format_exc()
    tell("case", {"name": name, "note": str(note), "problem": problem, "seconds": round(time.monotonic() - begun, 1)})


def tell(kind, value):
    print(f"\n@{kind} {json.dumps(value)}", flush=True)


def require(condition, text):
    if not condition:
        raise AssertionError(text)


def prepare(part):
    """torch, with the allocator of the part."""
    if part == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    if part not in ("native", "expandable", "mempool", "late", "sleep"):
        import gpumem.adapters.torch as adapter
        begun = time.monotonic()
        adapter.install()
        tell("note", f"{part}: install() took {time.monotonic() - begun:.2f} s, of {adapter.library_path()}")
    require(torch.cuda.is_available(), "no GPU")
    return torch


def train(torch, steps=40, warm=10, inside=contextlib.nullcontext, between=None):
    """A small transformer with sequences of changing length. Every operation is deterministic, so that all allocators must give the
    same losses, bit for bit. The model and the state of the optimizer are made `inside`, and `between` is called after each step."""
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
        torch.backends.cuda.enable_cudnn_sdp(False)
    width, words = 512, 4096
    with inside():
        embed = torch.nn.Embedding(words, width, device="cuda")
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True, device="cuda")
        body = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        head = torch.nn.Linear(width, words, device="cuda")
    parameters = [*embed.parameters(), *body.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    generator = torch.Generator().manual_seed(11)
    losses, begin, end = [], torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for step in range(steps + warm):
        if step == warm:
            torch.cuda.synchronize()
            wall = time.perf_counter()
            begin.record()
        length = 96 + 32 * (step * 7 % 11)
        batch = torch.randint(0, words, (16, length), generator=generator).cuda(non_blocking=True)
        target = batch.roll(-1, 1)
        output = head(body(embed(batch)))
        loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        with contextlib.nullcontext() if optimizer.state else inside():
            optimizer.step()
        losses.append(loss.detach())
        if between:
            optimizer.zero_grad(set_to_none=True)
            del output, loss
            between()
    end.record()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - wall) / steps
    peak = torch.cuda.max_memory_reserved()
    return {"losses": [float(loss).hex() for loss in losses], "ms of GPU per step": round(begin.elapsed_time(end) / steps, 3),
            "ms per step": round(wall * 1000, 3), "peak reserved MiB": peak // MIB,
            "peak allocated MiB": torch.cuda.max_memory_allocated() // MIB}


# Times of calls from C, on any number of threads without Python's lock: tensors by the C interface of PyTorch's AOTInductor, and
# the plain functions of the allocator and of gpumem.
BENCH = r"""
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
typedef int32_t (*make_tensor)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**);
typedef int32_t (*end_tensor)(void*);
typedef void* (*plug_alloc)(int64_t, int, void*);
typedef void (*plug_free)(void*, int64_t, int, void*);
typedef int32_t (*pool_alloc)(void*, uint64_t, void*, void**, void*);
typedef int32_t (*pool_free)(void*, void*, void*, void*);
struct work {
  int kind;
  void *first, *second, *pool, *stream;
  int64_t bytes, rounds;
  int32_t dtype, device_type;
  pthread_barrier_t* gate;
  double ns;
  int bad;
};
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
static void turn(struct work* w, int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    void* p = 0;
    if (w->kind == 0) {
      const int64_t size = w->bytes, stride = 1;
      if (((make_tensor)w->first)(1, &size, &stride, w->dtype, w->device_type, 0, &p)) { w->bad = 1; return; }
      ((end_tensor)w->second)(p);
    } else if (w->kind == 1) {
      p = ((plug_alloc)w->first)(w->bytes, 0, w->stream);
      ((plug_free)w->second)(p, w->bytes, 0, w->stream);
    } else {
      if (((pool_alloc)w->first)(w->pool, w->bytes, w->stream, &p, 0)) { w->bad = 1; return; }
      ((pool_free)w->second)(w->pool, p, w->stream, 0);
    }
  }
}
static void* thread(void* data) {
  struct work* w = data;
  turn(w, w->rounds / 10 + 1);
  pthread_barrier_wait(w->gate);
  const double begun = now();
  turn(w, w->rounds);
  w->ns = (now() - begun) / w->rounds;
  return 0;
}
double measure(struct work* one, int threads) {
  pthread_t* ids = malloc(threads * sizeof *ids);
  struct work* all = malloc(threads * sizeof *all);
  pthread_barrier_t gate;
  double total = 0;
  pthread_barrier_init(&gate, 0, threads);
  for (int i = 0; i < threads; ++i) { all[i] = *one; all[i].gate = &gate; pthread_create(&ids[i], 0, thread, &all[i]); }
  for (int i = 0; i < threads; ++i) { pthread_join(ids[i], 0); total += all[i].ns; if (all[i].bad) one->bad = 1; }
  pthread_barrier_destroy(&gate);
  free(ids); free(all);
  return total / threads;
}
"""


class Work(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("first", ctypes.c_void_p), ("second", ctypes.c_void_p), ("pool", ctypes.c_void_p),
                ("stream", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("rounds", ctypes.c_int64), ("dtype", ctypes.c_int32),
                ("device_type", ctypes.c_int32), ("gate", ctypes.c_void_p), ("ns", ctypes.c_double), ("bad", ctypes.c_int)]


def bench(torch, part):
    compiler = shutil.which("gcc") or shutil.which("cc")
    require(compiler, "no C compiler")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "bench.c", Path(folder) / "bench.so"
        source.write_text(BENCH)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-lpthread"], check=True)
        measure = ctypes.CDLL(str(library)).measure
    measure.restype, measure.argtypes = ctypes.c_double, [ctypes.POINTER(Work), ctypes.c_int]

    def address(function):
        return ctypes.cast(function, ctypes.c_void_p).value

    def row(title, work, rounds):
        for threads in (1, 16):
            work.rounds = rounds // (1 if threads == 1 else 8)
            work.bad = 0
            ns = measure(work, threads)
            require(not work.bad, f"{title}: a call failed")
            found[f"{title}, {threads} thread{'s' * (threads > 1)}: ns"] = round(ns)

    torch.empty(1, device="cuda")
    libraries = Path(torch.__file__).parent / "lib"
    cpu, cuda = (ctypes.CDLL(str(libraries / name)) for name in ("libtorch_cpu.so", "libtorch_cuda.so"))
    create = next(getattr(one, "aoti_torch_empty_strided") for one in (cpu, cuda) if hasattr(one, "aoti_torch_empty_strided"))
    delete = next(getattr(one, "aoti_torch_delete_tensor_object") for one in (cpu, cuda)
                  if hasattr(one, "aoti_torch_delete_tensor_object"))
    uint8 = next(getattr(one, "aoti_torch_dtype_uint8") for one in (cpu, cuda) if hasattr(one, "aoti_torch_dtype_uint8"))()
    gpu = next(getattr(one, "aoti_torch_device_type_cuda") for one in (cpu, cuda) if hasattr(one, "aoti_torch_device_type_cuda"))()
    for size, name in ((4096, "4 KiB"), (4 * MIB, "4 MiB")):
        row(f"a tensor of {name}", Work(0, address(create), address(delete), bytes=size, dtype=uint8, device_type=gpu), 200000)
    if part == "gpumem":
        import gpumem.adapters.torch as adapter
        plug, gpumem = adapter._load(), adapter._library.load()
        stream = torch.cuda.Stream().cuda_stream
        for size, name in ((4096, "4 KiB"), (4 * MIB, "4 MiB")):
            row(f"the plug-in alone, {name}", Work(1, address(plug.gpumem_torch_alloc), address(plug.gpumem_torch_free),
                                                   stream=stream, bytes=size), 400000)
            row(f"gpumem_pool_alloc_native, {name}",
                Work(2, address(gpumem.gpumem_pool_alloc_native), address(gpumem.gpumem_pool_free_native),
                     pool=plug.gpumem_torch_pool(0), stream=stream, bytes=size), 400000)
    return found


def part_timed(part):
    torch = prepare(part)
    result = {}

    def training():
        result.update(train(torch))
        return ""
    case(f"{part}: training", training)
    tell("result", result)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved() // MIB
    torch.cuda.empty_cache()
    result = {"reserved after training MiB": before, "reserved after empty_cache MiB": torch.cuda.memory_reserved() // MIB,
              "GPU": torch.cuda.get_device_name(), "PyTorch": torch.__version__}

    def calls():
        result.update(bench(torch, part))
    case(f"{part}: alloc and free timed", calls)
    tell("result", result)


def part_checks():
    torch = prepare("checks")
    import gpumem.adapters.torch as adapter

    def in_use():
        tensor = torch.arange(1000, device="cuda")
        require(adapter.memory_stats()["allocation.all.current"] >= 1, "gpumem has no block")
        require(int(tensor.sum()) == 499500, "wrong sum")
        require(torch.empty(0, device="cuda").numel() == 0, "an empty tensor")
        return torch.cuda.memory.get_allocator_backend()

    def statistics():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        base, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        tensor = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        held = torch.cuda.memory_allocated() - base
        require(300 * MIB <= held <= 301 * MIB, f"{held} bytes for 300 MiB")
        del tensor
        require(torch.cuda.memory_allocated() == base, "not given back")
        require(torch.cuda.max_memory_allocated() >= peak + 299 * MIB, "no peak")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        require(torch.cuda.max_memory_allocated() < 300 * MIB, "the peak was not reset")
        require("gpumem" in str(torch.cuda.memory._snapshot()), "no snapshot")
        require(torch.cuda.memory_snapshot(), "no segments")
        require("Allocated memory" in torch.cuda.memory_summary(), "no summary")
        return f"{len(torch.cuda.memory_stats())} numbers"

    def empties():
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            blocks = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda").fill_(1) for size in (1000, 500, 200, 3, 1)]
        taken = free - torch.cuda.mem_get_info()[0]
        require(taken >= 1700 * MIB, f"only {taken} bytes were taken")
        del blocks  # work on them may still run
        torch.cuda.empty_cache()
        left = free - torch.cuda.mem_get_info()[0]
        require(left <= taken // 20, f"{left // MIB} MiB are left of {taken // MIB}")
        return f"{left // MIB} MiB are left of {taken // MIB}"

    def lack():
        total = torch.cuda.get_device_properties(0).total_memory
        try:
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as problem:
            text = str(problem)
        require("CUDA out of memory. Tried to allocate" in text, text)
        before = torch.cuda.memory_stats()["num_ooms"]
        torch.cuda.set_per_process_memory_fraction(0.1)
        if hasattr(torch.cuda, "get_per_process_memory_fraction"):
            require(abs(torch.cuda.get_per_process_memory_fraction() - 0.1) < 0.01, "another fraction")
        blocks = []
        try:
            while True:
                blocks.append(torch.empty(total // 64, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError as problem:
            text += " | " + str(problem)
        count = len(blocks)
        require(4 <= count <= 6, f"{count} blocks of 1/64 in 1/10")
        blocks.clear()
        again = [torch.empty(total // 64, dtype=torch.uint8, device="cuda") for _ in range(count)]
        del again
        torch.cuda.empty_cache()
        large = torch.empty(total // 12, dtype=torch.uint8, device="cuda")
        del large
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
        require(torch.cuda.memory_stats()["num_ooms"] > before, "not counted")
        return text

    def in_backward():
        # A lack of memory on a thread of autograd.
        class Hungry(torch.autograd.Function):
            @staticmethod
            def forward(context, value):
                return value * 2

            @staticmethod
            def backward(context, gradient):
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
                return gradient
        value = torch.ones(10, device="cuda", requires_grad=True)
        try:
            Hungry.apply(value).sum().backward()
        except torch.cuda.OutOfMemoryError:
            return "as OutOfMemoryError"
        raise AssertionError("nothing was raised")

    def waiting():
        # What is only waiting for another stream is waited for before an allocation fails.
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            block = torch.empty(int(free * 0.6), dtype=torch.uint8, device="cuda")
            torch.cuda._sleep(200_000_000)
            block[:1000].fill_(1)
            del block
        block = torch.empty(int(free * 0.6), dtype=torch.uint8, device="cuda")
        block[:1000].fill_(2)
        torch.cuda.synchronize()
        del block
        torch.cuda.empty_cache()
        return f"{torch.cuda.memory_stats()['num_alloc_retries']} retries so far"

    def streams():
        streams = [torch.cuda.Stream() for _ in range(6)]
        wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
        for round_ in range(300):
            producer, consumer = streams[round_ % 6], streams[(round_ * 5 + 1) % 6]
            with torch.cuda.stream(producer):
                data = torch.full((1 + round_ * 7919 % 500000,), round_, dtype=torch.int32, device="cuda")
            consumer.wait_stream(producer)
            with torch.cuda.stream(consumer):
                if round_ % 10 == 0:
                    torch.cuda._sleep(100_000)
                bad = (data != round_).sum()
            data.record_stream(consumer)
            del data
            with torch.cuda.stream(producer):
                torch.full((1 + round_ * 7919 % 500000,), -1, dtype=torch.int32, device="cuda")
            torch.cuda.current_stream().wait_stream(consumer)
            bad.record_stream(torch.cuda.current_stream())
            wrong += bad
        torch.cuda.synchronize()
        require(int(wrong) == 0, f"{int(wrong)} numbers were overwritten while another stream read them")

    def threads():
        problems = []

        def work(number):
            try:
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    for round_ in range(200):
                        kept = [torch.full((1000 * (1 + (round_ + k) % 9),), number, dtype=torch.int32, device="cuda") for k in range(4)]
                        total = sum((one == number).all() for one in kept)
                    require(int(total) == 4, "overwritten")
            except BaseException as problem:
                problems.append(repr(problem))
        workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        require(not problems, str(problems))

    def graph():
        torch.cuda.empty_cache()
        weights = [torch.randn(256, 256, device="cuda") / 16 for _ in range(4)]
        data = torch.randn(512, 256, device="cuda")

        def run(value):
            for weight in weights:
                value = torch.relu(value @ weight) + value.mean(0)
            return value
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run(data)
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            output = run(data)
        inside = [one for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] != (0, 0)]
        require(inside and all(one["blocks"] for one in inside), "no private pool")
        for number in range(20):
            data.copy_(torch.randn(512, 256, device="cuda"))
            wanted = run(data).clone()
            # All that is free elsewhere is overwritten, and most of it goes back.
            garbage = [torch.full((n * 100000,), float("nan"), device="cuda") for n in range(1, 8)]
            del garbage
            if number % 5 == 0:
                torch.cuda.empty_cache()
            captured.replay()
            require(torch.equal(output, wanted), f"replay {number} differs")
        held = sum(one["total_size"] for one in inside)
        del output, wanted
        captured.reset()
        del captured
        gc.collect()
        # The graph's matrix products have left cuBLAS a workspace in the pool, which PyTorch keeps, under its own allocator too.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        require(not [one for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] != (0, 0)], "the private pool is still there")
        return f"the private pool had {held // MIB} MiB"

    def shared_graphs():
        # As vLLM captures: one private pool, the largest batch first.
        weight = torch.randn(1024, 1024, device="cuda") / 32
        inputs = torch.randn(4096, 1024, device="cuda")

        def run(rows):
            value = inputs[:rows]
            for _ in range(6):
                value = torch.tanh(value @ weight)
            return value
        run(8)
        graphs, pool, sizes = {}, torch.cuda.graph_pool_handle(), []
        for rows in (4096, 2048, 1024, 512, 64, 8):
            graphs[rows] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[rows], pool=pool):
                output = run(rows)
            graphs[rows].output = output
            sizes.append(sum(one["total_size"] for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] == tuple(pool)) // MIB)
        for rows, captured in graphs.items():
            inputs.normal_()
            wanted = run(rows).clone()
            captured.replay()
            require(torch.equal(captured.output, wanted), f"{rows} rows differ")
        return f"MiB of the pool after each capture: {sizes}"

    def callables():
        torch.manual_seed(3)

        def network():
            torch.manual_seed(5)
            return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).cuda()
        losses = {}
        for graphed in (False, True):
            module = network()
            sample = torch.randn(128, 256, device="cuda")
            called = torch.cuda.make_graphed_callables(module, (sample,)) if graphed else module
            optimizer = torch.optim.SGD(module.parameters(), 0.1)
            generator = torch.Generator(device="cuda").manual_seed(9)
            losses[graphed] = []
            for _ in range(12):
                data = torch.randn(128, 256, device="cuda", generator=generator)
                optimizer.zero_grad(set_to_none=True)
                loss = called(data).square().mean()
                loss.backward()
                optimizer.step()
                losses[graphed].append(float(loss.detach()))
        require(losses[False] == losses[True], str(losses))

    def many_graphs():
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        data = torch.ones(MIB, device="cuda")
        for _ in range(30):
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                output = data * 2 + 1
            captured.replay()
            require(float(output[5]) == 3, "wrong")
            del output, captured
        gc.collect()
        torch.cuda.empty_cache()
        after = torch.cuda.memory_reserved()
        require(after <= before + 32 * MIB, f"{before} bytes became {after}")
        return f"{before // MIB} MiB before, {after // MIB} after"

    def failing_capture():
        captured = torch.cuda.CUDAGraph()
        data = torch.ones(1000, device="cuda")
        try:
            with torch.cuda.graph(captured):
                data.sum().item()  # forbidden while capturing
        except RuntimeError as problem:
            text = str(problem).splitlines()[0]
        torch.cuda.synchronize()
        require(float((torch.ones(1000, device="cuda") * 2).sum()) == 2000, "nothing works afterwards")
        return text

    def fork():
        kept = torch.ones(1000, device="cuda")
        child = os.fork()
        if child == 0:
            try:
                del kept
                gc.collect()
            except BaseException:
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        require(status == 0, f"the child ended with {status}")
        require(float(kept.sum()) == 1000, "the parent's tensor changed")

    def cudnn():
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True):
                torch.nn.functional.conv2d(torch.randn(8, 16, 64, 64, device="cuda"), torch.randn(32, 16, 3, 3, device="cuda"))
            return "works"
        except RuntimeError as problem:
            return "known not to work: " + str(problem).splitlines()[0]

    def cross_device():
        if torch.cuda.device_count() < 2:
            return "one GPU only"
        there = torch.full((1 << 20,), 3.0, device="cuda:1")
        require(float(there.to("cuda:0").sum()) == 3 << 20, "wrong sum")
        require(adapter.memory_stats("cuda:1")["allocation.all.current"] == 1, "not counted on its GPU")
        return f"{torch.cuda.device_count()} GPUs"

    for function in (in_use, statistics, empties, lack, in_backward, waiting, streams, threads, graph, shared_graphs, callables,
                     many_graphs, failing_capture, fork, cudnn, cross_device):
        case("checks: " + function.__name__.replace("_", " "), function)


def part_compile():
    torch = prepare("compile")

    def graphs():
        torch._inductor.config.compile_threads = 1
        torch.manual_seed(1)
        module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).cuda()
        compiled = torch.compile(module, mode="reduce-overhead")
        with torch.no_grad():
            for rows in (32, 32, 32, 32):
                data = torch.randn(rows, 64, device="cuda")
                wanted = module(data)
                require(torch.allclose(compiled(data), wanted, atol=1e-3, rtol=1e-3), "another result")
        private = {one["segment_pool_id"] for one in torch.cuda.memory_snapshot()} - {(0, 0)}
        require(private, "no graph was captured")
        return f"private pools: {sorted(private)}"

    def trees():
        # What PyTorch says if its own sort of graphs is asked for: no pluggable allocator can serve it.
        torch._dynamo.reset()
        torch._inductor.config.triton.cudagraph_trees = True
        try:
            compiled = torch.compile(lambda value: (value * 2 + 1).relu(), mode="reduce-overhead")
            for _ in range(4):
                compiled(torch.ones(100, device="cuda"))
            return "works"
        except Exception as problem:
            return "known not to work: " + str(problem).strip().splitlines()[0]
    case("compile: reduce-overhead", graphs)
    case("compile: with cudagraph_trees", trees)


def part_mempool():
    torch = prepare("mempool")
    import gpumem.adapters.torch as adapter

    def pool():
        made = adapter.mem_pool()
        outside = torch.ones(1000, device="cuda")
        with torch.cuda.use_mem_pool(made):
            inside = torch.ones(5 * MIB, device="cuda")
        size = ctypes.c_size_t()
        base = adapter._load().gpumem_torch_base_alloc(inside.data_ptr(), size)
        require(base and size.value >= 20 * MIB, f"not a block of gpumem: {size.value} bytes")
        other = ctypes.c_size_t()
        adapter._load().gpumem_torch_base_alloc(outside.data_ptr(), other)
        require(other.value == 0, "gpumem has what is outside, too")
        require(float(inside.sum()) == 5 * MIB, "wrong sum")
        try:
            with torch.cuda.use_mem_pool(made):
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
            raise AssertionError("no OutOfMemoryError")
        except torch.cuda.OutOfMemoryError:
            pass
        before = adapter.memory_stats()["allocation.all.current"]
        del inside, made
        gc.collect()
        torch.cuda.empty_cache()
        after = adapter.memory_stats()["allocation.all.current"]
        require(after < before, f"{before} segments before, {after} after")
        return f"{before} segments before, {after} after"

    def in_graph():
        made = adapter.mem_pool()
        data = torch.ones(1000, device="cuda")
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, pool=made.id):
            output = data * 3
        captured.replay()
        require(float(output.sum()) == 3000, "wrong sum")
        del output, captured
    case("mempool: torch.cuda.use_mem_pool", pool)
    case("mempool: a graph in it", in_graph)


def part_sleep():
    torch = prepare("sleep")
    import gpumem.adapters.torch as adapter
    pool = adapter.SleepPool("training")
    gained, size = [], []

    def night():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        pool.sleep()
        gained.append(torch.cuda.mem_get_info()[0] - free)
        size.append(pool.info().size)
        require(pool.info().awake_count == 0, "something is awake")
        pool.wake(keep="all")

    def steps():
        native = train(torch, 8, 2)["losses"]
        slept = train(torch, 8, 2, pool.use, night)["losses"]
        require(slept == native, f"other losses: {slept} instead of {native}")
        # The weights, and twice as much of AdamW. The first night makes the streams of the library too.
        require(min(size) >= 250 * MIB and gained[0] >= size[0] - 16 * MIB and
                all(got >= part for got, part in zip(gained[1:], size[1:])), f"{gained} of {size}")
        return f"10 nights, each of {min(size) // MIB} MiB or more"

    def guide():
        page = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
        code = re.search(r"^## Tensors that sleep\n.*?^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]
        names = {"torch": torch, "gpumem": __import__("gpumem.adapters.torch")}
        exec(compile(code, "docs/pytorch.md", "exec"), names)
        require(torch.isfinite(names["model"].weight.sum()), "the weights are gone")

    def graph():
        other = adapter.SleepPool("graph")
        with other.use():
            data = torch.arange(1000, device="cuda", dtype=torch.float32)
            output = torch.empty_like(data)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            torch.mul(data, 3, out=output)
        for _ in range(3):
            output.zero_()
            other.sleep()
            other.wake()
            captured.replay()
            require(float(output.sum()) == 3 * 499500, "wrong sum")
    case("sleep: a model that sleeps between steps has the losses of one that does not, bit for bit", steps)
    case("sleep: a graph replays after it", graph)
    case("sleep: the code of docs/pytorch.md", guide)


def part_late():
    torch = prepare("late")
    import gpumem.adapters.torch as adapter

    def late():
        torch.ones(1, device="cuda")
        try:
            adapter.install()
        except RuntimeError as problem:
            require("before" in str(problem), str(problem))
            return str(problem)
        raise AssertionError("no exception")
    case("late: install() after the first use of the GPU", late)


def part_exit():
    torch = prepare("exit")
    # All of this lives when the interpreter ends: the process must end well, and print nothing. The parent looks.
    kept = globals()["kept"] = [torch.ones(1000, device="cuda"), torch.cuda.CUDAGraph()]
    with torch.cuda.graph(kept[1]):
        kept.append(kept[0] * 2)
    kept[1].replay()
    worker = threading.Thread(target=lambda: kept.append(torch.ones(10, device="cuda") + 1))
    worker.start()
    worker.join()
    tell("note", "exit: at the end")


def part_guide():
    """Runs the code of docs/pytorch.md, block by block, as one program."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)

    def guide():
        require(blocks, "the page has no code")
        exec(compile("\n".join(blocks), "docs/pytorch.md", "exec"), {"__name__": "guide"})
        return f"{len(blocks)} blocks"
    case("guide: the code of docs/pytorch.md", guide)


PARTS = {**{name: lambda name=name: part_timed(name) for name in TIMED}, "checks": part_checks, "compile": part_compile,
         "mempool": part_mempool, "sleep": part_sleep, "late": part_late, "exit": part_exit, "guide": part_guide}


# ---- in the process that was started ----

def run(part):
    """(what it told, exit status, what else it printed)"""
    command = [sys.executable, str(Path(__file__).resolve()), "--in", part]
    limit = 45 if part in TIMED else 90
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, check=False)
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        status, output = f"none after {limit} s", expired.stdout or ""
        output = output.decode(errors="replace") if isinstance(output, bytes) else output
    told, rest = [], []
    for line in output.splitlines():
        if line.startswith("@"):
            kind, _, value = line[1:].partition(" ")
            told.append((kind, json.loads(value)))
        elif line:
            rest.append(line)
    return told, status, rest


def main():
    if sys.argv[1:2] == ["--in"]:
        PARTS[sys.argv[2]]()
        return
    from tap import Tap
    wanted = sys.argv[1:] or list(PARTS)
    tap, begun, results = Tap(), time.monotonic(), {}

    def show(part, outcome):
        told, status, rest = outcome
        result = results.setdefault(part, {})
        for kind, value in told:
            if kind == "note":
                print(f"# {value}", flush=True)
            elif kind == "result":
                result.update(value)
            else:
                tap.check(f"{value['name']} ({value['seconds']} s){': ' + value['note'] if value['note'] else ''}".replace("\n", " "),
                          value["problem"])
        tap.check(f"{part}: the process ends with 0" + (" and prints nothing" if part == "exit" else ""),
                  [f"exit status {status}", *rest[-25:]] if status != 0 or (part == "exit" and rest) else [])

    for part in TIMED:
        if part in wanted:
            show(part, run(part))
    with concurrent.futures.ThreadPoolExecutor(3) as several:
        others = [(part, several.submit(run, part)) for part in wanted if part not in TIMED]
        for part, future in others:
            show(part, future.result())

    losses = {part: results[part].pop("losses") for part in TIMED if results.get(part, {}).get("losses")}
    if "native" in losses:
        for part in losses:
            different = [step for step, pair in enumerate(zip(losses["native"], losses[part])) if pair[0] != pair[1]]
            tap.check(f"{part}: the losses are those of native, bit for bit",
                      [f"first at step {different[0]} of {len(losses[part])}"] if different else [])
        values = [float.fromhex(loss) for loss in losses["native"]]
        tap.check(f"the model learns: loss {values[0]:.4f} to {values[-1]:.4f}", [] if values[-1] < values[0] else ["it does not"])

    shown = [part for part in TIMED if results.get(part)]
    names = list(dict.fromkeys(name for part in shown for name in results[part]))
    width = max([len(name) for name in names] or [0])
    print("#\n# " + " | ".join(["".ljust(width), *(part.ljust(28) for part in shown)]))
    for name in names:
        print("# " + " | ".join([name.ljust(width), *(str(results[part].get(name, "")).ljust(28) for part in shown)]))
    print(f"#\n# {time.monotonic() - begun:.0f} s in all", flush=True)
    tap.finish()


if __name__ == "__main__":
    main()
