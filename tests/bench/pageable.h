// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies between ordinary memory and a device, of every size: beside the driver's own copy of it, and beside
// its copy of page-locked memory.
#pragma once

#include "groups.h"

namespace bench {

void pageable(const Scene& scene, gpumem_stream stream);
// The threads of the library with each of their settings. On cuda only.
void pageable_settings(const Scene& scene);

// The same copies by the library's threads alone, with each of their settings changed in turn. For device 0.
class TransferBench {
 public:
  struct Setting {
    uint32_t threads = 12;
    uint64_t slot = uint64_t{2} << 20;
    uint32_t slots = 2;
    uint64_t piece = uint64_t{256} << 10;
    uint32_t streams = 1;
    uint64_t each = uint64_t{4} << 20;
  };
  virtual ~TransferBench() = default;
  virtual void set(const Setting& setting) = 0;
  virtual void copy(bool to_device, void* host, uint64_t size) = 0;
};
// Null as for open_fence_bench().
std::unique_ptr<TransferBench> open_transfer_bench(uint64_t most);

}  // namespace bench
