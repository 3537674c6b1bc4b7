// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/library.h"

#include <dlfcn.h>

namespace gpumem::platform {

Result<void*> load_library(const char* name, Status missing) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* why = dlerror();
  Error error = make_error(missing, "cannot load %s: %s", name, why != nullptr ? why : "no reason given");
  error.entry_point = "dlopen";
  return error;
}

void unload_library(void* library) { dlclose(library); }

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

}  // namespace gpumem::platform
