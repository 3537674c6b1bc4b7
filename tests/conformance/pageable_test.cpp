// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Large copies between ordinary memory and a device, which threads of the library make on cuda: content at
// every border of pieces and rows, order with streams (STR-1, STR-7, STR-8, STR-21), and what the threads
// meet.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

#include "closing.h"
#include "harness.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kLeast = 8 * kMiB;  // smaller copies are the driver's
constexpr uint32_t kThreads = 3;
constexpr int kIllegalAddress = 700;  // of the driver, whose device is lost then

class Pageable : public Conformance {
 public:
  static Instance open_with(uint32_t threads, uint64_t bytes = 0, uint64_t budget = 0) {
    return open_instance([=](gpumem_instance_desc& desc, gpumem_host_options&) {
      desc.transfer_threads = threads;
      desc.transfer_bytes = bytes;
      desc.pin_budget = budget;
    });
  }
  // From ordinary memory to the device and back, and nothing around it changes.
  static void round_trip(gpumem_instance instance, gpumem_stream stream, uint8_t* device, uint8_t* ours,
                         uint8_t* back, uint64_t size, uint32_t seed) {
    fill_pattern(ours, size, seed);
    back[-1] = back[size] = 0xC3;
    ASSERT_OK(copy_on(instance, stream, device, ours, size, nullptr, why()));
    if (stream != nullptr && on_cuda()) std::memset(ours, 0, size);  // read by now, as the driver does it
    ASSERT_OK(copy_on(instance, stream, back, device, size, nullptr, why()));
    if (stream != nullptr) {
      ASSERT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    }
    EXPECT_TRUE(has_pattern(back, size, seed)) << size;
    EXPECT_EQ(back[-1], 0xC3);
    EXPECT_EQ(back[size], 0xC3);
  }
};

TEST_F(Pageable, str_7_sizes_around_every_border) {
  constexpr uint64_t kPiece = 256 * kKiB;
  constexpr uint64_t kSlot = 2 * kMiB;
  const Instance instance = open_with(kThreads);
  const uint64_t most = 2 * kThreads * kSlot + 3 * kSlot + 1;
  const Memory device = alloc_device(instance.device(), most);
  const Pages ours(most + 8192);
  const Pages back(most + 8192);
  uint32_t seed = 0;
  for (const uint64_t size :
       {kLeast - 1, kLeast, kLeast + 1, kLeast + 5 * kPiece, kLeast + 5 * kPiece - 1, kLeast + 6 * kPiece + 1,
        4 * kSlot, 5 * kSlot - 1, 5 * kSlot + 4097, 2 * kThreads * kSlot, 2 * kThreads * kSlot + 1, most}) {
    round_trip(instance, nullptr, device.device(), ours.get(), back.get() + 64, size, ++seed);
  }
  const Stream stream = create_stream(instance.device());
  for (const uint64_t size : {kLeast - 1, kLeast, kLeast + 1, 2 * kThreads * kSlot + 1})
    round_trip(instance, stream, device.device(), ours.get(), back.get() + 64, size, ++seed);
}

TEST_F(Pageable, str_7_every_alignment) {
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = kLeast + 4097;
  const Memory device = alloc_device(instance.device(), kSize + 64);
  const Pages ours(kSize + 8192);
  const Pages back(kSize + 8192);
  for (uint64_t offset = 1; offset < 64; offset += 6) {
    round_trip(instance, nullptr, device.device() + (offset * 7) % 64, ours.get() + offset,
               back.get() + 1 + (offset * 5) % 64, kSize, static_cast<uint32_t>(offset));
  }
}

// Rows of both sides have gaps, which stay as they are.
TEST_F(Pageable, str_7_rectangles_and_boxes) {
  const Instance instance = open_with(kThreads);
  struct Shape {
    uint64_t width, height, depth, gap, slice_gap;
  };
  for (const Shape shape :
       {Shape{5 * kMiB + 5, 2, 1, 11, 0}, Shape{1000, 9000, 1, 24, 0}, Shape{96, kLeast / 64, 1, 1, 0},
        Shape{4096, 2100, 1, 0, 0}, Shape{700, 2000, 7, 13, 999}, Shape{3 * kMiB, 1, 3, 0, 77}}) {
    if (kThreadSanitizer && shape.width < 4096) continue;  // narrow rows have the same threads
    for (const bool gaps_on_device : {true, false}) {
      if (kSanitized && gaps_on_device != (shape.gap > 12)) continue;  // each shape with one of them
      SCOPED_TRACE(std::to_string(shape.width) + " " + std::to_string(gaps_on_device));
      const uint64_t wide = shape.width + shape.gap;
      const uint64_t there = gaps_on_device ? wide : shape.width;
      const uint64_t here = gaps_on_device ? shape.width : wide;
      const uint64_t there_slice = there * shape.height + (gaps_on_device ? shape.slice_gap : 0);
      const uint64_t here_slice = here * shape.height + (gaps_on_device ? 0 : shape.slice_gap);
      const Memory device = alloc_device(instance.device(), there_slice * shape.depth);
      std::vector<uint8_t> ours(here_slice * shape.depth);
      std::vector<uint8_t> back(ours.size(), 0x77);
      fill_pattern(ours.data(), ours.size(), 5);
      ASSERT_OK(gpumem_fill(instance, device.device(), device.size(), 0x11, 1, why()));
      const auto move = [&](bool to_device) {
        gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
        const gpumem_copy_operand far{nullptr, 0, device.device(), there, there_slice};
        const gpumem_copy_operand near{nullptr, 0, to_device ? ours.data() : back.data(), here, here_slice};
        region.destination = to_device ? far : near;
        region.source = to_device ? near : far;
        region.width = shape.width;
        region.height = shape.height;
        region.depth = shape.depth;
        return gpumem_copy_regions(instance, &region, 1, nullptr, why());
      };
      ASSERT_OK(move(true));
      ASSERT_OK(move(false));
      std::vector<uint8_t> expected(ours.size(), 0x77);
      for (uint64_t slice = 0; slice < shape.depth; ++slice) {
        for (uint64_t row = 0; row < shape.height; ++row) {
          const uint64_t at = slice * here_slice + row * here;
          std::memcpy(&expected[at], &ours[at], shape.width);
        }
      }
      EXPECT_TRUE(back == expected);
      // The gaps on the device.
      std::vector<uint8_t> all(device.size());
      ASSERT_OK(gpumem_copy(instance, all.data(), device.device(), all.size(), nullptr, why()));
      bool kept = true;
      for (uint64_t slice = 0; slice < shape.depth; ++slice) {
        const uint8_t* row = &all[slice * there_slice];
        for (uint64_t i = 0; i < shape.height; ++i, row += there)
          kept = kept && all_are(row + shape.width, there - shape.width, 0x11);
        kept = kept && all_are(row, there_slice - there * shape.height, 0x11);
      }
      EXPECT_TRUE(kept);
    }
  }
}

TEST_F(Pageable, str_8_nothing_is_copied_behind_work_that_failed) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver says that work has failed when it is told to");
  const Instance instance = open_with(kThreads);
  const Memory device = alloc_device(instance.device(), kLeast);
  const Pages ours(kLeast);
  const Stream stream = create_stream(instance.device());
  std::memset(ours.get(), 0x33, kLeast);
  EXPECT_OK(gpumem_fill(instance, device.device(), kLeast, 0x22, 1, why()));
  constexpr int kNotPermitted = 800;  // CUDA_ERROR_NOT_PERMITTED, which leaves the device as it is
  Faults::fail_driver_call("cuStreamSynchronize", kNotPermitted);
  EXPECT_STATUS(GPUMEM_ERROR_PERMISSION_DENIED,
                gpumem_copy_async(stream, device.device(), ours.get(), kLeast, nullptr, why()));
  EXPECT_EQ(last_error().native_code, kNotPermitted);
  EXPECT_TRUE(holds_only(instance, device.device(), kLeast, 0x22));
}

// The copy comes after earlier work of its stream and before later work, in both directions.
TEST_F(Pageable, str_8_order_with_the_stream) {
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = 9 * kMiB + 17;
  const Memory device = alloc_device(instance.device(), kSize);
  std::vector<uint8_t> ours(kSize);
  fill_pattern(ours.data(), kSize, 9);
  for (const gpumem_source_order order :
       {GPUMEM_SOURCE_ORDER_STREAM, GPUMEM_SOURCE_ORDER_DURING_CALL, GPUMEM_SOURCE_ORDER_ANY}) {
    SCOPED_TRACE(order);
    gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
    options.source_order = order;
    ASSERT_OK(gpumem_fill(instance, device.device(), kSize, 0, 1, why()));
    GatedStream held(instance.device());
    EXPECT_OK(gpumem_fill_async(held, device.device(), kSize, 0x55, 1, why()));
    // The call may wait for the work before it.
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      held.open();
    });
    EXPECT_OK(gpumem_copy_async(held, device.device(), ours.data(), kSize, &options, why()));
    EXPECT_OK(gpumem_fill_async(held, device.device() + kSize - 5, 5, 0x66, 1, why()));
    opener.join();
    held.finish();
    std::vector<uint8_t> result(kSize);
    ASSERT_OK(gpumem_copy(instance, result.data(), device.device(), kSize, nullptr, why()));
    EXPECT_TRUE(has_pattern(result.data(), kSize - 5, 9));
    EXPECT_EQ(result[kSize - 5], 0x66);
    EXPECT_EQ(result[kSize - 1], 0x66);
  }
  std::vector<uint8_t> result(kSize);
  GatedStream held(instance.device());
  EXPECT_OK(gpumem_fill_async(held, device.device(), kSize, 0x71, 1, why()));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    held.open();
  });
  EXPECT_OK(gpumem_copy_async(held, result.data(), device.device(), kSize, nullptr, why()));
  EXPECT_OK(gpumem_fill_async(held, device.device(), kSize, 0x72, 1, why()));
  opener.join();
  held.finish();
  EXPECT_EQ(std::count(result.begin(), result.end(), 0x71), static_cast<ptrdiff_t>(kSize));
}

// A copy that waits for its stream holds up no copy of another thread.
TEST_F(Pageable, str_8_held_streams_hold_nobody_else) {
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = 8 * kMiB;
  const Memory device = alloc_device(instance.device(), 5 * kSize);
  std::vector<uint8_t> ours(kSize);
  fill_pattern(ours.data(), kSize, 2);
  std::vector<std::unique_ptr<GatedStream>> held;
  std::vector<std::thread> waiting;
  for (uint64_t i = 0; i < 4; ++i)
    held.push_back(std::make_unique<GatedStream>(instance.device()));
  for (uint64_t i = 0; i < 4; ++i) {
    waiting.emplace_back([&, i] {
      EXPECT_OK(gpumem_copy_async(*held[i], device.device() + i * kSize, ours.data(), kSize, nullptr, why()));
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::vector<uint8_t> result(kSize);
  EXPECT_OK(gpumem_copy(instance, device.device() + 4 * kSize, ours.data(), kSize, nullptr, why()));
  EXPECT_OK(gpumem_copy(instance, result.data(), device.device() + 4 * kSize, kSize, nullptr, why()));
  EXPECT_TRUE(has_pattern(result.data(), kSize, 2));
  for (const auto& stream : held)
    stream->open();
  for (std::thread& thread : waiting)
    thread.join();
  for (uint64_t i = 0; i < 4; ++i) {
    held[i]->finish();
    EXPECT_TRUE(holds_pattern(instance, device.device() + i * kSize, kSize, 2));
  }
}

TEST_F(Pageable, str_7_many_threads_at_once) {
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = 8 * kMiB + 100;
  constexpr uint32_t kCopiers = 5;
  const Memory device = alloc_device(instance.device(), kCopiers * kSize);
  std::vector<std::thread> crew;
  for (uint32_t i = 0; i < kCopiers; ++i) {
    crew.emplace_back([&, i] {
      std::vector<uint8_t> ours(kSize + 2);
      std::vector<uint8_t> back(kSize + 2);
      for (uint32_t round = 0; round < 8; ++round) {
        round_trip(instance, nullptr, device.device() + i * kSize, ours.data() + 1, back.data() + 1, kSize,
                   100 * i + round);
      }
    });
  }
  for (std::thread& thread : crew)
    thread.join();
}

// The instance closes while copies run: each of them is whole or refused.
TEST_F(Pageable, com_24_copies_while_it_closes) {
  for (int round = 0; round < 5; ++round) {
    const gpumem_instance instance = open_with(kThreads).release();
    gpumem_device device = nullptr;
    ASSERT_OK(gpumem_device_get(instance, 0, &device, why()));
    void* memory = nullptr;
    constexpr uint64_t kSize = 8 * kMiB;
    ASSERT_OK(gpumem_malloc(device, GPUMEM_KIND_DEVICE, kSize, &memory, why()));
    const std::vector<uint8_t> ours(kSize, 1);
    close_amid(instance, [&] { return gpumem_copy(instance, memory, ours.data(), kSize, nullptr, nullptr); });
  }
}

// Threads and page-locked memory are gone with the instance.
TEST_F(Pageable, com_22_nothing_is_left) {
  const Snapshot before = Snapshot::take();
  {
    const Instance instance = open_with(kThreads);
    const Memory device = alloc_device(instance.device(), kLeast);
    std::vector<uint8_t> ours(kLeast + 2);
    std::vector<uint8_t> back(kLeast + 2);
    round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kLeast, 1);
  }
  EXPECT_TRUE(nothing_left_since(before));
}

TEST_F(Pageable, com_25_forked_after_use) {
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = 8 * kMiB;
  const Memory device = alloc_device(instance.device(), kSize);
  std::vector<uint8_t> ours(kSize + 2);
  std::vector<uint8_t> back(kSize + 2);
  round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 1);
  uint8_t* const there = device.device();
  EXPECT_CHILD_OK(in_forked_child([&] {
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_copy(instance, there, ours.data(), kSize, nullptr, why()));
  }));
  round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 2);
}

// Again and again while threads copy: the child's calls are refused and it ends, the parent's copies are
// whole.
TEST_F(Pageable, com_25_forked_during_copies) {
  if (kSanitized) SKIP_RULE("a sanitizer's allocator does not survive a fork beside threads");
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = 8 * kMiB + 9;
  constexpr uint32_t kCopiers = 2;
  const Memory device = alloc_device(instance.device(), kCopiers * kSize);
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> rounds{0};
  std::vector<std::thread> crew;
  for (uint32_t i = 0; i < kCopiers; ++i) {
    crew.emplace_back([&, i] {
      std::vector<uint8_t> ours(kSize + 2);
      std::vector<uint8_t> back(kSize + 2);
      do {
        round_trip(instance, nullptr, device.device() + i * kSize, ours.data() + 1, back.data() + 1, kSize,
                   ++rounds);
      } while (!stop);
    });
  }
  uint8_t* const there = device.device();
  std::vector<uint8_t> some(kSize);
  for (uint32_t fork = 0; fork < 6; ++fork) {
    for (const uint32_t seen = rounds; rounds == seen;)
      std::this_thread::yield();
    EXPECT_CHILD_OK(in_forked_child([&] {
      EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_copy(instance, there, some.data(), kSize, nullptr, why()));
      EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why()));
    }));
  }
  stop = true;
  for (std::thread& thread : crew)
    thread.join();
}

// The n-th copy of a piece, and all after it, find the device lost.
TEST_F(Pageable, com_18_lost_in_the_middle) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver loses a device at a given call");
  constexpr uint64_t kSize = kLeast + 5;
  std::vector<uint8_t> ours(kSize + 2);
  std::vector<uint8_t> back(kSize + 2);
  for (const bool to_device : {true, false}) {
    uint64_t lost = 0;
    for (uint64_t k = 1; k == lost + 1; ++k) {
      SCOPED_TRACE(std::to_string(to_device) + " " + std::to_string(k));
      const Instance instance = open_with(kThreads);
      const Memory device = alloc_device(instance.device(), kSize);
      round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 1);
      Faults faults(instance);
      Faults::fail_driver_calls("cuMemcpyAsync", kIllegalAddress, k, 1000);
      const auto copy = [&] {
        return to_device ? gpumem_copy(instance, device.device(), ours.data(), kSize, nullptr, why())
                         : gpumem_copy(instance, back.data(), device.device(), kSize, nullptr, why());
      };
      const gpumem_status status = copy();
      faults.off();
      if (status == GPUMEM_SUCCESS) break;  // it has fewer pieces
      EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, status);
      EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, copy());
      lost = k;
    }
    EXPECT_GE(lost, 4u);
  }
}

// Without a single new thread: the user already has as many processes as it may.
CHILD(copies_without_threads) {
  const Instance instance = Pageable::open_with(kThreads);
  constexpr uint64_t kSize = kLeast + 4097;
  const Memory device = alloc_device(instance.device(), kSize);
  const Stream stream = create_stream(instance.device());
  std::vector<uint8_t> ours(kSize + 2);
  std::vector<uint8_t> back(kSize + 2);
  // What the driver starts by itself is there.
  Pageable::round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, 100, 1);
  Pageable::round_trip(instance, stream, device.device(), ours.data() + 1, back.data() + 1, 100, 1);
  // The limit does not bind root. Only this thread changes, so that it is the one that cannot start others.
  if (geteuid() == 0 && syscall(SYS_setresuid, 54321, 54321, 54321) != 0) skip_child("it stays root");
  const rlimit none{0, 0};
  ASSERT_EQ(setrlimit(RLIMIT_NPROC, &none), 0);
  bool started = true;
  try {
    std::thread([] {}).join();
  } catch (const std::system_error&) {
    started = false;
  }
  if (started) skip_child("the limit does not bind this user");
  Pageable::round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 2);
  Pageable::round_trip(instance, stream, device.device(), ours.data() + 1, back.data() + 1, kSize, 3);
}

TEST_F(Pageable, str_7_no_thread_can_be_started) {
  // A leak checker cannot look into a process that has become another user's.
  EXPECT_CHILD_OK(run_child("copies_without_threads", {"LSAN_OPTIONS=detect_leaks=0"}));
}

// Sizes, alignments and pitches at random, from a seed that stays the same.
TEST_F(Pageable, str_7_at_random) {
  constexpr uint32_t kSeed = 20261129;
  std::mt19937 random(kSeed);
  const auto up_to = [&](uint64_t most) { return random() % (most + 1); };
  const Instance instance = open_with(kThreads);
  const Stream stream = create_stream(instance.device());
  constexpr uint64_t kMost = 16 * kMiB;
  const Memory device = alloc_device(instance.device(), kMost + 4096);
  const Pages ours(kMost + 8192);
  const Pages back(kMost + 8192);
  for (uint32_t round = 0; round < (kSanitized ? 3 : 12); ++round) {
    const uint64_t size = kLeast + up_to(kMost - kLeast);
    const uint64_t there = up_to(4096);
    const uint64_t here = up_to(4096);
    const uint64_t to = 1 + up_to(4096);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round) + ": " +
                 std::to_string(size) + " bytes at " + std::to_string(there) + ", " + std::to_string(here) +
                 " and " + std::to_string(to));
    round_trip(instance, round % 3 == 0 ? static_cast<gpumem_stream>(stream) : nullptr,
               device.device() + there, ours.get() + here, back.get() + to, size, round);
  }
  for (uint32_t round = 0; round < (kSanitized ? 3 : 12); ++round) {
    const uint64_t width = 1 + up_to(round % 3 == 0 ? 3 * kMiB : 20'000);
    const uint64_t pitches[] = {width + up_to(300), width + up_to(300)};  // on the device, of ordinary memory
    const uint64_t height = kMost / std::max(pitches[0], pitches[1]);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round) + ": " +
                 std::to_string(width) + " bytes of " + std::to_string(pitches[0]) + " and " +
                 std::to_string(pitches[1]) + ", " + std::to_string(height) + " rows");
    const uint64_t all = height * pitches[1];
    fill_pattern(ours.get(), all, round);
    std::memset(back.get(), 0x77, all);
    ASSERT_OK(gpumem_copy_2d(instance, device.device(), pitches[0], ours.get(), pitches[1], width, height,
                             nullptr, why()));
    ASSERT_OK(gpumem_copy_2d(instance, back.get(), pitches[1], device.device(), pitches[0], width, height,
                             nullptr, why()));
    bool right = true;
    for (uint64_t row = 0; row < height; ++row) {
      const uint64_t at = row * pitches[1];
      right = right && std::memcmp(back.get() + at, ours.get() + at, width) == 0 &&
              all_are(back.get() + at + width, pitches[1] - width, 0x77);
    }
    EXPECT_TRUE(right);
  }
}

// With a budget that leaves no room, the driver copies; and what is kept for copies is freed for others.
TEST_F(Pageable, pin_17_copies_take_what_the_budget_leaves) {
  constexpr uint64_t kSize = 8 * kMiB;
  std::vector<uint8_t> ours(kSize + 2);
  std::vector<uint8_t> back(kSize + 2);
  for (const uint64_t budget : {kMiB, 6 * kMiB, 64 * kMiB}) {
    const Instance instance = open_with(kThreads, 0, budget);
    const Memory device = alloc_device(instance.device(), kSize);
    round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 3);
    const Memory all = alloc_pinned(instance.device(), budget);
    round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 4);
  }
}

TEST_F(Pageable, str_7_settings) {
  constexpr uint64_t kSize = 9 * kMiB + 3;
  std::vector<uint8_t> ours(kSize + 2);
  std::vector<uint8_t> back(kSize + 2);
  for (const uint32_t threads :
       {uint32_t{0}, uint32_t{1}, uint32_t{2}, uint32_t{64}, uint32_t{GPUMEM_TRANSFER_OFF}}) {
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, kMiB, 5 * kMiB}) {
      SCOPED_TRACE(std::to_string(threads) + " threads, " + std::to_string(bytes) + " bytes");
      const Instance instance = open_with(threads, bytes);
      const Memory device = alloc_device(instance.device(), kSize);
      round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, threads + 1);
    }
  }
}

// A page in the middle that the CPU may not use: the copy fails, and the next one works.
TEST_F(Pageable, str_7_a_hole_in_ordinary_memory) {
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = 8 * kMiB;
  const Memory device = alloc_device(instance.device(), kSize);
  const Pages pages(kSize);
  ASSERT_EQ(mprotect(pages.get() + 5 * kMiB, page_size(), PROT_NONE), 0);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_copy(instance, device.device(), pages.get(), kSize, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_copy(instance, pages.get(), device.device(), kSize, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_fill(instance, pages.get(), kSize, 7, 1, why()));
  const Stream stream = create_stream(instance.device());
  gpumem_status filled = gpumem_fill_async(stream, pages.get(), kSize, 7, 1, why());
  if (filled == GPUMEM_SUCCESS) filled = gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why());
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, filled);
  ASSERT_EQ(mprotect(pages.get() + 5 * kMiB, page_size(), PROT_READ), 0);
  EXPECT_OK(gpumem_copy(instance, device.device(), pages.get(), kSize, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_copy(instance, pages.get(), device.device(), kSize, nullptr, why()));
  ASSERT_EQ(mprotect(pages.get() + 5 * kMiB, page_size(), PROT_READ | PROT_WRITE), 0);
  std::vector<uint8_t> back(kSize + 2);
  round_trip(instance, nullptr, device.device(), pages.get(), back.data() + 1, kSize, 8);
}

// A mapped file is ordinary memory, with what the program has changed in a private mapping. Where the file
// has become shorter, the copy fails, and nobody gets a SIGBUS.
TEST_F(Pageable, str_7_a_mapped_file) {
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = kLeast + 5;
  const Memory device = alloc_device(instance.device(), kSize);
  const int file = memfd_create("mapped", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  std::vector<uint8_t> content(kSize);
  fill_pattern(content.data(), kSize, 4);
  ASSERT_EQ(write(file, content.data(), kSize), static_cast<ssize_t>(kSize));
  const auto map = [&](int sharing) {
    return static_cast<uint8_t*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, sharing, file, 0));
  };
  uint8_t* const changed = map(MAP_PRIVATE);
  uint8_t* const shared = map(MAP_SHARED);
  ASSERT_NE(changed, MAP_FAILED);
  ASSERT_NE(shared, MAP_FAILED);
  content[3 * kMiB] = changed[3 * kMiB] = 0x5B;
  EXPECT_OK(gpumem_copy(instance, device.device(), changed, kSize, nullptr, why()));
  EXPECT_OK(gpumem_copy(instance, shared, device.device(), kSize, nullptr, why()));
  std::vector<uint8_t> now(kSize);
  EXPECT_EQ(pread(file, now.data(), kSize, 0), static_cast<ssize_t>(kSize));
  EXPECT_EQ(now, content);
  ASSERT_EQ(ftruncate(file, 5 * kMiB), 0);
  for (uint8_t* const there : {changed, shared}) {
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                  gpumem_copy(instance, device.device(), there, kSize, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                  gpumem_copy(instance, there, device.device(), kSize, nullptr, why()));
    munmap(there, kSize);
  }
  close(file);
}

TEST_F(Pageable, com_28_copies_beside_a_capture) {
  REQUIRE_FOREIGN();
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kSize = 8 * kMiB;
  const Memory device = alloc_device(instance.device(), kSize);
  std::vector<uint8_t> ours(kSize + 2);
  std::vector<uint8_t> back(kSize + 2);
  if (on_host()) SKIP_RULE("a native stream of the host backend belongs to one instance");
  NativeStream native(device_);
  gpumem_stream handle = nullptr;
  ASSERT_OK(gpumem_stream_wrap(device_, native.get(), &handle, why()));
  const Stream adopted(handle);
  native.begin_capture(adopted);
  round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 1);
  const Stream stream = create_stream(instance.device());
  round_trip(instance, stream, device.device(), ours.data() + 1, back.data() + 1, kSize, 2);
  native.end_capture(adopted);  // and the capture is whole
}

// Each call of the driver that a copy makes fails once: the copy fails with that, or another way was found,
// and the next one is whole.
TEST_F(Pageable, com_8_each_call_fails_once) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver fails at will");
  constexpr uint64_t kSize = 8 * kMiB;
  std::vector<uint8_t> ours(kSize + 2);
  std::vector<uint8_t> back(kSize + 2);
  const std::vector<uint8_t> filled(kSize, 0x2E);
  for (const bool warm : {true, false}) {
    for (const bool to_device : {true, false}) {
      uint64_t failed = 0;
      for (uint64_t k = 1; k < 60; k += kThreadSanitizer ? 10 : kSanitized ? 7 : k < 30 ? 1 : 7) {
        const Instance instance = open_with(kThreads);
        const Memory device = alloc_device(instance.device(), kSize);
        if (warm) round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 1);
        fill_pattern(ours.data() + 1, kSize, 2);
        ASSERT_OK(gpumem_fill(instance, device.device(), kSize, 0x2E, 1, why()));
        Faults faults(instance);
        faults.fail_step(k);
        const gpumem_status status =
            to_device ? gpumem_copy(instance, device.device(), ours.data() + 1, kSize, nullptr, why())
                      : gpumem_copy(instance, back.data() + 1, device.device(), kSize, nullptr, why());
        faults.off();
        if (GPUMEM_FAILED(status)) {
          ++failed;
          EXPECT_NE(last_error().message[0], '\0');
        } else if (to_device) {
          EXPECT_TRUE(holds_pattern(instance, device.device(), kSize, 2)) << k;
        } else {
          EXPECT_EQ(std::memcmp(back.data() + 1, filled.data(), kSize), 0) << k;
        }
        round_trip(instance, nullptr, device.device(), ours.data() + 1, back.data() + 1, kSize, 3);
      }
      EXPECT_GT(failed, 0u);
    }
  }
}

// A batch of runs that lie side by side on both sides, and one that does not.
TEST_F(Pageable, str_19_neighbours_are_one_copy) {
  const Instance instance = open_with(kThreads);
  constexpr uint64_t kRun = 256 * kKiB;
  constexpr uint64_t kRuns = 40;
  const Memory device = alloc_device(instance.device(), (kRuns + 1) * kRun);
  ASSERT_OK(gpumem_fill(instance, device.device(), device.size(), 0, 1, why()));
  std::vector<uint8_t> ours(kRuns * kRun);
  fill_pattern(ours.data(), ours.size(), 4);
  for (const bool on_stream : {false, true}) {
    const Stream stream = create_stream(instance.device());
    for (const bool reversed : {false, true}) {
      std::vector<gpumem_copy_region> regions(kRuns, GPUMEM_COPY_REGION_INIT);
      for (uint64_t i = 0; i < kRuns; ++i) {
        const uint64_t which = reversed ? kRuns - 1 - i : i;
        regions[i].source.pointer = ours.data() + which * kRun;
        regions[i].destination.memory = device;
        // A gap before the last one.
        regions[i].destination.offset = which * kRun + (which == kRuns - 1 ? kRun : 0);
        regions[i].width = kRun;
      }
      ASSERT_OK(copy_regions_on(instance, on_stream ? static_cast<gpumem_stream>(stream) : nullptr,
                                regions.data(), kRuns, nullptr, why()));
      stream.synchronize();
      std::vector<uint8_t> back((kRuns + 1) * kRun);
      ASSERT_OK(gpumem_copy(instance, back.data(), device.device(), back.size(), nullptr, why()));
      EXPECT_TRUE(std::equal(ours.begin(), ours.end() - kRun, back.begin()));
      EXPECT_TRUE(std::equal(ours.end() - kRun, ours.end(), back.end() - kRun));
      EXPECT_EQ(std::count(back.end() - 2 * kRun, back.end() - kRun, 0), static_cast<ptrdiff_t>(kRun));
      ASSERT_OK(gpumem_fill(instance, device.device(), device.size(), 0, 1, why()));
    }
  }
}

}  // namespace
}  // namespace conformance
