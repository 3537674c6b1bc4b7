// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The handle table (COM-10, COM-11): stale, forged and mistyped values, ends and their reasons, races, forks.
#include "core/object/handles.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/object/callback.h"
#include "process_support.h"

namespace gpumem::core {
namespace {

class Probe final : public Object {
 public:
  static constexpr Type kType = Type::kMemory;
  explicit Probe(std::atomic<int>* deaths) : Object(kType, nullptr), deaths_(deaths) {}
  ~Probe() override { ++*deaths_; }

 private:
  std::atomic<int>* deaths_;
};

// Never made: a type that no handle here has.
class Stranger final : public Object {
 public:
  static constexpr Type kType = Type::kStream;
};

uint64_t make(std::atomic<int>* deaths) {
  auto* object = new Probe(deaths);
  const uint64_t handle = *handles::reserve(*object);
  handles::publish(object);
  return handle;
}

template <class T>
Ref<T> hold(uint64_t handle) {
  return acquire<T>(platform::thread_record(), handle);
}

template <class T = Probe>
Status status_of(uint64_t handle) {
  return hold<T>(handle) ? GPUMEM_SUCCESS : handles::refusal(handle, T::kType).status;
}

// What every call that destroys an object does once it has ended the handle.
void remove_ended(Ref<Probe> held) {
  platform::fence_all_threads();
  platform::wait_for_uses(held.get());
  Probe* const gone = held.get();
  held = {};
  handles::remove(gone);
}

void destroy(uint64_t handle, End how = End::kDestroyed) {
  auto held = hold<Probe>(handle);
  ASSERT_TRUE(held);
  ASSERT_TRUE(handles::end(*held, how));
  remove_ended(std::move(held));
}

TEST(Handles, LiveUntilEndedAndThenStale) {
  std::atomic<int> deaths{0};
  const uint64_t handle = make(&deaths);
  EXPECT_EQ(status_of(handle), GPUMEM_SUCCESS);
  destroy(handle);
  EXPECT_EQ(deaths, 1);
  EXPECT_EQ(status_of(handle), GPUMEM_ERROR_STALE_HANDLE);
}

TEST(Handles, TheEndOfTheInstanceIsTold) {
  std::atomic<int> deaths{0};
  const uint64_t handle = make(&deaths);
  destroy(handle, End::kClosed);
  EXPECT_EQ(status_of(handle), GPUMEM_ERROR_CLOSED);
}

TEST(Handles, AReusedSlotIsAnotherHandle) {
  std::atomic<int> deaths{0};
  const uint64_t first = make(&deaths);
  destroy(first);
  const uint64_t second = make(&deaths);
  EXPECT_EQ(first & 0xffffff, second & 0xffffff) << "the test needs the slot to be used again";
  EXPECT_NE(first, second);
  EXPECT_EQ(status_of(first), GPUMEM_ERROR_STALE_HANDLE);
  EXPECT_EQ(status_of(second), GPUMEM_SUCCESS);
  destroy(second);
}

// How a handle ended is not mixed up with how the next user of its slot ends.
TEST(Handles, AReusedSlotDoesNotChangeHowItsHandleEnded) {
  std::atomic<int> deaths{0};
  const uint64_t first = make(&deaths);
  destroy(first);
  const uint64_t second = make(&deaths);
  ASSERT_EQ(first & 0xffffff, second & 0xffffff) << "the test needs the slot to be used again";
  {
    auto held = hold<Probe>(second);
    ASSERT_TRUE(handles::end(*held, End::kClosed));
    EXPECT_FALSE(handles::end(*held, End::kDestroyed));
    EXPECT_EQ(status_of(first), GPUMEM_ERROR_STALE_HANDLE);
    EXPECT_EQ(status_of(second), GPUMEM_ERROR_CLOSED);
    remove_ended(std::move(held));
  }
  EXPECT_EQ(status_of(first), GPUMEM_ERROR_STALE_HANDLE);
  EXPECT_EQ(status_of(second), GPUMEM_ERROR_CLOSED);
  const uint64_t third = make(&deaths);
  ASSERT_EQ(first & 0xffffff, third & 0xffffff) << "the test needs the slot to be used again";
  EXPECT_EQ(status_of(second), GPUMEM_ERROR_CLOSED);
  destroy(third);
  EXPECT_EQ(status_of(second), GPUMEM_ERROR_STALE_HANDLE);
}

TEST(Handles, ADestroyedHandleStaysDestroyedWhileItsSlotIsUsedAndClosed) {
  std::atomic<int> deaths{0};
  std::atomic<uint64_t> destroyed{make(&deaths)};
  destroy(destroyed);
  std::atomic<int> wrong{0};
  std::atomic<bool> stop{false};
  std::thread user([&] {
    while (!stop) {
      if (status_of(destroyed) != GPUMEM_ERROR_STALE_HANDLE) ++wrong;
    }
  });
  for (int round = 0; round < 20000; ++round) {
    const uint64_t next = make(&deaths);
    destroy(next);
    destroyed = next;
    destroy(make(&deaths), End::kClosed);
  }
  stop = true;
  user.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Handles, ForgedAndMistypedValuesAreRefused) {
  std::atomic<int> deaths{0};
  const uint64_t handle = make(&deaths);
  EXPECT_EQ(status_of(0), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of<Stranger>(handle), GPUMEM_ERROR_INVALID_ARGUMENT);
  const uint64_t other_type =
      (handle & ~(uint64_t{0xff} << 24)) | uint64_t{static_cast<uint8_t>(Type::kStream)} << 24;
  EXPECT_EQ(status_of<Stranger>(other_type), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(handle + (uint64_t{1} << 32)), GPUMEM_ERROR_INVALID_ARGUMENT);  // a generation to come
  EXPECT_EQ(status_of(handle & 0xffffffff), GPUMEM_ERROR_INVALID_ARGUMENT);           // generation 0
  // As in a copy of the library that began to count elsewhere.
  EXPECT_EQ(status_of((handle & 0xffffffff) | uint64_t{1} << 32), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(UINT64_MAX), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(handle | 0xffffff), GPUMEM_ERROR_INVALID_ARGUMENT);
  int on_stack = 0;
  EXPECT_EQ(status_of(reinterpret_cast<uint64_t>(&on_stack)), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(handle), GPUMEM_SUCCESS);
  destroy(handle);
}

TEST(Handles, AReservedHandleIsNotVisible) {
  std::atomic<int> deaths{0};
  {
    Probe object(&deaths);
    const uint64_t handle = *handles::reserve(object);
    EXPECT_EQ(status_of(handle), GPUMEM_ERROR_INVALID_ARGUMENT);
    handles::cancel(object);
  }
  EXPECT_EQ(deaths, 1);
}

TEST(Handles, ReviveTakesTheEndBack) {
  std::atomic<int> deaths{0};
  const uint64_t handle = make(&deaths);
  {
    const auto held = hold<Probe>(handle);
    ASSERT_TRUE(handles::end(*held, End::kDestroyed));
    EXPECT_EQ(status_of(handle), GPUMEM_ERROR_STALE_HANDLE);
    EXPECT_FALSE(handles::end(*held, End::kDestroyed));
    handles::revive(*held);
  }
  EXPECT_EQ(deaths, 0);
  EXPECT_EQ(status_of(handle), GPUMEM_SUCCESS);
  destroy(handle);
  EXPECT_EQ(deaths, 1);
}

TEST(Handles, DestroyWaitsForUsersAndEachUserIsServedOrRefused) {
  constexpr int kRounds = 300;
  std::atomic<int> deaths{0};
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> current{make(&deaths)};
  std::atomic<bool> stop{false};
  std::vector<std::thread> users;
  for (int i = 0; i < 3; ++i) {
    users.emplace_back([&] {
      while (!stop) {
        const Status status = status_of(current.load());
        if (status != GPUMEM_SUCCESS && status != GPUMEM_ERROR_STALE_HANDLE) ++wrong;
      }
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t old = current.load();
    current = make(&deaths);
    destroy(old);
  }
  stop = true;
  for (std::thread& user : users)
    user.join();
  destroy(current.load());
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(deaths, kRounds + 1);
}

TEST(Handles, OneOfManyDestroyersWins) {
  std::atomic<int> deaths{0};
  for (int round = 0; round < 100; ++round) {
    const uint64_t handle = make(&deaths);
    std::atomic<int> winners{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        auto held = hold<Probe>(handle);
        if (held && handles::end(*held, End::kDestroyed)) {
          ++winners;
          remove_ended(std::move(held));
        }
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    ASSERT_EQ(winners, 1);
    ASSERT_EQ(deaths, round + 1);
  }
}

TEST(Handles, ManyLiveAtOnce) {
  std::atomic<int> deaths{0};
  std::vector<uint64_t> all;
  for (int i = 0; i < 5000; ++i)
    all.push_back(make(&deaths));
  for (const uint64_t handle : all)
    EXPECT_EQ(status_of(handle), GPUMEM_SUCCESS);
  for (const uint64_t handle : all)
    destroy(handle);
  EXPECT_EQ(deaths, 5000);
}

TEST(Handles, AnObjectLivesWhileAThreadUsesIt) {
  std::atomic<int> deaths{0};
  const uint64_t handle = make(&deaths);
  auto held = hold<Probe>(handle);
  ASSERT_TRUE(held);
  std::atomic<bool> ended{false};
  std::atomic<bool> removed{false};
  std::thread destroyer([&] {
    auto own = hold<Probe>(handle);
    ASSERT_TRUE(handles::end(*own, End::kDestroyed));
    ended = true;
    remove_ended(std::move(own));
    removed = true;
  });
  while (!ended)
    std::this_thread::yield();
  EXPECT_FALSE(hold<Probe>(handle)) << "the handle has ended";
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(removed);
  EXPECT_EQ(deaths, 0);
  held = {};
  destroyer.join();
  EXPECT_EQ(deaths, 1);
}

TEST(Handles, OnlyTheCallsOfThisThreadCountAsItsOwn) {
  std::atomic<int> deaths{0};
  const uint64_t handle = make(&deaths);
  {
    const auto own = hold<Probe>(handle);
    std::thread([&] {
      const auto others = hold<Probe>(handle);
      EXPECT_TRUE(uses_will_end(*others));
    }).join();
    EXPECT_TRUE(uses_will_end(*own));
    const auto further_up = hold<Probe>(handle);
    const auto refused = uses_will_end(*own);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, GPUMEM_ERROR_INVALID_STATE);
  }
  destroy(handle);
}

// More uses than fit into the record of a thread.
TEST(Handles, OwnUsesAreSeenHoweverManyThereAre) {
  std::atomic<int> deaths{0};
  const uint64_t many = make(&deaths);
  const uint64_t handle = make(&deaths);
  {
    std::vector<Ref<Probe>> others;
    for (uint32_t i = 0; i < platform::ThreadRecord::kUses; ++i)
      others.push_back(hold<Probe>(many));
    const auto first = hold<Probe>(handle);
    EXPECT_TRUE(uses_will_end(*first));
    const auto second = hold<Probe>(handle);
    EXPECT_FALSE(uses_will_end(*second));
  }
  destroy(handle);
  destroy(many);
}

// Such a call, or one that waits itself, may wait for this one.
TEST(Handles, ACallbackDoesNotWaitForACallThatIsInACallback) {
  std::atomic<int> deaths{0};
  const uint64_t handle = make(&deaths);
  for (const bool many : {false, true}) {
    std::atomic<int> step{0};
    std::thread other([&] {
      std::vector<Ref<Probe>> more;
      for (uint32_t i = 0; many && i < platform::ThreadRecord::kUses; ++i)
        more.push_back(hold<Probe>(handle));
      const auto held = hold<Probe>(handle);
      {
        const Callback callback;
        step = 1;
        while (step == 1)
          std::this_thread::yield();
      }
      step = 3;
      while (step == 3)
        std::this_thread::yield();
    });
    while (step != 1)
      std::this_thread::yield();
    auto own = hold<Probe>(handle);
    EXPECT_TRUE(uses_will_end(*own)) << "no callback";
    const Callback callback;
    for (const Result<void>& refused : {uses_will_end(*own), wait_for_uses(*own)}) {
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().status, GPUMEM_ERROR_BUSY);
    }
    step = 2;
    while (step != 3)
      std::this_thread::yield();
    EXPECT_TRUE(uses_will_end(*own)) << "its callback has returned";
    step = 4;
    EXPECT_TRUE(wait_for_uses(*own));
    other.join();
  }
  destroy(handle);
}

// What a callback forks is a process of its own, in which no callback runs.
TEST(Callbacks, AreOfTheProcessThatRunsThem) {
  const Callback callback;
  ASSERT_TRUE(Callback::runs_here());
  EXPECT_EQ(test::exit_code_of([] {
              if (Callback::runs_here()) return 1;
              {
                const Callback own;
                if (!Callback::runs_here()) return 2;
              }
              return Callback::runs_here() ? 3 : 0;
            }),
            0);
  EXPECT_TRUE(Callback::runs_here());
}

// Lives as long as the test, so that a reader can tell whether its object does.
struct Cell {
  std::atomic<bool> alive{false};
  std::atomic<uint64_t> handle{0};
};

class Tenant final : public Object {
 public:
  static constexpr Type kType = Type::kMemory;
  explicit Tenant(Cell& cell) : Object(kType, nullptr), cell_(cell) { cell_.alive = true; }
  ~Tenant() override { cell_.alive = false; }
  bool alive() const { return cell_.alive; }

 private:
  Cell& cell_;
};

TEST(Handles, SixteenThreadsLookUpWhatComesAndGoes) {
  constexpr int kReaders = 12;
  constexpr int kMakers = 4;
  constexpr int kRounds = 60;
  std::array<Cell, kMakers> cells;
  std::atomic<int> making{kMakers};
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> served{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kReaders; ++number) {
    threads.emplace_back([&, number] {
      for (size_t round = static_cast<size_t>(number); making > 0; ++round) {
        const uint64_t handle = cells[round % kMakers].handle;
        const auto held = hold<Tenant>(handle);
        if (!held) {
          const Status status = handles::refusal(handle, Type::kMemory).status;
          const bool known = status == GPUMEM_ERROR_STALE_HANDLE || status == GPUMEM_ERROR_CLOSED;
          if (handle != 0 && !known) ++wrong;
          continue;
        }
        ++served;
        for (int look = 0; look < 5; ++look) {
          if (!held->alive() || held->handle() != handle) ++wrong;
        }
        std::this_thread::yield();
      }
    });
  }
  for (int number = 0; number < kMakers; ++number) {
    threads.emplace_back([&, number] {
      Cell& cell = cells[static_cast<size_t>(number)];
      for (int round = 0; round < kRounds; ++round) {
        auto* object = new Tenant(cell);
        const uint64_t handle = *handles::reserve(*object);
        handles::publish(object);
        cell.handle = handle;
        if (round % 3 == 0) std::this_thread::yield();
        if (!handles::end(*object, round % 2 == 0 ? End::kDestroyed : End::kClosed)) ++wrong;
        platform::fence_all_threads();
        platform::wait_for_uses(object);
        handles::remove(object);
        if (cell.alive) ++wrong;
      }
      --making;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(served, 0U);
}

TEST(Handles, AChildDoesNotReachTheObjectsOfItsParent) {
  std::atomic<int> deaths{0};
  const uint64_t handle = make(&deaths);
  const uint64_t ended = make(&deaths);
  destroy(ended);
  const auto used = hold<Probe>(handle);  // by a call that the fork comes in the middle of
  EXPECT_EQ(test::exit_code_of([&] {
              if (status_of(handle) != GPUMEM_ERROR_FORKED) return 1;
              if (status_of<Stranger>(handle) != GPUMEM_ERROR_INVALID_ARGUMENT) return 2;
              if (status_of(ended) != GPUMEM_ERROR_STALE_HANDLE) return 3;
              const uint64_t own = make(&deaths);
              if (status_of(own) != GPUMEM_SUCCESS) return 4;
              destroy(own);
              return status_of(own) == GPUMEM_ERROR_STALE_HANDLE ? 5 : 6;
            }),
            5);
  EXPECT_EQ(status_of(handle), GPUMEM_SUCCESS);
  EXPECT_EQ(deaths, 1);
}

// A child never waits for threads that only its parent has, whatever these were doing.
TEST(Handles, AChildForkedAmongBusyThreadsCanGoOn) {
  std::atomic<int> deaths{0};
  std::atomic<uint64_t> current{make(&deaths)};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop)
        (void)status_of(current);
    });
  }
  threads.emplace_back([&] {
    while (!stop) {
      const uint64_t old = current;
      current = make(&deaths);
      destroy(old);
    }
  });
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(test::exit_code_of(
                  [&] {
                    alarm(60);  // a child that hangs is ended
                    const Status status = status_of(current);
                    if (status != GPUMEM_ERROR_FORKED && status != GPUMEM_ERROR_STALE_HANDLE) return 1;
                    for (int i = 0; test::kForkBesideAllocations && i < 3; ++i)
                      destroy(make(&deaths));
                    return 5;
                  },
                  fork),
              5);
  }
  stop = true;
  for (std::thread& thread : threads)
    thread.join();
  destroy(current);
}

}  // namespace
}  // namespace gpumem::core
