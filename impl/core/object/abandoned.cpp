// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/abandoned.h"

#include "base/caught.h"
#include "core/object/held.h"

namespace gpumem::core {
namespace {

Result<void> end(uint64_t handle) noexcept {
  Object::Discard discard = nullptr;
  look_at(handle, [&](const Object& object) { discard = object.discard(); });
  if (discard == nullptr) return {};  // it has ended
  try {
    return discard(handle);
  } catch (...) {
    return caught_failure();
  }
}

}  // namespace

void abandon(Context& context, uint64_t handle) noexcept {
  if (handle == 0 || end(handle)) return;
  look_at(handle, [&](Object& object) { context.note_abandoned(object); });
}

void end_abandoned(Context& context) noexcept {
  if (!context.has_abandoned()) return;
  uint64_t handle = 0;
  const auto see = [&](const Object& object) {
    handle = &object.context() == &context && object.abandoned() ? object.handle() : 0;
  };
  for (uint32_t slot = 0; handles::see_next(&slot, see);) {
    // Let one call end each object: ending a buffer calls this again, and other threads may too.
    bool mine = false;
    if (handle != 0) look_at(handle, [&](Object& object) { mine = context.take_abandoned(object); });
    if (mine) abandon(context, handle);
  }
}

}  // namespace gpumem::core
