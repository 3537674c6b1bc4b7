// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/memory.h"

#include <cinttypes>
#include <cstdio>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/device/host_function.h"
#include "core/memory/pointer.h"
#include "core/memory/range.h"
#include "core/memory/statistics.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "core/object/held.h"
#include "core/object/host_function_guard.h"
#include "platform/thread_record.h"

namespace gpumem::core {

Memory::Memory(std::shared_ptr<Context> context, Device& device, const KindTraits& traits,
               const backend::MemoryRequest& asked, std::string name)
    : Region(kType, std::move(context), device, traits, asked.size, std::move(name)), asked_(asked) {
  if (asked.from_driver) set_from_driver(asked.users);
  if (traits.managed) make_managed(((asked.require | asked.prefer) & GPUMEM_MEMORY_ATTACH_HOST) != 0);
}

// A memory under construction. Allocates its records before the backend is called, and frees them unless
// finish() is reached (COM-8).
class NewMemory {
 public:
  NewMemory(DeviceObject& device, const KindTraits& kind, const backend::MemoryRequest& asked,
            std::string name)
      : context_(device.context()),
        room_(context_.page_map()),
        memory_(std::make_unique<Memory>(device.shared_context(), device.device(), kind, asked,
                                         std::move(name))) {}
  NewMemory(const NewMemory&) = delete;
  NewMemory& operator=(const NewMemory&) = delete;
  ~NewMemory() {
    if (memory_ == nullptr) return;
    memory_->cancel_range(context_.page_map());
    if (charged_ != 0) refund(context_, *memory_, charged_);
    if (memory_->handle() != 0) handles::cancel(*memory_);
  }

  Result<void> reserve() {
    auto handle = handles::reserve(*memory_);
    if (!handle) return handle.error();
    return room_.reserve(2);
  }

  Memory& memory() { return *memory_; }

  // Reserves the range of a registration now, so that only one of two overlapping ones calls the driver.
  const RegionRange* reserve_range(const void* pointer) noexcept {
    return memory_->reserve_range(context_.page_map(), pointer);
  }

  Result<void> charge(gpumem_memory_flags wanted = 0) {
    const KindTraits& kind = memory_->traits();
    if (kind.charged_as_pinned) GPUMEM_TRY(context_.charge_pinned(memory_->size()));
    if (kind.managed)
      GPUMEM_TRY(
          memory_->device().charge_managed(memory_->size(), (wanted & GPUMEM_MEMORY_OVERSUBSCRIBE) != 0));
    charged_ = memory_->size();
    return {};
  }
  // Returns what charge() has taken.
  static void refund(Context& context, const Memory& memory, uint64_t bytes) noexcept {
    if (memory.traits().charged_as_pinned) context.refund_pinned(bytes);
    if (memory.traits().managed) memory.device().refund_managed(bytes);
  }

  CreatedMemory finish(std::unique_ptr<backend::Memory> made) noexcept {
    Memory* const memory = memory_.release();
    memory->record(context_.page_map(), std::move(made));
    fill_info(*memory);
    context_.statistics().add(memory->traits(), memory->size());
    context_.add_object(*memory);
    const backend::MemoryFacts& facts = memory->facts();
    const CreatedMemory created{memory->handle(),
                                facts.host_pointer != nullptr ? facts.host_pointer : facts.device_pointer};
    handles::publish(memory);
    memory->set_state(Region::State::kLive);
    return created;
  }

 private:
  static void fill_info(Memory& memory) noexcept {
    const backend::MemoryFacts& facts = memory.facts();
    const uint32_t ordinal = memory.device().ordinal();
    gpumem_memory_info& info = memory.memory_info_;
    info.kind = memory.kind();
    info.numa_node = facts.numa_node;
    info.device = reinterpret_cast<gpumem_device>(pointer_to(memory.device().handle()));
    info.device_ordinal = ordinal;
    info.host_pointer = facts.host_pointer;
    info.device_pointer = facts.device_pointer;
    info.size = memory.size();
    info.granted_size = facts.granted_size;
    info.alignment = memory.asked_.alignment;
    info.requested_flags = memory.asked_.require | memory.asked_.prefer;
    info.granted_flags = facts.granted;
    info.buffer_id = memory.buffer_id();
    std::snprintf(info.name, sizeof info.name, "%s", memory.name().c_str());
  }

  Context& context_;
  PageMap::Room room_;
  std::unique_ptr<Memory> memory_;
  uint64_t charged_ = 0;
};

namespace {

// Refuses required flags that are impossible, and drops preferred ones that are (COM-5, COM-6).
Result<void> settle_flags(Device& device, const KindTraits& kind, gpumem_memory_flags require,
                          gpumem_memory_flags* prefer) {
  if (kind.capability != 0) GPUMEM_TRY(device.need(kind.capability));
  for (const FlagNeed& need : kind.flag_needs) {
    if (((require | *prefer) & need.flag) == 0) continue;
    auto can = device.need(need.capability);
    if (can) continue;
    if ((require & need.flag) != 0) return can.error();
    *prefer &= ~need.flag;
  }
  return {};
}

// Why memory of a kind cannot be registered (PIN-11, PIN-13).
Error range_taken(const KindTraits& kind) {
  if (kind.charged_as_pinned) {
    return make_error(
        GPUMEM_ERROR_ALREADY_EXISTS,
        "the range shares bytes with memory that is already %s; use that memory, or free it first",
        kind.name);
  }
  return make_error(GPUMEM_ERROR_WRONG_KIND, "%s memory cannot be registered; only ordinary memory can",
                    kind.name);
}

// Refuses memory that other code registered; `usable` says whether the device is usable.
Result<void> check_not_foreign(Context& context, const backend::RegistrationRequest& request,
                               const Result<void>& usable) {
  const uint64_t first = address_of(request.pointer);
  bool pinned = false;
  for (const uint64_t address : {first, first + request.size - 1}) {
    auto facts = context.backend().pointer_facts(pointer_to(address));
    if (!facts) return facts.error();
    if (!facts->known) continue;
    if (facts->location == GPUMEM_LOCATION_DEVICE) return range_taken(kinds::device);
    if (facts->location == GPUMEM_LOCATION_HOST) pinned = true;
  }
  GPUMEM_TRY(usable);
  if (pinned) return range_taken(kinds::pinned);
  return {};
}

}  // namespace

Result<CreatedMemory> create_memory(DeviceObject& device_object, const KindTraits& kind,
                                    backend::MemoryRequest request, std::string name, bool closed) {
  Context& context = device_object.context();
  Device& device = device_object.device();

  GPUMEM_TRY(device.usable());
  GPUMEM_TRY(outside_host_function());
  const auto open = context.stay_open();
  if (!open) return open.error();
  if (((request.require | request.prefer) & GPUMEM_MEMORY_NUMA_NODE) != 0 &&
      !context.backend().has_numa_node(request.numa_node)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "there is no NUMA node %d", request.numa_node);
  }
  NewMemory memory(device_object, kind, request, std::move(name));
  GPUMEM_TRY(settle_flags(device, kind, request.require, &request.prefer));

  GPUMEM_TRY(memory.reserve());
  GPUMEM_TRY(memory.charge(request.require | request.prefer));
  memory.memory().set_closed(closed);
  request.sort = kind.sort;
  auto made = with_room(context, [&] { return device.backend().create_memory(request); });
  if (!made) return made.error();
  return memory.finish(std::move(*made));
}

Result<CreatedMemory> register_memory(DeviceObject& device_object, backend::RegistrationRequest request,
                                      std::string name) {
  Context& context = device_object.context();
  Device& device = device_object.device();

  const auto usable = device.usable();
  if (auto outside = outside_host_function(); !outside) return usable ? outside.error() : usable.error();
  const auto open = context.stay_open();
  if (!open) return open.error();
  backend::MemoryRequest asked;
  asked.size = request.size;
  asked.require = request.require;
  asked.prefer = request.prefer;
  NewMemory memory(device_object, kinds::registered, asked, std::move(name));

  GPUMEM_TRY(memory.reserve());
  // Look, because another thread may release what is in the way.
  if (const platform::Look look(platform::thread_record());
      const RegionRange* const taken = memory.reserve_range(request.pointer)) {
    // Memory of the wrong kind comes before a lost device, and that before memory that is taken (COM-17).
    const bool in_pool = region_of(*taken).pool_blocks() != nullptr;
    const Error why = range_taken(in_pool ? kinds::pool : taken->owner->traits());
    if (why.status != GPUMEM_ERROR_WRONG_KIND) GPUMEM_TRY(usable);
    return why;
  }
  GPUMEM_TRY(check_not_foreign(context, request, usable));
  GPUMEM_TRY(usable);
  GPUMEM_TRY(settle_flags(device, kinds::registered, request.require, &request.prefer));
  GPUMEM_TRY(memory.charge());
  auto made = device.backend().register_memory(request);
  if (!made) return made.error();
  return memory.finish(std::move(*made));
}

Result<AdoptedMemory> adopt_memory(DeviceObject& device_object, NewImport wanted, const MakeMapping& make) {
  backend::MemoryRequest asked;
  asked.size = wanted.size;
  NewMemory memory(device_object, wanted.on_device ? kinds::imported : kinds::imported_host, asked,
                   std::move(wanted.name));
  GPUMEM_TRY(memory.reserve());
  memory.memory().set_peer(std::move(wanted.peer));
  memory.memory().importer_ = &wanted.importer;
  auto made = with_room(device_object.context(), make);
  if (!made) return made.error();
  Memory* const adopted = &memory.memory();
  return AdoptedMemory{adopted, memory.finish(std::move(*made))};
}

Line Memory::describe() const {
  const void* const address = info().host_pointer != nullptr ? info().host_pointer : info().device_pointer;
  return line_of("%s memory %s: %" PRIu64 " byte%s at %p, device %u%s", kind_name(kind()), shown(name()),
                 size(), plural(size()), address, device().ordinal(), pool_note());
}

void Memory::list(Fields& fields) const noexcept {
  fields.add("name", name());
  fields.add("kind", traits().name);
  fields.add("size", size());
  if (info().host_pointer != nullptr) fields.add_address("host_pointer", info().host_pointer);
  if (info().device_pointer != nullptr) fields.add_address("device_pointer", info().device_pointer);
  fields.add("device", uint64_t{device().ordinal()});
  if (pool_blocks() != nullptr) fields.add_true("of_pool");
  if (pool_blocks() != nullptr && !pool_blocks()->listed()) fields.add_true("pool_destroyed");
}

Result<void> Memory::release() {
  set_state(State::kLeaving);
  const bool kept = importer_ != nullptr && importer_->keep_mapped(*this);
  if (!kept) {
    set_state(State::kReleasing);
    if (auto released = backend().release(); !released) {
      set_state(State::kLive);
      return released;
    }
  }
  forget();
  if (importer_ != nullptr) importer_->forget(*this);
  end_functions_writing(*this);
  return {};
}

void Memory::forget() noexcept {
  erase(context().page_map());
  NewMemory::refund(context(), *this, size());
  context().statistics().remove(traits(), size());
}

namespace {

// BUSY while the CPU accesses managed memory.
Result<void> check_not_accessed(const Memory& memory) {
  if (memory.managed() == nullptr || !memory.managed()->accessed()) return {};
  return make_error(GPUMEM_ERROR_BUSY,
                    "the CPU is accessing the managed memory; call gpumem_managed_end_host_access() first");
}

}  // namespace

Result<void> Memory::may_end() {
  GPUMEM_TRY(check_not_accessed(*this));
  return check_unused(*this, [this] { return backend().check_unused(); });
}

Result<void> Memory::may_end_unused() { return check_not_accessed(*this); }

Object::Discard Memory::discard() const noexcept {
  return [](uint64_t handle) { return give_back<Memory>(handle, destroy_memory); };
}

Result<void> destroy_memory(Ref<Memory> memory) {
  if (memory->importer_ == nullptr) return destroy_object(std::move(memory));
  GPUMEM_TRY(outside_host_function());
  Importer& importer = *memory->importer_;
  return importer.destroy(std::move(memory));
}

namespace {

// Freeing by pointer reports NOT_FOUND, never STALE_HANDLE.
Result<void> destroy_found(Ref<Memory> memory, const void* pointer) {
  auto destroyed = destroy_memory(std::move(memory));
  if (destroyed || destroyed.error().status != GPUMEM_ERROR_STALE_HANDLE) return destroyed;
  return make_error(GPUMEM_ERROR_NOT_FOUND, "another thread has just freed the memory at %p", pointer);
}

Error freed_otherwise(const Region& region, const void* pointer) {
  if (region.in_parts() && static_cast<const Range&>(region).owned()) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the memory at %p belongs to a buffer; use gpumem_buffer_destroy()", pointer);
  }
  return make_error(GPUMEM_ERROR_WRONG_KIND, "the memory at %p is %s memory; use %s", pointer,
                    region.traits().name, region.traits().freed_by);
}

}  // namespace

namespace {

Result<void> check_not_owned(const Memory& memory) {
  if (!memory.owned()) return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE, "the memory belongs to a buffer or a ring; destroy that");
}

}  // namespace

Result<void> destroy_for_user(Ref<Memory> memory) {
  GPUMEM_TRY(check_not_owned(*memory));
  return destroy_memory(std::move(memory));
}

Result<void> free_pointer(Context& context, const void* pointer) {
  FoundRegion found = find_region(context, pointer);
  if (!found.region) {
    if (is_of_another_instance(context, pointer)) {
      return make_error(GPUMEM_ERROR_NOT_FOUND,
                        "%p is memory of another instance of this process; free it there", pointer);
    }
    return make_error(
        GPUMEM_ERROR_NOT_FOUND,
        "this instance has no allocation at %p; it may be freed already, or belong to other code", pointer);
  }
  if (found.region->pool_blocks() != nullptr) {
    return make_error(GPUMEM_ERROR_WRONG_KIND,
                      "the memory at %p is a block of a pool; use gpumem_pool_free()", pointer);
  }
  if (!found.region->traits().allocated()) return freed_otherwise(*found.region, pointer);
  if (found.offset != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "%p is at offset %" PRIu64 " in an allocation of %" PRIu64
                      " bytes; pass the pointer to its first byte",
                      pointer, found.offset, found.region->size());
  }
  auto memory = std::move(found.region).as<Memory>();
  GPUMEM_TRY(check_not_owned(*memory));
  return destroy_found(std::move(memory), pointer);
}

Result<void> unregister_pointer(Context& context, const void* pointer) {
  FoundRegion found = find_region(context, pointer);
  if (!found.region) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "this instance has registered nothing at %p", pointer);
  }
  if (found.region->pool_blocks() != nullptr) {
    return make_error(GPUMEM_ERROR_WRONG_KIND,
                      "the memory at %p is a block of a pool; use gpumem_pool_free()", pointer);
  }
  if (!found.region->traits().registered) return freed_otherwise(*found.region, pointer);
  const void* const registered = found.region->facts().host_pointer;
  if (found.offset != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "%p is inside a registered range; pass the pointer that was registered", pointer);
  }
  if (pointer != registered) {
    return make_error(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        "%p is the device address of registered memory; pass the pointer that was registered, %p", pointer,
        registered);
  }
  return destroy_found(std::move(found.region).as<Memory>(), pointer);
}

}  // namespace gpumem::core
