// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "backends/cuda/driver_pool.h"
#include "backends/cuda/managed.h"
#include "backends/cuda/pointer.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/host_budget.h"
#include "platform/numa.h"
#include "platform/pages.h"
#include "platform/thread_record.h"

namespace gpumem::cuda {
namespace {

// Alignment that cuMemAlloc and cuMemHostAlloc guarantee.
constexpr uint64_t kDriverAlignment = 256;
// The driver allocates in units of this size, so an alignment may waste as much (COM-3).
constexpr uint64_t kAlignmentSlackMax = kBlock;

constexpr uint64_t kHugePage = uint64_t{2} << 20;
// Below these sizes, starting threads is not worth the cost.
constexpr uint64_t kTouchedInParallel = uint64_t{8} << 20;
constexpr uint64_t kTouchedByThread = uint64_t{4} << 20;
constexpr uint32_t kTouchThreadsMax = 16;
constexpr uint32_t kPopulateThreadsMax = 4;

// Of memory IN_PIECES: other calls of the driver wait for a registration to end, and it takes longer the
// larger it is (docs/measured/pinning.md).
constexpr uint64_t kPiece = uint64_t{256} << 20;
// Pause between pieces, because a thread that retakes the driver's lock at once starves its waiters.
constexpr std::chrono::microseconds kPause{200};

// If the driver is out of memory with this many registrations, the limit on registrations is reached.
constexpr uint64_t kManyRegistrations = 8192;
constinit std::atomic<uint64_t> live_registrations{0};

gpumem_memory_flags page_locked(const Device& device) {
  // A device that uses the host's page tables does not need locked pages.
  return device.traits().uses_host_page_tables ? 0 : GPUMEM_MEMORY_PAGE_LOCKED;
}

Result<void*> device_pointer_of(Device& device, void* host_pointer) {
  CUdeviceptr address = 0;
  GPUMEM_TRY(device.check(device.cu().MemHostGetDevicePointer(&address, host_pointer, 0), Place::kDevice,
                          "cannot get an address of the pinned memory for device %u",
                          device.facts().ordinal));
  return pointer_to(address);
}

// Whether a range is registered in pieces. The driver's own copies fail where one ends, so that is done only
// if asked for, or if the driver would not take the range as a whole (PIN-15).
bool in_pieces(const Device& device, uint64_t size, gpumem_memory_flags wanted) {
  return (wanted & GPUMEM_MEMORY_IN_PIECES) != 0 || size >= largest_registration(device.cu());
}

Error unmet_alignment(uint64_t alignment) {
  return make_error(GPUMEM_ERROR_UNSUPPORTED,
                    "this memory cannot be aligned to %llu bytes; request a smaller alignment",
                    static_cast<unsigned long long>(alignment));
}

Error no_pieces(const char* which) {
  return make_error(GPUMEM_ERROR_UNSUPPORTED,
                    "the driver cannot lock %s memory in pieces; do not require GPUMEM_MEMORY_IN_PIECES",
                    which);
}

// ---- device memory ----

class LinearMemory final : public Memory {
 public:
  using Memory::Memory;

  Result<void> allocate(uint64_t size, uint64_t alignment) {
    const uint64_t slack = alignment > kDriverAlignment ? alignment - kDriverAlignment : 0;
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    GPUMEM_TRY(device_.check(device_.cu().MemAlloc(&base_, size + slack), Place::kDevice,
                             "cannot allocate %llu bytes on device %u", static_cast<unsigned long long>(size),
                             device_.facts().ordinal));
    facts_.granted_size = size + slack;
    facts_.device_pointer = pointer_to(round_up(base_, std::max(alignment, kDriverAlignment)));
    if (slack != 0) {
      facts_.allocation = pointer_to(base_);
      facts_.allocation_size = facts_.granted_size;
    }
    return {};
  }

  // In blocks of its own. An importer finds the memory at their beginning.
  Result<void> allocate_alone(uint64_t size, uint64_t alignment) {
    GPUMEM_TRY(allocate(round_up(size, kBlock), 0));
    if (base_ % std::max(alignment, kDriverAlignment) != 0) {
      if (!release()) (void)release();
      return unmet_alignment(alignment);
    }
    facts_.allocation = facts_.device_pointer;
    facts_.allocation_size = facts_.granted_size;
    facts_.granted = GPUMEM_MEMORY_SHAREABLE;
    return {};
  }

  CUdeviceptr linear_base() const override { return base_; }

  Result<void> release() override {
    if (base_ == 0) return {};
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered_for_release());
    const Outcome outcome = free();
    if (!refused(outcome)) base_ = 0;
    return device_.check_release(outcome, "cannot free the device memory");
  }

 private:
  Outcome free() {
    const platform::Freeing freeing(base_, facts_.granted_size);
    return device_.cu().MemFree(base_);
  }

  CUdeviceptr base_ = 0;
};

// Device memory whose alignment would make cuMemAlloc waste more than the contract allows.
class AlignedMemory final : public Memory {
 public:
  using Memory::Memory;

  Result<void> allocate(uint64_t size, uint64_t alignment) {
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    Cleanup undo([&] { (void)give_back(); });
    GPUMEM_TRY(build(size, alignment));
    undo.dismiss();
    return {};
  }

  Result<void> release() override {
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered_for_release());
    return give_back();
  }

 private:
  Result<void> build(uint64_t size, uint64_t alignment) {
    const Driver& cu = device_.cu();
    const uint32_t ordinal = device_.facts().ordinal;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_.handle();
    size_t granularity = 0;
    GPUMEM_TRY(device_.check(
        cu.MemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        Place::kDevice, "cannot query the granularity of device %u", ordinal));
    const uint64_t granted = round_up(size, granularity);

    const Outcome reserved = cu.MemAddressReserve(&address_, granted, alignment, 0, 0);
    if (reserved.code == CUDA_ERROR_INVALID_VALUE) return unmet_alignment(alignment);
    GPUMEM_TRY(device_.check(reserved, Place::kAddresses, "cannot reserve addresses for %llu bytes",
                             static_cast<unsigned long long>(granted)));
    reserved_ = granted;
    if (address_ % alignment != 0) return unmet_alignment(alignment);
    GPUMEM_TRY(device_.check(cu.MemCreate(&block_, granted, &properties, 0), Place::kDevice,
                             "cannot allocate %llu bytes on device %u",
                             static_cast<unsigned long long>(granted), ordinal));
    has_block_ = true;
    GPUMEM_TRY(device_.check(cu.MemMap(address_, granted, 0, block_, 0), Place::kDevice,
                             "cannot map the memory on device %u", ordinal));
    mapped_ = true;
    auto access = accessors();
    if (!access) return access.error();
    GPUMEM_TRY(device_.check(cu.MemSetAccess(address_, granted, access->data(), access->size()),
                             Place::kDevice, "cannot give device %u access to its memory", ordinal));
    facts_.device_pointer = pointer_to(address_);
    facts_.granted_size = granted;
    in_blocks_ = true;
    return {};
  }

  // Peer access covers all memory of a device (DEV-7), but the driver excludes mapped blocks. So every linked
  // device gets access from the start.
  Result<std::vector<CUmemAccessDesc>> accessors() {
    std::vector<CUmemAccessDesc> result;
    for (const CUdevice device : device_.all()) {
      int can = 1;
      if (device != device_.handle()) {
        GPUMEM_TRY(device_.check(device_.cu().DeviceCanAccessPeer(&can, device, device_.handle()),
                                 Place::kHost, "cannot query which devices can access device %u",
                                 device_.facts().ordinal));
      }
      if (can == 0) continue;
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      result.push_back(access);
    }
    return result;
  }

  Result<void> give_back() {
    const Driver& cu = device_.cu();
    Result<void> result;
    const auto tried = [&](Outcome outcome) {
      auto step = device_.check_release(outcome, "cannot free the device memory");
      if (result.ok() && !step.ok()) result = step;
      return !refused(outcome);
    };
    const platform::Freeing freeing(address_, reserved_);
    if (mapped_ && tried(cu.MemUnmap(address_, reserved_))) mapped_ = false;
    if (has_block_ && !mapped_ && tried(cu.MemRelease(block_))) has_block_ = false;
    if (reserved_ != 0 && !mapped_ && tried(cu.MemAddressFree(address_, reserved_))) reserved_ = 0;
    return result;
  }

  CUdeviceptr address_ = 0;
  uint64_t reserved_ = 0;  // bytes
  CUmemGenericAllocationHandle block_ = 0;
  bool has_block_ = false;
  bool mapped_ = false;
};

// Memory of any sort from a pool of the driver.
class PooledMemory final : public Memory {
 public:
  PooledMemory(Device& device, DriverPool& pool)
      : Memory(device), pool_(pool), pinned_(pool.sort() == backend::MemorySort::kPinned) {}

  // The driver aligns to less than 64 KiB where smaller blocks lie before, so try without slack first.
  Result<void> allocate(uint64_t size, uint64_t alignment) {
    alignment = std::max(alignment, kDriverAlignment);
    for (const uint64_t slack : {uint64_t{0}, alignment}) {
      auto made = pool_.allocate(size + slack);
      if (!made) return made.error();
      base_ = *made;
      facts_.granted_size = size + slack;
      const uint64_t begin = round_up(base_, alignment);
      if (begin + size <= base_ + facts_.granted_size) {
        note(begin);
        return {};
      }
      auto released = release();
      if (!released) {
        (void)release();
        return released;
      }
    }
    return unmet_alignment(alignment);
  }

  Result<void> release() override {
    if (base_ == 0) return {};
    // The driver may reuse the pages.
    if (pinned_) platform::give_to_children(pointer_to(base_), facts_.granted_size);
    const Outcome outcome = free();
    if (!refused(outcome)) base_ = 0;
    return device_.check_release(outcome, "cannot give memory back to the driver's pool");
  }

 private:
  void note(uint64_t begin) {
    facts_.device_pointer = pointer_to(begin);
    if (pool_.sort() != backend::MemorySort::kDevice) facts_.host_pointer = facts_.device_pointer;
    facts_.allocation = pointer_to(base_);
    facts_.allocation_size = facts_.granted_size;
    facts_.numa_node = pool_.node();
    in_blocks_ = true;  // of the driver's own
    if (!pinned_) return;
    platform::keep_from_children(pointer_to(base_), facts_.granted_size);
    facts_.granted = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | page_locked(device_);
    if (pool_.node() >= 0) facts_.granted |= GPUMEM_MEMORY_NUMA_NODE;
  }

  Outcome free() {
    const platform::Freeing freeing(base_, facts_.granted_size);
    return pool_.free(base_);
  }

  DriverPool& pool_;
  const bool pinned_;
  CUdeviceptr base_ = 0;
};

Result<std::unique_ptr<backend::Memory>> create_pooled(Device& device,
                                                       const backend::MemoryRequest& request) {
  if (request.sort == backend::MemorySort::kPinned && request.size >= platform::kLargeOnHost)
    GPUMEM_TRY(platform::check_host_budget(request.size));
  auto pool = device.driver_pool(request);
  if (!pool) return pool.error();
  auto memory = std::make_unique<PooledMemory>(device, **pool);
  GPUMEM_TRY(memory->allocate(request.size, request.alignment));
  return std::unique_ptr<backend::Memory>(std::move(memory));
}

Result<std::unique_ptr<backend::Memory>> create_on_device(Device& device,
                                                          const backend::MemoryRequest& request,
                                                          gpumem_memory_flags wanted) {
  if (request.alignment > kAlignmentMax) return unmet_alignment(request.alignment);
  if ((wanted & GPUMEM_MEMORY_SHAREABLE) != 0) {
    if (request.alignment > kBlock) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "memory that is shareable cannot be aligned to %llu bytes; request 2 MiB at most",
                        static_cast<unsigned long long>(request.alignment));
    }
    auto memory = std::make_unique<LinearMemory>(device);
    GPUMEM_TRY(memory->allocate_alone(request.size, request.alignment));
    return std::unique_ptr<backend::Memory>(std::move(memory));
  }
  if (request.alignment <= std::max(kAlignmentSlackMax, request.size / 8)) {
    auto memory = std::make_unique<LinearMemory>(device);
    GPUMEM_TRY(memory->allocate(request.size, request.alignment));
    return std::unique_ptr<backend::Memory>(std::move(memory));
  }
  auto memory = std::make_unique<AlignedMemory>(device);
  GPUMEM_TRY(memory->allocate(request.size, request.alignment));
  return std::unique_ptr<backend::Memory>(std::move(memory));
}

// ---- pinned memory ----

// Memory of cuMemHostAlloc, the only source of write-combined memory. It occupies whole pages, so that they
// can be kept out of forked children (COM-25).
class DriverPinnedMemory final : public Memory {
 public:
  using Memory::Memory;

  Result<void> allocate(uint64_t size, uint64_t alignment, gpumem_memory_flags wanted) {
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    const uint64_t unit = std::max(alignment, platform::page_size());
    pages_size_ = round_up(size, platform::page_size());
    const uint64_t whole = pages_size_ + unit - kDriverAlignment;
    // The first two are implied by unified addressing; passing them makes cuMemHostGetFlags agree (PIN-2).
    unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    if ((wanted & GPUMEM_MEMORY_WRITE_COMBINED) != 0) flags |= CU_MEMHOSTALLOC_WRITECOMBINED;
    GPUMEM_TRY(device_.check(device_.cu().MemHostAlloc(&base_, whole, flags), Place::kHost,
                             "cannot allocate %llu bytes of pinned memory",
                             static_cast<unsigned long long>(size)));
    facts_.granted_size = whole;
    Cleanup undo([&] { free(); });
    facts_.host_pointer = pointer_to(round_up(address_of(base_), unit));
    if (device_.traits().can_map_host) {
      auto pointer = device_pointer_of(device_, facts_.host_pointer);
      if (!pointer) return pointer.error();
      facts_.device_pointer = *pointer;
    }
    facts_.allocation = base_;
    facts_.allocation_size = whole;
    platform::keep_from_children(facts_.host_pointer, pages_size_);
    facts_.granted = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | page_locked(device_) |
                     (wanted & GPUMEM_MEMORY_WRITE_COMBINED);
    undo.dismiss();
    return {};
  }

  Result<void> release() override {
    if (base_ == nullptr) return {};
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered_for_release());
    // The driver may reuse the pages.
    platform::give_to_children(facts_.host_pointer, pages_size_);
    const Outcome outcome = free();
    if (!refused(outcome)) base_ = nullptr;
    return device_.check_release(outcome, "cannot free the pinned memory");
  }

 private:
  Outcome free() {
    const platform::Freeing freeing(address_of(base_), facts_.granted_size);
    return device_.cu().MemFreeHost(base_);
  }

  void* base_ = nullptr;
  uint64_t pages_size_ = 0;
};

// The library's own pages, registered: faster than cuMemHostAlloc at every size (docs/measured), and the only
// way to choose a node or alignment and to keep the memory out of forked children.
class MappedPinnedMemory final : public Memory {
 public:
  MappedPinnedMemory(Device& device, void* base, uint64_t size, uint64_t mapped_size, bool in_pieces)
      : Memory(device),
        range_(device, base, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP,
               in_pieces ? kPiece : kSizeMax) {
    facts_.host_pointer = base;
    facts_.granted_size = mapped_size;
    facts_.granted = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | page_locked(device);
    if (in_pieces) facts_.granted |= GPUMEM_MEMORY_IN_PIECES;
  }

  // From here on the memory owns the pages, and frees them if locking fails.
  Result<void> lock() {
    RelaxedScope scope(device_);
    Cleanup undo([&] {
      (void)range_.unlock();
      (void)end_pages();
    });
    GPUMEM_TRY(scope.entered());
    GPUMEM_TRY(range_.lock());
    if (device_.traits().can_map_host) {
      auto pointer = device_pointer_of(device_, facts_.host_pointer);
      if (!pointer) return pointer.error();
      facts_.device_pointer = *pointer;
    }
    undo.dismiss();
    return {};
  }

  void set_node(int32_t node) {
    facts_.numa_node = node;
    facts_.granted |= GPUMEM_MEMORY_NUMA_NODE;
  }

  uint64_t contiguous(uint64_t offset) const override { return range_.contiguous(offset); }

  Result<void> release() override {
    if (!mapped_) return {};
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered_for_release());
    GPUMEM_TRY(range_.unlock());
    mapped_ = false;
    return end_pages();
  }

 private:
  Result<void> end_pages() {
    if (device_.lost() && range_.was_locked()) {
      // The driver may still consider these addresses registered, so they are never reused.
      return platform::make_inaccessible(facts_.host_pointer, facts_.granted_size);
    }
    platform::unmap(facts_.host_pointer, facts_.granted_size);
    return {};
  }

  LockedRange range_;
  bool mapped_ = true;
};

Result<std::unique_ptr<backend::Memory>> create_mapped_pinned(Device& device,
                                                              const backend::MemoryRequest& request,
                                                              gpumem_memory_flags wanted) {
  const uint64_t page = platform::page_size();
  const uint64_t size = round_up(request.size, page);
  auto mapping =
      platform::map_anonymous(size, std::max(request.alignment, size < kHugePage ? page : kHugePage));
  if (!mapping) return mapping.error();
  void* const base = *mapping;
  Cleanup undo([&] { platform::unmap(base, size); });
  if (size >= kHugePage) platform::use_huge_pages(base, size);

  const bool node_wanted = (wanted & GPUMEM_MEMORY_NUMA_NODE) != 0;
  const int32_t node = node_wanted ? request.numa_node : device.facts().numa_node;
  if (node_wanted) {
    GPUMEM_TRY(platform::bind_to_node(base, size, node));
  } else if (device.traits().near_a_node) {
    // Only prefer the node: with pages bound to a full node, the process would be killed.
    platform::prefer_node(base, size, node);
  }
  if (size < kTouchedInParallel) {
    GPUMEM_TRY(platform::populate(base, size, 1));
  } else {
    platform::touch_fresh(
        base, size, static_cast<uint32_t>(std::min<uint64_t>(size / kTouchedByThread, kTouchThreadsMax)));
  }

  auto memory = std::make_unique<MappedPinnedMemory>(device, base, request.size, size,
                                                     in_pieces(device, request.size, wanted));
  undo.dismiss();
  GPUMEM_TRY(memory->lock());
  if (node_wanted) memory->set_node(node);
  return std::unique_ptr<backend::Memory>(std::move(memory));
}

Result<std::unique_ptr<backend::Memory>> create_pinned(Device& device, const backend::MemoryRequest& request,
                                                       gpumem_memory_flags wanted) {
  if (request.alignment > kAlignmentMax) return unmet_alignment(request.alignment);
  if (request.size >= platform::kLargeOnHost) GPUMEM_TRY(platform::check_host_budget(request.size));
  const bool write_combined = (wanted & GPUMEM_MEMORY_WRITE_COMBINED) != 0;
  // Pieces form one device range only if device and host addresses are equal.
  if (!write_combined && device.traits().same_pointer) return create_mapped_pinned(device, request, wanted);
  if ((wanted & GPUMEM_MEMORY_NUMA_NODE) != 0) {
    return make_error(
        GPUMEM_ERROR_UNSUPPORTED,
        "the driver cannot place %s pinned memory on a NUMA node; do not request GPUMEM_MEMORY_NUMA_NODE",
        write_combined ? "write-combined" : "this");
  }
  if ((wanted & GPUMEM_MEMORY_IN_PIECES) != 0) return no_pieces(write_combined ? "write-combined" : "this");
  if (request.alignment > kAlignmentSlackMax / 2) return unmet_alignment(request.alignment);
  auto memory = std::make_unique<DriverPinnedMemory>(device);
  GPUMEM_TRY(memory->allocate(request.size, request.alignment, wanted));
  return std::unique_ptr<backend::Memory>(std::move(memory));
}

// ---- registered memory ----

class RegisteredMemory final : public Memory {
 public:
  RegisteredMemory(Device& device, const backend::RegistrationRequest& request, unsigned flags,
                   uint64_t piece, gpumem_memory_flags granted)
      : Memory(device), range_(device, request.pointer, request.size, flags, piece) {
    facts_.host_pointer = request.pointer;
    facts_.granted_size = request.size;
    facts_.granted = granted;
  }

  Result<void> lock() {
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    GPUMEM_TRY(range_.lock());
    // Without MAPPED there is no device pointer, even if the driver would return one (PIN-4).
    if ((facts_.granted & GPUMEM_MEMORY_MAPPED) == 0 || !device_.traits().can_map_host) return {};
    auto pointer = device_pointer_of(device_, facts_.host_pointer);
    if (!pointer) {
      (void)range_.unlock();
      return pointer.error();
    }
    facts_.device_pointer = *pointer;
    return {};
  }

  uint64_t contiguous(uint64_t offset) const override { return range_.contiguous(offset); }

  bool reachable_from(const Device& device) const override {
    const bool pinned_for = (facts_.granted & GPUMEM_MEMORY_PORTABLE) != 0 || &device == &device_;
    return facts_.device_pointer != nullptr && pinned_for;
  }

  Result<void> release() override {
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered_for_release());
    return range_.unlock();
  }

 private:
  LockedRange range_;
};

// Populate absent pages first: the driver faults them in one by one while every other call waits.
Result<void> populate_absent(const backend::RegistrationRequest& request) {
  if (request.size < platform::kLargeOnHost) return {};
  const uint64_t absent = platform::absent_bytes(request.pointer, request.size);
  if (absent < request.size / 2) return {};
  GPUMEM_TRY(platform::check_host_budget(absent));
  const uint64_t page = platform::page_size();
  const uint64_t begin = round_down(address_of(request.pointer), page);
  const uint64_t end = round_up(address_of(request.pointer) + request.size, page);
  // If this fails, the driver's registration reports why.
  (void)platform::populate(pointer_to(begin), end - begin, kPopulateThreadsMax);
  return {};
}

// The driver returns one code for everything wrong with a mapping. The cause is diagnosed afterwards, so that
// successful registrations do not pay for probing every page.
Error explain_refusal(Device& device, const backend::RegistrationRequest& request, bool read_only,
                      Error error) {
  const auto because = [&](Status status, const char* why) {
    error.status = status;
    std::snprintf(error.message, sizeof error.message, "cannot page-lock %llu bytes at %p: %s",
                  static_cast<unsigned long long>(request.size), request.pointer, why);
    return error;
  };
  const uint64_t first = address_of(request.pointer);
  for (const uint64_t address : {first, first + request.size - 1}) {
    auto known = pointer_facts(device, pointer_to(address));
    if (!known || !known->known) continue;
    if (known->location == GPUMEM_LOCATION_HOST) {
      return because(GPUMEM_ERROR_ALREADY_EXISTS, "other code has already pinned them; use them as they are");
    }
    return because(GPUMEM_ERROR_WRONG_KIND,
                   "they belong to the driver; only ordinary memory can be registered");
  }
  if (!platform::readable(request.pointer, request.size)) {
    return because(GPUMEM_ERROR_INVALID_ARGUMENT,
                   "a page is not mapped; only mapped memory can be registered");
  }
  if (!read_only && !platform::writable(request.pointer, request.size)) {
    return because(GPUMEM_ERROR_PERMISSION_DENIED,
                   "the CPU may only read them; require GPUMEM_MEMORY_READ_ONLY");
  }
  return because(
      GPUMEM_ERROR_UNSUPPORTED,
      "the driver cannot lock such a mapping, for example a shared mapping of a file on disk; map the file "
      "privately, or require GPUMEM_MEMORY_READ_ONLY");
}

Result<std::unique_ptr<backend::Memory>> create_registered(Device& device,
                                                           const backend::RegistrationRequest& request,
                                                           gpumem_memory_flags wanted) {
  const bool read_only = (wanted & GPUMEM_MEMORY_READ_ONLY) != 0;
  const bool io_memory = (wanted & GPUMEM_MEMORY_IOMEMORY) != 0;
  unsigned flags = 0;
  if ((wanted & GPUMEM_MEMORY_PORTABLE) != 0) flags |= CU_MEMHOSTREGISTER_PORTABLE;
  if ((wanted & GPUMEM_MEMORY_MAPPED) != 0) flags |= CU_MEMHOSTREGISTER_DEVICEMAP;
  if (read_only) flags |= CU_MEMHOSTREGISTER_READ_ONLY;
  if (io_memory) flags |= CU_MEMHOSTREGISTER_IOMEMORY;

  // Pieces with separate device addresses would not form one range.
  const bool one_piece = (wanted & GPUMEM_MEMORY_MAPPED) != 0 && !device.traits().same_pointer;
  if (one_piece && (wanted & GPUMEM_MEMORY_IN_PIECES) != 0) return no_pieces("mapped");
  if (const uint64_t most = largest_registration(device.cu()); one_piece && request.size > most) {
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                      "%llu bytes exceed pin.max_single, which is %llu bytes, and mapped memory cannot be "
                      "split on this system; register smaller ranges",
                      static_cast<unsigned long long>(request.size), static_cast<unsigned long long>(most));
  }
  constexpr gpumem_memory_flags kAsAsked =
      GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_IOMEMORY;
  gpumem_memory_flags granted = (wanted & kAsAsked) | page_locked(device);
  const bool pieces = !one_piece && in_pieces(device, request.size, wanted);
  if (pieces) granted |= GPUMEM_MEMORY_IN_PIECES;
  auto memory =
      std::make_unique<RegisteredMemory>(device, request, flags, pieces ? kPiece : kSizeMax, granted);
  if (!read_only && !io_memory) GPUMEM_TRY(populate_absent(request));
  auto locked = memory->lock();
  if (locked) return std::unique_ptr<backend::Memory>(std::move(memory));
  // Pages of I/O memory cannot be probed, so the driver's code is final.
  const bool unclear = locked.error().native_domain == GPUMEM_NATIVE_CUDA &&
                       locked.error().native_code == CUDA_ERROR_INVALID_VALUE && !io_memory;
  return unclear ? explain_refusal(device, request, read_only, locked.error()) : locked.error();
}

}  // namespace

// ---- registrations in pieces ----

LockedRange::LockedRange(Device& device, void* base, uint64_t size, unsigned flags, uint64_t piece)
    : device_(device),
      base_(address_of(base)),
      size_(size),
      first_page_(round_down(base_, platform::page_size())),
      flags_(flags),
      piece_(piece) {}

uint64_t LockedRange::piece_begin(uint64_t index) const {
  return std::max(base_, first_page_ + index * piece_);
}

uint64_t LockedRange::piece_end(uint64_t index) const {
  const uint64_t end = base_ + size_;
  const uint64_t begin = first_page_ + index * piece_;
  return end - begin <= piece_ ? end : begin + piece_;
}

Result<void> LockedRange::lock() {
  const uint64_t pieces = piece_of(size_ - 1) + 1;
  while (locked_ < pieces) {
    if (locked_ > 0) std::this_thread::sleep_for(kPause);
    const uint64_t begin = piece_begin(locked_);
    const Outcome outcome =
        device_.cu().MemHostRegister(pointer_to(begin), piece_end(locked_) - begin, flags_);
    if (!outcome.ok()) {
      Error error = refusal(outcome);
      (void)unlock();
      return error;
    }
    ++locked_;
    was_locked_ = true;
    live_registrations.fetch_add(1, std::memory_order_relaxed);
  }
  return {};
}

// Each piece is released exactly once, even if the driver reports an earlier error then: see refused(). So
// all are tried, and the first failure is returned.
Result<void> LockedRange::unlock() {
  const platform::Freeing freeing(base_, size_);
  Result<void> result;
  while (locked_ > 0) {
    const Outcome outcome = device_.cu().MemHostUnregister(pointer_to(piece_begin(locked_ - 1)));
    auto unlocked = device_.check_release(outcome, "cannot unregister the memory");
    if (refused(outcome)) return unlocked;
    --locked_;
    live_registrations.fetch_sub(1, std::memory_order_relaxed);
    if (locked_ > 0) std::this_thread::sleep_for(kPause);
    if (result.ok() && !unlocked.ok()) result = unlocked;
  }
  return result;
}

Error LockedRange::refusal(Outcome outcome) {
  const auto size = static_cast<unsigned long long>(size_);
  if (outcome.code == CUDA_ERROR_OUT_OF_MEMORY && live_registrations.load() >= kManyRegistrations) {
    return make_error(
               GPUMEM_ERROR_LIMIT_EXCEEDED,
               "cannot page-lock %llu bytes at %p: the maximum number of registrations is reached (see "
               "pin.max_count); unregister some, or register larger ranges",
               size, pointer_to(base_))
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  }
  return device_.check(outcome, Place::kHost, "cannot page-lock %llu bytes at %p", size, pointer_to(base_))
      .error();
}

uint64_t largest_registration(const Driver& cu) {
  constexpr int kDriver580 = 13000;
  return cu.version >= kDriver580 ? uint64_t{512} << 30 : kSizeMax;
}

namespace {

// A preference must not make the call fail.
template <class Request, class Make>
Result<std::unique_ptr<backend::Memory>> make_preferred(Device& device, const Request& request, Make make) {
  const gpumem_memory_flags wanted = request.require | request.prefer;
  auto memory = make(device, request, wanted);
  if (!memory && wanted != request.require && !device.lost()) return make(device, request, request.require);
  return memory;
}

}  // namespace

Result<std::unique_ptr<backend::Memory>> Device::create_memory(const backend::MemoryRequest& request) {
  if (request.from_driver) return create_pooled(*this, request);
  switch (request.sort) {
    case backend::MemorySort::kDevice:
      return make_preferred(*this, request, create_on_device);
    case backend::MemorySort::kPinned:
      return make_preferred(*this, request, create_pinned);
    case backend::MemorySort::kManaged:
      return create_managed(*this, request);
    case backend::MemorySort::kNone:
      break;
  }
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "the cuda backend does not allocate memory of this sort");
}

Result<std::unique_ptr<backend::Memory>> Device::register_memory(
    const backend::RegistrationRequest& request) {
  return make_preferred(*this, request, create_registered);
}

}  // namespace gpumem::cuda
