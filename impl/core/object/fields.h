// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Members of a JSON object (RFC 8259).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gpumem::core {

// What a snapshot says of an object. Does not allocate, because objects are described while others wait for
// the handle table; a member that does not fit is left out.
class Fields {
 public:
  // A text that is not UTF-8 has U+FFFD for each byte that is not.
  void add(const char* key, std::string_view text) noexcept;
  void add(const char* key, uint64_t number) noexcept;
  void add_true(const char* key) noexcept { add_raw(key, "true"); }
  void add_list(const char* key, std::span<const int32_t> numbers) noexcept;
  // As a text, since JavaScript has no numbers of 64 bits.
  void add_address(const char* key, const void* pointer) noexcept;
  // "key":value, ...
  std::string_view text() const { return {text_.data(), size_}; }

 private:
  void add_raw(const char* key, std::string_view value) noexcept;

  std::array<char, 1024> text_;
  size_t size_ = 0;
};

}  // namespace gpumem::core
