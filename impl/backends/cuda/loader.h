// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA driver as a table of typed entry points, loaded at the first use and kept for the life of the
// process.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <atomic>
#include <string_view>

#include "base/result.h"

namespace gpumem::cuda {

// The code of a call of an entry point that this driver does not have. Drivers count to 999.
inline constexpr auto kMissing = static_cast<CUresult>(1000);

// Outcome of a driver call. Two words, so that calls return it in registers.
struct Outcome {
  CUresult code = CUDA_SUCCESS;
  const char* entry_point = "";

  bool ok() const { return code == CUDA_SUCCESS; }
  bool missing() const { return code == kMissing; }
};

// Whether NOT_READY is an answer of this entry point. From any other it is a refusal, which may pass.
constexpr bool answers_not_ready(std::string_view name) {
  return name == "cuStreamQuery" || name == "cuEventQuery" || name == "cuEventElapsedTime";
}

// Waits before try number `next` of a call that was refused with NOT_READY; false if it has been tried
// enough.
bool wait_to_retry(int next);

// Whether the process is ending. Threads that go on calling meanwhile must not reach the driver.
extern constinit std::atomic<bool> process_ends;

template <class Function>
struct Entry;

template <class... Arguments>
struct Entry<CUresult (*)(Arguments...)> {
  const char* name;
  CUresult (*function)(Arguments...) = nullptr;
  int version = 0;  // name of the variant that was found

  Outcome operator()(Arguments... arguments) const {
    if (function == nullptr) [[unlikely]]
      return {kMissing, name};
    if (process_ends.load(std::memory_order_relaxed)) [[unlikely]]
      return {CUDA_ERROR_DEINITIALIZED, name};
    for (int tries = 1;; ++tries) {
      const CUresult code = function(arguments...);
      if (code != CUDA_ERROR_NOT_READY || is_query || !wait_to_retry(tries)) [[likely]]
        return {code, name};
    }
  }

  bool is_query = answers_not_ready(name);
};

// The entry points that the backend uses, by name without "cu", version of the signature, and suffix of the
// exported symbol (for driver 11.2, which has no cuGetProcAddress). Without a REQUIRED one nothing can be
// opened; without an OPTIONAL one only the calls that need it fail.
#define GPUMEM_CUDA_ENTRY_POINTS(REQUIRED, OPTIONAL)        \
  REQUIRED(Init, 2000, "")                                  \
  REQUIRED(DriverGetVersion, 2020, "")                      \
  REQUIRED(DeviceGetCount, 2000, "")                        \
  REQUIRED(DeviceGet, 2000, "")                             \
  REQUIRED(DeviceGetName, 2000, "")                         \
  REQUIRED(DeviceGetUuid, 11040, "_v2")                     \
  REQUIRED(DeviceGetAttribute, 2000, "")                    \
  REQUIRED(DeviceTotalMem, 3020, "_v2")                     \
  REQUIRED(DeviceGetPCIBusId, 4010, "")                     \
  REQUIRED(DevicePrimaryCtxRetain, 7000, "")                \
  REQUIRED(DevicePrimaryCtxRelease, 11000, "_v2")           \
  REQUIRED(CtxPushCurrent, 4000, "_v2")                     \
  REQUIRED(CtxPopCurrent, 4000, "_v2")                      \
  REQUIRED(CtxGetCurrent, 4000, "")                         \
  OPTIONAL(DevicePrimaryCtxGetState, 7000, "")              \
  OPTIONAL(CtxGetDevice, 2000, "")                          \
  OPTIONAL(DeviceCanAccessPeer, 4000, "")                   \
  OPTIONAL(DeviceGetP2PAttribute, 8000, "")                 \
  OPTIONAL(DeviceGetGraphMemAttribute, 11040, "")           \
  OPTIONAL(DeviceGraphMemTrim, 11040, "")                   \
  OPTIONAL(CtxEnablePeerAccess, 4000, "")                   \
  OPTIONAL(CtxDisablePeerAccess, 4000, "")                  \
  OPTIONAL(CtxSynchronize, 2000, "")                        \
  OPTIONAL(MemGetInfo, 3020, "_v2")                         \
  OPTIONAL(MemAlloc, 3020, "_v2")                           \
  OPTIONAL(MemFree, 3020, "_v2")                            \
  OPTIONAL(MemAllocAsync, 11020, "")                        \
  OPTIONAL(MemFreeAsync, 11020, "")                         \
  OPTIONAL(MemAllocFromPoolAsync, 11020, "")                \
  OPTIONAL(MemPoolCreate, 11020, "")                        \
  OPTIONAL(MemPoolDestroy, 11020, "")                       \
  OPTIONAL(MemPoolSetAccess, 11020, "")                     \
  OPTIONAL(MemHostAlloc, 2020, "")                          \
  OPTIONAL(MemFreeHost, 2000, "")                           \
  OPTIONAL(MemHostGetDevicePointer, 3020, "_v2")            \
  OPTIONAL(MemHostRegister, 6050, "_v2")                    \
  OPTIONAL(MemHostUnregister, 4000, "")                     \
  OPTIONAL(MemAllocManaged, 6000, "")                       \
  OPTIONAL(StreamAttachMemAsync, 6000, "")                  \
  OPTIONAL(MemAdvise, 12020, "_v2")                         \
  OPTIONAL(MemPrefetchAsync, 12020, "_v2")                  \
  OPTIONAL(MemPrefetchBatchAsync, 13000, "")                \
  OPTIONAL(MemDiscardBatchAsync, 13000, "")                 \
  OPTIONAL(MemDiscardAndPrefetchBatchAsync, 13000, "")      \
  OPTIONAL(MemRangeGetAttributes, 8000, "")                 \
  OPTIONAL(MemGetAllocationGranularity, 10020, "")          \
  OPTIONAL(MemAddressReserve, 10020, "")                    \
  OPTIONAL(MemAddressFree, 10020, "")                       \
  OPTIONAL(MemCreate, 10020, "")                            \
  OPTIONAL(MemRelease, 10020, "")                           \
  OPTIONAL(MemMap, 10020, "")                               \
  OPTIONAL(MemUnmap, 10020, "")                             \
  OPTIONAL(MemSetAccess, 10020, "")                         \
  OPTIONAL(MemGetAllocationPropertiesFromHandle, 10020, "") \
  OPTIONAL(MemRetainAllocationHandle, 11000, "")            \
  OPTIONAL(MemExportToShareableHandle, 10020, "")           \
  OPTIONAL(MemImportFromShareableHandle, 10020, "")         \
  OPTIONAL(MemGetHandleForAddressRange, 11070, "")          \
  OPTIONAL(MemGetAddressRange, 3020, "_v2")                 \
  OPTIONAL(IpcGetMemHandle, 4010, "")                       \
  OPTIONAL(IpcOpenMemHandle, 11000, "_v2")                  \
  OPTIONAL(IpcCloseMemHandle, 4010, "")                     \
  OPTIONAL(IpcGetEventHandle, 4010, "")                     \
  OPTIONAL(IpcOpenEventHandle, 4010, "")                    \
  OPTIONAL(PointerGetAttributes, 7000, "")                  \
  OPTIONAL(MemcpyAsync, 4000, "")                           \
  OPTIONAL(MemcpyHtoDAsync, 3020, "_v2")                    \
  OPTIONAL(MemcpyDtoHAsync, 3020, "_v2")                    \
  OPTIONAL(MemcpyDtoDAsync, 3020, "_v2")                    \
  OPTIONAL(Memcpy2DAsync, 3020, "_v2")                      \
  OPTIONAL(MemcpyBatchAsync, 13000, "_v2")                  \
  OPTIONAL(MemsetD8Async, 3020, "")                         \
  OPTIONAL(MemsetD16Async, 3020, "")                        \
  OPTIONAL(MemsetD32Async, 3020, "")                        \
  OPTIONAL(MemsetD2D8Async, 3020, "")                       \
  OPTIONAL(MemsetD2D16Async, 3020, "")                      \
  OPTIONAL(MemsetD2D32Async, 3020, "")                      \
  OPTIONAL(StreamCreateWithPriority, 5050, "")              \
  OPTIONAL(StreamDestroy, 4000, "_v2")                      \
  OPTIONAL(StreamGetCtx, 9020, "")                          \
  OPTIONAL(StreamGetPriority, 5050, "")                     \
  OPTIONAL(StreamGetId, 12000, "")                          \
  OPTIONAL(ThreadExchangeStreamCaptureMode, 10010, "")      \
  OPTIONAL(StreamIsCapturing, 10000, "")                    \
  OPTIONAL(StreamGetCaptureInfo, 10010, "")                 \
  OPTIONAL(UserObjectCreate, 11030, "")                     \
  OPTIONAL(UserObjectRelease, 11030, "")                    \
  OPTIONAL(GraphRetainUserObject, 11030, "")                \
  OPTIONAL(StreamQuery, 2000, "")                           \
  OPTIONAL(StreamSynchronize, 2000, "")                     \
  OPTIONAL(StreamWaitEvent, 3020, "")                       \
  OPTIONAL(LaunchHostFunc, 10000, "")                       \
  OPTIONAL(ModuleLoadData, 2000, "")                        \
  OPTIONAL(ModuleGetFunction, 2000, "")                     \
  OPTIONAL(LaunchKernel, 4000, "")                          \
  OPTIONAL(StreamWriteValue32, 11070, "_v2")                \
  OPTIONAL(StreamWriteValue64, 11070, "_v2")                \
  OPTIONAL(StreamWaitValue32, 11070, "_v2")                 \
  OPTIONAL(StreamWaitValue64, 11070, "_v2")                 \
  OPTIONAL(EventCreate, 2000, "")                           \
  OPTIONAL(EventDestroy, 4000, "_v2")                       \
  OPTIONAL(EventRecord, 2000, "")                           \
  OPTIONAL(EventQuery, 2000, "")                            \
  OPTIONAL(EventSynchronize, 2000, "")                      \
  OPTIONAL(EventElapsedTime, 12080, "_v2")

// Older variants with the same signature.
#define GPUMEM_CUDA_OLDER_VARIANTS(OLDER) \
  OLDER(DeviceGetUuid, 9020, "")          \
  OLDER(StreamWriteValue32, 8000, "")     \
  OLDER(StreamWriteValue64, 9000, "")     \
  OLDER(StreamWaitValue32, 8000, "")      \
  OLDER(StreamWaitValue64, 9000, "")      \
  OLDER(EventElapsedTime, 2000, "")

// Further variants with another signature, by the name of their member and as above.
#define GPUMEM_CUDA_OTHER_SIGNATURES(OTHER)                        \
  OTHER(MemAdviseDevice, MemAdvise, 8000, "")                      \
  OTHER(MemPrefetchDeviceAsync, MemPrefetchAsync, 8000, "")        \
  OTHER(StreamGetCaptureGraph, StreamGetCaptureInfo, 11030, "_v2") \
  OTHER(MemcpyBatchIndexAsync, MemcpyBatchAsync, 12080, "")

struct Driver {
  int version = 0;
#define GPUMEM_CUDA_MEMBER(name, since, suffix) Entry<PFN_cu##name##_v##since> name{"cu" #name};
  GPUMEM_CUDA_ENTRY_POINTS(GPUMEM_CUDA_MEMBER, GPUMEM_CUDA_MEMBER)
#undef GPUMEM_CUDA_MEMBER
#define GPUMEM_CUDA_MEMBER(member, name, since, suffix) Entry<PFN_cu##name##_v##since> member{"cu" #name};
  GPUMEM_CUDA_OTHER_SIGNATURES(GPUMEM_CUDA_MEMBER)
#undef GPUMEM_CUDA_MEMBER
};

// The initialised driver. A failure is not remembered: the next call looks again.
Result<const Driver*> load();

// Whether a folder has device files of the driver that this process may not open.
bool device_files_denied(const char* folder);

}  // namespace gpumem::cuda
