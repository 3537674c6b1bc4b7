// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks a thread while it runs a function of the caller in the middle of a call of the library.
#pragma once

#include <mutex>

#include "platform/thread_record.h"

namespace gpumem::core {

class Callback {
 public:
  Callback() noexcept { ++depth_; }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() { --depth_; }
  static bool runs_here() { return depth_ != 0; }

 private:
  static inline thread_local int depth_ = 0;
  const platform::Waiting waiting_;
};

// Locks what another thread may hold while it runs a function of the caller or waits for uses. That thread
// may wait for the callback that calls this: then the answer is no lock.
template <class Mutex>
std::unique_lock<Mutex> lock_unless_in_callback(Mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  if (lock || Callback::runs_here()) return lock;
  const platform::Waiting waiting;
  lock.lock();
  return lock;
}

}  // namespace gpumem::core
