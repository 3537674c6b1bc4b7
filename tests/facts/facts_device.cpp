// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts about device memory and about copies and fills.
#include "facts.hpp"

#include <cstdio>
#include <cstring>
#include <vector>

namespace facts {
namespace {

void alloc(int) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  say("cuMemGetInfo", cu.MemGetInfo(&free_bytes, &total));
  const auto attempt = [](const char* detail, std::size_t size) {
    CUdeviceptr p = 42;
    const CUresult code = cu.MemAlloc(&p, size);
    say(detail, code);
    say(std::string(detail) + "_pointer", p == 42 ? "unchanged" : p ? "some" : "null");
    if (code == CUDA_SUCCESS) say(std::string(detail) + "_free", cu.MemFree(p));
  };
  attempt("size_0", 0);
  attempt("size_max", SIZE_MAX);
  attempt("size_max_minus_2MiB", SIZE_MAX - 2 * kMiB);
  attempt("size_2_63", std::size_t{1} << 63);
  attempt("size_2_62", kHuge);
  attempt("size_2_46", std::size_t{1} << 46);
  attempt("above_total", total + kGiB);
  attempt("above_free", free_bytes + 2 * kMiB);
  say("null_out", cu.MemAlloc(nullptr, 4096));
  attempt("then_1MiB", kMiB);
  say("cuMemGetInfo_null_free", cu.MemGetInfo(nullptr, &total));
  say("cuMemGetInfo_null_total", cu.MemGetInfo(&free_bytes, nullptr));
}

void free_misuse(int which) {
  switch (which) {
    case 0:
      say("null", cu.MemFree(0));
      break;
    case 1: {
      const CUdeviceptr p = device_memory(kMiB);
      say("first", cu.MemFree(p));
      say("second", cu.MemFree(p));
      break;
    }
    case 2: {
      const CUdeviceptr p = device_memory(4 * kMiB);
      say("interior_256", cu.MemFree(p + 256));
      say("interior_2MiB", cu.MemFree(p + 2 * kMiB));
      say("interior_1", cu.MemFree(p + 1));
      say("past_end", cu.MemFree(p + 4 * kMiB));
      say("base_then", cu.MemFree(p));
      break;
    }
    case 3: {
      const std::vector<std::uint8_t> heap(4096);
      say("heap", cu.MemFree(as_device(heap.data())));
      say("unmapped", cu.MemFree(as_device(unmapped_address(kMiB))));
      say("small_number", cu.MemFree(0x1000));
      say("all_ones", cu.MemFree(~CUdeviceptr{0}));
      break;
    }
    case 4: {
      std::uint8_t* p = registered_memory(kMiB);
      say("registered", cu.MemFree(as_device(p)));
      say("unregister_then", cu.MemHostUnregister(p));
      break;
    }
    case 5: {
      const CUdeviceptr p = managed_memory(4 * kMiB);
      say("interior", cu.MemFree(p + 4096));
      say("base", cu.MemFree(p));
      say("again", cu.MemFree(p));
      break;
    }
    default: {
      CUdeviceptr p = 0;
      must(cu.MemAllocAsync(&p, kMiB, nullptr), "cuMemAllocAsync");
      (void)cu.CtxSynchronize();
      say("pool_memory", cu.MemFree(p));
      say("again", cu.MemFree(p));
      break;
    }
  }
}

void address_range(int) {
  const auto ask = [](const std::string& detail, CUdeviceptr p) {
    CUdeviceptr base = 1;
    std::size_t size = 1;
    const CUresult code = cu.MemGetAddressRange(&base, &size, p);
    say(detail, code);
    if (code == CUDA_SUCCESS) {
      say(detail + ".base",
          base == p ? "same" : "offset " + std::to_string(static_cast<long long>(p - base)));
      say_number(detail + ".size", static_cast<long long>(size));
    }
  };
  const CUdeviceptr p = device_memory(3 * kMiB);
  ask("base", p);
  ask("interior", p + 12345);
  ask("last", p + 3 * kMiB - 1);
  ask("past_end", p + 3 * kMiB);
  const CUdeviceptr odd = device_memory(1000);
  ask("odd", odd);
  ask("odd_interior", odd + 999);
  ask("odd_past_end", odd + 1000);
  ask("odd_1023", odd + 1023);
  std::uint8_t* pinned = pinned_memory(1000);
  ask("pinned", as_device(pinned));
  ask("pinned_interior", as_device(pinned + 100));
  std::uint8_t* registered = cpu_memory(kMiB);
  must(cu.MemHostRegister(registered + 100, 1000, 0), "cuMemHostRegister");
  ask("registered", as_device(registered + 100));
  ask("registered_interior", as_device(registered + 200));
  ask("registered_same_page_outside", as_device(registered + 10));
  const CUdeviceptr managed = managed_memory(3 * kMiB);
  ask("managed", managed);
  ask("managed_interior", managed + 100);
  CUdeviceptr pooled = 0;
  if (cu.MemAllocAsync(&pooled, 1000, nullptr) == CUDA_SUCCESS) {
    (void)cu.CtxSynchronize();
    ask("pool", pooled);
    ask("pool_interior", pooled + 100);
  }
  const std::vector<std::uint8_t> heap(100);
  ask("heap", as_device(heap.data()));
  ask("null", 0);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  say("only_base", cu.MemGetAddressRange(&base, nullptr, p));
  say("only_size", cu.MemGetAddressRange(nullptr, &size, p));
  say("neither", cu.MemGetAddressRange(nullptr, nullptr, p));
  must(cu.MemFree(p), "cuMemFree");
  ask("freed", p);
}

// The permissions of the CPU's mapping at an address, from /proc/self/maps.
std::string cpu_mapping(const void* p) {
  FILE* maps = std::fopen("/proc/self/maps", "r");
  if (!maps) return "unreadable";
  std::string found = "none";
  char line[1024];
  while (std::fgets(line, sizeof line, maps)) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    char permissions[5] = "";
    char name[512] = "";
    if (std::sscanf(line, "%llx-%llx %4s %*s %*s %*s %511s", &begin, &end, permissions, name) < 3) continue;
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    if (address >= begin && address < end) {
      found = std::string(permissions) + (name[0] ? std::string(" ") + name : " anonymous");
      break;
    }
  }
  std::fclose(maps);
  return found;
}

void cpu_access(int) {
  const CUdeviceptr p = device_memory(2 * kMiB);
  say("mapping_device", cpu_mapping(as_host(p)));
  say("read_device", touch_read(as_host(p)));
  say("write_device", touch_write(as_host(p), 1));
  const CUdeviceptr small = device_memory(256);
  say("read_small_device", touch_read(as_host(small)));
  must(cu.MemFree(p), "cuMemFree");
  say("mapping_freed_device", cpu_mapping(as_host(p)));
  say("read_freed_device", touch_read(as_host(p)));
  CUdeviceptr pooled = 0;
  if (cu.MemAllocAsync(&pooled, kMiB, nullptr) == CUDA_SUCCESS) {
    (void)cu.CtxSynchronize();
    say("read_pool", touch_read(as_host(pooled)));
  }
  std::uint8_t* pinned = pinned_memory(kMiB);
  say("mapping_pinned", cpu_mapping(pinned));
  std::uint8_t* combined = pinned_memory(kMiB, CU_MEMHOSTALLOC_WRITECOMBINED);
  say("mapping_write_combined", cpu_mapping(combined));
  const CUdeviceptr managed = managed_memory(2 * kMiB);
  say("mapping_managed", cpu_mapping(as_host(managed)));
  say("read_managed", touch_read(as_host(managed)));
  must(cu.MemFreeHost(pinned), "cuMemFreeHost");
  say("read_freed_pinned", touch_read(pinned));
  must(cu.MemFree(managed), "cuMemFree");
  say("mapping_freed_managed", cpu_mapping(as_host(managed)));
  say("read_freed_managed", touch_read(as_host(managed)));
}

void cpu_load_unguarded(int) {
  const CUdeviceptr p = device_memory(2 * kMiB);
  volatile std::uint8_t byte = *static_cast<volatile std::uint8_t*>(as_host(p));
  say("survived", hex(byte));
}

// Copies and fills that leave their allocation, one a process since some may spoil the context.
void past_end(int which) {
  constexpr std::size_t kBig = 32 * kMiB;
  const CUdeviceptr p = device_memory(kMiB);
  const CUdeviceptr big = device_memory(kBig);
  std::vector<std::uint8_t> host(kBig);
  std::uint8_t* pinned = pinned_memory(kBig);
  CUstream stream = new_stream();
  CUresult code = CUDA_SUCCESS;
  switch (which) {
    case 0:
      code = cu.MemcpyHtoD(p, host.data(), kMiB + 1);
      break;
    case 1:
      code = cu.MemcpyHtoD(p, host.data(), kBig);
      break;
    case 2:
      code = cu.MemcpyDtoH(host.data(), p, kMiB + 1);
      break;
    case 3:
      code = cu.MemcpyDtoH(host.data(), p, kBig);
      break;
    case 4:
      code = cu.MemcpyDtoD(p, big, kMiB + 1);
      break;
    case 5:
      code = cu.MemcpyDtoD(p, big, kBig);
      break;
    case 6:
      code = cu.MemcpyHtoDAsync(p, pinned, kMiB + 1, stream);
      break;
    case 7:
      code = cu.MemcpyHtoDAsync(p, pinned, kBig, stream);
      break;
    case 8:
      code = cu.MemcpyDtoHAsync(pinned, p, kBig, stream);
      break;
    case 9:
      code = cu.MemcpyDtoDAsync(p, big, kBig, stream);
      break;
    case 10:
      code = cu.MemcpyAsync(p, as_device(pinned), kBig, stream);
      break;
    case 11:
      code = cu.MemsetD8(p, 1, kMiB + 1);
      break;
    case 12:
      code = cu.MemsetD8(p, 1, kBig);
      break;
    case 13:
      code = cu.MemsetD8Async(p, 1, kBig, stream);
      break;
    case 14:
      code = cu.MemcpyHtoD(p + kMiB / 2, host.data(), kMiB);
      break;
    case 15:
      code = cu.MemcpyHtoD(p, host.data(), kHuge);
      break;
    case 16:
      code = cu.MemsetD8(p, 1, kHuge);
      break;
    default:
      code = cu.MemsetD8(p, 1, SIZE_MAX);
      break;
  }
  say("code", code);
  say("stream_then", settle(stream));
  say("context_then", cu.CtxSynchronize());
}

void zero_sizes(int) {
  const CUdeviceptr p = device_memory(kMiB);
  std::uint8_t host[64] = {};
  CUstream stream = new_stream();
  say("htod_0_bytes", cu.MemcpyHtoD(p, host, 0));
  say("htod_0_bytes_null_source", cu.MemcpyHtoD(p, nullptr, 0));
  say("htod_0_bytes_null_both", cu.MemcpyHtoD(0, nullptr, 0));
  say("dtoh_0_bytes_null_both", cu.MemcpyDtoH(nullptr, 0, 0));
  say("copy_0_bytes_null_both", cu.Memcpy(0, 0, 0));
  say("copy_async_0_bytes_null_both", cu.MemcpyAsync(0, 0, 0, stream));
  say("copy_async_0_bytes_freed_or_unknown", cu.MemcpyAsync(0x1234, 0x5678, 0, stream));
  say("memset_0_bytes", cu.MemsetD8(p, 1, 0));
  say("memset_0_bytes_null", cu.MemsetD8(0, 1, 0));
  say("stream_then", settle(stream));
}

void null_operands(int) {
  const CUdeviceptr p = device_memory(kMiB);
  std::uint8_t host[64] = {};
  CUstream stream = new_stream();
  say("memset_null", cu.MemsetD8(0, 1, 64));
  say("memset_async_null", cu.MemsetD8Async(0, 1, 64, stream));
  say("htod_null_source", cu.MemcpyHtoD(p, nullptr, 64));
  say("htod_null_destination", cu.MemcpyHtoD(0, host, 64));
  say("dtoh_null_destination", cu.MemcpyDtoH(nullptr, p, 64));
  say("dtoh_null_source", cu.MemcpyDtoH(host, 0, 64));
  say("copy_null_source", cu.Memcpy(p, 0, 64));
  say("copy_null_destination", cu.Memcpy(0, p, 64));
  say("htod_async_null_source", cu.MemcpyHtoDAsync(p, nullptr, 64, stream));
  say("memset32_misaligned", cu.MemsetD32(p + 1, 1, 4));
  say("stream_then", settle(stream));
  say("context_then", cu.CtxSynchronize());
}

void directions(int) {
  const CUdeviceptr a = device_memory(kMiB);
  const CUdeviceptr b = device_memory(kMiB);
  std::uint8_t* pinned = pinned_memory(kMiB);
  std::vector<std::uint8_t> pageable(kMiB, 0x61);
  std::vector<std::uint8_t> other(kMiB);
  CUstream stream = new_stream();
  std::memset(pinned, 0x62, kMiB);
  must(cu.MemsetD8(a, 0x63, kMiB), "cuMemsetD8");
  must(cu.CtxSynchronize(), "cuCtxSynchronize");
  const auto then = [&] { say("context_then", cu.CtxSynchronize()); };
  say("infer_pageable_to_device", cu.Memcpy(b, as_device(pageable.data()), kMiB));
  say_yes("bytes", device_bytes(b, kMiB, 0x61));
  say("infer_pinned_to_device", cu.Memcpy(b, as_device(pinned), kMiB));
  say_yes("bytes", device_bytes(b, kMiB, 0x62));
  say("infer_device_to_device", cu.Memcpy(b, a, kMiB));
  say_yes("bytes", device_bytes(b, kMiB, 0x63));
  say("infer_device_to_pageable", cu.Memcpy(as_device(other.data()), a, kMiB));
  say_yes("bytes", all_bytes(other.data(), kMiB, 0x63));
  say("infer_pageable_to_pageable", cu.Memcpy(as_device(other.data()), as_device(pageable.data()), kMiB));
  say_yes("bytes", all_bytes(other.data(), kMiB, 0x61));
  say("infer_pinned_to_pageable", cu.Memcpy(as_device(other.data()), as_device(pinned), kMiB));
  say_yes("bytes", all_bytes(other.data(), kMiB, 0x62));
  say("infer_async_pageable_to_pageable",
      cu.MemcpyAsync(as_device(other.data()), as_device(pageable.data()), kMiB, stream));
  say("stream_then", settle(stream));
  say_yes("bytes", all_bytes(other.data(), kMiB, 0x61));
  say("htod_with_device_source", cu.MemcpyHtoD(b, as_host(a), kMiB));
  then();
  say_yes("bytes", device_bytes(b, kMiB, 0x63));
  say("htod_with_pinned_destination", cu.MemcpyHtoD(as_device(pinned), pageable.data(), kMiB));
  then();
  say_yes("bytes", all_bytes(pinned, kMiB, 0x61));
  say("dtoh_with_device_destination", cu.MemcpyDtoH(as_host(b), a, kMiB));
  then();
  say("dtoh_with_pinned_source", cu.MemcpyDtoH(other.data(), as_device(pinned), kMiB));
  then();
  say("htod_with_pageable_destination", cu.MemcpyHtoD(as_device(other.data()), pageable.data(), kMiB));
  then();
  say("dtoh_with_pageable_source", cu.MemcpyDtoH(other.data(), as_device(pageable.data()), kMiB));
  then();
  say("dtod_with_pageable_source", cu.MemcpyDtoD(b, as_device(pageable.data()), kMiB));
  then();
  say("dtod_with_pinned_source", cu.MemcpyDtoD(b, as_device(pinned), kMiB));
  then();
  say("dtod_with_pageable_destination", cu.MemcpyDtoD(as_device(other.data()), a, kMiB));
  then();
  say("dtoh_async_with_device_destination", cu.MemcpyDtoHAsync(as_host(b), a, kMiB, stream));
  say("stream_then", settle(stream));
  say("htod_async_with_device_source", cu.MemcpyHtoDAsync(b, as_host(a), kMiB, stream));
  say("stream_then", settle(stream));
  const CUdeviceptr managed = managed_memory(2 * kMiB);
  say("htod_with_managed_destination", cu.MemcpyHtoD(managed, pageable.data(), kMiB));
  then();
  say("dtoh_with_managed_destination", cu.MemcpyDtoH(as_host(managed), a, kMiB));
  then();
  say_yes("bytes", all_bytes(as_host(managed), kMiB, 0x63));
}

void memset_pageable(int) {
  std::vector<std::uint8_t> pageable(kMiB);
  say("memset", cu.MemsetD8(as_device(pageable.data()), 1, 64));
  say("context_then", cu.CtxSynchronize());
}

void overlap(int) {
  const CUdeviceptr p = device_memory(4 * kMiB);
  CUstream stream = new_stream();
  say("dtod_forward", cu.MemcpyDtoD(p + 4096, p, kMiB));
  say("dtod_backward", cu.MemcpyDtoD(p, p + 4096, kMiB));
  say("dtod_self", cu.MemcpyDtoD(p, p, kMiB));
  say("copy_self", cu.Memcpy(p, p, kMiB));
  say("dtod_async_forward", cu.MemcpyDtoDAsync(p + 1, p, kMiB, stream));
  say("stream_then", settle(stream));
  std::uint8_t* pinned = pinned_memory(2 * kMiB);
  say("pinned_forward", cu.Memcpy(as_device(pinned + 4096), as_device(pinned), kMiB));
  say("pinned_self", cu.Memcpy(as_device(pinned), as_device(pinned), kMiB));
  say("context_then", cu.CtxSynchronize());
}

// Host operands that the CPU itself could not access.
void bad_host_operand(int which) {
  const CUdeviceptr p = device_memory(2 * kMiB);
  CUstream stream = new_stream();
  std::uint8_t* none = cpu_memory(kMiB, PROT_NONE);
  std::uint8_t* hole = unmapped_address(kMiB);
  std::uint8_t* constant = cpu_memory(kMiB, PROT_READ);
  CUresult code = CUDA_SUCCESS;
  switch (which) {
    case 0:
      code = cu.MemcpyHtoD(p, none, 64);
      break;
    case 1:
      code = cu.MemcpyHtoD(p, none, kMiB);
      break;
    case 2:
      code = cu.MemcpyHtoD(p, hole, kMiB);
      break;
    case 3:
      code = cu.MemcpyHtoDAsync(p, none, kMiB, stream);
      break;
    case 4:
      code = cu.MemcpyHtoDAsync(p, hole, 64, stream);
      break;
    case 5:
      code = cu.MemcpyDtoH(none, p, kMiB);
      break;
    case 6:
      code = cu.MemcpyDtoH(constant, p, 64);
      break;
    case 7:
      code = cu.MemcpyDtoH(constant, p, kMiB);
      break;
    case 8:
      code = cu.MemcpyDtoHAsync(hole, p, kMiB, stream);
      break;
    case 9:
      code = cu.Memcpy(p, as_device(hole), kMiB);
      break;
    default:
      code = cu.MemcpyAsync(as_device(hole), p, kMiB, stream);
      break;
  }
  say("code", code);
  say("stream_then", settle(stream));
  say("context_then", cu.CtxSynchronize());
}

void freed_operand(int which) {
  // A large block of its own, so that free really unmaps it.
  const CUdeviceptr p = device_memory(64 * kMiB);
  must(cu.MemFree(p), "cuMemFree");
  std::uint8_t host[64] = {};
  CUstream stream = new_stream();
  CUresult code = CUDA_SUCCESS;
  switch (which) {
    case 0:
      code = cu.MemcpyHtoD(p, host, sizeof host);
      break;
    case 1:
      code = cu.MemcpyDtoH(host, p, sizeof host);
      break;
    case 2:
      code = cu.MemsetD8(p, 1, 64);
      break;
    case 3:
      code = cu.MemsetD8Async(p, 1, 64, stream);
      break;
    default:
      code = cu.MemcpyAsync(p, as_device(host), sizeof host, stream);
      break;
  }
  say("code", code);
  say("stream_then", settle(stream));
  say("context_then", cu.CtxSynchronize());
}

void across_two_allocations(int) {
  constexpr std::size_t kSize = 2 * kMiB;
  CUdeviceptr low = device_memory(kSize);
  CUdeviceptr high = 0;
  for (int tries = 0; tries < 64; ++tries) {
    high = device_memory(kSize);
    if (high == low + kSize) break;
    if (low == high + kSize) {
      std::swap(low, high);
      break;
    }
    low = high;
  }
  if (high != low + kSize) {
    say("neighbours", "none found");
    return;
  }
  std::vector<std::uint8_t> host(kSize, 0x71);
  say("htod", cu.MemcpyHtoD(low + kSize / 2, host.data(), kSize));
  say("dtoh", cu.MemcpyDtoH(host.data(), low + kSize / 2, kSize));
  say("memset", cu.MemsetD8(low + kSize / 2, 1, kSize));
  say("context_then", cu.CtxSynchronize());
}

// cuMemFree while something is pending.
void free_busy(int which) {
  CUstream stream = new_stream();
  const CUdeviceptr p = device_memory(64 * kMiB);
  const CUdeviceptr other = device_memory(kMiB);
  if (which == 2) {
    std::uint8_t* flag = pinned_memory(kPage);
    std::memset(flag, 0, kPage);
    CUfunction function = kernel(Kernel::kWaitThenFill);
    CUdeviceptr flag_address = as_device(flag);
    CUdeviceptr target = other;
    std::uint64_t bytes = 64;
    std::uint32_t value = 1;
    void* params[] = {&flag_address, &target, &bytes, &value};
    must(launch(function, stream, params), "cuLaunchKernel");
    say("code", cu.MemFree(p));
    say_yes("waited_for_the_kernel", cu.StreamQuery(stream) == CUDA_SUCCESS);
    *reinterpret_cast<volatile std::uint32_t*>(flag) = 1;
  } else {
    Hold hold(stream, Hold::kShortMs);
    if (which == 1) must(cu.MemsetD8Async(p, 1, 64 * kMiB, stream), "cuMemsetD8Async");
    say("code", cu.MemFree(p));
    say_yes("waited_for_the_stream", !hold.active());
    hold.release();
  }
  say("stream_then", settle(stream));
  say("context_then", cu.CtxSynchronize());
}

// Which calls wait for a held stream that has nothing to do with them.
void calls_beside_busy(int which) {
  CUstream held = new_stream();
  CUstream stream = new_stream();
  const CUdeviceptr p = device_memory(4 * kMiB);
  std::uint8_t* pinned = pinned_memory(kMiB);
  std::vector<std::uint8_t> pageable(kMiB);
  // Loading a module waits.
  Hold hold(held, which == 8 ? Hold::kShortMs : kLongMs);
  CUresult code = CUDA_SUCCESS;
  CUdeviceptr fresh = 0;
  CUstream made = nullptr;
  switch (which) {
    case 0:
      code = cu.MemAlloc(&fresh, 64 * kMiB);
      break;
    case 1:
      code = cu.MemcpyHtoD(p, pageable.data(), kMiB);
      break;
    case 2:
      code = cu.MemcpyDtoH(pageable.data(), p, kMiB);
      break;
    case 3:
      code = cu.MemcpyDtoD(p, p + 2 * kMiB, kMiB);
      break;
    case 4:
      code = cu.MemsetD8(p, 1, kMiB);
      break;
    case 5:
      code = cu.MemcpyHtoDAsync(p, pageable.data(), kMiB, stream);
      break;
    case 6:
      code = cu.MemAllocManaged(&fresh, 4 * kMiB, CU_MEM_ATTACH_GLOBAL);
      break;
    case 7:
      code = cu.StreamCreate(&made, CU_STREAM_NON_BLOCKING);
      break;
    case 8:
      (void)kernel(Kernel::kStoreByte);
      break;
    default:
      code = cu.MemcpyHtoDAsync(p, pinned, kMiB, stream);
      break;
  }
  say("code", code);
  say_yes("waited_for_the_stream", !hold.active());
}

void alignment(int) {
  struct Size {
    const char* name;
    std::size_t bytes;
  };
  constexpr Size kSizes[] = {{"1", 1},
                             {"256", 256},
                             {"257", 257},
                             {"512", 512},
                             {"1000", 1000},
                             {"4KiB", 4 * kKiB},
                             {"64KiB", 64 * kKiB},
                             {"1MiB", kMiB},
                             {"2MiB", 2 * kMiB},
                             {"2MiB+1", 2 * kMiB + 1},
                             {"16MiB+1", 16 * kMiB + 1}};
  for (const Size& size : kSizes) {
    // The lowest set bit over several live blocks is what can be relied on.
    std::uint64_t device_bits = 0;
    std::uint64_t pinned_bits = 0;
    std::uint64_t managed_bits = 0;
    for (int i = 0; i < 16; ++i) {
      device_bits |= device_memory(size.bytes);
      pinned_bits |= as_device(pinned_memory(size.bytes));
      if (size.bytes <= 2 * kMiB && i < 4) managed_bits |= managed_memory(size.bytes);
    }
    const auto lowest = [](std::uint64_t bits) { return static_cast<long long>(bits & (~bits + 1)); };
    say_number(std::string("device_") + size.name, lowest(device_bits));
    say_number(std::string("pinned_") + size.name, lowest(pinned_bits));
    if (managed_bits) say_number(std::string("managed_") + size.name, lowest(managed_bits));
  }
}

void rounding(int) {
  const auto free_now = [] {
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    must(cu.MemGetInfo(&free_bytes, &total), "cuMemGetInfo");
    return static_cast<long long>(free_bytes);
  };
  struct Size {
    const char* name;
    std::size_t bytes;
  };
  constexpr Size kSizes[] = {
      {"1", 1},           {"1_again", 1},           {"1MiB", kMiB},     {"1MiB+1", kMiB + 1},
      {"2MiB", 2 * kMiB}, {"2MiB+1", 2 * kMiB + 1}, {"3MiB", 3 * kMiB}, {"16MiB+1", 16 * kMiB + 1},
      {"1GiB", kGiB}};
  for (const Size& size : kSizes) {
    const long long before = free_now();
    const CUdeviceptr p = device_memory(size.bytes);
    const long long during = free_now();
    must(cu.MemFree(p), "cuMemFree");
    say_number(std::string("taken_by_") + size.name, before - during);
    say_number(std::string("still_missing_after_free_of_") + size.name, before - free_now());
  }
  long long before = free_now();
  std::uint8_t* pinned = pinned_memory(64 * kMiB, CU_MEMHOSTALLOC_DEVICEMAP);
  say_number("taken_by_pinned_64MiB", before - free_now());
  must(cu.MemFreeHost(pinned), "cuMemFreeHost");
  before = free_now();
  const CUdeviceptr managed = managed_memory(4 * kMiB);
  say_number("taken_by_managed_4MiB", before - free_now());
  must(cu.MemsetD8(managed, 1, 4 * kMiB), "cuMemsetD8");
  must(cu.CtxSynchronize(), "cuCtxSynchronize");
  say_number("taken_by_managed_4MiB_touched_by_device", before - free_now());
}

constexpr Fact kFacts[] = {
    {.name = "dev.alloc", .run = alloc},
    {.name = "dev.free_null", .run = free_misuse, .arg = 0},
    {.name = "dev.free_twice", .run = free_misuse, .arg = 1},
    {.name = "dev.free_interior", .run = free_misuse, .arg = 2},
    {.name = "dev.free_unknown", .run = free_misuse, .arg = 3},
    {.name = "dev.free_registered", .run = free_misuse, .arg = 4},
    {.name = "dev.free_managed", .run = free_misuse, .arg = 5},
    {.name = "dev.free_pool", .run = free_misuse, .arg = 6},
    {.name = "dev.address_range", .run = address_range},
    {.name = "dev.cpu_access", .run = cpu_access},
    {.name = "dev.cpu_load", .run = cpu_load_unguarded},
    {.name = "dev.past_end_htod_1", .run = past_end, .arg = 0},
    {.name = "dev.past_end_htod_31MiB", .run = past_end, .arg = 1},
    {.name = "dev.past_end_dtoh_1", .run = past_end, .arg = 2},
    {.name = "dev.past_end_dtoh_31MiB", .run = past_end, .arg = 3},
    {.name = "dev.past_end_dtod_1", .run = past_end, .arg = 4},
    {.name = "dev.past_end_dtod_31MiB", .run = past_end, .arg = 5},
    {.name = "dev.past_end_htod_async_1", .run = past_end, .arg = 6},
    {.name = "dev.past_end_htod_async_31MiB", .run = past_end, .arg = 7},
    {.name = "dev.past_end_dtoh_async_31MiB", .run = past_end, .arg = 8},
    {.name = "dev.past_end_dtod_async_31MiB", .run = past_end, .arg = 9},
    {.name = "dev.past_end_copy_async_31MiB", .run = past_end, .arg = 10},
    {.name = "dev.past_end_memset_1", .run = past_end, .arg = 11},
    {.name = "dev.past_end_memset_31MiB", .run = past_end, .arg = 12},
    {.name = "dev.past_end_memset_async_31MiB", .run = past_end, .arg = 13},
    {.name = "dev.past_end_htod_from_middle", .run = past_end, .arg = 14},
    {.name = "dev.past_end_htod_2_62", .run = past_end, .arg = 15},
    {.name = "dev.past_end_memset_2_62", .run = past_end, .arg = 16},
    {.name = "dev.past_end_memset_max", .run = past_end, .arg = 17},
    {.name = "dev.zero_sizes", .run = zero_sizes},
    {.name = "dev.null_operands", .run = null_operands},
    {.name = "dev.directions", .run = directions},
    {.name = "dev.memset_pageable", .run = memset_pageable},
    {.name = "dev.overlap", .run = overlap},
    {.name = "dev.htod_protected_64", .run = bad_host_operand, .arg = 0},
    {.name = "dev.htod_protected_1MiB", .run = bad_host_operand, .arg = 1},
    {.name = "dev.htod_unmapped_1MiB", .run = bad_host_operand, .arg = 2},
    {.name = "dev.htod_async_protected_1MiB", .run = bad_host_operand, .arg = 3},
    {.name = "dev.htod_async_unmapped_64", .run = bad_host_operand, .arg = 4},
    {.name = "dev.dtoh_protected_1MiB", .run = bad_host_operand, .arg = 5},
    {.name = "dev.dtoh_read_only_64", .run = bad_host_operand, .arg = 6},
    {.name = "dev.dtoh_read_only_1MiB", .run = bad_host_operand, .arg = 7},
    {.name = "dev.dtoh_async_unmapped_1MiB", .run = bad_host_operand, .arg = 8},
    {.name = "dev.copy_from_unmapped", .run = bad_host_operand, .arg = 9},
    {.name = "dev.copy_async_to_unmapped", .run = bad_host_operand, .arg = 10},
    {.name = "dev.freed_htod", .run = freed_operand, .arg = 0},
    {.name = "dev.freed_dtoh", .run = freed_operand, .arg = 1},
    {.name = "dev.freed_memset", .run = freed_operand, .arg = 2},
    {.name = "dev.freed_memset_async", .run = freed_operand, .arg = 3},
    {.name = "dev.freed_copy_async", .run = freed_operand, .arg = 4},
    {.name = "dev.across_two_allocations", .run = across_two_allocations},
    {.name = "dev.free_beside_busy", .run = free_busy, .arg = 0},
    {.name = "dev.free_busy", .run = free_busy, .arg = 1},
    {.name = "dev.free_beside_kernel", .run = free_busy, .arg = 2},
    {.name = "dev.alloc_beside_busy", .run = calls_beside_busy, .arg = 0},
    {.name = "dev.htod_beside_busy", .run = calls_beside_busy, .arg = 1},
    {.name = "dev.dtoh_beside_busy", .run = calls_beside_busy, .arg = 2},
    {.name = "dev.dtod_beside_busy", .run = calls_beside_busy, .arg = 3},
    {.name = "dev.memset_beside_busy", .run = calls_beside_busy, .arg = 4},
    {.name = "dev.htod_async_pageable_beside_busy", .run = calls_beside_busy, .arg = 5},
    {.name = "dev.managed_alloc_beside_busy", .run = calls_beside_busy, .arg = 6},
    {.name = "dev.stream_create_beside_busy", .run = calls_beside_busy, .arg = 7},
    {.name = "dev.module_load_beside_busy", .run = calls_beside_busy, .arg = 8},
    {.name = "dev.htod_async_pinned_beside_busy", .run = calls_beside_busy, .arg = 9},
    {.name = "dev.alignment", .run = alignment},
    {.name = "dev.rounding", .run = rounding},
};

}  // namespace

std::span<const Fact> device_facts() { return kFacts; }

}  // namespace facts
