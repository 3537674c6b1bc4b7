// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A point in a stream that other streams can wait for. It keeps only the latest record (STR-2).
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "backends/host/shared.h"
#include "backends/host/shared_event.h"
#include "contract/backend.h"

namespace gpumem::host {

class HostEvent final : public backend::Event {
 public:
  // `page` for an event that other processes can have, else null.
  HostEvent(Shared& shared, HostDevice& device, std::shared_ptr<SharedEvent> page)
      : shared_(shared), device_(device), page_(std::move(page)) {}

  void* native() const override { return nullptr; }
  Result<void> record(backend::Stream& stream) override;
  Result<bool> query() override { return synchronize(0); }
  Result<bool> synchronize(uint64_t timeout_ns) override;
  Result<bool> synchronize_own(uint64_t timeout_ns) override;
  Result<std::optional<int64_t>> elapsed_since(backend::Event& start) override;
  Result<void> release() override { return {}; }

  struct Record {
    Mark mark;
    std::chrono::steady_clock::time_point time;  // when the stream reached it; valid once that is complete
  };
  // The latest record: at most one of the two is set.
  struct Latest {
    std::shared_ptr<Record> here;
    std::optional<SharedEvent::Wait> elsewhere;  // another instance made it
  };
  // Requires Shared::mutex.
  Latest latest(const Lock& held) const;

  // The simulated capture that it was last recorded in; 0: none.
  uint64_t capture(const Lock& /*held*/) const { return capture_; }

  const std::shared_ptr<SharedEvent>& page() const { return page_; }

 private:
  Result<bool> await(SharedEvent::Wait record, uint64_t timeout_ns);
  Result<bool> await(const std::shared_ptr<Record>& record, uint64_t timeout_ns);

  Shared& shared_;
  HostDevice& device_;
  const std::shared_ptr<SharedEvent> page_;
  uint64_t capture_ = 0;            // guarded by Shared::mutex
  std::shared_ptr<Record> latest_;  // of this instance; guarded by Shared::mutex
};

}  // namespace gpumem::host
