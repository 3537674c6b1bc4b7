// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// mr.hpp against CCCL itself: its concepts, its references, and a kernel over a block. For a machine with a GPU and
// nvcc of CUDA 12 or 13:
//   nvcc -std=c++17 -I capi/include tests/bindings/clients/mr.cu -L FOLDER -lgpumem -o mr
// -DNO_CONCEPTS, -DNO_REF and -DNO_ANY each leave out a part.
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // what CCCL before 3.1 wants
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <cuda/version>

#include <gpumem/mr.hpp>

#include <cstdio>
#include <cstdlib>

using Device = gpumem::mr::Resource<cuda::mr::device_accessible>;
using Both = gpumem::mr::Resource<cuda::mr::host_accessible, cuda::mr::device_accessible>;

#if CCCL_VERSION >= 3001000
#define ORDERED resource_with
#define PLAIN synchronous_resource_with
#define ORDERED_REF resource_ref
#else
#define ORDERED async_resource_with
#define PLAIN resource_with
#define ORDERED_REF async_resource_ref
#endif

#ifndef NO_CONCEPTS
static_assert(cuda::mr::PLAIN<Device, cuda::mr::device_accessible>);
static_assert(cuda::mr::ORDERED<Device, cuda::mr::device_accessible>);
static_assert(!cuda::mr::ORDERED<Device, cuda::mr::host_accessible>);
static_assert(cuda::mr::ORDERED<Both, cuda::mr::host_accessible, cuda::mr::device_accessible>);
#endif

namespace {

int number = 0;
bool good = true;

void check(bool passed, const char* what) {
  std::printf("%sok %d - %s\n", passed ? "" : "not ", ++number, what);
  good = good && passed;
}

__global__ void count(int* numbers, int size) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < size) numbers[i] = 3 * i;
}

// Allocates through `resource`, a reference or an owner of CCCL, and has a kernel write the block.
template <class Resource>
bool computes(Resource& resource, cudaStream_t native) {
  constexpr int kCount = 1000;
  constexpr size_t kSize = kCount * sizeof(int);
  const cuda::stream_ref stream(native);
#if CCCL_VERSION >= 3001000
  auto* const block = static_cast<int*>(resource.allocate(stream, kSize, 256));
#else
  auto* const block = static_cast<int*>(resource.allocate_async(kSize, 256, stream));
#endif
  count<<<(kCount + 255) / 256, 256, 0, native>>>(block, kCount);
  static int back[kCount];
  bool right = cudaMemcpyAsync(back, block, kSize, cudaMemcpyDefault, native) == cudaSuccess;
#if CCCL_VERSION >= 3001000
  resource.deallocate(stream, block, kSize, 256);
#else
  resource.deallocate_async(block, kSize, 256, stream);
#endif
  right = cudaStreamSynchronize(native) == cudaSuccess && right;
  for (int i = 0; i < kCount; ++i) right = right && back[i] == 3 * i;
  return right;
}

void run(cudaStream_t native) {
  gpumem::InstanceDesc desc;
  desc.backend = GPUMEM_BACKEND_CUDA;
  const gpumem::Instance instance = gpumem::open_instance(desc);
  const gpumem::Device device = instance.device(0);
  const gpumem::Pool pool = device.create_pool();
  gpumem::PoolDesc pinned_desc;
  pinned_desc.kind = GPUMEM_KIND_PINNED;
  const gpumem::Pool pinned = device.create_pool(pinned_desc);
  Device resource(pool);
  Both both(pinned);

  void* const page = resource.allocate(cuda::stream_ref(native), 100, 4096);
  check(reinterpret_cast<uintptr_t>(page) % 4096 == 0, "an alignment of 4096 is met");
  resource.deallocate(cuda::stream_ref(native), page, 100, 4096);
#ifndef NO_REF
  cuda::mr::ORDERED_REF<cuda::mr::device_accessible> ref(resource), pinned_ref(both);
  check(computes(ref, native), "a kernel writes a block of device memory through a reference");
  check(computes(pinned_ref, native), "a kernel writes a block of pinned memory through a reference");
  cuda::mr::ORDERED_REF<cuda::mr::device_accessible> same(resource);
  check(ref == same && !(ref == pinned_ref), "references are equal if the pools are");
#endif
#if !defined(NO_ANY) && __has_include(<cuda/__memory_resource/any_resource.h>)
  cuda::mr::any_resource<cuda::mr::device_accessible> any(resource);
  check(computes(any, native), "a kernel writes a block through an any_resource");
#endif
  bool refused = false;
  try {
    const Both wrong(pool);
  } catch (const gpumem::Error& error) {
    refused = error.status() == GPUMEM_ERROR_NO_ACCESS;
  }
  check(refused, "host_accessible over device memory is refused");
  check(pool.info().live_count == 0 && pinned.info().live_count == 0, "all blocks are back");
}

}  // namespace

int main() {
  std::printf("# CCCL %d\n", CCCL_VERSION);
  cudaStream_t native = nullptr;
  if (cudaSetDevice(0) != cudaSuccess || cudaStreamCreate(&native) != cudaSuccess) return EXIT_FAILURE;
  try {
    run(native);
  } catch (const std::exception& problem) {
    std::printf("# %s\n", problem.what());
    check(false, "nothing is thrown");
  }
  cudaStreamDestroy(native);
  std::printf("1..%d\n", number);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
