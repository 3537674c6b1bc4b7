// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/peer.h"

#include <cstring>

#include "platform/identity.h"
#include "platform/socket.h"

namespace gpumem::core {

std::string abstract_address(const Token& instance) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "@gpumem-";
  for (const uint8_t byte : instance) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<Origin> SharePeer::origin_of(int socket) {
  auto facts = platform::peer_of(socket);
  if (!facts) return facts.error();
  Origin origin;
  const platform::Id random = platform::random_id();
  std::memcpy(&origin.connection, random.data(), sizeof origin.connection);
  auto began = platform::start_time_of(facts->process);
  if (!began) return began.error();
  // Only now, since a number that is free is given to another process.
  auto lives = platform::peer_lives(socket);
  if (!lives) return lives.error();
  origin.process = {facts->process, facts->user, *began};
  if (facts->process == 0 || *began == 0 || !*lives) origin.process = {0, facts->user, origin.connection};
  return origin;
}

}  // namespace gpumem::core
