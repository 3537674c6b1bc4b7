// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts about virtual memory management: reservations, physical blocks, mappings, access.
#include "facts.hpp"

#include <cstring>
#include <type_traits>
#include <vector>

namespace facts {
namespace {

constexpr std::size_t kBlock = 2 * kMiB;
using Handle = CUmemGenericAllocationHandle;

CUmemAllocationProp properties(CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE, int id = 0,
                               CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = type;
  prop.location.id = id;
  prop.requestedHandleTypes = handles;
  return prop;
}

CUdeviceptr reserve(std::size_t size) {
  CUdeviceptr p = 0;
  must(cu.MemAddressReserve(&p, size, 0, 0, 0), "cuMemAddressReserve");
  return p;
}

Handle block(std::size_t size = kBlock, const CUmemAllocationProp& prop = properties()) {
  Handle handle = 0;
  must(cu.MemCreate(&handle, size, &prop, 0), "cuMemCreate");
  return handle;
}

CUresult set_access(CUdeviceptr p, std::size_t size, CUmemLocationType type, int id,
                    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc access = {};
  access.location.type = type;
  access.location.id = id;
  access.flags = flags;
  return cu.MemSetAccess(p, size, &access, 1);
}

CUresult device_access(CUdeviceptr p, std::size_t size,
                       CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  return set_access(p, size, CU_MEM_LOCATION_TYPE_DEVICE, 0, flags);
}

std::string get_access(CUdeviceptr p, CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE, int id = 0) {
  const CUmemLocation location = {type, id};
  unsigned long long flags = 99;
  const CUresult code = cu.MemGetAccess(&flags, &location, p);
  return code == CUDA_SUCCESS ? std::to_string(flags) : text(code);
}

void create(int) {
  const auto attempt = [](const char* detail, std::size_t size, const CUmemAllocationProp& prop,
                          unsigned long long flags = 0) {
    Handle handle = 0;
    const CUresult code = cu.MemCreate(&handle, size, &prop, flags);
    say(detail, code);
    if (code == CUDA_SUCCESS) say(std::string(detail) + ".release", cu.MemRelease(handle));
  };
  attempt("block", kBlock, properties());
  attempt("size_0", 0, properties());
  attempt("size_4KiB", kPage, properties());
  attempt("size_3MiB", 3 * kMiB, properties());
  attempt("size_2_62", kHuge, properties());
  attempt("size_2_46", std::size_t{1} << 46, properties());
  attempt("flags_1", kBlock, properties(), 1);
  CUmemAllocationProp prop = properties();
  prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  attempt("type_invalid", kBlock, prop);
  attempt("location_none", kBlock, properties(CU_MEM_LOCATION_TYPE_INVALID));
  attempt("device_99", kBlock, properties(CU_MEM_LOCATION_TYPE_DEVICE, 99));
  attempt("device_minus_1", kBlock, properties(CU_MEM_LOCATION_TYPE_DEVICE, -1));
  attempt("host", kBlock, properties(CU_MEM_LOCATION_TYPE_HOST));
  attempt("host_id_7", kBlock, properties(CU_MEM_LOCATION_TYPE_HOST, 7));
  attempt("host_4KiB", kPage, properties(CU_MEM_LOCATION_TYPE_HOST));
  attempt("host_fd", kBlock,
          properties(CU_MEM_LOCATION_TYPE_HOST, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  attempt("host_numa", kBlock, properties(CU_MEM_LOCATION_TYPE_HOST_NUMA));
  attempt("host_numa_99", kBlock, properties(CU_MEM_LOCATION_TYPE_HOST_NUMA, 99));
  attempt("host_numa_minus_1", kBlock, properties(CU_MEM_LOCATION_TYPE_HOST_NUMA, -1));
  attempt("host_numa_fd", kBlock,
          properties(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  attempt("host_numa_current", kBlock, properties(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT));
  attempt("fd", kBlock, properties(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  attempt("fabric", kBlock, properties(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_FABRIC));
  attempt("win32", kBlock, properties(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_WIN32));
  prop = properties();
  prop.allocFlags.gpuDirectRDMACapable = 1;
  attempt("rdma", kBlock, prop);
  prop = properties();
  prop.allocFlags.compressionType = 9;
  attempt("compression_9", kBlock, prop);
  prop = properties();
  prop.allocFlags.reserved[0] = 1;
  attempt("reserved_not_zero", kBlock, prop);
  Handle handle = 0;
  const auto granted = [&](const std::string& detail, auto flag, auto wanted) {
    prop = properties();
    prop.allocFlags.*flag = static_cast<std::decay_t<decltype(prop.allocFlags.*flag)>>(wanted);
    const CUresult code = cu.MemCreate(&handle, kBlock, &prop, 0);
    say(detail, code);
    if (code != CUDA_SUCCESS) return;
    CUmemAllocationProp made = {};
    say(detail + ".read_back", cu.MemGetAllocationPropertiesFromHandle(&made, handle));
    say_number(detail + ".granted", made.allocFlags.*flag);
  };
  using Flags = decltype(prop.allocFlags);
  granted("compressible", &Flags::compressionType, CU_MEM_ALLOCATION_COMP_GENERIC);
  granted("hw_decompress", &Flags::usage, CU_MEM_CREATE_USAGE_HW_DECOMPRESS);
  say("null_out", [&] {
    const CUmemAllocationProp plain = properties();
    return cu.MemCreate(nullptr, kBlock, &plain, 0);
  }());
  say("null_properties", cu.MemCreate(&handle, kBlock, nullptr, 0));
}

void properties_read_back(int) {
  const auto ask = [](const char* detail, const CUmemAllocationProp& wanted) {
    Handle handle = 0;
    if (cu.MemCreate(&handle, kBlock, &wanted, 0) != CUDA_SUCCESS) return say(detail, "cannot be created");
    CUmemAllocationProp prop = {};
    const CUresult code = cu.MemGetAllocationPropertiesFromHandle(&prop, handle);
    if (code != CUDA_SUCCESS) return say(detail, code);
    say(detail, "type " + std::to_string(prop.type) + ", handles " +
                    std::to_string(prop.requestedHandleTypes) + ", location " +
                    std::to_string(prop.location.type) + " " + std::to_string(prop.location.id) +
                    ", compression " + std::to_string(prop.allocFlags.compressionType) + ", rdma " +
                    std::to_string(prop.allocFlags.gpuDirectRDMACapable));
  };
  ask("device", properties());
  ask("device_fd", properties(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ask("host", properties(CU_MEM_LOCATION_TYPE_HOST));
  ask("host_id_7", properties(CU_MEM_LOCATION_TYPE_HOST, 7));
  ask("host_numa", properties(CU_MEM_LOCATION_TYPE_HOST_NUMA));
}

void reserve_misuse(int) {
  const auto attempt = [](const char* detail, std::size_t size, std::size_t alignment, CUdeviceptr hint,
                          unsigned long long flags) {
    CUdeviceptr p = 0;
    const CUresult code = cu.MemAddressReserve(&p, size, alignment, hint, flags);
    say(detail, code);
    if (code == CUDA_SUCCESS) {
      if (hint) say_yes(std::string(detail) + ".at_hint", p == hint);
      if (alignment) say_yes(std::string(detail) + ".aligned", p % alignment == 0);
      say(std::string(detail) + ".free", cu.MemAddressFree(p, size));
    }
  };
  attempt("block", kBlock, 0, 0, 0);
  attempt("size_0", 0, 0, 0, 0);
  attempt("size_4KiB", kPage, 0, 0, 0);
  attempt("size_64KiB", 64 * kKiB, 0, 0, 0);
  attempt("size_3MiB", 3 * kMiB, 0, 0, 0);
  attempt("size_1000", 1000, 0, 0, 0);
  attempt("size_2_62", kHuge, 0, 0, 0);
  attempt("size_2_47", std::size_t{1} << 47, 0, 0, 0);
  attempt("size_1TiB", kGiB * 1024, 0, 0, 0);
  attempt("alignment_3", kBlock, 3, 0, 0);
  attempt("alignment_3MiB", kBlock, 3 * kMiB, 0, 0);
  attempt("alignment_4KiB", kBlock, kPage, 0, 0);
  attempt("alignment_1GiB", kBlock, kGiB, 0, 0);
  attempt("alignment_64GiB", kBlock, 64 * kGiB, 0, 0);
  attempt("flags_1", kBlock, 0, 0, 1);
  const CUdeviceptr taken = reserve(4 * kBlock);
  attempt("hint_taken", kBlock, 0, taken, 0);
  attempt("hint_misaligned", kBlock, 0, taken + 64 * kGiB + 100, 0);
  must(cu.MemAddressFree(taken, 4 * kBlock), "cuMemAddressFree");
  attempt("hint_free", kBlock, 0, taken, 0);
  say("null_out", cu.MemAddressReserve(nullptr, kBlock, 0, 0, 0));
}

void address_free(int) {
  CUdeviceptr p = reserve(4 * kBlock);
  say("part", cu.MemAddressFree(p, kBlock));
  say("upper_part", cu.MemAddressFree(p + kBlock, 3 * kBlock));
  say("longer", cu.MemAddressFree(p, 5 * kBlock));
  say("size_0", cu.MemAddressFree(p, 0));
  say("unknown", cu.MemAddressFree(as_device(cpu_memory(kBlock)), kBlock));
  say("null", cu.MemAddressFree(0, kBlock));
  must(cu.MemMap(p, kBlock, 0, block(), 0), "cuMemMap");
  say("mapped", cu.MemAddressFree(p, 4 * kBlock));
  must(cu.MemUnmap(p, kBlock), "cuMemUnmap");
  say("whole", cu.MemAddressFree(p, 4 * kBlock));
  say("again", cu.MemAddressFree(p, 4 * kBlock));
}

void map(int) {
  const CUdeviceptr p = reserve(8 * kBlock);
  const Handle one = block();
  const Handle two = block(2 * kBlock);
  const auto attempt = [](const char* detail, CUdeviceptr at, std::size_t size, std::size_t offset,
                          Handle handle, unsigned long long flags = 0) {
    const CUresult code = cu.MemMap(at, size, offset, handle, flags);
    say(detail, code);
    if (code == CUDA_SUCCESS) say(std::string(detail) + ".unmap", cu.MemUnmap(at, size));
  };
  attempt("whole", p, kBlock, 0, one);
  attempt("size_0", p, 0, 0, one);
  attempt("part", p, kBlock, 0, two);
  attempt("offset", p, kBlock, kBlock, two);
  attempt("longer", p, 2 * kBlock, 0, one);
  attempt("size_4KiB", p, kPage, 0, one);
  attempt("at_4KiB", p + kPage, kBlock, 0, one);
  attempt("at_1MiB", p + kMiB, kBlock, 0, one);
  attempt("flags_1", p, kBlock, 0, one, 1);
  attempt("not_reserved", as_device(unmapped_address(2 * kBlock)) & ~(kBlock - 1), kBlock, 0, one);
  attempt("null", 0, kBlock, 0, one);
  attempt("over_end_of_reservation", p + 7 * kBlock, 2 * kBlock, 0, two);
  must(cu.MemMap(p, kBlock, 0, one, 0), "cuMemMap");
  attempt("over_mapping", p, kBlock, 0, block());
  attempt("partly_over_mapping", p, 2 * kBlock, 0, two);
  say("alias", cu.MemMap(p + kBlock, kBlock, 0, one, 0));
  say("access_before_set", get_access(p));
  say("access_of_reserved", get_access(p + 4 * kBlock));
  say("access_of_host", get_access(p, CU_MEM_LOCATION_TYPE_HOST));
  say("set_access", device_access(p, 2 * kBlock));
  say("access_then", get_access(p));
  say("access_interior", get_access(p + 12345));
  say("memset", cu.MemsetD8(p, 0x42, kBlock));
  (void)cu.CtxSynchronize();
  say_yes("alias_sees_bytes", device_bytes(p + kBlock, kBlock, 0x42));
  say("release_while_mapped", cu.MemRelease(one));
  say_yes("bytes_after_release", device_bytes(p, kBlock, 0x42));
  Handle retained = 0;
  Handle other = 0;
  say("retain", cu.MemRetainAllocationHandle(&retained, as_host(p)));
  say("retain_interior", cu.MemRetainAllocationHandle(&other, as_host(p + 100)));
  say("retain_unmapped", cu.MemRetainAllocationHandle(&other, as_host(p + 6 * kBlock)));
  say("retain_device_memory", cu.MemRetainAllocationHandle(&other, as_host(device_memory(kMiB))));
  say("unmap_part", cu.MemUnmap(p, kMiB));
  say("unmap_size_0", cu.MemUnmap(p, 0));
  say("unmap_with_hole", cu.MemUnmap(p, 3 * kBlock));
  say("unmap_two_at_once", cu.MemUnmap(p, 2 * kBlock));
  say("unmap_again", cu.MemUnmap(p, kBlock));
  must(cu.MemMap(p, kBlock, 0, retained, 0), "cuMemMap");
  say("access_after_remap", get_access(p));
}

void without_access(int which) {
  const CUdeviceptr p = reserve(2 * kBlock);
  if (which != 0) must(cu.MemMap(p, kBlock, 0, block(), 0), "cuMemMap");
  if (which == 2) must(device_access(p, kBlock), "cuMemSetAccess");
  if (which == 2) must(device_access(p, kBlock, CU_MEM_ACCESS_FLAGS_PROT_NONE), "cuMemSetAccess");
  say("access", get_access(p));
  say("cpu_touch", touch_read(as_host(p)));
  std::uint8_t byte = 0;
  say("copy_from", cu.MemcpyDtoH(&byte, p, 1));
  say("memset", cu.MemsetD8(p, 1, 64));
  say("context_then", cu.CtxSynchronize());
}

void release_twice(int) {
  const Handle handle = block();
  say("first", cu.MemRelease(handle));
  say("second", cu.MemRelease(handle));
}

void release_unknown(int) { say("code", cu.MemRelease(0x1234)); }

void access_of_a_part(int) {
  constexpr std::size_t kTwo = 2 * kBlock;
  const CUdeviceptr p = reserve(6 * kBlock);
  must(cu.MemMap(p, kTwo, 0, block(kTwo), 0), "cuMemMap");
  must(cu.MemMap(p + kTwo, kTwo, 0, block(kTwo), 0), "cuMemMap");
  say("first_half_of_mapping", device_access(p, kBlock));
  say("first_half_then", get_access(p));
  say("second_half_then", get_access(p + kBlock));
  say("second_half_of_mapping", device_access(p + kBlock, kBlock));
  say("half_of_each_of_two", device_access(p + kBlock, kTwo));
  say("first_then", get_access(p));
  say("second_then", get_access(p + kTwo));
  say("4KiB", device_access(p, kPage));
  say("at_4KiB", device_access(p + kPage, kBlock));
  say("size_0", device_access(p, 0));
  say("with_hole", device_access(p, 3 * kTwo));
  say("first_after_hole", get_access(p));
  say("two_whole_mappings", device_access(p, 2 * kTwo));
  say("narrow_second_to_read", device_access(p + kTwo, kTwo, CU_MEM_ACCESS_FLAGS_PROT_READ));
  say("second_reads_back", get_access(p + kTwo));
  say("first_reads_back", get_access(p));
  say("half_to_read", device_access(p, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ));
  say("lower_half_reads_back", get_access(p));
  say("upper_half_reads_back", get_access(p + kBlock));
  say("flags_2", device_access(p, kTwo, stray<CUmemAccess_flags>(2)));
  say("flags_7", device_access(p, kTwo, stray<CUmemAccess_flags>(7)));
  say("device_99", set_access(p, kTwo, CU_MEM_LOCATION_TYPE_DEVICE, 99));
  say("count_0", [p] {
    CUmemAccessDesc access = {};
    return cu.MemSetAccess(p, kTwo, &access, 0);
  }());
  say("reserved_only", device_access(p + 2 * kTwo, kTwo));
  say("null", cu.MemSetAccess(p, kTwo, nullptr, 1));
}

// The CPU and host-located blocks: before access is set, which descriptors are accepted, and after.
void cpu_access(int type_of_block) {
  const auto type = static_cast<CUmemLocationType>(type_of_block);
  const CUdeviceptr p = reserve(kBlock);
  must(cu.MemMap(p, kBlock, 0, block(kBlock, properties(type)), 0), "cuMemMap");
  say("touch_before", touch_read(as_host(p)));
  say("set_device", device_access(p, kBlock));
  say("touch_with_device_access", touch_read(as_host(p)));
  struct Descriptor {
    const char* name;
    CUmemLocationType type;
    int id;
  };
  for (const Descriptor& to : {Descriptor{"host", CU_MEM_LOCATION_TYPE_HOST, 0},
                               Descriptor{"host_id_7", CU_MEM_LOCATION_TYPE_HOST, 7},
                               Descriptor{"host_numa", CU_MEM_LOCATION_TYPE_HOST_NUMA, 0},
                               Descriptor{"host_numa_99", CU_MEM_LOCATION_TYPE_HOST_NUMA, 99},
                               Descriptor{"host_numa_current", CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0},
                               Descriptor{"none", CU_MEM_LOCATION_TYPE_INVALID, 0}}) {
    const std::string detail = to.name;
    say(detail + ".read_only", set_access(p, kBlock, to.type, to.id, CU_MEM_ACCESS_FLAGS_PROT_READ));
    say(detail + ".read_only_touch", touch_read(as_host(p)));
    say(detail + ".read_only_write", touch_write(as_host(p), 1));
    const CUresult code = set_access(p, kBlock, to.type, to.id);
    say(detail + ".read_write", code);
    say(detail + ".read_back", get_access(p, to.type, to.id));
    say(detail + ".touch", touch_read(as_host(p)));
    say(detail + ".write", touch_write(as_host(p), 0x37));
    if (code == CUDA_SUCCESS) {
      say_yes(detail + ".device_sees_cpu_write", device_bytes(p, 1, 0x37));
      say(detail + ".take_away", set_access(p, kBlock, to.type, to.id, CU_MEM_ACCESS_FLAGS_PROT_NONE));
      say(detail + ".touch_then", touch_read(as_host(p)));
    }
  }
}

// Operations across the seam of two mappings.
void seam(int second_on_host) {
  const CUdeviceptr p = reserve(2 * kBlock);
  must(cu.MemMap(p, kBlock, 0, block(), 0), "cuMemMap");
  const auto second = second_on_host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  must(cu.MemMap(p + kBlock, kBlock, 0, block(kBlock, properties(second)), 0), "cuMemMap");
  must(device_access(p, 2 * kBlock), "cuMemSetAccess");
  const CUdeviceptr across = p + kMiB;
  std::uint8_t* pinned = pinned_memory(kBlock);
  std::vector<std::uint8_t> pageable(kBlock, 0x21);
  std::memset(pinned, 0x22, kBlock);
  const CUdeviceptr device = device_memory(kBlock);
  must(cu.MemsetD8(device, 0x23, kBlock), "cuMemsetD8");
  CUstream stream = new_stream();
  const auto check = [&](std::uint8_t value) {
    const CUresult code = cu.CtxSynchronize();
    if (code != CUDA_SUCCESS) return text(code);
    return yes(device_bytes(across, kMiB, value) && device_bytes(p + kBlock, kMiB, value));
  };
  say("memset", cu.MemsetD8(across, 0x20, kBlock));
  say("memset_bytes", check(0x20));
  say("memset_async", cu.MemsetD8Async(across, 0x24, kBlock, stream));
  say("memset_async_bytes", check(0x24));
  say("htod_pageable", cu.MemcpyHtoD(across, pageable.data(), kBlock));
  say("htod_pageable_bytes", check(0x21));
  say("htod_pinned_async", cu.MemcpyHtoDAsync(across, pinned, kBlock, stream));
  say("htod_pinned_async_bytes", check(0x22));
  say("dtod", cu.MemcpyDtoD(across, device, kBlock));
  say("dtod_bytes", check(0x23));
  say("copy_async_inferred", cu.MemcpyAsync(across, as_device(pinned), kBlock, stream));
  say("copy_async_inferred_bytes", check(0x22));
  say("dtoh", cu.MemcpyDtoH(pageable.data(), across, kBlock));
  say_yes("dtoh_bytes", all_bytes(pageable.data(), kBlock, 0x22));
  say("dtoh_async", cu.MemcpyDtoHAsync(pinned, across, kBlock, stream));
  say("context_then", cu.CtxSynchronize());
  CUdeviceptr base = 0;
  std::size_t size = 0;
  say("address_range", cu.MemGetAddressRange(&base, &size, p + kBlock + 100));
  say("address_range_is", base == p            ? "from the reservation's base, size " + std::to_string(size)
                          : base == p + kBlock ? "one mapping, size " + std::to_string(size)
                                               : "other");
  int dma_buf = -1;
  say("dma_buf_of_both",
      cu.MemGetHandleForAddressRange(&dma_buf, p, 2 * kBlock, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
}

void seam_of_two_devices(int) {
  int count = 0;
  must(cu.DeviceGetCount(&count), "cuDeviceGetCount");
  int can = 0;
  if (count > 1) must(cu.DeviceCanAccessPeer(&can, 0, 1), "cuDeviceCanAccessPeer");
  if (!can) return say_machine("code", "no second device that the first can reach");
  const CUdeviceptr p = reserve(2 * kBlock);
  must(cu.MemMap(p, kBlock, 0, block(), 0), "cuMemMap");
  must(cu.MemMap(p + kBlock, kBlock, 0, block(kBlock, properties(CU_MEM_LOCATION_TYPE_DEVICE, 1)), 0),
       "cuMemMap");
  must(device_access(p, 2 * kBlock), "cuMemSetAccess");
  std::vector<std::uint8_t> host(kBlock, 0x21);
  say_machine("memset", text(cu.MemsetD8(p + kMiB, 0x20, kBlock)));
  say_machine("htod", text(cu.MemcpyHtoD(p + kMiB, host.data(), kBlock)));
  say_machine("dtoh", text(cu.MemcpyDtoH(host.data(), p + kMiB, kBlock)));
  say_machine("context_then", text(cu.CtxSynchronize()));
}

// Mapping and access beside a range that a kernel writes.
void grow_in_flight(int) {
  const CUdeviceptr p = reserve(4 * kBlock);
  must(cu.MemMap(p, kBlock, 0, block(), 0), "cuMemMap");
  must(device_access(p, kBlock), "cuMemSetAccess");
  must(cu.MemsetD8(p, 0, kBlock), "cuMemsetD8");
  must(cu.CtxSynchronize(), "cuCtxSynchronize");
  std::uint8_t* flag = pinned_memory(kPage);
  std::memset(flag, 0, kPage);
  CUstream stream = new_stream();
  CUfunction function = kernel(Kernel::kWaitThenFill);
  CUdeviceptr flag_address = as_device(flag);
  CUdeviceptr target = p;
  std::uint64_t bytes = kBlock;
  std::uint32_t value = 0x5C;
  void* params[] = {&flag_address, &target, &bytes, &value};
  const Handle second = block();
  must(launch(function, stream, params), "cuLaunchKernel");
  const auto waited = [&](const char* detail) { say_yes(detail, cu.StreamQuery(stream) == CUDA_SUCCESS); };
  say("map", cu.MemMap(p + kBlock, kBlock, 0, second, 0));
  waited("map_waited_for_the_kernel");
  say("set_access_of_new_part", device_access(p + kBlock, kBlock));
  waited("set_access_waited_for_the_kernel");
  Handle third = 0;
  const CUmemAllocationProp prop = properties();
  say("create", cu.MemCreate(&third, kBlock, &prop, 0));
  waited("create_waited_for_the_kernel");
  *reinterpret_cast<volatile std::uint32_t*>(flag) = 1;
  say("stream_then", settle(stream));
  say_yes("old_part_was_written", device_bytes(p, kBlock, 0x5C));
  say("memset_new_part", cu.MemsetD8(p + kBlock, 1, kBlock));
  say("context_then", cu.CtxSynchronize());

  // The same for what takes away: an unrelated mapping goes while the kernel runs.
  *reinterpret_cast<volatile std::uint32_t*>(flag) = 0;
  must(launch(function, stream, params), "cuLaunchKernel");
  say("unmap_beside", cu.MemUnmap(p + kBlock, kBlock));
  waited("unmap_waited_for_the_kernel");
  say("release_beside", cu.MemRelease(second));
  waited("release_waited_for_the_kernel");
  *reinterpret_cast<volatile std::uint32_t*>(flag) = 1;
  say("stream_at_end", settle(stream));
}

// Device writes through a mapping that this device may only read.
void write_through_read(int which) {
  const CUdeviceptr p = reserve(kBlock);
  must(cu.MemMap(p, kBlock, 0, block(), 0), "cuMemMap");
  must(device_access(p, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ), "cuMemSetAccess");
  std::uint8_t byte = 0;
  say("read", cu.MemcpyDtoH(&byte, p, 1));
  try_device_write(which, p, [&](CUstream) { return cu.MemcpyHtoD(p, &byte, 1); });
  CUdeviceptr fresh = 0;
  say("alloc_then", cu.MemAlloc(&fresh, 4096));
}

constexpr Fact kFacts[] = {
    {.name = "vmm.create", .run = create},
    {.name = "vmm.properties", .run = properties_read_back},
    {.name = "vmm.reserve", .run = reserve_misuse},
    {.name = "vmm.address_free", .run = address_free},
    {.name = "vmm.map", .run = map},
    {.name = "vmm.use_reserved", .run = without_access, .arg = 0},
    {.name = "vmm.use_mapped_without_access", .run = without_access, .arg = 1},
    {.name = "vmm.use_with_access_taken", .run = without_access, .arg = 2},
    {.name = "vmm.release_twice", .run = release_twice},
    {.name = "vmm.release_unknown", .run = release_unknown},
    {.name = "vmm.access_of_a_part", .run = access_of_a_part},
    {.name = "vmm.cpu_access_to_host", .run = cpu_access, .arg = CU_MEM_LOCATION_TYPE_HOST},
    {.name = "vmm.cpu_access_to_host_numa", .run = cpu_access, .arg = CU_MEM_LOCATION_TYPE_HOST_NUMA},
    {.name = "vmm.cpu_access_to_device", .run = cpu_access, .arg = CU_MEM_LOCATION_TYPE_DEVICE},
    {.name = "vmm.seam", .run = seam, .arg = 0},
    {.name = "vmm.seam_of_device_and_host", .run = seam, .arg = 1},
    {.name = "vmm.seam_of_two_devices", .run = seam_of_two_devices},
    {.name = "vmm.grow_in_flight", .run = grow_in_flight},
    {.name = "vmm.write_through_read_memset", .run = write_through_read, .arg = 0},
    {.name = "vmm.write_through_read_htod", .run = write_through_read, .arg = 1},
    {.name = "vmm.write_through_read_dtod", .run = write_through_read, .arg = 2},
    {.name = "vmm.write_through_read_kernel", .run = write_through_read, .arg = 3},
};

}  // namespace

std::span<const Fact> vmm_facts() { return kFacts; }

}  // namespace facts
