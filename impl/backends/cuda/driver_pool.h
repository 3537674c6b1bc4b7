// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory pools of the driver: the device's current one, which the driver serves cuMemAllocAsync from, and
// those that the library makes. The current one belongs to all code of the process, so nothing of it is
// changed (COM-22).
#pragma once

#include <mutex>
#include <vector>

#include "backends/cuda/device.h"

namespace gpumem::cuda {

class DriverPool {
 public:
  DriverPool(Device& device, const backend::MemoryRequest& request)
      : device_(device), sort_(request.sort), node_(node_of(request)), users_(request.users) {}

  backend::MemorySort sort() const { return sort_; }
  int32_t node() const { return node_; }  // -1: none is asked for
  bool serves(const backend::MemoryRequest& request) const {
    return request.sort == sort_ && node_of(request) == node_ && request.users == users_;
  }

  // Makes one, unless the current one serves.
  Result<void> open();
  // Memory that every stream may use at once: waits for the work that the driver orders it behind, which may
  // be other code's in the current one.
  Result<CUdeviceptr> allocate(uint64_t size);
  // No work may use the memory any more. Then other code can have it, or the system if the pool keeps no
  // more. One that is made keeps nothing, as the pools of core do.
  Outcome free(CUdeviceptr address);
  // No call is under way, and all memory is free.
  void close();

 private:
  static int32_t node_of(const backend::MemoryRequest& request) {
    return (request.require & GPUMEM_MEMORY_NUMA_NODE) != 0 ? request.numa_node : -1;
  }
  // Of the devices that the driver does not give it.
  Outcome set_access(CUmemAccess_flags flags);
  Place place() const { return sort_ == backend::MemorySort::kPinned ? Place::kHost : Place::kDevice; }
  Result<void> make_stream(CUstream* out);
  // A stream without work, so that no call waits for what another one waits for.
  Result<CUstream> take_stream();
  void put_stream(CUstream stream) noexcept;

  Device& device_;
  const backend::MemorySort sort_;
  const int32_t node_;
  const uint64_t users_;              // bits of ordinals
  CUmemoryPool made_pool_ = nullptr;  // null: the current one
  std::mutex mutex_;
  CUstream frees_ = nullptr;  // for frees, which never wait; made before the first allocation
  std::vector<CUstream> idle_;
  size_t made_ = 0;
};

}  // namespace gpumem::cuda
