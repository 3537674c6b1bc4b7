// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks the threads that run code of the caller in stream order: host functions, and what stands for kernels
// (COM-27).
#pragma once

namespace gpumem::backend {

// Marks the calling thread for as long as it lives.
class HostFunctionMark {
 public:
  HostFunctionMark() { ++marks_; }
  HostFunctionMark(const HostFunctionMark&) = delete;
  HostFunctionMark& operator=(const HostFunctionMark&) = delete;
  ~HostFunctionMark() { --marks_; }

  static bool is_set() { return marks_ != 0; }

 private:
  static inline constinit thread_local int marks_ = 0;
};

}  // namespace gpumem::backend
