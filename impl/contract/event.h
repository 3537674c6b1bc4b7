// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Events as backends make them.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "gpumem/event.h"

namespace gpumem::backend {

class Stream;

// Of create_event(), beside the flags of callers: other processes wait for the event, and only this instance
// records it. A backend sees to that as far as it can.
constexpr gpumem_event_flags kRecordedHere = gpumem_event_flags{1} << 63;

class Event {
 public:
  virtual ~Event() = default;  // never calls a driver: release() does

  virtual void* native() const = 0;  // null if the backend has no native events
  virtual Result<void> record(Stream& stream) = 0;
  virtual Result<bool> query() = 0;
  virtual Result<bool> synchronize(uint64_t timeout_ns) = 0;
  // The same for the last record of this instance alone, where the backend tells it from those of others.
  virtual Result<bool> synchronize_own(uint64_t timeout_ns) { return synchronize(timeout_ns); }
  // From `start` to this event, in nanoseconds; both recorded (the layers above know) and of one device. No
  // value when one of them is not complete.
  virtual Result<std::optional<int64_t>> elapsed_since(Event& start) = 0;
  virtual Result<void> release() = 0;
};

}  // namespace gpumem::backend
