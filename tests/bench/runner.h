// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Measures ours against raw: both in turns in one run, medians, a line of a table for each case.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "raw.h"

namespace bench {

struct Options {
  gpumem_backend backend = GPUMEM_BACKEND_HOST;
  std::vector<std::string> groups;  // to run; empty for all
  std::string only;                 // part of the names of the cases to run; empty for all
  std::string traces;               // folder of recorded allocations to be replayed; empty for none
  std::string json;                 // file for the results; empty for none
  int repeat = 15;
  uint64_t max_size = 0;       // largest memory in bytes; 0 for the largest that has a case
  uint64_t live_max = 10'000;  // objects that live while pointers are queried
  bool smoke = false;          // each case once and small, to see that it works
  bool quick = false;          // fewer rows, and nothing large
};

struct Setting {
  std::string backend;
  std::string device;
  std::string driver;  // empty for none
  std::string raw;
};

// Values of one side: of rows of calls, or, with one row, what was measured once.
struct Sample {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  size_t rows = 0;
};

// What a pool had while a recorded program ran over it.
struct Trace {
  struct Point {
    uint64_t event;
    uint64_t live;      // bytes, the most since the point before
    uint64_t reserved;  // bytes
  };
  std::string name;
  uint64_t events = 0;
  uint64_t peak_live = 0;
  uint64_t peak_reserved = 0;
  std::vector<Point> points;
};

// Prints what is no row of the table, in as many lines as it takes.
[[gnu::format(printf, 1, 2)]] void note(const char* format, ...);

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options) {}

  // What follows belongs to this group. Whether it is to run.
  bool begin(const std::string& group);
  bool wanted(const std::string& name) const;
  // Whether a row whose name contains `part` may be wanted.
  bool any_wanted(const std::string& part) const;
  bool wanted(uint64_t size) const;
  void set_backend(gpumem_backend backend) { options_.backend = backend; }  // what ANY has opened
  gpumem_backend backend() const { return options_.backend; }
  bool smoke() const { return options_.smoke; }
  bool quick() const { return options_.quick; }
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
  void trace(Trace trace);
  // The group of begin() has ended too soon.
  void fail_group(const std::string& why) { failed_.emplace_back(group_, why); }

  void print_heading(const Setting& setting) const;
  void write_json(const Setting& setting) const;

 private:
  struct Result {
    std::string group;
    std::string name;
    std::string unit;
    std::optional<uint64_t> bytes;  // that one call moves
    Sample ours;
    std::optional<Sample> raw;
    double goal = 0;  // in the unit; 0 for none

    double ratio() const { return raw && raw->median > 0 ? ours.median / raw->median : 0; }
  };
  // In seconds.
  struct Samples {
    Sample ours;
    std::optional<Sample> raw;
  };

  Samples measure(const Clock& ours, const Clock& raw) const;
  Samples measure_calls(const Call& ours, const Call& raw, const Call& settle) const;
  double goal(const Result& result, double per_second) const;
  void add_time(const std::string& name, const Samples& seconds);
  void add_rate(const std::string& name, uint64_t bytes, const Samples& seconds);
  void add(Result result);

  Options options_;
  std::string group_;
  std::vector<Result> results_;
  std::vector<Trace> traces_;
  std::vector<std::pair<std::string, std::string>> failed_;  // groups, and why
};

}  // namespace bench
