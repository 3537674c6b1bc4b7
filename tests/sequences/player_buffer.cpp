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
                                        GPUMEM_CONTENT_DROP};

unsigned long long wide(uint64_t number) { return number; }

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Bytes, as units and a difference.
uint64_t pick_bytes(Choice& choice, uint64_t unit, const std::vector<uint64_t>& wrong) {
  const uint8_t byte = choice.byte();
  const uint64_t right[] = {2 * unit, 1, unit, 3 * unit + 5, 0, 2 * unit - 1, 4 * unit, 7 * unit};
  return byte < kWrong ? right[byte % std::size(right)] : wrong[(byte - kWrong) % wrong.size()];
}

bool keeps(gpumem_content content) {
  return content == GPUMEM_CONTENT_PINNED || content == GPUMEM_CONTENT_PAGEABLE;
}

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
  const auto take = [&](gpumem_kind_stats& before, const gpumem_kind_stats& told) {
    require(told.peak_count >= before.peak_count && told.peak_bytes >= before.peak_bytes &&
                told.total_count >= before.total_count && told.total_bytes >= before.total_bytes,
            "the peaks are below what was there");
    before.peak_count = told.peak_count;
    before.peak_bytes = told.peak_bytes;
    before.total_count = told.total_count;
    before.total_bytes = told.total_bytes;
  };
  take(known.reserved, now.reserved);
  take(known.pinned, now.pinned);
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

void Player::woke(Buffer& changed) {
  if (changed.content == GPUMEM_CONTENT_PINNED && changed.stored != 0) {
    Tally::remove(instance(changed.instance).stats.pinned, changed.stored);
    instance(changed.instance).pinned -= changed.stored;
    keep_freed(nullptr, changed.instance);  // at an address that nobody was told
  }
  changed.stored = 0;
  changed.asleep = false;
}

void Player::forget_buffer(Buffer& gone) {
  if (gone.asleep) {
    woke(gone);
  } else {
    took_back(gone, 0);
  }
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

// Lets all work end that a sleep without more details waits for; false if that cannot be, or not all is
// known.
bool Player::let_devices_finish(const Buffer& sleeping) {
  open_gates();
  for (const Line& each : model_.lines) {
    const bool waited_for =
        each.device == sleeping.device || sleeping.access_of(each.device) != GPUMEM_ACCESS_NONE;
    if (waited_for && (each.capturing || model_.lost(each.device))) return false;
  }
  return wait_for_work(sleeping, -1);
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
  const gpumem_buffer_state state = known.asleep ? GPUMEM_BUFFER_STATE_ASLEEP : GPUMEM_BUFFER_STATE_AWAKE;
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
  constexpr gpumem_buffer_flags kNoFlags[] = {4, 5, UINT64_C(1) << 63, UINT64_MAX};
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
  call.text("%s, &%s{size %llu, reserve %llu, flags 0x%llx, %s, accesses %s}, %s", home.text.c_str(),
            desc.text().c_str(), wide(size), wide(desc->reserve), wide(desc->flags), text_of(wanted).c_str(),
            defaults ? "NULL, 0" : rights.text.c_str(), out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(size < kTooLarge && fits && flags < kWrong && wanted.good && name.good() && desc.good() &&
                  out.good() && (defaults || rights.good));
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

void Player::step_buffer_sleep(Choice& choice) {
  Call call(*this, choice, "gpumem_buffer_sleep");
  const Picked chosen = pick_buffer(choice);
  constexpr gpumem_content kNoContents[] = {5, -1, INT32_MAX, INT32_MIN};
  gpumem_content content = choice.value(kContents, kNoContents);
  Sized<gpumem_sleep_desc> desc(choice, GPUMEM_SLEEP_DESC_INIT, Sized<gpumem_sleep_desc>::Null::kGood);
  desc->content = content;
  desc->flags = GPUMEM_SLEEP_IDLE;
  const bool idle = !desc.is_null();
  if (!idle) content = GPUMEM_CONTENT_PINNED;
  call.text("%s, &%s{content %d}", chosen.text.c_str(), desc.text().c_str(), content);
  const bool live = chosen.wrong.empty();
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(content >= 0 && content <= GPUMEM_CONTENT_DROP && desc.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = refused_change(buffer(chosen.index), false);
  if (expect.empty() && !idle && !let_devices_finish(buffer(chosen.index))) return;
  if (expect.empty()) {
    const Buffer& changed = buffer(chosen.index);
    const Instance& owner = instance(changed.instance);
    if (owner.armed_for_good) disarm(changed.instance);
    if (!model_.on_host) open_gates();
    const std::optional<Expect> taken = expect_taken(changed, 0);
    if (!taken) return;
    expect = *taken;
    const auto refuse = [&](const Expect& refusals) {
      if (!may_succeed(expect)) return;
      expect.erase(std::find(expect.begin(), expect.end(), GPUMEM_SUCCESS));
      expect.insert(expect.end(), refusals.begin(), refusals.end());
    };
    const bool stores = keeps(content) && changed.size != 0;
    const bool over_budget = owner.pin_budget != 0 && (owner.pinned > owner.pin_budget ||
                                                       changed.size > owner.pin_budget - owner.pinned);
    if (stores && content == GPUMEM_CONTENT_PINNED && over_budget) {
      refuse({GPUMEM_ERROR_LIMIT_EXCEEDED});
    } else if (stores && (changed.access_of(changed.device) & GPUMEM_ACCESS_READ) == 0) {
      // Another processor may be able to read it.
      const bool any = std::any_of(changed.access.begin(), changed.access.end(), [](const auto& entry) {
        return (entry.second & GPUMEM_ACCESS_READ) != 0;
      });
      refuse(any ? Expect{GPUMEM_ERROR_NO_ACCESS, GPUMEM_SUCCESS, GPUMEM_ERROR_DEVICE_LOST}
                 : if_lost({GPUMEM_ERROR_NO_ACCESS}, changed.instance));
    }
  }
  const gpumem_status status =
      call.check(expect, gpumem_buffer_sleep(as<gpumem_buffer>(chosen.value), desc.pointer(), call.error()));
  if (!live) return;
  ++model_.objects_made;
  Buffer& changed = buffer(chosen.index);
  if (status != GPUMEM_SUCCESS) {
    take_peaks(changed.instance);
  } else {
    changed.asleep = true;
    changed.content = content;
    changed.stored = keeps(content) ? changed.size : 0;
    if (content == GPUMEM_CONTENT_PINNED && changed.stored != 0) {
      Tally::add(instance(changed.instance).stats.pinned, changed.stored);
      instance(changed.instance).pinned += changed.stored;
    }
    if (changed.on_device()) device(changed.device).used -= changed.capacity();
  }
  check_buffer(chosen.index);
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
  Sized<gpumem_wake_desc> desc(choice, GPUMEM_WAKE_DESC_INIT, Sized<gpumem_wake_desc>::Null::kGood);
  call.text("%s, &%s", chosen.text.c_str(), desc.text().c_str());
  const bool live = chosen.wrong.empty();
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(desc.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = refused_change(buffer(chosen.index), true);
  if (expect.empty()) {
    const Buffer& changed = buffer(chosen.index);
    if (instance(changed.instance).armed_for_good) disarm(changed.instance);
    if (!model_.on_host) open_gates();
    expect = changed.on_device() ? room_for(changed.device, changed.capacity()) : Expect{GPUMEM_SUCCESS};
    if (instance(changed.instance).armed) expect.push_back(GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
    expect = if_lost(expect, changed.instance);
  }
  const gpumem_status status =
      call.check(expect, gpumem_buffer_wake(as<gpumem_buffer>(chosen.value), desc.pointer(), call.error()));
  if (!live) return;
  ++model_.objects_made;
  Buffer& changed = buffer(chosen.index);
  if (status == GPUMEM_SUCCESS) {
    if (changed.on_device()) device(changed.device).used += changed.capacity();
    woke(changed);
    ++changed.generation;
    if (!keeps(changed.content)) changed.filled = changed.content == GPUMEM_CONTENT_ZERO ? changed.size : 0;
    if (changed.content == GPUMEM_CONTENT_ZERO) changed.value = 0;
  }
  check_buffer(chosen.index);
  if (status == GPUMEM_SUCCESS) check_content(chosen.index);
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
