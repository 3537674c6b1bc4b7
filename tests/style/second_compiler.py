#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Each compiler reads the sources that no configuration compiles with it, for its warnings: with their own arguments, and without
making code. Usage: second_compiler.py SOURCE_ROOT BUILD_ROOT

The sanitizers' configurations are built by Clang, but without some sources. GCC builds all tests with --all only, and else reads them
here.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tap import Tap

# What asan compiles, but for the exceptions.
SANITIZED = re.compile(r"(impl|capi|adapters|bindings/cli|tests/(adapters|unit|conformance|sequences|faults|processes|fake_cuda))/"
                       r"|tests/bindings/(cpp/|vectors)")
EXCEPTIONS = {"tests/fake_cuda/fake_cuda_test.cpp"}
CLANG = {".c": "clang", ".cpp": "clang++"}
GCC = {".c": "gcc", ".cpp": "g++"} if os.environ.get("GPUMEM_TEST_GATE") else {}
# Headers, macros, language and warnings. How code is made does not matter.
KEPT = re.compile(r"-(I|isystem|D|U|std=|fno-exceptions|W(?!unused-command-line|l,))")
# A warning that GCC does not have, and one that is untrue of a unity build, where a source is included.
IGNORED = "-Wno-unknown-warning-option", "-Wno-subobject-linkage"


def arguments(words):
    """Those of a compile command that the other compiler is to know."""
    kept, words = [], iter(words)
    for word in words:
        if KEPT.match(word):
            kept += [word, next(words)] if word in ("-I", "-isystem", "-D", "-U") else [word]
    return kept


def shown(path, source, build):
    """The name of a source; generated ones lie in the build folder, which may be inside the source."""
    return str(path.relative_to(build if path.is_relative_to(build) else source))


def reader_of(name, suffix):
    """The compiler that is to read a source, or None."""
    if not SANITIZED.match(name) or name in EXCEPTIONS:
        return CLANG.get(suffix)
    return GCC.get(suffix) if name.startswith("tests/") and not name.startswith("tests/fake_cuda/") else None


def main():
    source, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    tap = Tap()
    missing = [compiler for compiler in [*CLANG.values(), *GCC.values()] if not shutil.which(compiler)]
    if missing:
        tap.skip("no compiler has a warning", f"{missing[0]} is not installed")
        tap.finish()
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    paths = [Path(os.path.normpath(Path(entry["directory"]) / entry["file"])) for entry in entries]
    targets = [os.path.dirname(entry["output"]) for entry in entries]
    headers = {target: path for target, path in zip(targets, paths) if path.name == "precompiled.h"}
    chosen, precompiled = {}, {}
    for entry, path, target in zip(entries, paths, targets):
        name = shown(path, source, build)
        reader = reader_of(name, path.suffix)
        if reader:
            command = reader, *arguments(shlex.split(entry["command"])), "-Werror", *IGNORED
            chosen[name] = command, headers.get(target), path
            if target in headers:
                precompiled[command, headers[target]] = []

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        def run(command):
            return subprocess.run(command, cwd=build, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

        def problems(name):
            command, header, path = chosen[name]
            result = run([command[0], *precompiled.get((command, header), []), *command[1:], "-fsyntax-only", str(path)])
            return result.stdout if result.returncode else ""

        # What many sources of a program include is read once.
        for number, (command, header) in enumerate(precompiled):
            made = Path(folder) / str(number) / "precompiled.h.gch"
            made.parent.mkdir()
            result = run([*command, "-x", "c++-header", str(header), "-o", str(made)])
            tap.check(f"precompiled.h, {number}", result.stdout if result.returncode else "")
            precompiled[command, header] = (["-include-pch", str(made)] if command[0] in CLANG.values() else
                                            ["-I", str(made.parent), "-include", "precompiled.h"])
        for name, problem in zip(chosen, pool.map(problems, chosen)):
            tap.check(f"{chosen[name][0][0]}: {name}", problem)
    tap.finish()


if __name__ == "__main__":
    main()
