/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
 * What `gpumem trace record` is tried with: each argument is a thing to do. */
#include <gpumem/gpumem.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 500, MIB = 1 << 20 };

static gpumem_instance instance;
static gpumem_device device;
static gpumem_pool pool;

static void done(gpumem_status status) {
  if (status != GPUMEM_SUCCESS) {
    fprintf(stderr, "traced: %s\n", gpumem_status_name(status));
    exit(3);
  }
}

static gpumem_memory make(gpumem_kind kind, uint64_t size, const char* name) {
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  gpumem_memory memory = NULL;
  desc.kind = kind;
  desc.size = size;
  desc.name = name;
  done(gpumem_memory_create(device, &desc, &memory, NULL));
  return memory;
}

static void* allocate(void* number) {
  for (int i = 0; i < ROUNDS; ++i) {
    void* block = NULL;
    done(gpumem_pool_alloc(pool, 4096 + 256 * (uint64_t)(*(int*)number), NULL, &block, NULL));
    done(gpumem_pool_free(pool, block, NULL, NULL));
  }
  return NULL;
}

static void threads(void) {
  pthread_t list[THREADS];
  int numbers[THREADS];
  done(gpumem_pool_create(device, NULL, &pool, NULL));
  for (int i = 0; i < THREADS; ++i) {
    numbers[i] = i;
    if (pthread_create(&list[i], NULL, allocate, &numbers[i]) != 0) exit(3);
  }
  for (int i = 0; i < THREADS; ++i)
    pthread_join(list[i], NULL);
  done(gpumem_pool_destroy(pool, NULL));
}

/* One of each kind of call. */
static void variety(void) {
  static char bytes[MIB];
  void* plain = NULL;
  void* blocks[3];
  const uint64_t sizes[3] = {1000, MIB, 0};
  gpumem_pool_desc of_pool = GPUMEM_POOL_DESC_INIT;
  gpumem_buffer_desc of_buffer = GPUMEM_BUFFER_DESC_INIT;
  gpumem_group_desc of_group = GPUMEM_GROUP_DESC_INIT;
  gpumem_sleep_desc sleep = GPUMEM_SLEEP_DESC_INIT;
  gpumem_physical_desc of_block = GPUMEM_PHYSICAL_DESC_INIT;
  gpumem_range_desc of_range = GPUMEM_RANGE_DESC_INIT;
  gpumem_stream stream = NULL;
  gpumem_buffer buffer = NULL;
  gpumem_group group = NULL;
  gpumem_physical physical[2] = {NULL, NULL};
  gpumem_range range = NULL;
  uint64_t unit = 0;
  const gpumem_memory memory = make(GPUMEM_KIND_PINNED, 4 * MIB, "stag\"ing");
  make(GPUMEM_KIND_DEVICE, 8 * MIB, "never freed <b>");
  done(gpumem_malloc(device, GPUMEM_KIND_MANAGED, MIB, &plain, NULL));
  done(gpumem_register(device, bytes, sizeof bytes, 0, NULL));
  of_pool.kind = GPUMEM_KIND_PINNED;
  of_pool.initial_size = 2 * MIB;
  done(gpumem_stream_create(device, NULL, &stream, NULL));
  done(gpumem_pool_create(device, &of_pool, &pool, NULL));
  done(gpumem_pool_alloc_batch(pool, sizes, 3, stream, blocks, NULL));
  done(gpumem_pool_free_batch(pool, blocks, 3, stream, NULL));
  done(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, NULL));
  done(gpumem_pool_trim(pool, 0, NULL, NULL));
  done(gpumem_pool_destroy(pool, NULL));
  done(gpumem_stream_destroy(stream, NULL));
  done(gpumem_group_create(instance, &of_group, &group, NULL));
  of_buffer.size = 4 * MIB;
  of_buffer.reserve = 64 * MIB;
  of_buffer.group = group;
  of_buffer.tag = "weights";
  done(gpumem_buffer_create(device, &of_buffer, &buffer, NULL));
  done(gpumem_buffer_resize(buffer, 16 * MIB, NULL));
  sleep.content = GPUMEM_CONTENT_PAGEABLE;
  done(gpumem_group_sleep(group, &sleep, NULL));
  done(gpumem_group_wake(group, NULL, NULL));
  done(gpumem_buffer_destroy(buffer, NULL));
  done(gpumem_group_destroy(group, NULL));
  done(gpumem_physical_get_granularity(device, &of_block, NULL, &unit, NULL));
  of_block.size = unit;
  of_range.size = 8 * unit;
  for (int i = 0; i < 2; ++i)
    done(gpumem_physical_create(device, &of_block, &physical[i], NULL));
  done(gpumem_range_reserve(instance, &of_range, &range, NULL));
  done(gpumem_range_map(range, unit, physical, 2, NULL));
  for (int i = 0; i < 2; ++i)
    done(gpumem_physical_release(physical[i], NULL));
  done(gpumem_range_unmap(range, unit, 2 * unit, NULL));
  done(gpumem_range_release(range, NULL));
  done(gpumem_unregister(instance, bytes, NULL));
  done(gpumem_free(instance, plain, NULL));
  done(gpumem_memory_destroy(memory, NULL));
}

/* A group that is asleep, and awake, already, and a range in which something stays mapped. */
static void leftovers(void) {
  gpumem_buffer_desc of_buffer = GPUMEM_BUFFER_DESC_INIT;
  gpumem_group_desc of_group = GPUMEM_GROUP_DESC_INIT;
  gpumem_physical_desc of_block = GPUMEM_PHYSICAL_DESC_INIT;
  gpumem_range_desc of_range = GPUMEM_RANGE_DESC_INIT;
  gpumem_buffer buffer = NULL;
  gpumem_group group = NULL;
  gpumem_physical block = NULL;
  gpumem_range range = NULL;
  uint64_t unit = 0;
  done(gpumem_group_create(instance, &of_group, &group, NULL));
  of_buffer.size = MIB;
  of_buffer.reserve = MIB;
  of_buffer.group = group;
  done(gpumem_buffer_create(device, &of_buffer, &buffer, NULL));
  for (int i = 0; i < 2; ++i)
    done(gpumem_group_sleep(group, NULL, NULL));
  for (int i = 0; i < 2; ++i)
    done(gpumem_group_wake(group, NULL, NULL));
  done(gpumem_physical_get_granularity(device, &of_block, NULL, &unit, NULL));
  of_block.size = unit;
  of_range.size = 8 * unit;
  done(gpumem_physical_create(device, &of_block, &block, NULL));
  done(gpumem_range_reserve(instance, &of_range, &range, NULL));
  done(gpumem_range_map(range, 2 * unit, &block, 1, NULL));
  done(gpumem_physical_release(block, NULL));
}

static void forks(void) {
  make(GPUMEM_KIND_DEVICE, MIB, "of the parent");
  const pid_t child = fork();
  if (child == 0) {
    instance = NULL;
    done(gpumem_instance_default(&instance, NULL));
    done(gpumem_device_get(instance, 0, &device, NULL));
    make(GPUMEM_KIND_DEVICE, 2 * MIB, "of the child");
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) exit(3);
  make(GPUMEM_KIND_DEVICE, 3 * MIB, "after the child");
}

int main(int count, char** words) {
  if (count > 1 && strcmp(words[1], "nothing") == 0) return 0;
  done(gpumem_instance_default(&instance, NULL));
  done(gpumem_device_get(instance, 0, &device, NULL));
  for (int i = 1; i < count; ++i) {
    if (strcmp(words[i], "threads") == 0) threads();
    if (strcmp(words[i], "variety") == 0) variety();
    if (strcmp(words[i], "leftovers") == 0) leftovers();
    if (strcmp(words[i], "fork") == 0) forks();
    if (strcmp(words[i], "fails") == 0) {
      void* plain = NULL;
      if (gpumem_malloc(device, GPUMEM_KIND_DEVICE, UINT64_C(1) << 50, &plain, NULL) >= 0) return 3;
    }
    if (strcmp(words[i], "closed") == 0) {
      for (int number = 3; number < 64; ++number)
        close(number);
      if (dup(1) != 3) return 3;
    }
    if (strcmp(words[i], "kill") == 0) raise(SIGKILL);
    if (strcmp(words[i], "seven") == 0) return 7;
  }
  return 0;
}
