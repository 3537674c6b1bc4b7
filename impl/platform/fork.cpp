// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/fork.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <new>

#include "platform/descriptor.h"
#include "platform/pages.h"

namespace gpumem::platform {

namespace {

// Until the page exists.
constinit std::atomic<uint32_t> no_page_yet{0};

}  // namespace

// The word lives in a page that the kernel clears in every forked child, however the fork was made.
constinit std::atomic<std::atomic<uint32_t>*> detail::epoch_word{&no_page_yet};

namespace {

using detail::epoch_word;

// In ordinary memory, so a child inherits it and counts on from there.
constinit std::atomic<uint32_t> last_epoch{0};

// Used for good once the page could not be created (out of memory, or Linux before 4.14): creating it later
// would give this process a second epoch.
constinit std::atomic<uint32_t> no_word{0};

std::atomic<uint32_t>* keep(std::atomic<uint32_t>* word) {
  std::atomic<uint32_t>* expected = &no_page_yet;
  return epoch_word.compare_exchange_strong(expected, word) ? word : expected;
}

std::atomic<uint32_t>* map_epoch_word() {
  const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return keep(&no_word);
  if (advise(page, size, MADV_WIPEONFORK) != 0) {
    munmap(page, size);
    return keep(&no_word);
  }
  auto* const word = new (page) std::atomic<uint32_t>(0);
  auto* const kept = keep(word);
  if (kept != word) munmap(page, size);  // another thread won the race
  return kept;
}

}  // namespace

uint32_t detail::make_process_epoch() {
  std::atomic<uint32_t>* word = epoch_word.load(std::memory_order_acquire);
  if (word == &no_page_yet) word = map_epoch_word();
  // The process id works too, at the cost of a system call.
  if (word == &no_word) return static_cast<uint32_t>(getpid());
  uint32_t epoch = word->load(std::memory_order_relaxed);
  if (epoch != 0) return epoch;
  const uint32_t next = last_epoch.fetch_add(1) + 1;
  return word->compare_exchange_strong(epoch, next) ? next : epoch;
}

// ---- descriptors ----

namespace {

// Places for descriptors. No lock, because a child may be forked at any time, and never freed. A free place
// has 0, one with a descriptor that plus one.
struct Places {
  std::array<std::atomic<int>, 62> values{};
  std::atomic<Places*> next{nullptr};
};

constinit Places first_places;
constinit std::atomic<bool> is_called_in_children{false};

// In the child there is no other thread. Only what is safe in a signal handler may be called.
void close_inherited() {
  for (Places* places = &first_places; places != nullptr; places = places->next.load()) {
    for (std::atomic<int>& place : places->values) {
      if (const int value = place.exchange(0); value != 0) close_descriptor(value - 1);
    }
  }
}

bool replace(int before, int after) {
  for (Places* places = &first_places; places != nullptr; places = places->next.load()) {
    for (std::atomic<int>& place : places->values) {
      int expected = before;
      if (place.load() == before && place.compare_exchange_strong(expected, after)) return true;
    }
  }
  return false;
}

}  // namespace

void close_in_children(int file_descriptor) noexcept {
  if (!is_called_in_children.exchange(true)) (void)pthread_atfork(nullptr, nullptr, close_inherited);
  const int value = file_descriptor + 1;
  while (!replace(0, value)) {
    Places* more = nullptr;
    try {
      more = new Places;
    } catch (const std::bad_alloc&) {
      return;
    }
    Places* last = &first_places;
    for (Places* next = nullptr; !last->next.compare_exchange_strong(next, more); next = nullptr)
      last = next;
  }
}

void forget_for_children(int file_descriptor) noexcept { (void)replace(file_descriptor + 1, 0); }

}  // namespace gpumem::platform
