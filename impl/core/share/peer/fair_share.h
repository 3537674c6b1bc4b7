// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How much one user may hold of what has a limit for all of them. Of n users that hold some, itself included,
// it may hold the (n + 1)th part of what the others have left. So there is something for whoever comes next,
// whatever they hold, and the nth of n users has at least 1 of n * (n + 1) parts.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <set>

#include "base/result.h"

namespace gpumem::core {

class FairShare {
 public:
  explicit FairShare(uint32_t user) : user_(user) {}

  // What a user holds.
  void add(uint32_t user, uint64_t amount) {
    if (amount == 0) return;
    (user == user_ ? own_ : of_others_) += amount;
    if (user != user_) others_.insert(user);
  }
  uint64_t own() const { return own_; }
  uint64_t all() const { return own_ + of_others_; }
  // What this user may hold of the total: at least one, while the others have left one.
  uint64_t of(uint64_t total) const {
    const uint64_t left = total - std::min(of_others_, total);
    return std::min(left, std::max<uint64_t>(left / (others_.size() + 2), 1));
  }
  // LIMIT_EXCEEDED if it may not hold so many more when `going` of its own have gone. A request that takes no
  // more than it frees always passes, however much others hold.
  Result<void> check(const char* limit, uint64_t total, uint64_t more, uint64_t going,
                     const char* remedy) const {
    if (more <= going || own_ - going + more <= of(total)) return {};
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                      "the hub has %s = %" PRIu64 " for all users, of which user %u may have %" PRIu64
                      " now; %s, or open it with a higher limit",
                      limit, total, user_, of(total), remedy);
  }

 private:
  const uint32_t user_;
  uint64_t own_ = 0;
  uint64_t of_others_ = 0;
  std::set<uint32_t> others_;
};

}  // namespace gpumem::core
