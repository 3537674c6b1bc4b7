/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Text to a device and back. The README shows this program. */
#include <gpumem/gpumem.h>
#include <stdio.h>

int main(void) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_instance instance;
  gpumem_device device;
  void* memory;
  char sent[] = "to the device and back", received[sizeof sent];

  if (GPUMEM_FAILED(gpumem_instance_default(&instance, &error)) ||
      GPUMEM_FAILED(gpumem_device_get(instance, 0, &device, &error)) ||
      GPUMEM_FAILED(gpumem_malloc(device, GPUMEM_KIND_DEVICE, sizeof sent, &memory, &error)) ||
      GPUMEM_FAILED(gpumem_copy(instance, memory, sent, sizeof sent, NULL, &error)) ||
      GPUMEM_FAILED(gpumem_copy(instance, received, memory, sizeof sent, NULL, &error)) ||
      GPUMEM_FAILED(gpumem_free(instance, memory, &error))) {
    fprintf(stderr, "%s: %s\n", error.function, error.message);
    return 1;
  }
  printf("%s\n", received);
  return 0;
}
