/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The functions of SQL: load, drop, sum, filter, columns and attach_times. */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "common/int.h"
#include "common/shortest_dec.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "gpumem_pg.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "portability/instr_time.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(gpumem_pg_load);
PG_FUNCTION_INFO_V1(gpumem_pg_drop);
PG_FUNCTION_INFO_V1(gpumem_pg_sum);
PG_FUNCTION_INFO_V1(gpumem_pg_filter);
PG_FUNCTION_INFO_V1(gpumem_pg_columns);
PG_FUNCTION_INFO_V1(gpumem_pg_attach_times);

/* Of the layout of tags and pieces: it changes with them. */
#define LAYOUT 1
/* The longest name in a hub is 63 bytes, of which the number of the database takes up to 11. */
#define NAME_MAX_BYTES 52

/* A load or drop of this transaction, which takes effect when it commits. */
typedef struct Change {
  struct Change* previous;
  SubTransactionId subtransaction;
  char name[64];        /* in the hub */
  uint64 old_version;   /* in the hub, until then; 0 if there is none */
  gpumem_buffer buffer; /* what was loaded; NULL for a drop */
  char* base;
  gpumem_share_handle handle;
  Tag tag;
} Change;

/* The newest first, in TopTransactionContext. */
static Change* changes;

/* A column to be read. */
typedef struct Column {
  Tag tag;
  uint64 version;
  const char* base;
  gpumem_memory import; /* NULL for one that this transaction has loaded */
} Column;

/* ---- Names, types and rights ---- */

static uint32 own_stamp(void) {
  const uint64 cluster = GetSystemIdentifier();
  return (uint32)hash_bytes_extended((const unsigned char*)&cluster, sizeof cluster, LAYOUT);
}

/* The name of a column in the hub, which all databases share. */
static void hub_name(const text* argument, char name[64]) {
  char* given = text_to_cstring(argument);
  char* utf8 = pg_server_to_any(given, strlen(given), PG_UTF8);
  const size_t size = strlen(utf8);
  if (size == 0 || size > NAME_MAX_BYTES)
    ereport(ERROR, (errcode(ERRCODE_INVALID_NAME),
                    errmsg("a column on the device cannot have a name of %zu bytes", size),
                    errhint("A name has 1 to %d bytes of UTF-8.", NAME_MAX_BYTES)));
  for (const char* at = utf8; *at != '\0'; ++at) {
    if ((unsigned char)*at < ' ' || *at == '/' || *at == 0x7f)
      ereport(ERROR, (errcode(ERRCODE_INVALID_NAME),
                      errmsg("a column on the device cannot have \"/\" or a control character in its name")));
  }
  snprintf(name, 64, "%u.%s", MyDatabaseId, utf8);
}

/* What the user calls it. */
static char* given_name(const char* hub_name) {
  const char* given = strchr(hub_name, '.') + 1;
  return pg_any_to_server(given, strlen(given), PG_UTF8);
}

static size_t width_of(Oid type) {
  switch (type) {
    case INT2OID:
      return sizeof(int16);
    case INT4OID:
    case FLOAT4OID:
      return sizeof(int32);
    case INT8OID:
    case FLOAT8OID:
      return sizeof(int64);
    default:
      return 0;
  }
}

static bool is_real(Oid type) { return type == FLOAT4OID || type == FLOAT8OID; }

static size_t tids_at(Oid type) { return PIECE_ROWS * width_of(type) + PIECE_NULLS; }

static size_t piece_size(Oid type) { return tids_at(type) + PIECE_ROWS * sizeof(ItemPointerData); }

static uint64 pieces_of(uint64 rows) { return (rows + PIECE_ROWS - 1) / PIECE_ROWS; }

/* A column that was dropped has no type. */
static bool exists(Oid table, AttrNumber attribute) { return OidIsValid(get_atttype(table, attribute)); }

/* Why the current role may not select the column of a table, or may. */
typedef enum Right { RIGHT_GIVEN, RIGHT_NO_TABLE, RIGHT_NO_SCHEMA, RIGHT_NO_SELECT, RIGHT_ROWS } Right;

static Right right_to(Oid table, AttrNumber attribute) {
  if (!exists(table, attribute)) return RIGHT_NO_TABLE;
  if (pg_namespace_aclcheck(get_rel_namespace(table), GetUserId(), ACL_USAGE) != ACLCHECK_OK)
    return RIGHT_NO_SCHEMA;
  if (pg_class_aclcheck(table, GetUserId(), ACL_SELECT) != ACLCHECK_OK &&
      pg_attribute_aclcheck(table, attribute, GetUserId(), ACL_SELECT) != ACLCHECK_OK)
    return RIGHT_NO_SELECT;
  return check_enable_rls(table, InvalidOid, true) == RLS_ENABLED ? RIGHT_ROWS : RIGHT_GIVEN;
}

static void check_right(Oid table, AttrNumber attribute, const char* name) {
  switch (right_to(table, attribute)) {
    case RIGHT_GIVEN:
      return;
    case RIGHT_NO_TABLE:
      ereport(ERROR,
              (errcode(ERRCODE_UNDEFINED_COLUMN),
               errmsg("the table column that \"%s\" was loaded from no longer exists", given_name(name)),
               errhint("Drop it with gpumem.drop().")));
      break;
    case RIGHT_NO_SCHEMA:
      aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA, get_namespace_name(get_rel_namespace(table)));
      break;
    case RIGHT_NO_SELECT:
      aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(table));
      break;
    case RIGHT_ROWS:
      ereport(ERROR,
              (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
               errmsg("row-level security hides rows of table \"%s\" from this role", get_rel_name(table)),
               errdetail("A column on the device has all rows.")));
      break;
  }
}

static void check_loader(const Tag* tag, const char* name) {
  if (!has_privs_of_role(GetUserId(), tag->loader))
    ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                    errmsg("another role has loaded \"%s\"", given_name(name)),
                    errhint("Only a member of that role may replace or drop it.")));
}

/* ---- Finding and attaching ---- */

static const char* backend_name(gpumem_backend backend) {
  return backend == GPUMEM_BACKEND_CUDA ? "cuda" : "host";
}

/* The newest version of a name in the hub. */
static bool find_in_hub(const char* name, gpumem_entry_info* entry) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  open_link();
  const gpumem_status status = gpumem_link_wait(session.link, name, 0, 0, entry, &error);
  check(status, &error, "ask the hub");
  return status == GPUMEM_SUCCESS;
}

static Tag tag_of(const gpumem_entry_info* entry) {
  Tag tag;
  memcpy(&tag, entry->fingerprint, sizeof tag);
  return tag;
}

static Tag own_tag_of(const gpumem_entry_info* entry) {
  const Tag tag = tag_of(entry);
  if (tag.stamp != own_stamp() || width_of(tag.type) == 0 ||
      pieces_of(tag.rows) > entry->size / piece_size(tag.type))
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("\"%s\" in the hub is not of this cluster, or of another version of gpumem_pg",
                           entry->name),
                    errhint("Give each cluster a keeper of its own, and see \"gpumem hub withdraw\".")));
  return tag;
}

static const Change* find_change(const char* name) {
  const Change* change = changes;
  while (change != NULL && strcmp(change->name, name) != 0)
    change = change->previous;
  return change;
}

static void no_such_column(const char* name) {
  ereport(ERROR,
          (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("no column \"%s\" is on the device", given_name(name)),
           errhint("Load it with gpumem.load(); gpumem.columns() lists those that are there.")));
}

/* Finds a column that the current role may read: of this transaction, or the newest in the hub. */
static Column find_column(const char* name) {
  Column column = {0};
  const Change* change = find_change(name);
  if (change != NULL && change->buffer == NULL) no_such_column(name);
  if (change != NULL) {
    column.tag = change->tag;
    column.base = change->base;
  } else {
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    if (!find_in_hub(name, &entry)) no_such_column(name);
    column.tag = own_tag_of(&entry);
    column.version = entry.version;
  }
  check_right(column.tag.table, column.tag.attribute, name);
  if (column.tag.backend != session.backend)
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("\"%s\" is in memory of the %s backend, and this session uses the %s backend",
                           given_name(name), backend_name(column.tag.backend), backend_name(session.backend)),
                    errhint("Load it again, or restart the server with gpumem.backend = %s.",
                            backend_name(column.tag.backend))));
  return column;
}

/* The steps of attaching, and when each was done. */
typedef struct Times {
  const char* names[5];
  instr_time at[6];
  int count;
} Times;

static void step_done(Times* times, const char* name) {
  if (times == NULL) return;
  times->names[times->count++] = name;
  INSTR_TIME_SET_CURRENT(times->at[times->count]);
}

/* Imports a column from the hub. Not if a newer version has replaced it since it was found. */
static bool import(const char* name, Column* column, Times* times) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_fetch_desc desc = GPUMEM_FETCH_DESC_INIT;
  desc.version = column->version;
  gpumem_share_handle handle;
  gpumem_status status = gpumem_link_fetch(session.link, name, &desc, &handle, &error);
  if (status == GPUMEM_ERROR_NOT_FOUND) return false;
  check(status, &error, "fetch the column");
  step_done(times, "fetch");
  void* base;
  WITHOUT_SIGNALS(
      status, gpumem_share_import(session.instance, &handle, NULL, 0, NULL, &base, &column->import, &error));
  if (status == GPUMEM_ERROR_STALE_HANDLE) return false;
  check(status, &error, "import the column");
  step_done(times, "import");
  column->base = base;
  return true;
}

static Column attach(const char* name, Times* times) {
  for (;;) {
    Column column = find_column(name);
    const int count = times == NULL ? 0 : times->count;
    step_done(times, "find");
    if (column.base != NULL || import(name, &column, times)) return column;
    if (times != NULL) times->count = count;
    CHECK_FOR_INTERRUPTS();
  }
}

/* Never raises an error. */
static void detach(Column* column) {
  finish_copies();
  gpumem_memory_destroy(column->import, NULL);
  column->import = NULL;
}

/* ---- Transactions ---- */

/* Puts a change in force for this transaction. Only one transaction at a time can have changed a name: see
 * lock_name(). */
static Change* new_change(const char* name) {
  Change* change = MemoryContextAllocZero(TopTransactionContext, sizeof *change);
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  strlcpy(change->name, name, sizeof change->name);
  change->subtransaction = GetCurrentSubTransactionId();
  if (find_in_hub(name, &entry)) {
    change->old_version = entry.version;
    const Tag tag = own_tag_of(&entry);
    check_loader(&tag, name);
  }
  return change;
}

/* Until the transaction ends, as for a table that is created or dropped: who comes second sees what the first
 * has done. */
static void lock_name(const char* name) {
  LOCKTAG tag;
  /* The functions for advisory locks use 1 and 2 as the last number. */
  SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, hash_bytes((const unsigned char*)name, (int)strlen(name)), 3);
  (void)LockAcquire(&tag, ExclusiveLock, false, false);
}

static void withdraw(const Change* change, uint64 version) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  const gpumem_status status = gpumem_link_withdraw(session.link, change->name, version, &error);
  if (GPUMEM_FAILED(status) && status != GPUMEM_ERROR_NOT_FOUND)
    ereport(WARNING, (errmsg("the hub still holds an old version of \"%s\": %s",
                             strchr(change->name, '.') + 1, error.message)));
}

/* The transaction has committed: nothing here may raise an error. */
static void publish(const Change* change) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_publish_desc desc = GPUMEM_PUBLISH_DESC_INIT;
  memcpy(desc.fingerprint, &change->tag, sizeof change->tag);
  uint64 version;
  if (GPUMEM_FAILED(
          gpumem_link_publish(session.link, change->name, &change->handle, &desc, &version, &error))) {
    ereport(WARNING,
            (errmsg("column \"%s\" was not published: %s", strchr(change->name, '.') + 1, error.message),
             errhint("Load it again.")));
    return;
  }
  /* Another hub than before counts anew. */
  if (change->old_version != 0 && change->old_version < version) withdraw(change, change->old_version);
}

/* Forgets the changes, or those of a subtransaction. Their memory is the hub's by now, or nobody's. */
static void forget_changes(SubTransactionId subtransaction) {
  while (changes != NULL &&
         (subtransaction == InvalidSubTransactionId || changes->subtransaction == subtransaction)) {
    gpumem_buffer_destroy(changes->buffer, NULL);
    changes = changes->previous;
  }
}

static void at_transaction_event(XactEvent event, void* unused) {
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  if (changes == NULL) return;
  switch (event) {
    case XACT_EVENT_PRE_COMMIT:
      /* The last moment for an error, if nobody answers. To publish here would show what may never be
       * committed. */
      find_in_hub(changes->name, &entry);
      break;
    case XACT_EVENT_PRE_PREPARE:
      ereport(ERROR,
              (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
               errmsg("cannot PREPARE a transaction that has loaded or dropped columns on the device")));
      break;
    case XACT_EVENT_COMMIT:
      for (const Change* change = changes; change != NULL; change = change->previous) {
        if (find_change(change->name) != change) continue; /* changed again later on */
        if (change->buffer != NULL)
          publish(change);
        else if (change->old_version != 0)
          withdraw(change, 0);
      }
      forget_changes(InvalidSubTransactionId);
      break;
    case XACT_EVENT_ABORT:
      forget_changes(InvalidSubTransactionId);
      break;
    default:
      break;
  }
}

static void at_subtransaction_event(SubXactEvent event, SubTransactionId own, SubTransactionId parent,
                                    void* unused) {
  if (event == SUBXACT_EVENT_ABORT_SUB) forget_changes(own);
  if (event == SUBXACT_EVENT_COMMIT_SUB) {
    for (Change* change = changes; change != NULL && change->subtransaction == own; change = change->previous)
      change->subtransaction = parent;
  }
}

void register_transaction_callbacks(void) {
  RegisterXactCallback(at_transaction_event, NULL);
  RegisterSubXactCallback(at_subtransaction_event, NULL);
}

/* ---- Loading ---- */

/* Copies a full or last piece to the device, which goes on while the next one is filled. */
static void send_piece(Change* change, uint64 number) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  const size_t size = piece_size(change->tag.type);
  gpumem_status status;
  WITHOUT_SIGNALS(status, gpumem_buffer_resize(change->buffer, (number + 1) * size, &error));
  check(status, &error, "allocate memory for the column");
  WITHOUT_SIGNALS(status, gpumem_copy_async(session.streams[number % 2], change->base + number * size,
                                            session.slots[number % 2], size, NULL, &error));
  check(status, &error, "copy to the device");
}

static void put_row(Change* change, Datum value, bool null, const ItemPointerData* tid) {
  const uint32 at = change->tag.rows % PIECE_ROWS;
  const uint64 number = change->tag.rows / PIECE_ROWS;
  char* piece = session.slots[number % 2];
  const Oid type = change->tag.type;
  if (at == 0) {
    gpumem_error error = GPUMEM_ERROR_INIT;
    CHECK_FOR_INTERRUPTS();
    check(gpumem_stream_synchronize(session.streams[number % 2], GPUMEM_TIMEOUT_INFINITE, &error), &error,
          "copy to the device");
    memset(piece, 0, piece_size(type));
  }
  if (null) {
    piece[PIECE_ROWS * width_of(type) + at / 8] |= (char)(1 << at % 8);
  } else if (width_of(type) == sizeof(int16)) {
    ((int16*)piece)[at] = DatumGetInt16(value);
  } else if (width_of(type) == sizeof(int32)) {
    ((int32*)piece)[at] = DatumGetInt32(value); /* of a real, its bits */
  } else {
    ((int64*)piece)[at] = DatumGetInt64(value);
  }
  ((ItemPointerData*)(piece + tids_at(type)))[at] = *tid;
  ++change->tag.rows;
  if (at == PIECE_ROWS - 1) send_piece(change, number);
}

static void copy_table(Change* change, Relation table) {
  /* A new one, since other loads of the name may have been waited for. */
  Snapshot snapshot = RegisterSnapshot(GetTransactionSnapshot());
  TupleTableSlot* row = table_slot_create(table, NULL);
  /* From the first block on, so that sums of reals and ctids come in the same order each time. */
  TableScanDesc scan = table_beginscan_strat(table, snapshot, 0, NULL, true, false);
  while (table_scan_getnextslot(scan, ForwardScanDirection, row)) {
    bool null;
    const Datum value = slot_getattr(row, change->tag.attribute, &null);
    put_row(change, value, null, &row->tts_tid);
  }
  table_endscan(scan);
  ExecDropSingleTupleTableSlot(row);
  UnregisterSnapshot(snapshot);
  if (change->tag.rows % PIECE_ROWS != 0) send_piece(change, change->tag.rows / PIECE_ROWS);
}

static void load_column(Change* change, Relation table) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  gpumem_device_info device = GPUMEM_DEVICE_INFO_INIT;
  check(gpumem_device_get_info(session.device, &device, &error), &error, "look at the device");
  /* More than there is, so that a table that is too large runs out of memory, and not of addresses. */
  desc.reserve = 2 * device.total_bytes;
  /* Even an empty table has some memory, for a hub publishes nothing else. */
  desc.size = piece_size(change->tag.type);
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  desc.flags = GPUMEM_BUFFER_GEOMETRIC;
  desc.name = change->name;
  gpumem_status status;
  WITHOUT_SIGNALS(status, gpumem_buffer_create(session.device, &desc, &change->buffer, &error));
  check(status, &error, "allocate memory for the column");
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  check(gpumem_buffer_get_info(change->buffer, &info, &error), &error, "look at the memory");
  change->base = info.base;

  copy_table(change, table);
  for (int slot = 0; slot < 2; ++slot)
    check(gpumem_stream_synchronize(session.streams[slot], GPUMEM_TIMEOUT_INFINITE, &error), &error,
          "copy to the device");
  check(gpumem_buffer_set_capacity(change->buffer, 0, &error), &error, "free unused memory");
  check(gpumem_share_export(session.instance, change->base, NULL, &change->handle, &error), &error,
        "export the column");
}

Datum gpumem_pg_load(PG_FUNCTION_ARGS) {
  char name[64];
  hub_name(PG_GETARG_TEXT_PP(0), name);
  const char* column = NameStr(*PG_GETARG_NAME(2));
  Relation table = table_open(PG_GETARG_OID(1), AccessShareLock);
  const char* table_name = RelationGetRelationName(table);
  if (table->rd_rel->relkind != RELKIND_RELATION && table->rd_rel->relkind != RELKIND_MATVIEW)
    ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                    errmsg("\"%s\" is neither a table nor a materialized view", table_name),
                    errhint("Load the partitions of a partitioned table one by one.")));
  if (table->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
    ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                    errmsg("\"%s\" is a temporary table, which no other backend may read", table_name)));
  if (!RelationIsScannable(table))
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("\"%s\" has not been populated", table_name),
                    errhint("Use the REFRESH MATERIALIZED VIEW command.")));
  const AttrNumber attribute = get_attnum(RelationGetRelid(table), column);
  if (attribute <= 0)
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                    errmsg("table \"%s\" has no column \"%s\"", table_name, column)));
  check_right(RelationGetRelid(table), attribute, name);
  const Oid type = TupleDescAttr(RelationGetDescr(table), attribute - 1)->atttypid;
  if (width_of(type) == 0)
    ereport(ERROR,
            (errcode(ERRCODE_DATATYPE_MISMATCH),
             errmsg("column \"%s\" of table \"%s\" has type %s", column, table_name, format_type_be(type)),
             errhint("Only smallint, integer, bigint, real and double precision can be loaded.")));

  lock_name(name);
  open_link();
  open_staging(session.device);
  Change* change = new_change(name);
  change->tag = (Tag){.stamp = own_stamp(),
                      .database = MyDatabaseId,
                      .table = RelationGetRelid(table),
                      .loader = GetUserId(),
                      .type = type,
                      .attribute = attribute,
                      .backend = (uint8)session.backend,
                      .device = (uint8)gpumem_pg_device};

  PG_TRY();
  { load_column(change, table); }
  PG_CATCH();
  {
    finish_copies();
    gpumem_buffer_destroy(change->buffer, NULL);
    PG_RE_THROW();
  }
  PG_END_TRY();
  change->previous = changes;
  changes = change;
  /* Else a crash could lose the rows that this transaction has written, and not the copy. */
  ForceSyncCommit();
  table_close(table, NoLock);
  PG_RETURN_INT64((int64)change->tag.rows);
}

Datum gpumem_pg_drop(PG_FUNCTION_ARGS) {
  char name[64];
  hub_name(PG_GETARG_TEXT_PP(0), name);
  lock_name(name);
  const Change* before = find_change(name);
  Change* change = new_change(name);
  if (before != NULL ? before->buffer == NULL : change->old_version == 0) no_such_column(name);
  change->previous = changes;
  changes = change;
  PG_RETURN_VOID();
}

/* ---- Reading ---- */

/* Where its memory is: not on the device of gpumem.device, if that was another when it was loaded. */
static gpumem_device device_of(const Column* column) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  if (column->import == NULL) return session.device;
  check(gpumem_memory_get_info(column->import, &info, &error), &error, "look at the column");
  return info.device;
}

/* A walk over the pieces of a column. While one is looked at, the next one is copied from the device. */
typedef struct Walk {
  const Column* column;
  size_t bytes; /* of each piece, from its beginning */
  uint64 begun;
  uint64 done;
} Walk;

static void begin_piece(Walk* walk) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (walk->begun == pieces_of(walk->column->tag.rows)) return;
  gpumem_status status;
  WITHOUT_SIGNALS(status,
                  gpumem_copy_async(session.streams[walk->begun % 2], session.slots[walk->begun % 2],
                                    walk->column->base + walk->begun * piece_size(walk->column->tag.type),
                                    walk->bytes, NULL, &error));
  check(status, &error, "copy from the device");
  ++walk->begun;
}

/* The next piece, and its number of rows; or NULL. The one before is overwritten. */
static const char* next_piece(Walk* walk, uint32* rows) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  CHECK_FOR_INTERRUPTS();
  if (walk->done == walk->begun) begin_piece(walk);
  if (walk->done == walk->begun) return NULL;
  begin_piece(walk);
  check(gpumem_stream_synchronize(session.streams[walk->done % 2], GPUMEM_TIMEOUT_INFINITE, &error), &error,
        "copy from the device");
  *rows = (uint32)Min(walk->column->tag.rows - walk->done * PIECE_ROWS, PIECE_ROWS);
  return session.slots[walk->done++ % 2];
}

static bool is_null(const char* piece, Oid type, uint32 at) {
  return (piece[PIECE_ROWS * width_of(type) + at / 8] >> at % 8 & 1) != 0;
}

static int64 integer_at(const char* piece, Oid type, uint32 at) {
  if (type == INT2OID) return ((const int16*)piece)[at];
  if (type == INT4OID) return ((const int32*)piece)[at];
  return ((const int64*)piece)[at];
}

static double real_at(const char* piece, Oid type, uint32 at) {
  return type == FLOAT4OID ? ((const float*)piece)[at] : ((const double*)piece)[at];
}

/* Every digit that it takes to get the same double back. */
static Numeric numeric_of_real(double value) {
  char digits[DOUBLE_SHORTEST_DECIMAL_LEN];
  double_to_shortest_decimal_buf(value, digits);
  return DatumGetNumeric(DirectFunctionCall3(numeric_in, CStringGetDatum(digits),
                                             ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

static Numeric add_integer(Numeric total, int64 value) {
  Numeric addend = int64_to_numeric(value);
  return total == NULL ? addend : numeric_add_opt_error(total, addend, NULL);
}

/* NULL if there is no value. Integers are exact: the part that fits 64 bits is added when it is full. */
static Numeric sum_of(const Column* column) {
  const Oid type = column->tag.type;
  Walk walk = {.column = column, .bytes = tids_at(type)};
  uint64 values = 0;
  int64 part = 0;
  double real = 0;
  Numeric total = NULL;
  uint32 rows;
  for (const char* piece; (piece = next_piece(&walk, &rows)) != NULL;) {
    for (uint32 at = 0; at < rows; ++at) {
      if (is_null(piece, type, at)) continue;
      ++values;
      if (is_real(type)) {
        real = float8_pl(real, real_at(piece, type, at));
      } else {
        const int64 value = integer_at(piece, type, at);
        int64 next;
        if (pg_add_s64_overflow(part, value, &next)) {
          total = add_integer(total, part);
          next = value;
        }
        part = next;
      }
    }
  }
  if (values == 0) return NULL;
  return is_real(type) ? numeric_of_real(real) : add_integer(total, part);
}

Datum gpumem_pg_sum(PG_FUNCTION_ARGS) {
  char name[64];
  hub_name(PG_GETARG_TEXT_PP(0), name);
  Column column = attach(name, NULL);
  Numeric volatile sum = NULL;
  PG_TRY();
  {
    open_staging(device_of(&column));
    sum = sum_of(&column);
  }
  PG_FINALLY();
  { detach(&column); }
  PG_END_TRY();
  if (sum == NULL) PG_RETURN_NULL();
  PG_RETURN_NUMERIC(sum);
}

/* A condition: a bit for each of less, equal and greater. */
static int matches_of(const char* operator) {
  static const struct {
    const char* name;
    int matches;
  } operators[] = {{"<", 1}, {"=", 2}, {"<=", 3}, {">", 4}, {"<>", 5}, {"!=", 5}, {">=", 6}};
  for (int i = 0; i < lengthof(operators); ++i) {
    if (strcmp(operator, operators[i].name) == 0) return operators[i].matches;
  }
  ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                  errmsg("\"%s\" is no operator of gpumem.filter()", operator),
                  errhint("Use one of = <> < <= > >=.")));
}

static int64 integer_of(Numeric value, Oid type) {
  const int64 integer = DatumGetInt64(DirectFunctionCall1(numeric_int8, NumericGetDatum(value)));
  if (!DatumGetBool(DirectFunctionCall2(numeric_eq, NumericGetDatum(value),
                                        NumericGetDatum(int64_to_numeric(integer)))))
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("cannot compare values of type %s with %s", format_type_be(type),
                           numeric_normalize(value)),
                    errhint("Round it to an integer.")));
  return integer;
}

static void put_matches(const Column* column, int matches, Numeric value, ReturnSetInfo* result) {
  const Oid type = column->tag.type;
  const bool real = is_real(type);
  const int64 integer = real ? 0 : integer_of(value, type);
  const double number =
      real ? DatumGetFloat8(DirectFunctionCall1(numeric_float8, NumericGetDatum(value))) : 0;
  Walk walk = {.column = column, .bytes = piece_size(type)};
  uint32 rows;
  for (const char* piece; (piece = next_piece(&walk, &rows)) != NULL;) {
    for (uint32 at = 0; at < rows; ++at) {
      if (is_null(piece, type, at)) continue;
      int order;
      if (real) {
        order = float8_cmp_internal(real_at(piece, type, at), number);
      } else {
        const int64 found = integer_at(piece, type, at);
        order = (found > integer) - (found < integer);
      }
      if ((matches >> (order + 1) & 1) == 0) continue;
      Datum tid = PointerGetDatum((const ItemPointerData*)(piece + tids_at(type)) + at);
      bool null = false;
      tuplestore_putvalues(result->setResult, result->setDesc, &tid, &null);
    }
  }
}

Datum gpumem_pg_filter(PG_FUNCTION_ARGS) {
  char name[64];
  hub_name(PG_GETARG_TEXT_PP(0), name);
  const int matches = matches_of(text_to_cstring(PG_GETARG_TEXT_PP(1)));
  InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
  Column column = attach(name, NULL);
  PG_TRY();
  {
    open_staging(device_of(&column));
    put_matches(&column, matches, PG_GETARG_NUMERIC(2), (ReturnSetInfo*)fcinfo->resultinfo);
  }
  PG_FINALLY();
  { detach(&column); }
  PG_END_TRY();
  PG_RETURN_NULL();
}

/* ---- What is there ---- */

Datum gpumem_pg_columns(PG_FUNCTION_ARGS) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  ReturnSetInfo* result = (ReturnSetInfo*)fcinfo->resultinfo;
  InitMaterializedSRF(fcinfo, 0);
  open_link();
  for (uint32 index = 0;; ++index) {
    const gpumem_status status = gpumem_link_enumerate(session.link, index, &entry, &error);
    if (status == GPUMEM_ERROR_NOT_FOUND) break;
    check(status, &error, "list the hub");
    CHECK_FOR_INTERRUPTS();
    const Tag tag = tag_of(&entry);
    if (tag.stamp != own_stamp() || tag.database != MyDatabaseId || strchr(entry.name, '.') == NULL) continue;
    if (right_to(tag.table, tag.attribute) != RIGHT_GIVEN && !has_privs_of_role(GetUserId(), tag.loader))
      continue;

    NameData attribute;
    const bool there = exists(tag.table, tag.attribute);
    if (there) namestrcpy(&attribute, get_attname(tag.table, tag.attribute, false));
    const char* place = psprintf("%s:%u", backend_name(tag.backend), tag.device);
    Datum values[] = {CStringGetTextDatum(given_name(entry.name)),
                      ObjectIdGetDatum(tag.table),
                      NameGetDatum(&attribute),
                      ObjectIdGetDatum(tag.type),
                      Int64GetDatum((int64)tag.rows),
                      Int64GetDatum((int64)entry.size),
                      CStringGetTextDatum(place),
                      Int64GetDatum((int64)entry.version),
                      ObjectIdGetDatum(tag.loader)};
    bool nulls[lengthof(values)] = {[2] = !there};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
  }
  PG_RETURN_NULL();
}

Datum gpumem_pg_attach_times(PG_FUNCTION_ARGS) {
  ReturnSetInfo* result = (ReturnSetInfo*)fcinfo->resultinfo;
  char name[64];
  Times times = {.count = 0};
  hub_name(PG_GETARG_TEXT_PP(0), name);
  InitMaterializedSRF(fcinfo, 0);

  INSTR_TIME_SET_CURRENT(times.at[0]);
  open_instance();
  step_done(&times, "open");
  open_link();
  step_done(&times, "connect");
  Column column = attach(name, &times);
  detach(&column);

  for (int i = 0; i < times.count; ++i) {
    instr_time taken = times.at[i + 1];
    INSTR_TIME_SUBTRACT(taken, times.at[i]);
    Datum values[] = {CStringGetTextDatum(times.names[i]),
                      Float8GetDatum(INSTR_TIME_GET_DOUBLE(taken) * 1e6)};
    bool nulls[lengthof(values)] = {false};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
  }
  PG_RETURN_NULL();
}
