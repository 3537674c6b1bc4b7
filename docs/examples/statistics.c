/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Counters, peaks, and the report of what was forgotten. See docs/statistics.md. */
#include "common.h"

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_open(NULL, &instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = 4096;
  desc.name = "table";
  gpumem_memory table;
  TRY(gpumem_memory_create(device, &desc, &table, &error));
  void* staging;
  TRY(gpumem_malloc(device, GPUMEM_KIND_PINNED, 100, &staging, &error));
  TRY(gpumem_free(instance, staging, &error));

  gpumem_stats stats = GPUMEM_STATS_INIT;
  TRY(gpumem_stats_get(instance, &stats, &error));
  printf("%llu live, of %llu bytes, at %llu reserved addresses\n", (unsigned long long)stats.live_count,
         (unsigned long long)stats.live_bytes, (unsigned long long)stats.reserved_bytes);
  gpumem_kind_stats pinned = GPUMEM_KIND_STATS_INIT;
  TRY(gpumem_stats_get_kind(instance, GPUMEM_KIND_PINNED, &pinned, &error));
  printf("pinned memory: %llu bytes at most\n", (unsigned long long)pinned.peak_bytes);
  if (stats.live_count != 1 || stats.live_bytes != 4096 || stats.reserved_bytes != 0) return 1;
  if (pinned.live_bytes != 0 || pinned.peak_bytes != 100) return 1;

  /* Ask for the size first; the text has a line for each live object. Again if it has grown since. */
  uint64_t size, capacity;
  char* report = NULL;
  TRY(gpumem_stats_report(instance, NULL, 0, &size, &error));
  do {
    capacity = size;
    free(report);
    report = malloc(capacity);
    if (report == NULL) return 1;
    TRY(gpumem_stats_report(instance, report, capacity, &size, &error));
  } while (size > capacity);
  printf("%s\n", report);
  int named = strstr(report, "table") != NULL;
  free(report);

  /* Closing finds the same. It changes nothing, so destroy what was forgotten and close again. */
  if (gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error) != GPUMEM_ERROR_BUSY) return 1;
  printf("%s\n", error.message);
  TRY(gpumem_memory_destroy(table, &error));
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  return !named;
}
