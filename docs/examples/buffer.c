/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A buffer that grows in place and sleeps. See docs/virtual-memory.md. */
#include "common.h"

int main(void) {
  enum { FIRST = 4 << 20 };
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = FIRST;
  desc.reserve = UINT64_C(1) << 30; /* addresses cost nothing */
  desc.name = "weights";
  gpumem_buffer buffer;
  TRY(gpumem_buffer_create(device, &desc, &buffer, &error));

  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  TRY(gpumem_buffer_get_info(buffer, &info, &error));
  char* const weights = info.base;
  TRY(gpumem_fill(instance, weights, FIRST, 1, 1, &error));

  /* Twice as large, at the same address, with the same bytes. */
  TRY(gpumem_buffer_resize(buffer, 2 * FIRST, &error));
  TRY(gpumem_fill(instance, weights + FIRST, FIRST, 2, 1, &error));

  /* From now on, a thread keeps memory ready for the next 16 MiB. */
  TRY(gpumem_buffer_set_ahead(buffer, UINT64_C(16) << 20, &error));

  gpumem_sleep_desc sleep = GPUMEM_SLEEP_DESC_INIT;
  sleep.content = GPUMEM_CONTENT_PAGEABLE;
  TRY(gpumem_buffer_sleep(buffer, &sleep, &error));
  /* The device has its memory back. */
  TRY(gpumem_buffer_wake(buffer, NULL, &error));

  char bytes[2];
  TRY(gpumem_copy(instance, bytes, weights + FIRST - 1, sizeof bytes, NULL, &error));
  printf("after waking: %d, %d\n", bytes[0], bytes[1]);
  TRY(gpumem_buffer_destroy(buffer, &error));
  return bytes[0] != 1 || bytes[1] != 2;
}
