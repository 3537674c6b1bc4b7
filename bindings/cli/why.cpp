// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem why FILE: a snapshot of an instance, for people: who has the memory, and what can go back.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"
#include "library.h"
#include "output.h"
#include "processes.h"

namespace gpumem::cli {

namespace {

// Members by name, so that an object with very many does not take forever.
using Document = nlohmann::json;

constexpr size_t kMostBytes = size_t{64} << 20;
constexpr int kMostNested = 8;
constexpr size_t kMostObjects = 10;
constexpr const char* kInput = "-";

std::string title_of(const std::string& file) {
  return file == kInput ? "the standard input" : "the file " + shown(file);
}

// Also from a pipe. Without the byte 0 that ends the text of the library.
std::string read_all(const std::string& file) {
  const auto fail = [&](const std::string& what) { throw std::runtime_error(title_of(file) + " " + what); };
  const int descriptor = file == kInput ? STDIN_FILENO : open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(std::string("cannot be opened: ") + std::strerror(errno));
  std::string text;
  std::vector<char> piece(size_t{1} << 16);
  ssize_t count = 0;
  int problem = 0;
  do {
    count = read(descriptor, piece.data(), piece.size());
    problem = count < 0 ? errno : 0;
    if (count > 0) text.append(piece.data(), static_cast<size_t>(count));
  } while ((count > 0 && text.size() <= kMostBytes) || problem == EINTR);
  if (descriptor != STDIN_FILENO) close(descriptor);
  if (problem == EISDIR) fail("is a directory");
  if (problem != 0) fail(std::string("cannot be read: ") + std::strerror(problem));
  if (text.size() > kMostBytes) fail("has more than " + size_text(kMostBytes) + ", and so is no snapshot");
  if (!text.empty() && text.back() == '\0') text.pop_back();
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) != 0; }))
    fail("is empty: write into it what gpumem_stats_snapshot() returns");
  return text;
}

Document parse(const std::string& text, const std::string& file) {
  const auto limit = [&](int depth, Document::parse_event_t /*event*/, const Document& /*parsed*/) {
    if (depth > kMostNested)
      throw std::runtime_error(title_of(file) + " is no snapshot: it nests too deeply");
    return true;
  };
  try {
    return Document::parse(text, limit);
  } catch (const Document::parse_error& problem) {
    if (problem.byte > text.size()) {
      throw std::runtime_error(title_of(file) + " ends in the middle, after " + std::to_string(text.size()) +
                               " bytes: write all that gpumem_stats_snapshot() returns");
    }
    throw std::runtime_error(title_of(file) + " is no JSON: see byte " + std::to_string(problem.byte));
  } catch (const Document::exception&) {
    throw std::runtime_error(title_of(file) + " is no snapshot: it has a number that is too large");
  }
}

uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
uint64_t difference(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// The members of an object in a snapshot. A member may be missing, as in a snapshot of an older library, but
// is what it should be.
class Members {
 public:
  Members(const Document& json, std::string place, const std::string& file)
      : json_(json), place_(std::move(place)), file_(file) {
    if (!json.is_object()) fail(place_.empty() ? "the whole" : place_, "object");
  }

  bool has(const char* key) const { return json_.contains(key); }

  std::string text(const char* key) const {
    const Document* const found = find(key);
    if (found == nullptr) return "";
    if (!found->is_string()) fail(path_of(key), "text");
    return found->get<std::string>();
  }
  std::optional<uint64_t> number(const char* key) const {
    const Document* const found = find(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_number_unsigned()) fail(path_of(key), "whole number of 64 bits");
    return found->get<uint64_t>();
  }
  uint64_t number_or_0(const char* key) const { return number(key).value_or(0); }
  bool is_true(const char* key) const {
    const Document* const found = find(key);
    if (found == nullptr) return false;
    if (!found->is_boolean()) fail(path_of(key), "boolean");
    return found->get<bool>();
  }
  std::optional<Members> object(const char* key) const {
    const Document* const found = find(key);
    return found == nullptr ? std::nullopt : std::optional<Members>(Members(*found, path_of(key), file_));
  }
  std::vector<Members> objects(const char* key) const {
    std::vector<Members> list;
    for_each(key, [&](const Document& one, const std::string& path) { list.emplace_back(one, path, file_); });
    return list;
  }
  std::vector<uint64_t> numbers(const char* key) const {
    std::vector<uint64_t> list;
    for_each(key, [&](const Document& one, const std::string& path) {
      if (!one.is_number_unsigned()) fail(path, "whole number of 64 bits");
      list.push_back(one.get<uint64_t>());
    });
    return list;
  }
  void require(std::initializer_list<const char*> keys) const {
    for (const char* const key : keys) {
      if (!has(key))
        throw std::runtime_error(title_of(file_) + " is JSON, but no snapshot of gpumem: it has no \"" + key +
                                 '"');
    }
  }

  std::string name() const {
    const std::string given = text("name");
    return given.empty() ? "(no name)" : shown(given);
  }
  std::string device() const {
    const auto ordinal = number("device");
    return ordinal ? std::to_string(*ordinal) : "-";
  }

 private:
  const Document* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  std::string path_of(const char* key) const { return place_.empty() ? key : place_ + '.' + key; }
  template <class F>
  void for_each(const char* key, F function) const {
    const Document* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_array()) fail(path_of(key), "list");
    for (size_t i = 0; i < found->size(); ++i)
      function((*found)[i], path_of(key) + '[' + std::to_string(i) + ']');
  }
  [[noreturn]] void fail(const std::string& what, const char* wanted) const {
    throw std::runtime_error(title_of(file_) + " is JSON, but no snapshot of gpumem: " + what + " is no " +
                             wanted);
  }

  const Document& json_;
  std::string place_;
  const std::string& file_;
};

// Numbers of a version such as 0.1.0; none if it is no such.
std::optional<std::array<uint32_t, 3>> version_of(const std::string& text) {
  std::array<uint32_t, 3> version{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < version.size(); ++i) {
    if (i != 0 && (at == end || *at++ != '.')) return std::nullopt;
    const auto result = std::from_chars(at, end, version.at(i));
    if (result.ec != std::errc()) return std::nullopt;
    at = result.ptr;
  }
  return at == end ? std::optional(version) : std::nullopt;
}

using enum Table::Align;

// What has memory, and what it is called in the tables.
struct Holding {
  std::string what;
  std::string name;
  std::string device;
  uint64_t bytes = 0;
  uint64_t addresses = 0;
};

std::vector<Holding> holdings_of(const std::vector<Members>& objects) {
  std::vector<Holding> list;
  for (const Members& object : objects) {
    if (object.is_true("of_pool") && !object.is_true("pool_destroyed")) continue;  // counted with the pool
    const std::string type = object.text("type");
    Holding held{"", object.name(), object.device(), object.number_or_0("size"), 0};
    if (type == "memory") {
      held.what = shown(object.text("kind")) + " memory";
    } else if (type == "range") {
      held.what = shown(object.text("kind")) + " memory";
      held.addresses = std::exchange(held.bytes, object.number_or_0("mapped_bytes"));
    } else if (type == "pool") {
      held.what = "pool of " + shown(object.text("kind")) + " memory";
      held.bytes = object.number_or_0("reserved_bytes");
    } else if (type == "physical memory") {
      held.what = "physical memory";
    } else {
      continue;
    }
    list.push_back(std::move(held));
  }
  return list;
}

std::string bytes_text(const Holding& held) {
  return size_text(held.bytes) + (held.addresses != 0 ? " of " + size_text(held.addresses) : "");
}

void print_heading(std::ostream& out, const std::string& text) { out << '\n' << wrapped(text); }

void print_head(std::ostream& out, const Members& snapshot) {
  const std::string version = snapshot.text("version");
  const auto numbers = version_of(version);
  snapshot.require({"version", "backend", "process", "live_bytes", "devices", "kinds", "objects"});
  std::vector<std::string> parts = {"Process " + std::to_string(snapshot.number_or_0("process")) + ",",
                                    "backend " + shown(snapshot.text("backend")) + ","};
  if (const std::string name = snapshot.text("name"); !name.empty())
    parts.push_back("instance " + shown(name) + ",");
  parts.push_back("gpumem " + shown(version));
  out << filled(parts);
  if (!numbers || *numbers > *version_of(gpumem_version_text())) {
    out << wrapped("It is of another version than this program, " + std::string(gpumem_version_text()) +
                   ", which may not know all of it.");
  }
  out << '\n'
      << wrapped(size_text(snapshot.number_or_0("live_bytes")) + " of memory, " +
                 size_text(snapshot.number_or_0("peak_bytes")) + " at most so far; " +
                 size_text(snapshot.number_or_0("reserved_bytes")) + " of reserved addresses");
}

gpumem_status_info info_of(const std::string& name) {
  gpumem_status status = 0;
  for (uint32_t i = 0; gpumem_status_enumerate(i, &status, nullptr) == GPUMEM_SUCCESS; ++i) {
    if (name == gpumem_status_name(status)) return status_info(status);
  }
  return {};
}

void print_last_failure(std::ostream& out, const Members& snapshot) {
  const auto failure = snapshot.object("last_failure");
  if (!failure) return;
  print_heading(out, "Last failure for lack of memory, in this process");
  const std::string status = failure->text("status");
  const std::string message = failure->text("message");
  out << wrapped(shown(status) + " in " + shown(failure->text("function")) + "() at " +
                     date_text(failure->number_or_0("time")),
                 "  ")
      << wrapped(shown(message), "  ");
  // A message that knows what to do says it behind a semicolon.
  const gpumem_status_info known = info_of(status);
  if (known.remedy != nullptr && message.find(';') == std::string::npos) out << wrapped(known.remedy, "  ");
}

void print_devices(std::ostream& out, const Members& snapshot) {
  Table table({"DEVICE", "MEMORY", "FREE", "OWN", "OTHERS", "NAME"},
              {kRight, kRight, kRight, kRight, kRight});
  const std::vector<Members> devices = snapshot.objects("devices");
  for (const Members& device : devices) {
    const uint64_t total = device.number_or_0("total_bytes");
    const auto free = device.number("free_bytes");
    const auto own = device.number("own_bytes");
    table.add({std::to_string(device.number_or_0("ordinal")), size_text(total), free ? size_text(*free) : "-",
               own ? size_text(*own) : "-",
               free && own ? size_text(difference(total, sum(*free, *own))) : "-", device.name()});
  }
  if (devices.empty()) return;
  print_heading(out, "Devices");
  out << table.text();
}

void print_totals(std::ostream& out, const std::vector<Holding>& holdings) {
  struct Total {
    uint64_t count = 0;
    Holding all;
  };
  std::map<std::pair<std::string, std::string>, Total> totals;
  for (const Holding& held : holdings) {
    Total& total = totals[{held.device, held.what}];
    ++total.count;
    total.all.bytes = sum(total.all.bytes, held.bytes);
    total.all.addresses = sum(total.all.addresses, held.addresses);
  }
  if (totals.empty()) return;
  print_heading(out, "Memory by device and kind");
  Table table({"DEVICE", "COUNT", "BYTES", "WHAT"}, {kRight, kRight, kRight});
  for (const auto& [key, total] : totals)
    table.add({key.first, std::to_string(total.count), bytes_text(total.all), key.second});
  out << table.text();
}

void print_largest(std::ostream& out, std::vector<Holding> holdings) {
  std::erase_if(holdings, [](const Holding& held) { return held.bytes == 0; });
  if (holdings.empty()) return;
  std::stable_sort(holdings.begin(), holdings.end(),
                   [](const Holding& a, const Holding& b) { return a.bytes > b.bytes; });
  print_heading(out, "The largest");
  Table table({"BYTES", "NAME", "DEVICE", "WHAT"}, {kRight, kLeft, kRight});
  const size_t shown_count = std::min(holdings.size(), kMostObjects);
  for (size_t i = 0; i < shown_count; ++i)
    table.add({bytes_text(holdings[i]), holdings[i].name, holdings[i].device, holdings[i].what});
  out << table.text();
  if (holdings.size() > shown_count) out << "  and " << holdings.size() - shown_count << " smaller\n";
}

bool is_pool(const Members& object) { return object.text("type") == "pool"; }

uint64_t cached_of(const Members& pool) {
  return difference(pool.number_or_0("reserved_bytes"), pool.number_or_0("live_bytes"));
}

// The part of the free memory that is not in its largest piece.
std::string fragmentation_of(uint64_t free, uint64_t largest) {
  if (free == 0) return "-";
  const double rest = static_cast<double>(difference(free, largest)) / static_cast<double>(free);
  return std::to_string(static_cast<int>(rest * 100)) + " %";
}

void print_pools(std::ostream& out, const std::vector<Members>& objects) {
  Table table({"NAME", "DEVICE", "TAKEN", "LIVE", "CACHED", "FREE", "LARGEST", "FRAGMENTED"},
              {kLeft, kRight, kRight, kRight, kRight, kRight, kRight});
  bool any = false;
  for (const Members& pool : objects) {
    if (!is_pool(pool)) continue;
    any = true;
    const std::string name = pool.name() + (pool.is_true("destroyed") ? " (destroyed)" : "");
    if (pool.is_true("busy")) {
      table.add({name, pool.device(), "-", "-", "-", "-", "-", "in a call at that moment"});
      continue;
    }
    Table::Row row = {name, pool.device(), size_text(pool.number_or_0("reserved_bytes")),
                      size_text(pool.number_or_0("live_bytes")), size_text(cached_of(pool))};
    const auto free = pool.number("free_bytes");
    const auto largest = pool.number("largest_free_bytes");
    if (free && largest) {
      row.insert(row.end(), {size_text(*free), size_text(*largest), fragmentation_of(*free, *largest)});
    } else {
      row.insert(row.end(), {"-", "-", "-"});
    }
    table.add(std::move(row));
  }
  if (!any) return;
  print_heading(out, "Pools");
  out << table.text();
}

// A process of a snapshot, and whether it is there now.
std::string process_text(uint64_t process, std::optional<uint64_t> start_time = std::nullopt) {
  if (process == 0) return "a process that the system does not show";
  const std::string number = "process " + std::to_string(process);
  const std::optional<ProcessNow> now = look_at_process(process);
  const bool same = now && (!start_time || *start_time == 0 || now->start_time == *start_time);
  return number + (same ? " (" + shown(now->command) + ")" : ", which has ended");
}

void print_shares(std::ostream& out, const Members& snapshot) {
  const std::vector<Members> exports = snapshot.objects("exports");
  if (!exports.empty()) {
    print_heading(out, "Shared with other processes");
    Table table({"NAME", "TYPE", "BYTES", "WAY", "HELD BY"}, {kLeft, kLeft, kRight});
    for (const Members& one : exports) {
      std::string holders;
      for (const uint64_t process : one.numbers("holders"))
        holders += (holders.empty() ? "" : "; ") + process_text(process);
      if (holders.empty())
        holders = one.number_or_0("claims") == 0 ? "nobody" : "a process that is yet to import it";
      if (one.is_true("revoked")) holders += "; for others it has ended";
      table.add({one.name(), shown(one.text("type")), size_text(one.number_or_0("size")),
                 shown(one.text("way")), holders});
    }
    out << table.text();
  }
  const std::vector<Members> imports = snapshot.objects("imports");
  if (imports.empty()) return;
  print_heading(out, "Memory of other processes");
  Table table({"NAME", "BYTES", "COUNT", "STATE", "FROM"}, {kLeft, kRight, kRight});
  for (const Members& one : imports) {
    const uint64_t exporter = one.number_or_0("exporter");
    std::string from = process_text(exporter, one.number("exporter_start_time"));
    if (const auto granter = one.number("granter"); granter && *granter != exporter)
      from += "; kept by " + process_text(*granter);
    table.add({one.name(), size_text(one.number_or_0("size")), std::to_string(one.number_or_0("count")),
               shown(one.text("state")), from});
  }
  out << table.text();
}

// What holds memory that nothing uses now, and what releases it.
void print_what_can_go_back(std::ostream& out, const Members& snapshot, const std::vector<Members>& objects) {
  Table table({}, {kRight});
  bool any = false;
  const auto add = [&](uint64_t bytes, const std::string& text) {
    any = true;
    table.add({size_text(bytes), text});
  };
  for (const Members& object : objects) {
    const std::string name = object.name();
    if (is_pool(object)) {
      if (object.is_true("destroyed")) {
        add(object.number_or_0("live_bytes"),
            "live blocks of pool " + name + ", which is destroyed: gpumem_pool_free_pointer() frees them");
      } else if (cached_of(object) != 0) {
        const uint64_t captured = object.number_or_0("captured_bytes");
        add(cached_of(object),
            "cached by pool " + name + ": gpumem_pool_trim(), as far as it is in whole pieces" +
                (captured == 0
                     ? ""
                     : "; gpumem_pool_release_capture() for the " + size_text(captured) + " of captures"));
      }
    } else if (object.is_true("pool_destroyed")) {
      const bool range = object.has("mapped_bytes");
      add(object.number_or_0(range ? "mapped_bytes" : "size"),
          "of pool " + name +
              ", which is destroyed and has live blocks: gpumem_pool_free_pointer() frees them");
    } else if (const uint64_t store = object.number_or_0("store_bytes"); store != 0) {
      const bool asleep = object.text("state") != "awake";
      add(store,
          "host memory or file for the content of buffer " + name +
              (asleep ? ", which sleeps: gpumem_buffer_wake() or gpumem_buffer_destroy()"
                      : ", kept for its next sleep: gpumem_buffer_prepare() with GPUMEM_CONTENT_DROP"));
    }
  }
  if (const auto kept = snapshot.object("kept_imports"); kept && kept->number_or_0("count") != 0) {
    add(kept->number_or_0("bytes"),
        "of " + counted(kept->number_or_0("count"), "import that has ended", "imports that have ended") +
            ", kept mapped: gpumem_share_flush_cache()");
  }
  print_heading(out, "What can go back");
  out << (any ? table.text() : "  nothing that the snapshot shows\n");
}

}  // namespace

int why(const WhyOptions& options) {
  const std::string& file = *options.file;
  const Document json = parse(read_all(file), file);
  const Members snapshot(json, "", file);
  const std::vector<Members> objects = snapshot.objects("objects");
  const std::vector<Holding> holdings = holdings_of(objects);
  std::ostringstream out;  // so that nothing is printed if a part is wrong
  print_head(out, snapshot);
  print_last_failure(out, snapshot);
  print_devices(out, snapshot);
  print_totals(out, holdings);
  print_largest(out, holdings);
  print_pools(out, objects);
  print_shares(out, snapshot);
  print_what_can_go_back(out, snapshot, objects);
  std::cout << out.str();
  return kExitSuccess;
}

}  // namespace gpumem::cli
