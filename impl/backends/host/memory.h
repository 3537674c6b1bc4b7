// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Creation and release of each kind of memory.
#pragma once

#include <memory>
#include <span>

#include "backends/host/allocation.h"
#include "backends/host/shared.h"

namespace gpumem::host {

inline constexpr int kFreshByte = 0xA5;                     // of fresh and of discarded memory (COM-14)
inline constexpr uint64_t kLargeSize = uint64_t{16} << 20;  // smaller ones do not hurt a full system
inline constexpr uint32_t kPopulatingThreads = 4;           // at most, and on as many processors as there are
inline constexpr uint64_t kAlignmentMax = uint64_t{1} << 40;

class HostMemory final : public backend::Memory {
 public:
  HostMemory(Shared& shared, std::shared_ptr<Allocation> allocation);
  ~HostMemory() override;  // like release(), regardless of pending work

  Result<void> check_unused() override;
  Result<void> release() override;
  uint64_t contiguous(uint64_t offset) const override;
  const std::shared_ptr<Allocation>& allocation() const { return allocation_; }

 private:
  Shared& shared_;
  std::shared_ptr<Allocation> allocation_;  // null after the release
};

// The bytes alone, not yet in the table: of a device, or page-locked.
Result<std::shared_ptr<Allocation>> allocate(Shared& shared, HostDevice& device,
                                             const backend::MemoryRequest& request, bool on_device);
// The same for bytes of the caller, which stay where they are.
Result<std::shared_ptr<Allocation>> lock_bytes(Shared& shared, HostDevice& device,
                                               const backend::RegistrationRequest& request);
// Files of another process, to be mapped one behind the other.
struct ImportedFile {
  int file = -1;  // the caller's
  uint64_t size = 0;
};
// Imported memory lies at another address than its exporter's (IPC-7): in a unit of the other parity.
inline constexpr uint64_t kParityUnit = uint64_t{2} << 20;
struct ImportPlace {
  void* address = nullptr;  // where it must begin, if not null: ALREADY_EXISTS
  bool odd = false;         // else: in an odd unit, or in an even one
};
// Maps them as the bytes of an allocation whose other properties are set.
Result<void> map_imported(Shared& shared, std::span<const ImportedFile> files, const ImportPlace& place,
                          Allocation& allocation);
// Enters what was made into the table.
Result<std::unique_ptr<backend::Memory>> record_memory(Shared& shared,
                                                       Result<std::shared_ptr<Allocation>> allocation);
// First half of a release: removes it from the table. BUSY if work on it was not observed complete. Requires
// Shared::mutex.
Result<void> withdraw(Shared& shared, Lock& held, Allocation& allocation);
// Second half, without the lock: its addresses become inaccessible; its bytes live until the last work that
// uses them is done.
void let_go(Shared& shared, Allocation& allocation);

}  // namespace gpumem::host
