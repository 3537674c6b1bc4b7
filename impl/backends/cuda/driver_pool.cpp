// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/driver_pool.h"

#include <algorithm>
#include <array>

#include "base/cleanup.h"

namespace gpumem::cuda {

// The driver's settings stay: what it makes an allocation wait for is frees in streams that have no other
// work (STR-12), and it keeps nothing that is given back.
Result<void> DriverPool::open() {
  const bool on_device = sort_ == backend::MemorySort::kDevice;
  if (on_device && users_ == 0) return {};
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  if (on_device) {
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device_.handle();
  } else if (node_ >= 0) {
    wanted.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    wanted.location.id = node_;
  } else {
    wanted.location.type = CU_MEM_LOCATION_TYPE_HOST;
  }
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  Outcome outcome = device_.cu().MemPoolCreate(&made_pool_, &wanted);
  if (outcome.ok()) outcome = set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (outcome.ok()) return {};
  close();
  Error error =
      device_
          .check(outcome, place(),
                 "the driver makes no such pool for device %u; those of pinned memory need CUDA 13.0",
                 device_.facts().ordinal)
          .error();
  // Nothing is wrong with the values, so it does not know the location or the type.
  if (outcome.code == CUDA_ERROR_INVALID_VALUE) error.status = GPUMEM_ERROR_UNSUPPORTED;
  return error;
}

// All at once, so that a failure gives access to none. Core names none of the devices from 64 on.
Outcome DriverPool::set_access(CUmemAccess_flags flags) {
  const uint64_t users = sort_ == backend::MemorySort::kPinned ? ~uint64_t{0} : users_;
  std::array<CUmemAccessDesc, 64> access{};
  size_t count = 0;
  for (size_t ordinal = 0; ordinal < std::min(device_.all().size(), access.size()); ++ordinal) {
    if ((users >> ordinal & 1) == 0) continue;
    CUmemAccessDesc& one = access[count++];
    one.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    one.location.id = device_.all()[ordinal];
    one.flags = flags;
  }
  return device_.cu().MemPoolSetAccess(made_pool_, access.data(), count);
}

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
  Outcome outcome = made_pool_ == nullptr ? cu.MemAllocAsync(&address, size, *stream)
                                          : cu.MemAllocFromPoolAsync(&address, size, made_pool_, *stream);
  const bool taken = outcome.ok();
  if (taken) outcome = cu.StreamSynchronize(*stream);
  auto ready =
      device_.check(outcome, place(), "cannot allocate %llu bytes from the driver's pool of device %u",
                    static_cast<unsigned long long>(size), device_.facts().ordinal);
  if (ready) return address;
  if (taken && refused(free(address))) (void)free(address);
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
  if (made_pool_ == nullptr) return;
  // The driver wants it back before the pool ends.
  set_access(CU_MEM_ACCESS_FLAGS_PROT_NONE);
  device_.cu().MemPoolDestroy(made_pool_);
  made_pool_ = nullptr;
}

Result<DriverPool*> Device::driver_pool(const backend::MemoryRequest& request) {
  const std::scoped_lock lock(driver_pools_mutex_);
  for (DriverPool& pool : driver_pools_) {
    if (pool.serves(request)) return &pool;
  }
  DriverPool& pool = driver_pools_.emplace_front(*this, request);
  auto opened = pool.open();
  if (opened) return &pool;
  driver_pools_.pop_front();
  return opened.error();
}

Result<void> Device::open_driver_pool(const backend::MemoryRequest& request) {
  auto pool = driver_pool(request);
  if (!pool) return pool.error();
  return {};
}

}  // namespace gpumem::cuda
