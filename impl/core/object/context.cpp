// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/context.h"

#include <thread>

#include "core/object/sharing.h"

namespace gpumem::core {

Context::Context(std::unique_ptr<backend::Backend> backend, PageMap& page_map, Statistics& statistics,
                 Background& background)
    : backend_(std::move(backend)), page_map_(page_map), statistics_(statistics), background_(background) {}

Context::~Context() = default;

Error instance_closed() {
  return make_error(GPUMEM_ERROR_CLOSED, "another thread closed the instance; open a new one");
}

Result<std::shared_lock<std::shared_mutex>> Context::stay_open() {
  if (!closing_) {
    std::shared_lock lock(lifecycle_, std::try_to_lock);
    // Retry: a close that will fail holds the lock only for a moment.
    for (; !lock && !closing_; (void)lock.try_lock())
      std::this_thread::yield();
    if (!closing_) return lock;
  }
  return instance_closed();
}

void Context::add_object(Object& object) noexcept {
  count(object, 1);
  const std::lock_guard lock(objects_mutex_);
  objects_.add(object);
}

void Context::remove_object(Object& object) noexcept {
  sharing().end(object);
  count(object, -1);
  (void)take_abandoned(object);
  const std::lock_guard lock(objects_mutex_);
  objects_.remove(object);
}

void Context::note_abandoned(Object& object) noexcept {
  object.set_abandoned();
  abandoned_.fetch_add(1, std::memory_order_relaxed);
}

bool Context::take_abandoned(Object& object) noexcept {
  if (!object.take_abandoned()) return false;
  abandoned_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

uint64_t Context::live_count() const {
  const std::lock_guard lock(objects_mutex_);
  return objects_.count();
}

}  // namespace gpumem::core
