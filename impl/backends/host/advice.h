// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is known of the pages of a managed allocation.
#pragma once

#include <cstdint>
#include <map>

#include "contract/managed.h"

namespace gpumem::host {

// Pages with their advice and last prefetch, in runs of equal ones.
class PageTable {
 public:
  // Makes borders around pages [first, end), so that changing them cannot fail.
  void prepare(uint64_t first, uint64_t end) {
    split(first);
    split(end);
  }

  // Only between borders.
  template <class F>
  void change(uint64_t first, uint64_t end, F function) noexcept {
    for (auto run = runs_.lower_bound(first); run != runs_.end() && run->first < end; ++run)
      function(run->second);
  }

  // Removes borders between equal runs: once all changes that were prepared for are made.
  void join() noexcept {
    for (auto run = std::next(runs_.begin()); run != runs_.end();) {
      run = equal(std::prev(run)->second, run->second) ? runs_.erase(run) : std::next(run);
    }
  }

  // What is true of every page of [first, end).
  backend::ManagedFacts common(uint64_t first, uint64_t end) const {
    auto run = std::prev(runs_.upper_bound(first));
    backend::ManagedFacts facts = run->second;
    for (++run; run != runs_.end() && run->first < end; ++run) {
      const backend::ManagedFacts& next = run->second;
      facts.read_mostly = facts.read_mostly && next.read_mostly;
      facts.accessed_by_host = facts.accessed_by_host && next.accessed_by_host;
      facts.accessed_by_devices &= next.accessed_by_devices;
      if (facts.preferred != next.preferred) facts.preferred = {};
      if (facts.last_prefetch != next.last_prefetch) facts.last_prefetch = {};
    }
    return facts;
  }

 private:
  static bool equal(const backend::ManagedFacts& a, const backend::ManagedFacts& b) {
    return a.read_mostly == b.read_mostly && a.preferred == b.preferred &&
           a.last_prefetch == b.last_prefetch && a.accessed_by_host == b.accessed_by_host &&
           a.accessed_by_devices == b.accessed_by_devices;
  }
  void split(uint64_t page) { runs_.emplace_hint(runs_.upper_bound(page), page, before(page)); }
  const backend::ManagedFacts& before(uint64_t page) const {
    return std::prev(runs_.upper_bound(page))->second;
  }

  std::map<uint64_t, backend::ManagedFacts> runs_{{0, {}}};  // by the first page of a run
};

// The part of an allocation that only managed memory has. Guarded by Shared::mutex.
struct ManagedPart {
  gpumem_attach initial = GPUMEM_ATTACH_GLOBAL;
  gpumem_attach attach = GPUMEM_ATTACH_GLOBAL;
  uint64_t stream = 0;    // id of the timeline that it is attached to with GPUMEM_ATTACH_SINGLE
  bool touchable = true;  // by the CPU, now
  PageTable pages;

  bool lets_device(uint64_t timeline) const {
    return attach == GPUMEM_ATTACH_GLOBAL || (attach == GPUMEM_ATTACH_SINGLE && stream == timeline);
  }
};

}  // namespace gpumem::host
