// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The one place that knows which backends exist.
#pragma once

#include "contract/backend.h"

namespace gpumem::core {

// Why ANY takes the host backend: the failure of cuda. Status 0 if it does not.
struct Fallback {
  Status status = GPUMEM_SUCCESS;
  std::string reason;
};

bool has_backend(gpumem_backend backend);
Result<backend::ProbeFacts> probe_backend(gpumem_backend backend, Fallback* fallback);
Result<std::unique_ptr<backend::Backend>> open_backend(gpumem_backend backend,
                                                       const backend::OpenRequest& request,
                                                       Fallback* fallback);

// The host backend's notions that belong to the calling thread.
int32_t set_host_current_device(int32_t ordinal);
backend::Kernel* current_host_kernel();

}  // namespace gpumem::core
