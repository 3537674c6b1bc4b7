// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks a thread while it runs a function of the caller in the middle of a call of the library.
#pragma once

#include <cstdint>
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

// Memory that a call of this thread uses while it runs functions of the caller: these must not free it
// (COM-27). For memory whose uses nobody announces, as of blocks of pools.
class UsedInCallbacks {
 public:
  UsedInCallbacks(uint64_t base, uint64_t size) noexcept : base_(base), size_(size), outer_(last_) {
    last_ = this;
  }
  UsedInCallbacks(const UsedInCallbacks&) = delete;
  UsedInCallbacks& operator=(const UsedInCallbacks&) = delete;
  ~UsedInCallbacks() { last_ = outer_; }
  // Whether it lies in these bytes, in part at least.
  static bool any_in(uint64_t base, uint64_t size) noexcept;

 private:
  static constinit inline thread_local const UsedInCallbacks* last_ = nullptr;
  const uint64_t base_;
  const uint64_t size_;
  const UsedInCallbacks* const outer_;  // of a call whose callback made this one
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
