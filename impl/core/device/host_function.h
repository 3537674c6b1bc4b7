// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Functions that the CPU runs when a stream comes to them: the caller's, and the library's own.
#pragma once

#include <functional>

#include "base/result.h"
#include "contract/stream.h"
#include "gpumem/stream.h"

namespace gpumem::core {

class Device;
class Context;
class Region;

// Enqueues a function of the caller.
Result<void> launch_for_user(Context& context, backend::Stream& stream, gpumem_host_function function,
                             void* user_data);
// Makes it a node of the graph that the stream is being captured into.
Result<void> capture_for_user(backend::Stream& stream, gpumem_host_function function, void* user_data);
// Enqueues one of the library, which must not call the driver. `writes` is the region that it writes to, if
// any.
Result<void> launch_internal(Device& device, backend::Stream& stream, const Region* writes,
                             std::function<void()> function);

// The streams of a lost device cannot be waited for. So functions that write to a region in such a stream are
// dropped if they have not begun, and waited for if they run.
void end_functions_writing(const Region& region) noexcept;
// The same for all functions of an instance with lost devices.
void end_functions_of(const Context& context) noexcept;

}  // namespace gpumem::core
