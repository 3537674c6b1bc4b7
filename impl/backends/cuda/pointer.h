// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the driver knows about an address.
#pragma once

#include "backends/cuda/device.h"

namespace gpumem::cuda {

// Some allocations of the driver are larger than the memory in them, for the sake of an alignment. What is
// left of them belongs to nobody. Parts are named by the address of the driver's allocation.
void note_used_part(uint64_t allocation, const void* memory, uint64_t size);
void forget_used_part(uint64_t allocation);

// `device` is the one that asks; the answer is the same for all.
Result<backend::PointerFacts> pointer_facts(Device& device, const void* pointer);

}  // namespace gpumem::cuda
