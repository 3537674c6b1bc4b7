// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A pool under PyTorch, CuPy and RMM: see docs/pools.md. None is needed to compile this: the functions have
// the exact shapes that they take. Those for RMM are in mr.hpp.
#include <sys/types.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include <gpumem/mr.hpp>

typedef struct CUstream_st* cudaStream_t;

namespace {

// One pool for device 0; a program with more has one for each.
gpumem::Pool pool;

void* allocate(size_t size, cudaStream_t stream) {
  gpumem::Error error;
  void* const pointer = pool.alloc_native(size, stream, error);
  if (error) {
    std::fprintf(stderr, "%s\n", error.what());
    throw std::bad_alloc();
  }
  return pointer;
}

void release(void* pointer, cudaStream_t stream) {
  gpumem::Error ignored;
  pool.free_native(pointer, stream, ignored);
}

}  // namespace

// For torch.cuda.memory.CUDAPluggableAllocator(path, "pool_malloc", "pool_free").
extern "C" void* pool_malloc(ssize_t size, int /*device*/, cudaStream_t stream) {
  return allocate(static_cast<size_t>(size), stream);
}
extern "C" void pool_free(void* pointer, ssize_t /*size*/, int /*device*/, cudaStream_t stream) {
  release(pointer, stream);
}

// For cupy.cuda.CFunctionAllocator(param, malloc_func, free_func, owner), whose `param` is the stream.
extern "C" void* cupy_malloc(void* param, size_t size, int /*device*/) {
  void* pointer = nullptr;
  (void)gpumem_pool_alloc_native(pool.get(), size, param, &pointer, nullptr);
  return pointer;  // CuPy does not check for NULL
}
extern "C" void cupy_free(void* param, void* pointer, int /*device*/) {
  release(pointer, static_cast<cudaStream_t>(param));
}

int main() {
  gpumem::Instance instance = gpumem::open_instance();
  const gpumem::Device device = instance.device(0);
  pool = device.create_pool();
  gpumem::Stream stream = device.create_stream();
  auto* const native = static_cast<cudaStream_t>(stream.info().native_stream);
  pool_free(pool_malloc(1000, 0, native), 1000, 0, native);
  void* const array = cupy_malloc(native, 1000, 0);
  if (array != nullptr) cupy_free(native, array, 0);
  // For rmm::mr::callback_memory_resource, with rmm::cuda_stream_view instead of cudaStream_t.
  void* const block = gpumem::mr::rmm_allocate<cudaStream_t>(2000, native, pool.get());
  gpumem::mr::rmm_deallocate<cudaStream_t>(block, 2000, native, pool.get());
  const bool none = pool_malloc(0, 0, native) == nullptr;  // an empty tensor
  stream.synchronize();
  pool.close();
  stream.close();
  instance.close();
  return none && array != nullptr ? EXIT_SUCCESS : EXIT_FAILURE;
}
