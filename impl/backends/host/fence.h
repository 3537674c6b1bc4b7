// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A stream's marks are operations of its queue: the worker stores their numbers.
#pragma once

#include <deque>
#include <utility>

#include "backends/host/shared.h"
#include "contract/fence.h"

namespace gpumem::host {

// A queue has one, and keeps it while it runs.
class HostFence final : public backend::Fence {
 public:
  HostFence(Shared& shared, const std::atomic<bool>& device_lost)
      : Fence(&reached_, device_lost), shared_(shared) {}

  void settle() override;

 private:
  Result<uint64_t> enqueue(backend::Stream& stream) override;
  bool marks_captured_end() const override { return true; }
  void forget_passed();

  Shared& shared_;
  std::atomic<uint64_t> reached_{0};
  // Guarded by Shared::mutex.
  uint64_t marked_ = 0;
  std::deque<std::pair<uint64_t, Mark>> marks_;  // those that have not passed, and the last one that has
};

}  // namespace gpumem::host
