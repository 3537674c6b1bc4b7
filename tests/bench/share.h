// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory of a second process: imported, fetched by name, and copied through.
#pragma once

#include "groups.h"

namespace bench {

void share(const Scene& scene);
// The second process, which the first one starts with `--share-peer`.
int share_peer(gpumem_backend backend);

}  // namespace bench
