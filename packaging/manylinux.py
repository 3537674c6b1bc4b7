#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints the platform tag of a wheel with the given libraries: the oldest manylinux that has all that they need.
Usage: manylinux.py LIBRARY..."""

import re
import subprocess
import sys
from pathlib import Path

# What each manylinux has (PEP 600), and what the wheel itself brings.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
          "libstdc++.so.6", "libgcc_s.so.1"}
# The C++ runtimes of manylinux: glibc, and the newest versions of their symbols.
RUNTIMES = [((2, 28), {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}),
            ((2, 34), {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)})]
MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}


def read(*options):
    return subprocess.run(["readelf", "--wide", *options], text=True, capture_output=True, check=True, env={"LC_ALL": "C"}).stdout


def needs(path):
    """(machine, libraries, versions of their symbols)"""
    machine = re.search(r"^ *Machine: *(.*)$", read("--file-header", path), re.MULTILINE)[1]
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", read("--dynamic", path)))
    versions = re.findall(r" Name: (\S+) +Flags: \S+ +Version:", read("--version-info", path))
    return MACHINES.get(machine, machine), libraries, versions


def main():
    paths = [Path(name) for name in sys.argv[1:]]
    if not paths:
        sys.exit(__doc__)
    carried, glibc, machines = {"libgpumem.so.0"}, (2, 5), set()
    for path in paths:
        try:
            machine, libraries, versions = needs(path)
        except subprocess.CalledProcessError as problem:
            sys.exit(f"{path} is no library: {problem.stderr.strip()}")
        machines.add(machine)
        for name in sorted(libraries - SYSTEM - carried):
            sys.exit(f"{path} needs {name}, which no manylinux has: link it statically")
        for version in sorted(versions):
            name, number = re.fullmatch(r"(\w+?)_([0-9.]+)|.*", version).groups()
            if name == "GPUMEM":
                continue
            number = tuple(map(int, number.split("."))) if number else ()
            if name == "GLIBC":
                glibc = max(glibc, number[:2])
                continue
            having = [oldest for oldest, newest in RUNTIMES if () < number <= newest.get(name, ())]
            if having:
                glibc = max(glibc, having[0])
            else:
                sys.exit(f"{path} needs {version}, which manylinux_2_34 lacks: build with -Dstatic_runtime=true or an older compiler")
    if len(machines) != 1:
        sys.exit("the libraries are for several machines: " + ", ".join(sorted(machines)))
    print(f"manylinux_{glibc[0]}_{glibc[1]}_{machines.pop()}")


if __name__ == "__main__":
    main()
