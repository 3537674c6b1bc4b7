// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/piece_maker.h"

#include <pthread.h>
#include <algorithm>
#include <exception>
#include <utility>

#include "base/caught.h"
#include "core/object/abandoned.h"
#include "platform/host_budget.h"
#include "platform/pages.h"
#include "platform/thread.h"

namespace gpumem::core {

PieceMaker::~PieceMaker() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    made_.notify_all();
  }
  for (std::thread& thread : threads_)
    thread.join();
  for (size_t i = taken_; i < orders_.size(); ++i) {
    const Order& left = orders_[i];
    if (!left.made || !left.made->ok()) continue;
    const Store::Piece& piece = **left.made;
    if (piece.memory != 0) {
      abandon(context_, piece.memory);
    } else {
      platform::unmap(piece.bytes, piece.size);
    }
  }
}

Result<void> PieceMaker::order(Store& store, const StoreRequest& request, uint64_t bytes) {
  GPUMEM_TRY(store.set_request(request));
  uint64_t missing = store.missing(bytes);
  store.reserve_pieces(missing / Store::kPiece + 1);
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
  // The pages of ordinary memory are provided by several threads, and nothing follows.
  const size_t threads = orders_.front().store->content() == GPUMEM_CONTENT_PINNED ? kThreads : 1;
  try {
    threads_.reserve(threads);
    while (threads_.size() < threads) {
      threads_.push_back(platform::start_thread([this] {
        pthread_setname_np(pthread_self(), "gpumem-store");
        run();
      }));
    }
  } catch (const std::exception&) {
    // Go on with fewer. Without any, add_to() makes each piece.
  }
}

// Pages that another thread has not touched yet are missing in what the system says that it has left. Where
// that does not suffice for all of them, one piece is made after the other, since the last may have to fail.
bool PieceMaker::may_begin() const noexcept {
  if (making_ == 0) return true;
  try {
    return platform::check_host_budget(making_ + orders_[begun_].size, limits_root_).ok();
  } catch (const std::exception&) {
    return false;
  }
}

void PieceMaker::make(Lock& lock) noexcept {
  Order& order = orders_[begun_++];
  making_ += order.size;
  lock.unlock();
  auto made = [&]() -> Result<Store::Piece> {
    try {
      return order.store->make_piece(order.size);
    } catch (...) {
      return caught_failure();
    }
  }();
  lock.lock();
  making_ -= order.size;
  stopped_ = stopped_ || !made.ok();
  order.made.emplace(std::move(made));
  made_.notify_all();
}

void PieceMaker::run() noexcept {
  Lock lock(mutex_);
  for (;;) {
    made_.wait(lock, [&] { return stopped_ || begun_ == orders_.size() || may_begin(); });
    if (stopped_ || begun_ == orders_.size()) return;
    make(lock);
  }
}

// Orders are begun and taken in the same order. So who comes upon one that was not begun knows that none
// before it failed.
Result<void> PieceMaker::add_to(Store& store) {
  Order& order = orders_[taken_];
  Lock lock(mutex_);
  made_.wait(lock, [&] { return order.made.has_value() || (begun_ == taken_ && may_begin()); });
  if (!order.made) make(lock);
  if (!order.made->ok()) return order.made->error();
  store.add(**order.made);
  ++taken_;
  return {};
}

}  // namespace gpumem::core
