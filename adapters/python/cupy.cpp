// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pools of gpumem for CuPy's CFunctionAllocator, and for Python: see docs/cupy-numba.md, and cupy.py, which
// begins the orders, and cuda_core.py in bindings/python/gpumem/adapters.
//
// All are called with the lock of the interpreter. They release it while the pool works, which may wait for
// work that ends in a function of Python.
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

void* take(gpumem_pool pool, size_t size, void* native_stream) {
  void* pointer = nullptr;
  // Not by a destructor: where the interpreter ends, the second call ends a thread.
  void* const thread = PyEval_SaveThread();
  (void)gpumem_pool_alloc_native(pool, size, native_stream, &pointer, nullptr);
  PyEval_RestoreThread(thread);
  return pointer;
}

bool put(gpumem_pool pool, void* pointer, void* native_stream) {
  void* const thread = PyEval_SaveThread();
  const gpumem_status status = gpumem_pool_free_native(pool, pointer, native_stream, nullptr);
  PyEval_RestoreThread(thread);
  return !GPUMEM_FAILED(status);
}

void* pointer_of(void* number) {
  return reinterpret_cast<void*>(PyLong_AsSize_t(number));  // NOLINT(performance-no-int-to-ptr)
}

// A call of Python with two numbers, of a method whose object is the handle of a pool.
struct Call {
  gpumem_pool pool = nullptr;
  void* first = nullptr;  // an address or a size
  void* native_stream = nullptr;
};

// False if it has other arguments.
bool read(void* self, void* const* arguments, ssize_t count, Call* out) {
  if (count != 2) return false;
  *out = {static_cast<gpumem_pool>(pointer_of(self)), pointer_of(arguments[0]), pointer_of(arguments[1])};
  const bool good = PyErr_Occurred() == nullptr;
  PyErr_Clear();
  return good;
}

// The address of a block of a size for a stream, or None if Python must allocate: it says why there is no
// memory.
void* alloc_method(void* self, void* const* arguments, ssize_t count) {
  Call call;
  void* const pointer = read(self, arguments, count, &call)
                            ? take(call.pool, reinterpret_cast<size_t>(call.first), call.native_stream)
                            : nullptr;
  if (pointer == nullptr) {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
  }
  void* const number = PyLong_FromVoidPtr(pointer);
  if (number == nullptr) (void)put(call.pool, pointer, call.native_stream);
  return number;
}

// Whether the block at an address was freed in the order of a stream; otherwise Python must do it.
void* free_method(void* self, void* const* arguments, ssize_t count) {
  Call call;
  const bool freed = read(self, arguments, count, &call) && put(call.pool, call.first, call.native_stream);
  return PyBool_FromLong(freed ? 1 : 0);
}

Method alloc_definition{"alloc", reinterpret_cast<void*>(alloc_method), kPositional, nullptr};
Method free_definition{"free", reinterpret_cast<void*>(free_method), kPositional, nullptr};

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
  void* const pointer = take(pool, size, order->native_stream);
  if (pointer != nullptr && (order->live.fetch_add(1, std::memory_order_relaxed) & ~kOpen) == 0) {
    Py_IncRef(order->stream_owner);
    Py_IncRef(order->pools_owner);
  }
  return pointer;
}

/** `free_func` of a CFunctionAllocator. */
EXPORT void gpumem_cupy_free(gpumem_cupy_order* order, void* pointer, int device) {
  const gpumem_pool pool = order->pools->pools[static_cast<size_t>(device)].load(std::memory_order_relaxed);
  void* const stream_owner = order->stream_owner;
  if (!put(pool, pointer, order->native_stream)) order->free_later(pointer, device, stream_owner);
  void* const pools_owner = order->pools_owner;
  const uint64_t left = order->live.fetch_sub(1, std::memory_order_acq_rel) - 1;
  if (left == 0) delete order;
  if ((left & ~kOpen) != 0) return;
  Py_DecRef(stream_owner);  // behind the free, as it may destroy the stream
  Py_DecRef(pools_owner);   // last, as the pools and the function are its
}

/** A function of Python that allocates from the pool with a handle: see alloc_method(). */
EXPORT void* gpumem_native_alloc(void* handle) {
  return PyCFunction_NewEx(&alloc_definition, handle, nullptr);
}

/** The one that frees, likewise. */
EXPORT void* gpumem_native_free(void* handle) { return PyCFunction_NewEx(&free_definition, handle, nullptr); }
