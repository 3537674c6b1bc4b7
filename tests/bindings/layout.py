#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes a C program that prints the layout of the interface: everything that a binding has to declare once more.
Usage: layout.py OUTPUT HEADER...

The program prints one line for each struct, field, constant and function, which the tests of the bindings compare with
their own declarations:
    struct NAME size N align N
    field STRUCT.FIELD offset N size N
    constant NAME VALUE
    function NAME
"""

import re
import sys
from pathlib import Path

import public_headers


def structs(text):
    """Pairs of a struct's name and the names of its fields."""
    for name, body in re.findall(r"typedef struct (gpumem_\w+) \{(.*?)\}", text, re.DOTALL):
        yield name, [re.search(r"(\w+)\s*(?:\[\w+\])?$", field.strip()).group(1)
                     for field in body.split(";") if field.strip()]


def constants(text):
    """The macros that stand for a number."""
    for name, value in re.findall(r"^#define (GPUMEM_\w+)[ \t]+(\S[^\n]*)$", text, re.MULTILINE):
        if not name.endswith("_INIT") and not value.startswith(("__attribute__", "\\")):
            yield name


def main():
    headers = sys.argv[2:]
    text = "\n".join(public_headers.without_comments(Path(path).read_text(encoding="utf-8")) for path in headers)
    lines = []
    for name, fields in structs(text):
        lines.append(f'printf("struct {name} size %zu align %zu\\n", sizeof({name}), ALIGNMENT({name}));')
        lines += [f'printf("field {name}.{field} offset %zu size %zu\\n", offsetof({name}, {field}), '
                  f"sizeof((({name} *)0)->{field}));" for field in fields]
    lines += [f'CONSTANT("{name}", {name});' for name in constants(text)]
    lines += [f'puts("function {function.name}");' for function in public_headers.functions(headers)]
    Path(sys.argv[1]).write_text("""\
#include <gpumem/gpumem.h>
#include <inttypes.h>
#include <stdio.h>
#define ALIGNMENT(type) offsetof(struct { char first; type second; }, second)
/* The greatest constant needs all 64 bits of an unsigned number, the others a sign. */
#define CONSTANT(name, value)                                   \\
  do {                                                          \\
    if ((value) < 1)                                            \\
      printf("constant %s %" PRId64 "\\n", name, (int64_t)(value)); \\
    else                                                        \\
      printf("constant %s %" PRIu64 "\\n", name, (uint64_t)(value)); \\
  } while (0)
int main(void) {
  """ + "\n  ".join(lines) + "\n  return 0;\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
