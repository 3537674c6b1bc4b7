// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Locks on pages. The system does not count locks, so this counts them for registrations that share a page,
// in all instances (PIN-12), and leaves locked what was locked before.
#pragma once

#include <cstdint>
#include <utility>

#include "base/result.h"

namespace gpumem::host {

// Pages that stay locked until the destructor runs.
class PageLock {
 public:
  explicit PageLock(uint64_t begin = 0) : begin_(begin), end_(begin) {}
  PageLock(PageLock&& other) noexcept
      : begin_(std::exchange(other.begin_, 0)), end_(std::exchange(other.end_, 0)) {}
  PageLock& operator=(PageLock&& other) noexcept {
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    return *this;
  }
  ~PageLock();

  // Locks the next pages up to `end`, all or none.
  Result<void> extend(uint64_t end);

 private:
  uint64_t begin_;
  uint64_t end_;
};

}  // namespace gpumem::host
