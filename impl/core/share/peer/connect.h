// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How an importer gets to the process that exported.
#pragma once

#include <cstdint>
#include <memory>

#include "core/share/peer/peer.h"

namespace gpumem::core {

class Context;

// To an exporter, by its abstract address; the same connection for all that comes from it. PEER_GONE if the
// process has ended, STALE_HANDLE if it lives but its instance is closed, UNSUPPORTED if it cannot be
// reached from here (another network namespace), PERMISSION_DENIED if it refuses this user, BUSY after the
// timeout.
Result<std::shared_ptr<SharePeer>> connect_to_exporter(Context& context, const ExporterId& exporter,
                                                       uint64_t timeout_ns);

}  // namespace gpumem::core
