// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/sharing.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/host_budget.h"
#include "platform/numa.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

constexpr uint64_t kUnguardedMax = uint64_t{64} << 10;  // a guard is one more map, of which there are few

// Behind a view, a page that stays inaccessible, so that an overrun faults.
uint64_t guard() { return platform::page_size(); }

// Out of memory at a location, which decides the status.
Error located(Error error, Status exhausted) {
  if (error.status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY || error.status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE) {
    error.status = exhausted;
  }
  return error;
}

// Populates the pages of a view.
Result<void> populate(Shared& shared, void* view, uint64_t size, Status exhausted) {
  GPUMEM_TRY(shared.steps.take("madvise"));
  if (auto populated = platform::populate(view, size, kPopulatingThreads); !populated) {
    return located(populated.error(), exhausted);
  }
  return {};
}

// Binds untouched pages to the requested node. True if it was granted.
Result<bool> place(Shared& shared, const HostDevice& device, void* view, uint64_t size,
                   const backend::MemoryRequest& request) {
  if (((request.require | request.prefer) & GPUMEM_MEMORY_NUMA_NODE) == 0) {
    const int32_t nearest = device.facts().numa_node;
    if (platform::numa_node_count() > 1 && platform::numa_node_exists(nearest)) {
      platform::prefer_node(view, size, nearest);
    }
    return false;
  }
  if (!platform::numa_node_exists(request.numa_node)) return true;  // a node that exists only by an option
  GPUMEM_TRY(shared.steps.take("mbind"));
  if (auto bound = platform::bind_to_node(view, size, request.numa_node); !bound) {
    if ((request.require & GPUMEM_MEMORY_NUMA_NODE) != 0) return bound.error();
    return false;
  }
  return true;
}

// Locks pages in pieces. True if all are locked, false if none is and the call may continue.
Result<bool> lock_in_pieces(Shared& shared, uint64_t begin, uint64_t end, gpumem_memory_flags require,
                            PageLock* out) {
  const bool required = (require & GPUMEM_MEMORY_PAGE_LOCKED) != 0;
  if (shared.options.lock_mode == GPUMEM_HOST_LOCK_OFF) return false;
  PageLock lock(begin);
  for (uint64_t at = begin; at < end;) {
    at += std::min(shared.options.lock_piece, end - at);
    GPUMEM_TRY(shared.steps.take("mlock"));
    if (auto locked = lock.extend(at); !locked) {
      if (required || shared.options.lock_mode == GPUMEM_HOST_LOCK_REQUIRE) return locked.error();
      return false;
    }
  }
  *out = std::move(lock);
  return true;
}

// Reserves an inaccessible address range of `size` bytes.
Result<Range> reserve(Shared& shared, uint64_t size, uint64_t alignment, Status exhausted) {
  GPUMEM_TRY(shared.steps.take("mmap"));
  auto address = platform::reserve(size, std::max(alignment, platform::page_size()));
  if (!address) return located(address.error(), exhausted);
  return Range(*address, size);
}

Result<void*> map_file(Shared& shared, int file, uint64_t size, void* address, Status exhausted,
                       platform::Protection protection = platform::Protection::kReadWrite) {
  GPUMEM_TRY(shared.steps.take("mmap"));
  auto view = platform::map_file(file, size, address, protection);
  if (!view) return located(view.error(), exhausted);
  return view;
}

Result<void> charge(Shared& shared, Allocation& allocation) {
  Budget& budget = allocation.device.budget();
  // Shareable memory does not share its pages (IPC-25).
  const bool shareable = (allocation.granted & GPUMEM_MEMORY_SHAREABLE) != 0;
  allocation.granted_size = round_up(
      allocation.size, std::max(shared.options.granularity, shareable ? platform::page_size() : uint64_t{1}));
  if (allocation.charge.take(budget, allocation.granted_size)) return {};
  char charged[64] = "";
  if (allocation.granted_size != allocation.size) {
    std::snprintf(charged, sizeof charged, ", charged as %" PRIu64 ",", allocation.granted_size);
  }
  return make_error(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                    "%" PRIu64 " bytes%s do not fit: device %u has %" PRIu64 " of %" PRIu64
                    " bytes free; free some, or open the backend with larger devices: device_bytes "
                    "(GPUMEM_HOST_DEVICE_BYTES)",
                    allocation.size, charged, allocation.device.facts().ordinal, budget.available(),
                    budget.total());
}

bool is_pinned(const Allocation& allocation) {
  return !allocation.on_device && allocation.managed == nullptr;
}

Status exhausted_status(const Allocation& allocation) {
  return allocation.on_device ? GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY : GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
}

// The pages, through the private view.
Result<void> make_pages(Shared& shared, int file, uint64_t size, const backend::MemoryRequest& request,
                        Allocation& allocation) {
  const bool pinned = is_pinned(allocation);
  const Status exhausted = exhausted_status(allocation);
  auto range = reserve(shared, size + (size > kUnguardedMax ? guard() : 0), 0, exhausted);
  if (!range) return range.error();
  allocation.private_view = std::move(*range);
  auto view = map_file(shared, file, size, allocation.private_view.address(), exhausted);
  if (!view) return view.error();
  allocation.bytes = static_cast<std::byte*>(*view);
  if (pinned) {
    auto placed = place(shared, allocation.device, *view, size, request);
    if (!placed) return placed.error();
    if (*placed) {
      allocation.granted |= GPUMEM_MEMORY_NUMA_NODE;
      allocation.numa_node = request.numa_node;
    }
  }
  if (shared.options.fill) {
    GPUMEM_TRY(shared.steps.take("pwrite"));
    if (auto filled = platform::fill_memory_file(file, size, kFreshByte); !filled)
      return located(filled.error(), exhausted);
  }
  if (pinned) {
    GPUMEM_TRY(populate(shared, *view, size, exhausted));
    const uint64_t begin = address_of(*view);
    auto locked = lock_in_pieces(shared, begin, begin + size, request.require, &allocation.page_lock);
    if (!locked) return locked.error();
    if (*locked) allocation.granted |= GPUMEM_MEMORY_PAGE_LOCKED;
  }
  return {};
}

// The addresses that the user gets for the pages.
Result<void> make_addresses(Shared& shared, int file, uint64_t size, const backend::MemoryRequest& request,
                            Allocation& allocation) {
  const Status exhausted = exhausted_status(allocation);
  auto range = reserve(shared, size + guard(), request.alignment, exhausted);
  if (!range) return range.error();
  if (!allocation.on_device || !shared.options.strict) {
    auto mapped = map_file(shared, file, size, range->address(), exhausted);
    if (!mapped) return mapped.error();
  }
  if (allocation.on_device) {
    allocation.device_range = std::move(*range);
    allocation.device_address = allocation.device_range.address();
    return {};
  }
  if (allocation.managed != nullptr) {
    allocation.host_range = std::move(*range);
    allocation.host_address = allocation.device_address = allocation.host_range.address();
    return {};
  }
  GPUMEM_TRY(populate(shared, range->address(), size, exhausted));
  allocation.granted_size = size;
  allocation.granted |= GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED;
  // Grant it if requested: this backend locks everything in pieces, and no copy fails at a border.
  allocation.granted |= (request.require | request.prefer) & GPUMEM_MEMORY_IN_PIECES;
  allocation.host_range = std::move(*range);
  allocation.host_address = allocation.device_address = allocation.host_range.address();
  if (((request.require | request.prefer) & GPUMEM_MEMORY_WRITE_COMBINED) == 0) return {};
  auto device_range = reserve(shared, size, request.alignment, exhausted);
  if (!device_range) return device_range.error();
  allocation.device_range = std::move(*device_range);
  allocation.device_address = allocation.device_range.address();
  allocation.granted |= GPUMEM_MEMORY_WRITE_COMBINED;
  return {};
}

// A block in a slab that others share.
Result<void> make_small(Shared& shared, const backend::MemoryRequest& request, Allocation& allocation) {
  auto slot = allocation.device.arena().take(request.size, request.alignment);
  if (!slot) return slot.error();
  allocation.slot = std::move(*slot);
  allocation.bytes = allocation.slot.view();
  allocation.device_address = allocation.slot.address();
  if (shared.options.fill) std::memset(allocation.bytes, kFreshByte, request.size);
  return {};
}

// Pages of a memory file, mapped in a private view and in the user's.
Result<void> make_bytes(Shared& shared, const backend::MemoryRequest& request, Allocation& allocation) {
  const uint64_t size = round_up(request.size, platform::page_size());
  const bool touched = is_pinned(allocation) || shared.options.fill;
  if (touched && size >= kLargeSize) {
    if (auto fits = platform::check_host_budget(size); !fits)
      return located(fits.error(), exhausted_status(allocation));
  }
  GPUMEM_TRY(shared.steps.take("memfd_create"));
  const bool shareable = (allocation.granted & GPUMEM_MEMORY_SHAREABLE) != 0;
  auto made = platform::memory_file(
      size, shareable ? memory_file_name(allocation.device.facts().uuid).data() : "gpumem");
  if (!made) return located(made.error(), exhausted_status(allocation));
  platform::Descriptor file(*made);
  GPUMEM_TRY(make_pages(shared, file.get(), size, request, allocation));
  GPUMEM_TRY(make_addresses(shared, file.get(), size, request, allocation));
  // The views keep the pages, and a process has few descriptors: only what can be exported keeps its own.
  if (shareable) allocation.file = std::move(file);
  return {};
}

// A driver rejects a range with any page that it has already locked (PIN-11). Core knows only its own memory,
// so foreign memory is checked here.
Result<void> require_not_foreign(Shared& shared, const backend::RegistrationRequest& request) {
  const Lock lock(shared.mutex);
  const auto other = shared.table.first_in(request.pointer, request.size);
  if (other == nullptr || other->foreign_id == 0) return {};
  return make_error(other->on_device ? GPUMEM_ERROR_WRONG_KIND : GPUMEM_ERROR_ALREADY_EXISTS,
                    "the range overlaps foreign %s memory at %p", other->on_device ? "device" : "pinned",
                    other->device_address);
}

// Memory of the caller, which stays where it is.
Result<void> lock_range(Shared& shared, const backend::RegistrationRequest& request, Allocation& allocation) {
  const gpumem_memory_flags asked = request.require | request.prefer;
  GPUMEM_TRY(require_not_foreign(shared, request));
  GPUMEM_TRY(shared.options.require(EntryPoint::kRegister));
  if ((request.require & GPUMEM_MEMORY_IOMEMORY) != 0) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "emulated devices have no I/O memory (capability pin.register_iomemory)");
  }
  const platform::Mapping mapping = platform::probe(request.pointer, request.size);
  if (mapping == platform::Mapping::kNone) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "a page of the %" PRIu64 " bytes at %p is not mapped",
                      request.size, request.pointer);
  }
  if (mapping == platform::Mapping::kReadOnly && (asked & GPUMEM_MEMORY_READ_ONLY) == 0) {
    return make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                      "a page of the %" PRIu64 " bytes at %p is read-only; require GPUMEM_MEMORY_READ_ONLY",
                      request.size, request.pointer);
  }

  const uint64_t address = address_of(request.pointer);
  const uint64_t page = platform::page_size();
  const uint64_t begin = round_down(address, page);
  const uint64_t end = round_up(address + request.size, page);
  const uint64_t pieces = (end - begin + shared.options.lock_piece - 1) / shared.options.lock_piece;
  if (Budget& budget = shared.registrations; !allocation.registration.take(budget, pieces)) {
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                      "%" PRIu64 " of %" PRIu64 " registrations are free, but %" PRIu64
                      " are needed; unregister some, or open the instance with a larger register_count_max",
                      budget.available(), budget.total(), pieces);
  }
  auto locked = lock_in_pieces(shared, begin, end, request.require, &allocation.page_lock);
  if (!locked) return locked.error();
  if (*locked) allocation.granted |= GPUMEM_MEMORY_PAGE_LOCKED;

  constexpr gpumem_memory_flags kAsAsked =
      GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_IN_PIECES;
  allocation.granted |= asked & kAsAsked;
  allocation.granted_size = request.size;
  allocation.bytes = static_cast<std::byte*>(request.pointer);
  allocation.host_address = request.pointer;
  if ((asked & GPUMEM_MEMORY_MAPPED) != 0 && shared.options.same_pointer) {
    allocation.device_address = request.pointer;
  } else if ((asked & GPUMEM_MEMORY_MAPPED) != 0) {
    auto range = reserve(shared, end - begin, page, GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
    if (!range) return range.error();
    allocation.device_range = std::move(*range);
    allocation.device_address = pointer_to(address_of(allocation.device_range.address()) + (address - begin));
  }
  return {};
}

// New look-ups no longer find it. The owner of registered memory may unmap it after this call, so wait for
// work that is moving its bytes.
void take_out(Shared& shared, Lock& held, Allocation& allocation) {
  shared.table.remove(allocation);
  shared.managed.remove(allocation);
  if (!allocation.registered) return;
  allocation.given_back = true;
  shared.progress.wait(held, [&] { return !allocation.uses.touching(); });
}

}  // namespace

namespace {

// Checked before anything that can run out (COM-17).
Result<void> check_locking(const Shared& shared, gpumem_memory_flags require) {
  if (shared.options.lock_mode != GPUMEM_HOST_LOCK_OFF || (require & GPUMEM_MEMORY_PAGE_LOCKED) == 0)
    return {};
  return make_error(GPUMEM_ERROR_UNSUPPORTED,
                    "the instance was opened with memory locking turned off (capability pin.page_locked)");
}

}  // namespace

Result<std::shared_ptr<Allocation>> allocate(Shared& shared, HostDevice& device,
                                             const backend::MemoryRequest& request, bool on_device) {
  if (request.alignment > kAlignmentMax) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "alignments above 2^40 are not supported");
  }
  GPUMEM_TRY(check_locking(shared, request.require));
  auto allocation = std::make_shared<Allocation>(device);
  allocation->on_device = on_device;
  allocation->size = request.size;
  if (request.sort == backend::MemorySort::kManaged) {
    const gpumem_memory_flags wanted = request.require | request.prefer;
    allocation->managed = std::make_unique<ManagedPart>();
    if ((wanted & GPUMEM_MEMORY_ATTACH_HOST) != 0) allocation->managed->initial = GPUMEM_ATTACH_HOST;
    allocation->managed->attach = allocation->managed->initial;
    allocation->granted = wanted & (GPUMEM_MEMORY_ATTACH_HOST | GPUMEM_MEMORY_OVERSUBSCRIBE);
    allocation->granted_size = round_up(request.size, platform::page_size());
  }
  if (on_device && shared.options.has(EntryPoint::kSharing)) {
    allocation->granted |= (request.require | request.prefer) & GPUMEM_MEMORY_SHAREABLE;
  } else if ((request.require & GPUMEM_MEMORY_SHAREABLE) != 0) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "this memory cannot be shared (capability share.legacy)");
  }
  // Managed memory lies on the device unless that is concurrent (MAN-29, MAN-30).
  if (on_device || (allocation->managed != nullptr && !device.is_concurrent()))
    GPUMEM_TRY(charge(shared, *allocation));
  const bool shareable = (allocation->granted & GPUMEM_MEMORY_SHAREABLE) != 0;
  if (on_device && !shareable && device.arena().takes(request.size, request.alignment)) {
    GPUMEM_TRY(make_small(shared, request, *allocation));
  } else {
    GPUMEM_TRY(make_bytes(shared, request, *allocation));
  }
  return allocation;
}

namespace {

Result<void> map_in_row(Shared& shared, std::span<const ImportedFile> files, bool read_only, void* address) {
  uint64_t at = address_of(address);
  const auto protection = read_only ? platform::Protection::kRead : platform::Protection::kReadWrite;
  for (const ImportedFile& part : files) {
    auto view =
        map_file(shared, part.file, part.size, pointer_to(at), GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE, protection);
    if (!view) return view.error();
    at += part.size;
  }
  return {};
}

}  // namespace

Result<void> map_imported(Shared& shared, std::span<const ImportedFile> files, const ImportPlace& place,
                          Allocation& allocation) {
  constexpr Status kExhausted = GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE;
  const bool read_only = allocation.read_only();
  const uint64_t size = allocation.granted_size;
  void* address = place.address;
  Range range;
  if (address != nullptr) {
    GPUMEM_TRY(shared.steps.take("mmap"));
    auto there = platform::reserve_at(address, size);
    if (!there) return there.error();
    range = Range(*there, size);
  } else {
    const uint64_t skipped = place.odd ? kParityUnit : 0;
    auto somewhere = reserve(shared, skipped + size + guard(),
                             std::max(2 * kParityUnit, shared.options.vmm_granularity), kExhausted);
    if (!somewhere) return somewhere.error();
    range = std::move(*somewhere);
    address = pointer_to(address_of(range.address()) + skipped);
  }
  // Reserve the view afterwards, so that it does not take the requested address.
  auto view = reserve(shared, size + guard(), 0, kExhausted);
  if (!view) return view.error();
  allocation.private_view = std::move(*view);
  GPUMEM_TRY(map_in_row(shared, files, read_only, allocation.private_view.address()));
  allocation.bytes = static_cast<std::byte*>(allocation.private_view.address());
  if (!allocation.on_device || !shared.options.strict)
    GPUMEM_TRY(map_in_row(shared, files, read_only, address));
  allocation.device_address = address;
  if (!allocation.on_device) allocation.host_address = address;
  allocation.device_range = std::move(range);
  return {};
}

Result<std::shared_ptr<Allocation>> lock_bytes(Shared& shared, HostDevice& device,
                                               const backend::RegistrationRequest& request) {
  GPUMEM_TRY(check_locking(shared, request.require));
  auto allocation = std::make_shared<Allocation>(device);
  allocation->registered = true;
  allocation->size = request.size;
  GPUMEM_TRY(lock_range(shared, request, *allocation));
  return allocation;
}

namespace {

Result<void> require_unused(const Allocation& allocation) {
  if (allocation.device.lost() || allocation.uses.settled()) return {};
  return make_error(GPUMEM_ERROR_BUSY,
                    "work that uses the memory was not observed complete; synchronize its stream first");
}

}  // namespace

Result<void> withdraw(Shared& shared, Lock& held, Allocation& allocation) {
  GPUMEM_TRY(require_unused(allocation));
  take_out(shared, held, allocation);
  return {};
}

void let_go(Shared& shared, Allocation& allocation) {
  if (allocation.registered) {
    allocation.page_lock = PageLock();
    allocation.registration = Charge();
  }
  allocation.slot.let_rest();
  // What is imported again is perhaps wanted at the same addresses.
  if (allocation.imported) {
    allocation.device_range = Range();
    return;
  }
  shared.quarantine.add(std::move(allocation.host_range));
  shared.quarantine.add(std::move(allocation.device_range));
}

HostMemory::HostMemory(Shared& shared, std::shared_ptr<Allocation> allocation)
    : shared_(shared), allocation_(std::move(allocation)) {
  facts_.host_pointer = allocation_->host_address;
  facts_.device_pointer = allocation_->device_address;
  facts_.granted_size = allocation_->granted_size;
  facts_.granted = allocation_->granted;
  facts_.numa_node = allocation_->numa_node;
}

HostMemory::~HostMemory() {
  if (allocation_ == nullptr) return;
  {
    Lock lock(shared_.mutex);
    take_out(shared_, lock, *allocation_);
  }
  let_go(shared_, *allocation_);
}

Result<void> HostMemory::check_unused() {
  const Lock lock(shared_.mutex);
  return require_unused(*allocation_);
}

Result<void> HostMemory::release() {
  const CurrentDevice current(allocation_->device.facts().ordinal);
  {
    Lock lock(shared_.mutex);
    GPUMEM_TRY(withdraw(shared_, lock, *allocation_));
  }
  let_go(shared_, *allocation_);
  allocation_.reset();
  return {};
}

// As registrations in pieces have it on hardware, so that splitting can be tested here (PIN-15).
uint64_t HostMemory::contiguous(uint64_t offset) const {
  if (!allocation_->registered) return UINT64_MAX;
  const uint64_t address = address_of(allocation_->host_address) + offset;
  const uint64_t first_page = round_down(address_of(allocation_->host_address), platform::page_size());
  const uint64_t piece = shared_.options.lock_piece;
  return piece - (address - first_page) % piece;
}

Result<std::unique_ptr<backend::Memory>> record_memory(Shared& shared,
                                                       Result<std::shared_ptr<Allocation>> allocation) {
  if (!allocation) return allocation.error();
  {
    const Lock lock(shared.mutex);
    shared.table.add(*allocation);
  }
  Cleanup undo([&] {
    const Lock lock(shared.mutex);
    shared.table.remove(**allocation);
    shared.managed.remove(**allocation);
  });
  if ((*allocation)->managed != nullptr && !shared.options.concurrent) {
    const Lock lock(shared.mutex);
    shared.managed.add(lock, **allocation);
  }
  // Last, because only addresses that the user has seen go into quarantine.
  auto memory = std::make_unique<HostMemory>(shared, *allocation);
  undo.dismiss();
  return std::unique_ptr<backend::Memory>(std::move(memory));
}

}  // namespace gpumem::host
