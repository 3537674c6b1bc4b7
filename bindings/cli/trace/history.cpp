// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "history.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "../output.h"

namespace gpumem::cli {

namespace {

using Field = TraceField;

const std::unordered_map<std::string, Field>& fields() {
  static const std::unordered_map<std::string, Field> names = {
      {"alignment", Field::kAlignment},
      {"base", Field::kBase},
      {"block", Field::kBlock},
      {"buffer", Field::kBuffer},
      {"capacity", Field::kCapacity},
      {"content", Field::kContent},
      {"destroyed", Field::kDestroyed},
      {"device", Field::kDevice},
      {"flags", Field::kFlags},
      {"group", Field::kGroup},
      {"index", Field::kIndex},
      {"initial_size", Field::kInitialSize},
      {"keep_bytes", Field::kKeepBytes},
      {"limit", Field::kLimit},
      {"location", Field::kLocation},
      {"memory", Field::kMemory},
      {"memory_flags", Field::kMemoryFlags},
      {"native_stream", Field::kNativeStream},
      {"offset", Field::kOffset},
      {"physical", Field::kPhysical},
      {"pointer", Field::kPointer},
      {"pool", Field::kPool},
      {"range", Field::kRange},
      {"release_threshold", Field::kReleaseThreshold},
      {"require", Field::kRequire},
      {"reserve", Field::kReserve},
      {"ring", Field::kRing},
      {"segment_size", Field::kSegmentSize},
      {"size", Field::kSize},
      {"stream", Field::kStream},
      {"taken", Field::kTaken},
  };
  static_assert(static_cast<size_t>(Field::kCount) <= 32);
  return names;
}

uint64_t number_of(const Json& value) {
  if (!value.is_string()) return value.get<uint64_t>();
  const auto text = value.get<std::string>();
  uint64_t number = 0;
  if (text.rfind("0x", 0) != 0 ||
      std::from_chars(text.data() + 2, text.data() + text.size(), number, 16).ec != std::errc())
    throw std::invalid_argument(text);
  return number;
}

TraceCall call_of(const Json& json) {
  TraceCall call;
  json.at("t").get_to(call.start);
  json.at("ns").get_to(call.ns);
  json.at("thread").get_to(call.thread);
  json.at("call").get_to(call.call);
  json.at("status").get_to(call.status);
  call.kind = json.value("kind", "");
  call.name = json.value("name", "");
  call.tag = json.value("tag", "");
  for (const auto& [key, value] : json.items()) {
    const auto field = fields().find(key);
    if (field == fields().end()) continue;  // of a newer version, or above
    const auto place = static_cast<size_t>(field->second);
    call.values.at(place) = number_of(value);
    call.known |= uint32_t{1} << place;
  }
  return call;
}

// A name is the program's, which need not be UTF-8.
std::optional<Json> parsed(std::string line) {
  Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) {
    std::replace_if(
        line.begin(), line.end(), [](char byte) { return static_cast<unsigned char>(byte) > 0x7e; }, '?');
    json = Json::parse(line, nullptr, false);
  }
  return json.is_object() ? std::optional(json) : std::nullopt;
}

bool ends_memory(const std::string& call) {
  return call.find("free") != std::string::npos || call.find("destroy") != std::string::npos ||
         call.find("release") != std::string::npos || call == "unregister" || call == "range_unmap";
}

// What frees memory takes effect when it begins, since the memory may be somebody else's before it returns.
uint64_t effect_of(const TraceCall& call) { return ends_memory(call.call) ? call.start : call.end(); }

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw std::runtime_error("the file " + shown(file) + " " + why);
}

}  // namespace

uint64_t Trace::length() const {
  uint64_t last = 0;
  for (const TraceCall& call : calls)
    last = std::max(last, call.end());
  return last;
}

Trace read_trace(const std::string& file, bool only_head) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) refuse(file, std::string("cannot be opened: ") + std::strerror(errno));
  Trace trace;
  bool begun = false;
  std::string line;
  uint64_t number = 0;
  while (!(begun && only_head) && std::getline(stream, line)) {
    ++number;
    if (line.empty()) continue;  // room that a thread had left
    const auto json = parsed(line);
    if (!begun) {
      if (!json || !json->contains("gpumem_trace"))
        refuse(file, "is no trace that gpumem trace record has written");
      if ((*json)["gpumem_trace"] != kTraceVersion) {
        refuse(file, "is a trace of version " + (*json)["gpumem_trace"].dump() +
                         ", and this program reads version " + std::to_string(kTraceVersion));
      }
      begun = true;
    }
    if (!json) {
      ++trace.cut_off;
      continue;
    }
    try {
      if (!json->contains("gpumem_trace")) {
        trace.calls.push_back(call_of(*json));
        continue;
      }
      json->at("gpumem").get_to(trace.version);
      json->at("command").get_to(trace.command);
      json->at("process").get_to(trace.process);
      json->at("date").get_to(trace.date);
      json->at("lost").get_to(trace.lost);
    } catch (const std::exception&) {
      refuse(file,
             "is no trace: line " + std::to_string(number) + " is not as gpumem trace record writes it");
    }
  }
  if (stream.bad()) refuse(file, std::string("cannot be read: ") + std::strerror(errno));
  if (!begun) refuse(file, "is empty: no call was recorded in it");
  std::stable_sort(trace.calls.begin(), trace.calls.end(), [](const TraceCall& one, const TraceCall& other) {
    return effect_of(one) < effect_of(other);
  });
  return trace;
}

namespace {

// Follows the calls.
class Follower {
 public:
  explicit Follower(History* history) : history_(*history) {}

  void follow(const TraceCall& call) {
    if (call.status != 0) return;
    now_ = effect_of(call);
    call_ = &call;
    const std::string& name = call.call;
    const uint64_t taken = call[call.has(Field::kTaken) ? Field::kTaken : Field::kSize];
    if (name == "memory_create" || name == "memory_register") {
      make(call[Field::kMemory], "memory", name == "memory_register" ? "registered" : call.kind,
           call[Field::kBase], call[Field::kSize], taken);
    } else if (name == "share_import") {
      make(call[Field::kMemory], "import", "imported", call[Field::kPointer], call[Field::kTaken], taken);
    } else if (name == "malloc" || name == "register") {
      make(call[Field::kPointer], "memory", name == "register" ? "registered" : call.kind,
           call[Field::kPointer], call[Field::kSize], taken);
    } else if (name == "ring_create") {
      make(call[Field::kRing], "ring", "device", call[Field::kBase], taken, taken);
    } else if (name == "memory_destroy") {
      end(call[Field::kMemory]);
    } else if (name == "ring_destroy") {
      end(call[Field::kRing]);
    } else if (name == "free" || name == "unregister" || name == "pool_free_pointer") {
      end(call[Field::kPointer]);
    } else if (name.rfind("pool_", 0) == 0) {
      follow_pool(name);
    } else if (name.rfind("buffer_", 0) == 0) {
      follow_buffer(name, taken);
    } else if (name == "group_sleep" || name == "group_wake") {
      for (const auto& [handle, buffer] : buffers_) {
        if (buffer.group == call[Field::kGroup] && (call.tag.empty() || call.tag == buffer.tag))
          set_awake(handle, name == "group_wake");
      }
    } else if (name.rfind("physical_", 0) == 0) {
      follow_physical(name, taken);
    } else if (name.rfind("range_", 0) == 0) {
      follow_range(name);
    }
  }

 private:
  struct Buffer {
    uint64_t size;
    uint64_t taken;
    uint64_t group;
    std::string tag;
  };
  struct Pool {
    std::string kind;
    uint64_t device;
    uint64_t taken;
  };
  struct Block {
    uint64_t users;  // handles and mappings
    uint64_t size;
  };

  void change(const std::string& kind, uint64_t live_before, uint64_t live, uint64_t taken_before,
              uint64_t taken) {
    Usage& usage = history_.kinds[kind];
    const Usage::Point last = usage.points.empty() ? Usage::Point{now_, 0, 0} : usage.points.back();
    const Usage::Point next = {now_, last.live - live_before + live, last.taken - taken_before + taken};
    usage.peak_live = std::max(usage.peak_live, next.live);
    usage.peak_taken = std::max(usage.peak_taken, next.taken);
    usage.points.push_back(next);
  }
  void count(Life* life, uint64_t live, uint64_t taken) {
    change(life->kind, life->live, live, life->taken, taken);
    life->live = live;
    life->taken = taken;
  }
  void make(uint64_t key, const char* what, const std::string& kind, uint64_t address, uint64_t size,
            uint64_t taken) {
    if (key == 0) return;  // 0 bytes of a pool
    end(key);              // its end was lost
    places_[key] = history_.lives.size();
    history_.lives.push_back({what, kind, call_->name, (*call_)[Field::kDevice], size, address, now_,
                              kStillLives, call_->thread, 0, 0});
    count(&history_.lives.back(), what == std::string("mapping") ? 0 : size, taken);
  }
  Life* find(uint64_t key) {
    const auto found = places_.find(key);
    return found == places_.end() ? nullptr : &history_.lives[found->second];
  }
  void end(uint64_t key) {
    Life* const life = find(key);
    if (life == nullptr) return;
    count(life, 0, 0);
    life->end = now_;
    places_.erase(key);
  }

  void follow_pool(const std::string& name) {
    const TraceCall& call = *call_;
    if (name == "pool_create") {
      const bool plain = call.kind.empty() || call.kind == "unknown";
      pools_[call[Field::kPool]] = {plain ? "device" : call.kind, call[Field::kDevice], 0};
    }
    Pool& pool = pools_.try_emplace(call[Field::kPool], Pool{"device", 0, 0}).first->second;
    if (call.has(Field::kTaken) || name == "pool_destroy") {
      change(pool.kind, 0, 0, pool.taken, call[Field::kTaken]);
      pool.taken = call[Field::kTaken];
    }
    if (name.find("alloc") != std::string::npos) {
      make(call[Field::kPointer], "block", pool.kind, call[Field::kPointer], call[Field::kSize], 0);
      if (Life* const life = find(call[Field::kPointer])) life->device = pool.device;
    } else if (name.find("free") != std::string::npos) {
      end(call[Field::kPointer]);
    }
  }

  void set_awake(uint64_t handle, bool awake) {
    const Buffer& buffer = buffers_.at(handle);
    if (Life* const life = find(handle)) count(life, awake ? buffer.size : 0, awake ? buffer.taken : 0);
  }
  void follow_buffer(const std::string& name, uint64_t taken) {
    const TraceCall& call = *call_;
    const uint64_t handle = call[Field::kBuffer];
    if (name == "buffer_create") {
      buffers_[handle] = {call[Field::kSize], taken, call[Field::kGroup], call.tag};
      return make(handle, "buffer", place_of(call), call[Field::kBase], call[Field::kSize], taken);
    }
    const auto found = buffers_.find(handle);
    Life* const life = find(handle);
    if (found == buffers_.end() || life == nullptr) return;
    if (name == "buffer_destroy") {
      end(handle);
      buffers_.erase(found);
    } else {
      if (name == "buffer_resize") life->size = found->second.size = call[Field::kSize];
      found->second.taken = taken;
      life->address = call[Field::kBase];
      set_awake(handle, name != "buffer_sleep");
    }
  }
  // The locations are those of pointer.h.
  static std::string place_of(const TraceCall& call) {
    return call[Field::kLocation] > 1 ? "host" : "device";
  }

  void follow_physical(const std::string& name, uint64_t taken) {
    const TraceCall& call = *call_;
    const uint64_t handle = call[Field::kPhysical];
    if (name == "physical_release") {
      const auto found = blocks_of_.find(handle);
      if (found == blocks_of_.end()) return;
      leave(found->second);
      blocks_of_.erase(found);
      return;
    }
    const uint64_t block = call[Field::kBlock];
    blocks_of_[handle] = block;
    if (++blocks_.try_emplace(block, Block{0, taken}).first->second.users == 1)
      make(block, "physical", name.find("import") != std::string::npos ? "imported" : place_of(call), 0,
           taken, taken);
  }
  void leave(uint64_t block) {
    if (--blocks_.at(block).users != 0) return;
    end(block);
    blocks_.erase(block);
  }
  void follow_range(const std::string& name) {
    const TraceCall& call = *call_;
    const uint64_t range = call[Field::kRange];
    if (name == "range_reserve") bases_[range] = call[Field::kBase];
    if (name == "range_map") {
      if (call.first()) next_ = call[Field::kOffset];
      const auto block = blocks_of_.find(call[Field::kPhysical]);
      if (block == blocks_of_.end()) return;
      const uint64_t size = blocks_.at(block->second).size;
      ++blocks_.at(block->second).users;
      mapped_[{range, next_}] = block->second;
      make(bases_[range] + next_, "mapping", "device", bases_[range] + next_, size, 0);
      next_ += size;
    } else if (name == "range_unmap") {
      const uint64_t from = call[Field::kOffset];
      const auto first = mapped_.lower_bound({range, from});
      const uint64_t to = from + std::min(call[Field::kSize], UINT64_MAX - from);  // of all, or a part
      const auto last = mapped_.lower_bound({range, to});
      for (auto one = first; one != last; ++one) {
        end(bases_[range] + one->first.second);
        leave(one->second);
      }
      mapped_.erase(first, last);
    }
  }

  History& history_;
  uint64_t now_ = 0;
  const TraceCall* call_ = nullptr;
  std::unordered_map<uint64_t, size_t> places_;  // by handle or address
  std::unordered_map<uint64_t, Pool> pools_;
  std::map<uint64_t, Buffer> buffers_;
  std::unordered_map<uint64_t, uint64_t> blocks_of_;  // of handles
  std::unordered_map<uint64_t, Block> blocks_;
  std::unordered_map<uint64_t, uint64_t> bases_;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> mapped_;
  uint64_t next_ = 0;
};

}  // namespace

History history_of(const Trace& trace) {
  History history;
  Follower follower(&history);
  for (const TraceCall& call : trace.calls)
    follower.follow(call);
  return history;
}

}  // namespace gpumem::cli
