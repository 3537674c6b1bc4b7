// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A kernel that reads or writes memory in place.
#pragma once

#include "groups.h"

namespace bench {

void access(const Scene& scene);

}  // namespace bench
