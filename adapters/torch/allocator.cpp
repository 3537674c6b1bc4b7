// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The functions that PyTorch's CUDAPluggableAllocator calls, over pools of gpumem: see docs/pytorch.md. It
// needs no header of PyTorch. Its types are restated here from the sources of PyTorch 2.11:
// torch/csrc/cuda/CUDAPluggableAllocator.h and Module.cpp (the hooks), c10/core/Allocator.h (MempoolId_t),
// c10/util/Exception.h (c10::Error).
#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpumem/gpumem.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef struct CUstream_st* cudaStream_t;

namespace {

using MempoolId = std::pair<unsigned long long, unsigned long long>;
using Filter = std::function<bool(cudaStream_t)>;

constexpr int kDevices = 64;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// Unlike GPUMEM_ERROR_INIT it does not clear the whole text, which would take time in each allocation.
gpumem_error no_error() {
  gpumem_error error;
  error.struct_size = sizeof error;
  error.status = GPUMEM_SUCCESS;
  error.message[0] = '\0';
  return error;
}

bool is_lack(gpumem_status status) {
  return status == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY || status == GPUMEM_ERROR_LIMIT_EXCEEDED ||
         status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE;
}

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// ---- failures ----

// Throws PyTorch's own c10::OutOfMemoryError, which Python sees as torch.cuda.OutOfMemoryError. PyTorch
// constructs it: its constructor is an exported function, and the table of virtual functions is exported too,
// with the type and the destructor at the places where the C++ ABI puts them. So the size of the object is
// all that must be guessed. Returns if this PyTorch has no such functions.
void throw_torch_out_of_memory(const std::string& message) {
#if defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
  struct SourceLocation {
    const char* function;
    const char* file;
    uint32_t line;
  };
  using Construct = void (*)(void*, SourceLocation, std::string);
  using Destroy = void (*)(void*);
  constexpr size_t kSize = 2048;  // of an object of about 200 bytes
  void* library = nullptr;
  void* table = nullptr;
  for (const char* const name : {"libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so"}) {
    if ((library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) == nullptr) continue;
    table = dlsym(library, "_ZTVN3c1016OutOfMemoryErrorE");
    if (table != nullptr) break;
  }
  if (table == nullptr) return;
  const auto construct = reinterpret_cast<Construct>(dlsym(
      library, "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"));
  if (construct == nullptr) return;
  // Offset to the top, type, then the functions, of which the destructor is the first: std::exception begins
  // with it.
  void** const entries = static_cast<void**>(table);
  auto* const type = static_cast<std::type_info*>(entries[1]);
  const auto destroy = reinterpret_cast<Destroy>(entries[2]);
  void* const thrown = abi::__cxa_allocate_exception(kSize);
  construct(thrown, {"gpumem_torch_alloc", "gpumem", 0}, message);
  *static_cast<void**>(thrown) = entries + 2;
  abi::__cxa_throw(thrown, type, destroy);
#else
  (void)message;
#endif
}

[[noreturn]] void fail(uint64_t size, int device, const gpumem_error& error) {
  if (is_lack(error.status)) {
    const std::string message = "CUDA out of memory. Tried to allocate " + std::to_string(size) +
                                " bytes on GPU " + std::to_string(device) + " with gpumem: " + error.message;
    throw_torch_out_of_memory(message);
    throw std::runtime_error(message);
  }
  throw std::runtime_error("gpumem cannot allocate " + std::to_string(size) + " bytes on GPU " +
                           std::to_string(device) + ": " + error.message);
}

// What PyTorch sees as its text, and Python by its status.
struct Failure : std::runtime_error {
  Failure(const gpumem_error& its, const std::string& text) : std::runtime_error(text), detail(its) {}
  gpumem_error detail;
};

[[noreturn]] void refuse(gpumem_status status, const char* text) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  error.status = status;
  throw Failure(error, text);
}

void require(gpumem_status status, const char* what, const gpumem_error& error) {
  if (GPUMEM_FAILED(status)) throw Failure(error, std::string(what) + ": " + error.message);
}

// For callers of C, through which no exception may go.
template <class Work>
gpumem_status without_exceptions(gpumem_error* out, const Work& work) noexcept {
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto say = [&error](gpumem_status status, const char* text) {
    error.status = status;
    std::snprintf(error.message, sizeof error.message, "%s", text);
  };
  try {
    work();
  } catch (const Failure& failure) {
    error = failure.detail;
    say(error.status, failure.what());
  } catch (const std::bad_alloc&) {
    say(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "there is no host memory for the records of the allocator");
  } catch (const std::exception& problem) {
    say(GPUMEM_ERROR_INTERNAL, problem.what());
  }
  if (out != nullptr && out->struct_size >= sizeof error) *out = error;
  return error.status;
}

// ---- memory of private pools ----

// The memory of one private pool, cut here and not by gpumem: a graph uses its blocks each time it is
// launched, so what is free for the next capture that shares the pool must stay where it is. For gpumem its
// segments are blocks that live. They are as large as those of PyTorch's own allocator, and a block serves
// the stream that it was freed in, as there.
class Arena {
 public:
  // By what a block is looked for: small, stream, size, address.
  using Free = std::set<std::tuple<bool, cudaStream_t, uint64_t, uintptr_t>>;
  struct Block {
    uint64_t size = 0;
    cudaStream_t stream = nullptr;
    bool small = false;
    bool first = false;  // of its segment
    bool free = false;
    bool used_elsewhere = false;
    bool awaiting = false;    // freed, but the work of other streams may use it
    Free::node_type place{};  // while it is not free: so that giving it back needs no memory
  };
  struct Counts {
    uint64_t live_count = 0, live_bytes = 0, reserved = 0;
    uint64_t peak_count = 0, peak_bytes = 0, peak_reserved = 0;
    uint64_t total_count = 0, total_bytes = 0, segments = 0;
  };

  explicit Arena(gpumem_pool pool) : pool_(pool) {}

  const Counts& counts() const { return counts_; }
  const std::map<uintptr_t, Block>& blocks() const { return blocks_; }
  gpumem_pool pool() const { return pool_; }

  // Null if no segment has room; then grow() makes one.
  void* take(uint64_t size, cudaStream_t stream) {
    size = round_up(size, kUnit);
    const bool small = size <= kSmall;
    const auto found = free_.lower_bound({small, stream, size, 0});
    if (found == free_.end() || std::get<0>(*found) != small || std::get<1>(*found) != stream) return nullptr;
    const uintptr_t address = std::get<3>(*found);
    Block& block = blocks_.at(address);
    // Before all else, as it may throw.
    if (block.size - size >= (small ? kUnit : kSmall + kUnit)) {
      add_free(address + size, {block.size - size, stream, small});
      block.size = size;
    }
    block.place = free_.extract(found);
    block.free = false;
    ++counts_.live_count;
    ++counts_.total_count;
    counts_.live_bytes += block.size;
    counts_.total_bytes += block.size;
    counts_.peak_count = std::max(counts_.peak_count, counts_.live_count);
    counts_.peak_bytes = std::max(counts_.peak_bytes, counts_.live_bytes);
    return reinterpret_cast<void*>(address);
  }

  static uint64_t segment_for(uint64_t size) {
    if (size <= kSmall) return 2 * kMiB;
    return size < 10 * kMiB ? 20 * kMiB : round_up(size, 2 * kMiB);
  }

  gpumem_status grow(uint64_t size, cudaStream_t stream, gpumem_error* error) {
    const uint64_t bytes = segment_for(size);
    void* base = nullptr;
    // Without a stream: so no capture has a part in it.
    const gpumem_status status = gpumem_pool_alloc(pool_, bytes, nullptr, &base, error);
    if (GPUMEM_FAILED(status)) return status;
    const auto address = reinterpret_cast<uintptr_t>(base);
    try {
      add_free(address, {bytes, stream, size <= kSmall, true});
    } catch (...) {
      (void)gpumem_pool_free(pool_, base, nullptr, nullptr);
      throw;
    }
    ++counts_.segments;
    counts_.reserved += bytes;
    counts_.peak_reserved = std::max(counts_.peak_reserved, counts_.reserved);
    return status;
  }

  // The live block at an address, or null.
  Block* find(const void* pointer) {
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == blocks_.end() || found->second.free || found->second.awaiting) return nullptr;
    return &found->second;
  }

  void give(void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    Block& block = blocks_.at(address);
    --counts_.live_count;
    counts_.live_bytes -= block.size;
    if (block.used_elsewhere) {
      block.awaiting = true;
      return;
    }
    join(address);
  }

  // All work of the device is complete.
  void settle() {
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      if (!at->second.awaiting) {
        ++at;
        continue;
      }
      const uintptr_t address = at->first;
      at->second.awaiting = at->second.used_elsewhere = false;
      join(address);
      at = blocks_.upper_bound(address);
    }
  }

  // Gives back the segments without a live block. No graph uses them, and no work.
  void trim() {
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      const auto& [address, block] = *at;
      const auto next = std::next(at);
      const bool whole = block.free && block.first && (next == blocks_.end() || next->second.first);
      if (whole &&
          !GPUMEM_FAILED(gpumem_pool_free(pool_, reinterpret_cast<void*>(address), nullptr, nullptr))) {
        --counts_.segments;
        counts_.reserved -= block.size;
        free_.erase(place_of(*at));
        blocks_.erase(at);
      }
      at = next;
    }
    (void)gpumem_pool_trim(pool_, 0, nullptr, nullptr);
  }

  void reset_peaks() {
    counts_.peak_count = counts_.live_count;
    counts_.peak_bytes = counts_.live_bytes;
    counts_.peak_reserved = counts_.reserved;
  }

 private:
  static constexpr uint64_t kUnit = 512;
  static constexpr uint64_t kSmall = kMiB;

  static Free::value_type place_of(const std::pair<const uintptr_t, Block>& entry) {
    const auto& [address, block] = entry;
    return {block.small, block.stream, block.size, address};
  }

  // All or nothing.
  void add_free(uintptr_t address, Block block) {
    block.free = true;
    const auto added = blocks_.emplace(address, std::move(block)).first;
    try {
      free_.insert(place_of(*added));
    } catch (...) {
      blocks_.erase(added);
      throw;
    }
  }

  // Makes a block free, together with free neighbours of its segment.
  void join(uintptr_t address) noexcept {
    auto at = blocks_.find(address);
    Free::node_type place = std::move(at->second.place);
    const auto absorb = [&](std::map<uintptr_t, Block>::iterator first,
                            std::map<uintptr_t, Block>::iterator second) {
      first->second.size += second->second.size;
      blocks_.erase(second);
    };
    const auto can_join = [&](const Block& other) { return other.free && other.stream == at->second.stream; };
    const auto next = std::next(at);
    if (next != blocks_.end() && !next->second.first && can_join(next->second)) {
      free_.erase(place_of(*next));
      absorb(at, next);
    }
    if (!at->second.first) {
      const auto before = std::prev(at);
      if (can_join(before->second)) {
        free_.erase(place_of(*before));
        absorb(before, at);
        at = before;
      }
    }
    at->second.free = true;
    place.value() = place_of(*at);
    free_.insert(std::move(place));
  }

  const gpumem_pool pool_;
  std::map<uintptr_t, Block> blocks_;  // all of every segment
  Free free_;
  Counts counts_;
};

// ---- everything ----

struct Private {
  explicit Private(gpumem_pool pool) : arena(pool) {}
  bool over() const { return uses <= 0 && arena.counts().live_count == 0; }

  Arena arena;
  int uses = 0;          // graphs, and begins that have no release yet
  bool dropped = false;  // its route ended without gpumem_torch_end_allocate_to_pool
  // Blocks that were freed and uses that ended, and how many of both when the device was last waited for.
  uint64_t ends = 0, ends_before_wait = 0;
};

struct Route {
  int device = 0;
  MempoolId id;
  Filter filter;
  cudaStream_t stream = nullptr;
  bool captured = false;  // and `stream` is
};

// What must wait.
struct Deferred {
  enum What { kUse, kFree, kFreeAlone };
  int device = 0;
  void* pointer = nullptr;
  cudaStream_t stream = nullptr;
  // A use or a free of a stream whose capture must end, or a free for which the device must be waited for.
  What what = kFree;
  bool before_wait = false;  // it was there when the device was last waited for
};

struct Device {
  static constexpr size_t kSlots = 128;

  std::atomic<gpumem_pool> pool{nullptr};
  std::array<std::atomic<cudaStream_t>, kSlots> seen{};  // by their hash: streams in which blocks were freed
  std::atomic<cudaStream_t>& slot_of(cudaStream_t stream) {
    const uint64_t spread = reinterpret_cast<uintptr_t>(stream) * 0x9e3779b97f4a7c15u;
    return seen[spread >> 57];
  }

  gpumem_device device = nullptr;
  uint64_t limit = 0;
  std::atomic<uint64_t> retries{0};
  std::atomic<uint64_t> failures{0};
};

// Never destroyed: PyTorch frees tensors while the process ends.
struct State {
  // PyTorch frees with the lock of the interpreter, which a function of Python in some stream may need. So
  // `mutex` is never held while the device is waited for, and `waits`, which is taken before it, never where
  // PyTorch frees. A begin takes `waits`, since such a wait would end a capture.
  std::mutex waits;
  std::mutex mutex;  // guards what follows, but for the atomics; held while a filter is asked
  gpumem_instance instance = nullptr;
  std::array<Device, kDevices> devices;
  std::vector<Route> routes;
  std::map<std::pair<int, MempoolId>, std::unique_ptr<Private>> privates;
  std::vector<Deferred> deferred;
  std::map<std::pair<int, cudaStream_t>, gpumem_stream> streams;  // with a handle that is kept
  std::set<std::pair<int, cudaStream_t>> freed_in;                // streams

  std::atomic<size_t> route_count{0};
  std::atomic<bool> forked{false};  // this is a child of the process that opened the instance
  std::atomic<bool> exiting{false};
};

State& state() {
  // Not by new, which may throw.
  alignas(State) static std::array<unsigned char, sizeof(State)> place;
  static State* const made = new (place.data()) State;
  return *made;
}

using Lock = std::unique_lock<std::mutex>;

// A child process has the locks as they were, and must not touch them.
void require_parent(const State& all) {
  if (all.forked.load())
    refuse(
        GPUMEM_ERROR_FORKED,
        "this process was forked from one that uses the GPU through gpumem; start processes with \"spawn\"");
}

// For what may throw.
Lock enter(State& all) {
  require_parent(all);
  return Lock(all.mutex);
}

void open(State& all) {
  if (all.instance != nullptr) return;
  gpumem_error error = no_error();
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_CUDA;
  desc.name = "torch";
  require(gpumem_instance_open(&desc, &all.instance, &error), "gpumem cannot open the CUDA driver", error);
  pthread_atfork(nullptr, nullptr, [] { state().forked.store(true); });
  std::atexit([] { state().exiting.store(true); });
}

void require_device(int device) {
  if (device < 0 || device >= kDevices)
    refuse(GPUMEM_ERROR_INVALID_ARGUMENT, "gpumem serves the GPUs 0 to 63");
}

gpumem_pool make_pool(Device& device, const char* name) {
  gpumem_error error = no_error();
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.name = name;
  // PyTorch tells of captures, and never destroys its streams.
  desc.flags = GPUMEM_POOL_TRUST_NATIVE_STREAMS;
  gpumem_pool pool = nullptr;
  require(gpumem_pool_create(device.device, &desc, &pool, &error), "gpumem cannot create a pool", error);
  return pool;
}

// The device with its pool.
Device& device_at(State& all, int ordinal) {
  require_device(ordinal);
  Device& device = all.devices[static_cast<size_t>(ordinal)];
  if (device.pool.load(std::memory_order_relaxed) == nullptr) {
    open(all);
    gpumem_error error = no_error();
    require(gpumem_device_get(all.instance, static_cast<uint32_t>(ordinal), &device.device, &error),
            "gpumem does not find the GPU", error);
    all.freed_in.insert({ordinal, nullptr});  // the default stream, which no slot tells from none
    device.pool.store(make_pool(device, "torch"), std::memory_order_release);
  }
  return device;
}

// Waits for all work of a device, of every stream: a graph may have been launched in any. gpumem waits for
// streams only, so this asks the driver itself. False if that is refused or the process ends.
bool wait_for_device(const State& all, int ordinal) {
  if (all.exiting.load()) return false;
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return false;
  const auto entry = [&](const char* name) { return dlsym(driver, name); };
  const auto get = reinterpret_cast<int (*)(int*, int)>(entry("cuDeviceGet"));
  const auto retain = reinterpret_cast<int (*)(void**, int)>(entry("cuDevicePrimaryCtxRetain"));
  const auto release = reinterpret_cast<int (*)(int)>(entry("cuDevicePrimaryCtxRelease_v2"));
  const auto push = reinterpret_cast<int (*)(void*)>(entry("cuCtxPushCurrent_v2"));
  const auto pop = reinterpret_cast<int (*)(void**)>(entry("cuCtxPopCurrent_v2"));
  const auto synchronize = reinterpret_cast<int (*)()>(entry("cuCtxSynchronize"));
  if (get == nullptr || retain == nullptr || release == nullptr || push == nullptr || pop == nullptr ||
      synchronize == nullptr)
    return false;
  int device = 0;
  void* context = nullptr;
  if (get(&device, ordinal) != 0 || retain(&context, device) != 0) return false;
  bool complete = false;
  if (push(context) == 0) {
    complete = synchronize() == 0;
    (void)pop(&context);
  }
  (void)release(device);
  return complete;
}

uint64_t private_bytes(const State& all, int device) {
  uint64_t bytes = 0;
  for (const auto& [key, one] : all.privates)
    bytes += key.first == device ? one->arena.counts().reserved : 0;
  return bytes;
}

// The share of the device's pool in the limit is what private pools leave of it.
void apply_limit(const State& all, int ordinal) {
  const Device& device = all.devices[static_cast<size_t>(ordinal)];
  if (device.limit == 0) return;
  const uint64_t taken = private_bytes(all, ordinal);
  (void)gpumem_pool_set_limit(device.pool.load(), device.limit > taken ? device.limit - taken : 1, nullptr);
}

// A handle for a native stream, null if it is none of the device. It is kept, since a use that is recorded
// counts until the block is freed; but for the default stream of the calling thread, which is another one
// elsewhere.
class StreamHandle {
 public:
  StreamHandle(State& all, int ordinal, cudaStream_t native)
      : kept_(reinterpret_cast<uintptr_t>(native) != kPerThread) {
    const auto found = all.streams.find({ordinal, native});
    if (found != all.streams.end()) {
      handle_ = found->second;
      return;
    }
    const gpumem_device device = all.devices[static_cast<size_t>(ordinal)].device;
    if (GPUMEM_FAILED(gpumem_stream_wrap(device, native, &handle_, nullptr))) handle_ = nullptr;
    if (!kept_ || handle_ == nullptr) return;
    try {
      all.streams.emplace(std::pair(ordinal, native), handle_);
    } catch (...) {
      (void)gpumem_stream_destroy(handle_, nullptr);
      throw;
    }
  }
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  ~StreamHandle() {
    if (!kept_) (void)gpumem_stream_destroy(handle_, nullptr);
  }
  gpumem_stream get() const { return handle_; }

 private:
  static constexpr uintptr_t kPerThread = 2;  // CU_STREAM_PER_THREAD
  const bool kept_;
  gpumem_stream handle_ = nullptr;
};

// A pool marks a native stream only in some of the calls that are handed it, and does not learn of what was
// freed last that it is complete. A wrapper that ends makes up for it. Needs that nothing is being captured.
void mark_streams(const State& all, int ordinal) {
  const gpumem_device handle = all.devices[static_cast<size_t>(ordinal)].device;
  for (const auto& [device, native] : all.freed_in) {
    gpumem_stream stream = nullptr;
    if (device == ordinal && !GPUMEM_FAILED(gpumem_stream_wrap(handle, native, &stream, nullptr)))
      (void)gpumem_stream_destroy(stream, nullptr);
  }
}

bool is_captured(State& all, int ordinal, cudaStream_t native) {
  const StreamHandle stream(all, ordinal, native);
  if (stream.get() == nullptr) return false;
  uint64_t id = 0;
  const gpumem_status status = gpumem_stream_get_capture_id(stream.get(), &id, nullptr);
  return status == GPUMEM_ERROR_INVALID_STATE || id != 0;
}

Private* private_for(State& all, int device, cudaStream_t stream) {
  for (Route& route : all.routes) {
    if (route.device != device || !route.filter(stream)) continue;
    if (!route.captured && is_captured(all, device, stream)) {
      route.captured = true;
      route.stream = stream;
    }
    return all.privates.at({device, route.id}).get();
  }
  return nullptr;
}

// PyTorch does not tell of the end of a capture that fails, and the filter then belongs to a graph that may
// be gone. Its private pool stays, as with PyTorch's own allocator.
void drop_failed_captures(State& all) {
  for (auto at = all.routes.begin(); at != all.routes.end();) {
    if (!at->captured || is_captured(all, at->device, at->stream)) {
      ++at;
      continue;
    }
    all.privates.at({at->device, at->id})->dropped = true;
    at = all.routes.erase(at);
  }
  all.route_count.store(all.routes.size());
}

// Waits for nothing.
void free_in_order(Device& device, int ordinal, void* pointer, cudaStream_t stream, State& all) {
  all.freed_in.insert({ordinal, stream});
  const gpumem_pool pool = device.pool.load();
  const gpumem_status status = gpumem_pool_free_native(pool, pointer, stream, nullptr);
  if (!GPUMEM_FAILED(status) || status == GPUMEM_ERROR_NOT_FOUND || status == GPUMEM_ERROR_FORKED ||
      status == GPUMEM_ERROR_CLOSED)
    return;
  if (status == GPUMEM_ERROR_INVALID_STATE) {  // a capture of the stream has failed
    all.deferred.push_back({ordinal, pointer, stream, Deferred::kFree});
  } else if (status == GPUMEM_ERROR_DEVICE_LOST) {
    (void)gpumem_pool_free(pool, pointer, nullptr, nullptr);
  } else {  // the stream is gone
    all.deferred.push_back({ordinal, pointer, stream, Deferred::kFreeAlone});
  }
}

// What waited for captures that have ended. Nothing of it is lost if this throws.
void settle_deferred(State& all) {
  std::vector<Deferred> left;
  left.reserve(all.deferred.size());  // room for what waits on
  left.swap(all.deferred);
  auto at = left.begin();
  try {
    for (; at != left.end(); ++at) {
      const Deferred& one = *at;
      Device& device = all.devices[static_cast<size_t>(one.device)];
      const bool recorded = std::any_of(all.deferred.begin(), all.deferred.end(),
                                        [&](const Deferred& other) { return other.pointer == one.pointer; });
      if (recorded || one.what == Deferred::kFreeAlone || is_captured(all, one.device, one.stream)) {
        all.deferred.push_back(one);
      } else if (one.what == Deferred::kUse) {
        const StreamHandle stream(all, one.device, one.stream);
        if (stream.get() != nullptr && gpumem_pool_record_use(device.pool.load(), one.pointer, stream.get(),
                                                              nullptr) == GPUMEM_ERROR_OUT_OF_HOST_MEMORY)
          throw std::bad_alloc();
      } else {
        free_in_order(device, one.device, one.pointer, one.stream, all);
      }
    }
  } catch (...) {
    all.deferred.insert(all.deferred.end(), at, left.end());
    throw;
  }
}

// Makes free what is only waiting, and ends private pools that no graph uses any more, unless anything is
// being captured: it waits for the device. What ends meanwhile stays for the next time, since work that was
// enqueued after the wait began may use it. Needs `waits`.
void reclaim_alone(State& all, int ordinal) {
  Lock lock(all.mutex);
  drop_failed_captures(all);
  settle_deferred(all);
  if (!all.routes.empty()) return;
  mark_streams(all, ordinal);
  for (const auto& [key, one] : all.privates)
    one->ends_before_wait = one->ends;
  for (Deferred& one : all.deferred)
    one.before_wait = true;
  lock.unlock();
  if (!wait_for_device(all, ordinal)) return;  // for the marks too
  lock.lock();
  const auto free_alone = [&](const Deferred& one) {
    if (one.device != ordinal || one.what != Deferred::kFreeAlone || !one.before_wait) return false;
    const gpumem_pool pool = all.devices[static_cast<size_t>(ordinal)].pool.load();
    (void)gpumem_pool_free(pool, one.pointer, nullptr, nullptr);
    return true;
  };
  all.deferred.erase(std::remove_if(all.deferred.begin(), all.deferred.end(), free_alone),
                     all.deferred.end());
  for (auto at = all.privates.begin(); at != all.privates.end();) {
    Private& one = *at->second;
    const auto next = std::next(at);
    if (at->first.first == ordinal && one.ends == one.ends_before_wait) {
      one.arena.settle();
      if (one.uses <= 0) one.arena.trim();
      if (one.over() && !GPUMEM_FAILED(gpumem_pool_destroy(one.arena.pool(), nullptr)))
        all.privates.erase(at);
    }
    at = next;
  }
  apply_limit(all, ordinal);
}

void reclaim(State& all, int ordinal) {
  const std::lock_guard alone(all.waits);
  reclaim_alone(all, ordinal);
}

gpumem_status take(State& all, Private& owner, int ordinal, uint64_t size, cudaStream_t stream, void** out,
                   gpumem_error* error) {
  Arena& arena = owner.arena;
  if ((*out = arena.take(size, stream)) != nullptr) return GPUMEM_SUCCESS;
  const Device& device = all.devices[static_cast<size_t>(ordinal)];
  if (device.limit != 0) {
    const gpumem_pool pool = device.pool.load();
    gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
    const uint64_t wanted = private_bytes(all, ordinal) + Arena::segment_for(size);
    const auto over = [&] {
      return wanted > device.limit || (!GPUMEM_FAILED(gpumem_pool_get_info(pool, &info, nullptr)) &&
                                       info.reserved_bytes > device.limit - wanted);
    };
    if (over())
      (void)gpumem_pool_trim(pool, wanted < device.limit ? device.limit - wanted : 0, nullptr, nullptr);
    if (over()) {
      error->status = GPUMEM_ERROR_LIMIT_EXCEEDED;
      std::snprintf(error->message, sizeof error->message,
                    "a private pool needs %" PRIu64 " bytes more than the limit of %" PRIu64 " has room for",
                    Arena::segment_for(size), device.limit);
      return error->status;
    }
  }
  const gpumem_status status = arena.grow(size, stream, error);
  if (GPUMEM_FAILED(status)) return status;
  apply_limit(all, ordinal);
  *out = arena.take(size, stream);
  return GPUMEM_SUCCESS;
}

// The long way: the first allocation of a device, captures, and failures. `error` is that of a first try, or
// of none.
[[gnu::noinline]] void* allocate_slowly(uint64_t size, int ordinal, cudaStream_t stream,
                                        gpumem_error& error) {
  State& all = state();
  if (size == 0) return nullptr;
  const bool tried = error.status != GPUMEM_SUCCESS;
  void* pointer = nullptr;
  Lock lock = enter(all);
  Device& device = device_at(all, ordinal);
  drop_failed_captures(all);
  for (const bool again : {false, true}) {
    if (again || tried) {
      if (!is_lack(error.status)) break;
      device.retries.fetch_add(1, std::memory_order_relaxed);
      if (lock.owns_lock()) lock.unlock();
      reclaim(all, ordinal);
    }
    error = no_error();
    gpumem_status status;
    if (!lock.owns_lock()) lock.lock();
    if (Private* const owner = private_for(all, ordinal, stream)) {
      status = take(all, *owner, ordinal, size, stream, &pointer, &error);
    } else {
      lock.unlock();
      status = gpumem_pool_alloc_native(device.pool.load(), size, stream, &pointer, &error);
    }
    if (!GPUMEM_FAILED(status)) return pointer;
    error.status = status;
    if (tried) break;
  }
  if (is_lack(error.status)) device.failures.fetch_add(1, std::memory_order_relaxed);
  if (lock.owns_lock()) lock.unlock();
  fail(size, ordinal, error);
}

[[gnu::noinline]] void note_stream(int ordinal, cudaStream_t stream, std::atomic<cudaStream_t>& slot) {
  State& all = state();
  try {
    const Lock lock(all.mutex);
    all.freed_in.insert({ordinal, stream});
    slot.store(stream, std::memory_order_relaxed);
  } catch (...) {
    // What is freed in it last may stay in the pool.
  }
}

[[gnu::noinline]] void free_slowly(void* pointer, int ordinal, cudaStream_t stream) {
  State& all = state();
  if (pointer == nullptr || all.forked.load() || ordinal < 0 || ordinal >= kDevices) return;
  const Lock lock(all.mutex);
  Device& device = all.devices[static_cast<size_t>(ordinal)];
  if (device.pool.load() == nullptr) return;
  for (const auto& [key, one] : all.privates) {
    if (key.first != ordinal || one->arena.find(pointer) == nullptr) continue;
    one->arena.give(pointer);
    ++one->ends;
    return;
  }
  const bool recorded = std::any_of(all.deferred.begin(), all.deferred.end(),
                                    [&](const Deferred& other) { return other.pointer == pointer; });
  if (recorded || (!all.routes.empty() && is_captured(all, ordinal, stream))) {
    all.deferred.push_back({ordinal, pointer, stream, Deferred::kFree});
    return;
  }
  free_in_order(device, ordinal, pointer, stream, all);
}

}  // namespace

// ---- what PyTorch calls ----

EXPORT void* gpumem_torch_alloc(ssize_t size, int device, cudaStream_t stream) {
  const State& all = state();
  gpumem_error error = no_error();
  if (all.route_count.load(std::memory_order_relaxed) == 0 && static_cast<unsigned>(device) < kDevices)
      [[likely]] {
    const gpumem_pool pool = all.devices[static_cast<size_t>(device)].pool.load(std::memory_order_acquire);
    void* pointer = nullptr;
    if (pool != nullptr) [[likely]] {
      error.status = gpumem_pool_alloc_native(pool, static_cast<uint64_t>(size), stream, &pointer, &error);
      if (!GPUMEM_FAILED(error.status)) [[likely]]
        return pointer;
    }
  }
  return allocate_slowly(static_cast<uint64_t>(size), device, stream, error);
}

EXPORT void gpumem_torch_free(void* pointer, ssize_t /*size*/, int device, cudaStream_t stream) {
  State& all = state();
  if (all.route_count.load(std::memory_order_relaxed) == 0 && static_cast<unsigned>(device) < kDevices)
      [[likely]] {
    Device& at = all.devices[static_cast<size_t>(device)];
    const gpumem_pool pool = at.pool.load(std::memory_order_acquire);
    if (pool != nullptr && !GPUMEM_FAILED(gpumem_pool_free_native(pool, pointer, stream, nullptr)))
        [[likely]] {
      std::atomic<cudaStream_t>& slot = at.slot_of(stream);
      if (slot.load(std::memory_order_relaxed) != stream) [[unlikely]]
        note_stream(device, stream, slot);
      return;
    }
  }
  try {
    free_slowly(pointer, device, stream);
  } catch (...) {
    // It is called from destructors. The block stays taken.
  }
}

// For torch.cuda.MemPool: PyTorch's own allocator cuts these segments, and takes null for a lack of memory.
EXPORT void* gpumem_torch_segment_alloc(ssize_t size, int device, cudaStream_t /*stream*/) {
  State& all = state();
  void* pointer = nullptr;
  try {
    gpumem_pool pool = nullptr;
    {
      const Lock lock = enter(all);
      pool = device_at(all, device).pool.load();
    }
    (void)gpumem_pool_alloc(pool, static_cast<uint64_t>(size), nullptr, &pointer, nullptr);
  } catch (...) {
    return nullptr;
  }
  return pointer;
}

EXPORT void gpumem_torch_init(int /*device_count*/) {
  State& all = state();
  const Lock lock = enter(all);
  open(all);
}

// torch.cuda.empty_cache().
EXPORT void gpumem_torch_reset() {
  State& all = state();
  if (all.forked.load()) return;
  for (int ordinal = 0; ordinal < kDevices; ++ordinal) {
    const gpumem_pool pool = all.devices[static_cast<size_t>(ordinal)].pool.load();
    if (pool == nullptr) continue;
    reclaim(all, ordinal);
    (void)gpumem_pool_trim(pool, 0, nullptr, nullptr);
  }
}

EXPORT void gpumem_torch_memory_fraction(double fraction, int ordinal) {
  State& all = state();
  const Lock lock = enter(all);
  Device& device = device_at(all, ordinal);
  gpumem_error error = no_error();
  uint64_t free_bytes = 0, total = 0;
  require(gpumem_device_get_memory(device.device, &free_bytes, &total, &error),
          "gpumem cannot ask for the memory of the GPU", error);
  device.limit = std::max(uint64_t{1}, static_cast<uint64_t>(static_cast<double>(total) * fraction));
  apply_limit(all, ordinal);
}

EXPORT void* gpumem_torch_base_alloc(void* pointer, size_t* size) {
  State& all = state();
  gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
  if (GPUMEM_FAILED(gpumem_pool_get_block_info(all.instance, pointer, &info, nullptr))) return pointer;
  if (size != nullptr) *size = info.usable_size;
  return info.base;
}

EXPORT void gpumem_torch_record_stream(void* pointer, cudaStream_t native) {
  State& all = state();
  if (pointer == nullptr || all.forked.load()) return;
  const Lock lock(all.mutex);
  for (const auto& [key, one] : all.privates) {
    Arena::Block* const block = one->arena.find(pointer);
    if (block == nullptr) continue;
    block->used_elsewhere = block->used_elsewhere || native != block->stream;
    return;
  }
  gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
  if (GPUMEM_FAILED(gpumem_pool_get_block_info(all.instance, pointer, &info, nullptr))) return;
  for (int ordinal = 0; ordinal < kDevices; ++ordinal) {
    if (info.pool != all.devices[static_cast<size_t>(ordinal)].pool.load()) continue;
    const StreamHandle stream(all, ordinal, native);
    if (stream.get() == nullptr)
      throw std::runtime_error("record_stream: gpumem does not know such a stream on the GPU of the tensor");
    if (!all.routes.empty() && is_captured(all, ordinal, native)) {
      all.deferred.push_back({ordinal, pointer, native, Deferred::kUse});
      return;
    }
    gpumem_error error = no_error();
    require(gpumem_pool_record_use(info.pool, pointer, stream.get(), &error), "record_stream", error);
    return;
  }
}

EXPORT void gpumem_torch_begin_allocate_to_pool(int ordinal, MempoolId id, Filter filter) {
  State& all = state();
  require_parent(all);
  const std::lock_guard alone(all.waits);
  Lock lock(all.mutex);
  Device& device = device_at(all, ordinal);
  const bool reclaims = std::any_of(all.privates.begin(), all.privates.end(), [&](const auto& entry) {
    return entry.first.first == ordinal && entry.second->over();
  });
  if (reclaims) {  // since nothing can be while this capture runs
    lock.unlock();
    reclaim_alone(all, ordinal);
    lock.lock();
  }
  drop_failed_captures(all);
  for (const Route& route : all.routes) {
    if (route.device == ordinal && route.id == id)
      throw std::runtime_error("beginAllocateToPool: already recording to this private pool");
  }
  auto found = all.privates.find({ordinal, id});
  if (found == all.privates.end()) {
    const std::string name = "torch (" + std::to_string(id.first) + ", " + std::to_string(id.second) + ")";
    const gpumem_pool pool = make_pool(device, name.c_str());
    try {
      found = all.privates.emplace(std::pair(ordinal, id), std::make_unique<Private>(pool)).first;
    } catch (...) {
      (void)gpumem_pool_destroy(pool, nullptr);
      throw;
    }
  }
  all.routes.push_back({ordinal, id, std::move(filter)});
  ++found->second->uses;
  all.route_count.store(all.routes.size());
}

EXPORT void gpumem_torch_end_allocate_to_pool(int ordinal, MempoolId id) {
  State& all = state();
  const Lock lock = enter(all);
  const auto found = std::find_if(all.routes.begin(), all.routes.end(), [&](const Route& route) {
    return route.device == ordinal && route.id == id;
  });
  if (found != all.routes.end()) {
    all.routes.erase(found);
    all.route_count.store(all.routes.size());
  } else {
    // Another thread may have looked just after the end of the capture.
    const auto owner = all.privates.find({ordinal, id});
    if (owner == all.privates.end() || !owner->second->dropped)
      throw std::runtime_error("endAllocateToPool: not recording to this private pool");
    owner->second->dropped = false;
  }
  settle_deferred(all);
}

EXPORT void gpumem_torch_release_pool(int ordinal, MempoolId id) {
  State& all = state();
  if (all.forked.load()) return;
  const Lock lock(all.mutex);
  const auto found = all.privates.find({ordinal, id});
  if (found == all.privates.end()) return;
  --found->second->uses;
  ++found->second->ends;
}

// ---- what gpumem.adapters.torch calls: the names and the order of the fields are in
// bindings/python/gpumem/adapters/torch.py ----

struct gpumem_torch_stats {
  uint64_t live_count, live_bytes, reserved_bytes, segment_count;
  uint64_t peak_live_count, peak_live_bytes, peak_reserved_bytes;
  uint64_t total_count, total_bytes, grow_count, release_count;
  uint64_t retry_count, failure_count, limit, total_memory;
};

// 0 if the device has no pool yet.
EXPORT int gpumem_torch_get_stats(int ordinal, gpumem_torch_stats* out) {
  State& all = state();
  *out = {};
  if (all.forked.load() || ordinal < 0 || ordinal >= kDevices) return 0;
  const Lock lock(all.mutex);
  const Device& device = all.devices[static_cast<size_t>(ordinal)];
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  if (device.pool.load() == nullptr ||
      GPUMEM_FAILED(gpumem_pool_get_info(device.pool.load(), &info, nullptr)))
    return 0;
  *out = {info.live_count,          info.live_bytes,      info.reserved_bytes,
          info.segment_count,       info.peak_live_count, info.peak_live_bytes,
          info.peak_reserved_bytes, info.total_count,     info.total_bytes,
          info.grow_count,          info.release_count,   device.retries,
          device.failures,          device.limit,         0};
  for (const auto& [key, one] : all.privates) {
    if (key.first != ordinal) continue;
    const Arena::Counts& counts = one->arena.counts();
    out->live_count += counts.live_count;
    out->live_bytes += counts.live_bytes;
    out->reserved_bytes += counts.reserved;
    out->segment_count += counts.segments;
    out->peak_live_count += counts.peak_count;
    out->peak_live_bytes += counts.peak_bytes;
    out->peak_reserved_bytes += counts.peak_reserved;
    out->total_count += counts.total_count;
    out->total_bytes += counts.total_bytes;
  }
  uint64_t free_bytes = 0;
  (void)gpumem_device_get_memory(device.device, &free_bytes, &out->total_memory, nullptr);
  return 1;
}

EXPORT void gpumem_torch_reset_peaks(int ordinal) {
  State& all = state();
  if (all.forked.load() || ordinal < 0 || ordinal >= kDevices) return;
  const Lock lock(all.mutex);
  const gpumem_pool pool = all.devices[static_cast<size_t>(ordinal)].pool.load();
  if (pool != nullptr) (void)gpumem_pool_reset_peaks(pool, nullptr);
  for (const auto& [key, one] : all.privates) {
    if (key.first == ordinal) one->arena.reset_peaks();
  }
}

// Hooks of PyTorch that may throw, for ctypes.
EXPORT gpumem_status gpumem_torch_try_reset(gpumem_error* error) {
  return without_exceptions(error, [] { gpumem_torch_reset(); });
}

EXPORT gpumem_status gpumem_torch_try_memory_fraction(double fraction, int ordinal, gpumem_error* error) {
  return without_exceptions(error, [&] { gpumem_torch_memory_fraction(fraction, ordinal); });
}

// The pool of a device, or null.
EXPORT gpumem_pool gpumem_torch_pool(int ordinal) {
  return ordinal < 0 || ordinal >= kDevices ? nullptr
                                            : state().devices[static_cast<size_t>(ordinal)].pool.load();
}

struct gpumem_torch_block {
  uint64_t first, second;  // of the private pool
  uint64_t device, stream, address, size;
  uint64_t begins_segment;
  uint64_t state;  // 0 free, 1 live, 2 freed but awaiting the work of other streams
};

// The blocks of private pools. Writes at most `capacity`, and returns how many there are.
EXPORT uint64_t gpumem_torch_get_blocks(gpumem_torch_block* out, uint64_t capacity) {
  State& all = state();
  if (all.forked.load()) return 0;
  const Lock lock(all.mutex);
  uint64_t count = 0;
  for (const auto& [key, one] : all.privates) {
    for (const auto& [address, block] : one->arena.blocks()) {
      if (count < capacity) {
        out[count] = {key.second.first,
                      key.second.second,
                      static_cast<uint64_t>(key.first),
                      reinterpret_cast<uintptr_t>(block.stream),
                      address,
                      block.size,
                      block.first,
                      block.free       ? 0u
                      : block.awaiting ? 2u
                                       : 1u};
      }
      ++count;
    }
  }
  return count;
}
