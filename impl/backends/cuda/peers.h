// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Who has switched on which peer access. It belongs to a pair of contexts, and all instances of a process
// share the primary ones, so it is on until the last instance gives it up.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "backends/cuda/device.h"

namespace gpumem::cuda {

struct Peers {
  std::mutex mutex;  // held for whole steps, so that no trial comes between the steps of others
  // Devices of instances that need the access from the first context to the second, which gpumem has switched
  // on. Other code's is not in it.
  std::map<std::pair<CUcontext, CUcontext>, uint32_t> holders;
};

Peers& peers();

}  // namespace gpumem::cuda
