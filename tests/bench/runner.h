// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Measures ours against raw: both in turns in one run, medians, a line of a table for each case.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "raw.h"

namespace bench {

struct Options {
  gpumem_backend backend = GPUMEM_BACKEND_HOST;
  std::string only;  // part of the names of the cases to run; empty for all
  std::string json;  // file for the results; empty for none
  int repeat = 15;
  uint64_t max_size = 0;       // largest memory in bytes; 0 for the largest that has a case
  uint64_t live_max = 10'000;  // objects that live while pointers are queried
  bool smoke = false;          // each case once and small, to see that it works
};

struct Setting {
  std::string backend;
  std::string device;
  std::string raw;
};

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options) {}

  bool wanted(const std::string& name) const;
  bool wanted(uint64_t size) const;
  gpumem_backend backend() const { return options_.backend; }
  bool smoke() const { return options_.smoke; }
  std::chrono::milliseconds warm_up() const { return std::chrono::milliseconds(options_.smoke ? 0 : 50); }
  uint64_t live_max() const { return options_.smoke ? 1 : options_.live_max; }

  // One call of each is the unit of work. `raw` may be empty: then there is nothing to compare with. `settle`
  // runs after each timed row of calls, and counts for neither.
  void time(const std::string& name, const Call& ours, const Call& raw, const Call& settle = {});
  // The same for calls that each move `bytes`.
  void rate(const std::string& name, uint64_t bytes, const Call& ours, const Call& raw);
  // Two calls that measure by themselves, in seconds.
  using Clock = std::function<double()>;
  void clocked(const std::string& name, const Clock& ours, const Clock& raw);
  // The same as a rate, for calls that each move `bytes`.
  void clocked_rate(const std::string& name, uint64_t bytes, const Clock& ours, const Clock& raw);
  // What the caller has measured: seconds, with 0 where nothing is compared, or a number of bytes.
  void seconds(const std::string& name, double ours, double raw);
  void bytes(const std::string& name, uint64_t ours);

  void print_heading(const Setting& setting) const;
  void write_json(const Setting& setting) const;

 private:
  struct Result {
    std::string name;
    double ours;
    double raw;  // 0 for none
    std::string unit;

    double ratio() const { return raw > 0 ? ours / raw : 0; }
  };
  struct Seconds {
    double ours;
    double raw;
  };

  Seconds measure(const Clock& ours, const Clock& raw) const;
  Seconds measure_calls(const Call& ours, const Call& raw, const Call& settle) const;
  void add_time(const std::string& name, const Seconds& seconds);
  void add(Result result);

  Options options_;
  std::vector<Result> results_;
};

}  // namespace bench
