// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Threads for the trials that other processes ask for: one for each of them, because a trial waits for that
// process, and must hold up no other one's.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>

#include "base/result.h"
#include "core/object/background.h"

namespace gpumem::core {

// All but stop() with the lock of the event loop.
class TrialLanes {
 public:
  // Another user's process may have the same number in another namespace.
  struct Asker {
    uint32_t user = 0;
    int32_t process = 0;
    auto operator<=>(const Asker&) const = default;
  };

  // Runs the trial, without the lock, when those of the asker before it are over. It calls is_over() at its
  // end. BUSY while the user has too many, LIMIT_EXCEEDED if no thread can be made.
  Result<void> add(const Asker& asker, std::function<void()> trial);
  void is_over(const Asker& asker) noexcept;
  bool is_this_thread() const;
  // Without the lock, because trials take it. Nothing may be added any more.
  void stop() noexcept;

 private:
  struct Lane {
    Background thread;
    uint64_t count = 0;  // that wait or run
  };
  std::map<Asker, Lane> lanes_;
};

}  // namespace gpumem::core
