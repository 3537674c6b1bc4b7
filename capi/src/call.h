// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The frame of every entry point: decodes the arguments, runs the core and returns a status. No exception
// leaves it.
#pragma once

#include <cstring>

#include "base/result.h"
#include "base/text.h"
#include "decode/decoder.h"
#include "platform/thread.h"
#include "platform/thread_record.h"

namespace gpumem::capi {

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

// The short way of a call: takes no lock and writes only what is the thread's own. `body()` returns whether
// it has answered; if not, the caller takes the long way, which reports errors.
template <class Body>
[[gnu::always_inline]] inline bool look(platform::ThreadRecord& record, gpumem_error* error,
                                        Body body) noexcept {
  if (error != nullptr) {
    if (!takes_detail(error)) [[unlikely]]
      return false;
    clear_error(error, GPUMEM_SUCCESS);  // now, so that the body has a register more
  }
  const platform::FirstLook look(record);
  return body();
}

// That of a call that only reads records: `body(process)`.
template <class Body>
[[gnu::always_inline]] inline bool look(gpumem_error* error, Body body) noexcept {
  platform::ThreadRecord* const record = platform::thread_record_or_null;
  const uint32_t process = platform::known_process_epoch();  // a record's is never 0
  if (record == nullptr || record->process.load(std::memory_order_relaxed) != process) [[unlikely]]
    return false;
  return look(
      *record, error, [&]() __attribute__((always_inline)) { return body(process); });
}

// That of a call that changes what the thread keeps: `body(record, process)`. Not in functions of the caller.
template <class Body>
[[gnu::always_inline]] inline bool look_to_change(gpumem_error* error, Body body) noexcept {
  platform::ThreadRecord* const record = platform::thread_record_or_null;
  const uint32_t process = platform::known_process_epoch();
  if (record == nullptr || record->short_way != process) [[unlikely]]
    return false;
  return look(
      *record, error, [&]() __attribute__((always_inline)) { return body(*record, process); });
}

// The object of a live handle, inside look(); or null.
template <class T, class Handle>
[[gnu::always_inline]] inline T* peek(Handle handle, uint32_t process) noexcept {
  return static_cast<T*>(core::handles::look_up(handle_value(handle), T::kType, process));
}

// Whether a struct that receives an answer has this version's size, as the short way needs it.
template <class S>
bool has_own_size(const S* out) noexcept {
  return out != nullptr && out->struct_size == sizeof(S);
}

}  // namespace gpumem::capi
