// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Rings: slots of device memory that go from a producer to consumers in other processes, again and again.
//
// All events are the producer's: one for each slot, which it records, and one for each slot and place of a
// consumer, which that records. So a consumer that ends leaves nothing that the producer would have to close.
#pragma once

#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contract/event.h"
#include "core/device/device.h"
#include "core/object/handles.h"
#include "core/object/object.h"
#include "core/share/link/imports.h"
#include "core/share/ring/ring_control.h"
#include "core/share/wire/handle.h"
#include "gpumem/ring.h"
#include "platform/socket.h"

namespace gpumem::core {

class Stream;

struct RingRequest {
  RingShape shape;
  uint32_t consumers_first = 0;
  std::string name;
};

struct RingSlot {
  void* pointer = nullptr;
  uint64_t size = 0;
  uint64_t number = 0;
  uint64_t tag = 0;
  uint32_t index = 0;
};

class Ring final : public Object {
 public:
  static constexpr Type kType = Type::kRing;
  Ring(std::shared_ptr<Context> context, Device& device, bool producer, std::string name);
  ~Ring() override;
  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;

  Device& device() const { return device_; }
  const std::string& name() const { return name_; }
  // Opens what is claimed; returns the handle.
  static Result<uint64_t> open_claimed(const std::shared_ptr<Context>& context, ImportSource source,
                                       std::string name, platform::Deadline deadline);
  gpumem_ring_info info() const;

  Result<ShareHandle> exported() const;
  // In these calls, a null stream means the calling thread.
  Result<Status> acquire(Stream* stream, uint64_t timeout_ns, RingSlot* slot);
  Result<void> publish(Stream* stream, uint64_t size, uint64_t tag);
  Result<Status> wait(Stream* stream, uint64_t timeout_ns, RingSlot* slot);
  Result<void> release(Stream* stream, uint64_t number);
  Result<Status> finish(uint64_t timeout_ns);

 private:
  friend Result<uint64_t> create_ring(DeviceObject& device, RingRequest request);
  friend Result<void> destroy_ring(Ref<Ring> ring);

  // Releases what the backend has, and leaves the ring. The memory is what close_memory() releases, or the
  // instance that is being closed.
  void close() noexcept;

  using Events = std::vector<std::shared_ptr<backend::Event>>;
  class Places;
  class PlaceWatcher;
  class MemoryWatcher;
  class Turn;

  Result<void> create(DeviceObject& device, const RingRequest& request);
  Result<void> open(ImportSource source, DeviceObject& device, platform::Deadline deadline);
  Error explain(const Error& error) const;
  Result<void> take_place(platform::Deadline deadline);
  // False if all places are taken.
  Result<bool> take_free_place(platform::Deadline deadline);
  Result<void> join();
  Result<void> import_event(const gpumem_share_handle& bytes, platform::Deadline deadline, Events& events,
                            std::vector<Claim>& claims);
  Result<ShareHandle> read_handle(const gpumem_share_handle& bytes, gpumem_share_type type) const;
  Result<void> synchronize() noexcept;
  Result<void> check_unused();
  Result<void> close_memory();
  Result<void> release_events() noexcept;

  Result<void> check_side(bool producer) const;
  Result<void> check_stream(const Stream* stream) const;
  // Checks that the instance is not being closed.
  Result<void> check_running() const;
  // Checks that the producer lives.
  Result<void> check_peer() const;
  // Checks that the call may go on waiting.
  Result<void> check_waiting() const;
  void repair_released() const;
  template <class Ready>
  Result<bool> await(RingControl::Word& signal, platform::Deadline deadline, Ready ready);
  Result<bool> is_free();
  bool is_held(uint32_t place) const;
  void drop(uint32_t place, uint64_t word) noexcept;
  template <class Ended>
  Result<bool> wait_for(backend::Event& event, platform::Deadline deadline, Ended ended);
  Result<bool> wait_for_consumer(uint32_t place, uint32_t slot, Stream* stream, platform::Deadline deadline);
  Result<bool> wait_for_last_fill(uint32_t slot, Stream* stream, platform::Deadline deadline);
  uint32_t slot_of(uint64_t number) const { return static_cast<uint32_t>(number % slot_count_); }
  RingSlot slot(uint64_t number) const;
  backend::Event& release_event(uint32_t place, uint32_t slot) const {
    return *release_events_[size_t{place} * slot_count_ + slot];
  }

  Device& device_;
  const bool producer_;
  const std::string name_;
  std::shared_ptr<RingControl> control_;
  uint32_t slot_count_ = 1;
  uint64_t memory_ = 0;  // its handle
  void* base_ = nullptr;
  Events slot_events_;
  Events release_events_;  // of the producer: of all places
  // Events that this side has recorded: of slots, or of its releases.
  std::bitset<RingShape::kSlotsMax> recorded_;
  std::atomic<bool> busy_{false};     // a thread is in a call
  std::atomic<bool> stopped_{false};  // it is being destroyed

  // Of the producer.
  std::shared_ptr<Places> watcher_;
  ShareHandle exported_;
  uint32_t consumers_first_ = 0;
  std::atomic<uint64_t> published_{0};
  std::atomic<bool> acquired_{false};
  std::atomic<bool> finished_{false};
  std::vector<uint64_t> recorded_in_;  // for each slot, the identity of the stream
  uint64_t free_until_ = 0;            // messages below can be acquired without looking at the consumers

  // Of a consumer.
  std::shared_ptr<SharePeer> peer_;
  Claim claim_;
  std::vector<Claim> slot_claims_;
  std::vector<Claim> release_claims_;
  uint32_t place_ = 0;
  uint64_t word_ = 0;  // of its place, once it has one
  std::atomic<uint64_t> taken_{0};
  std::atomic<uint64_t> released_{0};
};

Result<uint64_t> create_ring(DeviceObject& device, RingRequest request);
Result<uint64_t> open_ring(const std::shared_ptr<Context>& context, const ShareHandle& handle,
                           uint64_t timeout_ns, std::string name);
Result<void> destroy_ring(Ref<Ring> ring);

}  // namespace gpumem::core
