/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Mistakes, each by its name, and how they show: see docs/debugging.md. Without a name, those that do not end
 * the program. */
#include "common.h"

static void GPUMEM_CALL print_message(void* user_data, gpumem_log_level level, const char* message) {
  (void)level;
  fprintf(user_data, "gpumem: %s\n", message);
}

static void touch(volatile char* memory) { *memory = 1; }

int main(int argc, char** argv) {
  const char* mistake = argc > 1 ? argv[1] : "";
  /* The first call, so that the message of each failure is seen, also where the status is not looked at. */
  TRY(gpumem_log_set_function(print_message, stderr, GPUMEM_LOG_DEBUG, &error));

  gpumem_instance_desc open_desc = GPUMEM_INSTANCE_DESC_INIT;
  open_desc.backend = GPUMEM_BACKEND_HOST;
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_open(&open_desc, &instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = 1 << 20;
  desc.name = "weights";
  gpumem_memory weights;
  TRY(gpumem_memory_create(device, &desc, &weights, &error));
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  TRY(gpumem_memory_get_info(weights, &info, &error));
  char* bytes = info.device_pointer;

  if (strcmp(mistake, "touch") == 0) touch(bytes);
  if (strcmp(mistake, "beyond") == 0) {
    void* pinned;
    TRY(gpumem_malloc(device, GPUMEM_KIND_PINNED, 1 << 20, &pinned, &error));
    touch((char*)pinned + (1 << 20));
  }
  if (strcmp(mistake, "freed") == 0) {
    void* pinned;
    TRY(gpumem_malloc(device, GPUMEM_KIND_PINNED, 1 << 20, &pinned, &error));
    TRY(gpumem_free(instance, pinned, &error));
    touch(pinned);
  }
  if (strcmp(mistake, "short") == 0) {
    char* source = malloc(1000);
    memset(source, 0, 1000);
    TRY(gpumem_copy(instance, bytes, source, 1001, NULL, &error));
    free(source);
  }
  if (strcmp(mistake, "fresh") == 0) {
    char received[16];
    TRY(gpumem_copy(instance, received, bytes, sizeof received, NULL, &error));
    if (received[0] == 0) puts("zeros");
  }

  gpumem_copy(instance, bytes, bytes + (1 << 20) - 8, 16, NULL, NULL); /* ends beyond the memory */

  gpumem_pool_desc pool_desc = GPUMEM_POOL_DESC_INIT;
  pool_desc.kind = GPUMEM_KIND_PINNED;
  pool_desc.flags = GPUMEM_POOL_DEBUG;
  pool_desc.name = "staging";
  gpumem_pool pool;
  void *block, *forgotten;
  TRY(gpumem_pool_create(device, &pool_desc, &pool, &error));
  TRY(gpumem_pool_alloc(pool, 100, NULL, &block, &error));
  TRY(gpumem_pool_alloc(pool, 200, NULL, &forgotten, &error));
  ((volatile char*)block)[100] = 1; /* a byte too far */
  gpumem_pool_free(pool, block, NULL, NULL);
  gpumem_pool_free(pool, block, NULL, NULL);
  TRY(gpumem_pool_destroy(pool, &error));

  /* The leak report: `weights` was forgotten. */
  if (gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, NULL) != GPUMEM_ERROR_BUSY) return 1;
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, NULL, &error));
  return 0;
}
