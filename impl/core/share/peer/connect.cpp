// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/connect.h"

#include "core/object/context.h"
#include "core/share/peer/client.h"
#include "core/share/peer/server.h"
#include "platform/identity.h"
#include "platform/socket.h"

namespace gpumem::core {
namespace {

// Why nobody listens at the address of an exporter.
Error not_there(const ExporterId& exporter) {
  if (exporter.process_namespace != platform::process_namespace()) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the exporter is in another process namespace, and cannot be reached from here; let it "
                      "send the handle with gpumem_share_send(), or publish it in a hub with a path");
  }
  const auto whereabouts = platform::whereabouts_of(exporter.pid, exporter.start_time);
  if (!whereabouts) return whereabouts.error();
  switch (*whereabouts) {
    case platform::Whereabouts::kSameNetwork:
      return make_error(GPUMEM_ERROR_STALE_HANDLE,
                        "process %d has closed the instance that exported the handle; ask it for a new one",
                        exporter.pid);
    case platform::Whereabouts::kOtherNetwork:
      return make_error(
          GPUMEM_ERROR_UNSUPPORTED,
          "process %d is in another network namespace; send the handle with gpumem_share_send(), or "
          "publish it in a hub with a path",
          exporter.pid);
    case platform::Whereabouts::kEnded:
      break;
  }
  return make_error(
      GPUMEM_ERROR_PEER_GONE,
      "process %d, which exported the handle, has ended; or it is in another namespace, where only "
      "gpumem_share_send() and a hub with a path reach it",
      exporter.pid);
}

}  // namespace

Result<std::shared_ptr<SharePeer>> connect_to_exporter(Context& context, const ExporterId& exporter,
                                                       uint64_t timeout_ns) {
  ShareServer& server = ShareServer::of(context);
  if (auto known = server.peers().find(exporter.instance)) return known;
  auto boot = platform::boot_id();
  if (!boot) return boot.error();
  if (*boot == Token{}) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "this process cannot read /proc, so it cannot tell whether the exporter lives; mount "
                      "/proc, or get the memory with gpumem_share_receive() or from a hub");
  }
  if (exporter.boot != *boot) {
    return make_error(
        GPUMEM_ERROR_PEER_GONE,
        "the handle was exported before this system started, or on another machine; ask for a new one");
  }
  const platform::Deadline deadline = answer_deadline(timeout_ns);
  auto socket = server.loop().connect(abstract_address(exporter.instance), deadline);
  if (!socket && socket.error().status == GPUMEM_ERROR_NOT_FOUND) return not_there(exporter);
  if (!socket) return socket.error();
  // Anyone can listen at an abstract address, and who has seen the handle knows this one.
  auto origin = SharePeer::origin_of(socket->get());
  if (!origin) return origin.error();
  auto lives = platform::peer_lives(socket->get());
  if (!lives) return lives.error();
  if (!*lives) return not_there(exporter);
  const ProcessId& process = origin->process;
  const bool shown = process.pid != 0 && process.start_time != 0 &&
                     exporter.process_namespace == platform::process_namespace();
  if (shown && (process.pid != exporter.pid || process.start_time != exporter.start_time))
    return not_there(exporter);
  if (process.user != platform::own_user()) {
    return make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                      "process %d, which answers for the handle, belongs to user %u and not to this one; use "
                      "gpumem_share_send() or a hub",
                      process.pid, process.user);
  }
  GPUMEM_TRY(server.start());
  auto client = ShareClient::open(server.loop(), std::move(*socket), 0, exporter.instance);
  if (!client) return client.error();
  Message hello;
  hello.type = MessageType::kHello;
  hello.token = exporter.instance;
  auto welcome = (*client)->call(std::move(hello), {}, MessageType::kWelcome, deadline);
  if (!welcome) return welcome.error();
  if (welcome->message.token != exporter.instance) {
    return make_error(GPUMEM_ERROR_STALE_HANDLE, "another instance answers at the address of the exporter");
  }
  return server.peers().add(exporter.instance, std::move(*client));
}

}  // namespace gpumem::core
