// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Those of the rules COM-18 to COM-26 that need a process of their own: lost devices, loading the driver,
// fork, exit.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "../quiet_fork.h"
#include "pools.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;

using ComProcess = Conformance;

// Objects that nobody destroys: an instance, its first device and a stream of it.
struct LeftOpen {
  LeftOpen() : instance(open_instance().release()) {
    EXPECT_OK(gpumem_device_get(instance, 0, &device, why()));
    EXPECT_OK(gpumem_stream_create(device, nullptr, &stream, why()));
  }

  gpumem_instance instance;
  gpumem_device device = nullptr;
  gpumem_stream stream = nullptr;
};

void expect_good_end(pid_t pid) {
  int status = -1;
  ASSERT_GT(pid, 0) << "fork";
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// ---- COM-18: a lost device ----

CHILD(com_18_device_lost) {
  Instance instance = open_instance();
  if (!can_lose()) skip_child("a real GPU cannot be lost without a faulting kernel");
  const gpumem_device device = instance.device();
  const gpumem_device other = instance.device_count() > 1 ? instance.device(1) : nullptr;
  Pages pages(4 * page_size());
  Memory memory = alloc_device(device, kMiB);
  Memory pinned = alloc_pinned(device, kMiB);
  Memory registered = register_memory(device, pages.get(), page_size());
  Stream stream = create_stream(device);
  Event event = create_event(device);
  EXPECT_OK(gpumem_event_record(event, stream, why()));
  stream.synchronize();
  uint8_t* const address = memory.device();

  lose(device);

  const auto expect_lost = [&](const char* what, gpumem_status status) {
    EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, status) << what;
  };
  const auto nothing = [](void*) {};
  gpumem_memory no_memory = nullptr;
  gpumem_stream no_stream = nullptr;
  gpumem_event no_event = nullptr;
  void* pointer = nullptr;
  const gpumem_memory_desc on_device = memory_desc(GPUMEM_KIND_DEVICE, kMiB);
  const gpumem_register_desc of_pages = register_desc(pages.get() + page_size(), page_size());
  expect_lost("copy", gpumem_copy_async(stream, address, pinned.host(), kMiB, nullptr, why()));
  expect_lost("synchronous copy", gpumem_copy(instance, address, pinned.host(), kMiB, nullptr, why()));
  gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
  region.destination.memory = memory;
  region.source.memory = pinned;
  region.width = kMiB;
  uint64_t failed = 77;
  expect_lost("regions", gpumem_copy_regions(instance, &region, 1, &failed, why()));
  EXPECT_EQ(failed, 0u);
  failed = 77;
  expect_lost("regions in a stream", gpumem_copy_regions_async(stream, &region, 1, &failed, why()));
  EXPECT_EQ(failed, 0u);
  expect_lost("fill", gpumem_fill_async(stream, address, kMiB, 1, 1, why()));
  expect_lost("create device memory", gpumem_memory_create(device, &on_device, &no_memory, why()));
  expect_lost("register", gpumem_memory_register(device, &of_pages, &no_memory, why()));
  expect_lost("malloc", gpumem_malloc(device, GPUMEM_KIND_PINNED, kMiB, &pointer, why()));
  expect_lost("create stream", gpumem_stream_create(device, nullptr, &no_stream, why()));
  expect_lost("create event", gpumem_event_create(device, nullptr, &no_event, why()));
  expect_lost("query stream", gpumem_stream_query(stream, why()));
  expect_lost("synchronize stream", gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  expect_lost("host function", gpumem_stream_launch_host_function(stream, nothing, nullptr, why()));
  expect_lost("write value", gpumem_stream_write_value(stream, address, 1, 4, why()));
  expect_lost("wait for event", gpumem_stream_wait_event(stream, event, why()));
  expect_lost("record event", gpumem_event_record(event, stream, why()));
  expect_lost("query event", gpumem_event_query(event, why()));
  expect_lost("synchronize event", gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  expect_lost("free memory", gpumem_device_get_memory(device, nullptr, nullptr, why()));

  // The registry still answers.
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get_info(device, &info, why()));
  EXPECT_EQ(info.lost, 1u);
  EXPECT_EQ(memory.info().size, kMiB);
  EXPECT_EQ(pointer_info(instance, address + 1).base, address);
  EXPECT_EQ(kind_stats(instance, GPUMEM_KIND_DEVICE).live_count, 1u);
  // What a processor may do there is known too.
  EXPECT_EQ(device_access(instance, address, ordinal_of(device)), GPUMEM_ACCESS_READWRITE);

  // Another device goes on.
  if (other) {
    const Memory theirs = alloc_device(other, kMiB);
    const Stream their_stream = create_stream(other);
    EXPECT_OK(gpumem_fill_async(their_stream, theirs.device(), kMiB, 1, 1, why()));
    their_stream.synchronize();
  }

  memory.destroy();
  pinned.destroy();
  registered.destroy();
  event.destroy();
  EXPECT_OK(gpumem_stream_destroy(stream.release(), why()));
  EXPECT_EQ(stats(instance).live_bytes, 0u);
  instance.close();
}

TEST_F(ComProcess, com_18_a_lost_device) { EXPECT_CHILD_OK(run_child("com_18_device_lost")); }

// Nothing runs on the device any more, so the pool waits neither for marks nor for streams that it cannot
// ask.
CHILD(com_18_pools_of_a_lost_device) {
  Instance instance = open_instance();
  if (!can_lose()) skip_child("a real GPU cannot be lost without a faulting kernel");
  const gpumem_device device = instance.device();
  Pool pool = create_pool(device);
  Pool trusting = create_pool(device, GPUMEM_KIND_DEVICE, GPUMEM_POOL_TRUST_NATIVE_STREAMS);
  GatedStream held(device);
  Stream stream = create_stream(device);
  gpumem_stream_info native = GPUMEM_STREAM_INFO_INIT;
  EXPECT_OK(gpumem_stream_get_info(stream, &native, why()));
  std::vector<void*> live;
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    live.push_back(take(pool, size, held));
    give(pool, take(pool, size, held), held);
    void* block = nullptr;
    EXPECT_OK(gpumem_pool_alloc_native(trusting, size, native.native_stream, &block, why()));
    EXPECT_OK(gpumem_pool_free_native(trusting, block, native.native_stream, why()));
  }
  lose(device);
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_query(stream, why()));
  void* none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_pool_alloc(pool, kMiB, held, &none, why()));
  for (void* const block : live)
    give(pool, block, held);
  for (const Pool* const one : {&pool, &trusting}) {
    trim(*one);
    EXPECT_EQ(info_of(*one).reserved_bytes, 0U);
  }
  pool.destroy();
  trusting.destroy();
  EXPECT_EQ(stats(instance).live_bytes, 0U);
  held.open();
}

TEST_F(ComProcess, com_18_pools_of_a_lost_device) {
  EXPECT_CHILD_OK(run_child("com_18_pools_of_a_lost_device"));
}

CHILD(com_18_close_waits_for_nothing) {
  if (!on_host()) skip_child("on cuda the driver ends the work of a lost device");
  const auto [instance, device, stream] = LeftOpen();
  const gpumem_memory memory = alloc_device(device, kMiB).release();
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  ASSERT_OK(gpumem_memory_get_info(memory, &info, why()));
  // A wait that nobody will end.
  ASSERT_OK(gpumem_fill(instance, info.device_pointer, kMiB, 0, 1, why()));
  ASSERT_OK(gpumem_stream_wait_value(stream, info.device_pointer, 1, 4, GPUMEM_WAIT_EQ, why()));
  lose(device);
  uint64_t destroyed = 0;
  EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, &destroyed, why()));
  EXPECT_EQ(destroyed, 2u);
}

TEST_F(ComProcess, com_18_close_waits_for_nothing) {
  EXPECT_CHILD_OK(run_child("com_18_close_waits_for_nothing"));
}

// ---- COM-19: loading the driver ----

std::string fake_driver() {
  const char* path = std::getenv("GPUMEM_FAKE_CUDA");
  return path ? path : "";
}

std::string folder_of_fake_driver() { return std::filesystem::path(fake_driver()).parent_path().string(); }

bool a_driver_is_loaded() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libcuda") != std::string::npos) return true;
  }
  return false;
}

gpumem_status probe_cuda() {
  gpumem_probe_info info = GPUMEM_PROBE_INFO_INIT;
  return gpumem_instance_probe(GPUMEM_BACKEND_CUDA, &info, why());
}

gpumem_status open_cuda() {
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_CUDA;
  gpumem_instance instance = nullptr;
  const gpumem_status status = gpumem_instance_open(&desc, &instance, why());
  EXPECT_EQ(instance != nullptr, status == GPUMEM_SUCCESS);
  if (status == GPUMEM_SUCCESS) Instance(instance).close();
  return status;
}

// These tests speak of the cuda backend whatever backend is under test.
#define REQUIRE_CUDA_BACKEND()                                   \
  if (!gpumem_feature_supported(GPUMEM_FEATURE_BACKEND_CUDA)) {  \
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, probe_cuda());       \
    SKIP_RULE("the library was built without the cuda backend"); \
  }
#define REQUIRE_FAKE_DRIVER() \
  REQUIRE_CUDA_BACKEND();     \
  if (fake_driver().empty()) SKIP_RULE("GPUMEM_FAKE_CUDA does not name a fake driver")

// A child that passes and has printed nothing.
#define EXPECT_SILENT_CHILD(result)                                                 \
  do {                                                                              \
    const ProcessResult silent = (result);                                          \
    if (silent.exit_code == kChildSkipped) GTEST_SKIP() << silent.out;              \
    EXPECT_TRUE(silent.ok() && silent.out.empty() && silent.err.empty()) << silent; \
  } while (false)

CHILD(com_19_load) {
  EXPECT_FALSE(a_driver_is_loaded());
  EXPECT_EQ(gpumem_version(), GPUMEM_VERSION);
  gpumem_status_name(GPUMEM_SUCCESS);
  gpumem_table table;
  table.struct_size = sizeof(table);
  EXPECT_OK(gpumem_table_get(GPUMEM_VERSION, &table, why()));
  open_backend(GPUMEM_BACKEND_HOST).close();
  EXPECT_FALSE(a_driver_is_loaded());
  EXPECT_OK(probe_cuda());
  EXPECT_TRUE(a_driver_is_loaded());
}

TEST_F(ComProcess, com_19_loading_the_library_loads_no_driver) {
  REQUIRE_FAKE_DRIVER();
  EXPECT_SILENT_CHILD(run_child("com_19_load", {"LD_LIBRARY_PATH=" + folder_of_fake_driver()}));
}

bool a_driver_is_installed() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver) dlclose(driver);
  return driver != nullptr;
}

// Of an instance, and of the probe that says what opening it would give.
void expect_no_fallback(gpumem_backend asked, gpumem_backend given) {
  gpumem_probe_info probe = GPUMEM_PROBE_INFO_INIT;
  EXPECT_OK(gpumem_instance_probe(asked, &probe, why()));
  const Instance instance = open_backend(asked);
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  EXPECT_OK(gpumem_instance_get_info(instance, &info, why()));
  EXPECT_EQ(probe.backend, given);
  EXPECT_EQ(info.backend, given);
  EXPECT_EQ(probe.fallback_status, GPUMEM_SUCCESS);
  EXPECT_EQ(info.fallback_status, GPUMEM_SUCCESS);
  EXPECT_STREQ(probe.fallback_reason, "");
  EXPECT_STREQ(info.fallback_reason, "");
}

CHILD(com_19_no_driver) {
  if (a_driver_is_installed()) skip_child("a driver is installed, so it cannot be missing");
  for (int i = 0; i < 3; ++i) {
    EXPECT_STATUS(GPUMEM_ERROR_DRIVER_NOT_FOUND, probe_cuda());
    EXPECT_NE(std::strstr(last_error().message, "libcuda.so.1"), nullptr) << last_error().message;
    EXPECT_STATUS(GPUMEM_ERROR_DRIVER_NOT_FOUND, open_cuda());
  }
  // Who leaves the choice to the library gets the host backend.
  gpumem_probe_info probe = GPUMEM_PROBE_INFO_INIT;
  EXPECT_OK(gpumem_instance_probe(GPUMEM_BACKEND_ANY, &probe, why()));
  EXPECT_EQ(probe.backend, GPUMEM_BACKEND_HOST);
  EXPECT_EQ(probe.fallback_status, GPUMEM_ERROR_DRIVER_NOT_FOUND);
  EXPECT_NE(std::strstr(probe.fallback_reason, "libcuda.so.1"), nullptr) << probe.fallback_reason;
  // It is told why: to the log as a warning, and by the instance for as long as it is open.
  std::vector<std::string> warnings;
  const auto listen = [](void* heard, gpumem_log_level, const char* message) {
    static_cast<std::vector<std::string>*>(heard)->push_back(message);
  };
  EXPECT_OK(gpumem_log_set_function(listen, &warnings, GPUMEM_LOG_WARNING, why()));
  const Instance instance = open_backend(GPUMEM_BACKEND_ANY);
  EXPECT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("libcuda.so.1"), std::string::npos) << warnings[0];
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  EXPECT_OK(gpumem_instance_get_info(instance, &info, why()));
  EXPECT_EQ(info.backend, GPUMEM_BACKEND_HOST);
  EXPECT_EQ(info.fallback_status, GPUMEM_ERROR_DRIVER_NOT_FOUND);
  EXPECT_STREQ(info.fallback_reason, probe.fallback_reason);
  // Who asks for the host backend has not fallen back to it.
  expect_no_fallback(GPUMEM_BACKEND_HOST, GPUMEM_BACKEND_HOST);
}

// Without a fallback there is nothing to explain.
CHILD(com_19_any_with_a_driver) { expect_no_fallback(GPUMEM_BACKEND_ANY, GPUMEM_BACKEND_CUDA); }

TEST_F(ComProcess, com_19_any_takes_a_driver_that_works) {
  REQUIRE_FAKE_DRIVER();
  EXPECT_SILENT_CHILD(run_child("com_19_any_with_a_driver", {"LD_LIBRARY_PATH=" + folder_of_fake_driver()}));
}

TEST_F(ComProcess, com_19_without_a_driver) {
  REQUIRE_CUDA_BACKEND();
  EXPECT_SILENT_CHILD(run_child("com_19_no_driver", {"LD_LIBRARY_PATH"}));
}

CHILD(com_19_driver_appears) {
  if (a_driver_is_installed()) skip_child("a driver is installed, so it cannot appear");
  EXPECT_STATUS(GPUMEM_ERROR_DRIVER_NOT_FOUND, probe_cuda());
  EXPECT_STATUS(GPUMEM_ERROR_DRIVER_NOT_FOUND, open_cuda());
  const std::string link = child_arguments().at(0) + "/libcuda.so.1";
  ASSERT_EQ(symlink(fake_driver().c_str(), link.c_str()), 0);
  EXPECT_OK(probe_cuda());
  EXPECT_OK(open_cuda());
}

TEST_F(ComProcess, com_19_a_driver_that_appears_later_is_seen) {
  REQUIRE_FAKE_DRIVER();
  std::string folder = testing::TempDir() + "gpumem_driver_XXXXXX";
  ASSERT_TRUE(mkdtemp(folder.data()));
  const ProcessResult result = run_child("com_19_driver_appears", {"LD_LIBRARY_PATH=" + folder}, {folder});
  std::filesystem::remove_all(folder);
  EXPECT_SILENT_CHILD(result);
}

CHILD(com_19_unusable) {
  const gpumem_status expected = std::stoi(child_arguments().at(0));
  for (int i = 0; i < 2; ++i) {
    EXPECT_STATUS(expected, probe_cuda());
    EXPECT_STATUS(expected, open_cuda());
  }
}

TEST_F(ComProcess, com_19_why_a_driver_is_unusable) {
  REQUIRE_FAKE_DRIVER();
  struct Case {
    const char* setting;
    gpumem_status expected;
  };
  for (const Case& one : {Case{"FAKE_CUDA_DEVICES=0", GPUMEM_ERROR_NO_DEVICE},
                          Case{"FAKE_CUDA_INIT=100", GPUMEM_ERROR_NO_DEVICE},
                          Case{"FAKE_CUDA_INIT=34", GPUMEM_ERROR_DRIVER_NOT_FOUND},
                          Case{"FAKE_CUDA_INIT=803", GPUMEM_ERROR_DRIVER_TOO_OLD},
                          Case{"FAKE_CUDA_INIT=800", GPUMEM_ERROR_PERMISSION_DENIED},
                          Case{"FAKE_CUDA_INIT=36", GPUMEM_ERROR_DRIVER_TOO_OLD}}) {
    const ProcessResult result =
        run_child("com_19_unusable", {"LD_LIBRARY_PATH=" + folder_of_fake_driver(), one.setting},
                  {std::to_string(one.expected)});
    EXPECT_TRUE(result.ok() && result.out.empty() && result.err.empty()) << one.setting << ": " << result;
  }
}

// ---- COM-20 on cuda: an old driver ----

CHILD(com_20_oldest_driver) {
  const Instance instance = open_backend(GPUMEM_BACKEND_CUDA);
  ASSERT_TRUE(instance.get());
  const Memory memory = alloc_device(instance.device(), kMiB);
  const Memory pinned = alloc_pinned(instance.device(), kMiB);
  const Stream stream = create_stream(instance.device());
  fill_pattern(pinned.host(), kMiB, 8);
  EXPECT_OK(gpumem_copy_async(stream, memory.device(), pinned.host(), kMiB, nullptr, why()));
  stream.synchronize();
  EXPECT_TRUE(holds_pattern(instance, memory.device(), kMiB, 8));
}

TEST_F(ComProcess, com_20_the_oldest_driver_works) {
  REQUIRE_FAKE_DRIVER();
  EXPECT_SILENT_CHILD(run_child("com_20_oldest_driver",
                                {"LD_LIBRARY_PATH=" + folder_of_fake_driver(), "FAKE_CUDA_VERSION=11.2"}));
}

// ---- COM-25: fork ----

TEST_F(ComProcess, com_25_a_child_gets_forked) {
  Pages pages(page_size());
  const Memory memory = alloc_device(device_, kMiB);
  const Memory registered = register_memory(device_, pages.get(), page_size());
  const Stream stream = create_stream(device_);
  const Event event = create_event(device_);
  put_pattern(instance_, memory.device(), kMiB, 2);
  uint8_t* const address = memory.device();
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kMiB);

  const ProcessResult result = in_forked_child([&] {
    const auto expect_forked = [](const char* what, gpumem_status status) {
      EXPECT_STATUS(GPUMEM_ERROR_FORKED, status) << what;
    };
    const auto nothing = [](void*) {};
    gpumem_instance_info instance_info = GPUMEM_INSTANCE_INFO_INIT;
    gpumem_device_info device_info = GPUMEM_DEVICE_INFO_INIT;
    gpumem_memory_info memory_info = GPUMEM_MEMORY_INFO_INIT;
    gpumem_pointer_info of_pointer = GPUMEM_POINTER_INFO_INIT;
    gpumem_capability_info capability_info = GPUMEM_CAPABILITY_INFO_INIT;
    gpumem_stats now = GPUMEM_STATS_INIT;
    gpumem_memory created = nullptr;
    gpumem_device device = nullptr;
    void* pointer = nullptr;
    expect_forked("instance info", gpumem_instance_get_info(instance_, &instance_info, why()));
    expect_forked("close", gpumem_instance_close(instance_, GPUMEM_CLOSE_FORCE, nullptr, why()));
    expect_forked("device", gpumem_device_get(instance_, 0, &device, why()));
    expect_forked("device info", gpumem_device_get_info(device_, &device_info, why()));
    expect_forked("device memory", gpumem_device_get_memory(device_, nullptr, nullptr, why()));
    expect_forked("capability", gpumem_device_get_capability(device_, GPUMEM_CAPABILITY_UVA, nullptr,
                                                             &capability_info, why()));
    expect_forked("create", gpumem_memory_create(device_, &desc, &created, why()));
    expect_forked("malloc", gpumem_malloc(device_, GPUMEM_KIND_DEVICE, kMiB, &pointer, why()));
    expect_forked("free", gpumem_free(instance_, address, why()));
    expect_forked("unregister", gpumem_unregister(instance_, pages.get(), why()));
    expect_forked("memory info", gpumem_memory_get_info(memory.get(), &memory_info, why()));
    expect_forked("destroy memory", gpumem_memory_destroy(memory.get(), why()));
    expect_forked("pointer", gpumem_pointer_get_info(instance_, address, &of_pointer, why()));
    expect_forked("copy", gpumem_copy_async(stream, address, pages.get(), 16, nullptr, why()));
    expect_forked("fill", gpumem_fill(instance_, address, 16, 0, 1, why()));
    expect_forked("query stream", gpumem_stream_query(stream.get(), why()));
    expect_forked("synchronize", gpumem_stream_synchronize(stream.get(), GPUMEM_TIMEOUT_INFINITE, why()));
    expect_forked("launch", gpumem_stream_launch_host_function(stream.get(), nothing, nullptr, why()));
    expect_forked("destroy stream", gpumem_stream_destroy(stream.get(), why()));
    expect_forked("record", gpumem_event_record(event.get(), stream.get(), why()));
    expect_forked("query event", gpumem_event_query(event.get(), why()));
    expect_forked("destroy event", gpumem_event_destroy(event.get(), why()));
    expect_forked("stats", gpumem_stats_get(instance_, &now, why()));
    gpumem_kind_stats of_kind = GPUMEM_KIND_STATS_INIT;
    expect_forked("stats of a kind", gpumem_stats_get_kind(instance_, GPUMEM_KIND_DEVICE, &of_kind, why()));
    gpumem_access access = GPUMEM_ACCESS_NONE;
    expect_forked("access",
                  gpumem_pointer_get_access(instance_, address, GPUMEM_LOCATION_HOST, 0, &access, why()));
    const gpumem_register_desc of_pages = register_desc(pages.get(), 16);
    expect_forked("register", gpumem_memory_register(device_, &of_pages, &created, why()));
    gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
    region.destination.memory = memory;
    region.source.pointer = pages.get();
    region.width = 16;
    uint64_t failed = 77;
    expect_forked("regions", gpumem_copy_regions(instance_, &region, 1, &failed, why()));
    expect_forked("regions in a stream", gpumem_copy_regions_async(stream, &region, 1, &failed, why()));
    EXPECT_EQ(failed, 77u);
    // FORKED comes before everything else that is wrong (COM-17).
    expect_forked("NULL output", gpumem_memory_get_info(memory.get(), nullptr, why()));
    // What needs no instance goes on.
    EXPECT_STREQ(gpumem_status_name(GPUMEM_ERROR_FORKED), "GPUMEM_ERROR_FORKED");
    EXPECT_OK(gpumem_memory_destroy(nullptr, why()));
  });
  EXPECT_TRUE(result.ok()) << result;
  EXPECT_TRUE(holds_pattern(instance_, address, kMiB, 2));
}

TEST_F(ComProcess, com_25_a_child_cannot_touch_the_memory) {
  Pages pages(page_size());
  const Memory memory = alloc_device(device_, kMiB);
  const Memory pinned = alloc_pinned(device_, kMiB);
  const Memory registered = register_memory(device_, pages.get(), page_size());
  fill_pattern(pages.get(), page_size(), 3);
  fill_pattern(pinned.host(), kMiB, 4);
  uint8_t* const host = pinned.host();
  uint8_t* const device = memory.device();
  const ProcessResult result = in_forked_child([&] {
    EXPECT_TRUE(read_faults(host));
    EXPECT_TRUE(read_faults(host + kMiB - 1));
    EXPECT_TRUE(read_faults(device));
    // Registered memory is the caller's and follows the ordinary rules.
    EXPECT_TRUE(has_pattern(pages.get(), page_size(), 3));
    std::memset(pages.get(), 0, page_size());
  });
  EXPECT_TRUE(result.ok()) << result;
  EXPECT_TRUE(has_pattern(pages.get(), page_size(), 3));
  EXPECT_TRUE(has_pattern(host, kMiB, 4));
}

TEST_F(ComProcess, com_25_a_child_opens_its_own) {
  const Memory pinned = alloc_pinned(device_, kMiB);
  const ProcessResult result = in_forked_child([&] {
    if (on_cuda()) {
      gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
      desc.backend = GPUMEM_BACKEND_CUDA;
      gpumem_instance none = nullptr;
      EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_instance_open(&desc, &none, why()));
      EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_instance_probe(GPUMEM_BACKEND_CUDA, nullptr, why()));
    }
    const Instance own = open_backend(GPUMEM_BACKEND_HOST);
    ASSERT_TRUE(own.get());
    const Memory memory = alloc_device(own.device(), kMiB);
    const Stream stream = create_stream(own.device());
    EXPECT_OK(gpumem_fill_async(stream, memory.device(), kMiB, 0x11, 1, why()));
    stream.synchronize();
    std::vector<uint8_t> bytes(kMiB);
    EXPECT_OK(gpumem_copy(own, bytes.data(), memory.device(), kMiB, nullptr, why()));
    EXPECT_EQ(bytes, std::vector<uint8_t>(kMiB, 0x11));
    // The parent's objects stay out of reach.
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_memory_get_info(pinned.get(), &info, why()));
  });
  EXPECT_TRUE(result.ok()) << result;
}

TEST_F(ComProcess, com_25_fork_and_exec_is_safe_at_any_time) {
  const Memory memory = alloc_device(device_, kMiB);
  const Memory pinned = alloc_pinned(device_, kMiB);
  fill_pattern(pinned.host(), kMiB, 7);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_copy_async(stream, memory.device(), pinned.host(), kMiB, nullptr, why()));
  const ProcessResult result = in_forked_child([] {
    execl("/bin/true", "true", static_cast<char*>(nullptr));
    ADD_FAILURE() << "cannot run /bin/true";
  });
  EXPECT_TRUE(result.ok()) << result;
  stream.finish();
  EXPECT_TRUE(holds_pattern(instance_, memory.device(), kMiB, 7));
}

CHILD(com_25_exit) {
  const Instance instance = open_instance();
  const Memory memory = alloc_device(instance.device(), kMiB);
  const Stream stream = create_stream(instance.device());
  const pid_t pid = gpumem::test::quiet_fork();
  if (pid == 0) {
    alarm(gpumem::test::kHangSeconds);
    std::exit(0);  // with exit handlers and static destructors, not only _exit
  }
  expect_good_end(pid);
}

TEST_F(ComProcess, com_25_a_forked_child_can_exit) {
  // A leak checker cannot stop the threads that the forked child has not got.
  EXPECT_SILENT_CHILD(run_child("com_25_exit", {"LSAN_OPTIONS=detect_leaks=0"}));
}

CHILD(com_25_default_instance) {
  gpumem_instance instance = nullptr;
  gpumem_instance again = nullptr;
  ASSERT_OK(gpumem_instance_default(&instance, why()));
  ASSERT_OK(gpumem_instance_default(&again, why()));
  EXPECT_EQ(instance, again);
  // It belongs to the process: nobody closes it for the others.
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why()));
  const pid_t pid = gpumem::test::quiet_fork();
  if (pid == 0) {
    alarm(gpumem::test::kHangSeconds);
    gpumem_instance own = nullptr;
    gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_instance_get_info(instance, &info, why()));
    EXPECT_OK(gpumem_instance_default(&own, why()));
    EXPECT_NE(own, instance);
    EXPECT_OK(gpumem_instance_get_info(own, &info, why()));
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  expect_good_end(pid);
}

TEST_F(ComProcess, com_25_a_child_has_its_own_default_instance) {
  EXPECT_SILENT_CHILD(run_child("com_25_default_instance", {"GPUMEM_BACKEND=host"}));
}

// ---- HST-2 from the environment ----

CHILD(hst_2_environment) {
  gpumem_instance instance = nullptr;
  ASSERT_OK(gpumem_instance_default(&instance, why()));
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  EXPECT_OK(gpumem_instance_get_info(instance, &info, why()));
  EXPECT_EQ(info.backend, GPUMEM_BACKEND_HOST);
  EXPECT_EQ(info.device_count, 3u);
  EXPECT_EQ(info.pin_budget, kMiB);
  gpumem_device device = nullptr;
  gpumem_device_info device_info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get(instance, 2, &device, why()));
  EXPECT_OK(gpumem_device_get_info(device, &device_info, why()));
  EXPECT_EQ(device_info.total_bytes, 8 * kMiB);
}

CHILD(hst_2_environment_out_of_range) {
  gpumem_instance instance = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_instance_default(&instance, why()));
  EXPECT_NE(std::strstr(last_error().message, child_arguments().at(0).c_str()), nullptr)
      << last_error().message;
  EXPECT_EQ(instance, nullptr);
}

TEST_F(ComProcess, hst_2_options_of_the_default_instance) {
  EXPECT_SILENT_CHILD(
      run_child("hst_2_environment",
                {"GPUMEM_BACKEND=host", "GPUMEM_HOST_DEVICES=3", "GPUMEM_HOST_DEVICE_BYTES=8388608",
                 "GPUMEM_PIN_BUDGET=1048576", "GPUMEM_TRANSFER_THREADS=off"}));
  for (const char* wrong : {"GPUMEM_HOST_DEVICES=65", "GPUMEM_HOST_DEVICES=many", "GPUMEM_HOST_DEVICES=-1",
                            "GPUMEM_HOST_GRANULARITY=3", "GPUMEM_HOST_LOCK=maybe",
                            "GPUMEM_HOST_MASKED=nothing", "GPUMEM_HOST_PEERS=0>9", "GPUMEM_PIN_BUDGET=1e6",
                            "GPUMEM_TRANSFER_THREADS=on", "GPUMEM_BACKEND=metal"}) {
    const std::string setting = wrong;
    const std::string name = setting.substr(0, setting.find('='));
    std::vector<std::string> environment = {setting};
    if (name != "GPUMEM_BACKEND") environment.push_back("GPUMEM_BACKEND=host");
    const ProcessResult result = run_child("hst_2_environment_out_of_range", environment, {name});
    EXPECT_TRUE(result.ok()) << wrong << ": " << result;
  }
}

// ---- COM-26: the end of the process ----

// The fake driver reports calls that come too late on the error output.
const std::vector<std::string> kReportLateCalls = {"FAKE_CUDA_REPORT=/proc/self/fd/2"};

CHILD(com_26_exit_with_live_objects) {
  static uint8_t bytes[4096];
  const auto [instance, device, stream] = LeftOpen();
  const gpumem_memory memory = alloc_device(device, kMiB).release();
  alloc_pinned(device, kMiB).release();
  register_memory(device, bytes, sizeof(bytes)).release();
  create_event(device).release();
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  ASSERT_OK(gpumem_memory_get_info(memory, &info, why()));
  ASSERT_OK(gpumem_fill_async(stream, info.device_pointer, kMiB, 1, 1, why()));
}

TEST_F(ComProcess, com_26_exit_with_live_objects) {
  EXPECT_SILENT_CHILD(run_child("com_26_exit_with_live_objects", kReportLateCalls));
}

CHILD(com_26_exit_with_pending_work) {
  if (!on_host()) skip_child("a driver may wait for pending work when the process ends");
  static auto& gate = *new Gate;  // never opened
  gate.hold(LeftOpen().stream);
  gate.wait_until_reached();
}

TEST_F(ComProcess, com_26_exit_with_pending_work) {
  EXPECT_SILENT_CHILD(run_child("com_26_exit_with_pending_work"));
}

gpumem_device device_at_exit = nullptr;
gpumem_memory memory_at_exit = nullptr;

void call_late() {
  gpumem_memory memory = nullptr;
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kMiB);
  const gpumem_status created = gpumem_memory_create(device_at_exit, &desc, &memory, nullptr);
  const gpumem_status destroyed = gpumem_memory_destroy(memory_at_exit, nullptr);
  // The driver has ended by now; the host backend has nothing that could end.
  const bool right =
      on_host() ? created == GPUMEM_SUCCESS && destroyed == GPUMEM_SUCCESS : created == GPUMEM_ERROR_CLOSED;
  if (!right) {
    std::fprintf(stderr, "create: %s, destroy: %s\n", gpumem_status_name(created),
                 gpumem_status_name(destroyed));
    _exit(1);
  }
}

CHILD(com_26_calls_at_exit) {
  std::atexit(call_late);  // before the driver registers its own handlers, so that it runs after them
  device_at_exit = LeftOpen().device;
  memory_at_exit = alloc_device(device_at_exit, kMiB).release();
}

TEST_F(ComProcess, com_26_calls_at_exit) { EXPECT_SILENT_CHILD(run_child("com_26_calls_at_exit")); }

CHILD(com_26_exit_beside_a_thread) {
  const gpumem_memory memory = alloc_device(LeftOpen().device, kMiB).release();
  static std::atomic<bool> running{false};
  std::thread([memory] {
    for (;;) {
      gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
      if (gpumem_memory_get_info(memory, &info, nullptr) == GPUMEM_SUCCESS) running = true;
    }
  }).detach();
  while (!running)
    std::this_thread::yield();
}

TEST_F(ComProcess, com_26_exit_beside_a_thread_that_calls) {
  EXPECT_SILENT_CHILD(run_child("com_26_exit_beside_a_thread"));
}

}  // namespace
}  // namespace conformance
