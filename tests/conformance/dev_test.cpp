// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Device memory and peer access: the rules DEV-1 to DEV-8.
#include <array>
#include <atomic>

#include "cuda_raw.h"
#include "operands.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
// Unit in which CUDA devices take memory, and a multiple of the host backend's.
constexpr uint64_t kGranule = 2 * kMiB;

struct MemoryAvailable {
  uint64_t free = 0;
  uint64_t total = 0;
};

MemoryAvailable available(gpumem_device device) {
  MemoryAvailable available;
  EXPECT_OK(gpumem_device_get_memory(device, &available.free, &available.total, why()));
  return available;
}

uint32_t can_access(gpumem_device device, gpumem_device peer) {
  uint32_t possible = 2;
  EXPECT_OK(gpumem_device_can_access_peer(device, peer, &possible, why()));
  return possible;
}

bool reachable_from(gpumem_instance instance, const Memory& memory, gpumem_device device) {
  return device_access(instance, memory.device(), ordinal_of(device)) != GPUMEM_ACCESS_NONE;
}

// A kernel stand-in of the host backend that reads and increments one byte.
struct Touch {
  uint8_t* address;
  uint8_t seen = 0;
  std::atomic<bool> finished{false};
};

void touch(gpumem_host_kernel kernel, void* user_data) {
  auto& argument = *static_cast<Touch*>(user_data);
  void* view = nullptr;
  if (gpumem_host_kernel_view(kernel, argument.address, 1, GPUMEM_ACCESS_READWRITE, &view, nullptr) ==
      GPUMEM_SUCCESS) {
    argument.seen = (*static_cast<uint8_t*>(view))++;
  }
  argument.finished = true;
  argument.finished.notify_all();
}

// ---- DEV-1 ----

TEST_F(Conformance, dev_1) {
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    SCOPED_TRACE(ordinal);
    const gpumem_device device = instance_.device(ordinal);
    constexpr uint64_t kSize = 100'003;
    const Memory memory = alloc_device(device, kSize);
    const gpumem_memory_info info = memory.info();
    EXPECT_EQ(info.kind, GPUMEM_KIND_DEVICE);
    EXPECT_EQ(info.device, device);
    EXPECT_EQ(info.device_ordinal, ordinal);
    EXPECT_EQ(info.size, kSize);
    EXPECT_EQ(info.host_pointer, nullptr);
    ASSERT_NE(info.device_pointer, nullptr);

    const Memory result = alloc_pinned(device, kSize);
    const Stream writer = create_stream(device);
    const Stream reader = create_stream(device);
    EXPECT_OK(gpumem_fill_async(writer, memory.device(), kSize, 0x5A, 1, why()));
    writer.synchronize();
    EXPECT_OK(gpumem_copy_async(reader, result.host(), memory.device(), kSize, nullptr, why()));
    reader.synchronize();
    EXPECT_EQ(std::count(result.host(), result.host() + kSize, 0x5A), static_cast<std::ptrdiff_t>(kSize));
  }
}

TEST_F(Conformance, dev_1_no_such_device) {
  gpumem_device device = device_;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_device_get(instance_, instance_.device_count(), &device, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_device_get(instance_, UINT32_MAX, &device, why()));
  EXPECT_EQ(device, device_);
  void* pointer = &device;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_malloc(nullptr, GPUMEM_KIND_DEVICE, 1, &pointer, why()));
  EXPECT_EQ(pointer, &device);
}

TEST_F(Conformance, dev_1_out_of_memory) {
  const uint64_t chunk = available(device_).total / 8 / kGranule * kGranule;
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, chunk);
  gpumem_status status = GPUMEM_SUCCESS;
  std::vector<Memory> memories;
  while (status == GPUMEM_SUCCESS && memories.size() <= 8) {
    gpumem_memory memory = nullptr;
    status = gpumem_memory_create(device_, &desc, &memory, why());
    if (status == GPUMEM_SUCCESS) memories.emplace_back(memory);
  }
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, status);
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_DEVICE).live_count, memories.size());
  memories.clear();
  alloc_device(device_, chunk);
}

// ---- DEV-2 ----

TEST_F(Conformance, dev_2) {
  if (capability(device_, GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS).value != GPUMEM_ANSWER_NO) {
    SKIP_RULE("the CPU may touch device memory on this machine");
  }
  constexpr uint64_t kSize = 3 * kMiB + 5;
  const Memory memory = alloc_device(device_, kSize);
  put_pattern(instance_, memory.device(), kSize, 1);
  for (const uint64_t offset : {uint64_t{0}, kSize / 2, kSize - 1}) {
    EXPECT_TRUE(read_faults(memory.device() + offset)) << offset;
    EXPECT_TRUE(write_faults(memory.device() + offset)) << offset;
  }
  EXPECT_TRUE(holds_pattern(instance_, memory.device(), kSize, 1));
}

// ---- DEV-3 ----

TEST_F(Conformance, dev_3) {
  constexpr uint64_t kSize = 64 * kKiB;
  Memory memory = alloc_device(device_, kSize);
  uint8_t* const address = memory.device();
  const uint64_t id = memory.info().buffer_id;
  memory.destroy();

  for (const uint8_t* inside : {address, address + kSize - 1}) {
    const gpumem_pointer_info info = pointer_info(instance_, inside);
    EXPECT_EQ(info.kind, GPUMEM_KIND_UNKNOWN);
    EXPECT_EQ(info.buffer_id, 0u);
    EXPECT_EQ(info.memory, nullptr);
  }
  std::array<uint8_t, 16> bytes{};
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                gpumem_copy(instance_, address, bytes.data(), bytes.size(), nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                gpumem_copy(instance_, bytes.data(), address, bytes.size(), nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_fill(instance_, address, bytes.size(), 1, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, address, why()));

  // The host backend keeps freed addresses for a while; a driver likes to use them at once.
  bool reused = false;
  for (int i = 0; i < 100 && !reused; ++i) {
    const Memory later = alloc_device(device_, kSize);
    EXPECT_NE(later.info().buffer_id, id);
    reused = later.device() == address;
    if (reused) {
      EXPECT_EQ(pointer_info(instance_, address).buffer_id, later.info().buffer_id);
      put_pattern(instance_, address, kSize, 2);
      EXPECT_TRUE(holds_pattern(instance_, address, kSize, 2));
    }
  }
}

// ---- DEV-4 ----

TEST_F(Conformance, dev_4) {
  constexpr uint64_t kSize = 8 * kGranule;
  const MemoryAvailable before = available(device_);
  EXPECT_LE(before.free, before.total);
  EXPECT_EQ(capability(device_, GPUMEM_CAPABILITY_DEVICE_BYTES).value, before.total);
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get_info(device_, &info, why()));
  EXPECT_EQ(info.total_bytes, before.total);
  {
    const Memory memory = alloc_device(device_, kSize);
    const MemoryAvailable now = available(device_);
    EXPECT_LE(now.free + kSize - kGranule, before.free);
    EXPECT_EQ(now.total, before.total);
  }
  EXPECT_GE(available(device_).free + kGranule, before.free);

  uint64_t only = 0;
  EXPECT_OK(gpumem_device_get_memory(device_, &only, nullptr, why()));
  EXPECT_LE(only, before.total);
  EXPECT_OK(gpumem_device_get_memory(device_, nullptr, &only, why()));
  EXPECT_EQ(only, before.total);
}

// ---- DEV-5 ----

TEST_F(Conformance, dev_5) {
  constexpr uint64_t kSize = 64 * kKiB;
  const Memory memory = alloc_device(device_, kSize);
  put_pattern(instance_, memory.device(), kSize, 1);
  const Stream stream = create_stream(device_);
  const Counters before = counters(instance_);

  gpumem_memory none = nullptr;
  const uint64_t total = available(device_).total;
  for (const uint64_t size : {total + kGranule, total * 64}) {
    const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, size);
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, gpumem_memory_create(device_, &desc, &none, why()));
    void* pointer = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                  gpumem_malloc(device_, GPUMEM_KIND_DEVICE, size, &pointer, why()));
    EXPECT_EQ(pointer, nullptr);
  }
  EXPECT_EQ(none, nullptr);
  EXPECT_TRUE(counters(instance_) == before);

  EXPECT_TRUE(holds_pattern(instance_, memory.device(), kSize, 1));
  const Memory later = alloc_device(device_, kSize);
  EXPECT_OK(gpumem_copy_async(stream, later.device(), memory.device(), kSize, nullptr, why()));
  stream.synchronize();
  EXPECT_TRUE(holds_pattern(instance_, later.device(), kSize, 1));
}

// ---- DEV-6 ----

TEST_F(Conformance, dev_6) {
  constexpr uint64_t kSize = 5 * kMiB + 1;
  const Operands operands(device_, second_device(), kSize);
  for (const Operand& operand : operands.all()) {
    if (operand.kind == GPUMEM_KIND_PAGEABLE) continue;
    SCOPED_TRACE(operand.name);
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kSize / 2, kSize - 1}) {
      const gpumem_pointer_info info = pointer_info(instance_, operand.address + offset);
      EXPECT_EQ(info.base, operand.address) << offset;
      EXPECT_GE(info.size, kSize) << offset;
      if (operand.kind != GPUMEM_KIND_FOREIGN) {
        EXPECT_EQ(info.size, kSize) << offset;
      }
    }
  }
}

TEST_F(Conformance, dev_6_nothing_there) {
  Memory memory = alloc_device(device_, kGranule);
  uint8_t* const inside = memory.device() + kGranule / 2;
  memory.destroy();
  const gpumem_pointer_info info = pointer_info(instance_, inside);
  EXPECT_EQ(info.base, nullptr);
  EXPECT_EQ(info.size, 0u);
  void* device_pointer = this;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                gpumem_pointer_get_device_pointer(device_, inside, &device_pointer, why()));
  EXPECT_EQ(device_pointer, this);
}

// ---- DEV-7 ----

TEST_F(Conformance, dev_7) {
  const gpumem_device peer = second_device();
  if (peer == nullptr) SKIP_RULE("there is one device only");
  const gpumem_capability_info link = capability(device_, GPUMEM_CAPABILITY_PEER_ACCESS, peer);
  EXPECT_EQ(can_access(device_, peer), link.value == GPUMEM_ANSWER_NO ? 0u : 1u);
  if (link.value == GPUMEM_ANSWER_NO) {
    EXPECT_STATUS(link.status, gpumem_device_enable_peer_access(device_, peer, why()));
    return;
  }

  const Memory past = alloc_device(peer, kGranule);
  const Memory own = alloc_device(device_, kGranule);
  uint8_t* const address = past.device();
  EXPECT_FALSE(reachable_from(instance_, past, device_));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_device_disable_peer_access(device_, peer, why()));

  EXPECT_OK(gpumem_device_enable_peer_access(device_, peer, why()));
  EXPECT_OK(gpumem_device_enable_peer_access(device_, peer, why()));
  const Memory future = alloc_device(peer, kGranule);
  EXPECT_TRUE(reachable_from(instance_, past, device_));
  EXPECT_TRUE(reachable_from(instance_, future, device_));
  EXPECT_FALSE(reachable_from(instance_, own, peer)) << "peer access is one-way";
  EXPECT_EQ(past.device(), address);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_device_disable_peer_access(peer, device_, why()));

  EXPECT_OK(gpumem_device_disable_peer_access(device_, peer, why()));
  EXPECT_TRUE(reachable_from(instance_, past, device_)) << "one of two enables is left";
  EXPECT_OK(gpumem_device_disable_peer_access(device_, peer, why()));
  EXPECT_FALSE(reachable_from(instance_, past, device_));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_device_disable_peer_access(device_, peer, why()));
}

TEST_F(Conformance, dev_7_with_itself) {
  uint32_t possible = 7;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_device_can_access_peer(device_, device_, &possible, why()));
  EXPECT_EQ(possible, 7u);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_device_enable_peer_access(device_, device_, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_device_disable_peer_access(device_, device_, why()));
}

TEST_F(Conformance, dev_7_with_another_instance) {
  const Instance other = open_instance();
  uint32_t possible = 7;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_device_can_access_peer(device_, other.device(), &possible, why()));
  EXPECT_EQ(possible, 7u);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_device_enable_peer_access(device_, other.device(), why()));
}

TEST_F(Conformance, dev_7_without_link) {
  if (!on_host()) SKIP_RULE("links can be taken away on the host backend only");
  const Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.peers = "1>0"; });
  const gpumem_device device = instance.device(0);
  const gpumem_device peer = instance.device(1);
  EXPECT_EQ(can_access(device, peer), 0u);
  EXPECT_EQ(can_access(peer, device), 1u);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_device_enable_peer_access(device, peer, why()));
  const gpumem_capability_info link = capability(device, GPUMEM_CAPABILITY_PEER_ACCESS, peer);
  EXPECT_EQ(link.value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(link.status, GPUMEM_ERROR_UNSUPPORTED);
  const Memory memory = alloc_device(peer, kGranule);
  EXPECT_FALSE(reachable_from(instance, memory, device));
}

TEST_F(Conformance, dev_7_kernel) {
  if (!on_host()) SKIP_RULE("kernels are made by the caller on cuda; gpumem has none to test with");
  const Instance instance = open_instance();
  const gpumem_device device = instance.device(0);
  const gpumem_device peer = instance.device(1);
  const Memory past = alloc_device(peer, 16);
  EXPECT_OK(gpumem_device_enable_peer_access(device, peer, why()));
  const Memory future = alloc_device(peer, 16);
  const Stream stream = create_stream(device);
  for (const Memory* memory : {&past, &future}) {
    EXPECT_OK(gpumem_fill(instance, memory->device(), 16, 40, 1, why()));
    Touch argument{memory->device() + 3};
    EXPECT_OK(gpumem_host_launch(stream, touch, &argument, why()));
    stream.synchronize();
    EXPECT_EQ(argument.seen, 40);
    uint8_t byte = 0;
    EXPECT_OK(gpumem_copy(instance, &byte, memory->device() + 3, 1, nullptr, why()));
    EXPECT_EQ(byte, 41);
  }
  EXPECT_OK(gpumem_device_disable_peer_access(device, peer, why()));

  Touch argument{past.device()};
  EXPECT_OK(gpumem_host_launch(stream, touch, &argument, why()));
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_EQ(argument.seen, 0);
}

TEST_F(Conformance, dev_7_left_on_if_other_code_had_enabled_it) {
  REQUIRE_FOREIGN();
  const gpumem_device peer = second_device();
  if (peer == nullptr) SKIP_RULE("there is one device only");
  if (can_access(device_, peer) == 0) SKIP_RULE("there is no link between the first two devices");
  const Memory memory = alloc_device(peer, 16);
  if (on_host()) {
    EXPECT_OK(gpumem_host_foreign_peer_access(device_, peer, 1, why()));
    EXPECT_OK(gpumem_device_enable_peer_access(device_, peer, why()));
    EXPECT_OK(gpumem_device_disable_peer_access(device_, peer, why()));
    const Stream stream = create_stream(device_);
    EXPECT_OK(gpumem_fill(instance_, memory.device(), 16, 9, 1, why()));
    Touch argument{memory.device()};
    EXPECT_OK(gpumem_host_launch(stream, touch, &argument, why()));
    stream.synchronize();
    EXPECT_EQ(argument.seen, 9);
    EXPECT_OK(gpumem_host_foreign_peer_access(device_, peer, 0, why()));
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  const PrimaryContext peer_context(ordinal_of(peer));
  const PrimaryContext context(ordinal_of(device_));
  ASSERT_EQ(raw().cuCtxEnablePeerAccess(peer_context.get(), 0), CUDA_SUCCESS);
  EXPECT_OK(gpumem_device_enable_peer_access(device_, peer, why()));
  EXPECT_OK(gpumem_device_disable_peer_access(device_, peer, why()));
  EXPECT_EQ(raw().cuCtxEnablePeerAccess(peer_context.get(), 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(raw().cuCtxDisablePeerAccess(peer_context.get()), CUDA_SUCCESS);
#endif
}

// ---- DEV-8 ----

void copies_between_all_devices(const Instance& instance) {
  constexpr uint64_t kSize = 300'001;
  constexpr uint64_t kPitch = 1000;
  for (uint32_t from = 0; from < instance.device_count(); ++from) {
    for (uint32_t to = 0; to < instance.device_count(); ++to) {
      SCOPED_TRACE(testing::Message() << from << " to " << to);
      const gpumem_device source_device = instance.device(from);
      const gpumem_device destination_device = instance.device(to);
      const Memory source = alloc_device(source_device, kSize);
      const Memory destination = alloc_device(destination_device, kSize);

      put_pattern(instance, source.device(), kSize, 1);
      EXPECT_OK(gpumem_copy(instance, destination.device(), source.device(), kSize, nullptr, why()));
      EXPECT_TRUE(holds_pattern(instance, destination.device(), kSize, 1));

      uint32_t seed = 2;
      for (const gpumem_device device : {source_device, destination_device}) {
        const Stream stream = create_stream(device);
        put_pattern(instance, source.device(), kSize, seed);
        EXPECT_OK(gpumem_copy_async(stream, destination.device(), source.device(), kSize, nullptr, why()));
        stream.synchronize();
        EXPECT_TRUE(holds_pattern(instance, destination.device(), kSize, seed++));
      }

      EXPECT_OK(gpumem_fill(instance, destination.device(), kSize, 0, 1, why()));
      EXPECT_OK(gpumem_copy_2d(instance, destination.device(), kPitch, source.device(), kPitch, kPitch,
                               kSize / kPitch, nullptr, why()));
      EXPECT_TRUE(holds_pattern(instance, destination.device(), kSize / kPitch * kPitch, seed - 1));
    }
  }
}

TEST_F(Conformance, dev_8) {
  if (second_device() == nullptr) SKIP_RULE("there is one device only");
  copies_between_all_devices(instance_);
}

TEST_F(Conformance, dev_8_without_link) {
  if (!on_host()) SKIP_RULE("links can be taken away on the host backend only");
  copies_between_all_devices(
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.peers = "none"; }));
}

}  // namespace
}  // namespace conformance
