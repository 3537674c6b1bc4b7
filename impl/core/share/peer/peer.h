// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The connection of an importer to the process that exported, or that keeps for it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/object/sharing.h"
#include "core/share/wire/handle.h"
#include "core/share/wire/protocol.h"
#include "platform/descriptor.h"

namespace gpumem::core {

class Context;

class SharePeer : public OtherProcess {
 public:
  // Who is at the other end of a connected socket. Trusts only the system, not that process: two connections
  // have the same process only if the system says so. A process that it does not show, or that has ended,
  // counts as another one for each connection.
  static Result<Origin> origin_of(int socket);
  // To an exporter, by its abstract address; the same connection for all that comes from it. PEER_GONE if the
  // process has ended, STALE_HANDLE if it lives but its instance is closed, UNSUPPORTED if it cannot be
  // reached from here (another network namespace), PERMISSION_DENIED if it refuses this user, BUSY after the
  // timeout.
  static Result<std::shared_ptr<SharePeer>> connect(Context& context, const ExporterId& exporter,
                                                    uint64_t timeout_ns);
  explicit SharePeer(const Origin& origin) : origin_(origin) {}

  const Origin& origin() const { return origin_; }
  // The instance at whose own address this connection was made; else zero.
  const Token& exporter() const { return exporter_; }

  // Holds the export until release(). STALE_HANDLE if the export has ended, PEER_GONE, BUSY. The answer is
  // GRANTED, with the handle that the exporter recorded.
  virtual Result<Incoming> claim(const Token& token, uint64_t timeout_ns) = 0;
  // Without waiting for an answer.
  virtual void release(const Token& token) noexcept = 0;

  // Asks the system too, so that nothing that the process did after hanging up is seen before.
  virtual bool has_hung_up() const noexcept = 0;
  virtual bool withdrawn(const Token& token) const noexcept = 0;

 private:
  const Origin origin_;
  Token exporter_{};  // does not change once others know this connection
};

}  // namespace gpumem::core
