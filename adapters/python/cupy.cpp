// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The functions that CuPy's CFunctionAllocator calls, over pools of gpumem: see docs/cupy-numba.md and
// bindings/python/gpumem/adapters/cupy.py, which begins the orders.
//
// CuPy calls them while it holds the lock of the interpreter. They release it while the pool works, which may
// wait for work that ends in a function of Python.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "gpumem/gpumem.h"
#include "python.h"

namespace {

constexpr size_t kDevices = 64;
constexpr uint64_t kOpen = uint64_t{1} << 63;

// Frees a block that cannot be freed now, such as one that is dropped in a host function. It keeps the stream
// until then.
using FreeLater = void(void* pointer, int device, void* stream_owner);

}  // namespace

// The pools of one gpumem.adapters.cupy.Pool, by device; Python writes them.
struct gpumem_cupy_pools {
  std::array<std::atomic<gpumem_pool>, kDevices> pools;
  // Pools with a callback, whose exceptions only Python can raise.
  std::array<std::atomic<bool>, kDevices> has_callback;
};

// The blocks of one stream. While any lives, the objects of Python behind the stream and the pools live too.
struct gpumem_cupy_order {
  void* native_stream;
  const gpumem_cupy_pools* pools;
  void* stream_owner;
  void* pools_owner;
  FreeLater* free_later;
  std::atomic<uint64_t> live;  // blocks, and kOpen until gpumem_cupy_end()
};

/** Begins the order of a stream. `pools_size` is the size of gpumem_cupy_pools, to tell versions apart.
 *
 * \return NULL outside an interpreter, or without memory, or if the size is another one */
EXPORT gpumem_cupy_order* gpumem_cupy_begin(void* native_stream, const gpumem_cupy_pools* pools,
                                            size_t pools_size, void* stream_owner, void* pools_owner,
                                            FreeLater* free_later) {
  if (PyEval_SaveThread == nullptr || pools_size != sizeof *pools) return nullptr;
  return new (std::nothrow)
      gpumem_cupy_order{native_stream, pools, stream_owner, pools_owner, free_later, kOpen};
}

/** Ends an order, now or with its last block. */
EXPORT void gpumem_cupy_end(gpumem_cupy_order* order) {
  if (order->live.fetch_and(~kOpen, std::memory_order_acq_rel) == kOpen) delete order;
}

/** `malloc_func` of a CFunctionAllocator.
 *
 * \return NULL if Python must allocate: it makes the pool of the device, calls the callback, and says why
 * there is no memory */
EXPORT void* gpumem_cupy_alloc(gpumem_cupy_order* order, size_t size, int device) {
  const auto index = static_cast<size_t>(device);
  if (index >= kDevices || order->pools->has_callback[index].load(std::memory_order_relaxed)) return nullptr;
  const gpumem_pool pool = order->pools->pools[index].load(std::memory_order_relaxed);
  if (pool == nullptr) return nullptr;
  void* pointer = nullptr;
  // Not by a destructor: where the interpreter ends, the second call ends a thread.
  void* const thread = PyEval_SaveThread();
  (void)gpumem_pool_alloc_native(pool, size, order->native_stream, &pointer, nullptr);
  PyEval_RestoreThread(thread);
  if (pointer != nullptr && (order->live.fetch_add(1, std::memory_order_relaxed) & ~kOpen) == 0) {
    Py_IncRef(order->stream_owner);
    Py_IncRef(order->pools_owner);
  }
  return pointer;
}

/** `free_func` of a CFunctionAllocator. */
EXPORT void gpumem_cupy_free(gpumem_cupy_order* order, void* pointer, int device) {
  const gpumem_pool pool = order->pools->pools[static_cast<size_t>(device)].load(std::memory_order_relaxed);
  void* const thread = PyEval_SaveThread();
  const gpumem_status status = gpumem_pool_free_native(pool, pointer, order->native_stream, nullptr);
  PyEval_RestoreThread(thread);
  void* const stream_owner = order->stream_owner;
  if (GPUMEM_FAILED(status)) order->free_later(pointer, device, stream_owner);
  void* const pools_owner = order->pools_owner;
  const uint64_t left = order->live.fetch_sub(1, std::memory_order_acq_rel) - 1;
  if (left == 0) delete order;
  if ((left & ~kOpen) != 0) return;
  Py_DecRef(stream_owner);  // behind the free, as it may destroy the stream
  Py_DecRef(pools_owner);   // last, as the pools and the function are its
}
