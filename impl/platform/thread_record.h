// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What each thread announces to the others: the objects it uses, that it looks at shared records, and the
// address about which it asks a driver.
//
// Announcing is a store to a line of the thread's own. The side that frees pays instead: it makes all
// threads' stores visible with membarrier(2), reads all records and waits for those that concern it. The
// scheme is that of hazard pointers (Michael, 2004) with an asymmetric fence.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "platform/fork.h"

namespace gpumem::platform {

struct alignas(128) ThreadRecord {
  static constexpr uint32_t kUses = 16;

  // Read by other threads.
  std::atomic<uint64_t> looking{0};  // odd while the thread looks at shared records
  std::atomic<uint64_t> question{0};
  std::atomic<uint64_t> passing_begun{0};  // passing uses ever announced
  std::atomic<uint32_t> process{0};  // epoch of the process in which the thread runs; 0: no thread has it
  std::atomic<uint32_t> waiting{0};  // see Waiting

  // The thread's own.
  // `process` if the thread has an attachment, and neither runs a function of the caller nor waits; otherwise
  // kLongWay. Calls that change what the thread keeps take a short way only then.
  uint32_t short_way = kLongWay;
  bool takes_long_way() const { return short_way == kLongWay; }
  static constexpr uint32_t kLongWay = UINT32_MAX;  // no process has this epoch
  void choose_way() noexcept;
  uint32_t free_uses = (uint32_t{1} << kUses) - 1;  // bits of `uses`

  // What another layer keeps for the thread, and how to end it with the thread.
  void* attachment = nullptr;
  void (*detach)(void* attachment) noexcept = nullptr;

  ThreadRecord* next = nullptr;  // never changes once the record is listed; records are never freed

  std::array<std::atomic<uintptr_t>, kUses> uses{};  // read by other threads
};

// Initial-exec: one load, and only a pointer of the little static space that libraries loaded later share.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local ThreadRecord* thread_record_or_null;
// Epoch of the process in which a function of the caller runs on this thread, or 0. Not in the record,
// because a thread of a driver may have none, and cannot report that there is no memory for one.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local uint32_t host_function_process;
inline void ThreadRecord::choose_way() noexcept {
  const bool is_free =
      attachment != nullptr && host_function_process == 0 && waiting.load(std::memory_order_relaxed) == 0;
  short_way = is_free ? process.load(std::memory_order_relaxed) : kLongWay;
}
// Every call reads it, so it has a cache line of its own. Neither is ever taken back.
struct alignas(128) Fencing {
  std::atomic<bool> by_threads{false};  // membarrier(2) is refused, so threads fence their own announcements
  std::atomic<bool> known_to_all{false};
};
[[gnu::visibility("hidden")]] extern constinit Fencing fencing;

// Makes the record of a thread that has none in this process. Throws std::bad_alloc.
ThreadRecord& make_thread_record();

inline ThreadRecord& thread_record() {
  ThreadRecord* const record = thread_record_or_null;
  if (record != nullptr && record->process.load(std::memory_order_relaxed) == known_process_epoch())
      [[likely]] {
    return *record;
  }
  return make_thread_record();
}

// std::atomic_thread_fence(std::memory_order_seq_cst), which GCC refuses together with ThreadSanitizer.
inline void full_fence() { __sync_synchronize(); }

// Orders an announcement before the loads that follow it. The other half is in the functions that wait.
inline void order_announcement() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (fencing.by_threads.load(std::memory_order_relaxed)) [[unlikely]]
    full_fence();
}

// ---- uses ----

// Announces that this thread uses an object, from construction to release(). The caller must look again after
// construction whether the object is still there. A passing use is one that ends with the call that makes it.
class Use {
 public:
  Use() = default;
  Use(ThreadRecord& record, const void* object, bool passing = false) : record_(&record) {
    if (passing) {
      record.passing_begun.store(record.passing_begun.load(std::memory_order_relaxed) + 1,
                                 std::memory_order_relaxed);
    }
    const uintptr_t announced = reinterpret_cast<uintptr_t>(object) | (passing ? kPassing : 0);
    if (record.free_uses != 0) [[likely]] {
      place_ = static_cast<uint64_t>(std::countr_zero(record.free_uses));
      record.free_uses &= record.free_uses - 1;
      record.uses[place_].store(announced, std::memory_order_release);
    } else {
      place_ = announce_beyond(record, announced);
    }
    order_announcement();
  }
  Use(Use&& other) noexcept : record_(other.record_), place_(other.place_) { other.record_ = nullptr; }
  Use& operator=(Use&& other) noexcept {
    std::swap(record_, other.record_);
    std::swap(place_, other.place_);
    return *this;
  }
  ~Use() { release(); }

  void release() noexcept {
    ThreadRecord* const record = std::exchange(record_, nullptr);
    if (record == nullptr) return;
    if (place_ >= ThreadRecord::kUses) [[unlikely]] {
      return withdraw_beyond(place_);
    }
    record->uses[place_].store(0, std::memory_order_release);
    record->free_uses |= uint32_t{1} << place_;
  }

  static constexpr uintptr_t kPassing = 1;  // objects are aligned, so that the lowest bit is free

 private:
  // For announcements beyond those that fit into a record.
  [[gnu::cold]] static uint64_t announce_beyond(ThreadRecord& record, uintptr_t announced);
  [[gnu::cold]] static void withdraw_beyond(uint64_t place) noexcept;

  ThreadRecord* record_ = nullptr;
  uint64_t place_ = 0;  // in `uses`; kUses and above: in the overflow list
};

// Marks this thread's uses as out of its control: it runs a function of the caller, or waits for another
// thread.
class Waiting {
 public:
  Waiting() noexcept : record_(thread_record_or_null) { add(1); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { add(UINT32_MAX); }

 private:
  void add(uint32_t change) noexcept {
    if (record_ == nullptr) return;  // it uses nothing
    record_->waiting.store(record_->waiting.load(std::memory_order_relaxed) + change,
                           std::memory_order_release);
    record_->choose_way();
  }
  ThreadRecord* const record_;
};

// Makes the announcements of all threads visible to the caller. A thread whose announcement comes later sees
// all that the caller wrote before.
void fence_all_threads() noexcept;
// Waits until no other thread uses an object that cannot be found since before the last fence_all_threads().
// A thread uses it for as long as a call of its own blocks.
void wait_for_uses(const void* object) noexcept;
// wait_for_uses() for a thread that others may wait for, as in a callback: returns false once one of the
// using threads is Waiting.
bool wait_for_ending_uses(const void* object) noexcept;
// How other threads use it now, without waiting.
enum class UsedBy : uint8_t { kNone, kOthers, kWaiting };
UsedBy used_by(const void* object) noexcept;
// Uses of an object that the calling thread has announced.
uint32_t own_uses(const void* object) noexcept;

// Waits until no other thread uses anything, up to a limit: for the end of the process.
void wait_for_others(uint32_t milliseconds) noexcept;

struct PassingUses {
  uint64_t begun = 0;   // of all threads
  bool any_of = false;  // of the object, now
};
PassingUses passing_uses(const void* object) noexcept;

// ---- looking ----

// While one lives, nothing that this thread finds in shared records is freed. Keep it short, without
// blocking, driver calls or callbacks, because a call that frees waits for it.
class Look {
 public:
  explicit Look(ThreadRecord& record)
      : record_(record), before_(record.looking.load(std::memory_order_relaxed)) {
    record_.looking.store(before_ | 1, std::memory_order_relaxed);
    order_announcement();
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;
  ~Look() {
    if ((before_ & 1) == 0) [[likely]]
      record_.looking.store(before_ + 2, std::memory_order_release);
  }

 private:
  ThreadRecord& record_;
  const uint64_t before_;
};

// The same for a thread that looks at nothing yet, as at the beginning of a call. Within another look it
// would end that one.
class FirstLook {
 public:
  explicit FirstLook(ThreadRecord& record) : record_(record) {
    step<std::memory_order_relaxed>();
    order_announcement();
  }
  FirstLook(const FirstLook&) = delete;
  FirstLook& operator=(const FirstLook&) = delete;
  ~FirstLook() { step<std::memory_order_release>(); }

 private:
  // Loads again, which needs no register meanwhile. Inlined in code that is built for size too.
  template <std::memory_order kOrder>
  [[gnu::always_inline]] void step() {
    record_.looking.store(record_.looking.load(std::memory_order_relaxed) + 1, kOrder);
  }
  ThreadRecord& record_;
};

// Fences, and waits until every look that began before the call has ended.
void wait_for_looks() noexcept;

// ---- questions ----

// A driver crashes or hangs if it is asked about memory that it is freeing (measured: docs/measured). So a
// thread announces the address of its question, and a call that frees waits for such questions.
class Question {
 public:
  Question(ThreadRecord& record, const void* address);
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  ~Question() { record_.question.store(before_, std::memory_order_release); }

  // False if the memory there is being freed: then the driver must not be asked.
  bool allowed() const { return allowed_; }

 private:
  ThreadRecord& record_;
  const uint64_t before_;
  bool allowed_ = true;
};

// While one lives, no question about its addresses is allowed. Its constructor waits for running questions.
class Freeing {
 public:
  Freeing(uint64_t base, uint64_t size) noexcept;
  Freeing(const Freeing&) = delete;
  Freeing& operator=(const Freeing&) = delete;
  ~Freeing();

 private:
  friend class Question;
  const uint64_t base_;
  const uint64_t size_;
  Freeing* next_ = nullptr;
};

}  // namespace gpumem::platform
