// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies between ordinary memory and a device at the speed of page-locked memory: several threads move the
// bytes through slots of page-locked memory, while the device copies from or to the other slots.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "contract/device.h"
#include "contract/stream.h"
#include "platform/file.h"

namespace gpumem::core {

class Context;

// Slices of rows. One side is ordinary memory; the other lies on a device, and inside one object.
struct TransferBox {
  backend::Span destination;
  backend::Span source;
  uint64_t destination_pitch = 0;
  uint64_t source_pitch = 0;
  uint64_t destination_slice = 0;  // bytes from one slice to the next
  uint64_t source_slice = 0;
  uint64_t width = 0;
  uint64_t height = 1;
  uint64_t depth = 1;

  uint64_t bytes() const { return width * height * depth; }
};

// The progress of a call. All threads count; the caller's thread reports.
class FileProgress {
 public:
  static constexpr uint64_t kStep = uint64_t{64} << 20;

  virtual ~FileProgress() = default;
  // Whether to report progress now.
  bool due() const { return done_.load() - told_.load() >= kStep; }
  // True if that made it due.
  bool add(uint64_t bytes) {
    const uint64_t now = done_.fetch_add(bytes) + bytes;
    const uint64_t told = told_.load();
    return now - told >= kStep && now - bytes - told < kStep;
  }
  uint64_t done() const { return done_.load(); }
  // CANCELLED if the caller wants that.
  virtual Result<void> tell() = 0;

 protected:
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> told_{0};
};

// Bytes of a file, and of memory.
struct FileBox {
  platform::ProgramFile* file = nullptr;
  uint64_t offset = 0;  // in the file
  bool to_memory = false;
  backend::Span memory;
  void* view = nullptr;  // where the CPU has the memory; else a device copies
  uint64_t size = 0;
  FileProgress* progress = nullptr;
  // Enqueues a copy between a slot and memory that may have borders.
  Result<void> (*enqueue)(backend::Stream&, const backend::CopySegment&) = nullptr;
};

// What an instance is opened with.
struct TransferOptions {
  static constexpr uint32_t kOff = UINT32_MAX;
  uint32_t threads = 0;  // that move bytes for a device, the caller's included; 0: as many as help
  uint64_t bytes = 0;    // page-locked for a device at most; 0: two slots for each thread
};

// Measured on an H200 with 16 processors (docs/measured/copies.md); tests and benchmarks set others.
struct TransferTuning {
  static constexpr uint32_t kMostThreads = 12;   // more get no more through the bus
  uint64_t slot = uint64_t{2} << 20;             // larger ones leave the caches
  uint32_t slots = 2;                            // of a thread: one is filled, one is on its way
  uint64_t piece = uint64_t{256} << 10;          // the least that a thread takes at once
  uint64_t each = uint64_t{4} << 20;             // bytes that are worth waking one more thread than few
  uint32_t few = 4;                              // threads that are worth waking in any case
  uint64_t least_to_device = uint64_t{8} << 20;  // smaller copies are the driver's
  uint64_t least_to_host = uint64_t{8} << 20;
  uint32_t least_threads_to_device = 2;  // fewer are no faster than the driver
  uint32_t least_threads_to_host = 2;
  uint64_t least_to_start = uint64_t{64} << 20;  // bytes copied before threads are started for them
  uint32_t streams = 1;                          // that all threads share
  uint64_t least_of_file = uint64_t{8} << 20;    // less is read or written by the caller
  std::chrono::nanoseconds idle = std::chrono::seconds(10);  // until the threads end
  const char* limits_root = "";  // stands before the paths that say what memory is left: for tests
};

// INVALID_STATE unless the CPU can read (write) each row of ordinary memory.
Result<void> check_rows(const void* first, uint64_t pitch, uint64_t width, uint64_t height, bool write);

class Transfer {
 public:
  Transfer(Context& context, backend::Device& device, const TransferOptions& options,
           const TransferTuning& tuning = {});
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer();

  // Whether a copy of so many bytes may be worth it.
  bool wants(uint64_t bytes, bool to_device) const {
    return bytes >= (to_device ? least_to_device_ : least_to_host_);
  }
  // Copies, and returns when all is done. False if nothing was done, because threads or memory are lacking:
  // then the driver is to copy. It waits for no work of the caller, so that no copy waits for another one.
  Result<bool> copy(const TransferBox& box);
  bool wants_file(uint64_t bytes) const { return threads_ != 0 && bytes >= tuning_.least_of_file; }
  // The same between a file and memory. `copied` gets the bytes from the start on that were copied, also by a
  // copy that fails.
  Result<bool> copy_file(const FileBox& box, uint64_t* copied);

  // Frees the page-locked memory, unless a copy uses it. Returns whether there was any.
  bool flush() noexcept;
  // Ends the threads and frees everything. No copy runs, and none follows.
  void stop() noexcept;

  // For tests.
  uint32_t running_threads();
  uint64_t locked_bytes();
  uint64_t copied_bytes() const { return copied_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot;
  struct Lane;
  struct Job;
  struct Worker;

  bool prepare();
  bool prepare(Lane& lane);
  bool worth_starting(uint64_t bytes);
  uint64_t most_of(uint64_t bytes) const;
  Result<bool> run_job(Job& job, uint64_t bytes);
  bool has_room(uint32_t lanes);
  void start_workers(uint32_t count);
  Job* find_job();
  void wake_two(const Job& job);
  void run(Worker& worker);
  // Takes part in a job until all its pieces are taken. False if this thread has no slots for it.
  bool take_part(Job& job, Lane& lane);
  Result<void> move_to_device(Job& job, Lane& lane);
  Result<void> move_to_host(Job& job, Lane& lane);
  Result<void> move_in_place(Job& job);
  void landed(Job& job, uint64_t number);
  Result<void> open(Lane& lane);
  void close(Lane& lane) noexcept;
  bool close_all() noexcept;

  Context& context_;
  backend::Device& device_;
  const TransferTuning tuning_;
  const bool at_once_;  // the number of threads was asked for
  uint32_t threads_ = 0;
  uint64_t least_to_device_;
  uint64_t least_to_host_;
  std::atomic<uint64_t> seen_{0};
  std::atomic<uint64_t> copied_{0};

  std::mutex mutex_;  // guards all below; a lane that is in use belongs to its thread
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<std::unique_ptr<Worker>> workers_;  // one fewer than threads_
  std::vector<std::shared_ptr<backend::Stream>> streams_;
  std::unique_ptr<Lane> callers_;  // for the thread of a caller
  bool callers_taken_ = false;
  bool prepared_ = false;
  bool stopping_ = false;
  uint32_t alive_ = 0;
  uint32_t open_lanes_ = 0;
  Job* first_ = nullptr;
  Clock::time_point last_use_{};
  Clock::time_point next_try_{};  // after a failure to start something
};

}  // namespace gpumem::core
