// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The facet of sharing between processes: what a backend gives another process, and what it makes of what it
// is given. Who may have it, and for how long, is decided above.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "contract/event.h"
#include "contract/memory.h"
#include "contract/vmm.h"
#include "gpumem/physical.h"
#include "gpumem/pointer.h"

namespace gpumem::backend {

class Device;

// Lets another process open a memory or an event.
struct Ticket {
  std::array<uint8_t, 64> bytes{};
  int file_descriptor = -1;  // belongs to it, where the bytes alone do not do
};

struct TicketRequest {
  const Ticket& ticket;  // the descriptor stays the caller's
  uint64_t size = 0;     // of the memory, as its exporter has recorded it
  bool peer = false;     // the memory lies on another device, to which this one has a link
};

// Blocks of physical memory that are mapped one behind the other.
struct BlocksRequest {
  std::span<const int> file_descriptors;  // one a block; they stay the caller's
  std::span<const uint64_t> sizes;        // of the blocks
  gpumem_location location = GPUMEM_LOCATION_DEVICE;
  int32_t numa_node = -1;
  gpumem_access access = GPUMEM_ACCESS_READWRITE;
  void* address = nullptr;  // where it must begin, if not null: ALREADY_EXISTS
  Device* home = nullptr;   // the device that has the memory, if another, to which this one has a link
};

class Sharing {
 public:
  // Whether nothing else lies in the driver's block of an allocation (IPC-25).
  virtual bool is_alone(const Memory& memory) const = 0;
  // The descriptor is the caller's.
  virtual Result<Ticket> export_memory(Memory& memory) = 0;
  // A descriptor of a block that is mapped there. It is the caller's.
  virtual Result<int> export_block(Reservation& reservation, uint64_t offset, const PhysicalFacts& facts) = 0;
  // STALE_HANDLE or PEER_GONE if there is nothing behind it any more, as far as the backend can tell; BUSY if
  // other code of the process has it open. For the calling device, which need not have the memory.
  virtual Result<std::unique_ptr<Memory>> import_memory(const TicketRequest& request) = 0;
  // The access is that of this device, and for memory of the host of the CPU too.
  virtual Result<std::unique_ptr<Memory>> import_blocks(const BlocksRequest& request) = 0;

  virtual Result<Ticket> export_event(Event& event) = 0;
  virtual Result<std::shared_ptr<Event>> import_event(const Ticket& ticket) = 0;

  // Of whole pages inside one memory, or inside mappings in a row. The plain form if PCIe cannot be had.
  virtual Result<int> export_dma_buf(const void* pointer, uint64_t size, bool prefer_pcie) = 0;

 protected:
  ~Sharing() = default;
};

}  // namespace gpumem::backend
