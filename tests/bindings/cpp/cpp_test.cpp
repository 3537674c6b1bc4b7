// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem.hpp and mr.hpp over the host backend: owners, errors, spans, callbacks, resources, and what they
// cost. It is C++17, and compiled as C++20 too.
#include <gpumem/gpumem.hpp>
#include <gpumem/mr.hpp>

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory_resource>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../../asleep.h"

namespace {

// ---- What it costs

// An owner is its handle: nothing is beside it, and moving one is as cheap.
template <class Owner>
constexpr bool as_cheap_as_c() {
  using Handle = typename Owner::handle_type;
  return sizeof(Owner) == sizeof(Handle) && alignof(Owner) == alignof(Handle) &&
         std::is_nothrow_move_constructible_v<Owner> && std::is_nothrow_move_assignable_v<Owner> &&
         std::is_nothrow_destructible_v<Owner> && !std::is_polymorphic_v<Owner>;
}
template <class... Owners>
constexpr bool move_only() {
  return ((as_cheap_as_c<Owners>() && !std::is_copy_constructible_v<Owners> &&
           !std::is_copy_assignable_v<Owners>)&&...);
}
static_assert(move_only<gpumem::Instance, gpumem::Memory, gpumem::Physical, gpumem::Range, gpumem::Buffer,
                        gpumem::Group, gpumem::Hub, gpumem::Link, gpumem::Ring, gpumem::Pool, gpumem::Stream,
                        gpumem::Event>());
static_assert(!std::is_copy_constructible_v<gpumem::Block<int>> &&
              !std::is_copy_constructible_v<gpumem::HostAccess>);

// A reference is passed in a register.
static_assert(std::is_trivially_copy_constructible_v<gpumem::StreamRef> &&
              std::is_trivially_destructible_v<gpumem::StreamRef>);
static_assert(std::is_trivially_copyable_v<gpumem::Device> &&
              sizeof(gpumem::Device) == sizeof(gpumem_device));
static_assert(std::is_trivially_copyable_v<gpumem::Handle<gpumem_stream>> &&
              sizeof(gpumem::Handle<gpumem_stream>) == sizeof(gpumem_stream));
static_assert(std::is_trivially_copyable_v<gpumem::device_span<int>>);
// What is on the stack during a call has nothing to destroy.
static_assert(std::is_trivially_destructible_v<gpumem::detail::Attempt>);
// An array of these is an array of C.
static_assert(sizeof(gpumem::CopyRegion) == sizeof(gpumem_copy_region) &&
              sizeof(gpumem::AccessDesc) == sizeof(gpumem_access_desc) &&
              sizeof(gpumem::ManagedRange) == sizeof(gpumem_managed_range));

// ---- What must not compile

// The reference in an owner could be overwritten, and its object would leak.
static_assert(!std::is_copy_assignable_v<gpumem::StreamRef> && std::is_copy_assignable_v<gpumem::Device>);
static_assert(std::is_constructible_v<gpumem::StreamRef, const gpumem::Stream&>);
// Owning a handle of C must be said.
static_assert(std::is_constructible_v<gpumem::Stream, gpumem_stream> &&
              !std::is_convertible_v<gpumem_stream, gpumem::Stream>);
static_assert(std::is_convertible_v<const gpumem::Stream&, gpumem::Handle<gpumem_stream>> &&
              std::is_convertible_v<gpumem::StreamRef, gpumem::Handle<gpumem_stream>> &&
              std::is_convertible_v<gpumem_stream, gpumem::Handle<gpumem_stream>> &&
              !std::is_convertible_v<const gpumem::Event&, gpumem::Handle<gpumem_stream>>);
static_assert(std::is_convertible_v<gpumem::device_span<int>, gpumem::device_span<const int>> &&
              !std::is_convertible_v<gpumem::device_span<const int>, gpumem::device_span<int>>);
static_assert(std::is_convertible_v<std::vector<int>&, gpumem::span<const int>> &&
              !std::is_convertible_v<const std::vector<int>&, gpumem::span<int>>);
// The CPU must not touch what a device_span has.
static_assert(!std::is_constructible_v<gpumem::span<const int>, gpumem::device_span<int>> &&
              !std::is_constructible_v<gpumem::span<int>, const gpumem::device_span<int>&> &&
              std::is_convertible_v<gpumem::span<int>, gpumem::span<const int>> &&
              std::is_convertible_v<const std::array<int, 2>&, gpumem::span<const int>>);
static_assert(std::is_same_v<decltype(gpumem::span(std::declval<int*>(), 1)), gpumem::span<int>>);

template <class By, class To, class From, class = void>
constexpr bool copies = false;
template <class By, class To, class From>
constexpr bool copies<
    By, To, From, std::void_t<decltype(std::declval<By&>().copy(std::declval<To>(), std::declval<From>()))>> =
    true;
using Stream = gpumem::StreamRef;
using Instance = gpumem::InstanceRef;
using Device = gpumem::device_span<int>;
using Vector = std::vector<int>;
static_assert(copies<Stream, Device, Vector&> && copies<Stream, Device, const Vector&> &&
              copies<Stream, Vector&, gpumem::device_span<const int>>);
static_assert(!copies<Stream, Device, std::vector<float>&> &&
              !copies<Stream, gpumem::device_span<const int>, Vector&>);
// What a stream copies later must not end with the expression.
static_assert(!copies<Stream, Device, const Vector> && !copies<Stream, Device, std::initializer_list<int>>);
static_assert(!copies<Stream, Device, Vector> && !copies<Stream, Vector, Device> &&
              copies<Stream, Device, gpumem::span<const int>> && copies<Instance, Device, Vector>);
static_assert(copies<Stream, Device, int (&)[3]> && !copies<Instance, const int (&)[3], Device> &&
              copies<Stream, int (&)[3], Device> && !copies<Stream, Device, float (&)[3]>);

// Elements are not those of an owner that ends with the expression.
template <class Object, class = void>
constexpr bool has_elements = false;
template <class Object>
constexpr bool
    has_elements<Object, std::void_t<decltype(std::declval<Object>().template device_elements<int>())>> =
        true;
static_assert(has_elements<gpumem::Memory&> && has_elements<const gpumem::Buffer&> &&
              has_elements<gpumem::MemoryRef> && !has_elements<gpumem::Memory> &&
              !has_elements<const gpumem::Buffer> && !has_elements<gpumem::Stream&>);
template <class Object, class = void>
constexpr bool has_a_span = false;
template <class Object>
constexpr bool has_a_span<Object, std::void_t<decltype(std::declval<Object>().elements())>> = true;
static_assert(has_a_span<gpumem::Block<int>&> && !has_a_span<gpumem::Block<int>>);

// ---- Tests

constexpr uint64_t kSize = 4096;

template <class Call>
gpumem_status thrown_by(const Call& call) {
  try {
    call();
  } catch (const gpumem::Error& error) {
    return error.status();
  }
  return GPUMEM_SUCCESS;
}

class Cpp : public testing::Test {
 protected:
  static gpumem::Instance open() {
    gpumem::InstanceDesc desc;
    desc.backend = GPUMEM_BACKEND_HOST;
    return gpumem::open_instance(desc);
  }
  gpumem::Memory allocate(gpumem_kind kind, uint64_t size = kSize, gpumem_memory_flags require = 0) const {
#if __cplusplus >= 202002L
    return device_.create_memory({.kind = kind, .size = size, .require = require});
#else
    gpumem::MemoryDesc desc;
    desc.kind = kind;
    desc.size = size;
    desc.require = require;
    return device_.create_memory(desc);
#endif
  }
  uint64_t live() const { return instance_.stats().live_count; }

  const gpumem::Instance instance_ = open();
  const gpumem::Device device_ = instance_.device(0);
};

TEST_F(Cpp, AnOwnerEndsItsObjectOnce) {
  gpumem_memory raw = nullptr;
  {
    gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE);
    raw = memory.get();
    EXPECT_TRUE(memory);
    EXPECT_EQ(live(), 1U);
  }
  EXPECT_EQ(live(), 0U);
  EXPECT_EQ(thrown_by([&] { (void)gpumem::MemoryRef(raw).info(); }), GPUMEM_ERROR_STALE_HANDLE);

  gpumem::Memory closed = allocate(GPUMEM_KIND_DEVICE);
  closed.close();
  EXPECT_FALSE(closed);
  EXPECT_EQ(live(), 0U);
  gpumem::Error error;
  (void)closed.info(error);
  EXPECT_STREQ(error.what(), "the memory handle is NULL; the object was closed, moved from, or never made");
  closed.close();  // nothing to close
  closed.reset();
}

TEST_F(Cpp, AMoveHandsTheObjectOver) {
  gpumem::Memory first = allocate(GPUMEM_KIND_DEVICE);
  const gpumem_memory raw = first.get();
  gpumem::Memory second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT: a moved-from owner owns nothing
  EXPECT_EQ(second.get(), raw);
  EXPECT_EQ(live(), 1U);

  // The one that is assigned to ends what it had.
  gpumem::Memory third = allocate(GPUMEM_KIND_DEVICE);
  third = std::move(second);
  EXPECT_EQ(live(), 1U);
  EXPECT_EQ(third.get(), raw);

  gpumem::Memory& itself = third;
  third = std::move(itself);
  EXPECT_EQ(third.get(), raw);
  EXPECT_EQ(live(), 1U);

  gpumem::Memory other = allocate(GPUMEM_KIND_DEVICE);
  swap(third, other);
  EXPECT_EQ(other.get(), raw);
  EXPECT_EQ(third.info().size, kSize);

  const gpumem_memory left = other.detach();
  EXPECT_FALSE(other);
  EXPECT_EQ(live(), 2U);
  gpumem::Memory(left).close();
  EXPECT_EQ(live(), 1U);
}

TEST_F(Cpp, CloseReportsAndKeepsWhatItCannotEnd) {
  gpumem::Memory word = allocate(GPUMEM_KIND_PINNED);
  gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE);
  const gpumem::span<uint32_t> words = word.elements<uint32_t>();
  words[0] = 0;
  {
    const gpumem::Stream stream = device_.create_stream();
    stream.wait_value(words.data(), 1, 4, GPUMEM_WAIT_EQ);
    stream.fill(memory.device_elements<uint8_t>(), uint8_t{1});
    EXPECT_FALSE(stream.query());
    EXPECT_FALSE(stream.synchronize(0));
    EXPECT_EQ(thrown_by([&] { memory.close(); }), GPUMEM_ERROR_BUSY);
    EXPECT_TRUE(memory);
    const gpumem::Stream other = device_.create_stream();
    other.write_value(words.data(), 1, 4);
    // The destructors wait for what they were given.
  }
  memory.close();
  word.close();
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, TheDestructorOfAStreamWaits) {
  static std::atomic<bool> returned, early, ran;
  static const pid_t owner = gettid();
  auto work = [] {
    gpumem::test::wait_until_asleep(owner);  // a destructor that does not wait has returned by then
    early = returned.load();
    ran = true;
  };
  returned = early = ran = false;
  {
    const gpumem::Stream stream = device_.create_stream();
    stream.launch_host_function(work);
  }
  returned = true;
  EXPECT_TRUE(ran);
  EXPECT_FALSE(early);
}

TEST_F(Cpp, AnInstanceIsCheckedByCloseAndForcedByItsDestructor) {
  gpumem::Instance instance = open();
  const gpumem::Stream stream = instance.device(0).create_stream();
  EXPECT_EQ(thrown_by([&] { instance.close(); }), GPUMEM_ERROR_BUSY);
  EXPECT_TRUE(instance);
  instance.reset();
  EXPECT_EQ(thrown_by([&] { stream.query(); }), GPUMEM_ERROR_CLOSED);
}

TEST_F(Cpp, AFailureIsThrownOrFilledIn) {
  gpumem::MemoryDesc desc;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = uint64_t{1} << 60;
  try {
    const gpumem::Memory memory = device_.create_memory(desc);
    FAIL() << "an EiB was allocated";
  } catch (const std::exception& problem) {
    const auto* const error = dynamic_cast<const gpumem::Error*>(&problem);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->status(), GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_STREQ(error->name(), "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY");
    EXPECT_STREQ(error->function(), "gpumem_memory_create");
    EXPECT_STRNE(error->what(), "");
    EXPECT_EQ(error->c().status, error->status());
  }

  gpumem::Error error;
  EXPECT_FALSE(error);
  EXPECT_STREQ(error.what(), "");
  EXPECT_FALSE(device_.create_memory(desc, error));
  EXPECT_TRUE(error);
  EXPECT_EQ(error.status(), GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);

  // The next call says how that went.
  desc.size = kSize;
  EXPECT_TRUE(device_.create_memory(desc, error));
  EXPECT_FALSE(error);
  EXPECT_EQ(error.status(), GPUMEM_SUCCESS);

  // A copy has the texts too.
  (void)gpumem::Device().info(error);
  const gpumem::Error copy = error;
  EXPECT_EQ(copy.status(), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(copy.what(), error.what());
}

TEST_F(Cpp, ANoteIsNoFailure) {
  const gpumem::Stream stream = device_.create_stream();
  const gpumem::Event start = device_.create_event();
  const gpumem::Event end = device_.create_event();
  const gpumem::Memory memory = allocate(GPUMEM_KIND_PINNED);
  uint32_t* const word = memory.elements<uint32_t>().data();
  *word = 0;
  start.record(stream);
  stream.wait_value(word, 1, 4, GPUMEM_WAIT_EQ);
  end.record(stream);
  gpumem::Error error;
  EXPECT_FALSE(end.query(error));
  EXPECT_FALSE(error);
  EXPECT_EQ(error.status(), GPUMEM_NOT_READY);
  EXPECT_EQ(start.elapsed_time(end), std::nullopt);
  device_.create_stream().write_value(word, 1, 4);
  EXPECT_TRUE(end.synchronize());
  const std::optional<int64_t> elapsed = start.elapsed_time(end);
  ASSERT_TRUE(elapsed);
  EXPECT_GE(*elapsed, 0);
}

TEST_F(Cpp, SpansAreWholeElements) {
  const gpumem::Memory pinned = allocate(GPUMEM_KIND_PINNED, 10);
  EXPECT_EQ(pinned.elements<uint32_t>().size(), 2U);
  EXPECT_EQ(pinned.elements<uint8_t>().size_bytes(), 10U);
  EXPECT_EQ(pinned.device_elements<uint64_t>().size(), 1U);

  const gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE);
  EXPECT_EQ(thrown_by([&] { (void)memory.elements<int>(); }), GPUMEM_ERROR_NO_ACCESS);
  gpumem::Error error;
  EXPECT_TRUE(memory.elements<int>(error).empty());
  EXPECT_EQ(error.status(), GPUMEM_ERROR_NO_ACCESS);
  EXPECT_NE(std::string(error.what()).find("copy it"), std::string::npos);
  EXPECT_EQ(thrown_by([] { (void)gpumem::MemoryRef().elements<int>(); }), GPUMEM_ERROR_INVALID_ARGUMENT);

  const gpumem::device_span<int> all = memory.device_elements<int>();
  EXPECT_EQ(all.size(), kSize / sizeof(int));
  EXPECT_EQ(all.subspan(3, 4).data(), all.data() + 3);
  EXPECT_EQ(all.subspan(3).size(), all.size() - 3);
  EXPECT_EQ(all.first(5).size(), 5U);
  EXPECT_EQ(all.last(5).data(), all.data() + all.size() - 5);
}

TEST_F(Cpp, CopiesAndFillsTakeSpans) {
  const gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE);
  const gpumem::Stream stream = device_.create_stream();
  std::vector<float> sent(kSize / sizeof(float));
  std::iota(sent.begin(), sent.end(), 0.0F);
  std::vector<float> received(sent.size());
  const gpumem::device_span<float> table = memory.device_elements<float>();
  stream.copy(table, sent);
  stream.copy(received, table);
  EXPECT_TRUE(stream.synchronize());
  EXPECT_EQ(received, sent);

  instance_.fill(table.first(2), 7.5F);
  gpumem::CopyOptions options;
  options.direction = GPUMEM_DIRECTION_DEVICE_TO_HOST;
  instance_.copy(received, table, options);
  EXPECT_EQ(received[1], 7.5F);
  EXPECT_EQ(received[2], 2.0F);
  options.direction = GPUMEM_DIRECTION_HOST_TO_DEVICE;
  EXPECT_EQ(thrown_by([&] { instance_.copy(received, table, options); }), GPUMEM_ERROR_INVALID_ARGUMENT);

  std::array<uint16_t, 4> few{};
  const gpumem::device_span<uint16_t> shorts = memory.device_elements<uint16_t>().first(4);
  instance_.fill(shorts, uint16_t{0xABCD});
  instance_.copy(few, shorts);
  EXPECT_EQ(few, (std::array<uint16_t, 4>{0xABCD, 0xABCD, 0xABCD, 0xABCD}));
  std::array<int8_t, 2> bytes{};
  instance_.fill(memory.device_elements<int8_t>(), int8_t{-2});
  instance_.copy(bytes, memory.device_elements<int8_t>().last(2));
  EXPECT_EQ(bytes, (std::array<int8_t, 2>{-2, -2}));

  gpumem::Error error;
  instance_.copy(received, table.first(3), error);
  EXPECT_EQ(error.status(), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.what()).find("3 elements"), std::string::npos) << error.what();
}

TEST_F(Cpp, CopiesAndFillsTakeAddressesToo) {
  const gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE);
  void* const address = memory.info().device_pointer;
  const gpumem::Stream stream = device_.create_stream();
  uint32_t number = 0;
  stream.fill(address, 4, 6, 4);
  stream.copy(&number, address, sizeof number);
  EXPECT_TRUE(stream.synchronize());
  EXPECT_EQ(number, 6U);
  gpumem::Error error;
  instance_.fill(address, 4, 8, 4, error);
  instance_.copy(&number, address, sizeof number, {}, error);
  EXPECT_FALSE(error) << error.what();
  EXPECT_EQ(number, 8U);
}

TEST_F(Cpp, AFileIsCopiedWithProgressOrWithout) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE);
  instance_.fill(memory.device_elements<uint8_t>(), uint8_t{3});
  gpumem::CopyFileDesc desc;
  desc.file_descriptor = fileno(file);
  desc.direction = GPUMEM_FILE_DIRECTION_FROM_MEMORY;
  desc.pointer = memory.info().device_pointer;
  desc.size = kSize;
  gpumem_copy_file_info info = GPUMEM_COPY_FILE_INFO_INIT;
  instance_.copy_file(desc, &info);
  EXPECT_EQ(info.copied, kSize);
  desc.direction = GPUMEM_FILE_DIRECTION_TO_MEMORY;
  uint64_t copied = 0;
  instance_.copy_file(desc, [&copied](uint64_t done, uint64_t) { copied = done; });
  EXPECT_EQ(copied, kSize);

  // What was copied is known also if the call is cancelled, by an exception or by false.
  const auto fail = [](uint64_t, uint64_t) -> bool { throw std::runtime_error("enough"); };
  info.copied = kSize + 1;
  EXPECT_THROW(instance_.copy_file(desc, fail, &info), std::runtime_error);
  EXPECT_LE(info.copied, kSize);
  gpumem::Error error;
  info.copied = kSize + 1;
  const auto stop = [](uint64_t, uint64_t) { return false; };
  instance_.copy_file(desc, stop, &info, error);
  EXPECT_EQ(error.status(), GPUMEM_ERROR_CANCELLED);
  EXPECT_LE(info.copied, kSize);
  desc.file_descriptor = -1;
  instance_.copy_file(desc, nullptr, error);
  EXPECT_TRUE(error);
  EXPECT_EQ(std::fclose(file), 0);
}

TEST_F(Cpp, BatchesAreSpansOfStructsThatAreReadyToUse) {
  const gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE);
  std::vector<uint8_t> bytes(2 * kSize);
  std::iota(bytes.begin(), bytes.end(), uint8_t{1});
  std::array<gpumem::CopyRegion, 2> regions;
  for (size_t i = 0; i < regions.size(); ++i) {
    regions[i].destination.memory = memory.get();
    regions[i].destination.offset = 4 * i;
    regions[i].source.pointer = &bytes[4 * (1 - i)];
    regions[i].width = 4;
  }
  instance_.copy_regions(regions);
  std::vector<uint8_t> back(8);
  instance_.copy(back, memory.device_elements<uint8_t>().first(8));
  EXPECT_EQ(back, (std::vector<uint8_t>{5, 6, 7, 8, 1, 2, 3, 4}));

  regions[1].width = 2 * kSize;
  uint64_t failed = 0;
  EXPECT_EQ(thrown_by([&] { instance_.copy_regions(regions, &failed); }), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(failed, 1U);
}

TEST_F(Cpp, PhysicalMemoryIsMapped) {
  gpumem::PhysicalDesc wanted;
  wanted.location = GPUMEM_LOCATION_DEVICE;
  wanted.size = device_.granularity(wanted).minimum;
  EXPECT_GE(device_.granularity(wanted).recommended, wanted.size);
  const gpumem::Physical first = device_.create_physical(wanted);
  const gpumem::Physical second = device_.create_physical(wanted);
  gpumem::RangeDesc addresses;
  addresses.size = 2 * wanted.size;
  gpumem::Range range = instance_.reserve_range(addresses);
  const std::array<gpumem_physical, 2> blocks{first.get(), second.get()};
  range.map(0, blocks);
  gpumem::AccessDesc access;
  access.location = GPUMEM_LOCATION_DEVICE;
  access.access = GPUMEM_ACCESS_READWRITE;
  range.set_access(0, addresses.size, gpumem::span<const gpumem::AccessDesc>(&access, 1));
  EXPECT_EQ(range.info().mapping_count, 2U);
  EXPECT_EQ(instance_.mapping(range.info().base).size, wanted.size);
  EXPECT_THROW(range.close(), gpumem::Error);
  const auto reserved = [this] { return instance_.kind_stats(GPUMEM_KIND_VIRTUAL).live_count; };
  EXPECT_EQ(reserved(), 1U);
  range = {};
  EXPECT_EQ(reserved(), 0U) << "its end unmaps what is left";
}

TEST_F(Cpp, AHostFunctionIsACallable) {
  const gpumem::Stream stream = device_.create_stream();
  int runs = 0;
  const auto count = [&runs] { ++runs; };
  stream.launch_host_function(count);
  stream.launch_host_function(count);
  EXPECT_TRUE(stream.synchronize());
  EXPECT_EQ(runs, 2);

  const gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE);
  const gpumem::device_span<int> numbers = memory.device_elements<int>().first(3);
  instance_.fill(numbers, 20);
  auto kernel = [numbers](gpumem::HostKernel self) {
    for (int& number : self.view(numbers))
      ++number;
    const gpumem::span<const int> read = self.view(gpumem::device_span<const int>(numbers));
    self.view(numbers)[0] = std::accumulate(read.begin(), read.end(), 0);
  };
  stream.host_launch(kernel);
  EXPECT_TRUE(stream.synchronize());
  std::array<int, 3> result{};
  instance_.copy(result, numbers);
  EXPECT_EQ(result, (std::array<int, 3>{63, 21, 21}));
}

// What was made from the memory of a buffer.
struct Follower {
  bool before_sleep(gpumem::BufferRef buffer) {
    slept += buffer.info().size;
    return !refuses;
  }
  void after_wake(gpumem::BufferRef /*buffer*/, uint64_t now) { generation = now; }

  bool refuses = false;
  uint64_t slept = 0;
  uint64_t generation = 0;
};

TEST_F(Cpp, BuffersAndGroupsCallObjects) {
  const gpumem::Group group = instance_.create_group();
  gpumem::BufferDesc desc;
  desc.size = 2 * kSize;
  desc.group = group;
  Follower follower;
  const gpumem::Buffer buffer = device_.create_buffer(desc);
  buffer.set_callbacks(follower);
  const gpumem::device_span<int> elements = buffer.device_elements<int>();
  EXPECT_EQ(elements.size(), desc.size / sizeof(int));

  gpumem::SleepDesc sleep;
  sleep.content = GPUMEM_CONTENT_PAGEABLE;
  follower.refuses = true;
  EXPECT_NE(thrown_by([&] { buffer.sleep(sleep); }), GPUMEM_SUCCESS);
  follower.refuses = false;

  // What the progress function throws cancels, and comes out here: also if errors are not thrown.
  gpumem::Error error;
  const auto throws = [](uint64_t, uint64_t) -> bool { throw std::runtime_error("no time"); };
  EXPECT_THROW(group.sleep(sleep, throws), std::runtime_error);
  EXPECT_THROW(group.sleep(sleep, throws, error), std::runtime_error);
  EXPECT_EQ(thrown_by([&] { buffer.sleep(sleep, [](uint64_t, uint64_t) { return false; }); }),
            GPUMEM_ERROR_CANCELLED);
  buffer.sleep(
      sleep, [](uint64_t, uint64_t) { return false; }, error);
  EXPECT_EQ(error.status(), GPUMEM_ERROR_CANCELLED);
  EXPECT_EQ(group.info().awake_count, 1U);

  uint64_t copied = 0;
  follower.slept = 0;
  group.sleep(sleep, [&](uint64_t done, uint64_t) {
    copied = done;
    // Nobody else uses it meanwhile.
    std::thread([&] {
      int few[4] = {};
      EXPECT_EQ(thrown_by([&] { instance_.fill(elements, 1); }), GPUMEM_ERROR_INVALID_STATE);
      EXPECT_EQ(thrown_by([&] { instance_.copy(few, elements.first(4)); }), GPUMEM_ERROR_INVALID_STATE);
    }).join();
  });
  EXPECT_EQ(copied, desc.size);
  EXPECT_EQ(follower.slept, desc.size);
  EXPECT_EQ(group.info().asleep_count, 1U);
  bool asked = false;
  group.wake({}, [&asked](uint64_t, uint64_t) { return asked = true; });
  EXPECT_TRUE(asked);
  EXPECT_EQ(follower.generation, buffer.info().generation);
  buffer.sleep();
  buffer.wake({}, [](uint64_t, uint64_t) { return true; });
  gpumem::BufferCallbacks none;
  buffer.set_callbacks(none);
  follower.slept = 0;
  buffer.sleep(sleep, error);
  group.wake({}, error);
  group.sleep(sleep, error);
  EXPECT_FALSE(error) << error.what();
  EXPECT_EQ(follower.slept, 0U);
}

TEST_F(Cpp, ABlockIsFreedInTheOrderOfItsStream) {
  const gpumem::Pool pool = device_.create_pool();
  const gpumem::Stream stream = device_.create_stream();
  const gpumem::Memory word = allocate(GPUMEM_KIND_PINNED);
  uint32_t* const value = word.elements<uint32_t>().data();
  *value = 0;
  stream.wait_value(value, 1, 4, GPUMEM_WAIT_EQ);
  gpumem::Block<float> block = pool.alloc_elements<float>(1 << 20, stream);
  const float* const address = block.data();
  stream.fill(block.device_elements(), 1.0F);
  block.free();
  EXPECT_FALSE(block);
  EXPECT_NE(pool.alloc_elements<float>(1 << 20).data(), address) << "work still uses it";
  device_.create_stream().write_value(value, 1, 4);
  stream.synchronize();
  gpumem::Block<float> read = pool.alloc_elements<float>(1 << 20, stream);
  read.free(nullptr);
  EXPECT_FALSE(read);
}

TEST_F(Cpp, ABlockThatOutlivesItsPoolOrStreamSaysHowToFreeIt) {
  gpumem::Pool pool = device_.create_pool(), ended = device_.create_pool();
  gpumem::Stream stream = device_.create_stream();
  gpumem::Block<float> of_stream = pool.alloc_elements<float>(100, stream);
  gpumem::Block<float> of_pool = ended.alloc_elements<float>(100);
  stream.close();
  ended.close();
  for (gpumem::Block<float>* block : {&of_stream, &of_pool}) {
    gpumem::Error error;
    block->free(error);
    EXPECT_EQ(error.status(), GPUMEM_ERROR_STALE_HANDLE);
    EXPECT_NE(
        std::string(error.what()).find("; once no work uses the block, call free_pool_block(detach(), "),
        std::string::npos)
        << error.what();
    ASSERT_TRUE(*block);
    instance_.free_pool_block(block->detach(), nullptr);
  }
  EXPECT_EQ(pool.info().live_count, 0U);
  pool.close();
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, ABlockGoesBackToItsPool) {
  gpumem::PoolDesc desc;
  desc.limit = uint64_t{4} << 20;
  const gpumem::Pool pool = device_.create_pool(desc);
  const gpumem::Stream stream = device_.create_stream();
  const auto used = [&pool] { return pool.info().live_count; };
  {
    gpumem::Block<float> block = pool.alloc_elements<float>(100, stream);
    EXPECT_TRUE(block);
    EXPECT_EQ(block.size(), 100U);
    EXPECT_EQ(thrown_by([&] { (void)block.elements(); }), GPUMEM_ERROR_NO_ACCESS);
    stream.fill(block.device_elements(), 1.0F);
    gpumem::Block<float> other = std::move(block);
    EXPECT_FALSE(block);  // NOLINT: a moved-from block owns nothing
    EXPECT_EQ(used(), 1U);
    block = pool.alloc_elements<float>(7, stream);
    block = std::move(other);
    EXPECT_EQ(used(), 1U);
    gpumem::Block<float>& itself = block;
    block = std::move(itself);
    EXPECT_EQ(block.size(), 100U);
    gpumem::Block<const float> read = pool.alloc_elements<const float>(3);
    read.free();
    EXPECT_FALSE(read);
    pool.free(pool.alloc_elements<float>(3).detach());
  }
  EXPECT_EQ(used(), 0U);
  gpumem::Error error;
  EXPECT_FALSE(pool.alloc_elements<double>(SIZE_MAX / 4, nullptr, error));
  EXPECT_EQ(error.status(), GPUMEM_ERROR_INVALID_ARGUMENT);

  gpumem::PoolDesc for_cpu;
  for_cpu.kind = GPUMEM_KIND_PAGEABLE;
  const gpumem::Pool ordinary = device_.create_pool(for_cpu);
  const gpumem::Block<int> numbers = ordinary.alloc_elements<int>(5);
  EXPECT_EQ(numbers.elements().size(), 5U);
  for (int& number : numbers.elements())
    number = 7;
  EXPECT_EQ(numbers.data()[4], 7);

  const std::array<uint64_t, 3> sizes{10, 20, 30};
  std::array<void*, 3> blocks{};
  pool.alloc_batch(sizes, blocks, stream);
  EXPECT_EQ(used(), 3U);
  pool.free_batch(blocks, stream);
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(thrown_by([&] { pool.alloc_batch(sizes, gpumem::span<void*>(blocks.data(), 2)); }),
            GPUMEM_ERROR_INVALID_ARGUMENT);

  uint64_t lacked = 0;
  auto gives_up = [&lacked](gpumem::PoolRef, uint64_t size) {
    lacked = size;
    return false;
  };
  pool.set_callback(gives_up);
  EXPECT_EQ(thrown_by([&] { (void)pool.alloc(2 * desc.limit); }), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_GE(lacked, desc.limit);
  pool.set_callback(nullptr);
  lacked = 0;
  EXPECT_EQ(thrown_by([&] { (void)pool.alloc(2 * desc.limit); }), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(lacked, 0U);
}

// What CCCL and RMM have: types of the same names and shapes.
struct device_accessible {};
struct host_accessible {};
struct StreamRef {
  void* get() const { return native; }
  void* native;
};
struct StreamView {
  StreamRef value() const { return {native}; }
  void* get() const { return nullptr; }  // value() goes first
  void* native;
};

template <class Resource, class Property, class = void>
constexpr bool has_property = false;
template <class Resource, class Property>
constexpr bool has_property<
    Resource, Property,
    std::void_t<decltype(get_property(std::declval<const Resource&>(), std::declval<Property>()))>> = true;

using DeviceResource = gpumem::mr::Resource<device_accessible>;
using EveryResource = gpumem::mr::Resource<host_accessible, device_accessible>;
static_assert(has_property<DeviceResource, device_accessible> &&
              !has_property<DeviceResource, host_accessible> &&
              has_property<EveryResource, host_accessible> &&
              has_property<EveryResource, device_accessible> && !has_property<EveryResource, int>);
// It is stored by value, and a moved-from one is as good as a copy.
static_assert(std::is_trivially_copyable_v<DeviceResource> && sizeof(DeviceResource) == sizeof(gpumem_pool));

uintptr_t past(const void* pointer, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment;
}

class CppResource : public Cpp {
 protected:
  gpumem::Pool create(gpumem_kind kind, uint64_t limit = 0) const {
    gpumem::PoolDesc desc;
    desc.kind = kind;
    desc.limit = limit;
    return device_.create_pool(desc);
  }
};

TEST_F(CppResource, ContainersOfTheStandardLibraryLiveInAPool) {
  for (const gpumem_kind kind : {GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED, GPUMEM_KIND_PAGEABLE}) {
    const gpumem::Pool pool = create(kind);
    gpumem::mr::PmrResource resource(pool);
    EXPECT_EQ(resource.pool(), pool);
    {
      std::pmr::vector<int> numbers(1000, 7, &resource);
      std::pmr::unordered_map<int, std::pmr::string> names(&resource);
      for (int i = 0; i < 100; ++i)
        names.emplace(i, std::to_string(i) + " is too long for the string itself");
      EXPECT_EQ(names.at(42).get_allocator().resource(), &resource);
      EXPECT_GE(pool.info().live_count, 201U);
      EXPECT_EQ(std::count(numbers.begin(), numbers.end(), 7), 1000);
      const std::pmr::vector<int> moved = std::move(numbers);
      EXPECT_EQ(moved.size(), 1000U);
    }
    EXPECT_EQ(pool.info().live_count, 0U);

    void* const page = resource.allocate(100, 4096);
    void* const next = resource.allocate(100, 4096);
    EXPECT_EQ(past(page, 4096) + past(next, 4096), 0U);
    resource.deallocate(page, 100, 4096);
    resource.deallocate(next, 100, 4096);
    void* const nothing = resource.allocate(0);
    EXPECT_NE(nothing, nullptr);
    resource.deallocate(nothing, 0);
    EXPECT_EQ(pool.info().live_count, 0U);
  }
}

TEST_F(CppResource, ALackOfMemoryIsBadAllocAndAMistakeAnError) {
  const gpumem::Pool pool = create(GPUMEM_KIND_PINNED, uint64_t{1} << 20);
  gpumem::mr::PmrResource resource(pool);
  EXPECT_THROW((void)resource.allocate(size_t{2} << 20), std::bad_alloc);
  const volatile size_t everything = SIZE_MAX;  // GCC would refuse to compile it
  EXPECT_THROW((void)resource.allocate(everything), std::bad_alloc);
  const size_t odd = 3 + pool.info().live_count;
  EXPECT_EQ(thrown_by([&] { (void)resource.allocate(100, odd); }), GPUMEM_ERROR_INVALID_ARGUMENT);
  const EveryResource every(pool);
  const gpumem::Stream stream = device_.create_stream();
  const StreamRef ref{stream.info().native_stream};
  EXPECT_THROW((void)every.allocate(ref, size_t{2} << 20, 16), std::bad_alloc);
  EXPECT_THROW((void)every.allocate_sync(size_t{2} << 20, 16), std::bad_alloc);
  EXPECT_THROW((void)gpumem::mr::rmm_allocate(size_t{2} << 20, ref, pool.get()), std::bad_alloc);
  EXPECT_EQ(pool.info().live_count, 0U);
}

TEST_F(CppResource, APoolThatLacksWhatIsPromisedIsRefused) {
  const gpumem::Pool device = create(GPUMEM_KIND_DEVICE), pageable = create(GPUMEM_KIND_PAGEABLE);
  EXPECT_EQ(thrown_by([&] { const gpumem::mr::PmrResource resource(device); }), GPUMEM_ERROR_NO_ACCESS);
  EXPECT_EQ(thrown_by([&] { const EveryResource resource(device); }), GPUMEM_ERROR_NO_ACCESS);
  EXPECT_EQ(thrown_by([&] { const DeviceResource resource(pageable); }), GPUMEM_ERROR_NO_ACCESS);
  EXPECT_EQ(thrown_by([&] { const gpumem::mr::Resource<host_accessible> resource(pageable); }),
            GPUMEM_SUCCESS);
  EXPECT_EQ(thrown_by([&] { const gpumem::mr::PmrResource resource(nullptr); }),
            GPUMEM_ERROR_INVALID_ARGUMENT);
  gpumem::Error error;
  const gpumem::mr::PmrResource none(device, error);
  EXPECT_FALSE(none.pool());
  EXPECT_EQ(error.status(), GPUMEM_ERROR_NO_ACCESS);
  EXPECT_NE(std::string(error.what()).find("GPUMEM_KIND_PAGEABLE"), std::string::npos);
  const EveryResource nothing(device, error);
  EXPECT_NE(std::string(error.what()).find("GPUMEM_KIND_PINNED"), std::string::npos);
  EXPECT_EQ(std::string(error.what()).find("GPUMEM_KIND_PAGEABLE"), std::string::npos);
}

TEST_F(CppResource, ResourcesOfOnePoolAreEqual) {
  const gpumem::Pool pool = create(GPUMEM_KIND_PINNED), other = create(GPUMEM_KIND_PINNED);
  const gpumem::mr::PmrResource a(pool), b(pool), c(other);
  EXPECT_TRUE(a == b);
  EXPECT_FALSE(a == c);
  EXPECT_FALSE(a == *std::pmr::new_delete_resource());
  const EveryResource first(pool), second(pool), third(other);
  EXPECT_TRUE(first == second && first != third);
  EXPECT_FALSE(first != second || first == third);
}

template <class T>
using Allocator = gpumem::mr::Allocator<T>;
using Numbers = std::vector<int, Allocator<int>>;
using Text = std::basic_string<char, std::char_traits<char>, Allocator<char>>;

static_assert(std::is_trivially_copyable_v<Allocator<int>> && sizeof(Allocator<int>) == sizeof(gpumem_pool));
static_assert(std::is_same_v<std::allocator_traits<Allocator<int>>::rebind_alloc<char>, Allocator<char>>);
static_assert(!std::allocator_traits<Allocator<int>>::is_always_equal::value);
static_assert(noexcept(std::declval<Allocator<int>&>().deallocate(nullptr, 0)));
// With the pool, so without a copy of the elements.
static_assert(std::is_nothrow_move_assignable_v<Numbers> && std::is_nothrow_swappable_v<Numbers>);

TEST_F(CppResource, ContainersWithTheAllocatorLiveInAPool) {
  for (const gpumem_kind kind : {GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED, GPUMEM_KIND_PAGEABLE}) {
    const gpumem::Pool pool = create(kind);
    const Allocator<int> allocator(pool);
    EXPECT_EQ(allocator.pool(), pool);
    {
      Numbers numbers(allocator);
      for (int i = 0; i < 10'000; ++i)
        numbers.push_back(i);
      EXPECT_EQ(pool.info().live_count, 1U);  // those before it grew are freed
      EXPECT_EQ(std::accumulate(numbers.begin(), numbers.end(), 0), 49'995'000);

      std::map<int, Text, std::less<>, Allocator<std::pair<const int, Text>>> names(allocator);
      for (int i = 0; i < 100; ++i)
        names.emplace(i, Text(std::to_string(i) + " is too long for the string itself", allocator));
      EXPECT_EQ(pool.info().live_count, 201U);
      EXPECT_EQ(names.at(42), "42 is too long for the string itself");

      std::deque<double, Allocator<double>> turns(allocator);
      for (int i = 0; i < 1000; ++i)
        (i % 2 != 0 ? turns.push_back(i) : turns.push_front(i));
      EXPECT_GT(pool.info().live_count, 202U);
      EXPECT_EQ(turns.front() + turns.back(), 998 + 999);
    }
    EXPECT_EQ(pool.info().live_count, 0U);
  }
}

TEST_F(CppResource, AMovedOrSwappedContainerTakesItsPoolAlongAndACopyIsInTheOwn) {
  const gpumem::Pool first = create(GPUMEM_KIND_PINNED), second = create(GPUMEM_KIND_PAGEABLE);
  {
    Numbers ones(1000, 1, Allocator<int>(first)), twos(2000, 2, Allocator<int>(second));
    const int *const one = ones.data(), *const two = twos.data();
    std::swap(ones, twos);
    EXPECT_EQ(ones.data(), two);
    EXPECT_EQ(ones.get_allocator().pool(), second);
    EXPECT_EQ(twos.data(), one);
    EXPECT_EQ(twos.get_allocator().pool(), first);

    ones = std::move(twos);
    EXPECT_EQ(ones.data(), one);
    EXPECT_EQ(ones.get_allocator().pool(), first);
    EXPECT_EQ(first.info().live_count, 1U);
    EXPECT_EQ(second.info().live_count, 0U);

    Numbers assigned(Allocator<int>{second});
    assigned = ones;
    EXPECT_EQ(assigned, ones);
    EXPECT_EQ(assigned.get_allocator().pool(), second);
    const Numbers copied = ones;
    EXPECT_EQ(copied.get_allocator().pool(), first);
    EXPECT_EQ(first.info().live_count, 2U);
    EXPECT_EQ(second.info().live_count, 1U);
  }
  EXPECT_EQ(first.info().live_count + second.info().live_count, 0U);
}

TEST_F(CppResource, AnAllocatorHasTheAlignmentOfItsTypeAndAnAddressForNothing) {
  struct alignas(1 << 18) Page {
    int number;
  };
  const gpumem::Pool pool = create(GPUMEM_KIND_PINNED);
  {
    std::vector<Numbers> between;  // so that no block is aligned by chance
    std::vector<std::vector<Page, Allocator<Page>>> pages;
    for (size_t i = 1; i <= 8; ++i) {
      between.emplace_back(i * 30'000, 1, Allocator<int>(pool));
      EXPECT_EQ(past(pages.emplace_back(i, Allocator<Page>(pool)).data(), alignof(Page)), 0U);
    }
    EXPECT_EQ(pool.info().live_count, 16U);
  }
  const Allocator<int> allocator(pool);
  int* const nothing = allocator.allocate(0);
  EXPECT_NE(nothing, nullptr);
  allocator.deallocate(nothing, 0);
  EXPECT_EQ(pool.info().live_count, 0U);
}

TEST_F(CppResource, AnAllocatorThrowsWhatTheStandardSays) {
  const gpumem::Pool pool = create(GPUMEM_KIND_PINNED, uint64_t{1} << 20);
  const Allocator<int> allocator(pool);
  // Volatile, since GCC would refuse to compile it. This many bytes would be 4 again.
  const volatile size_t around = SIZE_MAX / sizeof(int) + 2, most = SIZE_MAX / sizeof(int);
  EXPECT_THROW((void)allocator.allocate(around), std::bad_array_new_length);
  const auto lacking = [&allocator](size_t count) {
    try {
      (void)allocator.allocate(count);
    } catch (const std::bad_array_new_length&) {
      return false;
    } catch (const std::bad_alloc&) {
      return true;
    }
    return false;
  };
  EXPECT_TRUE(lacking(most));
  EXPECT_TRUE(lacking(size_t{1} << 20));
  Numbers numbers(1000, 7, allocator);
  EXPECT_THROW(numbers.resize(size_t{1} << 20), std::bad_alloc);
  EXPECT_EQ(std::count(numbers.begin(), numbers.end(), 7), 1000);
  EXPECT_EQ(pool.info().live_count, 1U);
}

TEST_F(CppResource, AnAllocatorIsRefusedWhereTheCpuCannotAccessAndEqualWithinAPool) {
  const gpumem::Pool device = create(GPUMEM_KIND_DEVICE);
  EXPECT_EQ(thrown_by([&] { const Allocator<int> allocator(device); }), GPUMEM_ERROR_NO_ACCESS);
  EXPECT_EQ(thrown_by([&] { const Allocator<int> allocator(nullptr); }), GPUMEM_ERROR_INVALID_ARGUMENT);
  gpumem::Error error;
  const Allocator<int> none(device, error);
  EXPECT_FALSE(none.pool());
  EXPECT_EQ(error.status(), GPUMEM_ERROR_NO_ACCESS);
  EXPECT_NE(std::string(error.what()).find("GPUMEM_KIND_PAGEABLE"), std::string::npos);

  const gpumem::Pool pool = create(GPUMEM_KIND_PINNED), other = create(GPUMEM_KIND_PINNED);
  const Allocator<int> a(pool), b(pool), c(other);
  const Allocator<char> rebound(a);
  EXPECT_TRUE(a == b && a != c && a == rebound && rebound != c);
  EXPECT_FALSE(a != b || a == c || a != rebound || rebound == c);
}

TEST_F(CppResource, ItHasTheCallsOfCccl) {
  const gpumem::Pool pool = create(GPUMEM_KIND_DEVICE);
  const DeviceResource resource(pool);
  const gpumem::Stream stream = device_.create_stream();
  const StreamRef ref{stream.info().native_stream};
  const auto used = [&pool] { return pool.info().live_count; };
  for (const size_t alignment : {size_t{1}, size_t{256}, size_t{1} << 16}) {
    void* const ordered[] = {resource.allocate(ref, 1000, alignment),
                             resource.allocate_async(1000, alignment, ref),
                             resource.allocate(StreamView{ref.native}, 1000, alignment)};
    void* const plain[] = {resource.allocate_sync(1000, alignment), resource.allocate(1000, alignment)};
    EXPECT_EQ(used(), 5U);
    for (void* const pointer : ordered)
      EXPECT_EQ(past(pointer, alignment), 0U);
    for (void* const pointer : plain)
      EXPECT_EQ(past(pointer, alignment), 0U);
    stream.fill(ordered[0], 1000, 1, 1);
    resource.deallocate(ref, ordered[0], 1000, alignment);
    resource.deallocate_async(ordered[1], 1000, alignment, ref);
    resource.deallocate(ref.native, ordered[2], 1000, alignment);
    resource.deallocate_sync(plain[0], 1000, alignment);
    resource.deallocate(plain[1], 1000, alignment);
    EXPECT_EQ(used(), 0U);
  }
  EXPECT_EQ(resource.allocate(ref, 0, 256), nullptr);
}

TEST_F(CppResource, ItKeepsTheOrderOfTheStream) {
  const gpumem::Pool pool = create(GPUMEM_KIND_DEVICE);
  const DeviceResource resource(pool);
  const gpumem::Stream busy = device_.create_stream(), other = device_.create_stream();
  const StreamRef ref{busy.info().native_stream}, second{other.info().native_stream};
  std::atomic<bool> go{false};
  auto waits = [&go] {
    while (!go)
      std::this_thread::yield();
  };
  void* const block = resource.allocate(ref, 1000, 256);
  busy.launch_host_function(waits);
  resource.deallocate(ref, block, 1000, 256);
  // Only the stream itself may have it now.
  void* const elsewhere = resource.allocate(second, 1000, 256);
  EXPECT_NE(elsewhere, block);
  void* const again = resource.allocate(ref, 1000, 256);
  EXPECT_EQ(again, block);
  go = true;
  resource.deallocate(ref, again, 1000, 256);
  resource.deallocate(second, elsewhere, 1000, 256);
  busy.synchronize();

  void* const rmm = gpumem::mr::rmm_allocate(1000, StreamView{ref.native}, pool.get());
  EXPECT_EQ(rmm, block);
  EXPECT_EQ(pool.info().live_count, 1U);
  gpumem::mr::rmm_deallocate(rmm, 1000, StreamView{ref.native}, pool.get());
  EXPECT_EQ(pool.info().live_count, 0U);
}

TEST_F(CppResource, BlocksAreFreedAlsoWhenTheDeviceIsLost) {
  const gpumem::Pool pool = create(GPUMEM_KIND_PINNED);
  const gpumem::Stream stream = device_.create_stream();
  const StreamRef ref{stream.info().native_stream};
  const gpumem::mr::Resource<host_accessible> resource(pool);
  void* const block = resource.allocate(ref, 1000, 16);
  void* const rmm = gpumem::mr::rmm_allocate(1000, StreamView{ref.native}, pool.get());
  if (gpumem_host_device_lose(device_.get(), nullptr) != GPUMEM_SUCCESS)
    GTEST_SKIP() << "only the host backend loses a device when it is told to";
  resource.deallocate(ref, block, 1000, 16);
  gpumem::mr::rmm_deallocate(rmm, 1000, StreamView{ref.native}, pool.get());
  EXPECT_EQ(pool.info().live_count, 0U);
}

TEST_F(Cpp, TheLogIsACallable) {
  std::string last;
  auto keep = [&last](gpumem_log_level, const char* message) { last = message; };
  gpumem::set_log(keep, GPUMEM_LOG_DEBUG);
  gpumem::Error error;
  (void)gpumem::Device().info(error);
  gpumem::set_log(nullptr, GPUMEM_LOG_ERROR);
  EXPECT_NE(last.find("gpumem_device_get_info"), std::string::npos) << last;
  last.clear();
  (void)gpumem::Device().info(error);
  EXPECT_EQ(last, "");
}

TEST_F(Cpp, QuestionsAreAnswered) {
  EXPECT_EQ(gpumem::version(), uint32_t{GPUMEM_VERSION});
  EXPECT_STREQ(gpumem::version_text(), gpumem_version_text());
  EXPECT_TRUE(gpumem::feature_supported(GPUMEM_FEATURE_BACKEND_HOST));
  EXPECT_FALSE(gpumem::feature_supported(0));
  EXPECT_EQ(gpumem::probe(GPUMEM_BACKEND_HOST).backend, GPUMEM_BACKEND_HOST);
  EXPECT_STREQ(gpumem::status_info(GPUMEM_ERROR_BUSY).name, "GPUMEM_ERROR_BUSY");
  EXPECT_GT(device_.memory().total, 0U);
  EXPECT_LE(device_.memory().free, device_.memory().total);
  EXPECT_EQ(instance_.report(), "nothing lives");
  gpumem::MemoryDesc desc;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = kSize;
  desc.name = "found in the report";
  const gpumem::Memory memory = device_.create_memory(desc);
  EXPECT_NE(instance_.report().find(desc.name), std::string::npos);
  EXPECT_NE(instance_.snapshot().find(R"("name":")" + std::string(desc.name) + '"'), std::string::npos);
  EXPECT_EQ(instance_.pointer_info(memory.info().device_pointer).memory, memory.get());
}

TEST_F(Cpp, WhatIsSharedComesBack) {
  const gpumem::Memory memory = allocate(GPUMEM_KIND_DEVICE, kSize, GPUMEM_MEMORY_SHAREABLE);
  instance_.fill(memory.device_elements<uint8_t>(), uint8_t{9});
  const gpumem_share_handle handle = instance_.export_memory(memory.info().device_pointer);
  EXPECT_EQ(gpumem::share_info(handle).size, memory.info().size);
  EXPECT_EQ(instance_.share_fds(handle, {}), gpumem::share_info(handle).fd_count);
  instance_.revoke(handle);
  EXPECT_EQ(thrown_by([&] { instance_.revoke(handle); }), GPUMEM_ERROR_NOT_FOUND);

  gpumem::RingDesc desc;
  desc.slot_size = kSize;
  desc.slot_count = 2;
  desc.consumers_max = 1;
  const gpumem::Ring ring = device_.create_ring(desc);
  const std::optional<gpumem_ring_slot> slot = ring.acquire();
  ASSERT_TRUE(slot);
  EXPECT_EQ(gpumem::device_elements<int>(*slot).size(), kSize / sizeof(int));
  EXPECT_EQ(gpumem::device_elements<int>(*slot).data(), slot->pointer);
}

TEST_F(Cpp, AProducerThatIsDestroyedFinishesTheRing) {
  // This test again, in a process of its own, is the consumer.
  if (const char* pipe = std::getenv("GPUMEM_TEST_RING")) {
    gpumem_share_handle handle;
    ASSERT_EQ(read(std::atoi(pipe), &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
    const gpumem::Ring ring = instance_.open_ring(handle);
    const std::optional<gpumem_ring_slot> message = ring.wait(nullptr, 60'000'000'000);
    ASSERT_TRUE(message);
    EXPECT_EQ(message->tag, 7U);
    ring.release(nullptr, message->number);
    gpumem::Error error;
    EXPECT_FALSE(ring.wait(nullptr, 60'000'000'000, error));
    EXPECT_EQ(error.status(), GPUMEM_ERROR_CLOSED) << error.what();
    return;
  }
  pid_t consumer = 0;
  {
    gpumem::RingDesc desc;
    desc.slot_size = kSize;
    desc.consumers_first = 1;
    const gpumem::Ring ring = device_.create_ring(desc);
    const gpumem_share_handle handle = ring.export_handle();
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    ASSERT_EQ(write(ends[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
    ASSERT_EQ(setenv("GPUMEM_TEST_RING", std::to_string(ends[0]).c_str(), 1), 0);
    std::string program = "/proc/self/exe",
                filter = "--gtest_filter=Cpp.AProducerThatIsDestroyedFinishesTheRing";
    char* arguments[] = {program.data(), filter.data(), nullptr};
    const int failed = posix_spawn(&consumer, "/proc/self/exe", nullptr, nullptr, arguments, environ);
    unsetenv("GPUMEM_TEST_RING");
    close(ends[0]);
    close(ends[1]);
    ASSERT_EQ(failed, 0);
    const std::optional<gpumem_ring_slot> slot = ring.acquire(nullptr, 60'000'000'000);
    ASSERT_TRUE(slot);
    ring.publish(nullptr, 0, 7);
  }
  int status = -1;
  ASSERT_EQ(waitpid(consumer, &status, 0), consumer);
  EXPECT_EQ(status, 0);
}

TEST_F(Cpp, ALinkIsOfOneInstance) {
  const gpumem::Instance keeper = open();
  const gpumem::Instance theirs = open();
  const std::string path = "@gpumem-cpp-keeper-" + std::to_string(getpid());
  gpumem::HubDesc hub_desc;
  hub_desc.path = path.c_str();
  hub_desc.flags = GPUMEM_HUB_KEEPER;
  const gpumem::Hub hub = keeper.open_hub(hub_desc);
  gpumem::LinkDesc link_desc;
  link_desc.path = path.c_str();
  {
    // Only the keeper has the memory afterwards.
    const gpumem::Instance publisher = open();
    gpumem::BufferDesc desc;
    desc.size = sizeof(int);
    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    const gpumem::Buffer buffer = publisher.device(0).create_buffer(desc);
    publisher.fill(buffer.device_elements<int>(), 5);
    const gpumem::Link link = publisher.connect_link(link_desc);
    EXPECT_EQ(link.publish("batch", publisher.export_memory(buffer.info().base)), 1U);
  }
  const gpumem::Link link = theirs.connect_link(link_desc);
  gpumem::Error error;
  (void)instance_.import_memory(link.fetch("batch"), {}, {}, nullptr, error);
  EXPECT_EQ(error.status(), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.what()).find("another instance of this process; import it by that instance"),
            std::string::npos)
      << error.what();
  const std::optional<gpumem::ImportedEntry> found = link.import_next("batch", 0);
  int content = 0;
  theirs.copy(&content, found->pointer, sizeof content);
  EXPECT_EQ(content, 5);
}

TEST_F(Cpp, ALinkFollowsAName) {
  // One process imports from itself, with another instance.
  const gpumem::Instance theirs = open();
  const std::string path = "@gpumem-cpp-" + std::to_string(getpid());
  gpumem::HubDesc hub_desc;
  hub_desc.path = path.c_str();
  gpumem::Hub hub = instance_.open_hub(hub_desc);
  gpumem::LinkDesc link_desc;
  link_desc.path = path.c_str();
  gpumem::Link link = theirs.connect_link(link_desc);

  std::vector<gpumem::Buffer> buffers;
  const auto publish = [&](int content) {
    gpumem::BufferDesc desc;
    desc.size = sizeof(int);
    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    const gpumem::Buffer& buffer = buffers.emplace_back(device_.create_buffer(desc));
    instance_.fill(buffer.device_elements<int>(), content);
    const gpumem_share_handle handle = instance_.export_memory(buffer.info().base);
    hub.publish("batch", handle);
    return handle;
  };
  // The version and the content of what comes next.
  const auto next = [&](uint64_t after) {
    const std::optional<gpumem::ImportedEntry> found = link.import_next("batch", after);
    int content = 0;
    theirs.copy(&content, found->pointer, sizeof content);
    return std::pair(found->entry.version, content);
  };
  constexpr uint64_t kMoment = 5'000'000;
  EXPECT_FALSE(link.import_next("batch", 0, kMoment));
  EXPECT_EQ(thrown_by([&] { (void)link.import_next("a/b", 0); }), GPUMEM_ERROR_INVALID_ARGUMENT);

  publish(1);
  EXPECT_EQ(next(0), std::pair(uint64_t{1}, 1));
  gpumem_share_handle last = publish(2);
  EXPECT_EQ(next(0), std::pair(uint64_t{2}, 2));
  EXPECT_EQ(next(1), std::pair(uint64_t{2}, 2));
  EXPECT_FALSE(link.import_next("batch", 2, kMoment));
  gpumem::ImportDesc reading;
  reading.access = GPUMEM_ACCESS_READ;
  gpumem::Error error;
  EXPECT_EQ(
      link.import_next("batch", 1, GPUMEM_TIMEOUT_INFINITE, reading, error)->memory.import_info().access,
      GPUMEM_ACCESS_READ);
  EXPECT_FALSE(error);

  // Each is withdrawn as soon as the next one is there, mostly between the steps of the reader.
  constexpr int kLast = 300;
  std::thread reader([&] {
    for (uint64_t seen = 2; seen < kLast;) {
      const auto [version, content] = next(seen);
      EXPECT_GT(version, seen);
      EXPECT_EQ(version, static_cast<uint64_t>(content));
      seen = version;
    }
  });
  for (int content = 3; content <= kLast; ++content) {
    const gpumem_share_handle before = std::exchange(last, publish(content));
    instance_.revoke(before);
  }
  reader.join();

  hub.close();
  EXPECT_FALSE(link.import_next("batch", kLast, GPUMEM_TIMEOUT_INFINITE, error));
  EXPECT_EQ(error.status(), GPUMEM_ERROR_PEER_GONE);
  const gpumem::LinkRef closed = link;
  link.close();
  EXPECT_EQ(thrown_by([&] { (void)closed.import_next("batch", 0); }), GPUMEM_ERROR_STALE_HANDLE);
}

TEST_F(Cpp, TheCpuAccessesManagedMemoryWhileItsTurnLasts) {
  const gpumem::Memory memory = allocate(GPUMEM_KIND_MANAGED);
  int* const first = memory.device_elements<int>().data();
  gpumem::HostAccess access = instance_.host_access(first);
  EXPECT_TRUE(access);
  *first = 3;
  gpumem::HostAccess moved = std::move(access);
  EXPECT_FALSE(access);  // NOLINT: a moved-from turn is none
  moved.reset();
  EXPECT_FALSE(moved);
  gpumem::Error error;
  EXPECT_FALSE(instance_.host_access(nullptr, error));
  EXPECT_EQ(error.status(), GPUMEM_ERROR_INVALID_ARGUMENT);
}

}  // namespace
