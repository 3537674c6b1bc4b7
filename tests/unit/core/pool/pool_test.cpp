// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where blocks of a pool lie: classes, the map of blocks, and places against a model; and the marks behind
// their frees.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "core/memory/pool_blocks.h"
#include "core/memory/pool_classes.h"
#include "core/pool/cache.h"
#include "core/pool/order.h"
#include "core/pool/space.h"
#include "sanitizer.h"
#include "stub_stream.h"

namespace gpumem::core {
namespace {

// Its marks pass at once, unless its work is held.
class MarkedStream final : public test::StubStream {
 public:
  class Marks final : public backend::Fence {
   public:
    Marks() : Fence(&passed_, lost_) {}
    bool lacks_memory = false;
    bool held = false;
    void pass() { passed_ = last_; }

   private:
    Result<uint64_t> enqueue(backend::Stream&) override {
      if (std::exchange(lacks_memory, false)) throw std::bad_alloc();
      ++last_;
      if (!held) pass();
      return last_;
    }
    uint64_t last_ = 0;
    std::atomic<uint64_t> passed_{0};
    std::atomic<bool> lost_{false};
  };
  const std::shared_ptr<Marks> marks = std::make_shared<Marks>();

  Result<std::shared_ptr<backend::Fence>> fence() override { return {marks}; }
};

TEST(PoolOrder, a_mark_that_lacks_memory_leaves_no_trace) {
  PoolOrder order(1, 1);
  PoolStream to;
  const auto stream = std::make_shared<MarkedStream>();
  to.key = 1;
  to.stream = stream;
  order.set_stream(to);
  order.note_frees(1);
  ASSERT_TRUE(order.mark(false));
  EXPECT_TRUE(order.poll());
  EXPECT_EQ(order.passed(), 1U);
  order.note_frees(1);
  stream->marks->lacks_memory = true;
  EXPECT_THROW((void)order.mark(false), std::bad_alloc);
  EXPECT_FALSE(order.poll());
  EXPECT_EQ(order.passed(), 1U);
  EXPECT_TRUE(order.mark(false));
  EXPECT_TRUE(order.poll());
  EXPECT_EQ(order.passed(), 2U);
  EXPECT_TRUE(order.idle());
}

// Whose stream holds its work.
class PoolOrders : public testing::Test {
 protected:
  PoolOrders() {
    stream_->marks->held = true;
    PoolStream to;
    to.key = 1;
    to.stream = stream_;
    order_.set_stream(to);
  }
  void push(uint64_t address) {
    const PoolFree block{address, nullptr};
    order_.push(kClass, &block, 1);
  }
  // The block that another stream gets; 0 if none.
  uint64_t pop_passed() {
    order_.poll();
    PoolFree block;
    return order_.pop_passed(kClass, &block, 1) == 1 ? block.address : 0;
  }
  void pass() { stream_->marks->pass(); }

  static constexpr uint32_t kClass = 3;
  const std::shared_ptr<MarkedStream> stream_ = std::make_shared<MarkedStream>();
  PoolOrder order_{1, 1};
};

TEST_F(PoolOrders, a_mark_covers_the_frees_before_it_and_no_other) {
  push(16);
  ASSERT_TRUE(order_.mark(false));
  push(32);
  EXPECT_EQ(pop_passed(), 0U);
  pass();
  EXPECT_EQ(pop_passed(), 16U);
  EXPECT_EQ(pop_passed(), 0U) << "freed behind the mark";
  EXPECT_FALSE(order_.idle());
  ASSERT_TRUE(order_.mark(false));
  EXPECT_FALSE(order_.mark(false)) << "there is nothing to mark";
  EXPECT_EQ(pop_passed(), 0U);
  pass();
  EXPECT_EQ(pop_passed(), 32U);
  EXPECT_TRUE(order_.idle());
}

TEST_F(PoolOrders, all_that_has_passed_is_taken_and_no_more) {
  push(16);
  push(32);
  ASSERT_TRUE(order_.mark(false));
  push(48);
  pass();
  order_.poll();
  std::vector<uint64_t> taken;
  order_.take_passed([&](const PoolFree& block) { taken.push_back(block.address); });
  EXPECT_EQ(taken, (std::vector<uint64_t>{16, 32}));
  EXPECT_EQ(order_.count(kClass), 1U);
}

TEST_F(PoolOrders, room_for_more_hides_no_block) {
  push(16);
  ASSERT_TRUE(order_.mark(false));
  order_.reserve(kClass, 1);
  EXPECT_TRUE(order_.has(kClass));
  EXPECT_FALSE(order_.empty());
  EXPECT_EQ(order_.count(kClass), 1U);
  PoolFree block;
  EXPECT_EQ(order_.pop(kClass, &block, 1), 1U);
  EXPECT_FALSE(order_.has(kClass));
  EXPECT_TRUE(order_.empty());
}

TEST_F(PoolOrders, what_is_freed_once_all_has_passed_waits_anew) {
  push(16);
  order_.pass_all();
  EXPECT_TRUE(order_.idle());
  EXPECT_EQ(pop_passed(), 16U);
  push(32);
  EXPECT_EQ(pop_passed(), 0U);
}

TEST_F(PoolOrders, a_free_after_the_end_waits_for_the_last_mark) {
  push(16);
  ASSERT_TRUE(order_.mark(true, true));
  order_.drop_stream();
  push(32);
  EXPECT_EQ(pop_passed(), 0U);
  pass();
  EXPECT_NE(pop_passed(), 0U);
  EXPECT_NE(pop_passed(), 0U) << "nothing follows that could be marked";
  EXPECT_TRUE(order_.idle());
}

TEST_F(PoolOrders, a_stream_that_ends_without_a_mark_passes_nothing) {
  push(16);
  order_.drop_stream();
  EXPECT_FALSE(order_.has_passed(order_.epoch()));
  push(32);
  EXPECT_EQ(pop_passed(), 0U);
  EXPECT_FALSE(order_.idle());
  EXPECT_FALSE(order_.under_way()) << "nobody can mark it";
  order_.pass_all();
  EXPECT_NE(pop_passed(), 0U);
  EXPECT_NE(pop_passed(), 0U);
}

TEST_F(PoolOrders, a_native_stream_is_marked_in_its_own_calls_alone) {
  PoolStream native;
  native.key = 1;
  native.stream = stream_;
  native.native = true;
  order_.set_stream(native);
  push(16);
  EXPECT_FALSE(order_.mark(false));
  EXPECT_FALSE(order_.under_way());
  EXPECT_TRUE(order_.mark(true));
  EXPECT_TRUE(order_.under_way());
}

// What a thread keeps of larger blocks.
TEST(PoolShelf, has_room_for_so_many_and_so_many_bytes) {
  constexpr uint64_t kSize = PoolShelf::kLargeSize;
  PoolShelf shelf;
  for (uint64_t i = 0; i < PoolShelf::kLargeBytes / kSize; ++i) {
    ASSERT_TRUE(shelf.has_room_for(kSize)) << i;
    shelf.push_large({i, kSize, nullptr});
  }
  EXPECT_FALSE(shelf.has_room_for(1));
  EXPECT_EQ(shelf.pop_large(1).address, 1U);
  EXPECT_TRUE(shelf.has_room_for(kSize));
  EXPECT_FALSE(shelf.has_room_for(kSize + 1));
  EXPECT_EQ(shelf.large[1].address, 2U) << "the others stay in their order";
  while (shelf.large_count != 0)
    (void)shelf.pop_large(0);
  EXPECT_EQ(shelf.large_bytes, 0U);
  for (uint32_t i = 0; i < PoolShelf::kLargeMost; ++i) {
    ASSERT_TRUE(shelf.has_room_for(1)) << i;
    shelf.push_large({i, 1, nullptr});
  }
  EXPECT_FALSE(shelf.has_room_for(1));
}

// So that threads keep blocks however many pools a process has made.
TEST(PoolSeats, a_seat_is_taken_again) {
  class Nobody final : public PoolCacheOwner {
    void end_cache(PoolCache*) noexcept override {}
  } nobody;
  std::vector<uint32_t> seats;
  const uint64_t number = UINT64_MAX;  // of no pool
  while (true) {
    const uint32_t seat = pool_seats::take(nobody, number);
    if (seat == PoolCache::kSeats) break;
    ASSERT_LE(seats.size(), size_t{PoolCache::kSeats});
    seats.push_back(seat);
  }
  ASSERT_FALSE(seats.empty());
  pool_seats::leave(seats[0]);
  EXPECT_EQ(pool_seats::take(nobody, number), seats[0]);
  for (const uint32_t seat : seats)
    pool_seats::leave(seat);
}

// A thread keeps blocks for one stream in each place.
TEST(PoolCache, streams_spread_over_all_places) {
  const auto places_of = [](uint64_t first, uint64_t step, uint64_t count) {
    std::array<uint64_t, PoolCache::kShelves> places{};
    for (uint64_t i = 0; i < count; ++i)
      ++places.at(PoolCache::place_of(first + i * step));
    return places;
  };
  EXPECT_EQ(PoolCache::place_of(PoolStream::kNone), 0U);
  // Ids of streams are numbers in a row.
  for (const uint64_t first : {UINT64_C(1), UINT64_C(13), (UINT64_C(1) << 63) + 1}) {
    const auto places = places_of(first, 1, 8);
    EXPECT_EQ(places[0], 0U);
    EXPECT_LE(*std::max_element(places.begin(), places.end()), 2U) << first;
  }
  // Driver 580 gives handles that lie 352 bytes apart, mostly.
  for (const uint64_t step : std::array<uint64_t, 8>{8, 16, 64, 96, 256, 352, 1024, 4096}) {
    const auto places = places_of(PoolStream::kByHandle | 0x55501e6ebbf0, step, 256);
    EXPECT_EQ(places[0], 0U);
    for (uint32_t place = 1; place < PoolCache::kShelves; ++place) {
      EXPECT_GE(places.at(place), 16U) << step;
      EXPECT_LE(places.at(place), 48U) << step;
    }
  }
}

TEST(PoolClasses, waste_at_most_an_eighth) {
  for (const uint64_t granule : {UINT64_C(16), UINT64_C(256)}) {
    const PoolClasses classes(granule);
    ASSERT_LE(classes.count(), PoolClasses::kCountMax);
    EXPECT_EQ(classes.size_of(classes.count() - 1), PoolClasses::kSmallMax);
    for (uint32_t i = 1; i < classes.count(); ++i)
      ASSERT_LT(classes.size_of(i - 1), classes.size_of(i));
    for (uint64_t size = 1; size <= PoolClasses::kSmallMax; size += size < 5000 ? 1 : 311) {
      const uint32_t index = classes.index_of(size);
      const uint64_t block = classes.size_of(index);
      ASSERT_GE(block, size);
      ASSERT_EQ(block % granule, 0U);
      if (index != 0) {
        ASSERT_LT(classes.size_of(index - 1), size) << "the smallest that fits";
      }
      if (size > 8 * granule) {
        ASSERT_LE((block - size) * 8, block) << size;
      }
      const uint64_t chunk = PoolClasses::chunk_size(block);
      ASSERT_LE((chunk % block) * 8, chunk) << size;
    }
    for (uint64_t alignment = 1; alignment <= PoolClasses::kPage; alignment *= 2) {
      uint32_t smallest = 0;
      for (uint64_t size = 1; size <= PoolClasses::kSmallMax; size += size < 5000 ? 1 : 311) {
        smallest = std::max(smallest, classes.index_of(size));
        while (classes.size_of(smallest) % alignment != 0)
          ++smallest;
        ASSERT_EQ(classes.index_of(size, alignment), smallest) << size << " aligned to " << alignment;
      }
    }
  }
}

TEST(PoolBlocks, every_address_finds_its_block) {
  PoolBlocks blocks;
  ASSERT_TRUE(blocks.open());
  const PoolClasses classes(16);
  const uint64_t base = (uint64_t{1} << 46) + 5 * PoolClasses::kPage;
  ASSERT_TRUE(blocks.reserve(base, uint64_t{1} << 33));
  EXPECT_FALSE(blocks.reserve(uint64_t{1} << 50, 4096));
  std::mt19937_64 random(1);
  for (uint32_t i = 0; i < classes.count(); ++i) {
    const uint64_t size = classes.size_of(i);
    const uint64_t chunk = PoolClasses::chunk_size(size);
    PoolRun* const run = blocks.make_run(i, size, static_cast<uint32_t>(chunk / size));
    run->set_place(base, size);
    blocks.set(base, chunk, run);
    for (uint32_t n = 0; n < run->count; ++n) {
      const uint64_t first = run->address_of_block(n);
      for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, size - 1, random() % size}) {
        ASSERT_EQ(blocks.run_at(first + offset), run);
        ASSERT_EQ(run->index_of(first + offset), n) << size << " + " << offset;
        const uint64_t index = run->index_of_first(first + offset);
        ASSERT_EQ(offset == 0 ? index == n : index >= run->count, true) << size << " + " << offset;
      }
    }
    PoolBlocks::Block found;
    EXPECT_FALSE(blocks.find(base, &found));
    run->state(0).store(PoolRun::kLive);
    ASSERT_TRUE(blocks.find(base + size - 1, &found));
    EXPECT_EQ(found.base, base);
    EXPECT_EQ(found.size, size);
    if (chunk % size != 0) {
      EXPECT_FALSE(blocks.find(base + chunk - 1, &found)) << "behind the last block";
      EXPECT_GE(run->index_of_first(base + run->count * size), run->count);
    }
    blocks.clear(base, chunk);
    blocks.recycle(run);
    EXPECT_EQ(blocks.run_at(base), nullptr);
  }
}

TEST(PoolBlocks, a_large_block_is_none_of_the_small_ones) {
  const auto run = PoolRun::make(PoolRun::kLarge, PoolClasses::kPage, 1);
  run->set_place(PoolClasses::kPage, 3 * PoolClasses::kPage);
  EXPECT_EQ(run->index_of(4 * PoolClasses::kPage - 1), 0U);
  EXPECT_GE(run->index_of(4 * PoolClasses::kPage), run->count);
  EXPECT_GE(run->index_of_first(PoolClasses::kPage), run->count);
}

// A page that was never touched costs a fault to be read, and the root has 128 pages.
TEST(PoolBlocks, end_reads_no_page_of_the_root_that_was_never_written) {
  if (test::kThreadSanitizer)
    GTEST_SKIP() << "ThreadSanitizer maps pages of its own meanwhile, which count too";
  const auto faults = [] {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_minflt;
  };
  auto blocks = std::make_unique<PoolBlocks>();
  ASSERT_TRUE(blocks->open());
  ASSERT_TRUE(blocks->reserve((uint64_t{1} << 46) + 5 * PoolClasses::kPage, uint64_t{1} << 33));
  const long before = faults();
  blocks.reset();
  EXPECT_LT(faults() - before, 64);
}

// Takes and gives at random, in several orders, and keeps a list of who has what.
TEST(PoolSpace, random_model) {
  constexpr uint64_t kPage = PoolClasses::kPage;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    PoolSpace space;
    struct Given {
      uint64_t size;
      PoolSpace::Order order;
      uint64_t epoch;
    };
    std::map<uint64_t, uint64_t> taken;
    std::map<uint64_t, Given> given;  // by page, what its last free was
    uint64_t end = uint64_t{1} << 40;
    std::array<uint64_t, 3> epochs = {1, 1, 1000};  // each order counts its own
    std::array<uint64_t, 3> passed{};
    space.add(end, 64 * kPage, 1);
    end += 64 * kPage;
    for (int step = 0; step < 600; ++step) {
      const auto order = static_cast<PoolSpace::Order>(random() % 3);
      const uint64_t size = (1 + random() % 12) * kPage;
      switch (random() % 6) {
        case 0:
        case 1:
        case 2: {
          const uint64_t alignment = kPage << random() % 4;
          auto base = space.take(size, alignment, order);
          if (!base) base = space.take_joined(size, alignment, order);
          if (!base) {
            space.add(end, 32 * kPage, seed % 2 == 0 ? 1 : end);
            end += 32 * kPage;
            break;
          }
          ASSERT_EQ(*base % alignment, 0U);
          const auto behind = taken.lower_bound(*base);
          if (behind != taken.end()) {
            ASSERT_LE(*base + size, behind->first);
          }
          if (behind != taken.begin()) {
            ASSERT_LE(std::prev(behind)->first + std::prev(behind)->second, *base);
          }
          for (uint64_t page = *base; page < *base + size; page += kPage) {
            const auto last = given.find(page);
            if (last == given.end()) continue;
            const bool may = last->second.order == PoolSpace::kAny || last->second.order == order ||
                             last->second.epoch <= passed[last->second.order];
            ASSERT_TRUE(may) << "memory of another order";
          }
          taken[*base] = size;
          break;
        }
        case 3:
        case 4: {
          if (taken.empty()) break;
          auto one = taken.begin();
          std::advance(one, static_cast<ptrdiff_t>(random() % taken.size()));
          space.give(one->first, order, epochs[order]);
          for (uint64_t page = one->first; page < one->first + one->second; page += kPage)
            given[page] = {one->second, order, epochs[order]};
          taken.erase(one);
          ++epochs[order];
          break;
        }
        default:
          if (order == PoolSpace::kAny) break;
          passed[order] = std::max(passed[order], epochs[order] - 1 - random() % 10 % epochs[order]);
          space.pass(order, passed[order]);
      }
      ASSERT_TRUE(space.consistent()) << "seed " << seed << " step " << step;
    }
    for (const auto& [base, size] : taken)
      space.give(base, 1, epochs[1]);
    // The latest epoch of each is all that it takes.
    space.pass(1, epochs[1]);
    space.pass(2, epochs[2]);
    ASSERT_TRUE(space.consistent());
    EXPECT_EQ(space.taken_bytes(), 0U);
    if (seed % 2 == 0) {
      EXPECT_EQ(space.largest(PoolSpace::kAny), space.total_bytes()) << "all joined";
      EXPECT_EQ(space.largest_place(), space.total_bytes());
    }
    std::vector<std::pair<uint64_t, uint64_t>> places;
    space.for_each_free([&](uint64_t base, uint64_t size) { places.emplace_back(base, size); });
    for (const auto& [base, size] : places)
      space.remove(base, size);
    EXPECT_EQ(space.total_bytes(), 0U);
    EXPECT_EQ(space.largest_place(), 0U);
  }
}

// So that the upper end stays free for what needs much in a row.
TEST(PoolSpace, the_lowest_place_that_fits_is_taken) {
  constexpr uint64_t kPage = PoolClasses::kPage;
  PoolSpace space;
  const uint64_t base = uint64_t{1} << 40;
  space.add(base, 1000 * kPage, 1);
  const auto at = [&](uint64_t page) { return std::optional(base + page * kPage); };
  EXPECT_EQ(space.take(40 * kPage, kPage, 1), at(0));
  EXPECT_EQ(space.take(kPage, kPage, 1), at(40));
  EXPECT_EQ(space.take(5 * kPage, kPage, 1), at(41));
  EXPECT_EQ(space.take(kPage, kPage, 1), at(46));
  space.give(*at(41), PoolSpace::kAny, 0);
  EXPECT_EQ(space.take(5 * kPage, kPage, 1), at(41)) << "all else is higher";
  space.give(*at(41), 1, 1);
  space.give(*at(0), PoolSpace::kAny, 0);
  EXPECT_EQ(space.take(5 * kPage, kPage, 1), at(0)) << "the other place would be used up";
  EXPECT_EQ(space.take(5 * kPage, 16 * kPage, 1), at(16));
  EXPECT_EQ(space.take(30 * kPage, kPage, 1), at(47)) << "what is lower is too small";
  // More that are too small than are looked at, and only one of their bin is large enough.
  PoolSpace many;
  many.add(base, 1200 * kPage, 1);
  for (uint64_t page = 0; page < 1200; page += 6) {
    EXPECT_EQ(many.take(page == 1194 ? 6 * kPage : 5 * kPage, kPage, 1), at(page));
    if (page != 1194) {
      EXPECT_EQ(many.take(kPage, kPage, 1), at(page + 5));
    }
  }
  for (uint64_t page = 0; page < 1200; page += 6)
    many.give(*at(page), PoolSpace::kAny, 0);
  EXPECT_EQ(many.take(6 * kPage, kPage, 1), at(1194));
  EXPECT_EQ(many.take(6 * kPage, kPage, 1), std::nullopt);
  EXPECT_TRUE(space.consistent() && many.consistent());
}

// Each place that passes may need a bin of its own, which must not fail half way.
TEST(PoolSpace, all_that_passing_needs_is_allocated_ahead) {
  constexpr uint64_t kPage = PoolClasses::kPage;
  PoolSpace space;
  space.add(uint64_t{1} << 41, kPage << 21, 1);
  std::array<std::vector<uint64_t>, 2> places;
  for (uint64_t power = 0; power < 18; ++power) {
    for (std::vector<uint64_t>& half : places) {
      half.push_back(*space.take(kPage << power, kPage, 1));
      ASSERT_TRUE(space.take(kPage, kPage, 1)) << "so that they do not join";
    }
  }
  for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
    for (const uint64_t base : places[epoch - 1])
      space.give(base, 1, epoch);
  }
  space.pass(1, 1);
  EXPECT_TRUE(space.consistent());
  space.pass(1, 2);
  EXPECT_TRUE(space.consistent());
}

TEST(PoolSpace, largest_place_is_of_any_order) {
  constexpr uint64_t kPage = PoolClasses::kPage;
  PoolSpace space;
  const uint64_t base = uint64_t{1} << 40;
  space.add(base, 8 * kPage, 1);
  EXPECT_EQ(space.largest_place(), 8 * kPage);
  const auto first = space.take(5 * kPage, kPage, 1);
  const auto second = space.take(kPage, kPage, 2);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(space.largest_place(), 2 * kPage);
  space.give(*first, 1, 1);
  EXPECT_EQ(space.largest_place(), 5 * kPage) << "which only its order may have";
}

}  // namespace
}  // namespace gpumem::core
