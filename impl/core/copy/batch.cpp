// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/copy/batch.h"

#include <algorithm>
#include <array>
#include <functional>
#include <tuple>
#include <vector>

namespace gpumem::core {
namespace {

struct Extent {
  const void* object;
  uint64_t begin;
  uint64_t end;
};

Extent range_of(const Box& box) { return {box.object, box.first, box.first + box.extent}; }

bool before(const Extent& left, const Extent& right) {
  if (left.object != right.object) return std::less<>()(left.object, right.object);
  return left.begin < right.begin;
}

bool meet(const Extent& left, const Extent& right) {
  return left.object == right.object && left.begin < right.end && right.begin < left.end;
}

// Looks at whole extents, gaps included: false is certain.
bool may_depend(std::span<const BoxPair> entries) {
  std::vector<Extent> written;
  written.reserve(entries.size());
  for (const BoxPair& entry : entries)
    written.push_back(range_of(entry.written));
  if (!std::is_sorted(written.begin(), written.end(), before)) {
    std::sort(written.begin(), written.end(), before);
  }
  if (std::adjacent_find(written.begin(), written.end(), meet) != written.end()) return true;
  return std::any_of(entries.begin(), entries.end(), [&](const BoxPair& entry) {
    const Extent read = range_of(entry.read);
    const auto next = std::lower_bound(written.begin(), written.end(), read, before);
    if (next != written.end() && meet(*next, read)) return true;
    return next != written.begin() && meet(*(next - 1), read);
  });
}

// Rows and columns of an object whose bytes are laid out as a plane.
struct BoxRectangle {
  uint64_t top;
  uint64_t bottom;
  uint64_t left;
  uint64_t right;
  bool written;
};

// The boxes of one object on a plane of a certain pitch.
class Plane {
 public:
  explicit Plane(uint64_t pitch) : pitch_(pitch) {}

  void add(const Box& box, bool written) {
    if (box.extent == box.width * box.height * box.depth) return add_range(box.first, box.extent, written);
    for (uint64_t slice = 0; slice < box.depth; ++slice) {
      const uint64_t first = box.first + slice * box.slice_pitch;
      if (box.height == 1 || box.pitch == box.width) {
        add_range(first, box.width * box.height, written);
      } else if (box.pitch == pitch_) {
        add_rows(first, box.width, box.height, written);
      } else {
        for (uint64_t row = 0; row < box.height; ++row)
          add_range(first + row * box.pitch, box.width, written);
      }
    }
  }

  // Whether a written rectangle shares a byte with another one. A line sweeps from top to bottom and knows
  // the columns of all rectangles that it crosses.
  bool any_written_meets() const {
    std::vector<uint64_t> columns;
    std::vector<const BoxRectangle*> starting;
    for (const BoxRectangle& each : rectangles_) {
      columns.push_back(each.left);
      columns.push_back(each.right);
      starting.push_back(&each);
    }
    std::sort(columns.begin(), columns.end());
    columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    std::vector<const BoxRectangle*> ending = starting;
    std::sort(starting.begin(), starting.end(), [](auto* one, auto* two) { return one->top < two->top; });
    std::sort(ending.begin(), ending.end(), [](auto* one, auto* two) { return one->bottom < two->bottom; });
    std::array<Crossed, 2> crossed{Crossed(columns), Crossed(columns)};  // read, written
    auto ended = ending.begin();
    for (const BoxRectangle* each : starting) {
      for (; (*ended)->bottom <= each->top; ++ended)
        crossed.at((*ended)->written).change(**ended, -1);
      if (crossed[1].meets(*each) || (each->written && crossed[0].meets(*each))) return true;
      crossed.at(each->written).change(*each, 1);
    }
    return false;
  }

 private:
  // A number for each column, with their sums: a Fenwick tree.
  class Sums {
   public:
    explicit Sums(size_t size) : sums_(size + 1) {}
    void add(size_t at, int64_t amount) {
      for (++at; at < sums_.size(); at += at & (~at + 1))
        sums_[at] += amount;
    }
    int64_t before(size_t at) const {
      int64_t sum = 0;
      for (; at > 0; at -= at & (~at + 1))
        sum += sums_[at];
      return sum;
    }

   private:
    std::vector<int64_t> sums_;
  };

  class Crossed {
   public:
    explicit Crossed(const std::vector<uint64_t>& columns)
        : columns_(columns), lefts_(columns.size()), rights_(columns.size()) {}
    void change(const BoxRectangle& rectangle, int64_t amount) {
      lefts_.add(index(rectangle.left), amount);
      rights_.add(index(rectangle.right), amount);
    }
    // All that begin before its right end, less those that end before its left one.
    bool meets(const BoxRectangle& rectangle) const {
      return lefts_.before(index(rectangle.right)) > rights_.before(index(rectangle.left) + 1);
    }

   private:
    size_t index(uint64_t column) const {
      const auto found = std::lower_bound(columns_.begin(), columns_.end(), column);
      return static_cast<size_t>(found - columns_.begin());
    }
    const std::vector<uint64_t>& columns_;
    Sums lefts_;
    Sums rights_;
  };

  void add_rows(uint64_t first, uint64_t width, uint64_t height, bool written) {
    const uint64_t row = first / pitch_;
    const uint64_t column = first % pitch_;
    const uint64_t fits = std::min(width, pitch_ - column);
    rectangles_.push_back({row, row + height, column, column + fits, written});
    if (fits < width) rectangles_.push_back({row + 1, row + 1 + height, 0, width - fits, written});
  }

  void add_range(uint64_t first, uint64_t size, bool written) {
    const uint64_t head = std::min(size, (pitch_ - first % pitch_) % pitch_);
    const uint64_t whole = (size - head) / pitch_;
    const uint64_t tail = size - head - whole * pitch_;
    if (head != 0) add_rows(first, head, 1, written);
    if (whole != 0) add_rows(first + head, pitch_, whole, written);
    if (tail != 0) add_rows(first + size - tail, tail, 1, written);
  }

  const uint64_t pitch_;
  std::vector<BoxRectangle> rectangles_;
};

struct BoxSide {
  const Box* box;
  bool written;
};

// The same exactly.
bool do_depend(std::span<const BoxPair> entries) {
  std::vector<BoxSide> sides;
  sides.reserve(2 * entries.size());
  for (const BoxPair& entry : entries) {
    sides.push_back({&entry.written, true});
    sides.push_back({&entry.read, false});
  }
  const auto by_object = [](const BoxSide& one, const BoxSide& two) {
    return std::less<>()(one.box->object, two.box->object);
  };
  std::sort(sides.begin(), sides.end(), by_object);
  for (auto begin = sides.begin(); begin != sides.end();) {
    const auto end = std::upper_bound(begin, sides.end(), *begin, by_object);
    // The pitch by which most rows lie.
    constexpr uint64_t kOneRow = uint64_t{1} << 63;
    uint64_t pitch = kOneRow;
    uint64_t most = 1;
    for (auto side = begin; side != end; ++side) {
      if (side->box->height <= most || side->box->pitch == side->box->width) continue;
      most = side->box->height;
      pitch = side->box->pitch;
    }
    Plane plane(pitch);
    for (; begin != end; ++begin)
      plane.add(*begin->box, begin->written);
    if (plane.any_written_meets()) return true;
  }
  return false;
}

}  // namespace

std::optional<Dependence> find_dependence(std::span<const BoxPair> entries) {
  if (entries.size() < 2 || !may_depend(entries) || !do_depend(entries)) return std::nullopt;
  // The shortest prefix of the batch with a dependence ends with the later entry.
  size_t without = 1;
  size_t with = entries.size();
  while (with - without > 1) {
    const size_t middle = without + (with - without) / 2;
    (do_depend(entries.first(middle)) ? with : without) = middle;
  }
  Dependence found{with - 1, 0};
  const auto is_with = [&](size_t earlier) {
    const std::array pair{entries[earlier], entries[found.later]};
    return may_depend(pair) && do_depend(pair);
  };
  while (found.earlier + 1 < found.later && !is_with(found.earlier))
    ++found.earlier;
  return found;
}

}  // namespace gpumem::core
