// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "library.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "file.h"

namespace gpumem::cli {

namespace {

// The library's messages are for programmers. Here a capability is "no", as in what `info` prints, and what
// to do is an option, or nothing where there is none.
std::string in_words(std::string message) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {" is NO)", " is no)"},
      {"; try again, or pass a longer timeout", "; see whether it is stopped or busy, and try again"},
      {"; pass NULL for the default", "; leave the option out for the default"},
      {"; pass its token", "; pass it with --token-file"},
  };
  for (const auto& [of_library, own] : kWords) {
    if (const size_t place = message.find(of_library); place != std::string::npos)
      message.replace(place, of_library.size(), own);
  }
  return message;
}

}  // namespace

CallFailed::CallFailed(const gpumem_error& error)
    : std::runtime_error(std::string(gpumem_status_name(error.status)) + ": " + in_words(error.message)),
      status_(error.status) {}

gpumem_instance open_instance(const std::string& backend) {
  if (!backend.empty()) setenv("GPUMEM_BACKEND", backend.c_str(), 1);
  gpumem_instance instance = nullptr;
  call(gpumem_instance_default, &instance);
  // A process with raised privileges does not read the environment.
  if (!backend.empty() && backend != "any" && backend != backend_name(instance_info(instance).backend)) {
    throw std::runtime_error("the backend cannot be chosen in a process with raised privileges");
  }
  return instance;
}

gpumem_instance_info instance_info(gpumem_instance instance) {
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  call(gpumem_instance_get_info, instance, &info);
  return info;
}

gpumem_device_info device_info(gpumem_device device) {
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  call(gpumem_device_get_info, device, &info);
  return info;
}

gpumem_memory_info memory_info(const Memory& memory) {
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  call(gpumem_memory_get_info, memory.get(), &info);
  return info;
}

gpumem_device find_device(gpumem_instance instance, uint32_t ordinal) {
  gpumem_device device = nullptr;
  call(gpumem_device_get, instance, ordinal, &device);
  return device;
}

Stream create_stream(gpumem_device device) {
  gpumem_stream_desc desc = GPUMEM_STREAM_DESC_INIT;
  gpumem_stream stream = nullptr;
  call(gpumem_stream_create, device, &desc, &stream);
  return Stream(stream);
}

MappedRange::MappedRange(gpumem_instance instance, gpumem_device device, uint64_t size) {
  constexpr uint64_t kBlocks = 4;
  gpumem_physical_desc block = GPUMEM_PHYSICAL_DESC_INIT;
  uint64_t unit = 0;
  call(gpumem_physical_get_granularity, device, &block, nullptr, &unit);
  block.size = (size / kBlocks + unit - 1) / unit * unit;
  if (block.size == 0) block.size = unit;

  gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
  desc.size = (size + block.size - 1) / block.size * block.size;
  desc.name = "move";
  call(gpumem_range_reserve, instance, &desc, &range_);
  try {
    gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
    call(gpumem_range_get_info, range_, &info);
    base_ = info.base;
    for (; mapped_ < desc.size; mapped_ += block.size) {
      gpumem_physical made = nullptr;
      call(gpumem_physical_create, device, &block, &made);
      const Owner<gpumem_physical, gpumem_physical_release> physical(made);
      call(gpumem_range_map, range_, mapped_, &made, uint64_t{1});
    }
    gpumem_access_desc access = GPUMEM_ACCESS_DESC_INIT;
    access.location = GPUMEM_LOCATION_DEVICE;
    access.location_id = static_cast<int32_t>(device_info(device).ordinal);
    access.access = GPUMEM_ACCESS_READWRITE;
    call(gpumem_range_set_access, range_, uint64_t{0}, mapped_, &access, uint64_t{1});
  } catch (...) {
    const MappedRange partial(std::move(*this));
    throw;
  }
}

MappedRange::~MappedRange() {
  if (mapped_ != 0) gpumem_range_unmap(range_, 0, mapped_, nullptr);
  gpumem_range_release(range_, nullptr);
}

GrownBuffer::GrownBuffer(gpumem_device device, uint64_t size) {
  constexpr uint64_t kSteps = 4;
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = size / kSteps;
  desc.reserve = size;
  desc.name = "move";
  gpumem_buffer buffer = nullptr;
  call(gpumem_buffer_create, device, &desc, &buffer);
  buffer_ = Owner<gpumem_buffer, gpumem_buffer_destroy>(buffer);
  for (uint64_t step = 2; step < kSteps; ++step)
    call(gpumem_buffer_resize, buffer, desc.size * step);
  call(gpumem_buffer_resize, buffer, size);
}

gpumem_buffer_info GrownBuffer::info() const {
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  call(gpumem_buffer_get_info, buffer_.get(), &info);
  return info;
}

void GrownBuffer::nap(gpumem_stream stream) {
  const gpumem_buffer_info before = info();
  gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
  // Not pinned: the store counts against no limit.
  desc.content = GPUMEM_CONTENT_PAGEABLE;
  desc.stream = stream;
  call(gpumem_buffer_sleep, buffer_.get(), &desc);
  call(gpumem_buffer_wake, buffer_.get(), nullptr);
  const gpumem_buffer_info after = info();
  if (after.base != before.base || after.generation == before.generation)
    throw std::runtime_error("the buffer has not slept, or woke at another address");
}

Memory create_memory(gpumem_device device, const gpumem_memory_desc& desc) {
  gpumem_memory memory = nullptr;
  call(gpumem_memory_create, device, &desc, &memory);
  return Memory(memory);
}

Memory register_memory(gpumem_device device, void* pointer, uint64_t size) {
  gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
  desc.pointer = pointer;
  desc.size = size;
  gpumem_memory memory = nullptr;
  call(gpumem_memory_register, device, &desc, &memory);
  return Memory(memory);
}

namespace {

template <typename Desc>
void set_place(Desc& desc, const HubPlace& place, const std::string& token) {
  desc.path = place.path ? place.path->c_str() : nullptr;
  desc.token = token.empty() ? nullptr : token.data();
  desc.token_size = static_cast<uint32_t>(token.size());
}

}  // namespace

Hub open_hub(gpumem_instance instance, const HubPlace& place, gpumem_hub_flags flags, uint32_t links) {
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  const std::string token = place.token_file ? read_token(*place.token_file) : "";
  set_place(desc, place, token);
  desc.flags = flags;
  desc.links_max = links;
  gpumem_hub hub = nullptr;
  call(gpumem_hub_open, instance, &desc, &hub);
  return Hub(hub);
}

Link connect_to_hub(gpumem_instance instance, const HubPlace& place, uint64_t timeout_ns) {
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  const std::string token = place.token_file ? read_token(*place.token_file) : "";
  set_place(desc, place, token);
  desc.timeout_ns = timeout_ns;
  gpumem_link link = nullptr;
  call(gpumem_link_connect, instance, &desc, &link);
  return Link(link);
}

gpumem_hub_info hub_info(const Hub& hub) {
  gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
  call(gpumem_hub_get_info, hub.get(), &info);
  return info;
}

gpumem_link_info link_info(const Link& link) {
  gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
  call(gpumem_link_get_info, link.get(), &info);
  return info;
}

std::vector<gpumem_entry_info> entries_of(const Link& link) {
  std::vector<gpumem_entry_info> entries;
  for (uint32_t index = 0;; ++index) {
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    gpumem_error error = GPUMEM_ERROR_INIT;
    const gpumem_status status = gpumem_link_enumerate(link.get(), index, &entry, &error);
    if (status == GPUMEM_ERROR_NOT_FOUND) return entries;
    if (GPUMEM_FAILED(status)) throw CallFailed(error);
    entries.push_back(entry);
  }
}

void require_keeper(const Link& link) {
  const gpumem_link_info info = link_info(link);
  if (info.keeper != 0) return;
  throw std::runtime_error("the hub at " + std::string(info.path) + ", process " + std::to_string(info.pid) +
                           ", is no keeper, and only its own process publishes there; start gpumem keep, "
                           "with --hub and another path");
}

void require_nothing_lives(gpumem_instance instance) {
  gpumem_stats stats = GPUMEM_STATS_INIT;
  call(gpumem_stats_get, instance, &stats);
  if (stats.live_count + stats.streams + stats.events == 0) return;
  std::array<char, 4096> report{};
  call(gpumem_stats_report, instance, report.data(), uint64_t{report.size()}, nullptr);
  std::string text = report.data();
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at))
    text.replace(at, 1, "; ");
  throw std::runtime_error("not everything could be freed: " + text);
}

std::string backend_name(gpumem_backend backend) {
  switch (backend) {
    case GPUMEM_BACKEND_ANY:
      return "any";
    case GPUMEM_BACKEND_CUDA:
      return "cuda";
    case GPUMEM_BACKEND_HOST:
      return "host";
    default:
      return "backend " + std::to_string(backend);
  }
}

std::string type_name(gpumem_share_type type) {
  switch (type) {
    case GPUMEM_SHARE_TYPE_MEMORY:
      return "memory";
    case GPUMEM_SHARE_TYPE_EVENT:
      return "event";
    case GPUMEM_SHARE_TYPE_RING:
      return "ring";
    default:
      return "type " + std::to_string(type);
  }
}

gpumem_status_info status_info(gpumem_status status) {
  gpumem_status_info info = GPUMEM_STATUS_INFO_INIT;
  if (GPUMEM_FAILED(gpumem_status_get_info(status, &info, nullptr))) {
    info.status = status;
    info.name = gpumem_status_name(status);
    info.cause = info.remedy = "";
  }
  return info;
}

}  // namespace gpumem::cli
