// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A lock that is held while the caller's functions run. It knows its thread, to refuse recursion.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>

#include "base/result.h"
#include "core/object/callback.h"
#include "core/object/handles.h"
#include "platform/thread_record.h"

namespace gpumem::core {

class Exclusive {
 public:
  class Held {
   public:
    Held() = default;
    explicit Held(Exclusive& lock) : lock_(&lock) {}
    Held(Held&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)) {}
    Held& operator=(Held&& other) noexcept {
      std::swap(lock_, other.lock_);
      return *this;
    }
    ~Held() {
      if (lock_ != nullptr) lock_->leave();
    }

   private:
    Exclusive* lock_ = nullptr;
  };

  // Waits for other threads; BUSY in a callback, which could wait forever. INVALID_STATE if this thread holds
  // the lock.
  Result<Held> enter() {
    const void* const self = &platform::thread_record();
    if (owner_.load(std::memory_order_relaxed) == self) {
      return make_error(GPUMEM_ERROR_INVALID_STATE,
                        "this thread is in a callback of a call that changes the object; call after that has "
                        "returned");
    }
    auto lock = lock_unless_in_callback(mutex_);
    if (!lock) return changed_elsewhere("object");
    lock.release();
    owner_.store(self, std::memory_order_relaxed);
    return Held(*this);
  }

 private:
  void leave() noexcept {
    owner_.store(nullptr, std::memory_order_relaxed);
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::atomic<const void*> owner_{nullptr};
};

}  // namespace gpumem::core
