// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Whether the entries of a batch of copies, which have no order among themselves, depend on each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace gpumem::core {

// The bytes on one side of a copy: slices of rows. Neither rows nor slices overlap.
struct Box {
  const void* object = nullptr;  // boxes in different objects share no byte
  uint64_t first = 0;            // position in the object
  uint64_t pitch = 0;
  uint64_t slice_pitch = 0;
  uint64_t width = 0;
  uint64_t height = 1;
  uint64_t depth = 1;
  uint64_t extent = 0;  // from the first byte to the last one
};

// The two boxes of an entry, which share no byte.
struct BoxPair {
  Box written;
  Box read;
};

struct Dependence {
  size_t later;
  size_t earlier;
};

// The first entry that depends on an earlier one, and the first such one: one of the two writes bytes that
// the other reads or writes. Sorts, so n entries cost n log n. Boxes that lie in each other's gaps are
// compared as rectangles; only where their pitches differ does each row count.
std::optional<Dependence> find_dependence(std::span<const BoxPair> entries);

}  // namespace gpumem::core
