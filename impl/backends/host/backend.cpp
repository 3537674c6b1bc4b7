// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/backend.h"

#include <atomic>

#include "backends/host/current_device.h"
#include "backends/host/host_backend.h"
#include "backends/host/memory.h"
#include "backends/host/stream.h"
#include "base/text.h"
#include "platform/numa.h"

namespace gpumem::host {

namespace {

thread_local int32_t current_device = -1;

// Ids of foreign memory: unique in the process, and distinct from those that core assigns (UVA-4).
constinit std::atomic<uint64_t> next_foreign_id{uint64_t{1} << 63};

}  // namespace

int32_t set_current_device(int32_t ordinal) { return std::exchange(current_device, ordinal); }

backend::ProbeFacts probe() {
  return {GPUMEM_BACKEND_HOST, 0, Options().device_count, "host (CPU and operating system)"};
}

Result<std::unique_ptr<backend::Backend>> open(const backend::OpenRequest& request) {
  auto options = check_options(request.host);
  if (!options) return options.error();
  return std::unique_ptr<backend::Backend>(std::make_unique<HostBackend>(*options));
}

HostBackend::HostBackend(const Options& options) : shared_(options) {
  shared_.managed.watch(queues_);
  for (uint32_t ordinal = 0; ordinal < options.device_count; ++ordinal) {
    devices_.push_back(std::make_unique<HostDevice>(shared_, queues_, ordinal));
  }
}

HostBackend::~HostBackend() {
  queues_.stop();
  shared_.table = AddressTable();  // memory that other code has not freed is still charged to the devices
}

bool HostBackend::has_numa_node(int32_t node) const {
  const uint32_t pretended = shared_.options.numa_nodes;
  if (pretended == 0) return platform::numa_node_exists(node);
  return node >= 0 && static_cast<uint32_t>(node) < pretended;
}

// A process that has been stopped must not keep this one from closing.
void HostBackend::stop_waiting_for_others() noexcept {
  const Lock lock(shared_.mutex);
  shared_.others_until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
}

Result<backend::PointerFacts> HostBackend::pointer_facts(const void* pointer) {
  const Lock lock(shared_.mutex);
  backend::PointerFacts facts;
  const auto allocation = shared_.table.find(pointer);
  if (allocation == nullptr || allocation->foreign_id == 0) return facts;
  const bool on_device = allocation->on_device;
  const auto ordinal = static_cast<int32_t>(allocation->device.facts().ordinal);
  facts.known = true;
  facts.location = on_device ? GPUMEM_LOCATION_DEVICE : GPUMEM_LOCATION_HOST;
  facts.location_id = on_device ? ordinal : -1;
  facts.device_ordinal = ordinal;
  facts.device_pointer = const_cast<void*>(pointer);
  facts.host_pointer = on_device ? nullptr : facts.device_pointer;
  facts.base = allocation->device_address;
  facts.size = allocation->size;
  facts.buffer_id = allocation->foreign_id;
  return facts;
}

Result<void> HostBackend::launch(backend::Stream& stream, gpumem_host_kernel_function function,
                                 void* user_data) {
  return static_cast<HostStream&>(stream).launch_kernel(function, user_data);
}

Result<void*> HostBackend::native_stream_create(backend::Device& device) {
  const CurrentDevice current(device.facts().ordinal);
  auto queue = queues_.start(static_cast<HostDevice&>(device), true);
  if (!queue) return queue.error();
  return (*queue)->handle();
}

Result<std::shared_ptr<Queue>> HostBackend::find_native(const Lock& held, backend::Device& device,
                                                        void* native) {
  auto found = queues_.find(held, static_cast<HostDevice&>(device), native);
  if (found && (*found)->made_natively()) return found;
  return make_error(GPUMEM_ERROR_NOT_FOUND, "device %u has no native stream %p", device.facts().ordinal,
                    native);
}

Result<std::shared_ptr<backend::Stream>> HostBackend::native_stream(backend::Device& device, void* native) {
  const Lock lock(shared_.mutex);
  auto found = find_native(lock, device, native);
  if (!found) return found.error();
  return std::shared_ptr<backend::Stream>(
      std::make_shared<HostStream>(shared_, lock, *found, native, 0, false));
}

Result<void> HostBackend::native_stream_destroy(backend::Device& device, void* native) {
  const CurrentDevice current(device.facts().ordinal);
  if (native == nullptr) return {};
  const Lock lock(shared_.mutex);
  auto found = find_native(lock, device, native);
  if (!found) return found.error();
  Queue& queue = **found;
  if (const uint32_t handles = queue.timeline()->handles; handles != 0) {
    return make_error(GPUMEM_ERROR_BUSY, "%u handle%s still wrap%s the native stream; destroy %s first",
                      handles, plural(handles), handles == 1 ? "s" : "", handles == 1 ? "it" : "them");
  }
  queue.retire(lock);
  shared_.managed.refresh(lock);
  return {};
}

void HostBackend::set_capturing(backend::Stream& stream, bool capturing) {
  const Lock lock(shared_.mutex);
  static constinit std::atomic<uint64_t> last{0};
  stream.expose();
  std::atomic<uint64_t>& capture = static_cast<HostStream&>(stream).queue().capture;
  if (capturing == (capture != 0)) return;
  if (!capturing) return queues_.end_capture(lock, capture);
  shared_.captures.insert(++last);
  capture = last.load();
}

void HostBackend::lose(backend::Device& device) {
  static_cast<HostDevice&>(device).lose("gpumem_host_device_lose() was called");
}

Result<void*> HostBackend::foreign_alloc(backend::Device& device, bool on_device, uint64_t size) {
  const CurrentDevice current(device.facts().ordinal);
  auto& owner = static_cast<HostDevice&>(device);
  GPUMEM_TRY(owner.require_not_lost());
  backend::MemoryRequest request;
  request.size = size;
  auto allocation = allocate(shared_, owner, request, on_device);
  if (!allocation) return allocation.error();
  (*allocation)->foreign_id = next_foreign_id++;
  const Lock lock(shared_.mutex);
  shared_.table.add(*allocation);
  return (*allocation)->device_address;
}

Result<void> HostBackend::foreign_free(backend::Device& device, void* pointer) {
  const CurrentDevice current(device.facts().ordinal);
  if (pointer == nullptr) return {};
  std::shared_ptr<Allocation> allocation;
  {
    Lock lock(shared_.mutex);
    allocation = shared_.table.find(pointer);
    if (allocation == nullptr || allocation->foreign_id == 0 || &allocation->device != &device ||
        allocation->device_address != pointer) {
      return make_error(GPUMEM_ERROR_NOT_FOUND, "device %u has no foreign memory that begins at %p",
                        device.facts().ordinal, pointer);
    }
    GPUMEM_TRY(withdraw(shared_, lock, *allocation));
  }
  let_go(shared_, *allocation);
  return {};
}

Result<void> HostBackend::foreign_peer_access(backend::Device& device, backend::Device& peer, bool enabled) {
  const CurrentDevice current(device.facts().ordinal);
  return static_cast<HostDevice&>(device).set_foreign_peer_access(static_cast<HostDevice&>(peer), enabled);
}

}  // namespace gpumem::host
