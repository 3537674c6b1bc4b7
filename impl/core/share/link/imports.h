// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What an instance has imported, and what of it is kept mapped.
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

#include "contract/sharing.h"
#include "core/memory/memory.h"
#include "core/share/link/arrivals.h"
#include "core/share/peer/peer.h"
#include "core/share/wire/handle.h"
#include "core/stream/event.h"
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
  std::shared_ptr<SharePeer> peer;  // the exporter's connection, if known
  Arrival* arrived = nullptr;       // what came with the handle, if nothing is kept of that
  bool for_ring = false;            // the ring owns the import
  bool for_trial = false;           // nobody else imports it, and it is not kept
};

// An export that is held in another process, until this is destroyed.
class Claim final : public OtherProcess {
 public:
  Claim() = default;
  Claim(std::shared_ptr<SharePeer> peer, const Token& token) : peer_(std::move(peer)), token_(token) {}
  Claim(Claim&&) = default;
  Claim& operator=(Claim&& other) noexcept {
    std::swap(peer_, other.peer_);
    std::swap(token_, other.token_);
    return *this;
  }
  ~Claim() override {
    if (peer_ != nullptr) peer_->release(token_);
  }

  const std::shared_ptr<SharePeer>& peer() const { return peer_; }
  const Token& token() const { return token_; }
  bool gone() const noexcept override { return peer_ != nullptr && peer_->gone(); }
  gpumem_import_state state() const {
    if (peer_ == nullptr) return GPUMEM_IMPORT_UNKNOWN;
    if (gone()) return GPUMEM_IMPORT_PEER_GONE;
    return peer_->withdrawn(token_) ? GPUMEM_IMPORT_WITHDRAWN : GPUMEM_IMPORT_LIVE;
  }

 private:
  std::shared_ptr<SharePeer> peer_;
  Token token_{};
};

// Where an import comes from, and the claim that holds it there.
struct ImportSource {
  ShareHandle recorded;  // what the exporter knows; without one, what the handle says
  platform::Descriptors descriptors;
  Claim claim;
  std::optional<ProcessId> granter;  // of the claim, if that was granted

  backend::Ticket ticket() const {
    return {recorded.payload, descriptors.empty() ? -1 : descriptors.front().get()};
  }
};

class Imports final : public Importer {
 public:
  // Of the instance.
  static Imports& of(Context& context);

  explicit Imports(Context& context) : context_(context) {}

  // Returns the memory's handle and the exported byte. `given` is the handle that the request was read from,
  // if the other options are defaults.
  Result<CreatedMemory> import_memory(const ImportRequest& request, const gpumem_share_handle* given);
  // Imports what has just come with the request's handle. Keeps nothing of it if that fails.
  Result<CreatedMemory> import_arrived(ImportRequest request, Arrival arrival);
  // Imports again what was imported before with the same bytes and defaults; no value unless that is certain.
  std::optional<CreatedMemory> import_again(const gpumem_share_handle& given) noexcept;
  // Claims an export of this type and has it used. If that fails, what came with the handle stays for another
  // try, unless the export has ended.
  Result<void> claim(const ImportRequest& request, gpumem_share_type type,
                     const std::function<Result<void>(ImportSource)>& use);
  // The device of this instance on which the handle's memory lies. NOT_FOUND.
  Result<DeviceObject*> device_of(const ShareHandle& handle) const;
  // Maps memory that has just come while `use` runs with its address. LIMIT_EXCEEDED if it is larger than
  // `bytes_max`.
  Result<void> try_import(ImportRequest request, Arrival arrival, uint64_t bytes_max,
                          const std::function<Result<void>(void*)>& use);
  // The handle of the event.
  Result<uint64_t> import_event(DeviceObject& device, const ImportRequest& request);
  Result<gpumem_import_info> info(const Memory& memory) const;
  // For snapshots: what is imported, and how much of what was is kept mapped.
  void list(const std::function<void(const Fields&)>& add) const;
  void list_kept(Fields& fields) const;
  // Whether this token is imported and alive, or was received.
  bool has(const Token& token) const;
  Result<void> destroy(Ref<Memory> memory) override;
  bool keep_mapped(Memory& memory) noexcept override;
  void forget(const Memory& memory) noexcept override;

  // What was received, and room for what comes.
  Arrivals& arrivals() noexcept { return arrivals_; }
  // Keeps what was reserved and has come until it is imported. Returns the handle to import, which says where
  // it came from.
  Result<ShareHandle> keep(Arrival arrival);

  Result<void> set_cache(uint64_t idle_ns, uint64_t bytes_max);
  Result<void> flush_for_user();
  // Unmaps all cached imports. Returns whether there were any.
  bool flush_cache() noexcept;
  // Call before closing the instance: releases everything but live imports.
  void stop() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  // Where to look for an import: what a handle says of the memory, for which device, with which access. A
  // handle may lie, so two imports with one key are the same memory only if one process granted both.
  using Key = std::tuple<Token, uint64_t, uint32_t, gpumem_access>;
  struct Granted {
    std::optional<ProcessId> by;
    ShareHandle recorded;

    explicit Granted(const ImportSource& source) : by(source.granter), recorded(source.recorded) {}
    bool is_same(const ImportSource& source) const;
  };
  struct Import {
    explicit Import(const ImportSource& source) : granted(source) {}
    Memory* memory = nullptr;
    CreatedMemory created;
    Granted granted;
    std::vector<Claim> claims;
    uint64_t count = 0;
    bool for_ring = false;
    bool for_trial = false;
    bool ending = false;

    gpumem_import_state state() const;
    // The best claim for a handle from the same origin; null if there is none. Unless it came `from_peer`, a
    // claim at its exporter's address serves too.
    const Claim* claim_for(const ShareHandle& handle, bool from_peer) const;
    // Takes a claim unless another one stands for it. What it replaces goes to `over`. Both have room.
    void take(Claim& fresh, std::vector<Claim>& over) noexcept;
  };
  using Table = std::multimap<Key, Import>;
  struct Kept {
    Key key;
    Granted granted;
    std::vector<Claim> claims;
    std::unique_ptr<backend::Memory> mapping;
    Clock::time_point until;
  };
  // Finds an import by the bytes of its handle, without decoding them again.
  struct Shortcut {
    gpumem_share_handle given{};
    Import* import = nullptr;
    ShareHandle handle;
    CreatedMemory created;
  };
  static constexpr size_t kShortcuts = 64;

  static Key key_of(const ShareHandle& handle, uint32_t ordinal, gpumem_access access);
  Result<DeviceObject*> device_for(const ImportRequest& request) const;
  Result<gpumem_access> access_for(const ImportRequest& request) const;
  Result<void> check_address(const ImportRequest& request) const;
  // Counts an import up if it fits the request. Returns the pointer to the exported byte.
  static Result<CreatedMemory> join(Import& import, const ImportRequest& request);
  // Counts up the import of a handle from the same origin; false if the exporter must be asked.
  Result<bool> count_up(const Key& key, const ImportRequest& request, const gpumem_share_handle* given,
                        CreatedMemory* out);
  // Counts up the import of the granted memory, and takes the claim; false if it is not imported.
  Result<bool> count_up(const Key& key, const ImportRequest& request, ImportSource& source,
                        CreatedMemory* out);
  // What came with the handle, if anything did.
  std::optional<Arrival> take_arrival(const ImportRequest& request, bool* elsewhere = nullptr);
  void put_back(std::optional<Arrival> received) noexcept;
  Result<ImportSource> reach(const ImportRequest& request, std::optional<Arrival>& received,
                             platform::Deadline deadline);
  // Explains why the exporter could not be reached: only the instance that received a handle can import it.
  Error unreached(const ShareHandle& handle, const Error& error) const;
  Result<std::unique_ptr<backend::Memory>> open_mapping(const ImportRequest& request, Device& device,
                                                        gpumem_access access,
                                                        const ImportSource& source) const;
  // Takes the claim if it succeeds, and nothing else.
  Result<CreatedMemory> map(const Key& key, const ImportRequest& request, DeviceObject& device,
                            gpumem_access access, ImportSource& source);
  std::list<Kept> take_kept(const Key& key, const ImportSource& source, const void* address) noexcept;
  void keep_again(std::list<Kept> kept) noexcept;
  // These require mutex_.
  void count_kept(const Kept& one) noexcept;
  void take_out(std::list<Kept>::iterator one, std::list<Kept>& to) noexcept;
  // Takes out what is beyond the limits of the cache, the oldest first.
  void trim_kept(std::list<Kept>& to) noexcept;
  void drop_kept(std::list<Kept> kept) noexcept;
  std::list<Kept> take_expired(Clock::time_point now) noexcept;
  void tidy_later();
  std::optional<std::chrono::nanoseconds> tidy() noexcept;

  Context& context_;
  std::mutex changes_;        // while a mapping is made or ended. Before mutex_
  mutable std::mutex mutex_;  // guards the rest
  Table imports_;
  std::map<const Memory*, Table::iterator> places_;
  std::vector<Shortcut> shortcuts_;  // none, or kShortcuts, by the check value of the handle
  std::list<Kept> kept_;             // the oldest first
  std::list<Kept> stuck_;            // to be unmapped, which the driver refused
  uint64_t kept_bytes_ = 0;
  uint64_t kept_connections_ = 0;  // of these
  uint64_t idle_ns_ = 0;
  uint64_t bytes_max_ = 0;
  bool tidying_ = false;
  Arrivals arrivals_;
};

// Gives up what has arrived and waited too long. For the sharing thread, after each round.
void tidy_arrivals(Context& context) noexcept;

}  // namespace gpumem::core
