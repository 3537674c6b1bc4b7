// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts about page-locked memory: allocated, registered, and its device pointers.
#include "facts.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace facts {
namespace {

constexpr unsigned kAllFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;

std::string flags_of(void* p) {
  unsigned flags = 0xEE;
  const CUresult code = cu.MemHostGetFlags(&flags, p);
  return code == CUDA_SUCCESS ? hex(flags) : text(code);
}

// Where the device pointer of a host address lies: "same", "other" or the code of the refusal.
std::string device_pointer_of(void* p) {
  CUdeviceptr device = 0;
  const CUresult code = cu.MemHostGetDevicePointer(&device, p, 0);
  if (code != CUDA_SUCCESS) return text(code);
  return device == as_device(p) ? "same" : "other";
}

// Registers, reports, and unregisters again.
void try_register(const std::string& detail, void* p, std::size_t size, unsigned flags) {
  const CUresult code = cu.MemHostRegister(p, size, flags);
  say(detail, code);
  if (code == CUDA_SUCCESS) {
    say(detail + ".flags", flags_of(p));
    say(detail + ".device_pointer", device_pointer_of(p));
    say(detail + ".unregister", cu.MemHostUnregister(p));
  }
}

void alloc(int) {
  char untouched = 0;
  const auto attempt = [&](const char* detail, std::size_t size, unsigned flags) {
    void* p = &untouched;
    const CUresult code = cu.MemHostAlloc(&p, size, flags);
    say(detail, code);
    say(std::string(detail) + "_pointer", p == &untouched ? "unchanged" : p ? "some" : "null");
    if (code == CUDA_SUCCESS && p && p != &untouched) say(std::string(detail) + "_free", cu.MemFreeHost(p));
  };
  attempt("size_0", 0, 0);
  attempt("size_2_62", kHuge, 0);
  attempt("size_max", SIZE_MAX, 0);
  attempt("size_2_63", std::size_t{1} << 63, 0);
  attempt("flag_8", 4096, 8);
  attempt("flag_0x10", 4096, 0x10);
  attempt("flag_0x80000000", 4096, 0x80000000U);
  say("null_out", cu.MemHostAlloc(nullptr, 4096, 0));
  say("null_out_size_0", cu.MemHostAlloc(nullptr, 0, 0));
}

void flag_combinations(int) {
  for (unsigned flags = 0; flags <= kAllFlags; ++flags) {
    const std::string detail = "flags_" + std::to_string(flags);
    void* p = nullptr;
    const CUresult code = cu.MemHostAlloc(&p, 64 * kKiB, flags);
    say(detail, code);
    if (code != CUDA_SUCCESS) continue;
    say(detail + ".read_back", flags_of(p));
    say(detail + ".device_pointer", device_pointer_of(p));
  }
}

void write_combined(int) {
  struct Size {
    const char* name;
    std::size_t bytes;
  };
  const CUdeviceptr target = device_memory(4 * kKiB);
  for (const Size& size : {Size{"1", 1}, Size{"4KiB", 4 * kKiB}, Size{"64KiB", 64 * kKiB},
                           Size{"2MiB", 2 * kMiB}, Size{"64MiB", 64 * kMiB}}) {
    std::uint8_t* p = pinned_memory(size.bytes, CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP);
    const std::string detail = size.name;
    say(detail + ".device_pointer", device_pointer_of(p));
    say(detail + ".flags", flags_of(p));
    say(detail + ".aligned_to_4KiB", yes(as_device(p) % kPage == 0));
    CUdeviceptr base = 0;
    CUdeviceptr inner = 0;
    must(cu.MemHostGetDevicePointer(&base, p, 0), "cuMemHostGetDevicePointer");
    const std::size_t offset = size.bytes / 2;
    const CUresult code = cu.MemHostGetDevicePointer(&inner, p + offset, 0);
    say(detail + ".interior", code);
    if (code == CUDA_SUCCESS) say_yes(detail + ".interior_is_base_plus_offset", inner == base + offset);
    std::memset(p, 0x44, size.bytes);
    const std::size_t part = size.bytes < 4 * kKiB ? size.bytes : 4 * kKiB;
    say(detail + ".copy_by_host_pointer", cu.MemcpyHtoD(target, p, part));
    say_yes(detail + ".bytes", device_bytes(target, part, 0x44));
    say(detail + ".memset_by_device_pointer", cu.MemsetD8(base, 0x45, part));
    (void)cu.CtxSynchronize();
    say_yes(detail + ".cpu_sees_memset", all_bytes(p, part, 0x45));
    if (base != as_device(p)) {
      say(detail + ".cpu_touch_of_device_pointer", touch_read(as_host(base)));
      say(detail + ".memset_by_host_pointer", cu.MemsetD8(as_device(p), 0x46, part));
      CUdeviceptr again = 0;
      say(detail + ".device_pointer_of_device_pointer", cu.MemHostGetDevicePointer(&again, as_host(base), 0));
    }
  }
}

void free_misuse(int which) {
  switch (which) {
    case 0:
      say("null", cu.MemFreeHost(nullptr));
      break;
    case 1: {
      std::uint8_t* p = pinned_memory(kMiB);
      say("first", cu.MemFreeHost(p));
      say("second", cu.MemFreeHost(p));
      break;
    }
    case 2: {
      std::uint8_t* p = pinned_memory(kMiB);
      say("interior", cu.MemFreeHost(p + 4096));
      say("interior_1", cu.MemFreeHost(p + 1));
      say("base_then", cu.MemFreeHost(p));
      break;
    }
    case 3: {
      const CUdeviceptr p = device_memory(kMiB);
      say("device_pointer", cu.MemFreeHost(as_host(p)));
      say("base_then", cu.MemFree(p));
      break;
    }
    case 4: {
      std::uint8_t* p = registered_memory(kMiB);
      say("registered", cu.MemFreeHost(p));
      say("flags_then", flags_of(p));
      say("unregister_then", cu.MemHostUnregister(p));
      say("touch_then", touch_read(p));
      break;
    }
    case 5: {
      std::vector<std::uint8_t> heap(kMiB);
      say("heap", cu.MemFreeHost(heap.data()));
      int local = 0;
      say("stack", cu.MemFreeHost(&local));
      say("unmapped", cu.MemFreeHost(unmapped_address(kMiB)));
      break;
    }
    case 6: {
      const CUdeviceptr p = managed_memory(2 * kMiB);
      say("managed", cu.MemFreeHost(as_host(p)));
      say("free_then", cu.MemFree(p));
      break;
    }
    default: {
      std::uint8_t* p = pinned_memory(kMiB);
      say("pinned_by_cuMemFree", cu.MemFree(as_device(p)));
      say("flags_then", flags_of(p));
      say("free_host_then", cu.MemFreeHost(p));
      break;
    }
  }
}

void register_misuse(int) {
  std::uint8_t* p = cpu_memory(4 * kMiB);
  try_register("null", nullptr, 4096, 0);
  try_register("size_0", p, 0, 0);
  try_register("null_size_0", nullptr, 0, 0);
  try_register("size_2_62", p, kHuge, 0);
  try_register("size_max", p, SIZE_MAX, 0);
  try_register("size_max_minus_page", p, SIZE_MAX - kPage, 0);
  try_register("flag_0x10", p, 4096, 0x10);
  try_register("flag_0x20", p, 4096, 0x20);
  try_register("flag_0x80", p, 4096, 0x80);
  try_register("flag_0x80000000", p, 4096, 0x80000000U);
  try_register("unaligned_1_byte", p + 123, 1, 0);
  try_register("unaligned_5000_bytes", p + 123, 5000, 0);
  try_register("unmapped", unmapped_address(kMiB), kMiB, 0);
  std::uint8_t* tail_missing = cpu_memory(2 * kMiB);
  munmap(tail_missing + kMiB, kMiB);
  try_register("tail_unmapped", tail_missing, 2 * kMiB, 0);
  std::uint8_t* hole = cpu_memory(2 * kMiB);
  munmap(hole + kMiB, kPage);
  try_register("hole", hole, 2 * kMiB, 0);
  try_register("protection_none", cpu_memory(kMiB, PROT_NONE), kMiB, 0);
  try_register("protection_none_read_only", cpu_memory(kMiB, PROT_NONE), kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
  try_register("shared_anonymous", cpu_memory(kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS), kMiB,
               0);
  void* unpopulated = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  try_register("unpopulated", unpopulated, kMiB, 0);
  int local[64];
  try_register("stack", local, sizeof local, 0);
  std::vector<std::uint8_t> heap(10000);
  try_register("heap", heap.data(), heap.size(), 0);
  try_register("code", reinterpret_cast<void*>(&try_register), 64, 0);
}

void register_twice(int) {
  std::uint8_t* p = cpu_memory(4 * kMiB);
  std::uint8_t* middle = p + kMiB;
  say("first", cu.MemHostRegister(middle, 2 * kMiB, 0));
  try_register("same", middle, 2 * kMiB, 0);
  try_register("same_base_shorter", middle, kMiB, 0);
  try_register("same_base_longer", middle, 3 * kMiB, 0);
  try_register("inside", middle + kPage, kPage, 0);
  try_register("around", p, 4 * kMiB, 0);
  try_register("over_start", p, kMiB + kPage, 0);
  try_register("over_end", middle + kMiB, 2 * kMiB, 0);
  try_register("one_byte_over_start", p, kMiB + 1, 0);
  try_register("just_before", p, kMiB, 0);
  try_register("just_after", middle + 2 * kMiB, kMiB, 0);
  say("first_flags_then", flags_of(middle));
}

void register_known(int) {
  std::uint8_t* pinned = pinned_memory(kMiB);
  try_register("pinned", pinned, kMiB, 0);
  try_register("pinned_interior", pinned + 4096, 4096, 0);
  const CUdeviceptr device = device_memory(2 * kMiB);
  try_register("device", as_host(device), 2 * kMiB, 0);
  const CUdeviceptr managed = managed_memory(2 * kMiB);
  try_register("managed_untouched", as_host(managed), 2 * kMiB, 0);
  std::memset(as_host(managed), 1, 2 * kMiB);
  try_register("managed_touched", as_host(managed), 2 * kMiB, 0);
  say_yes("device_usable_after", cu.MemsetD8(device, 1, 2 * kMiB) == CUDA_SUCCESS);
}

void register_file(int) {
  char path[] = "/tmp/gpumem_facts_XXXXXX";
  const int fd = mkstemp(path);
  if (fd < 0) give_up("mkstemp");
  unlink(path);
  if (ftruncate(fd, kMiB) != 0) give_up("ftruncate");
  const auto map = [fd](int protection, int flags) {
    void* p = mmap(nullptr, kMiB, protection, flags, fd, 0);
    if (p == MAP_FAILED) give_up("mmap of the file");
    return p;
  };
  try_register("shared", map(PROT_READ | PROT_WRITE, MAP_SHARED), kMiB, 0);
  try_register("private", map(PROT_READ | PROT_WRITE, MAP_PRIVATE), kMiB, 0);
  try_register("shared_read_only", map(PROT_READ, MAP_SHARED), kMiB, 0);
  try_register("shared_read_only_flag", map(PROT_READ, MAP_SHARED), kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
  try_register("private_read_only", map(PROT_READ, MAP_PRIVATE), kMiB, 0);
  try_register("private_read_only_flag", map(PROT_READ, MAP_PRIVATE), kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
  const int memory_fd = memfd_create("facts", MFD_CLOEXEC);
  if (memory_fd < 0 || ftruncate(memory_fd, kMiB) != 0) give_up("memfd_create");
  void* p = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
  try_register("memfd_shared", p, kMiB, 0);
  p = mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, memory_fd, 0);
  try_register("memfd_read_only", p, kMiB, 0);
  try_register("memfd_read_only_flag", p, kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
  // Mapped beyond the end of the file.
  if (ftruncate(memory_fd, kPage) != 0) give_up("ftruncate");
  try_register("memfd_beyond_end", p, kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
}

void read_only(int) {
  std::uint8_t* p = cpu_memory(kMiB);
  try_register("writable_mapping_flag", p, kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
  mprotect(p, kMiB, PROT_READ);
  try_register("protected_mapping", p, kMiB, 0);
  try_register("protected_mapping_flag", p, kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
  try_register("protected_mapping_all_flags", p, kMiB,
               CU_MEMHOSTREGISTER_READ_ONLY | CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  std::uint8_t* untouched = cpu_memory(kMiB, PROT_READ);
  try_register("unpopulated_mapping", untouched, kMiB, 0);
  try_register("unpopulated_mapping_flag", untouched, kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
  std::uint8_t* mixed = cpu_memory(kMiB);
  mprotect(mixed + kMiB / 2, kMiB / 2, PROT_READ);
  try_register("half_protected", mixed, kMiB, 0);
  try_register("half_protected_flag", mixed, kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
}

// What a write of the device to memory registered READ_ONLY gives.
void read_only_written(int which) {
  std::uint8_t* p = cpu_memory(kMiB);
  if (which >= 10) mprotect(p, kMiB, PROT_READ);
  must(cu.MemHostRegister(p, kMiB, CU_MEMHOSTREGISTER_READ_ONLY | CU_MEMHOSTREGISTER_DEVICEMAP),
       "cuMemHostRegister");
  CUdeviceptr pointer = 0;
  must(cu.MemHostGetDevicePointer(&pointer, p, 0), "cuMemHostGetDevicePointer");
  const CUdeviceptr source = device_memory(kMiB);
  must(cu.MemsetD8(source, 0x66, kMiB), "cuMemsetD8");
  say("copy_from", cu.MemcpyHtoD(source + kMiB / 2, p, kMiB / 2));
  switch (which % 10) {
    case 0:
      say("write", cu.MemsetD8(pointer, 0x66, 64));
      break;
    case 1:
      say("write", cu.MemcpyDtoH(p, source, 64));
      break;
    case 2:
      say("write", cu.MemcpyDtoD(pointer, source, 64));
      break;
    default: {
      std::uint32_t value = 0x66;
      void* params[] = {&pointer, &value};
      say("write", launch(kernel(Kernel::kStoreByte), nullptr, params));
      break;
    }
  }
  say("synchronize", cu.CtxSynchronize());
  say("first_byte", hex(p[0]));
}

void io_memory(int) {
  std::uint8_t* p = cpu_memory(kMiB);
  try_register("page", p, kPage, CU_MEMHOSTREGISTER_IOMEMORY);
  try_register("megabyte", p, kMiB, CU_MEMHOSTREGISTER_IOMEMORY);
  try_register("with_devicemap", p, kPage, CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_DEVICEMAP);
  try_register("with_portable", p, kPage, CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_PORTABLE);
  try_register("with_read_only", p, kPage, CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY);
  try_register("unaligned", p + 100, 100, CU_MEMHOSTREGISTER_IOMEMORY);
  try_register("unmapped", unmapped_address(kMiB), kPage, CU_MEMHOSTREGISTER_IOMEMORY);
  try_register("shared", cpu_memory(kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS), kPage,
               CU_MEMHOSTREGISTER_IOMEMORY);
  try_register("ordinary_after", p, kMiB, 0);
}

void as_nobody(int) {
  say_number("uid", getuid());
  void* p = nullptr;
  say("cuMemHostAlloc", cu.MemHostAlloc(&p, 64 * kKiB, 0));
  try_register("register", cpu_memory(64 * kMiB), 64 * kMiB, 0);
}

void flags_of_registered(int) {
  for (unsigned flags = 0; flags <= 3; ++flags) {
    const std::string detail = "flags_" + std::to_string(flags);
    std::uint8_t* p = registered_memory(64 * kKiB, flags);
    say(detail + ".read_back", flags_of(p));
    say(detail + ".read_back_interior", flags_of(p + 100));
    say(detail + ".device_pointer", device_pointer_of(p));
    say(detail + ".device_pointer_interior", device_pointer_of(p + 100));
    say(detail + ".memset_by_device", cu.MemsetD8(as_device(p), 0x55, 64 * kKiB));
    (void)cu.CtxSynchronize();
    say_yes(detail + ".cpu_sees_memset", all_bytes(p, 64 * kKiB, 0x55));
  }
  std::uint8_t* p = registered_memory(64 * kKiB, CU_MEMHOSTREGISTER_READ_ONLY);
  say("read_only.read_back", flags_of(p));
  say("read_only.device_pointer", device_pointer_of(p));
}

void shared_page(int) {
  std::uint8_t* p = cpu_memory(kMiB);
  const CUdeviceptr device = device_memory(kMiB);
  say("first_1KiB", cu.MemHostRegister(p, 1024, 0));
  say("third_1KiB_of_same_page", cu.MemHostRegister(p + 2048, 1024, 0));
  say("second_1KiB_adjacent_to_both", cu.MemHostRegister(p + 1024, 1024, 0));
  say("one_byte_overlap", cu.MemHostRegister(p + 3071, 100, 0));
  say("fourth_1KiB", cu.MemHostRegister(p + 3072, 1024, 0));
  say("across_next_page", cu.MemHostRegister(p + 4096, 4096 + 100, 0));
  say("rest_of_that_page", cu.MemHostRegister(p + 8192 + 100, 100, 0));
  const auto range = [](std::uint8_t* at) {
    CUdeviceptr start = 0;
    std::size_t size = 0;
    if (cu.PointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, as_device(at)) !=
            CUDA_SUCCESS ||
        cu.PointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, as_device(at)) != CUDA_SUCCESS) {
      return std::string("unknown");
    }
    return "offset " + std::to_string(static_cast<long long>(as_device(at) - start)) + ", size " +
           std::to_string(size);
  };
  say("range_of_first", range(p));
  say("range_of_second", range(p + 1024));
  say("range_of_third", range(p + 2048));
  say("range_of_third_interior", range(p + 2100));
  say("flags_of_gap", flags_of(p + 8192 + 300));
  say("device_pointer_of_gap", device_pointer_of(p + 8192 + 300));
  say("unregister_first", cu.MemHostUnregister(p));
  say("flags_of_third", flags_of(p + 2048));
  say("copy_from_third", cu.MemcpyHtoD(device, p + 2048, 1024));
  say_yes("bytes", device_bytes(device, 1024, 0x11));
  say("memset_third_by_device", cu.MemsetD8(as_device(p + 2048), 0x12, 1024));
  (void)cu.CtxSynchronize();
  say_yes("cpu_sees_memset", all_bytes(p + 2048, 1024, 0x12));
  say("flags_of_first_then", flags_of(p));
  say("register_first_again", cu.MemHostRegister(p, 1024, 0));
}

// One operation across the border of two adjacent registrations. `which` 10 and up: the upper half is not
// registered.
void border(int which) {
  constexpr std::size_t kHalf = 2 * kMiB;
  std::uint8_t* p = cpu_memory(2 * kHalf);
  must(cu.MemHostRegister(p, kHalf, CU_MEMHOSTREGISTER_DEVICEMAP), "cuMemHostRegister of the lower half");
  if (which < 10) {
    must(cu.MemHostRegister(p + kHalf, kHalf, CU_MEMHOSTREGISTER_DEVICEMAP),
         "cuMemHostRegister of the upper half");
  }
  CUstream stream = new_stream();
  const CUdeviceptr device = device_memory(2 * kHalf);
  must(cu.MemsetD8(device, 0x77, 2 * kHalf), "cuMemsetD8");
  std::uint8_t* from = p + kHalf - kMiB;
  constexpr std::size_t kBytes = 2 * kMiB;
  bool to_device = false;
  CUresult code = CUDA_SUCCESS;
  switch (which % 10) {
    case 0:
      code = cu.MemcpyHtoD(device, from, kBytes);
      to_device = true;
      break;
    case 1:
      code = cu.MemcpyDtoH(from, device, kBytes);
      break;
    case 2:
      code = cu.MemcpyHtoDAsync(device, from, kBytes, stream);
      to_device = true;
      break;
    case 3:
      code = cu.MemcpyDtoHAsync(from, device, kBytes, stream);
      break;
    case 4:
      code = cu.MemcpyAsync(device, as_device(from), kBytes, stream);
      to_device = true;
      break;
    case 5:
      code = cu.MemcpyAsync(as_device(from), device, kBytes, stream);
      break;
    case 6:
      code = cu.MemcpyDtoD(device, as_device(from), kBytes);
      to_device = true;
      break;
    case 7:
      code = cu.MemsetD8(as_device(from), 0x77, kBytes);
      break;
    default:
      code = cu.MemsetD8Async(as_device(from), 0x77, kBytes, stream);
      break;
  }
  say("code", code);
  say("stream_then", settle(stream));
  say("context_then", cu.CtxSynchronize());
  say_yes("bytes_arrived", to_device ? device_bytes(device, kBytes, 0x11) : all_bytes(from, kBytes, 0x77));
}

void border_pointers(int) {
  constexpr std::size_t kHalf = 2 * kMiB;
  std::uint8_t* p = cpu_memory(2 * kHalf);
  must(cu.MemHostRegister(p, kHalf, 0), "cuMemHostRegister");
  say("second", cu.MemHostRegister(p + kHalf, kHalf, 0));
  CUdeviceptr low = 0;
  CUdeviceptr high = 0;
  say("device_pointer_low", cu.MemHostGetDevicePointer(&low, p, 0));
  say("device_pointer_high", cu.MemHostGetDevicePointer(&high, p + kHalf, 0));
  say_yes("contiguous", high == low + kHalf);
  say("device_pointer_last_of_low", device_pointer_of(p + kHalf - 1));
  CUdeviceptr start = 0;
  say("range_start_of_high",
      cu.PointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, as_device(p + kHalf)));
  say_yes("range_start_is_high", start == as_device(p + kHalf));
  say("unregister_both_by_low", cu.MemHostUnregister(p));
  say("high_still_registered", flags_of(p + kHalf));
  say("unregister_high", cu.MemHostUnregister(p + kHalf));
}

void device_pointers(int) {
  std::uint8_t* p = pinned_memory(kMiB, CU_MEMHOSTALLOC_DEVICEMAP);
  say("base", device_pointer_of(p));
  say("interior", device_pointer_of(p + 12345));
  say("last", device_pointer_of(p + kMiB - 1));
  std::uint8_t* odd = pinned_memory(1000);
  say("odd_size_past_end", device_pointer_of(odd + 1000));
  say("odd_size_last", device_pointer_of(odd + 999));
  std::uint8_t* r = cpu_memory(2 * kMiB);
  must(cu.MemHostRegister(r, kMiB, 0), "cuMemHostRegister");
  say("registered_base", device_pointer_of(r));
  say("registered_interior", device_pointer_of(r + 12345));
  say("registered_past_end", device_pointer_of(r + kMiB));
  std::uint8_t* s = cpu_memory(kMiB);
  must(cu.MemHostRegister(s + 100, 1000, 0), "cuMemHostRegister");
  say("unaligned_registered_base", device_pointer_of(s + 100));
  say("unaligned_registered_before", device_pointer_of(s + 50));
  say("unaligned_registered_past_end", device_pointer_of(s + 1100));
  say("unknown", device_pointer_of(cpu_memory(kMiB)));
  say("unmapped", device_pointer_of(unmapped_address(kMiB)));
  say("null", device_pointer_of(nullptr));
  say("device_memory", device_pointer_of(as_host(device_memory(kMiB))));
  say("managed", device_pointer_of(as_host(managed_memory(2 * kMiB))));
  CUdeviceptr out = 0;
  say("flags_1", cu.MemHostGetDevicePointer(&out, p, 1));
  say("null_out", cu.MemHostGetDevicePointer(nullptr, p, 0));
  out = 42;
  (void)cu.MemHostGetDevicePointer(&out, s + 8000, 0);
  say("out_after_refusal", out == 42 ? "unchanged" : out == 0 ? "null" : "other");
  must(cu.MemFreeHost(p), "cuMemFreeHost");
  say("freed", device_pointer_of(p));
  must(cu.MemHostUnregister(r), "cuMemHostUnregister");
  say("unregistered", device_pointer_of(r));
}

void get_flags(int) {
  std::uint8_t* p = pinned_memory(kMiB, CU_MEMHOSTALLOC_PORTABLE);
  say("allocated", flags_of(p));
  say("allocated_interior", flags_of(p + 100));
  std::uint8_t* odd = pinned_memory(1000);
  say("odd_size_past_end", flags_of(odd + 1000));
  say("registered", flags_of(registered_memory(kMiB)));
  say("unknown", flags_of(cpu_memory(kMiB)));
  say("unmapped", flags_of(unmapped_address(kMiB)));
  say("null", flags_of(nullptr));
  say("device", flags_of(as_host(device_memory(kMiB))));
  say("managed", flags_of(as_host(managed_memory(2 * kMiB))));
  say("null_out", cu.MemHostGetFlags(nullptr, p));
  must(cu.MemFreeHost(p), "cuMemFreeHost");
  say("freed", flags_of(p));
}

void unregister_misuse(int) {
  say("null", cu.MemHostUnregister(nullptr));
  say("unknown", cu.MemHostUnregister(cpu_memory(kMiB)));
  say("unmapped", cu.MemHostUnregister(unmapped_address(kMiB)));
  std::uint8_t* p = registered_memory(kMiB);
  say("interior", cu.MemHostUnregister(p + 4096));
  say("interior_1", cu.MemHostUnregister(p + 1));
  say("base", cu.MemHostUnregister(p));
  say("again", cu.MemHostUnregister(p));
  std::uint8_t* unaligned = cpu_memory(kMiB);
  must(cu.MemHostRegister(unaligned + 100, 1000, 0), "cuMemHostRegister");
  say("page_of_unaligned", cu.MemHostUnregister(unaligned));
  say("unaligned", cu.MemHostUnregister(unaligned + 100));
  std::uint8_t* pinned = pinned_memory(kMiB);
  say("pinned", cu.MemHostUnregister(pinned));
  say("free_pinned_then", cu.MemFreeHost(pinned));
  say("device", cu.MemHostUnregister(as_host(device_memory(kMiB))));
  say("managed", cu.MemHostUnregister(as_host(managed_memory(2 * kMiB))));
  say_yes("bytes_kept", all_bytes(p, kMiB, 0x11));
}

void unmapped_while_registered(int) {
  const CUdeviceptr device = device_memory(kMiB);
  std::uint8_t* p = registered_memory(kMiB);
  munmap(p, kMiB);
  say("flags", flags_of(p));
  say("copy_from", cu.MemcpyHtoD(device, p, kMiB));
  void* again =
      mmap(p, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (again == p) {
    std::memset(again, 0x13, kMiB);
    say("copy_from_new_mapping_at_same_address", cu.MemcpyHtoD(device, p, kMiB));
    say("device_sees", device_bytes(device, kMiB, 0x13)   ? "the new bytes"
                       : device_bytes(device, kMiB, 0x11) ? "the old bytes"
                                                          : "other bytes");
    say("register_new_mapping", cu.MemHostRegister(p, kMiB, 0));
  }
  say("unregister", cu.MemHostUnregister(p));
  say("register_after", cu.MemHostRegister(p, kMiB, 0));
}

// Freed or unregistered while a copy of it waits in a held stream.
void released_busy(int which) {
  CUstream stream = new_stream();
  const CUdeviceptr device = device_memory(kMiB);
  must(cu.MemsetD8(device, 0x51, kMiB), "cuMemsetD8");
  std::uint8_t* p = which == 0 ? pinned_memory(kMiB) : registered_memory(kMiB);
  (void)cu.CtxSynchronize();
  Hold hold(stream, Hold::kShortMs);
  must(cu.MemcpyDtoHAsync(p, device, kMiB, stream), "cuMemcpyDtoHAsync");
  say("code", which == 0 ? cu.MemFreeHost(p) : cu.MemHostUnregister(p));
  say_yes("waited_for_the_stream", !hold.active());
  hold.release();
  say("stream_then", settle(stream));
  say("context_then", cu.CtxSynchronize());
  if (which == 1) say_yes("bytes_arrived", all_bytes(p, kMiB, 0x51));
}

// The same with unrelated work in the stream.
void released_beside_busy(int which) {
  CUstream stream = new_stream();
  std::uint8_t* p = which == 0   ? pinned_memory(kMiB)
                    : which == 1 ? registered_memory(kMiB)
                                 : cpu_memory(kMiB);
  // What gives memory back waits.
  Hold hold(stream, which < 2 ? Hold::kShortMs : kLongMs);
  CUresult code = CUDA_SUCCESS;
  switch (which) {
    case 0:
      code = cu.MemFreeHost(p);
      break;
    case 1:
      code = cu.MemHostUnregister(p);
      break;
    case 2:
      code = cu.MemHostRegister(p, kMiB, 0);
      break;
    default: {
      void* fresh = nullptr;
      code = cu.MemHostAlloc(&fresh, kMiB, 0);
      break;
    }
  }
  say("code", code);
  say_yes("waited_for_the_stream", !hold.active());
}

void many_registrations(int) {
  // One page in two, so that nothing can be merged. The bound itself depends on the machine.
  constexpr std::size_t kCount = 70000;
  std::uint8_t* p = cpu_memory(2 * kCount * kPage);
  std::size_t done = 0;
  CUresult code = CUDA_SUCCESS;
  while (done < kCount && (code = cu.MemHostRegister(p + 2 * done * kPage, kPage, 0)) == CUDA_SUCCESS)
    ++done;
  say_machine("accepted", std::to_string(done));
  say("code_beyond", code);
  const CUdeviceptr device = device_memory(kPage);
  say("copy_from_first", cu.MemcpyHtoD(device, p, kPage));
  say_yes("bytes", device_bytes(device, kPage, 0x11));
}

constexpr Fact kFacts[] = {
    {.name = "pin.alloc", .run = alloc},
    {.name = "pin.flag_combinations", .run = flag_combinations},
    {.name = "pin.write_combined", .run = write_combined},
    {.name = "pin.free_null", .run = free_misuse, .arg = 0},
    {.name = "pin.free_twice", .run = free_misuse, .arg = 1},
    {.name = "pin.free_interior", .run = free_misuse, .arg = 2},
    {.name = "pin.free_device", .run = free_misuse, .arg = 3},
    {.name = "pin.free_registered", .run = free_misuse, .arg = 4},
    {.name = "pin.free_unknown", .run = free_misuse, .arg = 5},
    {.name = "pin.free_managed", .run = free_misuse, .arg = 6},
    {.name = "pin.free_by_device_call", .run = free_misuse, .arg = 7},
    {.name = "pin.register", .run = register_misuse},
    {.name = "pin.register_twice", .run = register_twice},
    {.name = "pin.register_known", .run = register_known},
    {.name = "pin.register_file", .run = register_file},
    {.name = "pin.read_only", .run = read_only},
    {.name = "pin.read_only_memset", .run = read_only_written, .arg = 0},
    {.name = "pin.read_only_copy_to_host", .run = read_only_written, .arg = 1},
    {.name = "pin.read_only_copy_on_device", .run = read_only_written, .arg = 2},
    {.name = "pin.read_only_kernel", .run = read_only_written, .arg = 3},
    {.name = "pin.read_only_protected_memset", .run = read_only_written, .arg = 10},
    {.name = "pin.read_only_protected_copy_to_host", .run = read_only_written, .arg = 11},
    {.name = "pin.io_memory", .run = io_memory},
    {.name = "pin.io_memory_nobody", .run = io_memory, .as_nobody = true},
    {.name = "pin.as_nobody", .run = as_nobody, .as_nobody = true},
    {.name = "pin.flags_of_registered", .run = flags_of_registered},
    {.name = "pin.shared_page", .run = shared_page},
    {.name = "pin.border_htod", .run = border, .arg = 0},
    {.name = "pin.border_dtoh", .run = border, .arg = 1},
    {.name = "pin.border_htod_async", .run = border, .arg = 2},
    {.name = "pin.border_dtoh_async", .run = border, .arg = 3},
    {.name = "pin.border_copy_async_to_device", .run = border, .arg = 4},
    {.name = "pin.border_copy_async_to_host", .run = border, .arg = 5},
    {.name = "pin.border_dtod", .run = border, .arg = 6},
    {.name = "pin.border_memset", .run = border, .arg = 7},
    {.name = "pin.border_memset_async", .run = border, .arg = 8},
    {.name = "pin.edge_htod", .run = border, .arg = 10},
    {.name = "pin.edge_dtoh", .run = border, .arg = 11},
    {.name = "pin.edge_htod_async", .run = border, .arg = 12},
    {.name = "pin.edge_dtoh_async", .run = border, .arg = 13},
    {.name = "pin.edge_copy_async_to_device", .run = border, .arg = 14},
    {.name = "pin.border_pointers", .run = border_pointers},
    {.name = "pin.device_pointers", .run = device_pointers},
    {.name = "pin.get_flags", .run = get_flags},
    {.name = "pin.unregister", .run = unregister_misuse},
    {.name = "pin.unmapped_while_registered", .run = unmapped_while_registered},
    {.name = "pin.free_busy", .run = released_busy, .arg = 0},
    {.name = "pin.unregister_busy", .run = released_busy, .arg = 1},
    {.name = "pin.free_beside_busy", .run = released_beside_busy, .arg = 0},
    {.name = "pin.unregister_beside_busy", .run = released_beside_busy, .arg = 1},
    {.name = "pin.register_beside_busy", .run = released_beside_busy, .arg = 2},
    {.name = "pin.alloc_beside_busy", .run = released_beside_busy, .arg = 3},
    {.name = "pin.many_registrations", .run = many_registrations},
};

}  // namespace

std::span<const Fact> pin_facts() { return kFacts; }

}  // namespace facts
