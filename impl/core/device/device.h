// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A device of an instance: its capabilities, its peers, and streams for calls that wait for their work.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "contract/backend.h"
#include "contract/device.h"
#include "core/device/transfer.h"
#include "core/object/object.h"

namespace gpumem::core {

class Device {
 public:
  Device(backend::Device& backend, Context& owner, const TransferOptions& transfer)
      : backend_(backend), owner_(owner), transfer_(owner, backend, transfer) {}

  backend::Device& backend() const { return backend_; }
  Transfer& transfer() { return transfer_; }
  const Context* owner() const { return &owner_; }
  const backend::DeviceFacts& facts() const { return backend_.facts(); }
  uint32_t ordinal() const { return facts().ordinal; }
  uint64_t handle() const { return handle_; }
  // DEVICE_LOST once the device is lost.
  Result<void> usable() const {
    if (!backend_.lost()) [[likely]]
      return {};
    return lost_error();
  }

  Result<backend::MemoryAvailable> memory_available();
  // Answers the bytes given back.
  Result<uint64_t> trim_graphs();

  // Managed bytes against the memory of the device; only with `oversubscribe` may they exceed it, as far as
  // the host has room for the rest.
  Result<void> charge_managed(uint64_t bytes, bool oversubscribe);
  void refund_managed(uint64_t bytes) noexcept { managed_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  // The capability for the caller, refused in a host function.
  Result<backend::Capability> ask_capability(gpumem_capability capability, Device* peer);
  // Asks the backend at the first question and keeps the answer (COM-21).
  backend::Capability capability(gpumem_capability capability, Device* peer = nullptr);
  // The error of a call that needs this capability, if it is missing.
  Result<void> need(gpumem_capability capability);
  // The sharing facet; UNSUPPORTED if there is none.
  Result<backend::Sharing*> sharing() const;

  Result<bool> can_access_peer(Device& peer);
  // Counted, so that the last disable switches it off (DEV-7).
  Result<void> enable_peer_access(Device& peer);
  Result<void> disable_peer_access(Device& peer);
  bool has_peer_access(const Device& peer) const;
  // The same as can_access_peer(), which the backend is asked once.
  Result<bool> has_link_to(Device& peer);
  // Switches off what this instance switched on.
  void forget_peers() noexcept;

  // A stream for one call that enqueues and waits; no two calls share one at a time.
  Result<std::shared_ptr<backend::Stream>> borrow_stream();
  void return_stream(std::shared_ptr<backend::Stream> stream) noexcept;
  void release_streams() noexcept;

 private:
  friend class Devices;
  Error lost_error() const;

  struct Peer {
    uint64_t count = 0;
    bool switched_on = false;  // by us, so that we switch it off
  };

  backend::Device& backend_;
  const Context& owner_;
  uint64_t handle_ = 0;
  mutable std::mutex mutex_;
  std::map<std::pair<gpumem_capability, const Device*>, backend::Capability> capabilities_;
  std::set<std::pair<gpumem_capability, const Device*>> trials_;  // that run now
  std::condition_variable trial_ended_;
  std::mutex peers_mutex_;         // for changes, during the driver's calls; taken before mutex_
  std::map<Device*, Peer> peers_;  // changed with both locks, read with mutex_
  std::atomic<uint64_t> managed_bytes_{0};
  std::map<const Device*, bool> links_;
  std::vector<std::shared_ptr<backend::Stream>> idle_streams_;
  size_t lent_streams_ = 0;
  Transfer transfer_;
};

// What a device handle points to.
class DeviceObject final : public Object {
 public:
  static constexpr Type kType = Type::kDevice;
  DeviceObject(std::shared_ptr<Context> context, Device& device)
      : Object(kType, std::move(context)), device_(device) {}
  Device& device() const { return device_; }

 private:
  Device& device_;
};

// The devices of an instance, by their ordinals, and the objects that their handles point to.
class Devices {
 public:
  // Of the instance.
  static Devices& of(Context& context);

  Devices(Context& owner, const backend::Backend& backend, const TransferOptions& transfer);

  size_t size() const { return devices_.size(); }
  auto begin() const { return devices_.begin(); }
  auto end() const { return devices_.end(); }
  Device& operator[](size_t ordinal) const { return *devices_[ordinal]; }
  DeviceObject& object(size_t ordinal) const { return *objects_[ordinal]; }
  // Null if there is none.
  Device* find(const std::array<uint8_t, 16>& uuid) const;
  // Whether some device shares managed memory with the CPU in turns only.
  bool has_exclusive() const { return has_exclusive_; }

  // Makes the objects. They hold the instance, so publish them, after which clear() removes them, or cancel.
  Result<void> make_objects(const std::shared_ptr<Context>& owner);
  void publish_objects() noexcept;
  void cancel_objects() noexcept;
  // Frees the page-locked memory that is kept for copies. Whether there was any.
  bool flush_transfers() noexcept;
  // In this order, when the instance closes.
  void end_handles() noexcept;
  void await_uses() noexcept;
  void clear() noexcept;

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<DeviceObject*> objects_;
  bool has_exclusive_ = false;
};

}  // namespace gpumem::core
