// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Batches of many small copies: beside a loop over the driver's copies, and beside its own batch.
#pragma once

#include "groups.h"

namespace bench {

void pieces(const Scene& scene, gpumem_stream stream);

}  // namespace bench
