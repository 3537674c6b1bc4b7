#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares every place that spells the version with meson.build, which has it first. Prints the version, or a line for each
place that differs. Usage: versions.py SOURCE_ROOT"""

import re
import sys
from pathlib import Path

SOURCE = ("meson.build", r"^project\([^)]*?\bversion: '([^']*)'")
CRATE = r'^\[package\][^[]*?^version = "([^"]*)"'
# File, and where the version stands in it.
PLACES = [
    ("CHANGELOG.md", r"^## (\S+)"),
    ("bindings/csharp/src/GpuMem.csproj", r"<Version>([^<]*)</Version>"),
    ("bindings/python/gpumem/__init__.py", r'^__version__ = "([^"]*)"'),
    ("bindings/python/pyproject.toml", r'^version = "([^"]*)"'),
    ("bindings/rust/Cargo.lock", r'^name = "gpumem"\nversion = "([^"]*)"'),
    ("bindings/rust/Cargo.lock", r'^name = "gpumem-sys"\nversion = "([^"]*)"'),
    ("bindings/rust/gpumem-sys/Cargo.toml", CRATE),
    ("bindings/rust/gpumem/Cargo.toml", CRATE),
    ("bindings/rust/gpumem/Cargo.toml", r'^gpumem-sys = \{ version = "([^"]*)"'),
    ("docs/rust.md", r"/crates/gpumem-([0-9][^\"]*)\""),
    ("docs/rust.md", r"/crates/gpumem-sys-([0-9][^\"]*)\""),
    ("packaging/debian/changelog", r"\Agpumem \(([^-)]*)-"),
    ("packaging/rpm/gpumem.spec", r"^Version: +(\S+)"),
]
HEADER = "capi/include/gpumem/version.h"


def find(root, name, pattern):
    """The version that a file spells, or None."""
    match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else None


def header(root):
    text = (root / HEADER).read_text(encoding="utf-8")
    return ".".join(re.findall(r"^#define GPUMEM_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text, re.MULTILINE))


def problems(root):
    version = find(root, *SOURCE)
    if not version or not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield f"meson.build: the version is {version}; write three numbers, such as 0.1.0"
        return
    for name, found in [(HEADER, header(root)), *((name, find(root, name, pattern)) for name, pattern in PLACES)]:
        if found != version:
            yield f"{name}: the version is {found or 'not found'}; write {version}, which meson.build has"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    if found := list(problems(root)):
        sys.exit("\n".join(found))
    print(find(root, *SOURCE))


if __name__ == "__main__":
    main()
