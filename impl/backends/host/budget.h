// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A limited resource: the memory of a device, the registrations of an instance.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace gpumem::host {

class Budget {
 public:
  explicit Budget(uint64_t total) : total_(total) {}

  uint64_t total() const { return total_; }
  uint64_t available() const { return total_ - used_.load(); }

 private:
  friend class Charge;
  const uint64_t total_;
  std::atomic<uint64_t> used_{0};
};

// Part of a budget; the destructor returns it.
class Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), amount_(std::exchange(other.amount_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(amount_, other.amount_);
    return *this;
  }
  ~Charge() {
    if (budget_ != nullptr) budget_->used_.fetch_sub(amount_);
  }

  // Fills an empty charge; false if the budget does not have that much left.
  bool take(Budget& budget, uint64_t amount) {
    uint64_t used = budget.used_.load();
    do {
      if (amount > budget.total_ - used) return false;
    } while (!budget.used_.compare_exchange_weak(used, used + amount));
    budget_ = &budget;
    amount_ = amount;
    return true;
  }

 private:
  Budget* budget_ = nullptr;
  uint64_t amount_ = 0;
};

}  // namespace gpumem::host
