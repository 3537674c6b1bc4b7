// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts about what the driver says of a pointer.
#include "facts.hpp"

#include <cstring>
#include <iterator>
#include <vector>

namespace facts {
namespace {

struct Attribute {
  CUpointer_attribute number;
  const char* name;
};

// P2P_TOKENS (5) is left out: it needs kernel support and says nothing about memory.
constexpr Attribute kAttributes[] = {
    {CU_POINTER_ATTRIBUTE_CONTEXT, "context"},
    {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "memory_type"},
    {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, "device_pointer"},
    {CU_POINTER_ATTRIBUTE_HOST_POINTER, "host_pointer"},
    {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, "sync_memops"},
    {CU_POINTER_ATTRIBUTE_BUFFER_ID, "buffer_id"},
    {CU_POINTER_ATTRIBUTE_IS_MANAGED, "is_managed"},
    {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "device_ordinal"},
    {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "legacy_ipc"},
    {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "range_start"},
    {CU_POINTER_ATTRIBUTE_RANGE_SIZE, "range_size"},
    {CU_POINTER_ATTRIBUTE_MAPPED, "mapped"},
    {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, "handle_types"},
    {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, "rdma_capable"},
    {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, "access_flags"},
    {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "mempool"},
    {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, "mapping_size"},
    {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, "mapping_base"},
    {CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, "block_id"},
    {CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, "decompress_capable"},
};
constexpr std::size_t kCount = std::size(kAttributes);

// The value in a form that does not depend on addresses.
std::string value_of(const Attribute& attribute, std::uint64_t value, CUdeviceptr p) {
  const auto address = [p](std::uint64_t at) {
    if (at == 0) return std::string("null");
    if (at == p) return std::string("same");
    const long long distance = static_cast<long long>(p - at);
    return at < p && distance <= static_cast<long long>(kGiB) ? "pointer - " + std::to_string(distance)
                                                              : "other";
  };
  switch (attribute.number) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return value == 0 ? "null" : reinterpret_cast<CUcontext>(value) == context() ? "primary" : "other";
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return address(value);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return value == 0 ? "zero" : "not zero";
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return std::to_string(static_cast<int>(value));
    default:
      return std::to_string(value);
  }
}

// Everything about one pointer: all attributes in one call, then one by one.
void describe(const std::string& kind, CUdeviceptr p) {
  CUpointer_attribute numbers[kCount];
  std::uint64_t values[kCount] = {};
  void* slots[kCount];
  for (std::size_t i = 0; i < kCount; ++i) {
    numbers[i] = kAttributes[i].number;
    slots[i] = &values[i];
  }
  const CUresult code = cu.PointerGetAttributes(static_cast<unsigned>(kCount), numbers, slots, p);
  say(kind + ".all", code);
  for (std::size_t i = 0; i < kCount; ++i) {
    const Attribute& attribute = kAttributes[i];
    if (code == CUDA_SUCCESS) say(kind + "." + attribute.name, value_of(attribute, values[i], p));
    std::uint64_t single = 0;
    const CUresult single_code = cu.PointerGetAttribute(&single, attribute.number, p);
    const bool agree = code == CUDA_SUCCESS && single_code == CUDA_SUCCESS && single == values[i];
    if (!agree) {
      say(kind + "." + attribute.name + ".single",
          single_code == CUDA_SUCCESS ? value_of(attribute, single, p) : text(single_code));
    }
  }
}

void device_pointers(int) {
  const CUdeviceptr p = device_memory(3 * kMiB);
  describe("base", p);
  describe("interior", p + 12345);
  const CUdeviceptr odd = device_memory(1000);
  describe("odd_size", odd);
  describe("odd_size_past_end", odd + 1000);
  CUdeviceptr pooled = 0;
  if (cu.MemAllocAsync(&pooled, 1000, nullptr) == CUDA_SUCCESS) {
    (void)cu.CtxSynchronize();
    describe("pool", pooled);
  }
  must(cu.MemFree(p), "cuMemFree");
  describe("freed", p);
}

void pinned_pointers(int) {
  std::uint8_t* p = pinned_memory(3 * kMiB);
  describe("base", as_device(p));
  describe("interior", as_device(p + 12345));
  describe("odd_size", as_device(pinned_memory(1000)));
  describe("portable_mapped",
           as_device(pinned_memory(kMiB, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)));
  std::uint8_t* combined = pinned_memory(kMiB, CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP);
  describe("write_combined", as_device(combined));
  CUdeviceptr other = 0;
  must(cu.MemHostGetDevicePointer(&other, combined, 0), "cuMemHostGetDevicePointer");
  if (other != as_device(combined)) describe("write_combined_device_pointer", other);
  must(cu.MemFreeHost(p), "cuMemFreeHost");
  describe("freed", as_device(p));
}

void registered_pointers(int) {
  std::uint8_t* p = cpu_memory(2 * kMiB);
  must(cu.MemHostRegister(p + 100, kMiB, 0), "cuMemHostRegister");
  describe("base", as_device(p + 100));
  describe("interior", as_device(p + 12345));
  describe("same_page_before", as_device(p + 10));
  describe("same_page_after", as_device(p + kMiB + 200));
  describe("portable_mapped",
           as_device(registered_memory(kMiB, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)));
  describe("read_only", as_device(registered_memory(kMiB, CU_MEMHOSTREGISTER_READ_ONLY)));
  must(cu.MemHostUnregister(p + 100), "cuMemHostUnregister");
  describe("unregistered", as_device(p + 100));
}

void managed_pointers(int) {
  const CUdeviceptr p = managed_memory(3 * kMiB);
  describe("base", p);
  describe("interior", p + 12345);
  describe("odd_size", managed_memory(1000));
  describe("attach_host", managed_memory(2 * kMiB, CU_MEM_ATTACH_HOST));
  std::memset(as_host(p), 1, 3 * kMiB);
  describe("touched_by_cpu", p);
  must(cu.MemsetD8(p, 1, 3 * kMiB), "cuMemsetD8");
  must(cu.CtxSynchronize(), "cuCtxSynchronize");
  describe("touched_by_device", p);
  must(cu.MemFree(p), "cuMemFree");
  describe("freed", p);
}

void virtual_pointers(int) {
  constexpr std::size_t kBlock = 2 * kMiB;
  CUdeviceptr p = 0;
  must(cu.MemAddressReserve(&p, 4 * kBlock, 0, 0, 0), "cuMemAddressReserve");
  describe("reserved", p);
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  must(cu.MemCreate(&handle, kBlock, &prop, 0), "cuMemCreate");
  must(cu.MemMap(p + kBlock, kBlock, 0, handle, 0), "cuMemMap");
  describe("mapped_without_access", p + kBlock);
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  must(cu.MemSetAccess(p + kBlock, kBlock, &access, 1), "cuMemSetAccess");
  describe("mapped_read", p + kBlock);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  must(cu.MemSetAccess(p + kBlock, kBlock, &access, 1), "cuMemSetAccess");
  describe("mapped_read_write_interior", p + kBlock + 777);
  describe("reserved_after_mapping", p + 2 * kBlock);
  CUmemAllocationProp host_prop = {};
  host_prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  host_prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle host_handle = 0;
  if (cu.MemCreate(&host_handle, kBlock, &host_prop, 0) == CUDA_SUCCESS &&
      cu.MemMap(p + 2 * kBlock, kBlock, 0, host_handle, 0) == CUDA_SUCCESS) {
    CUmemAccessDesc both[2] = {access, access};
    both[1].location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    say("host_numa_set_access", cu.MemSetAccess(p + 2 * kBlock, kBlock, both, 2));
    describe("mapped_host_numa", p + 2 * kBlock);
  }
}

void unknown_pointers(int) {
  const std::vector<std::uint8_t> heap(4096);
  describe("heap", as_device(heap.data()));
  int local = 0;
  const void* stack_address = &local;
  describe("stack", as_device(stack_address));
  describe("pageable_mapping", as_device(cpu_memory(kMiB)));
  describe("unmapped", as_device(unmapped_address(kMiB)));
  describe("small_number", 0x1000);
  describe("null", 0);
  describe("all_ones", ~CUdeviceptr{0});
}

void misuse(int) {
  const CUdeviceptr p = device_memory(kMiB);
  std::uint64_t value = 0;
  void* slot = &value;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  const auto unknown = stray<CUpointer_attribute>(200);
  const auto zero = stray<CUpointer_attribute>(0);
  say("attribute_0", cu.PointerGetAttribute(&value, zero, p));
  say("attribute_200", cu.PointerGetAttribute(&value, unknown, p));
  say("null_data", cu.PointerGetAttribute(nullptr, attribute, p));
  say("plural_none", cu.PointerGetAttributes(0, &attribute, &slot, p));
  say("plural_null_attributes", cu.PointerGetAttributes(1, nullptr, &slot, p));
  say("plural_null_data", cu.PointerGetAttributes(1, &attribute, nullptr, p));
  attribute = unknown;
  say("plural_attribute_200", cu.PointerGetAttributes(1, &attribute, &slot, p));
  say("plural_attribute_200_of_unknown_pointer",
      cu.PointerGetAttributes(1, &attribute, &slot, as_device(&value)));
  attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  slot = nullptr;
  say("plural_null_slot", cu.PointerGetAttributes(1, &attribute, &slot, p));
}

// How many bytes the driver writes for each attribute: known pointer, then unknown pointer.
void widths(int) {
  const CUdeviceptr known = device_memory(kMiB);
  const CUdeviceptr stranger = as_device(cpu_memory(kMiB));
  const auto written = [](CUpointer_attribute attribute, CUdeviceptr p) {
    std::uint8_t data[2][32];
    for (int i = 0; i < 2; ++i) {
      std::memset(data[i], i ? 0xEE : 0x77, sizeof data[i]);
      void* slot = data[i];
      if (cu.PointerGetAttributes(1, &attribute, &slot, p) != CUDA_SUCCESS) return -1;
    }
    int width = 0;
    for (int i = 0; i < 32; ++i) {
      if (data[0][i] != 0x77 || data[1][i] != 0xEE) width = i + 1;
    }
    return width;
  };
  for (const Attribute& attribute : kAttributes) {
    say(attribute.name, std::to_string(written(attribute.number, known)) + ", unknown pointer " +
                            std::to_string(written(attribute.number, stranger)));
  }
}

std::uint64_t buffer_id(CUdeviceptr p) {
  std::uint64_t id = 0;
  must(cu.PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p), "cuPointerGetAttribute");
  return id;
}

void buffer_ids(int) {
  const auto again = [](const std::string& kind, const std::function<CUdeviceptr()>& make,
                        const std::function<CUresult(CUdeviceptr)>& free_it) {
    const CUdeviceptr first = make();
    const std::uint64_t first_id = buffer_id(first);
    must(free_it(first), "free");
    const CUdeviceptr second = make();
    say_yes(kind + ".same_address_again", first == second);
    say_yes(kind + ".new_id", buffer_id(second) != first_id);
    say_yes(kind + ".new_id_is_larger", buffer_id(second) > first_id);
    must(free_it(second), "free");
  };
  again(
      "device", [] { return device_memory(64 * kMiB); }, [](CUdeviceptr p) { return cu.MemFree(p); });
  again(
      "small_device", [] { return device_memory(1000); }, [](CUdeviceptr p) { return cu.MemFree(p); });
  again(
      "pinned", [] { return as_device(pinned_memory(4 * kMiB)); },
      [](CUdeviceptr p) { return cu.MemFreeHost(as_host(p)); });
  again(
      "managed", [] { return managed_memory(4 * kMiB); }, [](CUdeviceptr p) { return cu.MemFree(p); });
  std::uint8_t* fixed = cpu_memory(kMiB);
  again(
      "registered",
      [fixed] {
        must(cu.MemHostRegister(fixed, kMiB, 0), "cuMemHostRegister");
        return as_device(fixed);
      },
      [](CUdeviceptr p) { return cu.MemHostUnregister(as_host(p)); });
  const CUdeviceptr p = device_memory(4 * kMiB);
  say_yes("interior_has_same_id", buffer_id(p) == buffer_id(p + 3 * kMiB));
  const CUdeviceptr a = device_memory(256);
  const CUdeviceptr b = device_memory(256);
  say_yes("neighbours_have_different_ids", buffer_id(a) != buffer_id(b));
}

constexpr Fact kFacts[] = {
    {.name = "uva.device", .run = device_pointers},
    {.name = "uva.pinned", .run = pinned_pointers},
    {.name = "uva.registered", .run = registered_pointers},
    {.name = "uva.managed", .run = managed_pointers},
    {.name = "uva.virtual", .run = virtual_pointers},
    {.name = "uva.unknown", .run = unknown_pointers},
    {.name = "uva.misuse", .run = misuse},
    {.name = "uva.widths", .run = widths},
    {.name = "uva.buffer_ids", .run = buffer_ids},
};

}  // namespace

std::span<const Fact> pointer_facts() { return kFacts; }

}  // namespace facts
