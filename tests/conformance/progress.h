// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A progress function that remembers what it was told, and cancels when it is asked to.
#pragma once

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "harness.h"

namespace conformance {

struct Progress {
  std::vector<std::pair<uint64_t, uint64_t>> told;
  size_t cancel_at = SIZE_MAX;  // the number of the call
  bool elsewhere = false;       // on another thread than the caller's
  std::thread::id caller = std::this_thread::get_id();
  std::function<void()> also;

  static int32_t GPUMEM_CALL call(void* user_data, uint64_t done, uint64_t total) {
    auto* const self = static_cast<Progress*>(user_data);
    self->told.emplace_back(done, total);
    self->elsewhere = self->elsewhere || std::this_thread::get_id() != self->caller;
    if (self->also) self->also();
    return self->told.size() > self->cancel_at ? 1 : 0;
  }
  template <class Desc>
  Desc in(Desc desc) {
    desc.progress = call;
    desc.user_data = this;
    return desc;
  }
  void expect_complete(uint64_t total) const {
    ASSERT_GE(told.size(), 2u);
    EXPECT_EQ(told.front().first, 0u);
    EXPECT_EQ(told.back().first, total);
    for (size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i].second, total);
      EXPECT_TRUE(i == 0 || told[i].first > told[i - 1].first) << "call " << i;
    }
    EXPECT_FALSE(elsewhere);
  }
};

}  // namespace conformance
