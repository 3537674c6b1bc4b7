// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Playing, shrinking and telling.
#include "run.h"

#include <dlfcn.h>

#include "shrink.h"

namespace sequences {
namespace {

template <class F>
F driver_function(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* symbol = dlsym(library, name);
  dlclose(library);
  return reinterpret_cast<F>(symbol);
}

// What a difference is about: a function, or the whole text if it names none.
std::string subject_of(const Difference& difference) {
  return difference.what.substr(0, difference.what.find_first_of(":0123456789"));
}

}  // namespace

std::optional<Difference> play_with(Player& player, const Sequence& sequence) {
  std::optional<Difference> difference = player.play(sequence);
  if (difference) return difference;
  const std::string violations = player.on_host() ? "" : driver_violations();
  if (!violations.empty()) return Difference{SIZE_MAX, "the driver was misused: " + violations};
  return std::nullopt;
}

std::optional<Difference> play(const Options& options, const Sequence& sequence, Coverage& coverage) {
  Player player(options, coverage, false);
  return play_with(player, sequence);
}

Sequence shrink_failing(const Options& options, const Sequence& sequence, const Difference& difference) {
  // What depends on the timing of threads may fail only now and then.
  const int attempts = options.threads > 1 ? 20 : 1;
  return shrink(sequence, [&](const Sequence& candidate) {
    for (int i = 0; i < attempts; ++i) {
      Coverage ignored;
      const std::optional<Difference> found = play(options, candidate, ignored);
      if (found && subject_of(*found) == subject_of(difference)) return true;
    }
    return false;
  });
}

std::string describe(const Options& options, const Sequence& sequence) {
  Coverage ignored;
  Player player(options, ignored, true);
  const std::optional<Difference> difference = play_with(player, sequence);
  std::string text;
  for (const std::string& line : player.trace())
    text += "  " + line + "\n";
  if (difference) text += "  => " + difference->what + "\n";
  return text;
}

std::string explain_shortest(const Options& options, const Sequence& sequence, const Difference& difference) {
  const Sequence shortest = shrink_failing(options, sequence, difference);
  return "the shortest sequence that fails has " + std::to_string(shortest.steps.size()) + " steps (setup " +
         std::to_string(shortest.setup) + "):\n" + describe(options, shortest);
}

std::string explain(const Options& options, const Sequence& sequence, const Difference& difference,
                    uint64_t seed, size_t length) {
  const std::string where =
      difference.step == SIZE_MAX ? "after the last step" : "at step " + std::to_string(difference.step);
  return "seed " + std::to_string(seed) + ", " + where + ": " + difference.what + "\n" +
         "again: gpumem_sequences --backend " + (options.on_host ? "host" : "cuda") + " --seed " +
         std::to_string(seed) + " --count 1 --length " + std::to_string(length) + " --threads " +
         std::to_string(options.threads) + " --trace\n" + explain_shortest(options, sequence, difference);
}

std::string driver_violations() {
  auto* const violations = driver_function<size_t (*)(char*, size_t)>("fake_cuda_violations");
  if (violations == nullptr) return "";
  std::string text(size_t{1} << 16, '\0');
  if (violations(text.data(), text.size()) == 0) return "";
  text.resize(std::strlen(text.c_str()));
  driver_function<void (*)()>("fake_cuda_clear_violations")();
  return text;
}

KeptOpen::KeptOpen(bool on_host) {
  if (on_host) return;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_CUDA;
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (gpumem_instance_open(&desc, &instance_, &error) != GPUMEM_SUCCESS) problem_ = error.message;
}

KeptOpen::~KeptOpen() { gpumem_instance_close(instance_, GPUMEM_CLOSE_FORCE, nullptr, nullptr); }

}  // namespace sequences
