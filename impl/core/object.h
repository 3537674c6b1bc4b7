// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a handle points to, and the table that turns handle values into objects. A value is a slot and a
// generation, so a destroyed, forged or mistyped handle is always recognised and never reaches another object
// (COM-11).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/result.h"
#include "platform/fork.h"

namespace gpumem::core {

class Instance;

enum class Type : uint8_t { kInstance = 1, kDevice, kMemory, kStream, kEvent };
const char* type_name(Type type);

// How a handle came to its end; decides what a later use of it is told.
enum class End : uint8_t { kDestroyed, kClosed };

class Object {
 public:
  Object(Type type, std::shared_ptr<Instance> instance) : type_(type), instance_(std::move(instance)) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  Type type() const { return type_; }
  uint64_t handle() const { return handle_; }
  uint32_t epoch() const { return epoch_; }
  Instance& instance() const { return *instance_; }
  const std::shared_ptr<Instance>& shared_instance() const { return instance_; }

 private:
  friend class HandleTable;
  friend class ObjectList;
  const Type type_;
  const uint32_t epoch_ = platform::process_epoch();
  uint64_t handle_ = 0;
  std::shared_ptr<Instance> instance_;
  Object* previous_ = nullptr;
  Object* next_ = nullptr;
};

// The handles of the process. Nothing here takes a lock, so a fork in the middle of a call leaves it usable
// in the child. An object belongs to the table from publish() on and is deleted when it has ended and the
// last reference is given back.
namespace handles {

// Reserves a handle for an object that is not yet visible; the object stays the caller's.
Result<uint64_t> reserve(Object& object);
// Gives a handle back that was never published.
void cancel(const Object& object) noexcept;
// Makes the object visible and the table its owner.
void publish(Object* object) noexcept;

// A counted reference to the object, or why there is none.
Result<Object*> acquire(uint64_t handle, Type type);
void release(Object* object) noexcept;
// A reference to an object that the caller knows to exist.
void retain(Object& object) noexcept;

// Ends the handle: no new references from now on. False if another call has ended it. The caller holds a
// reference.
bool end(Object& object, End how) noexcept;
// Takes back end() with kDestroyed because the object could not be destroyed after all.
void revive(Object& object) noexcept;
// Waits until the caller's reference to an ended object is the last one.
void wait_for_others(const Object& object) noexcept;

}  // namespace handles

// A counted reference to a T.
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr) handles::release(object_);
  }

  explicit operator bool() const { return object_ != nullptr; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  T* get() const { return object_; }

 private:
  T* object_ = nullptr;
};

template <class T>
Result<Ref<T>> acquire(uint64_t handle) {
  auto object = handles::acquire(handle, T::kType);
  if (!object) return object.error();
  return Ref<T>(static_cast<T*>(*object));
}

// The live objects of an instance. The links are in the objects, so adding one cannot fail. Its owner locks.
class ObjectList {
 public:
  void add(Object& object) noexcept {
    object.next_ = first_;
    object.previous_ = nullptr;
    if (first_ != nullptr) first_->previous_ = &object;
    first_ = &object;
    ++count_;
  }
  void remove(Object& object) noexcept {
    (object.previous_ != nullptr ? object.previous_->next_ : first_) = object.next_;
    if (object.next_ != nullptr) object.next_->previous_ = object.previous_;
    --count_;
  }
  uint64_t count() const { return count_; }
  Object* first() const { return first_; }
  static Object* next(const Object& object) { return object.next_; }

 private:
  Object* first_ = nullptr;
  uint64_t count_ = 0;
};

}  // namespace gpumem::core
