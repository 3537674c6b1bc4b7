// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/exports.h"

#include <algorithm>
#include <cinttypes>
#include <set>

#include "base/cleanup.h"
#include "core/memory/pointer.h"
#include "core/memory/range.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "platform/file.h"
#include "platform/identity.h"
#include "platform/pages.h"

namespace gpumem::core {

// An export does not change but for its holders, and for becoming a part.
struct Exports::Export {
  ShareHandle handle;  // its offset is 0
  platform::Descriptors descriptors;
  std::string name;                // of the object
  const Object* object = nullptr;  // compared, never read
  bool neighbours = false;
  // Of a range: the bytes of its blocks, and the blocks.
  uint64_t begin = 0;
  uint64_t end = 0;
  std::vector<uint64_t> block_ids;
  bool exclusive = false;

  // Guarded by Exports::mutex_.
  std::shared_ptr<ExportWatcher> watcher;  // or null
  const Object* owner = nullptr;           // the object of the whole, if that is another one
  uint64_t claims = 0;
  bool ending = false;   // its object is being freed
  bool revoked = false;  // kept only for its present holders
  Token whole{};         // zeros: it is no part

  bool open() const { return !ending && !revoked; }
  bool belongs_to(const Object& of) const { return object == &of || owner == &of; }
  void tell() const noexcept {
    if (watcher != nullptr) watcher->held(claims);
  }
};

Exports::~Exports() = default;

namespace {

Error stale() {
  return make_error(
      GPUMEM_ERROR_STALE_HANDLE,
      "the export has ended: its memory or event is gone, or it was revoked; ask for a new handle");
}

Error not_found() {
  return make_error(
      GPUMEM_ERROR_NOT_FOUND,
      "this instance has no such export: it has ended, or another instance made it, which must make this "
      "call itself");
}

Error held_already() {
  return make_error(GPUMEM_ERROR_ALREADY_EXISTS, "another importer holds it, and one at a time may");
}

Error unmapped_meanwhile() {
  return make_error(GPUMEM_ERROR_NOT_FOUND,
                    "the block was freed, or unmapped, by another thread during the call");
}

const char* way_name(gpumem_share_way way) {
  switch (way) {
    case GPUMEM_SHARE_WAY_LEGACY:
      return "GPUMEM_SHARE_WAY_LEGACY";
    case GPUMEM_SHARE_WAY_POSIX_FD:
      return "GPUMEM_SHARE_WAY_POSIX_FD";
    case GPUMEM_SHARE_WAY_FABRIC:
      return "GPUMEM_SHARE_WAY_FABRIC";
    default:
      return "GPUMEM_SHARE_WAY_DMA_BUF";
  }
}

}  // namespace

// An export that has been checked, and not made.
class Exports::Plan {
 public:
  FoundRegion found;
  gpumem_share_way way = GPUMEM_SHARE_WAY_ANY;
  std::vector<const Mapping*> blocks;  // of a range
  bool neighbours = false;             // importers may see adjacent memory

  Region& region() const { return *found.region; }
  bool in_pool() const { return region().pool_blocks() != nullptr; }
  uint64_t begin() const { return blocks.front()->offset; }
  uint64_t end() const { return blocks.back()->end(); }

  Result<void> make(Context& context, const void* pointer, const ExportRequest& request) {
    neighbours = (request.flags & GPUMEM_EXPORT_NEIGHBOURS) != 0;
    found = find_region(context, pointer);
    if (!found.region) return not_here(context, pointer);
    const KindTraits& kind = region().traits();
    if (kind.imported) {
      return make_error(
          GPUMEM_ERROR_WRONG_KIND,
          "imported memory cannot be exported again; pass on the handle that it came with, or copy "
          "the bytes to memory of this instance");
    }
    if (kind.sharing == KindTraits::Sharing::kNever) {
      return make_error(kind.sharing_unsupported ? GPUMEM_ERROR_UNSUPPORTED : GPUMEM_ERROR_WRONG_KIND,
                        "%s memory cannot be shared with other processes; device memory can, and memory of "
                        "ranges, buffers and pools of device memory",
                        kind.name);
    }
    if (region().from_driver()) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "memory of a pool of the driver cannot be shared; create the pool without "
                        "GPUMEM_POOL_FROM_DRIVER");
    }
    const bool whole = kind.sharing == KindTraits::Sharing::kWhole;
    way = request.way != GPUMEM_SHARE_WAY_ANY ? request.way
          : whole                             ? GPUMEM_SHARE_WAY_LEGACY
                                              : GPUMEM_SHARE_WAY_POSIX_FD;
    if (way == GPUMEM_SHARE_WAY_FABRIC) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "GPUMEM_SHARE_WAY_FABRIC keeps nothing alive, so it has no export; use "
                        "gpumem_physical_export_fabric()");
    }
    if ((way == GPUMEM_SHARE_WAY_LEGACY) != whole) {
      if (way == GPUMEM_SHARE_WAY_POSIX_FD) {
        return make_error(GPUMEM_ERROR_UNSUPPORTED,
                          "%s memory cannot be shared by GPUMEM_SHARE_WAY_POSIX_FD; %screate it as a "
                          "gpumem_buffer, or of a "
                          "gpumem_physical, with GPUMEM_HANDLE_TYPE_POSIX_FD",
                          kind.name,
                          check_whole(request) ? "use GPUMEM_SHARE_WAY_LEGACY, or, for a descriptor, " : "");
      }
      return make_error(GPUMEM_ERROR_UNSUPPORTED, "%s memory cannot be shared by %s; use %s", kind.name,
                        way_name(way), way_name(whole ? GPUMEM_SHARE_WAY_LEGACY : GPUMEM_SHARE_WAY_POSIX_FD));
    }
    GPUMEM_TRY(region().device().usable());
    uint64_t least = 0;
    uint64_t most = region().size();
    if (in_pool()) {
      GPUMEM_TRY(find_pool_block(pointer, &least, &most));
      if (!neighbours) {
        return make_error(GPUMEM_ERROR_UNSUPPORTED,
                          "other blocks of the pool may lie in the same pieces of memory, now or later, and "
                          "importers would see them; pass GPUMEM_EXPORT_NEIGHBOURS, or share a buffer");
      }
    }
    return whole ? check_whole(request) : find_blocks(least, most);
  }

  // Whether nothing was unmapped since the plan was made. A pool's blocks can be freed meanwhile.
  bool holds() const {
    const Mappings& mappings = static_cast<const Range&>(region()).mappings();
    return std::all_of(blocks.begin(), blocks.end(), [&](const Mapping* mapping) {
      return mappings.find(mapping->offset) == mapping && !mapping->leaving();
    });
  }

 private:
  Result<void> not_here(Context& context, const void* pointer) const {
    if (!found.in_pool && !is_of_another_instance(context, pointer) && platform::readable(pointer, 1)) {
      return make_error(GPUMEM_ERROR_WRONG_KIND,
                        "%p is not memory of this instance, and ordinary memory cannot be shared", pointer);
    }
    return nothing_at(context, pointer, found);
  }

  Result<void> check_whole(const ExportRequest& request) const {
    Device& device = region().device();
    GPUMEM_TRY(device.need(GPUMEM_CAPABILITY_SHARE_LEGACY));
    auto facet = device.sharing();
    if (!facet) return facet.error();
    if (request.access == GPUMEM_ACCESS_READ) {
      return make_error(
          GPUMEM_ERROR_UNSUPPORTED,
          "memory that is shared by GPUMEM_SHARE_WAY_LEGACY can always be written; use a buffer, "
          "which is shared by descriptors");
    }
    if (!neighbours && !(*facet)->is_alone(region().backend())) {
      // There only memory that is alone has a file.
      const bool on_host = region().context().backend().kind() == GPUMEM_BACKEND_HOST;
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "other memory may lie in the same block of the driver, and importers would see it; "
                        "create the memory with GPUMEM_MEMORY_SHAREABLE%s",
                        on_host ? "" : ", or pass GPUMEM_EXPORT_NEIGHBOURS");
    }
    return {};
  }

  bool belongs(const Mapping* mapping, const Mapping& first) const {
    return mapping != nullptr && !mapping->leaving() &&
           (mapping->facts.handle_types & GPUMEM_HANDLE_TYPE_POSIX_FD) != 0 &&
           mapping->facts.location == first.facts.location &&
           mapping->facts.location_id == first.facts.location_id && &mapping->device == &first.device;
  }

  // Where a block of a pool lies in its region.
  Result<void> find_pool_block(const void* pointer, uint64_t* least, uint64_t* most) const {
    PoolBlocks::Block block;
    if (!region().pool_blocks()->find(address_of(pointer), &block)) {
      FoundRegion freed;  // since it was found
      freed.in_pool = true;
      return nothing_at(region().context(), pointer, freed);
    }
    *least = block.base - region().address();
    *most = *least + block.size;
    return {};
  }

  // The blocks that lie one behind the other around the address, of one place, in a part of the range.
  Result<void> find_blocks(uint64_t least, uint64_t most) {
    const Mappings& mappings = static_cast<const Range&>(region()).mappings();
    const Mapping* const first = mappings.find(found.offset);
    if (first == nullptr || first->leaving()) {
      if (in_pool()) return unmapped_meanwhile();
      return not_mapped(static_cast<const Range&>(region()), found.offset);
    }
    if ((first->facts.handle_types & GPUMEM_HANDLE_TYPE_POSIX_FD) == 0) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "the memory was created without GPUMEM_HANDLE_TYPE_POSIX_FD; pass it in handle_types "
                        "when creating the physical memory, buffer or pool");
    }
    if (first->facts.imported) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "the memory was imported, and the driver does not export it again; share the handle "
                        "that it came with");
    }
    GPUMEM_TRY(first->device.usable());
    auto facet = first->device.sharing();
    if (!facet) return facet.error();
    const Mapping* begin = first;
    while (begin->offset > least) {
      const Mapping* const before = mappings.find(begin->offset - 1);
      if (!belongs(before, *first) || before->facts.imported) break;
      begin = before;
    }
    for (const Mapping* at = begin; belongs(at, *first) && !at->facts.imported;) {
      blocks.push_back(at);
      if (at->end() >= most) break;
      at = mappings.find(at->end());
    }
    if (blocks.empty() || (in_pool() && (least < this->begin() || this->end() < most)))
      return unmapped_meanwhile();
    return {};
  }
};

Exports::Exports(Context& context, ExportServer& server, std::function<bool(const Token&)> imported)
    : context_(context),
      server_(server),
      imported_(std::move(imported)),
      instance_id_(platform::random_id()) {}

// Fail instead of leaving a field out of the handle: the next try may be able to read it.
Result<ExporterId> Exports::exporter() {
  auto boot = platform::boot_id();
  if (!boot) return boot.error();
  ExporterId exporter;
  exporter.boot = *boot;
  exporter.instance = instance_id_;
  exporter.pid = platform::process_id();
  exporter.start_time = start_time_;
  if (exporter.start_time == 0) {
    auto began = platform::own_start_time();
    if (!began) return began.error();
    start_time_ = exporter.start_time = *began;
  }
  exporter.process_namespace = platform::process_namespace();
  return exporter;
}

Result<ShareHandle> Exports::new_handle(gpumem_share_type type, gpumem_share_way way, const Device& device) {
  auto own = exporter();
  if (!own) return own.error();
  ShareHandle handle;
  handle.type = type;
  handle.way = way;
  handle.backend = context_.backend().kind();
  handle.device_uuid = device.facts().uuid;
  handle.exporter = *own;
  handle.token = platform::random_id();
  return handle;
}

Exports::Exported Exports::find_same(const Object& object, const ShareHandle& like, uint64_t begin,
                                     uint64_t end, bool neighbours) const {
  for (const auto& [token, known] : exports_) {
    if (known->object == &object && known->open() && known->handle.way == like.way &&
        known->handle.access == like.access && known->begin == begin && known->end == end &&
        known->neighbours == neighbours)
      return known;
  }
  return nullptr;
}

// Adds an export, unless another thread has added the same meanwhile.
Result<ShareHandle> Exports::add(Exported made, uint64_t offset) {
  GPUMEM_TRY(server_.start());
  ShareHandle handle;
  {
    const std::lock_guard lock(mutex_);
    const Exported same = find_same(*made->object, made->handle, made->begin, made->end, made->neighbours);
    if (same == nullptr) {
      exports_.emplace(made->handle.token, made);
      used_.store(true, std::memory_order_release);
    }
    handle = same != nullptr ? same->handle : made->handle;
  }
  handle.offset = offset;
  return handle;
}

Result<ShareHandle> Exports::export_whole(const Plan& plan) {
  Region& region = plan.region();
  ShareHandle like;
  like.way = plan.way;
  {
    const std::lock_guard lock(mutex_);
    if (const Exported same = find_same(region, like, 0, 0, plan.neighbours)) {
      ShareHandle handle = same->handle;
      handle.offset = plan.found.offset;
      return handle;
    }
  }
  auto facet = region.device().sharing();
  if (!facet) return facet.error();
  auto ticket = (*facet)->export_memory(region.backend());
  if (!ticket) return ticket.error();
  platform::Descriptor descriptor(ticket->file_descriptor);
  auto made = std::make_shared<Export>();
  auto handle = new_handle(GPUMEM_SHARE_TYPE_MEMORY, plan.way, region.device());
  if (!handle) return handle.error();
  made->handle = *handle;
  made->handle.size = region.size();
  made->handle.buffer_id = region.buffer_id();
  made->handle.payload = ticket->bytes;
  if (descriptor) made->descriptors.push_back(std::move(descriptor));
  set_files(made->descriptors, made->handle);
  made->name = region.name();
  made->object = &region;
  made->neighbours = plan.neighbours;
  return add(std::move(made), plan.found.offset);
}

namespace {

Result<platform::Descriptor> export_block(const Range& range, const Mapping& mapping) {
  const HeldMapping held(range, mapping);
  if (!held.holds()) return unmapped_meanwhile();
  auto facet = range.device().sharing();
  if (!facet) return facet.error();
  auto made = (*facet)->export_block(range.reservation(), mapping.offset, mapping.facts);
  if (!made) return made.error();
  return platform::Descriptor(*made);
}

// The sizes of all blocks, for importers that cannot find them in the handle.
Result<platform::Descriptor> sizes_file(const std::vector<uint64_t>& sizes) {
  const uint64_t bytes = sizes.size() * sizeof sizes.front();
  auto file = platform::memory_file(bytes, "gpumem-blocks");
  if (!file) return file.error();
  platform::Descriptor descriptor(*file);
  GPUMEM_TRY(platform::write_file(descriptor.get(), 0, sizes.data(), bytes));
  return descriptor;
}

}  // namespace

Result<ShareHandle> Exports::export_blocks(const Plan& plan, const ExportRequest& request) {
  const auto& range = static_cast<const Range&>(plan.region());
  const Mapping& first = *plan.blocks.front();
  const uint64_t offset = plan.found.offset - plan.begin();
  ShareHandle like;
  like.way = plan.way;
  like.access = request.access;
  std::vector<Exported> earlier;  // whose descriptors can be reused
  {
    const std::lock_guard lock(mutex_);
    if (const Exported same = find_same(range, like, plan.begin(), plan.end(), false)) {
      ShareHandle handle = same->handle;
      handle.offset = offset;
      return handle;
    }
    for (const auto& [token, known] : exports_) {
      if (known->object == &range && known->open()) earlier.push_back(known);
    }
  }
  const auto exported_before = [&](uint64_t block_id) -> int {
    for (const Exported& known : earlier) {
      const auto at = std::find(known->block_ids.begin(), known->block_ids.end(), block_id);
      if (at != known->block_ids.end())
        return known->descriptors[static_cast<size_t>(at - known->block_ids.begin())].get();
    }
    return -1;
  };
  auto made = std::make_shared<Export>();
  std::vector<uint64_t> sizes;
  for (const Mapping* mapping : plan.blocks) {
    Result<platform::Descriptor> descriptor = platform::Descriptor();
    if (const int known = exported_before(mapping->facts.block_id); known >= 0) {
      descriptor = platform::duplicate(known);
    } else {
      descriptor = export_block(range, *mapping);
    }
    if (!descriptor) return descriptor.error();
    made->descriptors.push_back(std::move(*descriptor));
    made->block_ids.push_back(mapping->facts.block_id);
    sizes.push_back(mapping->size);
  }
  auto handle = new_handle(GPUMEM_SHARE_TYPE_MEMORY, plan.way, first.device);
  if (!handle) return handle.error();
  made->handle = *handle;
  made->handle.access = request.access;
  made->handle.location = first.facts.location;
  made->handle.numa_node = first.facts.on_device() ? -1 : first.facts.location_id;
  made->handle.size = plan.end() - plan.begin();
  made->handle.buffer_id = range.buffer_id();
  if (!write_blocks(sizes, made->handle)) {
    auto file = sizes_file(sizes);
    if (!file) return file.error();
    made->descriptors.push_back(std::move(*file));
  }
  set_files(made->descriptors, made->handle);
  made->name = range.name();
  made->object = &range;
  made->begin = plan.begin();
  made->end = plan.end();
  auto added = add(std::move(made), offset);
  if (!added || plan.holds()) return added;
  // End the export: the unmapping thread may have looked for exports before it was added.
  end_all([&](const Export& known) { return known.handle.token == added->token; });
  return unmapped_meanwhile();
}

// Refuses to export a ring's memory: the ring frees it, so no one could end such an import.
Result<void> Exports::check_no_part(const Object& object) const {
  if (unused()) return {};
  const std::lock_guard lock(mutex_);
  for (const auto& [token, known] : exports_) {
    if (known->object != &object || known->whole == Token{}) continue;
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the memory belongs to the ring; export that, with gpumem_ring_export()");
  }
  return {};
}

Result<ShareHandle> Exports::export_memory(const void* pointer, const ExportRequest& request) {
  const auto open = context_.stay_open();
  if (!open) return open.error();
  Plan plan;
  GPUMEM_TRY(plan.make(context_, pointer, request));
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(check_no_part(plan.region()));
  return plan.blocks.empty() ? export_whole(plan) : export_blocks(plan, request);
}

Result<uint32_t> Exports::try_memory(const void* pointer, const ExportRequest& request) {
  Plan plan;
  GPUMEM_TRY(plan.make(context_, pointer, request));
  GPUMEM_TRY(check_no_part(plan.region()));
  if (plan.blocks.empty()) return uint32_t{context_.backend().kind() == GPUMEM_BACKEND_HOST ? 1U : 0U};
  std::vector<uint64_t> sizes;
  for (const Mapping* mapping : plan.blocks)
    sizes.push_back(mapping->size);
  ShareHandle handle;
  return static_cast<uint32_t>(sizes.size()) + (write_blocks(sizes, handle) ? 0 : 1);
}

Result<ShareHandle> Exports::export_event(Event& event) {
  const auto open = context_.stay_open();
  if (!open) return open.error();
  GPUMEM_TRY(event.usable());
  if ((event.flags() & GPUMEM_EVENT_INTERPROCESS) == 0 || event.wrapped() || event.imported()) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "%s event cannot be exported; create one with GPUMEM_EVENT_INTERPROCESS and "
                      "GPUMEM_EVENT_DISABLE_TIMING",
                      event.imported()  ? "an imported"
                      : event.wrapped() ? "a wrapped"
                                        : "this");
  }
  ShareHandle like;
  like.way = GPUMEM_SHARE_WAY_LEGACY;
  {
    const std::lock_guard lock(mutex_);
    if (const Exported same = find_same(event, like, 0, 0, false)) return same->handle;
  }
  auto facet = event.device().sharing();
  if (!facet) return facet.error();
  auto ticket = (*facet)->export_event(event.backend());
  if (!ticket) return ticket.error();
  platform::Descriptor descriptor(ticket->file_descriptor);
  auto made = std::make_shared<Export>();
  auto handle = new_handle(GPUMEM_SHARE_TYPE_EVENT, GPUMEM_SHARE_WAY_LEGACY, event.device());
  if (!handle) return handle.error();
  made->handle = *handle;
  made->handle.payload = ticket->bytes;
  if (descriptor) made->descriptors.push_back(std::move(descriptor));
  set_files(made->descriptors, made->handle);
  made->name = event.name();
  made->object = &event;
  return add(std::move(made), 0);
}

Result<ShareHandle> Exports::export_part(const Object& object, const Device& device, PartRequest request) {
  platform::Descriptor descriptor(request.ticket.file_descriptor);
  GPUMEM_TRY(server_.start());
  auto made = std::make_shared<Export>();
  auto handle = new_handle(request.type, GPUMEM_SHARE_WAY_LEGACY, device);
  if (!handle) return handle.error();
  made->handle = *handle;
  made->handle.payload = request.ticket.bytes;
  made->handle.size = request.size;
  made->descriptors = std::move(request.files);
  if (descriptor) made->descriptors.push_back(std::move(descriptor));
  set_files(made->descriptors, made->handle);
  made->object = &object;
  made->watcher = std::move(request.watcher);
  made->exclusive = request.exclusive;
  made->whole = request.whole;
  const std::lock_guard lock(mutex_);
  exports_.emplace(made->handle.token, made);
  used_.store(true, std::memory_order_release);
  return made->handle;
}

void Exports::set_whole(const Token& part, const Token& whole,
                        std::shared_ptr<ExportWatcher> watcher) noexcept {
  const std::lock_guard lock(mutex_);
  const auto known = exports_.find(part);
  const auto of = exports_.find(whole);
  if (known == exports_.end() || of == exports_.end()) return;
  known->second->whole = whole;
  known->second->owner = of->second->object;
  known->second->watcher = std::move(watcher);
}

Token Exports::whole_of(const Token& token) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto known = exports_.find(token);
  return known != exports_.end() && known->second->whole != Token{} ? known->second->whole : token;
}

bool Exports::has(const Token& token) const noexcept {
  const std::lock_guard lock(mutex_);
  return exports_.contains(token);
}

Result<ShareHandle> Exports::find(const Token& token) const {
  const Exported found = find_open(token);
  if (found == nullptr) return no_export(token);
  return found->handle;
}

Exports::Exported Exports::find_open(const Token& token) const {
  const std::lock_guard lock(mutex_);
  const auto known = exports_.find(token);
  return known != exports_.end() && known->second->open() ? known->second : nullptr;
}

// Without the lock, because it asks the imports.
Error Exports::no_export(const Token& token) const {
  if (imported_(token)) {
    return make_error(
        GPUMEM_ERROR_NOT_FOUND,
        "the instance has only received or imported what the handle is of, or its export has ended; pass on "
        "the handle itself, or export the memory again; what was fetched from a keeper is held there "
        "already");
  }
  return not_found();
}

Grant Exports::grant_of(const Exported& found) {
  return {found->handle, platform::SharedDescriptors(found, &found->descriptors)};
}

Result<Grant> Exports::grant(const Token& token) {
  const Exported found = find_open(token);
  if (found == nullptr) return not_found();
  return grant_of(found);
}

Result<Grant> Exports::claim(const Token& token) {
  const std::lock_guard lock(mutex_);
  const auto known = exports_.find(token);
  if (known == exports_.end() || !known->second->open()) return stale();
  const Exported& found = known->second;
  if (found->exclusive && found->claims != 0) return held_already();
  Grant grant = grant_of(found);
  ++found->claims;
  found->tell();
  return grant;
}

void Exports::unclaim(const Token& token) noexcept {
  const std::lock_guard lock(mutex_);
  const auto known = exports_.find(token);
  if (known == exports_.end() || known->second->claims == 0) return;
  --known->second->claims;
  known->second->tell();
  if (known->second->claims == 0 && known->second->revoked) exports_.erase(known);
}

// Removes the exports that `which` selects. Closes them and informs importers without the lock.
template <class Which>
void Exports::end_all(Which which) noexcept {
  for (;;) {
    Exported ended;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(exports_.begin(), exports_.end(),
                                      [&](const auto& known) { return which(*known.second); });
      if (found == exports_.end()) return;
      ended = std::move(found->second);
      exports_.erase(found);
    }
    server_.withdrawn(ended->handle.token);
  }
}

Result<void> Exports::revoke(const Token& token) {
  auto rest = std::make_shared<Export>();
  rest->revoked = true;
  std::unique_lock lock(mutex_);
  const auto known = exports_.find(token);
  if (known == exports_.end() || !known->second->open()) {
    lock.unlock();
    return no_export(token);
  }
  const Exported ended = known->second;
  rest->handle = ended->handle;
  rest->object = ended->object;
  rest->owner = ended->owner;
  rest->claims = ended->claims;
  rest->watcher = ended->watcher;
  if (rest->claims != 0) {
    known->second = std::move(rest);
  } else {
    exports_.erase(known);
  }
  lock.unlock();
  server_.withdrawn(token);
  return {};
}

// Counts claims of importers that need the exporter's memory alive. Requires mutex_.
uint64_t Exports::count_claims(const Object& object) const {
  uint64_t claims = 0;
  for (const auto& [token, known] : exports_) {
    if (known->belongs_to(object) && known->handle.way == GPUMEM_SHARE_WAY_LEGACY) claims += known->claims;
  }
  return claims;
}

uint64_t Exports::claims_on(const Object& object) const {
  const std::lock_guard lock(mutex_);
  return count_claims(object);
}

Result<void> Exports::begin_end(const Object& object) {
  if (unused()) return {};
  if (claims_on(object) != 0) server_.catch_up();
  const std::lock_guard lock(mutex_);
  if (const uint64_t claims = count_claims(object); claims != 0) {
    return make_error(GPUMEM_ERROR_BUSY,
                      "%" PRIu64 " import%s of other processes hold%s it; they must end first", claims,
                      claims == 1 ? "" : "s", claims == 1 ? "s" : "");
  }
  for (const auto& [token, known] : exports_) {
    if (known->belongs_to(object)) known->ending = true;
  }
  return {};
}

void Exports::cancel_end(const Object& object) noexcept {
  if (unused()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& [token, known] : exports_) {
    if (known->belongs_to(object)) known->ending = false;
  }
}

void Exports::end(const Object& object) noexcept {
  if (unused()) return;
  end_all([&](const Export& known) { return known.object == &object; });
}

void Exports::list(const Holders& holders, const std::function<void(const Fields&)>& add) const {
  if (unused()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& [token, known] : exports_) {
    if (known->whole != Token{}) continue;
    std::set<int32_t> processes;
    const auto [first, last] = holders.equal_range(token);
    for (auto holder = first; holder != last; ++holder)
      processes.insert(holder->second);
    const ShareHandle& handle = known->handle;
    Fields fields;
    fields.add("name", known->name);
    fields.add("type", handle.type == GPUMEM_SHARE_TYPE_MEMORY  ? "memory"
                       : handle.type == GPUMEM_SHARE_TYPE_EVENT ? "event"
                                                                : "ring");
    fields.add("way", handle.way == GPUMEM_SHARE_WAY_LEGACY ? "legacy" : "posix-fd");
    fields.add("size", handle.size);
    fields.add("claims", known->claims);
    fields.add_list("holders", std::vector<int32_t>(processes.begin(), processes.end()));
    if (known->revoked) fields.add_true("revoked");
    add(fields);
  }
}

// Always takes the lock, so that an export added later sees that its blocks are gone.
void Exports::end_blocks(const Object& range, uint64_t offset, uint64_t size) noexcept {
  const uint64_t end = offset + size;
  end_all(
      [&](const Export& known) { return known.object == &range && known.begin < end && offset < known.end; });
}

}  // namespace gpumem::core
