// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The function that receives the library's messages.
#pragma once

#include "base/result.h"
#include "gpumem/log.h"

namespace gpumem::core {

Result<void> set_log_function(gpumem_log_function function, void* user_data, gpumem_log_level max_level);

// Delivers one line if somebody listens at this level. Never fails.
[[gnu::format(printf, 2, 3)]] void log(gpumem_log_level level, const char* format, ...) noexcept;

}  // namespace gpumem::core
