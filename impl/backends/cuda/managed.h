// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Managed memory: its allocation, and the facet.
#pragma once

#include "backends/cuda/memory.h"
#include "contract/managed.h"

namespace gpumem::cuda {

Result<std::unique_ptr<backend::Memory>> create_managed(Device& device,
                                                        const backend::MemoryRequest& request);

// Newer drivers take locations, older ones devices (12.2).
inline constexpr int kTakesLocations = 12020;

class Managed final : public backend::Managed {
 public:
  explicit Managed(Device& device) : device_(device) {}

  bool concurrent() const override { return device_.traits().concurrent_managed; }
  Result<void> attach(backend::Stream& stream, const backend::Span& first, uint64_t size,
                      gpumem_attach attach) override;
  Result<bool> advise(const backend::Span& span, uint64_t size, gpumem_advice advice,
                      backend::Location location) override;
  Result<void> prefetch(backend::Stream& stream, const backend::ManagedRange& range) override;
  Result<void> prefetch_batch(backend::Stream& stream,
                              std::span<const backend::ManagedRange> ranges) override;
  Result<void> discard_batch(backend::Stream& stream, std::span<const backend::ManagedRange> ranges) override;
  Result<void> discard_and_prefetch_batch(backend::Stream& stream,
                                          std::span<const backend::ManagedRange> ranges) override;
  Result<backend::ManagedFacts> facts(const backend::Span& span, uint64_t size) override;

 private:
  Device& device_;
};

}  // namespace gpumem::cuda
