// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a PoolCore does while streams are captured.
#include "core/pool/core.h"

#include <algorithm>
#include <cinttypes>
#include <new>

#include "base/cleanup.h"

namespace gpumem::core {
namespace {

void add_once(std::vector<uint64_t>& captures, uint64_t id) {
  if (std::find(captures.begin(), captures.end(), id) == captures.end()) captures.push_back(id);
}

bool same(const backend::Capture& first, const backend::Capture& second) {
  return first.id == second.id && first.line == second.line;
}

}  // namespace

PoolPart& PoolCore::part_of(uint64_t id) {
  std::shared_ptr<PoolPart>& part = captures_.parts[id];
  if (part == nullptr) {
    Cleanup drop([&] { captures_.parts.erase(id); });
    part = std::make_shared<PoolPart>();
    part->id = id;
    drop.dismiss();
  }
  return *part;
}

std::shared_ptr<PoolOrder> PoolCore::order_of(const backend::Capture& capture) {
  constexpr uint64_t kOfCapture = uint64_t{1} << 61;
  auto& lines = part_of(capture.id).lines;
  std::shared_ptr<Order>& line = lines[capture.line];
  if (line == nullptr) {
    Cleanup drop([&] { lines.erase(capture.line); });
    const PoolSpace::Order number = ++last_order_;
    line = std::make_shared<Order>(number, kOfCapture | number);
    line->hold();
    drop.dismiss();
  }
  return line;
}

// Frees the blocks in an order of a capture for every stream.
void PoolCore::end_line(Order& line) {
  line.pass_all();
  line.take_passed([&](const PoolFree& block) { put_back(block); });
  pass(line.number(), UINT64_MAX);
}

// Allocates a block. It belongs to the part if the stream is being captured.
Result<void*> PoolCore::allocate_for(Lock& lock, const PoolStream& stream,
                                     const std::shared_ptr<Order>& order, uint64_t size, uint64_t alignment) {
  const uint64_t id = stream.capture.id;
  if (id == 0) return allocate_block(lock, *order, size, alignment);
  // Allocate the record first, so that nothing fails once there is a block.
  std::map<uint64_t, PoolCaptured> entry;
  entry.emplace(0, PoolCaptured{id, {}});
  auto block = allocate_block(lock, *order, size, alignment);
  if (!block) return block;
  const auto part = captures_.parts.find(id);
  bool current = false;
  if (part != captures_.parts.end()) {
    const auto line = part->second->lines.find(stream.capture.line);
    current = line != part->second->lines.end() && line->second == order;
  }
  if (!current) {
    // Another thread may have released the part while the lock was not held.
    if (captures_.find(id) == nullptr) end_line(*order);
    return block;
  }
  const uint64_t address = address_of(*block);
  auto node = entry.extract(entry.begin());
  node.key() = address;
  captures_.blocks.insert(std::move(node));
  PoolRun& run = *blocks_.run_at(address);
  run.state(run.index_of(address)).store(PoolRun::kCaptured, std::memory_order_release);
  return block;
}

// Frees a live block that captures use, or one whose free a captured stream orders: its graph may be launched
// at any time.
void PoolCore::free_captured(const PoolStream& stream, PoolRun& run, uint64_t address) {
  const auto entry = captures_.blocks.find(address);
  const bool known = entry != captures_.blocks.end();
  const auto recorded = recorded_.find(address);
  const bool own = known && stream.capture.id != 0 && entry->second.part == stream.capture.id;
  PoolPart::Held held{address, &run, nullptr, {}, {}};
  if (known) {
    for (const backend::Capture& use : entry->second.uses) {
      if (!own || !same(use, stream.capture)) add_once(held.captures, use.id);
    }
    if (!own && entry->second.part != 0) add_once(held.captures, entry->second.part);
  }
  if (!own && stream.capture.id != 0) add_once(held.captures, part_of(stream.capture.id).id);
  if (recorded != recorded_.end()) {
    if (held.captures.empty()) held.captures.push_back(stream.capture.id);
    held.needs.reserve(recorded->second.size());
  }
  const bool reused = own && held.captures.empty();
  if (reused) {
    held.order = order_of(stream.capture);
    if (run.class_index != PoolRun::kLarge) held.order->reserve(run.class_index, 1);
  } else {
    // A block that is older than the capture is freed after the stream's work outside of the capture.
    PoolStream outside = own ? PoolStream{} : stream;
    outside.capture = {};
    held.order = order_of(outside);
  }
  std::vector<PoolPart::Held>* const list =
      held.captures.empty() ? nullptr : &captures_.find(held.captures.back())->held;
  if (list != nullptr) list->reserve(list->size() + 1);
  waiting_.reserve(waiting_.size() + 1);
  space_.prepare(1);
  // From here on nothing fails.
  if (recorded != recorded_.end()) {
    for (auto& other : recorded->second) {
      if (other == held.order) continue;
      other->note_frees(1);
      held.needs.emplace_back(other, other->epoch());
    }
    recorded_.erase(recorded);
  }
  if (!reused) held.order->note_frees(1);
  count_free(run, address);
  if (known) captures_.blocks.erase(entry);
  if (list != nullptr) {
    list->push_back(std::move(held));
  } else {
    free_block(*held.order, run, address);
  }
}

void PoolCore::record_captured_use(const backend::Capture& capture, PoolRun& run, uint64_t address) {
  part_of(capture.id);
  const auto [entry, fresh] = captures_.blocks.try_emplace(address);
  Cleanup drop([&, place = entry, made = fresh] {
    if (made) captures_.blocks.erase(place);
  });
  auto& uses = entry->second.uses;
  if (std::none_of(uses.begin(), uses.end(), [&](const auto& use) { return same(use, capture); }))
    uses.push_back(capture);
  drop.dismiss();
  run.state(run.index_of(address)).store(PoolRun::kCaptured, std::memory_order_release);
}

// Ends the capture's use of live blocks.
void PoolCore::forget_capture(uint64_t id) noexcept {
  for (auto at = captures_.blocks.begin(); at != captures_.blocks.end();) {
    auto& [address, block] = *at;
    if (block.part == id) block.part = 0;
    std::erase_if(block.uses, [&](const backend::Capture& use) { return use.id == id; });
    if (block.part != 0 || !block.uses.empty()) {
      ++at;
      continue;
    }
    PoolRun& run = *blocks_.run_at(address);
    run.state(run.index_of(address))
        .store(recorded_.contains(address) ? PoolRun::kRecorded : PoolRun::kLive, std::memory_order_release);
    at = captures_.blocks.erase(at);
  }
}

Result<void> PoolCore::release_capture(const PoolStream& stream, uint64_t id) {
  const Lock lock(mutex_);
  const auto found = captures_.parts.find(id);
  if (found == captures_.parts.end()) {
    return make_error(GPUMEM_ERROR_NOT_FOUND,
                      "the pool has no part of a capture %" PRIu64 "; it may be released already", id);
  }
  const auto order = order_of(stream);
  captures_.ending.reserve(captures_.ending.size() + 1);
  const std::shared_ptr<PoolPart> part = found->second;
  if (!order->is_none()) {
    order->note_frees(1);
    part->after = order;
    part->epoch = order->epoch();
  }
  captures_.parts.erase(found);
  captures_.ending.push_back(part);
  forget_capture(id);
  try {
    settle_captures();
    keep_threshold();
  } catch (const std::bad_alloc&) {
    // The part is released; the next call finishes the rest.
  }
  return {};
}

void PoolCore::end_part(PoolPart& part) {
  for (auto& [key, line] : part.lines)
    end_line(*line);
  while (!part.held.empty()) {
    PoolPart::Held& one = part.held.back();
    PoolPart* next = nullptr;
    for (const uint64_t id : one.captures) {
      if (id != part.id && next == nullptr) next = captures_.find(id);
    }
    if (next != nullptr) {
      next->held.push_back(std::move(one));
    } else if (!one.needs.empty()) {
      const PoolFree block{one.address, &one.run->state(one.run->index_of(one.address))};
      waiting_.reserve(waiting_.size() + 1);
      waiting_.push_back({block, one.run, one.order, std::move(one.needs)});
    } else {
      free_block(*one.order, *one.run, one.address);
    }
    part.held.pop_back();
  }
}

void PoolCore::settle_captures() {
  for (size_t i = 0; i < captures_.ending.size();) {
    const std::shared_ptr<PoolPart> part = captures_.ending[i];
    if (part->after != nullptr && !part->after->has_passed(part->epoch)) {
      mark(*part->after);
      poll(*part->after);
      if (!part->after->has_passed(part->epoch)) {
        ++i;
        continue;
      }
    }
    captures_.ending.erase(captures_.ending.begin() + static_cast<ptrdiff_t>(i));
    Cleanup again([&] { captures_.ending.push_back(part); });  // there is room: one was erased
    end_part(*part);
    again.dismiss();
  }
}

// Ends all captures with the pool, once the work of all streams is complete.
void PoolCore::end_captures() {
  captures_.ending.reserve(captures_.ending.size() + captures_.parts.size());
  while (!captures_.parts.empty()) {
    const auto first = captures_.parts.begin();
    forget_capture(first->first);
    captures_.ending.push_back(std::move(first->second));
    captures_.parts.erase(first);
  }
  for (const auto& part : captures_.ending) {
    part->after = nullptr;
    for (PoolPart::Held& one : part->held) {
      one.order = orders_.at(PoolStream::kNone);
      one.needs.clear();
    }
  }
  settle_captures();
}

// Bytes that captures have, live or free.
uint64_t PoolCore::captured_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [address, block] : captures_.blocks)
    bytes += block.part != 0 ? blocks_.run_at(address)->block_size() : 0;
  const auto count = [&](const PoolPart& part) {
    for (const auto& [key, line] : part.lines) {
      bytes += space_.free_bytes(line->number());
      for (uint32_t i = 0; i < classes_.count(); ++i)
        bytes += line->count(i) * classes_.size_of(i);
    }
    for (const PoolPart::Held& one : part.held)
      bytes += one.run->block_size();
  };
  for (const auto& [id, part] : captures_.parts)
    count(*part);
  for (const auto& part : captures_.ending)
    count(*part);
  return bytes;
}

}  // namespace gpumem::core
