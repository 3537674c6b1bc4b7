// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tracks the order of work (COM-13): the progress of each stream, what each point of a stream comes after,
// and what the host has observed. Shared::mutex guards all of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "base/result.h"

namespace gpumem::host {

// An operation that failed.
struct Failure {
  uint64_t number = 0;
  Error error;
};

// Progress of one stream. Operations are numbered from 1. Shared with dependents, so it can outlive the
// stream.
struct Timeline {
  explicit Timeline(const std::atomic<bool>& device_lost) : lost(device_lost) {}

  // Whether operation `number` was observed complete, or the device is lost.
  bool settled(uint64_t number) const { return observed >= number || lost; }
  // Work that completes while no handle to the stream exists counts as observed, even if the stream is
  // wrapped again later: its dependents may be gone by then.
  void settle_unobservable() {
    if (handles == 0 && observed < completed) observed = completed;
  }

  // Whether it holds device work that was not observed complete.
  bool active() const { return device_work > observed && device_work > seen && !in_function && !lost.load(); }

  // Unique in the process and never reused: a queue at the address of a destroyed one is another stream
  // (COM-29).
  static uint64_t next_id() {
    static constinit std::atomic<uint64_t> last{0};
    return ++last;
  }

  const uint64_t id = next_id();
  const std::atomic<bool>& lost;
  uint64_t enqueued = 0;
  uint64_t completed = 0;
  uint64_t observed = 0;
  uint64_t seen = 0;            // by a host function, for which all before it is observed (MAN-16)
  uint64_t device_work = 0;     // the last operation that makes the stream active (MAN-9)
  bool in_function = false;     // a host function runs
  bool touching = false;        // the running operation moves bytes, possibly the caller's own
  uint32_t handles = 0;         // contract streams that wrap this one
  std::list<Failure> failures;  // in order of the numbers; not yet reported (COM-15)
};

// A vector clock: the last relevant operation of each of several timelines.
class Clock {
 public:
  bool settled() const {
    for (const Entry& entry : entries_) {
      if (!entry.timeline->settled(entry.number)) return false;
    }
    return true;
  }

  // Reserves memory, so that the next advance() cannot fail.
  void prepare() {
    std::erase_if(entries_, [](const Entry& entry) { return entry.timeline->settled(entry.number); });
    entries_.reserve(entries_.size() + 1);
  }

  void advance(const std::shared_ptr<Timeline>& timeline, uint64_t number) {
    for (Entry& entry : entries_) {
      if (entry.timeline != timeline) continue;
      if (entry.number < number) entry.number = number;
      return;
    }
    entries_.push_back({timeline, number});
  }

  void merge(const Clock& other) {
    for (const Entry& entry : other.entries_) {
      if (!entry.timeline->settled(entry.number)) advance(entry.timeline, entry.number);
    }
  }

  void observe() const {
    for (const Entry& entry : entries_) {
      if (entry.timeline->observed < entry.number) entry.timeline->observed = entry.number;
    }
  }

  // The same by a host function.
  void see() const {
    for (const Entry& entry : entries_) {
      if (entry.timeline->seen < entry.number) entry.timeline->seen = entry.number;
    }
  }

  // Whether one of the operations, or an earlier one, is moving bytes.
  bool touching() const {
    for (const Entry& entry : entries_) {
      if (entry.timeline->touching && entry.timeline->completed < entry.number) return true;
    }
    return false;
  }

 private:
  struct Entry {
    std::shared_ptr<Timeline> timeline;
    uint64_t number;
  };
  std::vector<Entry> entries_;
};

// A point of a stream and everything ordered before it. Shared, so that waiting allocates nothing.
struct Mark {
  std::shared_ptr<Timeline> timeline;
  uint64_t number = 0;
  std::shared_ptr<const Clock> before;  // null if there is nothing

  void observe() const {
    if (timeline->observed < number) timeline->observed = number;
    if (before != nullptr) before->observe();
  }
};

}  // namespace gpumem::host
