// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What processes that share say to each other.
//
// A message is one packet of a Unix socket: a header of 24 bytes and a body. Some of its descriptors come
// with it, the others with packets MORE that follow it at once: 1 to 253 with each packet, as many as the
// sender may have on their way. On a caller's own stream socket the bytes are the same.
//
//   offset  bytes
//        0      4  magic "gpms"
//        4      2  version of the protocol, 1
//        6      2  type
//        8      4  bytes of the body, as many as the type has, at most 1,024
//       12      3  descriptors of the message
//       15      1  those of them that come with this packet
//       16      8  number of a request; that of the request in its answer and in MORE; else 0
//
// A holder holds exports. Its connection goes to the abstract address of an instance, or came as a descriptor
// with PASS or WELCOME. A link asks a hub. State by state, what the server takes, and what it answers:
//
// * greeted, which begins when a connection is accepted at an address
//   - HELLO: WELCOME, and the connection is a holder or a link; or REFUSED, and it ends
// * holder, once greeted or handed out
//   - CLAIM of a token: GRANTED with descriptors, or REFUSED
//   - RELEASE of a token that it has claimed: nothing
// * link, once greeted at a hub
//   - ENUMERATE, FETCH, WITHDRAW: ENTRY, GRANTED, DONE; or REFUSED
//   - WAIT: ENTRY when there is one; with `once` at once, or REFUSED
//   - CANCEL of a WAIT: nothing
//   - PUBLISH with descriptors: PUBLISHED, or REFUSED
//   - TRIAL with a connection and the descriptors of one small block, at most one at a time and 64 in all:
//   TRIED when
//     another thread has opened the block, or REFUSED
// * any, while MORE is missing
//   - MORE of the same number: as the message that is complete with it
//
// The server also says WITHDRAWN of a token to a holder that has claimed it, at most once for each claim.
// Requests of one connection are answered in their order, but for WAIT and TRIAL.
//
// In a trial the server is the importer: a holder at the other end of the connection that came with it. It
// finds the 16 bytes of the TRIAL at the beginning of the block, and leaves their complement there.
//
// A connection ends when one side hangs up, and when it does anything else than the table says: a message of
// another state, a body that is too long, too short or has a value out of range, other descriptors than
// announced, a RELEASE of what is not claimed, an answer to no question. It ends if it takes too long for
// HELLO, for MORE, or to take what was sent to it; a connection that was handed out, if it claims nothing
// during its lease. With it end its claims, its waits, and what it has not finished to say.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/share/wire/handle.h"
#include "gpumem/hub.h"
#include "platform/descriptor.h"

namespace gpumem::core {

inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr size_t kMessageHeaderSize = 24;
inline constexpr size_t kMessageBodyMax = 1024;
inline constexpr size_t kPacketMax = kMessageHeaderSize + kMessageBodyMax;
// No message announces more descriptors than that.
inline constexpr uint32_t kMessageDescriptorsMax = 65536;
// A block has one, and one more for its connection comes along.
inline constexpr uint32_t kTrialDescriptorsMax = 2;
inline constexpr size_t kSecretMax = 256;
inline constexpr size_t kNameMax = 63;
// The highest version that may be asked for. Higher ones come one after the other, asked for or not, so that
// no name runs out.
inline constexpr uint64_t kVersionMax = uint64_t{1} << 62;
// No version is above it.
inline constexpr uint64_t kVersionLast = INT64_MAX;

using Fingerprint = std::array<uint8_t, 32>;

enum class MessageType : uint16_t {
  kHello = 1,
  kClaim,
  kRelease,
  kEnumerate,
  kWait,
  kCancel,
  kFetch,
  kPublish,
  kWithdraw,
  kTrial,
  kWelcome = 32,
  kGranted,
  kEntry,
  kPublished,
  kDone,
  kRefused,
  kTried,
  kWithdrawn = 64,
  kPass,
  kMore,
};

// One version of a name, as links see it.
struct HubEntry {
  std::string name;
  uint64_t version = 0;
  uint64_t size = 0;
  gpumem_share_type type = GPUMEM_SHARE_TYPE_MEMORY;
  gpumem_share_way way = GPUMEM_SHARE_WAY_LEGACY;
  gpumem_access access = GPUMEM_ACCESS_READ;
  int32_t publisher = 0;
  bool publisher_gone = false;
  uint32_t user = 0;  // of the publisher
  Fingerprint fingerprint{};
};

// A type uses some of the fields, which its row in protocol.cpp names.
struct Message {
  MessageType type = MessageType::kDone;
  uint64_t number = 0;
  uint32_t descriptor_count = 0;  // of all its packets
  uint32_t packet_count = 0;      // of them, with this packet

  Token token{};  // kHello, kWelcome: the instance, zero for a hub; kTrial: what is in the block
  std::vector<uint8_t> secret;  // kHello
  bool keeper = false;          // kWelcome
  ShareHandle handle;           // kGranted, kPublish, kPass, kTrial
  std::string name;
  uint64_t version = 0;  // kWait: the one that is known; kCancel: the number of the kWait; kPass: the lease
  bool once = false;     // kWait: refuse if there is none yet
  uint32_t index = 0;
  gpumem_access access = 0;  // 0: the default
  uint32_t keep = 0;
  Fingerprint fingerprint{};
  HubEntry entry;
  Status status = GPUMEM_ERROR_INTERNAL;
  std::string text;
  bool other_device = false;  // kTrial: for one that does not have the memory
  bool slow = false;          // kTried
};

Message message_of(MessageType type, std::string name = {}, uint64_t version = 0);

// Up to 63 bytes of UTF-8 without `/` and control characters.
bool is_valid_name(std::string_view name);
// Takes the same time whatever the bytes are.
bool equal_secrets(std::span<const uint8_t> a, std::span<const uint8_t> b);

struct MessageHeader {
  MessageType type{};
  uint32_t size = 0;  // of the body
  uint32_t descriptor_count = 0;
  uint32_t packet_count = 0;
  uint64_t number = 0;
};
// INVALID_ARGUMENT, or UNSUPPORTED for another version.
Result<MessageHeader> decode_header(std::span<const uint8_t> bytes);
// A whole message, or the head of one whose descriptors come in several packets.
Result<Message> decode_message(std::span<const uint8_t> bytes);
std::vector<uint8_t> encode_message(const Message& message);

// A message that is sent, packet by packet.
class Outgoing {
 public:
  Outgoing(Message message, platform::SharedDescriptors descriptors);

  const platform::SharedDescriptors& descriptors() const { return descriptors_; }
  // How many of them are not sent yet.
  size_t left() const { return descriptors_ != nullptr ? descriptors_->size() - done_ : 0; }
  struct Packet {
    std::span<const uint8_t> bytes;
    std::span<const platform::Descriptor> descriptors;
  };
  // The next one, with so many of the descriptors at most; at least 1, if any are left.
  Packet packet(size_t descriptors_max);
  // The packet was sent. Returns whether it was the last.
  bool advance();

 private:
  std::vector<uint8_t> bytes_;
  std::vector<uint8_t> more_;  // the bytes of the packets behind the first; made at once, so that only making
                               // it can fail
  platform::SharedDescriptors descriptors_;
  size_t done_ = 0;
  size_t taken_ = 0;  // by the packet that is being sent
};

struct Incoming {
  Message message;
  platform::Descriptors descriptors;
  bool too_many = false;   // descriptors: those that came are closed
  bool none_free = false;  // because this process had no free one for them
};

// How many descriptors one answer may bring, so that the process keeps some for itself.
uint32_t descriptors_taken_max();
// The failure of a call whose answer brought too many descriptors.
Error too_many_descriptors(const Incoming& incoming);
// What ends a connection: the other side sent what it may not send.
Error violation(const char* what);

// Puts the packets of a connection together.
class Assembler {
 public:
  // How many descriptors a message may bring, by its head. Asked once for each.
  using DescriptorsMax = std::function<uint32_t(const Message& head)>;

  // Nothing if more packets belong to the message. After a failure the connection must end. Keeps the
  // descriptors of a message that brings no more than it may, and closes the others. `none_free`: not all
  // came, because this process had no free one.
  Result<std::optional<Incoming>> take(std::span<const uint8_t> bytes, platform::Descriptors descriptors,
                                       const DescriptorsMax& descriptors_max, bool none_free = false);
  // Closes the descriptors that came of a message that has begun, and those that come.
  void refuse_descriptors() {
    if (!open_) return;
    open_->too_many = true;
    open_->descriptors.clear();
  }
  // The head of a message that has begun and not ended; else null.
  const Message* open() const { return open_ ? &open_->message : nullptr; }
  // Those of its descriptors that are here.
  size_t held() const { return open_ ? open_->descriptors.size() : 0; }
  // Descriptors of that message, here or still to come, if they are kept.
  size_t descriptors() const { return open_ && !open_->too_many ? open_->message.descriptor_count : 0; }

 private:
  std::optional<Incoming> open_;
  uint32_t missing_ = 0;
};

}  // namespace gpumem::core
