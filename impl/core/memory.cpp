// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory.h"

#include <array>
#include <atomic>
#include <cinttypes>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/host_function.h"
#include "core/instance.h"

namespace gpumem::core {
namespace {

constinit std::atomic<uint64_t> last_buffer_id{0};

struct FlagNeed {
  gpumem_kind kind;
  gpumem_memory_flags flag;
  gpumem_capability capability;
};

// Flags that stand or fall with a capability. The others are the backend's to grant or refuse at the call.
constexpr std::array kFlagNeeds{
    FlagNeed{GPUMEM_KIND_PINNED, GPUMEM_MEMORY_WRITE_COMBINED, GPUMEM_CAPABILITY_PIN_WRITE_COMBINED},
    FlagNeed{GPUMEM_KIND_PINNED, GPUMEM_MEMORY_NUMA_NODE, GPUMEM_CAPABILITY_PIN_NUMA},
    FlagNeed{GPUMEM_KIND_REGISTERED, GPUMEM_MEMORY_IOMEMORY, GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY},
    FlagNeed{GPUMEM_KIND_REGISTERED, GPUMEM_MEMORY_READ_ONLY, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY},
};

// Refuses what is required and cannot be; drops what is only preferred and cannot be (COM-5, COM-6).
Result<void> settle_flags(Device& device, backend::MemoryRequest& request) {
  if (request.kind == GPUMEM_KIND_REGISTERED) GPUMEM_TRY(device.need(GPUMEM_CAPABILITY_PIN_REGISTER));
  for (const FlagNeed& need : kFlagNeeds) {
    if (need.kind != request.kind || ((request.require | request.prefer) & need.flag) == 0) continue;
    auto can = device.need(need.capability);
    if (can) continue;
    if ((request.require & need.flag) != 0) return can.error();
    request.prefer &= ~need.flag;
  }
  return {};
}

// What a range to be registered must not be (PIN-11, PIN-13); `kind` is that of the memory in the way.
Error range_taken(gpumem_kind kind) {
  if (kind == GPUMEM_KIND_PINNED || kind == GPUMEM_KIND_REGISTERED) {
    return make_error(
        GPUMEM_ERROR_ALREADY_EXISTS,
        "the range shares bytes with memory that is %s already; use that memory, or end it first",
        kind == GPUMEM_KIND_PINNED ? "pinned" : "registered");
  }
  return make_error(GPUMEM_ERROR_WRONG_KIND, "%s memory cannot be registered, only ordinary memory can",
                    kind_name(kind));
}

// The same for memory of other code; `usable` says whether the device is.
Result<void> check_not_foreign(Instance& instance, const backend::MemoryRequest& request,
                               const Result<void>& usable) {
  const uint64_t first = address_of(request.host_pointer);
  bool pinned = false;
  for (const uint64_t address : {first, first + request.size - 1}) {
    auto facts = instance.backend().pointer_facts(pointer_to(address));
    if (!facts) return facts.error();
    if (facts->kind != GPUMEM_KIND_FOREIGN) continue;
    if (facts->location == GPUMEM_LOCATION_DEVICE) return range_taken(GPUMEM_KIND_DEVICE);
    if (facts->location == GPUMEM_LOCATION_HOST) pinned = true;
  }
  GPUMEM_TRY(usable);
  if (pinned) return range_taken(GPUMEM_KIND_PINNED);
  return {};
}

}  // namespace

const char* kind_name(gpumem_kind kind) {
  switch (kind) {
    case GPUMEM_KIND_PAGEABLE:
      return "pageable";
    case GPUMEM_KIND_PINNED:
      return "pinned";
    case GPUMEM_KIND_REGISTERED:
      return "registered";
    case GPUMEM_KIND_DEVICE:
      return "device";
    case GPUMEM_KIND_FOREIGN:
      return "foreign";
    default:
      return "unknown";
  }
}

Memory::Memory(std::shared_ptr<Instance> instance, Device& device, const backend::MemoryRequest& request,
               std::string name)
    : Object(kType, std::move(instance)),
      device_(device),
      request_(request),
      buffer_id_(last_buffer_id.fetch_add(1, std::memory_order_relaxed) + 1),
      name_(std::move(name)) {}

uint64_t Memory::host_base() const { return address_of(facts().host_pointer); }

uint64_t Memory::device_base() const {
  return facts().device_pointer != facts().host_pointer ? address_of(facts().device_pointer) : 0;
}

Result<void> Memory::reachable_by(const Device& device, bool write) const {
  if (kind() != GPUMEM_KIND_REGISTERED) return {};
  if (!has(GPUMEM_MEMORY_MAPPED)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS,
                      "the memory was registered without GPUMEM_MEMORY_MAPPED and has no device pointer");
  }
  if (&device != &device_ && !has(GPUMEM_MEMORY_PORTABLE)) {
    return make_error(
        GPUMEM_ERROR_NO_ACCESS,
        "the memory was registered for device %u without GPUMEM_MEMORY_PORTABLE; device %u cannot reach it",
        device_.ordinal(), device.ordinal());
  }
  if (write && has(GPUMEM_MEMORY_READ_ONLY)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS, "the memory was registered with GPUMEM_MEMORY_READ_ONLY");
  }
  return {};
}

Result<void> Memory::check_unused() const {
  const uint64_t begun = passing_uses_begun_;
  if (passing_uses_ended_ != begun) return {};
  auto unused = backend_->check_unused();
  return passing_uses_begun_ == begun ? unused : Result<void>();
}

Result<uint64_t> create_memory(Ref<DeviceObject> device_object, backend::MemoryRequest request,
                               std::string name) {
  Instance& instance = device_object->instance();
  Device& device = device_object->device();
  const backend::MemoryRequest asked = request;

  const auto usable = device.usable();
  if (auto outside = outside_host_function(); !outside) return usable ? outside.error() : usable.error();
  const auto open = instance.stay_open();
  if (!open) return open.error();
  if (((request.require | request.prefer) & GPUMEM_MEMORY_NUMA_NODE) != 0 &&
      !instance.backend().has_numa_node(request.numa_node)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "there is no NUMA node %d", request.numa_node);
  }

  // All that the record needs is made before the backend is asked.
  auto memory = std::make_unique<Memory>(device_object->shared_instance(), device, asked, std::move(name));
  Registry::Node host_node = Registry::make_node();
  Registry::Node device_node = Registry::make_node();
  auto handle = handles::reserve(*memory);
  if (!handle) return handle.error();
  Cleanup undo_handle([&] { handles::cancel(*memory); });

  // A registration holds its range from now on, so that of two overlapping ones only one asks the driver.
  const bool registers = request.kind == GPUMEM_KIND_REGISTERED;
  const uint64_t registered_base = address_of(request.host_pointer);
  if (registers) {
    gpumem_kind other = GPUMEM_KIND_UNKNOWN;
    if (!instance.registry().insert_unless_overlap(host_node, registered_base, request.size, memory.get(),
                                                   &other)) {
      // Memory of the wrong kind comes before a lost device, and that before memory that is taken (COM-17).
      const Error taken = range_taken(other);
      if (taken.status != GPUMEM_ERROR_WRONG_KIND) GPUMEM_TRY(usable);
      return taken;
    }
  }
  Cleanup undo_registry([&] {
    if (registers) instance.registry().erase(registered_base, memory.get());
  });
  if (registers) GPUMEM_TRY(check_not_foreign(instance, request, usable));
  GPUMEM_TRY(usable);
  GPUMEM_TRY(settle_flags(device, request));

  const bool pins = request.kind != GPUMEM_KIND_DEVICE;
  if (pins) GPUMEM_TRY(instance.charge_pinned(request.size));
  Cleanup undo_charge([&] {
    if (pins) instance.refund_pinned(request.size);
  });

  instance.begin_creation();
  const Cleanup creation_ended([&] { instance.end_creation(); });
  auto made = device.backend().create_memory(request);
  if (!made) return made.error();

  memory->backend_ = std::move(*made);
  undo_handle.dismiss();
  undo_registry.dismiss();
  undo_charge.dismiss();
  if (!registers && memory->host_base() != 0) {
    instance.registry().insert(std::move(host_node), memory->host_base(), memory->size(), memory.get());
  }
  if (memory->device_base() != 0) {
    instance.registry().insert(std::move(device_node), memory->device_base(), memory->size(), memory.get());
  }
  instance.statistics().add(memory->kind(), memory->size());
  instance.add_object(*memory);
  handles::publish(memory.release());
  return *handle;
}

Result<void> release_memory(Memory& memory) {
  Instance& instance = memory.instance();
  const uint64_t host_base = memory.host_base();
  const uint64_t device_base = memory.device_base();
  // Marked first: once the backend has given the addresses back, others may get them.
  const auto set_leaving = [&](bool leaving) {
    instance.registry().set_leaving(host_base, &memory, leaving);
    instance.registry().set_leaving(device_base, &memory, leaving);
  };
  set_leaving(true);
  if (auto released = memory.backend()->release(); !released) {
    set_leaving(false);
    return released;
  }
  forget_memory(memory);
  return {};
}

void forget_memory(Memory& memory) noexcept {
  Instance& instance = memory.instance();
  instance.registry().erase(memory.host_base(), &memory);
  instance.registry().erase(memory.device_base(), &memory);
  if (memory.kind() != GPUMEM_KIND_DEVICE) instance.refund_pinned(memory.size());
  instance.statistics().remove(memory.kind(), memory.size());
  instance.remove_object(memory);
}

Result<void> destroy_memory(Ref<Memory> memory) {
  GPUMEM_TRY(outside_host_function());
  const auto open = memory->instance().stay_open();
  if (!open) return open.error();
  // Asked while the handle is good, so that memory in use never looks to others as if it were gone.
  GPUMEM_TRY(memory->check_unused());
  if (!handles::end(*memory, End::kDestroyed)) {
    return make_error(GPUMEM_ERROR_STALE_HANDLE, "another thread has just destroyed this memory");
  }
  handles::wait_for_others(*memory);
  auto released = release_memory(*memory);
  if (!released) handles::revive(*memory);
  return released;
}

namespace {

// Who destroys by a pointer never had a handle that could be stale.
Result<void> destroy_found(Ref<Memory> memory, const void* pointer) {
  auto destroyed = destroy_memory(std::move(memory));
  if (destroyed || destroyed.error().status != GPUMEM_ERROR_STALE_HANDLE) return destroyed;
  return make_error(GPUMEM_ERROR_NOT_FOUND, "another thread has just given back the memory at %p", pointer);
}

}  // namespace

Result<void> free_pointer(Instance& instance, const void* pointer) {
  Registry::Found found = instance.registry().find(address_of(pointer));
  if (!found.memory) {
    return make_error(
        GPUMEM_ERROR_NOT_FOUND,
        "no allocation of this instance is at %p: never was, freed already, or made by other code", pointer);
  }
  if (found.memory->kind() == GPUMEM_KIND_REGISTERED) {
    return make_error(GPUMEM_ERROR_WRONG_KIND,
                      "the memory at %p is registered, not allocated; use gpumem_unregister", pointer);
  }
  if (found.offset != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "%p lies %" PRIu64 " bytes inside an allocation of %" PRIu64
                      " bytes; pass its first byte",
                      pointer, found.offset, found.memory->size());
  }
  return destroy_found(std::move(found.memory), pointer);
}

Result<void> unregister_pointer(Instance& instance, const void* pointer) {
  Registry::Found found = instance.registry().find(address_of(pointer));
  if (!found.memory) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "this instance registered nothing at %p", pointer);
  }
  if (found.memory->kind() != GPUMEM_KIND_REGISTERED) {
    return make_error(GPUMEM_ERROR_WRONG_KIND,
                      "the memory at %p was allocated, not registered; use gpumem_free", pointer);
  }
  if (found.offset != 0 || address_of(pointer) != found.memory->host_base()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "%p is not the pointer that was registered; pass the first byte as it was registered",
                      pointer);
  }
  return destroy_found(std::move(found.memory), pointer);
}

}  // namespace gpumem::core
