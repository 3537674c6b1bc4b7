// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams that are being captured into a graph: what becomes a node, and what is refused (STR-20). On host
// nobody launches the graph.
#include <atomic>
#include <cstring>
#include <vector>

#include "captured.h"
#include "operands.h"

namespace conformance {
namespace {

constexpr uint64_t kSize = 10'000;

class Capture : public Conformance {
 protected:
  // Launches the graph so often, and checks after each time.
  template <class Check>
  void launch(Captured& stream, int times, Check check) {
    for (int number = 1; number <= times; ++number) {
      stream.launch();
      if (!on_host()) check(number);
    }
  }
};

bool all(const uint8_t* bytes, uint64_t size, int value) {
  return std::count(bytes, bytes + size, static_cast<uint8_t>(value)) == static_cast<std::ptrdiff_t>(size);
}

TEST_F(Capture, str_20_copies_and_fills_become_nodes) {
  REQUIRE_FOREIGN();
  const Memory source = alloc_pinned(device_, kSize);
  const Memory middle = alloc_device(device_, kSize);
  const Memory target = alloc_pinned(device_, kSize);
  std::memset(source.host(), 1, kSize);
  std::memset(target.host(), 0, kSize);
  Captured stream(device_);
  stream.begin();
  EXPECT_OK(gpumem_fill_async(stream, middle.device(), kSize, 0x55, 1, why()));
  EXPECT_OK(gpumem_copy_async(stream, middle.device(), source.host(), kSize - 4, nullptr, why()));
  EXPECT_OK(gpumem_copy_2d_async(stream, target.host(), 100, middle.device(), 100, 50, 20, nullptr, why()));
  EXPECT_OK(gpumem_fill_2d_async(stream, target.host() + 50, 100, 50, 20, 7, 1, why()));
  gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
  region.destination.memory = target;
  region.destination.offset = 2'000;
  region.source.memory = middle;
  region.source.offset = 2'000;
  region.width = kSize - 2'000;
  EXPECT_OK(gpumem_copy_regions_async(stream, &region, 1, nullptr, why()));
  EXPECT_TRUE(all(target.host(), kSize, 0));
  EXPECT_EQ(stream.end(), on_host() ? 0u : 5u);
  EXPECT_TRUE(all(target.host(), kSize, 0));  // nothing has run
  launch(stream, 3, [&](int number) {
    for (uint64_t row = 0; row < 20; ++row) {
      EXPECT_TRUE(all(target.host() + 100 * row, 50, number));
      EXPECT_TRUE(all(target.host() + 100 * row + 50, 50, 7));
    }
    EXPECT_TRUE(all(target.host() + 2'000, kSize - 2'004, number));
    EXPECT_TRUE(all(target.host() + kSize - 4, 4, 0x55));
    std::memset(source.host(), number + 1, kSize);
    std::memset(target.host(), 0, kSize);
  });
}

TEST_F(Capture, str_20_a_graph_reads_ordinary_memory_at_each_launch) {
  REQUIRE_FOREIGN();
  constexpr uint64_t kLarge = 12 << 20;  // outside of a capture threads of the library copy it
  std::vector<uint8_t> source(kLarge, 1);
  std::vector<uint8_t> target(kLarge, 0);
  const Memory middle = alloc_device(device_, kLarge);
  Captured stream(device_);
  stream.begin();
  EXPECT_OK(gpumem_copy_async(stream, middle.device(), source.data(), kLarge, nullptr, why()));
  EXPECT_OK(gpumem_copy_async(stream, target.data(), middle.device(), kLarge, nullptr, why()));
  EXPECT_EQ(stream.end(), on_host() ? 0u : 2u);
  EXPECT_TRUE(all(target.data(), kLarge, 0));
  launch(stream, 2, [&](int number) {
    EXPECT_TRUE(all(target.data(), kLarge, number));
    std::fill(source.begin(), source.end(), static_cast<uint8_t>(number + 1));
  });
}

TEST_F(Capture, str_20_many_small_copies_become_nodes) {
  REQUIRE_FOREIGN();
  constexpr uint64_t kPieces = 40;
  constexpr uint64_t kPiece = 64;
  const Memory source = alloc_pinned(device_, 2 * kPieces * kPiece);
  const Memory target = alloc_pinned(device_, 2 * kPieces * kPiece);
  fill_pattern(source.host(), 2 * kPieces * kPiece, 3);
  std::memset(target.host(), 0, 2 * kPieces * kPiece);
  std::vector<gpumem_copy_region> regions(kPieces, GPUMEM_COPY_REGION_INIT);
  for (uint64_t i = 0; i < kPieces; ++i) {
    regions[i].destination.memory = target;
    regions[i].source.memory = source;
    regions[i].destination.offset = regions[i].source.offset = 2 * i * kPiece;
    regions[i].width = kPiece;
  }
  Captured stream(device_);
  stream.begin();
  EXPECT_OK(gpumem_copy_regions_async(stream, regions.data(), regions.size(), nullptr, why()));
  const size_t nodes = stream.end();
  EXPECT_EQ(nodes != 0, !on_host());
  EXPECT_TRUE(all(target.host(), 2 * kPieces * kPiece, 0));
  launch(stream, 1, [&](int) {
    for (uint64_t i = 0; i < kPieces; ++i) {
      EXPECT_EQ(std::memcmp(target.host() + 2 * i * kPiece, source.host() + 2 * i * kPiece, kPiece), 0);
      EXPECT_TRUE(all(target.host() + (2 * i + 1) * kPiece, kPiece, 0));
    }
  });
}

TEST_F(Capture, str_20_words_become_nodes) {
  REQUIRE_FOREIGN();
  if (capability(device_, GPUMEM_CAPABILITY_STREAM_VALUE32).value == GPUMEM_ANSWER_NO)
    SKIP_RULE("the device has no value writes");
  const Memory words = alloc_pinned(device_, 8);
  std::memset(words.host(), 0, 8);
  Captured stream(device_);
  stream.begin();
  EXPECT_OK(gpumem_stream_wait_value(stream, words.host() + 4, 0, 4, GPUMEM_WAIT_EQ, why()));
  EXPECT_OK(gpumem_stream_write_value(stream, words.host(), 9, 4, why()));
  EXPECT_EQ(stream.end() != 0, !on_host());
  EXPECT_EQ(words.host()[0], 0);
  launch(stream, 2, [&](int) {
    EXPECT_EQ(words.host()[0], 9);
    words.host()[0] = 0;
  });
}

struct Calls {
  std::atomic<int> number{0};
  gpumem_instance instance = nullptr;
  std::atomic<gpumem_status> inside{GPUMEM_SUCCESS};
};

void count(void* user_data) {
  auto& calls = *static_cast<Calls*>(user_data);
  ++calls.number;
  gpumem_device device = nullptr;
  void* pointer = nullptr;
  if (gpumem_device_get(calls.instance, 0, &device, nullptr) == GPUMEM_SUCCESS)
    calls.inside = gpumem_malloc(device, GPUMEM_KIND_PINNED, 64, &pointer, nullptr);
}

TEST_F(Capture, str_20_a_host_function_runs_at_each_launch) {
  REQUIRE_FOREIGN();
  Calls calls;
  calls.instance = instance_;
  Captured stream(device_);
  stream.begin();
  EXPECT_OK(gpumem_stream_launch_host_function(stream, count, &calls, why()));
  EXPECT_EQ(stream.end(), on_host() ? 0u : 1u);
  EXPECT_EQ(calls.number, 0);
  launch(stream, 3, [&](int number) {
    EXPECT_EQ(calls.number, number);
    EXPECT_EQ(calls.inside, GPUMEM_ERROR_INVALID_STATE);  // as in every host function (STR-9)
  });
  stream.forget();
  // A graph that is never launched ends the function too, which a leak check sees.
  stream.begin();
  EXPECT_OK(gpumem_stream_launch_host_function(stream, count, &calls, why()));
  stream.end();
  EXPECT_EQ(calls.number, on_host() ? 0 : 3);
}

TEST_F(Capture, str_20_events_bring_streams_into_a_capture_and_back) {
  REQUIRE_FOREIGN();
  const Memory memory = alloc_pinned(device_, kSize);
  const Memory other = alloc_device(device_, kSize);
  std::memset(memory.host(), 0, kSize);
  const Event fork = create_event(device_);
  const Event join = create_event(device_);
  const Stream second = create_stream(device_);
  Captured stream(device_);
  const uint64_t number = stream.begin();
  EXPECT_OK(gpumem_fill_async(stream, other.device(), kSize, 4, 1, why()));
  EXPECT_OK(gpumem_event_record(fork, stream, why()));
  EXPECT_OK(gpumem_stream_wait_event(second, fork, why()));
  uint64_t joined = 0;
  EXPECT_OK(gpumem_stream_get_capture_id(second, &joined, why()));
  EXPECT_EQ(joined, number);
  EXPECT_OK(gpumem_copy_async(second, memory.host(), other.device(), kSize, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_stream_query(second, why()));
  EXPECT_OK(gpumem_event_record(join, second, why()));
  EXPECT_OK(gpumem_stream_wait_event(stream, join, why()));
  EXPECT_EQ(stream.end(), on_host() ? 0u : 2u);
  EXPECT_OK(gpumem_stream_get_capture_id(second, &joined, why()));
  EXPECT_EQ(joined, 0u);
  EXPECT_TRUE(all(memory.host(), kSize, 0));
  launch(stream, 1, [&](int) { EXPECT_TRUE(all(memory.host(), kSize, 4)); });

  // Both events stand for nodes, until they are recorded anew.
  for (const Event* event : {&fork, &join}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_event_query(*event, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                  gpumem_event_synchronize(*event, GPUMEM_TIMEOUT_INFINITE, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_stream_wait_event(second, *event, why()));
    EXPECT_OK(gpumem_event_record(*event, second, why()));
    EXPECT_OK(gpumem_event_synchronize(*event, GPUMEM_TIMEOUT_INFINITE, why()));
  }
  // The stream is as it was.
  EXPECT_OK(gpumem_fill_async(second, memory.host(), kSize, 5, 1, why()));
  second.synchronize();
  EXPECT_TRUE(all(memory.host(), kSize, 5));
}

TEST_F(Capture, str_20_what_no_graph_can_hold_is_refused_and_the_capture_stays_whole) {
  REQUIRE_FOREIGN();
  const Memory pinned = alloc_pinned(device_, kSize);
  const Memory memory = alloc_device(device_, kSize);
  std::vector<uint8_t> ordinary(kSize);
  const Stream outside = create_stream(device_);
  const Event recorded = create_event(device_);
  const Event captured = create_event(device_);
  const Event never = create_event(device_);
  EXPECT_OK(gpumem_event_record(recorded, outside, why()));
  outside.synchronize();
  Captured stream(device_);
  stream.begin();
  EXPECT_OK(gpumem_event_record(captured, stream, why()));
  EXPECT_OK(gpumem_stream_wait_event(stream, never, why()));  // nothing to wait for

  const auto refused = [&](gpumem_status status, const char* text) {
    EXPECT_EQ(status, GPUMEM_ERROR_INVALID_STATE) << last_error().message;
    EXPECT_NE(std::strstr(last_error().message, text), nullptr) << last_error().message;
  };
  gpumem_copy_options now = GPUMEM_COPY_OPTIONS_INIT;
  now.source_order = GPUMEM_SOURCE_ORDER_DURING_CALL;
  refused(gpumem_copy_async(stream, memory.device(), pinned.host(), kSize, &now, why()), "at each launch");
  gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
  region.destination.memory = memory;
  region.source.memory = pinned;
  region.width = kSize;
  region.source_order = GPUMEM_SOURCE_ORDER_DURING_CALL;
  refused(gpumem_copy_regions_async(stream, &region, 1, nullptr, why()), "at each launch");
  if (!on_host()) {
    refused(gpumem_fill_async(stream, ordinary.data(), kSize, 1, 1, why()), "only the CPU");
    if (const gpumem_device second = second_device(); second != nullptr) {
      const Memory far = alloc_device(second, kSize);
      refused(gpumem_fill_async(stream, far.device(), kSize, 1, 1, why()), "the device that has the memory");
    }
  }
  refused(gpumem_stream_wait_event(stream, recorded, why()), "outside of that capture");
  refused(gpumem_event_query(captured, why()), "last recorded in a capture");
  refused(gpumem_event_synchronize(captured, 0, why()), "last recorded in a capture");
  int64_t elapsed = 0;
  refused(gpumem_event_get_elapsed_time(recorded, captured, &elapsed, why()), "last recorded in a capture");
  refused(gpumem_stream_query(stream, why()), "cannot hold this");
  refused(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()), "cannot hold this");
  if (capability(device_, GPUMEM_CAPABILITY_SHARE_EVENTS).value != GPUMEM_ANSWER_NO) {
    const Event shared = create_event(device_, GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING);
    refused(gpumem_event_record(shared, stream, why()), "processes share");
  }
  EXPECT_OK(gpumem_fill_async(stream, pinned.host(), kSize, 3, 1, why()));
  EXPECT_EQ(stream.end(), on_host() ? 0u : 1u);
  launch(stream, 1, [&](int) { EXPECT_TRUE(all(pinned.host(), kSize, 3)); });
}

TEST_F(Capture, str_20_two_captures_do_not_mix) {
  REQUIRE_FOREIGN();
  const Event event = create_event(device_);
  Captured first(device_);
  Captured second(device_);
  const uint64_t one = first.begin(2);
  const uint64_t two = second.begin(2);
  EXPECT_NE(one, two);
  EXPECT_OK(gpumem_event_record(event, first, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_stream_wait_event(second, event, why()));
  EXPECT_OK(gpumem_stream_wait_event(first, event, why()));
  second.end();
  first.end();
}

}  // namespace
}  // namespace conformance
