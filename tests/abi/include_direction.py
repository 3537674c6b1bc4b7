#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Includes point downwards only, between layers (capi -> core -> contract, platform, base) and between the rooms of core.
No modules of core, each a header and its source, include each other in a circle. Usage: include_direction.py SOURCE_ROOT"""

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
# The rooms of core, from the ground up. A room includes itself and those before it.
ROOMS = ["object", "device", "memory", "stream", "copy", "buffer", "pool", "share/wire", "share/peer", "share/link",
         "share/ring", "instance"]
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
            if include[0] == '"' and ("/" not in name or layer == "capi") and (path.parent / name).is_file():
                continue  # A neighbour, or what an entry point has in a room below it.
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


def floor(name):
    room = name.rpartition("/")[0]
    return ROOMS.index(room) if room in ROOMS else -1


def core_includes(root):
    """Pairs of files of core, by their paths in it: who includes what."""
    core = Path(root) / "impl" / "core"
    for path in sorted(core.rglob("*")):
        if path.suffix in SUFFIXES:
            for include in description.includes(path):
                if include.startswith('"core/'):
                    yield path.relative_to(core).as_posix(), include[6:-1]


def wrong_rooms(root):
    problems = []
    for where, target in core_includes(root):
        rooms = [name.rpartition("/")[0] for name in (where, target)]
        unknown = [room for room in rooms if room not in ROOMS]
        if unknown:
            problems.append(f"core/{where}: includes core/{target}, and no room is called {unknown[0]!r}")
        elif floor(target) > floor(where):
            problems.append(f"core/{where}: {rooms[0]} must not include core/{target}")
    return problems


def circles(root):
    """The circles of modules, a line each: those that reach each other."""
    below = {}
    for where, target in core_includes(root):
        below.setdefault(where.rpartition(".")[0], set()).add(target.rpartition(".")[0])

    def reach(module):
        seen, new = set(), [module]
        while new:
            for target in below.get(new.pop(), set()) - seen:
                seen.add(target)
                new.append(target)
        return seen

    reached = {module: reach(module) for module in below}
    found = {frozenset(other for other in reached[module] if module in reached.get(other, ()))
             for module in below if module in reached[module]}
    return [f"a circle: {', '.join(sorted(circle))}" for circle in found if len(circle) > 1]




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
    with tempfile.TemporaryDirectory() as folder:
        for name, include in {"memory/a.h": "copy/b.h", "copy/b.h": "memory/a.h", "cellar/c.h": "memory/a.h"}.items():
            path = Path(folder) / "impl" / "core" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'#include "core/{include}"\n', encoding="utf-8")
        found = wrong_rooms(folder) + circles(folder)
        problems += [f"not noticed: {line}" for line in (
            "core/memory/a.h: memory must not include core/copy/b.h",
            "core/cellar/c.h: includes core/memory/a.h, and no room is called 'cellar'",
            "a circle: copy/b, memory/a") if line not in found]
    return problems


def main():
    tap = Tap()
    tap.check("the test notices wrong includes", self_check())
    tap.check("includes point downwards only", wrong_includes(sys.argv[1]))
    tap.check("the rooms of core include downwards only", wrong_rooms(sys.argv[1]))
    tap.check("no modules of core include each other in a circle", circles(sys.argv[1]))
    tap.finish()


if __name__ == "__main__":
    main()
