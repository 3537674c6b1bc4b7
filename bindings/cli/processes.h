// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Processes of this machine, as /proc shows them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gpumem::cli {

struct ProcessNow {
  std::string command;
  uint64_t start_time = 0;  // in clock ticks after the boot
  bool of_kernel = false;
};

// None if there is no such process, or it has ended and waits for its parent.
std::optional<ProcessNow> look_at_process(uint64_t process);

}  // namespace gpumem::cli
