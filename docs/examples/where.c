/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Which memory is in use, by whom, and how to get some back. See docs/where-memory.md. */
#include "common.h"

#define MIB (UINT64_C(1) << 20)

static double mib(uint64_t bytes) { return (double)bytes / (double)MIB; }

static void show(gpumem_instance instance, gpumem_device device, gpumem_pool pool) {
  /* The device, with what all processes have. */
  uint64_t free_bytes, total_bytes;
  TRY(gpumem_device_get_memory(device, &free_bytes, &total_bytes, &error));
  printf("device: %.0f MiB in use of %.0f\n", mib(total_bytes - free_bytes), mib(total_bytes));

  /* This instance: all devices, and pinned memory. */
  gpumem_stats stats = GPUMEM_STATS_INIT;
  TRY(gpumem_stats_get(instance, &stats, &error));
  gpumem_kind_stats pinned = GPUMEM_KIND_STATS_INIT;
  TRY(gpumem_stats_get_kind(instance, GPUMEM_KIND_PINNED, &pinned, &error));
  printf("this instance: %.0f MiB, of which %.0f pinned; at most %.0f so far\n", mib(stats.live_bytes),
         mib(pinned.live_bytes), mib(stats.peak_bytes));

  /* A pool has more than its blocks. */
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  TRY(gpumem_pool_get_info(pool, &info, &error));
  printf("pool %s: %.0f MiB taken, %.0f in live blocks, %.0f free, %.0f in captures\n", info.name,
         mib(info.reserved_bytes), mib(info.live_bytes), mib(info.cached_bytes), mib(info.captured_bytes));
}

static void save(gpumem_instance instance, const char* path) {
  /* All of it as JSON, for gpumem why. Again if it has grown since its size was asked for. */
  uint64_t size, capacity;
  char* text = NULL;
  TRY(gpumem_stats_snapshot(instance, NULL, 0, &size, &error));
  do {
    capacity = size;
    free(text);
    text = malloc(capacity);
    if (text == NULL) exit(1);
    TRY(gpumem_stats_snapshot(instance, text, capacity, &size, &error));
  } while (size > capacity);
  FILE* file = fopen(path, "w");
  if (file == NULL || fputs(text, file) == EOF || fclose(file) != 0) exit(1);
  free(text);
}

int main(int argc, char** argv) {
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_open(NULL, &instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  gpumem_memory_desc staging_desc = GPUMEM_MEMORY_DESC_INIT;
  staging_desc.kind = GPUMEM_KIND_PINNED;
  staging_desc.size = 4 * MIB;
  staging_desc.name = "staging";
  gpumem_memory staging;
  TRY(gpumem_memory_create(device, &staging_desc, &staging, &error));
  gpumem_buffer_desc weights_desc = GPUMEM_BUFFER_DESC_INIT;
  weights_desc.size = 16 * MIB;
  weights_desc.name = "weights";
  weights_desc.flags = GPUMEM_BUFFER_COPYABLE;
  gpumem_buffer weights;
  TRY(gpumem_buffer_create(device, &weights_desc, &weights, &error));
  gpumem_pool_desc pool_desc = GPUMEM_POOL_DESC_INIT;
  pool_desc.name = "activations";
  gpumem_pool pool;
  TRY(gpumem_pool_create(device, &pool_desc, &pool, &error));
  void* blocks[2];
  const uint64_t sizes[2] = {32 * MIB, 8 * MIB};
  TRY(gpumem_pool_alloc_batch(pool, sizes, 2, NULL, blocks, &error));
  TRY(gpumem_pool_free(pool, blocks[0], NULL, &error));

  show(instance, device, pool);

  /* A line for each object, longer texts are cut. */
  char report[4096];
  TRY(gpumem_stats_report(instance, report, sizeof report, NULL, &error));
  puts(report);
  int named = strstr(report, "pool activations") && strstr(report, "weights") && strstr(report, "staging");

  /* More than the device has, so that there is something to explain. */
  void* none;
  if (gpumem_pool_alloc(pool, UINT64_C(1) << 45, NULL, &none, &error) != GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY)
    return 1;
  if (argc > 1) save(instance, argv[1]);

  /* Give back what is free: of each pool, and of memory that was imported before. */
  uint64_t released;
  TRY(gpumem_pool_trim(pool, 0, &released, &error));
  TRY(gpumem_share_flush_cache(instance, &error));
  printf("%.0f MiB went back\n", mib(released));
  show(instance, device, pool);

  TRY(gpumem_pool_free(pool, blocks[1], NULL, &error));
  TRY(gpumem_pool_destroy(pool, &error));
  TRY(gpumem_buffer_destroy(weights, &error));
  TRY(gpumem_memory_destroy(staging, &error));
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  return named && released >= 32 * MIB ? 0 : 1;
}
