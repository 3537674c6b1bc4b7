#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Includes point downwards only: capi -> core -> contract, platform, base. Usage: include_direction.py SOURCE_ROOT"""

import sys
import tempfile
from pathlib import Path

from tap import Tap
import description

# What each layer may include, its own folder aside. `public` are the installed headers (types and constants).
ALLOWED = {
    "capi": {"core", "contract", "platform", "base", "public"},
    "core": {"contract", "platform", "base", "public"},
    "backends": {"contract", "platform", "base", "public"},
    "contract": {"platform", "base", "public"},
    "platform": {"base"},
    "base": {"public"},
}
SUFFIXES = {".h", ".hpp", ".cpp", ".c"}


def layer_of(name):
    """Layer of a path relative to impl/, as it stands in an include line: `backends/cuda` for a concrete backend."""
    parts = name.split("/")
    if parts[0] == "gpumem":
        return "public"
    return "/".join(parts[:2]) if parts[0] == "backends" else parts[0]


def wrong_includes(root):
    root = Path(root)
    problems, users_of_backends = [], set()
    files = [(path, layer_of(path.relative_to(root / "impl").as_posix())) for path in (root / "impl").rglob("*")]
    files += [(path, "capi") for path in (root / "capi" / "src").rglob("*")]
    for path, layer in sorted(files):
        if path.suffix not in SUFFIXES:
            continue
        where = path.relative_to(root)
        for include in description.includes(path):
            name = include[1:-1]
            target = layer_of(name)
            known = target == "public" or target.split("/")[0] in ALLOWED
            if include[0] == "<" and not known:
                continue  # The system's.
            if include[0] == '"' and "/" not in name and (path.parent / name).is_file():
                continue  # A neighbour.
            if not known or ".." in name:
                problems.append(f"{where}: {include} is not written from impl/ or as a system header")
            elif target == layer:
                continue
            elif layer == "core" and target.startswith("backends/"):
                users_of_backends.add(where.as_posix())
            elif target not in ALLOWED[layer.split("/")[0]]:
                problems.append(f"{where}: {layer} must not include {include}")
    if len(users_of_backends) > 1:
        problems.append("more than one file in core names a concrete backend: " + ", ".join(sorted(users_of_backends)))
    return problems


def self_check():
    """Each kind of wrong arrow, planted in a small tree, is found; the right ones are not."""
    planted = {
        "impl/base/a.h": "core/x.h",
        "impl/platform/a.h": "contract/x.h",
        "impl/contract/a.h": "core/x.h",
        "impl/backends/host/a.cpp": "backends/cuda/x.h",
        "impl/backends/cuda/a.cpp": "core/x.h",
        "impl/core/a.cpp": "../capi/src/x.h",
        "capi/src/a.cpp": "backends/host/x.h",
    }
    right = {
        "impl/core/only.cpp": "backends/host/x.h",
        "impl/backends/host/b.cpp": "backends/host/x.h",
        "impl/core/b.cpp": "contract/x.h",
        "impl/contract/b.h": "platform/x.h",
        "capi/src/b.cpp": "core/x.h",
        "impl/base/b.cpp": "gpumem/status.h",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, include in {**planted, **right}.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'#include <vector>\n#include "{include}"\n', encoding="utf-8")
        found = wrong_includes(folder)
        problems = [f"not noticed: {name} includes {include}" for name, include in planted.items()
                    if not any(line.startswith(name + ":") for line in found)]
        problems += [f"wrongly refused: {line}" for line in found if line.split(":")[0] in right]
        second = Path(folder) / "impl/core/second.cpp"
        second.write_text('#include "backends/cuda/x.h"\n', encoding="utf-8")
        if not any("more than one" in line for line in wrong_includes(folder)):
            problems.append("not noticed: two files of core that name a concrete backend")
        return problems


def main():
    tap = Tap()
    tap.check("the test notices wrong includes", self_check())
    tap.check("includes point downwards only", wrong_includes(sys.argv[1]))
    tap.finish()


if __name__ == "__main__":
    main()
