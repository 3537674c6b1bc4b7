// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a forked child tries: the functions of instances, devices, memory, streams, events and pools, with
// handles of its parent, and an instance of its own.
#include <cstdlib>
#include <cstring>

#include "scene.h"

namespace processes {
namespace {

constexpr uint64_t kSize = uint64_t{64} << 10;

void ok(gpumem_status status, const char* what) {
  expect_status(GPUMEM_SUCCESS, status, std::string("a child: ") + what);
}

// FORKED, or what says that the parent had ended the handle before the fork.
class Refused {
 public:
  explicit Refused(const Scene& parents) : ended_(parents.ended) {}
  void operator()(const char* what, gpumem_status status) const {
    if (status != ended_) expect_status(GPUMEM_ERROR_FORKED, status, std::string("a child: ") + what);
  }

 private:
  gpumem_status ended_;
};

void try_instance(const Refused& refused, gpumem_instance instance, void* address) {
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  gpumem_device device = nullptr;
  gpumem_pointer_info of_pointer = GPUMEM_POINTER_INFO_INIT;
  gpumem_stats stats = GPUMEM_STATS_INIT;
  uint64_t required = 0;
  refused("instance_get_info", api.gpumem_instance_get_info(instance, &info, nullptr));
  refused("instance_close", api.gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, nullptr));
  refused("instance_close by force",
          api.gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr));
  refused("device_get", api.gpumem_device_get(instance, 0, &device, nullptr));
  refused("free", api.gpumem_free(instance, address, nullptr));
  refused("unregister", api.gpumem_unregister(instance, address, nullptr));
  refused("pointer_get_info", api.gpumem_pointer_get_info(instance, address, &of_pointer, nullptr));
  gpumem_access access = GPUMEM_ACCESS_NONE;
  refused("pointer_get_access",
          api.gpumem_pointer_get_access(instance, address, GPUMEM_LOCATION_HOST, 0, &access, nullptr));
  gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
  region.destination.pointer = region.source.pointer = address;
  region.width = 8;
  refused("copy_regions", api.gpumem_copy_regions(instance, &region, 1, nullptr, nullptr));
  refused("copy", api.gpumem_copy(instance, address, address, 8, nullptr, nullptr));
  refused("copy_2d", api.gpumem_copy_2d(instance, address, 8, address, 8, 8, 2, nullptr, nullptr));
  refused("fill", api.gpumem_fill(instance, address, 8, 0, 1, nullptr));
  refused("fill_2d", api.gpumem_fill_2d(instance, address, 8, 8, 2, 0, 1, nullptr));
  refused("stats_get", api.gpumem_stats_get(instance, &stats, nullptr));
  gpumem_kind_stats of_kind = GPUMEM_KIND_STATS_INIT;
  refused("stats_get_kind", api.gpumem_stats_get_kind(instance, GPUMEM_KIND_DEVICE, &of_kind, nullptr));
  refused("stats_reset_peaks", api.gpumem_stats_reset_peaks(instance, nullptr));
  refused("stats_report", api.gpumem_stats_report(instance, nullptr, 0, &required, nullptr));
  refused("stats_snapshot", api.gpumem_stats_snapshot(instance, nullptr, 0, &required, nullptr));
  refused("host_fail_step", api.gpumem_host_fail_step(instance, 1, 0, nullptr));
  gpumem_pool_block_info of_block = GPUMEM_POOL_BLOCK_INFO_INIT;
  refused("pool_get_block_info", api.gpumem_pool_get_block_info(instance, address, &of_block, nullptr));
  refused("pool_free_pointer", api.gpumem_pool_free_pointer(instance, address, nullptr, nullptr));
}

void try_device(const Refused& refused, gpumem_device device, void* address) {
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  gpumem_capability_info capability = GPUMEM_CAPABILITY_INFO_INIT;
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_PINNED;
  desc.size = kSize;
  gpumem_memory memory = nullptr;
  gpumem_stream stream = nullptr;
  gpumem_event event = nullptr;
  uint64_t bytes = 0;
  uint32_t possible = 0;
  void* pointer = nullptr;
  refused("device_get_info", api.gpumem_device_get_info(device, &info, nullptr));
  refused("device_get_memory", api.gpumem_device_get_memory(device, &bytes, nullptr, nullptr));
  refused("device_trim_graphs", api.gpumem_device_trim_graphs(device, &bytes, nullptr));
  refused("device_can_access_peer", api.gpumem_device_can_access_peer(device, device, &possible, nullptr));
  refused("device_enable_peer_access", api.gpumem_device_enable_peer_access(device, device, nullptr));
  refused("device_disable_peer_access", api.gpumem_device_disable_peer_access(device, device, nullptr));
  refused("device_get_capability",
          api.gpumem_device_get_capability(device, GPUMEM_CAPABILITY_UVA, nullptr, &capability, nullptr));
  refused("memory_create", api.gpumem_memory_create(device, &desc, &memory, nullptr));
  refused("malloc", api.gpumem_malloc(device, GPUMEM_KIND_DEVICE, kSize, &pointer, nullptr));
  gpumem_register_desc registration = GPUMEM_REGISTER_DESC_INIT;
  registration.pointer = address;
  registration.size = kSize;
  refused("memory_register", api.gpumem_memory_register(device, &registration, &memory, nullptr));
  refused("register", api.gpumem_register(device, address, kSize, 0, nullptr));
  refused("pointer_get_device_pointer",
          api.gpumem_pointer_get_device_pointer(device, address, &pointer, nullptr));
  refused("stream_create", api.gpumem_stream_create(device, nullptr, &stream, nullptr));
  refused("stream_wrap", api.gpumem_stream_wrap(device, nullptr, &stream, nullptr));
  refused("event_create", api.gpumem_event_create(device, nullptr, &event, nullptr));
  refused("event_wrap", api.gpumem_event_wrap(device, nullptr, 0, &event, nullptr));
  refused("host_native_stream_create", api.gpumem_host_native_stream_create(device, &pointer, nullptr));
  refused("host_native_stream_destroy", api.gpumem_host_native_stream_destroy(device, address, nullptr));
  refused("host_device_lose", api.gpumem_host_device_lose(device, nullptr));
  refused("host_foreign_alloc",
          api.gpumem_host_foreign_alloc(device, GPUMEM_KIND_PINNED, kSize, &pointer, nullptr));
  refused("host_foreign_free", api.gpumem_host_foreign_free(device, address, nullptr));
  gpumem_pool pool = nullptr;
  refused("pool_create", api.gpumem_pool_create(device, nullptr, &pool, nullptr));
  refused("host_foreign_peer_access", api.gpumem_host_foreign_peer_access(device, device, 1, nullptr));
}

void try_objects(const Refused& refused, const Scene& parents) {
  const auto nothing = [](void*) {};
  const auto no_kernel = [](gpumem_host_kernel, void*) {};
  const gpumem_stream stream = parents.stream;
  const gpumem_event event = parents.event;
  void* const address = parents.device_bytes;
  gpumem_stream_info stream_info = GPUMEM_STREAM_INFO_INIT;
  gpumem_event_info event_info = GPUMEM_EVENT_INFO_INIT;
  int64_t nanoseconds = 0;
  for (const gpumem_memory memory : {parents.memory, parents.pinned, parents.registered}) {
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    refused("memory_get_info", api.gpumem_memory_get_info(memory, &info, nullptr));
    refused("memory_destroy", api.gpumem_memory_destroy(memory, nullptr));
  }
  refused("stream_get_info", api.gpumem_stream_get_info(stream, &stream_info, nullptr));
  refused("stream_query", api.gpumem_stream_query(stream, nullptr));
  refused("stream_synchronize", api.gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr));
  refused("stream_wait_event", api.gpumem_stream_wait_event(stream, event, nullptr));
  refused("stream_launch_host_function",
          api.gpumem_stream_launch_host_function(stream, nothing, nullptr, nullptr));
  refused("stream_write_value", api.gpumem_stream_write_value(stream, address, 1, 4, nullptr));
  refused("stream_wait_value", api.gpumem_stream_wait_value(stream, address, 1, 4, GPUMEM_WAIT_EQ, nullptr));
  gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
  region.destination.memory = parents.memory;
  region.source.memory = parents.pinned;
  region.width = 8;
  refused("copy_async", api.gpumem_copy_async(stream, address, parents.pinned_bytes, 8, nullptr, nullptr));
  refused("copy_2d_async",
          api.gpumem_copy_2d_async(stream, address, 8, parents.pinned_bytes, 8, 8, 2, nullptr, nullptr));
  refused("copy_regions_async", api.gpumem_copy_regions_async(stream, &region, 1, nullptr, nullptr));
  refused("fill_async", api.gpumem_fill_async(stream, address, 8, 0, 1, nullptr));
  refused("fill_2d_async", api.gpumem_fill_2d_async(stream, address, 8, 8, 2, 0, 1, nullptr));
  refused("host_launch", api.gpumem_host_launch(stream, no_kernel, nullptr, nullptr));
  refused("host_stream_set_capturing", api.gpumem_host_stream_set_capturing(stream, 1, nullptr));
  refused("event_get_info", api.gpumem_event_get_info(event, &event_info, nullptr));
  refused("event_record", api.gpumem_event_record(event, stream, nullptr));
  refused("event_query", api.gpumem_event_query(event, nullptr));
  refused("event_synchronize", api.gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, nullptr));
  refused("event_get_elapsed_time", api.gpumem_event_get_elapsed_time(event, event, &nanoseconds, nullptr));
  refused("event_destroy", api.gpumem_event_destroy(event, nullptr));
  refused("stream_destroy", api.gpumem_stream_destroy(stream, nullptr));
}

void try_pool(const Refused& refused, gpumem_pool pool, void* block, gpumem_stream stream) {
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  gpumem_pool_class_info of_class = GPUMEM_POOL_CLASS_INFO_INIT;
  const uint64_t size = 64;
  uint64_t capacity = 0;
  void* pointer = nullptr;
  const auto no_more = [](void*, gpumem_pool, uint64_t) { return int32_t{0}; };
  refused("pool_alloc", api.gpumem_pool_alloc(pool, size, nullptr, &pointer, nullptr));
  refused("pool_alloc in a stream", api.gpumem_pool_alloc(pool, size, stream, &pointer, nullptr));
  refused("pool_alloc_aligned", api.gpumem_pool_alloc_aligned(pool, size, 64, nullptr, &pointer, nullptr));
  refused("pool_try_alloc", api.gpumem_pool_try_alloc(pool, size, 0, nullptr, &pointer, nullptr, nullptr));
  refused("pool_alloc_batch", api.gpumem_pool_alloc_batch(pool, &size, 1, nullptr, &pointer, nullptr));
  refused("pool_alloc_native", api.gpumem_pool_alloc_native(pool, size, nullptr, &pointer, nullptr));
  refused("pool_free", api.gpumem_pool_free(pool, block, nullptr, nullptr));
  refused("pool_free in a stream", api.gpumem_pool_free(pool, block, stream, nullptr));
  refused("pool_free_sized", api.gpumem_pool_free_sized(pool, block, size, nullptr, nullptr));
  refused("pool_free_batch", api.gpumem_pool_free_batch(pool, &block, 1, nullptr, nullptr));
  refused("pool_free_native", api.gpumem_pool_free_native(pool, block, nullptr, nullptr));
  refused("pool_record_use", api.gpumem_pool_record_use(pool, block, stream, nullptr));
  refused("pool_release_capture", api.gpumem_pool_release_capture(pool, 1, nullptr, nullptr));
  refused("pool_trim", api.gpumem_pool_trim(pool, 0, nullptr, nullptr));
  refused("pool_capacity_for", api.gpumem_pool_capacity_for(pool, &size, 1, &capacity, nullptr));
  refused("pool_set_limit", api.gpumem_pool_set_limit(pool, 0, nullptr));
  refused("pool_set_release_threshold", api.gpumem_pool_set_release_threshold(pool, 0, nullptr));
  refused("pool_get_info", api.gpumem_pool_get_info(pool, &info, nullptr));
  refused("pool_get_class_info", api.gpumem_pool_get_class_info(pool, 0, &of_class, nullptr));
  refused("pool_reset_peaks", api.gpumem_pool_reset_peaks(pool, nullptr));
  refused("pool_set_callback", api.gpumem_pool_set_callback(pool, no_more, nullptr, nullptr));
  refused("pool_destroy", api.gpumem_pool_destroy(pool, nullptr));
}

void try_default_instance(const Scene& parents) {
  const bool possible = parents.default_backend == GPUMEM_BACKEND_HOST || !parents.driver_initialised;
  gpumem_instance own = nullptr;
  expect_status(possible ? GPUMEM_SUCCESS : GPUMEM_ERROR_FORKED, api.gpumem_instance_default(&own, nullptr),
                "a child: instance_default");
  if (possible) expect(own != parents.instance, "a child has a default instance of its own");
}

}  // namespace

void try_everything(const Scene& parents) {
  if (parents.inside_log_function) return;
  const Refused refused(parents);
  unsigned char byte = 0;
  void* const address = parents.device_bytes != nullptr ? parents.device_bytes : &byte;
  if (parents.instance != nullptr) try_instance(refused, parents.instance, address);
  if (parents.device != nullptr) {
    try_device(refused, parents.device, address);
    try_objects(refused, parents);
    if (parents.pool != nullptr) try_pool(refused, parents.pool, parents.block, parents.stream);
  }
  // What needs no handle goes on.
  expect(std::strcmp(api.gpumem_status_name(GPUMEM_ERROR_FORKED), "GPUMEM_ERROR_FORKED") == 0, "status_name");
  ok(api.gpumem_memory_destroy(nullptr, nullptr), "memory_destroy of NULL");
  if (parents.inside_host_function) return;
  try_default_instance(parents);
  use_own_instance();
}

void use_own_instance() {
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_HOST;
  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
  gpumem_stream stream = nullptr;
  gpumem_event event = nullptr;
  gpumem_pool pool = nullptr;
  void* on_device = nullptr;
  void* pinned = nullptr;
  void* block = nullptr;
  ok(api.gpumem_instance_open(&desc, &instance, nullptr), "instance_open");
  ok(api.gpumem_device_get(instance, 0, &device, nullptr), "device_get");
  ok(api.gpumem_malloc(device, GPUMEM_KIND_DEVICE, kSize, &on_device, nullptr), "malloc");
  ok(api.gpumem_malloc(device, GPUMEM_KIND_PINNED, kSize, &pinned, nullptr), "malloc");
  std::vector<unsigned char> lent(kSize);
  ok(api.gpumem_register(device, lent.data(), kSize, 0, nullptr), "register");
  ok(api.gpumem_stream_create(device, nullptr, &stream, nullptr), "stream_create");
  ok(api.gpumem_event_create(device, nullptr, &event, nullptr), "event_create");
  ok(api.gpumem_pool_create(device, nullptr, &pool, nullptr), "pool_create");
  ok(api.gpumem_pool_alloc(pool, kSize, stream, &block, nullptr), "pool_alloc");
  static bool ran = false;
  const auto run = [](void*) { ran = true; };
  ok(api.gpumem_fill_async(stream, block, kSize, 0x3c, 1, nullptr), "fill");
  ok(api.gpumem_copy_async(stream, on_device, block, kSize, nullptr, nullptr), "copy");
  ok(api.gpumem_pool_free(pool, block, stream, nullptr), "pool_free");
  ok(api.gpumem_copy_async(stream, pinned, on_device, kSize, nullptr, nullptr), "copy");
  ok(api.gpumem_stream_launch_host_function(stream, run, nullptr, nullptr), "launch_host_function");
  ok(api.gpumem_event_record(event, stream, nullptr), "event_record");
  ok(api.gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, nullptr), "event_synchronize");
  ok(api.gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr), "stream_synchronize");
  expect(ran, "the host function of a child's own stream has run");
  const std::vector<unsigned char> expected(kSize, 0x3c);
  expect(std::memcmp(pinned, expected.data(), kSize) == 0, "a child's own copy is right");
  ok(api.gpumem_pool_destroy(pool, nullptr), "pool_destroy");
  ok(api.gpumem_event_destroy(event, nullptr), "event_destroy");
  ok(api.gpumem_stream_destroy(stream, nullptr), "stream_destroy");
  ok(api.gpumem_unregister(instance, lent.data(), nullptr), "unregister");
  ok(api.gpumem_free(instance, pinned, nullptr), "free");
  ok(api.gpumem_free(instance, on_device, nullptr), "free");
  ok(api.gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, nullptr), "instance_close");
}

}  // namespace processes
