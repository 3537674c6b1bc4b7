// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The identity of this process, which tells it from a later one with the same pid.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"

namespace gpumem::platform {

using Id = std::array<uint8_t, 16>;

// From the system's source of random numbers.
Id random_id();
// Of the boot; zero where the system does not tell. LIMIT_EXCEEDED if there is no free descriptor to ask
// with.
Result<Id> boot_id();
// In its own process namespace.
int32_t process_id();
// When a process began, in clock ticks after the boot; 0 where the system does not tell. LIMIT_EXCEEDED.
Result<uint64_t> start_time_of(int32_t process);
Result<uint64_t> own_start_time();
// The namespace in which this process has its number; 0 if the system does not tell.
uint64_t process_namespace();
// Whether the process of this namespace that began then still runs. True in doubt.
bool process_lives(int32_t process, uint64_t start_time);

// A process that began then; one that waits for its parent has ended.
enum class Whereabouts { kEnded, kSameNetwork, kOtherNetwork };
// LIMIT_EXCEEDED if there is no free descriptor to ask with.
Result<Whereabouts> whereabouts_of(int32_t process, uint64_t start_time);

}  // namespace gpumem::platform
