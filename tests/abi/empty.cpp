// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A library with no work of its own, beside which the time to load libgpumem is measured.
#include <string>

extern "C" __attribute__((visibility("default"))) int empty_library(const char* text) {
  return std::string(text).empty() ? 1 : 0;
}
