/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Three mistakes and what the library says to them. The same program stands in the examples of each binding.
 */
#include "common.h"

static int refused(gpumem_status status) {
  printf("%s: %s\n", gpumem_status_name(status), error.message);
  return GPUMEM_FAILED(status);
}

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  void* none = NULL;
  int right = refused(gpumem_malloc(device, GPUMEM_KIND_DEVICE, 0, &none, &error));
  right &= refused(gpumem_malloc(device, GPUMEM_KIND_DEVICE, UINT64_C(1) << 62, &none, &error));

  void* memory;
  char source[16] = {0};
  TRY(gpumem_malloc(device, GPUMEM_KIND_DEVICE, 4096, &memory, &error));
  /* Only 8 bytes are left there. */
  right &= refused(gpumem_copy(instance, (char*)memory + 4088, source, sizeof source, NULL, &error));
  TRY(gpumem_free(instance, memory, &error));

  gpumem_status_info info = GPUMEM_STATUS_INFO_INIT;
  TRY(gpumem_status_get_info(GPUMEM_ERROR_BUSY, &info, &error));
  printf("%s: %s; %s\n", info.name, info.cause, info.remedy);
  print_live_objects(instance);
  return !right;
}
