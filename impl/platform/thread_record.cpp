// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/thread_record.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

namespace gpumem::platform {

constinit thread_local ThreadRecord* thread_record_or_null = nullptr;
constinit thread_local uint32_t host_function_process = 0;
constinit Fencing fencing;

namespace {

constinit std::atomic<ThreadRecord*> records{nullptr};

// Records of the first threads, so that most programs allocate none.
constinit std::array<ThreadRecord, 64> first_records{};
constinit std::atomic<size_t> first_used{0};

// Throws std::bad_alloc.
ThreadRecord* new_record() {
  const size_t index =
      first_used.load() < first_records.size() ? first_used.fetch_add(1) : first_records.size();
  return index < first_records.size() ? &first_records[index] : new ThreadRecord;
}

constexpr uintptr_t kPassing = Use::kPassing;

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

// Whether this process can make the stores of its other threads visible by a system call.
bool has_membarrier() { return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0; }

// Uses beyond those that fit into a record, as a batch of copies makes them.
struct Overflow {
  struct Entry {
    uintptr_t object;
    const ThreadRecord* record;
    uint64_t place;
  };
  std::mutex mutex;
  std::vector<Entry> entries;                     // by place
  uint64_t last_place = ThreadRecord::kUses - 1;  // counts on in a forked child, which releases its parent's

  void inherit(const Overflow& parents) { last_place = parents.last_place; }
};

constinit PerProcess<Overflow> overflow;

// The record goes to the next new thread.
void release_record(void* argument) {
  auto& record = *static_cast<ThreadRecord*>(argument);
  void* const attachment = std::exchange(record.attachment, nullptr);
  record.choose_way();
  // End the attachment while the thread has its record, because this may look at shared records.
  if (attachment != nullptr) record.detach(attachment);
  thread_record_or_null = nullptr;
  record.process.store(0, std::memory_order_release);
}

// The key plus one. Not a static with an initial value: a child forked while a thread makes that value would
// wait for it.
constinit std::atomic<uint64_t> exit_key{0};

// Runs release_record() when the calling thread ends. Without a key its record is not used again.
void release_at_exit(ThreadRecord& record) {
  uint64_t key = exit_key.load(std::memory_order_acquire);
  if (key == 0) {
    pthread_key_t made{};
    if (pthread_key_create(&made, release_record) != 0) return;
    if (exit_key.compare_exchange_strong(key, uint64_t{made} + 1, std::memory_order_acq_rel)) {
      key = uint64_t{made} + 1;
    } else {
      pthread_key_delete(made);  // another thread won the race
    }
  }
  pthread_setspecific(static_cast<pthread_key_t>(key - 1), &record);
}

bool matches(uintptr_t announced, const void* object) {
  return (announced & ~kPassing) == reinterpret_cast<uintptr_t>(object);
}

// Calls `function` for every other thread of this process.
template <class F>
void for_each_other(F function) {
  const uint32_t process = process_epoch();
  for (ThreadRecord* record = records.load(std::memory_order_acquire); record != nullptr;
       record = record->next) {
    if (record == thread_record_or_null || record->process.load(std::memory_order_acquire) != process)
      continue;
    function(*record);
  }
}

// Mostly microseconds; a thread that blocks in a call of its own can take longer, so the waiter soon sleeps.
template <class F>
void wait_while(F holds) {
  for (int round = 0; holds(); ++round) {
    if (round < 100) {
      sched_yield();
    } else {
      const timespec pause{0, 50'000};
      nanosleep(&pause, nullptr);
    }
  }
}

// The frees of all instances; few at a time.
struct Freed {
  std::mutex mutex;
  Freeing* first = nullptr;
};

constinit PerProcess<Freed> freed;
constinit std::atomic<uint32_t> freeing_now{
    0};  // a forked child may inherit a number above 0, and then looks

}  // namespace

ThreadRecord& make_thread_record() {
  const uint32_t process = process_epoch();
  ThreadRecord* record = thread_record_or_null;
  // In a forked child the thread keeps its record, with the uses of the calls that it is in the middle of.
  if (record == nullptr) {
    for (record = records.load(std::memory_order_acquire); record != nullptr; record = record->next) {
      uint32_t nobody = 0;
      if (record->process.compare_exchange_strong(nobody, process, std::memory_order_acq_rel)) break;
    }
  }
  if (record == nullptr) {
    record = new_record();
    record->process.store(process, std::memory_order_relaxed);
    record->next = records.load(std::memory_order_relaxed);
    while (!records.compare_exchange_weak(record->next, record, std::memory_order_acq_rel)) {
    }
  }
  record->process.store(process, std::memory_order_release);
  record->choose_way();
  if (!has_membarrier()) fencing.by_threads = true;
  release_at_exit(*record);
  thread_record_or_null = record;
  return *record;
}

// ---- uses ----

uint64_t Use::announce_beyond(ThreadRecord& record, uintptr_t announced) {
  Overflow& more = overflow.get();
  const std::lock_guard lock(more.mutex);
  more.entries.push_back({announced, &record, more.last_place + 1});
  return ++more.last_place;
}

void Use::withdraw_beyond(uint64_t place) noexcept {
  Overflow* const more = overflow.find();
  if (more == nullptr) return;  // announced in the parent of this process
  const std::lock_guard lock(more->mutex);
  const auto found = std::ranges::lower_bound(more->entries, place, {}, &Overflow::Entry::place);
  if (found != more->entries.end() && found->place == place) more->entries.erase(found);
}

void fence_all_threads() noexcept {
  full_fence();
  if (fencing.known_to_all.load(std::memory_order_acquire)) return;
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  // A forked child has to register again.
  if (has_membarrier() && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  // Refused, perhaps by a filter that was installed when threads were running already. Taking a right from a
  // page would interrupt them on x86, but processors of arm64 learn that without an interrupt. So wait, once,
  // for far longer than a processor holds back a store or keeps what it loaded early.
  fencing.by_threads = true;
  timespec left{0, 10'000'000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
  fencing.known_to_all.store(true, std::memory_order_release);
}

UsedBy used_by(const void* object) noexcept {
  UsedBy used = UsedBy::kNone;
  const auto note = [&](const ThreadRecord& record) {
    used = std::max(used,
                    record.waiting.load(std::memory_order_acquire) != 0 ? UsedBy::kWaiting : UsedBy::kOthers);
  };
  for_each_other([&](const ThreadRecord& record) {
    for (const auto& use : record.uses) {
      if (matches(use.load(std::memory_order_acquire), object)) note(record);
    }
  });
  if (Overflow* const more = overflow.find(); more != nullptr) {
    const std::lock_guard lock(more->mutex);
    for (const Overflow::Entry& entry : more->entries) {
      if (entry.record != thread_record_or_null && matches(entry.object, object)) note(*entry.record);
    }
  }
  return used;
}

void wait_for_uses(const void* object) noexcept {
  const Waiting mark;
  wait_while([&] { return used_by(object) != UsedBy::kNone; });
}

bool wait_for_ending_uses(const void* object) noexcept {
  UsedBy used = UsedBy::kNone;
  wait_while([&] { return (used = used_by(object)) == UsedBy::kOthers; });
  return used == UsedBy::kNone;
}

void wait_for_others(uint32_t milliseconds) noexcept {
  fence_all_threads();
  for (uint32_t round = 0; round < 20 * milliseconds; ++round) {
    bool any = false;
    for_each_other([&](const ThreadRecord& record) {
      for (const auto& use : record.uses)
        any = any || use.load(std::memory_order_acquire) != 0;
    });
    if (!any) return;
    const timespec pause{0, 50'000};
    nanosleep(&pause, nullptr);
  }
}

uint32_t own_uses(const void* object) noexcept {
  const ThreadRecord* const record = thread_record_or_null;
  if (record == nullptr) return 0;
  uint32_t count = 0;
  for (const auto& use : record->uses)
    count += matches(use.load(std::memory_order_relaxed), object) ? 1U : 0U;
  if (Overflow* const more = overflow.find(); more != nullptr) {
    const std::lock_guard lock(more->mutex);
    count += static_cast<uint32_t>(std::ranges::count_if(more->entries, [&](const Overflow::Entry& entry) {
      return entry.record == record && matches(entry.object, object);
    }));
  }
  return count;
}

PassingUses passing_uses(const void* object) noexcept {
  fence_all_threads();
  PassingUses result;
  for_each_other([&](ThreadRecord& record) {
    result.begun += record.passing_begun.load(std::memory_order_acquire);
    for (const auto& use : record.uses) {
      const uintptr_t announced = use.load(std::memory_order_acquire);
      if (matches(announced, object) && (announced & kPassing) != 0) result.any_of = true;
    }
  });
  if (Overflow* const more = overflow.find(); more != nullptr) {
    const std::lock_guard lock(more->mutex);
    for (const Overflow::Entry& entry : more->entries) {
      if (matches(entry.object, object) && (entry.object & kPassing) != 0) result.any_of = true;
    }
  }
  return result;
}

// ---- looks and questions ----

void wait_for_looks() noexcept {
  fence_all_threads();
  for_each_other([](ThreadRecord& record) {
    const uint64_t seen = record.looking.load(std::memory_order_acquire);
    if ((seen & 1) == 0) return;
    wait_while([&] { return record.looking.load(std::memory_order_acquire) == seen; });
  });
}

Question::Question(ThreadRecord& record, const void* address)
    : record_(record), before_(record.question.load(std::memory_order_relaxed)) {
  const auto asked = reinterpret_cast<uint64_t>(address);
  record_.question.store(asked, std::memory_order_relaxed);
  order_announcement();
  if (freeing_now.load(std::memory_order_acquire) == 0) return;
  Freed* const all = freed.find();
  if (all == nullptr) return;
  const std::lock_guard lock(all->mutex);
  for (const Freeing* range = all->first; range != nullptr; range = range->next_) {
    if (asked - range->base_ < range->size_) allowed_ = false;
  }
}

Freeing::Freeing(uint64_t base, uint64_t size) noexcept : base_(base), size_(size) {
  Freed& all = freed.get();
  {
    const std::lock_guard lock(all.mutex);
    next_ = all.first;
    all.first = this;
    freeing_now.fetch_add(1);
  }
  fence_all_threads();
  for_each_other([&](ThreadRecord& record) {
    wait_while([&] {
      const uint64_t address = record.question.load(std::memory_order_acquire);
      return address != 0 && address - base_ < size_;
    });
  });
}

Freeing::~Freeing() {
  Freed& all = freed.get();
  const std::lock_guard lock(all.mutex);
  Freeing** place = &all.first;
  while (*place != this)
    place = &(*place)->next_;
  *place = next_;
  freeing_now.fetch_sub(1);
}

}  // namespace gpumem::platform
