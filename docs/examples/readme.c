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

  if (gpumem_instance_default(&instance, &error) || gpumem_device_get(instance, 0, &device, &error) ||
      gpumem_malloc(device, GPUMEM_KIND_DEVICE, sizeof sent, &memory, &error) ||
      gpumem_copy(instance, NULL, memory, sent, sizeof sent, NULL, &error) ||
      gpumem_copy(instance, NULL, received, memory, sizeof sent, NULL, &error) ||
      gpumem_free(instance, memory, &error)) {
    fprintf(stderr, "%s: %s\n", error.function, error.message);
    return 1;
  }
  printf("%s\n", received);
  return 0;
}
