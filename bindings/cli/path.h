// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A path: one kind of host memory and the transfers between it and a device. Each path of gpumem stands
// beside one that does the same without it, so that the two can be timed in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "library.h"

namespace gpumem::cli {

enum class Kind { kPageable, kPinned, kWriteCombined, kRegistered, kMapped, kManaged, kRange, kBuffer };

// All kinds, in the order in which they are shown.
const std::vector<Kind>& all_kinds();
std::string kind_name(Kind kind);

enum class Direction { kToDevice, kToHost };

class Path {
 public:
  virtual ~Path() = default;
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  // The host memory, for the CPU.
  std::byte* bytes() const { return bytes_; }

  // Moves the first `size` bytes, chunk by chunk with all of them in flight, and returns when they have
  // arrived.
  void move(Direction direction, uint64_t size);

  // Whether the pages of the host memory can themselves move to the device and back, and that.
  bool migrates() const { return migrates_; }
  void migrate(Direction direction, uint64_t size);

 protected:
  explicit Path(uint64_t chunk) : chunk_(chunk) {}

  virtual void enqueue(Direction direction, uint64_t offset, uint64_t size) = 0;
  virtual void enqueue_prefetch(Direction /*direction*/, uint64_t /*offset*/, uint64_t /*size*/) {}
  virtual void wait() = 0;

  std::byte* bytes_ = nullptr;
  bool migrates_ = false;

 private:
  using Enqueue = void (Path::*)(Direction direction, uint64_t offset, uint64_t size);
  void in_chunks(Enqueue each, Direction direction, uint64_t size);

  uint64_t chunk_;
};

// Ordinary memory of the process: whole pages of its own, so that they can be registered.
class Pages {
 public:
  Pages() = default;
  explicit Pages(uint64_t size);
  std::byte* get() const { return start_.get(); }

 private:
  struct Unmap {
    uint64_t size;
    void operator()(std::byte* start) const;
  };
  std::unique_ptr<std::byte, Unmap> start_;
};

// Where the bytes go, shared by the paths of gpumem.
struct Target {
  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
  gpumem_stream stream = nullptr;
  void* bytes = nullptr;  // device memory
};

class GpumemPath final : public Path {
 public:
  GpumemPath(Kind kind, const Target& target, uint64_t capacity, uint64_t chunk);

  // Overwrites both sides, so that bytes which are right afterwards have been moved.
  void spoil_device(uint64_t size);
  void spoil_host(uint64_t size);

  // Between the two trips, a buffer sleeps and wakes.
  void rest();

  // The bytes that came back, where the CPU reads them fast. Write-combined memory is slow to read; its bytes
  // are taken from there by the device and from the device to ordinary pinned memory.
  const std::byte* came_back(uint64_t size);

 private:
  void enqueue(Direction direction, uint64_t offset, uint64_t size) override;
  void enqueue_prefetch(Direction direction, uint64_t offset, uint64_t size) override;
  gpumem_status prefetch(Direction direction, uint64_t offset, uint64_t size);
  void wait() override;

  Target target_;
  Pages pages_;         // pageable and registered; outlives memory_, which refers to it
  Memory memory_;       // all but pageable
  MappedRange range_;   // of kind range: the device's side, instead of that of all paths
  GrownBuffer buffer_;  // of kind buffer: likewise
  Memory readable_;     // write-combined: what came back, for the CPU
  std::byte* address_;  // what the copies are told: mapped memory by its device pointer
  std::byte* came_back_ = nullptr;
};

// The same without gpumem.
class RawPaths {
 public:
  virtual ~RawPaths() = default;
  virtual std::string name() const = 0;
  // The path is one that migrates if `migrates` is true.
  virtual std::unique_ptr<Path> make(Kind kind, uint64_t capacity, uint64_t chunk, bool migrates) = 0;
};

// memcpy between ordinary pages.
std::unique_ptr<RawPaths> make_memcpy_paths();

// The CUDA driver, called directly. Throws if that cannot be done here.
std::unique_ptr<RawPaths> make_cuda_paths(const gpumem_device_info& device, uint64_t capacity);

}  // namespace gpumem::cli
