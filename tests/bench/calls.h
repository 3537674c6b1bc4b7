// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls of the library that end the program if they fail, and sizes in words.
#pragma once

#include <string>

#include "raw.h"

namespace bench {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// Calls are made by so many threads at once.
inline constexpr int kThreads[] = {1, 2, 4, 8, 16};

inline std::string text_of(uint64_t size) {
  if (size >= kGiB) return std::to_string(size / kGiB) + "GiB";
  return size >= kMiB ? std::to_string(size / kMiB) + "MiB" : std::to_string(size / kKiB) + "KiB";
}

inline void check(gpumem_status status, const gpumem_error& error) {
  if (GPUMEM_FAILED(status)) {
    fail(std::string(error.function) + ": " + gpumem_status_name(status) + ": " + error.message);
  }
}

// Runs a call that takes a gpumem_error as its last argument. In the timed calls the detail is not asked for.
template <class Function, class... Arguments>
void must(Function function, Arguments... arguments) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  check(function(arguments..., &error), error);
}
inline void must_succeed(gpumem_status status) {
  if (GPUMEM_FAILED(status)) fail(gpumem_status_name(status));
}

}  // namespace bench
