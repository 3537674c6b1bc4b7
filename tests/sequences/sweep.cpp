// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One bad argument at a time: each step plays in a scene where everything else is right, with each of its
// choices made wrong in every way there is. Which arguments a function has is read from its type, so that a
// new function or parameter that no step spoils is a failure.
#include "sweep.h"

#include <dlfcn.h>

#include <random>
#include <type_traits>

namespace sequences {
namespace {

// ---- what each function takes ----

template <class S, class = void>
inline constexpr bool kIsSized = false;
template <class S>
inline constexpr bool kIsSized<S, std::void_t<decltype(S::struct_size)>> = true;

template <class T, class = void>
inline constexpr bool kIsComplete = false;
template <class T>
inline constexpr bool kIsComplete<T, std::void_t<decltype(sizeof(T))>> = true;

// The arguments of a function that can be wrong in ways of their own, by their sorts.
struct Signature {
  std::vector<const char*> sorts;

  template <class Result, class... Arguments>
  Signature(Result (*)(Arguments...)) {
    (add<Arguments>(), ...);
  }

 private:
  template <class T>
  void add() {
    using Pointee = std::remove_pointer_t<T>;
    using Plain = std::remove_const_t<Pointee>;
    if constexpr (std::is_same_v<T, gpumem_instance>) {
      sorts.push_back("instance");
    } else if constexpr (std::is_same_v<T, gpumem_device>) {
      sorts.push_back("device");
    } else if constexpr (std::is_same_v<T, gpumem_memory>) {
      sorts.push_back("memory");
    } else if constexpr (std::is_same_v<T, gpumem_physical>) {
      sorts.push_back("physical");
    } else if constexpr (std::is_same_v<T, gpumem_range>) {
      sorts.push_back("range");
    } else if constexpr (std::is_same_v<T, gpumem_buffer>) {
      sorts.push_back("buffer");
    } else if constexpr (std::is_same_v<T, gpumem_group>) {
      sorts.push_back("group");
    } else if constexpr (std::is_same_v<T, gpumem_pool>) {
      sorts.push_back("pool");
    } else if constexpr (std::is_same_v<T, gpumem_stream>) {
      sorts.push_back("stream");
    } else if constexpr (std::is_same_v<T, gpumem_event>) {
      sorts.push_back("event");
    } else if constexpr (std::is_same_v<T, gpumem_error*>) {
      sorts.push_back(kError);
    } else if constexpr (std::is_pointer_v<T> && kIsComplete<Plain>) {
      if constexpr (kIsSized<Plain>) {
        sorts.push_back(std::is_const_v<Pointee> ? kInput : kAnswer);
      } else if constexpr (!std::is_const_v<Pointee> && !std::is_same_v<Plain, char>) {
        sorts.push_back(kOutput);
      }
    }
  }
};

// In the order of gpumem_table.
const Signature kSignatures[] = {
#include "table.inc"
};

std::span<const char* const> faults_of(std::string_view sort) {
  if (sort == kInput || sort == kAnswer) return kStructFaults;
  if (sort == kOutput) return kOutputFaults;
  if (sort == kError) return kErrorFaults;
  return kHandleFaults;
}

std::string missing_faults(const Coverage& coverage) {
  gpumem_table table;
  table.struct_size = sizeof table;
  if (gpumem_table_get(GPUMEM_VERSION, &table, nullptr) != GPUMEM_SUCCESS) return "there is no table\n";
  static_assert(sizeof table == sizeof(size_t) + std::size(kSignatures) * sizeof(void*));
  void* functions[std::size(kSignatures)];
  std::memcpy(functions, reinterpret_cast<const char*>(&table) + sizeof(size_t), sizeof functions);
  std::string problem;
  for (size_t i = 0; i < std::size(kSignatures); ++i) {
    Dl_info symbol{};
    if (dladdr(functions[i], &symbol) == 0 || symbol.dli_sname == nullptr) return "a function has no name\n";
    if (is_played_elsewhere(symbol.dli_sname)) continue;
    const std::set<std::string> seen = coverage.of(symbol.dli_sname).faults;
    const std::vector<const char*>& sorts = kSignatures[i].sorts;
    for (auto sort = sorts.begin(); sort != sorts.end(); ++sort) {
      const auto number = std::count(sorts.begin(), sort + 1, *sort);
      for (const char* fault : faults_of(*sort)) {
        const std::string name = Choice::fault_name(*sort, number, fault);
        if (!seen.contains(name)) problem += std::string(symbol.dli_sname) + " never had " + name + "\n";
      }
    }
  }
  return problem;
}

// ---- the scene ----

Step step_of(Kind kind, std::initializer_list<uint8_t> values) {
  Step step;
  step.kind = kind;
  std::copy(values.begin(), values.end(), step.values.begin());
  return step;
}

// Two open instances and a closed one; live objects of every kind, also of the other instance, and one of
// each that is gone.
std::vector<Step> scene() {
  constexpr uint8_t kHeap = 120;
  return {
      step_of(Kind::k_instance_open, {}),
      step_of(Kind::k_instance_open, {}),
      step_of(Kind::k_instance_close, {0, 2}),
      step_of(Kind::k_memory_create, {0, 0, 0, 7}),
      step_of(Kind::k_memory_create, {0, 0, 1, 7}),
      step_of(Kind::k_memory_register, {0, 0, kHeap, 0, 5, 1}),
      step_of(Kind::k_memory_create, {0, 2, 0}),
      step_of(Kind::k_memory_create, {}),
      step_of(Kind::k_memory_destroy, {0, 4}),
      step_of(Kind::k_physical_create, {0, 0, 0, 2}),
      step_of(Kind::k_physical_create, {0, 0, 2}),
      step_of(Kind::k_physical_create, {0, 2}),
      step_of(Kind::k_physical_create, {}),
      step_of(Kind::k_physical_release, {0, 3}),
      step_of(Kind::k_range_reserve, {}),
      step_of(Kind::k_range_reserve, {0, 1}),
      step_of(Kind::k_range_reserve, {}),
      step_of(Kind::k_range_release, {0, 2}),
      step_of(Kind::k_range_map, {}),
      step_of(Kind::k_group_create, {}),
      step_of(Kind::k_group_create, {0, 1}),
      step_of(Kind::k_group_create, {}),
      step_of(Kind::k_group_destroy, {0, 2}),
      step_of(Kind::k_buffer_create, {}),
      step_of(Kind::k_buffer_create, {0, 1}),
      step_of(Kind::k_buffer_create, {0, 2}),
      step_of(Kind::k_buffer_create, {}),
      step_of(Kind::k_buffer_destroy, {0, 3}),
      step_of(Kind::k_buffer_sleep, {0, 1}),
      step_of(Kind::k_memory_create, {0, 0, 2, 7}),
      step_of(Kind::k_stream_create, {}),
      step_of(Kind::k_stream_create, {0, 2}),
      step_of(Kind::k_stream_create, {}),
      step_of(Kind::k_stream_destroy, {0, 2}),
      step_of(Kind::k_event_create, {}),
      step_of(Kind::k_event_create, {}),
      step_of(Kind::k_event_create, {0, 2}),
      step_of(Kind::k_event_create, {}),
      step_of(Kind::k_event_destroy, {0, 3}),
      step_of(Kind::k_event_record, {}),
      step_of(Kind::k_event_record, {0, 1}),
      step_of(Kind::k_stream_synchronize, {}),
      step_of(Kind::k_host_native_stream_create, {}),
      step_of(Kind::k_host_foreign_alloc, {}),
      step_of(Kind::k_device_enable_peer_access, {0, 0, 1}),
  };
}

// How many calls, some of which succeed, the scene has objects for.
size_t in_one_scene(Kind kind) {
  switch (kind) {
    case Kind::k_instance_open:
    case Kind::k_instance_close:
    case Kind::k_memory_destroy:
    case Kind::k_stream_destroy:
    case Kind::k_event_destroy:
    case Kind::k_physical_release:
    case Kind::k_range_release:
    case Kind::k_buffer_destroy:
    case Kind::k_buffer_sleep:
    case Kind::k_buffer_wake:
    case Kind::k_group_destroy:
    case Kind::k_free:
    case Kind::k_unregister:
    case Kind::k_pool_destroy:
      return 8;
    case Kind::k_pool_create:
    case Kind::k_pool_free:
    case Kind::k_pool_free_sized:
    case Kind::k_pool_free_batch:
    case Kind::k_pool_free_native:
    case Kind::k_pool_free_pointer:
      return 30;
    default:
      return 500;
  }
}

bool is_about_pools(Kind kind) { return std::string_view(name_of(kind)).starts_with("pool_"); }

// For steps on pools, which take a while to make: pools with blocks, one of the other instance and one that
// is gone, and only what else those steps use.
std::vector<Step> scene_with_pools() {
  constexpr uint8_t kPinned = 1;
  constexpr uint8_t kPageable = 2;
  return {
      step_of(Kind::k_instance_open, {}),
      step_of(Kind::k_instance_open, {}),
      step_of(Kind::k_instance_close, {0, 2}),
      step_of(Kind::k_stream_create, {}),
      step_of(Kind::k_stream_create, {0, 2}),
      step_of(Kind::k_stream_create, {}),
      step_of(Kind::k_stream_destroy, {0, 2}),
      step_of(Kind::k_event_create, {}),
      step_of(Kind::k_pool_create, {}),
      step_of(Kind::k_pool_create, {0, 0, 0, kPinned}),
      step_of(Kind::k_pool_create, {0, 2, 0, kPageable}),
      step_of(Kind::k_pool_create, {0, 0, 0, kPageable}),
      step_of(Kind::k_pool_destroy, {0, 3}),
      step_of(Kind::k_pool_alloc, {0, 0, 0, 0, 1}),
      step_of(Kind::k_pool_alloc_batch, {0, 0, 2}),
      step_of(Kind::k_pool_alloc_batch, {0, 0, 2}),
      step_of(Kind::k_pool_alloc_batch, {0, 0, 2}),
      step_of(Kind::k_pool_alloc_batch, {0, 1, 2}),
      step_of(Kind::k_pool_alloc, {0, 2}),
  };
}

// What the scene lacks for a step.
std::vector<Step> preparation(Kind kind) {
  if (kind == Kind::k_instance_close) return std::vector<Step>(5, step_of(Kind::k_instance_open, {}));
  if (kind == Kind::k_buffer_forget_registration) return {step_of(Kind::k_buffer_note_registration, {})};
  return {};
}

// ---- the sweep ----

class Sweep {
 public:
  Sweep(const Options& options, size_t bases) : options_(options), bases_(bases) {}

  std::string run() {
    for (auto kind = Kind{}; kind < Kind::k_texts && problem_.empty();
         kind = static_cast<Kind>(static_cast<uint8_t>(kind) + 1)) {
      sweep(kind);
    }
    return problem_.empty() ? missing_faults(coverage_) : problem_;
  }
  const Coverage& coverage() const { return coverage_; }

 private:
  // Right arguments of a step in the scene; most often they succeed, and those that do come first.
  std::vector<std::pair<Step, size_t>> right_steps(Kind kind) {
    constexpr int kAttempts = 60;
    std::mt19937_64 random(static_cast<uint64_t>(kind) + 1);
    std::vector<std::pair<Step, size_t>> good;
    std::vector<std::pair<Step, size_t>> refused;
    for (int attempt = 0; attempt < kAttempts && good.size() < bases_ && problem_.empty(); ++attempt) {
      Step step = step_of(kind, {});
      if (attempt > 0) {
        for (uint8_t& value : step.values)
          value = static_cast<uint8_t>(random() % kWrong);
      }
      std::vector<Step> steps = preparation(kind);
      steps.push_back(step);
      const Latest latest = play(steps);
      if (!latest.called) continue;
      (GPUMEM_FAILED(latest.status) ? refused : good).emplace_back(step, latest.bytes);
    }
    if (good.empty()) good = refused;
    if (good.size() > bases_) good.resize(bases_);
    return good;
  }

  void sweep(Kind kind) {
    for (const auto& [right, bytes] : right_steps(kind)) {
      std::vector<Step> wrong;
      for (size_t position = 0; position < std::min(bytes, kValues); ++position) {
        for (int value = kWrong; value <= UINT8_MAX; ++value) {
          wrong.push_back(right);
          wrong.back().values.at(position) = static_cast<uint8_t>(value);
        }
      }
      const size_t most = in_one_scene(kind);
      for (size_t first = 0; first < wrong.size() && problem_.empty(); first += most) {
        std::vector<Step> steps = preparation(kind);
        const size_t end = std::min(first + most, wrong.size());
        steps.insert(steps.end(), wrong.begin() + static_cast<ptrdiff_t>(first),
                     wrong.begin() + static_cast<ptrdiff_t>(end));
        play(steps);
      }
    }
  }

  Latest play(const std::vector<Step>& steps) {
    Sequence sequence{0, is_about_pools(steps.back().kind) ? scene_with_pools() : scene()};
    sequence.steps.insert(sequence.steps.end(), steps.begin(), steps.end());
    Player player(options_, coverage_, false);
    const std::optional<Difference> difference = play_with(player, sequence);
    if (difference) {
      problem_ = "in the sweep of " + std::string(name_of(steps.back().kind)) + ": " + difference->what +
                 "\n" + explain_shortest(options_, sequence, *difference);
    }
    return player.latest();
  }

  const Options options_;
  const size_t bases_;
  Coverage coverage_;
  std::string problem_;
};

}  // namespace

std::string check_bad_arguments(const Options& options, size_t bases, Coverage& coverage) {
  Sweep sweep(options, bases);
  const std::string problem = sweep.run();
  coverage.add(sweep.coverage());
  return problem;
}

}  // namespace sequences
