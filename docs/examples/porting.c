/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What a program that called the CUDA runtime calls here. See docs/porting.md. */
#include "common.h"

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  char host[] = "the same bytes", received[sizeof host];
  size_t size = sizeof host;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  gpumem_stream stream;
  void* memory;
  TRY(gpumem_stream_create(device, NULL, &stream, &error));
  TRY(gpumem_malloc(device, GPUMEM_KIND_DEVICE, size, &memory, &error));
  TRY(gpumem_copy_async(stream, memory, host, size, NULL, &error));
  TRY(gpumem_copy_async(stream, received, memory, size, NULL, &error));
  TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
  TRY(gpumem_free(instance, memory, &error));
  TRY(gpumem_stream_destroy(stream, &error));

  printf("%s\n", received);
  print_live_objects(instance);
  return strcmp(received, host) != 0;
}
