/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A worker that follows its master through restarts: see docs/sharing.md. Two of the three runs of the master
 * end as a crash would end them. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

enum { BATCH = 64 << 10, BATCHES = 10, RUNS = 3 };

static char path[64]; /* of the hub that each run of the master opens */

static void need(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s\n", what);
  exit(1);
}

/* One run: a ring under a name, in a hub of its own. */
static void master(gpumem_instance instance, gpumem_device device, unsigned run) {
  gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
  desc.slot_size = BATCH;
  desc.consumers_first = 1;
  gpumem_ring ring;
  TRY(gpumem_ring_create(device, &desc, &ring, &error));
  gpumem_share_handle handle;
  TRY(gpumem_ring_export(ring, &handle, &error));
  gpumem_hub_desc hub_desc = GPUMEM_HUB_DESC_INIT;
  hub_desc.path = path;
  gpumem_hub hub;
  TRY(gpumem_hub_open(instance, &hub_desc, &hub, &error));
  TRY(gpumem_hub_publish(hub, "batches", &handle, NULL, NULL, &error));
  for (unsigned batch = 0; batch < BATCHES; ++batch) {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    TRY(gpumem_ring_acquire(ring, NULL, GPUMEM_TIMEOUT_INFINITE, &slot, &error));
    /* Published when it is complete: so it is whole, or it is not there. */
    TRY(gpumem_fill(instance, slot.pointer, BATCH, run * BATCHES + batch, 4, &error));
    TRY(gpumem_ring_publish(ring, NULL, BATCH, run * BATCHES + batch, &error));
  }
  if (run + 1 < RUNS) raise(SIGKILL);
  TRY(gpumem_ring_finish(ring, GPUMEM_TIMEOUT_INFINITE, &error));
  TRY(gpumem_hub_close(hub, &error));
  TRY(gpumem_ring_destroy(ring, &error));
}

/* All batches of one ring. Returns the status that it ended with. */
static gpumem_status use_all(gpumem_instance instance, gpumem_ring ring, uint64_t* next) {
  static uint32_t words[BATCH / 4];
  for (;;) {
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    gpumem_status status = gpumem_ring_wait(ring, NULL, GPUMEM_TIMEOUT_INFINITE, &slot, &error);
    if (GPUMEM_FAILED(status)) return status;
    status = gpumem_copy(instance, words, slot.pointer, slot.size, NULL, &error);
    if (GPUMEM_FAILED(status)) return status;
    need(slot.tag >= *next, "a batch came twice");
    for (size_t i = 0; i < BATCH / 4; ++i)
      need(words[i] == slot.tag, "the batch has other bytes than the master made");
    *next = slot.tag + 1;
    status = gpumem_ring_release(ring, NULL, slot.number, &error);
    if (GPUMEM_FAILED(status)) return status;
  }
}

static int has_ended(gpumem_status status) {
  return status == GPUMEM_ERROR_CLOSED || status == GPUMEM_ERROR_STALE_HANDLE ||
         status == GPUMEM_ERROR_PEER_GONE;
}

static void worker(gpumem_instance instance) {
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  link_desc.path = path;
  unsigned rings = 0;
  uint64_t next = 0;
  while (next < RUNS * BATCHES) {
    gpumem_link link;
    gpumem_status status = gpumem_link_connect(instance, &link_desc, &link, &error);
    if (status == GPUMEM_ERROR_NOT_FOUND) {
      /* No master runs. */
      const struct timespec pause = {0, 10 * 1000 * 1000};
      nanosleep(&pause, NULL);
      continue;
    }
    TRY(status);
    /* Another hub counts anew. */
    for (uint64_t seen = 0; next < RUNS * BATCHES;) {
      gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
      status = gpumem_link_wait(link, "batches", seen, GPUMEM_TIMEOUT_INFINITE, &entry, &error);
      if (status == GPUMEM_ERROR_PEER_GONE) break; /* the master has ended: connect to the next one */
      TRY(status);
      seen = entry.version;
      gpumem_share_handle handle;
      status = gpumem_link_fetch(link, "batches", NULL, &handle, &error);
      if (status == GPUMEM_ERROR_NOT_FOUND) continue;
      if (status == GPUMEM_ERROR_PEER_GONE) break;
      TRY(status);
      gpumem_ring ring = NULL;
      status = gpumem_ring_open(instance, &handle, NULL, &ring, &error);
      if (status == GPUMEM_SUCCESS) {
        ++rings;
        status = use_all(instance, ring, &next);
      }
      /* Finished or gone: wait for the next ring of that name. Anything else is a failure. */
      if (!has_ended(status)) TRY(status);
      TRY(gpumem_ring_destroy(ring, &error));
    }
    TRY(gpumem_link_close(link, &error));
  }
  need(rings == RUNS, "a run of the master was missed");
  printf("the worker followed %u runs of its master\n", rings);
}

/* In a process of its own, because a driver does not survive a fork. */
static pid_t start(int is_worker, unsigned run) {
  const pid_t child = fork();
  if (child != 0) return child;
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  if (is_worker) {
    worker(instance);
  } else {
    master(instance, device, run);
  }
  print_live_objects(instance);
  exit(0);
}

int main(void) {
  snprintf(path, sizeof path, "@gpumem-example-follow-%d", (int)getpid());
  const pid_t child = start(1, 0);
  need(child > 0, "no process for the worker");
  int status;
  for (unsigned run = 0; run < RUNS; ++run) {
    const pid_t process = start(0, run);
    need(process > 0 && waitpid(process, &status, 0) == process, "no process for the master");
    const int as_meant = run + 1 < RUNS ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!as_meant) kill(child, SIGKILL); /* or it would wait for a master for ever */
    need(as_meant, "the master has failed");
  }
  need(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
       "the worker has failed");
  return 0;
}
