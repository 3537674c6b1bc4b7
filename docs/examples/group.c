/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Weights and a cache that sleep as one and wake by tag. See docs/virtual-memory.md. */
#include "common.h"

enum { SIZE = 4 << 20, LAYERS = 3 };

static void* make(gpumem_device device, gpumem_group group, const char* tag, gpumem_buffer* buffer) {
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = SIZE;
  desc.reserve = SIZE;
  desc.group = group;
  desc.tag = tag;
  TRY(gpumem_buffer_create(device, &desc, buffer, &error));

  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  TRY(gpumem_buffer_get_info(*buffer, &info, &error));
  return info.base;
}

/* How far a sleep or a waking is. */
static int32_t GPUMEM_CALL show(void* user_data, uint64_t done, uint64_t total) {
  printf("%s: %llu of %llu bytes\n", (const char*)user_data, (unsigned long long)done,
         (unsigned long long)total);
  return 0;
}

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &stream, &error));

  gpumem_group_desc desc = GPUMEM_GROUP_DESC_INIT;
  desc.name = "model";
  gpumem_group model;
  TRY(gpumem_group_create(instance, &desc, &model, &error));

  gpumem_buffer layers[LAYERS], cache;
  char* weights[LAYERS];
  for (int i = 0; i < LAYERS; ++i) {
    weights[i] = make(device, model, "weights", &layers[i]);
    TRY(gpumem_fill_async(stream, weights[i], SIZE, (uint32_t)i + 1, 1, &error));
  }
  make(device, model, "cache", &cache);

  /* Long before it sleeps: pin the room for the weights, at most 1 GiB a second. */
  gpumem_prepare_desc prepare = GPUMEM_PREPARE_DESC_INIT;
  prepare.content = GPUMEM_CONTENT_PINNED;
  prepare.tag = "weights";
  prepare.bytes_per_second = UINT64_C(1) << 30;
  TRY(gpumem_group_prepare(model, &prepare, &error));

  /* The weights are kept, once the work in the stream is done. */
  char what[] = "sleeping";
  gpumem_sleep_desc sleep = GPUMEM_SLEEP_DESC_INIT;
  sleep.content = GPUMEM_CONTENT_PINNED;
  sleep.tag = "weights";
  sleep.stream = stream;
  sleep.progress = show;
  sleep.user_data = what;
  TRY(gpumem_group_sleep(model, &sleep, &error));

  /* The cache is not. */
  gpumem_sleep_desc drop = GPUMEM_SLEEP_DESC_INIT;
  drop.content = GPUMEM_CONTENT_DROP;
  drop.tag = "cache";
  TRY(gpumem_group_sleep(model, &drop, &error));

  gpumem_group_info info = GPUMEM_GROUP_INFO_INIT;
  TRY(gpumem_group_get_info(model, NULL, &info, &error));
  printf("%llu of %llu buffers sleep, %llu bytes are kept\n", (unsigned long long)info.asleep_count,
         (unsigned long long)info.buffer_count, (unsigned long long)info.stored_size);
  const int all_slept = info.asleep_count == LAYERS + 1 && info.stored_size == LAYERS * SIZE;

  /* First the weights. Their stores stay, for the next sleep. */
  gpumem_wake_desc wake = GPUMEM_WAKE_DESC_INIT;
  wake.tag = "weights";
  wake.keep = UINT64_MAX;
  TRY(gpumem_group_wake(model, &wake, &error));
  /* Then what still sleeps. */
  TRY(gpumem_group_wake(model, NULL, &error));

  int wrong = 0;
  for (int i = 0; i < LAYERS; ++i) {
    char last;
    TRY(gpumem_copy(instance, &last, weights[i] + SIZE - 1, 1, NULL, &error));
    wrong += last != i + 1;
    TRY(gpumem_buffer_destroy(layers[i], &error));
  }
  TRY(gpumem_buffer_destroy(cache, &error));
  TRY(gpumem_group_destroy(model, &error));
  TRY(gpumem_stream_destroy(stream, &error));
  printf("%d of %d weights are wrong\n", wrong, LAYERS);
  return !all_slept || wrong != 0;
}
