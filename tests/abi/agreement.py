#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes a C program that checks what the headers say twice. Usage: agreement.py OUTPUT HEADER...

- Each struct's _INIT macro gives the bytes of a zeroed struct with its size set. A struct that begins with struct_size and
  lacks the macro makes a program that does not compile.
- A flag is a 64-bit constant, so that its complement clears one bit of flags.
- Each function has the type that its PFN_ type says (else the program does not compile), and the member of the table
  from gpumem_table_get is that function.
"""

import sys
from pathlib import Path

import public_headers

# Callers zero it: they load the library and know one symbol only.
WITHOUT_INIT = {"gpumem_table"}
WITHOUT_MEMBER = {"gpumem_table_get"}

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

int main(void) {
  gpumem_table table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  check("the table is filled", "gpumem_table_get", gpumem_table_get(GPUMEM_VERSION, &table, NULL) == GPUMEM_SUCCESS);
"""
STRUCT = """\
  {{
    static const {name} from_macro = {macro};
    {name} zeroed;
    memset(&zeroed, 0, sizeof zeroed);
    zeroed.struct_size = sizeof zeroed;
    check("_INIT is a zeroed struct with its size set", "{name}", memcmp(&from_macro, &zeroed, sizeof zeroed) == 0);
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


def main():
    output, *headers = sys.argv[1:]
    structs = dict.fromkeys(public_headers.growing_structs(headers) + public_headers.init_macros(headers))
    body = [STRUCT.format(name=name, macro=name.upper() + "_INIT") for name in structs if name not in WITHOUT_INIT]
    body += [FLAG.format(name=name) for name in public_headers.flags(headers)]
    body += [(TYPE_ONLY if function.name in WITHOUT_MEMBER else FUNCTION).format(name=function.name)
             for function in public_headers.functions(headers)]
    Path(output).write_text(HEAD + "".join(body) + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
