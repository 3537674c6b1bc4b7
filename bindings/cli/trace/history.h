// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What `gpumem trace record` has written, and what it says of the memory of the program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gpumem::cli {

inline constexpr int kTraceVersion = 1;
inline constexpr uint64_t kStillLives = UINT64_MAX;

// The values of a call that are numbers or addresses.
enum class TraceField {
  kAlignment,
  kBase,
  kBlock,
  kBuffer,
  kCapacity,
  kContent,
  kDestroyed,
  kDevice,
  kFlags,
  kGroup,
  kIndex,
  kInitialSize,
  kKeepBytes,
  kLimit,
  kLocation,
  kMemory,
  kMemoryFlags,
  kNativeStream,
  kOffset,
  kPhysical,
  kPointer,
  kPool,
  kRange,
  kReleaseThreshold,
  kRequire,
  kReserve,
  kRing,
  kSegmentSize,
  kSize,
  kStream,
  kTaken,
  kCount,
};

struct TraceCall {
  uint64_t start = 0;  // ns since the first call
  uint64_t ns = 0;
  uint64_t thread = 0;
  int32_t status = 0;
  std::string call;  // without "gpumem_"
  std::string kind;
  std::string name;
  std::string tag;

  // 0 if it is not there.
  uint64_t operator[](TraceField field) const { return values.at(static_cast<size_t>(field)); }
  bool has(TraceField field) const { return (known >> static_cast<size_t>(field) & 1) != 0; }
  // A call with an array has a line for each entry.
  bool first() const { return (*this)[TraceField::kIndex] == 0; }
  uint64_t end() const { return start + ns; }

  std::array<uint64_t, static_cast<size_t>(TraceField::kCount)> values{};
  uint32_t known = 0;
};

struct Trace {
  std::string version;
  std::string command;
  uint64_t process = 0;
  uint64_t date = 0;             // seconds since 1970
  uint64_t lost = 0;             // calls for which there was no room
  uint64_t cut_off = 0;          // lines that end in the middle
  std::vector<TraceCall> calls;  // in the order in which they took effect
  uint64_t length() const;       // ns
};

// Throws with the reason if the file is no trace.
Trace read_trace(const std::string& file, bool only_head = false);

// One piece of memory, from its making to its end.
struct Life {
  std::string what;
  std::string kind;
  std::string name;
  uint64_t device = 0;
  uint64_t size = 0;
  uint64_t address = 0;  // 0 if it has none
  uint64_t begin = 0;    // ns
  uint64_t end = kStillLives;
  uint64_t thread = 0;
  uint64_t live = 0;   // bytes that it counts for now
  uint64_t taken = 0;  // the same, of the device or system
};

struct Usage {
  struct Point {
    uint64_t time;
    uint64_t live;   // bytes that the program has asked for
    uint64_t taken;  // bytes that were taken from the device or system for it
  };
  std::vector<Point> points;
  uint64_t peak_live = 0;
  uint64_t peak_taken = 0;
};

struct History {
  std::vector<Life> lives;
  std::map<std::string, Usage> kinds;
};

History history_of(const Trace& trace);

}  // namespace gpumem::cli
