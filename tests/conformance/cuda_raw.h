// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The raw CUDA driver, for tests that play the part of other code in the process. Loaded at the first use.
#pragma once

#ifdef HAVE_CUDA_HEADERS
#include <cuda.h>

#include <cstdint>

namespace conformance {

// clang-format off
#define CUDA_RAW_FUNCTIONS(X)                                                                                       \
  X(cuInit) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetAttribute) X(cuDeviceGetUuid) X(cuDeviceGetPCIBusId)    \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxGetState)                            \
  X(cuDeviceGetMemPool) X(cuDeviceGetDefaultMemPool)                                                                \
  X(cuCtxCreate) X(cuCtxDestroy) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent)       \
  X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess)                                                                \
  X(cuMemAlloc) X(cuMemFree) X(cuMemAllocManaged) X(cuMemGetInfo) X(cuMemHostAlloc) X(cuMemFreeHost)                \
  X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetFlags) X(cuMemHostGetDevicePointer)                     \
  X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemsetD8) X(cuPointerGetAttribute)                                            \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamBeginCapture) X(cuStreamEndCapture)         \
  X(cuStreamIsCapturing) X(cuGraphDestroy) X(cuGraphGetNodes) X(cuGraphInstantiate) X(cuGraphLaunch)                \
  X(cuGraphExecDestroy) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuStreamWaitEvent)                    \
  X(cuMemsetD8Async) X(cuMemcpyDtoDAsync) X(cuMemcpyDtoHAsync) X(cuLaunchHostFunc)                                  \
  X(cuMemAllocAsync) X(cuMemFreeAsync)                                                                              \
  X(cuMemGetAllocationPropertiesFromHandle) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap)    \
  X(cuMemSetAccess)
// clang-format on

// A member for each function, with the name and type that cuda.h gives it: raw().cuMemAlloc(&pointer, size).
struct CudaRaw {
#define CUDA_RAW_MEMBER(function) decltype(&::function) function = nullptr;
  CUDA_RAW_FUNCTIONS(CUDA_RAW_MEMBER)
#undef CUDA_RAW_MEMBER
};

// The driver, initialised. Fails the test if there is none; on cuda there always is one.
const CudaRaw& raw();

// Makes the primary context of a device current for the calling thread while it lives.
class PrimaryContext {
 public:
  explicit PrimaryContext(uint32_t ordinal);
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  ~PrimaryContext();
  CUcontext get() const { return context_; }

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

}  // namespace conformance
#endif
