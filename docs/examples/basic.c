/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A megabyte from pinned memory to the device and back. The same program stands in the examples of each
 * binding. */
#include "common.h"

static uint8_t* pinned(gpumem_device device, uint64_t size) {
  void* pointer;
  TRY(gpumem_malloc(device, GPUMEM_KIND_PINNED, size, &pointer, &error));
  return pointer;
}

int main(void) {
  enum { SIZE = 1 << 20 };
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  uint8_t* sent = pinned(device, SIZE);
  uint8_t* received = pinned(device, SIZE);
  void* there;
  TRY(gpumem_malloc(device, GPUMEM_KIND_DEVICE, SIZE, &there, &error));

  for (int i = 0; i < SIZE; ++i)
    sent[i] = (uint8_t)(i * 7);
  TRY(gpumem_copy(instance, there, sent, SIZE, NULL, &error));
  TRY(gpumem_copy(instance, received, there, SIZE, NULL, &error));
  int equal = memcmp(sent, received, SIZE) == 0;
  printf("basic: %d bytes to the device and back, content %s\n", SIZE, equal ? "equal" : "different");

  TRY(gpumem_free(instance, there, &error));
  TRY(gpumem_free(instance, received, &error));
  TRY(gpumem_free(instance, sent, &error));
  print_live_objects(instance);
  return !equal;
}
