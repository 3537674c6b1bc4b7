// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Sharing between processes, by handles of the driver and by blocks of physical memory.
#pragma once

#include "backends/cuda/device.h"

namespace gpumem::cuda {

class Sharing final : public backend::Sharing {
 public:
  explicit Sharing(Device& device) : device_(device) {}

  bool is_alone(const backend::Memory& memory) const override;
  Result<backend::Ticket> export_memory(backend::Memory& memory) override;
  // Code of this process that has the memory open in the primary context is not noticed, and need not be: the
  // driver counts, and each closes for itself. BUSY only if the driver refuses because of it.
  Result<std::unique_ptr<backend::Memory>> import_memory(const backend::TicketRequest& request) override;
  Result<int> export_block(backend::Reservation& reservation, uint64_t offset,
                           const backend::PhysicalFacts& facts) override;
  Result<std::unique_ptr<backend::Memory>> import_blocks(const backend::BlocksRequest& request) override;
  Result<backend::Ticket> export_event(backend::Event& event) override;
  Result<std::shared_ptr<backend::Event>> import_event(const backend::Ticket& ticket) override;
  Result<int> export_dma_buf(const void* pointer, uint64_t size, bool prefer_pcie) override;

  // With no other form in place of the one asked for.
  Result<int> try_dma_buf(const void* pointer, uint64_t size, bool pcie);

 private:
  Device& device_;
};

}  // namespace gpumem::cuda
