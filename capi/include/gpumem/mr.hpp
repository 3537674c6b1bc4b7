// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
/** \file mr.hpp
 * Memory resources over pools, for C++17 and newer: of the standard library, of CCCL, and functions for RMM; and an allocator for
 * containers. Header only; see the page C++ of the guide.
 *
 * - **Ownership.** A resource or an allocator has the handle of its pool and does not own it. Destroy the pool last.
 * - **Errors.** A lack of memory is std::bad_alloc, a mistake is a gpumem::Error. Without exceptions (-fno-exceptions), either
 *   writes its message to stderr and aborts, since none of these interfaces can return a failure. To free what the pool does not
 *   have does nothing: frees must not fail.
 * - **Dependencies.** CCCL and RMM are not included: their types are template parameters.
 */
#ifndef GPUMEM_MR_HPP
#define GPUMEM_MR_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>

#include "gpumem.hpp"

namespace gpumem {
inline namespace GPUMEM_HPP_FORM {
namespace mr {
namespace detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const Error &error, bool lacking) {
#ifdef __cpp_exceptions
  if (lacking) throw std::bad_alloc();
  throw error;
#else
  (void)lacking;
  std::fprintf(stderr, "%s: %s\n", error.function(), error.what());
  std::abort();
#endif
}

[[noreturn, gnu::cold, gnu::noinline]] inline void fail_length() {
#ifdef __cpp_exceptions
  throw std::bad_array_new_length();
#else
  std::fputs("gpumem::mr::Allocator: the size in bytes is above SIZE_MAX; allocate fewer elements\n", stderr);
  std::abort();
#endif
}

/// Returns if the call succeeded. A size that no machine has is a lack of memory too.
inline void check(const Error &error, std::size_t size) {
  if (!error) return;
  const gpumem_status status = error.status();
  fail(error, status == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY || status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY ||
                  status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE || status == GPUMEM_ERROR_LIMIT_EXCEEDED ||
                  (status == GPUMEM_ERROR_INVALID_ARGUMENT && size > PTRDIFF_MAX));
}

inline void *allocate(gpumem_pool pool, std::size_t size, std::size_t alignment) {
  Error error;
  void *const pointer = PoolRef(pool).alloc_aligned(size, alignment, nullptr, error);
  check(error, size);
  return pointer;
}

/// Nothing runs on a device that is lost, so the block needs no order then. A stream whose capture has failed frees nothing: its
/// work may still use the block, which stays.
inline void free_in(gpumem_pool pool, void *pointer, void *stream) noexcept {
  if (gpumem_pool_free_native(pool, pointer, stream, nullptr) == GPUMEM_ERROR_DEVICE_LOST)
    gpumem_pool_free(pool, pointer, nullptr, nullptr);
}

inline void *allocate_in(gpumem_pool pool, void *stream, std::size_t size, std::size_t alignment) {
  Error error;
  void *const pointer = PoolRef(pool).alloc_native(size, stream, error);
  check(error, size);
  if ((reinterpret_cast<std::uintptr_t>(pointer) & (alignment - 1)) == 0) return pointer;
  // No call takes an alignment and a native stream. A block of no stream can be used in each.
  free_in(pool, pointer, stream);
  return allocate(pool, size, alignment);
}

template <class Stream, class = void>
inline constexpr bool has_value = false;
template <class Stream>
inline constexpr bool has_value<Stream, std::void_t<decltype(std::declval<const Stream &>().value())>> = true;

/// The native handle of a cudaStream_t, a cuda::stream_ref or an rmm::cuda_stream_view.
template <class Stream>
void *native(const Stream &stream) {
  if constexpr (std::is_pointer_v<Stream>) {
    static_assert(!std::is_same_v<Stream, gpumem_stream>, "pass the native_stream of its info()");
    return stream;
  } else if constexpr (has_value<Stream>) {
    return native(stream.value());
  } else {
    return native(stream.get());
  }
}

/// Refuses a pool whose memory lacks what a resource promises.
inline gpumem_pool accept(Handle<gpumem_pool> pool, bool host, bool device, OnError on_error) {
  gpumem::detail::Attempt attempt(on_error);
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  if (!attempt.done(gpumem_pool_get_info(pool.get(), &info, attempt.error()))) return nullptr;
  if (host && info.kind == GPUMEM_KIND_DEVICE) {
    attempt.refuse(GPUMEM_ERROR_NO_ACCESS, "gpumem::mr",
                   device ? "the CPU cannot access the pool's memory; create it with GPUMEM_KIND_PINNED or "
                            "GPUMEM_KIND_MANAGED"
                          : "the CPU cannot access the pool's memory; create it with GPUMEM_KIND_PINNED, "
                            "GPUMEM_KIND_MANAGED or GPUMEM_KIND_PAGEABLE");
    return nullptr;
  }
  if (device && info.kind == GPUMEM_KIND_PAGEABLE) {
    attempt.refuse(GPUMEM_ERROR_NO_ACCESS, "gpumem::mr",
                   "devices cannot access the pool's memory; create it with GPUMEM_KIND_DEVICE, "
                   "GPUMEM_KIND_PINNED or GPUMEM_KIND_MANAGED");
    return nullptr;
  }
  return pool.get();
}

/// Whether one of the types has this name. A type of CCCL cannot be named here without including CCCL.
template <class... Properties>
bool has_name(const char *name) {
  return std::strstr(__PRETTY_FUNCTION__, name) != nullptr;
}

}  // namespace detail

/// A std::pmr::memory_resource over a pool that the CPU can access: of #GPUMEM_KIND_PINNED, #GPUMEM_KIND_MANAGED or
/// #GPUMEM_KIND_PAGEABLE. Work of devices must have ended when a block is freed.
class PmrResource final : public std::pmr::memory_resource {
 public:
  /// Fails with #GPUMEM_ERROR_NO_ACCESS for a pool of device memory.
  explicit PmrResource(Handle<gpumem_pool> pool, OnError on_error = {})
      : pool_(detail::accept(pool, true, false, on_error)) {}

  PoolRef pool() const noexcept { return pool_; }

 private:
  // The standard wants an address even for no bytes, where the pool has NULL.
  void *do_allocate(std::size_t size, std::size_t alignment) override {
    return detail::allocate(pool_, size != 0 ? size : 1, alignment);
  }
  void do_deallocate(void *pointer, std::size_t /*size*/, std::size_t /*alignment*/) override {
    gpumem_pool_free(pool_, pointer, nullptr, nullptr);
  }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
#ifdef __cpp_rtti
    const auto *const same = dynamic_cast<const PmrResource *>(&other);
    return same != nullptr && same->pool_ == pool_;
#else
    return this == &other;
#endif
  }

  gpumem_pool pool_;
};

/// An allocator for containers of the standard library, over the pools of PmrResource. Work of devices must have ended when a block
/// is freed, as a container does also when it grows. Allocators of one pool are equal.
///
/// A container that is moved or swapped takes its pool along, so that no element is moved. One that is assigned a copy keeps its
/// own pool, and one that is constructed as a copy has that of the other.
template <class T>
class Allocator {
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::false_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  /// Fails with #GPUMEM_ERROR_NO_ACCESS for a pool of device memory.
  explicit Allocator(Handle<gpumem_pool> pool, OnError on_error = {})
      : pool_(detail::accept(pool, true, false, on_error)) {}
  /// For elements of another type, such as the nodes of a map.
  template <class U>
  Allocator(const Allocator<U> &other) noexcept : pool_(other.pool().get()) {}

  PoolRef pool() const noexcept { return pool_; }

  /// The alignment is that of T. Room for no element is an address too.
  [[nodiscard]] T *allocate(std::size_t count) const {
    if (count > SIZE_MAX / sizeof(T)) detail::fail_length();
    return static_cast<T *>(detail::allocate(pool_, count != 0 ? count * sizeof(T) : 1, alignof(T)));
  }
  void deallocate(T *pointer, std::size_t /*count*/) const noexcept {
    gpumem_pool_free(pool_, pointer, nullptr, nullptr);
  }

  template <class U>
  friend bool operator==(const Allocator &a, const Allocator<U> &b) noexcept {
    return a.pool() == b.pool();
  }
  template <class U>
  friend bool operator!=(const Allocator &a, const Allocator<U> &b) noexcept {
    return a.pool() != b.pool();
  }

 private:
  gpumem_pool pool_;
};

/// A resource of CCCL with the properties named, such as `Resource<cuda::mr::device_accessible>`. It models
/// `cuda::mr::resource` of CCCL 3.1 and newer, and `cuda::mr::async_resource` of those before; seen to compile and run with 3.0.1
/// (CUDA 13.0). A copy is the same resource. 0 bytes are NULL.
///
/// Streams are native: a cudaStream_t, or what returns one by `get()` or `value()`. An alignment above that of the pool's blocks
/// is served by a block of no stream. Such a block is none of a capture's: free it when the graph is not launched any more.
template <class... Properties>
class Resource {
 public:
  /// Fails with #GPUMEM_ERROR_NO_ACCESS if the properties have `host_accessible` and the pool has device memory, or
  /// `device_accessible` and #GPUMEM_KIND_PAGEABLE.
  explicit Resource(Handle<gpumem_pool> pool, OnError on_error = {})
      : pool_(detail::accept(pool, detail::has_name<Properties...>("host_accessible"),
                             detail::has_name<Properties...>("device_accessible"), on_error)) {}

  PoolRef pool() const noexcept { return pool_; }

  // In the order of a stream, of CCCL 3.1.
  template <class Stream>
  void *allocate(const Stream &stream, std::size_t size, std::size_t alignment) const {
    return detail::allocate_in(pool_, detail::native(stream), size, alignment);
  }
  template <class Stream>
  void deallocate(const Stream &stream, void *pointer, std::size_t /*size*/,
                  std::size_t /*alignment*/) const noexcept {
    detail::free_in(pool_, pointer, detail::native(stream));
  }
  // Without a stream. No work uses a block any more when it is freed.
  void *allocate_sync(std::size_t size, std::size_t alignment) const {
    return detail::allocate(pool_, size, alignment);
  }
  void deallocate_sync(void *pointer, std::size_t /*size*/, std::size_t /*alignment*/) const noexcept {
    gpumem_pool_free(pool_, pointer, nullptr, nullptr);
  }

  // The names before CCCL 3.1.
  template <class Stream>
  void *allocate_async(std::size_t size, std::size_t alignment, const Stream &stream) const {
    return allocate(stream, size, alignment);
  }
  template <class Stream>
  void deallocate_async(void *pointer, std::size_t size, std::size_t alignment,
                        const Stream &stream) const noexcept {
    deallocate(stream, pointer, size, alignment);
  }
  void *allocate(std::size_t size, std::size_t alignment) const { return allocate_sync(size, alignment); }
  void deallocate(void *pointer, std::size_t size, std::size_t alignment) const noexcept {
    deallocate_sync(pointer, size, alignment);
  }

  friend bool operator==(const Resource &a, const Resource &b) noexcept { return a.pool_ == b.pool_; }
  friend bool operator!=(const Resource &a, const Resource &b) noexcept { return a.pool_ != b.pool_; }
  template <class Property>
  friend constexpr std::enable_if_t<(std::is_same_v<Property, Properties> || ...)> get_property(
      const Resource & /*resource*/, Property /*property*/) noexcept {}

 private:
  gpumem_pool pool_;
};

/// For `rmm::mr::callback_memory_resource`, with `rmm::cuda_stream_view` for Stream. The argument is the handle of the pool.
template <class Stream>
void *rmm_allocate(std::size_t size, Stream stream, void *pool) {
  return detail::allocate_in(static_cast<gpumem_pool>(pool), detail::native(stream), size, 1);
}
/// The same to free.
template <class Stream>
void rmm_deallocate(void *pointer, std::size_t /*size*/, Stream stream, void *pool) {
  detail::free_in(static_cast<gpumem_pool>(pool), pointer, detail::native(stream));
}

}  // namespace mr
}  // namespace GPUMEM_HPP_FORM
}  // namespace gpumem

#endif
