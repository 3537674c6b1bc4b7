// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What an instance has exported, and who holds it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "contract/sharing.h"
#include "core/object/fields.h"
#include "core/object/sharing.h"
#include "core/share/wire/handle.h"
#include "core/stream/event.h"
#include "platform/descriptor.h"

namespace gpumem::core {

class Region;

struct ExportRequest {
  gpumem_share_way way = GPUMEM_SHARE_WAY_ANY;
  gpumem_access access = GPUMEM_ACCESS_READWRITE;
  gpumem_export_flags flags = 0;
};

// What an importer is given.
struct Grant {
  ShareHandle handle;
  platform::SharedDescriptors descriptors;
};

// Learns how many importers hold an export. Called with a lock held: it must be quick and take none.
class ExportWatcher {
 public:
  virtual ~ExportWatcher() = default;
  virtual void held(uint64_t claims) noexcept = 0;
};

// An export that is part of a larger object, for importers of that object.
struct PartRequest {
  gpumem_share_type type = GPUMEM_SHARE_TYPE_EVENT;
  backend::Ticket ticket;       // its descriptor is taken
  platform::Descriptors files;  // beside that
  uint64_t size = 0;
  Token whole{};  // of the object, if this is not that
  std::shared_ptr<ExportWatcher> watcher;
  bool exclusive = false;  // one importer at a time: a claim of another one is ALREADY_EXISTS
};

// What serves importers, as exports know it.
class ExportServer {
 public:
  // Importers can connect from then on.
  virtual Result<void> start() = 0;
  // An export has ended: importers are told. Takes no lock that is held for long.
  virtual void withdrawn(const Token& token) noexcept = 0;
  // Takes what importers have sent so far, so that a release sent before an event that the caller saw counts
  // here.
  virtual void catch_up() noexcept = 0;

 protected:
  ~ExportServer() = default;
};

class Exports final : public Sharing {
 public:
  // Of the instance.
  static Exports& of(Context& context);

  // `imported` says whether the instance has imported or received what a token is of, for messages.
  Exports(Context& context, ExportServer& server, std::function<bool(const Token&)> imported);
  ~Exports() override;

  // Of this instance. It does not change.
  const Token& instance_id() const { return instance_id_; }

  Result<ShareHandle> export_memory(const void* pointer, const ExportRequest& request);
  Result<ShareHandle> export_event(Event& event);
  // Each call makes a new export. Exports end with the object, by the functions below.
  Result<ShareHandle> export_part(const Object& object, const Device& device, PartRequest request);
  // Makes an export part of another: whoever may import the whole may import the part too, and whoever has
  // the part holds the object of the whole.
  void set_whole(const Token& part, const Token& whole, std::shared_ptr<ExportWatcher> watcher) noexcept;
  // The export that this one is a part of, or itself.
  Token whole_of(const Token& token) const noexcept;
  // NOT_FOUND if there is no such export (any more).
  Result<void> revoke(const Token& token);
  // Why an export of it would fail, or how many descriptors it would have. Changes nothing.
  Result<uint32_t> try_memory(const void* pointer, const ExportRequest& request);
  // NOT_FOUND; find() tells more of why, and locks the imports for that.
  Result<Grant> grant(const Token& token);
  // Whether this instance has exported it, and it has not ended or is still held.
  bool has(const Token& token) const noexcept;
  // The handle as it was exported. NOT_FOUND.
  Result<ShareHandle> find(const Token& token) const;

  // For an importer. Each claim() is followed by one unclaim(), at the latest when the importer hangs up.
  // STALE_HANDLE if the export has ended.
  Result<Grant> claim(const Token& token);
  void unclaim(const Token& token) noexcept;

  Result<void> begin_end(const Object& object) override;
  void cancel_end(const Object& object) noexcept override;
  void end(const Object& object) noexcept override;
  void end_blocks(const Object& range, uint64_t offset, uint64_t size) noexcept override;

  // For snapshots: each export that is no part of another. `holders` are the processes that hold an export.
  using Holders = std::multimap<Token, int32_t>;
  void list(const Holders& holders, const std::function<void(const Fields&)>& add) const;

  // Whether nothing was ever exported; then the functions above return at once.
  bool unused() const { return !used_.load(std::memory_order_acquire); }

 private:
  struct Export;
  using Exported = std::shared_ptr<Export>;
  class Plan;

  Exported find_open(const Token& token) const;  // null if there is none
  Error no_export(const Token& token) const;
  Exported find_same(const Object& object, const ShareHandle& like, uint64_t begin, uint64_t end,
                     bool neighbours) const;
  Result<void> check_no_part(const Object& object) const;
  Result<ExporterId> exporter();
  Result<ShareHandle> new_handle(gpumem_share_type type, gpumem_share_way way, const Device& device);
  Result<ShareHandle> add(Exported made, uint64_t offset);
  Result<ShareHandle> export_whole(const Plan& plan);
  Result<ShareHandle> export_blocks(const Plan& plan, const ExportRequest& request);
  uint64_t count_claims(const Object& object) const;
  uint64_t claims_on(const Object& object) const;
  static Grant grant_of(const Exported& found);
  template <class Which>
  void end_all(Which which) noexcept;

  Context& context_;
  ExportServer& server_;
  const std::function<bool(const Token&)> imported_;
  std::atomic<bool> used_{false};
  const Token instance_id_;
  std::atomic<uint64_t> start_time_{0};  // of the process, once it is known
  mutable std::mutex mutex_;             // guards the rest, and what changes in an export
  std::map<Token, Exported> exports_;
};

}  // namespace gpumem::core
