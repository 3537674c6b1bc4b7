// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The functions of gpumem/host.h: what tests can do to a backend without hardware. UNSUPPORTED on any other.
#pragma once

#include "core/device/device.h"
#include "core/memory/kind.h"
#include "core/object/context.h"
#include "core/stream/stream.h"

namespace gpumem::core::simulation {

Result<void> launch(Stream& stream, gpumem_host_kernel_function function, void* user_data);
Result<void*> create_native_stream(DeviceObject& device);
Result<void> destroy_native_stream(DeviceObject& device, void* native);
Result<void> set_capturing(Stream& stream, bool capturing);
Result<void> lose(DeviceObject& device);
Result<void> fail_step(Context& context, uint64_t step, bool repeat);
Result<void*> allocate_foreign(DeviceObject& device, const KindTraits& kind, uint64_t size);
Result<void> free_foreign(DeviceObject& device, void* pointer);
Result<void> set_foreign_peer_access(DeviceObject& device, DeviceObject& peer, bool enabled);

}  // namespace gpumem::core::simulation
