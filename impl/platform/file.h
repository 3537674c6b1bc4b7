// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Files without a name, which are gone with the process.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace gpumem::platform {

// LIMIT_EXCEEDED if a file of that size is beyond RLIMIT_FSIZE: then the kernel sends SIGXFSZ, which ends the
// process. `what` names the file in the message.
Result<void> check_file_size(uint64_t size, const char* what);

// In a directory; close-on-exec.
Result<int> unnamed_file(const std::string& directory);
// Gives the file room on the disk for so many bytes, whatever it had before. LIMIT_EXCEEDED if there is none.
Result<void> set_file_size(int file_descriptor, uint64_t size);
// Both transfer everything or fail. Reading behind the end is CONTENT_LOST.
Result<void> write_file(int file_descriptor, uint64_t offset, const void* bytes, uint64_t size);
Result<void> read_file(int file_descriptor, uint64_t offset, void* bytes, uint64_t size);

}  // namespace gpumem::platform
