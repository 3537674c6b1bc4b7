// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/abandoned.h"

#include "base/caught.h"
#include "core/buffer/buffer.h"
#include "core/memory/memory.h"
#include "core/memory/physical.h"
#include "core/memory/range.h"
#include "core/object/destroy.h"
#include "core/object/held.h"

namespace gpumem::core {
namespace {

Result<void> end(uint64_t handle) noexcept {
  try {
    switch (static_cast<Type>(handles::detail::type_of(handle))) {
      case Type::kRange:
        GPUMEM_TRY(unmap_from(handle, 0));
        return give_back<Range>(handle, destroy_object);
      case Type::kMemory:
        return give_back<Memory>(handle, destroy_memory);
      case Type::kBuffer:
        return give_back<Buffer>(handle, destroy_buffer);
      default:
        return give_back<Physical>(handle, destroy_object);
    }
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
