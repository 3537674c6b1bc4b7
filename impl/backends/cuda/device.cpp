// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/driver_pool.h"
#include "backends/cuda/fence.h"
#include "backends/cuda/managed.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/pieces.h"
#include "backends/cuda/pointer.h"
#include "backends/cuda/sharing.h"
#include "backends/cuda/stream.h"
#include "backends/cuda/vmm.h"
#include "base/arithmetic.h"
#include "platform/numa.h"

namespace gpumem::cuda {
namespace {

thread_local CUcontext entered_context = nullptr;  // of the thread's innermost RelaxedScope

}  // namespace

Device::Device(const Driver& cu, const std::vector<CUdevice>& all, uint32_t ordinal)
    : cu_(cu),
      all_(all),
      handle_(all[ordinal]),
      fences_(std::make_unique<Fences>(*this)),
      managed_(std::make_unique<Managed>(*this)),
      pieces_(std::make_unique<Pieces>(*this)),
      virtual_memory_(std::make_unique<VirtualMemory>(*this)),
      sharing_(std::make_unique<Sharing>(*this)),
      held_peers_(all.size()) {
  facts_.ordinal = ordinal;
  facts_.copies_by_cpu = true;  // measured: docs/measured/virtual-memory.md
}

Device::~Device() {
  fences_->release();
  pieces_->close();
  for (DriverPool& pool : driver_pools_)
    pool.close();
  drop_all_peers();
  // A failure cannot be reported or handled here.
  if (retained_) cu_.DevicePrimaryCtxRelease(handle_);
}

Result<std::unique_ptr<Device>> Device::open(const Driver& cu, const std::vector<CUdevice>& all,
                                             uint32_t ordinal, CUcontext context) {
  std::unique_ptr<Device> device(new Device(cu, all, ordinal));
  GPUMEM_TRY(device->fill_facts());
  GPUMEM_TRY(device->fill_traits());
  device->context_ = context;
  bool fresh = false;
  if (context == nullptr) {
    unsigned flags = 0;
    int active = 0;
    fresh = cu.DevicePrimaryCtxGetState(device->handle_, &flags, &active).ok() && active == 0;
    GPUMEM_TRY(device->check(cu.DevicePrimaryCtxRetain(&device->context_, device->handle_), Place::kDevice,
                             "cannot retain the primary context of device %u", ordinal));
    device->retained_ = true;
  }
  device->pieces_->open(fresh);
  return device;
}

Result<void> Device::fill_facts() {
  const auto tell = [&](Outcome outcome) {
    return check(outcome, Place::kHost, "cannot query the properties of device %u", facts_.ordinal);
  };
  char name[256] = "";
  GPUMEM_TRY(tell(cu_.DeviceGetName(name, sizeof name, handle_)));
  facts_.name = name;
  char pci_id[32] = "";
  GPUMEM_TRY(tell(cu_.DeviceGetPCIBusId(pci_id, sizeof pci_id, handle_)));
  facts_.pci_id = pci_id;
  CUuuid uuid{};
  GPUMEM_TRY(tell(cu_.DeviceGetUuid(&uuid, handle_)));
  static_assert(sizeof uuid.bytes == sizeof facts_.uuid);
  std::memcpy(facts_.uuid.data(), uuid.bytes, sizeof uuid.bytes);
  size_t total = 0;
  GPUMEM_TRY(tell(cu_.DeviceTotalMem(&total, handle_)));
  facts_.total_bytes = total;
  const std::pair<CUdevice_attribute, uint32_t*> places[] = {
      {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &facts_.pci_domain},
      {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &facts_.pci_bus},
      {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &facts_.pci_device}};
  for (const auto& [number, place] : places) {
    auto value = attribute(number);
    if (!value) return value.error();
    *place = static_cast<uint32_t>(*value);
  }
  auto major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  if (!major) return major.error();
  facts_.compute_major = *major;
  auto minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  if (!minor) return minor.error();
  facts_.compute_minor = *minor;
  constexpr int kKnowsNode = 12020;
  if (cu_.version < kKnowsNode) return {};
  auto node = attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  if (!node) return node.error();
  facts_.numa_node = *node;
  return {};
}

Result<void> Device::fill_traits() {
  auto map = attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
  if (!map) return map.error();
  traits_.can_map_host = *map != 0;
  auto tables = attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
  if (!tables) return tables.error();
  traits_.uses_host_page_tables = *tables != 0;
  facts_.stages_ordinary = !traits_.uses_host_page_tables;
  auto pitch = attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  if (!pitch) return pitch.error();
  facts_.pitch_max = static_cast<uint64_t>(*pitch);
  traits_.near_a_node = facts_.numa_node >= 0 && platform::numa_node_count() > 1;
  GPUMEM_TRY(fill_managed_traits());
  for (const CUdevice device : all_) {
    int same = 0;
    GPUMEM_TRY(check(
        cu_.DeviceGetAttribute(&same, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device),
        Place::kHost, "cannot query whether registered memory has the same address on a device"));
    traits_.same_pointer = traits_.same_pointer && same != 0;
  }
  return {};
}

Result<void> Device::fill_managed_traits() {
  auto managed = attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
  if (!managed) return managed.error();
  traits_.managed = *managed != 0;
  auto concurrent = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
  if (!concurrent) return concurrent.error();
  traits_.concurrent_managed = *concurrent != 0;
  traits_.all_concurrent_managed = true;
  for (const CUdevice device : all_) {
    int each = 0;
    GPUMEM_TRY(check(cu_.DeviceGetAttribute(&each, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device),
                     Place::kHost, "cannot query whether a device uses managed memory beside the CPU"));
    traits_.all_concurrent_managed = traits_.all_concurrent_managed && each != 0;
  }
  return {};
}

backend::Managed* Device::managed() { return traits_.managed ? managed_.get() : nullptr; }

Result<int> Device::attribute(CUdevice_attribute attribute) {
  int value = 0;
  const Outcome outcome = cu_.DeviceGetAttribute(&value, attribute, handle_);
  if (outcome.code == CUDA_ERROR_INVALID_VALUE) return 0;
  GPUMEM_TRY(check(outcome, Place::kHost, "the query of device %u for attribute %d failed", facts_.ordinal,
                   static_cast<int>(attribute)));
  return value;
}

Scope::Scope(Device& device, CUcontext context) : device_(device) {
  CUcontext current = nullptr;
  if (device.cu().CtxGetCurrent(&current).ok() && current == context) return;
  pushed_ = device.cu().CtxPushCurrent(context);
  pops_ = pushed_.ok();
}

Scope::~Scope() {
  CUcontext popped = nullptr;
  if (pops_) device_.cu().CtxPopCurrent(&popped);
}

Result<void> Scope::entered() {
  return device_.check(pushed_, Place::kHost, "cannot make the context of device %u current",
                       device_.facts().ordinal);
}

Result<void> Scope::entered_for_release() {
  auto result = entered();
  if (device_.lost()) return {};
  return result;
}

RelaxedScope::RelaxedScope(Device& device, CUcontext context)
    : outer_(entered_context), within_(outer_ == context) {
  if (within_) return;
  scope_.emplace(device, context);
  relaxed_.emplace(device.cu());
  entered_context = scope_->entered() ? context : nullptr;
}

RelaxedScope::~RelaxedScope() {
  if (!within_) entered_context = outer_;
}

Outcome Device::call_in_context(Outcome (*call)(void* what), void* what) {
  const Scope scope(*this);
  return scope.outcome().ok() ? call(what) : scope.outcome();
}

Result<void> Device::check(Outcome outcome, Place place, const char* format, ...) {
  if (outcome.ok()) return {};
  va_list arguments;
  va_start(arguments, format);
  const Error error = error_of(outcome, place, format, arguments);
  va_end(arguments);
  if (error.status == GPUMEM_ERROR_DEVICE_LOST) lost_.store(true, std::memory_order_release);
  if (outcome.code == CUDA_ERROR_NOT_PERMITTED && in_host_function()) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "called from a host function of other code; call it from another thread")
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  }
  return error;
}

// Other code's host functions have no mark (COM-27). In them, and only there, the driver refuses this call.
bool Device::in_host_function() {
  CUcontext popped = nullptr;
  const Outcome pushed = cu_.CtxPushCurrent(context_);
  if (pushed.ok()) (void)cu_.CtxPopCurrent(&popped);
  return pushed.code == CUDA_ERROR_NOT_PERMITTED;
}

Error Device::failure(Outcome outcome, const char* what) {
  return check(outcome, Place::kDevice, "%s", what).error();
}

Result<void> Device::check_release(Outcome outcome, const char* what) {
  auto result = check(outcome, Place::kHost, "%s", what);
  if (lost()) return {};
  return result;
}

Result<backend::MemoryAvailable> Device::memory_available() {
  Scope scope(*this);
  GPUMEM_TRY(scope.entered());
  size_t free = 0;
  size_t total = 0;
  GPUMEM_TRY(check(cu_.MemGetInfo(&free, &total), Place::kDevice, "cannot query the free memory of device %u",
                   facts_.ordinal));
  return backend::MemoryAvailable{free, total};
}

Result<uint64_t> Device::trim_graphs() {
  RelaxedScope scope(*this);
  GPUMEM_TRY(scope.entered());
  uint64_t before = 0;
  uint64_t after = 0;
  const auto reserved = [&](uint64_t* bytes) {
    return cu_.DeviceGetGraphMemAttribute(handle_, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
  };
  Outcome outcome = reserved(&before);
  if (outcome.ok()) outcome = cu_.DeviceGraphMemTrim(handle_);
  if (outcome.ok()) outcome = reserved(&after);
  GPUMEM_TRY(
      check(outcome, Place::kDevice, "cannot give back what device %u keeps for graphs", facts_.ordinal));
  return before - std::min(before, after);
}

Result<void> Device::synchronize() {
  RelaxedScope scope(*this);
  GPUMEM_TRY(scope.entered());
  return check(cu_.CtxSynchronize(), Place::kDevice, "cannot wait for the work of device %u", facts_.ordinal);
}

backend::VirtualMemory* Device::vmm() { return virtual_memory_.get(); }

backend::Sharing* Device::sharing() { return sharing_.get(); }

Result<void*> Device::foreign_device_pointer(const void* pointer) {
  RelaxedScope scope(*this);
  GPUMEM_TRY(scope.entered());
  CUdeviceptr address = 0;
  const Outcome outcome = find_device_pointer(cu_, pointer, &address);
  // The driver returns INVALID_VALUE both for memory registered for another device and for unmapped memory.
  if (outcome.code == CUDA_ERROR_INVALID_VALUE) {
    return make_error(GPUMEM_ERROR_NO_ACCESS,
                      "device %u has no address for %p; register the memory with "
                      "GPUMEM_MEMORY_PORTABLE and GPUMEM_MEMORY_MAPPED",
                      facts_.ordinal, pointer)
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  }
  GPUMEM_TRY(
      check(outcome, Place::kDevice, "cannot get an address of device %u for %p", facts_.ordinal, pointer));
  return pointer_to(address);
}

bool refused(Outcome outcome) {
  if (outcome.missing() || outcome.code == CUDA_ERROR_NOT_PERMITTED) return true;  // in a host function
  const Status status = status_of(outcome.code, Place::kHost);
  return status == GPUMEM_ERROR_INVALID_STATE || status == GPUMEM_ERROR_BUSY;
}

}  // namespace gpumem::cuda
