// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The handle table (COM-10, COM-11): stale, forged and mistyped values, ends and their reasons, races.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "core/object.h"

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

uint64_t make(std::atomic<int>* deaths) {
  auto* object = new Probe(deaths);
  const uint64_t handle = *handles::reserve(*object);
  handles::publish(object);
  return handle;
}

Status status_of(uint64_t handle, Type type = Type::kMemory) {
  auto found = handles::acquire(handle, type);
  if (!found) return found.error().status;
  handles::release(*found);
  return GPUMEM_SUCCESS;
}

void destroy(uint64_t handle, End how = End::kDestroyed) {
  auto held = acquire<Probe>(handle);
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(handles::end(**held, how));
  handles::wait_for_others(**held);
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
    auto held = acquire<Probe>(second);
    ASSERT_TRUE(handles::end(**held, End::kClosed));
    EXPECT_FALSE(handles::end(**held, End::kDestroyed));
    EXPECT_EQ(status_of(first), GPUMEM_ERROR_STALE_HANDLE);
    EXPECT_EQ(status_of(second), GPUMEM_ERROR_CLOSED);
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
  EXPECT_EQ(status_of(handle, Type::kStream), GPUMEM_ERROR_INVALID_ARGUMENT);
  const uint64_t other_type =
      (handle & ~(uint64_t{0xff} << 24)) | uint64_t{static_cast<uint8_t>(Type::kStream)} << 24;
  EXPECT_EQ(status_of(other_type, Type::kStream), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(handle + (uint64_t{1} << 32)), GPUMEM_ERROR_INVALID_ARGUMENT);  // a generation to come
  EXPECT_EQ(status_of(handle & 0xffffffff), GPUMEM_ERROR_INVALID_ARGUMENT);           // generation 0
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
    auto held = acquire<Probe>(handle);
    ASSERT_TRUE(handles::end(**held, End::kDestroyed));
    EXPECT_EQ(status_of(handle), GPUMEM_ERROR_STALE_HANDLE);
    EXPECT_FALSE(handles::end(**held, End::kDestroyed));
    handles::revive(**held);
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
        auto held = acquire<Probe>(handle);
        if (held && handles::end(**held, End::kDestroyed)) {
          ++winners;
          handles::wait_for_others(**held);
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

}  // namespace
}  // namespace gpumem::core
