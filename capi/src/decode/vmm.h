// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Arguments that the functions of virtual memory management and of buffers share.
#pragma once

#include <vector>

#include "core/memory/physical.h"
#include "core/memory/range.h"
#include "decoder.h"

namespace gpumem::capi {

// Properties of physical memory. A size of 0 where none is needed.
backend::PhysicalRequest decode_physical(Decoder& decode, const core::DeviceObject* device,
                                         const gpumem_physical_desc& desc);
// Whether an array of `count` entries of `stride` bytes can be there.
void decode_array(Decoder& decode, const void* first, uint64_t count, uint64_t stride, const char* name);
std::vector<core::AccessRequest> decode_accesses(Decoder& decode, core::Context* instance,
                                                 const gpumem_access_desc* accesses, uint64_t count);

}  // namespace gpumem::capi
