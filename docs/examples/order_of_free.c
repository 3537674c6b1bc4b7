/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Work in a stream, and the order in which its memory is freed. See docs/threads-fork-exit.md, errors.md. */
#include "common.h"

int main(void) {
  gpumem_instance_desc open_desc = GPUMEM_INSTANCE_DESC_INIT;
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  TRY(gpumem_instance_open(&open_desc, &instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &stream, &error));

  uint64_t size = 1 << 20;
  void *host, *memory;
  TRY(gpumem_malloc(device, GPUMEM_KIND_PINNED, size, &host, &error));
  TRY(gpumem_malloc(device, GPUMEM_KIND_DEVICE, size, &memory, &error));

  TRY(gpumem_fill_async(stream, memory, size, 7, 1, &error));
  TRY(gpumem_copy_async(stream, host, memory, size, NULL, &error));

  /* Too early: what lives is listed, and nothing changes. */
  if (gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error) != GPUMEM_ERROR_BUSY) return 1;
  printf("%s\n", error.message);

  /* 1. Observe that the work is complete. */
  TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
  printf("the last byte is %d\n", ((char*)host)[size - 1]);
  /* 2. Free the memory. */
  TRY(gpumem_free(instance, memory, &error));
  TRY(gpumem_free(instance, host, &error));
  /* 3. Destroy the stream. */
  TRY(gpumem_stream_destroy(stream, &error));
  /* 4. Close. This refuses, and lists what was forgotten, if anything still lives. */
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  return 0;
}
