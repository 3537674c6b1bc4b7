// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What objects know of the instance that they belong to. It names none of the services that rooms further up
// keep for it: who includes the header of one finds it there, as in Exports::of().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "contract/backend.h"
#include "core/object/object.h"
#include "core/object/status_list.h"

namespace gpumem::core {

class Background;
class PageMap;
class Sharing;
class Statistics;

// The answer of a call whose instance has been closed meanwhile.
Error instance_closed();

class Context {
 public:
  Context(std::unique_ptr<backend::Backend> backend, PageMap& page_map, Statistics& statistics,
          Background& background);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  virtual ~Context();

  backend::Backend& backend() const { return *backend_; }
  PageMap& page_map() const { return page_map_; }
  Statistics& statistics() const { return statistics_; }
  Background& background() const { return background_; }

  // A lock for a call that creates or destroys an object, so that closing finds none half made. Refused once
  // the instance is closing. Never waits, because the lock's holder may wait for a reference that the caller
  // holds.
  Result<std::shared_lock<std::shared_mutex>> stay_open();

  void add_object(Object& object) noexcept;
  void remove_object(Object& object) noexcept;
  // While `function` runs, none is added or removed.
  template <class F>
  void for_each_object(F function) {
    const std::lock_guard lock(objects_mutex_);
    for (Object* object = objects_.first(); object != nullptr; object = ObjectList::next(*object))
      function(*object);
  }
  // Leaves the object to end_abandoned() or closing.
  void note_abandoned(Object& object) noexcept;
  // Takes it out again, for the one caller who gets true.
  bool take_abandoned(Object& object) noexcept;
  bool has_abandoned() const { return abandoned_.load(std::memory_order_relaxed) != 0; }

  // Charges page-locked bytes to the budget (PIN-17).
  virtual Result<void> charge_pinned(uint64_t bytes) = 0;
  virtual void refund_pinned(uint64_t bytes) noexcept = 0;
  // Gives up what is kept for later imports and copies. Whether there was any.
  virtual bool make_room() noexcept = 0;
  // What is told when an object ends.
  virtual Sharing& sharing() noexcept = 0;
  // Call when a stream ends, while it can still be marked.
  virtual void end_stream(uint64_t key, const void* native) noexcept = 0;

 protected:
  uint64_t live_count() const;

  std::unique_ptr<backend::Backend> backend_;
  std::atomic<bool> closing_{false};
  std::shared_mutex lifecycle_;  // shared by calls that make or destroy an object
  mutable std::mutex objects_mutex_;
  ObjectList objects_;

 private:
  // Counts an object that was added, or removed.
  virtual void count(const Object& object, int64_t difference) noexcept = 0;

  PageMap& page_map_;
  Statistics& statistics_;
  Background& background_;
  std::atomic<uint64_t> abandoned_{0};
};

// What an instance handle points to.
class InstanceObject final : public Object {
 public:
  static constexpr Type kType = Type::kInstance;
  explicit InstanceObject(std::shared_ptr<Context> context) : Object(kType, std::move(context)) {}
};

// Calls `make`. If memory or addresses are lacking, makes room and calls it once more.
template <class Make>
auto with_room(Context& context, Make make) {
  auto made = make();
  if (!made && lacks_room(made.error().status) && context.make_room()) made = make();
  return made;
}

}  // namespace gpumem::core
