// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/open_hub.h"

#include <algorithm>
#include <cinttypes>

#include "base/cleanup.h"

namespace gpumem::core {
namespace {

constexpr uint64_t kOtherDescriptors = 64;  // of the process, beside those of its hubs
constexpr uint64_t kLinkDescriptors = 3;    // of a link, with its holder and an answer

// Files must be as large as the handle says and sealed at that size, because the keeper counts by it. A
// device file has no size; the driver knows it.
Result<void> check_descriptors(const ShareHandle& handle, const platform::Descriptors& descriptors) {
  std::vector<int> files;
  for (const platform::Descriptor& descriptor : descriptors) {
    const platform::DescriptorFacts facts = platform::describe(descriptor.get());
    if (!facts.open || !facts.shareable)
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "a descriptor is not one of memory");
    files.push_back(descriptor.get());
  }
  auto sizes = block_sizes(handle, &files);
  if (!sizes) return sizes.error();
  for (size_t index = 0; index < files.size(); ++index) {
    const platform::DescriptorFacts facts = platform::describe(files[index]);
    if (!facts.regular && handle.backend != GPUMEM_BACKEND_HOST) continue;
    if (!facts.sealed || facts.size != (*sizes)[index]) {
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                        "descriptor %zu is not of a memory file of %" PRIu64
                        " bytes whose size cannot change, as the share handle says",
                        index, (*sizes)[index]);
    }
  }
  return {};
}

}  // namespace

Error no_descriptor_for(const char* what) {
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "of the %" PRIu64
                    " descriptors that the process of the hub may have (RLIMIT_NOFILE) none is free for %s; "
                    "withdraw something, or raise `ulimit -n` there",
                    platform::descriptor_limit(), what);
}

bool OpenHub::admits(const platform::PeerFacts& facts) const {
  const auto has = [](const std::vector<uint32_t>& all, uint32_t one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  return has(request.users, facts.user) ||
         std::any_of(facts.groups.begin(), facts.groups.end(),
                     [&](uint32_t group) { return has(request.groups, group); });
}

uint32_t OpenHub::descriptors_max() {
  if (by_process_) {
    const uint64_t all = platform::descriptor_limit();
    const uint64_t others = kOtherDescriptors + kLinkDescriptors * request.limits.links;
    const uint64_t half = (all > others ? all - others : all) / 2;
    table.limit_descriptors(static_cast<uint32_t>(std::min<uint64_t>(half, UINT32_MAX)));
  }
  return table.limits().descriptors;
}

Result<uint64_t> OpenHub::keep(const Exports& own, const Publisher& publisher, Incoming incoming,
                               std::vector<Token>* gone) {
  Message& message = incoming.message;
  // The limit of the process may have changed since the hub began to wait for the message.
  const uint32_t most = descriptors_max();
  if (incoming.none_free) return no_descriptor_for("what is published");
  if (incoming.too_many) {
    return make_error(
        GPUMEM_ERROR_LIMIT_EXCEEDED,
        "the hub has fds_max = %u, and the handle needs %u descriptors; withdraw something, or open it "
        "with a higher limit",
        most, message.descriptor_count);
  }
  ShareHandle& handle = message.handle;
  if (handle.way != GPUMEM_SHARE_WAY_POSIX_FD || handle.type != GPUMEM_SHARE_TYPE_MEMORY ||
      handle.fd_count == 0) {
    return make_error(
        GPUMEM_ERROR_UNSUPPORTED,
        "a keeper takes memory by GPUMEM_SHARE_WAY_POSIX_FD only, because nothing else outlives its "
        "process; use a buffer with GPUMEM_HANDLE_TYPE_POSIX_FD in handle_types");
  }
  // Refuse a handle that names another exporter, if this process can check the pid.
  if (handle.exporter.process_namespace == platform::process_namespace() &&
      handle.exporter.pid != publisher.process) {
    return make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                      "process %d exported the handle, and process %d publishes it; publish it where it was "
                      "exported",
                      handle.exporter.pid, publisher.process);
  }
  // What a handle says of its exporter can be forged; the system is believed, where it knows the process.
  if (publisher.process > 0) {
    auto began = platform::start_time_of(publisher.process);
    if (!began) return began.error();
    auto lives = platform::peer_lives(publisher.socket);
    if (!lives) return lives.error();
    if (!*lives) {
      return make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                        "process %d, which made the link, has ended; connect again to publish",
                        publisher.process);
    }
    handle.exporter.pid = publisher.process;
    handle.exporter.start_time = *began;
    handle.exporter.process_namespace = platform::process_namespace();
  }
  if (own.has(handle.token) && publisher.process != platform::process_id()) {
    return make_error(
        GPUMEM_ERROR_PERMISSION_DENIED,
        "the process of the hub exported the handle, and process %d publishes it; copy the bytes "
        "into memory of your own to publish them",
        publisher.process);
  }
  GPUMEM_TRY(check_descriptors(handle, incoming.descriptors));
  const gpumem_access access = message.access != 0 ? message.access : GPUMEM_ACCESS_READ;
  if (access > handle.access)
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the export allows only reading; pass GPUMEM_ACCESS_READ");
  handle.access = access;
  HubTable::Request wanted;
  wanted.name = std::move(message.name);
  wanted.version = message.version;
  wanted.keep = message.keep;
  wanted.user = publisher.user;
  wanted.shared = request.is_shared();
  wanted.published.handle = handle;
  wanted.published.fingerprint = message.fingerprint;
  wanted.published.kept = true;
  wanted.published.descriptors = platform::share(std::move(incoming.descriptors));
  wanted.published.publisher = publisher.connection;
  if (store != nullptr) {
    wanted.store = [this](const HubTable::Request& given, uint64_t number) {
      const HubTable::Version& published = given.published;
      return store->add({given.name, number, given.user, published.handle, published.fingerprint},
                        *published.descriptors);
    };
  }
  return table.publish(std::move(wanted), gone);
}

Result<void> OpenHub::withdraw(const std::string& name, uint64_t version, uint32_t user,
                               std::vector<Token>* gone) {
  const bool left = store != nullptr && store->remove_left(name, version, user);
  auto done = table.withdraw(name, version, user, gone);
  if (!done && left && done.error().status == GPUMEM_ERROR_NOT_FOUND) return {};
  return done;
}

Result<void> OpenHub::restore(EventLoop& loop) {
  auto left = store->inherit();
  if (!left) return left.error();
  if (!platform::store_size()) {
    loop.note(
        "the service manager does not say how many descriptors it stores ($FDSTORE, systemd 254): what is "
        "beyond FileDescriptorStoreMax= is lost");
  }
  if (store->lost_versions() + store->lost_files() != 0) {
    loop.note("the store of the service manager had " + std::to_string(store->lost_versions()) +
              " incomplete versions and " + std::to_string(store->lost_files()) +
              " files of none, which are removed; FileDescriptorStoreMax= may be too small");
  }
  Cleanup leave_rest([&] {
    for (KeeperStore::Kept& one : *left) {
      if (one.entry != nullptr) store->leave(std::move(one.entry), std::move(one.descriptors));
    }
  });
  for (KeeperStore::Kept& one : *left) {
    HubTable::Request wanted;
    wanted.name = one.record.name;
    wanted.version = one.record.number;
    wanted.keep = UINT32_MAX;
    wanted.user = one.record.user;
    wanted.published.handle = one.record.handle;
    wanted.published.fingerprint = one.record.fingerprint;
    wanted.published.kept = true;
    wanted.published.descriptors = std::move(one.descriptors);
    wanted.published.stored = std::move(one.entry);
    Cleanup put_back([&] {
      one.descriptors = std::move(wanted.published.descriptors);
      one.entry = std::move(wanted.published.stored);
    });
    std::vector<Token> gone;
    if (auto version = table.publish(std::move(wanted), &gone); !version) {
      loop.note(
          "version " + std::to_string(one.record.number) + " of the name " + one.record.name +
          " stays in the store of the service manager, and nobody can have it: " + version.error().message);
    } else {
      put_back.dismiss();
    }
  }
  return {};
}

void OpenHub::leave_store() noexcept {
  table.for_each([&](HubTable::Version& version) {
    if (version.stored != nullptr) store->leave(std::move(version.stored), std::move(version.descriptors));
  });
}

}  // namespace gpumem::core
