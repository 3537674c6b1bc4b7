// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The measuring behind runner.h.
#include "runner.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

#include "goals.h"

namespace bench {
namespace {

// A row of calls takes about this long, so that the clock does not count.
constexpr double kRowSeconds = 0.002;
constexpr double kMaxCalls = 20'000;
// Slow cases get fewer rows.
constexpr double kCaseSeconds = 3;
constexpr int kMinRows = 5;
constexpr int kQuickRows = 5;
constexpr uint64_t kQuickSize = uint64_t{64} << 20;
// No line that is printed is wider.
constexpr size_t kColumns = 80;

double seconds_of(const Call& call, int64_t count) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i)
    call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Sample sample_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t last = values.size() - 1;
  const size_t middle = values.size() / 2;
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(last) + 0.5)];
  };
  return {values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2, at(0.1),
          at(0.9), values.size()};
}

template <class Change>
Sample changed(const Sample& sample, Change change) {
  const double one = change(sample.p10);
  const double other = change(sample.p90);
  return {change(sample.median), std::min(one, other), std::max(one, other), sample.rows};
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c < ' ' ? ' ' : c;
  }
  return result + "\"";
}

std::string number(double value, const char* none) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return value > 0 ? text : none;
}

// The numbers are flush right, and a name that leaves no room for them has a line of its own.
std::string table_line(const std::string& name, const std::string& ours, const std::string& raw,
                       const std::string& ratio, const std::string& unit) {
  std::array<char, 64> values{};
  std::snprintf(values.data(), values.size(), "%9s %9s %7s %-5s", ours.c_str(), raw.c_str(), ratio.c_str(),
                unit.c_str());
  std::string text = values.data();
  const size_t room = kColumns - std::min(kColumns, text.size());
  text.erase(text.find_last_not_of(' ') + 1);
  if (name.size() >= room) return name + "\n" + std::string(room, ' ') + text;
  return name + std::string(room - name.size(), ' ') + text;
}

// As it stands in the table.
std::string spread(const Sample& sample) {
  return sample.rows < 2 ? "-" : number(sample.p10, "0") + ".." + number(sample.p90, "0");
}

std::string json_of(const Sample& sample) {
  return "{\"median\": " + number(sample.median, "0") + ", \"p10\": " + number(sample.p10, "0") +
         ", \"p90\": " + number(sample.p90, "0") + ", \"rows\": " + std::to_string(sample.rows) + "}";
}

std::string json_of(const Trace& trace) {
  std::string text = "{\"name\": " + quoted(trace.name) + ", \"events\": " + std::to_string(trace.events) +
                     ", \"peak_live\": " + std::to_string(trace.peak_live) +
                     ", \"peak_reserved\": " + std::to_string(trace.peak_reserved) + ",\n     \"points\": [";
  const char* separator = "";
  for (const Trace::Point& point : trace.points) {
    text += separator + ("[" + std::to_string(point.event)) + ", " + std::to_string(point.live) + ", " +
            std::to_string(point.reserved) + "]";
    separator = ", ";
  }
  return text + "]}";
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string system_name() {
  utsname name{};
  uname(&name);
  return std::string(name.sysname) + " " + name.release + ", " + name.machine + ", " +
         std::to_string(std::thread::hardware_concurrency()) + " processors";
}

}  // namespace

bool Runner::begin(const std::string& group) {
  group_ = group;
  return options_.groups.empty() ||
         std::find(options_.groups.begin(), options_.groups.end(), group) != options_.groups.end();
}

bool Runner::wanted(const std::string& name) const { return name.find(options_.only) != std::string::npos; }

bool Runner::any_wanted(const std::string& part) const {
  return wanted(part) || options_.only.find(part) != std::string::npos;
}

bool Runner::wanted(uint64_t size) const {
  constexpr uint64_t kSmokeSize = 64 * 1024;
  if (options_.smoke) return size <= kSmokeSize;
  if (options_.quick && size > kQuickSize) return false;
  return options_.max_size == 0 || size <= options_.max_size;
}

Runner::Samples Runner::measure(const Clock& ours, const Clock& raw) const {
  std::vector<double> our_seconds;
  std::vector<double> raw_seconds;
  const auto take = [](const Clock& clock, std::vector<double>& into) {
    if (clock) into.push_back(clock());
  };
  double total = 0;
  const int rows = options_.smoke   ? 1
                   : options_.quick ? std::min(kQuickRows, options_.repeat)
                                    : options_.repeat;
  for (int row = 0; row < rows && (row < kMinRows || total < kCaseSeconds); ++row) {
    // Who goes first changes, in case the second profits from the first.
    if (row % 2 == 0) take(ours, our_seconds);
    take(raw, raw_seconds);
    if (row % 2 == 1) take(ours, our_seconds);
    total += our_seconds.back() + (raw ? raw_seconds.back() : 0);
  }
  Samples samples{sample_of(std::move(our_seconds)), {}};
  if (raw) samples.raw = sample_of(std::move(raw_seconds));
  return samples;
}

Runner::Samples Runner::measure_calls(const Call& ours, const Call& raw, const Call& settle) const {
  const auto settled = [&](const Call& call, int64_t count) {
    const double seconds = seconds_of(call, count);
    if (settle) settle();
    return seconds;
  };
  // The first calls warm up and tell how many make a row.
  double slowest = settled(ours, 1);
  if (raw) slowest = std::max(slowest, settled(raw, 1));
  slowest = std::min(slowest, settled(ours, 1));
  const double calls = options_.smoke ? 1 : std::clamp(kRowSeconds / std::max(slowest, 1e-9), 1.0, kMaxCalls);
  const auto count = static_cast<int64_t>(calls);
  Samples samples = measure([&] { return settled(ours, count); },
                            raw ? Clock([&] { return settled(raw, count); }) : Clock());
  const auto of_one = [&](double seconds) { return seconds / static_cast<double>(count); };
  samples.ours = changed(samples.ours, of_one);
  if (samples.raw) samples.raw = changed(*samples.raw, of_one);
  return samples;
}

void Runner::time(const std::string& name, const Call& ours, const Call& raw, const Call& settle) {
  if (wanted(name)) add_time(name, measure_calls(ours, raw, settle));
}

void Runner::clocked(const std::string& name, const Clock& ours, const Clock& raw) {
  if (wanted(name)) add_time(name, measure(ours, raw));
}

void Runner::rate(const std::string& name, uint64_t bytes, const Call& ours, const Call& raw) {
  if (wanted(name)) add_rate(name, bytes, measure_calls(ours, raw, {}));
}

void Runner::clocked_rate(const std::string& name, uint64_t bytes, const Clock& ours, const Clock& raw) {
  if (wanted(name)) add_rate(name, bytes, measure(ours, raw));
}

void Runner::seconds(const std::string& name, double ours, double raw) {
  if (!wanted(name)) return;
  Samples samples{{ours, ours, ours, 1}, {}};
  if (raw > 0) samples.raw = Sample{raw, raw, raw, 1};
  add_time(name, samples);
}

void Runner::bytes(const std::string& name, uint64_t ours) {
  const auto value = static_cast<double>(ours);
  if (wanted(name)) add({group_, name, "bytes", {}, {value, value, value, 1}, {}, 0});
}

void Runner::trace(Trace trace) { traces_.push_back(std::move(trace)); }

double Runner::goal(const Result& result, double per_second) const {
  const Goal* const goal = goal_of(result.name, options_.backend == GPUMEM_BACKEND_HOST);
  if (goal == nullptr || (goal->ratio > 0 && !result.raw)) return 0;
  return (goal->ratio > 0 ? goal->ratio * result.raw->median : 0) + goal->seconds * per_second +
         goal->rate / 1e9;
}

void Runner::add_time(const std::string& name, const Samples& seconds) {
  double per_second = 1e3;
  const char* unit = "ms";
  if (seconds.ours.median < 1e-6) {
    per_second = 1e9;
    unit = "ns";
  } else if (seconds.ours.median < 1e-3) {
    per_second = 1e6;
    unit = "us";
  }
  const auto in_unit = [&](double value) { return value * per_second; };
  Result result{group_, name, unit, {}, changed(seconds.ours, in_unit), {}, 0};
  if (seconds.raw) result.raw = changed(*seconds.raw, in_unit);
  result.goal = goal(result, per_second);
  add(std::move(result));
}

void Runner::add_rate(const std::string& name, uint64_t bytes, const Samples& seconds) {
  const auto in_unit = [&](double value) { return static_cast<double>(bytes) / 1e9 / value; };
  Result result{group_, name, "GB/s", bytes, changed(seconds.ours, in_unit), {}, 0};
  if (seconds.raw) result.raw = changed(*seconds.raw, in_unit);
  result.goal = goal(result, 0);
  add(std::move(result));
}

void Runner::add(Result result) {
  std::puts(table_line(result.name, number(result.ours.median, "0"),
                       result.raw ? number(result.raw->median, "-") : "-", number(result.ratio(), "-"),
                       result.unit)
                .c_str());
  if (result.ours.rows > 1 || (result.raw && result.raw->rows > 1)) {
    std::printf("    %s%s\n", spread(result.ours).c_str(),
                result.raw ? ("  " + spread(*result.raw)).c_str() : "");
  }
  std::fflush(stdout);
  results_.push_back(std::move(result));
}

void Runner::print_heading(const Setting& setting) const {
  note("gpumem %s, %s backend, %s;", gpumem_version_text(), setting.backend.c_str(), setting.device.c_str());
  note("raw: %s; medians of up to %d rows", setting.raw.c_str(),
       options_.smoke   ? 1
       : options_.quick ? kQuickRows
                        : options_.repeat);
  std::puts(table_line("# name", "ours", "raw", "ratio", "unit").c_str());
  std::puts("#   p10..p90 of ours and of raw");
}

void note(const char* format, ...) {
  std::array<char, 2048> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  std::istringstream words(text.data());
  std::string line = "#";
  for (std::string word; words >> word; line += " " + word) {
    if (line.size() + 1 + word.size() <= kColumns) continue;
    std::puts(line.c_str());
    line = "#";
  }
  std::puts(line.c_str());
}

// docs/performance.md describes it.
void Runner::write_json(const Setting& setting) const {
  std::ofstream file(options_.json);
  file << "{\n  \"schema\": \"gpumem-bench\",\n  \"version\": 1,\n  \"gpumem\": "
       << quoted(gpumem_version_text()) << ",\n  \"date\": " << quoted(date())
       << ",\n  \"system\": " << quoted(system_name()) << ",\n  \"backend\": " << quoted(setting.backend)
       << ",\n  \"device\": " << quoted(setting.device)
       << ",\n  \"driver\": " << (setting.driver.empty() ? "null" : quoted(setting.driver))
       << ",\n  \"raw\": " << quoted(setting.raw) << ",\n  \"quick\": " << (options_.quick ? "true" : "false")
       << ",\n  \"rows\": [";
  const char* separator = "\n";
  for (const Result& result : results_) {
    file << separator << "    {\"group\": " << quoted(result.group) << ", \"name\": " << quoted(result.name)
         << ", \"unit\": " << quoted(result.unit)
         << ", \"bytes\": " << (result.bytes ? std::to_string(*result.bytes) : "null")
         << ",\n     \"ours\": " << json_of(result.ours)
         << ",\n     \"raw\": " << (result.raw ? json_of(*result.raw) : "null")
         << ", \"ratio\": " << number(result.ratio(), "null") << ", \"goal\": " << number(result.goal, "null")
         << "}";
    separator = ",\n";
  }
  file << "\n  ],\n  \"traces\": [";
  separator = "\n";
  for (const Trace& trace : traces_) {
    file << separator << "    " << json_of(trace);
    separator = ",\n";
  }
  file << "\n  ],\n  \"failed\": [";
  separator = "";
  for (const auto& [group, why] : failed_) {
    file << separator << "{\"group\": " << quoted(group) << ", \"why\": " << quoted(why) << "}";
    separator = ", ";
  }
  file << "]\n}\n";
  file.flush();
  if (!file) fail("cannot write " + options_.json);
}

}  // namespace bench
