// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An emulated device: its memory budget, its links to other devices, and whether it is lost.
#pragma once

#include <atomic>

#include "backends/host/allocation.h"
#include "backends/host/arena.h"
#include "backends/host/managed.h"
#include "backends/host/queue.h"
#include "backends/host/shared.h"
#include "backends/host/sharing.h"
#include "backends/host/vmm.h"
#include "contract/backend.h"

namespace gpumem::host {

class HostDevice final : public backend::Device {
 public:
  HostDevice(Shared& shared, Queues& queues, uint32_t ordinal);

  Result<backend::MemoryAvailable> memory_available() override;
  Result<void> synchronize() override;
  Result<std::unique_ptr<backend::Memory>> create_memory(const backend::MemoryRequest& request) override;
  Result<std::unique_ptr<backend::Memory>> register_memory(
      const backend::RegistrationRequest& request) override;
  Result<std::shared_ptr<backend::Stream>> create_stream(int32_t priority) override;
  Result<std::shared_ptr<backend::Stream>> wrap_stream(void* native) override;
  Result<void> await_released_streams() override;
  Result<std::shared_ptr<backend::Event>> create_event(gpumem_event_flags flags) override;
  Result<std::shared_ptr<backend::Event>> wrap_event(void* native, gpumem_event_flags flags) override;
  Result<void*> foreign_device_pointer(const void* pointer) override;
  Result<bool> can_access_peer(backend::Device& peer) override;
  Result<bool> enable_peer_access(backend::Device& peer) override;
  Result<void> disable_peer_access(backend::Device& peer) override;
  backend::Capability capability(gpumem_capability capability, backend::Device* peer) override;
  backend::VirtualMemory* vmm() override {
    return shared_.options.has(EntryPoint::kVmm) ? &virtual_memory_ : nullptr;
  }

  backend::Managed* managed() override { return &managed_; }
  backend::Sharing* sharing() override {
    return shared_.options.has(EntryPoint::kSharing) ? &sharing_ : nullptr;
  }

  const std::atomic<bool>& lost_flag() const { return lost_; }
  Result<void> require_not_lost() const;
  Error lost_because(const char* reason) const;
  // Drops pending work and waits for running copies, fills and value writes, so that a caller who gets
  // DEVICE_LOST may reuse its memory. Later failures quote the first `reason`.
  void lose(const char* reason);
  // lose() waits for running work and prevents any more from starting.
  bool is_being_lost(const Lock& /*held*/) const { return losing_ && !lost(); }

  bool is_concurrent() const { return managed_.concurrent(); }
  Budget& budget() { return budget_; }
  Arena& arena() { return arena_; }
  bool has_link_to(const HostDevice& peer) const { return has_link_to(peer.facts().ordinal); }
  bool has_link_to(uint32_t ordinal) const;
  // Whether kernels may use the peer's memory at present. Requires Shared::mutex.
  bool reaches(const Lock& held, const HostDevice& peer) const;
  // UNSUPPORTED without a link.
  Result<void> set_foreign_peer_access(const HostDevice& peer, bool enabled);

 private:
  Result<void> require_link_to(const HostDevice& peer) const;
  // Created at the first use.
  Result<void> make_default_queue();
  backend::Capability answer(gpumem_capability capability, const HostDevice* peer) const;

  Shared& shared_;
  Queues& queues_;
  Budget budget_;
  Arena arena_;
  HostManaged managed_{shared_, *this};
  HostVirtualMemory virtual_memory_;
  HostSharing sharing_{shared_, *this};
  char lost_reason_[160] = "";            // written once, before lost_
  bool losing_ = false;                   // lose() was called; guarded by Shared::mutex
  std::shared_ptr<Queue> default_queue_;  // for the native stream NULL; guarded by Shared::mutex
  uint64_t enabled_peers_ = 0;            // bits of ordinals, enabled through the contract; guarded
  uint64_t foreign_peers_ = 0;            // the same, by other code
};

}  // namespace gpumem::host
