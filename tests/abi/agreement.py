#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes a C program that checks what the headers say twice. Usage: agreement.py OUTPUT HEADER...

- Each struct's _INIT macro is, byte for byte, the zeroed struct with its size. A struct that begins with struct_size and
  lacks the macro makes a program that does not compile.
- A flag is a 64-bit constant, so that its complement clears one bit of flags.
- Each feature is known to gpumem_feature_supported().
- Each function has the type that its PFN_ type says (else the program does not compile), and the member of the table
  from gpumem_table_get is that function.
"""

import sys
from pathlib import Path

import description

# The struct that gpumem_table_get itself fills.
WITHOUT_INIT = {"gpumem_table"}
WITHOUT_MEMBER = {"gpumem_table_get"}
MAYBE_LEFT_OUT = {"GPUMEM_FEATURE_BACKEND_CUDA"}

HEAD = """\
/* Written by agreement.py. */
#include <gpumem/gpumem.h>
#include <stdio.h>
#include <string.h>

static int count, failures;

static void check(const char *what, const char *name, int good) {
  failures += !good;
  printf("%s %d - %s: %s\\n", good ? "ok" : "not ok", ++count, what, name);
}

static void compare(const char *what, const char *name, const void *initial, size_t size) {
  unsigned char zeroed[4096] = {0};
  memcpy(zeroed, &size, sizeof size);
  check(what, name, size <= sizeof zeroed && memcmp(initial, zeroed, size) == 0);
}

int main(void) {
  gpumem_table table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  check("the table is filled", "gpumem_table_get", gpumem_table_get(GPUMEM_VERSION, &table, NULL) == GPUMEM_SUCCESS);
"""
STRUCT = """\
  {{
    static const {name} from_macro = {macro};
    compare("_INIT is the zeroed struct with its size", "{name}", &from_macro, sizeof from_macro);
  }}
"""
FLAG = """\
  {{
    uint64_t flags = UINT64_MAX;
    flags &= ~{name};
    check("the complement of a flag clears one bit", "{name}",
          sizeof {name} == 8 && flags == UINT64_MAX - {name} && ({name} & ({name} - 1)) == 0);
  }}
"""
FEATURE = """\
  check("the feature is known", "{name}", gpumem_feature_supported({name}) == 1);
"""
FUNCTION = """\
  {{
    PFN_{name} function = {name};
    check("the table member is the function", "{name}", table.{name} == function);
  }}
"""
TYPE_ONLY = """\
  {{
    PFN_{name} function = {name};
    (void)function;
  }}
"""
TAIL = """\
  printf("1..%d\\n", count);
  return failures != 0;
}
"""


def program(interface):
    functions = [function.name for function in interface.functions]
    growing = [struct.name for struct in interface.structs if struct.grows and struct.name not in WITHOUT_INIT]
    body = [STRUCT.format(name=name, macro=name.upper() + "_INIT") for name in dict.fromkeys(growing + interface.initial_values)]
    flags = [constant for numbers in interface.numbers if numbers.flags for constant in numbers.constants]
    body += [FLAG.format(name=constant.name) for constant in flags]
    body += [FEATURE.format(name=constant.name) for constant in interface.constants
             if constant.name.startswith("GPUMEM_FEATURE_") and constant.name not in MAYBE_LEFT_OUT]
    body += [(TYPE_ONLY if name in WITHOUT_MEMBER else FUNCTION).format(name=name) for name in functions]
    return HEAD + "".join(body) + TAIL


def main():
    output, *headers = sys.argv[1:]
    Path(output).write_text(program(description.Description(headers)), encoding="utf-8")


if __name__ == "__main__":
    main()
