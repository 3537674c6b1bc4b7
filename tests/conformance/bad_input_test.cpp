// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every public function with input that is wrong: it is answered with a status and a one-line reason, writes
// no output and changes nothing (COM-1, COM-2, COM-7, COM-8, COM-11).
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "harness.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kTooLarge = uint64_t{1} << 63;

// Calls with an output that holds a pattern, and checks that a failure leaves the pattern alone.
template <class T, class Call>
gpumem_status with_output(const Call& call) {
  T value;
  T before;
  std::memset(static_cast<void*>(&value), 0x5A, sizeof(value));
  std::memset(static_cast<void*>(&before), 0x5A, sizeof(before));
  const gpumem_status status = call(&value);
  if (status != GPUMEM_SUCCESS) {
    EXPECT_EQ(std::memcmp(&value, &before, sizeof(value)), 0) << "the output was written";
  }
  return status;
}

// The same for an output struct.
template <class T, class Call>
gpumem_status with_info(const Call& call) {
  T value;
  std::memset(static_cast<void*>(&value), 0x5A, sizeof(value));
  value.struct_size = sizeof(value);
  const T before = value;
  const gpumem_status status = call(&value);
  if (status != GPUMEM_SUCCESS) {
    EXPECT_EQ(std::memcmp(&value, &before, sizeof(value)), 0) << "the output was written";
  }
  return status;
}

// A function as far as its handle parameter is concerned; all else that it is given is right.
template <class Handle>
struct Taker {
  const char* name;
  std::function<gpumem_status(Handle)> call;
  gpumem_status with_null = GPUMEM_ERROR_INVALID_ARGUMENT;
};

struct BadCall {
  const char* what;
  std::function<gpumem_status()> call;
  gpumem_status expected = GPUMEM_ERROR_INVALID_ARGUMENT;
};

class BadInput : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    memory_ = alloc_device(device_, 64 * kKiB);
    pinned_ = alloc_pinned(device_, 64 * kKiB);
    event_ = create_event(device_);
    stream_ = create_stream(device_);
    address_ = memory_.device();
    host_ = pinned_.host();
    std::memset(host_, 0, 64 * kKiB);
    before_calls_ = counters(instance_);
  }

  void TearDown() override {
    EXPECT_TRUE(counters(instance_) == before_calls_) << "the counters changed";
    stream_ = Stream();
    event_ = Event();
    pinned_ = Memory();
    memory_ = Memory();
    Conformance::TearDown();
  }

  // Each function with a handle that is NULL, made up, of another type, and destroyed.
  template <class Handle>
  void check_handles(const std::vector<Taker<Handle>>& takers, Handle gone, gpumem_status of_gone) {
    std::vector<std::pair<std::string, Handle>> wrong = {
        {"made up", reinterpret_cast<Handle>(uintptr_t{0x1234})},
        {"all ones", reinterpret_cast<Handle>(UINTPTR_MAX)},
        {"an address", reinterpret_cast<Handle>(this)},
    };
    const auto add_mistyped = [&](const char* what, auto handle) {
      if (!std::is_same_v<decltype(handle), Handle>)
        wrong.emplace_back(what, reinterpret_cast<Handle>(handle));
    };
    add_mistyped("an instance", instance_.get());
    add_mistyped("a device", device_);
    add_mistyped("a memory", memory_.get());
    add_mistyped("a stream", stream_.get());
    add_mistyped("an event", event_.get());
    for (const Taker<Handle>& taker : takers) {
      SCOPED_TRACE(taker.name);
      EXPECT_STATUS(taker.with_null, taker.call(nullptr)) << "with NULL";
      for (const auto& [what, handle] : wrong) {
        EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, taker.call(handle)) << "with " << what;
      }
      EXPECT_STATUS(of_gone, taker.call(gone)) << "with one that is gone";
    }
  }

  void check(const std::vector<BadCall>& calls) {
    for (const BadCall& bad : calls)
      EXPECT_STATUS(bad.expected, bad.call()) << bad.what;
  }

  // A function with one struct of a size that is wrong, and of a newer caller. `call` must succeed with
  // `good`.
  template <class T>
  void check_struct(const char* name, const T& good, const std::function<gpumem_status(T*)>& call) {
    SCOPED_TRACE(name);
    struct Newer {
      T known;
      std::array<uint8_t, 64> unknown;
    } newer;
    static_assert(offsetof(Newer, unknown) == sizeof(T));
    for (const size_t size : {size_t{0}, size_t{1}, sizeof(T) - 1, SIZE_MAX}) {
      T bad = good;
      bad.struct_size = size;
      const T before = bad;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, call(&bad)) << "size " << size;
      EXPECT_EQ(std::memcmp(&bad, &before, sizeof(bad)), 0);
    }
    newer.known = good;
    newer.known.struct_size = sizeof(newer);
    newer.unknown.fill(0);
    EXPECT_OK(call(&newer.known)) << "larger, all zero";
    for (const size_t position : {size_t{0}, newer.unknown.size() - 1}) {
      newer.known = good;
      newer.known.struct_size = sizeof(newer);
      newer.unknown.fill(0);
      newer.unknown[position] = 1;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, call(&newer.known))
          << "larger, byte " << position << " not zero";
    }
  }

  // From the pinned memory to the device, by handle and by pointer.
  gpumem_copy_region good_region() const {
    gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
    region.destination.memory = memory_;
    region.source.pointer = host_;
    region.width = 16;
    return region;
  }

  Memory memory_;
  Memory pinned_;
  Event event_;
  Stream stream_;
  uint8_t* address_ = nullptr;  // of memory_
  uint8_t* host_ = nullptr;     // of pinned_
  Counters before_calls_;
};

// ---- handles ----

TEST_F(BadInput, com_11_instances) {
  const gpumem_instance closed = open_instance().release();
  ASSERT_OK(gpumem_instance_close(closed, GPUMEM_CLOSE_CHECK, nullptr, why()));
  check_handles<gpumem_instance>(
      {
          {"instance_close",
           [](gpumem_instance instance) {
             return gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, why());
           },
           GPUMEM_SUCCESS},
          {"instance_get_info",
           [](gpumem_instance instance) {
             return with_info<gpumem_instance_info>(
                 [&](auto* info) { return gpumem_instance_get_info(instance, info, why()); });
           }},
          {"device_get",
           [](gpumem_instance instance) {
             return with_output<gpumem_device>(
                 [&](gpumem_device* device) { return gpumem_device_get(instance, 0, device, why()); });
           }},
          {"free", [&](gpumem_instance instance) { return gpumem_free(instance, address_, why()); }},
          {"unregister", [&](gpumem_instance instance) { return gpumem_unregister(instance, host_, why()); }},
          {"pointer_get_info",
           [&](gpumem_instance instance) {
             return with_info<gpumem_pointer_info>(
                 [&](auto* info) { return gpumem_pointer_get_info(instance, address_, info, why()); });
           }},
          {"pointer_get_access",
           [&](gpumem_instance instance) {
             return with_output<gpumem_access>([&](gpumem_access* access) {
               return gpumem_pointer_get_access(instance, address_, GPUMEM_LOCATION_DEVICE, 0, access, why());
             });
           }},
          {"copy_regions",
           [&](gpumem_instance instance) {
             const gpumem_copy_region region = good_region();
             return with_output<uint64_t>(
                 [&](uint64_t* failed) { return gpumem_copy_regions(instance, &region, 1, failed, why()); });
           }},
          {"copy",
           [&](gpumem_instance instance) {
             return gpumem_copy(instance, address_, host_, 16, nullptr, why());
           }},
          {"copy_2d",
           [&](gpumem_instance instance) {
             return gpumem_copy_2d(instance, address_, 64, host_, 64, 16, 2, nullptr, why());
           }},
          {"fill",
           [&](gpumem_instance instance) { return gpumem_fill(instance, address_, 16, 0, 1, why()); }},
          {"fill_2d",
           [&](gpumem_instance instance) {
             return gpumem_fill_2d(instance, address_, 64, 16, 2, 0, 1, why());
           }},
          {"stats_get",
           [](gpumem_instance instance) {
             return with_info<gpumem_stats>(
                 [&](auto* now) { return gpumem_stats_get(instance, now, why()); });
           }},
          {"stats_get_kind",
           [](gpumem_instance instance) {
             return with_info<gpumem_kind_stats>(
                 [&](auto* now) { return gpumem_stats_get_kind(instance, GPUMEM_KIND_DEVICE, now, why()); });
           }},
          {"stats_reset_peaks",
           [](gpumem_instance instance) { return gpumem_stats_reset_peaks(instance, why()); }},
          {"stats_report",
           [](gpumem_instance instance) {
             return with_output<uint64_t>([&](uint64_t* required) {
               return gpumem_stats_report(instance, nullptr, 0, required, why());
             });
           }},
          {"host_fail_step",
           [](gpumem_instance instance) { return gpumem_host_fail_step(instance, 0, 0, why()); }},
      },
      closed, GPUMEM_ERROR_CLOSED);
}

TEST_F(BadInput, com_11_devices) {
  Instance other = open_instance();
  const gpumem_device gone = other.device();
  other.close();
  Pages pages(page_size());
  const gpumem_device peer = second_device() ? second_device() : device_;
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kKiB);
  check_handles<gpumem_device>(
      {
          {"device_get_info",
           [](gpumem_device device) {
             return with_info<gpumem_device_info>(
                 [&](auto* info) { return gpumem_device_get_info(device, info, why()); });
           }},
          {"device_get_memory",
           [](gpumem_device device) {
             return with_output<uint64_t>(
                 [&](uint64_t* bytes) { return gpumem_device_get_memory(device, bytes, nullptr, why()); });
           }},
          {"device_can_access_peer",
           [&](gpumem_device device) {
             return with_output<uint32_t>([&](uint32_t* possible) {
               return gpumem_device_can_access_peer(device, peer, possible, why());
             });
           }},
          {"device_can_access_peer, peer",
           [&](gpumem_device device) {
             return with_output<uint32_t>([&](uint32_t* possible) {
               return gpumem_device_can_access_peer(device_, device, possible, why());
             });
           }},
          {"device_enable_peer_access",
           [&](gpumem_device device) { return gpumem_device_enable_peer_access(device, peer, why()); }},
          {"device_enable_peer_access, peer",
           [&](gpumem_device device) { return gpumem_device_enable_peer_access(device_, device, why()); }},
          {"device_disable_peer_access",
           [&](gpumem_device device) { return gpumem_device_disable_peer_access(device, peer, why()); }},
          {"device_disable_peer_access, peer",
           [&](gpumem_device device) { return gpumem_device_disable_peer_access(device_, device, why()); }},
          {"device_get_capability",
           [](gpumem_device device) {
             return with_info<gpumem_capability_info>([&](auto* info) {
               return gpumem_device_get_capability(device, GPUMEM_CAPABILITY_UVA, nullptr, info, why());
             });
           }},
          {"device_get_capability, peer",
           [&](gpumem_device device) {
             return with_info<gpumem_capability_info>([&](auto* info) {
               return gpumem_device_get_capability(device_, GPUMEM_CAPABILITY_PEER_ACCESS, device, info,
                                                   why());
             });
           }},
          {"memory_create",
           [&](gpumem_device device) {
             return with_output<gpumem_memory>(
                 [&](gpumem_memory* memory) { return gpumem_memory_create(device, &desc, memory, why()); });
           }},
          {"malloc",
           [](gpumem_device device) {
             return with_output<void*>([&](void** pointer) {
               return gpumem_malloc(device, GPUMEM_KIND_PINNED, kKiB, pointer, why());
             });
           }},
          {"register",
           [&](gpumem_device device) { return gpumem_register(device, pages.get(), page_size(), 0, why()); }},
          {"pointer_get_device_pointer",
           [&](gpumem_device device) {
             return with_output<void*>([&](void** pointer) {
               return gpumem_pointer_get_device_pointer(device, host_, pointer, why());
             });
           }},
          {"stream_create",
           [](gpumem_device device) {
             return with_output<gpumem_stream>(
                 [&](gpumem_stream* stream) { return gpumem_stream_create(device, nullptr, stream, why()); });
           }},
          {"stream_wrap",
           [](gpumem_device device) {
             return with_output<gpumem_stream>(
                 [&](gpumem_stream* stream) { return gpumem_stream_wrap(device, nullptr, stream, why()); });
           }},
          {"event_create",
           [](gpumem_device device) {
             return with_output<gpumem_event>(
                 [&](gpumem_event* event) { return gpumem_event_create(device, nullptr, event, why()); });
           }},
          {"event_wrap",
           [&](gpumem_device device) {
             return with_output<gpumem_event>(
                 [&](gpumem_event* event) { return gpumem_event_wrap(device, &pages, 0, event, why()); });
           }},
          {"host_native_stream_create",
           [](gpumem_device device) {
             return with_output<void*>(
                 [&](void** native) { return gpumem_host_native_stream_create(device, native, why()); });
           }},
          {"host_native_stream_destroy",
           [](gpumem_device device) { return gpumem_host_native_stream_destroy(device, nullptr, why()); }},
          {"host_device_lose", [](gpumem_device device) { return gpumem_host_device_lose(device, why()); }},
          {"host_foreign_alloc",
           [](gpumem_device device) {
             return with_output<void*>([&](void** pointer) {
               return gpumem_host_foreign_alloc(device, GPUMEM_KIND_DEVICE, kKiB, pointer, why());
             });
           }},
          {"host_foreign_free",
           [](gpumem_device device) { return gpumem_host_foreign_free(device, nullptr, why()); }},
          {"host_foreign_peer_access",
           [&](gpumem_device device) { return gpumem_host_foreign_peer_access(device, peer, 1, why()); }},
          {"host_foreign_peer_access, peer",
           [&](gpumem_device device) { return gpumem_host_foreign_peer_access(device_, device, 1, why()); }},
      },
      gone, GPUMEM_ERROR_CLOSED);
}

TEST_F(BadInput, com_11_memories) {
  Memory other = alloc_pinned(device_, kKiB);
  const gpumem_memory gone = other.get();
  other.destroy();
  before_calls_ = counters(instance_);
  check_handles<gpumem_memory>(
      {
          {"memory_destroy", [](gpumem_memory memory) { return gpumem_memory_destroy(memory, why()); },
           GPUMEM_SUCCESS},
          {"memory_get_info",
           [](gpumem_memory memory) {
             return with_info<gpumem_memory_info>(
                 [&](auto* info) { return gpumem_memory_get_info(memory, info, why()); });
           }},
      },
      gone, GPUMEM_ERROR_STALE_HANDLE);
}

TEST_F(BadInput, com_11_streams) {
  Stream other = create_stream(device_);
  const gpumem_stream gone = other.get();
  other.destroy();
  const auto nothing = [](void*) {};
  const auto kernel = [](gpumem_host_kernel, void*) {};
  check_handles<gpumem_stream>(
      {
          {"stream_destroy", [](gpumem_stream stream) { return gpumem_stream_destroy(stream, why()); },
           GPUMEM_SUCCESS},
          {"stream_get_info",
           [](gpumem_stream stream) {
             return with_info<gpumem_stream_info>(
                 [&](auto* info) { return gpumem_stream_get_info(stream, info, why()); });
           }},
          {"stream_query", [](gpumem_stream stream) { return gpumem_stream_query(stream, why()); }},
          {"stream_synchronize",
           [](gpumem_stream stream) { return gpumem_stream_synchronize(stream, 0, why()); }},
          {"stream_wait_event",
           [&](gpumem_stream stream) { return gpumem_stream_wait_event(stream, event_, why()); }},
          {"stream_launch_host_function",
           [&](gpumem_stream stream) {
             return gpumem_stream_launch_host_function(stream, nothing, nullptr, why());
           }},
          {"stream_write_value",
           [&](gpumem_stream stream) { return gpumem_stream_write_value(stream, address_, 1, 4, why()); }},
          {"stream_wait_value",
           [&](gpumem_stream stream) {
             return gpumem_stream_wait_value(stream, address_, 0, 4, GPUMEM_WAIT_GEQ, why());
           }},
          {"event_record", [&](gpumem_stream stream) { return gpumem_event_record(event_, stream, why()); }},
          {"copy_async",
           [&](gpumem_stream stream) {
             return gpumem_copy_async(stream, address_, host_, 16, nullptr, why());
           }},
          {"copy_async of nothing",
           [&](gpumem_stream stream) {
             return gpumem_copy_async(stream, address_, host_, 0, nullptr, why());
           }},
          {"copy_2d_async",
           [&](gpumem_stream stream) {
             return gpumem_copy_2d_async(stream, address_, 64, host_, 64, 16, 2, nullptr, why());
           }},
          {"copy_regions_async",
           [&](gpumem_stream stream) {
             const gpumem_copy_region region = good_region();
             return with_output<uint64_t>([&](uint64_t* failed) {
               return gpumem_copy_regions_async(stream, &region, 1, failed, why());
             });
           }},
          {"copy_regions_async of none",
           [](gpumem_stream stream) {
             return gpumem_copy_regions_async(stream, nullptr, 0, nullptr, why());
           }},
          {"fill_async",
           [&](gpumem_stream stream) { return gpumem_fill_async(stream, address_, 16, 0, 1, why()); }},
          {"fill_2d_async",
           [&](gpumem_stream stream) {
             return gpumem_fill_2d_async(stream, address_, 64, 16, 2, 0, 1, why());
           }},
          {"host_launch",
           [&](gpumem_stream stream) { return gpumem_host_launch(stream, kernel, nullptr, why()); }},
          {"host_stream_set_capturing",
           [](gpumem_stream stream) { return gpumem_host_stream_set_capturing(stream, 0, why()); }},
      },
      gone, GPUMEM_ERROR_STALE_HANDLE);
}

TEST_F(BadInput, com_11_events) {
  Event other = create_event(device_);
  const gpumem_event gone = other.get();
  other.destroy();
  check_handles<gpumem_event>(
      {
          {"event_destroy", [](gpumem_event event) { return gpumem_event_destroy(event, why()); },
           GPUMEM_SUCCESS},
          {"event_get_info",
           [](gpumem_event event) {
             return with_info<gpumem_event_info>(
                 [&](auto* info) { return gpumem_event_get_info(event, info, why()); });
           }},
          {"event_record", [&](gpumem_event event) { return gpumem_event_record(event, stream_, why()); }},
          {"event_query", [](gpumem_event event) { return gpumem_event_query(event, why()); }},
          {"event_synchronize", [](gpumem_event event) { return gpumem_event_synchronize(event, 0, why()); }},
          {"event_get_elapsed_time, start",
           [&](gpumem_event event) {
             return with_output<int64_t>(
                 [&](int64_t* time) { return gpumem_event_get_elapsed_time(event, event_, time, why()); });
           }},
          {"event_get_elapsed_time, end",
           [&](gpumem_event event) {
             return with_output<int64_t>(
                 [&](int64_t* time) { return gpumem_event_get_elapsed_time(event_, event, time, why()); });
           }},
          {"stream_wait_event",
           [&](gpumem_event event) { return gpumem_stream_wait_event(stream_, event, why()); }},
      },
      gone, GPUMEM_ERROR_STALE_HANDLE);
}

TEST_F(BadInput, com_11_objects_of_another_instance) {
  const Instance other = open_instance();
  const gpumem_device their_device = other.device();
  const Stream their_stream = create_stream(their_device);
  const Event their_event = create_event(their_device);
  const Memory their_memory = alloc_device(their_device, 64);
  gpumem_copy_region to_them = good_region();
  to_them.destination.memory = their_memory;
  gpumem_copy_region from_them = good_region();
  from_them.source = to_them.destination;
  from_them.destination = good_region().source;
  gpumem_copy_region ours = good_region();
  check({
      {"copy_regions, destination",
       [&] { return gpumem_copy_regions(instance_, &to_them, 1, nullptr, why()); }},
      {"copy_regions, source", [&] { return gpumem_copy_regions(instance_, &from_them, 1, nullptr, why()); }},
      {"copy_regions_async",
       [&] { return gpumem_copy_regions_async(their_stream, &ours, 1, nullptr, why()); }},
      {"stream_wait_event", [&] { return gpumem_stream_wait_event(stream_, their_event, why()); }},
      {"event_record", [&] { return gpumem_event_record(event_, their_stream, why()); }},
      {"event_get_elapsed_time",
       [&] {
         return with_output<int64_t>(
             [&](int64_t* time) { return gpumem_event_get_elapsed_time(event_, their_event, time, why()); });
       }},
      {"can_access_peer",
       [&] {
         return with_output<uint32_t>([&](uint32_t* possible) {
           return gpumem_device_can_access_peer(device_, their_device, possible, why());
         });
       }},
      {"enable_peer_access", [&] { return gpumem_device_enable_peer_access(device_, their_device, why()); }},
      {"disable_peer_access",
       [&] { return gpumem_device_disable_peer_access(device_, their_device, why()); }},
  });
}

// ---- structs ----

TEST_F(BadInput, com_7_input_structs) {
  const gpumem_instance_desc instance_desc = [] {
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = backend();
    return desc;
  }();
  check_struct<gpumem_instance_desc>("instance_desc", instance_desc, [](gpumem_instance_desc* desc) {
    return with_output<gpumem_instance>([&](gpumem_instance* out) {
      const gpumem_status status = gpumem_instance_open(desc, out, why());
      if (status == GPUMEM_SUCCESS) Instance(*out).close();
      return status;
    });
  });
  check_struct<gpumem_host_options>("host_options", GPUMEM_HOST_OPTIONS_INIT,
                                    [](gpumem_host_options* options) {
                                      gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
                                      desc.backend = GPUMEM_BACKEND_HOST;
                                      desc.host = options;
                                      return with_output<gpumem_instance>([&](gpumem_instance* out) {
                                        const gpumem_status status = gpumem_instance_open(&desc, out, why());
                                        if (status == GPUMEM_SUCCESS) Instance(*out).close();
                                        return status;
                                      });
                                    });
  // ANY tries cuda, so it reads the options whether a driver is here or not.
  check_struct<gpumem_cuda_options>("cuda_options", GPUMEM_CUDA_OPTIONS_INIT,
                                    [](gpumem_cuda_options* options) {
                                      gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
                                      desc.backend = on_cuda() ? GPUMEM_BACKEND_CUDA : GPUMEM_BACKEND_ANY;
                                      desc.cuda = options;
                                      return with_output<gpumem_instance>([&](gpumem_instance* out) {
                                        const gpumem_status status = gpumem_instance_open(&desc, out, why());
                                        if (status == GPUMEM_SUCCESS) Instance(*out).close();
                                        return status;
                                      });
                                    });
  check_struct<gpumem_copy_region>("copy_region", good_region(), [&](gpumem_copy_region* region) {
    uint64_t failed = 77;
    const gpumem_status status = gpumem_copy_regions(instance_, region, 1, &failed, why());
    EXPECT_EQ(failed, GPUMEM_FAILED(status) ? 0u : 77u);
    return status;
  });
  check_struct<gpumem_stream_desc>("stream_desc", GPUMEM_STREAM_DESC_INIT, [&](gpumem_stream_desc* desc) {
    return with_output<gpumem_stream>([&](gpumem_stream* out) {
      const gpumem_status status = gpumem_stream_create(device_, desc, out, why());
      if (status == GPUMEM_SUCCESS) const Stream owner(*out);
      return status;
    });
  });
  check_struct<gpumem_event_desc>("event_desc", GPUMEM_EVENT_DESC_INIT, [&](gpumem_event_desc* desc) {
    return with_output<gpumem_event>([&](gpumem_event* out) {
      const gpumem_status status = gpumem_event_create(device_, desc, out, why());
      if (status == GPUMEM_SUCCESS) const Event owner(*out);
      return status;
    });
  });
  check_struct<gpumem_copy_options>("copy_options", GPUMEM_COPY_OPTIONS_INIT,
                                    [&](gpumem_copy_options* options) {
                                      return gpumem_copy(instance_, address_, host_, 16, options, why());
                                    });
  check_struct<gpumem_memory_desc>(
      "memory_desc", memory_desc(GPUMEM_KIND_DEVICE, kKiB), [&](gpumem_memory_desc* desc) {
        return with_output<gpumem_memory>([&](gpumem_memory* out) {
          const gpumem_status status = gpumem_memory_create(device_, desc, out, why());
          if (status == GPUMEM_SUCCESS) const Memory owner(*out);
          return status;
        });
      });
  Pages pages(page_size());
  check_struct<gpumem_register_desc>(
      "register_desc", register_desc(pages.get(), kKiB), [&](gpumem_register_desc* desc) {
        return with_output<gpumem_memory>([&](gpumem_memory* out) {
          const gpumem_status status = gpumem_memory_register(device_, desc, out, why());
          if (status == GPUMEM_SUCCESS) const Memory owner(*out);
          return status;
        });
      });
  // What these two make is counted.
  before_calls_ = counters(instance_);
}

TEST_F(BadInput, com_7_output_structs) {
  check_struct<gpumem_probe_info>("probe_info", GPUMEM_PROBE_INFO_INIT, [](gpumem_probe_info* info) {
    return gpumem_instance_probe(backend(), info, why());
  });
  check_struct<gpumem_instance_info>(
      "instance_info", GPUMEM_INSTANCE_INFO_INIT,
      [&](gpumem_instance_info* info) { return gpumem_instance_get_info(instance_, info, why()); });
  check_struct<gpumem_device_info>("device_info", GPUMEM_DEVICE_INFO_INIT, [&](gpumem_device_info* info) {
    return gpumem_device_get_info(device_, info, why());
  });
  check_struct<gpumem_capability_info>(
      "capability_info", GPUMEM_CAPABILITY_INFO_INIT, [&](gpumem_capability_info* info) {
        return gpumem_device_get_capability(device_, GPUMEM_CAPABILITY_UVA, nullptr, info, why());
      });
  check_struct<gpumem_memory_info>("memory_info", GPUMEM_MEMORY_INFO_INIT, [&](gpumem_memory_info* info) {
    return gpumem_memory_get_info(memory_, info, why());
  });
  check_struct<gpumem_pointer_info>("pointer_info", GPUMEM_POINTER_INFO_INIT, [&](gpumem_pointer_info* info) {
    return gpumem_pointer_get_info(instance_, address_, info, why());
  });
  check_struct<gpumem_stream_info>("stream_info", GPUMEM_STREAM_INFO_INIT, [&](gpumem_stream_info* info) {
    return gpumem_stream_get_info(stream_, info, why());
  });
  check_struct<gpumem_event_info>("event_info", GPUMEM_EVENT_INFO_INIT, [&](gpumem_event_info* info) {
    return gpumem_event_get_info(event_, info, why());
  });
  check_struct<gpumem_stats>("stats", GPUMEM_STATS_INIT,
                             [&](gpumem_stats* now) { return gpumem_stats_get(instance_, now, why()); });
  check_struct<gpumem_kind_stats>("kind_stats", GPUMEM_KIND_STATS_INIT, [&](gpumem_kind_stats* now) {
    return gpumem_stats_get_kind(instance_, GPUMEM_KIND_PINNED, now, why());
  });
  check_struct<gpumem_status_info>("status_info", GPUMEM_STATUS_INFO_INIT, [](gpumem_status_info* info) {
    return gpumem_status_get_info(GPUMEM_ERROR_BUSY, info, why());
  });
}

TEST_F(BadInput, com_7_the_error_struct) {
  gpumem_error error;
  std::memset(&error, 0x5A, sizeof(error));
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(error) - 1}) {
    error.struct_size = size;
    const gpumem_error before = error;
    EXPECT_EQ(gpumem_stats_reset_peaks(instance_, &error), GPUMEM_ERROR_INVALID_ARGUMENT) << size;
    EXPECT_EQ(gpumem_fill(instance_, address_, 16, 1, 1, &error), GPUMEM_ERROR_INVALID_ARGUMENT) << size;
    EXPECT_EQ(gpumem_status_get_info(0, nullptr, &error), GPUMEM_ERROR_INVALID_ARGUMENT) << size;
    EXPECT_EQ(std::memcmp(&error, &before, sizeof(error)), 0) << "the struct was written";
  }
  struct Newer {
    gpumem_error known = GPUMEM_ERROR_INIT;
    uint64_t unknown = 0;
  } newer;
  newer.known.struct_size = sizeof(newer);
  EXPECT_EQ(gpumem_free(instance_, &newer, &newer.known), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(newer.known.status, GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(newer.known.struct_size, sizeof(newer));
  EXPECT_EQ(newer.unknown, 0u);
  // No detail is wanted.
  EXPECT_EQ(gpumem_free(instance_, &newer, nullptr), GPUMEM_ERROR_NOT_FOUND);
}

TEST_F(BadInput, com_7_the_table) {
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_table_get(GPUMEM_VERSION, nullptr, why()));
  gpumem_table table;
  for (const size_t size : {size_t{0}, sizeof(void*), sizeof(table) - 1}) {
    std::memset(&table, 0x5A, sizeof(table));
    table.struct_size = size;
    const gpumem_table before = table;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_table_get(GPUMEM_VERSION, &table, why())) << size;
    EXPECT_EQ(std::memcmp(&table, &before, sizeof(table)), 0);
  }
  table.struct_size = sizeof(table);
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED,
                gpumem_table_get(GPUMEM_MAKE_VERSION(GPUMEM_VERSION_MAJOR + 1, 0, 0), &table, why()));
  struct Newer {
    gpumem_table known;
    void* unknown;
  } newer;
  std::memset(&newer, 0x5A, sizeof(newer));
  newer.known.struct_size = sizeof(newer);
  EXPECT_OK(gpumem_table_get(GPUMEM_VERSION, &newer.known, why()));
  EXPECT_EQ(newer.unknown, nullptr);
  ASSERT_NE(newer.known.gpumem_status_name, nullptr);
  EXPECT_STREQ(newer.known.gpumem_status_name(GPUMEM_SUCCESS), "GPUMEM_SUCCESS");
}

TEST_F(BadInput, com_7_missing_structs_and_outputs) {
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kKiB);
  Pages pages(page_size());
  const gpumem_register_desc registration = register_desc(pages.get(), kKiB);
  gpumem_memory no_memory = nullptr;
  check({
      {"status_get_info", [] { return gpumem_status_get_info(0, nullptr, why()); }},
      {"status_enumerate", [] { return gpumem_status_enumerate(0, nullptr, why()); }},
      {"capability_enumerate", [] { return gpumem_capability_enumerate(0, nullptr, why()); }},
      {"instance_open", [] { return gpumem_instance_open(nullptr, nullptr, why()); }},
      {"instance_default", [] { return gpumem_instance_default(nullptr, why()); }},
      {"instance_get_info", [&] { return gpumem_instance_get_info(instance_, nullptr, why()); }},
      {"device_get", [&] { return gpumem_device_get(instance_, 0, nullptr, why()); }},
      {"device_get_info", [&] { return gpumem_device_get_info(device_, nullptr, why()); }},
      {"device_can_access_peer",
       [&] {
         return gpumem_device_can_access_peer(device_, second_device() ? second_device() : device_, nullptr,
                                              why());
       }},
      {"device_get_capability",
       [&] { return gpumem_device_get_capability(device_, GPUMEM_CAPABILITY_UVA, nullptr, nullptr, why()); }},
      {"memory_create, output", [&] { return gpumem_memory_create(device_, &desc, nullptr, why()); }},
      {"memory_create, descriptor",
       [&] { return gpumem_memory_create(device_, nullptr, &no_memory, why()); }},
      {"memory_register, output",
       [&] { return gpumem_memory_register(device_, &registration, nullptr, why()); }},
      {"memory_register, descriptor",
       [&] { return gpumem_memory_register(device_, nullptr, &no_memory, why()); }},
      {"memory_get_info", [&] { return gpumem_memory_get_info(memory_, nullptr, why()); }},
      {"malloc", [&] { return gpumem_malloc(device_, GPUMEM_KIND_DEVICE, kKiB, nullptr, why()); }},
      {"register", [&] { return gpumem_register(device_, nullptr, kKiB, 0, why()); }},
      {"unregister", [&] { return gpumem_unregister(instance_, nullptr, why()); }},
      {"pointer_get_info", [&] { return gpumem_pointer_get_info(instance_, address_, nullptr, why()); }},
      {"pointer_get_info, pointer",
       [&] {
         return with_info<gpumem_pointer_info>(
             [&](auto* info) { return gpumem_pointer_get_info(instance_, nullptr, info, why()); });
       }},
      {"pointer_get_device_pointer",
       [&] { return gpumem_pointer_get_device_pointer(device_, host_, nullptr, why()); }},
      {"pointer_get_device_pointer, pointer",
       [&] {
         return with_output<void*>(
             [&](void** out) { return gpumem_pointer_get_device_pointer(device_, nullptr, out, why()); });
       }},
      {"stream_create", [&] { return gpumem_stream_create(device_, nullptr, nullptr, why()); }},
      {"stream_wrap", [&] { return gpumem_stream_wrap(device_, nullptr, nullptr, why()); }},
      {"stream_get_info", [&] { return gpumem_stream_get_info(stream_, nullptr, why()); }},
      {"stream_launch_host_function",
       [&] { return gpumem_stream_launch_host_function(stream_, nullptr, nullptr, why()); }},
      {"event_create", [&] { return gpumem_event_create(device_, nullptr, nullptr, why()); }},
      {"event_wrap", [&] { return gpumem_event_wrap(device_, nullptr, 0, nullptr, why()); }},
      {"event_get_info", [&] { return gpumem_event_get_info(event_, nullptr, why()); }},
      {"event_get_elapsed_time",
       [&] { return gpumem_event_get_elapsed_time(event_, event_, nullptr, why()); }},
      {"stats_get", [&] { return gpumem_stats_get(instance_, nullptr, why()); }},
      {"stats_get_kind",
       [&] { return gpumem_stats_get_kind(instance_, GPUMEM_KIND_DEVICE, nullptr, why()); }},
      {"copy_regions", [&] { return gpumem_copy_regions(instance_, nullptr, 1, nullptr, why()); }},
      {"stats_report", [&] { return gpumem_stats_report(instance_, nullptr, 16, nullptr, why()); }},
      {"host_native_stream_create",
       [&] { return gpumem_host_native_stream_create(device_, nullptr, why()); }},
      {"host_foreign_alloc",
       [&] { return gpumem_host_foreign_alloc(device_, GPUMEM_KIND_DEVICE, kKiB, nullptr, why()); }},
      {"host_launch", [&] { return gpumem_host_launch(stream_, nullptr, nullptr, why()); }},
      {"host_kernel_view", [&] { return gpumem_host_kernel_view(nullptr, host_, 1, 1, nullptr, why()); }},
  });
  // Outputs that may be left out.
  EXPECT_OK(gpumem_device_get_memory(device_, nullptr, nullptr, why()));
  EXPECT_OK(gpumem_instance_probe(backend(), nullptr, why()));
  EXPECT_OK(gpumem_stats_report(instance_, nullptr, 0, nullptr, why()));
  EXPECT_OK(gpumem_copy_regions(instance_, nullptr, 0, nullptr, why()));
}

// The options of a backend that is not opened are not looked at.
TEST_F(BadInput, com_7_options_of_another_backend) {
  gpumem_host_options host{};
  gpumem_cuda_options cuda{};
  host.struct_size = cuda.struct_size = SIZE_MAX;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = backend();
  desc.host = on_host() ? nullptr : &host;
  desc.cuda = on_host() ? &cuda : nullptr;
  gpumem_instance instance = nullptr;
  EXPECT_OK(gpumem_instance_open(&desc, &instance, why()));
  Instance(instance).close();
  // ANY may open either.
  desc.backend = GPUMEM_BACKEND_ANY;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_instance_open(&desc, &instance, why()));
}

TEST_F(BadInput, com_7_contexts_without_a_number) {
  void* context = &context;
  for (const auto& [contexts, count] : {std::pair<void* const*, uint64_t>{nullptr, 1},
                                        {&context, 0},
                                        {&context, 65},
                                        {&context, UINT64_MAX}}) {
    gpumem_cuda_options options = GPUMEM_CUDA_OPTIONS_INIT;
    options.contexts = contexts;
    options.context_count = count;
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.cuda = &options;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, with_output<gpumem_instance>([&](gpumem_instance* out) {
                    return gpumem_instance_open(&desc, out, why());
                  }));
  }
}

// ---- values ----

TEST_F(BadInput, com_1_memory_values) {
  Pages pages(4 * page_size());
  const auto create = [&](const std::function<void(gpumem_memory_desc&)>& spoil, gpumem_memory_desc desc) {
    return [this, spoil, desc] {
      gpumem_memory_desc bad = desc;
      spoil(bad);
      return with_output<gpumem_memory>(
          [&](gpumem_memory* out) { return gpumem_memory_create(device_, &bad, out, why()); });
    };
  };
  const gpumem_memory_desc device = memory_desc(GPUMEM_KIND_DEVICE, kKiB);
  const gpumem_memory_desc pinned = memory_desc(GPUMEM_KIND_PINNED, kKiB);
  std::vector<BadCall> calls;
  for (const gpumem_memory_desc& good : {device, pinned}) {
    for (const uint64_t size : {uint64_t{0}, kTooLarge, UINT64_MAX}) {
      calls.push_back({"size", create([=](gpumem_memory_desc& desc) { desc.size = size; }, good)});
    }
    for (const uint64_t alignment : {uint64_t{3}, uint64_t{384}, UINT64_MAX}) {
      calls.push_back(
          {"alignment", create([=](gpumem_memory_desc& desc) { desc.alignment = alignment; }, good)});
    }
    for (const int bit : {7, 31, 32, 63}) {
      const gpumem_memory_flags flag = uint64_t{1} << bit;
      calls.push_back(
          {"required flag", create([=](gpumem_memory_desc& desc) { desc.require = flag; }, good)});
      calls.push_back(
          {"preferred flag", create([=](gpumem_memory_desc& desc) { desc.prefer = flag; }, good)});
    }
    for (const gpumem_kind kind : {GPUMEM_KIND_UNKNOWN, GPUMEM_KIND_PAGEABLE, GPUMEM_KIND_REGISTERED,
                                   GPUMEM_KIND_FOREIGN, -1, 5, 6, 7, 8, 100, INT32_MIN}) {
      calls.push_back({"kind", create([=](gpumem_memory_desc& desc) { desc.kind = kind; }, good)});
    }
  }
  const auto enroll = [&](const std::function<void(gpumem_register_desc&)>& spoil) {
    return [&, spoil] {
      gpumem_register_desc bad = register_desc(pages.get(), page_size());
      spoil(bad);
      return with_output<gpumem_memory>(
          [&](gpumem_memory* out) { return gpumem_memory_register(device_, &bad, out, why()); });
    };
  };
  for (const uint64_t size : {uint64_t{0}, kTooLarge, UINT64_MAX}) {
    calls.push_back(
        {"size of a registration", enroll([=](gpumem_register_desc& desc) { desc.size = size; })});
  }
  for (const int bit : {2, 6, 7, 31, 32, 63}) {
    const gpumem_memory_flags flag = uint64_t{1} << bit;
    calls.push_back({"required flag of a registration",
                     enroll([=](gpumem_register_desc& desc) { desc.require = flag; })});
    calls.push_back({"preferred flag of a registration",
                     enroll([=](gpumem_register_desc& desc) { desc.prefer = flag; })});
  }
  calls.push_back(
      {"registration of NULL", enroll([](gpumem_register_desc& desc) { desc.pointer = nullptr; })});
  calls.push_back({"registration that wraps", enroll([](gpumem_register_desc& desc) {
                     desc.pointer = reinterpret_cast<void*>(UINTPTR_MAX - 100);
                   })});
  const std::string long_name(64, 'n');
  calls.push_back(
      {"name of a registration", enroll([&](gpumem_register_desc& desc) { desc.name = long_name.c_str(); })});
  for (const gpumem_kind kind : {GPUMEM_KIND_REGISTERED, GPUMEM_KIND_PAGEABLE, GPUMEM_KIND_FOREIGN, 77}) {
    calls.push_back({"malloc", [=, this] {
                       return with_output<void*>(
                           [&](void** out) { return gpumem_malloc(device_, kind, kKiB, out, why()); });
                     }});
  }
  check(calls);
}

TEST_F(BadInput, com_1_copy_and_fill_values) {
  std::vector<uint8_t> bytes(64 * kKiB);
  const auto copy_with = [&](gpumem_direction direction, gpumem_source_order order) {
    return [=, this] {
      gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
      options.direction = direction;
      options.source_order = order;
      return gpumem_copy(instance_, address_, host_, 16, &options, why());
    };
  };
  const auto copy = [&](void* destination, const void* source, uint64_t size) {
    return [=, this] { return gpumem_copy_async(stream_, destination, source, size, nullptr, why()); };
  };
  const auto copy_2d = [&](uint64_t to_pitch, uint64_t from_pitch, uint64_t width, uint64_t height) {
    return [=, this] {
      return gpumem_copy_2d_async(stream_, address_, to_pitch, host_, from_pitch, width, height, nullptr,
                                  why());
    };
  };
  const auto fill = [&](uint8_t* destination, uint64_t size, uint32_t value_size) {
    return [=, this] { return gpumem_fill_async(stream_, destination, size, 1, value_size, why()); };
  };
  const auto fill_2d = [&](uint8_t* destination, uint64_t pitch, uint64_t width, uint64_t height,
                           uint32_t value_size) {
    return [=, this] {
      return gpumem_fill_2d_async(stream_, destination, pitch, width, height, 1, value_size, why());
    };
  };
  check({
      {"direction 5", copy_with(5, 0)},
      {"direction -1", copy_with(-1, 0)},
      {"source order 3", copy_with(0, 3)},
      {"source order -1", copy_with(0, -1)},
      {"direction that contradicts", copy_with(GPUMEM_DIRECTION_DEVICE_TO_HOST, 0)},
      {"to NULL", copy(nullptr, host_, 16)},
      {"from NULL", copy(address_, nullptr, 16)},
      {"2^63 bytes", copy(address_, host_, kTooLarge)},
      {"SIZE_MAX bytes", copy(address_, host_, UINT64_MAX)},
      {"past the end of the destination", copy(address_ + 1, bytes.data(), 64 * kKiB)},
      {"past the end of the source", copy(bytes.data(), address_ + 1, 64 * kKiB)},
      {"onto itself", copy(address_, address_, 16)},
      {"overlapping", copy(address_ + 8, address_, 16)},
      {"destination pitch below width", copy_2d(31, 64, 32, 2)},
      {"source pitch below width", copy_2d(64, 31, 32, 2)},
      {"rows past the end", copy_2d(kKiB, kKiB, 32, 65)},
      {"width of 2^63", copy_2d(UINT64_MAX, UINT64_MAX, kTooLarge, 1)},
      {"rectangle that wraps", copy_2d(kTooLarge, kTooLarge, 16, 3)},
      {"height of 2^64-1", copy_2d(64, 64, 16, UINT64_MAX)},
      {"fill of NULL", fill(nullptr, 16, 1)},
      {"fill with values of 0 bytes", fill(address_, 16, 0)},
      {"fill with values of 3 bytes", fill(address_, 15, 3)},
      {"fill with values of 8 bytes", fill(address_, 16, 8)},
      {"fill that is no multiple", fill(address_, 15, 2)},
      {"fill of a misaligned address", fill(address_ + 2, 16, 4)},
      {"fill of 2^63 bytes", fill(address_, kTooLarge, 1)},
      {"fill past the end", fill(address_ + 1, 64 * kKiB, 1)},
      {"2-D fill of NULL", fill_2d(nullptr, 64, 16, 2, 1)},
      {"2-D fill with values of 3 bytes", fill_2d(address_, 64, 15, 2, 3)},
      {"2-D fill with pitch below width", fill_2d(address_, 15, 16, 2, 1)},
      {"2-D fill with a misaligned pitch", fill_2d(address_, 66, 16, 2, 4)},
      {"2-D fill with a misaligned width", fill_2d(address_, 64, 18, 2, 4)},
      {"2-D fill past the end", fill_2d(address_, kKiB, 16, 65, 1)},
      {"2-D fill that wraps", fill_2d(address_, kTooLarge, 16, 3, 1)},
      {"from nowhere", copy(address_, reinterpret_cast<const void*>(uintptr_t{4096}), 16),
       GPUMEM_ERROR_NOT_FOUND},
      {"to nowhere", copy(reinterpret_cast<void*>(uintptr_t{4096}), address_, 16), GPUMEM_ERROR_NOT_FOUND},
      {"fill of nowhere", fill(reinterpret_cast<uint8_t*>(uintptr_t{4096}), 16, 1), GPUMEM_ERROR_NOT_FOUND},
  });
  // Nothing of it reached the stream.
  EXPECT_OK(gpumem_stream_query(stream_, why()));
}

TEST_F(BadInput, com_1_regions) {
  std::vector<uint8_t> heap(64 * kKiB);
  using Region = gpumem_copy_region;
  struct BadRegion {
    const char* what;
    std::function<void(Region&)> spoil;
    gpumem_status expected = GPUMEM_ERROR_INVALID_ARGUMENT;
  };
  Memory other = alloc_device(device_, 64);
  const gpumem_memory gone = other;
  other.destroy();
  before_calls_ = counters(instance_);
  const BadRegion bad[] = {
      {"smaller struct", [](Region& region) { region.struct_size -= 8; }},
      {"struct_size of nothing", [](Region& region) { region.struct_size = 0; }},
      {"destination by neither", [](Region& region) { region.destination.memory = nullptr; }},
      {"destination by both", [&](Region& region) { region.destination.pointer = heap.data(); }},
      {"source by neither", [](Region& region) { region.source.pointer = nullptr; }},
      {"source by both", [&](Region& region) { region.source.memory = pinned_; }},
      {"offset beside a pointer", [](Region& region) { region.source.offset = 1; }},
      {"made-up memory",
       [](Region& region) {
         region.destination.memory = reinterpret_cast<gpumem_memory>(uintptr_t{0x1234});
       }},
      {"a stream as memory",
       [&](Region& region) { region.destination.memory = reinterpret_cast<gpumem_memory>(stream_.get()); }},
      {"memory that is gone", [&](Region& region) { region.destination.memory = gone; },
       GPUMEM_ERROR_STALE_HANDLE},
      {"offset past the end", [](Region& region) { region.destination.offset = 64 * kKiB + 1; }},
      {"offset of 2^64-1", [](Region& region) { region.destination.offset = UINT64_MAX; }},
      {"last byte past the end", [](Region& region) { region.destination.offset = 64 * kKiB - 15; }},
      {"width of 2^63", [](Region& region) { region.width = kTooLarge; }},
      {"height of 2^64-1", [](Region& region) { region.height = UINT64_MAX; }},
      {"depth of 2^64-1", [](Region& region) { region.depth = UINT64_MAX; }},
      {"rows past the end", [](Region& region) { region.height = 4 * kKiB + 1; }},
      {"slices past the end", [](Region& region) { region.depth = 4 * kKiB + 1; }},
      {"row pitch below width", [](Region& region) { region.height = 2, region.source.row_pitch = 15; }},
      {"slice pitch below a slice",
       [](Region& region) {
         region.height = 3, region.depth = 2, region.source.row_pitch = 32, region.source.slice_pitch = 79;
       }},
      {"row pitch that wraps",
       [](Region& region) { region.height = 3, region.source.row_pitch = kTooLarge; }},
      {"slice pitch that wraps",
       [](Region& region) { region.depth = 3, region.source.slice_pitch = kTooLarge; }},
      {"direction 5", [](Region& region) { region.direction = 5; }},
      {"direction -1", [](Region& region) { region.direction = -1; }},
      {"source order 3", [](Region& region) { region.source_order = 3; }},
      {"direction of an empty region", [](Region& region) { region.width = 0, region.direction = 5; }},
      {"direction that contradicts",
       [](Region& region) { region.direction = GPUMEM_DIRECTION_DEVICE_TO_HOST; }},
      {"from nowhere",
       [](Region& region) { region.source.pointer = reinterpret_cast<void*>(uintptr_t{4096}); },
       GPUMEM_ERROR_NOT_FOUND},
      {"onto itself", [](Region& region) { region.source = region.destination; }},
      {"overlapping by memory and pointer",
       [&](Region& region) {
         region.source = {nullptr, 0, address_ + 15, 0, 0};
       }},
  };
  // The bad one among good ones: it is named, and none of them is copied.
  std::memset(host_, 0x5A, 4 * kKiB);
  EXPECT_OK(gpumem_fill(instance_, address_, 64 * kKiB, 0x11, 1, why()));
  for (const BadRegion& one : bad) {
    SCOPED_TRACE(one.what);
    for (const uint64_t place : {uint64_t{0}, uint64_t{1}, uint64_t{3}}) {
      std::array<Region, 4> regions;
      for (size_t i = 0; i < regions.size(); ++i) {
        regions.at(i) = good_region();
        regions.at(i).destination.offset = 32 * kKiB + i * kKiB;
      }
      regions.at(place).destination.offset = 0;
      one.spoil(regions.at(place));
      for (const gpumem_stream where : {gpumem_stream{}, stream_.get()}) {
        uint64_t failed = 77;
        EXPECT_STATUS(one.expected,
                      copy_regions_on(instance_, where, regions.data(), regions.size(), &failed, why()));
        EXPECT_EQ(failed, place);
        EXPECT_STATUS(one.expected,
                      copy_regions_on(instance_, where, regions.data(), regions.size(), nullptr, why()));
      }
    }
  }
  EXPECT_OK(gpumem_stream_query(stream_, why()));
  std::vector<uint8_t> seen(64 * kKiB);
  EXPECT_OK(gpumem_copy(instance_, seen.data(), address_, seen.size(), nullptr, why()));
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 0x11), static_cast<std::ptrdiff_t>(seen.size()));

  // More regions than there is address space for; and a failure that belongs to no region.
  const Region region = good_region();
  uint64_t failed = 77;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy_regions(instance_, &region, UINT64_MAX, &failed, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy_regions_async(nullptr, &region, 1, &failed, why()));
  EXPECT_EQ(failed, 77u);
}

TEST_F(BadInput, com_1_stream_and_event_values) {
  const auto write = [&](uint8_t* address, uint32_t value_size) {
    return [=, this] { return gpumem_stream_write_value(stream_, address, 1, value_size, why()); };
  };
  const auto wait = [&](uint8_t* address, uint32_t value_size, gpumem_wait_condition condition) {
    return [=, this] { return gpumem_stream_wait_value(stream_, address, 0, value_size, condition, why()); };
  };
  gpumem_event_desc event_desc = GPUMEM_EVENT_DESC_INIT;
  event_desc.flags = 0x80;
  check({
      {"write to NULL", write(nullptr, 4)},
      {"write of 0 bytes", write(address_, 0)},
      {"write of 3 bytes", write(address_, 3)},
      {"write of 16 bytes", write(address_, 16)},
      {"misaligned write of 4", write(address_ + 2, 4)},
      {"misaligned write of 8", write(address_ + 4, 8)},
      {"wait on NULL", wait(nullptr, 4, GPUMEM_WAIT_GEQ)},
      {"wait on 1 byte", wait(address_, 1, GPUMEM_WAIT_GEQ)},
      {"misaligned wait", wait(address_ + 1, 4, GPUMEM_WAIT_GEQ)},
      {"unknown condition", wait(address_, 4, 4)},
      {"negative condition", wait(address_, 4, -1)},
      {"unknown event flag",
       [&] {
         return with_output<gpumem_event>(
             [&](gpumem_event* out) { return gpumem_event_create(device_, &event_desc, out, why()); });
       }},
      {"unknown flag of a wrapped event",
       [&] {
         return with_output<gpumem_event>(
             [&](gpumem_event* out) { return gpumem_event_wrap(device_, host_, 0x80, out, why()); });
       }},
      {"write to nowhere", write(reinterpret_cast<uint8_t*>(uintptr_t{4096}), 4), GPUMEM_ERROR_NOT_FOUND},
      {"wait on nowhere", wait(reinterpret_cast<uint8_t*>(uintptr_t{4096}), 4, GPUMEM_WAIT_EQ),
       GPUMEM_ERROR_NOT_FOUND},
  });
  EXPECT_OK(gpumem_stream_query(stream_, why()));
}

TEST_F(BadInput, com_1_instance_and_device_values) {
  const auto open_as = [](gpumem_backend which) {
    return [=] {
      gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
      desc.backend = which;
      return with_output<gpumem_instance>(
          [&](gpumem_instance* out) { return gpumem_instance_open(&desc, out, why()); });
    };
  };
  const auto capability_of = [&](gpumem_capability what, gpumem_device peer) {
    return [=, this] {
      return with_info<gpumem_capability_info>(
          [&](auto* info) { return gpumem_device_get_capability(device_, what, peer, info, why()); });
    };
  };
  check({
      {"backend 3", open_as(3)},
      {"backend -1", open_as(-1)},
      {"probe of backend 3", [] { return gpumem_instance_probe(3, nullptr, why()); }},
      {"close mode 2", [&] { return gpumem_instance_close(instance_, 2, nullptr, why()); }},
      {"close mode -1", [&] { return gpumem_instance_close(instance_, -1, nullptr, why()); }},
      {"ordinal past the end",
       [&] {
         return with_output<gpumem_device>([&](gpumem_device* out) {
           return gpumem_device_get(instance_, instance_.device_count(), out, why());
         });
       }},
      {"ordinal 2^32-1",
       [&] {
         return with_output<gpumem_device>(
             [&](gpumem_device* out) { return gpumem_device_get(instance_, UINT32_MAX, out, why()); });
       }},
      {"capability 0", capability_of(0, nullptr)},
      {"capability 9999", capability_of(9999, nullptr)},
      {"capability with a peer that takes none", capability_of(GPUMEM_CAPABILITY_UVA, device_)},
      {"peer capability without a peer", capability_of(GPUMEM_CAPABILITY_PEER_ACCESS, nullptr)},
      {"peer capability of one device", capability_of(GPUMEM_CAPABILITY_PEER_ACCESS, device_)},
      {"access to itself", [&] { return gpumem_device_enable_peer_access(device_, device_, why()); }},
      {"no access to itself", [&] { return gpumem_device_disable_peer_access(device_, device_, why()); }},
      {"possible access to itself",
       [&] {
         return with_output<uint32_t>(
             [&](uint32_t* out) { return gpumem_device_can_access_peer(device_, device_, out, why()); });
       }},
      {"current device -2", [] { return gpumem_host_set_current_device(-2, nullptr, why()); }},
      {"current device 64", [] { return gpumem_host_set_current_device(64, nullptr, why()); }},
      {"status past the end",
       [] {
         return with_output<gpumem_status>(
             [&](gpumem_status* out) { return gpumem_status_enumerate(UINT32_MAX, out, why()); });
       },
       GPUMEM_ERROR_NOT_FOUND},
      {"capability past the end",
       [] {
         return with_output<gpumem_capability>(
             [&](gpumem_capability* out) { return gpumem_capability_enumerate(UINT32_MAX, out, why()); });
       },
       GPUMEM_ERROR_NOT_FOUND},
  });
}

TEST_F(BadInput, hst_2_options_out_of_range) {
  const auto open_with = [](const std::function<void(gpumem_host_options&)>& spoil) {
    return [=] {
      gpumem_host_options options = GPUMEM_HOST_OPTIONS_INIT;
      spoil(options);
      gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
      desc.backend = GPUMEM_BACKEND_HOST;
      desc.host = &options;
      return with_output<gpumem_instance>(
          [&](gpumem_instance* out) { return gpumem_instance_open(&desc, out, why()); });
    };
  };
  using Options = gpumem_host_options;
  check({
      {"65 devices", open_with([](Options& options) { options.device_count = 65; })},
      {"strict 3", open_with([](Options& options) { options.strict = 3; })},
      {"pageable -1", open_with([](Options& options) { options.pageable = -1; })},
      {"same pointer 9", open_with([](Options& options) { options.same_pointer = 9; })},
      {"fill 3", open_with([](Options& options) { options.fill = 3; })},
      {"memory below a granule", open_with([](Options& options) { options.device_bytes = 4096; })},
      {"memory above 2^63", open_with([](Options& options) { options.device_bytes = kTooLarge; })},
      {"granularity of 3 MiB", open_with([](Options& options) { options.granularity = 3 * kKiB * kKiB; })},
      {"granularity below a page", open_with([](Options& options) { options.granularity = 512; })},
      {"granularity of 2 GiB", open_with([](Options& options) {
         options.granularity = uint64_t{2} << 30;
         options.device_bytes = uint64_t{4} << 30;
       })},
      {"lock mode 4", open_with([](Options& options) { options.lock_mode = 4; })},
      {"lock mode -1", open_with([](Options& options) { options.lock_mode = -1; })},
      {"65 nodes", open_with([](Options& options) { options.numa_nodes = 65; })},
      {"piece of 100 bytes", open_with([](Options& options) { options.lock_piece = 100; })},
      {"peers of nothing", open_with([](Options& options) { options.peers = "some"; })},
      {"peers out of range", open_with([](Options& options) { options.peers = "0>7"; })},
      {"peers of one device", open_with([](Options& options) { options.peers = "1>1"; })},
      {"peers cut short", open_with([](Options& options) { options.peers = "0>1,0>"; })},
      {"unknown entry point", open_with([](Options& options) { options.masked = "no_such_thing"; })},
  });
}

TEST_F(BadInput, com_12_pointers_that_are_not_ours) {
  std::vector<uint8_t> heap(kKiB);
  check({
      {"free of the heap", [&] { return gpumem_free(instance_, heap.data(), why()); },
       GPUMEM_ERROR_NOT_FOUND},
      {"free inside", [&] { return gpumem_free(instance_, address_ + 1, why()); }},
      {"free inside pinned", [&] { return gpumem_free(instance_, host_ + 64 * kKiB - 1, why()); }},
      {"unregister of the heap", [&] { return gpumem_unregister(instance_, heap.data(), why()); },
       GPUMEM_ERROR_NOT_FOUND},
      {"unregister of an allocation", [&] { return gpumem_unregister(instance_, host_, why()); },
       GPUMEM_ERROR_WRONG_KIND},
      {"device pointer of nothing",
       [&] {
         return with_output<void*>([&](void** out) {
           return gpumem_pointer_get_device_pointer(device_, reinterpret_cast<void*>(uintptr_t{4096}), out,
                                                    why());
         });
       },
       GPUMEM_ERROR_NOT_FOUND},
  });
}

}  // namespace
}  // namespace conformance
