// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/wire/protocol.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "core/object/status_list.h"
#include "platform/descriptor.h"
#include "platform/socket.h"

namespace gpumem::core {
namespace {

constexpr std::array<uint8_t, 4> kMessageMagic{'g', 'p', 'm', 's'};
constexpr size_t kPacketCountAt = 15;  // in the header
constexpr size_t kTextMax = 255;
static_assert(std::endian::native == std::endian::little);

Error bad_message(const char* what) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "a message of another process is damaged: %s", what);
}

class Writer {
 public:
  template <class T>
  void number(T value) {
    const auto bytes = std::bit_cast<std::array<uint8_t, sizeof(T)>>(value);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <size_t N>
  void array(const std::array<uint8_t, N>& bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // At most 65535 bytes.
  template <class Bytes>
  void counted(const Bytes& bytes) {
    number(static_cast<uint16_t>(bytes.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void handle(const ShareHandle& handle) {
    const gpumem_share_handle bytes = encode(handle);
    bytes_.insert(bytes_.end(), std::begin(bytes.bytes), std::end(bytes.bytes));
  }
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

// Reads a body from its beginning to its end. After the first failure everything is 0, and done() says why.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : left_(bytes) {}

  template <class T>
  T number() {
    std::array<uint8_t, sizeof(T)> bytes{};
    array(bytes);
    return std::bit_cast<T>(bytes);
  }
  template <size_t N>
  void array(std::array<uint8_t, N>& out) {
    if (const auto bytes = take(N); bytes.size() == N) std::copy(bytes.begin(), bytes.end(), out.begin());
  }
  std::span<const uint8_t> counted(size_t most) {
    const size_t size = number<uint16_t>();
    if (size > most) {
      refuse(bad_message("a text is too long"));
      return {};
    }
    return take(size);
  }
  std::string text(size_t most) {
    const auto bytes = counted(most);
    return {bytes.begin(), bytes.end()};
  }
  uint64_t version() {
    const auto version = number<uint64_t>();
    // Not even one at a time does a name come to the last number.
    if (version == 0 || version >= kVersionLast) refuse(bad_message("a version is one that no name has"));
    return version;
  }
  // GPUMEM_SUCCESS only where it may be.
  Status status(bool may_be_success) {
    const auto status = number<Status>();
    const bool right = status < 0 ? find_status(status) != nullptr : may_be_success && status == 0;
    if (!right) refuse(bad_message("a status is not that of a failure"));
    return status;
  }
  std::string name() {
    std::string name = text(kNameMax);
    if (!problem_ && !is_valid_name(name)) refuse(bad_message("a name is not valid"));
    return name;
  }
  ShareHandle handle() {
    gpumem_share_handle given{};
    const auto bytes = take(sizeof given.bytes);
    if (problem_) return {};
    std::copy(bytes.begin(), bytes.end(), given.bytes);
    auto handle = decode(given);
    if (handle) return *handle;
    refuse(handle.error());
    return {};
  }
  // 0, READ or READWRITE.
  gpumem_access access(bool may_be_zero) {
    const auto access = number<uint8_t>();
    const bool known = access == GPUMEM_ACCESS_READ || access == GPUMEM_ACCESS_READWRITE;
    if (!known && (access != 0 || !may_be_zero)) refuse(bad_message("an access is unknown"));
    return access;
  }
  bool flag() {
    const auto value = number<uint8_t>();
    if (value > 1) refuse(bad_message("a flag is neither 0 nor 1"));
    return value == 1;
  }
  void refuse(const Error& error) {
    if (!problem_) problem_ = error;
    left_ = {};
  }
  Result<void> done() {
    if (!left_.empty()) refuse(bad_message("it is too long"));
    if (problem_) return *problem_;
    return {};
  }

 private:
  std::span<const uint8_t> take(size_t size) {
    if (size > left_.size()) {
      refuse(bad_message("it is too short"));
      return {};
    }
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }

  std::span<const uint8_t> left_;
  std::optional<Error> problem_;
};

void write_entry(Writer& out, const HubEntry& entry) {
  out.counted(entry.name);
  out.number(entry.version);
  out.number(entry.size);
  out.number(static_cast<uint8_t>(entry.type));
  out.number(static_cast<uint8_t>(entry.way));
  out.number(static_cast<uint8_t>(entry.access));
  out.number(entry.publisher);
  out.number(static_cast<uint8_t>(entry.publisher_gone ? 1 : 0));
  out.number(entry.user);
  out.array(entry.fingerprint);
}

HubEntry read_entry(Reader& in) {
  HubEntry entry;
  entry.name = in.name();
  entry.version = in.version();
  entry.size = in.number<uint64_t>();
  entry.type = in.number<uint8_t>();
  entry.way = in.number<uint8_t>();
  entry.access = in.access(false);
  entry.publisher = in.number<int32_t>();
  entry.publisher_gone = in.flag();
  entry.user = in.number<uint32_t>();
  in.array(entry.fingerprint);
  if (entry.type < GPUMEM_SHARE_TYPE_MEMORY || entry.type > GPUMEM_SHARE_TYPE_RING)
    in.refuse(bad_message("an entry has an unknown type"));
  if (entry.way < GPUMEM_SHARE_WAY_LEGACY || entry.way > GPUMEM_SHARE_WAY_FABRIC)
    in.refuse(bad_message("an entry has an unknown way"));
  return entry;
}

void write_text(Writer& out, const std::string& text) {
  out.counted(text.substr(0, whole_characters(text.data(), std::min(text.size(), kTextMax))));
}

void write_body(Writer& out, const Message& message) {
  switch (message.type) {
    case MessageType::kHello:
      out.array(message.token);
      out.counted(message.secret);
      break;
    case MessageType::kClaim:
    case MessageType::kRelease:
    case MessageType::kWithdrawn:
      out.array(message.token);
      break;
    case MessageType::kEnumerate:
      out.number(message.index);
      break;
    case MessageType::kWait:
      out.counted(message.name);
      out.number(message.version);
      out.number(static_cast<uint8_t>(message.once ? 1 : 0));
      break;
    case MessageType::kWithdraw:
      out.counted(message.name);
      out.number(message.version);
      break;
    case MessageType::kCancel:
    case MessageType::kPublished:
      out.number(message.version);
      break;
    case MessageType::kFetch:
      out.counted(message.name);
      out.number(message.version);
      out.array(message.fingerprint);
      break;
    case MessageType::kPublish:
      out.counted(message.name);
      out.handle(message.handle);
      out.number(message.version);
      out.number(static_cast<uint8_t>(message.access));
      out.number(message.keep);
      out.array(message.fingerprint);
      break;
    case MessageType::kWelcome:
      out.array(message.token);
      out.number(static_cast<uint8_t>(message.keeper ? 1 : 0));
      break;
    case MessageType::kGranted:
      out.handle(message.handle);
      break;
    case MessageType::kEntry:
      write_entry(out, message.entry);
      break;
    case MessageType::kRefused:
      out.number(message.status);
      write_text(out, message.text);
      break;
    case MessageType::kPass:
      out.handle(message.handle);
      out.number(message.version);
      break;
    case MessageType::kTrial:
      out.handle(message.handle);
      out.array(message.token);
      out.number(static_cast<uint8_t>(message.other_device ? 1 : 0));
      break;
    case MessageType::kTried:
      out.number(message.status);
      write_text(out, message.text);
      out.number(static_cast<uint8_t>(message.slow ? 1 : 0));
      break;
    case MessageType::kDone:
    case MessageType::kMore:
      break;
  }
}

// The length of a whole UTF-8 character at the beginning; 0 if there is none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (first < 0xC2 || length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Longer than needed, a surrogate, or beyond the last character.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) >= 0xA0) ||
      (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) >= 0x90))
    return 0;
  return length;
}

// Of the whole character at the beginning. U+0080 to U+009F control terminals too.
bool begins_with_control(std::string_view text, size_t length) {
  return is_control(text[0]) ||
         (length == 2 && text[0] == '\xC2' && static_cast<unsigned char>(text[1]) < 0xA0);
}

// Makes one line of UTF-8 of a text that people will see.
void make_presentable(std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    const size_t length = character_length(rest);
    const size_t bytes = std::max<size_t>(length, 1);
    if (length == 0 || begins_with_control(rest, length))
      std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(at), bytes, '?');
    at += bytes;
  }
}

void read_body(Reader& in, Message& message) {
  switch (message.type) {
    case MessageType::kHello: {
      in.array(message.token);
      const auto secret = in.counted(kSecretMax);
      message.secret.assign(secret.begin(), secret.end());
      break;
    }
    case MessageType::kClaim:
    case MessageType::kRelease:
    case MessageType::kWithdrawn:
      in.array(message.token);
      break;
    case MessageType::kEnumerate:
      message.index = in.number<uint32_t>();
      break;
    case MessageType::kWait:
      message.name = in.name();
      message.version = in.number<uint64_t>();
      message.once = in.flag();
      break;
    case MessageType::kWithdraw:
      message.name = in.name();
      message.version = in.number<uint64_t>();
      break;
    case MessageType::kCancel:
      message.version = in.number<uint64_t>();
      break;
    case MessageType::kPublished:
      message.version = in.version();
      break;
    case MessageType::kFetch:
      message.name = in.name();
      message.version = in.number<uint64_t>();
      in.array(message.fingerprint);
      break;
    case MessageType::kPublish:
      message.name = in.name();
      message.handle = in.handle();
      message.version = in.number<uint64_t>();
      if (message.version >= kVersionLast) in.refuse(bad_message("a version is too high"));
      message.access = in.access(true);
      message.keep = in.number<uint32_t>();
      in.array(message.fingerprint);
      break;
    case MessageType::kWelcome:
      in.array(message.token);
      message.keeper = in.flag();
      break;
    case MessageType::kGranted:
      message.handle = in.handle();
      break;
    case MessageType::kEntry:
      message.entry = read_entry(in);
      break;
    case MessageType::kRefused:
      message.status = in.status(false);
      message.text = in.text(kTextMax);
      make_presentable(message.text);
      break;
    case MessageType::kPass:
      message.handle = in.handle();
      message.version = in.number<uint64_t>();
      break;
    case MessageType::kTrial:
      message.handle = in.handle();
      in.array(message.token);
      message.other_device = in.flag();
      break;
    case MessageType::kTried:
      message.status = in.status(true);
      message.text = in.text(kTextMax);
      message.slow = in.flag();
      make_presentable(message.text);
      break;
    case MessageType::kDone:
    case MessageType::kMore:
      break;
  }
}

bool is_known(uint16_t type) {
  const auto between = [type](MessageType first, MessageType last) {
    return type >= static_cast<uint16_t>(first) && type <= static_cast<uint16_t>(last);
  };
  return between(MessageType::kHello, MessageType::kTrial) ||
         between(MessageType::kWelcome, MessageType::kTried) ||
         between(MessageType::kWithdrawn, MessageType::kMore);
}

// How many descriptors a message of a type may announce, and a packet may bring.
Result<void> check_count(const Message& message) {
  const uint32_t count = message.descriptor_count;
  bool right = count == 0;
  switch (message.type) {
    case MessageType::kGranted:
    case MessageType::kPublish:
      right = count == message.handle.fd_count;
      break;
    case MessageType::kPass:
      right = count != 0 && count - 1 == message.handle.fd_count;
      break;
    case MessageType::kTrial:
      right = count != 0 && count <= kTrialDescriptorsMax && count - 1 == message.handle.fd_count;
      break;
    case MessageType::kWelcome:
      right = count <= 1;
      break;
    case MessageType::kMore:
      right = count > 1;
      break;
    default:
      break;
  }
  const uint32_t most = std::min<uint32_t>(count, platform::kDescriptorsPerPacket);
  right = right && message.packet_count <= most && (message.packet_count != 0 || count == 0);
  if (!right) return bad_message("it announces other descriptors than belong to it");
  return {};
}

void write_header(Writer& out, const MessageHeader& header) {
  out.array(kMessageMagic);
  out.number(kProtocolVersion);
  out.number(static_cast<uint16_t>(header.type));
  out.number(header.size);
  out.number(header.descriptor_count | header.packet_count << 24);
  out.number(header.number);
}

}  // namespace

Message message_of(MessageType type, std::string name, uint64_t version) {
  Message message;
  message.type = type;
  message.name = std::move(name);
  message.version = version;
  return message;
}

bool is_valid_name(std::string_view name) {
  if (name.empty() || name.size() > kNameMax) return false;
  while (!name.empty()) {
    const size_t length = character_length(name);
    if (length == 0 || name[0] == '/' || begins_with_control(name, length)) return false;
    name.remove_prefix(length);
  }
  return true;
}

bool equal_secrets(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  // Takes the same time for any contents, and reads only existing bytes.
  size_t different = a.size() ^ b.size();
  for (size_t i = 0; i < kSecretMax; ++i) {
    const uint8_t left = i < a.size() ? a[i] : uint8_t{0};
    const uint8_t right = i < b.size() ? b[i] : uint8_t{0};
    different |= static_cast<size_t>(left ^ right);
  }
  return different == 0;
}

Result<MessageHeader> decode_header(std::span<const uint8_t> bytes) {
  if (bytes.size() < kMessageHeaderSize) return bad_message("it is too short");
  Reader in(bytes.first(kMessageHeaderSize));
  std::array<uint8_t, 4> magic{};
  in.array(magic);
  if (magic != kMessageMagic) return bad_message("it does not begin as one of gpumem");
  const auto version = in.number<uint16_t>();
  if (version != kProtocolVersion) {
    return make_error(
        GPUMEM_ERROR_UNSUPPORTED,
        "the other process speaks version %u of the protocol, and this one version %u; use the same "
        "version of the library",
        version, kProtocolVersion);
  }
  MessageHeader header;
  const auto type = in.number<uint16_t>();
  if (!is_known(type)) return bad_message("its type is unknown");
  header.type = static_cast<MessageType>(type);
  header.size = in.number<uint32_t>();
  const auto counts = in.number<uint32_t>();
  header.descriptor_count = counts & 0xffffff;
  header.packet_count = counts >> 24;
  header.number = in.number<uint64_t>();
  if (header.size > kMessageBodyMax) return bad_message("it is too long");
  if (header.descriptor_count > kMessageDescriptorsMax) return bad_message("it has too many descriptors");
  return header;
}

Result<Message> decode_message(std::span<const uint8_t> bytes) {
  auto header = decode_header(bytes);
  if (!header) return header.error();
  const auto body = bytes.subspan(kMessageHeaderSize);
  if (body.size() != header->size) return bad_message("its length is not the one that it says");
  Message message;
  message.type = header->type;
  message.number = header->number;
  message.descriptor_count = header->descriptor_count;
  message.packet_count = header->packet_count;
  Reader in(body);
  read_body(in, message);
  GPUMEM_TRY(in.done());
  GPUMEM_TRY(check_count(message));
  return message;
}

std::vector<uint8_t> encode_message(const Message& message) {
  Writer body;
  write_body(body, message);
  Writer out;
  out.bytes().reserve(kMessageHeaderSize + body.bytes().size());
  write_header(out, {message.type, static_cast<uint32_t>(body.bytes().size()), message.descriptor_count,
                     message.packet_count, message.number});
  out.bytes().insert(out.bytes().end(), body.bytes().begin(), body.bytes().end());
  return std::move(out.bytes());
}

Outgoing::Outgoing(Message message, platform::SharedDescriptors descriptors)
    : descriptors_(std::move(descriptors)) {
  message.descriptor_count = static_cast<uint32_t>(left());
  bytes_ = encode_message(message);
  if (left() <= 1) return;
  Message more = message_of(MessageType::kMore);
  more.number = message.number;
  more.descriptor_count = message.descriptor_count;
  more_ = encode_message(more);
}

Outgoing::Packet Outgoing::packet(size_t descriptors_max) {
  taken_ = std::min({left(), descriptors_max, platform::kDescriptorsPerPacket});
  std::vector<uint8_t>& bytes = done_ == 0 ? bytes_ : more_;
  bytes[kPacketCountAt] = static_cast<uint8_t>(taken_);
  if (taken_ == 0) return {bytes, {}};
  return {bytes, std::span(*descriptors_).subspan(done_, taken_)};
}

bool Outgoing::advance() {
  done_ += taken_;
  return left() == 0;
}

uint32_t descriptors_taken_max() {
  return static_cast<uint32_t>(std::min<uint64_t>(platform::descriptor_limit() / 2, kMessageDescriptorsMax));
}

Error violation(const char* what) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "it broke the protocol: %s", what);
}

Error too_many_descriptors(const Incoming& incoming) {
  if (incoming.none_free) return platform::no_descriptor(EMFILE, "recvmsg");
  return make_error(
      GPUMEM_ERROR_LIMIT_EXCEEDED,
      "the memory comes with %u descriptors, and a process takes half of the %" PRIu64
      " that it may have (RLIMIT_NOFILE) at most; raise `ulimit -n`, or share memory of fewer blocks",
      incoming.message.descriptor_count, platform::descriptor_limit());
}

Result<std::optional<Incoming>> Assembler::take(std::span<const uint8_t> bytes,
                                                platform::Descriptors descriptors,
                                                const DescriptorsMax& descriptors_max, bool none_free) {
  auto message = decode_message(bytes);
  if (!message) return message.error();
  const bool more = message->type == MessageType::kMore;
  if (more != open_.has_value())
    return bad_message("it came in the middle of another one, or without its beginning");
  if (more && message->number != open_->message.number) return bad_message("it belongs to another one");
  const uint32_t missing = more ? missing_ : message->descriptor_count;
  const uint32_t expected = message->packet_count;
  if (descriptors.empty() && expected != 0 && !none_free) {
    return make_error(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        "a message of another process came without its %u file descriptors; what carries it must "
        "be a Unix socket from process to process, since a proxy or a tunnel passes none",
        missing);
  }
  const bool other =
      expected > missing || (more && message->descriptor_count != open_->message.descriptor_count);
  if (other || (descriptors.size() != expected && !none_free))
    return bad_message("it came with other descriptors than it announces");
  if (!more) {
    open_.emplace();
    open_->too_many = message->descriptor_count > descriptors_max(*message);
    open_->message = std::move(*message);
  }
  if (none_free) {
    open_->too_many = open_->none_free = true;
    open_->descriptors.clear();
  }
  missing_ = missing - expected;
  if (!open_->too_many && open_->descriptors.empty()) {
    open_->descriptors = std::move(descriptors);
  } else if (!open_->too_many) {
    std::move(descriptors.begin(), descriptors.end(), std::back_inserter(open_->descriptors));
  }
  if (missing_ != 0) return std::optional<Incoming>();
  std::optional<Incoming> whole = std::move(open_);
  open_.reset();
  return whole;
}

}  // namespace gpumem::core
