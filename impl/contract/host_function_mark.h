// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks the threads that run code of the caller in stream order: host functions, and kernel stand-ins
// (COM-27).
#pragma once

#include "platform/thread_record.h"

namespace gpumem::backend {

// Marks the calling thread for as long as it lives.
class HostFunctionMark {
 public:
  HostFunctionMark() { ++platform::host_functions_running; }
  HostFunctionMark(const HostFunctionMark&) = delete;
  HostFunctionMark& operator=(const HostFunctionMark&) = delete;
  ~HostFunctionMark() { --platform::host_functions_running; }

  static bool is_set() { return platform::host_functions_running != 0; }
};

}  // namespace gpumem::backend
