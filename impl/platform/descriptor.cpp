// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/descriptor.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "platform/pages.h"

namespace gpumem::platform {

namespace {

// As the kernel knows it: asking a server of files could wait for whoever runs that.
bool status_of(int file_descriptor, struct statx* status) {
  return statx(file_descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, status) == 0;
}

uint64_t device_of(const struct statx& status) { return makedev(status.stx_dev_major, status.stx_dev_minor); }

}  // namespace

DescriptorFacts describe(int file_descriptor) {
  DescriptorFacts facts;
  struct statx status {};
  if (!status_of(file_descriptor, &status)) return facts;
  facts.open = true;
  facts.regular = S_ISREG(status.stx_mode);
  facts.shareable = S_ISREG(status.stx_mode) || S_ISCHR(status.stx_mode);
  facts.size = status.stx_size;
  facts.device = device_of(status);
  facts.inode = status.stx_ino;
  constexpr int kOfSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = S_ISREG(status.stx_mode) ? fcntl(file_descriptor, F_GET_SEALS) : -1;
  // Touching a file of huge pages can fail, whatever its size.
  struct statfs system {};
  const bool huge = seals >= 0 && fstatfs(file_descriptor, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
  facts.sealed = seals >= 0 && (seals & kOfSize) == kOfSize && !huge;

  // The system shows "/memfd:NAME (deleted)".
  constexpr const char* kPrefix = "/memfd:";
  constexpr const char* kSuffix = " (deleted)";
  char path[64];
  char link[sizeof facts.name];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file_descriptor);
  const ssize_t length = readlink(path, link, sizeof link - 1);
  if (length <= 0) return facts;
  link[length] = '\0';
  if (std::strncmp(link, kPrefix, std::strlen(kPrefix)) != 0) return facts;
  if (char* const suffix = std::strstr(link, kSuffix); suffix != nullptr) *suffix = '\0';
  std::snprintf(facts.name, sizeof facts.name, "%s", link + std::strlen(kPrefix));
  return facts;
}

SharedDescriptors share(Descriptors descriptors) {
  return std::make_shared<const Descriptors>(std::move(descriptors));
}

std::vector<int> numbers_of(const Descriptors& descriptors) {
  std::vector<int> numbers;
  numbers.reserve(descriptors.size());
  for (const Descriptor& descriptor : descriptors)
    numbers.push_back(descriptor.get());
  return numbers;
}

FileId file_of(int file_descriptor) {
  struct statx status {};
  if (!status_of(file_descriptor, &status)) return {};
  return {device_of(status), status.stx_ino};
}

Error no_descriptor(int error, const char* entry_point) {
  char text[160] =
      "the system has no free file descriptor; close some, or raise the limit (sysctl fs.file-max)";
  if (error != ENFILE) {
    std::snprintf(text, sizeof text,
                  "the process has no free file descriptor of the %" PRIu64
                  " that it may have (RLIMIT_NOFILE); close some, or raise `ulimit -n`",
                  descriptor_limit());
  }
  return system_error(GPUMEM_ERROR_LIMIT_EXCEEDED, error, entry_point, text);
}

Result<Descriptor> duplicate(int file_descriptor) {
  Descriptor made(fcntl(file_descriptor, F_DUPFD_CLOEXEC, 0));
  if (made) return made;
  if (errno == EMFILE) return no_descriptor(errno, "fcntl");
  return system_error(GPUMEM_ERROR_INVALID_ARGUMENT, errno, "fcntl",
                      "the file descriptor is not open; pass one that was exported");
}

Result<Descriptors> duplicate_all(const Descriptors& descriptors) {
  Descriptors copies;
  copies.reserve(descriptors.size());
  for (const Descriptor& descriptor : descriptors) {
    auto copy = duplicate(descriptor.get());
    if (!copy) return copy.error();
    copies.push_back(std::move(*copy));
  }
  return copies;
}

Result<Descriptor> reopen(int file_descriptor, bool writable) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file_descriptor);
  // O_NONBLOCK: a lease of another process on the file must not make this one wait until it is broken.
  Descriptor made(open(path, (writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_CLOEXEC));
  if (made) return made;
  if (errno == EWOULDBLOCK) {
    return system_error(GPUMEM_ERROR_INVALID_ARGUMENT, errno, "open",
                        "another process has a lease on the file behind a descriptor; do not trust the "
                        "process that sent it");
  }
  // Do not fall back to a duplicate, which could have more rights.
  if (errno == EMFILE || errno == ENFILE) return no_descriptor(errno, "open");
  return system_error(errno == EACCES ? GPUMEM_ERROR_NO_ACCESS : GPUMEM_ERROR_UNSUPPORTED, errno, "open",
                      "cannot open the file behind a descriptor again; check that /proc is mounted");
}

void close_on_exec(int file_descriptor) { (void)fcntl(file_descriptor, F_SETFD, FD_CLOEXEC); }

void close_descriptor(int file_descriptor) noexcept { close(file_descriptor); }

namespace {

struct flock byte_at(uint64_t offset) {
  struct flock place {};
  place.l_type = F_WRLCK;
  place.l_whence = SEEK_SET;
  place.l_start = static_cast<off_t>(offset);
  place.l_len = 1;
  return place;
}

}  // namespace

Result<bool> lock_byte(int file_descriptor, uint64_t offset) {
  struct flock place = byte_at(offset);
  if (fcntl(file_descriptor, F_OFD_SETLK, &place) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return system_error(GPUMEM_ERROR_UNSUPPORTED, errno, "fcntl", "the system does not lock memory files");
}

void unlock_byte(int file_descriptor, uint64_t offset) noexcept {
  struct flock place = byte_at(offset);
  place.l_type = F_UNLCK;
  (void)fcntl(file_descriptor, F_OFD_SETLK, &place);
}

bool is_byte_locked(int file_descriptor, uint64_t offset) {
  struct flock place = byte_at(offset);
  return fcntl(file_descriptor, F_OFD_GETLK, &place) != 0 || place.l_type != F_UNLCK;
}

bool out_of_descriptors() {
  const int probe = open("/", O_PATH | O_CLOEXEC);
  if (probe < 0) return errno == EMFILE || errno == ENFILE;
  close(probe);
  return false;
}

namespace {

// A message of one byte with room for one descriptor.
struct Passing {
  char byte = 0;
  iovec content{&byte, sizeof byte};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  Passing() {
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
};

Error passing_failed(const char* entry_point) {
  const int code = errno;
  if (code == EMFILE || code == ENFILE) return no_descriptor(code, entry_point);
  const bool denied = code == EPERM || code == EACCES;
  return system_error(denied ? GPUMEM_ERROR_PERMISSION_DENIED
                      // Says nothing about the system, so the answer is not kept.
                      : code == ENOMEM || code == ENOBUFS ? GPUMEM_ERROR_OUT_OF_HOST_MEMORY
                                                          : GPUMEM_ERROR_UNSUPPORTED,
                      code, entry_point, "file descriptors cannot be sent over Unix sockets here");
}

}  // namespace

Result<void> try_passing() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return passing_failed("socketpair");
  const Descriptor first(ends[0]);
  const Descriptor second(ends[1]);
  Passing sent;
  cmsghdr* const header = CMSG_FIRSTHDR(&sent.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &ends[1], sizeof(int));
  if (sendmsg(first.get(), &sent.message, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return passing_failed("sendmsg");
  Passing received;
  if (recvmsg(second.get(), &received.message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1)
    return passing_failed("recvmsg");
  const cmsghdr* const answer = CMSG_FIRSTHDR(&received.message);
  if (answer == nullptr || answer->cmsg_len != CMSG_LEN(sizeof(int))) {
    errno = EMFILE;  // the kernel drops descriptors for which the process has no free number
    return passing_failed("recvmsg");
  }
  int copy = -1;
  std::memcpy(&copy, CMSG_DATA(answer), sizeof copy);
  const Descriptor passed(copy);
  if (describe(passed.get()).inode == describe(ends[1]).inode) return {};
  errno = EPROTO;
  return passing_failed("recvmsg");
}

uint64_t descriptor_limit() {
  struct rlimit limit {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : UINT64_MAX;
}

uint64_t usual_descriptor_limit() { return std::min<uint64_t>(descriptor_limit(), 1024); }

}  // namespace gpumem::platform
