// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/driver_pool.h"

#include "base/cleanup.h"

namespace gpumem::cuda {

Result<void> DriverPool::make_stream(CUstream* out) {
  return device_.check(device_.cu().StreamCreateWithPriority(out, CU_STREAM_NON_BLOCKING, 0), Place::kDevice,
                       "cannot create a stream on device %u", device_.facts().ordinal);
}

Result<CUstream> DriverPool::take_stream() {
  const std::scoped_lock lock(mutex_);
  if (frees_ == nullptr) GPUMEM_TRY(make_stream(&frees_));
  if (!idle_.empty()) {
    CUstream const stream = idle_.back();
    idle_.pop_back();
    return stream;
  }
  idle_.reserve(made_ + 1);  // for put_stream()
  CUstream stream = nullptr;
  GPUMEM_TRY(make_stream(&stream));
  ++made_;
  return stream;
}

void DriverPool::put_stream(CUstream stream) noexcept {
  const std::scoped_lock lock(mutex_);
  idle_.push_back(stream);
}

Result<CUdeviceptr> DriverPool::allocate(uint64_t size) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  const Driver& cu = device_.cu();
  auto stream = take_stream();
  if (!stream) return stream.error();
  const Cleanup back([&] { put_stream(*stream); });
  CUdeviceptr address = 0;
  GPUMEM_TRY(device_.check(cu.MemAllocAsync(&address, size, *stream), Place::kDevice,
                           "cannot allocate %llu bytes from the driver's pool of device %u",
                           static_cast<unsigned long long>(size), device_.facts().ordinal));
  auto ready =
      device_.check(cu.StreamSynchronize(*stream), Place::kDevice,
                    "cannot wait for memory of the driver's pool of device %u", device_.facts().ordinal);
  if (ready) return address;
  if (refused(free(address))) (void)free(address);
  return ready.error();
}

Outcome DriverPool::free(CUdeviceptr address) {
  RelaxedScope scope(device_);
  const Driver& cu = device_.cu();
  const Outcome outcome = cu.MemFreeAsync(address, frees_);
  // What the pool does not keep goes to the system as a stream is synchronized. A failure is that of other
  // work.
  if (outcome.ok()) (void)cu.StreamSynchronize(frees_);
  return outcome;
}

void DriverPool::close() {
  RelaxedScope scope(device_);
  // A failure cannot be reported or handled here.
  for (CUstream const stream : idle_)
    device_.cu().StreamDestroy(stream);
  if (frees_ != nullptr) device_.cu().StreamDestroy(frees_);
}

}  // namespace gpumem::cuda
