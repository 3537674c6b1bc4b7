// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem trace html: what a trace says of the memory, as one page without a script that needs nothing else.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>

#include "../commands.h"
#include "../file.h"
#include "../output.h"
#include "../plot.h"
#include "../report.h"
#include "history.h"

namespace gpumem::cli {

namespace {

constexpr double kMebibyte = 1048576;
constexpr double kSecond = 1e9;
constexpr size_t kMostPoints = 1000;
constexpr size_t kMostBoxes = 2000;

double seconds(uint64_t ns) { return static_cast<double>(ns) / kSecond; }

std::string hex(uint64_t address) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(address));
  return text.data();
}

uint64_t end_of(const Life& life, uint64_t length) { return life.end == kStillLives ? length : life.end; }

std::string life_text(const Life& life) {
  return (life.name.empty() ? "" : life.name + ": ") + size_text(life.size) + ", " + life.kind + ' ' +
         life.what + " of device " + std::to_string(life.device) + " at " + hex(life.address) + ", made at " +
         time_text(life.begin) + " by thread " + std::to_string(life.thread) +
         (life.end == kStillLives ? ", never freed" : ", freed after " + time_text(life.end - life.begin));
}

// Few enough points for a page. Of many in a row, the one with the most memory.
std::vector<Usage::Point> thinned(const std::vector<Usage::Point>& points) {
  const size_t step = points.size() / kMostPoints + 1;
  std::vector<Usage::Point> few;
  for (size_t i = 0; i < points.size(); i += step) {
    const auto end = points.begin() + static_cast<std::ptrdiff_t>(std::min(i + step, points.size()));
    few.push_back(*std::max_element(
        points.begin() + static_cast<std::ptrdiff_t>(i), end,
        [](const Usage::Point& one, const Usage::Point& other) { return one.live < other.live; }));
  }
  if (!points.empty()) few.push_back(points.back());
  return few;
}

std::string usage_section(const std::string& kind, const Usage& usage, size_t number, uint64_t length) {
  Plot plot;
  plot.id = "usage-" + std::to_string(number);
  plot.title = "Memory over time: " + kind;
  plot.x = {"seconds", Axis::Scale::kLinear};
  plot.y = {"MiB", Axis::Scale::kLinear};
  plot.steps = true;
  Series live = {"live", Side::kRaw, 1, {{0, 0, {}, {}, ""}}};
  Series taken = {"taken", Side::kOurs, 0, {{0, 0, {}, {}, ""}}};
  for (const Usage::Point& point : thinned(usage.points)) {
    live.points.push_back({seconds(point.time), static_cast<double>(point.live) / kMebibyte, {}, {}, ""});
    taken.points.push_back({seconds(point.time), static_cast<double>(point.taken) / kMebibyte, {}, {}, ""});
  }
  for (Series* const series : {&live, &taken})
    series->points.push_back({seconds(length), series->points.back().y, {}, {}, ""});
  plot.series = {taken, live};
  return "<section>\n<h2>" + markup(plot.title) + "</h2>\n<p>At most " + size_text(usage.peak_live) +
         " live, and " + size_text(usage.peak_taken) + " taken.</p>\n<div class=\"wide\" tabindex=\"0\">\n" +
         svg(plot, false) + "</div>\n</section>\n";
}

// What has an address, the largest and longest first.
std::vector<const Life*> drawn_of(const History& history, uint64_t length) {
  std::vector<const Life*> drawn;
  for (const Life& life : history.lives) {
    if (life.address != 0 && life.size != 0) drawn.push_back(&life);
  }
  const auto weight = [length](const Life* life) {
    return static_cast<double>(life->size) * (static_cast<double>(end_of(*life, length) - life->begin) + 1);
  };
  std::stable_sort(drawn.begin(), drawn.end(),
                   [&](const Life* one, const Life* other) { return weight(one) > weight(other); });
  if (drawn.size() > kMostBoxes) drawn.resize(kMostBoxes);
  return drawn;
}

std::string map_section(const History& history, uint64_t length) {
  const std::vector<const Life*> drawn = drawn_of(history, length);
  if (drawn.empty()) return "";
  // Addresses that nothing ever had are left out, so that what was there is seen.
  std::vector<std::pair<uint64_t, uint64_t>> used;
  for (const Life* const life : drawn)
    used.emplace_back(life->address, life->address + life->size);
  std::sort(used.begin(), used.end());
  const auto place = [&](uint64_t address) {
    uint64_t below = 0;
    uint64_t from = 0;
    for (const auto& [begin, end] : used) {
      if (begin >= address) break;
      const uint64_t first = std::max(begin, from);
      const uint64_t last = std::min(end, address);
      if (last > first) below += last - first;
      from = std::max(from, end);
    }
    return static_cast<double>(below) / kMebibyte;
  };
  Plot plot;
  plot.id = "map";
  plot.title = "Memory map";
  plot.x = {"seconds", Axis::Scale::kLinear};
  plot.y = {"MiB of addresses, without unused ones", Axis::Scale::kLinear};
  plot.steps = true;
  const std::set<std::string> kinds = [&] {
    std::set<std::string> found;
    for (const Life* const life : drawn)
      found.insert(life->kind);
    return found;
  }();
  for (const std::string& kind : kinds)
    plot.series.push_back({kind, Side::kOurs, plot.series.size(), {}});
  std::string rows;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const Life& life = *drawn[i];
    const auto subject = static_cast<size_t>(std::distance(kinds.begin(), kinds.find(life.kind)));
    const std::string id = "life-" + std::to_string(i + 1);
    const double bottom = place(life.address);
    plot.boxes.push_back({seconds(life.begin), seconds(end_of(life, length)), bottom,
                          bottom + static_cast<double>(life.size) / kMebibyte, subject, life_text(life), id});
    rows += "<tr id=\"" + id + "\">" + cell(size_text(life.size), "number") + cell(markup(life.kind)) +
            cell(life.what) + cell(markup(life.name)) + cell(std::to_string(life.device), "number") +
            cell(hex(life.address), "number") + cell(time_text(life.begin), "number") +
            cell(life.end == kStillLives ? "never" : time_text(life.end - life.begin), "number") +
            cell(std::to_string(life.thread), "number") + "</tr>\n";
  }
  const size_t all =
      static_cast<size_t>(std::count_if(history.lives.begin(), history.lives.end(), [](const Life& life) {
        return life.address != 0 && life.size != 0;
      }));
  return "<section>\n<h2>Memory map</h2>\n<p>Each area is a piece of memory: from left to right while it "
         "lived, upwards the "
         "addresses that it had. Hover over one for what it is; a click leads to its row." +
         (all > drawn.size() ? " It shows " + std::to_string(drawn.size()) + " of " + std::to_string(all) +
                                   ", the largest and longest."
                             : "") +
         "</p>\n<div class=\"wide\" tabindex=\"0\">\n" + svg(plot, false) + "</div>\n" +
         html_table("What the map shows", {"bytes", "kind", "what", "name", "device", "address", "made at",
                                           "freed after", "thread"}) +
         rows + "</tbody></table></div>\n</section>\n";
}

std::string left_section(const History& history) {
  std::vector<const Life*> left;
  for (const Life& life : history.lives) {
    if (life.end == kStillLives && life.what != "mapping") left.push_back(&life);
  }
  if (left.empty())
    return "<section>\n<h2>Never freed</h2>\n<p>Nothing: the program has freed all that it "
           "made.</p>\n</section>\n";
  std::stable_sort(left.begin(), left.end(),
                   [](const Life* one, const Life* other) { return one->size > other->size; });
  std::string rows;
  for (size_t i = 0; i < std::min(left.size(), kMostBoxes); ++i) {
    const Life& life = *left[i];
    rows += "<tr>" + cell(size_text(life.size), "number") + cell(markup(life.kind)) + cell(life.what) +
            cell(markup(life.name)) + cell(std::to_string(life.device), "number") +
            cell(time_text(life.begin), "number") + cell(std::to_string(life.thread), "number") + "</tr>\n";
  }
  return "<section id=\"never-freed\">\n<h2>Never freed</h2>\n<p>" + counted(left.size(), "piece", "pieces") +
         " of memory lived when the trace ended, the largest first.</p>\n" +
         html_table("Never freed", {"bytes", "kind", "what", "name", "device", "made at", "thread"}) + rows +
         "</tbody></table></div>\n</section>\n";
}

}  // namespace

int trace_html(const TraceOptions& options) {
  const Trace trace = read_trace(options.file);
  const History history = history_of(trace);
  const uint64_t length = std::max<uint64_t>(trace.length(), 1);
  std::string body = "<p>Process " + std::to_string(trace.process) + ", " + markup(trace.command) +
                     ", gpumem " + markup(trace.version) + ", " + date_text(trace.date) + ": " +
                     counted(trace.calls.size(), "call", "calls") + " in " + time_text(length) + ".</p>\n";
  if (trace.cut_off + trace.lost != 0) {
    body += "<p>Not all is here: " + counted(trace.cut_off, "line ends", "lines end") +
            " in the middle, and " + counted(trace.lost, "call had", "calls had") +
            " no room in the file.</p>\n";
  }
  size_t number = 0;
  for (const auto& [kind, usage] : history.kinds)
    body += usage_section(kind, usage, ++number, length);
  body += map_section(history, length) + left_section(history);
  OutputFile file(options.output);
  const std::string page = html_page("gpumem trace", body);
  file.write(reinterpret_cast<const std::byte*>(page.data()), page.size());
  file.finish();
  return kExitSuccess;
}

}  // namespace gpumem::cli
