// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The planner of copies and fills. It finds and checks the bytes, chooses the device, splits at borders,
// stages and routes; a backend enqueues the segments that come out.
#pragma once

#include <vector>

#include "core/memory/memory.h"
#include "core/memory/span.h"
#include "core/stream/stream.h"

namespace gpumem::core {

class BorrowedStreams;

// One side of a copy: an address, or a memory of the instance and an offset.
struct CopySide {
  CopySide() {}  // a defaulted one would clear the whole first, by a loop
  void* address = nullptr;
  Memory* memory = nullptr;  // the caller holds it
  uint64_t offset = 0;
  uint64_t pitch = 0;
  uint64_t slice_pitch = 0;  // meaningful if depth > 1
  uint64_t extent = 0;       // bytes from the first to the last one touched
};

struct CopyArguments {
  CopyArguments() {}  // as above
  CopySide destination;
  CopySide source;
  uint64_t width = 0;
  uint64_t height = 1;
  uint64_t depth = 1;
  gpumem_direction direction = GPUMEM_DIRECTION_INFER;
  gpumem_source_order source_order = GPUMEM_SOURCE_ORDER_STREAM;
  bool admitted = false;  // to closed memory: a buffer's own copy, or a part of a call that began before
};

// A run of bytes.
inline CopyArguments copy_of_bytes(void* destination, void* source, uint64_t bytes, bool admitted = false) {
  CopyArguments arguments;
  arguments.destination.address = destination;
  arguments.source.address = source;
  arguments.destination.pitch = arguments.source.pitch = bytes;
  arguments.destination.extent = arguments.source.extent = bytes;
  arguments.width = bytes;
  arguments.admitted = admitted;
  return arguments;
}

struct FillArguments {
  void* destination = nullptr;
  uint64_t pitch = 0;
  uint64_t extent = 0;
  uint64_t width = 0;
  uint64_t height = 1;
  uint32_t value = 0;
  uint32_t value_size = 1;
  bool admitted = false;  // as above
};

// With a null stream they return when the work is done.
Result<void> copy(Context& context, Stream* stream, const CopyArguments& arguments);
// Enqueues in one of the given streams. The operands must live until it is waited for.
Result<void> copy_later(Context& context, BorrowedStreams& streams, const CopyArguments& arguments);
// Checks all before it enqueues any. `index` is that of the entry in work: on failure, of the one that
// failed, and the number of entries if the failure belongs to none.
Result<void> copy_all(Context& context, Stream* stream, const std::vector<CopyArguments>& entries,
                      uint64_t* index);

// The memory of a copy between it and a file, and what keeps it.
struct FileMemory {
  FoundSpan found;
  Device* device = nullptr;  // that copies if the CPU cannot
};
// As for a copy between it and ordinary memory. `file` says what is wrong with the file, and `extent` with
// the place in it.
Result<void> check_file_memory(Context& context, void* first, uint64_t size, bool to_memory,
                               const Result<void>& file, const Result<void>& extent, FileMemory* out);
// Enqueues a copy between page-locked memory of the library and such memory, split at its borders.
Result<void> enqueue_file_piece(backend::Stream& stream, const backend::CopySegment& segment);

Result<void> fill(Context& context, Stream* stream, const FillArguments& arguments);

}  // namespace gpumem::core
