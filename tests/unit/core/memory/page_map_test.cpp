// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The page map: which region owns an address, at every border of its nodes, in shared pages, while regions
// leave, against a model, and under 16 threads.
#include "core/memory/page_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "platform/thread_record.h"

namespace gpumem::core {
namespace {

constexpr uint64_t kPage = uint64_t{1} << 12;
constexpr uint64_t kLeaf = uint64_t{1} << 21;
constexpr uint64_t kRoot = uint64_t{1} << 36;

using State = RegionState::State;

class Owner final : public RegionState {
 public:
  Owner(uint64_t begin, uint64_t size, const KindTraits& traits = kinds::pinned, State state = State::kLive)
      : RegionState(traits) {
    range.begin = begin;
    range.size = size;
    range.owner = this;
    set_state(state);
  }
  ~Owner() { alive = false; }

  uint64_t end() const { return range.begin + range.size; }

  RegionRange range;
  std::atomic<bool> alive{true};
};

class OpenMap : public PageMap {
 public:
  OpenMap() { EXPECT_TRUE(open()); }
};

void enter(PageMap& map, Owner& owner) {
  PageMap::Room room(map);
  ASSERT_TRUE(room.reserve(1));
  map.insert(owner.range);
}

const RegionRange* enter_unless_taken(PageMap& map, Owner& owner) {
  PageMap::Room room(map);
  EXPECT_TRUE(room.reserve(1));
  return map.insert_unless_taken(owner.range);
}

// Addresses at which something can go wrong: around the ends of a range, and around every border of nodes
// near them.
std::vector<uint64_t> critical_addresses(uint64_t begin, uint64_t end) {
  std::vector<uint64_t> all;
  for (const uint64_t at : {begin, end}) {
    for (const uint64_t unit : {uint64_t{1}, kPage, kLeaf, kRoot}) {
      for (const uint64_t border : {at / unit * unit, at / unit * unit + unit}) {
        for (const uint64_t address : {border - 1, border, border + 1}) {
          if (address < PageMap::kEnd) all.push_back(address);
        }
      }
    }
  }
  all.push_back(begin + (end - begin) / 2);
  return all;
}

void expect_exactly(PageMap& map, const Owner& owner) {
  for (const uint64_t address : critical_addresses(owner.range.begin, owner.end())) {
    const bool inside = address >= owner.range.begin && address < owner.end();
    ASSERT_EQ(map.find(address), inside ? &owner.range : nullptr) << std::hex << address;
  }
}

TEST(PageMap, AnEmptyMapHasNothing) {
  const OpenMap map;
  for (const uint64_t address : {uint64_t{0}, uint64_t{1}, kPage, kLeaf, kRoot, PageMap::kEnd - 1,
                                 PageMap::kEnd, PageMap::kEnd + 1, UINT64_MAX}) {
    EXPECT_EQ(map.find(address), nullptr);
    EXPECT_EQ(map.find_live(address, 1), nullptr);
  }
}

// A range fills its entries in a row, and nodes come from memory that they share.
TEST(PageMap, ARangeLeavesItsNeighboursAlone) {
  OpenMap map;
  Owner behind(kRoot + 10 * kLeaf, 2 * kLeaf);
  Owner elsewhere(5 * kRoot + 2 * kLeaf, kLeaf);
  Owner large(kRoot + 2 * kLeaf, 8 * kLeaf);
  for (Owner* const owner : {&behind, &elsewhere, &large})
    enter(map, *owner);
  for (const Owner* const owner : {&behind, &elsewhere, &large}) {
    EXPECT_EQ(map.find(owner->range.begin), &owner->range);
    EXPECT_EQ(map.find(owner->end() - 1), &owner->range);
  }
  map.erase(large.range);
  EXPECT_EQ(map.find(large.end() - 1), nullptr);
  EXPECT_EQ(map.find(behind.range.begin), &behind.range);
  EXPECT_EQ(map.find(elsewhere.range.begin), &elsewhere.range);
  for (Owner* const owner : {&behind, &elsewhere})
    map.erase(owner->range);
}

TEST(PageMap, RangesAtEveryBorder) {
  OpenMap map;
  for (const uint64_t unit : {kPage, kLeaf, kRoot}) {
    for (const uint64_t length : {kPage, kLeaf, kRoot, 3 * kRoot}) {
      for (const int64_t before : {-1, 0, 1}) {
        for (const int64_t behind : {-1, 0, 1}) {
          const uint64_t begin = 5 * unit + static_cast<uint64_t>(before);
          const uint64_t end = (5 * unit + length) / length * length + static_cast<uint64_t>(behind);
          if (end <= begin) continue;
          SCOPED_TRACE(testing::Message() << std::hex << begin << " to " << end);
          Owner owner(begin, end - begin);
          enter(map, owner);
          expect_exactly(map, owner);
          map.erase(owner.range);
          for (const uint64_t address : critical_addresses(begin, end))
            ASSERT_EQ(map.find(address), nullptr) << std::hex << address;
        }
      }
    }
  }
}

TEST(PageMap, ASingleByte) {
  OpenMap map;
  for (const uint64_t address : {uint64_t{1}, kPage - 1, kPage, kLeaf - 1, kLeaf, kRoot - 1, kRoot}) {
    Owner owner(address, 1);
    enter(map, owner);
    expect_exactly(map, owner);
    map.erase(owner.range);
    EXPECT_EQ(map.find(address), nullptr);
  }
}

TEST(PageMap, UpToTheLastAddress) {
  OpenMap map;
  for (const uint64_t size : {uint64_t{1}, kPage, kPage + 1, kLeaf + 1, kRoot, kRoot + 1}) {
    Owner owner(PageMap::kEnd - size, size);
    enter(map, owner);
    expect_exactly(map, owner);
    EXPECT_EQ(map.find(PageMap::kEnd - 1), &owner.range);
    EXPECT_EQ(map.find(PageMap::kEnd), nullptr);
    EXPECT_EQ(map.find(UINT64_MAX), nullptr);
    EXPECT_EQ(map.find_live(PageMap::kEnd - 1, UINT64_MAX), &owner.range);
    EXPECT_EQ(map.find_live(PageMap::kEnd, 1), nullptr);
    EXPECT_EQ(map.find_live(UINT64_MAX, 1), nullptr);
    map.erase(owner.range);
  }
}

// ---- ranges that share pages ----

TEST(PageMap, ManyRangesInOnePage) {
  OpenMap map;
  std::array<Owner, 4> owners{Owner(7 * kPage + 16, 16), Owner(7 * kPage + 32, 16), Owner(7 * kPage + 64, 1),
                              Owner(7 * kPage + 4000, 96)};
  std::array<size_t, 4> order{0, 1, 2, 3};
  do {
    for (const size_t index : order)
      enter(map, owners[index]);
    std::vector<bool> there(4, true);
    for (size_t step = 0; step <= order.size(); ++step) {
      for (uint64_t offset = 0; offset < kPage; ++offset) {
        const RegionRange* expected = nullptr;
        for (size_t index = 0; index < owners.size(); ++index) {
          if (there[index] && owners[index].range.holds(7 * kPage + offset)) expected = &owners[index].range;
        }
        ASSERT_EQ(map.find(7 * kPage + offset), expected) << offset;
      }
      if (step == order.size()) break;
      // Not in the order in which they came.
      const size_t gone = order[(step + 2) % order.size()];
      map.erase(owners[gone].range);
      there[gone] = false;
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

// Each begins in the page in which the one before ends.
TEST(PageMap, RangesThatShareTheirFirstAndLastPages) {
  for (const uint64_t base : {7 * kPage, kLeaf - kPage, kRoot - kPage}) {
    OpenMap map;
    std::vector<std::unique_ptr<Owner>> owners;
    uint64_t begin = base + 100;
    for (const uint64_t size : {uint64_t{500}, 2 * kPage, uint64_t{30}, kLeaf + 50, uint64_t{1}, kPage}) {
      owners.push_back(std::make_unique<Owner>(begin, size));
      enter(map, *owners.back());
      begin += size;
    }
    for (size_t gone = 0; gone <= owners.size(); ++gone) {
      for (size_t index = 0; index < owners.size(); ++index) {
        const Owner& owner = *owners[index];
        const RegionRange* const expected = index < gone ? nullptr : &owner.range;
        ASSERT_EQ(map.find(owner.range.begin), expected);
        ASSERT_EQ(map.find(owner.range.begin + owner.range.size / 2), expected);
        ASSERT_EQ(map.find(owner.end() - 1), expected);
      }
      if (gone < owners.size()) map.erase(owners[gone]->range);
    }
    EXPECT_EQ(map.find(begin), nullptr);
  }
}

// The second one begins at an odd address of a page that is the first of a leaf, and fills whole entries.
TEST(PageMap, ARangeBesideASingleByte) {
  for (const uint64_t border : {7 * kPage, kLeaf, 3 * kRoot}) {
    OpenMap map;
    Owner byte(border, 1);
    Owner owner(border + 1, kRoot + 2 * kLeaf);
    enter(map, byte);
    enter(map, owner);
    EXPECT_EQ(map.find(border), &byte.range);
    EXPECT_EQ(map.find(border + 1), &owner.range);
    map.erase(owner.range);
    expect_exactly(map, byte);
  }
}

// ---- regions that leave ----

// Whatever is left of the old range, the new one is found and stays when the old one is erased.
TEST(PageMap, ANewRangeTakesThePlaceOfOneThatLeaves) {
  struct Case {
    uint64_t old_begin, old_end, new_begin, new_end;
  };
  const Case cases[] = {
      {8 * kPage, 9 * kPage, 8 * kPage, 9 * kPage},                          // the same
      {8 * kPage, 12 * kPage, 9 * kPage, 10 * kPage},                        // inside
      {8 * kPage + 5, 12 * kPage, 8 * kPage + 5, 8 * kPage + 6},             // its first byte
      {8 * kPage, 12 * kPage + 7, 12 * kPage + 6, 12 * kPage + 7},           // its last byte
      {8 * kPage + 5, 8 * kPage + 9, 8 * kPage, 9 * kPage},                  // around, in a page
      {8 * kPage + 5, 12 * kPage + 5, 7 * kPage, 20 * kPage},                // around
      {8 * kPage + 5, 12 * kPage + 5, 10 * kPage + 5, 20 * kPage + 5},       // over its end
      {8 * kPage + 5, 12 * kPage + 5, 4 * kPage + 5, 9 * kPage + 5},         // over its begin
      {2 * kLeaf, 3 * kLeaf, 2 * kLeaf + kPage, 2 * kLeaf + kPage + 1},      // a leaf's entry is split
      {2 * kLeaf, 3 * kLeaf, 2 * kLeaf, 2 * kLeaf + 1},                      //
      {2 * kRoot, 3 * kRoot, 2 * kRoot + kLeaf + 5, 2 * kRoot + kLeaf + 6},  // and one of the root
      {2 * kRoot, 3 * kRoot, 3 * kRoot - 1, 3 * kRoot},                      //
      {2 * kRoot + 1, 4 * kRoot, 2 * kRoot, 5 * kRoot},                      //
      {kLeaf + kPage, 5 * kLeaf, kLeaf, 6 * kLeaf},                          //
      {2 * kLeaf, 5 * kLeaf, 2 * kLeaf + 1, 5 * kLeaf},                      // all but its first byte
      {2 * kRoot, 5 * kRoot, 2 * kRoot + 1, 5 * kRoot},                      //
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << std::hex << one.old_begin << " to " << one.old_end << ", then "
                                    << one.new_begin << " to " << one.new_end);
    OpenMap map;
    Owner before(one.old_begin, one.old_end - one.old_begin);
    Owner after(one.new_begin, one.new_end - one.new_begin);
    enter(map, before);
    before.set_state(State::kLeaving);
    EXPECT_EQ(map.find(one.old_begin), &before.range) << "a driver must not be asked about it";
    EXPECT_EQ(enter_unless_taken(map, after), nullptr);
    EXPECT_EQ(map.find(one.new_begin), &after.range);
    EXPECT_EQ(map.find(one.new_end - 1), &after.range);
    for (const uint64_t address : {one.old_begin, one.old_end - 1}) {
      const bool taken = after.range.holds(address);
      EXPECT_EQ(map.find(address), taken ? &after.range : &before.range) << std::hex << address;
    }
    map.erase(before.range);
    expect_exactly(map, after);
    map.erase(after.range);
    for (const uint64_t address : critical_addresses(one.old_begin, one.old_end))
      ASSERT_EQ(map.find(address), nullptr);
    for (const uint64_t address : critical_addresses(one.new_begin, one.new_end))
      ASSERT_EQ(map.find(address), nullptr);
  }
}

TEST(PageMap, OfTwoAtOneAddressTheOneThatStaysIsFound) {
  OpenMap map;
  Owner stays(7 * kPage + 5, 100);
  Owner leaves(7 * kPage + 50, 100);
  enter(map, stays);
  enter(map, leaves);
  EXPECT_EQ(map.find(7 * kPage + 60), &leaves.range) << "it came last";
  leaves.set_state(State::kLeaving);
  EXPECT_EQ(map.find(7 * kPage + 60), &stays.range);
  EXPECT_EQ(map.find(7 * kPage + 120), &leaves.range);
  map.erase(leaves.range);
  expect_exactly(map, stays);
}

TEST(PageMap, WhatIsThereIsTaken) {
  OpenMap map;
  Owner owner(7 * kPage + 100, 2 * kPage);
  enter(map, owner);
  const auto taken = [&](uint64_t begin, uint64_t end) {
    Owner other(begin, end - begin, kinds::registered);
    const RegionRange* const found = enter_unless_taken(map, other);
    if (found == nullptr) {
      EXPECT_EQ(map.find(begin), &other.range);
      EXPECT_EQ(map.find(end - 1), &other.range);
      map.erase(other.range);
    }
    return found;
  };
  const auto expect_in_the_way = [&](bool in_the_way) {
    const RegionRange* const expected = in_the_way ? &owner.range : nullptr;
    EXPECT_EQ(taken(owner.range.begin, owner.end()), expected);
    EXPECT_EQ(taken(owner.range.begin - 5, owner.range.begin + 1), expected);
    EXPECT_EQ(taken(owner.end() - 1, owner.end() + 5), expected);
    EXPECT_EQ(taken(owner.range.begin + kPage, owner.range.begin + kPage + 1), expected);
    EXPECT_EQ(taken(kPage, kLeaf), expected);
  };
  expect_in_the_way(true);
  EXPECT_EQ(taken(owner.range.begin - 50, owner.range.begin), nullptr) << "beside it, in the same page";
  EXPECT_EQ(taken(owner.end(), owner.end() + 5), nullptr);
  expect_exactly(map, owner);
  owner.set_state(State::kReserved);
  expect_in_the_way(true);
  owner.set_state(State::kLeaving);
  EXPECT_EQ(taken(kPage, kLeaf), nullptr);
  EXPECT_EQ(taken(owner.range.begin, owner.end()), nullptr);
  map.erase(owner.range);
}

// Its bytes are the caller's all the time, so the driver may still have them registered.
TEST(PageMap, ARegistrationThatLeavesIsStillInTheWay) {
  OpenMap map;
  Owner owner(7 * kPage, kPage, kinds::registered, State::kLeaving);
  Owner other(7 * kPage + 5, 1, kinds::registered);
  enter(map, owner);
  EXPECT_EQ(enter_unless_taken(map, other), &owner.range);
  map.erase(owner.range);
  EXPECT_EQ(enter_unless_taken(map, other), nullptr);
  map.erase(other.range);
}

TEST(PageMap, OfSeveralInTheWayMemoryThatCanNeverBeRegisteredIsNamed) {
  for (const bool device_first : {false, true}) {
    OpenMap map;
    Owner pinned((device_first ? 30 : 10) * kPage, kPage);
    Owner device((device_first ? 10 : 30) * kPage, kPage, kinds::device);
    Owner whole(0, 100 * kPage, kinds::registered);
    enter(map, pinned);
    enter(map, device);
    EXPECT_EQ(enter_unless_taken(map, whole), &device.range);
  }
}

TEST(PageMap, FindLiveLooksAtEveryByteOfARange) {
  OpenMap map;
  Owner owner(kLeaf - 10, 20);
  enter(map, owner);
  EXPECT_EQ(map.find_live(kLeaf - 11, 1), nullptr);
  EXPECT_EQ(map.find_live(kLeaf - 11, 2), &owner.range);
  EXPECT_EQ(map.find_live(kLeaf + 9, 1), &owner.range);
  EXPECT_EQ(map.find_live(kLeaf + 9, kRoot), &owner.range);
  EXPECT_EQ(map.find_live(kLeaf + 10, kRoot), nullptr);
  EXPECT_EQ(map.find_live(1, kLeaf - 11), nullptr);
  EXPECT_EQ(map.find_live(1, kLeaf - 10), &owner.range);
  EXPECT_EQ(map.find_live(1, PageMap::kEnd), &owner.range);
  for (const State state : {State::kReserved, State::kLeaving}) {
    owner.set_state(state);
    EXPECT_EQ(map.find_live(1, 2 * kLeaf), nullptr);
  }
  Owner live(kLeaf + 2 * kPage, kRoot);
  enter(map, live);
  EXPECT_EQ(map.find_live(1, 2 * kRoot), &live.range) << "one that is not live does not hide it";
}

TEST(PageMap, RoomOfSeveralCallsAtOnce) {
  OpenMap map;
  std::vector<std::unique_ptr<Owner>> owners;
  for (int round = 0; round < 10; ++round) {
    PageMap::Room unused(map);
    PageMap::Room first(map);
    PageMap::Room second(map);
    ASSERT_TRUE(unused.reserve(5));
    ASSERT_TRUE(first.reserve(2));
    ASSERT_TRUE(second.reserve(2));
    for (int range = 0; range < 4; ++range) {
      // Nowhere near another one, across a border of the root: as many nodes as a range can need.
      const uint64_t border = (owners.size() * 3 + 1) * kRoot;
      owners.push_back(std::make_unique<Owner>(border - 5, kRoot + 10));
      map.insert(owners.back()->range);
    }
  }
  for (const auto& owner : owners)
    expect_exactly(map, *owner);
}

// ---- against a model ----

class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) {}

  void step() {
    switch (number(10)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return add();
      case 4:
      case 5:
        return erase(live_);
      case 6:
        return leave();
      case 7:
        return erase_leaving();
      default:
        return look();
    }
  }
  void check_all() {
    for (const auto& [begin, owner] : live_) {
      for (const uint64_t address : critical_addresses(begin, owner->end()))
        check(address);
    }
  }

 private:
  using Owners = std::map<uint64_t, std::unique_ptr<Owner>>;

  uint64_t number(uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(random_); }

  // Few places, so that ranges meet, and all of them near a border.
  uint64_t address() {
    constexpr std::array kUnits{kPage, kLeaf, kRoot};
    const uint64_t border = kUnits[number(3)] * (1 + number(6));
    return border + number(2) * kPage + number(40) - 20;
  }
  uint64_t size() {
    constexpr std::array kUnits{uint64_t{1}, uint64_t{16}, kPage, kLeaf};
    const uint64_t unit = number(20) == 0 ? kRoot : kUnits[number(4)];
    return unit * (1 + number(3)) + number(2) * number(40);
  }

  const Owner* live_in(uint64_t begin, uint64_t end) const {
    auto next = live_.lower_bound(end);
    if (next == live_.begin()) return nullptr;
    const Owner* const last = std::prev(next)->second.get();
    return last->end() > begin ? last : nullptr;
  }

  void add() {
    const uint64_t begin = address();
    auto owner = std::make_unique<Owner>(begin, size());
    const RegionRange* const taken = enter_unless_taken(map_, *owner);
    ASSERT_EQ(taken != nullptr, live_in(begin, owner->end()) != nullptr);
    if (taken == nullptr) {
      live_.emplace(begin, std::move(owner));
    } else {
      ASSERT_TRUE(taken->begin < owner->end() && begin < taken->begin + taken->size);
      ASSERT_TRUE(live_.at(taken->begin)->live());
    }
  }
  void erase(Owners& owners) {
    if (owners.empty()) return;
    const auto chosen = std::next(owners.begin(), static_cast<long>(number(owners.size())));
    map_.erase(chosen->second->range);
    owners.erase(chosen);
  }
  void leave() {
    if (live_.empty()) return;
    const auto chosen = std::next(live_.begin(), static_cast<long>(number(live_.size())));
    chosen->second->set_state(State::kLeaving);
    leaving_.push_back(std::move(chosen->second));
    live_.erase(chosen);
  }
  void erase_leaving() {
    if (leaving_.empty()) return;
    const auto chosen = leaving_.begin() + static_cast<long>(number(leaving_.size()));
    map_.erase((*chosen)->range);
    leaving_.erase(chosen);
  }

  void look() {
    const uint64_t begin = address();
    check(begin);
    const uint64_t length = size();
    const RegionRange* const found = map_.find_live(begin, length);
    ASSERT_EQ(found != nullptr, live_in(begin, begin + length) != nullptr);
    if (found != nullptr) {
      ASSERT_TRUE(found->owner->live());
      ASSERT_TRUE(found->begin < begin + length && begin < found->begin + found->size);
    }
  }
  void check(uint64_t address) {
    const Owner* const expected = live_in(address, address + 1);
    const RegionRange* const found = map_.find(address);
    if (expected != nullptr) {
      ASSERT_EQ(found, &expected->range) << std::hex << address;
    } else if (found != nullptr) {
      // Others may have overwritten it, so it is not there for certain.
      ASSERT_TRUE(found->holds(address));
      ASSERT_TRUE(found->owner->leaving());
    }
  }

  std::mt19937_64 random_;
  OpenMap map_;
  Owners live_;
  std::vector<std::unique_ptr<Owner>> leaving_;
};

TEST(PageMap, RandomOperationsAgreeWithAModel) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Model model(seed);
    for (int step = 0; step < 2000 && !testing::Test::HasFatalFailure(); ++step) {
      model.step();
      if (step % 500 == 499) model.check_all();
    }
    ASSERT_FALSE(HasFatalFailure());
  }
}

// ---- threads ----

// Four threads let ranges come and go, in pages that they share with others, while twelve look. What stays is
// found at every moment, and what is found lives as long as the look.
TEST(PageMap, SixteenThreads) {
  constexpr int kWriters = 4;
  constexpr int kReaders = 12;
  constexpr int kRounds = 150;
  constexpr uint64_t kSlot = kPage / 8;
  constexpr uint64_t kPlaces = 3;  // pages at a border each
  constexpr std::array<uint64_t, kPlaces> kBases{7 * kPage, kLeaf - kPage, kRoot - kPage};
  OpenMap map;
  std::vector<std::unique_ptr<Owner>> stay;
  for (const uint64_t base : kBases) {
    for (const uint64_t page : {0U, 1U}) {
      stay.push_back(std::make_unique<Owner>(base + page * kPage + 2, 20));
      enter(map, *stay.back());
    }
  }
  std::atomic<int> writing{kWriters};
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> found_any{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kWriters; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(static_cast<uint64_t>(number));
      const auto looked_up = [&map](uint64_t address) {
        const platform::Look look(platform::thread_record());
        return map.find(address);
      };
      // Not before a reader has met one of them.
      for (int round = 0; round < kRounds || found_any == 0; ++round) {
        // Each writer has a slot of its own in the last and the first page of two that meet at the border.
        const uint64_t base = kBases[random() % kPlaces];
        const uint64_t slot = base + (1 + static_cast<uint64_t>(number)) * kSlot;
        Owner first(slot + random() % 10, 1 + random() % 400);
        Owner second(slot + kPage, kSlot);
        enter(map, first);
        enter(map, second);
        for (Owner* const owner : {&first, &second}) {
          if (looked_up(owner->range.begin) != &owner->range) ++wrong;
          owner->set_state(State::kLeaving);
          map.erase(owner->range);
          if (looked_up(owner->range.begin) != nullptr) ++wrong;
        }
        platform::wait_for_looks();
        first.alive = second.alive = false;  // and the memory is used again in the next round
      }
      --writing;
    });
  }
  for (int number = 0; number < kReaders; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(static_cast<uint64_t>(100 + number));
      while (writing > 0) {
        const uint64_t base = kBases[random() % kPlaces];
        for (int round = 0; round < 20; ++round) {
          const platform::Look look(platform::thread_record());
          const uint64_t address = base + random() % (2 * kPage);
          const RegionRange* const range = map.find(address);
          if (range != nullptr) {
            found_any.fetch_add(1, std::memory_order_relaxed);
            const auto* const owner = static_cast<const Owner*>(range->owner);
            if (!owner->alive || !range->holds(address) || &owner->range != range) ++wrong;
          }
        }
        for (const auto& owner : stay) {
          const platform::Look look(platform::thread_record());
          if (map.find(owner->range.begin + random() % owner->range.size) != &owner->range) ++wrong;
        }
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(found_any, 0U);
  for (const auto& owner : stay)
    expect_exactly(map, *owner);
}

}  // namespace
}  // namespace gpumem::core
