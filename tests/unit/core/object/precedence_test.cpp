// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which of several failures a call reports (COM-17).
#include "core/object/precedence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/object/status_list.h"

namespace gpumem::core {
namespace {

struct Failure {
  Status status;
  Found found = Found::kByValue;
};

// The order of COM-17, failures of one rank in one line.
const std::vector<std::vector<Failure>> kOrder = {
    {{GPUMEM_ERROR_FORKED}},
    {{GPUMEM_ERROR_CLOSED}},
    {{GPUMEM_ERROR_INVALID_ARGUMENT}},
    {{GPUMEM_ERROR_STALE_HANDLE}},
    {{GPUMEM_ERROR_NOT_FOUND}, {GPUMEM_ERROR_WRONG_KIND}},
    {{GPUMEM_ERROR_INVALID_ARGUMENT, Found::kByBounds}},
    {{GPUMEM_ERROR_DEVICE_LOST}},
    {{GPUMEM_ERROR_INVALID_STATE}},
    {{GPUMEM_ERROR_NO_ACCESS}},
    {{GPUMEM_ERROR_ALREADY_EXISTS}, {GPUMEM_ERROR_BUSY}},
    {{GPUMEM_ERROR_UNSUPPORTED}, {GPUMEM_ERROR_SYMBOL_MISSING}},
    {{GPUMEM_ERROR_LIMIT_EXCEEDED}},
    {{GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY},
     {GPUMEM_ERROR_OUT_OF_HOST_MEMORY},
     {GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE},
     {GPUMEM_ERROR_PERMISSION_DENIED},
     {GPUMEM_ERROR_PEER_GONE},
     {GPUMEM_ERROR_CANCELLED},
     {GPUMEM_ERROR_CONTENT_LOST},
     {GPUMEM_ERROR_NO_DEVICE},
     {GPUMEM_ERROR_DRIVER_NOT_FOUND},
     {GPUMEM_ERROR_DRIVER_TOO_OLD},
     {GPUMEM_ERROR_INTERNAL}},
};

// What a verdict tells when it was told of both, in this order.
Error decide(const Failure& first, const Failure& second) {
  Verdict verdict;
  EXPECT_TRUE(verdict);
  verdict.note(make_error(first.status, "first"), first.found);
  verdict.note(make_error(second.status, "second"), second.found);
  EXPECT_FALSE(verdict);
  EXPECT_FALSE(verdict.ok());
  return verdict.error();
}

TEST(Precedence, EveryPairInTheOrderOfTheRule) {
  for (size_t rank = 0; rank < kOrder.size(); ++rank) {
    for (size_t later_rank = rank; later_rank < kOrder.size(); ++later_rank) {
      for (const Failure& one : kOrder[rank]) {
        for (const Failure& other : kOrder[later_rank]) {
          SCOPED_TRACE(testing::Message() << one.status << " and " << other.status);
          EXPECT_EQ(decide(one, other).status, one.status);
          EXPECT_STREQ(decide(one, other).message, "first");
          // Of one rank, the failure that was found first wins.
          const Error reversed = decide(other, one);
          EXPECT_EQ(reversed.status, rank == later_rank ? other.status : one.status);
          EXPECT_STREQ(reversed.message, rank == later_rank ? "first" : "second");
        }
      }
    }
  }
}

// A new status must be given a place.
TEST(Precedence, EveryFailureHasAPlace) {
  std::set<Status> placed;
  for (const auto& rank : kOrder) {
    for (const Failure& failure : rank)
      placed.insert(failure.status);
  }
  for (const StatusText& text : status_list()) {
    EXPECT_EQ(placed.count(text.status), text.status < 0 ? 1U : 0U) << text.name;
  }
  for (const Precedence& row : kPrecedence) {
    EXPECT_LT(row.rank, kPrecedenceOfResources);
    EXPECT_NE(find_status(row.status), nullptr);
  }
}

// Only INVALID_ARGUMENT has two places.
TEST(Precedence, BoundsMatterForInvalidArgumentsAlone) {
  for (const auto& rank : kOrder) {
    for (const Failure& failure : rank) {
      const bool same =
          precedence_of(failure.status, Found::kByBounds) == precedence_of(failure.status, Found::kByValue);
      EXPECT_EQ(same, failure.status != GPUMEM_ERROR_INVALID_ARGUMENT) << failure.status;
    }
  }
}

TEST(Precedence, SuccessesAreNoFailures) {
  Verdict verdict;
  verdict.note(Result<void>());
  EXPECT_TRUE(verdict);
  verdict.note(Result<void>(make_error(GPUMEM_ERROR_BUSY, "busy")));
  verdict.note(Result<void>());
  ASSERT_FALSE(verdict);
  EXPECT_EQ(verdict.error().status, GPUMEM_ERROR_BUSY);
}

TEST(Precedence, ThreeAndMore) {
  Verdict verdict;
  for (auto rank = kOrder.rbegin(); rank != kOrder.rend(); ++rank) {
    const Failure& failure = rank->front();
    verdict.note(make_error(failure.status, "no"), failure.found);
    EXPECT_EQ(verdict.error().status, failure.status);
  }
  for (const auto& rank : kOrder) {
    verdict.note(make_error(rank.front().status, "no"), rank.front().found);
    EXPECT_EQ(verdict.error().status, GPUMEM_ERROR_FORKED);
  }
}

}  // namespace
}  // namespace gpumem::core
