// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Validated options of a host instance, with every default filled in.
#pragma once

#include <array>
#include <cstdint>

#include "contract/backend.h"

namespace gpumem::host {

inline constexpr uint32_t kDevicesMax = 64;

// Functions that can be treated as missing (COM-20); bits of Options::masked.
enum class EntryPoint : uint32_t {
  kLaunchHostFunction,
  kWriteValue,
  kWaitValue,
  kRegister,
  kCopy2d,
  kFill2d,
  kPeerAccess,
  kVmm,      // all of virtual memory management
  kSharing,  // all sharing between processes
};

struct Options {
  uint32_t device_count = 2;
  bool strict = true;
  uint64_t device_bytes = uint64_t{4} << 30;
  uint64_t granularity = 512;  // as that of small allocations on a GPU
  bool pageable = false;
  bool same_pointer = false;
  int32_t lock_mode = GPUMEM_HOST_LOCK_TRY;
  uint32_t numa_nodes = 0;  // 0: those of the machine
  uint64_t register_count_max = 65500;
  uint64_t lock_piece = uint64_t{256} << 20;
  uint32_t quarantine = 64;
  bool fill = true;
  std::array<uint64_t, kDevicesMax> links{};  // bit e of links[d]: device d can reach device e
  uint32_t masked = 0;
  bool concurrent = true;
  bool compressible = true;
  uint64_t vmm_granularity = uint64_t{2} << 20;  // as on a GPU

  // SYMBOL_MISSING if the entry point is masked.
  Result<void> require(EntryPoint entry_point) const;
  bool has(EntryPoint entry_point) const { return (masked >> static_cast<uint32_t>(entry_point) & 1) == 0; }
};

// INVALID_ARGUMENT; the message names the first option that is out of range, and the range.
Result<Options> check_options(const backend::HostOptions& options);

// UUID of a device: depends only on the options and the ordinal, in every process (HST-7).
std::array<uint8_t, 16> device_uuid(const Options& options, uint32_t ordinal);
// In hexadecimal digits, 0-terminated.
std::array<char, 33> text_of(const std::array<uint8_t, 16>& uuid);

}  // namespace gpumem::host
