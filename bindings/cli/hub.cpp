// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem hub list: what is published in a hub. gpumem keep: a hub that holds what others publish.
#include <algorithm>
#include <iostream>

#include "commands.h"
#include "file.h"
#include "interrupt.h"
#include "library.h"
#include "output.h"

namespace gpumem::cli {

namespace {

// Neither command touches memory, so neither needs a GPU.
constexpr const char* kBackend = "host";

std::string way_name(gpumem_share_way way) {
  switch (way) {
    case GPUMEM_SHARE_WAY_LEGACY:
      return "legacy";
    case GPUMEM_SHARE_WAY_POSIX_FD:
      return "posix-fd";
    default:
      return "way " + std::to_string(way);
  }
}

std::string access_name(gpumem_access access) { return access == GPUMEM_ACCESS_READ ? "read" : "read-write"; }

std::vector<gpumem_entry_info> entries_of(const Link& link) {
  std::vector<gpumem_entry_info> entries;
  for (uint32_t index = 0;; ++index) {
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    gpumem_error error = GPUMEM_ERROR_INIT;
    const gpumem_status status = gpumem_link_enumerate(link.get(), index, &entry, &error);
    if (status == GPUMEM_ERROR_NOT_FOUND) return entries;
    if (GPUMEM_FAILED(status)) throw CallFailed(error);
    entries.push_back(entry);
  }
}

void print_text(const gpumem_link_info& hub, const std::vector<gpumem_entry_info>& entries) {
  using enum Table::Align;
  std::cout << (hub.keeper != 0 ? "Keeper " : "Hub ") << shown(hub.path);
  if (hub.pid != 0) std::cout << ", process " << hub.pid;
  std::cout << (entries.empty() ? ": nothing is published\n" : "\n\n");
  if (entries.empty()) return;
  Table table({"NAME", "VERSION", "SIZE", "WAY", "ACCESS", "PUBLISHER"}, {kLeft, kRight, kRight}, "");
  for (const gpumem_entry_info& entry : entries) {
    table.add({shown(entry.name), std::to_string(entry.version),
               entry.type == GPUMEM_SHARE_TYPE_EVENT ? "event" : size_text(entry.size), way_name(entry.way),
               access_name(entry.access),
               "process " + std::to_string(entry.publisher_pid) +
                   (entry.publisher_gone != 0 ? ", which has ended" : "")});
  }
  std::cout << table.text();
}

void print_entries_json(const gpumem_link_info& hub, const std::vector<gpumem_entry_info>& entries) {
  Json json = {{"path", hub.path},
               {"keeper", hub.keeper != 0},
               {"pid", hub.pid == 0 ? Json() : Json(hub.pid)},
               {"entries", Json::array()}};
  for (const gpumem_entry_info& entry : entries) {
    const bool marked = std::any_of(std::begin(entry.fingerprint), std::end(entry.fingerprint),
                                    [](uint8_t byte) { return byte != 0; });
    json["entries"].push_back(
        {{"name", entry.name},
         {"version", entry.version},
         {"type", entry.type == GPUMEM_SHARE_TYPE_EVENT ? "event" : "memory"},
         {"bytes", entry.size},
         {"way", way_name(entry.way)},
         {"access", access_name(entry.access)},
         {"publisher", {{"pid", entry.publisher_pid}, {"gone", entry.publisher_gone != 0}}},
         {"fingerprint", marked ? Json(hex(entry.fingerprint, sizeof entry.fingerprint)) : Json()}});
  }
  print_json(json);
}

}  // namespace

int hub_list(const HubOptions& options) {
  const Link link = connect_to_hub(open_instance(kBackend), options.hub);
  const std::vector<gpumem_entry_info> entries = entries_of(link);
  (options.json ? print_entries_json : print_text)(link_info(link), entries);
  return kExitSuccess;
}

int keep(const KeepOptions& options) {
  watch_signals();
  const gpumem_hub_flags flags = GPUMEM_HUB_KEEPER | (options.store ? GPUMEM_HUB_STORE : 0);
  const Hub keeper = open_hub(open_instance(kBackend), options.hub, flags);
  std::cout << "Keeper at " << shown(hub_info(keeper).path) << '\n';
  flush_output();
  wait_for_interrupt(-1);
  return kExitSuccess;
}

}  // namespace gpumem::cli
