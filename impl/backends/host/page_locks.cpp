// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/page_locks.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "base/arithmetic.h"
#include "platform/fork.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

struct Segment {
  uint64_t end;
  uint64_t count;
};

// Disjoint segments by start; all pages of a segment have the same count.
struct Locks {
  std::mutex mutex;
  std::map<uint64_t, Segment> segments;
};

constinit platform::PerProcess<Locks> locks;

using Segments = std::map<uint64_t, Segment>;

// The first segment that starts at or after `at`; one that extends across `at` is split.
Segments::iterator cut(Segments& segments, uint64_t at) {
  auto next = segments.lower_bound(at);
  if (next == segments.begin()) return next;
  const auto previous = std::prev(next);
  if (previous->second.end <= at) return next;
  next = segments.emplace_hint(next, at, previous->second);
  previous->second.end = at;
  return next;
}

// Decrements the counts in a range, and unlocks pages that reach zero.
void drop(Segments& segments, uint64_t begin, uint64_t end) {
  for (auto segment = segments.find(begin); segment != segments.end() && segment->first < end;) {
    if (--segment->second.count > 0) {
      ++segment;
      continue;
    }
    platform::unlock(pointer_to(segment->first), segment->second.end - segment->first);
    segment = segments.erase(segment);
  }
}

// Adds a count of zero for every page of the range that is not locked.
void close_gaps(Segments& segments, uint64_t begin, uint64_t end) {
  auto segment = cut(segments, begin);
  for (uint64_t at = begin; at < end; at = segment->second.end, ++segment) {
    if (segment != segments.end() && segment->first == at) continue;
    const uint64_t gap_end = segment == segments.end() ? end : std::min(end, segment->first);
    segment = segments.emplace_hint(segment, at, Segment{gap_end, 0});
  }
}

}  // namespace

PageLock::~PageLock() {
  if (begin_ == end_) return;
  Locks& all = locks.get();
  const std::lock_guard lock(all.mutex);
  drop(all.segments, begin_, end_);
}

Result<void> PageLock::extend(uint64_t end) {
  Locks& all = locks.get();
  const std::lock_guard lock(all.mutex);
  // Allocate first, so that nothing can fail later.
  try {
    cut(all.segments, end);
    close_gaps(all.segments, end_, end);
  } catch (...) {
    std::erase_if(all.segments, [](const auto& entry) { return entry.second.count == 0; });
    throw;
  }
  for (auto segment = all.segments.find(end_); segment != all.segments.end() && segment->first < end;
       ++segment) {
    ++segment->second.count;
  }
  if (auto locked = platform::lock(pointer_to(end_), end - end_); !locked) {
    drop(all.segments, end_, end);
    return locked;
  }
  end_ = end;
  return {};
}

}  // namespace gpumem::host
