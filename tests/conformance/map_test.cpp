// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Host memory that devices use in place: the rules MAP-1 to MAP-6.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "operands.h"

namespace conformance {
namespace {

constexpr uint64_t kSize = 3 * 4096 + 8;

// Mapped memory of both kinds.
class Mapped {
 public:
  explicit Mapped(gpumem_device device) : pages_(kSize) {
    memories_.push_back(alloc_pinned(device, kSize));
    memories_.push_back(alloc_pinned(device, kSize, GPUMEM_MEMORY_WRITE_COMBINED));
    memories_.push_back(
        register_memory(device, pages_.get(), kSize, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE));
  }
  const std::vector<Memory>& all() const { return memories_; }

 private:
  Pages pages_;
  std::vector<Memory> memories_;
};

// ---- MAP-1 ----

TEST_F(Conformance, map_1) {
  const Mapped mapped(device_);
  const Memory other = alloc_device(device_, kSize);
  put_pattern(instance_, other.device(), kSize, 1);
  for (const Memory& memory : mapped.all()) {
    SCOPED_TRACE(memory.info().kind);
    ASSERT_NE(memory.device(), nullptr);
    const gpumem_pointer_info by_host = pointer_info(instance_, memory.host());
    const gpumem_pointer_info by_device = pointer_info(instance_, memory.device());
    EXPECT_TRUE(by_host.location == GPUMEM_LOCATION_HOST || by_host.location == GPUMEM_LOCATION_HOST_NUMA);
    EXPECT_EQ(by_device.location, by_host.location);

    std::memset(memory.host(), 0, kSize);
    EXPECT_OK(gpumem_fill(instance_, memory.device() + 1, kSize - 2, 0xC3, 1, why()));
    EXPECT_EQ(memory.host()[0], 0);
    EXPECT_EQ(std::count(memory.host() + 1, memory.host() + kSize - 1, 0xC3),
              static_cast<std::ptrdiff_t>(kSize - 2));
    EXPECT_EQ(memory.host()[kSize - 1], 0);

    EXPECT_OK(gpumem_copy(instance_, memory.device(), other.device(), kSize, nullptr, why()));
    EXPECT_TRUE(has_pattern(memory.host(), kSize, 1));
    EXPECT_EQ(pointer_info(instance_, memory.host()).location, by_host.location) << "nothing migrates";
  }
}

// ---- MAP-2 ----

TEST_F(Conformance, map_2) {
  const Mapped mapped(device_);
  const Memory device = alloc_device(device_, kSize);
  const Memory back = alloc_pinned(device_, kSize);
  const Stream stream = create_stream(device_);
  for (const Memory& memory : mapped.all()) {
    SCOPED_TRACE(memory.info().kind);
    for (uint32_t round = 1; round <= 32; ++round) {
      fill_pattern(memory.host(), kSize, round);
      EXPECT_OK(gpumem_copy_async(stream, device.device(), memory.device(), kSize, nullptr, why()));
      EXPECT_OK(gpumem_copy_async(stream, back.device(), device.device(), kSize, nullptr, why()));
      stream.synchronize();
      ASSERT_TRUE(has_pattern(back.host(), kSize, round));
    }
  }
}

// ---- MAP-3 ----

TEST_F(Conformance, map_3) {
  const Mapped mapped(device_);
  const Memory flag = alloc_pinned(device_, 4);
  auto* const word = reinterpret_cast<uint32_t*>(flag.host());
  *word = 0;
  const Stream stream = create_stream(device_);
  const bool by_value = capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE32).value != GPUMEM_ANSWER_NO;
  Gate gate;
  if (by_value) {
    EXPECT_OK(gpumem_stream_wait_value(stream, word, 1, 4, GPUMEM_WAIT_EQ, why()));
  } else {
    gate.hold(stream);
  }
  // The memories that the CPU touches are also used by the work that waits.
  for (const Memory& memory : mapped.all()) {
    EXPECT_OK(gpumem_fill_async(stream, memory.device(), kSize, 0x11, 1, why()));
  }
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(stream, why()));
  for (const Memory& memory : mapped.all()) {
    uint8_t* const bytes = memory.host();
    EXPECT_FALSE(raises_fault([bytes] { fill_pattern(bytes, kSize, 1); }));
    EXPECT_FALSE(read_faults(bytes + kSize - 1));
    EXPECT_TRUE(has_pattern(bytes, kSize, 1));
  }
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(stream, why()));
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  gate.open();
  stream.synchronize();
  for (const Memory& memory : mapped.all()) {
    EXPECT_EQ(std::count(memory.host(), memory.host() + kSize, 0x11), static_cast<std::ptrdiff_t>(kSize));
  }
}

// ---- MAP-4 ----

constexpr int kIncrements = 100'000;

void increment(gpumem_host_kernel kernel, void* address) {
  void* view = nullptr;
  if (gpumem_host_kernel_view(kernel, address, 4, GPUMEM_ACCESS_READWRITE, &view, nullptr) !=
      GPUMEM_SUCCESS) {
    return;
  }
  for (int i = 0; i < kIncrements; ++i)
    __atomic_fetch_add(static_cast<uint32_t*>(view), 1, __ATOMIC_RELAXED);
}

TEST_F(Conformance, map_4) {
  const gpumem_capability_info atomics = capability(device_, GPUMEM_CAPABILITY_HOST_ATOMICS);
  EXPECT_EQ(atomics.type, GPUMEM_ANSWER_TYPE_TRI);
  EXPECT_NE(atomics.reason[0], '\0');
  if (atomics.value == GPUMEM_ANSWER_NO) {
    EXPECT_EQ(atomics.status, GPUMEM_ERROR_UNSUPPORTED);
    return;
  }
  EXPECT_EQ(atomics.status, GPUMEM_SUCCESS);
  if (!on_host()) return;  // without a kernel of the caller there is nothing to race with

  const Memory memory = alloc_pinned(device_, 4);
  auto* const counter = reinterpret_cast<uint32_t*>(memory.host());
  *counter = 0;
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_host_launch(stream, increment, memory.device(), why()));
  for (int i = 0; i < kIncrements; ++i)
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
  stream.synchronize();
  EXPECT_EQ(*counter, 2u * kIncrements);
}

// ---- MAP-5 ----

TEST_F(Conformance, map_5) {
  const Mapped mapped(device_);
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    const gpumem_device device = instance_.device(ordinal);
    for (const Memory& memory : mapped.all()) {
      SCOPED_TRACE(memory.info().kind);
      for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, kSize - 1}) {
        void* pointer = nullptr;
        EXPECT_OK(gpumem_pointer_get_device_pointer(device, memory.host() + offset, &pointer, why()));
        EXPECT_EQ(pointer, memory.device() + offset);
        EXPECT_OK(gpumem_pointer_get_device_pointer(device, memory.device() + offset, &pointer, why()));
        EXPECT_EQ(pointer, memory.device() + offset) << "a device pointer is returned unchanged";
      }
    }
  }
  const Memory memory = alloc_device(device_, kSize);
  void* pointer = nullptr;
  EXPECT_OK(gpumem_pointer_get_device_pointer(device_, memory.device() + 5, &pointer, why()));
  EXPECT_EQ(pointer, memory.device() + 5);
}

TEST_F(Conformance, map_5_one_past_the_end) {
  const Mapped mapped(device_);
  for (const Memory& memory : mapped.all()) {
    SCOPED_TRACE(memory.info().kind);
    uint8_t* const end = memory.host() + kSize;
    // The rest of the last page is no part of the memory: to the CPU it may be ordinary memory (MAP-6).
    const gpumem_pointer_info info = pointer_info(instance_, end);
    EXPECT_NE(info.buffer_id, memory.info().buffer_id);
    void* pointer = this;
    EXPECT_STATUS(info.kind == GPUMEM_KIND_PAGEABLE ? GPUMEM_ERROR_UNSUPPORTED : GPUMEM_ERROR_NOT_FOUND,
                  gpumem_pointer_get_device_pointer(device_, end, &pointer, why()));
    EXPECT_EQ(pointer, this);
  }
  const Memory memory = alloc_device(device_, kSize);
  void* pointer = this;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                gpumem_pointer_get_device_pointer(device_, memory.device() + kSize, &pointer, why()));
  EXPECT_NE(std::strstr(last_error().message, "has no memory of this instance"), nullptr)
      << last_error().message;
  EXPECT_EQ(pointer, this);
}

// ---- MAP-6 ----

TEST_F(Conformance, map_6) {
  std::vector<uint8_t> heap(kSize);
  const gpumem_capability_info pageable = capability(device_, GPUMEM_CAPABILITY_PAGEABLE);
  void* pointer = this;
  if (pageable.value == GPUMEM_ANSWER_NO) {
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED,
                  gpumem_pointer_get_device_pointer(device_, heap.data(), &pointer, why()));
    EXPECT_NE(std::strstr(last_error().message, "register it with gpumem_memory_register()"), nullptr)
        << last_error().message;
    EXPECT_EQ(pointer, this);
    const Instance other = open_instance();
    const Memory theirs = alloc_pinned(other.device(), kSize);
    EXPECT_STATUS_IN(gpumem_pointer_get_device_pointer(device_, theirs.host(), &pointer, why()),
                     GPUMEM_SUCCESS, GPUMEM_ERROR_UNSUPPORTED);
    if (on_host()) {
      EXPECT_NE(std::strstr(last_error().message, "memory of another instance"), nullptr)
          << last_error().message;
    }
    pointer = this;
    EXPECT_EQ(pageable.status, GPUMEM_ERROR_UNSUPPORTED);
    EXPECT_EQ(pointer_info(instance_, heap.data()).device_pointer, nullptr);
  } else {
    EXPECT_OK(gpumem_pointer_get_device_pointer(device_, heap.data(), &pointer, why()));
    EXPECT_EQ(pointer, heap.data());
    EXPECT_EQ(pointer_info(instance_, heap.data()).device_pointer, heap.data());
  }
}

TEST_F(Conformance, map_6_pageable_by_option) {
  if (!on_host()) SKIP_RULE("only the host backend can choose whether devices reach pageable memory");
  const Instance instance = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.pageable = GPUMEM_TOGGLE_ON; });
  EXPECT_EQ(capability(instance.device(), GPUMEM_CAPABILITY_PAGEABLE).value, uint64_t{GPUMEM_ANSWER_YES});
  std::vector<uint8_t> heap(kSize);
  void* pointer = nullptr;
  EXPECT_OK(gpumem_pointer_get_device_pointer(instance.device(), heap.data() + 3, &pointer, why()));
  EXPECT_EQ(pointer, heap.data() + 3);
  EXPECT_EQ(pointer_info(instance, heap.data()).device_pointer, heap.data());
}

TEST_F(Conformance, map_6_copies) {
  constexpr uint64_t kLarge = 5'000'003;  // more than fits into any staging buffer at once
  const Memory device = alloc_device(device_, kLarge);
  const Stream stream = create_stream(device_);
  std::vector<uint8_t> heap(kLarge);
  uint32_t seed = 0;
  for (const gpumem_stream order : {gpumem_stream{nullptr}, stream.get()}) {
    fill_pattern(heap.data(), kLarge, ++seed);
    EXPECT_OK(copy_on(instance_, order, device.device(), heap.data(), kLarge, nullptr, why()));
    stream.synchronize();
    std::fill(heap.begin(), heap.end(), uint8_t{0});
    EXPECT_OK(copy_on(instance_, order, heap.data(), device.device(), kLarge, nullptr, why()));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(heap.data(), kLarge, seed));
  }

  char on_stack[100];
  fill_pattern(on_stack, sizeof on_stack, 9);
  EXPECT_OK(gpumem_copy(instance_, device.device(), on_stack, sizeof on_stack, nullptr, why()));
  EXPECT_TRUE(holds_pattern(instance_, device.device(), sizeof on_stack, 9));

  const int file = memfd_create("map_6", MFD_CLOEXEC);
  ASSERT_EQ(write(file, heap.data(), kLarge), static_cast<ssize_t>(kLarge));
  void* const read_only = mmap(nullptr, kLarge, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  ASSERT_NE(read_only, MAP_FAILED);
  EXPECT_OK(gpumem_fill(instance_, device.device(), kLarge, 0, 1, why()));
  EXPECT_OK(gpumem_copy(instance_, device.device(), read_only, kLarge, nullptr, why()));
  EXPECT_TRUE(holds_pattern(instance_, device.device(), kLarge, seed));
  munmap(read_only, kLarge);
}

}  // namespace
}  // namespace conformance
