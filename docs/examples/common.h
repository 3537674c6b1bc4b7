/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the examples share: TRY ends the program with the library's own words if a call fails. */
#ifndef GPUMEM_EXAMPLES_COMMON_H
#define GPUMEM_EXAMPLES_COMMON_H

#include <gpumem/gpumem.h>
#include <stdio.h>
#include <stdlib.h>

static gpumem_error error = GPUMEM_ERROR_INIT;

#define TRY(call)                                                                   \
  do {                                                                              \
    if ((call) < 0) {                                                               \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, error.message); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

#endif
