// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Who shares what with whom, as docs/sharing-protocol.md says it: what each call of a walk must return.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "walker.h"

namespace processes::walk {

inline constexpr int kHubs = 2;
inline constexpr int kProcesses = 6;
// Process 0 has the hub 0, process 2 the keeper. Process 5 only looks at both, and is never killed.
inline constexpr int kOwnerOf[kHubs] = {0, 2};
inline constexpr int kWatcher = 5;

// A connection to a process. It has ended when that has.
struct Via {
  int process = 0;
  uint64_t life = 0;
  uint64_t number = 0;  // 0: to the exporter itself; else of a link, or of what was sent
  int hub = -1;
};
inline bool same(const Via& a, const Via& b) {
  return a.process == b.process && a.life == b.life && a.number == b.number;
}

struct Object {
  int owner = 0;
  uint64_t number = 0;  // there
  bool blocks = false;
  bool alive = true;
  uint32_t seed = 0;
};

struct Exported {
  int object = 0;
  gpumem_access access = 0;
  gpumem_share_handle handle{};
  uint64_t life = 0;  // of its process
  bool live = true;
};

struct Claim {
  int exported = 0;
  Via via;
  bool withdrawn = false;
};

struct Import {
  int object = 0;
  uint64_t number = 0;  // 0: not known yet
  uint64_t count = 0;
  std::vector<Claim> claims;
};
// What is mapped once.
struct Key {
  bool blocks = false;
  int number = 0;  // of the export, or of the object that is shared as a whole
  gpumem_access access = 0;
  int granter = 0;  // a process in its life; or what came over one connection of it, and was not granted
  uint64_t life = 0;
  uint64_t connection = 0;
  auto operator<=>(const Key&) const = default;
};

struct Received {
  Via via;
  gpumem_share_handle handle{};
  gpumem_access access = 0;
};

// Over which link of which hub, and which export.
struct Fetch {
  int hub = 0;
  uint64_t link = 0;
  int exported = 0;
  auto operator<=>(const Fetch&) const = default;
};

struct Party {
  bool alive = false;
  uint64_t life = 0;
  std::map<Key, Import> imports;
  std::map<std::pair<int, uint64_t>, Received> received;  // by export and connection
  std::map<Fetch, gpumem_access> fetched;                 // what may be claimed from hubs
  std::optional<Via> links[kHubs];
};

struct Version {
  int exported = 0;
  gpumem_access access = 0;
  uint8_t fingerprint = 0;
  uint64_t publisher = 0;  // its link; 0 if that has ended, or there is none
};
struct Name {
  uint64_t last = 0;
  std::map<uint64_t, Version> versions;
};

struct Model {
  std::array<Party, kProcesses> parties;
  std::vector<Object> objects;
  std::vector<Exported> exports;
  std::map<std::string, Name> names[kHubs];
  uint64_t last_number = 0;  // of links, and of what was sent
  Key last_import;

  bool gone(const Via& via) const {
    const Party& party = parties.at(static_cast<size_t>(via.process));
    return !party.alive || party.life != via.life;
  }
  Party& party(int process) { return parties.at(static_cast<size_t>(process)); }
  const Party& party(int process) const { return parties.at(static_cast<size_t>(process)); }
  Exported& exported(int number) { return exports.at(static_cast<size_t>(number)); }
  const Exported& exported(int number) const { return exports.at(static_cast<size_t>(number)); }
  const Object& object_of(int number) const {
    return objects.at(static_cast<size_t>(exported(number).object));
  }

  gpumem_import_state state(const Claim& claim) const {
    return gone(claim.via)   ? GPUMEM_IMPORT_PEER_GONE
           : claim.withdrawn ? GPUMEM_IMPORT_WITHDRAWN
                             : GPUMEM_IMPORT_LIVE;
  }
  gpumem_import_state state(const Import& import) const {
    gpumem_import_state best = GPUMEM_IMPORT_UNKNOWN;
    for (const Claim& claim : import.claims)
      best = std::min(best, state(claim));
    return best;
  }

  template <class Which>
  void withdraw_claims(Which which) {
    for (Party& party : parties) {
      for (auto& [key, import] : party.imports) {
        for (Claim& claim : import.claims)
          claim.withdrawn = claim.withdrawn || which(claim);
      }
    }
  }
  bool is_published(int hub, int number) const {
    for (const auto& [name, known] : names[hub]) {
      for (const auto& [version, published] : known.versions) {
        if (published.exported == number) return true;
      }
    }
    return false;
  }
  void unpublish(int hub, int number) {
    for (auto& [name, known] : names[hub])
      std::erase_if(known.versions, [&](const auto& entry) { return entry.second.exported == number; });
  }
  // Those that have it by a name, when no name has it any more.
  void tell_withdrawn(int hub, int number) {
    if (is_published(hub, number)) return;
    forget_fetches(hub, number);
    withdraw_claims([&](const Claim& claim) {
      return claim.exported == number && claim.via.hub == hub && !gone(claim.via);
    });
  }

  void forget_fetches(int hub, int number) {
    for (Party& party : parties) {
      std::erase_if(party.fetched, [&](const auto& entry) {
        return entry.first.hub == hub && entry.first.exported == number;
      });
    }
  }
  // The most that was fetched may be claimed.
  void note_fetch(int process, const Via& link, int number, gpumem_access access) {
    gpumem_access& most = party(process).fetched[{link.hub, link.number, number}];
    most = std::max(most, access);
  }

  void end_export(int number) {
    if (!exported(number).live) return;
    exported(number).live = false;
    forget_fetches(0, number);
    const int owner = object_of(number).owner;
    unpublish(0, number);
    withdraw_claims([&](const Claim& claim) {
      return claim.exported == number && claim.via.process == owner && claim.via.hub != 1 && !gone(claim.via);
    });
  }
  void end_object(int number) {
    objects.at(static_cast<size_t>(number)).alive = false;
    for (size_t i = 0; i < exports.size(); ++i) {
      if (exports[i].object == number) end_export(static_cast<int>(i));
    }
  }
  // Of LEGACY memory, by whoever imports it or has been sent it.
  bool is_held(int object) const {
    const auto belongs = [&](int number) { return exported(number).object == object; };
    for (const Party& party : parties) {
      if (!party.alive) continue;
      for (const auto& [key, import] : party.imports) {
        for (const Claim& claim : import.claims) {
          if (belongs(claim.exported) && !gone(claim.via)) return true;
        }
      }
      for (const auto& [from, received] : party.received) {
        if (belongs(from.first) && received.via.hub < 0 && !gone(received.via)) return true;
      }
    }
    return false;
  }

  void end_link(int process, int hub) {
    auto& link = party(process).links[hub];
    if (!link) return;
    for (auto& [name, known] : names[hub]) {
      for (auto& [version, published] : known.versions) {
        if (published.publisher == link->number) published.publisher = 0;
      }
    }
    link.reset();
  }
  void kill(int process) {
    for (int hub = 0; hub < kHubs; ++hub) {
      end_link(process, hub);
      if (kOwnerOf[hub] == process) names[hub].clear();
    }
    for (size_t i = 0; i < objects.size(); ++i) {
      if (objects[i].owner != process || !objects[i].alive) continue;
      objects[i].alive = false;
      for (Exported& one : exports) {
        if (one.object == static_cast<int>(i)) one.live = false;
      }
    }
    Party& dead = party(process);
    dead.alive = false;
    dead.imports.clear();
    dead.received.clear();
    dead.fetched.clear();
  }

  // The best claim by which the handle was imported from where it came from.
  std::optional<Claim> claim_for(const Key& key, const Import& import, int number,
                                 const std::optional<Via>& from) const {
    std::optional<Claim> best;
    for (const Claim& claim : import.claims) {
      const bool fits = !from                 ? key.connection == 0 && claim.via.number == 0
                        : key.connection == 0 ? key.granter == from->process && key.life == from->life
                                              : key.connection == from->number;
      if (claim.exported == number && fits && (!best || state(claim) < state(*best))) best = claim;
    }
    return best;
  }
  // With a handle that allows so much, and that came so; or not from a connection.
  gpumem_status import(int process, int number, gpumem_access allowed, gpumem_access wanted,
                       const std::optional<Via>& from) {
    Party& importer = party(process);
    const bool blocks = object_of(number).blocks;
    const int owner = object_of(number).owner;
    if (wanted == 0) wanted = allowed;
    if ((wanted & ~allowed) != 0) return GPUMEM_ERROR_NO_ACCESS;
    if (wanted == GPUMEM_ACCESS_READ && !blocks) return GPUMEM_ERROR_UNSUPPORTED;
    Key key{blocks, blocks ? number : exported(number).object, wanted, 0, 0, 0};
    const auto forget = [&](gpumem_status status) {
      if (from) importer.received.erase({number, from->number});
      return status;
    };
    for (auto& [known, import] : importer.imports) {
      if (known.blocks != blocks || known.number != key.number || known.access != wanted) continue;
      const auto claim = claim_for(known, import, number, from);
      if (!claim || state(*claim) == GPUMEM_IMPORT_WITHDRAWN) continue;
      if (!blocks && gone(claim->via)) return GPUMEM_ERROR_PEER_GONE;
      if (gone(claim->via) && from && !gone(*from)) continue;
      last_import = known;
      ++import.count;
      return forget(GPUMEM_SUCCESS);
    }
    if (!blocks && owner == process && exported(number).life == importer.life)
      return GPUMEM_ERROR_INVALID_STATE;
    const Via via = from ? *from : Via{owner, exported(number).life, 0, -1};
    key.granter = via.process;
    key.life = via.life;
    if (gone(via)) {
      if (!blocks || !from) return forget(GPUMEM_ERROR_PEER_GONE);
      key.connection = via.number;
    } else {
      const auto fetched = importer.fetched.find({via.hub, via.number, number});
      const bool granted = via.hub < 0 ? exported(number).live
                                       : is_published(via.hub, number) && fetched != importer.fetched.end();
      if (!granted) return forget(GPUMEM_ERROR_STALE_HANDLE);
      // Who is granted it again over the same connection is told again when it ends.
      for (auto& [other, import] : importer.imports) {
        for (Claim& claim : import.claims) {
          if (claim.exported == number && same(claim.via, via)) claim.withdrawn = false;
        }
      }
      if (via.hub >= 0 && (wanted & ~fetched->second) != 0) return GPUMEM_ERROR_NO_ACCESS;
    }
    last_import = key;
    Import& import = importer.imports[key];
    import.object = exported(number).object;
    ++import.count;
    const auto stands_for = [&](const Claim& claim) {
      return state(claim) == GPUMEM_IMPORT_LIVE && claim.exported == number &&
             (claim.via.number == 0 || via.number != 0);
    };
    if (std::any_of(import.claims.begin(), import.claims.end(), stands_for)) return forget(GPUMEM_SUCCESS);
    std::erase_if(import.claims, [&](const Claim& claim) { return state(claim) == GPUMEM_IMPORT_WITHDRAWN; });
    import.claims.push_back({number, via, false});
    return forget(GPUMEM_SUCCESS);
  }

  // In its own hub, or over a link.
  gpumem_status publish(int process, int hub, const std::string& name, int number, uint64_t version,
                        uint32_t keep, gpumem_access wanted, uint8_t fingerprint, uint64_t* out) {
    const bool own = kOwnerOf[hub] == process && hub == 0;
    const auto& link = party(process).links[hub];
    if (!own && hub == 0) return GPUMEM_ERROR_UNSUPPORTED;
    const Exported& one = exported(number);
    const bool blocks = object_of(number).blocks;
    if (object_of(number).owner != process || !one.live) return GPUMEM_ERROR_NOT_FOUND;
    if (!own && !blocks) return GPUMEM_ERROR_UNSUPPORTED;
    if (wanted > one.access) return GPUMEM_ERROR_INVALID_ARGUMENT;
    if (wanted == GPUMEM_ACCESS_READ && !blocks) return GPUMEM_ERROR_INVALID_ARGUMENT;
    if (wanted == 0) wanted = blocks ? gpumem_access{GPUMEM_ACCESS_READ} : one.access;
    if (!own && gone(*link)) return GPUMEM_ERROR_PEER_GONE;
    const auto known = names[hub].find(name);
    const uint64_t last = known != names[hub].end() ? known->second.last : 0;
    if (version == 0) version = last + 1;
    if (version <= last)
      return known->second.versions.empty() ? GPUMEM_ERROR_INVALID_STATE : GPUMEM_ERROR_ALREADY_EXISTS;
    for (const auto& [other, entry] : names[hub]) {
      for (const auto& [position, published] : entry.versions) {
        if (!own && published.exported == number && published.publisher != link->number)
          return GPUMEM_ERROR_PERMISSION_DENIED;
      }
    }
    size_t used = 0;
    for (const auto& [other, entry] : names[hub])
      used += entry.versions.empty() ? 0U : 1U;
    const bool fresh = known == names[hub].end() || known->second.versions.empty();
    if (fresh && used >= kNamesMax) return GPUMEM_ERROR_LIMIT_EXCEEDED;
    Name& entry = names[hub][name];
    const size_t older = entry.versions.size();
    entry.versions[version] = {number, wanted, fingerprint, own ? 0 : link->number};
    entry.last = version;
    if (keep == 0) keep = 1;
    for (size_t i = keep; i < older; ++i) {
      const int left = entry.versions.begin()->second.exported;
      entry.versions.erase(entry.versions.begin());
      tell_withdrawn(hub, left);
    }
    *out = version;
    return GPUMEM_SUCCESS;
  }
  gpumem_status withdraw(int process, int hub, const std::string& name, uint64_t version) {
    const bool own = kOwnerOf[hub] == process && hub == 0;
    if (!own && hub == 0) return GPUMEM_ERROR_UNSUPPORTED;
    if (!own && gone(*party(process).links[hub])) return GPUMEM_ERROR_PEER_GONE;
    const auto known = names[hub].find(name);
    if (known == names[hub].end() || known->second.versions.empty()) return GPUMEM_ERROR_NOT_FOUND;
    auto& versions = known->second.versions;
    if (version != 0 && !versions.contains(version)) return GPUMEM_ERROR_NOT_FOUND;
    std::set<int> left;
    std::erase_if(versions, [&](const auto& entry) {
      if (version != 0 && entry.first != version) return false;
      left.insert(entry.second.exported);
      return true;
    });
    for (const int number : left)
      tell_withdrawn(hub, number);
    return GPUMEM_SUCCESS;
  }
  const Version* find(int hub, const std::string& name, uint64_t version, uint8_t fingerprint) const {
    const auto known = names[hub].find(name);
    if (known == names[hub].end()) return nullptr;
    const auto& versions = known->second.versions;
    for (auto at = versions.rbegin(); at != versions.rend(); ++at) {
      if ((version == 0 || at->first == version) &&
          (fingerprint == 0 || at->second.fingerprint == fingerprint))
        return &at->second;
    }
    return nullptr;
  }
  uint64_t newest(int hub, const std::string& name) const {
    const auto known = names[hub].find(name);
    return known == names[hub].end() || known->second.versions.empty()
               ? 0
               : known->second.versions.rbegin()->first;
  }
  uint64_t links_of(int hub) const {
    uint64_t count = 0;
    for (const Party& party : parties)
      count += party.alive && party.links[hub] && !gone(*party.links[hub]) ? 1U : 0U;
    return count;
  }
};

}  // namespace processes::walk
