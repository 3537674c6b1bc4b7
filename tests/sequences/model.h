// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The model: what lives, what it holds and what is pending, as the interface promises it. It knows addresses,
// bytes, clocks and the order in which errors rank, and nothing of how the library keeps them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpumem/gpumem.h"

namespace sequences {

// The statuses that a call may answer with; empty means that nothing stands against it so far.
using Expect = std::vector<gpumem_status>;

std::string text_of(const Expect& expect);

// The order of COM-17 among what is wrong with the arguments themselves.
class Verdict {
 public:
  // What a handle alone is answered with; several if the model cannot tell, none if it is good.
  void handle(const Expect& alternatives);
  void require(bool holds) {
    if (!holds) handle({GPUMEM_ERROR_INVALID_ARGUMENT});
  }
  // Empty if all is right.
  const Expect& done() const { return results_; }

 private:
  Expect results_;
};

enum class Life { kLive, kDestroyed, kClosed };

// Streams that are one queue of work: a stream and those that wrap it. Its operations are numbered from 1.
using Clock = std::map<int, uint64_t>;  // by line: the last operation that matters
struct Line {
  int device = 0;
  uint64_t enqueued = 0;
  uint64_t observed = 0;
  uint64_t polled = 0;          // a pool, or a call that failed, may have observed so much
  bool marked = false;          // a pool may have set a mark behind all
  Clock before;                 // what later operations come after
  std::vector<uint64_t> gates;  // operations that wait for a gate
  bool capturing = false;
  bool retired = false;  // destroyed by its maker
  bool native = false;   // made by gpumem_host_native_stream_create()
  int handles = 0;
  void* pointer = nullptr;  // to wrap it by; NULL for the default stream
};

struct Access {
  int line;
  uint64_t number;
  uint64_t begin;
  uint64_t end;
  bool write;
};

// Bytes, whoever they belong to, and what pending work does with them.
struct Region {
  uint8_t* cpu = nullptr;  // where the CPU reaches them; NULL for device memory
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> known;  // whether each byte is
  std::vector<Access> accesses;
  int tainted_by = -1;  // instance with a lost device whose work may or may not have touched them
};

struct Object {
  uint64_t handle = 0;
  int instance = 0;
  int device = 0;  // index into Model::devices
  Life life = Life::kLive;
  uint64_t ended_at = 0;  // objects made before it ended
};

// What an instance counts.
struct Tally {
  gpumem_kind_stats device = GPUMEM_KIND_STATS_INIT;
  gpumem_kind_stats pinned = GPUMEM_KIND_STATS_INIT;
  gpumem_kind_stats registered = GPUMEM_KIND_STATS_INIT;
  gpumem_kind_stats reserved = GPUMEM_KIND_STATS_INIT;  // ranges
  gpumem_kind_stats managed = GPUMEM_KIND_STATS_INIT;
  uint64_t streams = 0;
  uint64_t events = 0;
  uint64_t physical_bytes = 0;  // not followed by steps: see Player::physical_bytes()
  uint64_t physicals = 0;       // handles; these four the library counts for itself only
  uint64_t buffers = 0;
  uint64_t groups = 0;
  uint64_t pools = 0;

  uint64_t live() const {
    return device.live_count + pinned.live_count + registered.live_count + managed.live_count +
           reserved.live_count + streams + events + physicals + buffers + groups + pools;
  }
  static void add(gpumem_kind_stats& kind, uint64_t bytes);
  static void remove(gpumem_kind_stats& kind, uint64_t bytes);
  // Takes over peaks and totals that the library tells. False if they are below what was there.
  static bool follow(gpumem_kind_stats& known, const gpumem_kind_stats& told);
  // False if the library does not tell, or its totals are not the sums of its kinds.
  bool read(gpumem_instance instance);
};

// Memory of pools that are gone, for blocks that live or work that is pending. How much, only the library
// knows.
struct PoolRest {
  uint64_t ranges = 0;
  uint64_t range_bytes = 0;
  uint64_t physical_bytes = 0;
  uint64_t device = 0;  // pieces of the driver's pool
  uint64_t device_bytes = 0;
  uint64_t pinned = 0;
  uint64_t pinned_bytes = 0;
  uint64_t managed = 0;
  uint64_t managed_bytes = 0;
  std::map<int, uint64_t> used;  // by device

  uint64_t count() const { return ranges + device + pinned + managed; }
};

struct Instance : Object {
  bool host = true;
  bool strict = true;
  bool is_default = false;
  bool same_pointer = false;
  bool linked = true;
  bool armed = false;           // a step of the backend is made to fail some time
  bool armed_for_good = false;  // and so are all that follow
  uint64_t pin_budget = 0;
  uint64_t pinned = 0;
  uint64_t registrations = 0;
  uint64_t registrations_max = UINT64_MAX;
  bool lock_off = false;
  uint64_t vmm_unit = uint64_t{2} << 20;  // the granularity of physical memory and ranges
  std::string masked;
  std::vector<int> devices;
  Tally stats;
  PoolRest pool_rest;
  std::string name;

  bool lacks(const char* entry_point) const { return masked == entry_point; }
};

struct Device : Object {
  uint32_t ordinal = 0;
  bool lost = false;
  bool exact = true;  // `used` is certain
  uint64_t total = 0;
  uint64_t used = 0;
  uint64_t granularity = 1;
  std::map<int, uint64_t> peers;  // count of enables
  std::map<int, bool> foreign_peers;
  std::map<std::pair<int, int>, gpumem_capability_info> capabilities;
};

struct Use {
  int line;
  uint64_t number;
  bool certain;  // the library knows of it from the call on
};

// An address that its instance keeps from everybody until it is closed.
struct Freed {
  uint8_t* address;
  int instance;
};

// What is advised about a page of managed memory, and where it was last asked to move.
struct ManagedPage {
  static constexpr int32_t kAnyId = -2;  // some node
  struct At {
    gpumem_location location = GPUMEM_LOCATION_NONE;
    int32_t id = -1;
    bool operator==(const At&) const = default;
  };

  bool known = true;
  bool read_mostly = false;
  bool by_host = false;
  uint64_t devices = 0;
  At preferred;
  At prefetched;
};

struct Memory : Object {
  gpumem_kind kind = GPUMEM_KIND_UNKNOWN;
  uint64_t size = 0;
  uint64_t charged = 0;
  uint64_t alignment = 0;
  gpumem_memory_flags requested = 0;
  gpumem_memory_flags granted = 0;
  uint8_t* host = nullptr;
  uint8_t* address = nullptr;  // for devices
  int region = 0;
  uint64_t at = 0;  // in the region
  uint64_t buffer_id = 0;
  bool foreign = false;
  std::string name;
  std::vector<Use> uses;
  std::vector<ManagedPage> pages;

  bool pinned() const { return kind == GPUMEM_KIND_PINNED || kind == GPUMEM_KIND_REGISTERED; }
  bool has(gpumem_memory_flags flag) const { return (granted & flag) != 0; }
  bool holds(const uint8_t* base, const void* pointer) const {
    const auto distance = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(base);
    return base != nullptr && distance < size;
  }
};

// Physical memory: what all its handles and mappings share.
struct Block {
  int device = 0;
  bool on_device = true;
  gpumem_location location = GPUMEM_LOCATION_DEVICE;
  int32_t location_id = 0;
  uint64_t size = 0;
  uint64_t id = 0;
  uint64_t references = 0;  // handles and mappings
};

struct Physical : Object {
  int block = 0;
  bool imported = false;
  gpumem_handle_types types = 0;  // a driver may not export what was imported
  std::string name;
};

struct Mapping {
  int block = 0;
  int physical = 0;                     // what was mapped
  std::map<int, gpumem_access> access;  // by device; -1 is the CPU
};

struct Range : Object {
  uint8_t* base = nullptr;
  uint64_t size = 0;
  uint64_t buffer_id = 0;
  std::string name;
  std::map<uint64_t, Mapping> mappings;  // by where they begin
};

struct Buffer : Object {
  // What pending work does with its first bytes.
  struct Work {
    int line;
    uint64_t number;
    uint64_t end;
  };

  uint8_t* base = nullptr;
  uint64_t size = 0;
  uint64_t reserved = 0;
  std::vector<uint64_t> blocks;  // their sizes
  gpumem_location location = GPUMEM_LOCATION_DEVICE;
  int32_t location_id = 0;
  bool movable = false;
  std::map<int, gpumem_access> access;  // by device; -1 is the CPU
  uint64_t generation = 0;
  uint64_t buffer_id = 0;
  uint64_t range = 0;  // its handle
  std::string name;
  std::vector<Work> work;
  // The first bytes that are known; all have one value.
  uint64_t filled = 0;
  uint8_t value = 0;
  bool asleep = false;
  bool failed = false;  // asleep against the caller's wish
  uint64_t stored = 0;
  // Room for its content, of which sort, in pieces; a file is one.
  gpumem_content store = GPUMEM_CONTENT_DROP;
  std::vector<uint64_t> pieces;
  std::vector<uint64_t> registrations;
  bool refuses_sleep = false;  // by its callback
  int group = -1;
  std::string tag;

  bool on_device() const { return location == GPUMEM_LOCATION_DEVICE; }
  uint64_t capacity() const {
    uint64_t bytes = 0;
    for (const uint64_t block : blocks)
      bytes += block;
    return bytes;
  }
  uint64_t store_capacity() const {
    uint64_t bytes = 0;
    for (const uint64_t piece : pieces)
      bytes += piece;
    return bytes;
  }
  gpumem_access access_of(int processor) const {
    const auto known = access.find(processor);
    return known == access.end() ? GPUMEM_ACCESS_NONE : known->second;
  }
};

// A block of a pool.
struct PoolBlock {
  uint64_t asked = 0;
  uint64_t usable = 0;
  bool large = false;  // of no size class
  // The first bytes that are known; all have one value.
  uint64_t filled = 0;
  uint8_t value = 0;
  // The stream whose order it was allocated in, and the latest of its work there.
  int line = -1;
  uint64_t number = 0;
  std::vector<int> recorded;  // lines whose work uses it besides
};

struct Pool : Object {
  // What pending work may still use.
  struct Freed {
    uint8_t* base;
    uint64_t size;
    Clock clock;
  };

  gpumem_kind kind = GPUMEM_KIND_UNKNOWN;
  gpumem_pool_flags flags = 0;
  gpumem_memory_flags memory_flags = 0;
  uint64_t limit = 0;
  uint64_t release_threshold = 0;
  uint64_t low_water = 0;
  uint64_t range_size = 0;  // of a pool that has one
  uint64_t reserved = 0;
  uint64_t segments = 0;
  uint64_t allocated = 0;
  uint64_t allocated_bytes = 0;
  uint64_t waits = 0;
  bool asks = false;        // it has a callback
  bool native = false;      // it has served a native stream, which it cannot ask
  bool for_others = false;  // devices besides its own are named
  std::vector<int> users;   // those of them that have access
  std::string name;
  std::map<uint8_t*, PoolBlock> blocks;  // those that live, also when the pool is gone
  std::vector<Freed> freed;
  std::vector<int> lines;  // whose order blocks were freed in, or whose work uses them

  bool debug() const { return (flags & GPUMEM_POOL_DEBUG) != 0; }
  bool in_range() const { return kind == GPUMEM_KIND_DEVICE && (flags & GPUMEM_POOL_FROM_DRIVER) == 0; }
  // Whether the CPU may touch its bytes at any time.
  bool on_host() const { return kind != GPUMEM_KIND_DEVICE; }
  // Whether it serves streams of a device.
  bool serves(int other) const {
    return on_host() || other == device || std::count(users.begin(), users.end(), other) != 0;
  }
  uint64_t live_bytes() const {
    uint64_t bytes = 0;
    for (const auto& [base, block] : blocks)
      bytes += block.usable;
    return bytes;
  }
};

struct Group : Object {
  std::string name;
};

struct Stream : Object {
  int line = 0;
  bool wrapped = false;
  std::string name;
};

struct Event : Object {
  gpumem_event_flags flags = 0;
  bool recorded = false;
  bool wrapped = false;
  int line = 0;
  Clock mark;  // what the latest record captured
  std::string name;
};

// What an address is to an instance.
struct Found {
  Expect wrong;        // NOT_FOUND, or INVALID_ARGUMENT for a range that leaves its object
  bool avoid = false;  // nothing is promised about such a range
  gpumem_kind kind = GPUMEM_KIND_UNKNOWN;
  int memory = -1;  // also foreign memory
  int region = -1;
  uint64_t at = 0;      // in the region
  uint64_t offset = 0;  // in the memory
  uint8_t* base = nullptr;
  bool writable = true;
  bool on_device = false;
};

// Ordinary memory of the process, with pages around it that nothing may touch.
class Arena {
 public:
  static constexpr uint64_t kPages = 16;
  static constexpr uint64_t kLargeBytes = uint64_t{13} << 20;

  Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Room for copies that threads of the library make.
  void enlarge();

  uint64_t page() const { return page_; }
  uint8_t* writable() const { return forbidden() - size(); }
  uint64_t size() const { return large_ ? kLargeBytes : kPages * page_; }
  uint8_t* forbidden() const { return base_ + page_ + kLargeBytes; }
  uint8_t* read_only() const { return forbidden() + page_; }

 private:
  uint64_t whole() const { return kLargeBytes + 4 * page_; }

  uint64_t page_;
  uint8_t* base_;
  bool large_ = false;
};

class Model {
 public:
  explicit Model(bool on_host);
  // For a sequence with large copies.
  void enlarge();

  const bool on_host;
  Arena arena;
  std::vector<Instance> instances;
  std::vector<Device> devices;
  std::vector<Memory> memories;
  std::vector<Memory> foreigns;
  std::vector<Block> blocks;
  std::vector<Physical> physicals;
  std::vector<Range> ranges;
  std::vector<Buffer> buffers;
  std::vector<Group> groups;
  std::vector<Pool> pools;
  std::vector<Stream> streams;
  std::vector<Event> events;
  std::vector<Line> lines;
  std::vector<Region> regions;  // 0 is the arena, 1 its read-only page
  std::vector<Freed> freed;
  uint64_t objects_made = 0;
  bool shares_descriptors = false;  // physical memory can be shared by file descriptor
  bool large = false;

  static constexpr uint64_t kHostVmmUnit = 1 << 16;                  // of instances that a sequence opens
  static constexpr uint64_t kLargeBytes = (uint64_t{12} << 20) + 5;  // of memories to copy from and to
  static constexpr uint64_t kLeastOfThreads = uint64_t{8} << 20;     // copies that the library's threads make
  static constexpr int kArenaRegion = 0;
  static constexpr int kReadOnlyRegion = 1;

  int add_region(uint8_t* cpu, uint64_t size);
  Found find(int instance, const void* pointer, uint64_t size) const;

  // What a call with an object that is not alive gets.
  Expect gone(const Object& object) const;
  bool lost(int device) const { return devices[static_cast<size_t>(device)].lost; }
  // DEVICE_LOST and INVALID_STATE of a stream.
  Expect usable(const Stream& stream) const;
  // Work in it becomes a node of a graph that nobody launches. What does not is refused.
  bool captured(const Stream& stream) const { return lines[static_cast<size_t>(stream.line)].capturing; }

  // The next operation of a line.
  uint64_t enqueue(int line) { return ++lines[static_cast<size_t>(line)].enqueued; }
  Clock mark(int line) const;
  void observe(const Clock& clock);
  void observe_all(int instance);
  bool is_observed(int line, uint64_t number) const {
    return lines[static_cast<size_t>(line)].observed >= number;
  }
  bool is_observed(const Clock& clock) const;
  bool is_held(const Clock& clock) const;
  // The first pending access that a new one would race with; null if it may be made. Line -1 is the CPU.
  const Access* conflict(int line, int region, uint64_t begin, uint64_t end, bool write);

  void add_access(int region, const Access& access) {
    regions[static_cast<size_t>(region)].accesses.push_back(access);
  }
  // Whether a destroy finds the memory in use: yes, no, or not to be told.
  Expect destroyed(const Memory& memory) const;
  // The same for taking all memory of a buffer but its first bytes.
  Expect shrunk(const Buffer& buffer, uint64_t kept) const;

  void lose(int device);
  void end(Object& object, Life how) {
    object.life = how;
    object.ended_at = objects_made;
  }
  void close(int instance);
  void add_memory(const Memory& memory);
  void remove_memory(Memory& memory);

 private:
  void add_arena();
  gpumem_kind_stats& counts(const Memory& memory);
};

}  // namespace sequences
