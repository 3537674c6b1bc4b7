// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The answer of a backend to the question whether a device can do something.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "gpumem/capability.h"

namespace gpumem::backend {

struct Capability {
  gpumem_answer_type type = GPUMEM_ANSWER_TYPE_TRI;
  uint64_t value = 0;
  gpumem_answer_source source = GPUMEM_ANSWER_FROM_CONTRACT;
  Status status = GPUMEM_SUCCESS;  // what a call that needs it gets; not success exactly when a TRI is NO
  bool passing = false;            // the same question may get another answer later
  gpumem_native_domain native_domain = GPUMEM_NATIVE_NONE;
  int32_t native_code = 0;
  const char* native_name = "";  // texts behind pointers are constants
  const char* entry_point = "";
  char reason[256] = "";

  // What the driver or the system said.
  void set_native(const Error& error) {
    native_domain = error.native_domain;
    native_code = error.native_code;
    native_name = error.native_name;
    entry_point = error.entry_point;
  }
};

}  // namespace gpumem::backend
