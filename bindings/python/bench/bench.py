#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measures the overhead of the binding, with an empty foreign call beside it. Usage: bench.py [RUNS]

Each number is the best of 15 runs, or RUNS, in nanoseconds. Creating and destroying memory takes far longer than the
overhead of Python. So it is measured twice: with the library, and with C functions that do nothing in place of the
library's, which leaves the binding alone. It passes and fails nothing.
"""

import ctypes
import sys
import time

import gpumem
from gpumem import _library as c

try:
    import numpy
except ImportError:
    numpy = None

REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 15


def best(function, count, prepare=lambda count: None, finish=lambda result: None):
    """Nanoseconds of one of `count` calls that `function(prepared, count)` makes."""
    times = []
    for _ in range(REPEATS):
        prepared = prepare(count)
        start = time.perf_counter_ns()
        result = function(prepared, count)
        times.append((time.perf_counter_ns() - start) / count)
        finish(result)
    return min(times)


def loop(_, count):
    for _ in range(count):
        pass


def create(device, kind, size):
    def run(_, count):
        return [device.memory(size, kind) for _ in range(count)]
    return run


def construct(device, kind, size):
    def run(_, count):
        memory = gpumem.Memory
        return [memory(device, size, kind) for _ in range(count)]
    return run


def close(memories, _):
    for memory in memories:
        memory.close()
    return memories


def forget(memories, _):
    memories.clear()


def close_all(memories):
    close(memories, 0)


def with_stand_in(measure):
    """Measures with C functions that return 0 at once in place of those that create and destroy."""
    stand_ins = {"memory_create_prepared": "pthread_equal", "gpumem_memory_destroy": "labs"}
    originals = {name: getattr(c, name) for name in stand_ins}
    try:
        for name, function in stand_ins.items():
            stand_in = ctypes.CDLL(None)[function]
            stand_in.restype, stand_in.argtypes = originals[name].restype, originals[name].argtypes
            setattr(c, name, stand_in)
        return measure()
    finally:
        for name, original in originals.items():
            setattr(c, name, original)


def report(name, value, unit):
    print(f"{name:58} {value:10.0f} ns   {value / unit:8.2f} of an empty call")


def measure_memory(device, kind, count, note, unit):
    size = 4096
    making = create(device, kind, size)
    report(f"device.memory(), {note}", best(making, count, finish=close_all), unit)
    report(f"Memory(), {note}", best(construct(device, kind, size), count, finish=close_all), unit)
    report(f"memory.close(), {note}", best(close, count, prepare=lambda n: making(None, n)), unit)
    report(f"memory dropped, {note}", best(forget, count, prepare=lambda n: making(None, n)), unit)


def measure_calls(calls, unit):
    for name, call in calls:
        def run(_, count, call=call):
            for _ in range(count):
                call()
        report(name, best(run, 1000), unit)


def measure_dlpack(view, unit):
    """One array of host memory, handed over and released again."""
    measure_calls([("view.__dlpack__(), and the capsule dropped", lambda: view.__dlpack__()),
                   ("gpumem.from_dlpack(view): export and import", lambda: gpumem.from_dlpack(view)),
                   ("the same of a view that is new each time", lambda: gpumem.from_dlpack(view[:]))], unit)
    if numpy is None:
        print("numpy is not installed: no rows with it")
        return
    array = numpy.zeros((32, 32), "f4")
    measure_calls([("numpy.from_dlpack(view): export", lambda: numpy.from_dlpack(view)),
                   ("gpumem.from_dlpack(array): import", lambda: gpumem.from_dlpack(array)),
                   ("numpy.from_dlpack(array): numpy alone", lambda: numpy.from_dlpack(array)),
                   ("numpy.asarray(view)", lambda: numpy.asarray(view))], unit)


def measure_pool(device, unit):
    """A block and its end, of a pool that has it free."""
    with device.pool() as pool, device.stream() as stream, device.stream() as other:
        native = other.native_stream
        calls = [("pool.alloc() and free()", lambda: pool.alloc(4096).free()),
                 ("pool.alloc(), and the block dropped", lambda: pool.alloc(4096)),
                 ("pool.alloc(stream) and free()", lambda: pool.alloc(4096, stream).free()),
                 ("pool.malloc() and free(), addresses alone", lambda: pool.free(pool.malloc(4096)))]
        if native:  # as the adapters of other packages do
            calls.append(("the same in a native stream", lambda: pool._drop(pool.malloc(4096, native), native)))
        measure_calls(calls, unit)
        stream.synchronize()


def main():
    device = gpumem.default_device()
    version = c.gpumem_version

    def empty(_, count):
        for _ in range(count):
            version()

    unit = best(empty, 100000) - best(loop, 100000)
    print(f"gpumem {gpumem.version_text()}, backend {device.instance.backend.name.lower()}")
    report("gpumem_version() by ctypes: an empty call", unit, unit)
    with_stand_in(lambda: measure_memory(device, gpumem.Kind.DEVICE, 2000, "binding alone", unit))
    measure_memory(device, gpumem.Kind.DEVICE, 8, "whole, device", unit)
    measure_memory(device, gpumem.Kind.PINNED, 8, "whole, pinned", unit)

    with device.memory(1 << 16, gpumem.Kind.PINNED) as memory, device.stream() as stream:
        address, instance, source = memory.host_pointer, device.instance, bytes(64)
        measure_calls([
            ("memory.info()", memory.info),
            ("memory.view()", memory.view),
            ("instance.copy(), 0 bytes between addresses", lambda: instance.copy(address, address + 64, 0)),
            ("instance.copy(), 64 bytes from a bytes object", lambda: instance.copy(memory, source)),
            ("instance.copy_regions(), one of 64 bytes", lambda: instance.copy_regions([gpumem.CopyRegion(memory, source)])),
            ("stream.query()", stream.query)], unit)
        measure_dlpack(memory.view("f4", (32, 32), offset=4096), unit)
    measure_pool(device, unit)


if __name__ == "__main__":
    main()
