// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plays whole sequences and tells of the ones that fail; shared by the test program and the fuzzer.
#pragma once

#include <optional>
#include <string>

#include "player.h"

namespace sequences {

// On one thread or on several, as the options say.
std::optional<Difference> play(const Options& options, const Sequence& sequence, Coverage& coverage);
// The same by a player that may be asked afterwards.
std::optional<Difference> play_with(Player& player, const Sequence& sequence);
// The shortest one that still shows a difference of the same function.
Sequence shrink_failing(const Options& options, const Sequence& sequence, const Difference& difference);
// Its calls, a line for each, and the difference at the end.
std::string describe(const Options& options, const Sequence& sequence);
// All that is needed to see and repeat a failure.
std::string explain(const Options& options, const Sequence& sequence, const Difference& difference,
                    uint64_t seed, size_t length);
std::string explain_shortest(const Options& options, const Sequence& sequence, const Difference& difference);

// What the fake driver has recorded, if it is the driver in use.
std::string driver_violations();

// An instance that stays open: setting up a device anew for each sequence takes most of the time on cuda.
class KeptOpen {
 public:
  explicit KeptOpen(bool on_host);
  KeptOpen(const KeptOpen&) = delete;
  KeptOpen& operator=(const KeptOpen&) = delete;
  ~KeptOpen();
  const std::string& problem() const { return problem_; }

 private:
  gpumem_instance instance_ = nullptr;
  std::string problem_;
};

}  // namespace sequences
