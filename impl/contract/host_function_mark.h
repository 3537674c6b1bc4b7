// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks the threads that run code of the caller in stream order: host functions, and kernel stand-ins
// (COM-27).
#pragma once

#include "platform/thread_record.h"

namespace gpumem::backend {

// Marks the calling thread for as long as it lives.
class HostFunctionMark {
 public:
  HostFunctionMark() : record_(platform::thread_record()) { ++record_.host_functions; }
  HostFunctionMark(const HostFunctionMark&) = delete;
  HostFunctionMark& operator=(const HostFunctionMark&) = delete;
  ~HostFunctionMark() { --record_.host_functions; }

  static bool is_set() { return platform::thread_record().host_functions != 0; }

 private:
  platform::ThreadRecord& record_;
};

}  // namespace gpumem::backend
