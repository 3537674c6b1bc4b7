// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The planner and the host backend together, through the public interface: when a source is read, and where
// copies of registered memory are cut.
#include <algorithm>
#include <cstring>

#include "base/arithmetic.h"
#include "host_support.h"
#include "interface_support.h"

namespace gpumem::test {
namespace {

const uint64_t kPage = platform::page_size();

class HostInterface : public testing::Test {
 protected:
  HostInterface() {
    options_.strict = GPUMEM_TOGGLE_ON;
    options_.lock_piece = kPage;
    options_.register_count_max = 1000;
    options_.device_bytes = 16 * kMiB;
  }

  // How many steps of a call can fail; each of them does, and leaves the call to be repeated.
  template <class Function>
  static uint64_t steps_of(const Session& session, Function call) {
    for (uint64_t step = 1; step < 100; ++step) {
      CALL(gpumem_host_fail_step, session.instance(), step, 0);
      const gpumem_status status = call();
      CALL(gpumem_host_fail_step, session.instance(), 0, 0);
      if (status == GPUMEM_SUCCESS) return step - 1;
      EXPECT_EQ(status, GPUMEM_ERROR_OUT_OF_HOST_MEMORY) << step;
    }
    return 100;
  }

  gpumem_host_options options_ = GPUMEM_HOST_OPTIONS_INIT;
};

gpumem_copy_options in_order(gpumem_source_order order) {
  gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
  options.source_order = order;
  return options;
}

TEST_F(HostInterface, ASourceIsReadWhenItIsSaidTo) {
  const Session session(GPUMEM_BACKEND_HOST, &options_);
  const gpumem_memory memory = session.create(GPUMEM_KIND_DEVICE, 64);
  const gpumem_stream stream = session.stream();
  auto source = pattern(64, 1);
  const auto before = source;
  const auto after = pattern(64, 2);
  for (const auto& [order, expected] :
       {std::pair{GPUMEM_SOURCE_ORDER_STREAM, after}, {GPUMEM_SOURCE_ORDER_DURING_CALL, before}}) {
    source = before;
    StreamGate gate;
    gate.hold(stream);
    const gpumem_copy_options options = in_order(order);
    CALL(gpumem_copy_async, stream, address(memory), source.data(), 64, &options);
    source = after;
    gate.open();
    finish(stream);
    std::vector<unsigned char> seen(64);
    CALL(gpumem_copy, session.instance(), seen.data(), address(memory), 64, nullptr);
    EXPECT_EQ(seen, expected);
  }
  CALL(gpumem_stream_destroy, stream);
  CALL(gpumem_memory_destroy, memory);
}

TEST_F(HostInterface, ASourceReadDuringTheCallIsNotUsedLater) {
  const Session session(GPUMEM_BACKEND_HOST, &options_);
  const gpumem_memory source = session.create(GPUMEM_KIND_PINNED, 64);
  const gpumem_memory target = session.create(GPUMEM_KIND_DEVICE, 64);
  const gpumem_stream stream = session.stream();
  StreamGate gate;
  gate.hold(stream);
  const gpumem_copy_options options = in_order(GPUMEM_SOURCE_ORDER_DURING_CALL);
  CALL(gpumem_copy_async, stream, address(target), address(source), 64, &options);
  CALL(gpumem_memory_destroy, source);
  EXPECT_EQ(gpumem_memory_destroy(target, nullptr), GPUMEM_ERROR_BUSY);
  gate.open();
  finish(stream);
  CALL(gpumem_memory_destroy, target);
  CALL(gpumem_stream_destroy, stream);
}

TEST_F(HostInterface, StagingTakesNoStepMoreThanACopy) {
  const Session session(GPUMEM_BACKEND_HOST, &options_);
  const gpumem_memory memory = session.create(GPUMEM_KIND_PINNED, 64);
  const gpumem_stream stream = session.stream();
  unsigned char* const bytes = address(memory);
  const auto copy = [&](gpumem_source_order order) {
    const gpumem_copy_options options = in_order(order);
    return gpumem_copy_async(stream, bytes, bytes + 32, 8, &options, nullptr);
  };
  EXPECT_EQ(steps_of(session, [&] { return copy(GPUMEM_SOURCE_ORDER_STREAM); }), 1U);
  EXPECT_EQ(steps_of(session, [&] { return copy(GPUMEM_SOURCE_ORDER_DURING_CALL); }), 1U);
  finish(stream);
  CALL(gpumem_stream_destroy, stream);
  CALL(gpumem_memory_destroy, memory);
}

TEST_F(HostInterface, CopiesAndFillsAreCutWhereAPieceEnds) {
  const Session session(GPUMEM_BACKEND_HOST, &options_);
  std::vector<unsigned char> bytes(9 * kPage);
  auto* const first =
      reinterpret_cast<unsigned char*>((reinterpret_cast<uint64_t>(bytes.data()) / kPage + 1) * kPage);
  const gpumem_memory lent = session.lend(first + 100, 6 * kPage);
  const gpumem_memory memory = session.create(GPUMEM_KIND_DEVICE, 6 * kPage);
  const gpumem_stream stream = session.stream();
  unsigned char* const target = address(memory);
  const auto copy = [&](uint64_t offset, uint64_t size) {
    return steps_of(session, [&] {
      return gpumem_copy_async(stream, target, first + 100 + offset, size, nullptr, nullptr);
    });
  };
  EXPECT_EQ(copy(0, 100), 1U);
  EXPECT_EQ(copy(0, kPage - 100), 1U) << "up to the end of its first page, where the piece ends";
  EXPECT_EQ(copy(0, kPage - 99), 2U);
  EXPECT_EQ(copy(0, 3 * kPage), 4U);
  EXPECT_EQ(copy(kPage - 100, 3 * kPage), 3U);
  EXPECT_EQ(copy(6 * kPage - 1, 1), 1U);
  EXPECT_EQ(
      steps_of(session, [&] { return gpumem_fill_async(stream, first + 104, 2 * kPage, 7, 4, nullptr); }),
      3U);

  finish(stream);

  const auto wanted = pattern(6 * kPage);
  std::copy(wanted.begin(), wanted.end(), first + 100);
  CALL(gpumem_copy, session.instance(), target, first + 100, 6 * kPage, nullptr);
  std::vector<unsigned char> seen(6 * kPage);
  CALL(gpumem_copy, session.instance(), seen.data(), target, 6 * kPage, nullptr);
  EXPECT_EQ(seen, wanted);
  // Rows of half a page and their gaps, across all pieces, from device memory.
  std::fill(bytes.begin(), bytes.end(), 0xEE);
  CALL(gpumem_copy_2d, session.instance(), first + 100, 3 * kPage / 4, target, kPage / 2, kPage / 2, 7,
       nullptr);
  for (uint64_t row = 0; row < 7; ++row) {
    const unsigned char* const begin = first + 100 + row * 3 * kPage / 4;
    EXPECT_EQ(std::memcmp(begin, &wanted[row * kPage / 2], kPage / 2), 0) << row;
    EXPECT_EQ(begin[kPage / 2], 0xEE);
  }
  CALL(gpumem_stream_destroy, stream);
  CALL(gpumem_memory_destroy, memory);
  CALL(gpumem_memory_destroy, lent);
}

// The page map ends where the addresses of programs end.
TEST_F(HostInterface, NothingIsRegisteredBeyondTheAddressesOfPrograms) {
  const Session session(GPUMEM_BACKEND_HOST, &options_);
  constexpr uint64_t kEnd = uint64_t{1} << 56;
  for (const auto& [begin, size] : {std::pair{kEnd, uint64_t{1}},
                                    {kEnd - 1, uint64_t{2}},
                                    {UINT64_MAX - 8, uint64_t{8}},
                                    {uint64_t{0xffff800000000000}, uint64_t{4096}},
                                    {uint64_t{4096}, kEnd},
                                    {uint64_t{4096}, uint64_t{INT64_MAX}},
                                    {UINT64_MAX, uint64_t{INT64_MAX}}}) {
    EXPECT_EQ(gpumem_register(session.device(), pointer_to(begin), size, 0, nullptr),
              GPUMEM_ERROR_INVALID_ARGUMENT)
        << begin;
    EXPECT_EQ(gpumem_unregister(session.instance(), pointer_to(begin), nullptr), GPUMEM_ERROR_NOT_FOUND);
    EXPECT_EQ(gpumem_fill(session.instance(), pointer_to(begin), 1, 0, 1, nullptr),
              begin == UINT64_MAX ? GPUMEM_ERROR_INVALID_ARGUMENT : GPUMEM_ERROR_NOT_FOUND);
  }
}

}  // namespace
}  // namespace gpumem::test
