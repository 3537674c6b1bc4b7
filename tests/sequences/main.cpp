// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem_sequences: random call sequences against the model, with the cases as TAP on stdout.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <regex>

#include "run.h"
#include "sweep.h"

namespace sequences {
namespace {

// The TAP lines of one program.
class Cases {
 public:
  void check(const std::string& name, const std::string& problem) {
    std::istringstream lines(problem);
    for (std::string line; std::getline(lines, line);)
      std::cout << "# " << line << "\n";
    std::cout << (problem.empty() ? "ok " : "not ok ") << ++count_ << " - " << name << std::endl;
    failed_ = failed_ || !problem.empty();
  }
  int finish() const {
    std::cout << "1.." << count_ << std::endl;
    return failed_ ? 1 : 0;
  }

 private:
  int count_ = 0;
  bool failed_ = false;
};

struct Request {
  std::string backend = "host";
  std::string exports;
  uint64_t seed = 1;
  uint64_t count = 1000;
  size_t length = 60;
  uint32_t threads = 1;
  size_t sweep = 0;
  bool trace = false;
};

// A planted lie about one function must be found and cut down to the calls that it needs.
std::string check_shrinker(const Request& request) {
  Options options;
  options.on_host = request.backend == "host";
  options.planted = true;
  Coverage coverage;
  // Always the same sequences: others may not come to it.
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const Sequence sequence = decode(random_bytes(seed, request.length));
    const std::optional<Difference> found = play(options, sequence, coverage);
    if (!found) continue;
    const Sequence shortest = shrink_failing(options, sequence, *found);
    // A stream, an event, and the record that the model lies about.
    if (shortest.steps.size() != 3) {
      return "the shortest sequence has " + std::to_string(shortest.steps.size()) + " steps; expected 3\n" +
             describe(options, shortest);
    }
    const std::string text = describe(options, shortest);
    for (const char* word : {"gpumem_event_create(", "gpumem_event_record(", "expected GPUMEM_ERROR_BUSY"}) {
      if (text.find(word) == std::string::npos) return std::string(word) + " is not mentioned\n" + text;
    }
    return "";
  }
  return "no sequence showed the planted difference";
}

std::string check_coverage(const std::string& exports, bool on_host, const Coverage& coverage) {
  std::ifstream file(exports);
  if (!file) return exports + " cannot be read";
  // These have no way to fail.
  const std::regex always("^gpumem_(version|version_text|feature_supported|status_name)$");
  // Nothing here has a fabric, host has no native events, and cuda nothing of the host backend's own but what
  // belongs to the thread. A capture there is begun by the driver's own calls.
  const std::regex never(
      on_host ? "^gpumem_(event_wrap|physical_\\w+_fabric)$"
              : "^gpumem_(host_(?!set_current_device)|(physical_\\w+_fabric|pool_release_capture)$)");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::regex name("gpumem_[a-z0-9_]+(?=;)");
  std::string problem;
  size_t count = 0;
  for (auto found = std::sregex_iterator(text.begin(), text.end(), name); found != std::sregex_iterator();
       ++found) {
    const std::string function = found->str();
    const Counts counts = coverage.of(function);
    ++count;
    if (is_played_elsewhere(function)) continue;
    if (counts.successes + counts.failures == 0) problem += function + " was never called\n";
    if (std::regex_search(function, always)) continue;
    if (counts.failures == 0) problem += function + " never failed\n";
    if (counts.successes == 0 && !std::regex_search(function, never))
      problem += function + " never succeeded\n";
  }
  if (count == 0) problem += "no function is listed in " + exports + "\n";
  return problem;
}

std::string check_sequences(const Request& request, const Options& options, Coverage& coverage) {
  for (uint64_t seed = request.seed; seed < request.seed + request.count; ++seed) {
    const Sequence sequence = decode(random_bytes(seed, request.length));
    if (request.trace) std::cout << "# seed " << seed << "\n" << describe(options, sequence);
    const std::optional<Difference> found = play(options, sequence, coverage);
    if (!found) continue;
    return explain(options, sequence, *found, seed, request.length);
  }
  return "";
}

int run(int argc, char** argv) {
  CLI::App app("Random call sequences against a model.", "gpumem_sequences");
  Request request;
  // tests/run appends its own choice to Meson's.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--backend", request.backend, "Backend: host, or cuda over the driver that is found")
      ->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--seed", request.seed, "Seed of the first sequence; each has its own (default: 1)");
  app.add_option("--count", request.count, "Sequences (default: 1000)");
  app.add_option("--length", request.length, "Steps of a sequence (default: 60)");
  app.add_option("--threads", request.threads, "Threads that the steps are dealt to (default: 1)")
      ->check(CLI::Range(uint32_t{1}, uint32_t{4}));
  app.add_option("--sweep", request.sweep,
                 "Right calls of each function that bad arguments are tried in, one at a time (default: 0)");
  app.add_option("--exports", request.exports, "Version script that lists the functions that must be called");
  app.add_flag("--trace", request.trace, "Print every call");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  setenv("GPUMEM_BACKEND", request.backend.c_str(), 1);  // of the default instance

  Options options;
  options.on_host = request.backend == "host";
  options.threads = request.threads;
  const KeptOpen kept(options.on_host);
  if (!kept.problem().empty()) {
    std::cout << "Bail out! the backend cannot be opened: " << kept.problem() << std::endl;
    return 1;
  }
  Cases cases;
  Coverage coverage;
  const std::string how =
      request.threads == 1 ? "on one thread" : "on " + std::to_string(request.threads) + " threads";
  cases.check(std::to_string(request.count) + " sequences " + how + " go as the model says",
              check_sequences(request, options, coverage));
  if (request.sweep != 0) {
    cases.check("each argument that is wrong on its own is refused as the model says",
                check_bad_arguments(options, request.sweep, coverage));
  }
  if (!request.exports.empty()) {
    cases.check("every function was called, and answered in every way it can",
                check_coverage(request.exports, options.on_host, coverage));
  }
  if (request.threads == 1) {
    cases.check("a planted difference is found and cut down to three steps", check_shrinker(request));
  }
  cases.check("the driver saw no misuse", driver_violations());
  return cases.finish();
}

}  // namespace
}  // namespace sequences

int main(int argc, char** argv) { return sequences::run(argc, argv); }
