// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
/** \file gpumem.hpp
 * The C interface for C++17 and newer: owners, spans, exceptions. Header only; see the page C++ of the guide.
 *
 * - **Errors.** The last parameter of every call that can fail is an OnError. Left out, a failure is thrown as an Error; with an
 *   Error of the caller, nothing is thrown, the Error says what happened, and the call returns an empty value. Without exceptions
 *   (-fno-exceptions), leaving it out does not compile.
 * - **Names.** A function of C is a member of the class of its first handle: gpumem_stream_synchronize() is
 *   Stream::synchronize(). Its comment names it, and the comment in the C header says the rest. Constants, and structs that a
 *   call fills in, are those of C.
 * - **Ownership.** A Stream owns, a StreamRef does not. A parameter Handle<gpumem_stream> takes either, or the handle of C.
 * - **Cost.** Nothing is allocated, except for the text of report(). A handle is as large as in C.
 */
#ifndef GPUMEM_GPUMEM_HPP
#define GPUMEM_GPUMEM_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#if defined(__has_include) && __cplusplus >= 202002L
#if __has_include(<span>)
#include <span>
#endif
#endif

#include "gpumem.h"

// What these choose is part of the names for the linker, so that files of one program may be compiled differently.
#ifdef __cpp_exceptions
#ifdef __cpp_lib_span
#define GPUMEM_HPP_FORM throwing_std_span
#else
#define GPUMEM_HPP_FORM throwing
#endif
#else
#ifdef __cpp_lib_span
#define GPUMEM_HPP_FORM quiet_std_span
#else
#define GPUMEM_HPP_FORM quiet
#endif
#endif

namespace gpumem {
inline namespace GPUMEM_HPP_FORM {

// ---- Spans

#ifdef __cpp_lib_span
using std::span;
#else
/// What is needed of std::span where there is none.
template <class T>
class span {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using iterator = T *;

  constexpr span() noexcept = default;
  constexpr span(T *data, size_t size) noexcept : data_(data), size_(size) {}
  template <size_t size>
  constexpr span(T (&array)[size]) noexcept : data_(array), size_(size) {}
  /// From std::vector, std::array, or a span of elements that are not const.
  template <class Container,
            class = std::enable_if_t<std::is_convertible_v<
                std::remove_pointer_t<decltype(std::data(std::declval<Container &>()))> (*)[], T (*)[]>>,
            // A device_span has none.
            class = decltype(std::begin(std::declval<Container &>()))>
  constexpr span(Container &&container) noexcept : data_(std::data(container)), size_(std::size(container)) {}

  constexpr T *data() const noexcept { return data_; }
  constexpr size_t size() const noexcept { return size_; }
  constexpr size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr T &operator[](size_t index) const noexcept { return data_[index]; }
  constexpr T &front() const noexcept { return data_[0]; }
  constexpr T &back() const noexcept { return data_[size_ - 1]; }
  constexpr T *begin() const noexcept { return data_; }
  constexpr T *end() const noexcept { return data_ + size_; }
  constexpr span first(size_t count) const noexcept { return {data_, count}; }
  constexpr span last(size_t count) const noexcept { return {data_ + (size_ - count), count}; }
  constexpr span subspan(size_t offset) const noexcept { return {data_ + offset, size_ - offset}; }
  constexpr span subspan(size_t offset, size_t count) const noexcept { return {data_ + offset, count}; }

 private:
  T *data_ = nullptr;
  size_t size_ = 0;
};
#endif

/// Elements in memory that the CPU must not touch: a span without access. Copies, fills and kernels take it.
template <class T>
class device_span {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;

  constexpr device_span() noexcept = default;
  constexpr device_span(T *data, size_t size) noexcept : data_(data), size_(size) {}
  /// Of elements that are not const.
  template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
  constexpr device_span(const device_span<U> &other) noexcept : data_(other.data()), size_(other.size()) {}

  /// The address of the first, for devices.
  constexpr T *data() const noexcept { return data_; }
  constexpr size_t size() const noexcept { return size_; }
  constexpr size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr device_span first(size_t count) const noexcept { return {data_, count}; }
  constexpr device_span last(size_t count) const noexcept { return {data_ + (size_ - count), count}; }
  constexpr device_span subspan(size_t offset) const noexcept { return {data_ + offset, size_ - offset}; }
  constexpr device_span subspan(size_t offset, size_t count) const noexcept {
    return {data_ + offset, count};
  }

 private:
  T *data_ = nullptr;
  size_t size_ = 0;
};

// ---- Errors

namespace detail {
class Attempt;
}

/// A call that failed: thrown, or filled in by a call that was given it. Decide by the status; the text is for people.
class Error : public std::exception {
 public:
  Error() noexcept { clear(); }
  explicit Error(const gpumem_error &error) noexcept : error_(error) {}

  /// Whether the call failed. Notes, such as GPUMEM_NOT_READY, are no failures.
  explicit operator bool() const noexcept { return GPUMEM_FAILED(error_.status); }
  gpumem_status status() const noexcept { return error_.status; }
  /// The name of the status, such as "GPUMEM_ERROR_BUSY". It lives as long as the process.
  const char *name() const noexcept { return gpumem_status_name(error_.status); }
  /// One line: what is wrong and what to do. Empty if the call succeeded.
  const char *what() const noexcept override { return error_.message; }
  /// The function of C that failed.
  const char *function() const noexcept { return error_.function; }
  /// Everything that is known.
  const gpumem_error &c() const noexcept { return error_; }

 private:
  friend class OnError;

  // The texts stay as they are but for their ends: a call fills them in.
  void clear() noexcept {
    error_.struct_size = sizeof error_;
    error_.status = error_.native_domain = error_.native_code = 0;
    error_.reserved = 0;
    error_.native_name[0] = error_.function[0] = error_.entry_point[0] = error_.message[0] = '\0';
  }

  gpumem_error error_;
};

/// Where the error of a call goes: to an Error of the caller, or else it is thrown.
class OnError {
 public:
#ifdef __cpp_exceptions
  constexpr OnError() noexcept = default;
#else
  __attribute__((error("without exceptions, the last argument must be a gpumem::Error"))) OnError() noexcept;
#endif
  OnError(Error &error) noexcept : error_(&error.error_) {}

 private:
  friend class detail::Attempt;

  gpumem_error *error_ = nullptr;
};

namespace detail {

#ifdef __cpp_exceptions
[[noreturn, gnu::cold, gnu::noinline]] inline void raise(const gpumem_error &error) { throw Error(error); }
#endif

/// Adds to a message. Out of line: only a call that fails pays.
[[gnu::cold, gnu::noinline]] inline void append(gpumem_error &error, const char *text) noexcept {
  const size_t length = std::strlen(error.message), added = std::strlen(text) + 1;
  if (length + added <= sizeof error.message) std::memcpy(error.message + length, text, added);
}

/// Says what a NULL handle means here.
[[gnu::cold, gnu::noinline]] inline void explain(gpumem_error &error) noexcept {
  constexpr char null[] = " handle is NULL";
  const size_t length = std::strlen(error.message);
  if (length >= sizeof null - 1 && std::strcmp(error.message + length - (sizeof null - 1), null) == 0)
    append(error, "; the object was closed, moved from, or never made");
}

/// One call of C and what becomes of its status.
class Attempt {
 public:
  explicit Attempt(OnError on_error) noexcept : given_(on_error.error_) {
    own_.struct_size = sizeof own_;  // the call fills in the rest
    own_.reserved = 0;
  }
  Attempt(const Attempt &) = delete;
  Attempt &operator=(const Attempt &) = delete;

  gpumem_error *error() noexcept { return given_ != nullptr ? given_ : &own_; }

  /// Throws a failure that the caller wants thrown. Returns whether there was none.
  bool done(gpumem_status status) {
    if (!GPUMEM_FAILED(status)) return true;
    explain(*error());
#ifdef __cpp_exceptions
    if (given_ == nullptr) raise(own_);
#endif
    return false;
  }
  /// The same; returns whether there was no note either.
  bool ready(gpumem_status status) {
    done(status);
    return status == GPUMEM_SUCCESS;
  }
  /// Fails by itself.
  void refuse(gpumem_status status, const char *function, const char *message) {
    gpumem_error &error = *this->error();
    error.status = status;
    error.native_domain = error.native_code = 0;
    error.native_name[0] = error.entry_point[0] = '\0';
    std::snprintf(error.function, sizeof error.function, "%s", function);
    std::snprintf(error.message, sizeof error.message, "%s", message);
    done(status);
  }

 private:
  gpumem_error *given_;
  gpumem_error own_;
};

/// A function of C that calls a callable of C++, by its address. An exception in it ends the program.
template <class Callable, class Result, class... Arguments>
struct Call {
  static Result GPUMEM_CALL run(void *callable, Arguments... arguments) noexcept {
    return static_cast<Result>((*static_cast<Callable *>(callable))(arguments...));
  }
};

/// The same where the address comes last.
template <class Callable, class Result, class Argument>
struct CallLast {
  static Result GPUMEM_CALL run(Argument argument, void *callable) noexcept {
    return static_cast<Result>((*static_cast<Callable *>(callable))(argument));
  }
};

template <class Callable>
void *address(Callable &callable) noexcept {
  static_assert(!std::is_function_v<Callable>, "wrap the function in a lambda");
  return const_cast<void *>(static_cast<const void *>(std::addressof(callable)));
}

enum class Owned { no, yes };

template <Owned owned>
struct Assigned {};
/// A reference to what others own cannot be assigned: it might be the reference inside an owner.
template <>
struct Assigned<Owned::yes> {
  constexpr Assigned() noexcept = default;
  constexpr Assigned(const Assigned &) noexcept = default;
  Assigned &operator=(const Assigned &) = delete;
};

template <class C, Owned owned = Owned::no>
class Reference : private Assigned<owned> {
 public:
  /// The type of C.
  using handle_type = C;

  constexpr Reference() noexcept = default;
  constexpr Reference(std::nullptr_t) noexcept {}
  constexpr Reference(C handle) noexcept : handle_(handle) {}

  /// The handle of C.
  constexpr C get() const noexcept { return handle_; }
  constexpr explicit operator bool() const noexcept { return handle_ != nullptr; }
  friend constexpr bool operator==(const Reference &a, const Reference &b) noexcept {
    return a.handle_ == b.handle_;
  }
  friend constexpr bool operator!=(const Reference &a, const Reference &b) noexcept {
    return a.handle_ != b.handle_;
  }

 protected:
  C handle_ = nullptr;
};

/// Members that do not follow from the C headers.
template <class Self>
class ByHand {};

template <class T>
inline constexpr bool is_bytes = std::is_trivially_copyable_v<T> && !std::is_reference_v<T>;

/// What a span, container or array has elements of.
template <class Range>
using Element = std::remove_pointer_t<decltype(std::data(std::declval<Range &>()))>;

/// Whether a range owns its elements: those of a const one are const then, as they are not in a span.
template <class Range, class = void>
inline constexpr bool is_owner = false;
template <class Range>
inline constexpr bool
    is_owner<Range, std::enable_if_t<!std::is_same_v<decltype(std::data(std::declval<Range &>())),
                                                     decltype(std::data(std::declval<const Range &>()))>>> =
        true;
template <class T>
inline constexpr bool is_owner<std::initializer_list<T>> = true;

/// There is one if it is a progress function.
template <class Progress>
using IfProgress = std::enable_if_t<std::is_invocable_v<Progress &, uint64_t, uint64_t>>;

}  // namespace detail

// ---- Handles

/// A handle as a parameter: of an owner, of a reference, or of C. It does not own.
template <class C>
class Handle {
 public:
  constexpr Handle() noexcept = default;
  constexpr Handle(std::nullptr_t) noexcept {}
  constexpr Handle(C handle) noexcept : handle_(handle) {}
  template <class Object,
            class = std::enable_if_t<std::is_same_v<decltype(std::declval<const Object &>().get()), C>>>
  constexpr Handle(const Object &object) noexcept : handle_(object.get()) {}

  constexpr C get() const noexcept { return handle_; }

 private:
  C handle_ = nullptr;
};

/// Owns an object, and ends it. A destructor cannot report a failure: close() can.
template <class Ref>
class [[nodiscard]] Owner : public Ref {
 public:
  using handle_type = typename Ref::handle_type;

  constexpr Owner() noexcept = default;
  /// Takes over a handle of C.
  constexpr explicit Owner(handle_type handle) noexcept : Ref(handle) {}
  Owner(Owner &&other) noexcept : Ref(other.detach()) {}
  Owner &operator=(Owner &&other) noexcept {
    reset(other.detach());  // in this order also to itself
    return *this;
  }
  Owner(const Owner &) = delete;
  Owner &operator=(const Owner &) = delete;
  ~Owner() { reset(); }

  /// Ends what it owned, and owns another one.
  void reset(handle_type handle = nullptr) noexcept {
    const handle_type old = std::exchange(this->handle_, handle);
    if (old != nullptr) Ref::end_handle(old);
  }
  /// Owns nothing any more. The caller ends what is returned.
  [[nodiscard]] handle_type detach() noexcept { return std::exchange(this->handle_, nullptr); }
  /// Ends what it owns now, and reports a failure, after which it still owns it. Does nothing if it owns nothing.
  void close(OnError on_error = {}) {
    detail::Attempt attempt(on_error);
    if (attempt.done(Ref::close_handle(this->handle_, attempt.error()))) this->handle_ = nullptr;
  }
  void swap(Owner &other) noexcept { std::swap(this->handle_, other.handle_); }
  /// Those of the reference. There are none of a temporary, with which they would end.
  template <class T, class R = Ref>
  auto elements(
      OnError on_error = {}) const & -> decltype(std::declval<const R &>().template elements<T>(on_error)) {
    return R::template elements<T>(on_error);
  }
  template <class T>
  void elements(OnError = {}) const && = delete;
  /// Those of the reference. There are none of a temporary, with which they would end.
  template <class T, class R = Ref>
  auto device_elements(OnError on_error = {})
      const & -> decltype(std::declval<const R &>().template device_elements<T>(on_error)) {
    return R::template device_elements<T>(on_error);
  }
  template <class T>
  void device_elements(OnError = {}) const && = delete;
  friend void swap(Owner &a, Owner &b) noexcept { a.swap(b); }
};

class BufferRef;
class Device;
class GroupRef;
class HostKernel;
class InstanceRef;
class LinkRef;
class MemoryRef;
class PoolRef;
class StreamRef;
struct BufferCallbacks;
struct CopyFileDesc;
struct CopyOptions;
struct ImportDesc;
struct ImportedEntry;
struct PhysicalDesc;
struct SleepDesc;
struct WakeDesc;
template <class T>
class Block;
class HostAccess;

/// Memory of a device.
struct MemoryAmounts {
  uint64_t free = 0;   ///< Bytes that are free.
  uint64_t total = 0;  ///< All bytes.
};

/// Units of physical memory.
struct Granularity {
  uint64_t minimum = 0;      ///< The smallest, in bytes.
  uint64_t recommended = 0;  ///< That for the best performance, in bytes.
};

namespace detail {

/// Whether the elements end before a stream uses them: those of a container that is an rvalue.
template <class Self, class Range>
inline constexpr bool ends_early =
    std::is_same_v<Self, StreamRef> && !std::is_reference_v<Range> && is_owner<std::remove_const_t<Range>>;

/// There is one if the elements of one range can be copied to the other.
template <class Self, class To, class From>
using Fit = std::enable_if_t<std::is_same_v<Element<To>, std::remove_const_t<Element<From>>> &&
                             !ends_early<Self, To> && !ends_early<Self, From>>;

/// Copies and fills of elements, enqueued in a stream or done by an instance.
template <class Self>
class Elements {
 public:
  /// Copies all elements of `from` to as many at `to`: spans, device_spans, arrays, or containers with data() and size(). In a
  /// stream not a container that is a temporary, which ends before it is copied.
  template <class To, class From, class = Fit<Self, To, From>>
  void copy(To &&to, From &&from, const CopyOptions &options, OnError on_error = {}) const;
  template <class To, class From, class = Fit<Self, To, From>>
  void copy(To &&to, From &&from, OnError on_error = {}) const;
  /// Sets all elements, of 1, 2 or 4 bytes.
  template <class To, class = std::enable_if_t<!ends_early<Self, To>>>
  void fill(To &&to, const Element<To> &value, OnError on_error = {}) const;
};

template <>
class ByHand<StreamRef> : public Elements<StreamRef> {};

template <>
class ByHand<InstanceRef> : public Elements<InstanceRef> {
 public:
  /// Copies a file, and calls `progress(done, total)`, which returns false to cancel; what it throws is thrown again.
  template <class Progress, class = IfProgress<Progress>>
  void copy_file(const CopyFileDesc &desc, Progress &&progress, OnError on_error = {}) const;
  /// The same, and says what was copied, also if the call fails or is cancelled.
  template <class Progress, class = IfProgress<Progress>>
  void copy_file(const CopyFileDesc &desc, Progress &&progress, gpumem_copy_file_info *out_info,
                 OnError on_error = {}) const;
  /// A line for each live object: gpumem_stats_report()
  std::string report(OnError on_error = {}) const;
  /// Counters and live objects as JSON: gpumem_stats_snapshot()
  std::string snapshot(OnError on_error = {}) const;
  /// Writes new descriptors of an export, and returns how many; with no room only their number: gpumem_share_get_fds()
  uint32_t share_fds(const gpumem_share_handle &handle, span<int32_t> fds, OnError on_error = {}) const;
  /// Lets the CPU access managed memory until the result is destroyed: gpumem_managed_begin_host_access()
  HostAccess host_access(const void *pointer, OnError on_error = {}) const;
};

template <>
class ByHand<Device> {
 public:
  /// Free and total memory: gpumem_device_get_memory()
  MemoryAmounts memory(OnError on_error = {}) const;
  /// Units of physical memory: gpumem_physical_get_granularity()
  Granularity granularity(const PhysicalDesc &desc, OnError on_error = {}) const;
};

template <>
class ByHand<MemoryRef> {
 public:
  /// The memory for the CPU, as whole elements. Fails with GPUMEM_ERROR_NO_ACCESS if the CPU has no address for it.
  template <class T>
  span<T> elements(OnError on_error = {}) const;
  /// The memory for devices, as whole elements. Fails with GPUMEM_ERROR_NO_ACCESS if devices have no address for it.
  template <class T>
  device_span<T> device_elements(OnError on_error = {}) const;
};

template <>
class ByHand<BufferRef> {
 public:
  /// The bytes of its size, as whole elements. It ends when the buffer is resized below it, moves or sleeps.
  template <class T>
  device_span<T> device_elements(OnError on_error = {}) const;
  /// Sleeps, and calls `progress(done, total)`, which returns false to cancel; what it throws is thrown again.
  template <class Progress, class = IfProgress<Progress>>
  void sleep(const SleepDesc &desc, Progress &&progress, OnError on_error = {}) const;
  /// Wakes, and calls `progress` as sleep() does.
  template <class Progress, class = IfProgress<Progress>>
  void wake(const WakeDesc &desc, Progress &&progress, OnError on_error = {}) const;
  /// Calls `bool object.before_sleep(BufferRef)`, which returns false to refuse, and `object.after_wake(BufferRef, uint64_t
  /// generation)`. The object must live as long as the buffer, or until others are set.
  template <class Object, class = std::enable_if_t<!std::is_same_v<Object, BufferCallbacks>>>
  void set_callbacks(Object &object, OnError on_error = {}) const;
};

template <>
class ByHand<GroupRef> {
 public:
  /// Sleeps, and calls `progress(done, total)`, which returns false to cancel; what it throws is thrown again.
  template <class Progress, class = IfProgress<Progress>>
  void sleep(const SleepDesc &desc, Progress &&progress, OnError on_error = {}) const;
  /// Wakes, and calls `progress` as sleep() does.
  template <class Progress, class = IfProgress<Progress>>
  void wake(const WakeDesc &desc, Progress &&progress, OnError on_error = {}) const;
};

template <>
class ByHand<LinkRef> {
 public:
  /// Waits until a name has memory after a given version, and imports the newest: gpumem_link_import_next(). Empty if the time
  /// is over. To follow a name, pass the version of the last entry, or 0 after GPUMEM_ERROR_PEER_GONE and connect_link().
  [[nodiscard]] std::optional<ImportedEntry> import_next(const char *name, uint64_t after_version,
                                                         uint64_t timeout_ns, const ImportDesc &desc,
                                                         OnError on_error = {}) const;
  [[nodiscard]] std::optional<ImportedEntry> import_next(const char *name, uint64_t after_version,
                                                         uint64_t timeout_ns = GPUMEM_TIMEOUT_INFINITE,
                                                         OnError on_error = {}) const;
};

template <>
class ByHand<PoolRef> {
 public:
  /// Allocates blocks: gpumem_pool_alloc_batch(). `pointers` must have room for as many as there are `sizes`.
  void alloc_batch(span<const uint64_t> sizes, span<void *> pointers, Handle<gpumem_stream> stream = nullptr,
                   OnError on_error = {}) const;
  /// Allocates a block of elements, which is freed in the order of the same stream.
  template <class T>
  Block<T> alloc_elements(size_t count, Handle<gpumem_stream> stream = nullptr, OnError on_error = {}) const;
  /// Calls nothing any more: gpumem_pool_set_callback()
  void set_callback(std::nullptr_t, OnError on_error = {}) const;
};

template <>
class ByHand<HostKernel> {
 public:
  /// The elements of an argument, for this kernel: gpumem_host_kernel_view(). Those that are const are only read.
  template <class T>
  span<T> view(device_span<T> elements, OnError on_error = {}) const;
};

}  // namespace detail

/* Generated by capi/generate.py from capi/include/gpumem; do not edit: begin. */
/* clang-format off */
class InstanceRef;
class Device;
class MemoryRef;
class PhysicalRef;
class RangeRef;
class BufferRef;
class GroupRef;
class HubRef;
class LinkRef;
class RingRef;
class PoolRef;
class StreamRef;
class EventRef;
class HostKernel;

/// An open backend with its devices and every object made through it. An owner, which ends it.
using Instance = Owner<InstanceRef>;
/// One allocation or registration of any kind. An owner, which ends it.
using Memory = Owner<MemoryRef>;
/// Physical memory without an address. An owner, which ends it.
using Physical = Owner<PhysicalRef>;
/// Reserved addresses, and what is mapped there. An owner, which ends it.
using Range = Owner<RangeRef>;
/// An array that grows in place and can sleep. An owner, which ends it.
using Buffer = Owner<BufferRef>;
/// Buffers that sleep and wake as one. An owner, which ends it.
using Group = Owner<GroupRef>;
/// Shared memory and events under names. An owner, which ends it.
using Hub = Owner<HubRef>;
/// A connection to a hub. An owner, which ends it.
using Link = Owner<LinkRef>;
/// Memory that goes from one process to others again and again. An owner, which ends it.
using Ring = Owner<RingRef>;
/// Blocks of memory, allocated and freed fast. An owner, which ends it.
using Pool = Owner<PoolRef>;
/// An ordered queue of work on one device. An owner, which ends it.
using Stream = Owner<StreamRef>;
/// A point in a stream that can be waited for. An owner, which ends it.
using Event = Owner<EventRef>;

/// A gpumem_access_desc with its initial value.
struct AccessDesc : gpumem_access_desc {
  AccessDesc() noexcept : gpumem_access_desc(GPUMEM_ACCESS_DESC_INIT) {}
};

/// A gpumem_copy_region with its initial value.
struct CopyRegion : gpumem_copy_region {
  CopyRegion() noexcept : gpumem_copy_region(GPUMEM_COPY_REGION_INIT) {}
};

/// A gpumem_cuda_options with its initial value.
struct CudaOptions : gpumem_cuda_options {
  CudaOptions() noexcept : gpumem_cuda_options(GPUMEM_CUDA_OPTIONS_INIT) {}
};

/// A gpumem_host_options with its initial value.
struct HostOptions : gpumem_host_options {
  HostOptions() noexcept : gpumem_host_options(GPUMEM_HOST_OPTIONS_INIT) {}
};

/// A gpumem_managed_range with its initial value.
struct ManagedRange : gpumem_managed_range {
  ManagedRange() noexcept : gpumem_managed_range(GPUMEM_MANAGED_RANGE_INIT) {}
};

/// Options for an allocation. The fields are those of gpumem_memory_desc, which says more.
struct MemoryDesc {
  gpumem_kind kind = {};
  int32_t numa_node = {};
  uint64_t size = {};
  uint64_t alignment = {};
  gpumem_memory_flags require = {};
  gpumem_memory_flags prefer = {};
  const char *name = {};

  /// As C has it.
  gpumem_memory_desc c() const noexcept {
    gpumem_memory_desc made = GPUMEM_MEMORY_DESC_INIT;
    made.kind = kind;
    made.numa_node = numa_node;
    made.size = size;
    made.alignment = alignment;
    made.require = require;
    made.prefer = prefer;
    made.name = name;
    return made;
  }
};

/// Options for registering existing memory. The fields are those of gpumem_register_desc, which says more.
struct RegisterDesc {
  void *pointer = {};
  uint64_t size = {};
  gpumem_memory_flags require = {};
  gpumem_memory_flags prefer = {};
  const char *name = {};

  /// As C has it.
  gpumem_register_desc c() const noexcept {
    gpumem_register_desc made = GPUMEM_REGISTER_DESC_INIT;
    made.pointer = pointer;
    made.size = size;
    made.require = require;
    made.prefer = prefer;
    made.name = name;
    return made;
  }
};

/// Options for physical memory. The fields are those of gpumem_physical_desc, which says more.
struct PhysicalDesc {
  gpumem_location location = {};
  int32_t location_id = {};
  uint64_t size = {};
  gpumem_handle_types handle_types = {};
  gpumem_physical_flags require = {};
  gpumem_physical_flags prefer = {};
  const char *name = {};

  /// As C has it.
  gpumem_physical_desc c() const noexcept {
    gpumem_physical_desc made = GPUMEM_PHYSICAL_DESC_INIT;
    made.location = location;
    made.location_id = location_id;
    made.size = size;
    made.handle_types = handle_types;
    made.require = require;
    made.prefer = prefer;
    made.name = name;
    return made;
  }
};

/// Options for a range. The fields are those of gpumem_range_desc, which says more.
struct RangeDesc {
  uint64_t size = {};
  uint64_t alignment = {};
  void *address = {};
  gpumem_range_flags flags = {};
  const char *name = {};

  /// As C has it.
  gpumem_range_desc c() const noexcept {
    gpumem_range_desc made = GPUMEM_RANGE_DESC_INIT;
    made.size = size;
    made.alignment = alignment;
    made.address = address;
    made.flags = flags;
    made.name = name;
    return made;
  }
};

/// Options for a buffer. The fields are those of gpumem_buffer_desc, which says more.
struct BufferDesc {
  uint64_t size = {};
  uint64_t reserve = {};
  gpumem_location location = {};
  int32_t location_id = {};
  gpumem_handle_types handle_types = {};
  gpumem_physical_flags require = {};
  gpumem_physical_flags prefer = {};
  gpumem_buffer_flags flags = {};
  const gpumem_access_desc *accesses = {};
  uint64_t access_count = {};
  const char *name = {};
  Handle<gpumem_group> group = {};
  const char *tag = {};

  /// As C has it.
  gpumem_buffer_desc c() const noexcept {
    gpumem_buffer_desc made = GPUMEM_BUFFER_DESC_INIT;
    made.size = size;
    made.reserve = reserve;
    made.location = location;
    made.location_id = location_id;
    made.handle_types = handle_types;
    made.require = require;
    made.prefer = prefer;
    made.flags = flags;
    made.accesses = accesses;
    made.access_count = access_count;
    made.name = name;
    made.group = group.get();
    made.tag = tag;
    return made;
  }
};

/// Options for sleeping. The fields are those of gpumem_sleep_desc, which says more.
struct SleepDesc {
  gpumem_content content = {};
  uint32_t reserved = {};
  gpumem_sleep_flags flags = {};
  const char *directory = {};
  const char *tag = {};
  Handle<gpumem_stream> stream = {};
  Handle<gpumem_event> event = {};
  gpumem_progress_function progress = {};
  void *user_data = {};

  /// As C has it.
  gpumem_sleep_desc c() const noexcept {
    gpumem_sleep_desc made = GPUMEM_SLEEP_DESC_INIT;
    made.content = content;
    made.reserved = reserved;
    made.flags = flags;
    made.directory = directory;
    made.tag = tag;
    made.stream = stream.get();
    made.event = event.get();
    made.progress = progress;
    made.user_data = user_data;
    return made;
  }
};

/// Options for waking. The fields are those of gpumem_wake_desc, which says more.
struct WakeDesc {
  uint64_t keep = {};
  const char *tag = {};
  gpumem_progress_function progress = {};
  void *user_data = {};

  /// As C has it.
  gpumem_wake_desc c() const noexcept {
    gpumem_wake_desc made = GPUMEM_WAKE_DESC_INIT;
    made.keep = keep;
    made.tag = tag;
    made.progress = progress;
    made.user_data = user_data;
    return made;
  }
};

/// Options for preparing. The fields are those of gpumem_prepare_desc, which says more.
struct PrepareDesc {
  gpumem_content content = {};
  uint32_t reserved = {};
  const char *directory = {};
  const char *tag = {};
  uint64_t bytes_per_second = {};

  /// As C has it.
  gpumem_prepare_desc c() const noexcept {
    gpumem_prepare_desc made = GPUMEM_PREPARE_DESC_INIT;
    made.content = content;
    made.reserved = reserved;
    made.directory = directory;
    made.tag = tag;
    made.bytes_per_second = bytes_per_second;
    return made;
  }
};

/// What is called when a buffer sleeps and wakes. The fields are those of gpumem_buffer_callbacks, which says more.
struct BufferCallbacks {
  gpumem_before_sleep_function before_sleep = {};
  gpumem_after_wake_function after_wake = {};
  void *user_data = {};

  /// As C has it.
  gpumem_buffer_callbacks c() const noexcept {
    gpumem_buffer_callbacks made = GPUMEM_BUFFER_CALLBACKS_INIT;
    made.before_sleep = before_sleep;
    made.after_wake = after_wake;
    made.user_data = user_data;
    return made;
  }
};

/// Options for a copy. The fields are those of gpumem_copy_options, which says more.
struct CopyOptions {
  gpumem_direction direction = {};
  gpumem_source_order source_order = {};

  /// As C has it.
  gpumem_copy_options c() const noexcept {
    gpumem_copy_options made = GPUMEM_COPY_OPTIONS_INIT;
    made.direction = direction;
    made.source_order = source_order;
    return made;
  }
};

/// Options for an export. The fields are those of gpumem_export_desc, which says more.
struct ExportDesc {
  gpumem_share_way way = {};
  gpumem_access access = {};
  gpumem_export_flags flags = {};

  /// As C has it.
  gpumem_export_desc c() const noexcept {
    gpumem_export_desc made = GPUMEM_EXPORT_DESC_INIT;
    made.way = way;
    made.access = access;
    made.flags = flags;
    return made;
  }
};

/// Options for an import. The fields are those of gpumem_import_desc, which says more.
struct ImportDesc {
  Handle<gpumem_device> device = {};
  gpumem_access access = {};
  uint32_t reserved = {};
  gpumem_import_flags flags = {};
  const void *address = {};
  uint64_t timeout_ns = {};
  const char *name = {};

  /// As C has it.
  gpumem_import_desc c() const noexcept {
    gpumem_import_desc made = GPUMEM_IMPORT_DESC_INIT;
    made.device = device.get();
    made.access = access;
    made.reserved = reserved;
    made.flags = flags;
    made.address = address;
    made.timeout_ns = timeout_ns;
    made.name = name;
    return made;
  }
};

/// Options for imports that are kept after they were destroyed, because they may be imported again. The fields are
/// those of gpumem_import_cache_desc, which says more.
struct ImportCacheDesc {
  uint64_t idle_ns = {};
  uint64_t bytes_max = {};

  /// As C has it.
  gpumem_import_cache_desc c() const noexcept {
    gpumem_import_cache_desc made = GPUMEM_IMPORT_CACHE_DESC_INIT;
    made.idle_ns = idle_ns;
    made.bytes_max = bytes_max;
    return made;
  }
};

/// Options for sending a handle. The fields are those of gpumem_send_desc, which says more.
struct SendDesc {
  uint64_t lease_ns = {};
  uint64_t timeout_ns = {};

  /// As C has it.
  gpumem_send_desc c() const noexcept {
    gpumem_send_desc made = GPUMEM_SEND_DESC_INIT;
    made.lease_ns = lease_ns;
    made.timeout_ns = timeout_ns;
    return made;
  }
};

/// Options for creating an event. The fields are those of gpumem_event_desc, which says more.
struct EventDesc {
  gpumem_event_flags flags = {};
  const char *name = {};

  /// As C has it.
  gpumem_event_desc c() const noexcept {
    gpumem_event_desc made = GPUMEM_EVENT_DESC_INIT;
    made.flags = flags;
    made.name = name;
    return made;
  }
};

/// What to copy. The fields are those of gpumem_copy_file_desc, which says more.
struct CopyFileDesc {
  int32_t file_descriptor = {};
  gpumem_file_direction direction = {};
  uint64_t file_offset = {};
  void *pointer = {};
  uint64_t size = {};
  gpumem_file_flags prefer = {};
  gpumem_progress_function progress = {};
  void *user_data = {};

  /// As C has it.
  gpumem_copy_file_desc c() const noexcept {
    gpumem_copy_file_desc made = GPUMEM_COPY_FILE_DESC_INIT;
    made.file_descriptor = file_descriptor;
    made.direction = direction;
    made.file_offset = file_offset;
    made.pointer = pointer;
    made.size = size;
    made.prefer = prefer;
    made.progress = progress;
    made.user_data = user_data;
    return made;
  }
};

/// Options for a group. The fields are those of gpumem_group_desc, which says more.
struct GroupDesc {
  const char *name = {};

  /// As C has it.
  gpumem_group_desc c() const noexcept {
    gpumem_group_desc made = GPUMEM_GROUP_DESC_INIT;
    made.name = name;
    return made;
  }
};

/// Options for a hub. The fields are those of gpumem_hub_desc, which says more.
struct HubDesc {
  const char *path = {};
  uint32_t mode = {};
  uint32_t user_count = {};
  const uint32_t *users = {};
  const uint32_t *groups = {};
  uint32_t group_count = {};
  uint32_t token_size = {};
  const void *token = {};
  gpumem_hub_flags flags = {};
  uint32_t links_max = {};
  uint32_t names_max = {};
  uint32_t versions_max = {};
  uint32_t fds_max = {};
  uint64_t bytes_max = {};
  uint64_t timeout_ns = {};
  const char *name = {};

  /// As C has it.
  gpumem_hub_desc c() const noexcept {
    gpumem_hub_desc made = GPUMEM_HUB_DESC_INIT;
    made.path = path;
    made.mode = mode;
    made.user_count = user_count;
    made.users = users;
    made.groups = groups;
    made.group_count = group_count;
    made.token_size = token_size;
    made.token = token;
    made.flags = flags;
    made.links_max = links_max;
    made.names_max = names_max;
    made.versions_max = versions_max;
    made.fds_max = fds_max;
    made.bytes_max = bytes_max;
    made.timeout_ns = timeout_ns;
    made.name = name;
    return made;
  }
};

/// Options for publishing. The fields are those of gpumem_publish_desc, which says more.
struct PublishDesc {
  uint64_t version = {};
  gpumem_access access = {};
  uint32_t keep = {};
  uint8_t fingerprint[32] = {};

  /// As C has it.
  gpumem_publish_desc c() const noexcept {
    gpumem_publish_desc made = GPUMEM_PUBLISH_DESC_INIT;
    made.version = version;
    made.access = access;
    made.keep = keep;
    std::memcpy(made.fingerprint, fingerprint, sizeof made.fingerprint);
    return made;
  }
};

/// Options for connecting. The fields are those of gpumem_link_desc, which says more.
struct LinkDesc {
  const char *path = {};
  const void *token = {};
  uint32_t token_size = {};
  uint32_t reserved = {};
  uint64_t timeout_ns = {};

  /// As C has it.
  gpumem_link_desc c() const noexcept {
    gpumem_link_desc made = GPUMEM_LINK_DESC_INIT;
    made.path = path;
    made.token = token;
    made.token_size = token_size;
    made.reserved = reserved;
    made.timeout_ns = timeout_ns;
    return made;
  }
};

/// Options for fetching. The fields are those of gpumem_fetch_desc, which says more.
struct FetchDesc {
  uint64_t version = {};
  uint8_t fingerprint[32] = {};

  /// As C has it.
  gpumem_fetch_desc c() const noexcept {
    gpumem_fetch_desc made = GPUMEM_FETCH_DESC_INIT;
    made.version = version;
    std::memcpy(made.fingerprint, fingerprint, sizeof made.fingerprint);
    return made;
  }
};

/// Options for opening an instance. The fields are those of gpumem_instance_desc, which says more.
struct InstanceDesc {
  gpumem_backend backend = {};
  uint32_t transfer_threads = {};
  const char *name = {};
  uint64_t pin_budget = {};
  const gpumem_host_options *host = {};
  const gpumem_cuda_options *cuda = {};
  uint64_t transfer_bytes = {};

  /// As C has it.
  gpumem_instance_desc c() const noexcept {
    gpumem_instance_desc made = GPUMEM_INSTANCE_DESC_INIT;
    made.backend = backend;
    made.transfer_threads = transfer_threads;
    made.name = name;
    made.pin_budget = pin_budget;
    made.host = host;
    made.cuda = cuda;
    made.transfer_bytes = transfer_bytes;
    return made;
  }
};

/// Options for creating a pool. The fields are those of gpumem_pool_desc, which says more.
struct PoolDesc {
  gpumem_kind kind = {};
  int32_t numa_node = {};
  gpumem_pool_flags flags = {};
  gpumem_memory_flags memory_flags = {};
  gpumem_handle_types handle_types = {};
  uint64_t limit = {};
  uint64_t release_threshold = {};
  uint64_t initial_size = {};
  uint64_t segment_size = {};
  const gpumem_access_desc *accesses = {};
  uint64_t access_count = {};
  const char *name = {};
  uint64_t low_water = {};

  /// As C has it.
  gpumem_pool_desc c() const noexcept {
    gpumem_pool_desc made = GPUMEM_POOL_DESC_INIT;
    made.kind = kind;
    made.numa_node = numa_node;
    made.flags = flags;
    made.memory_flags = memory_flags;
    made.handle_types = handle_types;
    made.limit = limit;
    made.release_threshold = release_threshold;
    made.initial_size = initial_size;
    made.segment_size = segment_size;
    made.accesses = accesses;
    made.access_count = access_count;
    made.name = name;
    made.low_water = low_water;
    return made;
  }
};

/// Options for creating a ring. The fields are those of gpumem_ring_desc, which says more.
struct RingDesc {
  uint64_t slot_size = {};
  uint32_t slot_count = {};
  uint32_t consumers_max = {};
  uint32_t consumers_first = {};
  uint32_t reserved = {};
  const char *name = {};

  /// As C has it.
  gpumem_ring_desc c() const noexcept {
    gpumem_ring_desc made = GPUMEM_RING_DESC_INIT;
    made.slot_size = slot_size;
    made.slot_count = slot_count;
    made.consumers_max = consumers_max;
    made.consumers_first = consumers_first;
    made.reserved = reserved;
    made.name = name;
    return made;
  }
};

/// Options for opening a ring. The fields are those of gpumem_ring_open_desc, which says more.
struct RingOpenDesc {
  uint64_t timeout_ns = {};
  const char *name = {};

  /// As C has it.
  gpumem_ring_open_desc c() const noexcept {
    gpumem_ring_open_desc made = GPUMEM_RING_OPEN_DESC_INIT;
    made.timeout_ns = timeout_ns;
    made.name = name;
    return made;
  }
};

/// Options for creating a stream. The fields are those of gpumem_stream_desc, which says more.
struct StreamDesc {
  int32_t priority = {};
  uint32_t reserved = {};
  const char *name = {};

  /// As C has it.
  gpumem_stream_desc c() const noexcept {
    gpumem_stream_desc made = GPUMEM_STREAM_DESC_INIT;
    made.priority = priority;
    made.reserved = reserved;
    made.name = name;
    return made;
  }
};

/// An open backend with its devices and every object made through it. Does not own it.
class InstanceRef : public detail::Reference<gpumem_instance, detail::Owned::yes>, public detail::ByHand<InstanceRef> {
 public:
  using Reference::Reference;
  using detail::ByHand<InstanceRef>::copy;
  using detail::ByHand<InstanceRef>::copy_file;
  using detail::ByHand<InstanceRef>::fill;

  /// Frees an allocation of the instance by its pointer, whichever function allocated it. gpumem_free()
  void free(void *pointer, OnError on_error = {}) const;

  /// Makes registered memory pageable again, by the pointer that was registered. gpumem_unregister()
  void unregister_pointer(void *pointer, OnError on_error = {}) const;

  /// Gets information about an address. gpumem_pointer_get_info()
  [[nodiscard]] gpumem_pointer_info pointer_info(const void *pointer, OnError on_error = {}) const;

  /// Gets what one processor may do, in place, with the memory at an address. gpumem_pointer_get_access()
  [[nodiscard]] gpumem_access pointer_access(
      const void *pointer, gpumem_location location, int32_t location_id, OnError on_error = {}) const;

  /// Gets one more handle of the physical memory that is mapped at an address. gpumem_physical_retain()
  [[nodiscard]] Physical retain_physical(const void *pointer, OnError on_error = {}) const;

  /// Reserves addresses, far more than there is memory if wished. gpumem_range_reserve()
  [[nodiscard]] Range reserve_range(const RangeDesc &desc, OnError on_error = {}) const;

  /// Gets what is mapped at an address. gpumem_range_get_mapping()
  [[nodiscard]] gpumem_mapping_info mapping(const void *pointer, OnError on_error = {}) const;

  /// Copies bytes, and returns when they are copied. gpumem_copy()
  void copy(
      void *destination, const void *source, uint64_t size, const CopyOptions &options = {},
      OnError on_error = {}) const;

  /// Copies a rectangle of bytes, and returns when it is copied. gpumem_copy_2d()
  void copy_2d(
      void *destination, uint64_t destination_pitch, const void *source, uint64_t source_pitch, uint64_t width,
      uint64_t height, const CopyOptions &options = {}, OnError on_error = {}) const;

  /// Copies a batch of regions, and returns when they are copied. gpumem_copy_regions()
  void copy_regions(span<const CopyRegion> regions, uint64_t *out_failed = nullptr, OnError on_error = {}) const;

  /// Fills memory with a repeated value, and returns when it is filled. gpumem_fill()
  void fill(void *destination, uint64_t size, uint32_t value, uint32_t value_size, OnError on_error = {}) const;

  /// Fills a rectangle of memory with a repeated value, and returns when it is filled. gpumem_fill_2d()
  void fill_2d(
      void *destination, uint64_t pitch, uint64_t width, uint64_t height, uint32_t value, uint32_t value_size,
      OnError on_error = {}) const;

  /// Gets a device of an instance. gpumem_device_get()
  [[nodiscard]] Device device(uint32_t ordinal, OnError on_error = {}) const;

  /// Exports memory. gpumem_share_export()
  [[nodiscard]] gpumem_share_handle export_memory(
      const void *pointer, const ExportDesc &desc = {}, OnError on_error = {}) const;

  /// Ends an export. gpumem_share_revoke()
  void revoke(const gpumem_share_handle &handle, OnError on_error = {}) const;

  /// Imports memory. gpumem_share_import()
  [[nodiscard]] Memory import_memory(
      const gpumem_share_handle &handle, span<const int32_t> fds = {}, const ImportDesc &desc = {},
      void **out_pointer = nullptr, OnError on_error = {}) const;

  /// Sets how long imports are kept mapped after they were destroyed. gpumem_share_set_cache()
  void set_import_cache(const ImportCacheDesc &desc = {}, OnError on_error = {}) const;

  /// Unmaps all imports that were destroyed and are kept. gpumem_share_flush_cache()
  void flush_import_cache(OnError on_error = {}) const;

  /// Says whether memory can be shared in one way, and why not. gpumem_share_get_way()
  [[nodiscard]] gpumem_way_info share_way(
      const void *pointer, gpumem_share_way way, gpumem_share_peer peer, OnError on_error = {}) const;

  /// Sends a handle, with its descriptors and a connection to this process, over a Unix socket of the caller's.
  /// gpumem_share_send()
  void send(
      const gpumem_share_handle &handle, int32_t socket_fd, const SendDesc &desc = {}, OnError on_error = {}) const;

  /// Receives a handle that gpumem_share_send() sent. gpumem_share_receive()
  [[nodiscard]] std::optional<gpumem_share_handle> receive(
      int32_t socket_fd, uint64_t timeout_ns = GPUMEM_TIMEOUT_INFINITE, OnError on_error = {}) const;

  /// Makes a dma-buf of device memory, which drivers of other devices import: of network cards, say.
  /// gpumem_share_export_dma_buf()
  [[nodiscard]] int32_t export_dma_buf(
      const void *pointer, uint64_t size, gpumem_dma_buf_flags flags, OnError on_error = {}) const;

  /// Copies bytes of a file to memory, or of memory to a file, and returns when they are copied. gpumem_copy_file()
  void copy_file(const CopyFileDesc &desc, gpumem_copy_file_info *out_info = nullptr, OnError on_error = {}) const;

  /// Makes an empty group. gpumem_group_create()
  [[nodiscard]] Group create_group(const GroupDesc &desc = {}, OnError on_error = {}) const;

  /// Makes a step of the backend fail. gpumem_host_fail_step()
  void host_fail_step(uint64_t step, uint32_t repeat, OnError on_error = {}) const;

  /// Opens a hub. gpumem_hub_open()
  [[nodiscard]] Hub open_hub(const HubDesc &desc = {}, OnError on_error = {}) const;

  /// Connects to a hub. gpumem_link_connect()
  [[nodiscard]] Link connect_link(const LinkDesc &desc = {}, OnError on_error = {}) const;

  /// Gets information about an open instance. gpumem_instance_get_info()
  [[nodiscard]] gpumem_instance_info info(OnError on_error = {}) const;

  /// Advises how a range will be used. gpumem_managed_advise()
  bool advise(
      const void *pointer, uint64_t size, gpumem_advice advice, gpumem_location location, int32_t location_id,
      OnError on_error = {}) const;

  /// Gets the advice and the last prefetch of a range. gpumem_managed_get_info()
  [[nodiscard]] gpumem_managed_info managed_info(const void *pointer, uint64_t size, OnError on_error = {}) const;

  /// Begins an access of the CPU to managed memory: waits until the CPU may touch it.
  /// gpumem_managed_begin_host_access()
  void begin_host_access(const void *pointer, OnError on_error = {}) const;

  /// Ends an access that gpumem_managed_begin_host_access() began. gpumem_managed_end_host_access()
  void end_host_access(const void *pointer, OnError on_error = {}) const;

  /// Frees a block by its address alone: of any pool of the instance, also of one that is destroyed.
  /// gpumem_pool_free_pointer()
  void free_pool_block(void *pointer, Handle<gpumem_stream> stream, OnError on_error = {}) const;

  /// Gets information about the block that has an address. gpumem_pool_get_block_info()
  [[nodiscard]] gpumem_pool_block_info pool_block_info(const void *pointer, OnError on_error = {}) const;

  /// Opens a ring of another process. gpumem_ring_open()
  [[nodiscard]] Ring open_ring(
      const gpumem_share_handle &handle, const RingOpenDesc &desc = {}, OnError on_error = {}) const;

  /// Reads the counters of an instance. gpumem_stats_get()
  [[nodiscard]] gpumem_stats stats(OnError on_error = {}) const;

  /// Reads the counters of one kind of memory. gpumem_stats_get_kind()
  [[nodiscard]] gpumem_kind_stats kind_stats(gpumem_kind kind, OnError on_error = {}) const;

  /// Resets the peaks, of every kind and of all memory, to what is live now. gpumem_stats_reset_peaks()
  void reset_peaks(OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_instance handle) noexcept {
    gpumem_instance_close(handle, GPUMEM_CLOSE_FORCE, nullptr, nullptr);
  }
  static gpumem_status close_handle(gpumem_instance handle, gpumem_error *error) noexcept {
    return gpumem_instance_close(handle, GPUMEM_CLOSE_CHECK, nullptr, error);
  }
};

/// One processor with its memory; lives as long as its instance. It is never owned.
class Device : public detail::Reference<gpumem_device>, public detail::ByHand<Device> {
 public:
  using Reference::Reference;

  /// Allocates memory. gpumem_memory_create()
  [[nodiscard]] Memory create_memory(const MemoryDesc &desc, OnError on_error = {}) const;

  /// Page-locks existing memory, so that devices can use it. gpumem_memory_destroy() makes it pageable again.
  /// gpumem_memory_register()
  [[nodiscard]] Memory register_memory(const RegisterDesc &desc, OnError on_error = {}) const;

  /// Allocates memory with the defaults of gpumem_memory_create(), and returns only its pointer. gpumem_malloc()
  [[nodiscard]] void *allocate(gpumem_kind kind, uint64_t size, OnError on_error = {}) const;

  /// Page-locks existing memory by its pointer. gpumem_register()
  void register_pointer(void *pointer, uint64_t size, gpumem_memory_flags require, OnError on_error = {}) const;

  /// Gets the address of a byte of host memory for a device. gpumem_pointer_get_device_pointer()
  [[nodiscard]] void *device_pointer(const void *pointer, OnError on_error = {}) const;

  /// Makes physical memory. gpumem_physical_create()
  [[nodiscard]] Physical create_physical(const PhysicalDesc &desc, OnError on_error = {}) const;

  /// Makes a handle for the physical memory behind a file descriptor. gpumem_physical_import_fd()
  [[nodiscard]] Physical import_physical(const PhysicalDesc &desc, int32_t fd, OnError on_error = {}) const;

  /// Makes a handle for the physical memory behind a fabric handle. gpumem_physical_import_fabric()
  [[nodiscard]] Physical import_physical(
      const PhysicalDesc &desc, const gpumem_fabric_handle &handle, OnError on_error = {}) const;

  /// Makes a buffer. gpumem_buffer_create()
  [[nodiscard]] Buffer create_buffer(const BufferDesc &desc, OnError on_error = {}) const;

  /// Queries a capability of a device. gpumem_device_get_capability()
  [[nodiscard]] gpumem_capability_info capability(
      gpumem_capability capability, Handle<gpumem_device> peer = nullptr, OnError on_error = {}) const;

  /// Gets information about a device. gpumem_device_get_info()
  [[nodiscard]] gpumem_device_info info(OnError on_error = {}) const;

  /// Gives back the memory that a device keeps for graphs and that no graph uses. gpumem_device_trim_graphs()
  [[nodiscard]] uint64_t trim_graphs(OnError on_error = {}) const;

  /// Finds out whether a device could access the memory of a peer directly. gpumem_device_can_access_peer()
  [[nodiscard]] uint32_t can_access_peer(Handle<gpumem_device> peer, OnError on_error = {}) const;

  /// Lets a device access all device memory of a peer, present and future, at the same addresses.
  /// gpumem_device_enable_peer_access()
  void enable_peer_access(Handle<gpumem_device> peer, OnError on_error = {}) const;

  /// Undoes one gpumem_device_enable_peer_access(). gpumem_device_disable_peer_access()
  void disable_peer_access(Handle<gpumem_device> peer, OnError on_error = {}) const;

  /// Creates an event. gpumem_event_create()
  [[nodiscard]] Event create_event(const EventDesc &desc = {}, OnError on_error = {}) const;

  /// Wraps an event that other code created. gpumem_event_wrap()
  [[nodiscard]] Event wrap_event(void *native_event, gpumem_event_flags flags, OnError on_error = {}) const;

  /// Imports an event. gpumem_event_import()
  [[nodiscard]] Event import_event(
      const gpumem_share_handle &handle, span<const int32_t> fds, OnError on_error = {}) const;

  /// Creates a native stream, as other code would, to be wrapped with gpumem_stream_wrap().
  /// gpumem_host_native_stream_create()
  [[nodiscard]] void *host_native_stream_create(OnError on_error = {}) const;

  /// Destroys a stream of gpumem_host_native_stream_create(). gpumem_host_native_stream_destroy()
  void host_native_stream_destroy(void *native_stream, OnError on_error = {}) const;

  /// Loses a device, as a faulting kernel would: pending work does not run, and every later call that needs the device
  /// fails. gpumem_host_device_lose()
  void host_device_lose(OnError on_error = {}) const;

  /// Allocates memory as other code would through the driver: the devices know it, but the instance does not.
  /// gpumem_host_foreign_alloc()
  [[nodiscard]] void *host_foreign_alloc(gpumem_kind kind, uint64_t size, OnError on_error = {}) const;

  /// Frees memory of gpumem_host_foreign_alloc(). gpumem_host_foreign_free()
  void host_foreign_free(void *pointer, OnError on_error = {}) const;

  /// Enables or disables peer access as other code of the process would. gpumem_host_foreign_peer_access()
  void host_foreign_peer_access(Handle<gpumem_device> peer, uint32_t enabled, OnError on_error = {}) const;

  /// Creates a pool. gpumem_pool_create()
  [[nodiscard]] Pool create_pool(const PoolDesc &desc = {}, OnError on_error = {}) const;

  /// Creates a ring. gpumem_ring_create()
  [[nodiscard]] Ring create_ring(const RingDesc &desc, OnError on_error = {}) const;

  /// Creates a stream. gpumem_stream_create()
  [[nodiscard]] Stream create_stream(const StreamDesc &desc = {}, OnError on_error = {}) const;

  /// Wraps a stream that other code created. gpumem_stream_wrap()
  [[nodiscard]] Stream wrap_stream(void *native_stream, OnError on_error = {}) const;
};

/// One allocation or registration of any kind. Does not own it.
class MemoryRef : public detail::Reference<gpumem_memory, detail::Owned::yes>, public detail::ByHand<MemoryRef> {
 public:
  using Reference::Reference;

  /// Gets information about memory. gpumem_memory_get_info()
  [[nodiscard]] gpumem_memory_info info(OnError on_error = {}) const;

  /// Gets information about an import. gpumem_memory_get_import_info()
  [[nodiscard]] gpumem_import_info import_info(OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_memory handle) noexcept {
    gpumem_memory_destroy(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_memory handle, gpumem_error *error) noexcept {
    return gpumem_memory_destroy(handle, error);
  }
};

/// Physical memory without an address. Does not own it.
class PhysicalRef : public detail::Reference<gpumem_physical, detail::Owned::yes>, public detail::ByHand<PhysicalRef> {
 public:
  using Reference::Reference;

  /// Gets information about physical memory. gpumem_physical_get_info()
  [[nodiscard]] gpumem_physical_info info(OnError on_error = {}) const;

  /// Makes a file descriptor for physical memory, which another process can import. gpumem_physical_export_fd()
  [[nodiscard]] int32_t export_fd(OnError on_error = {}) const;

  /// Makes a fabric handle for physical memory, which a process on this or another node of the fabric can import.
  /// gpumem_physical_export_fabric()
  [[nodiscard]] gpumem_fabric_handle export_fabric(OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_physical handle) noexcept {
    gpumem_physical_release(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_physical handle, gpumem_error *error) noexcept {
    return gpumem_physical_release(handle, error);
  }
};

/// Reserved addresses, and what is mapped there. Does not own it.
class RangeRef : public detail::Reference<gpumem_range, detail::Owned::yes>, public detail::ByHand<RangeRef> {
 public:
  using Reference::Reference;

  /// Gets information about a range. gpumem_range_get_info()
  [[nodiscard]] gpumem_range_info info(OnError on_error = {}) const;

  /// Maps blocks of physical memory one behind the other, all or none. gpumem_range_map()
  void map(uint64_t offset, span<const gpumem_physical> physicals, OnError on_error = {}) const;

  /// Unmaps whole mappings, one or several in a row. gpumem_range_unmap()
  void unmap(uint64_t offset, uint64_t size, OnError on_error = {}) const;

  /// Sets what processors may do with whole mappings, one or several in a row; all is set or nothing.
  /// gpumem_range_set_access()
  void set_access(uint64_t offset, uint64_t size, span<const AccessDesc> accesses, OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_range handle) noexcept {
    gpumem_range_unmap(handle, 0, GPUMEM_WHOLE_RANGE, nullptr);
    gpumem_range_release(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_range handle, gpumem_error *error) noexcept {
    return gpumem_range_release(handle, error);
  }
};

/// An array that grows in place and can sleep. Does not own it.
class BufferRef : public detail::Reference<gpumem_buffer, detail::Owned::yes>, public detail::ByHand<BufferRef> {
 public:
  using Reference::Reference;
  using detail::ByHand<BufferRef>::sleep;
  using detail::ByHand<BufferRef>::wake;
  using detail::ByHand<BufferRef>::set_callbacks;

  /// Gets information about a buffer. gpumem_buffer_get_info()
  [[nodiscard]] gpumem_buffer_info info(OnError on_error = {}) const;

  /// Grows or shrinks a buffer. gpumem_buffer_resize()
  void resize(uint64_t size, OnError on_error = {}) const;

  /// Gives a buffer memory ahead of its growth, or takes back what is unused. gpumem_buffer_set_capacity()
  void set_capacity(uint64_t capacity, OnError on_error = {}) const;

  /// Has memory made ahead of the growth of a buffer, on a thread of the library: as soon as less than half of `bytes`
  /// of it lie behind the size, more is mapped, up to `bytes`. gpumem_buffer_set_ahead()
  void set_ahead(uint64_t bytes, OnError on_error = {}) const;

  /// Sets what processors may do with a buffer, now and as it grows. gpumem_buffer_set_access()
  void set_access(span<const AccessDesc> accesses, OnError on_error = {}) const;

  /// Puts a buffer to sleep: its memory is given back, its addresses stay reserved. gpumem_buffer_sleep()
  void sleep(const SleepDesc &desc = {}, OnError on_error = {}) const;

  /// Wakes a buffer: at the same address, with its size, the access of each processor, its properties, and the content
  /// that was kept. gpumem_buffer_wake()
  void wake(const WakeDesc &desc = {}, OnError on_error = {}) const;

  /// Makes the store for the content of a buffer ahead of its sleep, as large as the buffer is now: allocated, pinned
  /// and touched, so that gpumem_buffer_sleep() with the same content only copies. gpumem_buffer_prepare()
  void prepare(const PrepareDesc &desc = {}, OnError on_error = {}) const;

  /// Notes that something outside the library holds the memory of a buffer: a network card, a communicator, a process
  /// that imported it. gpumem_buffer_note_registration()
  [[nodiscard]] uint64_t note_registration(const char *name, OnError on_error = {}) const;

  /// Ends what gpumem_buffer_note_registration() began. gpumem_buffer_forget_registration()
  void forget_registration(uint64_t registration, OnError on_error = {}) const;

  /// Sets the callbacks of a buffer. gpumem_buffer_set_callbacks()
  void set_callbacks(const BufferCallbacks &callbacks = {}, OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_buffer handle) noexcept {
    gpumem_buffer_destroy(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_buffer handle, gpumem_error *error) noexcept {
    return gpumem_buffer_destroy(handle, error);
  }
};

/// Buffers that sleep and wake as one. Does not own it.
class GroupRef : public detail::Reference<gpumem_group, detail::Owned::yes>, public detail::ByHand<GroupRef> {
 public:
  using Reference::Reference;
  using detail::ByHand<GroupRef>::sleep;
  using detail::ByHand<GroupRef>::wake;

  /// Gets information about a group. gpumem_group_get_info()
  [[nodiscard]] gpumem_group_info info(const char *tag = nullptr, OnError on_error = {}) const;

  /// Puts the buffers of a group to sleep as one. gpumem_group_sleep()
  void sleep(const SleepDesc &desc = {}, OnError on_error = {}) const;

  /// Wakes the buffers of a group as one. gpumem_group_wake()
  void wake(const WakeDesc &desc = {}, OnError on_error = {}) const;

  /// Prepares the stores of the buffers of a group that are awake, as gpumem_buffer_prepare() does.
  /// gpumem_group_prepare()
  void prepare(const PrepareDesc &desc = {}, OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_group handle) noexcept {
    gpumem_group_destroy(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_group handle, gpumem_error *error) noexcept {
    return gpumem_group_destroy(handle, error);
  }
};

/// Shared memory and events under names. Does not own it.
class HubRef : public detail::Reference<gpumem_hub, detail::Owned::yes>, public detail::ByHand<HubRef> {
 public:
  using Reference::Reference;

  /// Gets information about a hub. gpumem_hub_get_info()
  [[nodiscard]] gpumem_hub_info info(OnError on_error = {}) const;

  /// Publishes a handle under a name, as its newest version. gpumem_hub_publish()
  uint64_t publish(
      const char *name, const gpumem_share_handle &handle, const PublishDesc &desc = {}, OnError on_error = {}) const;

  /// Withdraws a name, or one version of it. gpumem_hub_withdraw()
  void withdraw(const char *name, uint64_t version, OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_hub handle) noexcept {
    gpumem_hub_close(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_hub handle, gpumem_error *error) noexcept {
    return gpumem_hub_close(handle, error);
  }
};

/// A connection to a hub. Does not own it.
class LinkRef : public detail::Reference<gpumem_link, detail::Owned::yes>, public detail::ByHand<LinkRef> {
 public:
  using Reference::Reference;

  /// Gets information about a link. gpumem_link_get_info()
  [[nodiscard]] gpumem_link_info info(OnError on_error = {}) const;

  /// Gets one of the versions in a hub, in the order of names and versions. gpumem_link_enumerate()
  [[nodiscard]] gpumem_entry_info entry(uint32_t index, OnError on_error = {}) const;

  /// Waits until a name has a version after a given one. gpumem_link_wait()
  [[nodiscard]] std::optional<gpumem_entry_info> wait(
      const char *name, uint64_t after_version, uint64_t timeout_ns = GPUMEM_TIMEOUT_INFINITE,
      OnError on_error = {}) const;

  /// Fetches the handle of a name. gpumem_link_fetch()
  [[nodiscard]] gpumem_share_handle fetch(const char *name, const FetchDesc &desc = {}, OnError on_error = {}) const;

  /// Publishes a handle in a keeper, under the rules of gpumem_hub_publish(). gpumem_link_publish()
  uint64_t publish(
      const char *name, const gpumem_share_handle &handle, const PublishDesc &desc = {}, OnError on_error = {}) const;

  /// Withdraws a name, or one version of it, from a keeper. gpumem_link_withdraw()
  void withdraw(const char *name, uint64_t version, OnError on_error = {}) const;

  /// Says whether memory can be shared in one way with the process of the hub that the link leads to, by a trial at
  /// both ends. gpumem_link_get_way()
  [[nodiscard]] gpumem_way_info share_way(
      const void *pointer, gpumem_share_way way, gpumem_share_peer peer, OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_link handle) noexcept {
    gpumem_link_close(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_link handle, gpumem_error *error) noexcept {
    return gpumem_link_close(handle, error);
  }
};

/// Memory that goes from one process to others again and again. Does not own it.
class RingRef : public detail::Reference<gpumem_ring, detail::Owned::yes>, public detail::ByHand<RingRef> {
 public:
  using Reference::Reference;

  /// Exports a ring. gpumem_ring_export()
  [[nodiscard]] gpumem_share_handle export_handle(OnError on_error = {}) const;

  /// Acquires the next slot, for the producer. gpumem_ring_acquire()
  [[nodiscard]] std::optional<gpumem_ring_slot> acquire(
      Handle<gpumem_stream> stream = nullptr, uint64_t timeout_ns = GPUMEM_TIMEOUT_INFINITE,
      OnError on_error = {}) const;

  /// Publishes the slot that was acquired. gpumem_ring_publish()
  void publish(Handle<gpumem_stream> stream, uint64_t size, uint64_t tag, OnError on_error = {}) const;

  /// Waits for the next message, for a consumer, which may hold several. gpumem_ring_wait()
  [[nodiscard]] std::optional<gpumem_ring_slot> wait(
      Handle<gpumem_stream> stream = nullptr, uint64_t timeout_ns = GPUMEM_TIMEOUT_INFINITE,
      OnError on_error = {}) const;

  /// Releases a message. gpumem_ring_release()
  void release(Handle<gpumem_stream> stream, uint64_t number, OnError on_error = {}) const;

  /// Says that no message will follow, and waits until all consumers have destroyed the ring. gpumem_ring_finish()
  bool finish(uint64_t timeout_ns = GPUMEM_TIMEOUT_INFINITE, OnError on_error = {}) const;

  /// Gets information about a ring. gpumem_ring_get_info()
  [[nodiscard]] gpumem_ring_info info(OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_ring handle) noexcept {
    gpumem_ring_finish(handle, 0, nullptr);
    gpumem_ring_destroy(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_ring handle, gpumem_error *error) noexcept {
    return gpumem_ring_destroy(handle, error);
  }
};

/// Blocks of memory, allocated and freed fast. Does not own it.
class PoolRef : public detail::Reference<gpumem_pool, detail::Owned::yes>, public detail::ByHand<PoolRef> {
 public:
  using Reference::Reference;
  using detail::ByHand<PoolRef>::set_callback;

  /// Allocates a block. gpumem_pool_alloc()
  [[nodiscard]] void *alloc(uint64_t size, Handle<gpumem_stream> stream = nullptr, OnError on_error = {}) const;

  /// Allocates a block as gpumem_pool_alloc() does, with an alignment. gpumem_pool_alloc_aligned()
  [[nodiscard]] void *alloc_aligned(
      uint64_t size, uint64_t alignment, Handle<gpumem_stream> stream, OnError on_error = {}) const;

  /// Allocates a block of those that the pool has free: it waits for nothing and takes no memory.
  /// gpumem_pool_try_alloc()
  [[nodiscard]] std::optional<void *> try_alloc(
      uint64_t size, uint64_t alignment, Handle<gpumem_stream> stream, gpumem_pool_attempt *out_attempt = nullptr,
      OnError on_error = {}) const;

  /// Frees a block in the order of a stream: work that is enqueued before may still use it. gpumem_pool_free()
  void free(void *pointer, Handle<gpumem_stream> stream = nullptr, OnError on_error = {}) const;

  /// Frees a block as gpumem_pool_free() does, with its size. gpumem_pool_free_sized()
  void free_sized(void *pointer, uint64_t size, Handle<gpumem_stream> stream, OnError on_error = {}) const;

  /// Frees several blocks, in the order of the array. gpumem_pool_free_batch()
  void free_batch(span<void *const> pointers, Handle<gpumem_stream> stream, OnError on_error = {}) const;

  /// Allocates a block in the order of a native stream, which needs no gpumem_stream: for code that is handed a
  /// `cudaStream_t` at each call. gpumem_pool_alloc_native()
  [[nodiscard]] void *alloc_native(uint64_t size, void *native_stream, OnError on_error = {}) const;

  /// Frees a block in the order of a native stream. gpumem_pool_free_native()
  void free_native(void *pointer, void *native_stream, OnError on_error = {}) const;

  /// Records that work of a stream uses a block that lives, besides the stream in whose order it will be freed.
  /// gpumem_pool_record_use()
  void record_use(void *pointer, Handle<gpumem_stream> stream, OnError on_error = {}) const;

  /// Releases the part of a pool that belongs to a capture, when its graph is not launched any more.
  /// gpumem_pool_release_capture()
  void release_capture(uint64_t capture_id, Handle<gpumem_stream> stream = nullptr, OnError on_error = {}) const;

  /// Releases what is free, until the pool has no more than `keep_bytes`. gpumem_pool_trim()
  uint64_t trim(uint64_t keep_bytes, OnError on_error = {}) const;

  /// Gets how many bytes a pool takes to hold blocks of these sizes at the same time, what rounding adds included.
  /// gpumem_pool_capacity_for()
  [[nodiscard]] uint64_t capacity_for(span<const uint64_t> sizes, OnError on_error = {}) const;

  /// Sets how many bytes the pool takes at most. gpumem_pool_set_limit()
  void set_limit(uint64_t bytes, OnError on_error = {}) const;

  /// Sets how many bytes the pool keeps when blocks are freed. gpumem_pool_set_release_threshold()
  void set_release_threshold(uint64_t bytes, OnError on_error = {}) const;

  /// Gets information about a pool. gpumem_pool_get_info()
  [[nodiscard]] gpumem_pool_info info(OnError on_error = {}) const;

  /// Gets information about a size class. gpumem_pool_get_class_info()
  [[nodiscard]] gpumem_pool_class_info class_info(uint32_t index, OnError on_error = {}) const;

  /// Resets the peaks of a pool to what it has now. gpumem_pool_reset_peaks()
  void reset_peaks(OnError on_error = {}) const;

  /// Sets the function that is called when the pool cannot get memory. gpumem_pool_set_callback()
  template <class Callable>
  void set_callback(Callable &callback, OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_pool handle) noexcept {
    gpumem_pool_destroy(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_pool handle, gpumem_error *error) noexcept {
    return gpumem_pool_destroy(handle, error);
  }
};

/// An ordered queue of work on one device. Does not own it.
class StreamRef : public detail::Reference<gpumem_stream, detail::Owned::yes>, public detail::ByHand<StreamRef> {
 public:
  using Reference::Reference;
  using detail::ByHand<StreamRef>::copy;
  using detail::ByHand<StreamRef>::fill;

  /// Enqueues a copy of bytes. gpumem_copy_async()
  void copy(
      void *destination, const void *source, uint64_t size, const CopyOptions &options = {},
      OnError on_error = {}) const;

  /// Enqueues a copy of a rectangle of bytes. gpumem_copy_2d_async()
  void copy_2d(
      void *destination, uint64_t destination_pitch, const void *source, uint64_t source_pitch, uint64_t width,
      uint64_t height, const CopyOptions &options = {}, OnError on_error = {}) const;

  /// Enqueues the copies of a batch of regions. gpumem_copy_regions_async()
  void copy_regions(span<const CopyRegion> regions, uint64_t *out_failed = nullptr, OnError on_error = {}) const;

  /// Enqueues a fill of memory with a repeated value. gpumem_fill_async()
  void fill(void *destination, uint64_t size, uint32_t value, uint32_t value_size, OnError on_error = {}) const;

  /// Enqueues a fill of a rectangle of memory with a repeated value. gpumem_fill_2d_async()
  void fill_2d(
      void *destination, uint64_t pitch, uint64_t width, uint64_t height, uint32_t value, uint32_t value_size,
      OnError on_error = {}) const;

  /// Enqueues a function that stands in for a kernel. gpumem_host_launch()
  template <class Callable>
  void host_launch(Callable &function, OnError on_error = {}) const;

  /// Marks a stream as being captured into a graph by other code, or removes the mark.
  /// gpumem_host_stream_set_capturing()
  void host_stream_set_capturing(uint32_t capturing, OnError on_error = {}) const;

  /// Attaches managed memory, in stream order: it takes effect when the earlier work of the stream is complete.
  /// gpumem_managed_attach()
  void attach(void *pointer, uint64_t size, gpumem_attach attach, OnError on_error = {}) const;

  /// Moves a range to a location, in stream order. gpumem_managed_prefetch()
  bool prefetch(
      const void *pointer, uint64_t size, gpumem_location location, int32_t location_id, OnError on_error = {}) const;

  /// Moves the ranges of a batch, each to its location. gpumem_managed_prefetch_batch()
  bool prefetch(span<const ManagedRange> ranges, OnError on_error = {}) const;

  /// Declares the contents of a batch of ranges useless, in stream order: until a byte is written, or prefetched,
  /// reading it gives an indeterminate value. gpumem_managed_discard_batch()
  bool discard(span<const ManagedRange> ranges, OnError on_error = {}) const;

  /// Discards the ranges of a batch and moves each to its location: as gpumem_managed_discard_batch(), then
  /// gpumem_managed_prefetch_batch(), but no byte is moved. gpumem_managed_discard_and_prefetch_batch()
  bool discard_and_prefetch(span<const ManagedRange> ranges, OnError on_error = {}) const;

  /// Gets information about a stream. gpumem_stream_get_info()
  [[nodiscard]] gpumem_stream_info info(OnError on_error = {}) const;

  /// Gets the number of the capture into a graph that a stream is part of. gpumem_stream_get_capture_id()
  [[nodiscard]] uint64_t capture_id(OnError on_error = {}) const;

  /// Queries whether all work of a stream is complete. gpumem_stream_query()
  bool query(OnError on_error = {}) const;

  /// Waits until the work that is in a stream now is complete. gpumem_stream_synchronize()
  bool synchronize(uint64_t timeout_ns = GPUMEM_TIMEOUT_INFINITE, OnError on_error = {}) const;

  /// Makes later work of a stream wait for the latest record of an event. gpumem_stream_wait_event()
  void wait_event(Handle<gpumem_event> event, OnError on_error = {}) const;

  /// Enqueues a function that runs on the CPU, after all earlier and before all later work of a stream.
  /// gpumem_stream_launch_host_function()
  template <class Callable>
  void launch_host_function(Callable &function, OnError on_error = {}) const;

  /// Enqueues a write of a value to a word of pinned or device memory. gpumem_stream_write_value()
  void write_value(void *address, uint64_t value, uint32_t value_size, OnError on_error = {}) const;

  /// Makes later work of a stream wait until a word of pinned or device memory meets a condition.
  /// gpumem_stream_wait_value()
  void wait_value(
      void *address, uint64_t value, uint32_t value_size, gpumem_wait_condition condition, OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_stream handle) noexcept {
    gpumem_stream_synchronize(handle, GPUMEM_TIMEOUT_INFINITE, nullptr);
    gpumem_stream_destroy(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_stream handle, gpumem_error *error) noexcept {
    return gpumem_stream_destroy(handle, error);
  }
};

/// A point in a stream that can be waited for. Does not own it.
class EventRef : public detail::Reference<gpumem_event, detail::Owned::yes>, public detail::ByHand<EventRef> {
 public:
  using Reference::Reference;

  /// Gets information about an event. gpumem_event_get_info()
  [[nodiscard]] gpumem_event_info info(OnError on_error = {}) const;

  /// Records the work that is in a stream now. gpumem_event_record()
  void record(Handle<gpumem_stream> stream, OnError on_error = {}) const;

  /// Queries whether the work of the latest record is complete. gpumem_event_query()
  bool query(OnError on_error = {}) const;

  /// Waits until the work of the latest record is complete. gpumem_event_synchronize()
  bool synchronize(uint64_t timeout_ns = GPUMEM_TIMEOUT_INFINITE, OnError on_error = {}) const;

  /// Gets the time between two complete records of one device. gpumem_event_get_elapsed_time()
  [[nodiscard]] std::optional<int64_t> elapsed_time(Handle<gpumem_event> end, OnError on_error = {}) const;

  /// Exports an event that was created with GPUMEM_EVENT_INTERPROCESS. gpumem_event_export()
  [[nodiscard]] gpumem_share_handle export_handle(OnError on_error = {}) const;

 protected:
  static void end_handle(gpumem_event handle) noexcept {
    gpumem_event_destroy(handle, nullptr);
  }
  static gpumem_status close_handle(gpumem_event handle, gpumem_error *error) noexcept {
    return gpumem_event_destroy(handle, error);
  }
};

/// A running stand-in for a kernel; valid only while its function runs. It is never owned.
class HostKernel : public detail::Reference<gpumem_host_kernel>, public detail::ByHand<HostKernel> {
 public:
  using Reference::Reference;
  using detail::ByHand<HostKernel>::view;

  /// Opens a view of memory for a running kernel, with the rights of its device. gpumem_host_kernel_view()
  [[nodiscard]] void *view(const void *address, uint64_t size, gpumem_access access, OnError on_error = {}) const;
};

/// Gets the name, cause and remedy of a status code. gpumem_status_get_info()
[[nodiscard]] gpumem_status_info status_info(gpumem_status status, OnError on_error = {});

/// Enumerates the status codes of this version. gpumem_status_enumerate()
[[nodiscard]] gpumem_status enumerate_status(uint32_t index, OnError on_error = {});

/// Enumerates the capabilities of this version. gpumem_capability_enumerate()
[[nodiscard]] gpumem_capability enumerate_capability(uint32_t index, OnError on_error = {});

/// Reads a handle. gpumem_share_get_info()
[[nodiscard]] gpumem_share_info share_info(const gpumem_share_handle &handle, OnError on_error = {});

/// Sets the calling thread's current device in the host backend, the counterpart of CUDA's current context.
/// gpumem_host_set_current_device()
[[nodiscard]] int32_t host_set_current_device(int32_t ordinal, OnError on_error = {});

/// Finds out whether a backend can be opened here, without opening it. gpumem_instance_probe()
[[nodiscard]] gpumem_probe_info probe(gpumem_backend backend, OnError on_error = {});

/// Opens a backend. gpumem_instance_open()
[[nodiscard]] Instance open_instance(const InstanceDesc &desc = {}, OnError on_error = {});

inline gpumem_status_info status_info(gpumem_status status, OnError on_error) {
  detail::Attempt attempt(on_error);
  gpumem_status_info info = GPUMEM_STATUS_INFO_INIT;
  attempt.done(gpumem_status_get_info(status, &info, attempt.error()));
  return info;
}

inline gpumem_status enumerate_status(uint32_t index, OnError on_error) {
  detail::Attempt attempt(on_error);
  gpumem_status status{};
  attempt.done(gpumem_status_enumerate(index, &status, attempt.error()));
  return status;
}

inline Memory Device::create_memory(const MemoryDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_memory_desc c_desc = desc.c();
  gpumem_memory made = nullptr;
  attempt.done(gpumem_memory_create(handle_, &c_desc, &made, attempt.error()));
  return Memory(made);
}

inline Memory Device::register_memory(const RegisterDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_register_desc c_desc = desc.c();
  gpumem_memory made = nullptr;
  attempt.done(gpumem_memory_register(handle_, &c_desc, &made, attempt.error()));
  return Memory(made);
}

inline gpumem_memory_info MemoryRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  attempt.done(gpumem_memory_get_info(handle_, &info, attempt.error()));
  return info;
}

inline void *Device::allocate(gpumem_kind kind, uint64_t size, OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *pointer{};
  attempt.done(gpumem_malloc(handle_, kind, size, &pointer, attempt.error()));
  return pointer;
}

inline void InstanceRef::free(void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_free(handle_, pointer, attempt.error()));
}

inline void Device::register_pointer(
    void *pointer, uint64_t size, gpumem_memory_flags require, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_register(handle_, pointer, size, require, attempt.error()));
}

inline void InstanceRef::unregister_pointer(void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_unregister(handle_, pointer, attempt.error()));
}

inline gpumem_pointer_info InstanceRef::pointer_info(const void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  attempt.done(gpumem_pointer_get_info(handle_, pointer, &info, attempt.error()));
  return info;
}

inline gpumem_access InstanceRef::pointer_access(
    const void *pointer, gpumem_location location, int32_t location_id, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_access access{};
  attempt.done(gpumem_pointer_get_access(handle_, pointer, location, location_id, &access, attempt.error()));
  return access;
}

inline void *Device::device_pointer(const void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *device_pointer{};
  attempt.done(gpumem_pointer_get_device_pointer(handle_, pointer, &device_pointer, attempt.error()));
  return device_pointer;
}

inline Physical Device::create_physical(const PhysicalDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_physical_desc c_desc = desc.c();
  gpumem_physical made = nullptr;
  attempt.done(gpumem_physical_create(handle_, &c_desc, &made, attempt.error()));
  return Physical(made);
}

inline gpumem_physical_info PhysicalRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_physical_info info = GPUMEM_PHYSICAL_INFO_INIT;
  attempt.done(gpumem_physical_get_info(handle_, &info, attempt.error()));
  return info;
}

inline Physical InstanceRef::retain_physical(const void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_physical made = nullptr;
  attempt.done(gpumem_physical_retain(handle_, pointer, &made, attempt.error()));
  return Physical(made);
}

inline int32_t PhysicalRef::export_fd(OnError on_error) const {
  detail::Attempt attempt(on_error);
  int32_t fd{};
  attempt.done(gpumem_physical_export_fd(handle_, &fd, attempt.error()));
  return fd;
}

inline Physical Device::import_physical(const PhysicalDesc &desc, int32_t fd, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_physical_desc c_desc = desc.c();
  gpumem_physical made = nullptr;
  attempt.done(gpumem_physical_import_fd(handle_, &c_desc, fd, &made, attempt.error()));
  return Physical(made);
}

inline gpumem_fabric_handle PhysicalRef::export_fabric(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_fabric_handle handle{};
  attempt.done(gpumem_physical_export_fabric(handle_, &handle, attempt.error()));
  return handle;
}

inline Physical Device::import_physical(
    const PhysicalDesc &desc, const gpumem_fabric_handle &handle, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_physical_desc c_desc = desc.c();
  gpumem_physical made = nullptr;
  attempt.done(gpumem_physical_import_fabric(handle_, &c_desc, &handle, &made, attempt.error()));
  return Physical(made);
}

inline Range InstanceRef::reserve_range(const RangeDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_range_desc c_desc = desc.c();
  gpumem_range made = nullptr;
  attempt.done(gpumem_range_reserve(handle_, &c_desc, &made, attempt.error()));
  return Range(made);
}

inline gpumem_range_info RangeRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  attempt.done(gpumem_range_get_info(handle_, &info, attempt.error()));
  return info;
}

inline void RangeRef::map(uint64_t offset, span<const gpumem_physical> physicals, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_range_map(handle_, offset, physicals.data(), physicals.size(), attempt.error()));
}

inline void RangeRef::unmap(uint64_t offset, uint64_t size, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_range_unmap(handle_, offset, size, attempt.error()));
}

inline void RangeRef::set_access(
    uint64_t offset, uint64_t size, span<const AccessDesc> accesses, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_range_set_access(handle_, offset, size, accesses.data(), accesses.size(), attempt.error()));
}

inline gpumem_mapping_info InstanceRef::mapping(const void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_mapping_info info = GPUMEM_MAPPING_INFO_INIT;
  attempt.done(gpumem_range_get_mapping(handle_, pointer, &info, attempt.error()));
  return info;
}

inline Buffer Device::create_buffer(const BufferDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_buffer_desc c_desc = desc.c();
  gpumem_buffer made = nullptr;
  attempt.done(gpumem_buffer_create(handle_, &c_desc, &made, attempt.error()));
  return Buffer(made);
}

inline gpumem_buffer_info BufferRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  attempt.done(gpumem_buffer_get_info(handle_, &info, attempt.error()));
  return info;
}

inline void BufferRef::resize(uint64_t size, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_buffer_resize(handle_, size, attempt.error()));
}

inline void BufferRef::set_capacity(uint64_t capacity, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_buffer_set_capacity(handle_, capacity, attempt.error()));
}

inline void BufferRef::set_ahead(uint64_t bytes, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_buffer_set_ahead(handle_, bytes, attempt.error()));
}

inline void BufferRef::set_access(span<const AccessDesc> accesses, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_buffer_set_access(handle_, accesses.data(), accesses.size(), attempt.error()));
}

inline void BufferRef::sleep(const SleepDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_sleep_desc c_desc = desc.c();
  attempt.done(gpumem_buffer_sleep(handle_, &c_desc, attempt.error()));
}

inline void BufferRef::wake(const WakeDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_wake_desc c_desc = desc.c();
  attempt.done(gpumem_buffer_wake(handle_, &c_desc, attempt.error()));
}

inline void BufferRef::prepare(const PrepareDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_prepare_desc c_desc = desc.c();
  attempt.done(gpumem_buffer_prepare(handle_, &c_desc, attempt.error()));
}

inline uint64_t BufferRef::note_registration(const char *name, OnError on_error) const {
  detail::Attempt attempt(on_error);
  uint64_t registration{};
  attempt.done(gpumem_buffer_note_registration(handle_, name, &registration, attempt.error()));
  return registration;
}

inline void BufferRef::forget_registration(uint64_t registration, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_buffer_forget_registration(handle_, registration, attempt.error()));
}

inline void BufferRef::set_callbacks(const BufferCallbacks &callbacks, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_buffer_callbacks c_callbacks = callbacks.c();
  attempt.done(gpumem_buffer_set_callbacks(handle_, &c_callbacks, attempt.error()));
}

inline gpumem_capability_info Device::capability(
    gpumem_capability capability, Handle<gpumem_device> peer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_capability_info info = GPUMEM_CAPABILITY_INFO_INIT;
  attempt.done(gpumem_device_get_capability(handle_, capability, peer.get(), &info, attempt.error()));
  return info;
}

inline gpumem_capability enumerate_capability(uint32_t index, OnError on_error) {
  detail::Attempt attempt(on_error);
  gpumem_capability capability{};
  attempt.done(gpumem_capability_enumerate(index, &capability, attempt.error()));
  return capability;
}

inline void InstanceRef::copy(
    void *destination, const void *source, uint64_t size, const CopyOptions &options, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_copy_options c_options = options.c();
  attempt.done(gpumem_copy(handle_, destination, source, size, &c_options, attempt.error()));
}

inline void StreamRef::copy(
    void *destination, const void *source, uint64_t size, const CopyOptions &options, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_copy_options c_options = options.c();
  attempt.done(gpumem_copy_async(handle_, destination, source, size, &c_options, attempt.error()));
}

inline void InstanceRef::copy_2d(
    void *destination, uint64_t destination_pitch, const void *source, uint64_t source_pitch, uint64_t width,
    uint64_t height, const CopyOptions &options, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_copy_options c_options = options.c();
  attempt.done(gpumem_copy_2d(
      handle_, destination, destination_pitch, source, source_pitch, width, height, &c_options, attempt.error()));
}

inline void StreamRef::copy_2d(
    void *destination, uint64_t destination_pitch, const void *source, uint64_t source_pitch, uint64_t width,
    uint64_t height, const CopyOptions &options, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_copy_options c_options = options.c();
  attempt.done(gpumem_copy_2d_async(
      handle_, destination, destination_pitch, source, source_pitch, width, height, &c_options, attempt.error()));
}

inline void InstanceRef::copy_regions(span<const CopyRegion> regions, uint64_t *out_failed, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_copy_regions(handle_, regions.data(), regions.size(), out_failed, attempt.error()));
}

inline void StreamRef::copy_regions(span<const CopyRegion> regions, uint64_t *out_failed, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_copy_regions_async(handle_, regions.data(), regions.size(), out_failed, attempt.error()));
}

inline void InstanceRef::fill(
    void *destination, uint64_t size, uint32_t value, uint32_t value_size, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_fill(handle_, destination, size, value, value_size, attempt.error()));
}

inline void StreamRef::fill(
    void *destination, uint64_t size, uint32_t value, uint32_t value_size, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_fill_async(handle_, destination, size, value, value_size, attempt.error()));
}

inline void InstanceRef::fill_2d(
    void *destination, uint64_t pitch, uint64_t width, uint64_t height, uint32_t value, uint32_t value_size,
    OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_fill_2d(handle_, destination, pitch, width, height, value, value_size, attempt.error()));
}

inline void StreamRef::fill_2d(
    void *destination, uint64_t pitch, uint64_t width, uint64_t height, uint32_t value, uint32_t value_size,
    OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_fill_2d_async(handle_, destination, pitch, width, height, value, value_size, attempt.error()));
}

inline Device InstanceRef::device(uint32_t ordinal, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_device made = nullptr;
  attempt.done(gpumem_device_get(handle_, ordinal, &made, attempt.error()));
  return Device(made);
}

inline gpumem_device_info Device::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  attempt.done(gpumem_device_get_info(handle_, &info, attempt.error()));
  return info;
}

inline uint64_t Device::trim_graphs(OnError on_error) const {
  detail::Attempt attempt(on_error);
  uint64_t released{};
  attempt.done(gpumem_device_trim_graphs(handle_, &released, attempt.error()));
  return released;
}

inline uint32_t Device::can_access_peer(Handle<gpumem_device> peer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  uint32_t possible{};
  attempt.done(gpumem_device_can_access_peer(handle_, peer.get(), &possible, attempt.error()));
  return possible;
}

inline void Device::enable_peer_access(Handle<gpumem_device> peer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_device_enable_peer_access(handle_, peer.get(), attempt.error()));
}

inline void Device::disable_peer_access(Handle<gpumem_device> peer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_device_disable_peer_access(handle_, peer.get(), attempt.error()));
}

inline gpumem_share_handle InstanceRef::export_memory(
    const void *pointer, const ExportDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_export_desc c_desc = desc.c();
  gpumem_share_handle handle{};
  attempt.done(gpumem_share_export(handle_, pointer, &c_desc, &handle, attempt.error()));
  return handle;
}

inline void InstanceRef::revoke(const gpumem_share_handle &handle, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_share_revoke(handle_, &handle, attempt.error()));
}

inline gpumem_share_info share_info(const gpumem_share_handle &handle, OnError on_error) {
  detail::Attempt attempt(on_error);
  gpumem_share_info info = GPUMEM_SHARE_INFO_INIT;
  attempt.done(gpumem_share_get_info(&handle, &info, attempt.error()));
  return info;
}

inline Memory InstanceRef::import_memory(
    const gpumem_share_handle &handle, span<const int32_t> fds, const ImportDesc &desc, void **out_pointer,
    OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_import_desc c_desc = desc.c();
  gpumem_memory made = nullptr;
  attempt.done(gpumem_share_import(
      handle_, &handle, fds.data(), static_cast<uint32_t>(fds.size()), &c_desc, out_pointer, &made, attempt.error()));
  return Memory(made);
}

inline gpumem_import_info MemoryRef::import_info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_import_info info = GPUMEM_IMPORT_INFO_INIT;
  attempt.done(gpumem_memory_get_import_info(handle_, &info, attempt.error()));
  return info;
}

inline void InstanceRef::set_import_cache(const ImportCacheDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_import_cache_desc c_desc = desc.c();
  attempt.done(gpumem_share_set_cache(handle_, &c_desc, attempt.error()));
}

inline void InstanceRef::flush_import_cache(OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_share_flush_cache(handle_, attempt.error()));
}

inline gpumem_way_info InstanceRef::share_way(
    const void *pointer, gpumem_share_way way, gpumem_share_peer peer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
  attempt.done(gpumem_share_get_way(handle_, pointer, way, peer, &info, attempt.error()));
  return info;
}

inline void InstanceRef::send(
    const gpumem_share_handle &handle, int32_t socket_fd, const SendDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_send_desc c_desc = desc.c();
  attempt.done(gpumem_share_send(handle_, &handle, socket_fd, &c_desc, attempt.error()));
}

inline std::optional<gpumem_share_handle> InstanceRef::receive(
    int32_t socket_fd, uint64_t timeout_ns, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_share_handle handle{};
  if (!attempt.ready(gpumem_share_receive(
      handle_, socket_fd, timeout_ns, &handle, attempt.error()))) return std::nullopt;
  return handle;
}

inline int32_t InstanceRef::export_dma_buf(
    const void *pointer, uint64_t size, gpumem_dma_buf_flags flags, OnError on_error) const {
  detail::Attempt attempt(on_error);
  int32_t fd{};
  attempt.done(gpumem_share_export_dma_buf(handle_, pointer, size, flags, &fd, attempt.error()));
  return fd;
}

inline Event Device::create_event(const EventDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_event_desc c_desc = desc.c();
  gpumem_event made = nullptr;
  attempt.done(gpumem_event_create(handle_, &c_desc, &made, attempt.error()));
  return Event(made);
}

inline Event Device::wrap_event(void *native_event, gpumem_event_flags flags, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_event made = nullptr;
  attempt.done(gpumem_event_wrap(handle_, native_event, flags, &made, attempt.error()));
  return Event(made);
}

inline gpumem_event_info EventRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_event_info info = GPUMEM_EVENT_INFO_INIT;
  attempt.done(gpumem_event_get_info(handle_, &info, attempt.error()));
  return info;
}

inline void EventRef::record(Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_event_record(handle_, stream.get(), attempt.error()));
}

inline bool EventRef::query(OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_event_query(handle_, attempt.error()));
}

inline bool EventRef::synchronize(uint64_t timeout_ns, OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_event_synchronize(handle_, timeout_ns, attempt.error()));
}

inline std::optional<int64_t> EventRef::elapsed_time(Handle<gpumem_event> end, OnError on_error) const {
  detail::Attempt attempt(on_error);
  int64_t nanoseconds{};
  if (!attempt.ready(gpumem_event_get_elapsed_time(
      handle_, end.get(), &nanoseconds, attempt.error()))) return std::nullopt;
  return nanoseconds;
}

inline gpumem_share_handle EventRef::export_handle(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_share_handle handle{};
  attempt.done(gpumem_event_export(handle_, &handle, attempt.error()));
  return handle;
}

inline Event Device::import_event(const gpumem_share_handle &handle, span<const int32_t> fds, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_event made = nullptr;
  attempt.done(gpumem_event_import(
      handle_, &handle, fds.data(), static_cast<uint32_t>(fds.size()), &made, attempt.error()));
  return Event(made);
}

inline void InstanceRef::copy_file(const CopyFileDesc &desc, gpumem_copy_file_info *out_info, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_copy_file_desc c_desc = desc.c();
  attempt.done(gpumem_copy_file(handle_, &c_desc, out_info, attempt.error()));
}

inline Group InstanceRef::create_group(const GroupDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_group_desc c_desc = desc.c();
  gpumem_group made = nullptr;
  attempt.done(gpumem_group_create(handle_, &c_desc, &made, attempt.error()));
  return Group(made);
}

inline gpumem_group_info GroupRef::info(const char *tag, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_group_info info = GPUMEM_GROUP_INFO_INIT;
  attempt.done(gpumem_group_get_info(handle_, tag, &info, attempt.error()));
  return info;
}

inline void GroupRef::sleep(const SleepDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_sleep_desc c_desc = desc.c();
  attempt.done(gpumem_group_sleep(handle_, &c_desc, attempt.error()));
}

inline void GroupRef::wake(const WakeDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_wake_desc c_desc = desc.c();
  attempt.done(gpumem_group_wake(handle_, &c_desc, attempt.error()));
}

inline void GroupRef::prepare(const PrepareDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_prepare_desc c_desc = desc.c();
  attempt.done(gpumem_group_prepare(handle_, &c_desc, attempt.error()));
}

template <class Callable>
void StreamRef::host_launch(Callable &function, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_host_launch(
      handle_, &detail::CallLast<Callable, void, gpumem_host_kernel>::run, detail::address(function), attempt.error()));
}

inline void *HostKernel::view(const void *address, uint64_t size, gpumem_access access, OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *view{};
  attempt.done(gpumem_host_kernel_view(handle_, address, size, access, &view, attempt.error()));
  return view;
}

inline void *Device::host_native_stream_create(OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *native_stream{};
  attempt.done(gpumem_host_native_stream_create(handle_, &native_stream, attempt.error()));
  return native_stream;
}

inline void Device::host_native_stream_destroy(void *native_stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_host_native_stream_destroy(handle_, native_stream, attempt.error()));
}

inline void StreamRef::host_stream_set_capturing(uint32_t capturing, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_host_stream_set_capturing(handle_, capturing, attempt.error()));
}

inline void Device::host_device_lose(OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_host_device_lose(handle_, attempt.error()));
}

inline void InstanceRef::host_fail_step(uint64_t step, uint32_t repeat, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_host_fail_step(handle_, step, repeat, attempt.error()));
}

inline void *Device::host_foreign_alloc(gpumem_kind kind, uint64_t size, OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *pointer{};
  attempt.done(gpumem_host_foreign_alloc(handle_, kind, size, &pointer, attempt.error()));
  return pointer;
}

inline void Device::host_foreign_free(void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_host_foreign_free(handle_, pointer, attempt.error()));
}

inline void Device::host_foreign_peer_access(Handle<gpumem_device> peer, uint32_t enabled, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_host_foreign_peer_access(handle_, peer.get(), enabled, attempt.error()));
}

inline int32_t host_set_current_device(int32_t ordinal, OnError on_error) {
  detail::Attempt attempt(on_error);
  int32_t previous{};
  attempt.done(gpumem_host_set_current_device(ordinal, &previous, attempt.error()));
  return previous;
}

inline Hub InstanceRef::open_hub(const HubDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_hub_desc c_desc = desc.c();
  gpumem_hub made = nullptr;
  attempt.done(gpumem_hub_open(handle_, &c_desc, &made, attempt.error()));
  return Hub(made);
}

inline gpumem_hub_info HubRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
  attempt.done(gpumem_hub_get_info(handle_, &info, attempt.error()));
  return info;
}

inline uint64_t HubRef::publish(
    const char *name, const gpumem_share_handle &handle, const PublishDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_publish_desc c_desc = desc.c();
  uint64_t version{};
  attempt.done(gpumem_hub_publish(handle_, name, &handle, &c_desc, &version, attempt.error()));
  return version;
}

inline void HubRef::withdraw(const char *name, uint64_t version, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_hub_withdraw(handle_, name, version, attempt.error()));
}

inline Link InstanceRef::connect_link(const LinkDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_link_desc c_desc = desc.c();
  gpumem_link made = nullptr;
  attempt.done(gpumem_link_connect(handle_, &c_desc, &made, attempt.error()));
  return Link(made);
}

inline gpumem_link_info LinkRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
  attempt.done(gpumem_link_get_info(handle_, &info, attempt.error()));
  return info;
}

inline gpumem_entry_info LinkRef::entry(uint32_t index, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_entry_info info = GPUMEM_ENTRY_INFO_INIT;
  attempt.done(gpumem_link_enumerate(handle_, index, &info, attempt.error()));
  return info;
}

inline std::optional<gpumem_entry_info> LinkRef::wait(
    const char *name, uint64_t after_version, uint64_t timeout_ns, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_entry_info info = GPUMEM_ENTRY_INFO_INIT;
  if (!attempt.ready(gpumem_link_wait(
      handle_, name, after_version, timeout_ns, &info, attempt.error()))) return std::nullopt;
  return info;
}

inline gpumem_share_handle LinkRef::fetch(const char *name, const FetchDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_fetch_desc c_desc = desc.c();
  gpumem_share_handle handle{};
  attempt.done(gpumem_link_fetch(handle_, name, &c_desc, &handle, attempt.error()));
  return handle;
}

inline uint64_t LinkRef::publish(
    const char *name, const gpumem_share_handle &handle, const PublishDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_publish_desc c_desc = desc.c();
  uint64_t version{};
  attempt.done(gpumem_link_publish(handle_, name, &handle, &c_desc, &version, attempt.error()));
  return version;
}

inline void LinkRef::withdraw(const char *name, uint64_t version, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_link_withdraw(handle_, name, version, attempt.error()));
}

inline gpumem_way_info LinkRef::share_way(
    const void *pointer, gpumem_share_way way, gpumem_share_peer peer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
  attempt.done(gpumem_link_get_way(handle_, pointer, way, peer, &info, attempt.error()));
  return info;
}

inline gpumem_probe_info probe(gpumem_backend backend, OnError on_error) {
  detail::Attempt attempt(on_error);
  gpumem_probe_info info = GPUMEM_PROBE_INFO_INIT;
  attempt.done(gpumem_instance_probe(backend, &info, attempt.error()));
  return info;
}

inline Instance open_instance(const InstanceDesc &desc, OnError on_error) {
  detail::Attempt attempt(on_error);
  const gpumem_instance_desc c_desc = desc.c();
  gpumem_instance made = nullptr;
  attempt.done(gpumem_instance_open(&c_desc, &made, attempt.error()));
  return Instance(made);
}

inline gpumem_instance_info InstanceRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  attempt.done(gpumem_instance_get_info(handle_, &info, attempt.error()));
  return info;
}

inline void StreamRef::attach(void *pointer, uint64_t size, gpumem_attach attach, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_managed_attach(handle_, pointer, size, attach, attempt.error()));
}

inline bool InstanceRef::advise(
    const void *pointer, uint64_t size, gpumem_advice advice, gpumem_location location, int32_t location_id,
    OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_managed_advise(handle_, pointer, size, advice, location, location_id, attempt.error()));
}

inline bool StreamRef::prefetch(
    const void *pointer, uint64_t size, gpumem_location location, int32_t location_id, OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_managed_prefetch(handle_, pointer, size, location, location_id, attempt.error()));
}

inline bool StreamRef::prefetch(span<const ManagedRange> ranges, OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_managed_prefetch_batch(handle_, ranges.data(), ranges.size(), attempt.error()));
}

inline bool StreamRef::discard(span<const ManagedRange> ranges, OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_managed_discard_batch(handle_, ranges.data(), ranges.size(), attempt.error()));
}

inline bool StreamRef::discard_and_prefetch(span<const ManagedRange> ranges, OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_managed_discard_and_prefetch_batch(
      handle_, ranges.data(), ranges.size(), attempt.error()));
}

inline gpumem_managed_info InstanceRef::managed_info(const void *pointer, uint64_t size, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
  attempt.done(gpumem_managed_get_info(handle_, pointer, size, &info, attempt.error()));
  return info;
}

inline void InstanceRef::begin_host_access(const void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_managed_begin_host_access(handle_, pointer, attempt.error()));
}

inline void InstanceRef::end_host_access(const void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_managed_end_host_access(handle_, pointer, attempt.error()));
}

inline Pool Device::create_pool(const PoolDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_pool_desc c_desc = desc.c();
  gpumem_pool made = nullptr;
  attempt.done(gpumem_pool_create(handle_, &c_desc, &made, attempt.error()));
  return Pool(made);
}

inline void *PoolRef::alloc(uint64_t size, Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *pointer{};
  attempt.done(gpumem_pool_alloc(handle_, size, stream.get(), &pointer, attempt.error()));
  return pointer;
}

inline void *PoolRef::alloc_aligned(
    uint64_t size, uint64_t alignment, Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *pointer{};
  attempt.done(gpumem_pool_alloc_aligned(handle_, size, alignment, stream.get(), &pointer, attempt.error()));
  return pointer;
}

inline std::optional<void *> PoolRef::try_alloc(
    uint64_t size, uint64_t alignment, Handle<gpumem_stream> stream, gpumem_pool_attempt *out_attempt,
    OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *pointer{};
  if (!attempt.ready(gpumem_pool_try_alloc(
      handle_, size, alignment, stream.get(), &pointer, out_attempt, attempt.error()))) return std::nullopt;
  return pointer;
}

inline void PoolRef::free(void *pointer, Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_free(handle_, pointer, stream.get(), attempt.error()));
}

inline void PoolRef::free_sized(void *pointer, uint64_t size, Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_free_sized(handle_, pointer, size, stream.get(), attempt.error()));
}

inline void PoolRef::free_batch(span<void *const> pointers, Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_free_batch(handle_, pointers.data(), pointers.size(), stream.get(), attempt.error()));
}

inline void *PoolRef::alloc_native(uint64_t size, void *native_stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  void *pointer{};
  attempt.done(gpumem_pool_alloc_native(handle_, size, native_stream, &pointer, attempt.error()));
  return pointer;
}

inline void PoolRef::free_native(void *pointer, void *native_stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_free_native(handle_, pointer, native_stream, attempt.error()));
}

inline void InstanceRef::free_pool_block(void *pointer, Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_free_pointer(handle_, pointer, stream.get(), attempt.error()));
}

inline void PoolRef::record_use(void *pointer, Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_record_use(handle_, pointer, stream.get(), attempt.error()));
}

inline void PoolRef::release_capture(uint64_t capture_id, Handle<gpumem_stream> stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_release_capture(handle_, capture_id, stream.get(), attempt.error()));
}

inline uint64_t PoolRef::trim(uint64_t keep_bytes, OnError on_error) const {
  detail::Attempt attempt(on_error);
  uint64_t released{};
  attempt.done(gpumem_pool_trim(handle_, keep_bytes, &released, attempt.error()));
  return released;
}

inline uint64_t PoolRef::capacity_for(span<const uint64_t> sizes, OnError on_error) const {
  detail::Attempt attempt(on_error);
  uint64_t bytes{};
  attempt.done(gpumem_pool_capacity_for(handle_, sizes.data(), sizes.size(), &bytes, attempt.error()));
  return bytes;
}

inline void PoolRef::set_limit(uint64_t bytes, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_set_limit(handle_, bytes, attempt.error()));
}

inline void PoolRef::set_release_threshold(uint64_t bytes, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_set_release_threshold(handle_, bytes, attempt.error()));
}

inline gpumem_pool_info PoolRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  attempt.done(gpumem_pool_get_info(handle_, &info, attempt.error()));
  return info;
}

inline gpumem_pool_class_info PoolRef::class_info(uint32_t index, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_pool_class_info info = GPUMEM_POOL_CLASS_INFO_INIT;
  attempt.done(gpumem_pool_get_class_info(handle_, index, &info, attempt.error()));
  return info;
}

inline void PoolRef::reset_peaks(OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_reset_peaks(handle_, attempt.error()));
}

inline gpumem_pool_block_info InstanceRef::pool_block_info(const void *pointer, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
  attempt.done(gpumem_pool_get_block_info(handle_, pointer, &info, attempt.error()));
  return info;
}

template <class Callable>
void PoolRef::set_callback(Callable &callback, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_pool_set_callback(
      handle_, &detail::Call<Callable, int32_t, gpumem_pool, uint64_t>::run, detail::address(callback),
      attempt.error()));
}

inline Ring Device::create_ring(const RingDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_ring_desc c_desc = desc.c();
  gpumem_ring made = nullptr;
  attempt.done(gpumem_ring_create(handle_, &c_desc, &made, attempt.error()));
  return Ring(made);
}

inline gpumem_share_handle RingRef::export_handle(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_share_handle handle{};
  attempt.done(gpumem_ring_export(handle_, &handle, attempt.error()));
  return handle;
}

inline Ring InstanceRef::open_ring(
    const gpumem_share_handle &handle, const RingOpenDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_ring_open_desc c_desc = desc.c();
  gpumem_ring made = nullptr;
  attempt.done(gpumem_ring_open(handle_, &handle, &c_desc, &made, attempt.error()));
  return Ring(made);
}

inline std::optional<gpumem_ring_slot> RingRef::acquire(
    Handle<gpumem_stream> stream, uint64_t timeout_ns, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  if (!attempt.ready(gpumem_ring_acquire(
      handle_, stream.get(), timeout_ns, &slot, attempt.error()))) return std::nullopt;
  return slot;
}

inline void RingRef::publish(Handle<gpumem_stream> stream, uint64_t size, uint64_t tag, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_ring_publish(handle_, stream.get(), size, tag, attempt.error()));
}

inline std::optional<gpumem_ring_slot> RingRef::wait(
    Handle<gpumem_stream> stream, uint64_t timeout_ns, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  if (!attempt.ready(gpumem_ring_wait(handle_, stream.get(), timeout_ns, &slot, attempt.error()))) return std::nullopt;
  return slot;
}

inline void RingRef::release(Handle<gpumem_stream> stream, uint64_t number, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_ring_release(handle_, stream.get(), number, attempt.error()));
}

inline bool RingRef::finish(uint64_t timeout_ns, OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_ring_finish(handle_, timeout_ns, attempt.error()));
}

inline gpumem_ring_info RingRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_ring_info info = GPUMEM_RING_INFO_INIT;
  attempt.done(gpumem_ring_get_info(handle_, &info, attempt.error()));
  return info;
}

inline gpumem_stats InstanceRef::stats(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_stats stats = GPUMEM_STATS_INIT;
  attempt.done(gpumem_stats_get(handle_, &stats, attempt.error()));
  return stats;
}

inline gpumem_kind_stats InstanceRef::kind_stats(gpumem_kind kind, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_kind_stats stats = GPUMEM_KIND_STATS_INIT;
  attempt.done(gpumem_stats_get_kind(handle_, kind, &stats, attempt.error()));
  return stats;
}

inline void InstanceRef::reset_peaks(OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_stats_reset_peaks(handle_, attempt.error()));
}

inline Stream Device::create_stream(const StreamDesc &desc, OnError on_error) const {
  detail::Attempt attempt(on_error);
  const gpumem_stream_desc c_desc = desc.c();
  gpumem_stream made = nullptr;
  attempt.done(gpumem_stream_create(handle_, &c_desc, &made, attempt.error()));
  return Stream(made);
}

inline Stream Device::wrap_stream(void *native_stream, OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_stream made = nullptr;
  attempt.done(gpumem_stream_wrap(handle_, native_stream, &made, attempt.error()));
  return Stream(made);
}

inline gpumem_stream_info StreamRef::info(OnError on_error) const {
  detail::Attempt attempt(on_error);
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  attempt.done(gpumem_stream_get_info(handle_, &info, attempt.error()));
  return info;
}

inline uint64_t StreamRef::capture_id(OnError on_error) const {
  detail::Attempt attempt(on_error);
  uint64_t capture_id{};
  attempt.done(gpumem_stream_get_capture_id(handle_, &capture_id, attempt.error()));
  return capture_id;
}

inline bool StreamRef::query(OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_stream_query(handle_, attempt.error()));
}

inline bool StreamRef::synchronize(uint64_t timeout_ns, OnError on_error) const {
  detail::Attempt attempt(on_error);
  return attempt.ready(gpumem_stream_synchronize(handle_, timeout_ns, attempt.error()));
}

inline void StreamRef::wait_event(Handle<gpumem_event> event, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_stream_wait_event(handle_, event.get(), attempt.error()));
}

template <class Callable>
void StreamRef::launch_host_function(Callable &function, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_stream_launch_host_function(
      handle_, &detail::Call<Callable, void>::run, detail::address(function), attempt.error()));
}

inline void StreamRef::write_value(void *address, uint64_t value, uint32_t value_size, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_stream_write_value(handle_, address, value, value_size, attempt.error()));
}

inline void StreamRef::wait_value(
    void *address, uint64_t value, uint32_t value_size, gpumem_wait_condition condition, OnError on_error) const {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_stream_wait_value(handle_, address, value, value_size, condition, attempt.error()));
}
/* clang-format on */
/* Generated: end. */

// ---- What is written by hand

/// The version of the library: gpumem_version()
inline uint32_t version() noexcept { return gpumem_version(); }
/// The same as text, such as "0.1.0": gpumem_version_text()
inline const char *version_text() noexcept { return gpumem_version_text(); }
/// Whether this build has a feature: gpumem_feature_supported()
inline bool feature_supported(gpumem_feature feature) noexcept {
  return gpumem_feature_supported(feature) != 0;
}

/// The instance that all code of the process shares. Nobody owns it: gpumem_instance_default()
[[nodiscard]] inline InstanceRef default_instance(OnError on_error = {}) {
  detail::Attempt attempt(on_error);
  gpumem_instance instance = nullptr;
  attempt.done(gpumem_instance_default(&instance, attempt.error()));
  return InstanceRef(instance);
}

/// Calls `log(level, message)` with the messages of the library: gpumem_log_set_function(). It must live until another one is set.
template <class Callable>
void set_log(Callable &log, gpumem_log_level max_level, OnError on_error = {}) {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_log_set_function(&detail::Call<Callable, void, gpumem_log_level, const char *>::run,
                                       detail::address(log), max_level, attempt.error()));
}
/// Calls nothing any more.
inline void set_log(std::nullptr_t, OnError on_error = {}) {
  detail::Attempt attempt(on_error);
  attempt.done(gpumem_log_set_function(nullptr, nullptr, GPUMEM_LOG_ERROR, attempt.error()));
}
/// The same, whatever the level is.
inline void set_log(std::nullptr_t, gpumem_log_level /*max_level*/, OnError on_error = {}) {
  set_log(nullptr, on_error);
}

/// The elements of a slot or message of a ring.
template <class T>
device_span<T> device_elements(const gpumem_ring_slot &slot) noexcept {
  static_assert(detail::is_bytes<T>, "elements must be trivially copyable");
  return {static_cast<T *>(slot.pointer), slot.size / sizeof(T)};
}

/// What a link imported under a name.
struct ImportedEntry {
  Memory memory;                                     ///< The import.
  void *pointer = nullptr;                           ///< The byte that was exported.
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;  ///< What the hub says of it.
};

/// Owns a block of a pool. It must not outlive the pool, nor the stream that it is freed in: work of that stream might still use
/// the block, so it is not freed then. Pass what detach() returns to InstanceRef::free_pool_block() once no work uses it; otherwise
/// it lives until its instance is closed by force.
template <class T>
class [[nodiscard]] Block {
 public:
  constexpr Block() noexcept = default;
  Block(gpumem_pool pool, gpumem_stream stream, device_span<T> elements) noexcept
      : pool_(pool), stream_(stream), elements_(elements) {}
  Block(Block &&other) noexcept
      : pool_(other.pool_), stream_(other.stream_), elements_(std::exchange(other.elements_, {})) {}
  Block &operator=(Block &&other) noexcept {
    if (this != &other) {
      reset();
      pool_ = other.pool_;
      stream_ = other.stream_;
      elements_ = std::exchange(other.elements_, {});
    }
    return *this;
  }
  Block(const Block &) = delete;
  Block &operator=(const Block &) = delete;
  ~Block() { reset(); }

  /// The block for the CPU. Fails with GPUMEM_ERROR_NO_ACCESS if the pool is of device memory, for which the CPU has no address.
  span<T> elements(OnError on_error = {}) const & {
    detail::Attempt attempt(on_error);
    gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
    if (data() == nullptr || !attempt.done(gpumem_pool_get_info(pool_, &info, attempt.error()))) return {};
    if (info.kind != GPUMEM_KIND_DEVICE) return {data(), size()};
    attempt.refuse(
        GPUMEM_ERROR_NO_ACCESS, "elements",
        "the CPU has no address for a block of device memory; copy it to pinned or ordinary memory");
    return {};
  }
  device_span<T> device_elements() const &noexcept { return elements_; }
  /// Of a temporary, which frees them.
  span<T> elements(OnError = {}) const && = delete;
  device_span<T> device_elements() const && = delete;
  T *data() const noexcept { return elements_.data(); }
  size_t size() const noexcept { return elements_.size(); }
  explicit operator bool() const noexcept { return data() != nullptr; }

  /// Frees it, in the order of its stream.
  void reset() noexcept {
    if (T *const old = std::exchange(elements_, {}).data())
      gpumem_pool_free(pool_, writable(old), stream_, nullptr);
  }
  /// The same, and reports a failure, after which it still owns it.
  void free(OnError on_error = {}) { free(stream_, on_error); }
  /// The same in the order of another stream. A null one says that no work uses the block any more.
  void free(Handle<gpumem_stream> stream, OnError on_error = {}) {
    detail::Attempt attempt(on_error);
    const gpumem_status status = gpumem_pool_free(pool_, writable(data()), stream.get(), attempt.error());
    if (status == GPUMEM_ERROR_STALE_HANDLE) {
      detail::append(
          *attempt.error(),
          "; once no work uses the block, call free_pool_block(detach(), nullptr) of its instance");
    }
    if (attempt.done(status)) elements_ = {};
  }
  /// Owns nothing any more.
  [[nodiscard]] T *detach() noexcept { return std::exchange(elements_, {}).data(); }

 private:
  static void *writable(const T *pointer) noexcept {
    return const_cast<void *>(static_cast<const void *>(pointer));
  }

  gpumem_pool pool_ = nullptr;
  gpumem_stream stream_ = nullptr;
  device_span<T> elements_;
};

/// While it lives, the CPU may access managed memory.
class [[nodiscard]] HostAccess {
 public:
  constexpr HostAccess() noexcept = default;
  HostAccess(gpumem_instance instance, const void *pointer) noexcept
      : instance_(instance), pointer_(pointer) {}
  HostAccess(HostAccess &&other) noexcept
      : instance_(other.instance_), pointer_(std::exchange(other.pointer_, nullptr)) {}
  HostAccess &operator=(HostAccess &&other) noexcept {
    if (this != &other) {
      reset();
      instance_ = other.instance_;
      pointer_ = std::exchange(other.pointer_, nullptr);
    }
    return *this;
  }
  HostAccess(const HostAccess &) = delete;
  HostAccess &operator=(const HostAccess &) = delete;
  ~HostAccess() { reset(); }

  explicit operator bool() const noexcept { return pointer_ != nullptr; }
  /// Ends the access.
  void reset() noexcept {
    if (const void *const old = std::exchange(pointer_, nullptr))
      gpumem_managed_end_host_access(instance_, old, nullptr);
  }

 private:
  gpumem_instance instance_ = nullptr;
  const void *pointer_ = nullptr;
};

namespace detail {

template <class T>
void *untyped(T *pointer) noexcept {
  static_assert(is_bytes<T>, "elements must be trivially copyable");
  return pointer;
}
template <class T>
const void *untyped(const T *pointer) noexcept {
  static_assert(is_bytes<T>, "elements must be trivially copyable");
  return pointer;
}

template <class Self>
template <class To, class From, class>
void Elements<Self>::copy(To &&to, From &&from, const CopyOptions &options, OnError on_error) const {
  if (std::size(to) != std::size(from)) {
    Attempt attempt(on_error);
    char text[128];
    std::snprintf(text, sizeof text, "%zu elements cannot be copied to %zu; take a subspan of the larger one",
                  std::size(from), std::size(to));
    return attempt.refuse(GPUMEM_ERROR_INVALID_ARGUMENT, "copy", text);
  }
  static_cast<const Self *>(this)->copy(untyped(std::data(to)), untyped(std::data(from)),
                                        std::size(from) * sizeof(Element<From>), options, on_error);
}

template <class Self>
template <class To, class From, class>
void Elements<Self>::copy(To &&to, From &&from, OnError on_error) const {
  copy(to, from, CopyOptions{}, on_error);
}

template <class Self>
template <class To, class>
void Elements<Self>::fill(To &&to, const Element<To> &value, OnError on_error) const {
  constexpr size_t size = sizeof(Element<To>);
  static_assert(size == 1 || size == 2 || size == 4, "a fill sets elements of 1, 2 or 4 bytes");
  uint32_t number = 0;
  if constexpr (size == 4) {
    std::memcpy(&number, &value, size);
  } else {
    std::conditional_t<size == 1, uint8_t, uint16_t> small = 0;
    std::memcpy(&small, &value, size);
    number = small;
  }
  static_cast<const Self *>(this)->fill(untyped(std::data(to)), std::size(to) * size, number, uint32_t{size},
                                        on_error);
}

/// Whole elements of memory with this address, or the failure that it has none.
template <class Span>
Span whole(void *pointer, uint64_t size, Attempt &attempt, const char *function, const char *message) {
  using T = typename Span::element_type;
  static_assert(is_bytes<T>, "elements must be trivially copyable");
  if (pointer == nullptr) {
    attempt.refuse(GPUMEM_ERROR_NO_ACCESS, function, message);
    return {};
  }
  return Span(static_cast<T *>(pointer), size / sizeof(T));
}

template <class T>
span<T> ByHand<MemoryRef>::elements(OnError on_error) const {
  Attempt attempt(on_error);
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  if (!attempt.done(
          gpumem_memory_get_info(static_cast<const MemoryRef *>(this)->get(), &info, attempt.error())))
    return {};
  return whole<span<T>>(info.host_pointer, info.size, attempt, "elements",
                        "the CPU has no address for this memory; copy it to pinned or ordinary memory");
}

template <class T>
device_span<T> ByHand<MemoryRef>::device_elements(OnError on_error) const {
  Attempt attempt(on_error);
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  if (!attempt.done(
          gpumem_memory_get_info(static_cast<const MemoryRef *>(this)->get(), &info, attempt.error())))
    return {};
  return whole<device_span<T>>(
      info.device_pointer, info.size, attempt, "device_elements",
      "devices have no address for this memory; make or register it with GPUMEM_MEMORY_MAPPED");
}

template <class T>
device_span<T> ByHand<BufferRef>::device_elements(OnError on_error) const {
  Attempt attempt(on_error);
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  if (!attempt.done(
          gpumem_buffer_get_info(static_cast<const BufferRef *>(this)->get(), &info, attempt.error())))
    return {};
  return whole<device_span<T>>(info.base, info.size, attempt, "device_elements",
                               "the buffer has no memory; resize it first");
}

/// Calls a progress function of C++ from C, and keeps what it throws.
template <class Progress>
class ProgressCall {
 public:
  explicit ProgressCall(Progress &progress) noexcept : progress_(progress) {}

  /// The options with the function, which must go on living.
  template <class Desc>
  Desc in(Desc desc) noexcept {
    desc.progress = run;
    desc.user_data = this;
    return desc;
  }
  void rethrow() const {
#ifdef __cpp_exceptions
    if (thrown_) std::rethrow_exception(thrown_);
#endif
  }

 private:
  bool goes_on(uint64_t done, uint64_t total) {
    if constexpr (std::is_void_v<decltype(progress_(done, total))>) {
      progress_(done, total);
      return true;
    } else {
      return static_cast<bool>(progress_(done, total));
    }
  }
  static int32_t GPUMEM_CALL run(void *user_data, uint64_t done, uint64_t total) noexcept {
    auto &self = *static_cast<ProgressCall *>(user_data);
#ifdef __cpp_exceptions
    try {
      return self.goes_on(done, total) ? 0 : 1;
    } catch (...) {
      self.thrown_ = std::current_exception();
      return 1;
    }
#else
    return self.goes_on(done, total) ? 0 : 1;
#endif
  }

  Progress &progress_;
#ifdef __cpp_exceptions
  std::exception_ptr thrown_;
#endif
};

/// Makes a call with the options and a progress function. What that throws comes first: it is why the call was cancelled.
template <class Desc, class Progress, class Function>
void with_progress(const Desc &desc, Progress &progress, OnError on_error, const Function &function) {
  ProgressCall<Progress> call(progress);
  const Desc full = call.in(desc);
  const auto c = full.c();
  Attempt attempt(on_error);
  const gpumem_status status = function(&c, attempt.error());
  call.rethrow();
  attempt.done(status);
}

template <class Progress, class>
void ByHand<InstanceRef>::copy_file(const CopyFileDesc &desc, Progress &&progress, OnError on_error) const {
  copy_file(desc, progress, nullptr, on_error);
}

template <class Progress, class>
void ByHand<InstanceRef>::copy_file(const CopyFileDesc &desc, Progress &&progress,
                                    gpumem_copy_file_info *out_info, OnError on_error) const {
  const gpumem_instance instance = static_cast<const InstanceRef *>(this)->get();
  with_progress(desc, progress, on_error,
                [instance, out_info](const gpumem_copy_file_desc *c, gpumem_error *error) {
                  return gpumem_copy_file(instance, c, out_info, error);
                });
}

template <class Progress, class>
void ByHand<BufferRef>::sleep(const SleepDesc &desc, Progress &&progress, OnError on_error) const {
  const gpumem_buffer buffer = static_cast<const BufferRef *>(this)->get();
  with_progress(desc, progress, on_error, [buffer](const gpumem_sleep_desc *c, gpumem_error *error) {
    return gpumem_buffer_sleep(buffer, c, error);
  });
}

template <class Progress, class>
void ByHand<BufferRef>::wake(const WakeDesc &desc, Progress &&progress, OnError on_error) const {
  const gpumem_buffer buffer = static_cast<const BufferRef *>(this)->get();
  with_progress(desc, progress, on_error, [buffer](const gpumem_wake_desc *c, gpumem_error *error) {
    return gpumem_buffer_wake(buffer, c, error);
  });
}

template <class Object>
struct BufferCalls {
  static int32_t GPUMEM_CALL before_sleep(void *object, gpumem_buffer buffer) noexcept {
    return static_cast<Object *>(object)->before_sleep(BufferRef(buffer)) ? 0 : 1;
  }
  static void GPUMEM_CALL after_wake(void *object, gpumem_buffer buffer, uint64_t generation) noexcept {
    static_cast<Object *>(object)->after_wake(BufferRef(buffer), generation);
  }
};

template <class Object, class>
void ByHand<BufferRef>::set_callbacks(Object &object, OnError on_error) const {
  gpumem_buffer_callbacks callbacks = GPUMEM_BUFFER_CALLBACKS_INIT;
  callbacks.before_sleep = &BufferCalls<Object>::before_sleep;
  callbacks.after_wake = &BufferCalls<Object>::after_wake;
  callbacks.user_data = &object;
  Attempt attempt(on_error);
  attempt.done(
      gpumem_buffer_set_callbacks(static_cast<const BufferRef *>(this)->get(), &callbacks, attempt.error()));
}

template <class Progress, class>
void ByHand<GroupRef>::sleep(const SleepDesc &desc, Progress &&progress, OnError on_error) const {
  const gpumem_group group = static_cast<const GroupRef *>(this)->get();
  with_progress(desc, progress, on_error, [group](const gpumem_sleep_desc *c, gpumem_error *error) {
    return gpumem_group_sleep(group, c, error);
  });
}

template <class Progress, class>
void ByHand<GroupRef>::wake(const WakeDesc &desc, Progress &&progress, OnError on_error) const {
  const gpumem_group group = static_cast<const GroupRef *>(this)->get();
  with_progress(desc, progress, on_error, [group](const gpumem_wake_desc *c, gpumem_error *error) {
    return gpumem_group_wake(group, c, error);
  });
}

inline std::optional<ImportedEntry> ByHand<LinkRef>::import_next(const char *name, uint64_t after_version,
                                                                 uint64_t timeout_ns, const ImportDesc &desc,
                                                                 OnError on_error) const {
  Attempt attempt(on_error);
  const gpumem_import_desc c_desc = desc.c();
  ImportedEntry next;
  gpumem_memory made = nullptr;
  if (!attempt.ready(gpumem_link_import_next(static_cast<const LinkRef *>(this)->get(), name, after_version,
                                             timeout_ns, &c_desc, &next.entry, &next.pointer, &made,
                                             attempt.error())))
    return std::nullopt;
  next.memory.reset(made);
  return next;
}

inline std::optional<ImportedEntry> ByHand<LinkRef>::import_next(const char *name, uint64_t after_version,
                                                                 uint64_t timeout_ns,
                                                                 OnError on_error) const {
  return import_next(name, after_version, timeout_ns, ImportDesc(), on_error);
}

inline void ByHand<PoolRef>::alloc_batch(span<const uint64_t> sizes, span<void *> pointers,
                                         Handle<gpumem_stream> stream, OnError on_error) const {
  Attempt attempt(on_error);
  if (pointers.size() < sizes.size()) {
    return attempt.refuse(GPUMEM_ERROR_INVALID_ARGUMENT, "alloc_batch",
                          "there are fewer pointers than sizes; make room for one each");
  }
  attempt.done(gpumem_pool_alloc_batch(static_cast<const PoolRef *>(this)->get(), sizes.data(), sizes.size(),
                                       stream.get(), pointers.data(), attempt.error()));
}

template <class T>
Block<T> ByHand<PoolRef>::alloc_elements(size_t count, Handle<gpumem_stream> stream, OnError on_error) const {
  static_assert(is_bytes<T>, "elements must be trivially copyable");
  Attempt attempt(on_error);
  if (count > SIZE_MAX / sizeof(T)) {
    attempt.refuse(GPUMEM_ERROR_INVALID_ARGUMENT, "alloc_elements",
                   "so many elements have more bytes than there are addresses");
    return {};
  }
  const gpumem_pool pool = static_cast<const PoolRef *>(this)->get();
  void *pointer = nullptr;
  if (!attempt.done(gpumem_pool_alloc(pool, count * sizeof(T), stream.get(), &pointer, attempt.error())))
    return {};
  return Block<T>(pool, stream.get(), {static_cast<T *>(pointer), count});
}

inline void ByHand<PoolRef>::set_callback(std::nullptr_t, OnError on_error) const {
  Attempt attempt(on_error);
  attempt.done(
      gpumem_pool_set_callback(static_cast<const PoolRef *>(this)->get(), nullptr, nullptr, attempt.error()));
}

template <class T>
span<T> ByHand<HostKernel>::view(device_span<T> elements, OnError on_error) const {
  constexpr gpumem_access access = std::is_const_v<T> ? GPUMEM_ACCESS_READ : GPUMEM_ACCESS_READWRITE;
  void *const pointer = static_cast<const HostKernel *>(this)->view(untyped(elements.data()),
                                                                    elements.size_bytes(), access, on_error);
  return {static_cast<T *>(pointer), pointer == nullptr ? 0 : elements.size()};
}

/// The whole text of which `write(buffer, capacity, &required, error)` writes what fits.
template <class Write>
std::string whole_text(OnError on_error, Write write) {
  std::string text;
  uint64_t required = 1;
  // What lives may grow between two calls.
  while (text.size() < required) {
    text.resize(required);
    Attempt attempt(on_error);
    if (!attempt.done(write(text.data(), text.size(), &required, attempt.error()))) return {};
  }
  text.resize(required - 1);
  return text;
}

inline std::string ByHand<InstanceRef>::report(OnError on_error) const {
  const gpumem_instance instance = static_cast<const InstanceRef *>(this)->get();
  return whole_text(on_error,
                    [=](char *buffer, uint64_t capacity, uint64_t *out_required, gpumem_error *error) {
                      return gpumem_stats_report(instance, buffer, capacity, out_required, error);
                    });
}

inline std::string ByHand<InstanceRef>::snapshot(OnError on_error) const {
  const gpumem_instance instance = static_cast<const InstanceRef *>(this)->get();
  return whole_text(on_error,
                    [=](char *buffer, uint64_t capacity, uint64_t *out_required, gpumem_error *error) {
                      return gpumem_stats_snapshot(instance, buffer, capacity, out_required, error);
                    });
}

inline uint32_t ByHand<InstanceRef>::share_fds(const gpumem_share_handle &handle, span<int32_t> fds,
                                               OnError on_error) const {
  Attempt attempt(on_error);
  uint32_t count = 0;
  attempt.done(gpumem_share_get_fds(static_cast<const InstanceRef *>(this)->get(), &handle, fds.data(),
                                    static_cast<uint32_t>(fds.size()), &count, attempt.error()));
  return count;
}

inline HostAccess ByHand<InstanceRef>::host_access(const void *pointer, OnError on_error) const {
  const gpumem_instance instance = static_cast<const InstanceRef *>(this)->get();
  Attempt attempt(on_error);
  if (!attempt.done(gpumem_managed_begin_host_access(instance, pointer, attempt.error()))) return {};
  return HostAccess(instance, pointer);
}

inline MemoryAmounts ByHand<Device>::memory(OnError on_error) const {
  Attempt attempt(on_error);
  MemoryAmounts amounts;
  attempt.done(gpumem_device_get_memory(static_cast<const Device *>(this)->get(), &amounts.free,
                                        &amounts.total, attempt.error()));
  return amounts;
}

inline Granularity ByHand<Device>::granularity(const PhysicalDesc &desc, OnError on_error) const {
  Attempt attempt(on_error);
  const gpumem_physical_desc c = desc.c();
  Granularity units;
  attempt.done(gpumem_physical_get_granularity(static_cast<const Device *>(this)->get(), &c, &units.minimum,
                                               &units.recommended, attempt.error()));
  return units;
}

}  // namespace detail

}  // namespace GPUMEM_HPP_FORM
}  // namespace gpumem

#endif
