/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Settings, and the worker: a hub that keeps the columns while the server runs, unless gpumem.keeper names a
 * keeper that outlives the server. Neither the postmaster nor the worker loads a driver. */
#include "postgres.h"

#include <sys/resource.h>
#include <unistd.h>

#include "gpumem_pg.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

int gpumem_pg_backend = GPUMEM_BACKEND_ANY;
int gpumem_pg_device = 0;
char* gpumem_pg_keeper = NULL;

static const struct config_enum_entry backends[] = {{"auto", GPUMEM_BACKEND_ANY, false},
                                                    {"cuda", GPUMEM_BACKEND_CUDA, false},
                                                    {"host", GPUMEM_BACKEND_HOST, false},
                                                    {NULL, 0, false}};

PGDLLEXPORT void _PG_init(void);
PGDLLEXPORT void gpumem_pg_worker(Datum unused);

void _PG_init(void) {
  if (!process_shared_preload_libraries_in_progress)
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("gpumem_pg must be loaded when the server starts"),
                    errhint("Add gpumem_pg to shared_preload_libraries, and restart the server.")));

  DefineCustomEnumVariable(
      "gpumem.backend", "Where columns are kept: cuda, host, or auto for the first that works.", NULL,
      &gpumem_pg_backend, GPUMEM_BACKEND_ANY, backends, PGC_POSTMASTER, 0, NULL, NULL, NULL);
  DefineCustomIntVariable("gpumem.device", "Number of the device that columns are loaded to.", NULL,
                          &gpumem_pg_device, 0, 0, 255, PGC_POSTMASTER, 0, NULL, NULL, NULL);
  DefineCustomStringVariable("gpumem.keeper",
                             "Path of a keeper that holds the columns; empty for the worker of the server.",
                             "It is that of \"gpumem keep --hub PATH\".", &gpumem_pg_keeper, "",
                             PGC_POSTMASTER, 0, NULL, NULL, NULL);
  MarkGUCPrefixReserved("gpumem");
  register_transaction_callbacks();

  if (gpumem_pg_keeper[0] != '\0') return;
  BackgroundWorker worker;
  memset(&worker, 0, sizeof worker);
  worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
  worker.bgw_start_time = BgWorkerStart_PostmasterStart;
  worker.bgw_restart_time = 1;
  strlcpy(worker.bgw_library_name, "gpumem_pg", BGW_MAXLEN);
  strlcpy(worker.bgw_function_name, "gpumem_pg_worker", BGW_MAXLEN);
  strlcpy(worker.bgw_name, "gpumem hub", BGW_MAXLEN);
  strlcpy(worker.bgw_type, "gpumem hub", BGW_MAXLEN);
  RegisterBackgroundWorker(&worker);
}

/* Called by threads of the library, which must not call PostgreSQL. */
static void write_line(void* unused, gpumem_log_level level, const char* message) {
  char line[1024];
  const int size = snprintf(line, sizeof line, "gpumem hub: %s\n", message);
  if (write(STDERR_FILENO, line, Min((size_t)size, sizeof line - 1)) < 0) return;
}

void gpumem_pg_worker(Datum unused) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
  BackgroundWorkerUnblockSignals();

  /* Each column costs a descriptor for each of its blocks. */
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }

  /* A keeper passes descriptors on and looks at none, so that the backend of its instance does not matter. */
  gpumem_log_set_function(write_line, NULL, GPUMEM_LOG_WARNING, NULL);
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_HOST;
  desc.name = "postgresql";
  gpumem_instance instance;
  check(gpumem_instance_open(&desc, &instance, &error), &error, "open the host backend of gpumem");

  char path[MAXPGPATH];
  hub_path(path, sizeof path);
  gpumem_hub_desc hub_desc = GPUMEM_HUB_DESC_INIT;
  hub_desc.path = path;
  hub_desc.flags = GPUMEM_HUB_KEEPER;
  /* One of each backend, and as many again of those that have just ended. */
  hub_desc.links_max = 2 * (uint32_t)MaxBackends;
  gpumem_hub hub;
  check(gpumem_hub_open(instance, &hub_desc, &hub, &error), &error, "open the hub of gpumem");
  ereport(LOG, (errmsg("gpumem hub is at %s", path)));

  while (!ShutdownRequestPending) {
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, 0, PG_WAIT_EXTENSION);
    ResetLatch(MyLatch);
    CHECK_FOR_INTERRUPTS();
  }
  gpumem_hub_close(hub, NULL);
  /* The postmaster starts a worker again that ends with 1, if the server goes on. */
  proc_exit(1);
}
