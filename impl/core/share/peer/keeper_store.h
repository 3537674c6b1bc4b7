// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a keeper holds, in the store of the service manager: so it survives the keeper, and the next one takes
// it back.
//
// Each open file is stored once, as gpumem-file-ID, because the manager drops a second descriptor of the same
// one. What a file is part of is in a sealed memory file, gpumem-version-ID, which comes last when a version
// is published and goes first when it is withdrawn. So a keeper that dies at any moment leaves whole
// versions, and files of none, which the next one removes.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/share/wire/protocol.h"
#include "platform/service_manager.h"

namespace gpumem::core {

// One per process. Its hubs use it one after the other, and each inherits what the last one left. The hub
// that has it locks.
class KeeperStore {
 public:
  struct Record {
    std::string name;
    uint64_t number = 0;
    uint32_t user = 0;
    ShareHandle handle;  // with the access that links get
    Fingerprint fingerprint{};
  };
  // A version in the store. It is removed with the last copy, which must be gone before its descriptors are
  // closed.
  using Entry = std::shared_ptr<void>;
  struct Kept {
    Record record;
    platform::SharedDescriptors descriptors;
    Entry entry;
  };

  // INVALID_STATE without a service manager, ALREADY_EXISTS if another hub of this process has it.
  static Result<std::shared_ptr<KeeperStore>> open();
  KeeperStore() = default;
  KeeperStore(const KeeperStore&) = delete;
  KeeperStore& operator=(const KeeperStore&) = delete;

  // What an earlier keeper stored, or an earlier hub of this process has left, in the order of names and
  // numbers. Removes what is useless. The caller must leave() what it does not use.
  Result<std::vector<Kept>> inherit();
  // What inherit() has found and could not use: records without all their files, and files of no record.
  size_t lost_versions() const { return lost_versions_; }
  size_t lost_files() const { return lost_files_; }
  // BUSY if the manager does not read, LIMIT_EXCEEDED if the store is full, if a version of the name was
  // left, or if the next keeper could not be given so many. The descriptors must stay open as long as the
  // entry.
  Result<Entry> add(const Record& record, const platform::Descriptors& descriptors);
  // The version stays in the store, and in this process for the next hub.
  void leave(Entry entry, platform::SharedDescriptors descriptors) noexcept;
  // Removes what was left of a name; 0: all versions. False if there is nothing of this user.
  bool remove_left(const std::string& name, uint64_t number, uint32_t user) noexcept;

 private:
  struct Version;
  struct OpenedBefore {
    bool operator()(int a, int b) const { return platform::opened_before(a, b); }
  };

  // A file that the process was given, until all versions with it have their descriptors.
  struct Given {
    platform::Descriptor descriptor;
    size_t uses = 0;
  };

  void take_given();
  Result<void> complete(Version& version);
  Result<void> store(const std::string& name, const platform::Descriptor& descriptor,
                     platform::Deadline deadline);
  Result<void> require_descriptors(uint64_t more) const;
  Result<void> require_room(const platform::Descriptors& descriptors) const;
  // These need no memory.
  void remove(const std::string& name) noexcept;
  // Sends pending removals. Returns whether none is left.
  bool flush() noexcept;
  void remove(const Version& version) noexcept;

  platform::Notifier notifier_;
  std::atomic<bool> in_use_{false};
  uint64_t most_ = 0;   // descriptors that this process could be started with, and so the next one
  bool taken_ = false;  // what the process was given is given once
  std::map<std::string, Given> given_;
  std::list<std::shared_ptr<Version>> left_;
  std::multimap<int, std::string, OpenedBefore> files_;  // the names of descriptors; one for each open file
  std::set<std::string> stored_;                         // what is in the store, as far as this one knows
  size_t others_ = 0;                                    // what is there beside it
  size_t lost_versions_ = 0;
  size_t lost_files_ = 0;
  std::set<std::string> unsent_;  // removals that the manager had no room for
};

}  // namespace gpumem::core
