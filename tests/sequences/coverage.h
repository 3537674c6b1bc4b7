// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which functions were called, and how they answered.
#pragma once

#include <cstdint>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace sequences {

// What other tests have: conformance, the fault loops and the walk of tests/processes.
inline bool is_played_elsewhere(const std::string& function) {
  static const std::regex elsewhere(
      "^gpumem_(share_|hub_|link_|ring_|event_(export|import)|memory_get_import_info)");
  return std::regex_search(function, elsewhere);
}

struct Counts {
  uint64_t successes = 0;  // notes included
  uint64_t failures = 0;
  std::set<std::string> faults;  // each was the only one of a call
};

class Coverage {
 public:
  void count(const char* function, bool success) {
    Counts& counts = counts_[function];
    ++(success ? counts.successes : counts.failures);
  }
  // The one thing that was wrong with a call.
  void fault(const char* function, const std::string& fault) {
    if (!fault.empty()) counts_[function].faults.insert(fault);
  }
  void add(const Coverage& other) {
    for (const auto& [function, counts] : other.counts_) {
      counts_[function].successes += counts.successes;
      counts_[function].failures += counts.failures;
      counts_[function].faults.insert(counts.faults.begin(), counts.faults.end());
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
