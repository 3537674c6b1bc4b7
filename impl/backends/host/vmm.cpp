// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/vmm.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/memory.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/descriptor.h"
#include "platform/host_budget.h"
#include "platform/numa.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

Status exhausted(const HostBlock& block) {
  return block.facts.on_device() ? GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY : GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
}

Error located(Error error, const HostBlock& block) {
  if (error.status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY || error.status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE) {
    error.status = exhausted(block);
  }
  return error;
}

// What the file of a block is called, so that an importer knows it: where the memory lies, and its
// properties.
struct BlockFileName {
  char text[96];
};

BlockFileName file_name(const BlockPlace& place, gpumem_physical_flags granted, gpumem_handle_types types) {
  BlockFileName name;
  std::snprintf(name.text, sizeof name.text, "gpumem-block-%s-%" PRIx64 "-%" PRIx64, place.text, granted,
                types);
  return name;
}

BlockPlace place_of(const HostDevice& device, gpumem_location location, int32_t node) {
  return location == GPUMEM_LOCATION_DEVICE ? place_on(device.facts().uuid) : place_on_host(node);
}

platform::Protection protection_of(gpumem_access access) {
  if (access == GPUMEM_ACCESS_NONE) return platform::Protection::kNone;
  return access == GPUMEM_ACCESS_READ ? platform::Protection::kRead : platform::Protection::kReadWrite;
}

}  // namespace

// ---- blocks ----

BlockPlace place_on(const std::array<uint8_t, 16>& device_uuid) {
  BlockPlace place;
  std::snprintf(place.text, sizeof place.text, "%s", text_of(device_uuid).data());
  return place;
}

BlockPlace place_on_host(int32_t node) {
  BlockPlace place;
  if (node >= 0) {
    std::snprintf(place.text, sizeof place.text, "node%d", node);
  } else {
    std::snprintf(place.text, sizeof place.text, "host");
  }
  return place;
}

HostBlock::~HostBlock() {
  if (file >= 0) platform::close_file(file);
}

Result<int> HostPhysical::export_fd() {
  const CurrentDevice current(block_->device.facts().ordinal);
  auto made = platform::duplicate(block_->file);
  if (!made) return made.error();
  return made->release();
}

Result<void> HostPhysical::release() {
  if (block_ == nullptr) return {};
  const CurrentDevice current(block_->device.facts().ordinal);
  block_.reset();
  return {};
}

Result<backend::Granularity> HostVirtualMemory::granularity(const backend::PhysicalRequest& /*request*/) {
  return backend::Granularity{shared_.options.vmm_granularity, shared_.options.vmm_granularity};
}

backend::PhysicalFacts HostVirtualMemory::facts_for(const backend::PhysicalRequest& request) const {
  backend::PhysicalFacts facts;
  facts.location = request.location;
  if (facts.on_device()) facts.location_id = static_cast<int32_t>(device_.facts().ordinal);
  if (request.location == GPUMEM_LOCATION_HOST_NUMA) facts.location_id = request.numa_node;
  facts.size = request.size;
  facts.granularity = shared_.options.vmm_granularity;
  facts.handle_types = request.handle_types;
  return facts;
}

// Takes the file over if it is needed later: to be shown at other addresses, or exported.
Result<void> HostVirtualMemory::make_view(HostBlock& block, int file) {
  GPUMEM_TRY(shared_.steps.take("mmap"));
  auto view = platform::map_file(file, block.facts.size, nullptr);
  if (!view) return located(view.error(), block);
  block.private_view = Range(*view, block.facts.size);
  block.bytes = static_cast<std::byte*>(*view);
  const platform::DescriptorFacts known = platform::describe(file);
  block.identity = {known.device, known.inode};
  return {};
}

Result<void> HostVirtualMemory::make_pages(HostBlock& block, int file) {
  const bool on_host = !block.facts.on_device();
  const int32_t node = block.facts.location_id;
  if (block.facts.location == GPUMEM_LOCATION_HOST_NUMA && platform::numa_node_exists(node)) {
    GPUMEM_TRY(shared_.steps.take("mbind"));
    GPUMEM_TRY(platform::bind_to_node(block.bytes, block.facts.size, node));
  }
  if (shared_.options.fill) {
    GPUMEM_TRY(shared_.steps.take("pwrite"));
    if (auto filled = platform::fill_memory_file(file, block.facts.size, kFreshByte); !filled)
      return located(filled.error(), block);
  }
  if (on_host) {
    GPUMEM_TRY(shared_.steps.take("madvise"));
    if (auto populated = platform::populate(block.bytes, block.facts.size, kPopulatingThreads); !populated) {
      return located(populated.error(), block);
    }
  }
  return {};
}

Result<std::unique_ptr<backend::Physical>> HostVirtualMemory::create(
    const backend::PhysicalRequest& request) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  auto block = std::make_shared<HostBlock>(device_);
  block->facts = facts_for(request);
  // Emulated: the memory is as large as ever.
  block->facts.granted = (request.require | request.prefer) & GPUMEM_PHYSICAL_COMPRESSIBLE;
  const uint64_t size = request.size;
  if (block->facts.on_device() && !block->charge.take(device_.budget(), size)) {
    return make_error(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                      "%" PRIu64 " bytes do not fit: device %u has %" PRIu64 " of %" PRIu64
                      " bytes free; free some, or open the backend with larger devices: "
                      "device_bytes (GPUMEM_HOST_DEVICE_BYTES)",
                      size, device_.facts().ordinal, device_.budget().available(), device_.budget().total());
  }
  const bool touched = !block->facts.on_device() || shared_.options.fill;
  if (touched && size >= kLargeSize) {
    if (auto fits = platform::check_host_budget(size); !fits) return located(fits.error(), *block);
  }
  GPUMEM_TRY(shared_.steps.take("memfd_create"));
  const BlockFileName name = file_name(place_of(device_, request.location, block->facts.location_id),
                                       block->facts.granted, request.handle_types);
  auto file = platform::memory_file(size, name.text);
  if (!file) return located(file.error(), *block);
  block->file = *file;
  GPUMEM_TRY(make_view(*block, *file));
  GPUMEM_TRY(make_pages(*block, *file));
  // A process has few descriptors, so they are kept only where something needs them.
  if ((request.handle_types & GPUMEM_HANDLE_TYPE_POSIX_FD) == 0) {
    platform::close_file(std::exchange(block->file, -1));
  }
  block->facts.block_id = backend::next_block_id();
  const Lock lock(shared_.mutex);
  shared_.remember(block);
  return std::unique_ptr<backend::Physical>(std::make_unique<HostPhysical>(block, block->facts));
}

namespace {

Error not_a_block(int file_descriptor, const char* why) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "file descriptor %d %s; pass one that gpumem_physical_export_fd() has made",
                    file_descriptor, why);
}

// The two numbers behind the last dashes of a block's name.
bool parse_name(const char* name, gpumem_physical_flags* granted, gpumem_handle_types* types,
                std::string_view* place) {
  constexpr const char* kPrefix = "gpumem-block-";
  if (std::strncmp(name, kPrefix, std::strlen(kPrefix)) != 0) return false;
  const char* const where = name + std::strlen(kPrefix);
  const char* const numbers = std::strchr(where, '-');
  if (numbers == nullptr) return false;
  *place = std::string_view(where, static_cast<size_t>(numbers - where));
  return std::sscanf(numbers, "-%" SCNx64 "-%" SCNx64, granted, types) == 2;
}

}  // namespace

Result<BlockFacts> check_block(int file_descriptor, const BlockPlace& place, uint64_t size,
                               gpumem_handle_types types) {
  BlockFacts block;
  block.file = platform::describe(file_descriptor);
  if (!block.file.open) return not_a_block(file_descriptor, "is not open");
  if (!block.file.sealed) return not_a_block(file_descriptor, "is not of physical memory");
  // Where the system does not show names, the seals must do.
  if (block.file.name[0] != '\0') {
    gpumem_handle_types had = 0;
    std::string_view where;
    if (!parse_name(block.file.name, &block.granted, &had, &where))
      return not_a_block(file_descriptor, "is not of physical memory");
    if (where != place.text) return not_a_block(file_descriptor, "is of memory at another location");
    if ((types & ~had) != 0) {
      return not_a_block(file_descriptor, "is of memory that was created without these handle types");
    }
  }
  if (block.file.size != size) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the memory of file descriptor %d has %" PRIu64 " bytes, not %" PRIu64, file_descriptor,
                      block.file.size, size);
  }
  return block;
}

Result<std::unique_ptr<backend::Physical>> HostVirtualMemory::import_fd(
    const backend::PhysicalRequest& request, int file_descriptor) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  backend::PhysicalFacts facts = facts_for(request);
  const BlockPlace place = place_of(device_, request.location, facts.location_id);
  auto known = check_block(file_descriptor, place, request.size, request.handle_types);
  if (!known) return known.error();
  facts.imported = true;
  facts.granted = known->granted;
  auto block = std::make_shared<HostBlock>(device_);
  block->facts = facts;
  GPUMEM_TRY(shared_.steps.take("fcntl"));
  auto file = platform::duplicate(file_descriptor);
  if (!file) return file.error();
  block->file = file->release();
  // A handle of memory that has one already is one more of the same.
  const auto one_more = [&](const Lock& /*held*/) -> std::unique_ptr<backend::Physical> {
    auto same = shared_.recall({known->file.device, known->file.inode});
    if (same == nullptr || same->file < 0) return nullptr;
    facts.block_id = same->facts.block_id;
    return std::make_unique<HostPhysical>(std::move(same), facts);
  };
  {
    const Lock lock(shared_.mutex);
    if (auto made = one_more(lock)) return made;
  }
  GPUMEM_TRY(make_view(*block, block->file));
  block->facts.block_id = backend::next_block_id();
  const Lock lock(shared_.mutex);
  if (auto made = one_more(lock)) return made;  // another thread has imported it meanwhile
  shared_.remember(block);
  return std::unique_ptr<backend::Physical>(std::make_unique<HostPhysical>(block, block->facts));
}

// ---- reservations ----

Result<std::unique_ptr<backend::Reservation>> HostVirtualMemory::reserve(
    const backend::ReservationRequest& request) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  if (request.alignment > kAlignmentMax) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "alignments above 2^40 are not supported");
  }
  GPUMEM_TRY(shared_.steps.take("mmap"));
  Result<void*> address =
      request.address != nullptr ? platform::reserve_at(request.address, request.size) : nullptr;
  if (!address && request.fixed) return address.error();
  if (!address || *address == nullptr) address = platform::reserve(request.size, request.alignment);
  if (!address) return address.error();
  Range range(*address, request.size);
  return std::unique_ptr<backend::Reservation>(
      std::make_unique<HostReservation>(shared_, device_, std::move(range)));
}

HostReservation::HostReservation(Shared& shared, HostDevice& device, Range range)
    : shared_(shared), device_(device), range_(std::move(range)) {
  facts_.device_pointer = range_.address();
  facts_.granted_size = range_.size();
}

HostReservation::~HostReservation() {
  if (range_.address() == nullptr) return;
  const Lock lock(shared_.mutex);
  (void)shared_.table.extract(base(), range_.size());
}

// Shows a mapping at the user's addresses, with all rights: a second view of the private one, which children
// do not inherit either.
Result<void> HostReservation::show(Allocation& mapping) {
  auto shown = platform::map_again(mapping.bytes, mapping.size, mapping.device_address);
  if (!shown) return located(shown.error(), *mapping.block);
  mapping.shown = true;
  return {};
}

// The addresses are inaccessible before the CPU gets rights for the first time.
Result<void> HostReservation::let_cpu(const backend::AccessPart& part, gpumem_access access) {
  void* const address = pointer_to(base() + part.offset);
  std::shared_ptr<Allocation> mapping;
  {
    const Lock lock(shared_.mutex);
    mapping = shared_.table.find(address);
  }
  if (!mapping->shown) {
    if (access == GPUMEM_ACCESS_NONE) return {};
    GPUMEM_TRY(show(*mapping));
    if (access == GPUMEM_ACCESS_READWRITE) return {};
  }
  return platform::protect(address, part.size, protection_of(access));
}

Result<void> HostReservation::map(uint64_t offset, std::span<backend::Physical* const> blocks) {
  const CurrentDevice current(device_.facts().ordinal);
  AddressTable fresh;
  uint64_t at = base() + offset;
  Cleanup hide([&] {
    const uint64_t shown = at - (base() + offset);
    if (shown != 0) (void)platform::make_inaccessible(pointer_to(base() + offset), shown);
  });
  for (backend::Physical* const physical : blocks) {
    const auto& block = static_cast<HostPhysical&>(*physical).block();
    auto mapping = std::make_shared<Allocation>(block->device);
    mapping->on_device = block->facts.on_device();
    mapping->size = mapping->granted_size = block->facts.size;
    mapping->bytes = block->bytes;
    mapping->device_address = pointer_to(at);
    mapping->block = block;
    mapping->access.resize(shared_.options.device_count, GPUMEM_ACCESS_NONE);
    const uint64_t size = mapping->size;
    GPUMEM_TRY(shared_.steps.take("mmap"));
    if (block->always_visible(shared_.options)) GPUMEM_TRY(show(*mapping));
    at += size;  // from here on it is to be hidden
    fresh.add(mapping);
  }
  hide.dismiss();
  const Lock lock(shared_.mutex);
  shared_.table.merge(fresh);
  return {};
}

Result<void> HostReservation::require_unused(const Lock& /*held*/, uint64_t offset, uint64_t size) const {
  bool used = false;
  shared_.table.for_each_in(base() + offset, size,
                            [&](const Allocation& mapping) { used = used || !mapping.uses.settled(); });
  if (!used) return {};
  return make_error(GPUMEM_ERROR_BUSY,
                    "work that uses the mapping was not observed complete; synchronize its stream first");
}

Result<void> HostReservation::check_mappings_unused(uint64_t offset, uint64_t size) {
  const Lock lock(shared_.mutex);
  return require_unused(lock, offset, size);
}

Result<void> HostReservation::unmap(uint64_t offset, uint64_t size, backend::Device& /*home*/) {
  const CurrentDevice current(device_.facts().ordinal);
  AddressTable gone;
  bool shown = false;
  {
    const Lock lock(shared_.mutex);
    GPUMEM_TRY(require_unused(lock, offset, size));
    shared_.table.for_each_in(base() + offset, size,
                              [&](const Allocation& mapping) { shown = shown || mapping.shown; });
    gone = shared_.table.extract(base() + offset, size);
  }
  Cleanup undo([&] {
    const Lock lock(shared_.mutex);
    shared_.table.merge(gone);
  });
  GPUMEM_TRY(shared_.steps.take("mmap"));
  if (shown) GPUMEM_TRY(platform::make_inaccessible(pointer_to(base() + offset), size));
  undo.dismiss();
  return {};
}

Result<void> HostReservation::set_access(std::span<const backend::AccessPart> parts,
                                         std::span<const backend::AccessChange> changes) {
  const CurrentDevice current(device_.facts().ordinal);
  const auto ordinal_of = [](const backend::AccessChange& change) { return change.device->facts().ordinal; };
  const bool of_devices =
      std::any_of(changes.begin(), changes.end(),
                  [](const backend::AccessChange& change) { return change.device != nullptr; });
  // Writes the rights of devices: what both allow first, so that work that begins meanwhile finds no more.
  const auto write = [&](const Lock& /*held*/, auto choose) {
    if (!of_devices) return;
    for (const backend::AccessPart& part : parts) {
      const auto mapping = shared_.table.find(pointer_to(base() + part.offset));
      for (size_t index = 0; index < changes.size(); ++index) {
        if (changes[index].device == nullptr) continue;
        mapping->access.at(ordinal_of(changes[index])) = choose(part.before[index], changes[index].access);
      }
    }
  };
  {
    const Lock lock(shared_.mutex);
    for (const backend::AccessPart& part : parts) {
      for (size_t index = 0; index < changes.size(); ++index) {
        const bool taken =
            changes[index].device != nullptr && (part.before[index] & ~changes[index].access) != 0;
        if (taken) GPUMEM_TRY(require_unused(lock, part.offset, part.size));
      }
    }
    write(lock, [](gpumem_access before, gpumem_access after) { return before & after; });
  }
  size_t begun = 0;
  Cleanup undo([&] {
    for (size_t part = 0; part < begun; ++part) {
      for (size_t index = 0; index < changes.size(); ++index) {
        if (changes[index].device == nullptr) (void)let_cpu(parts[part], parts[part].before[index]);
      }
    }
    const Lock lock(shared_.mutex);
    write(lock, [](gpumem_access before, gpumem_access /*after*/) { return before; });
  });
  for (const backend::AccessPart& part : parts) {
    GPUMEM_TRY(shared_.steps.take("mprotect"));
    ++begun;
    for (const backend::AccessChange& change : changes) {
      if (change.device == nullptr) GPUMEM_TRY(let_cpu(part, change.access));
    }
  }
  undo.dismiss();
  const Lock lock(shared_.mutex);
  write(lock, [](gpumem_access /*before*/, gpumem_access after) { return after; });
  return {};
}

Result<std::unique_ptr<backend::Physical>> HostReservation::retain(uint64_t offset,
                                                                   const backend::PhysicalFacts& facts) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(shared_.steps.take("retain"));
  const Lock lock(shared_.mutex);
  const auto mapping = shared_.table.find(pointer_to(base() + offset));
  if (!mapping) return make_error(GPUMEM_ERROR_NOT_FOUND, "the block was unmapped during the call");
  return std::unique_ptr<backend::Physical>(std::make_unique<HostPhysical>(mapping->block, facts));
}

// Not into the quarantine: ranges are large, and the user may want the same addresses again.
Result<void> HostReservation::release() {
  const CurrentDevice current(device_.facts().ordinal);
  range_ = Range();
  return {};
}

}  // namespace gpumem::host
