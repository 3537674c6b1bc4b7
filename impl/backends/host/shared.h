// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// State shared by all objects of an open host backend.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "backends/host/allocation.h"
#include "backends/host/budget.h"
#include "backends/host/clock.h"
#include "backends/host/managed.h"
#include "backends/host/options.h"
#include "backends/host/range.h"
#include "backends/host/steps.h"

namespace gpumem::host {

using Lock = std::unique_lock<std::mutex>;

struct Shared {
  explicit Shared(const Options& checked)
      : options(checked),
        quarantine(checked.quarantine),
        registrations(checked.register_count_max),
        managed(checked.strict) {}

  // Waits for a point and observes it; false on timeout. Reports that `device` is lost, or the first failure
  // before that point that is not reported yet, unless they are kept for another call.
  enum class Failures { kReport, kKeep };
  Result<bool> await(const HostDevice& device, const Mark& mark, uint64_t timeout_ns,
                     Failures failures = Failures::kReport);

  const Options options;
  Steps steps;
  Quarantine quarantine;
  Budget registrations;  // in pieces

  // Guards everything below, and whatever else refers to it. Never held during slow work.
  std::mutex mutex;
  std::condition_variable progress;  // work completed, a device was lost, or the backend is closing
  bool closing = false;
  std::set<uint64_t> captures;  // simulated ones that have not ended
  // Until when other processes are waited for.
  std::chrono::steady_clock::time_point others_until = std::chrono::steady_clock::time_point::max();
  AddressTable table;
  ManagedTable managed;
  // Blocks of physical memory by their file, to recognise one that is imported where it already is.
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<HostBlock>> blocks;
  void remember(const std::shared_ptr<HostBlock>& block);
  std::shared_ptr<HostBlock> recall(const std::pair<uint64_t, uint64_t>& identity) const;
};

}  // namespace gpumem::host
