// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime of a test: what a preloaded library passes on to. Its memory is ordinary.
#include <cstddef>
#include <cstdlib>

#define API extern "C" __attribute__((visibility("default")))

API int cudaMalloc(void** out_pointer, size_t size);
API int cudaFree(void* pointer);
API int cudaGetDevice(int* out_device);
API int runtime_live();

namespace {
int live = 0;
}

int cudaMalloc(void** out_pointer, size_t size) {
  *out_pointer = std::malloc(size);
  ++live;
  return 0;
}

int cudaFree(void* pointer) {
  if (pointer != nullptr) --live;
  std::free(pointer);
  return 0;
}

int cudaGetDevice(int* out_device) {
  *out_device = 1;
  return 0;
}

// How many allocations there are.
int runtime_live() { return live; }
