#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares what the samples in C print with what they print in every language. Usage: samples.py PROGRAM..."""

import os
import subprocess
import sys
from pathlib import Path

from tap import Tap


def main():
    tap = Tap()
    for program in map(Path, sys.argv[1:]):
        name = program.name.removeprefix("example_")
        expected = Path(__file__).with_name("samples") / f"{name}.txt"
        result = subprocess.run([program], text=True, env={**os.environ, "GPUMEM_BACKEND": "host"},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        same = result.returncode == 0 and result.stdout == expected.read_text(encoding="utf-8")
        tap.check(name, "" if same else f"{result.stdout}exit status {result.returncode}")
    tap.finish()


if __name__ == "__main__":
    main()
