// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Whether memory can be shared in one way, and if not, why.
#pragma once

#include "base/result.h"
#include "core/object/context.h"
#include "gpumem/share.h"

namespace gpumem::core {

class Link;

// With a link: what a trial with the process at its other end says.
gpumem_way_info share_way(Context& context, const void* pointer, gpumem_share_way way, gpumem_share_peer peer,
                          Link* link);
// Of whole pages inside one memory.
Result<int> export_dma_buf(Context& context, const void* pointer, uint64_t size, bool prefer_pcie);

}  // namespace gpumem::core
