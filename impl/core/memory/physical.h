// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Handles of physical memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "contract/vmm.h"
#include "core/device/device.h"
#include "core/object/handles.h"
#include "core/object/object.h"

namespace gpumem::core {

class Physical final : public Object {
 public:
  static constexpr Type kType = Type::kPhysical;
  Physical(std::shared_ptr<Context> context, Device& device, std::string name)
      : Object(kType, std::move(context)), device_(device), name_(std::move(name)) {}

  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;
  Discard discard() const noexcept override;

  // The device that it was created with; for host memory, a close one.
  Device& device() const { return device_; }
  const std::string& name() const { return name_; }
  backend::Physical& backend() const { return *backend_; }
  const backend::PhysicalFacts& facts() const { return backend_->facts(); }
  // The answer of gpumem_physical_get_info().
  const gpumem_physical_info& info() const { return info_; }

  void set_backend(std::unique_ptr<backend::Physical> made) noexcept;

 private:
  Device& device_;
  const std::string name_;
  std::unique_ptr<backend::Physical> backend_;
  gpumem_physical_info info_ = GPUMEM_PHYSICAL_INFO_INIT;
};

// The facet of a device, or why there is none.
Result<backend::VirtualMemory*> virtual_memory_of(Device& device);

// The values of the requests must be checked already.
Result<backend::Granularity> physical_granularity(DeviceObject& device, backend::PhysicalRequest request);
// These return handles.
Result<uint64_t> create_physical(DeviceObject& device, backend::PhysicalRequest request, std::string name);
Result<uint64_t> import_physical(DeviceObject& device, const backend::PhysicalRequest& request,
                                 int file_descriptor, std::string name);
Result<uint64_t> import_fabric(DeviceObject& device, const backend::PhysicalRequest& request,
                               const gpumem_fabric_handle& handle, std::string name);
// What the functions above are made of: calls `make` for the backend's object, and publishes ours.
using MakePhysical = std::function<Result<std::unique_ptr<backend::Physical>>()>;
Result<uint64_t> make_physical(const std::shared_ptr<Context>& context, Device& device, std::string name,
                               const MakePhysical& make);
// A new file descriptor.
Result<int> export_physical(Physical& physical);
Result<gpumem_fabric_handle> export_fabric(Physical& physical);

}  // namespace gpumem::core
