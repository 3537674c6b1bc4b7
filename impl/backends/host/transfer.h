// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Finds the bytes of operands, and moves them when an operation runs.
#pragma once

#include <memory>

#include "backends/host/allocation.h"
#include "backends/host/shared.h"

namespace gpumem::host {

// Address of an operand's bytes, and the allocation that keeps them alive.
struct Bytes {
  std::byte* first = nullptr;
  std::shared_ptr<Allocation> allocation;  // null for pageable memory

  // Whether the bytes are the caller's own memory, which can be unmapped at any time.
  bool lent() const { return allocation == nullptr || allocation->registered; }
};

// Rows of bytes that are `pitch` apart.
struct Rectangle {
  Bytes bytes;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t height = 1;
};

enum class Use { kRead, kWrite };

// Finds the bytes of an operand. Registered memory must still be mapped: INVALID_STATE (PIN-19).
Result<Rectangle> resolve(Shared& shared, const backend::Span& span, uint64_t pitch, uint64_t width,
                          uint64_t height);

// Checks that the caller's own memory is still mapped: INVALID_STATE if not. Other memory cannot disappear.
Result<void> require_reachable(const Rectangle& rectangle, Use use);

// Both check that again.
Result<void> copy(const Rectangle& destination, const Rectangle& source);
Result<void> fill(const Rectangle& destination, uint32_t value, uint32_t value_size);

}  // namespace gpumem::host
