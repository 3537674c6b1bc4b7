// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The frame of every entry point: decode the arguments, run the core, answer. Nothing throws past it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/arithmetic.h"
#include "base/result.h"
#include "core/log.h"
#include "core/object.h"

namespace gpumem::capi {

// Largest struct_size that is believed; more is an uninitialised field.
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

// Checks the arguments of one call and keeps the error that the order of COM-17 puts first.
class Decoder {
 public:
  // Any condition on a value; the message says what is wrong and what to do.
  [[gnu::format(printf, 3, 4)]] void require(bool holds, const char* format, ...) {
    if (holds) return;
    Error error;
    error.status = GPUMEM_ERROR_INVALID_ARGUMENT;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error.message, sizeof error.message, format, arguments);
    va_end(arguments);
    note(error);
  }

  void not_null(const void* pointer, const char* name) { require(pointer != nullptr, "%s is NULL", name); }

  // COM-1, COM-2.
  void size(uint64_t bytes) {
    require(bytes != 0, "the size is 0; ask for at least one byte");
    require(bytes <= kSizeMax, "the size of %llu bytes is above 2^63-1",
            static_cast<unsigned long long>(bytes));
  }

  // The object of a handle; empty if there is none, and then done() fails.
  template <class T, class Handle>
  core::Ref<T> object(Handle handle) {
    auto found = core::acquire<T>(handle_value(handle));
    if (found) return std::move(*found);
    note(found.error());
    return core::Ref<T>();
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

  std::string name(const char* given) {
    if (given == nullptr) return {};
    const size_t length = strnlen(given, 64);
    require(length < 64, "the name is longer than 63 bytes");
    return std::string(given, length < 64 ? length : 0);
  }

  Result<void> done() const {
    if (error_) return *error_;
    return {};
  }

 private:
  bool check_size(const void* given, size_t size, size_t known, size_t first, const char* name) {
    if (size < first || size > kStructSizeMax) {
      require(false, "%s->struct_size is %zu, which no version has; set it up with its _INIT macro", name,
              size);
      return false;
    }
    const auto* bytes = static_cast<const unsigned char*>(given);
    for (size_t i = known; i < size; ++i) {
      if (bytes[i] == 0) continue;
      require(false, "%s has a value in byte %zu, which this version does not know; it must be 0", name, i);
      return false;
    }
    return true;
  }

  static int rank(Status status) {
    switch (status) {
      case GPUMEM_ERROR_FORKED:
        return 0;
      case GPUMEM_ERROR_CLOSED:
        return 1;
      case GPUMEM_ERROR_INVALID_ARGUMENT:
        return 2;
      default:
        return 3;
    }
  }
  void note(const Error& error) {
    if (!error_ || rank(error.status) < rank(error_->status)) error_ = error;
  }

  std::optional<Error> error_;
};

// Writes an answer to a struct of the size that the caller knows; what this version does not know stays 0.
template <class S>
void answer(S* out, S value) {
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, out->struct_size < sizeof(S) ? out->struct_size : sizeof(S));
}

template <size_t N>
void copy_text(char (&out)[N], const char* text) {
  std::snprintf(out, N, "%s", text);
}

inline void fill_error(gpumem_error* out, const char* function, const Error& error) {
  out->status = error.status;
  out->native_domain = error.native_domain;
  out->native_code = error.native_code;
  out->reserved = 0;
  copy_text(out->native_name, error.native_name);
  copy_text(out->function, function);
  copy_text(out->entry_point, error.entry_point);
  copy_text(out->message, error.message);
}

// Runs the body of an entry point: `Result<Status> body(Decoder&)`. The body writes outputs after everything
// succeeded.
template <class Body>
Status call(const char* function, gpumem_error* error, Body body) noexcept {
  if (error != nullptr &&
      (error->struct_size < kFirstSize<gpumem_error> || error->struct_size > kStructSizeMax)) {
    return GPUMEM_ERROR_INVALID_ARGUMENT;
  }
  Error failure;
  try {
    Decoder decode;
    Result<Status> result = body(decode);
    if (result) {
      if (error != nullptr) {
        error->status = *result;
        error->native_domain = GPUMEM_NATIVE_NONE;
        error->native_code = 0;
        error->native_name[0] = error->function[0] = error->entry_point[0] = error->message[0] = '\0';
      }
      return *result;
    }
    failure = result.error();
  } catch (const std::bad_alloc&) {
    failure = make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory for the library's records; free some");
  } catch (const std::system_error& problem) {
    const int code = problem.code().value();
    const char* const name = strerrorname_np(code);
    failure = make_error(code == EAGAIN ? GPUMEM_ERROR_OUT_OF_HOST_MEMORY : GPUMEM_ERROR_INTERNAL,
                         "the system refused a thread or lock: %s", problem.what())
                  .from_native(GPUMEM_NATIVE_ERRNO, code, name != nullptr ? name : "", "pthread_create");
  } catch (...) {
    failure = make_error(GPUMEM_ERROR_INTERNAL, "an unexpected exception; please report it");
  }
  core::log(GPUMEM_LOG_DEBUG, "%s: %s: %s", function, failure.entry_point, failure.message);
  if (error != nullptr) fill_error(error, function, failure);
  return failure.status;
}

}  // namespace gpumem::capi
