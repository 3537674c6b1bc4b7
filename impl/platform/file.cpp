// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/arithmetic.h"
#include "base/text.h"
#include "platform/pages.h"

namespace gpumem::platform {
namespace {

// Linux transfers no more at once.
constexpr uint64_t kLargestTransfer = uint64_t{1} << 30;

Status status_of(int error) {
  switch (error) {
    case ENOENT:
      return GPUMEM_ERROR_NOT_FOUND;
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return GPUMEM_ERROR_INVALID_ARGUMENT;
    case EACCES:
    case EPERM:
    case EROFS:
      return GPUMEM_ERROR_PERMISSION_DENIED;
    case ENOMEM:
      return GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return GPUMEM_ERROR_LIMIT_EXCEEDED;
    default:
      return GPUMEM_ERROR_INTERNAL;
  }
}

Error file_error(int error, const char* entry_point, const std::string& what) {
  if (error == EMFILE || error == ENFILE) return no_descriptor(error, entry_point);
  return system_error(status_of(error), error, entry_point, what.c_str());
}

}  // namespace

Result<void> check_file_size(uint64_t size, const char* what) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur) {
    return {};
  }
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "%s of %" PRIu64 " bytes is larger than RLIMIT_FSIZE allows (%" PRIu64
                    "); raise the limit (ulimit -f)",
                    what, size, uint64_t{limit.rlim_cur});
}

Result<int> unnamed_file(const std::string& directory) {
  const std::string what = std::string("cannot make a file in ") + Quoted(directory.c_str()).text();
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  // Some file systems do not support this, and kernels without the flag see a write to a directory.
  if (errno != EOPNOTSUPP && errno != EISDIR) return file_error(errno, "open", what);
  std::string path = directory + "/gpumem-XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named < 0) return file_error(errno, "mkostemp", what);
  if (unlink(path.c_str()) == 0) return named;
  const int error = errno;
  close(named);
  return file_error(error, "unlink", what);
}

Result<void> set_file_size(int file_descriptor, uint64_t size) {
  GPUMEM_TRY(check_file_size(size, "a file"));
  struct stat now {};
  if (fstat(file_descriptor, &now) != 0) return file_error(errno, "fstat", "cannot look at a file");
  const auto wanted = static_cast<off_t>(std::min(size, kSizeMax));
  if (wanted < now.st_size) {
    if (ftruncate(file_descriptor, wanted) == 0) return {};
    return file_error(errno, "ftruncate", "cannot make a file smaller");
  }
  int error = 0;
  do
    error = posix_fallocate(file_descriptor, 0, std::max<off_t>(wanted, 1));
  while (error == EINTR);
  if (error == 0) return {};
  (void)!ftruncate(file_descriptor, now.st_size);  // frees what was allocated until the disk was full
  const bool full = error == ENOSPC || error == EDQUOT;
  return file_error(error, "posix_fallocate",
                    "cannot make a file of " + std::to_string(size) + " bytes" +
                        (full ? "; free space on its disk, or choose another directory" : ""));
}

Result<void> write_file(int file_descriptor, uint64_t offset, const void* bytes, uint64_t size) {
  for (uint64_t done = 0; done < size;) {
    const ssize_t written =
        pwrite(file_descriptor, static_cast<const char*>(bytes) + done,
               std::min(size - done, kLargestTransfer), static_cast<off_t>(offset + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error(errno, "pwrite", "cannot write to a file");
    done += static_cast<uint64_t>(written);
  }
  return {};
}

Result<void> read_file(int file_descriptor, uint64_t offset, void* bytes, uint64_t size) {
  for (uint64_t done = 0; done < size;) {
    const ssize_t read = pread(file_descriptor, static_cast<char*>(bytes) + done,
                               std::min(size - done, kLargestTransfer), static_cast<off_t>(offset + done));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0 && errno != EIO)
      return file_error(errno, "pread", "cannot read from the file of the content");
    if (read < 0)
      return system_error(GPUMEM_ERROR_CONTENT_LOST, errno, "pread",
                          "cannot read from the file of the content");
    if (read == 0) {
      return make_error(GPUMEM_ERROR_CONTENT_LOST,
                        "the file of the content has no bytes at byte %" PRIu64
                        ": another program cut it short",
                        offset + done);
    }
    done += static_cast<uint64_t>(read);
  }
  return {};
}

// ---- files of the program's ----

namespace {

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFIFO:
      return "a pipe";
    case S_IFSOCK:
      return "a socket";
    case S_IFDIR:
      return "a directory";
    case S_IFCHR:
      return "a character device";
    default:
      return "no file";
  }
}

// Zeros if it is not open or the system does not say. Unlike fstat, makes no network file system flush its
// data or ask its server.
FileId id_of(int file_descriptor) {
  struct statx status {};
  if (statx(file_descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &status) != 0) return {};
  return {makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino};
}

bool is_aligned(uint64_t offset, const void* bytes) {
  return (offset | address_of(bytes)) % ProgramFile::kUnit == 0;
}

}  // namespace

Result<void> ProgramFile::open(int file_descriptor, bool write) {
  write_ = write;
  struct stat status {};
  const int flags = fcntl(file_descriptor, F_GETFL);
  if (flags < 0 || fstat(file_descriptor, &status) != 0) {
    return system_error(GPUMEM_ERROR_INVALID_ARGUMENT, errno, flags < 0 ? "fcntl" : "fstat",
                        ("file descriptor " + std::to_string(file_descriptor) + " is not open").c_str());
  }
  const bool regular = S_ISREG(status.st_mode);
  if (!regular && !S_ISBLK(status.st_mode)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the file descriptor is of %s, which has no offsets; pass one of a file",
                      kind_of(status.st_mode));
  }
  if ((flags & O_PATH) != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the file descriptor was opened with O_PATH, which neither reads nor writes");
  }
  // The kernel would ignore the offset.
  if (write && (flags & O_APPEND) != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the file descriptor was opened with O_APPEND, which writes at the end only");
  }
  const int mode = flags & O_ACCMODE;
  if (mode != O_RDWR && mode != (write ? O_WRONLY : O_RDONLY)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS, "the file descriptor was not opened for %s",
                      write ? "writing" : "reading");
  }
  file_ = file_descriptor;
  id_ = id_of(file_);
  if ((flags & O_DIRECT) != 0) {
    direct_ = file_;
    always_direct_ = true;
    try_direct_.store(true, std::memory_order_relaxed);
  }
  size_ = regular ? static_cast<uint64_t>(status.st_size) : UINT64_MAX;
  return {};
}

void ProgramFile::prefer_direct() {
  if (always_direct_) return;
  const std::string path = "/proc/self/fd/" + std::to_string(file_);
  reopened_ = Descriptor(::open(path.c_str(), (write_ ? O_WRONLY : O_RDONLY) | O_DIRECT | O_CLOEXEC));
  direct_ = reopened_.get();
  try_direct_.store(direct_ >= 0, std::memory_order_relaxed);
}

Result<void> ProgramFile::check_open(uint64_t offset) const {
  if (id_of(file_) == id_) return {};
  return transfer_error(EBADF, offset);
}

Error ProgramFile::transfer_error(int error, uint64_t offset) const {
  const char* const verb = write_ ? "write" : "read";
  char what[320];
  const auto as = [&](Status status) {
    return system_error(status, error, write_ ? "pwrite" : "pread", what);
  };
  if (error == EFAULT) {
    std::snprintf(what, sizeof what, "a page of the memory cannot be %s, at byte %" PRIu64 " of the file",
                  write_ ? "read" : "written", offset);
    return as(GPUMEM_ERROR_INVALID_STATE);
  }
  if (error == EBADF) {
    std::snprintf(what, sizeof what,
                  "the file descriptor was closed during the call, before byte %" PRIu64
                  "; keep it open until the call returns",
                  offset);
    return as(GPUMEM_ERROR_INVALID_STATE);
  }
  if (error == EINVAL && always_direct_) {
    std::snprintf(
        what, sizeof what,
        "cannot %s the file at byte %" PRIu64
        ": the descriptor was opened with O_DIRECT, which wants offset, size and memory aligned; open "
        "the file without it and pass GPUMEM_FILE_DIRECT",
        verb, offset);
    return as(GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  if (error == EINVAL || error == ESPIPE) {
    std::snprintf(what, sizeof what,
                  "the file takes no %s at byte %" PRIu64
                  "; if it can only be mapped (memfd_secret, hugetlbfs), map it and use gpumem_copy()",
                  verb, offset);
    return as(GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  std::snprintf(what, sizeof what, "cannot %s the file at byte %" PRIu64, verb, offset);
  return as(status_of(error));
}

Result<void> ProgramFile::read(uint64_t offset, void* bytes, uint64_t size, uint64_t room) {
  GPUMEM_TRY(check_open(offset));
  for (uint64_t done = 0; done < size;) {
    char* const to = static_cast<char*>(bytes) + done;
    const uint64_t at = offset + done;
    const bool direct = is_direct() && is_aligned(at, to);
    // Direct reads take whole units: read more than wanted if there is room, else leave the rest to the
    // cache.
    const uint64_t all = round_up(size - done, kUnit) <= room - done ? round_up(size - done, kUnit)
                                                                     : round_down(size - done, kUnit);
    const bool now = direct && all != 0;
    const ssize_t got = pread(now ? direct_ : file_, to, std::min(now ? all : size - done, kLargestTransfer),
                              static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && now && errno == EINVAL) {  // the file system needs larger units, or refuses
      try_direct_.store(false, std::memory_order_relaxed);
      continue;
    }
    if (got < 0) return transfer_error(errno, at);
    if (got == 0) {
      return make_error(
          GPUMEM_ERROR_INVALID_STATE,
          "the file gave no bytes at byte %" PRIu64
          "; it may have been cut short during the call, or have fewer bytes than its size says, "
          "as files in /sys do",
          at);
    }
    const uint64_t bytes_read = std::min(static_cast<uint64_t>(got), size - done);
    if (now || always_direct_) direct_bytes_.fetch_add(bytes_read, std::memory_order_relaxed);
    done += bytes_read;
  }
  return {};
}

Result<void> ProgramFile::write(uint64_t offset, const void* bytes, uint64_t size) {
  GPUMEM_TRY(check_open(offset));
  for (uint64_t done = 0; done < size;) {
    const char* const from = static_cast<const char*>(bytes) + done;
    const uint64_t at = offset + done;
    const uint64_t whole = round_down(size - done, kUnit);
    const bool now = is_direct() && is_aligned(at, from) && whole != 0;
    const ssize_t put = pwrite(now ? direct_ : file_, from,
                               std::min(now ? whole : size - done, kLargestTransfer), static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && now && errno == EINVAL) {
      try_direct_.store(false, std::memory_order_relaxed);
      continue;
    }
    if (put <= 0) return transfer_error(put < 0 ? errno : ENOSPC, at);
    if (now || always_direct_) direct_bytes_.fetch_add(static_cast<uint64_t>(put), std::memory_order_relaxed);
    done += static_cast<uint64_t>(put);
  }
  return {};
}

}  // namespace gpumem::platform
