// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts the backend's system calls, so that a test can make any one of them fail (COM-8).
#pragma once

#include <cerrno>
#include <cstdint>
#include <mutex>

#include "platform/pages.h"

namespace gpumem::host {

class Steps {
 public:
  // Makes the n-th step from now on fail; 0 turns this off.
  void fail(uint64_t step, bool repeat) {
    const std::lock_guard lock(mutex_);
    taken_ = 0;
    failing_ = step;
    repeat_ = repeat;
  }

  // Called before each step.
  Result<void> take(const char* entry_point) {
    const std::lock_guard lock(mutex_);
    if (failing_ == 0) return {};
    ++taken_;
    if (taken_ != failing_ && !(repeat_ && taken_ > failing_)) return {};
    return platform::system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, ENOMEM, entry_point,
                                  "made to fail by gpumem_host_fail_step()");
  }

 private:
  std::mutex mutex_;
  uint64_t taken_ = 0;
  uint64_t failing_ = 0;
  bool repeat_ = false;
};

}  // namespace gpumem::host
