// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/registry.h"

#include <mutex>

#include "core/memory.h"

namespace gpumem::core {

void Registry::insert(Node node, uint64_t base, uint64_t size, Memory* memory) noexcept {
  node.key() = base;
  node.mapped() = Entry{size, memory};
  std::unique_lock lock(mutex_);
  map_.insert(std::move(node));
}

bool Registry::insert_unless_overlap(Node& node, uint64_t base, uint64_t size, Memory* memory,
                                     gpumem_kind* other) noexcept {
  node.key() = base;
  node.mapped() = Entry{size, memory};
  std::unique_lock lock(mutex_);
  const auto found = first_overlap(base, size);
  if (found != map_.end()) {
    *other = found->second.memory->kind();
    return false;
  }
  map_.insert(std::move(node));
  return true;
}

Registry::Node Registry::extract(uint64_t base) noexcept {
  std::unique_lock lock(mutex_);
  return map_.extract(base);
}

Registry::Found Registry::find(uint64_t address) const {
  std::shared_lock lock(mutex_);
  const auto found = first_overlap(address, 1);
  if (found == map_.end()) return {};
  // An entry whose memory is being made or destroyed by another call has no live handle: for this call it is
  // not there.
  auto memory = acquire<Memory>(found->second.memory->handle());
  if (!memory) return {};
  return Found{std::move(*memory), found->first, address - found->first};
}

bool Registry::overlaps(uint64_t base, uint64_t size) const {
  std::shared_lock lock(mutex_);
  return first_overlap(base, size) != map_.end();
}

Registry::Map::const_iterator Registry::first_overlap(uint64_t base, uint64_t size) const {
  auto after = map_.upper_bound(base);
  if (after != map_.begin()) {
    const auto before = std::prev(after);
    if (base - before->first < before->second.size) return before;
  }
  if (after != map_.end() && after->first - base < size) return after;
  return map_.end();
}

}  // namespace gpumem::core
