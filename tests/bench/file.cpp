// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "calls.h"

namespace bench {
namespace {

constexpr uint64_t kSlot = 16 * kMiB;  // of the loop
constexpr uint64_t kPiece = 2 * kMiB;  // of a thread that only reads
constexpr uint32_t kThreads = 12;

// A file on the disk with bytes that tell where they stand. It has no name.
class File {
 public:
  explicit File(uint64_t size) {
    std::string path = std::filesystem::temp_directory_path() / "gpumem-bench-XXXXXX";
    file_ = mkostemp(path.data(), O_CLOEXEC);
    if (file_ < 0) fail("mkostemp of " + path);
    unlink(path.c_str());
    std::vector<uint64_t> words(kSlot / 8);
    for (uint64_t offset = 0; offset < size; offset += kSlot) {
      for (uint64_t i = 0; i < words.size(); ++i)
        words[i] = (offset + i) * 0x9E3779B97F4A7C15;
      put(words.data(), offset, std::min(kSlot, size - offset));
    }
    if (fdatasync(file_) != 0) fail("fdatasync");
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(file_); }

  int get() const { return file_; }
  void put(const void* bytes, uint64_t offset, uint64_t size) const {
    if (pwrite(file_, bytes, size, static_cast<off_t>(offset)) != static_cast<ssize_t>(size)) fail("pwrite");
  }
  void read(void* bytes, uint64_t offset, uint64_t size) const {
    if (pread(file_, bytes, size, static_cast<off_t>(offset)) != static_cast<ssize_t>(size)) fail("pread");
  }
  char* map(uint64_t size) const {
    void* const mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, file_, 0);
    if (mapping == MAP_FAILED) fail("mmap of the file");
    return static_cast<char*>(mapping);
  }
  // Out of the page cache, and out of the mapping, which would keep it there.
  void drop(char* mapping, uint64_t size) const {
    if (madvise(mapping, size, MADV_DONTNEED) != 0) fail("madvise");
    if (fdatasync(file_) != 0 || posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED) != 0) fail("posix_fadvise");
  }

 private:
  int file_ = -1;
};

double seconds_of(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Case {
  const char* name;
  bool cold;
  gpumem_file_flags prefer;
};

class FileBench {
 public:
  FileBench(const Scene& scene, uint64_t size)
      : scene_(scene), size_(size), file_(size), mapping_(file_.map(size)) {
    must(gpumem_malloc, scene.device, GPUMEM_KIND_DEVICE, size, &device_);
    pinned_ = static_cast<char*>(scene.raw.allocate(GPUMEM_KIND_PINNED, 0, kThreads * kPiece));
    slot_ = static_cast<char*>(scene.raw.allocate(GPUMEM_KIND_PINNED, 0, kSlot));
    raw_device_ = scene.raw.allocate(GPUMEM_KIND_DEVICE, 0, kSlot);
    check();
  }
  FileBench(const FileBench&) = delete;
  FileBench& operator=(const FileBench&) = delete;
  ~FileBench() {
    munmap(mapping_, size_);
    scene_.raw.free(GPUMEM_KIND_DEVICE, raw_device_, kSlot);
    scene_.raw.free(GPUMEM_KIND_PINNED, slot_, kSlot);
    scene_.raw.free(GPUMEM_KIND_PINNED, pinned_, kThreads * kPiece);
    must(gpumem_free, scene_.instance, device_);
  }

  void run() {
    Runner& runner = scene_.runner;
    for (const Case& each :
         {Case{"warm", false, 0}, Case{"cold", true, 0}, Case{"direct", true, GPUMEM_FILE_DIRECT}}) {
      const auto clocked = [&](const Call& call) {
        return [&, call] {
          if (each.cold) file_.drop(mapping_, size_);
          return seconds_of(call);
        };
      };
      const auto ours = clocked([&] { copy(GPUMEM_FILE_DIRECTION_TO_MEMORY, device_, each.prefer); });
      const auto row = [&](const char* beside, const Call& other) {
        const std::string name =
            std::string("file/to_device/") + each.name + "/" + beside + "/" + text_of(size_);
        if (runner.wanted(name)) runner.clocked_rate(name, size_, ours, clocked(other));
      };
      row("beside_loop", [&] { loop(); });
      row("beside_read_alone", [&] { read_alone(); });
      row("beside_pinned", [&] { copy_alone(); });
    }
    for (const bool cold : {false, true}) {
      const auto clocked = [&](const Call& call) {
        return [&, call] {
          if (cold) file_.drop(mapping_, size_);
          return seconds_of(call);
        };
      };
      const std::string name = std::string("file/to_device/mapped_") + (cold ? "cold" : "warm") +
                               "/beside_driver/" + text_of(size_);
      if (!runner.wanted(name)) continue;
      if (!cold) read_alone();  // the rows before have dropped it
      runner.clocked_rate(
          name, size_, clocked([&] {
            must_succeed(gpumem_copy(scene_.instance, device_, mapping_, size_, nullptr, nullptr));
          }),
          clocked([&] {
            for (uint64_t at = 0; at < size_; at += kSlot)
              scene_.raw.copy(raw_device_, mapping_ + at, std::min(kSlot, size_ - at));
          }));
    }
    const std::string name = "file/from_device/warm/beside_loop/" + text_of(size_);
    if (!runner.wanted(name)) return;
    runner.rate(
        name, size_, [&] { copy(GPUMEM_FILE_DIRECTION_FROM_MEMORY, device_, 0); },
        [&] {
          for (uint64_t at = 0; at < size_; at += kSlot) {
            const uint64_t bytes = std::min(kSlot, size_ - at);
            scene_.raw.copy(slot_, raw_device_, bytes);
            file_.put(slot_, at, bytes);
          }
        });
  }

 private:
  void copy(gpumem_file_direction direction, void* memory, gpumem_file_flags prefer) {
    gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
    desc.file_descriptor = file_.get();
    desc.direction = direction;
    desc.pointer = memory;
    desc.size = size_;
    desc.prefer = prefer;
    must_succeed(gpumem_copy_file(scene_.instance, &desc, nullptr, nullptr));
  }
  void loop() {
    for (uint64_t at = 0; at < size_; at += kSlot) {
      const uint64_t bytes = std::min(kSlot, size_ - at);
      file_.read(slot_, at, bytes);
      scene_.raw.copy(raw_device_, slot_, bytes);
    }
  }
  void read_alone() {
    std::atomic<uint64_t> next{0};
    std::vector<std::thread> crew;
    for (uint32_t i = 0; i < kThreads; ++i) {
      crew.emplace_back([&, room = pinned_ + i * kPiece] {
        for (uint64_t at = next.fetch_add(kPiece); at < size_; at = next.fetch_add(kPiece))
          file_.read(room, at, std::min(kPiece, size_ - at));
      });
    }
    for (std::thread& thread : crew)
      thread.join();
  }
  void copy_alone() {
    for (uint64_t at = 0; at < size_; at += kSlot)
      scene_.raw.copy(raw_device_, slot_, std::min(kSlot, size_ - at));
  }

  // What arrives is what is in the file; otherwise a rate would mean nothing.
  void check() {
    copy(GPUMEM_FILE_DIRECTION_TO_MEMORY, device_, 0);
    std::vector<char> arrived(kSlot);
    std::vector<char> sent(kSlot);
    for (uint64_t at = 0; at < size_; at += kSlot) {
      const uint64_t bytes = std::min(kSlot, size_ - at);
      must_succeed(gpumem_copy(scene_.instance, arrived.data(), static_cast<char*>(device_) + at, bytes,
                               nullptr, nullptr));
      file_.read(sent.data(), at, bytes);
      if (std::memcmp(arrived.data(), sent.data(), bytes) != 0) fail("other bytes than the file's arrived");
    }
  }

  const Scene& scene_;
  const uint64_t size_;
  const File file_;
  char* const mapping_;
  void* device_ = nullptr;
  char* pinned_ = nullptr;
  char* slot_ = nullptr;
  void* raw_device_ = nullptr;
};

}  // namespace

void files(const Scene& scene) {
  Runner& runner = scene.runner;
  if (!runner.any_wanted("file/")) return;
  const bool large = runner.backend() == GPUMEM_BACKEND_CUDA && !runner.smoke();
  const std::vector<uint64_t> sizes = runner.smoke() ? std::vector<uint64_t>{12 * kMiB}
                                      : large        ? std::vector<uint64_t>{256 * kMiB, 8 * kGiB}
                                                     : std::vector<uint64_t>{256 * kMiB};
  for (const uint64_t size : sizes) {
    if (runner.smoke() || runner.wanted(size)) FileBench(scene, size).run();
  }
}

}  // namespace bench
