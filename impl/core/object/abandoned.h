// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory and addresses that a call of the library made for its own work and no longer needs.
#pragma once

#include <cstdint>

#include "core/object/context.h"

namespace gpumem::core {

// Releases a memory, buffer, physical memory or range, the last with all that is mapped in it. If the backend
// refuses, it stays counted among the live objects until end_abandoned() succeeds or the instance is closed.
// Does not allocate, because undo paths call it. Does nothing for 0.
void abandon(Context& context, uint64_t handle) noexcept;
// Tries again. Costs one load if there is nothing.
void end_abandoned(Context& context) noexcept;

}  // namespace gpumem::core
