// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One address space and pointer queries: the rules UVA-1 to UVA-11, the copy matrix of all kinds among them.
#include <sys/mman.h>

#include <atomic>
#include <set>
#include <thread>

#include "cuda_raw.h"
#include "operands.h"

namespace conformance {
namespace {

uint64_t all_devices(const Instance& instance) { return (uint64_t{1} << instance.device_count()) - 1; }

bool mentions(const gpumem_error& error, uint64_t number) {
  return std::string(error.message).find(std::to_string(number)) != std::string::npos;
}

gpumem_copy_options options(gpumem_direction direction,
                            gpumem_source_order order = GPUMEM_SOURCE_ORDER_STREAM) {
  gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
  options.direction = direction;
  options.source_order = order;
  return options;
}

gpumem_direction direction_of(const Operand& destination, const Operand& source) {
  if (source.on_device()) {
    return destination.on_device() ? GPUMEM_DIRECTION_DEVICE_TO_DEVICE : GPUMEM_DIRECTION_DEVICE_TO_HOST;
  }
  return destination.on_device() ? GPUMEM_DIRECTION_HOST_TO_DEVICE : GPUMEM_DIRECTION_HOST_TO_HOST;
}

// ---- UVA-1 ----

TEST_F(Conformance, uva_1) {
  EXPECT_EQ(capability(device_, GPUMEM_CAPABILITY_UVA).value, uint64_t{GPUMEM_ANSWER_YES});
  Pages pages(64 * page_size());
  std::vector<Memory> memories;
  for (uint64_t i = 0; i < 8; ++i) {
    const uint64_t size = 1 + i * 3777;
    for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
      memories.push_back(alloc_device(instance_.device(ordinal), size));
    }
    memories.push_back(alloc_pinned(device_, size));
    memories.push_back(alloc_pinned(device_, size, GPUMEM_MEMORY_WRITE_COMBINED));
    memories.push_back(
        register_memory(device_, pages.get() + i * 8 * page_size() + 11, size, GPUMEM_MEMORY_MAPPED));
  }
  struct Range {
    uintptr_t begin;
    uintptr_t end;
  };
  std::vector<Range> ranges;
  for (const Memory& memory : memories) {
    const gpumem_memory_info info = memory.info();
    std::set<uintptr_t> addresses = {reinterpret_cast<uintptr_t>(info.host_pointer),
                                     reinterpret_cast<uintptr_t>(info.device_pointer)};
    addresses.erase(0);
    for (const uintptr_t address : addresses)
      ranges.push_back({address, address + info.size});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& left, const Range& right) { return left.begin < right.begin; });
  for (size_t i = 1; i < ranges.size(); ++i)
    EXPECT_LE(ranges[i - 1].end, ranges[i].begin);
  EXPECT_GE(ranges.size(), memories.size());
}

// ---- UVA-2 ----

TEST_F(Conformance, uva_2) {
  static const int constant = 1;
  int on_stack = 0;
  std::vector<int> heap(1);
  Pages read_only(page_size(), PROT_READ);
  Pages no_access(page_size(), PROT_NONE);
  const std::vector<const void*> readable = {&constant, &on_stack, heap.data(), read_only.get(),
                                             reinterpret_cast<const void*>(&gpumem_version)};
  const std::vector<const void*> strange = {no_access.get(), reinterpret_cast<const void*>(uintptr_t{1}),
                                            reinterpret_cast<const void*>(uintptr_t{1} << 63),
                                            reinterpret_cast<const void*>(UINTPTR_MAX)};
  const auto check = [&] {
    for (const void* pointer : readable)
      EXPECT_EQ(pointer_info(instance_, pointer).kind, GPUMEM_KIND_PAGEABLE) << pointer;
    for (const void* pointer : strange)
      EXPECT_EQ(pointer_info(instance_, pointer).kind, GPUMEM_KIND_UNKNOWN) << pointer;
  };
  check();
  std::thread(check).join();

  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  info.kind = 77;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pointer_get_info(instance_, nullptr, &info, why()));
  EXPECT_EQ(info.kind, 77);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pointer_get_info(instance_, &on_stack, nullptr, why()));
}

// ---- UVA-3 ----

TEST_F(Conformance, uva_3) {
  constexpr uint64_t kSize = 70'001;
  const Operands operands(device_, second_device(), kSize);
  for (const Operand& operand : operands.all()) {
    if (operand.kind == GPUMEM_KIND_PAGEABLE) continue;
    SCOPED_TRACE(operand.name);
    const gpumem_pointer_info first = pointer_info(instance_, operand.address);
    EXPECT_NE(first.buffer_id, 0u);
    for (const uint64_t offset : {uint64_t{1}, uint64_t{4095}, uint64_t{4096}, kSize / 2, kSize - 1}) {
      const gpumem_pointer_info info = pointer_info(instance_, operand.address + offset);
      EXPECT_EQ(info.kind, first.kind) << offset;
      EXPECT_EQ(info.base, first.base) << offset;
      EXPECT_EQ(info.size, first.size) << offset;
      EXPECT_EQ(info.buffer_id, first.buffer_id) << offset;
      EXPECT_EQ(info.granted_flags, first.granted_flags) << offset;
      EXPECT_EQ(info.memory, first.memory) << offset;
      EXPECT_EQ(info.buffer, first.buffer) << offset;
    }
    EXPECT_NE(pointer_info(instance_, static_cast<uint8_t*>(first.base) + first.size).buffer_id,
              first.buffer_id);
    EXPECT_NE(pointer_info(instance_, static_cast<uint8_t*>(first.base) - 1).buffer_id, first.buffer_id);
  }
}

// ---- UVA-4 ----

TEST_F(Conformance, uva_4) {
  const Instance other = open_instance();
  Pages pages(page_size());
  std::set<uint64_t> ids;
  uint64_t made = 0;
  const auto take = [&](const Memory& memory) {
    const gpumem_memory_info info = memory.info();
    EXPECT_NE(info.buffer_id, 0u);
    ids.insert(info.buffer_id);
    ++made;
  };
  for (int i = 0; i < 100; ++i) {
    take(alloc_device(device_, 4096));
    take(alloc_device(other.device(), 4096));
    take(alloc_pinned(device_, 4096));
    take(register_memory(device_, pages.get(), 100));
  }
  EXPECT_EQ(ids.size(), made);
}

// ---- UVA-5 ----

// What the table of UVA-5 says of a memory of the instance, apart from the fields that the callers state.
struct Expected {
  gpumem_location location;
  int32_t location_id;
  uint64_t access_devices;
  gpumem_access access = GPUMEM_ACCESS_READWRITE;
};

void expect_table_row(const Instance& instance, const Memory& memory, const Expected& expected) {
  const gpumem_memory_info object = memory.info();
  auto* const host = static_cast<uint8_t*>(object.host_pointer);
  auto* const device = static_cast<uint8_t*>(object.device_pointer);
  for (uint8_t* const base : std::set<uint8_t*>{host, device}) {
    if (base == nullptr) continue;
    for (const uint64_t offset : {uint64_t{0}, object.size / 2, object.size - 1}) {
      SCOPED_TRACE(testing::Message() << (base == host ? "host" : "device") << " address + " << offset);
      const gpumem_pointer_info info = pointer_info(instance, base + offset);
      EXPECT_EQ(info.kind, object.kind);
      EXPECT_EQ(info.location, expected.location);
      EXPECT_EQ(info.location_id, expected.location_id);
      EXPECT_EQ(info.device_ordinal, static_cast<int32_t>(object.device_ordinal));
      EXPECT_EQ(info.host_pointer, host == nullptr ? nullptr : host + offset);
      EXPECT_EQ(info.device_pointer, device == nullptr ? nullptr : device + offset);
      EXPECT_EQ(info.base, base);
      EXPECT_EQ(info.size, object.size);
      EXPECT_EQ(info.buffer_id, object.buffer_id);
      EXPECT_EQ(info.granted_flags, object.granted_flags);
      for (uint32_t ordinal = 0; ordinal < instance.device_count(); ++ordinal) {
        const bool has = (expected.access_devices >> ordinal & 1) != 0;
        EXPECT_EQ(device_access(instance, base + offset, ordinal),
                  has ? expected.access : GPUMEM_ACCESS_NONE);
      }
      if (host != nullptr) {
        EXPECT_EQ(cpu_access(instance, base + offset), GPUMEM_ACCESS_READWRITE);
      }
      EXPECT_EQ(info.memory, memory.get());
      EXPECT_EQ(info.buffer, nullptr);
    }
  }
}

TEST_F(Conformance, uva_5_pageable) {
  std::vector<uint8_t> heap(100);
  const gpumem_pointer_info info = pointer_info(instance_, heap.data() + 7);
  EXPECT_EQ(info.kind, GPUMEM_KIND_PAGEABLE);
  EXPECT_EQ(info.location, GPUMEM_LOCATION_HOST);
  EXPECT_EQ(info.location_id, -1);
  EXPECT_EQ(info.device_ordinal, -1);
  EXPECT_EQ(info.host_pointer, heap.data() + 7);
  const bool reached = capability(device_, GPUMEM_CAPABILITY_PAGEABLE).value != GPUMEM_ANSWER_NO;
  EXPECT_EQ(info.device_pointer, reached ? heap.data() + 7 : nullptr);
  EXPECT_EQ(info.base, nullptr);
  EXPECT_EQ(info.size, 0u);
  EXPECT_EQ(info.buffer_id, 0u);
  EXPECT_EQ(info.granted_flags, 0u);
  EXPECT_EQ(info.memory, nullptr);
  EXPECT_EQ(info.buffer, nullptr);
  EXPECT_EQ(device_access(instance_, heap.data() + 7, 0),
            reached ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE);
  EXPECT_EQ(cpu_access(instance_, heap.data() + 7), GPUMEM_ACCESS_READWRITE);
  const Pages read_only(page_size(), PROT_READ);
  EXPECT_EQ(cpu_access(instance_, read_only.get()), GPUMEM_ACCESS_READ);
  EXPECT_EQ(device_access(instance_, read_only.get(), 0), reached ? GPUMEM_ACCESS_READ : GPUMEM_ACCESS_NONE);
}

TEST_F(Conformance, uva_5_pageable_memory_that_devices_access) {
  if (!on_host()) SKIP_RULE("whether devices access pageable memory can be chosen on host only");
  const Instance instance = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.pageable = GPUMEM_TOGGLE_ON; });
  const std::vector<uint8_t> heap(100);
  const Pages read_only(page_size(), PROT_READ);
  EXPECT_EQ(device_access(instance, heap.data(), 1), GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(device_access(instance, read_only.get(), 1), GPUMEM_ACCESS_READ);
}

// DEV-2: who may touch device memory by the CPU is told so, and nobody else.
TEST_F(Conformance, uva_5_device_memory_and_the_cpu) {
  const Memory memory = alloc_device(device_, 100);
  const bool may = capability(device_, GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS).value != GPUMEM_ANSWER_NO;
  EXPECT_EQ(cpu_access(instance_, memory.device()), may ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE);
  EXPECT_EQ(read_faults(memory.device()), !may);
  if (!on_host()) return;
  const Instance lenient = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.strict = GPUMEM_TOGGLE_OFF; });
  const Memory touchable = alloc_device(lenient.device(), 100);
  EXPECT_EQ(cpu_access(lenient, touchable.device()), GPUMEM_ACCESS_READWRITE);
}

TEST_F(Conformance, uva_5_access_of_no_processor) {
  const Memory memory = alloc_pinned(device_, 100);
  gpumem_access access = 77;
  const auto count = static_cast<int32_t>(instance_.device_count());
  const std::pair<gpumem_location, int32_t> wrong[] = {{GPUMEM_LOCATION_DEVICE, -1},
                                                       {GPUMEM_LOCATION_DEVICE, count},
                                                       {GPUMEM_LOCATION_DEVICE, INT32_MAX},
                                                       {GPUMEM_LOCATION_DEVICE, INT32_MIN},
                                                       {GPUMEM_LOCATION_HOST, 1},
                                                       {GPUMEM_LOCATION_HOST, -2},
                                                       {GPUMEM_LOCATION_HOST_NUMA, 0},
                                                       {GPUMEM_LOCATION_NONE, -1},
                                                       {4, 0},
                                                       {-1, 0}};
  for (const auto& [location, id] : wrong) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_pointer_get_access(instance_, memory.host(), location, id, &access, why()))
        << location << ' ' << id;
  }
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pointer_get_access(instance_, nullptr, GPUMEM_LOCATION_HOST, 0, &access, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pointer_get_access(instance_, memory.host(), GPUMEM_LOCATION_HOST, 0, nullptr, why()));
  EXPECT_EQ(access, 77);
}

TEST_F(Conformance, uva_5_unknown) {
  Pages pages(page_size(), PROT_NONE);
  const gpumem_pointer_info info = pointer_info(instance_, pages.get());
  EXPECT_EQ(info.kind, GPUMEM_KIND_UNKNOWN);
  EXPECT_EQ(info.location, GPUMEM_LOCATION_NONE);
  EXPECT_EQ(info.location_id, -1);
  EXPECT_EQ(info.device_ordinal, -1);
  EXPECT_EQ(info.host_pointer, nullptr);
  EXPECT_EQ(info.device_pointer, nullptr);
  EXPECT_EQ(info.base, nullptr);
  EXPECT_EQ(info.size, 0u);
  EXPECT_EQ(info.buffer_id, 0u);
  EXPECT_EQ(info.granted_flags, 0u);
  EXPECT_EQ(info.memory, nullptr);
  EXPECT_EQ(info.buffer, nullptr);
  EXPECT_EQ(device_access(instance_, pages.get(), 0), GPUMEM_ACCESS_NONE);
  EXPECT_EQ(cpu_access(instance_, pages.get()), GPUMEM_ACCESS_NONE);
}

TEST_F(Conformance, uva_5_pinned) {
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    for (const gpumem_memory_flags flags :
         {gpumem_memory_flags{0}, gpumem_memory_flags{GPUMEM_MEMORY_WRITE_COMBINED},
          gpumem_memory_flags{GPUMEM_MEMORY_NUMA_NODE}}) {
      if (flags == GPUMEM_MEMORY_NUMA_NODE &&
          capability(device_, GPUMEM_CAPABILITY_PIN_NUMA).value == GPUMEM_ANSWER_NO) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << "device " << ordinal << ", flags " << flags);
      const Memory memory = alloc_pinned(instance_.device(ordinal), 5001, flags);
      const gpumem_memory_info info = memory.info();
      EXPECT_NE(info.host_pointer, nullptr);
      EXPECT_NE(info.device_pointer, nullptr);
      const bool placed = (info.granted_flags & GPUMEM_MEMORY_NUMA_NODE) != 0;
      EXPECT_EQ(info.numa_node, flags == GPUMEM_MEMORY_NUMA_NODE ? 0 : info.numa_node);
      expect_table_row(instance_, memory,
                       {placed ? GPUMEM_LOCATION_HOST_NUMA : GPUMEM_LOCATION_HOST,
                        placed ? info.numa_node : -1, all_devices(instance_)});
    }
  }
}

TEST_F(Conformance, uva_5_registered) {
  const uint64_t one_device = uint64_t{1} << ordinal_of(device_);
  const bool same =
      capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER).value != GPUMEM_ANSWER_NO;
  const bool read_only =
      capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY).value != GPUMEM_ANSWER_NO;
  Pages pages(3 * page_size());
  for (gpumem_memory_flags flags = 0; flags < 16; ++flags) {
    if ((flags & GPUMEM_MEMORY_WRITE_COMBINED) != 0) continue;  // not for registered memory
    if ((flags & GPUMEM_MEMORY_READ_ONLY) != 0 && !read_only) continue;
    SCOPED_TRACE(testing::Message() << "flags " << flags);
    const Memory memory = register_memory(device_, pages.get() + 33, 2 * page_size() + 1, flags);
    const gpumem_memory_info info = memory.info();
    EXPECT_EQ(info.host_pointer, pages.get() + 33);
    if ((flags & GPUMEM_MEMORY_MAPPED) == 0) {
      EXPECT_EQ(info.device_pointer, nullptr);
    } else {
      EXPECT_NE(info.device_pointer, nullptr);
      EXPECT_EQ(info.device_pointer == info.host_pointer, same);
    }
    uint64_t devices = (flags & GPUMEM_MEMORY_PORTABLE) != 0 ? all_devices(instance_) : one_device;
    if ((flags & GPUMEM_MEMORY_MAPPED) == 0) devices = 0;  // no device has an address for it
    expect_table_row(instance_, memory,
                     {GPUMEM_LOCATION_HOST, -1, devices,
                      (flags & GPUMEM_MEMORY_READ_ONLY) != 0 ? GPUMEM_ACCESS_READ : GPUMEM_ACCESS_READWRITE});
  }
}

TEST_F(Conformance, uva_5_device) {
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    SCOPED_TRACE(ordinal);
    const Memory memory = alloc_device(instance_.device(ordinal), 5001);
    EXPECT_EQ(memory.host(), nullptr);
    expect_table_row(instance_, memory,
                     {GPUMEM_LOCATION_DEVICE, static_cast<int32_t>(ordinal), uint64_t{1} << ordinal});
  }
}

TEST_F(Conformance, uva_5_device_with_peers) {
  const gpumem_device peer = second_device();
  if (peer == nullptr) SKIP_RULE("there is one device only");
  if (capability(peer, GPUMEM_CAPABILITY_PEER_ACCESS, device_).value == GPUMEM_ANSWER_NO) {
    SKIP_RULE("there is no link between the first two devices");
  }
  const Memory memory = alloc_device(device_, 5001);
  EXPECT_OK(gpumem_device_enable_peer_access(peer, device_, why()));
  expect_table_row(instance_, memory, {GPUMEM_LOCATION_DEVICE, 0, 3});
  EXPECT_OK(gpumem_device_disable_peer_access(peer, device_, why()));
  expect_table_row(instance_, memory, {GPUMEM_LOCATION_DEVICE, 0, 1});
}

TEST_F(Conformance, uva_5_foreign) {
  REQUIRE_FOREIGN();
  constexpr uint64_t kSize = 2 << 20;
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
      SCOPED_TRACE(testing::Message() << "device " << ordinal << ", kind " << kind);
      const bool on_device = kind == GPUMEM_KIND_DEVICE;
      const ForeignMemory memory(instance_.device(ordinal), kind, kSize);
      const gpumem_pointer_info info = pointer_info(instance_, memory.get() + 5);
      EXPECT_EQ(info.kind, GPUMEM_KIND_FOREIGN);
      EXPECT_EQ(info.location, on_device ? GPUMEM_LOCATION_DEVICE : GPUMEM_LOCATION_HOST);
      EXPECT_EQ(info.location_id, on_device ? static_cast<int32_t>(ordinal) : -1);
      EXPECT_EQ(info.device_ordinal, static_cast<int32_t>(ordinal));
      EXPECT_EQ(info.host_pointer, on_device ? nullptr : memory.get() + 5);
      EXPECT_EQ(info.device_pointer, memory.get() + 5);
      EXPECT_EQ(info.base, memory.get());
      EXPECT_EQ(info.size, kSize);
      EXPECT_NE(info.buffer_id, 0u);
      EXPECT_EQ(device_access(instance_, memory.get() + 5, ordinal), GPUMEM_ACCESS_UNKNOWN);
      EXPECT_EQ(cpu_access(instance_, memory.get() + 5), GPUMEM_ACCESS_UNKNOWN);
      EXPECT_EQ(info.memory, nullptr);
      EXPECT_EQ(info.buffer, nullptr);
    }
  }
}

// ---- UVA-6 ----

TEST_F(Conformance, uva_6_without_the_driver) {
  if (!Faults::available()) SKIP_RULE("driver calls of a real GPU cannot be made to fail");
  const Operands operands(device_, second_device(), 5001, false);
  Faults faults(instance_);
  faults.fail_step(1, true);
  for (const Operand& operand : operands.all()) {
    if (operand.kind == GPUMEM_KIND_PAGEABLE) continue;
    SCOPED_TRACE(operand.name);
    const gpumem_pointer_info info = pointer_info(instance_, operand.address + 9);
    EXPECT_EQ(info.kind, operand.kind);
    EXPECT_NE(device_access(instance_, operand.address + 9, 0), GPUMEM_ACCESS_UNKNOWN);
    EXPECT_NE(cpu_access(instance_, operand.address + 9), GPUMEM_ACCESS_UNKNOWN);
    EXPECT_EQ(info.base, operand.address);
  }
}

TEST_F(Conformance, uva_6_one_snapshot) {
  std::atomic<uint8_t*> address{nullptr};
  std::atomic<bool> done{false};
  std::thread maker([&] {
    for (int i = 0; i < 200; ++i) {
      const Memory memory = alloc_device(device_, 4096);
      address = memory.device();
    }
    done = true;
  });
  uint64_t asked = 0;
  while (!done || asked < 100) {
    uint8_t* const pointer = address;
    if (pointer == nullptr) continue;
    const gpumem_pointer_info info = pointer_info(instance_, pointer);
    ++asked;
    if (info.kind == GPUMEM_KIND_UNKNOWN) {
      EXPECT_EQ(info.buffer_id, 0u);
      EXPECT_EQ(info.base, nullptr);
      EXPECT_EQ(info.size, 0u);
      EXPECT_EQ(info.memory, nullptr);
      EXPECT_EQ(info.buffer, nullptr);
    } else {
      // The driver may have handed the address out again to a call that has not returned: then it is FOREIGN.
      EXPECT_TRUE(info.kind == GPUMEM_KIND_DEVICE || info.kind == GPUMEM_KIND_FOREIGN) << info.kind;
      EXPECT_EQ(info.memory != nullptr, info.kind == GPUMEM_KIND_DEVICE);
      EXPECT_NE(info.buffer_id, 0u);
      EXPECT_EQ(info.base, pointer);
      EXPECT_EQ(info.size, 4096u);
    }
  }
  maker.join();
}

CHILD(uva_6_after_device_lost) {
  const Instance instance = open_instance();
  if (!can_lose()) skip_child("a real GPU cannot be lost on purpose");
  const Operands operands(instance.device(), nullptr, 5001, false);
  std::vector<gpumem_pointer_info> before;
  for (const Operand& operand : operands.all())
    before.push_back(pointer_info(instance, operand.address + 9));
  lose(instance.device());
  // A call has to meet the loss before the library can know of it.
  gpumem_stream stream = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_create(instance.device(), nullptr, &stream, why()));
  for (size_t i = 0; i < before.size(); ++i) {
    const Operand& operand = operands.all()[i];
    if (operand.kind == GPUMEM_KIND_PAGEABLE) continue;
    SCOPED_TRACE(operand.name);
    const gpumem_pointer_info info = pointer_info(instance, operand.address + 9);
    EXPECT_EQ(info.kind, before[i].kind);
    EXPECT_EQ(info.location, before[i].location);
    EXPECT_EQ(info.location_id, before[i].location_id);
    EXPECT_EQ(info.device_ordinal, before[i].device_ordinal);
    EXPECT_EQ(info.host_pointer, before[i].host_pointer);
    EXPECT_EQ(info.device_pointer, before[i].device_pointer);
    EXPECT_EQ(info.base, before[i].base);
    EXPECT_EQ(info.size, before[i].size);
    EXPECT_EQ(info.buffer_id, before[i].buffer_id);
    EXPECT_EQ(info.granted_flags, before[i].granted_flags);
    EXPECT_EQ(info.memory, before[i].memory);
    EXPECT_EQ(info.buffer, before[i].buffer);
  }
}
TEST_F(Conformance, uva_6_after_device_lost) { EXPECT_CHILD_OK(run_child("uva_6_after_device_lost")); }

// ---- UVA-7 ----

constexpr uint64_t kOperandSize = 70'100;

// One copy of rows, checked byte by byte with what lies before, between and behind the rows.
struct Shape {
  Rows destination;
  Rows source;  // with the same width and height
};

constexpr Shape kShapes[] = {
    {{1, 0, 1, 1}, {3, 0, 1, 1}},
    {{3, 0, 257, 1}, {0, 0, 257, 1}},
    {{0, 0, 4097, 1}, {4095, 0, 4097, 1}},
    {{2, 0, 70'001, 1}, {7, 0, 70'001, 1}},  // more than drivers stage during the call
    {{3, 29, 13, 5}, {1, 17, 13, 5}},
    {{0, 3, 1, 31}, {5, 2, 1, 31}},
    {{9, 1024, 1000, 21}, {0, 1003, 1000, 21}},
    {{5, 640, 640, 9}, {6, 640, 640, 9}},  // rows without a gap
};

class CopyMatrix {
 public:
  CopyMatrix(const Instance& instance, gpumem_device device, gpumem_device second)
      : instance_(instance),
        sources_(device, second, kOperandSize),
        destinations_(device, second, kOperandSize) {}

  // Every kind to every kind in every shape. `stream` may be null for synchronous copies.
  void run(gpumem_stream stream, bool state_direction, gpumem_source_order order) const {
    for (const Operand& source : sources_.all()) {
      for (const Operand& destination : destinations_.all()) {
        if (!destination.writable) continue;
        SCOPED_TRACE(source.name + " to " + destination.name);
        const auto chosen =
            options(state_direction ? direction_of(destination, source) : GPUMEM_DIRECTION_INFER, order);
        for (const Shape& shape : kShapes)
          copy_and_check(stream, destination, source, shape, &chosen);
        if (testing::Test::HasFailure()) return;
      }
    }
  }

 private:
  static constexpr uint64_t kMargin = 64;

  void copy_and_check(gpumem_stream stream, const Operand& destination, const Operand& source,
                      const Shape& shape, const gpumem_copy_options* chosen) const {
    const Rows& to = shape.destination;
    const Rows& from = shape.source;
    SCOPED_TRACE(testing::Message() << to.height << " rows of " << to.width << " bytes");
    const uint64_t destination_bytes = to.end() + kMargin;
    const uint64_t source_bytes = from.end() + kMargin;
    prepare(instance_, source, source_bytes, 1);
    prepare(instance_, destination, destination_bytes, 2);
    if (to.height == 1) {
      EXPECT_OK(copy_on(instance_, stream, destination.address + to.offset, source.address + from.offset,
                        to.width, chosen, why()));
    } else {
      EXPECT_OK(copy_2d_on(instance_, stream, destination.address + to.offset, to.pitch,
                           source.address + from.offset, from.pitch, to.width, to.height, chosen, why()));
    }
    if (stream != nullptr) {
      EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    }
    std::vector<uint8_t> expected = pattern(destination_bytes, 2);
    const std::vector<uint8_t> read = pattern(source_bytes, 1);
    for (uint64_t row = 0; row < to.height; ++row) {
      std::memcpy(&expected[to.offset + row * to.pitch], &read[from.offset + row * from.pitch], to.width);
    }
    EXPECT_TRUE(same_bytes(expected, bytes_of(instance_, destination, destination_bytes)));
    EXPECT_TRUE(same_bytes(read, bytes_of(instance_, source, source_bytes))) << "the source";
  }

  const Instance& instance_;
  Operands sources_;
  Operands destinations_;
};

TEST_F(Conformance, uva_7_inferred) {
  const CopyMatrix matrix(instance_, device_, second_device());
  const Stream stream = create_stream(device_);
  matrix.run(nullptr, false, GPUMEM_SOURCE_ORDER_STREAM);
  matrix.run(stream, false, GPUMEM_SOURCE_ORDER_STREAM);
}

TEST_F(Conformance, uva_7_stated) {
  const CopyMatrix matrix(instance_, device_, second_device());
  const Stream stream = create_stream(device_);
  matrix.run(nullptr, true, GPUMEM_SOURCE_ORDER_STREAM);
  matrix.run(stream, true, GPUMEM_SOURCE_ORDER_STREAM);
}

TEST_F(Conformance, uva_7_contradiction) {
  constexpr uint64_t kSize = 300;
  const Operands sources(device_, second_device(), kSize);
  const Operands destinations(device_, second_device(), kSize);
  for (const Operand& source : sources.all()) {
    for (const Operand& destination : destinations.all()) {
      // Foreign memory is taken at its word, and managed memory is on either side (MAN-32).
      const auto of_one_side = [](const Operand& operand) {
        return operand.kind != GPUMEM_KIND_FOREIGN && operand.kind != GPUMEM_KIND_MANAGED;
      };
      if (!destination.writable || !of_one_side(source) || !of_one_side(destination)) continue;
      SCOPED_TRACE(source.name + " to " + destination.name);
      prepare(instance_, source, kSize, 1);
      prepare(instance_, destination, kSize, 2);
      for (const gpumem_direction stated :
           {GPUMEM_DIRECTION_HOST_TO_HOST, GPUMEM_DIRECTION_HOST_TO_DEVICE, GPUMEM_DIRECTION_DEVICE_TO_HOST,
            GPUMEM_DIRECTION_DEVICE_TO_DEVICE}) {
        if (stated == direction_of(destination, source)) continue;
        const gpumem_copy_options chosen = options(stated);
        EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                      gpumem_copy(instance_, destination.address, source.address, kSize, &chosen, why()))
            << "direction " << stated;
        EXPECT_STATUS(
            GPUMEM_ERROR_INVALID_ARGUMENT,
            gpumem_copy_2d(instance_, destination.address, 100, source.address, 100, 50, 3, &chosen, why()))
            << "direction " << stated;
      }
      EXPECT_TRUE(same_bytes(pattern(kSize, 2), bytes_of(instance_, destination, kSize)));
    }
  }
}

TEST_F(Conformance, uva_7_unknown_direction) {
  uint8_t bytes[2] = {1, 2};
  for (const gpumem_direction direction : {-1, 5, INT32_MAX}) {
    const gpumem_copy_options chosen = options(direction);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_copy(instance_, &bytes[0], &bytes[1], 1, &chosen, why()));
  }
  EXPECT_EQ(bytes[0], 1);
}

// ---- UVA-8 ----

TEST_F(Conformance, uva_8_leaves_the_object) {
  constexpr uint64_t kSize = 50'021;
  const Operands operands(device_, second_device(), kSize);
  std::vector<uint8_t> other(2 * kSize);
  for (const Operand& operand : operands.all()) {
    if (operand.kind == GPUMEM_KIND_PAGEABLE || operand.kind == GPUMEM_KIND_FOREIGN) continue;
    SCOPED_TRACE(operand.name);
    prepare(instance_, operand, kSize, 1);
    std::fill(other.begin(), other.end(), uint8_t{7});
    struct Range {
      uint64_t offset;
      uint64_t size;
    };
    for (const Range& range : {Range{0, kSize + 1}, Range{kSize - 3, 4}, Range{40'000, 20'063}}) {
      SCOPED_TRACE(testing::Message() << range.size << " bytes at " << range.offset);
      EXPECT_STATUS(
          GPUMEM_ERROR_INVALID_ARGUMENT,
          gpumem_copy(instance_, other.data(), operand.address + range.offset, range.size, nullptr, why()));
      EXPECT_TRUE(mentions(last_error(), range.size) && mentions(last_error(), kSize))
          << last_error().message;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_copy(instance_, operand.address + range.offset,
                                                               other.data(), range.size, nullptr, why()));
      EXPECT_TRUE(mentions(last_error(), range.size) && mentions(last_error(), kSize))
          << last_error().message;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    gpumem_fill(instance_, operand.address + range.offset, range.size, 0, 1, why()));
      EXPECT_TRUE(mentions(last_error(), range.size) && mentions(last_error(), kSize))
          << last_error().message;
    }
    // 45 rows of 1100 bytes and 900 more.
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_copy_2d(instance_, operand.address, 1100,
                                                                other.data(), 900, 900, 46, nullptr, why()));
    EXPECT_TRUE(mentions(last_error(), kSize)) << last_error().message;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_copy_2d(instance_, other.data(), 900, operand.address,
                                                                1100, 900, 46, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_fill_2d(instance_, operand.address, 1100, 900, 46, 0, 1, why()));
    EXPECT_TRUE(same_bytes(pattern(kSize, 1), bytes_of(instance_, operand, kSize)));
    EXPECT_EQ(std::count(other.begin(), other.end(), 7), static_cast<std::ptrdiff_t>(other.size()));

    // What ends with the object is inside it: 45 rows of 1100 bytes and 521 more.
    EXPECT_OK(gpumem_copy_2d(instance_, other.data(), 521, operand.address, 1100, 521, 46, nullptr, why()));
  }
}

TEST_F(Conformance, uva_8_two_neighbours) {
  // Registrations that touch are two objects all the same.
  Pages pages(2 * page_size());
  const Memory first = register_memory(device_, pages.get(), page_size());
  const Memory second = register_memory(device_, pages.get() + page_size(), page_size());
  std::vector<uint8_t> bytes(page_size());
  EXPECT_STATUS(
      GPUMEM_ERROR_INVALID_ARGUMENT,
      gpumem_copy(instance_, bytes.data(), pages.get() + page_size() / 2, page_size(), nullptr, why()));
}

TEST_F(Conformance, uva_8_unreadable_stranger) {
  Pages no_access(2 * page_size(), PROT_NONE);
  Pages half(2 * page_size());
  ASSERT_EQ(mprotect(half.get() + page_size(), page_size(), PROT_NONE), 0);
  const Memory memory = alloc_device(device_, 2 * page_size());
  put_pattern(instance_, memory.device(), memory.size(), 1);
  const Stream stream = create_stream(device_);
  for (uint8_t* const stranger : {no_access.get(), half.get(), reinterpret_cast<uint8_t*>(uintptr_t{16})}) {
    for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                    copy_on(instance_, order, memory.device(), stranger, 2 * page_size(), nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                    copy_on(instance_, order, stranger, memory.device(), 2 * page_size(), nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                    fill_on(instance_, order, stranger, 2 * page_size(), 0, 1, why()));
    }
  }
  EXPECT_OK(gpumem_stream_query(stream, why()));
  EXPECT_TRUE(holds_pattern(instance_, memory.device(), memory.size(), 1));
}

TEST_F(Conformance, uva_8_destination_that_the_cpu_may_only_read) {
  Pages read_only(page_size(), PROT_READ);
  const Memory memory = alloc_device(device_, page_size());
  EXPECT_STATUS_IN(gpumem_copy(instance_, read_only.get(), memory.device(), page_size(), nullptr, why()),
                   GPUMEM_ERROR_NO_ACCESS, GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(read_only.get()[0], 0);
}

// ---- UVA-9 ----

TEST_F(Conformance, uva_9_addresses) {
  constexpr uint64_t kSize = 4000;
  const Operands operands(device_, second_device(), kSize);
  const Stream stream = create_stream(device_);
  for (const Operand& operand : operands.all()) {
    if (!operand.writable) continue;
    SCOPED_TRACE(operand.name);
    prepare(instance_, operand, kSize, 1);
    uint8_t* const base = operand.address;
    for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    copy_on(instance_, order, base, base, kSize, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    copy_on(instance_, order, base + 99, base, 100, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    copy_on(instance_, order, base, base + 99, 100, nullptr, why()));
    }
    EXPECT_TRUE(same_bytes(pattern(kSize, 1), bytes_of(instance_, operand, kSize)));
    EXPECT_OK(gpumem_copy(instance_, base + 100, base, 100, nullptr, why()));
    std::vector<uint8_t> expected = pattern(kSize, 1);
    std::memcpy(&expected[100], &expected[0], 100);
    EXPECT_TRUE(same_bytes(expected, bytes_of(instance_, operand, kSize)));
  }
}

TEST_F(Conformance, uva_9_two_addresses_of_one_memory) {
  constexpr uint64_t kSize = 4000;
  Pages pages(kSize);
  std::vector<Memory> memories;
  memories.push_back(alloc_pinned(device_, kSize));
  memories.push_back(alloc_pinned(device_, kSize, GPUMEM_MEMORY_WRITE_COMBINED));
  memories.push_back(register_memory(device_, pages.get(), kSize, GPUMEM_MEMORY_MAPPED));
  for (const Memory& memory : memories) {
    SCOPED_TRACE(memory.info().kind);
    fill_pattern(memory.host(), kSize, 1);
    uint8_t* const host = memory.host();
    uint8_t* const device = memory.device();
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_copy(instance_, device, host, kSize, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_copy(instance_, host, device + 50, 51, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_copy_2d(instance_, device + 31, 64, host, 64, 32, 10, nullptr, why()));
    EXPECT_TRUE(has_pattern(host, kSize, 1));
    EXPECT_OK(gpumem_copy(instance_, device + 50, host, 50, nullptr, why()));
    EXPECT_EQ(std::memcmp(host + 50, host, 50), 0);
  }
}

TEST_F(Conformance, uva_9_rectangles) {
  constexpr uint64_t kPitch = 64;
  constexpr uint64_t kHeight = 20;
  constexpr uint64_t kSize = 2 * kPitch * kHeight;
  const Operands operands(device_, second_device(), kSize);
  for (const Operand& operand : operands.all()) {
    if (!operand.writable) continue;
    SCOPED_TRACE(operand.name);
    prepare(instance_, operand, kSize, 1);
    uint8_t* const base = operand.address;
    const auto copy = [&](uint8_t* destination, uint64_t destination_pitch, uint64_t width) {
      return gpumem_copy_2d(instance_, destination, destination_pitch, base, kPitch, width, kHeight, nullptr,
                            why());
    };
    // Columns that touch in one byte, at the left, and at the right through the next row; the last row.
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(base, kPitch, 32));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(base + 31, kPitch, 32));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(base + 33, kPitch, 32));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(base + (kHeight - 1) * kPitch, kPitch, 32));
    // Rows of another pitch that meet a row of the source.
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(base + 33, 32, 32));
    EXPECT_TRUE(same_bytes(pattern(kSize, 1), bytes_of(instance_, operand, kSize)));

    // The left half of each row to the right half: the ranges overlap, the bytes do not.
    EXPECT_OK(copy(base + 32, kPitch, 32));
    std::vector<uint8_t> expected = pattern(kSize, 1);
    for (uint64_t row = 0; row < kHeight; ++row)
      std::memcpy(&expected[row * kPitch + 32], &expected[row * kPitch], 32);
    EXPECT_TRUE(same_bytes(expected, bytes_of(instance_, operand, kSize)));
  }
}

// ---- UVA-10 ----

TEST_F(Conformance, uva_10) {
  REQUIRE_FOREIGN();
  constexpr uint64_t kSize = 20'003;
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    SCOPED_TRACE(kind);
    const ForeignMemory memory(device_, kind, kSize);
    const gpumem_pointer_info info = pointer_info(instance_, memory.get());
    EXPECT_EQ(info.kind, GPUMEM_KIND_FOREIGN);

    put_pattern(instance_, memory.get(), kSize, 1);
    const Memory own = alloc_device(device_, kSize);
    const Stream stream = create_stream(device_);
    EXPECT_OK(gpumem_copy_async(stream, own.device(), memory.get(), kSize, nullptr, why()));
    EXPECT_OK(gpumem_fill_async(stream, memory.get(), kSize, 0x77, 1, why()));
    EXPECT_OK(gpumem_copy_2d_async(stream, memory.get(), 100, own.device(), 100, 50, 3, nullptr, why()));
    stream.synchronize();
    EXPECT_TRUE(holds_pattern(instance_, own.device(), kSize, 1));
    std::vector<uint8_t> bytes(250);
    EXPECT_OK(gpumem_copy(instance_, bytes.data(), memory.get(), 250, nullptr, why()));
    const std::vector<uint8_t> source = pattern(250, 1);
    for (size_t i = 0; i < bytes.size(); ++i)
      ASSERT_EQ(bytes[i], i % 100 < 50 ? source[i] : 0x77) << i;

    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, memory.get(), why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(instance_, memory.get(), why()));
    EXPECT_EQ(pointer_info(instance_, memory.get()).buffer_id, info.buffer_id);
  }
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_DEVICE).live_count, 0u);
}

TEST_F(Conformance, uva_10_answers_are_rechecked) {
  REQUIRE_FOREIGN();
  std::set<uint64_t> ids;
  for (int i = 0; i < 20; ++i) {
    ForeignMemory memory(device_, GPUMEM_KIND_DEVICE, 4096);
    uint8_t* const address = memory.get();
    const gpumem_pointer_info info = pointer_info(instance_, address);
    EXPECT_EQ(info.kind, GPUMEM_KIND_FOREIGN);
    EXPECT_TRUE(ids.insert(info.buffer_id).second) << "another memory, another id";
    memory.free();
    EXPECT_NE(pointer_info(instance_, address).kind, GPUMEM_KIND_FOREIGN);
  }
}

TEST_F(Conformance, uva_10_pageable_is_never_cached) {
  const auto map = [](void* at, int protection) {
    return mmap(at, page_size(), protection, MAP_PRIVATE | MAP_ANONYMOUS | (at == nullptr ? 0 : MAP_FIXED),
                -1, 0);
  };
  void* const page = map(nullptr, PROT_READ);
  ASSERT_NE(page, MAP_FAILED);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pointer_info(instance_, page).kind, GPUMEM_KIND_PAGEABLE);
    map(page, PROT_NONE);
    EXPECT_EQ(pointer_info(instance_, page).kind, GPUMEM_KIND_UNKNOWN);
    map(page, PROT_READ | PROT_WRITE);
  }
  EXPECT_EQ(pointer_info(instance_, page).kind, GPUMEM_KIND_PAGEABLE);
  {
    const Memory memory = register_memory(device_, page, 100);
    EXPECT_EQ(pointer_info(instance_, page).kind, GPUMEM_KIND_REGISTERED);
  }
  EXPECT_EQ(pointer_info(instance_, page).kind, GPUMEM_KIND_PAGEABLE);
#ifdef HAVE_CUDA_HEADERS
  if (on_cuda()) {
    const PrimaryContext context(0);
    ASSERT_EQ(raw().cuMemHostRegister(page, page_size(), 0), CUDA_SUCCESS);
    EXPECT_EQ(pointer_info(instance_, page).kind, GPUMEM_KIND_FOREIGN);
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(instance_, page, why()));
    ASSERT_EQ(raw().cuMemHostUnregister(page), CUDA_SUCCESS);
    EXPECT_EQ(pointer_info(instance_, page).kind, GPUMEM_KIND_PAGEABLE);
  }
#endif
  munmap(page, page_size());
}

// ---- UVA-11 ----

TEST_F(Conformance, uva_11_no_access) {
  if (capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY).value == GPUMEM_ANSWER_NO) {
    SKIP_RULE("without read-only registration every operand of these kinds of memory is accessible");
  }
  constexpr uint64_t kSize = 1000;
  Pages pages(kSize);
  fill_pattern(pages.get(), kSize, 1);
  const Memory memory =
      register_memory(device_, pages.get(), kSize, GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_MAPPED);
  const Memory source = alloc_device(device_, kSize);
  const Stream stream = create_stream(device_);
  for (uint8_t* const address : {memory.host(), memory.device()}) {
    for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS,
                    copy_on(instance_, order, address, source.device(), kSize, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS,
                    copy_2d_on(instance_, order, address, 100, source.device(), 100, 50, 10, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill_on(instance_, order, address, kSize, 0, 1, why()));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill_2d_on(instance_, order, address, 100, 50, 10, 0, 1, why()));
    }
  }
  EXPECT_OK(gpumem_stream_query(stream, why()));
  EXPECT_TRUE(has_pattern(pages.get(), kSize, 1));
}

TEST_F(Conformance, uva_11_memory_of_another_device) {
  const gpumem_device second = second_device();
  if (second == nullptr) SKIP_RULE("there is one device only");
  constexpr uint64_t kSize = 10'001;
  const Memory first = alloc_device(device_, kSize);
  const Memory other = alloc_device(second, kSize);
  const Memory host = alloc_pinned(device_, kSize);
  for (const gpumem_device device : {device_, second}) {
    const Stream stream = create_stream(device);
    EXPECT_OK(gpumem_fill_async(stream, first.device(), kSize, 0x21, 1, why()));
    EXPECT_OK(gpumem_copy_async(stream, other.device(), first.device(), kSize, nullptr, why()));
    EXPECT_OK(gpumem_fill_async(stream, other.device(), 1, 0x22, 1, why()));
    EXPECT_OK(gpumem_copy_async(stream, host.host(), other.device(), kSize, nullptr, why()));
    stream.synchronize();
    EXPECT_EQ(host.host()[0], 0x22);
    EXPECT_EQ(std::count(host.host() + 1, host.host() + kSize, 0x21), static_cast<std::ptrdiff_t>(kSize - 1));
  }
}

}  // namespace
}  // namespace conformance
