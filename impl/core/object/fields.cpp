// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/fields.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace gpumem::core {
namespace {

// How many bytes the character at the beginning of a text has; 0 if it is not UTF-8. The ranges are those of
// table 3-7 of the Unicode Standard.
size_t character_size(std::string_view text) {
  const auto byte = [&](size_t index) {
    return index < text.size() ? static_cast<unsigned char>(text[index]) : 0;
  };
  const int first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  const int low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const int high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (size == 0 || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return size;
}

}  // namespace

void Fields::add_raw(const char* key, std::string_view value) noexcept {
  const size_t room = text_.size() - size_;
  const int length = std::snprintf(text_.data() + size_, room, "%s\"%s\":%.*s", size_ == 0 ? "" : ",", key,
                                   static_cast<int>(value.size()), value.data());
  if (length > 0 && static_cast<size_t>(length) < room) size_ += static_cast<size_t>(length);
}

void Fields::add(const char* key, std::string_view text) noexcept {
  std::array<char, std::tuple_size_v<decltype(text_)>> quoted;
  size_t length = 0;
  const auto put = [&](std::string_view part) {
    if (length + part.size() > quoted.size()) return false;
    std::memcpy(quoted.data() + length, part.data(), part.size());
    length += part.size();
    return true;
  };
  bool fits = put("\"");
  while (fits && !text.empty()) {
    const size_t size = character_size(text);
    const char first = text.front();
    if (size == 0) {
      fits = put("\xEF\xBF\xBD");
    } else if (static_cast<unsigned char>(first) < 0x20) {
      std::array<char, 8> escaped;
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(first));
      fits = put(escaped.data());
    } else {
      fits = (first != '"' && first != '\\') || put("\\");
      fits = fits && put(text.substr(0, size));
    }
    text.remove_prefix(size != 0 ? size : 1);
  }
  if (fits && put("\"")) add_raw(key, {quoted.data(), length});
}

void Fields::add(const char* key, uint64_t number) noexcept {
  std::array<char, 24> text;
  std::snprintf(text.data(), text.size(), "%" PRIu64, number);
  add_raw(key, text.data());
}

void Fields::add_list(const char* key, std::span<const int32_t> numbers) noexcept {
  std::array<char, std::tuple_size_v<decltype(text_)>> list;
  list[0] = '[';
  size_t length = 1;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t room = list.size() - length;
    const int written = std::snprintf(list.data() + length, room, i == 0 ? "%d" : ",%d", numbers[i]);
    if (written < 0 || static_cast<size_t>(written) >= room) return;
    length += static_cast<size_t>(written);
  }
  list[length] = ']';  // each number leaves room for a 0
  add_raw(key, {list.data(), length + 1});
}

void Fields::add_address(const char* key, const void* pointer) noexcept {
  std::array<char, 24> text;
  std::snprintf(text.data(), text.size(), "\"0x%" PRIxPTR "\"", reinterpret_cast<uintptr_t>(pointer));
  add_raw(key, text.data());
}

}  // namespace gpumem::core
