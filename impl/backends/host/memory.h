// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How memory of each kind comes into being and goes.
#pragma once

#include <memory>

#include "backends/host/allocation.h"
#include "backends/host/shared.h"

namespace gpumem::host {

class HostMemory final : public backend::Memory {
 public:
  HostMemory(Shared& shared, std::shared_ptr<Allocation> allocation);
  ~HostMemory() override;  // as release(), whatever is pending

  Result<void> check_unused() override;
  Result<void> release() override;
  const std::shared_ptr<Allocation>& allocation() const { return allocation_; }

 private:
  Shared& shared_;
  std::shared_ptr<Allocation> allocation_;  // null after the release
};

Result<std::shared_ptr<backend::Memory>> create_memory(Shared& shared, HostDevice& device,
                                                       const backend::MemoryRequest& request);

// The bytes alone, not yet in the table.
Result<std::shared_ptr<Allocation>> allocate(Shared& shared, HostDevice& device,
                                             const backend::MemoryRequest& request);
// The first half of a release: takes it out of the table, so that nobody else can. BUSY if work on it was not
// observed complete. Needs Shared::mutex held.
Result<void> withdraw(Shared& shared, Lock& held, Allocation& allocation);
// The second half, without the lock: its addresses become inaccessible, its bytes end with the last work that
// uses them.
void let_go(Shared& shared, Allocation& allocation);

}  // namespace gpumem::host
