// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/device/device.h"

#include <algorithm>

#include "call.h"
#include "core/instance/instance.h"
#include "gpumem/device.h"

using namespace gpumem;

namespace {

struct DevicePair {
  core::Ref<core::DeviceObject> device;
  core::Ref<core::DeviceObject> peer;
};

DevicePair decode_pair(capi::Decoder& decode, gpumem_device device, gpumem_device peer) {
  DevicePair pair{decode.object<core::DeviceObject>(device), decode.object<core::DeviceObject>(peer)};
  if (pair.device && pair.peer) {
    if (&pair.device->context() != &pair.peer->context()) {
      decode.refuse("the devices belong to different instances");
    }
    if (&pair.device->device() == &pair.peer->device()) decode.refuse("the two devices are the same");
  }
  return pair;
}

}  // namespace

gpumem_status gpumem_device_get(gpumem_instance instance, uint32_t ordinal, gpumem_device* out_device,
                                gpumem_error* error) {
  const bool answered = capi::look(error, [&](uint32_t process) {
    const core::InstanceObject* const known = capi::peek<core::InstanceObject>(instance, process);
    if (known == nullptr || out_device == nullptr) return false;
    const core::Devices& devices = core::Instance::of(known->context()).devices();
    if (ordinal >= devices.size()) return false;
    *out_device = capi::make_handle<gpumem_device>(devices[ordinal].handle());
    return true;
  });
  if (answered) return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_device, "out_device");
    if (object) {
      const size_t count = core::Devices::of(object->context()).size();
      if (ordinal >= count) {
        decode.refuse("there is no device %u; the instance has %zu devices, numbered from 0", ordinal, count);
      }
    }
    GPUMEM_TRY(decode.done());
    *out_device = capi::make_handle<gpumem_device>(core::Devices::of(object->context())[ordinal].handle());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_device_get_info(gpumem_device device, gpumem_device_info* out_info,
                                     gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    const backend::DeviceFacts& facts = object->device().facts();
    gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
    info.ordinal = facts.ordinal;
    info.numa_node = facts.numa_node;
    info.total_bytes = facts.total_bytes;
    std::copy(facts.uuid.begin(), facts.uuid.end(), info.uuid);
    info.pci_domain = facts.pci_domain;
    info.pci_bus = facts.pci_bus;
    info.pci_device = facts.pci_device;
    info.compute_major = facts.compute_major;
    info.compute_minor = facts.compute_minor;
    info.lost = object->device().backend().lost() ? 1 : 0;
    capi::copy_text(info.pci_id, facts.pci_id.c_str());
    capi::copy_text(info.name, facts.name.c_str());
    capi::answer(out_info, info);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_device_get_memory(gpumem_device device, uint64_t* out_free, uint64_t* out_total,
                                       gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    GPUMEM_TRY(decode.done());
    auto available = object->device().memory_available();
    if (!available) return available.error();
    if (out_free != nullptr) *out_free = available->free_bytes;
    if (out_total != nullptr) *out_total = available->total_bytes;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_device_trim_graphs(gpumem_device device, uint64_t* out_released, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    GPUMEM_TRY(decode.done());
    auto released = object->device().trim_graphs();
    if (!released) return released.error();
    if (out_released != nullptr) *out_released = *released;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_device_can_access_peer(gpumem_device device, gpumem_device peer, uint32_t* out_possible,
                                            gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const DevicePair pair = decode_pair(decode, device, peer);
    decode.not_null(out_possible, "out_possible");
    GPUMEM_TRY(decode.done());
    auto possible = pair.device->device().can_access_peer(pair.peer->device());
    if (!possible) return possible.error();
    *out_possible = *possible ? 1 : 0;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_device_enable_peer_access(gpumem_device device, gpumem_device peer,
                                               gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const DevicePair pair = decode_pair(decode, device, peer);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(pair.device->device().enable_peer_access(pair.peer->device()));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_device_disable_peer_access(gpumem_device device, gpumem_device peer,
                                                gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const DevicePair pair = decode_pair(decode, device, peer);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(pair.device->device().disable_peer_access(pair.peer->device()));
    return GPUMEM_SUCCESS;
  });
}
