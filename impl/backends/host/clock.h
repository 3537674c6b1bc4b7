// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is known about the order of work (COM-13): how far each stream has got, what each point of a stream
// comes after, and what the host has observed. Everything here is guarded by Shared::mutex.
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

// How far one stream has got. Operations are numbered from 1. Outlives the stream in whatever depends on it.
struct Timeline {
  explicit Timeline(const std::atomic<bool>& device_lost) : lost(device_lost) {}

  // Whether no caller can still be in doubt about operation `number`.
  bool settled(uint64_t number) const { return observed >= number || lost; }
  // What is over while nobody holds the stream and could observe it counts as observed. It stays so when the
  // stream is adopted again: others may have forgotten it meanwhile.
  void settle_unobservable() {
    if (handles == 0 && observed < completed) observed = completed;
  }

  // Of the process, and never another one's: a queue made at the address of a gone one is another stream
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
  bool faulting = false;        // the running kernel lost the device and has not ended yet
  bool touching = false;        // the running operation moves bytes, which may be the caller's own
  uint32_t handles = 0;         // streams of the layers above that stand for this one
  std::list<Failure> failures;  // in the order of the numbers; no observation has come to them yet (COM-15)
};

// For each of several timelines, the last of its operations that matters. A vector clock.
class Clock {
 public:
  bool settled() const {
    for (const Entry& entry : entries_) {
      if (!entry.timeline->settled(entry.number)) return false;
    }
    return true;
  }

  // Makes room, so that the next advance() cannot fail.
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

  // Whether one of the operations, or one before it, moves bytes now.
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

// A point of a stream, and all that is ordered before it; shared, so that waiting needs no memory.
struct Mark {
  std::shared_ptr<Timeline> timeline;
  uint64_t number = 0;
  std::shared_ptr<const Clock> before;  // null if nothing is
};

}  // namespace gpumem::host
