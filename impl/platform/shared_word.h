// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Waiting for a word in memory that several processes have mapped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gpumem::platform {

// Returns when the word is no longer `seen`, on a wake-up, after a time, or spuriously.
void wait_for_change(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest);
// Wakes all waiters of the word, in every process.
void wake_all(std::atomic<uint32_t>& word) noexcept;

}  // namespace gpumem::platform
