// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps on physical memory and ranges. The model knows what is mapped where and who may use it; what copies
// do with ranges is the matter of the conformance tests, so no step enqueues work on them.
#include <fcntl.h>
#include <unistd.h>

#include "player.h"

namespace sequences {
namespace {

constexpr uint64_t kTooLarge = uint64_t{1} << 63;
constexpr uint64_t kRangeUnits = 6;  // of the largest range

constexpr gpumem_location kLocations[] = {GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_NONE, GPUMEM_LOCATION_HOST,
                                          GPUMEM_LOCATION_HOST_NUMA};
constexpr gpumem_location kNoLocations[] = {GPUMEM_LOCATION_HOST_NUMA_CURRENT, 5, -1, INT32_MAX};

unsigned long long wide(uint64_t number) { return number; }

}  // namespace

// ---- choosing ----

// Properties of physical memory, right by their values or not.
Player::Properties Player::pick_properties(Choice& choice, uint64_t unit, bool with_size) {
  Properties wanted;
  gpumem_physical_desc& desc = wanted.desc;
  desc = GPUMEM_PHYSICAL_DESC_INIT;
  desc.location = choice.value(kLocations, kNoLocations);
  constexpr gpumem_handle_types kTypes[] = {0, 0, GPUMEM_HANDLE_TYPE_POSIX_FD};
  constexpr gpumem_handle_types kNoTypes[] = {2, 4, UINT64_C(1) << 63, UINT64_MAX};
  desc.handle_types = choice.value(kTypes, kNoTypes);
  if (desc.location == GPUMEM_LOCATION_HOST && desc.handle_types == GPUMEM_HANDLE_TYPE_POSIX_FD)
    desc.handle_types = 0;
  if (!model_.shares_descriptors && desc.handle_types == GPUMEM_HANDLE_TYPE_POSIX_FD) desc.handle_types = 0;
  constexpr gpumem_physical_flags kNoFlags[] = {8, UINT64_C(1) << 63};
  const uint8_t flags = choice.byte();
  if (flags >= kWrong) (flags % 2 == 0 ? desc.require : desc.prefer) = kNoFlags[flags / 2 % 2];
  const uint8_t node = choice.byte();
  if (node >= kWrong && desc.location == GPUMEM_LOCATION_HOST_NUMA)
    desc.location_id = node % 2 == 0 ? -1 : 1023;
  const uint8_t size = choice.byte();
  const uint64_t no_sizes[] = {0, 1, unit - 1, unit + 1, unit / 2, kTooLarge, UINT64_MAX};
  desc.size = size < kWrong ? (1 + size % 2) * unit : no_sizes[size % std::size(no_sizes)];
  const bool host = desc.location == GPUMEM_LOCATION_HOST;
  const auto known = [&](const gpumem_location& each) { return each == desc.location; };
  wanted.good = std::any_of(std::begin(kLocations), std::end(kLocations), known) &&
                (desc.handle_types & ~gpumem_handle_types{GPUMEM_HANDLE_TYPE_POSIX_FD}) == 0 &&
                !(host && desc.handle_types != 0) && desc.require == 0 && desc.prefer == 0 &&
                desc.location_id == 0 && (!with_size || size < kWrong);
  wanted.on_device = desc.location == GPUMEM_LOCATION_DEVICE || desc.location == GPUMEM_LOCATION_NONE;
  return wanted;
}

std::string Player::text_of(const Properties& wanted) {
  char text[200];
  std::snprintf(text, sizeof text,
                "{location %d %d, size %llu, handle types 0x%llx, require 0x%llx, prefer 0x%llx}",
                wanted.desc.location, wanted.desc.location_id, wide(wanted.desc.size),
                wide(wanted.desc.handle_types), wide(wanted.desc.require), wide(wanted.desc.prefer));
  return text;
}

// An offset in a range; mostly where a mapping begins or may begin.
uint64_t Player::pick_offset(Choice& choice, const Picked& chosen) {
  const uint8_t byte = choice.byte();
  const uint64_t unit = chosen.index < 0 ? Model::kHostVmmUnit : unit_of(range(chosen.index).instance);
  const uint64_t wrong[] = {1, unit / 2, unit + 1, kRangeUnits * unit, kTooLarge, UINT64_MAX - unit + 1};
  return byte < kWrong ? byte % kRangeUnits * unit : wrong[byte % std::size(wrong)];
}

// The bytes of an operation on mappings: mostly one or several whole ones.
uint64_t Player::pick_extent(Choice& choice, const Picked& chosen, uint64_t offset) {
  const uint8_t byte = choice.byte();
  const uint64_t unit = chosen.index < 0 ? Model::kHostVmmUnit : unit_of(range(chosen.index).instance);
  const uint64_t wrong[] = {0, 1, unit / 2, unit + 1, kTooLarge, UINT64_MAX, UINT64_MAX - unit + 1};
  if (byte >= kWrong) return wrong[byte % std::size(wrong)];
  if (chosen.index < 0 || byte % 4 == 3) return (1 + byte % kRangeUnits) * unit;
  uint64_t end = offset;
  const auto& mappings = range(chosen.index).mappings;
  for (int count = 0; count <= byte % 3; ++count) {
    const auto next = mappings.find(end);
    if (next == mappings.end()) break;
    end += block(next->second.block).size;
  }
  return end == offset ? unit : end - offset;
}

// What stands against an operation on mappings, and those that it is about.
Expect Player::expect_whole(const Range& of, uint64_t offset, uint64_t size, std::vector<uint64_t>& begins) {
  if (size == 0 || offset > of.size || size > of.size - offset) return {GPUMEM_ERROR_INVALID_ARGUMENT};
  bool part = false;
  bool hole = false;
  uint64_t at = offset;
  for (const auto& [begin, mapping] : of.mappings) {
    const uint64_t end = begin + block(mapping.block).size;
    if (end <= offset || begin >= offset + size) continue;
    hole = hole || begin > at;
    part = part || begin < offset || end > offset + size;
    at = std::max(at, end);
    begins.push_back(begin);
  }
  hole = hole || at < offset + size;
  if (part && hole) return {GPUMEM_ERROR_INVALID_ARGUMENT, GPUMEM_ERROR_INVALID_STATE};
  if (part) return {GPUMEM_ERROR_INVALID_ARGUMENT};
  // An offset or size that no mapping can have may be refused for that.
  const uint64_t unit = unit_of(of.instance);
  if (hole && (offset % unit != 0 || size % unit != 0))
    return {GPUMEM_ERROR_INVALID_STATE, GPUMEM_ERROR_INVALID_ARGUMENT};
  if (hole) return {GPUMEM_ERROR_INVALID_STATE};
  return {};
}

bool Player::any_lost(int owner) const {
  const auto& devices = model_.instances[static_cast<size_t>(owner)].devices;
  return std::any_of(devices.begin(), devices.end(), [&](int each) { return model_.lost(each); });
}

// What a call that needs the driver answers, given what it answers otherwise.
Expect Player::if_lost(Expect expect, int owner) const {
  if (any_lost(owner)) expect.push_back(GPUMEM_ERROR_DEVICE_LOST);
  return expect;
}

// What making so many bytes of memory on a device is answered.
Expect Player::room_for(int home, uint64_t bytes) const {
  const Device& owner = model_.devices[static_cast<size_t>(home)];
  if (!owner.exact) return {GPUMEM_SUCCESS, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY};
  uint64_t used = owner.used;
  // The driver's devices are shared by all instances.
  for (const Device& other : model_.devices) {
    const bool same = other.life == Life::kLive && other.ordinal == owner.ordinal && &other != &owner;
    if (!model_.on_host && same) used += other.used;
  }
  const bool fits = bytes <= owner.total - std::min(owner.total, used);
  return {fits ? GPUMEM_SUCCESS : GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY};
}

void Player::drop_reference(int index) {
  Block& ending = block(index);
  if (--ending.references == 0 && ending.on_device) device(ending.device).used -= ending.size;
}

// Takes a new handle into the model, after a look at what it says of itself. Index -1: of new memory.
void Player::adopt_physical(int home, const Properties& wanted, uint64_t handle, int index, bool imported,
                            const std::string& name) {
  gpumem_physical_info info = GPUMEM_PHYSICAL_INFO_INIT;
  require(gpumem_physical_get_info(as<gpumem_physical>(handle), &info, nullptr) == GPUMEM_SUCCESS,
          "new physical memory tells nothing");
  const gpumem_location location =
      wanted.desc.location == GPUMEM_LOCATION_NONE ? GPUMEM_LOCATION_DEVICE : wanted.desc.location;
  require(info.location == location && info.size == wanted.desc.size &&
              (imported || info.handle_types == wanted.desc.handle_types) && info.granted_flags == 0 &&
              info.granularity == unit_of(device(home).instance) && (info.imported != 0) == imported &&
              name == info.name,
          "new physical memory has other properties");
  const int32_t id = location == GPUMEM_LOCATION_DEVICE ? static_cast<int32_t>(device(home).ordinal)
                     : location == GPUMEM_LOCATION_HOST ? -1
                                                        : 0;
  require(info.location_id == id && info.device == as<gpumem_device>(device(home).handle),
          "new physical memory lies elsewhere");
  if (index < 0) {
    Block made;
    made.device = home;
    made.on_device = location == GPUMEM_LOCATION_DEVICE;
    made.location = location;
    made.location_id = id;
    made.size = info.size;
    made.id = info.block_id;
    if (made.on_device) device(home).used += made.size;
    // Whether memory that is here already is charged once more is not laid down.
    if (imported) device(home).exact = false;
    index = static_cast<int>(model_.blocks.size());
    model_.blocks.push_back(made);
  }
  require(info.block_id == block(index).id, "the handle is of another block");
  ++block(index).references;
  Physical made;
  made.handle = handle;
  made.instance = device(home).instance;
  made.device = home;
  made.block = index;
  made.imported = imported;
  made.types = info.handle_types;
  made.name = name;
  ++model_.objects_made;
  ++instance(made.instance).stats.physicals;
  model_.physicals.push_back(made);
}

// ---- physical memory ----

void Player::step_physical_get_granularity(Choice& choice) {
  Call call(*this, choice, "gpumem_physical_get_granularity");
  const Picked home = pick_device(choice);
  const uint64_t unit = home.index < 0 ? Model::kHostVmmUnit : unit_of(device(home.index).instance);
  const Properties wanted = pick_properties(choice, unit, false);
  Sized<gpumem_physical_desc> desc(choice, wanted.desc, Sized<gpumem_physical_desc>::Null::kBad);
  Out<uint64_t> minimum(choice, Out<uint64_t>::Null::kGood);
  Out<uint64_t> recommended(choice, Out<uint64_t>::Null::kGood);
  call.text("%s, &%s%s, %s, %s", home.text.c_str(), desc.text().c_str(), text_of(wanted).c_str(),
            minimum.text(), recommended.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(wanted.good && desc.good());
  Expect expect = verdict.done();
  if (expect.empty() && model_.lost(home.index)) expect = {GPUMEM_ERROR_DEVICE_LOST};
  if (expect.empty()) expect = with_faults({GPUMEM_SUCCESS}, device(home.index).instance);
  const gpumem_status status =
      call.check(expect,
                 gpumem_physical_get_granularity(as<gpumem_device>(home.value), desc.pointer(),
                                                 minimum.pointer(), recommended.pointer(), call.error()),
                 minimum, recommended);
  if (status != GPUMEM_SUCCESS) return;
  require(minimum.is_null() || minimum.get() == unit, "the granularity is another");
  require(recommended.is_null() || recommended.get() % unit == 0,
          "the recommended granularity is no multiple of the smallest");
}

void Player::step_physical_create(Choice& choice) {
  Call call(*this, choice, "gpumem_physical_create");
  const Picked home = pick_device(choice);
  const uint64_t unit = home.index < 0 ? Model::kHostVmmUnit : unit_of(device(home.index).instance);
  Properties wanted = pick_properties(choice, unit, true);
  const Name name(choice);
  wanted.desc.name = name.pointer();
  Sized<gpumem_physical_desc> desc(choice, wanted.desc, Sized<gpumem_physical_desc>::Null::kBad);
  Out<gpumem_physical> out(choice);
  call.text("%s, &%s%s, %s", home.text.c_str(), desc.text().c_str(), text_of(wanted).c_str(), out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(wanted.good && name.good() && desc.good() && out.good());
  Expect expect = verdict.done();
  // The unit of a size is not known of a lost device.
  const bool has_size = wanted.desc.size != 0 && wanted.desc.size < kTooLarge;
  if (!expect.empty() && home.wrong.empty() && has_size && model_.lost(home.index))
    expect.push_back(GPUMEM_ERROR_DEVICE_LOST);
  if (expect.empty() && model_.lost(home.index)) expect = {GPUMEM_ERROR_DEVICE_LOST};
  if (expect.empty()) {
    expect = wanted.on_device ? room_for(home.index, wanted.desc.size) : Expect{GPUMEM_SUCCESS};
    if (!model_.on_host) open_gates();
    expect = with_faults(expect, device(home.index).instance);
  }
  const gpumem_status status = call.check(
      expect,
      gpumem_physical_create(as<gpumem_device>(home.value), desc.pointer(), out.pointer(), call.error()),
      out);
  if (status == GPUMEM_SUCCESS)
    adopt_physical(home.index, wanted, value_of(out.get()), -1, false, name.text());
}

void Player::step_physical_release(Choice& choice) {
  Call call(*this, choice, "gpumem_physical_release");
  const Picked chosen = pick_physical(choice);
  Expect expect = chosen.wrong;
  if (chosen.value == 0 || expect.empty()) expect = {GPUMEM_SUCCESS};
  call.text("%s", chosen.text.c_str());
  const gpumem_status status =
      call.check(expect, gpumem_physical_release(as<gpumem_physical>(chosen.value), call.error()));
  if (status != GPUMEM_SUCCESS || chosen.index < 0) return;
  Physical& ended = physical(chosen.index);
  model_.end(ended, Life::kDestroyed);
  --instance(ended.instance).stats.physicals;
  drop_reference(ended.block);
}

void Player::step_physical_get_info(Choice& choice) {
  const auto told =
      ask_info(choice, "gpumem_physical_get_info", &Player::pick_physical, gpumem_physical_get_info);
  if (!told) return;
  const auto& [index, info] = *told;
  const Physical& known = physical(index);
  const Block& behind = block(known.block);
  require(info.block_id == behind.id && info.size == behind.size && info.location == behind.location &&
              info.location_id == behind.location_id && info.handle_types == known.types &&
              info.granted_flags == 0 && (info.imported != 0) == known.imported && known.name == info.name &&
              info.device_ordinal == device(known.device).ordinal,
          "physical memory tells something else than before");
}

void Player::step_physical_retain(Choice& choice) {
  Call call(*this, choice, "gpumem_physical_retain");
  const Picked owner = pick_instance(choice);
  const RangePlace at = pick_range_address(choice, std::max(owner.index, 0));
  Out<gpumem_physical> out(choice);
  call.text("%s, %s, %s", owner.text.c_str(), at.text.c_str(), out.text());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(at.pointer != nullptr && out.good());
  Expect expect = verdict.done();
  if (expect.empty() && at.avoid) return;
  if (expect.empty()) expect = at.wrong;
  if (expect == Expect{GPUMEM_ERROR_INVALID_STATE}) expect = if_lost(expect, owner.index);
  const bool mapped = expect.empty();
  if (mapped) {
    expect = with_faults({GPUMEM_SUCCESS}, owner.index);
    const Block& behind = block(at.mapping->block);
    expect = model_.lost(behind.device) ? Expect{GPUMEM_SUCCESS, GPUMEM_ERROR_DEVICE_LOST}
                                        : if_lost(expect, owner.index);
  }
  const gpumem_status status = call.check(
      expect,
      gpumem_physical_retain(as<gpumem_instance>(owner.value), at.pointer, out.pointer(), call.error()), out);
  if (status != GPUMEM_SUCCESS) return;
  const int index = at.mapping->block;
  const Block& behind = block(index);
  Properties same;
  same.desc = GPUMEM_PHYSICAL_DESC_INIT;
  same.desc.location = behind.location;
  same.desc.size = behind.size;
  const Physical& mapped_one = physical(at.mapping->physical);
  same.desc.handle_types = mapped_one.types;
  adopt_physical(behind.device, same, value_of(out.get()), index, mapped_one.imported, "");
}

void Player::step_physical_export_fd(Choice& choice) {
  Call call(*this, choice, "gpumem_physical_export_fd");
  const Picked chosen = pick_physical(choice);
  Out<int32_t> out(choice);
  call.text("%s, %s", chosen.text.c_str(), out.text());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(out.good());
  Expect expect = verdict.done();
  if (expect.empty()) {
    const Physical& exported = physical(chosen.index);
    expect = exported.types != 0 ? Expect{GPUMEM_SUCCESS} : Expect{GPUMEM_ERROR_UNSUPPORTED};
    expect = if_lost(with_faults(expect, exported.instance), exported.instance);
  }
  const gpumem_status status = call.check(
      expect, gpumem_physical_export_fd(as<gpumem_physical>(chosen.value), out.pointer(), call.error()), out);
  if (status != GPUMEM_SUCCESS) return;
  require(fcntl(out.get(), F_GETFD) == FD_CLOEXEC, "the descriptor is none, or not closed on exec");
  close(out.get());
}

// No machine of the tests has a fabric, so no handle type of it is ever granted.
void Player::step_physical_export_fabric(Choice& choice) {
  Call call(*this, choice, "gpumem_physical_export_fabric");
  const Picked chosen = pick_physical(choice);
  Out<gpumem_fabric_handle> out(choice);
  call.text("%s, %s", chosen.text.c_str(), out.text());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(out.good());
  Expect expect = verdict.done();
  if (expect.empty()) expect = if_lost({GPUMEM_ERROR_UNSUPPORTED}, physical(chosen.index).instance);
  call.check(expect,
             gpumem_physical_export_fabric(as<gpumem_physical>(chosen.value), out.pointer(), call.error()),
             out);
}

void Player::step_physical_import_fabric(Choice& choice) {
  Call call(*this, choice, "gpumem_physical_import_fabric");
  const Picked home = pick_device(choice);
  gpumem_physical_desc wanted = GPUMEM_PHYSICAL_DESC_INIT;
  wanted.size = home.index < 0 ? Model::kHostVmmUnit : unit_of(device(home.index).instance);
  wanted.handle_types = GPUMEM_HANDLE_TYPE_FABRIC;
  const uint8_t spoiled = choice.byte();
  if (spoiled >= kWrong) (spoiled % 2 == 0 ? wanted.size : wanted.require) = 1;
  Sized<gpumem_physical_desc> desc(choice, wanted, Sized<gpumem_physical_desc>::Null::kBad);
  const gpumem_fabric_handle handle{};
  Out<gpumem_physical> out(choice);
  call.text("%s, &%s, &{}, %s", home.text.c_str(), desc.text().c_str(), out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(spoiled < kWrong && desc.good() && out.good());
  Expect expect = verdict.done();
  const bool lost = home.wrong.empty() && model_.lost(home.index);
  // A driver may know the handle type, and not permit it to this process.
  if (expect.empty()) expect = {GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_PERMISSION_DENIED};
  if (lost) expect.push_back(GPUMEM_ERROR_DEVICE_LOST);
  call.check(expect,
             gpumem_physical_import_fabric(as<gpumem_device>(home.value), desc.pointer(), &handle,
                                           out.pointer(), call.error()),
             out);
}

void Player::step_physical_import_fd(Choice& choice) {
  Call call(*this, choice, "gpumem_physical_import_fd");
  const Picked home = pick_device(choice);
  const uint8_t which = choice.byte();
  const uint8_t spoiled = choice.byte();
  // What another process would send: the descriptor of a block of the same device.
  int exported = -1;
  int32_t file = -1;
  if (home.wrong.empty() && which < kWrong && !instance(device(home.index).instance).armed) {
    for (size_t i = 0; i < model_.physicals.size(); ++i) {
      const Physical& each = model_.physicals[i];
      if (each.life != Life::kLive || each.device != home.index || each.imported) continue;
      if (each.types != 0) exported = static_cast<int>(i);
    }
    if (exported >= 0 && gpumem_physical_export_fd(as<gpumem_physical>(physical(exported).handle), &file,
                                                   nullptr) != GPUMEM_SUCCESS) {
      require(any_lost(device(home.index).instance), "a block cannot be exported");
      exported = -1;
    }
  }
  Properties wanted;
  wanted.desc = GPUMEM_PHYSICAL_DESC_INIT;
  wanted.desc.size = home.index < 0 ? Model::kHostVmmUnit : unit_of(device(home.index).instance);
  wanted.desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  if (exported >= 0) {
    wanted.desc.location = block(physical(exported).block).location;
    wanted.desc.size = block(physical(exported).block).size;
  }
  wanted.good = spoiled < kWrong;
  if (!wanted.good) {
    if (spoiled % 4 == 0) wanted.desc.size += 1;
    if (spoiled % 4 == 1) wanted.desc.size = 0;
    if (spoiled % 4 == 2) wanted.desc.location = 6;
    if (spoiled % 4 == 3) wanted.desc.prefer = GPUMEM_PHYSICAL_COMPRESSIBLE;
  }
  Sized<gpumem_physical_desc> desc(choice, wanted.desc, Sized<gpumem_physical_desc>::Null::kBad);
  Out<gpumem_physical> out(choice);
  call.text("%s, &%s%s, %s, %s", home.text.c_str(), desc.text().c_str(), text_of(wanted).c_str(),
            exported >= 0 ? ("descriptor of physical" + std::to_string(exported)).c_str() : "-1", out.text());
  Verdict verdict;
  verdict.handle(home.wrong);
  verdict.require(wanted.good && desc.good() && out.good());
  Expect expect = verdict.done();
  if (expect.empty() && model_.lost(home.index)) {
    expect = {GPUMEM_ERROR_DEVICE_LOST};
    if (file < 0) expect.push_back(GPUMEM_ERROR_INVALID_ARGUMENT);
  } else if (!expect.empty() && home.wrong.empty() && model_.lost(home.index)) {
    expect.push_back(GPUMEM_ERROR_DEVICE_LOST);
  }
  if (expect.empty() && file < 0) {
    expect = with_faults({GPUMEM_ERROR_INVALID_ARGUMENT}, device(home.index).instance);
    if (!model_.shares_descriptors)
      expect = {GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_SYMBOL_MISSING, GPUMEM_ERROR_INVALID_ARGUMENT};
  }
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status =
      call.check(expect,
                 gpumem_physical_import_fd(as<gpumem_device>(home.value), desc.pointer(), file, out.pointer(),
                                           call.error()),
                 out);
  if (file >= 0) close(file);
  if (status != GPUMEM_SUCCESS) return;
  // The backend may know the block again, or not.
  gpumem_physical_info info = GPUMEM_PHYSICAL_INFO_INIT;
  require(gpumem_physical_get_info(out.get(), &info, nullptr) == GPUMEM_SUCCESS, "an import is no handle");
  const int same = info.block_id == block(physical(exported).block).id ? physical(exported).block : -1;
  adopt_physical(home.index, wanted, value_of(out.get()), same, true, "");
  device(home.index).exact = false;
}

// ---- ranges ----

void Player::step_range_reserve(Choice& choice) {
  Call call(*this, choice, "gpumem_range_reserve");
  const Picked owner = pick_instance(choice);
  const uint64_t unit = owner.index < 0 ? Model::kHostVmmUnit : unit_of(owner.index);
  const uint8_t size = choice.byte();
  const uint64_t no_sizes[] = {0, 1, unit / 2, unit + 1, kTooLarge, UINT64_MAX, UINT64_MAX - unit + 1};
  constexpr uint64_t kAlignments[] = {0, 1, 4096, 1 << 21, 1 << 24};
  constexpr uint64_t kNoAlignments[] = {3, 4097, UINT64_MAX, (1 << 21) + 1};
  Sized<gpumem_range_desc> desc(choice, GPUMEM_RANGE_DESC_INIT, Sized<gpumem_range_desc>::Null::kBad);
  desc->size = size < kWrong ? (kRangeUnits - size % 3) * unit : no_sizes[size % std::size(no_sizes)];
  desc->alignment = choice.value(kAlignments, kNoAlignments);
  const uint64_t alignment = desc->alignment;
  const bool aligned_well = (alignment & (alignment - 1)) == 0;
  // A hint, and sometimes more than that, at a range that is there already.
  const uint8_t where = choice.byte();
  const auto taken = std::find_if(model_.ranges.begin(), model_.ranges.end(), [&](const Range& each) {
    return each.life == Life::kLive && each.instance == owner.index;
  });
  bool good = size < kWrong && aligned_well;
  bool occupied = false;
  if (where >= kWrong) {
    const uint8_t way = where % 4;
    if (way == 0) desc->flags = GPUMEM_RANGE_FIXED;  // without an address
    if (way == 1) desc->flags = 2;
    if (way == 2) desc->flags = UINT64_MAX;
    if (way == 3) desc->address = as<void*>(unit * 1000 + 1);
    good = false;
  } else if (where % 4 == 3 && taken != model_.ranges.end() && aligned_well &&
             value_of(taken->base) % std::max(alignment, unit) == 0) {
    desc->address = taken->base;
    if (where % 8 == 7) desc->flags = GPUMEM_RANGE_FIXED;
    occupied = where % 8 == 7;
  }
  const Name name(choice);
  desc->name = name.pointer();
  Out<gpumem_range> out(choice);
  call.text("%s, &%s{size %llu, alignment %llu, at %p, flags 0x%llx}, %s", owner.text.c_str(),
            desc.text().c_str(), wide(desc->size), wide(alignment), desc->address, wide(desc->flags),
            out.text());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(good && name.good() && desc.good() && out.good());
  Expect expect = verdict.done();
  if (!expect.empty() && owner.wrong.empty()) expect = if_lost(expect, owner.index);
  if (expect.empty()) {
    expect = occupied ? Expect{GPUMEM_ERROR_ALREADY_EXISTS} : Expect{GPUMEM_SUCCESS};
    // Records come first, and an address of the system may be lacking.
    if (instance(owner.index).armed) {
      expect.push_back(GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
      expect.push_back(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
    }
    expect = if_lost(expect, owner.index);
  }
  const uint64_t wanted = desc->size;
  const gpumem_status status = call.check(
      expect,
      gpumem_range_reserve(as<gpumem_instance>(owner.value), desc.pointer(), out.pointer(), call.error()),
      out);
  if (status != GPUMEM_SUCCESS) return;
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  require(gpumem_range_get_info(out.get(), &info, nullptr) == GPUMEM_SUCCESS, "a new range tells nothing");
  require(info.size == wanted && info.granularity == unit && info.mapped_size == 0 &&
              info.mapping_count == 0 && name.text() == info.name &&
              value_of(info.base) % std::max(alignment, unit) == 0,
          "a new range is another than was asked for");
  require(info.buffer_id > last_buffer_id_, "a buffer id was used before");
  last_buffer_id_ = info.buffer_id;
  Range made;
  made.handle = value_of(out.get());
  made.instance = owner.index;
  made.device = instance(owner.index).devices.front();
  made.base = static_cast<uint8_t*>(info.base);
  made.size = info.size;
  made.buffer_id = info.buffer_id;
  made.name = name.text();
  ++model_.objects_made;
  Tally::add(instance(owner.index).stats.reserved, made.size);
  model_.ranges.push_back(made);
}

void Player::step_range_release(Choice& choice) {
  Call call(*this, choice, "gpumem_range_release");
  const Picked chosen = pick_range(choice);
  Expect expect = chosen.wrong;
  if (chosen.value == 0) expect = {GPUMEM_SUCCESS};
  if (expect.empty()) {
    expect = {range(chosen.index).mappings.empty() ? GPUMEM_SUCCESS : GPUMEM_ERROR_BUSY};
  }
  call.text("%s", chosen.text.c_str());
  const gpumem_status status =
      call.check(expect, gpumem_range_release(as<gpumem_range>(chosen.value), call.error()));
  if (status != GPUMEM_SUCCESS || chosen.index < 0) return;
  Range& ended = range(chosen.index);
  Tally::remove(instance(ended.instance).stats.reserved, ended.size);
  model_.end(ended, Life::kDestroyed);
}

void Player::step_range_get_info(Choice& choice) {
  const auto told = ask_info(choice, "gpumem_range_get_info", &Player::pick_range, gpumem_range_get_info);
  if (!told) return;
  const auto& [index, info] = *told;
  const Range& known = range(index);
  uint64_t mapped = 0;
  for (const auto& [begin, mapping] : known.mappings)
    mapped += block(mapping.block).size;
  require(info.base == known.base && info.size == known.size && info.granularity == unit_of(known.instance) &&
              info.mapped_size == mapped && info.mapping_count == known.mappings.size() &&
              info.buffer_id == known.buffer_id && known.name == info.name,
          "a range tells something else than before");
}

void Player::step_range_map(Choice& choice) {
  Call call(*this, choice, "gpumem_range_map");
  const Picked chosen = pick_range(choice);
  const uint64_t offset = pick_offset(choice, chosen);
  const Picked first = pick_physical(choice);
  const Picked second = pick_physical(choice);
  const uint8_t byte = choice.byte();
  const gpumem_physical handles[] = {as<gpumem_physical>(first.value), as<gpumem_physical>(second.value)};
  const uint64_t wrong_counts[] = {0, UINT64_MAX, uint64_t{1} << 61};
  const bool null = byte >= kWrong && byte % 4 == 3;
  const uint64_t count = byte < kWrong || null ? 1 + byte % 4 / 2 : wrong_counts[byte % 4];
  call.text("%s, %llu, {%s, %s}, %llu", chosen.text.c_str(), wide(offset), first.text.c_str(),
            null ? "NULL array" : second.text.c_str(), wide(count));
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(byte < kWrong);
  // Without a range nobody knows how many blocks are too many, so none is looked at.
  const bool looks = byte < kWrong && chosen.wrong.empty();
  std::vector<int> mapped;
  for (uint64_t i = 0; looks && i < count; ++i) {
    const Picked& each = i == 0 ? first : second;
    verdict.handle(each.wrong);
    if (each.wrong.empty()) mapped.push_back(each.index);
  }
  // That a block is of another instance is seen once all handles are good.
  if (verdict.done().empty()) {
    for (const int each : mapped)
      verdict.require(physical(each).instance == range(chosen.index).instance);
  }
  Expect expect = verdict.done();
  if (expect.empty()) {
    const Range& into = range(chosen.index);
    uint64_t size = 0;
    for (const int each : mapped)
      size += block(physical(each).block).size;
    bool over = false;
    if (offset % unit_of(into.instance) != 0 || offset > into.size || size > into.size - offset) {
      expect = {GPUMEM_ERROR_INVALID_ARGUMENT};
    } else {
      for (const auto& [begin, mapping] : into.mappings)
        over = over || (begin < offset + size && offset < begin + block(mapping.block).size);
      expect = over ? Expect{GPUMEM_ERROR_ALREADY_EXISTS} : with_faults({GPUMEM_SUCCESS}, into.instance);
      expect = if_lost(expect, into.instance);
    }
  }
  const gpumem_status status =
      call.check(expect, gpumem_range_map(as<gpumem_range>(chosen.value), offset, null ? nullptr : handles,
                                          count, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  uint64_t at = offset;
  for (const int each : mapped) {
    Block& behind = block(physical(each).block);
    range(chosen.index).mappings[at] = Mapping{physical(each).block, each, {}};
    ++behind.references;
    at += behind.size;
  }
}

void Player::step_range_unmap(Choice& choice) {
  Call call(*this, choice, "gpumem_range_unmap");
  const Picked chosen = pick_range(choice);
  const uint64_t offset = pick_offset(choice, chosen);
  const uint64_t size = pick_extent(choice, chosen, offset);
  call.text("%s, %llu, %llu", chosen.text.c_str(), wide(offset), wide(size));
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(size != 0);
  Expect expect = verdict.done();
  std::vector<uint64_t> begins;
  if (expect.empty() && offset == 0 && size == GPUMEM_WHOLE_RANGE) {
    for (const auto& [begin, mapping] : range(chosen.index).mappings)
      begins.push_back(begin);
    disarm(range(chosen.index).instance);  // a fault would leave some of them
  } else if (expect.empty()) {
    expect = expect_whole(range(chosen.index), offset, size, begins);
  }
  if (expect.empty()) expect = with_faults({GPUMEM_SUCCESS}, range(chosen.index).instance);
  const gpumem_status status =
      call.check(expect, gpumem_range_unmap(as<gpumem_range>(chosen.value), offset, size, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  for (const uint64_t begin : begins) {
    const int gone = range(chosen.index).mappings.at(begin).block;
    range(chosen.index).mappings.erase(begin);
    drop_reference(gone);
  }
}

// One processor or two, each with its rights. Without devices their ordinals are not known.
Player::Rights Player::pick_rights(Choice& choice, const std::vector<int>& devices) {
  Rights rights(choice);
  Sized<gpumem_access_desc>& desc = rights.first;
  constexpr gpumem_access kRights[] = {GPUMEM_ACCESS_READWRITE, GPUMEM_ACCESS_READ, GPUMEM_ACCESS_NONE};
  constexpr gpumem_access kNoRights[] = {2, GPUMEM_ACCESS_UNKNOWN, -1, 7};
  const uint8_t processor = choice.byte();
  bool good = true;
  const auto name = [&](gpumem_access_desc& entry, size_t number) {
    const bool cpu = number % 4 == 3;
    entry.location = cpu ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE;
    entry.location_id = cpu || devices.empty() ? 0 : static_cast<int32_t>(number % devices.size());
  };
  name(*desc.operator->(), processor);
  if (processor >= kWrong) {
    const uint8_t way = processor % 4;
    if (way == 0) desc->location = GPUMEM_LOCATION_HOST_NUMA;
    if (way == 1) desc->location = GPUMEM_LOCATION_NONE;
    if (way == 2) desc->location = 77;
    if (way == 3) desc->reserved = 1;
    good = false;
  }
  desc->access = choice.value(kRights, kNoRights);
  good = good && (desc->access >= 0 && desc->access <= 3 && desc->access != 2);
  const uint8_t more = choice.byte();
  rights.count = more < kWrong ? 1 + (more % 4 == 3 ? 1 : 0) : (more % 2 == 0 ? 0 : uint64_t{1} << 61);
  const bool plain = desc.good() && !desc.is_null() && !desc.is_newer();
  rights.both[0] = desc.get();
  rights.both[1] = GPUMEM_ACCESS_DESC_INIT;
  name(rights.both[1], processor + 1u);
  rights.both[1].access = GPUMEM_ACCESS_READ;
  rights.two = rights.count == 2 && plain;
  rights.avoid = rights.count == 2 && !plain;
  const bool twice = rights.two && !devices.empty() && rights.both[0].location == rights.both[1].location &&
                     rights.both[0].location_id == rights.both[1].location_id;
  rights.good = good && desc.good() && more < kWrong && !twice;
  char text[160];
  std::snprintf(text, sizeof text, "&%s{location %d %d, access %d, reserved %u}, %llu", desc.text().c_str(),
                desc->location, desc->location_id, desc->access, desc->reserved, wide(rights.count));
  rights.text = text;
  return rights;
}

// The model's number of a processor.
int Player::processor_of(int owner, const gpumem_access_desc& entry) const {
  if (entry.location == GPUMEM_LOCATION_HOST) return -1;
  return model_.instances[static_cast<size_t>(owner)].devices[static_cast<size_t>(entry.location_id)];
}

// Whether processors can be given access to memory of a device (VMM-17, VMM-18).
bool Player::can_have(int home, bool on_device, std::span<const gpumem_access_desc> entries) const {
  const int owner = model_.devices[static_cast<size_t>(home)].instance;
  const bool linked = model_.instances[static_cast<size_t>(owner)].linked;
  return !on_device || std::all_of(entries.begin(), entries.end(), [&](const gpumem_access_desc& entry) {
    const int who = processor_of(owner, entry);
    return who == home || (who >= 0 && linked);
  });
}

void Player::step_range_set_access(Choice& choice) {
  Call call(*this, choice, "gpumem_range_set_access");
  const Picked chosen = pick_range(choice);
  const uint64_t offset = pick_offset(choice, chosen);
  const uint64_t size = pick_extent(choice, chosen, offset);
  const bool live = chosen.wrong.empty();
  const std::vector<int> devices = live ? instance(range(chosen.index).instance).devices : std::vector<int>{};
  Rights rights = pick_rights(choice, devices);
  if (rights.avoid) return;
  call.text("%s, %llu, %llu, %s", chosen.text.c_str(), wide(offset), wide(size), rights.text.c_str());
  Verdict verdict;
  verdict.handle(chosen.wrong);
  verdict.require(rights.good && size != 0);
  Expect expect = verdict.done();
  std::vector<uint64_t> begins;
  if (expect.empty()) expect = expect_whole(range(chosen.index), offset, size, begins);
  // Whether a device is lost is asked before the mappings.
  if (live && verdict.done().empty() && !expect.empty())
    expect = if_lost(expect, range(chosen.index).instance);
  if (expect.empty()) {
    const int owner = range(chosen.index).instance;
    for (const uint64_t begin : begins) {
      const Block& behind = block(range(chosen.index).mappings.at(begin).block);
      if (!can_have(behind.device, behind.on_device, rights.entries())) expect = {GPUMEM_ERROR_UNSUPPORTED};
    }
    if (expect.empty()) expect = with_faults({GPUMEM_SUCCESS}, owner);
    expect = if_lost(expect, owner);
  }
  const gpumem_status status =
      call.check(expect, gpumem_range_set_access(as<gpumem_range>(chosen.value), offset, size,
                                                 rights.pointer(), rights.count, call.error()));
  if (status != GPUMEM_SUCCESS) return;
  for (const uint64_t begin : begins) {
    Range& changed = range(chosen.index);
    for (const gpumem_access_desc& entry : rights.entries())
      changed.mappings.at(begin).access[processor_of(changed.instance, entry)] = entry.access;
  }
}

// An address in a range of an instance, or one that is not.
Player::RangePlace Player::pick_range_address(Choice& choice, int owner) {
  const uint8_t byte = choice.byte();
  const uint64_t step = choice.byte() % (2 * kRangeUnits);
  RangePlace place;
  std::vector<int> live;
  for (size_t i = 0; i < model_.ranges.size(); ++i) {
    const Range& each = model_.ranges[i];
    if (each.life == Life::kLive && each.instance == owner) live.push_back(static_cast<int>(i));
  }
  if (byte >= kWrong || live.empty()) {
    const uint8_t way = byte % 3;
    place.pointer = way == 0 ? nullptr : way == 1 ? model_.arena.writable() : as<uint8_t*>(16);
    place.wrong = {GPUMEM_ERROR_NOT_FOUND};
    place.text = way == 0 ? "NULL" : way == 1 ? "heap" : "(void*)16";
    // Memory of the instance may be registered there.
    if (way == 1) {
      const Found found = model_.find(owner, place.pointer, 1);
      place.avoid = found.avoid;
      if (found.memory >= 0) place.wrong = {GPUMEM_ERROR_WRONG_KIND};
      if (found.kind == GPUMEM_KIND_FOREIGN) place.wrong = {GPUMEM_ERROR_NOT_FOUND};
    }
    return place;
  }
  const int index = live[byte % live.size()];
  const Range& within = range(index);
  const uint64_t offset = std::min(step * unit_of(owner) / 2, within.size - 1);
  place.pointer = within.base + offset;
  place.range = index;
  place.text = "range" + std::to_string(index) + "+" + std::to_string(offset);
  auto next = within.mappings.upper_bound(offset);
  if (next != within.mappings.begin()) {
    --next;
    if (offset - next->first < block(next->second.block).size) {
      place.begin = next->first;
      place.mapping = &next->second;
    }
  }
  if (place.mapping == nullptr) place.wrong = {GPUMEM_ERROR_INVALID_STATE};
  return place;
}

void Player::step_range_get_mapping(Choice& choice) {
  Call call(*this, choice, "gpumem_range_get_mapping");
  const Picked owner = pick_instance(choice);
  const RangePlace at = pick_range_address(choice, std::max(owner.index, 0));
  Answer<gpumem_mapping_info> info(choice);
  call.text("%s, %s, %s", owner.text.c_str(), at.text.c_str(), info.text().c_str());
  Verdict verdict;
  verdict.handle(owner.wrong);
  verdict.require(at.pointer != nullptr && info.good());
  Expect expect = verdict.done();
  if (expect.empty() && at.avoid) return;
  if (expect.empty()) expect = at.wrong;
  if (expect.empty()) expect = {GPUMEM_SUCCESS};
  const gpumem_status status = call.check(
      expect,
      gpumem_range_get_mapping(as<gpumem_instance>(owner.value), at.pointer, info.pointer(), call.error()),
      info);
  if (at.range >= 0 && owner.wrong.empty()) check_range_address(owner, at);
  if (status != GPUMEM_SUCCESS) return;
  const Block& behind = block(at.mapping->block);
  const Range& within = range(at.range);
  require(value_of(info->range) == within.handle && info->base == within.base + at.begin &&
              info->size == behind.size && info->block_id == behind.id && info->location == behind.location &&
              info->location_id == behind.location_id,
          "another mapping is told of");
}

// What the queries about any pointer say of an address in a range.
void Player::check_range_address(const Picked& owner, const RangePlace& at) {
  const auto handle = as<gpumem_instance>(owner.value);
  const Range& within = range(at.range);
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  require(gpumem_pointer_get_info(handle, at.pointer, &info, nullptr) == GPUMEM_SUCCESS,
          "an address in a range cannot be queried");
  const bool mapped = at.mapping != nullptr;
  const gpumem_location location = mapped ? block(at.mapping->block).location : GPUMEM_LOCATION_NONE;
  const int32_t id = mapped ? block(at.mapping->block).location_id : -1;
  const auto rights = [&](int who) {
    if (!mapped) return GPUMEM_ACCESS_NONE;
    const auto found = at.mapping->access.find(who);
    return found == at.mapping->access.end() ? GPUMEM_ACCESS_NONE : found->second;
  };
  require(info.kind == GPUMEM_KIND_VIRTUAL && info.base == within.base && info.size == within.size &&
              info.buffer_id == within.buffer_id && info.memory == nullptr && info.buffer == nullptr &&
              info.location == location && info.location_id == id &&
              info.device_pointer == (mapped ? at.pointer : nullptr) &&
              info.host_pointer == (rights(-1) != GPUMEM_ACCESS_NONE ? at.pointer : nullptr),
          "an address in a range is told something else of");
  const auto expect = [&](gpumem_location who, int32_t number, gpumem_access expected) {
    gpumem_access access = GPUMEM_ACCESS_UNKNOWN;
    require(gpumem_pointer_get_access(handle, at.pointer, who, number, &access, nullptr) == GPUMEM_SUCCESS &&
                access == expected,
            "the access in a range is " + std::to_string(access) + "; expected " + std::to_string(expected));
  };
  expect(GPUMEM_LOCATION_HOST, 0, rights(-1));
  const std::vector<int>& devices = instance(owner.index).devices;
  for (size_t i = 0; i < devices.size(); ++i)
    expect(GPUMEM_LOCATION_DEVICE, static_cast<int32_t>(i), rights(devices[i]));
}

}  // namespace sequences
