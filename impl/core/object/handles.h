// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The table that turns handle values into objects. A value is a slot and a generation, so a destroyed, forged
// or mistyped handle is always recognised and never reaches another object (COM-11). Generations begin at a
// random number, so that another copy of the library in the process has other values.
//
// Finding an object writes nothing that threads share. Whoever destroys it waits for the threads that use it:
// see platform/thread_record.h.
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <utility>

#include "base/result.h"
#include "core/object/object.h"
#include "platform/thread_record.h"

namespace gpumem::core {

// How a handle came to its end; decides the status of a later use.
enum class End : uint8_t { kDestroyed, kClosed };

// The handles of the process. Nothing here takes a lock, so a fork in the middle of a call leaves it usable
// in the child.
namespace handles {

namespace detail {

// A slot's word: generation, state, type while it has one, and how the generation before ended, in one atomic
// word, so they always match. Generation and type lie where a handle has them.
inline constexpr uint64_t kPreviousClosed = 1;
inline constexpr uint64_t kTypeShift = 24;
inline constexpr uint64_t kStateShift = 30;
inline constexpr uint64_t kStateMask = uint64_t{3} << kStateShift;
inline constexpr uint64_t kFree = 0;
inline constexpr uint64_t kAlive = uint64_t{1} << kStateShift;
inline constexpr uint64_t kDestroyed = uint64_t{2} << kStateShift;
inline constexpr uint64_t kClosed = uint64_t{3} << kStateShift;

constexpr uint32_t generation_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr uint64_t state_of(uint64_t word) { return word & kStateMask; }

// Never in two cache lines.
struct alignas(32) Slot {
  std::atomic<uint64_t> word{0};  // free, with the first generation once its chunk is in use
  std::atomic<Object*> object{nullptr};
  std::atomic<uint32_t> next_free{0};
};

inline constexpr uint32_t kChunkSlots = 1024;
inline constexpr uint32_t kChunks = 16384;  // 2^24 slots, as many as a handle can name
static_assert(uint64_t{kChunks} * kChunkSlots == uint64_t{1} << kTypeShift);
[[gnu::visibility("hidden")]] extern constinit std::array<std::atomic<Slot*>, kChunks> chunks;
// A handle: generation, type and slot.
constexpr uint64_t make_handle(uint32_t slot, Type type, uint32_t generation) {
  return uint64_t{generation} << 32 | uint64_t{static_cast<uint8_t>(type)} << kTypeShift | slot;
}
constexpr uint32_t slot_of(uint64_t handle) { return static_cast<uint32_t>(handle & 0xffffff); }
constexpr uint32_t type_of(uint64_t handle) { return static_cast<uint32_t>(handle >> kTypeShift & 0xff); }

inline Slot* find_slot(uint32_t chunk, uint64_t place) {
  Slot* const slots = chunks[chunk].load(std::memory_order_acquire);
  return slots == nullptr ? nullptr : &slots[place];
}
inline Slot* find_slot(uint32_t index) { return find_slot(index / kChunkSlots, index % kChunkSlots); }

}  // namespace detail

// Reserves a handle for an object that is not yet visible; the object stays the caller's.
Result<uint64_t> reserve(Object& object);
// Releases a handle that was never published.
void cancel(const Object& object) noexcept;
// Makes the object visible. It belongs to the table until remove().
void publish(Object* object) noexcept;

// Whether a slot has the handle, whose type is one of ours.
inline bool is_live(const detail::Slot& slot, uint64_t handle) noexcept {
  const uint64_t word = slot.word.load(std::memory_order_acquire);
  return (word ^ handle) >> detail::kTypeShift == detail::kAlive >> detail::kTypeShift;
}

// The slot of a handle if it is a live one of the type, or null.
inline const detail::Slot* live_slot(uint64_t handle, Type type) noexcept {
  // The type lies above the chunk, so one comparison checks both.
  const uint32_t first = static_cast<uint32_t>(type) << detail::kTypeShift;
  const uint32_t chunk = static_cast<uint32_t>(handle) / detail::kChunkSlots - first / detail::kChunkSlots;
  if (chunk >= detail::kChunks) [[unlikely]]
    return nullptr;
  const detail::Slot* const slot = detail::find_slot(chunk, handle % detail::kChunkSlots);
  if (slot == nullptr || !is_live(*slot, handle)) [[unlikely]]
    return nullptr;
  return slot;
}

// The object of a live handle of the type, or null; `process` is the calling one's epoch. Valid while a Look
// lives that began before the call.
inline Object* look_up(uint64_t handle, Type type, uint32_t process) noexcept {
  const detail::Slot* const slot = live_slot(handle, type);
  if (slot == nullptr) return nullptr;
  Object* const object = slot->object.load(std::memory_order_relaxed);
  return object->epoch() == process ? object : nullptr;
}
// Why look_up() returned null: INVALID_ARGUMENT, STALE_HANDLE, CLOSED or FORKED.
Error refusal(uint64_t handle, Type type);

// Shows the next object that is live in this process, from slot `*next` on, to `see`; false if there is none.
// `see` runs inside a look. Objects that are made or destroyed during a walk may be missed.
template <class F>
bool see_next(uint32_t* next, F see) {
  platform::ThreadRecord& record = platform::thread_record();
  const uint32_t process = record.process.load(std::memory_order_relaxed);
  const auto live = [](const detail::Slot& slot) {
    return detail::state_of(slot.word.load(std::memory_order_acquire)) == detail::kAlive;
  };
  while (*next < detail::kChunks * detail::kChunkSlots) {
    const detail::Slot* const slot = detail::find_slot(*next);
    if (slot == nullptr) return false;  // chunks are made in order
    ++*next;
    if (!live(*slot)) continue;
    const platform::Look look(record);
    if (!live(*slot)) continue;
    const Object& object = *slot->object.load(std::memory_order_relaxed);
    if (object.epoch() != process) continue;
    see(object);
    return true;
  }
  return false;
}

// Ends the handle: nothing finds the object from now on. False if another call has ended it.
bool end(Object& object, End how) noexcept;
// Takes back end() with kDestroyed because the object could not be destroyed after all.
void revive(Object& object) noexcept;
// Deletes an ended object, which nothing refers to any more, once no other thread uses or looks at it.
void remove(Object* object) noexcept;

}  // namespace handles

// The failure of a call whose object another thread has ended meanwhile.
Error ended_meanwhile(Type type);
// Checks that the uses of an object will end if this call waits. INVALID_STATE if an outer call of this
// thread uses it, such as one that called a progress function. BUSY in a callback if the using thread also
// runs a callback, or waits itself: each could wait for the other.
Result<void> uses_will_end(const Object& object);
// Waits for the uses by other threads of an object that cannot be found since before the last
// fence_all_threads(). In a callback it fails as soon as uses_will_end() would. Some uses are announced by
// something else than the object.
Result<void> wait_for_uses(const Object& object, const void* announced = nullptr);
// BUSY: a callback cannot wait for a thread that changes something.
Error changed_elsewhere(const char* what);

// An object that the current call uses, which is not deleted until this ends. For one call and one thread.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(T* object, platform::Use use) : object_(object), use_(std::move(use)) {}
  template <std::derived_from<T> U>
  Ref(Ref<U>&& other) noexcept  // NOLINT(google-explicit-constructor): as a pointer to a base
      : object_(std::exchange(other.object_, nullptr)), use_(std::move(other.use_)) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)), use_(std::move(other.use_)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    std::swap(use_, other.use_);
    return *this;
  }

  explicit operator bool() const { return object_ != nullptr; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  T* get() const { return object_; }

  // The same object as its own class, which the caller has made sure of.
  template <class U>
  Ref<U> as() && {
    return Ref<U>(static_cast<U*>(std::exchange(object_, nullptr)), std::move(use_));
  }

 private:
  template <class U>
  friend class Ref;
  T* object_ = nullptr;
  platform::Use use_;
};

// The object of a handle for the length of a call; empty if there is none, and then refusal() says why.
template <class T>
[[gnu::always_inline]] inline Ref<T> acquire(platform::ThreadRecord& record, uint64_t handle,
                                             Type type = T::kType) {
  const handles::detail::Slot* const slot = handles::live_slot(handle, type);
  if (slot == nullptr) [[unlikely]]
    return {};
  Object* const object = slot->object.load(std::memory_order_relaxed);
  platform::Use use(record, object);
  // Read the object only after this check: a call that ends the handle later waits for this use.
  const uint32_t process = record.process.load(std::memory_order_relaxed);
  if (!handles::is_live(*slot, handle) || object->epoch() != process) [[unlikely]]
    return {};
  return Ref<T>(static_cast<T*>(object), std::move(use));
}

}  // namespace gpumem::core
