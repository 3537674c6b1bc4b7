// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/fence.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/pages.h"

namespace gpumem::cuda {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));

constexpr uint64_t kLowHalf = UINT32_MAX;

// The stream writes each number to the slot. With `narrow` it can write only the lower half.
class WordFence final : public backend::Fence {
 public:
  WordFence(Device& device, uint64_t identity, const FenceSlot& slot, bool narrow)
      : Fence(narrow ? &reached_ : &slot.word->number, device.lost_flag()),
        device_(device),
        identity_(identity),
        slot_(slot),
        narrow_(narrow),
        reached_(slot.marked),
        marked_(slot.marked) {}

  ~WordFence() override {
    slot_.marked = marked_.load(std::memory_order_relaxed);
    if (!spoiled_) device_.fences().give_back(slot_);
    device_.fences().forget(identity_);
  }

 private:
  Result<uint64_t> enqueue(backend::Stream& stream) override {
    const std::lock_guard lock(mutex_);
    Scope scope(device_);
    GPUMEM_TRY(scope.entered());
    const uint64_t number = marked_.load(std::memory_order_relaxed) + 1;
    marked_.store(number, std::memory_order_release);
    auto* const native = static_cast<CUstream>(stream.native());
    const Driver& cu = device_.cu();
    const Outcome outcome =
        narrow_ ? cu.StreamWriteValue32(native, slot_.address, static_cast<uint32_t>(number),
                                        CU_STREAM_WRITE_VALUE_DEFAULT)
                : cu.StreamWriteValue64(native, slot_.address, number, CU_STREAM_WRITE_VALUE_DEFAULT);
    // A driver that reports an error of earlier work may have enqueued the write all the same.
    if (!outcome.ok()) spoiled_ = true;
    GPUMEM_TRY(device_.check_enqueued(outcome, "cannot enqueue the mark"));
    return number;
  }

  // Marks on their way are few, so the last number gives the upper half. It is loaded behind the word, so
  // that it is not older.
  uint64_t catch_up() override {
    if (!narrow_) return 0;
    const uint64_t low = slot_.word->number.load(std::memory_order_acquire) & kLowHalf;
    const uint64_t marked = marked_.load(std::memory_order_acquire);
    const uint64_t number = marked - ((marked - low) & kLowHalf);
    reached_.store(number, std::memory_order_release);
    return number;
  }

  Device& device_;
  const uint64_t identity_;
  FenceSlot slot_;
  const bool narrow_;
  std::atomic<uint64_t> reached_;  // only if narrow
  std::mutex mutex_;               // held during the driver's call, so that numbers are enqueued in order
  std::atomic<uint64_t> marked_;   // written under the mutex
  bool spoiled_ = false;           // the slot's later value is unknown
};

// A few events, which have the numbers of the latest marks. When all are pending, the newest is recorded
// again: the mark that it had is then reported late, never early.
class EventFence final : public backend::Fence {
 public:
  EventFence(Device& device, uint64_t identity)
      : Fence(&reached_, device.lost_flag()), device_(device), identity_(identity) {}

  ~EventFence() override {
    for (const Entry& entry : ring_) {
      if (entry.event != nullptr) device_.fences().give_back(entry.event);
    }
    device_.fences().forget(identity_);
  }

 private:
  struct Entry {
    CUevent event = nullptr;
    uint64_t number = 0;
  };

  Result<uint64_t> enqueue(backend::Stream& stream) override {
    const std::lock_guard lock(mutex_);
    Scope scope(device_);
    GPUMEM_TRY(scope.entered());
    if (pending_ == 0) first_ = 0;  // so that only as many events are made as are pending at once
    const bool full = pending_ == ring_.size();
    Entry& entry = at(full ? pending_ - 1 : pending_);
    if (entry.event == nullptr) {
      auto event = device_.fences().take_event();
      if (!event) return event.error();
      entry.event = *event;
    }
    GPUMEM_TRY(
        device_.check_enqueued(device_.cu().EventRecord(entry.event, static_cast<CUstream>(stream.native())),
                               "cannot enqueue the mark"));
    if (!full) ++pending_;
    return entry.number = ++marked_;
  }

  // Does not wait for a thread that marks or polls.
  uint64_t catch_up() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || pending_ == 0 || device_.lost()) return 0;
    RelaxedScope scope(device_);
    if (!scope.entered()) return 0;
    uint64_t number = 0;
    while (pending_ != 0) {
      const Outcome outcome = device_.cu().EventQuery(at(0).event);
      if (!outcome.ok()) {
        if (outcome.code != CUDA_ERROR_NOT_READY) (void)device_.check_enqueued(outcome, "");
        break;
      }
      number = at(0).number;
      first_ = (first_ + 1) % ring_.size();
      --pending_;
    }
    if (number != 0) reached_.store(number, std::memory_order_release);
    return number;
  }

  Entry& at(size_t index) { return ring_[(first_ + index) % ring_.size()]; }

  Device& device_;
  const uint64_t identity_;
  std::atomic<uint64_t> reached_{0};
  std::mutex mutex_;  // guards everything below; held during the driver's calls
  uint64_t marked_ = 0;
  std::array<Entry, 8> ring_;
  size_t first_ = 0;    // the oldest mark that has not passed
  size_t pending_ = 0;  // from there on
};

}  // namespace

Result<std::shared_ptr<backend::Fence>> Fences::of_stream(uint64_t identity,
                                                          std::shared_ptr<backend::Fence>& kept) {
  const auto find = [&] {
    if (kept == nullptr && identity != 0) {
      const auto known = by_identity_.find(identity);
      if (known != by_identity_.end()) kept = known->second.lock();
    }
    return kept;
  };
  {
    const std::lock_guard lock(mutex_);
    if (auto known = find()) return known;
  }
  auto made = make(identity);
  if (!made) return made;
  const std::lock_guard lock(mutex_);
  if (auto known = find()) return known;  // another thread was faster
  if (identity != 0) by_identity_[identity] = *made;
  kept = *made;
  return made;
}

Result<std::shared_ptr<backend::Fence>> Fences::make(uint64_t identity) {
  const auto can = [&](gpumem_capability capability) {
    return device_.traits().can_map_host &&
           device_.capability(capability, nullptr).value == GPUMEM_ANSWER_YES;
  };
  const bool wide = can(GPUMEM_CAPABILITY_STREAM_VALUE64);
  if (!wide && !can(GPUMEM_CAPABILITY_STREAM_VALUE32)) {
    return {std::make_shared<EventFence>(device_, identity)};
  }
  auto slot = take_slot();
  if (!slot) return slot.error();
  Cleanup undo([&] { give_back(*slot); });
  std::shared_ptr<backend::Fence> fence = std::make_shared<WordFence>(device_, identity, *slot, !wide);
  undo.dismiss();
  return fence;
}

Result<FenceSlot> Fences::take_slot() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      for (size_t index = free_slots_.size(); index-- != 0;) {
        // A stream would write the number of an earlier fence over those of the next one.
        const FenceSlot slot = free_slots_[index];
        if (((slot.word->number.load(std::memory_order_acquire) ^ slot.marked) & kLowHalf) != 0) continue;
        free_slots_[index] = free_slots_.back();
        free_slots_.pop_back();
        return slot;
      }
    }
    GPUMEM_TRY(add_page());
  }
}

Result<void> Fences::add_page() {
  backend::MemoryRequest request;
  request.sort = backend::MemorySort::kPinned;
  request.size = platform::page_size();
  request.require = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED;
  auto page = device_.create_memory(request);
  if (!page) return page.error();
  Cleanup undo([&] { (void)(*page)->release(); });
  const size_t count = request.size / sizeof(FenceWord);
  auto* const words = static_cast<FenceWord*>((*page)->facts().host_pointer);
  const CUdeviceptr address = address_of((*page)->facts().device_pointer);
  const std::lock_guard lock(mutex_);
  free_slots_.reserve((pages_.size() + 1) * count);
  pages_.push_back(std::move(*page));
  undo.dismiss();
  for (size_t index = count; index-- != 0;)
    free_slots_.push_back({new (&words[index]) FenceWord{}, address + index * sizeof(FenceWord), 0});
  return {};
}

void Fences::give_back(const FenceSlot& slot) noexcept {
  const std::lock_guard lock(mutex_);
  free_slots_.push_back(slot);
}

Result<CUevent> Fences::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      CUevent event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
    free_events_.reserve(++events_);
  }
  CUevent event = nullptr;
  GPUMEM_TRY(device_.check_enqueued(device_.cu().EventCreate(&event, CU_EVENT_DISABLE_TIMING),
                                    "cannot create an event for marks"));
  return event;
}

void Fences::give_back(CUevent event) noexcept {
  const std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

void Fences::forget(uint64_t identity) noexcept {
  const std::lock_guard lock(mutex_);
  const auto known = by_identity_.find(identity);
  // The stream may have another one by now.
  if (known != by_identity_.end() && known->second.expired()) by_identity_.erase(known);
}

void Fences::release() {
  // The driver waits for pending numbers before it frees a page. Wait here to see that they have arrived.
  const bool pending = std::any_of(free_slots_.begin(), free_slots_.end(), [](const FenceSlot& slot) {
    return ((slot.word->number.load(std::memory_order_acquire) ^ slot.marked) & kLowHalf) != 0;
  });
  if (pending) (void)device_.synchronize();
  // Try again, because the first release may report the error of earlier work.
  for (const auto& page : pages_) {
    if (!page->release()) (void)page->release();
  }
  if (free_events_.empty()) return;
  const RelaxedScope scope(device_);
  for (const CUevent event : free_events_)
    (void)device_.cu().EventDestroy(event);
}

}  // namespace gpumem::cuda
