// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How rectangles are cut at the borders of registrations. Needs no driver.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "backends/cuda/parts.h"

namespace gpumem::cuda {

static bool operator==(const Part& a, const Part& b) {
  return a.row == b.row && a.column == b.column && a.width == b.width && a.rows == b.rows;
}

static std::ostream& operator<<(std::ostream& out, const Part& part) {
  return out << "row " << part.row << " column " << part.column << " width " << part.width << " rows "
             << part.rows;
}

namespace {

// Memory that is registered in pieces of one size; it never asks its device for anything.
class Pieces final : public Memory {
 public:
  explicit Pieces(uint64_t piece) : Memory(*reinterpret_cast<Device*>(&nothing_)), piece_(piece) {}
  uint64_t contiguous(uint64_t offset) const override { return piece_ - offset % piece_; }
  Result<void> release() override { return {}; }

 private:
  alignas(16) char nothing_[16] = {};
  const uint64_t piece_;
};

std::vector<Part> parts(std::initializer_list<Side> sides, uint64_t width, uint64_t height) {
  std::vector<Part> result;
  const std::vector<Side> all(sides);
  auto done = for_each_part(std::span<const Side>(all), width, height, [&](const Part& part) {
    result.push_back(part);
    return Result<void>();
  });
  EXPECT_TRUE(done.ok());
  return result;
}

using Parts = std::vector<Part>;

TEST(CudaParts, OneCallWhereNothingIsInTheWay) {
  const Side plain{nullptr, 0, 100};
  EXPECT_EQ(parts({plain, plain}, 1000, 1), (Parts{{0, 0, 1000, 1}}));
  EXPECT_EQ(parts({plain, plain}, 100, 7), (Parts{{0, 0, 100, 7}}));
  const Pieces pieces(4096);
  EXPECT_EQ(parts({{&pieces, 96, 0}, plain}, 4000, 1), (Parts{{0, 0, 4000, 1}}));
}

TEST(CudaParts, ARowIsCutAtEveryBorderOfBothSides) {
  const Pieces large(1000);
  const Pieces small(300);
  EXPECT_EQ(parts({{&large, 900, 0}, {&small, 0, 0}}, 800, 1),
            (Parts{{0, 0, 100, 1}, {0, 100, 200, 1}, {0, 300, 300, 1}, {0, 600, 200, 1}}));
}

TEST(CudaParts, RowsGoTogetherUpToTheBorder) {
  // Rows of 60 bytes begin at 0, 100, 200, ...; the piece ends at 250, within the third.
  const Pieces pieces(250);
  const Side plain{nullptr, 0, 60};
  EXPECT_EQ(parts({{&pieces, 0, 100}, plain}, 60, 5),
            (Parts{{0, 0, 60, 2}, {2, 0, 50, 1}, {2, 50, 10, 1}, {3, 0, 60, 2}}));
}

TEST(CudaParts, ARowThatEndsAtTheBorderIsWhole) {
  const Pieces pieces(260);
  const Side plain{nullptr, 0, 60};
  EXPECT_EQ(parts({{&pieces, 0, 100}, plain}, 60, 4), (Parts{{0, 0, 60, 3}, {3, 0, 60, 1}}));
}

TEST(CudaParts, StopsAtTheFirstFailure) {
  const Pieces pieces(10);
  const std::array sides = {Side{&pieces, 0, 0}};
  int asked = 0;
  auto done = for_each_part(sides, 100, 1, [&](const Part&) -> Result<void> {
    if (++asked == 3) return make_error(GPUMEM_ERROR_BUSY, "no");
    return {};
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().status, GPUMEM_ERROR_BUSY);
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace gpumem::cuda
