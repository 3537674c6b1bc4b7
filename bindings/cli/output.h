// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What people see: aligned tables, sizes and a progress bar; and JSON for programs.
#pragma once

#include <boost/timer/progress_display.hpp>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gpumem::cli {

using Json = nlohmann::ordered_json;

// Prints a JSON document. Bytes that are no UTF-8 (a file name can hold them) are replaced.
void print_json(const Json& json);

// Throws if what was printed could not be written, as on a full disk.
void flush_output();

// Such as "64 MiB" or "1.5 GiB".
std::string size_text(uint64_t bytes);

// Such as "1.5 ms", of ns.
std::string time_text(uint64_t ns);

// Seconds since 1970, in UTC.
std::string date_text(uint64_t seconds);

// Such as "1 block" or "2 blocks".
std::string counted(uint64_t count, const std::string& one, const std::string& more);

// Something that a user named, such as a file: quoted if it is empty or has bytes that a terminal would obey.
std::string shown(const std::string& name);

// Prints an error as one line on standard error, whatever the text contains; on a terminal as lines of its
// width.
void complain(const std::string& problem);

// Columns of the terminal: as COLUMNS says, as the terminal at the descriptor says, or 80; at least 20.
size_t terminal_width(int descriptor);

// The words in lines of the terminal's width, each behind the indent. A word that is longer has a line of its
// own.
std::string wrapped(const std::string& text, const std::string& indent = "");

// Parts with a space between them, in lines of the terminal's width. Within a part, as within a file name
// with spaces, no line breaks.
std::string filled(const std::vector<std::string>& parts);

// Columns as wide as their widest cell, two spaces apart; lines end without spaces. The last column is for
// long texts: it is wrapped to the terminal, beside the others if there is room, otherwise below them. Where
// the terminal is too narrow for the other columns, each row becomes a list with a line for each cell.
class Table {
 public:
  enum class Align { kLeft, kRight };

  using Row = std::vector<std::string>;

  // The header may be empty. A column without an alignment of its own is left-aligned.
  explicit Table(Row header = {}, std::vector<Align> columns = {}, std::string indent = "  ")
      : header_(std::move(header)), columns_(std::move(columns)), indent_(std::move(indent)) {}

  void add(Row cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::string row_text(const Row& row, const std::vector<size_t>& widths, size_t terminal) const;
  std::string list_text(const Row& row) const;

  Row header_;
  std::vector<Align> columns_;
  std::string indent_;
  std::vector<Row> rows_;
};

// A progress bar on standard error if that is a terminal, or percentages where it is too narrow; otherwise
// nothing.
class Progress {
 public:
  explicit Progress(uint64_t steps);
  ~Progress();  // ends the line of a bar that was left unfinished
  void advance();

 private:
  std::optional<boost::timer::progress_display> bar_;
  bool percentages_ = false;
  uint64_t steps_;
  uint64_t done_ = 0;
};

}  // namespace gpumem::cli
