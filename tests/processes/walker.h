// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a walk tells its processes, and what they answer.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpumem/gpumem.h"

namespace processes::walk {

inline constexpr uint64_t kSize = uint64_t{64} << 10;
inline constexpr uint64_t kLooked = 4096;  // bytes of it that are written and compared
inline constexpr uint32_t kNamesMax = 3;   // of a hub

enum What : int32_t {
  kMake,
  kFill,
  kExport,
  kRevoke,
  kDestroy,
  kImport,
  kDrop,
  kLook,
  kWrite,
  kSend,
  kReceive,
  kOpenHub,
  kCloseHub,
  kPublish,
  kWithdraw,
  kHubInfo,
  kConnect,
  kCloseLink,
  kLinkPublish,
  kLinkWithdraw,
  kFetch,
  kWait,
  kEntry,
  kEnd,
};

// What a process is told to do.
struct Order {
  int32_t what = kEnd;
  int32_t hub = 0;      // the link to which hub
  uint64_t number = 0;  // of what it made or imported
  uint64_t value = 0;
  uint64_t timeout_ns = 0;
  uint32_t keep = 0;
  uint32_t seed = 0;
  gpumem_access access = 0;
  uint8_t fingerprint = 0;
  gpumem_share_handle handle{};
  char text[100] = "";
};

struct Answer {
  gpumem_status status = GPUMEM_ERROR_INTERNAL;
  int32_t state = -1;
  uint64_t number = 0;
  uint64_t count = 0;
  uint32_t equal = 0;
  gpumem_share_handle handle{};
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  char text[1024] = "";
};

// To the nursery: start a process, or wait for the end of one.
struct Errand {
  int32_t bury = 0;
  int32_t kill = 0;  // 1: before that; the parent does it, so that the number cannot mean another process
  char address[64] = "";  // where the test listens, without the 0 before it
};

inline sockaddr_un abstract(const char* name, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name, std::strlen(name));
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name));
  return address;
}

}  // namespace processes::walk
