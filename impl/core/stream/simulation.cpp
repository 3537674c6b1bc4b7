// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/simulation.h"

#include <optional>

#include "core/object/host_function_guard.h"
#include "core/stream/stream_end.h"

namespace gpumem::core::simulation {
namespace {

Result<backend::Simulation*> simulation_of(const Context& context) {
  if (backend::Simulation* const simulation = context.backend().simulation()) return simulation;
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "only instances of the host backend support this function");
}

}  // namespace

Result<void> launch(Stream& stream, gpumem_host_kernel_function function, void* user_data) {
  auto simulation = simulation_of(stream.context());
  if (!simulation) return simulation.error();
  GPUMEM_TRY(stream.usable());
  return (*simulation)->launch(stream.backend(), function, user_data);
}

Result<void*> create_native_stream(DeviceObject& device) {
  auto simulation = simulation_of(device.context());
  if (!simulation) return simulation.error();
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(device.device().usable());
  return (*simulation)->native_stream_create(device.device().backend());
}

Result<void> destroy_native_stream(DeviceObject& device, void* native) {
  auto simulation = simulation_of(device.context());
  if (!simulation) return simulation.error();
  GPUMEM_TRY(outside_host_function());
  if (native == nullptr) return {};
  backend::Device& owner = device.device().backend();
  std::optional<StreamEnd> end;
  if (const auto wrapped = (*simulation)->native_stream(owner, native)) {
    const uint64_t identity = (*wrapped)->identity();
    end.emplace(device.context(), **wrapped, identity);
    // Else what pools keep of the stream counts as handles that wrap it, and the caller has none to destroy.
    device.context().end_stream(identity, native);
  }
  GPUMEM_TRY((*simulation)->native_stream_destroy(owner, native));
  if (end) end->finish();
  return {};
}

Result<void> set_capturing(Stream& stream, bool capturing) {
  auto simulation = simulation_of(stream.context());
  if (!simulation) return simulation.error();
  (*simulation)->set_capturing(stream.backend(), capturing);
  return {};
}

Result<void> lose(DeviceObject& device) {
  auto simulation = simulation_of(device.context());
  if (!simulation) return simulation.error();
  (*simulation)->lose(device.device().backend());
  return {};
}

Result<void> fail_step(Context& context, uint64_t step, bool repeat) {
  auto simulation = simulation_of(context);
  if (!simulation) return simulation.error();
  (*simulation)->fail_step(step, repeat);
  return {};
}

Result<void*> allocate_foreign(DeviceObject& device, const KindTraits& kind, uint64_t size) {
  auto simulation = simulation_of(device.context());
  if (!simulation) return simulation.error();
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(device.device().usable());
  return (*simulation)->foreign_alloc(device.device().backend(), kind.on_device, size);
}

Result<void> free_foreign(DeviceObject& device, void* pointer) {
  auto simulation = simulation_of(device.context());
  if (!simulation) return simulation.error();
  GPUMEM_TRY(outside_host_function());
  if (pointer == nullptr) return {};
  return (*simulation)->foreign_free(device.device().backend(), pointer);
}

Result<void> set_foreign_peer_access(DeviceObject& device, DeviceObject& peer, bool enabled) {
  auto simulation = simulation_of(device.context());
  if (!simulation) return simulation.error();
  return (*simulation)->foreign_peer_access(device.device().backend(), peer.device().backend(), enabled);
}

}  // namespace gpumem::core::simulation
