#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes a program in C that calls as one does which was compiled with other headers than the library: it passes each
struct that grows, to each function that takes it, with the size that the headers of the program give. Used by baseline.py.

The other arguments are of the right sort, not more: only calls that query must answer.
"""

# Arguments by name or type.
NAMED = {"size": "1", "count": "1", "width": "1", "height": "1", "destination_pitch": "1", "source_pitch": "1", "fd": "-1",
         "socket_fd": "-1", "way": "GPUMEM_SHARE_WAY_LEGACY", "version": "GPUMEM_VERSION", "name": '"name"'}
TYPED = {"gpumem_kind": "GPUMEM_KIND_DEVICE", "gpumem_backend": "GPUMEM_BACKEND_HOST", "gpumem_capability": "GPUMEM_CAPABILITY_UVA"}
# What a pointer of a query points to.
POINTERS = {"gpumem_pool_get_block_info": "live.block", "gpumem_range_get_mapping": "live.mapped", "gpumem_managed_get_info": "live.managed"}
# What needs a second process, a message or a file to answer.
UNANSWERED = {"gpumem_memory_get_import_info", "gpumem_ring_wait", "gpumem_copy_file"}

HEAD = """\
/* Written by old_caller.py. */
#include "old_caller.h"

int main(int argc, char **argv) {
  (void)argc;
  make_objects(argv[0]);
"""
TAIL = """\
  printf("1..%d\\n", count);
  return failures != 0;
}
"""


def argument(interface, function, parameter, given):
    base, stars, struct = parameter.type.base, len(parameter.type.stars), interface.struct(parameter.type.base)
    if parameter is given:
        return "&given.it"
    if base == "gpumem_error":
        return "&error.it"
    if struct and struct.grows:
        return f"filled(sizeof({base}))"
    if stars == 0 and interface.is_handle(base):
        if parameter.name == "peer":  # for what is asked about a pair of devices
            return "NULL"
        return f"live.{base.removeprefix('gpumem_')}"
    if base == "gpumem_share_handle":
        return "&live.handle"
    if str(parameter.type) == "const void *":
        return POINTERS.get(function.name, "live.pinned")
    if stars:
        return NAMED.get(parameter.name, "(void *)&scratch")
    return TYPED.get(base, NAMED.get(parameter.name, "0"))


def program(interface):
    lines = []
    for function in interface.functions:
        for given in function.parameters:
            struct = interface.struct(given.type.base)
            if not struct or not struct.grows or struct.name == "gpumem_error":
                continue
            arguments = [argument(interface, function, parameter, given) for parameter in function.parameters]
            answers = given.type.stars == (False,) and function.name not in UNANSWERED
            lines.append(f'TAKES("{function.name}", {struct.name}, {int(answers)}, {function.name}({", ".join(arguments)}));')
    return HEAD + "".join(f"  {line}\n" for line in lines) + TAIL
