// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/options.h"

#include <charconv>
#include <cstdio>
#include <string_view>

#include "base/arithmetic.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

// In the order of EntryPoint.
constexpr const char* kEntryPoints[] = {
    "launch_host_function", "write_value", "wait_value", "register", "copy_2d", "fill_2d",
    "peer_access",          "vmm",         "sharing"};

constexpr uint64_t kGranularityMin = 512;
constexpr uint64_t kGranularityMax = uint64_t{1} << 30;
constexpr uint32_t kQuarantineMax = 65536;

// Both names of an option, because a user may have set it through the environment.
struct Name {
  const char* field;
  const char* variable;
};

Error out_of_range(const Name& option, const char* range) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the host backend's option %s (%s) must be %s",
                    option.field, option.variable, range);
}

Result<void> set_toggle(const Name& option, gpumem_toggle value, bool* out) {
  if (value < GPUMEM_TOGGLE_DEFAULT || value > GPUMEM_TOGGLE_OFF) {
    return out_of_range(option, "one of the GPUMEM_TOGGLE_ values (0 to 2)");
  }
  if (value != GPUMEM_TOGGLE_DEFAULT) *out = value == GPUMEM_TOGGLE_ON;
  return {};
}

template <class T>
void set_number(T value, T* out) {
  if (value != 0) *out = value;
}

std::string_view next_item(std::string_view* list) {
  const size_t comma = list->find(',');
  const std::string_view item = list->substr(0, comma);
  *list = comma == std::string_view::npos ? std::string_view() : list->substr(comma + 1);
  return item;
}

bool parse_ordinal(std::string_view text, uint32_t device_count, uint32_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out < device_count;
}

Result<void> set_peers(std::string_view peers, Options* out) {
  if (peers == "none") return {};
  if (peers == "all") {
    const uint64_t all = ~uint64_t{0} >> (kDevicesMax - out->device_count);
    for (uint32_t from = 0; from < out->device_count; ++from)
      out->links.at(from) = all & ~(uint64_t{1} << from);
    return {};
  }
  do {
    const std::string_view link = next_item(&peers);
    const size_t arrow = link.find('>');
    uint32_t from = 0;
    uint32_t to = 0;
    if (arrow == std::string_view::npos || !parse_ordinal(link.substr(0, arrow), out->device_count, &from) ||
        !parse_ordinal(link.substr(arrow + 1), out->device_count, &to) || from == to) {
      return out_of_range({"peers", "GPUMEM_HOST_PEERS"},
                          "\"all\", \"none\", or a list of pairs of different devices such as \"0>1,1>0\"");
    }
    out->links.at(from) |= uint64_t{1} << to;
  } while (!peers.empty());
  return {};
}

Result<void> set_masked(std::string_view masked, Options* out) {
  while (!masked.empty()) {
    const std::string_view name = next_item(&masked);
    uint32_t bit = 0;
    for (uint32_t index = 0; index < std::size(kEntryPoints); ++index) {
      if (name == kEntryPoints[index]) bit = 1U << index;
    }
    if (bit == 0) {
      return out_of_range(
          {"masked", "GPUMEM_HOST_MASKED"},
          "a comma-separated list of launch_host_function, write_value, wait_value, register, "
          "copy_2d, fill_2d, peer_access, vmm and sharing");
    }
    out->masked |= bit;
  }
  return {};
}

// FNV-1a, 64 bits.
uint64_t hash(uint64_t state, uint64_t number) {
  for (int byte = 0; byte < 8; ++byte) {
    state = (state ^ (number >> (8 * byte) & 0xff)) * 0x100000001b3;
  }
  return state;
}

}  // namespace

Result<void> Options::require(EntryPoint entry_point) const {
  const auto index = static_cast<uint32_t>(entry_point);
  if ((masked >> index & 1) == 0) return {};
  return make_error(GPUMEM_ERROR_SYMBOL_MISSING, "an option of the instance masks the entry point %s",
                    kEntryPoints[index]);
}

Result<Options> check_options(const backend::HostOptions& options) {
  const uint64_t page = platform::page_size();
  Options checked;
  set_number(options.device_count, &checked.device_count);
  set_number(options.device_bytes, &checked.device_bytes);
  set_number(options.granularity, &checked.granularity);
  set_number(options.numa_nodes, &checked.numa_nodes);
  set_number(options.register_count_max, &checked.register_count_max);
  set_number(options.lock_piece, &checked.lock_piece);
  set_number(options.quarantine, &checked.quarantine);
  set_number(options.vmm_granularity, &checked.vmm_granularity);
  if (checked.device_count > kDevicesMax)
    return out_of_range({"device_count", "GPUMEM_HOST_DEVICES"}, "1 to 64, or 0 for 2");
  if (!is_power_of_two(checked.granularity) || checked.granularity < kGranularityMin ||
      checked.granularity > kGranularityMax) {
    return out_of_range({"granularity", "GPUMEM_HOST_GRANULARITY"}, "a power of two from 512 to 1 GiB");
  }
  if (checked.device_bytes < checked.granularity || checked.device_bytes > kSizeMax) {
    return out_of_range({"device_bytes", "GPUMEM_HOST_DEVICE_BYTES"},
                        "at least the granularity and at most 2^63-1");
  }
  if (checked.numa_nodes > 64)
    return out_of_range({"numa_nodes", "GPUMEM_HOST_NUMA_NODES"}, "1 to 64, or 0 for those of the machine");
  if (checked.lock_piece % page != 0 || checked.lock_piece > kSizeMax) {
    return out_of_range({"lock_piece", "GPUMEM_HOST_LOCK_PIECE"},
                        "a multiple of the page size, and at most 2^63-1");
  }
  if (checked.quarantine > kQuarantineMax)
    return out_of_range({"quarantine", "GPUMEM_HOST_QUARANTINE"}, "1 to 65536, or 0 for 64");

  if (!is_power_of_two(checked.vmm_granularity) || checked.vmm_granularity < page ||
      checked.vmm_granularity > kGranularityMax) {
    return out_of_range({"vmm_granularity", "GPUMEM_HOST_VMM_GRANULARITY"},
                        "a power of two from the page size to 1 GiB, or 0 for 2 MiB");
  }

  if (options.lock_mode < GPUMEM_HOST_LOCK_DEFAULT || options.lock_mode > GPUMEM_HOST_LOCK_OFF) {
    return out_of_range({"lock_mode", "GPUMEM_HOST_LOCK"}, "one of the GPUMEM_HOST_LOCK_ values (0 to 3)");
  }
  if (options.lock_mode != GPUMEM_HOST_LOCK_DEFAULT) checked.lock_mode = options.lock_mode;

  GPUMEM_TRY(set_toggle({"strict", "GPUMEM_HOST_STRICT"}, options.strict, &checked.strict));
  GPUMEM_TRY(set_toggle({"pageable", "GPUMEM_HOST_PAGEABLE"}, options.pageable, &checked.pageable));
  GPUMEM_TRY(
      set_toggle({"same_pointer", "GPUMEM_HOST_SAME_POINTER"}, options.same_pointer, &checked.same_pointer));
  GPUMEM_TRY(set_toggle({"concurrent", "GPUMEM_HOST_CONCURRENT"}, options.concurrent, &checked.concurrent));
  checked.fill = checked.strict;
  GPUMEM_TRY(set_toggle({"fill", "GPUMEM_HOST_FILL"}, options.fill, &checked.fill));
  GPUMEM_TRY(
      set_toggle({"compressible", "GPUMEM_HOST_COMPRESSIBLE"}, options.compressible, &checked.compressible));
  GPUMEM_TRY(set_peers(options.peers, &checked));
  GPUMEM_TRY(set_masked(options.masked, &checked));
  return checked;
}

std::array<uint8_t, 16> device_uuid(const Options& options, uint32_t ordinal) {
  std::array<uint8_t, 16> uuid{};
  for (uint32_t half = 0; half < 2; ++half) {
    uint64_t state = hash(0xcbf29ce484222325, half);
    for (const uint64_t number :
         {uint64_t{ordinal}, uint64_t{options.device_count}, uint64_t{options.strict}, options.device_bytes,
          options.granularity, uint64_t{options.pageable}, uint64_t{options.same_pointer}}) {
      state = hash(state, number);
    }
    for (const uint64_t links : options.links)
      state = hash(state, links);
    // Later options count only where they differ, so that the UUIDs of the others stay.
    if (!options.concurrent) state = hash(state, 1);
    for (uint32_t byte = 0; byte < 8; ++byte) {
      uuid.at(8 * half + byte) = static_cast<uint8_t>(state >> (8 * byte));
    }
  }
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x80);  // version 8: defined by the application
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

std::array<char, 33> text_of(const std::array<uint8_t, 16>& uuid) {
  std::array<char, 33> text{};
  for (size_t byte = 0; byte < uuid.size(); ++byte)
    std::snprintf(&text.at(2 * byte), 3, "%02x", uuid.at(byte));
  return text;
}

}  // namespace gpumem::host
