/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the sources of the extension share. Include it after postgres.h. */
#ifndef GPUMEM_PG_H
#define GPUMEM_PG_H

#include <gpumem/gpumem.h>
#include <signal.h>

#include "fmgr.h"
#include "storage/itemptr.h"

/* A column lies on the device as pieces of so many rows, the last one too: values, then a bit for each NULL,
 * then ctids. A piece is the unit of copying, and fits into one slot of the staging. */
#define PIECE_ROWS 65536
#define PIECE_NULLS (PIECE_ROWS / 8)
#define VALUE_MAX sizeof(int64)
#define PIECE_MAX (PIECE_ROWS * (VALUE_MAX + sizeof(ItemPointerData)) + PIECE_NULLS)

/* What a column is. It travels as the fingerprint of its version in the hub, so that nobody needs to map the
 * memory to know whose it is. */
typedef struct Tag {
  uint32 stamp; /* of the cluster, and of the layout of tag and pieces */
  Oid database;
  Oid table;
  Oid loader;
  Oid type;
  int16 attribute;
  uint8 backend;
  uint8 device;
  uint64 rows;
} Tag;

StaticAssertDecl(sizeof(Tag) == sizeof(((gpumem_entry_info*)NULL)->fingerprint), "a tag fills a fingerprint");

/* What a backend has opened. All of it is opened after the fork, when it is first needed, and closed by its
 * end. */
typedef struct Session {
  gpumem_instance instance;
  gpumem_backend backend; /* what `auto` has become */
  gpumem_device device;
  gpumem_link link;
  gpumem_stream streams[2]; /* one for each slot */
  gpumem_device streams_of;
  gpumem_memory pinned;
  char* slots[2]; /* in `pinned`, PIECE_MAX bytes each */
} Session;

extern Session session;

extern int gpumem_pg_backend;
extern int gpumem_pg_device;
extern char* gpumem_pg_keeper;

/* For calls in which the driver may start a thread, which inherits the signal mask: the server's handlers
 * change variables of the backend, and must run on its own thread alone. */
#define WITHOUT_SIGNALS(status, call)              \
  do {                                             \
    sigset_t all_, before_;                        \
    sigfillset(&all_);                             \
    pthread_sigmask(SIG_SETMASK, &all_, &before_); \
    (status) = (call); /* never raises an error */ \
    pthread_sigmask(SIG_SETMASK, &before_, NULL);  \
  } while (0)

/* Path of the hub: of the keeper, or of the worker in the data directory. */
extern void hub_path(char* path, size_t size);
/* Raises a failure as an error of SQL: "cannot WHAT: message". */
extern void check(gpumem_status status, const gpumem_error* error, const char* what);
/* Opens the instance; connects to the hub if that is not done; makes staging, and streams of a device. */
extern void open_instance(void);
extern void open_link(void);
extern void open_staging(gpumem_device device);
/* Waits for all copies of this backend. Never raises an error. */
extern void finish_copies(void);

/* In column.c, registered once for all transactions of a backend. */
extern void register_transaction_callbacks(void);

#endif
