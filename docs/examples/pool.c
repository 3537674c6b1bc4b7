/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Blocks of a pool, with a stream and without: see docs/pools.md. */
#include "common.h"

static int32_t free_something(void* user_data, gpumem_pool pool, uint64_t size) {
  (void)pool;
  (void)size;
  ++*(int*)user_data;
  return 0; /* nothing to free: let the allocation fail */
}

/* The host backend only marks the stream; others call cuStreamBeginCapture() and launch a graph. */
static void use_in_capture(gpumem_pool pool, gpumem_stream stream) {
  if (gpumem_host_stream_set_capturing(stream, 1, NULL) != GPUMEM_SUCCESS) return;

  /* While the stream is being captured: */
  uint64_t capture;
  TRY(gpumem_stream_get_capture_id(stream, &capture, &error));
  void* block;
  TRY(gpumem_pool_alloc(pool, 1 << 20, stream, &block, &error));
  /* Kernels that are enqueued in the stream now, and run whenever the graph is launched, use the block. */
  TRY(gpumem_pool_free(pool, block, stream, &error));

  TRY(gpumem_host_stream_set_capturing(stream, 0, &error));

  /* When the graph is not launched any more: */
  TRY(gpumem_pool_release_capture(pool, capture, NULL, &error));
}

/* A pool that has these blocks at the same time, to one thread, without taking more. */
static gpumem_pool make_arena(gpumem_device device, const uint64_t* sizes, uint64_t count) {
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  gpumem_pool probe;
  TRY(gpumem_pool_create(device, &desc, &probe, &error)); /* an empty pool takes no memory */
  TRY(gpumem_pool_capacity_for(probe, sizes, count, &desc.initial_size, &error));
  TRY(gpumem_pool_destroy(probe, &error));
  desc.limit = desc.initial_size;
  gpumem_pool arena;
  TRY(gpumem_pool_create(device, &desc, &arena, &error));
  return arena;
}

/* What a frame, a query or a request needs, and nobody after it. */
static void use_scratch(gpumem_pool pool, gpumem_stream stream, gpumem_stream other) {
  const uint64_t sizes[] = {1 << 20, 64 << 10, 300};
  void* scratch[3];
  TRY(gpumem_pool_alloc_batch(pool, sizes, 3, stream, scratch, &error));
  TRY(gpumem_fill_async(stream, scratch[0], sizes[0], 7, 1, &error));
  TRY(gpumem_pool_free_batch(pool, scratch, 3, stream, &error));

  /* `other` uses the block too: it is free after the work that both have now. */
  void* block;
  TRY(gpumem_pool_alloc(pool, 1 << 20, stream, &block, &error));
  TRY(gpumem_pool_record_use(pool, block, other, &error));
  TRY(gpumem_pool_free(pool, block, stream, &error));
}

/* A block for a thread that must not be held up, or NULL. */
static void* take_at_once(gpumem_pool pool, uint64_t size, gpumem_stream stream) {
  void* block = NULL;
  gpumem_pool_attempt attempt = GPUMEM_POOL_ATTEMPT_INIT;
  gpumem_status status = gpumem_pool_try_alloc(pool, size, 0, stream, &block, &attempt, &error);
  if (status == GPUMEM_NOT_READY && attempt.answer == GPUMEM_POOL_ANSWER_NEEDS_WAIT)
    printf("stream %llu still uses the memory\n", (unsigned long long)attempt.stream_id);
  return status == GPUMEM_SUCCESS ? block : NULL;
}

static void stage(gpumem_device device, gpumem_stream stream, void* memory, const void* data, uint64_t size) {
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.kind = GPUMEM_KIND_PINNED;
  desc.initial_size = UINT64_C(16) << 20; /* pinned now, not at the first copy */
  desc.name = "staging";
  gpumem_pool staging;
  TRY(gpumem_pool_create(device, &desc, &staging, &error));

  /* No stream: the CPU writes the block at once, so no work may use it any more. */
  void* block;
  TRY(gpumem_pool_alloc(staging, size, NULL, &block, &error));
  memcpy(block, data, size);
  TRY(gpumem_copy_async(stream, memory, block, size, NULL, &error));
  TRY(gpumem_pool_free(staging, block, stream, &error)); /* after the copy */

  TRY(gpumem_pool_destroy(staging, &error));
}

/* One process would export, and another one import; this one does both. */
static void share_block(gpumem_instance instance, gpumem_device device) {
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_pool pool;
  TRY(gpumem_pool_create(device, &desc, &pool, &error));
  void* block;
  TRY(gpumem_pool_alloc(pool, 4096, NULL, &block, &error));
  TRY(gpumem_fill(instance, block, 4096, 7, 1, &error));

  gpumem_export_desc export_desc = GPUMEM_EXPORT_DESC_INIT;
  export_desc.flags = GPUMEM_EXPORT_NEIGHBOURS; /* importers may see other blocks of the pool */
  gpumem_share_handle handle;
  TRY(gpumem_share_export(instance, block, &export_desc, &handle, &error));

  void* pointer;
  gpumem_memory memory;
  TRY(gpumem_share_import(instance, &handle, NULL, 0, NULL, &pointer, &memory, &error));
  unsigned char byte = 0;
  TRY(gpumem_copy(instance, &byte, pointer, 1, NULL, &error));
  printf("the shared block holds %d\n", byte);
  TRY(gpumem_memory_destroy(memory, &error));

  /* Nobody uses it any more. */
  TRY(gpumem_pool_free(pool, block, NULL, &error));
  TRY(gpumem_pool_destroy(pool, &error));
}

static gpumem_pool share_with_other_code(gpumem_device device) {
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.flags = GPUMEM_POOL_FROM_DRIVER;
  gpumem_pool pool;
  TRY(gpumem_pool_create(device, &desc, &pool, &error));
  return pool;
}

int main(void) {
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  TRY(gpumem_instance_open(NULL, &instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &stream, &error));

  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.limit = (uint64_t)32 << 20;
  desc.name = "activations";
  gpumem_pool pool;
  TRY(gpumem_pool_create(device, &desc, &pool, &error));

  /* The block may be used in `stream` at once, and what is enqueued before the free still has it. */
  void* block;
  TRY(gpumem_pool_alloc(pool, 1 << 20, stream, &block, &error));
  TRY(gpumem_fill_async(stream, block, 1 << 20, 7, 1, &error));
  TRY(gpumem_pool_free(pool, block, stream, &error));

  /* Without a stream: at the free, no work uses the block any more. */
  TRY(gpumem_pool_alloc(pool, 4096, NULL, &block, &error));
  TRY(gpumem_fill(instance, block, 4096, 7, 1, &error));
  TRY(gpumem_pool_free(pool, block, NULL, &error));

  gpumem_stream other;
  TRY(gpumem_stream_create(device, NULL, &other, &error));
  use_scratch(pool, stream, other);
  TRY(gpumem_stream_destroy(other, &error));

  block = take_at_once(pool, 4096, stream);
  TRY(gpumem_pool_free(pool, block, stream, &error));

  TRY(gpumem_pool_alloc(pool, sizeof desc, stream, &block, &error));
  stage(device, stream, block, &desc, sizeof desc);
  TRY(gpumem_pool_free(pool, block, stream, &error));

  const uint64_t sizes[] = {3 << 20, 5000, 5000};
  void* blocks[3];
  gpumem_pool arena = make_arena(device, sizes, 3);
  TRY(gpumem_pool_alloc_batch(arena, sizes, 3, NULL, blocks, &error));
  TRY(gpumem_pool_free_batch(arena, blocks, 3, NULL, &error));
  TRY(gpumem_pool_destroy(arena, &error));

  use_in_capture(pool, stream);
  share_block(instance, device);

  gpumem_pool of_driver = share_with_other_code(device);
  TRY(gpumem_pool_alloc(of_driver, 1 << 20, stream, &block, &error));
  TRY(gpumem_pool_free(of_driver, block, stream, &error));
  TRY(gpumem_pool_destroy(of_driver, &error));

  int calls = 0;
  TRY(gpumem_pool_set_callback(pool, free_something, &calls, &error));
  if (gpumem_pool_alloc(pool, (uint64_t)64 << 20, stream, &block, &error) == GPUMEM_ERROR_LIMIT_EXCEEDED)
    printf("after %d call of the callback: %s\n", calls, error.message);

  TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
  TRY(gpumem_pool_destroy(pool, &error));
  TRY(gpumem_stream_destroy(stream, &error));
  print_live_objects(instance);
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  return 0;
}
