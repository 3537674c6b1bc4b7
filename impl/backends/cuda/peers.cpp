// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/peers.h"

#include "base/cleanup.h"
#include "platform/fork.h"

namespace gpumem::cuda {
namespace {

constinit platform::PerProcess<Peers> all_peers;

}  // namespace

Peers& peers() { return all_peers.get(); }

Result<bool> Device::can_access_peer(backend::Device& peer) {
  int can = 0;
  const CUdevice other = static_cast<Device&>(peer).handle_;
  GPUMEM_TRY(check(cu_.DeviceCanAccessPeer(&can, handle_, other), Place::kHost,
                   "cannot query whether device %u can access device %u", facts_.ordinal,
                   peer.facts().ordinal));
  return can != 0;
}

Result<bool> Device::enable_peer_access(backend::Device& peer) {
  Peers& known = peers();
  const std::lock_guard lock(known.mutex);
  return enable_peer_access_locked(known, static_cast<Device&>(peer));
}

Result<void> Device::disable_peer_access(backend::Device& peer) {
  Peers& known = peers();
  const std::lock_guard lock(known.mutex);
  return disable_peer_access_locked(known, static_cast<Device&>(peer));
}

// The driver is called even if the access is already held: other code may have reset the context.
Result<bool> Device::enable_peer_access_locked(Peers& known, Device& peer) {
  RelaxedScope scope(*this);
  GPUMEM_TRY(scope.entered());
  const auto relation = known.holders.try_emplace({context_, peer.context_}).first;
  const Cleanup drop_unheld([&] {
    if (relation->second == 0) known.holders.erase(relation);
  });
  const Outcome outcome = cu_.CtxEnablePeerAccess(peer.context_, 0);
  if (outcome.code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
    if (relation->second == 0) return false;
  } else {
    GPUMEM_TRY(check(outcome, Place::kDevice, "cannot give device %u access to the memory of device %u",
                     facts_.ordinal, peer.facts_.ordinal));
  }
  CUcontext& held = held_peers_[peer.facts_.ordinal];
  if (held == nullptr) ++relation->second;
  held = peer.context_;
  return true;
}

Result<void> Device::disable_peer_access_locked(Peers& known, Device& peer) {
  CUcontext& held = held_peers_[peer.facts_.ordinal];
  if (held == nullptr) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "device %u has no access to device %u that this instance enabled", facts_.ordinal,
                      peer.facts_.ordinal);
  }
  const auto relation = known.holders.find({context_, held});
  if (relation->second == 1) {
    RelaxedScope scope(*this);
    GPUMEM_TRY(scope.entered());
    const Outcome outcome = cu_.CtxDisablePeerAccess(held);
    // It may be off already: an earlier try may have worked but returned an older error, or other code may
    // have reset the context.
    if (outcome.code != CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) {
      GPUMEM_TRY(check(outcome, Place::kDevice,
                       "cannot disable the access of device %u to the memory of device %u", facts_.ordinal,
                       peer.facts_.ordinal));
    }
  }
  drop_peer(known, held);
  return {};
}

void Device::drop_peer(Peers& known, CUcontext& held) {
  const auto relation = known.holders.find({context_, held});
  if (--relation->second == 0) known.holders.erase(relation);
  held = nullptr;
}

// Access that was not disabled, as on a lost device, must not count for a later context at the same address.
void Device::drop_all_peers() {
  for (CUcontext& held : held_peers_) {
    if (held == nullptr) continue;
    Peers& known = peers();
    const std::lock_guard lock(known.mutex);
    drop_peer(known, held);
  }
}

}  // namespace gpumem::cuda
