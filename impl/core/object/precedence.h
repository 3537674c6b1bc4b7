// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which failure a call reports when several things are wrong (COM-17): the one whose status stands first
// here.
#pragma once

#include <array>
#include <optional>

#include "base/result.h"

namespace gpumem::core {

// Where a failure was found. Bounds are INVALID_ARGUMENT too, but rank after failures to find the memory.
enum class Found { kByValue, kByBounds };

struct Precedence {
  Status status;
  int rank;
  Found found = Found::kByValue;
};

// Of statuses with one rank, the failure that was found first wins.
inline constexpr std::array kPrecedence{
    Precedence{GPUMEM_ERROR_FORKED, 0},
    Precedence{GPUMEM_ERROR_CLOSED, 1},
    Precedence{GPUMEM_ERROR_INVALID_ARGUMENT, 2},
    Precedence{GPUMEM_ERROR_STALE_HANDLE, 3},
    Precedence{GPUMEM_ERROR_NOT_FOUND, 4},
    Precedence{GPUMEM_ERROR_WRONG_KIND, 4},
    Precedence{GPUMEM_ERROR_INVALID_ARGUMENT, 5, Found::kByBounds},
    Precedence{GPUMEM_ERROR_DEVICE_LOST, 6},
    Precedence{GPUMEM_ERROR_INVALID_STATE, 7},
    Precedence{GPUMEM_ERROR_NO_ACCESS, 8},
    Precedence{GPUMEM_ERROR_ALREADY_EXISTS, 9},
    Precedence{GPUMEM_ERROR_BUSY, 9},
    Precedence{GPUMEM_ERROR_UNSUPPORTED, 10},
    Precedence{GPUMEM_ERROR_SYMBOL_MISSING, 10},
    Precedence{GPUMEM_ERROR_LIMIT_EXCEEDED, 11},
};
inline constexpr int kPrecedenceOfResources = 12;  // and of whatever else can go wrong

constexpr int precedence_of(Status status, Found found) {
  for (const Precedence& row : kPrecedence) {
    if (row.status == status && row.found == found) return row.rank;
  }
  return found == Found::kByBounds ? precedence_of(status, Found::kByValue) : kPrecedenceOfResources;
}

// Keeps the failure with the highest precedence.
class Verdict {
 public:
  Verdict() {}  // a defaulted one would clear the room for the error
  [[gnu::cold, gnu::noinline]] void note(const Error& error, Found found = Found::kByValue) {
    const int rank = precedence_of(error.status, found);
    if (error_ && rank >= rank_) return;
    error_ = error;
    rank_ = rank;
  }
  void note(const Result<void>& result, Found found = Found::kByValue) {
    if (!result) [[unlikely]]
      note(result.error(), found);
  }

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
  int rank_ = 0;
};

}  // namespace gpumem::core
