// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem move: a file to the device and back by every path, checked byte by byte, beside the same without
// gpumem.
//
// The file is read once, in batches of a few chunks. Each batch goes through every path before the next is
// read, so that neither the file nor the device has to fit anywhere. Only the transfers are timed, and the
// two sides take turns.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "commands.h"
#include "file.h"
#include "interrupt.h"
#include "library.h"
#include "output.h"
#include "path.h"

namespace gpumem::cli {

namespace {

constexpr uint64_t kDefaultChunk = uint64_t{32} << 20;
constexpr uint64_t kMaxInFlight = 4;

// A path, the one beside it, and what came out. Times are in seconds, one for each pass, over all batches.
struct Lane {
  using Times = std::array<std::vector<double>, 2>;  // by Direction

  explicit Lane(Kind path_kind, uint32_t passes) : kind(path_kind) {
    for (auto& list : times)
      list.resize(passes);
    for (auto& list : raw_times)
      list.resize(passes);
  }

  Kind kind;
  std::unique_ptr<GpumemPath> path;
  std::unique_ptr<Path> raw;
  std::string reason;     // why there is no path; empty if there is one
  bool compared = false;  // whether there is a raw path beside it
  bool migrated = false;  // what was timed are migrations, not copies
  Hash hash;
  Times times;
  Times raw_times;
};

void time_pass(Lane& lane, uint64_t size, uint32_t pass) {
  const auto run = [&](Path* path, Lane::Times& times, Direction direction) {
    if (path == nullptr) return;
    const auto start = std::chrono::steady_clock::now();
    path->migrates() ? path->migrate(direction, size) : path->move(direction, size);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    times[static_cast<size_t>(direction)][pass] += seconds.count();
  };
  for (const Direction direction : {Direction::kToDevice, Direction::kToHost}) {
    // Neither side is always the first.
    if (pass % 2 == 0) run(lane.path.get(), lane.times, direction);
    run(lane.raw.get(), lane.raw_times, direction);
    if (pass % 2 != 0) run(lane.path.get(), lane.times, direction);
  }
}

// Sends a batch through a path as often as wanted and adds the bytes that came back to its hash.
void move_batch(Lane& lane, const std::byte* batch, uint64_t size, uint32_t passes, Progress& progress) {
  std::memcpy(lane.path->bytes(), batch, size);
  lane.path->spoil_device(size);
  lane.path->move(Direction::kToDevice, size);
  lane.path->rest();
  lane.path->spoil_host(size);
  lane.path->move(Direction::kToHost, size);
  if (lane.raw) {
    std::memcpy(lane.raw->bytes(), batch, size);
    lane.raw->move(Direction::kToDevice, size);
    lane.raw->move(Direction::kToHost, size);
  }
  // Wherever the copies left the pages, the timed passes find them on the host.
  for (Path* const path : {static_cast<Path*>(lane.path.get()), lane.raw.get()}) {
    if (path == nullptr || !path->migrates()) continue;
    path->migrate(Direction::kToDevice, size);
    path->migrate(Direction::kToHost, size);
  }
  progress.advance();
  for (uint32_t pass = 0; pass < passes; ++pass) {
    stop_if_interrupted();
    time_pass(lane, size, pass);
    progress.advance();
  }
  lane.hash.add(lane.path->came_back(size), size);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

struct Report {
  std::string file;
  std::string hash;
  std::string backend;
  std::string no_gpu;  // why it is the host backend that was not asked for; empty if it was, or is not
  std::string raw;     // name of what is compared with; empty if there is nothing
  std::string note;    // why it is missing, for all paths or some
  gpumem_device_info device;
  uint64_t size = 0;
  uint64_t wanted_chunk = 0;  // 0: as fits the device
  uint64_t chunk = 0;
  uint64_t in_flight = 0;
  uint32_t passes = 0;
  std::vector<Lane> lanes;

  // 10^9 bytes a second.
  double rate(double seconds) const { return static_cast<double>(size) / std::max(seconds, 1e-9) / 1e9; }
};

std::string decimal(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

void print_report(const Report& report) {
  using enum Table::Align;
  // A file name may have spaces, so it is not wrapped.
  const std::string file = shown(report.file) + ":";
  const std::string bytes = std::to_string(report.size) + " bytes (" + size_text(report.size) + ")";
  if (file.size() + 1 + bytes.size() <= terminal_width(STDOUT_FILENO)) {
    std::cout << file << ' ' << bytes << '\n';
  } else {
    std::cout << file << '\n' << wrapped(bytes, "  ");
  }
  std::cout << wrapped("XXH3 " + report.hash)
            << wrapped("Device " + std::to_string(report.device.ordinal) + " of " + report.backend + ": " +
                       report.device.name);
  if (!report.no_gpu.empty())
    std::cout << wrapped("No GPU, so the host backend simulates one: " + report.no_gpu);
  std::cout << wrapped("Chunks of " + size_text(report.chunk) +
                       (report.wanted_chunk > report.size
                            ? " (the whole file, not " + size_text(report.wanted_chunk) + ")"
                            : "") +
                       ", " + std::to_string(report.in_flight) + " in flight; " +
                       (report.passes == 1 ? "one pass"
                                           : "median of " + std::to_string(report.passes) + " passes") +
                       " in GB/s" + (report.raw.empty() ? "" : "; raw is " + report.raw))
            << '\n';

  Table table({"PATH", "TO DEVICE", "RAW", "RATIO", "BACK", "RAW", "RATIO", "BYTES"},
              {kLeft, kRight, kRight, kRight, kRight, kRight, kRight}, "");
  bool slow_to_read = false;
  bool migrated = false;
  for (const Lane& lane : report.lanes) {
    std::vector<std::string> row = {kind_name(lane.kind)};
    for (size_t i = 0; i < 2; ++i) {
      if (!lane.reason.empty()) {
        row.insert(row.end(), {"-", "-", "-"});
        continue;
      }
      const double seconds = median(lane.times[i]);
      row.push_back(decimal(report.rate(seconds), 2));
      if (!lane.compared) {
        row.insert(row.end(), {"-", "-"});
      } else {
        const double raw_seconds = median(lane.raw_times[i]);
        row.push_back(decimal(report.rate(raw_seconds), 2));
        row.push_back(decimal(raw_seconds / std::max(seconds, 1e-9), 3));
      }
    }
    row.push_back(!lane.reason.empty() ? lane.reason : lane.migrated ? "verified, migrated" : "verified");
    table.add(row);
    migrated = migrated || lane.migrated;
    slow_to_read = slow_to_read || (lane.reason.empty() && lane.kind == Kind::kWriteCombined);
  }
  std::cout << table.text();
  if (slow_to_read) {
    std::cout
        << '\n'
        << wrapped(
               "The CPU may read write-combined memory slowly. The device read what came back there, and it "
               "was verified in ordinary pinned memory.");
  }
  if (migrated) {
    std::cout << '\n'
              << wrapped(
                     "The pages of managed memory were prefetched to the device and back: the numbers are of "
                     "this migration, not of a copy.");
  }
  if (!report.note.empty()) std::cout << '\n' << wrapped("Not compared: " + report.note + ".");
}

Json rates_json(const Report& report, const std::vector<double>& seconds) {
  Json passes = Json::array();
  for (const double value : seconds)
    passes.push_back(report.rate(value));
  return {{"median", report.rate(median(seconds))},
          {"best", report.rate(*std::min_element(seconds.begin(), seconds.end()))},
          {"passes", passes}};
}

void print_report_json(const Report& report) {
  Json json = {{"file", report.file},
               {"bytes", report.size},
               {"xxh3_128", report.hash},
               {"backend", report.backend},
               {"device", {{"ordinal", report.device.ordinal}, {"name", report.device.name}}},
               {"chunk_bytes", report.chunk},
               {"chunks_in_flight", report.in_flight},
               {"repeat", report.passes},
               {"raw", report.raw.empty() ? Json() : Json(report.raw)},
               {"note", report.note.empty() ? Json() : Json(report.note)},
               {"unit", "GB/s"},
               {"paths", Json::array()}};
  for (const Lane& lane : report.lanes) {
    Json path = {{"kind", kind_name(lane.kind)}, {"verified", lane.reason.empty()}};
    if (!lane.reason.empty()) {
      path["reason"] = lane.reason;
    } else {
      path["xxh3_128"] = lane.hash.text();
      path["measured"] = lane.migrated ? "migration" : "copy";
      for (const Direction direction : {Direction::kToDevice, Direction::kToHost}) {
        const auto i = static_cast<size_t>(direction);
        Json& rates = path[direction == Direction::kToDevice ? "to_device" : "to_host"];
        rates["gpumem"] = rates_json(report, lane.times[i]);
        rates["raw"] = lane.compared ? rates_json(report, lane.raw_times[i]) : Json();
        rates["ratio"] =
            lane.compared ? Json(median(lane.raw_times[i]) / std::max(median(lane.times[i]), 1e-9)) : Json();
      }
    }
    json["paths"].push_back(path);
  }
  print_json(json);
}

std::vector<Kind> wanted_kinds(const MoveOptions& options) {
  std::vector<Kind> kinds = all_kinds();
  if (!options.kinds.empty()) {
    std::erase_if(kinds, [&](Kind kind) {
      return std::find(options.kinds.begin(), options.kinds.end(), kind_name(kind)) == options.kinds.end();
    });
  }
  return kinds;
}

// What this device, driver, user or budget does not allow, unlike memory that is merely used up now.
bool is_refusal(gpumem_status status) {
  return status == GPUMEM_ERROR_UNSUPPORTED || status == GPUMEM_ERROR_SYMBOL_MISSING ||
         status == GPUMEM_ERROR_PERMISSION_DENIED || status == GPUMEM_ERROR_LIMIT_EXCEEDED;
}

// What moves the bytes without gpumem; null with a note in the report if that cannot be had.
std::unique_ptr<RawPaths> find_raw(Report& report, uint64_t capacity) {
  std::unique_ptr<RawPaths> raw;
  try {
    raw = report.backend == "host" ? make_memcpy_paths() : make_cuda_paths(report.device, capacity);
    report.raw = raw->name();
  } catch (const std::runtime_error& problem) {
    report.note = problem.what();
  }
  return raw;
}

Lane make_lane(Kind kind, const MoveOptions& options, const Target& target, RawPaths* raw, uint64_t capacity,
               Report& report) {
  Lane lane(kind, options.repeat);
  try {
    lane.path = std::make_unique<GpumemPath>(kind, target, capacity, report.chunk);
  } catch (const CallFailed& problem) {
    // Only what was asked for by name has to be there.
    const bool too_coarse = (kind == Kind::kRange || kind == Kind::kBuffer) &&
                            problem.status() == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
    if (!options.kinds.empty() || !(too_coarse || is_refusal(problem.status()))) throw;
    lane.reason = problem.what();
    return lane;
  }
  lane.migrated = lane.path->migrates();
  try {
    if (raw != nullptr) lane.raw = raw->make(kind, capacity, report.chunk, lane.migrated);
  } catch (const std::runtime_error& problem) {
    report.note = kind_name(kind) + ": " + problem.what();
  }
  lane.compared = lane.raw != nullptr;
  return lane;
}

// Chunks that fit into a fifth of what is free, so that the other side, a range, a buffer and other programs
// have room too.
void choose_chunks(Report& report, uint64_t wanted, uint64_t free_bytes) {
  constexpr uint64_t kPage = 4096;
  const uint64_t share = free_bytes / 5;
  report.wanted_chunk = wanted;
  report.chunk =
      wanted != 0 ? wanted : std::clamp(share / kMaxInFlight / kPage * kPage, kPage, kDefaultChunk);
  report.chunk = std::min(report.chunk, report.size);
  const uint64_t needed = (report.size + report.chunk - 1) / report.chunk;
  report.in_flight = std::clamp(std::min(share / report.chunk, needed), uint64_t{1}, kMaxInFlight);
}

Report move_file(gpumem_instance instance, const MoveOptions& options) {
  InputFile file(options.file);
  gpumem_device device = find_device(instance, options.device);
  uint64_t free_bytes = 0;
  call(gpumem_device_get_memory, device, &free_bytes, nullptr);

  Report report;
  report.file = options.file;
  report.size = file.size();
  report.passes = options.repeat;
  const gpumem_instance_info info = instance_info(instance);
  report.backend = backend_name(info.backend);
  report.no_gpu = info.fallback_reason;
  report.device = device_info(device);
  choose_chunks(report, options.chunk, free_bytes);
  const uint64_t capacity = report.chunk * report.in_flight;

  const Stream stream = create_stream(device);
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = capacity;
  desc.name = "move";
  const Memory memory = create_memory(device, desc);
  const Target target = {instance, device, stream.get(), memory_info(memory).device_pointer};
  const std::unique_ptr<RawPaths> raw = find_raw(report, capacity);

  // Lanes end before what they refer to; only their results leave.
  std::vector<Lane> lanes;
  for (const Kind kind : wanted_kinds(options)) {
    lanes.push_back(make_lane(kind, options, target, raw.get(), capacity, report));
  }
  const Pages batch(capacity);
  Hash hash;
  const uint64_t batches = (report.size + capacity - 1) / capacity;
  const auto usable =
      std::count_if(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.path != nullptr; });
  Progress progress(batches * static_cast<uint64_t>(usable) * (options.repeat + uint64_t{1}));
  for (uint64_t offset = 0; offset < report.size; offset += capacity) {
    const uint64_t size = std::min(capacity, report.size - offset);
    file.read(batch.get(), size);
    hash.add(batch.get(), size);
    for (Lane& lane : lanes) {
      if (!lane.path) continue;
      move_batch(lane, batch.get(), size, options.repeat, progress);
      if (lane.hash.text() != hash.text()) {
        throw std::runtime_error("bytes " + std::to_string(offset) + " to " +
                                 std::to_string(offset + size - 1) + " of " + shown(options.file) +
                                 " came back changed by the path " + kind_name(lane.kind));
      }
    }
  }
  for (Lane& lane : lanes) {
    lane.path.reset();
    lane.raw.reset();
  }
  report.hash = hash.text();
  report.lanes = std::move(lanes);
  return report;
}

}  // namespace

int move(const MoveOptions& options) {
  watch_signals();
  gpumem_instance instance = open_instance(options.backend);
  try {
    const Report report = move_file(instance, options);
    require_nothing_lives(instance);
    (options.json ? print_report_json : print_report)(report);
  } catch (const Interrupted&) {
    require_nothing_lives(instance);
    throw;
  }
  return kExitSuccess;
}

}  // namespace gpumem::cli
