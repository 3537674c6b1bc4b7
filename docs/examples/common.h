/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the examples share: TRY ends the program with the library's own words if a call fails, and a count of
 * what is left at the end. */
#ifndef GPUMEM_EXAMPLES_COMMON_H
#define GPUMEM_EXAMPLES_COMMON_H

#include <gpumem/gpumem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gpumem_error error = GPUMEM_ERROR_INIT;

#define TRY(call)                                                                   \
  do {                                                                              \
    if (GPUMEM_FAILED(call)) {                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, error.message); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

static inline void print_live_objects(gpumem_instance instance) {
  gpumem_stats stats = GPUMEM_STATS_INIT;
  TRY(gpumem_stats_get(instance, &stats, &error));
  printf("live objects: %llu\n", (unsigned long long)(stats.live_count + stats.streams + stats.events));
}

#endif
