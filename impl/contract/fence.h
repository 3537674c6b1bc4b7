// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Marks in a stream. A mark covers all the work before it, so many frees or copies can share one, and whether
// it has passed is read from memory. An internal building block: pools keep one fence for each stream.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.h"
#include "contract/stream.h"
#include "platform/fork.h"

namespace gpumem::backend {

// Outlives the stream, but not the backend.
class Fence {
 public:
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;
  virtual ~Fence() = default;  // never calls a driver

  // Enqueues a mark in a stream whose fence this is, and returns its number. The numbers of a fence grow.
  // Captured streams are refused here, because the layers above mark streams that no call has named. `ends`:
  // the caller releases the stream, so this is its last mark.
  Result<uint64_t> mark(Stream& stream, bool ends = false) {
    if (forked()) {
      return make_error(GPUMEM_ERROR_FORKED,
                        "the stream belongs to the parent process; open an instance of your own");
    }
    auto capturing = stream.is_capturing();
    if (!capturing) return capturing.error();
    if (*capturing && !(ends && marks_captured_end())) {
      return make_error(GPUMEM_ERROR_INVALID_STATE,
                        "a stream that is being captured cannot be marked; end the capture first");
    }
    return enqueue(stream);
  }

  // SUCCESS once all work before the mark is complete, NOT_READY until then. DEVICE_LOST for every mark once
  // a call has found the device lost: polling does not find it. FORKED in a forked child. It loads memory and
  // calls no driver, except where the stream cannot write the number (catch_up). It is no observation: a
  // failure of the work is still to be reported (COM-15).
  Status poll(uint64_t number) {
    if (forked()) return GPUMEM_ERROR_FORKED;
    const bool passed = reached_->load(std::memory_order_acquire) >= number || catch_up() >= number;
    if (lost_.load(std::memory_order_relaxed)) return GPUMEM_ERROR_DEVICE_LOST;
    return passed ? GPUMEM_SUCCESS : GPUMEM_NOT_READY;
  }

  // Call before freeing memory that marked work used: if the backend requires work to be observed, work
  // before the last passed mark then counts as observed.
  virtual void settle() {}

 protected:
  // `reached` has the number of the last mark that has passed.
  Fence(const std::atomic<uint64_t>* reached, const std::atomic<bool>& lost)
      : reached_(reached), lost_(lost) {}

  virtual Result<uint64_t> enqueue(Stream& stream) = 0;
  // The last mark of a stream that is being captured runs with its work, and is no node of a graph.
  virtual bool marks_captured_end() const { return false; }
  // The last mark that has passed, where nobody but this writes `reached`.
  virtual uint64_t catch_up() { return 0; }

 private:
  bool forked() const { return platform::process_epoch() != epoch_; }

  const uint32_t epoch_ = platform::process_epoch();
  const std::atomic<uint64_t>* const reached_;
  const std::atomic<bool>& lost_;
};

}  // namespace gpumem::backend
