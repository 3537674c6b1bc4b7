// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/stream_end.h"

#include <new>
#include <utility>

#include "core/device/device.h"
#include "core/memory/kind.h"
#include "core/memory/region.h"
#include "core/memory/statistics.h"
#include "core/object/context.h"

namespace gpumem::core {
namespace {

// Whether there is managed memory that the CPU and devices use in turns.
bool has_guarded(Context& context) {
  return Devices::of(context).has_exclusive() &&
         context.statistics().read_kind(kinds::managed).live_count != 0;
}

}  // namespace

StreamEnd::StreamEnd(Context& context, backend::Stream& stream, StreamKey key)
    : context_(context), key_(has_guarded(context) ? key : 0) {
  if (key_ == 0) return;
  // Work that is complete needs no mark, which would itself take a moment.
  const auto capturing = stream.is_capturing();
  if (capturing && !*capturing) {
    const auto complete = stream.observe(0);
    if (complete && *complete) return;
  }
  try {
    auto fence = stream.fence();
    if (!fence) return;
    auto mark = (*fence)->mark(stream, true);
    if (!mark) return;  // of a lost device, say
    fence_ = std::move(*fence);
    mark_ = *mark;
  } catch (const std::bad_alloc&) {
    // As in ManagedState::stream_ends(): a stream can always be destroyed.
  }
}

void StreamEnd::finish() noexcept {
  if (key_ == 0) return;
  context_.for_each_object([this](Object& object) {
    if (object.type() != Type::kMemory) return;
    if (ManagedState* const state = static_cast<Region&>(object).managed())
      state->stream_ends(key_, fence_, mark_);
  });
}

}  // namespace gpumem::core
