// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The frame of every entry point: decodes the arguments, runs the core and returns a status. No exception
// leaves it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "base/result.h"
#include "base/text.h"
#include "core/object/handles.h"
#include "core/object/log.h"
#include "core/object/precedence.h"
#include "platform/thread.h"
#include "platform/thread_record.h"

namespace gpumem::capi {

// The largest plausible struct_size; more means an uninitialised field.
inline constexpr size_t kStructSizeMax = 4096;

// Size of a struct in the first release that had it: the least that a caller may pass. A struct that grows
// after a release gets a specialisation with the old number.
template <class S>
inline constexpr size_t kFirstSize = sizeof(S);

template <class Handle>
uint64_t handle_value(Handle handle) {
  return address_of(handle);
}
template <class Handle>
Handle make_handle(uint64_t value) {
  return static_cast<Handle>(pointer_to(value));
}

// Checks the arguments of one call and keeps the failure that counts.
class Decoder {
 public:
  Decoder() : record_(platform::thread_record()) {}

  // While the returned object lives, messages begin with the name of this argument, or of its entry `index`
  // if given.
  static constexpr uint64_t kWhole = UINT64_MAX;
  [[nodiscard]] auto inside(const char* part, uint64_t index = kWhole) {
    part_ = part;
    index_ = index;
    return Cleanup([this] { part_ = nullptr; });
  }

  // A bad value; the message says what is wrong and what to do.
  [[gnu::format(printf, 2, 3), gnu::cold]] void refuse(const char* format, ...);

  // Refuses a number that the enum does not have, or that is not in `allowed`, a list of names. `prefix` is
  // the enum's.
  [[gnu::cold]] void not_a_value(const char* what, const char* prefix, int32_t value,
                                 const char* allowed = nullptr);

  void not_null(const void* pointer, const char* name) {
    if (pointer == nullptr) refuse("%s is NULL", name);
  }

  // COM-1, COM-2.
  void size(uint64_t bytes) {
    if (bytes == 0) refuse("the size is 0; ask for at least one byte");
    size_or_zero(bytes, "size");
  }
  void size_or_zero(uint64_t bytes, const char* what) {
    if (bytes > kSizeMax)
      refuse("the %s of %llu bytes exceeds 2^63-1", what, static_cast<unsigned long long>(bytes));
  }

  // The object of a handle; empty if there is none, and then done() fails.
  template <class T, class Handle>
  core::Ref<T> object(Handle handle) {
    return find(handle_value(handle), T::kType).template as<T>();
  }
  // The same inlined, for call_briefly().
  template <class T, class Handle>
  [[gnu::always_inline]] core::Ref<T> object_briefly(Handle handle) {
    core::Ref<T> found = core::acquire<T>(record_, handle_value(handle));
    if (!found) [[unlikely]]
      verdict_.note(core::handles::refusal(handle_value(handle), T::kType));
    return found;
  }

  // A struct that the caller filled: a copy in which what an older caller does not have is 0.
  template <class S>
  S input(const S* given, const char* name) {
    S copy{};
    if (given == nullptr) {
      not_null(given, name);
    } else if (check_size(given, given->struct_size, sizeof(S), kFirstSize<S>, name)) {
      std::memcpy(&copy, given, given->struct_size < sizeof(S) ? given->struct_size : sizeof(S));
    }
    return copy;
  }
  // The same for a struct that may be NULL, which means defaults.
  template <class S>
  S optional_input(const S* given, const char* name) {
    return given == nullptr ? S{} : input(given, name);
  }

  // A struct that receives an answer.
  template <class S>
  void output(const S* given, const char* name) {
    not_null(given, name);
    if (given != nullptr) check_size(given, given->struct_size, sizeof(S), kFirstSize<S>, name);
  }

  // The name of an object; empty for NULL.
  std::string name(const char* given);

  Result<void> done() const {
    if (!verdict_) return verdict_.error();
    return {};
  }

 private:
  core::Ref<core::Object> find(uint64_t handle, core::Type type);

  // The size is almost always this version's.
  bool check_size(const void* given, size_t size, size_t known, size_t first, const char* name) {
    return size == known || check_other_size(given, size, known, first, name);
  }
  bool check_other_size(const void* given, size_t size, size_t known, size_t first, const char* name);

  platform::ThreadRecord& record_;
  core::Verdict verdict_;
  const char* part_ = nullptr;
  uint64_t index_ = kWhole;
};

// Writes an answer to a struct of the size that the caller knows; what this version does not know stays 0.
template <class S>
void answer(S* out, S value) {
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, out->struct_size < sizeof(S) ? out->struct_size : sizeof(S));
}

template <size_t N>
void copy_text(char (&out)[N], const char* text) {
  const size_t length = std::strlen(text);
  const size_t kept = length < N ? length : whole_characters(text, N - 1);
  std::memcpy(out, text, kept);
  out[kept] = '\0';
}

inline bool takes_detail(const gpumem_error* error) {
  return error->struct_size >= kFirstSize<gpumem_error> && error->struct_size <= kStructSizeMax;
}

inline void clear_error(gpumem_error* error, Status status) {
  error->status = status;
  error->native_domain = GPUMEM_NATIVE_NONE;
  error->native_code = 0;
  error->native_name[0] = error->function[0] = error->entry_point[0] = error->message[0] = '\0';
}

// The status for an invalid `error` struct: the detail goes only to the log.
[[gnu::cold]] Status refuse_detail(const char* function, const gpumem_error* error) noexcept;
[[gnu::cold]] Status fail(const char* function, gpumem_error* error, const Error& failure) noexcept;
// The same with the exception that is being handled.
[[gnu::cold]] Status fail_caught(const char* function, gpumem_error* error) noexcept;

// Runs the body of an entry point: `Result<Status> body(Decoder&)`. The body writes outputs after everything
// succeeded. A call that succeeds builds no error. For calls that enqueue or ask, and so meet no cancellation
// point: holding cancellation off costs as much as a tenth of them. Inlined on demand, because the room for
// errors in the frame keeps the compiler from it.
template <class Body>
[[gnu::always_inline]] inline Status call_briefly(const char* function, gpumem_error* error,
                                                  Body body) noexcept {
  if (error != nullptr && !takes_detail(error)) [[unlikely]]
    return refuse_detail(function, error);
  try {
    Decoder decode;
    const Result<Status> result = body(decode);
    if (!result) [[unlikely]]
      return fail(function, error, result.error());
    if (error != nullptr) clear_error(error, result.value());
    return result.value();
  } catch (...) {
    return fail_caught(function, error);
  }
}

// A body without its type, so that the frame of a call is compiled once.
using Step = Result<Status> (*)(void* body, Decoder& decode);
Status run(const char* function, gpumem_error* error, Step step, void* body) noexcept;

// The same for a call that may wait, or whose driver calls may.
template <class Body>
Status call(const char* function, gpumem_error* error, Body body) noexcept {
  const Step step = [](void* erased, Decoder& decode) { return (*static_cast<Body*>(erased))(decode); };
  return run(function, error, step, &body);
}

// The fast path of a call that only reads records: takes no lock and writes only the thread's own cache line.
// `body(process)` returns whether it has answered; if not, the caller takes the full path, which reports
// errors.
template <class Body>
[[gnu::always_inline]] inline bool look(gpumem_error* error, Body body) noexcept {
  platform::ThreadRecord* const record = platform::thread_record_or_null;
  const uint32_t process = platform::known_process_epoch();  // a record's is never 0
  if (record == nullptr || record->process.load(std::memory_order_relaxed) != process) [[unlikely]]
    return false;
  if (error != nullptr && !takes_detail(error)) [[unlikely]]
    return false;
  {
    const platform::Look look(*record);
    if (!body(process)) return false;
  }
  if (error != nullptr) clear_error(error, GPUMEM_SUCCESS);
  return true;
}

// The object of a live handle, inside look(); or null.
template <class T, class Handle>
T* peek(Handle handle, uint32_t process) noexcept {
  return static_cast<T*>(core::handles::look_up(handle_value(handle), T::kType, process));
}

// Whether a struct that receives an answer has this version's size, as the short way needs it.
template <class S>
bool has_own_size(const S* out) noexcept {
  return out != nullptr && out->struct_size == sizeof(S);
}

}  // namespace gpumem::capi
