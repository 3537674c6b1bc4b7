// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/host_function_guard.h"

namespace gpumem::core {

Error inside_host_function() {
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "called from a host function or kernel, which may only query information; call it from another thread");
}

}  // namespace gpumem::core
