// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps on buffers. The model knows sizes, blocks, access and one value that the first bytes have; it keeps
// them apart from ranges, because only a buffer changes its own.
#include "player.h"

namespace sequences {
namespace {

constexpr uint64_t kTooLarge = uint64_t{1} << 63;
constexpr uint64_t kAddresses = uint64_t{1} << 48;  // more than a process has
constexpr uint64_t kReserveUnits = 4;

constexpr gpumem_content kContents[] = {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE, GPUMEM_CONTENT_ZERO,
                                        GPUMEM_CONTENT_DROP, GPUMEM_CONTENT_FILE};
constexpr gpumem_content kNoContents[] = {5, -1, INT32_MAX, INT32_MIN};
constexpr const char* kTags[] = {nullptr, "weights", "cache"};
const std::string kTooLong(64, 'x');

unsigned long long wide(uint64_t number) { return number; }

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Bytes, as units and a difference.
uint64_t pick_bytes(Choice& choice, uint64_t unit, const std::vector<uint64_t>& wrong) {
  const uint8_t byte = choice.byte();
  const uint64_t right[] = {2 * unit, 1, unit, 3 * unit + 5, 0, 2 * unit - 1, 4 * unit, 7 * unit};
  return byte < kWrong ? right[byte % std::size(right)] : wrong[(byte - kWrong) % wrong.size()];
}

bool keeps(gpumem_content content) {
  return content == GPUMEM_CONTENT_PINNED || content == GPUMEM_CONTENT_PAGEABLE ||
         content == GPUMEM_CONTENT_FILE;
}

const char* quoted(const char* text) { return text == nullptr ? "NULL" : text; }

int32_t allow(void*, gpumem_buffer) { return 0; }
int32_t refuse(void*, gpumem_buffer) { return 1; }
void woken(void*, gpumem_buffer, uint64_t) {}

bool may_succeed(const Expect& expect) {
  return std::find(expect.begin(), expect.end(), GPUMEM_SUCCESS) != expect.end();
}

}  // namespace

// ---- predictions ----

Expect Player::refused_change(const Buffer& changed, bool asleep) const {
  if (model_.lost(changed.device)) return {GPUMEM_ERROR_DEVICE_LOST};
  if (changed.asleep != asleep) return {GPUMEM_ERROR_INVALID_STATE};
  return {};
}

bool Player::beyond_addresses(const Buffer& changed, uint64_t capacity) const {
  return round_up(capacity, unit_of(changed.instance)) > changed.reserved;
}

// What is answered to taking all memory but the first bytes; nothing if that would be a mistake that the
// library cannot see.
std::optional<Expect> Player::expect_taken(const Buffer& changed, uint64_t kept) {
  if (!model_.on_host || !instance(changed.instance).strict) {
    if (!wait_for_work(changed, -1)) return std::nullopt;
  }
  return with_faults(model_.shrunk(changed, kept), changed.instance);
}

// What is answered to giving memory to more bytes, in place.
Expect Player::expect_capacity(const Buffer& changed, uint64_t capacity) {
  const uint64_t had = changed.capacity();
  if (capacity <= had) return {GPUMEM_SUCCESS};
  const uint64_t wanted = round_up(capacity, unit_of(changed.instance));
  if (wanted > changed.reserved && (!changed.movable || wanted > kAddresses))
    return {GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE};
  Expect expect = changed.on_device() ? room_for(changed.device, wanted - had) : Expect{GPUMEM_SUCCESS};
  if (instance(changed.instance).armed) expect.push_back(GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  return if_lost(expect, changed.instance);  // others than its own may be to have access
}

// ---- following ----

// What a call made and gave back again is in the peaks and totals.
void Player::take_peaks(int owner) {
  Tally now;
  require(now.read(as<gpumem_instance>(instance(owner).handle)),
          "the counts cannot be read, or the totals are not their sums");
  Tally& known = instance(owner).stats;
  require(Tally::follow(known.reserved, now.reserved) && Tally::follow(known.pinned, now.pinned),
          "the peaks are below what was there");
}

void Player::took_back(Buffer& changed, uint64_t size) {
  uint64_t kept = changed.capacity();
  while (!changed.blocks.empty() && kept - changed.blocks.back() >= size) {
    kept -= changed.blocks.back();
    if (changed.on_device()) device(changed.device).used -= changed.blocks.back();
    changed.blocks.pop_back();
  }
}

void Player::provided(Buffer& changed, uint64_t capacity) {
  const uint64_t had = changed.capacity();
  if (capacity <= had) return;
  const uint64_t wanted = round_up(capacity, unit_of(changed.instance));
  if (wanted > changed.reserved) {
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    require(gpumem_buffer_get_info(as<gpumem_buffer>(changed.handle), &info, nullptr) == GPUMEM_SUCCESS,
            "a buffer that moved tells nothing");
    require(info.reserved_size == std::max(2 * changed.reserved, wanted) && info.base != changed.base &&
                info.range != as<gpumem_range>(changed.range) && info.buffer_id > last_buffer_id_,
            "a buffer moved to addresses that are no new ones, or not enough");
    last_buffer_id_ = info.buffer_id;
    Tally::add(instance(changed.instance).stats.reserved, info.reserved_size);
    Tally::remove(instance(changed.instance).stats.reserved, changed.reserved);
    changed.base = static_cast<uint8_t*>(info.base);
    changed.reserved = info.reserved_size;
    changed.range = value_of(info.range);
    changed.buffer_id = info.buffer_id;
    ++changed.generation;
  }
  changed.blocks.push_back(wanted - had);
  if (changed.on_device()) device(changed.device).used += wanted - had;
}

// Gives back what lies behind so many bytes, in whole pieces.
void Player::drop_store(Buffer& changed, uint64_t keep) {
  if (changed.store == GPUMEM_CONTENT_FILE && keep != 0 && !changed.pieces.empty()) {
    changed.pieces.front() = std::min(changed.pieces.front(), keep);
    return;
  }
  uint64_t left = changed.store_capacity();
  while (!changed.pieces.empty() && left - changed.pieces.back() >= keep) {
    left -= changed.pieces.back();
    if (changed.store == GPUMEM_CONTENT_PINNED) {
      Tally::remove(instance(changed.instance).stats.pinned, changed.pieces.back());
      instance(changed.instance).pinned -= changed.pieces.back();
      keep_freed(nullptr, changed.instance);  // at an address that nobody was told
    }
    changed.pieces.pop_back();
  }
}

// One piece for what is missing.
void Player::make_store(Buffer& changed, gpumem_content content) {
  if (content != changed.store || !keeps(content)) drop_store(changed, 0);
  changed.store = content;
  const uint64_t had = changed.store_capacity();
  const uint64_t wanted = round_up(changed.size, model_.arena.page());
  if (!keeps(content) || wanted <= had) return;
  if (content == GPUMEM_CONTENT_FILE) changed.pieces.clear();
  changed.pieces.push_back(content == GPUMEM_CONTENT_FILE ? wanted : wanted - had);
  if (content != GPUMEM_CONTENT_PINNED) return;
  Tally::add(instance(changed.instance).stats.pinned, wanted - had);
  instance(changed.instance).pinned += wanted - had;
}

// Whether a store cannot be pinned; `reserved` is what stores of the same call have taken.
bool Player::over_budget(const Buffer& changed, gpumem_content content, uint64_t* reserved) {
  const Instance& owner = instance(changed.instance);
  if (content != GPUMEM_CONTENT_PINNED || owner.pin_budget == 0) return false;
  const uint64_t had = changed.store == content ? changed.store_capacity() : 0;
  const uint64_t wanted = round_up(changed.size, model_.arena.page());
  if (wanted <= had) return false;
  *reserved += wanted - had;
  return owner.pinned > owner.pin_budget || *reserved > owner.pin_budget - owner.pinned;
}

// A call that failed may have made a store, or not: after this there is none.
void Player::forget_store(Buffer& changed) {
  disarm(changed.instance);
  gpumem_prepare_desc none = GPUMEM_PREPARE_DESC_INIT;
  none.content = GPUMEM_CONTENT_DROP;
  const gpumem_status status = gpumem_buffer_prepare(as<gpumem_buffer>(changed.handle), &none, nullptr);
  say("gpumem_buffer_prepare(..., {content DROP}, NULL) = %s  /* to know its store */",
      gpumem_status_name(status));
  require(status == GPUMEM_SUCCESS, "a store cannot be given back");
  drop_store(changed, 0);
  changed.store = GPUMEM_CONTENT_DROP;
  take_peaks(changed.instance);
}

void Player::forget_buffer(Buffer& gone) {
  if (!gone.asleep) took_back(gone, 0);
  drop_store(gone, 0);
  Tally::remove(instance(gone.instance).stats.reserved, gone.reserved);
  --instance(gone.instance).stats.buffers;
  model_.end(gone, Life::kDestroyed);
}

// Waits for all work on a buffer but that of one line; false if there is no way.
bool Player::wait_for_work(const Buffer& used, int except) {
  const std::vector<Buffer::Work> work = used.work;
  return std::all_of(work.begin(), work.end(), [&](const Buffer::Work& each) {
    return each.line == except || model_.is_observed(each.line, each.number) ||
           model_.lost(line(each.line).device) || wait_for(each.line);
  });
}

// Lets all work end that a sleep without more details waits for; false if that cannot be. The sleep would
// observe it too, unless it is refused before.
bool Player::let_devices_finish(const Buffer& sleeping) {
  open_gates();
  for (size_t i = 0; i < model_.lines.size(); ++i) {
    const Line& each = model_.lines[i];
    if (each.device != sleeping.device && sleeping.access_of(each.device) == GPUMEM_ACCESS_NONE) continue;
    if (each.capturing || model_.lost(each.device)) return false;
    if (each.observed < each.enqueued && !wait_for(static_cast<int>(i))) return false;
  }
  return true;
}

// All that the library tells about a buffer.
void Player::check_buffer(int index) {
  const Buffer& known = buffer(index);
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  require(gpumem_buffer_get_info(as<gpumem_buffer>(known.handle), &info, nullptr) == GPUMEM_SUCCESS,
          "a buffer tells nothing");
  require(info.base == known.base && info.reserved_size == known.reserved &&
              info.range == as<gpumem_range>(known.range) && info.buffer_id == known.buffer_id,
          "a buffer has other addresses");
  require(info.size == known.size && info.capacity == known.capacity() &&
              info.block_count == known.blocks.size() && info.granularity == unit_of(known.instance),
          "a buffer has " + std::to_string(info.size) + " bytes, capacity for " +
              std::to_string(info.capacity) + ", " + std::to_string(info.block_count) + " blocks; expected " +
              std::to_string(known.size) + ", " + std::to_string(known.capacity()) + ", " +
              std::to_string(known.blocks.size()));
  const gpumem_buffer_state state = known.failed   ? GPUMEM_BUFFER_STATE_FAILED
                                    : known.asleep ? GPUMEM_BUFFER_STATE_ASLEEP
                                                   : GPUMEM_BUFFER_STATE_AWAKE;
  require(info.store_capacity == known.store_capacity() && info.ahead == 0 &&
              info.registrations == known.registrations.size() && known.tag == info.tag &&
              info.group == (known.group < 0 ? nullptr : as<gpumem_group>(group(known.group).handle)),
          "a buffer has room for " + std::to_string(info.store_capacity) + " bytes of content; expected " +
              std::to_string(known.store_capacity()) + "; or another group, or other registrations");
  require(info.state == state && info.stored_size == known.stored && info.generation == known.generation,
          "a buffer sleeps, or woke, otherwise than it was told to");
  require(info.location == known.location && info.location_id == known.location_id &&
              info.device == as<gpumem_device>(device(known.device).handle) &&
              info.device_ordinal == device(known.device).ordinal && known.name == info.name,
          "a buffer lies elsewhere, or has another name");

  const auto owner = as<gpumem_instance>(instance(known.instance).handle);
  const bool mapped = !known.asleep && known.capacity() != 0;
  gpumem_pointer_info pointer = GPUMEM_POINTER_INFO_INIT;
  require(gpumem_pointer_get_info(owner, known.base, &pointer, nullptr) == GPUMEM_SUCCESS &&
              pointer.kind == GPUMEM_KIND_VIRTUAL && pointer.base == known.base &&
              pointer.size == known.reserved && pointer.buffer_id == known.buffer_id &&
              pointer.buffer == as<gpumem_buffer>(known.handle) &&
              pointer.location == (mapped ? known.location : GPUMEM_LOCATION_NONE),
          "the address of a buffer is told something else of");
  const auto expect = [&](gpumem_location who, int32_t number, gpumem_access expected) {
    gpumem_access access = GPUMEM_ACCESS_UNKNOWN;
    require(gpumem_pointer_get_access(owner, known.base, who, number, &access, nullptr) == GPUMEM_SUCCESS &&
                access == (mapped ? expected : GPUMEM_ACCESS_NONE),
            "the access to a buffer is " + std::to_string(access));
  };
  expect(GPUMEM_LOCATION_HOST, 0, known.access_of(-1));
  const std::vector<int>& devices = instance(known.instance).devices;
  for (size_t i = 0; i < devices.size(); ++i)
    expect(GPUMEM_LOCATION_DEVICE, static_cast<int32_t>(i), known.access_of(devices[i]));
}

// The first bytes, the last ones, and those between two blocks.
void Player::check_content(int index) {
  const Buffer& known = buffer(index);
  const bool reads = (known.access_of(known.device) & GPUMEM_ACCESS_READ) != 0;
  if (known.asleep || known.filled == 0 || !reads || model_.lost(known.device)) return;
  if (!wait_for_work(known, -1)) return;
  disarm(known.instance);
  const uint64_t border = known.blocks.empty() ? 0 : known.blocks.front();
  constexpr uint64_t kPart = 64;
  for (const uint64_t at :
       {uint64_t{0}, border - std::min(border, kPart / 2), known.filled - std::min(known.filled, kPart)}) {
    if (at >= known.filled) continue;
    std::vector<uint8_t> bytes(std::min(kPart, known.filled - at), static_cast<uint8_t>(~known.value));
    const gpumem_status status = gpumem_copy(as<gpumem_instance>(instance(known.instance).handle),
                                             bytes.data(), known.base + at, bytes.size(), nullptr, nullptr);
    require(status == GPUMEM_SUCCESS,
            std::string("a buffer cannot be read back: ") + gpumem_status_name(status));
    const auto same = std::count(bytes.begin(), bytes.end(), known.value);
    require(static_cast<size_t>(same) == bytes.size(), "bytes of buffer" + std::to_string(index) + " from " +
                                                           std::to_string(at) + " on are not " +
                                                           std::to_string(known.value));
  }
}

// ---- steps ----

void Player::step_buffer_create(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_create");
  const Picked home = pick_device(choice);
  const bool live = home.wrong.empty();
  const int owner = home.index < 0 ? -1 : device(home.index).instance;
  const uint64_t unit = owner < 0 ? Model::kHostVmmUnit : unit_of(owner);
  Sized<gpumem_buffer_desc> desc(choice, GPUMEM_BUFFER_DESC_INIT, Sized<gpumem_buffer_desc>::Null::kBad);
  const uint64_t size = pick_bytes(choice, unit, {kTooLarge, UINT64_MAX, kTooLarge + unit});
  const uint8_t room = choice.byte();
  const uint64_t reserves[] = {kReserveUnits * unit, size, (kReserveUnits + 4) * unit - 1, 0};
  const uint64_t no_reserves[] = {kTooLarge, UINT64_MAX, size - 1};
  desc->size = size;
  desc->reserve = room < kWrong ? std::max(reserves[room % std::size(reserves)], room % 4 == 3 ? 0 : size)
                                : no_reserves[room % std::size(no_reserves)];
  const bool fits =
      room < kWrong || desc->reserve == 0 || (desc->reserve >= size && desc->reserve < kTooLarge);
  const uint8_t flags = choice.byte();
  constexpr gpumem_buffer_flags kNoFlags[] = {16, 17, UINT64_C(1) << 63, UINT64_MAX};
  desc->flags = flags < kWrong ? flags % 2 * GPUMEM_BUFFER_MOVABLE : kNoFlags[flags % std::size(kNoFlags)];
  const Name name(choice);
  desc->name = name.pointer();
  Out<gpumem_buffer> out(choice);
  const Properties wanted = pick_properties(choice, unit, false);
  desc->location = wanted.desc.location;
  desc->location_id = wanted.desc.location_id;
  desc->handle_types = wanted.desc.handle_types;
  desc->require = wanted.desc.require;
  desc->prefer = wanted.desc.prefer;
  // Mostly those who have access if nobody is named.
  const uint8_t named = choice.byte();
  const bool names = named % 4 == 3;
  Rights rights = pick_rights(choice, live ? instance(owner).devices : std::vector<int>{});
  if (names && rights.avoid) return;
  if (names) {
    desc->accesses = rights.pointer();
    desc->access_count = rights.count;
  }
  const bool defaults = desc->accesses == nullptr && desc->access_count == 0;
  // In a group of its instance, or in none.
  const uint8_t grouped = choice.byte();
  int in_group = -1;
  if (live && grouped != 0 && grouped < kWrong) {
    for (size_t i = 0; i < model_.groups.size(); ++i) {
      const Group& each = model_.groups[i];
      if (each.life == Life::kLive && each.instance == owner) in_group = static_cast<int>(i);
    }
  }
  if (in_group >= 0) {
    desc->group = as<gpumem_group>(group(in_group).handle);
    desc->tag = kTags[grouped % std::size(kTags)];
  }
  if (grouped >= kWrong && grouped % 3 == 0) desc->group = as<gpumem_group>(uint64_t{0x1234});
  if (grouped >= kWrong && grouped % 3 == 1) desc->tag = "weights";
  if (grouped >= kWrong && grouped % 3 == 2) desc->tag = kTooLong.c_str();
  call.text("%s, &%s{size %llu, reserve %llu, flags 0x%llx, %s, accesses %s, group %d, tag %s}, %s",
            home.text.c_str(), desc.text().c_str(), wide(size), wide(desc->reserve), wide(desc->flags),
            text_of(wanted).c_str(), defaults ? "NULL, 0" : rights.text.c_str(), in_group, quoted(desc->tag),
            out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(grouped < kWrong && size < kTooLarge && fits && flags < kWrong && wanted.good &&
                  name.good() && desc.good() && out.good() && (defaults || rights.good));
  Expect expect = verdict.done();
  // Which nodes there are is not asked of a lost device.
  if (!expect.empty() && live && wanted.desc.location_id != 0)
    expect = model_.lost(home.index) ? Expect{expect.front(), GPUMEM_ERROR_DEVICE_LOST} : expect;
  if (expect.empty()) {
    if (instance(owner).armed_for_good) disarm(owner);
    if (!model_.on_host) open_gates();
    expect = wanted.on_device ? room_for(home.index, round_up(size, unit)) : Expect{GPUMEM_SUCCESS};
    if (instance(owner).armed) expect.push_back(GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
    if (!defaults && !can_have(home.index, wanted.on_device, rights.entries()))
      expect = {GPUMEM_ERROR_UNSUPPORTED};
    expect = model_.lost(home.index) ? Expect{GPUMEM_ERROR_DEVICE_LOST} : if_lost(expect, owner);
  }
  const uint64_t reserve = desc->reserve;
  const gpumem_status status = call.check(
      expect,
      gpumem_buffer_create(as<gpumem_device>(home.value), desc.pointer(), out.pointer(), call.error()), out);
  if (owner >= 0 && live) ++model_.objects_made;
  if (status != GPUMEM_SUCCESS) {
    if (live) take_peaks(owner);
    return;
  }
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  require(gpumem_buffer_get_info(out.get(), &info, nullptr) == GPUMEM_SUCCESS, "a new buffer tells nothing");
  const uint64_t least = round_up(std::max<uint64_t>(size, 1), unit);
  const uint64_t asked =
      reserve == 0 && wanted.on_device ? device(home.index).total : std::max(reserve, least);
  require(info.reserved_size >= least && info.reserved_size % unit == 0 &&
              (reserve == 0 || info.reserved_size == std::max(least, round_up(asked, unit))) &&
              (!wanted.on_device || info.reserved_size <= std::max(least, round_up(asked, unit))),
          "a new buffer has another reservation than was asked for");
  require(info.buffer_id > last_buffer_id_, "a buffer id was used before");
  last_buffer_id_ = info.buffer_id;
  Buffer made;
  made.handle = value_of(out.get());
  made.instance = owner;
  made.device = home.index;
  made.base = static_cast<uint8_t*>(info.base);
  made.reserved = info.reserved_size;
  made.buffer_id = info.buffer_id;
  made.range = value_of(info.range);
  made.location = wanted.on_device ? GPUMEM_LOCATION_DEVICE : wanted.desc.location;
  made.location_id = wanted.on_device ? static_cast<int32_t>(device(home.index).ordinal)
                     : wanted.desc.location == GPUMEM_LOCATION_HOST ? -1
                                                                    : 0;
  made.movable = desc->flags == GPUMEM_BUFFER_MOVABLE;
  made.name = name.text();
  made.group = in_group;
  if (in_group >= 0 && desc->tag != nullptr) made.tag = desc->tag;
  if (defaults) {
    made.access[home.index] = GPUMEM_ACCESS_READWRITE;
    if (!wanted.on_device) made.access[-1] = GPUMEM_ACCESS_READWRITE;
  } else {
    for (const gpumem_access_desc& entry : rights.entries())
      made.access[processor_of(owner, entry)] = entry.access;
  }
  Tally::add(instance(owner).stats.reserved, made.reserved);
  ++instance(owner).stats.buffers;
  provided(made, size);
  made.size = size;
  model_.buffers.push_back(made);
  check_buffer(static_cast<int>(model_.buffers.size()) - 1);
}

void Player::step_buffer_destroy(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_destroy");
  const Picked chosen = pick_buffer(choice);
  call.text("%s", chosen.text.c_str());
  Expect expect = chosen.wrong;
  if (chosen.value == 0) expect = {GPUMEM_SUCCESS};
  if (expect.empty()) {
    const Buffer& ending = buffer(chosen.index);
    if (instance(ending.instance).armed_for_good) disarm(ending.instance);
    const std::optional<Expect> taken =
        ending.asleep ? with_faults({GPUMEM_SUCCESS}, ending.instance) : expect_taken(ending, 0);
    if (!taken) return;
    expect = *taken;
  }
  const gpumem_status status =
      call.check(expect, gpumem_buffer_destroy(as<gpumem_buffer>(chosen.value), call.error()));
  if (chosen.index < 0 || !chosen.wrong.empty()) return;
  if (status == GPUMEM_SUCCESS) {
    forget_buffer(buffer(chosen.index));
  } else {
    check_buffer(chosen.index);
  }
}

void Player::step_buffer_get_info(Choice& choice) {
  const auto told = ask_info(choice, "gpumem_buffer_get_info", &Player::pick_buffer, gpumem_buffer_get_info);
  if (!told) return;
  const auto& [index, info] = *told;
  require(info.base == buffer(index).base, "a buffer has another address");
  check_buffer(index);
  // Its range can be queried, and changed by nobody else.
  gpumem_range_info range = GPUMEM_RANGE_INFO_INIT;
  require(gpumem_range_get_info(info.range, &range, nullptr) == GPUMEM_SUCCESS && range.base == info.base &&
              range.size == info.reserved_size &&
              range.mapped_size == (buffer(index).asleep ? 0 : info.capacity) &&
              range.mapping_count == (buffer(index).asleep ? 0 : info.block_count),
          "the range of a buffer is not what is mapped");
  require(gpumem_range_release(info.range, nullptr) == GPUMEM_ERROR_INVALID_STATE &&
              gpumem_range_unmap(info.range, 0, info.granularity, nullptr) == GPUMEM_ERROR_INVALID_STATE,
          "the range of a buffer can be changed");
}

// Resizing, and what gives memory ahead or takes unused memory back.
void Player::do_change_capacity(Choice& choice, bool resizes) {
  Call call(*this, choice, resizes ? "gpumem_buffer_resize" : "gpumem_buffer_set_capacity");
  const Picked chosen = pick_buffer(choice);
  const uint64_t unit = chosen.index < 0 ? Model::kHostVmmUnit : unit_of(buffer(chosen.index).instance);
  const uint64_t bytes = pick_bytes(choice, unit, {kTooLarge, UINT64_MAX, kTooLarge - 1, uint64_t{1} << 62});
  call.text("%s, %llu", chosen.text.c_str(), wide(bytes));
  const bool live = chosen.wrong.empty();
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(bytes < kTooLarge);
  Expect expect = verdict.done();
  if (expect.empty() && !resizes && bytes != 0 && bytes < buffer(chosen.index).size)
    expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
  if (expect.empty()) expect = refused_change(buffer(chosen.index), false);
  bool takes = false;
  uint64_t wanted = bytes;
  if (expect.empty()) {
    const Buffer& changed = buffer(chosen.index);
    const int owner = changed.instance;
    if (instance(owner).armed_for_good) disarm(owner);
    if (!model_.on_host) open_gates();
    if (!resizes) wanted = std::max(bytes, changed.size);
    takes = resizes ? bytes < changed.size : wanted < changed.capacity();
    if (takes) {
      // Only blocks that lie whole behind it are taken.
      uint64_t kept = changed.capacity();
      for (size_t i = changed.blocks.size(); i > 0 && kept - changed.blocks[i - 1] >= wanted; --i)
        kept -= changed.blocks[i - 1];
      const std::optional<Expect> taken = expect_taken(changed, kept);
      if (!taken) return;
      expect = *taken;
    } else {
      expect = expect_capacity(changed, wanted);
      if (may_succeed(expect) && beyond_addresses(changed, wanted)) {
        const std::optional<Expect> moved = expect_taken(changed, 0);
        if (!moved) return;
        expect.erase(std::find(expect.begin(), expect.end(), GPUMEM_SUCCESS));
        expect.insert(expect.end(), moved->begin(), moved->end());
      }
    }
  }
  const auto handle = as<gpumem_buffer>(chosen.value);
  const gpumem_status status =
      call.check(expect, resizes ? gpumem_buffer_resize(handle, bytes, call.error())
                                 : gpumem_buffer_set_capacity(handle, bytes, call.error()));
  if (!live) return;
  ++model_.objects_made;
  Buffer& changed = buffer(chosen.index);
  if (status != GPUMEM_SUCCESS) {
    take_peaks(changed.instance);
  } else {
    if (takes) {
      took_back(changed, wanted);
    } else {
      provided(changed, wanted);
    }
    if (resizes) changed.size = bytes;
    changed.filled = std::min(changed.filled, changed.size);
  }
  check_buffer(chosen.index);
}

void Player::step_buffer_resize(Choice& choice) { do_change_capacity(choice, true); }
void Player::step_buffer_set_capacity(Choice& choice) { do_change_capacity(choice, false); }

void Player::step_buffer_set_access(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_set_access");
  const Picked chosen = pick_buffer(choice);
  const bool live = chosen.wrong.empty();
  Rights rights =
      pick_rights(choice, live ? instance(buffer(chosen.index).instance).devices : std::vector<int>{});
  if (rights.avoid) return;
  call.text("%s, %s", chosen.text.c_str(), rights.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(rights.good);
  Expect expect = verdict.done();
  if (expect.empty()) expect = refused_change(buffer(chosen.index), false);
  if (expect.empty()) {
    const Buffer& changed = buffer(chosen.index);
    const int owner = changed.instance;
    if (instance(owner).armed_for_good) disarm(owner);
    const auto entries = rights.entries();
    const bool takes = std::any_of(entries.begin(), entries.end(), [&](const gpumem_access_desc& entry) {
      const int who = processor_of(owner, entry);
      return who >= 0 && (changed.access_of(who) & ~entry.access) != 0;
    });
    expect = with_faults({GPUMEM_SUCCESS}, owner);
    if (takes && !changed.blocks.empty()) {
      const std::optional<Expect> taken = expect_taken(changed, 0);
      if (!taken) return;
      expect = *taken;
    }
    if (!can_have(changed.device, changed.on_device(), entries)) expect = {GPUMEM_ERROR_UNSUPPORTED};
    expect = if_lost(expect, owner);
  }
  const gpumem_status status =
      call.check(expect, gpumem_buffer_set_access(as<gpumem_buffer>(chosen.value), rights.pointer(),
                                                  rights.count, call.error()));
  if (!live) return;
  Buffer& changed = buffer(chosen.index);
  if (status == GPUMEM_SUCCESS) {
    for (const gpumem_access_desc& entry : rights.entries())
      changed.access[processor_of(changed.instance, entry)] = entry.access;
  }
  check_buffer(chosen.index);
}

// ---- sleep ----

template <class Desc>
void Player::pick_tag(Choice& choice, Wish<Desc>& wish, bool of_group) {
  const uint8_t byte = choice.byte();
  const char* tag = nullptr;
  if (of_group) tag = byte < kWrong ? kTags[byte % std::size(kTags)] : kTooLong.c_str();
  if (!of_group && byte >= kWrong) tag = "weights";
  wish.desc->tag = tag;
  if (wish.desc.is_null()) return;
  if (byte >= kWrong) wish.good = false;
  if (tag != nullptr) wish.tag = tag;
  wish.text += std::string(", tag ") + quoted(tag);
}

template <class Desc>
void Player::pick_content(Choice& choice, Wish<Desc>& wish, int owner, bool of_group) {
  gpumem_content content = choice.value(kContents, kNoContents);
  // The way through a file takes pinned memory for a while.
  const bool budget = owner >= 0 && instance(owner).pin_budget != 0;
  if (content == GPUMEM_CONTENT_FILE && budget) content = GPUMEM_CONTENT_PAGEABLE;
  const bool known = content >= GPUMEM_CONTENT_PINNED && content <= GPUMEM_CONTENT_FILE;
  const uint8_t byte = choice.byte();
  const bool in_file = content == GPUMEM_CONTENT_FILE;
  wish.desc->content = content;
  if (in_file) wish.desc->directory = "/tmp";
  if (byte >= kWrong && byte % 2 == 0) wish.desc->reserved = byte;
  if (byte >= kWrong && byte % 2 == 1) wish.desc->directory = in_file ? nullptr : "/tmp";
  pick_tag(choice, wish, of_group);
  wish.text += ", content " + std::to_string(content) + ", directory " + quoted(wish.desc->directory);
  if (wish.desc.is_null()) return;
  wish.good = wish.good && known && byte < kWrong;
  wish.content = content;
}

Player::Wish<gpumem_sleep_desc> Player::pick_sleep(Choice& choice, int owner, bool of_group) {
  Wish<gpumem_sleep_desc> wish(choice, GPUMEM_SLEEP_DESC_INIT);
  pick_content(choice, wish, owner, of_group);
  const uint8_t flags = choice.byte();
  constexpr gpumem_sleep_flags kNoFlags[] = {2, 3, UINT64_C(1) << 63};
  const bool idle = flags % 4 != 3;
  wish.desc->flags = flags < kWrong ? (idle ? GPUMEM_SLEEP_IDLE : 0) : kNoFlags[flags % std::size(kNoFlags)];
  wish.text += ", flags " + std::to_string(wish.desc->flags);
  if (!wish.desc.is_null()) {
    wish.good = wish.good && flags < kWrong;
    wish.idle = idle;
  }
  wish.good = wish.good && wish.desc.good();
  return wish;
}

Player::Wish<gpumem_wake_desc> Player::pick_wake(Choice& choice, bool of_group) {
  Wish<gpumem_wake_desc> wish(choice, GPUMEM_WAKE_DESC_INIT);
  pick_tag(choice, wish, of_group);
  constexpr uint64_t kKeeps[] = {0, UINT64_MAX, 1, 1 << 16};
  wish.desc->keep = choice.one_of(kKeeps);
  wish.text += ", keep " + std::to_string(wish.desc->keep);
  if (!wish.desc.is_null()) wish.keep = wish.desc->keep;
  wish.good = wish.good && wish.desc.good();
  return wish;
}

Player::Wish<gpumem_prepare_desc> Player::pick_prepare(Choice& choice, int owner, bool of_group) {
  Wish<gpumem_prepare_desc> wish(choice, GPUMEM_PREPARE_DESC_INIT);
  pick_content(choice, wish, owner, of_group);
  wish.good = wish.good && wish.desc.good();
  return wish;
}

bool Player::any_user_lost(const Buffer& used) const {
  return model_.lost(used.device) ||
         std::any_of(used.access.begin(), used.access.end(), [&](const auto& entry) {
           return entry.first >= 0 && entry.second != GPUMEM_ACCESS_NONE && model_.lost(entry.first);
         });
}

// What is answered to putting an awake buffer to sleep; nothing if that would be a mistake that the library
// cannot see.
std::optional<Expect> Player::expect_sleep(const Buffer& changed, const Wish<gpumem_sleep_desc>& wish,
                                           uint64_t* reserved) {
  if (any_user_lost(changed)) return Expect{GPUMEM_ERROR_DEVICE_LOST};
  if (!wish.idle && !let_devices_finish(changed)) return std::nullopt;
  const Instance& owner = instance(changed.instance);
  if (owner.armed_for_good) disarm(changed.instance);
  if (!model_.on_host) open_gates();
  const std::optional<Expect> taken = expect_taken(changed, 0);
  if (!taken) return std::nullopt;
  Expect expect = *taken;
  const auto refuse_with = [&](const Expect& refusals) {
    if (!may_succeed(expect)) return;
    expect.erase(std::find(expect.begin(), expect.end(), GPUMEM_SUCCESS));
    expect.insert(expect.end(), refusals.begin(), refusals.end());
  };
  if (changed.refuses_sleep || !changed.registrations.empty()) refuse_with({GPUMEM_ERROR_BUSY});
  const bool stores = keeps(wish.content) && changed.size != 0;
  if (over_budget(changed, wish.content, reserved)) {
    refuse_with({GPUMEM_ERROR_LIMIT_EXCEEDED});
  } else if (stores && (changed.access_of(changed.device) & GPUMEM_ACCESS_READ) == 0) {
    // Another processor may be able to read it.
    const bool any = std::any_of(changed.access.begin(), changed.access.end(),
                                 [](const auto& entry) { return (entry.second & GPUMEM_ACCESS_READ) != 0; });
    refuse_with(any ? Expect{GPUMEM_ERROR_NO_ACCESS, GPUMEM_SUCCESS, GPUMEM_ERROR_DEVICE_LOST}
                    : if_lost({GPUMEM_ERROR_NO_ACCESS}, changed.instance));
  }
  return expect;
}

void Player::fell_asleep(Buffer& changed, gpumem_content content) {
  make_store(changed, content);
  changed.asleep = true;
  changed.stored = keeps(content) ? changed.size : 0;
  if (changed.on_device()) device(changed.device).used -= changed.capacity();
}

void Player::woke_up(Buffer& changed, uint64_t keep) {
  if (changed.on_device()) device(changed.device).used += changed.capacity();
  changed.asleep = changed.failed = false;
  changed.stored = 0;
  ++changed.generation;
  if (!keeps(changed.store)) changed.filled = changed.store == GPUMEM_CONTENT_ZERO ? changed.size : 0;
  if (changed.store == GPUMEM_CONTENT_ZERO) changed.value = 0;
  drop_store(changed, keep);
}

// After a sleep that failed: awake with its content, perhaps with new memory; or failed.
void Player::follow_failure(Buffer& changed, gpumem_content content) {
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  require(gpumem_buffer_get_info(as<gpumem_buffer>(changed.handle), &info, nullptr) == GPUMEM_SUCCESS,
          "a buffer tells nothing");
  if (info.state == GPUMEM_BUFFER_STATE_FAILED) {
    fell_asleep(changed, content);
    changed.failed = true;
    return;
  }
  require(info.generation - changed.generation <= 1, "a buffer has woken without a call");
  changed.generation = info.generation;
  forget_store(changed);
}

void Player::step_buffer_sleep(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_sleep");
  const Picked chosen = pick_buffer(choice);
  const int owner = chosen.index < 0 ? -1 : buffer(chosen.index).instance;
  auto wish = pick_sleep(choice, owner, false);
  call.text("%s, &%s{%s}", chosen.text.c_str(), wish.desc.text().c_str(), wish.text.c_str());
  const bool live = chosen.wrong.empty();
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(wish.good);
  Expect expect = verdict.done();
  if (expect.empty() && any_user_lost(buffer(chosen.index))) expect = {GPUMEM_ERROR_DEVICE_LOST};
  if (expect.empty()) expect = refused_change(buffer(chosen.index), false);
  if (expect.empty()) {
    uint64_t reserved = 0;
    const std::optional<Expect> told = expect_sleep(buffer(chosen.index), wish, &reserved);
    if (!told) return;
    expect = *told;
  }
  // A planned failure may stand before these.
  const bool tried = std::any_of(expect.begin(), expect.end(), [](gpumem_status status) {
    return status == GPUMEM_SUCCESS || status == GPUMEM_ERROR_LIMIT_EXCEEDED ||
           status == GPUMEM_ERROR_NO_ACCESS;
  });
  const gpumem_status status = call.check(
      expect, gpumem_buffer_sleep(as<gpumem_buffer>(chosen.value), wish.desc.pointer(), call.error()));
  if (!live) return;
  ++model_.objects_made;
  Buffer& changed = buffer(chosen.index);
  if (status == GPUMEM_SUCCESS) {
    fell_asleep(changed, wish.content);
  } else if (tried && status != GPUMEM_ERROR_DEVICE_LOST) {
    follow_failure(changed, wish.content);
  }
  take_peaks(changed.instance);
  check_buffer(chosen.index);
  if (status != GPUMEM_SUCCESS) check_content(chosen.index);
}

void Player::step_buffer_wake(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_wake");
  Picked chosen = pick_buffer(choice);
  // Mostly one that sleeps.
  const auto sleeps = [](const Buffer& each) { return each.life == Life::kLive && each.asleep; };
  const auto asleep = std::find_if(model_.buffers.begin(), model_.buffers.end(), sleeps);
  if (choice.byte() % 4 != 3 && chosen.index >= 0 && chosen.wrong.empty() && asleep != model_.buffers.end()) {
    const auto index = static_cast<int>(asleep - model_.buffers.begin());
    chosen = {index, asleep->handle, {}, "buffer" + std::to_string(index)};
  }
  auto wish = pick_wake(choice, false);
  call.text("%s, &%s{%s}", chosen.text.c_str(), wish.desc.text().c_str(), wish.text.c_str());
  const bool live = chosen.wrong.empty();
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(wish.good);
  Expect expect = verdict.done();
  if (expect.empty() && any_user_lost(buffer(chosen.index))) expect = {GPUMEM_ERROR_DEVICE_LOST};
  if (expect.empty()) expect = refused_change(buffer(chosen.index), true);
  if (expect.empty()) {
    const Buffer& changed = buffer(chosen.index);
    if (instance(changed.instance).armed_for_good) disarm(changed.instance);
    if (!model_.on_host) open_gates();
    expect = changed.on_device() ? room_for(changed.device, changed.capacity()) : Expect{GPUMEM_SUCCESS};
    if (instance(changed.instance).armed) expect.push_back(GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
    expect = if_lost(expect, changed.instance);
  }
  const gpumem_status status = call.check(
      expect, gpumem_buffer_wake(as<gpumem_buffer>(chosen.value), wish.desc.pointer(), call.error()));
  if (!live) return;
  ++model_.objects_made;
  Buffer& changed = buffer(chosen.index);
  if (status == GPUMEM_SUCCESS) woke_up(changed, wish.keep);
  take_peaks(changed.instance);
  check_buffer(chosen.index);
  if (status == GPUMEM_SUCCESS) check_content(chosen.index);
}

void Player::step_buffer_prepare(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_prepare");
  const Picked chosen = pick_buffer(choice);
  auto wish = pick_prepare(choice, chosen.index < 0 ? -1 : buffer(chosen.index).instance, false);
  call.text("%s, &%s{%s}", chosen.text.c_str(), wish.desc.text().c_str(), wish.text.c_str());
  const bool live = chosen.wrong.empty();
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(wish.good);
  Expect expect = verdict.done();
  bool tried = false;
  if (expect.empty() && any_user_lost(buffer(chosen.index))) expect = {GPUMEM_ERROR_DEVICE_LOST};
  if (expect.empty()) expect = refused_change(buffer(chosen.index), false);
  if (expect.empty()) {
    const Buffer& changed = buffer(chosen.index);
    if (instance(changed.instance).armed_for_good) disarm(changed.instance);
    uint64_t reserved = 0;
    expect = with_faults({GPUMEM_SUCCESS}, changed.instance);
    if (over_budget(changed, wish.content, &reserved)) expect = {GPUMEM_ERROR_LIMIT_EXCEEDED};
    tried = true;
  }
  const gpumem_status status = call.check(
      expect, gpumem_buffer_prepare(as<gpumem_buffer>(chosen.value), wish.desc.pointer(), call.error()));
  if (!live) return;
  ++model_.objects_made;
  Buffer& changed = buffer(chosen.index);
  if (status == GPUMEM_SUCCESS) {
    make_store(changed, wish.content);
  } else if (tried) {
    forget_store(changed);
  }
  take_peaks(changed.instance);
  check_buffer(chosen.index);
}

// Ended at once, so that nothing happens later; what was made by then is looked up.
void Player::step_buffer_set_ahead(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_set_ahead");
  const Picked chosen = pick_buffer(choice);
  const uint64_t unit = chosen.index < 0 ? Model::kHostVmmUnit : unit_of(buffer(chosen.index).instance);
  const uint64_t bytes = pick_bytes(choice, unit, {kTooLarge, UINT64_MAX, kTooLarge + unit});
  call.text("%s, %llu", chosen.text.c_str(), wide(bytes));
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(bytes < kTooLarge);
  Expect expect = verdict.done();
  if (expect.empty()) {
    const int owner = buffer(chosen.index).instance;
    if (instance(owner).armed_for_good) disarm(owner);  // or growth that fails could not be undone
    if (!model_.on_host) open_gates();
    expect = {GPUMEM_SUCCESS};
  }
  const auto handle = as<gpumem_buffer>(chosen.value);
  const gpumem_status status = call.check(expect, gpumem_buffer_set_ahead(handle, bytes, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  Buffer& changed = buffer(chosen.index);
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  require(gpumem_buffer_get_info(handle, &info, nullptr) == GPUMEM_SUCCESS && info.ahead == bytes,
          "the growth ahead is another one");
  require(gpumem_buffer_set_ahead(handle, 0, nullptr) == GPUMEM_SUCCESS, "growth ahead cannot be ended");
  require(gpumem_buffer_get_info(handle, &info, nullptr) == GPUMEM_SUCCESS, "a buffer tells nothing");
  const uint64_t had = changed.capacity();
  if (info.capacity != had) {
    const uint64_t most = std::min(round_up(changed.size + bytes, unit), changed.reserved);
    require(info.capacity == most && !changed.asleep, "a buffer has grown ahead to another capacity");
    changed.blocks.push_back(most - had);
    if (changed.on_device()) device(changed.device).used += most - had;
  }
  ++model_.objects_made;
  take_peaks(changed.instance);
  check_buffer(chosen.index);
}

void Player::step_buffer_note_registration(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_note_registration");
  const Picked chosen = pick_buffer(choice);
  const char* const names[] = {"card", "ring"};
  const char* const no_names[] = {nullptr, "", "a\nb", kTooLong.c_str()};
  const uint8_t byte = choice.byte();
  const char* const name =
      byte < kWrong ? names[byte % std::size(names)] : no_names[byte % std::size(no_names)];
  Out<uint64_t> out(choice);
  call.text("%s, %s, %s", chosen.text.c_str(), quoted(name), out.text());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(byte < kWrong && out.good());
  Expect expect = verdict.done();
  if (expect.empty() && buffer(chosen.index).asleep) expect = {GPUMEM_ERROR_INVALID_STATE};
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect,
      gpumem_buffer_note_registration(as<gpumem_buffer>(chosen.value), name, out.pointer(), call.error()),
      out);
  if (status != GPUMEM_SUCCESS) return;
  require(out.get() > last_registration_, "a number of a registration was used before");
  last_registration_ = out.get();
  buffer(chosen.index).registrations.push_back(out.get());
  check_buffer(chosen.index);
}

void Player::step_buffer_forget_registration(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_forget_registration");
  Picked chosen = pick_buffer(choice);
  // Mostly one that has some.
  const auto noted = [](const Buffer& each) {
    return each.life == Life::kLive && !each.registrations.empty();
  };
  const auto some = std::find_if(model_.buffers.begin(), model_.buffers.end(), noted);
  if (choice.byte() % 4 != 3 && chosen.index >= 0 && chosen.wrong.empty() && some != model_.buffers.end()) {
    const auto index = static_cast<int>(some - model_.buffers.begin());
    chosen = {index, some->handle, {}, "buffer" + std::to_string(index)};
  }
  const uint8_t byte = choice.byte();
  const bool live = chosen.wrong.empty();
  const bool known = live && byte < kWrong && !buffer(chosen.index).registrations.empty();
  const uint64_t no_numbers[] = {0, UINT64_MAX, last_registration_ + 1};
  const uint64_t number =
      known ? buffer(chosen.index).registrations.back() : no_numbers[byte % std::size(no_numbers)];
  call.text("%s, %llu", chosen.text.c_str(), wide(number));
  Expect expect = chosen.wrong;
  if (expect.empty()) expect = {known ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND};
  const gpumem_status status = call.check(
      expect, gpumem_buffer_forget_registration(as<gpumem_buffer>(chosen.value), number, call.error()));
  if (status == GPUMEM_SUCCESS) buffer(chosen.index).registrations.pop_back();
  if (live) check_buffer(chosen.index);
}

void Player::step_buffer_set_callbacks(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_set_callbacks");
  const Picked chosen = pick_buffer(choice);
  Sized<gpumem_buffer_callbacks> callbacks(choice, GPUMEM_BUFFER_CALLBACKS_INIT,
                                           Sized<gpumem_buffer_callbacks>::Null::kGood);
  const bool refuses = choice.byte() % 4 == 3;
  callbacks->before_sleep = refuses ? refuse : allow;
  callbacks->after_wake = woken;
  call.text("%s, &%s{%s}", chosen.text.c_str(), callbacks.text().c_str(), refuses ? "refuse" : "allow");
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(callbacks.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect,
      gpumem_buffer_set_callbacks(as<gpumem_buffer>(chosen.value), callbacks.pointer(), call.error()));
  if (status == GPUMEM_SUCCESS) buffer(chosen.index).refuses_sleep = refuses && !callbacks.is_null();
}

// ---- groups ----

std::vector<int> Player::members_of(int index, const std::string& tag) {
  std::vector<int> members;
  for (size_t i = 0; i < model_.buffers.size(); ++i) {
    const Buffer& each = model_.buffers[i];
    if (each.life == Life::kLive && each.group == index && (tag.empty() || each.tag == tag))
      members.push_back(static_cast<int>(i));
  }
  return members;
}

void Player::step_group_create(Choice& choice) {
  Call call(*this, choice, "gpumem_group_create");
  const Picked owner = pick_instance(choice);
  Sized<gpumem_group_desc> desc(choice, GPUMEM_GROUP_DESC_INIT, Sized<gpumem_group_desc>::Null::kGood);
  const Name name(choice);
  desc->name = name.pointer();
  Out<gpumem_group> out(choice);
  call.text("%s, &%s, %s", owner.text.c_str(), desc.text().c_str(), out.text());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(desc.good() && (name.good() || desc.is_null()) && out.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect,
      gpumem_group_create(as<gpumem_instance>(owner.value), desc.pointer(), out.pointer(), call.error()),
      out);
  if (status != GPUMEM_SUCCESS) return;
  ++model_.objects_made;
  Group made;
  made.handle = value_of(out.get());
  made.instance = owner.index;
  if (!instance(owner.index).devices.empty()) made.device = instance(owner.index).devices.front();
  if (!desc.is_null()) made.name = name.text();
  ++instance(owner.index).stats.groups;
  model_.groups.push_back(made);
}

void Player::step_group_destroy(Choice& choice) {
  Call call(*this, choice, "gpumem_group_destroy");
  const Picked chosen = pick_group(choice);
  call.text("%s", chosen.text.c_str());
  Expect expect = chosen.wrong;
  if (chosen.value == 0) expect = {GPUMEM_SUCCESS};
  if (expect.empty()) expect = {members_of(chosen.index, "").empty() ? GPUMEM_SUCCESS : GPUMEM_ERROR_BUSY};
  const gpumem_status status =
      call.check(expect, gpumem_group_destroy(as<gpumem_group>(chosen.value), call.error()));
  if (chosen.index < 0 || !chosen.wrong.empty() || status != GPUMEM_SUCCESS) return;
  --instance(group(chosen.index).instance).stats.groups;
  model_.end(group(chosen.index), Life::kDestroyed);
}

void Player::step_group_get_info(Choice& choice) {
  Call call(*this, choice, "gpumem_group_get_info");
  const Picked chosen = pick_group(choice);
  const uint8_t byte = choice.byte();
  const char* const tag = byte < kWrong ? kTags[byte % std::size(kTags)] : kTooLong.c_str();
  Answer<gpumem_group_info> info(choice);
  call.text("%s, %s, %s", chosen.text.c_str(), quoted(tag), info.text().c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(byte < kWrong && info.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect, gpumem_group_get_info(as<gpumem_group>(chosen.value), tag, info.pointer(), call.error()), info);
  if (status != GPUMEM_SUCCESS) return;
  gpumem_group_info sum = GPUMEM_GROUP_INFO_INIT;
  for (const int index : members_of(chosen.index, tag == nullptr ? "" : tag)) {
    const Buffer& member = buffer(index);
    ++sum.buffer_count;
    ++(member.failed ? sum.failed_count : member.asleep ? sum.asleep_count : sum.awake_count);
    sum.size += member.size;
    sum.stored_size += member.stored;
    sum.store_capacity += member.store_capacity();
  }
  require(info->buffer_count == sum.buffer_count && info->awake_count == sum.awake_count &&
              info->asleep_count == sum.asleep_count && info->failed_count == sum.failed_count &&
              info->size == sum.size && info->stored_size == sum.stored_size &&
              info->store_capacity == sum.store_capacity && group(chosen.index).name == info->name,
          "a group tells something else of its buffers");
}

void Player::step_group_sleep(Choice& choice) {
  Call call(*this, choice, "gpumem_group_sleep");
  const Picked chosen = pick_group(choice);
  const int owner = chosen.index < 0 ? -1 : group(chosen.index).instance;
  auto wish = pick_sleep(choice, owner, true);
  call.text("%s, &%s{%s}", chosen.text.c_str(), wish.desc.text().c_str(), wish.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(wish.good);
  Expect expect = verdict.done();
  std::vector<int> awake;
  if (expect.empty()) {
    disarm(owner);
    expect = {GPUMEM_SUCCESS};
    Expect refusals;
    bool certain = false;
    uint64_t reserved = 0;
    for (const int index : members_of(chosen.index, wish.tag)) {
      if (buffer(index).asleep) continue;
      awake.push_back(index);
      const std::optional<Expect> told = expect_sleep(buffer(index), wish, &reserved);
      if (!told) return;
      certain = certain || !may_succeed(*told);
      for (const gpumem_status status : *told)
        if (status != GPUMEM_SUCCESS) refusals.push_back(status);
    }
    if (certain) expect.clear();
    expect.insert(expect.end(), refusals.begin(), refusals.end());
  }
  const gpumem_status status = call.check(
      expect, gpumem_group_sleep(as<gpumem_group>(chosen.value), wish.desc.pointer(), call.error()));
  if (chosen.index < 0 || !chosen.wrong.empty()) return;
  ++model_.objects_made;
  for (const int index : awake) {
    if (status == GPUMEM_SUCCESS) {
      fell_asleep(buffer(index), wish.content);
    } else if (status != GPUMEM_ERROR_DEVICE_LOST) {
      follow_failure(buffer(index), wish.content);
    }
  }
  take_peaks(owner);
  for (const int index : awake) {
    check_buffer(index);
    check_content(index);
  }
}

void Player::step_group_wake(Choice& choice) {
  Call call(*this, choice, "gpumem_group_wake");
  const Picked chosen = pick_group(choice);
  const int owner = chosen.index < 0 ? -1 : group(chosen.index).instance;
  auto wish = pick_wake(choice, true);
  call.text("%s, &%s{%s}", chosen.text.c_str(), wish.desc.text().c_str(), wish.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(wish.good);
  Expect expect = verdict.done();
  std::vector<int> asleep;
  if (expect.empty()) {
    disarm(owner);
    if (!model_.on_host) open_gates();
    expect = {GPUMEM_SUCCESS};
    std::map<int, uint64_t> needed;  // by device
    for (const int index : members_of(chosen.index, wish.tag)) {
      const Buffer& member = buffer(index);
      if (!member.asleep) continue;
      asleep.push_back(index);
      if (any_user_lost(member)) expect = {GPUMEM_ERROR_DEVICE_LOST};
      if (member.on_device()) needed[member.device] += member.capacity();
    }
    for (const auto& [home, bytes] : needed) {
      if (!may_succeed(expect)) break;
      const Expect room = room_for(home, bytes);
      if (!may_succeed(room)) expect.clear();
      for (const gpumem_status status : room)
        if (status != GPUMEM_SUCCESS) expect.push_back(status);
    }
    expect = if_lost(expect, owner);
  }
  const gpumem_status status = call.check(
      expect, gpumem_group_wake(as<gpumem_group>(chosen.value), wish.desc.pointer(), call.error()));
  if (chosen.index < 0 || !chosen.wrong.empty()) return;
  ++model_.objects_made;
  for (const int index : asleep) {
    if (status == GPUMEM_SUCCESS) woke_up(buffer(index), wish.keep);
  }
  take_peaks(owner);
  for (const int index : asleep) {
    check_buffer(index);
    check_content(index);
  }
}

void Player::step_group_prepare(Choice& choice) {
  Call call(*this, choice, "gpumem_group_prepare");
  const Picked chosen = pick_group(choice);
  const int owner = chosen.index < 0 ? -1 : group(chosen.index).instance;
  auto wish = pick_prepare(choice, owner, true);
  call.text("%s, &%s{%s}", chosen.text.c_str(), wish.desc.text().c_str(), wish.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(wish.good);
  Expect expect = verdict.done();
  std::vector<int> awake;
  bool lost = false;
  if (expect.empty()) {
    disarm(owner);
    expect = {GPUMEM_SUCCESS};
    uint64_t reserved = 0;
    for (const int index : members_of(chosen.index, wish.tag)) {
      if (buffer(index).asleep) continue;
      awake.push_back(index);
      lost = lost || any_user_lost(buffer(index));
      if (over_budget(buffer(index), wish.content, &reserved)) expect = {GPUMEM_ERROR_LIMIT_EXCEEDED};
    }
    if (lost) expect = {GPUMEM_ERROR_DEVICE_LOST};
  }
  const gpumem_status status = call.check(
      expect, gpumem_group_prepare(as<gpumem_group>(chosen.value), wish.desc.pointer(), call.error()));
  if (chosen.index < 0 || !chosen.wrong.empty()) return;
  ++model_.objects_made;
  for (const int index : awake) {
    if (status == GPUMEM_SUCCESS) {
      make_store(buffer(index), wish.content);
    } else if (status == GPUMEM_ERROR_LIMIT_EXCEEDED) {
      forget_store(buffer(index));
    }
  }
  take_peaks(owner);
  for (const int index : awake)
    check_buffer(index);
}

// What a caller does with a buffer: fills it whole, now or in a stream, or looks at it.
void Player::step_buffer_use(Choice& choice) {
  const Picked chosen = pick_buffer(choice);
  const uint8_t way = choice.byte() % 4;
  if (chosen.index < 0 || !chosen.wrong.empty()) return;
  if (way == 3) return check_content(chosen.index);
  const bool async = way != 0;
  Buffer& used = buffer(chosen.index);
  // Work is that of its own device.
  std::vector<int> streams;
  for (size_t i = 0; i < model_.streams.size(); ++i) {
    const Stream& each = model_.streams[i];
    if (each.life == Life::kLive && each.device == used.device) streams.push_back(static_cast<int>(i));
  }
  if (used.size == 0 || model_.lost(used.device) || (async && streams.empty())) return;
  const int in = async ? streams[choice.byte() % streams.size()] : -1;
  const bool writes = used.access_of(used.device) == GPUMEM_ACCESS_READWRITE;
  if (!used.asleep && !writes) return;
  const int queue = async ? stream(in).line : -1;
  if (async && model_.captured(stream(in))) return;
  Call call(*this, choice, async ? "gpumem_fill_async" : "gpumem_fill");
  const uint8_t value = choice.byte();
  call.text("%s, %s, %llu, %u, 1", async ? ("stream" + std::to_string(in)).c_str() : "its instance",
            chosen.text.c_str(), wide(used.size), value);
  Expect expect;
  if (used.asleep) expect = if_lost({GPUMEM_ERROR_INVALID_STATE}, used.instance);
  if (expect.empty() && async) expect = model_.usable(stream(in));
  if (expect.empty()) {
    if (!wait_for_work(used, queue)) return;
    expect = with_faults({GPUMEM_SUCCESS}, used.instance);
  }
  const gpumem_status status =
      call.check(expect, async ? gpumem_fill_async(as<gpumem_stream>(stream(in).handle), used.base, used.size,
                                                   value, 1, call.error())
                               : gpumem_fill(as<gpumem_instance>(instance(used.instance).handle), used.base,
                                             used.size, value, 1, call.error()));
  if (status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY) used.filled = 0;
  if (status != GPUMEM_SUCCESS) return;
  used.filled = used.size;
  used.value = value;
  if (!async) return;
  std::erase_if(used.work,
                [&](const Buffer::Work& each) { return model_.is_observed(each.line, each.number); });
  used.work.push_back({queue, model_.enqueue(queue), used.size});
}

}  // namespace sequences
