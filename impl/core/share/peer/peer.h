// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The connection of an importer to the process that exported, or that keeps for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/object/sharing.h"
#include "core/share/wire/handle.h"
#include "core/share/wire/protocol.h"
#include "platform/descriptor.h"

namespace gpumem::core {

// Of the instance with this id.
std::string abstract_address(const Token& instance);

// How many descriptors an answer may bring.
struct AnswerLimit {
  uint32_t descriptors_max = UINT32_MAX;
  // Whether there is room for them, by its head. Called with the connection locked, by any thread.
  const std::function<bool(const Message& head)>* has_room = nullptr;
};

class SharePeer : public OtherProcess {
 public:
  // Who is at the other end of a connected socket. Trusts only the system, not that process: two connections
  // have the same process only if the system says so. A process that it does not show, or that has ended,
  // counts as another one for each connection.
  static Result<Origin> origin_of(int socket);
  explicit SharePeer(const Origin& origin, const Token& exporter = {})
      : origin_(origin), exporter_(exporter) {}

  const Origin& origin() const { return origin_; }
  // The instance at whose own address this connection was made; else zero.
  const Token& exporter() const { return exporter_; }

  // Holds the export until release(). STALE_HANDLE if the export has ended, PEER_GONE, BUSY. The answer is
  // GRANTED, with the handle that the exporter recorded; without its descriptors if those are too many.
  virtual Result<Incoming> claim(const Token& token, const AnswerLimit& limit, uint64_t timeout_ns) = 0;
  // Without waiting for an answer.
  virtual void release(const Token& token) noexcept = 0;

  // Asks the system too, so that nothing that the process did after hanging up is seen before.
  virtual bool has_hung_up() const noexcept = 0;
  virtual bool withdrawn(const Token& token) const noexcept = 0;

  uint64_t kept = 0;  // claims of imports that only the cache keeps; guarded by its lock

 private:
  const Origin origin_;
  const Token exporter_;
};

}  // namespace gpumem::core
