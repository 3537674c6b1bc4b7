// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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

// How many bytes the character of UTF-8 at the start of the text has; 0 if there is none.
size_t character_size(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const size_t size = first < 0x80   ? 1
                      : first < 0xC2 ? 0
                      : first < 0xE0 ? 2
                      : first < 0xF0 ? 3
                      : first < 0xF5 ? 4
                                     : 0;
  if (size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return size;
}

// Whether a terminal obeys it instead of showing it, or shows nothing: control characters, and those of
// format that Unicode has for directions, lines and joining (U+200B to U+200F, U+2028 to U+202E, U+2060 to
// U+206F, U+FEFF).
bool is_control(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  if (character.size() == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;
  if (character.size() != 3) return false;
  if (byte(0) == 0xEF) return byte(1) == 0xBB && byte(2) == 0xBF;
  if (byte(0) != 0xE2) return false;
  if (byte(1) == 0x81) return byte(2) >= 0xA0 && byte(2) <= 0xAF;
  return byte(1) == 0x80 && ((byte(2) >= 0x8B && byte(2) <= 0x8F) || (byte(2) >= 0xA8 && byte(2) <= 0xAE));
}

// Columns of a terminal, if each character takes one.
size_t column_count(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

// What is_control(), and bytes that are no UTF-8, as C would write them.
std::string escaped(std::string_view text) {
  std::string all;
  while (!text.empty()) {
    const size_t size = character_size(text);
    const bool control = is_control(text.substr(0, size));
    const size_t step = std::max(size, size_t{1});
    for (const char byte : text.substr(0, step)) {
      if (size != 0 && !control) {
        all += byte;
      } else {
        std::array<char, 5> code{};
        std::snprintf(code.data(), code.size(), "\\x%02x",
                      static_cast<unsigned>(static_cast<unsigned char>(byte)));
        all += code.data();
      }
    }
    text.remove_prefix(step);
  }
  return all;
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

std::string time_text(uint64_t ns) {
  constexpr std::array<const char*, 4> kUnits = {"ns", "us", "ms", "s"};
  auto value = static_cast<double>(ns);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit)
    value /= 1000;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g %s", value, kUnits[unit]);
  return text.data();
}

std::string date_text(uint64_t seconds) {
  const auto time = static_cast<time_t>(std::min<uint64_t>(seconds, INT64_MAX));
  std::tm parts{};
  std::array<char, 64> text{};
  if (gmtime_r(&time, &parts) == nullptr || std::strftime(text.data(), text.size(), "%F %T UTC", &parts) == 0)
    return "an unknown time";
  return text.data();
}

std::string counted(uint64_t count, const std::string& one, const std::string& more) {
  return std::to_string(count) + ' ' + (count == 1 ? one : more);
}

std::string shown(const std::string& name) {
  const std::string safe = escaped(name);
  return !name.empty() && safe == name ? name : '"' + safe + '"';
}

void complain(const std::string& problem) {
  const std::string text = "gpumem: " + escaped(problem);
  if (isatty(STDERR_FILENO) == 0) {
    std::cerr << text << '\n';
    return;
  }
  for (const std::string& line : wrap(text, terminal_width(STDERR_FILENO)))
    std::cerr << line << '\n';
}

size_t terminal_width(int descriptor) {
  constexpr size_t kDefault = 80;
  constexpr size_t kLeast = 20;
  // COLUMNS | 20 and more | those of the terminal, or 80 | width of tables and texts
  if (const char* text = std::getenv("COLUMNS")) {
    const std::string_view digits = text;
    size_t columns = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), columns);
    if (result.ec == std::errc() && result.ptr == digits.data() + digits.size() && columns > 0)
      return std::max(columns, kLeast);
  }
  winsize size = {};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefault;
  return std::max<size_t>(size.ws_col, kLeast);
}

std::string wrapped(const std::string& text, const std::string& indent) {
  const size_t width = terminal_width(STDOUT_FILENO);
  std::string all;
  for (const std::string& line : wrap(text, width > indent.size() ? width - indent.size() : 1))
    all += indent + line + '\n';
  return all;
}

std::string filled(const std::vector<std::string>& parts) {
  const size_t width = terminal_width(STDOUT_FILENO);
  std::string all;
  size_t used = 0;  // of the last line
  for (const std::string& part : parts) {
    if (used != 0) {
      const bool fits = used + 1 + part.size() <= width;
      all += fits ? ' ' : '\n';
      used = fits ? used + 1 : 0;
    }
    all += part;
    used += part.size();
  }
  return all + '\n';
}

std::string Table::row_text(const Row& row, const std::vector<size_t>& widths, size_t terminal) const {
  // Narrower texts are hard to read.
  constexpr size_t kNarrowest = 24;

  std::string line = indent_;
  for (size_t i = 0; i + 1 < row.size(); ++i) {
    const std::string padding(widths[i] - column_count(row[i]), ' ');
    const bool right = i < columns_.size() && columns_[i] == Align::kRight;
    line += right ? padding + row[i] : row[i] + padding;
    line += "  ";
  }
  const std::string& last = row.back();
  const size_t room = terminal > line.size() ? terminal - line.size() : 0;
  const std::vector<std::string> lines = wrap(last, room);
  std::string all;
  if (!last.empty() && (last.size() <= room || (room >= kNarrowest && fits(lines, room)))) {
    for (size_t i = 0; i < lines.size(); ++i)
      all += (i == 0 ? line : std::string(line.size(), ' ')) + lines[i] + '\n';
    return all;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n' + wrapped(last, indent_ + "    ");
}

// The first cell, and below it each other one behind the name of its column.
std::string Table::list_text(const Row& row) const {
  std::string all = wrapped(row.front(), indent_);
  for (size_t i = 1; i < row.size(); ++i) {
    if (row[i] != "-") all += wrapped(header_[i] + ": " + row[i], indent_ + "  ");
  }
  return all;
}

std::string Table::text() const {
  const size_t terminal = terminal_width(STDOUT_FILENO);
  std::vector<Row> rows = rows_;
  if (!header_.empty()) rows.insert(rows.begin(), header_);
  std::vector<size_t> widths;
  size_t last_word = 0;  // width of the last column, as far as it cannot be wrapped
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], column_count(row[i]));
    if (row.back().find(' ') == std::string::npos) last_word = std::max(last_word, row.back().size());
  }
  size_t needed = indent_.size() + last_word;
  for (size_t i = 0; i + 1 < widths.size(); ++i)
    needed += widths[i] + 2;
  std::string all;
  if (!header_.empty() && needed > terminal) {
    for (const Row& row : rows_)
      all += list_text(row);
  } else {
    for (const Row& row : rows)
      all += row_text(row, widths, terminal);
  }
  return all;
}

Progress::Progress(uint64_t steps) : steps_(steps) {
  constexpr size_t kBar = 51;  // columns of the bar
  if (isatty(STDERR_FILENO) == 0) return;
  if (terminal_width(STDERR_FILENO) < kBar) {
    percentages_ = true;
    std::cerr << "0%" << std::flush;
  } else {
    bar_.emplace(steps, std::cerr, "");
  }
}

Progress::~Progress() {
  if (percentages_ || (bar_ && bar_->count() < bar_->expected_count())) std::cerr << std::endl;
}

void Progress::advance() {
  if (bar_) ++*bar_;
  if (!percentages_) return;
  const uint64_t before = done_++ * 100 / steps_;
  if (const uint64_t now = done_ * 100 / steps_; now != before) std::cerr << '\r' << now << '%' << std::flush;
}

}  // namespace gpumem::cli
