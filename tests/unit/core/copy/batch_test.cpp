// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which entries of a batch depend on each other, compared with a look at every byte.
#include "core/copy/batch.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace gpumem::core {
namespace {

const int kObjects[3] = {};

template <class F>
void for_each_byte(const Box& box, F function) {
  for (uint64_t slice = 0; slice < box.depth; ++slice) {
    for (uint64_t row = 0; row < box.height; ++row) {
      for (uint64_t i = 0; i < box.width; ++i)
        function(std::pair(box.object, box.first + slice * box.slice_pitch + row * box.pitch + i));
    }
  }
}

using Byte = std::pair<const void*, uint64_t>;

bool share(const Box& one, const Box& other) {
  std::map<Byte, int> bytes;
  for_each_byte(one, [&](const Byte& byte) { bytes[byte] = 1; });
  bool found = false;
  for_each_byte(other, [&](const Byte& byte) { found = found || bytes.contains(byte); });
  return found;
}

std::optional<Dependence> look(const std::vector<BoxPair>& entries) {
  for (size_t later = 1; later < entries.size(); ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const BoxPair& one = entries[earlier];
      const BoxPair& two = entries[later];
      if (share(one.written, two.written) || share(one.written, two.read) || share(one.read, two.written))
        return Dependence{later, earlier};
    }
  }
  return std::nullopt;
}

class Boxes {
 public:
  explicit Boxes(uint32_t seed) : random_(seed) {}
  uint64_t number(uint64_t below) { return random_() % below; }

  // `spread` is how far apart boxes lie.
  Box box(const Box& shape, uint64_t spread) {
    Box box = shape;
    box.object = &kObjects[number(2)];
    box.first = number(spread);
    box.pitch = box.width + pitches_[number(4)];
    const uint64_t slice = (box.height - 1) * box.pitch + box.width;
    box.slice_pitch = number(2) == 0 ? box.height * box.pitch : slice + number(6);
    box.extent = (box.depth - 1) * box.slice_pitch + slice;
    return box;
  }
  BoxPair pair(uint64_t spread) {
    Box shape;
    shape.width = 1 + number(4);
    shape.height = 1 + number(4);
    shape.depth = 1 + number(3) / 2;
    BoxPair entry{box(shape, spread), box(shape, spread)};
    while (share(entry.written, entry.read))
      entry.read = box(shape, spread);
    return entry;
  }

 private:
  std::mt19937 random_;
  const uint64_t pitches_[4] = {0, 5, 5, 9};
};

TEST(CoreBatch, agrees_with_a_look_at_every_byte) {
  size_t dependent = 0;
  constexpr uint32_t kRounds = 3000;
  for (uint32_t seed = 1; seed <= kRounds; ++seed) {
    Boxes boxes(seed);
    const uint64_t spread = 20 + boxes.number(400);
    std::vector<BoxPair> entries;
    for (uint64_t count = 2 + boxes.number(5); count > 0; --count)
      entries.push_back(boxes.pair(spread));
    const auto expected = look(entries);
    const auto found = find_dependence(entries);
    ASSERT_EQ(found.has_value(), expected.has_value()) << "seed " << seed;
    if (!found) continue;
    ++dependent;
    ASSERT_EQ(found->later, expected->later) << "seed " << seed;
    ASSERT_EQ(found->earlier, expected->earlier) << "seed " << seed;
  }
  // Both answers were asked for.
  EXPECT_GT(dependent, kRounds / 5);
  EXPECT_LT(dependent, kRounds - kRounds / 5);
}

TEST(CoreBatch, ranges_at_the_ends_of_the_address_space) {
  const auto range = [](uint64_t first, uint64_t size) {
    Box box;
    box.object = &kObjects[0];
    box.first = first;
    box.width = box.pitch = box.extent = size;
    return box;
  };
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const std::vector<BoxPair> apart = {{range(kHalf - 8, 16), range(0, 16)},
                                      {range(kHalf + 8, 16), range(UINT64_MAX - 16, 16)}};
  EXPECT_FALSE(find_dependence(apart));
  const std::vector<BoxPair> meeting = {{range(kHalf - 8, 16), range(0, 16)},
                                        {range(16, 16), range(kHalf + 7, 16)}};
  EXPECT_TRUE(find_dependence(meeting));
}

}  // namespace
}  // namespace gpumem::core
