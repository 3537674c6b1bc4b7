// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
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
    case EMFILE:
    case ENFILE:
      return GPUMEM_ERROR_LIMIT_EXCEEDED;
    default:
      return GPUMEM_ERROR_INTERNAL;
  }
}

Error file_error(int error, const char* entry_point, const std::string& what) {
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
  // Not every file system can; what does not know the flag takes it for a write to a directory.
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
  (void)!ftruncate(file_descriptor, now.st_size);  // what was given before the disk was full
  return file_error(error, "posix_fallocate", "cannot make a file of " + std::to_string(size) + " bytes");
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
    if (read < 0)
      return system_error(GPUMEM_ERROR_CONTENT_LOST, errno, "pread",
                          "cannot read from the file of the content");
    if (read == 0) {
      return make_error(GPUMEM_ERROR_CONTENT_LOST,
                        "the file of the content ends at byte %" PRIu64 ": another program cut it short",
                        offset + done);
    }
    done += static_cast<uint64_t>(read);
  }
  return {};
}

}  // namespace gpumem::platform
