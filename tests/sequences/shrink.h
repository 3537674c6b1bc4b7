// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Finds the shortest sequence that still fails: steps are left out, many at first and then one by one, and
// what is left is made as simple as it can be.
#pragma once

#include "step.h"

namespace sequences {

// `fails` plays a sequence and tells whether it shows the difference.
template <class Fails>
Sequence shrink(Sequence sequence, Fails fails) {
  const auto try_it = [&](const Sequence& candidate) {
    if (!fails(candidate)) return false;
    sequence = candidate;
    return true;
  };
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (size_t chunk = sequence.steps.size(); chunk > 0; chunk /= 2) {
      for (size_t at = 0; at < sequence.steps.size();) {
        Sequence candidate = sequence;
        const size_t end = std::min(at + chunk, candidate.steps.size());
        candidate.steps.erase(candidate.steps.begin() + static_cast<ptrdiff_t>(at),
                              candidate.steps.begin() + static_cast<ptrdiff_t>(end));
        if (try_it(candidate)) {
          shorter = true;
        } else {
          at += chunk;
        }
      }
    }
  }
  Sequence plain = sequence;
  plain.setup = 0;
  if (sequence.setup != 0) try_it(plain);
  for (size_t step = 0; step < sequence.steps.size(); ++step) {
    for (size_t value = 0; value < kValues; ++value) {
      for (const uint8_t simple : {uint8_t{0}, uint8_t{1}, uint8_t{200}}) {
        if (sequence.steps[step].values.at(value) <= simple) continue;
        Sequence candidate = sequence;
        candidate.steps[step].values.at(value) = simple;
        if (try_it(candidate)) break;
      }
    }
  }
  return sequence;
}

}  // namespace sequences
