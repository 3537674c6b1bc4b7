// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps on pools. The model knows which blocks live, one value that the first bytes of each have, and which
// pending work may still use what was freed. How much memory a pool has taken, it asks, and looks whether the
// counts of the instance agree.
#include <array>
#include <optional>
#include <set>

#include "player.h"

namespace sequences {
namespace {

constexpr uint64_t kTooLarge = uint64_t{1} << 63;
constexpr uint64_t kPage = 64 << 10;
constexpr uint64_t kSmallMost = 1 << 20;
constexpr uint64_t kGuard = 256;
constexpr uint64_t kAlignmentMost = uint64_t{1} << 40;
constexpr uint64_t kLooked = 4096;  // bytes of a block that are written and compared
constexpr size_t kBatchMost = 3;

unsigned long long wide(uint64_t number) { return number; }
uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }
bool is_huge(uint64_t size) { return size >= uint64_t{1} << 40; }
uint64_t number_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

uint64_t granule_of(gpumem_kind kind) {
  return kind == GPUMEM_KIND_DEVICE || kind == GPUMEM_KIND_MANAGED ? 256 : 16;
}

bool is_lack(gpumem_status status) {
  return status == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY || status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY ||
         status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE || status == GPUMEM_ERROR_LIMIT_EXCEEDED;
}

uint64_t pick_size(Choice& choice) {
  constexpr uint64_t kRight[] = {256, 1, 256, 4096, 64, 1000, 9000, 256, 300, 5000, 256, 700, 65536};
  constexpr uint64_t kWrongSizes[] = {
      0, kTooLarge, UINT64_MAX, kTooLarge - 1, kSmallMost + 1, uint64_t{1} << 50, kTooLarge + 4096, 2 << 20};
  return choice.value(kRight, kWrongSizes);
}

// What a pool takes at most for a block.
uint64_t most_for(const Pool& from, uint64_t size, uint64_t alignment, uint64_t unit) {
  if (size == 0) return 0;
  if (from.debug()) size += std::max(kGuard, alignment) + kGuard;
  const bool large = size > kSmallMost || alignment > kPage;
  // A chunk of eight blocks, or one that is cut to measure.
  const uint64_t bytes = large ? round_up(size, kPage) + alignment
                               : 8 * (size + size / 8 + 256 + (alignment > 256 ? size + alignment : 0));
  return round_up(round_up(bytes, kPage), unit) + unit;
}

void GPUMEM_CALL hold(void* user_data) { static_cast<Gate*>(user_data)->open.wait(false); }

int32_t count_call(void* user_data, gpumem_pool, uint64_t) {
  static_cast<std::atomic<uint64_t>*>(user_data)->fetch_add(1);
  return 0;
}

}  // namespace

// ---- choosing ----

// The stream of an allocation or a free: every second time none.
Player::PoolOrder Player::pick_order(Choice& choice, bool native, const Picked& of) {
  PoolOrder order;
  order.is_native = native;
  const int home = of.index < 0 ? -1 : pool(of.index).device;
  if (native) {
    const uint8_t byte = choice.byte();
    std::vector<int> lines;
    for (size_t i = 0; i < model_.lines.size(); ++i) {
      const Line& each = model_.lines[i];
      if (!each.retired && each.pointer != nullptr && each.device == home)
        lines.push_back(static_cast<int>(i));
    }
    order.text = "NULL";
    if (byte >= kWrong && model_.on_host) {
      order.native = as<void*>(0x1230);
      order.wrong = {GPUMEM_ERROR_INVALID_ARGUMENT};
      order.text = "(void*)0x1230";
    } else if (!lines.empty() && byte >= 40) {
      order.line = lines[byte % lines.size()];
      order.native = line(order.line).pointer;
      order.text = "line" + std::to_string(order.line);
    } else if (home >= 0 && static_cast<size_t>(home) < default_lines_.size()) {
      order.line = default_lines_[static_cast<size_t>(home)];
    }
  } else {
    order.picked = pick_stream(choice);
    const bool none = choice.byte() % 2 == 0;
    if (order.picked.value == 0 || (none && order.picked.wrong.empty())) order.picked = {-1, 0, {}, "NULL"};
    if (order.picked.wrong.empty()) order.stream = order.picked.index;
    if (order.stream >= 0) order.line = stream(order.stream).line;
    order.text = order.picked.text;
  }
  order.avoid = order.line >= 0 && line(order.line).capturing;
  return order;
}

// Where an address lies: in a block of one pool, or of any of an instance.
Player::PoolPlace Player::place_of(int in_pool, int owner, uint8_t* pointer) const {
  PoolPlace place;
  place.pointer = pointer;
  for (size_t i = 0; i < model_.pools.size() && pointer != nullptr; ++i) {
    const Pool& each = model_.pools[i];
    if (in_pool >= 0 ? static_cast<int>(i) != in_pool : each.instance != owner) continue;
    auto behind = each.blocks.upper_bound(pointer);
    if (behind == each.blocks.begin()) continue;
    const auto& [base, block] = *std::prev(behind);
    if (number_of(pointer) - number_of(base) >= block.usable) continue;
    place.pool = static_cast<int>(i);
    place.base = base;
  }
  return place;
}

Player::PoolPlace Player::pick_block(Choice& choice, int in_pool, int owner) {
  const uint8_t byte = choice.byte();
  std::vector<std::pair<int, uint8_t*>> own;
  std::vector<uint8_t*> others;
  for (size_t i = 0; i < model_.pools.size(); ++i) {
    const Pool& each = model_.pools[i];
    const bool meant = in_pool >= 0 ? static_cast<int>(i) == in_pool : each.instance == owner;
    for (const auto& [base, block] : each.blocks) {
      if (meant) own.emplace_back(static_cast<int>(i), base);
      if (!meant) others.push_back(base);
    }
  }
  uint8_t* pointer = model_.arena.writable();
  std::string text = "heap";
  if (!own.empty() && (byte < kWrong || byte % 6 == 1 || byte % 6 == 2)) {
    const auto& [index, base] = own[byte % own.size()];
    pointer = base;
    text = "pool" + std::to_string(index) + " block " + std::to_string(byte % own.size());
    const uint64_t usable = pool(index).blocks[base].usable;
    if (byte >= kWrong && usable > 1) {
      pointer += byte % 6 == 1 ? 1 : usable - 1;
      text += byte % 6 == 1 ? "+1" : " (last byte)";
    }
  } else if (byte >= kWrong && byte % 6 == 0) {
    pointer = nullptr;
    text = "NULL";
  } else if (byte >= kWrong && byte % 6 == 3 && !others.empty()) {
    pointer = others[byte % others.size()];
    text = "block of another pool";
  } else if (byte >= kWrong && byte % 6 == 4 && !pool_freed_.empty()) {
    pointer = pool_freed_[byte % pool_freed_.size()];
    text = "freed block";
  } else if (byte >= kWrong && byte % 6 == 5) {
    pointer = as<uint8_t*>(0x10);
    text = "(void*)16";
  }
  PoolPlace place = place_of(in_pool, owner, pointer);
  place.text = text;
  return place;
}

// ---- predictions ----

// A call that may ask the backend for something before it finds out that it fails.
Expect Player::or_fault(Expect expect, int owner) const {
  if (model_.instances[static_cast<size_t>(owner)].armed &&
      std::find(expect.begin(), expect.end(), GPUMEM_ERROR_OUT_OF_HOST_MEMORY) == expect.end())
    expect.push_back(GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  return expect;
}

// What taking memory is answered: at least and at most so many bytes are needed.
Expect Player::expect_growth(int home, gpumem_kind kind, gpumem_memory_flags flags, uint64_t limit,
                             uint64_t reserved, uint64_t least, uint64_t most) {
  const Instance& owner = instance(device(home).instance);
  const uint64_t total = device(home).total;
  bool may = true;
  Expect expect;
  const auto refuse = [&](gpumem_status status) {
    if (std::find(expect.begin(), expect.end(), status) == expect.end()) expect.push_back(status);
  };
  const auto exceeds = [&](uint64_t used, uint64_t of) { return is_huge(most) || used + most > of; };
  if (limit != 0) {
    if (exceeds(reserved, limit)) refuse(GPUMEM_ERROR_LIMIT_EXCEEDED);
    may = least <= std::max(limit, reserved);
  }
  if (kind == GPUMEM_KIND_DEVICE) {
    may = may && least <= total;
    if (is_huge(most) || least > total || room_for(home, most) != Expect{GPUMEM_SUCCESS})
      refuse(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
  } else {
    may = may && !is_huge(least);
    if (is_huge(least)) refuse(GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  }
  if (kind == GPUMEM_KIND_PINNED && owner.pin_budget != 0 && exceeds(owner.pinned, owner.pin_budget))
    refuse(GPUMEM_ERROR_LIMIT_EXCEEDED);
  if (kind == GPUMEM_KIND_MANAGED && (flags & GPUMEM_MEMORY_OVERSUBSCRIBE) == 0) {
    const uint64_t pages = (owner.stats.managed.live_count + 1) * (2 << 20);
    if (exceeds(owner.stats.managed.live_bytes + pages, total)) refuse(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
  } else if (kind == GPUMEM_KIND_MANAGED && is_huge(least)) {
    refuse(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
  }
  if (may) expect.insert(expect.begin(), GPUMEM_SUCCESS);
  return or_fault(expect, device(home).instance);
}

Expect Player::expect_block(const Pool& from, uint64_t size, uint64_t alignment) {
  const uint64_t unit = from.in_range() ? unit_of(from.instance) : kPage;
  return expect_growth(
      from.device, from.kind, from.memory_flags, from.limit, from.reserved, size,
      is_huge(size) || is_huge(alignment) ? kTooLarge - 1 : most_for(from, size, alignment, unit));
}

// What an allocation with right arguments is answered.
Expect Player::expect_served(const Picked& chosen, const PoolOrder& order, uint64_t size,
                             uint64_t alignment) {
  const Pool& from = pool(chosen.index);
  if (model_.lost(from.device)) return {GPUMEM_ERROR_DEVICE_LOST};
  if (!order.wrong.empty()) return or_fault(order.wrong, from.instance);
  Expect expect = expect_block(from, size, alignment);
  if (from.for_others) expect = if_lost(expect, from.instance);
  if (order.stream >= 0 && !from.serves(stream(order.stream).device))
    expect = or_fault({GPUMEM_ERROR_NO_ACCESS}, from.instance);
  if (order.stream >= 0 && model_.lost(stream(order.stream).device))
    expect.push_back(GPUMEM_ERROR_DEVICE_LOST);
  return expect;
}

Expect Player::expect_freed(const Picked& chosen, const PoolOrder& order, const PoolPlace& at) const {
  if (at.pointer == nullptr) return {GPUMEM_SUCCESS};
  // Only a native stream is asked for something first.
  if (order.is_native && model_.lost(model_.pools[static_cast<size_t>(chosen.index)].device))
    return {GPUMEM_ERROR_DEVICE_LOST};
  if (!order.wrong.empty()) return order.wrong;
  if (at.base == nullptr) return {GPUMEM_ERROR_NOT_FOUND};
  return {at.base == at.pointer ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_ARGUMENT};
}

// ---- the model ----

bool Player::settle_lines(int owner) {
  open_gates();
  bool all = true;
  for (size_t i = 0; i < model_.lines.size(); ++i) {
    const Line& each = model_.lines[i];
    if (device(each.device).instance != owner || each.observed >= each.enqueued) continue;
    all = wait_for(static_cast<int>(i)) && all;
  }
  return all;
}

// A call that pools are asked in may see that work is complete.
void Player::note_polls(int owner) {
  for (const Pool& each : model_.pools) {
    if (each.instance != owner) continue;
    for (const int index : each.lines) {
      line(index).marked = true;
      for (const auto& [of, number] : model_.mark(index)) {
        Line& queue = line(of);
        uint64_t most = number;
        for (const uint64_t gate : queue.gates)
          most = std::min(most, gate - 1);
        queue.polled = std::max(queue.polled, most);
      }
    }
  }
}

// What a pool tells of itself, and what that changes for its instance.
void Player::follow_pool(int index, bool failed) {
  Pool& known = pool(index);
  Instance& owner = instance(known.instance);
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  require(gpumem_pool_get_info(as<gpumem_pool>(known.handle), &info, nullptr) == GPUMEM_SUCCESS,
          "a pool tells nothing");
  const std::string name = "pool" + std::to_string(index);
  require(value_of(info.device) == device(known.device).handle &&
              info.device_ordinal == device(known.device).ordinal && info.kind == known.kind &&
              info.flags == known.flags && info.memory_flags == known.memory_flags &&
              info.limit == known.limit && info.release_threshold == known.release_threshold &&
              info.low_water == known.low_water && info.name == known.name,
          name + " tells something else than before");
  require(info.live_count == known.blocks.size(), name + " has " + std::to_string(info.live_count) +
                                                      " blocks; expected " +
                                                      std::to_string(known.blocks.size()));
  require(known.debug() || info.live_bytes == known.live_bytes(),
          name + " has blocks of " + std::to_string(info.live_bytes) + " bytes; expected " +
              std::to_string(known.live_bytes()));
  require(info.live_bytes >= known.live_bytes() && info.reserved_bytes >= info.live_bytes &&
              info.cached_bytes == info.reserved_bytes - info.live_bytes &&
              (info.segment_count == 0) == (info.reserved_bytes == 0),
          name + " has less than its blocks");
  require(info.peak_live_count >= info.live_count && info.peak_live_bytes >= info.live_bytes &&
              info.peak_reserved_bytes >= info.reserved_bytes,
          "the peaks of " + name + " are below what there is");
  require(failed ? info.total_count >= known.allocated : info.total_count == known.allocated,
          name + " has allocated " + std::to_string(info.total_count) + " blocks; expected " +
              std::to_string(known.allocated));
  require(failed || known.debug() ? info.total_bytes >= known.allocated_bytes
                                  : info.total_bytes == known.allocated_bytes,
          name + " has allocated " + std::to_string(info.total_bytes) + " bytes; expected " +
              std::to_string(known.allocated_bytes));
  require(known.limit == 0 || info.reserved_bytes <= std::max(known.limit, known.reserved),
          name + " has taken more than its limit");
  require(info.capture_count == 0 && info.captured_bytes == 0 && info.reserved == 0,
          name + " has a part of a capture");
  require(info.wait_count == known.waits, name + " has let a stream wait");
  known.allocated = info.total_count;
  known.allocated_bytes = info.total_bytes;
  if (known.kind == GPUMEM_KIND_DEVICE) device(known.device).used += info.reserved_bytes - known.reserved;
  if (!known.in_range() && known.kind != GPUMEM_KIND_PAGEABLE) {
    const bool pinned = known.kind == GPUMEM_KIND_PINNED;
    gpumem_kind_stats& counts = pinned                             ? owner.stats.pinned
                                : known.kind == GPUMEM_KIND_DEVICE ? owner.stats.device
                                                                   : owner.stats.managed;
    counts.live_count += info.segment_count - known.segments;
    counts.live_bytes += info.reserved_bytes - known.reserved;
    if (pinned) owner.pinned += info.reserved_bytes - known.reserved;
  }
  known.reserved = info.reserved_bytes;
  known.segments = info.segment_count;
}

// Objects that live pools are made of.
uint64_t Player::memory_of_pools(int owner) const {
  uint64_t count = 0;
  for (const Pool& each : model_.pools) {
    if (each.instance != owner || each.life != Life::kLive || each.kind == GPUMEM_KIND_PAGEABLE) continue;
    count += each.in_range() ? 1 : each.segments;
  }
  return count;
}

uint64_t Player::destroyed_pools_without_objects(int owner) const {
  return static_cast<uint64_t>(std::count_if(model_.pools.begin(), model_.pools.end(), [&](const Pool& each) {
    return each.instance == owner && each.life == Life::kDestroyed && each.kind == GPUMEM_KIND_PAGEABLE &&
           !each.blocks.empty();
  }));
}

// All that pools of an instance have changed.
void Player::follow_pools(int index) {
  Instance& owner = instance(index);
  for (size_t i = 0; i < model_.pools.size(); ++i) {
    if (pool(static_cast<int>(i)).instance != index) continue;
    if (pool(static_cast<int>(i)).life == Life::kLive) follow_pool(static_cast<int>(i), false);
  }
  if (owner.life != Life::kLive) return;
  ++model_.objects_made;  // what a pool is made of
  note_polls(index);
  Tally now;
  require(now.read(as<gpumem_instance>(owner.handle)),
          "the counts cannot be read, or the totals are not their sums");
  const auto take = [&](gpumem_kind_stats& known, const gpumem_kind_stats& told, uint64_t& rest,
                        uint64_t& rest_bytes) {
    const uint64_t gone = known.live_count - told.live_count;
    const uint64_t gone_bytes = known.live_bytes - told.live_bytes;
    if (gone > rest || gone_bytes > rest_bytes) return;  // check_stats() says so
    known.live_count = told.live_count;
    known.live_bytes = told.live_bytes;
    rest -= gone;
    rest_bytes -= gone_bytes;
    require(Tally::follow(known, told), "the peaks are below what was there");
  };
  PoolRest& rest = owner.pool_rest;
  const uint64_t pinned = rest.pinned_bytes;
  take(owner.stats.reserved, now.reserved, rest.ranges, rest.range_bytes);
  take(owner.stats.device, now.device, rest.device, rest.device_bytes);
  take(owner.stats.pinned, now.pinned, rest.pinned, rest.pinned_bytes);
  take(owner.stats.managed, now.managed, rest.managed, rest.managed_bytes);
  if (const uint64_t gone = physical_bytes(index) - now.physical_bytes; gone <= rest.physical_bytes)
    rest.physical_bytes -= gone;
  owner.pinned -= pinned - rest.pinned_bytes;
  for (auto& [home, most] : rest.used) {
    Device& of = device(home);
    uint64_t free_bytes = 0;
    uint64_t gone = rest.ranges == 0 && rest.device == 0 ? most : 0;
    if (model_.on_host && of.exact && !of.lost) {
      require(gpumem_device_get_memory(as<gpumem_device>(of.handle), &free_bytes, nullptr, nullptr) ==
                  GPUMEM_SUCCESS,
              "a device does not tell what is free");
      gone = of.used - (of.total - free_bytes);
      require(gone <= most, "pools that are gone keep something else than they had");
    }
    of.used -= gone;
    most -= gone;
  }
}

void Player::took_block(int index, const PoolOrder& order, void* pointer, uint64_t size, uint64_t alignment) {
  Pool& from = pool(index);
  auto* const base = static_cast<uint8_t*>(pointer);
  if (size == 0) return require(base == nullptr, "an allocation of no bytes has an address");
  const uint64_t granule = granule_of(from.kind);
  require(base != nullptr && number_of(base) % std::max(granule, alignment) == 0,
          "a block is nowhere, or not aligned");
  gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
  require(gpumem_pool_get_block_info(as<gpumem_instance>(instance(from.instance).handle), base, &info,
                                     nullptr) == GPUMEM_SUCCESS &&
              info.base == base && value_of(info.pool) == from.handle && info.usable_size >= size &&
              info.requested_size == (from.debug() ? size : 0),
          "a new block is not known, or too small");
  const bool large = size > kSmallMost || alignment > kPage;
  if (!from.debug() && alignment <= granule) {
    const bool close = large                 ? info.usable_size == round_up(size, kPage)
                       : size <= 8 * granule ? info.usable_size == round_up(size, granule)
                                             : info.usable_size * 8 <= size * 9;
    require(close, "a block of " + std::to_string(size) + " bytes has " + std::to_string(info.usable_size));
  }
  const auto overlaps = [&](const uint8_t* other, uint64_t bytes) {
    return number_of(base) < number_of(other) + bytes &&
           number_of(other) < number_of(base) + info.usable_size;
  };
  for (Pool& each : model_.pools) {
    const auto behind = each.blocks.lower_bound(base + info.usable_size);
    if (behind != each.blocks.begin()) {
      const auto& [other, block] = *std::prev(behind);
      require(!overlaps(other, block.usable), "two blocks that live share bytes");
    }
    std::erase_if(each.freed, [&](const Pool::Freed& before) { return model_.is_observed(before.clock); });
    for (const Pool::Freed& before : each.freed) {
      if (!overlaps(before.base, before.size)) continue;
      for (const auto& [of, number] : before.clock) {
        require(of == order.line || !model_.is_held(Clock{{of, number}}),
                "a block was allocated again while work before its free is pending");
      }
    }
  }
  PoolBlock made;
  made.asked = size;
  made.usable = info.usable_size;
  made.large = large;
  made.line = order.line;
  // Who has it otherwise than in the stream must see first that the stream has come so far.
  if (order.line >= 0) made.number = line(order.line).enqueued;
  if (order.line >= 0 && std::count(from.lines.begin(), from.lines.end(), order.line) == 0)
    from.lines.push_back(order.line);
  from.blocks.emplace(base, made);
  ++from.allocated;
  from.allocated_bytes += made.usable;
}

// A pool may let the stream of an allocation wait for others: then all of them are waited for here.
void Player::check_waits(int index, const PoolOrder& order) {
  Pool& from = pool(index);
  if ((from.flags & GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES) == 0) return;
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  require(gpumem_pool_get_info(as<gpumem_pool>(from.handle), &info, nullptr) == GPUMEM_SUCCESS,
          "a pool tells nothing");
  if (info.wait_count == from.waits) return;
  require(order.line >= 0, "nobody waits for a block without a stream");
  from.waits = info.wait_count;
  settle_lines(from.instance);
  for (Pool& each : model_.pools)
    if (each.instance == from.instance) each.freed.clear();
}

// ---- bytes ----

void Player::write_block(int index, uint8_t* base, int in_stream, uint8_t value) {
  Pool& of = pool(index);
  PoolBlock& block = of.blocks[base];
  const uint64_t size = std::min(block.asked, kLooked);
  const Instance& owner = instance(of.instance);
  block.filled = 0;
  if (owner.armed || model_.lost(of.device)) return;
  const bool pending = block.line >= 0 && !model_.is_observed(block.line, block.number);
  const int queue = in_stream < 0 ? -1 : stream(in_stream).line;
  const bool async = in_stream >= 0 && stream(in_stream).device == of.device &&
                     of.kind != GPUMEM_KIND_PAGEABLE && model_.usable(stream(in_stream)).empty();
  if (pending && !(async && queue == block.line) && !wait_for(block.line)) return;
  gpumem_status status = GPUMEM_SUCCESS;
  if (async) {
    status = gpumem_fill_async(as<gpumem_stream>(stream(in_stream).handle), base, size, value, 1, nullptr);
    block.line = queue;
    block.number = model_.enqueue(queue);
    if (std::count(of.lines.begin(), of.lines.end(), queue) == 0) of.lines.push_back(queue);
  } else if (of.on_host()) {
    std::memset(base, value, size);
  } else {
    status = gpumem_fill(as<gpumem_instance>(owner.handle), base, size, value, 1, nullptr);
  }
  say("/* %llu bytes of value %u to a block of pool%d%s */", wide(size), value, index,
      async ? (" in stream" + std::to_string(in_stream)).c_str() : "");
  require(status == GPUMEM_SUCCESS, std::string("a block cannot be written: ") + gpumem_status_name(status));
  block.filled = size;
  block.value = value;
}

void Player::check_block(int index, uint8_t* base) {
  Pool& of = pool(index);
  PoolBlock& block = of.blocks[base];
  if (block.filled == 0) return;
  if (block.line >= 0 && !model_.is_observed(block.line, block.number) && !wait_for(block.line)) return;
  std::vector<uint8_t> copied;
  const uint8_t* bytes = base;
  if (!of.on_host()) {
    if (model_.lost(of.device) || instance(of.instance).armed) return;
    copied.resize(block.filled);
    const gpumem_status status = gpumem_copy(as<gpumem_instance>(instance(of.instance).handle), copied.data(),
                                             base, copied.size(), nullptr, nullptr);
    require(status == GPUMEM_SUCCESS,
            std::string("a block cannot be read back: ") + gpumem_status_name(status));
    bytes = copied.data();
  }
  for (uint64_t i = 0; i < block.filled; ++i) {
    if (bytes[i] == block.value) continue;
    fail("byte " + std::to_string(i) + " of a block of pool" + std::to_string(index) + " is " +
         std::to_string(bytes[i]) + "; expected " + std::to_string(block.value));
  }
}

void Player::check_blocks(int index) {
  if (instance(pool(index).instance).life != Life::kLive) return;
  for (const auto& [base, block] : pool(index).blocks)
    check_block(index, base);
}

// ---- pools ----

void Player::step_pool_create(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_create");
  const Picked home = pick_device(choice);
  const int owner = home.index < 0 ? -1 : device(home.index).instance;
  Sized<gpumem_pool_desc> desc(choice, GPUMEM_POOL_DESC_INIT, Sized<gpumem_pool_desc>::Null::kGood);
  constexpr gpumem_kind kKinds[] = {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED,  GPUMEM_KIND_PAGEABLE,
                                    GPUMEM_KIND_DEVICE, GPUMEM_KIND_MANAGED, 0,
                                    GPUMEM_KIND_PINNED};
  constexpr gpumem_kind kNoKinds[] = {GPUMEM_KIND_REGISTERED,
                                      GPUMEM_KIND_FOREIGN,
                                      GPUMEM_KIND_VIRTUAL,
                                      GPUMEM_KIND_POOL,
                                      GPUMEM_KIND_IMPORTED,
                                      77,
                                      -1,
                                      INT32_MIN};
  desc->kind = choice.value(kKinds, kNoKinds);
  const gpumem_kind kind = desc->kind == 0 ? GPUMEM_KIND_DEVICE : desc->kind;
  constexpr gpumem_pool_flags kFlags[] = {0,
                                          0,
                                          0,
                                          GPUMEM_POOL_DEBUG,
                                          GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES,
                                          GPUMEM_POOL_FROM_DRIVER,
                                          0,
                                          0,
                                          GPUMEM_POOL_FROM_DRIVER | GPUMEM_POOL_DEBUG,
                                          GPUMEM_POOL_DEBUG | GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES};
  // GPUMEM_POOL_TRUST_NATIVE_STREAMS leaves to the caller what the model checks.
  constexpr gpumem_pool_flags kNoFlags[] = {16, 32, UINT64_C(1) << 63, UINT64_MAX};
  desc->flags = choice.value(kFlags, kNoFlags);
  bool good = (desc->flags & ~gpumem_pool_flags{15}) == 0;
  const uint8_t property = choice.byte();
  if (property >= kWrong) {
    // None of these belongs to any of the kinds.
    constexpr gpumem_memory_flags kNone[] = {GPUMEM_MEMORY_READ_ONLY, GPUMEM_MEMORY_IOMEMORY, 1 << 11,
                                             UINT64_C(1) << 63, UINT64_MAX};
    desc->memory_flags = kNone[property % std::size(kNone)];
    good = false;
  } else if (property % 4 == 3) {
    if (kind == GPUMEM_KIND_PINNED) desc->memory_flags = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED;
    if (kind == GPUMEM_KIND_MANAGED) desc->memory_flags = GPUMEM_MEMORY_OVERSUBSCRIBE;
  }
  const bool from_driver = (desc->flags & GPUMEM_POOL_FROM_DRIVER) != 0;
  good = good && (!from_driver ||
                  ((kind == GPUMEM_KIND_DEVICE || kind == GPUMEM_KIND_PINNED) && desc->memory_flags == 0));
  const uint8_t node = choice.byte();
  desc->numa_node = node < kWrong ? 0 : (node % 2 == 0 ? 1 : -1);
  constexpr uint64_t kLimits[] = {0, 0, 0, 256 << 10, 0, 1 << 20, 4 << 20, 1000};
  constexpr uint64_t kNoBytes[] = {kTooLarge, UINT64_MAX};
  constexpr uint64_t kThresholds[] = {0, 0, 1, 128 << 10, 0};
  constexpr uint64_t kInitials[] = {0, 0, 0, 1, 100000, 0};
  constexpr uint64_t kSegments[] = {kPage, 1, kPage, 100000};
  desc->limit = choice.value(kLimits, kNoBytes);
  desc->release_threshold = choice.value(kThresholds, kNoBytes);
  const uint8_t low = choice.byte();
  desc->low_water =
      low >= kWrong ? desc->release_threshold + 1 + low : desc->release_threshold / 4 * (low % 5);
  desc->initial_size = choice.value(kInitials, kNoBytes);
  desc->segment_size = choice.value(kSegments, kNoBytes);
  for (const uint64_t bytes : {desc->limit, desc->release_threshold, desc->initial_size, desc->segment_size})
    good = good && bytes < kTooLarge;
  good = good && (desc->limit == 0 || desc->initial_size <= desc->limit);
  good = good && desc->low_water <= desc->release_threshold;
  const Name name(choice);
  desc->name = name.pointer();
  const bool wants_rights = choice.byte() % 4 == 3;
  const bool live = home.wrong.empty();
  Rights rights = pick_rights(choice, live ? instance(owner).devices : std::vector<int>{});
  const bool names = wants_rights && (rights.pointer() != nullptr || rights.count != 0);
  if (names && rights.avoid) return;
  if (names) {
    desc->accesses = rights.pointer();
    desc->access_count = rights.count;
    good = good && kind == GPUMEM_KIND_DEVICE && rights.good;
  }
  Out<gpumem_pool> out(choice);
  const bool known_kind = std::count(std::begin(kKinds), std::end(kKinds), desc->kind) != 0;
  call.text(
      "%s, &%s{kind %d, flags 0x%llx, memory 0x%llx, node %d, limit %llu, threshold %llu, initial "
      "%llu, segment %llu, name of %zu bytes, accesses %s}, %s",
      home.text.c_str(), desc.text().c_str(), desc->kind, wide(desc->flags), wide(desc->memory_flags),
      desc->numa_node, wide(desc->limit), wide(desc->release_threshold), wide(desc->initial_size),
      wide(desc->segment_size), name.text().size(), names ? rights.text.c_str() : "NULL, 0", out.text());
  good = good && known_kind && node < kWrong && name.good();
  Pool made;
  if (desc.is_null()) {
    good = true;
    made.kind = GPUMEM_KIND_DEVICE;
  } else {
    made.kind = kind;
    made.flags = desc->flags;
    made.memory_flags = desc->memory_flags;
    made.limit = desc->limit;
    made.release_threshold = desc->release_threshold;
    made.low_water = desc->low_water;
    made.name = name.text();
  }
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(good && desc.good() && out.good());
  Expect expect = verdict.done();
  if (expect.empty()) {
    if (instance(owner).is_default) return;  // it outlives the sequence
    if (instance(owner).armed_for_good) disarm(owner);
    expect = or_fault({GPUMEM_SUCCESS}, owner);
    const uint64_t initial = desc.is_null() ? 0 : desc->initial_size;
    if (initial != 0) {
      const uint64_t unit = made.in_range() ? unit_of(owner) : kPage;
      uint64_t bytes = round_up(initial, unit);
      if (made.limit != 0 && bytes > made.limit) bytes = made.limit / unit * unit;
      if (bytes != 0)
        expect = expect_growth(home.index, made.kind, made.memory_flags, made.limit, 0, bytes, bytes);
    }
    const auto& entries = rights.entries();
    const bool reads = from_driver && std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
                         return entry.access == GPUMEM_ACCESS_READ;
                       });
    if (names && !desc.is_null() && (reads || !can_have(home.index, true, entries)))
      expect = or_fault({GPUMEM_ERROR_UNSUPPORTED}, owner);
    expect = model_.lost(home.index) ? Expect{GPUMEM_ERROR_DEVICE_LOST}
             : names                 ? if_lost(expect, owner)
                                     : expect;
  }
  const gpumem_status status = call.check(
      expect, gpumem_pool_create(as<gpumem_device>(home.value), desc.pointer(), out.pointer(), call.error()),
      out);
  if (!live) return;
  if (status == GPUMEM_SUCCESS) {
    made.handle = value_of(out.get());
    made.for_others = names && !desc.is_null();
    for (const gpumem_access_desc& entry : rights.entries()) {
      if (made.for_others && entry.access != GPUMEM_ACCESS_NONE)
        made.users.push_back(processor_of(owner, entry));
    }
    made.instance = owner;
    made.device = home.index;
    adopt_pool(made);
  } else if (expect.front() != GPUMEM_ERROR_INVALID_ARGUMENT) {
    follow_pools(owner);  // it may have had memory for a moment
  }
}

// What a pool has taken is gone if it has no blocks; otherwise it may be.
void Player::end_pool(int index) {
  Pool& ending = pool(index);
  Instance& owner = instance(ending.instance);
  model_.end(ending, Life::kDestroyed);
  --owner.stats.pools;
  PoolRest& rest = owner.pool_rest;
  const bool remains = !ending.blocks.empty();
  if (ending.kind == GPUMEM_KIND_DEVICE) {
    if (remains) {
      rest.used[ending.device] += ending.reserved;
    } else {
      device(ending.device).used -= ending.reserved;
    }
  }
  if (ending.in_range()) {
    if (remains) {
      ++rest.ranges;
      rest.range_bytes += ending.range_size;
      rest.physical_bytes += ending.reserved;
    } else {
      Tally::remove(owner.stats.reserved, ending.range_size);
    }
  } else if (ending.kind != GPUMEM_KIND_PAGEABLE) {
    const bool on_device = ending.kind == GPUMEM_KIND_DEVICE;
    const bool pinned = ending.kind == GPUMEM_KIND_PINNED;
    gpumem_kind_stats& counts = on_device ? owner.stats.device
                                : pinned  ? owner.stats.pinned
                                          : owner.stats.managed;
    if (remains) {
      (on_device ? rest.device : pinned ? rest.pinned : rest.managed) += ending.segments;
      (on_device ? rest.device_bytes : pinned ? rest.pinned_bytes : rest.managed_bytes) += ending.reserved;
    } else {
      counts.live_count -= ending.segments;
      counts.live_bytes -= ending.reserved;
      if (pinned) owner.pinned -= ending.reserved;
    }
  }
}

// A pool for threads, made without choices.
void Player::share_pool(int owner, uint8_t number) {
  constexpr gpumem_kind kKinds[] = {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_PAGEABLE};
  Pool made;
  made.kind = kKinds[number % std::size(kKinds)];
  made.instance = owner;
  made.device = instance(owner).devices.front();
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.kind = made.kind;
  desc.segment_size = kPage;
  gpumem_pool out = nullptr;
  const gpumem_status status =
      gpumem_pool_create(as<gpumem_device>(device(made.device).handle), &desc, &out, nullptr);
  require(status == GPUMEM_SUCCESS, std::string("a pool cannot be made: ") + gpumem_status_name(status));
  made.handle = value_of(out);
  adopt_pool(made);
  say("gpumem_pool_create(device%d, {kind %d}, &out, NULL) = GPUMEM_SUCCESS", made.device, made.kind);
}

void Player::adopt_pool(Pool made) {
  if (made.in_range()) {
    Tally now;
    require(now.read(as<gpumem_instance>(instance(made.instance).handle)), "the counts cannot be read");
    made.range_size = now.reserved.live_bytes - instance(made.instance).stats.reserved.live_bytes;
    Tally::add(instance(made.instance).stats.reserved, made.range_size);
  }
  ++instance(made.instance).stats.pools;
  model_.pools.push_back(made);
  follow_pools(made.instance);
}

void Player::step_pool_destroy(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_destroy");
  const Picked chosen = pick_pool(choice);
  const bool settles = choice.byte() % 2 == 0;
  call.text("%s", chosen.text.c_str());
  Expect expect = chosen.wrong;
  if (chosen.value == 0) expect = {GPUMEM_SUCCESS};
  const bool live = chosen.index >= 0 && chosen.wrong.empty();
  if (live) {
    const int owner = pool(chosen.index).instance;
    if (instance(owner).armed_for_good) disarm(owner);
    check_blocks(chosen.index);
    open_gates();
    // A pool that has served a native stream waits for all work of the device.
    const bool settled = (settles || pool(chosen.index).native) && settle_lines(owner);
    if (!settled && pool(chosen.index).native) return;
    expect = or_fault({GPUMEM_SUCCESS}, owner);
    if (!settled && instance(owner).strict && pool(chosen.index).blocks.empty())
      expect.push_back(GPUMEM_ERROR_BUSY);
    const bool captures = std::any_of(model_.lines.begin(), model_.lines.end(), [&](const Line& each) {
      return each.capturing && device(each.device).instance == owner;
    });
    if (captures) expect.push_back(GPUMEM_ERROR_INVALID_STATE);
  }
  const gpumem_status status =
      call.check(expect, gpumem_pool_destroy(as<gpumem_pool>(chosen.value), call.error()));
  if (!live) return;
  if (status == GPUMEM_SUCCESS) end_pool(chosen.index);
  follow_pools(pool(chosen.index).instance);
}

// ---- allocating ----

void Player::do_pool_alloc(Choice& choice, const char* name, bool aligned, bool native, bool tries) {
  Call call(*this, choice, name);
  const Picked chosen = pick_pool(choice);
  const uint64_t size = pick_size(choice);
  uint64_t alignment = 0;
  if (aligned) {
    constexpr uint64_t kRight[] = {0, 256, 1, 4096, 65536, 16, 1 << 17};
    constexpr uint64_t kNone[] = {3, kTooLarge, uint64_t{1} << 41, 384, UINT64_MAX, (1 << 12) + 1};
    alignment = choice.value(kRight, kNone);
  }
  const PoolOrder order = pick_order(choice, native, chosen);
  Out<void*> out(choice);
  std::optional<Sized<gpumem_pool_attempt>> attempt;
  if (tries) {
    const gpumem_pool_attempt unknown = GPUMEM_POOL_ATTEMPT_INIT;
    attempt.emplace(choice, unknown, Sized<gpumem_pool_attempt>::Null::kGood, kAnswer);
  }
  const bool writes = choice.byte() % 8 != 7;
  const uint8_t value = choice.byte();
  if (tries) {
    call.text("%s, %llu, %llu, %s, %s, %s", chosen.text.c_str(), wide(size), wide(alignment),
              order.text.c_str(), out.text(), attempt->text().c_str());
  } else if (aligned) {
    call.text("%s, %llu, %llu, %s, %s", chosen.text.c_str(), wide(size), wide(alignment), order.text.c_str(),
              out.text());
  } else {
    call.text("%s, %llu, %s, %s", chosen.text.c_str(), wide(size), order.text.c_str(), out.text());
  }
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.handle(order.picked.wrong);
  if (chosen.wrong.empty() && order.stream >= 0)
    verdict.require(stream(order.stream).instance == pool(chosen.index).instance);
  verdict.require(out.good() && size < kTooLarge && (!attempt || attempt->good()));
  verdict.require(alignment <= kAlignmentMost && (alignment & (alignment - 1)) == 0);
  Expect expect = verdict.done();
  const bool right = expect.empty();
  const int owner = right ? pool(chosen.index).instance : -1;
  if (right) {
    if (order.avoid) return;
    if (native) open_gates();
    if (instance(owner).armed_for_good) disarm(owner);
    const bool waits = (pool(chosen.index).flags & GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES) != 0;
    const auto captures = [](const Line& each) { return each.capturing; };
    if (waits && std::any_of(model_.lines.begin(), model_.lines.end(), captures)) return;
    expect = size == 0 ? Expect{GPUMEM_SUCCESS} : expect_served(chosen, order, size, alignment);
    const auto none_is_free = [](gpumem_status one) { return one == GPUMEM_SUCCESS || is_lack(one); };
    if (tries && size != 0 && std::any_of(expect.begin(), expect.end(), none_is_free))
      expect.push_back(GPUMEM_NOT_READY);
  }
  const auto handle = as<gpumem_pool>(chosen.value);
  const auto in = as<gpumem_stream>(order.picked.value);
  const uint64_t callbacks = callbacks_;
  const gpumem_status status = call.check(
      expect,
      tries     ? gpumem_pool_try_alloc(handle, size, alignment, in, out.pointer(), attempt->pointer(),
                                        call.error())
      : aligned ? gpumem_pool_alloc_aligned(handle, size, alignment, in, out.pointer(), call.error())
      : native  ? gpumem_pool_alloc_native(handle, size, order.native, out.pointer(), call.error())
                : gpumem_pool_alloc(handle, size, in, out.pointer(), call.error()),
      out);
  if (attempt && GPUMEM_FAILED(status)) require(attempt->untouched(), "a failure has written the attempt");
  if (!right || call.refused_error()) return;
  if (attempt && !attempt->is_null() && !GPUMEM_FAILED(status)) {
    const gpumem_pool_answer answer = attempt->get().answer;
    require((status == GPUMEM_SUCCESS) == (answer == GPUMEM_POOL_ANSWER_ALLOCATED) &&
                answer >= GPUMEM_POOL_ANSWER_ALLOCATED && answer <= GPUMEM_POOL_ANSWER_OVER_LIMIT,
            "the attempt says something else");
  }
  pool(chosen.index).native = pool(chosen.index).native || native;
  require(!is_lack(status) || !pool(chosen.index).asks || instance(owner).armed || callbacks_ > callbacks,
          "an allocation failed, and nobody was asked");
  if (status == GPUMEM_SUCCESS) {
    check_waits(chosen.index, order);
    took_block(chosen.index, order, out.get(), size, alignment);
    if (size != 0 && writes) write_block(chosen.index, static_cast<uint8_t*>(out.get()), order.stream, value);
  }
  follow_pools(owner);
}

void Player::step_pool_alloc(Choice& choice) { do_pool_alloc(choice, "gpumem_pool_alloc", false, false); }
void Player::step_pool_alloc_aligned(Choice& choice) {
  do_pool_alloc(choice, "gpumem_pool_alloc_aligned", true, false);
}
void Player::step_pool_try_alloc(Choice& choice) {
  do_pool_alloc(choice, "gpumem_pool_try_alloc", true, false, true);
}
void Player::step_pool_alloc_native(Choice& choice) {
  do_pool_alloc(choice, "gpumem_pool_alloc_native", false, true);
}

// Sizes of several blocks: how many, and whether they are passed.
struct BatchSizes {
  explicit BatchSizes(Choice& choice) {
    constexpr uint64_t kCounts[] = {2, 1, kBatchMost, 0};
    constexpr uint64_t kNoCounts[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 8};
    count = choice.value(kCounts, kNoCounts);
    for (uint64_t& size : sizes)
      size = pick_size(choice);
    is_null = choice.byte() >= kWrong;
  }
  const uint64_t* pointer() const { return is_null ? nullptr : sizes.data(); }
  bool good() const { return (count == 0 || !is_null) && count <= kBatchMost; }
  std::span<const uint64_t> wanted() const { return {sizes.data(), std::min<uint64_t>(count, kBatchMost)}; }
  // The library looks at the sizes when all else is right.
  void add_to(Verdict& verdict) const {
    if (!verdict.done().empty()) return;
    for (const uint64_t size : wanted())
      verdict.require(size < kTooLarge);
  }
  std::string text() const {
    char text[120];
    std::snprintf(text, sizeof text, "%s {%llu, %llu, %llu}, %llu", is_null ? "NULL" : "sizes",
                  wide(sizes[0]), wide(sizes[1]), wide(sizes[2]), wide(count));
    return text;
  }

  uint64_t count = 0;
  std::array<uint64_t, kBatchMost> sizes{};
  bool is_null = false;
};

void Player::step_pool_alloc_batch(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_alloc_batch");
  const Picked chosen = pick_pool(choice);
  const BatchSizes sizes(choice);
  const PoolOrder order = pick_order(choice, false, chosen);
  using Blocks = std::array<void*, kBatchMost>;
  Out<Blocks> out(choice, sizes.count == 0 ? Out<Blocks>::Null::kGood : Out<Blocks>::Null::kBad);
  const uint8_t value = choice.byte();
  call.text("%s, %s, %s, %s", chosen.text.c_str(), sizes.text().c_str(), order.text.c_str(), out.text());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.handle(order.picked.wrong);
  if (chosen.wrong.empty() && order.stream >= 0)
    verdict.require(stream(order.stream).instance == pool(chosen.index).instance);
  verdict.require(out.good() && sizes.good());
  const std::span<const uint64_t> wanted = sizes.wanted();
  sizes.add_to(verdict);
  Expect expect = verdict.done();
  const bool right = expect.empty();
  const int owner = right ? pool(chosen.index).instance : -1;
  if (right) {
    if (order.avoid) return;
    const Pool& from = pool(chosen.index);
    if (instance(owner).armed_for_good) disarm(owner);
    const bool waits = (from.flags & GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES) != 0;
    const auto captures = [](const Line& each) { return each.capturing; };
    if (waits && std::any_of(model_.lines.begin(), model_.lines.end(), captures)) return;
    uint64_t least = 0;
    uint64_t most = 0;
    for (const uint64_t size : wanted) {
      least = std::max(least, size);
      most = std::min(most, kTooLarge) +
             (is_huge(size) ? kTooLarge - 1 : most_for(from, size, 0, unit_of(owner)));
    }
    expect = expect_growth(from.device, from.kind, from.memory_flags, from.limit, from.reserved, least, most);
    if (from.for_others) expect = if_lost(expect, owner);
    if (order.stream >= 0 && !from.serves(stream(order.stream).device))
      expect = or_fault({GPUMEM_ERROR_NO_ACCESS}, owner);
    if (least == 0) expect = {GPUMEM_SUCCESS};
    if (model_.lost(from.device)) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (order.stream >= 0 && model_.lost(stream(order.stream).device))
      expect.push_back(GPUMEM_ERROR_DEVICE_LOST);
    if (sizes.count == 0) expect = {GPUMEM_SUCCESS};
  }
  const gpumem_status status =
      call.check(expect,
                 gpumem_pool_alloc_batch(as<gpumem_pool>(chosen.value), sizes.pointer(), sizes.count,
                                         as<gpumem_stream>(order.picked.value),
                                         out.is_null() ? nullptr : out.pointer()->data(), call.error()),
                 out);
  if (!right || call.refused_error()) return;
  if (status == GPUMEM_SUCCESS) {
    check_waits(chosen.index, order);
    // Each is there before the first is written to: they could overlap.
    for (size_t i = 0; i < wanted.size(); ++i)
      took_block(chosen.index, order, out.get()[i], wanted[i], 0);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] != 0)
        write_block(chosen.index, static_cast<uint8_t*>(out.get()[i]), order.stream,
                    static_cast<uint8_t>(value + i));
    }
  } else {
    check_waits(chosen.index, order);
    follow_pool(chosen.index, true);
  }
  follow_pools(owner);
}

// ---- freeing ----

bool Player::may_free(int index, const PoolBlock& freed, int in_line) {
  // The work of a lost device is over.
  const auto is_over = [&](int of, uint64_t number) {
    return model_.is_observed(of, number) || model_.lost(line(of).device);
  };
  if (freed.line < 0 || freed.line == in_line || is_over(freed.line, freed.number)) return true;
  const bool recorded = std::count(freed.recorded.begin(), freed.recorded.end(), freed.line) != 0;
  (void)index;
  return recorded || wait_for(freed.line);
}

void Player::freed_block(int index, uint8_t* base, int in_line) {
  Pool& of = pool(index);
  const PoolBlock& gone = of.blocks[base];
  Pool::Freed freed{base, gone.usable, {}};
  if (in_line >= 0) freed.clock[in_line] = line(in_line).enqueued;
  for (const int recorded : gone.recorded)
    freed.clock[recorded] = line(recorded).enqueued;
  for (const auto& [used, number] : freed.clock)
    if (std::count(of.lines.begin(), of.lines.end(), used) == 0) of.lines.push_back(used);
  if (!model_.is_observed(freed.clock)) of.freed.push_back(freed);
  of.blocks.erase(base);
  constexpr size_t kRemembered = 16;
  if (pool_freed_.size() == kRemembered) pool_freed_.pop_front();
  pool_freed_.push_back(base);
}

void Player::do_pool_free(Choice& choice, const char* name, bool sized, bool native, bool by_pointer) {
  Call call(*this, choice, name);
  const Picked chosen = by_pointer ? pick_instance(choice) : pick_pool(choice);
  const int in_pool = by_pointer ? -1 : chosen.index;
  const int owner = chosen.index < 0 ? 0 : by_pointer ? chosen.index : pool(chosen.index).instance;
  const PoolPlace at = pick_block(choice, in_pool, owner);
  const uint8_t hint = choice.byte();
  const PoolOrder order = pick_order(choice, native, by_pointer ? Picked{} : chosen);
  const bool spoils = choice.byte() >= kWrong;
  const bool looks = choice.byte() % 4 != 3;
  const uint64_t asked = at.base == nullptr ? 64 : pool(at.pool).blocks[at.base].asked;
  constexpr uint64_t kNoSizes[] = {kTooLarge, UINT64_MAX, 1};
  uint64_t size = hint >= kWrong ? kNoSizes[hint % std::size(kNoSizes)] : hint % 8 == 7 ? 0 : asked;
  if (!sized) size = 0;
  if (sized) {
    call.text("%s, %s, %llu, %s", chosen.text.c_str(), at.text.c_str(), wide(size), order.text.c_str());
  } else {
    call.text("%s, %s, %s", chosen.text.c_str(), at.text.c_str(), order.text.c_str());
  }
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.handle(order.picked.wrong);
  if (chosen.wrong.empty() && order.stream >= 0) verdict.require(stream(order.stream).instance == owner);
  verdict.require(size < kTooLarge);
  Expect expect = verdict.done();
  const bool right = expect.empty();
  uint8_t* spoiled = nullptr;
  if (right) {
    if (order.avoid) return;
    if (native || by_pointer) open_gates();  // it may wait
    if (instance(owner).armed_for_good) disarm(owner);
    expect = expect_freed(chosen, order, at);
    if (expect == Expect{GPUMEM_SUCCESS} && at.base != nullptr) {
      const Pool& of = pool(at.pool);
      const PoolBlock& block = of.blocks.at(at.base);
      if (!may_free(at.pool, block, order.line)) return;
      if (looks && (block.line < 0 || model_.is_observed(block.line, block.number)))
        check_block(at.pool, at.base);
      const bool over = of.debug() && of.on_host() && of.kind != GPUMEM_KIND_MANAGED && spoils;
      if (over) spoiled = hint % 2 == 0 ? at.base - 1 : at.base + block.asked;
      if (of.debug() && (over || (size != 0 && size != block.asked)))
        expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    }
    if (native && at.pointer != nullptr) expect = or_fault(expect, owner);
  }
  if (spoiled != nullptr) *spoiled ^= 0xFF;
  const auto handle = as<gpumem_pool>(chosen.value);
  const auto in = as<gpumem_stream>(order.picked.value);
  const gpumem_status status = call.check(
      expect, by_pointer
                  ? gpumem_pool_free_pointer(as<gpumem_instance>(chosen.value), at.pointer, in, call.error())
              : sized  ? gpumem_pool_free_sized(handle, at.pointer, size, in, call.error())
              : native ? gpumem_pool_free_native(handle, at.pointer, order.native, call.error())
                       : gpumem_pool_free(handle, at.pointer, in, call.error()));
  if (spoiled != nullptr) *spoiled ^= 0xFF;
  if (!right || call.refused_error()) return;
  if (native) pool(chosen.index).native = true;
  if (status == GPUMEM_SUCCESS && at.base != nullptr) {
    freed_block(at.pool, at.base, order.line);
  }
  follow_pools(owner);
}

void Player::step_pool_free(Choice& choice) { do_pool_free(choice, "gpumem_pool_free", false, false, false); }
void Player::step_pool_free_sized(Choice& choice) {
  do_pool_free(choice, "gpumem_pool_free_sized", true, false, false);
}
void Player::step_pool_free_native(Choice& choice) {
  do_pool_free(choice, "gpumem_pool_free_native", false, true, false);
}
void Player::step_pool_free_pointer(Choice& choice) {
  do_pool_free(choice, "gpumem_pool_free_pointer", false, false, true);
}

void Player::step_pool_free_batch(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_free_batch");
  const Picked chosen = pick_pool(choice);
  const int owner = chosen.index < 0 ? 0 : pool(chosen.index).instance;
  constexpr uint64_t kCounts[] = {2, 1, kBatchMost, 0};
  constexpr uint64_t kNoCounts[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 8};
  const uint64_t count = choice.value(kCounts, kNoCounts);
  std::vector<PoolPlace> places;
  std::array<void*, kBatchMost> pointers{};
  std::string text;
  for (void*& pointer : pointers) {
    places.push_back(pick_block(choice, chosen.index, owner));
    pointer = places.back().pointer;
    text += (text.empty() ? "" : ", ") + places.back().text;
  }
  const bool no_pointers = choice.byte() >= kWrong;
  const PoolOrder order = pick_order(choice, false, chosen);
  call.text("%s, %s {%s}, %llu, %s", chosen.text.c_str(), no_pointers ? "NULL" : "pointers", text.c_str(),
            wide(count), order.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.handle(order.picked.wrong);
  if (chosen.wrong.empty() && order.stream >= 0) verdict.require(stream(order.stream).instance == owner);
  verdict.require((count == 0 || !no_pointers) && count <= kBatchMost);
  Expect expect = verdict.done();
  const bool right = expect.empty();
  std::set<uint8_t*> gone;
  if (right) {
    if (order.avoid) return;
    if (instance(owner).armed_for_good) disarm(owner);
    expect = {GPUMEM_SUCCESS};
    for (size_t i = 0; i < count && expect == Expect{GPUMEM_SUCCESS}; ++i) {
      PoolPlace at = places[i];
      if (at.pointer == nullptr) continue;
      if (gone.contains(at.base)) at.base = nullptr;
      expect = expect_freed(chosen, order, at);
      if (expect != Expect{GPUMEM_SUCCESS}) continue;
      if (!may_free(at.pool, pool(at.pool).blocks.at(at.base), order.line)) return;
      gone.insert(at.base);
    }
  }
  call.check(expect,
             gpumem_pool_free_batch(as<gpumem_pool>(chosen.value), no_pointers ? nullptr : pointers.data(),
                                    count, as<gpumem_stream>(order.picked.value), call.error()));
  if (!right || call.refused_error()) return;
  for (uint8_t* const base : gone)
    freed_block(chosen.index, base, order.line);
  follow_pools(owner);
}

void Player::step_pool_record_use(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_record_use");
  const Picked chosen = pick_pool(choice);
  const int owner = chosen.index < 0 ? 0 : pool(chosen.index).instance;
  const PoolPlace at = pick_block(choice, chosen.index, owner);
  const Picked in = pick_stream(choice);
  const uint8_t value = choice.byte();
  call.text("%s, %s, %s", chosen.text.c_str(), at.text.c_str(), in.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.handle(in.wrong);
  if (chosen.wrong.empty() && in.wrong.empty()) verdict.require(stream(in.index).instance == owner);
  verdict.require(at.pointer != nullptr);
  Expect expect = verdict.done();
  const bool right = expect.empty();
  if (right) {
    if (line(stream(in.index).line).capturing) return;
    if (instance(owner).armed_for_good) disarm(owner);
    expect = expect_freed(chosen, {}, at);
    if (model_.lost(stream(in.index).device)) expect.push_back(GPUMEM_ERROR_DEVICE_LOST);
    expect = or_fault(expect, owner);
  }
  const gpumem_status status =
      call.check(expect, gpumem_pool_record_use(as<gpumem_pool>(chosen.value), at.pointer,
                                                as<gpumem_stream>(in.value), call.error()));
  if (status != GPUMEM_SUCCESS) return;
  PoolBlock& used = pool(chosen.index).blocks.at(at.base);
  const int queue = stream(in.index).line;
  if (std::count(used.recorded.begin(), used.recorded.end(), queue) == 0) used.recorded.push_back(queue);
  std::vector<int>& lines = pool(chosen.index).lines;
  if (std::count(lines.begin(), lines.end(), queue) == 0) lines.push_back(queue);
  // The stream uses it now, behind what came before.
  if (value % 2 == 0) write_block(chosen.index, at.base, in.index, value);
}

// A block of a captured stream, from its allocation to the end of its part. The capture is a mark of the host
// backend's.
void Player::play_capture(int index, int in_stream) {
  const auto handle = as<gpumem_pool>(pool(index).handle);
  const auto in = as<gpumem_stream>(stream(in_stream).handle);
  const auto must = [&](gpumem_status status, const char* what) {
    require(status == GPUMEM_SUCCESS, std::string(what) + ": " + gpumem_status_name(status));
  };
  must(gpumem_host_stream_set_capturing(in, 1, nullptr), "a capture cannot begin");
  void* pointer = nullptr;
  uint64_t capture = 0;
  must(gpumem_stream_get_capture_id(in, &capture, nullptr), "a capture has no number");
  constexpr uint64_t kSize = 1000;
  const gpumem_status made = gpumem_pool_alloc(handle, kSize, in, &pointer, nullptr);
  say("/* in a capture: gpumem_pool_alloc(pool%d, 1000, stream%d) = %s */", index, in_stream,
      gpumem_status_name(made));
  const bool served = made == GPUMEM_SUCCESS;
  const bool lost = made == GPUMEM_ERROR_DEVICE_LOST && any_lost(pool(index).instance);
  const bool closed = made == GPUMEM_ERROR_NO_ACCESS && !pool(index).serves(stream(in_stream).device);
  require(served || lost || closed || is_lack(made),
          std::string("a capture is not served: ") + gpumem_status_name(made));
  gpumem_pool_block_info block = GPUMEM_POOL_BLOCK_INFO_INIT;
  if (served) {
    must(gpumem_pool_get_block_info(as<gpumem_instance>(instance(pool(index).instance).handle), pointer,
                                    &block, nullptr),
         "a block of a capture is not known");
    gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
    must(gpumem_pool_get_info(handle, &info, nullptr), "a pool tells nothing");
    require(info.capture_count == 1 && info.captured_bytes >= kSize && capture != 0,
            "a pool has no part of a capture");
    require(gpumem_pool_release_capture(handle, capture, in, nullptr) == GPUMEM_ERROR_INVALID_STATE,
            "a part ends behind a stream that is being captured");
  }
  must(gpumem_host_stream_set_capturing(in, 0, nullptr), "a capture cannot end");
  if (!served) {
    // The part may be there, without anything.
    gpumem_pool_release_capture(handle, capture, nullptr, nullptr);
    return;
  }
  must(gpumem_pool_free(handle, pointer, nullptr, nullptr), "a block of a capture cannot be freed");
  must(gpumem_pool_release_capture(handle, capture, nullptr, nullptr), "a part cannot end");
  coverage_.count("gpumem_pool_release_capture", true);
  require(gpumem_pool_release_capture(handle, capture, nullptr, nullptr) == GPUMEM_ERROR_NOT_FOUND,
          "a part ends twice");
  ++pool(index).allocated;
  pool(index).allocated_bytes += block.usable_size;
}

void Player::step_pool_release_capture(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_release_capture");
  const Picked chosen = pick_pool(choice);
  constexpr uint64_t kNumbers[] = {UINT64_MAX, 0};
  const uint64_t capture = choice.one_of(kNumbers);
  const PoolOrder order = pick_order(choice, false, chosen);
  call.text("%s, %llu, %s", chosen.text.c_str(), wide(capture), order.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.handle(order.picked.wrong);
  if (chosen.wrong.empty() && order.stream >= 0)
    verdict.require(stream(order.stream).instance == pool(chosen.index).instance);
  Expect expect = verdict.done();
  const bool right = expect.empty();
  if (right) {
    if (order.stream >= 0) expect = model_.usable(stream(order.stream));
    if (expect.empty()) expect = {GPUMEM_ERROR_NOT_FOUND};
    expect = or_fault(expect, pool(chosen.index).instance);
  }
  const gpumem_status status =
      call.check(expect, gpumem_pool_release_capture(as<gpumem_pool>(chosen.value), capture,
                                                     as<gpumem_stream>(order.picked.value), call.error()));
  if (!right || !model_.on_host || status != GPUMEM_ERROR_NOT_FOUND || order.stream < 0) return;
  const Pool& of = pool(chosen.index);
  // Blocks that were freed in the stream could not be marked in the capture.
  if (instance(of.instance).armed || model_.lost(of.device)) return;
  play_capture(chosen.index, order.stream);
  follow_pools(of.instance);
}

// ---- the rest ----

void Player::step_pool_trim(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_trim");
  const Picked chosen = pick_pool(choice);
  constexpr uint64_t kKeeps[] = {0, 0, kPage, 300000, UINT64_MAX};
  const uint64_t keep = choice.one_of(kKeeps);
  Out<uint64_t> out(choice, Out<uint64_t>::Null::kGood);
  call.text("%s, %llu, %s", chosen.text.c_str(), wide(keep), out.text());
  Expect expect = chosen.wrong;
  const bool right = expect.empty();
  uint64_t before = 0;
  if (right) {
    const Pool& of = pool(chosen.index);
    if (instance(of.instance).armed_for_good) disarm(of.instance);
    before = of.reserved;
    expect = {GPUMEM_SUCCESS};
  }
  const gpumem_status status = call.check(
      expect, gpumem_pool_trim(as<gpumem_pool>(chosen.value), keep, out.pointer(), call.error()), out);
  if (!right || status != GPUMEM_SUCCESS) return;
  Pool& of = pool(chosen.index);
  follow_pools(of.instance);
  require(of.reserved <= before && (out.is_null() || out.get() == before - of.reserved),
          "a trim released something else than it says");
  require(before > keep || of.reserved == before, "a trim released more than it should");
  const bool at_rest = of.blocks.empty() && of.lines.empty() && !of.native && !instance(of.instance).armed &&
                       !model_.lost(of.device);
  require(!at_rest || of.reserved <= keep, "a trim left " + std::to_string(of.reserved) + " bytes");
}

void Player::step_pool_capacity_for(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_capacity_for");
  const Picked chosen = pick_pool(choice);
  const BatchSizes sizes(choice);
  Out<uint64_t> out(choice);
  call.text("%s, %s, %s", chosen.text.c_str(), sizes.text().c_str(), out.text());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(out.good() && sizes.good());
  const std::span<const uint64_t> wanted = sizes.wanted();
  sizes.add_to(verdict);
  Expect expect = verdict.done();
  const bool right = expect.empty();
  uint64_t least = 0;
  if (right) {
    for (const uint64_t size : wanted)
      least = std::min(least, kTooLarge) + size;
    expect = {least < kTooLarge ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_ARGUMENT};
    // What rounding adds may be too much then.
    if (least < kTooLarge && std::any_of(wanted.begin(), wanted.end(), is_huge))
      expect.push_back(GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  const gpumem_status status =
      call.check(expect,
                 gpumem_pool_capacity_for(as<gpumem_pool>(chosen.value), sizes.pointer(), sizes.count,
                                          out.pointer(), call.error()),
                 out);
  if (!right || status != GPUMEM_SUCCESS) return;
  require(out.get() >= least && out.get() % kPage == 0,
          "a capacity is less than the sizes, or no number of pieces");
}

void Player::do_pool_number(Choice& choice, const char* name, uint64_t Pool::*field,
                            gpumem_status (*set)(gpumem_pool, uint64_t, gpumem_error*)) {
  Call call(*this, choice, name);
  const Picked chosen = pick_pool(choice);
  constexpr uint64_t kRight[] = {0, 256 << 10, 1 << 20, 1, 8 << 20, 0};
  constexpr uint64_t kNone[] = {kTooLarge, UINT64_MAX};
  const uint64_t bytes = choice.value(kRight, kNone);
  call.text("%s, %llu", chosen.text.c_str(), wide(bytes));
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(bytes < kTooLarge);
  Expect expect = verdict.done();
  if (expect.empty()) {
    const int owner = pool(chosen.index).instance;
    if (instance(owner).armed_for_good) disarm(owner);
    expect = {GPUMEM_SUCCESS};
  }
  const gpumem_status status = call.check(expect, set(as<gpumem_pool>(chosen.value), bytes, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  pool(chosen.index).*field = bytes;
  follow_pools(pool(chosen.index).instance);
}

void Player::step_pool_set_limit(Choice& choice) {
  do_pool_number(choice, "gpumem_pool_set_limit", &Pool::limit, gpumem_pool_set_limit);
}
void Player::step_pool_set_release_threshold(Choice& choice) {
  do_pool_number(choice, "gpumem_pool_set_release_threshold", &Pool::release_threshold,
                 gpumem_pool_set_release_threshold);
}

void Player::step_pool_get_info(Choice& choice) {
  const auto told = ask_info(choice, "gpumem_pool_get_info", &Player::pick_pool, gpumem_pool_get_info);
  if (told) follow_pools(pool(told->first).instance);
}

void Player::step_pool_get_class_info(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_get_class_info");
  const Picked chosen = pick_pool(choice);
  const bool live = chosen.wrong.empty();
  uint32_t count = 1;
  if (live) {
    gpumem_pool_info all = GPUMEM_POOL_INFO_INIT;
    require(gpumem_pool_get_info(as<gpumem_pool>(chosen.value), &all, nullptr) == GPUMEM_SUCCESS,
            "a pool tells nothing");
    count = all.class_count;
  }
  const uint8_t byte = choice.byte();
  const uint32_t beyond[] = {count, UINT32_MAX, count + 1};
  const uint32_t index = byte < kWrong ? byte % count : beyond[byte % std::size(beyond)];
  Answer<gpumem_pool_class_info> info(choice);
  call.text("%s, %u, %s", chosen.text.c_str(), index, info.text().c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(info.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = {index < count ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_ARGUMENT};
  const gpumem_status status = call.check(
      expect, gpumem_pool_get_class_info(as<gpumem_pool>(chosen.value), index, info.pointer(), call.error()),
      info);
  if (status != GPUMEM_SUCCESS) return;
  const Pool& of = pool(chosen.index);
  const auto blocks = std::count_if(of.blocks.begin(), of.blocks.end(), [&](const auto& entry) {
    return !entry.second.large && entry.second.usable == info->block_size;
  });
  require(info->block_size % granule_of(of.kind) == 0 && info->block_size <= kSmallMost &&
              info->total_count >= info->live_count && info->block_count >= info->live_count &&
              info->cut_count >= info->block_count,
          "a size class is not one");
  require(
      of.debug() || info->live_count == static_cast<uint64_t>(blocks),
      "a size class has " + std::to_string(info->live_count) + " blocks; expected " + std::to_string(blocks));
}

void Player::step_pool_reset_peaks(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_reset_peaks");
  const Picked chosen = pick_pool(choice);
  call.text("%s", chosen.text.c_str());
  Expect expect = chosen.wrong;
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect, gpumem_pool_reset_peaks(as<gpumem_pool>(chosen.value), call.error()));
  if (status != GPUMEM_SUCCESS) return;
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  require(gpumem_pool_get_info(as<gpumem_pool>(chosen.value), &info, nullptr) == GPUMEM_SUCCESS &&
              info.peak_reserved_bytes == info.reserved_bytes && info.peak_live_count >= info.live_count &&
              info.peak_live_bytes <= info.reserved_bytes,
          "the peaks of a pool are not what there is");
}

void Player::step_pool_get_block_info(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_get_block_info");
  const Picked owner = pick_instance(choice);
  const PoolPlace at = pick_block(choice, -1, std::max(owner.index, 0));
  Answer<gpumem_pool_block_info> info(choice);
  call.text("%s, %s, %s", owner.text.c_str(), at.text.c_str(), info.text().c_str());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(at.pointer != nullptr && info.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = {at.base != nullptr ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND};
  const gpumem_status status = call.check(
      expect,
      gpumem_pool_get_block_info(as<gpumem_instance>(owner.value), at.pointer, info.pointer(), call.error()),
      info);
  if (status != GPUMEM_SUCCESS) return;
  const Pool& of = pool(at.pool);
  const PoolBlock& block = of.blocks.at(at.base);
  require(info->base == at.base && info->usable_size == block.usable &&
              value_of(info->pool) == (of.life == Life::kLive ? of.handle : 0) &&
              info->requested_size == (of.debug() ? block.asked : 0),
          "a block tells something else than before");
}

void Player::step_pool_set_callback(Choice& choice) {
  Call call(*this, choice, "gpumem_pool_set_callback");
  const Picked chosen = pick_pool(choice);
  const bool asks = choice.byte() % 4 != 3;
  call.text("%s, %s", chosen.text.c_str(), asks ? "callback, &count" : "NULL, NULL");
  Expect expect = chosen.wrong;
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect, gpumem_pool_set_callback(as<gpumem_pool>(chosen.value), asks ? count_call : nullptr,
                                                  asks ? &callbacks_ : nullptr, call.error()));
  if (status == GPUMEM_SUCCESS) pool(chosen.index).asks = asks;
}

// A block that work behind a gate uses is freed in the stream of that work, or with a record of it. Then
// blocks of its size are allocated without a stream, and in another one.
void Player::play_held(int index, int in_stream, uint64_t size, bool records) {
  const int owner = pool(index).instance;
  const auto handle = as<gpumem_pool>(pool(index).handle);
  const auto in = as<gpumem_stream>(stream(in_stream).handle);
  const int queue = stream(in_stream).line;
  const auto allocate = [&](int other) -> uint8_t* {
    void* made = nullptr;
    PoolOrder order;
    order.stream = other;
    if (other >= 0) order.line = stream(other).line;
    const gpumem_status status = gpumem_pool_alloc(
        handle, size, other < 0 ? nullptr : as<gpumem_stream>(stream(other).handle), &made, nullptr);
    say("gpumem_pool_alloc(pool%d, %llu, stream%d, &out, NULL) = %s", index, wide(size), other,
        gpumem_status_name(status));
    const bool closed =
        status == GPUMEM_ERROR_NO_ACCESS && other >= 0 && !pool(index).serves(stream(other).device);
    require(status == GPUMEM_SUCCESS || is_lack(status) || closed,
            std::string("gpumem_pool_alloc: ") + gpumem_status_name(status));
    if (status != GPUMEM_SUCCESS) return nullptr;
    took_block(index, order, made, size, 0);
    return static_cast<uint8_t*>(made);
  };
  uint8_t* const held = allocate(records ? -1 : in_stream);
  if (held == nullptr) return;
  Gate& gate = gates_.emplace_back();
  if (gpumem_stream_launch_host_function(in, hold, &gate, nullptr) != GPUMEM_SUCCESS) {
    gate.open = true;
    return;
  }
  say("/* a gate in stream%d */", in_stream);
  line(queue).gates.push_back(model_.enqueue(queue));
  if (records) {
    require(gpumem_pool_record_use(handle, held, in, nullptr) == GPUMEM_SUCCESS, "a use cannot be recorded");
    pool(index).blocks.at(held).recorded.push_back(queue);
  }
  write_block(index, held, in_stream, 1);
  require(gpumem_pool_free(handle, held, records ? nullptr : in, nullptr) == GPUMEM_SUCCESS,
          "a block cannot be freed behind a gate");
  say("gpumem_pool_free(pool%d, held block, %s, NULL)", index, records ? "NULL" : "its stream");
  freed_block(index, held, records ? -1 : queue);
  int other = -1;
  for (size_t i = 0; i < model_.streams.size(); ++i) {
    const Stream& each = model_.streams[i];
    if (each.life == Life::kLive && each.instance == owner && each.line != queue &&
        model_.usable(each).empty())
      other = static_cast<int>(i);
  }
  for (const int next : {-1, other}) {
    if (uint8_t* const block = allocate(next)) write_block(index, block, next, 2);
  }
}

// The program looks at a block, or writes to it.
void Player::step_pool_use(Choice& choice) {
  const Picked chosen = pick_pool(choice);
  const PoolPlace at = pick_block(choice, chosen.index, -1);
  const uint8_t way = choice.byte();
  const PoolOrder order = pick_order(choice, false, chosen);
  const uint8_t value = choice.byte();
  if (chosen.index < 0 || !chosen.wrong.empty()) return;
  const int owner = pool(chosen.index).instance;
  const auto closed =
      std::count_if(gates_.begin(), gates_.end(), [](const Gate& gate) { return !gate.open; });
  const bool usable = order.stream >= 0 && stream(order.stream).instance == owner && !any_lost(owner) &&
                      model_.usable(stream(order.stream)).empty();
  // What waits for others comes without it.
  if (way % 4 == 3 && usable && model_.on_host && closed == 0 && !instance(owner).armed &&
      (pool(chosen.index).flags & GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES) == 0 &&
      !instance(owner).lacks("launch_host_function")) {
    constexpr uint64_t kSizes[] = {256, 4096, 40, (1 << 20) + 1};
    play_held(chosen.index, order.stream, kSizes[value % std::size(kSizes)], way % 8 == 7);
    return follow_pools(owner);
  }
  if (at.base == nullptr) return;
  if (way % 2 == 0) return check_block(at.pool, at.base);
  const bool own = order.stream >= 0 && stream(order.stream).instance == pool(at.pool).instance;
  write_block(at.pool, at.base, own && !order.avoid ? order.stream : -1, value);
}

}  // namespace sequences
