// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which sanitizers a test is built with. Clang and GCC say it in different ways, and only Clang names all of
// them.
#pragma once

namespace gpumem::test {

#if defined(__has_feature)
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
inline constexpr bool kUndefinedSanitizer = __has_feature(undefined_behavior_sanitizer);
#else
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline constexpr bool kUndefinedSanitizer = false;
#endif

}  // namespace gpumem::test
