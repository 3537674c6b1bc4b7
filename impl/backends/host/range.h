// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Owned address ranges, and a quarantine for freed ones.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/pages.h"

namespace gpumem::host {

class Range {
 public:
  Range() = default;
  Range(void* address, uint64_t size) : address_(address), size_(size) {}
  Range(Range&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Range& operator=(Range&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Range() {
    if (address_ != nullptr) platform::unmap(address_, size_);
  }

  void* address() const { return address_; }
  uint64_t size() const { return size_; }

 private:
  void* address_ = nullptr;
  uint64_t size_ = 0;
};

// Keeps freed ranges inaccessible, so that a use after free faults instead of reaching newer memory.
class Quarantine {
 public:
  explicit Quarantine(uint32_t ranges) : ranges_(ranges) {}

  // Replaces the oldest range, whose addresses become available again.
  void add(Range range) {
    if (range.address() == nullptr) return;
    if (!platform::make_inaccessible(range.address(), range.size())) return;
    const std::lock_guard lock(mutex_);
    std::swap(ranges_[next_], range);
    next_ = (next_ + 1) % ranges_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<Range> ranges_;
  size_t next_ = 0;
};

}  // namespace gpumem::host
