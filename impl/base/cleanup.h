// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Undo of a finished step when a later one fails (COM-8).
#pragma once

#include <utility>

namespace gpumem {

// Runs a function at the end of the scope unless dismissed.
template <class F>
class Cleanup {
 public:
  explicit Cleanup(F undo) : undo_(std::move(undo)) {}
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;
  ~Cleanup() {
    if (armed_) undo_();
  }
  void dismiss() { armed_ = false; }

 private:
  F undo_;
  bool armed_ = true;
};

}  // namespace gpumem
