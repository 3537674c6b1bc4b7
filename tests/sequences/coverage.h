// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which functions were called, and how they answered.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sequences {

struct Counts {
  uint64_t successes = 0;  // notes included
  uint64_t failures = 0;
};

class Coverage {
 public:
  void count(const char* function, bool success) {
    Counts& counts = counts_[function];
    ++(success ? counts.successes : counts.failures);
  }
  void add(const Coverage& other) {
    for (const auto& [function, counts] : other.counts_) {
      counts_[function].successes += counts.successes;
      counts_[function].failures += counts.failures;
    }
  }
  Counts of(const std::string& function) const {
    const auto found = counts_.find(function);
    return found == counts_.end() ? Counts{} : found->second;
  }

 private:
  std::map<std::string, Counts> counts_;
};

}  // namespace sequences
