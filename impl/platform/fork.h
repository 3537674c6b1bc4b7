// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which process is this? A number that a forked child does not inherit (COM-25).
#pragma once

#include <cstdint>

namespace gpumem::platform {

// The same number for the life of a process, another one in each forked child. One load in the usual case.
uint32_t process_epoch();

}  // namespace gpumem::platform
