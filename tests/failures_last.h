// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints each failure once more at the end of the run: of a failed program's output, only the end is shown.
#pragma once

#include <gtest/gtest.h>

#include <iostream>
#include <sstream>
#include <string>

class FailuresLast : public testing::EmptyTestEventListener {
 public:
  // After InitGoogleTest.
  static void install() { testing::UnitTest::GetInstance()->listeners().Append(new FailuresLast); }

 private:
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  // GoogleTest holds its lock here and cannot be asked which test runs.
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed() || ++count_ > kShown) return;
    std::ostringstream text;
    text << (test_.empty() ? "outside a test" : test_) << ": ";
    if (result.file_name() != nullptr) text << result.file_name() << ":" << result.line_number() << ": ";
    text << result.message() << "\n";
    texts_ += text.str();
  }
  void OnTestEnd(const testing::TestInfo&) override { test_.clear(); }
  void OnTestProgramEnd(const testing::UnitTest&) override {
    if (count_ > 0) std::cout << "\nFailures again, " << count_ << " in all:\n" << texts_ << std::flush;
  }

  static constexpr int kShown = 10;
  int count_ = 0;
  std::string test_;
  std::string texts_;
};
