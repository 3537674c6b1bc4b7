/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A program without file descriptors, which prints how the library names the system's error. */
#define _POSIX_C_SOURCE 200809L
#include <gpumem/gpumem.h>
#include <stdio.h>
#include <sys/resource.h>

int main(void) {
  const struct rlimit none = {0, 0};
  gpumem_instance_desc options = GPUMEM_INSTANCE_DESC_INIT;
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  gpumem_instance instance = NULL;
  gpumem_device device = NULL;
  gpumem_memory memory = NULL;
  gpumem_error error = GPUMEM_ERROR_INIT;
  options.backend = GPUMEM_BACKEND_HOST;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = 4096;
  if (gpumem_instance_open(&options, &instance, &error) != GPUMEM_SUCCESS ||
      gpumem_device_get(instance, 0, &device, &error) != GPUMEM_SUCCESS ||
      setrlimit(RLIMIT_NOFILE, &none) != 0) {
    printf("cannot begin: %s\n", error.message);
    return 1;
  }
  if (gpumem_memory_create(device, &desc, &memory, &error) == GPUMEM_SUCCESS) return 1;
  printf("%s: %s\n", error.native_name, error.message);
  return 0;
}
