// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Physical memory and reservations of the driver.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "backends/cuda/device.h"

namespace gpumem::cuda {

// LIMIT_EXCEEDED if a call failed because the process has no free file descriptor: the driver's codes do not
// tell.
Result<void> check_room_for_descriptors(Outcome outcome);
// Checks a call that makes a file descriptor, and closes that on exec.
Result<int> check_descriptor(Device& device, Outcome outcome, int file_descriptor, const char* what);

class VirtualMemory final : public backend::VirtualMemory {
 public:
  explicit VirtualMemory(Device& device) : device_(device) {}

  Result<backend::Granularity> granularity(const backend::PhysicalRequest& request) override;
  Result<std::unique_ptr<backend::Physical>> create(const backend::PhysicalRequest& request) override;
  Result<std::unique_ptr<backend::Physical>> import_fd(const backend::PhysicalRequest& request,
                                                       int file_descriptor) override;
  Result<std::unique_ptr<backend::Physical>> import_fabric(const backend::PhysicalRequest& request,
                                                           const gpumem_fabric_handle& handle) override;
  Result<std::unique_ptr<backend::Reservation>> reserve(const backend::ReservationRequest& request) override;

 private:
  CUmemAllocationProp properties_for(const backend::PhysicalRequest& request,
                                     gpumem_physical_flags wanted) const;
  // Makes a handle of what `shared` stands for. `refusal` makes the error for something else.
  template <class Refusal>
  Result<std::unique_ptr<backend::Physical>> import(const backend::PhysicalRequest& request, void* shared,
                                                    CUmemAllocationHandleType type, Refusal refusal);
  Result<std::unique_ptr<backend::Physical>> try_create(const backend::PhysicalRequest& request,
                                                        gpumem_physical_flags wanted);

  struct KnownUnit {
    std::atomic<uint64_t> minimum{0};
    std::atomic<uint64_t> recommended{0};
  };
  // Once the driver has answered: by location, and whether memory is shareable.
  std::array<KnownUnit, 8> known_;
  Device& device_;
};

}  // namespace gpumem::cuda
