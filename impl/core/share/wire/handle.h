// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is in a gpumem_share_handle.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpumem/instance.h"
#include "gpumem/share.h"
#include "platform/descriptor.h"

namespace gpumem::core {

// An unguessable, unique number.
using Token = std::array<uint8_t, 16>;

// Who exported: an instance of a process of a boot of a machine.
struct ExporterId {
  Token boot{};
  Token instance{};
  int32_t pid = 0;                 // in its own namespace
  uint64_t start_time = 0;         // of the process, in clock ticks after the boot
  uint64_t process_namespace = 0;  // in which it has that pid
  bool operator==(const ExporterId&) const = default;
};

// A process, as the system names it to this one.
struct ProcessId {
  int32_t pid = 0;
  uint32_t user = 0;
  uint64_t start_time = 0;
  bool operator==(const ProcessId&) const = default;
};

// How a handle came into this process: over which connection, and which process is at its other end. Zeros in
// a handle that the caller got by other means.
struct Origin {
  ProcessId process;
  uint64_t connection = 0;
};

struct ShareHandle {
  gpumem_share_type type = GPUMEM_SHARE_TYPE_MEMORY;
  gpumem_share_way way = GPUMEM_SHARE_WAY_ANY;
  gpumem_backend backend = 0;
  gpumem_access access = GPUMEM_ACCESS_READWRITE;
  gpumem_location location = GPUMEM_LOCATION_DEVICE;
  int32_t numa_node = -1;
  uint64_t size = 0;
  uint64_t offset = 0;
  uint64_t buffer_id = 0;
  uint32_t fd_count = 0;
  uint64_t files = 0;  // value_of_files() of the descriptors
  std::array<uint8_t, 16> device_uuid{};
  ExporterId exporter;
  Token token{};
  Origin origin;  // set by whoever receives it; what another process says there is not used
  // LEGACY: the driver's handle. POSIX_FD: what write_blocks() writes.
  std::array<uint8_t, 64> payload{};
};

gpumem_share_handle encode(const ShareHandle& handle);
// INVALID_ARGUMENT if the bytes are damaged or no handle, UNSUPPORTED if they are of a newer version. The
// result is consistent, but may be forged.
Result<ShareHandle> decode(const gpumem_share_handle& bytes);

// Differs for different handles, except by chance; any number for a damaged one.
uint64_t check_value(const gpumem_share_handle& bytes);

// Tells the files behind descriptors, and their order. A driver's look alike. 0 for none.
uint64_t value_of_files(std::span<const int> descriptors);
// Says in `handle` which descriptors belong to it.
void set_files(const platform::Descriptors& descriptors, ShareHandle& handle);

// The sizes of blocks, in units of their granularity. If they do not fit into the payload, the caller has to
// add a file with all of them, as one more descriptor, and `write_blocks` says so.
bool write_blocks(std::span<const uint64_t> sizes, ShareHandle& handle);
// The sizes of blocks as the payload has them; empty if they are in a file.
std::vector<uint64_t> read_blocks(const ShareHandle& handle);

// The sizes of the blocks; removes the file of sizes from `descriptors`. INVALID_ARGUMENT if the two do not
// match.
Result<std::vector<uint64_t>> block_sizes(const ShareHandle& handle, std::vector<int>* descriptors);

}  // namespace gpumem::core
