// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Initialisation, devices, contexts and peer access.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"

namespace fake {
namespace {

constexpr size_t kMaximumPeers = 8;

struct AttributeValue {
  int number;
  int value;
};

// What one H200 with driver 580 answers, for the attributes that matter to memory; all others are 0.
const AttributeValue kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 100},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 9},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
};

// The highest attribute number that a driver of this version knows.
int last_attribute(int version) {
  if (version >= 13000) return CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED;
  if (version >= 12080) return CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED;
  if (version >= 12020) return CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
  if (version >= 11080) return CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
  return CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
}

std::shared_ptr<Context> make_context(Device& device, bool primary) {
  auto context = std::make_shared<Context>();
  context->device = &device;
  context->handle = next_handle<CUcontext>();
  context->primary = primary;
  context->alive = !primary;
  driver().contexts.add(context->handle, context);
  return context;
}

// Everything that lives in a context goes with it; on a healthy device that means somebody forgot it.
void end_context(Context& context) {
  Driver& d = driver();
  size_t left = 0;
  // Not what only waits for its stream to go back.
  for (const auto& [address, memory] : d.memory)
    left += address == memory->address && memory->context.get() == &context && memory->freed_in == nullptr;
  for (const auto& [handle, stream] : d.streams.all())
    left += !stream->per_thread && stream->context.get() == &context;
  for (const auto& [handle, event] : d.events.all())
    left += event->context.get() == &context;
  if (left != 0 && context.device->sticky == CUDA_SUCCESS) {
    violation("leak", "a context ended with " + std::to_string(left) + " live objects");
  }
  abandon_streams(&context);
  free_memory_of(context);
  std::vector<uintptr_t> modules;
  for (const auto& [handle, module] : d.modules.all()) {
    if (module->context.get() == &context) modules.push_back(handle);
  }
  for (uintptr_t handle : modules)
    d.modules.remove(reinterpret_cast<void*>(handle));
  std::vector<uintptr_t> events;
  for (const auto& [handle, event] : d.events.all()) {
    if (event->context.get() == &context) events.push_back(handle);
  }
  for (uintptr_t handle : events)
    d.events.remove(reinterpret_cast<void*>(handle));
  context.alive = false;
  context.peers.clear();
  context.flags = 0;
  context.ended.clear();
  settle_retired_workers(std::chrono::seconds(5));
}

CUresult create_context(CUcontext* context, unsigned flags, CUdevice device) {
  require(context != nullptr);
  require((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) == 0);
  Device& on = find_device(device);
  require_healthy(on);
  auto made = make_context(on, false);
  made->flags = flags;
  context_stack().push_back(made->handle);
  *context = made->handle;
  return CUDA_SUCCESS;
}

struct ThreadState {
  uint64_t generation = 0;
  std::vector<CUcontext> contexts;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

thread_local ThreadState t_state;

ThreadState& thread_state() {
  if (t_state.generation != driver().generation) {
    t_state = ThreadState();
    t_state.generation = driver().generation;
  }
  return t_state;
}

}  // namespace

std::vector<CUcontext>& context_stack() { return thread_state().contexts; }

CUstreamCaptureMode& capture_mode_of_thread() { return thread_state().capture_mode; }

Device& find_device(CUdevice device) {
  require(device >= 0 && static_cast<size_t>(device) < driver().devices.size(), CUDA_ERROR_INVALID_DEVICE);
  return *driver().devices[static_cast<size_t>(device)];
}

std::shared_ptr<Context> find_context(CUcontext handle) {
  auto context = driver().contexts.find(handle);
  require(context != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  return context;
}

std::shared_ptr<Context> current_context() {
  require(!context_stack().empty(), CUDA_ERROR_INVALID_CONTEXT);
  auto context = driver().contexts.find(context_stack().back());
  require(context != nullptr && context->alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return context;
}

int attribute(const Device& device, int number) {
  const Config& config = driver().config;
  require(number > 0 && number <= last_attribute(driver().version));
  for (int owner : {device.ordinal, -1}) {
    auto set = config.attributes.find({owner, number});
    if (set != config.attributes.end()) return set->second;
  }
  if (number == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) return device.ordinal + 1;
  if (number == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED && !knows_fabric()) return 0;
  for (const AttributeValue& known : kAttributes) {
    if (known.number == number) return known.value;
  }
  return 0;
}

bool can_access_peer(const Device& device, const Device& peer) {
  if (device.ordinal == peer.ordinal) return false;
  const Config& config = driver().config;
  return config.all_peers || config.peers.contains({device.ordinal, peer.ordinal});
}

void require_healthy(const Device& device) { require(device.sticky == CUDA_SUCCESS, device.sticky); }

CUresult cuInit(unsigned flags) {
  Driver& d = driver();
  require(flags == 0);
  require(d.config.init == CUDA_SUCCESS, d.config.init);
  require(d.config.devices > 0, CUDA_ERROR_NO_DEVICE);
  if (d.initialized) return CUDA_SUCCESS;
  watch_for_fork_and_exit();
  pause(d.config.init_delay_us);
  if (d.initialized) return CUDA_SUCCESS;
  for (int ordinal = 0; ordinal < d.config.devices; ++ordinal) {
    auto device = std::make_unique<Device>();
    device->ordinal = ordinal;
    device->primary = make_context(*device, true);
    d.devices.push_back(std::move(device));
  }
  d.initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  require(version != nullptr);
  *version = driver().version;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  require(count != nullptr);
  *count = static_cast<int>(driver().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  require(device != nullptr);
  *device = find_device(ordinal).ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  require(name != nullptr && length > 0);
  std::snprintf(name, static_cast<size_t>(length), "Fake CUDA device %d", find_device(device).ordinal);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  require(uuid != nullptr);
  char text[17];
  std::snprintf(text, sizeof(text), "fake cuda dev %02d", find_device(device).ordinal);
  std::memcpy(uuid->bytes, text, sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return fake::cuDeviceGetUuid(uuid, device); }

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute number, CUdevice device) {
  require(value != nullptr);
  *value = attribute(find_device(device), number);
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  require(major != nullptr && minor != nullptr);
  *major = attribute(find_device(device), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = attribute(find_device(device), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  require(bytes != nullptr);
  find_device(device);
  *bytes = driver().config.memory;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  require(value != nullptr && attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  const uint64_t kept = driver().config.graph_memory;
  *static_cast<cuuint64_t*>(value) = kept - std::min(kept, find_device(device).trimmed);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  find_device(device).trimmed = driver().config.graph_memory;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  require(text != nullptr && length > 0);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", find_device(device).ordinal + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  require(can != nullptr);
  *can = can_access_peer(find_device(device), find_device(peer)) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute number, CUdevice source, CUdevice target) {
  require(value != nullptr);
  const Device& from = find_device(source);
  const Device& to = find_device(target);
  require(source != target, CUDA_ERROR_INVALID_DEVICE);
  switch (number) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = can_access_peer(from, to) ? 1 : 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  require(context != nullptr);
  Device& of = find_device(device);
  require_healthy(of);
  ++of.primary_retains;
  of.primary->alive = true;
  *context = of.primary->handle;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Device& of = find_device(device);
  if (of.primary_retains == 0) violation("over-release", "primary context");
  require(of.primary_retains > 0, CUDA_ERROR_INVALID_CONTEXT);
  if (--of.primary_retains == 0) {
    end_context(*of.primary);
  } else {
    settle_retired_workers(
        std::chrono::milliseconds(100));  // so that no thread is left over at a fork or exit
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return fake::cuDevicePrimaryCtxRelease_v2(device); }

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  Device& of = find_device(device);
  require((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) == 0);
  require(of.primary_retains == 0, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
  of.primary->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  require(flags != nullptr && active != nullptr);
  const Device& of = find_device(device);
  *flags = of.primary->flags;
  *active = of.primary_retains > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return create_context(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int affinities, unsigned flags,
                        CUdevice device) {
  require(affinities == 0, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
  return create_context(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
  bool plain =
      parameters == nullptr || (parameters->numExecAffinityParams == 0 && parameters->cigParams == nullptr);
  require(plain, CUDA_ERROR_NOT_SUPPORTED);
  return create_context(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  auto found = find_context(context);
  require(!found->primary, CUDA_ERROR_INVALID_CONTEXT);
  end_context(*found);
  driver().contexts.remove(context);
  if (!context_stack().empty() && context_stack().back() == context) context_stack().pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  require(context != nullptr);
  require(find_context(context)->alive, CUDA_ERROR_INVALID_CONTEXT);
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  require(!context_stack().empty(), CUDA_ERROR_INVALID_CONTEXT);
  if (context != nullptr) *context = context_stack().back();
  context_stack().pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  require(context != nullptr);
  *context = context_stack().empty() ? nullptr : context_stack().back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  std::vector<CUcontext>& stack = context_stack();
  if (context != nullptr) require(find_context(context)->alive, CUDA_ERROR_INVALID_CONTEXT);
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  require(device != nullptr);
  *device = current_context()->device->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  require(device != nullptr);
  *device = (context != nullptr ? find_context(context) : current_context())->device->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  synchronize(*current_context());
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  auto of = context != nullptr ? find_context(context) : current_context();
  require(of->alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  require_healthy(*of->device);
  synchronize(*of);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  auto own = current_context();
  auto other = find_context(peer);
  require(other->alive && other != own, CUDA_ERROR_INVALID_CONTEXT);
  require(flags == 0);
  require(can_access_peer(*own->device, *other->device), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  require(!own->peers.contains(peer), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  require(own->peers.size() < kMaximumPeers, CUDA_ERROR_TOO_MANY_PEERS);
  own->peers.insert(peer);
  return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  auto own = current_context();
  find_context(peer);
  require(own->peers.erase(peer) == 1, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  return CUDA_SUCCESS;
}

}  // namespace fake
