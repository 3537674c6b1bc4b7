// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/range.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/memory/statistics.h"
#include "core/object/callback.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "core/object/held.h"
#include "core/object/host_function_guard.h"
#include "core/object/precedence.h"
#include "platform/pages.h"

namespace gpumem::core {

// ---- mappings ----

Mapping::Mapping(uint64_t at, const Physical& physical, size_t devices)
    : offset(at),
      size(physical.facts().size),
      facts(physical.facts()),
      device(physical.device()),
      device_ordinal(static_cast<int32_t>(device.ordinal())),
      access(std::make_unique<std::atomic<gpumem_access>[]>(devices + 1)) {}

Result<void> Mappings::open(uint64_t size, uint64_t granularity) {
  const uint64_t bytes = round_up(size / granularity * sizeof(std::atomic<Mapping*>), platform::page_size());
  auto pages = platform::map_lazily(bytes);  // zeroed, so all entries are null pointers
  if (!pages) return pages.error();
  entries_ = static_cast<std::atomic<Mapping*>*>(*pages);
  granularity_ = granularity;
  shift_ = std::countr_zero(granularity);
  bytes_ = bytes;
  return {};
}

Mappings::~Mappings() {
  if (entries_ != nullptr) platform::unmap(entries_, bytes_);
}

void Mappings::set(const Mapping& mapping, Mapping* value) noexcept {
  const uint64_t end = mapping.end() / granularity_;
  for (uint64_t unit = mapping.offset / granularity_; unit < end; ++unit)
    entries_[unit].store(value, std::memory_order_release);
}

Range::Range(std::shared_ptr<Context> context, Device& device, uint64_t size, std::string name)
    : Region(kType, std::move(context), device, kinds::reserved, size, std::move(name)) {}

gpumem_range_info Range::range_info() const {
  gpumem_range_info info = info_;
  const uint64_t now = mapped_.load();
  info.mapped_size = (now >> kCountBits) * mappings_.granularity();
  info.mapping_count = now & kCountMask;
  return info;
}

// ---- reserving ----

// A range under construction. Allocates its records before the backend is called (COM-8).
class NewRange {
 public:
  NewRange(const std::shared_ptr<Context>& context, Device& device, uint64_t size, std::string name)
      : context_(*context),
        room_(context_.page_map()),
        range_(std::make_unique<Range>(context, device, size, std::move(name))) {}
  NewRange(const NewRange&) = delete;
  NewRange& operator=(const NewRange&) = delete;
  ~NewRange() {
    if (range_ != nullptr && range_->handle() != 0) handles::cancel(*range_);
  }

  Result<void> reserve(uint64_t granularity) {
    auto handle = handles::reserve(*range_);
    if (!handle) return handle.error();
    GPUMEM_TRY(room_.reserve(2));
    return range_->mappings_.open(range_->size(), granularity);
  }

  uint64_t finish(std::unique_ptr<backend::Reservation> made) noexcept {
    Range* const range = range_.release();
    made->set_layout(range->mappings_);
    range->record(context_.page_map(), std::move(made));
    // What lies at one of its addresses depends on what is mapped there.
    gpumem_pointer_info& shown = range->unfinished_info();
    shown.location = GPUMEM_LOCATION_NONE;
    shown.location_id = shown.device_ordinal = -1;
    shown.host_pointer = shown.device_pointer = nullptr;
    shown.memory = nullptr;
    gpumem_range_info& info = range->info_;
    info.base = range->facts().device_pointer;
    info.size = range->size();
    info.granularity = range->mappings().granularity();
    info.buffer_id = range->buffer_id();
    std::snprintf(info.name, sizeof info.name, "%s", range->name().c_str());
    context_.statistics().add(range->traits(), range->size());
    context_.add_object(*range);
    const uint64_t handle = range->handle();
    handles::publish(range);
    range->set_state(Region::State::kLive);
    return handle;
  }

 private:
  Context& context_;
  PageMap::Room room_;
  std::unique_ptr<Range> range_;
};

namespace {

// The unit of every device that can map memory (VMM-7), and the first of these.
struct CommonUnit {
  Device* device = nullptr;
  uint64_t granularity = 0;
};

Result<CommonUnit> common_unit(Context& context) {
  CommonUnit unit;
  Result<void> why;
  for (const auto& device : Devices::of(context)) {
    Result<void> able = device->usable();
    if (able) able = device->need(GPUMEM_CAPABILITY_VMM_DEVICE);
    if (!able) {
      if (why) why = able;
      continue;
    }
    auto facet = virtual_memory_of(*device);
    if (!facet) return facet.error();
    auto known = (*facet)->granularity({});
    if (!known) return known.error();
    unit.granularity = std::max(unit.granularity, known->minimum);
    if (unit.device == nullptr) unit.device = device.get();
  }
  if (unit.device == nullptr) return why.error();
  return unit;
}

Result<void> check_place(backend::ReservationRequest* request, uint64_t granularity) {
  if (request->size % granularity != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the size of %" PRIu64 " bytes is not a multiple of the granularity of %" PRIu64
                      " bytes",
                      request->size, granularity);
  }
  // Refuse the size before allocating records in proportion to it.
  constexpr uint64_t kAddresses = uint64_t{1} << 48;
  if (request->size > kAddresses) {
    return make_error(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
                      "a process has no %" PRIu64 " addresses; reserve fewer than 2^48", request->size);
  }
  request->alignment = std::max(request->alignment, granularity);
  if (address_of(request->address) % request->alignment != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the address %p is not a multiple of %" PRIu64 ", the alignment of the range",
                      request->address, request->alignment);
  }
  return {};
}

}  // namespace

Result<uint64_t> range_granularity(Context& context) {
  auto unit = common_unit(context);
  if (!unit) return unit.error();
  return unit->granularity;
}

Result<uint64_t> reserve_range(const std::shared_ptr<Context>& shared, backend::ReservationRequest request,
                               std::string name) {
  Context& context = *shared;
  GPUMEM_TRY(outside_host_function());
  const auto open = context.stay_open();
  if (!open) return open.error();
  auto unit = common_unit(context);
  if (!unit) return unit.error();
  GPUMEM_TRY(check_place(&request, unit->granularity));
  NewRange range(shared, *unit->device, request.size, std::move(name));
  GPUMEM_TRY(range.reserve(unit->granularity));
  auto made = with_room(context, [&] { return unit->device->backend().vmm()->reserve(request); });
  if (!made) return made.error();
  return range.finish(std::move(*made));
}

// ---- changing ----

// Makes the calling thread the only one that changes a range. It stops counting as a user of the range, so
// that it can wait for the users; a release still waits for it.
class RangeChange {
 public:
  explicit RangeChange(Ref<Range> range)
      : range_(*range.get()), use_(platform::thread_record(), &range_.changes_) {
    range = {};
    lock_ = lock_unless_in_callback(range_.changes_);
  }

  Result<void> alive() const {
    if (!lock_) return changed_elsewhere("range");
    if (range_.live()) return {};
    return ended_meanwhile(Type::kRange);
  }

  // Whether a part of the range is made of whole mappings: INVALID_ARGUMENT for a part of a mapping,
  // INVALID_STATE for a hole.
  Result<void> check_whole(uint64_t offset, uint64_t size) const {
    const auto& all = range_.by_offset_;
    const uint64_t end = offset + size;
    uint64_t reached = offset;
    Verdict verdict;
    const auto note_part = [&](const Mapping& mapping) {
      verdict.note(make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                              "the mapping of %" PRIu64 " bytes at offset %" PRIu64
                              " is only partly included; mappings are changed whole",
                              mapping.size, mapping.offset));
    };
    const auto note_hole = [&] { verdict.note(not_mapped(range_, reached)); };
    auto next = all.lower_bound(offset);
    if (next != all.begin() && std::prev(next)->second->end() > offset) {
      note_part(*std::prev(next)->second);
      reached = std::prev(next)->second->end();
    }
    const Mapping* last = nullptr;
    for (; next != all.end() && next->first < end; ++next) {
      if (next->first != reached) note_hole();
      last = next->second.get();
      reached = last->end();
    }
    if (reached < end) note_hole();
    if (reached > end && last != nullptr) note_part(*last);
    if (!verdict) return verdict.error();
    return {};
  }

  // Shows the mappings that begin in a part. Takes no memory.
  template <class See>
  void for_each(uint64_t offset, uint64_t size, See see) const {
    for (auto next = range_.by_offset_.lower_bound(offset);
         next != range_.by_offset_.end() && next->first < offset + size; ++next)
      see(*next->second);
  }

  // The mappings that a part of the range is made of.
  Result<std::vector<Mapping*>> whole_mappings(uint64_t offset, uint64_t size) const {
    GPUMEM_TRY(check_whole(offset, size));
    std::vector<Mapping*> found;
    for_each(offset, size, [&](Mapping& mapping) { found.push_back(&mapping); });
    return found;
  }

  // A mapping that shares bytes with a part, or null.
  const Mapping* any_mapping(uint64_t offset, uint64_t size) const {
    const auto next = range_.by_offset_.lower_bound(offset);
    if (next != range_.by_offset_.end() && next->first < offset + size) return next->second.get();
    if (next == range_.by_offset_.begin() || std::prev(next)->second->end() <= offset) return nullptr;
    return std::prev(next)->second.get();
  }

  using Nodes = std::map<uint64_t, std::unique_ptr<Mapping>>;
  void enter(Nodes& fresh) noexcept {
    for (const auto& [offset, mapping] : fresh) {
      range_.mappings_.enter(*mapping);
      range_.mapped_.fetch_add(range_.share_of(*mapping));
      range_.context().statistics().keep_block(mapping->facts.block_id);
    }
    range_.by_offset_.merge(fresh);
  }
  // Removes the mappings that begin in a part. Does not allocate, because a call that runs out of memory
  // undoes its mappings with it.
  void remove(uint64_t offset, uint64_t size) noexcept {
    for (auto next = range_.by_offset_.lower_bound(offset);
         next != range_.by_offset_.end() && next->first < offset + size;) {
      range_.mappings_.erase(*next->second);
      range_.mapped_.fetch_sub(range_.share_of(*next->second));
      range_.context().statistics().drop_block(next->second->facts.block_id);
      range_.unmapped_.insert(range_.by_offset_.extract(next++));
    }
  }

  // Waits for the calls of other threads that use the range, or have found one of its mappings before it was
  // removed: those that an earlier call removed are deleted here, so that one fence serves both. What a pool
  // removes has no block: such calls use other parts, may last long, and may need the pool.
  Result<void> await_uses() const {
    platform::wait_for_looks();
    if (range_.pool_blocks() == nullptr) {
      GPUMEM_TRY(wait_for_uses(range_));
    } else if (platform::used_by(&range_) != platform::UsedBy::kNone || platform::own_uses(&range_) > 1) {
      return {};
    }
    range_.unmapped_.clear();
    return {};
  }

  Range& range() const { return range_; }

 private:
  Range& range_;
  platform::Use use_;
  std::unique_lock<std::mutex> lock_;
};

// Whether the question is allowed does not matter: the addresses may still be in a call that has freed them,
// and be used again. A call that unmaps the mapping has said so in it before it waits for questions.
HeldMapping::HeldMapping(const Range& range, const Mapping& mapping)
    : question_(platform::thread_record(), pointer_to(range.address() + mapping.offset)) {
  holds_ = range.mappings().find(mapping.offset) == &mapping && !mapping.leaving();
}

namespace {

// Refuses a thread that uses the range, except in a pool: a call may use one part and change another.
Result<void> changes_allowed(const Range& range) {
  return range.pool_blocks() != nullptr ? Result<void>() : uses_will_end(range);
}

// Checks that a part lies in the range and is aligned to its unit.
Result<void> check_part(const Range& range, uint64_t offset, uint64_t size) {
  const uint64_t unit = range.mappings().granularity();
  if (offset > range.size() || size > range.size() - offset) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "%" PRIu64 " bytes from offset %" PRIu64 " leave the range of %" PRIu64 " bytes", size,
                      offset, range.size());
  }
  if (offset % unit == 0 && size % unit == 0) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "offset %" PRIu64 " and size %" PRIu64 " must be multiples of the granularity of %" PRIu64
                    " bytes",
                    offset, size, unit);
}

// The blocks of a call lie one behind the other from `offset` on.
Result<uint64_t> check_blocks(const Range& range, uint64_t offset,
                              const std::vector<Ref<Physical>>& physicals) {
  const uint64_t unit = range.mappings().granularity();
  uint64_t at = offset;
  for (size_t index = 0; index < physicals.size(); ++index) {
    const Physical& physical = *physicals[index];
    const backend::PhysicalFacts& facts = physical.facts();
    if (&physical.context() != &range.context()) {
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "physicals[%zu] belongs to another instance", index);
    }
    if (at % unit != 0 || at % facts.granularity != 0 || facts.size % unit != 0) {
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                        "physicals[%zu], of %" PRIu64 " bytes, would begin at offset %" PRIu64
                        "; both must be multiples of the granularity of %" PRIu64 " bytes",
                        index, facts.size, at, std::max(unit, facts.granularity));
    }
    if (at > range.size() || facts.size > range.size() - at) {
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                        "physicals[%zu], of %" PRIu64 " bytes at offset %" PRIu64
                        ", does not fit into the range of %" PRIu64 " bytes",
                        index, facts.size, at, range.size());
    }
    at += facts.size;
  }
  return at - offset;
}

}  // namespace

Result<void> map_range(Ref<Range> range, uint64_t offset, const std::vector<Ref<Physical>>& physicals) {
  Verdict verdict;
  auto size = check_blocks(*range, offset, physicals);
  if (!size) return size.error();
  for (const Ref<Physical>& physical : physicals) {
    if (physical->facts().on_device()) verdict.note(physical->device().usable());
  }
  verdict.note(outside_host_function());
  if (!verdict) return verdict.error();
  Context& context = range->context();
  const auto open = context.stay_open();
  if (!open) return open.error();
  RangeChange change(std::move(range));
  GPUMEM_TRY(change.alive());
  if (const Mapping* const taken = change.any_mapping(offset, *size)) {
    return make_error(GPUMEM_ERROR_ALREADY_EXISTS,
                      "%" PRIu64 " bytes are mapped at offset %" PRIu64 "; unmap them first", taken->size,
                      taken->offset);
  }

  RangeChange::Nodes fresh;
  std::vector<backend::Physical*> blocks;
  uint64_t at = offset;
  for (const Ref<Physical>& physical : physicals) {
    fresh.emplace_hint(fresh.end(), at,
                       std::make_unique<Mapping>(at, *physical, Devices::of(context).size()));
    blocks.push_back(&physical->backend());
    at += physical->facts().size;
  }
  GPUMEM_TRY(change.range().reservation().map(offset, blocks));
  change.enter(fresh);
  return {};
}

Result<void> unmap_range(Ref<Range> range, uint64_t offset, uint64_t size) {
  GPUMEM_TRY(check_part(*range, offset, size));
  GPUMEM_TRY(outside_host_function());
  Context& context = range->context();
  const auto open = context.stay_open();
  if (!open) return open.error();
  GPUMEM_TRY(changes_allowed(*range));
  RangeChange change(std::move(range));
  GPUMEM_TRY(change.alive());
  GPUMEM_TRY(change.check_whole(offset, size));
  backend::Reservation& reservation = change.range().reservation();
  // Check first, so that memory in use never looks unmapped to other threads.
  GPUMEM_TRY(check_range_unused(change.range(), offset, size));
  const auto set_ends = [&](bool ends) {
    change.for_each(offset, size,
                    [&](Mapping& mapping) { mapping.ends.store(ends, std::memory_order_release); });
  };
  set_ends(true);
  Cleanup undo([&] { set_ends(false); });
  GPUMEM_TRY(change.await_uses());
  Device* home = nullptr;  // one that is not lost, if there is one: its failures count
  change.for_each(offset, size, [&](Mapping& mapping) {
    if (home == nullptr || !home->usable()) home = &mapping.device;
  });
  GPUMEM_TRY(reservation.unmap(offset, size, home->backend()));
  undo.dismiss();
  change.remove(offset, size);
  context.sharing().end_blocks(change.range(), offset, size);
  return {};
}

Result<void> unmap_from(uint64_t handle, uint64_t known) {
  for (uint64_t offset = known;;) {
    uint64_t size = 0;
    {
      auto range = held<Range>(handle);
      if (!range) return range.error();
      if ((*range)->mapped_size() == known) return {};
      const Mappings& mappings = (*range)->mappings();
      while (offset < (*range)->size() && mappings.find(offset) == nullptr)
        offset += mappings.granularity();
      if (offset == (*range)->size()) return {};
      size = mappings.contiguous(offset);
    }
    GPUMEM_TRY(give_back<Range>(
        handle, [&](Ref<Range> range) { return unmap_range(std::move(range), offset, size); }));
    offset += size;
  }
}

Result<void> unmap_all(Ref<Range> range) {
  GPUMEM_TRY(outside_host_function());
  const uint64_t handle = range->handle();
  range = {};  // unmapping waits for those that use the range
  return unmap_from(handle, 0);
}

Result<void> check_range_unused(const Range& range, uint64_t offset, uint64_t size) {
  return check_unused(range, [&] { return range.reservation().check_mappings_unused(offset, size); });
}

Result<void> check_can_have(Device& home, Device* processor) {
  if (processor == &home) return {};
  if (processor == nullptr) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "the CPU cannot be given access to memory of device %u",
                      home.ordinal());
  }
  auto linked = processor->has_link_to(home);
  if (!linked) return linked.error();
  if (*linked) return {};
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "device %u has no link to device %u, which has the memory",
                    processor->ordinal(), home.ordinal());
}

namespace {

// A change of the access of several mappings.
class AccessSet {
 public:
  AccessSet(std::vector<Mapping*> mappings, const std::vector<AccessRequest>& changes)
      : mappings_(std::move(mappings)), changes_(changes), before_(mappings_.size() * changes.size()) {
    for (size_t index = 0; index < before_.size(); ++index)
      before_[index] = mapping_of(index).access_of(change_of(index).device);
  }

  // Whether a device loses a right to a mapping. The CPU does no work in a range.
  bool takes_from(size_t mapping) const {
    for (size_t index = mapping * changes_.size(); index < (mapping + 1) * changes_.size(); ++index) {
      if (change_of(index).device != nullptr && (before_[index] & ~change_of(index).access) != 0) return true;
    }
    return false;
  }
  bool takes() const {
    for (size_t mapping = 0; mapping < mappings_.size(); ++mapping) {
      if (takes_from(mapping)) return true;
    }
    return false;
  }
  Result<void> check_lost_unused(backend::Reservation& reservation) const {
    for (size_t index = 0; index < mappings_.size(); ++index) {
      if (!takes_from(index)) continue;
      GPUMEM_TRY(reservation.check_mappings_unused(mappings_[index]->offset, mappings_[index]->size));
    }
    return {};
  }

  // If it fails, `before` is what is in force.
  Result<void> apply(backend::Reservation& reservation) {
    std::vector<backend::AccessPart> parts;
    std::vector<backend::AccessChange> changes;
    for (size_t index = 0; index < mappings_.size(); ++index) {
      const Mapping& mapping = *mappings_[index];
      parts.push_back(
          {mapping.offset, mapping.size, mapping.facts.location, &before_[index * changes_.size()]});
    }
    for (const AccessRequest& change : changes_) {
      changes.push_back({change.device != nullptr ? &change.device->backend() : nullptr, change.access});
    }
    return reservation.set_access(parts, changes);
  }

  // Records what is in force: before, after, or only what both allow.
  enum class Which { kBefore, kBoth, kAfter };
  void record(Which which) const noexcept {
    for (size_t index = 0; index < before_.size(); ++index) {
      const gpumem_access after = change_of(index).access;
      const gpumem_access now = which == Which::kBefore  ? before_[index]
                                : which == Which::kAfter ? after
                                                         : before_[index] & after;
      mapping_of(index).set_access(change_of(index).device, now);
    }
  }

 private:
  Mapping& mapping_of(size_t index) const { return *mappings_[index / changes_.size()]; }
  const AccessRequest& change_of(size_t index) const { return changes_[index % changes_.size()]; }

  const std::vector<Mapping*> mappings_;
  const std::vector<AccessRequest>& changes_;
  std::vector<gpumem_access> before_;  // by mapping, then by change
};

}  // namespace

Result<void> set_range_access(Ref<Range> range, uint64_t offset, uint64_t size,
                              const std::vector<AccessRequest>& changes) {
  Verdict verdict;
  verdict.note(check_part(*range, offset, size));
  for (const AccessRequest& change : changes) {
    if (change.device != nullptr) verdict.note(change.device->usable());
  }
  verdict.note(outside_host_function());
  if (!verdict) return verdict.error();
  Context& context = range->context();
  const auto open = context.stay_open();
  if (!open) return open.error();
  GPUMEM_TRY(changes_allowed(*range));
  RangeChange change(std::move(range));
  GPUMEM_TRY(change.alive());
  auto mappings = change.whole_mappings(offset, size);
  if (!mappings) return mappings.error();
  for (const Mapping* const mapping : *mappings) {
    if (Device* const home = mapping->home()) verdict.note(home->usable());
  }
  if (!verdict) return verdict.error();
  for (const Mapping* const mapping : *mappings) {
    Device* const home = mapping->home();
    for (const AccessRequest& wanted : changes)
      if (home != nullptr) GPUMEM_TRY(check_can_have(*home, wanted.device));
  }

  backend::Reservation& reservation = change.range().reservation();
  AccessSet set(std::move(*mappings), changes);
  const bool takes = set.takes();
  if (takes) GPUMEM_TRY(check_unused(change.range(), [&] { return set.check_lost_unused(reservation); }));
  Cleanup undo([&] { set.record(AccessSet::Which::kBefore); });
  if (takes) {
    set.record(AccessSet::Which::kBoth);
    GPUMEM_TRY(change.await_uses());
  }
  GPUMEM_TRY(set.apply(reservation));
  undo.dismiss();
  set.record(AccessSet::Which::kAfter);
  return {};
}

// ---- releasing ----

Line Range::describe() const {
  return line_of("%s memory %s: %" PRIu64 " bytes at %p, %" PRIu64 " of them mapped%s", kind_name(kind()),
                 shown(name()), size(), pointer_to(address()), mapped_size(), pool_note());
}

void Range::list(Fields& fields) const noexcept {
  fields.add("name", name());
  fields.add("kind", traits().name);
  fields.add("size", size());
  fields.add("mapped_bytes", mapped_size());
  fields.add_address("device_pointer", pointer_to(address()));
  if (pool_blocks() != nullptr) fields.add_true("of_pool");
  if (pool_blocks() != nullptr && !pool_blocks()->listed()) fields.add_true("pool_destroyed");
}

Object::Discard Range::discard() const noexcept {
  return [](uint64_t handle) -> Result<void> {
    GPUMEM_TRY(unmap_from(handle, 0));
    return give_back<Range>(handle, destroy_object);
  };
}

// Unmaps everything first; on failure the rest stays unchanged.
Result<void> Range::release() {
  set_state(State::kLeaving);
  while (!by_offset_.empty()) {
    const auto first = by_offset_.begin();
    Mapping& mapping = *first->second;
    GPUMEM_TRY(reservation().unmap(mapping.offset, mapping.size, mapping.device.backend()));
    mappings_.erase(mapping);
    mapped_.fetch_sub(share_of(mapping));
    context().statistics().drop_block(mapping.facts.block_id);
    platform::wait_for_looks();
    by_offset_.erase(first);
  }
  set_state(State::kReleasing);
  GPUMEM_TRY(reservation().release());
  forget();
  return {};
}

void Range::forget() noexcept {
  erase(context().page_map());
  context().statistics().remove(traits(), size());
}

namespace {

Error still_mapped(const Range& range) {
  return make_error(GPUMEM_ERROR_BUSY,
                    "%" PRIu64 " bytes are mapped in the range; unmap them with gpumem_range_unmap() first",
                    range.mapped_size());
}

}  // namespace

Result<void> Range::may_end() { return mapping_count() == 0 ? Result<void>() : still_mapped(*this); }

Result<void> Range::may_end_unused() {
  GPUMEM_TRY(wait_for_uses(*this, &changes_));
  return may_end();  // a change that began earlier may have mapped memory meanwhile
}

Error not_mapped(const Range& range, uint64_t offset, const char* what, Status status) {
  return make_error(status, "%s has no memory: nothing is mapped at %p, offset %" PRIu64 " of its range; %s",
                    what, pointer_to(range.address() + offset), offset,
                    range.owned() ? "wake the buffer, or resize it to reach that far"
                                  : "map some there with gpumem_range_map()");
}

}  // namespace gpumem::core
