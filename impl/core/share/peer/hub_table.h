// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The names of a hub and their versions. Its owner locks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/share/wire/protocol.h"

namespace gpumem::core {

struct HubLimits {
  uint32_t links = 64;
  uint32_t names = 1024;
  uint32_t versions = 16;
  uint32_t descriptors = 4096;  // 0, of a hub that is opened: the default
  uint64_t bytes = UINT64_MAX;
  uint64_t timeout_ns = 5'000'000'000;
};

class HubTable {
 public:
  explicit HubTable(const HubLimits& limits) : limits_(limits) {}

  struct Version {
    ShareHandle handle;  // with the access that links get
    Fingerprint fingerprint{};
    bool kept = false;                        // a link published it
    platform::SharedDescriptors descriptors;  // of what is kept
    std::shared_ptr<void> stored;             // keeps them in the store of the service manager
    uint64_t publisher = 0;                   // the connection of the link; 0 once that has ended
  };
  struct Request {
    std::string name;
    uint64_t version = 0;  // 0: one more than the last
    uint32_t keep = 0;     // older versions; 0: one
    uint32_t user = 0;
    bool shared = false;  // the user has a share of each limit
    Version published;
    // Called last, when only out-of-memory can still fail; its result becomes `stored`.
    std::function<Result<std::shared_ptr<void>>(const Request& request, uint64_t version)> store;
  };

  // Returns the version's number. `gone` receives the tokens that are no longer published. On failure,
  // nothing changes, not even the request.
  Result<uint64_t> publish(Request&& request, std::vector<Token>* gone);
  // 0: all versions.
  Result<void> withdraw(const std::string& name, uint64_t version, uint32_t user, std::vector<Token>* gone);
  template <class Visit>
  void for_each(Visit visit) {
    for (auto& [name, known] : names_) {
      for (auto& [number, version] : known.versions)
        visit(version);
    }
  }
  // All versions with an export that has ended, but those that the hub keeps itself.
  void remove(const Token& token) noexcept;
  void publisher_has_ended(uint64_t publisher) noexcept;

  // Null if there is none. 0: the newest, or the newest with the fingerprint.
  const Version* find(const std::string& name, uint64_t version, const Fingerprint& fingerprint,
                      uint64_t* found) const;
  // One of the versions with an export: their descriptors are the same, and their access may differ.
  const Version* find(const Token& token) const;
  // NOT_FOUND past the end.
  Result<HubEntry> at(uint32_t index) const;
  // The newest version, if it is newer than that.
  bool newest(const std::string& name, uint64_t after, HubEntry* entry) const;

  uint32_t name_count() const { return static_cast<uint32_t>(names_.size()); }
  uint32_t version_count() const { return version_count_; }
  uint32_t descriptor_count() const { return static_cast<uint32_t>(descriptor_count_); }
  const HubLimits& limits() const { return limits_; }
  void limit_descriptors(uint32_t most) { limits_.descriptors = most; }

 private:
  struct Name {
    uint32_t user = 0;
    uint64_t last = 0;
    std::map<uint64_t, Version> versions;
  };
  using Names = std::map<std::string, Name>;
  struct Past {
    std::string name;
    uint32_t user = 0;
    uint64_t last = 0;
  };

  static HubEntry entry_of(const Names::value_type& name, uint64_t number, const Version& version);
  uint64_t last_of(const std::string& name, uint32_t user) const;
  void forget(const Version& version) noexcept;
  // One of the versions with a token, and its name; null if there is none.
  struct Owner {
    const Names::value_type* name = nullptr;
    const Version* version = nullptr;
  };
  Owner owner_of(const Token& token) const;
  // Checks that the user may have this name, if new, and what the request adds in place of what it removes.
  Result<void> check_shares(const Request& request, bool is_new, uint64_t descriptors_going,
                            uint64_t bytes_going) const;
  void close_name(Names::iterator name) noexcept;

  HubLimits limits_;
  Names names_;
  // Last versions of names that have none now, oldest first, so that numbers never run backwards.
  std::deque<Past> past_;
  // For each user, the highest number of all forgotten names.
  std::map<uint32_t, uint64_t> floors_;
  std::map<Token, uint32_t> tokens_;  // how many versions have one
  uint32_t version_count_ = 0;
  uint64_t descriptor_count_ = 0;
  uint64_t kept_bytes_ = 0;
};

}  // namespace gpumem::core
