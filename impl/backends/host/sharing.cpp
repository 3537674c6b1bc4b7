// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/sharing.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <vector>

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/event.h"
#include "backends/host/memory.h"
#include "base/arithmetic.h"
#include "platform/descriptor.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

using Uuid = std::array<uint8_t, 16>;

enum class TicketKind : uint32_t { kNone, kMemory, kEvent };

// The bytes of a ticket: which file belongs to it.
struct TicketBytes {
  TicketKind kind = TicketKind::kNone;
  uint32_t odd = 0;  // 1: the exporter has the memory in an odd unit
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  Uuid uuid{};
};
static_assert(sizeof(TicketBytes) <= sizeof(backend::Ticket::bytes));

backend::Ticket write_ticket(TicketKind kind, const Uuid& uuid, int file_descriptor,
                             const void* address = nullptr) {
  const platform::DescriptorFacts file = platform::describe(file_descriptor);
  const auto odd = static_cast<uint32_t>(address_of(address) / kParityUnit % 2);
  const TicketBytes bytes{kind, odd, file.device, file.inode, file.size, uuid};
  backend::Ticket ticket;
  std::memcpy(ticket.bytes.data(), &bytes, sizeof bytes);
  ticket.file_descriptor = file_descriptor;
  return ticket;
}

Error not_of_ticket(int file_descriptor, const char* why) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "file descriptor %d %s; pass the one that belongs to the share handle", file_descriptor,
                    why);
}

// The bytes, if they and the descriptor belong together.
Result<TicketBytes> read_ticket(const backend::Ticket& ticket, TicketKind kind) {
  TicketBytes bytes;
  std::memcpy(&bytes, ticket.bytes.data(), sizeof bytes);
  if (bytes.kind != kind)
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the share handle is damaged, or of another kind");
  const platform::DescriptorFacts file = platform::describe(ticket.file_descriptor);
  if (!file.open) return not_of_ticket(ticket.file_descriptor, "is not open");
  if (!file.shareable) return not_of_ticket(ticket.file_descriptor, "is not of a memory file");
  if (!file.sealed) return not_of_ticket(ticket.file_descriptor, "is of a file whose size can change");
  if (file.device != bytes.device || file.inode != bytes.inode || file.size != bytes.size)
    return not_of_ticket(ticket.file_descriptor, "is of another memory file");
  return bytes;
}

}  // namespace

std::array<char, 64> memory_file_name(const Uuid& device_uuid) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "gpumem-memory-%s", text_of(device_uuid).data());
  return name;
}

// ---- memory ----

bool HostSharing::is_alone(const backend::Memory& memory) const {
  return static_cast<bool>(
      static_cast<const HostMemory&>(memory).allocation()->file);  // kept of nothing else
}

Result<backend::Ticket> HostSharing::export_memory(backend::Memory& memory) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  const Allocation& allocation = *static_cast<HostMemory&>(memory).allocation();
  if (!allocation.file) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the host backend keeps a file only of device memory that is created with "
                      "GPUMEM_MEMORY_SHAREABLE; create it so");
  }
  GPUMEM_TRY(shared_.steps.take("fcntl"));
  auto file = platform::duplicate(allocation.file.get());
  if (!file) return file.error();
  return write_ticket(TicketKind::kMemory, device_.facts().uuid, file->release(), allocation.device_address);
}

Result<void> HostSharing::require_reach(const Uuid& uuid, bool peer) const {
  const Uuid& own = device_.facts().uuid;
  if (uuid == own) return {};
  if (!peer) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the memory lies on another device than device %u",
                      device_.facts().ordinal);
  }
  for (uint32_t ordinal = 0; ordinal < shared_.options.device_count; ++ordinal) {
    if (device_uuid(shared_.options, ordinal) != uuid) continue;
    if (device_.has_link_to(ordinal)) return {};
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "there is no link from device %u to device %u, which has the memory (capability "
                      "peer.access)",
                      device_.facts().ordinal, ordinal);
  }
  return make_error(GPUMEM_ERROR_NOT_FOUND, "no device of this instance has the memory");
}

Result<std::unique_ptr<backend::Memory>> HostSharing::import_memory(const backend::TicketRequest& request) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  const int file = request.ticket.file_descriptor;
  auto ticket = read_ticket(request.ticket, TicketKind::kMemory);
  if (!ticket) return ticket.error();
  GPUMEM_TRY(require_reach(ticket->uuid, request.peer));
  const platform::DescriptorFacts known = platform::describe(file);
  // Where the system does not show names, the seals must do.
  if (known.name[0] != '\0' && std::strcmp(known.name, memory_file_name(ticket->uuid).data()) != 0)
    return not_of_ticket(file, "is not of memory of the device in it");
  if (known.size % platform::page_size() != 0 || request.size > known.size || request.size == 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the memory of file descriptor %d has %" PRIu64 " bytes, fewer than the %" PRIu64
                      " of the share handle",
                      file, known.size, request.size);
  }
  auto allocation = std::make_shared<Allocation>(device_);
  allocation->on_device = true;
  allocation->imported = true;
  allocation->size = request.size;
  allocation->granted_size = known.size;
  const ImportedFile whole{file, known.size};
  GPUMEM_TRY(map_imported(shared_, std::span(&whole, 1), {nullptr, ticket->odd == 0}, *allocation));
  return record_memory(shared_, std::move(allocation));
}

Result<int> HostSharing::export_block(backend::Reservation& reservation, uint64_t offset,
                                      const backend::PhysicalFacts& facts) {
  auto retained = reservation.retain(offset, facts);
  if (!retained) return retained.error();
  auto made = (*retained)->export_fd();
  (void)(*retained)->release();  // cannot fail
  return made;
}

Result<std::unique_ptr<backend::Memory>> HostSharing::import_blocks(const backend::BlocksRequest& request) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  if (request.file_descriptors.empty() || request.file_descriptors.size() != request.sizes.size()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "%zu file descriptors were given for %zu blocks",
                      request.file_descriptors.size(), request.sizes.size());
  }
  const bool on_device = request.location == GPUMEM_LOCATION_DEVICE;
  const auto& home = request.home != nullptr ? static_cast<const HostDevice&>(*request.home) : device_;
  if (on_device) GPUMEM_TRY(require_reach(home.facts().uuid, request.home != nullptr));
  const BlockPlace place =
      on_device ? place_on(home.facts().uuid)
                : place_on_host(request.location == GPUMEM_LOCATION_HOST_NUMA ? request.numa_node : -1);
  auto allocation = std::make_shared<Allocation>(device_);
  allocation->on_device = on_device;
  allocation->imported = true;
  allocation->access.resize(shared_.options.device_count, GPUMEM_ACCESS_NONE);
  allocation->access.at(device_.facts().ordinal) = request.access;
  const bool read_only = request.access == GPUMEM_ACCESS_READ;
  if (read_only) allocation->granted |= GPUMEM_MEMORY_READ_ONLY;
  if (request.location == GPUMEM_LOCATION_HOST_NUMA) allocation->numa_node = request.numa_node;

  std::vector<ImportedFile> files;
  platform::Descriptors reopened;
  uint64_t total = 0;
  for (size_t index = 0; index < request.sizes.size(); ++index) {
    const uint64_t size = request.sizes[index];
    int file = request.file_descriptors[index];
    auto known = check_block(file, place, size, GPUMEM_HANDLE_TYPE_POSIX_FD);
    if (!known) return known.error();
    if (size == 0 || size % platform::page_size() != 0 || size > kSizeMax - total) {
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "no block has %" PRIu64 " bytes", size);
    }
    total += size;
    if (read_only) {
      // Then nothing in this process can make the mapping writable. Without /proc the mapping alone must do.
      GPUMEM_TRY(shared_.steps.take("open"));
      if (auto again = platform::reopen(file, false); again) {
        file = reopened.emplace_back(std::move(*again)).get();
      } else if (again.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED ||
                 again.error().status == GPUMEM_ERROR_INVALID_ARGUMENT) {
        return again.error();
      }
    }
    files.push_back({file, size});
  }
  allocation->size = allocation->granted_size = total;
  GPUMEM_TRY(map_imported(shared_, files, {request.address, false}, *allocation));
  return record_memory(shared_, std::move(allocation));
}

Result<int> HostSharing::export_dma_buf(const void* /*pointer*/, uint64_t /*size*/, bool /*prefer_pcie*/) {
  return make_error(GPUMEM_ERROR_UNSUPPORTED,
                    "no other driver reaches emulated devices (capability share.dma_buf)");
}

// ---- events ----

Result<backend::Ticket> HostSharing::export_event(backend::Event& event) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  const auto& page = static_cast<HostEvent&>(event).page();
  if (page == nullptr) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the event was created without GPUMEM_EVENT_INTERPROCESS; create it with that flag");
  }
  GPUMEM_TRY(shared_.steps.take("open"));
  auto file = page->open_file();
  if (!file) return file.error();
  return write_ticket(TicketKind::kEvent, device_.facts().uuid, file->release());
}

Result<std::shared_ptr<backend::Event>> HostSharing::import_event(const backend::Ticket& ticket) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  auto known = read_ticket(ticket, TicketKind::kEvent);
  if (!known) return known.error();
  auto page = SharedEvent::open(shared_.steps, device_.facts().uuid, ticket.file_descriptor);
  if (!page) return page.error();
  return std::shared_ptr<backend::Event>(std::make_shared<HostEvent>(shared_, device_, std::move(*page)));
}

}  // namespace gpumem::host
