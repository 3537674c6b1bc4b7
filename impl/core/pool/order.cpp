// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/pool/order.h"

#include <algorithm>

#include "base/cleanup.h"

namespace gpumem::core {

bool PoolOrder::mark(bool in_call, bool ends) {
  if (unmarked_ == 0 || stream_ == nullptr || (native_ && !in_call)) return false;
  if (fence_ == nullptr) {
    auto fence = stream_->fence();
    if (!fence) return false;
    fence_ = std::move(*fence);
  }
  marks_.emplace_back();
  Cleanup drop([&] { marks_.pop_back(); });
  const auto number = fence_->mark(*stream_, ends);
  if (!number) return false;
  drop.dismiss();
  marks_.back() = {epoch_++, *number};
  unmarked_ = 0;
  return true;
}

bool PoolOrder::poll() {
  // Nothing runs on a lost device any more.
  if (!is_none() && device_ != nullptr && device_->lost() && (unmarked_ != 0 || !marks_.empty())) pass_all();
  while (!marks_.empty()) {
    if (fence_->poll(marks_.front().second) == GPUMEM_NOT_READY) break;
    passed_ = marks_.front().first;
    marks_.pop_front();
  }
  return std::exchange(told_, passed_) != passed_;
}

bool PoolOrder::ask() {
  if (idle()) return true;
  if (stream_ == nullptr || native_) return false;
  const auto capturing = stream_->is_capturing();
  if (!capturing || *capturing) return false;
  const auto complete = stream_->observe(0);
  if (!complete || !*complete) return false;
  pass_all();
  return true;
}

void PoolOrder::reserve(uint32_t class_index, size_t count) {
  std::unique_ptr<Shelf>& shelf = shelves_[class_index];
  if (shelf == nullptr) shelf = std::make_unique<Shelf>();
  if (!shelf->empty() && shelf->back().blocks.empty()) shelf->back().epoch = epoch();
  if (shelf->empty() || shelf->back().epoch != epoch()) {
    Group group;
    group.epoch = epoch();
    group.blocks.reserve(count);
    shelf->push_back(std::move(group));
    return;
  }
  std::vector<PoolFree>& blocks = shelf->back().blocks;
  if (blocks.capacity() - blocks.size() < count)
    blocks.reserve(std::max(2 * blocks.size(), blocks.size() + count));
}

void PoolOrder::push(uint32_t class_index, const PoolFree* blocks, size_t count) {
  reserve(class_index, count);
  std::vector<PoolFree>& group = shelves_[class_index]->back().blocks;
  group.insert(group.end(), blocks, blocks + count);
  note_frees(count);
}

size_t PoolOrder::pop_from(std::vector<PoolFree>& group, PoolFree* out, size_t count) {
  const size_t some = std::min(count, group.size());
  std::copy(group.end() - static_cast<ptrdiff_t>(some), group.end(), out);
  group.resize(group.size() - some);
  return some;
}

size_t PoolOrder::pop(uint32_t class_index, PoolFree* out, size_t count) {
  Shelf* const shelf = shelves_[class_index].get();
  size_t taken = 0;
  while (shelf != nullptr && !shelf->empty()) {
    std::vector<PoolFree>& group = shelf->back().blocks;
    taken += pop_from(group, out + taken, count - taken);
    if (!group.empty() || shelf->size() == 1) break;
    shelf->pop_back();
  }
  return taken;
}

size_t PoolOrder::pop_passed(uint32_t class_index, PoolFree* out, size_t count) {
  Shelf* const shelf = shelves_[class_index].get();
  size_t taken = 0;
  while (shelf != nullptr && !shelf->empty() && has_passed(shelf->front().epoch)) {
    std::vector<PoolFree>& group = shelf->front().blocks;
    taken += pop_from(group, out + taken, count - taken);
    if (!group.empty() || shelf->size() == 1) break;
    shelf->pop_front();
  }
  return taken;
}

size_t PoolOrder::count(uint32_t class_index) const {
  size_t count = 0;
  if (shelves_[class_index] != nullptr) {
    for (const Group& group : *shelves_[class_index])
      count += group.blocks.size();
  }
  return count;
}

bool PoolOrder::empty() const {
  for (uint32_t i = 0; i < PoolClasses::kCountMax; ++i) {
    if (has(i)) return false;
  }
  return true;
}

}  // namespace gpumem::core
