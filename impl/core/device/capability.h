// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The list of capabilities. Device::capability() answers what a device can do.
#pragma once

#include <cstdint>

#include "gpumem/capability.h"

namespace gpumem::core {

const char* capability_name(gpumem_capability capability);  // null for an unknown number
gpumem_capability capability_at(uint32_t index);            // 0 past the end
bool is_peer_capability(gpumem_capability capability);

}  // namespace gpumem::core
