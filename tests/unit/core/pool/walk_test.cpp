// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every interleaving of threads that use, close and end the caches of a pool, on a small model: two users
// with a cache each, two blocks, and a third thread that trims the pool, ends its stream, or destroys it and
// fails to release its memory, so that it lives again.
//
// The model calls the library to find a cache, to take from it and to put into it. The rest copies the
// protocol: a step has one access of memory that others see, and names the function that it stands for. The
// stores of a thread become visible in their order, at any later time, as on x86; the weaker orders of arm64
// are not tried. Uses are left out, because no step needs them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/memory/pool_blocks.h"
#include "core/pool/cache.h"
#include "platform/thread_record.h"

namespace gpumem::core {
namespace {

constexpr uint8_t kUsers = 2;
constexpr uint8_t kThreads = 3;  // the last is no user
constexpr uint8_t kBlocks = 2;
constexpr uint8_t kNothing = 0xFF;

#define STEPS(STEP)                                              \
  STEP(kNext, "Look::Look(), or the thread ends")                \
  STEP(kPeek, "handles::look_up()")                              \
  STEP(kFind, "PoolCache::of_thread()")                          \
  STEP(kOpen, "PoolCache::open()")                               \
  STEP(kTouch, "PoolCache::take() or put(), Look::~Look()")      \
  STEP(kLookEnd, "Look::~Look()")                                \
  STEP(kPeekAgain, "handles::look_up() of the long way")         \
  STEP(kLock, "PoolCore::mutex_.lock()")                         \
  STEP(kServe, "PoolCore::try_small() or free_in()")             \
  STEP(kServeLate, "PoolCore::try_small() after drain_all()")    \
  STEP(kUnlock, "PoolCore::mutex_.unlock()")                     \
  STEP(kLockSeats, "PoolCache::end_thread(): lock")              \
  STEP(kLockCache, "PoolCore::end_cache(): lock")                \
  STEP(kEndCache, "PoolCore::end_cache(): drain(), delete")      \
  STEP(kClose, "PoolCore::drain_all() or end_stream(): closed")  \
  STEP(kFence, "fence_all_threads()")                            \
  STEP(kLooks, "wait_for_looks()")                               \
  STEP(kDrain, "PoolCore::drain() or empty_shelf(); not closed") \
  STEP(kReopen, "not closed")                                    \
  STEP(kEndHandle, "handles::end()")                             \
  STEP(kRetire, "PoolCore::retire(): retired_")                  \
  STEP(kLeave, "pool_seats::leave()")                            \
  STEP(kUnseat, "PoolCore::retire(): seat_")                     \
  STEP(kFree, "PoolCore::retire(): drain(), delete")             \
  STEP(kSit, "pool_seats::take()")                               \
  STEP(kRevive, "PoolCore::revive()")                            \
  STEP(kHandleAgain, "handles::revive()")                        \
  STEP(kDone, "end")
#define NAME(name, text) name,
#define TEXT(name, text) text,
enum Step : uint8_t { STEPS(NAME) };
constexpr std::array kTexts{STEPS(TEXT)};
using Code = std::vector<Step>;

enum class Fault {
  kNone,
  kNoMembarrier,
  kClosedAfterTheWait,
  kNoWaitForLooks,
  kReopenedBeforeDrained,
  kDrainedBlocksKept,
  kNothingReturnedAtTheEnd,
  kNoWaitBeforeRetiring,
  kSeatLeftAfterDraining,
  kSeatLeftUnderTheLock,
  kSeatReusedTooEarly,
};
enum class Scene { kTrim, kEndStream, kDestroy };

// Words that threads store without a lock.
enum Word : uint8_t { kLooking, kClosed = kLooking + kUsers, kWords = kClosed + kUsers };

struct Store {
  uint8_t word = 0;
  uint8_t value = 0;
};
struct Thread {
  uint8_t at = 0;            // in its code
  uint8_t calls = 0;         // yet to be made
  uint8_t block = kNothing;  // to be freed; kNothing: one is to be allocated
  uint8_t index = 0;         // of a loop over users
  uint8_t inner = 0;         // what the loop knows of that user
  uint8_t stores = 0;        // not visible yet
  std::array<Store, 2> store{};
};
struct Cache {
  uint8_t exists = 0;
  uint8_t entered = 0;  // the number in its thread's table
  uint8_t shelf = 0;
  uint8_t count = 0;
  std::array<uint8_t, kBlocks> blocks{};
};
// Bytes only, so that equal states have equal bytes.
struct State {
  std::array<Thread, kThreads> threads{};
  std::array<Cache, kUsers> caches{};
  std::array<uint8_t, kWords> words{};
  std::array<uint8_t, kBlocks> in_pool{};
  std::array<uint8_t, kBlocks> in_hand{};  // of the program, which may free it by any thread
  uint8_t handle = 1;
  uint8_t lock = kNothing;   // PoolCore::mutex_
  uint8_t seats = kNothing;  // Seats::mutex
  uint8_t seated = 1;        // Seat::pool
  uint8_t seated_number = 1;
  uint8_t retired = 0;
  uint8_t no_seat = 0;  // PoolCore::seat_
  uint8_t number = 1;
};
static_assert(std::has_unique_object_representations_v<State>);

// A cache of the library, which has the state of the model for one call.
class Real {
 public:
  Real() {
    shelf_->bins[0].capacity = kBlocks;
    shelf_->bins[0].blocks = std::make_unique<PoolFree[]>(kBlocks);
    run_->set_place(PoolClasses::kPage, kSize);
  }
  Real(const Real&) = delete;
  Real& operator=(const Real&) = delete;
  ~Real() {
    PoolCache::attach(record_, 0, 0, nullptr);
    record_.detach(record_.attachment);
  }

  bool finds(const State& state, const Cache& cache) {
    PoolCache::attach(record_, 0, cache.entered, &cache_);
    return PoolCache::of_thread(record_, state.no_seat != 0 ? PoolCache::kSeats : 0, state.number) != nullptr;
  }
  // Takes a block, or puts `block` in; kNothing if the cache refuses. `closed` is what open() has loaded.
  uint8_t serve(State& state, Cache& cache, uint8_t block, bool closed) {
    PoolShelf::Bin& bin = shelf_->bins[0];
    for (uint8_t i = 0; i < kBlocks; ++i)
      run_->state(i).store(state.in_pool.at(i) != 0 ? PoolRun::kFree : PoolRun::kLive);
    bin.count = cache.count;
    for (uint8_t i = 0; i < cache.count; ++i) {
      bin.blocks[i] = {run_->address_of_block(cache.blocks.at(i)), &run_->state(cache.blocks.at(i))};
      bin.blocks[i].state->store(PoolRun::kFree);
    }
    if (cache.shelf != 0) std::swap(shelf_, cache_.shelves[0]);
    cache_.closed.store(closed);
    uint8_t served = kNothing;
    if (block != kNothing) {
      if (cache_.put(0, *run_, run_->address_of_block(block))) served = block;
    } else if (const void* const taken = cache_.take(0, 0); taken != nullptr) {
      served = static_cast<uint8_t>(run_->index_of(address_of(taken)));
    }
    if (cache.shelf != 0) std::swap(shelf_, cache_.shelves[0]);
    cache.count = static_cast<uint8_t>(bin.count);
    cache.blocks = {};  // equal states have equal bytes
    for (uint8_t i = 0; i < cache.count; ++i)
      cache.blocks.at(i) = static_cast<uint8_t>(run_->index_of(bin.blocks[i].address));
    return served;
  }

 private:
  static constexpr uint64_t kSize = 256;
  platform::ThreadRecord record_;
  PoolCache cache_;
  std::unique_ptr<PoolShelf> shelf_ = std::make_unique<PoolShelf>();  // while the cache has none
  std::unique_ptr<PoolRun> run_ = PoolRun::make(0, kSize, kBlocks);
};

constexpr const char* kTwo = "two threads use a cache at once";
constexpr const char* kFreed = "a cache is used that was freed";
constexpr const char* kDouble = "a block is in two places";
constexpr const char* kKept = "a thread that has ended keeps blocks";
constexpr const char* kStuck = "threads wait for ever";

class Walk {
 public:
  // With `by_threads` membarrier(2) is refused, and each announcement has a fence of its own.
  Walk(Scene scene, Fault fault, bool by_threads = false)
      : scene_(scene), fault_(fault), by_threads_(by_threads) {
    Code drain{kClose, kFence, kLooks, kDrain};
    if (fault == Fault::kClosedAfterTheWait) drain = {kFence, kLooks, kClose, kDrain};
    if (fault == Fault::kNoWaitForLooks) drain = {kClose, kFence, kDrain};
    if (fault == Fault::kReopenedBeforeDrained) drain = {kClose, kFence, kLooks, kReopen, kDrain};
    Code user{kNext, kPeek, kFind, kOpen, kTouch, kLookEnd, kPeekAgain, kLock, kServe};
    user.insert(user.end(), drain.begin(), drain.end());
    user.insert(user.end(), {kServeLate, kLockSeats, kLockCache, kEndCache, kDone});
    drain.insert(drain.begin(), kLock);
    drain.insert(drain.end(), {kUnlock, kDone});
    Code destroy{kEndHandle, kRetire, kLeave, kFence,  kLooks,       kLock, kUnseat,
                 kFree,      kUnlock, kSit,   kRevive, kHandleAgain, kDone};
    const auto move_leave_to = [&](Step step) {
      std::erase(destroy, kLeave);
      destroy.insert(std::find(destroy.begin(), destroy.end(), step), kLeave);
    };
    if (fault == Fault::kNoWaitBeforeRetiring) std::erase(destroy, kLooks);
    if (fault == Fault::kSeatLeftAfterDraining) move_leave_to(kSit);
    if (fault == Fault::kSeatLeftUnderTheLock) move_leave_to(kUnseat);
    codes_ = {user, user, scene == Scene::kDestroy ? destroy : drain};
  }

  // What is wrong, and the steps to it; empty if nothing is.
  std::string run(uint8_t first_calls, uint8_t second_calls) {
    State state;
    state.threads[0].calls = first_calls;
    state.threads[1].calls = second_calls;
    state.caches[0] = {1, 1, 1, 1, {0}};
    state.caches[1] = {1, 1, 1, 0, {}};
    state.in_hand[1] = 1;
    visit(state);
    return wrong_;
  }

 private:
  // True once something is wrong.
  bool visit(const State& state) {
    if (!seen_.emplace(reinterpret_cast<const char*>(&state), sizeof state).second) return false;
    if (const char* const wrong = fault_in(state)) return report(wrong);
    bool stuck = true;
    bool done = true;
    for (uint8_t t = 0; t < kThreads; ++t) {
      done = done && step_of(state, t) == kDone && state.threads.at(t).stores == 0;
      // The calls that a user may make now are told apart by a number; the last is the first store's arrival.
      constexpr int kStore = kBlocks + 2;
      for (int choice = 0; choice <= kStore; ++choice) {
        State next = state;
        if (choice == kStore ? !arrive(next, t) : !step(next, t, choice)) continue;
        stuck = false;
        path_.emplace_back(t, choice == kStore ? "a store arrives" : kTexts.at(step_of(state, t)));
        if (broken_ != nullptr ? report(std::exchange(broken_, nullptr)) : visit(next)) return true;
        path_.pop_back();
      }
    }
    return stuck && !done && report(kStuck);
  }
  bool report(const char* what) {
    wrong_ = std::string(what) + ":";
    for (const auto& [t, text] : path_)
      wrong_ += std::string("\n  ") + static_cast<char>('A' + t) + ": " + text;
    return true;
  }
  Step step_of(const State& state, uint8_t t) const { return codes_.at(t).at(state.threads.at(t).at); }

  // The cache that a thread is in the middle of reading and writing.
  uint8_t touched(const State& state, uint8_t t) {
    switch (step_of(state, t)) {
      case kTouch:
        return state.threads.at(t).inner == 0 ? t : kNothing;
      case kEndCache:
        return t;
      case kServe:
      case kServeLate:
        return state.retired == 0 && finds(state, t) ? t : kNothing;
      case kDrain:
      case kFree:
        return state.threads.at(t).inner == 0 ? next_cache(state, t) : kNothing;
      default:
        return kNothing;
    }
  }
  const char* fault_in(const State& state) {
    std::array<uint8_t, kUsers> touching{};
    bool ended = true;
    for (uint8_t t = 0; t < kThreads; ++t) {
      ended = ended && step_of(state, t) == kDone;
      const uint8_t cache = touched(state, t);
      if (cache >= kUsers) continue;
      if (state.caches.at(cache).exists == 0) return kFreed;
      if (++touching.at(cache) != 1) return kTwo;
    }
    for (uint8_t block = 0; block < kBlocks; ++block) {
      int places = state.in_pool.at(block) + state.in_hand.at(block);
      for (const Thread& thread : state.threads)
        places += thread.block == block ? 1 : 0;
      for (const Cache& cache : state.caches)
        places += cache.exists == 0 ? 0
                                    : static_cast<int>(std::count(cache.blocks.begin(),
                                                                  cache.blocks.begin() + cache.count, block));
      if (places > 1) return kDouble;
      if (places == 0) return "a block is lost";
    }
    const auto exists = [](const Cache& cache) { return cache.exists != 0; };
    if (ended && std::any_of(state.caches.begin(), state.caches.end(), exists)) return kKept;
    return nullptr;
  }

  bool finds(const State& state, uint8_t user) { return real_.at(user).finds(state, state.caches.at(user)); }

  // ---- stores ----
  static void make_visible(State& state, uint8_t t) {
    while (arrive(state, t)) {
    }
  }
  static bool arrive(State& state, uint8_t t) {
    Thread& thread = state.threads.at(t);
    if (thread.stores == 0) return false;
    const auto [word, value] = thread.store[0];
    state.words.at(word) = value;
    thread.store = {thread.store[1], {}};
    --thread.stores;
    return true;
  }
  // False while the thread has no room for it.
  static bool store(State& state, uint8_t t, int word, int value) {
    Thread& thread = state.threads.at(t);
    if (thread.stores == thread.store.size()) return false;
    thread.store.at(thread.stores++) = {static_cast<uint8_t>(word), static_cast<uint8_t>(value)};
    return true;
  }
  static uint8_t load(const State& state, uint8_t t, int word) {
    uint8_t value = state.words.at(static_cast<size_t>(word));
    for (uint8_t i = 0; i < state.threads.at(t).stores; ++i) {
      const auto [stored, newer] = state.threads.at(t).store.at(i);
      if (stored == word) value = newer;
    }
    return value;
  }

  // ---- steps ----
  // The next cache of the thread's loop; kUsers: none.
  uint8_t next_cache(const State& state, uint8_t t) const {
    uint8_t index = state.threads.at(t).index;
    const auto skipped = [&](const Cache& cache) {
      return cache.exists == 0 || (scene_ == Scene::kEndStream && t == kUsers && cache.shelf == 0);
    };
    while (index < kUsers && skipped(state.caches.at(index)))
      ++index;
    return index;
  }
  static bool take_lock(State& state, uint8_t t, uint8_t& lock) {
    if (lock != kNothing) return false;
    lock = t;
    make_visible(state, t);
    return true;
  }
  void drain(State& state, Cache& cache) const {
    for (uint8_t i = 0; i < cache.count; ++i)
      ++state.in_pool.at(cache.blocks.at(i));
    if (fault_ == Fault::kDrainedBlocksKept) return;
    cache.shelf = cache.count = 0;
    cache.blocks = {};
  }
  // Short way and long way; false if the cache does not serve the call.
  bool serve_from_cache(State& state, uint8_t t, bool closed) {
    Thread& thread = state.threads.at(t);
    const uint8_t served = real_.at(t).serve(state, state.caches.at(t), thread.block, closed);
    if (served == kNothing) return false;
    if (closed) broken_ = "a closed cache is used";
    if (thread.block == kNothing) ++state.in_hand.at(served);
    thread.block = kNothing;
    return true;
  }
  // The long way, with the lock; false if nothing is free.
  bool serve(State& state, uint8_t t) {
    Thread& thread = state.threads.at(t);
    Cache& cache = state.caches.at(t);
    if (state.retired == 0) {
      if (!finds(state, t)) {  // PoolCore::cache_of_thread()
        cache = {1, state.number, 0, 0, {}};
        state.words.at(kClosed + t) = 0;
      }
      cache.shelf = 1;  // PoolCore::shelf_of()
      if (serve_from_cache(state, t, load(state, t, kClosed + t) != 0)) return true;
    }
    if (thread.block != kNothing) {  // PoolCore::free_block()
      ++state.in_pool.at(std::exchange(thread.block, kNothing));
      return true;
    }
    bool served = false;
    for (uint8_t block = 0; block < kBlocks; ++block) {  // PoolCore::gather()
      if (state.in_pool.at(block) == 0 || (served && state.retired != 0)) continue;
      --state.in_pool.at(block);
      if (served) {
        cache.blocks.at(cache.count++) = block;
      } else {
        ++state.in_hand.at(block);
      }
      served = true;
    }
    return served;
  }

  // Makes the thread's next step; false if it has to wait.
  bool step(State& state, uint8_t t, int choice) {
    Thread& thread = state.threads.at(t);
    const Step now = step_of(state, t);
    if (now == kDone || (choice != 0 && now != kNext)) return false;
    std::optional<Step> jump;
    switch (now) {
      case kNext:
        if (choice == kBlocks + 1) {
          jump = kLockSeats;
          thread.calls = 0;
          break;
        }
        if (thread.calls == 0) return false;
        if (choice != 0) {
          thread.block = static_cast<uint8_t>(choice - 1);
          if (state.in_hand.at(thread.block) == 0) return false;
          --state.in_hand.at(thread.block);
        }
        --thread.calls;
        if (!store(state, t, kLooking + t, load(state, t, kLooking + t) + 1)) return false;
        if (by_threads_) make_visible(state, t);
        break;
      case kPeek:
        if (state.handle == 0) jump = kLookEnd;
        break;
      case kFind:
        if (!finds(state, t)) jump = kLookEnd;
        break;
      case kOpen:
        thread.inner = load(state, t, kClosed + t);
        ++thread.at;
        return true;
      case kTouch:
      case kLookEnd:
        if (!store(state, t, kLooking + t, load(state, t, kLooking + t) + 1)) return false;
        if (now == kTouch) jump = serve_from_cache(state, t, thread.inner != 0) ? kNext : kPeekAgain;
        break;
      case kPeekAgain:
        if (state.handle != 0) break;
        if (thread.block != kNothing) ++state.in_hand.at(std::exchange(thread.block, kNothing));
        jump = kNext;  // the call fails
        break;
      case kLock:
        if (!take_lock(state, t, state.lock)) return false;
        break;
      case kServe:
      case kServeLate:
        if (!serve(state, t) && now == kServe) break;
        [[fallthrough]];
      case kUnlock:
        make_visible(state, t);
        state.lock = kNothing;
        if (now != kUnlock) jump = kNext;
        break;
      case kLockSeats:
        if (!take_lock(state, t, state.seats)) return false;
        break;
      case kLockCache:
        if (state.seated == 0 || state.seated_number != state.caches.at(t).entered ||
            fault_ == Fault::kNothingReturnedAtTheEnd) {
          state.seats = kNothing;
          jump = kDone;
        } else if (!take_lock(state, t, state.lock)) {
          return false;
        }
        break;
      case kEndCache:
        drain(state, state.caches.at(t));
        state.caches.at(t).exists = 0;
        state.lock = state.seats = kNothing;
        break;
      case kClose:
      case kReopen: {
        const uint8_t cache = thread.index = next_cache(state, t);
        if (cache == kUsers) break;
        if (!store(state, t, kClosed + cache, now == kClose ? 1 : 0)) return false;
        ++thread.index;
        if (next_cache(state, t) != kUsers) return true;
        break;
      }
      case kFence:
        for (uint8_t each = 0; each < kThreads; ++each) {
          if (each == t || (!by_threads_ && fault_ != Fault::kNoMembarrier)) make_visible(state, each);
        }
        break;
      case kLooks: {
        if (thread.index == t) ++thread.index;
        if (thread.index >= kUsers) break;
        const uint8_t looking = load(state, t, kLooking + thread.index);
        if (thread.inner == 0 && looking % 2 != 0) {
          thread.inner = looking;
          return true;
        }
        if (thread.inner != 0 && thread.inner == looking) return false;
        thread.inner = 0;
        if (++thread.index < kUsers) return true;
        break;
      }
      case kDrain:
      case kFree: {
        const uint8_t cache = thread.index = thread.inner == 0 ? next_cache(state, t) : thread.index;
        if (cache == kUsers) break;
        if (thread.inner == 0) {
          drain(state, state.caches.at(cache));
          thread.inner = 1;
          if (now == kDrain) return true;
          state.caches.at(cache) = {0, state.caches.at(cache).entered, 0, 0, {}};
        } else if (!store(state, t, kClosed + cache, 0)) {
          return false;
        }
        thread.inner = 0;
        ++thread.index;
        return true;
      }
      case kEndHandle:
        state.handle = 0;
        break;
      case kLeave:
        if (state.seats != kNothing) return false;
        state.seated = state.seated_number = 0;
        break;
      case kRetire:
        if (state.lock != kNothing) return false;
        state.retired = 1;
        break;
      case kUnseat:
        state.no_seat = 1;
        break;
      case kSit:
        if (state.seats != kNothing) return false;
        state.seated = 1;
        state.seated_number =
            static_cast<uint8_t>(state.number + (fault_ != Fault::kSeatReusedTooEarly ? 1 : 0));
        break;
      case kRevive:
        if (state.lock != kNothing) return false;
        state.retired = state.no_seat = 0;
        state.number = state.seated_number;
        break;
      case kHandleAgain:
        state.handle = 1;
        break;
      case kDone:
        break;
    }
    thread.index = thread.inner = 0;
    ++thread.at;
    const Code& code = codes_.at(t);
    if (jump) thread.at = static_cast<uint8_t>(std::find(code.begin(), code.end(), *jump) - code.begin());
    return true;
  }

  const Scene scene_;
  const Fault fault_;
  const bool by_threads_;
  std::array<Code, kThreads> codes_;
  std::array<Real, kUsers> real_;
  std::unordered_set<std::string> seen_;
  std::vector<std::pair<uint8_t, const char*>> path_;
  const char* broken_ = nullptr;
  std::string wrong_;
};

TEST(PoolWalk, no_interleaving_breaks_the_caches) {
  for (const Scene scene : {Scene::kTrim, Scene::kEndStream, Scene::kDestroy}) {
    EXPECT_EQ(Walk(scene, Fault::kNone).run(2, 1), "");
    EXPECT_EQ(Walk(scene, Fault::kNone, true).run(2, 1), "") << "without membarrier(2)";
  }
}

// So the walk above would notice them.
TEST(PoolWalk, each_fault_of_the_protocol_is_found) {
  const auto found = [](Scene scene, Fault fault) {
    const std::string what = Walk(scene, fault).run(2, 1);
    return what.substr(0, what.find(':'));
  };
  for (const Scene scene : {Scene::kTrim, Scene::kEndStream, Scene::kDestroy}) {
    EXPECT_EQ(found(scene, Fault::kNoMembarrier), kTwo);
    EXPECT_EQ(found(scene, Fault::kClosedAfterTheWait), kTwo);
    EXPECT_EQ(found(scene, Fault::kNoWaitForLooks), kTwo);
    EXPECT_EQ(found(scene, Fault::kReopenedBeforeDrained), kTwo);
    EXPECT_EQ(found(scene, Fault::kDrainedBlocksKept), kDouble);
    EXPECT_EQ(found(scene, Fault::kNothingReturnedAtTheEnd), kKept);
  }
  EXPECT_EQ(found(Scene::kDestroy, Fault::kNoWaitBeforeRetiring), kTwo);
  EXPECT_EQ(found(Scene::kDestroy, Fault::kSeatLeftAfterDraining), kFreed);
  EXPECT_EQ(found(Scene::kDestroy, Fault::kSeatLeftUnderTheLock), kStuck);
  EXPECT_EQ(found(Scene::kDestroy, Fault::kSeatReusedTooEarly), kFreed);
}

}  // namespace
}  // namespace gpumem::core
