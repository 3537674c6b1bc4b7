// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/link/transport.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "base/cleanup.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/share/link/imports.h"
#include "core/share/peer/client.h"
#include "core/share/peer/exports.h"
#include "core/share/peer/server.h"
#include "core/share/wire/protocol.h"
#include "platform/socket.h"

namespace gpumem::core {
namespace {

using platform::Received;
using platform::Sending;
using platform::SocketType;
using platform::Waited;

constexpr auto kLookAgain = std::chrono::milliseconds(2);

Result<SocketType> check_socket(int socket) {
  const SocketType type = platform::socket_type(socket);
  if (type != SocketType::kNone) return type;
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "descriptor %d is not a connected Unix socket of type SOCK_STREAM or SOCK_SEQPACKET",
                    socket);
}

// `begun` says whether a part of the message is in the socket.
Result<void> send_packet(int socket, const Outgoing::Packet& packet, platform::Deadline deadline,
                         int stop_event, bool* begun) {
  size_t done = 0;
  while (done < packet.bytes.size()) {
    const bool first = done == 0;
    auto sent = platform::send_some(socket, packet.bytes.subspan(done),
                                    first ? packet.descriptors : std::span<const platform::Descriptor>());
    if (!sent) return sent.error();
    if (sent->state == Sending::kDone) {
      done += sent->size;
      *begun = true;
      continue;
    }
    const auto now = std::chrono::steady_clock::now();
    const bool later = sent->state == Sending::kLater;
    auto waited =
        later ? platform::wait_for(stop_event, false, std::min(deadline, now + kLookAgain), stop_event)
              : platform::wait_for(socket, true, deadline, stop_event);
    if (!waited) return waited.error();
    if (*waited == Waited::kWoken) return instance_closed();
    if (later && now < deadline) continue;
    if (*waited == Waited::kTimeout) {
      return make_error(GPUMEM_ERROR_BUSY, "%s",
                        *begun
                            ? "the receiver took only a part of the message in time; close the socket, since "
                              "nothing else can be sent over it"
                            : "the socket had no room in time; try again when the receiver has read");
    }
  }
  return {};
}

Error damaged(const char* what) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "what came over the socket is not a message of gpumem_share_send(): %s", what);
}

// Why a handle that was read whole cannot be kept.
Error lost(const Error& why) {
  return reworded(why, "the handle that was received is lost, and must be sent again: %s", why.message);
}

struct Packet {
  std::vector<uint8_t> bytes;
  platform::Descriptors descriptors;
};

// Reads messages of the library, and nothing behind them.
class StreamReader {
 public:
  // Whether so many descriptors of a packet may stay open until the rest of it has come.
  using Reserve = std::function<bool(size_t of_packet)>;

  StreamReader(int socket, SocketType type, platform::Deadline deadline, int stop_event, Reserve reserve)
      : socket_(socket),
        stream_(type == SocketType::kStream),
        deadline_(deadline),
        stop_event_(stop_event),
        reserve_(std::move(reserve)) {}

  // Whether descriptors are missing because the process had no free one, or they may not stay. What follows
  // is read as ever, so that the next message begins where this one ends.
  bool none_free() const { return none_free_; }
  // One packet. Nothing if none began in time.
  Result<std::optional<Packet>> read() {
    Packet packet;
    packet.bytes.resize(kPacketMax);
    packet.descriptors.reserve(platform::kDescriptorsPerPacket);
    auto got = take(packet, 0, stream_ ? kMessageHeaderSize : kPacketMax);
    if (!got) return got.error();
    if (*got == 0) return std::optional<Packet>();
    size_t size = *got;
    auto header = decode_header({packet.bytes.data(), size});
    if (!header) return header.error();
    if (stream_ && header->size != 0) {
      auto rest = take(packet, size, header->size);
      if (!rest) return rest.error();
      size += *rest;
    }
    packet.bytes.resize(size);
    return std::optional<Packet>(std::move(packet));
  }

 private:
  // On a stream exactly `size` bytes, else one packet of at most so many.
  Result<size_t> take(Packet& packet, size_t offset, size_t size) {
    size_t done = 0;
    while (done == 0 || (stream_ && done < size)) {
      auto waited = platform::wait_for(socket_, false, deadline_, stop_event_);
      if (!waited) return waited.error();
      if (*waited == Waited::kWoken) return instance_closed();
      if (*waited == Waited::kTimeout) {
        if (!begun_) return size_t{0};
        return make_error(GPUMEM_ERROR_BUSY,
                          "only a part of the message came in time; close the socket, since nothing else can "
                          "be received over it");
      }
      auto got = platform::receive_some(socket_, std::span(packet.bytes).subspan(offset + done, size - done));
      if (!got) return got.error();
      if (got->state == Received::State::kNothing) continue;
      if (got->state == Received::State::kHungUp) {
        return make_error(GPUMEM_ERROR_PEER_GONE,
                          "the sender has hung up%s; connect again, and let it send the handle again",
                          begun_ ? " in the middle of a message" : "");
      }
      none_free_ = none_free_ || got->none_free;
      if (got->truncated) return damaged("it is too long");
      begun_ = true;
      for (platform::Descriptor& descriptor : got->descriptors) {
        if (!none_free_) packet.descriptors.push_back(std::move(descriptor));
      }
      if (packet.descriptors.size() > platform::kDescriptorsPerPacket)
        return damaged("it has more descriptors than it announces");
      if (!reserve_(packet.descriptors.size())) {
        none_free_ = true;
        packet.descriptors.clear();
      }
      done += got->size;
    }
    return done;
  }

  const int socket_;
  const bool stream_;
  const platform::Deadline deadline_;  // of the whole message
  const int stop_event_;
  const Reserve reserve_;
  bool begun_ = false;
  bool none_free_ = false;
};

}  // namespace

Result<void> send_handle(Context& context, const ShareHandle& handle, int socket, uint64_t lease_ns,
                         uint64_t timeout_ns) {
  GPUMEM_TRY(outside_host_function());
  if (auto type = check_socket(socket); !type) return type.error();
  const platform::Deadline deadline = answer_deadline(timeout_ns);
  ShareServer& server = ShareServer::of(context);
  auto known = Exports::of(context).find(handle.token);
  if (!known) return known.error();
  const auto receiver = platform::peer_of(socket);
  if (!receiver) return receiver.error();
  auto lent = server.lend(handle.token, lease_ns, *receiver);
  if (!lent) {
    if (lent.error().status != GPUMEM_ERROR_STALE_HANDLE) return lent.error();
    return make_error(GPUMEM_ERROR_NOT_FOUND, "%s", lent.error().message);  // ended just now
  }
  Cleanup undo([&] { server.take_back(lent->connection); });
  Message message;
  message.type = MessageType::kPass;
  message.handle = lent->grant.handle;
  message.handle.access = std::min(message.handle.access, handle.access);
  if (handle.offset < message.handle.size) message.handle.offset = handle.offset;
  message.version = lease_ns != 0 ? lease_ns : kLeaseTime;
  auto descriptors = lent->take_descriptors();
  if (!descriptors) return descriptors.error();
  Outgoing outgoing(std::move(message), std::move(*descriptors));
  bool begun = false;
  do {
    const auto packet = outgoing.packet(platform::kDescriptorsPerPacket);
    GPUMEM_TRY(send_packet(socket, packet, deadline, server.loop().stop_event(), &begun));
  } while (!outgoing.advance());
  undo.dismiss();
  return {};
}

Result<Status> receive_handle(Context& context, int socket, uint64_t timeout_ns, ShareHandle* handle) {
  GPUMEM_TRY(outside_host_function());
  auto type = check_socket(socket);
  if (!type) return type.error();
  ShareServer& server = ShareServer::of(context);
  GPUMEM_TRY(server.start());
  const platform::ClosingTogether together;
  // Reserve room first, because what is read cannot be put back into the socket.
  Imports& imports = Imports::of(context);
  Arrivals& arrivals = imports.arrivals();
  auto sender = platform::peer_of(socket);
  const uint32_t user = sender ? sender->user : platform::own_user();
  auto reserved = arrivals.reserve(user);
  if (!reserved) return reserved.error();
  // What has begun counts, however long the rest takes: what has come, and from the head on what will.
  Result<void> room;
  size_t counted = 0;
  const auto reserve = [&](size_t descriptors) {
    if (room && descriptors > counted) room = arrivals.reserve_descriptors(**reserved, descriptors);
    arrivals.bury();
    counted = std::max(counted, descriptors);
    return static_cast<bool>(room);
  };
  const auto descriptors_max = [&](const Message& head) -> uint32_t {
    const uint32_t taken = descriptors_taken_max();
    return head.descriptor_count <= taken && reserve(head.descriptor_count) ? taken : 0;
  };
  Assembler assembler;
  StreamReader reader(socket, *type, platform::deadline_after(timeout_ns), server.loop().stop_event(),
                      [&](size_t of_packet) { return reserve(assembler.held() + of_packet); });
  std::optional<Incoming> incoming;
  while (!incoming) {
    auto packet = reader.read();
    if (!packet) return packet.error();
    if (!*packet) return GPUMEM_NOT_READY;
    auto taken = assembler.take((*packet)->bytes, std::move((*packet)->descriptors), descriptors_max,
                                reader.none_free());
    if (!taken) return taken.error();
    incoming = std::move(*taken);
  }
  if (incoming->message.type != MessageType::kPass) return damaged("it is of another kind");
  if (!room) return lost(room.error());
  if (incoming->none_free) return lost(too_many_descriptors(*incoming));
  if (incoming->too_many) return too_many_descriptors(*incoming);
  platform::Descriptors& descriptors = incoming->descriptors;
  platform::Descriptor end = std::move(descriptors.front());
  descriptors.erase(descriptors.begin());
  if (platform::socket_type(end.get()) != SocketType::kPackets) return damaged("it brought no connection");
  auto client = ShareClient::open(server.loop(), std::move(end));
  if (!client) return lost(client.error());
  Arrival arrival{incoming->message.handle,
                  std::move(descriptors),
                  std::move(*client),
                  user,
                  platform::deadline_after(incoming->message.version),
                  std::move(*reserved)};
  arrival.handle.origin = arrival.peer->origin();
  auto kept = imports.keep(std::move(arrival));
  if (!kept) return kept.error();
  *handle = *kept;
  return GPUMEM_SUCCESS;
}

}  // namespace gpumem::core
