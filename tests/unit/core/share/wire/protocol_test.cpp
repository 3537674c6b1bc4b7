// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The messages of sharing: round trips, and every way in which bytes can be wrong.
#include "core/share/wire/protocol.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>

#include "core/share/peer/hub_table.h"
#include "packets.h"
#include "platform/socket.h"
#include "process_support.h"

namespace gpumem::core {
namespace {

constexpr std::array kTypes{
    MessageType::kHello,     MessageType::kClaim,   MessageType::kRelease, MessageType::kEnumerate,
    MessageType::kWait,      MessageType::kCancel,  MessageType::kFetch,   MessageType::kPublish,
    MessageType::kWithdraw,  MessageType::kWelcome, MessageType::kGranted, MessageType::kEntry,
    MessageType::kPublished, MessageType::kDone,    MessageType::kRefused, MessageType::kWithdrawn,
    MessageType::kPass,      MessageType::kMore,    MessageType::kTrial,   MessageType::kTried};

ShareHandle handle_with(uint32_t descriptors) {
  ShareHandle handle;
  handle.way = GPUMEM_SHARE_WAY_POSIX_FD;
  handle.backend = GPUMEM_BACKEND_HOST;
  handle.size = uint64_t{1} << 30;
  handle.offset = 17;
  handle.fd_count = descriptors;
  handle.token.fill(7);
  handle.exporter.pid = 42;
  return handle;
}

// One with a value in every field.
Message full(MessageType type, uint32_t descriptors = 2) {
  Message message;
  message.type = type;
  message.number = 0x0123456789abcdef;
  message.token.fill(0x5a);
  message.secret = {1, 2, 3};
  message.keeper = true;
  message.handle = handle_with(descriptors);
  message.name = "batch \xc3\xa4";
  message.version = 99;
  message.once = true;
  message.index = 12;
  message.access = GPUMEM_ACCESS_READWRITE;
  message.keep = 5;
  message.fingerprint.fill(9);
  message.entry = {"name", 3,    4096,  GPUMEM_SHARE_TYPE_EVENT, GPUMEM_SHARE_WAY_LEGACY, GPUMEM_ACCESS_READ,
                   17,     true, 65534, message.fingerprint};
  message.status = GPUMEM_ERROR_STALE_HANDLE;
  message.text = "why";
  if (type == MessageType::kGranted || type == MessageType::kPublish) message.descriptor_count = descriptors;
  if (type == MessageType::kPass) message.descriptor_count = descriptors + 1;
  if (type == MessageType::kMore || type == MessageType::kTrial) message.descriptor_count = 2;
  if (type == MessageType::kTrial) message.handle.fd_count = 1;
  message.packet_count = type == MessageType::kMore
                             ? 1
                             : std::min<uint32_t>(message.descriptor_count, platform::kDescriptorsPerPacket);
  message.other_device = message.slow = true;
  return message;
}

platform::Descriptors files(size_t count) {
  platform::Descriptors made;
  for (size_t i = 0; i < count; ++i)
    made.emplace_back(memfd_create("test", MFD_CLOEXEC));
  return made;
}

TEST(ShareProtocol, EveryMessageComesBackAsItWas) {
  for (const MessageType type : kTypes) {
    const std::vector<uint8_t> bytes = encode_message(full(type));
    EXPECT_LE(bytes.size(), kPacketMax);
    auto back = decode_message(bytes);
    ASSERT_TRUE(back) << static_cast<int>(type) << ": " << back.error().message;
    EXPECT_EQ(back->type, type);
    EXPECT_EQ(back->number, full(type).number);
    EXPECT_EQ(encode_message(*back), bytes) << static_cast<int>(type);
  }
}

TEST(ShareProtocol, FieldsArriveWhereTheyBelong) {
  auto publish = decode_message(encode_message(full(MessageType::kPublish)));
  ASSERT_TRUE(publish);
  EXPECT_EQ(publish->name, "batch \xc3\xa4");
  EXPECT_EQ(publish->version, 99U);
  EXPECT_EQ(publish->keep, 5U);
  EXPECT_EQ(publish->access, GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(publish->handle.size, uint64_t{1} << 30);
  EXPECT_EQ(publish->handle.offset, 17U);
  EXPECT_EQ(publish->handle.exporter.pid, 42);
  auto refused = decode_message(encode_message(full(MessageType::kRefused)));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, GPUMEM_ERROR_STALE_HANDLE);
  EXPECT_EQ(refused->text, "why");
  auto entry = decode_message(encode_message(full(MessageType::kEntry)));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->entry.name, "name");
  EXPECT_EQ(entry->entry.publisher, 17);
  EXPECT_TRUE(entry->entry.publisher_gone);
  EXPECT_EQ(entry->entry.user, 65534U);
}

TEST(ShareProtocol, AllThatIsTooShortOrTooLongIsRefused) {
  for (const MessageType type : kTypes) {
    std::vector<uint8_t> bytes = encode_message(full(type));
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(decode_message({bytes.data(), size})) << static_cast<int>(type) << " of " << size;
    bytes.push_back(0);
    EXPECT_FALSE(decode_message(bytes));
    // With a length that agrees.
    const auto size = static_cast<uint32_t>(bytes.size() - kMessageHeaderSize);
    std::memcpy(bytes.data() + 8, &size, sizeof size);
    EXPECT_FALSE(decode_message(bytes)) << static_cast<int>(type);
  }
}

TEST(ShareProtocol, HeadersWithWrongValuesAreRefused) {
  const std::vector<uint8_t> good = encode_message(full(MessageType::kClaim));
  const auto with = [&](size_t offset, std::vector<uint8_t> values) {
    std::vector<uint8_t> bytes = good;
    std::copy(values.begin(), values.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    return decode_message(bytes);
  };
  EXPECT_EQ(with(0, {'x'}).error().status, GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(with(4, {2, 0}).error().status, GPUMEM_ERROR_UNSUPPORTED);
  for (const int type : {0, 10, 31, 38, 63, 67, 255})
    EXPECT_EQ(with(6, {static_cast<uint8_t>(type)}).error().status, GPUMEM_ERROR_INVALID_ARGUMENT) << type;
  EXPECT_FALSE(with(8, {0xff, 0xff, 0xff, 0xff}));
  EXPECT_FALSE(with(12, {0xff, 0xff, 0xff, 0xff}));
  EXPECT_FALSE(with(12, {1})) << "a claim has no descriptors";
  EXPECT_TRUE(with(16, {0xff}));
}

TEST(ShareProtocol, BodiesWithWrongValuesAreRefused) {
  const auto refused = [](Message message) {
    const auto back = decode_message(encode_message(message));
    return !back && back.error().status == GPUMEM_ERROR_INVALID_ARGUMENT;
  };
  Message message = full(MessageType::kFetch);
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string("a\nb"), std::string("\x7f"), std::string(64, 'a'),
        std::string("\xff"), std::string("\xc0\xaf"), std::string("\xed\xa0\x80"), std::string("\xc2\x85"),
        std::string("a\0b", 3), std::string("\xe2\x82")}) {
    message.name = name;
    EXPECT_TRUE(refused(message)) << name;
  }
  message = full(MessageType::kHello);
  message.secret.resize(kSecretMax);
  EXPECT_FALSE(refused(message));
  message.secret.resize(kSecretMax + 1);
  EXPECT_TRUE(refused(message));
  message = full(MessageType::kPublish);
  message.access = 2;
  EXPECT_TRUE(refused(message));
  message = full(MessageType::kPublish);
  message.version = kVersionLast - 1;
  EXPECT_FALSE(refused(message));
  message.version = kVersionLast;
  EXPECT_TRUE(refused(message));
  message = full(MessageType::kEntry);
  message.entry.access = GPUMEM_ACCESS_NONE;
  EXPECT_TRUE(refused(message));
  message = full(MessageType::kEntry);
  message.entry.way = GPUMEM_SHARE_WAY_DMA_BUF;
  EXPECT_TRUE(refused(message));
  message = full(MessageType::kRefused);
  for (const gpumem_status status : {GPUMEM_SUCCESS, GPUMEM_NOT_READY, gpumem_status{-9999}}) {
    message.status = status;
    EXPECT_TRUE(refused(message)) << status;
  }
  message = full(MessageType::kEntry);
  message.entry.version = 0;
  EXPECT_TRUE(refused(message));
  message = full(MessageType::kPublished);
  message.version = 0;
  EXPECT_TRUE(refused(message));
  message = full(MessageType::kGranted);
  message.descriptor_count = message.packet_count = 1;
  EXPECT_TRUE(refused(message)) << "another number than the handle says";
  message = full(MessageType::kPass);
  message.descriptor_count = 2;
  EXPECT_TRUE(refused(message)) << "one for the connection is missing";
  message = full(MessageType::kTrial);
  message.descriptor_count = message.packet_count = 1;
  EXPECT_TRUE(refused(message)) << "one for the connection is missing";
  message.handle.fd_count = 2;
  message.descriptor_count = 3;
  EXPECT_TRUE(refused(message)) << "a trial is of one block";
  for (const MessageType type : {MessageType::kGranted, MessageType::kMore}) {
    message = full(type);
    for (const uint32_t count : {0U, 3U}) {
      message.packet_count = count;
      EXPECT_TRUE(refused(message)) << "none or more of them with one packet: " << count;
    }
  }
  message = full(MessageType::kGranted, 254);
  message.packet_count = 254;
  EXPECT_TRUE(refused(message)) << "more than a packet carries";
  message = full(MessageType::kTried);
  for (const gpumem_status status : {GPUMEM_NOT_READY, gpumem_status{-9999}}) {
    message.status = status;
    EXPECT_TRUE(refused(message)) << status;
  }
  message.status = GPUMEM_SUCCESS;
  EXPECT_FALSE(refused(message));
}

TEST(ShareProtocol, ADamagedHandleIsRefused) {
  std::vector<uint8_t> bytes = encode_message(full(MessageType::kGranted));
  bytes[kMessageHeaderSize + 100] ^= 1;
  EXPECT_FALSE(decode_message(bytes));
}

TEST(ShareProtocol, TextsOfOthersAreShownOnOneLineAndCutAtACharacter) {
  Message message = full(MessageType::kRefused);
  message.text = "a\nb\x1b[31m";
  EXPECT_EQ(decode_message(encode_message(message))->text, "a?b?[31m");
  message.text = "\xc3\xa4 \xff\xc3 z";
  EXPECT_EQ(decode_message(encode_message(message))->text, "\xc3\xa4 ?? z");
  message.text = "a\xc2\x9b[2J\xc2\xa0";
  EXPECT_EQ(decode_message(encode_message(message))->text, "a??[2J\xc2\xa0") << "U+009B begins a command";
  message.text = std::string(254, 'a') + "\xc3\xa4";
  EXPECT_EQ(decode_message(encode_message(message))->text, std::string(254, 'a'));
}

TEST(ShareProtocol, RandomAndFlippedBytesNeverHarm) {
  std::mt19937 random(1);
  uint64_t accepted = 0;
  for (int i = 0; i < 50000; ++i) {
    std::vector<uint8_t> bytes = encode_message(full(kTypes[random() % kTypes.size()]));
    if (random() % 4 == 0) bytes.resize(random() % kPacketMax);
    for (uint32_t flips = random() % 4; flips > 0 && !bytes.empty(); --flips)
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    auto message = decode_message(bytes);
    if (!message) continue;
    ++accepted;
    // What was taken is what is passed on.
    const std::vector<uint8_t> again = encode_message(*message);
    auto same = decode_message(again);
    ASSERT_TRUE(same) << same.error().message;
    EXPECT_EQ(encode_message(*same), again);
  }
  EXPECT_GT(accepted, 0U);
}

TEST(ShareProtocol, SecretsAreComparedAsAWhole) {
  const std::vector<uint8_t> secret{1, 2, 3};
  EXPECT_TRUE(equal_secrets(secret, secret));
  EXPECT_TRUE(equal_secrets({}, {}));
  EXPECT_FALSE(equal_secrets(secret, {}));
  for (const std::vector<uint8_t>& other : std::vector<std::vector<uint8_t>>{{1, 2}, {1, 2, 4}, {1, 2, 3, 0}})
    EXPECT_FALSE(equal_secrets(secret, other));
}

// ---- several packets ----

Assembler::DescriptorsMax at_most(uint32_t count) {
  return [count](const Message& /*head*/) { return count; };
}

Result<std::optional<Incoming>> give(Assembler& assembler, Packet& packet, uint32_t most = 65536) {
  return assembler.take(packet.bytes, std::move(packet.descriptors), at_most(most));
}

TEST(ShareAssembler, AThousandDescriptorsComeInSeveralPackets) {
  const uint64_t before = test::open_files();
  {
    Message message = full(MessageType::kGranted, 900);
    std::vector<Packet> packets = split_message(message, files(900));
    ASSERT_EQ(packets.size(), 4U);
    Assembler assembler;
    for (size_t i = 0; i < packets.size(); ++i) {
      auto whole = give(assembler, packets[i]);
      ASSERT_TRUE(whole) << whole.error().message;
      EXPECT_EQ(whole->has_value(), i == 3);
      EXPECT_EQ(assembler.open() != nullptr, i != 3);
      EXPECT_EQ(*whole ? (*whole)->descriptors.size() : 0U, i == 3 ? 900U : 0U);
    }
    EXPECT_EQ(assembler.descriptors(), 0U);
  }
  EXPECT_EQ(test::open_files(), before);
}

TEST(ShareAssembler, APacketBringsAsManyAsItsSenderLikes) {
  Message message = full(MessageType::kGranted, 5);
  const std::vector<Packet> packets = split_message(message, files(5), 1);
  ASSERT_EQ(packets.size(), 5U);
  for (const bool none_free : {false, true}) {
    Assembler assembler;
    for (size_t i = 0; i < packets.size(); ++i) {
      auto whole = assembler.take(packets[i].bytes, files(none_free && i == 2 ? 0 : 1), at_most(5),
                                  none_free && i == 2);
      ASSERT_TRUE(whole) << whole.error().message;
      ASSERT_EQ(whole->has_value(), i == 4) << "the next message begins where this one ends";
      EXPECT_EQ(*whole ? (*whole)->descriptors.size() : 0U, i == 4 && !none_free ? 5U : 0U);
    }
  }
}

TEST(ShareAssembler, MoreThanThereIsRoomForIsClosedAndSaid) {
  Message message = full(MessageType::kPublish, 300);
  std::vector<Packet> packets = split_message(message, files(300));
  const uint64_t before = test::open_files();
  Assembler assembler;
  ASSERT_TRUE(give(assembler, packets[0], 299));
  EXPECT_EQ(assembler.descriptors(), 0U);
  auto whole = give(assembler, packets[1], 299);
  ASSERT_TRUE(whole);
  ASSERT_TRUE(*whole);
  EXPECT_TRUE((*whole)->too_many);
  EXPECT_TRUE((*whole)->descriptors.empty());
  EXPECT_EQ(test::open_files(), before - 300);
}

TEST(ShareAssembler, OtherDescriptorsThanAnnouncedAreRefusedAndClosed) {
  const uint64_t before = test::open_files();
  for (const size_t count : {0U, 1U, 3U}) {
    Assembler assembler;
    const auto taken =
        assembler.take(encode_message(full(MessageType::kGranted, 2)), files(count), at_most(100));
    ASSERT_FALSE(taken) << count;
    EXPECT_EQ(std::strstr(taken.error().message, "without its 2 file descriptors") != nullptr, count == 0)
        << taken.error().message;
    EXPECT_EQ(assembler.open(), nullptr);
  }
  Assembler assembler;
  EXPECT_FALSE(assembler.take(encode_message(full(MessageType::kClaim)), files(1), at_most(100)));
  EXPECT_EQ(test::open_files(), before);
}

TEST(ShareAssembler, PacketsOutOfOrderAreRefused) {
  const auto begin = [](Assembler& assembler) {
    Message message = full(MessageType::kGranted, 300);
    std::vector<Packet> packets = split_message(message, files(300));
    EXPECT_TRUE(give(assembler, packets[0]));
    return std::move(packets[1]);
  };
  {
    Assembler assembler;
    EXPECT_FALSE(assembler.take(encode_message(full(MessageType::kMore)), files(1), at_most(100)))
        << "MORE of nothing";
  }
  {
    Assembler assembler;
    begin(assembler);
    EXPECT_FALSE(assembler.take(encode_message(full(MessageType::kClaim)), {}, at_most(100)))
        << "in the middle";
  }
  {
    Assembler assembler;
    Packet more = begin(assembler);
    more.bytes[16] ^= 1;
    EXPECT_FALSE(give(assembler, more)) << "of another message";
  }
  {
    Assembler assembler;
    Packet more = begin(assembler);
    Packet again;
    again.bytes = more.bytes;
    again.descriptors = files(47);
    EXPECT_TRUE(give(assembler, more));
    EXPECT_FALSE(give(assembler, again)) << "replayed";
  }
  {
    Assembler assembler;
    Packet more = begin(assembler);
    more.descriptors.pop_back();
    EXPECT_FALSE(give(assembler, more)) << "one is missing";
  }
}

// ---- names and versions ----

HubTable::Request entry(const std::string& name, uint8_t token, uint64_t version = 0, uint32_t keep = 0) {
  HubTable::Request request;
  request.name = name;
  request.version = version;
  request.keep = keep;
  request.user = 1;
  request.published.handle = handle_with(2);
  request.published.handle.token.fill(token);
  request.published.handle.access = GPUMEM_ACCESS_READ;
  return request;
}

Token token_of(uint8_t value) {
  Token token;
  token.fill(value);
  return token;
}

TEST(HubTable, VersionsGoUpwardsAndOlderOnesGo) {
  HubTable table{HubLimits()};
  std::vector<Token> gone;
  EXPECT_EQ(*table.publish(entry("a", 1), &gone), 1U);
  EXPECT_EQ(*table.publish(entry("a", 2, 10), &gone), 10U);
  EXPECT_TRUE(gone.empty()) << "one older version is kept";
  EXPECT_EQ(table.publish(entry("a", 3, 10), &gone).error().status, GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_EQ(table.publish(entry("a", 3, 9), &gone).error().status, GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_EQ(*table.publish(entry("a", 3), &gone), 11U);
  EXPECT_EQ(gone, std::vector<Token>{token_of(1)});
  EXPECT_EQ(table.version_count(), 2U);
  EXPECT_EQ(table.descriptor_count(), 4U);
  uint64_t found = 0;
  ASSERT_NE(table.find("a", 0, {}, &found), nullptr);
  EXPECT_EQ(found, 11U);
  EXPECT_EQ(table.find("a", 1, {}, &found), nullptr);
  EXPECT_NE(table.find(token_of(2)), nullptr);
  EXPECT_EQ(table.find(token_of(1)), nullptr);
}

TEST(HubTable, ANameThatWasWithdrawnDoesNotRunBackwards) {
  HubTable table{HubLimits()};
  std::vector<Token> gone;
  EXPECT_EQ(*table.publish(entry("a", 1, 7), &gone), 7U);
  ASSERT_TRUE(table.withdraw("a", 0, 1, &gone));
  EXPECT_EQ(gone, std::vector<Token>{token_of(1)});
  EXPECT_EQ(table.name_count(), 0U);
  EXPECT_EQ(table.descriptor_count(), 0U);
  EXPECT_EQ(table.withdraw("a", 0, 1, &gone).error().status, GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(table.publish(entry("a", 2, 7), &gone).error().status, GPUMEM_ERROR_INVALID_STATE);
  EXPECT_EQ(*table.publish(entry("a", 2), &gone), 8U);
}

// Of many names only the highest number is remembered.
TEST(HubTable, AfterManyWithdrawalsVersionsStillGoUpwards) {
  HubLimits limits;
  limits.names = 1;
  HubTable table(limits);
  std::vector<Token> gone;
  const auto come_and_go = [&](const std::string& name, uint32_t user, uint64_t version = 0) {
    HubTable::Request request = entry(name, 1, version);
    request.user = user;
    auto number = table.publish(std::move(request), &gone);
    EXPECT_TRUE(number && table.withdraw(name, 0, user, &gone));
    return number ? *number : 0;
  };
  EXPECT_EQ(come_and_go("first", 1, 7), 7U);
  EXPECT_EQ(come_and_go("second", 1, 3), 3U);
  for (const char* name : {"a", "b", "c"})
    EXPECT_EQ(come_and_go(name, 1), 1U);
  EXPECT_EQ(come_and_go("d", 1), 8U) << "above all that were forgotten";
  EXPECT_EQ(come_and_go("first", 1), 8U);
  EXPECT_EQ(come_and_go("second", 1), 8U);
  EXPECT_EQ(come_and_go("new", 2), 1U) << "one user's numbers are no matter of another one's";
}

TEST(HubTable, ATokenIsGoneWithItsLastVersion) {
  HubTable table{HubLimits()};
  std::vector<Token> gone;
  ASSERT_TRUE(table.publish(entry("a", 1), &gone));
  ASSERT_TRUE(table.publish(entry("b", 1), &gone));
  ASSERT_TRUE(table.withdraw("a", 1, 1, &gone));
  EXPECT_TRUE(gone.empty());
  ASSERT_TRUE(table.withdraw("b", 0, 1, &gone));
  EXPECT_EQ(gone.size(), 1U);
  ASSERT_TRUE(table.publish(entry("c", 5), &gone));
  ASSERT_TRUE(table.publish(entry("d", 5), &gone));
  table.remove(token_of(5));
  EXPECT_EQ(table.name_count(), 0U);
}

// Another link, also of this user, has read the handle at most. What it publishes stays apart.
TEST(HubTable, AHandleThatAnotherLinkHasPublishedGetsANewToken) {
  HubTable table{HubLimits()};
  std::vector<Token> gone;
  const auto publish = [&](const char* name, uint32_t user, uint64_t link) {
    HubTable::Request request = entry(name, 1);
    request.user = user;
    request.published.kept = true;
    request.published.publisher = link;
    EXPECT_TRUE(table.publish(std::move(request), &gone)) << name;
    uint64_t version = 0;
    return table.find(name, 0, {}, &version)->handle.token;
  };
  EXPECT_EQ(publish("first", 2, 20), token_of(1));
  const Token other = publish("another user", 1, 10);
  EXPECT_NE(other, token_of(1));
  EXPECT_NE(publish("the same again", 1, 10), other);
  EXPECT_NE(publish("another link", 2, 21), token_of(1));
  EXPECT_EQ(publish("the link of the first", 2, 20), token_of(1));
  const auto refused = table.publish(entry("by the hub itself", 1), &gone);
  EXPECT_EQ(refused.error().status, GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_NE(std::strstr(refused.error().message, "this handle as \"first\""), nullptr)
      << refused.error().message;
  EXPECT_TRUE(gone.empty());
}

// Numbers that a user can use up with names that nobody needs are its own.
TEST(HubTable, NobodysNumbersAreUsedUpByNamesOfAnotherUser) {
  HubLimits limits;
  limits.names = 4;
  HubTable table{limits};
  std::vector<Token> gone;
  const auto publish = [&](const std::string& name, uint32_t user, uint64_t version) {
    HubTable::Request request = entry(name, 1, version);
    request.user = user;
    return table.publish(std::move(request), &gone).ok();
  };
  const auto come_and_go = [&](const std::string& name, uint32_t user, uint64_t version) {
    EXPECT_TRUE(publish(name, user, version)) << name;
    EXPECT_TRUE(table.withdraw(name, 0, user, &gone)) << name;
  };
  come_and_go("mine", 1, 1000);
  for (int i = 0; i < 40; ++i)
    come_and_go("theirs" + std::to_string(i), 2, 0);
  EXPECT_TRUE(publish("fresh", 1, 5));
  EXPECT_FALSE(publish("mine", 1, 1000)) << "it has had this one";
}

// Where several users publish.
class HubTableOfUsers : public testing::Test {
 protected:
  HubTable::Request entry_of(uint32_t user, uint32_t number, bool shared = true) const {
    HubTable::Request request = entry(std::to_string(user) + "-" + std::to_string(number), 0);
    request.user = user;
    request.shared = shared;
    request.published.handle.token = {static_cast<uint8_t>(user), static_cast<uint8_t>(number)};
    request.published.handle.fd_count = descriptors_;
    request.published.handle.size = 1000;
    request.published.kept = true;
    return request;
  }
  // How many names a user gets until it is refused, for this limit.
  uint32_t published(HubTable& table, uint32_t user, const char* limit, bool shared = true) const {
    std::vector<Token> gone;
    for (uint32_t number = 0;; ++number) {
      auto version = table.publish(entry_of(user, number, shared), &gone);
      if (version) continue;
      EXPECT_EQ(version.error().status, GPUMEM_ERROR_LIMIT_EXCEEDED);
      EXPECT_NE(std::strstr(version.error().message, limit), nullptr) << version.error().message;
      const std::string who = "user " + std::to_string(user) + " may have";
      EXPECT_EQ(std::strstr(version.error().message, who.c_str()) != nullptr, shared);
      return number;
    }
  }

  uint32_t descriptors_ = 0;
  uint8_t tokens_ = 0;
};

TEST_F(HubTableOfUsers, EachHasAShareOfTheNames) {
  HubLimits limits;
  limits.names = 24;
  HubTable table(limits);
  EXPECT_EQ(published(table, 1, "names_max = 24"), 12U);
  EXPECT_EQ(published(table, 2, "names_max = 24"), 4U);
  EXPECT_EQ(published(table, 3, "names_max = 24"), 2U);
  std::vector<Token> gone;
  EXPECT_TRUE(table.publish(entry_of(1, 0), &gone)) << "a name that it has";
  ASSERT_TRUE(table.withdraw("1-0", 0, 1, &gone));
  EXPECT_FALSE(table.publish(entry_of(1, 0), &gone)) << "others have come since";
  EXPECT_EQ(published(table, 9, "names_max", false), 7U) << "the process of the hub takes what is there";
}

TEST_F(HubTableOfUsers, EachHasAShareOfTheDescriptors) {
  HubLimits limits;
  limits.descriptors = 60;
  HubTable table(limits);
  descriptors_ = 3;
  EXPECT_EQ(published(table, 1, "fds_max = 60"), 10U);
  EXPECT_EQ(published(table, 2, "fds_max = 60"), 3U);
  EXPECT_EQ(published(table, 3, "fds_max = 60"), 1U);
  EXPECT_EQ(table.descriptor_count(), 42U);
}

TEST_F(HubTableOfUsers, EachHasAShareOfTheBytes) {
  HubLimits limits;
  limits.bytes = 60'000;
  HubTable table(limits);
  EXPECT_EQ(published(table, 1, "bytes_max = 60000"), 30U);
  EXPECT_EQ(published(table, 2, "bytes_max = 60000"), 10U);
  std::vector<Token> gone;
  HubTable::Request exported = entry_of(2, 10);
  exported.published.kept = false;
  exported.published.handle.size = 50'000;
  EXPECT_TRUE(table.publish(std::move(exported), &gone)) << "only what links publish counts";
}

// A publisher goes on replacing versions, also when others have come and its share has become smaller.
TEST_F(HubTableOfUsers, WhoReplacesWhatItHasIsNotRefused) {
  HubLimits limits;
  limits.descriptors = 12;
  limits.bytes = 12'000;
  HubTable table(limits);
  std::vector<Token> gone;
  const auto publish = [&](uint32_t user, uint32_t descriptors, uint64_t size) {
    HubTable::Request request = entry_of(user, 0);
    request.published.handle.token = {static_cast<uint8_t>(user), ++tokens_};
    request.published.handle.fd_count = descriptors;
    request.published.handle.size = size;
    return static_cast<bool>(table.publish(std::move(request), &gone));
  };
  EXPECT_TRUE(publish(1, 3, 3000));
  EXPECT_TRUE(publish(1, 3, 3000)) << "with it the half; from now on one goes with each";
  EXPECT_TRUE(publish(2, 1, 1000)) << "a share of the rest";
  EXPECT_TRUE(publish(1, 3, 3000));
  EXPECT_FALSE(publish(1, 4, 3000)) << "more than goes";
  EXPECT_FALSE(publish(1, 3, 3001));
  EXPECT_TRUE(publish(1, 3, 3000));
  EXPECT_TRUE(publish(1, 1, 1000));
  EXPECT_EQ(table.descriptor_count(), 5U);
}

TEST(HubTable, LimitsHoldAndAreNamed) {
  HubLimits limits;
  limits.names = 2;
  limits.versions = 2;
  limits.descriptors = 8;
  limits.bytes = 3 << 20;
  HubTable table(limits);
  std::vector<Token> gone;
  const auto refused_for = [&](const HubTable::Request& request, const char* limit) {
    HubTable::Request copy =
        entry(request.name, request.published.handle.token[0], request.version, request.keep);
    copy.published.handle = request.published.handle;
    copy.published.kept = request.published.kept;
    auto version = table.publish(std::move(copy), &gone);
    return !version && version.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED &&
           std::strstr(version.error().message, limit) != nullptr;
  };
  ASSERT_TRUE(table.publish(entry("a", 1), &gone));
  ASSERT_TRUE(table.publish(entry("b", 2), &gone));
  EXPECT_TRUE(refused_for(entry("c", 3), "names_max"));
  ASSERT_TRUE(table.publish(entry("a", 3, 0, 9), &gone));
  EXPECT_TRUE(refused_for(entry("a", 4, 0, 9), "versions_max"));
  ASSERT_TRUE(table.publish(entry("b", 5, 0, 9), &gone));
  ASSERT_TRUE(table.withdraw("a", 1, 1, &gone));
  HubTable::Request big = entry("a", 6, 0, 9);
  big.published.handle.fd_count = 3;
  EXPECT_TRUE(refused_for(big, "fds_max"));
  big.published.handle.fd_count = 2;
  big.published.handle.size = 4 << 20;
  big.published.kept = true;
  EXPECT_TRUE(refused_for(big, "bytes_max"));
  EXPECT_EQ(table.version_count(), 3U);
  EXPECT_EQ(table.descriptor_count(), 6U);
}

TEST(HubTable, AnotherUserHasNoSayInAName) {
  HubTable table{HubLimits()};
  std::vector<Token> gone;
  ASSERT_TRUE(table.publish(entry("a", 1), &gone));
  HubTable::Request other = entry("a", 2);
  other.user = 2;
  EXPECT_EQ(table.publish(std::move(other), &gone).error().status, GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(table.withdraw("a", 0, 2, &gone).error().status, GPUMEM_ERROR_PERMISSION_DENIED);
  HubTable::Request same_token = entry("b", 1);
  same_token.user = 2;
  EXPECT_EQ(table.publish(std::move(same_token), &gone).error().status, GPUMEM_ERROR_PERMISSION_DENIED);
}

TEST(HubTable, ListsInOrderAndFindsByFingerprint) {
  HubTable table{HubLimits()};
  std::vector<Token> gone;
  HubTable::Request first = entry("b", 1, 4);
  first.published.fingerprint.fill(3);
  ASSERT_TRUE(table.publish(std::move(first), &gone));
  ASSERT_TRUE(table.publish(entry("b", 2, 5), &gone));
  ASSERT_TRUE(table.publish(entry("a", 3), &gone));
  EXPECT_EQ(table.at(0)->name, "a");
  EXPECT_EQ(table.at(1)->version, 4U);
  EXPECT_EQ(table.at(2)->version, 5U);
  EXPECT_EQ(table.at(3).error().status, GPUMEM_ERROR_NOT_FOUND);
  Fingerprint wanted;
  wanted.fill(3);
  uint64_t found = 0;
  ASSERT_NE(table.find("b", 0, wanted, &found), nullptr);
  EXPECT_EQ(found, 4U);
  EXPECT_EQ(table.find("b", 5, wanted, &found), nullptr);
  HubEntry newest;
  EXPECT_TRUE(table.newest("b", 4, &newest));
  EXPECT_EQ(newest.version, 5U);
  EXPECT_FALSE(table.newest("b", 5, &newest));
}

TEST(HubTable, TheLastVersionThereIsEndsAName) {
  HubTable table{HubLimits()};
  std::vector<Token> gone;
  HubTable::Request restored = entry("a", 1, kVersionLast - 1);
  restored.published.stored = std::make_shared<int>();
  ASSERT_TRUE(table.publish(std::move(restored), &gone));
  EXPECT_EQ(table.publish(entry("a", 2), &gone).error().status, GPUMEM_ERROR_LIMIT_EXCEEDED);
}

}  // namespace
}  // namespace gpumem::core
