// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Bad arguments, one at a time.
#pragma once

#include <string>

#include "run.h"

namespace sequences {

// Makes each argument of each function wrong in every way, from `bases` calls that are right. Empty if all
// are answered as the model says, and none is left out.
std::string check_bad_arguments(const Options& options, size_t bases, Coverage& coverage);

}  // namespace sequences
