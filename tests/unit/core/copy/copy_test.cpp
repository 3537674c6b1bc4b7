// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The planner of copies and fills, over a backend that writes down what it is told to enqueue: splitting at
// borders, staging, routing, and what happens when a step fails.
#include "core/copy/copy.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/arithmetic.h"
#include "core/instance/instance.h"
#include "core/memory/page_map.h"
#include "core/memory/range.h"
#include "core/memory/region.h"
#include "core/object/destroy.h"
#include "core/object/held.h"
#include "stub_stream.h"

namespace gpumem::core {
namespace {

using test::unused;

// What a segment of a copy or fill covers, by offsets in the memory of either side.
struct Seen {
  uint64_t to;
  uint64_t from;
  uint64_t width;
  uint64_t height;
  bool operator==(const Seen&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Seen& seen) {
  return out << "{" << seen.to << ", " << seen.from << ", " << seen.width << ", " << seen.height << "}";
}

// What all streams of the backend were told, in order.
struct Record {
  std::vector<std::string> calls;
  std::vector<Seen> segments;
  std::vector<backend::CopySegment> copies;
  std::vector<backend::FillSegment> fills;
  std::vector<unsigned char> staged;  // what the sources held that are not of a memory
  backend::FillWay way = backend::FillWay::kEnqueue;
  uint64_t fail_segment = 0;  // from 1
  bool fail_wait = false;     // the next one
  std::function<backend::PointerFacts(const void*)> pointer_facts = [](const void*) {
    return backend::PointerFacts();
  };
  void* reserved = nullptr;
  std::function<void()> during_release = [] {};
};

class RecordingEvent final : public backend::Event {
 public:
  explicit RecordingEvent(Record& record) : record_(record) {}
  void* native() const override { return nullptr; }
  Result<void> record(backend::Stream&) override {
    record_.calls.push_back("record");
    return {};
  }
  Result<bool> query() override { return true; }
  Result<bool> synchronize(uint64_t) override { return true; }
  Result<std::optional<int64_t>> elapsed_since(backend::Event&) override { return unused(); }
  Result<void> release() override {
    record_.calls.push_back("release event");
    return {};
  }

 private:
  Record& record_;
};

class RecordingStream final : public test::StubStream {
 public:
  explicit RecordingStream(Record& record) : record_(record) {}

  const void* cpu_view(const backend::Span& span) override { return span.on_device ? nullptr : span.address; }
  Result<void> copy(const backend::CopySegment& segment) override {
    GPUMEM_TRY(take_segment());
    record_.calls.push_back("copy");
    record_.copies.push_back(segment);
    record_.segments.push_back(
        {segment.destination.offset, segment.source.offset, segment.width, segment.height});
    if (segment.source.memory == nullptr) {
      for (uint64_t row = 0; row < segment.height; ++row) {
        const auto* const first =
            static_cast<const unsigned char*>(segment.source.address) + row * segment.source_pitch;
        record_.staged.insert(record_.staged.end(), first, first + segment.width);
      }
    }
    return {};
  }
  backend::FillWay way_of_fill(const backend::Span&) override { return record_.way; }
  Result<void> fill(const backend::FillSegment& segment) override {
    GPUMEM_TRY(take_segment());
    record_.calls.push_back("fill");
    record_.fills.push_back(segment);
    record_.segments.push_back({segment.destination.offset, 0, segment.width, segment.height});
    return {};
  }
  Result<void> wait_event(backend::Event&) override {
    record_.calls.push_back("wait");
    return {};
  }
  Result<void> launch_host_function(gpumem_host_function function, void* user_data, bool internal) override {
    record_.calls.push_back(internal ? "launch" : "launch for user");
    pending_.emplace_back(function, user_data);
    return {};
  }
  Result<bool> synchronize(uint64_t) override {
    record_.calls.push_back("synchronize");
    for (const auto& [function, user_data] : std::exchange(pending_, {}))
      function(user_data);
    if (std::exchange(record_.fail_wait, false)) return make_error(GPUMEM_ERROR_BUSY, "as the test wants");
    return true;
  }
  Result<void> release() override {
    record_.calls.push_back("release stream");
    return {};
  }

 private:
  Result<void> take_segment() {
    if (record_.segments.size() + 1 != record_.fail_segment) return {};
    return make_error(GPUMEM_ERROR_BUSY, "as the test wants");
  }

  Record& record_;
  std::vector<std::pair<gpumem_host_function, void*>> pending_;
};

// Addresses whose release tells the test.
class ToldReservation final : public backend::Reservation {
 public:
  ToldReservation(Record& record, uint64_t size) : record_(record) {
    facts_.device_pointer = record.reserved;
    facts_.granted_size = size;
  }
  Result<void> map(uint64_t, std::span<backend::Physical* const>) override { return unused(); }
  Result<void> unmap(uint64_t, uint64_t, backend::Device&) override { return unused(); }
  Result<void> set_access(std::span<const backend::AccessPart>,
                          std::span<const backend::AccessChange>) override {
    return unused();
  }
  Result<std::unique_ptr<backend::Physical>> retain(uint64_t, const backend::PhysicalFacts&) override {
    return unused();
  }
  Result<void> release() override {
    record_.during_release();
    return {};
  }

 private:
  Record& record_;
};

class RecordingAddresses final : public backend::VirtualMemory {
 public:
  explicit RecordingAddresses(Record& record) : record_(record) {}
  Result<backend::Granularity> granularity(const backend::PhysicalRequest&) override {
    return backend::Granularity{4096, 4096};
  }
  Result<std::unique_ptr<backend::Physical>> create(const backend::PhysicalRequest&) override {
    return unused();
  }
  Result<std::unique_ptr<backend::Physical>> import_fd(const backend::PhysicalRequest&, int) override {
    return unused();
  }
  Result<std::unique_ptr<backend::Reservation>> reserve(const backend::ReservationRequest& request) override {
    return {std::make_unique<ToldReservation>(record_, request.size)};
  }

 private:
  Record& record_;
};

class RecordingDevice final : public backend::Device {
 public:
  explicit RecordingDevice(Record& record) : record_(record), addresses_(record) { facts_.pitch_max = 5000; }

  Result<backend::MemoryAvailable> memory_available() override { return unused(); }
  Result<void> synchronize() override { return unused(); }
  Result<std::unique_ptr<backend::Memory>> create_memory(const backend::MemoryRequest&) override {
    return unused();
  }
  Result<std::unique_ptr<backend::Memory>> register_memory(const backend::RegistrationRequest&) override {
    return unused();
  }
  Result<std::shared_ptr<backend::Stream>> create_stream(int32_t) override {
    return {std::make_shared<RecordingStream>(record_)};
  }
  Result<std::shared_ptr<backend::Stream>> wrap_stream(void*) override { return unused(); }
  Result<void> await_released_streams() override { return {}; }
  Result<std::shared_ptr<backend::Event>> create_event(gpumem_event_flags) override {
    return {std::make_shared<RecordingEvent>(record_)};
  }
  Result<std::shared_ptr<backend::Event>> wrap_event(void*, gpumem_event_flags) override { return unused(); }
  Result<void*> foreign_device_pointer(const void*) override { return unused(); }
  Result<bool> can_access_peer(backend::Device&) override { return unused(); }
  Result<bool> enable_peer_access(backend::Device&) override { return unused(); }
  Result<void> disable_peer_access(backend::Device&) override { return unused(); }
  backend::Capability capability(gpumem_capability capability, backend::Device*) override {
    backend::Capability answer;
    if (capability == GPUMEM_CAPABILITY_VMM_DEVICE) answer.value = GPUMEM_ANSWER_YES;
    return answer;
  }
  backend::VirtualMemory* vmm() override { return &addresses_; }

 private:
  Record& record_;
  RecordingAddresses addresses_;
};

class RecordingBackend final : public backend::Backend {
 public:
  explicit RecordingBackend(Record& record) : record_(record) {
    devices_.push_back(std::make_unique<RecordingDevice>(record));
  }

  gpumem_backend kind() const override { return GPUMEM_BACKEND_HOST; }
  int32_t driver_version() const override { return 0; }
  bool strict() const override { return false; }
  const std::vector<std::unique_ptr<backend::Device>>& devices() const override { return devices_; }
  bool has_numa_node(int32_t) const override { return false; }
  Result<backend::PointerFacts> pointer_facts(const void* pointer) override {
    return record_.pointer_facts(pointer);
  }

 private:
  Record& record_;
  std::vector<std::unique_ptr<backend::Device>> devices_;
};

// Bytes in pieces of one size, as registrations have them.
class Pieces final : public backend::Memory {
 public:
  Pieces(void* bytes, uint64_t size, uint64_t piece, bool on_device) : piece_(piece) {
    (on_device ? facts_.device_pointer : facts_.host_pointer) = bytes;
    facts_.granted_size = size;
  }
  uint64_t contiguous(uint64_t offset) const override { return piece_ - offset % piece_; }
  Result<void> release() override { return {}; }

 private:
  const uint64_t piece_;
};

// A region over bytes of the test.
class TestRegion final : public Region {
 public:
  // Its own bytes, or those at `given`.
  TestRegion(const std::shared_ptr<Instance>& instance, const KindTraits& kind, uint64_t size, uint64_t piece,
             void* given = nullptr)
      : Region(Type::kMemory, instance, instance->devices()[0], kind, size, {}),
        bytes_(size),
        map_(instance->page_map()) {
    PageMap::Room room(map_);
    EXPECT_TRUE(room.reserve(2));
    void* const bytes = given != nullptr ? given : bytes_.data();
    record(map_, std::make_unique<Pieces>(bytes, size, piece, kind.on_device));
    set_state(State::kLive);
  }
  ~TestRegion() override { erase(map_); }

  unsigned char* at(uint64_t offset) { return bytes_.data() + offset; }
  std::vector<unsigned char>& bytes() { return bytes_; }

 private:
  std::vector<unsigned char> bytes_;
  PageMap& map_;
};

class Planner : public testing::Test {
 protected:
  static constexpr uint64_t kWhole = 1 << 20;

  Planner() : instance_(open(record_)), plain_(instance_, kinds::pinned, kWhole, kWhole) {}

  static std::shared_ptr<Instance> open(Record& record) {
    auto instance =
        std::make_shared<Instance>(OpenRequest(), std::make_unique<RecordingBackend>(record), Fallback());
    EXPECT_TRUE(instance->page_map().open());
    return instance;
  }

  // A side that begins `offset` bytes inside a region.
  static CopySide side(TestRegion& region, uint64_t offset, uint64_t pitch = 0, uint64_t slice_pitch = 0) {
    CopySide result;
    result.address = region.at(offset);
    result.pitch = pitch;
    result.slice_pitch = slice_pitch;
    return result;
  }
  static void set_extent(CopySide& side, const CopyArguments& box) {
    if (side.pitch == 0) side.pitch = box.width;
    side.extent = (box.depth - 1) * side.slice_pitch + (box.height - 1) * side.pitch + box.width;
  }
  Result<void> plan(CopySide destination, CopySide source, uint64_t width, uint64_t height = 1,
                    uint64_t depth = 1, gpumem_source_order order = GPUMEM_SOURCE_ORDER_STREAM) {
    CopyArguments arguments;
    arguments.width = width;
    arguments.height = height;
    arguments.depth = depth;
    arguments.source_order = order;
    set_extent(destination, arguments);
    set_extent(source, arguments);
    arguments.destination = std::move(destination);
    arguments.source = std::move(source);
    return copy(*instance_, nullptr, arguments);
  }
  Result<void> plan_fill(void* destination, uint64_t width, uint64_t height = 1, uint64_t pitch = 0,
                         uint32_t value = 0x11223344, uint32_t value_size = 4) {
    FillArguments arguments;
    arguments.destination = destination;
    arguments.width = width;
    arguments.height = height;
    arguments.pitch = pitch == 0 ? width : pitch;
    arguments.extent = (height - 1) * arguments.pitch + width;
    arguments.value = value;
    arguments.value_size = value_size;
    return fill(*instance_, nullptr, arguments);
  }

  std::vector<Seen> segments() { return std::exchange(record_.segments, {}); }
  std::vector<std::string> calls() { return std::exchange(record_.calls, {}); }

  Record record_;
  std::shared_ptr<Instance> instance_;
  TestRegion plain_;  // in one piece
};

using Segments = std::vector<Seen>;
using Calls = std::vector<std::string>;

// ---- splitting ----

TEST_F(Planner, OneSegmentWhereNothingIsInTheWay) {
  TestRegion pieces(instance_, kinds::registered, 64 * 1024, 4096);
  ASSERT_TRUE(plan(side(plain_, 5), side(plain_, 100000), 1000));
  EXPECT_EQ(segments(), (Segments{{5, 100000, 1000, 1}}));
  ASSERT_TRUE(plan(side(plain_, 0, 128), side(plain_, 100000, 100), 100, 7));
  EXPECT_EQ(segments(), (Segments{{0, 100000, 100, 7}}));
  ASSERT_TRUE(plan(side(pieces, 96), side(plain_, 0), 4000));
  EXPECT_EQ(segments(), (Segments{{96, 0, 4000, 1}}));
}

TEST_F(Planner, ARowIsCutAtEveryBorderOfBothSides) {
  TestRegion large(instance_, kinds::registered, 10000, 1000);
  TestRegion small(instance_, kinds::registered, 10000, 300);
  ASSERT_TRUE(plan(side(large, 900), side(small, 0), 800));
  EXPECT_EQ(segments(),
            (Segments{{900, 0, 100, 1}, {1000, 100, 200, 1}, {1200, 300, 300, 1}, {1500, 600, 200, 1}}));
  ASSERT_TRUE(plan(side(small, 0), side(large, 900), 800));
  EXPECT_EQ(segments(),
            (Segments{{0, 900, 100, 1}, {100, 1000, 200, 1}, {300, 1200, 300, 1}, {600, 1500, 200, 1}}));
  for (const backend::CopySegment& copy : record_.copies) {
    const bool to_large = copy.destination.memory == &large.backend();
    EXPECT_EQ(copy.destination.address, (to_large ? large : small).at(copy.destination.offset));
    EXPECT_EQ(copy.source.address, (to_large ? small : large).at(copy.source.offset));
    EXPECT_TRUE(copy.destination.registered);
    EXPECT_FALSE(copy.destination.on_device);
  }
}

TEST_F(Planner, RowsGoTogetherUpToTheBorder) {
  // Rows of 60 bytes begin at 0, 100, 200, ...; the piece ends at 250, within the third.
  TestRegion pieces(instance_, kinds::registered, 1000, 250);
  ASSERT_TRUE(plan(side(pieces, 0, 100), side(plain_, 0, 60), 60, 5));
  EXPECT_EQ(segments(), (Segments{{0, 0, 60, 2}, {200, 120, 50, 1}, {250, 170, 10, 1}, {300, 180, 60, 2}}));
}

TEST_F(Planner, ARowThatEndsAtTheBorderIsWhole) {
  TestRegion pieces(instance_, kinds::registered, 1000, 260);
  ASSERT_TRUE(plan(side(pieces, 0, 100), side(plain_, 0, 60), 60, 4));
  EXPECT_EQ(segments(), (Segments{{0, 0, 60, 3}, {300, 180, 60, 1}}));
}

TEST_F(Planner, RowsWithoutGapsAreOneRow) {
  ASSERT_TRUE(plan(side(plain_, 0), side(plain_, 100000), 100, 7));
  EXPECT_EQ(segments(), (Segments{{0, 100000, 700, 1}}));
  ASSERT_TRUE(plan(side(plain_, 0, 100, 700), side(plain_, 100000, 100, 700), 100, 7, 3));
  EXPECT_EQ(segments(), (Segments{{0, 100000, 2100, 1}}));
  // Not where the other side has gaps.
  ASSERT_TRUE(plan(side(plain_, 0, 101), side(plain_, 100000), 100, 7));
  EXPECT_EQ(segments(), (Segments{{0, 100000, 100, 7}}));
}

TEST_F(Planner, SlicesAreSplitOneByOne) {
  TestRegion pieces(instance_, kinds::registered, 10000, 1000);
  ASSERT_TRUE(plan(side(pieces, 0, 100, 900), side(plain_, 0, 60, 300), 60, 5, 3));
  EXPECT_EQ(segments(), (Segments{{0, 0, 60, 5},
                                  // rows at 900 and 1000, and so on, where a piece begins between two
                                  {900, 300, 60, 1},
                                  {1000, 360, 60, 4},
                                  {1800, 600, 60, 2},
                                  {2000, 720, 60, 3}}));
}

TEST_F(Planner, PitchesGoWithTheirSides) {
  TestRegion pieces(instance_, kinds::registered, 1000, 250);
  ASSERT_TRUE(plan(side(pieces, 0, 100), side(plain_, 0, 70), 60, 5));
  ASSERT_EQ(record_.copies.size(), 4U);
  for (const backend::CopySegment& copy : record_.copies) {
    EXPECT_EQ(copy.destination_pitch, 100U);
    EXPECT_EQ(copy.source_pitch, 70U);
  }
}

TEST_F(Planner, StopsAtTheFirstFailureAndWaitsForWhatRuns) {
  TestRegion pieces(instance_, kinds::registered, 1000, 10);
  record_.fail_segment = 3;
  auto done = plan(side(pieces, 0), side(plain_, 0), 100);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().status, GPUMEM_ERROR_BUSY);
  EXPECT_EQ(segments(), (Segments{{0, 0, 10, 1}, {10, 10, 10, 1}}));
  EXPECT_EQ(calls(), (Calls{"copy", "copy", "synchronize", "synchronize"}));
  // Nothing runs when the first one fails.
  record_.fail_segment = 1;
  EXPECT_FALSE(plan(side(pieces, 0), side(plain_, 0), 100));
  EXPECT_EQ(calls(), (Calls{"synchronize"})) << "the one of every call without a stream";
}

TEST_F(Planner, APitchAboveTheDevicesIsRefusedForSeveralRows) {
  for (const bool of_source : {false, true}) {
    auto to = side(plain_, 0, of_source ? 100 : 5001);
    auto from = side(plain_, 500000, of_source ? 5001 : 100);
    auto refused = plan(std::move(to), std::move(from), 100, 2);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, GPUMEM_ERROR_UNSUPPORTED);
    EXPECT_NE(std::strstr(refused.error().message, "5001"), nullptr) << refused.error().message;
  }
  EXPECT_TRUE(plan(side(plain_, 0, 5000), side(plain_, 500000, 100), 100, 2));
  EXPECT_TRUE(plan(side(plain_, 0, 5001), side(plain_, 500000, 5001), 100, 1));
}

// ---- what an address is ----

// A driver that rounds up may say that bytes behind a region belong to it.
TEST_F(Planner, ADriverIsNotBelievedAboutBytesBehindARegion) {
  TestRegion leaving(instance_, kinds::pinned, 100, 100);
  leaving.set_state(Region::State::kLeaving);
  std::vector<unsigned char> ordinary(100);
  for (void* const base : {plain_.at(0), leaving.at(0)}) {
    record_.pointer_facts = [base](const void*) {
      backend::PointerFacts facts;
      facts.known = true;
      facts.location = GPUMEM_LOCATION_DEVICE;
      facts.base = base;
      return facts;
    };
    CopySide source;
    source.address = ordinary.data();
    ASSERT_TRUE(plan(side(plain_, 0), std::move(source), 100));
    EXPECT_TRUE(record_.copies.back().source.pageable);
    EXPECT_FALSE(record_.copies.back().source.on_device);
  }
}

// The copy might have come before the region: only what it would have run into then is in its way.
TEST_F(Planner, ARegionThatBeginsDuringACopyOfItsBytes) {
  for (const uint64_t offset : {0U, 1U, 99U}) {
    std::vector<unsigned char> ordinary(200);
    std::unique_ptr<TestRegion> region;
    record_.pointer_facts = [&](const void*) {
      region = std::make_unique<TestRegion>(instance_, kinds::registered, 100, 100, &ordinary[offset]);
      return backend::PointerFacts();
    };
    CopySide source;
    source.address = ordinary.data();
    auto copied = plan(side(plain_, 0), std::move(source), 100);
    ASSERT_EQ(copied.ok(), offset == 0) << offset;
    if (offset != 0) {
      EXPECT_EQ(copied.error().status, GPUMEM_ERROR_INVALID_ARGUMENT);
    } else {
      EXPECT_TRUE(record_.copies.back().source.pageable);
    }
  }
}

// The addresses may be those of other code before the release has returned.
TEST_F(Planner, BytesWhereARangeIsBeingReleased) {
  constexpr uint64_t kSize = 4096;
  std::vector<unsigned char> ordinary(2 * kSize);
  record_.reserved = pointer_to(round_up(address_of(ordinary.data()), kSize));
  backend::ReservationRequest request;
  request.size = kSize;
  auto handle = reserve_range(instance_, request, {});
  ASSERT_TRUE(handle) << handle.error().message;
  auto range = held<Range>(*handle);
  ASSERT_TRUE(range);
  std::thread other;
  Result<void> copied = unused();
  record_.during_release = [&] {
    other = std::thread([&] {
      CopySide source;
      source.address = record_.reserved;
      copied = plan(side(plain_, 0), std::move(source), 100);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  ASSERT_TRUE(destroy_object(std::move(*range)));
  other.join();
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_TRUE(record_.copies.back().source.pageable);
}

// ---- the library's own streams ----

TEST_F(Planner, LendingStreamsTakesNoMoreMemoryEachTime) {
  Device& device = instance_->devices()[0];
  const auto used = [] {
    const auto now = mallinfo2();
    return now.uordblks + now.hblkhd;
  };
  const auto lend = [&] {
    auto stream = device.borrow_stream();
    ASSERT_TRUE(stream);
    device.return_stream(std::move(*stream));
  };
  lend();
  const size_t before = used();
  for (int round = 0; round < 20'000; ++round)
    lend();
  EXPECT_LT(used(), before + 10'000);
}

// ---- staging ----

TEST_F(Planner, ASourceReadDuringTheCallIsStaged) {
  TestRegion pieces(instance_, kinds::registered, 1000, 250);
  std::iota(plain_.bytes().begin(), plain_.bytes().begin() + 500, 1);
  ASSERT_TRUE(plan(side(pieces, 0, 100), side(plain_, 7, 70), 60, 5, 1, GPUMEM_SOURCE_ORDER_DURING_CALL));
  EXPECT_EQ(calls(), (Calls{"copy", "copy", "copy", "copy", "synchronize"}));
  std::vector<unsigned char> expected;
  for (uint64_t row = 0; row < 5; ++row)
    expected.insert(expected.end(), plain_.at(7 + 70 * row), plain_.at(7 + 70 * row + 60));
  EXPECT_EQ(record_.staged, expected);
  for (const backend::CopySegment& copy : record_.copies) {
    EXPECT_TRUE(copy.source.pageable);
    EXPECT_EQ(copy.source.memory, nullptr);
    EXPECT_NE(copy.keep, nullptr) << "the block that is read";
    EXPECT_EQ(copy.source_pitch, 60U);
    EXPECT_EQ(copy.destination.memory, &pieces.backend());
  }
}

TEST_F(Planner, EachSliceIsStagedInABlockOfItsOwn) {
  std::iota(plain_.bytes().begin(), plain_.bytes().begin() + 500, 1);
  TestRegion other(instance_, kinds::pinned, 1000, 1000);
  ASSERT_TRUE(
      plan(side(other, 0, 20, 300), side(plain_, 0, 30, 100), 10, 2, 2, GPUMEM_SOURCE_ORDER_DURING_CALL));
  EXPECT_EQ(calls(), (Calls{"copy", "copy", "synchronize"}));
  std::vector<unsigned char> expected;
  for (const uint64_t first : {0U, 30U, 100U, 130U})
    expected.insert(expected.end(), plain_.at(first), plain_.at(first + 10));
  EXPECT_EQ(record_.staged, expected);
}

TEST_F(Planner, DeviceMemoryReadDuringTheCallIsWaitedFor) {
  TestRegion device(instance_, kinds::device, 1000, 1000);
  ASSERT_TRUE(plan(side(plain_, 0), side(device, 0), 100, 1, 1, GPUMEM_SOURCE_ORDER_DURING_CALL));
  EXPECT_EQ(calls(), (Calls{"copy", "synchronize", "synchronize"}));
  EXPECT_TRUE(record_.copies.front().source.on_device);
  record_.fail_wait = true;
  auto done = plan(side(plain_, 0), side(device, 0), 100, 1, 1, GPUMEM_SOURCE_ORDER_DURING_CALL);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().status, GPUMEM_ERROR_BUSY);
}

TEST_F(Planner, SlicesThatWereStagedAreWaitedForWhenALaterOneFails) {
  TestRegion other(instance_, kinds::pinned, 1000, 1000);
  record_.fail_segment = 2;
  EXPECT_FALSE(
      plan(side(other, 0, 20, 300), side(plain_, 0, 30, 100), 10, 2, 2, GPUMEM_SOURCE_ORDER_DURING_CALL));
  EXPECT_EQ(calls(), (Calls{"copy", "synchronize", "synchronize"}))
      << "also where a stream is given, which is not waited for at the end of every call";
}

// The block may be in use by the segment before the one that failed.
TEST_F(Planner, ABlockOutlivesWhatReadsItEvenIfTheCopyFails) {
  TestRegion pieces(instance_, kinds::registered, 1000, 250);
  record_.fail_segment = 2;
  auto done = plan(side(pieces, 200), side(plain_, 500), 100, 1, 1, GPUMEM_SOURCE_ORDER_DURING_CALL);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().status, GPUMEM_ERROR_BUSY);
  const auto seen = calls();
  ASSERT_GE(seen.size(), 2U);
  EXPECT_EQ(seen[0], "copy");
  EXPECT_EQ(seen[1], "synchronize") << "before the block is freed";
}

// ---- fills ----

TEST_F(Planner, AFillIsSplitLikeACopy) {
  TestRegion pieces(instance_, kinds::registered, 10000, 1000);
  ASSERT_TRUE(plan_fill(pieces.at(900), 1200));
  EXPECT_EQ(segments(), (Segments{{900, 0, 100, 1}, {1000, 0, 1000, 1}, {2000, 0, 100, 1}}));
  ASSERT_TRUE(plan_fill(pieces.at(960), 20, 4, 30));
  EXPECT_EQ(segments(), (Segments{{960, 0, 20, 1}, {990, 0, 10, 1}, {1000, 0, 10, 1}, {1020, 0, 20, 2}}));
  ASSERT_TRUE(plan_fill(pieces.at(4000), 100, 5));
  EXPECT_EQ(segments(), (Segments{{4000, 0, 500, 1}})) << "rows without gaps are one row";
  for (const backend::FillSegment& fill : record_.fills) {
    EXPECT_EQ(fill.value, 0x11223344U);
    EXPECT_EQ(fill.value_size, 4U);
  }
}

TEST_F(Planner, AFillThatFailsWaitsForItsParts) {
  TestRegion pieces(instance_, kinds::registered, 1000, 100);
  record_.fail_segment = 2;
  auto done = plan_fill(pieces.at(0), 400);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().status, GPUMEM_ERROR_BUSY);
  EXPECT_EQ(calls(), (Calls{"fill", "synchronize", "synchronize"}));
  record_.fail_segment = 1;
  record_.segments.clear();
  EXPECT_FALSE(plan_fill(pieces.at(0), 400));
  EXPECT_EQ(calls(), (Calls{"synchronize"}));
}

// Rows of 40 bytes, 64 apart, as a fill leaves them.
std::vector<unsigned char> filled(uint64_t size, uint64_t rows, uint32_t value, uint32_t value_size) {
  std::vector<unsigned char> result(size);
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t at = 0; at < 40; ++at)
      result[row * 64 + at] = static_cast<unsigned char>(value >> (8 * (at % value_size)));
  }
  return result;
}

TEST_F(Planner, TheCpuFillsInStreamOrder) {
  record_.way = backend::FillWay::kCpuInStream;
  for (const uint32_t value_size : {1U, 2U, 4U}) {
    TestRegion region(instance_, kinds::registered, 1000, 100);
    ASSERT_TRUE(plan_fill(region.at(0), 40, 5, 64, 0xA1B2C3D4, value_size));
    EXPECT_EQ(calls(), (Calls{"launch", "synchronize"})) << "one function for all pieces";
    EXPECT_EQ(region.bytes(), filled(1000, 5, 0xA1B2C3D4, value_size));
  }
}

TEST_F(Planner, TheCpuFillsOnceTheStreamIsThrough) {
  record_.way = backend::FillWay::kCpuAfterStream;
  std::vector<unsigned char> bytes(1000);
  ASSERT_TRUE(plan_fill(bytes.data(), 40, 5, 64, 0xA1B2C3D4, 2));
  EXPECT_EQ(calls(), (Calls{"synchronize", "synchronize"}));
  EXPECT_EQ(bytes, filled(1000, 5, 0xA1B2C3D4, 2));
}

TEST_F(Planner, AFillAtHomeIsOrderedByTwoEvents) {
  record_.way = backend::FillWay::kAtHome;
  TestRegion region(instance_, kinds::device, 1000, 100);
  ASSERT_TRUE(plan_fill(region.at(0), 200));
  EXPECT_EQ(calls(), (Calls{"record", "wait", "fill", "fill", "record", "wait", "release event",
                            "release event", "release stream", "synchronize"}));
  record_.segments.clear();
  record_.fail_segment = 2;
  EXPECT_FALSE(plan_fill(region.at(0), 200));
  EXPECT_EQ(calls(), (Calls{"record", "wait", "fill", "synchronize", "release event", "release event",
                            "release stream", "synchronize"}));
}

}  // namespace
}  // namespace gpumem::core
