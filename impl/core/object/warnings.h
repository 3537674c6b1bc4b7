// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Log lines about other processes. To keep a repeating user from filling the log, logs only its first lines
// and the number of the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumem::core {

// Its owner locks, and logs the lines without the lock.
class Warnings {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr uint32_t kLines = 8;  // of one cause and user, in the time below
  static constexpr auto kPeriod = std::chrono::seconds(10);
  static inline constinit std::chrono::nanoseconds period = kPeriod;  // shorter in a test
  static constexpr uint32_t kUnknown = UINT32_MAX;                    // no user has this id

  // `cause` must be static. The name of the process follows it, except with kUnknown.
  void add(const char* cause, int32_t process, uint32_t user, const char* why, Time now,
           std::vector<std::string>& lines);
  // Adds how many lines were left out, for users whose period has ended.
  void add_left_out(Time now, std::vector<std::string>& lines);
  // When add_left_out() has something to say; Time::max(): never.
  Time next() const;

 private:
  static constexpr size_t kKnownMax = 256;  // more users share one account for each cause
  struct Known {
    Time until{};
    uint32_t lines = 0;
    uint64_t left_out = 0;
  };
  using Key = std::pair<std::string_view, uint32_t>;

  std::map<Key, Known> known_;
};

}  // namespace gpumem::core
