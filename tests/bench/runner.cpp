// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The measuring behind runner.h.
#include "runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

namespace bench {
namespace {

// A row of calls takes about this long, so that the clock does not count.
constexpr double kRowSeconds = 0.002;
constexpr double kMaxCalls = 20'000;
// Slow cases get fewer rows.
constexpr double kCaseSeconds = 3;
constexpr int kMinRows = 5;

double seconds_of(const Call& call, int64_t count) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i)
    call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
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

}  // namespace

bool Runner::wanted(const std::string& name) const { return name.find(options_.only) != std::string::npos; }

bool Runner::wanted(uint64_t size) const {
  constexpr uint64_t kSmokeSize = 64 * 1024;
  if (options_.smoke) return size <= kSmokeSize;
  return options_.max_size == 0 || size <= options_.max_size;
}

Runner::Seconds Runner::measure(const Clock& ours, const Clock& raw) const {
  std::vector<double> our_seconds;
  std::vector<double> raw_seconds;
  const auto take = [](const Clock& clock, std::vector<double>& into) {
    if (clock) into.push_back(clock());
  };
  double total = 0;
  const int rows = options_.smoke ? 1 : options_.repeat;
  for (int row = 0; row < rows && (row < kMinRows || total < kCaseSeconds); ++row) {
    // Who goes first changes, in case the second profits from the first.
    if (row % 2 == 0) take(ours, our_seconds);
    take(raw, raw_seconds);
    if (row % 2 == 1) take(ours, our_seconds);
    total += our_seconds.back() + (raw ? raw_seconds.back() : 0);
  }
  return {median(our_seconds), raw ? median(raw_seconds) : 0};
}

Runner::Seconds Runner::measure_calls(const Call& ours, const Call& raw, const Call& settle) const {
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
  Seconds seconds = measure([&] { return settled(ours, count); },
                            raw ? Clock([&] { return settled(raw, count); }) : Clock());
  seconds.ours /= static_cast<double>(count);
  seconds.raw /= static_cast<double>(count);
  return seconds;
}

void Runner::time(const std::string& name, const Call& ours, const Call& raw, const Call& settle) {
  if (wanted(name)) add_time(name, measure_calls(ours, raw, settle));
}

void Runner::clocked(const std::string& name, const Clock& ours, const Clock& raw) {
  if (wanted(name)) add_time(name, measure(ours, raw));
}

void Runner::rate(const std::string& name, uint64_t bytes, const Call& ours, const Call& raw) {
  if (!wanted(name)) return;
  const Seconds seconds = measure_calls(ours, raw, {});
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  add({name, gigabytes / seconds.ours, gigabytes / seconds.raw, "GB/s"});
}

void Runner::clocked_rate(const std::string& name, uint64_t bytes, const Clock& ours, const Clock& raw) {
  if (!wanted(name)) return;
  const Seconds seconds = measure(ours, raw);
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  add({name, gigabytes / seconds.ours, gigabytes / seconds.raw, "GB/s"});
}

void Runner::seconds(const std::string& name, double ours, double raw) {
  if (wanted(name)) add_time(name, {ours, raw});
}

void Runner::bytes(const std::string& name, uint64_t ours) {
  if (wanted(name)) add({name, static_cast<double>(ours), 0, "bytes"});
}

void Runner::add_time(const std::string& name, const Seconds& seconds) {
  double per_second = 1e3;
  const char* unit = "ms";
  if (seconds.ours < 1e-6) {
    per_second = 1e9;
    unit = "ns";
  } else if (seconds.ours < 1e-3) {
    per_second = 1e6;
    unit = "us";
  }
  add({name, seconds.ours * per_second, seconds.raw * per_second, unit});
}

void Runner::add(Result result) {
  std::printf("%-48s %10s %10s %8s %s\n", result.name.c_str(), number(result.ours, "0").c_str(),
              number(result.raw, "-").c_str(), number(result.ratio(), "-").c_str(), result.unit.c_str());
  std::fflush(stdout);
  results_.push_back(std::move(result));
}

void Runner::print_heading(const Setting& setting) const {
  std::printf("# gpumem %s, %s backend, %s; raw: %s; medians of up to %d rows\n", gpumem_version_text(),
              setting.backend.c_str(), setting.device.c_str(), setting.raw.c_str(),
              options_.smoke ? 1 : options_.repeat);
  std::printf("%-48s %10s %10s %8s %s\n", "# name", "ours", "raw", "ratio", "unit");
}

void Runner::write_json(const Setting& setting) const {
  std::ofstream file(options_.json);
  file << "{\n  \"gpumem\": " << quoted(gpumem_version_text())
       << ",\n  \"backend\": " << quoted(setting.backend) << ",\n  \"device\": " << quoted(setting.device)
       << ",\n  \"raw\": " << quoted(setting.raw) << ",\n  \"repeat\": " << options_.repeat
       << ",\n  \"cases\": [";
  const char* separator = "\n";
  for (const Result& result : results_) {
    file << separator << "    {\"name\": " << quoted(result.name)
         << ", \"ours\": " << number(result.ours, "0") << ", \"raw\": " << number(result.raw, "null")
         << ", \"ratio\": " << number(result.ratio(), "null") << ", \"unit\": " << quoted(result.unit) << "}";
    separator = ",\n";
  }
  file << "\n  ]\n}\n";
  file.flush();
  if (!file) fail("cannot write " + options_.json);
}

}  // namespace bench
