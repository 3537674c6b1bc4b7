// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/pool/source.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "base/cleanup.h"
#include "core/memory/memory.h"
#include "core/memory/physical.h"
#include "core/memory/pool_classes.h"
#include "core/object/abandoned.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "core/object/held.h"
#include "platform/host_budget.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

constexpr uint64_t kLeastAddresses = uint64_t{16} << 30;

}  // namespace

bool PoolSource::wants_range() const {
  return memory_.kind->on_device && memory_.flags == 0 && !memory_.from_driver &&
         device_.backend().vmm() != nullptr && device_.need(GPUMEM_CAPABILITY_VMM_DEVICE).ok();
}

Result<void> PoolSource::open(const PoolBlocks& blocks) {
  blocks_ = &blocks;
  granularity_ = uint64_t{2} << 20;
  if (wants_range()) return reserve_addresses(blocks);
  if (memory_.from_driver) {
    GPUMEM_TRY(device_.need(GPUMEM_CAPABILITY_POOL_DRIVER));
    if (memory_.handle_types == 0) return open_driver_pool();
  }
  if (memory_.accesses.empty() && memory_.handle_types == 0) return {};
  if (!memory_.from_driver) GPUMEM_TRY(device_.need(GPUMEM_CAPABILITY_VMM_DEVICE));
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "a pool with %s %s",
                    memory_.from_driver ? "GPUMEM_POOL_FROM_DRIVER" : "memory flags",
                    memory_.handle_types != 0 ? "has no handle types; create it without them"
                                              : "gives no other device access");
}

Result<void> PoolSource::open_driver_pool() {
  for (const AccessRequest& access : memory_.accesses) {
    GPUMEM_TRY(check_can_have(device_, access.device));
    const uint32_t ordinal = access.device->ordinal();
    if (access.access == GPUMEM_ACCESS_READ || ordinal > 63) {
      return make_error(
          GPUMEM_ERROR_UNSUPPORTED,
          "a pool with GPUMEM_POOL_FROM_DRIVER gives GPUMEM_ACCESS_READWRITE or none, and to the "
          "first 64 devices");
    }
    if (access.access != GPUMEM_ACCESS_NONE && access.device != &device_) users_ |= uint64_t{1} << ordinal;
  }
  return device_.backend().open_driver_pool(memory_of(0));
}

backend::MemoryRequest PoolSource::memory_of(uint64_t size) const {
  backend::MemoryRequest request;
  request.sort = memory_.kind->sort;
  request.size = size;
  request.alignment = PoolClasses::kPage;
  request.require = memory_.flags;
  request.numa_node = memory_.numa_node;
  request.from_driver = memory_.from_driver;
  request.users = users_;
  return request;
}

backend::PhysicalRequest PoolSource::piece_of(uint64_t size) const {
  backend::PhysicalRequest request;
  request.size = size;
  request.handle_types = memory_.handle_types;
  return request;
}

Result<void> PoolSource::reserve_addresses(const PoolBlocks& blocks) {
  auto root = held<DeviceObject>(device_.handle());
  if (!root) return root.error();
  for (const AccessRequest& access : memory_.accesses)
    GPUMEM_TRY(check_can_have(device_, access.device));
  auto unit = physical_granularity(**root, piece_of(0));
  if (!unit) return unit.error();
  auto least = range_granularity(*context_);
  if (!least) return least.error();
  const uint64_t alignment = std::max(*least, std::max(unit->recommended, PoolClasses::kPage));
  granularity_ = std::max(unit->recommended, PoolClasses::kPage);
  const uint64_t smallest = round_up(device_.facts().total_bytes, alignment);
  uint64_t size = round_up(std::max(smallest * 4, kLeastAddresses), alignment);
  while (true) {
    backend::ReservationRequest request;
    request.size = size;
    request.alignment = alignment;
    auto range = reserve_range(context_, request, memory_.name);
    if (!range && range.error().status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE && size / 2 >= smallest) {
      size = round_up(size / 2, alignment);
      continue;
    }
    if (!range) return range.error();
    range_ = *range;
    break;
  }
  auto made = held<Range>(range_);
  if (!made) return made.error();
  (*made)->set_owned();
  (*made)->set_pool_blocks(&blocks);
  begin_ = (*made)->address();
  end_ = begin_ + (*made)->size();
  return {};
}

Result<void> PoolSource::unmap_old() {
  Result<void> all;
  for (auto next = old_.begin(); next != old_.end();) {
    const auto old = next++;
    const uint64_t base = old->first;
    const uint64_t size = old->second.size;
    if (old->second.passing.order != PoolSpace::kAny) continue;
    auto unmapped = give_back<Range>(
        range_, [&](Ref<Range> range) { return unmap_range(std::move(range), base - begin_, size); });
    if (!unmapped) {
      if (all) all = unmapped;
      continue;
    }
    old_bytes_ -= size;
    old_.erase(old);
  }
  return all;
}

void PoolSource::pass(PoolSpace::Order order, uint64_t epoch) noexcept {
  for (auto& [base, old] : old_) {
    if (old.passing.order == order && old.passing.epoch <= epoch) old.passing = {};
  }
}

Result<void> PoolSource::map(uint64_t base, uint64_t size) {
  GPUMEM_TRY(map_block(base, size, [&](DeviceObject& device, Range& /*range*/) {
    return create_physical(device, piece_of(size), memory_.name);
  }));
  bytes_ += size;
  return {};
}

Result<void> PoolSource::move(uint64_t from, uint64_t to, PoolPassing passing) {
  const uint64_t offset = from - begin_;
  GPUMEM_TRY(map_block(to, pieces_.at(from).size, [&](DeviceObject& /*device*/, Range& range) {
    const Mapping& mapping = *range.mappings().find(offset);
    return make_physical(context_, mapping.device, memory_.name,
                         [&] { return range.reservation().retain(offset, mapping.facts); });
  }));
  point_old(from, to);
  Piece& old = old_.insert(pieces_.extract(from)).position->second;
  old.moved_to = to;
  old.passing = passing;
  old_bytes_ += old.size;
  return {};
}

Result<void> PoolSource::map_block(uint64_t base, uint64_t size, const MakeBlock& make) {
  const auto [piece, added] = pieces_.try_emplace(base);
  Cleanup drop([&, place = piece] { pieces_.erase(place); });
  auto root = held<DeviceObject>(device_.handle());
  if (!root) return root.error();
  auto made = [&]() -> Result<uint64_t> {
    auto range = held<Range>(range_);
    if (!range) return range.error();
    return make(**root, **range);
  }();
  if (!made) return made.error();
  const Cleanup handle([&] { core::abandon(*context_, *made); });  // the mapping keeps the memory
  {
    auto physical = held<Physical>(*made);
    if (!physical) return physical.error();
    auto range = held<Range>(range_);
    if (!range) return range.error();
    std::vector<Ref<Physical>> blocks;
    blocks.push_back(std::move(*physical));
    GPUMEM_TRY(map_range(std::move(*range), base - begin_, blocks));
  }
  piece->second.size = size;
  Cleanup undo([&, place = piece] {
    drop.dismiss();
    old_.insert(pieces_.extract(place));
    old_bytes_ += size;
    (void)unmap_old();
  });
  {
    std::vector<AccessRequest> accesses = memory_.accesses;
    accesses.push_back({&device_, GPUMEM_ACCESS_READWRITE});
    auto range = held<Range>(range_);
    if (!range) return range.error();
    GPUMEM_TRY(set_range_access(std::move(*range), base - begin_, size, accesses));
  }
  undo.dismiss();
  drop.dismiss();
  return {};
}

Result<PoolSource::Pieces::node_type> PoolSource::make(uint64_t size) const {
  Pieces single;  // its node becomes one of pieces_, which needs no memory
  Piece& piece = single[0];
  piece.size = size;
  uint64_t base = 0;
  if (!memory_.kind->allocated()) {
    constexpr uint64_t kPage = PoolClasses::kPage;
    // Pages come when they are touched, so this does not count what earlier pieces are still to get.
    if (size >= platform::kLargeOnHost) GPUMEM_TRY(platform::check_host_budget(size));
    void* const pages = mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
      return platform::system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, "mmap",
                                    "the system has no more memory for a pool");
    }
    base = round_up(address_of(pages), kPage);
    if (base != address_of(pages)) munmap(pages, base - address_of(pages));
    munmap(pointer_to(base + size), address_of(pages) + kPage - base);
  } else {
    auto root = held<DeviceObject>(device_.handle());
    if (!root) return root.error();
    auto made = create_memory(**root, *memory_.kind, memory_of(size), memory_.name);
    if (!made) return made.error();
    auto memory = held<Memory>(made->handle);
    if (!memory) return memory.error();
    (*memory)->set_owned();
    (*memory)->set_pool_blocks(blocks_);
    base = address_of(made->pointer);
    piece.handle = made->handle;
  }
  auto node = single.extract(single.begin());
  node.key() = base;
  return node;
}

uint64_t PoolSource::add(Pieces::node_type made) noexcept {
  const uint64_t base = made.key();
  bytes_ += made.mapped().size;
  pieces_.insert(std::move(made));
  return base;
}

Result<void> PoolSource::release(uint64_t base) {
  const auto piece = pieces_.find(base);
  const uint64_t size = piece->second.size;
  const uint64_t handle = piece->second.handle;
  if (std::any_of(old_.begin(), old_.end(), [base](const auto& old) {
        return old.second.moved_to == base && old.second.passing.order != PoolSpace::kAny;
      })) {
    return make_error(GPUMEM_ERROR_BUSY, "work may still use the memory at the addresses that it had before");
  }
  if (in_range()) {
    auto range = held<Range>(range_);
    if (!range) return range.error();
    GPUMEM_TRY(unmap_range(std::move(*range), base - begin_, size));
  } else if (handle == 0) {
    munmap(pointer_to(base), size);
  } else {
    GPUMEM_TRY(
        give_back<Memory>(handle, [](Ref<Memory> memory) { return destroy_memory(std::move(memory)); }));
  }
  pieces_.erase(piece);
  point_old(base, 0);
  bytes_ -= size;
  return {};
}

void PoolSource::point_old(uint64_t base, uint64_t to) noexcept {
  for (auto& [from, old] : old_) {
    if (old.moved_to == base) old.moved_to = to;
  }
}

Result<void> PoolSource::close() {
  if (range_ == 0) return {};
  for (auto& [base, old] : old_)
    old.passing = {};
  GPUMEM_TRY(unmap_old());
  GPUMEM_TRY(give_back<Range>(range_, destroy_object));
  range_ = 0;
  return {};
}

void PoolSource::abandon() noexcept {
  const auto leave = [&]<class T>(T* /*type*/, uint64_t handle) {
    if (auto found = held<T>(handle)) (*found)->set_pool_blocks(nullptr);
    core::abandon(*context_, handle);
  };
  for (const auto& [base, piece] : pieces_) {
    if (piece.handle != 0) leave(static_cast<Memory*>(nullptr), piece.handle);
  }
  if (range_ != 0) leave(static_cast<Range*>(nullptr), range_);
  forget();
}

void PoolSource::forget() noexcept {
  for (const auto& [base, piece] : pieces_) {
    if (range_ == 0 && piece.handle == 0) munmap(pointer_to(base), piece.size);
  }
  pieces_.clear();
  old_.clear();
  old_bytes_ = 0;
  range_ = 0;
  bytes_ = 0;
}

}  // namespace gpumem::core
