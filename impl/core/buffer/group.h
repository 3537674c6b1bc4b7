// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Groups: buffers that sleep and wake as one.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/buffer/buffer.h"
#include "core/buffer/sleep.h"
#include "gpumem/group.h"

namespace gpumem::core {

class Group final : public Object, public GroupMembers {
 public:
  static constexpr Type kType = Type::kGroup;
  Group(std::shared_ptr<Context> context, std::string name)
      : Object(kType, std::move(context)), name_(std::move(name)) {}
  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;

  const std::string& name() const { return name_; }

  // For the buffers with a tag, or for all if it is empty.
  gpumem_group_info info(const std::string& tag) const;
  Result<void> sleep(const std::string& tag, const SleepRequest& request);
  Result<void> wake(const std::string& tag, const WakeRequest& request);
  Result<void> prepare(const std::string& tag, const StoreRequest& request, uint64_t bytes_per_second);

  uint64_t group() const override { return handle(); }
  void reserve_place() override;
  void cancel_place() noexcept override;
  void enter(Buffer& buffer) noexcept override;
  void leave(const Buffer& buffer) noexcept override;
  bool is_empty() const;

 private:
  std::vector<Ref<Buffer>> members(const std::string& tag) const;

  const std::string name_;
  Exclusive calls_;                   // held by a call for the group, during its work
  mutable std::mutex members_mutex_;  // guards the members
  std::vector<Buffer*> members_;      // in the order of their creation
  size_t reserved_ = 0;               // places for buffers that are being made
};

Result<uint64_t> create_group(const std::shared_ptr<Context>& context, std::string name);

}  // namespace gpumem::core
