// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/callback.h"

#include <utility>

#include "platform/fork.h"

namespace gpumem::core {

Callback::Callback() noexcept : before_(std::exchange(process_, platform::process_epoch())) {}

bool Callback::runs_here() noexcept { return process_ != 0 && process_ == platform::process_epoch(); }

}  // namespace gpumem::core
