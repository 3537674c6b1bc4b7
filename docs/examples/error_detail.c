/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Reads the detail of a failure. See docs/errors.md. */
#include <gpumem/gpumem.h>
#include <stdio.h>

int main(void) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_instance instance;
  gpumem_device device;
  if (GPUMEM_FAILED(gpumem_instance_default(&instance, &error)) ||
      GPUMEM_FAILED(gpumem_device_get(instance, 0, &device, &error))) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }

  void* memory = NULL;
  gpumem_status status = gpumem_malloc(device, GPUMEM_KIND_DEVICE, UINT64_C(1) << 50, &memory, &error);
  switch (status) {
    case GPUMEM_SUCCESS:
      return GPUMEM_FAILED(gpumem_free(instance, memory, &error));
    case GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY:
      printf("%s: %s\n", gpumem_status_name(error.status), error.message);
      if (error.native_domain != GPUMEM_NATIVE_NONE) {
        printf("%s said %s (%d)\n", error.entry_point, error.native_name, (int)error.native_code);
      }
      return memory != NULL; /* A failed call leaves its outputs as they were. */
    default:
      fprintf(stderr, "%s: %s\n", error.function, error.message);
      return 1;
  }
}
