// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What lives in an instance, in words and for programs.
#include <algorithm>
#include <array>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "core/instance/instance.h"
#include "core/memory/region.h"
#include "core/object/last_failure.h"
#include "core/object/status_list.h"
#include "core/pool/core.h"
#include "core/pool/pools.h"
#include "gpumem/version.h"
#include "platform/identity.h"

namespace gpumem::core {
namespace {

// In this order.
constexpr std::initializer_list<Type> kSections[] = {{Type::kPool, Type::kBuffer, Type::kGroup},
                                                     {Type::kMemory, Type::kRange},
                                                     {Type::kPhysical},
                                                     {Type::kStream, Type::kEvent},
                                                     {Type::kHub, Type::kLink, Type::kRing}};

bool is_of_listed_pool(const Object& object) {
  if (!is_region(object.type())) return false;
  const PoolBlocks* const blocks = static_cast<const Region&>(object).pool_blocks();
  return blocks != nullptr && blocks->listed();
}

}  // namespace

// Walks the handles of the process, so that a long report blocks no call that creates or destroys an object.
std::string Instance::report(uint64_t most, const char* separator) const {
  std::string text;
  uint64_t lines = 0;
  Line line;
  const auto add = [&] {
    if (lines++ != 0) text += separator;
    text += line.text;
  };
  for (const auto& section : kSections) {
    bool listed = false;
    const auto see = [&](const Object& object) {
      listed = &object.context() == this && std::count(section.begin(), section.end(), object.type()) != 0 &&
               !is_of_listed_pool(object);
      if (listed) line = object.describe();
    };
    for (uint32_t slot = 0; lines < most && handles::see_next(&slot, see);) {
      if (listed) add();
    }
  }
  for (const auto& pool : pools_.left()) {
    if (lines >= most) break;
    line = pool->describe();
    add();
  }
  return lines != 0 ? text : "nothing lives";
}

// As report(), and so not of one moment.
std::string Instance::snapshot() const {
  std::string text;
  const auto add_element = [&text](const Fields& fields) {
    text += text.back() == '[' ? "{" : ",{";
    text += fields.text();
    text += '}';
  };
  Fields head;
  std::array<char, 32> version;
  std::snprintf(version.data(), version.size(), "%d.%d.%d", GPUMEM_VERSION_MAJOR, GPUMEM_VERSION_MINOR,
                GPUMEM_VERSION_PATCH);
  head.add("version", version.data());
  head.add("backend", backend().kind() == GPUMEM_BACKEND_CUDA ? "cuda" : "host");
  head.add("name", name_);
  head.add("process", static_cast<uint64_t>(platform::process_id()));
  const gpumem_stats stats = statistics_.read();
  head.add("live_count", stats.live_count);
  head.add("live_bytes", stats.live_bytes);
  head.add("peak_bytes", stats.peak_bytes);
  head.add("reserved_bytes", stats.reserved_bytes);
  (text += '{') += head.text();

  text += ",\"devices\":[";
  std::map<uint32_t, uint64_t> own = bytes_by_device();
  for (const auto& device : devices_) {
    Fields fields;
    fields.add("ordinal", uint64_t{device->ordinal()});
    fields.add("name", device->facts().name);
    fields.add("total_bytes", device->facts().total_bytes);
    if (auto memory = device->memory_available()) fields.add("free_bytes", memory->free_bytes);
    fields.add("own_bytes", own[device->ordinal()]);
    add_element(fields);
  }
  text += "],\"kinds\":[";
  for (const KindTraits& kind : all_kinds()) {
    if (kind.counters == kNotCounted) continue;
    const gpumem_kind_stats counts = statistics_.read_kind(kind);
    Fields fields;
    fields.add("kind", kind.name);
    fields.add("live_count", counts.live_count);
    fields.add("live_bytes", counts.live_bytes);
    fields.add("peak_count", counts.peak_count);
    fields.add("peak_bytes", counts.peak_bytes);
    fields.add("total_count", counts.total_count);
    fields.add("total_bytes", counts.total_bytes);
    add_element(fields);
  }
  text += "],\"exports\":[";
  exports_.list(share_server_.holders(), add_element);
  text += "],\"imports\":[";
  imports_.list(add_element);
  Fields kept;
  imports_.list_kept(kept);
  ((text += "],\"kept_imports\":{") += kept.text()) += '}';
  if (const std::optional<LastFailure> last = last_failure()) {
    Fields failure;
    failure.add("status", find_status(last->error.status)->name);
    failure.add("function", last->function);
    failure.add("message", last->error.message);
    failure.add("time", last->time);
    ((text += ",\"last_failure\":{") += failure.text()) += '}';
  }
  text += ",\"objects\":[";
  Fields fields;
  bool listed = false;
  const auto see = [&](const Object& object) {
    listed = &object.context() == this && object.type() != Type::kInstance && object.type() != Type::kDevice;
    if (!listed) return;
    fields = {};
    fields.add("type", type_name(object.type()));
    object.list(fields);
  };
  for (uint32_t slot = 0; handles::see_next(&slot, see);) {
    if (listed) add_element(fields);
  }
  for (const auto& pool : pools_.left()) {
    fields = {};
    fields.add("type", type_name(Type::kPool));
    pool->list(fields);
    add_element(fields);
  }
  return text += "]}";
}

// What this instance has on each device. Managed memory moves, so nobody knows how much of it lies there.
std::map<uint32_t, uint64_t> Instance::bytes_by_device() const {
  std::map<uint32_t, uint64_t> bytes = statistics_.block_bytes_by_device();
  const auto see = [&](const Object& object) {
    if (&object.context() != this || object.type() != Type::kMemory) return;
    const auto& memory = static_cast<const Region&>(object);
    if (memory.traits().on_device && !memory.traits().imported)
      bytes[memory.device().ordinal()] += memory.size();
  };
  for (uint32_t slot = 0; handles::see_next(&slot, see);) {
  }
  return bytes;
}

Instance::OfPools Instance::of_pools() const {
  OfPools result;
  const auto see = [&](const Object& object) {
    if (&object.context() != this || !is_of_listed_pool(object)) return;
    const auto& region = static_cast<const Region&>(object);
    ++result.count;
    gpumem_kind_stats& counts = result.kinds.at(region.traits().counters);
    counts.live_count += 1;
    counts.live_bytes += region.size();
  };
  for (uint32_t slot = 0; handles::see_next(&slot, see);) {
  }
  return result;
}

// "2 pinned (8192 bytes), 1 stream": memory first, by size.
std::string Instance::totals(const OfPools& of_pools) const {
  std::vector<std::pair<const KindTraits*, gpumem_kind_stats>> kinds;
  for (const KindTraits& kind : all_kinds()) {
    if (kind.counters == kNotCounted) continue;
    gpumem_kind_stats counts = statistics_.read_kind(kind);
    const gpumem_kind_stats& hidden = of_pools.kinds.at(kind.counters);
    if (counts.live_count <= hidden.live_count) continue;
    counts.live_count -= hidden.live_count;
    counts.live_bytes -= std::min(counts.live_bytes, hidden.live_bytes);
    kinds.emplace_back(&kind, counts);
  }
  std::sort(kinds.begin(), kinds.end(),
            [](const auto& a, const auto& b) { return a.second.live_bytes > b.second.live_bytes; });
  std::string text;
  const auto add = [&text](const std::string& total) { text += (text.empty() ? "" : ", ") + total; };
  for (const auto& [kind, counts] : kinds) {
    add(std::to_string(counts.live_count) + ' ' + kind->name + " (" + std::to_string(counts.live_bytes) +
        " byte" + plural(counts.live_bytes) + (kind->in_parts ? " of addresses)" : ")"));
  }
  for (const auto& section : kSections) {
    for (const Type type : section) {
      const uint64_t count = statistics_.objects(type);  // 0 for regions
      const bool plural = count != 1 && type != Type::kPhysical;
      if (count != 0) add(std::to_string(count) + ' ' + type_name(type) + (plural ? "s" : ""));
    }
  }
  if (const size_t left = pools_.left().size(); left != 0)
    add(std::to_string(left) + " destroyed pool" + plural(left));
  return text;
}

}  // namespace gpumem::core
