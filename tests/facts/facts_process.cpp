// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Facts about the driver as a whole: before it is initialised, without a context, after fork, at exit, and
// its entry point lookup.
#include "facts.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

namespace facts {
namespace {

void version(int) {
  int number = 0;
  say("code", cu.DriverGetVersion(&number));
  say_machine("version", std::to_string(number));
  say("null", cu.DriverGetVersion(nullptr));
}

void error_names(int) {
  const char* name = "unchanged";
  say("unknown_code", cu.GetErrorName(stray<CUresult>(12345), &name));
  say("unknown_name", name ? name : "null");
  say("null", cu.GetErrorName(CUDA_SUCCESS, nullptr));
}

void before_init(int) {
  int number = 0;
  CUdevice device = 0;
  CUdeviceptr p = 0;
  void* host = nullptr;
  CUcontext ctx = nullptr;
  std::size_t bytes = 0;
  say("cuDriverGetVersion", cu.DriverGetVersion(&number));
  say("cuDeviceGetCount", cu.DeviceGetCount(&number));
  say("cuDeviceGet", cu.DeviceGet(&device, 0));
  say("cuCtxGetCurrent", cu.CtxGetCurrent(&ctx));
  say("cuCtxSetCurrent_null", cu.CtxSetCurrent(nullptr));
  say("cuDevicePrimaryCtxRetain", cu.DevicePrimaryCtxRetain(&ctx, 0));
  say("cuMemAlloc", cu.MemAlloc(&p, 4096));
  say("cuMemFree_0", cu.MemFree(0));
  say("cuMemHostAlloc", cu.MemHostAlloc(&host, 4096, 0));
  say("cuMemGetInfo", cu.MemGetInfo(&bytes, &bytes));
  unsigned type = 0;
  say("cuPointerGetAttribute",
      cu.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, as_device(&type)));
  say("cuInit_flag_1", cu.Init(1));
  say("cuInit", cu.Init(0));
  say("cuInit_again", cu.Init(0));
  say("cuDeviceGetCount_null", cu.DeviceGetCount(nullptr));
  say("cuDeviceGet_minus_1", cu.DeviceGet(&device, -1));
  say("cuDeviceGet_99", cu.DeviceGet(&device, 99));
  say("cuDevicePrimaryCtxRetain_99", cu.DevicePrimaryCtxRetain(&ctx, 99));
  say("cuDevicePrimaryCtxRelease_unretained", cu.DevicePrimaryCtxRelease(0));
}

// Nothing is current, and the primary context does not exist either.
void without_context(int) {
  CUdeviceptr p = 0;
  void* host = nullptr;
  CUcontext ctx = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdevice device = 0;
  std::size_t size = 0;
  std::uint8_t* mine = cpu_memory(2 * kMiB);
  say("cuCtxGetCurrent", cu.CtxGetCurrent(&ctx));
  say("current", ctx ? "some" : "null");
  say("cuCtxGetDevice", cu.CtxGetDevice(&device));
  say("cuCtxPopCurrent", cu.CtxPopCurrent(&ctx));
  say("cuCtxPushCurrent_null", cu.CtxPushCurrent(nullptr));
  say("cuCtxSynchronize", cu.CtxSynchronize());
  say("cuMemAlloc", cu.MemAlloc(&p, 4096));
  say("cuMemAlloc_0", cu.MemAlloc(&p, 0));
  say("cuMemFree_0", cu.MemFree(0));
  say("cuMemFree_unknown", cu.MemFree(0x1000));
  say("cuMemAllocManaged", cu.MemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL));
  say("cuMemHostAlloc", cu.MemHostAlloc(&host, 4096, 0));
  say("cuMemHostRegister", cu.MemHostRegister(mine, kPage, 0));
  say("cuMemHostUnregister", cu.MemHostUnregister(mine));
  say("cuMemHostGetDevicePointer", cu.MemHostGetDevicePointer(&p, mine, 0));
  unsigned flags = 0;
  say("cuMemHostGetFlags", cu.MemHostGetFlags(&flags, mine));
  say("cuMemGetInfo", cu.MemGetInfo(&size, &size));
  say("cuMemGetAddressRange", cu.MemGetAddressRange(&p, &size, 0x1000));
  say("cuStreamCreate", cu.StreamCreate(&stream, 0));
  say("cuEventCreate", cu.EventCreate(&event, 0));
  say("cuStreamQuery_null", cu.StreamQuery(nullptr));
  say("cuMemcpy_of_cpu_memory", cu.Memcpy(as_device(mine), as_device(mine + kPage), 16));
  unsigned type = 0;
  say("cuPointerGetAttribute",
      cu.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, as_device(mine)));
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* answer = &type;
  say("cuPointerGetAttributes", cu.PointerGetAttributes(1, &asked, &answer, as_device(mine)));
  say("cuMemAddressReserve", cu.MemAddressReserve(&p, 2 * kMiB, 0, 0, 0));
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  say("cuMemCreate", cu.MemCreate(&handle, 2 * kMiB, &prop, 0));
  say("cuMemRelease", handle ? text(cu.MemRelease(handle)) : "no handle");
  say("cuMemGetAllocationGranularity",
      cu.MemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  unsigned primary_flags = 0;
  int active = 0;
  say("cuDevicePrimaryCtxGetState", cu.DevicePrimaryCtxGetState(0, &primary_flags, &active));
  say_number("primary_active", active);
}

// Objects exist, but the calling thread has no current context.
void context_taken_away(int) {
  const CUdeviceptr memory = device_memory(kMiB);
  std::uint8_t* pinned = pinned_memory(kMiB);
  std::uint8_t* registered = registered_memory(kMiB);
  const CUdeviceptr managed = managed_memory(2 * kMiB);
  CUstream stream = new_stream();
  CUevent event = new_event();
  must(cu.EventRecord(event, stream), "cuEventRecord");
  must(cu.CtxSetCurrent(nullptr), "cuCtxSetCurrent");
  CUdeviceptr base = 0;
  std::size_t size = 0;
  say("cuMemGetAddressRange", cu.MemGetAddressRange(&base, &size, memory));
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  unsigned type = 0;
  void* answer = &type;
  say("cuPointerGetAttributes", cu.PointerGetAttributes(1, &asked, &answer, memory));
  say_number("memory_type", type);
  unsigned flags = 0;
  say("cuMemHostGetFlags", cu.MemHostGetFlags(&flags, pinned));
  say("cuMemHostGetDevicePointer", cu.MemHostGetDevicePointer(&base, pinned, 0));
  say("cuMemcpyHtoDAsync_stream", cu.MemcpyHtoDAsync(memory, pinned, 64, stream));
  say("cuMemcpyAsync_stream", cu.MemcpyAsync(memory, as_device(pinned), 64, stream));
  say("cuMemsetD8Async_stream", cu.MemsetD8Async(memory, 1, 64, stream));
  say("cuMemcpyHtoD", cu.MemcpyHtoD(memory, pinned, 64));
  say("cuMemcpy", cu.Memcpy(memory, as_device(pinned), 64));
  say("cuMemsetD8", cu.MemsetD8(memory, 1, 64));
  say("cuLaunchHostFunc", cu.LaunchHostFunc(
                              stream, [](void*) {}, nullptr));
  say("cuStreamWriteValue32", cu.StreamWriteValue32(stream, memory, 1, 0));
  say("cuEventRecord", cu.EventRecord(event, stream));
  say("cuStreamWaitEvent", cu.StreamWaitEvent(stream, event, 0));
  say("cuStreamQuery_after_sync",
      cu.StreamSynchronize(stream) == CUDA_SUCCESS ? text(cu.StreamQuery(stream)) : "no");
  say("cuEventSynchronize", cu.EventSynchronize(event));
  say("cuEventQuery", cu.EventQuery(event));
  say("cuStreamIsCapturing", [&] {
    CUstreamCaptureStatus status;
    return cu.StreamIsCapturing(stream, &status);
  }());
  CUipcMemHandle ipc;
  say("cuIpcGetMemHandle", cu.IpcGetMemHandle(&ipc, memory));
  const CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  say("cuMemAdvise", cu.MemAdvise(managed, 2 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, host));
  say("cuMemPrefetchAsync_stream", cu.MemPrefetchAsync(managed, 2 * kMiB, host, 0, stream));
  int read_mostly = 0;
  say("cuMemRangeGetAttribute",
      cu.MemRangeGetAttribute(&read_mostly, sizeof read_mostly, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed,
                              2 * kMiB));
  say("cuMemHostUnregister", cu.MemHostUnregister(registered));
  say("cuEventDestroy", cu.EventDestroy(event));
  say("cuStreamDestroy", cu.StreamDestroy(stream));
  say("cuMemFree_managed", cu.MemFree(managed));
  say("cuMemFree", cu.MemFree(memory));
  say("cuMemFreeHost", cu.MemFreeHost(pinned));
  CUcontext now = nullptr;
  must(cu.CtxGetCurrent(&now), "cuCtxGetCurrent");
  say("current_at_end", now ? "some" : "null");
}

void context_stack(int) {
  CUcontext again = nullptr;
  say("retain_again", cu.DevicePrimaryCtxRetain(&again, 0));
  say_yes("retain_gives_same", again == context());
  CUcontext popped = nullptr;
  say("pop_after_set", cu.CtxPopCurrent(&popped));
  say_yes("popped_is_primary", popped == context());
  say("pop_empty", cu.CtxPopCurrent(&popped));
  say("push", cu.CtxPushCurrent(context()));
  say("push_same_again", cu.CtxPushCurrent(context()));
  say("pop", cu.CtxPopCurrent(&popped));
  say("set_null", cu.CtxSetCurrent(nullptr));
  say("pop_after_set_null", cu.CtxPopCurrent(&popped));
  say("push_null", cu.CtxPushCurrent(nullptr));
  must(cu.CtxSetCurrent(context()), "cuCtxSetCurrent");

  // Whether any of the common calls changes what is current.
  const CUdeviceptr p = device_memory(kMiB);
  std::uint8_t* host = pinned_memory(kMiB);
  CUstream stream = new_stream();
  (void)cu.MemcpyHtoDAsync(p, host, kMiB, stream);
  (void)cu.StreamSynchronize(stream);
  (void)cu.MemFree(p);
  (void)cu.MemFreeHost(host);
  (void)cu.MemAlloc(nullptr, 0);
  (void)cu.StreamDestroy(stream);
  CUcontext now = nullptr;
  must(cu.CtxGetCurrent(&now), "cuCtxGetCurrent");
  say_yes("current_unchanged_by_calls", now == context());

  CUdeviceptr made_elsewhere = 0;
  std::thread([&] {
    CUcontext mine = nullptr;
    (void)cu.CtxGetCurrent(&mine);
    say("new_thread_current", mine ? "some" : "null");
    say("new_thread_alloc", cu.MemAlloc(&made_elsewhere, kMiB));
    say("new_thread_set", cu.CtxSetCurrent(context()));
    say("new_thread_alloc_then", cu.MemAlloc(&made_elsewhere, kMiB));
  }).join();
  say("free_memory_of_ended_thread", cu.MemFree(made_elsewhere));
  say("pop_null_out", cu.CtxPopCurrent(nullptr));
}

void other_context(int) {
  const CUdeviceptr p = device_memory(kMiB);
  std::uint8_t* pinned = pinned_memory(kMiB);
  std::uint8_t* registered = registered_memory(kMiB);
  CUstream stream = new_stream();
  CUevent event = new_event();
  CUcontext second = nullptr;
  say("cuCtxCreate", cu.CtxCreate(&second, 0, 0));
  if (!second) return;
  CUevent its_event = new_event();
  CUstream its_stream = new_stream();
  say("record_event_of_first_on_stream_of_second", cu.EventRecord(event, its_stream));
  say("record_event_of_second_on_stream_of_first", cu.EventRecord(its_event, stream));
  say("record_own_event_while_other_is_current", cu.EventRecord(event, stream));
  say("wait_across", cu.StreamWaitEvent(its_stream, event, 0));
  say("copy_on_stream_of_first", cu.MemcpyHtoDAsync(p, pinned, 64, stream));
  say("copy_to_memory_of_first", cu.MemcpyHtoDAsync(p, pinned, 64, its_stream));
  say("sync_copy_to_memory_of_first", cu.MemcpyHtoD(p, pinned, 64));
  say("stream_sync_first", cu.StreamSynchronize(stream));
  say("stream_sync_second", cu.StreamSynchronize(its_stream));
  CUdeviceptr base = 0;
  std::size_t size = 0;
  say("address_range_of_first", cu.MemGetAddressRange(&base, &size, p));
  say("device_pointer_of_pinned_of_first", cu.MemHostGetDevicePointer(&base, pinned, 0));
  say("device_pointer_of_registered_of_first", cu.MemHostGetDevicePointer(&base, registered, 0));
  say("unregister_of_first", cu.MemHostUnregister(registered));
  say("free_host_of_first", cu.MemFreeHost(pinned));
  say("free_of_first", cu.MemFree(p));
  CUdeviceptr its_memory = 0;
  must(cu.MemAlloc(&its_memory, kMiB), "cuMemAlloc");
  std::uint8_t* its_pinned = pinned_memory(kMiB);
  say("destroy_second", cu.CtxDestroy(second));
  CUcontext now = nullptr;
  must(cu.CtxGetCurrent(&now), "cuCtxGetCurrent");
  say("current_after_destroy", now == context() ? "first" : now ? "other" : "null");
  (void)cu.CtxSetCurrent(context());
  say("free_memory_of_destroyed_context", cu.MemFree(its_memory));
  say("free_pinned_of_destroyed_context", cu.MemFreeHost(its_pinned));
  say("event_destroy_of_first", cu.EventDestroy(event));
}

// What a forked child finds at addresses of its parent, and what the driver tells it.
void forked_child(int) {
  std::uint8_t* pinned = pinned_memory(kMiB);
  std::uint8_t* portable = pinned_memory(kMiB, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  std::uint8_t* combined = pinned_memory(kMiB, CU_MEMHOSTALLOC_WRITECOMBINED);
  std::uint8_t* registered = registered_memory(kMiB);
  std::uint8_t* shared = cpu_memory(kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  must(cu.MemHostRegister(shared, kMiB, 0), "cuMemHostRegister");
  const CUdeviceptr device = device_memory(kMiB);
  const CUdeviceptr managed = managed_memory(2 * kMiB);
  std::memset(pinned, 0x21, kMiB);
  std::memset(portable, 0x22, kMiB);
  std::memset(combined, 0x23, kMiB);
  std::memset(as_host(managed), 0x24, 2 * kMiB);
  must(cu.MemsetD8(device, 0x25, kMiB), "cuMemsetD8");

  // Exit 0: the parent's byte was read; exit 1: another byte.
  const auto read = [](const char* name, const volatile std::uint8_t* p, std::uint8_t value) {
    say(name, in_fork([p, value] { return *p == value ? 0 : 1; }));
  };
  read("read_pinned", pinned, 0x21);
  read("read_pinned_portable", portable, 0x22);
  read("read_write_combined", combined, 0x23);
  read("read_registered", registered, 0x11);
  read("read_registered_shared", shared, 0x11);
  read("read_managed", as_host(managed), 0x24);
  read("read_device", as_host(device), 0x25);
  const auto write = [](const char* name, volatile std::uint8_t* p) {
    say(name, in_fork([p] {
          *p = 0x99;
          return 0;
        }));
    say(std::string(name) + "_parent_then_sees", hex(*p));
  };
  write("write_pinned", pinned + 64);
  write("write_registered", registered + 64);
  write("write_registered_shared", shared + 64);
  write("write_managed", as_host(managed) + 64);

  const auto call = [](const char* name, const std::function<CUresult()>& driver_call) {
    int ends[2];
    if (pipe(ends) != 0) give_up("pipe");
    const std::string end = in_fork([&] {
      const CUresult code = driver_call();
      return ::write(ends[1], &code, sizeof code) == sizeof code ? 0 : 1;
    });
    close(ends[1]);
    CUresult code = CUDA_SUCCESS;
    const bool came = ::read(ends[0], &code, sizeof code) == sizeof code;
    close(ends[0]);
    say(name, came ? text(code) : end);
  };
  call("cuInit", [] { return cu.Init(0); });
  call("cuDriverGetVersion", [] {
    int number = 0;
    return cu.DriverGetVersion(&number);
  });
  call("cuDeviceGetCount", [] {
    int number = 0;
    return cu.DeviceGetCount(&number);
  });
  call("cuCtxGetCurrent", [] {
    CUcontext ctx = nullptr;
    return cu.CtxGetCurrent(&ctx);
  });
  call("cuCtxSetCurrent", [] { return cu.CtxSetCurrent(context()); });
  call("cuDevicePrimaryCtxRetain", [] {
    CUcontext ctx = nullptr;
    return cu.DevicePrimaryCtxRetain(&ctx, 0);
  });
  call("cuMemAlloc", [] {
    CUdeviceptr p = 0;
    return cu.MemAlloc(&p, 4096);
  });
  call("cuMemFree", [device] { return cu.MemFree(device); });
  call("cuMemHostAlloc", [] {
    void* p = nullptr;
    return cu.MemHostAlloc(&p, 4096, 0);
  });
  call("cuMemFreeHost", [pinned] { return cu.MemFreeHost(pinned); });
  call("cuMemHostUnregister", [registered] { return cu.MemHostUnregister(registered); });
  call("cuMemcpyDtoH", [device] {
    std::uint8_t byte = 0;
    return cu.MemcpyDtoH(&byte, device, 1);
  });
  call("cuPointerGetAttributes", [device] {
    CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    unsigned type = 0;
    void* answer = &type;
    return cu.PointerGetAttributes(1, &asked, &answer, device);
  });

  say_yes("parent_device_memory_intact", device_bytes(device, kMiB, 0x25));
  say("parent_copy_from_pinned", cu.MemcpyHtoD(device, pinned, 64));
  say_yes("parent_pinned_copied", device_bytes(device, 64, 0x21));
  say("parent_alloc", [] {
    CUdeviceptr p = 0;
    return cu.MemAlloc(&p, 4096);
  }());
  say("parent_free_pinned", cu.MemFreeHost(pinned));
  say("parent_unregister", cu.MemHostUnregister(registered));
}

// While a child lives, the parent writes registered memory: does the device see the new bytes, or the pages
// of before?
void fork_and_registered(int) {
  std::uint8_t* registered = registered_memory(kMiB);
  std::uint8_t* pinned = pinned_memory(kMiB);
  const CUdeviceptr device = device_memory(kMiB);
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  if (child == 0) {
    sleep(10);
    _exit(0);
  }
  std::memset(registered, 0x31, kMiB);
  say("copy_registered", cu.MemcpyHtoD(device, registered, kMiB));
  say_yes("device_sees_registered_written_after_fork", device_bytes(device, kMiB, 0x31));
  std::memset(pinned, 0x32, kMiB);
  say("copy_pinned", cu.MemcpyHtoD(device, pinned, kMiB));
  say_yes("device_sees_pinned_written_after_fork", device_bytes(device, kMiB, 0x32));
  must(cu.MemsetD8(device, 0x33, kMiB), "cuMemsetD8");
  say("copy_back_registered", cu.MemcpyDtoH(registered, device, kMiB));
  say_yes("parent_sees_device_bytes_in_registered", all_bytes(registered, kMiB, 0x33));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// The parent has loaded the library but not initialised it.
void fork_before_init(int) {
  say("cuInit_in_child", in_fork([] { return static_cast<int>(cu.Init(0)); }));
  say("cuInit_in_parent_after", cu.Init(0));
  say("cuInit_in_next_child", in_fork([] { return static_cast<int>(cu.Init(0)); }));
}

CUdeviceptr left_over = 0;

void calls_at_exit(int) {
  left_over = device_memory(kMiB);
  after_driver_exit = [] {
    CUdeviceptr p = 0;
    CUcontext ctx = nullptr;
    say("cuCtxGetCurrent", cu.CtxGetCurrent(&ctx));
    say("cuMemAlloc", cu.MemAlloc(&p, 4096));
    say("cuMemFree", cu.MemFree(left_over));
    say("cuInit", cu.Init(0));
  };
}

void entry_point_lookup(int) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SUCCESS;
  const auto ask = [&](const char* name, const char* symbol, int wanted, cuuint64_t flags) {
    found = &result;  // any value but null
    result = stray<CUdriverProcAddressQueryResult>(7);
    say(name, cu.get_proc_address(symbol, &found, wanted, flags, &result));
    say(std::string(name) + "_pointer", found == &result ? "unchanged" : found ? "some" : "null");
    say_number(std::string(name) + "_result", result);
    return found;
  };
  ask("unknown", "cuNoSuchFunction", 13000, 0);
  ask("too_low", "cuMemcpyBatchAsync", 12000, 0);
  ask("far_too_low", "cuMemAlloc", 1000, 0);
  ask("future_version", "cuMemAlloc", 99000, 0);
  ask("version_suffix", "cuMemAlloc_v2", 13000, 0);
  ask("empty_name", "", 13000, 0);
  ask("not_cu", "cudaMalloc", 13000, 0);
  ask("unknown_flags", "cuMemAlloc", 13000, 64);
  ask("per_thread", "cuMemcpyHtoDAsync", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  say("null_symbol", cu.get_proc_address(nullptr, &found, 13000, 0, &result));
  say("null_pointer", cu.get_proc_address("cuMemAlloc", nullptr, 13000, 0, &result));
  say("null_result", cu.get_proc_address("cuMemAlloc", &found, 13000, 0, nullptr));
  say("null_result_unknown_symbol", cu.get_proc_address("cuNoSuchFunction", &found, 13000, 0, nullptr));

  const auto differ = [&](const char* symbol, int older, int newer) {
    void* a = nullptr;
    void* b = nullptr;
    (void)cu.get_proc_address(symbol, &a, older, 0, nullptr);
    (void)cu.get_proc_address(symbol, &b, newer, 0, nullptr);
    say(std::string("versions_of_") + symbol + "_" + std::to_string(older) + "_" + std::to_string(newer),
        !a || !b ? "one is missing"
        : a == b ? "same"
                 : "different");
  };
  differ("cuMemAlloc", 2000, 3020);
  differ("cuMemAlloc", 3020, 13000);
  differ("cuMemAdvise", 8000, 12020);
  differ("cuMemAdvise", 12010, 12020);
  differ("cuMemPrefetchAsync", 8000, 12020);
  differ("cuMemcpyBatchAsync", 12080, 13000);
  differ("cuEventElapsedTime", 12000, 12080);
  differ("cuCtxCreate", 3020, 13000);
  differ("cuStreamWriteValue32", 8000, 11070);
  differ("cuMemHostRegister", 4000, 6050);
  differ("cuIpcOpenMemHandle", 4010, 11000);
  differ("cuCtxGetDevice", 2000, 13000);
  differ("cuGetProcAddress", 11030, 12000);

  using Old = PFN_cuGetProcAddress_v11030;
  const Old old = reinterpret_cast<Old>(dlsym(cu.library, "cuGetProcAddress"));
  say_yes("exported_v1", old != nullptr);
  say_yes("exported_v2", dlsym(cu.library, "cuGetProcAddress_v2") != nullptr);
  if (!old) return;
  found = &result;
  say("v1_unknown", old("cuNoSuchFunction", &found, 13000, 0));
  say("v1_unknown_pointer", found == &result ? "unchanged" : found ? "some" : "null");
  found = &result;
  say("v1_too_low", old("cuMemcpyBatchAsync", &found, 12000, 0));
  say("v1_too_low_pointer", found == &result ? "unchanged" : found ? "some" : "null");
  say("v1_known", old("cuMemAlloc", &found, 3020, 0));
}

void newer_symbols(int) {
  struct Symbol {
    const char* name;
    int version;
  };
  for (const Symbol& symbol : std::initializer_list<Symbol>{{"cuMemGetHandleForAddressRange", 11070},
                                                            {"cuCtxGetId", 12000},
                                                            {"cuCtxSetFlags", 12010},
                                                            {"cuMemAdvise", 12020},
                                                            {"cuMemPrefetchAsync", 12020},
                                                            {"cuStreamBeginCaptureToGraph", 12030},
                                                            {"cuDeviceRegisterAsyncNotification", 12040},
                                                            {"cuGreenCtxCreate", 12040},
                                                            {"cuCtxCreate", 12050},
                                                            {"cuStreamGetCtx", 12050},
                                                            {"cuCtxRecordEvent", 12050},
                                                            {"cuMemBatchDecompressAsync", 12060},
                                                            {"cuMemcpyBatchAsync", 12080},
                                                            {"cuMemcpy3DBatchAsync", 12080},
                                                            {"cuStreamGetDevice", 12080},
                                                            {"cuEventElapsedTime", 12080},
                                                            {"cuCheckpointProcessGetState", 12080},
                                                            {"cuLogsRegisterCallback", 12090},
                                                            {"cuMemcpyBatchAsync", 13000},
                                                            {"cuMemcpy3DBatchAsync", 13000},
                                                            {"cuMemPrefetchBatchAsync", 13000},
                                                            {"cuMemDiscardBatchAsync", 13000},
                                                            {"cuMemDiscardAndPrefetchBatchAsync", 13000},
                                                            {"cuMemGetDefaultMemPool", 13000},
                                                            {"cuMemGetMemPool", 13000},
                                                            {"cuMemSetMemPool", 13000},
                                                            {"cuCtxGetDevice", 13000},
                                                            {"cuCtxSynchronize", 13000},
                                                            {"cuDeviceGetHostAtomicCapabilities", 13000},
                                                            {"cuDeviceGetP2PAtomicCapabilities", 13000},
                                                            {"cuMemcpyWithAttributesAsync", 13010}}) {
    void* found = nullptr;
    const CUresult code = cu.get_proc_address(symbol.name, &found, symbol.version, 0, nullptr);
    say(std::string(symbol.name) + "@" + std::to_string(symbol.version), found ? "yes" : "no, " + text(code));
  }
}

constexpr Fact kFacts[] = {
    {.name = "com.version", .run = version, .needs = Needs::kSymbols},
    {.name = "com.error_names", .run = error_names, .needs = Needs::kSymbols},
    {.name = "com.before_init", .run = before_init, .needs = Needs::kSymbols},
    {.name = "com.without_context", .run = without_context, .needs = Needs::kInit},
    {.name = "com.context_taken_away", .run = context_taken_away},
    {.name = "com.context_stack", .run = context_stack},
    {.name = "com.other_context", .run = other_context},
    {.name = "com.forked_child", .run = forked_child, .timeout_s = 120},
    {.name = "com.fork_and_registered", .run = fork_and_registered},
    {.name = "com.fork_before_init", .run = fork_before_init, .needs = Needs::kSymbols},
    {.name = "com.calls_at_exit", .run = calls_at_exit},
    {.name = "com.entry_point_lookup", .run = entry_point_lookup, .needs = Needs::kSymbols},
    {.name = "com.newer_symbols", .run = newer_symbols, .needs = Needs::kSymbols},
};

}  // namespace

std::span<const Fact> process_facts() { return kFacts; }

}  // namespace facts
