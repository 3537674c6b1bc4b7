// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A point in a stream that other streams can wait for. It keeps only the latest record (STR-2).
#pragma once

#include <chrono>
#include <memory>

#include "backends/host/shared.h"
#include "contract/backend.h"

namespace gpumem::host {

class HostEvent final : public backend::Event {
 public:
  HostEvent(Shared& shared, HostDevice& device) : shared_(shared), device_(device) {}

  void* native() const override { return nullptr; }
  Result<void> record(backend::Stream& stream) override;
  Result<bool> query() override { return synchronize(0); }
  Result<bool> synchronize(uint64_t timeout_ns) override;
  Result<std::optional<int64_t>> elapsed_since(backend::Event& start) override;
  Result<void> release() override { return {}; }

  struct Record {
    Mark mark;
    std::chrono::steady_clock::time_point time;  // when the stream reached it; valid once that is complete
  };
  // Null if never recorded. Requires Shared::mutex.
  const std::shared_ptr<Record>& latest() const { return latest_; }

 private:
  Shared& shared_;
  HostDevice& device_;
  std::shared_ptr<Record> latest_;  // guarded by Shared::mutex
};

}  // namespace gpumem::host
