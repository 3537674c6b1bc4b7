// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Capabilities of emulated devices.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <thread>

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/shared_event.h"
#include "platform/descriptor.h"
#include "platform/numa.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

using backend::Capability;

[[gnu::format(printf, 4, 5)]] Capability make(gpumem_answer_type type, uint64_t value,
                                              gpumem_answer_source source, const char* format, ...) {
  Capability answer;
  answer.type = type;
  answer.value = value;
  answer.source = source;
  const bool no = type == GPUMEM_ANSWER_TYPE_TRI && value == GPUMEM_ANSWER_NO;
  answer.status = no ? GPUMEM_ERROR_UNSUPPORTED : GPUMEM_SUCCESS;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(answer.reason, sizeof answer.reason, format, arguments);
  va_end(arguments);
  return answer;
}

Capability tri(uint64_t value, gpumem_answer_source source, const char* reason) {
  return make(GPUMEM_ANSWER_TYPE_TRI, value, source, "%s", reason);
}

Capability always(uint64_t value, const char* reason) {
  return tri(value, GPUMEM_ANSWER_FROM_CONTRACT, reason);
}

Capability by_option(bool yes, const char* reason) {
  return tri(yes ? GPUMEM_ANSWER_YES : GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_CONFIGURATION, reason);
}

// No, because of this error.
Capability refused(const Error& error, gpumem_answer_source source) {
  Capability answer = tri(GPUMEM_ANSWER_NO, source, error.message);
  answer.status = error.status;
  answer.set_native(error);
  return answer;
}

// Answer for a capability whose entry point the options can mask.
Capability with_entry(const Options& options, EntryPoint entry_point, const char* reason) {
  if (const auto present = options.require(entry_point); !present) {
    return refused(present.error(), GPUMEM_ANSWER_FROM_CONFIGURATION);
  }
  return always(GPUMEM_ANSWER_YES, reason);
}

// Runs a trial on a fresh page.
template <class F>
Result<void> try_page(F trial) {
  const uint64_t page = platform::page_size();
  auto address = platform::map_anonymous(page, page);
  if (!address) return address.error();
  const Range range(*address, page);
  return trial(*address, page);
}

Capability page_locked(const Options& options) {
  if (options.lock_mode == GPUMEM_HOST_LOCK_OFF) {
    return tri(GPUMEM_ANSWER_EMULATED, GPUMEM_ANSWER_FROM_CONFIGURATION, "an option turned locking off");
  }
  const auto locked = try_page(platform::lock);
  if (locked)
    return tri(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL,
               "mlock of one page worked; pages that were locked before stay locked afterwards");
  // Running out of memory in the trial says nothing about the limits.
  if (locked.error().status != GPUMEM_ERROR_LIMIT_EXCEEDED) {
    return refused(locked.error(), GPUMEM_ANSWER_FROM_TRIAL);
  }
  Capability answer =
      make(GPUMEM_ANSWER_TYPE_TRI, GPUMEM_ANSWER_EMULATED, GPUMEM_ANSWER_FROM_TRIAL,
           "pinned memory is not locked, because locking one page failed: %s", locked.error().message);
  answer.set_native(locked.error());
  return answer;
}

Capability numa(const Options& options) {
  if (options.numa_nodes > platform::numa_node_count()) {
    return tri(GPUMEM_ANSWER_EMULATED, GPUMEM_ANSWER_FROM_CONFIGURATION,
               "an option simulates NUMA nodes that the machine does not have");
  }
  int32_t node = 0;
  while (node < 63 && !platform::numa_node_exists(node))
    ++node;
  const auto bound =
      try_page([node](void* address, uint64_t size) { return platform::bind_to_node(address, size, node); });
  if (!bound) return refused(bound.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return make(GPUMEM_ANSWER_TYPE_TRI, GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL,
              "mbind of one page to node %d worked", node);
}

constexpr const char* kSharingIsMasked = "sharing between processes is masked";

Capability shared_events(const std::array<uint8_t, 16>& uuid) {
  Steps steps;
  const auto tried = [&]() -> Result<void> {
    auto event = SharedEvent::create(steps, uuid);
    if (!event) return event.error();
    auto file = (*event)->open_file();
    if (!file) return file.error();
    auto record = (*event)->record();
    if (!record) return record.error();
    return {};
  }();
  if (!tried) return refused(tried.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return tri(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL,
             "a page of memory was opened again, and recorded in");
}

Capability channel() {
  if (const auto passed = platform::try_passing(); !passed)
    return refused(passed.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return tri(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL,
             "a file descriptor went through a pair of Unix sockets");
}

}  // namespace

Capability HostDevice::capability(gpumem_capability capability, backend::Device* peer) {
  const CurrentDevice current(facts_.ordinal);
  Capability result = answer(capability, static_cast<HostDevice*>(peer));
  if (const auto usable = require_not_lost(); !usable && result.type == GPUMEM_ANSWER_TYPE_TRI) {
    return refused(usable.error(), GPUMEM_ANSWER_FROM_CONTRACT);
  }
  return result;
}

Capability HostDevice::answer(gpumem_capability capability, const HostDevice* peer) const {
  const Options& options = shared_.options;
  constexpr gpumem_answer_source kOption = GPUMEM_ANSWER_FROM_CONFIGURATION;
  switch (capability) {
    case GPUMEM_CAPABILITY_UVA:
      return always(GPUMEM_ANSWER_YES, "emulated devices use addresses of this process");
    case GPUMEM_CAPABILITY_DEVICE_COUNT:
      return make(GPUMEM_ANSWER_TYPE_INT, options.device_count, kOption, "as configured");
    case GPUMEM_CAPABILITY_DEVICE_BYTES:
      return make(GPUMEM_ANSWER_TYPE_BYTES, options.device_bytes, kOption, "as configured");
    case GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS:
      return options.strict ? by_option(false, "strict: device memory faults when the CPU touches it")
                            : by_option(true, "not strict: device memory is mapped for the CPU");
    case GPUMEM_CAPABILITY_PIN_MAP_HOST:
      return always(GPUMEM_ANSWER_YES, "emulated devices run on the CPU");
    case GPUMEM_CAPABILITY_PIN_PAGE_LOCKED:
      return page_locked(options);
    case GPUMEM_CAPABILITY_PIN_WRITE_COMBINED:
      return always(GPUMEM_ANSWER_EMULATED, "ordinary cached pages with a separate device address");
    case GPUMEM_CAPABILITY_PIN_REGISTER:
      return with_entry(options, EntryPoint::kRegister, "any mapped memory can be registered");
    case GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER:
      return options.same_pointer
                 ? by_option(true, "an option gives registered memory the same address for CPU and devices")
                 : by_option(false, "registered memory has separate device addresses");
    case GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY:
      return with_entry(options, EntryPoint::kRegister, "kernels and operations that would write fail");
    case GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY:
      return always(GPUMEM_ANSWER_NO, "emulated devices have no I/O memory");
    case GPUMEM_CAPABILITY_PIN_MAX_SINGLE:
      return make(GPUMEM_ANSWER_TYPE_BYTES, options.lock_piece, kOption,
                  "larger ranges are locked in pieces");
    case GPUMEM_CAPABILITY_PIN_MAX_COUNT:
      return make(GPUMEM_ANSWER_TYPE_INT, options.register_count_max, kOption, "as configured");
    case GPUMEM_CAPABILITY_PIN_NUMA:
      return numa(options);
    case GPUMEM_CAPABILITY_HOST_ATOMICS:
      return always(GPUMEM_ANSWER_YES, "kernels use the atomics of the CPU");
    case GPUMEM_CAPABILITY_PAGEABLE:
      return options.pageable ? by_option(true, "an option lets kernels access ordinary memory")
                              : by_option(false, "kernels can access only pinned and device memory");
    case GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES:
      return always(GPUMEM_ANSWER_NO, "the backend translates every view of a kernel itself");
    case GPUMEM_CAPABILITY_MANAGED:
      return always(GPUMEM_ANSWER_YES, "emulated devices use addresses of this process");
    case GPUMEM_CAPABILITY_MANAGED_CONCURRENT:
      return options.concurrent
                 ? by_option(true, "the CPU and devices use managed memory at the same time")
                 : by_option(false, "an option keeps the CPU from memory that a device may use");
    case GPUMEM_CAPABILITY_MANAGED_DIRECT_FROM_HOST:
      return always(GPUMEM_ANSWER_NO, "emulated devices have no pages of their own");
    case GPUMEM_CAPABILITY_MANAGED_NUMA_LOCATIONS:
    case GPUMEM_CAPABILITY_MANAGED_BATCH:
    case GPUMEM_CAPABILITY_MANAGED_DISCARD:
      return options.concurrent ? by_option(true, "the host backend keeps a record of each page")
                                : by_option(false, "the devices are not concurrent");
    case GPUMEM_CAPABILITY_STREAM_VALUE32:
    case GPUMEM_CAPABILITY_STREAM_VALUE64: {
      const Capability write =
          with_entry(options, EntryPoint::kWriteValue, "the CPU writes and polls the words");
      return write.status == GPUMEM_SUCCESS ? with_entry(options, EntryPoint::kWaitValue, write.reason)
                                            : write;
    }
    case GPUMEM_CAPABILITY_STREAM_VALUE_NOR:
      return with_entry(options, EntryPoint::kWaitValue, "the CPU polls the words");
    case GPUMEM_CAPABILITY_COPY_ENGINES:
      return make(GPUMEM_ANSWER_TYPE_INT, std::max(1U, std::thread::hardware_concurrency()),
                  GPUMEM_ANSWER_FROM_ATTRIBUTE, "the number of processors; every stream has its own thread");
    case GPUMEM_CAPABILITY_COPY_BATCH:
      return always(GPUMEM_ANSWER_YES, "the CPU copies; there is no driver to call for each copy");
    case GPUMEM_CAPABILITY_PEER_ACCESS:
      if (!has_link_to(*peer)) return by_option(false, "no link in this direction");
      return with_entry(options, EntryPoint::kPeerAccess, "linked as configured");
    case GPUMEM_CAPABILITY_PEER_ATOMICS:
      return has_link_to(*peer) ? always(GPUMEM_ANSWER_YES, "kernels use the atomics of the CPU")
                                : by_option(false, "no link in this direction");
    case GPUMEM_CAPABILITY_VMM_DEVICE:
    case GPUMEM_CAPABILITY_VMM_HOST:
    case GPUMEM_CAPABILITY_VMM_HOST_NUMA:
      if (!options.has(EntryPoint::kVmm)) return by_option(false, "virtual memory management is masked");
      return always(GPUMEM_ANSWER_YES, "physical memory is a file of anonymous memory");
    case GPUMEM_CAPABILITY_VMM_GRANULARITY_MIN:
    case GPUMEM_CAPABILITY_VMM_GRANULARITY_RECOMMENDED:
      return make(GPUMEM_ANSWER_TYPE_BYTES, options.vmm_granularity, kOption, "as configured");
    case GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD:
      if (!options.has(EntryPoint::kVmm)) return by_option(false, "virtual memory management is masked");
      return always(GPUMEM_ANSWER_YES, "the descriptor of the file is shared");
    case GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC:
      return always(GPUMEM_ANSWER_NO, "emulated devices are on no fabric");
    case GPUMEM_CAPABILITY_VMM_COMPRESSIBLE:
      if (!options.has(EntryPoint::kVmm)) return by_option(false, "virtual memory management is masked");
      return options.compressible
                 ? tri(GPUMEM_ANSWER_EMULATED, kOption, "the property is granted, but nothing is compressed")
                 : by_option(false, "an option turned compressible memory off");
    case GPUMEM_CAPABILITY_SHARE_LEGACY:
      if (!options.has(EntryPoint::kSharing)) return by_option(false, kSharingIsMasked);
      return always(GPUMEM_ANSWER_YES, "the memory file of an allocation is shared");
    case GPUMEM_CAPABILITY_SHARE_EVENTS:
      if (!options.has(EntryPoint::kSharing)) return by_option(false, kSharingIsMasked);
      return shared_events(facts_.uuid);
    case GPUMEM_CAPABILITY_SHARE_CHANNEL:
      if (!options.has(EntryPoint::kSharing)) return by_option(false, kSharingIsMasked);
      return channel();
    case GPUMEM_CAPABILITY_SHARE_DMA_BUF:
    case GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE:
      return always(GPUMEM_ANSWER_NO, "no other driver reaches emulated devices");
    case GPUMEM_CAPABILITY_VMM_RDMA:
      return always(GPUMEM_ANSWER_NO, "no network card reaches emulated devices");
    case GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS:
      return always(GPUMEM_ANSWER_NO, "emulated devices have no decompression engine");
    case GPUMEM_CAPABILITY_POOL_DRIVER:
      return always(GPUMEM_ANSWER_EMULATED, "no other code has memory of an emulated device");
    default:
      return always(GPUMEM_ANSWER_NO, "unknown to the host backend");
  }
}

}  // namespace gpumem::host
