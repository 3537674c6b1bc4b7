// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The table that turns handle values into objects. A value is a slot and a generation, so a destroyed, forged
// or mistyped handle is always recognised and never reaches another object (COM-11).
//
// Finding an object writes nothing that threads share. Whoever destroys it waits for the threads that use it:
// see platform/thread_record.h.
#pragma once

#include <cstdint>
#include <utility>

#include "base/result.h"
#include "core/object.h"
#include "platform/thread_record.h"

namespace gpumem::core {

// How a handle came to its end; decides the status of a later use.
enum class End : uint8_t { kDestroyed, kClosed };

// The handles of the process. Nothing here takes a lock, so a fork in the middle of a call leaves it usable
// in the child.
namespace handles {

// Reserves a handle for an object that is not yet visible; the object stays the caller's.
Result<uint64_t> reserve(Object& object);
// Releases a handle that was never published.
void cancel(const Object& object) noexcept;
// Makes the object visible. It belongs to the table until remove().
void publish(Object* object) noexcept;

// The object of a live handle of the type, or null. Valid while a Look lives that began before the call.
Object* look_up(uint64_t handle, Type type) noexcept;
// Why look_up() answered null; INVALID_ARGUMENT, STALE_HANDLE, CLOSED or FORKED.
Error refusal(uint64_t handle, Type type);

// Ends the handle: nothing finds the object from now on. False if another call has ended it.
bool end(Object& object, End how) noexcept;
// Takes back end() with kDestroyed because the object could not be destroyed after all.
void revive(Object& object) noexcept;
// Deletes an ended object, which nothing refers to any more, once no other thread uses or looks at it.
void remove(Object* object) noexcept;

}  // namespace handles

// INVALID_STATE if a call of this thread is using the object further up: one that called the log function,
// say.
Result<void> not_used_by_this_thread(const Object& object);

// An object that the current call uses: it is not deleted before the call lets go of it. For one call and one
// thread.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(T* object, platform::Use use) : object_(object), use_(std::move(use)) {}
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
  T* object_ = nullptr;
  platform::Use use_;
};

// The object of a handle for the length of a call; empty if there is none, and then refusal() says why.
template <class T>
Ref<T> acquire(platform::ThreadRecord& record, uint64_t handle) {
  const platform::Look look(record);
  Object* const object = handles::look_up(handle, T::kType);
  if (object == nullptr) return {};
  platform::Use use(record, object);
  // Between the two looks another thread may have ended it, and then does not wait for this use.
  if (handles::look_up(handle, T::kType) == nullptr) return {};
  return Ref<T>(static_cast<T*>(object), std::move(use));
}

}  // namespace gpumem::core
