// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pools against the driver's own, or malloc().
#pragma once

#include "groups.h"

namespace bench {

void pools(const Scene& scene);
// Recorded allocations run over a pool: an example, and what lies in `folder` (op,id,size,stream; not
// compressed), unless that is empty.
void traces(const Scene& scene, const std::string& folder);

}  // namespace bench
