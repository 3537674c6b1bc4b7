/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Pinned memory with its flags, memory that is pinned where it lies, and a copy between the two on a stream.
 * The same program stands in the examples of each binding. */
#include "common.h"

static gpumem_memory create(gpumem_device device, gpumem_memory_flags require, gpumem_memory_info* info) {
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_PINNED;
  desc.size = 65536;
  desc.require = require;
  gpumem_memory memory;
  TRY(gpumem_memory_create(device, &desc, &memory, &error));
  TRY(gpumem_memory_get_info(memory, info, &error));
  return memory;
}

static const char* yes_or_no(uint64_t bits) { return bits ? "yes" : "no"; }

static void print_flags(const char* name, const gpumem_memory_info* info) {
  printf("%s: portable %s, mapped %s, write_combined %s\n", name,
         yes_or_no(info->granted_flags & GPUMEM_MEMORY_PORTABLE),
         yes_or_no(info->granted_flags & GPUMEM_MEMORY_MAPPED),
         yes_or_no(info->granted_flags & GPUMEM_MEMORY_WRITE_COMBINED));
}

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));

  gpumem_memory_info pinned_info = GPUMEM_MEMORY_INFO_INIT, combined_info = GPUMEM_MEMORY_INFO_INIT;
  gpumem_memory pinned = create(device, GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED, &pinned_info);
  gpumem_memory combined = create(device, GPUMEM_MEMORY_WRITE_COMBINED, &combined_info);
  print_flags("pinned", &pinned_info);
  print_flags("write-combined", &combined_info);
  printf("device pointer: %s\n", pinned_info.device_pointer ? "yes" : "no");

  static int32_t mine[16384];
  for (int32_t i = 0; i < 16384; ++i)
    mine[i] = i * i;
  gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
  desc.pointer = mine;
  desc.size = sizeof mine;
  gpumem_memory registered;
  TRY(gpumem_memory_register(device, &desc, &registered, &error));
  printf("registered: %zu bytes\n", sizeof mine);

  gpumem_stream stream;
  gpumem_event event;
  TRY(gpumem_stream_create(device, NULL, &stream, &error));
  TRY(gpumem_event_create(device, NULL, &event, &error));
  TRY(gpumem_copy_async(stream, pinned_info.host_pointer, mine, sizeof mine, NULL, &error));
  TRY(gpumem_event_record(event, stream, &error));
  TRY(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, &error));
  int equal = memcmp(pinned_info.host_pointer, mine, sizeof mine) == 0;
  printf("pinned_mapped: %zu bytes on a stream, content %s\n", sizeof mine, equal ? "equal" : "different");

  TRY(gpumem_event_destroy(event, &error));
  TRY(gpumem_stream_destroy(stream, &error));
  TRY(gpumem_memory_destroy(registered, &error));
  TRY(gpumem_memory_destroy(combined, &error));
  TRY(gpumem_memory_destroy(pinned, &error));
  print_live_objects(instance);
  return !equal;
}
