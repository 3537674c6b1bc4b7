// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/instance/instance.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <thread>
#include <utility>

#include "base/cleanup.h"
#include "base/text.h"
#include "core/device/host_function.h"
#include "core/memory/region.h"
#include "core/object/abandoned.h"
#include "core/object/callback.h"
#include "core/object/host_function_guard.h"
#include "core/object/log.h"
#include "core/pool/pool.h"
#include "core/stream/stream.h"

namespace gpumem::core {

Instance::Instance(const OpenRequest& request, std::unique_ptr<backend::Backend> backend, Fallback fallback)
    : Context(std::move(backend), page_map_, statistics_, background_),
      name_(request.name),
      pin_budget_(request.pin_budget),
      fallback_(std::move(fallback)),
      devices_(*this, *backend_, request.transfer) {}

// Services are found here, so that the rooms below need not know all of them.
Devices& Devices::of(Context& context) { return Instance::of(context).devices(); }
Pools& Pools::of(Context& context) { return Instance::of(context).pools(); }
Exports& Exports::of(Context& context) { return Instance::of(context).exports(); }
Imports& Imports::of(Context& context) { return Instance::of(context).imports(); }
ShareServer& ShareServer::of(Context& context) { return Instance::of(context).share_server(); }

Result<uint64_t> Instance::open(const OpenRequest& request) {
  GPUMEM_TRY(outside_host_function());
  Fallback fallback;
  auto backend = open_backend(request.backend, request.options, &fallback);
  if (!backend) return backend.error();
  auto instance = std::make_shared<Instance>(request, std::move(*backend), std::move(fallback));
  GPUMEM_TRY(instance->page_map_.open());

  auto root = std::make_unique<InstanceObject>(instance);
  auto handle = handles::reserve(*root);
  if (!handle) return handle.error();
  Cleanup undo_root([&] { handles::cancel(*root); });
  Devices& devices = instance->devices_;
  Cleanup undo_devices([&] { devices.cancel_objects(); });
  GPUMEM_TRY(devices.make_objects(instance));
  undo_root.dismiss();
  undo_devices.dismiss();
  devices.publish_objects();
  handles::publish(root.release());
  log(GPUMEM_LOG_INFO, "opened the %s backend with %zu devices",
      instance->backend().kind() == GPUMEM_BACKEND_CUDA ? "cuda" : "host", devices.size());
  return *handle;
}

void Instance::count(const Object& object, int64_t difference) noexcept {
  if (!is_region(object.type())) statistics_.add_object(object.type(), difference);
}

bool Instance::make_room() noexcept {
  const bool flushed = devices_.flush_transfers();
  return imports_.flush_cache() || flushed;
}

Result<void> Instance::charge_pinned(uint64_t bytes) {
  uint64_t used = pinned_bytes_.load(std::memory_order_relaxed);
  for (bool flushed = false;;) {
    if (pin_budget_ == 0 || (used <= pin_budget_ && bytes <= pin_budget_ - used)) {
      if (pinned_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed)) return {};
      continue;
    }
    // Give up the memory that is kept for copies before refusing.
    if (std::exchange(flushed, true) || !devices_.flush_transfers()) {
      return make_error(
                 GPUMEM_ERROR_LIMIT_EXCEEDED,
                 "of the pin budget of %" PRIu64 " bytes, %" PRIu64 " are in use; %" PRIu64
                 " more do not fit; free some, or %s",
                 pin_budget_, used, bytes,
                 is_default_ ? "raise GPUMEM_PIN_BUDGET" : "open the instance with a larger pin_budget")
          .with_limit(Limit::kPinBudget);
    }
    used = pinned_bytes_.load(std::memory_order_relaxed);
  }
}

// Makes the calling thread the one that closes.
Result<void> Instance::claim_close(gpumem_close_mode mode) {
  const auto claim = [this]() -> Result<void> {
    if (!closing_.exchange(true)) return {};
    return instance_closed();
  };
  if (mode == GPUMEM_CLOSE_FORCE) return claim();
  {
    // Only try the lock: its holder may wait, in the driver or for another thread.
    const std::unique_lock lock(lifecycle_, std::try_to_lock);
    if (lock && live_count() == 0 && pools_.left().empty()) return claim();
  }
  if (closing_) return claim();
  const uint64_t left = pools_.left().size();
  const uint64_t all = live_count() + left;
  if (all == 0) {
    return make_error(GPUMEM_ERROR_BUSY,
                      "another thread is creating or destroying an object; close when it is done");
  }
  const OfPools hidden = of_pools();
  const uint64_t count = all - std::min(all, hidden.count);
  constexpr uint64_t kShown = 3;
  std::string list = report(kShown, "; ");
  if (count > kShown) list += "; and " + std::to_string(count - kShown) + " more in gpumem_stats_report()";
  const char* const remedy = count == left ? "free the blocks" : count == 1 ? "destroy it" : "destroy them";
  return make_error(GPUMEM_ERROR_BUSY, "alive: %s; %s, or close with GPUMEM_CLOSE_FORCE: %s",
                    totals(hidden).c_str(), remedy, list.c_str());
}

Result<uint64_t> Instance::close(Object& root, gpumem_close_mode mode) {
  GPUMEM_TRY(outside_host_function());
  if (Callback::runs_here() || background_.is_this_thread() || share_server_.loop().is_this_thread() ||
      share_server_.tries_on_this_thread()) {
    return make_error(
        GPUMEM_ERROR_INVALID_STATE,
        "an instance cannot be closed in a callback of the library; close it when that has returned");
  }
  if (is_default_) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the default instance cannot be closed; open one of your own if you need to close it");
  }
  end_abandoned(*this);
  // Wait for work only if no stream lives: the caller can no longer wait for that of destroyed streams.
  if (mode == GPUMEM_CLOSE_CHECK) end_left_pools(*this, statistics_.objects(Type::kStream) == 0);
  GPUMEM_TRY(claim_close(mode));
  handles::end(root, End::kClosed);
  // Calls that wait for other processes return.
  share_server_.stop();
  backend_->stop_waiting_for_others();
  // With this lock held, no call is creating or destroying an object.
  lifecycle_.lock();
  lifecycle_.unlock();
  const uint64_t count = live_count();
  if (count != 0) {
    log(GPUMEM_LOG_WARNING, "closing an instance that has %" PRIu64 " live object%s", count, plural(count));
  }
  platform::fence_all_threads();
  platform::wait_for_uses(&root);
  background_.stop();
  end_handles();
  await_streams();
  imports_.stop();
  destroy_objects();
  devices_.clear();
  backend_.reset();
  return count;
}

Result<uint64_t> close_instance(Ref<InstanceObject> root, gpumem_close_mode mode) {
  auto destroyed = Instance::of(root->context()).close(*root, mode);
  if (!destroyed) return destroyed;
  InstanceObject* const gone = root.get();
  root = {};
  handles::remove(gone);
  return destroyed;
}

// Ends every handle before anything is waited for, so that no work comes after the wait. The objects are kept
// until they are released.
void Instance::end_handles() noexcept {
  devices_.end_handles();
  const auto for_all = [this](auto is_meant, auto function) {
    for (Object* object = objects_.first(); object != nullptr; object = ObjectList::next(*object)) {
      if (is_meant(object->type())) function(*object);
    }
  };
  const auto end_all = [&](auto is_meant) {
    for_all(is_meant, [](Object& object) { handles::end(object, End::kClosed); });
    platform::fence_all_threads();
    for_all(is_meant, [](Object& object) { platform::wait_for_uses(&object); });
  };
  // A call on a stream still finds the memory that it names.
  end_all([](Type type) { return !is_region(type); });
  for_all(is_region, [](Object& object) { static_cast<Region&>(object).set_state(Region::State::kLeaving); });
  end_all(is_region);
  devices_.await_uses();
}

void Instance::await_streams() noexcept {
  for (Object* object = objects_.first(); object != nullptr; object = ObjectList::next(*object)) {
    if (object->type() != Type::kStream) continue;
    auto& stream = static_cast<Stream&>(*object);
    if (stream.device().backend().lost()) continue;
    if (auto done = stream.backend().drain(); !done) {
      log(GPUMEM_LOG_WARNING, "could not wait for a stream at close: %s", done.error().message);
    }
  }
  for (const auto& device : devices_) {
    if (auto done = device->backend().await_released_streams(); !done) {
      log(GPUMEM_LOG_WARNING, "could not wait for a destroyed stream at close: %s", done.error().message);
    }
  }
  // A lost device could not be waited for, so wait for its running functions before freeing their memory.
  const bool lost = std::any_of(devices_.begin(), devices_.end(),
                                [](const auto& device) { return device->backend().lost(); });
  if (lost) end_functions_of(*this);
}

void Instance::destroy_objects() noexcept {
  // What uses memory, memory, then what ordered the work on it.
  constexpr Type kOrder[] = {Type::kRing,     Type::kPool,  Type::kHub,   Type::kLink,
                             Type::kBuffer,   Type::kGroup, Type::kRange, Type::kMemory,
                             Type::kPhysical, Type::kEvent, Type::kStream};
  for (const Type type : kOrder) {
    Object* next = nullptr;
    for (Object* object = objects_.first(); object != nullptr; object = next) {
      next = ObjectList::next(*object);
      if (object->type() != type) continue;
      auto done = object->release();
      // Release again: the first try may report an earlier failure.
      if (!done) done = object->release();
      if (!done) {
        log(GPUMEM_LOG_ERROR, "could not destroy %s at close: %s", object->describe().text,
            done.error().message);
        object->forget();
      }
      remove_object(*object);
      handles::remove(object);
    }
    if (type == Type::kMemory) pools_.clear();
  }
}

}  // namespace gpumem::core
