// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A fence of the library, which its C interface does not show: for a backend that is opened beneath it.
#pragma once

#include <functional>
#include <memory>

#include "raw.h"

namespace bench {

// What one thread uses of its own: a stream and the stream's fence.
struct FenceWork {
  Call mark;
  Call poll;  // for the last mark
  Call settle;
};

class FenceBench {
 public:
  virtual ~FenceBench() = default;
  virtual FenceWork thread_work() = 0;
};

// Device 0. Null where the library with the parts of gpumem is not beside this program: it is not installed.
std::unique_ptr<FenceBench> open_fence_bench(bool cuda);

// A function of that library; null as above.
void* inner_function(const char* name);

}  // namespace bench
