// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What all objects of one open host backend share.
#pragma once

#include <condition_variable>
#include <mutex>

#include "backends/host/allocation.h"
#include "backends/host/budget.h"
#include "backends/host/clock.h"
#include "backends/host/options.h"
#include "backends/host/range.h"
#include "backends/host/steps.h"

namespace gpumem::host {

using Lock = std::unique_lock<std::mutex>;

struct Shared {
  explicit Shared(const Options& checked)
      : options(checked), quarantine(checked.quarantine), registrations(checked.register_count_max) {}

  // True when the marked point is reached and thereby observed, false when the time runs out before. Reports
  // the first failure of the work before it that was not observed yet, or that `device` is lost.
  Result<bool> await(const HostDevice& device, const Mark& mark, uint64_t timeout_ns);

  const Options options;
  Steps steps;
  Quarantine quarantine;
  Budget registrations;  // in pieces

  // Guards all that follows, and whatever says so elsewhere. Nothing that takes long is done while it is
  // held.
  std::mutex mutex;
  std::condition_variable progress;  // work was completed, a device was lost, or the backend closes
  bool closing = false;
  AddressTable table;
};

}  // namespace gpumem::host
