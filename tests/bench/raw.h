// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the library is measured against: the same work by the fewest calls of the driver or operating system.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpumem/gpumem.h"

namespace bench {

using Call = std::function<void()>;

enum class SmallCall { kPointerQuery, kMemoryQuery, kStreamQuery, kEventRecord, kEmptyCopy };

// Calls that many threads make at once, each on a stream, an event and 4 KiB of its own.
enum class ThreadCall { kCopy, kFill, kRecord, kEventQuery, kStreamQuery, kPointerQuery };

// One thread's way to make such a call: `call` once, and `settle` after a row, which counts for nothing.
struct ThreadWork {
  Call call;
  Call settle;
};

// What a pool is compared with, for the calling thread.
struct PoolWork {
  std::function<void*(uint64_t size)> take;  // empty where there is nothing
  std::function<void(void* pointer)> give;
};

// Reserved addresses with room for some blocks of physical memory.
class RawRange {
 public:
  virtual ~RawRange() = default;
  virtual void create(int index) = 0;  // the physical memory
  virtual void map(int index) = 0;     // with access for device 0; on host for the CPU
  virtual void unmap(int index) = 0;   // the addresses stay reserved
  virtual void release(int index) = 0;
};

// What the driver gives another process.
struct RawShare {
  bool whole = false;             // there is a handle of device memory
  std::array<char, 64> handle{};  // of it
  int descriptor = -1;            // of a block of physical memory of the same size; -1 if there is none
};

// Two events between processes, one for each direction.
struct RawEventHandles {
  std::array<char, 64> there{};
  std::array<char, 64> back{};
};
class RawEvents {
 public:
  virtual ~RawEvents() = default;
  // In a stream of its own.
  virtual void record() = 0;
  virtual void wait() = 0;  // for the other side's record
  virtual void synchronize() = 0;
};

// Copies for one call.
struct RawBatch {
  std::vector<void*> to;
  std::vector<void*> from;
  std::vector<size_t> sizes;

  void add(void* destination, void* source, size_t size) {
    to.push_back(destination);
    from.push_back(source);
    sizes.push_back(size);
  }
};

class Raw {
 public:
  virtual ~Raw() = default;
  virtual std::string name() const = 0;

  // GPUMEM_KIND_DEVICE, GPUMEM_KIND_MANAGED, or GPUMEM_KIND_PINNED with or without WRITE_COMBINED.
  virtual void* allocate(gpumem_kind kind, gpumem_memory_flags flags, uint64_t size) = 0;
  virtual void free(gpumem_kind kind, void* pointer, uint64_t size) = 0;
  // Memory of the system with all its pages, made and freed; empty where that is no counterpart of a
  // device's.
  virtual Call touched(uint64_t /*size*/) { return {}; }
  virtual void pin(void* pointer, uint64_t size) = 0;
  virtual void unpin(void* pointer, uint64_t size) = 0;
  virtual std::unique_ptr<RawRange> reserve(uint64_t block_size, int blocks) = 0;

  virtual void copy(void* destination, const void* source, uint64_t size) = 0;  // done on return
  virtual void enqueue_copy(void* destination, const void* source, uint64_t size) = 0;
  // False where there is no call for many copies.
  virtual bool enqueue_batch(RawBatch& /*batch*/) { return false; }
  virtual void synchronize() = 0;

  // Managed memory to the device or the host, and advice that it is mostly read; empty where nothing does
  // that.
  virtual Call enqueue_prefetch(void* /*pointer*/, uint64_t /*size*/, bool /*to_device*/) { return {}; }
  virtual Call advise(void* /*pointer*/, uint64_t /*size*/) { return {}; }

  // Whether run_kernel() works: device 0 reads or writes memory in place, done on return.
  virtual bool has_kernels() { return false; }
  virtual void run_kernel(void* /*pointer*/, uint64_t /*size*/, bool /*write*/) {}

  // Memory for another process, until this ends; and what that does with it. Nothing where there is no such
  // thing.
  virtual void share(uint64_t /*size*/, RawShare* /*out*/) {}
  virtual void open_and_close(const RawShare& /*share*/) {}
  virtual void map_and_unmap(int /*descriptor*/, uint64_t /*size*/) {}
  // Makes the events, or opens those of another process. Null where there are none.
  virtual std::unique_ptr<RawEvents> create_events(RawEventHandles* /*out*/) { return nullptr; }
  virtual std::unique_ptr<RawEvents> open_events(const RawEventHandles& /*handles*/) { return nullptr; }

  // Empty where the driver or system has no such call. `pointer` lies inside device memory.
  virtual Call small_call(SmallCall which, void* pointer) = 0;
  // What a thread does before the timed calls of either side: makes the device current, say.
  virtual void prepare_thread() {}
  // For the calling thread; the work is destroyed on it too. Empty as above.
  virtual ThreadWork thread_work(ThreadCall /*which*/) { return {}; }
  // malloc() and free(), or the pool of the driver in a stream of the thread's own.
  virtual PoolWork pool_work(bool of_host) {
    if (!of_host) return {};
    return {[](uint64_t size) { return std::malloc(size); }, [](void* pointer) { std::free(pointer); }};
  }
};

[[noreturn]] inline void fail(const std::string& text) { throw std::runtime_error(text); }

std::unique_ptr<Raw> open_raw_host();
// Device 0. Fails in a build without the CUDA headers.
std::unique_ptr<Raw> open_raw_cuda();

}  // namespace bench
