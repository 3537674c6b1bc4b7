// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/device/capability.h"

#include <array>
#include <cstdio>

#include "base/cleanup.h"
#include "base/text.h"
#include "core/device/device.h"
#include "core/object/host_function_guard.h"
#include "platform/descriptor.h"

namespace gpumem::core {
namespace {

struct CapabilityName {
  gpumem_capability capability;
  const char* name;
};

constexpr std::array kCapabilities{
    CapabilityName{GPUMEM_CAPABILITY_UVA, "uva"},
    CapabilityName{GPUMEM_CAPABILITY_DEVICE_COUNT, "device.count"},
    CapabilityName{GPUMEM_CAPABILITY_DEVICE_BYTES, "device.bytes"},
    CapabilityName{GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS, "dev.cpu_access"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_MAP_HOST, "pin.map_host"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_PAGE_LOCKED, "pin.page_locked"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_WRITE_COMBINED, "pin.write_combined"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_REGISTER, "pin.register"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER, "pin.register_same_pointer"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY, "pin.register_read_only"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY, "pin.register_iomemory"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_MAX_SINGLE, "pin.max_single"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_MAX_COUNT, "pin.max_count"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_NUMA, "pin.numa"},
    CapabilityName{GPUMEM_CAPABILITY_HOST_ATOMICS, "host.atomics"},
    CapabilityName{GPUMEM_CAPABILITY_PAGEABLE, "man.pageable"},
    CapabilityName{GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES, "man.pageable_host_tables"},
    CapabilityName{GPUMEM_CAPABILITY_MANAGED, "man.alloc"},
    CapabilityName{GPUMEM_CAPABILITY_MANAGED_CONCURRENT, "man.concurrent"},
    CapabilityName{GPUMEM_CAPABILITY_MANAGED_DIRECT_FROM_HOST, "man.direct_from_host"},
    CapabilityName{GPUMEM_CAPABILITY_MANAGED_NUMA_LOCATIONS, "man.numa_locations"},
    CapabilityName{GPUMEM_CAPABILITY_MANAGED_BATCH, "man.batch"},
    CapabilityName{GPUMEM_CAPABILITY_MANAGED_DISCARD, "man.discard"},
    CapabilityName{GPUMEM_CAPABILITY_STREAM_VALUE32, "stream.value32"},
    CapabilityName{GPUMEM_CAPABILITY_STREAM_VALUE64, "stream.value64"},
    CapabilityName{GPUMEM_CAPABILITY_STREAM_VALUE_NOR, "stream.value_nor"},
    CapabilityName{GPUMEM_CAPABILITY_COPY_ENGINES, "copy.engines"},
    CapabilityName{GPUMEM_CAPABILITY_COPY_BATCH, "copy.batch"},
    CapabilityName{GPUMEM_CAPABILITY_PEER_ACCESS, "peer.access"},
    CapabilityName{GPUMEM_CAPABILITY_PEER_ATOMICS, "peer.atomics"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_DEVICE, "vmm.device"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_HOST, "vmm.host"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_HOST_NUMA, "vmm.host_numa"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_GRANULARITY_MIN, "vmm.granularity_min"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_GRANULARITY_RECOMMENDED, "vmm.granularity_rec"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD, "vmm.handle_posix_fd"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC, "vmm.handle_fabric"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_COMPRESSIBLE, "vmm.compressible"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_RDMA, "vmm.rdma"},
    CapabilityName{GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS, "vmm.hw_decompress"},
    CapabilityName{GPUMEM_CAPABILITY_SHARE_LEGACY, "share.legacy"},
    CapabilityName{GPUMEM_CAPABILITY_SHARE_EVENTS, "share.events"},
    CapabilityName{GPUMEM_CAPABILITY_SHARE_CHANNEL, "share.channel"},
    CapabilityName{GPUMEM_CAPABILITY_SHARE_DMA_BUF, "share.dma_buf"},
    CapabilityName{GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE, "share.dma_buf_pcie"},
    CapabilityName{GPUMEM_CAPABILITY_POOL_DRIVER, "pool.driver"},
};

// Whether an answer is temporary, so that the next query tries again: memory was lacking, or descriptors, for
// which a driver may return any code.
bool is_passing(const backend::Capability& answer) {
  const Status status = answer.status;
  if (answer.passing || status == GPUMEM_SUCCESS) return answer.passing;
  if (status != GPUMEM_ERROR_UNSUPPORTED && status != GPUMEM_ERROR_SYMBOL_MISSING &&
      status != GPUMEM_ERROR_PERMISSION_DENIED)
    return true;
  return answer.source == GPUMEM_ANSWER_FROM_TRIAL && platform::out_of_descriptors();
}

void say_untried(backend::Capability& answer) {
  const backend::Capability cause = answer;
  answer.passing = true;
  std::snprintf(answer.reason, sizeof answer.reason, "not known, as it could not be tried now: %.*s",
                static_cast<int>(whole_characters(cause.reason, 200)), cause.reason);
}

}  // namespace

const char* capability_name(gpumem_capability capability) {
  for (const CapabilityName& entry : kCapabilities) {
    if (entry.capability == capability) return entry.name;
  }
  return nullptr;
}

gpumem_capability capability_at(uint32_t index) {
  return index < kCapabilities.size() ? kCapabilities[index].capability : 0;
}

bool is_peer_capability(gpumem_capability capability) {
  return capability == GPUMEM_CAPABILITY_PEER_ACCESS || capability == GPUMEM_CAPABILITY_PEER_ATOMICS;
}

Result<backend::Capability> Device::ask_capability(gpumem_capability capability, Device* peer) {
  GPUMEM_TRY(outside_host_function());
  return this->capability(capability, peer);
}

backend::Capability Device::capability(gpumem_capability capability, Device* peer) {
  backend::Capability answer;
  const std::pair question(capability, static_cast<const Device*>(peer));
  std::unique_lock lock(mutex_);
  // A trial runs once. The lock is not held meanwhile: a trial can wait for work of the device that ends only
  // when another call, with other questions, has gone through.
  trial_ended_.wait(lock, [&] { return !trials_.contains(question); });
  if (const auto found = capabilities_.find(question); found != capabilities_.end()) {
    answer = found->second;
  } else {
    const auto trial = trials_.insert(question).first;
    lock.unlock();
    const Cleanup ended([&] {
      if (!lock) lock.lock();
      trials_.erase(trial);
      trial_ended_.notify_all();
    });
    answer = backend_.capability(capability, peer != nullptr ? &peer->backend() : nullptr);
    lock.lock();
    if (!is_passing(answer)) {
      capabilities_.emplace(question, answer);
    } else if (answer.type == GPUMEM_ANSWER_TYPE_TRI) {
      say_untried(answer);
    }
  }
  if (answer.type == GPUMEM_ANSWER_TYPE_TRI && backend_.lost()) {
    answer.value = GPUMEM_ANSWER_NO;
    answer.status = GPUMEM_ERROR_DEVICE_LOST;
    std::snprintf(answer.reason, sizeof answer.reason, "the device is lost");
  }
  return answer;
}

Result<void> Device::need(gpumem_capability capability) {
  const backend::Capability answer = this->capability(capability);
  if (answer.value != GPUMEM_ANSWER_NO) return {};
  return make_error(answer.status,
                    answer.passing ? "device %u: %s is %s" : "device %u does not support this (%s is NO): %s",
                    ordinal(), capability_name(capability), answer.reason)
      .from_native(answer.native_domain, answer.native_code, answer.native_name, answer.entry_point);
}

Result<backend::Sharing*> Device::sharing() const {
  if (backend::Sharing* const facet = backend().sharing(); facet != nullptr) return facet;
  return make_error(GPUMEM_ERROR_UNSUPPORTED,
                    "device %u shares nothing with other processes; see share.channel", ordinal());
}

}  // namespace gpumem::core
