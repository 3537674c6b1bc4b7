// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plots as SVG, which need no script and nothing from elsewhere.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace gpumem::cli {

struct Point {
  double x = 0;
  double y = 0;
  std::optional<double> low;  // the spread around y
  std::optional<double> high;
  std::string text;  // shown by a browser for the point under the mouse
};

// Whose values they are is shown by the line and by whether the mark is filled; of what, by colour and shape.
enum class Side { kOurs, kRaw, kPeer };

struct Series {
  std::string name;
  Side side = Side::kOurs;
  size_t subject = 0;  // chooses colour and shape
  std::vector<Point> points;
};

// An area, such as memory over its life.
struct Box {
  double left = 0;
  double right = 0;
  double bottom = 0;
  double top = 0;
  size_t subject = 0;
  std::string text;  // shown by a browser for the box under the mouse
  std::string link;  // to the element with this id
};

struct Axis {
  enum class Scale { kBytesLog, kCountLog, kLog, kLinear };
  std::string label;  // with the unit
  Scale scale = Scale::kLinear;
};

struct Plot {
  std::string id;  // of letters, digits and hyphens
  std::string title;
  Axis x;
  Axis y;
  std::vector<Series> series;
  std::vector<Box> boxes;
  bool steps = false;  // lines without marks
};

// For text and attributes of HTML and SVG.
std::string markup(const std::string& text);

// Four digits.
std::string number_text(double value);

// Such as "4 KiB"; of many bytes, rounded.
std::string bytes_text(double bytes);

// Colours, by light and by dark. For the head of a page, or for a file of its own.
std::string plot_style();

// An <svg> element; with the style inside, a whole file.
std::string svg(const Plot& plot, bool whole_file);

}  // namespace gpumem::cli
