// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the library keeps about a managed memory: who it is attached to, and whether the CPU or a device is
// using it. It matters on devices that are not concurrent; elsewhere nothing here is written.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "contract/fence.h"
#include "gpumem/managed.h"

namespace gpumem::core {

class Stream;

// A stream by its identity; 0 for the library's own, which nothing is attached to.
using StreamKey = uint64_t;

struct Association {
  gpumem_attach attach = GPUMEM_ATTACH_GLOBAL;
  StreamKey stream = 0;  // of GPUMEM_ATTACH_SINGLE

  bool lets_device(StreamKey key) const {
    return attach == GPUMEM_ATTACH_GLOBAL || (attach == GPUMEM_ATTACH_SINGLE && stream == key);
  }
};

// Which sides may access a memory in work of a stream.
struct Coherence {
  bool host = true;
  bool device = true;
};

class ManagedState {
 public:
  explicit ManagedState(bool to_host) : initial_{to_host ? GPUMEM_ATTACH_HOST : GPUMEM_ATTACH_GLOBAL, 0} {}

  // ---- attachment ----

  Coherence coherence(StreamKey stream);
  // Whether work of any stream may use it now.
  bool lets_devices();

  // Keeps others from attaching. Held during driver calls.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // Under that lock: makes room, so that the next attach_from() cannot fail.
  void prepare() { pending_.reserve(pending_.size() + 1); }
  // Takes effect once `fence` has passed `mark` in the stream `in`; at once without a fence.
  void attach_from(Association association, StreamKey in, std::shared_ptr<backend::Fence> fence,
                   uint64_t mark) noexcept;
  // Back to the beginning if it is attached to a stream that ends, once that has passed `mark` (MAN-13).
  void stream_ends(StreamKey stream, const std::shared_ptr<backend::Fence>& fence, uint64_t mark) noexcept;

  struct Waits {
    std::vector<StreamKey> streams;  // whose work attaches the memory
    bool ended = false;              // true if a destroyed stream does
  };
  Waits waits();
  // What holds once those have been waited for.
  Association settled();

  // ---- the guard ----

  // False while the CPU accesses the memory.
  bool begin_work() noexcept {
    if ((guard_.fetch_add(kWork) & kAccesses) == 0) return true;
    end_work();
    return false;
  }
  void end_work() noexcept;
  // False while calls are enqueueing work. An access that waits for them is none yet: it refuses no work.
  bool try_begin_access() noexcept {
    uint64_t now = guard_.load();
    while (now < kWork) {
      if (guard_.compare_exchange_weak(now, now + 1)) return true;
    }
    return false;
  }
  void begin_access() noexcept {
    while (!try_begin_access()) {
      if (const uint64_t now = guard_.load(); now >= kWork) guard_.wait(now);
    }
  }
  // False if none has begun.
  bool end_access() noexcept {
    uint64_t now = guard_.load();
    do {
      if ((now & kAccesses) == 0) return false;
    } while (!guard_.compare_exchange_weak(now, now - 1));
    return true;
  }
  bool accessed() const noexcept { return (guard_.load() & kAccesses) != 0; }

  // ---- hints ----

  // Whether a part was ever preferred on the host; then the backend knows which (MAN-32).
  bool may_prefer_host() const { return may_prefer_host_.load(std::memory_order_relaxed); }
  void set_may_prefer_host() {
    if (!may_prefer_host()) may_prefer_host_.store(true, std::memory_order_relaxed);
  }

 private:
  static constexpr uint64_t kWork = uint64_t{1} << 32;
  static constexpr uint64_t kAccesses = kWork - 1;

  struct Pending {
    Association association;
    StreamKey in = 0;
    std::shared_ptr<backend::Fence> fence;
    uint64_t mark = 0;
    bool ended = false;  // its stream is gone
  };
  void settle() noexcept;

  std::mutex mutex_;
  const Association initial_;
  Association settled_ = initial_;
  std::vector<Pending> pending_;    // in the order of the calls
  std::atomic<uint64_t> guard_{0};  // accesses of the CPU, and above them calls that enqueue work
  std::atomic<bool> may_prefer_host_{false};
};

// Keeps the CPU's guard away while work on a memory is enqueued.
class ManagedWork {
 public:
  ManagedWork() = default;
  // Takes over what begin_work() has begun.
  explicit ManagedWork(ManagedState& state) : state_(&state) {}
  ManagedWork(ManagedWork&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  ManagedWork& operator=(ManagedWork&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~ManagedWork() {
    if (state_ != nullptr) state_->end_work();
  }

 private:
  ManagedState* state_ = nullptr;
};

}  // namespace gpumem::core
