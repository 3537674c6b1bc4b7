// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What most programs of GoogleTest include, for the build to parse once.
#include "../impl/precompiled.h"

#include <gtest/gtest.h>
