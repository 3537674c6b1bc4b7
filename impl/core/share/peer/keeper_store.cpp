// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/keeper_store.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "platform/file.h"
#include "platform/fork.h"
#include "platform/identity.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

constexpr std::string_view kFilePrefix = "gpumem-file-";
constexpr std::string_view kVersionPrefix = "gpumem-version-";
static_assert(kFilePrefix < kVersionPrefix);  // see flush()
constexpr std::array<char, 8> kKeptMagic{'g', 'p', 'm', 'k', 'e', 'e', 'p', '1'};
constexpr uint32_t kFilesMax = kMessageDescriptorsMax;
constexpr uint64_t kSendTime = 1'000'000'000;  // for all descriptors of a version
constexpr uint64_t kKeeperDescriptors = 24;    // that a keeper needs for itself

// A memory file begins with it; the IDs of the files follow.
struct StoredHead {
  std::array<char, 8> magic = kKeptMagic;
  uint64_t number = 0;
  uint32_t user = 0;
  uint32_t file_count = 0;
  std::array<char, kNameMax + 1> name{};
  gpumem_share_handle handle{};
  Fingerprint fingerprint{};
};
static_assert(sizeof(StoredHead) == 376);

uint64_t new_id() {
  const auto bytes = platform::random_id();
  uint64_t id = 0;
  std::memcpy(&id, bytes.data(), sizeof id);
  return id;
}

std::string stored_name(std::string_view prefix, uint64_t id) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, id);
  return std::string(prefix) + digits;
}

bool is_ours(const std::string& name) {
  return name.starts_with(kFilePrefix) || name.starts_with(kVersionPrefix);
}

uint64_t id_of(const std::string& file_name) {
  return std::strtoull(file_name.c_str() + kFilePrefix.size(), nullptr, 16);
}

Result<platform::Descriptor> write_record(const KeeperStore::Record& record,
                                          const std::vector<std::string>& files) {
  StoredHead head;
  head.number = record.number;
  head.user = record.user;
  head.file_count = static_cast<uint32_t>(files.size());
  std::copy_n(record.name.begin(), std::min(record.name.size(), kNameMax), head.name.begin());
  head.handle = encode(record.handle);
  head.fingerprint = record.fingerprint;
  std::vector<uint64_t> ids;
  for (const std::string& file : files)
    ids.push_back(id_of(file));
  const uint64_t rest = ids.size() * sizeof(uint64_t);
  auto made = platform::memory_file(sizeof head + rest, "gpumem-version");
  if (!made) return made.error();
  platform::Descriptor file(*made);
  GPUMEM_TRY(platform::write_file(file.get(), 0, &head, sizeof head));
  GPUMEM_TRY(platform::write_file(file.get(), sizeof head, ids.data(), rest));
  return file;
}

// No value if the record is damaged or of another library version.
std::optional<KeeperStore::Record> read_record(int file, std::vector<std::string>* files) {
  StoredHead head;
  const platform::DescriptorFacts facts = platform::describe(file);
  if (!facts.sealed || facts.size < sizeof head) return std::nullopt;
  if (!platform::read_file(file, 0, &head, sizeof head)) return std::nullopt;
  const uint64_t rest = facts.size - sizeof head;
  auto handle = decode(head.handle);
  if (head.magic != kKeptMagic || head.file_count == 0 || head.file_count > kFilesMax ||
      rest != head.file_count * sizeof(uint64_t) || head.name.back() != '\0' || head.number == 0 || !handle ||
      handle->fd_count != head.file_count || handle->type != GPUMEM_SHARE_TYPE_MEMORY ||
      handle->way != GPUMEM_SHARE_WAY_POSIX_FD || !is_valid_name(head.name.data()))
    return std::nullopt;
  std::vector<uint64_t> ids(head.file_count);
  if (!platform::read_file(file, sizeof head, ids.data(), rest)) return std::nullopt;
  for (const uint64_t id : ids)
    files->push_back(stored_name(kFilePrefix, id));
  return KeeperStore::Record{head.name.data(), head.number, head.user, *handle, head.fingerprint};
}

}  // namespace

struct KeeperStore::Version {
  Version(KeeperStore& of, std::string name, Record of_version)
      : store(of), stored_as(std::move(name)), record(std::move(of_version)), place(1) {}
  Version(const Version&) = delete;
  Version& operator=(const Version&) = delete;
  ~Version() {
    if (stored) store.remove(*this);
  }

  KeeperStore& store;
  const std::string stored_as;
  const Record record;
  bool stored = false;
  std::vector<std::string> names;  // of its files
  std::vector<std::multimap<int, std::string, OpenedBefore>::iterator> files;
  platform::Descriptors given;                // those of its files that are here, until all are
  platform::SharedDescriptors descriptors;    // while no hub has them
  std::list<std::shared_ptr<Version>> place;  // in left_, made before, because leaving cannot fail
};

namespace {

constinit platform::PerProcess<KeeperStore> of_process;

}  // namespace

Result<std::shared_ptr<KeeperStore>> KeeperStore::open() {
  auto notifier = platform::Notifier::open();
  if (!notifier) return notifier.error();
  KeeperStore& store = of_process.get();
  if (store.in_use_.exchange(true)) {
    return make_error(GPUMEM_ERROR_ALREADY_EXISTS,
                      "another hub of this process uses the store of the service manager; close that first");
  }
  store.notifier_ = std::move(*notifier);
  return std::shared_ptr<KeeperStore>(&store, [](KeeperStore* used) {
    used->notifier_ = {};
    used->in_use_ = false;
  });
}

Result<void> KeeperStore::store(const std::string& name, const platform::Descriptor& descriptor,
                                platform::Deadline deadline) {
  const auto place = stored_.insert(name).first;
  // FDPOLL=0, because otherwise the manager drops descriptors that poll as hung up.
  auto sent = notifier_.send("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, descriptor.get(), deadline);
  if (!sent) stored_.erase(place);
  if (sent || sent.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED) return sent;
  return make_error(GPUMEM_ERROR_BUSY, "the service manager of the keeper does not store it: %s",
                    sent.error().message);
}

bool KeeperStore::flush() noexcept {
  try {
    // The last first, and so versions before their files.
    while (!unsent_.empty() &&
           notifier_.send("FDSTOREREMOVE=1\nFDNAME=" + *unsent_.rbegin(), -1, platform::Deadline::min()))
      unsent_.erase(std::prev(unsent_.end()));
  } catch (const std::bad_alloc&) {
    // Later.
  }
  return unsent_.empty();
}

void KeeperStore::remove(const std::string& name) noexcept {
  unsent_.insert(stored_.extract(name));
  (void)flush();
}

void KeeperStore::remove(const Version& version) noexcept {
  remove(version.stored_as);
  for (const auto& file : version.files) {
    const auto node = files_.extract(file);
    if (!files_.contains(node.key())) remove(node.mapped());
  }
}

// Check the limit here, because the manager silently drops what exceeds it.
Result<void> KeeperStore::require_room(const platform::Descriptors& descriptors) const {
  const auto size = platform::store_size();
  if (!size) return {};
  const size_t used = stored_.size() + others_;
  const size_t wanted = 1 + static_cast<size_t>(std::count_if(
                                descriptors.begin(), descriptors.end(),
                                [&](const auto& descriptor) { return !files_.contains(descriptor.get()); }));
  if (used <= *size && wanted <= *size - used) return {};
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "the service manager of the keeper stores %zu descriptors, %zu are there, and this needs "
                    "%zu more; withdraw something, or raise FileDescriptorStoreMax= of its unit",
                    *size, used, wanted);
}

// Counts records too: the next keeper receives them with the files, before it can close any.
Result<void> KeeperStore::require_descriptors(uint64_t more) const {
  if (stored_.size() + more + kKeeperDescriptors <= most_) return {};
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "the next keeper could not be given what is stored: %" PRIu64 " descriptors, and %" PRIu64
                    " more now, but its limit is %" PRIu64
                    " (RLIMIT_NOFILE); withdraw something, or raise LimitNOFILE= of its unit",
                    uint64_t{stored_.size()}, more, most_);
}

Result<KeeperStore::Entry> KeeperStore::add(const Record& record, const platform::Descriptors& descriptors) {
  // First send pending removals: a file not yet removed would not be stored again.
  if (!flush())
    return make_error(GPUMEM_ERROR_BUSY, "the service manager of the keeper is behind; try again later");
  GPUMEM_TRY(require_room(descriptors));
  const bool is_left = std::any_of(left_.begin(), left_.end(),
                                   [&](const auto& version) { return version->record.name == record.name; });
  if (is_left) {
    return make_error(
        GPUMEM_ERROR_LIMIT_EXCEEDED,
        "the store of the service manager has versions of this name that the keeper had no room "
        "for; withdraw the name, or open the keeper with higher limits");
  }
  const auto is_new = [&](const platform::Descriptor& one) { return !files_.contains(one.get()); };
  const auto fresh = std::count_if(descriptors.begin(), descriptors.end(), is_new);
  GPUMEM_TRY(require_descriptors(static_cast<uint64_t>(fresh) + 1));
  auto version = std::make_shared<Version>(*this, stored_name(kVersionPrefix, new_id()), record);
  version->stored = true;
  const platform::Deadline deadline = platform::deadline_after(kSendTime);
  version->files.reserve(descriptors.size());
  for (const platform::Descriptor& descriptor : descriptors) {
    const auto known = files_.find(descriptor.get());
    const bool first = known == files_.end();
    std::string name = first ? stored_name(kFilePrefix, new_id()) : known->second;
    version->files.push_back(files_.emplace(descriptor.get(), name));
    if (first) GPUMEM_TRY(store(name, descriptor, deadline));
    version->names.push_back(std::move(name));
  }
  auto file = write_record(record, version->names);
  if (!file) return file.error();
  GPUMEM_TRY(store(version->stored_as, *file, deadline));
  return Entry(std::move(version));
}

// Its records are closed once they are read, so that a keeper starts with the descriptors that it runs with.
void KeeperStore::take_given() {
  if (taken_) return;
  others_ = 0;
  std::map<std::string, int> given;
  std::map<std::string, Given> files;
  std::list<std::shared_ptr<Version>> versions;
  const auto inherited = platform::inherited_descriptors();
  for (const platform::NamedDescriptor& one : inherited) {
    if (is_ours(one.name)) {
      given.emplace(one.name, one.value);
    } else if (!platform::is_listening(one.value)) {  // that of the service's own address is not stored
      ++others_;
    }
  }
  std::set<std::string> useless;
  for (const auto& [name, value] : given)
    useless.insert(name);
  stored_ = useless;
  for (const auto& [stored_as, value] : given) {
    if (!stored_as.starts_with(kVersionPrefix)) continue;
    std::vector<std::string> names;
    auto record = read_record(value, &names);
    const bool whole = record && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
                         const auto file = given.find(name);
                         return file != given.end() && platform::describe(file->second).shareable;
                       });
    if (!whole) continue;
    auto version = std::make_shared<Version>(*this, stored_as, std::move(*record));
    version->names = std::move(names);
    for (const std::string& name : version->names) {
      ++files[name].uses;
      useless.erase(name);
    }
    useless.erase(stored_as);
    const auto place = version->place.begin();
    versions.splice(versions.end(), version->place);
    *place = std::move(version);
  }
  // Nothing fails from here on, so nothing useful is removed.
  taken_ = true;
  most_ = platform::descriptor_limit();
  for (const auto& version : versions)
    version->stored = true;
  for (const platform::NamedDescriptor& one : inherited) {
    if (!is_ours(one.name)) continue;
    platform::Descriptor ours(one.value);
    const auto file = files.find(one.name);
    if (file == files.end() || file->second.descriptor) continue;
    platform::close_on_exec(one.value);
    file->second.descriptor = std::move(ours);
  }
  given_ = std::move(files);
  left_.splice(left_.end(), versions);
  for (const std::string& name : useless) {
    ++(name.starts_with(kVersionPrefix) ? lost_versions_ : lost_files_);
    remove(name);
  }
}

// Gives each version its own descriptor of a file that several share.
Result<void> KeeperStore::complete(Version& version) {
  if (version.descriptors != nullptr) return {};
  version.files.reserve(version.names.size());
  version.given.reserve(version.names.size());
  while (version.files.size() < version.names.size()) {
    const std::string& name = version.names[version.files.size()];
    const auto given = given_.find(name);
    platform::Descriptor copy;
    if (given->second.uses > 1) {
      auto made = platform::duplicate(given->second.descriptor.get());
      if (!made) return made.error();
      copy = std::move(*made);
    }
    platform::Descriptor& source = copy ? copy : given->second.descriptor;
    version.files.push_back(files_.emplace(source.get(), name));
    version.given.push_back(std::move(source));
    if (--given->second.uses == 0) given_.erase(given);
  }
  auto all = std::make_shared<platform::Descriptors>();
  all->swap(version.given);
  version.descriptors = std::move(all);
  return {};
}

Result<std::vector<KeeperStore::Kept>> KeeperStore::inherit() {
  take_given();
  std::vector<Kept> kept;
  for (const auto& version : left_) {
    GPUMEM_TRY(complete(*version));
    kept.push_back({version->record, {}, nullptr});
  }
  // Nothing fails from here on.
  for (Kept& one : kept) {
    const std::shared_ptr<Version> version = std::move(left_.front());
    version->place.splice(version->place.end(), left_, left_.begin());
    one.descriptors = std::move(version->descriptors);
    one.entry = version;
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) {
    return std::tie(a.record.name, a.record.number) < std::tie(b.record.name, b.record.number);
  });
  return kept;
}

void KeeperStore::leave(Entry entry, platform::SharedDescriptors descriptors) noexcept {
  auto version = std::static_pointer_cast<Version>(std::move(entry));
  version->descriptors = std::move(descriptors);
  const auto place = version->place.begin();
  left_.splice(left_.end(), version->place);
  *place = std::move(version);
}

bool KeeperStore::remove_left(const std::string& name, uint64_t number, uint32_t user) noexcept {
  const auto of_it = [&](const std::shared_ptr<Version>& version) {
    const Record& record = version->record;
    return record.name == name && (number == 0 || record.number == number) && record.user == user;
  };
  return std::erase_if(left_, of_it) != 0;
}

}  // namespace gpumem::core
