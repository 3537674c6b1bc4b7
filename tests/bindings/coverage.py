#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Names each public function that a binding lacks. Usage: coverage.py SOURCE_ROOT HEADER...

A binding has a function when its sources name it twice: once to declare it, and once to call it.
"""

import re
import sys
from pathlib import Path

import public_headers
from tap import Tap

# Where the sources of each binding lie, how they end, and which of their folders hold no part of the binding itself.
BINDINGS = {
    "Rust": ("bindings/rust", ".rs"),
    "Go": ("bindings/go", ".go"),
    "CSharp": ("bindings/csharp", ".cs"),
    "Python": ("bindings/python", ".py"),
}
NOT_THE_BINDING = {"tests", "test", "examples", "benches", "bench", "target", "obj", "bin"}


def sources(folder, ending):
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix in (ending, ".h", ".c") and not NOT_THE_BINDING & set(inside.parts) and "_test." not in path.name:
            # Comments are no use of a function.
            yield re.sub(r"/\*.*?\*/|(?://|#\s).*", " ", path.read_text(encoding="utf-8"))


def main():
    root, tap = Path(sys.argv[1]), Tap()
    functions = [function.name for function in public_headers.functions(sys.argv[2:])]
    for binding, (folder, ending) in BINDINGS.items():
        text = "\n".join(sources(root / folder, ending))
        # The bindings leave the prefix away where their language has namespaces for it.
        uses = {name: len(re.findall(rf"\b(?:gpumem_)?{name.removeprefix('gpumem_')}\b", text)) for name in functions}
        tap.check(f"{binding} has every function", [f"{name} is missing" for name, count in uses.items() if count < 2])
    tap.finish()


if __name__ == "__main__":
    main()
