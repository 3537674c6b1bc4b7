// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The sizes of small blocks: eight steps for each power of two, so that at most an eighth is wasted above the
// granule.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/arithmetic.h"

namespace gpumem::core {

class PoolClasses {
 public:
  static constexpr uint64_t kPage = uint64_t{64} << 10;     // unit of chunks and of larger blocks
  static constexpr uint64_t kSmallMax = uint64_t{1} << 20;  // larger blocks are cut to measure
  static constexpr uint32_t kCountMax = 112;                // with a granule of 16

  static constexpr uint64_t kCacheMost = 64;  // blocks of one class that a thread keeps

  explicit PoolClasses(uint64_t granule) : granule_(granule), shift_(std::countr_zero(granule)) {}

  uint64_t granule() const { return granule_; }
  uint32_t count() const { return index_of(kSmallMax) + 1; }

  static constexpr bool is_small(uint64_t size) { return size - 1 < kSmallMax; }
  // The smallest class for a small size.
  uint32_t index_of(uint64_t size) const {
    const uint64_t units = (size - 1) >> shift_;  // of the last byte
    const uint32_t doubled = static_cast<uint32_t>(std::bit_width(units | 8)) - 4;
    return 8 * doubled + static_cast<uint32_t>(units >> doubled);
  }
  uint64_t size_of(uint32_t index) const {
    if (index < 8) return uint64_t{index + 1} << shift_;
    const uint32_t power = index / 8 + 2;
    return uint64_t{index % 8 + 9} << (power - 3) << shift_;
  }
  // The smallest class whose blocks all have an alignment of at most kPage: each multiple of it has a class
  // whose size is one too.
  uint32_t index_of(uint64_t size, uint64_t alignment) const { return index_of(round_up(size, alignment)); }

  // Bytes of a chunk.
  static uint64_t chunk_size(uint64_t block_size) {
    return round_up(block_size * (block_size > (uint64_t{128} << 10) ? 4 : 8), kPage);
  }
  // The same where memory is lacking: for one block, or as many as a page has room for.
  static uint64_t least_chunk_size(uint64_t block_size) { return round_up(block_size, kPage); }
  // Blocks that a thread keeps at most.
  static uint32_t cache_size(uint64_t block_size) {
    constexpr uint64_t kBytes = uint64_t{512} << 10;
    constexpr uint64_t kLeast = 8;
    return static_cast<uint32_t>(std::clamp(kBytes / block_size, kLeast, kCacheMost));
  }

 private:
  const uint64_t granule_;
  const int shift_;
};

}  // namespace gpumem::core
