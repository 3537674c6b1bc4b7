// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The facet of managed memory, and the rules of devices that are not concurrent: while one is active the CPU
// must not touch what it may use. Then the user's view is inaccessible, and workers use the private one.
#pragma once

#include <mutex>
#include <vector>

#include "contract/managed.h"

namespace gpumem::host {

class HostDevice;
class Queues;
struct Allocation;
struct Shared;
using Lock = std::unique_lock<std::mutex>;

// The managed allocations of devices that are not concurrent; elsewhere it stays empty, and costs nothing.
// Guarded by Shared::mutex.
class ManagedTable {
 public:
  explicit ManagedTable(bool protects) : protects_(protects) {}
  void watch(const Queues& queues) { queues_ = &queues; }

  void add(const Lock& held, Allocation& allocation);
  void remove(const Allocation& allocation);

  // To be called when a stream may have become active or idle, or has ended.
  void refresh(const Lock& held) {
    if (!allocations_.empty()) update(held);
  }

 private:
  void update(const Lock& held);

  const bool protects_;
  const Queues* queues_ = nullptr;
  std::vector<Allocation*> allocations_;
};

class HostManaged final : public backend::Managed {
 public:
  HostManaged(Shared& shared, HostDevice& device) : shared_(shared), device_(device) {}

  bool concurrent() const override;
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
  Result<void> enqueue(backend::Stream& stream, std::span<const backend::ManagedRange> ranges, bool discards,
                       bool moves);

  Shared& shared_;
  HostDevice& device_;
};

}  // namespace gpumem::host
