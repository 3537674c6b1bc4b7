// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The open host backend and its functions for gpumem/host.h.
#pragma once

#include <memory>
#include <vector>

#include "backends/host/device.h"
#include "backends/host/queue.h"
#include "backends/host/shared.h"
#include "contract/backend.h"

namespace gpumem::host {

class HostBackend final : public backend::Backend, public backend::Simulation {
 public:
  explicit HostBackend(const Options& options);
  ~HostBackend() override;

  gpumem_backend kind() const override { return GPUMEM_BACKEND_HOST; }
  int32_t driver_version() const override { return 0; }
  bool strict() const override { return shared_.options.strict; }
  const std::vector<std::unique_ptr<backend::Device>>& devices() const override { return devices_; }
  bool has_numa_node(int32_t node) const override;
  Result<backend::PointerFacts> pointer_facts(const void* pointer) override;
  backend::Simulation* simulation() override { return this; }
  void stop_waiting_for_others() noexcept override;

  Result<void> launch(backend::Stream& stream, gpumem_host_kernel_function function,
                      void* user_data) override;
  Result<void*> native_stream_create(backend::Device& device) override;
  Result<std::shared_ptr<backend::Stream>> native_stream(backend::Device& device, void* native) override;
  Result<void> native_stream_destroy(backend::Device& device, void* native) override;
  void set_capturing(backend::Stream& stream, bool capturing) override;
  void lose(backend::Device& device) override;
  void fail_step(uint64_t step, bool repeat) override { shared_.steps.fail(step, repeat); }
  Result<void*> foreign_alloc(backend::Device& device, bool on_device, uint64_t size) override;
  Result<void> foreign_free(backend::Device& device, void* pointer) override;
  Result<void> foreign_peer_access(backend::Device& device, backend::Device& peer, bool enabled) override;

 private:
  Result<std::shared_ptr<Queue>> find_native(const Lock& held, backend::Device& device, void* native);

  // Destroyed in reverse order, so that the threads end before anything they use.
  Shared shared_;
  std::vector<std::unique_ptr<backend::Device>> devices_;
  Queues queues_{shared_};
};

}  // namespace gpumem::host
