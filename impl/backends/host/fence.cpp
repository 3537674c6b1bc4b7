// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/fence.h"

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/stream.h"
#include "base/cleanup.h"

namespace gpumem::host {

Result<uint64_t> HostFence::enqueue(backend::Stream& stream) {
  Queue& queue = static_cast<HostStream&>(stream).queue();
  const CurrentDevice current(queue.device().facts().ordinal);
  const Lock lock(shared_.mutex);
  const uint64_t number = marked_ + 1;
  forget_passed();
  marks_.emplace_back();
  Cleanup undo([&] { marks_.pop_back(); });
  // On a lost device, dropped work does not run, and nor does its mark.
  GPUMEM_TRY(queue.enqueue(lock, {[this, number]() -> Result<void> {
                             reached_.store(number, std::memory_order_release);
                             return {};
                           }},
                           {}));
  undo.dismiss();
  marks_.back() = {number, queue.mark(lock)};
  return marked_ = number;
}

void HostFence::forget_passed() {
  const uint64_t reached = reached_.load(std::memory_order_acquire);
  while (marks_.size() > 1 && marks_[1].first <= reached)
    marks_.pop_front();
}

void HostFence::settle() {
  const Lock lock(shared_.mutex);
  forget_passed();
  if (marks_.empty() || marks_.front().first > reached_.load(std::memory_order_acquire)) return;
  marks_.front().second.observe();
  shared_.managed.refresh(lock);
}

}  // namespace gpumem::host
