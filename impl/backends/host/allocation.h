// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The bytes behind a memory, shared by the memory and all work that uses them, and a table that finds them by
// device address.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backends/host/advice.h"
#include "backends/host/arena.h"
#include "backends/host/budget.h"
#include "backends/host/clock.h"
#include "backends/host/page_locks.h"
#include "backends/host/range.h"
#include "base/arithmetic.h"
#include "contract/backend.h"
#include "platform/descriptor.h"

namespace gpumem::host {

class HostDevice;
struct HostBlock;

struct Allocation {
  explicit Allocation(HostDevice& owner) : device(owner) {}

  HostDevice& device;
  bool on_device = false;   // charged to the device, and its addresses are not for the CPU
  bool registered = false;  // the bytes are the caller's
  bool imported = false;    // the bytes are another process's, which is charged for them
  gpumem_memory_flags granted = 0;
  int32_t numa_node = -1;
  uint64_t size = 0;
  uint64_t granted_size = 0;
  std::byte* bytes = nullptr;  // for this backend: the private view, or the caller's memory
  void* host_address = nullptr;
  void* device_address = nullptr;
  std::unique_ptr<ManagedPart> managed;  // null for other memory
  uint64_t foreign_id = 0;               // not 0: from gpumem_host_foreign_alloc()

  Charge charge;              // of device memory
  Charge registration;        // in pieces
  Slot slot;                  // of small device memory, instead of the ranges
  platform::Descriptor file;  // of the bytes, if they can be exported
  Range private_view;
  PageLock page_lock;  // of the private view or the caller's pages
  Range host_range;    // the user's addresses
  Range device_range;  // the user's device addresses, if different

  // Keeps the bytes of a mapping in a reservation. For mappings and imported blocks, says what each device
  // may do. Guarded by Shared::mutex.
  std::shared_ptr<HostBlock> block;
  std::vector<gpumem_access> access;
  bool shown = false;  // the user's addresses show the bytes; for the call that changes the reservation

  Clock uses;  // the last operation of each stream on it; guarded by Shared::mutex
  // The registration has ended, so pending work must not touch the memory. There is such work if the memory's
  // device is lost and the work's is not.
  std::atomic<bool> given_back{false};

  bool read_only() const { return (granted & GPUMEM_MEMORY_READ_ONLY) != 0; }
};

// Allocations by device address. Guarded by Shared::mutex.
class AddressTable {
 public:
  // Allocations without a device address are not entered. One already at the address is obsolete: its owner
  // unmapped the registered memory, and the system reused the address.
  void add(const std::shared_ptr<Allocation>& allocation) {
    if (allocation->device_address != nullptr) {
      allocations_.insert_or_assign(address_of(allocation->device_address), allocation);
    }
  }

  void remove(const Allocation& allocation) {
    const auto found = allocations_.find(address_of(allocation.device_address));
    if (found != allocations_.end() && found->second.get() == &allocation) allocations_.erase(found);
  }

  // The allocation that contains the address, or null.
  std::shared_ptr<Allocation> find(const void* address) const {
    auto next = allocations_.upper_bound(address_of(address));
    if (next == allocations_.begin()) return nullptr;
    const auto& [begin, allocation] = *std::prev(next);
    return address_of(address) - begin < allocation->size ? allocation : nullptr;
  }

  // Everything that begins in a range of addresses.
  template <class See>
  void for_each_in(uint64_t begin, uint64_t size, See see) const {
    for (auto next = allocations_.lower_bound(begin);
         next != allocations_.end() && next->first - begin < size; ++next) {
      see(*next->second);
    }
  }
  // Moves that to a table of its own; needs no memory.
  AddressTable extract(uint64_t begin, uint64_t size) {
    AddressTable moved;
    auto next = allocations_.lower_bound(begin);
    while (next != allocations_.end() && next->first - begin < size)
      moved.allocations_.insert(allocations_.extract(next++));
    return moved;
  }
  // Takes over the entries of another table; does not allocate. Replaces obsolete entries, as add() does.
  void merge(AddressTable& other) {
    while (!other.allocations_.empty()) {
      auto node = other.allocations_.extract(other.allocations_.begin());
      allocations_.erase(node.key());
      allocations_.insert(std::move(node));
    }
  }

  // The first allocation that overlaps the range, or null.
  std::shared_ptr<Allocation> first_in(const void* address, uint64_t size) const {
    if (auto holder = find(address); holder != nullptr) return holder;
    const auto next = allocations_.upper_bound(address_of(address));
    return next != allocations_.end() && next->first - address_of(address) < size ? next->second : nullptr;
  }

 private:
  std::map<uint64_t, std::shared_ptr<Allocation>> allocations_;
};

}  // namespace gpumem::host
