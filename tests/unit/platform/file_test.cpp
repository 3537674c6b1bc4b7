// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Direct transfers of files where the system refuses them: to open the file so, or one transfer.
#include "platform/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "../process_support.h"

using namespace gpumem;
using platform::ProgramFile;

namespace {

constexpr uint32_t kUnit = ProgramFile::kUnit;
constexpr uint64_t kSize = 3 * kUnit - 1;
constexpr int kCannot = 77;

struct Content {
  alignas(kUnit) unsigned char bytes[3 * kUnit];

  explicit Content(unsigned first) {
    for (size_t i = 0; i < sizeof bytes; ++i)
      bytes[i] = static_cast<unsigned char>(first + i * 7);
  }
};

class DirectFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "gpumem-XXXXXX";
    file_ = mkostemp(path.data(), O_CLOEXEC);
    ASSERT_GE(file_, 0);
    const int direct = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    unlink(path.c_str());
    const Content content(1);
    ASSERT_EQ(pwrite(file_, content.bytes, sizeof content.bytes, 0), ssize_t{sizeof content.bytes});
    Content read(0);
    const bool possible = direct >= 0 && pread(direct, read.bytes, sizeof read.bytes, 0) > 0;
    if (direct >= 0) close(direct);
    if (!possible)
      GTEST_SKIP() << "the system makes no direct transfers in " << std::filesystem::temp_directory_path();
    // Then those of the library are direct, if nothing refuses them.
    ProgramFile file;
    ASSERT_TRUE(file.open(file_, false).ok());
    file.prefer_direct();
    ASSERT_TRUE(file.read(0, read.bytes, kSize, sizeof read.bytes).ok());
    ASSERT_EQ(file.direct_bytes(), kSize);
  }
  void TearDown() override { close(file_); }

  // All bytes arrive, none of them directly, and none is tried again. In a child, which has the filter.
  int exit_code_of_fallback(long number, uint32_t argument, bool write) const {
    return test::exit_code_of([&] {
      if (!test::refuse_system_call(number, EINVAL, &argument)) return kCannot;
      ProgramFile file;
      if (!file.open(file_, write)) return 1;
      file.prefer_direct();
      const Content expected(write ? 9 : 1);
      Content now(write ? 9 : 0);
      const Result<void> done =
          write ? file.write(0, now.bytes, kSize) : file.read(0, now.bytes, kSize, sizeof now.bytes);
      if (!done) return 2;
      if (file.is_direct() || file.direct_bytes() != 0) return 3;
      if (write && pread(file_, now.bytes, kSize, 0) != static_cast<ssize_t>(kSize)) return 4;
      return std::memcmp(now.bytes, expected.bytes, kSize) == 0 ? 0 : 5;
    });
  }
  static void expect_done(int exit_code) {
    if (exit_code == kCannot) GTEST_SKIP() << "this system takes no filter of system calls";
    EXPECT_EQ(exit_code, 0);
  }

  int file_ = -1;
};

TEST_F(DirectFile, AnOpeningThatIsRefused) {
  expect_done(exit_code_of_fallback(SYS_openat, O_RDONLY | O_DIRECT | O_CLOEXEC, false));
  expect_done(exit_code_of_fallback(SYS_openat, O_WRONLY | O_DIRECT | O_CLOEXEC, true));
}

// A direct read asks for whole units, a plain one for what is wanted; a direct write takes the whole ones.
TEST_F(DirectFile, ATransferThatIsRefused) {
  expect_done(exit_code_of_fallback(SYS_pread64, 3 * kUnit, false));
  expect_done(exit_code_of_fallback(SYS_pwrite64, 2 * kUnit, true));
}

}  // namespace
