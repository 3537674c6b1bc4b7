// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Queries the driver about addresses.
#pragma once

#include "backends/cuda/device.h"

namespace gpumem::cuda {

// Device address of host memory that is not of this instance, in the current context; INVALID_VALUE if there
// is none.
Outcome find_device_pointer(const Driver& cu, const void* pointer, CUdeviceptr* out);

// `device` makes the driver call; the answer does not depend on it.
Result<backend::PointerFacts> pointer_facts(Device& device, const void* pointer);

}  // namespace gpumem::cuda
