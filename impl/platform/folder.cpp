// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "base/text.h"
#include "platform/pages.h"

namespace gpumem::platform {
namespace {

Status status_of_folder(int error) {
  switch (error) {
    case ENOENT:
      return GPUMEM_ERROR_NOT_FOUND;
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return GPUMEM_ERROR_INVALID_ARGUMENT;
    case ENOSPC:
    case EDQUOT:
    case EMLINK:
      return GPUMEM_ERROR_LIMIT_EXCEEDED;
    default:
      return GPUMEM_ERROR_PERMISSION_DENIED;
  }
}

Error failed(const char* entry_point, const char* what, const std::string& path) {
  return system_error(status_of_folder(errno), errno, entry_point,
                      (what + std::string(Quoted(path.c_str()).text())).c_str());
}

}  // namespace

Result<void> make_private_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return failed("mkdir", "cannot make the folder ", path);
  return check_private_folder(path);
}

Result<void> check_private_folder(const std::string& path) {
  const Quoted shown(path.c_str());
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return failed("lstat", "cannot look at the folder ", path);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                      "%s is not a folder of this user alone; remove it, or pass a whole path", shown.text());
  }
  return {};
}

Result<std::string> current_folder() {
  char path[PATH_MAX];
  if (getcwd(path, sizeof path) != nullptr) return std::string(path);
  return system_error(status_of_folder(errno), errno, "getcwd",
                      "the current folder is not known; pass a whole path");
}

}  // namespace gpumem::platform
