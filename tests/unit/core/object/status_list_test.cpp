// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The list of statuses: complete, unique, and stable in its numbers.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "core/object/status_list.h"

namespace gpumem::core {
namespace {

TEST(StatusList, NumbersAreTheOnesThatWereReleased) {
  // Numbers are never reused: this list only grows.
  const struct {
    Status status;
    const char* name;
  } released[] = {
      {0, "GPUMEM_SUCCESS"},
      {1, "GPUMEM_NOT_READY"},
      {2, "GPUMEM_NO_EFFECT"},
      {-101, "GPUMEM_ERROR_INVALID_ARGUMENT"},
      {-102, "GPUMEM_ERROR_WRONG_KIND"},
      {-103, "GPUMEM_ERROR_NOT_FOUND"},
      {-104, "GPUMEM_ERROR_ALREADY_EXISTS"},
      {-105, "GPUMEM_ERROR_STALE_HANDLE"},
      {-201, "GPUMEM_ERROR_INVALID_STATE"},
      {-202, "GPUMEM_ERROR_NO_ACCESS"},
      {-203, "GPUMEM_ERROR_BUSY"},
      {-204, "GPUMEM_ERROR_CLOSED"},
      {-205, "GPUMEM_ERROR_FORKED"},
      {-206, "GPUMEM_ERROR_PEER_GONE"},
      {-207, "GPUMEM_ERROR_DEVICE_LOST"},
      {-208, "GPUMEM_ERROR_CANCELLED"},
      {-209, "GPUMEM_ERROR_CONTENT_LOST"},
      {-301, "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY"},
      {-302, "GPUMEM_ERROR_OUT_OF_HOST_MEMORY"},
      {-303, "GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE"},
      {-304, "GPUMEM_ERROR_LIMIT_EXCEEDED"},
      {-401, "GPUMEM_ERROR_UNSUPPORTED"},
      {-402, "GPUMEM_ERROR_PERMISSION_DENIED"},
      {-403, "GPUMEM_ERROR_NO_DEVICE"},
      {-404, "GPUMEM_ERROR_DRIVER_NOT_FOUND"},
      {-405, "GPUMEM_ERROR_DRIVER_TOO_OLD"},
      {-406, "GPUMEM_ERROR_SYMBOL_MISSING"},
      {-901, "GPUMEM_ERROR_INTERNAL"},
  };
  EXPECT_EQ(status_list().size(), std::size(released));
  for (const auto& entry : released) {
    const StatusText* text = find_status(entry.status);
    ASSERT_NE(text, nullptr) << entry.name;
    EXPECT_STREQ(text->name, entry.name);
  }
}

TEST(StatusList, TextsAreOneLineAndNumbersAreUnique) {
  std::set<Status> seen;
  for (const StatusText& text : status_list()) {
    EXPECT_TRUE(seen.insert(text.status).second) << text.name;
    for (const char* line : {text.cause, text.remedy}) {
      EXPECT_GT(std::strlen(line), 10u) << text.name;
      EXPECT_EQ(std::strchr(line, '\n'), nullptr) << text.name;
      EXPECT_EQ(line[std::strlen(line) - 1], '.') << text.name;
    }
  }
  EXPECT_EQ(find_status(-1), nullptr);
}

}  // namespace
}  // namespace gpumem::core
