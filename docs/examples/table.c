/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Uses the library without linking it. See docs/building.md. */
#include <dlfcn.h>
#include <gpumem/gpumem.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  void* library = dlopen("libgpumem.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  PFN_gpumem_table_get get = NULL;
  void* symbol = dlsym(library, "gpumem_table_get");
  memcpy(&get, &symbol, sizeof get); /* ISO C cannot cast between the two kinds of pointer. */
  if (get == NULL) return 1;

  gpumem_error error = GPUMEM_ERROR_INIT;
  static gpumem_table gpumem;
  gpumem.struct_size = sizeof gpumem;
  if (GPUMEM_FAILED(get(GPUMEM_VERSION, &gpumem, &error))) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  printf("gpumem %s\n", gpumem.gpumem_version_text());
  return 0;
}
