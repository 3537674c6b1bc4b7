// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reading the small text files of procfs and sysfs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

namespace gpumem::platform {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

inline File open_text(const char* path) { return {std::fopen(path, "re"), &std::fclose}; }

// The number behind `key` at the beginning of a line; UINT64_MAX if there is none.
inline uint64_t number_in(const char* path, const char* key) {
  const File file = open_text(path);
  if (file == nullptr) return UINT64_MAX;
  uint64_t number = UINT64_MAX;
  char line[256];
  while (number == UINT64_MAX && std::fgets(line, sizeof line, file.get()) != nullptr) {
    const size_t length = std::strlen(key);
    unsigned long long value = 0;
    if (std::strncmp(line, key, length) == 0 && std::sscanf(line + length, "%llu", &value) == 1)
      number = value;
  }
  return number;
}

}  // namespace gpumem::platform
