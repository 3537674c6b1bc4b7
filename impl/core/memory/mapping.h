// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is mapped at an address.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "gpumem/range.h"

namespace gpumem::core {

class Context;

// Both answer NOT_FOUND, WRONG_KIND, or INVALID_STATE where nothing is mapped.
Result<gpumem_mapping_info> mapping_info(Context& context, const void* pointer);
// A new handle of the physical memory.
Result<uint64_t> retain_physical(Context& context, const void* pointer);

}  // namespace gpumem::core
