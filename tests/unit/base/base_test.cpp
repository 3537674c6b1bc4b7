// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The helpers of impl/base.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/arithmetic.h"
#include "base/caught.h"
#include "base/cleanup.h"
#include "base/errno_texts.h"
#include "base/result.h"
#include "base/text.h"

namespace gpumem {
namespace {

TEST(Arithmetic, WrapsAreSeen) {
  EXPECT_FALSE(add_wraps(UINT64_MAX - 1, 1));
  EXPECT_TRUE(add_wraps(UINT64_MAX, 1));
  uint64_t value = 7;
  EXPECT_TRUE(multiply(uint64_t{1} << 32, (uint64_t{1} << 32) - 1, &value));
  EXPECT_FALSE(multiply(uint64_t{1} << 32, uint64_t{1} << 32, &value));
  EXPECT_TRUE(add(UINT64_MAX, 0, &value));
  EXPECT_FALSE(add(UINT64_MAX, 1, &value));
}

TEST(Arithmetic, PowersOfTwoAndRounding) {
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_TRUE(is_power_of_two(1));
  EXPECT_TRUE(is_power_of_two(uint64_t{1} << 63));
  EXPECT_FALSE(is_power_of_two(12));
  EXPECT_EQ(round_up(1, 4096), 4096u);
  EXPECT_EQ(round_up(4096, 4096), 4096u);
  EXPECT_EQ(round_down(8191, 4096), 4096u);
}

TEST(Result, CarriesAValueOrAnError) {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(5));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(**good, 5);
  const Result<int> bad = make_error(GPUMEM_ERROR_BUSY, "used by %d", 3);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().status, GPUMEM_ERROR_BUSY);
  EXPECT_STREQ(bad.error().message, "used by 3");
}

TEST(Result, TryLeavesTheFunction) {
  int reached = 0;
  const auto function = [&](bool fail) -> Result<void> {
    GPUMEM_TRY(fail ? Result<void>(make_error(GPUMEM_ERROR_NOT_FOUND, "no")) : Result<void>());
    ++reached;
    return {};
  };
  EXPECT_EQ(function(true).error().status, GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(function(false).ok());
  EXPECT_EQ(reached, 1);
}

TEST(Result, LongMessagesAreCutNotOverrun) {
  const std::string text(2000, 'x');
  const Error error = make_error(GPUMEM_ERROR_INTERNAL, "%s", text.c_str());
  EXPECT_EQ(std::strlen(error.message), sizeof error.message - 1);
}

TEST(Result, AMessageIsNotCutInsideACharacter) {
  const Error fits = make_error(GPUMEM_ERROR_INTERNAL, "%s", "h\xC3\xA9");
  EXPECT_STREQ(fits.message, "h\xC3\xA9");
  for (const size_t before : {size_t{2}, size_t{3}}) {
    const std::string text = std::string(sizeof(Error::message) - before, 'x') + "\xE2\x82\xAC";
    EXPECT_EQ(std::strlen(make_error(GPUMEM_ERROR_INTERNAL, "%s", text.c_str()).message),
              sizeof(Error::message) - before)
        << before;
  }
}

TEST(Caught, WithoutAThreadItNamesTheLimits) {
  const auto caught = [](int code) {
    try {
      throw std::system_error(code, std::generic_category());
    } catch (...) {
      return caught_failure();
    }
  };
  const Error lacking = caught(EAGAIN);
  EXPECT_EQ(lacking.status, GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  EXPECT_NE(std::strstr(lacking.message, "(ulimit -u, or pids.max of the control group)"), nullptr)
      << lacking.message;
  const Error other = caught(EPERM);
  EXPECT_EQ(other.status, GPUMEM_ERROR_INTERNAL);
  EXPECT_EQ(std::strstr(other.message, "limit"), nullptr) << other.message;
}

TEST(Errno, HasNamesAndTextsAlsoWithAnOlderSystem) {
  constexpr int kNone = 100000;
  std::array<char, 128> buffer{};
#if __GLIBC_PREREQ(2, 32)
  EXPECT_STREQ(errno_name(EPERM), "EPERM");
  EXPECT_STREQ(errno_name(kNone), "");
  EXPECT_STREQ(errno_text(EPERM, buffer), "Operation not permitted");
  EXPECT_STREQ(errno_text(kNone, buffer), "unknown error");
#endif
  EXPECT_STREQ(errno_name(EPERM, nullptr), "");
  EXPECT_STREQ(errno_text(EPERM, buffer, nullptr), std::strerror(EPERM));
  EXPECT_STREQ(errno_text(kNone, buffer, nullptr), std::strerror(kNone));
}

TEST(Text, WholeCharacters) {
  const char* const mixed = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  const size_t kept[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (size_t length = 0; length <= 10; ++length)
    EXPECT_EQ(whole_characters(mixed, length), kept[length]) << length;
  // What is not UTF-8 loses at most three bytes.
  EXPECT_EQ(whole_characters("\x80\x80\x80\x80\x80\x80", 6), 6u);
}

TEST(Text, Quoted) {
  EXPECT_STREQ(Quoted("plain").text(), "\"plain\"");
  EXPECT_STREQ(Quoted("").text(), "\"\"");
  EXPECT_STREQ(Quoted("a\nb\x1b[2J\x7f").text(), "\"a\\x0ab\\x1b[2J\\x7f\"");
  EXPECT_STREQ(Quoted("say \"\\\"").text(), "\"say \\\"\\\\\\\"\"");
  EXPECT_EQ(std::string(Quoted(std::string(100, 'x').c_str()).text()), '"' + std::string(100, 'x') + '"');
  EXPECT_EQ(std::string(Quoted(std::string(5000, '\1').c_str()).text()).size(), 400u + 2 + 3);
  EXPECT_EQ(std::string(Quoted((std::string(99, 'x') + "\xC3\xA9").c_str()).text()),
            '"' + std::string(99, 'x') + "\"...");
}

TEST(Cleanup, RunsUnlessDismissed) {
  int runs = 0;
  {
    const Cleanup undo([&] { ++runs; });
  }
  EXPECT_EQ(runs, 1);
  {
    Cleanup undo([&] { ++runs; });
    undo.dismiss();
  }
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace gpumem
