// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Capabilities: by attribute, and where possible by a trial that leaves nothing behind (COM-21).
#include "backends/cuda/memory.h"
#include "backends/cuda/peers.h"
#include "base/cleanup.h"
#include "platform/numa.h"
#include "platform/pages.h"

namespace gpumem::cuda {
namespace {

using backend::Capability;

[[gnu::format(printf, 3, 4)]] Capability answer(uint64_t value, gpumem_answer_source source,
                                                const char* format, ...) {
  Capability result;
  result.value = value;
  result.source = source;
  if (value == GPUMEM_ANSWER_NO) result.status = GPUMEM_ERROR_UNSUPPORTED;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(result.reason, sizeof result.reason, format, arguments);
  va_end(arguments);
  return result;
}

Capability amount(gpumem_answer_type type, uint64_t value, gpumem_answer_source source, const char* reason) {
  Capability result = answer(value, source, "%s", reason);
  result.type = type;
  result.status = GPUMEM_SUCCESS;
  return result;
}

Capability failed(const Error& error, gpumem_answer_source source) {
  Capability result =
      answer(GPUMEM_ANSWER_NO, source, "%.*s", static_cast<int>(sizeof result.reason) - 1, error.message);
  result.status = error.status;
  // The driver returns this to every call in one of its callbacks.
  result.passing = error.native_domain == GPUMEM_NATIVE_CUDA && error.native_code == CUDA_ERROR_NOT_PERMITTED;
  result.set_native(error);
  return result;
}

Capability by_attribute(Device& device, CUdevice_attribute number, const char* name) {
  auto value = device.attribute(number);
  if (!value) return failed(value.error(), GPUMEM_ANSWER_FROM_ATTRIBUTE);
  return answer(*value != 0 ? GPUMEM_ANSWER_YES : GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                "the driver returned %d for the attribute %s", *value, name);
}
#define GPUMEM_BY_ATTRIBUTE(name) by_attribute(*this, CU_DEVICE_ATTRIBUTE_##name, #name)

// `make` makes a memory.
template <class Make>
Capability try_memory(Device& device, Make make, const char* what) {
  RelaxedScope scope(device);  // around both, so that what could be made can also be released
  if (auto entered = scope.entered(); !entered) return failed(entered.error(), GPUMEM_ANSWER_FROM_TRIAL);
  auto memory = make();
  if (!memory) return failed(memory.error(), GPUMEM_ANSWER_FROM_TRIAL);
  // Nothing else will free it, and a release may return the error of earlier work.
  auto released = (*memory)->release();
  if (!released) released = (*memory)->release();
  if (!released) return failed(released.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL, "%s worked", what);
}

Capability try_write_combined(Device& device) {
  backend::MemoryRequest request;
  request.size = platform::page_size();
  request.sort = backend::MemorySort::kPinned;
  request.require = GPUMEM_MEMORY_WRITE_COMBINED;
  return try_memory(
      device, [&] { return device.create_memory(request); }, "allocating a write-combined page");
}

Capability try_register(Device& device) {
  const uint64_t page = platform::page_size();
  auto mapping = platform::map_anonymous(page, page);
  if (!mapping) return failed(mapping.error(), GPUMEM_ANSWER_FROM_TRIAL);
  backend::RegistrationRequest request;
  request.pointer = *mapping;
  request.size = page;
  const Cleanup end_page([&] {
    // As for pinned memory: after a loss the driver may still consider the page registered.
    if (device.lost()) {
      (void)platform::make_inaccessible(*mapping, page);
    } else {
      platform::unmap(*mapping, page);
    }
  });
  return try_memory(
      device, [&] { return device.register_memory(request); }, "registering a page");
}

Capability try_numa(Device& device) {
  if (!device.traits().same_pointer) {
    return answer(
        GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
        "the driver has no NUMA parameter, and on some device registered memory has a different address");
  }
  const uint64_t page = platform::page_size();
  auto mapping = platform::map_anonymous(page, page);
  if (!mapping) return failed(mapping.error(), GPUMEM_ANSWER_FROM_TRIAL);
  const int32_t node = std::max(device.facts().numa_node, 0);
  auto bound = platform::bind_to_node(*mapping, page, node);
  platform::unmap(*mapping, page);
  if (!bound) return failed(bound.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL, "binding a page to node %d worked", node);
}

// Value writes and waits have two versions with separate attributes.
bool has_new_value_calls(const Driver& cu) { return cu.StreamWriteValue32.version >= 11070; }

Capability missing(const char* entry_point) {
  Capability result = answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                             "this driver lacks %s; install a newer driver", entry_point);
  result.status = GPUMEM_ERROR_SYMBOL_MISSING;
  return result;
}

}  // namespace

Capability Device::try_peer_access(Device& peer) {
  auto can = can_access_peer(peer);
  if (!can) return failed(can.error(), GPUMEM_ANSWER_FROM_ATTRIBUTE);
  if (!*can) {
    return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                  "the driver reports no link from device %u to device %u", facts_.ordinal,
                  peer.facts().ordinal);
  }
  const auto already = [] {
    return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL, "the access is already enabled");
  };
  Peers& known = peers();
  const std::lock_guard lock(known.mutex);
  if (known.holders.contains({context_, peer.context_})) return already();
  RelaxedScope scope(*this);
  if (auto entered = scope.entered(); !entered) return failed(entered.error(), GPUMEM_ANSWER_FROM_TRIAL);
  auto enabled = enable_peer_access_locked(known, peer);
  if (!enabled) return failed(enabled.error(), GPUMEM_ANSWER_FROM_TRIAL);
  if (!*enabled) return already();
  auto disabled = disable_peer_access_locked(known, peer);
  if (!disabled) disabled = disable_peer_access_locked(known, peer);
  if (!disabled) return failed(disabled.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL, "enabling the access worked");
}

Capability Device::capability(gpumem_capability capability, backend::Device* peer) {
  switch (capability) {
    case GPUMEM_CAPABILITY_UVA:
      return GPUMEM_BY_ATTRIBUTE(UNIFIED_ADDRESSING);
    case GPUMEM_CAPABILITY_DEVICE_COUNT:
      return amount(GPUMEM_ANSWER_TYPE_INT, all_.size(), GPUMEM_ANSWER_FROM_ATTRIBUTE,
                    "the number of devices that the driver reports");
    case GPUMEM_CAPABILITY_DEVICE_BYTES:
      return amount(GPUMEM_ANSWER_TYPE_BYTES, facts_.total_bytes, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                    "the driver says so");
    case GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS:
      return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_CONTRACT,
                    "the CPU cannot access device memory on any platform known to this version");
    case GPUMEM_CAPABILITY_PIN_MAP_HOST:
      // Queried when the device is opened: a host function may need the answer and cannot call the driver.
      return answer(traits_.can_map_host ? GPUMEM_ANSWER_YES : GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                    "the driver's attribute CAN_MAP_HOST_MEMORY is %d", traits_.can_map_host);
    case GPUMEM_CAPABILITY_PIN_PAGE_LOCKED:
      if (traits_.uses_host_page_tables) {
        return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                      "the device uses the host's page tables, so pages are not locked");
      }
      return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                    "the device does not use the host's page tables, so pages are locked");
    case GPUMEM_CAPABILITY_PIN_WRITE_COMBINED:
      return try_write_combined(*this);
    case GPUMEM_CAPABILITY_PIN_REGISTER: {
      const Capability said = GPUMEM_BY_ATTRIBUTE(HOST_REGISTER_SUPPORTED);
      return said.value == GPUMEM_ANSWER_NO ? said : try_register(*this);
    }
    case GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER:
      return answer(traits_.same_pointer ? GPUMEM_ANSWER_YES : GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                    "the attribute CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is %s",
                    traits_.same_pointer ? "set on every device" : "not set on every device");
    case GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY:
      return GPUMEM_BY_ATTRIBUTE(READ_ONLY_HOST_REGISTER_SUPPORTED);
    case GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY:
      if (cu_.MemHostRegister.function == nullptr) return missing("cuMemHostRegister");
      return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_CONTRACT,
                    "the driver decides for each range, and has no attribute to query");
    case GPUMEM_CAPABILITY_PIN_MAX_SINGLE:
      return amount(GPUMEM_ANSWER_TYPE_BYTES, largest_registration(cu_), GPUMEM_ANSWER_FROM_CONTRACT,
                    "a known limit of the driver; larger ranges are locked in pieces");
    case GPUMEM_CAPABILITY_PIN_MAX_COUNT:
      return amount(GPUMEM_ANSWER_TYPE_INT, kRegistrationsMax, GPUMEM_ANSWER_FROM_CONTRACT,
                    "approximately the kernel's limit on mappings in a process");
    case GPUMEM_CAPABILITY_PIN_NUMA:
      return try_numa(*this);
    case GPUMEM_CAPABILITY_HOST_ATOMICS: {
      Capability full = GPUMEM_BY_ATTRIBUTE(HOST_NATIVE_ATOMIC_SUPPORTED);
      auto some = attribute(CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED);
      if (!some) return failed(some.error(), GPUMEM_ANSWER_FROM_ATTRIBUTE);
      if (*some != 0) {
        return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                      "the link to the host supports only some atomics");
      }
      return full;
    }
    case GPUMEM_CAPABILITY_PAGEABLE:
      return GPUMEM_BY_ATTRIBUTE(PAGEABLE_MEMORY_ACCESS);
    case GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES:
      return GPUMEM_BY_ATTRIBUTE(PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    case GPUMEM_CAPABILITY_STREAM_VALUE32:
      if (cu_.StreamWriteValue32.function == nullptr) return missing("cuStreamWriteValue32");
      if (cu_.StreamWaitValue32.function == nullptr) return missing("cuStreamWaitValue32");
      if (!has_new_value_calls(cu_)) return GPUMEM_BY_ATTRIBUTE(CAN_USE_STREAM_MEM_OPS_V1);
      return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_CONTRACT,
                    "every device that this driver supports has it");
    case GPUMEM_CAPABILITY_STREAM_VALUE64:
      if (cu_.StreamWriteValue64.function == nullptr) return missing("cuStreamWriteValue64");
      if (cu_.StreamWaitValue64.function == nullptr) return missing("cuStreamWaitValue64");
      if (!has_new_value_calls(cu_)) return GPUMEM_BY_ATTRIBUTE(CAN_USE_64_BIT_STREAM_MEM_OPS_V1);
      return GPUMEM_BY_ATTRIBUTE(CAN_USE_64_BIT_STREAM_MEM_OPS);
    case GPUMEM_CAPABILITY_STREAM_VALUE_NOR:
      if (cu_.StreamWaitValue32.function == nullptr) return missing("cuStreamWaitValue32");
      if (!has_new_value_calls(cu_)) return GPUMEM_BY_ATTRIBUTE(CAN_USE_STREAM_WAIT_VALUE_NOR_V1);
      return GPUMEM_BY_ATTRIBUTE(CAN_USE_STREAM_WAIT_VALUE_NOR);
    case GPUMEM_CAPABILITY_COPY_ENGINES: {
      auto engines = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
      if (!engines) {
        Capability unknown = failed(engines.error(), GPUMEM_ANSWER_FROM_ATTRIBUTE);
        unknown.type = GPUMEM_ANSWER_TYPE_INT;
        return unknown;
      }
      return amount(GPUMEM_ANSWER_TYPE_INT, static_cast<uint64_t>(*engines), GPUMEM_ANSWER_FROM_ATTRIBUTE,
                    "the driver's attribute ASYNC_ENGINE_COUNT");
    }
    case GPUMEM_CAPABILITY_PEER_ACCESS:
      return try_peer_access(static_cast<Device&>(*peer));
    case GPUMEM_CAPABILITY_PEER_ATOMICS: {
      int native = 0;
      auto asked = check(cu_.DeviceGetP2PAttribute(&native, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                                   handle_, static_cast<Device&>(*peer).handle_),
                         Place::kHost, "cannot query whether the link supports atomics");
      if (!asked) return failed(asked.error(), GPUMEM_ANSWER_FROM_ATTRIBUTE);
      return answer(native != 0 ? GPUMEM_ANSWER_YES : GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                    "the link's attribute NATIVE_ATOMIC_SUPPORTED is %d", native);
    }
    default:
      return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_CONTRACT,
                    "unknown to this version of the cuda backend");
  }
}

}  // namespace gpumem::cuda
