// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The order in which blocks were freed: one for each stream, with marks behind the frees.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "contract/device.h"
#include "contract/fence.h"
#include "contract/stream.h"
#include "core/memory/pool_blocks.h"
#include "core/memory/pool_classes.h"
#include "core/pool/space.h"

namespace gpumem::core {

// The stream of a call, or none.
struct PoolStream {
  static constexpr uint64_t kNone = 0;
  static constexpr uint64_t kByHandle = uint64_t{1} << 62;  // set in keys that are no id of a stream
  uint64_t key = kNone;                                     // tells it from all others
  std::shared_ptr<backend::Stream> stream;
  backend::Device* device = nullptr;
  bool native = false;  // the library does not hear of its end
  backend::Capture capture{};

  // Whether it may have ended by the next call, so that its frees can be marked only in this one. A pool that
  // trusts handles is told that a handle is the same stream for good.
  bool unheard() const { return native && (key & kByHandle) == 0; }
};

struct PoolFree {
  uint64_t address = 0;
  std::atomic<uint8_t>* state = nullptr;
};

// Frees of one stream. Frees lie in an epoch, and a mark ends it: once the mark has passed, the work before
// all frees of the epoch is complete. Guarded by the pool's lock.
class PoolOrder {
 public:
  PoolOrder(PoolSpace::Order number, uint64_t key) : number_(number), key_(key) {}

  PoolSpace::Order number() const { return number_; }
  uint64_t key() const { return key_; }
  bool is_none() const { return key_ == PoolStream::kNone; }
  // 0 if its stream has none.
  uint64_t stream_id() const { return (key_ & PoolStream::kByHandle) == 0 ? key_ : 0; }
  void set_stream(const PoolStream& stream) {
    stream_ = stream.stream;
    device_ = stream.device;
    native_ = stream.native;
  }
  // Makes this the order of a capture: without a stream, and nothing passes before pass_all().
  void hold() {
    held_ = true;
    unmarked_ = 1;
  }
  bool held() const { return held_; }
  // Call when its stream ends.
  void drop_stream() { stream_ = nullptr; }
  bool has_stream() const { return stream_ != nullptr; }
  bool native() const { return native_; }
  bool unheard() const { return native_ && (key_ & PoolStream::kByHandle) == 0; }
  backend::Stream* stream() const { return stream_.get(); }
  backend::Device* device() const { return device_; }

  // The epoch of a free made now. After the stream's end, the last one, as no work can follow.
  uint64_t epoch() const { return stream_ == nullptr && unmarked_ == 0 ? epoch_ - 1 : epoch_; }
  // Counts frees in the current epoch.
  void note_frees(uint64_t count) {
    freed_in_ = true;
    unmarked_ += stream_ != nullptr ? count : 0;
  }
  uint64_t unmarked() const { return unmarked_; }
  // Ends the epoch if it has frees and the stream can be marked. Returns whether a mark was enqueued.
  // `in_call`: the stream was passed to this call, so it is alive. `ends`: the stream is ending.
  bool mark(bool in_call, bool ends = false);
  // Whether more epochs are complete than at the last call.
  bool poll();
  // Queries the stream: costs more than a mark, but answers at once. Returns whether all is complete.
  bool ask();
  bool has_passed(uint64_t epoch) const { return is_none() || epoch <= passed_; }
  uint64_t passed() const { return passed_; }
  // Whether the work before all frees is known to be complete.
  bool idle() const { return is_none() || (unmarked_ == 0 && marks_.empty()); }
  // Whether nothing can still write to a block that was freed in it. Work of a capture may be launched again.
  bool harmless() const { return held_ ? !freed_in_ : idle(); }
  // Whether polling alone will find more complete. A native stream is marked only in calls that receive it.
  bool under_way() const { return !marks_.empty() || (unmarked_ != 0 && stream_ != nullptr && !native_); }
  // Call before releasing memory that complete work used.
  void settle() {
    if (fence_ != nullptr) fence_->settle();
  }
  // Call when all work is known to be complete by other means.
  void pass_all() {
    marks_.clear();
    unmarked_ = 0;
    passed_ = epoch_++;
  }

  // Makes room for `count` more blocks of a class, so that pushing them cannot fail. Throws std::bad_alloc.
  void reserve(uint32_t class_index, size_t count);
  // Free blocks of a class, the latest last. If it throws, nothing has changed.
  void push(uint32_t class_index, const PoolFree* blocks, size_t count);
  // Takes up to `count`: the latest for the stream itself, and for others the oldest whose work is complete.
  size_t pop(uint32_t class_index, PoolFree* out, size_t count);
  size_t pop_passed(uint32_t class_index, PoolFree* out, size_t count);
  bool has(uint32_t class_index) const {
    const Shelf* const shelf = shelves_[class_index].get();
    return shelf != nullptr && (shelf->size() > 1 || (!shelf->empty() && !shelf->back().blocks.empty()));
  }
  // Takes the free blocks of a class for which `function(block)` is true.
  template <class F>
  void take_if(uint32_t class_index, F function) {
    Shelf* const shelf = shelves_[class_index].get();
    if (shelf == nullptr) return;
    for (Group& group : *shelf)
      std::erase_if(group.blocks, function);
    while (!shelf->empty() && shelf->front().blocks.empty())
      shelf->pop_front();
    while (!shelf->empty() && shelf->back().blocks.empty())
      shelf->pop_back();
  }
  bool empty() const;
  size_t count(uint32_t class_index) const;
  // Takes all blocks whose work is complete.
  template <class F>
  void take_passed(F function) {
    for (const auto& shelf : shelves_) {
      while (shelf != nullptr && !shelf->empty() && has_passed(shelf->front().epoch)) {
        for (const PoolFree& block : shelf->front().blocks)
          function(block);
        shelf->pop_front();
      }
    }
  }

 private:
  struct Group {
    uint64_t epoch = 0;
    std::vector<PoolFree> blocks;
  };
  // Any group may be empty; if there are several, some block is free.
  using Shelf = std::deque<Group>;
  static size_t pop_from(std::vector<PoolFree>& group, PoolFree* out, size_t count);

  const PoolSpace::Order number_;
  const uint64_t key_;
  std::shared_ptr<backend::Stream> stream_;
  std::shared_ptr<backend::Fence> fence_;
  backend::Device* device_ = nullptr;
  bool native_ = false;
  bool held_ = false;
  bool freed_in_ = false;
  uint64_t epoch_ = 1;
  uint64_t passed_ = 0;
  uint64_t told_ = 0;  // what poll() has answered of it
  uint64_t unmarked_ = 0;
  std::deque<std::pair<uint64_t, uint64_t>> marks_;  // epoch and number
  std::array<std::unique_ptr<Shelf>, PoolClasses::kCountMax> shelves_;
};

}  // namespace gpumem::core
