// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/environment.h"

#include <cstdlib>

namespace gpumem::platform {

const char* environment(const char* name) {
  const char* value = secure_getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace gpumem::platform
