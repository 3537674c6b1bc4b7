// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "output.h"

namespace gpumem::cli {

namespace {

constexpr double kLeft = 76;
constexpr double kTop = 40;
constexpr double kPlotWidth = 480;
constexpr double kPlotHeight = 300;
constexpr double kLegend = kLeft + kPlotWidth + 22;
constexpr double kWidth = 840;
constexpr double kLegendLine = 20;
constexpr size_t kSubjects = 6;  // colours in plot_style()

std::string at(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

struct Range {
  double low;
  double high;
};

bool is_log(const Axis& axis) { return axis.scale != Axis::Scale::kLinear; }

// What an axis shows, and where.
class Ruler {
 public:
  Ruler(const Axis& axis, Range values, double from, double to) : axis_(axis), from_(from), to_(to) {
    if (!is_log(axis)) {
      const double step = linear_step(values.high);
      low_ = 0;
      // Upwards to a whole step; what happens over time ends with the time.
      high_ = to < from ? std::max(std::ceil(values.high / step), 1.0) * step : values.high;
      for (double tick = 0; tick <= high_ * 1.0001; tick += step)
        ticks_.push_back(tick);
      return;
    }
    if (axis.scale == Axis::Scale::kLog) {
      decades(values);
      return;
    }
    low_ = values.low;
    high_ = std::max(values.high, values.low * 2);
    const double powers = std::round(std::log2(high_ / low_));
    const double step = std::max(std::ceil(powers / 8), 1.0);
    for (double power = std::ceil(std::log2(low_)); power <= std::log2(high_) + 0.001; power += step)
      ticks_.push_back(std::exp2(power));
  }

  const std::vector<double>& ticks() const { return ticks_; }
  double place(double value) const {
    const double share = is_log(axis_) ? std::log(std::max(value, 1e-12) / low_) / std::log(high_ / low_)
                                       : (value - low_) / (high_ - low_);
    return from_ + std::clamp(share, 0.0, 1.0) * (to_ - from_);
  }
  std::string label(double tick) const {
    return axis_.scale == Axis::Scale::kBytesLog ? bytes_text(tick) : number_text(tick);
  }

 private:
  static double linear_step(double high) {
    const double rough = std::max(high, 1e-9) / 5;
    const double decade = std::pow(10, std::floor(std::log10(rough)));
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * decade >= rough) return factor * decade;
    }
    return 10 * decade;
  }
  // From the power of ten below to the one above; with 2 and 5 between where there are few.
  void decades(Range values) {
    low_ = std::pow(10, std::floor(std::log10(values.low) + 1e-9));
    high_ = std::pow(10, std::ceil(std::log10(values.high) - 1e-9));
    if (high_ <= low_) high_ = low_ * 10;
    const bool few = high_ / low_ < 1001;
    for (double decade = low_; decade <= high_ * 1.001; decade *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        if ((factor == 1.0 || few) && factor * decade <= high_ * 1.001) ticks_.push_back(factor * decade);
      }
    }
  }

  Axis axis_;
  double from_;
  double to_;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

Range range_of(const Plot& plot, bool horizontal) {
  Range range = {INFINITY, 0};
  const auto add = [&](double value) {
    if (value <= 0 && is_log(horizontal ? plot.x : plot.y)) return;
    range = {std::min(range.low, value), std::max(range.high, value)};
  };
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      add(horizontal ? point.x : point.y);
      if (horizontal) continue;
      add(point.low.value_or(point.y));
      add(point.high.value_or(point.y));
    }
  }
  for (const Box& box : plot.boxes) {
    add(horizontal ? box.left : box.bottom);
    add(horizontal ? box.right : box.top);
  }
  return range.high > 0 ? range : Range{1, 10};
}

std::string mark(const Series& series, double x, double y) {
  constexpr double kSize = 4;
  const std::string kind = "class=\"mark\" ";
  if (series.side == Side::kPeer) {
    return "<path " + kind + "d=\"M" + at(x - kSize) + " " + at(y - kSize) + "L" + at(x + kSize) + " " +
           at(y + kSize) + "M" + at(x - kSize) + " " + at(y + kSize) + "L" + at(x + kSize) + " " +
           at(y - kSize) + "\"";
  }
  switch (series.subject % 4) {
    case 0:
      return "<circle " + kind + "cx=\"" + at(x) + "\" cy=\"" + at(y) + "\" r=\"" + at(kSize) + "\"";
    case 1:
      return "<rect " + kind + "x=\"" + at(x - kSize) + "\" y=\"" + at(y - kSize) + "\" width=\"" +
             at(2 * kSize) + "\" height=\"" + at(2 * kSize) + "\"";
    case 2:
      return "<path " + kind + "d=\"M" + at(x) + " " + at(y - kSize - 1) + "L" + at(x + kSize + 1) + " " +
             at(y + kSize) + "L" + at(x - kSize - 1) + " " + at(y + kSize) + "Z\"";
    default:
      return "<path " + kind + "d=\"M" + at(x) + " " + at(y - kSize - 1) + "L" + at(x + kSize + 1) + " " +
             at(y) + "L" + at(x) + " " + at(y + kSize + 1) + "L" + at(x - kSize - 1) + " " + at(y) + "Z\"";
  }
}

std::string text(const char* kind, double x, double y, const std::string& words,
                 const std::string& more = "") {
  return std::string("<text class=\"") + kind + "\" x=\"" + at(x) + "\" y=\"" + at(y) + "\"" + more + ">" +
         markup(words) + "</text>\n";
}

std::string line(const char* kind, double x1, double y1, double x2, double y2) {
  return std::string("<line class=\"") + kind + "\" x1=\"" + at(x1) + "\" y1=\"" + at(y1) + "\" x2=\"" +
         at(x2) + "\" y2=\"" + at(y2) + "\"/>\n";
}

std::string classes(const Plot& plot, const Series& series) {
  const char* const side = series.side == Side::kOurs ? "ours" : series.side == Side::kRaw ? "raw" : "peer";
  return "s" + std::to_string(series.subject % kSubjects) + " " + side + (plot.steps ? " steps" : "");
}

std::string axes(const Plot& plot, const Ruler& x, const Ruler& y) {
  const double bottom = kTop + kPlotHeight;
  std::string all;
  for (const double tick : x.ticks()) {
    all += line("grid", x.place(tick), kTop, x.place(tick), bottom);
    all += text("tick middle", x.place(tick), bottom + 18, x.label(tick));
  }
  for (const double tick : y.ticks()) {
    all += line("grid", kLeft, y.place(tick), kLeft + kPlotWidth, y.place(tick));
    all += text("tick end", kLeft - 8, y.place(tick) + 4, y.label(tick));
  }
  all += line("axis", kLeft, bottom, kLeft + kPlotWidth, bottom);
  all += line("axis", kLeft, kTop, kLeft, bottom);
  all += text("label middle", kLeft + kPlotWidth / 2, bottom + 40, plot.x.label);
  const double middle = kTop + kPlotHeight / 2;
  return all +
         text("label middle", 18, middle, plot.y.label, " transform=\"rotate(-90 18 " + at(middle) + ")\"");
}

std::string curve(const Plot& plot, const Series& series, const Ruler& x, const Ruler& y) {
  std::string path;
  std::string marks;
  double before = 0;
  if (series.points.empty()) return "";
  for (const Point& point : series.points) {
    const double here = x.place(point.x);
    const double there = y.place(point.y);
    if (plot.steps && !path.empty()) path += "L" + at(here) + " " + at(before);
    path += (path.empty() ? "M" : "L") + at(here) + " " + at(there);
    before = there;
    if (plot.steps) continue;
    if (point.low && point.high)
      marks += line("spread", here, y.place(*point.low), here, y.place(*point.high));
    marks += mark(series, here, there) + "><title>" + markup(point.text) + "</title>" +
             (series.side == Side::kPeer || series.subject % 4 >= 2 ? "</path>\n"
              : series.subject % 4 == 1                             ? "</rect>\n"
                                                                    : "</circle>\n");
  }
  // Memory that is live is an area, below the line of what is reserved.
  if (plot.steps && series.side == Side::kRaw) {
    marks = "<path class=\"area\" d=\"" + path + "L" + at(x.place(series.points.back().x)) + " " +
            at(y.place(0)) + "L" + at(x.place(series.points.front().x)) + " " + at(y.place(0)) + "Z\"/>\n";
  }
  return "<g class=\"series " + classes(plot, series) + "\" data-series=\"" + markup(series.name) +
         "\" data-points=\"" + std::to_string(series.points.size()) + "\">\n<path class=\"line\" d=\"" +
         path + "\"/>\n" + marks + "</g>\n";
}

// At least a pixel, so that what is small or short is seen.
std::string area(const Box& box, const Ruler& x, const Ruler& y) {
  const double left = x.place(box.left);
  const double top = y.place(box.top);
  return "<a class=\"s" + std::to_string(box.subject % kSubjects) + "\" href=\"#" + box.link +
         "\"><rect class=\"box\" x=\"" + at(left) + "\" y=\"" + at(top) + "\" width=\"" +
         at(std::max(x.place(box.right) - left, 1.0)) + "\" height=\"" +
         at(std::max(y.place(box.bottom) - top, 1.0)) + "\"><title>" + markup(box.text) +
         "</title></rect></a>\n";
}

std::string legend(const Plot& plot) {
  std::string all;
  double y = kTop + 10;
  for (const Series& series : plot.series) {
    all += "<g class=\"key " + classes(plot, series) + "\">\n" + line("line", kLegend, y, kLegend + 30, y);
    if (plot.steps && series.side == Side::kRaw)
      all += "<path class=\"area\" d=\"M" + at(kLegend) + " " + at(y) + "h30v8h-30Z\"/>\n";
    if (!plot.steps) all += mark(series, kLegend + 15, y) + "/>\n";
    all += text("tick", kLegend + 38, y + 4, series.name) + "</g>\n";
    y += kLegendLine;
  }
  return all;
}

}  // namespace

std::string markup(const std::string& text) {
  std::string all;
  for (const char byte : text) {
    switch (byte) {
      case '&':
        all += "&amp;";
        break;
      case '<':
        all += "&lt;";
        break;
      case '>':
        all += "&gt;";
        break;
      case '"':
        all += "&quot;";
        break;
      default:
        all += static_cast<unsigned char>(byte) < 0x20 ? ' ' : byte;
    }
  }
  return all;
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  if (value >= 10000 && value < 1e15) {
    std::snprintf(text.data(), text.size(), "%.0f", value);
    std::string digits = text.data();
    for (size_t end = digits.size(); end > 3; end -= 3)
      digits.insert(end - 3, ",");
    return digits;
  }
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string bytes_text(double bytes) { return size_text(static_cast<uint64_t>(std::llround(bytes))); }

std::string plot_style() {
  return R"(:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1c1c1c; --faint: #5a5a5a; --grid: #dddddd;
  --c0: #0060a8; --c1: #a84b00; --c2: #00714f; --c3: #98327f; --c4: #7a6000; --c5: #4d4d4d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #161a1f; --ink: #ececec; --faint: #b0b6bd; --grid: #3a4048;
    --c0: #64b5f6; --c1: #ffa552; --c2: #3ddba6; --c3: #ec9fdc; --c4: #f0e05a; --c5: #c8c8c8;
  }
}
svg.plot { max-width: 100%; height: auto; font: 13px system-ui, sans-serif; }
svg.plot .back { fill: var(--page); }
svg.plot text { fill: var(--ink); }
svg.plot text.tick { font-size: 12px; }
svg.plot text.title { font-size: 15px; font-weight: 600; }
svg.plot text.middle { text-anchor: middle; }
svg.plot text.end { text-anchor: end; }
svg.plot .grid { stroke: var(--grid); }
svg.plot .axis { stroke: var(--faint); }
svg.plot .s0 { --c: var(--c0); } svg.plot .s1 { --c: var(--c1); } svg.plot .s2 { --c: var(--c2); }
svg.plot .s3 { --c: var(--c3); } svg.plot .s4 { --c: var(--c4); } svg.plot .s5 { --c: var(--c5); }
svg.plot .line { fill: none; stroke: var(--c); stroke-width: 2; }
svg.plot .spread { stroke: var(--c); stroke-width: 1; }
svg.plot .mark { fill: var(--c); stroke: var(--c); stroke-width: 1.5; }
svg.plot .raw .line { stroke-dasharray: 6 4; stroke-width: 1.5; }
svg.plot .raw .mark { fill: var(--page); }
svg.plot .steps.raw .line { stroke-dasharray: none; stroke-width: 1; }
svg.plot .area { fill: var(--c); fill-opacity: 0.3; }
svg.plot .peer .line { stroke-dasharray: 1 4; stroke-linecap: round; }
)";
}

std::string svg(const Plot& plot, bool whole_file) {
  const Ruler x(plot.x, range_of(plot, true), kLeft, kLeft + kPlotWidth);
  const Ruler y(plot.y, range_of(plot, false), kTop + kPlotHeight, kTop);
  const double keys = static_cast<double>(plot.series.size()) * kLegendLine + kTop + 20;
  const std::string height = at(std::max(kTop + kPlotHeight + 54, keys));
  std::string all = "<svg class=\"plot\" id=\"" + plot.id +
                    "\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-labelledby=\"" + plot.id +
                    "-title\" viewBox=\"0 0 " + at(kWidth) + " " + height + "\" width=\"" + at(kWidth) +
                    "\" height=\"" + height + "\">\n";
  if (whole_file) all += "<style>\n" + plot_style() + "</style>\n";
  all += "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n";
  all += text("title", kLeft, 22, plot.title, " id=\"" + plot.id + "-title\"");
  all += axes(plot, x, y);
  for (const Series& series : plot.series)
    all += curve(plot, series, x, y);
  for (const Box& box : plot.boxes)
    all += area(box, x, y);
  return all + legend(plot) + "</svg>\n";
}

}  // namespace gpumem::cli
