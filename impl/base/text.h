// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Texts of a fixed size that came from a caller or are shown to one.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace gpumem {

// How many bytes of the first `length` are whole characters. A text that is not UTF-8 loses at most 3 bytes.
inline size_t whole_characters(const char* text, size_t length) {
  size_t start = length;
  while (start > 0 && length - start < 4) {
    const auto byte = static_cast<unsigned char>(text[--start]);
    if ((byte & 0xC0) == 0x80) continue;  // inside a character
    const size_t needed = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return needed > length - start ? start : length;
  }
  return length;
}

// What a count adds to the word behind it.
constexpr const char* plural(uint64_t count) { return count == 1 ? "" : "s"; }

// Like vsnprintf, but a text that does not fit ends with a whole UTF-8 character.
[[gnu::format(printf, 3, 0)]] inline void format_text(char* out, size_t size, const char* format,
                                                      va_list arguments) {
  const int length = std::vsnprintf(out, size, format, arguments);
  if (length >= 0 && static_cast<size_t>(length) >= size) out[whole_characters(out, size - 1)] = '\0';
}

inline bool is_control(char character) {
  return static_cast<unsigned char>(character) < 0x20 || character == 0x7f;
}

// A text of somebody else's between quotes, as C would write it: on one line, and cut after some 100 bytes.
class Quoted {
 public:
  explicit Quoted(const char* given) {
    add('"');
    const size_t length = std::strlen(given);
    const size_t shown = length <= kShown ? length : whole_characters(given, kShown);
    for (size_t i = 0; i < shown; ++i) {
      const char character = given[i];
      if (is_control(character)) {
        length_ += static_cast<size_t>(std::snprintf(text_ + length_, sizeof text_ - length_, "\\x%02x",
                                                     static_cast<unsigned char>(character)));
      } else {
        if (character == '"' || character == '\\') add('\\');
        add(character);
      }
    }
    add('"');
    std::snprintf(text_ + length_, sizeof text_ - length_, "%s", shown < length ? "..." : "");
  }
  const char* text() const { return text_; }

 private:
  static constexpr size_t kShown = 100;
  void add(char character) { text_[length_++] = character; }

  size_t length_ = 0;
  char text_[4 * kShown + 8];
};

}  // namespace gpumem
