// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where a pool gets its memory, in pieces that are released whole: blocks mapped into one address range,
// allocations, or pages of the system.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "contract/memory.h"
#include "core/device/device.h"
#include "core/memory/kind.h"
#include "core/memory/range.h"

namespace gpumem::core {

class PoolBlocks;

struct PoolMemory {
  const KindTraits* kind = &kinds::device;
  gpumem_memory_flags flags = 0;
  gpumem_handle_types handle_types = 0;
  int32_t numa_node = -1;
  bool from_driver = false;             // from a pool of the driver
  std::vector<AccessRequest> accesses;  // besides the own device's
  std::string name;
};

// Not thread-safe: guarded by the pool's lock.
class PoolSource {
 public:
  PoolSource(std::shared_ptr<Context> context, Device& device, PoolMemory memory)
      : context_(std::move(context)), device_(device), memory_(std::move(memory)) {}

  // Pointer queries use `blocks`, which must outlive this.
  Result<void> open(const PoolBlocks& blocks);
  // Ends it, once its pieces are released.
  Result<void> close();

  // Pieces are mapped where the pool says, and may join.
  bool in_range() const { return range_ != 0; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  uint64_t granularity() const { return granularity_; }

  struct Piece {
    uint64_t size = 0;
    uint64_t handle = 0;  // of the memory; 0: pages of the system, or mapped
  };
  using Pieces = std::map<uint64_t, Piece>;

  // map() needs a range; without one, make() gets a piece anywhere, which add() enters.
  Result<void> map(uint64_t base, uint64_t size);
  // Needs no lock.
  Result<Pieces::node_type> make(uint64_t size) const;
  // Returns where it begins. Cannot fail.
  uint64_t add(Pieces::node_type made) noexcept;
  Result<void> release(uint64_t base);
  // Retries unmapping what a failed map() left mapped.
  Result<void> unmap_left();

  const Pieces& pieces() const { return pieces_; }
  uint64_t bytes() const { return bytes_; }
  const PoolMemory& memory() const { return memory_; }
  // Leaves what could not be released to the instance, which tries again.
  void abandon() noexcept;
  // Call when the instance has already released the memory.
  void forget() noexcept;

 private:
  Result<void> reserve_addresses(const PoolBlocks& blocks);
  Result<void> open_driver_pool();
  backend::MemoryRequest memory_of(uint64_t size) const;
  backend::PhysicalRequest piece_of(uint64_t size) const;
  bool wants_range() const;

  const std::shared_ptr<Context> context_;
  Device& device_;
  const PoolMemory memory_;
  const PoolBlocks* blocks_ = nullptr;
  uint64_t users_ = 0;  // bits of the ordinals of other devices that reach memory of the driver
  uint64_t range_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  uint64_t granularity_ = 0;
  Pieces pieces_;
  Pieces left_;  // still mapped, since undoing a map() failed
  uint64_t bytes_ = 0;
};

}  // namespace gpumem::core
