// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Hubs: exports under names, on a socket of the instance's sharing thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/object/handles.h"
#include "core/object/object.h"
#include "core/share/peer/server.h"
#include "gpumem/hub.h"

namespace gpumem::core {

// The address of a hub: a full path, or `@` and an abstract address. Creates the folder of a name if
// `make_folder`. PERMISSION_DENIED if others can use the folder: another user may have created it first.
Result<std::string> hub_address(const char* path, bool make_folder);

struct PublishRequest {
  std::string name;
  ShareHandle handle;
  uint64_t version = 0;
  gpumem_access access = GPUMEM_ACCESS_NONE;  // NONE: the default
  uint32_t keep = 0;
  Fingerprint fingerprint{};
};
// What links get; INVALID_ARGUMENT if the export allows less.
Result<gpumem_access> published_access(const ShareHandle& exported, gpumem_access wanted);

class Hub final : public Object {
 public:
  static constexpr Type kType = Type::kHub;
  Hub(std::shared_ptr<Context> context, std::string name, std::string address)
      : Object(kType, std::move(context)), name_(std::move(name)), address_(std::move(address)) {}
  ~Hub() override { close(); }
  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;

  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  gpumem_hub_info info() const;

  Result<uint64_t> publish(const PublishRequest& request);
  Result<void> withdraw(const std::string& name, uint64_t version);
  void close() noexcept;

 private:
  friend Result<uint64_t> open_hub(const std::shared_ptr<Context>& context, std::string name,
                                   HubRequest request);
  const std::string name_;
  const std::string address_;
  uint64_t id_ = 0;  // in the server; 0 while it is not open
};

Result<uint64_t> open_hub(const std::shared_ptr<Context>& context, std::string name, HubRequest request);

}  // namespace gpumem::core
