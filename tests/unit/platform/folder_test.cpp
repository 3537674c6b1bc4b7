// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Folders that addresses and files lie in.
#include "platform/folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "process_support.h"

namespace gpumem::platform {
namespace {

TEST(Folder, OneThatWasRemovedIsNotFound) {
  EXPECT_EQ(test::exit_code_of([] {
              char path[] = "/tmp/gpumem-folder-XXXXXX";
              if (mkdtemp(path) == nullptr || chdir(path) != 0 || rmdir(path) != 0) return 1;
              const auto here = current_folder();
              if (here || here.error().status != GPUMEM_ERROR_NOT_FOUND) return 2;
              return here.error().native_code == ENOENT ? 5 : 3;
            }),
            5);
}

}  // namespace
}  // namespace gpumem::platform
