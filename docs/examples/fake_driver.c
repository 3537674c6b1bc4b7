/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Lets each call of an operation fail once, over the fake driver: see docs/fake-driver.md. */
#include <cuda.h>
#include <fake_cuda.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                               \
  do {                                                                          \
    const CUresult code = (call);                                               \
    if (code != CUDA_SUCCESS) {                                                 \
      const char* name = NULL;                                                  \
      (void)cuGetErrorName(code, &name);                                        \
      fprintf(stderr, "%s: %s\n", #call, name != NULL ? name : "unknown code"); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

/* What is to be tested: must undo everything if a call fails. */
static CUresult make_pair(CUdeviceptr* out_first, CUdeviceptr* out_second) {
  CUresult result = cuMemAlloc(out_first, 4096);
  if (result != CUDA_SUCCESS) return result;
  result = cuMemAlloc(out_second, 4096);
  if (result != CUDA_SUCCESS) TRY(cuMemFree(*out_first));
  return result;
}

int main(void) {
  CUdevice device;
  CUcontext context;
  TRY(cuInit(0));
  TRY(cuDeviceGet(&device, 0));
  TRY(cuDevicePrimaryCtxRetain(&context, device));
  TRY(cuCtxSetCurrent(context));

  CUdeviceptr first = 0, second = 0;
  CUresult result;
  uint64_t call = 0;
  do {
    fake_cuda_fail("*", ++call, 0, CUDA_ERROR_OUT_OF_MEMORY);
    result = make_pair(&first, &second);
    fake_cuda_configure("FAKE_CUDA_FAIL", ""); /* The rule may not have been used. */
    if (fake_cuda_live(FAKE_CUDA_DEVICE_MEMORY) != (result == CUDA_SUCCESS ? 2 : 0)) return 1;
  } while (result != CUDA_SUCCESS);
  printf("each of %d calls failed once, and nothing leaked\n", (int)call - 1);

  TRY(cuMemFree(first));
  TRY(cuMemFree(second));
  TRY(cuDevicePrimaryCtxRelease(device));
  return 0;
}
