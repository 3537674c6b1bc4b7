// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams as backends make them, and what is enqueued in them. The planner in core has split, staged and
// routed the work: a backend enqueues what it is told.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "contract/memory.h"
#include "gpumem/copy.h"
#include "gpumem/stream.h"

namespace gpumem::backend {

class Event;
class Fence;

// Rows of bytes to copy. No row crosses a border of contiguous(); pitches mean something if height is
// above 1.
struct CopySegment {
  Span destination;
  Span source;
  uint64_t destination_pitch = 0;
  uint64_t source_pitch = 0;
  uint64_t width = 0;
  uint64_t height = 1;
  const std::shared_ptr<void>* keep = nullptr;  // held until the copy is complete
};

// A small copy of one row as one of many, by the addresses that the stream's device uses.
struct Piece {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t size = 0;
};

struct FillSegment {
  Span destination;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t height = 1;
  uint32_t value = 0;
  uint32_t value_size = 1;  // 1, 2 or 4
};

// Who carries out a fill.
enum class FillWay {
  kEnqueue,         // fill() enqueues it
  kAtHome,          // a stream of the memory's own device must do it
  kCpuAfterStream,  // the CPU, once the work before it is complete, and before the call returns
  kCpuInStream,     // the CPU, when the stream comes to it
};

// A capture of streams into a graph, and one of its streams.
struct Capture {
  uint64_t id = 0;    // never given out again; 0: none, or one that is invalidated
  uint64_t line = 0;  // tells its streams apart
};

class Stream {
 public:
  virtual ~Stream() = default;  // never calls a driver: release() does

  virtual void* native() const = 0;
  // Of a wrapped stream: whether it is the device's legacy NULL stream.
  virtual bool is_default() const { return native() == nullptr; }
  virtual int32_t priority() const = 0;
  // Tells this stream from every other one of the process, also from one that had the same native handle
  // before (COM-29). 0 if the driver cannot tell.
  virtual uint64_t identity() const = 0;
  // Fails on a thread that cannot use the stream.
  virtual Result<bool> is_capturing() = 0;
  // The capture that it is part of, for a stream that is being captured.
  virtual Result<Capture> capture() = 0;
  // False while nothing can have begun a capture of it: nobody has its native handle, and no event has
  // brought it into one. Then the driver need not be asked.
  bool may_be_captured() const { return exposed_.load(std::memory_order_relaxed); }
  // Its native handle is given out.
  void expose() noexcept {
    if (!may_be_captured()) exposed_.store(true, std::memory_order_relaxed);
  }

  // Where the CPU reads the bytes of a span; null if only a device can.
  virtual const void* cpu_view(const Span& span) = 0;
  // INVALID_STATE if earlier work of the stream writes the source of a copy that may read it at once
  // (STR-21). A backend that cannot tell succeeds.
  virtual Result<void> require_final_source(const CopySegment& /*copy*/) { return {}; }
  virtual Result<void> copy(const CopySegment& segment) = 0;
  // The largest that piece_of() takes. 0: this backend has nothing better for many small copies than copy().
  virtual uint64_t largest_piece() { return 0; }
  // Nothing if copy() is to carry it out.
  virtual std::optional<Piece> piece_of(const CopySegment& /*segment*/) { return std::nullopt; }
  // Copies pieces without an order among themselves. Where it fails, those before `*done` are enqueued, and
  // no others.
  virtual Result<void> copy_pieces(std::span<const Piece> /*pieces*/, size_t* /*done*/) { return {}; }
  virtual FillWay way_of_fill(const Span& destination) = 0;
  virtual Result<void> fill(const FillSegment& segment) = 0;
  virtual Result<void> wait_event(Event& event) = 0;
  // The same, and the stream also goes on, without a failure, when the process that recorded it has ended.
  virtual Result<void> wait_event_or_end(Event& event) { return wait_event(event); }
  // For marks in this stream: one for all streams of its identity.
  virtual Result<std::shared_ptr<Fence>> fence() = 0;
  // A function of the caller, or of the library: `internal` ones are no feature that a device could lack.
  virtual Result<void> launch_host_function(gpumem_host_function function, void* user_data,
                                            bool internal) = 0;
  // While the stream is being captured: a node that calls the function at each launch of its graph. `end`
  // gets the same argument when nothing is left of the graph, and also if this fails.
  virtual Result<void> capture_host_function(gpumem_host_function function, void* user_data,
                                             void (*end)(void* user_data)) = 0;
  virtual Result<void> write_value(const Span& word, uint64_t value, uint32_t value_size) = 0;
  virtual Result<void> wait_value(const Span& word, uint64_t value, uint32_t value_size,
                                  gpumem_wait_condition condition) = 0;

  // True when all work that was enqueued before the call is complete; that is an observation. query() never
  // blocks.
  virtual Result<bool> query() = 0;
  virtual Result<bool> synchronize(uint64_t timeout_ns) = 0;
  // The same for the library's own ends: failures of the work stay for the call that is to report them
  // (COM-15), and do not count here. Those of a driver lose the device, and every call reports that.
  virtual Result<bool> observe(uint64_t timeout_ns) {
    return timeout_ns == 0 ? query() : synchronize(timeout_ns);
  }
  // Waits for all work, as far as that spoils no capture of other code.
  virtual Result<void> drain() = 0;

  // Ends the stream, or lets go of a wrapped one. Pending work still completes. Does not block for it.
  virtual Result<void> release() = 0;

 protected:
  // Of a stream that was just created.
  void conceal() noexcept { exposed_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool> exposed_{true};
};

}  // namespace gpumem::backend
