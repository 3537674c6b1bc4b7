// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Settings from the environment.
#pragma once

namespace gpumem::platform {

// Value of a variable; null if it is not set, empty, or the process has raised privileges.
const char* environment(const char* name);

}  // namespace gpumem::platform
