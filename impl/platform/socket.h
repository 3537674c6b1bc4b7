// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Unix sockets that carry packets and file descriptors. Only wait_for() and connect_to() block.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "platform/descriptor.h"

namespace gpumem::platform {

using Deadline = std::chrono::steady_clock::time_point;
// UINT64_MAX, and times beyond the clock's range, mean never.
Deadline deadline_after(uint64_t nanoseconds);

// The kernel takes no more with one message.
inline constexpr size_t kDescriptorsPerPacket = 253;
// Bytes of an address, beside its end.
inline constexpr size_t kAddressMax = 107;

// Two connected sockets of packets.
struct SocketPair {
  Descriptor ours;
  Descriptor theirs;
};
Result<SocketPair> socket_pair();

// Listens at a path, or at an abstract address if that begins with `@`.
class Listener {
 public:
  Listener() = default;
  Listener(Listener&& other) noexcept { *this = std::move(other); }
  Listener& operator=(Listener&& other) noexcept;
  ~Listener() { close(); }
  // ALREADY_EXISTS if somebody listens there or the file is no socket. The file of a dead process is
  // replaced.
  static Result<Listener> open(const std::string& address, uint32_t mode);
  // With the socket that the service manager passed for this address, which goes on listening when this one
  // is closed. Empty if there is none, ALREADY_EXISTS if another listener has it or it takes no packets.
  static Result<Listener> inherit(const std::string& address);

  int get() const { return socket_.get(); }
  const std::string& address() const { return address_; }
  // Nothing if nobody waits. LIMIT_EXCEEDED if the process has no free descriptor.
  Result<Descriptor> accept();
  // Removes the file too, unless another process has replaced it.
  void close() noexcept;

 private:
  OwnDescriptor socket_;
  std::string address_;
  uint64_t device_ = 0;  // with `inode_` the file
  uint64_t inode_ = 0;
  int inherited_ = -1;  // what `socket_` is a copy of
};

// Whether it is a socket that listens.
bool is_listening(int socket);

// NOT_FOUND if nobody listens there, PERMISSION_DENIED, BUSY if it has no room before the deadline.
Result<Descriptor> connect_to(const std::string& address, Deadline deadline);

// To a socket of datagrams. NOT_FOUND if nobody takes them there.
Result<Descriptor> connect_for_datagrams(const std::string& address);

struct PeerFacts {
  int32_t process = 0;  // 0 if it is not visible here
  uint32_t user = 0;
  std::vector<uint32_t> groups;
};
// Who was at the other end when it connected.
Result<PeerFacts> peer_of(int socket);
// Whether that process still runs: then its number stood for no other one until now. True where the system
// does not tell (before Linux 6.5). LIMIT_EXCEEDED if there is no free descriptor to ask with.
Result<bool> peer_lives(int socket);
uint32_t own_user();

enum class SocketType { kNone, kStream, kPackets };
// Of a connected Unix socket; kNone if it is something else.
SocketType socket_type(int socket);

// kLater: too many descriptors of this user are in flight, and no event signals when there is room.
enum class Sending { kDone, kFull, kLater };
struct Sent {
  Sending state = Sending::kDone;
  size_t size = 0;  // less than given only on a stream
};
// PEER_GONE if the other end has hung up.
Result<Sent> send_some(int socket, std::span<const uint8_t> bytes, std::span<const Descriptor> descriptors);

// An upper bound of the sent packets that have not been read, because each takes at least the room of the
// kernel's record of it.
size_t unread_packets(int socket);

struct Received {
  enum class State { kBytes, kNothing, kHungUp };
  State state = State::kNothing;
  size_t size = 0;
  bool truncated = false;  // there were more bytes in the packet
  // Some descriptors are missing. There is room for as many as a packet can bring, so this process had no
  // free one for them, though it may have one again by now; or the sender asked for what takes their room.
  bool none_free = false;
  Descriptors descriptors;  // closed on exec
};
// On OUT_OF_HOST_MEMORY, nothing was received.
Result<Received> receive_some(int socket, std::span<uint8_t> room);

// Shuts the connection down, so that the other end notices even if a forked child has a copy.
void hang_up(int socket) noexcept;
// Whether the other end has done so, even if what it sent before was not received yet.
bool has_hung_up(int socket) noexcept;

enum class Waited { kReady, kTimeout, kWoken };
// Until the socket can be read (or written), the deadline, or until `wake` can be read, if there is one.
Result<Waited> wait_for(int socket, bool to_write, Deadline deadline, int wake = -1);

}  // namespace gpumem::platform
