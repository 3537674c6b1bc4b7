/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Each kind of memory, made with a descriptor. See docs/choosing.md. */
#include "common.h"

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  /* Pinned memory, write-combined if that can be had. */
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_PINNED;
  desc.size = 1 << 20;
  desc.prefer = GPUMEM_MEMORY_WRITE_COMBINED;
  desc.name = "staging";
  gpumem_memory staging;
  TRY(gpumem_memory_create(device, &desc, &staging, &error));

  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  TRY(gpumem_memory_get_info(staging, &info, &error));
  if (info.granted_flags & GPUMEM_MEMORY_WRITE_COMBINED) puts("write-combined: write it, do not read it");

  /* Memory that exists already, pinned where it is and reachable by the device. */
  size_t size = 1 << 20;
  char* mine = calloc(1, size);
  if (mine == NULL) return 1;
  TRY(gpumem_register(device, mine, size, GPUMEM_MEMORY_MAPPED, &error));
  void* device_pointer;
  TRY(gpumem_pointer_get_device_pointer(device, mine, &device_pointer, &error));

  /* The device writes it in place: no copy back. */
  TRY(gpumem_fill(instance, device_pointer, size, 'x', 1, &error));
  printf("the CPU sees %c\n", mine[0]);

  TRY(gpumem_unregister(instance, mine, &error));
  free(mine);
  TRY(gpumem_memory_destroy(staging, &error));
  return 0;
}
