// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace gpumem::cli {

namespace {

// The words in lines of at most `width`, as far as no word is longer.
std::vector<std::string> wrap(const std::string& text, size_t width) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > width) {
      lines.push_back(word);
    } else {
      lines.back().append(" ").append(word);
    }
  }
  return lines;
}

bool fits(const std::vector<std::string>& lines, size_t width) {
  return std::all_of(lines.begin(), lines.end(),
                     [width](const std::string& line) { return line.size() <= width; });
}

}  // namespace

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

size_t terminal_width() {
  constexpr size_t kDefault = 80;
  if (const char* text = std::getenv("COLUMNS")) {
    const std::string_view digits = text;
    size_t columns = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), columns);
    if (result.ec == std::errc() && result.ptr == digits.data() + digits.size() && columns > 0)
      return columns;
  }
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefault;
}

void print_wrapped(const std::string& text, const std::string& indent) {
  const size_t width = terminal_width();
  for (const std::string& line : wrap(text, width > indent.size() ? width - indent.size() : 1))
    std::cout << indent << line << '\n';
}

void Table::print() const {
  // Narrower texts are hard to read.
  constexpr size_t kNarrowest = 24;

  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  }
  const size_t terminal = terminal_width();
  for (const auto& row : rows_) {
    std::string line = indent_;
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      const bool right = i < columns_.size() && columns_[i] == Align::kRight;
      line += right ? padding + row[i] : row[i] + padding;
      line += "  ";
    }
    const std::string& last = row.back();
    const size_t room = terminal > line.size() ? terminal - line.size() : 0;
    const std::vector<std::string> lines = wrap(last, room);
    if (!last.empty() && (last.size() <= room || (room >= kNarrowest && fits(lines, room)))) {
      for (size_t i = 0; i < lines.size(); ++i)
        std::cout << (i == 0 ? line : std::string(line.size(), ' ')) << lines[i] << '\n';
    } else {
      line.erase(line.find_last_not_of(' ') + 1);
      std::cout << line << '\n';
      print_wrapped(last, indent_ + "    ");
    }
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
