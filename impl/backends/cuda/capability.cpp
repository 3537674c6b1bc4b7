// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Capabilities: by attribute, and where possible by a trial that leaves nothing behind (COM-21).
#include <array>

#include "backends/cuda/managed.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/peers.h"
#include "backends/cuda/pieces.h"
#include "backends/cuda/sharing.h"
#include "base/cleanup.h"
#include "platform/descriptor.h"
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

// The same for an allocation, and something that is done with it.
template <class Use>
Capability try_with_memory(Device& device, const backend::MemoryRequest& request, Use use, const char* what) {
  return try_memory(
      device,
      [&]() -> Result<std::unique_ptr<backend::Memory>> {
        auto memory = device.create_memory(request);
        if (!memory) return memory;
        Cleanup undo([&] {
          if (auto released = (*memory)->release(); !released) (void)(*memory)->release();
        });
        GPUMEM_TRY(use(**memory));
        undo.dismiss();
        return memory;
      },
      what);
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
    // As for pinned memory, the driver of a lost device may still consider the page registered.
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

Result<void> release_trial(backend::Physical& physical) {
  auto released = physical.release();
  return released ? released : physical.release();
}

// Makes one unit of physical memory (COM-21). What is required and was not granted is a refusal.
Capability try_physical(Device& device, const backend::PhysicalRequest& request, bool exported,
                        const char* what) {
  RelaxedScope scope(device);  // around all, so that what could be made can also be released
  if (auto entered = scope.entered(); !entered) return failed(entered.error(), GPUMEM_ANSWER_FROM_TRIAL);
  auto unit = device.vmm()->granularity(request);
  if (!unit) return failed(unit.error(), GPUMEM_ANSWER_FROM_TRIAL);
  backend::PhysicalRequest one = request;
  one.size = unit->minimum;
  auto physical = device.vmm()->create(one);
  if (!physical) {
    Capability no = failed(physical.error(), GPUMEM_ANSWER_FROM_TRIAL);
    if (no.status == GPUMEM_ERROR_INVALID_ARGUMENT) no.status = GPUMEM_ERROR_UNSUPPORTED;
    if (!no.passing || one.handle_types == 0) return no;
    // The handle type is denied for good if other memory can be made at this moment.
    one.handle_types = 0;
    auto plain = device.vmm()->create(one);
    if (plain && release_trial(**plain)) no.passing = false;
    return no;
  }
  const Result<int> file = exported ? (*physical)->export_fd() : -1;
  if (file && *file >= 0) platform::close_file(*file);
  const auto released = release_trial(**physical);
  if (!file) return failed(file.error(), GPUMEM_ANSWER_FROM_TRIAL);
  if (!released) return failed(released.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL, "%s worked", what);
}

Capability unit_of_physical(Device& device, bool recommended) {
  auto unit = device.vmm()->granularity({});
  if (!unit) {
    Capability unknown = failed(unit.error(), GPUMEM_ANSWER_FROM_ATTRIBUTE);
    unknown.type = GPUMEM_ANSWER_TYPE_BYTES;
    return unknown;
  }
  return amount(GPUMEM_ANSWER_TYPE_BYTES, recommended ? unit->recommended : unit->minimum,
                GPUMEM_ANSWER_FROM_ATTRIBUTE, "the driver says so");
}

// Value writes and waits have two versions with separate attributes.
bool has_new_value_calls(const Driver& cu) { return cu.StreamWriteValue32.version >= 11070; }

Capability missing(const char* entry_point) {
  Capability result = answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                             "this driver lacks %s; install a newer driver", entry_point);
  result.status = GPUMEM_ERROR_SYMBOL_MISSING;
  return result;
}

// A page of managed memory, made for a trial.
backend::MemoryRequest managed_page() {
  backend::MemoryRequest request;
  request.size = platform::page_size();
  request.sort = backend::MemorySort::kManaged;
  return request;
}

Capability try_managed(Device& device) {
  return try_memory(
      device, [&] { return device.create_memory(managed_page()); }, "allocating a managed page");
}

Capability not_concurrent() {
  return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                "the driver returned 0 for the attribute CONCURRENT_MANAGED_ACCESS");
}

Capability lacks(const char* entry_point, const char* version) {
  Capability result = answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                             "this driver lacks %s; install one for CUDA %s or newer", entry_point, version);
  result.status = GPUMEM_ERROR_SYMBOL_MISSING;
  return result;
}

// Gives a page advice that names the node of the device.
Capability try_node(Device& device) {
  const Driver& cu = device.cu();
  if (cu.MemAdvise.function == nullptr) return lacks("the cuMemAdvise that takes nodes", "12.2");
  if (cu.MemPrefetchAsync.function == nullptr)
    return lacks("the cuMemPrefetchAsync that takes nodes", "12.2");
  const int32_t node = std::max(device.facts().numa_node, 0);
  bool kept = false;
  const Capability tried = try_with_memory(
      device, managed_page(),
      [&](backend::Memory& memory) -> Result<void> {
        backend::Span span;
        span.memory = &memory;
        span.address = memory.facts().host_pointer;
        span.managed = true;
        auto advised =
            device.managed()->advise(span, platform::page_size(), GPUMEM_ADVICE_SET_PREFERRED_LOCATION,
                                     {GPUMEM_LOCATION_HOST_NUMA, node});
        if (!advised) return advised.error();
        kept = *advised;
        return {};
      },
      "naming a node");
  if (tried.value == GPUMEM_ANSWER_NO) return tried;
  return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL, "naming node %d worked%s", node,
                kept ? "" : ", but the driver ignores it in advice: only prefetches take nodes");
}

// Device memory that is made for a trial.
backend::MemoryRequest device_bytes(uint64_t size) {
  backend::MemoryRequest request;
  request.size = size;
  request.sort = backend::MemorySort::kDevice;
  return request;
}

// Copies pieces from the first half of some bytes to the second.
Result<void> copy_together(Device& device, uint64_t address, uint64_t half) {
  auto stream = device.create_stream(0);
  if (!stream) return stream.error();
  std::array<backend::Piece, Pieces::kFew> pieces;
  const uint64_t size = half / pieces.size();
  for (size_t i = 0; i < pieces.size(); ++i)
    pieces[i] = {address + half + i * size, address + i * size, size};
  size_t done = 0;
  auto copied = (*stream)->copy_pieces(pieces, &done);
  // Try twice, as in a release: the copies must be complete before the memory is freed.
  auto complete = (*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!complete) complete = (*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (copied && !complete) copied = complete.error();
  auto released = (*stream)->release();
  if (!released) released = (*stream)->release();
  return copied ? released : copied;
}

Capability try_copies(Device& device) {
  const Pieces::Way way = device.pieces().way();
  if (way == Pieces::Way::kOneByOne) {
    return answer(GPUMEM_ANSWER_EMULATED, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                  "each copy is a call: the library's kernel is not loaded in this context, and this driver "
                  "lacks cuMemcpyBatchAsync; install one for CUDA 12.8 or newer");
  }
  constexpr uint64_t kHalf = 16 * Pieces::kFew;
  return try_with_memory(
      device, device_bytes(2 * kHalf),
      [&](backend::Memory& memory) {
        return copy_together(device, address_of(memory.facts().device_pointer), kHalf);
      },
      way == Pieces::Way::kKernel ? "copying pieces with the library's kernel"
                                  : "copying pieces with cuMemcpyBatchAsync");
}

Capability try_export(Device& device) {
  return try_with_memory(
      device, device_bytes(1),
      [&](backend::Memory& memory) -> Result<void> {
        auto ticket = device.sharing()->export_memory(memory);
        return ticket ? Result<void>() : ticket.error();
      },
      "exporting device memory by a handle of the driver");
}

Capability try_event(Device& device) {
  RelaxedScope scope(device);  // around all, so that what could be made can also be released
  if (auto entered = scope.entered(); !entered) return failed(entered.error(), GPUMEM_ANSWER_FROM_TRIAL);
  auto event = device.create_event(GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING);
  if (!event) return failed(event.error(), GPUMEM_ANSWER_FROM_TRIAL);
  const auto ticket = device.sharing()->export_event(**event);
  auto released = (*event)->release();
  if (!released) released = (*event)->release();
  if (!ticket) return failed(ticket.error(), GPUMEM_ANSWER_FROM_TRIAL);
  if (!released) return failed(released.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL, "exporting an event worked");
}

Capability try_dma_buf(Device& device, bool pcie) {
  Capability tried = try_with_memory(
      device, device_bytes(kBlock),
      [&](backend::Memory& memory) -> Result<void> {
        auto& sharing = static_cast<Sharing&>(*device.sharing());
        auto made = sharing.try_dma_buf(memory.facts().device_pointer, kBlock, pcie);
        if (!made) return made.error();
        platform::close_descriptor(*made);
        return {};
      },
      pcie ? "making a dma-buf for PCIe" : "making a dma-buf");
  // An older driver returns this for a flag that it does not know.
  if (tried.status == GPUMEM_ERROR_INVALID_ARGUMENT) tried.status = GPUMEM_ERROR_UNSUPPORTED;
  return tried;
}

Capability try_channel() {
  if (auto passed = platform::try_passing(); !passed) return failed(passed.error(), GPUMEM_ANSWER_FROM_TRIAL);
  return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_TRIAL,
                "sending a file descriptor over a Unix socket worked");
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

// By attribute, then by trial. A missing entry point is found by the trial.
Capability Device::vmm_capability(gpumem_capability capability) {
  struct Trial {
    gpumem_capability capability;
    CUdevice_attribute attribute;
    const char* name;
    const char* what;
    backend::PhysicalRequest request;
  };
  backend::PhysicalRequest plain;
  backend::PhysicalRequest host;
  host.location = GPUMEM_LOCATION_HOST;
  backend::PhysicalRequest node;
  node.location = GPUMEM_LOCATION_HOST_NUMA;
  node.numa_node = std::max(facts_.numa_node, 0);
  backend::PhysicalRequest file;
  file.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  backend::PhysicalRequest fabric;
  fabric.handle_types = GPUMEM_HANDLE_TYPE_FABRIC;
  backend::PhysicalRequest compressible;
  compressible.require = GPUMEM_PHYSICAL_COMPRESSIBLE;
  backend::PhysicalRequest rdma;
  rdma.require = GPUMEM_PHYSICAL_RDMA;
  backend::PhysicalRequest decompress;
  decompress.require = GPUMEM_PHYSICAL_HW_DECOMPRESS;
#define GPUMEM_VMM_ATTRIBUTE(name) CU_DEVICE_ATTRIBUTE_##name, #name
  const Trial trials[] = {
      {GPUMEM_CAPABILITY_VMM_DEVICE, GPUMEM_VMM_ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
       "creating physical memory of the device", plain},
      {GPUMEM_CAPABILITY_VMM_HOST, GPUMEM_VMM_ATTRIBUTE(HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
       "creating physical memory of the host", host},
      {GPUMEM_CAPABILITY_VMM_HOST_NUMA, GPUMEM_VMM_ATTRIBUTE(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
       "creating physical memory of a NUMA node", node},
      {GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD,
       GPUMEM_VMM_ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
       "exporting physical memory by file descriptor", file},
      {GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC, GPUMEM_VMM_ATTRIBUTE(HANDLE_TYPE_FABRIC_SUPPORTED),
       "creating physical memory for the fabric", fabric},
      {GPUMEM_CAPABILITY_VMM_COMPRESSIBLE, GPUMEM_VMM_ATTRIBUTE(GENERIC_COMPRESSION_SUPPORTED),
       "creating compressible memory", compressible},
      {GPUMEM_CAPABILITY_VMM_RDMA, GPUMEM_VMM_ATTRIBUTE(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
       "creating memory for network cards", rdma},
      {GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS, GPUMEM_VMM_ATTRIBUTE(MEM_DECOMPRESS_ALGORITHM_MASK),
       "creating memory for the decompression engine", decompress},
  };
#undef GPUMEM_VMM_ATTRIBUTE
  for (const Trial& trial : trials) {
    if (trial.capability != capability) continue;
    const Capability said = by_attribute(*this, trial.attribute, trial.name);
    if (said.value == GPUMEM_ANSWER_NO) return said;
    return try_physical(*this, trial.request, capability == GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD,
                        trial.what);
  }
  return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_CONTRACT, "no capability of physical memory");
}

Capability Device::share_capability(gpumem_capability capability) {
  switch (capability) {
    case GPUMEM_CAPABILITY_SHARE_LEGACY:
      return try_export(*this);
    case GPUMEM_CAPABILITY_SHARE_EVENTS: {
      // Older drivers share events and do not know the attribute.
      constexpr int kKnowsAttribute = 12020;
      const Capability said = GPUMEM_BY_ATTRIBUTE(IPC_EVENT_SUPPORTED);
      return said.value == GPUMEM_ANSWER_NO && cu_.version >= kKnowsAttribute ? said : try_event(*this);
    }
    case GPUMEM_CAPABILITY_SHARE_CHANNEL:
      return try_channel();
    default: {
      if (cu_.MemGetHandleForAddressRange.function == nullptr)
        return lacks("cuMemGetHandleForAddressRange", "11.7");
      const Capability said = GPUMEM_BY_ATTRIBUTE(DMA_BUF_SUPPORTED);
      if (said.value == GPUMEM_ANSWER_NO) return said;
      return try_dma_buf(*this, capability == GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE);
    }
  }
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
    case GPUMEM_CAPABILITY_MANAGED: {
      const Capability said = GPUMEM_BY_ATTRIBUTE(MANAGED_MEMORY);
      return said.value == GPUMEM_ANSWER_NO ? said : try_managed(*this);
    }
    case GPUMEM_CAPABILITY_MANAGED_CONCURRENT:
      return GPUMEM_BY_ATTRIBUTE(CONCURRENT_MANAGED_ACCESS);
    case GPUMEM_CAPABILITY_MANAGED_DIRECT_FROM_HOST:
      return GPUMEM_BY_ATTRIBUTE(DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
    case GPUMEM_CAPABILITY_MANAGED_NUMA_LOCATIONS:
      return traits_.managed && traits_.concurrent_managed ? try_node(*this) : not_concurrent();
    case GPUMEM_CAPABILITY_MANAGED_BATCH:
      if (!traits_.concurrent_managed) return not_concurrent();
      if (cu_.MemPrefetchBatchAsync.function != nullptr)
        return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                      "the driver has cuMemPrefetchBatchAsync");
      if (cu_.MemPrefetchAsync.function == nullptr && cu_.MemPrefetchDeviceAsync.function == nullptr)
        return missing("cuMemPrefetchAsync");
      return answer(GPUMEM_ANSWER_EMULATED, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                    "this driver lacks cuMemPrefetchBatchAsync, so each range is a call");
    case GPUMEM_CAPABILITY_MANAGED_DISCARD:
      if (!traits_.all_concurrent_managed) {
        return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_ATTRIBUTE,
                      "the attribute CONCURRENT_MANAGED_ACCESS is not set on every device");
      }
      if (cu_.MemDiscardBatchAsync.function == nullptr) return lacks("cuMemDiscardBatchAsync", "13.0");
      if (cu_.MemDiscardAndPrefetchBatchAsync.function == nullptr)
        return lacks("cuMemDiscardAndPrefetchBatchAsync", "13.0");
      return answer(GPUMEM_ANSWER_YES, GPUMEM_ANSWER_FROM_ATTRIBUTE, "the driver has cuMemDiscardBatchAsync");
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
    case GPUMEM_CAPABILITY_COPY_BATCH:
      return try_copies(*this);
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
    case GPUMEM_CAPABILITY_VMM_DEVICE:
    case GPUMEM_CAPABILITY_VMM_HOST:
    case GPUMEM_CAPABILITY_VMM_HOST_NUMA:
    case GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD:
    case GPUMEM_CAPABILITY_VMM_HANDLE_FABRIC:
    case GPUMEM_CAPABILITY_VMM_COMPRESSIBLE:
    case GPUMEM_CAPABILITY_VMM_RDMA:
    case GPUMEM_CAPABILITY_VMM_HW_DECOMPRESS:
      return vmm_capability(capability);
    case GPUMEM_CAPABILITY_VMM_GRANULARITY_MIN:
    case GPUMEM_CAPABILITY_VMM_GRANULARITY_RECOMMENDED:
      return unit_of_physical(*this, capability == GPUMEM_CAPABILITY_VMM_GRANULARITY_RECOMMENDED);
    case GPUMEM_CAPABILITY_SHARE_LEGACY:
    case GPUMEM_CAPABILITY_SHARE_EVENTS:
    case GPUMEM_CAPABILITY_SHARE_CHANNEL:
    case GPUMEM_CAPABILITY_SHARE_DMA_BUF:
    case GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE:
      return share_capability(capability);
    case GPUMEM_CAPABILITY_POOL_DRIVER:
      if (cu_.MemAllocAsync.function == nullptr) return lacks("cuMemAllocAsync", "11.2");
      return GPUMEM_BY_ATTRIBUTE(MEMORY_POOLS_SUPPORTED);
    default:
      return answer(GPUMEM_ANSWER_NO, GPUMEM_ANSWER_FROM_CONTRACT,
                    "unknown to this version of the cuda backend");
  }
}

}  // namespace gpumem::cuda
