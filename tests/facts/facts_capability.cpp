// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts that are numbers: device attributes and granularities.
#include "facts.hpp"

#include <cstdio>

namespace facts {
namespace {

struct Attribute {
  int number;
  const char* name;
};

constexpr Attribute kAttributes[] = {
    {18, "integrated"},
    {19, "can_map_host_memory"},
    {20, "compute_mode"},
    {31, "concurrent_kernels"},
    {35, "tcc_driver"},
    {40, "async_engine_count"},
    {41, "unified_addressing"},
    {75, "compute_capability_major"},
    {76, "compute_capability_minor"},
    {78, "stream_priorities"},
    {83, "managed_memory"},
    {86, "host_native_atomic"},
    {88, "pageable_memory_access"},
    {89, "concurrent_managed_access"},
    {91, "use_host_pointer_for_registered"},
    {92, "stream_mem_ops_v1"},
    {93, "stream_mem_ops_64_v1"},
    {94, "stream_wait_nor_v1"},
    {98, "flush_remote_writes"},
    {99, "host_register"},
    {100, "pageable_uses_host_page_tables"},
    {101, "direct_managed_from_host"},
    {102, "virtual_memory_management"},
    {103, "handle_posix_fd"},
    {104, "handle_win32"},
    {105, "handle_win32_kmt"},
    {107, "generic_compression"},
    {110, "rdma_with_vmm"},
    {113, "read_only_host_register"},
    {114, "timeline_semaphore"},
    {115, "memory_pools"},
    {116, "gpu_direct_rdma"},
    {117, "rdma_flush_writes_options"},
    {118, "rdma_writes_ordering"},
    {119, "mempool_handle_types"},
    {122, "stream_mem_ops_64"},
    {123, "stream_wait_nor"},
    {124, "dma_buf"},
    {125, "ipc_event"},
    {128, "handle_fabric"},
    {130, "numa_config"},
    {131, "numa_id"},
    {132, "multicast"},
    {133, "mps_enabled"},
    {134, "host_numa_id"},
    {136, "decompress_algorithms"},
    {141, "host_numa_vmm"},
    {142, "host_numa_pools"},
    {143, "host_numa_multinode_ipc"},
    {144, "host_pools"},
    {145, "host_vmm"},
    {146, "host_alloc_dma_buf"},
    {147, "partial_host_native_atomic"},
};

void attributes(int) {
  for (const Attribute& attribute : kAttributes) {
    int value = -99;
    const CUresult code = cu.DeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute.number), 0);
    const std::string detail = std::to_string(attribute.number) + "_" + attribute.name;
    say(detail, code == CUDA_SUCCESS ? std::to_string(value) : text(code));
  }
}

void misuse(int) {
  int value = 0;
  const auto attribute = stray<CUdevice_attribute>;
  say("attribute_0", cu.DeviceGetAttribute(&value, attribute(0), 0));
  say("attribute_1000", cu.DeviceGetAttribute(&value, attribute(1000), 0));
  say("attribute_minus_1", cu.DeviceGetAttribute(&value, attribute(-1), 0));
  say("device_99", cu.DeviceGetAttribute(&value, attribute(41), 99));
  say("device_minus_1", cu.DeviceGetAttribute(&value, attribute(41), -1));
  say("null_out", cu.DeviceGetAttribute(nullptr, attribute(41), 0));
  int can = -1;
  say("can_access_peer_self", cu.DeviceCanAccessPeer(&can, 0, 0));
  say_number("can_access_peer_self_value", can);
  say("can_access_peer_99", cu.DeviceCanAccessPeer(&can, 0, 99));
}

void machine(int) {
  int count = 0;
  must(cu.DeviceGetCount(&count), "cuDeviceGetCount");
  say_machine("devices", std::to_string(count));
  char name[256] = "";
  must(cu.DeviceGetName(name, sizeof name, 0), "cuDeviceGetName");
  say_machine("name", name);
  CUuuid uuid = {};
  must(cu.DeviceGetUuid(&uuid, 0), "cuDeviceGetUuid");
  std::string bytes;
  for (char byte : uuid.bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    bytes += two;
  }
  say_machine("uuid", bytes);
  std::size_t total = 0;
  must(cu.DeviceTotalMem(&total, 0), "cuDeviceTotalMem");
  say_machine("total_bytes", std::to_string(total));
  std::size_t free_bytes = 0;
  std::size_t total_now = 0;
  must(cu.MemGetInfo(&free_bytes, &total_now), "cuMemGetInfo");
  say_machine("free_bytes", std::to_string(free_bytes));
  say_yes("both_totals_agree", total == total_now);
}

void granularity(int) {
  struct Location {
    const char* name;
    CUmemLocationType type;
    int id;
  };
  constexpr Location kLocations[] = {{"none", CU_MEM_LOCATION_TYPE_INVALID, 0},
                                     {"device", CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                     {"device_99", CU_MEM_LOCATION_TYPE_DEVICE, 99},
                                     {"host", CU_MEM_LOCATION_TYPE_HOST, 0},
                                     {"host_numa", CU_MEM_LOCATION_TYPE_HOST_NUMA, 0},
                                     {"host_numa_99", CU_MEM_LOCATION_TYPE_HOST_NUMA, 99},
                                     {"host_numa_current", CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0}};
  struct Handle {
    const char* name;
    CUmemAllocationHandleType type;
  };
  constexpr Handle kHandles[] = {{"", CU_MEM_HANDLE_TYPE_NONE},
                                 {"_fd", CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
                                 {"_fabric", CU_MEM_HANDLE_TYPE_FABRIC}};
  for (const Location& location : kLocations) {
    for (const Handle& handle : kHandles) {
      CUmemAllocationProp prop = {};
      prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      prop.location.type = location.type;
      prop.location.id = location.id;
      prop.requestedHandleTypes = handle.type;
      for (auto option : {CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED}) {
        std::size_t bytes = 0;
        const CUresult code = cu.MemGetAllocationGranularity(&bytes, &prop, option);
        const std::string detail = std::string(location.name) + handle.name +
                                   (option == CU_MEM_ALLOC_GRANULARITY_MINIMUM ? ".minimum" : ".recommended");
        say(detail, code == CUDA_SUCCESS ? std::to_string(bytes) : text(code));
      }
    }
  }
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  std::size_t bytes = 0;
  const CUresult code = cu.MemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  say("device_compressible.minimum", code == CUDA_SUCCESS ? std::to_string(bytes) : text(code));
}

constexpr Fact kFacts[] = {
    {.name = "cap.machine", .run = machine},
    {.name = "cap.attributes", .run = attributes, .needs = Needs::kInit},
    {.name = "cap.misuse", .run = misuse, .needs = Needs::kInit},
    {.name = "cap.granularity", .run = granularity},
};

}  // namespace

std::span<const Fact> capability_facts() { return kFacts; }

}  // namespace facts
