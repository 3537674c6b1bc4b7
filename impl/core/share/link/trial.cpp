// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/link/trial.h"

#include <utility>

#include "core/copy/copy.h"
#include "core/memory/kind.h"
#include "core/object/abandoned.h"
#include "core/object/context.h"
#include "core/share/link/imports.h"
#include "core/share/peer/client.h"
#include "core/share/peer/server.h"
#include "platform/socket.h"
#include "platform/thread_record.h"

namespace gpumem::core {
namespace {

Result<void> copy_bytes(Context& context, void* destination, void* source) {
  return copy(context, nullptr, copy_of_bytes(destination, source, sizeof(Token)));
}

// Reads what the exporter wrote, and writes what it expects.
Result<void> use(Context& context, void* pointer, const Token& pattern) {
  Token found{};
  GPUMEM_TRY(copy_bytes(context, found.data(), pointer));
  if (found != pattern) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the memory was opened, but other bytes were there than the exporter wrote");
  }
  Token answer = answer_to(pattern);
  return copy_bytes(context, pointer, answer.data());
}

// A device that does not have the memory, if possible one with a link to the one that has.
DeviceObject* other_device(Context& context, const std::array<uint8_t, 16>& home_uuid) {
  Device* const home = Devices::of(context).find(home_uuid);
  Device* chosen = nullptr;
  for (const auto& device : Devices::of(context)) {
    if (device.get() == home) continue;
    const auto linked = home != nullptr ? device->has_link_to(*home) : Result<bool>(false);
    if (chosen == nullptr || (linked && *linked)) chosen = device.get();
  }
  return chosen != nullptr ? &Devices::of(context).object(chosen->ordinal()) : nullptr;
}

Result<void> try_import(Context& context, Incoming& incoming) {
  const Message& message = incoming.message;
  platform::Descriptor end = std::move(incoming.descriptors.front());
  incoming.descriptors.erase(incoming.descriptors.begin());
  if (platform::socket_type(end.get()) != platform::SocketType::kPackets)
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the trial brought no connection");
  ImportRequest request;
  request.handle = message.handle;
  request.access = GPUMEM_ACCESS_READWRITE;
  request.name = "trial";
  request.for_trial = true;
  if (message.other_device) {
    request.device = other_device(context, message.handle.device_uuid);
    if (request.device == nullptr)
      return make_error(GPUMEM_ERROR_UNSUPPORTED, "the other process has only one device");
  }
  auto client = ShareClient::open(ShareServer::of(context).loop(), std::move(end));
  if (!client) return client.error();
  const uint32_t user = (*client)->origin().process.user;
  Arrival arrival{message.handle, std::move(incoming.descriptors), std::move(*client), user, {}};
  return Imports::of(context).try_import(request, std::move(arrival), kTrialSizeMax,
                                         [&](void* pointer) { return use(context, pointer, message.token); });
}

}  // namespace

Token answer_to(const Token& pattern) {
  Token answer = pattern;
  for (uint8_t& byte : answer)
    byte = static_cast<uint8_t>(~byte);
  return answer;
}

std::string why_slow(gpumem_location location, bool other_device) {
  if (location != GPUMEM_LOCATION_DEVICE)
    return "slow: the memory lies on the host, and devices reach it over the bus";
  if (other_device) return "slow: the memory lies on another device, and is reached over the link of the two";
  return {};
}

Message answer_trial(Context& context, Incoming& incoming) {
  Message reply;
  reply.type = MessageType::kTried;
  const gpumem_location location = incoming.message.handle.location;
  const auto tried = try_import(context, incoming);
  reply.status = tried ? GPUMEM_SUCCESS : tried.error().status;
  reply.text = tried ? why_slow(location, incoming.message.other_device) : tried.error().message;
  reply.slow = tried && !reply.text.empty();
  return reply;
}

// ---- the block ----

Result<std::unique_ptr<TrialBlock>> TrialBlock::make(Context& context, const TrialRequest& request) {
  DeviceObject& device = Devices::of(context).object(request.device);
  auto block = std::make_unique<TrialBlock>(context);
  if (request.way == GPUMEM_SHARE_WAY_LEGACY) {
    backend::MemoryRequest wanted;
    wanted.sort = backend::MemorySort::kDevice;
    wanted.size = sizeof(Token);
    wanted.require = GPUMEM_MEMORY_SHAREABLE;
    auto created = create_memory(device, kinds::device, wanted, "trial");
    if (!created) return created.error();
    block->memory_ = created->handle;
    block->pointer_ = created->pointer;
    return block;
  }
  BufferRequest wanted;
  wanted.size = wanted.reserve = sizeof(Token);
  wanted.physical.location = request.location;
  wanted.physical.numa_node = request.numa_node;
  wanted.physical.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  wanted.name = "trial";
  auto created = create_buffer(device, std::move(wanted), {});
  if (!created) return created.error();
  block->buffer_ = *created;
  const auto buffer = acquire<Buffer>(platform::thread_record(), *created);
  if (!buffer) return instance_closed();
  block->pointer_ = buffer->base();
  return block;
}

TrialBlock::~TrialBlock() { abandon(context_, buffer_ != 0 ? buffer_ : memory_); }

Result<void> TrialBlock::write(const Token& bytes) {
  Token source = bytes;
  return copy_bytes(context_, pointer_, source.data());
}

Result<Token> TrialBlock::read() {
  Token bytes{};
  GPUMEM_TRY(copy_bytes(context_, bytes.data(), pointer_));
  return bytes;
}

}  // namespace gpumem::core
