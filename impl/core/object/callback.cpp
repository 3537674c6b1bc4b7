// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/callback.h"

#include <utility>

#include "platform/fork.h"

namespace gpumem::core {

Callback::Callback() noexcept : before_(std::exchange(process_, platform::process_epoch())) {}

bool Callback::runs_here() noexcept { return process_ != 0 && process_ == platform::process_epoch(); }

bool UsedInCallbacks::any_in(uint64_t base, uint64_t size) noexcept {
  if (!Callback::runs_here()) return false;
  for (const UsedInCallbacks* used = last_; used != nullptr; used = used->outer_) {
    if (used->base_ < base + size && base < used->base_ + used->size_) return true;
  }
  return false;
}

}  // namespace gpumem::core
