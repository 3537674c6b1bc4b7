// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <stdexcept>

namespace gpumem::cli {

void print_json(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

void flush_output() {
  std::cout.flush();
  if (!std::cout) throw std::runtime_error("cannot write to the standard output");
}

std::string size_text(uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit)
    value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g %s", value, kUnits[unit]);
  return text.data();
}

void Table::print() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line = indent_;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      const bool right = i < columns_.size() && columns_[i] == Align::kRight;
      line += right ? padding + row[i] : row[i] + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
}

Progress::Progress(uint64_t steps) {
  if (isatty(STDERR_FILENO) != 0) bar_.emplace(steps, std::cerr, "");
}

Progress::~Progress() {
  if (bar_ && bar_->count() < bar_->expected_count()) std::cerr << std::endl;
}

void Progress::advance() {
  if (bar_) ++*bar_;
}

}  // namespace gpumem::cli
