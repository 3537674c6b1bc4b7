// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks a thread while it runs a function of the caller in the middle of a call of the library.
#pragma once

namespace gpumem::core {

class Callback {
 public:
  Callback() { ++depth_; }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() { --depth_; }
  static bool runs_here() { return depth_ != 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace gpumem::core
