// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Names and English texts of values of errno. glibc has them since 2.32. A library that is built for an older
// one takes them where it runs, if they are there.
#pragma once

#include <cstring>
#include <span>

#if !__GLIBC_PREREQ(2, 32)
extern "C" {
[[gnu::weak]] const char* strerrorname_np(int value) noexcept;
[[gnu::weak]] const char* strerrordesc_np(int value) noexcept;
}
#endif

namespace gpumem {

using ErrnoText = const char* (*)(int);

// Such as "EPERM"; "" if it is not known.
inline const char* errno_name(int value, ErrnoText known = strerrorname_np) noexcept {
  const char* const name = known != nullptr ? known(value) : nullptr;
  return name != nullptr ? name : "";
}

// With an older glibc it is in the user's language, and may lie in `buffer`.
inline const char* errno_text(int value, std::span<char> buffer, ErrnoText known = strerrordesc_np) noexcept {
  if (known == nullptr) return strerror_r(value, buffer.data(), buffer.size());
  const char* const text = known(value);
  return text != nullptr ? text : "unknown error";
}

}  // namespace gpumem
