// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The GPUs of this machine and the processes that have their memory, as NVIDIA's management library tells.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpumem::cli {

struct Gpu {
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  std::map<uint64_t, std::optional<uint64_t>> bytes_by_process;  // none: the system does not tell
};

struct Gpus {
  std::vector<Gpu> list;
  std::string problem;  // why it has not all; empty if it has
};

// Opens no context on any GPU.
Gpus look_at_gpus();

}  // namespace gpumem::cli
