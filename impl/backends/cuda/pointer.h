// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the driver knows about an address.
#pragma once

#include "backends/cuda/device.h"

namespace gpumem::cuda {

// The address at which a device, whose context is current, reaches memory of the host that was not made here.
// INVALID_VALUE if there is none.
Outcome find_device_pointer(const Driver& cu, const void* pointer, CUdeviceptr* out);

// `device` is the one that asks; the answer is the same for all.
Result<backend::PointerFacts> pointer_facts(Device& device, const void* pointer);

}  // namespace gpumem::cuda
