#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measures the overhead of the binding, with an empty foreign call beside it. Usage: bench.py

Each number is the best of several runs, in nanoseconds. Creating and destroying memory takes far longer than the
overhead of Python. So it is measured twice: with the library, and with C functions that do nothing in place of the
library's, which leaves the binding alone. It passes and fails nothing.
"""

import ctypes
import time

import gpumem
from gpumem import _library as c

REPEATS = 15


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
        for name, call in (
                ("memory.info()", memory.info),
                ("memory.view()", memory.view),
                ("instance.copy(), 0 bytes between addresses", lambda: instance.copy(address, address + 64, 0)),
                ("instance.copy(), 64 bytes from a bytes object", lambda: instance.copy(memory, source)),
                ("instance.copy_regions(), one of 64 bytes",
                 lambda: instance.copy_regions([gpumem.CopyRegion(memory, source)])),
                ("stream.query()", stream.query)):
            def run(_, count, call=call):
                for _ in range(count):
                    call()
            report(name, best(run, 1000), unit)


if __name__ == "__main__":
    main()
