#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Clang has no warning about the sources that no configuration compiles with it. Usage: second_compiler.py SOURCE_ROOT BUILD_ROOT

The sanitizers' configurations are built by Clang, but without these. Here it reads each source of the build, with its own
arguments but without precompiled headers, and makes no code.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tap import Tap

# What asan compiles, but for the exceptions.
SANITIZED = re.compile(r"(impl|capi|bindings/cli|tests/(unit|conformance|sequences|faults|processes|fake_cuda|bindings/cpp))/")
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
    chosen = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = Path(os.path.normpath(Path(entry["directory"]) / entry["file"]))
        if path.suffix in compilers:
            name = shown(path, source, build)
            if not SANITIZED.match(name) or name in EXCEPTIONS:
                chosen[name] = [compilers[path.suffix], *arguments(shlex.split(entry["command"])), "-Werror",
                                "-Wno-unknown-warning-option", "-fsyntax-only", str(path)]

    def problems(name):
        result = subprocess.run(chosen[name], cwd=build, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return result.stdout if result.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, problem in zip(chosen, pool.map(problems, chosen)):
            tap.check(name, problem)
    tap.finish()


if __name__ == "__main__":
    main()
