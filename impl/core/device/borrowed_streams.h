// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams of the library's own, for calls that wait for what they enqueue.
#pragma once

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/object/log.h"

namespace gpumem::core {

// One for each device that the work of a call runs on.
class BorrowedStreams {
 public:
  BorrowedStreams() = default;
  BorrowedStreams(const BorrowedStreams&) = delete;
  BorrowedStreams& operator=(const BorrowedStreams&) = delete;
  ~BorrowedStreams() {
    if (!idle_) wait_quietly();
    for (auto& [device, stream] : streams_)
      device->return_stream(std::move(stream));
  }

  Result<backend::Stream*> of(Device& device) {
    idle_ = false;
    for (const auto& [known, stream] : streams_) {
      if (known == &device) return stream.get();
    }
    streams_.reserve(streams_.size() + 1);
    auto borrowed = device.borrow_stream();
    if (!borrowed) return borrowed.error();
    return streams_.emplace_back(&device, std::move(*borrowed)).second.get();
  }

  Result<void> synchronize() {
    Result<void> result;
    for (const auto& [device, stream] : streams_) {
      auto complete = stream->synchronize(GPUMEM_TIMEOUT_INFINITE);
      if (complete) continue;
      if (result) result = complete.error();
      (void)stream->synchronize(GPUMEM_TIMEOUT_INFINITE);  // if the wait itself failed, the work may go on
    }
    idle_ = true;
    return result;
  }

 private:
  // After an exception.
  void wait_quietly() noexcept {
    try {
      (void)synchronize();
    } catch (const std::exception& problem) {
      log(GPUMEM_LOG_ERROR, "the work of a failed call could not be waited for: %s", problem.what());
    }
  }

  bool idle_ = true;
  std::vector<std::pair<Device*, std::shared_ptr<backend::Stream>>> streams_;
};

}  // namespace gpumem::core
