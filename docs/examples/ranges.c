/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* An array that grows in place: addresses first, memory when it is needed. See docs/virtual-memory.md. */
#include "common.h"

/* Maps one more block behind the `used` bytes of a range, and gives the device access. */
static uint64_t grow(gpumem_device device, gpumem_range range, uint64_t used, uint64_t block) {
  gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
  desc.size = block;
  gpumem_physical physical;
  TRY(gpumem_physical_create(device, &desc, &physical, &error));
  TRY(gpumem_range_map(range, used, &physical, 1, &error));
  /* The mapping keeps the memory alive. */
  TRY(gpumem_physical_release(physical, &error));

  gpumem_access_desc access = GPUMEM_ACCESS_DESC_INIT;
  access.location = GPUMEM_LOCATION_DEVICE;
  access.location_id = 0;
  access.access = GPUMEM_ACCESS_READWRITE;
  TRY(gpumem_range_set_access(range, used, block, &access, 1, &error));
  return used + block;
}

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  /* Memory comes in blocks of this size or a multiple. */
  gpumem_physical_desc any = GPUMEM_PHYSICAL_DESC_INIT;
  uint64_t block;
  TRY(gpumem_physical_get_granularity(device, &any, NULL, &block, &error));

  /* A thousand blocks of addresses, and no memory. */
  gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
  desc.size = 1000 * block;
  desc.name = "array";
  gpumem_range range;
  TRY(gpumem_range_reserve(instance, &desc, &range, &error));
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  TRY(gpumem_range_get_info(range, &info, &error));
  char* const array = info.base;

  uint64_t used = grow(device, range, 0, block);
  TRY(gpumem_fill(instance, array, used, 1, 1, &error));

  /* The first block stays where it is, with what is in it. */
  used = grow(device, range, used, block);
  TRY(gpumem_fill(instance, array + used / 2, used / 2, 2, 1, &error));

  /* A copy may cross from one block to the next. */
  char bytes[2];
  TRY(gpumem_copy(instance, bytes, array + block - 1, sizeof bytes, NULL, &error));
  printf("before and after the seam: %d, %d\n", bytes[0], bytes[1]);

  /* Give the memory back, then the addresses. */
  TRY(gpumem_range_unmap(range, 0, used, &error));
  TRY(gpumem_range_release(range, &error));
  return bytes[0] != 1 || bytes[1] != 2;
}
