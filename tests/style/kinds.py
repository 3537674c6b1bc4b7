#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""No code compares kinds of memory: only the table in impl/core/memory/kind.cpp names them, and code asks a row for a trait.
Usage: kinds.py SOURCE_ROOT"""

import re
import sys
import tempfile
from pathlib import Path

from tap import Tap

TABLE = "impl/core/memory/kind.cpp"
SUFFIXES = {".h", ".hpp", ".cpp", ".c"}
WRONG = {
    re.compile(r"\bGPUMEM_KIND_\w+"): "is named",
    re.compile(r"[=!]=\s*&?(?:core::)?kinds::\w+|&?\bkinds::\w+(?:\.kind)?\s*[=!]="): "is compared with",
}


def wrong_lines(root):
    root = Path(root)
    for path in sorted((root / "impl").rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix not in SUFFIXES or name == TABLE:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("//")[0]
            for pattern, what in WRONG.items():
                for found in pattern.findall(code):
                    yield f"{name}:{number}: {found.strip()} {what}; ask the kind's row for a trait"


def self_check():
    """Lines that compare kinds, planted in a small tree, are found; the right ones are not."""
    planted = {
        "impl/core/a.cpp": "if (region.kind() == GPUMEM_KIND_PINNED) return;",
        "impl/base/a.h": "case GPUMEM_KIND_DEVICE:",
        "impl/backends/host/a.cpp": "const bool pinned = &traits == &kinds::pinned;",
        "impl/core/b.cpp": "return core::kinds::device.kind != kind;",
    }
    right = {
        TABLE: "KindTraits{.kind = GPUMEM_KIND_DEVICE},",
        "impl/core/c.cpp": "// GPUMEM_KIND_PINNED is the caller's word for it.",
        "impl/core/d.cpp": "if (region.traits().pinned()) return range_taken(kinds::pinned);",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, line in {**planted, **right}.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line + "\n", encoding="utf-8")
        found = list(wrong_lines(folder))
    problems = [f"not noticed: {line}" for name, line in planted.items()
                if not any(text.startswith(f"{name}:1:") for text in found)]
    return problems + [f"wrongly refused: {text}" for text in found if text.split(":")[0] in right]


def main():
    root = Path(sys.argv[1])
    tap = Tap()
    tap.check("the test notices a comparison of kinds", self_check())
    tap.check("the table of kinds is where it is looked for",
              [] if "GPUMEM_KIND_" in (root / TABLE).read_text(encoding="utf-8") else [f"{TABLE} names no kind"])
    tap.check("no code compares kinds", wrong_lines(root))
    tap.finish()


if __name__ == "__main__":
    main()
