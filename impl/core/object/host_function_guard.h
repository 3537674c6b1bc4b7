// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// While a host function or a kernel stand-in runs, its thread may only ask for information (COM-27).
#pragma once

#include "base/result.h"
#include "contract/host_function_mark.h"

namespace gpumem::core {

Error inside_host_function();
// Refuses on a thread that runs one.
inline Result<void> outside_host_function() {
  if (!backend::HostFunctionMark::is_set()) [[likely]]
    return {};
  return inside_host_function();
}

}  // namespace gpumem::core
