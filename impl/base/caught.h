// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <new>
#include <system_error>

#include "base/errno_texts.h"
#include "base/result.h"

namespace gpumem {

// What to do where the system provides no thread.
inline constexpr const char* kThreadRemedy =
    "end some threads or processes, or raise the limit (ulimit -u, or pids.max of the control group)";

// The failure that an exception of the C++ library stands for. To be called in a handler.
[[gnu::cold]] inline Error caught_failure() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
                      "out of memory for the library's own records; free some memory");
  } catch (const std::system_error& problem) {
    const int code = problem.code().value();
    const bool lacks = code == EAGAIN;
    return make_error(lacks ? GPUMEM_ERROR_OUT_OF_HOST_MEMORY : GPUMEM_ERROR_INTERNAL,
                      "the system did not provide a thread or lock: %s%s%s", problem.what(),
                      lacks ? "; " : "", lacks ? kThreadRemedy : "")
        .from_native(GPUMEM_NATIVE_ERRNO, code, errno_name(code), "pthread_create");
  } catch (...) {
    return make_error(GPUMEM_ERROR_INTERNAL, "unexpected exception in the library; please report it");
  }
}

}  // namespace gpumem
