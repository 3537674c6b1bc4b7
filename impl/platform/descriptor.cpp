// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/descriptor.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "platform/pages.h"

namespace gpumem::platform {

DescriptorFacts describe(int file_descriptor) {
  DescriptorFacts facts;
  struct stat status {};
  if (fstat(file_descriptor, &status) != 0) return facts;
  facts.open = true;
  facts.shareable = S_ISREG(status.st_mode) || S_ISCHR(status.st_mode);
  facts.size = status.st_size > 0 ? static_cast<uint64_t>(status.st_size) : 0;
  facts.device = status.st_dev;
  facts.inode = status.st_ino;
  constexpr int kOfSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = S_ISREG(status.st_mode) ? fcntl(file_descriptor, F_GET_SEALS) : -1;
  // Touching a file of huge pages can fail, whatever its size.
  struct statfs system {};
  const bool huge = fstatfs(file_descriptor, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
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

Result<int> duplicate(int file_descriptor) {
  const int made = fcntl(file_descriptor, F_DUPFD_CLOEXEC, 0);
  if (made >= 0) return made;
  if (errno == EMFILE) {
    return system_error(
        GPUMEM_ERROR_LIMIT_EXCEEDED, errno, "fcntl",
        "the process has no free file descriptor; close some, or raise the limit (ulimit -n)");
  }
  return system_error(GPUMEM_ERROR_INVALID_ARGUMENT, errno, "fcntl",
                      "the file descriptor is not open; pass one that was exported");
}

Result<int> reopen(int file_descriptor, bool writable) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file_descriptor);
  const int made = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (made >= 0) return made;
  if (errno == EMFILE) return duplicate(file_descriptor);  // for its message
  return system_error(errno == EACCES ? GPUMEM_ERROR_NO_ACCESS : GPUMEM_ERROR_UNSUPPORTED, errno, "open",
                      "cannot open the file behind a descriptor again; check that /proc is mounted");
}

void close_on_exec(int file_descriptor) { (void)fcntl(file_descriptor, F_SETFD, FD_CLOEXEC); }

void close_descriptor(int file_descriptor) noexcept { close(file_descriptor); }

namespace {

struct flock byte_at(uint32_t index) {
  struct flock place {};
  place.l_type = F_WRLCK;
  place.l_whence = SEEK_SET;
  place.l_start = index;
  place.l_len = 1;
  return place;
}

}  // namespace

bool lock_byte(int file_descriptor, uint32_t index) {
  struct flock place = byte_at(index);
  return fcntl(file_descriptor, F_OFD_SETLK, &place) == 0;
}

bool is_byte_locked(int file_descriptor, uint32_t index) {
  struct flock place = byte_at(index);
  return fcntl(file_descriptor, F_OFD_GETLK, &place) == 0 && place.l_type != F_UNLCK;
}

bool out_of_descriptors() {
  const int probe = open("/", O_PATH | O_CLOEXEC);
  if (probe < 0) return errno == EMFILE || errno == ENFILE;
  close(probe);
  return false;
}

}  // namespace gpumem::platform
