// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The calls on managed memory, and what other calls ask about it. Decides here what has no effect; a backend
// carries out the rest.
#pragma once

#include <vector>

#include "contract/managed.h"
#include "core/memory/region.h"
#include "core/memory/span.h"
#include "core/object/context.h"
#include "core/stream/stream.h"

namespace gpumem::core {

Result<void> attach(Stream& stream, void* pointer, uint64_t size, gpumem_attach attach);
// The location is one that the advice takes, or NONE.
Result<Status> advise(Context& context, const void* pointer, uint64_t size, gpumem_advice advice,
                      backend::Location location);

struct RangeArguments {
  void* pointer = nullptr;
  uint64_t size = 0;
  backend::Location location;
};
Result<Status> prefetch(Stream& stream, const RangeArguments& range);
enum class Batch { kPrefetch, kDiscard, kDiscardAndPrefetch };
Result<Status> move_batch(Stream& stream, Batch what, const std::vector<RangeArguments>& ranges);
Result<backend::ManagedFacts> managed_facts(Context& context, const void* pointer, uint64_t size);

Result<void> begin_host_access(Context& context, const void* pointer);
Result<void> end_host_access(Context& context, const void* pointer);
// Whether an access needs no guard, because all devices are concurrent. Writes nothing. Needs a Look.
bool needs_no_guard(Context& context, const void* pointer) noexcept;

// The node of the calling thread, as far as the backend knows it.
int32_t current_node(const Context& context);

// Which side accesses a managed operand of work on a device, and whether it may (MAN-32).
// Where it matters, the operand holds off the CPU's guard from then on.
enum class ManagedSide { kHost, kDevice, kInfer };
Result<void> settle_side(Device& device, const Stream* stream, ManagedSide wanted, uint64_t extent,
                         FoundSpan* found);

}  // namespace gpumem::core
