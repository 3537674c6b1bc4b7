// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What every file of facts shares: the driver's entry points, how a fact is declared and printed, and small
// helpers.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <sys/mman.h>
#include <sys/types.h>

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace facts {

// A driver entry point; one that this driver lacks answers NOT_FOUND instead of crashing.
template <typename Function>
struct Entry;
template <typename... Args>
struct Entry<CUresult (*)(Args...)> {
  CUresult (*address)(Args...) = nullptr;
  CUresult operator()(Args... args) const { return address ? address(args...) : CUDA_ERROR_NOT_FOUND; }
};

// X(member, symbol without "cu", version of the signature)
#define FACTS_ENTRIES(X)                                                               \
  X(Init, Init, 2000)                                                                  \
  X(DriverGetVersion, DriverGetVersion, 2020)                                          \
  X(GetErrorName, GetErrorName, 6000)                                                  \
  X(DeviceGet, DeviceGet, 2000)                                                        \
  X(DeviceGetCount, DeviceGetCount, 2000)                                              \
  X(DeviceGetName, DeviceGetName, 2000)                                                \
  X(DeviceGetUuid, DeviceGetUuid, 11040)                                               \
  X(DeviceTotalMem, DeviceTotalMem, 3020)                                              \
  X(DeviceGetAttribute, DeviceGetAttribute, 2000)                                      \
  X(DevicePrimaryCtxRetain, DevicePrimaryCtxRetain, 7000)                              \
  X(DevicePrimaryCtxRelease, DevicePrimaryCtxRelease, 11000)                           \
  X(DevicePrimaryCtxGetState, DevicePrimaryCtxGetState, 7000)                          \
  X(DeviceCanAccessPeer, DeviceCanAccessPeer, 4000)                                    \
  X(CtxCreate, CtxCreate, 3020)                                                        \
  X(CtxDestroy, CtxDestroy, 4000)                                                      \
  X(CtxPushCurrent, CtxPushCurrent, 4000)                                              \
  X(CtxPopCurrent, CtxPopCurrent, 4000)                                                \
  X(CtxSetCurrent, CtxSetCurrent, 4000)                                                \
  X(CtxGetCurrent, CtxGetCurrent, 4000)                                                \
  X(CtxGetDevice, CtxGetDevice, 2000)                                                  \
  X(CtxSynchronize, CtxSynchronize, 2000)                                              \
  X(ModuleLoadData, ModuleLoadData, 2000)                                              \
  X(ModuleGetFunction, ModuleGetFunction, 2000)                                        \
  X(LaunchKernel, LaunchKernel, 4000)                                                  \
  X(LaunchHostFunc, LaunchHostFunc, 10000)                                             \
  X(MemGetInfo, MemGetInfo, 3020)                                                      \
  X(MemAlloc, MemAlloc, 3020)                                                          \
  X(MemFree, MemFree, 3020)                                                            \
  X(MemGetAddressRange, MemGetAddressRange, 3020)                                      \
  X(MemAllocManaged, MemAllocManaged, 6000)                                            \
  X(MemHostAlloc, MemHostAlloc, 2020)                                                  \
  X(MemFreeHost, MemFreeHost, 2000)                                                    \
  X(MemHostGetDevicePointer, MemHostGetDevicePointer, 3020)                            \
  X(MemHostGetFlags, MemHostGetFlags, 2030)                                            \
  X(MemHostRegister, MemHostRegister, 6050)                                            \
  X(MemHostUnregister, MemHostUnregister, 4000)                                        \
  X(Memcpy, Memcpy, 4000)                                                              \
  X(MemcpyHtoD, MemcpyHtoD, 3020)                                                      \
  X(MemcpyDtoH, MemcpyDtoH, 3020)                                                      \
  X(MemcpyDtoD, MemcpyDtoD, 3020)                                                      \
  X(MemcpyAsync, MemcpyAsync, 4000)                                                    \
  X(MemcpyHtoDAsync, MemcpyHtoDAsync, 3020)                                            \
  X(MemcpyDtoHAsync, MemcpyDtoHAsync, 3020)                                            \
  X(MemcpyDtoDAsync, MemcpyDtoDAsync, 3020)                                            \
  X(MemsetD8, MemsetD8, 3020)                                                          \
  X(MemsetD8Async, MemsetD8Async, 3020)                                                \
  X(MemsetD32, MemsetD32, 3020)                                                        \
  X(MemAllocAsync, MemAllocAsync, 11020)                                               \
  X(MemFreeAsync, MemFreeAsync, 11020)                                                 \
  X(PointerGetAttribute, PointerGetAttribute, 4000)                                    \
  X(PointerGetAttributes, PointerGetAttributes, 7000)                                  \
  X(StreamCreate, StreamCreate, 2000)                                                  \
  X(StreamDestroy, StreamDestroy, 4000)                                                \
  X(StreamQuery, StreamQuery, 2000)                                                    \
  X(StreamSynchronize, StreamSynchronize, 2000)                                        \
  X(StreamWaitEvent, StreamWaitEvent, 3020)                                            \
  X(StreamGetFlags, StreamGetFlags, 5050)                                              \
  X(StreamGetCtx, StreamGetCtx, 9020)                                                  \
  X(StreamAttachMemAsync, StreamAttachMemAsync, 6000)                                  \
  X(StreamWriteValue32, StreamWriteValue32, 11070)                                     \
  X(StreamWriteValue64, StreamWriteValue64, 11070)                                     \
  X(StreamWaitValue32, StreamWaitValue32, 11070)                                       \
  X(StreamWaitValue64, StreamWaitValue64, 11070)                                       \
  X(StreamBeginCapture, StreamBeginCapture, 10010)                                     \
  X(StreamEndCapture, StreamEndCapture, 10000)                                         \
  X(StreamIsCapturing, StreamIsCapturing, 10000)                                       \
  X(GraphGetNodes, GraphGetNodes, 10000)                                               \
  X(GraphDestroy, GraphDestroy, 10000)                                                 \
  X(EventCreate, EventCreate, 2000)                                                    \
  X(EventDestroy, EventDestroy, 4000)                                                  \
  X(EventRecord, EventRecord, 2000)                                                    \
  X(EventQuery, EventQuery, 2000)                                                      \
  X(EventSynchronize, EventSynchronize, 2000)                                          \
  X(EventElapsedTimeOld, EventElapsedTime, 2000)                                       \
  X(EventElapsedTime, EventElapsedTime, 12080)                                         \
  X(MemAdvise, MemAdvise, 12020)                                                       \
  X(MemPrefetchAsync, MemPrefetchAsync, 12020)                                         \
  X(MemPrefetchBatchAsync, MemPrefetchBatchAsync, 13000)                               \
  X(MemDiscardBatchAsync, MemDiscardBatchAsync, 13000)                                 \
  X(MemRangeGetAttribute, MemRangeGetAttribute, 8000)                                  \
  X(IpcGetMemHandle, IpcGetMemHandle, 4010)                                            \
  X(IpcOpenMemHandle, IpcOpenMemHandle, 11000)                                         \
  X(IpcCloseMemHandle, IpcCloseMemHandle, 4010)                                        \
  X(IpcGetEventHandle, IpcGetEventHandle, 4010)                                        \
  X(IpcOpenEventHandle, IpcOpenEventHandle, 4010)                                      \
  X(MemAddressReserve, MemAddressReserve, 10020)                                       \
  X(MemAddressFree, MemAddressFree, 10020)                                             \
  X(MemCreate, MemCreate, 10020)                                                       \
  X(MemRelease, MemRelease, 10020)                                                     \
  X(MemMap, MemMap, 10020)                                                             \
  X(MemUnmap, MemUnmap, 10020)                                                         \
  X(MemSetAccess, MemSetAccess, 10020)                                                 \
  X(MemGetAccess, MemGetAccess, 10020)                                                 \
  X(MemExportToShareableHandle, MemExportToShareableHandle, 10020)                     \
  X(MemImportFromShareableHandle, MemImportFromShareableHandle, 10020)                 \
  X(MemGetAllocationGranularity, MemGetAllocationGranularity, 10020)                   \
  X(MemGetAllocationPropertiesFromHandle, MemGetAllocationPropertiesFromHandle, 10020) \
  X(MemRetainAllocationHandle, MemRetainAllocationHandle, 11000)                       \
  X(MemGetHandleForAddressRange, MemGetHandleForAddressRange, 11070)

struct Driver {
#define FACTS_MEMBER(member, symbol, version) Entry<PFN_cu##symbol##_v##version> member;
  FACTS_ENTRIES(FACTS_MEMBER)
#undef FACTS_MEMBER
  void* library = nullptr;
  PFN_cuGetProcAddress_v12000 get_proc_address = nullptr;
};
extern Driver cu;

// What is done before a fact runs.
enum class Needs { kSymbols, kInit, kContext };

// One fact, or a few lines that belong together. Each runs in a process of its own; `arg` lets one function
// serve several.
struct Fact {
  const char* name;  // group.fact
  void (*run)(int arg);
  int arg = 0;
  Needs needs = Needs::kContext;
  int timeout_s = 60;
  bool as_nobody = false;  // the process gives up its privileges before it loads the driver
};

std::span<const Fact> process_facts();
std::span<const Fact> capability_facts();
std::span<const Fact> pin_facts();
std::span<const Fact> device_facts();
std::span<const Fact> pointer_facts();
std::span<const Fact> stream_facts();
std::span<const Fact> managed_facts();
std::span<const Fact> ipc_facts();
std::span<const Fact> vmm_facts();
std::span<const Fact> time_facts();
std::span<const Fact> race_facts();

// --- the process that runs a fact ---

// Empty when done, else one line that says why not.
std::string load_driver();
std::string prepare(const Fact& fact);

extern std::string current_fact;     // name of the fact that runs
extern std::string current_role;     // empty, or the part that this process plays as somebody's Peer
extern void (*after_driver_exit)();  // called late in exit(), when set

CUcontext context();  // the primary context of device 0, current in Needs::kContext facts

// --- printing: "<fact>.<detail>: <value>" ---

std::string text(CUresult code);
std::string yes(bool value);
std::string hex(std::uint64_t value);
void say(std::string_view detail, std::string_view value);
void say(std::string_view detail, CUresult code);
void say_number(std::string_view detail, long long value);
void say_yes(std::string_view detail, bool value);
// For what may differ from machine to machine: the line starts with '~'.
void say_machine(std::string_view detail, std::string_view value);

// For the steps that are not the question; throws, which ends the fact with a line that says where.
void must(CUresult code, const char* step);
[[noreturn]] void give_up(const std::string& why);

// --- memory, streams ---

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;
constexpr std::size_t kHuge = std::size_t{1} << 62;
constexpr std::size_t kPage = 4096;

// An enumeration value that the headers do not have.
template <typename Enum>
Enum stray(int value) {
  return std::bit_cast<Enum>(value);
}

inline CUdeviceptr as_device(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }
inline std::uint8_t* as_host(CUdeviceptr p) { return reinterpret_cast<std::uint8_t*>(p); }

CUdeviceptr device_memory(std::size_t size);
std::uint8_t* pinned_memory(std::size_t size, unsigned flags = 0);
CUdeviceptr managed_memory(std::size_t size, unsigned flags = CU_MEM_ATTACH_GLOBAL);
// Pages of the CPU's own, populated if they can be written.
std::uint8_t* cpu_memory(std::size_t size, int protection = PROT_READ | PROT_WRITE,
                         int flags = MAP_PRIVATE | MAP_ANONYMOUS);
std::uint8_t* registered_memory(std::size_t size, unsigned flags = 0);
std::uint8_t* unmapped_address(std::size_t size);
CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING);
CUevent new_event(unsigned flags = CU_EVENT_DEFAULT);

bool all_bytes(const std::uint8_t* p, std::size_t size, std::uint8_t value);
// Reads through the driver. False also when the copy fails.
bool device_bytes(CUdeviceptr p, std::size_t size, std::uint8_t value);

// "ok", or the signal that a one-byte access of the CPU raised.
std::string touch_read(const void* p);
std::string touch_write(void* p, std::uint8_t value);

// For what ends long before: a busy machine must not change the answer.
constexpr int kLongMs = 20000;

// Polls the stream; "still CUDA_ERROR_NOT_READY" after the limit.
std::string settle(CUstream stream, int limit_ms = kLongMs);

// Holds a stream by a host function that waits, until release or the limit, whichever comes first.
class Hold {
 public:
  static constexpr int kShortMs = 1500;  // for a call that waits for the stream: it takes so long

  explicit Hold(CUstream stream, int limit_ms = kLongMs);
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  bool active()
      const;  // false once the limit has ended it: whatever was called meanwhile has waited for the stream
  void release();

 private:
  struct State;
  static void CUDA_CB wait(void* state);
  State* state_;  // never freed: the host function may outlive this object
};

// Small device programs.
enum class Kernel {
  kStoreByte,     // (u64 address, u32 value)
  kWaitThenFill,  // (u64 flag, u64 address, u64 bytes, u32 value): waits up to 2 s until *flag is not 0, then
                  // fills
};
CUfunction kernel(Kernel which);
CUresult launch(CUfunction function, CUstream stream, void** params);
// Says what a device's write to `target` is answered, and what comes of it: a fill (0), what `from_host`
// copies (1), a copy on the device (2), or a kernel's store (3).
void try_device_write(int which, CUdeviceptr target, const std::function<CUresult(CUstream)>& from_host);

// --- other processes ---

// "exit N", "signal SIGSEGV".
std::string ending(int wait_status);

// Forks without exec, runs the action in the child and says how it ended; an action that returns ends it with
// "exit N".
std::string in_fork(const std::function<int()>& action);

// A second process that runs the same fact in another role, with a socket between the two.
class Peer {
 public:
  explicit Peer(const char* role);  // starts the process
  static Peer other_side();         // for the started process
  Peer(Peer&& other) noexcept : pid_(other.pid_), socket_(other.socket_) {
    other.pid_ = -1;
    other.socket_ = -1;
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  Peer& operator=(Peer&&) = delete;
  ~Peer();

  void send(const void* bytes, std::size_t size);
  void receive(void* bytes, std::size_t size);
  void send_fd(int fd);
  int receive_fd();
  void signal() { send("x", 1); }
  void await() {
    char byte;
    receive(&byte, 1);
  }
  void await_end();  // the other side sends a byte, or has gone
  std::string wait_for_end();
  void kill();

 private:
  Peer(pid_t pid, int socket) : pid_(pid), socket_(socket) {}
  pid_t pid_;
  int socket_;
};

}  // namespace facts
