// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of instances and devices, of what only the host backend has, and of the first use in a process.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <thread>

#include "injection.h"
#include "scenario.h"

namespace faults {
namespace {

// Opens into `out` with many options set.
gpumem_status open(World& w, gpumem_backend backend, gpumem_instance* out) {
  gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
  host.device_count = 2;
  host.quarantine = 1;
  host.strict = GPUMEM_TOGGLE_ON;
  host.pageable = GPUMEM_TOGGLE_ON;
  host.numa_nodes = 3;
  host.peers = "0>1,1>0";
  host.masked = "write_value,wait_value,copy_2d,fill_2d";
  const gpumem_cuda_options cuda = GPUMEM_CUDA_OPTIONS_INIT;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = backend;
  desc.host = &host;
  desc.cuda = &cuda;
  desc.name = "a name that is longer than a short string";
  return gpumem_instance_open(&desc, out, &w.error);
}

// The contexts of the devices need memory there.
Step open_step(bool any = false) {
  return {"gpumem_instance_open",
          [=](World& w) { return open(w, any ? GPUMEM_BACKEND_ANY : w.backend, &w.out.instance); },
          GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY};
}

Step close_step(gpumem_close_mode mode) {
  return {"gpumem_instance_close", [=](World& w) {
            const gpumem_status status =
                gpumem_instance_close(w.out.instance, mode, &w.out.number[0], &w.error);
            if (status != GPUMEM_SUCCESS) return status;
            // All that was made through it is gone.
            for (auto& memory : w.out.memory)
              unset(memory);
            for (auto& stream : w.out.stream)
              unset(stream);
            for (auto& event : w.out.event)
              unset(event);
            unset(w.out.device);
            unset(w.out.instance);
            return status;
          }};
}

Step get_device(uint32_t ordinal) {
  return CALL(gpumem_device_get, w.out.instance, ordinal, &w.out.device[ordinal]);
}

void expect_usable(World& w) {
  gpumem_device device = nullptr;
  ASSERT_EQ(gpumem_device_get(w.out.instance, 0, &device, nullptr), GPUMEM_SUCCESS);
  void* pointer = nullptr;
  ASSERT_EQ(gpumem_malloc(device, GPUMEM_KIND_DEVICE, 1000, &pointer, &w.error), GPUMEM_SUCCESS)
      << w.error.message;
  EXPECT_EQ(gpumem_fill(w.out.instance, pointer, 1000, 1, 1, &w.error), GPUMEM_SUCCESS) << w.error.message;
  EXPECT_EQ(gpumem_free(w.out.instance, pointer, &w.error), GPUMEM_SUCCESS) << w.error.message;
}

std::vector<gpumem_capability> capabilities(bool of_pairs) {
  std::vector<gpumem_capability> all;
  gpumem_capability capability = 0;
  for (uint32_t i = 0; gpumem_capability_enumerate(i, &capability, nullptr) == GPUMEM_SUCCESS; ++i) {
    const bool pair =
        capability == GPUMEM_CAPABILITY_PEER_ACCESS || capability == GPUMEM_CAPABILITY_PEER_ATOMICS;
    if (pair == of_pairs) all.push_back(capability);
  }
  return all;
}

Step ask(gpumem_capability capability, bool of_pair) {
  return DEVICE_CALL(gpumem_device_get_capability, w.out.device[0], capability,
                     of_pair ? w.out.device[1] : nullptr, &w.out.capability_info);
}

// An answer that a passing failure has spoilt is not kept: the next one is what it always is.
void expect_usual_answer(World& w, gpumem_capability capability, bool of_pair) {
  if (met_lasting_refusal()) return;
  gpumem_capability_info now = GPUMEM_CAPABILITY_INFO_INIT;
  EXPECT_EQ(gpumem_device_get_capability(w.out.device[0], capability, of_pair ? w.out.device[1] : nullptr,
                                         &now, nullptr),
            GPUMEM_SUCCESS);
  // The first time, nothing has failed yet.
  static std::map<std::pair<gpumem_backend, gpumem_capability>, gpumem_capability_info> usual;
  const gpumem_capability_info& first = usual.try_emplace({w.backend, capability}, now).first->second;
  EXPECT_EQ(now.value, first.value) << now.name << ": " << now.reason;
  EXPECT_EQ(now.status, first.status) << now.name << ": " << now.reason;
}

void ignore(void*, gpumem_log_level, const char*) {}
void do_nothing(void*) {}

Step not_there() {
  Step step = CALL(gpumem_free, w.out.instance, w.host[0]);
  step.expected = GPUMEM_ERROR_NOT_FOUND;
  return step;
}

// ---- what only the host backend has ----

// A kernel that opens a view whenever it is told to, until it has one.
struct Kernel {
  std::atomic<bool> asked{false};
  std::atomic<bool> quit{false};
  World* world = nullptr;
  gpumem_status status = GPUMEM_SUCCESS;
};
Kernel kernel;

void run_kernel(gpumem_host_kernel running, void*) {
  do {
    while (!kernel.asked && !kernel.quit)
      std::this_thread::yield();
    if (kernel.quit) return;
    World& w = *kernel.world;
    kernel.status = gpumem_host_kernel_view(running, w.out.memory_info.device_pointer, 100,
                                            GPUMEM_ACCESS_READWRITE, &w.out.address[0], &w.error);
    if (kernel.status == GPUMEM_SUCCESS) *static_cast<char*>(w.out.address[0]) = 77;
    kernel.asked = false;
  } while (kernel.status != GPUMEM_SUCCESS);
}

gpumem_status ask_kernel(World& w) {
  kernel.world = &w;
  kernel.asked = true;
  while (kernel.asked)
    std::this_thread::yield();
  return kernel.status;
}

// Maps two blocks side by side, and lets the kernel see bytes of both.
gpumem_status map_two(World& w) {
  gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
  desc.location = GPUMEM_LOCATION_DEVICE;
  uint64_t unit = 0;
  EXPECT_EQ(gpumem_physical_get_granularity(w.out.device[0], &desc, &unit, nullptr, &w.error),
            GPUMEM_SUCCESS);
  desc.size = unit;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(gpumem_physical_create(w.out.device[0], &desc, &w.out.physical[i], &w.error), GPUMEM_SUCCESS);
  }
  gpumem_range_desc place = GPUMEM_RANGE_DESC_INIT;
  place.size = 2 * unit;
  EXPECT_EQ(gpumem_range_reserve(w.out.instance, &place, &w.out.range[0], &w.error), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_range_map(w.out.range[0], 0, w.out.physical, 2, &w.error), GPUMEM_SUCCESS);
  gpumem_access_desc rights = GPUMEM_ACCESS_DESC_INIT;
  rights.location = GPUMEM_LOCATION_DEVICE;
  rights.access = GPUMEM_ACCESS_READWRITE;
  EXPECT_EQ(gpumem_range_set_access(w.out.range[0], 0, 2 * unit, &rights, 1, &w.error), GPUMEM_SUCCESS);
  const gpumem_status status = gpumem_range_get_info(w.out.range[0], &w.out.range_info, &w.error);
  w.out.memory_info.device_pointer = static_cast<char*>(w.out.range_info.base) + unit - 50;
  return status;
}

Step set_quit(bool quit) {
  return {"gpumem_version", [=](World&) {
            kernel.quit = quit;
            return GPUMEM_SUCCESS;
          }};
}

}  // namespace

std::vector<Scenario> instance_scenarios() {
  std::vector<Scenario> all;
  const auto opening = [&](const char* name, unsigned backends, std::vector<Step> steps,
                           std::function<void(World&)> verify) {
    Scenario scenario{name, backends, {}, std::move(steps), std::move(verify)};
    scenario.opens = true;
    all.push_back(scenario);
  };
  opening("open and close", kBoth,
          {open_step(), CALL(gpumem_instance_get_info, w.out.instance, &w.out.instance_info),
           close_step(GPUMEM_CLOSE_CHECK)},
          nullptr);
  opening("open", kBoth, {open_step(), get_device(0), get_device(1)}, expect_usable);
  opening("open any backend", kCuda, {open_step(true)}, expect_usable);
  opening("probe", kBoth, {CALL(gpumem_instance_probe, w.backend, &w.out.probe)}, nullptr);
  all.push_back({"a second instance",
                 kBoth,
                 {},
                 {Step{"gpumem_instance_open", [](World& w) { return open(w, w.backend, &w.out.other); },
                       GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY}},
                 expect_usable});

  all.push_back({"devices",
                 kBoth,
                 {},
                 {get_device(1), CALL(gpumem_device_get_info, w.out.device[0], &w.out.device_info),
                  DEVICE_CALL(gpumem_device_get_memory, w.out.device[1], &w.out.number[0], &w.out.number[1]),
                  DEVICE_CALL(gpumem_device_trim_graphs, w.out.device[1], &w.out.number[0]),
                  DEVICE_CALL(gpumem_device_can_access_peer, w.out.device[0], w.out.device[1], &w.out.word)},
                 [](World& w) { EXPECT_EQ(w.out.word, 1u); }});
  const Step enable = DEVICE_CALL(gpumem_device_enable_peer_access, w.out.device[0], w.out.device[1]);
  const Step disable = DEVICE_CALL(gpumem_device_disable_peer_access, w.out.device[0], w.out.device[1]);
  all.push_back({"peer access", kBoth, {}, {enable, enable, disable, disable, enable}});
  all.push_back(
      {"peer access and copies",
       kBoth,
       {create(0, GPUMEM_KIND_DEVICE, 1000), create(1, GPUMEM_KIND_DEVICE, 1000, 0, 0, 0, 1)},
       {enable, CALL(gpumem_memory_get_info, w.out.memory[1], &w.out.memory_info),
        DEVICE_CALL(gpumem_fill, w.out.instance, w.out.memory_info.device_pointer, 1000, 1, 1), disable}});
  all.back().idle_streams = 2;

  for (const bool of_pair : {false, true}) {
    for (const gpumem_capability capability : capabilities(of_pair)) {
      Scenario scenario{"capability " + std::to_string(capability), kBoth, {}, {ask(capability, of_pair)}};
      scenario.helpless = capability == GPUMEM_CAPABILITY_COPY_BATCH;  // its trial copies
      scenario.verify = [=](World& w) { expect_usual_answer(w, capability, of_pair); };
      all.push_back(scenario);
    }
  }
  all.push_back(
      {"the list of capabilities", kBoth, {}, {CALL(gpumem_capability_enumerate, 0, &w.out.capability)}});

  const std::vector<Step> objects = {create(0, GPUMEM_KIND_DEVICE, 1000),
                                     create(1, GPUMEM_KIND_PINNED, 1000),
                                     create(2, GPUMEM_KIND_REGISTERED, 1000),
                                     create_stream(0),
                                     create_stream(1),
                                     create_event(0)};
  all.push_back(
      {"statistics",
       kBoth,
       objects,
       {CALL(gpumem_stats_get, w.out.instance, &w.out.stats),
        CALL(gpumem_stats_get_kind, w.out.instance, GPUMEM_KIND_PINNED, &w.out.kind_stats),
        CALL(gpumem_stats_report, w.out.instance, w.out.text, sizeof w.out.text, &w.out.number[0])},
       [](World& w) { EXPECT_NE(std::strstr(w.out.text, "pinned memory a name that is longer"), nullptr); }});
  all.push_back(
      {"a snapshot",
       kBoth,
       objects,
       {CALL(gpumem_stats_snapshot, w.out.instance, w.out.text, sizeof w.out.text, &w.out.number[0])},
       [](World& w) { EXPECT_EQ(std::strncmp(w.out.text, "{\"version\":", 11), 0) << w.out.text; }});
  all.push_back({"peaks", kBoth, {}, {CALL(gpumem_stats_reset_peaks, w.out.instance)}});
  Step busy{"gpumem_instance_close", [](World& w) {
              return gpumem_instance_close(w.out.instance, GPUMEM_CLOSE_CHECK, &w.out.number[0], &w.error);
            }};
  busy.expected = GPUMEM_ERROR_BUSY;
  all.push_back({"a close that is refused", kBoth, objects, {busy}, expect_usable});
  std::vector<Step> working = objects;
  working.push_back(CALL(gpumem_stream_launch_host_function, w.out.stream[0], do_nothing, nullptr));
  working.push_back(CALL(gpumem_event_record, w.out.event[0], w.out.stream[0]));
  working.push_back(CALL(gpumem_stream_wait_event, w.out.stream[1], w.out.event[0]));
  working.push_back(CALL(gpumem_device_enable_peer_access, w.out.device[0], w.out.device[1]));
  Scenario forced{"a forced close", kBoth, working, {close_step(GPUMEM_CLOSE_FORCE)}};
  forced.verify = [](World& w) { EXPECT_EQ(w.out.number[0], 6u); };
  forced.helpless = true;
  all.push_back(forced);

  all.push_back({"the log function",
                 kBoth,
                 {},
                 {CALL(gpumem_log_set_function, ignore, nullptr, GPUMEM_LOG_DEBUG), not_there(),
                  CALL(gpumem_log_set_function, nullptr, nullptr, 0)}});
  opening(
      "texts and tables", kBoth,
      {PLAIN_CALL(gpumem_version, gpumem_version() == GPUMEM_VERSION),
       PLAIN_CALL(gpumem_version_text, gpumem_version_text() != nullptr),
       PLAIN_CALL(gpumem_feature_supported, gpumem_feature_supported(GPUMEM_FEATURE_BACKEND_HOST) == 1),
       PLAIN_CALL(gpumem_status_name, std::strcmp(gpumem_status_name(0), "GPUMEM_SUCCESS") == 0),
       CALL(gpumem_status_get_info, GPUMEM_ERROR_BUSY, &w.out.status_info),
       CALL(gpumem_status_enumerate, 0, &w.out.status), CALL(gpumem_table_get, GPUMEM_VERSION, &w.out.table)},
      nullptr);
  return all;
}

std::vector<Scenario> host_scenarios() {
  std::vector<Scenario> all;
  const auto launch = CALL(gpumem_host_launch, w.out.stream[0], run_kernel, nullptr);
  Scenario running{"a kernel",
                   kHost,
                   {create(0, GPUMEM_KIND_DEVICE, 1000), create_stream(0),
                    CALL(gpumem_memory_get_info, w.out.memory[0], &w.out.memory_info), set_quit(false)},
                   {launch, Step{"gpumem_host_kernel_view", ask_kernel}, synchronize(0)}};
  running.verify = [](World& w) {
    char byte = 0;
    EXPECT_EQ(gpumem_copy(w.out.instance, &byte, w.out.memory_info.device_pointer, 1, nullptr, nullptr),
              GPUMEM_SUCCESS);
    EXPECT_EQ(byte, 77);
  };
  running.after = {set_quit(true)};
  all.push_back(running);
  running.name = "a kernel that sees two mappings at once";
  running.before = {create_stream(0), Step{"gpumem_range_map", map_two}, set_quit(false)};
  Step& asked = running.steps[1];
  asked.exhausted = GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE;
  asked.of_many = true;
  all.push_back(running);

  Scenario working{
      "a stream that ends before its work",
      kHost,
      {create_stream(0), CALL(gpumem_malloc, w.out.device[0], GPUMEM_KIND_MANAGED, 1000, &w.out.pointer[0]),
       set_quit(false)},
      {launch, ENDING_CALL(gpumem_stream_destroy, w.out.stream[0])}};
  working.options = [](gpumem_instance_desc&, gpumem_host_options& host) {
    host.concurrent = GPUMEM_TOGGLE_OFF;  // or the end of the stream would not matter to managed memory
  };
  working.after = {set_quit(true)};
  all.push_back(working);

  all.push_back({"native streams",
                 kHost,
                 {},
                 {CALL(gpumem_host_native_stream_create, w.out.device[0], &w.out.native[0]),
                  DEVICE_CALL(gpumem_stream_wrap, w.out.device[0], w.out.native[0], &w.out.stream[0]),
                  CALL(gpumem_host_stream_set_capturing, w.out.stream[0], 1),
                  CALL(gpumem_host_stream_set_capturing, w.out.stream[0], 0), synchronize(0),
                  ENDING_CALL(gpumem_stream_destroy, w.out.stream[0]),
                  Step{"gpumem_host_native_stream_destroy", [](World& w) {
                         const gpumem_status status =
                             gpumem_host_native_stream_destroy(w.out.device[0], w.out.native[0], &w.error);
                         if (status == GPUMEM_SUCCESS) unset(w.out.native[0]);
                         return status;
                       }}}});
  const auto end_foreign = [](World& w) {
    const gpumem_status status = gpumem_host_foreign_free(w.out.device[0], w.out.foreign[0], &w.error);
    if (status == GPUMEM_SUCCESS) unset(w.out.foreign[0]);
    return status;
  };
  all.push_back(
      {"foreign device memory",
       kHost,
       {},
       {DEVICE_CALL(gpumem_host_foreign_alloc, w.out.device[0], GPUMEM_KIND_DEVICE, 1000, &w.out.foreign[0]),
        CALL(gpumem_pointer_get_info, w.out.instance, w.out.foreign[0], &w.out.pointer_info),
        CALL(gpumem_pointer_get_access, w.out.instance, w.out.foreign[0], GPUMEM_LOCATION_HOST, 0,
             &w.out.access),
        CALL(gpumem_pointer_get_device_pointer, w.out.device[0], w.out.foreign[0], &w.out.address[0]),
        Step{"gpumem_host_foreign_free", end_foreign}}});
  all.push_back(
      {"foreign pinned memory",
       kHost,
       {},
       {CALL(gpumem_host_foreign_alloc, w.out.device[0], GPUMEM_KIND_PINNED, 1000, &w.out.foreign[0]),
        DEVICE_CALL(gpumem_fill, w.out.instance, w.out.foreign[0], 1000, 1, 1),
        Step{"gpumem_host_foreign_free", end_foreign}}});
  all.back().idle_streams = 1;
  all.push_back({"switches",
                 kHost,
                 {},
                 {CALL(gpumem_host_foreign_peer_access, w.out.device[0], w.out.device[1], 1),
                  CALL(gpumem_host_foreign_peer_access, w.out.device[0], w.out.device[1], 0),
                  CALL(gpumem_host_set_current_device, 1, &w.out.ordinal),
                  CALL(gpumem_host_set_current_device, -1, &w.out.ordinal),
                  CALL(gpumem_host_fail_step, w.out.instance, 0, 0)}});
  Step lost = create(1, GPUMEM_KIND_DEVICE, 1000);
  lost.expected = GPUMEM_ERROR_DEVICE_LOST;
  all.push_back({"a lost device",
                 kHost,
                 {create(0, GPUMEM_KIND_DEVICE, 1000), create_stream(0)},
                 {CALL(gpumem_host_device_lose, w.out.device[0]), lost,
                  ENDING_CALL(gpumem_memory_destroy, w.out.memory[0]),
                  ENDING_CALL(gpumem_stream_destroy, w.out.stream[0])}});
  return all;
}

std::vector<Scenario> first_scenarios() {
  std::vector<Scenario> all;
  const Step malloc_step =
      DEVICE_CALL(gpumem_malloc, w.out.device[0], GPUMEM_KIND_DEVICE, 1000, &w.out.pointer[0]);
  const std::vector<Step> use = {
      get_device(0),
      malloc_step,
      create(0, GPUMEM_KIND_PINNED, 1000),
      create(1, GPUMEM_KIND_REGISTERED, 1000),
      create_stream(0),
      create_event(0),
      CALL(gpumem_stream_launch_host_function, w.out.stream[0], do_nothing, nullptr),
      DEVICE_CALL(gpumem_event_record, w.out.event[0], w.out.stream[0]),
      synchronize(0)};
  const auto first = [&](const std::string& name, std::vector<Step> steps, bool uses) {
    Scenario scenario{name, kBoth, {}, std::move(steps)};
    scenario.opens = true;
    for (const Step& step : use) {
      if (uses) scenario.steps.push_back(step);
    }
    all.push_back(scenario);
  };
  const Step set_log = CALL(gpumem_log_set_function, ignore, nullptr, GPUMEM_LOG_DEBUG);
  first("probe", {CALL(gpumem_instance_probe, w.backend, &w.out.probe)}, false);
  first("open and use", {open_step()}, true);
  first("log and open", {set_log, open_step()}, false);
  // Nothing is used before it is given back.
  const Step free_step{"gpumem_free", [](World& w) {
                         const gpumem_status status = gpumem_free(w.out.instance, w.out.pointer[0], &w.error);
                         if (status == GPUMEM_SUCCESS) unset(w.out.pointer[0]);
                         return status;
                       }};
  first("open, allocate and free", {open_step(), get_device(0), malloc_step, free_step}, false);
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_REGISTERED}) {
    const uint64_t alignment = kind == GPUMEM_KIND_REGISTERED ? 0 : 4096;
    first("open, create and destroy memory of kind " + std::to_string(kind),
          {open_step(), get_device(0), create(0, kind, 1000, 0, 0, alignment),
           ENDING_CALL(gpumem_memory_destroy, w.out.memory[0])},
          false);
  }
  first("open, create and destroy a stream",
        {open_step(), get_device(0), create_stream(0), ENDING_CALL(gpumem_stream_destroy, w.out.stream[0])},
        false);
  first("open, enable and disable peer access",
        {open_step(), get_device(0), get_device(1),
         DEVICE_CALL(gpumem_device_enable_peer_access, w.out.device[0], w.out.device[1]),
         DEVICE_CALL(gpumem_device_disable_peer_access, w.out.device[0], w.out.device[1])},
        false);
  // Nobody ever enqueued a host function that the close would have to wait for.
  first("open, lose a device and close",
        {open_step(), get_device(0), CALL(gpumem_host_device_lose, w.out.device[0]),
         close_step(GPUMEM_CLOSE_FORCE)},
        false);
  all.back().backends = kHost;
  // Who exports is asked of the system once.
  Step share =
      CALL(gpumem_share_export, w.out.instance, w.out.memory_info.device_pointer, nullptr, &w.out.share[0]);
  share.exhausted = GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
  share.of_many = true;
  all.push_back({"export",
                 kBoth,
                 {create(0, GPUMEM_KIND_DEVICE, 1000, GPUMEM_MEMORY_SHAREABLE),
                  CALL(gpumem_memory_get_info, w.out.memory[0], &w.out.memory_info)},
                 {share}});
  all.back().verify = [](World& w) { EXPECT_TRUE(names_this_process(w.out.share[0])); };
  all.back().costly = true;
  // The environment decides about the backend of the default instance.
  const auto named = [](World& w) {
    setenv("GPUMEM_BACKEND", w.backend == GPUMEM_BACKEND_CUDA ? "cuda" : "host", 1);
    return gpumem_instance_default(&w.out.instance, &w.error);
  };
  first("the default instance", {Step{"gpumem_instance_default", named, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY}},
        false);
  all.back().keeps = true;
  all.back().verify = [](World& w) {
    gpumem_device device = nullptr;
    EXPECT_EQ(gpumem_device_get(w.out.instance, 0, &device, nullptr), GPUMEM_SUCCESS);
  };
  return all;
}

}  // namespace faults
