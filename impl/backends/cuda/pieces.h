// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Batches of small copies. The driver takes as long for a copy of a few bytes as for one of thousands; one
// launch of a kernel copies kLaunch of them.
#pragma once

#include <span>

#include "backends/cuda/device.h"
#include "contract/stream.h"

namespace gpumem::cuda {

class Pieces {
 public:
  static constexpr size_t kFew = 8;  // fewer are copied one by one: a launch takes as long as some copies
  static constexpr uint64_t kLargest = uint64_t{256} << 10;  // above, a copy takes longer than its call

  explicit Pieces(Device& device) : device_(device) {}

  // Finds the kernel of the device's context, and loads it if there is none and the context is `fresh`:
  // loading waits for all work of the context, and holds up the calls of other threads meanwhile (measured:
  // docs/measured/copies.md). Without it the driver copies.
  void open(bool fresh);
  // No call is under way.
  void close();

  // How kFew pieces and more are copied.
  enum class Way { kKernel, kBatch, kOneByOne };
  Way way() const;

  // As backend::Stream::copy_pieces(). `captured`: the stream is.
  Result<void> copy(CUstream stream, bool captured, std::span<const backend::Piece> pieces, size_t* done);

 private:
  static constexpr size_t kLaunch = 170;  // what the parameters of a kernel hold, 4,096 bytes in all
  static constexpr size_t kBatch = 512;   // of the driver's

  Outcome launch(CUstream stream, std::span<const backend::Piece> pieces);
  Outcome batch(CUstream stream, std::span<const backend::Piece> pieces);

  Device& device_;
  CUfunction kernel_ = nullptr;
};

}  // namespace gpumem::cuda
