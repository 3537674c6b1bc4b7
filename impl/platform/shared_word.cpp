// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/shared_word.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace gpumem::platform {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

void wait_for_change(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest) {
  constexpr int64_t kSecond = 1'000'000'000;
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(longest.count() / kSecond);
  limit.tv_nsec = static_cast<long>(longest.count() % kSecond);
  (void)syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) noexcept {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace gpumem::platform
