// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a keeper holds, in the store of the service manager: so it survives the keeper, and the next one takes
// it back.
//
// Each open file is stored once, as gpumem-file-ID, because the manager drops a second descriptor of the same
// one. What a file is part of is in a sealed memory file, gpumem-version-ID, which comes last when a version
// is published and goes first when it is withdrawn. So a keeper that dies at any moment leaves whole
// versions, and files of none, which the next one removes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/share_protocol.h"
#include "platform/service_manager.h"

namespace gpumem::core {

// Its owner locks.
class KeeperStore : public std::enable_shared_from_this<KeeperStore> {
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
    platform::Descriptors descriptors;
    Entry entry;
  };

  // INVALID_STATE without a service manager, ALREADY_EXISTS if another hub of this process has it.
  static Result<std::shared_ptr<KeeperStore>> open();
  KeeperStore() = default;
  KeeperStore(const KeeperStore&) = delete;
  KeeperStore& operator=(const KeeperStore&) = delete;
  ~KeeperStore();

  // What an earlier keeper stored, in the order of names and numbers. Removes what is of no use.
  Result<std::vector<Kept>> inherit();
  // Before it, what the process was given stays where it is, and entries that end stay in the store.
  void accept() noexcept;
  // Changes nothing if it fails: BUSY if the manager does not read. The descriptors must stay open as long as
  // the entry.
  Result<Entry> add(const Record& record, const platform::Descriptors& descriptors);
  // From now on entries that end stay in the store.
  void detach() noexcept { attached_ = false; }

 private:
  struct Version;
  struct OpenedBefore {
    bool operator()(int a, int b) const { return platform::opened_before(a, b); }
  };

  Result<void> store(const std::string& name, const platform::Descriptor& descriptor) const;
  void remove(const std::string& name);
  // Whether the manager has been told of all removals.
  bool flush();
  void remove(const Version& version) noexcept;

  platform::Notifier notifier_;
  bool owns_ = false;
  bool attached_ = false;
  std::multimap<int, std::string, OpenedBefore> files_;  // the names of descriptors; one for each open file
  std::vector<std::string> unsent_;                      // removals that the manager had no room for
};

}  // namespace gpumem::core
