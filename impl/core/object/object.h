// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a handle points to, and the list of what lives in an instance.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "core/object/fields.h"
#include "core/object/types.h"
#include "platform/fork.h"

namespace gpumem::core {

class Context;

inline const char* type_name(Type type) { return kTypeWords[static_cast<size_t>(type)].name; }
inline const char* ended_name(Type type) { return kTypeWords[static_cast<size_t>(type)].ended; }

// What a report says of an object. Does not allocate, because objects that could not be released are
// described too.
struct Line {
  char text[256];
};
[[gnu::format(printf, 1, 2)]] Line line_of(const char* format, ...) noexcept;
inline const char* shown(const std::string& name) { return name.empty() ? "(no name)" : name.c_str(); }

class Object {
 public:
  Object(Type type, std::shared_ptr<Context> context) : type_(type), context_(std::move(context)) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  virtual Line describe() const;
  // The same for programs, without its type.
  virtual void list(Fields& fields) const noexcept;
  // Why it must not end; asked before its handle ends, and again once no other thread uses it.
  virtual Result<void> may_end() { return {}; }
  virtual Result<void> may_end_unused() { return {}; }
  // Its handle has ended, and calls that use it may still run; or the handle is good again after a failure.
  virtual void handle_ended() noexcept {}
  virtual void handle_revived() noexcept {}
  // Releases what the object holds; after a failure, call it again. The handle must be ended, and no thread
  // may use the object. It lives until handles::remove().
  virtual Result<void> release();
  // How the library itself ends such an object, which one of its calls made, with all that is in it. Null for
  // one that no call makes for its own work.
  using Discard = Result<void> (*)(uint64_t handle);
  virtual Discard discard() const noexcept { return nullptr; }
  // Drops the records of what release() could not release: the instance ends.
  virtual void forget() noexcept;

  Type type() const { return type_; }
  uint64_t handle() const { return handle_; }
  uint32_t epoch() const { return epoch_; }
  Context& context() const { return *context_; }
  const std::shared_ptr<Context>& shared_context() const { return context_; }
  // Whether it is no longer needed, but the backend refused to release it.
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }
  void set_abandoned() noexcept { abandoned_.store(true, std::memory_order_relaxed); }
  // Clears abandoned(): true for the one caller that did so.
  bool take_abandoned() noexcept { return abandoned_.exchange(false, std::memory_order_relaxed); }

 private:
  friend class HandleTable;
  friend class ObjectList;
  const Type type_;
  const uint32_t epoch_ = platform::process_epoch();
  std::atomic<bool> abandoned_{false};
  uint64_t handle_ = 0;
  std::shared_ptr<Context> context_;
  Object* previous_ = nullptr;
  Object* next_ = nullptr;
};

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
