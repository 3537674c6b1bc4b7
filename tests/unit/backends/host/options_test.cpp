// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Options of the host backend: defaults, ranges, and the uuids that follow from them.
#include "backends/host/options.h"

#include <set>

#include "host_support.h"

namespace gpumem::host {
namespace {

using test::status_of;

TEST(HostOptions, ZeroMeansTheDefault) {
  auto checked = check_options(backend::HostOptions());
  ASSERT_TRUE(checked);
  auto& options = checked;
  EXPECT_EQ(options->device_count, 2U);
  EXPECT_TRUE(options->strict);
  EXPECT_TRUE(options->fill);
  EXPECT_EQ(options->device_bytes, 4096 * test::kMiB);
  EXPECT_EQ(options->granularity, 512U);
  EXPECT_FALSE(options->pageable);
  EXPECT_FALSE(options->same_pointer);
  EXPECT_EQ(options->lock_mode, GPUMEM_HOST_LOCK_TRY);
  EXPECT_EQ(options->numa_nodes, 0U);
  EXPECT_EQ(options->register_count_max, 65500U);
  EXPECT_EQ(options->lock_piece, 256 * test::kMiB);
  EXPECT_EQ(options->quarantine, 64U);
  EXPECT_EQ(options->links[0], 2U);
  EXPECT_EQ(options->links[1], 1U);
  EXPECT_EQ(options->masked, 0U);
}

TEST(HostOptions, FillFollowsStrictUnlessItIsSet) {
  backend::HostOptions options;
  options.strict = GPUMEM_TOGGLE_OFF;
  EXPECT_FALSE(check_options(options)->fill);
  options.fill = GPUMEM_TOGGLE_ON;
  EXPECT_TRUE(check_options(options)->fill);
}

struct BadValue {
  const char* option;
  void (*set)(backend::HostOptions&);
};

class HostOptionsOutOfRange : public testing::TestWithParam<BadValue> {};

TEST_P(HostOptionsOutOfRange, IsRefusedByName) {
  backend::HostOptions options;
  GetParam().set(options);
  const auto checked = check_options(options);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().status, GPUMEM_ERROR_INVALID_ARGUMENT);
  const std::string start = "the host backend's option " + std::string(GetParam().option) + " (GPUMEM_HOST_";
  EXPECT_EQ(std::string(checked.error().message).rfind(start, 0), 0U) << checked.error().message;
  backend::OpenRequest request;
  request.host = options;
  EXPECT_EQ(status_of(open(request)), GPUMEM_ERROR_INVALID_ARGUMENT);
}

const BadValue kBadValues[] = {
    {"device_count", [](backend::HostOptions& options) { options.device_count = 65; }},
    {"strict", [](backend::HostOptions& options) { options.strict = 3; }},
    {"strict", [](backend::HostOptions& options) { options.strict = -1; }},
    {"device_bytes", [](backend::HostOptions& options) { options.device_bytes = 511; }},
    {"device_bytes", [](backend::HostOptions& options) { options.device_bytes = uint64_t{1} << 63; }},
    {"granularity", [](backend::HostOptions& options) { options.granularity = 3 * test::kMiB; }},
    {"granularity", [](backend::HostOptions& options) { options.granularity = 256; }},
    {"granularity", [](backend::HostOptions& options) { options.granularity = uint64_t{1} << 31; }},
    {"device_bytes",
     [](backend::HostOptions& options) {
       options.device_bytes = 64 * test::kMiB;
       options.granularity = uint64_t{1} << 30;
     }},
    {"pageable", [](backend::HostOptions& options) { options.pageable = 7; }},
    {"same_pointer", [](backend::HostOptions& options) { options.same_pointer = 7; }},
    {"lock_mode", [](backend::HostOptions& options) { options.lock_mode = 4; }},
    {"numa_nodes", [](backend::HostOptions& options) { options.numa_nodes = 65; }},
    {"lock_piece", [](backend::HostOptions& options) { options.lock_piece = 5000; }},
    // so large that a count of pieces would wrap
    {"lock_piece", [](backend::HostOptions& options) { options.lock_piece = 0 - platform::page_size(); }},
    {"quarantine", [](backend::HostOptions& options) { options.quarantine = 65537; }},
    {"fill", [](backend::HostOptions& options) { options.fill = 9; }},
    {"peers", [](backend::HostOptions& options) { options.peers = "some"; }},
    {"peers", [](backend::HostOptions& options) { options.peers = ""; }},
    {"peers", [](backend::HostOptions& options) { options.peers = "0>2"; }},
    {"peers", [](backend::HostOptions& options) { options.peers = "1>1"; }},
    {"peers", [](backend::HostOptions& options) { options.peers = "0>1,>0"; }},
    {"peers", [](backend::HostOptions& options) { options.peers = "0>1x"; }},
    {"peers", [](backend::HostOptions& options) { options.peers = "-0>1"; }},
    {"masked", [](backend::HostOptions& options) { options.masked = "write_value,everything"; }},
};

INSTANTIATE_TEST_SUITE_P(Each, HostOptionsOutOfRange, testing::ValuesIn(kBadValues));

TEST(HostOptions, PeersAreDirected) {
  backend::HostOptions options;
  options.device_count = 64;
  options.peers = "0>1,63>0,0>63";
  auto checked = check_options(options);
  ASSERT_TRUE(checked);
  auto& value = checked;
  EXPECT_EQ(value->links[0], uint64_t{1} << 63 | 2);
  EXPECT_EQ(value->links[63], 1U);
  EXPECT_EQ(value->links[1], 0U);
  options.peers = "none";
  EXPECT_EQ(check_options(options)->links[0], 0U);
  options.peers = "all";
  EXPECT_EQ(check_options(options)->links[63], ~(uint64_t{1} << 63));
}

TEST(HostOptions, MaskedEntryPointsAreMissing) {
  backend::HostOptions options;
  options.masked = "copy_2d,peer_access";
  auto checked = check_options(options);
  ASSERT_TRUE(checked);
  auto& value = checked;
  EXPECT_EQ(status_of(value->require(EntryPoint::kCopy2d)), GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(status_of(value->require(EntryPoint::kPeerAccess)), GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_TRUE(value->require(EntryPoint::kFill2d));
  EXPECT_TRUE(value->require(EntryPoint::kLaunchHostFunction));
}

TEST(HostOptions, UuidsFollowFromTheConfiguration) {
  backend::HostOptions options;
  auto first = check_options(options);
  auto again = check_options(options);
  EXPECT_EQ(device_uuid(*first, 0), device_uuid(*again, 0));
  std::set<std::array<uint8_t, 16>> seen{device_uuid(*first, 0)};
  EXPECT_TRUE(seen.insert(device_uuid(*first, 1)).second);
  options.device_bytes = 128 * test::kMiB;
  EXPECT_TRUE(seen.insert(device_uuid(*check_options(options), 0)).second);
  options.peers = "none";
  EXPECT_TRUE(seen.insert(device_uuid(*check_options(options), 0)).second);
  options.strict = GPUMEM_TOGGLE_OFF;
  EXPECT_TRUE(seen.insert(device_uuid(*check_options(options), 0)).second);
}

// Exporter and importer may be of different builds, so the rule itself must never change.
TEST(HostOptions, UuidOfTheDefaultsIsThisOne) {
  char text[33] = "";
  const auto uuid = device_uuid(*check_options(backend::HostOptions()).operator->(), 0);
  for (size_t byte = 0; byte < uuid.size(); ++byte)
    std::snprintf(text + 2 * byte, 3, "%02x", uuid.at(byte));
  EXPECT_STREQ(text, "4e351b2be45a8ad883850461e2efac1d");
}

}  // namespace
}  // namespace gpumem::host
