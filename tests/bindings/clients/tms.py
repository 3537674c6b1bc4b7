#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sleep of PyTorch's tensors by libgpumem-tms.so, called in the order of torch_memory_saver's Python: content, graphs, rates.
Usage: tms.py LIBRARY [--gib N]

Prints `ok` or `not ok` for each check, and what was measured after a hash. No check stops the others.
"""

import ctypes
import os
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager

import torch

GIB = 1 << 30
CHUNK = 128 << 20
GOAL = 0.85
count = failed = 0


def check(name, good, note=""):
    global count, failed
    count += 1
    failed += not good
    print(f"{'ok' if good else 'not ok'} {count} - {name}{' # ' + str(note) if note else ''}", flush=True)


def measured(name, value, unit="GB/s"):
    print(f"# measured: {name}: {value:.4g} {unit}", flush=True)


class Saver:
    """BinaryWrapper and _TorchMemorySaverImpl."""

    def __init__(self, path, preloaded=False):
        self.cdll = cdll = ctypes.CDLL(path)
        cdll.tms_set_current_tag.argtypes = [ctypes.c_char_p]
        cdll.tms_get_current_tag.restype = ctypes.c_char_p
        cdll.tms_set_interesting_region.argtypes = [ctypes.c_bool]
        cdll.tms_get_interesting_region.restype = ctypes.c_bool
        cdll.tms_set_enable_cpu_backup.argtypes = [ctypes.c_bool]
        cdll.tms_get_enable_cpu_backup.restype = ctypes.c_bool
        cdll.tms_set_cpu_backup_backend.argtypes = [ctypes.c_char_p]
        cdll.tms_get_cpu_backup_backend.restype = ctypes.c_char_p
        cdll.tms_set_enable_disk_backup.argtypes = [ctypes.c_bool]
        cdll.tms_get_enable_disk_backup.restype = ctypes.c_bool
        cdll.tms_set_disk_backup_dir.argtypes = [ctypes.c_char_p]
        for name in "tms_pause", "tms_resume", "gpumem_tms_prepare":
            getattr(cdll, name).argtypes = [ctypes.c_char_p]
            getattr(cdll, name).restype = ctypes.c_int
        cdll.tms_affected_devices.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_uint32]
        cdll.tms_affected_devices.restype = ctypes.c_uint32
        cdll.set_memory_margin_bytes.argtypes = [ctypes.c_uint64]
        cdll.tms_set_retain_cpu_backup.argtypes = [ctypes.c_bool]
        cdll.tms_get_retain_cpu_backup.restype = ctypes.c_bool
        cdll.tms_keep_resident.argtypes = [ctypes.c_void_p]
        cdll.tms_keep_resident.restype = ctypes.c_uint64
        cdll.tms_get_cpu_backup_pointer.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        cdll.tms_get_cpu_backup_pointer.restype = ctypes.c_void_p
        self.allocator = None
        if not preloaded:
            self.allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "tms_torch_malloc", "tms_torch_free")
        self.pools = {}

    def settings(self):
        cdll = self.cdll
        return (cdll.tms_get_current_tag(), cdll.tms_get_interesting_region(), cdll.tms_get_enable_cpu_backup(),
                cdll.tms_get_cpu_backup_backend(), cdll.tms_get_enable_disk_backup())

    def set(self, tag, interesting, cpu_backup, backend, disk_backup):
        cdll = self.cdll
        cdll.tms_set_current_tag(tag)
        cdll.tms_set_interesting_region(interesting)
        cdll.tms_set_enable_cpu_backup(cpu_backup)
        if backend is not None:
            cdll.tms_set_cpu_backup_backend(backend)
        cdll.tms_set_enable_disk_backup(disk_backup)

    @contextmanager
    def configured(self, tag, cpu_backup=False, backend=None, disk_backup=False):
        before = self.settings()
        self.set(tag.encode(), True, cpu_backup, backend, disk_backup)
        try:
            yield
        finally:
            self.set(*before)

    @contextmanager
    def region(self, tag, **config):
        key = (tag, *sorted(config.items()))
        if key not in self.pools:
            self.pools[key] = torch.cuda.MemPool(self.allocator.allocator()) if self.allocator else torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self.pools[key]), self.configured(tag, **config):
            yield

    def devices(self, tag):
        found = (ctypes.c_int * 64)()
        return list(found[:self.cdll.tms_affected_devices(tag, found, 64)])

    def pause(self, tag=None):
        tag = tag and tag.encode()
        for device in self.devices(tag):
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        status = self.cdll.tms_pause(tag)
        return status, time.perf_counter() - begin

    def resume(self, tag=None):
        begin = time.perf_counter()
        status = self.cdll.tms_resume(tag and tag.encode())
        return status, time.perf_counter() - begin


def content(seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-2**31, 2**31 - 1, (CHUNK // 4,), dtype=torch.int32, device="cuda", generator=generator)


def intact(tensors):
    return all(torch.equal(tensor, content(seed)) for seed, tensor in enumerate(tensors))


def tensors_in(saver, tag, gib, **config):
    with saver.region(tag, **config):
        tensors = [torch.empty(CHUNK // 4, dtype=torch.int32, device="cuda") for _ in range(gib * GIB // CHUNK)]
    for seed, tensor in enumerate(tensors):
        tensor.copy_(content(seed))
    torch.cuda.synchronize()
    return tensors


def free_bytes():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def dirty(gib):
    """What was freed is used by somebody else. Copies right after that are slower (docs/measured/adapters.md)."""
    other = torch.full((gib * GIB,), 0xee, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    del other
    torch.cuda.empty_cache()
    time.sleep(1)


def raw_rates():
    size = 2 * GIB
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    rates = []
    for target, source in ((host, device), (device, host)):
        best = 0
        for _ in range(4):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best = max(best, size / (time.perf_counter() - begin) / 1e9)
        rates.append(best)
    measured("page-locked copy to the host", rates[0])
    measured("page-locked copy to the device", rates[1])
    return rates


def cycle(saver, tag, gib, tensors, name, raw=None):
    before = free_bytes()
    addresses = [tensor.data_ptr() for tensor in tensors]
    status, seconds = saver.pause(tag)
    rate = gib * GIB / seconds / 1e9
    check(f"{name}: pause", status == 0, status)
    measured(f"{name}: pause", rate)
    check(f"{name}: the memory is free", free_bytes() - before >= gib * GIB, free_bytes() - before)
    dirty(gib)
    status, back_seconds = saver.resume(tag)
    back = gib * GIB / back_seconds / 1e9
    check(f"{name}: resume", status == 0, status)
    measured(f"{name}: resume", back)
    check(f"{name}: addresses and content are as before",
          addresses == [tensor.data_ptr() for tensor in tensors] and intact(tensors))
    if raw is not None:
        check(f"{name}: pause at {GOAL} of the link", rate >= GOAL * raw[0], f"{rate / raw[0]:.3f}")
        check(f"{name}: resume at {GOAL} of the link", back >= GOAL * raw[1], f"{back / raw[1]:.3f}")


def weights_and_graph(saver, gib, raw):
    weights = tensors_in(saver, "weights", gib, cpu_backup=True)
    with saver.region("kv_cache"):
        cache = torch.empty(GIB // 4, dtype=torch.int32, device="cuda")
    shift = torch.zeros(1, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            cache[:CHUNK // 4].copy_(weights[-1] * 3 + shift)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache[:CHUNK // 4].copy_(weights[-1] * 3 + shift)

    def replays(number):
        shift.fill_(number)
        graph.replay()
        torch.cuda.synchronize()
        return torch.equal(cache[:CHUNK // 4], content(len(weights) - 1) * 3 + number)

    check("the graph replays", replays(1))
    saver.cdll.tms_set_retain_cpu_backup(True)
    cycle(saver, "weights", gib, weights, "first")
    check("the graph replays after the first resume", replays(2))
    cycle(saver, "weights", gib, weights, "second, retained", raw)
    cycle(saver, "weights", gib, weights, "third, retained", raw)
    status, seconds = saver.pause("kv_cache")
    check("memory without a backup is paused", status == 0)
    measured("pause of 1 GiB without a backup", seconds * 1e3, "ms")
    check("its tag only", intact(weights))
    status, seconds = saver.resume("kv_cache")
    check("memory without a backup is resumed", status == 0)
    measured("resume of 1 GiB without a backup", seconds * 1e3, "ms")
    check("the graph replays after both", replays(3))

    check("all is paused", saver.pause()[0] == 0)
    check("all is paused already", saver.pause()[0] == 1)
    pointer = saver.cdll.tms_get_cpu_backup_pointer(weights[1].data_ptr() + 4096, CHUNK - 4096)
    check("a paused backup has a pointer", pointer is not None)
    if pointer:
        backup = torch.frombuffer((ctypes.c_char * (CHUNK - 4096)).from_address(pointer), dtype=torch.int32)
        check("and the content", torch.equal(backup, content(1).cpu()[1024:]))
    full = torch.empty(free_bytes() - GIB, dtype=torch.uint8, device="cuda")
    check("a resume without room is refused", saver.resume()[0] == 2)
    del full
    torch.cuda.empty_cache()
    check("and succeeds once there is room", saver.resume()[0] == 0 and intact(weights))
    check("the graph replays after that", replays(4))
    saver.cdll.tms_set_retain_cpu_backup(False)
    cycle(saver, "weights", gib, weights, "not retained any more")


def prepared(saver, gib, raw):
    tensors = tensors_in(saver, "prepared", gib, cpu_backup=True)
    begin = time.perf_counter()
    check("backups are made ahead", saver.cdll.gpumem_tms_prepare(b"prepared") == 0)
    measured("making the backups", gib * GIB / (time.perf_counter() - begin) / 1e9)
    saver.cdll.tms_set_retain_cpu_backup(True)
    cycle(saver, "prepared", gib, tensors, "prepared", raw)
    saver.cdll.tms_set_retain_cpu_backup(False)


def other_backups(saver):
    cycle(saver, "mapped", 1, tensors_in(saver, "mapped", 1, cpu_backup=True, backend=b"mmap"), "mmap")
    saver.cdll.tms_set_disk_backup_dir(b"/tmp")
    cycle(saver, "disk", 1, tensors_in(saver, "disk", 1, disk_backup=True), "disk")


def limits(saver):
    with saver.region("limits"):
        try:
            torch.empty(torch.cuda.mem_get_info()[1] * 2, dtype=torch.uint8, device="cuda")
            check("too much is OutOfMemoryError", False)
        except torch.cuda.OutOfMemoryError:
            check("too much is OutOfMemoryError", True)
    tensors = tensors_in(saver, "resident", 1, cpu_backup=True)
    check("memory becomes resident", saver.cdll.tms_keep_resident(tensors[0].data_ptr()) == CHUNK)
    check("the rest of its tag is paused", saver.pause("resident")[0] == 0 and torch.equal(tensors[0], content(0)))
    check("and resumed", saver.resume("resident")[0] == 0 and intact(tensors))


def released(saver):
    """Outside of any region, and some of it paused."""
    before = free_bytes()
    tensors = tensors_in(saver, "released", 1, cpu_backup=True)
    check("it is paused", saver.pause("released")[0] == 0)
    del tensors
    for key in [key for key in saver.pools if key[0] == "released"]:
        del saver.pools[key]
    check("memory that is freed while it is paused is gone", free_bytes() >= before - (64 << 20))
    check("and nothing is paused any more", saver.devices(b"released") == [])


def preloaded(path):
    """Runs in a process that has the library preloaded: allocations of a graph's pool sleep too."""
    saver = Saver(path, preloaded=True)
    outside = torch.ones(1 << 20, device="cuda")
    check("preloaded: what no region allocates is the runtime's", saver.devices(None) == [])
    tensors = tensors_in(saver, "weights", 1, cpu_backup=True)
    check("preloaded: what a region allocates is ours", saver.devices(b"weights") == [0])
    out = torch.zeros(CHUNK // 4, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph), saver.configured("graph"):
        out.copy_(tensors[0] * 5 + 7)
    check("preloaded: so is what a graph allocates in one", saver.devices(b"graph") == [0])
    cycle(saver, None, 1, tensors, "preloaded")
    graph.replay()
    torch.cuda.synchronize()
    check("preloaded: the graph replays", torch.equal(out, content(0) * 5 + 7) and bool((outside == 1).all()))


def attempt(name, work, *arguments):
    try:
        work(*arguments)
    except Exception:  # pylint: disable=broad-except
        for line in traceback.format_exc().splitlines():
            print(f"# {line}")
        check(name, False)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def main():
    path = os.path.abspath(sys.argv[1])
    gib = int(sys.argv[sys.argv.index("--gib") + 1]) if "--gib" in sys.argv else 8
    torch.cuda.init()
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {path}")
    if "--preloaded" in sys.argv:
        attempt("preloaded", preloaded, path)
        sys.exit(failed != 0)
    saver = Saver(path)
    raw = raw_rates()
    for name, work, *arguments in (("weights and graph", weights_and_graph, saver, gib, raw),
                                   ("prepared", prepared, saver, gib, raw), ("other backups", other_backups, saver),
                                   ("limits", limits, saver), ("released", released, saver)):
        begin = time.perf_counter()
        attempt(name, work, *arguments)
        measured(f"the part {name}", time.perf_counter() - begin, "s")
    part = subprocess.run([sys.executable, __file__, path, "--preloaded"], env={**os.environ, "LD_PRELOAD": path}, check=False)
    check("the process with the library preloaded", part.returncode == 0, part.returncode)
    print(f"1..{count}")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
