// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Checks the arguments of a call and turns them into what the core takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "base/result.h"
#include "core/object/handles.h"
#include "core/object/precedence.h"
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

  // COM-1. `prefix` is that of the names in `known`.
  void flags(uint64_t given, uint64_t known, const char* prefix) {
    const auto unknown = static_cast<unsigned long long>(given & ~known);
    if (unknown != 0) refuse("the flags 0x%llx are no %s values", unknown, prefix);
  }

  // COM-1, COM-2.
  void size(uint64_t bytes, const char* what = "size") {
    if (bytes == 0) refuse("the %s is 0; ask for at least one byte", what);
    size_or_zero(bytes, what);
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

}  // namespace gpumem::capi
