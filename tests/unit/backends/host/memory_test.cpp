// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory of each kind in the host backend: what is granted, where it lies, and what is left behind.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "backends/host/backend.h"
#include "backends/host/device.h"
#include "base/arithmetic.h"
#include "hole.h"
#include "host_support.h"
#include "platform/numa.h"
#include "process_support.h"

namespace gpumem::test {
namespace {

const uint64_t kPage = platform::page_size();

class HostMemoryTest : public Host {
 protected:
  void SetUp() override { open(); }

  void* device_pointer(const MemoryPointer& memory) { return memory->facts().device_pointer; }
  unsigned char* host_bytes(const MemoryPointer& memory) {
    return static_cast<unsigned char*>(memory->facts().host_pointer);
  }
};

// Ordinary memory of the test.
class Buffer {
 public:
  explicit Buffer(uint64_t pages, int protection = PROT_READ | PROT_WRITE)
      : size_(pages * kPage), address_(test::map_below_gap(size_, protection)) {}
  ~Buffer() { munmap(address_, size_); }
  unsigned char* at(uint64_t offset) const { return static_cast<unsigned char*>(address_) + offset; }

 private:
  uint64_t size_;
  void* address_;
};

// ---- device memory ----

TEST_F(HostMemoryTest, DeviceMemoryIsChargedInGranules) {
  const uint64_t before = free_bytes();
  const auto memory = make_device(64 * kKiB + 1);
  EXPECT_EQ(memory->facts().granted_size, 128 * kKiB);
  EXPECT_EQ(memory->facts().granted, 0U);
  EXPECT_EQ(memory->facts().host_pointer, nullptr);
  EXPECT_EQ(memory->facts().numa_node, -1);
  EXPECT_EQ(free_bytes(), before - 128 * kKiB);
  EXPECT_EQ(dev().memory_available()->total_bytes, 16 * kMiB);
  EXPECT_OK(memory->release());
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(HostMemoryTest, DeviceMemoryTooLargeForItsDevice) {
  const auto memory = make_device(10 * kMiB);
  const auto refused = create_memory(dev(), device_request(8 * kMiB));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
  EXPECT_NE(std::strstr(refused.error().message, "8388608"), nullptr) << refused.error().message;
  EXPECT_EQ(status_of(create_memory(dev(), device_request(INT64_MAX))), GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
  EXPECT_OK(make_device(8 * kMiB, 1)->release());  // the other device has its own
  EXPECT_OK(make_device(6 * kMiB)->release());
  EXPECT_OK(memory->release());
}

TEST_F(HostMemoryTest, StrictDeviceMemoryFaultsForTheCpu) {
  const auto memory = make_device(kPage);
  EXPECT_TRUE(faults(device_pointer(memory), false));
  EXPECT_TRUE(faults(device_pointer(memory), true));
  const auto bytes = pattern(kPage);
  write(device(memory), bytes);
  EXPECT_EQ(read(device(memory), kPage), bytes);
  EXPECT_TRUE(has_flag(device_pointer(memory), "dc"));
  EXPECT_OK(memory->release());
}

TEST_F(HostMemoryTest, DeviceMemoryIsVisibleWhenNotStrict) {
  options_.strict = GPUMEM_TOGGLE_OFF;
  open();
  const auto memory = make_device(kPage);
  const auto bytes = pattern(kPage);
  write(device(memory), bytes);
  EXPECT_EQ(std::memcmp(device_pointer(memory), bytes.data(), kPage), 0);
  EXPECT_TRUE(has_flag(device_pointer(memory), "dc"));
  void* const address = device_pointer(memory);
  EXPECT_OK(memory->release());
  EXPECT_TRUE(faults(address, false));
}

TEST_F(HostMemoryTest, FreshMemoryHasThePattern) {
  const std::vector<unsigned char> fresh(3 * kPage, 0xA5);
  const auto memory = make_device(3 * kPage);
  EXPECT_EQ(read(device(memory), 3 * kPage), fresh);
  const auto other = make_pinned(3 * kPage);
  EXPECT_EQ(std::memcmp(host_bytes(other), fresh.data(), fresh.size()), 0);
  EXPECT_OK(memory->release());
  EXPECT_OK(other->release());
}

TEST_F(HostMemoryTest, AlignmentIsMet) {
  for (const uint64_t alignment : {uint64_t{256}, kPage, 4 * kMiB, 1024 * kMiB}) {
    const auto memory = make(device_request(1, alignment));
    EXPECT_EQ(address_of(device_pointer(memory)) % alignment, 0U);
    auto request = pinned_request(1, GPUMEM_MEMORY_WRITE_COMBINED);
    request.alignment = alignment;
    const auto other = make(request);
    EXPECT_EQ(address_of(host_bytes(other)) % alignment, 0U);
    EXPECT_EQ(address_of(device_pointer(other)) % alignment, 0U);
    EXPECT_OK(memory->release());
    EXPECT_OK(other->release());
  }
  EXPECT_EQ(status_of(create_memory(dev(), device_request(1, uint64_t{1} << 62))), GPUMEM_ERROR_UNSUPPORTED);
}

TEST_F(HostMemoryTest, FreedAddressesStayInaccessibleForAWhile) {
  options_.quarantine = 3;
  open();
  std::vector<void*> freed;
  for (int round = 0; round < 3; ++round) {
    const auto memory = make_pinned(5 * kPage);
    freed.push_back(host_bytes(memory));
    EXPECT_OK(memory->release());
  }
  EXPECT_EQ(std::set<void*>(freed.begin(), freed.end()).size(), 3U);
  for (void* const address : freed) {
    EXPECT_TRUE(faults(address, false));
    EXPECT_NE(mapping_flags(address), "") << "not reserved any more";
  }
}

// ---- pinned memory ----

TEST_F(HostMemoryTest, PinnedMemoryIsPortableMappedAndLocked) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  const auto memory = make_pinned(kPage + 1);
  const auto& facts = memory->facts();
  EXPECT_EQ(facts.granted, GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PAGE_LOCKED);
  EXPECT_EQ(facts.granted_size, 2 * kPage);
  EXPECT_EQ(facts.device_pointer, facts.host_pointer);
  EXPECT_EQ(facts.numa_node, -1);
  EXPECT_FALSE(faults(facts.host_pointer, true));
  EXPECT_TRUE(has_flag(facts.host_pointer, "dc"));
  EXPECT_GE(locked_bytes(), 2 * kPage);
  EXPECT_EQ(free_bytes(), 16 * kMiB) << "pinned memory is no device memory";
  EXPECT_OK(memory->release());
  EXPECT_EQ(locked_bytes(), 0U);
}

TEST_F(HostMemoryTest, WriteCombinedMemoryHasItsOwnDeviceAddress) {
  const auto memory = make_pinned(kPage, GPUMEM_MEMORY_WRITE_COMBINED);
  EXPECT_TRUE((memory->facts().granted & GPUMEM_MEMORY_WRITE_COMBINED) != 0);
  EXPECT_NE(device_pointer(memory), static_cast<void*>(host_bytes(memory)));
  EXPECT_TRUE(faults(device_pointer(memory), false));
  EXPECT_FALSE(faults(host_bytes(memory), false));
  EXPECT_OK(memory->release());

  auto request = pinned_request(kPage);
  request.prefer = GPUMEM_MEMORY_WRITE_COMBINED | GPUMEM_MEMORY_PAGE_LOCKED;
  const auto preferred = make(request);
  EXPECT_TRUE((preferred->facts().granted & GPUMEM_MEMORY_WRITE_COMBINED) != 0);
  EXPECT_OK(preferred->release());
}

TEST_F(HostMemoryTest, CpuAndDeviceSeeThePinnedBytes) {
  const auto memory = make_pinned(4 * kPage);
  const auto bytes = pattern(4 * kPage);
  std::copy(bytes.begin(), bytes.end(), host_bytes(memory));
  EXPECT_EQ(read(pinned(memory), 4 * kPage), bytes);
  const auto others = pattern(100, 9);
  write(pinned(memory, 500), others);
  EXPECT_EQ(std::memcmp(host_bytes(memory) + 500, others.data(), 100), 0);
  EXPECT_EQ(host_bytes(memory)[499], bytes[499]);
  EXPECT_EQ(host_bytes(memory)[600], bytes[600]);
  EXPECT_OK(memory->release());
}

TEST_F(HostMemoryTest, MorePinnedMemoryThanTheSystemHas) {
  for (const uint64_t size : {uint64_t{1} << 50, uint64_t{INT64_MAX}}) {
    const auto refused = create_memory(dev(), pinned_request(size));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  }
}

class HostLockTest : public HostMemoryTest, public testing::WithParamInterface<Sort> {
 protected:
  Request request(gpumem_memory_flags require) {
    return GetParam() == Sort::kPinned ? pinned_request(8 * kPage, require)
                                       : register_request(buffer_.at(0), 8 * kPage, require);
  }
  void with_mode(int32_t mode) {
    options_.lock_mode = mode;
    options_.lock_piece = 2 * kPage;
    open();
  }
  Buffer buffer_{8};
};

TEST_P(HostLockTest, TryGoesOnWithoutTheLock) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  with_mode(GPUMEM_HOST_LOCK_TRY);
  const LockLimit limit(3 * kPage);  // the second piece does not fit
  const auto memory = make(request(0));
  EXPECT_EQ(memory->facts().granted & GPUMEM_MEMORY_PAGE_LOCKED, 0U);
  EXPECT_EQ(locked_bytes(), 0U);
  EXPECT_OK(memory->release());
}

TEST_P(HostLockTest, RequireFailsAtTheLimit) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  with_mode(GPUMEM_HOST_LOCK_REQUIRE);
  const LockLimit limit(3 * kPage);
  const auto refused = create_memory(dev(), request(0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(locked_bytes(), 0U);
}

TEST_P(HostLockTest, ARequiredFlagFailsAtTheLimit) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  with_mode(GPUMEM_HOST_LOCK_TRY);
  {
    const LockLimit limit(3 * kPage);
    EXPECT_EQ(status_of(create_memory(dev(), request(GPUMEM_MEMORY_PAGE_LOCKED))),
              GPUMEM_ERROR_LIMIT_EXCEEDED);
  }
  const auto memory = make(request(GPUMEM_MEMORY_PAGE_LOCKED));
  EXPECT_TRUE((memory->facts().granted & GPUMEM_MEMORY_PAGE_LOCKED) != 0);
  EXPECT_EQ(locked_bytes(), 8 * kPage);
  EXPECT_OK(memory->release());
  EXPECT_EQ(locked_bytes(), 0U);
}

TEST_P(HostLockTest, OffNeverLocks) {
  with_mode(GPUMEM_HOST_LOCK_OFF);
  const auto memory = make(request(0));
  EXPECT_EQ(memory->facts().granted & GPUMEM_MEMORY_PAGE_LOCKED, 0U);
  EXPECT_EQ(locked_bytes(), 0U);
  EXPECT_OK(memory->release());
  EXPECT_EQ(status_of(create_memory(dev(), request(GPUMEM_MEMORY_PAGE_LOCKED))), GPUMEM_ERROR_UNSUPPORTED);
}

INSTANTIATE_TEST_SUITE_P(Kinds, HostLockTest, testing::Values(Sort::kPinned, Sort::kRegistered),
                         [](const auto& sort) {
                           return sort.param == Sort::kPinned ? "Pinned" : "Registered";
                         });

// ---- NUMA ----

// A page that cannot be had when it is touched would end the program.
TEST_F(HostMemoryTest, PagesThatCannotBeHadAreReported) {
  open();
  const int code = test::exit_code_of([&] {
    constexpr uint32_t kPopulate = 23;  // MADV_POPULATE_WRITE, which older headers lack
    if (!test::refuse_system_call(SYS_madvise, ENOMEM, &kPopulate)) return 77;
    const auto pinned = create_memory(dev(), pinned_request(kPage));
    const auto device = create_memory(dev(), device_request(kPage));
    if (status_of(pinned) != GPUMEM_ERROR_OUT_OF_HOST_MEMORY) return 1;
    return status_of(device) == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY ? 0 : 2;
  });
  if (code == 77) GTEST_SKIP() << "this system takes no filter of system calls";
  EXPECT_EQ(code, 0);
}

TEST_F(HostMemoryTest, WithoutAWishTheNearestNode) {
  if (platform::numa_node_count() < 2) GTEST_SKIP() << "this machine has one node";
  open();
  for (const size_t ordinal : {0U, 1U}) {
    const auto memory = make(pinned_request(kPage), ordinal);
    EXPECT_EQ(platform::node_of(memory->facts().host_pointer), dev(ordinal).facts().numa_node);
    EXPECT_OK(memory->release());
  }
}

TEST_F(HostMemoryTest, ANodeOfTheMachine) {
  ASSERT_TRUE(backend_->has_numa_node(dev().facts().numa_node));
  EXPECT_FALSE(backend_->has_numa_node(-1));
  EXPECT_FALSE(backend_->has_numa_node(500));
  auto request = pinned_request(2 * kPage, GPUMEM_MEMORY_NUMA_NODE);
  request.numa_node = dev().facts().numa_node;
  const auto memory = create_memory(dev(), request);
  if (!memory) GTEST_SKIP() << "this system binds no memory: " << memory.error().message;
  auto granted = *memory;
  EXPECT_EQ(granted->facts().numa_node, request.numa_node);
  EXPECT_TRUE((granted->facts().granted & GPUMEM_MEMORY_NUMA_NODE) != 0);
  EXPECT_EQ(platform::node_of(granted->facts().host_pointer), request.numa_node);
  EXPECT_OK(granted->release());
}

TEST_F(HostMemoryTest, APretendedNode) {
  options_.numa_nodes = 64;
  open();
  EXPECT_TRUE(backend_->has_numa_node(63));
  EXPECT_FALSE(backend_->has_numa_node(64));
  EXPECT_EQ(dev(1).facts().numa_node, 1);
  if (platform::numa_node_exists(63)) GTEST_SKIP() << "the machine really has 64 nodes";
  auto request = pinned_request(kPage, GPUMEM_MEMORY_NUMA_NODE);
  request.numa_node = 63;
  const auto memory = make(request);
  EXPECT_EQ(memory->facts().numa_node, 63);
  EXPECT_OK(memory->release());
}

// ---- registered memory ----

TEST_F(HostMemoryTest, RegisteringKeepsAddressAndContents) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  Buffer buffer(3);
  const auto bytes = pattern(2 * kPage);
  std::copy(bytes.begin(), bytes.end(), buffer.at(100));
  const auto memory = make_registered(buffer.at(100), 2 * kPage);
  const auto& facts = memory->facts();
  EXPECT_EQ(facts.host_pointer, static_cast<void*>(buffer.at(100)));
  EXPECT_EQ(facts.device_pointer, nullptr);
  EXPECT_EQ(facts.granted, GPUMEM_MEMORY_PAGE_LOCKED);
  EXPECT_EQ(facts.granted_size, 2 * kPage);
  EXPECT_EQ(locked_bytes(), 3 * kPage) << "whole pages are locked";
  EXPECT_EQ(read(registered(memory, 7), kPage),
            std::vector<unsigned char>(bytes.begin() + 7, bytes.begin() + 7 + static_cast<long>(kPage)));
  EXPECT_OK(memory->release());
  EXPECT_EQ(locked_bytes(), 0U);
  EXPECT_EQ(std::memcmp(buffer.at(100), bytes.data(), bytes.size()), 0);
}

TEST_F(HostMemoryTest, TwoRegistrationsShareAPage) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  Buffer buffer(2);
  const auto first = make_registered(buffer.at(10), kPage);
  const auto second = make_registered(buffer.at(10 + kPage), 50);
  EXPECT_EQ(locked_bytes(), 2 * kPage);
  EXPECT_OK(first->release());
  EXPECT_TRUE(has_flag(buffer.at(kPage), "lo"));
  EXPECT_FALSE(has_flag(buffer.at(0), "lo"));
  EXPECT_OK(second->release());
  EXPECT_EQ(locked_bytes(), 0U);
}

TEST_F(HostMemoryTest, MappedMemoryHasItsOwnDeviceAddress) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  Buffer buffer(2);
  const auto memory = make_registered(buffer.at(123), kPage, GPUMEM_MEMORY_MAPPED);
  EXPECT_EQ(memory->facts().granted, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PAGE_LOCKED);
  ASSERT_NE(device_pointer(memory), nullptr);
  EXPECT_NE(device_pointer(memory), static_cast<void*>(buffer.at(123)));
  EXPECT_EQ(address_of(device_pointer(memory)) % kPage, 123U);
  EXPECT_TRUE(faults(device_pointer(memory), false));
  EXPECT_OK(memory->release());
}

TEST_F(HostMemoryTest, MappedMemoryHasOneAddressByOption) {
  options_.same_pointer = GPUMEM_TOGGLE_ON;
  open();
  Buffer buffer(1);
  const auto memory = make_registered(buffer.at(8), 100, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE);
  EXPECT_EQ(device_pointer(memory), static_cast<void*>(buffer.at(8)));
  EXPECT_OK(memory->release());
  const auto unmapped = make_registered(buffer.at(8), 100);
  EXPECT_EQ(device_pointer(unmapped), nullptr);
  EXPECT_OK(unmapped->release());
}

TEST_F(HostMemoryTest, AHoleCannotBeRegistered) {
  Buffer buffer(3);
  mprotect(buffer.at(kPage), kPage, PROT_NONE);  // as good as unmapped, and nothing else comes there
  const auto refused = create_memory(dev(), register_request(buffer.at(0), 3 * kPage));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, GPUMEM_ERROR_INVALID_ARGUMENT);
  Buffer inaccessible(1, PROT_NONE);
  EXPECT_EQ(status_of(create_memory(dev(), register_request(inaccessible.at(0), 1))),
            GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(locked_bytes(), 0U);
}

TEST_F(HostMemoryTest, ReadOnlyMemoryNeedsTheFlag) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  Buffer buffer(2, PROT_READ);
  EXPECT_EQ(status_of(create_memory(dev(), register_request(buffer.at(0), 2 * kPage))),
            GPUMEM_ERROR_PERMISSION_DENIED);
  const auto memory = make_registered(buffer.at(0), 2 * kPage, GPUMEM_MEMORY_READ_ONLY);
  EXPECT_EQ(memory->facts().granted, GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_PAGE_LOCKED);
  EXPECT_EQ(read(registered(memory), kPage), std::vector<unsigned char>(kPage, 0));
  EXPECT_OK(memory->release());
  Buffer writable(1);
  EXPECT_OK(make_registered(writable.at(0), 1, GPUMEM_MEMORY_READ_ONLY)->release());
}

TEST_F(HostMemoryTest, NoRegistrationOfIoMemory) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  Buffer buffer(1);
  EXPECT_EQ(status_of(create_memory(dev(), register_request(buffer.at(0), 1, GPUMEM_MEMORY_IOMEMORY))),
            GPUMEM_ERROR_UNSUPPORTED);
  auto request = register_request(buffer.at(0), 1);
  request.prefer = GPUMEM_MEMORY_IOMEMORY | GPUMEM_MEMORY_PORTABLE;
  const auto memory = make(request);
  EXPECT_EQ(memory->facts().granted, GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_PAGE_LOCKED);
  EXPECT_OK(memory->release());
}

TEST_F(HostMemoryTest, RegistrationsAreCountedInPieces) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  options_.register_count_max = 4;
  options_.lock_piece = 2 * kPage;
  open();
  Buffer buffer(10);
  const auto three = make_registered(buffer.at(0), 5 * kPage);
  const auto one = make_registered(buffer.at(5 * kPage), 1);
  const auto refused = create_memory(dev(), register_request(buffer.at(6 * kPage), 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(locked_bytes(), 6 * kPage);
  EXPECT_OK(one->release());
  EXPECT_EQ(status_of(create_memory(dev(), register_request(buffer.at(6 * kPage), 3 * kPage))),
            GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_OK(make_registered(buffer.at(6 * kPage), 1)->release());
  EXPECT_OK(three->release());
  EXPECT_EQ(locked_bytes(), 0U);
}

TEST_F(HostMemoryTest, AnOperationFindsTheHole) {
  Buffer buffer(3);
  std::vector<unsigned char> bytes(kPage);
  const auto stream = make_stream();
  const auto memory = make_registered(buffer.at(0), 3 * kPage);
  munmap(buffer.at(kPage), kPage);
  const Status whole = status_of(stream->fill(fill_of(registered(memory), 3 * kPage, 0)));
  const Status hole =
      status_of(stream->copy(copy_of(pageable(bytes.data()), registered(memory, 2 * kPage - 1), 1)));
  const Status rest =
      status_of(stream->copy(copy_of(pageable(bytes.data()), registered(memory, 2 * kPage), kPage)));
  EXPECT_EQ(whole, GPUMEM_ERROR_INVALID_STATE);
  EXPECT_EQ(hole, GPUMEM_ERROR_INVALID_STATE);
  EXPECT_EQ(rest, GPUMEM_SUCCESS);
  finish(*stream);
  EXPECT_OK(memory->release());
  EXPECT_OK(stream->release());
}

TEST_F(HostMemoryTest, AnOperationFindsTheHoleWhenItRuns) {
  Buffer buffer(3);
  const auto stream = make_stream();
  const auto memory = make_registered(buffer.at(0), 3 * kPage);
  mprotect(buffer.at(kPage), kPage, PROT_NONE);  // as good as unmapped, and nothing else comes there
  EXPECT_OK(stream->fill(fill_of(registered(memory), 3 * kPage, 0)));
  EXPECT_EQ(status_of(stream->synchronize(kForever)), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_OK(stream->fill(fill_of(registered(memory), kPage, 0)));
  finish(*stream);
  EXPECT_OK(memory->release());
  EXPECT_OK(stream->release());
}

TEST_F(HostMemoryTest, AnUnreleasedMemoryGivesEverythingBack) {
  Buffer buffer(1);
  const uint64_t before = free_bytes();
  {
    const auto one = make_device(kPage);
    const auto other = make_registered(buffer.at(0), 1, GPUMEM_MEMORY_MAPPED);
  }
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(locked_bytes(), 0U);
}

TEST_F(HostMemoryTest, TheTableKnowsWhoHasAnAddressNow) {
  auto& owner = static_cast<host::HostDevice&>(dev());
  const auto gone = std::make_shared<host::Allocation>(owner);
  const auto now = std::make_shared<host::Allocation>(owner);
  gone->device_address = now->device_address = pointer_to(kPage);
  gone->size = now->size = kPage;
  host::AddressTable table;
  table.add(gone);
  table.add(now);
  EXPECT_EQ(table.find(pointer_to(kPage)), now);
  table.remove(*gone);
  EXPECT_EQ(table.find(pointer_to(kPage)), now);
  table.remove(*now);
  EXPECT_EQ(table.find(pointer_to(kPage)), nullptr);
}

TEST_F(HostMemoryTest, TheTableFindsWhatIsInARange) {
  const auto memory = std::make_shared<host::Allocation>(static_cast<host::HostDevice&>(dev()));
  memory->device_address = pointer_to(2 * kPage);
  memory->size = kPage;
  host::AddressTable table;
  table.add(memory);
  EXPECT_EQ(table.first_in(pointer_to(kPage), kPage), nullptr);
  EXPECT_EQ(table.first_in(pointer_to(kPage), kPage + 1), memory);
  EXPECT_EQ(table.first_in(pointer_to(kPage), 9 * kPage), memory);
  EXPECT_EQ(table.first_in(pointer_to(2 * kPage), 1), memory);
  EXPECT_EQ(table.first_in(pointer_to(3 * kPage - 1), kPage), memory);
  EXPECT_EQ(table.first_in(pointer_to(3 * kPage), kPage), nullptr);
}

TEST_F(HostMemoryTest, TheLargestPieceStillCounts) {
  options_.lock_piece = round_down(uint64_t{INT64_MAX}, kPage);
  options_.register_count_max = 1;
  open();
  Buffer buffer(3);
  const auto memory = make_registered(buffer.at(0), 2 * kPage);
  EXPECT_EQ(status_of(create_memory(dev(), register_request(buffer.at(2 * kPage), 1))),
            GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_OK(memory->release());
}

TEST_F(HostMemoryTest, ForeignMemoryCannotBeRegistered) {
  auto memory = simulation().foreign_alloc(dev(), false, 3 * kPage);
  ASSERT_TRUE(memory);
  auto* const bytes = static_cast<unsigned char*>(*memory);
  EXPECT_EQ(status_of(create_memory(dev(), register_request(bytes, 3 * kPage))), GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_EQ(status_of(create_memory(dev(), register_request(bytes + kPage, 1))), GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_OK(simulation().foreign_free(dev(), *memory));
}

TEST_F(HostMemoryTest, NoFileIsHeldOpen) {
  const uint64_t before = open_files();
  const auto one = make_device(kPage);
  const auto other = make_pinned(kPage);
  EXPECT_EQ(open_files(), before);
  EXPECT_OK(one->release());
  EXPECT_OK(other->release());
}

TEST_F(HostMemoryTest, TheCallersCurrentDeviceStays) {
  const int32_t before = host::set_current_device(7);
  Buffer buffer(1);
  const auto memory = make_device(kPage, 1);
  EXPECT_FALSE(create_memory(dev(1), device_request(1 << 30)));
  EXPECT_OK(make_registered(buffer.at(0), 1)->release());
  EXPECT_OK(memory->release());
  (void)dev(1).memory_available();
  (void)dev(1).enable_peer_access(dev(0));
  (void)dev(1).capability(GPUMEM_CAPABILITY_PIN_NUMA, nullptr);
  EXPECT_EQ(host::set_current_device(before), 7);
}

}  // namespace
}  // namespace gpumem::test
