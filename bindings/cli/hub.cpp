// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem hub list: what is published in a hub. gpumem hub withdraw: the end of it. gpumem keep: a hub that
// holds what others publish.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>
#include <vector>

#include "commands.h"
#include "file.h"
#include "fingerprint.h"
#include "interrupt.h"
#include "library.h"
#include "output.h"

namespace gpumem::cli {

namespace {

// No command here touches memory, so none needs a GPU.
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

bool is_marked(const gpumem_entry_info& entry) {
  return std::any_of(std::begin(entry.fingerprint), std::end(entry.fingerprint),
                     [](uint8_t byte) { return byte != 0; });
}

// The bytes of a file that `share` has published, which are fewer than those of the memory.
uint64_t size_of(const gpumem_entry_info& entry) {
  const std::optional<Fingerprint> ours = Fingerprint::read(entry.fingerprint);
  return ours ? std::min(ours->size, entry.size) : entry.size;  // what published it may lie
}

void print_hub(const gpumem_link_info& hub, const std::vector<gpumem_entry_info>& entries) {
  using enum Table::Align;
  std::vector<std::string> parts = {hub.keeper != 0 ? "Keeper" : "Hub", shown(hub.path)};
  if (hub.pid != 0) {
    parts.back() += ',';
    parts.push_back("process " + std::to_string(hub.pid));
  }
  if (entries.empty()) {
    parts.back() += ':';
    parts.emplace_back("nothing is published");
  }
  std::cout << filled(parts);
  if (entries.empty()) return;
  std::cout << '\n';
  Table table({"NAME", "VERSION", "TYPE", "SIZE", "WAY", "ACCESS", "PUBLISHER", "FINGERPRINT"},
              {kLeft, kRight, kLeft, kRight}, "");
  for (const gpumem_entry_info& entry : entries) {
    const std::optional<Fingerprint> ours = Fingerprint::read(entry.fingerprint);
    table.add({shown(entry.name), std::to_string(entry.version), type_name(entry.type),
               entry.type == GPUMEM_SHARE_TYPE_EVENT ? "-" : size_text(size_of(entry)), way_name(entry.way),
               access_name(entry.access),
               (entry.publisher_gone != 0 ? "was " : "") + std::to_string(entry.publisher_pid) +
                   (entry.publisher_uid != hub.uid ? " of user " + std::to_string(entry.publisher_uid) : ""),
               ours               ? "XXH3 " + ours->text()
               : is_marked(entry) ? hex(entry.fingerprint, sizeof entry.fingerprint)
                                  : "-"});
  }
  std::cout << table.text();
}

void print_entries_json(const gpumem_link_info& hub, const std::vector<gpumem_entry_info>& entries) {
  Json json = {{"path", hub.path},
               {"keeper", hub.keeper != 0},
               {"pid", hub.pid == 0 ? Json() : Json(hub.pid)},
               {"entries", Json::array()}};
  for (const gpumem_entry_info& entry : entries) {
    json["entries"].push_back(
        {{"name", entry.name},
         {"version", entry.version},
         {"type", type_name(entry.type)},
         {"bytes", size_of(entry)},
         {"way", way_name(entry.way)},
         {"access", access_name(entry.access)},
         {"publisher",
          {{"pid", entry.publisher_pid}, {"uid", entry.publisher_uid}, {"gone", entry.publisher_gone != 0}}},
         {"fingerprint",
          is_marked(entry) ? Json(hex(entry.fingerprint, sizeof entry.fingerprint)) : Json()}});
  }
  print_json(json);
}

// A keeper has a descriptor for each block of the memory that it holds.
void raise_descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int hub_list(const HubOptions& options) {
  const Link link = connect_to_hub(open_instance(kBackend), options.hub);
  const std::vector<gpumem_entry_info> entries = entries_of(link);
  (options.json ? print_entries_json : print_hub)(link_info(link), entries);
  return kExitSuccess;
}

int hub_withdraw(const WithdrawOptions& options) {
  const Link link = connect_to_hub(open_instance(kBackend), options.hub);
  require_keeper(link);
  call(gpumem_link_withdraw, link.get(), options.name.c_str(), options.version);
  std::vector<std::string> parts = {shown(options.name)};
  if (options.version != 0) parts.push_back("version " + std::to_string(options.version));
  parts.insert(parts.end(), {"is withdrawn from", shown(link_info(link).path)});
  std::cout << filled(parts);
  return kExitSuccess;
}

namespace {

// Tells the service manager that this process is ready, if one waits for that, as sd_notify(3) does.
void notify_ready() {
  const char* const address = std::getenv("NOTIFY_SOCKET");
  sockaddr_un target = {};
  const size_t size = address != nullptr ? std::strlen(address) : 0;
  if (size < 2 || size > sizeof target.sun_path || (address[0] != '/' && address[0] != '@')) return;
  target.sun_family = AF_UNIX;
  std::memcpy(target.sun_path, address, size);
  if (address[0] == '@') target.sun_path[0] = '\0';
  const int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return;
  constexpr std::string_view kReady = "READY=1";
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  (void)sendto(descriptor, kReady.data(), kReady.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&target), length);
  close(descriptor);
}

}  // namespace

int keep(const KeepOptions& options) {
  watch_signals();
  // A service's standard error is its journal.
  gpumem_log_set_function(
      [](void* /*none*/, gpumem_log_level /*level*/, const char* message) { complain(message); }, nullptr,
      GPUMEM_LOG_WARNING, nullptr);
  const gpumem_hub_flags flags = GPUMEM_HUB_KEEPER | (options.store ? GPUMEM_HUB_STORE : 0);
  const Hub keeper = open_hub(open_instance(kBackend), options.hub, flags, options.links);
  raise_descriptor_limit();  // after the library has seen what the next keeper will begin with
  const gpumem_hub_info info = hub_info(keeper);
  std::vector<std::string> parts = {"Keeper at", shown(info.path)};
  if (info.version_count != 0) {
    parts.back() += ',';
    parts.push_back("took back " + std::to_string(info.version_count) +
                    (info.version_count == 1 ? " version" : " versions"));
  }
  std::cout << filled(parts) << until_interrupted() << ".\n";
  flush_output();
  notify_ready();
  wait_for_interrupt(-1);
  return kExitSuccess;
}

}  // namespace gpumem::cli
