// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks the threads that run code of the caller in stream order: host functions, and kernel stand-ins
// (COM-27).
#pragma once

#include "platform/thread_record.h"

namespace gpumem::backend {

// Marks the calling thread for as long as it lives.
class HostFunctionMark {
 public:
  HostFunctionMark() : before_(platform::host_function_process) { set(platform::process_epoch()); }
  HostFunctionMark(const HostFunctionMark&) = delete;
  HostFunctionMark& operator=(const HostFunctionMark&) = delete;
  ~HostFunctionMark() { set(before_); }

  // Not in a child that the function forks: that is a process like any other.
  static bool is_set() {
    const uint32_t process = platform::host_function_process;
    return process != 0 && process == platform::process_epoch();
  }

 private:
  static void set(uint32_t process) noexcept {
    platform::host_function_process = process;
    // A thread that gets its record later, in the function, sees it then.
    if (platform::thread_record_or_null != nullptr) platform::thread_record_or_null->choose_way();
  }

  const uint32_t before_;
};

}  // namespace gpumem::backend
