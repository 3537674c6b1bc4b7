// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies between files and a device: beside a loop that reads into page-locked memory and lets the driver
// copy, beside reading the file alone by many threads, and beside the driver's copy of page-locked memory
// alone. The last two bound it.
#pragma once

#include "groups.h"

namespace bench {

void files(const Scene& scene);

}  // namespace bench
