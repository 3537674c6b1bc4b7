// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The facet of sharing between processes. What is shared is a memory file: of an allocation, of a block of
// physical memory, or of an event.
#pragma once

#include <array>
#include <memory>

#include "backends/host/shared.h"
#include "contract/sharing.h"

namespace gpumem::host {

// What the file of memory that can be exported is called, so that an importer knows it. 0-terminated.
std::array<char, 64> memory_file_name(const std::array<uint8_t, 16>& device_uuid);

class HostSharing final : public backend::Sharing {
 public:
  HostSharing(Shared& shared, HostDevice& device) : shared_(shared), device_(device) {}

  bool is_alone(const backend::Memory& memory) const override;
  Result<backend::Ticket> export_memory(backend::Memory& memory) override;
  Result<std::unique_ptr<backend::Memory>> import_memory(const backend::TicketRequest& request) override;
  Result<int> export_block(backend::Reservation& reservation, uint64_t offset,
                           const backend::PhysicalFacts& facts) override;
  Result<std::unique_ptr<backend::Memory>> import_blocks(const backend::BlocksRequest& request) override;
  Result<backend::Ticket> export_event(backend::Event& event) override;
  Result<std::shared_ptr<backend::Event>> import_event(const backend::Ticket& ticket) override;
  Result<int> export_dma_buf(const void* pointer, uint64_t size, bool prefer_pcie) override;

 private:
  // That this device can use memory of the device with this UUID.
  Result<void> require_reach(const std::array<uint8_t, 16>& uuid, bool peer) const;

  Shared& shared_;
  HostDevice& device_;
};

}  // namespace gpumem::host
