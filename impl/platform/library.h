// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Dynamic libraries that are looked for at run time.
#pragma once

#include "base/result.h"

namespace gpumem::platform {

// Loads a library with symbols of its own; the error, of class `missing`, says what the system answered.
Result<void*> load_library(const char* name, Status missing);
void unload_library(void* library);
// Null if the library has no such symbol.
void* find_symbol(void* library, const char* name);

}  // namespace gpumem::platform
