// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Members of a JSON object.
#include "core/object/fields.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpumem::core {
namespace {

std::string named(std::string_view name) {
  Fields fields;
  fields.add("name", name);
  return std::string(fields.text());
}

TEST(FieldsTest, Members) {
  Fields fields;
  EXPECT_EQ(fields.text(), "");
  fields.add("name", "weights");
  fields.add("size", UINT64_MAX);
  fields.add_true("wrapped");
  fields.add_address("base", reinterpret_cast<void*>(uintptr_t{0x7f00}));
  EXPECT_EQ(fields.text(), R"("name":"weights","size":18446744073709551615,"wrapped":true,"base":"0x7f00")");
}

TEST(FieldsTest, Texts) {
  EXPECT_EQ(named(""), R"("name":"")");
  EXPECT_EQ(named("a \"quoted\" \\ name"), R"("name":"a \"quoted\" \\ name")");
  EXPECT_EQ(named("two\nlines\x1f"), R"("name":"two\u000alines\u001f")");
  for (const char* const text :
       {"gr\xC3\xBC\xC3\x9F", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(named(text), "\"name\":\"" + std::string(text) + '"');
}

// Each byte that belongs to no character is replaced, and what follows it is not lost.
TEST(FieldsTest, TextsThatAreNotUtf8) {
  const std::string replaced = "\xEF\xBF\xBD";
  for (const char* const byte : {"\x80", "\xC1", "\xC3", "\xF5", "\xFF"})
    EXPECT_EQ(named(std::string(byte) + "x"), "\"name\":\"" + replaced + "x\"");
  EXPECT_EQ(named("\xE2\x82"), "\"name\":\"" + replaced + replaced + '"') << "an end in a character";
  EXPECT_EQ(named("\xC0\xAF"), "\"name\":\"" + replaced + replaced + '"') << "longer than it need be";
  EXPECT_EQ(named("\xED\xA0\x80"), "\"name\":\"" + replaced + replaced + replaced + '"') << "a surrogate";
  EXPECT_EQ(named("\xF4\x90\x80\x80").size(), 4 * replaced.size() + 9) << "beyond the last one";
}

TEST(FieldsTest, Lists) {
  Fields fields;
  fields.add_list("none", {});
  const std::vector<int32_t> some = {7, -1, INT32_MAX};
  fields.add_list("some", some);
  EXPECT_EQ(fields.text(), R"("none":[],"some":[7,-1,2147483647])");
  // As long as it may be, and longer; the closing bracket counts.
  for (const size_t count : {500U, 505U, 509U, 510U, 511U, 512U, 513U, 600U}) {
    Fields full;
    full.add_list("n", std::vector<int32_t>(count, 1));
    const bool fits = std::string(R"("n":[])").size() + 2 * count - 1 < 1024;
    EXPECT_EQ(full.text().size(), fits ? 6 + 2 * count - 1 : 0U) << count;
  }
}

TEST(FieldsTest, WhatDoesNotFitIsLeftOut) {
  Fields fields;
  fields.add("long", std::string(2000, 'x'));
  EXPECT_EQ(fields.text(), "");
  fields.add("name", std::string(1000, 'x'));
  const std::string before(fields.text());
  EXPECT_EQ(before.size(), 1009U);
  fields.add("other", std::string(20, 'y'));
  EXPECT_EQ(fields.text(), before);
  fields.add("n", uint64_t{7});
  EXPECT_EQ(fields.text(), before + R"(,"n":7)");
}

}  // namespace
}  // namespace gpumem::core
