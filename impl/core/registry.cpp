// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/registry.h"

#include <mutex>

#include "core/memory.h"

namespace gpumem::core {

void Registry::insert(Node node, uint64_t base, uint64_t size, Memory* memory) noexcept {
  node.key() = base;
  node.mapped() = Entry{size, memory, false};
  std::unique_lock lock(mutex_);
  map_.erase(base);  // only an entry that is leaving can stand at an address that is given out again
  map_.insert(std::move(node));
}

bool Registry::insert_unless_overlap(Node& node, uint64_t base, uint64_t size, Memory* memory,
                                     gpumem_kind* other) noexcept {
  node.key() = base;
  node.mapped() = Entry{size, memory, false};
  std::unique_lock lock(mutex_);
  auto found = first_overlap(base, size);
  // Bytes whose registration is just being taken back are the caller's all the time, and may stay registered.
  if (found == map_.end()) found = leaving_registration(base, size);
  if (found != map_.end()) {
    *other = found->second.memory->kind();
    // Memory that can never be registered counts before memory that is pinned already (COM-17).
    for (auto next = found; next != map_.end() && (next->first < base || next->first - base < size); ++next) {
      if (!next->second.leaving && next->second.memory->kind() == GPUMEM_KIND_DEVICE) {
        *other = GPUMEM_KIND_DEVICE;
      }
    }
    return false;
  }
  map_.erase(base);
  map_.insert(std::move(node));
  return true;
}

void Registry::set_leaving(uint64_t base, const Memory* memory, bool leaving) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = map_.find(base);
  if (found != map_.end() && found->second.memory == memory) found->second.leaving = leaving;
}

void Registry::erase(uint64_t base, const Memory* memory) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = map_.find(base);
  if (found != map_.end() && found->second.memory == memory) map_.erase(found);
}

Registry::Found Registry::find(uint64_t address) const {
  std::shared_lock lock(mutex_);
  Found result;
  const auto found = first_overlap(address, 1);
  if (found == map_.end()) {
    result.in_transition = is_leaving(address, &result.transition_kind);
    return result;
  }
  auto memory = acquire<Memory>(found->second.memory->handle());
  if (!memory) {
    result.in_transition = true;
    result.transition_kind = found->second.memory->kind();
    return result;
  }
  result.memory = std::move(*memory);
  result.base = found->first;
  result.offset = address - found->first;
  return result;
}

bool Registry::begins_inside(uint64_t base, uint64_t size) const {
  std::shared_lock lock(mutex_);
  const auto found = first_overlap(base, size);
  return found != map_.end() && found->first > base;
}

// Entries that stay have no byte in common, so only the nearest of them before and after the address count.
Registry::Map::const_iterator Registry::first_overlap(uint64_t base, uint64_t size) const {
  const auto after = map_.upper_bound(base);
  for (auto before = after; before != map_.begin();) {
    --before;
    if (before->second.leaving) continue;
    if (base - before->first < before->second.size) return before;
    break;
  }
  for (auto next = after; next != map_.end() && next->first - base < size; ++next) {
    if (!next->second.leaving) return next;
  }
  return map_.end();
}

Registry::Map::const_iterator Registry::leaving_registration(uint64_t base, uint64_t size) const {
  const auto is_one = [](const auto& item) {
    return item.second.leaving && item.second.memory->kind() == GPUMEM_KIND_REGISTERED &&
           item.first == item.second.memory->host_base();
  };
  const auto after = map_.upper_bound(base);
  for (auto before = after; before != map_.begin();) {
    --before;
    if (!before->second.leaving) break;
    if (is_one(*before) && base - before->first < before->second.size) return before;
  }
  for (auto next = after; next != map_.end() && next->first - base < size; ++next) {
    if (is_one(*next)) return next;
  }
  return map_.end();
}

bool Registry::is_leaving(uint64_t address, gpumem_kind* kind) const {
  for (auto before = map_.upper_bound(address); before != map_.begin();) {
    --before;
    if (!before->second.leaving) return false;
    if (address - before->first >= before->second.size) continue;
    *kind = before->second.memory->kind();
    return true;
  }
  return false;
}

}  // namespace gpumem::core
