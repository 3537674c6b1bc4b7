// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "loop.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "../quiet_fork.h"
#include "../sanitizer.h"

#ifdef HAVE_CUDA_HEADERS
#include <cuda.h>

#include "fake_cuda.h"
#endif

namespace faults {

bool is_set(const void* value) {
  void* pattern = nullptr;
  unset(pattern);
  return value != nullptr && value != pattern;
}

namespace {

// ---- the fake driver ----

#ifdef HAVE_CUDA_HEADERS

// Found once, before any fault: the look-up goes through calls that can be made to fail. Null without the
// library.
struct Fake {
#define FAKE_FUNCTIONS(X) \
  X(fake_cuda_reset)      \
  X(fake_cuda_live)       \
  X(fake_cuda_failures)   \
  X(fake_cuda_call_count) \
  X(fake_cuda_set_sticky) \
  X(fake_cuda_fail)       \
  X(fake_cuda_configure)  \
  X(fake_cuda_violations) \
  X(fake_cuda_clear_violations) X(fake_cuda_settle) X(fake_cuda_section_begin) X(fake_cuda_section_end)
#define FAKE_MEMBER(name) decltype(&::name) name = nullptr;
  FAKE_FUNCTIONS(FAKE_MEMBER)
};

const Fake& fake() {
  static const Fake found = [] {
    Fake functions;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return functions;
#define FAKE_FIND(name) functions.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));
    FAKE_FUNCTIONS(FAKE_FIND)
    return functions;
  }();
  return found;
}

uint64_t driver_objects() { return have_fake_driver() ? fake().fake_cuda_live(FAKE_CUDA_ANY) : 0; }
uint64_t driver_failures() { return have_fake_driver() ? fake().fake_cuda_failures() : 0; }
uint64_t driver_calls() { return have_fake_driver() ? fake().fake_cuda_call_count("*") : 0; }
void arm_driver(const Fault& fault) {
  fake().fake_cuda_fail("*", fault.k, fault.forever ? 1 : 0, fault.code);
}
void disarm_driver() { fake().fake_cuda_configure("FAKE_CUDA_FAIL", ""); }
void settle_driver() { EXPECT_EQ(fake().fake_cuda_settle(), 1); }
void set_vmm(bool has) {
  EXPECT_EQ(fake().fake_cuda_configure("FAKE_CUDA_ATTRIBUTE_102", has ? "1" : "0"), 0);
}
void set_granularity(uint64_t bytes) {
  EXPECT_EQ(fake().fake_cuda_configure("FAKE_CUDA_GRANULARITY", std::to_string(bytes).c_str()), 0);
}
// All devices are lost from this call of the driver on.
void lose_at(uint64_t call) {
  const std::string value = std::to_string(call) + ":" + std::to_string(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(fake().fake_cuda_configure("FAKE_CUDA_STICKY", value.c_str()), 0);
}
// What no real driver does.
void mend_devices() { fake().fake_cuda_set_sticky(-1, 0); }

// Also says so if a call left another context current than it found.
std::string violations() {
  if (!have_fake_driver()) return "";
  char text[4096];
  fake().fake_cuda_violations(text, sizeof text);
  fake().fake_cuda_clear_violations();
  return text;
}

gpumem_status call_step(const Step& step, World& world) {
  if (!have_fake_driver()) return step.call(world);
  fake().fake_cuda_section_begin();
  const gpumem_status status = step.call(world);
  fake().fake_cuda_section_end(step.function);
  return status;
}

constexpr int kSticky = CUDA_ERROR_ILLEGAL_ADDRESS;

struct Code {
  int code;
  const char* name;
  gpumem_status status;
};
constexpr Code kDriverCodes[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", GPUMEM_ERROR_OUT_OF_HOST_MEMORY},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", GPUMEM_ERROR_INTERNAL},
    {kSticky, "CUDA_ERROR_ILLEGAL_ADDRESS", GPUMEM_ERROR_DEVICE_LOST}};

#else

uint64_t driver_objects() { return 0; }
uint64_t driver_failures() { return 0; }
uint64_t driver_calls() { return 0; }
void set_vmm(bool) {}
void set_granularity(uint64_t) {}
void lose_at(uint64_t) {}
void mend_devices() {}
void arm_driver(const Fault&) {}
void disarm_driver() {}
void settle_driver() {}
std::string violations() { return ""; }
gpumem_status call_step(const Step& step, World& world) { return step.call(world); }

constexpr int kSticky = 700;

struct Code {
  int code;
  const char* name;
  gpumem_status status;
};
constexpr Code kDriverCodes[] = {{kSticky, "CUDA_ERROR_ILLEGAL_ADDRESS", GPUMEM_ERROR_DEVICE_LOST}};

#endif

constexpr uint64_t kNever = uint64_t{1} << 62;

bool is_sticky(const Fault& fault) { return fault.kind == Kind::kDriver && fault.code == kSticky; }

// ---- what there is ----

size_t count_entries(const char* folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

size_t count_threads() { return count_entries("/proc/self/task"); }

long locked_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmLck:")) return std::stol(line.substr(6));
  }
  ADD_FAILURE() << "/proc/self/status has no VmLck";
  return -1;
}

bool is_lost(const World& world, size_t ordinal) {
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  const gpumem_device device = world.out.device[ordinal];
  return is_set(device) && gpumem_device_get_info(device, &info, nullptr) == GPUMEM_SUCCESS && info.lost != 0;
}

// They sleep against the caller's wish, and keep what they have stored.
bool has_failed_buffers(const World& world) {
  gpumem_group_info info = GPUMEM_GROUP_INFO_INIT;
  const gpumem_group group = world.out.group[0];
  return is_set(group) && gpumem_group_get_info(group, nullptr, &info, nullptr) == GPUMEM_SUCCESS &&
         info.failed_count != 0;
}

struct Snapshot {
  size_t files = 0;
  size_t threads = 0;
  int64_t mapped = 0;
  int64_t libraries = 0;
  long locked = 0;
  uint64_t driver = 0;
  // Of the instance, if there is one:
  gpumem_stats stats = GPUMEM_STATS_INIT;
  std::array<gpumem_kind_stats, 6> kinds{};
  uint64_t free[2] = {};
};

Snapshot take(const World& world) {
  Snapshot now;
  now.files = count_entries("/proc/self/fd");
  now.threads = count_threads();
  now.mapped = mapped_bytes() - record_bytes() - world.mapped_before;
  now.libraries = loaded_libraries();
  now.locked = locked_kilobytes();
  now.driver = driver_objects();
  if (!is_set(world.out.instance)) return now;
  EXPECT_EQ(gpumem_stats_get(world.out.instance, &now.stats, nullptr), GPUMEM_SUCCESS);
  EXPECT_GE(now.stats.peak_bytes, now.stats.live_bytes);
  now.stats.peak_bytes = 0;  // what a failing call gives back has lived
  size_t place = 0;
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_REGISTERED,
                                 GPUMEM_KIND_MANAGED, GPUMEM_KIND_VIRTUAL, GPUMEM_KIND_IMPORTED}) {
    gpumem_kind_stats& counts = now.kinds.at(place++);
    counts.struct_size = sizeof counts;
    EXPECT_EQ(gpumem_stats_get_kind(world.out.instance, kind, &counts, nullptr), GPUMEM_SUCCESS);
  }
  for (size_t i = 0; i < 2; ++i) {
    const gpumem_device device = world.out.device[i];
    if (!is_set(device)) continue;
    const gpumem_status told = gpumem_device_get_memory(device, &now.free[i], nullptr, nullptr);
    EXPECT_TRUE(told == GPUMEM_SUCCESS || told == GPUMEM_ERROR_DEVICE_LOST) << gpumem_status_name(told);
  }
  return now;
}

// How many there are without the library. A sanitizer starts one of its own beside the first.
size_t usual_threads() {
  pid_t id = 0;
  std::thread([&] { id = gettid(); }).join();
  // A thread that was joined is listed until the kernel has cleaned up after it.
  while (std::filesystem::exists("/proc/self/task/" + std::to_string(id)))
    std::this_thread::yield();
  return count_threads();
}

// The last count, at most `most` unless it stays above that. Sleeps in between, so that who is waited for has
// the processor.
template <class Count>
size_t wait_for_at_most(size_t most, Count count) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  size_t now = count();
  for (std::chrono::microseconds pause{10}; now > most && std::chrono::steady_clock::now() < limit;
       pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(1))) {
    std::this_thread::sleep_for(pause);
    now = count();
  }
  return now;
}

// Threads that nobody joins are listed until the kernel has cleaned up after them.
size_t wait_for_threads(size_t most) { return wait_for_at_most(most, count_threads); }

// The sharing thread closes the end of a connection once the other end is closed, and a thread that starts
// reads which processors its node has.
size_t wait_for_files(size_t most) {
  return wait_for_at_most(most, [] { return count_entries("/proc/self/fd"); });
}

// `extra` streams may have been added, each with a thread. The threads of the fake driver, which start when
// they are first needed, do not count. A lost device keeps addresses that it may still take for registered
// ones.
// Of what a call of many steps has made and given back, peaks and totals tell, and addresses may rest.
void expect_no_more_than(const Snapshot& wanted, const World& world, const Scenario& scenario, bool of_many) {
  const size_t extra = scenario.idle_streams;
  const bool own_threads = world.backend == GPUMEM_BACKEND_HOST;
  const size_t threads = own_threads ? wait_for_threads(wanted.threads + extra) : 0;
  const size_t files = has_failed_buffers(world) ? 0 : wait_for_files(wanted.files + scenario.idle_files);
  const Snapshot now = take(world);
  EXPECT_LE(files, wanted.files + scenario.idle_files)
      << "file descriptors; " << wanted.files << " before the step";
  EXPECT_LE(threads, wanted.threads + extra) << "threads; " << wanted.threads << " before the step";
  EXPECT_TRUE(of_many || is_lost(world, 0) || is_lost(world, 1) || now.mapped <= wanted.mapped)
      << "mapped bytes: " << wanted.mapped << " before, " << now.mapped << " now";
  EXPECT_LE(now.libraries, wanted.libraries) << "loaded libraries";
  EXPECT_TRUE(has_failed_buffers(world) || now.locked <= wanted.locked + scenario.idle_locked)
      << "locked kilobytes: " << wanted.locked << " before, " << now.locked << " now";
  EXPECT_TRUE(has_failed_buffers(world) || now.driver <= wanted.driver + extra) << "objects of the driver";
  EXPECT_TRUE(has_failed_buffers(world) || scenario.trims ||
              std::memcmp(&now.stats, &wanted.stats, sizeof now.stats) == 0)
      << "counts of the instance";
  EXPECT_TRUE(of_many || std::memcmp(&now.kinds, &wanted.kinds, sizeof now.kinds) == 0) << "counts of a kind";
  for (size_t i = 0; i < now.kinds.size() && !has_failed_buffers(world); ++i) {
    if (scenario.trims) {
      EXPECT_LE(now.kinds.at(i).live_count, wanted.kinds.at(i).live_count) << "of kind " << i;
      EXPECT_LE(now.kinds.at(i).live_bytes, wanted.kinds.at(i).live_bytes) << "of kind " << i;
      continue;
    }
    EXPECT_EQ(now.kinds.at(i).live_count, wanted.kinds.at(i).live_count) << "of kind " << i;
    EXPECT_EQ(now.kinds.at(i).live_bytes, wanted.kinds.at(i).live_bytes) << "of kind " << i;
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GE(now.free[i], is_lost(world, i) ? 0 : wanted.free[i]) << "free bytes of device " << i;
  }
}

// ---- one attempt ----

void prepare_outputs(Out& out) {
  unset(out);
  out.probe.struct_size = sizeof out.probe;
  out.instance_info.struct_size = sizeof out.instance_info;
  out.device_info.struct_size = sizeof out.device_info;
  out.capability_info.struct_size = sizeof out.capability_info;
  out.memory_info.struct_size = sizeof out.memory_info;
  out.physical_info.struct_size = sizeof out.physical_info;
  out.range_info.struct_size = sizeof out.range_info;
  out.buffer_info.struct_size = sizeof out.buffer_info;
  out.group_info.struct_size = sizeof out.group_info;
  out.mapping_info.struct_size = sizeof out.mapping_info;
  out.pointer_info.struct_size = sizeof out.pointer_info;
  out.managed_info.struct_size = sizeof out.managed_info;
  out.stream_info.struct_size = sizeof out.stream_info;
  out.event_info.struct_size = sizeof out.event_info;
  out.share_info.struct_size = sizeof out.share_info;
  out.import_info.struct_size = sizeof out.import_info;
  out.way_info.struct_size = sizeof out.way_info;
  out.hub_info.struct_size = sizeof out.hub_info;
  out.link_info.struct_size = sizeof out.link_info;
  out.entry_info.struct_size = sizeof out.entry_info;
  out.ring_slot.struct_size = sizeof out.ring_slot;
  out.ring_info.struct_size = sizeof out.ring_info;
  out.pool_info.struct_size = sizeof out.pool_info;
  out.pool_class_info.struct_size = sizeof out.pool_class_info;
  out.pool_block_info.struct_size = sizeof out.pool_block_info;
  out.status_info.struct_size = sizeof out.status_info;
  out.stats.struct_size = sizeof out.stats;
  out.kind_stats.struct_size = sizeof out.kind_stats;
  out.table.struct_size = sizeof out.table;
}

std::string describe(const World& world, gpumem_status status) {
  return std::string(gpumem_status_name(status)) + ": " + world.error.message + " [" +
         world.error.entry_point + " " + world.error.native_name + "]";
}

void must(const Step& step, World& world) {
  const gpumem_status status = call_step(step, world);
  ASSERT_EQ(status, step.expected) << step.function << ": " << describe(world, status);
}

void open_instance(const Scenario& scenario, World& world) {
  gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
  host.device_count = 2;
  host.quarantine = 1;  // a freed range more or less would look like a leak
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = world.backend;
  desc.host = &host;
  if (scenario.options) scenario.options(desc, host);
  must(CALL(gpumem_instance_open, &desc, &w.out.instance), world);
  for (uint32_t i = 0; i < 2; ++i)
    must(CALL(gpumem_device_get, w.out.instance, i, &w.out.device[i]), world);
}

template <class T, size_t N, class End>
void end_all(T (&places)[N], End end) {
  // The other way round, because what adopts comes after what it adopts.
  for (size_t i = N; i-- > 0;) {
    if (is_set(places[i])) end(places[i]);
  }
}

// Unmaps whatever is mapped.
void empty(gpumem_range range, World& world) {
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  ASSERT_EQ(gpumem_range_get_info(range, &info, nullptr), GPUMEM_SUCCESS);
  for (uint64_t offset = 0; offset < info.size; offset += info.granularity) {
    gpumem_mapping_info mapping = GPUMEM_MAPPING_INFO_INIT;
    const void* const address = static_cast<const char*>(info.base) + offset;
    if (gpumem_range_get_mapping(world.out.instance, address, &mapping, nullptr) != GPUMEM_SUCCESS) continue;
    must(CALL(gpumem_range_unmap, range, offset, mapping.size), world);
  }
}

// Gives everything back that the scenario has made and not ended.
void give_back(const Scenario& scenario, World& world, bool lost) {
  for (const Step& step : scenario.after)
    must(step, world);
  if (!lost) {
    end_all(world.out.stream, [&](gpumem_stream stream) {
      must(CALL(gpumem_stream_synchronize, stream, GPUMEM_TIMEOUT_INFINITE), world);
    });
  }
  const auto free_block = [&](void* block) {
    must(CALL(gpumem_pool_free_pointer, w.out.instance, block, nullptr), world);
  };
  end_all(world.out.block, free_block);
  end_all(world.out.some_blocks, free_block);
  end_all(world.out.pool, [&](gpumem_pool pool) { must(CALL(gpumem_pool_destroy, pool), world); });
  end_all(world.out.ring, [&](gpumem_ring ring) { must(CALL(gpumem_ring_destroy, ring), world); });
  end_all(world.out.link, [&](gpumem_link link) { must(CALL(gpumem_link_close, link), world); });
  end_all(world.out.hub, [&](gpumem_hub hub) { must(CALL(gpumem_hub_close, hub), world); });
  end_all(world.out.registered,
          [&](void* pointer) { must(CALL(gpumem_unregister, w.out.instance, pointer), world); });
  end_all(world.out.pointer, [&](void* pointer) { must(CALL(gpumem_free, w.out.instance, pointer), world); });
  end_all(world.out.memory, [&](gpumem_memory memory) { must(CALL(gpumem_memory_destroy, memory), world); });
  end_all(world.out.buffer, [&](gpumem_buffer buffer) { must(CALL(gpumem_buffer_destroy, buffer), world); });
  end_all(world.out.group, [&](gpumem_group group) { must(CALL(gpumem_group_destroy, group), world); });
  end_all(world.out.range, [&](gpumem_range range) {
    empty(range, world);
    must(CALL(gpumem_range_release, range), world);
  });
  end_all(world.out.physical,
          [&](gpumem_physical physical) { must(CALL(gpumem_physical_release, physical), world); });
  if (world.out.file >= 0) close(world.out.file);
  for (const int32_t file : world.out.files)
    if (file >= 0) close(file);
  for (const int32_t end : world.out.pair)
    if (end >= 0) close(end);
  end_all(world.out.event, [&](gpumem_event event) { must(CALL(gpumem_event_destroy, event), world); });
  end_all(world.out.stream, [&](gpumem_stream stream) { must(CALL(gpumem_stream_destroy, stream), world); });
  end_all(world.out.foreign,
          [&](void* pointer) { must(CALL(gpumem_host_foreign_free, w.out.device[0], pointer), world); });
  end_all(world.out.native, [&](void* stream) {
    must(CALL(gpumem_host_native_stream_destroy, w.out.device[0], stream), world);
  });
  if (is_set(world.out.other))
    must(CALL(gpumem_instance_close, w.out.other, GPUMEM_CLOSE_CHECK, nullptr), world);
  if (is_set(world.out.instance) && !scenario.keeps)
    must(CALL(gpumem_instance_close, w.out.instance, GPUMEM_CLOSE_CHECK, nullptr), world);
}

gpumem_status status_of_system_call(const Step& step, const gpumem_error& error) {
  const std::string call = error.entry_point;
  const int code = error.native_code;
  if (call == "mlock") return code == EAGAIN ? GPUMEM_ERROR_OUT_OF_HOST_MEMORY : GPUMEM_ERROR_LIMIT_EXCEEDED;
  if (call == "mbind" && code == EPERM) return GPUMEM_ERROR_PERMISSION_DENIED;
  if (call == "mbind" && code == ENOSYS) return GPUMEM_ERROR_UNSUPPORTED;
  if (call == "memfd_create" && (code == EMFILE || code == ENFILE)) return GPUMEM_ERROR_LIMIT_EXCEEDED;
  if (call == "dlopen") return GPUMEM_ERROR_DRIVER_NOT_FOUND;
  // Those of sharing.
  if (call != "mmap" && (code == EMFILE || code == ENFILE)) return GPUMEM_ERROR_LIMIT_EXCEEDED;
  for (const char* each : {"socket", "socketpair", "bind", "connect", "sendmsg", "recvmsg", "ppoll", "mkdir",
                           "flock", "fchmodat", "epoll_create1", "epoll_ctl", "eventfd"}) {
    if (call != each) continue;
    if (code == EACCES) return GPUMEM_ERROR_PERMISSION_DENIED;
    return code == ENOSPC ? GPUMEM_ERROR_LIMIT_EXCEEDED : GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
  }
  // The pages of memory, or a file of the program.
  const bool of_memory = std::strstr(error.message, "the system does not have enough memory") != nullptr;
  if (call == "pwrite" && of_memory) return step.exhausted;
  if (call == "open" || call == "mkostemp" || call == "posix_fallocate" || call == "pwrite")
    return code == EIO ? GPUMEM_ERROR_INTERNAL : GPUMEM_ERROR_LIMIT_EXCEEDED;
  const bool of_program = std::strcmp(step.function, "gpumem_copy_file") == 0;
  if (call == "pread" && code == ENOMEM) return GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
  if (call == "pread") return of_program ? GPUMEM_ERROR_INTERNAL : GPUMEM_ERROR_CONTENT_LOST;
  if (call == "pthread_create") return GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
  const bool for_records = std::strstr(error.message, "the library's records") != nullptr;
  if (for_records) return GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
  return step.exhausted;
}

void check_system_failure(const Step& step, const gpumem_error& error) {
  const std::string call = error.entry_point;
  if (call == "dlopen") {
    EXPECT_TRUE(was_hit("dlopen", 0));
    EXPECT_EQ(error.native_domain, GPUMEM_NATIVE_NONE);
  } else if (error.native_domain == GPUMEM_NATIVE_NONE && was_hit("dlsym", 0)) {
    EXPECT_EQ(error.status, GPUMEM_ERROR_SYMBOL_MISSING);
    return;
  } else {
    EXPECT_EQ(error.native_domain, GPUMEM_NATIVE_ERRNO);
    EXPECT_TRUE(was_hit(error.entry_point, error.native_code)) << "another call failed, or with another code";
    EXPECT_STREQ(error.native_name, strerrorname_np(error.native_code));
  }
  const gpumem_status expected = status_of_system_call(step, error);
  if (step.of_many && expected == step.exhausted) {
    EXPECT_TRUE(error.status == expected || error.status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY) << error.message;
  } else {
    EXPECT_EQ(error.status, expected);
  }
}

// What CUDA_ERROR_OUT_OF_MEMORY of a driver call means where only one thing can be meant.
gpumem_status lack_at(const std::string& entry_point) {
  if (entry_point == "cuMemAddressReserve") return GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE;
  if (entry_point == "cuMemAlloc") return GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
  if (entry_point == "cuMemHostAlloc" || entry_point == "cuMemHostRegister")
    return GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
  return GPUMEM_SUCCESS;
}

void check_driver_failure(const Fault& fault, const gpumem_error& error) {
  if (is_sticky(fault) && error.native_domain == GPUMEM_NATIVE_NONE) {
    // An earlier call took the failure without being hurt by it, and the device is lost since.
    EXPECT_EQ(error.status, GPUMEM_ERROR_DEVICE_LOST);
    return;
  }
  EXPECT_EQ(error.native_domain, GPUMEM_NATIVE_CUDA);
  EXPECT_EQ(error.native_code, fault.code);
  EXPECT_TRUE(std::string(error.entry_point).starts_with("cu")) << error.entry_point;
  for (const Code& code : kDriverCodes) {
    if (code.code != fault.code) continue;
    EXPECT_STREQ(error.native_name, code.name);
    // So the driver says that a descriptor is not of its memory.
    const bool of_import = std::string(error.entry_point) == "cuMemImportFromShareableHandle";
    if (of_import && code.status == GPUMEM_ERROR_INTERNAL) {
      EXPECT_EQ(error.status, GPUMEM_ERROR_INVALID_ARGUMENT);
    } else if (code.status != GPUMEM_ERROR_OUT_OF_HOST_MEMORY) {
      EXPECT_EQ(error.status, code.status);
    } else if (const gpumem_status lacking = lack_at(error.entry_point); lacking != GPUMEM_SUCCESS) {
      EXPECT_EQ(error.status, lacking) << error.entry_point;
    } else if (error.status != GPUMEM_ERROR_OUT_OF_HOST_MEMORY) {
      EXPECT_EQ(error.status, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
    }
  }
}

void check_failure(const Step& step, const Fault& fault, const gpumem_error& error, gpumem_status status) {
  EXPECT_LT(status, 0);
  EXPECT_EQ(error.status, status);
  EXPECT_STREQ(error.function, step.function);
  EXPECT_NE(error.message[0], '\0');
  EXPECT_EQ(std::strchr(error.message, '\n'), nullptr) << error.message;
  switch (fault.kind) {
    case Kind::kAllocation:
    case Kind::kServingAllocation:
      EXPECT_EQ(status, GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
      EXPECT_EQ(error.native_domain, GPUMEM_NATIVE_NONE);
      break;
    case Kind::kSystem:
      check_system_failure(step, error);
      break;
    case Kind::kDriver:
      check_driver_failure(fault, error);
      break;
  }
}

void arm_any(const Fault& fault) {
  if (is_sticky(fault)) {
    lose_at(driver_calls() + fault.k);
  } else if (fault.kind == Kind::kDriver) {
    arm_driver(fault);
  } else {
    arm(fault);
  }
}

void disarm_any(const Fault& fault) {
  if (is_sticky(fault)) {
    lose_at(kNever);
  } else if (fault.kind == Kind::kDriver) {
    disarm_driver();
  } else {
    disarm();
  }
}

bool is_helpless(const Scenario& scenario, const Fault& fault) {
  return scenario.helpless && fault.kind == Kind::kDriver && fault.forever;
}

// What there is before each step, and at the end, if nothing fails.
using Course = std::vector<Snapshot>;

// Runs the steps with the fault. After the one that fails there is nothing more than before it, and the same
// call succeeds next; the rest goes on without faults. False if that cannot be, because the device is lost.
bool run_steps(const Scenario& scenario, const Fault& fault, const Course& course, World& world) {
  const auto before = std::make_unique<Out>();
  bool armed = true;
  arm_any(fault);
  for (size_t index = 0; index < scenario.steps.size(); ++index) {
    const Step& step = scenario.steps[index];
    *before = world.out;
    gpumem_status status = call_step(step, world);
    if (status == step.expected) continue;
    disarm_any(fault);
    const testing::ScopedTrace trace(__FILE__, __LINE__,
                                     std::string(step.function) + " failed: " + describe(world, status));
    EXPECT_TRUE(armed) << "without a fault";
    if (!armed) break;
    armed = false;
    check_failure(step, fault, world.error, status);
    EXPECT_EQ(std::memcmp(before.get(), &world.out, sizeof world.out), 0) << "an output was touched";
    if (is_sticky(fault) && have_fake_driver()) settle_driver();  // what runs there still uses memory
    // What such a driver refuses to take back from a call of many steps, the next call releases. To the host
    // backend the system is the driver.
    const bool of_driver =
        fault.kind == Kind::kDriver || (fault.kind == Kind::kSystem && world.backend == GPUMEM_BACKEND_HOST);
    const bool later = of_driver && fault.forever && step.of_many;
    const auto expect_no_more = [&](size_t place) {
      if (!course.empty()) expect_no_more_than(course[place], world, scenario, step.of_many);
    };
    if (!later) expect_no_more(index);
    // Such a driver refused to wait for what it had taken before.
    if (is_helpless(scenario, fault)) settle_driver();
    const gpumem_status refused = status;
    status = call_step(step, world);
    if (is_sticky(fault)) {
      EXPECT_TRUE(status == GPUMEM_ERROR_DEVICE_LOST || status == step.expected) << describe(world, status);
      return false;
    }
    if (met_lasting_refusal() && status == refused && status < 0) return false;
    EXPECT_EQ(status, step.expected) << "the same call without a fault: " << describe(world, status);
    if (status != step.expected) break;
    if (later) expect_no_more(index + 1);
  }
  disarm_any(fault);
  return true;
}

// Runs the steps without faults and says what there is before each.
Course record_steps(const Scenario& scenario, World& world) {
  Course course;
  for (const Step& step : scenario.steps) {
    course.push_back(take(world));
    must(step, world);
  }
  course.push_back(take(world));
  return course;
}

std::unique_ptr<World> make_world(gpumem_backend backend) {
  alignas(kPage) static unsigned char bytes[2][kHostBytes];
  auto world = std::make_unique<World>();
  world->backend = backend;
  world->mapped_before = mapped_bytes() - record_bytes();
  prepare_outputs(world->out);
  world->error = GPUMEM_ERROR_INIT;
  for (size_t i = 0; i < 2; ++i)
    world->host[i] = bytes[i];
  return world;
}

// There are worlds by the thousand, so most of it is copied.
void fill_host_bytes(const World& world) {
  constexpr size_t kPeriod = 256;
  for (size_t i = 0; i < 2; ++i) {
    for (size_t at = 0; at < kPeriod; ++at)
      world.host[i][at] = static_cast<unsigned char>(at * 7 + i);
    for (size_t done = kPeriod; done < kHostBytes; done *= 2)
      std::memcpy(world.host[i] + done, world.host[i], std::min(done, kHostBytes - done));
  }
}

// What stays when a world is gone.
struct Rest {
  Snapshot snapshot;
  int64_t blocks = 0;
};

Rest take_rest(gpumem_backend backend, size_t usual_threads, size_t usual_files = SIZE_MAX) {
  const size_t threads = wait_for_threads(usual_threads);
  wait_for_files(usual_files);
  Rest result;
  result.snapshot = take(*make_world(backend));
  result.snapshot.threads = threads;
  result.snapshot.mapped = mapped_bytes();
  result.blocks = live_blocks();
  return result;
}

// A lost device keeps the addresses that it may still take for registered ones, and the work that it never
// ran.
void expect_no_more_rest(const Rest& wanted, const Rest& now, bool lost) {
  EXPECT_LE(now.snapshot.files, wanted.snapshot.files) << "file descriptors";
  EXPECT_LE(now.snapshot.threads, wanted.snapshot.threads) << "threads";
  EXPECT_LE(now.snapshot.libraries, wanted.snapshot.libraries) << "loaded libraries";
  EXPECT_LE(now.snapshot.locked, wanted.snapshot.locked) << "locked kilobytes";
  EXPECT_LE(now.snapshot.driver, wanted.snapshot.driver) << "objects of the driver";
  if (lost) return;
  EXPECT_LE(now.snapshot.mapped, wanted.snapshot.mapped) << "mapped bytes";
  EXPECT_LE(now.blocks, wanted.blocks) << "blocks of operator new";
}

// The scenario from beginning to end. Returns whether the fault was met; with `record` there is none.
bool run(const Scenario& scenario, gpumem_backend backend, const Fault& fault, const Course& course,
         Course* record) {
  const auto world = make_world(backend);
  fill_host_bytes(*world);
  if (!scenario.opens) open_instance(scenario, *world);
  for (const Step& step : scenario.before)
    must(step, *world);
  bool met = false;
  bool whole = true;
  if (record != nullptr) {
    *record = record_steps(scenario, *world);
  } else {
    const uint64_t failures = driver_failures();
    const uint64_t calls = driver_calls();
    whole = run_steps(scenario, fault, course, *world);
    if (is_sticky(fault)) {
      met = driver_calls() >= calls + fault.k;
    } else {
      met = fault.kind == Kind::kDriver ? driver_failures() != failures : hits() != 0;
    }
  }
  const bool lost = is_sticky(fault) && met;
  if (whole && !lost && scenario.verify) scenario.verify(*world);
  give_back(scenario, *world, lost);
  if (lost) mend_devices();
  const std::string found = violations();
  EXPECT_TRUE(found.empty() || is_helpless(scenario, fault)) << found;
  return met;
}

constexpr uint64_t kCallsMost = 1000;

// A sanitizer sees the way back from a call; where the codes and the calls that follow lead is compared
// without one.
bool fails_once(const Scenario& scenario) { return scenario.costly || gpumem::test::kAddressSanitizer; }

std::vector<int> codes_of(Kind kind, const Scenario& scenario) {
  std::vector<int> codes;
  if (kind == Kind::kDriver) {
    for (const Code& code : kDriverCodes)
      codes.push_back(code.code);
  } else if (kind == Kind::kSystem) {
    codes = {0, 1, 2};  // as many as the calls have at most
  } else {
    codes = {0};
  }
  if (!fails_once(scenario)) return codes;
  std::vector<int> few = {codes.front()};
  // The way back from a lost device is another one.
  if (kind == Kind::kDriver && !scenario.costly && few.front() != kSticky) few.push_back(kSticky);
  // So is the way from a file that cannot be read now to one that never can.
  if (kind == Kind::kSystem && !gpumem::test::kAddressSanitizer) few.push_back(1);
  return few;
}

// Calls attempt(fault) with k = 1, 2, ... until it returns false.
template <class Attempt>
void loop(const Scenario& scenario, Kind kind, Attempt attempt) {
  for (const int code : codes_of(kind, scenario)) {
    for (const bool forever : {false, true}) {
      if (forever && (fails_once(scenario) || is_sticky({kind, 1, true, code}))) continue;
      for (uint64_t k = 1;; k += scenario.costly && gpumem::test::kAddressSanitizer ? 3 : 1) {
        const testing::ScopedTrace trace(__FILE__, __LINE__,
                                         "call " + std::to_string(k) +
                                             (forever ? " and all later ones" : "") + ", code " +
                                             std::to_string(code));
        if (!attempt(Fault{kind, k, forever, code}) || testing::Test::HasFailure()) break;
        ASSERT_LT(k, kCallsMost) << "does the scenario go on calling for ever?";
      }
    }
  }
}

}  // namespace

#ifdef HAVE_CUDA_HEADERS
bool have_fake_driver() { return fake().fake_cuda_reset != nullptr; }
#else
bool have_fake_driver() { return false; }
#endif

void run_loops(const Scenario& scenario, gpumem_backend backend, Kind kind) {
  // The first time sets up what stays for the life of the process, such as the thread of the fake driver's
  // default stream; the second time is how it always is.
  if (backend == GPUMEM_BACKEND_CUDA) {
    set_granularity(scenario.granularity);
    set_vmm(scenario.vmm);
  }
  Course course;
  for (int i = 0; i < 2; ++i)
    run(scenario, backend, {}, {}, &course);
  const size_t usual = usual_threads();
  loop(scenario, kind, [&](const Fault& fault) {
    const Rest before = take_rest(backend, usual);
    const bool met = run(scenario, backend, fault, course, nullptr);
    // `usual` may have counted one that was on its way out.
    const Rest now = take_rest(backend, before.snapshot.threads, before.snapshot.files);
    if (!testing::Test::HasFailure())
      expect_no_more_rest(before, now, is_sticky(fault) || is_helpless(scenario, fault));
    return met;
  });
}

// ---- the first use in a process ----

namespace {

// What is more after `body` than before.
template <class Body>
Rest growth(gpumem_backend backend, Body body) {
  const size_t usual = usual_threads();
  const Rest before = take_rest(backend, usual);
  body();
  Rest now = take_rest(backend, usual);
  now.snapshot.mapped -= before.snapshot.mapped;
  now.blocks -= before.blocks;
  return now;
}

void be_told(void* told, gpumem_log_level, const char*) { *static_cast<int*>(told) += 1; }

enum Exit : int { kNotMet = 0, kMet = 3, kFailed = 4 };

// Runs `body` in a child. What it returns is the child's exit status, unless an expectation failed.
template <class Body>
int in_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = gpumem::test::quiet_fork();
  if (child == 0) {
    const int status = body();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? kFailed : status);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

void run_loops_first(const Scenario& scenario, gpumem_backend backend, Kind kind) {
  // What stays if nothing fails.
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  ASSERT_EQ(in_child([&] {
              const Rest stays = growth(backend, [&] {
                Course course;
                run(scenario, backend, {}, {}, &course);
              });
              return write(channel[1], &stays, sizeof stays) == sizeof stays ? 0 : 1;
            }),
            0);
  Rest wanted;
  ASSERT_EQ(read(channel[0], &wanted, sizeof wanted), static_cast<ssize_t>(sizeof wanted));
  loop(scenario, kind, [&](const Fault& fault) {
    const int status = in_child([&] {
      bool met = false;
      const Rest stays = growth(backend, [&] { met = run(scenario, backend, fault, {}, nullptr); });
      if (!testing::Test::HasFailure()) expect_no_more_rest(wanted, stays, is_sticky(fault));
      return met ? kMet : kNotMet;
    });
    EXPECT_TRUE(status == kMet || status == kNotMet) << "the process ended with " << status;
    return status == kMet;
  });
  close(channel[0]);
  close(channel[1]);
}

void run_log_in_child() {
  const int parent = in_child([] {
    int told = 0;
    EXPECT_EQ(gpumem_log_set_function(be_told, &told, GPUMEM_LOG_DEBUG, nullptr), GPUMEM_SUCCESS);
    const int child = in_child([&] {
      arm({Kind::kAllocation, 1, true, 0});
      const gpumem_status without_memory = gpumem_free(nullptr, &told, nullptr);
      disarm();
      EXPECT_EQ(without_memory, GPUMEM_ERROR_INVALID_ARGUMENT);
      EXPECT_NE(hits(), 0u);
      EXPECT_EQ(told, 0);
      EXPECT_EQ(gpumem_free(nullptr, &told, nullptr), GPUMEM_ERROR_INVALID_ARGUMENT);
      EXPECT_EQ(told, 1);
      return 0;
    });
    EXPECT_EQ(child, 0);
    return 0;
  });
  EXPECT_EQ(parent, 0);
}

#ifdef HAVE_CUDA_HEADERS
void run_fork_around_init() {
  const auto probe = [] {
    gpumem_probe_info info = GPUMEM_PROBE_INFO_INIT;
    return gpumem_instance_probe(GPUMEM_BACKEND_CUDA, &info, nullptr);
  };
  const int parent = in_child([&] {
    // A child of a process in which it has failed starts afresh.
    fake().fake_cuda_configure("FAKE_CUDA_INIT", "100");
    EXPECT_EQ(probe(), GPUMEM_ERROR_NO_DEVICE);
    fake().fake_cuda_configure("FAKE_CUDA_INIT", "0");
    EXPECT_EQ(in_child([&] {
                EXPECT_EQ(probe(), GPUMEM_SUCCESS);
                return 0;
              }),
              0);
    // One that comes while it runs gets a driver that nobody will ever finish.
    fake().fake_cuda_configure("FAKE_CUDA_INIT_DELAY_US", "200000");
    const uint64_t before = fake().fake_cuda_call_count("cuInit");
    std::thread initialising([&] { EXPECT_EQ(probe(), GPUMEM_SUCCESS); });
    while (fake().fake_cuda_call_count("cuInit") == before)
      std::this_thread::yield();
    EXPECT_EQ(in_child([&] {
                EXPECT_EQ(probe(), GPUMEM_ERROR_FORKED);
                EXPECT_EQ(violations(), "") << "the driver was called";
                return 0;
              }),
              0);
    initialising.join();
    EXPECT_EQ(probe(), GPUMEM_SUCCESS);
    return 0;
  });
  EXPECT_EQ(parent, 0);
}
#else
void run_fork_around_init() {}
#endif

}  // namespace faults
