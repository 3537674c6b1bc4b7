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

// Columns of the terminal: as COLUMNS says, as the terminal says, or 80.
size_t terminal_width();

// Prints words in lines of the terminal's width, each behind the indent. A word that is longer has a line of
// its own.
void print_wrapped(const std::string& text, const std::string& indent = "");

// Columns as wide as their widest cell, two spaces apart; lines end without spaces. The last column is for
// long texts: it is wrapped to the terminal, beside the others if there is room, otherwise below them.
class Table {
 public:
  enum class Align { kLeft, kRight };

  // A column without an alignment of its own is left-aligned.
  explicit Table(std::vector<Align> columns = {}, std::string indent = "")
      : columns_(std::move(columns)), indent_(std::move(indent)) {}

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void print() const;

 private:
  std::vector<Align> columns_;
  std::string indent_;
  std::vector<std::vector<std::string>> rows_;
};

// A progress bar on standard error if that is a terminal; otherwise nothing.
class Progress {
 public:
  explicit Progress(uint64_t steps);
  ~Progress();  // ends the line of a bar that was left unfinished
  void advance();

 private:
  std::optional<boost::timer::progress_display> bar_;
};

}  // namespace gpumem::cli
