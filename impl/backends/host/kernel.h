// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A running kernel stand-in. Its views of memory are checked as a device's address translation would check
// them.
#pragma once

#include <vector>

#include "backends/host/queue.h"
#include "contract/backend.h"

namespace gpumem::host {

class RunningKernel final : public backend::Kernel {
 public:
  RunningKernel(Shared& shared, Queue& queue) : shared_(shared), queue_(queue) {}

  // A refused view loses the device (HST-4), but only after the function returns, because a caller who sees
  // the loss may reuse the function's memory.
  Result<void*> view(const void* address, uint64_t size, gpumem_access access) override;

  static void run(Shared& shared, Queue& queue, gpumem_host_kernel_function function, void* user_data);

 private:
  // The bytes, or null if the device lacks that access.
  Result<void*> translate(const void* address, uint64_t size, bool write);
  Result<void*> translate_mappings(const void* address, uint64_t size, bool write);
  // Requires Shared::mutex.
  void use(const std::shared_ptr<Allocation>& allocation);

  Shared& shared_;
  Queue& queue_;
  std::vector<std::shared_ptr<Allocation>> used_;  // the views stay valid until the kernel ends
  std::vector<Range> views_;                       // of several mappings at once
  char fault_[128] = "";                           // why the device is going to be lost
};

}  // namespace gpumem::host
