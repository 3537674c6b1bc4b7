// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Drives the fake CUDA driver as a client would, through dlopen and cuGetProcAddress, and checks its stricter
// side.
#include "fake_cuda.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../failures_last.h"

namespace {

void* library() {
  static void* const opened = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return opened;
}

#define FAKE(name) reinterpret_cast<decltype(&name)>(dlsym(library(), #name))

void* driver_function(const char* name, int version) {
  auto get = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library(), "cuGetProcAddress_v2"));
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  EXPECT_EQ(get(name, &function, version, 0, &status), CUDA_SUCCESS);
  EXPECT_NE(function, nullptr) << name;
  return function;
}

#define DRIVER(name, version) reinterpret_cast<PFN_##name##_v##version>(driver_function(#name, version))
#define CALL(name, version, ...) \
  (reinterpret_cast<PFN_##name##_v##version>(driver_function(#name, version))(__VA_ARGS__))

std::string violations() {
  std::vector<char> text(65536);
  FAKE(fake_cuda_violations)(text.data(), text.size());
  return text.data();
}

size_t occurrences(const std::string& kind) {
  std::string all = violations();
  size_t count = 0;
  for (size_t at = all.find(kind); at != std::string::npos; at = all.find(kind, at + 1))
    ++count;
  return count;
}

sigjmp_buf g_back;
void jump_back(int) { siglongjmp(g_back, 1); }

// True when a load by the CPU faults.
bool load_faults(uintptr_t address) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = jump_back;
  sigaction(SIGSEGV, &action, &before);
  volatile bool faulted = true;
  if (sigsetjmp(g_back, 1) == 0) {
    volatile char byte = *reinterpret_cast<volatile char*>(address);
    (void)byte;
    faulted = false;
  }
  sigaction(SIGSEGV, &before, nullptr);
  return faulted;
}

// Every test starts with a fresh driver and, unless it says otherwise, must end without violations.
class FakeCuda : public testing::Test {
 protected:
  void SetUp() override {
    FAKE(fake_cuda_reset)();
    while (pop())
      continue;
  }
  void TearDown() override {
    if (context_ != nullptr) {
      EXPECT_EQ(CALL(cuDevicePrimaryCtxRelease, 11000, 0), CUDA_SUCCESS);
    }
    if (!violations_expected_) {
      EXPECT_EQ(violations(), "");
    }
    FAKE(fake_cuda_reset)();
  }

  void configure(const char* name, const char* value) {
    ASSERT_EQ(FAKE(fake_cuda_configure)(name, value), 0) << name;
  }
  void init() { ASSERT_EQ(CALL(cuInit, 2000, 0), CUDA_SUCCESS); }
  void open() {
    init();
    ASSERT_EQ(CALL(cuDevicePrimaryCtxRetain, 7000, &context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuCtxSetCurrent, 4000, context_), CUDA_SUCCESS);
  }
  bool pop() {
    CUcontext context = nullptr;
    return CALL(cuCtxPopCurrent, 4000, &context) == CUDA_SUCCESS;
  }
  CUdeviceptr allocate(size_t size) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CALL(cuMemAlloc, 3020, &address, size), CUDA_SUCCESS);
    return address;
  }
  void free(CUdeviceptr address) { EXPECT_EQ(CALL(cuMemFree, 3020, address), CUDA_SUCCESS); }
  CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(CALL(cuStreamCreate, 2000, &stream, flags), CUDA_SUCCESS);
    return stream;
  }
  CUevent make_event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent event = nullptr;
    EXPECT_EQ(CALL(cuEventCreate, 2000, &event, flags), CUDA_SUCCESS);
    return event;
  }
  void wait(CUstream stream) { EXPECT_EQ(CALL(cuStreamSynchronize, 2000, stream), CUDA_SUCCESS); }
  // Holds a stream until the flag is set.
  void hold(CUstream stream, std::atomic<bool>& released) {
    auto body = [](void* flag) {
      while (!static_cast<std::atomic<bool>*>(flag)->load())
        usleep(100);
    };
    EXPECT_EQ(CALL(cuLaunchHostFunc, 10000, stream, body, &released), CUDA_SUCCESS);
  }
  void destroy(CUstream stream) { EXPECT_EQ(CALL(cuStreamDestroy, 4000, stream), CUDA_SUCCESS); }
  void destroy(CUevent event) { EXPECT_EQ(CALL(cuEventDestroy, 4000, event), CUDA_SUCCESS); }
  uint64_t live(int object = FAKE_CUDA_ANY) { return FAKE(fake_cuda_live)(object); }

  CUcontext context_ = nullptr;
  bool violations_expected_ = false;
};

// --- Symbols and versions ---

TEST_F(FakeCuda, SymbolsFollowTheVersionAskedFor) {
  auto get = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library(), "cuGetProcAddress_v2"));
  void* function = library();
  CUdriverProcAddressQueryResult status;
  EXPECT_EQ(get("cuNoSuchThing", &function, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(get("cuMemcpyBatchAsync", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(get("cuMemAlloc", &function, 13010, 0, &status), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(get(nullptr, &function, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_function("cuMemcpyBatchAsync", 12080), dlsym(library(), "cuMemcpyBatchAsync"));
  EXPECT_EQ(driver_function("cuMemcpyBatchAsync", 13000), dlsym(library(), "cuMemcpyBatchAsync_v2"));
  EXPECT_NE(dlsym(library(), "cuMemcpyBatchAsync"), dlsym(library(), "cuMemcpyBatchAsync_v2"));
  EXPECT_EQ(driver_function("cuGetProcAddress", 11080), dlsym(library(), "cuGetProcAddress"));
  EXPECT_EQ(driver_function("cuGetProcAddress", 12000), dlsym(library(), "cuGetProcAddress_v2"));
}

TEST_F(FakeCuda, OldDriversLackWhatIsNewer) {
  struct Case {
    const char* version;
    int number;
    bool get, get_v2, uuid_v2, batch, batch_v2;
  };
  for (const Case& each : {Case{"11.2", 11020, false, false, false, false, false},
                           Case{"11.8", 11080, true, false, true, false, false},
                           Case{"12.2", 12020, true, true, true, false, false},
                           Case{"12.8", 12080, true, true, true, true, false},
                           Case{"13.0", 13000, true, true, true, true, true}}) {
    configure("FAKE_CUDA_VERSION", each.version);
    int version = 0;
    auto ask = reinterpret_cast<PFN_cuDriverGetVersion_v2020>(dlsym(library(), "cuDriverGetVersion"));
    EXPECT_EQ(ask(&version), CUDA_SUCCESS);
    EXPECT_EQ(version, each.number);
    EXPECT_EQ(dlsym(library(), "cuGetProcAddress") != nullptr, each.get) << each.version;
    EXPECT_EQ(dlsym(library(), "cuGetProcAddress_v2") != nullptr, each.get_v2) << each.version;
    EXPECT_EQ(dlsym(library(), "cuDeviceGetUuid_v2") != nullptr, each.uuid_v2) << each.version;
    EXPECT_EQ(dlsym(library(), "cuMemcpyBatchAsync") != nullptr, each.batch) << each.version;
    EXPECT_EQ(dlsym(library(), "cuMemcpyBatchAsync_v2") != nullptr, each.batch_v2) << each.version;
  }
  configure("FAKE_CUDA_VERSION", "11.8");
  auto get = reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library(), "cuGetProcAddress"));
  void* function = library();
  EXPECT_EQ(get("cuMemcpyBatchAsync", &function, 11080, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(get("cuMemAlloc", &function, 11080, 0), CUDA_SUCCESS);
  EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_VERSION", "9.0"), -1);
  configure("FAKE_CUDA_VERSION", "13.0");
}

TEST_F(FakeCuda, ErrorNames) {
  const char* name = nullptr;
  EXPECT_EQ(CALL(cuGetErrorName, 6000, CUDA_ERROR_NOT_READY, &name), CUDA_SUCCESS);
  EXPECT_STREQ(name, "CUDA_ERROR_NOT_READY");
  EXPECT_EQ(CALL(cuGetErrorName, 6000, static_cast<CUresult>(998), &name), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(name, nullptr);
}

// --- Initialisation, devices, contexts ---

TEST_F(FakeCuda, NothingWorksBeforeInit) {
  int count = 7;
  EXPECT_EQ(CALL(cuDeviceGetCount, 2000, &count), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(count, 7);
  configure("FAKE_CUDA_INIT", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
  EXPECT_EQ(CALL(cuInit, 2000, 0), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  configure("FAKE_CUDA_INIT", "0");
  configure("FAKE_CUDA_DEVICES", "0");
  EXPECT_EQ(CALL(cuInit, 2000, 0), CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(CALL(cuInit, 2000, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, DevicesAndAttributes) {
  configure("FAKE_CUDA_DEVICES", "3");
  configure("FAKE_CUDA_ATTRIBUTE_41", "0");
  init();
  EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DEVICES", "2"), -1);
  int value = 0;
  EXPECT_EQ(CALL(cuDeviceGetCount, 2000, &value), CUDA_SUCCESS);
  EXPECT_EQ(value, 3);
  CUdevice device = 9;
  EXPECT_EQ(CALL(cuDeviceGet, 2000, &device, 3), CUDA_ERROR_INVALID_DEVICE);
  CUuuid first, second;
  EXPECT_EQ(CALL(cuDeviceGetUuid, 11040, &first, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuDeviceGetUuid, 9020, &second, 1), CUDA_SUCCESS);
  EXPECT_NE(std::memcmp(&first, &second, sizeof(first)), 0);
  EXPECT_EQ(CALL(cuDeviceGetAttribute, 2000, &value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  FAKE(fake_cuda_set_attribute)(1, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 5);
  EXPECT_EQ(CALL(cuDeviceGetAttribute, 2000, &value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 5);
  EXPECT_EQ(CALL(cuDeviceGetAttribute, 2000, &value, CU_DEVICE_ATTRIBUTE_MAX, 0), CUDA_ERROR_INVALID_VALUE);
  char text[32];
  EXPECT_EQ(CALL(cuDeviceGetPCIBusId, 4010, text, 32, 1), CUDA_SUCCESS);
  EXPECT_STREQ(text, "0000:02:00.0");
  size_t total = 0;
  EXPECT_EQ(CALL(cuDeviceTotalMem, 3020, &total, 0), CUDA_SUCCESS);
  EXPECT_EQ(total, size_t{256} << 20);
}

TEST_F(FakeCuda, AttributesNewerThanTheDriverAreRefused) {
  configure("FAKE_CUDA_VERSION", "12.2");
  auto init_function = reinterpret_cast<PFN_cuInit_v2000>(dlsym(library(), "cuInit"));
  auto ask = reinterpret_cast<PFN_cuDeviceGetAttribute_v2000>(dlsym(library(), "cuDeviceGetAttribute"));
  ASSERT_EQ(init_function(0), CUDA_SUCCESS);
  int value = 0;
  EXPECT_EQ(ask(&value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0), CUDA_SUCCESS);
  EXPECT_EQ(ask(&value, CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, ContextStackIsPerThread) {
  init();
  CUdeviceptr address = 0;
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &address, 1), CUDA_ERROR_INVALID_CONTEXT);
  CUcontext primary = nullptr;
  ASSERT_EQ(CALL(cuDevicePrimaryCtxRetain, 7000, &primary, 0), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuCtxPushCurrent, 4000, primary), CUDA_SUCCESS);
  std::thread other([] {
    CUcontext current = nullptr;
    EXPECT_EQ(CALL(cuCtxGetCurrent, 4000, &current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  });
  other.join();
  CUdevice device = -1;
  EXPECT_EQ(CALL(cuCtxGetDevice, 2000, &device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(CALL(cuCtxGetDevice, 13000, &device, primary), CUDA_SUCCESS);
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 1u);
  EXPECT_EQ(CALL(cuDevicePrimaryCtxRelease, 11000, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &address, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUcontext popped = nullptr;
  EXPECT_EQ(CALL(cuCtxPopCurrent, 4000, &popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, primary);
  EXPECT_EQ(CALL(cuCtxPopCurrent, 4000, &popped), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(CALL(cuCtxPushCurrent, 4000, primary), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(violations(), "");
  EXPECT_EQ(CALL(cuDevicePrimaryCtxRelease, 11000, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(occurrences("over-release"), 1u);
  violations_expected_ = true;
}

TEST_F(FakeCuda, CreatedContexts) {
  init();
  CUcontext context = nullptr;
  ASSERT_EQ(CALL(cuCtxCreate, 3020, &context, 0, 0), CUDA_SUCCESS);
  CUcontext second = nullptr;
  ASSERT_EQ(CALL(cuCtxCreate, 12050, &second, nullptr, 0, 0), CUDA_SUCCESS);
  CUcontext current = nullptr;
  EXPECT_EQ(CALL(cuCtxGetCurrent, 4000, &current), CUDA_SUCCESS);
  EXPECT_EQ(current, second);
  EXPECT_EQ(CALL(cuCtxDestroy, 4000, second), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuCtxGetCurrent, 4000, &current), CUDA_SUCCESS);
  EXPECT_EQ(current, context);
  EXPECT_EQ(live(), 1u);
  EXPECT_EQ(CALL(cuCtxDestroy, 4000, context), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuCtxDestroy, 4000, context), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(live(), 0u);
}

TEST_F(FakeCuda, FlagsOfAPrimaryContextAreSetBeforeItIsUsed) {
  init();
  auto set =
      reinterpret_cast<PFN_cuDevicePrimaryCtxSetFlags_v11000>(dlsym(library(), "cuDevicePrimaryCtxSetFlags"));
  auto release =
      reinterpret_cast<PFN_cuDevicePrimaryCtxRelease_v11000>(dlsym(library(), "cuDevicePrimaryCtxRelease"));
  EXPECT_EQ(set(0, 1u << 30), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(9, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(set(0, CU_CTX_SCHED_BLOCKING_SYNC), CUDA_SUCCESS);
  CUcontext primary = nullptr;
  ASSERT_EQ(CALL(cuDevicePrimaryCtxRetain, 7000, &primary, 0), CUDA_SUCCESS);
  EXPECT_EQ(set(0, CU_CTX_SCHED_AUTO), CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(CALL(cuDevicePrimaryCtxGetState, 7000, 0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
  EXPECT_EQ(active, 1);
  EXPECT_EQ(release(0), CUDA_SUCCESS);
  EXPECT_EQ(live(FAKE_CUDA_CONTEXT), 0u);
}

TEST_F(FakeCuda, WhatItCannotServeSaysSo) {
  init();
  int major = 0, minor = -1;
  EXPECT_EQ(CALL(cuDeviceComputeCapability, 2000, &major, &minor, 0), CUDA_SUCCESS);
  EXPECT_EQ(major, 9);
  EXPECT_EQ(minor, 0);
  EXPECT_EQ(CALL(cuArrayDestroy, 2000, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(CALL(cuLinkDestroy, 5050, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(CALL(cuGraphicsUnregisterResource, 3000, nullptr), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(FakeCuda, ASectionThatChangesTheContextIsSeen) {
  open();
  FAKE(fake_cuda_section_begin)();
  EXPECT_EQ(CALL(cuCtxPushCurrent, 4000, context_), CUDA_SUCCESS);
  EXPECT_TRUE(pop());
  FAKE(fake_cuda_section_end)("balanced");
  EXPECT_EQ(violations(), "");
  FAKE(fake_cuda_section_begin)();
  EXPECT_EQ(CALL(cuCtxPushCurrent, 4000, context_), CUDA_SUCCESS);
  FAKE(fake_cuda_section_end)("unbalanced");
  EXPECT_EQ(violations(), "context-changed: unbalanced\n");
  violations_expected_ = true;
}

TEST_F(FakeCuda, ASectionThatChangesTheCaptureModeIsSeen) {
  open();
  auto exchange = DRIVER(cuThreadExchangeStreamCaptureMode, 10010);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  FAKE(fake_cuda_section_begin)();
  EXPECT_EQ(exchange(&mode), CUDA_SUCCESS);
  EXPECT_EQ(exchange(&mode), CUDA_SUCCESS);
  FAKE(fake_cuda_section_end)("balanced");
  EXPECT_EQ(violations(), "");
  FAKE(fake_cuda_section_begin)();
  EXPECT_EQ(exchange(&mode), CUDA_SUCCESS);
  FAKE(fake_cuda_section_end)("unbalanced");
  EXPECT_EQ(violations(), "capture-mode-changed: unbalanced\n");
  violations_expected_ = true;
}

TEST_F(FakeCuda, PeerAccess) {
  configure("FAKE_CUDA_DEVICES", "2");
  configure("FAKE_CUDA_PEERS", "0>1");
  open();
  int can = -1;
  EXPECT_EQ(CALL(cuDeviceCanAccessPeer, 4000, &can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(CALL(cuDeviceCanAccessPeer, 4000, &can, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
  CUcontext other = nullptr;
  ASSERT_EQ(CALL(cuDevicePrimaryCtxRetain, 7000, &other, 1), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuCtxEnablePeerAccess, 4000, context_, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(CALL(cuCtxEnablePeerAccess, 4000, other, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuCtxEnablePeerAccess, 4000, other, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuCtxEnablePeerAccess, 4000, other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(CALL(cuCtxDisablePeerAccess, 4000, other), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuCtxDisablePeerAccess, 4000, other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  ASSERT_EQ(CALL(cuCtxPushCurrent, 4000, other), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuCtxEnablePeerAccess, 4000, context_, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CUdeviceptr there = allocate(100);
  EXPECT_TRUE(pop());
  CUdeviceptr here = allocate(100);
  CUstream stream = make_stream();
  EXPECT_EQ(CALL(cuMemcpyPeerAsync, 4000, here, context_, there, other, 100, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyDtoDAsync, 3020, there, here, 100, stream), CUDA_SUCCESS);
  wait(stream);
  destroy(stream);
  free(here);
  ASSERT_EQ(CALL(cuCtxPushCurrent, 4000, other), CUDA_SUCCESS);
  free(there);
  EXPECT_TRUE(pop());
  EXPECT_EQ(CALL(cuDevicePrimaryCtxRelease, 11000, 1), CUDA_SUCCESS);
}

// --- Memory ---

TEST_F(FakeCuda, DeviceMemoryIsSuballocatedAndCounted) {
  open();
  size_t free_before = 0, free_after = 0, total = 0;
  EXPECT_EQ(CALL(cuMemGetInfo, 3020, &free_before, &total), CUDA_SUCCESS);
  CUdeviceptr first = allocate(1);
  CUdeviceptr second = allocate(1000);
  EXPECT_EQ(first % 512, 0u);
  EXPECT_EQ(second, first + 512);
  EXPECT_EQ(CALL(cuMemGetInfo, 3020, &free_after, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_before - free_after, size_t{2} << 20);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(CALL(cuMemGetAddressRange, 3020, &base, &size, second + 999), CUDA_SUCCESS);
  EXPECT_EQ(base, second);
  EXPECT_EQ(size, 1000u);
  EXPECT_EQ(CALL(cuMemGetAddressRange, 3020, &base, &size, second + 1000), CUDA_ERROR_NOT_FOUND);
  EXPECT_TRUE(load_faults(first));
  CUdeviceptr large = allocate(size_t{3} << 20);
  EXPECT_EQ(large % (size_t{2} << 20), 0u);
  CUdeviceptr too_large = 77;
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &too_large, size_t{256} << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &too_large, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &too_large, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(too_large, 0u);
  EXPECT_EQ(live(FAKE_CUDA_DEVICE_MEMORY), 3u);
  for (CUdeviceptr each : {first, second, large})
    free(each);
  EXPECT_EQ(CALL(cuMemGetInfo, 3020, &free_after, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_after, free_before);
  EXPECT_EQ(live(FAKE_CUDA_DEVICE_MEMORY), 0u);
}

TEST_F(FakeCuda, NeighboursAreKeptApart) {
  open();
  const size_t size = size_t{2} << 20;
  CUdeviceptr high = allocate(size);
  CUdeviceptr low = allocate(size);
  ASSERT_EQ(low + size, high) << "the driver places them side by side";
  std::vector<char> host(size);
  EXPECT_EQ(CALL(cuMemcpyHtoD, 3020, low + size / 2, host.data(), size), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, host.data(), low + size / 2, size), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemsetD8, 3020, low + size / 2, 1, size), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuCtxSynchronize, 2000), CUDA_SUCCESS);
  free(high);
  free(low);
  ASSERT_EQ(CALL(cuMemAllocManaged, 6000, &high, size, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuMemAllocManaged, 6000, &low, size, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(low + size, high) << "managed memory too";
  EXPECT_EQ(CALL(cuMemsetD8, 3020, low + size / 2, 1, size), CUDA_ERROR_INVALID_VALUE);
  free(high);
  free(low);
}

TEST_F(FakeCuda, WrongFreesAreRefusedAndRecorded) {
  open();
  CUdeviceptr address = allocate(4096);
  EXPECT_EQ(CALL(cuMemFree, 3020, address + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(occurrences("stray-free"), 1u);
  free(address);
  EXPECT_EQ(CALL(cuMemFree, 3020, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(occurrences("double-free"), 1u);
  void* pinned = nullptr;
  ASSERT_EQ(CALL(cuMemAllocHost, 3020, &pinned, 100), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, pinned), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &pinned, 100, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemFree, 3020, reinterpret_cast<CUdeviceptr>(pinned)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, pinned), CUDA_SUCCESS);
  FAKE(fake_cuda_clear_violations)();
  EXPECT_EQ(violations(), "");
}

TEST_F(FakeCuda, PinnedMemory) {
  open();
  void* pinned = nullptr;
  EXPECT_EQ(CALL(cuMemHostAlloc, 2020, &pinned, 100, 8), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &pinned, 100, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
            CUDA_SUCCESS);
  std::memset(pinned, 1, 100);
  CUdeviceptr address = 0;
  EXPECT_EQ(CALL(cuMemHostGetDevicePointer, 3020, &address, static_cast<char*>(pinned) + 99, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<CUdeviceptr>(pinned) + 99);
  EXPECT_EQ(CALL(cuMemHostGetDevicePointer, 3020, &address, static_cast<char*>(pinned) + 100, 0),
            CUDA_ERROR_INVALID_VALUE);
  unsigned flags = 0;
  EXPECT_EQ(CALL(cuMemHostGetFlags, 2030, &flags, pinned), CUDA_SUCCESS);
  EXPECT_EQ(flags, 3u);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, pinned), CUDA_SUCCESS);
}

TEST_F(FakeCuda, MemoryThatTheCpuSeesBeginsAtASlab) {
  open();
  for (size_t size : {size_t{1} << 20, size_t{2} << 20, size_t{5} << 20}) {
    void* pinned = nullptr;
    CUdeviceptr managed = 0;
    ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &pinned, size, 0), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuMemAllocManaged, 6000, &managed, size, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    const size_t whole = std::min(size, size_t{2} << 20);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned) % whole, 0u) << size;
    EXPECT_EQ(managed % whole, 0u) << size;
    EXPECT_EQ(CALL(cuMemFreeHost, 2000, pinned), CUDA_SUCCESS);
    free(managed);
  }
}

TEST_F(FakeCuda, WriteCombinedMemoryMayHaveAnotherDevicePointer) {
  configure("FAKE_CUDA_WRITE_COMBINED_DIFFERS", "1");
  open();
  void* pinned = nullptr;
  ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &pinned, 5000, CU_MEMHOSTALLOC_WRITECOMBINED), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(CALL(cuMemHostGetDevicePointer, 3020, &address, pinned, 0), CUDA_SUCCESS);
  EXPECT_NE(address, reinterpret_cast<CUdeviceptr>(pinned));
  EXPECT_TRUE(load_faults(address));
  EXPECT_EQ(CALL(cuMemsetD8, 3020, address, 0x5B, 5000), CUDA_SUCCESS);
  EXPECT_EQ(static_cast<char*>(pinned)[4999], 0x5B);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, pinned), CUDA_SUCCESS);
}

TEST_F(FakeCuda, Registration) {
  open();
  std::vector<char> memory(3 * 4096);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, memory.data(), 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, memory.data() + 10, 5000, CU_MEMHOSTREGISTER_DEVICEMAP),
            CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, memory.data(), 11, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, memory.data() + 5009, 1, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, memory.data() + 5010, 1, 0), CUDA_SUCCESS);
  CUdeviceptr device = allocate(100);
  EXPECT_EQ(CALL(cuMemcpyHtoD, 3020, device, memory.data() + 5000, 10), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyHtoD, 3020, device, memory.data() + 5000, 11), CUDA_ERROR_INVALID_VALUE)
      << "a border";
  free(device);
  EXPECT_EQ(CALL(cuMemHostUnregister, 4000, memory.data() + 11), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(occurrences("stray-free"), 1u);
  FAKE(fake_cuda_clear_violations)();
  CUdeviceptr address = 0;
  EXPECT_EQ(CALL(cuMemHostGetDevicePointer, 3020, &address, memory.data() + 10, 0), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<CUdeviceptr>(memory.data() + 10));
  EXPECT_EQ(CALL(cuMemHostUnregister, 4000, memory.data() + 10), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemHostUnregister, 4000, memory.data() + 5010), CUDA_SUCCESS);
  EXPECT_EQ(violations(), "");
  EXPECT_EQ(CALL(cuMemHostUnregister, 4000, memory.data() + 10), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(occurrences("stray-free"), 1u);
  FAKE(fake_cuda_clear_violations)();

  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, page, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, page, 4096, CU_MEMHOSTREGISTER_READ_ONLY), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemHostUnregister, 4000, page), CUDA_SUCCESS);
  munmap(page, 4096);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, page, 4096, 0), CUDA_ERROR_INVALID_VALUE);

  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0);
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, memory.data(), 100, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemHostGetDevicePointer, 3020, &address, memory.data() + 7, 0), CUDA_SUCCESS);
  EXPECT_NE(address, reinterpret_cast<CUdeviceptr>(memory.data() + 7));
  EXPECT_EQ(CALL(cuMemsetD8, 3020, address, 3, 1), CUDA_SUCCESS);
  EXPECT_EQ(memory[7], 3);
  EXPECT_EQ(CALL(cuMemHostUnregister, 4000, memory.data()), CUDA_SUCCESS);
  configure("FAKE_CUDA_REGISTRATIONS", "0");
  EXPECT_EQ(CALL(cuMemHostRegister, 6050, memory.data(), 100, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(FakeCuda, PointerAttributes) {
  init();
  unsigned type = 9;
  auto stranger = reinterpret_cast<CUdeviceptr>(&type);
  EXPECT_EQ(CALL(cuPointerGetAttribute, 4000, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, stranger),
            CUDA_ERROR_INVALID_VALUE);
  CUcontext context = nullptr;
  int ordinal = 5;
  unsigned managed = 7;  // the driver writes four bytes
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* answers[] = {&context, &type, &ordinal, &managed};
  EXPECT_EQ(CALL(cuPointerGetAttributes, 7000, 4, wanted, answers, stranger), CUDA_SUCCESS);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, -2);
  EXPECT_EQ(managed, 0u);
  open();
  CUdeviceptr address = allocate(600);
  EXPECT_EQ(CALL(cuPointerGetAttributes, 7000, 4, wanted, answers, address + 599), CUDA_SUCCESS);
  EXPECT_EQ(context, context_);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(ordinal, 0);
  unsigned long long id = 0, later = 0;
  EXPECT_EQ(CALL(cuPointerGetAttribute, 4000, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address), CUDA_SUCCESS);
  void* host = nullptr;
  EXPECT_EQ(CALL(cuPointerGetAttribute, 4000, &host, CU_POINTER_ATTRIBUTE_HOST_POINTER, address),
            CUDA_ERROR_INVALID_VALUE);
  free(address);
  EXPECT_EQ(allocate(600), address);
  EXPECT_EQ(CALL(cuPointerGetAttribute, 4000, &later, CU_POINTER_ATTRIBUTE_BUFFER_ID, address), CUDA_SUCCESS);
  EXPECT_NE(id, later);
  free(address);
  CUdeviceptr shared = 0;
  ASSERT_EQ(CALL(cuMemAllocManaged, 6000, &shared, 100, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuPointerGetAttributes, 7000, 4, wanted, answers, shared), CUDA_SUCCESS);
  EXPECT_EQ(managed, 1u);
  EXPECT_FALSE(load_faults(shared));
  free(shared);
}

// --- Copies and fills ---

TEST_F(FakeCuda, CopiesInEveryDirection) {
  open();
  CUdeviceptr a = allocate(1000), b = allocate(1000);
  char in[1000], out[1000];
  for (size_t i = 0; i < 1000; ++i)
    in[i] = static_cast<char>(i * 7);
  EXPECT_EQ(CALL(cuMemcpyHtoD, 3020, a, in, 1000), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyDtoD, 3020, b, a, 1000), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, out, b, 1000), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(in, out, 1000), 0);
  std::memset(out, 0, 1000);
  EXPECT_EQ(CALL(cuMemcpy, 4000, reinterpret_cast<CUdeviceptr>(out), a + 1, 999), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(in + 1, out, 999), 0);
  EXPECT_EQ(CALL(cuMemcpyHtoD, 3020, a, in, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyHtoD, 3020, a + 1, in, 1000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemcpyHtoD, 3020, reinterpret_cast<CUdeviceptr>(out), in, 10), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, nullptr, a, 10), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(violations(), "");
  EXPECT_EQ(CALL(cuMemcpyDtoD, 3020, a, a + 10, 100), CUDA_SUCCESS);
  EXPECT_EQ(violations(), "overlap: source and target of a copy share bytes\n");
  violations_expected_ = true;
  EXPECT_EQ(CALL(cuCtxSynchronize, 2000), CUDA_SUCCESS);
  free(a);
  free(b);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, out, a, 10), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, AsynchronousCopiesRunLater) {
  open();
  CUstream stream = make_stream();
  CUdeviceptr device = allocate(64);
  void* memory = nullptr;
  ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &memory, 64, 0), CUDA_SUCCESS);
  char* pinned = static_cast<char*>(memory);
  char pageable[64];
  std::atomic<bool> released = false;
  hold(stream, released);
  pinned[0] = 1;
  pageable[0] = 1;
  EXPECT_EQ(CALL(cuMemcpyHtoDAsync, 3020, device, pinned, 32, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyHtoDAsync, 3020, device + 32, pageable, 32, stream), CUDA_SUCCESS);
  pinned[0] = 2;    // read when the copy runs
  pageable[0] = 2;  // was staged by the call
  EXPECT_EQ(CALL(cuStreamQuery, 2000, stream), CUDA_ERROR_NOT_READY);
  released = true;
  wait(stream);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, pageable, device, 64), CUDA_SUCCESS);
  EXPECT_EQ(pageable[0], 2);
  EXPECT_EQ(pageable[32], 1);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, memory), CUDA_SUCCESS);
  free(device);
  destroy(stream);
}

TEST_F(FakeCuda, PlanesAndFills) {
  open();
  CUstream stream = make_stream();
  CUdeviceptr device = allocate(64);
  EXPECT_EQ(CALL(cuMemsetD32Async, 3020, device, 0x01020304, 16, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD2D16Async, 3020, device, 16, 0x0505, 2, 4, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD32Async, 3020, device + 2, 0, 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, device, 0, 65, stream), CUDA_ERROR_INVALID_VALUE);
  unsigned char out[16] = {};
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = device;
  copy.srcPitch = 16;
  copy.srcXInBytes = 2;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = out;
  copy.dstPitch = 4;
  copy.WidthInBytes = 4;
  copy.Height = 4;
  EXPECT_EQ(CALL(cuMemcpy2DAsync, 3020, &copy, stream), CUDA_SUCCESS);
  wait(stream);
  const unsigned char expected[] = {5, 5, 4, 3, 5, 5, 4, 3, 5, 5, 4, 3, 5, 5, 4, 3};
  EXPECT_EQ(std::memcmp(out, expected, 16), 0);
  copy.dstPitch = 3;
  EXPECT_EQ(CALL(cuMemcpy2DAsync, 3020, &copy, stream), CUDA_ERROR_INVALID_VALUE);
  free(device);
  destroy(stream);
}

TEST_F(FakeCuda, PitchedMemoryIsCopiedBeforeTheCallReturns) {
  open();
  CUdeviceptr device = 0;
  size_t pitch = 0;
  EXPECT_EQ(CALL(cuMemAllocPitch, 3020, &device, &pitch, 100, 3, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemAllocPitch, 3020, &device, &pitch, 100, 0, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemAllocPitch, 3020, &device, &pitch, 100, SIZE_MAX, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(CALL(cuMemAllocPitch, 3020, &device, &pitch, 100, size_t{1} << 40, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device, 0u);
  ASSERT_EQ(CALL(cuMemAllocPitch, 3020, &device, &pitch, 600, 3, 16), CUDA_SUCCESS);
  EXPECT_EQ(pitch, 1024u);
  size_t size = 0;
  EXPECT_EQ(CALL(cuMemGetAddressRange, 3020, nullptr, &size, device), CUDA_SUCCESS);
  EXPECT_EQ(size, 3 * 1024u);
  void* pinned = nullptr;
  ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &pinned, 1200, 0), CUDA_SUCCESS);
  auto* bytes = static_cast<unsigned char*>(pinned);
  for (int index = 0; index < 600; ++index)
    bytes[index] = static_cast<unsigned char>(index);
  std::memset(bytes + 600, 0, 600);
  configure("FAKE_CUDA_DELAY_US", "20000");
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = bytes;
  copy.srcPitch = 200;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device;
  copy.dstPitch = pitch;
  copy.WidthInBytes = 200;
  copy.Height = 3;
  EXPECT_EQ(CALL(cuMemcpy2D, 3020, &copy), CUDA_SUCCESS);
  std::swap(copy.srcMemoryType, copy.dstMemoryType);
  copy.srcDevice = device;
  copy.srcPitch = pitch;
  copy.dstHost = bytes + 600;
  copy.dstPitch = 200;
  EXPECT_EQ(CALL(cuMemcpy2D, 3020, &copy), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(bytes, bytes + 600, 600), 0) << "the copy has not waited";
  EXPECT_EQ(CALL(cuMemcpy2D, 3020, nullptr), CUDA_ERROR_INVALID_VALUE);
  free(device);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, pinned), CUDA_SUCCESS);
}

TEST_F(FakeCuda, Batches) {
  open();
  CUstream stream = make_stream();
  CUdeviceptr device = allocate(64);
  char in[64], out[64] = {};
  std::memset(in, 6, sizeof(in));
  CUdeviceptr targets[] = {device, device + 32};
  CUdeviceptr sources[] = {reinterpret_cast<CUdeviceptr>(in), reinterpret_cast<CUdeviceptr>(in + 32)};
  size_t sizes[] = {32, 32};
  CUmemcpyAttributes attributes[1] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  size_t indices[] = {0};
  std::atomic<bool> released = false;
  hold(stream, released);
  EXPECT_EQ(CALL(cuMemcpyBatchAsync, 13000, targets, sources, sizes, 2, attributes, indices, 1, stream),
            CUDA_SUCCESS);
  std::memset(in, 7, sizeof(in));
  released = true;
  EXPECT_EQ(CALL(cuMemcpyDtoHAsync, 3020, out, device, 64, stream), CUDA_SUCCESS);
  EXPECT_EQ(out[0], 6);
  EXPECT_EQ(out[63], 6);
  size_t failed = 0;
  EXPECT_EQ(
      CALL(cuMemcpyBatchAsync, 12080, targets, sources, sizes, 2, attributes, indices, 1, &failed, nullptr),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, SIZE_MAX);
  sizes[1] = 33;
  EXPECT_EQ(
      CALL(cuMemcpyBatchAsync, 12080, targets, sources, sizes, 2, attributes, indices, 1, &failed, stream),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, 1u);
  indices[0] = 1;
  EXPECT_EQ(CALL(cuMemcpyBatchAsync, 13000, targets, sources, sizes, 2, attributes, indices, 1, stream),
            CUDA_ERROR_INVALID_VALUE);
  wait(stream);
  free(device);
  destroy(stream);
}

// --- Streams and events ---

TEST_F(FakeCuda, EventsOrderStreams) {
  open();
  CUstream first = make_stream(), second = make_stream();
  CUevent event = make_event(), end = make_event(), untimed = make_event(CU_EVENT_DISABLE_TIMING);
  EXPECT_EQ(CALL(cuEventQuery, 2000, event), CUDA_SUCCESS);
  float elapsed = -1;
  EXPECT_EQ(CALL(cuEventElapsedTime, 2000, &elapsed, event, end), CUDA_ERROR_INVALID_HANDLE);
  std::atomic<bool> released = false;
  std::atomic<bool> ran = false;
  hold(first, released);
  EXPECT_EQ(CALL(cuEventRecord, 2000, event, first), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamWaitEvent, 3020, second, event, 0), CUDA_SUCCESS);
  auto note = [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; };
  EXPECT_EQ(CALL(cuLaunchHostFunc, 10000, second, note, &ran), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventRecord, 2000, end, second), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventQuery, 2000, event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CALL(cuEventElapsedTime, 12080, &elapsed, event, end), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, second), CUDA_ERROR_NOT_READY);
  EXPECT_FALSE(ran);
  released = true;
  EXPECT_EQ(CALL(cuEventSynchronize, 2000, end), CUDA_SUCCESS);
  EXPECT_TRUE(ran);
  EXPECT_EQ(CALL(cuEventElapsedTime, 2000, &elapsed, event, end), CUDA_SUCCESS);
  EXPECT_GE(elapsed, 0);
  EXPECT_EQ(CALL(cuEventRecord, 2000, untimed, first), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventElapsedTime, 2000, &elapsed, event, untimed), CUDA_ERROR_INVALID_HANDLE);
  CUevent none = nullptr;
  EXPECT_EQ(CALL(cuEventCreate, 2000, &none, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  for (CUevent each : {event, end, untimed})
    destroy(each);
  for (CUstream each : {first, second})
    destroy(each);
  EXPECT_EQ(violations(), "");
  EXPECT_EQ(CALL(cuEventQuery, 2000, event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, first), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(occurrences("stale-handle"), 2u);
  violations_expected_ = true;
}

TEST_F(FakeCuda, TheLegacyStreamWaitsForBlockingStreamsOnly) {
  open();
  CUstream blocking = make_stream(CU_STREAM_DEFAULT), free_running = make_stream();
  std::atomic<bool> released = false, released_too = false;
  hold(blocking, released);
  hold(free_running, released_too);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, nullptr), CUDA_ERROR_NOT_READY);
  std::thread release([&] {
    usleep(1000);
    released = true;
  });
  wait(nullptr);  // would hang if it waited for the other
  release.join();
  EXPECT_EQ(CALL(cuStreamQuery, 2000, blocking), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, free_running), CUDA_ERROR_NOT_READY);
  released_too = true;
  EXPECT_EQ(CALL(cuCtxSynchronize, 2000), CUDA_SUCCESS);
  int priority = 9;
  EXPECT_EQ(CALL(cuStreamGetPriority, 5050, blocking, &priority), CUDA_SUCCESS);
  unsigned long long id = 0;
  unsigned long long legacy_id = 0;
  EXPECT_EQ(CALL(cuStreamGetId, 12000, blocking, &id), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamGetId, 12000, nullptr, &legacy_id), CUDA_SUCCESS);
  EXPECT_NE(id, legacy_id);
  EXPECT_EQ(priority, 0);
  unsigned flags = 9;
  EXPECT_EQ(CALL(cuStreamGetFlags, 5050, free_running, &flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  CUcontext context = nullptr;
  EXPECT_EQ(CALL(cuStreamGetCtx, 9020, blocking, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, context_);
  destroy(blocking);
  destroy(free_running);
}

TEST_F(FakeCuda, ADestroyedStreamFinishesItsWork) {
  open();
  CUstream stream = make_stream();
  std::atomic<bool> released = false, ran = false;
  hold(stream, released);
  auto note = [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; };
  EXPECT_EQ(CALL(cuLaunchHostFunc, 10000, stream, note, &ran), CUDA_SUCCESS);
  destroy(stream);
  EXPECT_FALSE(ran);
  released = true;
  EXPECT_EQ(CALL(cuCtxSynchronize, 2000), CUDA_SUCCESS);
  EXPECT_TRUE(ran);
}

TEST_F(FakeCuda, HostFunctionsMayNotCallTheDriver) {
  open();
  CUstream stream = make_stream();
  static std::atomic<CUresult> answer;
  auto inside = [](void*) {
    size_t free = 0, total = 0;
    answer = reinterpret_cast<PFN_cuMemGetInfo_v3020>(dlsym(library(), "cuMemGetInfo_v2"))(&free, &total);
  };
  EXPECT_EQ(CALL(cuLaunchHostFunc, 10000, stream, inside, nullptr), CUDA_SUCCESS);
  wait(stream);
  EXPECT_EQ(answer, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(violations(), "call-in-host-function: cuMemGetInfo_v2\n");
  violations_expected_ = true;
  destroy(stream);
}

TEST_F(FakeCuda, FreeingBeforeTheUseIsSeenCompleteIsRecorded) {
  open();
  CUstream stream = make_stream(), other = make_stream();
  CUevent event = make_event();
  CUdeviceptr unseen = allocate(64), seen = allocate(64), seen_by_event = allocate(64),
              through_other = allocate(64);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, seen, 0, 64, stream), CUDA_SUCCESS);
  wait(stream);
  free(seen);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, seen_by_event, 0, 64, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventRecord, 2000, event, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventSynchronize, 2000, event), CUDA_SUCCESS);
  free(seen_by_event);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, through_other, 0, 64, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventRecord, 2000, event, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamWaitEvent, 3020, other, event, 0), CUDA_SUCCESS);
  wait(other);
  free(through_other);
  EXPECT_EQ(violations(), "");
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, unseen, 0, 64, stream), CUDA_SUCCESS);
  free(unseen);
  EXPECT_EQ(occurrences("free-in-flight"), 1u);
  violations_expected_ = true;
  destroy(event);
  destroy(stream);
  destroy(other);
}

TEST_F(FakeCuda, FreeingWaitsForTheContext) {
  open();
  CUstream stream = make_stream();
  CUdeviceptr beside = allocate(64);
  std::atomic<bool> released = false;
  hold(stream, released);
  std::thread release([&] {
    usleep(2000);
    released = true;
  });
  free(beside);
  EXPECT_TRUE(released);
  release.join();
  destroy(stream);
}

TEST_F(FakeCuda, MemoryOfAPool) {
  open();
  CUstream stream = make_stream();
  CUdeviceptr memory = 1;
  EXPECT_EQ(CALL(cuMemAllocAsync, 11020, &memory, 0, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(memory, 0u);
  ASSERT_EQ(CALL(cuMemAllocAsync, 11020, &memory, 5000, stream), CUDA_SUCCESS);
  EXPECT_EQ(memory % 65536, 0u);
  CUdeviceptr second = 0;
  ASSERT_EQ(CALL(cuMemAllocAsync, 11020, &second, 5000, stream), CUDA_SUCCESS);
  EXPECT_EQ(second % 4096, 0u);
  EXPECT_NE(second % 65536, 0u);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, second, stream), CUDA_SUCCESS);
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(CALL(cuPointerGetAttribute, 4000, &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory),
            CUDA_SUCCESS);
  EXPECT_NE(pool, nullptr);
  CUipcMemHandle shared;
  EXPECT_EQ(CALL(cuIpcGetMemHandle, 4010, &shared, memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, memory, 7, 5000, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, memory, 7, 5001, stream), CUDA_ERROR_INVALID_VALUE);
  wait(stream);
  // It goes back when the stream comes to it.
  std::atomic<bool> released = false;
  hold(stream, released);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, memory, stream), CUDA_SUCCESS);
  EXPECT_EQ(live(FAKE_CUDA_DEVICE_MEMORY), 1u);
  // What is allocated meanwhile is ordered behind it.
  CUstream other_stream = make_stream();
  ASSERT_EQ(CALL(cuMemAllocAsync, 11020, &second, 5000, other_stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, other_stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, second, other_stream), CUDA_SUCCESS);
  released = true;
  wait(stream);
  wait(other_stream);
  destroy(other_stream);
  EXPECT_EQ(live(FAKE_CUDA_DEVICE_MEMORY), 0u);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, 0, stream), CUDA_SUCCESS);
  EXPECT_EQ(violations(), "");
  // Nor is it freed twice before the stream has come to it.
  ASSERT_EQ(CALL(cuMemAllocAsync, 11020, &memory, 5000, stream), CUDA_SUCCESS);
  wait(stream);
  released = false;
  hold(stream, released);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, memory, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, memory, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(occurrences("double-free"), 1u);
  released = true;
  wait(stream);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, memory, stream), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr other = allocate(64);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, other, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(occurrences("double-free"), 2u);
  EXPECT_EQ(occurrences("stray-free"), 1u);
  violations_expected_ = true;
  free(other);
  destroy(stream);
}

class OwnPools : public FakeCuda {
 protected:
  CUmemoryPool make_pool(CUmemAllocationType type, CUmemLocationType location, int id,
                         CUresult expected = CUDA_SUCCESS, int handles = 0) {
    CUmemPoolProps wanted{};
    wanted.allocType = type;
    wanted.handleTypes = static_cast<CUmemAllocationHandleType>(handles);
    wanted.location.type = location;
    wanted.location.id = id;
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(CALL(cuMemPoolCreate, 11020, &pool, &wanted), expected) << type << ' ' << location << ' ' << id;
    return pool;
  }
  CUresult give(CUmemoryPool pool, CUmemLocationType location, int id, unsigned flags) {
    CUmemAccessDesc access{};
    access.location.type = location;
    access.location.id = id;
    access.flags = static_cast<CUmemAccess_flags>(flags);
    return CALL(cuMemPoolSetAccess, 11020, pool, &access, 1);
  }
  int access_of(CUmemoryPool pool, CUmemLocationType type, int id) {
    CUmemLocation location{};
    location.type = type;
    location.id = id;
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    EXPECT_EQ(CALL(cuMemPoolGetAccess, 11020, &flags, pool, &location), CUDA_SUCCESS);
    return flags;
  }
  CUdeviceptr take_from(CUmemoryPool pool, CUstream stream, size_t size = 65536) {
    CUdeviceptr memory = 0;
    EXPECT_EQ(CALL(cuMemAllocFromPoolAsync, 11020, &memory, size, pool, stream), CUDA_SUCCESS);
    wait(stream);
    return memory;
  }
};

constexpr auto kPinnedPool = CU_MEM_ALLOCATION_TYPE_PINNED;
constexpr auto kManagedPool = CU_MEM_ALLOCATION_TYPE_MANAGED;
constexpr auto kOnDevice = CU_MEM_LOCATION_TYPE_DEVICE;
constexpr auto kOnHost = CU_MEM_LOCATION_TYPE_HOST;
constexpr auto kOnNode = CU_MEM_LOCATION_TYPE_HOST_NUMA;

// As an H200 answered (docs/measured/pools.md).
TEST_F(OwnPools, WhatPoolsThereAre) {
  open();
  constexpr auto kBad = CUDA_ERROR_INVALID_VALUE;
  for (const int id : {-1, 5})
    make_pool(kPinnedPool, kOnDevice, id, kBad);
  make_pool(kPinnedPool, kOnNode, -1, kBad);
  make_pool(kPinnedPool, CU_MEM_LOCATION_TYPE_NONE, 0, kBad);
  make_pool(kPinnedPool, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, kBad);
  make_pool(static_cast<CUmemAllocationType>(3), kOnDevice, 0, kBad);
  make_pool(kPinnedPool, kOnHost, 0, kBad, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUmemoryPool pools[] = {make_pool(kPinnedPool, kOnDevice, 0), make_pool(kPinnedPool, kOnHost, 7),
                                make_pool(kPinnedPool, kOnNode, 0), make_pool(kManagedPool, kOnDevice, 0),
                                make_pool(kManagedPool, CU_MEM_LOCATION_TYPE_NONE, 0)};
  EXPECT_EQ(live(FAKE_CUDA_MEMORY_POOL), 5u);
  for (CUmemoryPool pool : pools)
    EXPECT_EQ(CALL(cuMemPoolDestroy, 11020, pool), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemPoolDestroy, 11020, pools[0]), kBad);
  EXPECT_EQ(live(FAKE_CUDA_MEMORY_POOL), 0u);
  configure("FAKE_CUDA_VERSION", "12.8");
  make_pool(kPinnedPool, kOnHost, 0, kBad);
  make_pool(kManagedPool, kOnDevice, 0, kBad);
  CALL(cuMemPoolDestroy, 11020, make_pool(kPinnedPool, kOnDevice, 0));
}

TEST_F(OwnPools, AccessAndUse) {
  open();
  CUstream stream = make_stream();
  CUmemoryPool host = make_pool(kPinnedPool, kOnHost, 0);
  EXPECT_EQ(access_of(host, kOnDevice, 0), 0);
  EXPECT_EQ(access_of(host, kOnHost, 0), 3);
  const CUdeviceptr pinned = take_from(host, stream);
  *reinterpret_cast<volatile char*>(pinned) = 1;
  CUdeviceptr pointer = 0;
  EXPECT_EQ(CALL(cuPointerGetAttribute, 4000, &pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pinned),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, pinned, 7, 16, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(occurrences("no-access"), 1u);
  EXPECT_EQ(give(host, kOnDevice, 0, 1), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(give(host, kOnHost, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(give(host, kOnDevice, 5, 3), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(give(host, kOnDevice, 0, 3), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, pinned, 7, 16, stream), CUDA_SUCCESS);
  wait(stream);
  EXPECT_EQ(*reinterpret_cast<volatile char*>(pinned), 7);
  // What pool memory does not have.
  EXPECT_EQ(CALL(cuStreamWriteValue32, 11070, stream, pinned, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemHostGetDevicePointer, 3020, &pointer, reinterpret_cast<void*>(pinned), 0),
            CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool managed = make_pool(kManagedPool, CU_MEM_LOCATION_TYPE_NONE, 0);
  const CUdeviceptr shared = take_from(managed, stream);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, shared, 7, 16, stream), CUDA_SUCCESS);
  wait(stream);
  CUmemLocation location{};
  location.type = kOnHost;
  EXPECT_EQ(CALL(cuMemAdvise, 12020, shared, 65536, CU_MEM_ADVISE_SET_READ_MOSTLY, location),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(CALL(cuStreamAttachMemAsync, 6000, stream, shared, 0, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool of_device = make_pool(kPinnedPool, kOnDevice, 0);
  EXPECT_EQ(give(of_device, kOnDevice, 0, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(give(of_device, kOnHost, 0, 3), CUDA_ERROR_NOT_SUPPORTED);
  // A pool that ends takes no memory with it.
  EXPECT_EQ(CALL(cuMemPoolDestroy, 11020, managed), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, shared, 8, 16, stream), CUDA_SUCCESS);
  wait(stream);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, shared, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, pinned, stream), CUDA_SUCCESS);
  wait(stream);
  EXPECT_EQ(occurrences("pool-with-access"), 0u);
  EXPECT_EQ(CALL(cuMemPoolDestroy, 11020, host), CUDA_SUCCESS);
  EXPECT_EQ(occurrences("pool-with-access"), 1u);
  EXPECT_EQ(CALL(cuMemPoolDestroy, 11020, of_device), CUDA_SUCCESS);
  violations_expected_ = true;
  destroy(stream);
}

TEST_F(OwnPools, FreesHoldUpNobodyWithoutInternalDependencies) {
  open();
  CUstream stream = make_stream();
  CUstream other = make_stream();
  CUmemoryPool pool = make_pool(kPinnedPool, kOnDevice, 0);
  for (const int allowed : {1, 0}) {
    int value = allowed;
    EXPECT_EQ(
        CALL(cuMemPoolSetAttribute, 11020, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &value),
        CUDA_SUCCESS);
    const CUdeviceptr memory = take_from(pool, stream);
    std::atomic<bool> released = false;
    hold(stream, released);
    EXPECT_EQ(CALL(cuMemFreeAsync, 11020, memory, stream), CUDA_SUCCESS);
    CUdeviceptr second = 0;
    EXPECT_EQ(CALL(cuMemAllocFromPoolAsync, 11020, &second, 65536, pool, other), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuStreamQuery, 2000, other), allowed != 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
    released = true;
    wait(other);
    EXPECT_EQ(CALL(cuMemFreeAsync, 11020, second, other), CUDA_SUCCESS);
    wait(stream);
    wait(other);
  }
  EXPECT_EQ(CALL(cuMemPoolDestroy, 11020, pool), CUDA_SUCCESS);
  destroy(stream);
  destroy(other);
}

TEST_F(FakeCuda, TheDefaultStreamOfAThread) {
  open();
  std::atomic<bool> released = false;
  hold(CU_STREAM_PER_THREAD, released);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  std::thread other([this] {
    EXPECT_EQ(CALL(cuCtxPushCurrent, 4000, context_), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuStreamQuery, 2000, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  });
  other.join();
  released = true;
  wait(CU_STREAM_PER_THREAD);
  EXPECT_EQ(live(FAKE_CUDA_STREAM), 0u);
}

TEST_F(FakeCuda, WrongContextIsRecorded) {
  configure("FAKE_CUDA_DEVICES", "2");
  open();
  CUstream stream = make_stream();
  CUevent event = make_event();
  CUcontext other = nullptr;
  ASSERT_EQ(CALL(cuDevicePrimaryCtxRetain, 7000, &other, 1), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuCtxPushCurrent, 4000, other), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventRecord, 2000, event, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(violations(), "");
  EXPECT_EQ(CALL(cuStreamQuery, 2000, stream), CUDA_SUCCESS);
  EXPECT_EQ(violations(), "");
  auto nothing = [](void*) {};
  EXPECT_EQ(CALL(cuLaunchHostFunc, 10000, stream, nothing, nullptr), CUDA_SUCCESS);
  wait(stream);
  EXPECT_EQ(violations(), "") << "a stream carries its context";
  CUdeviceptr memory = 0;
  EXPECT_TRUE(pop());
  ASSERT_EQ(CALL(cuMemAlloc, 3020, &memory, 64), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuCtxPushCurrent, 4000, other), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemFree, 3020, memory), CUDA_SUCCESS);
  EXPECT_EQ(occurrences("wrong-context"), 1u);
  violations_expected_ = true;
  EXPECT_TRUE(pop());
  EXPECT_EQ(CALL(cuDevicePrimaryCtxRelease, 11000, 1), CUDA_SUCCESS);
  destroy(stream);
  destroy(event);
}

TEST_F(FakeCuda, CaptureRefusesAsTheDriverDoes) {
  open();
  CUstream stream = make_stream(CU_STREAM_DEFAULT);
  CUdeviceptr device = allocate(16);
  CUstreamCaptureStatus status;
  CUgraph graph = nullptr;
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamIsCapturing, 10000, stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(CALL(cuStreamIsCapturing, 10000, nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, device, 1, 16, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(live(FAKE_CUDA_GRAPH), 1u);
  EXPECT_EQ(CALL(cuGraphDestroy, 10000, graph), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamSynchronize, 2000, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CALL(cuStreamIsCapturing, 10000, stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr refused = 0;
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &refused, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // Questions about the legacy stream, while a blocking one is being captured.
  for (int question = 0; question < 3; ++question) {
    EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CUcontext context = nullptr;
    int priority = 0;
    unsigned long long id = 0;
    EXPECT_EQ(question == 0   ? CALL(cuStreamGetCtx, 9020, nullptr, &context)
              : question == 1 ? CALL(cuStreamGetPriority, 5050, nullptr, &priority)
                              : CALL(cuStreamGetId, 12000, nullptr, &id),
              CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  free(device);
  destroy(stream);
}

TEST_F(FakeCuda, StreamsJoinACaptureByEvents) {
  open();
  CUstream first = make_stream(CU_STREAM_NON_BLOCKING);
  CUstream second = make_stream(CU_STREAM_NON_BLOCKING);
  CUstream third = make_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr device = allocate(16);
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  EXPECT_EQ(CALL(cuEventCreate, 2000, &event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  const auto number = [&](CUstream stream) {
    cuuint64_t id = 0;
    CUstreamCaptureStatus status;
    EXPECT_EQ(CALL(cuStreamGetCaptureInfo, 10010, stream, &status, &id), CUDA_SUCCESS);
    EXPECT_EQ(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, id != 0);
    return id;
  };
  const auto order = [&](CUstream before, CUstream after) {
    EXPECT_EQ(CALL(cuEventRecord, 2000, event, before), CUDA_SUCCESS);
    return CALL(cuStreamWaitEvent, 3020, after, event, 0u);
  };
  const auto begin = [&](CUstream stream) {
    EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  };
  EXPECT_EQ(number(first), 0u);
  begin(first);
  const cuuint64_t id = number(first);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(number(second), 0u);
  EXPECT_EQ(order(first, second), CUDA_SUCCESS);
  EXPECT_EQ(number(second), id);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, device, 1, 16, second), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, second, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(order(second, first), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, first, &graph), CUDA_SUCCESS);
  EXPECT_EQ(number(first) + number(second), 0u);
  EXPECT_EQ(CALL(cuGraphDestroy, 10000, graph), CUDA_SUCCESS);
  // The event is of a capture that has ended.
  EXPECT_EQ(CALL(cuStreamWaitEvent, 3020, second, event, 0u), CUDA_ERROR_NOT_SUPPORTED);
  // Who joined must come back, with all that it captured since.
  begin(first);
  EXPECT_NE(number(first), id);
  EXPECT_EQ(order(first, second), CUDA_SUCCESS);
  EXPECT_EQ(order(second, first), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, device, 1, 16, second), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, first, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph, nullptr);
  // Two captures do not mix.
  begin(first);
  begin(third);
  EXPECT_EQ(order(first, third), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, first, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, third, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(CALL(cuEventDestroy, 4000, event), CUDA_SUCCESS);
  free(device);
  for (CUstream stream : {first, second, third})
    destroy(stream);
}

TEST_F(FakeCuda, ACapturedGraphRunsWhenItIsLaunched) {
  open();
  CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr device = allocate(16);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  unsigned char byte = 0;
  EXPECT_EQ(CALL(cuMemsetD8, 3020, device, 1, 16), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, device, 2, 16, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, device, 3, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuGraphInstantiateWithFlags, 11040, &executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuGraphDestroy, 10000, graph), CUDA_SUCCESS);
  EXPECT_EQ(live(FAKE_CUDA_GRAPH), 1u);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, &byte, device, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 1);
  EXPECT_EQ(CALL(cuGraphLaunch, 10000, executable, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamSynchronize, 2000, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, &byte, device, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 3);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, &byte, device + 8, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 2);
  EXPECT_EQ(CALL(cuGraphExecDestroy, 10000, executable), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuGraphExecDestroy, 10000, executable), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(live(FAKE_CUDA_GRAPH), 0u);
  free(device);
  destroy(stream);
}

TEST_F(FakeCuda, AGraphKeepsItsUserObjects) {
  open();
  CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
  CUgraphExec executable = nullptr;
  int ended = 0;
  const auto end = [](void* number) { ++*static_cast<int*>(number); };
  const auto capture = [&] {
    CUstreamCaptureStatus status;
    CUgraph graph = nullptr;
    CUuserObject object = nullptr;
    EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuStreamGetCaptureInfo, 11030, stream, &status, nullptr, &graph, nullptr, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuUserObjectCreate, 11030, &object, &ended, end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
              CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuGraphRetainUserObject, 11030, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE),
              CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuUserObjectRelease, 11030, object, 1), CUDA_ERROR_INVALID_VALUE);  // it is the graph's
  };
  CUgraph graph = nullptr;
  capture();
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuGraphInstantiateWithFlags, 11040, &executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuGraphDestroy, 10000, graph), CUDA_SUCCESS);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(CALL(cuGraphExecDestroy, 10000, executable), CUDA_SUCCESS);
  EXPECT_EQ(ended, 1);
  // A capture that comes to nothing ends them too.
  capture();
  EXPECT_EQ(CALL(cuStreamQuery, 2000, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(live(FAKE_CUDA_GRAPH), 0u);
  destroy(stream);
}

TEST_F(FakeCuda, ACaptureRefusesWorkOutsideOfIt) {
  open();
  CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
  CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
  CUevent event = nullptr;
  CUevent shared = nullptr;
  CUgraph graph = nullptr;
  EXPECT_EQ(CALL(cuEventCreate, 2000, &event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventCreate, 2000, &shared, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS),
            CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamWaitEvent, 3020, stream, event, 0u), CUDA_SUCCESS);  // never recorded
  EXPECT_EQ(CALL(cuEventRecord, 2000, shared, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuGraphDestroy, 10000, graph), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventRecord, 2000, event, other), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamWaitEvent, 3020, stream, event, 0u), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(CALL(cuStreamEndCapture, 10000, stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(CALL(cuEventDestroy, 4000, event), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventDestroy, 4000, shared), CUDA_SUCCESS);
  destroy(stream);
  destroy(other);
}

TEST_F(FakeCuda, AStreamsHandleComesBackIfItShould) {
  open();
  for (const bool reuse : {false, true}) {
    EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_REUSE_STREAMS", reuse ? "1" : "0"), 0);
    CUstream first = make_stream(CU_STREAM_DEFAULT);
    unsigned long long first_id = 0;
    unsigned long long second_id = 0;
    EXPECT_EQ(CALL(cuStreamGetId, 12000, first, &first_id), CUDA_SUCCESS);
    destroy(first);
    CUstream second = make_stream(CU_STREAM_DEFAULT);
    EXPECT_EQ(CALL(cuStreamGetId, 12000, second, &second_id), CUDA_SUCCESS);
    EXPECT_EQ(first == second, reuse);
    EXPECT_NE(first_id, second_id);
    destroy(second);
  }
}

TEST_F(FakeCuda, AThreadSaysWhichCapturesItHeeds) {
  open();
  CUstream stream = make_stream();
  auto exchange = DRIVER(cuThreadExchangeStreamCaptureMode, 10010);
  auto allocate_under = [&](CUstreamCaptureMode captures, CUstreamCaptureMode heeds, bool elsewhere) {
    EXPECT_EQ(CALL(cuStreamBeginCapture, 10010, stream, captures), CUDA_SUCCESS);
    CUresult answer = CUDA_ERROR_UNKNOWN;
    auto body = [&] {
      EXPECT_EQ(CALL(cuCtxSetCurrent, 4000, context_), CUDA_SUCCESS);
      CUstreamCaptureMode mode = heeds;
      EXPECT_EQ(exchange(&mode), CUDA_SUCCESS);
      EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
      CUdeviceptr made = 0;
      answer = CALL(cuMemAlloc, 3020, &made, 16);
      if (answer == CUDA_SUCCESS) free(made);
      EXPECT_EQ(exchange(&mode), CUDA_SUCCESS);
      EXPECT_EQ(mode, heeds);
    };
    if (elsewhere) {
      std::thread(body).join();
    } else {
      body();
    }
    CUgraph graph = nullptr;
    if (CALL(cuStreamEndCapture, 10000, stream, &graph) == CUDA_SUCCESS) {
      EXPECT_EQ(CALL(cuGraphDestroy, 10000, graph), CUDA_SUCCESS);
    }
    return answer;
  };
  const auto global = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const auto local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  const auto relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  const auto refused = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  EXPECT_EQ(allocate_under(global, global, false), refused);
  EXPECT_EQ(allocate_under(global, local, false), refused);
  EXPECT_EQ(allocate_under(local, local, false), refused);
  EXPECT_EQ(allocate_under(relaxed, global, false), CUDA_SUCCESS);
  EXPECT_EQ(allocate_under(global, global, true), refused);
  EXPECT_EQ(allocate_under(local, global, true), CUDA_SUCCESS);
  EXPECT_EQ(allocate_under(global, local, true), CUDA_SUCCESS);
  EXPECT_EQ(allocate_under(global, relaxed, true), CUDA_SUCCESS);
  CUstreamCaptureMode wrong = static_cast<CUstreamCaptureMode>(3);
  EXPECT_EQ(exchange(&wrong), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(exchange(nullptr), CUDA_ERROR_INVALID_VALUE);
  destroy(stream);
}

TEST_F(FakeCuda, ValuesHoldAStream) {
  open();
  CUstream stream = make_stream(), other = make_stream();
  void* memory = nullptr;
  ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &memory, 16, 0), CUDA_SUCCESS);
  std::memset(memory, 0, 16);
  auto address = reinterpret_cast<CUdeviceptr>(memory);
  auto* word = static_cast<uint32_t*>(memory);
  EXPECT_EQ(CALL(cuStreamWaitValue32, 11070, stream, address, 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamWriteValue64, 11070, stream, address + 8, 77, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CALL(cuStreamWriteValue32, 11070, other, address, 6, 0), CUDA_SUCCESS);
  wait(stream);
  wait(other);
  EXPECT_EQ(word[2], 77u);
  EXPECT_EQ(CALL(cuStreamWaitValue32, 11070, stream, address, 7, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  __atomic_store_n(word, 7, __ATOMIC_SEQ_CST);
  wait(stream);
  EXPECT_EQ(CALL(cuStreamWaitValue32, 11070, stream, address + 2, 7, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuStreamWaitValue32, 8000, stream, address, 7, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, memory), CUDA_SUCCESS);
  destroy(stream);
  destroy(other);
}

// --- Virtual memory management ---

TEST_F(FakeCuda, VirtualMemory) {
  open();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t granule = 0;
  ASSERT_EQ(
      CALL(cuMemGetAllocationGranularity, 10020, &granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      CUDA_SUCCESS);
  CUdeviceptr range = 0;
  ASSERT_EQ(CALL(cuMemAddressReserve, 10020, &range, 4 * granule, 0, 0, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle block = 0, second = 0;
  EXPECT_EQ(CALL(cuMemCreate, 10020, &block, granule + 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CALL(cuMemCreate, 10020, &block, granule, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuMemCreate, 10020, &second, granule, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemMap, 10020, range, granule, 0, block, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemMap, 10020, range, granule, 0, second, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemMap, 10020, range + granule, granule, 0, second, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemRelease, 10020, block), CUDA_SUCCESS);
  EXPECT_EQ(live(FAKE_CUDA_BLOCK), 2u);
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_EQ(CALL(cuMemSetAccess, 10020, range, granule / 2, &access, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemSetAccess, 10020, range, 3 * granule, &access, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemSetAccess, 10020, range, 2 * granule, &access, 1), CUDA_SUCCESS);
  unsigned long long rights = 0;
  EXPECT_EQ(CALL(cuMemGetAccess, 10020, &rights, &properties.location, range + 5), CUDA_SUCCESS);
  EXPECT_EQ(rights, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_TRUE(load_faults(range));
  char text[] = "across the seam", back[sizeof(text)] = {};
  EXPECT_EQ(CALL(cuMemcpyHtoD, 3020, range + granule - 7, text, sizeof(text)), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, back, range + granule - 7, sizeof(text)), CUDA_SUCCESS);
  EXPECT_STREQ(back, text);
  EXPECT_EQ(CALL(cuMemUnmap, 10020, range, granule / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemUnmap, 10020, range, 2 * granule), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, back, range, 4), CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp granted = {};
  EXPECT_EQ(CALL(cuMemGetAllocationPropertiesFromHandle, 10020, &granted, second), CUDA_SUCCESS);
  EXPECT_EQ(granted.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(CALL(cuMemRelease, 10020, second), CUDA_SUCCESS);
  EXPECT_EQ(violations(), "");
  EXPECT_EQ(CALL(cuMemAddressFree, 10020, range, granule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemAddressFree, 10020, range, 4 * granule), CUDA_SUCCESS);
  EXPECT_EQ(live(), 1u);
  violations_expected_ = true;
}

TEST_F(FakeCuda, HostBlocksAreSeenByTheCpuOnceAllowed) {
  open();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  const size_t size = size_t{2} << 20;
  CUmemGenericAllocationHandle block = 0;
  ASSERT_EQ(CALL(cuMemCreate, 10020, &block, size, &properties, 0), CUDA_SUCCESS);
  CUdeviceptr range = 0;
  ASSERT_EQ(CALL(cuMemAddressReserve, 10020, &range, size, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuMemMap, 10020, range, size, 0, block, 0), CUDA_SUCCESS);
  EXPECT_TRUE(load_faults(range));
  CUmemAccessDesc access[2] = {};
  access[0].location.type = CU_MEM_LOCATION_TYPE_HOST;
  access[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  access[1].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(CALL(cuMemSetAccess, 10020, range, size, access, 2), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemsetD8, 3020, range, 9, size), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuCtxSynchronize, 2000), CUDA_SUCCESS);
  EXPECT_EQ(*reinterpret_cast<char*>(range + size - 1), 9);
  EXPECT_EQ(CALL(cuMemUnmap, 10020, range, size), CUDA_SUCCESS);
  EXPECT_TRUE(load_faults(range));
  EXPECT_EQ(CALL(cuMemRelease, 10020, block), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemAddressFree, 10020, range, size), CUDA_SUCCESS);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(CALL(cuMemCreate, 10020, &block, size, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(CALL(cuMemCreate, 10020, &block, size, &properties, 0), CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(FakeCuda, FabricHandlesAreForWhoHasImex) {
  open();
  const size_t size = size_t{2} << 20;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle plain = 0;
  ASSERT_EQ(CALL(cuMemCreate, 10020, &plain, size, &properties, 0), CUDA_SUCCESS);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  configure("FAKE_CUDA_IMEX", "1");
  CUmemGenericAllocationHandle block = 0;
  ASSERT_EQ(CALL(cuMemCreate, 10020, &block, size, &properties, 0), CUDA_SUCCESS);
  CUmemFabricHandle handle = {};
  EXPECT_EQ(CALL(cuMemExportToShareableHandle, 10020, &handle, plain, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CALL(cuMemExportToShareableHandle, 10020, &handle, block, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(CALL(cuMemImportFromShareableHandle, 10020, &imported, &handle, CU_MEM_HANDLE_TYPE_FABRIC),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle none = 0;
  CUmemFabricHandle damaged = handle;
  damaged.data[sizeof damaged.data - 1] ^= 1;
  EXPECT_EQ(CALL(cuMemImportFromShareableHandle, 10020, &none, &damaged, CU_MEM_HANDLE_TYPE_FABRIC),
            CUDA_ERROR_INVALID_VALUE);
  configure("FAKE_CUDA_IMEX", "0");
  EXPECT_EQ(CALL(cuMemExportToShareableHandle, 10020, &damaged, block, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(CALL(cuMemImportFromShareableHandle, 10020, &none, &handle, CU_MEM_HANDLE_TYPE_FABRIC),
            CUDA_ERROR_NOT_PERMITTED);
  configure("FAKE_CUDA_IMEX", "1");
  for (const CUmemGenericAllocationHandle each : {plain, block, imported})
    EXPECT_EQ(CALL(cuMemRelease, 10020, each), CUDA_SUCCESS);
  // The handle keeps nothing alive.
  EXPECT_EQ(CALL(cuMemImportFromShareableHandle, 10020, &none, &handle, CU_MEM_HANDLE_TYPE_FABRIC),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(none, 0u);
}

// --- Faults ---

TEST_F(FakeCuda, TheKthCallFails) {
  open();
  CUdeviceptr address = 0;
  FAKE(fake_cuda_fail)("cuMemAlloc", 2, 0, CUDA_ERROR_OUT_OF_MEMORY);
  uint64_t before = FAKE(fake_cuda_call_count)("cuMemAlloc_v2");
  CUdeviceptr kept = allocate(1);
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &address, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(address, 0u);
  free(allocate(1));
  EXPECT_EQ(FAKE(fake_cuda_call_count)("cuMemAlloc"), before + 3);
  EXPECT_EQ(FAKE(fake_cuda_failures)(), 1u);
  configure("FAKE_CUDA_FAIL", "cuMemFree:1:always:CUDA_ERROR_UNKNOWN,cuMemGetInfo:1:once:2");
  EXPECT_EQ(CALL(cuMemFree, 3020, kept), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(live(FAKE_CUDA_DEVICE_MEMORY), 0u) << "what gives back does so even when it is made to fail";
  EXPECT_EQ(CALL(cuMemFree, 3020, 0), CUDA_ERROR_UNKNOWN);
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(CALL(cuMemGetInfo, 3020, &free_bytes, &total), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(CALL(cuMemGetInfo, 3020, &free_bytes, &total), CUDA_SUCCESS);
  configure("FAKE_CUDA_FAIL", "");
  EXPECT_EQ(CALL(cuMemFree, 3020, 0), CUDA_SUCCESS);
  EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "cuMemFree:0:once:1"), -1);
  EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "cuMemFree:1:twice:1"), -1);
  EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "cuMemFre:1:once:1"), -1);
}

TEST_F(FakeCuda, ALostDeviceRefusesEverythingButGivingBack) {
  open();
  CUdeviceptr address = allocate(1);
  CUstream stream = make_stream();
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, address, 0, 1, stream), CUDA_SUCCESS);
  FAKE(fake_cuda_set_sticky)(0, CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr other = 0;
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &other, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(CALL(cuStreamSynchronize, 2000, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(CALL(cuMemFree, 3020, address), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(CALL(cuStreamDestroy, 4000, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(live(), 1u);
  CUcontext current = nullptr;
  EXPECT_EQ(CALL(cuCtxGetCurrent, 4000, &current), CUDA_SUCCESS);
}

TEST_F(FakeCuda, AStickyErrorFromTheKthCallOn) {
  uint64_t now = FAKE(fake_cuda_call_count)("*");
  open();
  now = FAKE(fake_cuda_call_count)("*");
  configure("FAKE_CUDA_STICKY", (std::to_string(now + 4) + ":CUDA_ERROR_ECC_UNCORRECTABLE").c_str());
  size_t free_bytes = 0, total = 0;
  auto info = DRIVER(cuMemGetInfo, 3020);
  EXPECT_EQ(info(&free_bytes, &total), CUDA_SUCCESS);
  EXPECT_EQ(info(&free_bytes, &total), CUDA_SUCCESS);
  EXPECT_EQ(info(&free_bytes, &total), CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(info(&free_bytes, &total), CUDA_ERROR_ECC_UNCORRECTABLE);
}

TEST_F(FakeCuda, LeaksAreCounted) {
  init();
  CUcontext context = nullptr;
  ASSERT_EQ(CALL(cuDevicePrimaryCtxRetain, 7000, &context, 0), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuCtxSetCurrent, 4000, context), CUDA_SUCCESS);
  allocate(1);
  EXPECT_EQ(FAKE(fake_cuda_check_leaks)(), 2u);
  EXPECT_EQ(violations(), "leak: 1 of context\nleak: 1 of device memory\n");
  FAKE(fake_cuda_clear_violations)();
  EXPECT_EQ(CALL(cuDevicePrimaryCtxRelease, 11000, 0), CUDA_SUCCESS);
  EXPECT_EQ(violations(), "leak: a context ended with 1 live objects\n");
  EXPECT_EQ(live(), 0u);
  violations_expected_ = true;
}

TEST_F(FakeCuda, AFreeThatIsDueIsNoLeak) {
  init();
  CUcontext context = nullptr;
  ASSERT_EQ(CALL(cuDevicePrimaryCtxRetain, 7000, &context, 0), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuCtxSetCurrent, 4000, context), CUDA_SUCCESS);
  CUstream stream = make_stream();
  CUdeviceptr memory = 0;
  ASSERT_EQ(CALL(cuMemAllocAsync, 11020, &memory, 5000, stream), CUDA_SUCCESS);
  wait(stream);
  std::atomic<bool> released = false;
  hold(stream, released);
  EXPECT_EQ(CALL(cuMemFreeAsync, 11020, memory, stream), CUDA_SUCCESS);
  destroy(stream);
  // The end of the context waits for the stream.
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    released = true;
  });
  EXPECT_EQ(CALL(cuDevicePrimaryCtxRelease, 11000, 0), CUDA_SUCCESS);
  later.join();
  EXPECT_EQ(violations(), "");
}

// --- Settings that no test above is about ---

// A file of its own for FAKE_CUDA_REPORT, gone at the end.
class Report {
 public:
  Report() {
    const int file = mkstemp(path_);
    EXPECT_GE(file, 0);
    close(file);
  }
  ~Report() { unlink(path_); }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  const char* path() const { return path_; }
  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  char path_[32] = "/tmp/fake_cuda_report_XXXXXX";
};

TEST_F(FakeCuda, TheEnvironmentIsReadAtAReset) {
  const Report report;
  setenv("FAKE_CUDA_REPORT", report.path(), 1);
  setenv("FAKE_CUDA_DEVICES", "2", 1);
  setenv("FAKE_CUDA_NONSENSE", "1", 1);
  setenv("FAKE_CUDA_INIT", "no such code", 1);
  testing::internal::CaptureStderr();
  FAKE(fake_cuda_reset)();
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* name : {"FAKE_CUDA_REPORT", "FAKE_CUDA_DEVICES", "FAKE_CUDA_NONSENSE", "FAKE_CUDA_INIT"})
    unsetenv(name);
  EXPECT_EQ(occurrences("bad-setting: FAKE_CUDA_NONSENSE=1\n"), 1u);
  EXPECT_EQ(occurrences("bad-setting: FAKE_CUDA_INIT=no such code\n"), 1u);
  EXPECT_EQ(occurrences("bad-setting"), 2u);
  EXPECT_NE(said.find("fake_cuda: FAKE_CUDA_NONSENSE=1 is ignored: "), std::string::npos) << said;
  EXPECT_NE(said.find("fake_cuda: FAKE_CUDA_INIT=no such code is ignored: "), std::string::npos) << said;
  init();
  int count = 0;
  EXPECT_EQ(CALL(cuDeviceGetCount, 2000, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  violations_expected_ = true;
}

TEST_F(FakeCuda, ViolationsAreAppendedToTheReport) {
  const Report report;
  configure("FAKE_CUDA_REPORT", report.path());
  open();
  EXPECT_EQ(CALL(cuMemFree, 3020, 0x1000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemHostUnregister, 4000, this), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(report.text(), "stray-free: cuMemFree\nstray-free: cuMemHostUnregister\n");
  EXPECT_EQ(report.text(), violations());
  violations_expected_ = true;
}

// What a process reports that ends with something alive. The process runs this test too, with the environment
// that it inherits.
class FakeCudaExit : public FakeCuda {
 protected:
  std::string report_with(const char* leaks_at_exit) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::optional<Report> report;
    if (getenv("FAKE_CUDA_REPORT") == nullptr) {
      report.emplace();
      setenv("FAKE_CUDA_REPORT", report->path(), 1);
      setenv("FAKE_CUDA_LEAKS_AT_EXIT", leaks_at_exit, 1);
    }
    EXPECT_EXIT(
        {
          open();
          allocate(1);
          std::exit(0);
        },
        testing::ExitedWithCode(0), "");
    unsetenv("FAKE_CUDA_REPORT");
    unsetenv("FAKE_CUDA_LEAKS_AT_EXIT");
    return report ? report->text() : "";
  }
};

TEST_F(FakeCudaExit, WhatIsAliveIsReportedIfAsked) {
  EXPECT_EQ(report_with("1"), "leak: 1 of context\nleak: 1 of device memory\n");
}

TEST_F(FakeCudaExit, WhatIsAliveIsNotReportedOtherwise) { EXPECT_EQ(report_with("0"), ""); }

TEST_F(FakeCuda, ADeviceHasTheMemoryThatIsSet) {
  configure("FAKE_CUDA_MEMORY", "6291456");
  open();
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(CALL(cuDeviceTotalMem, 3020, &total, 0), CUDA_SUCCESS);
  EXPECT_EQ(total, size_t{6} << 20);
  CUdeviceptr first = allocate(size_t{4} << 20);
  EXPECT_EQ(CALL(cuMemGetInfo, 3020, &free_bytes, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, size_t{6} << 20);
  EXPECT_EQ(free_bytes, size_t{2} << 20);
  CUdeviceptr refused = 0;
  EXPECT_EQ(CALL(cuMemAlloc, 3020, &refused, (size_t{2} << 20) + 1), CUDA_ERROR_OUT_OF_MEMORY);
  free(allocate(size_t{2} << 20));
  free(first);
  EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_MEMORY", "much"), -1);
}

TEST_F(FakeCuda, TheGranularityIsTheOneThatIsSet) {
  configure("FAKE_CUDA_GRANULARITY", "65536");
  open();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t granularity = 0;
  EXPECT_EQ(
      CALL(cuMemGetAllocationGranularity, 10020, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      CUDA_SUCCESS);
  EXPECT_EQ(granularity, 65536u);
  CUmemGenericAllocationHandle block = 0;
  CUdeviceptr range = 0;
  EXPECT_EQ(CALL(cuMemCreate, 10020, &block, 65536 / 2, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemAddressReserve, 10020, &range, 65536 / 2, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(CALL(cuMemCreate, 10020, &block, 65536, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuMemAddressReserve, 10020, &range, 3 * 65536, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemMap, 10020, range + 65536, 65536, 0, block, 0), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemUnmap, 10020, range + 65536, 65536), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemAddressFree, 10020, range, 3 * 65536), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuMemRelease, 10020, block), CUDA_SUCCESS);
  for (const char* wrong : {"0", "2048", "98304", "-65536", ""})
    EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_GRANULARITY", wrong), -1) << wrong;
}

TEST_F(FakeCuda, EachOperationTakesTheDelayAtLeast) {
  configure("FAKE_CUDA_DELAY_US", "20000");
  open();
  CUdeviceptr memory = allocate(16);
  CUstream stream = make_stream();
  const auto start = std::chrono::steady_clock::now();
  for (int operation = 0; operation < 2; ++operation)
    EXPECT_EQ(CALL(cuMemsetD8Async, 3020, memory, 1, 16, stream), CUDA_SUCCESS);
  wait(stream);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::microseconds(40000));
  std::atomic<bool> released{false};
  hold(stream, released);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, memory, 1, 16, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, stream), CUDA_ERROR_NOT_READY);
  released = true;
  EXPECT_EQ(FAKE(fake_cuda_settle)(), 1);
  EXPECT_EQ(CALL(cuStreamQuery, 2000, stream), CUDA_SUCCESS);
  free(memory);
  destroy(stream);
}

TEST_F(FakeCuda, AQuestionDuringAFreeIsAViolation) {
  open();
  const auto questions = [] { return FAKE(fake_cuda_call_count)("cuPointerGetAttributes"); };
  for (const size_t offset : {size_t{0}, size_t{4095}}) {
    const CUdeviceptr memory = allocate(4096);
    configure("FAKE_CUDA_POINTER_DELAY_US", "1000000");
    const uint64_t before = questions();
    std::atomic<bool> stop{false};
    std::thread asker([&] {
      CUmemorytype type{};
      CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
      void* value = &type;
      while (!stop)
        CALL(cuPointerGetAttributes, 7000, 1, &attribute, &value, memory + offset);
    });
    while (questions() == before)
      std::this_thread::yield();
    free(memory);
    stop = true;
    asker.join();
    EXPECT_GE(occurrences("asked-while-freed"), 1u);
    FAKE(fake_cuda_clear_violations)();
  }
}

TEST_F(FakeCuda, LinksBetweenDevicesHaveADirection) {
  configure("FAKE_CUDA_DEVICES", "3");
  configure("FAKE_CUDA_PEERS", "0>1,2>0");
  init();
  auto can = [](CUdevice device, CUdevice peer) {
    int answer = -1;
    EXPECT_EQ(CALL(cuDeviceCanAccessPeer, 4000, &answer, device, peer), CUDA_SUCCESS);
    return answer;
  };
  const int wanted[3][3] = {{0, 1, 0}, {0, 0, 0}, {1, 0, 0}};
  for (int device = 0; device < 3; ++device) {
    for (int peer = 0; peer < 3; ++peer)
      EXPECT_EQ(can(device, peer), wanted[device][peer]) << device << " to " << peer;
  }
  configure("FAKE_CUDA_PEERS", "none");
  EXPECT_EQ(can(0, 1), 0);
  configure("FAKE_CUDA_PEERS", "all");
  EXPECT_EQ(can(1, 2), 1);
  EXPECT_EQ(can(1, 1), 0);
  for (const char* wrong : {"0", "0>", "0>1>2", "a>b", "0>1,"})
    EXPECT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_PEERS", wrong), -1) << wrong;
}

// --- Exit, fork, threads ---

TEST_F(FakeCuda, CallsAfterExitBegan) {
  init();
  auto count = DRIVER(cuDeviceGetCount, 2000);
  FAKE(fake_cuda_exit_began)();
  int value = 0;
  EXPECT_EQ(count(&value), CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(violations(), "call-after-exit: cuDeviceGetCount\n");
  violations_expected_ = true;
}

TEST_F(FakeCuda, AForkedChildHasNoDriverAndOnlyPinnedMemory) {
  open();
  CUdeviceptr shared = 0;
  ASSERT_EQ(CALL(cuMemAllocManaged, 6000, &shared, 100, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr device = allocate(1);
  void* pinned = nullptr;
  ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &pinned, 100, 0), CUDA_SUCCESS);
  auto count = DRIVER(cuDeviceGetCount, 2000);
  auto initialise = DRIVER(cuInit, 2000);
  auto ask_version = DRIVER(cuDriverGetVersion, 2020);
  auto recorded = FAKE(fake_cuda_violations);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int value = 0;
    int wrong = 0;
    if (count(&value) != CUDA_ERROR_NOT_INITIALIZED) wrong |= 1;
    if (initialise(0) != CUDA_ERROR_NOT_INITIALIZED) wrong |= 2;
    if (load_faults(reinterpret_cast<uintptr_t>(pinned))) wrong |= 4;
    int version = 0;
    if (ask_version(&version) != CUDA_SUCCESS) wrong |= 32;
    if (!load_faults(shared)) wrong |= 64;
    if (!load_faults(device)) wrong |= 8;
    if (recorded(nullptr, 0) != 2) wrong |= 16;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  free(shared);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, pinned), CUDA_SUCCESS);
  free(device);
}

// --- Sharing between processes ---

constexpr size_t kBlock = size_t{2} << 20;

struct Request {
  char what;
  uint64_t number;
  uint64_t fill;
  char handle[CU_IPC_HANDLE_SIZE];
};

struct Answer {
  CUresult code;
  uint64_t number;
  char handle[CU_IPC_HANDLE_SIZE];
};

template <class Handle>
Handle handle_of(const char (&bytes)[CU_IPC_HANDLE_SIZE]) {
  Handle handle;
  std::memcpy(&handle, bytes, sizeof(handle));
  return handle;
}

// The other process: does what it is asked until the socket closes.
class Server {
 public:
  int serve(int socket) {
    CUcontext context = nullptr;
    bool ready = CALL(cuInit, 2000, 0) == CUDA_SUCCESS &&
                 CALL(cuDevicePrimaryCtxRetain, 7000, &context, 0) == CUDA_SUCCESS &&
                 CALL(cuCtxSetCurrent, 4000, context) == CUDA_SUCCESS &&
                 CALL(cuStreamCreate, 2000, &stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
    Request request;
    while (ready && recv(socket, &request, sizeof(request), 0) == sizeof(request)) {
      Answer answer = {};
      answer.code = act(request, answer);
      if (send(socket, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer)) break;
    }
    return ready ? 0 : 1;
  }

 private:
  CUresult act(const Request& request, Answer& answer) {
    CUresult code = CUDA_ERROR_UNKNOWN;
    switch (request.what) {
      case 'a': {  // allocate, fill, export
        CUipcMemHandle handle = {};
        CUdeviceptr address = 0;
        code = CALL(cuMemAlloc, 3020, &address, request.number);
        if (code == CUDA_SUCCESS)
          code = CALL(cuMemsetD8, 3020, address, static_cast<unsigned char>(request.fill), request.number);
        if (code == CUDA_SUCCESS) code = CALL(cuCtxSynchronize, 2000);
        if (code == CUDA_SUCCESS) code = CALL(cuIpcGetMemHandle, 4010, &handle, address);
        std::memcpy(answer.handle, &handle, sizeof(handle));
        answer.number = address;
        return code;
      }
      case 'r': {  // read a byte
        unsigned char byte = 0;
        code = CALL(cuMemcpyDtoH, 3020, &byte, request.number, 1);
        answer.number = byte;
        return code;
      }
      case 'f':
        return CALL(cuMemFree, 3020, request.number);
      case 'v':  // violations
        answer.number = FAKE(fake_cuda_violations)(answer.handle, sizeof(answer.handle));
        return CUDA_SUCCESS;
      case 'e': {  // event
        CUipcEventHandle handle = {};
        code = CALL(cuEventCreate, 2000, &event_, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
        if (code == CUDA_SUCCESS) code = CALL(cuIpcGetEventHandle, 4010, &handle, event_);
        std::memcpy(answer.handle, &handle, sizeof(handle));
        return code;
      }
      case 'h':  // record, held up
        released_ = false;
        code = CALL(cuLaunchHostFunc, 10000, stream_, wait_for_release, &released_);
        return code == CUDA_SUCCESS ? CALL(cuEventRecord, 2000, event_, stream_) : code;
      case 'g':
        released_ = true;
        return CALL(cuStreamSynchronize, 2000, stream_);
      case 'q':
        return CALL(cuEventQuery, 2000, event_);
      case 's':
        return CALL(cuEventSynchronize, 2000, event_);
      case 'w': {  // record behind an event of the other process
        CUevent other = nullptr;
        code = CALL(cuIpcOpenEventHandle, 4010, &other, handle_of<CUipcEventHandle>(request.handle));
        if (code == CUDA_SUCCESS) code = CALL(cuStreamWaitEvent, 3020, stream_, other, 0);
        return code == CUDA_SUCCESS ? CALL(cuEventRecord, 2000, event_, stream_) : code;
      }
      default:
        return code;
    }
  }

  static void wait_for_release(void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load())
      usleep(100);
  }

  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  std::atomic<bool> released_ = false;
};

enum class Birth { kForked, kExecuted };

class Peer {
 public:
  explicit Peer(Birth birth = Birth::kExecuted) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) std::abort();
    child_ = fork();
    if (child_ == 0) {
      close(ends[0]);
      if (birth == Birth::kForked) _exit(Server().serve(ends[1]));
      const std::string socket = std::to_string(ends[1]);
      execl("/proc/self/exe", "fake_cuda_test", "peer", socket.c_str(), nullptr);
      _exit(127);
    }
    EXPECT_GT(child_, 0) << "fork";
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Peer() { leave(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Answer ask(char what, uint64_t number = 0, uint64_t fill = 0, const void* handle = nullptr) {
    Request request = {what, number, fill, {}};
    if (handle != nullptr) std::memcpy(request.handle, handle, sizeof(request.handle));
    Answer answer = {CUDA_ERROR_UNKNOWN, 0, {}};
    EXPECT_EQ(send(socket_, &request, sizeof(request), MSG_NOSIGNAL), ssize_t{sizeof(request)});
    EXPECT_EQ(recv(socket_, &answer, sizeof(answer), 0), ssize_t{sizeof(answer)});
    return answer;
  }
  Answer must(char what, uint64_t number = 0, uint64_t fill = 0, const void* handle = nullptr) {
    Answer answer = ask(what, number, fill, handle);
    EXPECT_EQ(answer.code, CUDA_SUCCESS) << what;
    return answer;
  }
  void leave() { part(0); }
  void kill() { part(SIGKILL); }

 private:
  void part(int signal) {
    if (child_ <= 0) return;
    if (signal != 0) ::kill(child_, signal);
    close(socket_);
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_EQ(signal, WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    child_ = 0;
  }

  pid_t child_ = 0;
  int socket_ = -1;
};

class FakeCudaSharing : public FakeCuda {
 protected:
  CUresult try_open(const Answer& exported, CUdeviceptr* address) {
    return CALL(cuIpcOpenMemHandle, 11000, address, handle_of<CUipcMemHandle>(exported.handle),
                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  CUdeviceptr open_memory(const Answer& exported) {
    CUdeviceptr address = 0;
    EXPECT_EQ(try_open(exported, &address), CUDA_SUCCESS);
    return address;
  }
  void close_memory(CUdeviceptr address) {
    EXPECT_EQ(CALL(cuIpcCloseMemHandle, 4010, address), CUDA_SUCCESS);
  }
  int byte_at(CUdeviceptr address) {
    unsigned char byte = 0;
    EXPECT_EQ(CALL(cuMemcpyDtoH, 3020, &byte, address, 1), CUDA_SUCCESS);
    return byte;
  }
  void fill(CUdeviceptr address, unsigned char byte, size_t size) {
    EXPECT_EQ(CALL(cuMemsetD8, 3020, address, byte, size), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuCtxSynchronize, 2000), CUDA_SUCCESS);
  }
  CUevent open_event(const Answer& exported) {
    CUevent event = nullptr;
    EXPECT_EQ(CALL(cuIpcOpenEventHandle, 4010, &event, handle_of<CUipcEventHandle>(exported.handle)),
              CUDA_SUCCESS);
    return event;
  }
  CUresult query(CUevent event) { return CALL(cuEventQuery, 2000, event); }
  CUresult query(CUstream stream) { return CALL(cuStreamQuery, 2000, stream); }
};

TEST_F(FakeCudaSharing, MemoryIsOneInBothProcesses) {
  Peer peer;
  open();
  const Answer made = peer.must('a', 2 * kBlock, 0x11);
  const auto handle = handle_of<CUipcMemHandle>(made.handle);
  CUdeviceptr address = 0;
  EXPECT_EQ(CALL(cuIpcOpenMemHandle, 11000, &address, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuIpcOpenMemHandle, 11000, &address, handle, 2), CUDA_ERROR_INVALID_VALUE);
  address = open_memory(made);
  EXPECT_EQ(byte_at(address), 0x11);
  EXPECT_EQ(byte_at(address + 2 * kBlock - 1), 0x11);
  EXPECT_TRUE(load_faults(address));
  fill(address, 0x22, 100);
  EXPECT_EQ(peer.must('r', made.number + 99).number, 0x22u);
  EXPECT_EQ(peer.must('r', made.number + 100).number, 0x11u);
  EXPECT_EQ(open_memory(made), address);
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 1u);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(CALL(cuMemGetAddressRange, 3020, &base, &size, address + 100), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_EQ(size, 2 * kBlock);
  close_memory(address);
  EXPECT_EQ(byte_at(address), 0x22);
  close_memory(address);
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 0u);
  EXPECT_EQ(CALL(cuMemGetAddressRange, 3020, &base, &size, address), CUDA_ERROR_NOT_FOUND);
}

TEST_F(FakeCudaSharing, AnImportIsClosedByItsAddressAndNotOtherwiseUsed) {
  Peer peer;
  open();
  CUdeviceptr address = open_memory(peer.must('a', kBlock, 0x11));
  CUipcMemHandle handle = {};
  EXPECT_EQ(CALL(cuIpcGetMemHandle, 4010, &handle, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(violations(), "");
  EXPECT_EQ(CALL(cuMemFree, 3020, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuIpcCloseMemHandle, 4010, address + 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuIpcCloseMemHandle, 4010, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(occurrences("stray-free"), 3u);
  EXPECT_EQ(FAKE(fake_cuda_check_leaks)(), 2u);
  EXPECT_EQ(occurrences("leak: 1 of import"), 1u);
  close_memory(address);
  EXPECT_EQ(CALL(cuIpcCloseMemHandle, 4010, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(occurrences("double-free"), 1u);
  violations_expected_ = true;
}

TEST_F(FakeCudaSharing, SmallAllocationsBringTheirNeighbours) {
  Peer peer;
  open();
  const Answer first = peer.must('a', 1000, 0x31);
  const Answer second = peer.must('a', 1000, 0x32);
  const Answer alone = peer.must('a', kBlock, 0x33);
  const size_t apart = second.number - first.number;
  ASSERT_LT(apart, kBlock);
  const CUdeviceptr address = open_memory(second);
  EXPECT_EQ(byte_at(address), 0x32);
  EXPECT_EQ(byte_at(address - apart), 0x31) << "the neighbour is in reach";
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(CALL(cuMemGetAddressRange, 3020, &base, &size, address), CUDA_SUCCESS);
  EXPECT_EQ(base, address - second.number % kBlock);
  EXPECT_EQ(size, kBlock);
  EXPECT_EQ(open_memory(first), address - apart);
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 1u);
  const CUdeviceptr other = open_memory(alone);
  EXPECT_EQ(CALL(cuMemGetAddressRange, 3020, &base, &size, other), CUDA_SUCCESS);
  EXPECT_EQ(base, other);
  EXPECT_EQ(size, kBlock);
  close_memory(address);
  EXPECT_EQ(byte_at(address - apart), 0x31);
  close_memory(address - apart);
  close_memory(other);
}

TEST_F(FakeCudaSharing, AHandleNamesAnAddressOfALivingProcess) {
  Peer peer;
  open();
  const Answer old = peer.must('a', kBlock, 0x41);
  close_memory(open_memory(old));
  EXPECT_EQ(peer.must('f', old.number).code, CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(try_open(old, &address), CUDA_ERROR_INVALID_VALUE);
  const Answer again = peer.must('a', kBlock, 0x42);
  ASSERT_EQ(again.number, old.number);
  EXPECT_NE(std::memcmp(again.handle, old.handle, sizeof(old.handle)), 0);
  address = open_memory(old);
  EXPECT_EQ(byte_at(address), 0x42);
  close_memory(address);
  Answer damaged = again;
  damaged.handle[CU_IPC_HANDLE_SIZE - 1] = 1;
  EXPECT_EQ(try_open(damaged, &address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_open(Answer{}, &address), CUDA_ERROR_INVALID_VALUE);
  peer.leave();
  EXPECT_EQ(try_open(again, &address), CUDA_ERROR_INVALID_HANDLE);
  const CUdeviceptr own = allocate(kBlock);
  CUipcMemHandle handle = {};
  EXPECT_EQ(CALL(cuIpcGetMemHandle, 4010, &handle, own), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuIpcOpenMemHandle, 11000, &address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            CUDA_ERROR_INVALID_CONTEXT);
  free(own);
}

TEST_F(FakeCudaSharing, AnImportOutlivesItsExporter) {
  for (const bool killed : {false, true}) {
    Peer peer;
    if (context_ == nullptr) open();
    const CUdeviceptr address = open_memory(peer.must('a', kBlock, 0x51));
    killed ? peer.kill() : peer.leave();
    EXPECT_EQ(byte_at(address + kBlock - 1), 0x51);
    fill(address, 0x52, kBlock);
    EXPECT_EQ(byte_at(address + kBlock - 1), 0x52);
    close_memory(address);
  }
}

TEST_F(FakeCudaSharing, MemoryThatIsFreedWhileOthersHaveItOpenIsRecorded) {
  Peer peer;
  open();
  const Answer made = peer.must('a', kBlock, 0x61);
  const CUdeviceptr address = open_memory(made);
  peer.must('f', made.number);
  const Answer recorded = peer.must('v');
  EXPECT_EQ(recorded.number, 1u);
  EXPECT_EQ(std::string(recorded.handle).find("freed-while-imported: cuMemFree"), 0u) << recorded.handle;
  EXPECT_EQ(byte_at(address), 0x61);
  // The address may be given out again while the old import is open.
  const Answer again = peer.must('a', kBlock, 0x62);
  const CUdeviceptr newer = open_memory(again);
  EXPECT_NE(newer, address);
  EXPECT_EQ(byte_at(newer), 0x62);
  close_memory(newer);
  close_memory(address);
  peer.must('f', again.number);
  EXPECT_EQ(peer.must('v').number, 1u) << "no record for memory that everybody has closed";
}

TEST_F(FakeCudaSharing, AnImportOfAnotherDeviceNeedsALink) {
  Peer peer;
  configure("FAKE_CUDA_DEVICES", "2");
  configure("FAKE_CUDA_PEERS", "none");
  init();
  CUcontext second = nullptr;
  ASSERT_EQ(CALL(cuDevicePrimaryCtxRetain, 7000, &second, 1), CUDA_SUCCESS);
  ASSERT_EQ(CALL(cuCtxSetCurrent, 4000, second), CUDA_SUCCESS);
  const Answer made = peer.must('a', kBlock, 0x71);
  CUdeviceptr address = 0;
  EXPECT_EQ(try_open(made, &address), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_EQ(live(FAKE_CUDA_IMPORT), 0u);
  configure("FAKE_CUDA_PEERS", "1>0");
  address = open_memory(made);
  int ordinal = -1;
  EXPECT_EQ(CALL(cuPointerGetAttribute, 4000, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(byte_at(address), 0x71);
  close_memory(address);
  EXPECT_EQ(CALL(cuDevicePrimaryCtxRelease, 11000, 1), CUDA_SUCCESS);
}

TEST_F(FakeCudaSharing, EventsAreOneInBothProcesses) {
  Peer peer;
  open();
  const Answer exported = peer.must('e');
  CUevent event = open_event(exported);
  EXPECT_EQ(query(event), CUDA_SUCCESS) << "never recorded";
  peer.must('h');
  EXPECT_EQ(query(event), CUDA_ERROR_NOT_READY);
  CUstream stream = make_stream();
  EXPECT_EQ(CALL(cuStreamWaitEvent, 3020, stream, event, 0), CUDA_SUCCESS);
  usleep(50'000);
  EXPECT_EQ(query(stream), CUDA_ERROR_NOT_READY);
  peer.must('g');
  wait(stream);
  EXPECT_EQ(query(event), CUDA_SUCCESS);
  // Recorded here, waited for there.
  std::atomic<bool> released = false;
  hold(stream, released);
  EXPECT_EQ(CALL(cuEventRecord, 2000, event, stream), CUDA_SUCCESS);
  EXPECT_EQ(query(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(peer.ask('q').code, CUDA_ERROR_NOT_READY);
  std::thread later([&] {
    usleep(50'000);
    released = true;
  });
  peer.must('s');
  EXPECT_TRUE(released);
  later.join();
  EXPECT_EQ(CALL(cuEventSynchronize, 2000, event), CUDA_SUCCESS);
  destroy(stream);
  destroy(event);
}

TEST_F(FakeCudaSharing, WhatEventsRefuse) {
  Peer peer;
  open();
  CUevent event = open_event(peer.must('e'));
  CUipcEventHandle handle = {};
  float milliseconds = 0;
  EXPECT_EQ(CALL(cuEventElapsedTime, 2000, &milliseconds, event, event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CALL(cuIpcGetEventHandle, 4010, &handle, event), CUDA_ERROR_INVALID_HANDLE);
  CUevent ordinary = make_event();
  EXPECT_EQ(CALL(cuIpcGetEventHandle, 4010, &handle, ordinary), CUDA_ERROR_INVALID_HANDLE);
  CUevent own = make_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  EXPECT_EQ(CALL(cuIpcGetEventHandle, 4010, &handle, own), CUDA_SUCCESS);
  CUevent none = nullptr;
  EXPECT_EQ(CALL(cuIpcOpenEventHandle, 4010, &none, handle), CUDA_ERROR_INVALID_CONTEXT);
  configure("FAKE_CUDA_ATTRIBUTE_125", "0");
  EXPECT_EQ(CALL(cuIpcGetEventHandle, 4010, &handle, own), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(CALL(cuIpcOpenEventHandle, 4010, &none, handle), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(none, nullptr);
  for (CUevent each : {event, ordinary, own})
    destroy(each);
}

TEST_F(FakeCudaSharing, AProcessThatIsKilledHoldsNobodyUp) {
  Peer peer;
  open();
  const Answer exported = peer.must('e');
  CUevent event = open_event(exported);
  peer.must('h');
  CUstream stream = make_stream();
  EXPECT_EQ(CALL(cuStreamWaitEvent, 3020, stream, event, 0), CUDA_SUCCESS);
  std::thread waiting([&] { EXPECT_EQ(CALL(cuEventSynchronize, 2000, event), CUDA_SUCCESS); });
  usleep(50'000);
  EXPECT_EQ(query(stream), CUDA_ERROR_NOT_READY);
  peer.kill();
  waiting.join();
  wait(stream);
  EXPECT_EQ(query(event), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventRecord, 2000, event, stream), CUDA_SUCCESS);
  wait(stream);
  EXPECT_EQ(query(event), CUDA_SUCCESS);
  CUevent none = nullptr;
  EXPECT_EQ(CALL(cuIpcOpenEventHandle, 4010, &none, handle_of<CUipcEventHandle>(exported.handle)),
            CUDA_ERROR_MAP_FAILED);
  destroy(stream);
  destroy(event);
}

TEST_F(FakeCudaSharing, AWaitForAnotherProcessTakesNoTime) {
  Peer peer;
  open();
  CUevent event = open_event(peer.must('e'));
  peer.must('h');
  CUstream stream = make_stream();
  EXPECT_EQ(CALL(cuStreamWaitEvent, 3020, stream, event, 0), CUDA_SUCCESS);
  const auto on = [](clockid_t clock) {
    timespec time = {};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begun = on(CLOCK_MONOTONIC);
  const double before = on(CLOCK_PROCESS_CPUTIME_ID);
  usleep(400'000);
  const double used = on(CLOCK_PROCESS_CPUTIME_ID) - before;
  const double passed = on(CLOCK_MONOTONIC) - begun;  // longer than that where the machine is busy
  EXPECT_LT(used, passed / 4) << "seconds of the processor in " << passed << " seconds";
  peer.must('g');
  wait(stream);
  destroy(stream);
  destroy(event);
}

TEST_F(FakeCudaSharing, AnotherProcessMayShowThatWorkIsComplete) {
  Peer peer;
  open();
  CUevent done = open_event(peer.must('e'));
  CUevent ready = make_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  CUipcEventHandle handle = {};
  ASSERT_EQ(CALL(cuIpcGetEventHandle, 4010, &handle, ready), CUDA_SUCCESS);
  CUstream stream = make_stream();
  const CUdeviceptr address = allocate(kBlock);
  EXPECT_EQ(CALL(cuMemsetD8Async, 3020, address, 1, kBlock, stream), CUDA_SUCCESS);
  EXPECT_EQ(CALL(cuEventRecord, 2000, ready, stream), CUDA_SUCCESS);
  peer.must('w', 0, 0, &handle);
  EXPECT_EQ(CALL(cuEventSynchronize, 2000, done), CUDA_SUCCESS);
  free(address);
  EXPECT_EQ(occurrences("free-in-flight"), 0u);
  destroy(stream);
  destroy(done);
  destroy(ready);
}

TEST_F(FakeCudaSharing, ProcessesThatWereForkedBeforeTheDriverWasUsed) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    execl("/proc/self/exe", "fake_cuda_test", "family", nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(FakeCudaSharing, DmaBufDescriptors) {
  open();
  const CUdeviceptr address = allocate(2 * kBlock);
  const auto ask = [](CUdeviceptr start, size_t size, unsigned long long flags) {
    int file = -1;
    const CUresult code = CALL(cuMemGetHandleForAddressRange, 11070, &file, start, size,
                               CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags);
    EXPECT_EQ(file >= 0, code == CUDA_SUCCESS);
    if (file >= 0) {
      EXPECT_EQ(close(file), 0);
    }
    return code;
  };
  EXPECT_EQ(ask(address, 2 * kBlock, 0), CUDA_SUCCESS);
  EXPECT_EQ(ask(address + kBlock, 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(ask(address + 100, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(address, 100, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(address, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(address, 4 * kBlock, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(address, kBlock, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE), CUDA_ERROR_NOT_SUPPORTED);
  void* pinned = nullptr;
  ASSERT_EQ(CALL(cuMemHostAlloc, 2020, &pinned, kBlock, 0), CUDA_SUCCESS);
  EXPECT_EQ(ask(reinterpret_cast<CUdeviceptr>(pinned), kBlock, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CALL(cuMemFreeHost, 2000, pinned), CUDA_SUCCESS);
  configure("FAKE_CUDA_ATTRIBUTE_124", "0");
  EXPECT_EQ(ask(address, kBlock, 0), CUDA_ERROR_NOT_SUPPORTED);
  free(address);
}

// Two processes of one program, neither of which has used the driver before the other was there.
int run_family() {
  Peer exporter(Birth::kForked);
  CUcontext context = nullptr;
  const bool ready = CALL(cuInit, 2000, 0) == CUDA_SUCCESS &&
                     CALL(cuDevicePrimaryCtxRetain, 7000, &context, 0) == CUDA_SUCCESS &&
                     CALL(cuCtxSetCurrent, 4000, context) == CUDA_SUCCESS;
  if (!ready) return 2;
  const Answer made = exporter.ask('a', kBlock, 0x77);
  CUdeviceptr address = 0;
  const CUresult opened = CALL(cuIpcOpenMemHandle, 11000, &address, handle_of<CUipcMemHandle>(made.handle),
                               CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (made.code != CUDA_SUCCESS || opened != CUDA_SUCCESS) return 3;
  unsigned char byte = 0;
  if (CALL(cuMemcpyDtoH, 3020, &byte, address, 1) != CUDA_SUCCESS || byte != 0x77) return 4;
  return CALL(cuIpcCloseMemHandle, 4010, address) == CUDA_SUCCESS ? 0 : 5;
}

TEST_F(FakeCuda, ManyThreads) {
  configure("FAKE_CUDA_DELAY_US", "20");
  open();
  std::vector<std::thread> threads;
  for (int index = 0; index < 8; ++index) {
    threads.emplace_back([this, index] {
      EXPECT_EQ(CALL(cuCtxPushCurrent, 4000, context_), CUDA_SUCCESS);
      for (int round = 0; round < 20; ++round) {
        CUstream stream = make_stream(index % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
        CUevent event = make_event();
        CUdeviceptr device = allocate(static_cast<size_t>(1000 * (index + 1)));
        char out[64] = {};
        EXPECT_EQ(CALL(cuMemsetD8Async, 3020, device, static_cast<unsigned char>(index), 64, stream),
                  CUDA_SUCCESS);
        EXPECT_EQ(CALL(cuMemcpyDtoHAsync, 3020, out, device, 64, stream), CUDA_SUCCESS);
        EXPECT_EQ(CALL(cuEventRecord, 2000, event, stream), CUDA_SUCCESS);
        EXPECT_EQ(CALL(cuEventSynchronize, 2000, event), CUDA_SUCCESS);
        EXPECT_EQ(out[63], index);
        free(device);
        destroy(event);
        destroy(stream);
      }
      EXPECT_TRUE(pop());
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(live(), 1u);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  FailuresLast::install();
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "peer") return Server().serve(std::atoi(argv[2]));
  if (role == "family") return run_family();
  return RUN_ALL_TESTS();
}
