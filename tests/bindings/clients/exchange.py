#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The C exchange functions of DLPack, and structs of Arrow, in a compiled consumer (exchange.c). Usage: exchange.py [torch]

Hands views of gpumem to gpumem, and to PyTorch and back if that is asked for, and times them: the best of 15 runs of 20,000 calls in C, in
nanoseconds. The backend is that of GPUMEM_BACKEND. Prints TAP.
"""

import ctypes
import gc
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from ctypes import PYFUNCTYPE, c_double, c_int, c_void_p, py_object
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "bindings" / "python")]

from tap import Tap

import gpumem

sys.path.remove(str(HERE.parents[1]))  # other packages would take the modules there for their own

PYTORCH_KNOWS = 1, 2  # its devices of DLPack: the CPU and CUDA
BORROW, EXPORT, HAND_OVER = range(3)  # what exchange.c times
get_pointer = PYFUNCTYPE(c_void_p, py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def consumer():
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "exchange.so"
        subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", HERE / "exchange.c", "-o",
                        library], check=True)
        loaded = ctypes.CDLL(str(library))
    return (PYFUNCTYPE(py_object, c_void_p, py_object, c_void_p)(("hand_over", loaded)),
            PYFUNCTYPE(c_double, c_void_p, py_object, c_int, c_void_p)(("best", loaded)),
            PYFUNCTYPE(c_int, c_void_p, c_void_p)(("fail_with_arrow", loaded)))


def table_of(cls):
    return get_pointer(cls.__dlpack_c_exchange_api__, b"dlpack_exchange_api")


def main():
    with_torch = sys.argv[1:] == ["torch"]
    if sys.argv[1:] and not with_torch:
        sys.exit(__doc__)
    tap = Tap()

    def run(name, function):
        try:
            function()
            tap.check(name, "")
        except Exception:
            tap.check(name, traceback.format_exc())

    hand_over, best, fail_with_arrow = consumer()
    ours = table_of(gpumem.View)
    device = gpumem.default_device()
    on_gpu = device.instance.backend == gpumem.Backend.CUDA
    memories = [device.memory(4096, kind) for kind in (("pinned", "device", "managed") if on_gpu else ("pinned", "managed"))]

    def same(memory):
        view = memory.view("f4", (16, 64))
        found = hand_over(ours, view, ours)
        assert (found.address, found.shape, found.strides) == (view.address, view.shape, view.strides)
        del view
        try:
            memory.close()
        except BufferError:
            return
        raise AssertionError("the memory was closed while somebody had it")
    for memory in memories:
        run(f"gpumem to gpumem, {memory.kind} memory", lambda memory=memory: same(memory))

    def arrow(memory):
        seen = []
        before, sys.unraisablehook = sys.unraisablehook, lambda problem: seen.append(str(problem.exc_value))
        try:
            for _ in range(3):
                schema, array = memory.view("f4").__arrow_c_device_array__()
                assert fail_with_arrow(get_pointer(schema, b"arrow_schema"), get_pointer(array, b"arrow_device_array"))
        finally:
            sys.unraisablehook = before
        assert not seen, seen
    run("a consumer of Arrow that fails releases what it has", lambda: arrow(memories[-1]))

    theirs = None
    if with_torch:
        import torch
        theirs = table_of(torch.Tensor)

        def to_torch(memory):
            memory.fill(0)
            tensor = hand_over(ours, memory.view("f4", (16, 64)), theirs)
            assert (tensor.data_ptr(), tuple(tensor.shape)) == (int(memory), (16, 64))
            tensor += 3
            if on_gpu:
                torch.cuda.synchronize()
            back = hand_over(theirs, tensor, ours)
            assert (back.address, back.shape) == (int(memory), (16, 64))
            found = (ctypes.c_float * 1024)()
            memory.copy_to(found)
            assert list(found) == [3] * 1024
        def refused(memory):
            assert best(ours, memory.view("f4"), EXPORT, None) > 0
            try:
                hand_over(ours, memory.view("f4"), theirs)
            except Exception:
                return
            raise AssertionError("it was taken")
        for memory in memories:
            takes = memory.__dlpack_device__()[0] in PYTORCH_KNOWS
            run(f"gpumem to PyTorch{' and back' if takes else ', which refuses it'}, {memory.kind} memory",
                lambda memory=memory, act=to_torch if takes else refused: act(memory))

    def measure(name, table, thing, work, to=None):
        took = best(table, thing, work, to)
        assert took > 0, f"{name} failed"
        tap.measured(f"{name}: {took:.0f} ns")

    def time(name, table, thing, takers):
        measure(f"{name}, borrowed", table, thing, BORROW)
        measure(f"{name}, exported and released", table, thing, EXPORT)
        for whose, taker in takers.items():
            measure(f"{name}, exported and imported by {whose}", table, thing, HAND_OVER, taker)
    takers = {"gpumem": ours}
    both = {**takers, "PyTorch": theirs} if theirs else takers
    pool = device.pool("device" if on_gpu else "pinned")
    memories += [pool.alloc(4096), device.buffer(4096, location="device" if on_gpu else "host")]
    views = [(f"gpumem, {memory.kind} memory", memory.view("f4", (16, 64))) for memory in memories]
    for name, view in views:
        to = both if view.dlpack_device[0] in PYTORCH_KNOWS else takers
        run(f"times of {name}", lambda name=name, view=view, to=to: time(name, ours, view, to))
    name, view = views[1]
    parts = [view[1:], view[2:]]
    del view
    run("times of one of three views", lambda name=name, part=parts[0]: time(f"{name}, one of three views", ours, part, takers))
    if theirs:
        for where in ["cpu", *(["cuda"] if on_gpu else [])]:
            run(f"times of PyTorch, {where}",
                lambda where=where: time(f"PyTorch, {where}", theirs, torch.zeros(16, 64, device=where), both))
    del views, parts
    gc.collect()
    for memory in memories:
        run(f"nobody has {memory.kind} memory any more", memory.close)
    pool.close()
    tap.finish()


if __name__ == "__main__":
    main()
