// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Entry to the cuda backend: the CUDA driver API, loaded at the first use.
#pragma once

#include "contract/backend.h"

namespace gpumem::cuda {

Result<backend::ProbeFacts> probe();
Result<std::unique_ptr<backend::Backend>> open(const backend::OpenRequest& request);

}  // namespace gpumem::cuda
