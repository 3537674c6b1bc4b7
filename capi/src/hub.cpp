// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/hub.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <vector>

#include "call.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "core/object/host_function_guard.h"
#include "core/share/link/hub.h"
#include "core/share/link/link.h"
#include "core/share/link/ways.h"
#include "decode/share.h"

using namespace gpumem;

namespace {

// More than any valid path has.
constexpr size_t kPathMax = 4096;

// An address, or what is wrong with it.
Result<std::string> decode_address(const char* path, bool make_folder) {
  if (path != nullptr && strnlen(path, kPathMax) == kPathMax)
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the path is longer than 107 bytes; use a shorter one");
  return core::hub_address(path, make_folder);
}

std::vector<uint8_t> decode_secret(capi::Decoder& decode, const void* token, uint32_t size) {
  if (token == nullptr && size != 0) {
    decode.refuse("token is NULL, and token_size is %u", size);
    return {};
  }
  if (token != nullptr && size == 0) {
    decode.refuse("the token is empty; pass at least one byte, or NULL for none");
    return {};
  }
  if (size > core::kSecretMax) {
    decode.refuse("token_size is %u, and a token has at most %zu bytes", size, core::kSecretMax);
    return {};
  }
  const auto* const bytes = static_cast<const uint8_t*>(token);
  return {bytes, bytes + size};
}

std::vector<uint32_t> decode_ids(capi::Decoder& decode, const uint32_t* ids, uint32_t count,
                                 const char* name) {
  constexpr uint32_t kCountMax = 65536;
  if (count > kCountMax) {
    decode.refuse("the number of %s is %u, and at most %u are taken", name, count, kCountMax);
    return {};
  }
  if (count != 0 && ids == nullptr) {
    decode.refuse("%s is NULL, and their number is %u", name, count);
    return {};
  }
  return {ids, ids + count};
}

// The name of something published.
std::string decode_entry_name(capi::Decoder& decode, const char* name) {
  decode.not_null(name, "name");
  if (name == nullptr) return {};
  const size_t length = strnlen(name, core::kNameMax + 1);
  if (!core::is_valid_name({name, length})) {
    decode.refuse("name is not 1 to %zu bytes of UTF-8 without `/` and control characters", core::kNameMax);
    return {};
  }
  return {name, length};
}

core::Fingerprint fingerprint_of(const uint8_t (&bytes)[32]) {
  core::Fingerprint fingerprint{};
  std::copy(std::begin(bytes), std::end(bytes), fingerprint.begin());
  return fingerprint;
}

core::PublishRequest decode_publish(capi::Decoder& decode, const char* name,
                                    const gpumem_publish_desc* desc) {
  const gpumem_publish_desc given = decode.optional_input(desc, "desc");
  capi::require_access(decode, given.access);
  if (given.version >= core::kVersionLast) {
    decode.refuse("version is %" PRIu64 ", and no name has one so high; pass 0 for the next one",
                  given.version);
  }
  core::PublishRequest request;
  request.name = decode_entry_name(decode, name);
  request.version = given.version;
  request.access = given.access;
  request.keep = given.keep;
  request.fingerprint = fingerprint_of(given.fingerprint);
  return request;
}

gpumem_entry_info info_of(const core::HubEntry& entry) {
  gpumem_entry_info info = GPUMEM_ENTRY_INFO_INIT;
  capi::copy_text(info.name, entry.name.c_str());
  info.version = entry.version;
  info.size = entry.size;
  info.type = entry.type;
  info.way = entry.way;
  info.access = entry.access;
  info.publisher_pid = entry.publisher;
  info.publisher_gone = entry.publisher_gone ? 1 : 0;
  info.publisher_uid = entry.user;
  std::copy(entry.fingerprint.begin(), entry.fingerprint.end(), std::begin(info.fingerprint));
  return info;
}

template <class T>
void set_limit(T& limit, T given) {
  if (given != 0) limit = given;
}

// Calls a hub of this process, or over a link a hub of another one.
template <class T, class Handle>
gpumem_status publish(const char* function, Handle place, const char* name, const gpumem_share_handle* handle,
                      const gpumem_publish_desc* desc, uint64_t* out_version, gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<T>(place);
    core::PublishRequest request = decode_publish(decode, name, desc);
    auto given = capi::decode_share(decode, handle);
    GPUMEM_TRY(decode.done());
    if (!given) return given.error();
    request.handle = *given;
    auto version = object->publish(request);
    if (!version) return version.error();
    if (out_version != nullptr) *out_version = *version;
    return GPUMEM_SUCCESS;
  });
}

template <class T, class Handle>
gpumem_status withdraw(const char* function, Handle place, const char* name, uint64_t version,
                       gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<T>(place);
    const std::string wanted = decode_entry_name(decode, name);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->withdraw(wanted, version));
    return GPUMEM_SUCCESS;
  });
}

}  // namespace

gpumem_status gpumem_hub_open(gpumem_instance instance, const gpumem_hub_desc* desc, gpumem_hub* out_hub,
                              gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_hub, "out_hub");
    const gpumem_hub_desc given = decode.optional_input(desc, "desc");
    std::string name = decode.name(given.name);
    core::HubRequest request;
    request.secret = decode_secret(decode, given.token, given.token_size);
    request.users = decode_ids(decode, given.users, given.user_count, "users");
    request.groups = decode_ids(decode, given.groups, given.group_count, "groups");
    if (given.mode > 0777) decode.refuse("mode is 0%o, which is above 0777", given.mode);
    decode.flags(given.flags, GPUMEM_HUB_KEEPER | GPUMEM_HUB_STORE, "GPUMEM_HUB_");
    if ((given.flags & GPUMEM_HUB_STORE) != 0 && (given.flags & GPUMEM_HUB_KEEPER) == 0)
      decode.refuse("GPUMEM_HUB_STORE is for keepers; pass GPUMEM_HUB_KEEPER too");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    auto address = decode_address(given.path, true);
    if (!address) return address.error();
    request.address = std::move(*address);
    set_limit(request.mode, given.mode);
    request.keeper = (given.flags & GPUMEM_HUB_KEEPER) != 0;
    request.store = (given.flags & GPUMEM_HUB_STORE) != 0;
    set_limit(request.limits.links, given.links_max);
    set_limit(request.limits.names, given.names_max);
    set_limit(request.limits.versions, given.versions_max);
    request.limits.descriptors = given.fds_max;
    set_limit(request.limits.bytes, given.bytes_max);
    set_limit(request.limits.timeout_ns, given.timeout_ns);
    auto handle = core::open_hub(object->shared_context(), std::move(name), std::move(request));
    if (!handle) return handle.error();
    *out_hub = capi::make_handle<gpumem_hub>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_hub_close(gpumem_hub hub, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (hub == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Hub>(hub);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_object(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_hub_get_info(gpumem_hub hub, gpumem_hub_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Hub>(hub);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, object->info());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_hub_publish(gpumem_hub hub, const char* name, const gpumem_share_handle* handle,
                                 const gpumem_publish_desc* desc, uint64_t* out_version,
                                 gpumem_error* error) {
  return publish<core::Hub>(__func__, hub, name, handle, desc, out_version, error);
}

gpumem_status gpumem_hub_withdraw(gpumem_hub hub, const char* name, uint64_t version, gpumem_error* error) {
  return withdraw<core::Hub>(__func__, hub, name, version, error);
}

gpumem_status gpumem_link_connect(gpumem_instance instance, const gpumem_link_desc* desc,
                                  gpumem_link* out_link, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_link, "out_link");
    const gpumem_link_desc given = decode.optional_input(desc, "desc");
    core::LinkRequest request;
    request.secret = decode_secret(decode, given.token, given.token_size);
    if (given.reserved != 0) decode.refuse("desc->reserved is %u; set it to 0", given.reserved);
    GPUMEM_TRY(decode.done());
    auto address = decode_address(given.path, false);
    if (!address) return address.error();
    request.address = std::move(*address);
    request.timeout_ns = given.timeout_ns;
    auto handle = core::connect_link(object->shared_context(), request);
    if (!handle) return handle.error();
    *out_link = capi::make_handle<gpumem_link>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_link_close(gpumem_link link, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (link == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Link>(link);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_object(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_link_get_info(gpumem_link link, gpumem_link_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Link>(link);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, object->info());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_link_enumerate(gpumem_link link, uint32_t index, gpumem_entry_info* out_info,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Link>(link);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    auto entry = object->enumerate(index);
    if (!entry) return entry.error();
    capi::answer(out_info, info_of(*entry));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_link_wait(gpumem_link link, const char* name, uint64_t after_version,
                               uint64_t timeout_ns, gpumem_entry_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Link>(link);
    const std::string wanted = decode_entry_name(decode, name);
    if (out_info != nullptr) decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    core::HubEntry entry;
    auto waited = object->wait(wanted, after_version, timeout_ns, &entry);
    if (!waited || *waited != GPUMEM_SUCCESS) return waited;
    if (out_info != nullptr) capi::answer(out_info, info_of(entry));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_link_import_next(gpumem_link link, const char* name, uint64_t after_version,
                                      uint64_t timeout_ns, const gpumem_import_desc* desc,
                                      gpumem_entry_info* out_info, void** out_pointer,
                                      gpumem_memory* out_memory, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Link>(link);
    const std::string wanted = decode_entry_name(decode, name);
    const gpumem_import_desc given = decode.optional_input(desc, "desc");
    core::Ref<core::DeviceObject> device;
    core::ImportRequest request = capi::decode_import(decode, given, object.get(), &device);
    if (out_info != nullptr) decode.output(out_info, "out_info");
    decode.not_null(out_memory, "out_memory");
    GPUMEM_TRY(decode.done());
    core::HubEntry entry;
    core::CreatedMemory created;
    auto done = object->import_next(wanted, after_version, timeout_ns, std::move(request), &entry, &created);
    if (!done || *done != GPUMEM_SUCCESS) return done;
    if (out_info != nullptr) capi::answer(out_info, info_of(entry));
    if (out_pointer != nullptr) *out_pointer = created.pointer;
    *out_memory = capi::make_handle<gpumem_memory>(created.handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_link_fetch(gpumem_link link, const char* name, const gpumem_fetch_desc* desc,
                                gpumem_share_handle* out_handle, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Link>(link);
    const std::string wanted = decode_entry_name(decode, name);
    const gpumem_fetch_desc given = decode.optional_input(desc, "desc");
    decode.not_null(out_handle, "out_handle");
    GPUMEM_TRY(decode.done());
    auto handle = object->fetch(wanted, given.version, fingerprint_of(given.fingerprint));
    if (!handle) return handle.error();
    *out_handle = core::encode(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_link_publish(gpumem_link link, const char* name, const gpumem_share_handle* handle,
                                  const gpumem_publish_desc* desc, uint64_t* out_version,
                                  gpumem_error* error) {
  return publish<core::Link>(__func__, link, name, handle, desc, out_version, error);
}

gpumem_status gpumem_link_withdraw(gpumem_link link, const char* name, uint64_t version,
                                   gpumem_error* error) {
  return withdraw<core::Link>(__func__, link, name, version, error);
}

gpumem_status gpumem_link_get_way(gpumem_link link, const void* pointer, gpumem_share_way way,
                                  gpumem_share_peer peer, gpumem_way_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Link>(link);
    capi::decode_way(decode, pointer, way, peer, out_info);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    capi::answer(out_info, core::share_way(object->context(), pointer, way, peer, object.get()));
    return GPUMEM_SUCCESS;
  });
}
