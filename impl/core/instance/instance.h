// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An opened backend and everything that was made through it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "contract/backend.h"
#include "core/device/device.h"
#include "core/instance/backends.h"
#include "core/memory/page_map.h"
#include "core/memory/statistics.h"
#include "core/object/background.h"
#include "core/object/handles.h"
#include "core/object/object.h"
#include "core/object/status_list.h"
#include "core/pool/pools.h"
#include "core/share/link/imports.h"
#include "core/share/peer/exports.h"
#include "core/share/peer/server.h"

namespace gpumem::core {

struct OpenRequest {
  gpumem_backend backend = GPUMEM_BACKEND_ANY;
  std::string name;
  uint64_t pin_budget = 0;  // 0: no limit
  TransferOptions transfer;
  backend::OpenRequest options;
};

// The answer of a call whose instance has been closed meanwhile.
Error instance_closed();

class Instance {
 public:
  // The handle of a new instance.
  static Result<uint64_t> open(const OpenRequest& request);
  // The process-wide instance, configured by the environment.
  static Result<uint64_t> open_default();

  Instance(const OpenRequest& request, std::unique_ptr<backend::Backend> backend, Fallback fallback);

  backend::Backend& backend() const { return *backend_; }
  const std::string& name() const { return name_; }
  uint64_t pin_budget() const { return pin_budget_; }
  const Fallback& fallback() const { return fallback_; }
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  // Null if this instance does not see it.
  Device* find_device(const std::array<uint8_t, 16>& uuid) const;
  uint64_t device_handle(uint32_t ordinal) const { return device_handles_[ordinal]; }
  DeviceObject& device_object(uint32_t ordinal) const {
    return static_cast<DeviceObject&>(*device_objects_[ordinal]);
  }

  // Whether some device shares managed memory with the CPU in turns only.
  bool has_exclusive_devices() const { return has_exclusive_devices_; }
  // Live managed memory that the CPU and devices use in turns.
  uint64_t guarded_memories() const {
    return has_exclusive_devices_ ? statistics_.read_kind(kinds::managed).live_count : 0;
  }

  PageMap& page_map() { return page_map_; }
  Statistics& statistics() { return statistics_; }
  Background& background() { return background_; }
  Pools& pools() { return pools_; }
  Exports& exports() { return exports_; }
  Imports& imports() { return imports_; }
  ShareServer& share_server() { return share_server_; }

  // A lock for a call that creates or destroys an object, so that closing finds none half made. Refused once
  // the instance is closing. Never waits, because the lock's holder may wait for a reference that the caller
  // holds.
  Result<std::shared_lock<std::shared_mutex>> stay_open();

  void add_object(Object& object) noexcept;
  void remove_object(Object& object) noexcept;
  // Leaves the object to end_abandoned() or close().
  void note_abandoned(Object& object) noexcept;
  // Takes it out again, for the one caller who gets true.
  bool take_abandoned(Object& object) noexcept;
  bool has_abandoned() const { return abandoned_.load(std::memory_order_relaxed) != 0; }
  // While `function` runs, none is added or removed.
  template <class F>
  void for_each_object(F function) {
    const std::lock_guard lock(objects_mutex_);
    for (Object* object = objects_.first(); object != nullptr; object = ObjectList::next(*object))
      function(*object);
  }

  // Charges page-locked bytes to the budget (PIN-17).
  Result<void> charge_pinned(uint64_t bytes);
  void refund_pinned(uint64_t bytes) noexcept { pinned_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Frees the page-locked memory that devices keep for copies. Whether there was any.
  bool flush_transfers() noexcept;

  // What lives, a line for each object, memory first, at most `most` lines. Takes no lock.
  std::string report(uint64_t most, const char* separator = "\n") const;
  // Counters and live objects as JSON.
  std::string snapshot() const;

  Result<uint64_t> close(Object& root, gpumem_close_mode mode);

 private:
  Result<void> claim_close(gpumem_close_mode mode);
  uint64_t live_count() const;
  // Regions of pools that are listed themselves.
  struct OfPools {
    uint64_t count = 0;
    std::array<gpumem_kind_stats, kCountedKinds> kinds{};
  };
  OfPools of_pools() const;
  std::string totals(const OfPools& of_pools) const;
  void end_handles() noexcept;
  void await_streams() noexcept;
  void destroy_objects() noexcept;

  const std::string name_;
  const uint64_t pin_budget_;
  const Fallback fallback_;
  bool is_default_ = false;
  bool has_exclusive_devices_ = false;
  std::atomic<bool> closing_{false};
  std::shared_mutex lifecycle_;  // shared by calls that make or destroy an object

  std::unique_ptr<backend::Backend> backend_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<uint64_t> device_handles_;
  std::vector<Object*> device_objects_;

  PageMap page_map_;
  Statistics statistics_;
  std::atomic<uint64_t> pinned_bytes_{0};
  ShareServer share_server_{*this};  // outlives its users
  Exports exports_{*this};
  Imports imports_{*this};
  Background background_;
  Pools pools_;
  std::atomic<uint64_t> abandoned_{0};

  mutable std::mutex objects_mutex_;
  ObjectList objects_;
};

// Calls `make`. If memory or addresses are lacking, gives up what is kept for later imports and copies, and
// calls it once more.
template <class Make>
auto with_room(Instance& instance, Make make) {
  auto made = make();
  if (made || !lacks_room(made.error().status)) return made;
  const bool flushed = instance.flush_transfers();
  if (instance.imports().flush_cache() || flushed) made = make();
  return made;
}

// What an instance handle points to.
class InstanceObject final : public Object {
 public:
  static constexpr Type kType = Type::kInstance;
  explicit InstanceObject(std::shared_ptr<Instance> instance) : Object(kType, std::move(instance)) {}
};

// How many objects were destroyed with it.
Result<uint64_t> close_instance(Ref<InstanceObject> root, gpumem_close_mode mode);

}  // namespace gpumem::core
