// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One GPU, and the context that gpumem uses on it.
#pragma once

#include <atomic>
#include <forward_list>
#include <mutex>
#include <optional>
#include <vector>

#include "backends/cuda/error.h"
#include "backends/cuda/loader.h"
#include "contract/backend.h"

namespace gpumem::cuda {

class DriverPool;
class Fences;
class Managed;
class Pieces;
class Sharing;
class VirtualMemory;
struct Peers;

class Device final : public backend::Device {
 public:
  // `context` is the caller's, or null for the primary one. `all` has the backend's devices by ordinal.
  static Result<std::unique_ptr<Device>> open(const Driver& cu, const std::vector<CUdevice>& all,
                                              uint32_t ordinal, CUcontext context);
  ~Device() override;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& cu() const { return cu_; }
  CUdevice handle() const { return handle_; }
  CUcontext context() const { return context_; }
  bool has_primary_context() const { return retained_; }  // else the caller's
  const std::vector<CUdevice>& all() const { return all_; }

  // 0 for an attribute that is newer than the driver.
  Result<int> attribute(CUdevice_attribute attribute);

  // Constant driver attributes that decide how memory is allocated and copied.
  struct Traits {
    bool can_map_host = false;
    bool same_pointer = true;  // registered memory has one address for the CPU and all devices
    bool uses_host_page_tables = false;
    bool managed = false;
    bool concurrent_managed = false;      // the CPU may use managed memory while the device does
    bool all_concurrent_managed = false;  // on all devices
    bool near_a_node = false;             // the machine has several nodes, and the device is near one of them
  };
  const Traits& traits() const { return traits_; }

  backend::Managed* managed() override;

  Fences& fences() const { return *fences_; }
  Pieces& pieces() const { return *pieces_; }
  // The one that serves a request, made at the first.
  Result<DriverPool*> driver_pool(const backend::MemoryRequest& request);
  const std::atomic<bool>& lost_flag() const { return lost_; }
  // 0 until it could be asked for.
  std::atomic<uint64_t>& legacy_stream_id() { return legacy_stream_id_; }

  // Makes a call on a stream or event. These carry their context, so no context is made current until the
  // driver asks for one (driver 580 does not: docs/measured/frame.md).
  template <class Call>
  Outcome call_on(bool carries_context, Call call);
  // Makes a call that needs a current context: `call` gets `what`, as call_erased() gets a lambda.
  Outcome call_in_context(Outcome (*call)(void* what), void* what);
  template <class Call>
  [[gnu::cold]] static Outcome call_erased(void* call) {
    return (*static_cast<Call*>(call))();
  }

  // Records an event for await_released_streams(). The context must be current.
  void remember_work(CUstream stream);

  // Converts the outcome of a call on this device; a sticky code loses the device.
  [[gnu::format(printf, 4, 5)]] Result<void> check(Outcome outcome, Place place, const char* format, ...);
  // The same with a plain text, for calls that are made often.
  Result<void> check_enqueued(Outcome outcome, const char* what) {
    if (outcome.ok()) [[likely]]
      return {};
    return failure(outcome, what);
  }
  [[gnu::cold]] Error failure(Outcome outcome, const char* what);
  // The same for a call that releases something; on a lost device it always succeeds.
  Result<void> check_release(Outcome outcome, const char* what);

  Result<backend::MemoryAvailable> memory_available() override;
  Result<uint64_t> trim_graphs() override;
  Result<void> open_driver_pool(const backend::MemoryRequest& request) override;
  Result<void> synchronize() override;
  Result<std::unique_ptr<backend::Memory>> create_memory(const backend::MemoryRequest& request) override;
  Result<std::unique_ptr<backend::Memory>> register_memory(
      const backend::RegistrationRequest& request) override;
  Result<std::shared_ptr<backend::Stream>> create_stream(int32_t priority) override;
  Result<std::shared_ptr<backend::Stream>> wrap_stream(void* native) override;
  Result<void> await_released_streams() override;
  Result<std::shared_ptr<backend::Event>> create_event(gpumem_event_flags flags) override;
  Result<std::shared_ptr<backend::Event>> wrap_event(void* native, gpumem_event_flags flags) override;
  Result<void*> foreign_device_pointer(const void* pointer) override;
  Result<bool> can_access_peer(backend::Device& peer) override;
  Result<bool> enable_peer_access(backend::Device& peer) override;
  Result<void> disable_peer_access(backend::Device& peer) override;
  backend::Capability capability(gpumem_capability capability, backend::Device* peer) override;
  backend::VirtualMemory* vmm() override;
  backend::Sharing* sharing() override;

 private:
  Device(const Driver& cu, const std::vector<CUdevice>& all, uint32_t ordinal);
  Result<void> fill_facts();
  Result<void> fill_traits();
  Result<void> fill_managed_traits();
  Result<bool> enable_peer_access_locked(Peers& known, Device& peer);
  Result<void> disable_peer_access_locked(Peers& known, Device& peer);
  void drop_peer(Peers& known, CUcontext& held);
  void drop_all_peers();
  bool in_host_function();
  backend::Capability try_peer_access(Device& peer);
  backend::Capability vmm_capability(gpumem_capability capability);
  backend::Capability share_capability(gpumem_capability capability);

  const Driver& cu_;
  const std::vector<CUdevice> all_;
  const CUdevice handle_;
  CUcontext context_ = nullptr;
  bool retained_ = false;
  std::atomic<uint64_t> legacy_stream_id_{0};
  Traits traits_;
  std::atomic<bool> needs_current_{false};  // also calls on what carries its context
  std::mutex released_mutex_;
  std::vector<CUevent> released_;  // recorded at the end of streams that were released with work pending
  const std::unique_ptr<Fences> fences_;
  const std::unique_ptr<Managed> managed_;
  const std::unique_ptr<Pieces> pieces_;
  const std::unique_ptr<VirtualMemory> virtual_memory_;
  const std::unique_ptr<Sharing> sharing_;
  std::mutex driver_pools_mutex_;
  std::forward_list<DriverPool> driver_pools_;
  // By ordinal: the peer's context that this device holds access to, or null. Guarded by the mutex of Peers.
  std::vector<CUcontext> held_peers_;
};

// Makes the device's context current for a scope, and the caller's again at its end (COM-9). Where it is
// current already, the driver is asked for nothing more.
class Scope {
 public:
  explicit Scope(Device& device) : Scope(device, device.context()) {}
  // The same with another context of the device.
  Scope(Device& device, CUcontext context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  Outcome outcome() const { return pushed_; }
  Result<void> entered();
  // Releasing is tried even where the context of a lost device is gone.
  Result<void> entered_for_release();

 private:
  Device& device_;
  Outcome pushed_;
  bool pops_ = false;
};

template <class Call>
Outcome Device::call_on(bool carries_context, Call call) {
  if (carries_context && !needs_current_.load(std::memory_order_relaxed)) [[likely]] {
    const Outcome outcome = call();
    if (outcome.code != CUDA_ERROR_INVALID_CONTEXT) [[likely]]
      return outcome;
    needs_current_.store(true, std::memory_order_relaxed);
  }
  // A copy, so that the call above keeps what it needs in registers.
  Call again = call;
  return call_in_context(&call_erased<Call>, &again);
}

// Relaxes the thread's capture mode, for driver calls that would otherwise invalidate the capture of any
// stream (COM-28). Those are allocations, releases, queries and waits; copies, fills, records and stream
// waits are not among them (measured: docs/measured/driver-facts.md).
class Relaxed {
 public:
  explicit Relaxed(const Driver& cu) : cu_(cu) { cu_.ThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() {
    if (mode_ != CU_STREAM_CAPTURE_MODE_RELAXED) cu_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  const Driver& cu_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the mode to swap with
};

// Scope and Relaxed together. Within a scope of the same context, entering it makes no driver call.
class RelaxedScope {
 public:
  explicit RelaxedScope(Device& device) : RelaxedScope(device, device.context()) {}
  RelaxedScope(Device& device, CUcontext context);
  ~RelaxedScope();
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;

  Result<void> entered() { return within_ ? Result<void>() : scope_->entered(); }
  Result<void> entered_for_release() { return within_ ? Result<void>() : scope_->entered_for_release(); }

 private:
  const CUcontext outer_;
  const bool within_;
  std::optional<Scope> scope_;
  std::optional<Relaxed> relaxed_;  // ends before the context is switched back
};

// Whether the driver rejected a call before doing anything. A release that fails in another way has still
// happened, because drivers also return errors of earlier work; it must not be repeated.
bool refused(Outcome outcome);

}  // namespace gpumem::cuda
