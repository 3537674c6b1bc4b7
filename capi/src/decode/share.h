// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Arguments of sharing that several functions take.
#pragma once

#include <cinttypes>
#include <span>

#include "core/device/device.h"
#include "core/share/link/imports.h"
#include "core/share/wire/handle.h"
#include "decoder.h"
#include "gpumem/share.h"

namespace gpumem::capi {

// How long another process may take to answer, in nanoseconds.
inline constexpr uint64_t kAnswerTimeout = UINT64_C(5000000000);

// What is in a share handle. Notes a NULL handle, but returns the error of a bad one, as a newer version
// outranks nothing.
inline Result<core::ShareHandle> decode_share(Decoder& decode, const gpumem_share_handle* handle) {
  decode.not_null(handle, "handle");
  if (handle == nullptr) return core::ShareHandle();
  return core::decode(*handle);
}

// Decodes a query of a way to share memory, and where its result goes.
inline void decode_way(Decoder& decode, const void* pointer, gpumem_share_way way, gpumem_share_peer peer,
                       gpumem_way_info* out_info) {
  decode.not_null(pointer, "pointer");
  if (way < GPUMEM_SHARE_WAY_LEGACY || way > GPUMEM_SHARE_WAY_DMA_BUF)
    decode.not_a_value("way", "GPUMEM_SHARE_WAY_", way,
                       "GPUMEM_SHARE_WAY_LEGACY, GPUMEM_SHARE_WAY_POSIX_FD, GPUMEM_SHARE_WAY_FABRIC or "
                       "GPUMEM_SHARE_WAY_DMA_BUF");
  if (peer < GPUMEM_PEER_OTHER_PROCESS || peer > GPUMEM_PEER_CONTAINER)
    decode.not_a_value("peer", "GPUMEM_PEER_", peer);
  decode.output(out_info, "out_info");
}

inline void require_access(Decoder& decode, gpumem_access access) {
  if (access != GPUMEM_ACCESS_NONE && access != GPUMEM_ACCESS_READ && access != GPUMEM_ACCESS_READWRITE)
    decode.not_a_value("access", "GPUMEM_ACCESS_", access,
                       "GPUMEM_ACCESS_READ, GPUMEM_ACCESS_READWRITE or 0");
}

// Options of an import, without the handle. Holds the device, which `object`, if it is there, must have too.
core::ImportRequest decode_import(Decoder& decode, const gpumem_import_desc& given,
                                  const core::Object* object, core::Ref<core::DeviceObject>* device);

inline std::span<const int32_t> decode_fds(Decoder& decode, const int32_t* fds, uint32_t count) {
  constexpr uint32_t kCountMax = 1U << 20;
  if ((fds == nullptr) != (count == 0)) decode.refuse("fds is NULL and fd_count is not 0, or the reverse");
  if (count > kCountMax)
    decode.refuse("fd_count is %u, and a process has at most %u descriptors", count, kCountMax);
  if (fds == nullptr || count > kCountMax) return {};
  for (uint32_t index = 0; index < count; ++index) {
    if (fds[index] < 0) decode.refuse("the file descriptor fds[%u] is %d", index, fds[index]);
  }
  return {fds, count};
}

}  // namespace gpumem::capi
