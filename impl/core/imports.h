// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What an instance has imported, and what it has received and may import.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/event.h"
#include "core/memory.h"
#include "core/share_handle.h"
#include "core/share_peer.h"
#include "platform/descriptor.h"

namespace gpumem::core {

struct ImportRequest {
  ShareHandle handle;
  std::span<const int32_t> file_descriptors;  // the caller's
  DeviceObject* device = nullptr;             // null: the one that has the memory
  gpumem_access access = GPUMEM_ACCESS_NONE;  // NONE: what the exporter allows
  bool unverified = false;
  void* address = nullptr;
  uint64_t timeout_ns = 0;  // for the exporter's answer
  std::string name;
  std::shared_ptr<SharePeer> peer;  // who has it, if that is known; or null
};

// An export that is held in another process, until this is destroyed.
class Claim {
 public:
  Claim() = default;
  Claim(std::shared_ptr<SharePeer> peer, const Token& token) : peer_(std::move(peer)), token_(token) {}
  Claim(Claim&&) = default;
  Claim& operator=(Claim&& other) noexcept {
    std::swap(peer_, other.peer_);
    std::swap(token_, other.token_);
    return *this;
  }
  ~Claim() {
    if (peer_ != nullptr) peer_->release(token_);
  }

  const std::shared_ptr<SharePeer>& peer() const { return peer_; }
  const Token& token() const { return token_; }
  gpumem_import_state state() const {
    if (peer_ == nullptr) return GPUMEM_IMPORT_UNKNOWN;
    if (peer_->gone()) return GPUMEM_IMPORT_PEER_GONE;
    return peer_->withdrawn(token_) ? GPUMEM_IMPORT_WITHDRAWN : GPUMEM_IMPORT_LIVE;
  }

 private:
  std::shared_ptr<SharePeer> peer_;
  Token token_{};
};

// Where an import comes from, and what holds it there.
struct ImportSource {
  ShareHandle recorded;  // what the exporter knows; without one, what the handle says
  platform::Descriptors descriptors;
  Claim claim;
};

// The sizes of the blocks; `descriptors` lose the file that they were in. INVALID_ARGUMENT if the two do not
// match.
Result<std::vector<uint64_t>> block_sizes(const ShareHandle& handle, std::vector<int>* descriptors);

class Imports {
 public:
  explicit Imports(Instance& instance) : instance_(instance) {}

  // The handle of the memory, and the byte that was exported. `given` is what the request was read from, if
  // it has defaults for all the rest.
  Result<CreatedMemory> import_memory(const ImportRequest& request, const gpumem_share_handle* given);
  // The same for what was imported before with these very bytes and defaults; nothing if that is not certain.
  std::optional<CreatedMemory> import_again(const gpumem_share_handle& given) noexcept;
  // Of something of that type, which the caller imports.
  Result<ImportSource> claim(const ImportRequest& request, gpumem_share_type type);
  // The device of this instance that a handle is of. NOT_FOUND.
  Result<DeviceObject*> device_of(const ShareHandle& handle) const;
  // Maps what came with a connection, apart from all records, while `use` runs with its address.
  // LIMIT_EXCEEDED if it has more bytes than that.
  Result<void> try_import(const ImportRequest& request, platform::Descriptors descriptors,
                          std::shared_ptr<SharePeer> peer, uint64_t bytes_max,
                          const std::function<Result<void>(void*)>& use);
  // The handle of the event.
  Result<uint64_t> import_event(DeviceObject& device, const ImportRequest& request);
  Result<gpumem_import_info> info(const Memory& memory) const;
  // Something was imported by that handle and lives, or the handle was received.
  bool has(const Token& token) const;
  // Counts down, or ends the last one.
  Result<void> destroy(Ref<Memory> memory);
  // Keeps the mapping of a memory that ends, so that nothing is to be released; false if it is not to be
  // kept.
  bool keep_mapped(Memory& memory) noexcept;
  // Drops the record of a memory whose mapping is gone, or kept.
  void forget(const Memory& memory) noexcept;

  // Room for a handle that is about to be received, and kept or given up. LIMIT_EXCEEDED if too many wait.
  Result<void> reserve_received();
  void give_up_received() noexcept;
  // Keeps what came with a handle until it is imported, or until then. LIMIT_EXCEEDED if too many wait.
  // `peer` may be null. `reserved`: in the room that was reserved for it, which there is in any case.
  Result<void> keep(const ShareHandle& handle, platform::Descriptors descriptors,
                    std::shared_ptr<SharePeer> peer, std::chrono::steady_clock::time_point until,
                    bool reserved = false);

  Result<void> set_cache(uint64_t idle_ns, uint64_t bytes_max);
  Result<void> flush_for_user();
  // Unmaps all that is kept; whether there was any.
  bool flush_cache() noexcept;
  // Before the instance is closed: lets go of everything but imports that live.
  void stop() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  // Of one mapping: whose memory, which, for which device, with which access.
  using Key = std::tuple<Token, uint64_t, uint32_t, gpumem_access>;
  struct Import {
    Memory* memory = nullptr;
    CreatedMemory created;
    ShareHandle recorded;
    std::vector<platform::FileId> files;  // of the descriptors
    std::vector<Claim> claims;
    uint64_t count = 0;
    bool ending = false;

    gpumem_import_state state() const;
  };
  struct Kept {
    Key key;
    ShareHandle recorded;
    std::vector<Claim> claims;
    std::unique_ptr<backend::Memory> mapping;
    Clock::time_point until;
  };
  struct Received {
    ShareHandle handle;
    platform::Descriptors descriptors;
    std::shared_ptr<SharePeer> peer;
    Clock::time_point until;
  };
  // An import by the bytes that were given for it, so that they need not be read again.
  struct Shortcut {
    gpumem_share_handle given{};
    Import* import = nullptr;
    Token token{};
    CreatedMemory created;
  };
  static constexpr size_t kShortcuts = 64;

  static const Claim* claim_of(const Import& import, const Token& token);
  static std::vector<Claim>::iterator superseded(std::vector<Claim>& claims, const Claim& fresh);
  static Key key_of(const ShareHandle& handle, uint32_t ordinal, gpumem_access access);
  Result<DeviceObject*> device_for(const ImportRequest& request) const;
  Result<gpumem_access> access_for(const ImportRequest& request) const;
  Result<void> check_address(const ImportRequest& request) const;
  // One more of an import that is there, with what was exported of it; false if there is none, or if it is to
  // be held by another connection. `fresh` may be null: a claim that was made for it meanwhile.
  Result<bool> count_up(const Key& key, const ImportRequest& request, const gpumem_share_handle* given,
                        const Claim* fresh, CreatedMemory* out);
  // What came with a handle, if anything did. Put back by the one who cannot import it.
  std::optional<Received> take_received(const Token& token);
  void put_back(std::optional<Received> received) noexcept;
  Result<ImportSource> reach(const ImportRequest& request, const std::optional<Received>& received);
  Result<std::unique_ptr<backend::Memory>> open_mapping(const ImportRequest& request, Device& device,
                                                        gpumem_access access,
                                                        const ImportSource& source) const;
  Result<CreatedMemory> map(const Key& key, const ImportRequest& request, DeviceObject& device,
                            gpumem_access access, ImportSource source);
  std::list<Kept> take_kept(const Key& key, const void* address) noexcept;
  void keep_again(std::list<Kept> kept) noexcept;
  void drop_kept(std::list<Kept> kept) noexcept;
  std::list<Kept> take_expired(Clock::time_point now);
  void tidy_later();
  std::optional<std::chrono::nanoseconds> tidy();

  Instance& instance_;
  std::mutex changes_;        // while a mapping is made or ended. Before mutex_
  mutable std::mutex mutex_;  // guards the rest
  std::map<Key, Import> imports_;
  std::map<const Memory*, Key> keys_;
  std::vector<Shortcut> shortcuts_;  // none, or kShortcuts, by the check value of the handle
  std::list<Kept> kept_;             // the oldest first
  std::list<Kept> stuck_;            // to be unmapped, which the driver refused
  uint64_t kept_bytes_ = 0;
  uint64_t idle_ns_ = 0;
  uint64_t bytes_max_ = 0;
  void drop_expired();  // requires mutex_

  std::map<Token, Received> received_;
  size_t reserved_ = 0;  // for more of them
  bool tidying_ = false;
};

}  // namespace gpumem::core
