// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/link/hub.h"

#include <cstdio>
#include <utility>

#include "base/cleanup.h"
#include "base/text.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/share/peer/exports.h"
#include "core/share/peer/server.h"
#include "platform/environment.h"
#include "platform/folder.h"
#include "platform/socket.h"

namespace gpumem::core {
namespace {

Error bad_path(const std::string& path, const char* why) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the path %s %s", Quoted(path.c_str()).text(), why);
}

bool has_parent_folder(const std::string& path) {
  return ("/" + path + "/").find("/../") != std::string::npos;
}

}  // namespace

Result<std::string> hub_address(const char* given, bool make_folder) {
  std::string path = given != nullptr ? given : "default";
  if (path.empty() || path == "@") return bad_path(path, "is empty; pass NULL for the default");
  if (path[0] != '@') {
    if (has_parent_folder(path)) return bad_path(path, "has a folder `..`; pass it without");
    if (path.find('/') == std::string::npos) {
      // XDG_RUNTIME_DIR | a full path | none | in its folder `gpumem`, or else in `/tmp/gpumem-UID`, are
      // [hubs](sharing.md#hubs) without a path; `gpumem why` looks there too
      const char* const runtime = platform::environment("XDG_RUNTIME_DIR");
      const std::string folder = runtime != nullptr && runtime[0] == '/'
                                     ? std::string(runtime) + "/gpumem"
                                     : "/tmp/gpumem-" + std::to_string(platform::own_user());
      const auto checked =
          make_folder ? platform::make_private_folder(folder) : platform::check_private_folder(folder);
      // A missing folder is no error yet: connecting reports that nobody listens.
      if (!checked && (make_folder || checked.error().status != GPUMEM_ERROR_NOT_FOUND))
        return checked.error();
      path = folder + '/' + path;
    } else if (path[0] != '/') {
      auto here = platform::current_folder();
      if (!here) return here.error();
      path = *here + '/' + path;
    }
    if (path.back() == '/') return bad_path(path, "is a folder; add a name for the socket");
  }
  if (path.size() > platform::kAddressMax)
    return bad_path(path, "is longer than 107 bytes; use a shorter one");
  return path;
}

Result<gpumem_access> published_access(const ShareHandle& exported, gpumem_access wanted) {
  const bool whole = exported.way == GPUMEM_SHARE_WAY_LEGACY;
  if (wanted == GPUMEM_ACCESS_NONE) return whole ? exported.access : gpumem_access{GPUMEM_ACCESS_READ};
  if (wanted > exported.access) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the export allows only reading; pass GPUMEM_ACCESS_READ, or export it with more");
  }
  if (whole && wanted == GPUMEM_ACCESS_READ && exported.access != GPUMEM_ACCESS_READ) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "what is shared by GPUMEM_SHARE_WAY_LEGACY can always be written; pass "
                      "GPUMEM_ACCESS_READWRITE or 0");
  }
  return wanted;
}

gpumem_hub_info Hub::info() const {
  const HubCounts counts = ShareServer::of(context()).counts(id_);
  gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
  info.link_count = counts.links;
  info.name_count = counts.names;
  info.version_count = counts.versions;
  info.fd_count = counts.descriptors;
  info.refused_count = counts.refused;
  std::snprintf(info.path, sizeof info.path, "%s", address_.c_str());
  std::snprintf(info.name, sizeof info.name, "%s", name_.c_str());
  return info;
}

Result<uint64_t> Hub::publish(const PublishRequest& request) {
  GPUMEM_TRY(outside_host_function());
  auto exported = Exports::of(context()).find(request.handle.token);
  if (!exported) return exported.error();
  auto access = published_access(*exported, request.access);
  if (!access) return access.error();
  HubTable::Request entry;
  entry.name = request.name;
  entry.version = request.version;
  entry.keep = request.keep;
  entry.published.handle = *exported;
  entry.published.handle.access = *access;
  if (request.handle.offset < exported->size) entry.published.handle.offset = request.handle.offset;
  entry.published.fingerprint = request.fingerprint;
  auto version = ShareServer::of(context()).publish(id_, std::move(entry));
  // Withdraw an export that ended meanwhile: its end came before this version was published.
  if (version && !Exports::of(context()).find(request.handle.token))
    ShareServer::of(context()).withdrawn(request.handle.token);
  return version;
}

Result<void> Hub::withdraw(const std::string& name, uint64_t version) {
  GPUMEM_TRY(outside_host_function());
  return ShareServer::of(context()).withdraw(id_, name, version);
}

void Hub::close() noexcept {
  if (const uint64_t id = std::exchange(id_, 0); id != 0) ShareServer::of(context()).close_hub(id);
}

Result<uint64_t> open_hub(const std::shared_ptr<Context>& context, std::string name, HubRequest request) {
  GPUMEM_TRY(outside_host_function());
  const auto open = context->stay_open();
  if (!open) return open.error();
  auto hub = std::make_unique<Hub>(context, std::move(name), request.address);
  auto handle = handles::reserve(*hub);
  if (!handle) return handle.error();
  Cleanup undo([&] { handles::cancel(*hub); });
  auto id = ShareServer::of(*context).open_hub(std::move(request));
  if (!id) return id.error();
  undo.dismiss();
  hub->id_ = *id;
  context->add_object(*hub);
  handles::publish(hub.release());
  return *handle;
}

Line Hub::describe() const { return line_of("hub %s: %s", shown(name_), address_.c_str()); }

void Hub::list(Fields& fields) const noexcept {
  fields.add("name", name_);
  fields.add("address", address_);
}

Result<void> Hub::release() {
  close();
  return {};
}

}  // namespace gpumem::core
