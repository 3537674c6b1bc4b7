// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An opened backend and everything that was made through it.
#pragma once

#include <array>
#include <atomic>
#include <map>
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
#include "core/object/context.h"
#include "core/object/handles.h"
#include "core/object/status_list.h"
#include "core/pool/pools.h"
#include "core/share/link/imports.h"
#include "core/share/link/trial.h"
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

class Instance final : public Context {
 public:
  // The instance of a context: each is one.
  static Instance& of(Context& context) { return static_cast<Instance&>(context); }

  // The handle of a new instance.
  static Result<uint64_t> open(const OpenRequest& request);
  // The process-wide instance, configured by the environment.
  static Result<uint64_t> open_default();

  Instance(const OpenRequest& request, std::unique_ptr<backend::Backend> backend, Fallback fallback);

  const std::string& name() const { return name_; }
  uint64_t pin_budget() const { return pin_budget_; }
  const Fallback& fallback() const { return fallback_; }

  // As in Context, without a load: pointer queries use it.
  PageMap& page_map() { return page_map_; }
  Devices& devices() { return devices_; }
  Pools& pools() { return pools_; }
  Exports& exports() { return exports_; }
  Imports& imports() { return imports_; }
  ShareServer& share_server() { return share_server_; }

  Result<void> charge_pinned(uint64_t bytes) override;
  void refund_pinned(uint64_t bytes) noexcept override {
    pinned_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  bool make_room() noexcept override;
  Sharing& sharing() noexcept override { return exports_; }
  void end_stream(uint64_t key, const void* native) noexcept override { pools_.end_stream(key, native); }

  // What lives, a line for each object, memory first, at most `most` lines. Takes no lock.
  std::string report(uint64_t most, const char* separator = "\n") const;
  // Counters and live objects as JSON.
  std::string snapshot() const;

  Result<uint64_t> close(Object& root, gpumem_close_mode mode);

 private:
  void count(const Object& object, int64_t difference) noexcept override;
  Result<void> claim_close(gpumem_close_mode mode);
  // Regions of pools that are listed themselves.
  struct OfPools {
    uint64_t count = 0;
    std::array<gpumem_kind_stats, kCountedKinds> kinds{};
  };
  OfPools of_pools() const;
  std::map<uint32_t, uint64_t> bytes_by_device() const;
  std::string totals(const OfPools& of_pools) const;
  void end_handles() noexcept;
  void await_streams() noexcept;
  void destroy_objects() noexcept;

  const std::string name_;
  const uint64_t pin_budget_;
  const Fallback fallback_;
  bool is_default_ = false;

  PageMap page_map_;
  Statistics statistics_;
  Devices devices_;
  std::atomic<uint64_t> pinned_bytes_{0};
  ShareServer share_server_{*this, answer_trial, tidy_arrivals};  // outlives its users
  Exports exports_{*this, share_server_, [this](const Token& token) { return imports_.has(token); }};
  Imports imports_{*this};
  Background background_;
  Pools pools_;
};

// How many objects were destroyed with it.
Result<uint64_t> close_instance(Ref<InstanceObject> root, gpumem_close_mode mode);

}  // namespace gpumem::core
