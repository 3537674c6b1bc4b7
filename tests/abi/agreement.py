#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes a C program that checks what the headers say twice. Usage: agreement.py OUTPUT HEADER...

- Each struct's _INIT macro and _init function agree, byte for byte. A struct that begins with struct_size and lacks one
  of the two makes a program that does not compile.
- Each function has the type that its PFN_ type says (else the program does not compile), and the member of the table
  from gpumem_table_get is that function.
"""

import sys
from pathlib import Path

import public_headers

# The struct that gpumem_table_get itself fills; a program that knows one symbol only could not call its init function.
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

static void compare(const char *name, const void *macro, const void *function, size_t size) {
  size_t reported;
  memcpy(&reported, function, sizeof reported);
  check("_INIT and _init agree", name, reported == size && memcmp(macro, function, size) == 0);
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
    {name} from_function;
    memset(&from_function, 0xA5, sizeof from_function);
    {name}_init(&from_function);
    compare("{name}", &from_macro, &from_function, sizeof from_macro);
    {name}_init(NULL);
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
    body += [(TYPE_ONLY if function.name in WITHOUT_MEMBER else FUNCTION).format(name=function.name)
             for function in public_headers.functions(headers)]
    Path(output).write_text(HEAD + "".join(body) + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
