// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Physical memory as memory files, and reservations as inaccessible ranges that these are mapped into.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <utility>

#include "backends/host/allocation.h"
#include "backends/host/shared.h"
#include "contract/vmm.h"
#include "platform/descriptor.h"

namespace gpumem::host {

// Where the memory of a block lies, as the name of its file says.
struct BlockPlace {
  char text[40] = "";
};
BlockPlace place_on(const std::array<uint8_t, 16>& device_uuid);
BlockPlace place_on_host(int32_t node);  // -1: any

// What another process says of a block.
struct BlockFacts {
  platform::DescriptorFacts file;
  gpumem_physical_flags granted = 0;
};
// INVALID_ARGUMENT unless the descriptor is of a block of this size, in this place, that was created with
// these handle types.
Result<BlockFacts> check_block(int file_descriptor, const BlockPlace& place, uint64_t size,
                               gpumem_handle_types types);

// Physical memory, shared by its handles and mappings.
struct HostBlock {
  explicit HostBlock(HostDevice& owner) : device(owner) {}
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  ~HostBlock();

  HostDevice& device;
  backend::PhysicalFacts facts;
  int file = -1;                           // -1 where nobody exports the block
  std::pair<uint64_t, uint64_t> identity;  // of the file
  Charge charge;
  Range private_view;
  std::byte* bytes = nullptr;

  // Device blocks that the CPU can see are so for debugging, whatever access is set (HST-1).
  bool always_visible(const Options& options) const { return facts.on_device() && !options.strict; }
};

class HostPhysical final : public backend::Physical {
 public:
  HostPhysical(std::shared_ptr<HostBlock> block, const backend::PhysicalFacts& facts)
      : block_(std::move(block)) {
    facts_ = facts;
  }

  Result<int> export_fd() override;
  Result<void> release() override;
  const std::shared_ptr<HostBlock>& block() const { return block_; }

 private:
  std::shared_ptr<HostBlock> block_;  // null after the release
};

class HostReservation final : public backend::Reservation {
 public:
  HostReservation(Shared& shared, HostDevice& device, Range range);
  ~HostReservation() override;

  Result<void> map(uint64_t offset, std::span<backend::Physical* const> blocks) override;
  Result<void> check_mappings_unused(uint64_t offset, uint64_t size) override;
  Result<void> unmap(uint64_t offset, uint64_t size, backend::Device& home) override;
  Result<void> set_access(std::span<const backend::AccessPart> parts,
                          std::span<const backend::AccessChange> changes) override;
  Result<std::unique_ptr<backend::Physical>> retain(uint64_t offset,
                                                    const backend::PhysicalFacts& facts) override;
  Result<void> release() override;

 private:
  uint64_t base() const { return address_of(facts_.device_pointer); }
  Result<void> show(Allocation& mapping);
  Result<void> let_cpu(const backend::AccessPart& part, gpumem_access access);
  Result<void> require_unused(const Lock& held, uint64_t offset, uint64_t size) const;

  Shared& shared_;
  HostDevice& device_;
  Range range_;
};

class HostVirtualMemory final : public backend::VirtualMemory {
 public:
  HostVirtualMemory(Shared& shared, HostDevice& device) : shared_(shared), device_(device) {}

  Result<backend::Granularity> granularity(const backend::PhysicalRequest& request) override;
  Result<std::unique_ptr<backend::Physical>> create(const backend::PhysicalRequest& request) override;
  Result<std::unique_ptr<backend::Physical>> import_fd(const backend::PhysicalRequest& request,
                                                       int file_descriptor) override;
  Result<std::unique_ptr<backend::Reservation>> reserve(const backend::ReservationRequest& request) override;

 private:
  Result<void> make_view(HostBlock& block, int file);
  Result<void> make_pages(HostBlock& block, int file);
  backend::PhysicalFacts facts_for(const backend::PhysicalRequest& request) const;

  Shared& shared_;
  HostDevice& device_;
};

}  // namespace gpumem::host
