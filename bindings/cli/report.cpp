// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <stdexcept>

namespace gpumem::cli {

namespace {

// Within this of the raw side, neither is faster.
constexpr double kAsFast = 0.05;

struct Sample {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
};

struct Row {
  std::string group;
  std::string name;
  std::string unit;
  Sample ours;
  std::optional<Sample> raw;
  std::optional<double> goal;           // in the unit
  std::map<std::string, Sample> peers;  // by their names

  bool more_is_better() const { return unit == "GB/s"; }
};

// A row in its plot: which line, and where.
struct Placed {
  const Row* row = nullptr;
  std::string subject;
  double x = 0;
  bool only_raw = false;
};

struct Figure {
  Plot plot;
  std::string about;
  std::string unit;  // of the y axis
  std::vector<Placed> rows;
};

Sample sample_of(const Json& json) {
  return {json.at("median").get<double>(), json.at("p10").get<double>(), json.at("p90").get<double>()};
}

// ---- units ----

double seconds_of(const std::string& unit) {
  return unit == "ns" ? 1e-9 : unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : unit == "s" ? 1 : 0;
}

double converted(double value, const std::string& from, const std::string& to) {
  return from == to ? value : value * seconds_of(from) / seconds_of(to);
}

Sample converted(const Sample& sample, const std::string& from, const std::string& to) {
  return {converted(sample.median, from, to), converted(sample.p10, from, to),
          converted(sample.p90, from, to)};
}

// "64KiB" and "1B", as rows are named.
std::optional<double> named_bytes(const std::string& text) {
  const size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string::npos) return std::nullopt;
  double value = 0;
  std::from_chars(text.data(), text.data() + digits, value);
  const std::string unit = text.substr(digits);
  for (const auto& [name, factor] : {std::pair("B", 1.0), std::pair("KiB", 1024.0),
                                     std::pair("MiB", 1048576.0), std::pair("GiB", 1073741824.0)}) {
    if (unit == name) return value * factor;
  }
  return std::nullopt;
}

std::string spaced(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  std::replace(text.begin(), text.end(), '/', ' ');
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  return std::regex_replace(text, std::regex(" +"), " ");
}

// ---- reading ----

std::vector<Row> rows_of(const Json& results) {
  std::vector<Row> rows;
  for (const Json& json : results.at("rows")) {
    Row row;
    row.group = json.at("group").get<std::string>();
    row.name = json.at("name").get<std::string>();
    row.unit = json.at("unit").get<std::string>();
    row.ours = sample_of(json.at("ours"));
    if (!json.at("raw").is_null()) row.raw = sample_of(json.at("raw"));
    if (json.contains("goal") && !json["goal"].is_null()) row.goal = json["goal"].get<double>();
    for (const Json& peer : results.value("peers", Json::array())) {
      for (const Json& value : peer.at("rows")) {
        const bool rate = value.at("unit") == "GB/s";
        if (value.at("name") != row.name || rate != row.more_is_better()) continue;
        row.peers[peer.at("peer").get<std::string>()] =
            converted(sample_of(value.at("value")), value.at("unit").get<std::string>(), row.unit);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

[[noreturn]] void refuse(const std::string& source, const std::string& why) {
  throw std::runtime_error(shown(source) + " is no result " + why);
}

void check_unit(const Json& row, const std::string& source) {
  const auto unit = row.at("unit").get<std::string>();
  if (unit != "GB/s" && unit != "bytes" && seconds_of(unit) == 0)
    throw std::runtime_error(shown(source) + " has the unknown unit " + shown(unit));
}

void check_schema(const Json& document, const std::string& source, const std::string& schema,
                  const std::string& writer) {
  if (!document.is_object() || document.value("schema", "") != schema) refuse(source, "of " + writer);
  if (document.value("version", 0) != 1)
    refuse(source, "of this version of " + writer + ": it has the number " + document["version"].dump());
}

// ---- plots ----

Plot plot_of(const char* id, const char* title, Axis x, Axis y) {
  Plot plot;
  plot.id = id;
  plot.title = title;
  plot.x = std::move(x);
  plot.y = std::move(y);
  return plot;
}

// The figures in the order of the page. Rows are placed afterwards.
std::vector<Figure> empty_figures() {
  const Axis size = {"bytes of one copy", Axis::Scale::kBytesLog};
  const Axis rate = {"GB/s (10^9 bytes per second)", Axis::Scale::kLog};
  const Axis threads = {"threads that call at once", Axis::Scale::kCountLog};
  const Axis ns = {"ns of one call, of each thread", Axis::Scale::kLog};
  const std::string more = "Higher is better.";
  const std::string less = "Lower is better.";
  return {
      {plot_of("copy-to-device", "Copies to the device", size, rate),
       "Copies from each kind of memory; the call returns when the copy is done. " + more,
       "GB/s",
       {}},
      {plot_of("copy-from-device", "Copies from the device", size, rate),
       "Copies to each kind of memory; the call returns when the copy is done. " + more,
       "GB/s",
       {}},
      {plot_of("copy-other", "Copies on one side", size, rate),
       "Within the device, and between kinds of host memory; the call returns when the copy is done. " + more,
       "GB/s",
       {}},
      {plot_of("copy-to-device-async", "Copies to the device, in a stream", size, rate),
       "Each copy is enqueued and then waited for. " + more,
       "GB/s",
       {}},
      {plot_of("copy-from-device-async", "Copies from the device, in a stream", size, rate),
       "Each copy is enqueued and then waited for. " + more,
       "GB/s",
       {}},
      {plot_of("copy-other-async", "Copies on one side, in a stream", size, rate),
       "Each copy is enqueued and then waited for. " + more,
       "GB/s",
       {}},
      {plot_of("pageable-to-device", "Ordinary memory to the device", size, rate),
       "Copies of ordinary memory, and what the raw side does with ordinary and with pinned memory. " + more,
       "GB/s",
       {}},
      {plot_of("pageable-from-device", "Ordinary memory from the device", size, rate),
       "Copies to ordinary memory, and what the raw side does with ordinary and with pinned memory. " + more,
       "GB/s",
       {}},
      {plot_of("create", "Creating and destroying memory", {"bytes of the memory", Axis::Scale::kBytesLog},
               {"us of one pair", Axis::Scale::kLog}),
       "One memory is created and destroyed. " + less,
       "us",
       {}},
      {plot_of("pool-threads", "Allocation and free from a pool", threads,
               {"ns of one pair, of each thread", Axis::Scale::kLog}),
       "Pairs of an allocation and its free. The raw side is the driver's own pool, or malloc() for ordinary "
       "memory. " +
           less,
       "ns",
       {}},
      {plot_of("query-threads", "Pointer queries", threads, ns),
       "What is known of an address. " + less,
       "ns",
       {}},
      {plot_of("enqueue-threads", "Calls that enqueue work", threads, ns),
       "Each thread has a stream of its own. " + less,
       "ns",
       {}},
      {plot_of("call-threads", "Calls that ask", threads, ns),
       "Each thread asks its own objects. " + less,
       "ns",
       {}},
  };
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The figure that a row belongs to, and its place there; an empty id for none.
std::string place(const Row& row, Placed* placed) {
  static const std::regex copy("copy/(.*)_to_(.*)/(sync|async)/(\\w+)");
  static const std::regex pageable("pageable/to_(device|host)/(sync|async|beside_pinned)/(\\w+)");
  static const std::regex create("create_destroy/(.*)/(\\w+)");
  static const std::regex threads("(.*)threads_(\\d+)(.*)");
  placed->row = &row;
  std::smatch part;
  const auto sized = [&](size_t index) {
    const auto bytes = named_bytes(part[index].str());
    if (bytes) placed->x = *bytes;
    return bytes.has_value();
  };
  if (std::regex_match(row.name, part, copy) && sized(4)) {
    const std::string from = spaced(part[1].str());
    const std::string to = spaced(part[2].str());
    const std::string end = part[3] == "async" ? "-async" : "";
    if ((from == "device") == (to == "device")) {
      placed->subject = from + " to " + to;
      return "copy-other" + end;
    }
    placed->subject = to == "device" ? from : to;
    return (to == "device" ? "copy-to-device" : "copy-from-device") + end;
  }
  if (std::regex_match(row.name, part, pageable) && sized(3)) {
    placed->only_raw = part[2] == "beside_pinned";
    placed->subject = placed->only_raw ? "pinned" : part[2] == "async" ? "ordinary, in a stream" : "ordinary";
    return part[1] == "device" ? "pageable-to-device" : "pageable-from-device";
  }
  if (std::regex_match(row.name, part, create) && sized(2)) {
    placed->subject = spaced(part[1].str());
    return "create";
  }
  if (row.more_is_better() || !std::regex_match(row.name, part, threads)) return "";
  placed->x = std::stod(part[2].str());
  std::string rest = part[1].str() + part[3].str();
  if (rest.rfind("pool/", 0) == 0) rest.erase(0, 5);
  placed->subject = spaced(std::regex_replace(rest, std::regex("pair_"), ""));
  if (contains(row.name, "pointer_query")) {
    placed->subject =
        spaced(std::regex_replace(rest, std::regex("device/pointer_query_of_(\\d+)"), "of $1 in a pool"));
    return "query-threads";
  }
  if (contains(row.name, "pointer_get_info")) {
    placed->subject = spaced(std::regex_replace(rest, std::regex("live_(\\d+).*"), "of $1 alive"));
    return "query-threads";
  }
  if (row.name.rfind("pool/", 0) == 0) return contains(row.name, "/pair_") ? "pool-threads" : "";
  for (const char* word : {"copy_", "fill_", "record", "mark"}) {
    if (contains(row.name, word)) return "enqueue-threads";
  }
  return "call-threads";
}

std::string spread_text(const Sample& sample) {
  return sample.p10 == sample.p90 ? "" : number_text(sample.p10) + " to " + number_text(sample.p90);
}

Point point_of(const Figure& figure, const Placed& placed, const std::string& who, const Sample& sample) {
  const Sample value = converted(sample, placed.row->unit, figure.unit);
  Point point;
  point.x = placed.x;
  point.y = value.median;
  if (value.p10 != value.p90) {
    point.low = value.p10;
    point.high = value.p90;
  }
  const std::string at = figure.plot.x.scale == Axis::Scale::kBytesLog ? bytes_text(placed.x)
                                                                       : number_text(placed.x) + " threads";
  const std::string spread = spread_text(value);
  point.text = who + ", " + at + ": " + number_text(value.median) + " " + figure.unit +
               (spread.empty() ? "" : ", p10 to p90: " + spread);
  return point;
}

// The lines of a figure from its rows.
void draw(Figure* figure) {
  std::vector<std::string> subjects;
  for (const Placed& placed : figure->rows) {
    if (std::find(subjects.begin(), subjects.end(), placed.subject) == subjects.end())
      subjects.push_back(placed.subject);
  }
  for (size_t i = 0; i < subjects.size(); ++i) {
    Series ours = {subjects[i] + ": gpumem", Side::kOurs, i, {}};
    Series raw = {subjects[i] + ": raw", Side::kRaw, i, {}};
    std::map<std::string, Series> peers;
    for (const Placed& placed : figure->rows) {
      if (placed.subject != subjects[i]) continue;
      if (!placed.only_raw) ours.points.push_back(point_of(*figure, placed, ours.name, placed.row->ours));
      if (placed.row->raw) raw.points.push_back(point_of(*figure, placed, raw.name, *placed.row->raw));
      for (const auto& [peer, sample] : placed.row->peers) {
        Series& series =
            peers.try_emplace(peer, Series{subjects[i] + ": " + peer, Side::kPeer, i, {}}).first->second;
        series.points.push_back(point_of(*figure, placed, series.name, sample));
      }
    }
    std::vector<Series> found = {ours, raw};
    for (auto& [peer, series] : peers)
      found.push_back(series);
    for (Series& series : found) {
      std::sort(series.points.begin(), series.points.end(),
                [](const Point& one, const Point& other) { return one.x < other.x; });
      if (!series.points.empty()) figure->plot.series.push_back(std::move(series));
    }
  }
}

std::vector<Figure> figures_of(const std::vector<Row>& rows) {
  std::vector<Figure> figures = empty_figures();
  for (const Row& row : rows) {
    Placed placed;
    const std::string id = place(row, &placed);
    for (Figure& figure : figures) {
      if (figure.plot.id == id) figure.rows.push_back(placed);
    }
  }
  for (Figure& figure : figures) {
    std::stable_sort(figure.rows.begin(), figure.rows.end(), [](const Placed& one, const Placed& other) {
      return one.subject != other.subject ? one.subject < other.subject : one.x < other.x;
    });
    draw(&figure);
  }
  // A single size or number of threads is no curve.
  std::erase_if(figures, [](const Figure& figure) {
    return std::none_of(figure.plot.series.begin(), figure.plot.series.end(),
                        [](const Series& series) { return series.points.size() > 1; });
  });
  return figures;
}

struct TracePlot {
  Plot plot;
  double peak_live = 0;
  double peak_reserved = 0;
  double events = 0;
};

std::vector<TracePlot> trace_plots(const Json& results) {
  constexpr double kMebibyte = 1048576;
  std::vector<TracePlot> all;
  for (const Json& trace : results.at("traces")) {
    const auto name = trace.at("name").get<std::string>();
    TracePlot one;
    one.plot = plot_of("", "", {"allocations and frees so far", Axis::Scale::kLinear},
                       {"MiB", Axis::Scale::kLinear});
    one.plot.id = "trace-" + std::to_string(all.size() + 1);
    one.plot.title = "Memory of a pool: " + spaced(name);
    one.plot.steps = true;
    one.peak_live = trace.at("peak_live").get<double>();
    one.peak_reserved = trace.at("peak_reserved").get<double>();
    one.events = trace.at("events").get<double>();
    Series live = {"live", Side::kRaw, 1, {}};
    Series reserved = {"reserved", Side::kOurs, 0, {}};
    for (const Json& point : trace.at("points")) {
      const double x = point.at(0).get<double>();
      live.points.push_back({x, point.at(1).get<double>() / kMebibyte, {}, {}, ""});
      reserved.points.push_back({x, point.at(2).get<double>() / kMebibyte, {}, {}, ""});
    }
    one.plot.series = {reserved, live};
    all.push_back(std::move(one));
  }
  return all;
}

// ---- tables ----

enum class Verdict { kFaster, kLevel, kSlower, kNone };

Verdict verdict_of(const Row& row) {
  if (!row.raw || row.raw->median <= 0 || row.ours.median <= 0) return Verdict::kNone;
  const double gain =
      row.more_is_better() ? row.ours.median / row.raw->median : row.raw->median / row.ours.median;
  return gain > 1 + kAsFast ? Verdict::kFaster : gain < 1 - kAsFast ? Verdict::kSlower : Verdict::kLevel;
}

std::string sample_cells(const Sample* sample, const std::string& from, const std::string& to) {
  if (sample == nullptr) return cell("-", "number") + cell("", "spread");
  const Sample value = converted(*sample, from, to);
  return cell(number_text(value.median), "number") + cell(spread_text(value), "spread");
}

std::string verdict_cells(const Row& row) {
  const Verdict verdict = verdict_of(row);
  if (verdict == Verdict::kNone) return cell("-", "number") + cell("");
  const std::string ratio = cell(number_text(row.ours.median / row.raw->median), "number");
  switch (verdict) {
    case Verdict::kFaster:
      return ratio + cell("&#9650; faster", "faster");
    case Verdict::kSlower:
      return ratio + cell("&#9660; slower", "slower");
    default:
      return ratio + cell("&#9644; as fast", "level");
  }
}

std::vector<std::string> peer_names(const Json& results) {
  std::vector<std::string> names;
  for (const Json& peer : results.value("peers", Json::array()))
    names.push_back(peer.at("peer").get<std::string>());
  return names;
}

std::string table_begin(const std::string& label, std::vector<std::string> columns,
                        const std::vector<std::string>& peers, bool goals) {
  columns.insert(columns.end(), {"gpumem", "p10 to p90", "raw", "p10 to p90"});
  for (const std::string& peer : peers)
    columns.insert(columns.end(), {peer, "p10 to p90"});
  columns.insert(columns.end(), {"gpumem / raw", "beside raw"});
  if (goals) columns.insert(columns.end(), {"goal", "reached"});
  return html_table(label, columns);
}

std::string goal_cells(const Row& row, const std::string& unit) {
  if (!row.goal) return cell("-", "number") + cell("");
  const bool reached = row.more_is_better() ? row.ours.median >= *row.goal : row.ours.median <= *row.goal;
  return cell((row.more_is_better() ? "at least " : "at most ") +
                  number_text(converted(*row.goal, row.unit, unit)),
              "number") +
         (reached ? cell("&#10003; reached", "faster") : cell("&#10007; missed", "slower"));
}

std::string value_cells(const Row& row, const std::string& unit, bool only_raw,
                        const std::vector<std::string>& peers, bool goals) {
  std::string all = sample_cells(only_raw ? nullptr : &row.ours, row.unit, unit) +
                    sample_cells(row.raw ? &*row.raw : nullptr, row.unit, unit);
  for (const std::string& peer : peers) {
    const auto found = row.peers.find(peer);
    all += sample_cells(found == row.peers.end() ? nullptr : &found->second, row.unit, unit);
  }
  return all + (only_raw ? cell("-", "number") + cell("") : verdict_cells(row)) +
         (goals ? goal_cells(row, unit) : "");
}

// Scrolls where the window is so narrow that its texts would become too small.
std::string wide_plot(const Plot& plot) {
  return "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"" + markup(plot.title) + "\">\n" +
         svg(plot, false) + "</div>\n";
}

std::string figure_section(const Figure& figure, const std::vector<std::string>& peers) {
  const bool bytes = figure.plot.x.scale == Axis::Scale::kBytesLog;
  std::string all = "<section id=\"section-" + figure.plot.id + "\">\n<h2>" + markup(figure.plot.title) +
                    "</h2>\n<p>" + markup(figure.about) + "</p>\n<div class=\"pair\">\n" +
                    wide_plot(figure.plot);
  const bool goals = std::any_of(figure.rows.begin(), figure.rows.end(),
                                 [](const Placed& placed) { return placed.row->goal.has_value(); });
  all += table_begin("Numbers: " + figure.plot.title, {"of", bytes ? "bytes" : "threads"}, peers, goals);
  for (const Placed& placed : figure.rows) {
    all += "<tr><th scope=\"row\">" + markup(placed.subject) + "</th>" +
           cell(bytes ? bytes_text(placed.x) : number_text(placed.x), "number") +
           value_cells(*placed.row, figure.unit, placed.only_raw, peers, goals) + "</tr>\n";
  }
  return all + "</tbody></table><p class=\"unit\">in " + figure.unit + "</p></div>\n</div>\n</section>\n";
}

std::string trace_section(const TracePlot& trace) {
  std::string all =
      "<section id=\"section-" + trace.plot.id + "\">\n<h2>" + markup(trace.plot.title) +
      "</h2>\n<p>What the program holds, and what the pool has taken for it. The closer, the better."
      "</p>\n<div class=\"pair\">\n" +
      wide_plot(trace.plot) + "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" +
      markup("Numbers: " + trace.plot.title) + "\"><table><tbody>\n";
  const auto line = [&](const char* name, const std::string& value) {
    all += std::string("<tr><th scope=\"row\">") + name + "</th>" + cell(value, "number") + "</tr>\n";
  };
  line("allocations and frees", number_text(trace.events));
  line("most live", bytes_text(trace.peak_live));
  line("most reserved", bytes_text(trace.peak_reserved));
  line("most reserved / most live", number_text(trace.peak_reserved / std::max(trace.peak_live, 1.0)));
  all += "</tbody></table>\n<table><thead><tr>" +
         header_cells({trace.plot.x.label, "live, MiB", "reserved, MiB"}) + "</tr></thead><tbody>\n";
  const std::vector<Point>& reserved = trace.plot.series.front().points;
  const std::vector<Point>& live = trace.plot.series.back().points;
  const size_t step = std::max<size_t>(reserved.size() / 25, 1);
  for (size_t i = step - 1; i < reserved.size(); i += step) {
    all += "<tr>" + cell(number_text(reserved[i].x), "number") + cell(number_text(live[i].y), "number") +
           cell(number_text(reserved[i].y), "number") + "</tr>\n";
  }
  return all + "</tbody></table></div>\n</div>\n</section>\n";
}

std::string summary_section(const std::vector<Row>& rows) {
  std::vector<std::string> groups;
  std::map<std::string, std::map<Verdict, int>> counts;
  for (const Row& row : rows) {
    if (counts.find(row.group) == counts.end()) groups.push_back(row.group);
    ++counts[row.group][verdict_of(row)];
  }
  std::string all =
      "<section id=\"section-summary\">\n<h2>Summary</h2>\n<p>Rows of each group. As fast is within " +
      number_text(kAsFast * 100) + " % of raw.</p>\n" +
      html_table("Summary",
                 {"group", "\u25B2 faster", "\u25AC as fast", "\u25BC slower", "nothing beside it"});
  for (const std::string& group : groups) {
    all += "<tr><th scope=\"row\">" + markup(group) + "</th>";
    for (const Verdict verdict : {Verdict::kFaster, Verdict::kLevel, Verdict::kSlower, Verdict::kNone})
      all += cell(std::to_string(counts[group][verdict]), "number");
    all += "</tr>\n";
  }
  return all + "</tbody></table></div>\n</section>\n";
}

std::string all_rows_section(const std::vector<Row>& rows, const std::vector<std::string>& peers) {
  const bool goals =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.goal.has_value(); });
  std::string all = "<section id=\"section-rows\">\n<h2>All rows</h2>\n" +
                    table_begin("All rows", {"name", "unit"}, peers, goals);
  for (const Row& row : rows) {
    all += "<tr><th scope=\"row\">" + markup(row.name) + "</th>" + cell(markup(row.unit)) +
           value_cells(row, row.unit, false, peers, goals) + "</tr>\n";
  }
  return all + "</tbody></table></div>\n</section>\n";
}

std::string facts_list(const Json& results) {
  std::string all = "<dl>\n";
  const auto fact = [&](const char* name, const std::string& value) {
    if (!value.empty()) all += std::string("<dt>") + name + "</dt><dd>" + markup(value) + "</dd>\n";
  };
  const auto text = [&](const char* key) {
    return results.contains(key) && results[key].is_string() ? results[key].get<std::string>()
                                                             : std::string();
  };
  fact("gpumem", text("gpumem"));
  fact("Date", text("date"));
  fact("System", text("system"));
  fact("Backend", text("backend"));
  fact("Device", text("device"));
  fact("Driver", text("driver"));
  fact("Raw", text("raw"));
  std::string peers;
  for (const std::string& peer : peer_names(results))
    peers += (peers.empty() ? "" : ", ") + peer;
  fact("Peers", peers);
  for (const Json& failed : results.value("failed", Json::array()))
    fact("Failed", failed.at("group").get<std::string>() + ": " + failed.at("why").get<std::string>());
  for (const Json& missing : results.value("missing", Json::array()))
    fact("Missing", missing.at("peer").get<std::string>() + ": " + missing.at("why").get<std::string>());
  return all + "</dl>\n";
}

constexpr const char* kPageStyle = R"(body {
  margin: 0 auto; max-width: 115rem; padding: 1rem 1.5rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0 1rem; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
.pair { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start; } .pair > * { max-width: 100%; }
.scroll { max-height: 26rem; overflow: auto; } #section-rows .scroll { max-height: 40rem; }
table { border-collapse: collapse; font-size: 0.85rem; margin-bottom: 0.5rem; }
th, td { padding: 0.15rem 0.6rem; border-bottom: 1px solid var(--grid); text-align: left; white-space: nowrap; }
thead th { position: sticky; top: 0; background: var(--page); }
.number { text-align: right; font-variant-numeric: tabular-nums; } .spread, .unit { color: var(--faint); }
svg.plot .box { fill: var(--c); fill-opacity: 0.55; stroke: var(--page); stroke-width: 0.3; }
svg.plot a:hover .box, svg.plot a:focus .box { fill-opacity: 1; }
tr:target { outline: 2px solid var(--c1); }
.wide { overflow-x: auto; } .wide svg.plot { min-width: 42rem; }
.faster { color: var(--c2); } .slower { color: var(--c1); font-weight: 600; } .level { color: var(--faint); }
)";

}  // namespace

void check_results(const Json& results, const std::string& source) try {
  check_schema(results, source, "gpumem-bench", "gpumem bench");
  for (const Json& row : results.at("rows"))
    check_unit(row, source);
  html_report(results);
} catch (const Json::exception& problem) {
  refuse(source, std::string("of gpumem bench: ") + problem.what());
}

void check_peers(const Json& peers, const std::string& source) try {
  check_schema(peers, source, "gpumem-peers", "tests/bench/peers.py");
  for (const Json& peer : peers.at("peers")) {
    peer.at("peer").get<std::string>();
    for (const Json& row : peer.at("rows")) {
      row.at("name").get<std::string>();
      check_unit(row, source);
      sample_of(row.at("value"));
    }
  }
  for (const Json& missing : peers.at("missing"))
    missing.at("peer").get<std::string>() += missing.at("why").get<std::string>();
} catch (const Json::exception& problem) {
  refuse(source, std::string("of tests/bench/peers.py: ") + problem.what());
}

std::vector<Plot> plots_of(const Json& results) {
  const std::vector<Row> rows = rows_of(results);
  std::vector<Plot> plots;
  for (Figure& figure : figures_of(rows))
    plots.push_back(std::move(figure.plot));
  for (TracePlot& trace : trace_plots(results))
    plots.push_back(std::move(trace.plot));
  return plots;
}

std::string html_report(const Json& results) {
  const std::vector<Row> rows = rows_of(results);
  const std::vector<std::string> peers = peer_names(results);
  std::string body;
  for (const Figure& figure : figures_of(rows))
    body += figure_section(figure, peers);
  for (const TracePlot& trace : trace_plots(results))
    body += trace_section(trace);
  std::string data = results.dump(-1, ' ', false, Json::error_handler_t::replace);
  // A "</script>" inside would end it.
  for (size_t at = data.find("</"); at != std::string::npos; at = data.find("</", at + 2))
    data.insert(at + 1, "\\");
  return html_page(
      "gpumem bench",
      facts_list(results) +
          "<p>Full lines and filled marks: gpumem. Broken lines and hollow marks: raw, the same work by the "
          "fewest calls of the driver or the operating system in the same run. Thin vertical lines: from the "
          "10th to the 90th percentile; marks: medians.</p>\n" +
          summary_section(rows) + body + all_rows_section(rows, peers) +
          "<script type=\"application/json\" id=\"results\">" + data + "</script>\n");
}

std::string html_page(const std::string& title, const std::string& body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
         "style-src 'unsafe-inline'\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<title>" +
         markup(title) + "</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n" + plot_style() +
         kPageStyle + "</style>\n</head>\n<body>\n<h1>" + markup(title) + "</h1>\n" + body +
         "</body>\n</html>\n";
}

std::string cell(const std::string& text, const char* kind) {
  return std::string("<td") + (*kind == 0 ? "" : std::string(" class=\"") + kind + "\"") + ">" + text +
         "</td>";
}

std::string header_cells(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names)
    all += "<th scope=\"col\">" + markup(name) + "</th>";
  return all;
}

std::string html_table(const std::string& label, const std::vector<std::string>& columns) {
  return "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + markup(label) +
         "\"><table><thead><tr>" + header_cells(columns) + "</tr></thead><tbody>\n";
}

}  // namespace gpumem::cli
