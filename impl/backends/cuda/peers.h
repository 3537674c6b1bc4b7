// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tracks enabled peer access. Access belongs to a pair of contexts and instances share the primary contexts,
// so it stays on until the last instance disables it.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "backends/cuda/device.h"

namespace gpumem::cuda {

struct Peers {
  std::mutex mutex;  // held for whole operations, so that trials do not interleave with others
  // Number of devices (over all instances) that use the access that gpumem enabled from the first context to
  // the second. Access enabled by other code is not counted.
  std::map<std::pair<CUcontext, CUcontext>, uint32_t> holders;
};

Peers& peers();

}  // namespace gpumem::cuda
