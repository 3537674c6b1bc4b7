// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The model behind the fake driver: what exists, how it is found, and the few helpers that every entry point
// uses. Entry points run one at a time under Driver::mutex (see entry.cpp); only waits and the streams'
// workers release it.
#pragma once

#define __CUDA_API_VERSION_INTERNAL  // declares every variant of a function under its exported name
#include <cuda.h>
#include <cudaTypedefs.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cuda.h"

// From cudaGL.h, which needs headers of OpenGL for its numbers.
extern "C" {
CUresult CUDAAPI cuGLGetDevices_v2(unsigned* count, CUdevice* devices, unsigned room, unsigned list);
CUresult CUDAAPI cuGraphicsGLRegisterBuffer(CUgraphicsResource* resource, unsigned buffer, unsigned flags);
CUresult CUDAAPI cuGraphicsGLRegisterImage(CUgraphicsResource* resource, unsigned image, unsigned target,
                                           unsigned flags);
}
using PFN_cuGLGetDevices_v6050 = decltype(&::cuGLGetDevices_v2);
using PFN_cuGraphicsGLRegisterBuffer_v3000 = decltype(&::cuGraphicsGLRegisterBuffer);
using PFN_cuGraphicsGLRegisterImage_v3000 = decltype(&::cuGraphicsGLRegisterImage);

namespace fake {

// Of streams; the least is 0.
constexpr int kGreatestPriority = -5;

// Bodies of the entry points; the prototypes are the Toolkit's.
#define ENTRY(base, symbol, version, rules) decltype(::symbol) symbol;
#include "entries.inc"
#undef ENTRY

inline constexpr int kNewest = 13000;
inline constexpr size_t kPage = 4096;
inline constexpr size_t kSlab = size_t{2} << 20;

// Ends the entry point that is running with this code.
struct Failure {
  CUresult code;
};

inline void require(bool condition, CUresult code = CUDA_ERROR_INVALID_VALUE) {
  if (!condition) throw Failure{code};
}

// --- Settings, faults and violations (control.cpp) ---

struct Config {
  int devices = 1;
  uint64_t memory = uint64_t{256} << 20;
  uint64_t granularity = kSlab;
  uint64_t registrations = UINT64_MAX;
  uint64_t graph_memory = 0;  // of each device, used by no graph
  bool write_combined_differs = false;
  bool reuse_streams = false;
  bool numa_advice = false;
  bool imex = false;
  bool all_peers = true;
  std::set<std::pair<int, int>> peers;
  unsigned delay_us = 0;
  unsigned pointer_delay_us = 0;
  unsigned init_delay_us = 0;
  CUresult init = CUDA_SUCCESS;
  uint64_t sticky_at = 0;
  CUresult sticky_code = CUDA_SUCCESS;
  bool needs_context = false;
  bool leaks_at_exit = false;
  std::map<std::pair<int, int>, int> attributes;  // (device or -1, attribute) -> value
};

struct FaultRule {
  std::string function;
  uint64_t remaining;
  bool persistent;
  CUresult code;
};

void violation(const std::string& kind, const std::string& text);
CUresult apply_fault_rules(const char* base, const char* symbol);
void lose_device(int ordinal, CUresult code);
bool in_forked_child();
void watch_for_fork_and_exit();

// --- Memory ---

struct Device;
struct Context;
struct Stream;

// Bytes that the fake reaches through `bytes`; an operation in flight keeps them alive after they were freed.
struct Backing {
  enum class Sharing { kFile, kAnonymous, kInherited };
  Backing(size_t size, Sharing sharing, uintptr_t hint = 0, const char* name = "fake_cuda");
  Backing(size_t size, int file);  // of another process; takes the file over if it succeeds
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  size_t size;
  int file = -1;
  char* bytes = nullptr;
};

// A range of addresses that the CPU cannot touch and a forked child does not have.
uintptr_t reserve_addresses(size_t size, size_t alignment, uintptr_t hint = 0);
void release_addresses(uintptr_t address, size_t size);

enum class Kind { kDevice, kManaged, kPinned, kRegistered, kMapping, kImported };

struct Block {
  size_t size;
  CUmemAllocationProp properties;
  std::shared_ptr<Backing> backing;
  Device* device;           // null for host memory
  bool imported = false;    // charged to nobody
  bool decompress = false;  // made for a decompression engine
  uint64_t id;
  unsigned handles;
  unsigned mappings;
};

// Where small allocations of one kind and device lie side by side, as the driver places them.
struct Slab {
  Kind kind;
  unsigned flags;  // of the first allocation, which the driver tells of the later ones too
  Device* device;
  uint64_t charged;
  uintptr_t address;
  std::shared_ptr<Backing> backing;
  std::map<size_t, size_t> used;  // offset -> size
  size_t used_bytes = 0;          // so that full ones are passed over
};

using Clock = std::map<uint64_t, uint64_t>;  // stream id -> number of an operation

// What is known of a page of managed memory.
struct Page {
  bool read_mostly = false;
  CUmemLocation preferred{CU_MEM_LOCATION_TYPE_INVALID, CU_DEVICE_INVALID};
  CUmemLocation prefetched{CU_MEM_LOCATION_TYPE_INVALID, CU_DEVICE_INVALID};
  std::set<int> accessed_by;  // ordinals, and CU_DEVICE_CPU
};

// Of cuMemPoolCreate.
struct Pool {
  CUmemoryPool handle;
  Device* device;  // null for one of the host, and one of managed memory that prefers no device
  Kind kind;
  bool internal_dependencies = true;
  std::set<int> access;  // ordinals of devices, besides its own
};

struct Memory {
  Kind kind;
  uintptr_t address = 0;  // what the caller of the driver got or gave
  uintptr_t device_address = 0;
  size_t size = 0;
  size_t front = 0;                  // in a pool: bytes of its slab before it
  std::shared_ptr<Pool> pool;        // null: the current one of its device
  std::shared_ptr<Stream> freed_in;  // in a pool: the stream in which it goes back, and when
  uint64_t freed_at = 0;
  char* bytes = nullptr;  // where the fake reads and writes
  std::shared_ptr<Backing> backing;
  std::shared_ptr<Slab> slab;
  std::shared_ptr<Context> context;
  Device* device = nullptr;
  unsigned flags = 0;
  bool read_only = false;
  uint64_t id = 0;
  Clock uses;
  std::map<size_t, Page> pages;              // kManaged: by number, as they are first spoken of
  std::shared_ptr<Block> block;              // kMapping
  std::map<int, unsigned long long> access;  // kMapping: device ordinal, or kHost -> flags
  static constexpr int kHost = -1;
  ino_t file = 0;                        // kImported: tells one block of the exporter from another
  std::map<uintptr_t, unsigned> opened;  // kImported: address that was answered -> how often
};

// Of cuMemAllocAsync or cuMemAllocFromPoolAsync.
inline bool in_pool(const Memory& memory) { return memory.front != 0; }

inline bool is_device_memory(const Memory& memory) {
  return memory.kind == Kind::kDevice || memory.kind == Kind::kImported;
}

struct Located {
  std::shared_ptr<Memory> memory;
  size_t offset = 0;
  uintptr_t start = 0;  // of the host or the device range, whichever the address lies in
};

// What a processor (a device's ordinal, or kHost) may do through a mapping: CUmemAccess_flags.
unsigned long long rights_of(const Memory& mapping, int processor);
Located locate(uintptr_t address);
void add_memory(const std::shared_ptr<Memory>& memory);
void remove_memory(const std::shared_ptr<Memory>& memory);
void check_idle(const Memory& memory, const char* what);

// Memory that a call gives back. The driver does not survive it if it is asked at the same time what is
// there.
class Ending {
 public:
  explicit Ending(uintptr_t address);  // of the memory that begins there
  Ending(uintptr_t address, size_t size);
  ~Ending();
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

 private:
  std::list<std::pair<uintptr_t, size_t>>::iterator place_;
};

// An address that a call tells about. It takes as long as the setting says, and others can come in between.
class Asking {
 public:
  explicit Asking(uintptr_t address);
  ~Asking();
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  const std::multiset<uintptr_t>::iterator place_;
};

void free_memory_of(const Context& context);

// Whether another process has the block open (ipc.cpp).
bool is_imported_elsewhere(const Backing& backing);
// What the file of a slab is called, by which other processes find it.
std::string name_of_slab(uintptr_t address, const Device& device);
bool is_readable(uintptr_t address);
size_t reservation_around(uintptr_t address, uintptr_t* base);  // size, 0 for none
void charge(Device& device, uint64_t size);

// --- Devices and contexts ---

struct Device {
  int ordinal;
  uint64_t used = 0;
  uint64_t trimmed = 0;  // of Config::graph_memory
  CUresult sticky = CUDA_SUCCESS;
  std::shared_ptr<Context> primary;
  unsigned primary_retains = 0;
  std::vector<std::shared_ptr<Slab>> slabs;
};

// Whether a device has access to memory of a pool. All reach managed memory.
inline bool lets(const Memory& memory, const Device& device) {
  if (memory.kind == Kind::kManaged) return true;
  if (memory.kind == Kind::kDevice && memory.device == &device) return true;
  return memory.pool && memory.pool->access.contains(device.ordinal);
}

struct Context {
  Device* device;
  CUcontext handle;
  bool primary;
  bool alive;
  unsigned flags = 0;
  std::set<CUcontext> peers;
  std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
  Clock ended;  // last operations of destroyed streams, until the context is synchronized
};

// --- Streams and events ---

struct Point {
  std::shared_ptr<Stream> stream;
  uint64_t number;
};

struct Operation {
  uint64_t number;
  std::vector<Point> after;
  std::function<void()> run;
};

// Ends with the last graph that retains it.
struct UserObject {
  UserObject(CUhostFn function, void* argument) : destroy(function), object(argument) {}
  UserObject(const UserObject&) = delete;
  UserObject& operator=(const UserObject&) = delete;
  ~UserObject() { destroy(object); }
  CUhostFn destroy;
  void* object;
};

struct Graph {
  std::vector<std::function<void()>> nodes;
  std::vector<std::shared_ptr<UserObject>> retained;
};

// Of the stream that began it and of all that have joined it by events.
struct Capture {
  uint64_t id = 0;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;  // NONE once it has ended
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  std::vector<std::weak_ptr<Stream>> streams;  // the first one began it
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  CUgraph handle = nullptr;  // of the graph, once it was asked for
};

struct Stream {
  uint64_t id;
  CUstream handle;
  std::shared_ptr<Context> context;
  unsigned flags;
  int priority;
  bool per_thread = false;  // the driver's own, for CU_STREAM_PER_THREAD
  std::deque<Operation> queue;
  uint64_t enqueued = 0;
  uint64_t completed = 0;
  Clock clock;  // what the stream's last operation is ordered behind, itself excluded
  bool destroyed = false;
  bool running = false;  // the worker is inside an operation
  bool in_host_function = false;
  bool finished = false;  // the worker has ended and can be joined
  std::atomic<bool> abandoned = false;
  std::thread worker;
  std::shared_ptr<Capture> capture;
  Clock
      captured;  // what the next captured operation is ordered behind, by captured operations of each stream
};

struct Record {
  Point point;
  Clock clock;
  std::chrono::steady_clock::time_point time;
  uint64_t ticket = 0;  // in the page of a shared event
};

// What the processes know of an event that they share: a page of memory that all of them map (ipc.cpp).
class SharedEvent {
 public:
  explicit SharedEvent(uint64_t id);  // a new one, which keeps the file for others to find
  explicit SharedEvent(int file);     // of another process; the file stays the caller's
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  uint64_t latest() const;  // ticket of the most recent record of any process, 0 for none
  void enlist();            // before the first record of this process
  uint64_t add_record();    // from now on the most recent one
  void complete(uint64_t ticket);
  bool is_complete(uint64_t ticket) const;  // also when the process that recorded it has ended
  // The same after a wait for a moment. Called without the driver's lock.
  bool await(uint64_t ticket) const;

  const uint64_t id;  // 0 for one of another process

 private:
  struct Page;
  Page* page_ = nullptr;
  int file_ = -1;
  std::atomic<unsigned> place_ = 0;  // of this process in the page, from 1 on
};

struct Event {
  std::shared_ptr<Context> context;
  unsigned flags;
  std::shared_ptr<Record> record;
  std::shared_ptr<Capture> captured_in;  // when last recorded in a capture
  Clock captured;
  std::shared_ptr<SharedEvent> shared;  // CU_EVENT_INTERPROCESS
};

// Captured operations, which run one after the other. Instantiating a graph makes another one of the same.
struct Module {
  std::shared_ptr<Context> context;
  CUfunction function;
};

std::shared_ptr<Event> find_event(CUevent handle);
// Of a device that is not lost.
std::shared_ptr<Stream> find_stream(CUstream handle);
void enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> run,
             const std::vector<std::shared_ptr<Memory>>& uses = {}, std::vector<Point> after = {});
void synchronize(const std::shared_ptr<Stream>& stream);
void synchronize(Context& context);
void drain(const Context& context);  // waits for all its work, which does not count as seen complete
bool settle();                       // called without the lock
CUresult refuse_in_capture();
void abandon_streams(const Context* context);  // null: of all contexts
void join_retired_workers();
// Waits before for operations that are running: most end by themselves soon.
void settle_retired_workers(std::chrono::milliseconds limit);

// --- The driver ---

// Objects by handle. A handle is a number dressed as a pointer and is never used twice.
template <class Object>
class Table {
 public:
  std::shared_ptr<Object> find(const void* handle) const {
    auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  void add(const void* handle, std::shared_ptr<Object> object) {
    objects_[reinterpret_cast<uintptr_t>(handle)] = std::move(object);
  }
  void remove(const void* handle) { objects_.erase(reinterpret_cast<uintptr_t>(handle)); }
  void clear() { objects_.clear(); }
  size_t size() const { return objects_.size(); }
  const std::map<uintptr_t, std::shared_ptr<Object>>& all() const { return objects_; }

 private:
  std::map<uintptr_t, std::shared_ptr<Object>> objects_;
};

struct Driver {
  std::mutex mutex;
  std::condition_variable progress;  // an operation was enqueued or has completed

  Config config;
  std::atomic<int> version = kNewest;  // read by dlsym, under the loader's lock and so without ours
  std::vector<FaultRule> rules;
  uint64_t failures = 0;
  std::vector<uint64_t> calls;
  uint64_t all_calls = 0;

  std::atomic<uint64_t> generation = 1;  // of the context stacks
  bool initialized = false;
  bool exiting = false;
  uint64_t next_id = 1;
  CUstream last_destroyed = nullptr;  // the next stream's handle, if they are to be reused

  std::vector<std::unique_ptr<Device>> devices;
  Table<Context> contexts;
  Table<Stream> streams;
  Table<Event> events;
  Table<Module> modules;
  Table<Pool> pools;
  Table<Graph> graphs;
  Table<Graph> executables;
  Table<UserObject> user_objects;
  std::map<uintptr_t, std::shared_ptr<Memory>> memory;  // by host address and by device address
  std::map<uintptr_t, size_t> reservations;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Block>> blocks;
  std::multiset<uintptr_t> asked;                  // by calls that are under way
  std::list<std::pair<uintptr_t, size_t>> ending;  // ranges that calls are giving back
  std::set<uintptr_t> freed;                       // bases, to tell a double free from a stray one
  Clock observed;
  std::vector<std::shared_ptr<Stream>> retired;  // destroyed, worker not joined yet
};

Driver& driver();
void read_environment(Driver& driver);
uint64_t calls_of(const std::string& function);
bool is_entry_point(const std::string& function);

inline uint64_t next_id() { return driver().next_id++; }
template <class Handle>
Handle next_handle() {
  return reinterpret_cast<Handle>(static_cast<uintptr_t>(0x10000 + 16 * next_id()));
}

// Waits until `ready` holds, letting other calls and the workers go on.
void wait_until(const std::function<bool()>& ready);
void wait_until_or(const std::function<bool()>& ready, std::chrono::milliseconds limit);
void pause(unsigned microseconds);  // the same
void without_lock(const std::function<void()>& run);

// The calling thread's stack of current contexts.
std::vector<CUcontext>& context_stack();
CUstreamCaptureMode& capture_mode_of_thread();

Device& find_device(CUdevice device);
std::shared_ptr<Context> find_context(CUcontext handle);
std::shared_ptr<Context> current_context();
int attribute(const Device& device, int number);
inline bool knows_fabric() { return driver().version >= 12030; }
bool can_access_peer(const Device& device, const Device& peer);
bool node_exists(int node);
void require_healthy(const Device& device);
uint64_t live(int object);

// True on a worker thread while it runs a host function.
extern thread_local bool t_in_host_function;

}  // namespace fake
