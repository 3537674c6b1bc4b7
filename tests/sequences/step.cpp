// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Bytes to steps, and seeds to bytes.
#include "step.h"

#include <random>

namespace sequences {
namespace {

struct Entry {
  const char* name;
  uint32_t weight;
};

constexpr Entry kEntries[] = {
#define SEQUENCES_ENTRY(name, weight) {#name, weight},
    SEQUENCES_STEPS(SEQUENCES_ENTRY)
#undef SEQUENCES_ENTRY
};

constexpr uint32_t total_weight() {
  uint32_t total = 0;
  for (const Entry& entry : kEntries)
    total += entry.weight;
  return total;
}

Kind kind_at(uint32_t number) {
  uint32_t left = number % total_weight();
  uint8_t index = 0;
  while (left >= kEntries[index].weight) {
    left -= kEntries[index].weight;
    ++index;
  }
  return static_cast<Kind>(index);
}

}  // namespace

const char* name_of(Kind kind) { return kEntries[static_cast<size_t>(kind)].name; }

Sequence decode(std::span<const uint8_t> bytes) {
  Sequence sequence;
  if (bytes.empty()) return sequence;
  sequence.setup = bytes.front();
  bytes = bytes.subspan(1);
  for (; bytes.size() >= kStepBytes; bytes = bytes.subspan(kStepBytes)) {
    Step step;
    step.kind = kind_at(uint32_t{bytes[0]} << 8 | bytes[1]);
    step.thread = bytes[2];
    for (size_t i = 0; i < kValues; ++i)
      step.values.at(i) = bytes[3 + i];
    sequence.steps.push_back(step);
  }
  return sequence;
}

std::vector<uint8_t> random_bytes(uint64_t seed, size_t steps) {
  // The engine is fixed by the standard; the distributions are not, so none is used.
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15u + 1);
  std::vector<uint8_t> bytes(1 + steps * kStepBytes);
  constexpr uint8_t kRightChoices = 200;
  bytes[0] = static_cast<uint8_t>(random() % 256);
  for (size_t step = 0; step < steps; ++step) {
    uint8_t* const at = &bytes[1 + step * kStepBytes];
    for (size_t i = 0; i < 3; ++i)
      at[i] = static_cast<uint8_t>(random() % 256);
    // One step in four may have wrong arguments, and then every fourth of them.
    const bool wild = random() % 4 == 0;
    for (size_t i = 0; i < kValues; ++i) {
      const bool any = wild && random() % 4 == 0;
      at[3 + i] = static_cast<uint8_t>(random() % (any ? 256 : kRightChoices));
    }
  }
  return bytes;
}

}  // namespace sequences
