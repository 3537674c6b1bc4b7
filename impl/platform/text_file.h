// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reading the small text files of procfs and sysfs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace gpumem::platform {

// With a buffer of its own: a stream that finds no memory for one reads byte by byte, and the kernel gives of
// a file of sysctl nothing but what is read at once.
class TextFile {
 public:
  explicit TextFile(const char* path) : file_(std::fopen(path, "re")) {
    if (file_ != nullptr) (void)std::setvbuf(file_, room_.data(), _IOFBF, room_.size());
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  ~TextFile() {
    if (file_ != nullptr) (void)std::fclose(file_);
  }

  // The next line, or as much of it as fits; false at the end, or if the file is not open.
  template <size_t N>
  bool next(char (&line)[N]) {
    return file_ != nullptr && std::fgets(line, N, file_) != nullptr;
  }

 private:
  FILE* const file_;
  std::array<char, 4096> room_;
};

// The number behind `key` at the beginning of a line; UINT64_MAX if there is none.
inline uint64_t number_in(const char* path, const char* key) {
  TextFile file(path);
  const size_t length = std::strlen(key);
  char line[256];
  while (file.next(line)) {
    unsigned long long value = 0;
    if (std::strncmp(line, key, length) == 0 && std::sscanf(line + length, "%llu", &value) == 1) return value;
  }
  return UINT64_MAX;
}

}  // namespace gpumem::platform
