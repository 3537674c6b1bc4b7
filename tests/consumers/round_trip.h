/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What each C consumer does: a thousand bytes to a device of the host backend and back. The including file
 * says by CALL how a function is reached: by its name, or through a table. */
#ifndef GPUMEM_TESTS_ROUND_TRIP_H
#define GPUMEM_TESTS_ROUND_TRIP_H

#include <gpumem/gpumem.h>
#include <stdio.h>
#include <string.h>

#define TRY(expression)                                                            \
  do {                                                                             \
    if (GPUMEM_FAILED(expression)) {                                               \
      fprintf(stderr, "%s: %s: %s\n", #expression, error.function, error.message); \
      return 1;                                                                    \
    }                                                                              \
  } while (0)

static int round_trip(void) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  gpumem_instance instance = NULL;
  gpumem_device device = NULL;
  void* memory = NULL;
  unsigned char sent[1000], received[1000];
  size_t i;

  for (i = 0; i < sizeof sent; ++i)
    sent[i] = (unsigned char)(i * 7);
  memset(received, 0, sizeof received);
  desc.backend = GPUMEM_BACKEND_HOST;
  TRY(CALL(gpumem_instance_open)(&desc, &instance, &error));
  TRY(CALL(gpumem_device_get)(instance, 0, &device, &error));
  TRY(CALL(gpumem_malloc)(device, GPUMEM_KIND_DEVICE, sizeof sent, &memory, &error));
  TRY(CALL(gpumem_copy)(instance, memory, sent, sizeof sent, NULL, &error));
  TRY(CALL(gpumem_copy)(instance, received, memory, sizeof sent, NULL, &error));
  TRY(CALL(gpumem_free)(instance, memory, &error));
  TRY(CALL(gpumem_instance_close)(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  if (memcmp(sent, received, sizeof sent) != 0) {
    fprintf(stderr, "the bytes came back changed\n");
    return 1;
  }
  if (CALL(gpumem_version)() != GPUMEM_VERSION) {
    fprintf(stderr, "library and headers are of different versions\n");
    return 1;
  }
  printf("gpumem %s: round trip good\n", CALL(gpumem_version_text)());
  return 0;
}

#endif
