// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/group.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/cleanup.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"

namespace gpumem::core {
namespace {

bool has_tag(const Buffer& buffer, const std::string& tag) { return tag.empty() || buffer.tag() == tag; }

}  // namespace

void Group::reserve_place() {
  const std::lock_guard lock(members_mutex_);
  members_.reserve(members_.size() + reserved_ + 1);
  ++reserved_;
}

void Group::cancel_place() noexcept {
  const std::lock_guard lock(members_mutex_);
  --reserved_;
}

void Group::enter(Buffer& buffer) noexcept {
  const std::lock_guard lock(members_mutex_);
  members_.push_back(&buffer);
  --reserved_;
}

void Group::leave(const Buffer& buffer) noexcept {
  const std::lock_guard lock(members_mutex_);
  std::erase(members_, &buffer);
}

bool Group::is_empty() const {
  const std::lock_guard lock(members_mutex_);
  return members_.empty() && reserved_ == 0;
}

// Held, so that they live until the call ends. One that is being destroyed is left out.
std::vector<Ref<Buffer>> Group::members(const std::string& tag) const {
  std::vector<Ref<Buffer>> held;
  platform::ThreadRecord& record = platform::thread_record();
  const std::lock_guard lock(members_mutex_);
  for (const Buffer* const member : members_) {
    if (!has_tag(*member, tag)) continue;
    if (auto buffer = acquire<Buffer>(record, member->handle())) held.push_back(std::move(buffer));
  }
  return held;
}

gpumem_group_info Group::info(const std::string& tag) const {
  gpumem_group_info sum = GPUMEM_GROUP_INFO_INIT;
  std::snprintf(sum.name, sizeof sum.name, "%s", name_.c_str());
  const std::lock_guard lock(members_mutex_);
  for (const Buffer* const member : members_) {
    if (!has_tag(*member, tag)) continue;
    const gpumem_buffer_info info = member->info();
    ++sum.buffer_count;
    sum.awake_count += info.state == GPUMEM_BUFFER_STATE_AWAKE ? 1 : 0;
    sum.asleep_count += info.state == GPUMEM_BUFFER_STATE_ASLEEP ? 1 : 0;
    sum.failed_count += info.state == GPUMEM_BUFFER_STATE_FAILED ? 1 : 0;
    sum.size += info.size;
    sum.stored_size += info.stored_size;
    sum.store_capacity += info.store_capacity;
  }
  return sum;
}

Result<void> Group::sleep(const std::string& tag, const SleepRequest& request) {
  GPUMEM_TRY(outside_host_function());
  const auto turn = calls_.enter();
  if (!turn) return turn.error();
  return sleep_buffers(context(), members(tag), true, request);
}

Result<void> Group::wake(const std::string& tag, const WakeRequest& request) {
  GPUMEM_TRY(outside_host_function());
  const auto turn = calls_.enter();
  if (!turn) return turn.error();
  return wake_buffers(context(), members(tag), true, request);
}

Result<void> Group::prepare(const std::string& tag, const StoreRequest& request, uint64_t bytes_per_second) {
  GPUMEM_TRY(outside_host_function());
  const auto turn = calls_.enter();
  if (!turn) return turn.error();
  return prepare_buffers(context(), members(tag), true, request, bytes_per_second);
}

Result<uint64_t> create_group(const std::shared_ptr<Context>& context, std::string name) {
  GPUMEM_TRY(outside_host_function());
  const auto open = context->stay_open();
  if (!open) return open.error();
  auto group = std::make_unique<Group>(context, std::move(name));
  auto handle = handles::reserve(*group);
  if (!handle) return handle.error();
  context->add_object(*group);
  handles::publish(group.release());
  return *handle;
}

Line Group::describe() const { return line_of("group %s", shown(name_)); }

void Group::list(Fields& fields) const noexcept { fields.add("name", name_); }

Result<void> Group::release() {
  if (!is_empty()) return make_error(GPUMEM_ERROR_BUSY, "the group still has buffers; destroy them first");
  return {};
}

}  // namespace gpumem::core
