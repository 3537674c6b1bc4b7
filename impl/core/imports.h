// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What an instance has imported, and what it has received and may import.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>

#include "core/event.h"
#include "core/memory.h"
#include "core/share_handle.h"
#include "core/share_peer.h"
#include "platform/descriptor.h"

namespace gpumem::core {

struct ImportRequest {
  ShareHandle handle;
  std::span<const int32_t> file_descriptors;  // the caller's
  DeviceObject* device = nullptr;             // null: the one that has the memory
  gpumem_access access = GPUMEM_ACCESS_NONE;  // NONE: what the exporter allows
  bool unverified = false;
  void* address = nullptr;
  uint64_t timeout_ns = 0;
  std::string name;
};

class Imports {
 public:
  explicit Imports(Instance& instance) : instance_(instance) {}

  // The handle of the memory, and the byte that was exported.
  Result<CreatedMemory> import_memory(const ImportRequest& request);
  Result<uint64_t> import_event(DeviceObject& device, const ImportRequest& request);

  // Keeps what came with a handle until it is imported, or until then. LIMIT_EXCEEDED if too many wait.
  // `peer` may be null.
  Result<void> keep(const ShareHandle& handle, platform::Descriptors descriptors,
                    std::shared_ptr<SharePeer> peer, std::chrono::steady_clock::time_point until);

 private:
  Instance& instance_;
};

}  // namespace gpumem::core
