// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem why without a FILE: the processes of this machine that use gpumem or a GPU, and hubs, without a
// context on a GPU.
#include "processes.h"

#include <dirent.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "commands.h"
#include "library.h"
#include "nvml.h"
#include "output.h"

namespace gpumem::cli {

namespace {

std::optional<uint64_t> number_of(std::string_view text, int base = 10) {
  uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

// The names in a folder, sorted. False if it cannot be read; errno says why.
bool list_folder(const std::string& folder, std::vector<std::string>* names) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  if (open == nullptr) return false;
  while (const dirent* const entry = readdir(open.get())) {
    if (const std::string name = entry->d_name; name != "." && name != "..") names->push_back(name);
  }
  std::sort(names->begin(), names->end());
  return true;
}

std::string folder_of(uint64_t process) { return "/proc/" + std::to_string(process); }

// A memory file of gpumem, by its inode. Several processes may have it.
using Files = std::map<uint64_t, uint64_t>;  // and its bytes, as far as is known

// A process that uses gpumem or a GPU.
struct User {
  uint64_t process = 0;
  bool seen = true;  // in /proc; otherwise only its memory of GPUs is known
  std::string command;
  std::string user;
  bool has_library = false;
  Files files;
  std::vector<std::string> instances;     // addresses at which it serves importers
  uint64_t of_nvidia = 0;                 // open device files
  std::optional<uint64_t> gpu_bytes = 0;  // on all GPUs; none if that is not known
  bool has_gpu = false;

  bool of_gpumem() const { return has_library || !files.empty() || !instances.empty(); }
};

// Addresses at which instances listen, by the inode of the socket.
using Sockets = std::map<uint64_t, std::string>;

bool is_of_instance(std::string_view address) {
  constexpr std::string_view kBegin = "@gpumem-";
  constexpr size_t kDigits = 32;
  return address.starts_with(kBegin) && address.size() == kBegin.size() + kDigits &&
         address.find_first_not_of("0123456789abcdef", kBegin.size()) == std::string_view::npos;
}

Sockets find_sockets() {
  constexpr uint64_t kAccepts = 0x10000;
  Sockets found;
  std::ifstream lines("/proc/net/unix");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, references, protocol, flags, type, state, inode, address;
    words >> number >> references >> protocol >> flags >> type >> state >> inode >> address;
    const auto known = number_of(inode);
    if (is_of_instance(address) && known && (number_of(flags, 16).value_or(0) & kAccepts) != 0)
      found[*known] = address;
  }
  return found;
}

constexpr std::string_view kMemoryFile = "/memfd:gpumem";

// Whether the system refused to show something. A process that ends meanwhile is no such case.
bool is_refused() { return errno == EACCES || errno == EPERM; }

// The library and memory files that a process has mapped. False if the system does not show them.
bool look_at_maps(User& user) {
  errno = 0;
  std::ifstream lines(folder_of(user.process) + "/maps");
  if (!lines) return !is_refused();
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string range, access, offset, device, inode, path;
    words >> range >> access >> offset >> device >> inode >> std::ws;
    std::getline(words, path);  // which may have spaces
    if (path.substr(path.rfind('/') + 1).starts_with("libgpumem.so")) user.has_library = true;
    if (!path.starts_with(kMemoryFile)) continue;
    const size_t dash = range.find('-');
    const auto begin = number_of(std::string_view(range).substr(0, dash), 16);
    const auto end = number_of(std::string_view(range).substr(dash + 1), 16);
    const auto from = number_of(offset, 16);
    const auto file = number_of(inode);
    if (dash == std::string::npos || !begin || !end || !from || !file) continue;
    uint64_t& bytes = user.files[*file];
    bytes = std::max(bytes, *from + (*end - *begin));
  }
  return true;
}

bool look_at_descriptors(User& user, Sockets& sockets) {
  const std::string folder = folder_of(user.process) + "/fd/";
  std::vector<std::string> numbers;
  if (!list_folder(folder, &numbers)) return !is_refused();
  for (const std::string& number : numbers) {
    std::string target(4096, '\0');
    const ssize_t size = readlink((folder + number).c_str(), target.data(), target.size());
    if (size < 0) continue;  // closed meanwhile
    target.resize(static_cast<size_t>(size));
    if (target.starts_with("/dev/nvidia")) ++user.of_nvidia;
    struct stat status = {};
    if (target.starts_with(kMemoryFile) && stat((folder + number).c_str(), &status) == 0)
      user.files[status.st_ino] = static_cast<uint64_t>(status.st_size);
    constexpr std::string_view kSocket = "socket:[";
    if (!target.starts_with(kSocket)) continue;
    const auto inode =
        number_of(std::string_view(target).substr(kSocket.size(), target.size() - kSocket.size() - 1));
    const auto known = inode ? sockets.find(*inode) : sockets.end();
    if (known == sockets.end()) continue;
    user.instances.push_back(known->second);
    sockets.erase(known);
  }
  return true;
}

std::string user_of(uint64_t process) {
  struct stat status = {};
  if (stat(folder_of(process).c_str(), &status) != 0) return "?";
  const passwd* const entry = getpwuid(status.st_uid);
  return entry != nullptr ? entry->pw_name : std::to_string(status.st_uid);
}

struct Machine {
  std::vector<User> users;
  Gpus gpus;
  uint64_t closed = 0;    // processes that could not be looked at
  uint64_t homeless = 0;  // instances whose process is not known
};

void look_at_gpu_memory(const Gpus& gpus, User& user) {
  for (const Gpu& gpu : gpus.list) {
    const auto found = gpu.bytes_by_process.find(user.process);
    if (found == gpu.bytes_by_process.end()) continue;
    user.has_gpu = true;
    user.gpu_bytes =
        user.gpu_bytes && found->second ? std::optional(*user.gpu_bytes + *found->second) : std::nullopt;
  }
}

// Whether numbers of processes are those of the whole system, as the driver may give them. The number is that
// of the first namespace in Linux (PROC_PID_INIT_INO).
bool sees_whole_system() {
  struct stat status = {};
  return stat("/proc/self/ns/pid", &status) == 0 && status.st_ino == 4026531836;
}

// Processes with memory of a GPU that /proc does not show, such as those outside of a container.
void add_unseen(Machine& machine) {
  std::set<uint64_t> processes;
  for (const Gpu& gpu : machine.gpus.list) {
    for (const auto& [process, bytes] : gpu.bytes_by_process)
      processes.insert(process);
  }
  for (const User& user : machine.users)
    processes.erase(user.process);
  for (const uint64_t process : processes) {
    User user;
    user.process = process;
    user.seen = false;
    look_at_gpu_memory(machine.gpus, user);
    machine.users.push_back(std::move(user));
  }
}

Machine look_at_machine() {
  Machine machine;
  machine.gpus = look_at_gpus();
  const bool whole = sees_whole_system();
  Sockets sockets = find_sockets();
  std::vector<std::string> names;
  if (!list_folder("/proc", &names)) throw std::runtime_error("/proc cannot be read: is it mounted?");
  for (const std::string& name : names) {
    const auto process = number_of(name);
    if (!process || *process == static_cast<uint64_t>(getpid())) continue;
    const std::optional<ProcessNow> now = look_at_process(*process);
    if (!now || now->of_kernel) continue;
    User user;
    user.process = *process;
    user.command = now->command;
    const bool open = look_at_maps(user) && look_at_descriptors(user, sockets);
    if (!open) ++machine.closed;
    // Within a namespace another process may have the number that the driver means.
    if (whole || !open || user.of_nvidia != 0) look_at_gpu_memory(machine.gpus, user);
    if (!user.of_gpumem() && user.of_nvidia == 0 && !user.has_gpu) continue;
    user.user = user_of(*process);
    machine.users.push_back(std::move(user));
  }
  add_unseen(machine);
  std::sort(machine.users.begin(), machine.users.end(),
            [](const User& a, const User& b) { return a.process < b.process; });
  machine.homeless = sockets.size();
  return machine;
}

uint64_t bytes_of(const Files& files) {
  uint64_t bytes = 0;
  for (const auto& [inode, size] : files)
    bytes += size;
  return bytes;
}

Files files_of_all(const std::vector<User>& users) {
  Files all;
  for (const User& user : users) {
    for (const auto& [inode, size] : user.files)
      all[inode] = std::max(all[inode], size);
  }
  return all;
}

// A hub that has a name, and what is published in it; or why that is not known.
struct NamedHub {
  std::string path;
  gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
  std::vector<gpumem_entry_info> entries;
  std::string problem;
};

std::string folder_of_names() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && runtime[0] == '/' ? std::string(runtime) + "/gpumem"
                                                 : "/tmp/gpumem-" + std::to_string(geteuid());
}

std::vector<NamedHub> look_at_hubs(const std::string& folder) {
  constexpr uint64_t kAnswer = 1'000'000'000;  // nanoseconds: one that is stopped must not hold up the rest
  std::vector<std::string> names;
  list_folder(folder, &names);
  std::vector<NamedHub> hubs;
  for (const std::string& name : names) {
    NamedHub hub;
    hub.path = folder + '/' + name;
    struct stat status = {};
    if (lstat(hub.path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
    if (name[0] == '@') continue;  // which would be an abstract address
    try {
      // By its name, so that the library checks whose folder it is.
      const Link link =
          connect_to_hub(open_instance("host"), {.path = name, .token_file = std::nullopt}, kAnswer);
      hub.info = link_info(link);
      hub.entries = entries_of(link);
    } catch (const CallFailed& problem) {
      hub.problem =
          problem.status() == GPUMEM_ERROR_NOT_FOUND ? "nobody listens there any more" : problem.what();
    }
    hubs.push_back(std::move(hub));
  }
  return hubs;
}

uint64_t bytes_of(const NamedHub& hub) {
  uint64_t bytes = 0;
  for (const gpumem_entry_info& entry : hub.entries)
    bytes += entry.size;
  return bytes;
}

void print_gpus(const Machine& machine) {
  using enum Table::Align;
  const Gpus& gpus = machine.gpus;
  // Where nobody has one open, there may be none.
  const bool wanted = std::any_of(machine.users.begin(), machine.users.end(),
                                  [](const User& user) { return user.of_nvidia != 0; });
  if (gpus.list.empty() && !wanted) return;
  std::cout << '\n' << wrapped("GPUs");
  Table table({"GPU", "MEMORY", "FREE", "NAME"}, {kRight, kRight, kRight});
  for (const Gpu& gpu : gpus.list) {
    table.add(
        {std::to_string(gpu.number), size_text(gpu.total_bytes), size_text(gpu.free_bytes), shown(gpu.name)});
  }
  if (!gpus.list.empty()) std::cout << table.text();
  if (!gpus.problem.empty()) std::cout << wrapped("incomplete: " + shown(gpus.problem), "  ");
}

void print_machine(const Machine& machine, const std::string& folder, const std::vector<NamedHub>& hubs) {
  using enum Table::Align;
  std::cout << wrapped("Processes that use gpumem or a GPU of NVIDIA");
  Table table({"PROCESS", "USER", "INSTANCES", "MEMORY FILES", "NVIDIA", "GPU MEMORY", "COMMAND"},
              {kRight, kLeft, kRight, kRight, kRight, kRight});
  for (const User& user : machine.users) {
    const auto or_dash = [](uint64_t count) { return count == 0 ? "-" : std::to_string(count); };
    table.add(
        {std::to_string(user.process), user.seen ? shown(user.user) : "?", or_dash(user.instances.size()),
         user.files.empty() ? "-"
                            : std::to_string(user.files.size()) + ", " + size_text(bytes_of(user.files)),
         or_dash(user.of_nvidia),
         !user.has_gpu    ? "-"
         : user.gpu_bytes ? size_text(*user.gpu_bytes)
                          : "?",
         !user.seen ? "a process that the system does not show"
                    : shown(user.command) + (user.of_gpumem() ? "" : " (without gpumem)")});
  }
  std::cout << (machine.users.empty() ? "  none\n" : table.text());
  if (const Files all = files_of_all(machine.users); !all.empty()) {
    std::cout << wrapped(counted(all.size(), "memory file", "memory files") + " of gpumem, " +
                             size_text(bytes_of(all)) + ", each counted once",
                         "  ");
  }
  print_gpus(machine);
  std::cout << '\n' << filled({"Hubs and keepers in", shown(folder)});
  for (const NamedHub& hub : hubs) {
    if (!hub.problem.empty()) {
      std::cout << wrapped(shown(hub.path) + ": " + shown(hub.problem), "  ");
      continue;
    }
    std::cout << wrapped(shown(hub.path) + ": " + (hub.info.keeper != 0 ? "keeper" : "hub") +
                             (hub.info.pid != 0 ? ", process " + std::to_string(hub.info.pid) : "") + ", " +
                             counted(hub.entries.size(), "version", "versions") + " of " +
                             size_text(bytes_of(hub)),
                         "  ");
  }
  if (hubs.empty()) std::cout << "  none\n";
  if (machine.closed == 0 && machine.homeless == 0) return;
  std::cout << '\n';
  if (machine.closed != 0)
    std::cout << wrapped(counted(machine.closed, "process", "processes") +
                         " of other users, or protected, could not be looked at" +
                         (geteuid() == 0 ? "." : "; root can."));
  if (machine.homeless != 0)
    std::cout << wrapped("The processes of " + counted(machine.homeless, "instance", "instances") +
                         " are not shown here.");
}

void print_machine_json(const Machine& machine, const std::string& folder,
                        const std::vector<NamedHub>& hubs) {
  Json json = {{"processes", Json::array()},
               {"memory_file_bytes", bytes_of(files_of_all(machine.users))},
               {"folder", folder},
               {"hubs", Json::array()},
               {"gpus", Json::array()},
               {"gpu_problem", machine.gpus.problem.empty() ? Json() : Json(machine.gpus.problem)},
               {"not_looked_at", machine.closed},
               {"instances_of_unknown_processes", machine.homeless}};
  for (const User& user : machine.users) {
    const auto if_seen = [&user](Json value) { return user.seen ? std::move(value) : Json(); };
    json["processes"].push_back({{"pid", user.process},
                                 {"user", if_seen(user.user)},
                                 {"command", if_seen(user.command)},
                                 {"gpumem", if_seen(user.of_gpumem())},
                                 {"instances", if_seen(user.instances)},
                                 {"memory_files", if_seen(user.files.size())},
                                 {"memory_file_bytes", if_seen(bytes_of(user.files))},
                                 {"nvidia_device_files", if_seen(user.of_nvidia)},
                                 {"gpu_bytes", user.gpu_bytes ? Json(*user.gpu_bytes) : Json()}});
  }
  for (const Gpu& gpu : machine.gpus.list) {
    json["gpus"].push_back({{"number", gpu.number},
                            {"name", gpu.name},
                            {"total_bytes", gpu.total_bytes},
                            {"free_bytes", gpu.free_bytes}});
  }
  for (const NamedHub& hub : hubs) {
    const bool known = hub.problem.empty();
    json["hubs"].push_back({{"path", hub.path},
                            {"problem", known ? Json() : Json(hub.problem)},
                            {"keeper", known ? Json(hub.info.keeper != 0) : Json()},
                            {"pid", known && hub.info.pid != 0 ? Json(hub.info.pid) : Json()},
                            {"versions", known ? Json(hub.entries.size()) : Json()},
                            {"bytes", known ? Json(bytes_of(hub)) : Json()}});
  }
  print_json(json);
}

}  // namespace

std::optional<ProcessNow> look_at_process(uint64_t process) {
  constexpr uint64_t kOfKernel = 0x00200000;  // PF_KTHREAD
  constexpr size_t kState = 0, kFlags = 6, kStartTime = 19;
  std::ifstream file(folder_of(process) + "/stat");
  std::string text;
  if (!std::getline(file, text, '\0')) return std::nullopt;
  // The command is in brackets, and may have brackets and spaces itself.
  const size_t begin = text.find('(');
  const size_t end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  std::istringstream rest(text.substr(end + 1));
  std::vector<std::string> words;
  for (std::string word; rest >> word;)
    words.push_back(word);
  if (words.size() <= kStartTime || words[kState] == "Z" || words[kState] == "X") return std::nullopt;
  return ProcessNow{text.substr(begin + 1, end - begin - 1), number_of(words[kStartTime]).value_or(0),
                    (number_of(words[kFlags]).value_or(0) & kOfKernel) != 0};
}

int why_machine(const WhyOptions& options) {
  const std::string folder = folder_of_names();
  // First, because asking hubs opens sockets here.
  const Machine machine = look_at_machine();
  (options.json ? print_machine_json : print_machine)(machine, folder, look_at_hubs(folder));
  return kExitSuccess;
}

}  // namespace gpumem::cli
