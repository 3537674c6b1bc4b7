// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/link/link.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "base/cleanup.h"
#include "base/text.h"
#include "core/object/callback.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/share/peer/exports.h"
#include "core/share/peer/server.h"
#include "platform/identity.h"
#include "platform/socket.h"

namespace gpumem::core {
namespace {

// How long a fetched handle may wait to be imported.
constexpr uint64_t kKeepTime = 30'000'000'000;
constexpr uint32_t kRoot = 0;

// Nobody listens there: the place may be wrong, or the hub not open yet.
Error with_remedy(const Error& error) {
  if (error.status != GPUMEM_ERROR_NOT_FOUND) return error;
  return make_error(error.status,
                    "%s; start its process, or \"gpumem keep\"; both sides need the same path, and for a "
                    "name the same XDG_RUNTIME_DIR",
                    error.message)
      .from_native(error.native_domain, error.native_code, error.native_name, error.entry_point);
}

}  // namespace

Result<void> Link::connect(const LinkRequest& request) {
  const platform::Deadline deadline = answer_deadline(timeout_ns_);
  auto socket = ShareServer::of(context()).loop().connect(request.address, deadline);
  if (!socket) return with_remedy(socket.error());
  auto facts = platform::peer_of(socket->get());
  if (!facts) return facts.error();
  hub_ = std::move(*facts);
  auto lives = platform::peer_lives(socket->get());
  if (!lives) return lives.error();
  if (!*lives) hub_.process = 0;  // another one may have the number by now
  // Check the user, because anyone can listen at a hub's address.
  const bool trusted = hub_.user == platform::own_user() || hub_.user == kRoot;
  if (!request.secret.empty() && !trusted) {
    return make_error(
        GPUMEM_ERROR_PERMISSION_DENIED,
        "what listens at %s belongs to user %u, and a token is shown only to a hub of this user "
        "or of root; pass none",
        Quoted(address_.c_str()).text(), hub_.user);
  }
  ShareServer& server = ShareServer::of(context());
  GPUMEM_TRY(server.start());
  auto client = ShareClient::open(server.loop(), std::move(*socket), timeout_ns_);
  if (!client) return client.error();
  Message hello = message_of(MessageType::kHello);
  hello.secret = request.secret;
  auto welcome = (*client)->call(std::move(hello), {}, MessageType::kWelcome, deadline);
  if (!welcome && welcome.error().status == GPUMEM_ERROR_PEER_GONE) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "what listens at %s hung up before it had answered: %s",
                      Quoted(address_.c_str()).text(), welcome.error().message);
  }
  // The address of an instance, which knows its handles only.
  const bool other = !welcome && welcome.error().status == GPUMEM_ERROR_STALE_HANDLE;
  if (!welcome && !other) return name_hub(welcome.error());
  if (other || welcome->descriptors.size() != 1 ||
      platform::socket_type(welcome->descriptors.front().get()) != platform::SocketType::kPackets)
    return make_error(GPUMEM_ERROR_NOT_FOUND, "what listens at %s is no hub",
                      Quoted(address_.c_str()).text());
  auto holder = ShareClient::open(server.loop(), std::move(welcome->descriptors.front()), timeout_ns_);
  if (!holder) return holder.error();
  // A service manager may have listened when this one connected; the hub's own process made the other end.
  if (const int32_t process = (*holder)->origin().process.pid; process != 0) hub_.process = process;
  keeper_ = welcome->message.keeper;
  client_ = std::move(*client);
  holder_ = std::move(*holder);
  return {};
}

gpumem_link_info Link::info() const {
  gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
  info.pid = hub_.process;
  info.uid = hub_.user;
  info.connected = client_->gone() ? 0 : 1;
  info.keeper = keeper_ ? 1 : 0;
  std::snprintf(info.path, sizeof info.path, "%s", address_.c_str());
  return info;
}

Result<Incoming> Link::call(Message request, MessageType answer, platform::SharedDescriptors descriptors,
                            const AnswerLimit& limit) {
  auto got =
      client_->call(std::move(request), std::move(descriptors), answer, answer_deadline(timeout_ns_), limit);
  if (!got) return name_hub(got.error());
  return got;
}

// Names the process of a hub that does not answer, so that it can be found.
Error Link::name_hub(const Error& error) const {
  if (error.status != GPUMEM_ERROR_BUSY) return error;
  return reworded(error, "the hub at %s, process %d: %s", Quoted(address_.c_str()).text(), hub_.process,
                  error.message);
}

Result<HubEntry> Link::enumerate(uint32_t index) {
  GPUMEM_TRY(outside_host_function());
  Message request = message_of(MessageType::kEnumerate);
  request.index = index;
  auto answer = call(std::move(request), MessageType::kEntry);
  if (!answer) return answer.error();
  return std::move(answer->message.entry);
}

Result<Status> Link::wait(const std::string& name, uint64_t after, uint64_t timeout_ns, HubEntry* entry) {
  return wait_until(name, after, timeout_ns == 0, wait_deadline(timeout_ns), entry);
}

// Also of a look, which waits for no version but for answers.
platform::Deadline Link::wait_deadline(uint64_t timeout_ns) const {
  return timeout_ns == 0 ? answer_deadline(timeout_ns_) : platform::deadline_after(timeout_ns);
}

Result<Status> Link::wait_until(const std::string& name, uint64_t after, bool once,
                                platform::Deadline deadline, HubEntry* entry) {
  GPUMEM_TRY(outside_host_function());
  Message request = message_of(MessageType::kWait, name, after);
  request.once = once;
  auto answer = client_->call(std::move(request), {}, MessageType::kEntry, deadline);
  if (!answer) {
    const Status status = answer.error().status;
    const bool late = status == GPUMEM_ERROR_BUSY && std::chrono::steady_clock::now() >= deadline;
    if (once ? status == GPUMEM_ERROR_NOT_FOUND : late) return GPUMEM_NOT_READY;
    return name_hub(answer.error());
  }
  *entry = std::move(answer->message.entry);
  return GPUMEM_SUCCESS;
}

Result<Status> Link::import_next(const std::string& name, uint64_t after, uint64_t timeout_ns,
                                 ImportRequest request, HubEntry* entry, CreatedMemory* created) {
  const platform::Deadline deadline = wait_deadline(timeout_ns);
  for (bool first = true;; first = false) {
    if (!first && timeout_ns == 0 && std::chrono::steady_clock::now() >= deadline)
      return name_hub(make_error(GPUMEM_ERROR_BUSY,
                                 "it replaced each version before that could be imported; try again later"));
    auto waited = wait_until(name, after, timeout_ns == 0, deadline, entry);
    if (!waited || *waited != GPUMEM_SUCCESS) return waited;
    after = entry->version;  // if it is gone, newer ones have replaced it
    auto fetched = ask_for(name, after, {});
    if (!fetched && fetched.error().status == GPUMEM_ERROR_NOT_FOUND) continue;
    if (!fetched) return fetched.error();
    request.handle = fetched->handle;
    auto imported = Imports::of(context()).import_arrived(request, std::move(*fetched));
    if (!imported && imported.error().status == GPUMEM_ERROR_STALE_HANDLE) continue;
    if (!imported) return imported.error();
    *created = *imported;
    // What the hub said of it before need not be true.
    entry->size = request.handle.size;
    entry->type = request.handle.type;
    entry->way = request.handle.way;
    entry->access = request.handle.access;
    return GPUMEM_SUCCESS;
  }
}

// Counts the answer for the user of the hub from its beginning on, however long the rest takes.
Result<Arrival> Link::ask_for(const std::string& name, uint64_t version, const Fingerprint& fingerprint) {
  GPUMEM_TRY(outside_host_function());
  Arrivals& arrivals = Imports::of(context()).arrivals();
  const platform::ClosingTogether together;
  auto charge = arrivals.reserve(hub_.user);
  if (!charge) return charge.error();
  Message request = message_of(MessageType::kFetch, name, version);
  request.fingerprint = fingerprint;
  Result<void> reserved;
  const std::function<bool(const Message&)> has_room = [&](const Message& head) {
    if (head.type != MessageType::kGranted) return false;
    ShareHandle handle = head.handle;
    handle.origin = holder_->origin();
    reserved = arrivals.reserve_descriptors(**charge, head.descriptor_count + uint64_t{1}, handle);
    return static_cast<bool>(reserved);
  };
  auto answer = call(std::move(request), MessageType::kGranted, {}, {UINT32_MAX, &has_room});
  arrivals.bury();
  if (!reserved) return reserved.error();
  if (!answer) return answer.error();
  Arrival arrival{answer->message.handle,
                  std::move(answer->descriptors),
                  holder_,
                  hub_.user,
                  platform::deadline_after(kKeepTime),
                  std::move(*charge)};
  arrival.handle.origin = holder_->origin();
  return arrival;
}

Result<ShareHandle> Link::fetch(const std::string& name, uint64_t version, const Fingerprint& fingerprint) {
  auto arrival = ask_for(name, version, fingerprint);
  if (!arrival) return arrival.error();
  return Imports::of(context()).keep(std::move(*arrival));
}

Result<void> Link::need_keeper() const {
  if (keeper_) return {};
  return make_error(GPUMEM_ERROR_UNSUPPORTED,
                    "the hub at %s is no keeper, so only its own process publishes in it; open it with "
                    "GPUMEM_HUB_KEEPER",
                    Quoted(address_.c_str()).text());
}

Result<uint64_t> Link::publish(const PublishRequest& request) {
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(need_keeper());
  if (auto known = Exports::of(context()).find(request.handle.token); !known) return known.error();
  auto grant = Exports::of(context()).grant(request.handle.token);
  if (!grant) return grant.error();
  if (grant->handle.way != GPUMEM_SHARE_WAY_POSIX_FD) {
    return make_error(
        GPUMEM_ERROR_UNSUPPORTED,
        "a keeper takes memory by GPUMEM_SHARE_WAY_POSIX_FD only, because nothing else outlives "
        "its process; use a buffer with GPUMEM_HANDLE_TYPE_POSIX_FD in handle_types");
  }
  auto access = published_access(grant->handle, request.access);
  if (!access) return access.error();
  Message message = message_of(MessageType::kPublish, request.name, request.version);
  message.handle = grant->handle;
  if (request.handle.offset < message.handle.size) message.handle.offset = request.handle.offset;
  message.access = *access;
  message.keep = request.keep;
  message.fingerprint = request.fingerprint;
  auto answer = call(std::move(message), MessageType::kPublished, std::move(grant->descriptors));
  if (!answer) return answer.error();
  return answer->message.version;
}

Result<void> Link::withdraw(const std::string& name, uint64_t version) {
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(need_keeper());
  auto answer = call(message_of(MessageType::kWithdraw, name, version), MessageType::kDone);
  if (!answer) return answer.error();
  return {};
}

Result<TrialResult> Link::make_trial(const TrialRequest& request) {
  ShareServer& server = ShareServer::of(context());
  auto block = TrialBlock::make(context(), request);
  if (!block) return block.error();
  Message message = message_of(MessageType::kTrial);
  message.token = platform::random_id();
  message.other_device = request.other_device;
  const Token expected = answer_to(message.token);
  GPUMEM_TRY((*block)->write(message.token));
  ExportRequest wanted;
  wanted.way = request.way;
  auto handle = Exports::of(context()).export_memory((*block)->pointer(), wanted);
  if (!handle) return handle.error();
  auto lent = server.lend(handle->token, 0, hub_);
  if (!lent) return lent.error();
  // Before the block is freed.
  Cleanup take_back([&] { server.take_back(lent->connection); });
  message.handle = lent->grant.handle;
  auto descriptors = lent->take_descriptors();
  if (!descriptors) return descriptors.error();
  const platform::Deadline deadline = answer_deadline(timeout_ns_);
  auto answer = call(std::move(message), MessageType::kTried, std::move(*descriptors));
  if (!answer && answer.error().status == GPUMEM_ERROR_BUSY) {
    // One that refuses at once has opened nothing.
    if (std::chrono::steady_clock::now() >= deadline) unanswered_.push_back(std::move(*block));
    return answer.error();
  }
  if (!answer) return TrialResult{answer.error().status, false, answer.error().message};
  const Message& tried = answer->message;
  TrialResult result{tried.status, tried.slow, tried.text.empty() ? "" : quoted_answer(tried.text)};
  if (result.status != GPUMEM_SUCCESS) return result;
  auto found = (*block)->read();
  if (!found) return found.error();
  if (*found == expected) return result;
  return TrialResult{GPUMEM_ERROR_UNSUPPORTED, false,
                     "the other process opened the memory, but what it wrote is not here"};
}

Result<TrialResult> Link::try_way(const TrialRequest& request) {
  const auto lock = lock_unless_in_callback(trials_mutex_);
  if (!lock) return changed_elsewhere("trials of the link");
  if (const auto known = trials_.find(request); known != trials_.end()) return known->second;
  GPUMEM_TRY(ShareServer::of(context()).loop().may_wait());
  // One that was not answered keeps its block, which the other side may have open, and its descriptors.
  if (!unanswered_.empty() && client_->owes_answer_to(MessageType::kTrial)) {
    return name_hub(make_error(GPUMEM_ERROR_BUSY,
                               "it has not answered the trial that the link made before; try again later"));
  }
  unanswered_.clear();
  auto result = make_trial(request);
  if (!result) return result;  // the other side was not asked, or said nothing
  switch (result->status) {
    case GPUMEM_SUCCESS:
    case GPUMEM_ERROR_UNSUPPORTED:
    case GPUMEM_ERROR_PERMISSION_DENIED:
    case GPUMEM_ERROR_NOT_FOUND:
    case GPUMEM_ERROR_SYMBOL_MISSING:
    case GPUMEM_ERROR_INVALID_ARGUMENT:
    case GPUMEM_ERROR_INVALID_STATE:
      trials_.emplace(request, *result);
      break;
    default:
      break;  // not kept, as the next answer may differ
  }
  return result;
}

void Link::handle_ended() noexcept { client_->abandon(ended_meanwhile(kType)); }

Result<uint64_t> connect_link(const std::shared_ptr<Context>& context, const LinkRequest& request) {
  GPUMEM_TRY(outside_host_function());
  auto link = std::make_unique<Link>(context, request);
  // Connecting waits for another process, so do not block closing meanwhile.
  GPUMEM_TRY(link->connect(request));
  const auto open = context->stay_open();
  if (!open) return open.error();
  auto handle = handles::reserve(*link);
  if (!handle) return handle.error();
  context->add_object(*link);
  handles::publish(link.release());
  return *handle;
}

Line Link::describe() const { return line_of("link: %s", address().c_str()); }

void Link::list(Fields& fields) const noexcept { fields.add("address", address()); }

Result<void> Link::release() {
  unanswered_.clear();
  return {};
}

}  // namespace gpumem::core
