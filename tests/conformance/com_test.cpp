// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Rules COM-1 to COM-27 of the contract, as far as one process can show them; com_process_test.cpp has the
// rest.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cuda_raw.h"
#include "harness.h"
#include "vmm.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kTooLarge = uint64_t{1} << 63;
constexpr uint64_t kCannotBeServed = uint64_t{1} << 60;

// What an output holds before a call that must not touch it.
template <class T>
T untouched() {
  return reinterpret_cast<T>(uintptr_t{0x5A5A5A5A5A5A5A5A});
}

// What a failed call must leave as it was.
class Unchanged {
 public:
  explicit Unchanged(gpumem_instance instance)
      : instance_(instance), counters_(counters(instance)), snapshot_(Snapshot::take()) {}
  void check() const {
    EXPECT_TRUE(counters(instance_) == counters_) << "the counters changed";
    EXPECT_TRUE(nothing_left_since(snapshot_));
  }

 private:
  gpumem_instance instance_;
  Counters counters_;
  Snapshot snapshot_;
};

class Com : public Conformance {
 protected:
  gpumem_status try_create(const AnyDesc& desc) {
    auto memory = untouched<gpumem_memory>();
    const gpumem_status status = make_memory(device_, desc, &memory, why());
    if (status == GPUMEM_SUCCESS) {
      Memory owner(memory);
    } else {
      EXPECT_EQ(memory, untouched<gpumem_memory>());
    }
    return status;
  }
  gpumem_status copy(void* destination, const void* source, uint64_t size, gpumem_stream stream = nullptr) {
    return copy_on(instance_, stream, destination, source, size, nullptr, why());
  }
  gpumem_status fill(void* destination, uint64_t size, gpumem_stream stream = nullptr) {
    return fill_on(instance_, stream, destination, size, 7, 1, why());
  }
};

// ---- COM-1 to COM-7: values ----

TEST_F(Com, com_1_size_zero_is_refused) {
  Pages pages(page_size());
  const Unchanged unchanged(instance_);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(memory_desc(GPUMEM_KIND_DEVICE, 0)));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(memory_desc(GPUMEM_KIND_PINNED, 0)));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(register_desc(pages.get(), 0)));
  void* pointer = untouched<void*>();
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_malloc(device_, kind, 0, &pointer, why()));
  }
  EXPECT_EQ(pointer, untouched<void*>());
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_register(device_, pages.get(), 0, 0, why()));
  unchanged.check();
}

TEST_F(Com, com_1_copies_and_fills_of_nothing_look_at_nothing) {
  auto* nowhere = untouched<uint8_t*>();
  const Stream stream = create_stream(device_);
  for (const gpumem_stream where : {gpumem_stream{}, stream.get()}) {
    for (uint8_t* pointer : {static_cast<uint8_t*>(nullptr), nowhere}) {
      EXPECT_OK(copy(pointer, pointer, 0, where));
      EXPECT_OK(fill(pointer, 0, where));
      EXPECT_OK(copy_2d_on(instance_, where, pointer, 64, pointer, 64, 0, 10, nullptr, why()));
      EXPECT_OK(copy_2d_on(instance_, where, pointer, 64, pointer, 64, 10, 0, nullptr, why()));
      EXPECT_OK(fill_2d_on(instance_, where, pointer, 64, 0, 10, 7, 1, why()));
      EXPECT_OK(fill_2d_on(instance_, where, pointer, 64, 10, 0, 7, 1, why()));
    }
  }
  // Nothing was enqueued, so there is nothing to wait for.
  EXPECT_OK(gpumem_stream_query(stream, why()));
}

TEST_F(Com, com_2_sizes_that_are_too_large_are_refused) {
  Pages pages(page_size());
  const Memory memory = alloc_device(device_, kMiB);
  const Unchanged unchanged(instance_);
  for (const uint64_t size : {kTooLarge, kTooLarge + 1, UINT64_MAX - 4095, UINT64_MAX}) {
    SCOPED_TRACE(size);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(memory_desc(GPUMEM_KIND_DEVICE, size)));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(memory_desc(GPUMEM_KIND_PINNED, size)));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(register_desc(pages.get(), size)));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(memory.device(), pages.get(), size));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(memory.device(), size));
  }
  unchanged.check();
}

TEST_F(Com, com_2_sums_that_wrap_are_refused) {
  const Memory memory = alloc_device(device_, kMiB);
  Pages pages(page_size());
  const Unchanged unchanged(instance_);
  auto* last_page = reinterpret_cast<uint8_t*>(UINTPTR_MAX - 4095);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(register_desc(last_page, 8192)));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(memory.device(), last_page, 8192));
  // pitch * height is 2^64
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy_2d(instance_, memory.device(), uint64_t{1} << 40, pages.get(), 16, 16,
                               uint64_t{1} << 24, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_fill_2d(instance_, memory.device(), uint64_t{1} << 40,
                                                              16, uint64_t{1} << 24, 7, 1, why()));
  unchanged.check();
}

TEST_F(Com, com_2_sizes_that_cannot_be_served_are_out_of_memory) {
  const Unchanged unchanged(instance_);
  for (const uint64_t size : {kCannotBeServed, kTooLarge - 1}) {
    SCOPED_TRACE(size);
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, try_create(memory_desc(GPUMEM_KIND_DEVICE, size)));
    EXPECT_STATUS_IN(try_create(memory_desc(GPUMEM_KIND_PINNED, size)), GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
                     GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
  }
  unchanged.check();
}

TEST_F(Com, com_3_size_is_what_was_asked_for) {
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    const uint64_t granularity = !on_host() ? 2 * kMiB : kind == GPUMEM_KIND_PINNED ? page_size() : 512;
    for (const uint64_t size : {uint64_t{1}, uint64_t{255}, uint64_t{4097}, kMiB + 1, 5 * kMiB + 3}) {
      SCOPED_TRACE(size);
      const Memory memory = create_memory(device_, memory_desc(kind, size));
      const gpumem_memory_info info = memory.info();
      EXPECT_EQ(info.size, size);
      EXPECT_GE(info.granted_size, size);
      EXPECT_LE(info.granted_size, size + std::max(granularity, size / 8));
    }
  }
}

TEST_F(Com, com_3_bytes_beyond_size_are_refused) {
  const uint64_t size = 1000;
  Pages pages(page_size());
  fill_pattern(pages.get(), pages.size(), 1);
  std::vector<uint8_t> bytes(2 * size);
  std::vector<Memory> memories;
  memories.push_back(alloc_device(device_, size));
  memories.push_back(alloc_pinned(device_, size));
  memories.push_back(register_memory(device_, pages.get(), size));
  for (const Memory& memory : memories) {
    const gpumem_memory_info info = memory.info();
    SCOPED_TRACE(info.kind);
    auto* base =
        static_cast<uint8_t*>(info.kind == GPUMEM_KIND_DEVICE ? info.device_pointer : info.host_pointer);
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, size - 1}) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(base + offset, bytes.data(), size - offset + 1));
      EXPECT_NE(std::strstr(last_error().message, "1000"), nullptr) << last_error().message;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(bytes.data(), base + offset, size - offset + 1));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(base + offset, size - offset + 1));
      EXPECT_OK(copy(bytes.data(), base + offset, size - offset));
    }
  }
  EXPECT_TRUE(has_pattern(pages.get(), pages.size(), 1));
}

TEST_F(Com, com_4_alignment) {
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    std::vector<Memory> many;
    for (int i = 1; i <= 20; ++i) {
      many.push_back(create_memory(device_, memory_desc(kind, static_cast<uint64_t>(i))));
      const gpumem_memory_info info = many.back().info();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(info.device_pointer) % 256, 0u);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(info.host_pointer) % 256, 0u);
      EXPECT_EQ(info.alignment, 0u);
    }
    many.clear();
    for (uint64_t alignment = 1; alignment <= 8 * kMiB; alignment *= 2) {
      SCOPED_TRACE(alignment);
      gpumem_memory_desc desc = memory_desc(kind, 100);
      desc.alignment = alignment;
      gpumem_memory handle = nullptr;
      const gpumem_status status = gpumem_memory_create(device_, &desc, &handle, why());
      // What the page allows is always met; more may be refused.
      if (alignment > page_size()) {
        EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_ERROR_UNSUPPORTED);
      } else {
        EXPECT_OK(status);
      }
      if (status != GPUMEM_SUCCESS) continue;
      const Memory memory(handle);
      const gpumem_memory_info info = memory.info();
      const uint64_t least = std::max<uint64_t>(alignment, 256);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(info.device_pointer) % least, 0u);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(info.host_pointer) % least, 0u);
      EXPECT_EQ(info.alignment, alignment);
    }
    for (const uint64_t alignment : {uint64_t{3}, uint64_t{100}, uint64_t{257}, UINT64_MAX}) {
      gpumem_memory_desc desc = memory_desc(kind, 100);
      desc.alignment = alignment;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(desc));
    }
    gpumem_memory_desc desc = memory_desc(kind, 100);
    desc.alignment = kTooLarge;
    EXPECT_STATUS_IN(try_create(desc), GPUMEM_ERROR_INVALID_ARGUMENT, GPUMEM_ERROR_UNSUPPORTED);
  }
}

TEST_F(Com, com_5_flags_are_honoured_or_refused) {
  Pages pages(page_size());
  const Unchanged unchanged(instance_);
  const gpumem_memory_flags unknown = uint64_t{1} << 40;
  for (const AnyDesc& good :
       {AnyDesc(memory_desc(GPUMEM_KIND_DEVICE, kMiB)), AnyDesc(memory_desc(GPUMEM_KIND_PINNED, kMiB)),
        AnyDesc(register_desc(pages.get(), pages.size()))}) {
    const auto refused = [&](auto desc) {
      desc.require = unknown;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(desc));
      desc.require = 0;
      desc.prefer = unknown;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(desc));
    };
    std::visit(refused, good);
  }
  // Flags of another kind.
  for (const gpumem_memory_flags flag :
       {GPUMEM_MEMORY_PORTABLE, GPUMEM_MEMORY_MAPPED, GPUMEM_MEMORY_WRITE_COMBINED, GPUMEM_MEMORY_READ_ONLY,
        GPUMEM_MEMORY_IOMEMORY, GPUMEM_MEMORY_PAGE_LOCKED, GPUMEM_MEMORY_NUMA_NODE,
        GPUMEM_MEMORY_IN_PIECES}) {
    SCOPED_TRACE(flag);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(memory_desc(GPUMEM_KIND_DEVICE, kMiB, flag)));
  }
  for (const gpumem_memory_flags flag : {GPUMEM_MEMORY_READ_ONLY, GPUMEM_MEMORY_IOMEMORY}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(memory_desc(GPUMEM_KIND_PINNED, kMiB, flag)));
  }
  for (const gpumem_memory_flags flag : {GPUMEM_MEMORY_WRITE_COMBINED, GPUMEM_MEMORY_NUMA_NODE}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(register_desc(pages.get(), kKiB, flag)));
  }
  unchanged.check();
}

TEST_F(Com, com_5_clearing_a_flag_clears_one_bit) {
  gpumem_memory_flags memory = UINT64_MAX;
  memory &= ~GPUMEM_MEMORY_PORTABLE;
  EXPECT_EQ(memory, UINT64_MAX - 1);
  gpumem_event_flags event = UINT64_MAX;
  event &= ~GPUMEM_EVENT_BLOCKING_SYNC;
  EXPECT_EQ(event, UINT64_MAX - 2);
  for (const gpumem_event_flags unknown : {UINT64_C(1) << 2, UINT64_C(1) << 32, UINT64_C(1) << 63}) {
    gpumem_event_desc desc = GPUMEM_EVENT_DESC_INIT;
    desc.flags = unknown;
    auto made = untouched<gpumem_event>();
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_event_create(device_, &desc, &made, why()));
    EXPECT_EQ(made, untouched<gpumem_event>());
  }
}

TEST_F(Com, com_5_requested_and_granted_are_readable) {
  Pages pages(page_size());
  for (const gpumem_memory_flags require :
       {gpumem_memory_flags{0}, gpumem_memory_flags{GPUMEM_MEMORY_PORTABLE},
        gpumem_memory_flags{GPUMEM_MEMORY_MAPPED},
        gpumem_memory_flags{GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED}}) {
    SCOPED_TRACE(require);
    for (const AnyDesc& desc : {AnyDesc(memory_desc(GPUMEM_KIND_PINNED, kMiB, require)),
                                AnyDesc(register_desc(pages.get(), pages.size(), require))}) {
      const gpumem_memory_info info = create_memory(device_, desc).info();
      EXPECT_EQ(info.requested_flags, require);
      EXPECT_EQ(info.granted_flags & require, require);
      EXPECT_EQ(info.granted_flags &
                    (GPUMEM_MEMORY_READ_ONLY | GPUMEM_MEMORY_IOMEMORY | GPUMEM_MEMORY_WRITE_COMBINED),
                0u);
    }
  }
  EXPECT_EQ(alloc_device(device_, kMiB).info().granted_flags, 0u);
}

#ifdef HAVE_CUDA_HEADERS
TEST_F(Com, com_5_granted_agrees_with_the_driver) {
  if (!on_cuda()) SKIP_RULE("there is no driver to agree with");
  const PrimaryContext context(0);
  for (const gpumem_memory_flags require :
       {gpumem_memory_flags{0}, gpumem_memory_flags{GPUMEM_MEMORY_WRITE_COMBINED}}) {
    const Memory memory = alloc_pinned(device_, kMiB, require);
    unsigned flags = 0;
    ASSERT_EQ(raw().cuMemHostGetFlags(&flags, memory.host()), CUDA_SUCCESS);
    const gpumem_memory_flags granted = memory.info().granted_flags;
    EXPECT_EQ((flags & CU_MEMHOSTALLOC_PORTABLE) != 0, (granted & GPUMEM_MEMORY_PORTABLE) != 0);
    EXPECT_EQ((flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0, (granted & GPUMEM_MEMORY_MAPPED) != 0);
    EXPECT_EQ((flags & CU_MEMHOSTALLOC_WRITECOMBINED) != 0, (granted & GPUMEM_MEMORY_WRITE_COMBINED) != 0);
  }
}
#endif

TEST_F(Com, com_6_what_is_preferred_may_be_missing) {
  if (!on_host()) SKIP_RULE("which preference is missing on a GPU cannot be chosen");
  const Instance instance = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.lock_mode = GPUMEM_HOST_LOCK_OFF; });
  const gpumem_device device = instance.device();
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, kMiB);
  desc.prefer = GPUMEM_MEMORY_PAGE_LOCKED | GPUMEM_MEMORY_WRITE_COMBINED;
  {
    const Memory memory = create_memory(device, desc);
    EXPECT_EQ(memory.info().requested_flags, desc.prefer);
    EXPECT_EQ(memory.info().granted_flags & GPUMEM_MEMORY_PAGE_LOCKED, 0u);
  }
  const Unchanged unchanged(instance);
  desc.prefer = 0;
  desc.require = GPUMEM_MEMORY_PAGE_LOCKED;
  auto memory = untouched<gpumem_memory>();
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_memory_create(device, &desc, &memory, why()));
  EXPECT_EQ(memory, untouched<gpumem_memory>());
  unchanged.check();
}

TEST_F(Com, com_6_what_is_preferred_is_granted_where_possible) {
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, kMiB);
  desc.prefer = GPUMEM_MEMORY_WRITE_COMBINED;
  const Memory memory = create_memory(device_, desc);
  EXPECT_EQ(memory.info().requested_flags, desc.prefer);
  const bool possible = capability(device_, GPUMEM_CAPABILITY_PIN_WRITE_COMBINED).value != GPUMEM_ANSWER_NO;
  EXPECT_EQ((memory.info().granted_flags & GPUMEM_MEMORY_WRITE_COMBINED) != 0, possible);
}

TEST_F(Com, com_7_structs_of_older_and_newer_callers) {
  struct Newer {
    gpumem_memory_desc known = GPUMEM_MEMORY_DESC_INIT;
    uint64_t unknown = 0;
  } newer;
  newer.known = memory_desc(GPUMEM_KIND_DEVICE, kMiB);
  newer.known.struct_size = sizeof(newer);
  gpumem_memory memory = nullptr;
  EXPECT_OK(gpumem_memory_create(device_, &newer.known, &memory, why()));
  Memory(memory).destroy();
  newer.unknown = uint64_t{1} << 63;
  memory = untouched<gpumem_memory>();
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, &newer.known, &memory, why()));
  EXPECT_EQ(memory, untouched<gpumem_memory>());

  // No older version had a smaller struct yet.
  for (const size_t size : {size_t{0}, size_t{1}, sizeof(gpumem_memory_desc) - 1, SIZE_MAX}) {
    gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kMiB);
    desc.struct_size = size;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(desc));
  }
}

TEST_F(Com, com_7_reserved_fields_are_zero) {
  gpumem_stream_desc stream_desc = GPUMEM_STREAM_DESC_INIT;
  stream_desc.reserved = 1;
  auto stream = untouched<gpumem_stream>();
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_create(device_, &stream_desc, &stream, why()));
  EXPECT_EQ(stream, untouched<gpumem_stream>());
}

// ---- COM-8: failures leave nothing behind ----

// Lets each step of an operation fail in turn. `attempt` undoes the operation itself if it succeeds, with the
// faults off.
void fail_every_step(gpumem_instance instance, const char* name,
                     const std::function<gpumem_status(Faults&)>& attempt) {
  SCOPED_TRACE(name);
  constexpr uint64_t kMoreThanAnyHas = 60;
  int failures = 0;
  gpumem_status status = GPUMEM_SUCCESS;
  for (uint64_t k = 1; k <= kMoreThanAnyHas; ++k) {
    SCOPED_TRACE("step " + std::to_string(k));
    const Counters before = counters(instance);
    const Snapshot snapshot = Snapshot::take();
    Faults faults(instance);
    faults.fail_step(k);
    status = attempt(faults);
    faults.off();
    if (status == GPUMEM_SUCCESS) continue;
    ++failures;
    EXPECT_LT(status, 0);
    EXPECT_NE(status, GPUMEM_ERROR_INTERNAL);
    EXPECT_TRUE(counters(instance) == before) << "the counters changed";
    EXPECT_TRUE(nothing_left_since(snapshot));
  }
  EXPECT_GT(failures, 0) << "no step could be made to fail";
  EXPECT_EQ(status, GPUMEM_SUCCESS) << "there are more steps than were tried";
}

TEST_F(Com, com_8_creations_that_fail_leave_nothing) {
  if (!Faults::available()) SKIP_RULE("a real driver cannot be made to fail at a chosen step");
  Pages pages(64 * page_size());
  const auto create = [&](const AnyDesc& desc) {
    return [this, desc](Faults& faults) {
      auto memory = untouched<gpumem_memory>();
      const gpumem_status status = make_memory(device_, desc, &memory, why());
      faults.off();
      if (status == GPUMEM_SUCCESS) {
        Memory owner(memory);
      } else {
        EXPECT_EQ(memory, untouched<gpumem_memory>());
      }
      return status;
    };
  };
  fail_every_step(instance_, "device", create(memory_desc(GPUMEM_KIND_DEVICE, kMiB)));
  fail_every_step(instance_, "pinned", create(memory_desc(GPUMEM_KIND_PINNED, kMiB)));
  fail_every_step(instance_, "write-combined",
                  create(memory_desc(GPUMEM_KIND_PINNED, kMiB, GPUMEM_MEMORY_WRITE_COMBINED)));
  fail_every_step(
      instance_, "registered",
      create(register_desc(pages.get(), pages.size(), GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE)));
  gpumem_memory_desc aligned = memory_desc(GPUMEM_KIND_PINNED, kMiB);
  aligned.alignment = page_size();
  fail_every_step(instance_, "aligned", create(aligned));
  fail_every_step(instance_, "stream", [this](Faults& faults) {
    auto stream = untouched<gpumem_stream>();
    const gpumem_status status = gpumem_stream_create(device_, nullptr, &stream, why());
    faults.off();
    if (status == GPUMEM_SUCCESS) {
      const Stream owner(stream);
    } else {
      EXPECT_EQ(stream, untouched<gpumem_stream>());
    }
    return status;
  });
}

TEST_F(Com, com_8_operations_that_fail_do_nothing) {
  if (!Faults::available()) SKIP_RULE("a real driver cannot be made to fail at a chosen step");
  const Memory memory = alloc_device(device_, 64 * kKiB);
  const Memory pinned = alloc_pinned(device_, 64 * kKiB);
  const Event event = create_event(device_);
  const Stream stream = create_stream(device_);
  std::atomic<int> calls{0};
  ASSERT_OK(copy(memory.device(), pinned.host(), 1));  // what synchronous copies set up once is there
  const auto in_stream = [&](const std::function<gpumem_status()>& call) {
    return [&stream, call](Faults& faults) {
      const gpumem_status status = call();
      faults.off();
      stream.synchronize();
      return status;
    };
  };
  fail_every_step(instance_, "copy",
                  in_stream([&] { return copy(memory.device(), pinned.host(), 64 * kKiB, stream); }));
  fail_every_step(instance_, "fill", in_stream([&] { return fill(memory.device(), 64 * kKiB, stream); }));
  fail_every_step(instance_, "synchronous copy",
                  in_stream([&] { return copy(memory.device(), pinned.host(), 64 * kKiB); }));
  uint64_t succeeded = 0;
  fail_every_step(instance_, "host function", in_stream([&] {
                    const auto count = [](void* user_data) { ++*static_cast<std::atomic<int>*>(user_data); };
                    const gpumem_status status =
                        gpumem_stream_launch_host_function(stream, count, &calls, why());
                    if (status == GPUMEM_SUCCESS) ++succeeded;
                    return status;
                  }));
  // A launch that failed has not run.
  EXPECT_EQ(static_cast<uint64_t>(calls), succeeded);
}

// The driver has done nothing, so the object is as it was and can be destroyed later.
TEST_F(Com, com_8_what_could_not_be_destroyed_lives_on) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be made to turn down a release");
  constexpr int kNotPermitted = 800;
  const Counters before = counters(instance_);
  Faults faults(instance_);
  const auto check = [&](const char* entry_point, const auto& destroy, const auto& use) {
    SCOPED_TRACE(entry_point);
    faults.fail_call(entry_point, kNotPermitted);
    const Counters counted = counters(instance_);
    EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED, destroy());
    EXPECT_TRUE(counters(instance_) == counted);
    use();
    EXPECT_OK(destroy());
  };
  const auto check_memory = [&](const char* entry_point, Memory owned) {
    const gpumem_memory memory = owned.release();
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    ASSERT_OK(gpumem_memory_get_info(memory, &info, why()));
    check(
        entry_point, [&] { return gpumem_memory_destroy(memory, why()); },
        [&] {
          EXPECT_OK(gpumem_memory_get_info(memory, &info, why()));
          EXPECT_EQ(pointer_info(instance_, info.device_pointer).memory, memory);
          EXPECT_OK(fill(info.device_pointer, kKiB));
        });
  };
  Pages pages(page_size());
  check_memory("cuMemFree", alloc_device(device_, kKiB));
  check_memory("cuMemHostUnregister", alloc_pinned(device_, kKiB));
  check_memory("cuMemFreeHost", alloc_pinned(device_, kKiB, GPUMEM_MEMORY_WRITE_COMBINED));
  check_memory("cuMemHostUnregister",
               register_memory(device_, pages.get(), page_size(), GPUMEM_MEMORY_MAPPED));
  const gpumem_stream stream = create_stream(device_).release();
  const gpumem_event event = create_event(device_).release();
  check(
      "cuEventDestroy", [&] { return gpumem_event_destroy(event, why()); },
      [&] { EXPECT_OK(gpumem_event_record(event, stream, why())); });
  check(
      "cuStreamDestroy", [&] { return gpumem_stream_destroy(stream, why()); },
      [&] { EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why())); });
  EXPECT_EQ(counters(instance_).all.live_count, before.all.live_count);
  EXPECT_EQ(counters(instance_).all.streams, before.all.streams);
  EXPECT_EQ(counters(instance_).all.events, before.all.events);
}

TEST_F(Com, com_8_running_out_changes_nothing) {
  const Memory memory = alloc_device(device_, kMiB);
  put_pattern(instance_, memory.device(), kMiB, 3);
  const Unchanged unchanged(instance_);
  uint64_t free_before = 0;
  uint64_t free_after = 0;
  uint64_t total = 0;
  ASSERT_OK(gpumem_device_get_memory(device_, &free_before, &total, why()));
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, try_create(memory_desc(GPUMEM_KIND_DEVICE, total + kMiB)));
  ASSERT_OK(gpumem_device_get_memory(device_, &free_after, nullptr, why()));
  if (on_host()) {
    EXPECT_EQ(free_after, free_before);
  }
  unchanged.check();
  EXPECT_TRUE(holds_pattern(instance_, memory.device(), kMiB, 3));
}

// ---- COM-9: the caller's current context ----

// Calls that succeed and calls that fail, of every sort.
void call_a_bit_of_everything(gpumem_instance instance, gpumem_device device) {
  const Memory memory = alloc_device(device, kMiB);
  const Memory pinned = alloc_pinned(device, kMiB);
  Pages pages(4 * page_size());
  const Memory registered = register_memory(device, pages.get(), pages.size(), GPUMEM_MEMORY_MAPPED);
  const Stream stream = create_stream(device);
  const Event event = create_event(device);
  const auto nothing = [](void*) {};
  EXPECT_OK(gpumem_copy_async(stream, memory.device(), pinned.host(), kMiB, nullptr, why()));
  EXPECT_OK(gpumem_event_record(event, stream, why()));
  EXPECT_OK(gpumem_stream_wait_event(stream, event, why()));
  EXPECT_OK(gpumem_stream_launch_host_function(stream, nothing, nullptr, why()));
  EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_fill(instance, memory.device(), kMiB, 1, 1, why()));
  EXPECT_OK(gpumem_copy(instance, pages.get(), memory.device(), pages.size(), nullptr, why()));
  EXPECT_OK(gpumem_device_get_memory(device, nullptr, nullptr, why()));
  pointer_info(instance, memory.device());
  pointer_info(instance, &instance);
  capability(device, GPUMEM_CAPABILITY_PIN_REGISTER);

  gpumem_memory none = nullptr;
  const gpumem_memory_desc too_large = memory_desc(GPUMEM_KIND_DEVICE, kCannotBeServed);
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, gpumem_memory_create(device, &too_large, &none, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance, &none, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy_async(stream, memory.device(), pinned.host(), 2 * kMiB, nullptr, why()));
}

TEST_F(Com, com_9_no_thread_needs_preparation) {
  std::thread([&] { call_a_bit_of_everything(instance_, device_); }).join();
}

TEST_F(Com, com_9_the_current_context_stays) {
  gpumem_device last = device_;
  if (second_device()) last = second_device();
  if (on_host()) {
    for (const int32_t current : {-1, 0, 7}) {
      int32_t former = -2;
      int32_t seen = -2;
      EXPECT_OK(gpumem_host_set_current_device(current, &former, why()));
      call_a_bit_of_everything(instance_, last);
      EXPECT_OK(gpumem_host_set_current_device(former, &seen, why()));
      EXPECT_EQ(seen, current);
    }
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  CUcontext now = nullptr;
  std::thread([&] {
    call_a_bit_of_everything(instance_, last);
    CUcontext none = untouched<CUcontext>();
    EXPECT_EQ(raw().cuCtxGetCurrent(&none), CUDA_SUCCESS);
    EXPECT_EQ(none, nullptr);
  }).join();
  const PrimaryContext primary(0);
  call_a_bit_of_everything(instance_, last);
  EXPECT_EQ(raw().cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, primary.get());

  CUdevice device = 0;
  CUcontext own = nullptr;
  ASSERT_EQ(raw().cuDeviceGet(&device, 0), CUDA_SUCCESS);
  ASSERT_TRUE(raw().cuCtxCreate) << "the driver lacks cuCtxCreate_v4";
  ASSERT_EQ(raw().cuCtxCreate(&own, nullptr, 0, device), CUDA_SUCCESS);
  call_a_bit_of_everything(instance_, last);
  EXPECT_EQ(raw().cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, own);
  EXPECT_EQ(raw().cuCtxDestroy(own), CUDA_SUCCESS);
#else
  SKIP_RULE("built without the CUDA headers: the current context cannot be seen");
#endif
}

// ---- COM-10: threads ----

TEST_F(Com, com_10_different_objects_in_parallel) {
  const auto work = [&](uint32_t seed) {
    for (uint32_t round = 0; round < 20; ++round) {
      const uint64_t size = 16 * kKiB + seed;
      const Memory memory = alloc_device(device_, size);
      const Memory pinned = alloc_pinned(device_, size);
      const Stream stream = create_stream(device_);
      fill_pattern(pinned.host(), size, seed);
      EXPECT_OK(copy(memory.device(), pinned.host(), size, stream));
      stream.synchronize();
      EXPECT_TRUE(holds_pattern(instance_, memory.device(), size, seed));
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 4; ++seed)
    threads.emplace_back(work, seed);
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(Com, com_10_any_thread_frees) {
  std::vector<gpumem_memory> memories;
  std::vector<void*> pointers;
  std::thread([&] {
    for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
      memories.push_back(create_memory(device_, memory_desc(kind, kMiB)).release());
      void* pointer = nullptr;
      EXPECT_OK(gpumem_malloc(device_, kind, kMiB, &pointer, why()));
      pointers.push_back(pointer);
    }
  }).join();
  std::thread([&] {
    for (const gpumem_memory memory : memories)
      EXPECT_OK(gpumem_memory_destroy(memory, why()));
    for (void* pointer : pointers)
      EXPECT_OK(gpumem_free(instance_, pointer, why()));
  }).join();
}

// One thread destroys while others use: each use completes or finds the handle stale.
template <class Create, class Destroy>
void destroy_in_a_storm(const Create& create, const Destroy& destroy,
                        const std::vector<std::function<gpumem_status(decltype(create()))>>& uses) {
  for (int round = 0; round < 100; ++round) {
    const auto handle = create();
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (const auto& use : uses) {
      threads.emplace_back([&] {
        ++ready;
        for (;;) {
          const gpumem_status status = use(handle);
          EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_NOT_READY, GPUMEM_ERROR_STALE_HANDLE);
          if (status < 0) return;
        }
      });
    }
    while (ready < static_cast<int>(uses.size()))
      std::this_thread::yield();
    EXPECT_OK(destroy(handle));
    for (std::thread& thread : threads)
      thread.join();
  }
}

TEST_F(Com, com_10_destroy_races_with_use) {
  const Stream stream = create_stream(device_);
  destroy_in_a_storm([&] { return alloc_device(device_, 4 * kKiB).release(); },
                     [](gpumem_memory memory) { return gpumem_memory_destroy(memory, why()); },
                     {[](gpumem_memory memory) {
                        gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
                        const gpumem_status status = gpumem_memory_get_info(memory, &info, why());
                        if (status == GPUMEM_SUCCESS) {
                          EXPECT_EQ(info.size, 4 * kKiB);
                        }
                        return status;
                      },
                      [](gpumem_memory memory) {
                        gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
                        return gpumem_memory_get_info(memory, &info, why());
                      }});
  destroy_in_a_storm(
      [&] { return create_event(device_).release(); },
      [](gpumem_event event) { return gpumem_event_destroy(event, why()); },
      {[&](gpumem_event event) { return gpumem_event_record(event, stream, why()); },
       [&](gpumem_event event) { return gpumem_event_query(event, why()); },
       [&](gpumem_event event) { return gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()); }});
  destroy_in_a_storm(
      [&] {
        gpumem_stream created = nullptr;
        EXPECT_OK(gpumem_stream_create(device_, nullptr, &created, why()));
        return created;
      },
      [](gpumem_stream created) { return gpumem_stream_destroy(created, why()); },
      {[](gpumem_stream created) {
         return gpumem_stream_launch_host_function(
             created, [](void*) {}, nullptr, why());
       },
       [](gpumem_stream created) { return gpumem_stream_query(created, why()); },
       [](gpumem_stream created) {
         return gpumem_stream_synchronize(created, GPUMEM_TIMEOUT_INFINITE, why());
       }});
}

TEST_F(Com, com_10_two_threads_destroy_one_object) {
  for (int round = 0; round < 100; ++round) {
    const gpumem_memory memory = alloc_pinned(device_, 4 * kKiB).release();
    std::atomic<int> won{0};
    const auto destroy = [&] {
      const gpumem_status status = gpumem_memory_destroy(memory, why());
      EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_ERROR_STALE_HANDLE);
      if (status == GPUMEM_SUCCESS) ++won;
    };
    std::thread other(destroy);
    destroy();
    other.join();
    EXPECT_EQ(won, 1);
  }
}

// ---- COM-11 and COM-12: handles and pointers that are not what they seem ----

TEST_F(Com, com_11_destroyed) {
  const gpumem_memory memory = alloc_device(device_, kMiB).release();
  const gpumem_stream stream = create_stream(device_).release();
  const gpumem_event event = create_event(device_).release();
  EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_memory_destroy(memory, why()));
  EXPECT_OK(gpumem_stream_destroy(stream, why()));
  EXPECT_OK(gpumem_event_destroy(event, why()));
  // The slots are used again, many times over.
  std::vector<gpumem_memory> newer;
  for (int i = 0; i < 1000; ++i) {
    const Memory other = alloc_pinned(device_, kKiB);
    ASSERT_NE(other.get(), memory);
  }
  const Memory other_memory = alloc_pinned(device_, kKiB);
  const Stream other_stream = create_stream(device_);
  const Event other_event = create_event(device_);
  gpumem_memory_info memory_info = GPUMEM_MEMORY_INFO_INIT;
  gpumem_stream_info stream_info = GPUMEM_STREAM_INFO_INIT;
  gpumem_event_info event_info = GPUMEM_EVENT_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_memory_get_info(memory, &memory_info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_memory_destroy(memory, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_get_info(stream, &stream_info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_query(stream, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_wait_event(stream, other_event, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_wait_event(other_stream, event, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, fill(other_memory.host(), kKiB, stream));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_destroy(stream, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_event_get_info(event, &event_info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_event_record(event, other_stream, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_event_destroy(event, why()));
}

TEST_F(Com, com_11_says_how_it_ended) {
  const gpumem_memory memory = alloc_device(device_, kMiB).release();
  EXPECT_OK(gpumem_memory_destroy(memory, why()));
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_memory_get_info(memory, &info, why()));
  EXPECT_STREQ(last_error().message, "this memory was destroyed; do not use its handle after that");
  if (capability(device_, GPUMEM_CAPABILITY_VMM_DEVICE).value != GPUMEM_ANSWER_NO) {
    gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
    desc.size = 64 * kMiB;
    gpumem_range range = nullptr;
    ASSERT_OK(gpumem_range_reserve(instance_, &desc, &range, why()));
    EXPECT_OK(gpumem_range_release(range, why()));
    EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_range_release(range, why()));
    EXPECT_STREQ(last_error().message, "this range was released; do not use its handle after that");
  }
  if (capability(device_, GPUMEM_CAPABILITY_SHARE_CHANNEL).value == GPUMEM_ANSWER_NO) return;
  gpumem_hub hub = nullptr;
  const std::string path = "@gpumem-com-11-" + std::to_string(getpid());
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  desc.path = path.c_str();
  ASSERT_OK(gpumem_hub_open(instance_, &desc, &hub, why()));
  EXPECT_OK(gpumem_hub_close(hub, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_hub_close(hub, why()));
  EXPECT_STREQ(last_error().message, "this hub was closed; do not use its handle after that");
}

// A value is named as the caller writes it; one that is none, by its enum and its number.
TEST_F(Com, com_16_values_are_named_in_full) {
  gpumem_access access = GPUMEM_ACCESS_NONE;
  const auto expect_said = [](const char* said, gpumem_status status) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, status);
    EXPECT_STREQ(last_error().message, said);
  };
  expect_said(
      "the location is GPUMEM_LOCATION_HOST_NUMA; it must be GPUMEM_LOCATION_DEVICE or GPUMEM_LOCATION_HOST",
      gpumem_pointer_get_access(instance_, &access, GPUMEM_LOCATION_HOST_NUMA, 0, &access, why()));
  expect_said(
      "the location is 77, which is not a GPUMEM_LOCATION_ value; it must be GPUMEM_LOCATION_DEVICE or "
      "GPUMEM_LOCATION_HOST",
      gpumem_pointer_get_access(instance_, &access, 77, 0, &access, why()));
  void* pointer = nullptr;
  expect_said(
      "the kind is GPUMEM_KIND_POOL; it must be GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED or "
      "GPUMEM_KIND_MANAGED",
      gpumem_malloc(device_, GPUMEM_KIND_POOL, 1, &pointer, why()));
  EXPECT_EQ(pointer, nullptr);
  gpumem_share_handle handle{};
  gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
  desc.access = GPUMEM_ACCESS_UNKNOWN;
  expect_said("access is GPUMEM_ACCESS_UNKNOWN; it must be GPUMEM_ACCESS_READ, GPUMEM_ACCESS_READWRITE or 0",
              gpumem_share_export(instance_, &pointer, &desc, &handle, why()));
  gpumem_log_function log = [](void*, gpumem_log_level, const char*) {};
  expect_said("max_level is 9, which is not a GPUMEM_LOG_ value",
              gpumem_log_set_function(log, nullptr, 9, why()));
}

TEST_F(Com, com_11_forged) {
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  gpumem_device_info device_info = GPUMEM_DEVICE_INFO_INIT;
  gpumem_instance_info instance_info = GPUMEM_INSTANCE_INFO_INIT;
  int on_the_stack = 0;
  const auto real = reinterpret_cast<uintptr_t>(alloc_device(device_, kKiB).get());
  std::vector<uintptr_t> values = {1,
                                   8,
                                   0x1234,
                                   UINTPTR_MAX,
                                   reinterpret_cast<uintptr_t>(&on_the_stack),
                                   uintptr_t{1} << 63,
                                   0x5A5A5A5A5A5A5A5A};
  for (const uintptr_t value : values) {
    SCOPED_TRACE(value);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_memory_get_info(reinterpret_cast<gpumem_memory>(value), &info, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_memory_destroy(reinterpret_cast<gpumem_memory>(value), why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_stream_query(reinterpret_cast<gpumem_stream>(value), why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_event_query(reinterpret_cast<gpumem_event>(value), why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_device_get_info(reinterpret_cast<gpumem_device>(value), &device_info, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_instance_get_info(reinterpret_cast<gpumem_instance>(value), &instance_info, why()));
  }
  // One wrong bit in a handle that was good names no object either.
  for (int bit = 0; bit < 64; ++bit) {
    SCOPED_TRACE(bit);
    const auto value = reinterpret_cast<gpumem_memory>(real ^ (uintptr_t{1} << bit));
    EXPECT_STATUS_IN(gpumem_memory_get_info(value, &info, why()), GPUMEM_ERROR_INVALID_ARGUMENT,
                     GPUMEM_ERROR_STALE_HANDLE, GPUMEM_ERROR_CLOSED);
  }
}

TEST_F(Com, com_11_mistyped) {
  const Memory memory = alloc_device(device_, kKiB);
  const Stream stream = create_stream(device_);
  const Event event = create_event(device_);
  const auto as_memory = [](auto handle) { return reinterpret_cast<gpumem_memory>(handle); };
  const auto as_stream = [](auto handle) { return reinterpret_cast<gpumem_stream>(handle); };
  const auto as_event = [](auto handle) { return reinterpret_cast<gpumem_event>(handle); };
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  for (const gpumem_memory wrong :
       {as_memory(stream.get()), as_memory(event.get()), as_memory(device_), as_memory(instance_.get())}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_get_info(wrong, &info, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_destroy(wrong, why()));
  }
  for (const gpumem_stream wrong : {as_stream(memory.get()), as_stream(event.get()), as_stream(device_)}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_query(wrong, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(memory.device(), kKiB, wrong));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_destroy(wrong, why()));
  }
  for (const gpumem_event wrong :
       {as_event(memory.get()), as_event(stream.get()), as_event(instance_.get())}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_event_query(wrong, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_event_destroy(wrong, why()));
  }
  EXPECT_OK(gpumem_stream_query(stream, why()));
  EXPECT_OK(gpumem_event_query(event, why()));
}

TEST_F(Com, com_12_free_takes_the_base_of_a_live_allocation) {
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    void* pointer = nullptr;
    ASSERT_OK(gpumem_malloc(device_, kind, kMiB, &pointer, why()));
    auto* base = static_cast<uint8_t*>(pointer);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_free(instance_, base + 1, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_free(instance_, base + kMiB - 1, why()));
    EXPECT_OK(fill(base, kMiB));
    EXPECT_OK(gpumem_free(instance_, base, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, base, why()));
    // Memory made with a descriptor is freed by pointer as well; its handle is then stale.
    const gpumem_memory memory = create_memory(device_, memory_desc(kind, kMiB)).release();
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    ASSERT_OK(gpumem_memory_get_info(memory, &info, why()));
    EXPECT_OK(gpumem_free(instance_, info.host_pointer ? info.host_pointer : info.device_pointer, why()));
    EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_memory_destroy(memory, why()));
  }
  EXPECT_OK(gpumem_free(instance_, nullptr, why()));
}

TEST_F(Com, com_12_free_of_other_memory_is_refused) {
  std::vector<uint8_t> heap(kMiB);
  Pages pages(4 * page_size());
  const Memory registered = register_memory(device_, pages.get(), pages.size());
  int on_the_stack = 0;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, heap.data(), why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, &on_the_stack, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, untouched<void*>(), why()));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_free(instance_, pages.get(), why()));
  EXPECT_EQ(pointer_info(instance_, pages.get()).kind, GPUMEM_KIND_REGISTERED);

  const Instance other = open_instance();
  const Memory of_other = alloc_device(other.device(), kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, of_other.device(), why()));
}

TEST_F(Com, com_12_free_of_foreign_memory_is_refused) {
  REQUIRE_FOREIGN();
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    const ForeignMemory foreign(device_, kind, kMiB);
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, foreign.get(), why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_unregister(instance_, foreign.get(), why()));
  }
}

// ---- COM-13 and COM-14: order of free, fresh contents ----

TEST_F(Com, com_13_memory_in_use_is_not_freed) {
  const Memory memory = alloc_device(device_, kMiB);
  const Memory pinned = alloc_pinned(device_, kMiB);
  Memory unused = alloc_device(device_, kMiB);
  fill_pattern(pinned.host(), kMiB, 9);
  {
    GatedStream stream(device_);
    EXPECT_OK(copy(memory.device(), pinned.host(), kMiB, stream));
    // On cuda this misuse cannot be detected, and a free may wait for the held stream.
    if (on_host()) {
      unused.destroy();
      for (const Memory* used : {&memory, &pinned}) {
        EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(used->get(), why()));
      }
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_free(instance_, memory.device(), why()));
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_free(instance_, pinned.host(), why()));
      EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_DEVICE).live_count, 1u);
    }
    stream.finish();
  }
  EXPECT_TRUE(holds_pattern(instance_, memory.device(), kMiB, 9));
}

TEST_F(Com, com_14_fresh_memory_is_not_zero) {
  for (int round = 0; round < 2; ++round) {  // the second time from memory that was used before
    const Memory memory = alloc_device(device_, kMiB);
    const Memory pinned = alloc_pinned(device_, kMiB);
    std::vector<uint8_t> bytes(kMiB);
    EXPECT_OK(copy(bytes.data(), memory.device(), kMiB));
    // On cuda the contents are whatever they are; that they can be read is all that is promised.
    if (on_host()) {
      const auto is_fill = [](uint8_t byte) { return byte == 0xA5; };
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), is_fill));
      EXPECT_TRUE(std::all_of(pinned.host(), pinned.host() + kMiB, is_fill));
    }
    EXPECT_OK(gpumem_fill(instance_, memory.device(), kMiB, 0, 1, why()));
    std::memset(pinned.host(), 0, kMiB);
  }
}

// ---- COM-15 to COM-17: what a status says ----

TEST_F(Com, com_15_a_status_describes_its_own_call) {
  const Memory memory = alloc_device(device_, kKiB);
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_free(instance_, memory.device() + 1, &error), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(error.status, GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(error.function, "gpumem_free");
  // The same struct serves the next call, which succeeds.
  EXPECT_EQ(gpumem_fill(instance_, memory.device(), kKiB, 0, 1, &error), GPUMEM_SUCCESS);
  EXPECT_EQ(error.status, GPUMEM_SUCCESS);
  EXPECT_EQ(error.native_code, 0);
  EXPECT_STREQ(error.message, "");
}

TEST_F(Com, com_16_every_status_has_its_texts) {
  std::set<std::string> names;
  std::set<gpumem_status> codes;
  for (uint32_t index = 0;; ++index) {
    auto code = gpumem_status{12345};
    const gpumem_status result = gpumem_status_enumerate(index, &code, why());
    if (result != GPUMEM_SUCCESS) {
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, result);
      EXPECT_EQ(code, 12345);
      break;
    }
    gpumem_status_info info = GPUMEM_STATUS_INFO_INIT;
    EXPECT_OK(gpumem_status_get_info(code, &info, why()));
    EXPECT_EQ(info.status, code);
    EXPECT_STREQ(info.name, gpumem_status_name(code));
    EXPECT_STRNE(info.cause, "");
    EXPECT_STRNE(info.remedy, "");
    EXPECT_EQ(std::string(info.name).rfind("GPUMEM_", 0), 0u) << info.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " twice";
    EXPECT_TRUE(codes.insert(code).second) << code << " twice";
  }
  for (const gpumem_status code : {GPUMEM_SUCCESS,
                                   GPUMEM_NOT_READY,
                                   GPUMEM_NO_EFFECT,
                                   GPUMEM_ERROR_INVALID_ARGUMENT,
                                   GPUMEM_ERROR_WRONG_KIND,
                                   GPUMEM_ERROR_NOT_FOUND,
                                   GPUMEM_ERROR_ALREADY_EXISTS,
                                   GPUMEM_ERROR_STALE_HANDLE,
                                   GPUMEM_ERROR_INVALID_STATE,
                                   GPUMEM_ERROR_NO_ACCESS,
                                   GPUMEM_ERROR_BUSY,
                                   GPUMEM_ERROR_CLOSED,
                                   GPUMEM_ERROR_FORKED,
                                   GPUMEM_ERROR_PEER_GONE,
                                   GPUMEM_ERROR_DEVICE_LOST,
                                   GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                                   GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
                                   GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
                                   GPUMEM_ERROR_LIMIT_EXCEEDED,
                                   GPUMEM_ERROR_UNSUPPORTED,
                                   GPUMEM_ERROR_PERMISSION_DENIED,
                                   GPUMEM_ERROR_NO_DEVICE,
                                   GPUMEM_ERROR_DRIVER_NOT_FOUND,
                                   GPUMEM_ERROR_DRIVER_TOO_OLD,
                                   GPUMEM_ERROR_SYMBOL_MISSING,
                                   GPUMEM_ERROR_INTERNAL}) {
    EXPECT_EQ(codes.count(code), 1u) << gpumem_status_name(code);
  }
  EXPECT_STREQ(gpumem_status_name(-55555), "GPUMEM_ERROR_?");
  gpumem_status_info info = GPUMEM_STATUS_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_status_get_info(-55555, &info, why()));
}

CHILD(com_16_native_cause) {
  const Instance instance = open_instance();
  gpumem_memory none = nullptr;
  const gpumem_memory_desc small = memory_desc(GPUMEM_KIND_DEVICE, kMiB);
  if (on_host()) {
    const rlimit no_more_files = {0, 0};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &no_more_files), 0);
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_memory_create(instance.device(), &small, &none, why()));
    EXPECT_EQ(last_error().native_domain, GPUMEM_NATIVE_ERRNO);
    EXPECT_EQ(last_error().native_code, EMFILE);
    EXPECT_STREQ(last_error().native_name, "EMFILE");
    EXPECT_STREQ(last_error().entry_point, "memfd_create");
  } else {
    if (on_fake_cuda()) {
      // A code without a status of its own is kept.
      EXPECT_STATUS(GPUMEM_ERROR_INTERNAL, gpumem_memory_create(instance.device(), &small, &none, why()));
      EXPECT_EQ(last_error().native_code, 302);
    }
    const gpumem_memory_desc huge = memory_desc(GPUMEM_KIND_DEVICE, kCannotBeServed);
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                  gpumem_memory_create(instance.device(), &huge, &none, why()));
    EXPECT_EQ(last_error().native_domain, GPUMEM_NATIVE_CUDA);
    EXPECT_EQ(last_error().native_code, 2);
    EXPECT_STREQ(last_error().native_name, "CUDA_ERROR_OUT_OF_MEMORY");
    EXPECT_EQ(std::string(last_error().entry_point).rfind("cuMemAlloc", 0), 0u) << last_error().entry_point;
  }
  EXPECT_STREQ(last_error().function, "gpumem_memory_create");
}

TEST_F(Com, com_16_decisions_of_the_library_have_no_native_cause) {
  const Memory memory = alloc_device(device_, kKiB);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_free(instance_, memory.device() + 1, why()));
  EXPECT_EQ(last_error().native_domain, GPUMEM_NATIVE_NONE);
  EXPECT_EQ(last_error().native_code, 0);
  EXPECT_STREQ(last_error().native_name, "");
  EXPECT_STREQ(last_error().entry_point, "");
}

TEST_F(Com, com_16_failures_name_their_native_cause) {
  if (on_host() && kSanitized) SKIP_RULE("a sanitizer needs file descriptors, and the test takes them all");
  EXPECT_CHILD_OK(run_child("com_16_native_cause", {"FAKE_CUDA_FAIL=cuMemAlloc:1:once:302"}));
}

TEST_F(Com, com_17_the_first_of_several_problems_decides) {
  Memory destroyed = alloc_device(device_, kKiB);
  const gpumem_memory stale = destroyed.get();
  destroyed.destroy();
  Stream ended = create_stream(device_);
  const gpumem_stream stale_stream = ended.get();
  ended.destroy();
  const Memory memory = alloc_device(device_, kKiB);
  Pages pages(4 * page_size());
  const Memory registered = register_memory(device_, pages.get(), pages.size(), GPUMEM_MEMORY_MAPPED);
  auto* nowhere = untouched<uint8_t*>();

  // INVALID_ARGUMENT by value, before STALE_HANDLE
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_get_info(stale, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_stream_write_value(stale_stream, memory.device(), 1, 3, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(nullptr, memory.device(), kKiB, stale_stream));
  // STALE_HANDLE, before NOT_FOUND
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, copy(memory.device(), nowhere, kKiB, stale_stream));
  // NOT_FOUND, before bounds
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, copy(nowhere, memory.device(), 2 * kKiB));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, copy(memory.device(), nowhere, 2 * kKiB));
  // ALREADY_EXISTS, before UNSUPPORTED
  if (capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY).value == GPUMEM_ANSWER_NO) {
    EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS,
                  try_create(register_desc(pages.get(), page_size(), GPUMEM_MEMORY_IOMEMORY)));
  }
  // CLOSED, before all others that are possible in this process
  Instance other = open_instance();
  const gpumem_instance closed = other.get();
  const gpumem_device of_closed = other.device();
  other.close();
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_instance_get_info(closed, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_memory_create(of_closed, nullptr, nullptr, why()));
}

TEST_F(Com, com_17_states_and_limits) {
  REQUIRE_FOREIGN();
  Pages pages(4 * page_size());
  const Memory memory = alloc_device(device_, kKiB);
  {
    NativeStream native(device_);
    gpumem_stream handle = nullptr;
    ASSERT_OK(gpumem_stream_wrap(device_, native.get(), &handle, why()));
    const Stream stream(handle);
    const bool read_only =
        capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY).value != GPUMEM_ANSWER_NO;
    const Memory registered =
        register_memory(device_, pages.get(), pages.size(),
                        GPUMEM_MEMORY_MAPPED | (read_only ? GPUMEM_MEMORY_READ_ONLY : GPUMEM_MEMORY_MAPPED));
    native.begin_capture(stream);
    // bounds, before INVALID_STATE
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, copy(memory.device(), pages.get(), 2 * kKiB, stream));
    // INVALID_STATE, before NO_ACCESS
    gpumem_copy_options now = GPUMEM_COPY_OPTIONS_INIT;
    now.source_order = GPUMEM_SOURCE_ORDER_DURING_CALL;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                  gpumem_copy_async(stream, pages.get(), memory.device(), kKiB, &now, why()));
    native.end_capture(stream);
    if (read_only) {
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, copy(pages.get(), memory.device(), kKiB, stream));
    }
  }
  const Instance poor =
      open_instance([](gpumem_instance_desc& desc, gpumem_host_options&) { desc.pin_budget = page_size(); });
  const gpumem_device device = poor.device();
  gpumem_memory none = nullptr;
  // UNSUPPORTED, before LIMIT_EXCEEDED
  if (on_host()) {
    const gpumem_register_desc iomemory = register_desc(pages.get(), pages.size(), GPUMEM_MEMORY_IOMEMORY);
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_memory_register(device, &iomemory, &none, why()));
  }
  // LIMIT_EXCEEDED, before resources
  const gpumem_memory_desc huge = memory_desc(GPUMEM_KIND_PINNED, kCannotBeServed);
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_memory_create(device, &huge, &none, why()));
}

// A note is no failure, and every error is one.
TEST_F(Com, com_16_what_is_a_failure) {
  int failures = 0;
  int others = 0;
  gpumem_status status = GPUMEM_SUCCESS;
  for (uint32_t i = 0; gpumem_status_enumerate(i, &status, nullptr) == GPUMEM_SUCCESS; ++i) {
    const bool is_error = std::string(gpumem_status_name(status)).starts_with("GPUMEM_ERROR_");
    EXPECT_EQ(GPUMEM_FAILED(status), is_error) << gpumem_status_name(status);
    ++(is_error ? failures : others);
  }
  EXPECT_GT(failures, 20);
  EXPECT_EQ(others, 3);  // success and two notes
  EXPECT_TRUE(GPUMEM_FAILED(others != 0 ? GPUMEM_ERROR_BUSY : GPUMEM_SUCCESS));
}

// ---- COM-20 and COM-21: entry points and capabilities ----

TEST_F(Com, com_20_a_missing_entry_point_fails_its_functions_only) {
  if (!on_host()) SKIP_RULE("entry points can be masked on host only");
  const auto nothing = [](void*) {};
  const auto masked = [](const char* names) {
    return open_instance([=](gpumem_instance_desc&, gpumem_host_options& host) { host.masked = names; });
  };
  {
    const Instance instance =
        masked("launch_host_function,write_value,wait_value,register,copy_2d,fill_2d,peer_access");
    const gpumem_device device = instance.device();
    const Unchanged unchanged(instance);
    {
      const Memory memory = alloc_device(device, kMiB);
      const Memory pinned = alloc_pinned(device, kMiB);
      const Stream stream = create_stream(device);
      Pages pages(page_size());
      EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                    gpumem_stream_launch_host_function(stream, nothing, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                    gpumem_stream_write_value(stream, memory.device(), 1, 4, why()));
      EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                    gpumem_stream_wait_value(stream, memory.device(), 1, 4, GPUMEM_WAIT_EQ, why()));
      EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING, gpumem_register(device, pages.get(), page_size(), 0, why()));
      EXPECT_STATUS(
          GPUMEM_ERROR_SYMBOL_MISSING,
          gpumem_copy_2d_async(stream, memory.device(), 64, pinned.host(), 64, 32, 8, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                    gpumem_fill_2d_async(stream, memory.device(), 64, 32, 8, 1, 1, why()));
      EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                    gpumem_device_enable_peer_access(device, instance.device(1), why()));
      // All else works.
      put_pattern(instance, memory.device(), kMiB, 5);
      EXPECT_OK(gpumem_copy_async(stream, pinned.host(), memory.device(), kMiB, nullptr, why()));
      stream.synchronize();
      EXPECT_TRUE(has_pattern(pinned.host(), kMiB, 5));
      EXPECT_OK(gpumem_fill_async(stream, memory.device(), kMiB, 5, 1, why()));
    }
    EXPECT_EQ(kind_stats(instance, GPUMEM_KIND_REGISTERED).total_count, 0u);
  }
  for (const char* wrong : {"no_such_entry_point", "register,,", "Register"}) {
    gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
    host.masked = wrong;
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = GPUMEM_BACKEND_HOST;
    desc.host = &host;
    gpumem_instance none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_instance_open(&desc, &none, why())) << wrong;
  }
}

bool needs_peer(gpumem_capability what) {
  return what == GPUMEM_CAPABILITY_PEER_ACCESS || what == GPUMEM_CAPABILITY_PEER_ATOMICS;
}

TEST_F(Com, com_21_every_capability_has_an_answer) {
  std::set<gpumem_capability> seen;
  std::set<std::string> names;
  const Unchanged unchanged(instance_);
  for (uint32_t index = 0;; ++index) {
    gpumem_capability what = -1;
    const gpumem_status status = gpumem_capability_enumerate(index, &what, why());
    if (status != GPUMEM_SUCCESS) {
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, status);
      break;
    }
    seen.insert(what);
    if (needs_peer(what) && !second_device()) continue;
    const gpumem_device peer = needs_peer(what) ? second_device() : nullptr;
    const gpumem_capability_info info = capability(device_, what, peer);
    SCOPED_TRACE(info.name);
    EXPECT_EQ(info.capability, what);
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_STRNE(info.name, "");
    EXPECT_STRNE(info.reason, "");
    EXPECT_GE(info.source, GPUMEM_ANSWER_FROM_ATTRIBUTE);
    EXPECT_LE(info.source, GPUMEM_ANSWER_FROM_CONTRACT);
    if (info.type == GPUMEM_ANSWER_TYPE_TRI) {
      EXPECT_LE(info.value, uint64_t{GPUMEM_ANSWER_EMULATED});
      EXPECT_EQ(info.status != GPUMEM_SUCCESS, info.value == GPUMEM_ANSWER_NO);
      if (info.value == GPUMEM_ANSWER_NO) {
        EXPECT_TRUE(info.status == GPUMEM_ERROR_UNSUPPORTED || info.status == GPUMEM_ERROR_SYMBOL_MISSING ||
                    info.status == GPUMEM_ERROR_PERMISSION_DENIED)
            << gpumem_status_name(info.status);
      }
    }
    const gpumem_capability_info again = capability(device_, what, peer);
    EXPECT_EQ(again.value, info.value);
    EXPECT_STREQ(again.reason, info.reason);
  }
  for (const gpumem_capability what : {GPUMEM_CAPABILITY_UVA,
                                       GPUMEM_CAPABILITY_DEVICE_COUNT,
                                       GPUMEM_CAPABILITY_DEVICE_BYTES,
                                       GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS,
                                       GPUMEM_CAPABILITY_PIN_MAP_HOST,
                                       GPUMEM_CAPABILITY_PIN_PAGE_LOCKED,
                                       GPUMEM_CAPABILITY_PIN_WRITE_COMBINED,
                                       GPUMEM_CAPABILITY_PIN_REGISTER,
                                       GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER,
                                       GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY,
                                       GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY,
                                       GPUMEM_CAPABILITY_PIN_MAX_SINGLE,
                                       GPUMEM_CAPABILITY_PIN_MAX_COUNT,
                                       GPUMEM_CAPABILITY_PIN_NUMA,
                                       GPUMEM_CAPABILITY_HOST_ATOMICS,
                                       GPUMEM_CAPABILITY_PAGEABLE,
                                       GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES,
                                       GPUMEM_CAPABILITY_STREAM_VALUE32,
                                       GPUMEM_CAPABILITY_STREAM_VALUE64,
                                       GPUMEM_CAPABILITY_STREAM_VALUE_NOR,
                                       GPUMEM_CAPABILITY_COPY_ENGINES,
                                       GPUMEM_CAPABILITY_COPY_BATCH,
                                       GPUMEM_CAPABILITY_PEER_ACCESS,
                                       GPUMEM_CAPABILITY_PEER_ATOMICS}) {
    EXPECT_EQ(seen.count(what), 1u) << what;
  }
  // The trials have left nothing.
  unchanged.check();
}

// A trial that was refused is not tried again, and one that could not take place is.
TEST_F(Com, com_21_a_trial_is_made_once) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be made to refuse a trial once");
  struct Case {
    int code;
    gpumem_status status;
    bool final;
  };
  for (const Case& one :
       {Case{801, GPUMEM_ERROR_UNSUPPORTED, true}, Case{2, GPUMEM_ERROR_OUT_OF_HOST_MEMORY, false}}) {
    SCOPED_TRACE(one.code);
    const Instance instance = open_instance();
    Faults faults(instance);
    faults.fail_call("cuMemHostRegister", one.code);
    const gpumem_capability_info first = capability(instance.device(), GPUMEM_CAPABILITY_PIN_REGISTER);
    EXPECT_EQ(first.value, uint64_t{GPUMEM_ANSWER_NO});
    EXPECT_EQ(first.status, one.status);
    EXPECT_EQ(std::strstr(first.reason, "not known, as it could not be tried now: ") == nullptr, one.final)
        << first.reason;
    const gpumem_capability_info second = capability(instance.device(), GPUMEM_CAPABILITY_PIN_REGISTER);
    EXPECT_EQ(second.value, one.final ? uint64_t{GPUMEM_ANSWER_NO} : uint64_t{GPUMEM_ANSWER_YES});
  }
}

TEST_F(Com, com_21_without_descriptors_nothing_is_known) {
  const Instance instance = open_instance();
  const Instance other = open_instance();
  for (const gpumem_capability what : {GPUMEM_CAPABILITY_SHARE_CHANNEL, GPUMEM_CAPABILITY_SHARE_EVENTS,
                                       GPUMEM_CAPABILITY_VMM_HANDLE_POSIX_FD}) {
    SCOPED_TRACE(what);
    if (capability(other.device(), what).value == GPUMEM_ANSWER_NO) continue;
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const gpumem_capability_info first = capability(instance.device(), what);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (first.value == GPUMEM_ANSWER_NO) {
      EXPECT_NE(std::strstr(first.reason, "not known, as it could not be tried now: "), nullptr)
          << first.reason;
    } else {
      EXPECT_NE(what, GPUMEM_CAPABILITY_SHARE_CHANNEL) << "a trial without a descriptor";
    }
    EXPECT_EQ(capability(instance.device(), what).value, uint64_t{GPUMEM_ANSWER_YES});
  }
}

TEST_F(Com, com_21_a_call_gets_what_its_capability_says) {
  const Memory memory = alloc_device(device_, kKiB);
  const Stream stream = create_stream(device_);
  Pages pages(page_size());
  const auto call_status = [](const gpumem_capability_info& info) { return info.status; };

  const auto read_only = capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY);
  EXPECT_STATUS(call_status(read_only),
                try_create(register_desc(pages.get(), page_size(), GPUMEM_MEMORY_READ_ONLY)));
  const auto write_combined = capability(device_, GPUMEM_CAPABILITY_PIN_WRITE_COMBINED);
  EXPECT_STATUS(call_status(write_combined),
                try_create(memory_desc(GPUMEM_KIND_PINNED, kKiB, GPUMEM_MEMORY_WRITE_COMBINED)));
  const auto iomemory = capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY);
  if (iomemory.value == GPUMEM_ANSWER_NO) {
    EXPECT_STATUS(call_status(iomemory),
                  try_create(register_desc(pages.get(), page_size(), GPUMEM_MEMORY_IOMEMORY)));
  }
  const auto pageable = capability(device_, GPUMEM_CAPABILITY_PAGEABLE);
  void* pointer = nullptr;
  EXPECT_STATUS(call_status(pageable),
                gpumem_pointer_get_device_pointer(device_, pages.get(), &pointer, why()));
  const auto value32 = capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE32);
  EXPECT_STATUS(call_status(value32), gpumem_stream_write_value(stream, memory.device(), 1, 4, why()));
  const auto value64 = capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE64);
  EXPECT_STATUS(call_status(value64), gpumem_stream_write_value(stream, memory.device(), 1, 8, why()));
  const auto nor = capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE_NOR);
  EXPECT_STATUS(call_status(nor),
                gpumem_stream_wait_value(stream, memory.device(), 0, 4, GPUMEM_WAIT_NOR, why()));
  if (second_device()) {
    const auto peer = capability(device_, GPUMEM_CAPABILITY_PEER_ACCESS, second_device());
    const gpumem_status status = gpumem_device_enable_peer_access(device_, second_device(), why());
    EXPECT_STATUS(call_status(peer), status);
    if (status == GPUMEM_SUCCESS) {
      EXPECT_OK(gpumem_device_disable_peer_access(device_, second_device(), why()));
    }
  }
}

TEST_F(Com, com_21_options_show_in_the_capabilities) {
  if (!on_host()) SKIP_RULE("capabilities can be chosen on host only");
  const Instance instance = open_instance([](gpumem_instance_desc&, gpumem_host_options& host) {
    host.device_count = 3;
    host.device_bytes = 8 * kMiB;
    host.pageable = GPUMEM_TOGGLE_ON;
    host.same_pointer = GPUMEM_TOGGLE_ON;
    host.peers = "0>1";
    host.masked = "write_value,register";
    host.register_count_max = 17;
  });
  const gpumem_device device = instance.device();
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_DEVICE_COUNT).value, 3u);
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_DEVICE_BYTES).value, 8 * kMiB);
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_PAGEABLE).value, uint64_t{GPUMEM_ANSWER_YES});
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER).value,
            uint64_t{GPUMEM_ANSWER_YES});
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_PIN_MAX_COUNT).value, 17u);
  const auto value32 = capability(device, GPUMEM_CAPABILITY_STREAM_VALUE32);
  EXPECT_EQ(value32.value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(value32.status, GPUMEM_ERROR_SYMBOL_MISSING);
  const auto registering = capability(device, GPUMEM_CAPABILITY_PIN_REGISTER);
  EXPECT_EQ(registering.value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(registering.status, GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_PEER_ACCESS, instance.device(1)).value,
            uint64_t{GPUMEM_ANSWER_YES});
  const auto back = capability(instance.device(1), GPUMEM_CAPABILITY_PEER_ACCESS, device);
  EXPECT_EQ(back.value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(back.status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_STATUS(back.status, gpumem_device_enable_peer_access(instance.device(1), device, why()));
}

// ---- COM-22: other users of the driver ----

TEST_F(Com, com_22_what_others_made_stays_theirs) {
  REQUIRE_FOREIGN();
  const ForeignMemory foreign(device_, GPUMEM_KIND_DEVICE, kMiB);
  const ForeignMemory foreign_pinned(device_, GPUMEM_KIND_PINNED, kMiB);
  NativeStream native(device_);
  put_pattern(instance_, foreign.get(), kMiB, 4);
  fill_pattern(foreign_pinned.get(), kMiB, 5);
  for (const gpumem_close_mode mode : {GPUMEM_CLOSE_CHECK, GPUMEM_CLOSE_FORCE}) {
    Instance other = open_instance();
    gpumem_stream handle = nullptr;
    // On host a stream can be adopted only by the instance that made it.
    const gpumem_device device = on_host() ? device_ : other.device();
    ASSERT_OK(gpumem_stream_wrap(device, native.get(), &handle, why()));
    EXPECT_OK(gpumem_stream_destroy(handle, why()));
    EXPECT_OK(gpumem_instance_close(other.release(), mode, nullptr, why()));
  }
  EXPECT_TRUE(holds_pattern(instance_, foreign.get(), kMiB, 4));
  EXPECT_TRUE(has_pattern(foreign_pinned.get(), kMiB, 5));
  // The native stream still works.
  gpumem_stream handle = nullptr;
  ASSERT_OK(gpumem_stream_wrap(device_, native.get(), &handle, why()));
  const Stream stream(handle);
  EXPECT_OK(copy(foreign.get(), foreign_pinned.get(), kMiB, stream));
  stream.synchronize();
  EXPECT_TRUE(holds_pattern(instance_, foreign.get(), kMiB, 5));
}

#ifdef HAVE_CUDA_HEADERS
CHILD(com_22_primary_context) {
  CUdevice device = 0;
  unsigned flags = 0;
  int active = -1;
  ASSERT_EQ(raw().cuDeviceGet(&device, 0), CUDA_SUCCESS);
  CUmemoryPool standard = nullptr;
  CUmemoryPool current = nullptr;
  const bool pools = raw().cuDeviceGetDefaultMemPool && raw().cuDeviceGetMemPool &&
                     raw().cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS;

  // Nobody else has retained it: it is active while the instance is open, and gone afterwards.
  Instance instance = open_instance();
  call_a_bit_of_everything(instance, instance.device());
  EXPECT_EQ(raw().cuDevicePrimaryCtxGetState(device, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  instance.close();
  EXPECT_EQ(raw().cuDevicePrimaryCtxGetState(device, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);

  // Somebody else has: it stays, with its flags and its memory.
  const PrimaryContext primary(0);
  unsigned flags_before = 0;
  EXPECT_EQ(raw().cuDevicePrimaryCtxGetState(device, &flags_before, &active), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(raw().cuMemAlloc(&memory, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(raw().cuMemsetD8(memory, 0x3C, kMiB), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    instance = open_instance();
    call_a_bit_of_everything(instance, instance.device());
    instance.close();
  }
  EXPECT_EQ(raw().cuDevicePrimaryCtxGetState(device, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  EXPECT_EQ(flags, flags_before);
  uint8_t byte = 0;
  EXPECT_EQ(raw().cuMemcpyDtoH(&byte, memory + kMiB - 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 0x3C);
  EXPECT_EQ(raw().cuMemFree(memory), CUDA_SUCCESS);
  if (pools) {
    EXPECT_EQ(raw().cuDeviceGetMemPool(&current, device), CUDA_SUCCESS);
    EXPECT_EQ(current, standard);
  }
}

TEST_F(Com, com_22_the_primary_context_is_left_alone) {
  if (!on_cuda()) SKIP_RULE("the host backend has no primary context");
  EXPECT_CHILD_OK(run_child("com_22_primary_context"));
}
#endif

// ---- COM-23 and COM-24: counters and close ----

TEST_F(Com, com_23_counters_follow_what_lives) {
  const gpumem_stats empty = stats(instance_);
  EXPECT_EQ(empty.live_count, 0u);
  Pages pages(4 * page_size());
  struct Case {
    gpumem_kind kind;
    AnyDesc desc;
    uint64_t size;
  };
  const std::vector<Case> cases = {{GPUMEM_KIND_DEVICE, memory_desc(GPUMEM_KIND_DEVICE, 1000), 1000},
                                   {GPUMEM_KIND_PINNED, memory_desc(GPUMEM_KIND_PINNED, 2000), 2000},
                                   {GPUMEM_KIND_REGISTERED, register_desc(pages.get(), 3000), 3000}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.kind);
    const Counters before = counters(instance_);
    Memory memory = create_memory(device_, one.desc);
    gpumem_kind_stats now = kind_stats(instance_, one.kind);
    EXPECT_EQ(now.live_count, 1u);
    EXPECT_EQ(now.live_bytes, one.size);
    EXPECT_EQ(now.peak_count, 1u);
    EXPECT_EQ(now.peak_bytes, one.size);
    EXPECT_EQ(now.total_count, 1u);
    EXPECT_EQ(now.total_bytes, one.size);
    EXPECT_EQ(stats(instance_).live_count, 1u);
    EXPECT_EQ(stats(instance_).live_bytes, one.size);
    EXPECT_EQ(stats(instance_).peak_bytes, one.size);
    // The other kinds stay as they were.
    const Counters after = counters(instance_);
    for (size_t i = 0; i < kCountedKinds.size(); ++i) {
      if (kCountedKinds.at(i) == one.kind) continue;
      EXPECT_EQ(std::memcmp(&after.kinds.at(i), &before.kinds.at(i), sizeof after.kinds.at(i)), 0);
    }
    memory.destroy();
    now = kind_stats(instance_, one.kind);
    EXPECT_EQ(now.live_count, 0u);
    EXPECT_EQ(now.live_bytes, 0u);
    EXPECT_EQ(now.peak_bytes, one.size);
    EXPECT_EQ(now.total_bytes, one.size);
    EXPECT_EQ(stats(instance_).peak_bytes, one.size);
    EXPECT_OK(gpumem_stats_reset_peaks(instance_, why()));
    const gpumem_stats again = stats(instance_);
    EXPECT_EQ(std::memcmp(&before.all, &again, sizeof again), 0);
    now = kind_stats(instance_, one.kind);
    EXPECT_EQ(now.peak_count, 0u);
    EXPECT_EQ(now.peak_bytes, 0u);
    EXPECT_EQ(now.total_count, 1u);
  }
  {
    const Stream stream = create_stream(device_);
    const Event event = create_event(device_);
    EXPECT_EQ(stats(instance_).streams, 1u);
    EXPECT_EQ(stats(instance_).events, 1u);
  }
  EXPECT_EQ(stats(instance_).streams, 0u);
  EXPECT_EQ(stats(instance_).events, 0u);
}

TEST_F(Com, com_23_totals_are_over_all_kinds) {
  Pages pages(page_size());
  const Memory memory = alloc_device(device_, 1000);
  const Memory pinned = alloc_pinned(device_, 200);
  const Memory registered = register_memory(device_, pages.get(), 30);
  EXPECT_EQ(stats(instance_).live_count, 3u);
  EXPECT_EQ(stats(instance_).live_bytes, 1230u);
  EXPECT_EQ(stats(instance_).reserved_bytes, 0u);
}

TEST_F(Com, com_23_totals_are_of_one_moment) {
  const gpumem_stats before = stats(instance_);
  std::atomic<bool> over{false};
  std::thread other([&] {
    for (int i = 0; i < 300; ++i)
      alloc_pinned(device_, kKiB).destroy();
    over = true;
  });
  while (!over) {
    const gpumem_stats now = stats(instance_);
    EXPECT_EQ(now.live_bytes - before.live_bytes, (now.live_count - before.live_count) * kKiB);
  }
  other.join();
  EXPECT_EQ(stats(instance_).live_bytes, before.live_bytes);
}

TEST_F(Com, com_23_a_kind_that_is_not_counted_is_refused) {
  gpumem_kind_stats out = GPUMEM_KIND_STATS_INIT;
  out.live_bytes = 77;
  for (const gpumem_kind kind :
       {GPUMEM_KIND_UNKNOWN, GPUMEM_KIND_PAGEABLE, GPUMEM_KIND_FOREIGN, -1, 6, 100}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stats_get_kind(instance_, kind, &out, why())) << kind;
    for (const char* const counted : {"DEVICE", "PINNED", "REGISTERED", "MANAGED", "VIRTUAL", "IMPORTED"})
      EXPECT_NE(std::strstr(last_error().message, counted), nullptr) << last_error().message;
  }
  EXPECT_EQ(out.live_bytes, 77u);
}

TEST_F(Com, com_23_a_failed_call_changes_no_counter) {
  Pages pages(page_size());
  const Memory registered = register_memory(device_, pages.get(), pages.size());
  const Unchanged unchanged(instance_);
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                try_create(memory_desc(GPUMEM_KIND_DEVICE, kCannotBeServed)));
  EXPECT_STATUS(GPUMEM_ERROR_ALREADY_EXISTS, try_create(register_desc(pages.get(), pages.size())));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, try_create(memory_desc(99, kMiB)));
  unchanged.check();
}

TEST_F(Com, com_23_the_report_lists_what_lives) {
  const auto report = [&] { return text_of(instance_, gpumem_stats_report); };
  EXPECT_NE(report().find("nothing lives"), std::string::npos);
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, 12345);
  desc.name = "the forgotten one";
  const Memory memory = create_memory(device_, desc);
  const Stream stream = create_stream(device_);
  EXPECT_NE(report().find("the forgotten one"), std::string::npos);
  EXPECT_NE(report().find("12345"), std::string::npos);

  // A buffer that is too small gets what fits.
  std::array<char, 8> small;
  small.fill('#');
  uint64_t required = 0;
  EXPECT_OK(gpumem_stats_report(instance_, small.data(), 5, &required, why()));
  EXPECT_GT(required, 5u);
  EXPECT_EQ(small[4], '\0');
  EXPECT_EQ(small[5], '#');
}

TEST_F(Com, com_23_the_snapshot_has_the_last_lack_of_memory) {
  const auto has = [&](const std::string& part) {
    return text_of(instance_, gpumem_stats_snapshot).find(part) != std::string::npos;
  };
  gpumem_memory memory = nullptr;
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, uint64_t{1} << 50);
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto before = static_cast<uint64_t>(std::time(nullptr));
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, gpumem_memory_create(device_, &desc, &memory, &error));
  const std::string expected =
      R"("last_failure":{"status":"GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY","function":"gpumem_memory_create","message":")" +
      std::string(error.message) + R"(","time":)";
  EXPECT_TRUE(has(expected)) << text_of(instance_, gpumem_stats_snapshot);
  const std::string snapshot = text_of(instance_, gpumem_stats_snapshot);
  if (const size_t place = snapshot.find(expected); place != std::string::npos) {
    EXPECT_GE(std::stoull(snapshot.substr(place + expected.size())), before);
  }
  // Other failures do not hide it.
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, nullptr, &memory, why()));
  EXPECT_TRUE(has(expected)) << text_of(instance_, gpumem_stats_snapshot);
}

TEST_F(Com, com_23_the_snapshot_has_what_each_device_holds) {
  const std::string device = "{\"ordinal\":" + std::to_string(ordinal_of(device_)) + ',';
  const auto own = [&] {
    const std::string snapshot = text_of(instance_, gpumem_stats_snapshot);
    const std::string key = "\"own_bytes\":";
    const size_t place = snapshot.find(key, snapshot.find(device));
    EXPECT_NE(place, std::string::npos) << snapshot;
    return place == std::string::npos ? 0 : std::stoull(snapshot.substr(place + key.size()));
  };
  EXPECT_EQ(own(), 0u);
  {
    const Memory memory = create_memory(device_, memory_desc(GPUMEM_KIND_DEVICE, 3 * kMiB));
    const Memory elsewhere = create_memory(device_, memory_desc(GPUMEM_KIND_PINNED, kMiB));
    EXPECT_EQ(own(), 3 * kMiB);
    if (has_vmm(device_)) {
      gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
      desc.size = unit_of(device_, desc);
      gpumem_physical physical = nullptr;
      ASSERT_OK(gpumem_physical_create(device_, &desc, &physical, why()));
      EXPECT_EQ(own(), 3 * kMiB + desc.size);
      EXPECT_OK(gpumem_physical_release(physical, why()));
    }
    // On the host backend nobody else has memory of the device.
    uint64_t free = 0;
    uint64_t total = 0;
    ASSERT_OK(gpumem_device_get_memory(device_, &free, &total, why()));
    const std::string text = text_of(instance_, gpumem_stats_snapshot);
    EXPECT_NE(text.find("\"free_bytes\":", text.find(device)), std::string::npos) << text;
    if (on_host()) {
      EXPECT_EQ(free + own(), total);
      EXPECT_NE(text.find("\"free_bytes\":" + std::to_string(free) + ','), std::string::npos) << text;
    }
  }
  // A host function cannot ask the driver.
  struct Seen {
    gpumem_instance instance;
    std::string text;
  } seen{instance_, {}};
  const Stream stream = create_stream(device_);
  const gpumem_host_function look = [](void* user) {
    auto& found = *static_cast<Seen*>(user);
    found.text = text_of(found.instance, gpumem_stats_snapshot);
  };
  ASSERT_OK(gpumem_stream_launch_host_function(stream, look, &seen, why()));
  EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_NE(seen.text.find("\"own_bytes\":0"), std::string::npos) << seen.text;
  EXPECT_EQ(seen.text.find("free_bytes"), std::string::npos) << seen.text;
  EXPECT_EQ(own(), 0u);
}

TEST_F(Com, com_23_the_snapshot_lists_what_lives) {
  const auto snapshot = [&] { return text_of(instance_, gpumem_stats_snapshot); };
  const auto has = [&](const std::string& part) { return snapshot().find(part) != std::string::npos; };
  EXPECT_TRUE(has(R"("objects":[]})")) << snapshot();
  EXPECT_TRUE(has(on_host() ? R"("backend":"host")" : R"("backend":"cuda")"));
  EXPECT_TRUE(has("\"process\":" + std::to_string(getpid()) + ','));
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, 12345);
  desc.name = "\"the\\one\"";
  {
    const Memory memory = create_memory(device_, desc);
    char address[32];
    std::snprintf(address, sizeof address, "\"0x%" PRIxPTR "\"", reinterpret_cast<uintptr_t>(memory.host()));
    EXPECT_TRUE(has(R"({"type":"memory","name":"\"the\\one\"","kind":"pinned","size":12345,"host_pointer":)" +
                    std::string(address)))
        << snapshot();
    EXPECT_TRUE(has(R"({"kind":"pinned","live_count":1,"live_bytes":12345,)")) << snapshot();
    const Stream stream = create_stream(device_);
    const std::string device = std::to_string(ordinal_of(device_));
    EXPECT_TRUE(has(R"({"type":"stream","name":"","device":)" + device + '}')) << snapshot();
  }
  EXPECT_TRUE(has(R"("objects":[]})")) << snapshot();
  std::array<char, 8> small;
  small.fill('#');
  uint64_t required = 0;
  EXPECT_OK(gpumem_stats_snapshot(instance_, small.data(), 5, &required, why()));
  EXPECT_GT(required, 5u);
  EXPECT_EQ(std::string(small.data()), "{\"ve");
  EXPECT_EQ(small[5], '#');
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_stats_snapshot(instance_, nullptr, 5, &required, why()));
}

TEST_F(Com, com_24_check_refuses_and_lists) {
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, kMiB);
  desc.name = "the forgotten one";
  Memory memory = create_memory(device_, desc);
  uint64_t destroyed = 77;
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance_, GPUMEM_CLOSE_CHECK, &destroyed, why()));
  EXPECT_NE(std::strstr(last_error().message, "the forgotten one"), nullptr) << last_error().message;
  EXPECT_EQ(destroyed, 77u);
  memory.host()[0] = 1;
  memory.destroy();
  const gpumem_stream stream = create_stream(device_).release();
  EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance_, GPUMEM_CLOSE_CHECK, nullptr, why()));
  EXPECT_OK(gpumem_stream_destroy(stream, why()));
  const gpumem_event event = create_event(device_).release();
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance_, GPUMEM_CLOSE_CHECK, nullptr, why()));
  EXPECT_OK(gpumem_event_destroy(event, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_instance_close(instance_, 2, nullptr, why()));
}

TEST_F(Com, com_24_the_refusal_says_totals_first) {
  const Event event = create_event(device_);
  const Memory small = alloc_pinned(device_, kKiB);
  const Memory large = alloc_device(device_, kMiB);
  const Memory larger = alloc_device(device_, 2 * kMiB);
  const Stream stream = create_stream(device_);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance_, GPUMEM_CLOSE_CHECK, nullptr, why()));
  const std::string message = last_error().message;
  const size_t first = message.find("2 device (3145728 bytes)");
  const size_t second = message.find("1 pinned (1024 bytes)");
  const size_t third = message.find("1 stream");
  EXPECT_LT(first, second) << message;
  EXPECT_LT(second, third) << message;
  EXPECT_LT(third, message.find("GPUMEM_CLOSE_FORCE")) << message;
  EXPECT_NE(message.find("gpumem_stats_report"), std::string::npos) << message;
  EXPECT_EQ(message.find("event (no name)"), std::string::npos) << "memory comes first: " << message;
}

// A report is one line for each object.
TEST_F(Com, com_24_names_have_no_control_characters) {
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, kKiB);
  for (const char* name : {"two\nlines", "\x1b[2J", "\t", "\x7f"}) {
    desc.name = name;
    gpumem_memory memory = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, &desc, &memory, why()));
    EXPECT_NE(std::strstr(last_error().message, "control character"), nullptr) << last_error().message;
    EXPECT_EQ(memory, nullptr);
  }
  desc.name = "gr\xC3\xBC\xC3\x9F dich";
  const Memory memory = create_memory(device_, desc);
  std::string text(4096, '\0');
  EXPECT_OK(gpumem_stats_report(instance_, text.data(), text.size(), nullptr, why()));
  const size_t at = text.find(desc.name);
  ASSERT_NE(at, std::string::npos) << text;
  // A buffer that ends inside a character gets none of it.
  std::vector<char> small(at + 4, 'x');
  EXPECT_OK(gpumem_stats_report(instance_, small.data(), small.size(), nullptr, why()));
  EXPECT_EQ(std::string(small.data()), text.substr(0, at + 2));
}

TEST_F(Com, com_24_force_waits_and_frees_all) {
  Pages pages(4 * page_size());
  const gpumem_instance instance = instance_.release();
  const gpumem_memory device_memory = alloc_device(device_, kMiB).release();
  const gpumem_memory pinned = alloc_pinned(device_, kMiB).release();
  const gpumem_memory registered =
      register_memory(device_, pages.get(), pages.size(), GPUMEM_MEMORY_MAPPED).release();
  const gpumem_event event = create_event(device_).release();
  gpumem_stream stream = nullptr;
  ASSERT_OK(gpumem_stream_create(device_, nullptr, &stream, why()));
  fill_pattern(pages.get(), pages.size(), 6);

  // The work is pending when close begins, and done when it returns.
  Gate gate;
  std::atomic<bool> done{false};
  gate.hold(stream);
  EXPECT_OK(gpumem_fill_async(stream, pages.get(), page_size(), 0x77, 1, why()));
  EXPECT_OK(gpumem_stream_launch_host_function(
      stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &done, why()));
  gate.wait_until_reached();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  uint64_t destroyed = 0;
  EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, &destroyed, why()));
  EXPECT_TRUE(done);
  EXPECT_EQ(destroyed, 5u);
  EXPECT_EQ(pages.get()[0], 0x77);
  opener.join();

  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  gpumem_memory_info memory_info = GPUMEM_MEMORY_INFO_INIT;
  gpumem_device_info device_info = GPUMEM_DEVICE_INFO_INIT;
  gpumem_memory none = nullptr;
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kMiB);
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_instance_get_info(instance, &info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_device_get_info(device_, &device_info, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_memory_create(device_, &desc, &none, why()));
  for (const gpumem_memory memory : {device_memory, pinned, registered}) {
    EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_memory_get_info(memory, &memory_info, why()));
    EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_memory_destroy(memory, why()));
  }
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_stream_query(stream, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_stream_destroy(stream, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_event_query(event, why()));
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_event_destroy(event, why()));
}

TEST_F(Com, com_24_close_races_with_use) {
  for (int round = 0; round < 10; ++round) {
    const gpumem_instance instance = open_instance().release();
    gpumem_device device = nullptr;
    ASSERT_OK(gpumem_device_get(instance, 0, &device, why()));
    std::atomic<int> ready{0};
    const auto use = [&] {
      for (bool first = true;; first = false) {
        gpumem_memory memory = nullptr;
        const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, 4 * kKiB);
        const gpumem_status status = gpumem_memory_create(device, &desc, &memory, why());
        EXPECT_STATUS_IN(status, GPUMEM_SUCCESS, GPUMEM_ERROR_CLOSED);
        if (first) ++ready;
        if (status != GPUMEM_SUCCESS) return;
        EXPECT_STATUS_IN(gpumem_memory_destroy(memory, why()), GPUMEM_SUCCESS, GPUMEM_ERROR_CLOSED);
      }
    };
    std::thread one(use);
    std::thread two(use);
    while (ready < 2)
      std::this_thread::yield();
    EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why()));
    one.join();
    two.join();
  }
}

// ---- COM-27: user code ----

struct LogLines {
  std::vector<std::pair<gpumem_log_level, std::string>> lines;
  gpumem_status status_inside = GPUMEM_SUCCESS;
  static void receive(void* user_data, gpumem_log_level level, const char* message) {
    auto* self = static_cast<LogLines*>(user_data);
    self->lines.emplace_back(level, message);
    self->status_inside = gpumem_log_set_function(nullptr, nullptr, GPUMEM_LOG_DEBUG, nullptr);
  }
};

TEST_F(Com, com_27_the_log_function) {
  LogLines log;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, &log, why()));
  ASSERT_OK(gpumem_log_set_function(LogLines::receive, &log, GPUMEM_LOG_DEBUG, why()));
  EXPECT_EQ(log.lines.size(), 0u);
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, &log, why()));
  ASSERT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_EQ(log.lines[0].first, GPUMEM_LOG_DEBUG);
  EXPECT_NE(log.lines[0].second.find("gpumem_free"), std::string::npos) << log.lines[0].second;
  EXPECT_EQ(log.lines[0].second.find('\n'), std::string::npos);
  EXPECT_EQ(log.status_inside, GPUMEM_ERROR_INVALID_STATE);

  // Less important messages than asked for are not delivered, and none after the function was taken away.
  log.lines.clear();
  ASSERT_OK(gpumem_log_set_function(LogLines::receive, &log, GPUMEM_LOG_WARNING, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, &log, why()));
  ASSERT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, &log, why()));
  EXPECT_EQ(log.lines.size(), 0u);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_log_set_function(LogLines::receive, &log, 9, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_log_set_function(LogLines::receive, &log, 0, why()));
}

// Nothing else can say what is wrong with an `error` of a wrong size.
TEST_F(Com, com_16_an_error_of_a_wrong_size_is_logged) {
  LogLines log;
  gpumem_error bad = GPUMEM_ERROR_INIT;
  bad.struct_size = 7;
  bad.message[0] = '!';
  ASSERT_OK(gpumem_log_set_function(LogLines::receive, &log, GPUMEM_LOG_WARNING, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stats_reset_peaks(instance_, &bad));
  ASSERT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_EQ(log.lines[0].first, GPUMEM_LOG_WARNING);
  EXPECT_NE(log.lines[0].second.find("gpumem_stats_reset_peaks"), std::string::npos) << log.lines[0].second;
  EXPECT_NE(log.lines[0].second.find("struct_size is 7"), std::string::npos) << log.lines[0].second;
  EXPECT_EQ(bad.message[0], '!');
}

TEST_F(Com, com_27_a_stream_that_could_not_be_waited_for_is_logged) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be made to fail the wait of a close");
  Instance instance = open_instance();
  (void)create_stream(instance.device()).release();
  LogLines log;
  ASSERT_OK(gpumem_log_set_function(LogLines::receive, &log, GPUMEM_LOG_WARNING, why()));
  {
    constexpr int kUnknown = 999;
    Faults faults(instance);
    faults.fail_call("cuStreamSynchronize", kUnknown);
    EXPECT_OK(gpumem_instance_close(instance.get(), GPUMEM_CLOSE_FORCE, nullptr, why()));
    (void)instance.release();
  }
  ASSERT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
  // What a close by force destroys is a line of its own.
  ASSERT_EQ(log.lines.size(), 2u);
  EXPECT_EQ(log.lines[1].first, GPUMEM_LOG_WARNING);
  EXPECT_NE(log.lines[1].second.find("could not wait for a stream"), std::string::npos)
      << log.lines[1].second;
}

TEST_F(Com, com_27_host_functions_call_no_device) {
  Memory memory = alloc_device(device_, kMiB);
  Memory pinned = alloc_pinned(device_, kMiB);
  Pages pages(page_size());
  const Memory registered = register_memory(device_, pages.get(), 100);
  const Stream other_stream = create_stream(device_);
  const Event event = create_event(device_);
  const Stream stream = create_stream(device_);
  const Unchanged unchanged(instance_);
  const auto nothing = [](void*) {};
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kMiB);

  const gpumem_register_desc of_pages = register_desc(pages.get() + 200, 100);
  gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
  region.destination.memory = memory;
  region.source.memory = pinned;
  region.width = kKiB;

  using Calls = std::map<std::string, std::function<gpumem_status()>>;
  Calls refused = {
      {"memory_create",
       [&] {
         gpumem_memory created = nullptr;
         return gpumem_memory_create(device_, &desc, &created, nullptr);
       }},
      {"memory_destroy", [&] { return gpumem_memory_destroy(memory, nullptr); }},
      {"malloc",
       [&] {
         void* pointer = nullptr;
         return gpumem_malloc(device_, GPUMEM_KIND_PINNED, kKiB, &pointer, nullptr);
       }},
      {"free", [&] { return gpumem_free(instance_, pinned.host(), nullptr); }},
      {"memory_register",
       [&] {
         gpumem_memory created = nullptr;
         return gpumem_memory_register(device_, &of_pages, &created, nullptr);
       }},
      {"register", [&] { return gpumem_register(device_, pages.get() + 200, 100, 0, nullptr); }},
      {"unregister", [&] { return gpumem_unregister(instance_, pages.get(), nullptr); }},
      {"copy",
       [&] { return gpumem_copy(instance_, memory.device(), pinned.host(), kKiB, nullptr, nullptr); }},
      {"copy in a stream",
       [&] {
         return gpumem_copy_async(other_stream, memory.device(), pinned.host(), kKiB, nullptr, nullptr);
       }},
      {"copy_regions", [&] { return gpumem_copy_regions(instance_, &region, 1, nullptr, nullptr); }},
      {"copy_regions in a stream",
       [&] { return gpumem_copy_regions_async(other_stream, &region, 1, nullptr, nullptr); }},
      {"copy_2d",
       [&] {
         return gpumem_copy_2d_async(other_stream, memory.device(), 64, pinned.host(), 64, 32, 4, nullptr,
                                     nullptr);
       }},
      {"fill", [&] { return gpumem_fill_async(other_stream, memory.device(), kKiB, 1, 1, nullptr); }},
      {"fill_2d",
       [&] { return gpumem_fill_2d_async(other_stream, memory.device(), 64, 32, 4, 1, 1, nullptr); }},
      {"group_create",
       [&] {
         gpumem_group created = nullptr;
         return gpumem_group_create(instance_, nullptr, &created, nullptr);
       }},
      {"device_trim_graphs", [&] { return gpumem_device_trim_graphs(device_, nullptr, nullptr); }},
      {"stream_create",
       [&] {
         gpumem_stream created = nullptr;
         return gpumem_stream_create(device_, nullptr, &created, nullptr);
       }},
      {"stream_destroy", [&] { return gpumem_stream_destroy(other_stream, nullptr); }},
      {"stream_query", [&] { return gpumem_stream_query(other_stream, nullptr); }},
      {"stream_synchronize", [&] { return gpumem_stream_synchronize(other_stream, 0, nullptr); }},
      {"stream_wait_event", [&] { return gpumem_stream_wait_event(other_stream, event, nullptr); }},
      {"launch_host_function",
       [&] { return gpumem_stream_launch_host_function(other_stream, nothing, nullptr, nullptr); }},
      {"write_value",
       [&] { return gpumem_stream_write_value(other_stream, memory.device(), 1, 4, nullptr); }},
      {"wait_value",
       [&] {
         return gpumem_stream_wait_value(other_stream, memory.device(), 1, 4, GPUMEM_WAIT_EQ, nullptr);
       }},
      {"event_create",
       [&] {
         gpumem_event created = nullptr;
         return gpumem_event_create(device_, nullptr, &created, nullptr);
       }},
      {"event_destroy", [&] { return gpumem_event_destroy(event, nullptr); }},
      {"event_record", [&] { return gpumem_event_record(event, other_stream, nullptr); }},
      {"event_query", [&] { return gpumem_event_query(event, nullptr); }},
      {"event_synchronize", [&] { return gpumem_event_synchronize(event, 0, nullptr); }},
      {"instance_close",
       [&] { return gpumem_instance_close(instance_, GPUMEM_CLOSE_FORCE, nullptr, nullptr); }},
      {"instance_open",
       [] {
         gpumem_instance opened = nullptr;
         gpumem_instance_desc backend_desc = GPUMEM_INSTANCE_DESC_INIT;
         backend_desc.backend = backend();
         return gpumem_instance_open(&backend_desc, &opened, nullptr);
       }},
      {"instance_probe", [] { return gpumem_instance_probe(backend(), nullptr, nullptr); }},
  };
  if (on_host()) {
    refused["host_native_stream_create"] = [&] {
      void* native = nullptr;
      return gpumem_host_native_stream_create(device_, &native, nullptr);
    };
    refused["host_foreign_alloc"] = [&] {
      void* pointer = nullptr;
      return gpumem_host_foreign_alloc(device_, GPUMEM_KIND_DEVICE, kKiB, &pointer, nullptr);
    };
  }
  Calls allowed = {
      {"status_get_info",
       [] {
         gpumem_status_info info = GPUMEM_STATUS_INFO_INIT;
         return gpumem_status_get_info(GPUMEM_ERROR_BUSY, &info, nullptr);
       }},
      {"memory_get_info",
       [&] {
         gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
         return gpumem_memory_get_info(memory, &info, nullptr);
       }},
      {"stream_get_info",
       [&] {
         gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
         return gpumem_stream_get_info(stream, &info, nullptr);
       }},
      {"device_get_info",
       [&] {
         gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
         return gpumem_device_get_info(device_, &info, nullptr);
       }},
      {"pointer_get_info",
       [&] {
         gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
         return gpumem_pointer_get_info(instance_, memory.device(), &info, nullptr);
       }},
      {"pointer_get_access",
       [&] {
         gpumem_access access = GPUMEM_ACCESS_NONE;
         return gpumem_pointer_get_access(instance_, memory.device(), GPUMEM_LOCATION_DEVICE, 0, &access,
                                          nullptr);
       }},
      {"pointer_get_access of the CPU",
       [&] {
         gpumem_access access = GPUMEM_ACCESS_NONE;
         return gpumem_pointer_get_access(instance_, memory.device(), GPUMEM_LOCATION_HOST, 0, &access,
                                          nullptr);
       }},
      {"stats_get_kind",
       [&] {
         gpumem_kind_stats now = GPUMEM_KIND_STATS_INIT;
         return gpumem_stats_get_kind(instance_, GPUMEM_KIND_PINNED, &now, nullptr);
       }},
      {"pointer_get_device_pointer",
       [&] {
         void* pointer = nullptr;
         return gpumem_pointer_get_device_pointer(device_, pinned.host(), &pointer, nullptr);
       }},
      {"stats_get",
       [&] {
         gpumem_stats now = GPUMEM_STATS_INIT;
         return gpumem_stats_get(instance_, &now, nullptr);
       }},
  };
  // The device's address is asked for outside, so that the calls inside are just the ones named.
  struct Inside {
    const Calls* calls;
    std::map<std::string, gpumem_status> results;
    std::thread::id thread;
    static void run(void* user_data) {
      auto* self = static_cast<Inside*>(user_data);
      self->thread = std::this_thread::get_id();
      for (const auto& [name, call] : *self->calls)
        self->results[name] = call();
    }
  };
  Inside wrong{&refused, {}, {}};
  Inside right{&allowed, {}, {}};
  EXPECT_OK(gpumem_stream_launch_host_function(stream, Inside::run, &wrong, why()));
  EXPECT_OK(gpumem_stream_launch_host_function(stream, Inside::run, &right, why()));
  stream.synchronize();
  // What was asked inside was not answered for good by a refusal.
  void* pointer = nullptr;
  EXPECT_OK(gpumem_pointer_get_device_pointer(device_, pinned.host(), &pointer, why()));
  if (on_host()) {
    // Nor may what stands for a kernel do more.
    Inside kernel{&refused, {}, {}};
    EXPECT_OK(gpumem_host_launch(
        stream, [](gpumem_host_kernel, void* user_data) { Inside::run(user_data); }, &kernel, why()));
    stream.synchronize();
    EXPECT_EQ(kernel.results.size(), refused.size());
    for (const auto& [name, status] : kernel.results) {
      EXPECT_EQ(status, GPUMEM_ERROR_INVALID_STATE) << name << ": " << gpumem_status_name(status);
    }
  }
  EXPECT_EQ(wrong.results.size(), refused.size());
  EXPECT_EQ(right.results.size(), allowed.size());
  EXPECT_NE(wrong.thread, std::this_thread::get_id());
  for (const auto& [name, status] : wrong.results) {
    EXPECT_EQ(status, GPUMEM_ERROR_INVALID_STATE) << name << ": " << gpumem_status_name(status);
  }
  for (const auto& [name, status] : right.results) {
    EXPECT_EQ(status, GPUMEM_SUCCESS) << name << ": " << gpumem_status_name(status);
  }
  unchanged.check();
}

#ifdef HAVE_CUDA_HEADERS
TEST_F(Com, com_27_host_functions_of_other_code) {
  if (!on_cuda()) SKIP_RULE("on the host backend no code but the library enqueues host functions");
  NativeStream stream(device_);
  auto* const native = static_cast<CUstream>(stream.get());
  gpumem_pool pool = nullptr;
  ASSERT_OK(gpumem_pool_create(device_, nullptr, &pool, why()));
  struct Inside {
    gpumem_device device;
    gpumem_pool pool;
    void* native;
    void* block;
    gpumem_status create, free;
    gpumem_error create_error, free_error;
  } inside{device_, pool, native, nullptr, 0, 0, GPUMEM_ERROR_INIT, GPUMEM_ERROR_INIT};
  ASSERT_OK(gpumem_pool_alloc_native(pool, kKiB, native, &inside.block, why()));
  const auto calls = [](void* user_data) {
    auto* const self = static_cast<Inside*>(user_data);
    const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kMiB);
    gpumem_memory created = nullptr;
    self->create = gpumem_memory_create(self->device, &desc, &created, &self->create_error);
    self->free = gpumem_pool_free_native(self->pool, self->block, self->native, &self->free_error);
  };
  ASSERT_EQ(raw().cuLaunchHostFunc(native, calls, &inside), CUDA_SUCCESS);
  ASSERT_EQ(raw().cuStreamSynchronize(native), CUDA_SUCCESS);
  for (const auto* error : {&inside.create_error, &inside.free_error}) {
    EXPECT_EQ(error->status, GPUMEM_ERROR_INVALID_STATE) << error->message;
    EXPECT_STREQ(error->message, "called from a host function of other code; call it from another thread");
    EXPECT_EQ(error->native_code, CUDA_ERROR_NOT_PERMITTED);
  }
  if (on_fake_cuda()) {
    // It counts such calls.
    std::istringstream breaches(take_fake_violations());
    size_t count = 0;
    for (std::string line; std::getline(breaches, line); ++count) {
      EXPECT_EQ(line.rfind("call-in-host-function: ", 0), 0u) << line;
    }
    EXPECT_GT(count, 0u);
  }
  EXPECT_OK(gpumem_pool_free_native(pool, inside.block, native, why()));
  EXPECT_OK(gpumem_pool_destroy(pool, why()));
}
#endif

// ---- COM-28: captures of other code ----

TEST_F(Com, com_28_a_capture_elsewhere_stays_whole) {
  REQUIRE_FOREIGN();
  NativeStream native(device_);
  gpumem_stream handle = nullptr;
  ASSERT_OK(gpumem_stream_wrap(device_, native.get(), &handle, why()));
  const Stream captured(handle);
  if (on_host()) {
    native.begin_capture(captured);
    call_a_bit_of_everything(instance_, device_);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_stream_query(captured, why()));
    native.end_capture(captured);
    EXPECT_OK(gpumem_stream_query(captured, why()));
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    for (const bool from_another_thread : {false, true}) {
      const PrimaryContext context(ordinal_of(device_));
      const auto stream = static_cast<CUstream>(native.get());
      ASSERT_EQ(raw().cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
      const auto call = [&] {
        call_a_bit_of_everything(instance_, device_);
        // A refused operation on the captured stream itself does no harm either.
        EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_stream_query(captured, why()));
      };
      if (from_another_thread) {
        std::thread(call).join();
      } else {
        call();
      }
      CUgraph graph = nullptr;
      EXPECT_EQ(raw().cuStreamEndCapture(stream, &graph), CUDA_SUCCESS) << mode << from_another_thread;
      if (graph) {
        EXPECT_EQ(raw().cuGraphDestroy(graph), CUDA_SUCCESS);
      }
    }
  }
#endif
}

}  // namespace
}  // namespace conformance
