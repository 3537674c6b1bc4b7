// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem_fuzz: the same steps from the bytes of a coverage-guided fuzzer (libFuzzer), on the host backend.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "run.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed);

// A run is over long before it has freed so much, and memory that comes back soon is mapped and in the cache.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=16:malloc_context_size=10"; }

// What is too short for a few steps is replaced by a random sequence, so that there is something to change.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  constexpr size_t kFew = 12;
  if (size >= kFew * sequences::kStepBytes) return LLVMFuzzerMutate(data, size, max_size);
  const std::vector<uint8_t> fresh = sequences::random_bytes(seed, 2 * kFew);
  const size_t length = std::min(fresh.size(), max_size);
  std::copy_n(fresh.begin(), length, data);
  return length;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sequences;
  static const int kept = setenv("GPUMEM_BACKEND", "host", 1);
  if (kept != 0) std::abort();
  const Sequence sequence = decode({data, size});
  const Options options;
  Coverage coverage;
  const std::optional<Difference> difference = play(options, sequence, coverage);
  if (!difference) return 0;
  std::fprintf(stderr, "%s\n%s", difference->what.c_str(),
               explain_shortest(options, sequence, *difference).c_str());
  std::abort();  // tells the fuzzer to keep the input
}
