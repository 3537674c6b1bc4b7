#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The code of the shared library is small enough to embed. Usage: size.py LIBRARY OPTIMIZATION CPU_FAMILY"""

import subprocess
import sys

from tap import Tap

LIMIT = 1 << 20


def main():
    library, optimization, family = sys.argv[1:]
    tap = Tap()
    name = f".text has less than {LIMIT} bytes"
    lines = subprocess.run(["size", "-A", library], text=True, capture_output=True, check=True).stdout.splitlines()
    [size] = [int(line.split()[1]) for line in lines if line.startswith(".text ")]
    tap.measured(f".text of libgpumem.so at {optimization}: {size} bytes")
    if optimization != "-O2":
        tap.skip(name, f"this library was built with {optimization}; the limit is for -O2, as tests/run --all builds it")
    elif family != "x86_64":
        tap.skip(name, f"the limit is for x86_64, not {family}")
    else:
        tap.check(name, [f"it has {size}; see which sources impl/meson.build calls hot"] if size >= LIMIT else [])
    tap.finish()


if __name__ == "__main__":
    main()
