#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""cuda.core, CuPy and numba over pools of gpumem, on a machine with a GPU. Usage: cores.py [cuda.core] [cupy] [numba]

Each package is checked and timed in a process of its own, and numba in two, because it chooses its memory manager once. What is not
installed is skipped. Prints a line for each check, and what was measured: nanoseconds for an allocation and its free, the median of 5 runs of
2,000 pairs. The exit status is 1 if a check failed.
"""

import ctypes
import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import time
import traceback
import weakref
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bindings" / "python")]

import worker
from tap import Tap, require

sys.path.remove(str(ROOT / "tests"))  # numba would take the coverage.py there for a package

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20}
RUNS, PAIRS, TIME_LIMIT = 5, 2000, 600
HUGE = 1 << 40  # bytes, more than any GPU has


def nanoseconds(pair):
    """For each size, the median of the runs of a function that allocates and frees once."""
    found = {}
    for name, size in SIZES.items():
        for _ in range(PAIRS):
            pair(size)
        runs = []
        for _ in range(RUNS):
            start = time.perf_counter_ns()
            for _ in range(PAIRS):
                pair(size)
            runs.append((time.perf_counter_ns() - start) / PAIRS)
        found[name] = statistics.median(runs)
    return found


class Report:
    """Checks and times of a package, which its process prints as lines of JSON."""

    def check(self, name, function):
        try:
            function()
            problem = ""
        except Exception:
            problem = traceback.format_exc()
        print(json.dumps({"check": name, "problem": problem}), flush=True)

    def time(self, name, pair):
        try:
            print(json.dumps({"time": name, "found": nanoseconds(pair)}), flush=True)
        except Exception:
            print(json.dumps({"check": f"times of {name}", "problem": traceback.format_exc()}), flush=True)


def raises(exceptions, function):
    try:
        function()
    except exceptions:
        return
    raise AssertionError(f"{exceptions} was not raised")


def cuda_core(report):
    import cuda.core
    if hasattr(cuda.core, "Device"):
        import cuda.core as api
    else:
        import cuda.core.experimental as api
    from gpumem.adapters.cuda_core import MemoryResource

    device = api.Device(0)
    device.set_current()
    stream = device.create_stream()
    pinned = MemoryResource(device, kind="pinned")
    resources = {kind: MemoryResource(device, kind=kind) for kind in ("device", "managed")}
    content = bytes(range(256)) * 16

    def host(buffer):
        return (ctypes.c_uint8 * buffer.size).from_address(int(buffer.handle))

    def copies(kind):
        source, back = pinned.allocate(4096, stream=stream), pinned.allocate(4096, stream=stream)
        middle = resources[kind].allocate(4096, stream=stream)
        require(not int(middle.handle) % 256, "the address is not aligned")
        stream.sync()
        host(source)[:] = content
        middle.copy_from(source, stream=stream)
        middle.copy_to(back, stream=stream)
        stream.sync()
        require(bytes(host(back)) == content, "the bytes differ")
        for buffer in (source, middle, back):
            buffer.close(stream)

    def order():
        first = resources["device"].allocate(4096, stream=stream)
        address = int(first.handle)
        first.close()
        second = resources["device"].allocate(4096, stream=stream)
        require(int(second.handle) == address, "the stream did not get its block again")
        second.close(stream)

    def dropped():
        gc.collect()
        before = resources["device"].pool.info().live_count
        buffer = resources["device"].allocate(4096, stream=stream)
        require(resources["device"].pool.info().live_count == before + 1, "the block is not counted")
        del buffer
        gc.collect()
        require(resources["device"].pool.info().live_count == before, "the block was not freed")

    def lack():
        raises(MemoryError, lambda: resources["device"].allocate(HUGE, stream=stream))
        resources["device"].allocate(4096, stream=stream).close()

    def default():
        former = device.memory_resource
        device.memory_resource = resources["device"]
        try:
            buffer = device.allocate(4096, stream=stream)
            require(buffer.memory_resource is resources["device"], "it is of another resource")
            buffer.close()
        finally:
            device.memory_resource = former

    for kind in resources:
        report.check(f"copies through {kind} memory", lambda: copies(kind))
    report.check("a stream gets its block again at once", order)
    report.check("a buffer that is dropped is freed", dropped)
    report.check("too much raises, and a retry works", lack)
    report.check("the memory resource of a device", default)
    report.time("gpumem", lambda size: resources["device"].allocate(size, stream=stream).close())
    trusting = MemoryResource(device, flags="trust_native_streams")
    report.time("gpumem, trusting streams", lambda size: trusting.allocate(size, stream=stream).close())
    own = api.DeviceMemoryResource(0)
    report.time("DeviceMemoryResource", lambda size: own.allocate(size, stream=stream).close())
    stream.sync()


def cupy(report):
    import cupy
    import numpy

    from gpumem.adapters.cupy import Pool

    pool = Pool()
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.set_allocator(pool.malloc)

    def kernel():
        with stream:
            array = cupy.arange(100000, dtype="i8") * 3
            expected = numpy.arange(100000, dtype="i8") * 3
            require((array.get(stream=stream) == expected).all(), "the numbers differ")

    def order():
        with stream:
            first = cupy.cuda.alloc(4096)
            address = first.ptr
            del first
            require(cupy.cuda.alloc(4096).ptr == address, "the stream did not get its block again")

    def dropped():
        gc.collect()
        before = pool.pool(0).info().live_count
        array = cupy.empty(1000)
        require(pool.pool(0).info().live_count == before + 1, "the block is not counted")
        del array
        require(pool.pool(0).info().live_count == before, "the block was not freed")

    def lack():
        raises((MemoryError, cupy.cuda.runtime.CUDARuntimeError), lambda: cupy.cuda.alloc(HUGE))
        require(int(cupy.ones(10).sum()) == 10, "the sum is wrong")

    def functions_of_c():
        with stream:
            warm = [pool.malloc(1) for _ in range(2)]
            blocks = [pool.malloc(size) for size in (1, 4096, 64 << 20)]
            for block in blocks:
                require(type(block.mem).__name__ == "CFunctionAllocatorMemory", "Python has allocated it")
            require(len({block.ptr for block in warm + blocks}) == 5, "two are at one address")

    def stream_ends():
        gc.collect()
        before = pool.pool(0).info().live_count
        other = cupy.cuda.Stream(non_blocking=True)
        with other:
            for _ in range(2):
                pool.malloc(1)
            array = cupy.full(1 << 20, 7, dtype="i4")
        kept = weakref.ref(other)
        del other
        gc.collect()
        require(kept() is not None, "its stream is gone")
        cupy.cuda.Device().synchronize()
        require(int(array.sum()) == 7 << 20, "the numbers differ")
        del array  # in the order of the stream that only the block has kept
        gc.collect()
        require(kept() is None, "the stream is still there")
        require(pool.pool(0).info().live_count == before, "the block was not freed")

    def dropped_in_a_host_function():
        gc.collect()
        before = pool.pool(0).info().live_count
        with stream:
            for _ in range(2):
                pool.malloc(1)
            blocks = [pool.malloc(1000)]
            stream.launch_host_func(lambda _: blocks.clear(), None)
            stream.synchronize()
            require(pool.malloc(1), "it allocates nothing")  # frees what could not be freed then
        require(pool.pool(0).info().live_count == before, "the block was not freed")

    def on_top():
        other = cupy.cuda.MemoryPool(pool.malloc)
        raises(MemoryError, lambda: other.malloc(HUGE))
        require(other.malloc(1000).ptr, "it allocates nothing")
        other.free_all_blocks()

    report.check("a kernel", kernel)
    report.check("a stream gets its block again at once", order)
    report.check("an array that is dropped is freed", dropped)
    report.check("too much raises, and a retry works", lack)
    report.check("functions of C allocate", functions_of_c)
    report.check("a stream that only a block keeps", stream_ends)
    report.check("a block that is dropped in a host function", dropped_in_a_host_function)
    report.check("a pool of CuPy on top", on_top)
    own = cupy.cuda.MemoryPool()
    with stream:
        report.time("gpumem", pool.malloc)
        report.time("gpumem, trusting streams", Pool(flags="trust_native_streams").malloc)
        report.time("MemoryPool", own.malloc)
    stream.synchronize()


def numba(report, mine):
    import numpy
    worker.repair()
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError

    if mine:
        from gpumem.adapters.numba import PoolMemoryManager

        cuda.set_memory_manager(PoolMemoryManager)
    manager = cuda.current_context().memory_manager

    @cuda.jit
    def triple(array):
        at = cuda.grid(1)
        if at < array.size:
            array[at] *= 3

    def kernel():
        array = cuda.to_device(numpy.arange(100000))
        triple[(array.size + 255) // 256, 256](array)
        require((array.copy_to_host() == numpy.arange(100000) * 3).all(), "the numbers differ")

    def managed():
        array = cuda.managed_array(1000, dtype=numpy.int64)
        array[:] = 1
        triple[4, 256](array)
        cuda.synchronize()
        require((numpy.asarray(array) == 3).all(), "the numbers differ")

    def order():
        require(isinstance(manager, PoolMemoryManager), f"the manager is {manager!r}")
        array = cuda.device_array(4096, dtype=numpy.uint8)
        address = array.__cuda_array_interface__["data"][0]
        del array
        array = cuda.device_array(4096, dtype=numpy.uint8)
        require(array.__cuda_array_interface__["data"][0] == address, "it did not get its block again")

    def lack():
        raises(CudaAPIError, lambda: manager.memalloc(HUGE))
        kernel()

    if mine:
        report.check("a kernel", kernel)
        report.check("a kernel on managed memory", managed)
        report.check("a block is used again at once", order)
        report.check("too much raises, and a retry works", lack)
    report.time("gpumem" if mine else "its own manager", manager.memalloc)
    cuda.synchronize()


# The processes of each package: the module that it needs, and what is called.
PARTS = {
    "cuda.core": ("cuda.core", [cuda_core]),
    "cupy": ("cupy", [cupy]),
    "numba": ("numba.cuda", [lambda report: numba(report, True), lambda report: numba(report, False)]),
}


def installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--process":
        PARTS[sys.argv[2]][1][int(sys.argv[3])](Report())
        return
    tap, table = Tap(), []
    for part in sys.argv[1:] or PARTS:
        module, processes = PARTS[part]
        if not installed(module):
            tap.skip(part, "it is not installed")
            continue
        for which in range(len(processes)):
            try:
                result = subprocess.run([sys.executable, __file__, "--process", part, str(which)], text=True, capture_output=True,
                                        timeout=TIME_LIMIT, check=False)
                status, output, errors = result.returncode, result.stdout, result.stderr
            except subprocess.TimeoutExpired as problem:
                status, output, errors = "none in time", "", str(problem)
            for line in output.splitlines():
                if not line.startswith("{"):
                    continue
                found = json.loads(line)
                if "time" in found:
                    table.append((part, found["time"], found["found"]))
                else:
                    tap.check(f"{part}: {found['check']}", found["problem"])
            tap.check(f"{part}: process {which + 1} ends well", "" if status == 0 else f"exit status {status}\n{errors}")
    for part, name, found in table:
        tap.measured(f"{part}, {name}: " + ", ".join(f"{time:.0f} ns for a pair of {size}" for size, time in found.items()))
    tap.finish()


if __name__ == "__main__":
    main()
