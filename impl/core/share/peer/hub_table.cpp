// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/hub_table.h"

#include <algorithm>
#include <cinttypes>
#include <new>
#include <utility>

#include "base/arithmetic.h"
#include "base/text.h"
#include "core/share/peer/fair_share.h"
#include "platform/identity.h"

namespace gpumem::core {
namespace {

Error limit_reached(const char* limit, uint64_t value) {
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "the hub has %s = %" PRIu64 "; withdraw something, or open it with a higher limit", limit,
                    value);
}

Error other_user(const std::string& name) {
  return make_error(GPUMEM_ERROR_PERMISSION_DENIED, "another user has published under the name %s",
                    Quoted(name.c_str()).text());
}

}  // namespace

HubEntry HubTable::entry_of(const Names::value_type& name, uint64_t number, const Version& version) {
  HubEntry entry;
  entry.name = name.first;
  entry.version = number;
  entry.size = version.handle.size;
  entry.type = version.handle.type;
  entry.way = version.handle.way;
  entry.access = version.handle.access;
  entry.publisher = version.handle.exporter.pid;
  entry.publisher_gone = version.kept && version.publisher == 0;
  entry.user = name.second.user;
  entry.fingerprint = version.fingerprint;
  return entry;
}

uint64_t HubTable::last_of(const std::string& name, uint32_t user) const {
  if (const auto known = names_.find(name); known != names_.end()) return known->second.last;
  const auto past =
      std::find_if(past_.begin(), past_.end(), [&](const Past& entry) { return entry.name == name; });
  if (past != past_.end()) return past->last;
  const auto floor = floors_.find(user);
  return floor != floors_.end() ? floor->second : 0;
}

void HubTable::forget(const Version& version) noexcept {
  --version_count_;
  descriptor_count_ -= version.handle.fd_count;
  if (version.kept) kept_bytes_ -= version.handle.size;
  const auto token = tokens_.find(version.handle.token);
  if (token != tokens_.end() && --token->second == 0) tokens_.erase(token);
}

// Keeps only the last number of a name without versions; of too many such names, only the highest number.
void HubTable::close_name(Names::iterator name) noexcept {
  const auto raise_floor = [this](uint32_t user, uint64_t last) {
    uint64_t& floor = floors_.find(user)->second;
    floor = std::max(floor, last);
  };
  try {
    past_.push_back({name->first, name->second.user, name->second.last});
    if (past_.size() > 4 * size_t{limits_.names}) {
      // The user who has the most loses one, so that nobody's names are forgotten for fewer of another user.
      std::map<uint32_t, size_t> counts;
      for (const Past& entry : past_)
        ++counts[entry.user];
      const auto most = std::max_element(counts.begin(), counts.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
      const auto oldest = std::find_if(past_.begin(), past_.end(),
                                       [&](const Past& entry) { return entry.user == most->first; });
      raise_floor(oldest->user, oldest->last);
      past_.erase(oldest);
    }
  } catch (const std::bad_alloc&) {
    raise_floor(name->second.user, name->second.last);
  }
  names_.erase(name);
}

Result<void> HubTable::check_shares(const Request& request, bool is_new, uint64_t descriptors_going,
                                    uint64_t bytes_going) const {
  FairShare names(request.user);
  FairShare descriptors(request.user);
  FairShare bytes(request.user);
  for (const auto& [name, known] : names_) {
    names.add(known.user, 1);
    for (const auto& [number, version] : known.versions) {
      descriptors.add(known.user, version.handle.fd_count);
      if (version.kept) bytes.add(known.user, version.handle.size);
    }
  }
  constexpr const char* kRemedy = "withdraw something";
  const Version& published = request.published;
  GPUMEM_TRY(names.check("names_max", limits_.names, is_new ? 1 : 0, 0, kRemedy));
  GPUMEM_TRY(descriptors.check("fds_max", limits_.descriptors, published.handle.fd_count, descriptors_going,
                               kRemedy));
  if (limits_.bytes == UINT64_MAX || !published.kept) return {};
  return bytes.check("bytes_max", limits_.bytes, published.handle.size, bytes_going, kRemedy);
}

Result<uint64_t> HubTable::publish(Request&& request, std::vector<Token>* gone) {
  const uint64_t last = last_of(request.name, request.user);
  auto name = names_.find(request.name);
  if (name != names_.end() && name->second.user != request.user) return other_user(request.name);
  if (last >= kVersionLast - 1)
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED, "the name %s has had the last version that there is",
                      Quoted(request.name.c_str()).text());
  const uint64_t version = request.version != 0 ? request.version : last + 1;
  const bool is_restored = request.published.stored != nullptr;
  if (version > std::max(kVersionMax, last + 1) && !is_restored) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "version is %" PRIu64 ", and at most %" PRIu64
                      " may be asked for; pass 0 for the next one",
                      version, std::max(kVersionMax, last + 1));
  }
  if (version <= last && name == names_.end()) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the name %s is not there, and numbers up to %" PRIu64
                      " are used up by what was withdrawn; pass %s %" PRIu64 ", or 0 for the next one",
                      Quoted(request.name.c_str()).text(), last, last < kVersionMax ? "at least" : "exactly",
                      last + 1);
  }
  if (version <= last) {
    return make_error(GPUMEM_ERROR_ALREADY_EXISTS,
                      "the name %s has had version %" PRIu64 ", and %" PRIu64
                      " is not above it; pass 0 for the next one",
                      Quoted(request.name.c_str()).text(), last, version);
  }
  // Whoever has read a handle can publish other memory behind it, so what others publish gets another token.
  const Owner owner = owner_of(request.published.handle.token);
  const bool same = owner.name == nullptr || (owner.name->second.user == request.user &&
                                              owner.version->kept == request.published.kept &&
                                              owner.version->publisher == request.published.publisher);
  if (!same && !request.published.kept) {
    return make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                      "a link has published this handle as %s; withdraw that first",
                      Quoted(owner.name->first.c_str()).text());
  }
  if (!same) request.published.handle.token = platform::random_id();
  // The older versions that the new one displaces.
  const uint32_t keep = request.keep != 0 ? request.keep : 1;
  const size_t older = name != names_.end() ? name->second.versions.size() : 0;
  const size_t goes = older > keep ? older - keep : 0;
  uint64_t descriptors_going = 0;
  uint64_t bytes_going = 0;
  if (goes != 0) {
    auto at = name->second.versions.begin();
    for (size_t i = 0; i < goes; ++i, ++at) {
      descriptors_going += at->second.handle.fd_count;
      if (at->second.kept) bytes_going += at->second.handle.size;
    }
  }
  const ShareHandle& handle = request.published.handle;
  const bool is_new = name == names_.end();
  if (is_new && names_.size() >= limits_.names) return limit_reached("names_max", limits_.names);
  if (older - goes + 1 > limits_.versions) return limit_reached("versions_max", limits_.versions);
  if (descriptor_count_ - descriptors_going + handle.fd_count > limits_.descriptors)
    return limit_reached("fds_max", limits_.descriptors);
  uint64_t bytes = 0;
  if (request.published.kept &&
      (!add(kept_bytes_ - bytes_going, handle.size, &bytes) || bytes > limits_.bytes))
    return limit_reached("bytes_max", limits_.bytes);
  if (request.shared) GPUMEM_TRY(check_shares(request, is_new, descriptors_going, bytes_going));

  gone->reserve(gone->size() + goes);
  floors_.try_emplace(request.user);  // closing a name must not fail
  std::map<Token, uint32_t> made_token{{handle.token, 0}};
  Names made;
  Name& made_name = made[request.name];
  made_name.user = request.user;
  Version& place = made_name.versions[version];
  if (request.store) {
    auto stored = request.store(request, version);
    if (!stored) return stored.error();
    request.published.stored = std::move(*stored);
  }
  // Nothing fails from here on.
  tokens_.merge(made_token);
  ++tokens_.find(handle.token)->second;
  descriptor_count_ += handle.fd_count;
  if (request.published.kept) kept_bytes_ += handle.size;
  ++version_count_;
  place = std::move(request.published);
  if (is_new) {
    names_.merge(made);
    name = names_.find(request.name);
    std::erase_if(past_, [&](const Past& entry) { return entry.name == request.name; });
  } else {
    name->second.versions.merge(made_name.versions);
  }
  auto& versions = name->second.versions;
  name->second.last = version;
  for (size_t i = 0; i < goes; ++i) {
    const Token token = versions.begin()->second.handle.token;
    forget(versions.begin()->second);
    versions.erase(versions.begin());
    if (!tokens_.contains(token)) gone->push_back(token);
  }
  return version;
}

Result<void> HubTable::withdraw(const std::string& name, uint64_t version, uint32_t user,
                                std::vector<Token>* gone) {
  const auto known = names_.find(name);
  if (known == names_.end() || (version != 0 && !known->second.versions.contains(version))) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "the hub has no %s %s; it may be withdrawn already",
                      version != 0 ? "such version of the name" : "name", Quoted(name.c_str()).text());
  }
  if (known->second.user != user) return other_user(name);
  auto& versions = known->second.versions;
  gone->reserve(gone->size() + versions.size());
  for (auto at = versions.begin(); at != versions.end();) {
    if (version != 0 && at->first != version) {
      ++at;
      continue;
    }
    const Token token = at->second.handle.token;
    forget(at->second);
    at = versions.erase(at);
    if (!tokens_.contains(token)) gone->push_back(token);
  }
  if (versions.empty()) close_name(known);
  return {};
}

void HubTable::remove(const Token& token) noexcept {
  if (!tokens_.contains(token)) return;
  for (auto name = names_.begin(); name != names_.end();) {
    auto& versions = name->second.versions;
    for (auto at = versions.begin(); at != versions.end();) {
      if (at->second.kept || at->second.handle.token != token) {
        ++at;
        continue;
      }
      forget(at->second);
      at = versions.erase(at);
    }
    const auto this_one = name++;
    if (versions.empty()) close_name(this_one);
  }
}

void HubTable::publisher_has_ended(uint64_t publisher) noexcept {
  for (auto& [name, known] : names_) {
    for (auto& [number, version] : known.versions) {
      if (version.publisher == publisher) version.publisher = 0;
    }
  }
}

const HubTable::Version* HubTable::find(const std::string& name, uint64_t version,
                                        const Fingerprint& fingerprint, uint64_t* found) const {
  const auto known = names_.find(name);
  if (known == names_.end()) return nullptr;
  const bool any = fingerprint == Fingerprint{};
  const auto& versions = known->second.versions;
  for (auto at = versions.rbegin(); at != versions.rend(); ++at) {
    if ((version != 0 && at->first != version) || (!any && at->second.fingerprint != fingerprint)) continue;
    *found = at->first;
    return &at->second;
  }
  return nullptr;
}

HubTable::Owner HubTable::owner_of(const Token& token) const {
  if (!tokens_.contains(token)) return {};
  for (const auto& name : names_) {
    for (const auto& [number, version] : name.second.versions) {
      if (version.handle.token == token) return {&name, &version};
    }
  }
  return {};
}

const HubTable::Version* HubTable::find(const Token& token) const { return owner_of(token).version; }

Result<HubEntry> HubTable::at(uint32_t index) const {
  uint64_t left = index;
  for (const auto& name : names_) {
    const auto& versions = name.second.versions;
    if (left >= versions.size()) {
      left -= versions.size();
      continue;
    }
    const auto at = std::next(versions.begin(), static_cast<std::ptrdiff_t>(left));
    return entry_of(name, at->first, at->second);
  }
  return make_error(GPUMEM_ERROR_NOT_FOUND, "the hub has %u versions of names, so none at %u", version_count_,
                    index);
}

bool HubTable::newest(const std::string& name, uint64_t after, HubEntry* entry) const {
  const auto known = names_.find(name);
  if (known == names_.end() || known->second.versions.empty()) return false;
  const auto& [number, version] = *known->second.versions.rbegin();
  if (number <= after) return false;
  *entry = entry_of(*known, number, version);
  return true;
}

}  // namespace gpumem::core
