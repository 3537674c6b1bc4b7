// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/operand.h"

#include <chrono>
#include <cinttypes>
#include <thread>

#include "base/arithmetic.h"
#include "core/host_function.h"
#include "core/instance.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

void* advance(void* base, uint64_t offset) {
  return base == nullptr ? nullptr : pointer_to(address_of(base) + offset);
}

Error leaves_object(const char* what, gpumem_kind kind, uint64_t offset, uint64_t size,
                    uint64_t object_size) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "%s covers %" PRIu64 " bytes from offset %" PRIu64
                    ", but the %s memory there has %" PRIu64 " bytes",
                    what, size, offset, kind_name(kind), object_size);
}

// What the mapping of the process allows.
gpumem_access mapped_access(const void* address) {
  switch (platform::probe(address, 1)) {
    case platform::Mapping::kWritable:
      return GPUMEM_ACCESS_READWRITE;
    case platform::Mapping::kReadOnly:
      return GPUMEM_ACCESS_READ;
    default:
      return GPUMEM_ACCESS_NONE;
  }
}

// What work of a device may do with a memory in place (UVA-5).
gpumem_access device_access(const Memory& memory, const Device& device) {
  if (memory.kind() == GPUMEM_KIND_DEVICE) {
    const bool reaches = &device == &memory.device() || device.has_peer_access(memory.device());
    return reaches ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE;
  }
  if (memory.reachable_by(device, true)) return GPUMEM_ACCESS_READWRITE;
  return memory.reachable_by(device, false) ? GPUMEM_ACCESS_READ : GPUMEM_ACCESS_NONE;
}

// The same for the CPU.
gpumem_access cpu_access(const Memory& memory, uint64_t offset) {
  if (memory.facts().host_pointer != nullptr) {
    return mapped_access(advance(memory.facts().host_pointer, offset));
  }
  // Neither backend asks a driver about this.
  const backend::Capability can = memory.device().capability(GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS);
  return can.value == GPUMEM_ANSWER_YES ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE;
}

gpumem_pointer_info info_of(const Registry::Found& found) {
  const Memory& memory = *found.memory;
  const backend::MemoryFacts& facts = memory.facts();
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  info.kind = memory.kind();
  const auto ordinal = static_cast<int32_t>(memory.device().ordinal());
  if (memory.kind() == GPUMEM_KIND_DEVICE) {
    info.location = GPUMEM_LOCATION_DEVICE;
    info.location_id = ordinal;
  } else if (memory.has(GPUMEM_MEMORY_NUMA_NODE)) {
    info.location = GPUMEM_LOCATION_HOST_NUMA;
    info.location_id = facts.numa_node;
  } else {
    info.location = GPUMEM_LOCATION_HOST;
    info.location_id = -1;
  }
  info.device_ordinal = ordinal;
  info.host_pointer = advance(facts.host_pointer, found.offset);
  info.device_pointer = advance(facts.device_pointer, found.offset);
  info.base = pointer_to(found.base);
  info.size = memory.size();
  info.buffer_id = memory.buffer_id();
  info.granted_flags = facts.granted;
  info.memory = reinterpret_cast<gpumem_memory>(pointer_to(memory.handle()));
  return info;
}

// What an address is: memory of the instance, or else what the driver knows of it.
struct Answer {
  Registry::Found found;
  backend::PointerFacts facts;  // meaningful if `found` is empty
};

Result<Answer> look_up(Instance& instance, const void* pointer) {
  // While another thread creates memory, the driver may know an address a moment before the registry does. A
  // look at a time of calm is waited for, though not for ever: locking much memory takes seconds.
  constexpr int kPatience = 500;
  for (int attempt = 0;; ++attempt) {
    const uint64_t begun = instance.creations_begun();
    const bool calm = !instance.creates_now();
    Answer answer{instance.registry().find(address_of(pointer)), {}};
    // The driver is not asked about memory that is just being made or destroyed by another call either.
    if (answer.found.memory || answer.found.in_transition) return answer;
    GPUMEM_TRY(outside_host_function());
    auto facts = instance.backend().pointer_facts(pointer);
    if (!facts) return facts.error();
    if (facts->kind != GPUMEM_KIND_FOREIGN) return answer;
    if (facts->base != nullptr) {
      // Nor is it believed about the bytes that an allocation was granted beyond what was asked for.
      const Registry::Found owner = instance.registry().find(address_of(facts->base));
      if (facts->base != pointer && (owner.memory || owner.in_transition)) return answer;
    }
    if ((calm && instance.creations_begun() == begun) || attempt == kPatience) {
      answer.facts = *facts;
      return answer;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool is_readable(const void* address) { return platform::readable(address, 1); }

}  // namespace

Result<FoundOperand> find_operand(Instance& instance, const void* address, uint64_t size, const char* what) {
  const uint64_t first = address_of(address);
  FoundOperand result;
  result.operand.address = const_cast<void*>(address);

  auto answer = look_up(instance, address);
  if (!answer) return answer.error();
  Registry::Found& found = answer->found;
  if (found.memory) {
    auto own = operand_of(std::move(found.memory), found.offset, size, what);
    if (own) own->operand.address = result.operand.address;
    return own;
  }

  if (found.in_transition && found.transition_kind != GPUMEM_KIND_REGISTERED) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "%s is being freed by another thread", what);
  }
  // Where nothing is, it does not matter what lies behind (COM-17). What has begun at the first byte since it
  // was looked up may be left out of account: the call might have come before it.
  if (!found.in_transition && instance.registry().begins_inside(first, size) && is_readable(address)) {
    return make_error(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        "%s begins in ordinary memory and runs into memory of this instance; copy the parts one by one",
        what);
  }
  const backend::PointerFacts* facts = &answer->facts;
  if (facts->kind == GPUMEM_KIND_FOREIGN) {
    if (facts->base != nullptr && facts->size != 0) {
      const uint64_t offset = first - address_of(facts->base);
      if (offset >= facts->size || size > facts->size - offset) {
        return leaves_object(what, facts->kind, offset, size, facts->size);
      }
    }
    result.operand.kind = GPUMEM_KIND_FOREIGN;
    result.operand.on_device = facts->location == GPUMEM_LOCATION_DEVICE;
    result.device_ordinal = facts->device_ordinal;
    return result;
  }
  const uint64_t last = first + size - 1;
  if (!is_readable(address) || !is_readable(pointer_to(last))) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "%s, %" PRIu64 " bytes at %p, is no readable memory", what,
                      size, address);
  }
  result.operand.kind = GPUMEM_KIND_PAGEABLE;
  return result;
}

Result<FoundOperand> operand_of(Ref<Memory> memory, uint64_t offset, uint64_t size, const char* what) {
  if (offset > memory->size() || size > memory->size() - offset) {
    return leaves_object(what, memory->kind(), offset, size, memory->size());
  }
  const backend::MemoryFacts& facts = memory->facts();
  FoundOperand result;
  result.operand.address =
      advance(facts.host_pointer != nullptr ? facts.host_pointer : facts.device_pointer, offset);
  result.operand.kind = memory->kind();
  result.operand.memory = memory->backend();
  result.operand.offset = offset;
  result.operand.on_device = memory->kind() == GPUMEM_KIND_DEVICE;
  result.device_ordinal = static_cast<int32_t>(memory->device().ordinal());
  result.memory = std::move(memory);
  return result;
}

Result<gpumem_pointer_info> pointer_info(Instance& instance, const void* pointer) {
  auto answer = look_up(instance, pointer);
  if (!answer) return answer.error();
  if (answer->found.memory) return info_of(answer->found);
  const backend::PointerFacts* facts = &answer->facts;
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  info.location_id = -1;
  info.device_ordinal = -1;
  if (facts->kind == GPUMEM_KIND_FOREIGN) {
    info.kind = GPUMEM_KIND_FOREIGN;
    info.location = facts->location;
    info.location_id = facts->location_id;
    info.device_ordinal = facts->device_ordinal;
    info.host_pointer = facts->host_pointer;
    info.device_pointer = facts->device_pointer;
    info.base = facts->base;
    info.size = facts->size;
    info.buffer_id = facts->buffer_id;
    return info;
  }
  if (!is_readable(pointer)) return info;
  info.kind = GPUMEM_KIND_PAGEABLE;
  info.location = GPUMEM_LOCATION_HOST;
  info.host_pointer = const_cast<void*>(pointer);
  for (const auto& device : instance.devices()) {
    if (device->capability(GPUMEM_CAPABILITY_PAGEABLE).value != GPUMEM_ANSWER_YES) continue;
    info.device_pointer = const_cast<void*>(pointer);
  }
  return info;
}

Result<gpumem_access> pointer_access(Instance& instance, const void* pointer, Device* device) {
  auto answer = look_up(instance, pointer);
  if (!answer) return answer.error();
  if (const Registry::Found& found = answer->found; found.memory) {
    return device != nullptr ? device_access(*found.memory, *device)
                             : cpu_access(*found.memory, found.offset);
  }
  if (answer->facts.kind == GPUMEM_KIND_FOREIGN) return GPUMEM_ACCESS_UNKNOWN;
  if (device != nullptr && device->capability(GPUMEM_CAPABILITY_PAGEABLE).value != GPUMEM_ANSWER_YES) {
    return GPUMEM_ACCESS_NONE;
  }
  return mapped_access(pointer);
}

Result<void*> device_pointer(DeviceObject& device_object, const void* pointer) {
  Device& device = device_object.device();
  Instance& instance = device_object.instance();
  auto answer = look_up(instance, pointer);
  if (!answer) return answer.error();
  const Registry::Found& found = answer->found;
  if (found.memory) {
    const Memory& memory = *found.memory;
    GPUMEM_TRY(memory.reachable_by(device, false));
    // The registry answers also after a device was lost, when every capability is a NO (COM-18).
    if (memory.kind() != GPUMEM_KIND_DEVICE && device.usable())
      GPUMEM_TRY(device.need(GPUMEM_CAPABILITY_PIN_MAP_HOST));
    return advance(memory.facts().device_pointer, found.offset);
  }
  const backend::PointerFacts* facts = &answer->facts;
  if (facts->kind == GPUMEM_KIND_FOREIGN) return device.backend().foreign_device_pointer(pointer);
  if (!is_readable(pointer)) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "no known memory is at %p", pointer);
  }
  GPUMEM_TRY(device.need(GPUMEM_CAPABILITY_PAGEABLE));
  return const_cast<void*>(pointer);
}

}  // namespace gpumem::core
