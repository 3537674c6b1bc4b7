#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the tests of other packages with and without gpumem as their memory, and hands arrays over. See README.md.
Usage: run.py [--pool] [--output FOLDER] [--cupy-tests FOLDER] [--limit SECONDS] [PART...]"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PARTS = ["numba", "cupy", "cupy-checks", "handover"]
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

# What has to do with memory, by its module in numba.cuda.tests.
NUMBA_MODULES = [
    "cudadrv.test_pinned", "cudadrv.test_host_alloc", "cudadrv.test_cuda_memory", "cudadrv.test_deallocations",
    "cudadrv.test_emm_plugins", "cudadrv.test_managed_alloc", "cudadrv.test_cuda_ndarray", "cudadrv.test_array_attr",
    "cudadrv.test_cuda_array_slicing", "cudadrv.test_cuda_devicerecord", "cudadrv.test_streams", "cudadrv.test_events",
    "cudadrv.test_context_stack", "cudadrv.test_select_device", "cudadrv.test_reset_device",
    "cudapy.test_cuda_array_interface", "cudapy.test_ipc", "cudapy.test_array", "cudapy.test_transpose",
]
CUPY_FILES = ["cupy_tests/cuda_tests/test_memory.py", "cupy_tests/cuda_tests/test_pinned_memory.py",
              "cupy_tests/cuda_tests/test_memory_hook.py"]


def installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def environment(**more):
    paths = [str(ROOT / "bindings" / "python"), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", **more}


def run(command, limit, **more):
    """(exit status or a reason, last lines of what was printed)"""
    try:
        result = subprocess.run([str(word) for word in command], text=True, errors="replace", stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=limit, env=environment(**more), check=False)
        return result.returncode, result.stdout[-4000:]
    except subprocess.TimeoutExpired as expired:
        text = expired.stdout or b""
        return f"no end within {limit} s", (text if isinstance(text, str) else text.decode("utf-8", "replace"))[-4000:]


def run_module(module, allocator, limit):
    """The outcome of each test of a module, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        # By this variable numba also knows which of its own tests make no sense with a plug-in.
        managers = {"numba": "gpumem.adapters.numba", "numba-pool": "gpumem.adapters.numba_pool"}
        more = {"NUMBA_CUDA_MEMORY_MANAGER": managers[allocator]} if allocator in managers else {}
        status, text = run([sys.executable, HERE / "worker.py", lines, allocator, module], limit, **more)
        found = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] if lines.exists() else []
    outcomes = {case["name"]: {"outcome": case["outcome"], "note": case["note"][-2000:]} for case in found if "name" in case}
    end = next((line for line in found if "manager" in line), None)
    return {"module": module, "status": status, "outcomes": outcomes, "end": end,
            "output": text if status or end is None else ""}


def run_pytest(path, plugin, limit, folder):
    """The outcome of each test of a file of pytest."""
    with tempfile.TemporaryDirectory() as scratch:
        xml = Path(scratch) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={xml}",
                   f"--rootdir={folder}", *(["-p", "pytest_gpumem"] if plugin else []), folder / path]
        status, text = run(command, limit)
        outcomes = {}
        if xml.exists():
            for case in ElementTree.parse(xml).iter("testcase"):
                bad = [child for child in case if child.tag in ("failure", "error")]
                outcome = FAILED if bad else SKIPPED if case.find("skipped") is not None else PASSED
                outcomes[f"{case.get('classname')}.{case.get('name')}"] = {
                    "outcome": outcome, "note": (bad[0].text or "")[-2000:] if bad else ""}
    return {"module": path, "status": status if status not in (0, 1, 5) else 0, "outcomes": outcomes, "end": None,
            "output": text if not outcomes else ""}


def passed(result):
    return {name for name, case in result["outcomes"].items() if case["outcome"] == PASSED}


def compare(module, without, with_us):
    """What changes when a package takes its memory from gpumem."""
    before, after = passed(without), passed(with_us)
    lost = sorted(name for name in before - after
                  if with_us["outcomes"].get(name, {"outcome": FAILED})["outcome"] != SKIPPED)
    return {"module": module, "without": without, "with": with_us, "lost": lost, "gained": sorted(after - before),
            "skipped_by_itself": sorted(before - after - set(lost))}


def row(comparison):
    without, with_us = comparison["without"], comparison["with"]
    notes = []
    for title, result in (("without", without), ("with", with_us)):
        if result["status"]:
            notes.append(f"{title}: exit status {result['status']}")
    calls = (with_us["end"] or {}).get("calls")
    if calls is not None:
        notes.append(f"{sum(calls.values())} allocations by gpumem")
    return [comparison["module"], len(without["outcomes"]), len(passed(without)), len(passed(with_us)),
            len(comparison["lost"]), len(comparison["skipped_by_itself"]), len(comparison["gained"]), "; ".join(notes)]


def table(title, head, rows):
    rows = [[str(value) for value in line] for line in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*rows)]
    print(f"\n{title}")
    for line in rows:
        print("  " + "  ".join(value.ljust(width) for value, width in zip(line, widths)).rstrip())


HEAD = ["module", "tests", "pass without", "pass with", "lost", "skipped for plug-ins", "gained", ""]


def show(title, comparisons):
    table(title, HEAD, map(row, comparisons))
    for comparison in comparisons:
        for name in comparison["lost"]:
            note = comparison["with"]["outcomes"].get(name, {"note": "it did not run"})["note"].strip()
            print(f"    lost: {name}\n      " + "\n      ".join(note.splitlines()[-8:]))
        for title, result in (("without", comparison["without"]), ("with", comparison["with"])):
            if result["output"]:
                print(f"    {comparison['module']}, {title} gpumem, printed:\n      "
                      + "\n      ".join(result["output"].splitlines()[-12:]))


def with_pool(allocator, arguments):
    return f"{allocator}-pool" if arguments.pool else allocator


def part_numba(arguments):
    if not installed("numba"):
        return "numba is not installed"
    comparisons = []
    for name in NUMBA_MODULES:
        module = f"numba.cuda.tests.{name}"
        print(f"numba: {name}", flush=True)
        without = run_module(module, "none", arguments.limit)
        if not without["outcomes"] and "No module named" in without["output"]:
            continue  # this version has no such module
        comparisons.append(compare(name, without, run_module(module, with_pool("numba", arguments), arguments.limit)))
    if not comparisons:
        return "this numba has no tests installed"
    show("numba-cuda's own tests", comparisons)
    return comparisons


def part_cupy(arguments):
    if not installed("cupy"):
        return "cupy is not installed"
    folder = Path(arguments.cupy_tests) if arguments.cupy_tests else None
    if folder is None and installed("cupy_tests"):
        folder = Path(importlib.util.find_spec("cupy_tests").submodule_search_locations[0]).parent
    if folder is None:
        return "the tests of CuPy are not in its wheel: name their folder with --cupy-tests"

    def run_file(path, allocator):
        if installed("pytest") and not arguments.pool:
            return run_pytest(path, allocator == "cupy", arguments.limit, folder)
        return run_module(str(folder / path), allocator, arguments.limit)  # most of them need no more than unittest

    comparisons = []
    for path in CUPY_FILES:
        if (folder / path).exists():
            print(f"cupy: {path}", flush=True)
            comparisons.append(compare(path, run_file(path, "none"), run_file(path, with_pool("cupy", arguments))))
    show("CuPy's own tests", comparisons)
    return comparisons


def part_cupy_checks(arguments):
    if not installed("cupy"):
        return "cupy is not installed"
    print("cupy: checks", flush=True)
    module = str(HERE / "cupy_checks.py")
    comparisons = [compare("cupy_checks", run_module(module, "none", arguments.limit),
                           run_module(module, with_pool("cupy", arguments), arguments.limit))]
    show("Checks of CuPy's memory", comparisons)
    return comparisons


def part_handover(arguments):
    print("handover", flush=True)
    result = run_module(str(HERE / "handover.py"), "none", arguments.limit)
    table("Hand-over", ["test", "outcome", ""],
          [[name, case["outcome"], case["note"].strip().splitlines()[-1][:120] if case["note"].strip() else ""]
           for name, case in sorted(result["outcomes"].items())])
    if result["output"]:
        print(result["output"])
    return result


def versions():
    """Of what is there, asked in a process of its own so that nothing here starts a driver."""
    found = {"python": sys.version.split()[0]}
    for name in ("numpy", "numba", "numba_cuda", "cupy", "torch", "pyarrow"):
        if installed(name):
            status, text = run([sys.executable, "-c", f"import {name}; print({name}.__version__)"], 120)
            found[name] = text.strip().splitlines()[-1] if status == 0 and text.strip() else f"broken: {text.strip()[-200:]}"
        else:
            found[name] = "not installed"
    program = ("import gpumem; info = gpumem.probe('cuda'); "
               "print(gpumem.version_text(), '|', info.name, '|', gpumem.Instance('cuda').device(0).info().name)")
    status, text = run([sys.executable, "-c", program], 120)
    found["gpumem"] = text.strip().splitlines()[-1] if text.strip() else f"exit status {status}"
    return found


def bad(part, result):
    """What is wrong with the result of a part."""
    if isinstance(result, str):
        return []
    if part == "handover":
        wrong = [name for name, case in result["outcomes"].items() if case["outcome"] == FAILED]
        return wrong + ([] if result["end"] and any(case["outcome"] == PASSED for case in result["outcomes"].values())
                        else ["it did not end well, or nothing passed"])
    wrong = [f"{comparison['module']}: {name}" for comparison in result for name in comparison["lost"]]
    for comparison in result:
        ended = comparison["with"]["end"]
        if comparison["with"]["status"] and not comparison["without"]["status"]:
            wrong.append(f"{comparison['module']}: exit status {comparison['with']['status']}")
        if ended and ended["manager"] not in ("gpumem.adapters.numba", "gpumem.adapters.cupy"):
            wrong.append(f"{comparison['module']}: gpumem was not in use but {ended['manager']}")
    if part in ("numba", "cupy-checks") and not any(
            sum((comparison["with"]["end"] or {"calls": {}})["calls"].values()) for comparison in result):
        wrong.append("gpumem was never asked for memory")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", action="store_true", help="with pools of gpumem, not the driver at each allocation")
    parser.add_argument("--output", default="gpumem-clients", metavar="FOLDER", help="where results.json goes")
    parser.add_argument("--cupy-tests", metavar="FOLDER", help="the folder `tests` of CuPy's sources")
    parser.add_argument("--limit", type=int, default=300, metavar="SECONDS", help="for each process")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"{part} is no part: {', '.join(PARTS)}")

    results = {"versions": versions()}
    table("Versions", ["package", "version"], results["versions"].items())
    output = Path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)
    functions = {"numba": part_numba, "cupy": part_cupy, "cupy-checks": part_cupy_checks, "handover": part_handover}
    for part in arguments.parts or PARTS:
        try:
            results[part] = functions[part](arguments)
        except Exception as problem:  # the other parts still have something to say
            results[part] = [compare(part, {"outcomes": {}, "status": 0, "end": None, "output": ""},
                                     {"outcomes": {}, "status": repr(problem), "end": None, "output": ""})]
        # Written after each part, so that what was found is kept if the machine goes.
        (output / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")

    wrong = {part: bad(part, results[part]) for part in arguments.parts or PARTS}
    table("Result", ["part", "result"],
          [[part, results[part] if isinstance(results[part], str) else "good" if not found else f"{len(found)} wrong"]
           for part, found in wrong.items()])
    for part, found in wrong.items():
        for text in found:
            print(f"  {part}: {text}")
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
