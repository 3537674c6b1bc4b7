// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Cuts the rectangle of a copy or fill so that no driver call crosses a registration (PIN-15).
#pragma once

#include <algorithm>
#include <span>

#include "backends/cuda/memory.h"

namespace gpumem::cuda {

// Where the rows of one operand lie.
struct Side {
  const Memory* memory;  // null if it was not made here
  uint64_t offset;       // of the first byte in it
  uint64_t pitch;

  uint64_t contiguous(uint64_t at) const {
    return memory == nullptr ? UINT64_MAX : memory->contiguous(offset + at);
  }
};

inline Side side_of(const backend::Operand& operand, uint64_t pitch) {
  return {static_cast<const Memory*>(operand.memory.get()), operand.offset, pitch};
}

// `rows` rows of `width` bytes, from (`row`, `column`) of the rectangle on.
struct Part {
  uint64_t row;
  uint64_t column;
  uint64_t width;
  uint64_t rows;

  uint64_t offset(uint64_t pitch) const { return row * pitch + column; }
};

// Hands out as many whole rows at once as fit, and the rows that lie across a border in parts of their own.
template <class Enqueue>
Result<void> for_each_part(std::span<const Side> sides, uint64_t width, uint64_t height, Enqueue enqueue) {
  for (uint64_t row = 0; row < height;) {
    uint64_t rows = height - row;
    for (const Side& side : sides) {
      const uint64_t room = side.contiguous(row * side.pitch);
      if (room < width) {
        rows = 0;
      } else if (rows > 1) {
        rows = std::min(rows, (room - width) / side.pitch + 1);
      }
    }
    if (rows > 0) {
      GPUMEM_TRY(enqueue(Part{row, 0, width, rows}));
      row += rows;
      continue;
    }
    for (uint64_t column = 0; column < width;) {
      uint64_t bytes = width - column;
      for (const Side& side : sides)
        bytes = std::min(bytes, side.contiguous(row * side.pitch + column));
      GPUMEM_TRY(enqueue(Part{row, column, bytes, 1}));
      column += bytes;
    }
    ++row;
  }
  return {};
}

}  // namespace gpumem::cuda
