// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How much memory the process can still have before the kernel starts to kill: by the system, and by the
// control groups that the process is in.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace gpumem::platform {

// Below this size, asking is not worth the cost.
inline constexpr uint64_t kLargeOnHost = uint64_t{64} << 20;

struct HostBudget {
  uint64_t available = UINT64_MAX;
  std::string limit;      // the name of the tightest limit
  bool of_group = false;  // a file of a control group; else of the machine
};

// Memory of the machine, whatever is in use.
uint64_t host_memory();
// `root` stands before every path: for tests.
HostBudget host_budget(const std::string& root = "");
// OUT_OF_HOST_MEMORY if that much cannot be populated; the message names the limit.
Result<void> check_host_budget(uint64_t bytes, const std::string& root = "");

}  // namespace gpumem::platform
