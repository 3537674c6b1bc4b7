// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Order of work: the rules STR-1 to STR-9, STR-17, STR-20 and STR-21, fills of all kinds among them.
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "operands.h"

namespace conformance {
namespace {

constexpr uint64_t kSize = 10'000;

// Long enough for anything that wrongly does not wait, short enough to be waited for in vain.
constexpr uint64_t kShortWait = 2'000'000;

// ---- STR-1 ----

TEST_F(Conformance, str_1) {
  constexpr uint64_t kRounds = 50;
  const Memory word = alloc_device(device_, 4);
  const Memory log = alloc_pinned(device_, 4 * kRounds);
  const Stream stream = create_stream(device_);
  for (uint64_t i = 0; i < kRounds; ++i) {
    const auto value = static_cast<uint32_t>(0x01020304 * (i + 1));
    EXPECT_OK(gpumem_fill_async(stream, word.device(), 4, value, 4, why()));
    EXPECT_OK(gpumem_copy_async(stream, log.host() + 4 * i, word.device(), 4, nullptr, why()));
  }
  stream.synchronize();
  for (uint64_t i = 0; i < kRounds; ++i) {
    uint32_t seen = 0;
    std::memcpy(&seen, log.host() + 4 * i, 4);
    EXPECT_EQ(seen, static_cast<uint32_t>(0x01020304 * (i + 1))) << i;
  }
}

TEST_F(Conformance, str_1_streams_have_no_order) {
  const Memory memory = alloc_pinned(device_, kSize);
  std::memset(memory.host(), 0, kSize);
  const Stream free_stream = create_stream(device_);
  GatedStream held(device_);
  EXPECT_OK(gpumem_fill_async(held, memory.host(), 1, 1, 1, why()));
  EXPECT_OK(gpumem_fill_async(free_stream, memory.host() + 1, 1, 2, 1, why()));
  free_stream.synchronize();
  EXPECT_EQ(memory.host()[0], 0);
  EXPECT_EQ(memory.host()[1], 2);
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(held, why()));
  held.finish();
  EXPECT_EQ(memory.host()[0], 1);
}

TEST_F(Conformance, str_1_default_stream_does_not_hold_others) {
  const Memory memory = alloc_pinned(device_, kSize);
  std::memset(memory.host(), 0, kSize);
  const Stream stream = create_stream(device_);
  gpumem_stream handle = nullptr;
  ASSERT_OK(gpumem_stream_wrap(device_, nullptr, &handle, why()));
  const Stream default_stream(handle);
  Gate gate;
  gate.hold(default_stream);
  EXPECT_OK(gpumem_fill_async(stream, memory.host(), kSize, 3, 1, why()));
  stream.synchronize();
  EXPECT_EQ(memory.host()[kSize - 1], 3);
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(default_stream, why()));
  gate.open();
  default_stream.synchronize();
}

// ---- STR-2 ----

TEST_F(Conformance, str_2_never_recorded) {
  const Event event = create_event(device_);
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_event_query(event, why()));
  EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_stream_wait_event(stream, event, why()));
  stream.synchronize();
}

TEST_F(Conformance, str_2_captures_what_is_there) {
  const Memory memory = alloc_pinned(device_, kSize);
  std::memset(memory.host(), 0, kSize);
  const Event event = create_event(device_);
  const Stream stream = create_stream(device_);
  Gate first;
  Gate second;
  first.hold(stream);
  EXPECT_OK(gpumem_fill_async(stream, memory.host(), kSize, 4, 1, why()));
  EXPECT_OK(gpumem_event_record(event, stream, why()));
  second.hold(stream);
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_query(event, why()));
  first.open();
  EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_EQ(memory.host()[kSize - 1], 4);
  EXPECT_OK(gpumem_event_query(event, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(stream, why()));
}

TEST_F(Conformance, str_2_latest_record_counts) {
  const Event event = create_event(device_);
  const Stream idle = create_stream(device_);
  const Stream waiting = create_stream(device_);
  GatedStream held(device_);
  EXPECT_OK(gpumem_event_record(event, idle, why()));
  EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));

  EXPECT_OK(gpumem_event_record(event, held, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_query(event, why()));
  EXPECT_OK(gpumem_stream_wait_event(waiting, event, why()));

  // The wait above was for the record in the held stream, and stays so.
  EXPECT_OK(gpumem_event_record(event, idle, why()));
  EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_event_query(event, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_synchronize(waiting, kShortWait, why()));
  held.finish();
  waiting.synchronize();
}

TEST_F(Conformance, str_2_orders_streams) {
  const Memory source = alloc_device(device_, kSize);
  const Memory result = alloc_pinned(device_, kSize);
  const Event event = create_event(device_, GPUMEM_EVENT_DISABLE_TIMING);
  const Stream consumer = create_stream(device_);
  GatedStream producer(device_);
  for (uint32_t round = 1; round <= 20; ++round) {
    EXPECT_OK(gpumem_fill_async(producer, source.device(), kSize, round, 1, why()));
    EXPECT_OK(gpumem_event_record(event, producer, why()));
    EXPECT_OK(gpumem_stream_wait_event(consumer, event, why()));
    EXPECT_OK(gpumem_copy_async(consumer, result.host() + round, source.device(), 1, nullptr, why()));
    EXPECT_OK(gpumem_event_record(event, consumer, why()));
    EXPECT_OK(gpumem_stream_wait_event(producer, event, why()));
  }
  producer.open();
  consumer.synchronize();
  producer.finish();
  for (uint32_t round = 1; round <= 20; ++round)
    EXPECT_EQ(result.host()[round], round);
}

// ---- STR-3 ----

TEST_F(Conformance, str_3) {
  const gpumem_device second = second_device();
  if (second == nullptr) SKIP_RULE("there is one device only");
  const Memory source = alloc_device(device_, kSize);
  const Memory destination = alloc_device(second, kSize);
  put_pattern(instance_, source.device(), kSize, 1);
  put_pattern(instance_, destination.device(), kSize, 2);
  const Memory fresh = alloc_pinned(device_, kSize);
  fill_pattern(fresh.host(), kSize, 3);
  const Event event = create_event(device_);
  const Stream stream = create_stream(second);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_event_record(event, stream, why()));

  GatedStream held(device_);
  EXPECT_OK(gpumem_copy_async(held, source.device(), fresh.host(), kSize, nullptr, why()));
  EXPECT_OK(gpumem_event_record(event, held, why()));
  EXPECT_OK(gpumem_stream_wait_event(stream, event, why()));
  EXPECT_OK(gpumem_copy_async(stream, destination.device(), source.device(), kSize, nullptr, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_synchronize(stream, kShortWait, why()));
  held.open();
  stream.synchronize();
  EXPECT_TRUE(holds_pattern(instance_, destination.device(), kSize, 3));
}

TEST_F(Conformance, str_3_other_instance) {
  const Instance other = open_instance();
  const Event event = create_event(other.device());
  const Stream stream = create_stream(device_);
  const Event own = create_event(device_);
  int64_t nanoseconds = 0;
  const auto expect_refused = [](gpumem_status status) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, status);
    EXPECT_NE(std::strstr(last_error().message, "different instances"), nullptr) << last_error().message;
  };
  expect_refused(gpumem_event_record(event, stream, why()));
  expect_refused(gpumem_stream_wait_event(stream, event, why()));
  expect_refused(gpumem_event_get_elapsed_time(own, event, &nanoseconds, why()));
  // A memory that is named by its handle belongs to one instance.
  const Memory theirs = alloc_pinned(other.device(), 16);
  uint8_t byte = 1;
  gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
  region.destination.pointer = &byte;
  region.source.memory = theirs;
  region.width = 1;
  for (const gpumem_stream where : {gpumem_stream{}, stream.get()}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  copy_regions_on(instance_, where, &region, 1, nullptr, why()));
  }
  EXPECT_EQ(byte, 1);
}

// ---- STR-4 ----

TEST_F(Conformance, str_4) {
  const Memory memory = alloc_pinned(device_, kSize);
  std::memset(memory.host(), 0, kSize);
  const Event event = create_event(device_);
  GatedStream held(device_);
  EXPECT_OK(gpumem_fill_async(held, memory.host(), kSize, 5, 1, why()));
  EXPECT_OK(gpumem_event_record(event, held, why()));
  for (const uint64_t timeout : {uint64_t{0}, uint64_t{1}, kShortWait}) {
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(held, why()));
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_query(event, why()));
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_synchronize(held, timeout, why()));
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_synchronize(event, timeout, why()));
  }
  EXPECT_EQ(memory.host()[0], 0) << "nothing has changed";
  held.open();
  EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_stream_synchronize(held, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_EQ(memory.host()[kSize - 1], 5);
  EXPECT_OK(gpumem_event_query(event, why()));
  EXPECT_OK(gpumem_stream_query(held, why()));
  EXPECT_OK(gpumem_stream_synchronize(held, 0, why()));
  EXPECT_OK(gpumem_event_synchronize(event, 0, why()));
}

// A call that saw the work complete allows what a synchronize allows: the memory can be freed.
TEST_F(Conformance, str_4_success_is_an_observation) {
  const auto until_success = [](const std::function<gpumem_status()>& ask) {
    gpumem_status status = GPUMEM_NOT_READY;
    while (status == GPUMEM_NOT_READY) {
      status = ask();
      std::this_thread::yield();
    }
    EXPECT_OK(status);
  };
  const Stream stream = create_stream(device_);
  const Event event = create_event(device_);
  const std::vector<std::function<gpumem_status()>> ways = {
      [&] { return gpumem_stream_query(stream, why()); },
      [&] { return gpumem_event_query(event, why()); },
      [&] { return gpumem_stream_synchronize(stream, kShortWait, why()); },
      [&] { return gpumem_event_synchronize(event, kShortWait, why()); },
  };
  for (size_t i = 0; i < ways.size(); ++i) {
    SCOPED_TRACE(i);
    Memory memory = alloc_device(device_, kSize);
    EXPECT_OK(gpumem_fill_async(stream, memory.device(), kSize, 1, 1, why()));
    EXPECT_OK(gpumem_event_record(event, stream, why()));
    until_success(ways[i]);
    memory.destroy();
  }
}

// ---- STR-5 ----

TEST_F(Conformance, str_5) {
  const Memory memory = alloc_pinned(device_, kSize);
  std::memset(memory.host(), 0, kSize);
  const Event done = create_event(device_);
  const Stream waiting = create_stream(device_);
  Event between = create_event(device_);
  Gate gate;
  Stream stream = create_stream(device_);
  gate.hold(stream);
  EXPECT_OK(gpumem_fill_async(stream, memory.host(), kSize, 6, 1, why()));
  EXPECT_OK(gpumem_event_record(between, stream, why()));
  EXPECT_OK(gpumem_stream_wait_event(waiting, between, why()));
  EXPECT_OK(gpumem_fill_async(waiting, memory.host(), 1, 7, 1, why()));
  EXPECT_OK(gpumem_event_record(done, waiting, why()));

  const gpumem_stream stale_stream = stream;
  const gpumem_event stale_event = between;
  stream.destroy();
  between.destroy();
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_query(stale_stream, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_synchronize(stale_stream, 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_destroy(stale_stream, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_fill_async(stale_stream, memory.host(), 1, 9, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_event_query(stale_event, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_wait_event(waiting, stale_event, why()));
  EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_event_destroy(stale_event, why()));

  EXPECT_EQ(memory.host()[0], 0);
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_query(done, why()));
  gate.open();
  EXPECT_OK(gpumem_event_synchronize(done, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_EQ(memory.host()[0], 7);
  EXPECT_EQ(std::count(memory.host() + 1, memory.host() + kSize, 6), static_cast<std::ptrdiff_t>(kSize - 1));
}

// The work goes on in memory of the instance, which must therefore outlive it.
TEST_F(Conformance, str_5_work_of_a_destroyed_stream_is_complete_when_closed_by_force) {
  Pages mine(kSize);
  std::memset(mine.get(), 0, kSize);
  Instance other = open_instance();
  const gpumem_device device = other.device(0);
  Memory device_memory = alloc_device(device, kSize);
  void* const source = device_memory.device();
  Memory registered = register_memory(device, mine.get(), kSize);
  // Left to close().
  device_memory.release();
  registered.release();

  Gate gate;
  Stream stream = create_stream(device);
  gate.hold(stream);
  EXPECT_OK(gpumem_fill_async(stream, source, kSize, 6, 1, why()));
  EXPECT_OK(gpumem_copy_async(stream, mine.get(), source, kSize, nullptr, why()));
  gate.wait_until_reached();
  stream.destroy();
  EXPECT_EQ(mine.get()[0], 0);

  std::atomic<bool> closing{false};
  std::thread opener([&] {
    while (!closing)
      std::this_thread::yield();
    // Most likely close() is on its way by now; it must come to the same end if it is not.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  closing = true;
  EXPECT_OK(gpumem_instance_close(other.release(), GPUMEM_CLOSE_FORCE, nullptr, why()));
  opener.join();
  EXPECT_EQ(std::count(mine.get(), mine.get() + kSize, 6), static_cast<std::ptrdiff_t>(kSize));
}

// ---- STR-6 ----

TEST_F(Conformance, str_6) {
  const Memory memory = alloc_device(device_, kSize);
  const Event start = create_event(device_);
  const Event end = create_event(device_);
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_event_record(start, stream, why()));
  EXPECT_OK(gpumem_fill_async(stream, memory.device(), kSize, 1, 1, why()));
  EXPECT_OK(gpumem_event_record(end, stream, why()));
  stream.synchronize();
  int64_t nanoseconds = -1;
  EXPECT_OK(gpumem_event_get_elapsed_time(start, end, &nanoseconds, why()));
  EXPECT_GE(nanoseconds, 0);
  const int64_t forward = nanoseconds;
  EXPECT_OK(gpumem_event_get_elapsed_time(end, start, &nanoseconds, why()));
  EXPECT_EQ(nanoseconds, -forward);
  EXPECT_OK(gpumem_event_get_elapsed_time(start, start, &nanoseconds, why()));
  EXPECT_EQ(nanoseconds, 0);
}

TEST_F(Conformance, str_6_measures_the_stream) {
  const Event start = create_event(device_);
  const Event end = create_event(device_);
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_event_record(start, stream, why()));
  Gate gate;
  gate.hold(stream);
  EXPECT_OK(gpumem_event_record(end, stream, why()));
  gate.wait_until_reached();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate.open();
  stream.synchronize();
  int64_t nanoseconds = 0;
  EXPECT_OK(gpumem_event_get_elapsed_time(start, end, &nanoseconds, why()));
  EXPECT_GE(nanoseconds, 19'000'000);
  EXPECT_LT(nanoseconds, 60'000'000'000);
}

TEST_F(Conformance, str_6_refused) {
  const Event recorded = create_event(device_);
  const Event pending = create_event(device_);
  const Event never = create_event(device_);
  const Event untimed = create_event(device_, GPUMEM_EVENT_DISABLE_TIMING);
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_event_record(recorded, stream, why()));
  EXPECT_OK(gpumem_event_record(untimed, stream, why()));
  stream.synchronize();
  GatedStream held(device_);
  EXPECT_OK(gpumem_event_record(pending, held, why()));

  int64_t nanoseconds = -7;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_event_get_elapsed_time(recorded, never, &nanoseconds, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_event_get_elapsed_time(never, recorded, &nanoseconds, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_event_get_elapsed_time(recorded, untimed, &nanoseconds, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_event_get_elapsed_time(untimed, recorded, &nanoseconds, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_get_elapsed_time(recorded, pending, &nanoseconds, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_event_get_elapsed_time(recorded, recorded, nullptr, why()));
  held.finish();
  if (const gpumem_device second = second_device()) {
    const Event other = create_event(second);
    const Stream other_stream = create_stream(second);
    EXPECT_OK(gpumem_event_record(other, other_stream, why()));
    other_stream.synchronize();
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_event_get_elapsed_time(recorded, other, &nanoseconds, why()));
  }
  EXPECT_EQ(nanoseconds, -7);
}

// ---- STR-7 ----

// After the call the result is read in another way than by what made it: by the CPU, or in a stream of its
// own.
TEST_F(Conformance, str_7_copy) {
  constexpr uint64_t kLarge = 4'000'007;
  const Operands sources(device_, second_device(), kLarge);
  const Operands destinations(device_, second_device(), kLarge);
  const Memory probe = alloc_pinned(device_, kLarge);
  const Stream stream = create_stream(device_);
  uint32_t seed = 0;
  for (const Operand& source : sources.all()) {
    prepare(instance_, source, kLarge, ++seed);
    for (const Operand& destination : destinations.all()) {
      if (!destination.writable) continue;
      SCOPED_TRACE(source.name + " to " + destination.name);
      EXPECT_OK(gpumem_copy(instance_, destination.address, source.address, kLarge, nullptr, why()));
      const uint8_t* seen = destination.cpu;
      if (seen == nullptr) {
        EXPECT_OK(gpumem_copy_async(stream, probe.host(), destination.address, kLarge, nullptr, why()));
        stream.synchronize();
        seen = probe.host();
      }
      // The end of the range first, which is written last.
      ASSERT_EQ(seen[kLarge - 1], pattern_byte(seed, kLarge - 1));
      ASSERT_EQ(seen[0], pattern_byte(seed, 0));
      ASSERT_EQ(seen[kLarge / 2], pattern_byte(seed, kLarge / 2));
    }
  }
}

TEST_F(Conformance, str_7_waits_for_no_other_stream) {
  const Memory memory = alloc_device(device_, kSize);
  const Memory host = alloc_pinned(device_, kSize);
  GatedStream held(device_);
  fill_pattern(host.host(), kSize, 1);
  EXPECT_OK(gpumem_copy(instance_, memory.device(), host.host(), kSize, nullptr, why()));
  EXPECT_TRUE(holds_pattern(instance_, memory.device(), kSize, 1));
  EXPECT_OK(gpumem_fill(instance_, host.host(), kSize, 8, 1, why()));
  EXPECT_EQ(host.host()[kSize - 1], 8);
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(held, why()));
}

// Fills of every kind of memory, by every width, checked with what lies around them.
class FillMatrix {
 public:
  FillMatrix(const Instance& instance, gpumem_device device, gpumem_device second)
      : instance_(instance), operands_(device, second, kBytes) {}

  void run(gpumem_stream stream) const {
    for (const Operand& operand : operands_.all()) {
      if (!operand.writable) continue;
      SCOPED_TRACE(operand.name);
      for (const uint32_t value_size : {1u, 2u, 4u}) {
        SCOPED_TRACE(testing::Message() << "value of " << value_size << " bytes");
        // Operands begin at any address; a fill begins where its value is aligned.
        const uint64_t odd = reinterpret_cast<uintptr_t>(operand.address) % value_size;
        const uint64_t start = (odd == 0 ? 0 : value_size - odd) + 3 * value_size;
        fill_and_check(stream, operand, {start, 0, value_size, 1}, value_size);
        fill_and_check(stream, operand, {start, 0, 1037 * value_size, 1}, value_size);
        fill_and_check(stream, operand, {start, 0, kLong, 1}, value_size);
        fill_and_check(stream, operand, {start, 29 * value_size, 13 * value_size, 5}, value_size);
        fill_and_check(stream, operand, {start, 512, value_size, 11}, value_size);
        fill_and_check(stream, operand, {start, 640, 640, 9}, value_size);
      }
    }
  }

 private:
  static constexpr uint64_t kLong = 70'000;
  static constexpr uint64_t kMargin = 64;
  static constexpr uint64_t kBytes = kLong + 2 * kMargin;

  void fill_and_check(gpumem_stream stream, const Operand& operand, const Rows& rows,
                      uint32_t value_size) const {
    SCOPED_TRACE(testing::Message() << rows.height << " rows of " << rows.width << " bytes");
    constexpr uint32_t kValue = 0xA1B2C3D4;
    const uint64_t bytes = rows.end() + kMargin;
    prepare(instance_, operand, bytes, 1);
    uint8_t* const destination = operand.address + rows.offset;
    if (rows.height == 1) {
      EXPECT_OK(fill_on(instance_, stream, destination, rows.width, kValue, value_size, why()));
    } else {
      EXPECT_OK(fill_2d_on(instance_, stream, destination, rows.pitch, rows.width, rows.height, kValue,
                           value_size, why()));
    }
    if (stream != nullptr) {
      EXPECT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    }
    std::vector<uint8_t> expected = pattern(bytes, 1);
    for (uint64_t row = 0; row < rows.height; ++row) {
      for (uint64_t i = 0; i < rows.width; i += value_size)
        std::memcpy(&expected[rows.offset + row * rows.pitch + i], &kValue, value_size);
    }
    EXPECT_TRUE(same_bytes(expected, bytes_of(instance_, operand, bytes)));
  }

  const Instance& instance_;
  Operands operands_;
};

TEST_F(Conformance, str_7_fill) { FillMatrix(instance_, device_, second_device()).run(nullptr); }

TEST_F(Conformance, str_7_fill_in_a_stream) {
  const FillMatrix matrix(instance_, device_, second_device());
  matrix.run(create_stream(device_));
}

TEST_F(Conformance, str_7_fill_refused) {
  const Memory memory = alloc_device(device_, 64);
  put_pattern(instance_, memory.device(), 64, 1);
  uint8_t* const base = memory.device();
  const auto fill = [&](uint8_t* destination, uint64_t size, uint32_t value_size) {
    return gpumem_fill(instance_, destination, size, 0, value_size, why());
  };
  const auto fill_2d = [&](uint8_t* destination, uint64_t pitch, uint64_t width, uint32_t value_size) {
    return gpumem_fill_2d(instance_, destination, pitch, width, 2, 0, value_size, why());
  };
  for (const uint32_t value_size : {0u, 3u, 5u, 8u, UINT32_MAX}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(base, 24, value_size)) << value_size;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill_2d(base, 24, 24, value_size)) << value_size;
  }
  for (const uint32_t value_size : {2u, 4u}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(base + 1, 8, value_size));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(base, 9, value_size));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill_2d(base + 1, 16, 8, value_size));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill_2d(base, 17, 8, value_size));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill_2d(base, 16, 7, value_size));
  }
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(nullptr, 8, 1));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill(base, UINT64_MAX, 1));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill_2d(base, 15, 16, 1));
  EXPECT_TRUE(holds_pattern(instance_, base, 64, 1));
}

// A box inside an operand: where its rows begin, counted from the start of the operand.
struct Box {
  uint64_t offset = 0;
  uint64_t row_pitch = 0;
  uint64_t slice_pitch = 0;
};
struct Extents {
  uint64_t width = 1;
  uint64_t height = 1;
  uint64_t depth = 1;
};

std::vector<uint64_t> row_starts(const Box& box, const Extents& extents) {
  std::vector<uint64_t> starts;
  for (uint64_t slice = 0; slice < extents.depth; ++slice) {
    for (uint64_t row = 0; row < extents.height; ++row)
      starts.push_back(box.offset + slice * box.slice_pitch + row * box.row_pitch);
  }
  return starts;
}

gpumem_copy_region region_of(const gpumem_copy_operand& destination, const Box& to,
                             const gpumem_copy_operand& source, const Box& from, const Extents& extents) {
  const auto shift = [](gpumem_copy_operand operand, const Box& box) {
    if (operand.memory != nullptr) {
      operand.offset += box.offset;
    } else {
      operand.pointer = static_cast<uint8_t*>(operand.pointer) + box.offset;
    }
    operand.row_pitch = box.row_pitch;
    operand.slice_pitch = box.slice_pitch;
    return operand;
  };
  gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
  region.destination = shift(destination, to);
  region.source = shift(source, from);
  region.width = extents.width;
  region.height = extents.height;
  region.depth = extents.depth;
  return region;
}

gpumem_copy_operand by_pointer(void* pointer) { return {nullptr, 0, pointer, 0, 0}; }
gpumem_copy_operand by_memory(gpumem_memory memory) { return {memory, 0, nullptr, 0, 0}; }

TEST_F(Conformance, str_7_boxes_between_all_kinds) {
  constexpr uint64_t kBytes = 4000;
  const Extents extents{13, 5, 4};
  const Box to{7, 20, 130};
  const Box from{3, 17, 200};
  const Operands destinations(device_, second_device(), kBytes);
  const Operands sources(device_, second_device(), kBytes);
  const Stream stream = create_stream(device_);
  const std::vector<uint64_t> to_rows = row_starts(to, extents);
  const std::vector<uint64_t> from_rows = row_starts(from, extents);
  for (const Operand& destination : destinations.all()) {
    if (!destination.writable) continue;
    for (const Operand& source : sources.all()) {
      SCOPED_TRACE(source.name + " to " + destination.name);
      const gpumem_copy_region region =
          region_of(by_pointer(destination.address), to, by_pointer(source.address), from, extents);
      for (const gpumem_stream where : {gpumem_stream{}, stream.get()}) {
        prepare(instance_, destination, kBytes, 1);
        prepare(instance_, source, kBytes, 2);
        EXPECT_OK(copy_regions_on(instance_, where, &region, 1, nullptr, why()));
        if (where != nullptr) stream.synchronize();
        std::vector<uint8_t> expected = pattern(kBytes, 1);
        const std::vector<uint8_t> given = pattern(kBytes, 2);
        for (size_t row = 0; row < to_rows.size(); ++row)
          std::memcpy(&expected[to_rows[row]], &given[from_rows[row]], extents.width);
        EXPECT_TRUE(same_bytes(expected, bytes_of(instance_, destination, kBytes)));
        EXPECT_TRUE(same_bytes(given, bytes_of(instance_, source, kBytes)));
      }
    }
  }
}

TEST_F(Conformance, str_7_pitches_and_extents_that_are_left_out) {
  const Memory memory = alloc_device(device_, 4096);
  const Memory pinned = alloc_pinned(device_, 4096);
  const auto copied = [&](const Extents& extents) {
    put_pattern(instance_, memory.device(), 4096, 1);
    fill_pattern(pinned.host(), 4096, 2);
    const gpumem_copy_region region = region_of(by_memory(memory), {8, 0, 0}, by_memory(pinned), {}, extents);
    EXPECT_OK(gpumem_copy_regions(instance_, &region, 1, nullptr, why()));
    std::vector<uint8_t> seen(4096);
    EXPECT_OK(gpumem_copy(instance_, seen.data(), memory.device(), 4096, nullptr, why()));
    uint64_t count = 0;
    while (count < 4088 && seen[8 + count] == pattern_byte(2, count))
      ++count;
    std::vector<uint8_t> expected = pattern(4096, 1);
    std::memcpy(&expected[8], &pattern(4096, 2)[0], count);
    EXPECT_TRUE(same_bytes(expected, seen));
    return count;
  };
  EXPECT_EQ(copied({10, 0, 0}), 10u);
  EXPECT_EQ(copied({10, 3, 0}), 30u);
  EXPECT_EQ(copied({10, 0, 3}), 30u);
  EXPECT_EQ(copied({10, 3, 4}), 120u);
  // Only the rows are packed, or only the slices.
  const gpumem_copy_region region =
      region_of(by_memory(memory), {0, 0, 100}, by_memory(pinned), {0, 20, 0}, {10, 3, 2});
  put_pattern(instance_, memory.device(), 4096, 1);
  EXPECT_OK(gpumem_copy_regions(instance_, &region, 1, nullptr, why()));
  std::vector<uint8_t> expected = pattern(4096, 1);
  const std::vector<uint8_t> given = pattern(4096, 2);
  const std::vector<uint64_t> from_rows = row_starts({0, 20, 60}, {10, 3, 2});
  const std::vector<uint64_t> to_rows = row_starts({0, 10, 100}, {10, 3, 2});
  for (size_t row = 0; row < to_rows.size(); ++row)
    std::memcpy(&expected[to_rows[row]], &given[from_rows[row]], 10);
  std::vector<uint8_t> seen(4096);
  EXPECT_OK(gpumem_copy(instance_, seen.data(), memory.device(), 4096, nullptr, why()));
  EXPECT_TRUE(same_bytes(expected, seen));
}

TEST_F(Conformance, str_7_a_batch) {
  // Of a newer caller, so that the distance between regions is not the size of the struct.
  struct Newer {
    gpumem_copy_region known = GPUMEM_COPY_REGION_INIT;
    uint64_t unknown = 0;
  };
  constexpr uint64_t kCount = 60;
  constexpr uint64_t kPart = 100;
  const Memory first = alloc_device(device_, kCount * kPart);
  const Memory other = alloc_device(second_device() != nullptr ? second_device() : device_, kCount * kPart);
  const Memory pinned = alloc_pinned(device_, kCount * kPart);
  std::vector<uint8_t> heap(kCount * kPart);
  const Stream stream = create_stream(device_);
  uint32_t seed = 0;
  for (const gpumem_stream where : {gpumem_stream{}, stream.get()}) {
    fill_pattern(heap.data(), heap.size(), ++seed);
    fill_pattern(pinned.host(), pinned.size(), ++seed);
    // Even parts come from the heap, odd ones from the pinned memory; every third goes to the other memory.
    std::vector<Newer> regions(kCount);
    for (uint64_t i = 0; i < kCount; ++i) {
      gpumem_copy_region& region = regions[i].known;
      region.struct_size = sizeof(Newer);
      region.width = kPart;
      region.destination.memory = i % 3 == 0 ? other : first;
      region.destination.offset = i * kPart;
      if (i % 2 == 0) {
        region.source.pointer = heap.data() + i * kPart;
        region.direction = GPUMEM_DIRECTION_HOST_TO_DEVICE;
        region.source_order = GPUMEM_SOURCE_ORDER_DURING_CALL;
      } else {
        region.source.memory = pinned;
        region.source.offset = i * kPart;
      }
      // Regions of nothing in between are passed over, whatever they hold.
      if (i % 10 == 9) region.width = 0, region.destination.pointer = this;
    }
    EXPECT_OK(gpumem_fill(instance_, first.device(), first.size(), 0, 1, why()));
    EXPECT_OK(gpumem_fill(instance_, other.device(), other.size(), 0, 1, why()));
    uint64_t failed = 77;
    EXPECT_OK(copy_regions_on(instance_, where, &regions[0].known, kCount, &failed, why()));
    EXPECT_EQ(failed, 77u);
    if (where != nullptr) {
      const std::vector<uint8_t> kept = heap;
      std::fill(heap.begin(), heap.end(), uint8_t{0});  // its parts were read during the call
      stream.synchronize();
      heap = kept;
    }
    std::vector<uint8_t> in_first(first.size());
    std::vector<uint8_t> in_other(other.size());
    EXPECT_OK(gpumem_copy(instance_, in_first.data(), first.device(), first.size(), nullptr, why()));
    EXPECT_OK(gpumem_copy(instance_, in_other.data(), other.device(), other.size(), nullptr, why()));
    for (uint64_t i = 0; i < kCount; ++i) {
      SCOPED_TRACE(i);
      const std::vector<uint8_t> nothing(kPart, 0);
      const uint8_t* const given = i % 10 == 9  ? nothing.data()
                                   : i % 2 == 0 ? heap.data() + i * kPart
                                                : pinned.host() + i * kPart;
      const auto& written = i % 3 == 0 ? in_other : in_first;
      const auto& spared = i % 3 == 0 ? in_first : in_other;
      EXPECT_EQ(std::memcmp(&written[i * kPart], given, kPart), 0);
      EXPECT_EQ(std::memcmp(&spared[i * kPart], nothing.data(), kPart), 0);
    }
  }
}

// The array ends where regions of the first one's size end, whatever the others claim.
TEST_F(Conformance, str_7_a_batch_is_not_read_beyond_its_end) {
  Pages pages(2 * page_size());
  ASSERT_EQ(mprotect(pages.get() + page_size(), page_size(), PROT_NONE), 0);
  auto* const regions = reinterpret_cast<gpumem_copy_region*>(pages.get() + page_size()) - 2;
  uint8_t to[16] = {};
  uint8_t from[16] = {};
  for (int i = 0; i < 2; ++i) {
    regions[i] = GPUMEM_COPY_REGION_INIT;
    regions[i].destination.pointer = to + 8 * i;
    regions[i].source.pointer = from + 8 * i;
    regions[i].width = 8;
  }
  regions[1].struct_size = 512;
  uint64_t failed = 99;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_copy_regions(instance_, regions, 2, &failed, why()));
  EXPECT_EQ(failed, 1u);
}

// Each failure of a batch names its region, and none is forgotten for a later success.
TEST_F(Conformance, str_7_the_region_that_fails_is_named) {
  const Memory memory = alloc_device(device_, kSize);
  Pages pages(3 * page_size());
  ASSERT_EQ(mprotect(pages.get() + page_size(), page_size(), PROT_NONE), 0);
  std::vector<uint8_t> heap(3 * page_size());
  gpumem_copy_region regions[3] = {GPUMEM_COPY_REGION_INIT, GPUMEM_COPY_REGION_INIT, GPUMEM_COPY_REGION_INIT};
  for (uint64_t i = 0; i < 3; ++i) {
    regions[i].destination.memory = memory;
    regions[i].destination.offset = 16 * i;
    regions[i].source.pointer = heap.data() + 16 * i;
    regions[i].width = 16;
  }
  const auto expect_failure = [&](gpumem_status expected) {
    uint64_t failed = 77;
    EXPECT_STATUS(expected, gpumem_copy_regions(instance_, regions, 3, &failed, why()));
    EXPECT_EQ(failed, 1u);
    EXPECT_EQ(std::string(last_error().message).rfind("regions[1]", 0), 0u) << last_error().message;
  };
  const gpumem_copy_region good = regions[1];
  regions[1].source.offset = 1;  // with a pointer
  expect_failure(GPUMEM_ERROR_INVALID_ARGUMENT);
  regions[1] = good;
  regions[1].destination.offset = kSize;
  expect_failure(GPUMEM_ERROR_INVALID_ARGUMENT);
  regions[1] = good;
  regions[1].source.pointer = pages.get();  // by the CPU, over a hole
  regions[1].width = pages.size();
  regions[1].destination = {};
  regions[1].destination.pointer = heap.data();
  regions[0].source.pointer = regions[2].source.pointer = pages.get();
  expect_failure(GPUMEM_ERROR_INVALID_STATE);
}

// Ordinary memory may have holes, which no copy may fall into.
TEST_F(Conformance, str_7_holes_in_ordinary_memory) {
  const size_t page = page_size();
  Pages from(8 * page);
  Pages to(8 * page);
  ASSERT_EQ(mprotect(from.get() + 3 * page, page, PROT_NONE), 0);
  ASSERT_EQ(mprotect(to.get() + 5 * page, page, PROT_READ), 0);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_copy(instance_, to.get(), from.get(), 5 * page, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_copy(instance_, to.get() + 4 * page, from.get() + 4 * page, 4 * page, nullptr, why()));
  // Rows on both sides of a hole.
  EXPECT_OK(
      gpumem_copy_2d(instance_, to.get(), page, from.get() + 2 * page, 2 * page, page, 2, nullptr, why()));
}

// Of a file with holes, and of memory that is given when it is touched, only the rows' pages are taken.
TEST_F(Conformance, str_7_pages_between_rows_are_left_alone) {
  constexpr uint64_t kRows = 32;
  constexpr uint64_t kWidth = 100;
  const uint64_t pitch = 16 * page_size();
  const Memory memory = alloc_device(device_, kRows * kWidth);
  std::vector<uint8_t> rows(kRows * kWidth, 7);
  const auto taken_by = [&](const auto& copy) {
    const int file = memfd_create("sparse", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file, static_cast<off_t>(kRows * pitch)), 0);
    void* const sparse = mmap(nullptr, kRows * pitch, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT_NE(sparse, MAP_FAILED);
    EXPECT_EQ(madvise(sparse, kRows * pitch, MADV_NOHUGEPAGE), 0);
    EXPECT_OK(copy(sparse));
    struct stat status {};
    EXPECT_EQ(fstat(file, &status), 0);
    EXPECT_EQ(munmap(sparse, kRows * pitch), 0);
    close(file);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  };
  const uint64_t most = kRows * page_size();
  const auto copy_2d = [&](void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch) {
    return gpumem_copy_2d(instance_, to, to_pitch, from, from_pitch, kWidth, kRows, nullptr, why());
  };
  EXPECT_LE(taken_by([&](void* sparse) { return copy_2d(sparse, pitch, rows.data(), kWidth); }), most);
  EXPECT_LE(taken_by([&](void* sparse) { return copy_2d(rows.data(), kWidth, sparse, pitch); }), most);
  if (!on_host()) return;  // a driver reads and writes as it likes
  EXPECT_LE(taken_by([&](void* sparse) { return copy_2d(sparse, pitch, memory.device(), kWidth); }), most);
  EXPECT_LE(taken_by([&](void* sparse) { return copy_2d(memory.device(), kWidth, sparse, pitch); }), most);
}

TEST_F(Conformance, str_7_a_batch_is_in_the_order_of_its_stream) {
  const Memory memory = alloc_device(device_, 300);
  const Memory before = alloc_pinned(device_, 300);
  const Memory after = alloc_pinned(device_, 300);
  GatedStream held(device_);
  EXPECT_OK(gpumem_fill_async(held, memory.device(), 300, 0x31, 1, why()));
  std::array<gpumem_copy_region, 3> regions;
  for (uint64_t i = 0; i < 3; ++i) {
    regions.at(i) = region_of(by_memory(before), {i * 100, 0, 0}, by_memory(memory), {i * 100, 0, 0}, {100});
  }
  EXPECT_OK(gpumem_copy_regions_async(held, regions.data(), 3, nullptr, why()));
  regions.fill(gpumem_copy_region{});  // the array is not used after the call
  EXPECT_OK(gpumem_fill_async(held, memory.device(), 300, 0x32, 1, why()));
  EXPECT_OK(gpumem_copy_async(held, after.host(), memory.device(), 300, nullptr, why()));
  held.finish();
  EXPECT_EQ(std::count(before.host(), before.host() + 300, 0x31), 300);
  EXPECT_EQ(std::count(after.host(), after.host() + 300, 0x32), 300);
}

TEST_F(Conformance, str_7_a_batch_that_the_backend_fails) {
  if (!Faults::available()) SKIP_RULE("a real driver cannot be made to fail at a chosen step");
  constexpr uint64_t kParts = 4;
  constexpr std::array<uint64_t, kParts> kPlaces{200, 0, 300, 100};  // neighbours in a row would be one copy
  const Memory memory = alloc_device(device_, kParts * 100);
  const Memory pinned = alloc_pinned(device_, kParts * 100);
  fill_pattern(pinned.host(), pinned.size(), 3);
  std::array<gpumem_copy_region, kParts> regions;
  for (uint64_t i = 0; i < kParts; ++i) {
    const uint64_t at = kPlaces.at(i);
    regions.at(i) = region_of(by_memory(memory), {at, 0, 0}, by_memory(pinned), {at, 0, 0}, {100});
  }
  const Stream stream = create_stream(device_);
  for (const gpumem_stream where : {gpumem_stream{}, stream.get()}) {
    std::set<uint64_t> failed_at;
    gpumem_status status = GPUMEM_ERROR_INTERNAL;
    for (uint64_t step = 1; step <= 40; ++step) {  // more than there are
      SCOPED_TRACE(step);
      EXPECT_OK(gpumem_fill(instance_, memory.device(), memory.size(), 0, 1, why()));
      uint64_t failed = 77;
      {
        Faults faults(instance_);
        faults.fail_step(step);
        status = copy_regions_on(instance_, where, regions.data(), kParts, &failed, why());
      }
      stream.synchronize();
      std::vector<uint8_t> seen(memory.size());
      EXPECT_OK(gpumem_copy(instance_, seen.data(), memory.device(), seen.size(), nullptr, why()));
      if (!GPUMEM_FAILED(status)) {
        EXPECT_EQ(failed, 77u);
        EXPECT_TRUE(has_pattern(seen.data(), seen.size(), 3));
        continue;
      }
      if (failed == 77) continue;  // the failure belongs to no region
      ASSERT_LT(failed, kParts);
      failed_at.insert(failed);
      for (uint64_t i = 0; i < kParts; ++i) {
        const uint8_t* const part = seen.data() + kPlaces.at(i);
        const bool copied = std::equal(part, part + 100, pinned.host() + kPlaces.at(i));
        EXPECT_EQ(copied, i < failed) << i;
        EXPECT_TRUE(copied || std::count(part, part + 100, 0) == 100) << i;
      }
    }
    EXPECT_OK(status);
    EXPECT_EQ(failed_at.size(), kParts) << "not every region was made to fail";
  }
}

TEST_F(Conformance, uva_9_boxes) {
  // What overlaps and what does not, compared with a count of the bytes.
  constexpr uint64_t kBytes = 240;
  const Memory memory = alloc_pinned(device_, kBytes);
  uint64_t state = 1;
  const auto below = [&](uint64_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % limit;
  };
  int overlapping = 0;
  int separate = 0;
  for (int round = 0; round < 4000; ++round) {
    const Extents extents{1 + below(9), 1 + below(4), 1 + below(4)};
    const auto box = [&] {
      Box one;
      one.row_pitch = extents.width + below(12);
      const uint64_t slice = (extents.height - 1) * one.row_pitch + extents.width;
      one.slice_pitch = slice + below(40);
      const uint64_t extent = (extents.depth - 1) * one.slice_pitch + slice;
      if (extent > kBytes) return std::optional<Box>();
      one.offset = below(kBytes - extent + 1);
      return std::optional(one);
    };
    const std::optional<Box> to = box();
    const std::optional<Box> from = box();
    if (!to || !from) continue;
    std::set<uint64_t> read;
    for (const uint64_t start : row_starts(*from, extents)) {
      for (uint64_t i = 0; i < extents.width; ++i)
        read.insert(start + i);
    }
    bool overlap = false;
    for (const uint64_t start : row_starts(*to, extents)) {
      for (uint64_t i = 0; i < extents.width; ++i)
        overlap = overlap || read.contains(start + i);
    }
    ++(overlap ? overlapping : separate);
    fill_pattern(memory.host(), kBytes, 4);
    const gpumem_copy_region region =
        region_of(by_memory(memory), *to, by_pointer(memory.host()), *from, extents);
    EXPECT_STATUS(overlap ? GPUMEM_ERROR_INVALID_ARGUMENT : GPUMEM_SUCCESS,
                  gpumem_copy_regions(instance_, &region, 1, nullptr, why()))
        << "round " << round;
    std::vector<uint8_t> expected = pattern(kBytes, 4);
    if (!overlap) {
      const std::vector<uint8_t> given = expected;
      const std::vector<uint64_t> to_rows = row_starts(*to, extents);
      const std::vector<uint64_t> from_rows = row_starts(*from, extents);
      for (size_t row = 0; row < to_rows.size(); ++row)
        std::memcpy(&expected[to_rows[row]], &given[from_rows[row]], extents.width);
    }
    ASSERT_EQ(std::memcmp(expected.data(), memory.host(), kBytes), 0) << "round " << round;
  }
  EXPECT_GT(overlapping, 500);
  EXPECT_GT(separate, 100);
}

// ---- STR-8 ----

TEST_F(Conformance, str_8) {
  constexpr uint64_t kLarge = 1'000'003;
  const Operands sources(device_, second_device(), kLarge);
  const Operands destinations(device_, second_device(), kLarge);
  const Stream stream = create_stream(device_);
  uint32_t seed = 0;
  // A part to each destination, all in flight at once; the operands stay as they are until the end.
  const uint64_t part = kLarge / destinations.all().size();
  for (const Operand& source : sources.all()) {
    prepare(instance_, source, kLarge, ++seed);
    uint64_t offset = 0;
    for (const Operand& destination : destinations.all()) {
      if (!destination.writable) continue;
      uint8_t* const to = destination.address + offset;
      EXPECT_OK(gpumem_fill_async(stream, to, part, 0, 1, why()));
      EXPECT_OK(gpumem_copy_async(stream, to, source.address + offset, part, nullptr, why()));
      offset += part;
    }
    stream.synchronize();
    const std::vector<uint8_t> expected = pattern(kLarge, seed);
    offset = 0;
    for (const Operand& destination : destinations.all()) {
      if (!destination.writable) continue;
      SCOPED_TRACE(source.name + " to " + destination.name);
      const std::vector<uint8_t> seen = bytes_of(instance_, destination, offset + part);
      EXPECT_EQ(std::memcmp(&seen[offset], &expected[offset], part), 0);
      offset += part;
    }
  }
}

// From or to a device: a driver may wait for the stream when both sides are host memory, or one is pageable.
TEST_F(Conformance, str_8_runs_in_its_turn) {
  const Memory device = alloc_device(device_, kSize);
  const Memory source = alloc_pinned(device_, kSize);
  const Memory destination = alloc_pinned(device_, kSize);
  put_pattern(instance_, device.device(), kSize, 1);
  fill_pattern(source.host(), kSize, 2);
  fill_pattern(destination.host(), kSize, 3);
  GatedStream held(device_);
  EXPECT_OK(gpumem_copy_async(held, destination.host(), device.device(), kSize, nullptr, why()));
  EXPECT_OK(gpumem_copy_async(held, device.device(), source.host(), kSize, nullptr, why()));
  EXPECT_TRUE(has_pattern(destination.host(), kSize, 3));
  EXPECT_TRUE(holds_pattern(instance_, device.device(), kSize, 1));
  held.finish();
  EXPECT_TRUE(has_pattern(destination.host(), kSize, 1));
  EXPECT_TRUE(holds_pattern(instance_, device.device(), kSize, 2));
}

TEST_F(Conformance, str_8_early_reuse_shows) {
  if (!on_host()) SKIP_RULE("a source that changes too early is not detected on cuda");
  const Memory device = alloc_device(device_, kSize);
  const Memory pinned = alloc_pinned(device_, kSize);
  std::vector<uint8_t> pageable(kSize);
  for (uint8_t* const source : {pinned.host(), pageable.data()}) {
    fill_pattern(source, kSize, 1);
    GatedStream held(device_);
    EXPECT_OK(gpumem_copy_async(held, device.device(), source, kSize, nullptr, why()));
    fill_pattern(source, kSize, 2);
    held.finish();
    EXPECT_TRUE(holds_pattern(instance_, device.device(), kSize, 2));
  }
}

// ---- STR-9 ----

struct HostFunctionLog {
  Memory word;
  std::vector<uint8_t> seen;
  std::thread::id thread;
};

TEST_F(Conformance, str_9) {
  HostFunctionLog log{alloc_pinned(device_, 1), {}, {}};
  const auto note = [](void* user_data) {
    auto* const into = static_cast<HostFunctionLog*>(user_data);
    into->seen.push_back(*into->word.host());
    into->thread = std::this_thread::get_id();
  };
  const Stream stream = create_stream(device_);
  for (uint32_t i = 1; i <= 10; ++i) {
    EXPECT_OK(gpumem_fill_async(stream, log.word.device(), 1, i, 1, why()));
    EXPECT_OK(gpumem_stream_launch_host_function(stream, note, &log, why()));
  }
  stream.synchronize();
  EXPECT_EQ(log.seen, (std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_NE(log.thread, std::this_thread::get_id());
}

TEST_F(Conformance, str_9_before_later_work) {
  // The CPU writes in the function, and the copy behind it reads what was written.
  const Memory source = alloc_pinned(device_, kSize);
  const Memory destination = alloc_device(device_, kSize);
  std::memset(source.host(), 0, kSize);
  struct Argument {
    uint8_t* bytes;
  } argument{source.host()};
  const Stream stream = create_stream(device_);
  EXPECT_OK(gpumem_stream_launch_host_function(
      stream, [](void* user_data) { fill_pattern(static_cast<Argument*>(user_data)->bytes, kSize, 4); },
      &argument, why()));
  EXPECT_OK(gpumem_copy_async(stream, destination.device(), source.host(), kSize, nullptr, why()));
  stream.synchronize();
  EXPECT_TRUE(holds_pattern(instance_, destination.device(), kSize, 4));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_stream_launch_host_function(stream, nullptr, nullptr, why()));
}

CHILD(str_9_device_lost) {
  const Instance instance = open_instance();
  if (!can_lose()) skip_child("a real GPU cannot be lost on purpose");
  const Stream stream = create_stream(instance.device());
  std::atomic<bool> ran{false};
  lose(instance.device());
  EXPECT_STATUS(
      GPUMEM_ERROR_DEVICE_LOST,
      gpumem_stream_launch_host_function(
          stream, [](void* user_data) { *static_cast<std::atomic<bool>*>(user_data) = true; }, &ran, why()));
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_FALSE(ran);
}
TEST_F(Conformance, str_9_device_lost) { EXPECT_CHILD_OK(run_child("str_9_device_lost")); }

CHILD(str_9_pending_when_the_device_is_lost) {
  const Instance instance = open_instance();
  const Stream stream = create_stream(instance.device());
  static std::atomic<bool> ran{false};
  Gate gate;
  gate.hold(stream);
  gate.wait_until_reached();
  EXPECT_OK(gpumem_stream_launch_host_function(
      stream, [](void*) { ran = true; }, nullptr, why()));
  lose(instance.device());
  gate.open();
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_FALSE(ran);
}
TEST_F(Conformance, str_9_pending_when_the_device_is_lost) {
  if (!on_host())
    SKIP_RULE("the driver decides what becomes of pending work; a real GPU cannot be lost on purpose");
  EXPECT_CHILD_OK(run_child("str_9_pending_when_the_device_is_lost"));
}

CHILD(str_9_running_when_the_device_is_lost) {
  const gpumem_instance instance = open_instance().release();
  gpumem_device device = nullptr;
  gpumem_stream stream = nullptr;
  ASSERT_OK(gpumem_device_get(instance, 0, &device, why()));
  ASSERT_OK(gpumem_stream_create(device, nullptr, &stream, why()));
  static std::atomic<bool> begun{false};
  static std::atomic<bool> closing{false};
  static std::atomic<bool> ended{false};
  static std::atomic<int> others{0};
  EXPECT_OK(gpumem_stream_launch_host_function(
      stream,
      [](void*) {
        begun = true;
        while (!closing)
          std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // close is in the middle now
        ended = true;
      },
      nullptr, why()));
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(gpumem_stream_launch_host_function(
        stream, [](void*) { ++others; }, nullptr, why()));
  }
  while (!begun)
    std::this_thread::yield();
  lose(device);
  EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_query(stream, why()));
  closing = true;
  EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why()));
  EXPECT_TRUE(ended) << "close left a function behind that still ran";
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(others, 0);
}
TEST_F(Conformance, str_9_running_when_the_device_is_lost) {
  if (!can_lose()) SKIP_RULE("a real GPU cannot be lost on purpose");
  EXPECT_CHILD_OK(run_child("str_9_running_when_the_device_is_lost"));
}

// ---- STR-17 ----

gpumem_capability value_capability(uint32_t width) {
  return width == 4 ? GPUMEM_CAPABILITY_STREAM_VALUE32 : GPUMEM_CAPABILITY_STREAM_VALUE64;
}

// The words that value operations take.
class Words {
 public:
  Words(const Instance& instance, gpumem_device device) : instance_(instance), pages_(page_size()) {
    add("pinned", alloc_pinned(device, kBytes));
    add("write-combined", alloc_pinned(device, kBytes, GPUMEM_MEMORY_WRITE_COMBINED));
    add("registered", register_memory(device, pages_.get() + 8, kBytes, GPUMEM_MEMORY_MAPPED));
    add("device", alloc_device(device, kBytes));
  }
  const std::vector<Operand>& all() const { return words_; }

  uint64_t get(const Operand& word, uint32_t width) const {
    uint64_t value = 0;
    const std::vector<uint8_t> bytes = bytes_of(instance_, word, width);
    std::memcpy(&value, bytes.data(), width);
    return value;
  }
  // By the CPU where it can, as one store, so that a device that polls sees it whole.
  void set(const Operand& word, uint64_t value, uint32_t width) const {
    if (word.cpu == nullptr) {
      EXPECT_OK(gpumem_copy(instance_, word.address, &value, width, nullptr, why()));
    } else if (width == 4) {
      __atomic_store_n(reinterpret_cast<uint32_t*>(word.cpu), static_cast<uint32_t>(value), __ATOMIC_SEQ_CST);
    } else {
      __atomic_store_n(reinterpret_cast<uint64_t*>(word.cpu), value, __ATOMIC_SEQ_CST);
    }
  }

  static constexpr uint64_t kBytes = 24;

 private:
  void add(const std::string& name, Memory memory) {
    const gpumem_kind kind = memory.info().kind;
    if (memory.host() != nullptr) words_.push_back({name, kind, memory.host(), memory.host()});
    if (memory.device() != memory.host()) {
      words_.push_back({name + " by device address", kind, memory.device(), memory.host()});
    }
    memories_.push_back(std::move(memory));
  }

  const Instance& instance_;
  Pages pages_;
  std::vector<Operand> words_;
  std::vector<Memory> memories_;
};

TEST_F(Conformance, str_17_write) {
  const Words words(instance_, device_);
  const Stream stream = create_stream(device_);
  constexpr uint64_t kValue = 0xA1A2A3A4B1B2B3B4;
  for (const uint32_t width : {4u, 8u}) {
    const gpumem_capability_info able = capability(device_, value_capability(width));
    for (const Operand& word : words.all()) {
      SCOPED_TRACE(testing::Message() << word.name << ", " << width << " bytes");
      prepare(instance_, word, Words::kBytes, 1);
      std::vector<uint8_t> expected = pattern(Words::kBytes, 1);
      if (able.value == GPUMEM_ANSWER_NO) {
        EXPECT_STATUS(able.status, gpumem_stream_write_value(stream, word.address + 8, kValue, width, why()));
      } else {
        EXPECT_OK(gpumem_stream_write_value(stream, word.address + 8, kValue, width, why()));
        std::memcpy(&expected[8], &kValue, width);
      }
      stream.synchronize();
      EXPECT_TRUE(same_bytes(expected, bytes_of(instance_, word, Words::kBytes)));
    }
  }
}

TEST_F(Conformance, str_17_write_in_order) {
  if (capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE32).value == GPUMEM_ANSWER_NO) {
    SKIP_RULE("the device has no value operations; str_17_write checks the refusal");
  }
  const Memory word = alloc_pinned(device_, 4);
  const Memory log = alloc_pinned(device_, 4 * 20);
  const Stream stream = create_stream(device_);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_OK(gpumem_stream_write_value(stream, word.host(), 1000 + i, 4, why()));
    EXPECT_OK(gpumem_copy_async(stream, log.host() + 4 * i, word.host(), 4, nullptr, why()));
  }
  stream.synchronize();
  for (uint64_t i = 0; i < 20; ++i) {
    uint32_t seen = 0;
    std::memcpy(&seen, log.host() + 4 * i, 4);
    EXPECT_EQ(seen, 1000 + i);
  }
}

struct Condition {
  gpumem_wait_condition condition;
  uint64_t value;
  uint64_t held;      // a word that holds the stream
  uint64_t released;  // a word that lets it go
};

// Numbers of 4 bytes; for 8 bytes they are extended so that the upper half matters.
constexpr Condition kConditions[] = {
    {GPUMEM_WAIT_GEQ, 100, 99, 100},
    {GPUMEM_WAIT_GEQ, 100, 0, 0x7FFFFFFF},
    {GPUMEM_WAIT_GEQ, 1, 0xFFFFFFF0, 2},           // cyclic: the word is 17 behind
    {GPUMEM_WAIT_GEQ, 0xFFFFFFF0, 0xFFFFFFEF, 1},  // cyclic: the word has wrapped
    {GPUMEM_WAIT_EQ, 7, 8, 7},
    {GPUMEM_WAIT_EQ, 0, 0xFFFFFFFF, 0},
    {GPUMEM_WAIT_AND, 0x80000001, 0x7FFFFFFE, 0x80000000},
    {GPUMEM_WAIT_AND, 0x10, 0, 0x10},
    {GPUMEM_WAIT_NOR, 0x0FFFFFFF, 0xF0000000, 0xE0000000},
    {GPUMEM_WAIT_NOR, 0, 0xFFFFFFFF, 0},
};

uint64_t widen(uint64_t value, uint32_t width) {
  return width == 4 ? value : static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(value)));
}

TEST_F(Conformance, str_17_wait) {
  const Words words(instance_, device_);
  const Memory mark = alloc_pinned(device_, 1);
  const Stream stream = create_stream(device_);
  const Stream releasing = create_stream(device_);
  const bool nor = capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE_NOR).value != GPUMEM_ANSWER_NO;
  for (const uint32_t width : {4u, 8u}) {
    const gpumem_capability_info able = capability(device_, value_capability(width));
    for (const Operand& word : words.all()) {
      for (const Condition& condition : kConditions) {
        SCOPED_TRACE(testing::Message() << word.name << ", " << width << " bytes, condition "
                                        << condition.condition << " with " << condition.value);
        const uint64_t value = widen(condition.value, width);
        words.set(word, widen(condition.held, width), width);
        *mark.host() = 0;
        const auto wait = [&] {
          return gpumem_stream_wait_value(stream, word.address, value, width, condition.condition, why());
        };
        if (able.value == GPUMEM_ANSWER_NO) {
          EXPECT_STATUS(able.status, wait());
          continue;
        }
        if (condition.condition == GPUMEM_WAIT_NOR && !nor) {
          EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, wait());
          continue;
        }
        ASSERT_OK(wait());
        EXPECT_OK(gpumem_fill_async(stream, mark.host(), 1, 1, 1, why()));
        EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_synchronize(stream, kShortWait, why()));
        EXPECT_EQ(*mark.host(), 0);
        // The waiting device looks at the word all the time, so only a write that is atomic towards it will
        // do.
        EXPECT_OK(gpumem_stream_write_value(releasing, word.address, widen(condition.released, width), width,
                                            why()));
        stream.synchronize();
        releasing.synchronize();
        EXPECT_EQ(*mark.host(), 1);
        // What is true already holds nothing.
        EXPECT_OK(wait());
        stream.synchronize();
      }
    }
  }
}

TEST_F(Conformance, str_17_between_streams) {
  for (const uint32_t width : {4u, 8u}) {
    if (capability(device_, value_capability(width)).value == GPUMEM_ANSWER_NO) continue;
    const Memory flags = alloc_device(device_, 16);
    EXPECT_OK(gpumem_fill(instance_, flags.device(), 16, 0, 1, why()));
    const Memory data = alloc_device(device_, kSize);
    const Memory result = alloc_pinned(device_, 20);
    const Stream producer = create_stream(device_);
    const Stream consumer = create_stream(device_);
    for (uint32_t round = 1; round <= 20; ++round) {
      EXPECT_OK(gpumem_fill_async(producer, data.device(), kSize, round, 1, why()));
      EXPECT_OK(gpumem_stream_write_value(producer, flags.device(), round, width, why()));
      EXPECT_OK(gpumem_stream_wait_value(producer, flags.device() + 8, round, width, GPUMEM_WAIT_GEQ, why()));
      EXPECT_OK(gpumem_stream_wait_value(consumer, flags.device(), round, width, GPUMEM_WAIT_GEQ, why()));
      EXPECT_OK(gpumem_copy_async(consumer, result.host() + round - 1, data.device() + kSize - 1, 1, nullptr,
                                  why()));
      EXPECT_OK(gpumem_stream_write_value(consumer, flags.device() + 8, round, width, why()));
    }
    producer.synchronize();
    consumer.synchronize();
    for (uint32_t round = 1; round <= 20; ++round)
      EXPECT_EQ(result.host()[round - 1], round);
  }
}

TEST_F(Conformance, str_17_refused) {
  const Memory memory = alloc_pinned(device_, 20);
  Pages pages(2 * page_size());
  const Memory unmapped = register_memory(device_, pages.get(), 64);
  alignas(8) uint8_t on_stack[8] = {};
  Pages no_access(page_size(), PROT_NONE);
  fill_pattern(memory.host(), 20, 1);
  const Stream stream = create_stream(device_);
  const auto expect = [&](const std::vector<gpumem_status>& expected, void* address, uint32_t width,
                          gpumem_wait_condition condition = GPUMEM_WAIT_EQ) {
    SCOPED_TRACE(gpumem_status_name(expected.front()));
    EXPECT_PRED_FORMAT2(status_is_one_of, expected,
                        gpumem_stream_wait_value(stream, address, 0, width, condition, why()));
    if (condition != GPUMEM_WAIT_EQ) return;
    EXPECT_PRED_FORMAT2(status_is_one_of, expected,
                        gpumem_stream_write_value(stream, address, 0, width, why()));
  };
  for (const uint32_t width : {0u, 1u, 2u, 3u, 5u, 16u})
    expect({GPUMEM_ERROR_INVALID_ARGUMENT}, memory.host(), width);
  for (const gpumem_wait_condition condition : {-1, 4, INT32_MAX})
    expect({GPUMEM_ERROR_INVALID_ARGUMENT}, memory.host(), 4, condition);
  for (const uint32_t width : {4u, 8u}) {
    SCOPED_TRACE(width);
    if (capability(device_, value_capability(width)).value == GPUMEM_ANSWER_NO) continue;
    expect({GPUMEM_ERROR_INVALID_ARGUMENT}, nullptr, width);
    expect({GPUMEM_ERROR_INVALID_ARGUMENT}, memory.host() + 2, width);
    expect({GPUMEM_ERROR_WRONG_KIND}, unmapped.host(), width);
    // A stranger is no known memory, or memory of the wrong kind.
    expect({GPUMEM_ERROR_NOT_FOUND, GPUMEM_ERROR_WRONG_KIND}, on_stack, width);
    expect({GPUMEM_ERROR_NOT_FOUND}, no_access.get(), width);
  }
  if (capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE64).value != GPUMEM_ANSWER_NO) {
    expect({GPUMEM_ERROR_INVALID_ARGUMENT}, memory.host() + 4, 8);
    expect({GPUMEM_ERROR_INVALID_ARGUMENT}, memory.host() + 16, 8);  // 4 bytes are left there
  }
  EXPECT_OK(gpumem_stream_query(stream, why()));
  EXPECT_TRUE(has_pattern(memory.host(), 20, 1));
}

TEST_F(Conformance, str_17_read_only) {
  if (capability(device_, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY).value == GPUMEM_ANSWER_NO ||
      capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE32).value == GPUMEM_ANSWER_NO) {
    SKIP_RULE("needs value operations and read-only registration");
  }
  Pages pages(page_size());
  const Memory memory =
      register_memory(device_, pages.get(), 64, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY);
  const Stream stream = create_stream(device_);
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_stream_write_value(stream, memory.host(), 5, 4, why()));
  EXPECT_OK(gpumem_stream_wait_value(stream, memory.device(), 0, 4, GPUMEM_WAIT_EQ, why()));
  stream.synchronize();
  EXPECT_EQ(pages.get()[0], 0);
}

TEST_F(Conformance, str_17_masked) {
  if (!on_host()) SKIP_RULE("entry points can be masked on the host backend only");
  const Instance instance = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.masked = "write_value,wait_value"; });
  const Memory memory = alloc_pinned(instance.device(), 8);
  std::memset(memory.host(), 1, 8);
  const Stream stream = create_stream(instance.device());
  for (const uint32_t width : {4u, 8u}) {
    const gpumem_capability_info able = capability(instance.device(), value_capability(width));
    EXPECT_EQ(able.value, uint64_t{GPUMEM_ANSWER_NO});
    EXPECT_EQ(able.status, GPUMEM_ERROR_SYMBOL_MISSING);
    EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                  gpumem_stream_write_value(stream, memory.host(), 0, width, why()));
    EXPECT_STATUS(GPUMEM_ERROR_SYMBOL_MISSING,
                  gpumem_stream_wait_value(stream, memory.host(), 0, width, GPUMEM_WAIT_EQ, why()));
  }
  EXPECT_OK(gpumem_stream_query(stream, why()));
  EXPECT_EQ(std::count(memory.host(), memory.host() + 8, 1), 8);
}

// ---- STR-19 ----

TEST_F(Conformance, str_19_regions_that_depend_on_each_other) {
  const Memory memory = alloc_device(device_, kSize);
  const Memory pinned = alloc_pinned(device_, kSize);
  put_pattern(instance_, memory.device(), kSize, 1);
  fill_pattern(pinned.host(), kSize, 2);
  const Stream stream = create_stream(device_);
  const auto to = by_memory(memory);
  const auto from = by_memory(pinned);
  const gpumem_copy_region apart = region_of(to, {kSize / 2}, from, {kSize / 2}, {100});
  const gpumem_copy_region first = region_of(to, {0, 100}, from, {0}, {10, 10});
  struct Case {
    const char* what;
    gpumem_copy_region later;
    bool refused;
  };
  const Case cases[] = {
      {"the last byte is written twice", region_of(to, {909}, from, {500}, {10}), true},
      {"the next byte", region_of(to, {910}, from, {500}, {10}), false},
      {"between two rows", region_of(to, {10}, from, {500}, {90}), false},
      {"from a row into the gap", region_of(to, {9}, from, {500}, {10}), true},
      {"from a gap into a row", region_of(to, {91}, from, {500}, {10}), true},
      {"the gaps between all rows", region_of(to, {10, 100}, from, {500}, {90, 10}), false},
      {"one byte more than the gaps", region_of(to, {10, 100}, from, {500}, {91, 10}), true},
      {"rows of another pitch, in the gaps", region_of(to, {20, 200}, from, {500}, {80, 5}), false},
      {"rows of another pitch", region_of(to, {20, 90}, from, {500}, {10, 10}), true},
      {"by the address", region_of(by_pointer(memory.device()), {5}, from, {500}, {1}), true},
      {"written where another reads", region_of(from, {99}, to, {2000}, {1}), true},
      {"written behind what another reads", region_of(from, {100}, to, {2000}, {1}), false},
      {"reads what another writes", region_of(from, {1000}, to, {305}, {1}), true},
      {"reads beside what another writes", region_of(from, {1000}, to, {310}, {90}), false},
      {"both read the same", region_of(to, {2000}, from, {0}, {100}), false},
      {"no bytes", region_of(to, {0}, from, {0}, {0}), false},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const std::array<gpumem_copy_region, 4> regions{apart, first, region_of(to, {3000}, from, {3000}, {7}),
                                                    one.later};
    for (const gpumem_stream where : {gpumem_stream{}, stream.get()}) {
      uint64_t failed = 77;
      if (!one.refused) {
        EXPECT_OK(copy_regions_on(instance_, where, regions.data(), regions.size(), &failed, why()));
        EXPECT_EQ(failed, 77u);
        stream.synchronize();
        put_pattern(instance_, memory.device(), kSize, 1);
        fill_pattern(pinned.host(), kSize, 2);
        continue;
      }
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    copy_regions_on(instance_, where, regions.data(), regions.size(), &failed, why()));
      EXPECT_EQ(failed, 3u);
      EXPECT_NE(std::strstr(last_error().message, "regions[1] and regions[3]"), nullptr)
          << last_error().message;
      // Alone each of them is right.
      EXPECT_OK(gpumem_stream_query(stream, why()));
      EXPECT_TRUE(holds_pattern(instance_, memory.device(), kSize, 1));
      EXPECT_TRUE(has_pattern(pinned.host(), kSize, 2));
    }
  }
}

// Each column of a matrix is a region, so that every one lies in the gaps of all others.
TEST_F(Conformance, str_19_a_large_batch) {
  constexpr uint64_t kColumns = 1500;
  constexpr uint64_t kRows = 4;
  const Memory memory = alloc_pinned(device_, 2 * kColumns * kRows);
  const Memory pinned = alloc_pinned(device_, 2 * kColumns * kRows);
  fill_pattern(pinned.host(), pinned.size(), 3);
  std::vector<gpumem_copy_region> regions;
  // From the last to the first, into a matrix of twice the pitch.
  for (uint64_t column = kColumns; column-- > 0;) {
    regions.push_back(region_of(by_memory(memory), {column, 2 * kColumns}, by_memory(pinned),
                                {column, kColumns}, {1, kRows}));
  }
  uint64_t failed = 77;
  EXPECT_OK(gpumem_copy_regions(instance_, regions.data(), regions.size(), &failed, why()));
  for (uint64_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(std::memcmp(memory.host() + 2 * row * kColumns, pinned.host() + row * kColumns, kColumns), 0);
  }
  regions[1234].destination.offset += 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy_regions(instance_, regions.data(), regions.size(), &failed, why()));
  EXPECT_EQ(failed, 1234u);
  EXPECT_NE(std::strstr(last_error().message, "regions[1233] and regions[1234]"), nullptr)
      << last_error().message;
}

TEST_F(Conformance, str_19_the_default_stream) {
  const Memory memory = alloc_pinned(device_, 200);
  fill_pattern(memory.host(), 200, 1);
  std::vector<void*> defaults = {nullptr};
  if (on_cuda()) defaults.push_back(reinterpret_cast<void*>(uintptr_t{1}));  // CU_STREAM_LEGACY
  for (void* const native : defaults) {
    gpumem_stream handle = nullptr;
    ASSERT_OK(gpumem_stream_wrap(device_, native, &handle, why()));
    const Stream stream(handle);
    const gpumem_copy_region region = region_of(by_memory(memory), {100}, by_memory(memory), {0}, {100});
    uint64_t failed = 77;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_copy_regions_async(stream, &region, 1, &failed, why()));
    EXPECT_EQ(failed, 77u);
    EXPECT_TRUE(has_pattern(memory.host(), 100, 1));
    // It takes copies, and a batch of none.
    EXPECT_OK(gpumem_copy_regions_async(stream, nullptr, 0, &failed, why()));
    EXPECT_OK(gpumem_copy_async(stream, memory.host() + 100, memory.host(), 100, nullptr, why()));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(memory.host() + 100, 100, 1));
    fill_pattern(memory.host(), 200, 1);
  }
}

// ---- STR-20 ----

TEST_F(Conformance, str_20_adopted) {
  REQUIRE_FOREIGN();
  const Memory memory = alloc_pinned(device_, kSize);
  const NativeStream native(device_);
  for (uint32_t round = 1; round <= 2; ++round) {
    gpumem_stream handle = nullptr;
    ASSERT_OK(gpumem_stream_wrap(device_, native.get(), &handle, why()));
    Stream stream(handle);
    gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
    EXPECT_OK(gpumem_stream_get_info(stream, &info, why()));
    EXPECT_EQ(info.wrapped, 1u);
    EXPECT_EQ(info.native_stream, native.get());
    EXPECT_EQ(info.device, device_);
    EXPECT_EQ(stats(instance_).streams, 1u);

    Gate gate;
    gate.hold(stream);
    EXPECT_OK(gpumem_fill_async(stream, memory.host(), kSize, round, 1, why()));
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(stream, why()));
    gate.open();
    stream.synchronize();
    EXPECT_EQ(memory.host()[kSize - 1], round);
    stream.destroy();
    EXPECT_EQ(stats(instance_).streams, 0u);
    EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_stream_query(handle, why()));
    // The next round, and the destructor of its maker, show that the stream itself is still there.
  }
}

TEST_F(Conformance, str_20_our_own_native_stream) {
  REQUIRE_FOREIGN();
  const Stream stream = create_stream(device_);
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  EXPECT_OK(gpumem_stream_get_info(stream, &info, why()));
  EXPECT_EQ(info.wrapped, 0u);
  if (on_cuda()) {
    EXPECT_NE(info.native_stream, nullptr);
  }
}

TEST_F(Conformance, str_20_of_another_device) {
  REQUIRE_FOREIGN();
  const gpumem_device second = second_device();
  if (second == nullptr) SKIP_RULE("there is one device only");
  const NativeStream native(device_);
  gpumem_stream handle = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_wrap(second, native.get(), &handle, why()));
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(stats(instance_).streams, 0u);
}

// ---- STR-21 ----

gpumem_copy_options ordered(gpumem_source_order order) {
  gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
  options.source_order = order;
  return options;
}

TEST_F(Conformance, str_21_every_kind) {
  constexpr uint64_t kLarge = 70'001;
  const Operands sources(device_, second_device(), kLarge);
  const Operands destinations(device_, second_device(), kLarge);
  const Stream stream = create_stream(device_);
  uint32_t seed = 0;
  for (const gpumem_source_order order :
       {GPUMEM_SOURCE_ORDER_STREAM, GPUMEM_SOURCE_ORDER_DURING_CALL, GPUMEM_SOURCE_ORDER_ANY}) {
    const gpumem_copy_options options = ordered(order);
    for (const Operand& source : sources.all()) {
      prepare(instance_, source, kLarge, ++seed);
      for (const Operand& destination : destinations.all()) {
        if (!destination.writable) continue;
        SCOPED_TRACE(testing::Message() << source.name << " to " << destination.name << ", order " << order);
        const bool may_lie_there = source.on_device() || source.kind == GPUMEM_KIND_MANAGED;
        if (order == GPUMEM_SOURCE_ORDER_ANY && may_lie_there) {
          EXPECT_STATUS(
              GPUMEM_ERROR_INVALID_ARGUMENT,
              gpumem_copy_async(stream, destination.address, source.address, kLarge, &options, why()));
          EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                        gpumem_copy(instance_, destination.address, source.address, kLarge, &options, why()));
          continue;
        }
        EXPECT_OK(gpumem_fill_async(stream, destination.address, kLarge, 0, 1, why()));
        EXPECT_OK(gpumem_copy_async(stream, destination.address, source.address, kLarge, &options, why()));
        stream.synchronize();
        EXPECT_TRUE(same_bytes(pattern(kLarge, seed), bytes_of(instance_, destination, kLarge)));

        EXPECT_OK(gpumem_fill(instance_, destination.address, kLarge, 0, 1, why()));
        EXPECT_OK(gpumem_copy_2d(instance_, destination.address, 1000, source.address, 1000, 1000, 70,
                                 &options, why()));
        EXPECT_TRUE(same_bytes(pattern(70'000, seed), bytes_of(instance_, destination, 70'000)));
      }
    }
  }
}

// The source is overwritten as soon as the call has returned, while the stream still has other work to do.
TEST_F(Conformance, str_21_during_call) {
  constexpr uint64_t kSlot = 3001;
  constexpr uint64_t kRounds = kSanitized ? 16 : 64;
  constexpr uint64_t kBusy = 8 << 20;
  const gpumem_copy_options options = ordered(GPUMEM_SOURCE_ORDER_DURING_CALL);
  const Memory slots = alloc_device(device_, kSlot * kRounds);
  const Memory busy = alloc_device(device_, 2 * kBusy);
  const Memory pinned = alloc_pinned(device_, kSlot);
  Pages pages(kSlot);
  const Memory registered = register_memory(device_, pages.get(), kSlot);
  const Memory device = alloc_device(device_, kSlot);
  uint8_t on_stack[kSlot];
  const Stream stream = create_stream(device_);
  for (uint8_t* const source : {on_stack, pinned.host(), registered.host(), device.device()}) {
    const bool by_cpu = source != device.device();
    EXPECT_OK(gpumem_fill(instance_, slots.device(), slots.size(), 0, 1, why()));
    for (uint32_t round = 0; round < kRounds; ++round) {
      EXPECT_OK(gpumem_copy_async(stream, busy.device(), busy.device() + kBusy, kBusy, nullptr, why()));
      if (by_cpu) {
        fill_pattern(source, kSlot, round);
      } else {
        put_pattern(instance_, source, kSlot, round);
      }
      EXPECT_OK(gpumem_copy_async(stream, slots.device() + round * kSlot, source, kSlot, &options, why()));
    }
    stream.synchronize();
    for (uint32_t round = 0; round < kRounds; ++round)
      EXPECT_TRUE(holds_pattern(instance_, slots.device() + round * kSlot, kSlot, round)) << round;
  }
}

TEST_F(Conformance, str_21_during_call_of_rows) {
  const gpumem_copy_options options = ordered(GPUMEM_SOURCE_ORDER_DURING_CALL);
  const Memory destination = alloc_device(device_, 40 * 50);
  const Stream stream = create_stream(device_);
  std::vector<uint8_t> source(40 * 60);
  fill_pattern(source.data(), source.size(), 1);
  EXPECT_OK(
      gpumem_copy_2d_async(stream, destination.device(), 50, source.data(), 60, 50, 40, &options, why()));
  std::fill(source.begin(), source.end(), uint8_t{0});
  stream.synchronize();
  std::vector<uint8_t> seen(40 * 50);
  EXPECT_OK(gpumem_copy(instance_, seen.data(), destination.device(), seen.size(), nullptr, why()));
  const std::vector<uint8_t> expected = pattern(40 * 60, 1);
  for (uint64_t row = 0; row < 40; ++row)
    ASSERT_EQ(std::memcmp(&seen[row * 50], &expected[row * 60], 50), 0) << row;
}

// Only its first and last page are looked at when it is found.
TEST_F(Conformance, str_21_during_call_of_memory_with_a_hole) {
  const gpumem_copy_options options = ordered(GPUMEM_SOURCE_ORDER_DURING_CALL);
  Pages pages(3 * page_size());
  ASSERT_EQ(mprotect(pages.get() + page_size(), page_size(), PROT_NONE), 0);
  const Memory destination = alloc_device(device_, pages.size());
  const Stream stream = create_stream(device_);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_copy_async(stream, destination.device(), pages.get(), pages.size(), &options, why()));
  // Rows on either side of it can be read.
  EXPECT_OK(gpumem_copy_2d_async(stream, destination.device(), 100, pages.get(), 2 * page_size(), 100, 2,
                                 &options, why()));
  stream.synchronize();
}

// The host backend reads at the call although the stream is held; a driver may wait until it is not.
TEST_F(Conformance, str_21_during_call_of_a_held_stream) {
  if (!on_host()) SKIP_RULE("a driver may wait for a held stream before it reads the source");
  const gpumem_copy_options options = ordered(GPUMEM_SOURCE_ORDER_DURING_CALL);
  const Memory destination = alloc_device(device_, kSize);
  const Memory source = alloc_pinned(device_, kSize);
  fill_pattern(source.host(), kSize, 1);
  GatedStream held(device_);
  EXPECT_OK(gpumem_copy_async(held, destination.device(), source.host(), kSize, &options, why()));
  fill_pattern(source.host(), kSize, 2);
  held.finish();
  EXPECT_TRUE(holds_pattern(instance_, destination.device(), kSize, 1));
}

// What the library cannot know on cuda, the host backend in strict mode refuses.
TEST_F(Conformance, str_21_a_source_that_pending_work_writes) {
  if (!on_host()) SKIP_RULE("the driver does not tell what pending work writes");
  const Memory destination = alloc_device(device_, kSize);
  const Memory pinned = alloc_pinned(device_, kSize);
  std::vector<uint8_t> ordinary(kSize, 1);
  uint8_t* const source = pinned.host();
  for (const gpumem_source_order order : {GPUMEM_SOURCE_ORDER_DURING_CALL, GPUMEM_SOURCE_ORDER_ANY}) {
    const gpumem_copy_options options = ordered(order);
    GatedStream held(device_);
    const auto copy = [&](const uint8_t* from, uint64_t size) {
      return gpumem_copy_async(held, destination.device(), from, size, &options, why());
    };
    // Rows of 10 bytes, 20 bytes apart; a word; and what is copied to ordinary memory.
    EXPECT_OK(gpumem_fill_2d_async(held, source + 100, 20, 10, 5, 7, 1, why()));
    EXPECT_OK(gpumem_stream_write_value(held, source + 512, 7, 8, why()));
    EXPECT_OK(gpumem_copy_async(held, ordinary.data(), destination.device(), 64, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(source + 189, 5));
    EXPECT_NE(std::strstr(last_error().message, "GPUMEM_SOURCE_ORDER_STREAM"), nullptr)
        << last_error().message;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(source, 101));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(source + 519, 1));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, copy(ordinary.data() + 63, 2));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_copy_2d_async(held, destination.device(), 20,
                                                                   source + 90, 20, 11, 3, &options, why()));
    EXPECT_OK(copy(source, 100));
    EXPECT_OK(copy(source + 190, 322));
    EXPECT_OK(copy(ordinary.data() + 64, 10));
    // Between the rows.
    EXPECT_OK(gpumem_copy_2d_async(held, destination.device(), 10, source + 90, 20, 10, 6, &options, why()));
    EXPECT_OK(gpumem_copy_async(held, destination.device(), source, kSize, nullptr, why()));
    held.finish();
    EXPECT_OK(gpumem_copy_async(held, destination.device(), source, kSize, &options, why()));
    gpumem_stream_synchronize(held, GPUMEM_TIMEOUT_INFINITE, nullptr);
  }
}

TEST_F(Conformance, str_21_unknown_order) {
  const Memory memory = alloc_pinned(device_, 100);
  fill_pattern(memory.host(), 100, 1);
  const Stream stream = create_stream(device_);
  for (const gpumem_source_order order : {-1, 3, INT32_MAX}) {
    const gpumem_copy_options options = ordered(order);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_copy_async(stream, memory.host(), memory.host() + 50, 50, &options, why()));
    EXPECT_STATUS(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        gpumem_copy_2d(instance_, memory.host(), 10, memory.host() + 50, 10, 10, 5, &options, why()));
  }
  EXPECT_OK(gpumem_stream_query(stream, why()));
  EXPECT_TRUE(has_pattern(memory.host(), 100, 1));
}

}  // namespace
}  // namespace conformance
