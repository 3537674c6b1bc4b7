// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies and fills: what they may touch, on which device they run, and waiting for those without a stream.
#pragma once

#include "core/stream.h"

namespace gpumem::core {

struct CopyArguments {
  void* destination = nullptr;
  const void* source = nullptr;
  uint64_t destination_pitch = 0;
  uint64_t source_pitch = 0;
  uint64_t destination_extent = 0;  // bytes from the first to the last one touched
  uint64_t source_extent = 0;
  uint64_t width = 0;
  uint64_t height = 1;
  gpumem_direction direction = GPUMEM_DIRECTION_INFER;
  gpumem_source_order source_order = GPUMEM_SOURCE_ORDER_STREAM;
};

struct FillArguments {
  void* destination = nullptr;
  uint64_t pitch = 0;
  uint64_t extent = 0;
  uint64_t width = 0;
  uint64_t height = 1;
  uint32_t value = 0;
  uint32_t value_size = 1;
};

// With a null stream they return when the work is done.
Result<void> copy(Instance& instance, Stream* stream, const CopyArguments& arguments);
Result<void> fill(Instance& instance, Stream* stream, const FillArguments& arguments);

}  // namespace gpumem::core
