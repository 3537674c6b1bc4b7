// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Arithmetic on sizes and addresses that says when it would wrap.
#pragma once

#include <cstdint>
#include <limits>

namespace gpumem {

// Largest size that the interface takes (COM-2).
inline constexpr uint64_t kSizeMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

[[nodiscard]] constexpr bool add_wraps(uint64_t a, uint64_t b) { return a > UINT64_MAX - b; }

[[nodiscard]] inline bool multiply(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

[[nodiscard]] inline bool add(uint64_t a, uint64_t b, uint64_t* sum) {
  return !__builtin_add_overflow(a, b, sum);
}

[[nodiscard]] constexpr bool is_power_of_two(uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

[[nodiscard]] constexpr uint64_t round_down(uint64_t value, uint64_t power_of_two) {
  return value & ~(power_of_two - 1);
}

// The caller has made sure that the result does not wrap.
[[nodiscard]] constexpr uint64_t round_up(uint64_t value, uint64_t power_of_two) {
  return round_down(value + power_of_two - 1, power_of_two);
}

[[nodiscard]] inline uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

[[nodiscard]] inline void* pointer_to(uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): addresses are numbers here
}
[[nodiscard]] inline void* pointer_behind(const void* base, uint64_t offset) {
  return pointer_to(address_of(base) + offset);
}

}  // namespace gpumem
