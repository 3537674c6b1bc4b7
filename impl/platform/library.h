// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Loads dynamic libraries at run time.
#pragma once

#include "base/result.h"

namespace gpumem::platform {

// Loads a library with local symbols. The error has status `missing` and the loader's message.
Result<void*> load_library(const char* name, Status missing);
void unload_library(void* library);
// Null if the library has no such symbol.
void* find_symbol(void* library, const char* name);

}  // namespace gpumem::platform
