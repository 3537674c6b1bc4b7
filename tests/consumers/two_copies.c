/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A program that is linked to one copy of the library and loads another, as a plug-in would. Each must keep
 * to itself. Usage: two_copies OTHER_LIBRARY */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gpumem/table.h>

static gpumem_table table;

#define CALL(function) table.function
#include "round_trip.h"

/* Whether every function of a table lies in the file that `member` lies in. */
static int of_one_file(const gpumem_table* given, void* member, const char* name) {
  Dl_info expected, found;
  size_t at;
  if (dladdr(member, &expected) == 0) return 0;
  for (at = sizeof(size_t); at < sizeof *given; at += sizeof(void*)) {
    void* function = NULL;
    memcpy(&function, (const char*)given + at, sizeof function);
    if (dladdr(function, &found) == 0 || found.dli_fbase != expected.dli_fbase) {
      fprintf(stderr, "the table of the %s copy holds a function of %s\n", name, found.dli_fname);
      return 0;
    }
  }
  return 1;
}

static int use(PFN_gpumem_table_get get, void* symbol, const char* name) {
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  if (GPUMEM_FAILED(get(GPUMEM_VERSION, &table, NULL))) {
    fprintf(stderr, "gpumem_table_get of the %s copy refused\n", name);
    return 0;
  }
  return of_one_file(&table, symbol, name) && round_trip() == 0;
}

/* What has a handle in one copy has none in the other. */
static int keep_apart(PFN_gpumem_table_get one, PFN_gpumem_table_get other) {
  PFN_gpumem_table_get const get[2] = {one, other};
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  gpumem_table tables[2];
  gpumem_instance instances[2] = {NULL, NULL};
  int apart = 1;
  int i;
  desc.backend = GPUMEM_BACKEND_HOST;
  for (i = 0; i < 2; ++i) {
    memset(&tables[i], 0, sizeof tables[i]);
    tables[i].struct_size = sizeof tables[i];
    if (GPUMEM_FAILED(get[i](GPUMEM_VERSION, &tables[i], NULL))) return 0;
    if (GPUMEM_FAILED(tables[i].gpumem_instance_open(&desc, &instances[i], NULL))) return 0;
  }
  for (i = 0; i < 2; ++i) {
    if (!GPUMEM_FAILED(tables[1 - i].gpumem_instance_close(instances[i], GPUMEM_CLOSE_CHECK, NULL, NULL)) ||
        GPUMEM_FAILED(tables[i].gpumem_instance_close(instances[i], GPUMEM_CLOSE_CHECK, NULL, NULL)))
      apart = 0;
  }
  if (!apart) fprintf(stderr, "one copy closed an instance of the other\n");
  return apart;
}

int main(int argc, char** argv) {
  PFN_gpumem_table_get get = NULL;
  void* other = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  void* theirs = other != NULL ? dlsym(other, "gpumem_table_get") : NULL;
  void* own = dlsym(RTLD_DEFAULT, "gpumem_table_get");
  if (theirs == NULL || own == NULL || theirs == own) {
    fprintf(stderr, "there are no two copies\n");
    return 1;
  }
  memcpy(&get, &theirs, sizeof get);
  if (!keep_apart(get, gpumem_table_get)) return 1;
  if (!use(get, theirs, "loaded")) return 1;
  return use(gpumem_table_get, own, "linked") ? 0 : 1;
}
