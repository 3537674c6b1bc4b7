// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A hub as its server has it: who may connect, what it publishes, and what it keeps for others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/share/peer/event_loop.h"
#include "core/share/peer/exports.h"
#include "core/share/peer/hub_table.h"
#include "core/share/peer/keeper_store.h"
#include "core/share/wire/protocol.h"
#include "platform/identity.h"

namespace gpumem::core {

struct HubRequest {
  std::string address;
  uint32_t mode = 0600;
  std::vector<uint32_t> users;
  std::vector<uint32_t> groups;
  std::vector<uint8_t> secret;
  bool keeper = false;
  bool store = false;  // what it keeps, in the store of the service manager
  HubLimits limits;

  // Whether other users than that of the hub may connect.
  bool is_shared() const { return !users.empty() || !groups.empty(); }
};

// LIMIT_EXCEEDED: the process of a hub has no descriptor for something.
Error no_descriptor_for(const char* what);

class OpenHub {
 public:
  // Who publishes by a link.
  struct Publisher {
    uint64_t connection = 0;
    int socket = -1;
    int32_t process = 0;
    uint32_t user = 0;
  };

  explicit OpenHub(HubRequest given)
      : request(std::move(given)), table(request.limits), by_process_(request.limits.descriptors == 0) {}

  bool admits(const platform::PeerFacts& facts) const;
  // What messages that have begun, and what is kept, may each take; as the limit of the process is now.
  uint32_t descriptors_max();

  // Keeps what a link publishes in a keeper. Returns its number.
  Result<uint64_t> keep(const Exports& own, const Publisher& publisher, Incoming incoming,
                        std::vector<Token>* gone);
  // Withdraws also what stayed in the store for lack of room, so that its publisher can remove it.
  Result<void> withdraw(const std::string& name, uint64_t version, uint32_t user, std::vector<Token>* gone);
  // Restores what an earlier keeper left in the service manager's store. What does not fit stays there, and
  // `loop` is told.
  Result<void> restore(EventLoop& loop);
  // Leaves versions in the store: a keeper's end does not withdraw them.
  void leave_store() noexcept;

  HubRequest request;
  std::shared_ptr<KeeperStore> store;
  HubTable table;
  uint64_t refused = 0;

 private:
  bool by_process_;  // the limit of descriptors follows that of the process
};

// Those of an instance. A connection may outlive its hub.
using OpenHubs = std::map<uint64_t, OpenHub>;

// Null if it is closed.
inline OpenHub* find_hub(OpenHubs& hubs, uint64_t id) noexcept {
  const auto found = hubs.find(id);
  return found != hubs.end() ? &found->second : nullptr;
}

}  // namespace gpumem::core
