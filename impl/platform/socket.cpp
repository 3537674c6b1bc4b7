// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "base/text.h"
#include "platform/fork.h"
#include "platform/pages.h"
#include "platform/service_manager.h"
#include "platform/thread.h"

namespace gpumem::platform {
namespace {

constexpr int kBacklog = 128;
constexpr auto kPause = std::chrono::milliseconds(2);
// SCM_PIDFD, of Linux 6.5: a descriptor of the sending process, which comes with each packet if whoever made
// the socket has asked for that.
constexpr int kPidFd = 4;

// While a thread has copies of all descriptors.
constinit PerProcess<std::mutex> copying;

// The service manager's sockets that listeners have.
struct InUse {
  std::mutex mutex;
  std::set<int> sockets;
};
constinit PerProcess<InUse> in_use;

struct Address {
  sockaddr_un bytes{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

// For a message, on one line.
std::string quoted(const std::string& text) { return Quoted(text.c_str()).text(); }

bool is_abstract(const std::string& address) { return address.starts_with('@'); }

Result<Address> address_of_text(const std::string& text) {
  Address address;
  address.bytes.sun_family = AF_UNIX;
  if (text.empty() || text.size() > kAddressMax || text.find('\0') != std::string::npos) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the address of a socket has 1 to %zu bytes, and %s has %zu", kAddressMax,
                      quoted(text).c_str(), text.size());
  }
  std::memcpy(address.bytes.sun_path, text.data(), text.size());
  const bool abstract = is_abstract(text);
  if (abstract) address.bytes.sun_path[0] = '\0';
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size() + (abstract ? 0 : 1));
  return address;
}

Status status_of_socket(int error) {
  switch (error) {
    case ENOENT:
      return GPUMEM_ERROR_NOT_FOUND;
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EBADF:
    case ENOTSOCK:
    case ENOTCONN:
      return GPUMEM_ERROR_INVALID_ARGUMENT;
    case EACCES:
    case EPERM:
    case EROFS:
      return GPUMEM_ERROR_PERMISSION_DENIED;
    case ENOMEM:
    case ENOBUFS:
    case ENOLCK:
      return GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
    case ENOSPC:
    case EDQUOT:
      return GPUMEM_ERROR_LIMIT_EXCEEDED;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
      return GPUMEM_ERROR_PEER_GONE;
    default:
      return GPUMEM_ERROR_INTERNAL;
  }
}

Error socket_error(int error, const char* entry_point, const char* what) {
  if (error == EMFILE || error == ENFILE) return no_descriptor(error, entry_point);
  return system_error(status_of_socket(error), error, entry_point, what);
}

Result<Descriptor> new_socket(int type = SOCK_SEQPACKET) {
  const int opened = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  Descriptor made = type == SOCK_SEQPACKET ? Descriptor::foreign(opened) : Descriptor(opened);
  if (!made) return socket_error(errno, "socket", "cannot make a Unix socket");
  return made;
}

// Only one process at a time checks for the socket file of a dead one, or two could replace each other's.
// Locks the folder, so that the lock leaves no file and ends with the process. Anyone who can read the folder
// can lock it forever: after a time, goes on without a lock, and two processes can then both find the old
// file.
Result<Descriptor> lock_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) {
    return socket_error(errno, "open",
                        ("cannot open the folder " + quoted(folder) + " of the socket").c_str());
  }
  const Deadline deadline = deadline_after(1'000'000'000);
  while (flock(opened.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return socket_error(errno, "flock", ("cannot lock the folder " + quoted(folder)).c_str());
    if (std::chrono::steady_clock::now() >= deadline) return Descriptor();
    std::this_thread::sleep_for(kPause);
  }
  return opened;
}

bool is_bound_to(int socket, const Address& address) {
  Address found;
  found.size = sizeof found.bytes;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&found.bytes), &found.size) == 0 &&
         found.size == address.size && std::memcmp(&found.bytes, &address.bytes, found.size) == 0;
}

Error taken(const std::string& address, const std::string& by, const char* remedy = "close it") {
  return make_error(GPUMEM_ERROR_ALREADY_EXISTS, "%s at %s; %s, or use another path", by.c_str(),
                    quoted(address).c_str(), remedy);
}

// Names the process at the other end of a new connection.
std::string who_listens(int connected) {
  auto facts = peer_of(connected);
  if (!facts || facts->process == 0) return "another process listens";
  if (facts->process == getpid()) return "this process itself listens, perhaps by another hub,";
  return "process " + std::to_string(facts->process) + " listens";
}

// Removes the socket file of a dead process.
Result<void> remove_stale(const std::string& path, const Address& address) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) return taken(path, "a file that is no socket is", "remove it");
  auto probe = new_socket();
  if (!probe) return probe.error();
  if (connect(probe->get(), address.get(), address.size) == 0) return taken(path, who_listens(probe->get()));
  if (errno != ECONNREFUSED)
    return taken(path, "a hub that accepts nobody now, or a socket of another program, is");
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return socket_error(errno, "unlink", ("cannot remove the old socket " + quoted(path)).c_str());
  return {};
}

}  // namespace

Deadline deadline_after(uint64_t nanoseconds) {
  const auto now = std::chrono::steady_clock::now();
  const auto left = static_cast<uint64_t>((Deadline::max() - now).count());
  if (nanoseconds >= left) return Deadline::max();
  return now + std::chrono::nanoseconds(nanoseconds);
}

Result<SocketPair> socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return socket_error(errno, "socketpair", "cannot make a connection");
  return SocketPair{Descriptor::foreign(ends[0]), Descriptor(ends[1])};
}

Listener& Listener::operator=(Listener&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(address_, other.address_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  std::swap(inherited_, other.inherited_);
  return *this;
}

Result<Listener> Listener::open(const std::string& text, uint32_t mode) {
  auto address = address_of_text(text);
  if (!address) return address.error();
  auto made = new_socket();
  if (!made) return made.error();
  Listener listener;
  Descriptor folder;
  const bool has_file = !is_abstract(text);
  if (has_file) {
    auto locked = lock_folder(text);
    if (!locked) return locked.error();
    folder = std::move(*locked);
    GPUMEM_TRY(remove_stale(text, *address));
    // bind() gives the file the socket's mode, less the umask. Do not change the umask: it belongs to the
    // whole process, and another thread may be making a file.
    (void)fchmod(made->get(), mode);
  }
  if (bind(made->get(), address->get(), address->size) != 0) {
    if (errno == EADDRINUSE) {
      auto probe = new_socket();
      const bool connected = probe && connect(probe->get(), address->get(), address->size) == 0;
      return taken(text, connected ? who_listens(probe->get()) : "another process listens");
    }
    return socket_error(errno, "bind", ("cannot make the socket " + quoted(text)).c_str());
  }
  listener.socket_ = OwnDescriptor(Descriptor(made->release()));
  listener.address_ = text;
  if (has_file) {
    struct stat status {};
    if (lstat(text.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode))
      return make_error(GPUMEM_ERROR_ALREADY_EXISTS, "another process has replaced the socket %s",
                        quoted(text).c_str());
    listener.device_ = status.st_dev;
    listener.inode_ = status.st_ino;
    // Restore what the umask removed. No one can connect before listen(), so this is in time.
    if ((status.st_mode & 0777) != mode && fchmodat(AT_FDCWD, text.c_str(), mode, AT_SYMLINK_NOFOLLOW) != 0)
      return socket_error(errno, "fchmodat", ("cannot set the permissions of " + quoted(text)).c_str());
  }
  if (listen(listener.get(), kBacklog) != 0)
    return socket_error(errno, "listen", ("cannot listen at " + quoted(text)).c_str());
  return listener;
}

Result<Listener> Listener::inherit(const std::string& text) {
  auto address = address_of_text(text);
  if (!address) return address.error();
  for (const NamedDescriptor& given : inherited_descriptors()) {
    if (!is_listening(given.value) || !is_bound_to(given.value, *address)) continue;
    int type = 0;
    socklen_t size = sizeof type;
    if (getsockopt(given.value, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
      return taken(text, "a socket of the service manager that takes no packets is",
                   "write ListenSequentialPacket= in its unit");
    }
    auto copy = duplicate(given.value);
    if (!copy) return copy.error();
    close_on_exec(given.value);
    const int flags = fcntl(given.value, F_GETFL);
    // Those who connect from now on see this process at the other end, and not the service manager.
    if (flags < 0 || fcntl(given.value, F_SETFL, flags | O_NONBLOCK) != 0 ||
        listen(given.value, kBacklog) != 0)
      return socket_error(errno, "listen", ("cannot listen at " + quoted(text)).c_str());
    Listener listener;
    listener.address_ = text;
    InUse& all = in_use.get();
    const std::lock_guard lock(all.mutex);
    if (!all.sockets.insert(given.value).second) return taken(text, "another hub of this process listens");
    listener.socket_ = OwnDescriptor(std::move(*copy));
    listener.inherited_ = given.value;
    return listener;
  }
  return Listener();
}

Result<Descriptor> Listener::accept() {
  for (;;) {
    Descriptor made = Descriptor::foreign(accept4(get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (made || errno == EAGAIN) return made;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return socket_error(errno, "accept4", "cannot accept a connection");
  }
}

void Listener::close() noexcept {
  if (!socket_) return;
  if (inherited_ >= 0) {
    // Those that nobody has accepted wait for the next hub.
    socket_ = OwnDescriptor();
    const int given = std::exchange(inherited_, -1);
    if (InUse* const all = in_use.find()) {
      const std::lock_guard lock(all->mutex);
      all->sockets.erase(given);
    }
    return;
  }
  if (!is_abstract(address_)) {
    struct stat status {};
    if (lstat(address_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_)
      (void)unlink(address_.c_str());
  }
  hang_up(socket_.get());
  // Those that nobody has accepted: nobody else connects now.
  for (auto left = accept(); left && *left; left = accept()) {
  }
  try {
    const std::lock_guard lock(copying.get());
    socket_ = OwnDescriptor();  // the last copy, so that the address is free
  } catch (const std::bad_alloc&) {
    socket_ = OwnDescriptor();
  }
}

bool is_listening(int socket) {
  int listens = 0;
  socklen_t size = sizeof listens;
  return getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

Result<Descriptor> connect_to(const std::string& text, Deadline deadline) {
  auto address = address_of_text(text);
  if (!address) return address.error();
  auto made = new_socket();
  if (!made) return made;
  for (;;) {
    if (connect(made->get(), address->get(), address->size) == 0) return made;
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EAGAIN) {
      // The backlog is full, and poll() cannot wait for room in it.
      if (std::chrono::steady_clock::now() >= deadline)
        return make_error(GPUMEM_ERROR_BUSY, "nobody accepted the connection to %s in time",
                          quoted(text).c_str());
      std::this_thread::sleep_for(kPause);
      continue;
    }
    if (error == ECONNREFUSED || error == ENOENT || error == EPROTOTYPE || error == ENOTSOCK) {
      return system_error(GPUMEM_ERROR_NOT_FOUND, error, "connect",
                          (error == EPROTOTYPE ? quoted(text) + " is a socket of another program"
                                               : "nobody listens at " + quoted(text))
                              .c_str());
    }
    return socket_error(error, "connect", ("cannot connect to " + quoted(text)).c_str());
  }
}

Result<Descriptor> connect_for_datagrams(const std::string& text) {
  auto address = address_of_text(text);
  if (!address) return address.error();
  auto made = new_socket(SOCK_DGRAM);
  if (!made || connect(made->get(), address->get(), address->size) == 0) return made;
  const int error = errno;
  if (error == ECONNREFUSED || error == EPROTOTYPE || error == ENOTSOCK || error == ENOENT) {
    return system_error(GPUMEM_ERROR_NOT_FOUND, error, "connect",
                        ("nobody takes packets at " + text).c_str());
  }
  return socket_error(error, "connect", ("cannot connect to " + text).c_str());
}

Result<PeerFacts> peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return socket_error(errno, "getsockopt", "cannot find out who connects");
  PeerFacts facts;
  facts.process = credentials.pid;
  facts.user = credentials.uid;
  std::array<gid_t, 256> groups{};
  size = sizeof groups;
  // More groups, or a kernel before 4.13: only the first one counts.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0)
    facts.groups.assign(groups.begin(), groups.begin() + size / sizeof(gid_t));
  facts.groups.push_back(credentials.gid);
  return facts;
}

Result<bool> peer_lives(int socket) {
  constexpr int kPeerPidFd = 77;  // SO_PEERPIDFD
  int process = -1;
  socklen_t size = sizeof process;
  if (getsockopt(socket, SOL_SOCKET, kPeerPidFd, &process, &size) == 0) {
    const Descriptor owned(process);
    // Readable once it has ended. Later kernels also give a descriptor of one that has been waited for.
    pollfd watched{process, POLLIN, 0};
    const timespec at_once{};
    return ppoll(&watched, 1, &at_once, nullptr) <= 0;
  }
  if (errno == EMFILE || errno == ENFILE) return no_descriptor(errno, "getsockopt");
  return errno != ESRCH && errno != EINVAL;
}

uint32_t own_user() { return geteuid(); }

SocketType socket_type(int socket) {
  int domain = 0;
  int type = 0;
  socklen_t size = sizeof domain;
  if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX)
    return SocketType::kNone;
  size = sizeof type;
  if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return SocketType::kNone;
  sockaddr_un name{};
  size = sizeof name;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&name), &size) != 0) return SocketType::kNone;
  if (type == SOCK_STREAM) return SocketType::kStream;
  return type == SOCK_SEQPACKET ? SocketType::kPackets : SocketType::kNone;
}

Result<Sent> send_some(int socket, std::span<const uint8_t> bytes, std::span<const Descriptor> descriptors) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsPerPacket * sizeof(int))> control{};
  iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t size = descriptors.size() * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    unsigned char* at = CMSG_DATA(header);
    for (const Descriptor& descriptor : descriptors) {
      const int value = descriptor.get();
      std::memcpy(at, &value, sizeof value);
      at += sizeof value;
    }
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return Sent{Sending::kDone, static_cast<size_t>(sent)};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS) return Sent{Sending::kFull, 0};
    if (errno == ETOOMANYREFS) return Sent{Sending::kLater, 0};
    const bool gone = errno == EPIPE || errno == ECONNRESET;
    return socket_error(errno, "sendmsg", gone ? "the other side has hung up; connect again" : "cannot send");
  }
}

size_t unread_packets(int socket) {
  // A buffer's record and the end of its data, which are counted with it.
  constexpr size_t kLeast = 512;
  int bytes = 0;
  if (ioctl(socket, SIOCOUTQ, &bytes) != 0 || bytes <= 0) return 0;
  return (static_cast<size_t>(bytes) + kLeast - 1) / kLeast;
}

namespace {

// Room for a packet with all that can come with it.
struct Packet {
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(kDescriptorsPerPacket * sizeof(int))> control;
  iovec part{};
  msghdr message{};

  explicit Packet(std::span<uint8_t> room) : part{room.data(), room.size()} {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  ssize_t receive(int socket) { return recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); }
  // `into` has room for them.
  void take_descriptors(Descriptors& into) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET) continue;
      if (header->cmsg_type != SCM_RIGHTS && header->cmsg_type != kPidFd) continue;
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      const unsigned char* at = CMSG_DATA(header);
      for (size_t i = 0; i < count; ++i, at += sizeof(int)) {
        int value = -1;
        std::memcpy(&value, at, sizeof value);
        Descriptor received = Descriptor::foreign(value);
        if (header->cmsg_type == SCM_RIGHTS) into.push_back(std::move(received));
      }
    }
  }
};

}  // namespace

Result<Received> receive_some(int socket, std::span<uint8_t> room) {
  Packet packet(room);
  Received result;
  try {
    result.descriptors.reserve(kDescriptorsPerPacket);  // before receiving, so that nothing received is lost
  } catch (const std::bad_alloc&) {
    return make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory for what another process sent");
  }
  ssize_t got = -1;
  for (bool reset = false; got < 0;) {
    got = packet.receive(socket);
    if (got >= 0 || errno == EINTR) continue;
    if (errno == EAGAIN) return result;
    // Read on: the kernel reports the reset once, before the last data.
    if (errno == ECONNRESET && !std::exchange(reset, true)) continue;
    if (errno != ECONNRESET) return socket_error(errno, "recvmsg", "cannot receive");
    result.state = Received::State::kHungUp;
    return result;
  }
  packet.take_descriptors(result.descriptors);
  result.size = static_cast<size_t>(got);
  result.truncated = (packet.message.msg_flags & MSG_TRUNC) != 0;
  result.none_free = (packet.message.msg_flags & MSG_CTRUNC) != 0;
  // An empty packet carries no message, so treat it as the end, as on a stream.
  result.state = got == 0 ? Received::State::kHungUp : Received::State::kBytes;
  return result;
}

namespace {

// With room for nothing, the kernel keeps descriptors back and says so; with credentials wanted, it says so
// of each packet, also of an empty one, which is not the end then.
bool has_unread(int socket) {
  const int on = 1;
  (void)setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  for (bool reset = false;;) {
    msghdr message{};
    if (recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT) >= 0)
      return (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    if (errno == ECONNRESET && !std::exchange(reset, true)) continue;
    if (errno != EINTR) return errno != EAGAIN && errno != ENOTCONN;
  }
}

// A connection of packets that nobody can send over any more, and over which nothing came.
bool is_drained(int socket) {
  int type = 0;
  int listens = 1;
  int bytes = 1;
  socklen_t size = sizeof type;
  (void)getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size);
  (void)getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
  (void)ioctl(socket, FIONREAD, &bytes);
  // Whoever sent the socket can have set from where on others peek.
  const int from_the_first = -1;
  (void)setsockopt(socket, SOL_SOCKET, SO_PEEK_OFF, &from_the_first, sizeof from_the_first);
  return type == SOCK_SEQPACKET && listens == 0 && bytes == 0 && !has_unread(socket);
}

// Gives the calling thread a table of its own, which has copies of these descriptors alone. They are in
// order. False if the system refuses.
bool copy_alone(std::span<const int> descriptors) {
  // As Docker's default filter refuses unshare(): closes none, because none has that number.
  constexpr unsigned kNone = UINT_MAX;
  constexpr unsigned kUnshare = 1U << 1U;  // CLOSE_RANGE_UNSHARE, of Linux 5.9
  if (syscall(SYS_close_range, kNone, kNone, kUnshare) != 0 && unshare(CLONE_FILES) != 0) return false;
  // For a moment it has copies of all, as a forked child; where the system has no close_range(), until it
  // ends.
  unsigned next = 0;
  for (const int descriptor : descriptors) {
    const auto kept = static_cast<unsigned>(descriptor);
    if (kept != next) (void)syscall(SYS_close_range, next, kept - 1, 0U);
    next = kept + 1;
  }
  (void)syscall(SYS_close_range, next, kNone, 0U);
  return true;
}

// The last close(2) of a socket with SO_LINGER waits until its peer has taken what was sent, also of one that
// lies unread in another socket: whoever made it chooses how long. The kernel does not wait in a thread that
// ends (PF_EXITING in Linux's inet_release()), so the last copy is that of a short-lived thread. What the
// kernel does wait for there, nobody here waits for: joining a thread does not wait for its descriptors.
bool close_in_ending_thread(std::span<const int> descriptors) noexcept {
  try {
    const std::lock_guard lock(copying.get());
    std::atomic<int> copied = -1;
    std::atomic<bool> closed = false;
    std::thread last = start_thread([&] {
      copied = copy_alone(descriptors) ? 1 : 0;
      copied.notify_one();
      closed.wait(false);
    });
    copied.wait(-1);
    const bool done = copied == 1;
    if (done) {
      for (const int descriptor : descriptors)
        close(descriptor);
    }
    closed = true;
    closed.notify_one();
    last.join();
    return done;
  } catch (...) {
    return false;  // no thread, or no memory for one
  }
}

void close_all(std::span<const int> descriptors) noexcept {
  if (close_in_ending_thread(descriptors)) return;
  for (const int descriptor : descriptors) {
    const linger none{};
    (void)setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close_descriptor(descriptor);
  }
}

// Hangs up, and says whether the last close(2) may take long: of a socket that lingers, or has one in it; of
// a file without a type, such as inotify's, which waits for all processors.
bool may_take_long(int file_descriptor) {
  int domain = 0;
  socklen_t size = sizeof domain;
  if (getsockopt(file_descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0) {
    if (domain == AF_UNIX) hang_up(file_descriptor);
    return domain != AF_UNIX || !is_drained(file_descriptor);
  }
  struct stat status {};
  return fstat(file_descriptor, &status) == 0 && (status.st_mode & S_IFMT) == 0;
}

constinit thread_local ClosingTogether* together = nullptr;

}  // namespace

ClosingTogether::ClosingTogether() noexcept {
  if (together == nullptr) together = this;
}

ClosingTogether::~ClosingTogether() {
  (void)close();
  if (together == this) together = nullptr;
}

bool ClosingTogether::close() noexcept {
  if (count_ == 0) return false;
  const std::span<int> all(waiting_.data(), std::exchange(count_, 0));
  std::sort(all.begin(), all.end());
  close_all(all);
  return true;
}

void close_foreign(int file_descriptor) noexcept {
  if (!may_take_long(file_descriptor)) {
    close_descriptor(file_descriptor);
  } else if (together == nullptr) {
    close_all({&file_descriptor, 1});
  } else {
    together->waiting_[together->count_++] = file_descriptor;
    if (together->count_ == ClosingTogether::kMost) (void)together->close();
  }
}

void hang_up(int socket) noexcept { (void)shutdown(socket, SHUT_RDWR); }

bool has_hung_up(int socket) noexcept {
  pollfd watched{socket, 0, 0};  // POLLHUP is always told
  const timespec at_once{};
  return ppoll(&watched, 1, &at_once, nullptr) > 0;
}

Result<Waited> wait_for(int socket, bool to_write, Deadline deadline, int wake) {
  for (;;) {
    timespec limit{};
    if (deadline != Deadline::max()) {
      const auto left = std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      limit.tv_sec = seconds.count();
      limit.tv_nsec = static_cast<long>(std::chrono::nanoseconds(left - seconds).count());
    }
    std::array<pollfd, 2> watched{
        {{socket, static_cast<short>(to_write ? POLLOUT : POLLIN), 0}, {wake, POLLIN, 0}}};
    const int ready =
        ppoll(watched.data(), watched.size(), deadline == Deadline::max() ? nullptr : &limit, nullptr);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return socket_error(errno, "ppoll", "cannot wait for a socket");
    if (watched[1].revents != 0) return Waited::kWoken;
    if (watched[0].revents != 0) return Waited::kReady;
    if (std::chrono::steady_clock::now() >= deadline) return Waited::kTimeout;
  }
}

}  // namespace gpumem::platform
