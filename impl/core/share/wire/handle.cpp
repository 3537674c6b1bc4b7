// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/wire/handle.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "platform/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace gpumem::core {

namespace {

constexpr std::array<char, 8> kHandleMagic{'g', 'p', 'u', 'm', 'e', 'm', 'S', 'H'};
constexpr uint16_t kHandleVersion = 1;

// The bytes, in the order of the machine: a GPU and all that use it have the same.
struct Bytes {
  std::array<char, 8> magic;
  uint16_t version;
  uint8_t type;
  uint8_t way;
  uint8_t backend;
  uint8_t access;
  uint8_t location;
  uint8_t reserved;
  int32_t numa_node;
  int32_t pid;
  uint64_t size;
  uint64_t offset;
  uint64_t buffer_id;
  uint64_t start_time;
  uint32_t fd_count;
  uint32_t reserved_too;
  std::array<uint8_t, 16> device_uuid;
  Token boot;
  Token instance;
  Token token;
  std::array<uint8_t, 64> payload;
  uint64_t process_namespace;
  uint64_t origin_start_time;
  uint64_t origin_connection;
  int32_t origin_pid;
  uint32_t origin_user;
  uint64_t files;
  uint64_t unused;
  uint64_t zero;  // not in the check, which is much faster for 240 bytes than for more
  uint64_t check;
};
static_assert(sizeof(Bytes) == sizeof(gpumem_share_handle));
static_assert(std::endian::native == std::endian::little);

uint64_t check_of(const Bytes& bytes) {
  static_assert(offsetof(Bytes, zero) == 240);
  return XXH3_64bits(&bytes, offsetof(Bytes, zero));
}

struct Run {
  uint32_t count;
  uint32_t units;  // of kUnit
};
constexpr uint64_t kUnit = 4096;  // no granularity is smaller
constexpr size_t kRuns = sizeof(ShareHandle::payload) / sizeof(Run);

bool is_plausible(const Bytes& bytes) {
  const bool event = bytes.type == GPUMEM_SHARE_TYPE_EVENT;
  const bool ring = bytes.type == GPUMEM_SHARE_TYPE_RING;
  if (!event && !ring && bytes.type != GPUMEM_SHARE_TYPE_MEMORY) return false;
  if (bytes.backend != GPUMEM_BACKEND_CUDA && bytes.backend != GPUMEM_BACKEND_HOST) return false;
  if (bytes.access != GPUMEM_ACCESS_READ && bytes.access != GPUMEM_ACCESS_READWRITE) return false;
  if (bytes.way != GPUMEM_SHARE_WAY_LEGACY && bytes.way != GPUMEM_SHARE_WAY_POSIX_FD &&
      bytes.way != GPUMEM_SHARE_WAY_FABRIC)
    return false;
  if (event) return bytes.way == GPUMEM_SHARE_WAY_LEGACY && bytes.size == 0 && bytes.offset == 0;
  if (ring && (bytes.way != GPUMEM_SHARE_WAY_LEGACY || bytes.offset != 0)) return false;
  // Each block has a descriptor, and their sizes may have one.
  if (bytes.way == GPUMEM_SHARE_WAY_POSIX_FD && bytes.fd_count > bytes.size / kUnit + 1) return false;
  return bytes.size != 0 && bytes.size <= uint64_t{INT64_MAX} && bytes.offset < bytes.size;
}

Error no_handle() {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the share handle is damaged or is none; pass its 256 bytes on as they are");
}

Error bad_blocks() {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the sizes of the blocks do not match the share handle; it is damaged, or the file "
                    "descriptors are of other memory");
}

}  // namespace

gpumem_share_handle encode(const ShareHandle& handle) {
  Bytes bytes{};
  bytes.magic = kHandleMagic;
  bytes.version = kHandleVersion;
  bytes.type = static_cast<uint8_t>(handle.type);
  bytes.way = static_cast<uint8_t>(handle.way);
  bytes.backend = static_cast<uint8_t>(handle.backend);
  bytes.access = static_cast<uint8_t>(handle.access);
  bytes.location = static_cast<uint8_t>(handle.location);
  bytes.numa_node = handle.numa_node;
  bytes.pid = handle.exporter.pid;
  bytes.size = handle.size;
  bytes.offset = handle.offset;
  bytes.buffer_id = handle.buffer_id;
  bytes.start_time = handle.exporter.start_time;
  bytes.fd_count = handle.fd_count;
  bytes.files = handle.files;
  bytes.device_uuid = handle.device_uuid;
  bytes.process_namespace = handle.exporter.process_namespace;
  bytes.boot = handle.exporter.boot;
  bytes.instance = handle.exporter.instance;
  bytes.token = handle.token;
  bytes.payload = handle.payload;
  bytes.origin_start_time = handle.origin.process.start_time;
  bytes.origin_connection = handle.origin.connection;
  bytes.origin_pid = handle.origin.process.pid;
  bytes.origin_user = handle.origin.process.user;
  bytes.check = check_of(bytes);
  return std::bit_cast<gpumem_share_handle>(bytes);
}

uint64_t check_value(const gpumem_share_handle& bytes) { return std::bit_cast<Bytes>(bytes).check; }

Result<ShareHandle> decode(const gpumem_share_handle& given) {
  const Bytes bytes = std::bit_cast<Bytes>(given);
  if (bytes.magic != kHandleMagic || bytes.zero != 0 || bytes.check != check_of(bytes)) return no_handle();
  if (bytes.version > kHandleVersion) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the share handle is of version %u, and this library knows version %u; use a library "
                      "as new as the exporter's",
                      bytes.version, kHandleVersion);
  }
  if (bytes.version != kHandleVersion || !is_plausible(bytes)) return no_handle();
  ShareHandle handle;
  handle.type = bytes.type;
  handle.way = bytes.way;
  handle.backend = bytes.backend;
  handle.access = bytes.access;
  handle.location = bytes.location;
  handle.numa_node = bytes.numa_node;
  handle.size = bytes.size;
  handle.offset = bytes.offset;
  handle.buffer_id = bytes.buffer_id;
  handle.fd_count = bytes.fd_count;
  handle.files = bytes.files;
  handle.device_uuid = bytes.device_uuid;
  handle.exporter = {bytes.boot, bytes.instance, bytes.pid, bytes.start_time, bytes.process_namespace};
  handle.token = bytes.token;
  handle.payload = bytes.payload;
  handle.origin = {{bytes.origin_pid, bytes.origin_user, bytes.origin_start_time}, bytes.origin_connection};
  return handle;
}

uint64_t value_of_files(std::span<const int> descriptors) {
  uint64_t value = 0;
  for (const int descriptor : descriptors) {
    const platform::FileId file = platform::file_of(descriptor);
    value = XXH3_64bits_withSeed(&file, sizeof file, value);
  }
  return value;
}

void set_files(const platform::Descriptors& descriptors, ShareHandle& handle) {
  handle.fd_count = static_cast<uint32_t>(descriptors.size());
  handle.files = value_of_files(platform::numbers_of(descriptors));
}

bool write_blocks(std::span<const uint64_t> sizes, ShareHandle& handle) {
  std::array<Run, kRuns> runs{};
  size_t used = 0;
  for (const uint64_t size : sizes) {
    const uint64_t units = size / kUnit;
    const bool same = used != 0 && runs[used - 1].units == units;
    if (size % kUnit != 0 || units > UINT32_MAX || (!same && used == kRuns)) {
      handle.payload = {};
      return false;
    }
    if (!same) runs[used++].units = static_cast<uint32_t>(units);
    ++runs[used - 1].count;
  }
  handle.payload = std::bit_cast<decltype(handle.payload)>(runs);
  return true;
}

std::vector<uint64_t> read_blocks(const ShareHandle& handle) {
  const auto runs = std::bit_cast<std::array<Run, kRuns>>(handle.payload);
  std::vector<uint64_t> sizes;
  uint64_t left = handle.fd_count;  // so that a forged count does not ask for much memory
  for (const Run& run : runs) {
    if (run.count > left) return {};
    left -= run.count;
    sizes.insert(sizes.end(), run.count, run.units * kUnit);
  }
  return sizes;
}

Result<std::vector<uint64_t>> block_sizes(const ShareHandle& handle, std::vector<int>* descriptors) {
  std::vector<uint64_t> sizes = read_blocks(handle);
  if (sizes.empty()) {
    const int file = descriptors->back();
    const size_t count = descriptors->size() - 1;
    const platform::DescriptorFacts facts = platform::describe(file);
    if (!facts.sealed || count == 0 || facts.size != count * sizeof(uint64_t)) return bad_blocks();
    sizes.resize(count);
    GPUMEM_TRY(platform::read_file(file, 0, sizes.data(), facts.size));
    descriptors->pop_back();
  }
  uint64_t left = handle.size;
  for (const uint64_t size : sizes) {
    if (size == 0 || size > left) return bad_blocks();
    left -= size;
  }
  if (left != 0 || sizes.size() != descriptors->size()) return bad_blocks();
  return sizes;
}

}  // namespace gpumem::core
