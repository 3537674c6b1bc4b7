// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where a pool gets its memory, in pieces that are released whole: blocks mapped into one address range,
// allocations, or pages of the system.
//
// A piece in a range can move: it is mapped at its new place too, at once, as the stream in which it was
// freed is to use it next. The old mapping stays until the work before that free is complete. That kernels
// which run one after another may use two mappings of the same memory is in the CUDA C++ Programming Guide,
// "Virtual Aliasing Support".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "contract/memory.h"
#include "core/device/device.h"
#include "core/memory/kind.h"
#include "core/memory/range.h"
#include "core/pool/space.h"

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
    // Of an old mapping: where the piece is now that keeps its memory, and what uses it.
    uint64_t moved_to = 0;
    PoolPassing passing;
  };
  using Pieces = std::map<uint64_t, Piece>;

  // map() needs a range; without one, make() gets a piece anywhere, which add() enters.
  Result<void> map(uint64_t base, uint64_t size);
  // Whether pieces can move. Importers of one keep its memory, so then it has to be released instead.
  bool can_move() const { return in_range() && memory_.handle_types == 0; }
  // Moves a piece to where nothing is mapped. Work that is `passing` may use it at its old place.
  Result<void> move(uint64_t from, uint64_t to, PoolPassing passing);
  // Whether old mappings have less than an eighth of the addresses, so that more may be left.
  bool has_addresses_to_move() const { return old_bytes_ < (end_ - begin_) / 8; }
  // Call when the work of the order is complete up to an epoch.
  void pass(PoolSpace::Order order, uint64_t epoch) noexcept;
  // Needs no lock.
  Result<Pieces::node_type> make(uint64_t size) const;
  // Returns where it begins. Cannot fail.
  uint64_t add(Pieces::node_type made) noexcept;
  Result<void> release(uint64_t base);
  bool has_old() const { return !old_.empty(); }
  // Unmaps the old mappings that no work uses any more.
  Result<void> unmap_old();

  const Pieces& pieces() const { return pieces_; }
  // Calls `function(begin, end)` for the addresses where nothing is mapped.
  template <class F>
  void for_each_gap(F function) const {
    uint64_t at = begin_;
    auto piece = pieces_.begin();
    auto old = old_.begin();
    while (piece != pieces_.end() || old != old_.end()) {
      const bool is_piece = old == old_.end() || (piece != pieces_.end() && piece->first < old->first);
      const auto& [base, next] = is_piece ? *piece++ : *old++;
      if (at != base) function(at, base);
      at = base + next.size;
    }
    if (at != end_) function(at, end_);
  }
  uint64_t bytes() const { return bytes_; }
  const PoolMemory& memory() const { return memory_; }
  // Leaves what could not be released to the instance, which tries again.
  void abandon() noexcept;
  // Call when the instance has already released the memory.
  void forget() noexcept;

 private:
  Result<void> reserve_addresses(const PoolBlocks& blocks);
  // Call when a piece has left its place, for another one or, with 0, for good.
  void point_old(uint64_t base, uint64_t to) noexcept;
  Result<void> open_driver_pool();
  backend::MemoryRequest memory_of(uint64_t size) const;
  backend::PhysicalRequest piece_of(uint64_t size) const;
  bool wants_range() const;
  // `make` gets the handle of a block, which is mapped at `base`.
  using MakeBlock = std::function<Result<uint64_t>(DeviceObject& device, Range& range)>;
  Result<void> map_block(uint64_t base, uint64_t size, const MakeBlock& make);

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
  Pieces old_;  // mappings that are to go: of pieces that have moved, and where undoing a map() failed
  uint64_t old_bytes_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace gpumem::core
