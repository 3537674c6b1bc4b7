// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Rules PIN-1 to PIN-19 of the contract: pinned and registered memory.
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "../hole.h"
#include "cuda_raw.h"
#include "harness.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// Bytes that this process has locked, as the kernel counts them.
uint64_t locked_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == "VmLck:" && status >> kilobytes) return kilobytes * kKiB;
  }
  ADD_FAILURE() << "no VmLck in /proc/self/status";
  return 0;
}

// The kernel's count tells what the host backend locked; a driver locks by its own means.
bool lock_count_tells() { return on_host() && !kSanitized; }

// Whether this process may lock so much memory now.
bool can_lock(uint64_t size) {
  const Pages pages(size);
  return syscall(SYS_mlock, pages.get(), size) == 0;  // a sanitizer's mlock does nothing
}

bool page_locked(const Memory& memory) {
  return (memory.info().granted_flags & GPUMEM_MEMORY_PAGE_LOCKED) != 0;
}

class Pin : public Conformance {
 protected:
  gpumem_status try_register(void* pointer, uint64_t size, gpumem_memory_flags require = 0) {
    gpumem_memory memory = nullptr;
    const gpumem_register_desc desc = register_desc(pointer, size, require);
    const gpumem_status status = gpumem_memory_register(device_, &desc, &memory, why());
    if (status == GPUMEM_SUCCESS) {
      Memory owner(memory);
    } else {
      EXPECT_EQ(memory, nullptr);
    }
    return status;
  }
  gpumem_status copy(void* destination, const void* source, uint64_t size, gpumem_stream stream = nullptr) {
    return copy_on(instance_, stream, destination, source, size, nullptr, why());
  }
  gpumem_status fill(void* destination, uint64_t size, uint32_t value = 7) {
    return gpumem_fill(instance_, destination, size, value, 1, why());
  }
  gpumem_status device_pointer(gpumem_device device, const void* pointer, void** out) {
    return gpumem_pointer_get_device_pointer(device, pointer, out, why());
  }
  bool has(gpumem_capability what) { return capability(device_, what).value != GPUMEM_ANSWER_NO; }
  std::vector<gpumem_device> devices() const {
    std::vector<gpumem_device> all;
    for (uint32_t i = 0; i < instance_.device_count(); ++i)
      all.push_back(instance_.device(i));
    return all;
  }
};

// ---- allocations ----

TEST_F(Pin, pin_1_pinned_memory_is_for_all_processors) {
  const uint64_t size = kMiB + 5;
  const bool may_lock = can_lock(size);
  const uint64_t before = locked_bytes();
  const Memory pinned = alloc_pinned(device_, size);
  ASSERT_NE(pinned.host(), nullptr);
  if (lock_count_tells() && page_locked(pinned)) {
    EXPECT_GE(locked_bytes(), before + size);
  }
  // The capability tells of one page; the limit may be too small for more.
  const bool possible = capability(device_, GPUMEM_CAPABILITY_PIN_PAGE_LOCKED).value == GPUMEM_ANSWER_YES;
  EXPECT_TRUE(possible || !page_locked(pinned));
  EXPECT_TRUE(page_locked(pinned) || !possible || (on_host() && !may_lock));
  uint32_t seed = 1;
  for (const gpumem_device device : devices()) {
    const Memory memory = alloc_device(device, size);
    const Stream stream = create_stream(device);
    fill_pattern(pinned.host(), size, ++seed);
    EXPECT_OK(copy(memory.device(), pinned.host(), size, stream));
    stream.synchronize();
    std::memset(pinned.host(), 0, size);
    EXPECT_OK(copy(pinned.host(), memory.device(), size, stream));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(pinned.host(), size, seed));
  }
}

TEST_F(Pin, pin_1_lock_modes) {
  if (!on_host()) SKIP_RULE("whether pages are locked can be chosen on host only");
  const Instance never = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.lock_mode = GPUMEM_HOST_LOCK_OFF; });
  const uint64_t before = locked_bytes();
  const Memory pinned = alloc_pinned(never.device(), kMiB);
  EXPECT_FALSE(page_locked(pinned));
  EXPECT_EQ(locked_bytes(), before);
  EXPECT_EQ(capability(never.device(), GPUMEM_CAPABILITY_PIN_PAGE_LOCKED).value,
            uint64_t{GPUMEM_ANSWER_EMULATED});
  pinned.host()[kMiB - 1] = 1;
}

CHILD(pin_1_lock_limit) {
  const rlimit limit = {64 * kKiB, 64 * kKiB};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  constexpr uid_t kNobody = 65534;
  if (geteuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0)) {
    skip_child("cannot give up root's right to lock any amount");
  }
  Pages pages(kMiB);
  const Instance requiring = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.lock_mode = GPUMEM_HOST_LOCK_REQUIRE; });
  for (const AnyDesc& desc :
       {AnyDesc(memory_desc(GPUMEM_KIND_PINNED, kMiB)), AnyDesc(register_desc(pages.get(), kMiB))}) {
    gpumem_memory none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, make_memory(requiring.device(), desc, &none, why()));
    EXPECT_NE(std::strstr(last_error().message, "RLIMIT_MEMLOCK, which is 65536 bytes; raise `ulimit -l`"),
              nullptr)
        << last_error().message;
    EXPECT_EQ(none, nullptr);
  }
  // Where locking is only tried, the memory says that it is not locked.
  const Instance trying = open_instance();
  for (const AnyDesc& desc :
       {AnyDesc(memory_desc(GPUMEM_KIND_PINNED, kMiB)), AnyDesc(register_desc(pages.get(), kMiB))}) {
    const Memory memory = create_memory(trying.device(), desc);
    EXPECT_FALSE(page_locked(memory));
    memory.host()[kMiB - 1] = 1;
  }
  const gpumem_memory_desc required = memory_desc(GPUMEM_KIND_PINNED, kMiB, GPUMEM_MEMORY_PAGE_LOCKED);
  gpumem_memory none = nullptr;
  EXPECT_STATUS_IN(gpumem_memory_create(trying.device(), &required, &none, why()),
                   GPUMEM_ERROR_LIMIT_EXCEEDED, GPUMEM_ERROR_UNSUPPORTED);
}

TEST_F(Pin, pin_1_lock_limit) {
  if (!on_host()) SKIP_RULE("the driver does not lock by the process's limit");
  if (kSanitized) SKIP_RULE("a sanitizer's mlock does nothing");
  EXPECT_CHILD_OK(run_child("pin_1_lock_limit"));
}

TEST_F(Pin, pin_2_flags_are_independent) {
  for (gpumem_memory_flags require = 0; require < 8; ++require) {
    SCOPED_TRACE(require);
    static_assert((GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_WRITE_COMBINED) == 7);
    const Memory pinned = alloc_pinned(device_, kMiB, require);
    const gpumem_memory_info info = pinned.info();
    EXPECT_EQ(info.requested_flags, require);
    const gpumem_memory_flags always = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED;
    EXPECT_EQ(info.granted_flags & always, always);
    EXPECT_EQ(info.granted_flags & GPUMEM_MEMORY_WRITE_COMBINED, require & GPUMEM_MEMORY_WRITE_COMBINED);
    EXPECT_NE(info.device_pointer, nullptr);
  }
}

TEST_F(Pin, pin_3_portable) {
  if (!second_device()) SKIP_RULE("needs two devices");
  const uint64_t size = 4 * page_size();
  Pages pages(size);
  for (const bool portable : {false, true}) {
    SCOPED_TRACE(portable);
    const Memory registered = register_memory(
        device_, pages.get(), size, GPUMEM_MEMORY_MAPPED | (portable ? GPUMEM_MEMORY_PORTABLE : 0u));
    EXPECT_EQ((registered.info().granted_flags & GPUMEM_MEMORY_PORTABLE) != 0, portable);
    void* pointer = nullptr;
    EXPECT_OK(device_pointer(device_, pages.get(), &pointer));
    EXPECT_EQ(pointer, registered.device());
    pointer = nullptr;
    EXPECT_STATUS(portable ? GPUMEM_SUCCESS : GPUMEM_ERROR_NO_ACCESS,
                  device_pointer(second_device(), pages.get(), &pointer));
    EXPECT_EQ(pointer, portable ? registered.device() : nullptr);
    for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
      EXPECT_EQ(device_access(instance_, pages.get(), ordinal),
                portable || ordinal == 0 ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE);
    }

    // Copies on another device give the right bytes either way.
    const Memory theirs = alloc_device(second_device(), size);
    const Stream stream = create_stream(second_device());
    fill_pattern(pages.get(), size, 3);
    EXPECT_OK(copy(theirs.device(), pages.get(), size, stream));
    stream.synchronize();
    std::memset(pages.get(), 0, size);
    EXPECT_OK(copy(pages.get(), theirs.device(), size, stream));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(pages.get(), size, 3));
  }
}

TEST_F(Pin, pin_4_mapped) {
  Pages pages(4 * page_size());
  void* pointer = nullptr;
  {
    const Memory registered = register_memory(device_, pages.get(), pages.size());
    EXPECT_EQ(registered.device(), nullptr);
    EXPECT_EQ(registered.info().granted_flags & GPUMEM_MEMORY_MAPPED, 0u);
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, device_pointer(device_, pages.get(), &pointer));
    EXPECT_EQ(pointer, nullptr);
    EXPECT_EQ(pointer_info(instance_, pages.get()).device_pointer, nullptr);
  }
  const Memory registered = register_memory(device_, pages.get(), pages.size(), GPUMEM_MEMORY_MAPPED);
  ASSERT_NE(registered.device(), nullptr);
  EXPECT_OK(device_pointer(device_, pages.get() + 100, &pointer));
  EXPECT_EQ(pointer, registered.device() + 100);
  EXPECT_OK(fill(registered.device(), pages.size(), 0x42));
  EXPECT_EQ(pages.get()[pages.size() - 1], 0x42);
}

CHILD(pin_4_unmappable) {
  const Instance instance = open_instance();
  const gpumem_device device = instance.device();
  Pages pages(page_size());
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_PIN_MAP_HOST).value, uint64_t{GPUMEM_ANSWER_NO});
  const Memory registered = register_memory(device, pages.get(), pages.size(), GPUMEM_MEMORY_MAPPED);
  void* pointer = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED,
                gpumem_pointer_get_device_pointer(device, pages.get(), &pointer, why()));
}

TEST_F(Pin, pin_4_a_device_that_cannot_map) {
  if (!on_fake_cuda()) SKIP_RULE("every real and emulated device can map host memory");
  EXPECT_CHILD_OK(run_child("pin_4_unmappable", {"FAKE_CUDA_ATTRIBUTE_19=0"}));
}

TEST_F(Pin, pin_5_one_address_unless_write_combined) {
  for (const gpumem_memory_flags require :
       {gpumem_memory_flags{0}, gpumem_memory_flags{GPUMEM_MEMORY_WRITE_COMBINED}}) {
    SCOPED_TRACE(require);
    const Memory pinned = alloc_pinned(device_, kMiB, require);
    uint8_t* const host = pinned.host();
    uint8_t* const device = pinned.device();
    if (require == 0) {
      EXPECT_EQ(device, host);
    } else if (on_host()) {
      EXPECT_TRUE(device + kMiB <= host || host + kMiB <= device);
      EXPECT_TRUE(read_faults(device));
      EXPECT_TRUE(write_faults(device + kMiB - 1));
    }
    for (const gpumem_device each : devices()) {
      for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kMiB - 1}) {
        void* pointer = nullptr;
        EXPECT_OK(device_pointer(each, host + offset, &pointer));
        EXPECT_EQ(pointer, device + offset);
      }
    }
    EXPECT_OK(fill(device, kMiB, 0x21));
    EXPECT_EQ(host[kMiB - 1], 0x21);
  }
}

TEST_F(Pin, pin_6_write_combined_bytes_are_right) {
  const Memory pinned = alloc_pinned(device_, kMiB, GPUMEM_MEMORY_WRITE_COMBINED);
  const Memory memory = alloc_device(device_, kMiB);
  const Stream stream = create_stream(device_);
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    // The stores need no fence before the call that enqueues.
    fill_pattern(pinned.host(), kMiB, seed);
    EXPECT_OK(copy(memory.device(), pinned.host(), kMiB, stream));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(pinned.host(), kMiB, seed));
    EXPECT_TRUE(holds_pattern(instance_, memory.device(), kMiB, seed));
  }
}

// ---- registrations ----

TEST_F(Pin, pin_7_any_address_and_length) {
  std::vector<uint8_t> heap(3 * page_size());
  const int file = memfd_create("shared", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(3 * page_size())), 0);
  auto* shared =
      static_cast<uint8_t*>(mmap(nullptr, 3 * page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  auto* private_copy =
      static_cast<uint8_t*>(mmap(nullptr, 3 * page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
  close(file);
  const Memory memory = alloc_device(device_, 3 * page_size());
  for (uint8_t* base : {heap.data(), shared, private_copy}) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{777}}) {
      for (const uint64_t size : {uint64_t{1}, uint64_t{1000}, page_size(), 2 * page_size() + 3}) {
        fill_pattern(base, 3 * page_size(), 5);
        const uint64_t before = locked_bytes();
        Memory registered = register_memory(device_, base + offset, size);
        EXPECT_EQ(registered.host(), base + offset);
        EXPECT_EQ(registered.size(), size);
        if (lock_count_tells() && page_locked(registered)) {
          EXPECT_GE(locked_bytes(), before + size);
          EXPECT_EQ(locked_bytes() % page_size(), 0u);
        }
        EXPECT_OK(copy(memory.device(), base + offset, size));
        EXPECT_TRUE(has_pattern(base, 3 * page_size(), 5));
        base[offset] ^= 0xFF;
        registered.destroy();
        EXPECT_EQ(locked_bytes(), before);
        base[offset] ^= 0xFF;
        EXPECT_TRUE(has_pattern(base, 3 * page_size(), 5));
      }
    }
  }
  munmap(shared, 3 * page_size());
  munmap(private_copy, 3 * page_size());
}

TEST_F(Pin, pin_7_unmapped_pages_are_refused) {
  const uint64_t page = page_size();
  const Pages pages(6 * page);
  for (const uint64_t hole : {uint64_t{0}, uint64_t{2}, uint64_t{3}}) {
    SCOPED_TRACE(hole);
    auto* base = static_cast<uint8_t*>(gpumem::test::map_below_gap(4 * page));
    fill_pattern(base, 4 * page, 1);
    ASSERT_EQ(munmap(base + hole * page, page), 0);
    const uint64_t before = locked_bytes();
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_register(base, 4 * page));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_register(base + 5, 4 * page - 10));
    EXPECT_EQ(locked_bytes(), before);
    EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_REGISTERED).live_count, 0u);
    for (uint64_t i = 0; i < 4; ++i) {
      if (i != hole) munmap(base + i * page, page);
    }
  }
}

TEST_F(Pin, pin_8_read_only) {
  const uint64_t size = 4 * page_size();
  Pages pages(size);
  fill_pattern(pages.get(), size, 6);
  if (!has(GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY)) {
    EXPECT_STATUS(capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY).status,
                  try_register(pages.get(), size, GPUMEM_MEMORY_READ_ONLY));
    return;
  }
  const Memory memory = alloc_device(device_, size);
  const Stream stream = create_stream(device_);
  for (const bool cpu_may_write : {true, false}) {
    SCOPED_TRACE(cpu_may_write);
    if (!cpu_may_write) {
      ASSERT_EQ(mprotect(pages.get(), size, PROT_READ), 0);
      EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED, try_register(pages.get(), size));
      EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED, try_register(pages.get(), size, GPUMEM_MEMORY_MAPPED));
    }
    const Memory registered =
        register_memory(device_, pages.get(), size, GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_MAPPED);
    EXPECT_NE(registered.info().granted_flags & GPUMEM_MEMORY_READ_ONLY, 0u);
    EXPECT_EQ(device_access(instance_, pages.get(), 0), GPUMEM_ACCESS_READ);
    EXPECT_EQ(device_access(instance_, registered.device(), 0), GPUMEM_ACCESS_READ);
    EXPECT_EQ(cpu_access(instance_, pages.get()),
              cpu_may_write ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_READ);
    EXPECT_OK(copy(memory.device(), pages.get(), size));
    EXPECT_TRUE(holds_pattern(instance_, memory.device(), size, 6));
    for (uint8_t* pointer : {pages.get(), registered.device()}) {
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(pointer, memory.device(), size));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(pointer, memory.device(), size, stream));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill(pointer, size));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_stream_write_value(stream, pointer, 1, 4, why()));
    }
    EXPECT_TRUE(has_pattern(pages.get(), size, 6));
  }
}

TEST_F(Pin, pin_9_iomemory_never_falls_back) {
  Pages pages(page_size());
  const Counters before = counters(instance_);
  EXPECT_STATUS_IN(try_register(pages.get(), pages.size(), GPUMEM_MEMORY_IOMEMORY), GPUMEM_ERROR_UNSUPPORTED,
                   GPUMEM_ERROR_PERMISSION_DENIED, GPUMEM_ERROR_INVALID_ARGUMENT);
  if (on_host()) {
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, try_register(pages.get(), pages.size(), GPUMEM_MEMORY_IOMEMORY));
  }
  EXPECT_TRUE(counters(instance_) == before);
  EXPECT_EQ(pointer_info(instance_, pages.get()).kind, GPUMEM_KIND_PAGEABLE);
}

TEST_F(Pin, pin_10_two_addresses_of_one_memory) {
  const uint64_t size = 4 * page_size();
  for (const gpumem_toggle same : {GPUMEM_TOGGLE_OFF, GPUMEM_TOGGLE_ON}) {
    const Instance instance =
        open_instance([&](gpumem_instance_desc&, gpumem_host_options& host) { host.same_pointer = same; });
    const gpumem_device device = instance.device();
    Pages pages(size);
    const Memory registered =
        register_memory(device, pages.get(), size, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE);
    const bool one_address =
        capability(device, GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER).value == GPUMEM_ANSWER_YES;
    if (on_host()) {
      EXPECT_EQ(one_address, same == GPUMEM_TOGGLE_ON);
    }
    uint8_t* const address = registered.device();
    EXPECT_EQ(address == pages.get(), one_address);
    if (!one_address) {
      EXPECT_TRUE(read_faults(address));
      EXPECT_TRUE(write_faults(address + size - 1));
    }
    for (uint32_t i = 0; i < instance.device_count(); ++i) {
      void* pointer = nullptr;
      EXPECT_OK(gpumem_pointer_get_device_pointer(instance.device(i), pages.get(), &pointer, why()));
      EXPECT_EQ(pointer, address);
    }
    // Functions take either for the same bytes.
    const Memory memory = alloc_device(device, size);
    put_pattern(instance, memory.device(), size, 4);
    EXPECT_OK(gpumem_copy(instance, address, memory.device(), size, nullptr, why()));
    EXPECT_TRUE(has_pattern(pages.get(), size, 4));
    EXPECT_OK(gpumem_fill(instance, memory.device(), size, 0, 1, why()));
    EXPECT_OK(gpumem_copy(instance, memory.device(), pages.get(), size, nullptr, why()));
    EXPECT_TRUE(holds_pattern(instance, memory.device(), size, 4));
    EXPECT_TRUE(holds_pattern(instance, address, size, 4));
    EXPECT_EQ(pointer_info(instance, address).buffer_id, pointer_info(instance, pages.get()).buffer_id);
    EXPECT_EQ(pointer_info(instance, address + 9).host_pointer, pages.get() + 9);
    EXPECT_EQ(pointer_info(instance, pages.get() + 9).device_pointer, address + 9);
  }
}

TEST_F(Pin, pin_11_overlaps_are_refused) {
  const uint64_t page = page_size();
  Pages pages(6 * page);
  uint8_t* const start = pages.get() + page + 100;
  const uint64_t size = 2 * page;
  const Memory registered = register_memory(device_, start, size);
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_register(start, size));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_register(start + 10, 1));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_register(start - 10, 11));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_register(start + size - 1, 10));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_register(pages.get(), pages.size()));
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_REGISTERED).live_count, 1u);

  const Memory pinned = alloc_pinned(device_, kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_register(pinned.host(), kMiB));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_register(pinned.host() + 5000, 1));
}

TEST_F(Pin, pin_11_memory_that_other_code_has_pinned) {
  REQUIRE_FOREIGN();
  const uint64_t size = 2 * page_size();
  for (const gpumem_toggle same_pointer : {GPUMEM_TOGGLE_OFF, GPUMEM_TOGGLE_ON}) {
    const Instance instance = open_instance(
        [&](gpumem_instance_desc&, gpumem_host_options& host) { host.same_pointer = same_pointer; });
    const ForeignMemory foreign(instance.device(), GPUMEM_KIND_PINNED, size);
    for (const auto& [begin, length] : {std::pair{uint64_t{0}, size}, {100, 1}, {size - 1, 1}}) {
      const gpumem_register_desc desc = register_desc(foreign.get() + begin, length, GPUMEM_MEMORY_MAPPED);
      gpumem_memory none = nullptr;
      EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS,
                    gpumem_memory_register(instance.device(), &desc, &none, why()));
      EXPECT_EQ(none, nullptr);
    }
    EXPECT_EQ(pointer_info(instance, foreign.get()).kind, GPUMEM_KIND_FOREIGN);
  }
}

TEST_F(Pin, pin_12_neighbours_on_one_page) {
  const uint64_t page = page_size();
  for (const bool first_goes_first : {true, false}) {
    Pages pages(3 * page);
    fill_pattern(pages.get(), pages.size(), 2);
    const uint64_t before = locked_bytes();
    uint8_t* const middle = pages.get() + page + 200;
    Memory first = register_memory(device_, pages.get(), page + 200);
    Memory second = register_memory(device_, middle, 2 * page - 200);
    const bool counted = lock_count_tells() && page_locked(first) && page_locked(second);
    if (counted) {
      EXPECT_EQ(locked_bytes(), before + 3 * page);
    }
    Memory& goes = first_goes_first ? first : second;
    Memory& stays = first_goes_first ? second : first;
    const uint64_t stays_size = stays.size();
    goes.destroy();
    if (counted) {
      EXPECT_EQ(locked_bytes(), before + 2 * page);
    }
    // What stays still works as pinned memory.
    const Memory memory = alloc_device(device_, stays_size);
    EXPECT_OK(copy(memory.device(), stays.host(), stays_size));
    EXPECT_OK(copy(stays.host(), memory.device(), stays_size));
    EXPECT_TRUE(has_pattern(pages.get(), pages.size(), 2));
    stays.destroy();
    EXPECT_EQ(locked_bytes(), before);
  }
}

// That device memory is in the way comes before what is registered already (COM-17).
TEST_F(Pin, pin_13_a_range_over_registered_and_device_memory) {
  // At 1 GiB: a driver may have its memory below the program's own.
  void* const low = reinterpret_cast<void*>(UINT64_C(1) << 30);
  void* const mapped = mmap(low, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED) << strerror(errno);
  auto* const mine = static_cast<uint8_t*>(mapped);
  {
    const Memory registered = register_memory(device_, mine, page_size());
    const Memory far = alloc_device(device_, page_size());
    EXPECT_LT(mine, far.device());
    const auto size = static_cast<uint64_t>(far.device() - mine) + 1;
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, try_register(mine, size));
    EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_register(mine, size - 1));
  }
  EXPECT_EQ(munmap(mapped, page_size()), 0);
}

TEST_F(Pin, pin_13_other_memory_cannot_be_registered) {
  const Memory memory = alloc_device(device_, kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, try_register(memory.device(), kMiB));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, try_register(memory.device() + 4096, 10));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_register(device_, memory.device(), kMiB, 0, why()));
}

TEST_F(Pin, pin_14_unregister) {
  const uint64_t size = 2 * page_size();
  Pages pages(2 * size);
  fill_pattern(pages.get(), pages.size(), 9);
  uint8_t* const start = pages.get() + 16;
  ASSERT_OK(gpumem_register(device_, start, size, 0, why()));
  EXPECT_EQ(pointer_info(instance_, start).kind, GPUMEM_KIND_REGISTERED);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_unregister(instance_, start + 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_unregister(instance_, start + size - 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_unregister(instance_, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(instance_, pages.get(), why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(instance_, start + size, why()));
  const Instance other = open_instance();
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(other, start, why()));
  EXPECT_OK(gpumem_unregister(instance_, start, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(instance_, start, why()));
  EXPECT_EQ(pointer_info(instance_, start).kind, GPUMEM_KIND_PAGEABLE);
  EXPECT_TRUE(has_pattern(pages.get(), pages.size(), 9));

  const Memory mapped = register_memory(device_, pages.get(), page_size(), GPUMEM_MEMORY_MAPPED);
  if (mapped.device() != mapped.host()) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_unregister(instance_, mapped.device(), why()));
    EXPECT_NE(std::strstr(last_error().message, "device address"), nullptr) << last_error().message;
  }
  const Memory pinned = alloc_pinned(device_, kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_unregister(instance_, pinned.host(), why()));
}

TEST_F(Pin, pin_14_work_in_flight) {
  if (!on_host()) SKIP_RULE("cuda cannot detect work in flight");
  Pages pages(page_size());
  const Memory memory = alloc_device(device_, page_size());
  ASSERT_OK(gpumem_register(device_, pages.get(), page_size(), 0, why()));
  GatedStream stream(device_);
  EXPECT_OK(copy(memory.device(), pages.get(), page_size(), stream));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_unregister(instance_, pages.get(), why()));
  EXPECT_EQ(pointer_info(instance_, pages.get()).kind, GPUMEM_KIND_REGISTERED);
  stream.finish();
  EXPECT_OK(gpumem_unregister(instance_, pages.get(), why()));
}

#ifdef HAVE_CUDA_HEADERS
TEST_F(Pin, pin_14_registrations_of_other_code) {
  if (!on_cuda()) SKIP_RULE("there is no driver that other code could register with");
  const PrimaryContext context(0);
  Pages pages(page_size());
  ASSERT_EQ(raw().cuMemHostRegister(pages.get(), page_size(), CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(instance_, pages.get(), why()));
  EXPECT_EQ(raw().cuMemHostUnregister(pages.get()), CUDA_SUCCESS);
}
#endif

// Copies that begin before and end behind each multiple of `step` give the right bytes.
void check_across_borders(gpumem_device device, uint8_t* bytes, uint64_t size, uint64_t step) {
  const uint64_t around = 5000;
  const Memory memory = alloc_device(device, 2 * around);
  const Stream stream = create_stream(device);
  for (uint64_t border = step; border + around < size; border += step) {
    fill_pattern(bytes + border - around, 2 * around, static_cast<uint32_t>(border));
    EXPECT_OK(
        gpumem_copy_async(stream, memory.device(), bytes + border - around, 2 * around, nullptr, why()));
    stream.synchronize();
    std::memset(bytes + border - around, 0, 2 * around);
    EXPECT_OK(
        gpumem_copy_async(stream, bytes + border - around, memory.device(), 2 * around, nullptr, why()));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(bytes + border - around, 2 * around, static_cast<uint32_t>(border)));
  }
}

TEST_F(Pin, pin_15_pieces_are_invisible) {
  // On cuda pieces are below 512 MiB.
  const uint64_t piece = on_host() ? 16 * page_size() : 128 * kMiB;
  const uint64_t size = on_host() ? 5 * piece + 123 : 515 * kMiB + 123;
  Instance instance =
      open_instance([&](gpumem_instance_desc&, gpumem_host_options& host) { host.lock_piece = piece; });
  const gpumem_device device = instance.device();
  Pages pages(size + page_size());
  const uint64_t before = locked_bytes();
  Memory registered =
      register_memory(device, pages.get() + 100, size,
                      GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_IN_PIECES);
  EXPECT_NE(registered.info().granted_flags & GPUMEM_MEMORY_IN_PIECES, 0u);
  EXPECT_EQ(kind_stats(instance, GPUMEM_KIND_REGISTERED).live_count, 1u);
  EXPECT_EQ(kind_stats(instance, GPUMEM_KIND_REGISTERED).live_bytes, size);
  for (const uint64_t offset : {uint64_t{0}, piece - 101, piece, size - 1}) {
    const gpumem_pointer_info info = pointer_info(instance, pages.get() + 100 + offset);
    EXPECT_EQ(info.base, pages.get() + 100);
    EXPECT_EQ(info.size, size);
    EXPECT_EQ(info.device_pointer, registered.device() + offset);
  }
  check_across_borders(device, pages.get(), size, piece);
  registered.destroy();
  EXPECT_EQ(locked_bytes(), before);
}

// The same for an allocation; without pieces too.
TEST_F(Pin, pin_15_large_pinned_memory) {
  const uint64_t piece = on_host() ? 16 * page_size() : 128 * kMiB;
  const uint64_t size = on_host() ? 5 * piece + 123 : 259 * kMiB + 123;
  const Instance instance =
      open_instance([&](gpumem_instance_desc&, gpumem_host_options& host) { host.lock_piece = piece; });
  const uint64_t before = locked_bytes();
  for (const gpumem_memory_flags pieces : {gpumem_memory_flags{0}, GPUMEM_MEMORY_IN_PIECES}) {
    SCOPED_TRACE(pieces);
    Memory pinned = create_memory(instance.device(), memory_desc(GPUMEM_KIND_PINNED, size, pieces));
    EXPECT_EQ(pinned.info().granted_flags & GPUMEM_MEMORY_IN_PIECES, pieces);
    EXPECT_EQ(pinned.device(), pinned.host());
    const uint64_t id = pointer_info(instance, pinned.host()).buffer_id;
    for (const uint64_t offset : {uint64_t{0}, piece - 1, piece, 2 * piece - 1, 2 * piece, size - 1}) {
      const gpumem_pointer_info info = pointer_info(instance, pinned.host() + offset);
      EXPECT_EQ(info.kind, GPUMEM_KIND_PINNED);
      EXPECT_EQ(info.base, pinned.host());
      EXPECT_EQ(info.size, size);
      EXPECT_EQ(info.buffer_id, id);
      EXPECT_EQ(info.device_pointer, pinned.host() + offset);
    }
    check_across_borders(instance.device(), pinned.host(), size, piece);
    // The last bytes are as good as the others.
    const Memory memory = alloc_device(instance.device(), kMiB);
    const uint64_t tail = std::min(kMiB, size / 2);
    fill_pattern(pinned.host() + size - tail, tail, 3);
    EXPECT_OK(gpumem_copy(instance, memory.device(), pinned.host() + size - tail, tail, nullptr, why()));
    std::memset(pinned.host() + size - tail, 0, tail);
    EXPECT_OK(gpumem_copy(instance, pinned.host() + size - tail, memory.device(), tail, nullptr, why()));
    EXPECT_TRUE(has_pattern(pinned.host() + size - tail, tail, 3));
    pinned.destroy();
    EXPECT_EQ(locked_bytes(), before);
  }
}

#ifdef HAVE_CUDA_HEADERS
// Other code may hand the pointer to the driver itself. That is what pieces cost, and why they must be asked
// for.
TEST_F(Pin, pin_15_the_drivers_own_copies_of_large_memory) {
  if (!on_cuda()) SKIP_RULE("there is no driver with copies of its own");
  const uint64_t size = 300 * kMiB;
  const Memory memory = alloc_device(device_, size / 2);
  for (const gpumem_memory_flags pieces : {gpumem_memory_flags{0}, GPUMEM_MEMORY_IN_PIECES}) {
    SCOPED_TRACE(pieces);
    const Memory pinned = create_memory(device_, memory_desc(GPUMEM_KIND_PINNED, size, pieces));
    const PrimaryContext context(0);
    const auto device = reinterpret_cast<CUdeviceptr>(memory.device());
    const CUresult to = raw().cuMemcpyHtoD(device, pinned.host() + size / 2, size / 2);
    const CUresult from = raw().cuMemcpyDtoH(pinned.host() + size / 2, device, size / 2);
    EXPECT_EQ(to, pieces == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(from, pieces == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
  }
}
#endif

TEST_F(Pin, pin_15_pieces_are_granted_or_refused) {
  Pages pages(page_size());
  const bool cuda = on_cuda();
  gpumem_memory none = nullptr;
  const gpumem_memory_desc combined =
      memory_desc(GPUMEM_KIND_PINNED, kMiB, GPUMEM_MEMORY_WRITE_COMBINED | GPUMEM_MEMORY_IN_PIECES);
  if (cuda && has(GPUMEM_CAPABILITY_PIN_WRITE_COMBINED)) {
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_memory_create(device_, &combined, &none, why()));
    EXPECT_NE(std::strstr(last_error().message, "IN_PIECES"), nullptr) << last_error().message;
  } else if (!cuda) {
    const Memory both = create_memory(device_, combined);
    EXPECT_NE(both.info().granted_flags & GPUMEM_MEMORY_IN_PIECES, 0u);
  }
  gpumem_memory_desc preferred = memory_desc(GPUMEM_KIND_PINNED, kMiB);
  EXPECT_EQ(create_memory(device_, preferred).info().granted_flags & GPUMEM_MEMORY_IN_PIECES, 0u);
  preferred.prefer = GPUMEM_MEMORY_IN_PIECES;
  EXPECT_NE(create_memory(device_, preferred).info().granted_flags & GPUMEM_MEMORY_IN_PIECES, 0u);
  const Memory registered = register_memory(device_, pages.get(), page_size(), GPUMEM_MEMORY_IN_PIECES);
  EXPECT_NE(registered.info().granted_flags & GPUMEM_MEMORY_IN_PIECES, 0u);
  const gpumem_memory_desc device = memory_desc(GPUMEM_KIND_DEVICE, kMiB, GPUMEM_MEMORY_IN_PIECES);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, &device, &none, why()));
  EXPECT_EQ(none, nullptr);
}

TEST_F(Pin, pin_15_all_pieces_or_none) {
  if (!on_host()) SKIP_RULE("a real driver cannot be made to fail at a chosen piece");
  const uint64_t piece = page_size();
  Instance instance = open_instance([&](gpumem_instance_desc&, gpumem_host_options& host) {
    host.lock_piece = piece;
    host.lock_mode = GPUMEM_HOST_LOCK_REQUIRE;
  });
  Pages pages(4 * piece);
  fill_pattern(pages.get(), pages.size(), 1);
  const uint64_t before = locked_bytes();
  const gpumem_register_desc desc = register_desc(pages.get(), pages.size());
  int failures = 0;
  for (uint64_t k = 1; k <= 20; ++k) {
    Faults faults(instance);
    faults.fail_step(k);
    gpumem_memory memory = nullptr;
    const gpumem_status status = gpumem_memory_register(instance.device(), &desc, &memory, why());
    faults.off();
    if (status == GPUMEM_SUCCESS) {
      Memory owner(memory);
    } else {
      ++failures;
      EXPECT_EQ(locked_bytes(), before);
      EXPECT_EQ(kind_stats(instance, GPUMEM_KIND_REGISTERED).live_count, 0u);
    }
  }
  EXPECT_GE(failures, 4);
  EXPECT_EQ(locked_bytes(), before);
  EXPECT_TRUE(has_pattern(pages.get(), pages.size(), 1));
}

// With room for `count` registrations.
void check_registration_limit(const Instance& instance, uint64_t count) {
  const gpumem_device device = instance.device();
  const uint64_t page = page_size();
  Pages pages((count + 1) * page);
  std::vector<Memory> live;
  for (uint64_t i = 0; i < count; ++i)
    live.push_back(register_memory(device, pages.get() + i * page, page));
  const gpumem_register_desc one_more = register_desc(pages.get() + count * page, page);
  gpumem_memory none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_memory_register(device, &one_more, &none, why()));
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(kind_stats(instance, GPUMEM_KIND_REGISTERED).live_count, count);
  const Memory memory = alloc_device(device, page);
  for (uint64_t i = 0; i < count; i += count / 4) {
    EXPECT_OK(gpumem_copy(instance, memory.device(), live[i].host(), page, nullptr, why()));
  }
  live.pop_back();
  live.push_back(create_memory(device, one_more));
}

CHILD(pin_16_fake_limit) {
  const Instance instance = open_instance();
  check_registration_limit(instance, 8200);
}

TEST_F(Pin, pin_16_the_number_of_registrations_is_bounded) {
  if (on_host()) {
    const Instance instance =
        open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.register_count_max = 4; });
    check_registration_limit(instance, 4);
  } else if (on_fake_cuda()) {
    if (kThreadSanitizer) SKIP_RULE("one thread makes all registrations, and with this sanitizer slowly");
    EXPECT_CHILD_OK(run_child("pin_16_fake_limit", {"FAKE_CUDA_REGISTRATIONS=8200"}));
  } else {
    SKIP_RULE("a real driver takes more registrations than can be tried");
  }
}

TEST_F(Pin, pin_16_pieces_count) {
  if (!on_host()) SKIP_RULE("the size of pieces can be chosen on host only");
  const uint64_t page = page_size();
  const Instance instance = open_instance([&](gpumem_instance_desc&, gpumem_host_options& host) {
    host.register_count_max = 4;
    host.lock_piece = page;
  });
  Pages pages(8 * page);
  const Memory three = register_memory(instance.device(), pages.get(), 3 * page);
  const gpumem_register_desc two = register_desc(pages.get() + 4 * page, 2 * page);
  gpumem_memory none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_memory_register(instance.device(), &two, &none, why()));
  const Memory one = register_memory(instance.device(), pages.get() + 4 * page, page);
}

TEST_F(Pin, pin_17_the_budget) {
  Instance instance =
      open_instance([](gpumem_instance_desc& desc, gpumem_host_options&) { desc.pin_budget = 8 * kMiB; });
  const gpumem_device device = instance.device();
  Pages pages(4 * kMiB);
  Memory pinned = alloc_pinned(device, 4 * kMiB);
  const Memory registered = register_memory(device, pages.get(), 2 * kMiB);
  gpumem_memory none = nullptr;
  const gpumem_memory_desc too_much = memory_desc(GPUMEM_KIND_PINNED, 4 * kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_memory_create(device, &too_much, &none, why()));
  EXPECT_NE(std::strstr(last_error().message, "budget"), nullptr) << last_error().message;
  const Memory rest = register_memory(device, pages.get() + 2 * kMiB, 2 * kMiB);
  const gpumem_memory_desc a_little = memory_desc(GPUMEM_KIND_PINNED, 1);
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_memory_create(device, &a_little, &none, why()));
  EXPECT_EQ(none, nullptr);
  // Device memory is not of this budget, and what is given back can be used again.
  const Memory memory = alloc_device(device, 16 * kMiB);
  pinned.destroy();
  const Memory again = create_memory(device, too_much);
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  EXPECT_OK(gpumem_instance_get_info(instance, &info, why()));
  EXPECT_EQ(info.pin_budget, 8 * kMiB);
}

// Node that a touched page lies on; -1 if the system does not tell.
int node_of(void* address) {
  constexpr unsigned long kNode = 1;
  constexpr unsigned long kAddress = 2;
  int node = -1;
  return syscall(SYS_get_mempolicy, &node, nullptr, 0ul, address, kNode | kAddress) == 0 ? node : -1;
}

TEST_F(Pin, pin_18_numa_nodes) {
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, kMiB, GPUMEM_MEMORY_NUMA_NODE);
  const gpumem_capability_info numa = capability(device_, GPUMEM_CAPABILITY_PIN_NUMA);
  gpumem_memory none = nullptr;
  for (const int32_t wrong : {-1, 1023, INT32_MAX}) {
    desc.numa_node = wrong;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, &desc, &none, why())) << wrong;
  }
  desc.numa_node = 0;
  if (numa.value == GPUMEM_ANSWER_NO) {
    EXPECT_STATUS(numa.status, gpumem_memory_create(device_, &desc, &none, why()));
    return;
  }
  const Memory pinned = create_memory(device_, desc);
  EXPECT_NE(pinned.info().granted_flags & GPUMEM_MEMORY_NUMA_NODE, 0u);
  EXPECT_EQ(pinned.info().numa_node, 0);
  const gpumem_pointer_info info = pointer_info(instance_, pinned.host());
  EXPECT_EQ(info.location, GPUMEM_LOCATION_HOST_NUMA);
  EXPECT_EQ(info.location_id, 0);
  std::memset(pinned.host(), 1, kMiB);
  const int node = node_of(pinned.host() + kMiB - 1);
  if (node >= 0) {
    EXPECT_EQ(node, 0);
  }
  const Memory memory = alloc_device(device_, kMiB);
  EXPECT_OK(copy(memory.device(), pinned.host(), kMiB));

  const Memory anywhere = alloc_pinned(device_, kMiB);
  EXPECT_EQ(anywhere.info().granted_flags & GPUMEM_MEMORY_NUMA_NODE, 0u);
  EXPECT_EQ(anywhere.info().numa_node, -1);
}

TEST_F(Pin, pin_18_pretended_nodes) {
  if (!on_host()) SKIP_RULE("nodes can be pretended on host only");
  const Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.numa_nodes = 3; });
  if (capability(instance.device(), GPUMEM_CAPABILITY_PIN_NUMA).value == GPUMEM_ANSWER_NO) {
    SKIP_RULE("the system refuses to place pages on a node");
  }
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, kMiB, GPUMEM_MEMORY_NUMA_NODE);
  for (const int32_t node : {0, 1, 2}) {
    desc.numa_node = node;
    EXPECT_EQ(create_memory(instance.device(), desc).info().numa_node, node);
  }
  desc.numa_node = 3;
  gpumem_memory none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(instance.device(), &desc, &none, why()));
}

TEST_F(Pin, pin_19_memory_stays_mapped_while_registered) {
  const uint64_t page = page_size();
  const Memory memory = alloc_device(device_, 4 * page);
  for (const uint64_t hole : {uint64_t{0}, uint64_t{2}}) {
    auto* base = static_cast<uint8_t*>(gpumem::test::map_below_gap(4 * page));
    fill_pattern(base, 4 * page, 4);
    Memory registered = register_memory(device_, base, 4 * page, GPUMEM_MEMORY_MAPPED);
    EXPECT_OK(copy(memory.device(), base, 4 * page));
    // On cuda this misuse cannot be detected.
    if (on_host()) {
      ASSERT_EQ(munmap(base + hole * page, page), 0);
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(memory.device(), base, 4 * page));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(base, memory.device(), 4 * page));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, fill(registered.device(), 4 * page));
    }
    registered.destroy();
    munmap(base, 4 * page);
  }
  EXPECT_TRUE(holds_pattern(instance_, memory.device(), 4 * page, 4));
}

}  // namespace
}  // namespace conformance
