// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/driver_pool.h"

namespace gpumem::cuda {

Result<CUstream> DriverPool::stream() {
  const std::scoped_lock lock(mutex_);
  if (stream_ == nullptr) {
    GPUMEM_TRY(device_.check(device_.cu().StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
                             Place::kDevice, "cannot create a stream on device %u", device_.facts().ordinal));
  }
  return stream_;
}

Result<CUdeviceptr> DriverPool::allocate(uint64_t size) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  auto in = stream();
  if (!in) return in.error();
  CUdeviceptr address = 0;
  GPUMEM_TRY(device_.check(device_.cu().MemAllocAsync(&address, size, *in), Place::kDevice,
                           "cannot allocate %llu bytes from the driver's pool of device %u",
                           static_cast<unsigned long long>(size), device_.facts().ordinal));
  auto ready =
      device_.check(device_.cu().StreamSynchronize(*in), Place::kDevice,
                    "cannot wait for memory of the driver's pool of device %u", device_.facts().ordinal);
  if (ready) return address;
  (void)free(address);
  return ready.error();
}

Outcome DriverPool::free(CUdeviceptr address) {
  RelaxedScope scope(device_);
  return device_.cu().MemFreeAsync(address, stream_);
}

void DriverPool::close() {
  if (stream_ == nullptr) return;
  RelaxedScope scope(device_);
  // A failure cannot be reported or handled here.
  device_.cu().StreamDestroy(stream_);
}

}  // namespace gpumem::cuda
