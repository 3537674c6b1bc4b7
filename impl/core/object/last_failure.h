// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The last call of this process that failed for lack of memory, for snapshots.
#pragma once

#include <optional>

#include "base/result.h"

namespace gpumem::core {

struct LastFailure {
  const char* function = "";  // a constant
  uint64_t time = 0;          // seconds since 1970
  Error error;
};

// Ignores other failures: such as BUSY would soon hide what needs an explanation.
void note_failure(const char* function, const Error& error) noexcept;
std::optional<LastFailure> last_failure();

}  // namespace gpumem::core
