// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps of managed memory. The devices are concurrent: attaching restricts nothing, and the CPU waits for
// nobody.
#include "player.h"

namespace sequences {
namespace {

constexpr uint64_t kTooLarge = uint64_t{1} << 63;
constexpr uint64_t kRangesMost = 3;

constexpr gpumem_location kLocations[] = {GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_HOST,
                                          GPUMEM_LOCATION_HOST_NUMA, GPUMEM_LOCATION_HOST_NUMA_CURRENT};
constexpr gpumem_location kNoLocations[] = {GPUMEM_LOCATION_NONE, 5, -1, INT32_MIN};

bool takes_location(gpumem_advice advice) {
  return advice == GPUMEM_ADVICE_SET_PREFERRED_LOCATION || advice == GPUMEM_ADVICE_SET_ACCESSED_BY ||
         advice == GPUMEM_ADVICE_UNSET_ACCESSED_BY;
}

// Whether a range is right by its values.
bool is_range(const void* pointer, uint64_t size) {
  const bool wraps = UINTPTR_MAX - reinterpret_cast<uintptr_t>(pointer) < size;
  return pointer != nullptr && size != 0 && size < kTooLarge && !wraps;
}

}  // namespace

// ---- what all of them choose ----

// An address, mostly of managed memory; the offset is any.
Player::Address Player::pick_managed(Choice& choice, int owner) {
  const uint8_t byte = choice.byte();
  std::vector<size_t> live;
  for (size_t i = 0; i < model_.memories.size(); ++i) {
    const Memory& candidate = model_.memories[i];
    if (candidate.life == Life::kLive && candidate.instance == owner &&
        candidate.kind == GPUMEM_KIND_MANAGED) {
      live.push_back(i);
    }
  }
  if (byte >= 160 || live.empty()) return pick_address(choice, owner);
  const size_t index = live[byte % live.size()];
  const Memory& chosen = model_.memories[index];
  const uint64_t offset = byte % 3 == 0 ? 0 : choice.byte() * (chosen.size / 256);
  return {chosen.host + offset, chosen.size - offset,
          "memory" + std::to_string(index) + "+" + std::to_string(offset)};
}

Player::Target Player::pick_location(Choice& choice, int owner) {
  Target place;
  place.location = choice.value(kLocations, kNoLocations);
  const uint8_t byte = choice.byte();
  const bool live = owner >= 0 && instance(owner).life == Life::kLive;
  const size_t count = live ? instance(owner).devices.size() : 1;
  if (place.location == GPUMEM_LOCATION_DEVICE) {
    place.id = static_cast<int32_t>(byte % count);
    if (byte >= kWrong) place.id = byte % 2 == 0 ? -1 : static_cast<int32_t>(count) + byte % 3 * 1000;
    place.good = byte < kWrong;
    place.lost = live && place.good && model_.lost(instance(owner).devices[static_cast<size_t>(place.id)]);
  } else if (place.location == GPUMEM_LOCATION_HOST_NUMA) {
    if (byte >= kWrong) place.id = byte % 2 == 0 ? -1 : 100'000;
    place.good = byte < kWrong;
  } else {
    place.id = byte;  // ignored
    place.good =
        place.location == GPUMEM_LOCATION_HOST || place.location == GPUMEM_LOCATION_HOST_NUMA_CURRENT;
  }
  place.text = std::to_string(place.location) + ", " + std::to_string(place.id);
  return place;
}

// What stands against a range that is right by its values. Nothing if that cannot be told.
std::optional<Expect> Player::refused_range(int owner, const void* pointer, uint64_t size, Found* out) {
  const Found start = model_.find(owner, pointer, 1);
  *out = start;
  if (start.avoid) return std::nullopt;
  if (!start.wrong.empty()) return start.wrong;
  if (start.memory >= 0 && start.kind != GPUMEM_KIND_MANAGED) return Expect{GPUMEM_ERROR_WRONG_KIND};
  const Found whole = model_.find(owner, pointer, size);
  // What is mapped behind the arena is not known.
  if (whole.avoid || (start.memory < 0 && whole.wrong == Expect{GPUMEM_ERROR_NOT_FOUND})) return std::nullopt;
  if (!whole.wrong.empty()) return Expect{GPUMEM_ERROR_INVALID_ARGUMENT};
  *out = whole;
  return Expect{};
}

// The pages of a managed memory that have a byte in the range.
std::span<ManagedPage> Player::pages_of(const Found& found, uint64_t size) {
  Memory& owner = memory(found.memory);
  const uint64_t page = model_.arena.page();
  const uint64_t shift = reinterpret_cast<uintptr_t>(owner.host) % page;
  const uint64_t begin = found.offset + shift;
  const uint64_t end = begin + size;
  const uint64_t first = begin / page;
  const uint64_t last = (end + page - 1) / page;
  return std::span(owner.pages).subspan(first, last - first);
}

bool Player::prefers_host(const Found& found, uint64_t extent) {
  const std::span<const ManagedPage> pages = pages_of(found, extent);
  const gpumem_location first = pages.front().preferred.location;
  const bool same = std::all_of(pages.begin(), pages.end(),
                                [&](const ManagedPage& page) { return page.preferred.location == first; });
  return same && (first == GPUMEM_LOCATION_HOST || first == GPUMEM_LOCATION_HOST_NUMA);
}

namespace {

// Where something lies afterwards; the current node is another test's matter.
ManagedPage::At at(const gpumem_location location, int32_t id) {
  const bool has_id = location == GPUMEM_LOCATION_DEVICE || location == GPUMEM_LOCATION_HOST_NUMA;
  if (location == GPUMEM_LOCATION_HOST_NUMA_CURRENT) return {GPUMEM_LOCATION_HOST_NUMA, ManagedPage::kAnyId};
  return {location, has_id ? id : -1};
}

}  // namespace

// ---- attaching and advice ----

void Player::step_managed_attach(Choice& choice) {
  Call call(*this, choice, "gpumem_managed_attach");
  const Picked chosen = pick_stream(choice);
  const int owner = chosen.index < 0 ? 0 : stream(chosen.index).instance;
  const Address at = pick_managed(choice, owner);
  const uint8_t byte = choice.byte();
  const uint64_t sizes[] = {0, at.left, 0, at.left, at.left / 2, at.left + 1, 1, UINT64_MAX};
  const uint64_t size = sizes[byte < kWrong ? byte % 4 : 4 + byte % 4];
  constexpr gpumem_attach kWays[] = {GPUMEM_ATTACH_GLOBAL, GPUMEM_ATTACH_HOST, GPUMEM_ATTACH_SINGLE};
  constexpr gpumem_attach kNoWays[] = {0, 3, 5, 8, -1};
  const gpumem_attach how = choice.value(kWays, kNoWays);
  call.text("%s, %s, %llu, %d", chosen.text.c_str(), at.text.c_str(), static_cast<unsigned long long>(size),
            how);
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(at.pointer != nullptr && (size == 0 || is_range(at.pointer, size)) &&
                  std::count(kWays, std::end(kWays), how) == 1);
  if (chosen.wrong.empty() && how == GPUMEM_ATTACH_SINGLE) {
    const int queue = stream(chosen.index).line;
    verdict.require(std::find(default_lines_.begin(), default_lines_.end(), queue) == default_lines_.end());
  }
  Expect expect = verdict.done();
  Found found;
  if (expect.empty()) {
    const std::optional<Expect> refused =
        refused_range(owner, at.pointer, std::max<uint64_t>(size, 1), &found);
    if (!refused) return;
    expect = *refused;
    if (expect.empty() && found.memory >= 0) {
      const Memory& whole = memory(found.memory);
      if (found.offset != 0 || (size != 0 && size != whole.size)) expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
      if (expect.empty() && model_.lost(whole.device)) expect = {GPUMEM_ERROR_DEVICE_LOST};
    } else if (expect.empty() && size == 0) {
      expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    }
    if (expect.empty()) expect = model_.usable(stream(chosen.index));
    if (expect.empty() && found.memory < 0) expect = {GPUMEM_ERROR_UNSUPPORTED};
    if (expect.empty()) expect = with_faults({GPUMEM_SUCCESS}, owner);
  }
  const gpumem_status status = call.check(
      expect, gpumem_managed_attach(as<gpumem_stream>(chosen.value), at.pointer, size, how, call.error()));
  if (status == GPUMEM_SUCCESS) enqueue_hint(stream(chosen.index).line, found);
}

// An operation that changes no byte.
void Player::enqueue_hint(int queue, const Found& found) {
  const uint64_t number = model_.enqueue(queue);
  if (found.memory >= 0) memory(found.memory).uses.push_back({queue, number, false});
}

void Player::step_managed_advise(Choice& choice) {
  Call call(*this, choice, "gpumem_managed_advise");
  const Picked owner = pick_instance(choice);
  const Address where = pick_managed(choice, std::max(owner.index, 0));
  const uint64_t size = pick_length(choice, where.left);
  constexpr gpumem_advice kAdvice[] = {
      GPUMEM_ADVICE_SET_READ_MOSTLY,          GPUMEM_ADVICE_UNSET_READ_MOSTLY,
      GPUMEM_ADVICE_SET_PREFERRED_LOCATION,   GPUMEM_ADVICE_SET_ACCESSED_BY,
      GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION, GPUMEM_ADVICE_UNSET_ACCESSED_BY};
  constexpr gpumem_advice kNoAdvice[] = {0, 7, -1, 1000};
  const gpumem_advice advice = choice.value(kAdvice, kNoAdvice);
  Target place = pick_location(choice, owner.index);
  if (advice == GPUMEM_ADVICE_SET_ACCESSED_BY || advice == GPUMEM_ADVICE_UNSET_ACCESSED_BY) {
    place.good =
        place.good && (place.location == GPUMEM_LOCATION_DEVICE || place.location == GPUMEM_LOCATION_HOST);
  }
  const bool has_place = takes_location(advice);
  call.text("%s, %s, %llu, %d, %s", owner.text.c_str(), where.text.c_str(),
            static_cast<unsigned long long>(size), advice, place.text.c_str());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(is_range(where.pointer, size) && advice >= 1 && advice <= 6);
  // What devices and nodes there are is known of an open instance only.
  if (has_place && !place.good && owner.wrong.empty()) verdict.require(false);
  Expect expect = verdict.done();
  if (has_place && !place.good && !owner.wrong.empty()) expect.push_back(GPUMEM_ERROR_INVALID_ARGUMENT);
  Found found;
  if (expect.empty()) {
    const std::optional<Expect> refused = refused_range(owner.index, where.pointer, size, &found);
    if (!refused || (has_place && place.lost)) return;
    expect = *refused;
    if (expect.empty() && found.memory < 0) expect = {status_if_any_lost(owner.index)};
    if (expect.empty() && model_.lost(memory(found.memory).device)) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (expect.empty()) {
      expect = with_faults({GPUMEM_SUCCESS}, owner.index);
      // Some drivers accept a node and ignore it.
      const bool node =
          place.location == GPUMEM_LOCATION_HOST_NUMA || place.location == GPUMEM_LOCATION_HOST_NUMA_CURRENT;
      if (!model_.on_host && node) expect.push_back(GPUMEM_NO_EFFECT);
    }
  }
  const gpumem_status status =
      call.check(expect, gpumem_managed_advise(as<gpumem_instance>(owner.value), where.pointer, size, advice,
                                               place.location, place.id, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  const uint64_t bit = uint64_t{1} << (place.id & 63);
  const bool by_host = place.location == GPUMEM_LOCATION_HOST;
  for (ManagedPage& page : pages_of(found, size)) {
    switch (advice) {
      case GPUMEM_ADVICE_SET_READ_MOSTLY:
      case GPUMEM_ADVICE_UNSET_READ_MOSTLY:
        page.read_mostly = advice == GPUMEM_ADVICE_SET_READ_MOSTLY;
        break;
      case GPUMEM_ADVICE_SET_PREFERRED_LOCATION:
        page.preferred = at(place.location, place.id);
        break;
      case GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION:
        page.preferred = {};
        break;
      default:
        if (by_host) page.by_host = advice == GPUMEM_ADVICE_SET_ACCESSED_BY;
        if (!by_host)
          page.devices = advice == GPUMEM_ADVICE_SET_ACCESSED_BY ? page.devices | bit : page.devices & ~bit;
    }
  }
}

// What advice about ordinary memory is answered.
gpumem_status Player::status_if_any_lost(int owner) const {
  const Instance& asked = model_.instances[static_cast<size_t>(owner)];
  return model_.lost(asked.devices.front()) ? GPUMEM_ERROR_DEVICE_LOST : GPUMEM_ERROR_UNSUPPORTED;
}

// ---- prefetches and discards ----

void Player::step_managed_prefetch(Choice& choice) {
  Call call(*this, choice, "gpumem_managed_prefetch");
  const Picked chosen = pick_stream(choice);
  const int owner = chosen.index < 0 ? 0 : stream(chosen.index).instance;
  const Address where = pick_managed(choice, owner);
  const uint64_t size = pick_length(choice, where.left);
  const Target place = pick_location(choice, chosen.wrong.empty() ? owner : -1);
  call.text("%s, %s, %llu, %s", chosen.text.c_str(), where.text.c_str(),
            static_cast<unsigned long long>(size), place.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(is_range(where.pointer, size));
  if (chosen.wrong.empty()) verdict.require(place.good);
  Expect expect = verdict.done();
  if (!chosen.wrong.empty() && !place.good) expect.push_back(GPUMEM_ERROR_INVALID_ARGUMENT);
  Found found;
  if (expect.empty()) {
    const std::optional<Expect> refused = refused_range(owner, where.pointer, size, &found);
    if (!refused || place.lost) return;
    expect = *refused;
    if (expect.empty() && found.memory >= 0 && model_.lost(memory(found.memory).device))
      expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (expect.empty()) expect = model_.usable(stream(chosen.index));
    if (expect.empty() && found.memory < 0) expect = {GPUMEM_ERROR_UNSUPPORTED};
    if (expect.empty()) expect = with_faults({GPUMEM_SUCCESS}, owner);
  }
  const gpumem_status status =
      call.check(expect, gpumem_managed_prefetch(as<gpumem_stream>(chosen.value), where.pointer, size,
                                                 place.location, place.id, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  enqueue_hint(stream(chosen.index).line, found);
  for (ManagedPage& page : pages_of(found, size))
    page.prefetched = at(place.location, place.id);
}

void Player::do_managed_batch(Choice& choice, const char* name, bool discards, bool prefetches,
                              gpumem_status (*run)(gpumem_stream, const gpumem_managed_range*, uint64_t,
                                                   gpumem_error*)) {
  Call call(*this, choice, name);
  const Picked chosen = pick_stream(choice);
  const bool live = chosen.wrong.empty();
  const int owner = chosen.index < 0 ? 0 : stream(chosen.index).instance;
  const uint8_t how = choice.byte();
  constexpr uint64_t kCounts[] = {0, UINT64_MAX, UINT64_MAX / 2};
  const uint64_t count = how < kWrong ? 1 + how % kRangesMost : kCounts[how % std::size(kCounts)];
  // The struct_size of the first is the distance between them.
  using Ranges = Sized<gpumem_managed_range>;
  Ranges model(choice, GPUMEM_MANAGED_RANGE_INIT, count == 0 ? Ranges::Null::kGood : Ranges::Null::kBad);
  const size_t stride = model.is_newer() ? sizeof model.whole() : sizeof(gpumem_managed_range);
  Verdict verdict;
  verdict.handle(chosen.wrong);
  if (count > 0) {
    // So many cannot lie in memory.
    verdict.require(model.good() && count <= kRangesMost);
    if (live) {
      const int queue = stream(chosen.index).line;
      verdict.require(std::find(default_lines_.begin(), default_lines_.end(), queue) == default_lines_.end());
    }
  }
  struct Chosen {
    Address where;
    uint64_t size = 0;
    Target place;
    Found found;
  };
  std::vector<Chosen> entries;
  std::vector<uint8_t> array;
  bool unsure = false;
  std::string text;
  for (uint64_t i = 0; i < std::min(count, kRangesMost); ++i) {
    Chosen& entry = entries.emplace_back();
    entry.where = pick_managed(choice, owner);
    entry.size = pick_length(choice, entry.where.left);
    entry.place = pick_location(choice, live ? owner : -1);
    if (!prefetches && choice.byte() < kWrong) entry.place = {0, 0, true, false, "0, 0"};
    const bool placed = prefetches ? entry.place.good : entry.place.location == 0 && entry.place.id == 0;
    // Of a call that is wrong in itself, the first range is looked at.
    if (live || i == 0) {
      verdict.require(is_range(entry.where.pointer, entry.size));
      if (live || !prefetches) verdict.require(placed);
      unsure = unsure || (!live && !placed);
    }
    gpumem_managed_range range = model.get();
    range.pointer = entry.where.pointer;
    range.size = entry.size;
    range.location = entry.place.location;
    range.location_id = entry.place.id;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&range);
    array.insert(array.end(), bytes, bytes + sizeof range);
    const auto* const unknown = reinterpret_cast<const uint8_t*>(&model.whole().unknown);
    if (stride > sizeof range) array.insert(array.end(), unknown, unknown + (stride - sizeof range));
    text += " {" + entry.where.text + ", " + std::to_string(entry.size) + ", " + entry.place.text + "}";
  }
  Expect expect = verdict.done();
  if (unsure) expect.push_back(GPUMEM_ERROR_INVALID_ARGUMENT);
  const bool works = expect.empty();
  if (works && entries.empty()) {
    expect = {GPUMEM_SUCCESS};  // whatever state the stream is in
  } else if (works) {
    bool lost = false;
    bool pageable = false;
    for (Chosen& entry : entries) {
      std::optional<Expect> refused = refused_range(owner, entry.where.pointer, entry.size, &entry.found);
      if (!refused || entry.place.lost) return;
      if (refused->empty() && entry.found.memory < 0 && discards) refused = Expect{GPUMEM_ERROR_WRONG_KIND};
      if (expect.empty()) expect = *refused;
      if (!refused->empty()) continue;
      pageable = pageable || entry.found.memory < 0;
      lost = lost || (entry.found.memory >= 0 && model_.lost(memory(entry.found.memory).device));
    }
    const Expect unusable = model_.usable(stream(chosen.index));
    if (expect.empty() && lost) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (expect.empty()) expect = unusable;
    if (expect.empty() && pageable) expect = {GPUMEM_ERROR_UNSUPPORTED};
    if (expect.empty()) {
      const int queue = stream(chosen.index).line;
      for (const Chosen& entry : entries) {
        if (!discards) break;
        if (!order(queue, entry.found.region, entry.found.at, entry.found.at + entry.size, true)) return;
      }
      expect = with_faults({GPUMEM_SUCCESS}, owner);
    }
  }
  call.text("%s, %s, %llu%s", chosen.text.c_str(), model.text().c_str(),
            static_cast<unsigned long long>(count), text.c_str());
  const auto* const given =
      model.is_null() ? nullptr : reinterpret_cast<const gpumem_managed_range*>(array.data());
  const gpumem_status status =
      call.check(expect, run(as<gpumem_stream>(chosen.value), given, count, call.error()));
  // A step that failed may have come after ranges that were enqueued.
  const bool by_fault = works && status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY && !call.refused_error();
  if (status != GPUMEM_SUCCESS && !by_fault) return;
  const int queue = stream(chosen.index).line;
  for (const Chosen& entry : entries) {
    enqueue_hint(queue, entry.found);
    for (ManagedPage& page : pages_of(entry.found, entry.size)) {
      if (prefetches) page.prefetched = at(entry.place.location, entry.place.id);
      // Ranges have no order among themselves, so pages of two may go either way.
      page.known = page.known && !by_fault && entries.size() == 1;
    }
    if (!discards) continue;
    enqueue_access(queue, entry.found, entry.size, true);
    Region& written = region(entry.found.region);
    std::fill_n(written.known.begin() + static_cast<ptrdiff_t>(entry.found.at), entry.size, false);
  }
}

void Player::step_managed_prefetch_batch(Choice& choice) {
  do_managed_batch(choice, "gpumem_managed_prefetch_batch", false, true, gpumem_managed_prefetch_batch);
}
void Player::step_managed_discard_batch(Choice& choice) {
  do_managed_batch(choice, "gpumem_managed_discard_batch", true, false, gpumem_managed_discard_batch);
}
void Player::step_managed_discard_and_prefetch_batch(Choice& choice) {
  do_managed_batch(choice, "gpumem_managed_discard_and_prefetch_batch", true, true,
                   gpumem_managed_discard_and_prefetch_batch);
}

// ---- queries and the CPU's accesses ----

void Player::step_managed_get_info(Choice& choice) {
  Call call(*this, choice, "gpumem_managed_get_info");
  const Picked owner = pick_instance(choice);
  const Address where = pick_managed(choice, std::max(owner.index, 0));
  const uint64_t size = pick_length(choice, where.left);
  Answer<gpumem_managed_info> info(choice);
  call.text("%s, %s, %llu, %s", owner.text.c_str(), where.text.c_str(), static_cast<unsigned long long>(size),
            info.text().c_str());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(is_range(where.pointer, size) && info.good());
  Expect expect = verdict.done();
  Found found;
  if (expect.empty()) {
    const std::optional<Expect> refused = refused_range(owner.index, where.pointer, size, &found);
    if (!refused) return;
    expect = *refused;
    // Ordinary memory is of the wrong kind however far the range goes.
    if (found.memory < 0 && found.kind == GPUMEM_KIND_PAGEABLE) expect = {GPUMEM_ERROR_WRONG_KIND};
    if (expect.empty() && model_.lost(memory(found.memory).device)) expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (expect.empty()) expect = with_faults({GPUMEM_SUCCESS}, owner.index);
  }
  const gpumem_status status =
      call.check(expect,
                 gpumem_managed_get_info(as<gpumem_instance>(owner.value), where.pointer, size,
                                         info.pointer(), call.error()),
                 info);
  if (status != GPUMEM_SUCCESS) return;
  const std::span<const ManagedPage> pages = pages_of(found, size);
  if (std::any_of(pages.begin(), pages.end(), [](const ManagedPage& page) { return !page.known; })) return;
  ManagedPage all = pages.front();
  for (const ManagedPage& page : pages) {
    all.read_mostly = all.read_mostly && page.read_mostly;
    all.by_host = all.by_host && page.by_host;
    all.devices &= page.devices;
    if (page.preferred != all.preferred) all.preferred = {};
    if (page.prefetched != all.prefetched) all.prefetched = {};
  }
  const auto same = [](const ManagedPage::At& known, gpumem_location location, int32_t id) {
    if (known.id == ManagedPage::kAnyId) return location == known.location && id >= 0;
    return location == known.location && id == known.id;
  };
  // The current node may be the one that other pages name.
  const auto has_any = [&](const auto member) {
    return std::any_of(pages.begin(), pages.end(),
                       [&](const ManagedPage& page) { return (page.*member).id == ManagedPage::kAnyId; }) &&
           pages.size() > 1;
  };
  require(info->read_mostly == (all.read_mostly ? 1u : 0u) &&
              info->accessed_by_host == (all.by_host ? 1u : 0u) && info->accessed_by_devices == all.devices,
          "a range is read-mostly, or accessed, otherwise than advised");
  require(has_any(&ManagedPage::preferred) ||
              same(all.preferred, info->preferred_location, info->preferred_location_id),
          "a range is preferred elsewhere: " + std::to_string(info->preferred_location));
  require(has_any(&ManagedPage::prefetched) ||
              same(all.prefetched, info->last_prefetch_location, info->last_prefetch_location_id),
          "a range was prefetched elsewhere: " + std::to_string(info->last_prefetch_location));
}

void Player::do_host_access(Choice& choice, const char* name,
                            gpumem_status (*run)(gpumem_instance, const void*, gpumem_error*)) {
  Call call(*this, choice, name);
  const Picked owner = pick_instance(choice);
  const Address where = pick_managed(choice, std::max(owner.index, 0));
  call.text("%s, %s", owner.text.c_str(), where.text.c_str());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(where.pointer != nullptr);
  Expect expect = verdict.done();
  if (expect.empty()) {
    const Found found = model_.find(owner.index, where.pointer, 1);
    if (found.avoid) return;
    expect = {GPUMEM_SUCCESS};
    if (found.memory < 0 || found.kind == GPUMEM_KIND_FOREIGN) {
      expect = {GPUMEM_ERROR_NOT_FOUND};
    } else if (found.kind != GPUMEM_KIND_MANAGED) {
      expect = {GPUMEM_ERROR_WRONG_KIND};
    }
  }
  call.check(expect, run(as<gpumem_instance>(owner.value), where.pointer, call.error()));
}

void Player::step_managed_begin_host_access(Choice& choice) {
  do_host_access(choice, "gpumem_managed_begin_host_access", gpumem_managed_begin_host_access);
}
void Player::step_managed_end_host_access(Choice& choice) {
  do_host_access(choice, "gpumem_managed_end_host_access", gpumem_managed_end_host_access);
}

}  // namespace sequences
