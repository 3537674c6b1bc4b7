// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/keeper_store.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "platform/file.h"
#include "platform/identity.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

constexpr std::string_view kFilePrefix = "gpumem-file-";
constexpr std::string_view kVersionPrefix = "gpumem-version-";
constexpr std::array<char, 8> kMagic{'g', 'p', 'm', 'k', 'e', 'e', 'p', '1'};
constexpr uint32_t kFilesMax = kMessageDescriptorsMax;
constexpr uint64_t kSendTime = 1'000'000'000;

// A memory file begins with it; the IDs of the files follow.
struct StoredHead {
  std::array<char, 8> magic = kMagic;
  uint64_t number = 0;
  uint32_t user = 0;
  uint32_t file_count = 0;
  std::array<char, kNameMax + 1> name{};
  gpumem_share_handle handle{};
  Fingerprint fingerprint{};
};
static_assert(sizeof(StoredHead) == 376);

std::atomic<bool> in_use{false};
std::atomic<bool> accepted{false};  // what the process was given is given once

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

// Nothing if it is none of this version of the library, or damaged.
std::optional<KeeperStore::Record> read_record(int file, std::vector<std::string>* files) {
  StoredHead head;
  const platform::DescriptorFacts facts = platform::describe(file);
  if (!facts.sealed || facts.size < sizeof head) return std::nullopt;
  if (!platform::read_file(file, 0, &head, sizeof head)) return std::nullopt;
  const uint64_t rest = facts.size - sizeof head;
  auto handle = decode(head.handle);
  if (head.magic != kMagic || head.file_count == 0 || head.file_count > kFilesMax ||
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
  Version(std::shared_ptr<KeeperStore> of, std::string name)
      : store(std::move(of)), stored_as(std::move(name)) {}
  Version(const Version&) = delete;
  Version& operator=(const Version&) = delete;
  ~Version() { store->remove(*this); }

  std::shared_ptr<KeeperStore> store;
  std::string stored_as;
  std::vector<std::multimap<int, std::string, OpenedBefore>::iterator> files;
};

Result<std::shared_ptr<KeeperStore>> KeeperStore::open() {
  auto notifier = platform::Notifier::open();
  if (!notifier) return notifier.error();
  auto made = std::make_shared<KeeperStore>();
  made->notifier_ = std::move(*notifier);
  if (in_use.exchange(true)) {
    return make_error(GPUMEM_ERROR_ALREADY_EXISTS,
                      "another hub of this process uses the store of the service manager; close that first");
  }
  made->owns_ = true;
  return made;
}

KeeperStore::~KeeperStore() {
  if (owns_) in_use = false;
}

Result<void> KeeperStore::store(const std::string& name, const platform::Descriptor& descriptor) const {
  // Without FDPOLL=0 the manager drops what looks as if it had hung up.
  auto sent = notifier_.send("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, descriptor.get(), kSendTime);
  if (sent || sent.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED) return sent;
  return make_error(GPUMEM_ERROR_BUSY, "the service manager of the keeper does not store it: %s",
                    sent.error().message);
}

bool KeeperStore::flush() {
  while (!unsent_.empty() && notifier_.send("FDSTOREREMOVE=1\nFDNAME=" + unsent_.back(), -1, 0))
    unsent_.pop_back();
  return unsent_.empty();
}

void KeeperStore::remove(const std::string& name) {
  unsent_.push_back(name);
  (void)flush();
}

void KeeperStore::remove(const Version& version) noexcept {
  try {
    if (attached_) remove(version.stored_as);
    for (const auto& file : version.files) {
      const auto node = files_.extract(file);
      if (attached_ && !files_.contains(node.key())) remove(node.mapped());
    }
  } catch (const std::bad_alloc&) {
    // The next keeper removes it.
  }
}

Result<KeeperStore::Entry> KeeperStore::add(const Record& record, const platform::Descriptors& descriptors) {
  // A file that is still to be removed would not be stored again.
  if (!flush())
    return make_error(GPUMEM_ERROR_BUSY, "the service manager of the keeper is behind; try again later");
  auto version = std::make_shared<Version>(shared_from_this(), stored_name(kVersionPrefix, new_id()));
  std::vector<std::string> names;
  version->files.reserve(descriptors.size());
  for (const platform::Descriptor& descriptor : descriptors) {
    const auto known = files_.find(descriptor.get());
    const bool is_new = known == files_.end();
    std::string name = is_new ? stored_name(kFilePrefix, new_id()) : known->second;
    version->files.push_back(files_.emplace(descriptor.get(), name));
    if (is_new) GPUMEM_TRY(store(name, descriptor));
    names.push_back(std::move(name));
  }
  auto file = write_record(record, names);
  if (!file) return file.error();
  GPUMEM_TRY(store(version->stored_as, *file));
  return Entry(std::move(version));
}

Result<std::vector<KeeperStore::Kept>> KeeperStore::inherit() {
  std::vector<Kept> kept;
  if (accepted) return kept;
  std::map<std::string, int> given;
  for (const platform::NamedDescriptor& one : platform::inherited_descriptors()) {
    if (is_ours(one.name)) given.emplace(one.name, one.value);
  }
  std::set<std::string> useless;
  for (const auto& [name, value] : given)
    useless.insert(name);
  for (const auto& [stored_as, value] : given) {
    if (!stored_as.starts_with(kVersionPrefix)) continue;
    std::vector<std::string> names;
    auto record = read_record(value, &names);
    const bool whole = record && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
                         const auto file = given.find(name);
                         return file != given.end() && platform::describe(file->second).shareable;
                       });
    if (!whole) continue;
    Kept one;
    one.record = std::move(*record);
    auto version = std::make_shared<Version>(shared_from_this(), stored_as);
    version->files.reserve(names.size());
    one.entry = version;
    for (const std::string& name : names) {
      auto copy = platform::duplicate(given.at(name));
      if (!copy) return copy.error();
      version->files.push_back(files_.emplace(copy->get(), name));
      one.descriptors.push_back(std::move(*copy));
      useless.erase(name);
    }
    useless.erase(stored_as);
    kept.push_back(std::move(one));
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) {
    return std::tie(a.record.name, a.record.number) < std::tie(b.record.name, b.record.number);
  });
  for (const std::string& name : useless)
    remove(name);
  return kept;
}

void KeeperStore::accept() noexcept {
  attached_ = true;
  if (accepted.exchange(true)) return;
  for (const platform::NamedDescriptor& one : platform::inherited_descriptors()) {
    if (is_ours(one.name)) platform::close_descriptor(one.value);
  }
}

}  // namespace gpumem::core
