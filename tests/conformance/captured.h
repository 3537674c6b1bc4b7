// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A capture of a stream into a graph, and its launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "harness.h"
#ifdef HAVE_CUDA_HEADERS
#include "cuda_raw.h"
#endif

namespace conformance {

// A stream of other code, wrapped, and what is captured in it.
class Captured {
 public:
  explicit Captured(gpumem_device device) : device_(device), native_(device) {
    gpumem_stream made = nullptr;
    EXPECT_OK(gpumem_stream_wrap(device, native_.get(), &made, why()));
    stream_ = Stream(made);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() { forget(); }
  operator gpumem_stream() const { return stream_; }  // NOLINT: stands for the handle in every call
  void* native() const { return native_.get(); }

  // Answers the capture's number. `mode` is 0 for the strictest one, to kRelaxed.
  uint64_t begin(int mode = 0) {
    if (on_host()) native_.begin_capture(stream_);
#ifdef HAVE_CUDA_HEADERS
    if (!on_host()) {
      const PrimaryContext context(ordinal_of(device_));
      EXPECT_EQ(
          raw().cuStreamBeginCapture(static_cast<CUstream>(native()), static_cast<CUstreamCaptureMode>(mode)),
          CUDA_SUCCESS);
    }
#endif
    return number();
  }
  uint64_t number() const {
    uint64_t number = 0;
    EXPECT_OK(gpumem_stream_get_capture_id(stream_, &number, why()));
    return number;
  }
  // Answers the number of nodes. On cuda the graph is instantiated so often, and can be launched if it is.
  size_t end([[maybe_unused]] size_t times = 1) {
    size_t nodes = 0;
    if (on_host()) native_.end_capture(stream_);
#ifdef HAVE_CUDA_HEADERS
    if (!on_host()) {
      const PrimaryContext context(ordinal_of(device_));
      CUgraph graph = nullptr;
      EXPECT_EQ(raw().cuStreamEndCapture(static_cast<CUstream>(native()), &graph), CUDA_SUCCESS);
      if (graph == nullptr) return 0;
      EXPECT_EQ(raw().cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
      executables_.resize(times);
      for (CUgraphExec& executable : executables_)
        EXPECT_EQ(raw().cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
      EXPECT_EQ(raw().cuGraphDestroy(graph), CUDA_SUCCESS);
    }
#endif
    return nodes;
  }
  // Launches the graph and waits. On host there is none.
  void launch([[maybe_unused]] size_t index = 0) {
#ifdef HAVE_CUDA_HEADERS
    if (on_host()) return;
    const PrimaryContext context(ordinal_of(device_));
    EXPECT_EQ(raw().cuGraphLaunch(executables_.at(index), static_cast<CUstream>(native())), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuStreamSynchronize(static_cast<CUstream>(native())), CUDA_SUCCESS);
#endif
  }
  // Of all graphs that were instantiated.
  void forget() {
#ifdef HAVE_CUDA_HEADERS
    if (executables_.empty()) return;
    const PrimaryContext context(ordinal_of(device_));
    for (const CUgraphExec executable : executables_)
      EXPECT_EQ(raw().cuGraphExecDestroy(executable), CUDA_SUCCESS);
    executables_.clear();
#endif
  }

 private:
  gpumem_device device_;
  NativeStream native_;
  Stream stream_;
#ifdef HAVE_CUDA_HEADERS
  std::vector<CUgraphExec> executables_;
#endif
};

}  // namespace conformance
