// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Fences: the stream itself writes the numbers of its marks into pinned memory. A device that cannot write
// values uses events instead, which only the driver can query.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "backends/cuda/device.h"
#include "contract/fence.h"

namespace gpumem::cuda {

// The word of a fence, on a cache line of its own. Only the device writes it after the first use.
struct alignas(64) FenceWord {
  std::atomic<uint64_t> number;
};

struct FenceSlot {
  FenceWord* word = nullptr;
  CUdeviceptr address = 0;  // of the word, for the device
  uint64_t marked = 0;      // the last mark of all fences that had the slot
};

// The fences of a device by stream, and what they are made of.
class Fences {
 public:
  explicit Fences(Device& device) : device_(device) {}

  // The fence of a stream, which keeps it in `kept`. Streams of one identity share a fence; of identity 0
  // each has its own.
  Result<std::shared_ptr<backend::Fence>> of_stream(uint64_t identity, std::shared_ptr<backend::Fence>& kept);
  // Frees everything. No fence is alive.
  void release();

  // For fences. Taking a slot may call the driver; returning it cannot fail.
  Result<FenceSlot> take_slot();
  void give_back(const FenceSlot& slot) noexcept;
  Result<CUevent> take_event();
  void give_back(CUevent event) noexcept;
  void forget(uint64_t identity) noexcept;

 private:
  Result<std::shared_ptr<backend::Fence>> make(uint64_t identity);
  Result<void> add_page();

  Device& device_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<backend::Fence>> by_identity_;
  std::vector<std::unique_ptr<backend::Memory>> pages_;
  std::vector<FenceSlot> free_slots_;  // with room for all; marks may still be on their way
  std::vector<CUevent> free_events_;   // with room for all
  size_t events_ = 0;                  // that were asked for, so as many exist at most
};

}  // namespace gpumem::cuda
