// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The device's current memory pool, which the driver serves cuMemAllocAsync from. It belongs to all code of
// the process, so nothing of it is changed (COM-22).
#pragma once

#include <mutex>
#include <vector>

#include "backends/cuda/device.h"

namespace gpumem::cuda {

class DriverPool {
 public:
  explicit DriverPool(Device& device) : device_(device) {}

  // Memory that every stream may use at once: waits for the work that the driver orders it behind, which may
  // be other code's.
  Result<CUdeviceptr> allocate(uint64_t size);
  // No work may use the memory any more. Then other code can have it, or the system if the pool keeps no
  // more.
  Outcome free(CUdeviceptr address);
  // No call is under way, and all memory is free.
  void close();

 private:
  Result<void> make_stream(CUstream* out);
  // A stream without work, so that no call waits for what another one waits for.
  Result<CUstream> take_stream();
  void put_stream(CUstream stream) noexcept;

  Device& device_;
  std::mutex mutex_;
  CUstream frees_ = nullptr;  // for frees, which never wait; made before the first allocation
  std::vector<CUstream> idle_;
  size_t made_ = 0;
};

}  // namespace gpumem::cuda
