// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What threads announce to each other: uses, looks and questions, and who waits for them; records of threads
// that end; forks.
#include "platform/thread_record.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>

#include <array>
#include <bitset>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "process_support.h"

namespace gpumem::platform {
namespace {

using test::exit_code_of;

constexpr uint32_t kAllFree = (uint32_t{1} << ThreadRecord::kUses) - 1;

// Stand for objects; aligned, as objects are.
alignas(16) std::array<std::array<char, 16>, 64> objects;
const void* object(size_t index) { return &objects.at(index); }

// Another thread, which does one thing after the other when it is told to.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    start([this] { ends_ = true; });
    thread_.join();
  }

  // Returns once it is done.
  void do_now(std::function<void()> work) {
    start(std::move(work));
    await();
  }
  void start(std::function<void()> work) {
    await();
    work_ = std::move(work);
    done_ = false;
    done_.notify_all();
  }
  void await() const { done_.wait(false); }
  bool done() const { return done_; }

 private:
  void run() {
    while (!ends_) {
      done_.wait(true);  // asleep, so that a fork beside it does not wait
      work_();
      work_ = nullptr;
      done_ = true;
      done_.notify_all();
    }
  }

  std::function<void()> work_;
  std::atomic<bool> done_{true};
  bool ends_ = false;
  std::thread thread_;
};

// Whether `wait` on another thread does not return before `release` is called, and does afterwards.
testing::AssertionResult waits(const std::function<void()>& wait, const std::function<void()>& release) {
  Worker waiter;
  waiter.start(wait);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
  while (!waiter.done() && std::chrono::steady_clock::now() < limit)
    std::this_thread::yield();
  const bool early = waiter.done();
  release();
  waiter.await();  // a wait that never ends is a hang of the test
  if (early) return testing::AssertionFailure() << "it did not wait";
  return testing::AssertionSuccess();
}

// ---- records ----

TEST(ThreadRecord, IsTheThreadsOwn) {
  constexpr size_t kThreads = 24;
  EXPECT_EQ(&thread_record(), &thread_record());
  EXPECT_EQ(thread_record_or_null, &thread_record());
  std::array<ThreadRecord*, kThreads> records{};
  std::atomic<size_t> there{0};
  std::vector<std::thread> threads;
  for (size_t number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      EXPECT_EQ(thread_record_or_null, nullptr);
      records[number] = &thread_record();
      EXPECT_EQ(records[number]->process, process_epoch());
      ++there;
      while (there < kThreads)
        std::this_thread::yield();
      EXPECT_EQ(&thread_record(), records[number]);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  std::set<ThreadRecord*> distinct(records.begin(), records.end());
  distinct.insert(&thread_record());
  EXPECT_EQ(distinct.size(), kThreads + 1);
}

TEST(ThreadRecord, GoesToTheNextThreadWhenItsThreadEnds) {
  std::set<ThreadRecord*> records;
  for (int round = 0; round < 50; ++round) {
    std::thread([&] {
      ThreadRecord& record = thread_record();
      records.insert(&record);
      EXPECT_EQ(record.free_uses, kAllFree);
      EXPECT_EQ(record.looking & 1, 0U);
      EXPECT_EQ(record.question, 0U);
      for (const auto& use : record.uses)
        EXPECT_EQ(use, 0U);
      const Use use(record, object(0));
      const Look look(record);
      const Question question(record, object(1));
    }).join();
  }
  EXPECT_EQ(records.size(), 1U);
}

// A short way reads the attachment without looking whether there is one.
TEST(ThreadRecord, OnlyAThreadWithAnAttachmentHasAShortWay) {
  std::thread([] {
    ThreadRecord& record = thread_record();
    EXPECT_TRUE(record.takes_long_way());
    static bool kept = true;  // outlives the thread's stack
    record.attachment = &kept;
    record.detach = [](void* attachment) noexcept {
      *static_cast<bool*>(attachment) = false;
      EXPECT_TRUE(thread_record().takes_long_way());
    };
    record.choose_way();
    EXPECT_EQ(record.short_way, process_epoch());
    {
      const Waiting outer;
      { const Waiting inner; }
      EXPECT_TRUE(record.takes_long_way());
      EXPECT_EQ(exit_code_of([&] {
                  if (record.short_way == known_process_epoch()) return 1;
                  return thread_record().takes_long_way() ? 2 : 3;
                }),
                2);
    }
    EXPECT_EQ(exit_code_of([&] {
                if (record.short_way == known_process_epoch()) return 1;
                return thread_record().short_way == process_epoch() ? 2 : 3;
              }),
              2);
    EXPECT_EQ(record.short_way, process_epoch());
  }).join();
  std::thread([] { EXPECT_TRUE(thread_record().takes_long_way()); }).join();
}

// The program's own data of a thread may end later than the library's, and call it again.
TEST(ThreadRecord, AThreadThatCallsWhileItEndsLeavesNoRecordBehind) {
  static std::atomic<int> late_calls;
  late_calls = 0;
  pthread_key_t key{};
  ASSERT_EQ(pthread_key_create(&key,
                               [](void*) {
                                 const Use use(thread_record(), object(0));
                                 ++late_calls;
                               }),
            0);
  std::set<ThreadRecord*> records;
  for (int round = 0; round < 50; ++round) {
    std::thread([&] {
      records.insert(&thread_record());
      pthread_setspecific(key, &late_calls);
    }).join();
  }
  pthread_key_delete(key);
  EXPECT_EQ(late_calls, 50);
  EXPECT_LE(records.size(), 2U);
  wait_for_uses(object(0));
}

// ---- uses ----

TEST(ThreadRecord, UsesOfOtherThreadsAreWaitedForWhateverTheyUse) {
  Worker user;
  std::optional<Use> use;
  user.do_now([&] { use.emplace(thread_record(), object(0)); });
  EXPECT_TRUE(waits([] { wait_for_others(120'000); }, [&] { user.do_now([&] { use.reset(); }); }));
  wait_for_others(120'000);
}

TEST(ThreadRecord, AUseOfAnotherThreadIsWaitedFor) {
  ThreadRecord& record = thread_record();
  wait_for_uses(object(0));
  Use use(record, object(0));
  EXPECT_EQ(own_uses(object(0)), 1U);
  EXPECT_EQ(own_uses(object(1)), 0U);
  wait_for_uses(object(0));  // one's own does not count
  EXPECT_TRUE(waits([] { wait_for_uses(object(0)); }, [&] { use.release(); }));
  EXPECT_EQ(own_uses(object(0)), 0U);
  use.release();  // once more is nothing
  EXPECT_EQ(record.free_uses, kAllFree);
}

TEST(ThreadRecord, OnlyUsesOfTheObjectAreWaitedFor) {
  Worker other;
  Use use;
  other.do_now([&] { use = Use(thread_record(), object(0)); });
  wait_for_uses(object(1));
  EXPECT_EQ(own_uses(object(0)), 0U) << "it is the other thread's";
  other.do_now([&] { use.release(); });
  wait_for_uses(object(0));
}

TEST(ThreadRecord, AUseMoves) {
  ThreadRecord& record = thread_record();
  Use first(record, object(0));
  Use second(std::move(first));
  EXPECT_EQ(own_uses(object(0)), 1U);
  first.release();
  EXPECT_EQ(own_uses(object(0)), 1U) << "it has moved";
  Use third(record, object(1));
  third = std::move(second);
  EXPECT_EQ(own_uses(object(0)), 1U);
  third.release();
  EXPECT_EQ(own_uses(object(0)), 0U);
  EXPECT_EQ(own_uses(object(1)), 1U) << "assignment swaps";
  second.release();
  EXPECT_EQ(own_uses(object(1)), 0U);
  EXPECT_EQ(record.free_uses, kAllFree);
}

TEST(ThreadRecord, MoreUsesThanFitIntoARecord) {
  constexpr size_t kMany = 3 * ThreadRecord::kUses;
  ThreadRecord& record = thread_record();
  std::vector<Use> uses;
  for (size_t index = 0; index < kMany; ++index)
    uses.emplace_back(record, object(index));
  EXPECT_EQ(record.free_uses, 0U);
  for (size_t index = 0; index < kMany; ++index)
    EXPECT_EQ(own_uses(object(index)), 1U) << index;
  wait_for_uses(object(0));
  wait_for_uses(object(kMany - 1));  // one's own does not count there either
  {
    const Use again(record, object(kMany - 1));
    EXPECT_EQ(own_uses(object(kMany - 1)), 2U);
  }
  for (const size_t index : {size_t{0}, kMany - 1, size_t{ThreadRecord::kUses}}) {
    EXPECT_TRUE(waits([index] { wait_for_uses(object(index)); }, [&] { uses[index].release(); })) << index;
    EXPECT_EQ(own_uses(object(index)), 0U);
  }
  EXPECT_EQ(std::bitset<32>(record.free_uses).count(), 1U) << "the first place is free again";
  uses.clear();
  EXPECT_EQ(record.free_uses, kAllFree);
  Worker other;
  other.do_now([] {
    for (size_t index = 0; index < kMany; ++index)
      wait_for_uses(object(index));
  });
}

TEST(ThreadRecord, ManyUsesOfManyThreadsAreToldApart) {
  constexpr size_t kMany = 2 * ThreadRecord::kUses;
  Worker first;
  Worker second;
  std::vector<Use> of_first;
  std::vector<Use> of_second;
  for (const auto& [worker, uses] : {std::pair{&first, &of_first}, {&second, &of_second}}) {
    worker->do_now([uses = uses] {
      for (size_t index = 0; index < kMany; ++index)
        uses->emplace_back(thread_record(), object(index));
    });
  }
  first.do_now([&] { of_first.clear(); });
  first.do_now([] { EXPECT_EQ(own_uses(object(kMany - 1)), 0U); });
  EXPECT_TRUE(
      waits([] { wait_for_uses(object(kMany - 1)); }, [&] { second.do_now([&] { of_second.clear(); }); }));
}

// ---- passing uses ----

TEST(ThreadRecord, PassingUsesAreToldFromOthers) {
  Worker other;
  Use use;
  // A record brings its count along from the thread that had it before.
  other.do_now([] { (void)thread_record(); });
  const PassingUses before = passing_uses(object(0));
  EXPECT_FALSE(before.any_of);
  other.do_now([&] { use = Use(thread_record(), object(0)); });
  EXPECT_FALSE(passing_uses(object(0)).any_of) << "not a passing one";
  EXPECT_EQ(passing_uses(object(0)).begun, before.begun);
  other.do_now([&] { use = Use(thread_record(), object(0), true); });
  EXPECT_TRUE(passing_uses(object(0)).any_of);
  EXPECT_FALSE(passing_uses(object(1)).any_of);
  EXPECT_EQ(passing_uses(object(1)).begun, before.begun + 1);
  EXPECT_TRUE(waits([] { wait_for_uses(object(0)); }, [&] { other.do_now([&] { use.release(); }); }));
  const PassingUses after = passing_uses(object(0));
  EXPECT_FALSE(after.any_of);
  EXPECT_EQ(after.begun, before.begun + 1) << "it came and went";
}

TEST(ThreadRecord, PassingUsesThatDoNotFitIntoARecord) {
  Worker other;
  std::vector<Use> uses;
  other.do_now([&] {
    for (size_t index = 0; index <= ThreadRecord::kUses; ++index)
      uses.emplace_back(thread_record(), object(index), true);
  });
  EXPECT_TRUE(passing_uses(object(0)).any_of);
  EXPECT_TRUE(passing_uses(object(ThreadRecord::kUses)).any_of);
  EXPECT_FALSE(passing_uses(object(ThreadRecord::kUses + 1)).any_of);
  other.do_now([&] { uses.clear(); });
  EXPECT_FALSE(passing_uses(object(ThreadRecord::kUses)).any_of);
}

// ---- looks ----

TEST(ThreadRecord, ALookIsWaitedFor) {
  ThreadRecord& record = thread_record();
  wait_for_looks();
  {
    const Look look(record);
    wait_for_looks();  // one's own does not count
    {
      const Look within(record);
      EXPECT_EQ(record.looking & 1, 1U);
    }
    EXPECT_EQ(record.looking & 1, 1U) << "the outer one goes on";
  }
  EXPECT_EQ(record.looking & 1, 0U);
  auto look = std::make_unique<Look>(record);
  EXPECT_TRUE(waits([] { wait_for_looks(); }, [&] { look.reset(); }));
}

TEST(ThreadRecord, AFirstLookIsWaitedFor) {
  ThreadRecord& record = thread_record();
  {
    const FirstLook look(record);
    {
      const Look within(record);
      EXPECT_EQ(record.looking & 1, 1U);
    }
    EXPECT_EQ(record.looking & 1, 1U) << "the outer one goes on";
  }
  EXPECT_EQ(record.looking & 1, 0U);
  auto look = std::make_unique<FirstLook>(record);
  EXPECT_TRUE(waits([] { wait_for_looks(); }, [&] { look.reset(); }));
}

TEST(ThreadRecord, LooksThatBeginLaterAreNotWaitedFor) {
  std::atomic<bool> stop{false};
  std::thread looker([&] {
    while (!stop) {
      const Look look(thread_record());
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 50; ++round)
    wait_for_looks();  // would hang if it waited for a moment without any
  stop = true;
  looker.join();
}

// What a look finds is not freed before it ends.
TEST(ThreadRecord, WhatALookFindsStays) {
  constexpr int kRounds = 300;
  struct Node {
    std::atomic<bool> alive{true};
  };
  std::array<Node, kRounds + 1> nodes;
  std::atomic<Node*> current{&nodes[0]};
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> lookers;
  for (int number = 0; number < 4; ++number) {
    lookers.emplace_back([&] {
      while (!stop) {
        {
          const Look look(thread_record());
          const Node* const found = current.load(std::memory_order_acquire);
          for (int time = 0; time < 10; ++time)
            wrong += found->alive ? 0 : 1;
        }
        std::this_thread::yield();
      }
    });
  }
  for (size_t round = 1; round <= kRounds; ++round) {
    Node* const gone = current.exchange(&nodes[round]);
    wait_for_looks();
    gone->alive = false;
  }
  stop = true;
  for (std::thread& looker : lookers)
    looker.join();
  EXPECT_EQ(wrong, 0);
}

// ---- questions ----

TEST(ThreadRecord, FreeingWaitsForTheQuestionsUnderWay) {
  char* const base = objects[8].data();
  ThreadRecord& record = thread_record();
  for (const ptrdiff_t inside : {0, 7, 15}) {
    auto question = std::make_unique<Question>(record, base + inside);
    EXPECT_TRUE(question->allowed());
    EXPECT_TRUE(waits([&] { const Freeing freeing(reinterpret_cast<uint64_t>(base), 16); },
                      [&] { question.reset(); }))
        << inside;
  }
  for (const ptrdiff_t outside : {-1, 16}) {
    const Question question(record, base + outside);
    Worker other;
    other.do_now([&] { const Freeing freeing(reinterpret_cast<uint64_t>(base), 16); });
  }
  const Question own(record, base);
  const Freeing freeing(reinterpret_cast<uint64_t>(base), 16);  // one's own does not count
  EXPECT_TRUE(own.allowed());
}

TEST(ThreadRecord, NoQuestionIsAllowedAboutWhatIsBeingFreed) {
  char* const base = objects[8].data();
  Worker other;
  const auto allowed = [&](ptrdiff_t at) {
    bool result = false;
    other.do_now([&] { result = Question(thread_record(), base + at).allowed(); });
    return result;
  };
  {
    const Freeing first(reinterpret_cast<uint64_t>(base), 16);
    EXPECT_FALSE(allowed(0));
    EXPECT_FALSE(allowed(15));
    EXPECT_TRUE(allowed(-1));
    EXPECT_TRUE(allowed(16));
    {
      const Freeing second(reinterpret_cast<uint64_t>(base) + 16, 16);
      EXPECT_FALSE(allowed(16));
      EXPECT_FALSE(allowed(0));
    }
    EXPECT_TRUE(allowed(16));
    EXPECT_FALSE(allowed(0));
  }
  EXPECT_TRUE(allowed(0));
}

TEST(ThreadRecord, AQuestionWithinAnotherGivesItBack) {
  ThreadRecord& record = thread_record();
  const Question outer(record, object(8));
  { const Question inner(record, object(9)); }
  EXPECT_EQ(record.question, reinterpret_cast<uint64_t>(object(8)));
}

// ---- without membarrier(2) ----

// Threads that began before it was refused fence themselves from then on, as those that begin later.
TEST(ThreadRecord, WaitsWhereTheSystemRefusesMembarrier) {
  constexpr int kNoFilter = 7;
  constexpr int kNoMembarrier = 8;
  const auto wait_beside = [](bool thread_first) {
    alarm(60);  // a child that hangs is ended
    Worker early;
    early.do_now([] { thread_record(); });
    if (fencing.by_threads) return kNoMembarrier;
    if (!test::refuse_system_call(SYS_membarrier)) return kNoFilter;
    if (!thread_first) fence_all_threads();
    if (fencing.by_threads == thread_first) return 1;
    Worker late;
    late.do_now([] { thread_record(); });
    if (!fencing.by_threads) return 2;
    char* const base = objects[8].data();
    for (Worker* const worker : {&early, &late}) {
      Use use;
      worker->do_now([&] { use = Use(thread_record(), object(0)); });
      if (!waits([] { wait_for_uses(object(0)); }, [&] { worker->do_now([&] { use.release(); }); })) return 3;
      std::unique_ptr<Look> look;
      worker->do_now([&] { look = std::make_unique<Look>(thread_record()); });
      if (!waits([] { wait_for_looks(); }, [&] { worker->do_now([&] { look.reset(); }); })) return 4;
      std::unique_ptr<Question> question;
      worker->do_now([&] { question = std::make_unique<Question>(thread_record(), base); });
      if (!waits([&] { const Freeing freeing(reinterpret_cast<uint64_t>(base), 16); },
                 [&] { worker->do_now([&] { question.reset(); }); })) {
        return 6;
      }
    }
    return 5;
  };
  for (const bool thread_first : {false, true}) {
    const int code = exit_code_of([&] { return wait_beside(thread_first); });
    if (code == kNoFilter) GTEST_SKIP() << "this system takes no filter of system calls";
    if (code == kNoMembarrier) GTEST_SKIP() << "this system refuses membarrier(2) to everybody";
    EXPECT_EQ(code, 5);
  }
}

// ---- forks ----

// The threads of the parent are not the child's: whatever they announced, nobody waits for them.
TEST(ThreadRecord, AChildDoesNotWaitForTheThreadsOfItsParent) {
  char* const base = objects[8].data();
  Worker other;
  Worker third;
  std::vector<Use> uses;
  std::unique_ptr<Look> look;
  std::unique_ptr<Question> question;
  std::unique_ptr<Freeing> freeing;
  other.do_now([&] {
    ThreadRecord& record = thread_record();
    for (size_t index = 0; index <= ThreadRecord::kUses; ++index)
      uses.emplace_back(record, object(index), true);
    question = std::make_unique<Question>(record, base);
    look = std::make_unique<Look>(record);
  });
  third.do_now([&] { freeing = std::make_unique<Freeing>(reinterpret_cast<uint64_t>(base) + 64, 16); });
  const Use own(thread_record(), object(20));
  EXPECT_EQ(exit_code_of([&] {
              alarm(60);  // a child that hangs is ended
              wait_for_uses(object(0));
              wait_for_uses(object(ThreadRecord::kUses));
              wait_for_looks();
              if (passing_uses(object(0)).any_of) return 1;
              const Freeing childs(reinterpret_cast<uint64_t>(base), 16);
              if (!Question(thread_record(), base + 64).allowed()) return 2;
              // The thread that forked is in the middle of its call.
              if (own_uses(object(20)) != 1) return 3;
              if (!test::kChildrenHaveThreads) return 5;
              bool waited = false;
              std::thread childs_thread([&] {
                const Use use(thread_record(), object(1));
                waited = own_uses(object(1)) == 1 && own_uses(object(20)) == 0;
              });
              childs_thread.join();
              wait_for_uses(object(1));
              return waited ? 5 : 4;
            }),
            5);
  other.do_now([&] {
    look.reset();
    question.reset();
    uses.clear();
  });
  third.do_now([&] { freeing.reset(); });
  wait_for_uses(object(0));
}

TEST(ThreadRecord, AThreadKeepsItsRecordInAChild) {
  ThreadRecord* const mine = &thread_record();
  const uint32_t epoch = process_epoch();
  EXPECT_EQ(exit_code_of([&] {
              ThreadRecord& childs = thread_record();
              return &childs == mine && childs.process == process_epoch() && process_epoch() != epoch ? 5 : 1;
            }),
            5);
  EXPECT_EQ(mine->process, epoch);
}

// More uses than fit, of a call in whose middle the fork comes, are released in the child as well.
TEST(ThreadRecord, AChildReleasesTheUsesOfItsParent) {
  std::vector<Use> uses;
  for (size_t index = 0; index < 2 * ThreadRecord::kUses; ++index)
    uses.emplace_back(thread_record(), object(index));
  EXPECT_EQ(exit_code_of([&] {
              const Use childs(thread_record(), object(50));
              uses.clear();
              if (own_uses(object(50)) != 1) return 1;
              return own_uses(object(0)) == 0 ? 5 : 2;
            }),
            5);
  EXPECT_EQ(own_uses(object(2 * ThreadRecord::kUses - 1)), 1U);
}

}  // namespace
}  // namespace gpumem::platform
