// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Links: connections to the hubs of other processes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/object/handles.h"
#include "core/object/object.h"
#include "core/share/link/hub.h"
#include "core/share/link/imports.h"
#include "core/share/link/trial.h"
#include "core/share/peer/client.h"

namespace gpumem::core {

struct LinkRequest {
  std::string address;
  std::vector<uint8_t> secret;
  uint64_t timeout_ns = 0;  // for each answer; 0: the default
};

class Link final : public Object {
 public:
  static constexpr Type kType = Type::kLink;
  Link(std::shared_ptr<Context> context, const LinkRequest& request)
      : Object(kType, std::move(context)), address_(request.address), timeout_ns_(request.timeout_ns) {}

  Line describe() const override;
  void list(Fields& fields) const noexcept override;

  const std::string& address() const { return address_; }
  gpumem_link_info info() const;

  Result<HubEntry> enumerate(uint32_t index);
  // NOT_READY if no entry came in time.
  Result<Status> wait(const std::string& name, uint64_t after, uint64_t timeout_ns, HubEntry* entry);
  // Imports the next version, as `request` says, whose handle is found here. NOT_READY if none came in time.
  Result<Status> import_next(const std::string& name, uint64_t after, uint64_t timeout_ns,
                             ImportRequest request, HubEntry* entry, CreatedMemory* created);
  Result<ShareHandle> fetch(const std::string& name, uint64_t version, const Fingerprint& fingerprint);
  Result<uint64_t> publish(const PublishRequest& request);
  Result<void> withdraw(const std::string& name, uint64_t version);
  // Whether the hub's process can use such memory. Caches the answer, unless it may change.
  Result<TrialResult> try_way(const TrialRequest& request);
  // Also frees the blocks of trials that a process which did not answer may still have open.
  Result<void> release() override;
  // Calls that wait for the hub fail from now on. If the link stays, it can only be closed.
  void handle_ended() noexcept override;

 private:
  friend Result<uint64_t> connect_link(const std::shared_ptr<Context>& context, const LinkRequest& request);
  Result<void> connect(const LinkRequest& request);
  platform::Deadline wait_deadline(uint64_t timeout_ns) const;
  Result<Arrival> ask_for(const std::string& name, uint64_t version, const Fingerprint& fingerprint);
  Result<Status> wait_until(const std::string& name, uint64_t after, bool once, platform::Deadline deadline,
                            HubEntry* entry);
  Result<void> need_keeper() const;
  Result<TrialResult> make_trial(const TrialRequest& request);
  Error name_hub(const Error& error) const;
  Result<Incoming> call(Message request, MessageType answer, platform::SharedDescriptors descriptors = {},
                        const AnswerLimit& limit = {});

  const std::string address_;
  const uint64_t timeout_ns_;
  platform::PeerFacts hub_;
  bool keeper_ = false;
  std::shared_ptr<ShareClient> client_;
  // Holds what is imported; imports keep it when the link is closed.
  std::shared_ptr<SharePeer> holder_;

  std::mutex trials_mutex_;  // during a trial; guards the rest
  std::map<TrialRequest, TrialResult> trials_;
  std::vector<std::unique_ptr<TrialBlock>> unanswered_;
};

Result<uint64_t> connect_link(const std::shared_ptr<Context>& context, const LinkRequest& request);

}  // namespace gpumem::core
