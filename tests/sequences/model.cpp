// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The model's knowledge of addresses, clocks and ends.
#include "model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace sequences {
namespace {

uint64_t number_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

int rank(gpumem_status status) {
  switch (status) {
    case GPUMEM_ERROR_FORKED:
      return 0;
    case GPUMEM_ERROR_CLOSED:
      return 1;
    case GPUMEM_ERROR_INVALID_ARGUMENT:
      return 2;
    default:
      return 3;
  }
}

bool inside(const uint8_t* base, uint64_t size, uint64_t address) { return address - number_of(base) < size; }

}  // namespace

std::string text_of(const Expect& expect) {
  std::string text;
  for (const gpumem_status status : expect) {
    if (!text.empty()) text += " or ";
    text += gpumem_status_name(status);
  }
  return text;
}

void Verdict::handle(const Expect& alternatives) {
  if (alternatives.empty()) return;
  if (results_.empty()) {
    results_ = alternatives;
    return;
  }
  // Whatever each of the two turns out to be, the one that ranks first is answered.
  Expect merged;
  for (const gpumem_status before : results_) {
    for (const gpumem_status now : alternatives) {
      const gpumem_status first = rank(now) < rank(before) ? now : before;
      if (std::find(merged.begin(), merged.end(), first) == merged.end()) merged.push_back(first);
    }
  }
  results_ = merged;
}

void Tally::add(gpumem_kind_stats& kind, uint64_t bytes) {
  kind.live_count += 1;
  kind.live_bytes += bytes;
  kind.total_count += 1;
  kind.total_bytes += bytes;
  kind.peak_count = std::max(kind.peak_count, kind.live_count);
  kind.peak_bytes = std::max(kind.peak_bytes, kind.live_bytes);
}

void Tally::remove(gpumem_kind_stats& kind, uint64_t bytes) {
  kind.live_count -= 1;
  kind.live_bytes -= bytes;
}

bool Tally::follow(gpumem_kind_stats& known, const gpumem_kind_stats& told) {
  if (told.peak_count < std::max(known.peak_count, told.live_count) ||
      told.peak_bytes < std::max(known.peak_bytes, told.live_bytes) || told.total_count < known.total_count ||
      told.total_bytes < known.total_bytes)
    return false;
  known.peak_count = told.peak_count;
  known.peak_bytes = told.peak_bytes;
  known.total_count = told.total_count;
  known.total_bytes = told.total_bytes;
  return true;
}

bool Tally::read(gpumem_instance instance) {
  gpumem_stats all = GPUMEM_STATS_INIT;
  if (gpumem_stats_get(instance, &all, nullptr) != GPUMEM_SUCCESS) return false;
  const auto read_kind = [&](gpumem_kind kind, gpumem_kind_stats& counts) {
    counts.struct_size = sizeof counts;
    return gpumem_stats_get_kind(instance, kind, &counts, nullptr) == GPUMEM_SUCCESS;
  };
  if (!read_kind(GPUMEM_KIND_DEVICE, device) || !read_kind(GPUMEM_KIND_PINNED, pinned) ||
      !read_kind(GPUMEM_KIND_REGISTERED, registered) || !read_kind(GPUMEM_KIND_MANAGED, managed) ||
      !read_kind(GPUMEM_KIND_VIRTUAL, reserved)) {
    return false;
  }
  streams = all.streams;
  events = all.events;
  const auto sum = [&](uint64_t gpumem_kind_stats::*field) {
    return device.*field + pinned.*field + registered.*field + managed.*field;
  };
  const uint64_t allocated = sum(&gpumem_kind_stats::live_bytes);
  physical_bytes = all.live_bytes - allocated;
  return all.live_count == sum(&gpumem_kind_stats::live_count) + reserved.live_count &&
         all.live_bytes >= allocated && all.peak_bytes >= all.live_bytes &&
         all.reserved_bytes == reserved.live_bytes;
}

namespace {

// The arena of the last sequence. Mapping one takes a third of the time of a short sequence.
std::atomic<uint8_t*> kept_arena{nullptr};

}  // namespace

Arena::Arena() : page_(static_cast<uint64_t>(sysconf(_SC_PAGESIZE))), base_(kept_arena.exchange(nullptr)) {
  if (base_ != nullptr) {
    std::memset(writable(), 0, size());
    return;
  }
  // Forbidden pages, the pages to be used, a forbidden page, a page to be read, a forbidden page.
  base_ = static_cast<uint8_t*>(mmap(nullptr, whole(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (base_ == MAP_FAILED || mprotect(writable(), size(), PROT_READ | PROT_WRITE) != 0 ||
      mprotect(read_only(), page_, PROT_READ) != 0) {
    std::abort();
  }
}

Arena::~Arena() {
  uint8_t* const other = large_ ? base_ : kept_arena.exchange(base_);
  if (other != nullptr) munmap(other, whole());
}

void Arena::enlarge() {
  large_ = true;
  if (mprotect(writable(), size(), PROT_READ | PROT_WRITE) != 0) std::abort();
}

Model::Model(bool host) : on_host(host) { add_arena(); }

void Model::enlarge() {
  large = true;
  arena.enlarge();
  regions.clear();
  add_arena();
}

void Model::add_arena() {
  add_region(arena.writable(), arena.size());
  add_region(arena.read_only(), arena.page());
  for (Region& region : regions)
    region.known.assign(region.known.size(), true);
}

int Model::add_region(uint8_t* cpu, uint64_t size) {
  Region region;
  region.cpu = cpu;
  region.bytes.resize(size);
  region.known.resize(size, false);
  regions.push_back(std::move(region));
  return static_cast<int>(regions.size()) - 1;
}

Found Model::find(int instance, const void* pointer, uint64_t size) const {
  const uint64_t first = number_of(pointer);
  const uint64_t last = first + size - 1;
  Found found;
  const auto take = [&](const Memory& memory, int index, const uint8_t* base) {
    found.kind = memory.foreign ? GPUMEM_KIND_FOREIGN : memory.kind;
    found.memory = index;
    found.region = memory.region;
    found.offset = first - number_of(base);
    found.at = memory.at + found.offset;
    found.base = const_cast<uint8_t*>(base);
    found.on_device = memory.kind == GPUMEM_KIND_DEVICE;
    found.writable = !memory.has(GPUMEM_MEMORY_READ_ONLY);
    if (size > memory.size - found.offset) found.wrong = {GPUMEM_ERROR_INVALID_ARGUMENT};
  };
  bool runs_into = false;
  for (const std::vector<Memory>* list : {&memories, &foreigns}) {
    for (size_t i = 0; i < list->size(); ++i) {
      const Memory& memory = (*list)[i];
      if (memory.life != Life::kLive || memory.instance != instance) continue;
      for (const uint8_t* base : {memory.host, memory.address}) {
        if (base == nullptr) continue;
        if (memory.holds(base, pointer)) {
          take(memory, static_cast<int>(i), base);
          return found;
        }
        if (!memory.foreign && first < number_of(base) && last >= number_of(base)) runs_into = true;
      }
    }
  }
  // Pinned memory of another instance is ordinary memory on host, where it can be read up to its last page.
  for (const std::vector<Memory>* list : {&memories, &foreigns}) {
    for (const Memory& memory : *list) {
      if (memory.life != Life::kLive || memory.instance == instance) continue;
      for (const uint8_t* base : {memory.host, memory.address}) {
        if (base == nullptr || last < number_of(base) || first >= number_of(base) + memory.size) continue;
        const bool is_arena = memory.region == kArenaRegion || memory.region == kReadOnlyRegion;
        if (on_host && is_arena && base == memory.host) continue;
        found.avoid = true;
      }
    }
  }
  if (found.avoid) return found;
  const bool in_writable = inside(arena.writable(), arena.size(), first);
  const bool in_read_only = inside(arena.read_only(), arena.page(), first);
  if (!in_writable && !in_read_only) {
    const bool is_nothing =
        first < arena.page() || first >= UINT64_MAX - arena.page() ||
        inside(arena.forbidden(), arena.page(), first) ||
        std::any_of(freed.begin(), freed.end(), [&](const Freed& gone) { return gone.address == pointer; });
    found.avoid = !is_nothing;  // there may be anything
    found.wrong = {GPUMEM_ERROR_NOT_FOUND};
    return found;
  }
  found.kind = GPUMEM_KIND_PAGEABLE;
  found.region = in_writable ? kArenaRegion : kReadOnlyRegion;
  found.at = first - number_of(in_writable ? arena.writable() : arena.read_only());
  found.writable = in_writable;
  const uint64_t region_size = in_writable ? arena.size() : arena.page();
  const bool leaves = size > region_size - found.at;
  if (leaves && !inside(arena.forbidden(), arena.page(), last)) {
    found.avoid = true;  // there may be anything behind
  } else if (leaves) {
    found.wrong = {GPUMEM_ERROR_NOT_FOUND};
  }
  if (runs_into && !leaves) found.wrong = {GPUMEM_ERROR_INVALID_ARGUMENT};
  if (runs_into && leaves) found.avoid = true;  // two things are wrong with one operand
  return found;
}

Expect Model::gone(const Object& object) const {
  if (object.life == Life::kLive) return {};
  if (object.life == Life::kDestroyed) return {GPUMEM_ERROR_STALE_HANDLE};
  if (object.life == Life::kClosed && object.ended_at == objects_made) return {GPUMEM_ERROR_CLOSED};
  // That an instance was closed is not remembered once the place of the object was used again.
  return {GPUMEM_ERROR_CLOSED, GPUMEM_ERROR_STALE_HANDLE};
}

Expect Model::usable(const Stream& stream) const {
  if (lost(stream.device)) return {GPUMEM_ERROR_DEVICE_LOST};
  if (lines[static_cast<size_t>(stream.line)].capturing) return {GPUMEM_ERROR_INVALID_STATE};
  return {};
}

Clock Model::mark(int line) const {
  const Line& queue = lines[static_cast<size_t>(line)];
  Clock clock = queue.before;
  clock[line] = queue.enqueued;
  return clock;
}

void Model::observe(const Clock& clock) {
  for (const auto& [line, number] : clock) {
    uint64_t& observed = lines[static_cast<size_t>(line)].observed;
    observed = std::max(observed, number);
  }
}

void Model::observe_all(int instance) {
  for (Line& line : lines) {
    if (devices[static_cast<size_t>(line.device)].instance == instance) line.observed = line.enqueued;
  }
}

bool Model::is_observed(const Clock& clock) const {
  return std::all_of(clock.begin(), clock.end(),
                     [&](const auto& entry) { return is_observed(entry.first, entry.second); });
}

bool Model::is_held(const Clock& clock) const {
  return std::any_of(clock.begin(), clock.end(), [&](const auto& entry) {
    const auto& gates = lines[static_cast<size_t>(entry.first)].gates;
    return std::any_of(gates.begin(), gates.end(), [&](uint64_t gate) { return gate <= entry.second; });
  });
}

const Access* Model::conflict(int line, int region, uint64_t begin, uint64_t end, bool write) {
  auto& accesses = regions[static_cast<size_t>(region)].accesses;
  std::erase_if(accesses, [&](const Access& access) { return is_observed(access.line, access.number); });
  for (const Access& access : accesses) {
    if (access.begin >= end || access.end <= begin || (!write && !access.write) || access.line == line) {
      continue;
    }
    if (line >= 0) {
      const Clock& before = lines[static_cast<size_t>(line)].before;
      const auto ordered = before.find(access.line);
      if (ordered != before.end() && ordered->second >= access.number) continue;
    }
    return &access;
  }
  return nullptr;
}

Expect Model::destroyed(const Memory& memory) const {
  const Instance& instance = instances[static_cast<size_t>(memory.instance)];
  if (!instance.strict || lost(memory.device)) return {GPUMEM_SUCCESS};
  bool uncertain = false;
  for (const Use& use : memory.uses) {
    const Line& line = lines[static_cast<size_t>(use.line)];
    if (line.observed >= use.number || lost(line.device)) continue;
    if (line.handles > 0 && line.polled < use.number) return {GPUMEM_ERROR_BUSY};
    uncertain = true;  // nobody can observe it any more: it is free once it is over; or a pool did
  }
  return uncertain ? Expect{GPUMEM_SUCCESS, GPUMEM_ERROR_BUSY} : Expect{GPUMEM_SUCCESS};
}

Expect Model::shrunk(const Buffer& buffer, uint64_t kept) const {
  const Instance& instance = instances[static_cast<size_t>(buffer.instance)];
  if (!instance.strict || lost(buffer.device)) return {GPUMEM_SUCCESS};
  bool uncertain = false;
  for (const Buffer::Work& each : buffer.work) {
    const Line& line = lines[static_cast<size_t>(each.line)];
    if (each.end <= kept || line.observed >= each.number || lost(line.device)) continue;
    if (line.handles > 0 && line.polled < each.number) return {GPUMEM_ERROR_BUSY};
    uncertain = true;
  }
  return uncertain ? Expect{GPUMEM_SUCCESS, GPUMEM_ERROR_BUSY} : Expect{GPUMEM_SUCCESS};
}

void Model::lose(int device) {
  Device& lost = devices[static_cast<size_t>(device)];
  lost.lost = true;
  for (Region& region : regions) {
    for (const Access& access : region.accesses) {
      const Line& line = lines[static_cast<size_t>(access.line)];
      if (line.device != device || is_observed(access.line, access.number)) continue;
      region.tainted_by = lost.instance;
      lost.exact = false;
    }
  }
  for (Device& other : devices)
    if (other.instance == lost.instance) other.exact = other.exact && lost.exact;
}

void Model::close(int index) {
  Instance& instance = instances[static_cast<size_t>(index)];
  end(instance, Life::kClosed);
  observe_all(index);
  const auto end_all = [&](auto& objects) {
    for (auto& object : objects) {
      if (object.instance == index && object.life == Life::kLive) end(object, Life::kClosed);
    }
  };
  end_all(devices);
  end_all(memories);
  end_all(foreigns);
  end_all(physicals);
  end_all(ranges);
  end_all(buffers);
  end_all(groups);
  end_all(pools);
  for (Pool& pool : pools) {
    if (pool.instance != index) continue;
    pool.blocks.clear();
    pool.freed.clear();
  }
  end_all(streams);
  end_all(events);
  freed.erase(
      std::remove_if(freed.begin(), freed.end(), [&](const Freed& gone) { return gone.instance == index; }),
      freed.end());
  for (Region& region : regions) {
    if (region.tainted_by != index) continue;
    region.tainted_by = -1;
    region.known.assign(region.known.size(), false);
  }
}

gpumem_kind_stats& Model::counts(const Memory& memory) {
  Tally& stats = instances[static_cast<size_t>(memory.instance)].stats;
  if (memory.kind == GPUMEM_KIND_DEVICE) return stats.device;
  if (memory.kind == GPUMEM_KIND_MANAGED) return stats.managed;
  return memory.kind == GPUMEM_KIND_PINNED ? stats.pinned : stats.registered;
}

void Model::add_memory(const Memory& memory) {
  Tally::add(counts(memory), memory.size);
  Instance& instance = instances[static_cast<size_t>(memory.instance)];
  if (memory.pinned()) instance.pinned += memory.size;
  if (memory.kind == GPUMEM_KIND_REGISTERED) instance.registrations += 1;
  devices[static_cast<size_t>(memory.device)].used += memory.charged;
  memories.push_back(memory);
}

void Model::remove_memory(Memory& memory) {
  Tally::remove(counts(memory), memory.size);
  Instance& instance = instances[static_cast<size_t>(memory.instance)];
  if (memory.pinned()) instance.pinned -= memory.size;
  if (memory.kind == GPUMEM_KIND_REGISTERED) instance.registrations -= 1;
  devices[static_cast<size_t>(memory.device)].used -= memory.charged;
  end(memory, Life::kDestroyed);
}

}  // namespace sequences
