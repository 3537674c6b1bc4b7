#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Names each public function that a binding lacks, and names of C in the reference of Rust and Go. Usage: coverage.py SOURCE_ROOT HEADER...

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


# The sources whose comments are a reference for users, and how such a comment begins.
REFERENCES = {
    "Rust": ("bindings/rust/gpumem/src", "**/*.rs", r"\s*//[/!](.*)"),
    "Go": ("bindings/go/gpumem", "*.go", r".*?//( .*)"),
}
# What names C there on purpose.
NAMES_OF_C = (
    "the name of the status in C", "Name of the constant in C", 'Such as "GPUMEM_ERROR_BUSY"', 'assert_eq!(info.name, "GPUMEM_ERROR_BUSY")',
    "as the manual of",  # It describes the members of the JSON.
    "makeVersion is GPUMEM_MAKE_VERSION",  # Not exported.
    "// #",  # Lines of C.
)


def sources(root, folder, ending):
    # The handle classes of C# are the only ones to end their objects, the objects of C#, Go and Python to have their information, and the
    # calls of Rust and Go are what a program calls.
    offered = ("HandleClasses.cs", "ObjectClasses.cs", "objects.go", "_known.py", "calls.go", "calls.rs")
    generated = {root / name for name in generate.OUTPUTS if not name.endswith(offered)}
    for path in sorted((root / folder).rglob("*")):
        inside = path.relative_to(root / folder)
        if path not in generated and path.suffix in (ending, ".h", ".c") and not NOT_THE_BINDING & set(inside.parts) and "_test." not in path.name:
            # Comments are no use of a function.
            yield re.sub(r"/\*.*?\*/|(?://|#\s).*", " ", path.read_text(encoding="utf-8"))


def names_of_c(root, interface, folder, pattern, begin):
    """The lines of a reference that have names of C."""
    known = {item.name for items in (interface.functions, interface.constants, interface.structs) for item in items}
    for path in sorted((root / folder).glob(pattern)):
        if "_test." in path.name:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            comment = re.fullmatch(begin, line)
            if comment and not any(allowed in line for allowed in NAMES_OF_C):
                for name in re.findall(r"\b(?:gpumem|GPUMEM)_\w+", comment[1]):
                    if name in known:
                        yield f"{path.relative_to(root)}:{number}: {name}"


def errors_left_out(root):
    """The kinds of errors that a method of Rust does not mention, although it calls a function of C and lists its kinds."""
    kinds = generate.rust_kinds()
    may_fail = {}
    for path in description.HEADERS.glob("*.h"):
        for text, name in re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*GPUMEM_API [\w ]+?\**(gpumem_\w+)\(", path.read_text(encoding="utf-8"), re.DOTALL):
            may_fail[name] = {kinds.get(status, "Internal") for status in re.findall(r"\\retval GPUMEM_ERROR_(\w+)", text)}
    for path in sorted((root / "bindings/rust/gpumem/src").glob("*.rs")):
        for errors, name, body in re.findall(r"/// # Errors\n((?: *///.*\n)+)(?: *#\[.*\n)*\s*pub (?:unsafe )?fn (\w+)((?:(?! *///).*\n)*)",
                                             path.read_text(encoding="utf-8")):
            listed = set(re.findall(r"`ErrorKind::(\w+)`", errors))
            calls = set(re.findall(r"call!\((gpumem_\w+)", body))
            if len(calls) == 1 and re.search(r"otherwise|as the\s+(?:/// )?message says", errors):
                for kind in sorted(may_fail[calls.pop()] - listed):
                    yield f"{path.name}: {name}: ErrorKind::{kind} is not among its errors"


def main():
    root, tap = Path(sys.argv[1]), Tap()
    interface = description.Description(sys.argv[2:])
    functions = [function.name for function in interface.functions]
    for binding, (folder, ending) in BINDINGS.items():
        text = "\n".join(sources(root, folder, ending))
        # The bindings leave the prefix away where their language has namespaces for it; Go calls generated C of its own.
        uses = {name: len(re.findall(rf"\b(?:gpumem_(?:go_)?)?{name.removeprefix('gpumem_')}\b", text)) for name in functions}
        tap.check(f"{binding} has every function", [f"{name} is missing" for name, count in uses.items() if not count])
    text = re.sub(r"//.*", " ", (root / "capi/include/gpumem/gpumem.hpp").read_text(encoding="utf-8"))
    # The table is for those who do not link.
    tap.check("C++ has every function", [f"{name} is missing" for name in functions
                                         if name != generate.TABLE_GET and f"{name}(" not in text])
    for binding, reference in REFERENCES.items():
        tap.check(f"the reference of {binding} has its own names", list(names_of_c(root, interface, *reference)))
    tap.check("methods of Rust list the errors of what they call", list(errors_left_out(root)))
    tap.finish()


if __name__ == "__main__":
    main()
