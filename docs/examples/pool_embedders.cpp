// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A pool under PyTorch and under RMM: see docs/pools.md. Neither is needed to compile this: the functions
// have the exact shapes that they take.
#include <sys/types.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include <gpumem/gpumem.h>

typedef struct CUstream_st* cudaStream_t;

namespace {

// One pool for device 0; a program with more has one for each.
gpumem_pool pool = nullptr;

void* allocate(size_t size, cudaStream_t stream) {
  void* pointer = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (GPUMEM_FAILED(gpumem_pool_alloc_native(pool, size, stream, &pointer, &error))) {
    std::fprintf(stderr, "%s\n", error.message);
    throw std::bad_alloc();
  }
  return pointer;
}

void release(void* pointer, cudaStream_t stream) { gpumem_pool_free_native(pool, pointer, stream, nullptr); }

}  // namespace

// For torch.cuda.memory.CUDAPluggableAllocator(path, "pool_malloc", "pool_free").
extern "C" void* pool_malloc(ssize_t size, int /*device*/, cudaStream_t stream) {
  return allocate(static_cast<size_t>(size), stream);
}
extern "C" void pool_free(void* pointer, ssize_t /*size*/, int /*device*/, cudaStream_t stream) {
  release(pointer, stream);
}

// For rmm::mr::callback_memory_resource(rmm_allocate, rmm_deallocate).
void* rmm_allocate(size_t size, cudaStream_t stream, void* /*arg*/) { return allocate(size, stream); }
void rmm_deallocate(void* pointer, size_t /*size*/, cudaStream_t stream, void* /*arg*/) {
  release(pointer, stream);
}

int main() {
  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
  gpumem_stream stream = nullptr;
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  const bool ready = gpumem_instance_open(nullptr, &instance, nullptr) == GPUMEM_SUCCESS &&
                     gpumem_device_get(instance, 0, &device, nullptr) == GPUMEM_SUCCESS &&
                     gpumem_pool_create(device, nullptr, &pool, nullptr) == GPUMEM_SUCCESS &&
                     gpumem_stream_create(device, nullptr, &stream, nullptr) == GPUMEM_SUCCESS &&
                     gpumem_stream_get_info(stream, &info, nullptr) == GPUMEM_SUCCESS;
  if (!ready) return EXIT_FAILURE;
  auto* const native = static_cast<cudaStream_t>(info.native_stream);
  pool_free(pool_malloc(1000, 0, native), 1000, 0, native);
  rmm_deallocate(rmm_allocate(2000, native, nullptr), 2000, native, nullptr);
  const bool none = pool_malloc(0, 0, native) == nullptr;  // an empty tensor
  gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr);
  gpumem_pool_destroy(pool, nullptr);
  gpumem_stream_destroy(stream, nullptr);
  const bool closed = gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, nullptr) == GPUMEM_SUCCESS;
  return none && closed ? EXIT_SUCCESS : EXIT_FAILURE;
}
