// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The contract's Stream: enqueues its operations in a queue.
#pragma once

#include <memory>

#include "backends/host/queue.h"
#include "contract/backend.h"

namespace gpumem::host {

class HostStream final : public backend::Stream {
 public:
  // `owned`: the queue ends with this stream. Requires Shared::mutex, held since the queue was found: other
  // code cannot destroy a queue that has a stream.
  HostStream(Shared& shared, const Lock& held, std::shared_ptr<Queue> queue, void* native, int32_t priority,
             bool owned);
  ~HostStream() override;

  void* native() const override { return native_; }
  int32_t priority() const override { return priority_; }
  uint64_t identity() const override { return queue_->timeline()->id; }
  Result<bool> is_capturing() override;
  Result<backend::Capture> capture() override;
  const void* cpu_view(const backend::Span& span) override;
  Result<void> require_final_source(const backend::CopySegment& copy) override;
  Result<void> copy(const backend::CopySegment& segment) override;
  backend::FillWay way_of_fill(const backend::Span&) override { return backend::FillWay::kEnqueue; }
  Result<void> fill(const backend::FillSegment& segment) override;
  Result<void> wait_event(backend::Event& event) override { return wait_for(event, false); }
  Result<void> wait_event_or_end(backend::Event& event) override { return wait_for(event, true); }
  Result<std::shared_ptr<backend::Fence>> fence() override { return {queue_->fence()}; }
  Result<void> launch_host_function(gpumem_host_function function, void* user_data, bool internal) override;
  Result<void> capture_host_function(gpumem_host_function function, void* user_data,
                                     void (*end)(void* user_data)) override;
  Result<void> write_value(const backend::Span& word, uint64_t value, uint32_t value_size) override;
  Result<void> wait_value(const backend::Span& word, uint64_t value, uint32_t value_size,
                          gpumem_wait_condition condition) override;
  Result<bool> query() override;
  Result<bool> synchronize(uint64_t timeout_ns) override;
  Result<bool> observe(uint64_t timeout_ns) override;
  Result<void> drain() override;
  Result<void> release() override;

  Queue& queue() { return *queue_; }
  Result<void> launch_kernel(gpumem_host_kernel_function function, void* user_data);

 private:
  // A node of a graph that nobody launches is an operation that never runs.
  Result<void> enqueue(Operation operation, std::initializer_list<Allocation*> used);
  // `or_end`: a record whose process has ended is as good as a complete one.
  Result<void> wait_for(backend::Event& event, bool or_end);
  Result<bool> await(uint64_t timeout_ns, Shared::Failures failures);

  Shared& shared_;
  const std::shared_ptr<Queue> queue_;
  void* const native_;
  const int32_t priority_;
  const bool owned_;
  bool released_ = false;  // guarded by Shared::mutex
};

}  // namespace gpumem::host
