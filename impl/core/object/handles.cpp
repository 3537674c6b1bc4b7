// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Chunks of slots that are never freed, and a list of free slots.
#include "core/object/handles.h"

#include <cstring>

#include "core/object/callback.h"
#include "platform/identity.h"

namespace gpumem::core {

Error ended_meanwhile(Type type) {
  return make_error(GPUMEM_ERROR_STALE_HANDLE,
                    "another thread %s this %s during the call; do not use its handle after that",
                    ended_name(type), type_name(type));
}

// Befriended by Object: sets the handle value.
class HandleTable {
 public:
  static void set_handle(Object& object, uint64_t handle) { object.handle_ = handle; }
};

namespace handles {

constinit std::array<std::atomic<detail::Slot*>, detail::kChunks> detail::chunks{};

namespace {

using namespace detail;
using detail::slot_of;

constinit std::atomic<uint32_t> slots_used{0};
// First free slot plus one in the lower half; a counter in the upper half keeps an exchange from mistaking a
// slot that was taken and given back in between for an unchanged list.
constinit std::atomic<uint64_t> free_list{0};

// A slot that has been used, so that its chunk exists.
Slot& used_slot(uint32_t index) {
  return chunks[index / kChunkSlots].load(std::memory_order_acquire)[index % kChunkSlots];
}

Slot& slot_of(const Object& object) { return used_slot(detail::slot_of(object.handle())); }

bool take_free_slot(uint32_t* index) {
  uint64_t head = free_list.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(head) != 0) {
    const uint32_t first = static_cast<uint32_t>(head) - 1;
    const uint32_t next = used_slot(first).next_free.load(std::memory_order_relaxed);
    const uint64_t wanted = ((head >> 32) + 1) << 32 | next;
    if (free_list.compare_exchange_weak(head, wanted, std::memory_order_acq_rel)) {
      *index = first;
      return true;
    }
  }
  return false;
}

void give_free_slot(uint32_t index) {
  Slot& slot = used_slot(index);
  uint64_t head = free_list.load(std::memory_order_acquire);
  uint64_t wanted = 0;
  do {
    slot.next_free.store(static_cast<uint32_t>(head), std::memory_order_relaxed);
    wanted = ((head >> 32) + 1) << 32 | (index + 1);
  } while (!free_list.compare_exchange_weak(head, wanted, std::memory_order_acq_rel));
}

// The first generation of every slot; 0 until the first object is made. Leaves the upper half to count up.
constinit std::atomic<uint32_t> first_generation{0};

uint32_t choose_first_generation() {
  const platform::Id random = platform::random_id();
  uint32_t wanted = 0;
  std::memcpy(&wanted, random.data(), sizeof wanted);
  wanted = wanted >> 1 | 1;
  uint32_t known = 0;
  return first_generation.compare_exchange_strong(known, wanted) ? wanted : known;
}

Slot* chunk_for(uint32_t index) {
  std::atomic<Slot*>& place = chunks[index / kChunkSlots];
  Slot* chunk = place.load(std::memory_order_acquire);
  if (chunk == nullptr) {
    auto* fresh = new Slot[kChunkSlots];
    const uint64_t word = uint64_t{choose_first_generation()} << 32;
    for (uint32_t at = 0; at < kChunkSlots; ++at)
      fresh[at].word.store(word, std::memory_order_relaxed);
    if (place.compare_exchange_strong(chunk, fresh, std::memory_order_acq_rel)) return fresh;
    delete[] fresh;
  }
  return chunk;
}

// Why a handle of an ended generation is refused. Only the last two generations of a slot are remembered; an
// older one counts as destroyed.
Error gone(uint32_t generation, uint64_t word, Type type) {
  const char* name = type_name(type);
  const uint32_t current = generation_of(word);
  if ((generation == current && state_of(word) == kClosed) ||
      (generation + 1 == current && (word & kPreviousClosed) != 0)) {
    // The library may have made the object for a call, such as the memory below a buffer, so it is not named.
    return make_error(GPUMEM_ERROR_CLOSED, "the instance is closed; open a new one");
  }
  return make_error(GPUMEM_ERROR_STALE_HANDLE, "this %s was %s; do not use its handle after that", name,
                    ended_name(type));
}

}  // namespace

Result<uint64_t> reserve(Object& object) {
  uint32_t index = 0;
  if (!take_free_slot(&index)) {
    index = slots_used.load(std::memory_order_relaxed);
    do {
      if (index == kChunks * kChunkSlots) {
        return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED, "this process already has %u handles; destroy some",
                          kChunks * kChunkSlots);
      }
      chunk_for(index);  // first, so that a failure leaves the counter unchanged
    } while (!slots_used.compare_exchange_weak(index, index + 1, std::memory_order_relaxed));
  }
  const uint32_t generation = generation_of(used_slot(index).word.load(std::memory_order_acquire));
  const uint64_t handle = make_handle(index, object.type(), generation);
  HandleTable::set_handle(object, handle);
  return handle;
}

void cancel(const Object& object) noexcept { give_free_slot(slot_of(object.handle())); }

void publish(Object* object) noexcept {
  Slot& slot = slot_of(*object);
  slot.object.store(object, std::memory_order_relaxed);
  // A free slot that has been taken has no other writer.
  const uint64_t type = uint64_t{static_cast<uint8_t>(object->type())} << kTypeShift;
  slot.word.store(slot.word.load(std::memory_order_relaxed) | type | kAlive, std::memory_order_release);
}

Error refusal(uint64_t handle, Type type) {
  if (handle == 0) return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the %s handle is NULL", type_name(type));
  const Slot* const slot = find_slot(slot_of(handle));
  const uint32_t generation = generation_of(handle);
  if (slot == nullptr || type_of(handle) != static_cast<uint32_t>(type)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the value passed is not a handle of type %s",
                      type_name(type));
  }
  const uint64_t word = slot->word.load(std::memory_order_acquire);
  const uint32_t current = generation_of(word);
  if (generation < first_generation.load() || generation > current ||
      (generation == current && state_of(word) == kFree)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the value passed has never been a %s handle",
                      type_name(type));
  }
  if (generation != current || state_of(word) != kAlive) return gone(generation, word, type);
  const platform::Look look(platform::thread_record());
  const Object* const object = slot->object.load(std::memory_order_relaxed);
  if (slot->word.load(std::memory_order_acquire) == word && !is_live(*slot, handle)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the value passed is not a handle of type %s",
                      type_name(type));
  }
  if (slot->word.load(std::memory_order_acquire) == word && object->epoch() != platform::process_epoch()) {
    return make_error(GPUMEM_ERROR_FORKED,
                      "this %s belongs to the parent process; open a new instance in the child",
                      type_name(type));
  }
  return ended_meanwhile(type);
}

bool end(Object& object, End how) noexcept {
  Slot& slot = slot_of(object);
  const uint64_t state = how == End::kClosed ? kClosed : kDestroyed;
  uint64_t word = slot.word.load(std::memory_order_acquire);
  do {
    if (state_of(word) != kAlive) return false;
  } while (!slot.word.compare_exchange_weak(word, (word & ~kStateMask) | state, std::memory_order_acq_rel));
  return true;
}

void revive(Object& object) noexcept {
  slot_of(object).word.fetch_xor(kAlive | kDestroyed, std::memory_order_acq_rel);
}

void remove(Object* object) noexcept {
  Slot& slot = slot_of(*object);
  const uint32_t index = slot_of(object->handle());
  const uint64_t word = slot.word.load(std::memory_order_acquire);
  const uint32_t generation = generation_of(word);
  platform::wait_for_looks();
  delete object;
  slot.object.store(nullptr, std::memory_order_relaxed);
  if (generation == UINT32_MAX) return;  // out of generations: the slot is never used again
  const uint64_t previous = state_of(word) == kClosed ? kPreviousClosed : 0;
  slot.word.store(uint64_t{generation + 1} << 32 | previous | kFree, std::memory_order_release);
  give_free_slot(index);
}

}  // namespace handles

namespace {

Error used_by_waiting(const Object& object) {
  return make_error(
      GPUMEM_ERROR_BUSY,
      "another thread uses the %s in a call that waits or is in a callback, for which a callback cannot "
      "wait; call after the callback has returned",
      type_name(object.type()));
}

}  // namespace

Result<void> uses_will_end(const Object& object) {
  if (platform::own_uses(&object) > 1) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "a call of this thread uses the %s; call once that has returned",
                      type_name(object.type()));
  }
  if (Callback::runs_here() && platform::used_by(&object) == platform::UsedBy::kWaiting)
    return used_by_waiting(object);
  return {};
}

Result<void> wait_for_uses(const Object& object, const void* announced) {
  if (announced == nullptr) announced = &object;
  if (!Callback::runs_here()) {
    platform::wait_for_uses(announced);
  } else if (!platform::wait_for_ending_uses(announced)) {
    return used_by_waiting(object);
  }
  return {};
}

Error changed_elsewhere(const char* what) {
  return make_error(
      GPUMEM_ERROR_BUSY,
      "another thread is changing the %s, which a callback cannot wait for; call after the callback has "
      "returned",
      what);
}

}  // namespace gpumem::core
