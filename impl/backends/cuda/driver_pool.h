// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The device's current memory pool, which the driver serves cuMemAllocAsync from. It belongs to all code of
// the process, so nothing of it is changed (COM-22).
#pragma once

#include <mutex>

#include "backends/cuda/device.h"

namespace gpumem::cuda {

class DriverPool {
 public:
  explicit DriverPool(Device& device) : device_(device) {}

  // Memory that every stream may use at once: waits for the work that the driver orders it behind.
  Result<CUdeviceptr> allocate(uint64_t size);
  // No work may use the memory any more.
  Outcome free(CUdeviceptr address);
  // No call is under way, and all memory is free.
  void close();

 private:
  Result<CUstream> stream();

  Device& device_;
  std::mutex mutex_;
  CUstream stream_ = nullptr;  // made by the first call
};

}  // namespace gpumem::cuda
