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

import sys
from pathlib import Path

import description


def program(interface):
    lines = []
    for struct in interface.structs:
        name = struct.name
        lines.append(f'printf("struct {name} size %zu align %zu\\n", sizeof({name}), ALIGNMENT({name}));')
        lines += [f'printf("field {name}.{field.name} offset %zu size %zu\\n", offsetof({name}, {field.name}), '
                  f"sizeof((({name} *)0)->{field.name}));" for field in struct.fields]
    lines += [f'CONSTANT("{constant.name}", {constant.name});' for constant in interface.constants]
    lines += [f'puts("function {function.name}");' for function in interface.functions]
    return """\
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
  """ + "\n  ".join(lines) + "\n  return 0;\n}\n"


def main():
    Path(sys.argv[1]).write_text(program(description.Description(sys.argv[2:])), encoding="utf-8")


if __name__ == "__main__":
    main()
