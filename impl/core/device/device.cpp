// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/device/device.h"

#include <algorithm>
#include <cinttypes>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/object/context.h"
#include "core/object/handles.h"
#include "core/object/host_function_guard.h"
#include "core/object/log.h"
#include "platform/host_budget.h"

namespace gpumem::core {

Error Device::lost_error() const {
  return make_error(
      GPUMEM_ERROR_DEVICE_LOST,
      "device %u is lost because earlier work on it failed; free what is left and restart the process",
      ordinal());
}

Result<backend::MemoryAvailable> Device::memory_available() {
  GPUMEM_TRY(usable());
  GPUMEM_TRY(outside_host_function());
  return backend_.memory_available();
}

Result<uint64_t> Device::trim_graphs() {
  GPUMEM_TRY(usable());
  GPUMEM_TRY(outside_host_function());
  return backend_.trim_graphs();
}

Result<void> Device::charge_managed(uint64_t bytes, bool oversubscribe) {
  const uint64_t total = facts().total_bytes;
  uint64_t used = managed_bytes_.load(std::memory_order_relaxed);
  uint64_t beyond = 0;
  do {
    if (bytes > kSizeMax - used) {
      return make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
                        "%" PRIu64 " bytes of managed memory live already; %" PRIu64
                        " more exceed the %" PRIu64 " that a process can address; free some",
                        used, bytes, kSizeMax);
    }
    beyond = used + bytes > total ? std::min(bytes, used + bytes - total) : 0;
    if (beyond != 0 && !oversubscribe) {
      return make_error(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                        "%" PRIu64 " bytes of managed memory live already, and %" PRIu64
                        " more exceed the %" PRIu64
                        " bytes of device %u; free some, or require GPUMEM_MEMORY_OVERSUBSCRIBE",
                        used, bytes, total, ordinal());
    }
  } while (!managed_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  if (beyond == 0) return {};
  auto has_room = platform::check_host_budget(beyond);
  if (!has_room) refund_managed(bytes);
  return has_room;
}

Result<bool> Device::can_access_peer(Device& peer) {
  GPUMEM_TRY(outside_host_function());
  return backend_.can_access_peer(peer.backend());
}

Result<bool> Device::has_link_to(Device& peer) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = links_.find(&peer); known != links_.end()) return known->second;
  }
  auto linked = backend_.can_access_peer(peer.backend());
  if (!linked) return linked;
  const std::lock_guard lock(mutex_);
  links_.emplace(&peer, *linked);
  return linked;
}

Result<void> Device::enable_peer_access(Device& peer) {
  GPUMEM_TRY(usable());
  GPUMEM_TRY(peer.usable());
  GPUMEM_TRY(outside_host_function());
  const std::lock_guard changes(peers_mutex_);
  // Made before the driver is asked, so that counting cannot fail.
  Peer* const relation = [&] {
    const std::lock_guard lock(mutex_);
    return &peers_[&peer];
  }();
  bool switched_on = relation->switched_on;
  if (relation->count == 0) {
    auto enabled = backend_.enable_peer_access(peer.backend());
    if (!enabled) return enabled.error();
    switched_on = *enabled;
  }
  const std::lock_guard lock(mutex_);
  relation->count += 1;
  relation->switched_on = switched_on;
  return {};
}

Result<void> Device::disable_peer_access(Device& peer) {
  GPUMEM_TRY(outside_host_function());
  const std::lock_guard changes(peers_mutex_);
  const auto found = peers_.find(&peer);
  if (found == peers_.end() || found->second.count == 0) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "device %u has no access to device %u that this instance enabled", ordinal(),
                      peer.ordinal());
  }
  Peer& relation = found->second;
  if (relation.count == 1 && relation.switched_on && !backend_.lost()) {
    GPUMEM_TRY(backend_.disable_peer_access(peer.backend()));
  }
  const std::lock_guard lock(mutex_);
  relation.count -= 1;
  return {};
}

bool Device::has_peer_access(const Device& peer) const {
  std::lock_guard lock(mutex_);
  const auto found = peers_.find(const_cast<Device*>(&peer));
  return found != peers_.end() && found->second.count > 0;
}

void Device::forget_peers() noexcept {
  const std::scoped_lock lock(peers_mutex_, mutex_);
  for (auto& [peer, relation] : peers_) {
    if (relation.count == 0 || !relation.switched_on || backend_.lost()) continue;
    if (auto done = backend_.disable_peer_access(peer->backend()); !done) {
      log(GPUMEM_LOG_ERROR, "could not disable peer access: %s", done.error().message);
    }
  }
  peers_.clear();
}

Result<std::shared_ptr<backend::Stream>> Device::borrow_stream() {
  {
    std::lock_guard lock(mutex_);
    idle_streams_.reserve(idle_streams_.size() + lent_streams_ +
                          1);  // so that returning them all cannot fail
    ++lent_streams_;
    if (!idle_streams_.empty()) {
      auto stream = std::move(idle_streams_.back());
      idle_streams_.pop_back();
      return stream;
    }
  }
  Cleanup undo([this] {
    std::lock_guard lock(mutex_);
    --lent_streams_;
  });
  auto created = backend_.create_stream(0);
  if (created) undo.dismiss();
  return created;
}

void Device::return_stream(std::shared_ptr<backend::Stream> stream) noexcept {
  std::lock_guard lock(mutex_);
  idle_streams_.push_back(std::move(stream));
  --lent_streams_;
}

void Device::release_streams() noexcept {
  std::lock_guard lock(mutex_);
  for (const auto& stream : idle_streams_) {
    if (auto done = stream->release(); !done) {
      log(GPUMEM_LOG_ERROR, "could not release a stream: %s", done.error().message);
    }
  }
  idle_streams_.clear();
}

Devices::Devices(Context& owner, const backend::Backend& backend, const TransferOptions& transfer) {
  for (const auto& device : backend.devices())
    devices_.push_back(std::make_unique<Device>(*device, owner, transfer));
  has_exclusive_ = std::any_of(backend.devices().begin(), backend.devices().end(), [](const auto& device) {
    const backend::Managed* const managed = device->managed();
    return managed != nullptr && !managed->concurrent();
  });
}

Device* Devices::find(const std::array<uint8_t, 16>& uuid) const {
  const auto found = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const auto& device) { return device->facts().uuid == uuid; });
  return found != devices_.end() ? found->get() : nullptr;
}

Result<void> Devices::make_objects(const std::shared_ptr<Context>& owner) {
  objects_.reserve(devices_.size());
  for (const auto& device : devices_) {
    auto object = std::make_unique<DeviceObject>(owner, *device);
    auto handle = handles::reserve(*object);
    if (!handle) return handle.error();
    device->handle_ = *handle;
    objects_.push_back(object.release());
  }
  return {};
}

void Devices::publish_objects() noexcept {
  for (DeviceObject* const object : objects_)
    handles::publish(object);
}

void Devices::cancel_objects() noexcept {
  for (const DeviceObject* const object : std::exchange(objects_, {})) {
    handles::cancel(*object);
    delete object;
  }
}

bool Devices::flush_transfers() noexcept {
  bool any = false;
  for (const auto& device : devices_)
    any = device->transfer().flush() || any;
  return any;
}

void Devices::end_handles() noexcept {
  for (DeviceObject* const object : objects_)
    handles::end(*object, End::kClosed);
}

void Devices::await_uses() noexcept {
  for (DeviceObject* const object : objects_)
    platform::wait_for_uses(object);
}

void Devices::clear() noexcept {
  for (const auto& device : devices_) {
    device->forget_peers();
    device->transfer().stop();
    device->release_streams();
  }
  for (DeviceObject* const object : objects_)
    handles::remove(object);
  objects_.clear();
  devices_.clear();
}

}  // namespace gpumem::core
