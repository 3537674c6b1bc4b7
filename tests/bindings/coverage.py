#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Names each public function that a binding lacks. Usage: coverage.py SOURCE_ROOT HEADER...

A binding has a function when its sources use it; the raw declarations are generated and do not count. The header of C++ calls
it, in a generated member or by hand.
"""

import re
import sys
from pathlib import Path

import description
import generate
from tap import Tap

# Where the sources of each binding lie, how they end, and which of their folders hold no part of the binding itself.
BINDINGS = {
    "Rust": ("bindings/rust", ".rs"),
    "Go": ("bindings/go", ".go"),
    "CSharp": ("bindings/csharp", ".cs"),
    "Python": ("bindings/python", ".py"),
}
NOT_THE_BINDING = {"tests", "test", "examples", "benches", "bench", "target", "obj", "bin"}
# What translates texts of errors uses no function.
NOT_THE_BINDING |= {"words.rs"}


def sources(root, folder, ending):
    generated = {root / name for name in generate.OUTPUTS}
    for path in sorted((root / folder).rglob("*")):
        inside = path.relative_to(root / folder)
        if path not in generated and path.suffix in (ending, ".h", ".c") and not NOT_THE_BINDING & set(inside.parts) and "_test." not in path.name:
            # Comments are no use of a function.
            yield re.sub(r"/\*.*?\*/|(?://|#\s).*", " ", path.read_text(encoding="utf-8"))


def main():
    root, tap = Path(sys.argv[1]), Tap()
    functions = [function.name for function in description.Description(sys.argv[2:]).functions]
    for binding, (folder, ending) in BINDINGS.items():
        text = "\n".join(sources(root, folder, ending))
        # The bindings leave the prefix away where their language has namespaces for it; Go calls generated C of its own.
        uses = {name: len(re.findall(rf"\b(?:gpumem_(?:go_)?)?{name.removeprefix('gpumem_')}\b", text)) for name in functions}
        tap.check(f"{binding} has every function", [f"{name} is missing" for name, count in uses.items() if not count])
    text = re.sub(r"//.*", " ", (root / "capi/include/gpumem/gpumem.hpp").read_text(encoding="utf-8"))
    # The table is for those who do not link.
    tap.check("C++ has every function", [f"{name} is missing" for name in functions
                                         if name != generate.TABLE_GET and f"{name}(" not in text])
    tap.finish()


if __name__ == "__main__":
    main()
