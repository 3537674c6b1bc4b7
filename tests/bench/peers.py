#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measures what other packages do of the same work, for `gpumem bench --with FILE`.
Usage: peers.py [--json FILE] [--quick]

PyTorch and CuPy, where they are installed and find a GPU; what is missing is named, in the file too. The rows have the
names of the benchmark's: pairs of an allocation and its free from the pool, pinned memory, and copies.
"""

import argparse
import json
import sys
import threading
import time

KIB, MIB = 1 << 10, 1 << 20
COPY_SIZES = [4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
PIN_SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB]
THREADS = [1, 2, 4, 8, 16]
ROW_SECONDS = 0.002
CASE_SECONDS = 3


def size_text(size):
    return f"{size // MIB}MiB" if size >= MIB else f"{size // KIB}KiB"


def sample(values, scale):
    values = sorted(value * scale for value in values)
    at = lambda share: values[int(share * (len(values) - 1) + 0.5)]
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    return {"median": median, "p10": at(0.1), "p90": at(0.9), "rows": len(values)}


class Measure:
    def __init__(self, rows):
        self.rows_of_calls = rows
        self.rows = []

    def seconds(self, call):
        """Seconds of one call, by row."""
        def row(count):
            begin = time.perf_counter()
            for _ in range(count):
                call()
            return time.perf_counter() - begin
        row(1)
        count = max(1, min(20000, int(ROW_SECONDS / max(row(1), 1e-9))))
        values, total = [], 0.0
        while len(values) < self.rows_of_calls and (len(values) < 5 or total < CASE_SECONDS):
            values.append(row(count) / count)
            total += values[-1] * count
        return values

    def add(self, name, unit, size, value):
        self.rows.append({"name": name, "unit": unit, "bytes": size, "value": value})
        print(f"{name:<48} {value['median']:10.4g} {unit:<5}  {value['p10']:.4g}..{value['p90']:.4g}", flush=True)

    def time(self, name, call):
        self.add(name, "us", None, sample(self.seconds(call), 1e6))

    def rate(self, name, size, call):
        values = [size / 1e9 / seconds for seconds in self.seconds(call)]
        self.add(name, "GB/s", size, sample(values, 1))

    def threads(self, name, call, calls):
        """Of each thread. Python runs one at a time, and that is what its users get."""
        values = []
        for _ in range(5):
            took = []

            def work():
                for _ in range(calls // 10):
                    call()
                together.wait()
                begin = time.perf_counter()
                for _ in range(calls):
                    call()
                took.append((time.perf_counter() - begin) / calls)

            count = int(name.rsplit("_", 1)[1])
            together = threading.Barrier(count)
            crew = [threading.Thread(target=work) for _ in range(count)]
            for thread in crew:
                thread.start()
            for thread in crew:
                thread.join()
            values.append(sum(took) / count)
        self.add(name, "ns", None, sample(values, 1e9))


def measure_torch(measure, calls):
    import torch
    if not torch.cuda.is_available():
        raise RuntimeError("it finds no GPU")
    title = f"PyTorch {torch.__version__}"
    for count in THREADS:
        measure.threads(f"pool/device/pair_4KiB/threads_{count}",
                        lambda: torch.empty(4096, dtype=torch.uint8, device="cuda"), calls)
    for size in PIN_SIZES:
        measure.time(f"create_destroy/pinned/{size_text(size)}",
                     lambda size=size: torch.empty(size, dtype=torch.uint8, pin_memory=True))
    for size in COPY_SIZES:
        device = torch.zeros(size, dtype=torch.uint8, device="cuda")
        for kind in ("pageable", "pinned"):
            host = torch.zeros(size, dtype=torch.uint8, pin_memory=kind == "pinned")

            def copy(to, source):
                to.copy_(source, non_blocking=True)
                torch.cuda.current_stream().synchronize()
            measure.rate(f"copy/{kind}_to_device/sync/{size_text(size)}", size, lambda: copy(device, host))
            measure.rate(f"copy/device_to_{kind}/sync/{size_text(size)}", size, lambda: copy(host, device))
    return title


def measure_cupy(measure, calls):
    import cupy
    import numpy
    if cupy.cuda.runtime.getDeviceCount() == 0:
        raise RuntimeError("it finds no GPU")
    title = f"CuPy {cupy.__version__}"
    for count in THREADS:
        measure.threads(f"pool/device/pair_4KiB/threads_{count}", lambda: cupy.cuda.alloc(4096), calls)
    for size in PIN_SIZES:
        measure.time(f"create_destroy/pinned/{size_text(size)}", lambda size=size: cupy.cuda.alloc_pinned_memory(size))
    stream = cupy.cuda.Stream()
    for size in COPY_SIZES:
        device = cupy.zeros(size, dtype=cupy.uint8)
        pinned = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(size), numpy.uint8, size)
        for kind, host in (("pageable", numpy.zeros(size, numpy.uint8)), ("pinned", pinned)):
            def to_device():
                device.set(host, stream)
                stream.synchronize()

            def to_host():
                device.get(stream, out=host)
                stream.synchronize()
            measure.rate(f"copy/{kind}_to_device/sync/{size_text(size)}", size, to_device)
            measure.rate(f"copy/device_to_{kind}/sync/{size_text(size)}", size, to_host)
    return title


def main():
    parser = argparse.ArgumentParser(description="Measures PyTorch and CuPy for gpumem bench --with FILE.")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    options = parser.parse_args()
    result = {"schema": "gpumem-peers", "version": 1, "peers": [], "missing": []}
    for name, function in (("PyTorch", measure_torch), ("CuPy", measure_cupy)):
        measure = Measure(5 if options.quick else 15)
        print(f"# {name}", flush=True)
        try:
            title = function(measure, 2000 if options.quick else 20000)
            result["peers"].append({"peer": title, "rows": measure.rows})
        except Exception as problem:  # Whatever it is, the other package is still measured.
            why = f"{type(problem).__name__}: {problem}".splitlines()[0]
            result["missing"].append({"peer": name, "why": why})
            print(f"# {name} is missing: {why}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0 if result["peers"] else 1


if __name__ == "__main__":
    sys.exit(main())
