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
  bool others = false;  // locked by other code before, and left so
};

// Disjoint segments by start; all pages of a segment are alike.
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

bool is_locked(uint64_t begin, uint64_t end) { return platform::any_locked(pointer_to(begin), end - begin); }

// Whether the program has called mlockall() and wants everything locked. The library's own data is locked by
// nothing else.
bool everything_locked() {
  const uint64_t page = platform::page_size();
  const uint64_t own = round_down(address_of(&locks), page);
  return is_locked(own, own + page);
}

// Decrements the counts in a range, and unlocks pages that reach zero.
void drop(Segments& segments, uint64_t begin, uint64_t end) {
  const bool keep_all = everything_locked();
  for (auto segment = segments.find(begin); segment != segments.end() && segment->first < end;) {
    if (--segment->second.count > 0) {
      ++segment;
      continue;
    }
    if (!keep_all && !segment->second.others) {
      platform::unlock(pointer_to(segment->first), segment->second.end - segment->first);
    }
    segment = segments.erase(segment);
  }
}

// Marks what other code has locked of segments that nobody here has locked yet. One question is enough where
// nothing is locked; else each page is asked about.
void mark_others(Segments& segments, uint64_t begin, uint64_t end) {
  const uint64_t page = platform::page_size();
  for (auto segment = segments.find(begin); segment != segments.end() && segment->first < end; ++segment) {
    if (segment->second.count != 0 || !is_locked(segment->first, segment->second.end)) continue;
    const uint64_t segment_end = segment->second.end;
    for (uint64_t at = segment->first; at < segment_end; at += page) {
      const bool others = is_locked(at, at + page);
      if (others != segment->second.others && at != segment->first) segment = cut(segments, at);
      segment->second.others = others;
    }
  }
}

// Adds a count of zero for every page of the range that is not locked.
void close_gaps(Segments& segments, uint64_t begin, uint64_t end) {
  auto segment = cut(segments, begin);
  for (uint64_t at = begin; at < end; at = segment->second.end, ++segment) {
    if (segment != segments.end() && segment->first == at) continue;
    const uint64_t gap_end = segment == segments.end() ? end : std::min(end, segment->first);
    segment = segments.emplace_hint(segment, at, Segment{gap_end, 0, false});
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
    mark_others(all.segments, end_, end);
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
