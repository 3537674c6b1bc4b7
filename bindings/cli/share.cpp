// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem share: the bytes of a file in a buffer, published under a name. gpumem attach: the same bytes in
// another process, verified by the fingerprint under which they were published.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "commands.h"
#include "file.h"
#include "interrupt.h"
#include "library.h"
#include "output.h"
#include "path.h"

namespace gpumem::cli {

namespace {

constexpr uint64_t kChunk = uint64_t{8} << 20;
constexpr std::chrono::milliseconds kPause{50};  // so that an interrupt is noticed soon

// What a fingerprint holds: XXH3 of the bytes, how many they are (memory has whole pages), and who wrote it.
struct Fingerprint {
  static constexpr std::array<uint8_t, 8> kMark = {'g', 'p', 'u', 'm', 'e', 'm', ' ', '1'};
  static constexpr size_t kSizeAt = 16;
  static constexpr size_t kMarkAt = 24;

  Hash::Bytes hash{};
  uint64_t size = 0;

  std::string text() const { return hex(hash.data(), hash.size()); }

  void write(uint8_t (&bytes)[32]) const {
    std::copy(hash.begin(), hash.end(), bytes);
    for (size_t i = 0; i < sizeof size; ++i)
      bytes[kSizeAt + i] = static_cast<uint8_t>(size >> (8 * i));
    std::copy(kMark.begin(), kMark.end(), bytes + kMarkAt);
  }

  // None if another program has written it.
  static std::optional<Fingerprint> read(const uint8_t (&bytes)[32]) {
    if (!std::equal(kMark.begin(), kMark.end(), bytes + kMarkAt)) return std::nullopt;
    Fingerprint result;
    std::copy_n(bytes, result.hash.size(), result.hash.begin());
    for (size_t i = 0; i < sizeof size; ++i)
      result.size |= uint64_t{bytes[kSizeAt + i]} << (8 * i);
    return result;
  }
};

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

void share_file(gpumem_instance instance, const ShareOptions& options) {
  // The hub comes first, so that nothing is read if it cannot be had.
  Hub hub;
  Link keeper;
  if (options.keeper) {
    keeper = connect_to_hub(instance, options.keeper);
  } else {
    hub = open_hub(instance, options.hub, 0);
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
  std::cout << shown(options.name) << " version " << version << ": " << shared.fingerprint().size
            << " bytes of " << shown(options.file) << ", XXH3 " << shared.fingerprint().text() << ", at "
            << shown(path) << '\n';
  flush_output();
  wait_for_interrupt(options.wait_stdin ? STDIN_FILENO : -1);
  hub = Hub();  // before the memory that it publishes
}

// What attach waits for: a time in the future.
class Deadline {
 public:
  explicit Deadline(uint32_t seconds) : end_(Clock::now() + std::chrono::seconds(seconds)) {}
  bool passed() const { return Clock::now() >= end_; }
  // Until then, but no longer than a pause.
  std::chrono::nanoseconds pause() const {
    return std::clamp<std::chrono::nanoseconds>(end_ - Clock::now(), std::chrono::nanoseconds(0), kPause);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

Link wait_for_hub(gpumem_instance instance, const AttachOptions& options, const Deadline& deadline) {
  for (;;) {
    stop_if_interrupted();
    const bool last = deadline.passed();
    try {
      return connect_to_hub(instance, options.hub);
    } catch (const CallFailed& problem) {
      if (problem.status() != GPUMEM_ERROR_NOT_FOUND || last) throw;
    }
    std::this_thread::sleep_for(deadline.pause());
  }
}

gpumem_entry_info wait_for_name(const Link& link, const AttachOptions& options, const Deadline& deadline) {
  for (;;) {
    stop_if_interrupted();
    const bool last = deadline.passed();
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    gpumem_error error = GPUMEM_ERROR_INIT;
    const gpumem_status status = gpumem_link_wait(
        link.get(), options.name.c_str(), 0, static_cast<uint64_t>(deadline.pause().count()), &entry, &error);
    if (GPUMEM_FAILED(status)) throw CallFailed(error);
    if (status != GPUMEM_NOT_READY) return entry;
    if (last) {
      throw std::runtime_error("there is no " + shown(options.name) + " at " + shown(link_info(link).path) +
                               " after " + std::to_string(options.timeout) +
                               " s (gpumem hub list shows what is there)");
    }
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
  const Link link = wait_for_hub(instance, options, deadline);
  const gpumem_entry_info entry = wait_for_name(link, options, deadline);
  const std::string name = shown(entry.name) + " version " + std::to_string(entry.version);
  const std::optional<Fingerprint> fingerprint = Fingerprint::read(entry.fingerprint);
  if (!fingerprint) {
    throw std::runtime_error(name + " has no fingerprint of gpumem share, so its bytes cannot be verified");
  }

  gpumem_fetch_desc fetch_desc = GPUMEM_FETCH_DESC_INIT;
  fetch_desc.version = entry.version;
  gpumem_share_handle handle{};
  call(gpumem_link_fetch, link.get(), options.name.c_str(), &fetch_desc, &handle);
  gpumem_import_desc import_desc = GPUMEM_IMPORT_DESC_INIT;
  import_desc.access = GPUMEM_ACCESS_READ;
  import_desc.name = "attach";
  void* pointer = nullptr;
  gpumem_memory imported = nullptr;
  call(gpumem_share_import, instance, &handle, nullptr, uint32_t{0}, &import_desc, &pointer, &imported);
  const Memory memory(imported);
  const auto* bytes = static_cast<const std::byte*>(pointer);

  const auto verify = [&](const Hash& hash) {
    if (hash.bytes() == fingerprint->hash) return;
    throw std::runtime_error(name + " has other bytes than were published: XXH3 " + hash.text() + ", not " +
                             fingerprint->text());
  };
  // Wrong bytes leave an old file as it was. The second look is for a publisher that writes meanwhile.
  verify(read_all(instance, bytes, fingerprint->size, nullptr));
  if (options.file) {
    OutputFile file(*options.file);
    verify(read_all(instance, bytes, fingerprint->size, &file));
    file.finish();
  }
  std::cout << name << ": " << fingerprint->size << " bytes verified, XXH3 " << fingerprint->text();
  if (options.file) std::cout << ", written to " << shown(*options.file);
  std::cout << '\n';
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
