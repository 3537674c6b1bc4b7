// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/device.h"

#include <array>

#include "base/cleanup.h"
#include "core/log.h"

namespace gpumem::core {
namespace {

struct CapabilityName {
  gpumem_capability capability;
  const char* name;
};

constexpr std::array kCapabilities{
    CapabilityName{GPUMEM_CAPABILITY_UVA, "uva"},
    CapabilityName{GPUMEM_CAPABILITY_DEVICE_COUNT, "device.count"},
    CapabilityName{GPUMEM_CAPABILITY_DEVICE_BYTES, "device.bytes"},
    CapabilityName{GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS, "dev.cpu_access"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_MAP_HOST, "pin.map_host"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_PAGE_LOCKED, "pin.page_locked"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_WRITE_COMBINED, "pin.write_combined"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_REGISTER, "pin.register"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER, "pin.register_same_pointer"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY, "pin.register_read_only"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY, "pin.register_iomemory"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_MAX_SINGLE, "pin.max_single"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_MAX_COUNT, "pin.max_count"},
    CapabilityName{GPUMEM_CAPABILITY_PIN_NUMA, "pin.numa"},
    CapabilityName{GPUMEM_CAPABILITY_HOST_ATOMICS, "host.atomics"},
    CapabilityName{GPUMEM_CAPABILITY_PAGEABLE, "man.pageable"},
    CapabilityName{GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES, "man.pageable_host_tables"},
    CapabilityName{GPUMEM_CAPABILITY_STREAM_VALUE32, "stream.value32"},
    CapabilityName{GPUMEM_CAPABILITY_STREAM_VALUE64, "stream.value64"},
    CapabilityName{GPUMEM_CAPABILITY_STREAM_VALUE_NOR, "stream.value_nor"},
    CapabilityName{GPUMEM_CAPABILITY_COPY_ENGINES, "copy.engines"},
    CapabilityName{GPUMEM_CAPABILITY_PEER_ACCESS, "peer.access"},
    CapabilityName{GPUMEM_CAPABILITY_PEER_ATOMICS, "peer.atomics"},
};

// Whether an answer holds for good. A trial that failed for another reason, such as a lack of memory, says
// nothing.
bool is_final(const backend::Capability& answer) {
  const Status status = answer.status;
  return !answer.passing &&
         (status == GPUMEM_SUCCESS || status == GPUMEM_ERROR_UNSUPPORTED ||
          status == GPUMEM_ERROR_SYMBOL_MISSING || status == GPUMEM_ERROR_PERMISSION_DENIED);
}

}  // namespace

const char* capability_name(gpumem_capability capability) {
  for (const CapabilityName& entry : kCapabilities) {
    if (entry.capability == capability) return entry.name;
  }
  return nullptr;
}

gpumem_capability capability_at(uint32_t index) {
  return index < kCapabilities.size() ? kCapabilities[index].capability : 0;
}

bool is_peer_capability(gpumem_capability capability) {
  return capability == GPUMEM_CAPABILITY_PEER_ACCESS || capability == GPUMEM_CAPABILITY_PEER_ATOMICS;
}

Result<void> Device::usable() const {
  if (!backend_.lost()) return {};
  return make_error(
      GPUMEM_ERROR_DEVICE_LOST,
      "device %u is lost: earlier work on it failed; free what is left and start the process again",
      ordinal());
}

backend::Capability Device::capability(gpumem_capability capability, Device* peer) {
  backend::Capability answer;
  const std::pair question(capability, static_cast<const Device*>(peer));
  std::unique_lock lock(mutex_);
  // A trial runs once. The lock is not held meanwhile: a trial can wait for work of the device that ends only
  // when another call, with other questions, has gone through.
  trial_ended_.wait(lock, [&] { return !trials_.contains(question); });
  if (const auto found = capabilities_.find(question); found != capabilities_.end()) {
    answer = found->second;
  } else {
    const auto trial = trials_.insert(question).first;
    lock.unlock();
    const Cleanup ended([&] {
      if (!lock) lock.lock();
      trials_.erase(trial);
      trial_ended_.notify_all();
    });
    answer = backend_.capability(capability, peer != nullptr ? &peer->backend() : nullptr);
    lock.lock();
    if (is_final(answer)) capabilities_.emplace(question, answer);
  }
  if (answer.type == GPUMEM_ANSWER_TYPE_TRI && backend_.lost()) {
    answer.value = GPUMEM_ANSWER_NO;
    answer.status = GPUMEM_ERROR_DEVICE_LOST;
    std::snprintf(answer.reason, sizeof answer.reason, "the device is lost");
  }
  return answer;
}

Result<void> Device::need(gpumem_capability capability) {
  const backend::Capability answer = this->capability(capability);
  if (answer.value != GPUMEM_ANSWER_NO) return {};
  return make_error(answer.status, "device %u cannot do this, %s is NO: %s", ordinal(),
                    capability_name(capability), answer.reason)
      .from_native(answer.native_domain, answer.native_code, answer.native_name, answer.entry_point);
}

Result<void> Device::enable_peer_access(Device& peer) {
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
  const std::lock_guard changes(peers_mutex_);
  const auto found = peers_.find(&peer);
  if (found == peers_.end() || found->second.count == 0) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "access of device %u to device %u was not enabled through this instance", ordinal(),
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
      log(GPUMEM_LOG_ERROR, "peer access could not be switched off: %s", done.error().message);
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
      log(GPUMEM_LOG_ERROR, "a stream could not be released: %s", done.error().message);
    }
  }
  idle_streams_.clear();
}

}  // namespace gpumem::core
