// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How a step reports failure inside the library: a value or an Error, never an exception of ours. Errors live
// on the stack, so that reporting one needs no memory.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/text.h"
#include "gpumem/status.h"

namespace gpumem {

using Status = gpumem_status;

// Whose limit a lack of memory has met, where the status does not say so.
enum class Limit : uint8_t { kOther, kPool, kPinBudget, kControlGroup };

// A failure with its cause. Texts behind pointers are constants.
struct Error {
  Error() { message[0] = '\0'; }
  // Copies what is there of the message. Without these, every result of a success would be copied whole.
  // Cold, so that the compiler takes every way on which a failure is passed on for one seldom gone.
  [[gnu::cold, gnu::noinline]] Error(const Error& other) noexcept { *this = other; }
  [[gnu::cold, gnu::noinline]] Error& operator=(const Error& other) noexcept {
    if (this == &other) return *this;
    status = other.status;
    limit = other.limit;
    native_domain = other.native_domain;
    native_code = other.native_code;
    native_name = other.native_name;
    entry_point = other.entry_point;
    std::memcpy(message, other.message, std::strlen(other.message) + 1);
    return *this;
  }

  Status status = GPUMEM_ERROR_INTERNAL;
  Limit limit = Limit::kOther;
  gpumem_native_domain native_domain = GPUMEM_NATIVE_NONE;
  int32_t native_code = 0;
  const char* native_name = "";
  const char* entry_point = "";
  char message[512];  // always ends; not cleared, since it is long

  Error&& with_limit(Limit met) && {
    limit = met;
    return std::move(*this);
  }
  // The same failure, with who reported it.
  Error&& from_native(gpumem_native_domain domain, int32_t code, const char* name, const char* call) && {
    native_domain = domain;
    native_code = code;
    native_name = name;
    entry_point = call;
    return std::move(*this);
  }
};

[[gnu::format(printf, 2, 3), gnu::cold]] inline Error make_error(Status status, const char* format, ...) {
  Error error;
  error.status = status;
  va_list arguments;
  va_start(arguments, format);
  format_text(error.message, sizeof error.message, format, arguments);
  va_end(arguments);
  return error;
}

// The same failure, by the same call, in other words.
[[gnu::format(printf, 2, 3), gnu::cold]] inline Error reworded(const Error& failure, const char* format,
                                                               ...) {
  Error error;
  va_list arguments;
  va_start(arguments, format);
  format_text(error.message, sizeof error.message, format, arguments);
  va_end(arguments);
  error.status = failure.status;
  error.limit = failure.limit;
  return std::move(error).from_native(failure.native_domain, failure.native_code, failure.native_name,
                                      failure.entry_point);
}

// A value of type T, or why there is none. Result<void> is a success without a value. By hand, since a
// std::variant calls through a table to move or destroy what it holds.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : ok_(true), value_(std::move(value)) {}
  Result(const Error& error) : ok_(false), error_(error) {}
  Result(Result&& other) noexcept : ok_(other.ok_) {
    static_assert(std::is_nothrow_move_constructible_v<T>);
    if (ok_) {
      std::construct_at(&value_, std::move(other.value_));
    } else {
      std::construct_at(&error_, other.error_);
    }
  }
  Result& operator=(Result&& other) noexcept {
    if (this == &other) return *this;
    std::destroy_at(this);
    return *std::construct_at(this, std::move(other));
  }
  ~Result() {
    if (ok_) std::destroy_at(&value_);
  }

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok(); }
  T& value() { return value_; }
  const T& value() const { return value_; }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const Error& error() const { return error_; }

 private:
  bool ok_;
  union {
    T value_;
    Error error_;
  };
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() : ok_(true) {}
  Result(const Error& error) : ok_(false), error_(error) {}
  Result(const Result& other) noexcept : ok_(other.ok_) {
    if (!ok_) std::construct_at(&error_, other.error_);
  }
  Result& operator=(const Result& other) noexcept {
    ok_ = other.ok_;
    if (!ok_) error_ = other.error_;
    return *this;
  }

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return error_; }

 private:
  bool ok_;
  union {
    Error error_;
  };
};

// Leaves the enclosing function with the error of a failed step.
#define GPUMEM_TRY(expression)                                                    \
  do {                                                                            \
    if (auto gpumem_try_result = (expression); !gpumem_try_result) [[unlikely]] { \
      return gpumem_try_result.error();                                           \
    }                                                                             \
  } while (false)

}  // namespace gpumem
