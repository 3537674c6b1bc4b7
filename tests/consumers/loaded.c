/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A program that loads the library with dlopen and knows one symbol. Usage: loaded LIBRARY */
#include <dlfcn.h>
#include <gpumem/table.h>

static gpumem_table table;

#define CALL(function) table.function
#include "round_trip.h"

int main(int argc, char** argv) {
  PFN_gpumem_table_get get = NULL;
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  void* symbol = library != NULL ? dlsym(library, "gpumem_table_get") : NULL;
  if (symbol == NULL) {
    fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: loaded LIBRARY");
    return 1;
  }
  /* ISO C has no conversion from an object pointer to a function pointer. */
  memcpy(&get, &symbol, sizeof get);
  table.struct_size = sizeof table;
  if (GPUMEM_FAILED(get(GPUMEM_VERSION, &table, NULL))) {
    fprintf(stderr, "gpumem_table_get refused\n");
    return 1;
  }
  return round_trip();
}
