// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What libc10_cuda.so exports of PyTorch's exceptions, as far as the allocator uses it.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#define C10_API __attribute__((visibility("default")))

namespace c10 {

struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

class C10_API Error : public std::exception {
 public:
  Error(SourceLocation source_location, std::string msg);
  const char* what() const noexcept override;
  virtual const char* what_without_backtrace() const noexcept;

 private:
  std::string msg_;
  std::string what_;
};

class C10_API OutOfMemoryError : public Error {
  using Error::Error;
};

C10_API void throw_out_of_memory();

}  // namespace c10
