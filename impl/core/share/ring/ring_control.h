// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The memory that the two sides of a ring share: who has published what, and who has released it. It is two
// sealed files of a fixed size: what the producer says, which nobody else can write, and what consumers say,
// which each of them can. What another process wrote may be wrong in any way: it is compared and checked, and
// decides no address. What consumers say is looked at only where the producer knows who says it, and begins
// anew with each of them: so nothing that one wrote is left when it has gone.
//
// A *place* is for one consumer: whoever has claimed its first event. Its word is a state and a random number
// of the consumer. Only the producer's side sets it free, when nobody claims that event any more: so the
// place of a process that ends, at whatever moment, is free again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/arithmetic.h"
#include "base/result.h"
#include "gpumem/share.h"
#include "platform/descriptor.h"

namespace gpumem::core {

struct RingShape {
  static constexpr uint32_t kSlotsMax = 256;
  static constexpr uint32_t kPlacesMax = 64;
  static constexpr uint64_t kSlotAlignment = 512;

  uint32_t slot_count = 0;
  uint32_t place_count = 0;
  uint64_t slot_size = 0;

  uint64_t stride() const { return round_up(slot_size, kSlotAlignment); }
  uint64_t bytes() const { return stride() * slot_count; }
  // Whether a ring can have it.
  bool is_valid() const {
    return slot_count != 0 && slot_count <= kSlotsMax && place_count != 0 && place_count <= kPlacesMax &&
           slot_size != 0 && slot_size <= (kSizeMax - kSlotAlignment) / kSlotsMax;
  }
};

class RingControl {
 public:
  using Word = std::atomic<uint32_t>;
  using Number = std::atomic<uint64_t>;
  static_assert(Number::is_always_lock_free && Word::is_always_lock_free, "processes share no locks");

  enum class State : uint8_t {
    kFree,
    kOpening,  // taken, but the producer waits for nothing
    kJoining,  // about to learn its first message
    kActive,
    kDropped,  // it wrote an invalid value
    kLeft,     // it finished and left
  };
  static constexpr uint64_t make_word(State state, uint64_t owner) {
    return owner << 8 | static_cast<uint8_t>(state);
  }
  static constexpr State state_of(uint64_t word) { return static_cast<State>(word & 0xff); }
  static constexpr uint64_t with_state(uint64_t word, State state) { return make_word(state, word >> 8); }

  // Written by the producer with each message.
  struct alignas(128) Published {
    Number count;
  };
  // Written by the producer, rarely.
  struct alignas(128) Facts {
    Number held;  // a bit for each place that a consumer has
    Word finished;
  };
  struct Message {
    Number size;
    Number tag;
    Number recorded;  // 1: the slot's event is recorded
    uint64_t unused;
  };
  // Written by the consumer that has the place.
  struct alignas(128) Place {
    Number word;
    Number released;  // messages that are released, or came before it joined
  };
  // Written by all, rarely, to sleep and wake. A signal changes when waiters should look again.
  struct alignas(128) Signals {
    Word published;
    Word released;
    Word producer_sleeps;
    Number sleepers;  // consumers, a bit for each place
  };

  // For consumers: both files.
  static Result<std::shared_ptr<RingControl>> create(const RingShape& shape, platform::Descriptors* files);
  // INVALID_ARGUMENT if the files are not a ring's, UNSUPPORTED if they are of a newer version.
  static Result<std::shared_ptr<RingControl>> open(const platform::Descriptors& files);
  // The public ones are create() and open().
  RingControl(const RingShape& shape, void* said_by_producer, void* said_by_consumers);
  RingControl(const RingControl&) = delete;
  RingControl& operator=(const RingControl&) = delete;
  ~RingControl();

  const RingShape& shape() const { return shape_; }

  Number& published() { return published_->count; }
  Facts& facts() { return *facts_; }
  Signals& signals() { return *signals_; }
  Message& message(uint32_t slot) { return messages_[slot]; }
  Place& place(uint32_t place) { return places_[place]; }
  // The number of the message plus 1 that was released with an event of the place and slot.
  Number& recorded(uint32_t place, uint32_t slot) { return recorded_[place * recorded_stride_ + slot]; }

  // Handles of the memory and the events, which the producer writes before it exports the ring.
  gpumem_share_handle& memory_handle() { return handles_[0]; }
  gpumem_share_handle& slot_handle(uint32_t slot) { return handles_[1 + slot]; }
  gpumem_share_handle& release_handle(uint32_t place, uint32_t slot) {
    return handles_[1 + (1 + place) * shape_.slot_count + slot];
  }

  void wake_consumers() noexcept;
  void wake_producer() noexcept;
  // Wakes sleepers after something was published or released.
  void tell_consumers() noexcept {
    if (signals_->sleepers.load() == 0) [[likely]]
      return;
    signals_->sleepers.store(0);
    wake_consumers();
  }
  void tell_producer() noexcept {
    if (signals_->producer_sleeps.load() == 0) [[likely]]
      return;
    signals_->producer_sleeps.store(0);
    wake_producer();
  }

 private:
  const RingShape shape_;
  void* const said_by_producer_;
  void* const said_by_consumers_;
  Published* published_;
  Facts* facts_;
  Signals* signals_;
  Message* messages_;
  Place* places_;
  Number* recorded_;
  size_t recorded_stride_;
  gpumem_share_handle* handles_;
};

}  // namespace gpumem::core
