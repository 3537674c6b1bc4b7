// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Work that outlives its call: where its failure is reported (COM-15), captures that run beside it (COM-28),
// and streams whose handles come back (COM-29).
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda_raw.h"
#include "harness.h"
#include "pools.h"
#include "vmm.h"

namespace conformance {
namespace {

using Async = Conformance;

constexpr uint64_t kSize = 4096;

gpumem_stream_info info_of(gpumem_stream stream) {
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  EXPECT_OK(gpumem_stream_get_info(stream, &info, why()));
  return info;
}

// ---- COM-15 ----

// A copy that fails when its turn comes: the CPU's memory has gone by then. The device stays good.
TEST_F(Async, com_15_failing_work_is_reported_by_the_call_that_observes_it) {
  if (!on_host()) SKIP_RULE("a driver's work fails only by losing the device, which is another test");
  const Memory target = alloc_device(device_, kSize);
  const Memory bystander = alloc_device(device_, kSize);
  const Stream failing = create_stream(device_);
  const Stream other = create_stream(device_);
  const Event before = create_event(device_);
  const Event behind = create_event(device_);
  const Event elsewhere = create_event(device_);
  Gate gate;
  EXPECT_OK(gpumem_event_record(before, failing, why()));
  gate.hold(failing);
  void* const gone = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  EXPECT_OK(gpumem_copy_async(failing, target.device(), gone, kSize, nullptr, why()));
  // Not unmapped: the process could map something else there before the copy comes to it.
  ASSERT_EQ(mprotect(gone, kSize, PROT_NONE), 0);
  EXPECT_OK(gpumem_fill_async(failing, target.device(), kSize, 0x22, 1, why()));
  EXPECT_OK(gpumem_event_record(behind, failing, why()));
  EXPECT_OK(gpumem_event_record(elsewhere, other, why()));
  gate.open();
  while (gpumem_event_query(before, nullptr) == GPUMEM_NOT_READY)
    std::this_thread::yield();

  const auto others_go_on = [&] {
    // Calls that observe other work, or none.
    other.synchronize();
    EXPECT_OK(gpumem_stream_query(other, why()));
    EXPECT_OK(gpumem_event_synchronize(before, GPUMEM_TIMEOUT_INFINITE, why()));
    EXPECT_OK(gpumem_event_query(elsewhere, why()));
    EXPECT_OK(gpumem_fill(instance_, bystander.device(), kSize, 1, 1, why()));
    EXPECT_OK(gpumem_fill_async(other, bystander.device(), kSize, 1, 1, why()));
    EXPECT_OK(gpumem_device_get_memory(device_, nullptr, nullptr, why()));
    alloc_pinned(device_, kSize).destroy();
    // Nor do calls that enqueue more in the stream, or make another one wait for it.
    EXPECT_OK(gpumem_event_record(elsewhere, failing, why()));
    EXPECT_OK(gpumem_event_record(elsewhere, other, why()));
    EXPECT_EQ(info_of(failing).device, device_);
  };
  for (int round = 0; round < 20; ++round)
    others_go_on();
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_event_synchronize(behind, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_NE(std::strstr(last_error().message, "pageable"), nullptr) << last_error().message;
  // It is reported once; the work behind it has run.
  EXPECT_OK(gpumem_event_synchronize(behind, GPUMEM_TIMEOUT_INFINITE, why()));
  failing.synchronize();
  others_go_on();
  std::vector<uint8_t> bytes(kSize);
  EXPECT_OK(gpumem_copy(instance_, bytes.data(), target.device(), kSize, nullptr, why()));
  EXPECT_EQ(bytes, std::vector<uint8_t>(kSize, 0x22));
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get_info(device_, &info, why()));
  EXPECT_EQ(info.lost, 0u);
  munmap(gone, kSize);
}

// A copy in a stream that has run and failed, and that nobody has been told of.
struct FailedCopy {
  FailedCopy(gpumem_device device, gpumem_stream stream)
      : target(alloc_device(device, kSize)), behind(create_event(device)) {
    Gate gate;
    gate.hold(stream);
    EXPECT_OK(gpumem_copy_async(stream, target.device(), gone.get(), kSize, nullptr, why()));
    EXPECT_EQ(mprotect(gone.get(), kSize, PROT_NONE), 0);
    EXPECT_OK(gpumem_event_record(behind, stream, why()));
    gate.open();
    // The failure of a stream is not that of another one that waits for it.
    const Stream other = create_stream(device);
    EXPECT_OK(gpumem_stream_wait_event(other, behind, why()));
    other.synchronize();
  }

  Pages gone{kSize};
  Memory target;
  Event behind;
};

void expect_reported_once(gpumem_stream stream) {
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
}

TEST_F(Async, com_15_calls_about_other_things_report_nothing) {
  if (!on_host()) SKIP_RULE("a driver's work fails only by losing the device, which is another test");
  const Instance own = open_instance([](gpumem_instance_desc&, gpumem_host_options& host) {
    host.concurrent = GPUMEM_TOGGLE_OFF;
    host.lock_piece = kSize;
  });
  const gpumem_device device = own.device();
  const Memory managed = create_memory(device, memory_desc(GPUMEM_KIND_MANAGED, kSize));
  Pages pages(4 * kSize);
  const gpumem_register_desc desc = register_desc(pages.get(), pages.size());
  gpumem_memory handle = nullptr;
  ASSERT_OK(gpumem_memory_register(device, &desc, &handle, why()));
  const Memory registered(handle);
  const Stream stream = create_stream(device);
  Faults faults(own);
  {
    // A pool asks the stream whether its work is complete.
    const Pool pool = create_pool(device, GPUMEM_KIND_DEVICE);
    void* const block = take(pool, kSize, stream);
    const FailedCopy failed(device, stream);
    give(pool, block, stream);
    trim(pool);
    expect_reported_once(stream);
  }
  {
    // Calls that fail halfway wait for what they have enqueued.
    const FailedCopy failed(device, stream);
    faults.fail_step(2);
    EXPECT_TRUE(GPUMEM_FAILED(gpumem_fill_async(stream, pages.get(), pages.size(), 1, 1, nullptr)));
    faults.off();
    expect_reported_once(stream);
  }
  {
    const FailedCopy failed(device, stream);
    faults.fail_step(2);
    EXPECT_TRUE(GPUMEM_FAILED(
        gpumem_copy_async(stream, pages.get(), pages.get() + 2 * kSize, 2 * kSize, nullptr, nullptr)));
    faults.off();
    expect_reported_once(stream);
  }
  {
    const FailedCopy failed(device, stream);
    faults.fail_step(2);
    EXPECT_OK(gpumem_managed_attach(stream, managed.host(), 0, GPUMEM_ATTACH_GLOBAL, why()));
    faults.off();
    expect_reported_once(stream);
  }
  {
    // So that managed memory does not stay attached to it, its end is noted.
    Stream goes = create_stream(device);
    const FailedCopy failed(device, goes);
    goes.destroy();
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                  gpumem_event_synchronize(failed.behind, GPUMEM_TIMEOUT_INFINITE, why()));
  }
}

// The exception: a kernel faults, and every later call of the device says so, whatever it is about.
TEST_F(Async, com_15_a_fault_is_reported_as_a_lost_device) {
  if (!on_host()) SKIP_RULE("no kernel can be made to fault on cuda without losing the device for good");
  const Instance instance = open_instance();
  const Memory memory = alloc_device(instance.device(1), kSize);
  const Stream stream = create_stream(instance.device(0));
  Gate gate;
  gate.hold(stream);
  const auto faulting = [](gpumem_host_kernel kernel, void*) {
    void* view = nullptr;
    gpumem_host_kernel_view(kernel, reinterpret_cast<void*>(uintptr_t{4096}), 8, GPUMEM_ACCESS_READ, &view,
                            nullptr);
  };
  EXPECT_OK(gpumem_host_launch(stream, faulting, nullptr, why()));
  gate.open();
  EXPECT_OK(gpumem_fill(instance, memory.device(), kSize, 1, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_fill(instance, memory.device(), kSize, 1, 1, why()));
}

// Whoever is told of the loss may reuse what the kernel had, however early the question comes.
TEST_F(Async, hst_4_the_loss_is_told_when_the_kernel_has_returned) {
  if (!on_host()) SKIP_RULE("no kernel can be made to fault on cuda without losing the device for good");
  const Instance instance = open_instance();
  const Stream stream = create_stream(instance.device(0));
  struct Fault {
    gpumem_status first = GPUMEM_SUCCESS;
    gpumem_status second = GPUMEM_SUCCESS;
    bool returned = false;  // not atomic: ThreadSanitizer sees a status that comes too early
  } fault;
  const auto faulting = [](gpumem_host_kernel kernel, void* user_data) {
    Fault& seen = *static_cast<Fault*>(user_data);
    void* view = nullptr;
    int32_t good = 0;
    seen.first = gpumem_host_kernel_view(kernel, reinterpret_cast<void*>(uintptr_t{4096}), 8,
                                         GPUMEM_ACCESS_READ, &view, nullptr);
    seen.second = gpumem_host_kernel_view(kernel, &good, sizeof good, GPUMEM_ACCESS_READ, &view, nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    seen.returned = true;
  };
  EXPECT_OK(gpumem_host_launch(stream, faulting, &fault, why()));
  gpumem_status status = GPUMEM_NOT_READY;
  while (status == GPUMEM_NOT_READY)
    status = gpumem_stream_query(stream, why());
  EXPECT_EQ(status, GPUMEM_ERROR_DEVICE_LOST);
  EXPECT_TRUE(fault.returned);
  EXPECT_EQ(fault.first, GPUMEM_ERROR_DEVICE_LOST);
  EXPECT_EQ(fault.second, GPUMEM_ERROR_DEVICE_LOST);
}

// A driver reports earlier work's failure by any call that comes next. Nothing but DEVICE_LOST may come of
// it, and what gives back has given back.
CHILD(com_15_late_code) {
  constexpr int kIllegalAddress = 700;
  struct Case {
    const char* entry_point;
    std::function<gpumem_status()> call;
    bool gives_back;
  };
  Instance instance = open_instance();
  const gpumem_device device = instance.device();
  Memory memory = alloc_device(device, kSize);
  Memory pinned = alloc_pinned(device, kSize);
  Stream stream = create_stream(device);
  Event event = create_event(device);
  EXPECT_OK(gpumem_event_record(event, stream, why()));
  stream.synchronize();
  const Case cases[] = {
      {"cuMemGetInfo", [&] { return gpumem_device_get_memory(device, nullptr, nullptr, why()); }, false},
      {"cuEventQuery", [&] { return gpumem_event_query(event, why()); }, false},
      {"cuStreamQuery", [&] { return gpumem_stream_query(stream, why()); }, false},
      {"cuStreamSynchronize",
       [&] { return gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()); }, false},
      {"cuEventRecord", [&] { return gpumem_event_record(event, stream, why()); }, false},
      {"cuMemsetD8Async", [&] { return gpumem_fill_async(stream, memory.device(), kSize, 1, 1, why()); },
       false},
      {"cuStreamCreateWithPriority",
       [&] {
         gpumem_stream made = nullptr;
         return gpumem_stream_create(device, nullptr, &made, why());
       },
       false},
      {"cuMemFree", [&] { return gpumem_memory_destroy(memory.release(), why()); }, true},
      {"cuMemHostUnregister", [&] { return gpumem_memory_destroy(pinned.release(), why()); }, true},
      {"cuEventDestroy", [&] { return gpumem_event_destroy(event.release(), why()); }, true},
      {"cuStreamDestroy", [&] { return gpumem_stream_destroy(stream.release(), why()); }, true},
  };
  const Case& chosen = cases[std::stoul(child_arguments().at(0))];
  SCOPED_TRACE(chosen.entry_point);
  Faults::fail_driver_call(chosen.entry_point, kIllegalAddress);
  EXPECT_STATUS(chosen.gives_back ? GPUMEM_SUCCESS : GPUMEM_ERROR_DEVICE_LOST, chosen.call());
  if (!chosen.gives_back) {
    EXPECT_EQ(last_error().native_code, kIllegalAddress);
  }
  Faults(instance).off();
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get_info(device, &info, why()));
  EXPECT_EQ(info.lost, 1u);
  // For this device it is for good; other devices go on.
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_device_get_memory(device, nullptr, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_device_trim_graphs(device, nullptr, why()));
  const Memory theirs = alloc_device(instance.device(1), kSize);
  EXPECT_OK(gpumem_fill(instance, theirs.device(), kSize, 1, 1, why()));
}
constexpr size_t kLateCodes = 11;

TEST_F(Async, com_15_a_late_code_of_the_driver) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be told what to answer");
  if (!second_device()) SKIP_RULE("needs two devices");
  for (size_t i = 0; i < kLateCodes; ++i) {
    const ProcessResult result = run_child("com_15_late_code", {}, {std::to_string(i)});
    EXPECT_TRUE(result.ok()) << i << ": " << result;
  }
}

// 600 is an answer to a query only. Another call is tried again, and then fails: a note would leave its
// outputs unset.
TEST_F(Async, com_15_a_driver_that_is_not_ready) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be told what to answer");
  constexpr int kNotReady = 600;
  const Stream stream = create_stream(device_);
  Faults faults(instance_);
  Faults::fail_driver_call("cuMemAlloc", kNotReady);
  alloc_device(device_, kSize).destroy();
  Faults::fail_driver_call("cuMemsetD8Async", kNotReady);
  const Memory memory = alloc_device(device_, kSize);
  EXPECT_OK(gpumem_fill_async(stream, memory.device(), kSize, 1, 1, why()));
  stream.synchronize();

  Faults::fail_driver_call("cuMemAlloc", kNotReady, true);
  gpumem_memory none = nullptr;
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kSize);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_create(device_, &desc, &none, why()));
  EXPECT_EQ(last_error().native_code, kNotReady);
  EXPECT_EQ(none, nullptr);
  faults.off();
  alloc_device(device_, kSize).destroy();
}

// ---- COM-29 ----

// Streams made and destroyed one after the other: whenever a handle comes back, its id is new.
TEST_F(Async, com_29_a_handle_that_comes_back_is_another_stream) {
  REQUIRE_FOREIGN();
  const ReusedHandles reused;
  std::set<uint64_t> ids;
  std::set<void*> handles;
  constexpr size_t kRounds = 30;
  const auto note = [&](gpumem_stream stream) {
    const gpumem_stream_info info = info_of(stream);
    EXPECT_TRUE(ids.insert(info.id).second) << "an id came back";
    handles.insert(info.native_stream);
  };
  if (info_of(create_stream(device_)).id == 0) SKIP_RULE("the driver cannot tell streams apart");
  for (size_t round = 0; round < kRounds; ++round) {
    const NativeStream native(device_);
    const Stream first = wrap_stream(device_, native.get());
    const Stream second = wrap_stream(device_, native.get());
    note(first);
    EXPECT_EQ(info_of(first).id, info_of(second).id);
  }
  for (size_t round = 0; round < kRounds; ++round)
    note(create_stream(device_));
  EXPECT_LT(handles.size(), kRounds) << "handles did not come back, so this has shown nothing";
  EXPECT_EQ(ids.count(0), 0u);
  // The default stream is always the same one.
  const Stream standard = wrap_stream(device_, nullptr);
  EXPECT_EQ(info_of(standard).id, info_of(wrap_stream(device_, nullptr)).id);
  EXPECT_TRUE(ids.insert(info_of(standard).id).second);
}

// What a stream has pending, and that it was captured, is not said of the next one with its handle.
TEST_F(Async, com_29_nothing_of_the_old_stream_applies_to_the_new_one) {
  REQUIRE_FOREIGN();
  const ReusedHandles reused;
  Memory memory = alloc_pinned(device_, kSize);
  const Event done = create_event(device_);
  Gate gate;
  const void* handle = nullptr;
  {
    const NativeStream old(device_);
    handle = old.get();
    Stream stream = wrap_stream(device_, old.get());
    gate.hold(stream);
    EXPECT_OK(gpumem_fill_async(stream, memory.device(), kSize, 1, 1, why()));
    EXPECT_OK(gpumem_event_record(done, stream, why()));
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(stream, why()));
    EXPECT_OK(gpumem_stream_destroy(stream.release(), why()));
  }
  {
    NativeStream next(device_);
    if (next.get() != handle) {
      gate.open();
      EXPECT_OK(gpumem_event_synchronize(done, GPUMEM_TIMEOUT_INFINITE, why()));
      SKIP_RULE("the driver did not reuse the handle this time");
    }
    const Stream stream = wrap_stream(device_, next.get());
    // It has nothing to do, and waiting for it proves nothing of the other.
    EXPECT_OK(gpumem_stream_query(stream, why()));
    stream.synchronize();
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_query(done, why()));
    if (on_host()) {
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(memory.get(), why()));
    }
    next.begin_capture(stream);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_stream_query(stream, why()));
    next.end_capture(stream);
  }
  gate.open();
  EXPECT_OK(gpumem_event_synchronize(done, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_EQ(memory.host()[kSize - 1], 1);
  memory.destroy();
}

TEST_F(Async, com_29_a_capture_mark_ends_with_its_stream) {
  if (!on_host()) SKIP_RULE("a driver refuses to destroy a stream that is captured");
  void* handle = nullptr;
  {
    NativeStream old(device_);
    handle = old.get();
    Stream stream = wrap_stream(device_, old.get());
    old.begin_capture(stream);
    EXPECT_OK(gpumem_stream_destroy(stream.release(), why()));
  }
  const NativeStream next(device_);
  ASSERT_EQ(next.get(), handle);
  const Stream stream = wrap_stream(device_, next.get());
  EXPECT_OK(gpumem_stream_query(stream, why()));
}

// ---- COM-28 ----

#ifdef HAVE_CUDA_HEADERS

// Each function of today, called so that it does its work. Left out are those that reach no driver and those
// of the host backend.
class EveryCall {
 public:
  EveryCall(gpumem_instance instance, gpumem_device device, gpumem_device second)
      : instance_(instance), device_(device), second_(second), native_(device) {
    if (!on_host()) native_event_.emplace(device);
    EXPECT_OK(gpumem_pool_create(device_, nullptr, &native_pool_, why()));
    EXPECT_EQ(ftruncate(file_, kSize), 0);
  }
  ~EveryCall() {
    EXPECT_OK(gpumem_pool_destroy(native_pool_, why()));
    EXPECT_EQ(close(file_), 0);
  }

  void run() {
    const Memory memory = alloc_device(device_, kSize);
    const Memory pinned = alloc_pinned(device_, kSize);
    const Stream stream = create_stream(device_);
    const Event event = create_event(device_);
    const Event later = create_event(device_);
    Pages pages(2 * page_size());
    uint8_t* const to = memory.device();
    uint8_t* const from = pinned.host();
    gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
    region.destination.memory = memory;
    region.source.memory = pinned;
    region.width = kSize;
    // Enough for a kernel.
    std::vector<gpumem_copy_region> regions(8, region);
    for (size_t i = 0; i < regions.size(); ++i) {
      regions[i].destination.offset = 100 * i;
      regions[i].source.offset = 200 * i;
      regions[i].width = 99;
    }
    const auto call = [&](const char* name, gpumem_status status) {
      called_.insert(std::string("gpumem_") + name);
      EXPECT_STATUS(GPUMEM_SUCCESS, status) << name;
    };
    for (const char* by_helper : {"memory_create", "memory_destroy", "stream_create", "stream_destroy",
                                  "event_create", "event_destroy"}) {
      call(by_helper, GPUMEM_SUCCESS);
    }
    run_managed(stream);
    // Work in a stream, and the questions about it.
    call("copy_async", gpumem_copy_async(stream, to, from, kSize, nullptr, why()));
    call("copy_async", gpumem_copy_async(stream, pages.get(), to, kSize, nullptr, why()));
    call("copy_2d_async", gpumem_copy_2d_async(stream, to, 128, from, 128, 64, 8, nullptr, why()));
    call("copy_regions_async",
         gpumem_copy_regions_async(stream, regions.data(), regions.size(), nullptr, why()));
    call("fill_async", gpumem_fill_async(stream, to, kSize, 1, 1, why()));
    call("fill_2d_async", gpumem_fill_2d_async(stream, to, 128, 64, 8, 1, 1, why()));
    call("event_record", gpumem_event_record(event, stream, why()));
    call("stream_wait_event", gpumem_stream_wait_event(stream, event, why()));
    const auto nothing = [](void*) {};
    call("stream_launch_host_function", gpumem_stream_launch_host_function(stream, nothing, nullptr, why()));
    call("stream_write_value", gpumem_stream_write_value(stream, to, 7, 4, why()));
    call("stream_wait_value", gpumem_stream_wait_value(stream, to, 7, 4, GPUMEM_WAIT_EQ, why()));
    call("event_record", gpumem_event_record(later, stream, why()));
    call("event_synchronize", gpumem_event_synchronize(later, GPUMEM_TIMEOUT_INFINITE, why()));
    call("event_query", gpumem_event_query(event, why()));
    int64_t time = 0;
    call("event_get_elapsed_time", gpumem_event_get_elapsed_time(event, later, &time, why()));
    call("stream_synchronize", gpumem_stream_synchronize(stream, 1'000'000'000, why()));
    call("stream_synchronize", gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    call("stream_query", gpumem_stream_query(stream, why()));
    // Work without a stream.
    call("copy", gpumem_copy(instance_, to, from, kSize, nullptr, why()));
    call("copy", gpumem_copy(instance_, pages.get(), to, kSize, nullptr, why()));
    call("copy_2d", gpumem_copy_2d(instance_, to, 128, from, 128, 64, 8, nullptr, why()));
    call("copy_regions", gpumem_copy_regions(instance_, regions.data(), regions.size(), nullptr, why()));
    gpumem_copy_file_desc file = GPUMEM_COPY_FILE_DESC_INIT;
    file.file_descriptor = file_;
    file.pointer = to;
    file.size = kSize;
    call("copy_file", gpumem_copy_file(instance_, &file, nullptr, why()));
    call("fill", gpumem_fill(instance_, to, kSize, 1, 1, why()));
    call("fill", gpumem_fill(instance_, pages.get(), kSize, 1, 1, why()));
    call("fill_2d", gpumem_fill_2d(instance_, to, 128, 64, 8, 1, 1, why()));
    // Memory.
    for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
      void* pointer = nullptr;
      call("malloc", gpumem_malloc(device_, kind, kSize, &pointer, why()));
      call("free", gpumem_free(instance_, pointer, why()));
    }
    call("register", gpumem_register(device_, pages.get(), page_size(), 0, why()));
    call("unregister", gpumem_unregister(instance_, pages.get(), why()));
    const gpumem_register_desc desc = register_desc(pages.get(), page_size(), GPUMEM_MEMORY_MAPPED);
    gpumem_memory made = nullptr;
    call("memory_register", gpumem_memory_register(device_, &desc, &made, why()));
    const Memory registered(made);
    call("memory_get_info", registered.get() != nullptr ? GPUMEM_SUCCESS : GPUMEM_ERROR_INTERNAL);
    for (const void* address : {static_cast<const void*>(to), static_cast<const void*>(&time)}) {
      gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
      call("pointer_get_info", gpumem_pointer_get_info(instance_, address, &info, why()));
      gpumem_access access = GPUMEM_ACCESS_NONE;
      call("pointer_get_access",
           gpumem_pointer_get_access(instance_, address, GPUMEM_LOCATION_DEVICE, 0, &access, why()));
    }
    void* pointer = nullptr;
    call("pointer_get_device_pointer", gpumem_pointer_get_device_pointer(device_, from, &pointer, why()));
    // Streams and events of other code.
    gpumem_stream wrapped = nullptr;
    call("stream_wrap", gpumem_stream_wrap(device_, native_.get(), &wrapped, why()));
    info_of(Stream(wrapped));
    call("stream_get_info", GPUMEM_SUCCESS);
    uint64_t capture = 1;
    call("stream_get_capture_id", gpumem_stream_get_capture_id(stream, &capture, why()));
    EXPECT_EQ(capture, 0U) << "another stream is being captured";
    gpumem_event_info of_event = GPUMEM_EVENT_INFO_INIT;
    call("event_get_info", gpumem_event_get_info(event, &of_event, why()));
    if (native_event_) {
      gpumem_event theirs = nullptr;
      call("event_wrap", gpumem_event_wrap(device_, native_event_->get(), 0, &theirs, why()));
      const Event wrapped_event(theirs);
    }
    if (capability(device_, GPUMEM_CAPABILITY_MANAGED).value != GPUMEM_ANSWER_NO) use_managed();
    if (has_vmm(device_)) {
      use_ranges();
      use_buffers();
      use_groups();
      use_sharing();
    }
    use_pools(stream);
    // Devices and instances.
    ask_devices(call);
  }

  // Functions of the table that run() has not called.
  std::string not_called() const {
    const std::set<std::string> silent = {
        "gpumem_version",         "gpumem_version_text",     "gpumem_feature_supported", "gpumem_status_name",
        "gpumem_status_get_info", "gpumem_status_enumerate", "gpumem_log_set_function"};
    gpumem_table table;
    table.struct_size = sizeof table;
    EXPECT_OK(gpumem_table_get(GPUMEM_VERSION, &table, why()));
    std::vector<void*> functions((sizeof table - sizeof(size_t)) / sizeof(void*));
    std::memcpy(functions.data(), reinterpret_cast<const char*>(&table) + sizeof(size_t),
                functions.size() * sizeof(void*));
    std::string missing;
    for (void* const function : functions) {
      Dl_info symbol{};
      EXPECT_NE(dladdr(function, &symbol), 0);
      const std::string name = symbol.dli_sname == nullptr ? "?" : symbol.dli_sname;
      const bool of_two_devices = name.find("peer") != std::string::npos && second_ == nullptr;
      if (name.rfind("gpumem_host_", 0) == 0 || of_two_devices) continue;
      if (!silent.contains(name) && !called_.contains(name)) missing += name + " ";
    }
    return missing;
  }

 private:
  void use_managed() {
    const auto call = [&](const char* name, gpumem_status status) {
      called_.insert(std::string("gpumem_managed_") + name);
      EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_NO_EFFECT) << name;
    };
    const uint64_t size = page_size();
    const Memory memory = create_memory(device_, memory_desc(GPUMEM_KIND_MANAGED, size));
    const Stream stream = create_stream(device_);
    gpumem_managed_range range = GPUMEM_MANAGED_RANGE_INIT;
    range.pointer = memory.host();
    range.size = size;
    call("discard_batch", gpumem_managed_discard_batch(stream, &range, 1, why()));
    range.location = GPUMEM_LOCATION_DEVICE;
    range.location_id = static_cast<int32_t>(ordinal_of(device_));
    call("attach", gpumem_managed_attach(stream, range.pointer, 0, GPUMEM_ATTACH_SINGLE, why()));
    call("advise", gpumem_managed_advise(instance_, range.pointer, size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION,
                                         range.location, range.location_id, why()));
    call("prefetch", gpumem_managed_prefetch(stream, range.pointer, size, GPUMEM_LOCATION_HOST, 0, why()));
    call("prefetch_batch", gpumem_managed_prefetch_batch(stream, &range, 1, why()));
    call("discard_and_prefetch_batch", gpumem_managed_discard_and_prefetch_batch(stream, &range, 1, why()));
    gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
    call("get_info", gpumem_managed_get_info(instance_, range.pointer, size, &info, why()));
    call("begin_host_access", gpumem_managed_begin_host_access(instance_, range.pointer, why()));
    call("end_host_access", gpumem_managed_end_host_access(instance_, range.pointer, why()));
  }
  void use_ranges() {
    const auto call = [&](const char* name, gpumem_status status) {
      called_.insert(std::string("gpumem_") + name);
      EXPECT_OK(status) << name;
    };
    const bool shares = capability(device_, GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD).value != GPUMEM_ANSWER_NO;
    gpumem_physical_desc desc =
        physical_desc(0, GPUMEM_LOCATION_DEVICE, shares ? GPUMEM_HANDLE_TYPE_POSIX_FD : 0);
    call("physical_get_granularity",
         gpumem_physical_get_granularity(device_, &desc, &desc.size, nullptr, why()));
    gpumem_physical physical = nullptr;
    call("physical_create", gpumem_physical_create(device_, &desc, &physical, why()));
    gpumem_range_desc wanted = range_desc(2 * desc.size);
    gpumem_range range = nullptr;
    call("range_reserve", gpumem_range_reserve(instance_, &wanted, &range, why()));
    call("range_map", gpumem_range_map(range, 0, &physical, 1, why()));
    const gpumem_access_desc rights = device_rights(ordinal_of(device_));
    call("range_set_access", gpumem_range_set_access(range, 0, desc.size, &rights, 1, why()));
    gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
    call("range_get_info", gpumem_range_get_info(range, &info, why()));
    gpumem_mapping_info mapping = GPUMEM_MAPPING_INFO_INIT;
    call("range_get_mapping", gpumem_range_get_mapping(instance_, info.base, &mapping, why()));
    call("fill", gpumem_fill(instance_, info.base, desc.size, 1, 1, why()));
    gpumem_physical_info of_block = GPUMEM_PHYSICAL_INFO_INIT;
    call("physical_get_info", gpumem_physical_get_info(physical, &of_block, why()));
    gpumem_physical retained = nullptr;
    call("physical_retain", gpumem_physical_retain(instance_, info.base, &retained, why()));
    call("physical_release", gpumem_physical_release(retained, why()));
    if (shares) {
      int32_t file = -1;
      gpumem_physical imported = nullptr;
      call("physical_export_fd", gpumem_physical_export_fd(physical, &file, why()));
      call("physical_import_fd", gpumem_physical_import_fd(device_, &desc, file, &imported, why()));
      call("physical_release", gpumem_physical_release(imported, why()));
      syscall(SYS_close, file);  // unlike close(), no cancellation point
    } else {
      called_.insert({"gpumem_physical_export_fd", "gpumem_physical_import_fd"});
    }
    // Few machines have a fabric to send handles through.
    gpumem_fabric_handle fabric{};
    EXPECT_NE(gpumem_physical_export_fabric(physical, &fabric, nullptr), GPUMEM_SUCCESS);
    desc.handle_types = GPUMEM_HANDLE_TYPE_FABRIC;
    EXPECT_NE(gpumem_physical_import_fabric(device_, &desc, &fabric, &retained, nullptr), GPUMEM_SUCCESS);
    called_.insert({"gpumem_physical_export_fabric", "gpumem_physical_import_fabric"});
    call("range_unmap", gpumem_range_unmap(range, 0, desc.size, why()));
    call("range_release", gpumem_range_release(range, why()));
    call("physical_release", gpumem_physical_release(physical, why()));
  }
  void use_buffers() {
    const auto call = [&](const char* name, gpumem_status status) {
      called_.insert(std::string("gpumem_buffer_") + name);
      EXPECT_OK(status) << name;
    };
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = 1;
    gpumem_buffer buffer = nullptr;
    call("create", gpumem_buffer_create(device_, &desc, &buffer, why()));
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    call("get_info", gpumem_buffer_get_info(buffer, &info, why()));
    call("resize", gpumem_buffer_resize(buffer, info.capacity + 1, why()));
    call("set_capacity", gpumem_buffer_set_capacity(buffer, 3 * info.capacity, why()));
    const gpumem_access_desc rights = device_rights(ordinal_of(device_));
    call("set_access", gpumem_buffer_set_access(buffer, &rights, 1, why()));
    call("set_ahead", gpumem_buffer_set_ahead(buffer, 1, why()));
    call("set_ahead", gpumem_buffer_set_ahead(buffer, 0, why()));
    call("set_callbacks", gpumem_buffer_set_callbacks(buffer, nullptr, why()));
    uint64_t registration = 0;
    call("note_registration", gpumem_buffer_note_registration(buffer, "card", &registration, why()));
    call("forget_registration", gpumem_buffer_forget_registration(buffer, registration, why()));
    gpumem_prepare_desc paced = GPUMEM_PREPARE_DESC_INIT;
    paced.bytes_per_second = uint64_t{1} << 30;
    call("prepare", gpumem_buffer_prepare(buffer, &paced, why()));
    call("prepare", gpumem_buffer_prepare(buffer, nullptr, why()));
    // It must not wait for the device, whose stream may be captured.
    gpumem_sleep_desc sleep = GPUMEM_SLEEP_DESC_INIT;
    sleep.flags = GPUMEM_SLEEP_IDLE;
    call("sleep", gpumem_buffer_sleep(buffer, &sleep, why()));
    call("wake", gpumem_buffer_wake(buffer, nullptr, why()));
    call("destroy", gpumem_buffer_destroy(buffer, why()));
  }
  void use_groups() {
    const auto call = [&](const char* name, gpumem_status status) {
      called_.insert(std::string("gpumem_group_") + name);
      EXPECT_OK(status) << name;
    };
    gpumem_group group = nullptr;
    call("create", gpumem_group_create(instance_, nullptr, &group, why()));
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = 1;
    desc.group = group;
    desc.tag = "weights";
    gpumem_buffer buffer = nullptr;
    EXPECT_OK(gpumem_buffer_create(device_, &desc, &buffer, why()));
    gpumem_group_info info = GPUMEM_GROUP_INFO_INIT;
    call("get_info", gpumem_group_get_info(group, nullptr, &info, why()));
    call("prepare", gpumem_group_prepare(group, nullptr, why()));
    gpumem_sleep_desc sleep = GPUMEM_SLEEP_DESC_INIT;
    sleep.flags = GPUMEM_SLEEP_IDLE;
    call("sleep", gpumem_group_sleep(group, &sleep, why()));
    call("wake", gpumem_group_wake(group, nullptr, why()));
    EXPECT_OK(gpumem_buffer_destroy(buffer, why()));
    call("destroy", gpumem_group_destroy(group, why()));
  }
  void use_pools(const Stream& stream) {
    const auto call = [&](const char* name, gpumem_status status) {
      called_.insert(std::string("gpumem_pool_") + name);
      EXPECT_OK(status) << name;
    };
    gpumem_pool pool = nullptr;
    call("create", gpumem_pool_create(device_, nullptr, &pool, why()));
    call("set_callback", gpumem_pool_set_callback(pool, nullptr, nullptr, why()));
    call("set_limit", gpumem_pool_set_limit(pool, uint64_t{64} << 20, why()));
    call("set_release_threshold", gpumem_pool_set_release_threshold(pool, uint64_t{32} << 20, why()));
    // Small blocks, and one that is cut to measure.
    for (const uint64_t size : {kSize, uint64_t{4} << 20}) {
      void* block = nullptr;
      call("alloc", gpumem_pool_alloc(pool, size, stream, &block, why()));
      EXPECT_OK(gpumem_fill_async(stream, block, size, 1, 1, why()));
      call("record_use", gpumem_pool_record_use(pool, block, stream, why()));
      gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
      call("get_block_info", gpumem_pool_get_block_info(instance_, block, &info, why()));
      call("free", gpumem_pool_free(pool, block, stream, why()));
      call("alloc_aligned", gpumem_pool_alloc_aligned(pool, size, page_size(), nullptr, &block, why()));
      call("free_sized", gpumem_pool_free_sized(pool, block, size, nullptr, why()));
      call("try_alloc", gpumem_pool_try_alloc(pool, size, 0, nullptr, &block, nullptr, why()));
      call("free", gpumem_pool_free(pool, block, nullptr, why()));
      // A pool of its own: destroying one with such frees waits for the device, which no capture survives.
      call("alloc_native", gpumem_pool_alloc_native(native_pool_, size, native_.get(), &block, why()));
      call("free_native", gpumem_pool_free_native(native_pool_, block, native_.get(), why()));
      EXPECT_OK(gpumem_pool_alloc(pool, size, nullptr, &block, why()));
      call("free_pointer", gpumem_pool_free_pointer(instance_, block, nullptr, why()));
    }
    if (capability(device_, GPUMEM_CAPABILITY_POOL_DRIVER).value != GPUMEM_ANSWER_NO) {
      for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
        gpumem_pool_desc desc = pool_desc(kind, GPUMEM_POOL_FROM_DRIVER);
        gpumem_pool made = nullptr;
        const gpumem_status status = gpumem_pool_create(device_, &desc, &made, why());
        if (status == GPUMEM_ERROR_UNSUPPORTED && kind != GPUMEM_KIND_DEVICE) continue;
        call("create", status);
        const Pool of_driver(made);
        void* block = nullptr;
        call("alloc", gpumem_pool_alloc(of_driver, kSize, stream, &block, why()));
        EXPECT_OK(gpumem_fill_async(stream, block, kSize, 1, 1, why()));
        call("free", gpumem_pool_free(of_driver, block, stream, why()));
        call("trim", gpumem_pool_trim(of_driver, 0, nullptr, why()));
      }
    }
    const uint64_t sizes[] = {1, kSize};
    void* blocks[] = {nullptr, nullptr};
    call("alloc_batch", gpumem_pool_alloc_batch(pool, sizes, 2, stream, blocks, why()));
    call("free_batch", gpumem_pool_free_batch(pool, blocks, 2, stream, why()));
    gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
    call("get_info", gpumem_pool_get_info(pool, &info, why()));
    gpumem_pool_class_info of_class = GPUMEM_POOL_CLASS_INFO_INIT;
    call("get_class_info", gpumem_pool_get_class_info(pool, 0, &of_class, why()));
    uint64_t capacity = 0;
    call("capacity_for", gpumem_pool_capacity_for(pool, &kSize, 1, &capacity, why()));
    call("reset_peaks", gpumem_pool_reset_peaks(pool, why()));
    call("trim", gpumem_pool_trim(pool, 0, nullptr, why()));
    // It has served none; those that it serves are in pool_capture_test.cpp.
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_release_capture(pool, 1, stream, why()));
    call("release_capture", GPUMEM_SUCCESS);
    call("destroy", gpumem_pool_destroy(pool, why()));
  }
  // close() lets a cancellation pass.
  static void close_quietly(int fd) { syscall(SYS_close, fd); }
  // Within this process, as far as it may import from itself.
  void use_sharing() {
    const auto called = [&](const char* name, gpumem_status status, gpumem_status expected = GPUMEM_SUCCESS) {
      called_.insert(std::string("gpumem_") + name);
      EXPECT_STATUS(expected, status) << name;
    };
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = 1;
    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    gpumem_buffer buffer = nullptr;
    ASSERT_OK(gpumem_buffer_create(device_, &desc, &buffer, why()));
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    EXPECT_OK(gpumem_buffer_get_info(buffer, &info, why()));
    gpumem_share_handle handle{};
    called("share_export", gpumem_share_export(instance_, info.base, nullptr, &handle, why()));
    gpumem_share_info share = GPUMEM_SHARE_INFO_INIT;
    called("share_get_info", gpumem_share_get_info(&handle, &share, why()));
    gpumem_way_info way = GPUMEM_WAY_INFO_INIT;
    called("share_get_way", gpumem_share_get_way(instance_, info.base, GPUMEM_SHARE_WAY_POSIX_FD,
                                                 GPUMEM_PEER_SAME_PROCESS, &way, why()));
    int32_t fd = -1;
    uint32_t count = 0;
    called("share_get_fds", gpumem_share_get_fds(instance_, &handle, &fd, 1, &count, why()));
    close_quietly(fd);
    const bool has_dma_buf = capability(device_, GPUMEM_CAPABILITY_SHARE_DMA_BUF).value == GPUMEM_ANSWER_YES;
    fd = -1;
    called("share_export_dma_buf",
           gpumem_share_export_dma_buf(instance_, info.base, page_size(), 0, &fd, why()),
           has_dma_buf ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED);
    if (fd >= 0) close_quietly(fd);

    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    called("share_send", gpumem_share_send(instance_, &handle, ends[0], nullptr, why()));
    gpumem_share_handle received{};
    called("share_receive",
           gpumem_share_receive(instance_, ends[1], GPUMEM_TIMEOUT_INFINITE, &received, why()));
    close_quietly(ends[0]);
    close_quietly(ends[1]);
    gpumem_memory memory = nullptr;
    called("share_set_cache", gpumem_share_set_cache(instance_, nullptr, why()));
    called("share_import",
           gpumem_share_import(instance_, &received, nullptr, 0, nullptr, nullptr, &memory, why()));
    gpumem_import_info import = GPUMEM_IMPORT_INFO_INIT;
    called("memory_get_import_info", gpumem_memory_get_import_info(memory, &import, why()));
    EXPECT_OK(gpumem_memory_destroy(memory, why()));
    called("share_flush_cache", gpumem_share_flush_cache(instance_, why()));

    gpumem_event_desc of_event = GPUMEM_EVENT_DESC_INIT;
    of_event.flags = GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING;
    gpumem_event event = nullptr;
    EXPECT_OK(gpumem_event_create(device_, &of_event, &event, why()));
    gpumem_share_handle shared_event{};
    called("event_export", gpumem_event_export(event, &shared_event, why()));
    gpumem_event none = nullptr;
    called("event_import", gpumem_event_import(device_, &shared_event, nullptr, 0, &none, why()),
           GPUMEM_ERROR_INVALID_STATE);
    EXPECT_OK(gpumem_event_destroy(event, why()));
    use_ring(called);
    use_hub(handle, info.base, called);
    called("share_revoke", gpumem_share_revoke(instance_, &handle, why()));
    EXPECT_OK(gpumem_buffer_destroy(buffer, why()));
  }
  // Nobody else opens it, and a process does not open its own.
  template <class Called>
  void use_ring(Called called) {
    gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
    desc.slot_size = 1;
    gpumem_ring ring = nullptr;
    called("ring_create", gpumem_ring_create(device_, &desc, &ring, why()));
    gpumem_share_handle handle{};
    called("ring_export", gpumem_ring_export(ring, &handle, why()));
    gpumem_ring none = nullptr;
    called("ring_open", gpumem_ring_open(instance_, &handle, nullptr, &none, why()),
           GPUMEM_ERROR_INVALID_STATE);
    gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
    called("ring_acquire", gpumem_ring_acquire(ring, nullptr, 0, &slot, why()));
    called("ring_publish", gpumem_ring_publish(ring, nullptr, 1, 0, why()));
    called("ring_wait", gpumem_ring_wait(ring, nullptr, 0, &slot, why()), GPUMEM_ERROR_INVALID_STATE);
    called("ring_release", gpumem_ring_release(ring, nullptr, 1, why()), GPUMEM_ERROR_INVALID_STATE);
    gpumem_ring_info info = GPUMEM_RING_INFO_INIT;
    called("ring_get_info", gpumem_ring_get_info(ring, &info, why()));
    called("ring_finish", gpumem_ring_finish(ring, 0, why()));
    called("ring_destroy", gpumem_ring_destroy(ring, why()));
  }
  template <class Called>
  void use_hub(const gpumem_share_handle& handle, const void* base, Called called) {
    const std::string path = "@gpumem-every-call-" + std::to_string(getpid());
    gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
    desc.path = path.c_str();
    desc.flags = GPUMEM_HUB_KEEPER;
    gpumem_hub hub = nullptr;
    called("hub_open", gpumem_hub_open(instance_, &desc, &hub, why()));
    gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
    called("hub_get_info", gpumem_hub_get_info(hub, &info, why()));
    called("hub_publish", gpumem_hub_publish(hub, "name", &handle, nullptr, nullptr, why()));
    gpumem_link_desc of_link = GPUMEM_LINK_DESC_INIT;
    of_link.path = path.c_str();
    gpumem_link link = nullptr;
    called("link_connect", gpumem_link_connect(instance_, &of_link, &link, why()));
    gpumem_link_info link_info = GPUMEM_LINK_INFO_INIT;
    called("link_get_info", gpumem_link_get_info(link, &link_info, why()));
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    called("link_enumerate", gpumem_link_enumerate(link, 0, &entry, why()));
    called("link_wait", gpumem_link_wait(link, "name", 0, GPUMEM_TIMEOUT_INFINITE, &entry, why()));
    gpumem_memory next = nullptr;
    called("link_import_next", gpumem_link_import_next(link, "name", 0, GPUMEM_TIMEOUT_INFINITE, nullptr,
                                                       nullptr, nullptr, &next, why()));
    EXPECT_OK(gpumem_memory_destroy(next, why()));
    gpumem_share_handle fetched{};
    called("link_fetch", gpumem_link_fetch(link, "name", nullptr, &fetched, why()));
    // What is fetched and never imported takes a place for a while.
    gpumem_memory memory = nullptr;
    EXPECT_OK(gpumem_share_import(instance_, &fetched, nullptr, 0, nullptr, nullptr, &memory, why()));
    EXPECT_OK(gpumem_memory_destroy(memory, why()));
    called("hub_withdraw", gpumem_hub_withdraw(hub, "name", 0, why()));
    called("link_publish", gpumem_link_publish(link, "another", &handle, nullptr, nullptr, why()));
    called("link_withdraw", gpumem_link_withdraw(link, "another", 0, why()));
    // A keeper answers without a trial.
    gpumem_way_info way = GPUMEM_WAY_INFO_INIT;
    called("link_get_way", gpumem_link_get_way(link, base, GPUMEM_SHARE_WAY_POSIX_FD,
                                               GPUMEM_PEER_OTHER_PROCESS, &way, why()));
    called("link_close", gpumem_link_close(link, why()));
    called("hub_close", gpumem_hub_close(hub, why()));
  }
  void ask_devices(const std::function<void(const char*, gpumem_status)>& call) {
    gpumem_device found = nullptr;
    gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
    call("device_get", gpumem_device_get(instance_, 0, &found, why()));
    call("device_get_info", gpumem_device_get_info(device_, &info, why()));
    call("device_get_memory", gpumem_device_get_memory(device_, nullptr, nullptr, why()));
    call("device_trim_graphs", gpumem_device_trim_graphs(device_, nullptr, why()));
    gpumem_capability what = 0;
    for (uint32_t i = 0; gpumem_capability_enumerate(i, &what, nullptr) == GPUMEM_SUCCESS; ++i) {
      const bool of_pair = what == GPUMEM_CAPABILITY_PEER_ACCESS || what == GPUMEM_CAPABILITY_PEER_ATOMICS;
      if (of_pair && second_ == nullptr) continue;
      gpumem_capability_info answer = GPUMEM_CAPABILITY_INFO_INIT;
      call("device_get_capability",
           gpumem_device_get_capability(device_, what, of_pair ? second_ : nullptr, &answer, why()));
    }
    call("capability_enumerate", gpumem_capability_enumerate(0, &what, why()));
    if (second_ != nullptr) {
      uint32_t possible = 0;
      call("device_can_access_peer", gpumem_device_can_access_peer(device_, second_, &possible, why()));
      if (possible != 0) {
        call("device_enable_peer_access", gpumem_device_enable_peer_access(device_, second_, why()));
        call("device_disable_peer_access", gpumem_device_disable_peer_access(device_, second_, why()));
      }
    }
    gpumem_instance_info of_instance = GPUMEM_INSTANCE_INFO_INIT;
    gpumem_stats all = GPUMEM_STATS_INIT;
    gpumem_kind_stats of_kind = GPUMEM_KIND_STATS_INIT;
    call("instance_get_info", gpumem_instance_get_info(instance_, &of_instance, why()));
    call("stats_get", gpumem_stats_get(instance_, &all, why()));
    call("stats_get_kind", gpumem_stats_get_kind(instance_, GPUMEM_KIND_DEVICE, &of_kind, why()));
    call("stats_report", gpumem_stats_report(instance_, nullptr, 0, nullptr, why()));
    call("stats_snapshot", gpumem_stats_snapshot(instance_, nullptr, 0, nullptr, why()));
    call("stats_reset_peaks", gpumem_stats_reset_peaks(instance_, why()));
    call("instance_probe", gpumem_instance_probe(backend(), nullptr, why()));
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = backend();
    gpumem_instance opened = nullptr;
    call("instance_open", gpumem_instance_open(&desc, &opened, why()));
    call("instance_close", gpumem_instance_close(opened, GPUMEM_CLOSE_CHECK, nullptr, why()));
    call("instance_default", gpumem_instance_default(&opened, why()));
  }

  class NativeEvent {
   public:
    explicit NativeEvent(gpumem_device device) : ordinal_(ordinal_of(device)) {
      const PrimaryContext context(ordinal_);
      EXPECT_EQ(raw().cuEventCreate(&event_, 0), CUDA_SUCCESS);
    }
    NativeEvent(const NativeEvent&) = delete;
    NativeEvent& operator=(const NativeEvent&) = delete;
    ~NativeEvent() {
      const PrimaryContext context(ordinal_);
      EXPECT_EQ(raw().cuEventDestroy(event_), CUDA_SUCCESS);
    }
    void* get() const { return event_; }

   private:
    uint32_t ordinal_;
    CUevent event_ = nullptr;
  };

  void run_managed(gpumem_stream stream) {
    const Memory memory = create_memory(device_, memory_desc(GPUMEM_KIND_MANAGED, kSize));
    uint8_t* const bytes = memory.host();
    gpumem_managed_range range = GPUMEM_MANAGED_RANGE_INIT;
    range.pointer = bytes;
    range.size = kSize;
    gpumem_managed_range moved = range;
    moved.location = GPUMEM_LOCATION_HOST;
    gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
    // Older drivers have no discard.
    const auto call = [&](const char* name, gpumem_status status) {
      called_.insert(std::string("gpumem_managed_") + name);
      EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_NO_EFFECT) << name;
    };
    call("attach", gpumem_managed_attach(stream, bytes, 0, GPUMEM_ATTACH_GLOBAL, why()));
    call("advise", gpumem_managed_advise(instance_, bytes, kSize, GPUMEM_ADVICE_SET_PREFERRED_LOCATION,
                                         GPUMEM_LOCATION_HOST, 0, why()));
    call("prefetch", gpumem_managed_prefetch(stream, bytes, kSize, GPUMEM_LOCATION_DEVICE,
                                             static_cast<int32_t>(ordinal_of(device_)), why()));
    call("prefetch_batch", gpumem_managed_prefetch_batch(stream, &moved, 1, why()));
    call("discard_batch", gpumem_managed_discard_batch(stream, &range, 1, why()));
    call("discard_and_prefetch_batch", gpumem_managed_discard_and_prefetch_batch(stream, &moved, 1, why()));
    call("get_info", gpumem_managed_get_info(instance_, bytes, kSize, &info, why()));
    EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    call("begin_host_access", gpumem_managed_begin_host_access(instance_, bytes, why()));
    call("end_host_access", gpumem_managed_end_host_access(instance_, bytes, why()));
  }

  gpumem_instance instance_;
  gpumem_device device_;
  gpumem_device second_;
  NativeStream native_;
  std::optional<NativeEvent> native_event_;  // the host backend has none
  const int file_ = memfd_create("every-call", 0);
  gpumem_pool native_pool_ = nullptr;
  std::set<std::string> called_;
};

// A cancellation is pending throughout: a cancellation point inside a call would end the process, because the
// call cannot be unwound.
TEST_F(Async, com_10_a_cancelled_thread_finishes_its_calls) {
  struct Cancelled {
    EveryCall* calls;
    std::atomic<bool> finished{false};
    static void* run(void* argument) {
      auto* const self = static_cast<Cancelled*>(argument);
      int before = 0;
      pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
      pthread_cancel(pthread_self());
      pthread_setcancelstate(before, nullptr);
      self->calls->run();
      self->finished = true;
      pthread_testcancel();
      return nullptr;
    }
  };
  EveryCall calls(instance_, device_, second_device());
  Cancelled cancelled{&calls};
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, nullptr, Cancelled::run, &cancelled), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_TRUE(cancelled.finished) << "a call let the cancellation pass";
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

// Beside each GLOBAL capture another thread makes every call once; each graph must be whole and replay right.
// On a GPU this goes on for ten seconds.
TEST_F(Async, com_28_every_call_beside_a_capture) {
  if (on_host()) SKIP_RULE("the host backend captures nothing; str_20 has its capturing mark");
  const auto end = std::chrono::steady_clock::now() +
                   (on_fake_cuda() ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000));
  EveryCall calls(instance_, device_, second_device());
  const ForeignMemory bytes(device_, GPUMEM_KIND_DEVICE, 2 * kSize);
  const ForeignMemory seen(device_, GPUMEM_KIND_PINNED, kSize);
  const auto first = reinterpret_cast<CUdeviceptr>(bytes.get());
  const NativeStream native(device_);
  const auto stream = static_cast<CUstream>(native.get());
  const PrimaryContext context(ordinal_of(device_));
  constexpr size_t kNodes = 3;
  int rounds = 0;
  do {
    const auto value = static_cast<uint8_t>(++rounds);
    ASSERT_EQ(raw().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuMemsetD8Async(first, value, kSize, stream), CUDA_SUCCESS);
    std::thread([&] { calls.run(); }).join();
    EXPECT_EQ(raw().cuMemcpyDtoDAsync(first + kSize, first, kSize, stream), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuMemcpyDtoHAsync(seen.get(), first + kSize, kSize, stream), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ASSERT_EQ(raw().cuStreamEndCapture(stream, &graph), CUDA_SUCCESS) << "in round " << rounds;
    size_t nodes = 0;
    EXPECT_EQ(raw().cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
    EXPECT_EQ(nodes, kNodes);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(raw().cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
    for (int replay = 0; replay < 2; ++replay) {
      std::memset(seen.get(), 0xEE, kSize);
      EXPECT_EQ(raw().cuMemsetD8Async(first, 0, 2 * kSize, stream), CUDA_SUCCESS);
      EXPECT_EQ(raw().cuGraphLaunch(executable, stream), CUDA_SUCCESS);
      EXPECT_EQ(raw().cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_EQ(std::vector<uint8_t>(seen.get(), seen.get() + kSize), std::vector<uint8_t>(kSize, value));
    }
    EXPECT_EQ(raw().cuGraphExecDestroy(executable), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuGraphDestroy(graph), CUDA_SUCCESS);
  } while (std::chrono::steady_clock::now() < end && !HasFailure());
  EXPECT_EQ(calls.not_called(), "");
}

// The test above would show a call that disturbs: one of the driver's own, in the thread's usual mode, does.
TEST_F(Async, com_28_a_capture_that_is_disturbed) {
  if (on_host()) SKIP_RULE("the host backend captures nothing");
  const NativeStream native(device_);
  const auto stream = static_cast<CUstream>(native.get());
  const PrimaryContext context(ordinal_of(device_));
  ASSERT_EQ(raw().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  std::thread([&] {
    const PrimaryContext there(ordinal_of(device_));
    CUdeviceptr memory = 0;
    EXPECT_EQ(raw().cuMemAlloc(&memory, kSize), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }).join();
  CUgraph graph = nullptr;
  EXPECT_EQ(raw().cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#endif

}  // namespace
}  // namespace conformance
