/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the programs that old_caller.py writes share: live objects, and the checks of a call. It is compiled
 * with the headers of each baseline: what 0.1 does not have stands in an #if about GPUMEM_VERSION_MINOR. */
#ifndef GPUMEM_TESTS_OLD_CALLER_H
#define GPUMEM_TESTS_OLD_CALLER_H

#include <gpumem/gpumem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes behind a struct, where newer ones may have fields, and old programs have anything. */
#define BEHIND 128
#define WRONG_SIZE 7

static int count, failures;
static union {
  uint64_t aligned;
  unsigned char bytes[4096];
} scratch, other;
static struct {
  gpumem_error it;
  unsigned char behind[BEHIND];
} error;

/* One of each. */
static struct {
  gpumem_instance instance;
  gpumem_device device;
  gpumem_memory memory;
  gpumem_physical physical;
  gpumem_range range;
  gpumem_buffer buffer;
  gpumem_group group;
  gpumem_hub hub;
  gpumem_link link;
  gpumem_ring ring;
  gpumem_pool pool;
  gpumem_stream stream;
  gpumem_event event;
  gpumem_share_handle handle;
  void* pinned;
  void* managed;
  void* block;
  void* mapped;
} live;

static void check(const char* function, const char* type, const char* what, int good) {
  failures += !good;
  printf("%s %d - %s, %s: %s\n", good ? "ok" : "not ok", ++count, function, type, what);
  if (!good) printf("# %s: %s\n", gpumem_status_name(error.it.status), error.it.message);
}

/* A struct of `known` bytes that says it has `size`, in one of `whole` bytes. */
static void begin(void* given, size_t size, size_t known, size_t whole) {
  memset(given, 0x5a, whole);
  memset(given, 0, known);
  memcpy(given, &size, sizeof size);
}

static int is_whole(const unsigned char* behind) {
  size_t i;
  for (i = 0; i < BEHIND; ++i)
    if (behind[i] != 0x5a) return 0;
  return 1;
}

/* Another struct that a call needs. */
static void* filled(size_t size) {
  begin(&other, size, size, sizeof other);
  return &other;
}

#define PREPARE(size)                                            \
  begin(&given, size, sizeof given.it, sizeof given);            \
  begin(&error, sizeof error.it, sizeof error.it, sizeof error); \
  memset(&scratch, 0, sizeof scratch)

/* The size that a struct has in these headers is accepted, another one is not, and nothing is written behind
 * a struct. */
#define TAKES(function, type, answers, call)                                                              \
  do {                                                                                                    \
    struct {                                                                                              \
      type it;                                                                                            \
      unsigned char behind[BEHIND];                                                                       \
    } given;                                                                                              \
    gpumem_status status;                                                                                 \
    PREPARE(sizeof given.it);                                                                             \
    status = call;                                                                                        \
    check(function, #type, "the size of these headers",                                                   \
          strstr(error.it.message, "struct_size") == NULL && (!(answers) || status == GPUMEM_SUCCESS));   \
    check(function, #type, "nothing is written behind them",                                              \
          is_whole(given.behind) && is_whole(error.behind));                                              \
    PREPARE(WRONG_SIZE);                                                                                  \
    status = call;                                                                                        \
    check(function, #type, "a size of no version", strstr(error.it.message, "struct_size is 7") != NULL); \
  } while (0)

#define TRY(call)                                                                   \
  do {                                                                              \
    if (GPUMEM_FAILED(call)) {                                                      \
      printf("Bail out! %s: %s: %s\n", #call, error.it.function, error.it.message); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

/* Makes what calls can be asked about. The socket of the hub lies beside the program. */
static void make_objects(const char* program) {
  gpumem_instance_desc instance = GPUMEM_INSTANCE_DESC_INIT;
  gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
  gpumem_memory_desc memory = GPUMEM_MEMORY_DESC_INIT;
  gpumem_physical_desc physical = GPUMEM_PHYSICAL_DESC_INIT;
  gpumem_range_desc range = GPUMEM_RANGE_DESC_INIT;
  gpumem_buffer_desc buffer = GPUMEM_BUFFER_DESC_INIT;
  gpumem_pool_desc pool = GPUMEM_POOL_DESC_INIT;
  gpumem_hub_desc hub = GPUMEM_HUB_DESC_INIT;
  gpumem_link_desc link = GPUMEM_LINK_DESC_INIT;
  gpumem_ring_desc ring = GPUMEM_RING_DESC_INIT;
  gpumem_range_info range_info = GPUMEM_RANGE_INFO_INIT;
  gpumem_buffer_info buffer_info = GPUMEM_BUFFER_INFO_INIT;
  gpumem_buffer shared = NULL;
  uint64_t version = 0;
  char path[4096];

  setvbuf(stdout, NULL, _IOLBF, 0); /* so that a crash shows its call */
  snprintf(path, sizeof path, "%s.hub", program);
  begin(&error, sizeof error.it, sizeof error.it, sizeof error);
  instance.backend = GPUMEM_BACKEND_HOST;
  instance.host = &host;
  TRY(gpumem_instance_open(&instance, &live.instance, &error.it));
  TRY(gpumem_device_get(live.instance, 0, &live.device, &error.it));
  memory.kind = GPUMEM_KIND_DEVICE;
  memory.size = 4096;
  memory.require = GPUMEM_MEMORY_SHAREABLE;
  TRY(gpumem_memory_create(live.device, &memory, &live.memory, &error.it));
  TRY(gpumem_malloc(live.device, GPUMEM_KIND_PINNED, 4096, &live.pinned, &error.it));
  TRY(gpumem_malloc(live.device, GPUMEM_KIND_MANAGED, 4096, &live.managed, &error.it));
  TRY(gpumem_stream_create(live.device, NULL, &live.stream, &error.it));
  TRY(gpumem_event_create(live.device, NULL, &live.event, &error.it));
  physical.location = GPUMEM_LOCATION_DEVICE;
  TRY(gpumem_physical_get_granularity(live.device, &physical, &physical.size, NULL, &error.it));
  TRY(gpumem_physical_create(live.device, &physical, &live.physical, &error.it));
  range.size = physical.size;
  TRY(gpumem_range_reserve(live.instance, &range, &live.range, &error.it));
  TRY(gpumem_range_map(live.range, 0, &live.physical, 1, &error.it));
  TRY(gpumem_range_get_info(live.range, &range_info, &error.it));
  live.mapped = range_info.base;
  buffer.size = 4096;
  TRY(gpumem_buffer_create(live.device, &buffer, &live.buffer, &error.it));
  buffer.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD; /* which its own process can import */
  TRY(gpumem_buffer_create(live.device, &buffer, &shared, &error.it));
  TRY(gpumem_buffer_get_info(shared, &buffer_info, &error.it));
  TRY(gpumem_group_create(live.instance, NULL, &live.group, &error.it));
  pool.kind = GPUMEM_KIND_DEVICE;
  TRY(gpumem_pool_create(live.device, &pool, &live.pool, &error.it));
  TRY(gpumem_pool_alloc(live.pool, 4096, live.stream, &live.block, &error.it));
  hub.path = link.path = path;
  TRY(gpumem_hub_open(live.instance, &hub, &live.hub, &error.it));
  TRY(gpumem_link_connect(live.instance, &link, &live.link, &error.it));
  TRY(gpumem_share_export(live.instance, buffer_info.base, NULL, &live.handle, &error.it));
  TRY(gpumem_hub_publish(live.hub, "name", &live.handle, NULL, &version, &error.it));
  ring.slot_size = 4096;
  ring.slot_count = 2;
  TRY(gpumem_ring_create(live.device, &ring, &live.ring, &error.it));
}

#endif
