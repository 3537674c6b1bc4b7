// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/link/imports.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/memory/range.h"
#include "core/object/abandoned.h"
#include "core/object/background.h"
#include "core/object/callback.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "core/object/host_function_guard.h"
#include "core/object/log.h"
#include "core/share/peer/client.h"
#include "core/share/peer/connect.h"
#include "core/share/peer/server.h"
#include "core/stream/make_object.h"
#include "platform/file.h"
#include "platform/identity.h"
#include "platform/socket.h"
#include "platform/thread.h"
#include "platform/thread_record.h"

namespace gpumem::core {

namespace {

constexpr size_t kLegacyClaims = 4;  // of one memory

Error other_descriptors(const ShareHandle& handle, size_t given) {
  if (handle.fd_count == 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the share handle says that no file descriptors belong to it, so it is forged");
  }
  return make_error(
      GPUMEM_ERROR_INVALID_ARGUMENT,
      "%zu file descriptors were given, and %u belong to the handle; pass all of them, in order", given,
      handle.fd_count);
}

// Descriptors must be of the exporter's files and in its order, also where they are not needed.
Result<void> check_files(std::span<const int> given, const ShareHandle& handle) {
  if (given.empty() || value_of_files(given) == handle.files) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the file descriptors do not belong to the share handle, or not in this order; pass "
                    "those that were exported with it, in order");
}

// What the other process says, and not the caller.
Error untrue_descriptors() {
  return make_error(
      GPUMEM_ERROR_INVALID_ARGUMENT,
      "the file descriptors that came with the share handle are not those that it names; do not "
      "trust the process that sent them");
}

Result<void> check_arrived(const ShareHandle& handle, const platform::Descriptors& descriptors) {
  if (descriptors.empty()) return {};
  if (descriptors.size() != handle.fd_count) return untrue_descriptors();
  if (!check_files(platform::numbers_of(descriptors), handle)) return untrue_descriptors();
  return {};
}

Result<bool> is_own(const ExporterId& exporter) {
  const int32_t process = platform::process_id();
  auto boot = platform::boot_id();
  if (!boot) return boot.error();
  auto began = platform::own_start_time();
  if (!began) return began.error();
  return exporter.boot == *boot && exporter.pid == process && exporter.start_time == *began &&
         exporter.process_namespace == platform::process_namespace();
}

Result<void> check_origin(const ImportRequest& request, const Context& context, gpumem_share_type type) {
  const ShareHandle& handle = request.handle;
  if (handle.type != type) {
    const bool event = handle.type == GPUMEM_SHARE_TYPE_EVENT;
    const bool ring = handle.type == GPUMEM_SHARE_TYPE_RING;
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the share handle is of %s; import it with %s",
                      event  ? "an event"
                      : ring ? "a ring"
                             : "memory",
                      event  ? "gpumem_event_import()"
                      : ring ? "gpumem_ring_open()"
                             : "gpumem_share_import()");
  }
  if (handle.backend != context.backend().kind()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the share handle was made by the %s backend, and this instance is of the other",
                      handle.backend == GPUMEM_BACKEND_CUDA ? "cuda" : "host");
  }
  if (!request.file_descriptors.empty() && request.file_descriptors.size() != handle.fd_count)
    return other_descriptors(handle, request.file_descriptors.size());
  return {};
}

// Checks a handle against what its exporter has recorded.
Result<void> check_part(const ShareHandle& handle, const ShareHandle& recorded) {
  if (handle.size == recorded.size && handle.offset < recorded.size) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "the share handle names %" PRIu64 " bytes at offset %" PRIu64
                    ", and its exporter has recorded %" PRIu64 " bytes; pass its bytes on as they are",
                    handle.size, handle.offset, recorded.size);
}

CreatedMemory at_offset(CreatedMemory whole, const ImportRequest& request) {
  whole.pointer = pointer_to(address_of(whole.pointer) + request.handle.offset);
  return whole;
}

Error only_reading() {
  return make_error(GPUMEM_ERROR_NO_ACCESS,
                    "the exporter allows only reading; import it with GPUMEM_ACCESS_READ");
}

// Whether retrying cannot succeed.
bool has_ended(const Error& error) {
  return error.status == GPUMEM_ERROR_STALE_HANDLE || error.status == GPUMEM_ERROR_PEER_GONE ||
         error.status == GPUMEM_ERROR_CLOSED;
}

Result<void> check_not_own(const ShareHandle& handle) {
  if (handle.way != GPUMEM_SHARE_WAY_LEGACY) return {};
  auto own = is_own(handle.exporter);
  if (!own) return own.error();
  if (!*own) return {};
  if (handle.type == GPUMEM_SHARE_TYPE_RING) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "this process made the ring, and the two ends of a ring are in two processes; open it "
                      "in another one");
  }
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "this process exported it, and only other processes open such a handle; use the %s itself",
      handle.type == GPUMEM_SHARE_TYPE_EVENT ? "event" : "memory");
}

// Why no device here is that of the exporter.
const char* why_not_seen(const ShareHandle& handle) {
  if (handle.backend == GPUMEM_BACKEND_HOST) {
    return "the exporter's host backend has other options, and these make its devices; give both processes "
           "the same options, or the same GPUMEM_HOST_DEVICES and other variables";
  }
  if (handle.location == GPUMEM_LOCATION_DEVICE)
    return "this instance does not see the device that has it; make it visible to this process";
  return "this instance does not see the exporter's device; name the device that will use the memory";
}

}  // namespace

// An import is live while any of its claims is.
gpumem_import_state Imports::Import::state() const {
  gpumem_import_state best = GPUMEM_IMPORT_UNKNOWN;
  for (const Claim& claim : claims)
    best = std::min(best, claim.state());
  return best;
}

Imports::Key Imports::key_of(const ShareHandle& handle, uint32_t ordinal, gpumem_access access) {
  // The driver maps an allocation once, however often it is exported.
  if (handle.way == GPUMEM_SHARE_WAY_LEGACY)
    return {handle.exporter.instance, handle.buffer_id, ordinal, access};
  return {handle.token, 0, ordinal, access};
}

Result<DeviceObject*> Imports::device_of(const ShareHandle& handle) const {
  if (Device* const home = Devices::of(context_).find(handle.device_uuid))
    return &Devices::of(context_).object(home->ordinal());
  return make_error(GPUMEM_ERROR_NOT_FOUND, "%s", why_not_seen(handle));
}

Result<DeviceObject*> Imports::device_for(const ImportRequest& request) const {
  Device* const home = Devices::of(context_).find(request.handle.device_uuid);
  if (request.device == nullptr) return device_of(request.handle);
  Device& device = request.device->device();
  if (&device == home || request.handle.location != GPUMEM_LOCATION_DEVICE) return request.device;
  if (home == nullptr) return make_error(GPUMEM_ERROR_NOT_FOUND, "%s", why_not_seen(request.handle));
  auto linked = device.has_link_to(*home);
  if (!linked) return linked.error();
  if (*linked) return request.device;
  return make_error(GPUMEM_ERROR_UNSUPPORTED, "device %u has no link to device %u, which has the memory",
                    device.ordinal(), home->ordinal());
}

Result<gpumem_access> Imports::access_for(const ImportRequest& request) const {
  const gpumem_access allowed = request.handle.access;
  const gpumem_access wanted = request.access != GPUMEM_ACCESS_NONE ? request.access : allowed;
  if ((wanted & ~allowed) != 0) return only_reading();
  if (wanted == GPUMEM_ACCESS_READ && request.handle.way == GPUMEM_SHARE_WAY_LEGACY) {
    return make_error(
        GPUMEM_ERROR_UNSUPPORTED,
        "memory that is shared by GPUMEM_SHARE_WAY_LEGACY can always be written; import it with "
        "GPUMEM_ACCESS_READWRITE");
  }
  return wanted;
}

// One claim of an export is enough, but one at the exporter's own address also serves handles from elsewhere.
// LEGACY memory cannot be used without one, so a few are held in case one of them ends: it may be over a
// connection that others have too, or be withdrawn, which has not been heard of. The first of them stays, as
// the memory asks its connection whether the exporter lives. A fresh claim replaces withdrawn ones, and those
// over an ended connection: a reopened hub may publish the same exports again.
void Imports::Import::take(Claim& fresh, std::vector<Claim>& over) noexcept {
  const bool legacy = granted.recorded.way == GPUMEM_SHARE_WAY_LEGACY;
  const auto stands_for = [&](const Claim& held) {
    if (held.state() != GPUMEM_IMPORT_LIVE || held.token() != fresh.token()) return false;
    if (legacy) return held.peer() == fresh.peer();
    return held.peer()->exporter() != Token{} || fresh.peer()->exporter() == Token{};
  };
  if (std::any_of(claims.begin(), claims.end(), stands_for)) return;
  const bool lives = fresh.state() == GPUMEM_IMPORT_LIVE;
  const auto is_replaced = [&](const Claim& held) {
    const gpumem_import_state state = held.state();
    const bool gone = state == GPUMEM_IMPORT_PEER_GONE && (legacy || held.token() == fresh.token());
    return state == GPUMEM_IMPORT_WITHDRAWN || (lives && gone);
  };
  const auto give_up = [&](std::vector<Claim>::iterator held) {
    over.push_back(std::move(*held));
    return claims.erase(held);
  };
  const ptrdiff_t first = legacy ? 1 : 0;
  for (auto held = claims.begin() + first; held != claims.end();)
    held = is_replaced(*held) ? give_up(held) : held + 1;
  if (legacy && claims.size() >= kLegacyClaims) give_up(claims.begin() + first);
  claims.push_back(std::move(fresh));
}

// A process is trusted about its own memory, over all its connections. Without a grant, only a ticket by
// which the driver itself finds the memory proves it the same: the descriptors of a driver look alike.
bool Imports::Granted::is_same(const ImportSource& source) const {
  const ShareHandle& other = source.recorded;
  const bool legacy = recorded.way == GPUMEM_SHARE_WAY_LEGACY;
  if (by != source.granter || recorded.way != other.way || recorded.size != other.size ||
      recorded.exporter != other.exporter || recorded.buffer_id != other.buffer_id ||
      recorded.device_uuid != other.device_uuid || recorded.location != other.location ||
      recorded.numa_node != other.numa_node || recorded.files != other.files)
    return false;
  if (!by) return legacy && recorded.payload == other.payload;
  return legacy || (recorded.token == other.token && recorded.payload == other.payload);
}

const Claim* Imports::Import::claim_for(const ShareHandle& handle, bool from_peer) const {
  const Origin& from = handle.origin;
  const Claim* best = nullptr;
  for (const Claim& held : claims) {
    if (held.peer() == nullptr || held.token() != handle.token) continue;
    const SharePeer& peer = *held.peer();
    // Descriptors that nobody granted belong to the handle that brought them.
    const bool same =
        granted.by ? peer.origin().process == from.process : peer.origin().connection == from.connection;
    const bool from_exporter = granted.by && peer.exporter() == handle.exporter.instance;
    if (!(from.connection != 0 && same) && !(from_exporter && !from_peer)) continue;
    if (best == nullptr || held.state() < best->state()) best = &held;
  }
  return best;
}

// Both backends refuse the same addresses in the same way.
Result<void> Imports::check_address(const ImportRequest& request) const {
  if (request.address == nullptr) return {};
  if (request.handle.way == GPUMEM_SHARE_WAY_LEGACY) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the driver chooses the address of memory that is shared by GPUMEM_SHARE_WAY_LEGACY");
  }
  auto unit = range_granularity(context_);
  if (!unit) return unit.error();
  const uint64_t begin = address_of(request.address);
  if (begin % *unit != 0) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the address %p is not a multiple of the granularity of %" PRIu64 " bytes",
                      request.address, *unit);
  }
  constexpr uint64_t kAddresses = uint64_t{1} << 48;
  if (begin >= kAddresses || request.handle.size > kAddresses - begin) {
    return make_error(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
                      "a process has no %" PRIu64 " addresses from %p on; pass a lower one",
                      request.handle.size, request.address);
  }
  return {};
}

Result<CreatedMemory> Imports::join(Import& import, const ImportRequest& request) {
  GPUMEM_TRY(check_part(request.handle, import.granted.recorded));
  GPUMEM_TRY(check_files(request.file_descriptors, import.granted.recorded));
  if (request.address != nullptr && request.address != import.created.pointer) {
    return make_error(GPUMEM_ERROR_ALREADY_EXISTS,
                      "the memory is imported already, at %p, where it stays; pass that address, or NULL",
                      import.created.pointer);
  }
  // Only the ring may destroy the memory that it owns.
  if (request.for_ring != import.for_ring) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      import.for_ring
                          ? "the memory is that of a ring; open it with gpumem_ring_open()"
                          : "the memory of the ring was imported as something else; destroy that");
  }
  ++import.count;
  return at_offset(import.created, request);
}

Result<bool> Imports::count_up(const Key& key, const ImportRequest& request, const gpumem_share_handle* given,
                               CreatedMemory* out) {
  const std::shared_ptr<SharePeer> came_over = arrivals_.peer_of(request.handle);
  const SharePeer* const over = came_over != nullptr ? came_over.get() : request.peer.get();
  std::unique_lock lock(mutex_);
  const auto [first, last] = imports_.equal_range(key);
  for (auto known = first; known != last; ++known) {
    Import& import = known->second;
    const Claim* const claim = import.claim_for(request.handle, over != nullptr);
    if (import.ending || import.for_trial || claim == nullptr) continue;
    // Who has granted it may have withdrawn it since, and granted other memory by the same token.
    if (request.handle.files != import.granted.recorded.files) continue;
    const gpumem_import_state state = claim->state();
    if (state == GPUMEM_IMPORT_PEER_GONE && import.granted.recorded.way == GPUMEM_SHARE_WAY_LEGACY)
      return make_error(GPUMEM_ERROR_PEER_GONE, "the process that exported the memory has ended");
    // Ask the exporter: a hub may have published the export again.
    if (state == GPUMEM_IMPORT_WITHDRAWN) continue;
    // Ask also if there is a new connection to the exporter.
    if (state == GPUMEM_IMPORT_PEER_GONE && over != nullptr && !over->gone()) continue;
    auto joined = join(import, request);
    if (!joined) return joined.error();
    *out = *joined;
    if (given != nullptr) {
      if (shortcuts_.empty()) shortcuts_.resize(kShortcuts);
      shortcuts_[check_value(*given) % kShortcuts] = {*given, &import, request.handle, *out};
    }
    lock.unlock();
    if (came_over != nullptr) arrivals_.drop(request.handle);
    return true;
  }
  return false;
}

Result<bool> Imports::count_up(const Key& key, const ImportRequest& request, ImportSource& source,
                               CreatedMemory* out) {
  std::vector<Claim> over;  // released after unlocking
  const std::lock_guard lock(mutex_);
  const auto [first, last] = imports_.equal_range(key);
  const auto known = std::find_if(first, last, [&](const auto& one) {
    return !one.second.ending && !one.second.for_trial && one.second.granted.is_same(source);
  });
  if (known == last) return false;
  std::vector<Claim>& claims = known->second.claims;
  claims.reserve(claims.size() + 1);
  over.reserve(claims.size());
  auto joined = join(known->second, request);
  if (!joined) return joined.error();
  *out = *joined;
  if (source.granter) known->second.take(source.claim, over);
  return true;
}

std::optional<CreatedMemory> Imports::import_again(const gpumem_share_handle& given) noexcept {
  const std::lock_guard lock(mutex_);
  if (shortcuts_.empty() || arrivals_.any()) return {};
  const Shortcut& known = shortcuts_[check_value(given) % kShortcuts];
  if (known.import == nullptr || std::memcmp(&known.given, &given, sizeof given) != 0) return {};
  const Claim* const claim = known.import->claim_for(known.handle, false);
  if (known.import->ending || claim == nullptr || claim->state() != GPUMEM_IMPORT_LIVE) return {};
  ++known.import->count;
  return known.created;
}

bool Imports::has(const Token& token) const {
  if (arrivals_.has(token)) return true;
  const std::lock_guard lock(mutex_);
  return std::any_of(imports_.begin(), imports_.end(), [&](const auto& known) {
    const std::vector<Claim>& claims = known.second.claims;
    return std::any_of(claims.begin(), claims.end(),
                       [&](const Claim& held) { return held.token() == token; });
  });
}

std::optional<Arrival> Imports::take_arrival(const ImportRequest& request, bool* elsewhere) {
  if (request.arrived != nullptr) return std::move(*request.arrived);
  return arrivals_.take(request.handle, elsewhere);
}

void Imports::put_back(std::optional<Arrival> received) noexcept {
  if (!received) return;
  const auto until = received->until;
  arrivals_.put_back(std::move(*received));
  ShareServer::of(context_).loop().look_by(until);
}

// Asks whoever has the memory, and claims it.
Result<ImportSource> Imports::reach(const ImportRequest& request, std::optional<Arrival>& received,
                                    platform::Deadline deadline) {
  const ShareHandle& given = request.handle;
  ImportSource source;
  source.recorded = given;
  std::shared_ptr<SharePeer> peer = received ? received->peer : request.peer;
  std::vector<int> numbers(request.file_descriptors.begin(), request.file_descriptors.end());
  if (numbers.empty() && received) numbers = platform::numbers_of(received->descriptors);
  const auto use_numbers = [&]() -> Result<void> {
    if (!source.descriptors.empty()) return {};
    for (const int number : numbers) {
      auto copy = platform::duplicate(number);
      if (!copy) return copy.error();
      source.descriptors.push_back(std::move(*copy));
    }
    return {};
  };
  // What came with the handle may not be needed, as the exporter gives its own; and large memory has many.
  if (!request.file_descriptors.empty()) GPUMEM_TRY(use_numbers());
  GPUMEM_TRY(check_files(numbers, given));
  const bool blocks = given.way == GPUMEM_SHARE_WAY_POSIX_FD;
  const auto complete = [&] { return !numbers.empty() || given.fd_count == 0; };
  if (peer == nullptr && !(blocks && complete())) {
    auto connected = connect_to_exporter(context_, given.exporter, time_until(deadline));
    if (connected) {
      peer = std::move(*connected);
    } else {
      // Another thread may have imported what came with the handle over a connection that is open.
      peer = arrivals_.connection(given.origin.connection);
      const bool unreachable = connected.error().status == GPUMEM_ERROR_UNSUPPORTED;
      if (peer == nullptr && !(unreachable && request.unverified && complete())) return connected.error();
    }
  }
  const auto import_alone = [&]() -> Result<ImportSource> {
    GPUMEM_TRY(use_numbers());
    source.claim = Claim(std::move(peer), given.token);
    return std::move(source);
  };
  if (peer == nullptr) return import_alone();
  // The answer may bring as many as the handle says. An exporter that does not come to its end holds them.
  const uint32_t user = received ? received->user : peer->origin().process.user;
  std::shared_ptr<Arrival::Charge> charged;
  AnswerLimit limit{given.fd_count};
  // Without room for both, the answer takes the place of what came with the handle, once there is one.
  const std::function<bool(const Message&)> make_room = [&](const Message&) {
    numbers.clear();
    received->descriptors.clear();
    return true;
  };
  if (given.fd_count != 0 && user != platform::own_user()) {
    auto room = arrivals_.charge(user, given.fd_count);
    if (room) {
      charged = std::move(*room);
    } else if (!received || received->descriptors.empty()) {
      return room.error();
    } else if (peer->has_hung_up()) {
      return blocks ? import_alone() : room.error();
    } else {
      limit.has_room = &make_room;
    }
  }
  auto grant = peer->claim(given.token, limit, time_until(deadline));
  if (!grant) {
    // With the descriptors, the import does not need the exporter.
    const bool ended = grant.error().status == GPUMEM_ERROR_PEER_GONE;
    return blocks && complete() && ended ? import_alone() : grant.error();
  }
  source.granter = peer->origin().process;
  source.claim = Claim(std::move(peer), given.token);
  const ShareHandle& recorded = grant->message.handle;
  if (recorded.token != given.token || recorded.way != given.way || recorded.type != given.type ||
      recorded.buffer_id != given.buffer_id || recorded.device_uuid != given.device_uuid ||
      recorded.location != given.location || grant->descriptors.size() != recorded.fd_count) {
    return make_error(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        request.arrived != nullptr
            ? "the process at the other end grants something else than it offered; do not trust it"
            : "the share handle is not what its exporter has recorded; pass its bytes on as they "
              "are");
  }
  if (!check_files(platform::numbers_of(grant->descriptors), recorded)) return untrue_descriptors();
  GPUMEM_TRY(check_files(request.file_descriptors, recorded));
  if (given.type == GPUMEM_SHARE_TYPE_MEMORY) GPUMEM_TRY(check_part(given, recorded));
  source.recorded = recorded;
  source.descriptors = std::move(grant->descriptors);
  return source;
}

Error Imports::unreached(const ShareHandle& handle, const Error& error) const {
  std::vector<uint64_t> others;
  const auto see = [&](const Object& object) {
    if (object.type() == Type::kInstance && &object.context() != &context_) others.push_back(object.handle());
  };
  for (uint32_t slot = 0; handles::see_next(&slot, see);) {
  }
  for (const uint64_t each : others) {
    const auto other = acquire<InstanceObject>(platform::thread_record(), each);
    if (!other || Imports::of(other->context()).arrivals().peer_of(handle) == nullptr) continue;
    return make_error(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        "the handle came over a link or socket of another instance of this process; import it by "
        "that instance: to this one, %s",
        error.message);
  }
  return error;
}

std::list<Imports::Kept> Imports::take_kept(const Key& key, const ImportSource& source,
                                            const void* address) noexcept {
  std::list<Kept> taken;
  const auto fits = [&](const Kept& one) {
    return one.key == key && one.granted.is_same(source) &&
           (address == nullptr || address == one.mapping->facts().device_pointer);
  };
  const std::lock_guard lock(mutex_);
  const auto kept = std::find_if(kept_.begin(), kept_.end(), fits);
  if (kept != kept_.end()) take_out(kept, taken);
  return taken;
}

void Imports::count_kept(const Kept& one) noexcept {
  kept_bytes_ += one.granted.recorded.size;
  for (const Claim& claim : one.claims) {
    if (claim.peer()->kept++ == 0) ++kept_connections_;
  }
}

void Imports::take_out(std::list<Kept>::iterator one, std::list<Kept>& to) noexcept {
  kept_bytes_ -= one->granted.recorded.size;
  for (const Claim& claim : one->claims) {
    if (--claim.peer()->kept == 0) --kept_connections_;
  }
  to.splice(to.end(), kept_, one);
}

// Each connection is a descriptor, which others may need, and one of those that its exporter may hand out.
void Imports::trim_kept(std::list<Kept>& to) noexcept {
  while (bytes_max_ != 0 && kept_bytes_ > bytes_max_)
    take_out(kept_.begin(), to);
  const auto has_own = [](const Kept& one) {
    return std::any_of(one.claims.begin(), one.claims.end(),
                       [](const Claim& claim) { return claim.peer()->kept == 1; });
  };
  while (kept_connections_ > platform::usual_descriptor_limit() / 8) {
    const auto oldest = std::find_if(kept_.begin(), kept_.end(), has_own);
    take_out(oldest != kept_.end() ? oldest : kept_.begin(), to);
  }
}

// Undoes take_kept().
void Imports::keep_again(std::list<Kept> kept) noexcept {
  if (kept.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (idle_ns_ != 0) {
      count_kept(kept.front());
      kept_.splice(kept_.begin(), kept);
    }
  }
  drop_kept(std::move(kept));
  tidy_later();
}

Result<std::unique_ptr<backend::Memory>> Imports::open_mapping(const ImportRequest& request, Device& device,
                                                               gpumem_access access,
                                                               const ImportSource& source) const {
  const ShareHandle& recorded = source.recorded;
  auto facet = device.sharing();
  if (!facet) return facet.error();
  std::vector<int> numbers = platform::numbers_of(source.descriptors);
  if (recorded.way == GPUMEM_SHARE_WAY_LEGACY) {
    const backend::Ticket ticket = source.ticket();
    const bool peer = device.facts().uuid != recorded.device_uuid;
    return (*facet)->import_memory({ticket, recorded.size, peer});
  }
  if (numbers.size() != recorded.fd_count || numbers.empty())
    return other_descriptors(recorded, numbers.size());
  auto sizes = block_sizes(recorded, &numbers);
  if (!sizes) return sizes.error();
  backend::BlocksRequest blocks;
  blocks.file_descriptors = numbers;
  blocks.sizes = *sizes;
  blocks.location = recorded.location;
  blocks.numa_node = recorded.numa_node;
  blocks.access = access;
  blocks.address = request.address;
  if (Device* const home = Devices::of(context_).find(recorded.device_uuid);
      home != nullptr && home != &device)
    blocks.home = &home->backend();
  return (*facet)->import_blocks(blocks);
}

namespace {

NewImport import_of(Importer& importer, const ShareHandle& recorded, const ImportRequest& request,
                    const Claim& claim) {
  const bool legacy = recorded.way == GPUMEM_SHARE_WAY_LEGACY;
  return {importer, recorded.size, recorded.location == GPUMEM_LOCATION_DEVICE, request.name,
          legacy ? claim.peer() : nullptr};
}

}  // namespace

Result<CreatedMemory> Imports::map(const Key& key, const ImportRequest& request, DeviceObject& device,
                                   gpumem_access access, ImportSource& source) {
  const ShareHandle& recorded = source.recorded;
  NewImport wanted = import_of(*this, recorded, request, source.claim);
  std::list<Kept> kept = take_kept(key, source, request.address);  // the cached mapping, or empty
  // Unmap cached imports, so that the requested address is free.
  if (request.address != nullptr && kept.empty()) flush_cache();
  Cleanup again([&] { keep_again(std::move(kept)); });
  Import import(source);
  // Allocate the records before mapping: only a driver call can undo that.
  std::vector<Claim> over;
  const size_t held = kept.empty() ? 0 : kept.front().claims.size();
  import.claims.reserve(held + 1);
  over.reserve(held);
  import.for_ring = request.for_ring;
  import.for_trial = request.for_trial;
  import.count = 1;
  Table place;
  const auto added = place.emplace(key, std::move(import));
  decltype(places_) by_memory;
  by_memory.emplace(nullptr, added);
  const auto make = [&]() -> Result<std::unique_ptr<backend::Memory>> {
    if (!kept.empty()) return std::move(kept.front().mapping);
    return open_mapping(request, device.device(), access, source);
  };
  auto made = adopt_memory(device, std::move(wanted), make);
  if (!made) return made.error();
  again.dismiss();
  if (kept.empty()) {
    added->second.claims.push_back(std::move(source.claim));
  } else {
    std::vector<Claim>& claims = kept.front().claims;
    std::move(claims.begin(), claims.end(), std::back_inserter(added->second.claims));
    added->second.take(source.claim, over);
  }
  added->second.memory = made->memory;
  added->second.created = made->created;
  auto node = by_memory.extract(by_memory.begin());
  node.key() = made->memory;
  const std::lock_guard lock(mutex_);
  imports_.merge(place);
  places_.insert(std::move(node));
  return made->created;
}

Result<CreatedMemory> Imports::import_memory(const ImportRequest& request, const gpumem_share_handle* given) {
  GPUMEM_TRY(check_origin(request, context_, GPUMEM_SHARE_TYPE_MEMORY));
  auto device = device_for(request);
  if (!device) return device.error();
  auto access = access_for(request);
  if (!access) return access.error();
  GPUMEM_TRY(check_address(request));
  const Key key = key_of(request.handle, (*device)->device().ordinal(), *access);
  CreatedMemory created;
  auto counted = count_up(key, request, given, &created);
  if (!counted) return counted.error();
  if (*counted) return created;
  const platform::CancellationHeld held;  // only here may it wait
  const platform::ClosingTogether together;
  GPUMEM_TRY(check_not_own(request.handle));
  GPUMEM_TRY((*device)->device().usable());
  GPUMEM_TRY(outside_host_function());
  const auto open = context_.stay_open();
  if (!open) return open.error();
  const platform::Deadline deadline = answer_deadline(request.timeout_ns);
  std::optional<Arrival> received;
  for (bool elsewhere = true; elsewhere;) {
    received = take_arrival(request, &elsewhere);
    if (received) break;
    if (elsewhere) GPUMEM_TRY(arrivals_.await_taker(request.handle, deadline));
    // Another thread may have imported it since.
    counted = count_up(key, request, given, &created);
    if (!counted) return counted.error();
    if (*counted) return created;
  }
  const Cleanup over([&, taken = received.has_value() && request.arrived == nullptr] {
    if (taken) arrivals_.end_taking(request.handle);
  });
  ImportSource source;
  bool given_twice = false;
  Cleanup again([&] {
    if (request.arrived != nullptr) return;
    if (given_twice) received->descriptors = std::move(source.descriptors);
    put_back(std::move(received));
  });
  auto reached = reach(request, received, deadline);
  if (!reached && has_ended(reached.error())) again.dismiss();
  if (!reached) return received ? reached.error() : unreached(request.handle, reached.error());
  source = std::move(*reached);
  // Mapping takes as many once more, so do not keep those that came beside the same ones that were granted.
  given_twice = received && source.granter && !received->descriptors.empty() &&
                source.recorded.files == request.handle.files;
  if (given_twice) received->descriptors.clear();
  if ((*access & ~source.recorded.access) != 0) return only_reading();
  const auto changes = lock_unless_in_callback(changes_);
  if (!changes) return changed_elsewhere("imports of the instance");
  // The memory may be imported by now: by another thread, another export or over another connection.
  counted = count_up(key, request, source, &created);
  if (!counted) return counted.error();
  if (*counted) {
    again.dismiss();
    return created;
  }
  auto made = map(key, request, **device, *access, source);
  // What a driver refuses, it may take the next time.
  const bool untrue = !made && made.error().status == GPUMEM_ERROR_INVALID_ARGUMENT &&
                      made.error().native_domain == GPUMEM_NATIVE_NONE && request.file_descriptors.empty() &&
                      request.address == nullptr;
  if (made || untrue) again.dismiss();
  if (untrue) return untrue_descriptors();
  if (!made) return made.error();
  return at_offset(*made, request);
}

Result<CreatedMemory> Imports::import_arrived(ImportRequest request, Arrival arrival) {
  const platform::ClosingTogether together;
  GPUMEM_TRY(check_arrived(request.handle, arrival.descriptors));
  request.peer = arrival.peer;
  request.arrived = &arrival;
  return import_memory(request, nullptr);
}

Result<void> Imports::claim(const ImportRequest& request, gpumem_share_type type,
                            const std::function<Result<void>(ImportSource)>& use) {
  const platform::ClosingTogether together;
  GPUMEM_TRY(check_origin(request, context_, type));
  GPUMEM_TRY(check_not_own(request.handle));
  std::optional<Arrival> received = take_arrival(request);
  Cleanup again([&] { put_back(std::move(received)); });
  auto source = reach(request, received, answer_deadline(request.timeout_ns));
  const auto used = source ? use(std::move(*source)) : Result<void>(source.error());
  if (used || has_ended(used.error())) again.dismiss();
  if (!source && !received) return unreached(request.handle, source.error());
  return used;
}

Result<void> Imports::try_import(ImportRequest request, Arrival arrival, uint64_t bytes_max,
                                 const std::function<Result<void>(void*)>& use) {
  GPUMEM_TRY(check_origin(request, context_, GPUMEM_SHARE_TYPE_MEMORY));
  auto device = device_for(request);
  if (!device) return device.error();
  auto access = access_for(request);
  if (!access) return access.error();
  GPUMEM_TRY(check_not_own(request.handle));
  GPUMEM_TRY((*device)->device().usable());
  request.peer = arrival.peer;
  request.arrived = &arrival;
  std::optional<Arrival> received = take_arrival(request);
  auto source = reach(request, received, answer_deadline(request.timeout_ns));
  if (!source) return source.error();
  if (source->recorded.size > bytes_max || source->recorded.size == 0)
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED, "the memory of a trial has at most %" PRIu64 " bytes",
                      bytes_max);
  CreatedMemory made;
  {
    const auto open = context_.stay_open();
    if (!open) return open.error();
    const auto changes = lock_unless_in_callback(changes_);
    if (!changes) return changed_elsewhere("imports of the instance");
    const Key key = key_of(request.handle, (*device)->device().ordinal(), *access);
    auto mapped = map(key, request, **device, *access, *source);
    if (!mapped) return mapped.error();
    made = *mapped;
  }
  const Cleanup end([&] { abandon(context_, made.handle); });
  return use(made.pointer);
}

Result<uint64_t> Imports::import_event(DeviceObject& device, const ImportRequest& request) {
  GPUMEM_TRY(check_origin(request, context_, GPUMEM_SHARE_TYPE_EVENT));
  if (device.device().facts().uuid != request.handle.device_uuid) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "device %u is not the device of the event; %s",
                      device.device().ordinal(),
                      Devices::of(context_).find(request.handle.device_uuid) != nullptr
                          ? "find that by its UUID"
                          : why_not_seen(request.handle));
  }
  GPUMEM_TRY(check_not_own(request.handle));
  GPUMEM_TRY(device.device().usable());
  GPUMEM_TRY(outside_host_function());
  auto facet = device.device().sharing();
  if (!facet) return facet.error();
  uint64_t imported = 0;
  GPUMEM_TRY(claim(request, GPUMEM_SHARE_TYPE_EVENT, [&](ImportSource source) -> Result<void> {
    auto made = make_object<Event>(device, false, request.name, [&](backend::Device&, Event& event) {
      event.set_flags(GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING);
      event.set_exporter(std::make_shared<Claim>(std::move(source.claim)));
      return (*facet)->import_event(source.ticket());
    });
    if (!made) return made.error();
    imported = *made;
    return {};
  }));
  return imported;
}

Result<gpumem_import_info> Imports::info(const Memory& memory) const {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(&memory);
  if (place == places_.end()) {
    return make_error(GPUMEM_ERROR_WRONG_KIND, "the memory is %s memory; it was not imported",
                      memory.traits().name);
  }
  const auto& [key, import] = *place->second;
  const ShareHandle& recorded = import.granted.recorded;
  gpumem_import_info info = GPUMEM_IMPORT_INFO_INIT;
  info.way = recorded.way;
  info.access = std::get<gpumem_access>(key);
  info.state = import.state();
  info.exporter_pid = recorded.exporter.pid;
  info.count = import.count;
  info.exporter_buffer_id = recorded.buffer_id;
  return info;
}

void Imports::list(const std::function<void(const Fields&)>& add) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, import] : imports_) {
    if (import.memory == nullptr || import.for_trial) continue;
    const ExporterId& exporter = import.granted.recorded.exporter;
    const gpumem_import_state state = import.state();
    Fields fields;
    fields.add("name", import.memory->name());
    fields.add("size", import.memory->size());
    fields.add("count", import.count);
    fields.add("state", state == GPUMEM_IMPORT_LIVE        ? "live"
                        : state == GPUMEM_IMPORT_WITHDRAWN ? "withdrawn"
                        : state == GPUMEM_IMPORT_PEER_GONE ? "peer gone"
                                                           : "unknown");
    fields.add("exporter", static_cast<uint64_t>(exporter.pid));
    fields.add("exporter_start_time", exporter.start_time);
    if (import.granted.by) fields.add("granter", static_cast<uint64_t>(import.granted.by->pid));
    add(fields);
  }
}

void Imports::list_kept(Fields& fields) const {
  const std::lock_guard lock(mutex_);
  fields.add("count", kept_.size());
  fields.add("bytes", kept_bytes_);
}

Result<void> Imports::destroy(Ref<Memory> memory) {
  // The last one, or nothing left to count.
  const auto count_down = [&](bool ends) {
    const std::lock_guard lock(mutex_);
    const auto place = places_.find(memory.get());
    if (place == places_.end()) return true;
    Import& import = place->second->second;
    if (import.count > 1) {
      --import.count;
      return true;
    }
    if (ends) import.ending = true;
    return false;
  };
  if (count_down(false)) return {};
  // Holds no use while it waits for the lock, whose holder may wait for the uses of this memory.
  const std::shared_ptr<Context> context = memory->shared_context();
  const uint64_t handle = memory->handle();
  memory = {};
  const auto changes = lock_unless_in_callback(changes_);
  if (!changes) return changed_elsewhere("imports of the instance");
  memory = acquire<Memory>(platform::thread_record(), handle);
  if (!memory) return handles::refusal(handle, Memory::kType);
  if (count_down(true)) return {};
  const Memory* const ended = memory.get();
  auto destroyed = destroy_object(std::move(memory));
  if (destroyed) return destroyed;
  const std::lock_guard lock(mutex_);
  if (const auto place = places_.find(ended); place != places_.end()) place->second->second.ending = false;
  return destroyed;
}

bool Imports::keep_mapped(Memory& memory) noexcept {
  std::list<Kept> too_much;
  {
    const std::lock_guard lock(mutex_);
    const auto place = places_.find(&memory);
    if (idle_ns_ == 0 || place == places_.end()) return false;
    Import& import = place->second->second;
    const ShareHandle& recorded = import.granted.recorded;
    const uint64_t size = recorded.size;
    if (recorded.way != GPUMEM_SHARE_WAY_POSIX_FD || (bytes_max_ != 0 && size > bytes_max_)) return false;
    if (!import.granted.by || import.for_trial) return false;  // nobody would find it
    if (import.state() == GPUMEM_IMPORT_WITHDRAWN) return false;
    try {
      kept_.push_back({place->second->first, import.granted, {}, nullptr, {}});
    } catch (...) {
      return false;
    }
    Kept& kept = kept_.back();
    kept.claims = std::move(import.claims);
    kept.mapping = memory.take_backend();
    kept.until = Clock::now() + std::chrono::nanoseconds(std::min(idle_ns_, uint64_t{INT64_MAX} / 2));
    count_kept(kept);
    trim_kept(too_much);
  }
  drop_kept(std::move(too_much));
  tidy_later();
  return true;
}

void Imports::forget(const Memory& memory) noexcept {
  std::vector<Claim> claims;  // released after unlocking
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(&memory);
  if (place == places_.end()) return;
  const auto import = place->second;
  claims = std::move(import->second.claims);
  for (Shortcut& one : shortcuts_) {
    if (one.import == &import->second) one.import = nullptr;
  }
  imports_.erase(import);
  places_.erase(place);
}

Result<ShareHandle> Imports::keep(Arrival arrival) {
  const platform::ClosingTogether together;
  const ShareHandle handle = arrival.handle;
  GPUMEM_TRY(check_arrived(handle, arrival.descriptors));
  const auto until = arrival.until;
  arrivals_.keep(std::move(arrival));
  ShareServer::of(context_).loop().look_by(until);
  return handle;
}

// Not on the background thread: its start costs a new process about as much as asking for the handle.
void tidy_arrivals(Context& context) noexcept {
  Arrivals& arrivals = Imports::of(context).arrivals();
  if (!arrivals.any()) return;
  const auto due = arrivals.tidy(Arrivals::Clock::now());
  arrivals.bury();
  ShareServer::of(context).loop().look_by(due);
}

// ---- what is kept mapped ----

// A mapping that the driver refuses to unmap is retried with the next ones, and when the instance is closed.
void Imports::drop_kept(std::list<Kept> kept) noexcept {
  {
    const std::lock_guard lock(mutex_);
    kept.splice(kept.end(), stuck_);
  }
  for (auto at = kept.begin(); at != kept.end();) {
    const auto one = at++;
    auto released = one->mapping->release();
    if (!released) released = one->mapping->release();  // the first call may report an earlier failure
    if (released) {
      kept.erase(one);
    } else {
      log(GPUMEM_LOG_ERROR, "could not unmap an import that was kept: %s", released.error().message);
    }
  }
  const std::lock_guard lock(mutex_);
  stuck_.splice(stuck_.end(), kept);
}

std::list<Imports::Kept> Imports::take_expired(Clock::time_point now) noexcept {
  std::list<Kept> expired;
  while (!kept_.empty() && kept_.front().until <= now)
    take_out(kept_.begin(), expired);
  return expired;
}

std::optional<std::chrono::nanoseconds> Imports::tidy() noexcept {
  const platform::ClosingTogether together;
  std::list<Kept> expired;
  std::optional<std::chrono::nanoseconds> next;
  {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    expired = take_expired(now);
    // Nobody imports again what has ended.
    for (auto at = kept_.begin(); at != kept_.end();) {
      const auto one = at++;
      const auto lives = [](const Claim& claim) { return claim.state() == GPUMEM_IMPORT_LIVE; };
      if (std::none_of(one->claims.begin(), one->claims.end(), lives)) take_out(one, expired);
    }
    if (!kept_.empty()) {
      // Look every second, because an entry added later may be due earlier.
      next = std::clamp(kept_.front().until - now, Clock::duration(std::chrono::milliseconds(1)),
                        Clock::duration(std::chrono::seconds(1)));
    } else {
      tidying_ = false;
    }
  }
  drop_kept(std::move(expired));
  return next;
}

// Tidies on the background thread. Without one, later calls drop what has expired.
void Imports::tidy_later() {
  {
    const std::lock_guard lock(mutex_);
    if (tidying_) return;
    tidying_ = true;
  }
  try {
    context_.background().start();
    context_.background().add([this] { return tidy(); });
  } catch (...) {
    const std::lock_guard lock(mutex_);
    tidying_ = false;
  }
}

Result<void> Imports::set_cache(uint64_t idle_ns, uint64_t bytes_max) {
  GPUMEM_TRY(outside_host_function());
  const auto open = context_.stay_open();
  if (!open) return open.error();
  std::list<Kept> too_much;
  {
    const std::lock_guard lock(mutex_);
    idle_ns_ = idle_ns;
    bytes_max_ = bytes_max;
    const Clock::time_point latest =
        Clock::now() + std::chrono::nanoseconds(std::min(idle_ns, uint64_t{INT64_MAX} / 2));
    for (Kept& one : kept_)
      one.until = std::min(one.until, latest);
    while (idle_ns == 0 && !kept_.empty())
      take_out(kept_.begin(), too_much);
    trim_kept(too_much);
  }
  drop_kept(std::move(too_much));
  return {};
}

Result<void> Imports::flush_for_user() {
  GPUMEM_TRY(outside_host_function());
  const auto open = context_.stay_open();
  if (!open) return open.error();
  flush_cache();
  return {};
}

bool Imports::flush_cache() noexcept {
  std::list<Kept> all;
  {
    const std::lock_guard lock(mutex_);
    while (!kept_.empty())
      take_out(kept_.begin(), all);
  }
  const bool any = !all.empty();
  drop_kept(std::move(all));
  return any;
}

void Imports::stop() noexcept {
  flush_cache();
  arrivals_.clear();
  const std::lock_guard lock(mutex_);
  idle_ns_ = 0;
}

}  // namespace gpumem::core
