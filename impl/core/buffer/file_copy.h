// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies between files of the program's and memory of any kind.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/buffer/sleep.h"

namespace gpumem::core {

struct FileCopyRequest {
  int file_descriptor = -1;
  bool to_memory = true;
  uint64_t offset = 0;  // in the file
  void* pointer = nullptr;
  uint64_t size = 0;  // not 0
  bool direct = false;
  Progress progress;
};

struct FileCopyAnswer {
  bool begun = false;   // otherwise nothing was done
  uint64_t copied = 0;  // from the start on, without a gap
  uint64_t direct = 0;  // of these, bytes that bypassed the page cache
};

// Returns when all is done. The result is valid for a failed call too.
Result<void> copy_file(Context& context, const FileCopyRequest& request, FileCopyAnswer* answer);

}  // namespace gpumem::core
