// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Buffers: the rules BUF-1 to BUF-12 and BUF-25, and what UVA-5 and UVA-6 say of them.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "buffers.h"

namespace conformance {
namespace {

TEST_F(Buf, buf_1_grows_in_place) {
  const Buffer buffer = make(unit_ + 1, 16 * unit_);
  const gpumem_buffer_info first = buffer.info();
  EXPECT_EQ(first.size, unit_ + 1);
  EXPECT_EQ(first.capacity, 2 * unit_);
  EXPECT_GE(first.reserved_size, 16 * unit_);
  EXPECT_EQ(first.granularity, unit_);
  EXPECT_EQ(first.location, GPUMEM_LOCATION_DEVICE);
  EXPECT_EQ(first.location_id, 0);
  EXPECT_EQ(first.state, GPUMEM_BUFFER_STATE_AWAKE);
  EXPECT_EQ(first.generation, 0u);
  fill(buffer, 0, unit_ + 1, 0x11);
  EXPECT_OK(buffer.resize(5 * unit_));
  EXPECT_EQ(buffer.info().base, first.base);
  EXPECT_EQ(buffer.info().buffer_id, first.buffer_id);
  EXPECT_EQ(buffer.info().generation, first.generation);
  expect(buffer, 0, unit_ + 1, 0x11);
  fill(buffer, unit_ + 1, 4 * unit_ - 1, 0x22);
  expect(buffer, 0, unit_ + 1, 0x11);
  expect(buffer, unit_ + 1, 4 * unit_ - 1, 0x22);
}

TEST_F(Buf, buf_1_grows_while_work_uses_it) {
  const Buffer buffer = make(unit_, 8 * unit_);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, buffer.base(), unit_, 0x33, 1, why()));
  EXPECT_OK(buffer.resize(3 * unit_));
  EXPECT_OK(gpumem_fill_async(stream, buffer.base() + unit_, 2 * unit_, 0x44, 1, why()));
  stream.open();
  stream.finish();
  expect(buffer, 0, unit_, 0x33);
  expect(buffer, unit_, 2 * unit_, 0x44);
}

TEST_F(Buf, com_24_the_refusal_tells_addresses_from_memory) {
  const Buffer buffer = make(unit_, 16 * unit_);
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance_, GPUMEM_CLOSE_CHECK, nullptr, why()));
  const std::string message = last_error().message;
  const std::string expected =
      "1 virtual (" + std::to_string(buffer.info().reserved_size) + " bytes of addresses), 1 buffer";
  EXPECT_NE(message.find(expected), std::string::npos) << message;
}

TEST_F(Buf, buf_2_growth_maps_what_is_missing) {
  const Buffer buffer = make(0, 16 * unit_);
  EXPECT_EQ(buffer.info().capacity, 0u);
  EXPECT_EQ(buffer.info().block_count, 0u);
  uint64_t blocks = 0;
  for (const uint64_t size : {uint64_t{1}, unit_, unit_ + 1, 2 * unit_, 7 * unit_}) {
    const uint64_t before = buffer.info().capacity;
    EXPECT_OK(buffer.resize(size));
    const gpumem_buffer_info now = buffer.info();
    EXPECT_EQ(now.size, size);
    EXPECT_EQ(now.capacity, (size + unit_ - 1) / unit_ * unit_);
    blocks += now.capacity != before ? 1 : 0;
    EXPECT_EQ(now.block_count, blocks);
  }
}

TEST_F(Buf, buf_2_capacity_ahead) {
  const Buffer buffer = make(unit_, 16 * unit_);
  EXPECT_OK(gpumem_buffer_set_capacity(buffer, 6 * unit_ + 1, why()));
  EXPECT_EQ(buffer.info().size, unit_);
  EXPECT_EQ(buffer.info().capacity, 7 * unit_);
  EXPECT_EQ(buffer.info().block_count, 2u);
  EXPECT_OK(buffer.resize(6 * unit_));
  EXPECT_EQ(buffer.info().block_count, 2u) << "there was memory enough";
  fill(buffer, 0, 6 * unit_, 0x55);
  const gpumem_buffer_info before = buffer.info();
  EXPECT_STATUS(gpumem_buffer_set_capacity(buffer, 6 * unit_ - 1, why()), GPUMEM_ERROR_INVALID_ARGUMENT);
  expect_same(buffer.info(), before);
  EXPECT_OK(buffer.resize(unit_));
  EXPECT_OK(gpumem_buffer_set_capacity(buffer, 0, why()));
  EXPECT_EQ(buffer.info().capacity, unit_);
  expect(buffer, 0, unit_, 0x55);
}

TEST_F(Buf, buf_3_shrinking_gives_whole_blocks_back) {
  const Buffer buffer = make(2 * unit_, 16 * unit_);
  EXPECT_OK(buffer.resize(4 * unit_));
  EXPECT_OK(buffer.resize(5 * unit_));
  fill(buffer, 0, 5 * unit_, 0x66);
  EXPECT_OK(buffer.resize(3 * unit_));
  EXPECT_EQ(buffer.info().size, 3 * unit_);
  EXPECT_EQ(buffer.info().capacity, 4 * unit_) << "the block in the middle is still used in part";
  expect(buffer, 0, 3 * unit_, 0x66);
  gpumem_mapping_info mapping = GPUMEM_MAPPING_INFO_INIT;
  EXPECT_STATUS(gpumem_range_get_mapping(instance_, buffer.base() + 4 * unit_, &mapping, why()),
                GPUMEM_ERROR_INVALID_STATE);
  EXPECT_OK(buffer.resize(0));
  EXPECT_EQ(buffer.info().capacity, 0u);
  EXPECT_EQ(buffer.info().block_count, 0u);
  EXPECT_OK(buffer.resize(unit_));
  fill(buffer, 0, unit_, 0x77);
  expect(buffer, 0, unit_, 0x77);
}

TEST_F(Buf, buf_4_a_failure_changes_nothing) {
  if (!Faults::available()) SKIP_RULE("no step of a real driver can be made to fail");
  Buffer buffer = make(2 * unit_, 16 * unit_);
  fill(buffer, 0, 2 * unit_, 0x12);
  const gpumem_buffer_info before = buffer.info();
  Faults faults(instance_);
  uint64_t failures = 0;
  for (uint64_t step = 1; step <= 40; ++step) {
    SCOPED_TRACE(step);
    const auto counted = live(instance_);
    faults.fail_step(step);
    const gpumem_status status = buffer.resize(4 * unit_);
    faults.off();
    failures += status != GPUMEM_SUCCESS ? 1 : 0;
    if (status == GPUMEM_SUCCESS) {
      EXPECT_OK(buffer.resize(2 * unit_));
    }
    expect_same(buffer.info(), before);
    EXPECT_EQ(live(instance_), counted);
  }
  EXPECT_GT(failures, 2u);
  expect(buffer, 0, 2 * unit_, 0x12);
}

TEST_F(Buf, buf_5_ends_with_its_reservation) {
  const Buffer buffer = make(unit_, 2 * unit_);
  fill(buffer, 0, unit_, 0x21);
  const uint64_t reserved = buffer.info().reserved_size;
  EXPECT_OK(buffer.resize(reserved));
  const gpumem_buffer_info before = buffer.info();
  EXPECT_STATUS(buffer.resize(reserved + 1), GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
  expect_same(buffer.info(), before);
  EXPECT_STATUS(gpumem_buffer_set_capacity(buffer, reserved + 1, why()), GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
  EXPECT_STATUS(buffer.resize(UINT64_MAX), GPUMEM_ERROR_INVALID_ARGUMENT);
  expect(buffer, 0, unit_, 0x21);
}

TEST_F(Buf, buf_5_reserves_less_if_it_must) {
  // More than any process has addresses for.
  const Buffer buffer = make(unit_, uint64_t{1} << 62);
  EXPECT_GE(buffer.info().reserved_size, unit_);
  EXPECT_LT(buffer.info().reserved_size, uint64_t{1} << 62);
  EXPECT_OK(buffer.resize(2 * unit_));
}

TEST_F(Buf, buf_5_reserves_all_or_fails) {
  gpumem_buffer_desc wanted = desc(unit_, uint64_t{1} << 62);
  wanted.flags = GPUMEM_BUFFER_RESERVE_ALL;
  gpumem_buffer refused = nullptr;
  EXPECT_STATUS(gpumem_buffer_create(device_, &wanted, &refused, why()), GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
  EXPECT_EQ(refused, nullptr);
  if (on_host()) {
    wanted.reserve = uint64_t{1} << 47;
    EXPECT_STATUS(gpumem_buffer_create(device_, &wanted, &refused, why()), GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE);
    EXPECT_NE(std::string(last_error().message).find("no free address range has 140737488355328 bytes"),
              std::string::npos);
  }
  wanted.reserve = 64 * unit_;
  const Buffer buffer = make(wanted);
  EXPECT_GE(buffer.info().reserved_size, 64 * unit_);
  EXPECT_EQ(buffer.info().capacity, unit_);
}

TEST_F(Buf, buf_5_moves_without_a_copy) {
  gpumem_buffer_desc movable = desc(2 * unit_, 2 * unit_);
  movable.flags = GPUMEM_BUFFER_MOVABLE;
  const Buffer buffer = make(movable);
  EXPECT_OK(buffer.resize(buffer.info().reserved_size));
  const gpumem_buffer_info before = buffer.info();
  fill(buffer, 0, before.size, 0x31);
  const uint64_t block = mapping_at(instance_, before.base).block_id;
  EXPECT_OK(buffer.resize(before.reserved_size + unit_));
  const gpumem_buffer_info now = buffer.info();
  EXPECT_NE(now.base, before.base);
  EXPECT_GE(now.reserved_size, 2 * before.reserved_size);
  EXPECT_EQ(now.generation, before.generation + 1);
  EXPECT_EQ(mapping_at(instance_, now.base).block_id, block) << "the memory is the same";
  expect(buffer, 0, before.size, 0x31);
  fill(buffer, before.size, unit_, 0x32);
  expect(buffer, before.size, unit_, 0x32);
  gpumem_mapping_info mapping = GPUMEM_MAPPING_INFO_INIT;
  EXPECT_STATUS(gpumem_range_get_mapping(instance_, before.base, &mapping, why()), GPUMEM_ERROR_NOT_FOUND);
}

TEST_F(Buf, buf_2_more_than_the_host_has) {
  if (capability(device_, GPUMEM_CAPABILITY_VMM_HOST).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("no physical memory of the host");
  const auto machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_size();
  const uint64_t size = (machine / unit_ + 1) * unit_;
  gpumem_buffer_desc on_host = desc(unit_, 2 * size);
  on_host.location = GPUMEM_LOCATION_HOST;
  const Buffer buffer = make(on_host);
  const gpumem_buffer_info before = buffer.info();
  EXPECT_STATUS(buffer.resize(size), GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  expect_same(buffer.info(), before);
}

TEST_F(Buf, buf_6_access_holds_as_it_grows) {
  if (capability(device_, GPUMEM_CAPABILITY_VMM_HOST).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("no physical memory of the host");
  gpumem_buffer_desc on_host = desc(unit_, 16 * unit_);
  on_host.location = GPUMEM_LOCATION_HOST;
  const Buffer buffer = make(on_host);
  EXPECT_EQ(buffer.info().location, GPUMEM_LOCATION_HOST);
  buffer.base()[0] = 0x41;
  expect(buffer, 0, 1, 0x41);
  const gpumem_access_desc reads = cpu_rights(GPUMEM_ACCESS_READ);
  EXPECT_OK(gpumem_buffer_set_access(buffer, &reads, 1, why()));
  EXPECT_OK(buffer.resize(3 * unit_));
  for (const uint64_t offset : {uint64_t{0}, 2 * unit_}) {
    gpumem_access access = GPUMEM_ACCESS_UNKNOWN;
    EXPECT_OK(gpumem_pointer_get_access(instance_, buffer.base() + offset, GPUMEM_LOCATION_HOST, 0, &access,
                                        why()));
    EXPECT_EQ(access, GPUMEM_ACCESS_READ);
    EXPECT_OK(gpumem_pointer_get_access(instance_, buffer.base() + offset, GPUMEM_LOCATION_DEVICE, 0, &access,
                                        why()));
    EXPECT_EQ(access, GPUMEM_ACCESS_READWRITE);
  }
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PAGEABLE));
  EXPECT_OK(buffer.wake());
  gpumem_access access = GPUMEM_ACCESS_UNKNOWN;
  EXPECT_OK(gpumem_pointer_get_access(instance_, buffer.base(), GPUMEM_LOCATION_HOST, 0, &access, why()));
  EXPECT_EQ(access, GPUMEM_ACCESS_READ);
  EXPECT_STATUS(gpumem_buffer_set_access(buffer, &reads, 0, why()), GPUMEM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Buf, buf_6_access_that_cannot_be_is_refused_before_there_is_memory) {
  const gpumem_access_desc cpu = cpu_rights(GPUMEM_ACCESS_READWRITE);
  gpumem_buffer_desc empty = desc(0, 4 * unit_);
  const Buffer buffer = make(empty);
  EXPECT_STATUS(gpumem_buffer_set_access(buffer, &cpu, 1, why()), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_OK(buffer.resize(unit_));
  empty.accesses = &cpu;
  empty.access_count = 1;
  gpumem_buffer refused = nullptr;
  EXPECT_STATUS(gpumem_buffer_create(device_, &empty, &refused, why()), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(refused, nullptr);
}

TEST_F(Buf, buf_7_its_range_is_its_own) {
  const Buffer buffer = make(unit_, 4 * unit_);
  const gpumem_range range = buffer.info().range;
  const Physical block = create_physical(device_, physical_desc(unit_));
  const gpumem_physical blocks[] = {block};
  const gpumem_access_desc none = device_rights(0, GPUMEM_ACCESS_NONE);
  EXPECT_STATUS(gpumem_range_map(range, unit_, blocks, 1, why()), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_STATUS(gpumem_range_unmap(range, 0, unit_, why()), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_STATUS(gpumem_range_set_access(range, 0, unit_, &none, 1, why()), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_STATUS(gpumem_range_release(range, why()), GPUMEM_ERROR_INVALID_STATE);
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  EXPECT_OK(gpumem_range_get_info(range, &info, why()));
  EXPECT_EQ(info.base, buffer.base());
  EXPECT_EQ(info.mapped_size, unit_);
  gpumem_pointer_info pointer = GPUMEM_POINTER_INFO_INIT;
  EXPECT_OK(gpumem_pointer_get_info(instance_, buffer.base() + 5, &pointer, why()));
  EXPECT_EQ(pointer.kind, GPUMEM_KIND_VIRTUAL);
  EXPECT_EQ(pointer.buffer_id, buffer.info().buffer_id);
  gpumem_error refusal = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(gpumem_free(instance_, buffer.base(), &refusal), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_NE(std::string(refusal.message).find("gpumem_buffer_destroy"), std::string::npos) << refusal.message;
  fill(buffer, 0, unit_, 0x51);
}

TEST_F(Buf, buf_7_what_has_memory_can_be_used) {
  const Buffer buffer = make(100, 4 * unit_);
  EXPECT_OK(gpumem_buffer_set_capacity(buffer, 2 * unit_, why()));
  std::vector<uint8_t> bytes(2 * unit_, 0x52);
  EXPECT_OK(gpumem_copy(instance_, buffer.base(), bytes.data(), bytes.size(), nullptr, why()));
  EXPECT_STATUS(gpumem_copy(instance_, buffer.base() + 1, bytes.data(), bytes.size(), nullptr, why()),
                GPUMEM_ERROR_INVALID_STATE);
  // Growing within the capacity touches nothing.
  EXPECT_OK(buffer.resize(2 * unit_));
  expect(buffer, 0, 2 * unit_, 0x52);
}

TEST_F(Buf, buf_8_sleeps_and_wakes) {
  const Buffer buffer = make(2 * unit_ + 3, 8 * unit_);
  EXPECT_OK(buffer.resize(4 * unit_ + 5));
  fill(buffer, 0, 2 * unit_, 0x61);
  fill(buffer, 2 * unit_, 2 * unit_ + 5, 0x62);
  const gpumem_buffer_info awake = buffer.info();
  for (const gpumem_content content : {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE}) {
    const gpumem_buffer_info before = buffer.info();
    EXPECT_OK(buffer.sleep(content));
    const gpumem_buffer_info asleep = buffer.info();
    EXPECT_EQ(asleep.state, GPUMEM_BUFFER_STATE_ASLEEP);
    EXPECT_EQ(asleep.base, before.base);
    EXPECT_EQ(asleep.size, before.size);
    EXPECT_EQ(asleep.stored_size, before.size);
    uint8_t byte = 0;
    EXPECT_STATUS(gpumem_copy(instance_, &byte, asleep.base, 1, nullptr, why()), GPUMEM_ERROR_INVALID_STATE);
    EXPECT_OK(buffer.wake());
    const gpumem_buffer_info after = buffer.info();
    EXPECT_EQ(after.base, awake.base);
    EXPECT_EQ(after.size, awake.size);
    EXPECT_EQ(after.capacity, awake.capacity);
    EXPECT_EQ(after.block_count, awake.block_count);
    EXPECT_EQ(after.generation, before.generation + 1);
    EXPECT_EQ(after.stored_size, 0u);
    EXPECT_EQ(after.state, GPUMEM_BUFFER_STATE_AWAKE);
    expect(buffer, 0, 2 * unit_, 0x61);
    expect(buffer, 2 * unit_, 2 * unit_ + 5, 0x62);
  }
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_ZERO));
  EXPECT_EQ(buffer.info().stored_size, 0u);
  EXPECT_OK(buffer.wake());
  expect(buffer, 0, 4 * unit_ + 5, 0);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_DROP));
  EXPECT_OK(buffer.wake());
  fill(buffer, 0, 4 * unit_ + 5, 0x63);
  expect(buffer, 0, 4 * unit_ + 5, 0x63);
}

TEST_F(Buf, buf_8_wakes_with_content_that_its_device_may_only_read) {
  const Buffer buffer = make(2 * unit_, 4 * unit_);
  fill(buffer, 0, 2 * unit_, 0x64);
  const gpumem_access_desc reads = device_rights(0, GPUMEM_ACCESS_READ);
  EXPECT_OK(gpumem_buffer_set_access(buffer, &reads, 1, why()));
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED));
  EXPECT_OK(buffer.wake());
  expect(buffer, 0, 2 * unit_, 0x64);
  EXPECT_STATUS(gpumem_fill(instance_, buffer.base(), 1, 0, 1, why()), GPUMEM_ERROR_NO_ACCESS);
}

TEST_F(Buf, buf_8_sleep_gives_the_memory_back) {
  if (!on_host() && !on_fake_cuda()) SKIP_RULE("other processes change what a real device has free");
  const Buffer buffer = make(16 * unit_, 16 * unit_);
  const uint64_t before = free_bytes();
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PAGEABLE));
  EXPECT_EQ(free_bytes(), before + 16 * unit_);
  EXPECT_OK(buffer.wake());
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Buf, buf_9_nothing_is_lost_when_waking_fails) {
  if (!Faults::available()) SKIP_RULE("no step of a real driver can be made to fail");
  const Buffer buffer = make(unit_, 8 * unit_);
  EXPECT_OK(buffer.resize(3 * unit_));
  fill(buffer, 0, 3 * unit_, 0x71);
  Faults faults(instance_);
  uint64_t failures = 0;
  // Whether a call failed; then nothing has changed.
  const auto fails = [&](uint64_t step, auto call) {
    const gpumem_buffer_info before = buffer.info();
    const auto counted = live(instance_);
    faults.fail_step(step);
    const gpumem_status status = call();
    faults.off();
    if (status == GPUMEM_SUCCESS) return false;
    expect_same(buffer.info(), before);
    EXPECT_EQ(live(instance_), counted);
    ++failures;
    return true;
  };
  for (uint64_t step = 1; step <= 40; ++step) {
    SCOPED_TRACE(step);
    if (fails(step, [&] { return buffer.sleep(GPUMEM_CONTENT_PINNED); })) {
      EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PINNED));
    }
    if (fails(step, [&] { return buffer.wake(); })) {
      EXPECT_OK(buffer.wake());
    }
    expect(buffer, 0, 3 * unit_, 0x71);
  }
  EXPECT_GT(failures, 6u);
}

TEST_F(Buf, buf_9_without_memory_it_sleeps_on) {
  if (!on_host()) SKIP_RULE("only the host backend has devices of a few blocks");
  const Buffer buffer = make(32 * unit_, 64 * unit_);
  fill(buffer, 0, 32 * unit_, 0x72);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_PAGEABLE));
  {
    const Physical other = create_physical(device_, physical_desc(40 * unit_));
    EXPECT_STATUS(buffer.wake(), GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_EQ(buffer.info().state, GPUMEM_BUFFER_STATE_ASLEEP);
  }
  EXPECT_OK(buffer.wake());
  expect(buffer, 0, 32 * unit_, 0x72);
}

TEST_F(Buf, buf_10_refuses_what_comes_at_the_wrong_time) {
  Buffer buffer = make(unit_, 4 * unit_);
  EXPECT_STATUS(buffer.wake(), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_STATUS(buffer.sleep(5), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_STATUS(buffer.sleep(-1), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_DROP));
  const gpumem_buffer_info before = buffer.info();
  const gpumem_access_desc rights = device_rights(0);
  EXPECT_STATUS(buffer.sleep(GPUMEM_CONTENT_DROP), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_STATUS(buffer.resize(2 * unit_), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_STATUS(buffer.resize(0), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_STATUS(gpumem_buffer_set_capacity(buffer, 2 * unit_, why()), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_STATUS(gpumem_buffer_set_access(buffer, &rights, 1, why()), GPUMEM_ERROR_INVALID_STATE);
  expect_same(buffer.info(), before);
  const gpumem_buffer handle = buffer;
  EXPECT_OK(gpumem_buffer_destroy(buffer.release(), why()));
  EXPECT_STATUS(gpumem_buffer_wake(handle, nullptr, why()), GPUMEM_ERROR_STALE_HANDLE);
  EXPECT_STATUS(gpumem_buffer_destroy(handle, why()), GPUMEM_ERROR_STALE_HANDLE);
  EXPECT_OK(gpumem_buffer_destroy(nullptr, why()));
}

// The first call had set its size, when the second one saw it and set another.
TEST_F(Buf, buf_10_the_last_of_two_sizes_stays) {
  const Buffer buffer = make(200);
  constexpr int kRounds = 20'000;
  std::atomic<int> begun{0};
  std::atomic<int> done{0};
  std::thread second([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (begun != round)
        std::this_thread::yield();
      while (buffer.info().size != 100) {
      }
      EXPECT_OK(buffer.resize(50));
      done = round;
    }
  });
  int lost = 0;
  for (int round = 1; round <= kRounds; ++round) {
    EXPECT_OK(buffer.resize(200));
    begun = round;
    EXPECT_OK(buffer.resize(100));
    while (done != round)
      std::this_thread::yield();
    if (buffer.info().size != 50) ++lost;
  }
  second.join();
  EXPECT_EQ(lost, 0);
}

TEST_F(Buf, buf_10_refuses_bad_descriptions) {
  const auto before = live(instance_);
  const auto refused = [&](gpumem_status status, auto change) {
    gpumem_buffer_desc wanted = desc(unit_, 4 * unit_);
    change(wanted);
    gpumem_buffer buffer = nullptr;
    EXPECT_STATUS(gpumem_buffer_create(device_, &wanted, &buffer, why()), status);
    EXPECT_EQ(buffer, nullptr);
  };
  constexpr gpumem_status kBad = GPUMEM_ERROR_INVALID_ARGUMENT;
  refused(kBad, [](gpumem_buffer_desc& wanted) { wanted.size = uint64_t{1} << 63; });
  refused(kBad, [&](gpumem_buffer_desc& wanted) { wanted.reserve = unit_ - 1; });
  refused(kBad, [](gpumem_buffer_desc& wanted) { wanted.location = 4; });
  refused(kBad, [](gpumem_buffer_desc& wanted) { wanted.flags = 16; });
  refused(kBad, [](gpumem_buffer_desc& wanted) { wanted.require = UINT64_C(1) << 63; });
  refused(kBad, [](gpumem_buffer_desc& wanted) { wanted.handle_types = 2; });
  refused(kBad, [](gpumem_buffer_desc& wanted) { wanted.access_count = 1; });
  refused(kBad, [](gpumem_buffer_desc& wanted) { wanted.struct_size = 7; });
  const gpumem_access_desc twice[] = {device_rights(0), device_rights(0, GPUMEM_ACCESS_READ)};
  refused(kBad, [&](gpumem_buffer_desc& wanted) {
    wanted.accesses = twice;
    wanted.access_count = 2;
  });
  const gpumem_access_desc of_cpu = cpu_rights();
  refused(GPUMEM_ERROR_UNSUPPORTED, [&](gpumem_buffer_desc& wanted) {
    wanted.accesses = &of_cpu;
    wanted.access_count = 1;
  });
  if (on_host()) {
    refused(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
            [&](gpumem_buffer_desc& wanted) { wanted.size = wanted.reserve = 65 * unit_; });
  }
  EXPECT_EQ(live(instance_), before);
}

TEST_F(Buf, buf_11_unobserved_work_keeps_its_memory) {
  if (!on_host()) SKIP_RULE("a driver does not say what work uses");
  Buffer buffer = make(unit_, 4 * unit_);
  EXPECT_OK(buffer.resize(2 * unit_));
  GatedStream stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, buffer.base() + unit_, unit_, 0x81, 1, why()));
  const gpumem_buffer_info before = buffer.info();
  EXPECT_STATUS(buffer.resize(unit_), GPUMEM_ERROR_BUSY);
  EXPECT_STATUS(buffer.sleep(GPUMEM_CONTENT_DROP, GPUMEM_SLEEP_IDLE), GPUMEM_ERROR_BUSY);
  EXPECT_STATUS(gpumem_buffer_destroy(buffer, why()), GPUMEM_ERROR_BUSY);
  expect_same(buffer.info(), before);
  stream.open();
  stream.finish();
  expect(buffer, unit_, unit_, 0x81);
  EXPECT_OK(buffer.resize(unit_));
}

TEST_F(Buf, buf_12_many_nights_leave_nothing) {
  const uint64_t size = on_host() ? 2 * unit_ : unit_;
  const int nights = 100;  // the benchmark sleeps a thousand times
  const Buffer buffer = make(size, 4 * unit_);
  fill(buffer, 0, size, 0x91);
  const auto before = live(instance_);
  const Snapshot snapshot = Snapshot::take();
  for (int night = 0; night < nights; ++night) {
    ASSERT_OK(buffer.sleep(night % 2 == 0 ? GPUMEM_CONTENT_PAGEABLE : GPUMEM_CONTENT_PINNED));
    ASSERT_OK(buffer.wake());
    if (night % 10 == 0) expect(buffer, 0, size, 0x91);
  }
  expect(buffer, 0, size, 0x91);
  EXPECT_EQ(buffer.info().generation, static_cast<uint64_t>(nights));
  EXPECT_EQ(live(instance_), before);
  EXPECT_TRUE(nothing_left_since(snapshot));
}

TEST_F(Buf, buf_12_threads_resize_and_ask) {
  const Buffer buffer = make(unit_, 16 * unit_);
  fill(buffer, 0, unit_, 0xa1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> askers;
  for (int thread = 0; thread < 2; ++thread) {
    askers.emplace_back([&] {
      while (!stop) {
        const gpumem_buffer_info info = buffer.info();
        EXPECT_GE(info.capacity, info.size);
        expect(buffer, 0, unit_, 0xa1);
      }
    });
  }
  for (int round = 0; round < (kSanitized ? 16 : 50); ++round) {
    EXPECT_OK(buffer.resize((2 + static_cast<uint64_t>(round) % 8) * unit_));
    EXPECT_OK(buffer.resize(unit_));
  }
  stop = true;
  for (std::thread& thread : askers)
    thread.join();
}

// A driver that refuses what a failed call wants to undo.
TEST_F(Buf, buf_12_what_was_not_taken_back_goes_later) {
  if (on_host() || !Faults::available()) SKIP_RULE("only a fake driver can refuse to take memory back");
  constexpr int kOutOfMemory = 2;
  constexpr int kNotPermitted = 800;
  Instance other = open_instance();
  const gpumem_buffer_desc wanted = desc(unit_, 4 * unit_);
  const auto create = [&] {
    gpumem_buffer made = nullptr;
    const gpumem_status status = gpumem_buffer_create(other.device(), &wanted, &made, why());
    const Buffer ends(made);
    return status;
  };
  EXPECT_OK(create());
  const auto none = live(other);
  Faults faults(other);
  const auto refuse = [&] {
    faults.fail_driver_call("cuMemSetAccess", kOutOfMemory, true);
    for (const char* const release : {"cuMemUnmap", "cuMemAddressFree", "cuMemRelease"})
      faults.fail_driver_call(release, kNotPermitted, true);
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, create());
    EXPECT_NE(live(other), none) << "what is still there must be counted";
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(other, GPUMEM_CLOSE_CHECK, nullptr, why()));
    faults.off();
  };
  refuse();
  EXPECT_OK(create());
  EXPECT_EQ(live(other), none);
  refuse();
  EXPECT_OK(gpumem_instance_close(other.release(), GPUMEM_CLOSE_CHECK, nullptr, why()));
}

// So does one that could not move.
TEST_F(Buf, buf_12_what_moving_left_goes_later) {
  if (on_host() || !Faults::available()) SKIP_RULE("only a fake driver can refuse to take memory back");
  constexpr int kOutOfMemory = 2;
  constexpr int kNotPermitted = 800;
  gpumem_buffer_desc movable = desc(2 * unit_, 2 * unit_);
  movable.flags = GPUMEM_BUFFER_MOVABLE;
  const Buffer buffer = make(movable);
  fill(buffer, 0, 2 * unit_, 0x15);
  const gpumem_buffer_info before = buffer.info();
  const auto counted = live(instance_);
  Faults faults(instance_);
  faults.fail_driver_call("cuMemSetAccess", kOutOfMemory, true);
  for (const char* const release : {"cuMemUnmap", "cuMemAddressFree", "cuMemRelease"})
    faults.fail_driver_call(release, kNotPermitted, true);
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, buffer.resize(3 * unit_));
  expect_same(buffer.info(), before);
  EXPECT_NE(live(instance_), counted);
  faults.off();
  EXPECT_OK(buffer.resize(2 * unit_ - 1));
  EXPECT_EQ(live(instance_), counted);
  expect(buffer, 0, 2 * unit_ - 1, 0x15);
}

TEST_F(Buf, buf_12_close_by_force_ends_buffers) {
  Instance other = open_instance();
  gpumem_buffer buffers[2] = {};
  gpumem_buffer_desc wanted = desc(1);
  for (gpumem_buffer& buffer : buffers)
    ASSERT_OK(gpumem_buffer_create(other.device(), &wanted, &buffer, why()));
  ASSERT_OK(gpumem_buffer_sleep(buffers[1], nullptr, why()));
  const gpumem_instance closed = other.release();
  gpumem_error refusal = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_instance_close(closed, GPUMEM_CLOSE_CHECK, nullptr, &refusal), GPUMEM_ERROR_BUSY);
  EXPECT_NE(std::string(refusal.message).find("2 buffers"), std::string::npos) << refusal.message;
  EXPECT_OK(gpumem_instance_close(closed, GPUMEM_CLOSE_FORCE, nullptr, why()));
  for (const gpumem_buffer buffer : buffers)
    EXPECT_STATUS(gpumem_buffer_resize(buffer, 0, why()), GPUMEM_ERROR_CLOSED);
}

// ---- what common rules say of them ----

TEST_F(Buf, com_23_a_buffer_counts_the_memory_that_it_has) {
  {
    const Buffer buffer = make(2 * unit_, 32 * unit_);
    const auto expect_counts = [&](uint64_t bytes) {
      EXPECT_EQ(stats(instance_).live_bytes, bytes);
      EXPECT_EQ(stats(instance_).reserved_bytes, buffer.info().reserved_size);
    };
    EXPECT_EQ(buffer.info().reserved_size, 32 * unit_);
    expect_counts(2 * unit_);
    EXPECT_OK(buffer.resize(5 * unit_));
    expect_counts(5 * unit_);
    // Asleep, it has what its store pins.
    for (const gpumem_content content :
         {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE, GPUMEM_CONTENT_ZERO}) {
      SCOPED_TRACE(content);
      EXPECT_OK(buffer.sleep(content));
      expect_counts(content == GPUMEM_CONTENT_PINNED ? buffer.info().store_capacity : 0);
      EXPECT_OK(buffer.wake());
      expect_counts(5 * unit_);
    }
    EXPECT_OK(buffer.resize(unit_));
    expect_counts(buffer.info().capacity);
  }
  EXPECT_EQ(stats(instance_).live_bytes, 0u);
  EXPECT_EQ(stats(instance_).reserved_bytes, 0u);
}

// ---- UVA-5, UVA-6: a pointer tells its buffer ----

TEST_F(Buf, uva_5_a_buffer) {
  const Instance other = open_instance();
  const Range range = reserve(instance_, range_desc(unit_));
  const Buffer buffer = make(unit_ + 1, 8 * unit_);
  const Buffer empty = make(0, unit_);
  EXPECT_EQ(pointer_info(instance_, empty.base()).buffer, empty.get());
  EXPECT_EQ(pointer_info(instance_, range.base()).buffer, nullptr);
  const gpumem_buffer_info info = buffer.info();
  EXPECT_EQ(pointer_info(other, info.base).buffer, nullptr);
  const auto expect_named = [&] {
    // In the size, behind it, where nothing is mapped, and at the end of the reservation.
    for (const uint64_t offset : {uint64_t{0}, unit_, unit_ + 1, 2 * unit_, info.reserved_size - 1}) {
      SCOPED_TRACE(offset);
      const gpumem_pointer_info known = pointer_info(instance_, buffer.base() + offset);
      EXPECT_EQ(known.kind, GPUMEM_KIND_VIRTUAL);
      EXPECT_EQ(known.buffer, buffer.get());
      EXPECT_EQ(known.memory, nullptr);
      EXPECT_EQ(known.buffer_id, info.buffer_id);
    }
    EXPECT_NE(pointer_info(instance_, buffer.base() + info.reserved_size).buffer, buffer.get());
  };
  expect_named();
  for (const gpumem_content content : {GPUMEM_CONTENT_PAGEABLE, GPUMEM_CONTENT_DROP}) {
    EXPECT_OK(buffer.sleep(content));
    expect_named();
    EXPECT_OK(buffer.wake());
    expect_named();
  }
}

TEST_F(Buf, uva_5_a_buffer_that_moves) {
  gpumem_buffer_desc movable = desc(2 * unit_, 2 * unit_);
  movable.flags = GPUMEM_BUFFER_MOVABLE;
  const Buffer buffer = make(movable);
  const gpumem_buffer_info before = buffer.info();
  EXPECT_EQ(pointer_info(instance_, before.base).buffer, buffer.get());
  EXPECT_OK(buffer.resize(before.reserved_size + unit_));
  EXPECT_NE(buffer.base(), before.base);
  EXPECT_EQ(pointer_info(instance_, before.base).buffer, nullptr);
  EXPECT_EQ(pointer_info(instance_, buffer.base()).buffer, buffer.get());
}

// Addresses that the driver does not take back outlive their buffer.
TEST_F(Buf, uva_5_what_moving_left_is_no_buffer) {
  if (on_host() || !Faults::available()) SKIP_RULE("only a fake driver can refuse to take memory back");
  constexpr int kNotPermitted = 800;
  gpumem_buffer_desc movable = desc(2 * unit_, 2 * unit_);
  movable.flags = GPUMEM_BUFFER_MOVABLE;
  const Buffer buffer = make(movable);
  const gpumem_buffer_info before = buffer.info();
  Faults faults(instance_);
  faults.fail_driver_call("cuMemAddressFree", kNotPermitted, true);
  EXPECT_OK(buffer.resize(before.reserved_size + unit_));
  const gpumem_pointer_info left = pointer_info(instance_, before.base);
  EXPECT_EQ(left.kind, GPUMEM_KIND_VIRTUAL);
  EXPECT_EQ(left.buffer_id, before.buffer_id);
  EXPECT_EQ(left.buffer, nullptr);
  EXPECT_EQ(pointer_info(instance_, buffer.base()).buffer, buffer.get());
}

TEST_F(Buf, uva_6_a_buffer_that_cannot_be_destroyed) {
  if (!on_host()) SKIP_RULE("work that was not observed is not detected");
  const Buffer buffer = make(unit_, 4 * unit_);
  uint8_t* const base = buffer.base();
  GatedStream stream(device_);
  EXPECT_OK(gpumem_fill_async(stream, base, unit_, 1, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_buffer_destroy(buffer, why()));
  EXPECT_EQ(pointer_info(instance_, base).buffer, buffer.get());
  stream.open();
  stream.finish();
}

// Whatever buffer is named, its handle is good or was until a moment ago.
TEST_F(Buf, uva_6_a_buffer_while_it_lives) {
  std::atomic<uint8_t*> address{nullptr};
  std::atomic<bool> done{false};
  std::thread maker([&] {
    for (int i = 0; i < 200; ++i) {
      const Buffer buffer = make(i % 2 == 0 ? unit_ : 0, unit_);
      uint8_t* const base = buffer.base();
      EXPECT_EQ(pointer_info(instance_, base).buffer, buffer.get());
      address = base;
    }
    done = true;
  });
  uint64_t named = 0;
  while (!done || named == 0) {
    uint8_t* const pointer = address;
    if (pointer == nullptr) continue;
    const gpumem_pointer_info info = pointer_info(instance_, pointer);
    if (info.buffer == nullptr) {
      if (done) break;
      continue;
    }
    ++named;
    EXPECT_EQ(info.kind, GPUMEM_KIND_VIRTUAL);
    gpumem_buffer_info known = GPUMEM_BUFFER_INFO_INIT;
    const gpumem_status status = gpumem_buffer_get_info(info.buffer, &known, why());
    if (status == GPUMEM_ERROR_STALE_HANDLE) continue;
    EXPECT_OK(status);
    if (known.base != nullptr) {  // null once it is being destroyed
      EXPECT_EQ(known.buffer_id, info.buffer_id);
    }
  }
  maker.join();
  EXPECT_EQ(pointer_info(instance_, address).buffer, nullptr);
}

// ---- BUF-25: geometric growth ----

TEST_F(Buf, buf_25_grows_by_an_eighth_or_more) {
  gpumem_buffer_desc wanted = desc(unit_, 40 * unit_);
  wanted.flags = GPUMEM_BUFFER_GEOMETRIC;
  const Buffer buffer = make(wanted);
  EXPECT_EQ(buffer.info().capacity, unit_);
  const auto rounded = [&](uint64_t bytes) { return (bytes + unit_ - 1) / unit_ * unit_; };
  for (uint64_t size = 2 * unit_; size <= 40 * unit_; size += unit_) {
    SCOPED_TRACE(size);
    const gpumem_buffer_info before = buffer.info();
    EXPECT_OK(buffer.resize(size));
    const gpumem_buffer_info now = buffer.info();
    EXPECT_EQ(now.size, size);
    EXPECT_EQ(now.base, before.base);
    if (size <= before.capacity) {
      EXPECT_EQ(now.block_count, before.block_count);
      EXPECT_EQ(now.capacity, before.capacity);
      continue;
    }
    EXPECT_EQ(now.block_count, before.block_count + 1);
    EXPECT_EQ(now.capacity, std::min(before.capacity + rounded(before.capacity / 8), before.reserved_size));
  }
  EXPECT_LT(buffer.info().block_count, 21u);
  fill(buffer, 0, 40 * unit_, 0x81);
  expect(buffer, 0, 40 * unit_, 0x81);
  EXPECT_OK(buffer.resize(8 * unit_));
  EXPECT_EQ(buffer.info().capacity, 8 * unit_);
  EXPECT_OK(buffer.resize(30 * unit_));
  EXPECT_EQ(buffer.info().capacity, 30 * unit_) << "more than an eighth was missing";
  EXPECT_OK(buffer.sleep(GPUMEM_CONTENT_DROP));
  EXPECT_OK(buffer.wake());
  EXPECT_EQ(buffer.info().capacity, 30 * unit_);
}

TEST_F(Buf, buf_25_takes_what_is_missing_where_there_is_no_more) {
  gpumem_buffer_desc wanted = desc(16 * unit_, 17 * unit_);
  wanted.flags = GPUMEM_BUFFER_GEOMETRIC;
  {
    const Buffer buffer = make(wanted);
    const uint64_t reserved = buffer.info().reserved_size;
    EXPECT_OK(buffer.resize(16 * unit_ + 1));
    EXPECT_EQ(buffer.info().capacity, std::min(18 * unit_, reserved)) << "there are no more addresses";
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE, buffer.resize(reserved + 1));
  }
  wanted.flags |= GPUMEM_BUFFER_MOVABLE;
  {
    wanted.size = wanted.reserve = 16 * unit_;
    const Buffer buffer = make(wanted);
    const uint64_t reserved = buffer.info().reserved_size;
    EXPECT_OK(gpumem_buffer_set_capacity(buffer, reserved, why()));
    const gpumem_buffer_info before = buffer.info();
    EXPECT_OK(buffer.resize(reserved + 1));
    const uint64_t eighth = (before.capacity / 8 + unit_ - 1) / unit_ * unit_;
    EXPECT_EQ(buffer.info().capacity, before.capacity + eighth);
    EXPECT_EQ(buffer.info().generation, before.generation + 1);
  }
  if (!on_host()) SKIP_RULE("only the host backend has devices of a few blocks");
  wanted.reserve = 64 * unit_;
  wanted.size = 40 * unit_;
  const Buffer buffer = make(wanted);
  const Physical other = create_physical(device_, physical_desc(22 * unit_));
  EXPECT_OK(buffer.resize(41 * unit_));
  EXPECT_EQ(buffer.info().capacity, 41 * unit_) << "there is memory for two more";
  const gpumem_buffer_info before = buffer.info();
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, buffer.resize(43 * unit_));
  expect_same(buffer.info(), before);
}

}  // namespace
}  // namespace conformance
