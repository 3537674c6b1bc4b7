// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The GPUs of this machine and the processes that have their memory, as NVIDIA's management library reports
// them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpumem::cli {

struct Gpu {
  unsigned number = 0;  // that of the library, which nvidia-smi shows
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  std::map<uint64_t, std::optional<uint64_t>> bytes_by_process;  // none: not known
};

struct Gpus {
  std::vector<Gpu> list;
  std::string problem;  // why it is incomplete, or empty
};

// Makes no context on any GPU.
Gpus look_at_gpus();

}  // namespace gpumem::cli
