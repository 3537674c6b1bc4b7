// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams and events. Copies and fills are in copy.cpp.
#pragma once

#include "backends/cuda/device.h"
#include "base/arithmetic.h"

namespace gpumem::cuda {

class Stream final : public backend::Stream {
 public:
  Stream(Device& device, bool owned) : device_(device), owned_(owned) {}

  Device& device() const { return device_; }
  Result<void> create(int32_t priority);
  Result<void> wrap(CUstream native);
  // Makes a driver call on the stream. The default streams are those of the current context.
  template <class Call>
  Outcome call(Call call) {
    // The handles of default streams are the smallest numbers: 0, 1 and 2.
    const bool is_default = address_of(native_) <= address_of(CU_STREAM_PER_THREAD);
    return device_.call_on(!is_default, call);
  }

  void* native() const override { return native_; }
  bool is_default() const override { return native_ == nullptr || native_ == CU_STREAM_LEGACY; }
  int32_t priority() const override { return priority_; }
  uint64_t identity() const override { return identity_; }
  Result<bool> is_capturing() override;
  Result<backend::Capture> capture() override;
  const void* cpu_view(const backend::Span& span) override;
  Result<void> copy(const backend::CopySegment& segment) override;
  uint64_t largest_piece() override;
  std::optional<backend::Piece> piece_of(const backend::CopySegment& segment) override;
  Result<void> copy_pieces(std::span<const backend::Piece> pieces, size_t* done) override;
  backend::FillWay way_of_fill(const backend::Span& destination) override;
  Result<void> fill(const backend::FillSegment& segment) override;
  Result<void> wait_event(backend::Event& event) override;
  Result<std::shared_ptr<backend::Fence>> fence() override;
  Result<void> launch_host_function(gpumem_host_function function, void* user_data, bool internal) override;
  Result<void> capture_host_function(gpumem_host_function function, void* user_data,
                                     void (*end)(void* user_data)) override;
  Result<void> write_value(const backend::Span& word, uint64_t value, uint32_t value_size) override;
  Result<void> wait_value(const backend::Span& word, uint64_t value, uint32_t value_size,
                          gpumem_wait_condition condition) override;
  Result<bool> query() override;
  Result<bool> synchronize(uint64_t timeout_ns) override;
  Result<void> drain() override;
  Result<void> release() override;

 private:
  // Answers what the driver says when it is asked whether the stream is being captured.
  Outcome find_identity();
  [[gnu::noinline]] bool is_of_other_thread() const;
  // Makes the driver call for a segment.
  Outcome enqueue(const backend::CopySegment& segment);
  [[gnu::noinline]] Outcome enqueue_managed(const backend::CopySegment& segment);
  [[gnu::noinline]] Outcome enqueue_rows(const backend::CopySegment& segment);
  [[gnu::noinline]] Result<void> copy_and_keep(const backend::CopySegment& segment);
  Result<bool> query_relaxed();
  // The address at which this device writes to a span; 0 if it has none.
  uint64_t device_address(const backend::Span& span);

  Device& device_;
  CUstream native_ = nullptr;
  int32_t priority_ = 0;
  uint64_t identity_ = 0;
  uint64_t thread_ = 0;  // thread whose default stream this is; 0 for an ordinary stream
  bool owned_;
  std::shared_ptr<backend::Fence> fence_;  // null before it is asked for; guarded by Fences
};

class Event final : public backend::Event {
 public:
  Event(Device& device, CUevent native, bool owned) : device_(device), native_(native), owned_(owned) {}

  Result<void> create(gpumem_event_flags flags);

  void* native() const override { return native_; }
  Result<void> record(backend::Stream& stream) override;
  Result<bool> query() override;
  Result<bool> synchronize(uint64_t timeout_ns) override;
  Result<std::optional<int64_t>> elapsed_since(backend::Event& start) override;
  Result<void> release() override;

 private:
  Result<bool> query_relaxed();

  Device& device_;
  CUevent native_;
  bool owned_;
};

}  // namespace gpumem::cuda
