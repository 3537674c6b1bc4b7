/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Lets every step of an operation fail once, and sees that nothing is left behind. See docs/host-backend.md.
 */
#include "common.h"

static gpumem_instance instance;
static gpumem_device device;

/* What is to be tested: must undo everything if a step fails. */
static gpumem_status make_pair(void** out_host, void** out_device) {
  void* host;
  gpumem_status status = gpumem_malloc(device, GPUMEM_KIND_PINNED, 4096, &host, &error);
  if (GPUMEM_FAILED(status)) return status;
  status = gpumem_malloc(device, GPUMEM_KIND_DEVICE, 4096, out_device, &error);
  if (GPUMEM_FAILED(status)) {
    TRY(gpumem_free(instance, host, NULL));
    return status;
  }
  *out_host = host;
  return GPUMEM_SUCCESS;
}

int main(void) {
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_HOST;
  TRY(gpumem_instance_open(&desc, &instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  void *host = NULL, *memory = NULL;
  gpumem_status status;
  uint64_t step = 0;
  do {
    TRY(gpumem_host_fail_step(instance, ++step, 0, &error));
    status = make_pair(&host, &memory);
    TRY(gpumem_host_fail_step(instance, 0, 0, &error));
    gpumem_stats stats = GPUMEM_STATS_INIT;
    TRY(gpumem_stats_get(instance, &stats, &error));
    if (stats.live_count != (GPUMEM_FAILED(status) ? 0 : 2)) return 1;
  } while (GPUMEM_FAILED(status));
  printf("every one of %d steps failed once, and nothing leaked\n", (int)step - 1);

  TRY(gpumem_free(instance, host, &error));
  TRY(gpumem_free(instance, memory, &error));
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  return step == 1;
}
