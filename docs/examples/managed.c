/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Managed memory: one address for the CPU and the device. See docs/managed-memory.md. */
#include "common.h"

int main(void) {
  enum { SIZE = 8 << 20 };
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  void* shared;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &stream, &error));
  TRY(gpumem_malloc(device, GPUMEM_KIND_MANAGED, SIZE, &shared, &error));

  /* The CPU writes, and the device reads and writes, at the same address. */
  TRY(gpumem_managed_begin_host_access(instance, shared, &error));
  memset(shared, 1, SIZE);
  TRY(gpumem_managed_end_host_access(instance, shared, &error));
  TRY(gpumem_fill_async(stream, shared, SIZE / 2, 2, 1, &error));

  /* Move the pages before they are needed. Where that is not possible, the status is GPUMEM_NO_EFFECT. */
  TRY(gpumem_managed_prefetch(stream, shared, SIZE, GPUMEM_LOCATION_DEVICE, 0, &error));

  /* All readers may have a copy of the second half. */
  char* table = (char*)shared + SIZE / 2;
  TRY(gpumem_managed_advise(instance, table, SIZE / 2, GPUMEM_ADVICE_SET_READ_MOSTLY, 0, 0, &error));

  gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
  TRY(gpumem_managed_get_info(instance, table, SIZE / 2, &info, &error));
  printf("the table is %s\n", info.read_mostly ? "read-mostly" : "ordinary");

  /* Ask for the CPU's turn, and give it back. */
  TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
  TRY(gpumem_managed_begin_host_access(instance, shared, &error));
  int right = ((char*)shared)[0] == 2 && table[0] == 1;
  TRY(gpumem_managed_end_host_access(instance, shared, &error));

  TRY(gpumem_free(instance, shared, &error));
  TRY(gpumem_stream_destroy(stream, &error));
  return !right;
}
