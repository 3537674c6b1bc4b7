/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What a backend opens of gpumem after its fork, and how failures become errors of SQL. */
#include "postgres.h"

#include <unistd.h>

#include "gpumem_pg.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

Session session;

static int sqlstate(gpumem_status status) {
  switch (status) {
    case GPUMEM_ERROR_INVALID_ARGUMENT:
      return ERRCODE_INVALID_PARAMETER_VALUE;
    case GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY:
    case GPUMEM_ERROR_OUT_OF_HOST_MEMORY:
    case GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE:
      return ERRCODE_OUT_OF_MEMORY;
    case GPUMEM_ERROR_LIMIT_EXCEEDED:
      return ERRCODE_CONFIGURATION_LIMIT_EXCEEDED;
    case GPUMEM_ERROR_UNSUPPORTED:
      return ERRCODE_FEATURE_NOT_SUPPORTED;
    case GPUMEM_ERROR_NOT_FOUND:
    case GPUMEM_ERROR_STALE_HANDLE:
    case GPUMEM_ERROR_BUSY:
    case GPUMEM_ERROR_PEER_GONE:
      return ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
    default:
      return ERRCODE_EXTERNAL_ROUTINE_EXCEPTION;
  }
}

void check(gpumem_status status, const gpumem_error* error, const char* what) {
  if (!GPUMEM_FAILED(status)) return;
  gpumem_status_info info = GPUMEM_STATUS_INFO_INIT;
  const bool known = gpumem_status_get_info(status, &info, NULL) == GPUMEM_SUCCESS;
  ereport(ERROR, (errcode(sqlstate(status)), errmsg("cannot %s: %s", what, error->message),
                  errdetail("%s returned %s.", error->function, gpumem_status_name(status)),
                  known ? errhint("%s", info.remedy) : 0));
}

void hub_path(char* path, size_t size) {
  if (gpumem_pg_keeper[0] != '\0')
    strlcpy(path, gpumem_pg_keeper, size);
  else
    snprintf(path, size, "%s/gpumem.hub", DataDir);
}

/* Each step is remembered as it is done, so that an error in the middle leaves nothing that the next call
 * does not know. */
void open_instance(void) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (session.instance == NULL) {
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = gpumem_pg_backend;
    desc.name = "postgresql";
    gpumem_status status;
    WITHOUT_SIGNALS(status, gpumem_instance_open(&desc, &session.instance, &error));
    check(status, &error, "open the backend of gpumem");
  }
  if (session.backend == GPUMEM_BACKEND_ANY) {
    gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
    check(gpumem_instance_get_info(session.instance, &info, &error), &error, "look at the instance");
    session.backend = info.backend;
  }
  if (session.device == NULL)
    check(gpumem_device_get(session.instance, (uint32_t)gpumem_pg_device, &session.device, &error), &error,
          "use the device of gpumem.device");
}

void open_link(void) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
  open_instance();
  if (session.link != NULL) {
    if (gpumem_link_get_info(session.link, &info, NULL) == GPUMEM_SUCCESS && info.connected == 1) return;
    gpumem_link_close(session.link, NULL);
    session.link = NULL;
  }

  char path[MAXPGPATH];
  hub_path(path, sizeof path);
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = path;
  gpumem_status status;
  /* After a start or a crash, backends may run before the worker has opened its hub. */
  for (int pause = gpumem_pg_keeper[0] == '\0' ? 1000 : 0;; --pause) {
    status = gpumem_link_connect(session.instance, &desc, &session.link, &error);
    if (status != GPUMEM_ERROR_NOT_FOUND || pause == 0) break;
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
    ResetLatch(MyLatch);
    CHECK_FOR_INTERRUPTS();
  }
  check(status, &error,
        gpumem_pg_keeper[0] == '\0' ? "connect to the worker" : "connect to the keeper of gpumem.keeper");

  /* Whoever answers there says what each column is. */
  check(gpumem_link_get_info(session.link, &info, &error), &error, "look at the hub");
  if ((info.uid != geteuid() && info.uid != 0) || info.keeper == 0) {
    gpumem_link_close(session.link, NULL);
    session.link = NULL;
    ereport(
        ERROR,
        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
         info.keeper == 0 ? errmsg("the hub at %s is no keeper", path)
                          : errmsg("the keeper at %s belongs to user %u", path, info.uid),
         errhint(
             "Start \"gpumem keep --hub PATH\" as the user of the server, and set gpumem.keeper to PATH.")));
  }
}

void open_staging(gpumem_device device) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  for (int slot = 0; slot < 2; ++slot) {
    /* A stream copies memory of its own device only. */
    if (session.streams_of != device) {
      gpumem_status ignored;
      WITHOUT_SIGNALS(ignored, gpumem_stream_destroy(session.streams[slot], NULL));
      (void)ignored;
      session.streams[slot] = NULL;
    }
  }
  session.streams_of = device;
  for (int slot = 0; slot < 2; ++slot) {
    if (session.streams[slot] != NULL) continue;
    gpumem_status status;
    WITHOUT_SIGNALS(status, gpumem_stream_create(device, NULL, &session.streams[slot], &error));
    check(status, &error, "create a stream");
  }
  if (session.pinned == NULL) {
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.kind = GPUMEM_KIND_PINNED;
    desc.size = 2 * PIECE_MAX;
    desc.name = "staging";
    gpumem_status status;
    WITHOUT_SIGNALS(status, gpumem_memory_create(session.device, &desc, &session.pinned, &error));
    check(status, &error, "allocate pinned memory");
  }
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  check(gpumem_memory_get_info(session.pinned, &info, &error), &error, "look at pinned memory");
  for (int slot = 0; slot < 2; ++slot)
    session.slots[slot] = (char*)info.host_pointer + slot * PIECE_MAX;
  finish_copies();
}

void finish_copies(void) {
  for (int slot = 0; slot < 2; ++slot) {
    if (session.streams[slot] != NULL)
      gpumem_stream_synchronize(session.streams[slot], GPUMEM_TIMEOUT_INFINITE, NULL);
  }
}
