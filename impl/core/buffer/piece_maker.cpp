// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/piece_maker.h"

#include <pthread.h>
#include <algorithm>
#include <exception>
#include <utility>

#include "base/caught.h"
#include "platform/thread.h"

namespace gpumem::core {

PieceMaker::~PieceMaker() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  for (std::thread& thread : threads_)
    thread.join();
  for (size_t i = taken_; i < orders_.size(); ++i) {
    // What cannot be given back is destroyed with the instance.
    if (const Order& left = orders_[i]; left.made && left.made->ok())
      (void)left.store->give_back(**left.made);
  }
}

Result<void> PieceMaker::order(Store& store, const StoreRequest& request, uint64_t bytes) {
  GPUMEM_TRY(store.set_request(request));
  uint64_t missing = store.missing(bytes);
  const uint64_t pieces = missing / Store::kPiece + 1;
  store.reserve_pieces(pieces);
  orders_.reserve(orders_.size() + pieces);
  while (missing != 0) {
    const uint64_t size = std::min(missing, Store::kPiece);
    orders_.push_back({&store, size});
    ordered_ += size;
    missing -= size;
  }
  return {};
}

void PieceMaker::start() {
  if (ordered_ <= Store::kPiece) return;  // starting threads is not worth the cost
  try {
    threads_.reserve(kThreads);
    while (threads_.size() < kThreads) {
      threads_.push_back(platform::start_thread([this] {
        pthread_setname_np(pthread_self(), "gpumem-store");
        run();
      }));
    }
  } catch (const std::exception&) {
    // Go on with fewer. Without any, add_to() makes each piece.
  }
}

Result<Store::Piece> PieceMaker::make(const Order& order) noexcept {
  try {
    return order.store->make_piece(order.size);
  } catch (...) {
    return caught_failure();
  }
}

void PieceMaker::run() noexcept {
  std::unique_lock lock(mutex_);
  while (!stopped_ && begun_ < orders_.size()) {
    Order& order = orders_[begun_++];
    lock.unlock();
    auto made = make(order);
    lock.lock();
    stopped_ = stopped_ || !made.ok();
    order.made.emplace(std::move(made));
    made_.notify_one();
  }
}

// Orders are begun and taken in the same order. So who comes upon one that was not begun knows that none
// before it failed.
Result<void> PieceMaker::add_to(Store& store) {
  Order& order = orders_[taken_];
  std::unique_lock lock(mutex_);
  if (begun_ == taken_) {
    ++begun_;
    lock.unlock();
    order.made.emplace(make(order));
  } else {
    made_.wait(lock, [&] { return order.made.has_value(); });
  }
  if (!order.made->ok()) return order.made->error();
  store.add(**order.made);
  ++taken_;
  return {};
}

}  // namespace gpumem::core
