// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Batches of many small copies, which a device may carry out together (STR-19).
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "operands.h"
#include "pools.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMany = 400;  // more than one launch of a kernel takes

// Pieces of all sizes, at odd and at even places, with a gap behind each.
struct Layout {
  struct Place {
    uint64_t to;
    uint64_t from;
    uint64_t width;
  };
  std::vector<Place> places;
  uint64_t size = 0;

  explicit Layout(uint64_t count, uint64_t largest) {
    std::mt19937 random(static_cast<unsigned>(count));
    const uint64_t sizes[] = {1, 4, 12, 16, 100, 1000, 1024, largest - 1, largest};
    uint64_t to = 0;
    uint64_t from = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t unit = uint64_t{1} << random() % 5;  // 16 at most, of which both sides are multiples
      to = (to + 16) / unit * unit;
      from = (from + 32) / unit * unit;
      const uint64_t width = sizes[random() % std::size(sizes)];
      places.push_back({to, from, width});
      to += width;
      from += width;
    }
    size = std::max(to, from) + 1;
    std::shuffle(places.begin(), places.end(), random);
  }

  std::vector<gpumem_copy_region> regions(uint8_t* destination, uint8_t* source) const {
    std::vector<gpumem_copy_region> all(places.size(), GPUMEM_COPY_REGION_INIT);
    for (size_t i = 0; i < places.size(); ++i) {
      all[i].destination.pointer = destination + places[i].to;
      all[i].source.pointer = source + places[i].from;
      all[i].width = places[i].width;
    }
    return all;
  }
  // What is in a destination of zeros once `count` regions are copied.
  std::vector<uint8_t> result(const std::vector<uint8_t>& source, uint64_t count) const {
    std::vector<uint8_t> bytes(size);
    for (uint64_t i = 0; i < count; ++i)
      std::memcpy(&bytes[places[i].to], &source[places[i].from], places[i].width);
    return bytes;
  }
};

std::vector<uint8_t> bytes_of(gpumem_instance instance, const uint8_t* address, uint64_t size) {
  std::vector<uint8_t> bytes(size);
  EXPECT_OK(gpumem_copy(instance, bytes.data(), address, size, nullptr, why()));
  return bytes;
}

class Pieces : public Conformance {};

TEST_F(Pieces, str_19_between_all_kinds) {
  const Layout layout(kMany, 5000);
  const std::vector<uint8_t> sent = pattern(layout.size, 3);
  const Operands sources(device_, second_device(), layout.size);
  const Operands destinations(device_, second_device(), layout.size);
  const Stream stream = create_stream(device_);
  size_t turn = 0;
  for (const Operand& source : sources.all()) {
    if (source.cpu != nullptr) {
      std::memcpy(source.cpu, sent.data(), layout.size);
    } else {
      ASSERT_OK(gpumem_copy(instance_, source.address, sent.data(), layout.size, nullptr, why()));
    }
    size_t pair = turn++;
    for (const Operand& destination : destinations.all()) {
      if (!destination.writable) continue;
      SCOPED_TRACE(source.name + " to " + destination.name);
      const bool streamed = pair++ % 2 == 0;
      for (const gpumem_stream where : {gpumem_stream{}, stream.get()}) {
        // With a sanitizer by turns, so that each source and each destination meets both.
        if (kSanitized && streamed != (where != nullptr)) continue;
        ASSERT_OK(gpumem_fill(instance_, destination.address, layout.size, 0, 1, why()));
        const auto regions = layout.regions(destination.address, source.address);
        uint64_t failed = 77;
        ASSERT_OK(copy_regions_on(instance_, where, regions.data(), regions.size(), &failed, why()));
        stream.synchronize();
        EXPECT_EQ(failed, 77u);
        EXPECT_EQ(bytes_of(instance_, destination.address, layout.size), layout.result(sent, kMany));
      }
    }
  }
}

TEST_F(Pieces, str_19_blocks_of_pools) {
  const Layout layout(kMany, 70 * kKiB);  // among them what is too large to be carried out together
  const std::vector<uint8_t> sent = pattern(layout.size, 4);
  const Stream stream = create_stream(device_);
  const Pool device = create_pool(device_);
  const Pool pinned = create_pool(device_, GPUMEM_KIND_PINNED);
  const std::pair<gpumem_pool, gpumem_pool> ways[] = {{device, device}, {device, pinned}, {pinned, device}};
  for (const auto& [to, from] : ways) {
    auto* const destination = static_cast<uint8_t*>(take(to, layout.size, stream));
    auto* const source = static_cast<uint8_t*>(take(from, layout.size, stream));
    ASSERT_OK(gpumem_copy_async(stream, source, sent.data(), layout.size, nullptr, why()));
    ASSERT_OK(gpumem_fill_async(stream, destination, layout.size, 0, 1, why()));
    const auto regions = layout.regions(destination, source);
    ASSERT_OK(gpumem_copy_regions_async(stream, regions.data(), regions.size(), nullptr, why()));
    std::vector<uint8_t> seen(layout.size);
    ASSERT_OK(gpumem_copy_async(stream, seen.data(), destination, layout.size, nullptr, why()));
    stream.synchronize();
    EXPECT_EQ(seen, layout.result(sent, kMany));
    give(to, destination, stream);
    give(from, source, stream);
  }
}

// Behind the work that the stream has, and before what comes next.
TEST_F(Pieces, str_19_in_stream_order) {
  const Layout layout(kMany, 4000);
  const Memory source = alloc_pinned(device_, layout.size);
  const Memory middle = alloc_device(device_, layout.size);
  const Memory destination = alloc_pinned(device_, layout.size);
  GatedStream stream(device_);
  const auto in = layout.regions(middle.device(), source.host());
  ASSERT_OK(gpumem_fill_async(stream, source.host(), layout.size, 7, 1, why()));
  ASSERT_OK(gpumem_fill_async(stream, middle.device(), layout.size, 0, 1, why()));
  ASSERT_OK(gpumem_copy_regions_async(stream, in.data(), in.size(), nullptr, why()));
  ASSERT_OK(gpumem_copy_async(stream, destination.host(), middle.device(), layout.size, nullptr, why()));
  std::memset(source.host(), 1, layout.size);
  std::memset(destination.host(), 1, layout.size);
  EXPECT_EQ(destination.host()[0], 1);
  stream.finish();
  const std::vector<uint8_t> seen(destination.host(), destination.host() + layout.size);
  EXPECT_EQ(seen, layout.result(std::vector<uint8_t>(layout.size, 7), kMany));
}

// Sources that may change as soon as the call has returned. A driver waits before it takes hundreds of those
// in a stream that is held.
TEST_F(Pieces, str_19_read_during_the_call) {
  constexpr uint64_t kSome = 30;
  const Layout layout(kSome, 1000);
  const std::vector<uint8_t> sent = pattern(layout.size, 10);
  const Memory source = alloc_pinned(device_, layout.size);
  std::memcpy(source.host(), sent.data(), layout.size);
  const Memory destination = alloc_device(device_, layout.size);
  ASSERT_OK(gpumem_fill(instance_, destination.device(), layout.size, 0, 1, why()));
  auto regions = layout.regions(destination.device(), source.host());
  for (gpumem_copy_region& region : regions)
    region.source_order = GPUMEM_SOURCE_ORDER_DURING_CALL;
  GatedStream stream(device_);
  ASSERT_OK(gpumem_copy_regions_async(stream, regions.data(), regions.size(), nullptr, why()));
  std::memset(source.host(), 1, layout.size);
  stream.finish();
  EXPECT_EQ(bytes_of(instance_, destination.device(), layout.size), layout.result(sent, kSome));
}

// In turns to one and to the other, and in halves.
TEST_F(Pieces, str_19_two_devices_in_one_batch) {
  gpumem_device const other = second_device();
  if (other == nullptr) SKIP_RULE("there is one device");
  const Layout layout(kMany, 1000);
  const std::vector<uint8_t> sent = pattern(layout.size, 11);
  const Memory source = alloc_pinned(device_, layout.size, GPUMEM_MEMORY_PORTABLE);
  std::memcpy(source.host(), sent.data(), layout.size);
  const Memory here = alloc_device(device_, layout.size);
  const Memory there = alloc_device(other, layout.size);
  const auto first = layout.regions(here.device(), source.host());
  const auto second = layout.regions(there.device(), source.host());
  for (const bool in_turns : {true, false}) {
    for (const Memory* const memory : {&here, &there}) {
      ASSERT_OK(gpumem_fill(instance_, memory->device(), layout.size, 0, 1, why()));
    }
    std::vector<gpumem_copy_region> regions;
    if (in_turns) {
      for (size_t i = 0; i < kMany; ++i) {
        regions.push_back(first[i]);
        regions.push_back(second[i]);
      }
    } else {
      regions = first;
      regions.insert(regions.end(), second.begin(), second.end());
    }
    ASSERT_OK(gpumem_copy_regions(instance_, regions.data(), regions.size(), nullptr, why()));
    for (const Memory* const memory : {&here, &there})
      EXPECT_EQ(bytes_of(instance_, memory->device(), layout.size), layout.result(sent, kMany));
  }
}

TEST_F(Pieces, str_19_by_many_threads_at_once) {
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < 6; ++number) {
    threads.emplace_back([&, number] {
      const Layout layout(200 + number, 2000);
      const std::vector<uint8_t> sent = pattern(layout.size, number + 1);
      const Memory source = alloc_device(device_, layout.size);
      const Memory destination = alloc_device(device_, layout.size);
      const Stream stream = create_stream(device_);
      ASSERT_OK(gpumem_copy(instance_, source.device(), sent.data(), layout.size, nullptr, why()));
      for (int round = 0; round < 3; ++round) {
        ASSERT_OK(gpumem_fill(instance_, destination.device(), layout.size, 0, 1, why()));
        const auto regions = layout.regions(destination.device(), source.device());
        ASSERT_OK(copy_regions_on(instance_, round == 0 ? nullptr : stream.get(), regions.data(),
                                  regions.size(), nullptr, why()));
        stream.synchronize();
        EXPECT_EQ(bytes_of(instance_, destination.device(), layout.size), layout.result(sent, 200 + number));
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

// Those before the one that failed are copied, and no later one.
TEST_F(Pieces, str_19_each_step_fails_once) {
  if (!Faults::available()) SKIP_RULE("only the host backend and the fake driver fail at will");
  const Layout layout(kMany, 2000);
  const std::vector<uint8_t> sent = pattern(layout.size, 5);
  const Memory source = alloc_pinned(device_, layout.size);
  std::memcpy(source.host(), sent.data(), layout.size);
  const Memory destination = alloc_device(device_, layout.size);
  const Stream stream = create_stream(device_);
  const auto regions = layout.regions(destination.device(), source.host());
  uint64_t failures = 0;
  for (uint64_t k = 1; k <= 30; k += k < 12 ? 1 : 7) {
    SCOPED_TRACE(k);
    ASSERT_OK(gpumem_fill(instance_, destination.device(), layout.size, 0, 1, why()));
    Faults faults(instance_);
    faults.fail_step(k);
    uint64_t failed = 77'777;
    const gpumem_status status =
        gpumem_copy_regions_async(stream, regions.data(), regions.size(), &failed, why());
    const std::string message = last_error().message;
    faults.off();
    stream.synchronize();
    uint64_t copied = kMany;
    if (GPUMEM_FAILED(status)) {
      ++failures;
      ASSERT_LT(failed, kMany);
      const std::string name = "regions[" + std::to_string(failed) + "]";
      EXPECT_EQ(message.rfind(name, 0), 0u) << message;
      copied = failed;
    } else {
      EXPECT_EQ(failed, 77'777u);
    }
    EXPECT_EQ(bytes_of(instance_, destination.device(), layout.size), layout.result(sent, copied));
  }
  EXPECT_GT(failures, 1u);
}

// The calls of the driver that a batch takes.
uint64_t calls_of_batch(gpumem_instance instance, gpumem_device device) {
  const Layout layout(kMany, 1000);
  const Memory source = alloc_pinned(device, layout.size);
  const Memory destination = alloc_device(device, layout.size);
  const auto regions = layout.regions(destination.device(), source.host());
  const uint64_t before = driver_calls();
  EXPECT_OK(gpumem_copy_regions(instance, regions.data(), regions.size(), nullptr, why()));
  return driver_calls() - before;
}

TEST_F(Pieces, str_19_what_serves_a_batch_is_tried) {
  const gpumem_capability_info info = capability(device_, GPUMEM_CAPABILITY_COPY_BATCH);
  EXPECT_STREQ(info.name, "copy.batch");
  EXPECT_EQ(info.type, GPUMEM_ANSWER_TYPE_TRI);
  if (on_host() || on_fake_cuda()) {
    EXPECT_EQ(info.value, uint64_t{GPUMEM_ANSWER_YES}) << info.reason;
  }
  EXPECT_EQ(info.source, on_host() ? GPUMEM_ANSWER_FROM_CONTRACT : GPUMEM_ANSWER_FROM_TRIAL);
  const uint64_t calls = calls_of_batch(instance_, device_);
  if (on_fake_cuda()) {
    EXPECT_LT(calls, kMany / 10);
  }
}

// A kernel, the driver's batch, or neither.
CHILD(str_19_older_driver) {
  const std::string version = child_arguments().at(0);
  const bool kernel = child_arguments().at(1) == "kernel";
  const Instance instance = open_instance();
  const bool served = kernel || version == "12.8" || version == "13.0";
  const gpumem_capability_info info = capability(instance.device(), GPUMEM_CAPABILITY_COPY_BATCH);
  EXPECT_EQ(info.value, served ? uint64_t{GPUMEM_ANSWER_YES} : uint64_t{GPUMEM_ANSWER_EMULATED})
      << info.reason;
  EXPECT_STATUS(GPUMEM_SUCCESS, info.status);
  EXPECT_EQ(info.source, served ? GPUMEM_ANSWER_FROM_TRIAL : GPUMEM_ANSWER_FROM_ATTRIBUTE);
  const uint64_t calls = calls_of_batch(instance, instance.device());
  EXPECT_EQ(calls < kMany / 10, served) << calls;
}

TEST_F(Pieces, str_19_older_drivers) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver has versions to choose");
  for (const std::string version : {"11.2", "12.8", "13.0"}) {
    const std::string chosen = "FAKE_CUDA_VERSION=" + version;
    SCOPED_TRACE(version);
    const ProcessResult kernel = run_child("str_19_older_driver", {chosen}, {version, "kernel"});
    EXPECT_TRUE(kernel.ok()) << kernel;
    const ProcessResult none = run_child(
        "str_19_older_driver", {chosen, "FAKE_CUDA_FAIL=cuModuleLoadData:1:always:221"},  // no compiler
        {version, "none"});
    EXPECT_TRUE(none.ok()) << none;
  }
}

// Instances of one process share it, whichever of them ends first.
TEST_F(Pieces, str_19_two_instances) {
  const Layout layout(kMany, 300);
  const std::vector<uint8_t> sent = pattern(layout.size, 9);
  std::optional<Instance> first = open_instance();
  const Instance second = open_instance();
  first.reset();
  const Memory source = alloc_pinned(second.device(), layout.size);
  std::memcpy(source.host(), sent.data(), layout.size);
  const Memory destination = alloc_device(second.device(), layout.size);
  const auto regions = layout.regions(destination.device(), source.host());
  ASSERT_OK(gpumem_fill(second, destination.device(), layout.size, 0, 1, why()));
  ASSERT_OK(gpumem_copy_regions(second, regions.data(), regions.size(), nullptr, why()));
  EXPECT_EQ(bytes_of(second, destination.device(), layout.size), layout.result(sent, kMany));
}

}  // namespace
}  // namespace conformance
