// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of managed memory: attaching, hints, batches, queries, and the CPU's accesses.
#include <gtest/gtest.h>

#include <memory>

#include "scenario.h"

namespace faults {
namespace {

constexpr uint64_t kSize = 4 * kPage;

unsigned char* bytes_of(World& w) { return static_cast<unsigned char*>(w.out.pointer[0]); }

// The halves of the memory, each to a place of its own, or nowhere for a discard.
struct Halves {
  gpumem_managed_range range[2] = {GPUMEM_MANAGED_RANGE_INIT, GPUMEM_MANAGED_RANGE_INIT};

  Halves(World& w, gpumem_location first, gpumem_location second) {
    const gpumem_location places[] = {first, second};
    for (size_t i = 0; i < 2; ++i) {
      range[i].pointer = bytes_of(w) + i * kSize / 2;
      range[i].size = kSize / 2;
      range[i].location = places[i];
    }
  }
};

Step make() { return CALL(gpumem_malloc, w.out.device[0], GPUMEM_KIND_MANAGED, kSize, &w.out.pointer[0]); }
Step attach(gpumem_attach how) {
  return CALL(gpumem_managed_attach, w.out.stream[0], w.out.pointer[0], 0, how);
}
Step advise(gpumem_advice advice, gpumem_location location) {
  return CALL(gpumem_managed_advise, w.out.instance, w.out.pointer[0], kSize, advice, location, 0);
}
Step prefetch(gpumem_location location) {
  return DEVICE_CALL(gpumem_managed_prefetch, w.out.stream[0], w.out.pointer[0], kSize, location, 0);
}
Step get_info() {
  return CALL(gpumem_managed_get_info, w.out.instance, w.out.pointer[0], kSize, &w.out.managed_info);
}
Step begin() { return CALL(gpumem_managed_begin_host_access, w.out.instance, w.out.pointer[0]); }
Step end() { return CALL(gpumem_managed_end_host_access, w.out.instance, w.out.pointer[0]); }
Step prefetch_batch() {
  return DEVICE_CALL(gpumem_managed_prefetch_batch, w.out.stream[0],
                     Halves(w, GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_HOST).range, 2);
}
Step discard_batch() { return CALL(gpumem_managed_discard_batch, w.out.stream[0], Halves(w, 0, 0).range, 2); }
Step discard_and_prefetch_batch() {
  return DEVICE_CALL(gpumem_managed_discard_and_prefetch_batch, w.out.stream[0],
                     Halves(w, GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_DEVICE).range, 2);
}

// The same call where it has no effect.
Step idle(Step step) {
  step.expected = GPUMEM_NO_EFFECT;
  return step;
}

void view_first_byte(gpumem_host_kernel kernel, void* world) {
  World& w = *static_cast<World*>(world);
  void* view = nullptr;
  EXPECT_EQ(gpumem_host_kernel_view(kernel, w.out.pointer[0], 1, GPUMEM_ACCESS_READ, &view, nullptr),
            GPUMEM_SUCCESS);
}

// Attaches global memory to the host. If that has failed, kernels of any stream may still use it.
Step attach_in_full_or_not_at_all() {
  const auto failed = std::make_shared<bool>(false);
  return {
      "gpumem_managed_attach", [=](World& w) {
        if (*failed) {
          for (const gpumem_stream stream : {w.out.stream[0], w.out.stream[1]}) {
            EXPECT_EQ(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr), GPUMEM_SUCCESS);
            EXPECT_EQ(gpumem_host_launch(stream, view_first_byte, &w, nullptr), GPUMEM_SUCCESS);
            EXPECT_EQ(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr), GPUMEM_SUCCESS);
          }
        }
        const gpumem_status status =
            gpumem_managed_attach(w.out.stream[0], w.out.pointer[0], 0, GPUMEM_ATTACH_HOST, &w.error);
        *failed = GPUMEM_FAILED(status);
        return status;
      }};
}

void not_concurrent(gpumem_instance_desc&, gpumem_host_options& host) { host.concurrent = GPUMEM_TOGGLE_OFF; }

}  // namespace

std::vector<Scenario> managed_scenarios() {
  std::vector<Scenario> all;
  all.push_back({"attaching managed memory",
                 kBoth,
                 {create_stream(0), make()},
                 {attach(GPUMEM_ATTACH_SINGLE), attach(GPUMEM_ATTACH_HOST), attach(GPUMEM_ATTACH_GLOBAL),
                  synchronize(0)}});
  all.push_back({"advice about managed memory",
                 kBoth,
                 {make()},
                 {advise(GPUMEM_ADVICE_SET_READ_MOSTLY, 0),
                  advise(GPUMEM_ADVICE_SET_PREFERRED_LOCATION, GPUMEM_LOCATION_DEVICE),
                  advise(GPUMEM_ADVICE_SET_ACCESSED_BY, GPUMEM_LOCATION_DEVICE),
                  advise(GPUMEM_ADVICE_SET_ACCESSED_BY, GPUMEM_LOCATION_HOST),
                  advise(GPUMEM_ADVICE_UNSET_ACCESSED_BY, GPUMEM_LOCATION_HOST), get_info()},
                 [](World& w) {
                   EXPECT_EQ(w.out.managed_info.read_mostly, 1u);
                   EXPECT_EQ(w.out.managed_info.preferred_location, GPUMEM_LOCATION_DEVICE);
                   EXPECT_EQ(w.out.managed_info.accessed_by_devices, 1u);
                   EXPECT_EQ(w.out.managed_info.accessed_by_host, 0u);
                 }});
  all.push_back(
      {"prefetches of managed memory",
       kBoth,
       {create_stream(0), make()},
       {prefetch(GPUMEM_LOCATION_DEVICE), prefetch(GPUMEM_LOCATION_HOST), get_info(), synchronize(0)},
       [](World& w) { EXPECT_EQ(w.out.managed_info.last_prefetch_location, GPUMEM_LOCATION_HOST); }});
  all.push_back(
      {"batches of managed memory",
       kBoth,
       {create_stream(0), make()},
       {prefetch_batch(), discard_batch(), discard_and_prefetch_batch(), get_info(), synchronize(0)},
       [](World& w) {
         EXPECT_EQ(w.out.managed_info.last_prefetch_location, GPUMEM_LOCATION_DEVICE);
         EXPECT_EQ(w.out.managed_info.last_prefetch_location_id, 0);
       }});
  all.push_back({"accesses of the CPU to managed memory", kBoth, {make()}, {begin(), begin(), end(), end()}});

  const auto fill = CALL(gpumem_fill_async, w.out.stream[0], w.out.pointer[0], kSize, 7, 1);
  Scenario waiting{"accesses of the CPU that wait for a device",
                   kHost,
                   {create_stream(0), make()},
                   {attach(GPUMEM_ATTACH_SINGLE), fill, begin(), end(), attach(GPUMEM_ATTACH_GLOBAL), fill,
                    begin(), end()}};
  waiting.options = not_concurrent;
  waiting.verify = [](World& w) {
    EXPECT_EQ(bytes_of(w)[0], 7);
    EXPECT_EQ(bytes_of(w)[kSize - 1], 7);
  };
  all.push_back(waiting);
  Scenario whole{"attaching managed memory in full or not at all",
                 kHost,
                 {create_stream(0), create_stream(1), make()},
                 {attach_in_full_or_not_at_all(), synchronize(0)}};
  whole.options = not_concurrent;
  all.push_back(whole);
  Scenario hints{"hints that have no effect",
                 kHost,
                 {create_stream(0), make()},
                 {idle(advise(GPUMEM_ADVICE_SET_PREFERRED_LOCATION, GPUMEM_LOCATION_DEVICE)),
                  idle(prefetch(GPUMEM_LOCATION_DEVICE)), idle(prefetch_batch()), idle(discard_batch()),
                  idle(discard_and_prefetch_batch()), get_info()}};
  hints.options = not_concurrent;
  hints.verify = [](World& w) {
    EXPECT_EQ(w.out.managed_info.preferred_location, GPUMEM_LOCATION_NONE);
    EXPECT_EQ(w.out.managed_info.last_prefetch_location, GPUMEM_LOCATION_NONE);
  };
  all.push_back(hints);
  return all;
}

}  // namespace faults
