# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs one module of tests and writes a line of JSON for each. Usage: worker.py OUTPUT ALLOCATOR MODULE

ALLOCATOR is `numba` or `cupy` to take that package's memory from gpumem, or `none`. The last line says which manager was in use
and how often it was asked for memory."""

import importlib.util
import json
import sys
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
REPORT = ROOT / "bindings" / "python" / "tests" / "report.py"


def report_module():
    spec = importlib.util.spec_from_file_location("gpumem_tests_report", REPORT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MissingTool(types.ModuleType):
    """Stands for a package that a test suite imports everywhere and needs almost nowhere. What needs it fails."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*arguments, **options):
            raise RuntimeError(f"{self.__name__}.{name} is not installed")
        return missing


def repair():
    """What keeps test suites from starting on some machines, and has nothing to do with memory."""
    if importlib.util.find_spec("filecheck") is None:  # numba-cuda's tests of compiled code
        for name in ("", ".finput", ".matcher", ".options", ".parser"):
            sys.modules[f"filecheck{name}"] = MissingTool(f"filecheck{name}")
    try:
        import numpy
    except ImportError:
        return
    if not hasattr(numpy, "row_stack"):  # NumPy 2.5 dropped it, numba 0.68 asks for it
        numpy.row_stack = numpy.vstack


def count_calls(owner, names):
    """Counts the calls of functions of a class or module."""
    calls = {}
    for name in names:
        def counting(*arguments, _name=name, _function=getattr(owner, name), **options):
            calls[_name] = calls.get(_name, 0) + 1
            return _function(*arguments, **options)
        setattr(owner, name, counting)
    return calls


def install(allocator):
    """(name of the manager that will be in use, its counts)"""
    if allocator in ("numba", "numba-pool"):
        from gpumem.adapters import numba as adapter
        manager = adapter.PoolMemoryManager if allocator == "numba-pool" else adapter.MemoryManager
        calls = count_calls(manager, ["memalloc", "memhostalloc", "mempin"])
        from numba import cuda
        return lambda: type(cuda.current_context().memory_manager).__module__, calls
    if allocator in ("cupy", "cupy-pool"):
        from gpumem.adapters import cupy as adapter
        calls = count_calls(adapter, ["allocator", "pinned_allocator"])
        if allocator == "cupy-pool":
            calls = count_calls(adapter.Pool, ["malloc"])
        adapter.install(pool=allocator == "cupy-pool")
        return lambda: adapter.__name__, calls
    return lambda: "its own", {}


def main():
    output, allocator, name = sys.argv[1:]
    report = report_module()
    repair()
    with open(output, "w", encoding="utf-8") as out:
        manager, calls = install(allocator)
        result = report.Result(out)
        if name.endswith(".py"):
            suite = unittest.defaultTestLoader.discover(str(Path(name).parent), Path(name).name)
        else:
            suite = unittest.defaultTestLoader.loadTestsFromName(name)
        suite.run(result)
        out.write(json.dumps({"manager": manager(), "calls": calls}) + "\n")


if __name__ == "__main__":
    main()
