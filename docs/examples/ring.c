/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A master makes batches on the device, and workers use them: see docs/sharing.md. Each worker checks the
 * bytes of every batch, so that a missing, repeated or torn one would be found. */
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

enum { BATCH = 1 << 20, BATCHES = 40, WORKERS = 3 };

static void need(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void master(gpumem_device device, gpumem_stream stream, int channel) {
  gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
  desc.slot_size = BATCH;
  desc.slot_count = 4;
  desc.consumers_max = WORKERS;
  desc.consumers_first = WORKERS; /* the first batch is for all of them */
  gpumem_ring ring;
  TRY(gpumem_ring_create(device, &desc, &ring, &error));
  gpumem_share_handle handle;
  TRY(gpumem_ring_export(ring, &handle, &error));
  for (int worker = 0; worker < WORKERS; ++worker)
    need(write(channel, &handle, sizeof handle) == sizeof handle, "a worker has ended");

  for (unsigned batch = 0; batch < BATCHES; ++batch) {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    TRY(gpumem_ring_acquire(ring, stream, GPUMEM_TIMEOUT_INFINITE, &slot, &error));
    /* Here a kernel would make the batch. */
    TRY(gpumem_fill_async(stream, slot.pointer, BATCH, batch, 4, &error));
    TRY(gpumem_ring_publish(ring, stream, BATCH, batch, &error));
  }
  TRY(gpumem_ring_finish(ring, GPUMEM_TIMEOUT_INFINITE, &error));
  TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
  TRY(gpumem_ring_destroy(ring, &error));
}

static void worker(gpumem_instance instance, gpumem_stream stream, int channel) {
  gpumem_share_handle handle;
  need(read(channel, &handle, sizeof handle) == sizeof handle, "the master has ended");
  gpumem_ring ring;
  TRY(gpumem_ring_open(instance, &handle, NULL, &ring, &error));
  static uint32_t words[BATCH / 4];
  unsigned batches = 0;
  for (;; ++batches) {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    gpumem_status status = gpumem_ring_wait(ring, stream, GPUMEM_TIMEOUT_INFINITE, &slot, &error);
    if (status == GPUMEM_ERROR_CLOSED) break; /* the master has finished */
    TRY(status);
    /* Here a kernel would use the batch. */
    TRY(gpumem_copy_async(stream, words, slot.pointer, slot.size, NULL, &error));
    TRY(gpumem_ring_release(ring, stream, slot.number, &error));

    TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
    need(slot.number == batches && slot.tag == batches, "a batch is missing");
    for (size_t i = 0; i < BATCH / 4; ++i)
      need(words[i] == batches, "the batch has other bytes than the master made");
  }
  need(batches == BATCHES, "not all batches came");
  TRY(gpumem_ring_destroy(ring, &error));
}

int main(void) {
  int ends[2];
  if (pipe(ends) != 0) return 1;
  /* Before anything is opened: a driver does not survive a fork. */
  int is_worker = 0;
  for (int i = 0; i < WORKERS && !is_worker; ++i) {
    const pid_t child = fork();
    if (child < 0) return 1;
    is_worker = child == 0;
  }
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &stream, &error));
  if (is_worker) {
    close(ends[1]); /* so that it learns when the master ends */
    worker(instance, stream, ends[0]);
  } else {
    master(device, stream, ends[1]);
  }
  TRY(gpumem_stream_destroy(stream, &error));
  if (is_worker) return 0;
  for (int i = 0; i < WORKERS; ++i) {
    int status;
    need(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a worker has failed");
  }
  printf("%d workers saw %d batches in order\n", WORKERS, BATCHES);
  return 0;
}
