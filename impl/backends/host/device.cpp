// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/device.h"

#include <algorithm>
#include <cstdio>

#include "backends/host/current_device.h"
#include "backends/host/event.h"
#include "backends/host/memory.h"
#include "backends/host/stream.h"
#include "base/cleanup.h"
#include "platform/numa.h"

namespace gpumem::host {

namespace {

// Has no effect here: every stream has its own thread.
constexpr int32_t kPriorityHighest = -1;
constexpr int32_t kPriorityLowest = 0;

uint64_t bit(const HostDevice& device) { return uint64_t{1} << device.facts().ordinal; }

}  // namespace

HostDevice::HostDevice(Shared& shared, Queues& queues, uint32_t ordinal)
    : shared_(shared),
      queues_(queues),
      budget_(shared.options.device_bytes),
      arena_(shared),
      virtual_memory_(shared, *this) {
  const uint32_t pretended = shared.options.numa_nodes;
  facts_.ordinal = ordinal;
  facts_.numa_node =
      static_cast<int32_t>(ordinal % (pretended != 0 ? pretended : platform::numa_node_count()));
  facts_.total_bytes = shared.options.device_bytes;
  facts_.uuid = device_uuid(shared.options, ordinal);
  facts_.name = "gpumem host device " + std::to_string(ordinal);
}

Result<void> HostDevice::require_not_lost() const {
  if (!lost()) return {};
  return lost_because(lost_reason_);
}

Error HostDevice::lost_because(const char* reason) const {
  return make_error(GPUMEM_ERROR_DEVICE_LOST, "device %u is lost: %s", facts_.ordinal, reason);
}

void HostDevice::lose(const char* reason) {
  Lock lock(shared_.mutex);
  losing_ = true;
  shared_.progress.wait(lock, [&] { return !queues_.touching(lock, *this); });
  if (lost()) return;
  std::snprintf(lost_reason_, sizeof lost_reason_, "%s", reason);
  lost_.store(true, std::memory_order_release);
  shared_.managed.refresh(lock);
  shared_.progress.notify_all();
}

Result<backend::MemoryAvailable> HostDevice::memory_available() {
  const CurrentDevice current(facts_.ordinal);
  GPUMEM_TRY(require_not_lost());
  return backend::MemoryAvailable{budget_.available(), budget_.total()};
}

Result<std::unique_ptr<backend::Memory>> HostDevice::create_memory(const backend::MemoryRequest& request) {
  const CurrentDevice current(facts_.ordinal);
  GPUMEM_TRY(require_not_lost());
  switch (request.sort) {
    case backend::MemorySort::kDevice:
      return record_memory(shared_, allocate(shared_, *this, request, true));
    case backend::MemorySort::kPinned:
    case backend::MemorySort::kManaged:
      return record_memory(shared_, allocate(shared_, *this, request, false));
    case backend::MemorySort::kNone:
      break;
  }
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "the host backend does not allocate memory of this sort");
}

Result<std::unique_ptr<backend::Memory>> HostDevice::register_memory(
    const backend::RegistrationRequest& request) {
  const CurrentDevice current(facts_.ordinal);
  GPUMEM_TRY(require_not_lost());
  return record_memory(shared_, lock_bytes(shared_, *this, request));
}

Result<std::shared_ptr<backend::Stream>> HostDevice::create_stream(int32_t priority) {
  const CurrentDevice current(facts_.ordinal);
  auto queue = queues_.start(*this, false);
  if (!queue) return queue.error();
  Cleanup end_again([&] {
    const Lock lock(shared_.mutex);
    (*queue)->retire(lock);
  });
  const int32_t granted = std::clamp(priority, kPriorityHighest, kPriorityLowest);
  std::shared_ptr<backend::Stream> stream;
  {
    const Lock lock(shared_.mutex);
    stream = std::make_shared<HostStream>(shared_, lock, *queue, (*queue)->handle(), granted, true);
  }
  end_again.dismiss();
  return stream;
}

Result<void> HostDevice::synchronize() {
  const CurrentDevice current(facts_.ordinal);
  GPUMEM_TRY(require_not_lost());
  std::vector<Mark> marks;
  {
    const Lock lock(shared_.mutex);
    auto all = queues_.marks(lock, *this);
    if (!all) return all.error();
    marks = std::move(*all);
  }
  Result<void> result;
  for (const Mark& mark : marks) {
    auto complete = shared_.await(*this, mark, GPUMEM_TIMEOUT_INFINITE);
    if (!complete && result) result = complete.error();
  }
  return result;
}

Result<void> HostDevice::await_released_streams() {
  queues_.await_retired(*this);
  return {};
}

Result<std::shared_ptr<backend::Stream>> HostDevice::wrap_stream(void* native) {
  const CurrentDevice current(facts_.ordinal);
  GPUMEM_TRY(require_not_lost());
  if (native == nullptr) GPUMEM_TRY(make_default_queue());
  const Lock lock(shared_.mutex);
  auto queue = native == nullptr ? Result(default_queue_) : queues_.find(lock, *this, native);
  if (!queue) return queue.error();
  return std::shared_ptr<backend::Stream>(
      std::make_shared<HostStream>(shared_, lock, *queue, native, kPriorityLowest, false));
}

Result<void> HostDevice::make_default_queue() {
  {
    const Lock lock(shared_.mutex);
    if (default_queue_ != nullptr) return {};
  }
  auto started = queues_.start(*this, false);
  if (!started) return started.error();
  const Lock lock(shared_.mutex);
  if (default_queue_ == nullptr) {
    default_queue_ = *started;
  } else {
    (*started)->retire(lock);  // another thread won the race
  }
  return {};
}

Result<std::shared_ptr<backend::Event>> HostDevice::create_event(gpumem_event_flags flags) {
  const CurrentDevice current(facts_.ordinal);
  GPUMEM_TRY(require_not_lost());
  GPUMEM_TRY(shared_.steps.take("event"));
  std::shared_ptr<SharedEvent> page;
  if ((flags & GPUMEM_EVENT_INTERPROCESS) != 0) {
    if (!shared_.options.has(EntryPoint::kSharing)) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED, "device %u cannot share events (capability share.events)",
                        facts_.ordinal);
    }
    auto made = SharedEvent::create(shared_.steps, facts_.uuid, (flags & backend::kRecordedHere) != 0);
    if (!made) return made.error();
    page = std::move(*made);
  }
  return std::shared_ptr<backend::Event>(std::make_shared<HostEvent>(shared_, *this, std::move(page)));
}

Result<std::shared_ptr<backend::Event>> HostDevice::wrap_event(void* /*native*/,
                                                               gpumem_event_flags /*flags*/) {
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "the host backend has no native events");
}

Result<void*> HostDevice::foreign_device_pointer(const void* pointer) {
  const CurrentDevice current(facts_.ordinal);
  GPUMEM_TRY(require_not_lost());
  const Lock lock(shared_.mutex);
  const auto allocation = shared_.table.find(pointer);
  if (allocation == nullptr || allocation->foreign_id == 0) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "there is no foreign memory at %p", pointer);
  }
  return const_cast<void*>(pointer);  // device and host addresses of foreign memory are equal here
}

bool HostDevice::has_link_to(uint32_t ordinal) const {
  return (shared_.options.links.at(facts_.ordinal) >> ordinal & 1) != 0;
}

Result<void> HostDevice::require_link_to(const HostDevice& peer) const {
  if (has_link_to(peer)) return {};
  return make_error(GPUMEM_ERROR_UNSUPPORTED,
                    "there is no link from device %u to device %u (capability peer.access)", facts_.ordinal,
                    peer.facts().ordinal);
}

bool HostDevice::reaches(const Lock& /*held*/, const HostDevice& peer) const {
  return &peer == this || ((enabled_peers_ | foreign_peers_) & bit(peer)) != 0;
}

Result<bool> HostDevice::can_access_peer(backend::Device& peer) {
  const CurrentDevice current(facts_.ordinal);
  return has_link_to(static_cast<HostDevice&>(peer));
}

Result<bool> HostDevice::enable_peer_access(backend::Device& peer) {
  const CurrentDevice current(facts_.ordinal);
  auto& other = static_cast<HostDevice&>(peer);
  GPUMEM_TRY(require_not_lost());
  GPUMEM_TRY(other.require_not_lost());
  GPUMEM_TRY(require_link_to(other));
  GPUMEM_TRY(shared_.options.require(EntryPoint::kPeerAccess));
  GPUMEM_TRY(shared_.steps.take("peer_access"));
  const Lock lock(shared_.mutex);
  if ((foreign_peers_ & bit(other)) != 0) return false;
  enabled_peers_ |= bit(other);
  return true;
}

Result<void> HostDevice::disable_peer_access(backend::Device& peer) {
  const CurrentDevice current(facts_.ordinal);
  const Lock lock(shared_.mutex);
  enabled_peers_ &= ~bit(static_cast<HostDevice&>(peer));
  return {};
}

Result<void> HostDevice::set_foreign_peer_access(const HostDevice& peer, bool enabled) {
  GPUMEM_TRY(require_link_to(peer));
  const Lock lock(shared_.mutex);
  if (enabled) {
    foreign_peers_ |= bit(peer);
  } else {
    foreign_peers_ &= ~bit(peer);
  }
  return {};
}

}  // namespace gpumem::host
