// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem share: the bytes of a file in a buffer, published under a name. gpumem attach: the same bytes in
// another process, verified by the fingerprint under which they were published.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "commands.h"
#include "file.h"
#include "fingerprint.h"
#include "interrupt.h"
#include "library.h"
#include "output.h"
#include "path.h"

namespace gpumem::cli {

namespace {

constexpr uint64_t kChunk = uint64_t{8} << 20;
constexpr std::chrono::milliseconds kPause{50};  // so that an interrupt is noticed soon
constexpr std::chrono::milliseconds kLeastAnswer{500};
constexpr std::chrono::seconds kMostAnswer{5};

// A buffer with the bytes of the file, as others may import it.
class SharedFile {
 public:
  SharedFile(gpumem_instance instance, const ShareOptions& options) {
    InputFile file(options.file);
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = desc.reserve = file.size();
    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    desc.name = "share";
    gpumem_buffer buffer = nullptr;
    call(gpumem_buffer_create, find_device(instance, options.device), &desc, &buffer);
    buffer_ = Owner<gpumem_buffer, gpumem_buffer_destroy>(buffer);
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    call(gpumem_buffer_get_info, buffer, &info);

    Hash hash;
    const Pages chunk(kChunk);
    for (uint64_t offset = 0; offset < file.size(); offset += kChunk) {
      const uint64_t size = std::min(kChunk, file.size() - offset);
      file.read(chunk.get(), size);
      hash.add(chunk.get(), size);
      call(gpumem_copy, instance, static_cast<std::byte*>(info.base) + offset, chunk.get(), size, nullptr);
    }
    fingerprint_ = {hash.bytes(), file.size()};

    gpumem_export_desc export_desc = GPUMEM_EXPORT_DESC_INIT;
    export_desc.way = GPUMEM_SHARE_WAY_POSIX_FD;
    export_desc.access = GPUMEM_ACCESS_READ;
    call(gpumem_share_export, instance, info.base, &export_desc, &handle_);
  }

  const gpumem_share_handle& handle() const { return handle_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }

 private:
  Owner<gpumem_buffer, gpumem_buffer_destroy> buffer_;
  Fingerprint fingerprint_;
  gpumem_share_handle handle_{};
};

// Ends the waiting when the keeper ends.
class KeeperWatch {
 public:
  KeeperWatch(Link& keeper, const std::string& name) : keeper_(keeper) {
    thread_ = std::thread([this, name, link = keeper.get()] {
      // No name has such a version, so this waits for the end of one side.
      const gpumem_status status =
          gpumem_link_wait(link, name.c_str(), UINT64_MAX, GPUMEM_TIMEOUT_INFINITE, nullptr, nullptr);
      ended_ = status == GPUMEM_ERROR_PEER_GONE;
      end_waiting();
    });
  }
  KeeperWatch(const KeeperWatch&) = delete;
  KeeperWatch& operator=(const KeeperWatch&) = delete;
  ~KeeperWatch() { stop(); }

  // Hangs up. Whether the keeper had ended before.
  bool stop() {
    keeper_ = Link();
    if (thread_.joinable()) thread_.join();
    return ended_;
  }

 private:
  Link& keeper_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

Hub open_own_hub(gpumem_instance instance, const HubPlace& place) {
  try {
    return open_hub(instance, place, 0, 0);
  } catch (const CallFailed& problem) {
    if (problem.status() != GPUMEM_ERROR_ALREADY_EXISTS) throw;
    throw std::runtime_error(
        std::string(problem.what()) +
        " (to share several files, start gpumem keep and pass --keep, or pass another path with --hub)");
  }
}

void share_file(gpumem_instance instance, const ShareOptions& options) {
  // The hub comes first, so that nothing is read if it cannot be had.
  Hub hub;
  Link keeper;
  if (options.in_keeper) {
    keeper = connect_to_hub(instance, options.hub);
    require_keeper(keeper);
  } else {
    hub = open_own_hub(instance, options.hub);
  }
  const std::string path = keeper ? link_info(keeper).path : hub_info(hub).path;

  const SharedFile shared(instance, options);
  gpumem_publish_desc desc = GPUMEM_PUBLISH_DESC_INIT;
  shared.fingerprint().write(desc.fingerprint);
  uint64_t version = 0;
  if (keeper) {
    call(gpumem_link_publish, keeper.get(), options.name.c_str(), &shared.handle(), &desc, &version);
  } else {
    call(gpumem_hub_publish, hub.get(), options.name.c_str(), &shared.handle(), &desc, &version);
  }
  const bool stays = !keeper || options.stay || options.wait_stdin;  // otherwise the keeper has the bytes
  std::cout << filled({shown(options.name) + " version " + std::to_string(version) + ':',
                       std::to_string(shared.fingerprint().size) + " bytes", "of", shown(options.file) + ',',
                       "XXH3 " + shared.fingerprint().text() + ',', "at", shown(path)});
  if (stays) {
    std::cout << wrapped(until_interrupted() +
                         (options.wait_stdin ? ", or until the standard input ends" : "") +
                         (keeper ? ", or until the keeper ends" : "") + '.');
  }
  flush_output();
  if (!stays) return;
  std::optional<KeeperWatch> watch;
  if (keeper) watch.emplace(keeper, options.name);
  wait_for_interrupt(options.wait_stdin ? STDIN_FILENO : -1);
  if (watch && watch->stop()) {
    throw std::runtime_error("the keeper at " + shown(path) + " has ended, and with it " +
                             shown(options.name) + " version " + std::to_string(version) +
                             ", unless it has a store (gpumem keep --store)");
  }
  hub = Hub();  // before the memory that it publishes
}

// What attach waits for: a time in the future.
class Deadline {
 public:
  explicit Deadline(uint32_t seconds) : end_(Clock::now() + std::chrono::seconds(seconds)) {}
  bool passed() const { return Clock::now() >= end_; }
  // Until then, but no longer than a pause.
  std::chrono::nanoseconds pause() const { return left(std::chrono::nanoseconds(0), kPause); }
  // How long another process may take for an answer.
  uint64_t for_answer() const { return static_cast<uint64_t>(left(kLeastAnswer, kMostAnswer).count()); }

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::nanoseconds left(std::chrono::nanoseconds least, std::chrono::nanoseconds most) const {
    return std::clamp<std::chrono::nanoseconds>(end_ - Clock::now(), least, most);
  }

  Clock::time_point end_;
};

Link wait_for_hub(gpumem_instance instance, const AttachOptions& options, const Deadline& deadline) {
  for (;;) {
    stop_if_interrupted();
    const bool last = deadline.passed();
    try {
      return connect_to_hub(instance, options.hub, deadline.for_answer());
    } catch (const CallFailed& problem) {
      if (problem.status() != GPUMEM_ERROR_NOT_FOUND || last) throw;
    }
    std::this_thread::sleep_for(deadline.pause());
  }
}

std::string list_command(const AttachOptions& options) {
  const std::string command = "gpumem hub list";
  return options.hub.path ? command + " --hub " + shown(*options.hub.path) : command;
}

// The version that is wanted, where a newer one is there.
gpumem_entry_info find_version(const Link& link, const AttachOptions& options) {
  for (const gpumem_entry_info& entry : entries_of(link)) {
    if (entry.name == options.name && entry.version == options.version) return entry;
  }
  throw std::runtime_error("there is no " + shown(options.name) + " version " +
                           std::to_string(options.version) + " at " + shown(link_info(link).path) +
                           " any more, but newer ones (" + list_command(options) + " shows them)");
}

gpumem_entry_info wait_for_name(gpumem_instance instance, const Link& link, const AttachOptions& options,
                                const Deadline& deadline) {
  const uint64_t after = options.version == 0 ? 0 : options.version - 1;
  do {
    stop_if_interrupted();
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    gpumem_error error = GPUMEM_ERROR_INIT;
    const gpumem_status status =
        gpumem_link_wait(link.get(), options.name.c_str(), after,
                         static_cast<uint64_t>(deadline.pause().count()), &entry, &error);
    if (GPUMEM_FAILED(status)) throw CallFailed(error);
    if (status != GPUMEM_NOT_READY)
      return options.version == 0 || entry.version == options.version ? entry : find_version(link, options);
  } while (!deadline.passed());
  // A hub that has been stopped looks the same to one who waits. This fails if it does not answer.
  connect_to_hub(instance, options.hub, deadline.for_answer());
  const std::string version = options.version == 0 ? "" : " version " + std::to_string(options.version);
  throw std::runtime_error("there is no " + shown(options.name) + version + " at " +
                           shown(link_info(link).path) + " after " + std::to_string(options.timeout) +
                           " s (" + list_command(options) + " shows what is there)");
}

struct Attached {
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  Fingerprint fingerprint;
  Memory memory;
  const std::byte* bytes = nullptr;

  std::string name() const { return shown(entry.name) + " version " + std::to_string(entry.version); }
};

Attached import_name(gpumem_instance instance, const AttachOptions& options, const Deadline& deadline) {
  const Link link = wait_for_hub(instance, options, deadline);
  Attached found;
  found.entry = wait_for_name(instance, link, options, deadline);
  if (found.entry.type != GPUMEM_SHARE_TYPE_MEMORY) {
    throw std::runtime_error(found.name() + " is of type " + type_name(found.entry.type) +
                             ", not memory, and cannot be attached to");
  }
  const std::optional<Fingerprint> fingerprint = Fingerprint::read(found.entry.fingerprint);
  if (!fingerprint) {
    throw std::runtime_error(found.name() +
                             " has no fingerprint of gpumem share, so its bytes cannot be verified");
  }
  found.fingerprint = *fingerprint;

  gpumem_fetch_desc fetch_desc = GPUMEM_FETCH_DESC_INIT;
  fetch_desc.version = found.entry.version;
  gpumem_share_handle handle{};
  call(gpumem_link_fetch, link.get(), options.name.c_str(), &fetch_desc, &handle);
  gpumem_import_desc import_desc = GPUMEM_IMPORT_DESC_INIT;
  import_desc.access = GPUMEM_ACCESS_READ;
  import_desc.timeout_ns = deadline.for_answer();
  import_desc.name = "attach";
  void* pointer = nullptr;
  gpumem_memory imported = nullptr;
  call(gpumem_share_import, instance, &handle, nullptr, uint32_t{0}, &import_desc, &pointer, &imported);
  found.memory = Memory(imported);
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  call(gpumem_memory_get_info, imported, &info);
  if (found.fingerprint.size > info.size) {
    throw std::runtime_error(found.name() + " has memory of " + std::to_string(info.size) +
                             " bytes, and its fingerprint is of " + std::to_string(found.fingerprint.size) +
                             ": what published it is not gpumem share, or lies");
  }
  found.bytes = static_cast<const std::byte*>(pointer);
  return found;
}

// A hub may end meanwhile, and begin again.
Attached wait_and_import(gpumem_instance instance, const AttachOptions& options, const Deadline& deadline) {
  for (;;) {
    const bool last = deadline.passed();
    try {
      return import_name(instance, options, deadline);
    } catch (const CallFailed& problem) {
      if (problem.status() != GPUMEM_ERROR_PEER_GONE || last) throw;
    }
    std::this_thread::sleep_for(deadline.pause());
  }
}

// Reads the memory once, and writes it to the file unless that is null; returns the hash of what it read.
Hash read_all(gpumem_instance instance, const std::byte* bytes, uint64_t size, OutputFile* file) {
  Hash hash;
  const Pages chunk(kChunk);
  for (uint64_t offset = 0; offset < size; offset += kChunk) {
    stop_if_interrupted();
    const uint64_t part = std::min(kChunk, size - offset);
    call(gpumem_copy, instance, chunk.get(), bytes + offset, part, nullptr);
    hash.add(chunk.get(), part);
    if (file != nullptr) file->write(chunk.get(), part);
  }
  return hash;
}

void attach_file(gpumem_instance instance, const AttachOptions& options) {
  const Deadline deadline(options.timeout);
  const Attached found = wait_and_import(instance, options, deadline);
  const Fingerprint& fingerprint = found.fingerprint;

  const auto verify = [&](const Hash& hash) {
    if (hash.bytes() == fingerprint.hash) return;
    throw std::runtime_error(found.name() + " has other bytes than were published: XXH3 " + hash.text() +
                             ", not " + fingerprint.text());
  };
  // Wrong bytes leave an old file as it was. The second look is for a publisher that writes meanwhile.
  verify(read_all(instance, found.bytes, fingerprint.size, nullptr));
  if (options.file) {
    OutputFile file(*options.file);
    verify(read_all(instance, found.bytes, fingerprint.size, &file));
    file.finish();
  }
  std::vector<std::string> parts = {found.name() + ':', std::to_string(fingerprint.size) + " bytes verified,",
                                    "XXH3 " + fingerprint.text()};
  if (options.file) {
    parts.back() += ',';
    parts.insert(parts.end(), {"written to", shown(*options.file)});
  }
  std::cout << filled(parts);
}

// Runs until done or interrupted; nothing may be left in either case.
template <typename Options>
int run_freeing(const Options& options, void (*run)(gpumem_instance, const Options&)) {
  watch_signals();
  gpumem_instance instance = open_instance(options.backend);
  try {
    run(instance, options);
  } catch (const Interrupted&) {
    require_nothing_lives(instance);
    throw;
  }
  require_nothing_lives(instance);
  return kExitSuccess;
}

}  // namespace

int share(const ShareOptions& options) { return run_freeing(options, share_file); }

int attach(const AttachOptions& options) { return run_freeing(options, attach_file); }

}  // namespace gpumem::cli
