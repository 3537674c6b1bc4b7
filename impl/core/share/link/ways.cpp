// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/link/ways.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/arithmetic.h"
#include "core/memory/pointer.h"
#include "core/memory/range.h"
#include "core/object/host_function_guard.h"
#include "core/share/link/link.h"
#include "core/share/peer/exports.h"
#include "platform/pages.h"

namespace gpumem::core {

namespace {

// The device that has what is at an address.
Result<Device*> home_of(Context& context, const void* pointer, FoundRegion* found) {
  *found = find_region(context, pointer);
  if (!found->region) return nothing_at(context, pointer, *found);
  const Region& region = *found->region;
  if (!region.in_parts()) {
    if (region.traits().on_device && !region.traits().imported) return &region.device();
    return make_error(GPUMEM_ERROR_WRONG_KIND,
                      "%s memory has no dma-buf; device memory has, and memory of ranges and buffers",
                      region.traits().name);
  }
  const auto& range = static_cast<const Range&>(region);
  const Mapping* const mapping = range.mappings().find(found->offset);
  if (mapping == nullptr || mapping->leaving()) return not_mapped(range, found->offset);
  if (Device* const home = mapping->home()) return home;
  return make_error(GPUMEM_ERROR_WRONG_KIND,
                    "the memory lies on the host, and only that of devices has a dma-buf");
}

// Where exportable memory lies.
TrialRequest place_of(Context& context, const void* pointer) {
  TrialRequest place;
  const FoundRegion found = find_region(context, pointer);
  if (!found.region) return place;  // it has just been freed
  const Region& region = *found.region;
  place.device = region.device().ordinal();
  if (!region.in_parts()) return place;
  const Mapping* const mapping = static_cast<const Range&>(region).mappings().find(found.offset);
  if (mapping == nullptr) return place;
  place.device = mapping->device.ordinal();
  place.location = mapping->facts.location;
  place.numa_node = mapping->facts.on_device() ? -1 : mapping->facts.location_id;
  return place;
}

// Why a peer cannot use memory that can be exported.
Result<void> check_peer(Context& context, const void* pointer, gpumem_share_way way, gpumem_share_peer peer,
                        gpumem_way_info* info) {
  const bool legacy = way == GPUMEM_SHARE_WAY_LEGACY;
  const bool driver = context.backend().kind() == GPUMEM_BACKEND_CUDA;
  switch (peer) {
    case GPUMEM_PEER_SAME_PROCESS:
      if (!legacy) return {};
      return make_error(GPUMEM_ERROR_INVALID_STATE,
                        "the driver does not open the handles of its own process; use the memory itself");
    case GPUMEM_PEER_OTHER_USER:
    case GPUMEM_PEER_CONTAINER:
      info->needs_socket = 1;
      if (!legacy || !driver) return {};
      return make_error(
          GPUMEM_ERROR_UNSUPPORTED,
          "whether the driver lets %s open its handle cannot be tried from here; share a buffer by "
          "GPUMEM_SHARE_WAY_POSIX_FD",
          peer == GPUMEM_PEER_OTHER_USER ? "another user" : "another container");
    case GPUMEM_PEER_OTHER_DEVICE: {
      if (place_of(context, pointer).location != GPUMEM_LOCATION_DEVICE) {
        // No device needs a link to it.
        if (Devices::of(context).size() > 1) return {};
        return make_error(GPUMEM_ERROR_UNSUPPORTED, "this instance has no other device");
      }
      FoundRegion found;
      auto home = home_of(context, pointer, &found);
      if (!home) return home.error();
      for (const auto& device : Devices::of(context)) {
        if (device.get() == *home) continue;
        auto linked = device->has_link_to(**home);
        if (linked && *linked) return {};
      }
      return make_error(GPUMEM_ERROR_UNSUPPORTED, "no other device of this instance has a link to device %u",
                        (*home)->ordinal());
    }
    default:
      return {};
  }
}

}  // namespace

gpumem_way_info share_way(Context& context, const void* pointer, gpumem_share_way way, gpumem_share_peer peer,
                          Link* link) {
  gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
  std::string slow;
  const auto decide = [&]() -> Result<void> {
    if (way == GPUMEM_SHARE_WAY_DMA_BUF) {
      if (link != nullptr)
        return make_error(GPUMEM_ERROR_UNSUPPORTED,
                          "a dma-buf is for drivers of other devices; a process of this library opens none");
      FoundRegion found;
      auto home = home_of(context, pointer, &found);
      if (!home) return home.error();
      GPUMEM_TRY((*home)->need(GPUMEM_CAPABILITY_SHARE_DMA_BUF));
      info.fd_count = 1;
      info.needs_socket = 1;
      return {};
    }
    ExportRequest request;
    request.way = way;
    auto count = Exports::of(context).try_memory(pointer, request);
    if (!count) return count.error();
    info.fd_count = *count;
    TrialRequest trial = place_of(context, pointer);
    trial.way = way;
    trial.other_device = peer == GPUMEM_PEER_OTHER_DEVICE;
    if (link == nullptr) {
      slow = why_slow(trial.location, trial.other_device);
      return check_peer(context, pointer, way, peer, &info);
    }
    info.needs_socket = peer == GPUMEM_PEER_OTHER_USER || peer == GPUMEM_PEER_CONTAINER ? 1 : 0;
    auto tried = link->try_way(trial);
    if (!tried) return tried.error();
    if (tried->status != GPUMEM_SUCCESS) return make_error(tried->status, "%s", tried->text.c_str());
    if (tried->slow) slow = std::move(tried->text);
    return {};
  };
  if (const auto decided = decide(); !decided) {
    info.status = decided.error().status;
    info.fd_count = info.needs_socket = 0;
    const char* const why = decided.error().message;
    const size_t length = whole_characters(why, std::min(std::strlen(why), sizeof info.message - 1));
    std::memcpy(info.message, why, length);
    info.message[length] = '\0';
  } else {
    info.slow = slow.empty() ? 0 : 1;
    if (info.needs_socket != 0 && !slow.empty()) slow += "; ";
    if (info.needs_socket != 0) {
      slow +=
          way == GPUMEM_SHARE_WAY_DMA_BUF
              ? "make it with gpumem_share_export_dma_buf(); another process gets the descriptor over a Unix "
                "socket of yours (SCM_RIGHTS), not with gpumem_share_send() or from a hub"
              : "send it over a Unix socket: gpumem_share_send(), or a hub with a path";
    }
    std::snprintf(info.message, sizeof info.message, "%s", slow.c_str());
  }
  return info;
}

Result<int> export_dma_buf(Context& context, const void* pointer, uint64_t size, bool prefer_pcie) {
  FoundRegion found;
  auto home = home_of(context, pointer, &found);
  if (!home) return home.error();
  const Region& region = *found.region;
  const uint64_t page = platform::page_size();
  if (address_of(pointer) % page != 0 || size % page != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "address and size of a dma-buf are multiples of the page, %" PRIu64 " bytes", page);
  }
  const uint64_t granted = region.in_parts() ? region.size() : region.facts().granted_size;
  if (size > granted - found.offset) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "%" PRIu64 " bytes from offset %" PRIu64 " leave the memory, which has %" PRIu64, size,
                      found.offset, granted);
  }
  if (region.in_parts()) {
    const auto& range = static_cast<const Range&>(region);
    for (uint64_t at = found.offset; at < found.offset + size;) {
      const Mapping* const mapping = range.mappings().find(at);
      if (mapping == nullptr || mapping->leaving()) return not_mapped(range, at);
      at = mapping->end();
    }
  }
  GPUMEM_TRY((*home)->usable());
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY((*home)->need(GPUMEM_CAPABILITY_SHARE_DMA_BUF));
  const auto open = context.stay_open();
  if (!open) return open.error();
  return (*home)->backend().sharing()->export_dma_buf(pointer, size, prefer_pcie);
}

}  // namespace gpumem::core
