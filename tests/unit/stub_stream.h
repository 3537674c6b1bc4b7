// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A stream that does nothing, for tests that override what they use.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "contract/fence.h"
#include "contract/stream.h"

namespace gpumem::test {

inline Error unused() { return make_error(GPUMEM_ERROR_UNSUPPORTED, "no test needs it"); }

class StubStream : public backend::Stream {
 public:
  void* native() const override { return nullptr; }
  int32_t priority() const override { return 0; }
  uint64_t identity() const override { return 0; }
  Result<bool> is_capturing() override { return false; }
  Result<backend::Capture> capture() override { return backend::Capture{}; }
  const void* cpu_view(const backend::Span&) override { return nullptr; }
  Result<void> copy(const backend::CopySegment&) override { return unused(); }
  backend::FillWay way_of_fill(const backend::Span&) override { return backend::FillWay::kEnqueue; }
  Result<void> fill(const backend::FillSegment&) override { return unused(); }
  Result<void> wait_event(backend::Event&) override { return unused(); }
  Result<std::shared_ptr<backend::Fence>> fence() override { return unused(); }
  Result<void> launch_host_function(gpumem_host_function, void*, bool) override { return unused(); }
  Result<void> capture_host_function(gpumem_host_function, void*, void (*)(void*)) override {
    return unused();
  }
  Result<void> write_value(const backend::Span&, uint64_t, uint32_t) override { return unused(); }
  Result<void> wait_value(const backend::Span&, uint64_t, uint32_t, gpumem_wait_condition) override {
    return unused();
  }
  Result<bool> query() override { return unused(); }
  Result<bool> synchronize(uint64_t) override { return unused(); }
  Result<void> drain() override { return {}; }
  Result<void> release() override { return {}; }
};

}  // namespace gpumem::test
