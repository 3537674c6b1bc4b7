// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Words of shared memory that threads wait for, and that another process may never change again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "platform/shared_word.h"

namespace gpumem::core {

class Sleepers {
 public:
  void add(std::atomic<uint32_t>& word) {
    const std::lock_guard lock(mutex_);
    words_.push_back(&word);
  }
  void remove(const std::atomic<uint32_t>& word) noexcept {
    const std::lock_guard lock(mutex_);
    if (const auto at = std::find(words_.begin(), words_.end(), &word); at != words_.end()) words_.erase(at);
  }
  // Adds 1 to each word and wakes its waiters.
  void wake() noexcept {
    const std::lock_guard lock(mutex_);
    for (std::atomic<uint32_t>* const word : words_) {
      ++*word;
      platform::wake_all(*word);
    }
  }

 private:
  std::mutex mutex_;  // nothing is taken under it
  std::vector<std::atomic<uint32_t>*> words_;
};

}  // namespace gpumem::core
