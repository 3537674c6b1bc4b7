// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the host backend promises beyond the contract of both: the rules HST-1 to HST-7.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "operands.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

#define HOST_ONLY() \
  if (!on_host()) SKIP_RULE("the rule speaks of the host backend")

using Change = std::function<void(gpumem_host_options&)>;

Instance open_with(const Change& change) {
  return open_instance([&](gpumem_instance_desc&, gpumem_host_options& host) { change(host); });
}

gpumem_status try_open(const Change& change) {
  gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
  change(host);
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_HOST;
  desc.host = &host;
  gpumem_instance instance = nullptr;
  const gpumem_status status = gpumem_instance_open(&desc, &instance, why());
  if (instance != nullptr) gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr);
  return status;
}

gpumem_instance_info instance_info(gpumem_instance instance) {
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  EXPECT_OK(gpumem_instance_get_info(instance, &info, why()));
  return info;
}

gpumem_device_info device_info(gpumem_device device) {
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get_info(device, &info, why()));
  return info;
}

// ---- HST-1 ----

// Mistakes that need neither a fault nor tracking to be found, and what they get.
std::vector<gpumem_status> statuses_of_mistakes(const Instance& instance) {
  const gpumem_device device = instance.device();
  const Memory memory = alloc_device(device, 100);
  const Memory pinned = alloc_pinned(device, 100);
  Pages pages(page_size());
  const Memory registered = register_memory(device, pages.get(), 100);
  Pages no_access(page_size(), PROT_NONE);
  const Stream stream = create_stream(device);
  const Event event = create_event(device);
  Memory gone_memory = alloc_device(device, 100);
  const gpumem_memory stale = gone_memory;
  uint8_t* const gone = gone_memory.device();
  gone_memory.destroy();
  uint8_t bytes[200] = {};
  void* pointer = nullptr;
  gpumem_memory made = nullptr;
  int64_t nanoseconds = 0;
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  const gpumem_memory_desc nothing = memory_desc(GPUMEM_KIND_DEVICE, 0);
  const gpumem_memory_desc too_much = memory_desc(GPUMEM_KIND_DEVICE, 1 << 30);
  const gpumem_register_desc again = register_desc(pages.get() + 99, 10);
  const gpumem_register_desc of_device = register_desc(memory.device(), 10);
  return {
      gpumem_memory_create(device, &nothing, &made, nullptr),
      gpumem_memory_create(device, &too_much, &made, nullptr),
      gpumem_memory_register(device, &again, &made, nullptr),
      gpumem_memory_register(device, &of_device, &made, nullptr),
      gpumem_memory_get_info(stale, &info, nullptr),
      gpumem_memory_destroy(stale, nullptr),
      gpumem_free(instance, memory.device() + 1, nullptr),
      gpumem_free(instance, gone, nullptr),
      gpumem_free(instance, registered.host(), nullptr),
      gpumem_unregister(instance, pinned.host(), nullptr),
      gpumem_copy(instance, bytes, memory.device(), 101, nullptr, nullptr),
      gpumem_copy(instance, bytes, bytes + 1, 100, nullptr, nullptr),
      gpumem_copy(instance, bytes, gone, 10, nullptr, nullptr),
      gpumem_copy(instance, bytes, no_access.get(), 10, nullptr, nullptr),
      gpumem_fill_async(stream, memory.device() + 1, 4, 0, 4, nullptr),
      gpumem_pointer_get_device_pointer(device, registered.host(), &pointer, nullptr),
      gpumem_pointer_get_device_pointer(device, bytes, &pointer, nullptr),
      gpumem_event_get_elapsed_time(event, event, &nanoseconds, nullptr),
      gpumem_stream_write_value(stream, registered.host(), 0, 4, nullptr),
      gpumem_device_enable_peer_access(device, device, nullptr),
  };
}

TEST_F(Conformance, hst_1) {
  HOST_ONLY();
  const Instance lenient = open_with([](gpumem_host_options& host) { host.strict = GPUMEM_TOGGLE_OFF; });
  EXPECT_EQ(instance_info(instance_).strict, 1u);
  EXPECT_EQ(instance_info(lenient).strict, 0u);
  EXPECT_EQ(
      instance_info(open_with([](gpumem_host_options& host) { host.strict = GPUMEM_TOGGLE_DEFAULT; })).strict,
      1u);
  EXPECT_EQ(statuses_of_mistakes(lenient), statuses_of_mistakes(instance_));

  const Memory memory = alloc_device(lenient.device(), 5001);
  put_pattern(lenient, memory.device(), 5001, 1);
  uint8_t* const bytes = memory.device();
  EXPECT_FALSE(read_faults(bytes));
  EXPECT_TRUE(has_pattern(bytes, 5001, 1));
}

TEST_F(Conformance, hst_1_order_tracking) {
  HOST_ONLY();
  const Instance lenient = open_with([](gpumem_host_options& host) { host.strict = GPUMEM_TOGGLE_OFF; });
  for (const Instance* instance : {static_cast<const Instance*>(&instance_), &lenient}) {
    const bool strict = instance == &instance_;
    SCOPED_TRACE(strict ? "strict" : "not strict");
    Memory memory = alloc_device(instance->device(), 100);
    GatedStream held(instance->device());
    EXPECT_OK(gpumem_fill_async(held, memory.device(), 100, 1, 1, why()));
    const gpumem_memory handle = memory;
    if (strict) {
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(handle, why()));
      held.finish();
    } else {
      EXPECT_OK(gpumem_memory_destroy(memory.release(), why()));
      held.finish();
    }
  }
}

// ---- HST-2 ----

TEST_F(Conformance, hst_2_out_of_range) {
  HOST_ONLY();
  const std::vector<std::pair<const char*, Change>> wrong = {
      {"65 devices", [](gpumem_host_options& host) { host.device_count = 65; }},
      {"strict 3", [](gpumem_host_options& host) { host.strict = 3; }},
      {"strict -1", [](gpumem_host_options& host) { host.strict = -1; }},
      {"memory below the granularity", [](gpumem_host_options& host) { host.device_bytes = 511; }},
      {"memory that wraps", [](gpumem_host_options& host) { host.device_bytes = UINT64_MAX; }},
      {"granularity of no power", [](gpumem_host_options& host) { host.granularity = 3 * kMiB; }},
      {"granularity below 512", [](gpumem_host_options& host) { host.granularity = 256; }},
      {"granularity of 2 GiB",
       [](gpumem_host_options& host) {
         host.granularity = 2048 * kMiB;
         host.device_bytes = 4096 * kMiB;
       }},
      {"pageable 3", [](gpumem_host_options& host) { host.pageable = 3; }},
      {"same pointer 3", [](gpumem_host_options& host) { host.same_pointer = 3; }},
      {"lock mode 4", [](gpumem_host_options& host) { host.lock_mode = 4; }},
      {"lock mode -1", [](gpumem_host_options& host) { host.lock_mode = -1; }},
      {"65 NUMA nodes", [](gpumem_host_options& host) { host.numa_nodes = 65; }},
      {"lock piece of no page", [](gpumem_host_options& host) { host.lock_piece = page_size() + 1; }},
      {"lock piece that wraps", [](gpumem_host_options& host) { host.lock_piece = 0 - page_size(); }},
      {"fill 3", [](gpumem_host_options& host) { host.fill = 3; }},
      {"no such peer", [](gpumem_host_options& host) { host.peers = "0>2"; }},
      {"its own peer", [](gpumem_host_options& host) { host.peers = "0>0"; }},
      {"no list of peers", [](gpumem_host_options& host) { host.peers = "0>1;1>0"; }},
      {"half a peer", [](gpumem_host_options& host) { host.peers = "0>"; }},
      {"no such entry point", [](gpumem_host_options& host) { host.masked = "copy_2d,teleport"; }},
  };
  for (const auto& [name, change] : wrong)
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_open(change)) << name;
}

TEST_F(Conformance, hst_2_devices) {
  HOST_ONLY();
  const Instance instance = open_with([](gpumem_host_options& host) {
    host.device_count = 5;
    host.device_bytes = 3 * kMiB;
    host.granularity = 64 * kKiB;
  });
  EXPECT_EQ(instance.device_count(), 5u);
  EXPECT_EQ(capability(instance.device(4), GPUMEM_CAPABILITY_DEVICE_COUNT).value, 5u);
  for (uint32_t ordinal = 0; ordinal < 5; ++ordinal) {
    EXPECT_EQ(device_info(instance.device(ordinal)).total_bytes, 3 * kMiB);
    EXPECT_EQ(device_info(instance.device(ordinal)).ordinal, ordinal);
  }
  const Memory memory = alloc_device(instance.device(4), 100 * kKiB);
  EXPECT_EQ(memory.info().granted_size, 128 * kKiB);
  uint64_t free_bytes = 0;
  EXPECT_OK(gpumem_device_get_memory(instance.device(4), &free_bytes, nullptr, why()));
  EXPECT_EQ(free_bytes, 3 * kMiB - 128 * kKiB);
  EXPECT_OK(gpumem_device_get_memory(instance.device(3), &free_bytes, nullptr, why()));
  EXPECT_EQ(free_bytes, 3 * kMiB);

  const Instance plain = open_with([](gpumem_host_options& host) { host = GPUMEM_HOST_OPTIONS_INIT; });
  EXPECT_EQ(plain.device_count(), 2u) << "the default";
  EXPECT_EQ(device_info(plain.device()).total_bytes, 4096 * kMiB) << "the default";
}

// As cuMemAlloc charges blocks that share a page.
TEST_F(Conformance, hst_2_charge) {
  HOST_ONLY();
  const Instance instance = open_with([](gpumem_host_options& host) { host.device_bytes = 4096; });
  for (const auto& [size, charged] :
       {std::pair{1u, 512u}, std::pair{512u, 512u}, std::pair{513u, 1024u}, std::pair{3585u, 4096u}}) {
    const Memory memory = alloc_device(instance.device(), size);
    EXPECT_EQ(memory.info().granted_size, charged);
    uint64_t free_bytes = 0;
    EXPECT_OK(gpumem_device_get_memory(instance.device(), &free_bytes, nullptr, why()));
    EXPECT_EQ(free_bytes, 4096 - charged);
  }
  const Memory most = alloc_device(instance.device(), 3000);
  const gpumem_memory_desc too_much = memory_desc(GPUMEM_KIND_DEVICE, 1025);
  gpumem_memory none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                gpumem_memory_create(instance.device(), &too_much, &none, why()));
  const std::string message = last_error().message;
  EXPECT_EQ(message.rfind("1025 bytes, charged as 1536, do not fit", 0), 0u) << message;
  EXPECT_NE(message.find("1024 of 4096 bytes free"), std::string::npos) << message;
  EXPECT_NE(message.find("GPUMEM_HOST_DEVICE_BYTES"), std::string::npos) << message;
}

TEST_F(Conformance, hst_2_pointers) {
  HOST_ONLY();
  for (const gpumem_toggle toggle : {GPUMEM_TOGGLE_DEFAULT, GPUMEM_TOGGLE_ON, GPUMEM_TOGGLE_OFF}) {
    SCOPED_TRACE(toggle);
    const Instance instance = open_with([&](gpumem_host_options& host) {
      host.pageable = toggle;
      host.same_pointer = toggle;
    });
    const bool on = toggle == GPUMEM_TOGGLE_ON;
    const uint64_t expected = on ? GPUMEM_ANSWER_YES : GPUMEM_ANSWER_NO;
    EXPECT_EQ(capability(instance.device(), GPUMEM_CAPABILITY_PAGEABLE).value, expected);
    EXPECT_EQ(capability(instance.device(), GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER).value, expected);
    Pages pages(page_size());
    EXPECT_EQ(pointer_info(instance, pages.get()).device_pointer, on ? pages.get() : nullptr);
    const Memory memory = register_memory(instance.device(), pages.get(), 100, GPUMEM_MEMORY_MAPPED);
    EXPECT_EQ(memory.device() == memory.host(), on);
  }
}

TEST_F(Conformance, hst_2_locks) {
  HOST_ONLY();
  const Instance off = open_with([](gpumem_host_options& host) { host.lock_mode = GPUMEM_HOST_LOCK_OFF; });
  EXPECT_EQ(alloc_pinned(off.device(), 100).info().granted_flags & GPUMEM_MEMORY_PAGE_LOCKED, 0u);
  gpumem_memory none = nullptr;
  const gpumem_memory_desc locked = memory_desc(GPUMEM_KIND_PINNED, 100, GPUMEM_MEMORY_PAGE_LOCKED);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_memory_create(off.device(), &locked, &none, why()));

  const Instance required = open_with([](gpumem_host_options& host) {
    host.lock_mode = GPUMEM_HOST_LOCK_REQUIRE;
    host.lock_piece = page_size();
  });
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, 5 * page_size() + 1);
  gpumem_memory handle = nullptr;
  // The limits of this process decide which of the two it is.
  EXPECT_STATUS_IN(gpumem_memory_create(required.device(), &desc, &handle, why()), GPUMEM_SUCCESS,
                   GPUMEM_ERROR_LIMIT_EXCEEDED);
  if (const Memory memory(handle); memory.get() != nullptr) {
    EXPECT_NE(memory.info().granted_flags & GPUMEM_MEMORY_PAGE_LOCKED, 0u);
  }
}

TEST_F(Conformance, hst_2_registrations) {
  HOST_ONLY();
  const Instance instance = open_with([](gpumem_host_options& host) { host.register_count_max = 2; });
  Pages pages(3 * page_size());
  const Memory first = register_memory(instance.device(), pages.get(), 10);
  Memory second = register_memory(instance.device(), pages.get() + page_size(), 10);
  const gpumem_register_desc third = register_desc(pages.get() + 2 * page_size(), 10);
  gpumem_memory none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_memory_register(instance.device(), &third, &none, why()));
  EXPECT_NE(std::strstr(last_error().message, "a larger register_count_max"), nullptr)
      << last_error().message;
  second.destroy();
  create_memory(instance.device(), third);
}

TEST_F(Conformance, hst_2_numa_nodes) {
  HOST_ONLY();
  const Instance instance = open_with([](gpumem_host_options& host) { host.numa_nodes = 3; });
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, 100, GPUMEM_MEMORY_NUMA_NODE);
  for (desc.numa_node = 0; desc.numa_node < 3; ++desc.numa_node)
    EXPECT_EQ(create_memory(instance.device(), desc).info().numa_node, desc.numa_node);
  gpumem_memory none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(instance.device(), &desc, &none, why()));
}

TEST_F(Conformance, hst_2_fill) {
  HOST_ONLY();
  for (const gpumem_toggle fill : {GPUMEM_TOGGLE_DEFAULT, GPUMEM_TOGGLE_ON}) {
    for (const gpumem_toggle strict : {GPUMEM_TOGGLE_ON, GPUMEM_TOGGLE_OFF}) {
      SCOPED_TRACE(testing::Message() << "fill " << fill << ", strict " << strict);
      const Instance instance = open_with([&](gpumem_host_options& host) {
        host.fill = fill;
        host.strict = strict;
      });
      if (fill == GPUMEM_TOGGLE_DEFAULT && strict == GPUMEM_TOGGLE_OFF)
        continue;  // contents are then anything
      const Memory device = alloc_device(instance.device(), 5001);
      const Memory pinned = alloc_pinned(instance.device(), 5001);
      for (const void* fresh : {static_cast<void*>(device.device()), static_cast<void*>(pinned.host())}) {
        std::vector<uint8_t> bytes(5001);
        EXPECT_OK(gpumem_copy(instance, bytes.data(), fresh, bytes.size(), nullptr, why()));
        EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0xA5), 5001);
      }
    }
  }
}

TEST_F(Conformance, hst_2_quarantine) {
  HOST_ONLY();
  constexpr uint32_t kQuarantine = 5;
  const Instance instance = open_with([](gpumem_host_options& host) { host.quarantine = kQuarantine; });
  void* const freed = alloc_device(instance.device(), 4096).device();  // free number 1
  for (uint32_t i = 1; i < kQuarantine; ++i) {
    EXPECT_NE(alloc_device(instance.device(), 4096).device(), freed);
    EXPECT_TRUE(read_faults(freed));
  }
}

// ---- limits of the system, by name (COM-16) ----

CHILD(com_16_file_size_limit) {
  const Instance instance = open_instance();
  constexpr rlim_t kLimit = 16 * kKiB;
  const rlimit limit = {kLimit, kLimit};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  gpumem_memory none = nullptr;
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    const gpumem_memory_desc large = memory_desc(kind, kMiB);
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_memory_create(instance.device(), &large, &none, why()));
    EXPECT_NE(std::strstr(last_error().message, "RLIMIT_FSIZE"), nullptr) << last_error().message;
    for (const uint64_t fits : {uint64_t{100}, uint64_t{kLimit}})
      create_memory(instance.device(), memory_desc(kind, fits));
  }
}

TEST_F(Conformance, com_16_file_size_limit) {
  HOST_ONLY();
  EXPECT_CHILD_OK(run_child("com_16_file_size_limit"));
}

CHILD(com_16_map_count_limit) {
  if (kSanitized) skip_child("a sanitizer ends a process that has no map left");
  uint64_t limit = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  if (limit == 0 || limit > 300'000)
    skip_child("so many maps would take too long: vm.max_map_count is large");
  // The heap gets no more memory then, and is to have enough.
  mallopt(M_TOP_PAD, 16 << 20);
  { const std::vector<std::vector<char>> room(16, std::vector<char>(100'000)); }
  const Instance instance = open_instance();
  // Neighbours with different rights cannot become one map.
  const uint64_t room = 2 * limit * page_size();
  void* const all = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(all, MAP_FAILED);
  auto* page = static_cast<uint8_t*>(all);
  while (mprotect(page, page_size(), PROT_READ) == 0)
    page += 2 * page_size();
  // Above the limit by splitting, a map of its own may still be had.
  while (mmap(nullptr, page_size(), PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
  }
  gpumem_memory none = nullptr;
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    for (const uint64_t size : {uint64_t{100}, kMiB}) {
      const gpumem_memory_desc desc = memory_desc(kind, size);
      EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    gpumem_memory_create(instance.device(), &desc, &none, why()));
      EXPECT_NE(std::strstr(last_error().message, "vm.max_map_count"), nullptr) << last_error().message;
    }
  }
  munmap(all, room);
  alloc_pinned(instance.device(), 100);
  alloc_device(instance.device(), 100);
}

TEST_F(Conformance, com_16_map_count_limit) {
  HOST_ONLY();
  EXPECT_CHILD_OK(run_child("com_16_map_count_limit"));
}

// ---- guard pages ----

struct Overrun {
  uint8_t* address;
  uint64_t size;
  bool inside_faults = true;
  bool outside_faults = false;
};

void overrun(gpumem_host_kernel kernel, void* user_data) {
  auto& argument = *static_cast<Overrun*>(user_data);
  void* view = nullptr;
  if (gpumem_host_kernel_view(kernel, argument.address, argument.size, GPUMEM_ACCESS_READWRITE, &view,
                              nullptr) != GPUMEM_SUCCESS) {
    return;
  }
  auto* const bytes = static_cast<uint8_t*>(view);
  argument.inside_faults = write_faults(bytes + argument.size - 1);
  argument.outside_faults = write_faults(bytes + argument.size);
}

TEST_F(Conformance, hst_1_overruns) {
  HOST_ONLY();
  for (const uint64_t size : {page_size(), 64 * kKiB + page_size(), 3 * kMiB}) {
    SCOPED_TRACE(size);
    std::vector<Memory> memories;
    for (int count = 0; count < 3; ++count) {
      memories.push_back(alloc_pinned(device_, size));
      memories.push_back(alloc_device(device_, size));
    }
    std::vector<uint8_t> bytes(size + 1);
    for (const Memory& memory : memories) {
      uint8_t* const pointer = memory.device();
      if (uint8_t* const host = memory.host(); host != nullptr) {
        EXPECT_FALSE(write_faults(host + size - 1));
        EXPECT_TRUE(write_faults(host + size));
        EXPECT_TRUE(read_faults(host + size));
      }
      if (size > 64 * kKiB) {
        const Stream stream = create_stream(device_);
        Overrun argument{pointer, size};
        EXPECT_OK(gpumem_host_launch(stream, overrun, &argument, why()));
        stream.synchronize();
        EXPECT_FALSE(argument.inside_faults);
        EXPECT_TRUE(argument.outside_faults);
      }
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    gpumem_copy(instance_, pointer, bytes.data(), size + 1, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    gpumem_copy(instance_, bytes.data(), pointer, size + 1, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_fill(instance_, pointer, size + 1, 1, 1, why()));
      // Behind a small block of the device another one may begin.
      if (memory.host() == nullptr && size <= 64 * kKiB) continue;
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_fill(instance_, pointer + size, 1, 1, 1, why()));
      EXPECT_EQ(pointer_info(instance_, pointer + size).kind, GPUMEM_KIND_UNKNOWN);
      const gpumem_register_desc beyond = register_desc(pointer + size, 1);
      gpumem_memory none = nullptr;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_register(device_, &beyond, &none, why()));
    }
  }
}

// ---- small blocks, which share maps ----

// Bytes of shared memory that this process has in use.
uint64_t shared_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("RssShmem:", 0) == 0) return std::stoull(line.substr(9)) * kKiB;
  }
  return 0;
}

TEST_F(Conformance, hst_2_a_million_small_blocks) {
  HOST_ONLY();
  // The records of a sanitizer take more memory and time than those of the library.
  constexpr uint64_t kCount = kThreadSanitizer ? 20'000 : kSanitized ? 40'000 : 1'000'000;
  std::printf("%" PRIu64 " blocks%s\n", kCount, kSanitized ? ", fewer because of the sanitizer" : "");
  const Instance instance = open_with([](gpumem_host_options& host) { host = GPUMEM_HOST_OPTIONS_INIT; });
  const gpumem_device device = instance.device();
  const uint64_t bytes_before = shared_bytes();
  const uint64_t maps_before = Snapshot::take().shared_mappings;
  std::vector<uint8_t*> blocks(kCount);
  const auto size_of = [](uint64_t index) { return 64 + index * 64 % 1024; };
  const std::clock_t start = std::clock();
  uint64_t total = 0;
  for (uint64_t index = 0; index < kCount; ++index) {
    void* pointer = nullptr;
    const gpumem_status status = gpumem_malloc(device, GPUMEM_KIND_DEVICE, size_of(index), &pointer, why());
    if (status != GPUMEM_SUCCESS) FAIL() << index << ": " << last_error().message;
    blocks[index] = static_cast<uint8_t*>(pointer);
    total += size_of(index);
  }
  const gpumem_kind_stats counted = kind_stats(instance, GPUMEM_KIND_DEVICE);
  EXPECT_EQ(counted.live_count, kCount);
  EXPECT_EQ(counted.live_bytes, total);
  EXPECT_LE(Snapshot::take().shared_mappings, maps_before + kCount / 1000);
  // No two share a byte.
  for (uint64_t index = 0; index < kCount; index += kCount / 1000)
    EXPECT_OK(
        gpumem_fill(instance, blocks[index], size_of(index), static_cast<uint8_t>(index / 7), 1, why()));
  for (uint64_t index = 0; index < kCount; index += kCount / 1000) {
    std::vector<uint8_t> bytes(size_of(index));
    EXPECT_OK(gpumem_copy(instance, bytes.data(), blocks[index], bytes.size(), nullptr, why()));
    EXPECT_EQ(static_cast<uint64_t>(std::count(bytes.begin(), bytes.end(), static_cast<uint8_t>(index / 7))),
              bytes.size());
    EXPECT_EQ(pointer_info(instance, blocks[index] + bytes.size() - 1).base, blocks[index]);
  }
  // In an order that leaves holes everywhere.
  for (const uint64_t first : {uint64_t{1}, uint64_t{0}}) {
    for (uint64_t index = first; index < kCount; index += 2) {
      if (gpumem_free(instance, blocks[index], why()) != GPUMEM_SUCCESS)
        FAIL() << index << ": " << last_error().message;
    }
  }
  std::printf("%.2f s of CPU\n", static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  EXPECT_EQ(kind_stats(instance, GPUMEM_KIND_DEVICE).live_count, 0u);
  EXPECT_LE(shared_bytes(), bytes_before + 32 * kMiB);
  uint64_t free_bytes = 0;
  EXPECT_OK(gpumem_device_get_memory(device, &free_bytes, nullptr, why()));
  EXPECT_EQ(free_bytes, 4096 * kMiB);
}

// What strict mode enforces holds for a block beside others too.
TEST_F(Conformance, hst_2_small_blocks_keep_apart) {
  HOST_ONLY();
  constexpr uint64_t kSize = 100;
  std::vector<Memory> blocks;
  for (int index = 0; index < 20; ++index)
    blocks.push_back(alloc_device(device_, kSize));
  std::vector<uint8_t> bytes(kSize + 1);
  for (const Memory& block : blocks) {
    uint8_t* const begin = block.device();
    EXPECT_TRUE(read_faults(begin));
    EXPECT_TRUE(write_faults(begin + kSize - 1));
    EXPECT_OK(gpumem_copy(instance_, bytes.data(), begin, kSize, nullptr, why()));
    EXPECT_EQ(std::count(bytes.begin(), bytes.begin() + kSize, 0xA5), static_cast<int64_t>(kSize));
    EXPECT_OK(gpumem_fill(instance_, begin, kSize, 0, 1, why()));
    // Past the end.
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_copy(instance_, begin, bytes.data(), kSize + 1, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_fill(instance_, begin, kSize + 1, 1, 1, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_fill(instance_, begin + kSize, 1, 1, 1, why()));
    EXPECT_EQ(pointer_info(instance_, begin + kSize).kind, GPUMEM_KIND_UNKNOWN);
    const gpumem_register_desc onto = register_desc(begin + kSize - 1, 2);
    gpumem_memory none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_memory_register(device_, &onto, &none, why()));
  }
}

// While work that uses a freed block is pending, nobody else gets its bytes.
TEST_F(Conformance, hst_2_small_blocks_are_not_reused_too_early) {
  HOST_ONLY();
  const Instance instance = open_with([](gpumem_host_options& host) { host.quarantine = 1; });
  const gpumem_device device = instance.device();
  Memory used = alloc_device(device, 100);
  uint8_t* const address = used.device();
  GatedStream held(device);
  EXPECT_OK(gpumem_fill_async(held, address, 100, 7, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(used, why()));
  EXPECT_OK(gpumem_host_device_lose(device, why()));  // so that it can be freed
  used.destroy();
  EXPECT_EQ(pointer_info(instance, address).kind, GPUMEM_KIND_UNKNOWN);
  held.open();
}

TEST_F(Conformance, hst_2_small_blocks_rest) {
  HOST_ONLY();
  constexpr uint32_t kQuarantine = 5;
  const Instance instance = open_with([](gpumem_host_options& host) { host.quarantine = kQuarantine; });
  for (const uint64_t size : {uint64_t{1}, uint64_t{600}, uint64_t{4096}, 64 * kKiB}) {
    uint8_t* const freed = alloc_device(instance.device(), size).device();  // free number 1
    std::array<uint8_t, 1> byte{};
    for (uint32_t i = 1; i < kQuarantine; ++i) {
      EXPECT_NE(alloc_device(instance.device(), size).device(), freed);
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_copy(instance, byte.data(), freed, 1, nullptr, why()));
      EXPECT_TRUE(read_faults(freed));
    }
    if (size == 64 * kKiB) continue;        // what holds few blocks may be unmapped by now
    alloc_device(instance.device(), size);  // the free after which it need not rest any more
    std::vector<Memory> later;
    do {
      later.push_back(alloc_device(instance.device(), size));
    } while (later.back().device() != freed && later.size() < 300);
    EXPECT_EQ(later.back().device(), freed) << "the address is used again at last";
  }
}

TEST_F(Conformance, hst_2_masked) {
  HOST_ONLY();
  const Instance instance = open_with([](gpumem_host_options& host) {
    host.masked = "launch_host_function,register,copy_2d,fill_2d,peer_access";
  });
  const gpumem_device device = instance.device();
  const Memory memory = alloc_pinned(device, 100);
  const Memory other = alloc_pinned(device, 100);
  fill_pattern(memory.host(), 100, 1);
  const Stream stream = create_stream(device);
  Pages pages(page_size());
  EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING, gpumem_stream_launch_host_function(
                                                 stream, [](void*) {}, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING, gpumem_register(device, pages.get(), 100, 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                gpumem_copy_2d_async(stream, memory.host(), 10, other.host(), 10, 5, 10, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                gpumem_fill_2d_async(stream, memory.host(), 10, 5, 10, 0, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                gpumem_device_enable_peer_access(device, instance.device(1), why()));
  EXPECT_OK(gpumem_stream_query(stream, why()));
  EXPECT_TRUE(has_pattern(memory.host(), 100, 1));
  // What does not need them works.
  EXPECT_OK(gpumem_copy_async(stream, other.host(), memory.host(), 100, nullptr, why()));
  stream.synchronize();
  EXPECT_TRUE(has_pattern(other.host(), 100, 1));
}

// ---- HST-3 ----

struct Read {
  const uint8_t* address;
  gpumem_status status = GPUMEM_NOT_READY;
  uint8_t seen = 0;
};

void read_byte(gpumem_host_kernel kernel, void* user_data) {
  auto& read = *static_cast<Read*>(user_data);
  void* view = nullptr;
  read.status = gpumem_host_kernel_view(kernel, read.address, 1, GPUMEM_ACCESS_READ, &view, nullptr);
  if (read.status == GPUMEM_SUCCESS) read.seen = *static_cast<uint8_t*>(view);
}

TEST_F(Conformance, hst_3) {
  HOST_ONLY();
  constexpr uint32_t kDevices = 4;
  const std::set<std::pair<uint32_t, uint32_t>> links = {{0, 1}, {1, 0}, {2, 1}, {3, 0}};
  const Instance instance = open_with([](gpumem_host_options& host) {
    host.device_count = kDevices;
    host.peers = "0>1,1>0,2>1,3>0";
  });
  for (uint32_t from = 0; from < kDevices; ++from) {
    for (uint32_t to = 0; to < kDevices; ++to) {
      if (from == to) continue;
      SCOPED_TRACE(testing::Message() << from << " to " << to);
      const gpumem_device device = instance.device(from);
      const gpumem_device peer = instance.device(to);
      const bool linked = links.count({from, to}) != 0;
      uint32_t possible = 2;
      EXPECT_OK(gpumem_device_can_access_peer(device, peer, &possible, why()));
      EXPECT_EQ(possible, linked ? 1u : 0u);
      EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_PEER_ACCESS, peer).value,
                linked ? uint64_t{GPUMEM_ANSWER_YES} : uint64_t{GPUMEM_ANSWER_NO});
      if (!linked) {
        EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_device_enable_peer_access(device, peer, why()));
        continue;
      }
      EXPECT_OK(gpumem_device_enable_peer_access(device, peer, why()));
      const Memory memory = alloc_device(peer, 16);
      EXPECT_OK(gpumem_fill(instance, memory.device(), 16, 50 + from, 1, why()));
      const Stream stream = create_stream(device);
      Read read{memory.device() + 15};
      EXPECT_OK(gpumem_host_launch(stream, read_byte, &read, why()));
      stream.synchronize();
      EXPECT_EQ(read.status, GPUMEM_SUCCESS);
      EXPECT_EQ(read.seen, 50 + from);
      EXPECT_OK(gpumem_device_disable_peer_access(device, peer, why()));
    }
  }
}

TEST_F(Conformance, hst_3_64_devices) {
  HOST_ONLY();
  const Instance instance = open_with([](gpumem_host_options& host) {
    host.device_count = 64;
    host.device_bytes = 4 * page_size();
    host.granularity = page_size();
  });
  ASSERT_EQ(instance.device_count(), 64u);
  const Memory first = alloc_device(instance.device(0), 1000);
  const Memory last = alloc_device(instance.device(63), 1000);
  put_pattern(instance, first.device(), 1000, 1);
  EXPECT_OK(gpumem_copy(instance, last.device(), first.device(), 1000, nullptr, why()));
  EXPECT_TRUE(holds_pattern(instance, last.device(), 1000, 1));
  const Memory pinned = alloc_pinned(instance.device(), 10);
  for (uint32_t ordinal = 0; ordinal < 64; ++ordinal) {
    EXPECT_EQ(device_access(instance, last.device(), ordinal),
              ordinal == 63 ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE);
    EXPECT_EQ(device_access(instance, pinned.host(), ordinal), GPUMEM_ACCESS_READWRITE);
  }
}

// ---- HST-4 ----

struct Sum {
  const void* input;
  void* output;
  uint64_t count;
  std::atomic<bool> finished{false};
};

void sum(gpumem_host_kernel kernel, void* user_data) {
  auto& argument = *static_cast<Sum*>(user_data);
  void* input = nullptr;
  void* output = nullptr;
  if (gpumem_host_kernel_view(kernel, argument.input, argument.count, GPUMEM_ACCESS_READ, &input, nullptr) !=
          GPUMEM_SUCCESS ||
      gpumem_host_kernel_view(kernel, argument.output, 8, GPUMEM_ACCESS_READWRITE, &output, nullptr) !=
          GPUMEM_SUCCESS) {
    return;
  }
  uint64_t total = 0;
  for (uint64_t i = 0; i < argument.count; ++i)
    total += static_cast<uint8_t*>(input)[i];
  std::memcpy(output, &total, 8);
  argument.finished = true;
}

TEST_F(Conformance, hst_4) {
  if (on_cuda()) {
    const Stream stream = create_stream(device_);
    Sum argument{nullptr, nullptr, 0};
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_host_launch(stream, sum, &argument, why()));
    stream.synchronize();
    EXPECT_FALSE(argument.finished);
    return;
  }
  constexpr uint64_t kCount = 5001;
  Pages pages(page_size());
  std::vector<Memory> outputs;
  outputs.push_back(alloc_device(device_, 8));
  outputs.push_back(alloc_pinned(device_, 8));
  outputs.push_back(alloc_pinned(device_, 8, GPUMEM_MEMORY_WRITE_COMBINED));
  outputs.push_back(register_memory(device_, pages.get() + 24, 8, GPUMEM_MEMORY_MAPPED));
  const Memory input = alloc_device(device_, kCount);
  const Memory result = alloc_pinned(device_, 8);
  const Stream stream = create_stream(device_);
  for (const Memory& output : outputs) {
    SCOPED_TRACE(output.info().kind);
    Sum argument{input.device(), output.device(), kCount};
    EXPECT_OK(gpumem_fill_async(stream, input.device(), kCount, 3, 1, why()));
    EXPECT_OK(gpumem_host_launch(stream, sum, &argument, why()));
    EXPECT_OK(gpumem_copy_async(stream, result.host(), output.device(), 8, nullptr, why()));
    stream.synchronize();
    EXPECT_TRUE(argument.finished);
    uint64_t total = 0;
    std::memcpy(&total, result.host(), 8);
    EXPECT_EQ(total, 3 * kCount);
  }
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_host_launch(stream, nullptr, nullptr, why()));
}

struct BadView {
  uint8_t* address;
  uint64_t size;
  gpumem_access access;
  gpumem_status status = GPUMEM_NOT_READY;
  void* view = nullptr;
  std::atomic<bool> finished{false};
};

void open_bad_view(gpumem_host_kernel kernel, void* user_data) {
  auto& bad = *static_cast<BadView*>(user_data);
  bad.status = gpumem_host_kernel_view(kernel, bad.address, bad.size, bad.access, &bad.view, nullptr);
  bad.finished = true;
  bad.finished.notify_all();
}

// A view that the device's translation would refuse loses the device; the other one goes on.
TEST_F(Conformance, hst_4_fault) {
  HOST_ONLY();
  enum Case { kPastTheEnd, kFreed, kPageable, kHostAddress, kOtherDevice, kUnmapped, kReadOnly, kCases };
  for (int which = 0; which < kCases; ++which) {
    SCOPED_TRACE(which);
    const Instance instance = open_instance();
    const gpumem_device device = instance.device();
    const Memory memory = alloc_device(device, 100);
    const Memory combined = alloc_pinned(device, 100, GPUMEM_MEMORY_WRITE_COMBINED);
    const Memory other = alloc_device(instance.device(1), 100);
    Pages pages(2 * page_size());
    const Memory unmapped = register_memory(device, pages.get(), 100);
    const Memory read_only = register_memory(device, pages.get() + page_size(), 100,
                                             GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY);
    Memory temporary = alloc_device(device, 100);
    uint8_t* const freed = temporary.device();
    temporary.destroy();
    std::vector<uint8_t> heap(100);
    uint8_t* const addresses[kCases] = {memory.device() + 90, freed,          heap.data(),
                                        combined.host(),      other.device(), unmapped.host(),
                                        read_only.device()};
    BadView bad{addresses[which], which == kPastTheEnd ? uint64_t{11} : 1,
                which == kReadOnly ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_READ};

    const Stream stream = create_stream(device);
    EXPECT_OK(gpumem_host_launch(stream, open_bad_view, &bad, why()));
    EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST,
                  gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    bad.finished.wait(false);  // streams of a lost device wait for nothing, a running kernel included
    EXPECT_EQ(bad.status, GPUMEM_ERROR_DEVICE_LOST);
    EXPECT_EQ(bad.view, nullptr);
    EXPECT_EQ(device_info(device).lost, 1u);
    EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_fill(instance, memory.device(), 100, 1, 1, why()));
    EXPECT_EQ(device_info(instance.device(1)).lost, 0u);
    EXPECT_OK(gpumem_fill(instance, other.device(), 100, 1, 1, why()));
  }
}

TEST_F(Conformance, hst_4_read_of_read_only) {
  HOST_ONLY();
  Pages pages(page_size());
  std::memset(pages.get(), 77, 100);
  const Memory memory =
      register_memory(device_, pages.get(), 100, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY);
  const Stream stream = create_stream(device_);
  Read read{memory.device() + 99};
  EXPECT_OK(gpumem_host_launch(stream, read_byte, &read, why()));
  stream.synchronize();
  EXPECT_EQ(read.status, GPUMEM_SUCCESS);
  EXPECT_EQ(read.seen, 77);
}

TEST_F(Conformance, hst_4_bad_arguments_of_a_view) {
  HOST_ONLY();
  const Memory memory = alloc_device(device_, 100);
  const Stream stream = create_stream(device_);
  struct Arguments {
    uint8_t* address;
    uint64_t size;
    gpumem_access access;
  };
  for (const Arguments& wrong :
       {Arguments{nullptr, 1, GPUMEM_ACCESS_READ}, Arguments{memory.device(), 0, GPUMEM_ACCESS_READ},
        Arguments{memory.device(), 1, GPUMEM_ACCESS_NONE}, Arguments{memory.device(), 1, 2}}) {
    BadView bad{wrong.address, wrong.size, wrong.access};
    EXPECT_OK(gpumem_host_launch(stream, open_bad_view, &bad, why()));
    stream.synchronize();
    EXPECT_EQ(bad.status, GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(device_info(device_).lost, 0u);
}

TEST_F(Conformance, hst_4_simulation_is_refused_on_cuda) {
  if (on_host()) SKIP_RULE("the host backend has these functions");
  const Stream stream = create_stream(device_);
  void* native = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_host_native_stream_create(device_, &native, why()));
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_host_stream_set_capturing(stream, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_host_device_lose(device_, why()));
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_host_fail_step(instance_, 1, 0, why()));
  void* pointer = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED,
                gpumem_host_foreign_alloc(device_, GPUMEM_KIND_DEVICE, 100, &pointer, why()));
  EXPECT_EQ(pointer, nullptr);
  stream.synchronize();
  alloc_device(device_, 100);
}

// ---- HST-5 ----

// A promise that is not made leaves nothing to observe but that it is said: what only hardware can give is
// EMULATED.
TEST_F(Conformance, hst_5) {
  HOST_ONLY();
  EXPECT_EQ(capability(device_, GPUMEM_CAPABILITY_PIN_WRITE_COMBINED).value,
            uint64_t{GPUMEM_ANSWER_EMULATED});
  const Event start = create_event(device_);
  const Event end = create_event(device_);
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_event_record(start, stream, why()));
  EXPECT_OK(gpumem_event_record(end, stream, why()));
  stream.synchronize();
  int64_t nanoseconds = -1;
  EXPECT_OK(gpumem_event_get_elapsed_time(start, end, &nanoseconds, why()));
  EXPECT_GE(nanoseconds, 0) << "a time, however long";
}

// ---- HST-6 ----

void expect_strange_to(const Instance& other, const Memory& memory) {
  for (uint8_t* const pointer : {memory.host(), memory.device()}) {
    if (pointer == nullptr) continue;
    const gpumem_kind kind = pointer_info(other, pointer).kind;
    EXPECT_TRUE(kind == GPUMEM_KIND_FOREIGN || kind == GPUMEM_KIND_PAGEABLE || kind == GPUMEM_KIND_UNKNOWN)
        << kind;
    EXPECT_EQ(pointer_info(other, pointer).memory, nullptr);
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(other, pointer, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(other, pointer, why()));
  }
}

TEST_F(Conformance, hst_6) {
  for (const gpumem_backend which : {GPUMEM_BACKEND_HOST, backend()}) {
    SCOPED_TRACE(which);
    const Instance other = open_backend(which);
    Pages pages(2 * page_size());
    constexpr uint64_t kSize = 1000;
    const Instance* const both[] = {&instance_, &other};
    for (const Instance* here : both) {
      const Instance* there = here == both[0] ? both[1] : both[0];
      std::vector<Memory> memories;
      memories.push_back(alloc_device(here->device(), kSize));
      memories.push_back(alloc_pinned(here->device(), kSize));
      memories.push_back(register_memory(here->device(), pages.get(), kSize, GPUMEM_MEMORY_MAPPED));
      const Stream their_stream = create_stream(there->device());
      for (const Memory& memory : memories) {
        SCOPED_TRACE(memory.info().kind);
        expect_strange_to(*there, memory);
        // And nothing has happened to it.
        put_pattern(*here, memory.device(), kSize, 1);
        EXPECT_TRUE(holds_pattern(*here, memory.device(), kSize, 1));
        // By its handle it belongs to one instance.
        uint8_t byte = 0;
        gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
        region.destination.memory = memory;
        region.source.pointer = &byte;
        region.width = 1;
        for (const gpumem_stream where : {gpumem_stream{}, their_stream.get()}) {
          EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                        copy_regions_on(*there, where, &region, 1, nullptr, why()));
        }
      }
      // Host memory of the one is host memory to the other too.
      std::vector<uint8_t> bytes(kSize);
      EXPECT_OK(gpumem_copy(*there, bytes.data(), memories[1].host(), kSize, nullptr, why()));
      EXPECT_TRUE(has_pattern(bytes.data(), kSize, 1));
    }
  }
}

TEST_F(Conformance, hst_6_closing_one_leaves_the_other) {
  const Memory memory = alloc_device(device_, 1000);
  const Stream stream = create_stream(device_);
  put_pattern(instance_, memory.device(), 1000, 1);
  {
    const Instance other = open_backend(GPUMEM_BACKEND_HOST);
    Memory left = alloc_device(other.device(), 1000);
    left.destroy();
  }
  EXPECT_OK(gpumem_fill_async(stream, memory.device(), 1, pattern_byte(1, 0), 1, why()));
  stream.synchronize();
  EXPECT_TRUE(holds_pattern(instance_, memory.device(), 1000, 1));
}

// ---- HST-7 ----

std::string uuids(const Instance& instance) {
  std::ostringstream text;
  for (uint32_t ordinal = 0; ordinal < instance.device_count(); ++ordinal) {
    for (const uint8_t byte : device_info(instance.device(ordinal)).uuid)
      text << unsigned{byte} << ' ';
    text << '\n';
  }
  return text.str();
}

void three_devices(gpumem_host_options& host) {
  host.device_count = 3;
  host.device_bytes = 8 * kMiB;
}

CHILD(hst_7) { std::printf("%s", uuids(open_with(three_devices)).c_str()); }

TEST_F(Conformance, hst_7) {
  HOST_ONLY();
  const Instance instance = open_with(three_devices);
  std::set<std::array<uint8_t, 16>> seen;
  for (uint32_t ordinal = 0; ordinal < 3; ++ordinal) {
    std::array<uint8_t, 16> uuid{};
    std::memcpy(uuid.data(), device_info(instance.device(ordinal)).uuid, 16);
    EXPECT_TRUE(seen.insert(uuid).second) << "devices differ";
    EXPECT_NE(uuid, (std::array<uint8_t, 16>{}));
  }
  EXPECT_EQ(uuids(open_with(three_devices)), uuids(instance)) << "equal options";
  const ProcessResult child = run_child("hst_7");
  EXPECT_TRUE(child.ok()) << child;
  EXPECT_EQ(child.out, uuids(instance)) << "another process";

  EXPECT_EQ(uuids(instance_).find(uuids(instance).substr(0, uuids(instance).find('\n'))), std::string::npos)
      << "other options";
}

}  // namespace
}  // namespace conformance
