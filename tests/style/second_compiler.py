#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Clang has no warning about the sources that no configuration compiles with it. Usage: second_compiler.py SOURCE_ROOT BUILD_ROOT

The sanitizers' configurations are built by Clang, but without these. Here it reads each source of the build, with its own
arguments, and makes no code.
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
# Headers, macros, language and warnings. How code is made does not matter.
KEPT = re.compile(r"-(I|isystem|D|U|std=|W(?!unused-command-line|l,))")


def arguments(words):
    """Those of a compile command that Clang is to know."""
    kept, words = [], iter(words)
    for word in words:
        if KEPT.match(word):
            kept += [word, next(words)] if word in ("-I", "-isystem", "-D", "-U") else [word]
    return kept


def shown(path, source, build):
    """The name of a source; generated ones lie in the build folder, which may be inside the source."""
    return str(path.relative_to(build if path.is_relative_to(build) else source))


def main():
    source, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    tap = Tap()
    compilers = {".c": "clang", ".cpp": "clang++"}
    if not all(shutil.which(compiler) for compiler in compilers.values()):
        tap.skip("Clang has no warning", "clang is not installed")
        tap.finish()
    chosen, precompiled = {}, {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = Path(os.path.normpath(Path(entry["directory"]) / entry["file"]))
        if path.suffix in compilers:
            name = shown(path, source, build)
            if not SANITIZED.match(name) or name in EXCEPTIONS:
                words = shlex.split(entry["command"])
                chosen[name] = (compilers[path.suffix], *arguments(words), "-Werror", "-Wno-unknown-warning-option"), path
                if "precompiled.h" in words:
                    precompiled.setdefault(chosen[name][0], None)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        def run(command):
            return subprocess.run(command, cwd=build, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

        def problems(name):
            command, path = chosen[name]
            header = ["-include-pch", precompiled[command]] if command in precompiled else []
            result = run([*command, *header, "-fsyntax-only", str(path)])
            return result.stdout if result.returncode else ""

        # What many sources of a program include is read once.
        for number, command in enumerate(precompiled):
            precompiled[command] = str(Path(folder) / f"{number}.pch")
            result = run([*command, "-x", "c++-header", str(source / "impl/precompiled.h"), "-o", precompiled[command]])
            tap.check(f"precompiled.h, {number}", result.stdout if result.returncode else "")
        for name, problem in zip(chosen, pool.map(problems, chosen)):
            tap.check(name, problem)
    tap.finish()


if __name__ == "__main__":
    main()
