// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Entry to the host backend: CPU and operating system only, with the rules of a GPU.
#pragma once

#include "contract/backend.h"

namespace gpumem::host {

backend::ProbeFacts probe();
Result<std::unique_ptr<backend::Backend>> open(const backend::OpenRequest& request);

// Sets the calling thread's "current device", the counterpart of a current CUDA context, and returns the
// former one. The backend restores it as cuda restores the context; tests compare it (COM-9).
int32_t set_current_device(int32_t ordinal);

// The kernel stand-in that the calling thread is running, or null.
backend::Kernel* current_kernel();

}  // namespace gpumem::host
