// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks a thread while it runs a function of the caller in the middle of a call of the library.
#pragma once

#include <mutex>

#include "platform/thread_record.h"

namespace gpumem::core {

class Callback {
 public:
  Callback() noexcept;
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() { process_ = before_; }
  static bool runs_here() noexcept;

 private:
  // Epoch of the process in which this thread runs one, or 0. A child that it forks is not in it.
  static constinit inline thread_local uint32_t process_ = 0;
  const uint32_t before_;
  const platform::Waiting waiting_;
};

// Locks a mutex whose holder may run a function of the caller or wait for uses. In a callback, only tries the
// lock, because the holder may be waiting for that callback.
template <class Mutex>
std::unique_lock<Mutex> lock_unless_in_callback(Mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  if (lock || Callback::runs_here()) return lock;
  const platform::Waiting waiting;
  lock.lock();
  return lock;
}

}  // namespace gpumem::core
