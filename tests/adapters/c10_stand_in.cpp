// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "c10_stand_in.h"

#include <utility>

namespace c10 {

Error::Error(SourceLocation source_location, std::string msg)
    : msg_(std::move(msg)), what_(std::string(source_location.function) + ": " + msg_) {}

const char* Error::what() const noexcept { return what_.c_str(); }
const char* Error::what_without_backtrace() const noexcept { return msg_.c_str(); }

// As PyTorch's own allocator does it, so that the library has what such an exception needs.
void throw_out_of_memory() { throw OutOfMemoryError({"throw_out_of_memory", "", 0}, "CUDA out of memory."); }

}  // namespace c10
