// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Hand-overs to a second process: by a ring, and by as little as does it.
#pragma once

#include "groups.h"

namespace bench {

void rings(const Scene& scene);
// The second process, which the first one starts with `--ring-peer`.
int ring_peer(gpumem_backend backend);

}  // namespace bench
