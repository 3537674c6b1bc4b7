// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The fingerprint under which gpumem share publishes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "file.h"

namespace gpumem::cli {

// What a fingerprint holds: XXH3 of the bytes, how many they are (memory has whole pages), and who wrote it.
struct Fingerprint {
  static constexpr std::array<uint8_t, 8> kMark = {'g', 'p', 'u', 'm', 'e', 'm', ' ', '1'};
  static constexpr size_t kSizeAt = 16;
  static constexpr size_t kMarkAt = 24;

  Hash::Bytes hash{};
  uint64_t size = 0;

  std::string text() const { return hex(hash.data(), hash.size()); }

  void write(uint8_t (&bytes)[32]) const {
    std::copy(hash.begin(), hash.end(), bytes);
    for (size_t i = 0; i < sizeof size; ++i)
      bytes[kSizeAt + i] = static_cast<uint8_t>(size >> (8 * i));
    std::copy(kMark.begin(), kMark.end(), bytes + kMarkAt);
  }

  // None if another program has written it.
  static std::optional<Fingerprint> read(const uint8_t (&bytes)[32]) {
    if (!std::equal(kMark.begin(), kMark.end(), bytes + kMarkAt)) return std::nullopt;
    Fingerprint result;
    std::copy_n(bytes, result.hash.size(), result.hash.begin());
    for (size_t i = 0; i < sizeof size; ++i)
      result.size |= uint64_t{bytes[kSizeAt + i]} << (8 * i);
    return result;
  }
};

}  // namespace gpumem::cli
