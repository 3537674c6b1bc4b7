// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The bytes that a copy, fill or value operation names, found and checked.
#pragma once

#include "contract/memory.h"
#include "core/kind.h"
#include "core/pointer.h"

namespace gpumem::core {

enum class Use { kReads, kWrites };

// Bytes of one object, with what keeps them while work on them is enqueued.
struct FoundSpan {
  backend::Span span;
  const KindTraits* kind = &kinds::pageable;
  Ref<Region> region;           // of this instance, or empty
  int32_t device_ordinal = -1;  // of the memory; -1 for ordinary memory
  bool read_only = false;       // known of ordinary memory only if it was to be written
};

// What find_span() is asked for.
struct SpanRequest {
  const void* address = nullptr;
  Region* region = nullptr;  // instead of an address, and the caller holds it
  uint64_t offset = 0;       // in `region`
  uint64_t size = 0;
  const char* what = "";  // in messages
  Use use = Use::kReads;
  bool passing = false;  // the work ends before the call returns
};

// NOT_FOUND if nothing is there, INVALID_ARGUMENT if the bytes leave their object (UVA-8): a matter of bounds
// for the order of failures. `out` is written on success.
Result<void> find_span(Instance& instance, const SpanRequest& request, FoundSpan* out);

}  // namespace gpumem::core
