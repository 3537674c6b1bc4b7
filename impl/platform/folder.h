// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include "base/result.h"

namespace gpumem::platform {

// A folder that only this user may use: made if it is not there, PERMISSION_DENIED if others may write to it.
Result<void> make_private_folder(const std::string& path);
// The same for one that is used if it is there. NOT_FOUND.
Result<void> check_private_folder(const std::string& path);
Result<std::string> current_folder();

}  // namespace gpumem::platform
