// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Sending handles with their descriptors and a connection over sockets of the program.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/share/wire/handle.h"

namespace gpumem::core {

class Context;

Result<void> send_handle(Context& context, const ShareHandle& handle, int socket, uint64_t lease_ns,
                         uint64_t timeout_ns);
// NOT_READY without a handle, if nothing came in time.
Result<Status> receive_handle(Context& context, int socket, uint64_t timeout_ns, ShareHandle* handle);

}  // namespace gpumem::core
