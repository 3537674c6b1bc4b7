// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Makes the memory of stores on threads of its own, while the caller copies to what is made already.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/buffer/store.h"
#include "core/object/context.h"

namespace gpumem::core {

// Made, used and destroyed by one call. It works without any thread, too: then the call makes each piece.
class PieceMaker {
 public:
  // `limits_root` stands before the paths that say what memory is left: for tests.
  explicit PieceMaker(Context& context, const char* limits_root = "")
      : context_(context), limits_root_(limits_root) {}
  PieceMaker(const PieceMaker&) = delete;
  PieceMaker& operator=(const PieceMaker&) = delete;
  // Ends the threads, and gives back what no store took.
  ~PieceMaker();

  // Orders what a store lacks, in pieces. Before start().
  Result<void> order(Store& store, const StoreRequest& request, uint64_t bytes);
  void start();

  // Adds the next piece to the store that it was ordered for, once it is made.
  Result<void> add_to(Store& store);
  // Whether all pieces are in their stores.
  bool done() const { return taken_ == orders_.size(); }

 private:
  // While one thread has its piece page-locked, which the driver does for one at a time, another has the
  // system provide its pages (docs/measured/pinning.md).
  static constexpr size_t kThreads = 2;

  struct Order {
    const Store* store;
    uint64_t size;
    std::optional<Result<Store::Piece>> made = {};
  };
  using Lock = std::unique_lock<std::mutex>;

  void run() noexcept;
  bool may_begin() const noexcept;
  void make(Lock& lock) noexcept;

  Context& context_;
  const char* const limits_root_;
  std::vector<Order> orders_;
  uint64_t ordered_ = 0;  // bytes
  size_t taken_ = 0;      // of the orders
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // for what follows, and Order::made
  std::condition_variable made_;
  size_t begun_ = 0;     // of the orders
  uint64_t making_ = 0;  // bytes
  bool stopped_ = false;
};

}  // namespace gpumem::core
