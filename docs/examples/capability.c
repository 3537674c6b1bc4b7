/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Asks what a device can do, and why not. See docs/capabilities.md. */
#include "common.h"

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  gpumem_capability_info info = GPUMEM_CAPABILITY_INFO_INIT;
  TRY(gpumem_device_get_capability(device, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY, NULL, &info, &error));
  if (info.value == GPUMEM_ANSWER_NO) {
    printf("%s: no, a call would return %s: %s\n", info.name, gpumem_status_name(info.status), info.reason);
  } else {
    printf("%s: %s: %s\n", info.name, info.value == GPUMEM_ANSWER_YES ? "yes" : "emulated", info.reason);
  }
  return 0;
}
