// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Probing and opening.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device.h"
#include "backends/cuda/pointer.h"
#include "platform/numa.h"

namespace gpumem::cuda {
namespace {

// All devices; each must support what the backend requires (UVA-1).
Result<std::vector<CUdevice>> list_devices(const Driver& cu) {
  int count = 0;
  const Outcome counted = cu.DeviceGetCount(&count);
  if (!counted.ok()) return error_of(counted, Place::kHost, "cannot query the number of devices");
  if (count == 0) {
    return make_error(GPUMEM_ERROR_NO_DEVICE,
                      "the CUDA driver reports no device; check the hardware and CUDA_VISIBLE_DEVICES");
  }
  std::vector<CUdevice> devices(static_cast<size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const Outcome found = cu.DeviceGet(&devices[static_cast<size_t>(ordinal)], ordinal);
    if (!found.ok()) return error_of(found, Place::kHost, "cannot get device %d", ordinal);
    int unified = 0;
    const Outcome asked = cu.DeviceGetAttribute(&unified, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
                                                devices[static_cast<size_t>(ordinal)]);
    if (!asked.ok())
      return error_of(asked, Place::kHost, "cannot query the attributes of device %d", ordinal);
    if (unified == 0) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "device %d does not support unified addressing; hide it with CUDA_VISIBLE_DEVICES",
                        ordinal);
    }
  }
  return devices;
}

// Ordinal of the device of a caller's context.
Result<CUdevice> device_of(const Driver& cu, CUcontext context) {
  const Error unusable = make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                                    "%p is not a usable CUDA context; pass only contexts that exist",
                                    static_cast<void*>(context));
  if (context == nullptr || !cu.CtxPushCurrent(context).ok()) return unusable;
  CUdevice device = 0;
  const Outcome asked = cu.CtxGetDevice(&device);
  CUcontext popped = nullptr;
  cu.CtxPopCurrent(&popped);
  if (asked.missing()) return error_of(asked, Place::kHost, "cannot query the device of a context");
  if (!asked.ok()) return unusable;
  return device;
}

// The caller's contexts by device ordinal; null for a device without one.
Result<std::vector<CUcontext>> sort_contexts(const Driver& cu, const std::vector<CUdevice>& devices,
                                             const std::vector<void*>& contexts) {
  std::vector<CUcontext> sorted(devices.size(), nullptr);
  for (void* const given : contexts) {
    auto* const context = static_cast<CUcontext>(given);
    auto device = device_of(cu, context);
    if (!device) return device.error();
    for (size_t ordinal = 0; ordinal < devices.size(); ++ordinal) {
      if (devices[ordinal] != *device) continue;
      if (sorted[ordinal] != nullptr) {
        return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                          "two of the contexts belong to device %zu; pass at most one for each device",
                          ordinal);
      }
      sorted[ordinal] = context;
    }
  }
  return sorted;
}

class Backend final : public backend::Backend {
 public:
  Backend(const Driver& cu, std::vector<std::unique_ptr<backend::Device>> devices)
      : cu_(cu), devices_(std::move(devices)) {}

  gpumem_backend kind() const override { return GPUMEM_BACKEND_CUDA; }
  int32_t driver_version() const override { return cu_.version; }
  bool strict() const override { return false; }
  const std::vector<std::unique_ptr<backend::Device>>& devices() const override { return devices_; }
  bool has_numa_node(int32_t node) const override { return platform::numa_node_exists(node); }
  Result<backend::PointerFacts> pointer_facts(const void* pointer) override {
    const auto usable =
        std::find_if(devices_.begin(), devices_.end(), [](const auto& device) { return !device->lost(); });
    auto& asked = usable != devices_.end() ? *usable : devices_.front();
    return cuda::pointer_facts(static_cast<Device&>(*asked), pointer);
  }

 private:
  const Driver& cu_;
  const std::vector<std::unique_ptr<backend::Device>> devices_;
};

}  // namespace

Result<backend::ProbeFacts> probe() {
  auto driver = load();
  if (!driver) return driver.error();
  const Driver& cu = **driver;
  auto devices = list_devices(cu);
  if (!devices) return devices.error();
  backend::ProbeFacts facts;
  facts.backend = GPUMEM_BACKEND_CUDA;
  facts.driver_version = cu.version;
  facts.device_count = static_cast<uint32_t>(devices->size());
  char name[64];
  std::snprintf(name, sizeof name, "CUDA driver %d.%d", cu.version / 1000, cu.version % 1000 / 10);
  facts.name = name;
  return facts;
}

Result<std::unique_ptr<backend::Backend>> open(const backend::OpenRequest& request) {
  auto driver = load();
  if (!driver) return driver.error();
  const Driver& cu = **driver;
  auto handles = list_devices(cu);
  if (!handles) return handles.error();
  auto contexts = sort_contexts(cu, *handles, request.cuda_contexts);
  if (!contexts) return contexts.error();
  std::vector<std::unique_ptr<backend::Device>> devices;
  for (uint32_t ordinal = 0; ordinal < handles->size(); ++ordinal) {
    auto device = Device::open(cu, *handles, ordinal, (*contexts)[ordinal]);
    if (!device) return device.error();
    devices.push_back(std::move(*device));
  }
  return {std::make_unique<Backend>(cu, std::move(devices))};
}

}  // namespace gpumem::cuda
