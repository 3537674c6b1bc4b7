// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The one list of statuses: name, cause and remedy. Documentation and command line are made from it.
#pragma once

#include <span>

#include "base/result.h"

namespace gpumem::core {

struct StatusText {
  Status status;
  const char* name;
  const char* cause;
  const char* remedy;
};

std::span<const StatusText> status_list();
const StatusText* find_status(Status status);  // null for an unknown number
// A lack of memory, of addresses, or of room within a limit.
bool lacks_room(Status status);

}  // namespace gpumem::core
