// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cuda backend over the fake driver: what the conformance suite, which sees the public interface, cannot
// see. Every test ends by asserting that no object of the driver is left and no rule of it was broken.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "base/arithmetic.h"
#include "cuda_fake.h"
#include "platform/pages.h"
#include "process_support.h"

namespace gpumem::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Pages of the test's own.
class Pages {
 public:
  explicit Pages(uint64_t size)
      : size_(size), base_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(base_, size_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  unsigned char* get() const { return static_cast<unsigned char*>(base_); }

 private:
  uint64_t size_;
  void* base_;
};

void fill_pattern(unsigned char* bytes, uint64_t size) {
  for (uint64_t at = 0; at < size; ++at)
    bytes[at] = static_cast<unsigned char>(at * 7 + at / 251);
}

// ---- opening ----

TEST_F(CudaFake, ProbeTellsTheDriver) {
  configure("FAKE_CUDA_DEVICES", "3");
  auto facts = probe();
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->backend, GPUMEM_BACKEND_CUDA);
  EXPECT_EQ(facts->device_count, 3u);
  const char* const version = std::getenv("FAKE_CUDA_VERSION");
  EXPECT_EQ(facts->name, std::string("CUDA driver ") + (version != nullptr ? version : "13.0"));
  EXPECT_GE(facts->driver_version, GPUMEM_CUDA_DRIVER_VERSION_MIN);
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 0u) << "a probe makes no context";
}

TEST_F(CudaFake, AFailedInitIsNotRemembered) {
  const std::pair<const char*, Status> cases[] = {{"100", GPUMEM_ERROR_NO_DEVICE},
                                                  {"999", GPUMEM_ERROR_INTERNAL},
                                                  {"803", GPUMEM_ERROR_DRIVER_TOO_OLD},
                                                  {"3", GPUMEM_ERROR_FORKED},
                                                  {"4", GPUMEM_ERROR_CLOSED},
                                                  {"34", GPUMEM_ERROR_DRIVER_NOT_FOUND},
                                                  {"2", GPUMEM_ERROR_OUT_OF_HOST_MEMORY}};
  for (const auto& [code, status] : cases) {
    configure("FAKE_CUDA_INIT", code);
    EXPECT_FAILS(status, probe());
    EXPECT_FAILS(status, cuda::open({}));
  }
  configure("FAKE_CUDA_INIT", "0");
  open();
}

TEST_F(CudaFake, NoDeviceIsAStatus) {
  configure("FAKE_CUDA_DEVICES", "0");
  EXPECT_FAILS(GPUMEM_ERROR_NO_DEVICE, probe());
}

TEST_F(CudaFake, UnifiedAddressingIsRequired) {
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0);
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, probe());
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, cuda::open({}));
}

TEST_F(CudaFake, PrimaryContextsAreRetainedAndReleased) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 2u);
  auto first = std::move(backend_);
  open();
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 4u) << "instances count on their own";
  first.reset();
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 2u);
}

TEST_F(CudaFake, OpenFailsAsAWhole) {
  configure("FAKE_CUDA_DEVICES", "2");
  EXPECT_TRUE(probe().ok());
  FAKE(fake_cuda_fail)("cuDevicePrimaryCtxRetain", 2, 0, CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_FAILS(GPUMEM_ERROR_BUSY, cuda::open({}));
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 0u);
}

TEST_F(CudaFake, ContextsOfTheCallerAreUsedInstead) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  const auto create = reinterpret_cast<PFN_cuCtxCreate_v3020>(dlsym(fake_library(), "cuCtxCreate_v2"));
  const auto destroy = reinterpret_cast<PFN_cuCtxDestroy_v4000>(dlsym(fake_library(), "cuCtxDestroy_v2"));
  CUcontext own = nullptr;
  CUcontext popped = nullptr;
  ASSERT_EQ(create(&own, 0, 1), CUDA_SUCCESS);
  ASSERT_TRUE(cu().CtxPopCurrent(&popped).ok());
  backend_.reset();
  open({own});
  EXPECT_EQ(device(1).context(), own);
  EXPECT_NE(device(0).context(), own);
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 2u) << "the caller's and one primary";
  const Driver& driver = cu();
  backend_.reset();
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 1u);

  backend::OpenRequest twice;
  twice.cuda_contexts = {own, own};
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, cuda::open(twice));
  backend::OpenRequest none;
  none.cuda_contexts = {nullptr};
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, cuda::open(none));
  ASSERT_TRUE(driver.CtxPushCurrent(own).ok());
  EXPECT_EQ(destroy(own), CUDA_SUCCESS);
  backend::OpenRequest gone;
  gone.cuda_contexts = {own};
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, cuda::open(gone));
}

TEST_F(CudaFake, DeviceFactsAreFilled) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  const backend::DeviceFacts& facts = device(1).facts();
  EXPECT_EQ(facts.ordinal, 1u);
  EXPECT_EQ(facts.name, "Fake CUDA device 1");
  EXPECT_EQ(facts.pci_id, "0000:02:00.0");
  EXPECT_EQ(facts.pci_bus, 2u);
  EXPECT_EQ(facts.compute_major, 9);
  EXPECT_EQ(std::memcmp(facts.uuid.data(), "fake cuda dev 01", 16), 0);
  EXPECT_EQ(facts.total_bytes, 256 * kMiB);
}

// Each variant by both ways in, so that no path of the backend goes untested for want of an entry point.
TEST_F(CudaFake, TheFakeHasEveryEntryPointOfTheTable) {
  auto driver = load();
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  const auto get = reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(fake_library(), "cuGetProcAddress"));
  ASSERT_EQ(get != nullptr, (*driver)->version >= 11030);
  size_t variants = 0;
  const auto look = [&](const char* name, int since, const char* suffix) {
    if (since > (*driver)->version) return;
    ++variants;
    const std::string symbol = std::string(name) + suffix;
    void* const exported = dlsym(fake_library(), symbol.c_str());
    EXPECT_NE(exported, nullptr) << symbol;
    if (get == nullptr) return;
    void* found = nullptr;
    EXPECT_EQ(get(name, &found, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM), CUDA_SUCCESS) << symbol;
    EXPECT_EQ(found, exported) << symbol;
  };
#define LOOK(name, since, suffix) look("cu" #name, since, suffix);
  GPUMEM_CUDA_ENTRY_POINTS(LOOK, LOOK)
  GPUMEM_CUDA_OLDER_VARIANTS(LOOK)
#define LOOK_FOR_MEMBER(member, name, since, suffix) LOOK(name, since, suffix)
  GPUMEM_CUDA_OTHER_SIGNATURES(LOOK_FOR_MEMBER)
#undef LOOK_FOR_MEMBER
#undef LOOK
  EXPECT_GT(variants, 60u);
#define IS_FOUND(name, since, suffix) \
  EXPECT_TRUE((*driver)->name.function != nullptr || (*driver)->version < (since)) << "cu" #name;
  GPUMEM_CUDA_ENTRY_POINTS(IS_FOUND, IS_FOUND)
  GPUMEM_CUDA_OLDER_VARIANTS(IS_FOUND)
#undef IS_FOUND
}

TEST(CudaLoader, DeviceFilesThatMayNotBeOpenedAreSeen) {
  constexpr uid_t kNobody = 65534;
  char folder[] = "/tmp/gpumem_device_files_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  chmod(folder, 0755);
  const auto file = [&](const char* name, mode_t mode) {
    const std::string path = std::string(folder) + "/" + name;
    FILE* const made = std::fopen(path.c_str(), "w");
    ASSERT_NE(made, nullptr);
    std::fclose(made);
    chmod(path.c_str(), mode);
  };
  const auto denied = [&] {
    const bool root = geteuid() == 0;  // who may open every file
    EXPECT_EQ(seteuid(root ? kNobody : geteuid()), 0);
    const bool result = device_files_denied(folder);
    EXPECT_EQ(seteuid(root ? 0 : geteuid()), 0);
    return result;
  };
  EXPECT_FALSE(denied());
  file("nvidia-caps", 0);
  file("nvidiactl", 0666);
  EXPECT_FALSE(denied());
  file("nvidia0", 0);
  EXPECT_TRUE(denied());
  for (const char* name : {"nvidia-caps", "nvidiactl", "nvidia0"})
    unlink((std::string(folder) + "/" + name).c_str());
  rmdir(folder);
}

TEST(CudaLoader, AFolderWithoutDeviceFilesDeniesNothing) {
  EXPECT_FALSE(device_files_denied("/nowhere/at/all"));
  EXPECT_FALSE(device_files_denied("/proc/self"));
}

// ---- memory ----

TEST_F(CudaFake, SmallAlignmentsAreMetWithinTheDriversAllocation) {
  open();
  Request wanted = request(Sort::kDevice, 1000);
  for (wanted.alignment = 1; wanted.alignment <= 2 * kMiB; wanted.alignment *= 2) {
    auto memory = create_memory(device(), wanted);
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    const backend::MemoryFacts& facts = (*memory)->facts();
    EXPECT_EQ(reinterpret_cast<uint64_t>(facts.device_pointer) % std::max<uint64_t>(wanted.alignment, 256),
              0u);
    EXPECT_LE(facts.granted_size, wanted.size + 2 * kMiB);
    EXPECT_EQ(facts.host_pointer, nullptr);
    EXPECT_EQ(live(FAKE_CUDA_DEVICE_MEMORY), 1u);
    EXPECT_EQ(live(FAKE_CUDA_RESERVATION), 0u);
    EXPECT_DONE((*memory)->release());
  }
}

TEST_F(CudaFake, LargeAlignmentsAreMetByMapping) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  Request wanted = request(Sort::kDevice, 1000);
  wanted.alignment = 64 * kMiB;
  auto memory = create_memory(device(), wanted);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ(reinterpret_cast<uint64_t>((*memory)->facts().device_pointer) % wanted.alignment, 0u);
  EXPECT_EQ((*memory)->facts().granted_size, 2 * kMiB);
  EXPECT_EQ(live(FAKE_CUDA_MAPPING), 1u);
  EXPECT_DONE((*memory)->release());
  EXPECT_EQ(live(FAKE_CUDA_BLOCK) + live(FAKE_CUDA_RESERVATION) + live(FAKE_CUDA_MAPPING), 0u);
  wanted.alignment = uint64_t{1} << 50;
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, create_memory(device(), wanted));
}

TEST_F(CudaFake, TooMuchDeviceMemoryIsTheDevicesFault) {
  open();
  EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
               create_memory(device(), request(Sort::kDevice, 300 * kMiB)));
  EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
               create_memory(device(), request(Sort::kDevice, uint64_t{1} << 62)));
  auto memory = create_memory(device(), request(Sort::kDevice, kMiB));
  ASSERT_TRUE(memory.ok());
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaFake, OnlyWriteCombinedMemoryComesFromTheDriver) {
  open();
  struct Case {
    uint64_t size;
    uint64_t alignment;
    gpumem_memory_flags require;
  };
  const Case cases[] = {{1000, 0, 0},
                        {1000, 256, 0},
                        {4 * kMiB, 0, 0},
                        {1000, 4 * kMiB, 0},
                        {1000, 0, GPUMEM_MEMORY_NUMA_NODE},
                        {1000, 0, GPUMEM_MEMORY_WRITE_COMBINED},
                        {1000, kMiB, GPUMEM_MEMORY_WRITE_COMBINED},
                        {4 * kMiB + 1, 0, GPUMEM_MEMORY_WRITE_COMBINED}};
  for (const Case& one : cases) {
    if ((one.require & GPUMEM_MEMORY_NUMA_NODE) != 0 &&
        device().capability(GPUMEM_CAPABILITY_PIN_NUMA, nullptr).value == GPUMEM_ANSWER_NO) {
      continue;
    }
    SCOPED_TRACE(testing::Message() << one.size << " bytes at " << one.alignment << " flags " << one.require);
    Request wanted = request(Sort::kPinned, one.size, one.require);
    wanted.alignment = one.alignment;
    wanted.numa_node = 0;
    auto memory = create_memory(device(), wanted);
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    const backend::MemoryFacts& facts = (*memory)->facts();
    const bool of_driver = (one.require & GPUMEM_MEMORY_WRITE_COMBINED) != 0;
    EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), of_driver ? 0u : 1u);
    EXPECT_EQ(live(FAKE_CUDA_PINNED_MEMORY), of_driver ? 1u : 0u);
    EXPECT_EQ(facts.granted & ~one.require,
              gpumem_memory_flags{GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PAGE_LOCKED});
    EXPECT_EQ(facts.granted & one.require, one.require);
    EXPECT_EQ(facts.device_pointer, facts.host_pointer);
    EXPECT_EQ(facts.numa_node, (one.require & GPUMEM_MEMORY_NUMA_NODE) != 0 ? 0 : -1);
    EXPECT_EQ(reinterpret_cast<uint64_t>(facts.host_pointer) % std::max(one.alignment, platform::page_size()),
              0u);
    EXPECT_GE(facts.granted_size, one.size);
    EXPECT_LE(facts.granted_size, one.size + 2 * kMiB);
    std::memset(facts.host_pointer, 1, one.size);
    EXPECT_DONE((*memory)->release());
  }
  Request too_much = request(Sort::kPinned, 1000, GPUMEM_MEMORY_WRITE_COMBINED);
  too_much.alignment = 4 * kMiB;
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, create_memory(device(), too_much));
  EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
               create_memory(device(), request(Sort::kPinned, uint64_t{1} << 62)));
}

TEST_F(CudaFake, WriteCombinedMemoryMayHaveAnotherAddressForDevices) {
  configure("FAKE_CUDA_WRITE_COMBINED_DIFFERS", "1");
  open();
  auto memory = create_memory(device(), request(Sort::kPinned, 1000, GPUMEM_MEMORY_WRITE_COMBINED));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_NE((*memory)->facts().device_pointer, nullptr);
  EXPECT_NE((*memory)->facts().device_pointer, (*memory)->facts().host_pointer);
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaFake, WithoutOneAddressForAllPinnedMemoryIsTheDrivers) {
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0);
  open();
  auto memory = create_memory(device(), request(Sort::kPinned, 4 * kMiB));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ(live(FAKE_CUDA_PINNED_MEMORY), 1u);
  EXPECT_DONE((*memory)->release());
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED,
               create_memory(device(), request(Sort::kPinned, 1000, GPUMEM_MEMORY_NUMA_NODE)));
  EXPECT_EQ(device().capability(GPUMEM_CAPABILITY_PIN_NUMA, nullptr).status, GPUMEM_ERROR_UNSUPPORTED);
}

TEST_F(CudaFake, WhatIsOnlyPreferredMayBeMissing) {
  open();
  Request wanted = request(Sort::kPinned, 1000);
  wanted.prefer = GPUMEM_MEMORY_WRITE_COMBINED;
  FAKE(fake_cuda_fail)("cuMemHostAlloc", 1, 0, CUDA_ERROR_NOT_SUPPORTED);
  auto memory = create_memory(device(), wanted);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ((*memory)->facts().granted & GPUMEM_MEMORY_WRITE_COMBINED, 0u);
  EXPECT_DONE((*memory)->release());
  memory = create_memory(device(), wanted);
  ASSERT_TRUE(memory.ok());
  EXPECT_NE((*memory)->facts().granted & GPUMEM_MEMORY_WRITE_COMBINED, 0u);
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaFake, ReleasedPinnedMemoryLeavesItsAddresses) {
  open();
  auto memory = create_memory(device(), request(Sort::kPinned, kMiB));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  void* const address = (*memory)->facts().host_pointer;
  EXPECT_DONE((*memory)->release());
  void* const again =
      mmap(address, kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  EXPECT_EQ(again, address) << std::strerror(errno);
  if (again != MAP_FAILED) munmap(again, kMiB);
}

TEST_F(CudaFake, PinnedMemoryIsNotInheritedByFork) {
  open();
  for (const Request& one : {request(Sort::kPinned, 10000), request(Sort::kPinned, 20 * kMiB),
                             request(Sort::kPinned, 10000, GPUMEM_MEMORY_WRITE_COMBINED)}) {
    SCOPED_TRACE(testing::Message() << one.size << " bytes, flags " << one.require);
    auto memory = create_memory(device(), one);
    ASSERT_TRUE(memory.ok());
    auto* const bytes = static_cast<volatile char*>((*memory)->facts().host_pointer);
    for (const uint64_t at : {uint64_t{0}, one.size - 1}) {
      bytes[at] = 0x5A;
      // The child faults, or finds something else that was put there since.
      EXPECT_DEATH(
          {
            const bool seen = bytes[at] == 0x5A;
            bytes[at] = 1;
            if (!seen) std::abort();
          },
          "");
      EXPECT_EQ(bytes[at], 0x5A);
    }
    EXPECT_DONE((*memory)->release());
  }
}

TEST_F(CudaFake, RegistrationMustFitTheMapping) {
  open();
  const uint64_t page = platform::page_size();
  Pages pages(4 * page);
  ASSERT_EQ(mprotect(pages.get() + page, page, PROT_READ), 0);
  EXPECT_FAILS(GPUMEM_ERROR_PERMISSION_DENIED, create_memory(device(), registering(pages.get(), 3 * page)));
  ASSERT_EQ(mprotect(pages.get() + 2 * page, page, PROT_NONE), 0);
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, create_memory(device(), registering(pages.get(), 3 * page)));
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT,
               create_memory(device(), registering(pages.get(), 3 * page, GPUMEM_MEMORY_READ_ONLY)));
  auto memory = create_memory(device(), registering(pages.get(), 2 * page, GPUMEM_MEMORY_READ_ONLY));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ((*memory)->facts().granted,
            gpumem_memory_flags{GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_PAGE_LOCKED});
  EXPECT_EQ((*memory)->facts().device_pointer, nullptr) << "not mapped";
  EXPECT_DONE((*memory)->release());
  ASSERT_EQ(mprotect(pages.get(), 4 * page, PROT_READ | PROT_WRITE), 0);
}

TEST_F(CudaFake, ARefusedRegistrationSaysWhy) {
  open();
  Pages pages(kMiB);
  const auto refusal = [&](CUresult code) {
    FAKE(fake_cuda_fail)("cuMemHostRegister", 1, 0, code);
    auto memory = create_memory(device(), registering(pages.get(), 100));
    return memory.ok() ? GPUMEM_SUCCESS : memory.error().status;
  };
  EXPECT_EQ(refusal(CUDA_ERROR_INVALID_VALUE), GPUMEM_ERROR_UNSUPPORTED) << "a mapping that it does not take";
  EXPECT_EQ(refusal(CUDA_ERROR_OUT_OF_MEMORY), GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(refusal(CUDA_ERROR_NOT_PERMITTED), GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(refusal(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED), GPUMEM_ERROR_ALREADY_EXISTS);
  Scope scope(device());
  void* pinned = nullptr;
  ASSERT_TRUE(cu().MemHostAlloc(&pinned, kMiB, 0).ok());
  EXPECT_FAILS(GPUMEM_ERROR_ALREADY_EXISTS, create_memory(device(), registering(pinned, 100)));
  EXPECT_TRUE(cu().MemFreeHost(pinned).ok());
}

TEST_F(CudaFake, IoMemoryIsLeftToTheDriver) {
  open();
  Pages pages(platform::page_size());
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT,
               create_memory(device(), registering(pages.get(), 100, GPUMEM_MEMORY_IOMEMORY)));
  EXPECT_EQ(calls("cuMemHostRegister"), 1u);
}

TEST_F(CudaFake, RegisteredMemoryMayHaveAnotherAddressForDevices) {
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0);
  open();
  Pages pages(kMiB);
  auto memory = create_memory(device(), registering(pages.get(), kMiB, GPUMEM_MEMORY_MAPPED));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_NE((*memory)->facts().device_pointer, nullptr);
  EXPECT_NE((*memory)->facts().device_pointer, (*memory)->facts().host_pointer);
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaFake, PiecesAreAllOrNothing) {
  open();
  const uint64_t page = platform::page_size();
  Pages pages(16 * page);
  // From the middle of a page to the middle of another one, in pieces of two pages.
  const uint64_t size = 10 * page + 100;
  LockedRange range(device(), pages.get() + 50, size, 0, 2 * page);
  Scope scope(device());
  EXPECT_DONE(range.lock());
  EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), 6u);
  EXPECT_EQ(range.contiguous(0), 2 * page - 50);
  EXPECT_EQ(range.contiguous(2 * page - 50), 2 * page);
  EXPECT_EQ(range.contiguous(2 * page - 51), 1u);
  EXPECT_EQ(range.contiguous(10 * page - 50), 150u) << "the last piece ends with the range";
  EXPECT_EQ(range.contiguous(size - 1), 1u);
  // A neighbour on the same last page.
  LockedRange neighbour(device(), pages.get() + 50 + size, 10, 0, 2 * page);
  EXPECT_DONE(neighbour.lock());
  EXPECT_DONE(range.unlock());
  EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), 1u);
  EXPECT_DONE(neighbour.unlock());

  for (uint64_t k = 1; k <= 6; ++k) {
    FAKE(fake_cuda_fail)("cuMemHostRegister", k, 0, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, range.lock());
    EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), 0u);
  }
}

// The driver's own copies cannot cross the border of two registrations (PIN-15).
TEST_F(CudaFake, LargeMemoryIsOneRegistrationUnlessPiecesAreAskedFor) {
  open();
  const uint64_t size = 300 * kMiB;
  Pages pages(size);
  for (const bool registered : {false, true}) {
    for (const gpumem_memory_flags pieces : {gpumem_memory_flags{0}, GPUMEM_MEMORY_IN_PIECES}) {
      SCOPED_TRACE(testing::Message() << "registered " << registered << ", pieces " << pieces);
      const gpumem_memory_flags require = GPUMEM_MEMORY_MAPPED | pieces;
      const Request wanted =
          registered ? registering(pages.get(), size, require) : request(Sort::kPinned, size, require);
      const uint64_t before = calls("cuMemHostRegister");
      auto memory = create_memory(device(), wanted);
      ASSERT_TRUE(memory.ok()) << memory.error().message;
      EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), pieces != 0 ? 2u : 1u);
      EXPECT_EQ(calls("cuMemHostRegister"), before + (pieces != 0 ? 2 : 1));
      EXPECT_EQ((*memory)->facts().granted & GPUMEM_MEMORY_IN_PIECES, pieces);
      EXPECT_EQ((*memory)->facts().device_pointer, (*memory)->facts().host_pointer);
      EXPECT_EQ((*memory)->contiguous(0), pieces != 0 ? 256 * kMiB : size);
      EXPECT_EQ((*memory)->contiguous(256 * kMiB - 1), pieces != 0 ? 1 : size - 256 * kMiB + 1);
      EXPECT_EQ((*memory)->contiguous(256 * kMiB), size - 256 * kMiB);
      EXPECT_DONE((*memory)->release());
      EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), 0u);
    }
  }
}

TEST_F(CudaFake, PinnedMemoryInPiecesIsAllOrNothing) {
  open();
  for (uint64_t k = 1; k <= 2; ++k) {
    FAKE(fake_cuda_fail)("cuMemHostRegister", k, 0, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
                 create_memory(device(), request(Sort::kPinned, 300 * kMiB, GPUMEM_MEMORY_IN_PIECES)));
    EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), 0u);
  }
  // One that fails to be given back keeps no other from it.
  auto memory = create_memory(device(), request(Sort::kPinned, 300 * kMiB, GPUMEM_MEMORY_IN_PIECES));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  FAKE(fake_cuda_fail)("cuMemHostUnregister", 1, 0, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_FAILS(GPUMEM_ERROR_PERMISSION_DENIED, (*memory)->release());
  EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), 2u);
  FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "");
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaFake, WhatTheDriverGivesAsAWholeIsNotInPieces) {
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0);
  open();
  Pages pages(kMiB);
  const gpumem_memory_flags combined = GPUMEM_MEMORY_WRITE_COMBINED | GPUMEM_MEMORY_IN_PIECES;
  for (Request one :
       {request(Sort::kPinned, kMiB, GPUMEM_MEMORY_IN_PIECES), request(Sort::kPinned, kMiB, combined),
        registering(pages.get(), kMiB, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_IN_PIECES)}) {
    EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, create_memory(device(), one));
    one.require &= ~GPUMEM_MEMORY_IN_PIECES;
    one.prefer = GPUMEM_MEMORY_IN_PIECES;
    auto memory = create_memory(device(), one);
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    EXPECT_EQ((*memory)->facts().granted & GPUMEM_MEMORY_IN_PIECES, 0u);
    EXPECT_DONE((*memory)->release());
  }
  const auto large =
      create_memory(device(), registering(pages.get(), 1024 * 1024 * kMiB, GPUMEM_MEMORY_MAPPED));
  ASSERT_FALSE(large.ok());
  const bool limited = cu().version >= 13000;  // earlier drivers look at the pages only
  EXPECT_NE(std::strstr(large.error().message,
                        limited ? "pin.max_single, which is 549755813888 bytes" : "a page is not mapped"),
            nullptr)
      << large.error().message;
  // Without device pointers, pieces need no common address.
  auto memory = create_memory(device(), registering(pages.get(), kMiB, GPUMEM_MEMORY_IN_PIECES));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_DONE((*memory)->release());
}

// Pages are there before the driver is asked, which would find them one after the other under its lock.
TEST_F(CudaFake, LargeMemoryIsTouchedBeforeItIsRegistered) {
  open();
  const uint64_t size = 64 * kMiB;
  auto* const fresh =
      static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(fresh, MAP_FAILED);
  ASSERT_EQ(madvise(fresh, size, MADV_NOHUGEPAGE), 0);
  fresh[size / 2] = 'k';
  // The fake populates too, but not before it was asked.
  FAKE(fake_cuda_fail)("cuMemHostRegister", 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, create_memory(device(), registering(fresh, size)));
  EXPECT_EQ(platform::absent_bytes(fresh, size), 0u);
  EXPECT_EQ(fresh[size / 2], 'k');
  // Devices that only read need no pages of their own.
  ASSERT_EQ(madvise(fresh, size, MADV_DONTNEED), 0);
  FAKE(fake_cuda_fail)("cuMemHostRegister", 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
               create_memory(device(), registering(fresh, size, GPUMEM_MEMORY_READ_ONLY)));
  EXPECT_EQ(platform::absent_bytes(fresh, size), size);
  munmap(fresh, size);
}

TEST_F(CudaFake, NoThreadStaysAfterLargePinnedMemory) {
  open();
  const uint64_t before = test::threads();
  auto memory = create_memory(device(), request(Sort::kPinned, 64 * kMiB));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_EQ(test::threads_at_most(before), before);
  EXPECT_EQ(platform::absent_bytes((*memory)->facts().host_pointer, 64 * kMiB), 0u);
  EXPECT_DONE((*memory)->release());
  EXPECT_EQ(test::threads_at_most(before), before);
}

TEST_F(CudaFake, AReleaseIsAskedOfTheDriverOnce) {
  open();
  Pages pages(kMiB);
  for (const Request& one : requests_of_every_sort(pages.get())) {
    auto memory = create_memory(device(), one);
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    for (const char* release : {"cuMemFree", "cuMemUnmap", "cuMemFreeHost", "cuMemHostUnregister"}) {
      FAKE(fake_cuda_fail)(release, 1, 0, CUDA_ERROR_UNKNOWN);
    }
    EXPECT_FAILS(GPUMEM_ERROR_INTERNAL, (*memory)->release());
    FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "");
    EXPECT_DONE((*memory)->release());
    EXPECT_DONE((*memory)->release());
  }
  auto stream = device().create_stream(0);
  auto event = device().create_event(0);
  FAKE(fake_cuda_fail)("cuStreamDestroy", 1, 0, CUDA_ERROR_UNKNOWN);
  FAKE(fake_cuda_fail)("cuEventDestroy", 1, 0, CUDA_ERROR_UNKNOWN);
  EXPECT_FAILS(GPUMEM_ERROR_INTERNAL, (*stream)->release());
  EXPECT_FAILS(GPUMEM_ERROR_INTERNAL, (*event)->release());
  EXPECT_DONE((*stream)->release());
  EXPECT_DONE((*event)->release());
}

TEST_F(CudaFake, AReleaseThatIsTurnedDownIsAskedAgain) {
  open();
  Pages pages(kMiB);
  const uint64_t contexts = live(FAKE_CUDA_ANY);
  const std::pair<CUresult, Status> refusals[] = {
      {CUDA_ERROR_NOT_PERMITTED, GPUMEM_ERROR_PERMISSION_DENIED},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, GPUMEM_ERROR_INVALID_STATE},
      {CUDA_ERROR_NOT_READY, GPUMEM_ERROR_BUSY}};
  for (const auto& [code, status] : refusals) {
    const auto refuse = [&, code = code, status = status](auto& object) {
      const uint64_t alive = live(FAKE_CUDA_ANY);
      for (const char* release :
           {"cuMemFree", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemFreeHost",
            "cuMemHostUnregister", "cuStreamDestroy", "cuEventDestroy"})
        FAKE(fake_cuda_fail)(release, 1, 1, code);
      EXPECT_FAILS(status, object.release());
      FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "");
      EXPECT_EQ(live(FAKE_CUDA_ANY), alive);
      EXPECT_DONE(object.release());
    };
    for (const Request& one : requests_of_every_sort(pages.get())) {
      auto memory = create_memory(device(), one);
      ASSERT_TRUE(memory.ok()) << memory.error().message;
      refuse(**memory);
    }
    auto stream = device().create_stream(0);
    auto event = device().create_event(0);
    refuse(**stream);
    refuse(**event);
    EXPECT_EQ(live(FAKE_CUDA_ANY), contexts);
  }
}

// The library's own host functions are kept from it by the layers above; those of other code are not.
TEST_F(CudaFake, AReleaseInAHostFunctionOfOtherCodeIsTurnedDown) {
  open();
  auto stream = device().create_stream(0);
  auto event = device().create_event(0);
  auto idle = device().create_stream(0);
  ASSERT_TRUE(stream.ok() && event.ok() && idle.ok());
  const std::function<void()> release = [&] {
    EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, (*event)->release());
    EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, (*idle)->release());
  };
  const auto run = [](void* function) { (*static_cast<const std::function<void()>*>(function))(); };
  EXPECT_DONE((*stream)->launch_host_function(run, const_cast<std::function<void()>*>(&release), false));
  EXPECT_DONE((*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  FAKE(fake_cuda_clear_violations)();  // of the calls in the host function
  EXPECT_EQ(live(FAKE_CUDA_EVENT), 1u);
  EXPECT_EQ(live(FAKE_CUDA_STREAM), 2u);
  EXPECT_DONE((*event)->release());
  EXPECT_DONE((*idle)->release());
  EXPECT_DONE((*stream)->release());
}

TEST_F(CudaFake, ACaptureElsewhereIsNotSpoiled) {
  open();
  const auto begin =
      reinterpret_cast<PFN_cuStreamBeginCapture_v10010>(dlsym(fake_library(), "cuStreamBeginCapture_v2"));
  const auto end =
      reinterpret_cast<PFN_cuStreamEndCapture_v10000>(dlsym(fake_library(), "cuStreamEndCapture"));
  const auto destroy = reinterpret_cast<PFN_cuGraphDestroy_v10000>(dlsym(fake_library(), "cuGraphDestroy"));
  auto memory = create_memory(device(), request(Sort::kDevice, 1000));
  auto stream = device().create_stream(0);
  ASSERT_TRUE(memory.ok() && stream.ok());
  EXPECT_FALSE(*(*stream)->is_capturing());
  (*stream)->expose();
  Scope scope(device());
  ASSERT_EQ(begin(static_cast<CUstream>((*stream)->native()), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_TRUE(*(*stream)->is_capturing());
  EXPECT_DONE((*memory)->release());
  EXPECT_EQ(live(FAKE_CUDA_DEVICE_MEMORY), 0u);
  CUgraph graph = nullptr;
  EXPECT_EQ(end(static_cast<CUstream>((*stream)->native()), &graph), CUDA_SUCCESS);
  EXPECT_EQ(destroy(graph), CUDA_SUCCESS);
  EXPECT_DONE((*stream)->release());
}

// Nobody has the handle of the second stream, so the driver is not asked before an event brings it in.
TEST_F(CudaFake, AnEventBringsAStreamIntoACapture) {
  open();
  const auto begin =
      reinterpret_cast<PFN_cuStreamBeginCapture_v10010>(dlsym(fake_library(), "cuStreamBeginCapture_v2"));
  const auto end =
      reinterpret_cast<PFN_cuStreamEndCapture_v10000>(dlsym(fake_library(), "cuStreamEndCapture"));
  const auto record = reinterpret_cast<PFN_cuEventRecord_v2000>(dlsym(fake_library(), "cuEventRecord"));
  const auto destroy = reinterpret_cast<PFN_cuGraphDestroy_v10000>(dlsym(fake_library(), "cuGraphDestroy"));
  auto first = device().create_stream(0);
  auto second = device().create_stream(0);
  auto event = device().create_event(0);
  ASSERT_TRUE(first.ok() && second.ok() && event.ok());
  EXPECT_FALSE((*second)->may_be_captured());
  (*first)->expose();
  Scope scope(device());
  const auto native = static_cast<CUstream>((*first)->native());
  ASSERT_EQ(begin(native, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(record(static_cast<CUevent>((*event)->native()), native), CUDA_SUCCESS);
  EXPECT_DONE((*second)->wait_event(**event));
  EXPECT_TRUE((*second)->may_be_captured());
  EXPECT_TRUE(*(*second)->is_capturing());
  CUgraph graph = nullptr;
  // The second stream was not joined again, so this may fail; it ends the capture.
  (void)end(native, &graph);
  if (graph != nullptr) {
    EXPECT_EQ(destroy(graph), CUDA_SUCCESS);
  }
  EXPECT_FALSE(*(*second)->is_capturing());
  EXPECT_DONE((*event)->release());
  EXPECT_DONE((*first)->release());
  EXPECT_DONE((*second)->release());
}

TEST_F(CudaFake, AThreadKeepsItsModeOfHeedingCaptures) {
  open();
  const char* const exchange = "cuThreadExchangeStreamCaptureMode";
  const auto visit = [&](const char* name) {
    FAKE(fake_cuda_section_begin)();
    EXPECT_DONE(device().await_released_streams());
    FAKE(fake_cuda_section_end)(name);
  };
  visit("plain");
  // The first did its work and answers the error of something else, the second did nothing.
  for (CUresult code : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_PERMITTED}) {
    FAKE(fake_cuda_fail)(exchange, 1, 0, code);
    visit("failed");
  }
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_TRUE(cu().ThreadExchangeStreamCaptureMode(&mode).ok());
  const uint64_t before = calls(exchange);
  visit("relaxed already");
  EXPECT_EQ(calls(exchange), before + 1) << "there is nothing to put back";
  ASSERT_TRUE(cu().ThreadExchangeStreamCaptureMode(&mode).ok());
}

TEST_F(CudaFake, ALostDeviceStillGivesBack) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  Pages pages(kMiB);
  std::vector<std::shared_ptr<backend::Memory>> all;
  for (const Request& one : {request(Sort::kDevice, 1000), request(Sort::kPinned, 1000),
                             request(Sort::kPinned, 4 * kMiB), registering(pages.get(), 10000)}) {
    auto memory = create_memory(device(), one);
    ASSERT_TRUE(memory.ok());
    all.push_back(*memory);
  }
  auto stream = device().create_stream(0);
  auto event = device().create_event(0);
  FAKE(fake_cuda_set_sticky)(0, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(device().lost()) << "nobody has noticed yet";
  EXPECT_FAILS(GPUMEM_ERROR_DEVICE_LOST, device().memory_available());
  EXPECT_TRUE(device().lost());
  EXPECT_FALSE(device(1).lost());
  EXPECT_DONE(device(1).memory_available());
  for (const auto& memory : all)
    EXPECT_DONE(memory->release());
  EXPECT_DONE((*stream)->release());
  EXPECT_DONE((*event)->release());
}

void* registered_pages = nullptr;
CUresult (*register_pages)(void*, size_t, unsigned) = nullptr;

// The driver may go on taking addresses for registered ones, so nobody else may get them.
TEST_F(CudaFake, ALostDeviceKeepsTheAddressesOfMemoryThatCouldNotBeMade) {
  open();
  register_pages = cu().MemHostRegister.function;
  Driver watched = cu();
  watched.MemHostRegister.function = [](void* pages, size_t size, unsigned flags) {
    registered_pages = pages;
    return register_pages(pages, size, flags);
  };
  const auto is_mapped = [] { return msync(registered_pages, platform::page_size(), MS_ASYNC) == 0; };
  struct Case {
    const char* function;
    CUresult code;
    bool keeps;
  };
  const Case cases[] = {{"cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, false},
                        {"cuMemHostRegister", CUDA_ERROR_ILLEGAL_ADDRESS, false},
                        {"cuMemHostGetDevicePointer", CUDA_ERROR_UNKNOWN, false},
                        {"cuMemHostGetDevicePointer", CUDA_ERROR_ILLEGAL_ADDRESS, true}};
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << one.function << " " << one.code);
    auto fresh = Device::open(watched, device().all(), 0, nullptr);
    ASSERT_TRUE(fresh.ok());
    FAKE(fake_cuda_fail)(one.function, 1, 0, one.code);
    EXPECT_FALSE(create_memory(**fresh, request(Sort::kPinned, 4 * kMiB)).ok());
    EXPECT_EQ(is_mapped(), one.keeps);
  }
  for (const CUresult code : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_ILLEGAL_ADDRESS}) {
    auto fresh = Device::open(watched, device().all(), 0, nullptr);
    ASSERT_TRUE(fresh.ok());
    FAKE(fake_cuda_fail)("cuMemHostUnregister", 1, 0, code);
    (void)(*fresh)->capability(GPUMEM_CAPABILITY_PIN_REGISTER, nullptr);
    EXPECT_EQ(is_mapped(), code == CUDA_ERROR_ILLEGAL_ADDRESS) << "the page of a trial";
  }
}

// ---- streams and events ----

TEST_F(CudaFake, AdoptedStreamsMustBeOfTheContext) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  auto theirs = device(1).create_stream(0);
  ASSERT_TRUE(theirs.ok());
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, device(0).wrap_stream((*theirs)->native()));
  auto ours = device(1).wrap_stream((*theirs)->native());
  ASSERT_TRUE(ours.ok()) << ours.error().message;
  EXPECT_EQ((*ours)->native(), (*theirs)->native());
  EXPECT_DONE((*ours)->release());
  EXPECT_EQ(live(FAKE_CUDA_STREAM), 1u) << "it stays its maker's";
  auto legacy = device(0).wrap_stream(nullptr);
  ASSERT_TRUE(legacy.ok());
  EXPECT_DONE((*legacy)->query());
  EXPECT_DONE((*legacy)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  EXPECT_DONE((*legacy)->release());
  EXPECT_DONE((*theirs)->release());
}

// The name stands for another stream on each thread, so nobody else may enqueue in it or wait for it.
TEST_F(CudaFake, TheDefaultStreamOfAThreadIsThatThreadsAlone) {
  open();
  auto own = device().wrap_stream(CU_STREAM_PER_THREAD);
  ASSERT_TRUE(own.ok()) << own.error().message;
  auto here = (*own)->is_capturing();
  ASSERT_TRUE(here.ok()) << here.error().message;
  EXPECT_FALSE(*here);
  EXPECT_DONE((*own)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  std::thread([&] { EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, (*own)->is_capturing()); }).join();
  EXPECT_DONE((*own)->release());
  auto legacy = device().wrap_stream(CU_STREAM_LEGACY);
  ASSERT_TRUE(legacy.ok()) << legacy.error().message;
  EXPECT_DONE((*legacy)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  EXPECT_DONE((*legacy)->release());
}

TEST_F(CudaFake, StreamsAreToldApartEvenWhenTheirHandlesAreReused) {
  open();
  const auto native = reinterpret_cast<PFN_cuStreamGetId_v12000>(dlsym(fake_library(), "cuStreamGetId"));
  std::set<uint64_t> seen;
  for (int round = 0; round < 20; ++round) {
    auto stream = device().create_stream(0);
    ASSERT_TRUE(stream.ok());
    EXPECT_NE((*stream)->identity(), 0u);
    EXPECT_TRUE(seen.insert((*stream)->identity()).second) << "given before";
    auto wrapped = device().wrap_stream((*stream)->native());
    ASSERT_TRUE(wrapped.ok());
    const bool has_ids = cu().version >= 12000;
    EXPECT_EQ((*wrapped)->identity(), has_ids ? (*stream)->identity() : 0) << "the driver alone knows";
    if (has_ids) {
      unsigned long long id = 0;
      Scope scope(device());
      ASSERT_EQ(native(static_cast<CUstream>((*stream)->native()), &id), CUDA_SUCCESS);
      EXPECT_EQ((*stream)->identity(), id);
    }
    EXPECT_DONE((*wrapped)->release());
    EXPECT_DONE((*stream)->release());
  }
}

TEST_F(CudaFake, PriorityIsCutToTheRange) {
  open();
  for (const auto& [asked, granted] : {std::pair{0, 0}, {-2, -2}, {-1000, -5}, {1000, 0}}) {
    auto stream = device().create_stream(asked);
    ASSERT_TRUE(stream.ok());
    EXPECT_EQ((*stream)->priority(), granted);
    EXPECT_DONE((*stream)->release());
  }
}

struct Gate {
  std::atomic<bool> open{false};
  static void wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open)
      std::this_thread::yield();
  }
};

TEST_F(CudaFake, AStreamThatCannotBeAskedForItsPriorityIsDestroyed) {
  open();
  FAKE(fake_cuda_fail)("cuStreamGetPriority", 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, device().create_stream(0));
  EXPECT_EQ(live(FAKE_CUDA_STREAM), 0u);
}

TEST_F(CudaFake, WaitsHaveATimeLimit) {
  open();
  auto stream = device().create_stream(0);
  auto event = device().create_event(0);
  auto start = device().create_event(0);
  Gate gate;
  EXPECT_DONE((*start)->record(**stream));
  EXPECT_DONE((*stream)->launch_host_function(Gate::wait, &gate, false));
  EXPECT_DONE((*event)->record(**stream));
  for (const uint64_t timeout : {uint64_t{0}, uint64_t{1}, uint64_t{3'000'000}}) {
    auto complete = (*stream)->synchronize(timeout);
    ASSERT_TRUE(complete.ok());
    EXPECT_FALSE(*complete);
    complete = (*event)->synchronize(timeout);
    ASSERT_TRUE(complete.ok());
    EXPECT_FALSE(*complete);
  }
  EXPECT_FALSE(*(*stream)->query());
  EXPECT_FALSE(*(*event)->query());
  auto elapsed = (*event)->elapsed_since(**start);
  ASSERT_TRUE(elapsed.ok());
  EXPECT_FALSE(elapsed->has_value());
  gate.open = true;
  EXPECT_TRUE(*(*event)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  EXPECT_TRUE(*(*stream)->synchronize(UINT64_MAX - 1));
  elapsed = (*event)->elapsed_since(**start);
  ASSERT_TRUE(elapsed.ok() && elapsed->has_value());
  EXPECT_GE(**elapsed, 0);
  EXPECT_DONE((*stream)->release());
  EXPECT_DONE((*event)->release());
  EXPECT_DONE((*start)->release());
}

// The driver crashes if an event is destroyed twice; the fake writes down that it was used once more.
TEST_F(CudaFake, AnEventBehindAReleasedStreamIsDestroyedOnce) {
  open();
  const auto release_busy_stream = [&] {
    auto stream = device().create_stream(0);
    ASSERT_TRUE(stream.ok());
    Gate gate;
    EXPECT_DONE((*stream)->launch_host_function(Gate::wait, &gate, false));
    EXPECT_DONE((*stream)->release());
    gate.open = true;
    EXPECT_EQ(FAKE(fake_cuda_settle)(), 1);
  };
  release_busy_stream();
  EXPECT_EQ(live(FAKE_CUDA_EVENT), 1u);
  for (const CUresult code : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_PERMITTED}) {
    FAKE(fake_cuda_fail)("cuEventDestroy", 1, 0, code);
    release_busy_stream();
    const bool turned_down = code == CUDA_ERROR_NOT_PERMITTED;
    EXPECT_EQ(live(FAKE_CUDA_EVENT), turned_down ? 2u : 1u) << "the next one has its own";
    EXPECT_EQ(violations(), "");
  }
  release_busy_stream();
  EXPECT_EQ(live(FAKE_CUDA_EVENT), 1u);
  EXPECT_DONE(device().await_released_streams());
  EXPECT_EQ(live(FAKE_CUDA_EVENT), 0u);
  EXPECT_DONE(device().await_released_streams());
}

TEST_F(CudaFake, ElapsedTimeOfAdoptedEventsWithoutTime) {
  open();
  auto plain = device().create_event(GPUMEM_EVENT_DISABLE_TIMING);
  ASSERT_TRUE(plain.ok());
  auto adopted = device().wrap_event((*plain)->native(), 0);
  ASSERT_TRUE(adopted.ok());
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, (*adopted)->elapsed_since(**adopted));
  EXPECT_DONE((*adopted)->release());
  EXPECT_DONE((*plain)->release());
}

// The first version of these calls, which older drivers have, must be switched on.
void allow_value_calls() {
  for (const CUdevice_attribute attribute :
       {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1,
        CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1}) {
    FAKE(fake_cuda_set_attribute)(-1, attribute, 1);
  }
}

TEST_F(CudaFake, ValuesAreWrittenAndWaitedFor) {
  allow_value_calls();
  open();
  auto memory = create_memory(device(), request(Sort::kPinned, 64));
  auto stream = device().create_stream(0);
  ASSERT_TRUE(memory.ok() && stream.ok());
  auto* const words = static_cast<uint64_t*>((*memory)->facts().host_pointer);
  words[0] = 0;
  words[1] = 0;
  EXPECT_DONE((*stream)->wait_value(span_in(Sort::kPinned, *memory, 8), 3, 8, GPUMEM_WAIT_GEQ));
  EXPECT_DONE((*stream)->write_value(span_in(Sort::kPinned, *memory, 0), 0x1'0000'0005, 8));
  EXPECT_DONE((*stream)->write_value(span_in(Sort::kPinned, *memory, 16), 0x7'0000'0006, 4));
  EXPECT_FALSE(*(*stream)->synchronize(1'000'000));
  __atomic_store_n(&words[1], 3, __ATOMIC_SEQ_CST);
  EXPECT_TRUE(*(*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  EXPECT_EQ(words[0], 0x1'0000'0005u);
  EXPECT_EQ(static_cast<uint32_t>(words[2]), 6u);
  EXPECT_DONE((*stream)->release());
  EXPECT_DONE((*memory)->release());
}

// ---- copies and fills ----

TEST_F(CudaFake, CopiesBetweenAllKinds) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  constexpr uint64_t kSize = 10000;
  constexpr uint64_t kOffset = 123;
  Pages pages(kMiB);
  std::vector<unsigned char> heap(kSize + kOffset);
  std::vector<std::pair<Sort, std::shared_ptr<backend::Memory>>> memories;
  const auto make = [&](Device& on, const Request& one) {
    auto memory = create_memory(on, one);
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    memories.emplace_back(one.sort, *memory);
  };
  make(device(0), request(Sort::kDevice, kSize + kOffset));
  make(device(1), request(Sort::kDevice, kSize + kOffset));
  make(device(0), request(Sort::kPinned, kSize + kOffset));
  make(device(0), registering(pages.get(), kSize + kOffset));
  auto stream = device(0).create_stream(0);
  ASSERT_TRUE(stream.ok());
  const auto span_of = [&](size_t index) {
    return index < memories.size() ? span_in(memories[index].first, memories[index].second, kOffset)
                                   : pageable(heap.data() + kOffset);
  };
  std::vector<unsigned char> pattern(kSize);
  std::vector<unsigned char> seen(kSize);
  fill_pattern(pattern.data(), kSize);
  for (size_t source = 0; source <= memories.size(); ++source) {
    for (size_t destination = 0; destination <= memories.size(); ++destination) {
      if (source == destination) continue;
      SCOPED_TRACE(testing::Message() << source << " to " << destination);
      pattern[0] = static_cast<unsigned char>(16 * source + destination);
      EXPECT_DONE((*stream)->copy(copy_of(span_of(source), pageable(pattern.data()), kSize)));
      EXPECT_DONE((*stream)->copy(copy_of(span_of(destination), span_of(source), kSize)));
      EXPECT_DONE((*stream)->copy(copy_of(pageable(seen.data()), span_of(destination), kSize)));
      EXPECT_TRUE(*(*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE));
      EXPECT_EQ(seen, pattern);
    }
  }
  EXPECT_DONE((*stream)->release());
  for (const auto& [sort, memory] : memories)
    EXPECT_DONE(memory->release());
}

TEST_F(CudaFake, ABlockIsKeptUntilItsCopyIsThrough) {
  open();
  auto memory = create_memory(device(), request(Sort::kDevice, 1000));
  auto stream = device().create_stream(0);
  ASSERT_TRUE(memory.ok() && stream.ok());
  const std::shared_ptr<void> block = std::make_shared<std::array<unsigned char, 1000>>();
  for (int round = 0; round < 3; ++round) {
    backend::CopySegment segment = copy_of(span_in(Sort::kDevice, *memory), pageable(block.get()), 1000);
    segment.keep = &block;
    EXPECT_DONE((*stream)->copy(segment));
  }
  EXPECT_TRUE(*(*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  EXPECT_EQ(block.use_count(), 1) << "nobody keeps it any longer";
  EXPECT_DONE((*stream)->release());
  EXPECT_DONE((*memory)->release());
}

TEST_F(CudaFake, RectanglesAndTheirPitch) {
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_MAX_PITCH, 5000);
  open();
  auto memory = create_memory(device(), request(Sort::kDevice, 64 * 1024));
  auto stream = device().create_stream(0);
  ASSERT_TRUE(memory.ok() && stream.ok());
  std::vector<unsigned char> from(64 * 1024);
  std::vector<unsigned char> to(64 * 1024, 0xEE);
  fill_pattern(from.data(), from.size());
  backend::CopySegment copy = copy_of(span_in(Sort::kDevice, *memory), pageable(from.data()), 100);
  copy.height = 10;
  copy.source_pitch = 300;
  copy.destination_pitch = 128;
  EXPECT_DONE((*stream)->copy(copy));
  copy = copy_of(pageable(to.data()), span_in(Sort::kDevice, *memory), 100);
  copy.height = 10;
  copy.source_pitch = 128;
  copy.destination_pitch = 200;
  EXPECT_DONE((*stream)->copy(copy));
  EXPECT_TRUE(*(*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE));
  for (size_t row = 0; row < 10; ++row) {
    EXPECT_EQ(std::memcmp(&to[200 * row], &from[300 * row], 100), 0) << row;
    EXPECT_EQ(to[200 * row + 100], 0xEE);
  }
  EXPECT_EQ(device().facts().pitch_max, 5000u) << "the layers above refuse what is larger";
  EXPECT_DONE((*stream)->release());
  EXPECT_DONE((*memory)->release());
}

// ---- pointers, peers, capabilities ----

TEST_F(CudaFake, ForeignPointers) {
  open();
  Scope scope(device());
  CUdeviceptr there = 0;
  void* pinned = nullptr;
  ASSERT_TRUE(cu().MemAlloc(&there, 5000).ok());
  ASSERT_TRUE(cu().MemHostAlloc(&pinned, 5000, 0).ok());
  auto facts = backend_->pointer_facts(reinterpret_cast<void*>(there + 100));
  ASSERT_TRUE(facts.ok());
  EXPECT_TRUE(facts->known);
  EXPECT_EQ(facts->location, GPUMEM_LOCATION_DEVICE);
  EXPECT_EQ(facts->location_id, 0);
  EXPECT_EQ(facts->device_ordinal, 0);
  EXPECT_EQ(facts->host_pointer, nullptr);
  EXPECT_EQ(facts->device_pointer, reinterpret_cast<void*>(there + 100));
  EXPECT_EQ(facts->base, reinterpret_cast<void*>(there));
  EXPECT_EQ(facts->size, 5000u);
  EXPECT_NE(facts->buffer_id, 0u);
  facts = backend_->pointer_facts(static_cast<char*>(pinned) + 7);
  ASSERT_TRUE(facts.ok());
  EXPECT_TRUE(facts->known);
  EXPECT_EQ(facts->location, GPUMEM_LOCATION_HOST);
  EXPECT_EQ(facts->location_id, -1);
  EXPECT_EQ(facts->host_pointer, static_cast<char*>(pinned) + 7);
  auto pointer = device().foreign_device_pointer(static_cast<char*>(pinned) + 7);
  ASSERT_TRUE(pointer.ok());
  EXPECT_EQ(*pointer, static_cast<char*>(pinned) + 7);
  int local = 0;
  facts = backend_->pointer_facts(&local);
  ASSERT_TRUE(facts.ok());
  EXPECT_FALSE(facts->known);
  EXPECT_FAILS(GPUMEM_ERROR_NO_ACCESS, device().foreign_device_pointer(&local));
  EXPECT_TRUE(cu().MemFree(there).ok());
  EXPECT_TRUE(cu().MemFreeHost(pinned).ok());
}

// The driver gives more than the memory in it; what lies around it is nobody else's.
TEST_F(CudaFake, WhatAnAlignmentCostsIsPartOfTheFacts) {
  open();
  Request aligned = request(Sort::kDevice, 1000);
  aligned.alignment = 64 * 1024;
  for (const Request& wanted : {aligned, request(Sort::kPinned, 1000, GPUMEM_MEMORY_WRITE_COMBINED)}) {
    auto memory = create_memory(device(), wanted);
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    const backend::MemoryFacts& facts = (*memory)->facts();
    auto driver = backend_->pointer_facts(facts.device_pointer);
    ASSERT_TRUE(driver.ok());
    EXPECT_TRUE(driver->known);
    EXPECT_EQ(driver->base, facts.allocation);
    EXPECT_EQ(driver->size, facts.allocation_size);
    EXPECT_GT(facts.allocation_size, 1000u);
    EXPECT_LE(address_of(facts.device_pointer) + 1000, address_of(facts.allocation) + facts.allocation_size);
    EXPECT_DONE((*memory)->release());
  }
}

TEST_F(CudaFake, PeerAccessOfOthersIsLeftAlone) {
  configure("FAKE_CUDA_DEVICES", "3");
  configure("FAKE_CUDA_PEERS", "0>1,1>0");
  open();
  EXPECT_TRUE(*device(0).can_access_peer(device(1)));
  EXPECT_FALSE(*device(0).can_access_peer(device(2)));
  EXPECT_EQ(device(0).capability(GPUMEM_CAPABILITY_PEER_ACCESS, &device(1)).value,
            uint64_t{GPUMEM_ANSWER_YES});
  EXPECT_EQ(device(0).capability(GPUMEM_CAPABILITY_PEER_ACCESS, &device(2)).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_FAILS(GPUMEM_ERROR_UNSUPPORTED, device(0).enable_peer_access(device(2)));
  Scope scope(device(0));
  EXPECT_TRUE(cu().CtxEnablePeerAccess(device(1).context(), 0).ok()) << "the trial has left nothing behind";
  auto enabled = device(0).enable_peer_access(device(1));
  ASSERT_TRUE(enabled.ok());
  EXPECT_FALSE(*enabled) << "on already";
  EXPECT_EQ(device(0).capability(GPUMEM_CAPABILITY_PEER_ACCESS, &device(1)).value,
            uint64_t{GPUMEM_ANSWER_YES});
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, device(0).disable_peer_access(device(1)));
  EXPECT_TRUE(cu().CtxDisablePeerAccess(device(1).context()).ok()) << "nobody else has switched it off";
}

// Whether device 0 can use the memory of device 1.
bool has_peer_access(Device& device, Device& peer) {
  const Scope scope(device);
  const Outcome outcome = device.cu().CtxEnablePeerAccess(peer.context(), 0);
  if (outcome.ok()) device.cu().CtxDisablePeerAccess(peer.context());
  return outcome.code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

TEST_F(CudaFake, PeerAccessIsOnUntilItsLastInstanceDisablesIt) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  auto other = std::move(backend_);
  open();
  const auto device_of = [](backend::Backend& backend, size_t ordinal) -> Device& {
    return static_cast<Device&>(*backend.devices().at(ordinal));
  };
  const auto enable = [&](backend::Backend& backend) {
    auto enabled = device_of(backend, 0).enable_peer_access(device_of(backend, 1));
    ASSERT_TRUE(enabled.ok()) << enabled.error().message;
    EXPECT_TRUE(*enabled) << "it is to be disabled again";
  };
  enable(*other);
  enable(*backend_);
  EXPECT_EQ(device(0).capability(GPUMEM_CAPABILITY_PEER_ACCESS, &device(1)).value,
            uint64_t{GPUMEM_ANSWER_YES});
  EXPECT_DONE(device_of(*other, 0).disable_peer_access(device_of(*other, 1)));
  EXPECT_TRUE(has_peer_access(device(0), device(1)));
  // An instance may also end without a disable, as it does when its device was lost.
  enable(*other);
  other.reset();
  EXPECT_TRUE(has_peer_access(device(0), device(1)));
  EXPECT_DONE(device(0).disable_peer_access(device(1)));
  EXPECT_FALSE(has_peer_access(device(0), device(1)));
}

TEST_F(CudaFake, PeerAccessMayBeGoneWithAContextThatWasReset) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  auto other = std::move(backend_);
  open();
  const auto switch_off = [&] {
    const Scope scope(device(0));
    EXPECT_TRUE(cu().CtxDisablePeerAccess(device(1).context()).ok());
  };
  EXPECT_DONE(device(0).enable_peer_access(device(1)));
  switch_off();
  EXPECT_DONE(device(0).disable_peer_access(device(1)));

  EXPECT_DONE(device(0).enable_peer_access(device(1)));
  switch_off();
  auto& same = static_cast<Device&>(*other->devices().at(0));
  auto& peer = static_cast<Device&>(*other->devices().at(1));
  EXPECT_DONE(same.enable_peer_access(peer));
  EXPECT_TRUE(has_peer_access(device(0), device(1)));
  EXPECT_DONE(device(0).disable_peer_access(device(1)));
  EXPECT_TRUE(has_peer_access(device(0), device(1)));
  EXPECT_DONE(same.disable_peer_access(peer));
  EXPECT_FALSE(has_peer_access(device(0), device(1)));
}

TEST_F(CudaFake, ADisableThatFailedCanBeRepeated) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  // The first was carried out, the second was not.
  for (const CUresult code : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_PERMITTED}) {
    EXPECT_DONE(device(0).enable_peer_access(device(1)));
    FAKE(fake_cuda_fail)("cuCtxDisablePeerAccess", 1, 0, code);
    EXPECT_FALSE(device(0).disable_peer_access(device(1)).ok());
    EXPECT_DONE(device(0).disable_peer_access(device(1)));
    EXPECT_FALSE(has_peer_access(device(0), device(1)));
  }
}

TEST_F(CudaFake, ATrialOfPeerAccessThatCannotBeUndoneSaysNo) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  FAKE(fake_cuda_fail)("cuCtxDisablePeerAccess", 1, 1, CUDA_ERROR_NOT_PERMITTED);
  const backend::Capability answer = device(0).capability(GPUMEM_CAPABILITY_PEER_ACCESS, &device(1));
  EXPECT_EQ(answer.value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(answer.source, GPUMEM_ANSWER_FROM_TRIAL);
  EXPECT_EQ(answer.native_code, CUDA_ERROR_NOT_PERMITTED);
  FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "");
  EXPECT_DONE(device(0).disable_peer_access(device(1)));
  EXPECT_FALSE(has_peer_access(device(0), device(1)));
}

// Set while a trial of peer access has it switched on.
std::atomic<bool> trial_runs{false};
std::atomic<bool> enabled_meanwhile{false};
CUresult (*disable_peer_access)(CUcontext) = nullptr;

TEST_F(CudaFake, ATrialOfPeerAccessSwitchesNobodyElsesOff) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  // Another instance, whose driver gives everybody the time to come between the two steps of its trial.
  trial_runs = false;
  enabled_meanwhile = false;
  disable_peer_access = cu().CtxDisablePeerAccess.function;
  Driver slow = cu();
  slow.CtxDisablePeerAccess.function = [](CUcontext peer) {
    trial_runs = true;
    for (int round = 0; round < 100 && !enabled_meanwhile; ++round)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return disable_peer_access(peer);
  };
  auto first = Device::open(slow, device().all(), 0, nullptr);
  auto second = Device::open(slow, device().all(), 1, nullptr);
  ASSERT_TRUE(first.ok() && second.ok());
  std::thread trial([&] {
    EXPECT_EQ((*first)->capability(GPUMEM_CAPABILITY_PEER_ACCESS, second->get()).value,
              uint64_t{GPUMEM_ANSWER_YES});
  });
  while (!trial_runs)
    std::this_thread::yield();
  EXPECT_DONE(device(0).enable_peer_access(device(1)));
  enabled_meanwhile = true;
  trial.join();
  EXPECT_TRUE(has_peer_access(device(0), device(1)));
  EXPECT_DONE(device(0).disable_peer_access(device(1)));
}

TEST_F(CudaFake, EveryCapabilityHasAReasonAndLeavesNothing) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  for (gpumem_capability what = 1; what <= 61; ++what) {
    const bool of_a_pair = what >= GPUMEM_CAPABILITY_PEER_ACCESS;
    const backend::Capability answer = device(0).capability(what, of_a_pair ? &device(1) : nullptr);
    SCOPED_TRACE(testing::Message() << what << ": " << answer.reason);
    EXPECT_STRNE(answer.reason, "");
    EXPECT_EQ(std::strchr(answer.reason, '\n'), nullptr);
    if (answer.type == GPUMEM_ANSWER_TYPE_TRI) {
      EXPECT_EQ(answer.status == GPUMEM_SUCCESS, answer.value != GPUMEM_ANSWER_NO);
    }
    EXPECT_EQ(live(FAKE_CUDA_ANY), 4u) << "only the two contexts, and a module in each";
  }
}

TEST_F(CudaFake, CapabilitiesFollowAttributesAndTrials) {
  open();
  const auto ask = [&](gpumem_capability what) { return device().capability(what, nullptr); };
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_REGISTER).source, GPUMEM_ANSWER_FROM_TRIAL);
  FAKE(fake_cuda_fail)("cuMemHostRegister", 1, 0, CUDA_ERROR_NOT_PERMITTED);
  backend::Capability refused_by_trial = ask(GPUMEM_CAPABILITY_PIN_REGISTER);
  EXPECT_EQ(refused_by_trial.value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(refused_by_trial.status, GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(refused_by_trial.native_code, 800);
  FAKE(fake_cuda_fail)("cuMemExportToShareableHandle", 1, 0, CUDA_ERROR_NOT_SUPPORTED);
  refused_by_trial = ask(GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD);
  EXPECT_EQ(refused_by_trial.value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(refused_by_trial.source, GPUMEM_ANSWER_FROM_TRIAL);
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 0);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_REGISTER).source, GPUMEM_ANSWER_FROM_ATTRIBUTE);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_REGISTER).status, GPUMEM_ERROR_UNSUPPORTED);
  allow_value_calls();
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_STREAM_VALUE32).value, uint64_t{GPUMEM_ANSWER_YES});
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_STREAM_VALUE64).value, uint64_t{GPUMEM_ANSWER_YES});
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_STREAM_VALUE_NOR).value, uint64_t{GPUMEM_ANSWER_YES});
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0);
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 0);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_STREAM_VALUE64).value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_MAX_SINGLE).value,
            cu().version >= 13000 ? uint64_t{512} << 30 : static_cast<uint64_t>(INT64_MAX));
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_MAX_COUNT).value, kRegistrationsMax);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_COPY_ENGINES).value, 3u);
}

// ---- threads ----

TEST_F(CudaFake, ManyThreadsAtOnce) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  std::vector<std::thread> threads;
  for (size_t index = 0; index < 4; ++index) {
    threads.emplace_back([this, index] {
      Device& mine = device(index % 2);
      for (int round = 0; round < 20; ++round) {
        auto memory = create_memory(mine, request(Sort::kDevice, 4096));
        auto stream = mine.create_stream(0);
        ASSERT_TRUE(memory.ok() && stream.ok());
        std::vector<unsigned char> bytes(4096, static_cast<unsigned char>(index));
        std::vector<unsigned char> seen(4096);
        backend::CopySegment copy = copy_of(span_in(Sort::kDevice, *memory), pageable(bytes.data()), 4096);
        EXPECT_DONE((*stream)->copy(copy));
        EXPECT_DONE((*stream)->copy(copy_of(pageable(seen.data()), span_in(Sort::kDevice, *memory), 4096)));
        EXPECT_TRUE(*(*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE));
        EXPECT_EQ(seen, bytes);
        EXPECT_DONE((*memory)->release());
        EXPECT_DONE((*stream)->release());
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

// The driver crashes if it has to do both at the same time; the fake takes its time, and writes down if it
// had to.
TEST_F(CudaFake, AnAddressIsNotAskedAboutWhileItsMemoryEnds) {
  open();
  const Pages pages(4096);
  Request requests[] = {request(Sort::kDevice, 4096), request(Sort::kDevice, 4096),
                        request(Sort::kPinned, 4096),
                        request(Sort::kPinned, 4096, GPUMEM_MEMORY_WRITE_COMBINED),
                        request(Sort::kRegistered, 4096, GPUMEM_MEMORY_MAPPED)};
  requests[1].alignment = 8 * kMiB;  // an address range of its own
  requests[4].pointer = pages.get();
  for (const Request& wanted : requests) {
    auto first = create_memory(device(), wanted);
    ASSERT_TRUE(first.ok()) << first.error().message;
    std::atomic<uint64_t> address{address_of((*first)->facts().device_pointer)};
    EXPECT_TRUE(backend_->pointer_facts(pointer_to(address))->known);
    configure("FAKE_CUDA_POINTER_DELAY_US", "300");
    std::atomic<bool> finished{false};
    std::thread maker([&] {
      EXPECT_DONE((*first)->release());
      for (int round = 0; round < 20; ++round) {
        auto memory = create_memory(device(), wanted);
        EXPECT_DONE(memory);
        if (!memory.ok()) break;
        address = address_of((*memory)->facts().device_pointer);
        EXPECT_DONE((*memory)->release());
      }
      finished = true;
    });
    while (!finished) {
      EXPECT_DONE(backend_->pointer_facts(pointer_to(address + 1000)));
      auto known = device().foreign_device_pointer(pointer_to(address + 1000));
      EXPECT_TRUE(known.ok() || known.error().status == GPUMEM_ERROR_NO_ACCESS) << known.error().message;
    }
    maker.join();
    configure("FAKE_CUDA_POINTER_DELAY_US", "0");
    EXPECT_FALSE(backend_->pointer_facts(pointer_to(address))->known);
  }
}

}  // namespace
}  // namespace gpumem::cuda
